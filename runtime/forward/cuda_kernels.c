/* forward_cuda_kernels: the programs of a model, their constants, and the kernel for each layer. See
 * cuda.c. */

/* The products of which there is a format `set`, as bits; of the first set all else too. */
static unsigned cuda_products_of(const forward_cuda_state *f, int set) {
    unsigned bits = set ? 0 : 1u << STEP_P_OTHER;
    for (int i = 0; i < STEP_PRODUCTS; i++) bits |= (unsigned)(f->format_counts[i] > set) << i;
    return bits;
}

/* The format of a product in `set`; where there is none its kernels are not built. */
static int cuda_set_format(const forward_cuda_state *f, int product, int set) {
    if (!f->format_counts[product]) return f->streamed ? PACK_F16 : PACK_16;
    return f->formats[product][f->format_counts[product] > set ? set : 0];
}

/* The last constant is SPARSE. */
static int cuda_constants(const forward_cuda_state *f, int set, int rows, int parts, int blocks,
                          jit_constant *out) {
    const model_shape *s = f->shape;
    const jit_constant all[] = {
        {"LAYERS", s->layers}, {"HIDDEN", s->hidden}, {"HEADS", s->heads},
        {"KV_HEADS", s->kv_heads}, {"HEAD_DIM", s->head_dim}, {"FFN", s->ffn},
        {"VOCAB", s->vocab}, {"CONTEXT", (int64_t)f->chunks * f->chunk},
        {"PAGE_SIZE", f->page_size},
        {"PACK_QKV", cuda_set_format(f, STEP_P_QKV, set)},
        {"PACK_O", cuda_set_format(f, STEP_P_O, set)},
        {"PACK_GATE_UP", cuda_set_format(f, STEP_P_GATE_UP, set)},
        {"PACK_DOWN", cuda_set_format(f, STEP_P_DOWN, set)},
        {"PRODUCTS", (int64_t)cuda_products_of(f, set)}, {"PACK_HEAD", f->pack_head},
        {"PACK_EMBED", f->pack_embed}, {"ROWS", rows}, {"PARTS", parts}, {"WARPS", f->warps},
        {"MEETING_TILES", f->head_tiles}, {"BLOCKS", blocks},
        {"NARROW", blocks ? f->narrow : 0}, {"EXTRAS", f->extras},
        {"ABILITIES", f->cache_kind},
        {"PROMPT_WARPS", f->prompt_block.warps}, {"PROMPT_EACH", f->prompt_block.each},
        {"PROMPT_TOKENS", f->prompt_block.tokens}, {"PROMPT_CARRIERS", f->prompt_block.carriers},
        {"PACK_CONV_IN", cuda_set_format(f, STEP_P_CONV_IN, set)},
        {"PACK_CONV_OUT", cuda_set_format(f, STEP_P_CONV_OUT, set)}, {"TAPS", s->conv_taps},
        {"RING", RING_ROWS}, {"PACK_EXPERT_UP", cuda_set_format(f, STEP_P_EXPERT_UP, set)},
        {"PACK_EXPERT_DOWN", cuda_set_format(f, STEP_P_EXPERT_DOWN, set)},
        {"EXPERTS", s->experts ? s->experts : 1}, {"USED", s->experts ? s->experts_used : 1},
        {"SPAN", LAYOUT_SPAN}, {"ALONE", 0}, {"BANDS", 1},
        {"CHAINED", 0}, {"LARGE_GROUPS", 0}, {"FIRST_APART", 1}, {"SPARSE", 0}};
    memcpy(out, all, sizeof all);
    return (int)BASE_COUNT(all);
}

/* Those of the kernels of a step's stages. */
static int cuda_stage_constants(const forward_cuda_state *f, int set, jit_constant *out) {
    return cuda_constants(f, set, STEP_STAGE_ROWS, f->stage_parts, 0, out);
}

static jit_constant *cuda_constant(jit_constant *all, const char *name) {
    while (strcmp(all->name, name)) all++;
    return all;
}

static unsigned cuda_shared_bytes(const forward_cuda_state *f, int kernel) {
    if (kernel <= STEP_K_DRAFT_FLOW) return f->product_bytes + f->attend_bytes;
    if (kernel == STEP_K_ATTEND || kernel == STEP_K_ATTEND_PAGES) return f->attend_bytes;
    if (kernel == STEP_K_SELECT) return (unsigned)cuda_selection_bytes(f);
    if (kernel >= PROMPT_K_EMBED && kernel <= PROMPT_K_GATE_UP) return cuda_prompt_bytes(f, &f->prompt_block);
    if (kernel == PROMPT_K_ATTEND) return cuda_prompt_attend_bytes(f);
    if (kernel == PROMPT_K_SPAN) return (unsigned)layout_many_bytes(f->shape->head_dim);
    if (kernel == STEP_K_ROUTE || kernel == PROMPT_K_ROUTE)
        return 4 * (unsigned)(f->shape->hidden + f->shape->experts + 8);
    if (kernel == STEP_K_PLACES || kernel == PROMPT_K_PLACES)
        return 4 * (unsigned)(2 * f->shape->experts + 1024);
    return kernel == STEP_K_FINISH ? 0 : f->product_bytes; /* enough for all others */
}

