/* forward_cuda_step: the rows of a step, by the flow kernel or by the stage kernels, as graphs where
 * they can be. See cuda.c. */

/* ---- the flow kernel ------------------------------------------------------------------------- */

/* Graphs of sparse steps hold what the rule selects. */
static void cuda_renew_graphs(forward_cuda_state *f, const step_part *part) {
    const forward_rule *rule = part->rule;
    if (forward_rule_same(&f->graph_rule, rule) && f->graph_landmarks == part->form.landmarks) return;
    cuda_free_sparse_graphs(f);
    f->graph_rule = *rule;
    f->graph_landmarks = part->form.landmarks;
}

/* Drafts behind what a part verifies, where it is one sequence's rows that do, all of them here: then the
 * host waits once for both. The rows from `real` on are verified, those of their masks come behind. */
static cuda_ahead cuda_plan_ahead(const step_part *part) {
    const cuda_ahead none = {NULL, 0, 0, 0};
    const forward_sequence *s;
    int first = 0, end, groups, masks = 0;
    while (first < part->rows && !cuda_part_row(part, first)->own) first++;
    if (first == part->rows || !part->batch->drafts) return none;
    for (end = first; end < part->rows && part->sequences[end] == part->sequences[first];) end++;
    while (first + masks < end && cuda_part_row(part, first + masks)->own == masks + 1) masks++;
    groups = masks ? (end - first + masks - 1) / masks : 0; /* the last may have fewer */
    s = cuda_part_sequence(part, first);
    if (!groups || groups > first || masks > STEP_MOST_DRAFTS || part->at[first - groups] != s->first ||
        part->at[end - 1] != s->first + s->rows - 1)
        return none;
    for (int r = end; r < part->rows; r++)
        if (cuda_part_row(part, r)->own) return none;
    for (int r = first - groups; r < end; r++) {
        const forward_row *row = cuda_part_row(part, r);
        if (r < first ? !row->sample : !row->hidden) return none;
    }
    return (cuda_ahead){cuda_part_row(part, first)->adapter, first - groups, groups - 1, masks};
}

/* Whether the step's graph drafts them too: there is nothing else, and tokens are the best ones. */
static bool cuda_drafts_within(const forward_cuda_state *f, const step_part *part, const cuda_ahead *a) {
    bool within = a->masks && a->masks < STEP_FLOW_ROWS && a->real == 0 && a->drafts + 1 == part->logit_count;
    for (int r = 0; within && r < part->logit_count; r++)
        within = sample_takes_best(cuda_part_row(part, r)->sample, f->shape->vocab);
    return within;
}

static cairn_status cuda_enqueue_flow(forward_cuda_state *f, step_kernel kernel, int drafts) {
    device_dims dims = {{0, 1, 1}, 0, 0, 0, false};
    cairn_status status;
    dims.grid[0] = (unsigned)f->blocks;
    dims.block = (unsigned)f->warps * 32;
    dims.shared_bytes = f->attend_bytes + f->product_bytes;
    status = device_launch(f->dev, &f->kernels[kernel], &dims, &f->flow.params);
    if (status) return status;
    if (kernel == STEP_K_DRAFT_FLOW) return cuda_take_flow(f, drafts);
    return cuda_finish(f, &f->flow, STEP_FLOW_ROWS, f->blocks, kernel == STEP_K_SPARSE_FLOW);
}

/* What a flow that was launched leaves for the next to clean. */
static void cuda_flow_leaves(forward_cuda_state *f, int rows, int chunks) {
    f->epoch++;
    f->clean_rows = rows, f->clean_chunks = chunks;
}

