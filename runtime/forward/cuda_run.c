/* forward_cuda_run: one forward on the GPU. See cuda.c. */

/* ---- input ----------------------------------------------------------------------------------- */

/* Rows of a batch that one run of kernels serves: f->part_rows and, beside them, the sequences they
 * are of; those of one sequence follow one another. */
typedef struct step_part {
    forward_batch *batch;
    const forward_rule *rule; /* NULL: all rows attend all */
    cuda_form form;           /* of its layers that select; rule NULL: the plain one */
    bool told;                /* somebody asks what its rows choose in the plain one */
    int rows;
    int logit_first, logit_count; /* the rows whose logits are made: from the first wanted on */
    int runs; /* of chunks that any of its rows' attention is cut into, at most */
} step_part;

/* Whether kernels count the pages that it reads. */
static bool cuda_counts(const forward_cuda_state *f, const step_part *part) {
    return part->rule || (f->latents.heads && part->form.steps);
}

/* The slot of a host row: the one it is in, or the one that was not used for longest. */
static int cuda_find_slot(const forward_cuda_state *f, int row) {
    int oldest = 0;
    for (int i = 0; i < f->table_rows; i++) {
        if (f->slot_rows[i] == row) return i;
        if (f->slot_used[i] < f->slot_used[oldest]) oldest = i;
    }
    return oldest;
}

/* What of a row the device does not have yet, of the group that `to` is the table of. */
static cairn_status cuda_upload_group(forward_cuda_state *f, page_tables *t, int row, int slot,
                                      bool whole, int32_t *to) {
    int first = t->first_changed[row], end = t->last_changed[row] + 1;
    cairn_status status = CAIRN_OK;
    if (whole) first = 0, end = t->pages[row];
    if (end > t->pages[row]) end = t->pages[row];
    if (first < end)
        status = device_upload(f->dev, to + (size_t)slot * (size_t)f->max_pages + first,
                               tables_row(t, row) + first, (size_t)(end - first) * 4);
    if (!status) tables_settle_row(t, row);
    return status;
}

static cairn_status cuda_upload_table(forward_cuda_state *f, page_tables *t, window_state *windows,
                                      int row, int slot) {
    const bool whole = f->slot_rows[slot] != row;
    cairn_status status = cuda_upload_group(f, t, row, slot, whole, f->table);
    for (int g = 0; g < f->groups->count && !status; g++)
        status = cuda_upload_group(f, &windows[g].tables, row, slot, whole,
                                   f->table + (size_t)f->table_words * (size_t)(1 + g));
    f->slot_rows[slot] = status ? -1 : row;
    return status;
}

/* Where the convolutions' inputs of a row lie, as far as the device does not have it yet. */
static cairn_status cuda_upload_ring(forward_cuda_state *f, const ring_states *rings, int row,
                                     int slot) {
    float *at = row < rings->count ? rings->rows[row].rows : NULL;
    if (!f->rings || f->slot_rings[slot] == at) return CAIRN_OK;
    f->slot_rings[slot] = at;
    return device_upload(f->dev, f->rings + slot, &f->slot_rings[slot], sizeof at);
}

/* Every sequence's row in a slot of its own, up to date. */
static cairn_status cuda_place_tables(forward_cuda_state *f, const forward_batch *batch,
                                      cairn_model *model) {
    cairn_status status = CAIRN_OK;
    f->forwards++;
    for (int pass = 0; pass < 2; pass++) /* those that have a slot first, so that they keep it */
        for (int i = 0; i < batch->sequence_count && !status; i++) {
            int row = batch->sequences[i].table, slot = cuda_find_slot(f, row);
            if ((f->slot_rows[slot] == row) != (pass == 0)) continue;
            f->slots[i] = slot;
            f->slot_used[slot] = f->forwards;
            status = cuda_upload_table(f, batch->tables, model->windows, row, slot);
            if (!status) status = cuda_upload_ring(f, &model->rings, row, slot);
        }
    return status;
}

/* The chunks that a row's attention is cut into, at most. rule: NULL for whole attention. */
static int cuda_row_chunks(const forward_cuda_state *f, const forward_rule *rule, int position) {
    int candidates = rule ? select_candidates(&rule->select, position) : 0;
    int pages = layout_most_listed(position, candidates, rule ? rule->select.topk : 0,
                                   rule ? rule->select.sinks : 0, f->page_size);
    return layout_chunks(pages, f->page_size, f->shape->head_dim);
}

/* Chunks of a run of these; runs. */
static int cuda_row_run(const forward_cuda_state *f, const forward_rule *rule, int position) {
    return layout_run(cuda_row_chunks(f, rule, position), f->shape->kv_heads);
}
static int cuda_row_runs(const forward_cuda_state *f, const forward_rule *rule, int position) {
    int run = cuda_row_run(f, rule, position);
    int chunks = rule ? cuda_row_chunks(f, rule, position) : position / f->chunk + 1;
    return (chunks + run - 1) / run;
}

/* Whether every layer of the model that attends selects. */
static bool cuda_selects_all(const forward_cuda_state *f, const forward_rule *rule) {
    int l = 0;
    while (l < f->shape->layers &&
           (f->plan->layers[l].mixer != PLAN_ATTENTION || cuda_selects(f, rule, l))) l++;
    return l == f->shape->layers;
}

/* The runs that a row has in any layer, at most. rule: NULL for whole attention. */
static int cuda_most_runs(const forward_cuda_state *f, const forward_rule *rule, int position) {
    int whole = cuda_row_runs(f, NULL, position);
    int listed = rule ? cuda_row_runs(f, rule, position) : 0;
    if (rule && cuda_selects_all(f, rule)) return listed;
    if (whole < f->window_runs && whole < position / f->chunk + 1)
        whole = f->window_runs < position / f->chunk + 1 ? f->window_runs : position / f->chunk + 1;
    return whole > listed ? whole : listed;
}