/* The product whose weights a kernel reads, or STEP_P_OTHER. */
static int cuda_kernel_product(int kernel) {
    switch (kernel) {
    case STEP_K_QKV: case PROMPT_K_QKV: return STEP_P_QKV;
    case STEP_K_PROJECT: case PROMPT_K_PROJECT: return STEP_P_O;
    case STEP_K_GATE_UP: case PROMPT_K_GATE_UP: return STEP_P_GATE_UP;
    case STEP_K_DOWN: case PROMPT_K_DOWN: return STEP_P_DOWN;
    case STEP_K_CONV_IN: case PROMPT_K_CONV_IN: return STEP_P_CONV_IN;
    case STEP_K_CONV_OUT: case PROMPT_K_CONV_OUT: return STEP_P_CONV_OUT;
    case STEP_K_EXPERT_UP: case PROMPT_K_EXPERT_UP: return STEP_P_EXPERT_UP;
    case STEP_K_EXPERT_DOWN: case PROMPT_K_EXPERT_DOWN: return STEP_P_EXPERT_DOWN;
    default: return STEP_P_OTHER;
    }
}

/* The products to which adapters add: attention's and the ffn's. */
static bool cuda_is_adapted(int product) {
    return product < STEP_P_OTHER || product == STEP_P_EXPERT_UP || product == STEP_P_EXPERT_DOWN;
}

/* Of the kernels of joined prompts the one in place of another; or NULL. */
static const jit_kernel *cuda_joined_kernel(const forward_cuda_state *f, int kernel) {
    return kernel == PROMPT_K_ATTEND  ? &f->joined_attend
           : kernel == PROMPT_K_LAST  ? &f->joined_last
           : kernel == PROMPT_K_SPAN  ? &f->joined_span
           : kernel == PROMPT_K_MERGE ? &f->joined_merge
                                      : NULL;
}

static const jit_kernel *cuda_kernel_place(const forward_cuda_state *f, int kernel, int set, step_form form) {
    return form == STEP_FORM_ALONE   ? &f->alone_kernels[set][kernel]
           : form == STEP_FORM_LARGE ? &f->large_kernels[set][kernel]
           : form == STEP_FORM_FEW   ? &f->few_kernels[set][kernel]
           : form == STEP_FORM_BANDS ? &f->band_kernels[0][set][kernel]
           : set                     ? &f->variants[set][kernel]
                                     : &f->kernels[kernel];
}

/* The kernel for a layer's weights, which it is given. */
static const jit_kernel *cuda_kernel_of(const forward_cuda_state *f, step_kernel kernel, int layer,
                                        step_params *p) {
    const step_layer *l = &f->layers[layer];
    const int product = cuda_kernel_product((int)kernel);
    const int set = product == STEP_P_OTHER ? 0 : l->which[product];
    const bool conv = l->weights[STEP_P_CONV_IN] != NULL;
    const bool experts = l->weights[STEP_P_EXPERT_UP] != NULL;
    p->layer = layer;
    p->qkv = l->weights[conv ? STEP_P_CONV_IN : STEP_P_QKV];
    p->o = l->weights[conv ? STEP_P_CONV_OUT : STEP_P_O];
    p->gate_up = l->weights[experts ? STEP_P_EXPERT_UP : STEP_P_GATE_UP];
    p->down = l->weights[experts ? STEP_P_EXPERT_DOWN : STEP_P_DOWN];
    cuda_set_extras(f, layer, p);
    if (f->joined && cuda_joined_kernel(f, (int)kernel)) return cuda_joined_kernel(f, (int)kernel);
    if (f->adapts && cuda_is_adapted(product))
        return f->form == STEP_FORM_BANDS ? &f->band_kernels[1][set][kernel] : &f->adapted[set][kernel];
    if (f->alone && kernel < STEP_K_ATTEND && f->alone_built[set] && product != STEP_P_OTHER)
        return &f->alone_kernels[set][kernel];
    return cuda_kernel_place(f, (int)kernel, set, f->form);
}