static cairn_status cuda_run_flow(forward_cuda_state *f, const step_part *part, step_kernel kernel) {
    const forward_rule *rule = part->rule;
    const bool drafts = kernel == STEP_K_DRAFT_FLOW;
    const cuda_ahead ahead = cuda_plan_ahead(part);
    const int within = drafts && cuda_drafts_within(f, part, &ahead) ? ahead.masks : 0;
    device_graph *graph = rule ? &f->sparse_graph : drafts ? &f->draft_flow_graphs[within] : &f->graph;
    const int32_t *head = f->flow.words;
    cairn_status status = cuda_upload_rows(f, &f->flow, part);
    if (!status && within) status = cuda_send_words(f, ahead.adapter, NULL);
    if (status) return status;
    if (rule) cuda_renew_graphs(f, part);
    if (!graph->exec) {
        part->batch->prepared = true;
        if ((status = device_graph_begin(f->dev))) return status;
        if ((status = cuda_enqueue_flow(f, kernel, within))) {
            device_graph_abandon(f->dev);
            return status;
        }
        if ((status = device_graph_end(f->dev, graph))) return status;
    }
    status = device_graph_launch(f->dev, graph);
    if (status) return status;
    if (within) f->ahead_count = within, f->ahead_by = ahead.adapter;
    cuda_flow_leaves(f, part->rows, rule && cuda_selects_all(f, rule) ? head[STEP_LIST_CHUNKS] : head[STEP_CHUNKS]);
    return CAIRN_OK;
}

/* ---- the stage kernels ----------------------------------------------------------------------- */

/* Blocks of a product of some windows of rows: one a tile; where weights stream, tiles in turn. Two
 * blocks a multiprocessor (H200, Q4_0, a step of the 1B: 531 us against 583), of all windows together: then
 * they read the same weights at about the same time (8B, two windows: 2964 us against 3788; four: 7.6 ms
 * against 8.3 by as many for each as there are multiprocessors).
 * `teams` of a block's warps have tiles of their own: no more blocks than have tiles for all. */
static int cuda_blocks(const forward_cuda_state *f, int tiles, int teams, int places, int windows) {
    const int most = cuda_window_blocks(places, windows, 3); /* q, k and v in formats of their own */
    if (!f->streamed) return tiles;
    tiles = (tiles + teams - 1) / teams;
    return tiles > most ? most : tiles;
}

/* Inputs of a product of the stages. */
static int cuda_inputs(const model_shape *s, int product) {
    return product == STEP_P_O ? s->heads * s->head_dim : product == STEP_P_DOWN ? s->ffn : s->hidden;
}

/* Teams of a block of a product, of the warps of dense/product.cuh: where q, k and v have formats of
 * their own, one. */
static int cuda_teams(const forward_cuda_state *f, step_kernel kernel, int layer) {
    const int product = cuda_kernel_product((int)kernel);
    const int format = cuda_layer_format(f, layer, product);
    if (!f->streamed || format >= 256) return 1;
    return 8 / pack_warps(format, cuda_inputs(f->shape, product));
}

/* Blocks of a cluster: one for each part of a product's K (dense/product.cuh: product_spreads), but of a
 * row alone. */
static int cuda_cluster(const forward_cuda_state *f, step_kernel kernel, int layer) {
    const int product = cuda_kernel_product((int)kernel);
    const int format = cuda_layer_format(f, layer, product);
    const bool apart = format >= 256 || (f->alone && pack_alone(format));
    const int parts = !apart ? pack_parts(format, cuda_inputs(f->shape, product)) : 1;
    return cuda_spreads(f) && parts <= PRODUCT_CLUSTER ? parts : 1;
}

/* A product of a layer's step: so many tiles, in windows of rows. */
static cairn_status cuda_launch_product(forward_cuda_state *f, step_kernel kernel, int tiles, int rows,
                                        int layer) {
    device_dims dims = {{0, 0, 1}, (unsigned)f->warps * 32, 0, f->product_bytes, true};
    step_params p = f->stage.params;
    const jit_kernel *function;
    const bool bands = cuda_takes_bands(f, kernel, layer);
    const int windows = bands ? (rows + 15) / 16 : (rows + 7) / 8, places = bands ? f->blocks : 2 * f->blocks;
    const int parts = cuda_cluster(f, kernel, layer);
    int x = cuda_blocks(f, tiles, cuda_teams(f, kernel, layer), places, windows);
    if (parts > 1) { /* as many clusters as run at once; they share the tiles evenly */
        const int room = (parts > 2 ? places * 10 / 11 : places) / (parts * windows); /* H200: 30 of 4 of 132 */
        const int most = room ? room : 1;
        const int each = (tiles + most - 1) / most;
        x = (tiles + each - 1) / each * parts;
        dims.cluster = (unsigned)parts;
    }
    dims.grid[0] = (unsigned)x, dims.grid[1] = (unsigned)windows;
    if (bands) dims.shared_bytes = cuda_band_bytes();
    f->form = bands ? STEP_FORM_BANDS : STEP_FORM_ALL;
    function = cuda_kernel_of(f, kernel, layer, &p);
    f->form = STEP_FORM_ALL;
    return device_launch(f->dev, function, &dims, &p);
}