/* What a row that drafts sees, and where its embedding and its hidden state are. */
static void cuda_put_draft(forward_cuda_state *f, const forward_batch *batch, int from, int r,
                           int32_t *array, int n) {
    const forward_row *row = &batch->rows[from];
    const cairn_adapter *a = row->adapter;
    const size_t bytes = (size_t)f->tree_words * 4;
    uint64_t embedding = 0;
    if (row->embedding)
        embedding = (uint64_t)device_address((const float *)a->device + (row->embedding - a->values));
    array[STEP_SEEN * n + r] = row->seen;
    array[STEP_OWN * n + r] = row->mask ? -row->own : row->own;
    array[STEP_EMBED_LOW * n + r] = (int32_t)(uint32_t)embedding;
    array[STEP_EMBED_HIGH * n + r] = (int32_t)(uint32_t)(embedding >> 32);
    array[STEP_KEEP * n + r] = batch->drafts && row->hidden ? f->hidden_index[from] : -1;
    if (row->mask && row->kind == FORWARD_STEP)
        memcpy(f->host_trees + (size_t)r * bytes, row->mask, ((size_t)row->own + 7) / 8);
    f->drafts |= row->own || embedding;
    f->trees_put |= row->mask != NULL;
}

/* A lane's words, as many arrays as its kernels read, and the trees of rows. */
static cairn_status cuda_upload_words(forward_cuda_state *f, const step_lane *lane) {
    const int arrays = f->drafts ? STEP_ARRAYS : STEP_PLAIN_ARRAYS;
    cairn_status status = CAIRN_OK;
    void *input;
    memcpy(&input, &lane->params.input, sizeof input);
    if (f->trees_put)
        status = device_upload(f->dev, f->trees, f->host_trees,
                               STEP_STAGE_ROWS * (size_t)f->tree_words * 4);
    return status ? status : device_upload(f->dev, input, lane->words,
                                           (size_t)(STEP_HEAD + arrays * lane->rows) * 4);
}

/* A part's rows as the input words of a lane. */
static cairn_status cuda_upload_rows(forward_cuda_state *f, step_lane *lane,
                                     const step_part *part) {
    int32_t *head = lane->words, *array = lane->words + STEP_HEAD;
    int n = lane->rows, groups = 0, runs = 0, listed = 0;
    f->adapts = f->drafts = f->trees_put = false;
    for (int r = 0; r < part->rows; r++) {
        const forward_row *row = &part->batch->rows[f->part_rows[r]];
        const int s = f->part_sequences[r];
        bool same = r > 0 && s == f->part_sequences[r - 1];
        int32_t *last = &array[STEP_GROUP_ROWS * n + (groups ? groups - 1 : 0)];
        array[STEP_TOKEN * n + r] = row->token;
        array[STEP_POSITION * n + r] = row->position;
        array[STEP_ROPE * n + r] = row->rope;
        array[STEP_ADAPTER * n + r] = row->adapter ? row->adapter->slot : -1;
        f->adapts |= row->adapter != NULL;
        cuda_put_draft(f, part->batch, f->part_rows[r], r, array, n);
        array[STEP_SEQUENCE * n + r] = f->slots[s];
        array[STEP_FIRST * n + r] = same ? array[STEP_FIRST * n + r - 1] : r;
        array[STEP_STORED * n + r] = part->batch->sequences[s].stored;
        if (same && *last < f->group_rows && /* and both cut what they attend alike */
            cuda_row_run(f, NULL, row->position) == cuda_row_run(f, NULL, row->position - 1)) {
            ++*last;
        } else {
            array[STEP_GROUP_FIRST * n + groups] = r;
            array[STEP_GROUP_ROWS * n + groups++] = 1;
        }
        if (cuda_row_runs(f, NULL, row->position) > runs)
            runs = cuda_row_runs(f, NULL, row->position);
        if (part->rule && cuda_row_runs(f, part->rule, row->position) > listed)
            listed = cuda_row_runs(f, part->rule, row->position);
    }
    head[STEP_ROWS] = part->rows;
    head[STEP_GROUPS] = groups;
    head[STEP_CHUNKS] = runs;
    head[STEP_LIST_CHUNKS] = listed;
    head[STEP_EPOCH] = f->epoch;
    head[STEP_CLEAN_ROWS] = f->clean_rows;
    head[STEP_CLEAN_CHUNKS] = f->clean_chunks;
    head[STEP_LOGIT_FIRST] = part->logit_first;
    head[STEP_LOGIT_COUNT] = part->logit_count;
    f->wide = f->drafts && lane == &f->stage && cuda_make_wide(f, part->batch, part->rows);
    return cuda_upload_words(f, lane);
}

/* ---- launches -------------------------------------------------------------------------------- */

static cairn_status cuda_launch(forward_cuda_state *f, const step_lane *lane, step_kernel kernel,
                                int x, int y, int threads, unsigned shared, int layer, int which) {
    device_dims dims = {{0, 0, 1}, 0, 0, 0, true};
    step_params p = lane->params;
    dims.grid[0] = (unsigned)x;
    dims.grid[1] = (unsigned)y;
    dims.block = (unsigned)threads;
    dims.shared_bytes = shared;
    p.reserved = which;
    return device_launch(f->dev, cuda_kernel_of(f, kernel, layer, &p), &dims, &p);
}

/* The best token of each logit row, after any kind of head; pages counted by the sparse flow. */
static cairn_status cuda_finish(forward_cuda_state *f, int rows, bool sparse_flow) {
    device_dims dims = {{0, 1, 1}, 32, 0, 0, true};
    finish_params p;
    memset(&p, 0, sizeof p);
    p.winners = f->winners;
    p.tokens = f->sampled;
    p.blocks = f->blocks;
    p.rows = rows;
    if (sparse_flow) {
        p.input = f->flow.params.input;
        p.capacity = f->flow.params.capacity;
        p.row_pages = f->row_pages;
        p.pages_read = f->pages_read;
        p.layers = f->shape->layers;
        p.count_rows = STEP_FLOW_ROWS;
        p.kv_heads = f->shape->kv_heads;
        p.seen_words = f->flow.params.seen_words;
    }
    dims.grid[0] = (unsigned)(rows + (sparse_flow ? STEP_FLOW_ROWS : 0));
    return device_launch(f->dev, &f->kernels[STEP_K_FINISH], &dims, &p);
}