static const char *const step_kernel_names[] = {
    "step_flow", "step_flow", "step_flow", "step_embed", "step_qkv", "step_project", "step_gate_up",
    "step_down", "step_conv_in", "step_conv_out", "step_expert_up", "step_expert_down",
    "step_attend", "step_head", "step_bounds", "step_select",
    "step_attend_pages", "step_finish", "step_heads", "step_add", "step_conv", "step_route",
    "step_places", "step_gather", "step_combine", "prompt_embed", "prompt_norm",
    "prompt_project", "prompt_down", "prompt_last", "prompt_conv_out", "prompt_expert_down",
    "prompt_qkv", "prompt_conv_in", "prompt_expert_up", "prompt_gate_up",
    "prompt_attend", "step_heads", "step_add", "step_conv", "step_route",
    "step_places", "step_gather", "step_combine", "prompt_span", "prompt_merge"};

/* A program of a model: the kernels [first, first + count) whose products are among `products`. */
typedef struct step_program {
    const char *source;
    int first, count;
    unsigned products;
    int extras; /* only for models with one of these */
    step_form form;
    jit_turn turn;
} step_program;

/* Those of its kernels that a program of `set` holds, once it is built. */
static cairn_status cuda_functions(forward_cuda_state *f, jit_program *program,
                                   const step_program *p, int set) {
    const step_form form = p->form;
    const unsigned held = cuda_products_of(f, set) & (p->products ? p->products : ~0u) &
                          (form ? ~(1u << STEP_P_OTHER) : ~0u);
    cairn_status status = CAIRN_OK;
    for (int i = p->first; i < p->first + p->count && !status; i++)
        if (held >> cuda_kernel_product(i) & 1)
            status = jit_function(f->dev->jit, program, step_kernel_names[i],
                                  (int)(form == STEP_FORM_LARGE ? cuda_prompt_bytes(f, &f->large_block)
                                        : form == STEP_FORM_FEW ? cuda_prompt_bytes(f, f->few_blocks)
                                                                : cuda_shared_bytes(f, i)),
                                  (jit_kernel *)cuda_kernel_place(f, i, set, form));
    if (form == STEP_FORM_ALONE && !status) f->alone_built[set] = true;
    if (form == STEP_FORM_LARGE && !status) f->large_built[set] = true;
    return status;
}

static jit_request cuda_flow_request(const forward_cuda_state *f, int kernel,
                                     jit_constant *constants) {
    jit_request request = {"step/step.cu", constants, 0, JIT_LATER};
    request.constant_count = cuda_constants(f, 0, STEP_FLOW_ROWS, f->flow_chunks * STEP_FLOW_ROWS,
                                            f->blocks, constants);
    cuda_constant(constants, "SPARSE")->value = kernel == STEP_K_SPARSE_FLOW;
    if (kernel == STEP_K_DRAFT_FLOW)
        cuda_constant(constants, "EXTRAS")->value |= STEP_EXTRA_ADAPTERS | STEP_EXTRA_DRAFTS;
    return request;
}

enum { /* whose weights a program reads */
    STEP_ALL_PRODUCTS = (1 << STEP_PRODUCTS) - 1,
    STEP_IN_PRODUCTS = 1 << STEP_P_QKV | 1 << STEP_P_CONV_IN, /* of attention or a convolution */
    STEP_UP_PRODUCTS = 1 << STEP_P_GATE_UP | 1 << STEP_P_EXPERT_UP,
    STEP_OUT_PRODUCTS = 1 << STEP_P_O | 1 << STEP_P_CONV_OUT,
    STEP_DOWN_PRODUCTS = 1 << STEP_P_DOWN | 1 << STEP_P_EXPERT_DOWN,
    STEP_REST_PRODUCTS = STEP_DOWN_PRODUCTS | 1 << STEP_P_OTHER,
    STEP_FIRST_PRODUCTS = STEP_IN_PRODUCTS | STEP_UP_PRODUCTS,
    STEP_LAST_PRODUCTS = STEP_OUT_PRODUCTS | STEP_DOWN_PRODUCTS
};

/* The programs without which no forward can be: those that take longest to compile first, which read
 * one after the other (jit/compile.c), and what weights wait for among the first. Each is as small as
 * its kernels allow, for the longest says how long a first start takes. Each set of formats has those
 * with products of its own. A start does not wait for those in whose place others serve until they are there (of a
 * prompt's attention that is the same kernel with less code, FIRST_APART), nor for selection, for which the first step
 * behind some thousand tokens does (cuda_need_selection). */
