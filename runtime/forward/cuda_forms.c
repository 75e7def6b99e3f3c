/* forward_cuda_forms: layers of the GPU forward whose rows attend in another form than one softmax over
 * chosen pages, or see landmarks' pages, or select in a prompt. The ops do it (ops/select,
 * ops/attention), between a step's or a prompt's products; kernels_src/step/forms.cu hands over to
 * them and back. Nothing of it is compiled or allocated before a config or an adapter asks for it; then
 * all of it is, by a rehearsal (device.h): a step does neither. See cuda.c.
 *
 * Rows are taken in slices of f->forms.rows at most. */

/* Whether step rows choose pages in this layer; one with a window of its own attends that. */
static bool cuda_selects(const forward_cuda_state *f, const forward_rule *rule, int layer) {
    const plan_layer *l = &f->plan->layers[layer];
    return l->mixer == PLAN_ATTENTION && !l->window && forward_rule_selects(rule, layer);
}

static void cuda_set_selection(const forward_cuda_state *f, step_params *p,
                               const forward_rule *rule) {
    memset(p->select_layers, 0, sizeof p->select_layers);
    for (int l = 0; l < f->shape->layers; l++)
        if (cuda_selects(f, rule, l)) p->select_layers[l / 32] |= 1u << l % 32;
    if (!rule) return;
    p->topk = rule->select.topk;
    p->window = rule->select.window;
    p->sinks = rule->select.sinks;
    p->mean = rule->select.mean;
    p->by_head = rule->select.head;
}