/* Before a kernel with `count` products from `first` (STEP_LOW_) on: their inner values, where rows have
 * adapters. */
static cairn_status cuda_run_low(forward_cuda_state *f, const step_lane *lane, int rows, int layer,
                                 int first, int count) {
    device_dims dims = {{0, 0, 1}, 128, 0, 0, true};
    step_params p = lane->params;
    if (!f->adapts || f->wide) return CAIRN_OK;
    dims.grid[0] = (unsigned)count, dims.grid[1] = (unsigned)rows;
    p.layer = layer, p.reserved = first;
    return device_launch(f->dev, &f->low_kernels[lane == &f->prompt], &dims, &p);
}

/* Blocks of a product of some windows of rows: one a tile; where weights stream, tiles in turn. Two
 * blocks a multiprocessor for one window of rows (H200, Q4_0, a step of the 1B: 531 us against 583);
 * of several the other windows take the second's place (8B, two windows: 2964 us against 3788). */
static int cuda_blocks(const forward_cuda_state *f, int tiles, int windows) {
    int most = windows == 1 ? 2 * f->blocks : f->blocks;
    if (most < 3) most = 3; /* q, k and v in formats of their own */
    return f->streamed && tiles > most ? most : tiles;
}

/* Inputs of a product of the stages. */
static int cuda_inputs(const model_shape *s, int product) {
    return product == STEP_P_O ? s->heads * s->head_dim : product == STEP_P_DOWN ? s->ffn : s->hidden;
}

/* Blocks of a cluster: one for each part of a product's K (dense/product.cuh: product_spreads). */
static int cuda_cluster(const forward_cuda_state *f, step_kernel kernel, int layer) {
    const int product = cuda_kernel_product((int)kernel);
    const int format = cuda_layer_format(f, layer, product);
    const int parts = format < 256 ? pack_parts(format, cuda_inputs(f->shape, product)) : 1;
    return cuda_has_clusters(f) && parts <= PRODUCT_SPREAD ? parts : 1;
}

/* A product of a layer's step: so many tiles, in windows of eight rows. */
static cairn_status cuda_launch_product(forward_cuda_state *f, step_kernel kernel, int tiles, int rows,
                                        int layer) {
    device_dims dims = {{0, 0, 1}, (unsigned)f->warps * 32, 0, f->product_bytes, true};
    step_params p = f->stage.params;
    const int windows = (rows + 7) / 8, parts = cuda_cluster(f, kernel, layer);
    int x = cuda_blocks(f, tiles, windows);
    if (parts > 1) { /* as many clusters as run at once; they share the tiles evenly */
        const int room = parts > 2 ? f->blocks * 9 / 10 : f->blocks; /* H200: 30 of 4 of 132 */
        const int most = (windows == 1 ? 2 : 1) * room / parts, each = (tiles + most - 1) / most;
        x = (tiles + each - 1) / each * parts;
        dims.cluster = (unsigned)parts;
    }
    dims.grid[0] = (unsigned)x, dims.grid[1] = (unsigned)windows;
    return device_launch(f->dev, cuda_kernel_of(f, kernel, layer, &p), &dims, &p);
}

/* The same, by its wide form where there is one (the flow's model, many rows). */
static cairn_status cuda_run_product(forward_cuda_state *f, step_kernel plain, step_wide wide, int tiles,
                                     int rows, int l) {
    if (f->wide) return cuda_launch_wide(f, wide, tiles / cuda_wide_tiles(f, wide), rows, l);
    return cuda_launch_product(f, plain, tiles, rows, l);
}

/* Behind a lane's embedding: rows with one of their own. */
static cairn_status cuda_run_own(forward_cuda_state *f, const step_lane *lane, int rows) {
    const device_dims dims = {{(unsigned)rows, 1, 1}, 128, 0, 0, true};
    if (!f->drafts || !f->adapts) return CAIRN_OK;
    return device_launch(f->dev, &f->own_kernels[lane == &f->prompt], &dims, &lane->params);
}

/* ---- page selection -------------------------------------------------------------------------- */

/* Bounds of the pages listed in f->host_pages. */
static cairn_status cuda_store_listed(forward_cuda_state *f, int count, bool mean) {
    device_dims dims = {{0, 0, 0}, 128, 0, 0, false};
    step_params p = f->stage.params;
    cairn_status status = device_upload(f->dev, f->new_pages, f->host_pages, (size_t)count * 4);
    dims.grid[0] = (unsigned)count;
    dims.grid[1] = (unsigned)f->shape->kv_heads;
    p.mean = mean;
    for (int l = 0, end; l < f->shape->layers && !status; l = end) {
        const bool windowed = cuda_group(f, l) > 0; /* such layers have pages of other ids, no bounds */
        for (end = l + 1; end < f->shape->layers && (cuda_group(f, end) > 0) == windowed;) end++;
        p.kv = f->stage.params.kv + l, p.bounds = f->stage.params.bounds + l;
        dims.grid[2] = (unsigned)(end - l);
        if (!windowed) status = device_launch(f->dev, &f->kernels[STEP_K_BOUNDS], &dims, &p);
    }
    return status;
}

/* Bounds of the pages that were completed since the last forward, of one source. */
static cairn_status cuda_store_bounds(forward_cuda_state *f, const forward_batch *batch,
                                      bool mean) {
    int count = 0;
    cairn_status status = CAIRN_OK;
    for (int i = 0; i < batch->sequence_count; i++) {
        const forward_sequence *s = &batch->sequences[i];
        if (!s->rule || s->rule->select.landmark || s->rule->select.mean != mean || f->latents.heads)
            continue;
        for (int page = s->bounded; page < s->stored && !status; page++) {
            f->host_pages[count++] = tables_row(batch->tables, s->table)[page];
            if (count < f->max_pages) continue;
            status = cuda_store_listed(f, count, mean);
            count = 0;
        }
    }
    return status || !count ? status : cuda_store_listed(f, count, mean);
}