static const step_program step_programs[] = {
    {"step/prompt_attend.cu", PROMPT_K_ATTEND, 1, 0, 0, STEP_FORM_ALL, JIT_AWAITED},
    {"step/attend.cu", STEP_K_ATTEND, 1, 0, 0, STEP_FORM_ALL, JIT_AWAITED},
    {"dense/pack.cu", 0, 0, 0, 0, STEP_FORM_ALL, JIT_AWAITED},
    {"step/prompt.cu", PROMPT_K_QKV, 4, STEP_FIRST_PRODUCTS, 0, STEP_FORM_LARGE, JIT_LATER},
    {"step/prompt_residual.cu", PROMPT_K_EMBED, 7, STEP_LAST_PRODUCTS, 0, STEP_FORM_LARGE, JIT_LATER},
    {"step/prompt_residual.cu", PROMPT_K_EMBED, 7, STEP_REST_PRODUCTS, 0, STEP_FORM_ALL, JIT_AWAITED},
    {"step/prompt.cu", PROMPT_K_QKV, 4, STEP_IN_PRODUCTS, 0, STEP_FORM_ALL, JIT_AWAITED},
    {"step/layer.cu", STEP_K_EMBED, 9, STEP_ALL_PRODUCTS, 0, STEP_FORM_ALL, JIT_AWAITED},
    {"step/prompt_residual.cu", PROMPT_K_EMBED, 7, STEP_OUT_PRODUCTS, 0, STEP_FORM_ALL, JIT_AWAITED},
    {"step/prompt.cu", PROMPT_K_QKV, 4, STEP_UP_PRODUCTS, 0, STEP_FORM_ALL, JIT_AWAITED},
    {"step/layer.cu", STEP_K_QKV, 8, STEP_ALL_PRODUCTS, 0, STEP_FORM_ALONE, JIT_AWAITED},
    {"step/select.cu", STEP_K_SELECT, 1, 0, 0, STEP_FORM_ALL, JIT_BESIDE},
    {"step/attend_pages.cu", STEP_K_ATTEND_PAGES, 1, 0, 0, STEP_FORM_ALL, JIT_BESIDE},
    {"step/prompt.cu", PROMPT_K_QKV, 4, STEP_UP_PRODUCTS, 0, STEP_FORM_FEW, JIT_LATER},
    {"step/prompt.cu", PROMPT_K_QKV, 4, STEP_IN_PRODUCTS, 0, STEP_FORM_FEW, JIT_LATER},
    {"step/prompt_residual.cu", PROMPT_K_EMBED, 7, STEP_LAST_PRODUCTS, 0, STEP_FORM_FEW, JIT_LATER},
    {"step/prompt_attend.cu", PROMPT_K_ATTEND, 1, 0, 0, STEP_FORM_ALL, JIT_LATER},
    {"step/prompt_spans.cu", PROMPT_K_SPAN, 2, 0, 0, STEP_FORM_ALL, JIT_LATER},
    {"step/head.cu", STEP_K_HEAD, 1, 0, 0, STEP_FORM_ALL, JIT_AWAITED},
    {"step/extras.cu", STEP_K_HEADS, 2, 0, STEP_EXTRA_HEADS | STEP_EXTRA_POST, STEP_FORM_ALL, JIT_AWAITED},
    {"step/extras.cu", PROMPT_K_HEADS, 2, 0, STEP_EXTRA_HEADS | STEP_EXTRA_POST, STEP_FORM_ALL, JIT_AWAITED},
    {"step/conv.cu", STEP_K_CONV, 1, 0, STEP_EXTRA_CONV, STEP_FORM_ALL, JIT_AWAITED},
    {"step/conv.cu", PROMPT_K_CONV, 1, 0, STEP_EXTRA_CONV, STEP_FORM_ALL, JIT_AWAITED},
    {"step/experts.cu", STEP_K_ROUTE, 4, 0, STEP_EXTRA_EXPERTS, STEP_FORM_ALL, JIT_AWAITED},
    {"step/experts.cu", PROMPT_K_ROUTE, 4, 0, STEP_EXTRA_EXPERTS, STEP_FORM_ALL, JIT_AWAITED},
    {"step/bounds.cu", STEP_K_BOUNDS, 1, 0, 0, STEP_FORM_ALL, JIT_AWAITED},
    {"step/finish.cu", STEP_K_FINISH, 1, 0, 0, STEP_FORM_ALL, JIT_AWAITED}};

enum { STEP_PROGRAMS = (int)BASE_COUNT(step_programs), STEP_REQUESTS = STEP_PROGRAMS * STEP_FORMATS };

/* What is asked of the compiler: for program which[i] % STEP_PROGRAMS of set which[i] /
 * STEP_PROGRAMS; constants of each set's stage and prompt kernels. */