/* Whether query heads score pages each by itself. */
static bool cuda_by_heads(const forward_rule *rule) {
    return rule->select.soft || (rule->two_level && rule->select.head);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* A row's floats, without what it chooses; of a page that it may choose. */
static size_t cuda_form_row_bytes(const forward_cuda_state *f) {
    const size_t heads = (size_t)f->shape->heads, kv_heads = (size_t)f->shape->kv_heads;
    return heads * (3 * (size_t)f->shape->head_dim + 1) * 4 +
           (size_t)f->max_pages * (2 * kv_heads + 2 * heads) * 4;
}

/* As many rows as take CUDA_FORM_MIB. */
enum { CUDA_FORM_MIB = 64 };
static int cuda_form_rows(const forward_cuda_state *f) {
    const size_t rows = ((size_t)CUDA_FORM_MIB << 20) / cuda_form_row_bytes(f);
    return rows < 1 ? 1 : rows < STEP_STAGE_ROWS ? (int)rows : STEP_STAGE_ROWS;
}

static size_t cuda_chosen_words(const forward_cuda_state *f, int topk) {
    return (size_t)f->shape->layers * (size_t)f->shape->kv_heads * (size_t)(1 + topk);
}

static void cuda_take_forms(forward_cuda_state *f, device_arena *a) {
    static const char what[] = "the forms of attention";
    const uint64_t rows = (uint64_t)cuda_form_rows(f), pages = (uint64_t)f->max_pages;
    const uint64_t heads = (uint64_t)f->shape->heads, kv_heads = (uint64_t)f->shape->kv_heads;
    const uint64_t values = rows * heads * (uint64_t)f->shape->head_dim * 4;
    f->forms.rows = (int)rows;
    f->forms.q = (float *)device_take(a, values, what);
    f->forms.whole = (float *)device_take(a, values, what);
    f->forms.pages = (float *)device_take(a, values, what);
    f->forms.lse = (float *)device_take(a, rows * heads * 4, what);
    f->forms.scores = (float *)device_take(a, rows * kv_heads * pages * 4, what);
    f->forms.weights = (float *)device_take(a, rows * heads * pages * 4, what);
    f->forms.head_scores = (float *)device_take(a, rows * heads * pages * 4, what);
    f->forms.selected = (int32_t *)device_take(a, rows * kv_heads * pages * 4, what);
}

/* ---- one slice ------------------------------------------------------------------------------- */

/* Pages that a row chooses at most. */
static int cuda_form_topk(const forward_cuda_state *f, const forward_rule *rule) {
    return rule->select.topk < f->max_pages ? rule->select.topk : f->max_pages;
}

static paged_rows cuda_form_paged(const forward_cuda_state *f, const step_lane *lane, int first, int l) {
    const int32_t *arrays = lane->params.input + STEP_HEAD + first;
    paged_rows at;
    memset(&at, 0, sizeof at);
    at.cache = (uint16_t *)f->held->pages[f->plan->layers[l].state];
    at.page_table = f->table;
    at.sequences = arrays + STEP_SEQUENCE * lane->params.capacity;
    at.positions = arrays + STEP_POSITION * lane->params.capacity;
    at.error = ops_error_word(f->dev, "forward");
    at.pages = f->held->pool.pages;
    at.kv_heads = f->shape->kv_heads, at.head_dim = f->shape->head_dim;
    at.page_size = f->page_size, at.max_pages = f->max_pages;
    at.sequence_count = f->table_rows;
    return at;
}

static float cuda_form_scale(const forward_cuda_state *f) {
    return f->plan->attention_scale > 0.0f ? f->plan->attention_scale
                                           : 1.0f / sqrtf((float)f->shape->head_dim);
}

/* One of the kernels of step/forms.cu, for rows of this lane. */
static cairn_status cuda_form_launch(forward_cuda_state *f, const cuda_form *form,
                                     const step_lane *lane, int first, int rows, int l,
                                     const jit_kernel *kernel) {
    const forward_rule *rule = form->rule;
    device_dims dims = {{0, 0, 1}, 128, 0, 0, true};
    form_params p;
    memset(&p, 0, sizeof p);
    p.step = lane->params;
    cuda_set_extras(f, l, &p.step);
    cuda_set_selection(f, &p.step, rule);
    p.step.layer = l;
    p.first = first, p.topk = cuda_form_topk(f, rule);
    p.q = f->forms.q, p.whole = f->forms.whole, p.selected = f->forms.selected;
    p.pages = rule->apart ? f->forms.pages : NULL;
    p.chosen = form->steps ? f->forms.chosen : NULL, p.counts = form->steps;
    p.least = rule->two_level || rule->apart ? 0 : rule->select.topk;
    p.bounds = !rule->select.landmark;
    dims.grid[0] = (unsigned)rows, dims.grid[1] = (unsigned)f->shape->kv_heads;
    return device_launch(f->dev, kernel, &dims, &p);
}

/* Attends a part; lse where it is wanted. */
static cairn_status cuda_form_attend(forward_cuda_state *f, const cuda_form *form,
                                     const paged_rows *at, int rows, int l, int part, float *out,
                                     float *lse) {
    const forward_rule *rule = form->rule;
    const bool chooses = part != ATTEND_PART_WINDOW, weighs = chooses && rule->two_level;
    attend_params p;
    memset(&p, 0, sizeof p);
    p.at = *at;
    p.q = f->forms.q, p.out = out, p.lse = lse;
    p.scales = pages_scales(f->held, f->plan->layers[l].state);
    p.scale = cuda_form_scale(f);
    p.heads = f->shape->heads;
    p.window = ops_clamp_tokens(rule->select.window, at);
    p.sinks = ops_clamp_tokens(rule->select.sinks, at);
    p.sparse = 1, p.part = part;
    if (chooses) p.selected = f->forms.selected, p.topk = cuda_form_topk(f, rule);
    if (weighs) p.weights = f->forms.weights;
    p.weight_heads = cuda_by_heads(rule) ? p.heads : at->kv_heads;
    return ops_attend_cuda(f->runtime, &p, rows, f->cache_kind |
                                                     (form->landmarks ? ATTEND_LANDMARKS : 0) |
                                                     (part ? ATTEND_PARTS : 0) |
                                                     (weighs ? ATTEND_TWO_LEVEL : 0));
}

/* Scores of the slice's pages; of softmax_head beside the lse of what is attended besides. */
static cairn_status cuda_form_score(forward_cuda_state *f, const cuda_form *form, const paged_rows *at,
                                    int rows, int l) {
    const forward_rule *rule = form->rule;
    ops_paged paged = {rows, *at};
    score_pages_params p;
    memset(&p, 0, sizeof p);
    p.at = *at;
    p.bounds = (const uint16_t *)f->held->bounds[f->plan->layers[l].state];
    p.q = f->forms.q, p.scores = f->forms.scores;
    p.head_scores = cuda_by_heads(rule) ? f->forms.head_scores : NULL;
    p.lse = rule->select.soft ? f->forms.lse : NULL;
    p.scale = cuda_form_scale(f);
    p.heads = f->shape->heads;
    p.window = ops_clamp_tokens(rule->select.window, at);
    p.mean = rule->select.mean, p.by_head = rule->select.head || rule->select.soft;
    p.scales = pages_scales(f->held, f->plan->layers[l].state);
    return ops_pages_score_cuda(f->runtime, &p, &paged, rule->select.landmark, rule->select.soft,
                                f->cache_kind);
}

/* The pages with the highest scores, and their weights. */
static cairn_status cuda_form_choose(forward_cuda_state *f, const cuda_form *form, int rows) {
    const bool heads = cuda_by_heads(form->rule);
    const int64_t units = (int64_t)rows * f->shape->kv_heads;
    device_dims dims = {{(unsigned)units, 1, 1}, 256, 0, 32, false};
    topk_shape shape = {"forward", units, f->max_pages, f->max_pages, 0};
    select_listed_params listed;
    topk_params p;
    cairn_status status;
    memset(&p, 0, sizeof p);
    memset(&listed, 0, sizeof listed);
    p.scores = f->forms.scores, p.indices = f->forms.selected;
    p.values = heads ? NULL : f->forms.weights;
    p.k = cuda_form_topk(f, form->rule);
    p.finite_only = 1;
    status = topk_launch(f->runtime, &p, &shape, CAIRN_F32, "auto");
    if (status || !heads) return status;
    listed.scores = f->forms.scores, listed.head_scores = f->forms.head_scores;
    listed.selected = f->forms.selected, listed.head_chosen = f->forms.weights;
    listed.pages = f->max_pages, listed.topk = p.k;
    listed.group = f->shape->heads / f->shape->kv_heads;
    return ops_launch(f->runtime, "select/heads.cu", "select_listed", &dims, &listed);
}

static cairn_status cuda_form_slice(forward_cuda_state *f, const cuda_form *form,
                                    const step_lane *lane, int first, int rows, int l) {
    const bool soft = form->rule->select.soft, apart = form->rule->apart;
    const paged_rows at = cuda_form_paged(f, lane, first, l);
    const jit_kernel *kernels = f->forms.kernels[lane == &f->prompt];
    cairn_status status = cuda_form_launch(f, form, lane, first, rows, l, &kernels[0]);
    if (!status && (soft || apart))
        status = cuda_form_attend(f, form, &at, rows, l, ATTEND_PART_WINDOW, f->forms.whole,
                                  f->forms.lse);
    if (status || (status = cuda_form_score(f, form, &at, rows, l)) ||
        (status = cuda_form_choose(f, form, rows)) ||
        (status = cuda_form_attend(f, form, &at, rows, l, apart ? ATTEND_PART_PAGES : ATTEND_PART_ALL,
                                   apart ? f->forms.pages : f->forms.whole, NULL)))
        return status;
    return cuda_form_launch(f, form, lane, first, rows, l, &kernels[1]);
}

/* The attention of a layer's rows, between its products. */
static cairn_status cuda_attend_formed(forward_cuda_state *f, const cuda_form *form,
                                       const step_lane *lane, int rows, int l) {
    cairn_status status = CAIRN_OK;
    for (int first = 0; first < rows && !status; first += f->forms.rows) {
        const int left = rows - first;
        status = cuda_form_slice(f, form, lane, first, left < f->forms.rows ? left : f->forms.rows, l);
    }
    return status;
}

/* ---- getting ready --------------------------------------------------------------------------- */

/* An entry of a program with the constants of a lane, once it is there; CAIRN_BUSY until then. */
static cairn_status cuda_form_kernel(forward_cuda_state *f, const char *source, const char *entry,
                                     bool prompt, int extras, int shared, jit_kernel *out) {
    jit_constant constants[STEP_CONSTANTS];
    jit_request request = {source, constants, 0, JIT_AWAITED};
    jit_program *program;
    cairn_status status;
    request.constant_count = cuda_constants(f, 0, prompt ? f->max_rows : STEP_STAGE_ROWS,
                                            prompt ? 0 : f->stage_parts, 0, constants);
    cuda_constant(constants, "EXTRAS")->value |= extras;
    status = ops_ask_program(f->runtime, &request, &program);
    return status ? status : jit_function(f->dev->jit, program, entry, shared, out);
}

static cairn_status cuda_form_kernels(forward_cuda_state *f, bool landmarks) {
    static const char *const entries[] = {"form_begin", "form_end"};
    const int shared = (int)layout_prompt_bytes(f->shape->head_dim);
    cairn_status all = CAIRN_OK;
    for (int i = 0; i < 4 + landmarks && (!all || all == CAIRN_BUSY); i++) {
        const cairn_status one =
            i < 4 ? cuda_form_kernel(f, "step/forms.cu", entries[i % 2], i > 1, 0, 0,
                                     &f->forms.kernels[i / 2][i % 2])
                  : cuda_form_kernel(f, "step/prompt_attend.cu", "prompt_attend", true,
                                     STEP_EXTRA_LANDMARKS, shared, &f->forms.unmarked);
        if (one) all = one;
    }
    return all;
}

/* Goes through what rows of these sequences will do, and launches nothing: kernels are asked for, memory
 * is taken. */
static cairn_status cuda_rehearse(forward_cuda_state *f, const forward_rule *rule, bool landmarks) {
    const cuda_form form = {rule, landmarks, true};
    cairn_status status = cuda_form_kernels(f, landmarks);
    int l = 0;
    if (status && status != CAIRN_BUSY) return status;
    while (l < f->shape->layers && !cuda_selects(f, rule, l)) l++;
    if (l == f->shape->layers) return status;
    f->dev->rehearses = true, f->dev->awaits = status == CAIRN_BUSY;
    status = CAIRN_OK;
    for (int rows = f->forms.rows; rows && !status; rows--)
        status = cuda_form_slice(f, &form, &f->stage, 0, rows, l);
    f->dev->rehearses = false;
    return !status && f->dev->awaits ? CAIRN_BUSY : status;
}

/* Whether the model has an adapter with landmarks. */
static bool cuda_has_landmarks(const cairn_model *model, const cairn_adapter *more) {
    const cairn_adapter *a = more && more->parts[ADAPTER_LANDMARK] ? more : model->adapters;
    while (a && !a->parts[ADAPTER_LANDMARK]) a = a->next;
    return a != NULL;
}

/* Whether sessions of the config, with landmarks or without, come to forms. */
static bool cuda_wants_forms(const forward_cuda_state *f, const cairn_config *config, bool landmarks) {
    forward_rule rule;
    return forward_rule_of(config, f->page_size, f->shape->layers, &rule) &&
           (cuda_has_forms(&rule, landmarks) || rule.prompts) && (landmarks || !rule.select.landmark);
}

/* Memory for what rows choose by the rule, unless there is as much. What a graph may still write
 * stays. */
static cairn_status cuda_hold_chosen(forward_cuda_state *f, const forward_rule *rule) {
    device_arena *a = &f->forms.arena;
    const size_t words = cuda_chosen_words(f, cuda_form_topk(f, rule));
    cairn_status status;
    void *chosen;
    if (words <= f->forms.chosen_words) return CAIRN_OK;
    chosen = device_take(a, (uint64_t)f->table_rows * words * 4, "the chosen pages");
    status = a->status;
    a->status = CAIRN_OK;
    if (status) return status;
    f->forms.chosen = (int32_t *)chosen;
    f->forms.chosen_words = words;
    return CAIRN_OK;
}

/* And for its forms. */
static cairn_status cuda_hold_forms(forward_cuda_state *f, const forward_rule *rule) {
    device_arena *a = &f->forms.arena;
    cairn_status status = cuda_hold_chosen(f, rule);
    if (status || f->forms.q) return status;
    cuda_take_forms(f, a);
    status = a->status;
    a->status = CAIRN_OK;
    if (status) f->forms.q = NULL; /* what was taken stands until the model is closed */
    return status;
}

/* What sessions take for them, with landmarks or without, in an estimate. */
static uint64_t cuda_measure_forms(forward_cuda_state *f, const cairn_config *config, bool landmarks) {
    forward_rule rule;
    f->forms.arena.measures = true;
    if (cuda_wants_forms(f, config, landmarks) &&
        forward_rule_of(config, f->page_size, f->shape->layers, &rule))
        cuda_hold_forms(f, &rule);
    return f->forms.arena.bytes;
}

/* Makes ready for sessions of this config, also with landmarks where an adapter has them: CAIRN_BUSY
 * while kernels are compiled. */
static cairn_status cuda_ask_forms(cairn_model *model, const cairn_config *config,
                                   const cairn_adapter *more) {
    forward_cuda_state *f = (forward_cuda_state *)model->state;
    cairn_status all = CAIRN_OK;
    forward_rule rule;
    for (int landmarks = 0; landmarks <= cuda_has_landmarks(model, more); landmarks++) {
        cairn_status one;
        if (!cuda_wants_forms(f, config, landmarks != 0)) continue;
        forward_rule_of(config, f->page_size, f->shape->layers, &rule);
        one = cuda_hold_forms(f, &rule);
        if (!one) one = cuda_rehearse(f, &rule, landmarks != 0);
        if (one && one != CAIRN_BUSY) return one;
        if (one) all = one;
    }
    return all;
}

/* The same to its end. [blocks] */
static cairn_status cuda_get_forms(cairn_model *model, const cairn_adapter *more) {
    cairn_status status;
    while ((status = cuda_ask_forms(model, &model->runtime->config, more)) == CAIRN_BUSY)
        if ((status = jit_wait(model->runtime->jit))) break;
    return status;
}

/* ---- what was chosen ------------------------------------------------------------------------- */

/* Of sequence i's first row, to where it is wanted. */
static cairn_status cuda_download_chosen(const forward_cuda_state *f, const forward_rule *rule,
                                         const forward_sequence *s, int slot) {
    const int topk = cuda_form_topk(f, rule);
    const size_t words = cuda_chosen_words(f, topk), each = words / (size_t)f->shape->layers;
    cairn_status status;
    if (s->chosen_step != 1 + topk) return CAIRN_OK;
    status = device_download(f->dev, s->chosen, f->forms.chosen + (size_t)slot * words,
                             words * sizeof *s->chosen);
    for (int l = 0; l < f->shape->layers && !status; l++)
        if (!cuda_selects(f, rule, l)) memset(s->chosen + (size_t)l * each, 0xff, each * 4);
    return status;
}

/* Makes ready to tell what is chosen, also where the step's own kernels choose. [blocks] */
static cairn_status forward_cuda_watch(cairn_model *model) {
    forward_cuda_state *f = (forward_cuda_state *)model->state;
    forward_rule rule;
    cairn_status status;
    if (forward_rule_of(&model->runtime->config, f->page_size, f->shape->layers, &rule) &&
        (status = cuda_hold_chosen(f, &rule)))
        return status;
    while ((status = cuda_form_kernel(f, "step/forms.cu", "form_chosen", false, 0, 0,
                                      &f->forms.tell)) == CAIRN_BUSY)
        if ((status = jit_wait(f->dev->jit))) break;
    if (status) jit_give_up(f->dev->jit);
    f->forms.watched = !status;
    return status;
}

/* ---- another config -------------------------------------------------------------------------- */

static cairn_status cuda_prepare(cairn_model *model, const cairn_config *config) {
    forward_cuda_state *f = (forward_cuda_state *)model->state;
    cairn_status forms = cuda_ask_forms(model, config, NULL), flow;
    forward_rule rule;
    if (forms && forms != CAIRN_BUSY) return forms;
    if (f->forms.watched && forward_rule_of(config, f->page_size, f->shape->layers, &rule) &&
        (flow = cuda_hold_chosen(f, &rule)))
        return flow;
    flow = cuda_prepare_flow(model, config);
    return flow ? flow : forms;
}

/* A config that cannot be had is given up: where it is asked for once more, its kernels are compiled anew. */
static cairn_status forward_cuda_prepare(cairn_model *model, const cairn_config *config) {
    const cairn_status status = cuda_prepare(model, config);
    if (status && status != CAIRN_BUSY) jit_give_up(model->runtime->jit);
    return status;
}
