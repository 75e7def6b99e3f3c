/* forward_cuda_launch: one kernel of a lane, and what steps and prompts launch alike: what stands
 * between the products of a layer. See cuda.c. */

/* Where a lane's input words lie, which only those who write them may change. */
static int32_t *cuda_input_of(const step_lane *lane) {
    int32_t *input;
    memcpy(&input, &lane->params.input, sizeof input);
    return input;
}

static cairn_status cuda_launch(forward_cuda_state *f, const step_lane *lane, step_kernel kernel,
                                int x, int y, int threads, unsigned shared, int layer, int which) {
    device_dims dims = {{0, 0, 1}, 0, 0, 0, true};
    step_params p = lane->params;
    dims.grid[0] = (unsigned)x;
    dims.grid[1] = (unsigned)y;
    dims.block = (unsigned)threads;
    dims.shared_bytes = shared;
    p.which = which;
    return device_launch(f->dev, cuda_kernel_of(f, kernel, layer, &p), &dims, &p);
}

/* Blocks of each of some windows of rows, of all the places for them; at least so many. */
static int cuda_window_blocks(int places, int windows, int least) {
    const int each = places / windows;
    return each > least ? each : least;
}

/* The best token of each of some logit rows of a lane, after any kind of head of so many blocks a row; pages counted by
 * the sparse flow; these and the fault word are told to the host. */
static cairn_status cuda_finish(forward_cuda_state *f, const step_lane *lane, int rows, int blocks, bool sparse_flow) {
    device_dims dims = {{0, 1, 1}, 32, 0, 0, true};
    finish_params p;
    memset(&p, 0, sizeof p);
    p.winners = f->winners;
    p.tokens = f->sampled;
    p.input = lane->params.input;
    p.capacity = lane->params.capacity;
    p.pages_read = f->pages_read;
    p.results = f->fault, p.told = f->host_told;
    p.told_words = (int32_t)cuda_result_words(f);
    p.blocks = blocks;
    p.rows = rows;
    if (sparse_flow) {
        p.row_pages = f->row_pages;
        p.layers = f->shape->layers;
        p.count_rows = STEP_FLOW_ROWS;
        p.kv_heads = f->shape->kv_heads;
        p.seen_words = f->flow.params.seen_words;
    }
    dims.grid[0] = rows ? (unsigned)(rows + (sparse_flow ? STEP_FLOW_ROWS : 0)) : 1;
    return device_launch(f->dev, &f->kernels[STEP_K_FINISH], &dims, &p);
}

/* What later kernels drew and drafted, too. */
static cairn_status cuda_tell(forward_cuda_state *f, const step_lane *lane) {
    return cuda_finish(f, lane, 0, 0, false);
}

/* The logits of so many rows, and the best tokens of these. Where weights stream, two blocks a multiprocessor of all
 * windows together (as cuda_blocks). */
static cairn_status cuda_launch_head(forward_cuda_state *f, const step_lane *lane, int rows) {
    const int windows = (rows + 7) / 8;
    const int blocks = f->streamed ? cuda_window_blocks(2 * f->blocks, windows, 1) : f->blocks;
    const cairn_status status =
        cuda_launch(f, lane, STEP_K_HEAD, blocks, windows, f->warps * 32, f->product_bytes, 0, 0);
    return status ? status : cuda_finish(f, lane, rows, blocks, false);
}

/* Of x by y blocks that make inner values, of steps several times that share them. */
static device_dims cuda_low_dims(const forward_cuda_state *f, const step_lane *lane, int x, int y) {
    return (device_dims){{(unsigned)x, (unsigned)y, lane == &f->prompt ? 1 : STEP_LOW_SPLITS},
                         STEP_LOW_THREADS, 0, STEP_LOW_BYTES, true};
}

/* Before a kernel with `count` products from `first` (STEP_LOW_) on: their inner values, where rows have
 * adapters. */
static cairn_status cuda_run_low(forward_cuda_state *f, const step_lane *lane, int rows, int layer,
                                 int first, int count) {
    const bool prompt = lane == &f->prompt;
    const int each = prompt ? PROMPT_LOW_ROWS : STEP_LOW_ROWS;
    const device_dims dims = cuda_low_dims(f, lane, count, (rows + each - 1) / each);
    step_params p = lane->params;
    if (!f->adapts || f->wide) return CAIRN_OK;
    p.layer = layer, p.which = first;
    return device_launch(f->dev, &f->low_kernels[prompt], &dims, &p);
}