typedef struct step_texts {
    jit_constant stage[STEP_FORMATS][STEP_CONSTANTS], prompt[STEP_FORMATS][STEP_CONSTANTS];
    jit_constant alone[STEP_FORMATS][STEP_CONSTANTS], large[STEP_FORMATS][STEP_CONSTANTS], pack;
    jit_constant attend[STEP_CONSTANTS]; /* of a prompt's attention that a start waits for */
    jit_constant few[3 * STEP_FORMATS][STEP_CONSTANTS], apart[4 * STEP_FORMATS][STEP_CONSTANTS];
    jit_request requests[STEP_REQUESTS + 2];
    int which[STEP_REQUESTS], count, apart_count, few_count;
} step_texts;

static jit_request cuda_pack_request(const forward_cuda_state *f, jit_constant *constant) {
    const jit_request request = {"dense/pack.cu", constant, 1, JIT_AWAITED};
    *constant = (jit_constant){"STREAMED", f->streamed};
    return request;
}

/* Whether some product of a set of formats has a form for a row alone. */
static bool cuda_has_alone(const forward_cuda_state *f, int set) {
    bool any = false;
    for (int i = 0; i < STEP_PRODUCTS && f->streamed; i++)
        if (i != STEP_P_OTHER && f->format_counts[i] > set)
            any = any || f->formats[i][set] >= 256 || pack_alone(f->formats[i][set]);
    return any;
}

static jit_constant *cuda_alone_constants(const forward_cuda_state *f, int set, jit_constant *out) {
    cuda_stage_constants(f, set, out);
    cuda_constant(out, "ALONE")->value = 1;
    cuda_constant(out, "PRODUCTS")->value &= ~(1 << STEP_P_OTHER);
    return out;
}

static jit_constant *cuda_block_constants(const forward_cuda_state *f, int set, const step_block *b,
                                          jit_constant *out) {
    cuda_constants(f, set, f->max_rows, 0, 0, out);
    cuda_constant(out, "PROMPT_WARPS")->value = b->warps;
    cuda_constant(out, "PROMPT_TOKENS")->value = b->tokens;
    cuda_constant(out, "PROMPT_CARRIERS")->value = b->carriers;
    cuda_constant(out, "PRODUCTS")->value &= ~(1 << STEP_P_OTHER);
    return out;
}

/* Of a prompt's products, those of one program. */
static jit_constant *cuda_apart_constants(const forward_cuda_state *f, int set, unsigned products,
                                          jit_constant *out) {
    cuda_constants(f, set, f->max_rows, 0, 0, out);
    cuda_constant(out, "PRODUCTS")->value &= products;
    return out;
}

/* The same in blocks of few tokens. */
static jit_constant *cuda_few_constants(const forward_cuda_state *f, int set, unsigned products, int small,
                                        jit_constant *out) {
    cuda_block_constants(f, set, &f->few_blocks[small], out);
    cuda_constant(out, "PRODUCTS")->value &= products;
    return out;
}

static void cuda_request(const forward_cuda_state *f, step_texts *t, int set, int program) {
    const step_program *p = &step_programs[program];
    const int small = p->products != STEP_UP_PRODUCTS;
    jit_request request = {p->source, t->stage[set], 0, p->turn};
    if (p->products ? !(p->products & cuda_products_of(f, set)) : set) return;
    if (p->extras && !(p->extras & f->extras)) return;
    if (p->form == STEP_FORM_ALONE && !cuda_has_alone(f, set)) return;
    if (p->form == STEP_FORM_LARGE && !f->large_block.tokens) return;
    if (p->form == STEP_FORM_FEW && !f->few_blocks->tokens) return;
    if (p->turn == JIT_LATER && !p->products && !cuda_attends_many(f)) return; /* attention of prompts */
    if (f->latents.heads && p->first >= STEP_K_BOUNDS && p->first <= STEP_K_ATTEND_PAGES)
        return; /* no pages are chosen */
    request.constant_count = cuda_stage_constants(f, set, t->stage[set]);
    cuda_constants(f, set, f->max_rows, 0, 0, t->prompt[set]);
    if (p->first >= PROMPT_K_EMBED) request.constants = t->prompt[set];
    if (p->first == PROMPT_K_ATTEND && p->turn == JIT_AWAITED && cuda_attends_many(f)) {
        request.constants = (jit_constant *)memcpy(t->attend, t->prompt[0], sizeof t->attend);
        cuda_constant(t->attend, "FIRST_APART")->value = 0; /* what is compiled soonest */
    }
    if (p->first >= PROMPT_K_EMBED && p->products && p->form == STEP_FORM_ALL)
        request.constants = cuda_apart_constants(f, set, p->products, t->apart[t->apart_count++]);
    if (p->form == STEP_FORM_ALONE) request.constants = cuda_alone_constants(f, set, t->alone[set]);
    if (p->form == STEP_FORM_LARGE)
        request.constants = cuda_block_constants(f, set, &f->large_block, t->large[set]);
    if (p->form == STEP_FORM_FEW)
        request.constants = cuda_few_constants(f, set, p->products, small, t->few[t->few_count++]);
    if (p->first == STEP_K_FINISH) request.constant_count = 0;
    if (!p->count) request = cuda_pack_request(f, &t->pack);
    t->which[t->count] = set * STEP_PROGRAMS + program;
    t->requests[t->count++] = request;
}