/* The same, by its wide form where there is one (the flow's model, many rows). */
static cairn_status cuda_run_product(forward_cuda_state *f, step_kernel plain, step_wide wide, int tiles,
                                     int rows, int l) {
    if (f->wide) return cuda_launch_wide(f, wide, tiles / cuda_wide_tiles(f, wide), rows, l);
    return cuda_launch_product(f, plain, tiles, rows, l);
}

/* groups of rows, of up to so many runs each. */
static cairn_status cuda_attend_dense(forward_cuda_state *f, int groups, int runs, int l) {
    const bool chained = f->chain.chunks > 0;
    const int blocks = chained ? cuda_chain_blocks(f, l) : runs;
    const unsigned shares = (unsigned)(f->shape->kv_heads * cuda_shares(f->shape));
    device_dims dims = {{shares, (unsigned)groups, (unsigned)blocks},
                        (unsigned)f->warps * 32, 0, f->attend_bytes, true};
    step_params p = f->stage.params;
    const jit_kernel *kernel = cuda_kernel_of(f, STEP_K_ATTEND, l, &p);
    if (f->singles[STEP_SINGLE_GROUPS].state == STEP_FLOW_READY) kernel = &f->singles[STEP_SINGLE_GROUPS].kernel;
    if (f->drafts) kernel = &f->draft_attend;
    if (f->row_ways.relays) {
        kernel = &f->singles[STEP_SINGLE_RELAY].kernel;
        if (groups > 1) p.mergers = 1;
    }
    if (f->row_ways.clusters && blocks <= f->row_most) {
        kernel = &f->singles[STEP_SINGLE_ROW].kernel;
        dims.cluster = dims.grid[0] = (unsigned)cuda_row_cluster(groups, blocks);
        dims.grid[1] = shares, dims.grid[2] = (unsigned)groups;
        dims.shared_bytes = (unsigned)cuda_cluster_bytes(f);
    }
    if (chained) {
        kernel = &f->singles[STEP_SINGLE_CHAIN].kernel;
        dims.shared_bytes = (unsigned)cuda_chain_bytes(f), p.chain = f->chain.chunks;
    }
    return device_launch(f->dev, kernel, &dims, &p);
}

/* What is launched for a step's attention: the rule, NULL for whole attention; groups of rows; runs
 * of all that a row sees, and of a list of pages, at most. */
typedef struct step_attention {
    const forward_rule *rule;
    const cuda_form *form; /* of the part */
    bool watched;          /* what rows choose by the step's own kernels is kept */
    int groups, runs, listed;
} step_attention;

static cairn_status cuda_enqueue_conv(forward_cuda_state *f, int rows, int l) {
    const step_lane *lane = &f->stage;
    const int tiles = f->shape->hidden / 16;
    cairn_status status;
    if ((status = cuda_launch_product(f, STEP_K_CONV_IN, 3 * tiles, rows, l)) ||
        (status = cuda_convolve(f, lane, STEP_K_CONV, rows, l)))
        return status;
    return cuda_launch_product(f, STEP_K_CONV_OUT, tiles, rows, l);
}

