/* forward_cuda_prompt: the rows of a prompt, whose products are of many rows. See cuda.c. */

/* The block of few tokens of a kernel's product. */
static const step_block *cuda_few_block(const forward_cuda_state *f, step_kernel kernel) {
    return &f->few_blocks[!(STEP_UP_PRODUCTS >> cuda_kernel_product((int)kernel) & 1)];
}

/* The blocks that a product of layer l runs by: for rows with adapters there are no kernels but of one form. */
static step_form cuda_prompt_form(const forward_cuda_state *f, step_kernel kernel, int outputs, int rows, int l) {
    const int set = f->layers[l].which[cuda_kernel_product((int)kernel)];
    if (f->adapts) return STEP_FORM_ALL;
    if (f->later && cuda_pays_few(f, cuda_few_block(f, kernel), outputs, rows)) return STEP_FORM_FEW;
    return f->large_built[set] && cuda_pays_large(f, outputs, rows) ? STEP_FORM_LARGE : STEP_FORM_ALL;
}

/* The product of `outputs` rows of weights with all rows of the prompt. */
static cairn_status cuda_prompt_product(forward_cuda_state *f, step_kernel kernel, int outputs,
                                        int rows, int l) {
    const step_form form = cuda_prompt_form(f, kernel, outputs, rows, l);
    const step_block *b = form == STEP_FORM_LARGE ? &f->large_block
                          : form == STEP_FORM_FEW ? cuda_few_block(f, kernel)
                                                  : &f->prompt_block;
    const int each = cuda_block_outputs(b);
    cairn_status status;
    f->form = form;
    status = cuda_launch(f, &f->prompt, kernel, (rows + b->tokens - 1) / b->tokens,
                         (outputs + each - 1) / each, (b->warps + b->carriers) * 32,
                         cuda_prompt_bytes(f, b), l, 0);
    f->form = STEP_FORM_ALL;
    return status;
}

static cairn_status cuda_run_prompt_conv(forward_cuda_state *f, int rows, int l) {
    const int hidden = f->shape->hidden;
    cairn_status status;
    if ((status = cuda_prompt_product(f, PROMPT_K_CONV_IN, 3 * hidden, rows, l)) ||
        (status = cuda_convolve(f, &f->prompt, PROMPT_K_CONV, rows, l)))
        return status;
    return cuda_prompt_product(f, PROMPT_K_CONV_OUT, hidden, rows, l);
}

static cairn_status cuda_run_prompt_experts(forward_cuda_state *f, int rows, int l) {
    const step_lane *lane = &f->prompt;
    const model_shape *s = f->shape;
    const int windows = cuda_expert_windows(s, rows, 64), slots = windows * f->prompt_block.tokens;
    cairn_status status;
    if ((status = cuda_route(f, lane, PROMPT_K_ROUTE, rows, l)) ||
        (status = cuda_run_low_slots(f, lane, rows, l, STEP_LOW_GATE)) ||
        (status = cuda_prompt_product(f, PROMPT_K_EXPERT_UP, 2 * s->ffn, slots, l)) ||
        (status = cuda_run_low_slots(f, lane, rows, l, STEP_LOW_DOWN)) ||
        (status = cuda_prompt_product(f, PROMPT_K_EXPERT_DOWN, s->hidden, slots, l)))
        return status;
    return cuda_launch(f, lane, PROMPT_K_COMBINE, rows, 1, 128, 0, l, 0);
}

/* ---- attention by spans, kernels_src/step/prompt_spans.cu ---- */

/* The tiles of a prompt's attention by wgmma, and the keys up to the last that its rows see. */
typedef struct prompt_tiles { int count, each, rows, keys; } prompt_tiles;

static prompt_tiles cuda_prompt_tiles(const forward_cuda_state *f, int rows) {
    const int32_t *positions = f->prompt.words + STEP_HEAD + STEP_POSITION * f->prompt.rows;
    prompt_tiles t = {0, cuda_attend_rows(f, true), rows, 0};
    t.count = f->joined ? f->prompt.words[STEP_GROUPS] : (rows + t.each - 1) / t.each;
    for (int r = 0; r < rows; r++) t.keys = positions[r] >= t.keys ? positions[r] + 1 : t.keys;
    return t;
}

static int cuda_spans(const prompt_tiles *t) { return (t->keys + LAYOUT_SPAN - 1) / LAYOUT_SPAN; }