static void cuda_requests(const forward_cuda_state *f, step_texts *t) {
    t->count = t->apart_count = t->few_count = 0;
    for (int i = 0; i < STEP_REQUESTS; i++)
        cuda_request(f, t, i / STEP_PROGRAMS, i % STEP_PROGRAMS);
}

static cairn_status cuda_end_latents(forward_cuda_state *f); /* cuda_latent.c */

/* Begins to compile everything; what takes long and can be done without comes last. */
static cairn_status cuda_begin_build(forward_cuda_state *f) {
    step_texts texts;
    jit_constant flow[2][STEP_CONSTANTS];
    jit_request *next;
    cuda_requests(f, &texts);
    next = texts.requests + texts.count;
    if (f->flow_chunks) *next++ = cuda_flow_request(f, STEP_K_FLOW, flow[0]);
    else f->flow_states[STEP_K_FLOW] = STEP_FLOW_FAILED;
    if (f->sparse_flow) *next++ = cuda_flow_request(f, STEP_K_SPARSE_FLOW, flow[1]);
    else f->flow_states[STEP_K_SPARSE_FLOW] = STEP_FLOW_FAILED;
    f->flow_states[STEP_K_DRAFT_FLOW] = STEP_FLOW_FAILED; /* until an adapter drafts */
    return jit_begin(f->dev->jit, texts.requests, (int)(next - texts.requests));
}

/* Program which % STEP_PROGRAMS of set which / STEP_PROGRAMS. */
static cairn_status cuda_take(forward_cuda_state *f, jit_program *program, int which) {
    return cuda_functions(f, program, &step_programs[which % STEP_PROGRAMS], which / STEP_PROGRAMS);
}

/* Waits for what cuda_begin_build began, but for what was to come later. */
static cairn_status cuda_end_build(forward_cuda_state *f) {
    step_texts texts;
    jit_program *program;
    cairn_status status = jit_wait(f->dev->jit);
    cuda_requests(f, &texts);
    for (int i = 0; i < texts.count && !status; i++)
        if (texts.requests[i].turn == JIT_AWAITED && !(status = jit_get(f->dev->jit, &texts.requests[i], &program)))
            status = cuda_take(f, program, texts.which[i]);
    return status || !f->latents.heads ? status : cuda_end_latents(f);
}

static cairn_status cuda_flow_functions(forward_cuda_state *f, jit_program *program, int kernel) {
    const step_program p = {NULL, kernel, 1, 0, 0, STEP_FORM_ALL, JIT_LATER};
    return cuda_functions(f, program, &p, 0);
}

/* ---- programs that nothing waits for ---- */

/* Not while it runs: a step may be in flight (cuda_next.c). */
static void cuda_free_graph(const forward_cuda_state *f, device_graph *graph) {
    if (graph->exec) device_wait(f->dev);
    device_graph_free(f->dev, graph);
}

static void cuda_free_graphs(const forward_cuda_state *f, device_graph (*graphs)[STEP_STAGE_ROWS + 1]) {
    for (int i = 0; i < STEP_GRAPHS * (STEP_STAGE_ROWS + 1); i++)
        cuda_free_graph(f, &graphs[i % STEP_GRAPHS][i / STEP_GRAPHS]);
}

static void cuda_free_sparse_graphs(forward_cuda_state *f) {
    cuda_free_graph(f, &f->sparse_graph);
    cuda_free_graphs(f, f->stage_graphs);
}

/* Programs `from` to `from + count - 1` of a kind: requests, false for one that there is not; and what takes
 * their functions. */
typedef struct cuda_extra {
    bool (*request)(const forward_cuda_state *f, int which, jit_constant *constants, jit_request *out);
    cairn_status (*take)(forward_cuda_state *f, jit_program *program, int which);
    int from, count;
    const char *without; /* what goes on without them */
    bool renews;         /* steps run by them whose graphs are made anew then */
} cuda_extra;