static cairn_status cuda_enqueue_experts(forward_cuda_state *f, int rows, int l) {
    const step_lane *lane = &f->stage;
    const model_shape *s = f->shape;
    const int windows = cuda_expert_windows(s, rows, 8), t = f->warps * 32;
    cairn_status status;
    if ((status = cuda_route(f, lane, STEP_K_ROUTE, rows, l)) ||
        (status = cuda_run_low_slots(f, lane, rows, l, STEP_LOW_GATE)) ||
        (status = cuda_launch(f, lane, STEP_K_EXPERT_UP, cuda_expert_blocks(f, s->ffn / 8, windows),
                              windows, t, f->product_bytes, l, 0)) ||
        (status = cuda_run_low_slots(f, lane, rows, l, STEP_LOW_DOWN)) ||
        (status = cuda_launch(f, lane, STEP_K_EXPERT_DOWN,
                              cuda_expert_blocks(f, s->hidden / 16, windows), windows, t,
                              f->product_bytes, l, 0)))
        return status;
    return cuda_launch(f, lane, STEP_K_COMBINE, rows, 1, 128, 0, l, 0);
}

static cairn_status cuda_enqueue_attention(forward_cuda_state *f, const step_attention *a, int rows,
                                           int l) {
    const model_shape *s = f->shape;
    const step_lane *lane = &f->stage;
    const int window = f->plan->layers[l].window;
    const int runs = window ? cuda_window_runs(f, window) : a->runs;
    cairn_status status;
    if ((status = cuda_run_low(f, lane, rows, l, STEP_LOW_Q, 3)) ||
        (status = cuda_run_product(f, STEP_K_QKV, STEP_WIDE_QKV, (int)cuda_qkv_rows(s) / 16, rows, l)) ||
        (status = cuda_work_heads(f, lane, STEP_K_HEADS, rows, l)) ||
        (status = !cuda_selects(f, a->rule, l)
                      ? cuda_attend_dense(f, a->groups, runs, l)
                  : a->form->rule ? cuda_attend_formed(f, a->form, lane, rows, l)
                                  : cuda_attend_selected(f, a->rule, a->listed, a->watched, rows, l)) ||
        (status = cuda_run_low(f, lane, rows, l, STEP_LOW_O, 1)) ||
        (status = cuda_run_product(f, STEP_K_PROJECT, STEP_WIDE_PROJECT, s->hidden / 16, rows, l)))
        return status;
    return cuda_add_summand(f, lane, STEP_K_ADD, rows, l, 0);
}

static cairn_status cuda_enqueue_layer(forward_cuda_state *f, const step_attention *a, int rows,
                                       int l) {
    const model_shape *s = f->shape;
    const step_lane *lane = &f->stage;
    const plan_mixer mixer = f->plan->layers[l].mixer;
    cairn_status status = mixer == PLAN_SHORT_CONV ? cuda_enqueue_conv(f, rows, l)
                          : mixer == PLAN_LATENT   ? cuda_run_latents(f, lane, rows, l)
                                                   : cuda_enqueue_attention(f, a, rows, l);
    if (status) return status;
    if (s->experts) return cuda_enqueue_experts(f, rows, l);
    if ((status = cuda_run_low(f, lane, rows, l, STEP_LOW_GATE, 2)) ||
        (status = cuda_run_product(f, STEP_K_GATE_UP, STEP_WIDE_GATE_UP, s->ffn / 8, rows, l)) ||
        (status = cuda_run_low(f, lane, rows, l, STEP_LOW_DOWN, 1)) ||
        (status = cuda_run_product(f, STEP_K_DOWN, STEP_WIDE_DOWN, s->hidden / 16, rows, l)))
        return status;
    return cuda_add_summand(f, lane, STEP_K_ADD, rows, l, 1);
}

/* All launches of a forward, its best tokens included. */
static cairn_status cuda_enqueue_stages(forward_cuda_state *f, const step_attention *a, int rows,
                                        int wanted) {
    cairn_status status = cuda_embed_rows(f, rows);
    f->alone = rows == 1 && !f->adapts;
    for (int l = 0; l < f->shape->layers && !status; l++)
        status = cuda_enqueue_layer(f, a, rows, l);
    if (!status) status = cuda_keep_hidden(f, rows);
    return status || !wanted ? status : cuda_launch_head(f, &f->stage, wanted);
}

/* Graphs of rows without and with adapters, of those among which some draft; of a row alone by each of the ways that
 * there are for it; and of wide products. */
static int cuda_graph_kind(const forward_cuda_state *f) {
    const int ways = f->row_ways.clusters + 2 * f->row_ways.relays;
    if (f->wide) return STEP_GRAPHS - 1;
    return ways ? 3 + ways + 3 * cuda_row_length(f) : f->adapts + 2 * f->drafts;
}