/* Rows whose records there is room for, where the ffn's values are later. */
static int64_t cuda_span_room(const forward_cuda_state *f, const prompt_tiles *t) {
    const int64_t row = (int64_t)cuda_spans(t) * f->shape->heads * layout_span_record(f->shape->head_dim);
    return (int64_t)f->max_rows * f->shape->ffn * 2 / row;
}

/* Whether they take a layer less time by spans than by blocks that walk all keys: in tiles of keys, which a turn
 * of the multiprocessors takes one behind the other; to merge takes as long as MERGES of them. */
static bool cuda_pays_spans(const forward_cuda_state *f, const prompt_tiles *t, int l) {
    enum { EACH = LAYOUT_SPAN / LAYOUT_MANY_KEYS, MERGES = EACH < 4 ? 0 : 5 };
    const int sms = f->dev->sm_count, heads = f->shape->kv_heads, window = f->plan->layers[l].window;
    const int64_t held = cuda_span_room(f, t) / (t->rows < t->each ? t->rows : t->each);
    const int once = held < t->count ? (int)held : t->count; /* tiles of a launch */
    int tiles = (t->keys + LAYOUT_MANY_KEYS - 1) / LAYOUT_MANY_KEYS, spans = cuda_spans(t);
    if (window && window / LAYOUT_MANY_KEYS + 2 < tiles)
        tiles = window / LAYOUT_MANY_KEYS + 2, spans = tiles / EACH + 2;
    return once && (t->count + once - 1) / once * ((once * heads * spans + sms - 1) / sms * EACH + MERGES) <
                       (t->count * heads + sms - 1) / sms * tiles;
}

/* As many tiles at a time as there is room for the records of. */
static cairn_status cuda_attend_spans(forward_cuda_state *f, const prompt_tiles *t, int l) {
    const int32_t *group_rows = f->prompt.words + STEP_HEAD + STEP_GROUP_ROWS * f->prompt.rows;
    const int64_t room = cuda_span_room(f, t);
    cairn_status status = CAIRN_OK;
    step_params p = f->prompt.params;
    const jit_kernel *kernels[2];
    kernels[0] = cuda_kernel_of(f, PROMPT_K_SPAN, l, &p), kernels[1] = cuda_kernel_of(f, PROMPT_K_MERGE, l, &p);
    p.spans = cuda_spans(t);
    for (int end = 0, done = 0; end < t->count && !status; done += p.span_rows) {
        device_dims dims = {{0, (unsigned)f->shape->kv_heads, (unsigned)p.spans}, LAYOUT_MANY_THREADS, 0, 0, true};
        p.span_tile = end, p.span_rows = 0;
        while (end < t->count) {
            const int left = t->rows - done - p.span_rows, most = left < t->each ? left : t->each;
            const int more = f->joined ? group_rows[end] : most;
            if (p.span_rows + more > room) break;
            p.span_rows += more, end++;
        }
        dims.grid[0] = (unsigned)(end - p.span_tile);
        dims.shared_bytes = cuda_shared_bytes(f, PROMPT_K_SPAN);
        if ((status = device_launch(f->dev, kernels[0], &dims, &p))) break;
        dims = (device_dims){{(unsigned)((p.span_rows * f->shape->heads + 3) / 4), 1, 1}, 128, 0, 0, true};
        status = device_launch(f->dev, kernels[1], &dims, &p);
    }
    return status;
}

/* Of a prompt's rows, in the form of a layer that selects. */
static cairn_status cuda_attend_prompt(forward_cuda_state *f, const cuda_form *form, int rows, int l) {
    const model_shape *s = f->shape;
    const bool selects = form->rule && cuda_selects(f, form->rule, l);
    const bool unmarked = selects && form->landmarks, many = cuda_attends_many(f) && !unmarked;
    const int each = cuda_attend_rows(f, many);
    const int tiles = f->joined ? f->prompt.words[STEP_GROUPS] : (rows + each - 1) / each;
    device_dims dims = {{(unsigned)tiles, (unsigned)(many ? s->kv_heads : s->heads), 1},
                        many ? LAYOUT_MANY_THREADS : 128, 0, 0, true};
    step_params p = f->prompt.params;
    const jit_kernel *plain = cuda_kernel_of(f, PROMPT_K_ATTEND, l, &p);
    if (selects && form->rule->prompts) return cuda_attend_formed(f, form, &f->prompt, rows, l);
    if (many && (f->later || f->joined)) {
        const prompt_tiles all = cuda_prompt_tiles(f, rows);
        if (cuda_pays_spans(f, &all, l)) return cuda_attend_spans(f, &all, l);
    }
    dims.shared_bytes = many ? cuda_prompt_attend_bytes(f) : (unsigned)layout_prompt_bytes(s->head_dim);
    return device_launch(f->dev, unmarked ? &f->forms.unmarked : plain, &dims, &p);
}