/* ---- the flow kernel ------------------------------------------------------------------------- */

/* Graphs of sparse steps hold what the rule selects. */
static void cuda_renew_graphs(forward_cuda_state *f, const step_part *part) {
    const forward_rule *rule = part->rule;
    if (forward_rule_same(&f->graph_rule, rule) && f->graph_landmarks == part->form.landmarks) return;
    cuda_free_sparse_graphs(f);
    f->graph_rule = *rule;
    f->graph_landmarks = part->form.landmarks;
}

static cairn_status cuda_enqueue_flow(forward_cuda_state *f, bool sparse) {
    device_dims dims = {{0, 1, 1}, 0, 0, 0, false};
    step_kernel kernel = sparse ? STEP_K_SPARSE_FLOW : STEP_K_FLOW;
    cairn_status status;
    dims.grid[0] = (unsigned)f->blocks;
    dims.block = (unsigned)f->warps * 32;
    dims.shared_bytes = f->attend_bytes + f->product_bytes;
    status = device_launch(f->dev, &f->kernels[kernel], &dims, &f->flow.params);
    return status ? status : cuda_finish(f, STEP_FLOW_ROWS, sparse);
}

static cairn_status cuda_run_flow(forward_cuda_state *f, const step_part *part) {
    const forward_rule *rule = part->rule;
    device_graph *graph = rule ? &f->sparse_graph : &f->graph;
    const int32_t *head = f->flow.words;
    cairn_status status = cuda_upload_rows(f, &f->flow, part);
    if (status) return status;
    if (rule) cuda_renew_graphs(f, part);
    if (!graph->exec) {
        part->batch->prepared = true;
        if ((status = device_graph_begin(f->dev))) return status;
        if ((status = cuda_enqueue_flow(f, rule != NULL))) {
            device_graph_abandon(f->dev);
            return status;
        }
        if ((status = device_graph_end(f->dev, graph))) return status;
    }
    status = device_graph_launch(f->dev, graph);
    if (status) return status;
    f->epoch++;
    f->clean_rows = part->rows;
    f->clean_chunks = rule && cuda_selects_all(f, rule) ? head[STEP_LIST_CHUNKS]
                                                        : head[STEP_CHUNKS];
    return CAIRN_OK;
}

/* ---- the stage kernels ----------------------------------------------------------------------- */

static cairn_status cuda_attend_dense(forward_cuda_state *f, int items, int l) {
    device_dims dims = {{(unsigned)items, 1, 1}, (unsigned)f->warps * 32, 0, f->attend_bytes, true};
    step_params p = f->stage.params;
    const jit_kernel *plain = cuda_kernel_of(f, STEP_K_ATTEND, l, &p);
    return device_launch(f->dev, f->drafts ? &f->draft_attend : plain, &dims, &p);
}

/* Blocks that score the pages of one row and KV head. */
static int cuda_select_parts(const forward_cuda_state *f) {
    int each = f->warps * 16, parts = (f->max_pages + each - 1) / each;
    return parts < STEP_SELECT_PARTS ? parts : STEP_SELECT_PARTS;
}

/* What is launched for a step's attention: the rule, NULL for whole attention; groups of rows; runs
 * of all that a row sees, and of a list of pages, at most. */
typedef struct step_attention {
    const forward_rule *rule;
    const cuda_form *form; /* of the part */
    bool told;             /* what rows choose by the step's own kernels is kept */
    int groups, runs, listed;
} step_attention;