/* What a graph for the rows in f->stage.words is to have blocks for: all the runs that a list can have, but where
 * clusters have a row's; or as many as the longest row so far, rounded up by doubling. Where rows draft, few are in a
 * group of their own, and few have logits. */
static step_graph_size cuda_graph_size(const forward_cuda_state *f, const forward_rule *rule, int rows) {
    const int32_t *head = f->stage.words;
    const bool all = rule && (!f->row_ways.clusters || cuda_row_length(f) > 1);
    const int least = all ? f->runs : f->row_ways.clusters ? cuda_row_cluster(rows, 1) : 1;
    step_graph_size size = {least, rows, rows, f->chain};
    while (size.chunks < head[STEP_CHUNKS] && !all && !f->latents.heads) size.chunks *= 2;
    if (!f->drafts || rule) return size;
    if (head[STEP_GROUPS] + 2 < rows) size.groups = head[STEP_GROUPS] + 2;
    size.wanted = head[STEP_LOGIT_COUNT];
    return size;
}

/* A step as a graph that serves every position and page table. */
static cairn_status cuda_run_stage_graph(forward_cuda_state *f, const step_part *part) {
    const forward_rule *rule = part->rule;
    const int kind = cuda_graph_kind(f), rows = part->rows;
    device_graph *graph = rule ? &f->stage_graphs[kind][rows] : &f->dense_graphs[kind][rows];
    step_graph_size *held = &f->graph_sizes[kind][rows];
    const step_graph_size size = cuda_graph_size(f, rule, rows);
    cairn_status status;
    if (rule) cuda_renew_graphs(f, part);
    else if (held->chunks < size.chunks || held->groups < f->stage.words[STEP_GROUPS] ||
             (held->wanted + 7) / 8 < (size.wanted + 7) / 8 || held->chain.chunks != size.chain.chunks ||
             held->chain.blocks < size.chain.blocks)
        cuda_free_graph(f, graph);
    if (!graph->exec) {
        const step_attention a = {rule, &part->form, false, size.groups, size.chunks,
                                  rule ? f->runs : 0};
        part->batch->prepared = true;
        if ((status = device_graph_begin(f->dev))) return status;
        if ((status = cuda_enqueue_stages(f, &a, rows, size.wanted))) {
            device_graph_abandon(f->dev);
            return status;
        }
        if ((status = device_graph_end(f->dev, graph))) return status;
        *held = rule ? *held : size;
    }
    return device_graph_launch(f->dev, graph);
}

/* Before the first of a forward's runs of the stage kernels. */
static cairn_status cuda_forget_pages(forward_cuda_state *f) {
    cairn_status status = device_zero(f->dev, f->seen, f->seen_bytes);
    return status ? status : device_zero(f->dev, f->pages_read, (size_t)f->table_rows * 4);
}

static cairn_status cuda_run_stages(forward_cuda_state *f, const step_part *part) {
    const int32_t *head = f->stage.words;
    step_attention a = {part->rule, &part->form, part->watched, 0, 0, 0};
    cairn_status status = part->rule && !part->form.rule ? cuda_need_selection(f) : CAIRN_OK;
    if (status || (status = cuda_upload_rows(f, &f->stage, part))) return status;
    if (f->drafts && (status = cuda_need_drafts(f, part->batch))) return status;
    f->joint = part->rule && !part->form.rule && part->rows == 1 && cuda_has_joint(f);
    f->chain = cuda_choose_chain(f, part->rule);
    f->row_ways = cuda_choose_row_ways(f, part->rule);
    f->banded = part->rows > 8 && !f->wide && cuda_has_bands(f, f->adapts, false);
    if (!part->watched &&
        (part->logit_count == part->rows || (f->drafts && part->logit_count && !part->rule)))
        return cuda_run_stage_graph(f, part);
    a.groups = head[STEP_GROUPS], a.runs = head[STEP_CHUNKS], a.listed = head[STEP_LIST_CHUNKS];
    return cuda_enqueue_stages(f, &a, part->rows, head[STEP_LOGIT_COUNT]);
}