static cairn_status cuda_run_prompt_attention(forward_cuda_state *f, const cuda_form *form, int rows,
                                              int l) {
    const model_shape *s = f->shape;
    const step_lane *lane = &f->prompt;
    cairn_status status;
    if ((status = cuda_run_low(f, lane, rows, l, STEP_LOW_Q, 3)) ||
        (status = cuda_prompt_product(f, PROMPT_K_QKV, (int)cuda_qkv_rows(s), rows, l)) ||
        (status = cuda_work_heads(f, lane, PROMPT_K_HEADS, rows, l)) ||
        (status = cuda_attend_prompt(f, form, rows, l)) ||
        (status = cuda_run_low(f, lane, rows, l, STEP_LOW_O, 1)) ||
        (status = cuda_prompt_product(f, PROMPT_K_PROJECT, s->hidden, rows, l)))
        return status;
    return cuda_add_summand(f, lane, PROMPT_K_ADD, rows, l, 0);
}

static cairn_status cuda_run_prompt_layer(forward_cuda_state *f, const cuda_form *form, int rows,
                                          int l) {
    const model_shape *s = f->shape;
    const step_lane *lane = &f->prompt;
    const int quads = (rows + 3) / 4;
    const plan_mixer mixer = f->plan->layers[l].mixer;
    cairn_status status = mixer == PLAN_LATENT
                              ? cuda_run_latents(f, lane, rows, l)
                              : cuda_launch(f, lane, PROMPT_K_NORM, quads, 1, 128, 0, l, 0);
    if (!status && mixer != PLAN_LATENT)
        status = mixer == PLAN_SHORT_CONV ? cuda_run_prompt_conv(f, rows, l)
                                          : cuda_run_prompt_attention(f, form, rows, l);
    if (status) return status;
    if (s->experts) return cuda_run_prompt_experts(f, rows, l);
    if ((status = cuda_launch(f, lane, PROMPT_K_NORM, quads, 1, 128, 0, l, 1)) ||
        (status = cuda_run_low(f, lane, rows, l, STEP_LOW_GATE, 2)) ||
        (status = cuda_prompt_product(f, PROMPT_K_GATE_UP, 2 * s->ffn, rows, l)) ||
        (status = cuda_run_low(f, lane, rows, l, STEP_LOW_DOWN, 1)) ||
        (status = cuda_prompt_product(f, PROMPT_K_DOWN, s->hidden, rows, l)))
        return status;
    return cuda_add_summand(f, lane, PROMPT_K_ADD, rows, l, 1);
}

/* Launches up to `layers` more of a prompt's part, from f->flight.layer on, with what comes before the
 * first and behind the last. */
static cairn_status cuda_run_prompt(forward_cuda_state *f, const step_part *part, int layers) {
    const step_lane *lane = &f->prompt;
    const int wanted = part->logit_count;
    int *at = &f->flight.layer;
    cairn_status status = CAIRN_OK;
    if (!*at) f->later = cuda_has_later(f, false);
    if (!*at && !(status = cuda_upload_rows(f, &f->prompt, part)) &&
        !(status = cuda_launch(f, lane, PROMPT_K_EMBED, part->rows, 1, 128, 0, 0, 0)))
        status = cuda_run_own(f, part->rows);
    for (int end = *at + layers; *at < end && *at < f->shape->layers && !status; (*at)++)
        status = cuda_run_prompt_layer(f, &part->form, part->rows, *at);
    if (status || *at < f->shape->layers) return status;
    f->flight.launched = true;
    if (!wanted) return CAIRN_OK;
    status = cuda_launch(f, lane, PROMPT_K_LAST, wanted, 1, 128, 0, 0, 0);
    return status ? status : cuda_launch_head(f, lane, wanted);
}