/* The same before a product of experts. */
static cairn_status cuda_run_low_slots(forward_cuda_state *f, const step_lane *lane, int rows, int layer,
                                       int first) {
    const device_dims dims = cuda_low_dims(f, lane, f->shape->experts_used, rows);
    step_params p = lane->params;
    if (!f->adapts) return CAIRN_OK;
    p.layer = layer, p.which = first;
    return device_launch(f->dev, &f->slot_kernels[lane == &f->prompt], &dims, &p);
}

/* Whether rows of the part may have an embedding of their own. */
static bool cuda_embeds_own(const forward_cuda_state *f) { return f->drafts && f->adapts; }

/* Behind a prompt's embedding: rows with one of their own. */
static cairn_status cuda_run_own(forward_cuda_state *f, int rows) {
    const device_dims dims = {{(unsigned)rows, 1, 1}, 128, 0, 0, true};
    if (!cuda_embeds_own(f)) return CAIRN_OK;
    return device_launch(f->dev, &f->own_kernels[1], &dims, &f->prompt.params);
}

/* The embedding of a step's rows. */
static cairn_status cuda_embed_rows(forward_cuda_state *f, int rows) {
    const device_dims dims = {{(unsigned)f->shape->hidden / 16, (unsigned)(rows + 7) / 8, 1},
                              (unsigned)f->warps * 32, 0, 0, true};
    step_params p = f->stage.params;
    const jit_kernel *plain = cuda_kernel_of(f, STEP_K_EMBED, 0, &p);
    return device_launch(f->dev, cuda_embeds_own(f) ? &f->own_kernels[0] : plain, &dims, &p);
}

/* After qkv: its heads, where the model has such work. */
static cairn_status cuda_work_heads(forward_cuda_state *f, const step_lane *lane,
                                    step_kernel kernel, int rows, int l) {
    const int heads = f->shape->heads + 2 * f->shape->kv_heads;
    if (!(f->extras & STEP_EXTRA_HEADS)) return CAIRN_OK;
    return cuda_launch(f, lane, kernel, (heads + 3) / 4, rows, 128,
                       (unsigned)(16 * f->shape->head_dim), l, 0);
}

/* After project (which: 0) and down (1): their summand, where it is normed. */
static cairn_status cuda_add_summand(forward_cuda_state *f, const step_lane *lane,
                                     step_kernel kernel, int rows, int l, int which) {
    if (!(f->extras & STEP_EXTRA_POST)) return CAIRN_OK;
    return cuda_launch(f, lane, kernel, rows, 1, 128, 16, l, which);
}

/* The convolution of a layer: computes, and keeps what it read, at once where rows are so few that none
 * overwrites what another reads. */
static cairn_status cuda_convolve(forward_cuda_state *f, const step_lane *lane, step_kernel kernel,
                                  int rows, int l) {
    const int blocks = (f->shape->hidden + 127) / 128;
    const bool few = rows <= RING_ROWS - f->shape->conv_taps + 1;
    cairn_status status = cuda_launch(f, lane, kernel, blocks, rows, 128, 0, l, few ? 3 : 1);
    return status || few ? status : cuda_launch(f, lane, kernel, blocks, rows, 128, 0, l, 2);
}

/* Which experts take which rows, and what they are given: before their products. */
static cairn_status cuda_route(forward_cuda_state *f, const step_lane *lane, step_kernel route,
                               int rows, int l) {
    const step_kernel places = (step_kernel)(route + 1), gather = (step_kernel)(route + 2);
    cairn_status status;
    if ((status = cuda_launch(f, lane, route, rows, 1, 256,
                              cuda_shared_bytes(f, (int)route), l, 0)) ||
        (status = cuda_launch(f, lane, places, 1, 1, 256, cuda_shared_bytes(f, (int)places), l, 0)))
        return status;
    return cuda_launch(f, lane, gather, rows, 1, 128, 16, l, 0);
}

/* Blocks beside each other for each of so many windows of experts: together some for every
 * multiprocessor. */
static int cuda_expert_blocks(const forward_cuda_state *f, int tiles, int windows) {
    const int each = (4 * f->blocks + windows - 1) / windows;
    return f->streamed && tiles > each ? each : tiles;
}