static cairn_status cuda_attend_selected(forward_cuda_state *f, const step_attention *a, int rows,
                                         int l) {
    const cuda_form form = {a->rule, false, true};
    const step_lane *lane = &f->stage;
    device_dims dims = {{0, 0, 0}, 0, 0, 0, true};
    step_params p = f->stage.params;
    cairn_status status;
    dims.grid[0] = (unsigned)cuda_select_parts(f);
    dims.grid[1] = (unsigned)rows;
    dims.grid[2] = (unsigned)f->shape->kv_heads;
    dims.block = (unsigned)f->warps * 32;
    dims.shared_bytes = (unsigned)cuda_selection_bytes(f);
    p.layer = l;
    status = device_launch(f->dev, &f->kernels[STEP_K_SELECT], &dims, &p);
    if (status) return status;
    dims.grid[0] = (unsigned)a->listed;
    dims.grid[2] *= (unsigned)cuda_shares(f->shape);
    dims.shared_bytes = f->attend_bytes;
    status = device_launch(f->dev, &f->kernels[STEP_K_ATTEND_PAGES], &dims, &p);
    return status || !a->told ? status : cuda_form_launch(f, &form, lane, 0, rows, l, &f->forms.tell);
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

static cairn_status cuda_enqueue_conv(forward_cuda_state *f, int rows, int l) {
    const step_lane *lane = &f->stage;
    const int tiles = f->shape->hidden / 16;
    cairn_status status;
    if ((status = cuda_launch_product(f, STEP_K_CONV_IN, 3 * tiles, rows, l)) ||
        (status = cuda_convolve(f, lane, STEP_K_CONV, rows, l)))
        return status;
    return cuda_launch_product(f, STEP_K_CONV_OUT, tiles, rows, l);
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

static cairn_status cuda_enqueue_experts(forward_cuda_state *f, int rows, int l) {
    const step_lane *lane = &f->stage;
    const model_shape *s = f->shape;
    const int windows = cuda_expert_windows(s, rows, 8), t = f->warps * 32;
    cairn_status status;
    if ((status = cuda_route(f, lane, STEP_K_ROUTE, rows, l)) ||
        (status = cuda_launch(f, lane, STEP_K_EXPERT_UP, cuda_expert_blocks(f, s->ffn / 8, windows),
                              windows, t, f->product_bytes, l, 0)) ||
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
                      ? cuda_attend_dense(f, a->groups * runs * s->kv_heads * cuda_shares(s), l)
                  : a->form->rule ? cuda_attend_formed(f, a->form, lane, rows, l)
                                  : cuda_attend_selected(f, a, rows, l)) ||
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
    const step_lane *lane = &f->stage;
    int t = f->warps * 32, y = (rows + 7) / 8, tiles = f->shape->hidden / 16;
    unsigned shared = f->product_bytes;
    cairn_status status = cuda_launch(f, lane, STEP_K_EMBED, tiles, y, t, 0, 0, 0);
    if (!status) status = cuda_run_own(f, lane, rows);
    for (int l = 0; l < f->shape->layers && !status; l++)
        status = cuda_enqueue_layer(f, a, rows, l);
    if (!status) status = cuda_keep_hidden(f, rows);
    if (status || !wanted) return status;
    status = cuda_launch(f, lane, STEP_K_HEAD, f->blocks, (wanted + 7) / 8, t, shared, 0, 0);
    return status ? status : cuda_finish(f, wanted, false);
}

/* Graphs of rows without and with adapters, of those among which some draft, and of wide products. */
static int cuda_graph_kind(const forward_cuda_state *f) { return f->wide ? 4 : f->adapts + 2 * f->drafts; }

/* What a graph for the rows in f->stage.words is to have blocks for: all the runs that a list can have,
 * or as many as the longest row so far, rounded up by doubling. Where rows draft, few are in a group
 * of their own, and few have logits. */
static step_graph_size cuda_graph_size(const forward_cuda_state *f, const forward_rule *rule, int rows) {
    const int32_t *head = f->stage.words;
    step_graph_size size = {rule ? f->runs : 1, rows, rows};
    while (size.chunks < head[STEP_CHUNKS] && !rule && !f->latents.heads) size.chunks *= 2;
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
             (held->wanted + 7) / 8 < (size.wanted + 7) / 8)
        device_graph_free(f->dev, graph);
    if (!graph->exec) {
        const step_attention a = {rule, &part->form, false, size.groups, size.chunks, rule ? f->runs : 0};
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
    step_attention a = {part->rule, &part->form, part->told, 0, 0, 0};
    cairn_status status = cuda_upload_rows(f, &f->stage, part);
    if (status) return status;
    if (f->drafts && (status = cuda_need_drafts(f, part->batch))) return status;
    if (!part->told &&
        (part->logit_count == part->rows || (f->drafts && part->logit_count && !part->rule)))
        return cuda_run_stage_graph(f, part);
    a.groups = head[STEP_GROUPS], a.runs = head[STEP_CHUNKS], a.listed = head[STEP_LIST_CHUNKS];
    return cuda_enqueue_stages(f, &a, part->rows, head[STEP_LOGIT_COUNT]);
}

/* ---- prompts --------------------------------------------------------------------------------- */

/* The product of `outputs` rows of weights with all rows of the prompt. */
static cairn_status cuda_prompt_product(forward_cuda_state *f, step_kernel kernel, int outputs,
                                        int rows, int l) {
    const step_block *b = &f->prompt_block;
    const int each = cuda_prompt_outputs(f);
    return cuda_launch(f, &f->prompt, kernel, (rows + b->tokens - 1) / b->tokens,
                       (outputs + each - 1) / each, b->warps * 32, cuda_prompt_bytes(f), l, 0);
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
        (status = cuda_prompt_product(f, PROMPT_K_EXPERT_UP, 2 * s->ffn, slots, l)) ||
        (status = cuda_prompt_product(f, PROMPT_K_EXPERT_DOWN, s->hidden, slots, l)))
        return status;
    return cuda_launch(f, lane, PROMPT_K_COMBINE, rows, 1, 128, 0, l, 0);
}

/* Of a prompt's rows, in the form of a layer that selects. */
static cairn_status cuda_attend_prompt(forward_cuda_state *f, const cuda_form *form, int rows, int l) {
    const model_shape *s = f->shape;
    const bool selects = form->rule && cuda_selects(f, form->rule, l);
    const bool unmarked = selects && form->landmarks, many = cuda_attends_many(f) && !unmarked;
    const int each = many ? LAYOUT_MANY_ROWS / (s->heads / s->kv_heads) : 64;
    device_dims dims = {{(unsigned)((rows + each - 1) / each),
                         (unsigned)(many ? s->kv_heads : s->heads), 1},
                        many ? LAYOUT_MANY_THREADS : 128, 0, 0, true};
    step_params p = f->prompt.params;
    const jit_kernel *plain = cuda_kernel_of(f, PROMPT_K_ATTEND, l, &p);
    if (selects && form->rule->prompts) return cuda_attend_formed(f, form, &f->prompt, rows, l);
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

static cairn_status cuda_run_prompt(forward_cuda_state *f, const step_part *part) {
    const step_lane *lane = &f->prompt;
    int wanted = part->logit_count;
    cairn_status status = cuda_upload_rows(f, &f->prompt, part);
    if (!status) status = cuda_launch(f, lane, PROMPT_K_EMBED, part->rows, 1, 128, 0, 0, 0);
    if (!status) status = cuda_run_own(f, lane, part->rows);
    for (int l = 0; l < f->shape->layers && !status; l++)
        status = cuda_run_prompt_layer(f, &part->form, part->rows, l);
    if (status || !wanted) return status;
    status = cuda_launch(f, lane, PROMPT_K_LAST, wanted, 1, 128, 0, 0, 0);
    if (!status)
        status = cuda_launch(f, lane, PROMPT_K_HEAD, f->blocks, (wanted + 7) / 8, f->warps * 32,
                             f->product_bytes, 0, 0);
    return status ? status : cuda_finish(f, wanted, false);
}

/* ---- results --------------------------------------------------------------------------------- */

static cairn_status cuda_fault(const forward_cuda_state *f, int32_t fault) {
    if (!fault) return CAIRN_OK;
    return base_fail(f->dev->base, CAIRN_DEVICE_ERROR,
                     "a step's blocks did not all run at once; is another program using the GPU?");
}

/* The words that every step leaves: faults, sampled tokens and pages read, in one copy. */
static cairn_status cuda_download_words(forward_cuda_state *f, const step_part *part) {
    size_t count = cuda_counts(f, part) || f->ahead_count ? cuda_result_words(f)
                                                          : (size_t)(STEP_SAMPLED_AT + part->logit_count);
    cairn_status status = device_download(f->dev, f->host_words, f->fault, count * 4);
    return status ? status : cuda_fault(f, f->host_words[0]);
}

/* The logits that the caller wants, row by row or, where all rows are wanted, at once. */
static cairn_status cuda_download_logits(const forward_cuda_state *f, const step_part *part) {
    const forward_row *rows = part->batch->rows;
    size_t vocab = (size_t)f->shape->vocab;
    cairn_status status = CAIRN_OK;
    for (int i = 0, run; i < part->logit_count && !status; i += run) {
        const int32_t *at = f->part_rows + part->logit_first + i;
        for (run = 1; i + run < part->logit_count && rows[at[run]].logits == rows[at[0]].logits &&
                      at[run] == at[0] + run;)
            run++;
        if (rows[at[0]].logits)
            status = device_download(f->dev,
                                     part->batch->logits + (size_t)f->logit_index[at[0]] * vocab,
                                     f->logits + (size_t)i * vocab, (size_t)run * vocab * 4);
    }
    return status;
}

/* The hidden states that the caller wants of a part that went through the lane. */
static cairn_status cuda_download_hidden(const forward_cuda_state *f, const step_lane *lane,
                                         const step_part *part) {
    const size_t n = (size_t)f->shape->hidden;
    const float *residual;
    cairn_status status = CAIRN_OK;
    memcpy(&residual, &lane->params.exchange, sizeof residual);
    for (int r = 0; part->batch->hidden && !part->batch->drafts && r < part->rows && !status; r++) {
        float *out = part->batch->hidden + (size_t)f->hidden_index[f->part_rows[r]] * n;
        if (!part->batch->rows[f->part_rows[r]].hidden) continue;
        if (!(status = device_download(f->dev, out, residual + (size_t)r * n, n * sizeof *out)))
            simd_for(0)->rmsnorm(out, f->plan->output_norm.values, f->shape->norm_eps, (int)n, out);
    }
    return status;
}

/* What the first rows of sequences chose, of those in the part. */
static cairn_status cuda_tell_chosen(const forward_cuda_state *f, const step_part *part) {
    cairn_status status = CAIRN_OK;
    for (int r = 0; r < part->rows && (part->form.rule || part->told) && !status; r++) {
        const int i = f->part_sequences[r];
        const forward_sequence *s = &part->batch->sequences[i];
        if (s->chosen && f->part_rows[r] == s->first && part->form.steps)
            status = cuda_download_chosen(f, part->rule, s, f->slots[i]);
    }
    return status;
}

/* Drafts behind what a part verifies, where it is one sequence's rows that do, all of them here: then the
 * host waits once for both. The rows from `real` on are verified, those of their masks come behind. */
static cairn_status cuda_draft_ahead(forward_cuda_state *f, const step_part *part) {
    const forward_row *rows = part->batch->rows;
    int first = 0, end, groups, masks;
    while (first < part->rows && !rows[f->part_rows[first]].own) first++;
    if (first == part->rows || !part->batch->drafts || f->ahead_count) return CAIRN_OK;
    for (end = first; end < part->rows && f->part_sequences[end] == f->part_sequences[first];) end++;
    masks = rows[f->part_rows[end - 1]].own, groups = (end - first) / masks;
    if (groups > first || (end - first) % masks || masks > STEP_MOST_DRAFTS) return CAIRN_OK;
    for (int r = end; r < part->rows; r++)
        if (rows[f->part_rows[r]].own) return CAIRN_OK;
    for (int r = first - groups; r < end; r++) {
        const forward_row *row = &rows[f->part_rows[r]];
        if (f->part_sequences[r] != f->part_sequences[first] || (r < first ? !row->sample : !row->hidden))
            return CAIRN_OK;
    }
    return cuda_begin_drafts(f, rows[f->part_rows[first]].adapter, first - groups, groups - 1, masks);
}

/* Logits, tokens and faults of a part that was launched. */
static cairn_status cuda_results(forward_cuda_state *f, const step_part *part) {
    int32_t *tokens = f->host_words + STEP_SAMPLED_AT;
    const int32_t *rows = f->part_rows + part->logit_first;
    bool any = false;
    cairn_status status;
    if (!part->logit_count && !cuda_counts(f, part)) return CAIRN_OK;
    if ((status = cuda_download_logits(f, part))) return status;
    for (int i = 0; i < part->logit_count; i++) {
        f->asks[i] = part->batch->rows[rows[i]].sample;
        any = any || f->asks[i];
    }
    if (any && (status = sample_rows_begin(f->runtime, &f->space, f->logits, f->asks,
                                           part->logit_count, f->sampled)))
        return status;
    if (any && (status = cuda_draft_ahead(f, part))) return status;
    if ((status = cuda_download_words(f, part)) || (status = cuda_tell_chosen(f, part)) || !any)
        return status;
    status = sample_rows_end(f->runtime, &f->space, f->logits, f->asks, part->logit_count, tokens);
    for (int i = 0; i < part->logit_count && !status; i++)
        if (f->asks[i]) part->batch->sampled[f->ask_index[rows[i]]] = tokens[i];
    return status;
}

/* Distinct pages that steps at positions [first, last] read in the layers that do not select. */
static int64_t cuda_whole_pages(const forward_cuda_state *f, const forward_rule *rule, int first,
                                int last) {
    int64_t pages = 0;
    for (int l = 0; l < f->shape->layers; l++) {
        const int window = f->plan->layers[l].window;
        const int from = window && first >= window ? first - window + 1 : 0;
        if (f->plan->layers[l].mixer != PLAN_ATTENTION) continue;
        if (!cuda_selects(f, rule, l)) pages += last / f->page_size - from / f->page_size + 1;
    }
    return pages * f->shape->kv_heads;
}

/* Whether rows of sequence i choose pages: those that draft do not, and are served behind the others. */
static bool cuda_splits(const forward_batch *batch, int i) {
    const forward_sequence *s = &batch->sequences[i];
    const int last = batch->rows[s->first + s->rows - 1].position;
    return s->rule && (cuda_has_forms(s->rule, s->landmarks) ||
                       select_candidates(&s->rule->select, last) > s->rule->select.topk);
}

/* Distinct pages of the sequences of a part, the last of its run: counted by the selection, all that
 * its rows see where there was none. */
static void cuda_count_pages(const forward_cuda_state *f, const step_part *part) {
    const int32_t *counts = f->host_words + STEP_SAMPLED_AT + STEP_STAGE_ROWS;
    for (int i = 0; i < part->batch->sequence_count; i++) {
        forward_sequence *s = &part->batch->sequences[i];
        const forward_row *end = &part->batch->rows[s->first + f->done[i]];
        if (!f->stepped[i]) continue;
        if (cuda_splits(part->batch, i) && end[-1].own) s->pages_read = 0; /* these see all others' */
        s->pages_read += (cuda_counts(f, part) ? counts[f->slots[i]] : 0) +
                         cuda_whole_pages(f, part->rule, end[-f->stepped[i]].position,
                                          end[-1].position);
    }
}

/* ---- parts of a batch ------------------------------------------------------------------------ */

/* Rows of sequence i that are not served yet and of one kind. */
static int cuda_run_length(const forward_cuda_state *f, const forward_batch *batch, int i) {
    const forward_sequence *s = &batch->sequences[i];
    const forward_row *rows = batch->rows + s->first, *first = &rows[f->done[i]];
    const bool splits = cuda_splits(batch, i);
    int end = f->done[i];
    while (end < s->rows && rows[end].kind == first->kind &&
           (!splits || !rows[end].own == !first->own)) end++;
    return end - f->done[i];
}

/* The rule of its next rows; by latents no pages are chosen. */
static const forward_rule *cuda_next_rule(const forward_cuda_state *f, const forward_batch *batch, int i) {
    const forward_sequence *s = &batch->sequences[i];
    if (f->latents.heads) return NULL;
    return cuda_splits(batch, i) && batch->rows[s->first + f->done[i]].own ? NULL : s->rule;
}

/* Whether the next rows of sequence i are of this kind. */
static bool cuda_waits(const forward_cuda_state *f, const forward_batch *batch, int i,
                       forward_kind kind) {
    const forward_sequence *s = &batch->sequences[i];
    return f->done[i] < s->rows && batch->rows[s->first + f->done[i]].kind == kind;
}

/* Adds sequence i's next row to the part; false: there is no room for its logits. */
static bool cuda_add_row(forward_cuda_state *f, step_part *part, int i) {
    int at = part->batch->sequences[i].first + f->done[i];
    const forward_row *row = &part->batch->rows[at];
    if (row->logits || row->sample) {
        int first = part->logit_count ? part->logit_first : part->rows;
        if (part->rows - first >= STEP_STAGE_ROWS) return false;
        part->logit_first = first;
        part->logit_count = part->rows - first + 1;
    }
    if (cuda_most_runs(f, part->rule, row->position) > part->runs)
        part->runs = cuda_most_runs(f, part->rule, row->position);
    f->part_rows[part->rows] = at;
    f->part_sequences[part->rows++] = i;
    f->done[i]++;
    return true;
}

/* The next run of a prompt, in parts of so few wanted rows as there is room for logits. */
static cairn_status cuda_serve_prompt(forward_cuda_state *f, forward_batch *batch, int i) {
    int left = cuda_run_length(f, batch, i);
    cairn_status status = CAIRN_OK;
    while (left && !status) {
        const forward_sequence *s = &batch->sequences[i];
        step_part part = {batch, NULL, {NULL, s->landmarks, false}, false, 0, 0, 0, 0};
        if (s->rule && (s->landmarks || s->rule->prompts)) part.form.rule = s->rule;
        while (left && cuda_add_row(f, &part, i)) left--;
        status = cuda_run_prompt(f, &part);
        if (!status) status = cuda_download_hidden(f, &f->prompt, &part);
        if (!status) status = cuda_results(f, &part);
    }
    return status;
}

/* Items of attention in one layer of the flow kernel, at most: where rows select pages each is a
 * group of its own, also in layers that attend all. */
static int cuda_flow_items(const forward_cuda_state *f, const step_part *part) {
    int groups = 0, runs = 0;
    for (int r = 0, run; r < part->rows; r += run) {
        int more;
        for (run = 1; r + run < part->rows &&
                      f->part_sequences[r + run] == f->part_sequences[r];) run++;
        more = cuda_most_runs(f, part->rule,
                               part->batch->rows[f->part_rows[r + run - 1]].position);
        runs = more > runs ? more : runs;
        groups += part->rule ? run : (run + f->group_rows - 1) / f->group_rows;
    }
    return groups * runs * f->shape->kv_heads;
}

/* Whether some row has an adapter, or drafts. */
static bool cuda_has_others(const forward_cuda_state *f, const step_part *part) {
    int r = 0;
    while (r < part->rows && !part->batch->rows[f->part_rows[r]].adapter &&
           !part->batch->rows[f->part_rows[r]].own) r++;
    return r < part->rows;
}

/* The flow serves few plain rows whose logits are all wanted, while its blocks need one round of
 * attention: with more the stage kernels, which have as many blocks as they need, are faster (8
 * rows at 6K tokens: 634 us against 589, at 2K 522 against 534). Both give the same bits. Its
 * runs are single chunks. */
static bool cuda_suits_flow(forward_cuda_state *f, const step_part *part) {
    for (int r = 0; r < part->rows && r < STEP_FLOW_ROWS; r++)
        if (cuda_row_run(f, NULL, part->batch->rows[f->part_rows[r]].position) > 1) return false;
    return part->rows <= STEP_FLOW_ROWS && part->logit_count == part->rows &&
           !cuda_has_others(f, part) && !part->form.rule && !part->told &&
           cuda_flow_items(f, part) <= f->blocks - f->narrow &&
           cuda_has_flow(f, part->rule ? STEP_K_SPARSE_FLOW : STEP_K_FLOW);
}

/* Whether a row of sequence i that waits attends less than everything before it. */
static bool cuda_is_sparse(const forward_cuda_state *f, const forward_batch *batch, int i) {
    const forward_sequence *s = &batch->sequences[i];
    const forward_rule *rule = cuda_next_rule(f, batch, i);
    int last = s->first + f->done[i] + cuda_run_length(f, batch, i) - 1;
    return rule && select_candidates(&rule->select, batch->rows[last].position) > rule->select.topk;
}

/* Whether the stage kernels hold one more row, sequence i's next, and the exchange all its runs. */
static bool cuda_has_room(const forward_cuda_state *f, const step_part *part, int i) {
    int at = part->batch->sequences[i].first + f->done[i];
    int runs = cuda_most_runs(f, part->rule, part->batch->rows[at].position);
    if (runs < part->runs) runs = part->runs;
    return !part->rows || (part->rows < STEP_STAGE_ROWS &&
                           (int64_t)runs * (part->rows + 1) <= f->stage_parts);
}

/* The step rows that wait, of all sequences that share the rule of sequence `first`, in parts that
 * the stage kernels hold. Where none attends less than all, the kernels of whole attention serve
 * them, to the same bits. */
static cairn_status cuda_serve_steps(forward_cuda_state *f, forward_batch *batch, int first) {
    const forward_rule *rule = cuda_next_rule(f, batch, first);
    const bool landmarks = batch->sequences[first].landmarks, formed = cuda_has_forms(rule, landmarks);
    step_part part = {batch, formed ? rule : NULL, {formed ? rule : NULL, landmarks, true}, false, 0, 0, 0,
                      0};
    bool begun = false;
    cairn_status status = CAIRN_OK;
    memset(f->stepped, 0, (size_t)f->table_rows * sizeof *f->stepped);
    for (int i = first; i < batch->sequence_count; i++)
        if (cuda_waits(f, batch, i, FORWARD_STEP) &&
            batch->sequences[i].landmarks == landmarks &&
            forward_rule_same(cuda_next_rule(f, batch, i), rule)) {
            f->stepped[i] = cuda_run_length(f, batch, i);
            if (cuda_is_sparse(f, batch, i)) part.rule = rule;
            part.told |= batch->sequences[i].chosen && !formed && f->forms.watched;
        }
    part.told &= part.rule != NULL;
    cuda_set_selection(f, &f->flow.params, part.rule);
    cuda_set_selection(f, &f->stage.params, part.rule);
    for (int i = first, left = f->stepped[first]; i < batch->sequence_count && !status;) {
        while (i < batch->sequence_count && (!left || cuda_has_room(f, &part, i))) {
            if (left) cuda_add_row(f, &part, i), left--;
            else if (++i < batch->sequence_count) left = f->stepped[i];
        }
        if (!begun && i == batch->sequence_count && cuda_suits_flow(f, &part)) {
            status = cuda_run_flow(f, &part);
            if (!status) status = cuda_download_hidden(f, &f->flow, &part);
        } else {
            if (!begun && cuda_counts(f, &part)) status = cuda_forget_pages(f);
            if (!status) status = cuda_run_stages(f, &part);
            if (!status) status = cuda_download_hidden(f, &f->stage, &part);
        }
        begun = true;
        if (!status) status = cuda_results(f, &part);
        part.rows = part.logit_first = part.logit_count = part.runs = 0;
    }
    if (!status) cuda_count_pages(f, &part);
    return status;
}

/* ---- the forward ----------------------------------------------------------------------------- */

/* Where each row's results go. */
static void cuda_index_results(forward_cuda_state *f, const forward_batch *batch) {
    int asks = 0, logits = 0, hidden = 0;
    for (int r = 0; r < batch->row_count; r++) {
        f->ask_index[r] = asks;
        f->logit_index[r] = logits;
        f->hidden_index[r] = hidden;
        hidden += batch->rows[r].hidden;
        asks += batch->rows[r].sample != NULL;
        logits += batch->rows[r].logits;
    }
}

static cairn_status forward_cuda(cairn_model *model, kv_cache *kv, forward_batch *batch) {
    forward_cuda_state *f = (forward_cuda_state *)model->state;
    int left = batch->row_count;
    cairn_status status = forward_check(f->dev->base, model, f->max_rows, batch);
    (void)kv; /* its addresses are in the parameters */
    if (status || !left) return status;
    if ((status = cuda_place_tables(f, batch, model)) ||
        (status = cuda_store_bounds(f, batch, false)) ||
        (status = cuda_store_bounds(f, batch, true)))
        return status;
    cuda_index_results(f, batch);
    batch->prepared = false;
    f->ahead_count = 0;
    if (batch->drafts) f->drafts_at = batch->hidden;
    memset(f->done, 0, (size_t)f->table_rows * sizeof *f->done);
    while (left > 0 && !status) { /* a sequence's rows of one kind, then those of the other */
        for (int i = 0; i < batch->sequence_count && !status; i++)
            if (cuda_waits(f, batch, i, FORWARD_STEP)) status = cuda_serve_steps(f, batch, i);
        for (int i = 0; i < batch->sequence_count && !status; i++)
            if (cuda_waits(f, batch, i, FORWARD_PROMPT)) status = cuda_serve_prompt(f, batch, i);
        left = batch->row_count;
        for (int i = 0; i < batch->sequence_count; i++) left -= f->done[i];
    }
    return status;
}

static const model_backend forward_cuda_backend = {
    forward_cuda_open, forward_cuda_close, forward_cuda,
    0.05f /* of a row that rides along: the flow hardly depends on it */,
    forward_cuda_prepare, true /* packed weights */,
    forward_cuda_wait, forward_cuda_estimate, NULL, NULL,
    forward_cuda_take_adapter, forward_cuda_leave_adapter, forward_cuda_draft, forward_cuda_watch,
    forward_cuda_adapter_bytes
};