typedef enum cuda_extra_call { EXTRA_ASK, EXTRA_TRY, EXTRA_WAIT } cuda_extra_call;

static cairn_status cuda_call_extra(forward_cuda_state *f, const cuda_extra *x, cuda_extra_call call) {
    jit_constant constants[STEP_CONSTANTS];
    jit_request request;
    jit_program *program;
    cairn_status status = CAIRN_OK;
    for (int which = x->from; which < x->from + x->count && !status; which++) {
        if (!x->request(f, which, constants, &request)) continue;
        status = call == EXTRA_ASK   ? jit_begin(f->dev->jit, &request, 1)
                 : call == EXTRA_TRY ? jit_try(f->dev->jit, &request, &program)
                                     : jit_get(f->dev->jit, &request, &program);
        if (!status && call != EXTRA_ASK) status = x->take(f, program, which);
    }
    return status;
}

/* CAIRN_OK: all of them can be launched; CAIRN_BUSY: not by now, or not asked for yet, where `waits`. They are asked
 * for when they are first of use, and again where compiling was cancelled. What cannot be had is said once, by a
 * status too, and done without. */
static cairn_status cuda_get_extra(forward_cuda_state *f, const cuda_extra *x, step_flow_state *state, bool *asked,
                                   bool waits) {
    bool asks = !*asked;
    cairn_status status = CAIRN_BUSY;
    if (*state != STEP_FLOW_WAITS) return *state == STEP_FLOW_READY ? CAIRN_OK : CAIRN_UNSUPPORTED;
    if (waits && asks) return status;
    if (!asks) asks = (status = cuda_call_extra(f, x, waits ? EXTRA_WAIT : EXTRA_TRY)) == CAIRN_CANCELLED;
    if (asks && !(status = cuda_call_extra(f, x, EXTRA_ASK))) status = CAIRN_BUSY, *asked = true;
    if (status == CAIRN_BUSY) return status;
    *state = status ? STEP_FLOW_FAILED : STEP_FLOW_READY;
    if (status) base_log(f->dev->base, CAIRN_LOG_WARN, "%s: %s", x->without, f->dev->base->error);
    else if (x->renews) cuda_free_sparse_graphs(f), cuda_free_graphs(f, f->dense_graphs);
    return status;
}

/* A program of the stages, which is begun when it is first of use; `on`: the constant that makes it another, or
 * NULL. */
static bool cuda_wants_stage(const forward_cuda_state *f, const char *source, const char *on, int set,
                             jit_constant *constants, jit_request *out) {
    *out = (jit_request){source, constants, cuda_stage_constants(f, set, constants), JIT_LATER};
    if (on) cuda_constant(constants, on)->value = 1;
    return true;
}

/* Shared memory of selection and attention in one launch (cuda_select.c). */
static size_t cuda_joint_bytes(const forward_cuda_state *f) {
    const model_shape *s = f->shape;
    return f->attend_bytes + (size_t)layout_select_attend_bytes(cuda_context_pages(f), s->kv_heads,
                                                                s->heads / s->kv_heads, s->head_dim);
}

static size_t cuda_attend_shared(const forward_cuda_state *f) { return f->attend_bytes; }

/* See step_single; bytes: its shared memory; renews: as of cuda_extra. */
static const struct cuda_single {
    const char *source, *on, *entry;
    size_t (*bytes)(const forward_cuda_state *f);
    bool renews;
} cuda_singles[] = {
    {"step/attend.cu", "CHAINED", "step_attend", cuda_chain_bytes, false},
    {"step/attend_row.cu", NULL, "step_attend_row", cuda_cluster_bytes, false},
    {"step/attend_relay.cu", NULL, "step_attend_relay", cuda_attend_shared, false},
    {"step/select_attend.cu", NULL, "step_select_attend", cuda_joint_bytes, true},
    {"step/attend.cu", "LARGE_GROUPS", "step_attend", cuda_attend_shared, true},
};

static bool cuda_wants_single(const forward_cuda_state *f, int which, jit_constant *constants, jit_request *out) {
    return cuda_wants_stage(f, cuda_singles[which].source, cuda_singles[which].on, 0, constants, out);
}

static cairn_status cuda_single_function(forward_cuda_state *f, jit_program *program, int which) {
    const struct cuda_single *single = &cuda_singles[which];
    return jit_function(f->dev->jit, program, single->entry, (int)single->bytes(f), &f->singles[which].kernel);
}

/* Whether it can be launched by now; waits: once it is there, if it was asked for. */
static bool cuda_has_single(forward_cuda_state *f, int which, bool waits) {
    const cuda_extra single = {cuda_wants_single, cuda_single_function, which, 1, "steps go on by slower kernels",
                               cuda_singles[which].renews};
    return !cuda_get_extra(f, &single, &f->singles[which].state, &f->singles[which].asked, waits);
}

/* Whether groups of more than eight queries can be attended by now. Their kernel is compiled behind a model's start. */
static bool cuda_has_groups(forward_cuda_state *f) {
    return f->group_rows > 1 && !f->latents.heads && cuda_has_single(f, STEP_SINGLE_GROUPS, false);
}

/* What a load begins and does not wait for, but for the flow's. */
static bool cuda_wants_later(const forward_cuda_state *f, int which, jit_constant *constants, jit_request *out) {
    step_texts texts;
    texts.count = texts.apart_count = texts.few_count = 0;
    cuda_request(f, &texts, which / STEP_PROGRAMS, which % STEP_PROGRAMS);
    if (!texts.count || texts.requests->turn == JIT_AWAITED) return false;
    *out = *texts.requests;
    memcpy(constants, out->constants, (size_t)out->constant_count * sizeof *constants);
    return out->constants = constants, true;
}

static bool cuda_wants_selection(const forward_cuda_state *f, int which, jit_constant *constants, jit_request *out) {
    return step_programs[which].turn == JIT_BESIDE && cuda_wants_later(f, which, constants, out);
}

/* Whether all of that is there by now. [waits: blocks until it is] */
static bool cuda_has_later(forward_cuda_state *f, bool waits) {
    static const cuda_extra later = {cuda_wants_later, cuda_take, 0, STEP_REQUESTS,
                                     "prompts go on by slower kernels", false};
    bool asked = true;
    return !cuda_get_extra(f, &later, &f->later_state, &asked, waits);
}

/* Before rows choose pages by the step's own kernels. [blocks: until these are compiled] */
static cairn_status cuda_need_selection(forward_cuda_state *f) {
    static const cuda_extra all = {cuda_wants_selection, cuda_take, 0, STEP_PROGRAMS, NULL, false};
    const bool built = f->kernels[STEP_K_SELECT].function && f->kernels[STEP_K_ATTEND_PAGES].function;
    return built ? CAIRN_OK : cuda_call_extra(f, &all, EXTRA_WAIT);
}

static bool cuda_wants_flow(const forward_cuda_state *f, int kernel, jit_constant *constants, jit_request *out) {
    return *out = cuda_flow_request(f, kernel, constants), true;
}

/* Whether a flow kernel can be launched by now. They are asked for with the model's others, or its adapter's. */
static bool cuda_has_flow(forward_cuda_state *f, int kernel) {
    const cuda_extra flow = {cuda_wants_flow, cuda_flow_functions, kernel, 1, "steps go on by slower kernels", false};
    bool asked = true;
    return !cuda_get_extra(f, &flow, &f->flow_states[kernel], &asked, false);
}

/* Waits for one. [blocks] */
static cairn_status cuda_wait_flow(forward_cuda_state *f, int kernel) {
    jit_constant constants[STEP_CONSTANTS];
    const jit_request request = cuda_flow_request(f, kernel, constants);
    jit_program *program;
    cairn_status status = jit_get(f->dev->jit, &request, &program);
    if (!status) status = cuda_flow_functions(f, program, kernel);
    if (!status) f->flow_states[kernel] = STEP_FLOW_READY;
    return status;
}

/* A config whose layers select, after one with none that did, runs by the flow kernel that selects:
 * steps go on by the old config until it is compiled. Where it cannot be had the stage kernels
 * serve the new one; all else of a config is a parameter of the kernels. */
static cairn_status cuda_prepare_flow(cairn_model *model, const cairn_config *config) {
    forward_cuda_state *f = (forward_cuda_state *)model->state;
    const int layers = f->shape->layers;
    jit_constant constants[STEP_CONSTANTS];
    jit_request request;
    cairn_status status;
    if (!f->can_select || !cuda_selects_any(config, layers) ||
        cuda_selects_any(&model->runtime->config, layers))
        return CAIRN_OK;
    if (f->sparse_flow) {
        bool ready = cuda_has_flow(f, STEP_K_SPARSE_FLOW);
        return !ready && f->flow_states[STEP_K_SPARSE_FLOW] == STEP_FLOW_WAITS ? CAIRN_BUSY
                                                                              : CAIRN_OK;
    }
    request = cuda_flow_request(f, STEP_K_SPARSE_FLOW, constants);
    if ((status = jit_begin(f->dev->jit, &request, 1))) return status;
    f->flow_states[STEP_K_SPARSE_FLOW] = STEP_FLOW_WAITS;
    f->sparse_flow = true;
    return CAIRN_BUSY;
}
