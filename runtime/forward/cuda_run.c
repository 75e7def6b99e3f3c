/* forward_cuda_run: one forward on the GPU. See cuda.c. */

/* ---- input ----------------------------------------------------------------------------------- */

static cairn_status step_check(const forward_cuda_state *f, const kv_cache *kv,
                               const forward_args *a) {
    base *b = f->dev->base;
    cairn_status status = CAIRN_OK;
    if (a->rows < 0 || a->rows > f->max_rows)
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "%d rows; this model was opened for %d",
                         a->rows, f->max_rows);
    if (a->table_rows < 0 || a->table_rows > f->table_rows)
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "%d sequences; max_batch is %d", a->table_rows,
                         f->table_rows);
    if (a->logit_count < 0 || a->logit_first < 0 || a->logit_first + a->logit_count > a->rows)
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "logits of rows %d to %d of %d", a->logit_first,
                         a->logit_first + a->logit_count - 1, a->rows);
    for (int r = 0; r < a->rows && !status; r++)
        status = forward_check_row(b, kv, f->shape->vocab, f->max_pages, a, r);
    return status;
}

static cairn_status step_upload_table(forward_cuda_state *f, const forward_args *a) {
    cairn_status status = CAIRN_OK;
    int width = a->table_stride < f->max_pages ? a->table_stride : f->max_pages;
    if (f->table_known && f->table_version == a->table_version) return CAIRN_OK;
    for (int r = 0; r < a->table_rows && !status; r++)
        status = device_upload(f->dev, f->table + (size_t)r * (size_t)f->max_pages,
                            a->page_table + (int64_t)r * a->table_stride, (size_t)width * 4);
    f->table_version = a->table_version;
    f->table_known = !status;
    return status;
}

/* Chunks of the list of the pages that a row selects, at most (most_listed of step/pages.cuh). */
static int step_list_chunks(const forward_cuda_state *f, const cairn_config *config, int page_size,
                            int position) {
    int window = config->selection.window, own = position / page_size;
    int before = window > 0 ? position - window + 1 : position;
    int candidates = before > 0 ? before / page_size : 0;
    int64_t pages = (int64_t)config->topk + own - candidates + 1 +
                    (config->selection.sinks + page_size - 1) / page_size;
    if (candidates <= config->topk || pages > own + 1) pages = own + 1;
    return (int)((pages * page_size + f->chunk - 1) / f->chunk);
}

/* Chunks that a row attends in any layer, at most. config: NULL for whole attention. */
static int step_row_chunks(const forward_cuda_state *f, const cairn_config *config, int page_size,
                           int position) {
    return config && step_selects_all(config, f->shape->layers)
               ? step_list_chunks(f, config, page_size, position) : position / f->chunk + 1;
}

/* The rows as the input words of a lane. config: NULL for whole attention. */
static cairn_status step_upload_rows(forward_cuda_state *f, step_lane *lane,
                                     const cairn_config *config, int page_size,
                                     const forward_args *a) {
    int32_t *head = lane->words, *array = lane->words + STEP_HEAD;
    int n = lane->rows, groups = 0, chunks = 0, listed = 0;
    for (int r = 0; r < a->rows; r++) {
        bool same = r > 0 && a->sequences[r] == a->sequences[r - 1];
        int32_t *last = &array[STEP_GROUP_ROWS * n + (groups ? groups - 1 : 0)];
        array[STEP_TOKEN * n + r] = a->tokens[r];
        array[STEP_POSITION * n + r] = a->positions[r];
        array[STEP_SEQUENCE * n + r] = a->sequences[r];
        array[STEP_FIRST * n + r] = same ? array[STEP_FIRST * n + r - 1] : r;
        array[STEP_STORED * n + r] = a->stored_pages ? a->stored_pages[a->sequences[r]] : 0;
        if (same && *last < f->group_rows) {
            ++*last;
        } else {
            array[STEP_GROUP_FIRST * n + groups] = r;
            array[STEP_GROUP_ROWS * n + groups++] = 1;
        }
        if (a->positions[r] / f->chunk + 1 > chunks)
            chunks = a->positions[r] / f->chunk + 1;
        if (config && step_list_chunks(f, config, page_size, a->positions[r]) > listed)
            listed = step_list_chunks(f, config, page_size, a->positions[r]);
    }
    head[STEP_ROWS] = a->rows;
    head[STEP_GROUPS] = groups;
    head[STEP_CHUNKS] = chunks;
    head[STEP_LIST_CHUNKS] = listed;
    head[STEP_EPOCH] = f->epoch;
    head[STEP_CLEAN_ROWS] = f->clean_rows;
    head[STEP_CLEAN_CHUNKS] = f->clean_chunks;
    head[STEP_LOGIT_FIRST] = a->logit_first;
    head[STEP_LOGIT_COUNT] = a->logit_count;
    {
        void *input;
        memcpy(&input, &lane->params.input, sizeof input);
        return device_upload(f->dev, input, lane->words, (size_t)(STEP_HEAD + STEP_ARRAYS * n) * 4);
    }
}

/* ---- launches -------------------------------------------------------------------------------- */

static cairn_status step_launch(forward_cuda_state *f, const step_lane *lane, step_kernel kernel,
                                int x, int y, int threads, unsigned shared, int layer, int which) {
    device_dims dims = {{0, 0, 1}, 0, 0, 0, true};
    step_params p = lane->params;
    dims.grid[0] = (unsigned)x;
    dims.grid[1] = (unsigned)y;
    dims.block = (unsigned)threads;
    dims.shared_bytes = shared;
    p.layer = layer;
    p.reserved = which;
    return device_launch(f->dev, &f->kernels[kernel], &dims, &p);
}

/* The best token of each logit row, after any kind of head; pages counted by the sparse flow. */
static cairn_status step_finish(forward_cuda_state *f, int rows, bool sparse_flow) {
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

/* ---- page selection -------------------------------------------------------------------------- */

/* Whether any row attends less than everything before it. */
static bool step_is_sparse(const forward_cuda_state *f, const cairn_config *config,
                           const kv_cache *kv, const forward_args *a) {
    if (a->dense || !step_selects_any(config, f->shape->layers)) return false;
    for (int r = 0; r < a->rows; r++) {
        int window = config->selection.window;
        int before = window > 0 ? a->positions[r] - window + 1 : a->positions[r];
        if (before > 0 && before / kv->page_size > config->topk) return true;
    }
    return false;
}

static void step_set_selection(const forward_cuda_state *f, step_params *p,
                               const cairn_config *config) {
    memset(p->select_layers, 0, sizeof p->select_layers);
    for (int l = 0; l < f->shape->layers; l++)
        if (step_selects_layer(config, l)) p->select_layers[l / 32] |= 1u << l % 32;
    p->topk = config->topk;
    p->window = config->selection.window;
    p->sinks = config->selection.sinks;
    p->mean = config->selection.source == CAIRN_SOURCE_MEAN;
    p->by_head = config->selection.strategy == CAIRN_STRATEGY_HEAD;
}

/* Bounds of the pages that were completed since the last forward. */
static cairn_status step_store_bounds(forward_cuda_state *f, const forward_args *a) {
    device_dims dims = {{0, 0, 0}, 128, 0, 0, false};
    int count = 0;
    cairn_status status;
    if (!a->stored_pages || !a->bounded_pages) return CAIRN_OK;
    for (int s = 0; s < a->table_rows; s++)
        for (int page = a->bounded_pages[s]; page < a->stored_pages[s]; page++) {
            f->host_pages[count++] = a->page_table[(int64_t)s * a->table_stride + page];
            if (count < f->max_pages && (s + 1 < a->table_rows || page + 1 < a->stored_pages[s]))
                continue;
            dims.grid[0] = (unsigned)count;
            dims.grid[1] = (unsigned)f->shape->kv_heads;
            dims.grid[2] = (unsigned)f->shape->layers;
            if ((status = device_upload(f->dev, f->new_pages, f->host_pages, (size_t)count * 4)) ||
                (status = device_launch(f->dev, &f->kernels[STEP_K_BOUNDS], &dims,
                                        &f->stage.params)))
                return status;
            count = 0;
        }
    if (!count) return CAIRN_OK;
    dims.grid[0] = (unsigned)count;
    dims.grid[1] = (unsigned)f->shape->kv_heads;
    dims.grid[2] = (unsigned)f->shape->layers;
    status = device_upload(f->dev, f->new_pages, f->host_pages, (size_t)count * 4);
    return status ? status
                  : device_launch(f->dev, &f->kernels[STEP_K_BOUNDS], &dims, &f->stage.params);
}

/* ---- the flow kernel ------------------------------------------------------------------------- */

/* Graphs of sparse steps hold what the config selects. */
static void step_renew_graphs(forward_cuda_state *f, const cairn_config *config) {
    if (f->graph_topk == config->topk &&
        !memcmp(&f->graph_selection, &config->selection, sizeof config->selection))
        return;
    step_free_sparse_graphs(f);
    f->graph_selection = config->selection;
    f->graph_topk = config->topk;
}

static cairn_status step_enqueue_flow(forward_cuda_state *f, bool sparse) {
    device_dims dims = {{0, 1, 1}, 0, 0, 0, false};
    step_kernel kernel = sparse ? STEP_K_SPARSE_FLOW : STEP_K_FLOW;
    cairn_status status;
    dims.grid[0] = (unsigned)f->blocks;
    dims.block = (unsigned)f->warps * 32;
    dims.shared_bytes = f->attend_bytes + f->product_bytes;
    status = device_launch(f->dev, &f->kernels[kernel], &dims, &f->flow.params);
    return status ? status : step_finish(f, STEP_FLOW_ROWS, sparse);
}

/* config: NULL for whole attention. */
static cairn_status step_run_flow(forward_cuda_state *f, const cairn_config *config,
                                  int page_size, const forward_args *a) {
    device_graph *graph = config ? &f->sparse_graph : &f->graph;
    const int32_t *head = f->flow.words;
    cairn_status status = step_upload_rows(f, &f->flow, config, page_size, a);
    if (status) return status;
    if (config) step_renew_graphs(f, config);
    if (!graph->exec) {
        if ((status = device_graph_begin(f->dev))) return status;
        if ((status = step_enqueue_flow(f, config != NULL))) {
            device_graph_abandon(f->dev);
            return status;
        }
        if ((status = device_graph_end(f->dev, graph))) return status;
    }
    status = device_graph_launch(f->dev, graph);
    if (status) return status;
    f->epoch++;
    f->clean_rows = a->rows;
    f->clean_chunks = config && step_selects_all(config, f->shape->layers) ? head[STEP_LIST_CHUNKS]
                                                                           : head[STEP_CHUNKS];
    return CAIRN_OK;
}

/* ---- the stage kernels ----------------------------------------------------------------------- */

static cairn_status step_attend_dense(forward_cuda_state *f, int rows, int items, int l) {
    int t = f->warps * 32;
    cairn_status status = step_launch(f, &f->stage, STEP_K_ATTEND, items, 1, t, f->attend_bytes, l,
                                      0);
    return status ? status : step_launch(f, &f->stage, STEP_K_MERGE,
                                         (rows * f->shape->heads + 3) / 4, 1, t, 0, l, 0);
}

static cairn_status step_attend_selected(forward_cuda_state *f, int rows, int chunks, int l) {
    int t = f->warps * 32, heads = f->shape->kv_heads;
    device_dims dims = {{0, 0, 0}, 0, 0, 0, true};
    step_params p = f->stage.params;
    cairn_status status = step_launch(f, &f->stage, STEP_K_SELECT, rows, heads, t,
                                      (unsigned)step_selection_bytes(f), l, 0);
    if (status) return status;
    dims.grid[0] = (unsigned)chunks;
    dims.grid[1] = (unsigned)rows;
    dims.grid[2] = (unsigned)heads;
    dims.block = (unsigned)t;
    dims.shared_bytes = f->attend_bytes;
    p.layer = l;
    if ((status = device_launch(f->dev, &f->kernels[STEP_K_ATTEND_PAGES], &dims,
                                &p))) return status;
    return step_launch(f, &f->stage, STEP_K_MERGE_PAGES, (rows * f->shape->heads + 3) / 4, 1, t, 0,
                       l, 0);
}

/* Blocks of a product of some windows of rows: one a tile; where weights stream, tiles in turn. One
 * block a multiprocessor leaves room for the next product's, which ask for their weights meanwhile;
 * one window of long rows is faster with two (H200, 8B Q4_0: 1584 us a step against 1697; 1B, whose
 * rows are short: 409 against 382; 8B, two windows: 3788 against 2964). */
static int step_blocks(const forward_cuda_state *f, int tiles, int inputs, int windows) {
    int most = windows == 1 && inputs > 2048 ? 2 * f->blocks : f->blocks;
    return f->streamed && tiles > most ? most : tiles;
}

/* All launches of a forward, its best tokens included. config: NULL for whole attention. items of
 * it, listed: chunks of a list of pages, at most. */
static cairn_status step_enqueue_stages(forward_cuda_state *f, const cairn_config *config, int rows,
                                        int items, int listed, int wanted) {
    const model_shape *s = f->shape;
    const step_lane *lane = &f->stage;
    int t = f->warps * 32, y = (rows + 7) / 8, tiles = s->hidden / 16;
    unsigned shared = f->product_bytes;
    cairn_status status = step_launch(f, lane, STEP_K_EMBED, tiles, y, t, 0, 0, 0);
    for (int l = 0; l < s->layers && !status; l++) {
        bool sparse = config && step_selects_layer(config, l);
        if ((status = step_launch(f, lane, STEP_K_QKV,
                                  step_blocks(f, (int)step_qkv_rows(s) / 16, s->hidden, y), y, t,
                                  shared, l, 0)) ||
            (status = sparse ? step_attend_selected(f, rows, listed, l)
                             : step_attend_dense(f, rows, items, l)) ||
            (status = step_launch(f, lane, STEP_K_PROJECT,
                                  step_blocks(f, tiles, s->heads * s->head_dim, y), y, t, shared, l,
                                  0)) ||
            (status = step_launch(f, lane, STEP_K_GATE_UP, step_blocks(f, s->ffn / 8, s->hidden, y),
                                  y, t, shared, l, 0)) ||
            (status = step_launch(f, lane, STEP_K_DOWN, step_blocks(f, tiles, s->ffn, y), y, t, shared,
                                  l, 0)))
            break;
    }
    if (status || !wanted) return status;
    status = step_launch(f, lane, STEP_K_HEAD, f->blocks, (wanted + 7) / 8, t, shared, 0, 0);
    return status ? status : step_finish(f, wanted, false);
}

/* A step as a graph that serves every position and page table: blocks for all the chunks that a
 * list can have, or for as many as the longest row so far, rounded up, made by doubling. */
static cairn_status step_run_stage_graph(forward_cuda_state *f, const cairn_config *config,
                                         int page_size, int rows) {
    device_graph *graph = config ? &f->stage_graphs[rows] : &f->dense_graphs[rows];
    int listed = config ? step_list_chunks(f, config, page_size, f->max_pages * page_size - 1) : 0;
    int chunks = f->chunks, needed = f->stage.words[STEP_CHUNKS];
    cairn_status status;
    if (config) step_renew_graphs(f, config);
    if (!config) {
        for (chunks = 1; chunks < needed;) chunks *= 2;
        if (f->graph_chunks[rows] < chunks) device_graph_free(f->dev, graph);
    }
    if (!graph->exec) {
        if ((status = device_graph_begin(f->dev))) return status;
        if ((status = step_enqueue_stages(f, config, rows, rows * chunks * f->shape->kv_heads,
                                          listed, rows))) {
            device_graph_abandon(f->dev);
            return status;
        }
        if ((status = device_graph_end(f->dev, graph))) return status;
        f->graph_chunks[rows] = config ? f->graph_chunks[rows] : chunks;
    }
    return device_graph_launch(f->dev, graph);
}

/* Before the first of a forward's runs of the stage kernels. */
static cairn_status step_forget_pages(forward_cuda_state *f) {
    cairn_status status = device_zero(f->dev, f->seen, f->seen_bytes);
    return status ? status : device_zero(f->dev, f->pages_read, (size_t)f->table_rows * 4);
}

static cairn_status step_run_stages(forward_cuda_state *f, const cairn_config *config,
                                    int page_size, const forward_args *a) {
    const int32_t *head = f->stage.words;
    cairn_status status = step_upload_rows(f, &f->stage, config, page_size, a);
    if (status) return status;
    if (a->logit_count == a->rows) return step_run_stage_graph(f, config, page_size, a->rows);
    return step_enqueue_stages(f, config, a->rows,
                               head[STEP_GROUPS] * head[STEP_CHUNKS] * f->shape->kv_heads,
                               head[STEP_LIST_CHUNKS], head[STEP_LOGIT_COUNT]);
}

/* ---- prompts --------------------------------------------------------------------------------- */

static cairn_status step_run_prompt_layer(forward_cuda_state *f, int rows, int l) {
    const model_shape *s = f->shape;
    const step_lane *lane = &f->prompt;
    int y = (rows + 63) / 64, quads = (rows + 3) / 4, tiles = (s->hidden / 16 + 3) / 4;
    unsigned shared = (unsigned)STEP_PRODUCT_BYTES;
    cairn_status status;
    if ((status = step_launch(f, lane, PROMPT_K_NORM, quads, 1, 128, 0, l, 0)) ||
        (status = step_launch(f, lane, PROMPT_K_QKV, ((int)step_qkv_rows(s) / 16 + 3) / 4, y, 128,
                              shared, l, 0)) ||
        (status = step_launch(f, lane, PROMPT_K_ATTEND, y, s->heads, 128,
                              (unsigned)(512 * s->head_dim), l, 0)) ||
        (status = step_launch(f, lane, PROMPT_K_PROJECT, tiles, y, 128, shared, l, 0)) ||
        (status = step_launch(f, lane, PROMPT_K_NORM, quads, 1, 128, 0, l, 1)) ||
        (status = step_launch(f, lane, PROMPT_K_GATE_UP, (s->ffn / 8 + 3) / 4, y, 128, shared, l,
                              0)))
        return status;
    return step_launch(f, lane, PROMPT_K_DOWN, tiles, y, 128, shared, l, 0);
}

static cairn_status step_run_prompt(forward_cuda_state *f, const forward_args *a) {
    const step_lane *lane = &f->prompt;
    int wanted = a->logit_count;
    cairn_status status = step_upload_rows(f, &f->prompt, NULL, 0, a);
    if (!status) status = step_launch(f, lane, PROMPT_K_EMBED, a->rows, 1, 128, 0, 0, 0);
    for (int l = 0; l < f->shape->layers && !status; l++)
        status = step_run_prompt_layer(f, a->rows, l);
    if (status || !wanted) return status;
    status = step_launch(f, lane, PROMPT_K_LAST, wanted, 1, 128, 0, 0, 0);
    if (!status)
        status = step_launch(f, lane, PROMPT_K_HEAD, f->blocks, (wanted + 7) / 8, f->warps * 32,
                             f->product_bytes, 0, 0);
    return status ? status : step_finish(f, wanted, false);
}

/* ---- results --------------------------------------------------------------------------------- */

static cairn_status step_fault(const forward_cuda_state *f, int32_t fault) {
    if (!fault) return CAIRN_OK;
    return base_fail(f->dev->base, CAIRN_DEVICE_ERROR,
                     "a step's blocks did not all run at once; is another program using the GPU?");
}

/* Tokens from logits: on the host, by the very code of the CPU backend. */
static cairn_status step_sample_rows(forward_cuda_state *f, const forward_args *a) {
    int vocab = f->shape->vocab;
    cairn_status status = CAIRN_OK;
    for (int i = 0; i < a->logit_count && !status; i++) {
        status = device_download(f->dev, f->host_logits, f->logits + (size_t)i * (size_t)vocab,
                                 (size_t)vocab * 4);
        if (!status)
            a->sampled[i] = sample_token(a->sample, f->host_logits, vocab,
                                         a->positions[a->logit_first + i] + 1, f->host_sample);
    }
    return status;
}

/* The same on the device, to the words that every step leaves, where the rows follow each other and
 * few tokens can be it; false: it is not for this. */
static bool step_samples_here(const forward_cuda_state *f, const forward_args *a) {
    const int first = a->logit_first, last = first + a->logit_count - 1;
    if (!a->logit_count || !a->sample || a->logits || a->sample->temperature <= 0.0f) return false;
    return a->logit_count <= STEP_STAGE_ROWS && a->sequences[first] == a->sequences[last] &&
           a->positions[last] - a->positions[first] == last - first &&
           ops_sample_is_few(a->sample, f->shape->vocab);
}

/* The words that every step leaves: faults, sampled tokens and pages read, in one copy. */
static cairn_status step_download_words(forward_cuda_state *f, bool pages, const forward_args *a) {
    size_t count = pages ? step_result_words(f) : (size_t)(STEP_SAMPLED_AT + a->logit_count);
    cairn_status status = device_download(f->dev, f->host_words, f->fault, count * 4);
    if (!status) status = step_fault(f, f->host_words[0]);
    if (!status && a->sample && !a->logits &&
        (a->sample->temperature <= 0.0f || step_samples_here(f, a)))
        memcpy(a->sampled, f->host_words + STEP_SAMPLED_AT, (size_t)a->logit_count * 4);
    return status;
}

static cairn_status step_results(forward_cuda_state *f, const cairn_config *config,
                                 const forward_args *a) {
    bool pages = config && a->pages_read;
    cairn_status status = CAIRN_OK;
    if (!a->logit_count && !pages) return CAIRN_OK;
    if (a->logit_count && a->logits)
        status = device_download(f->dev, a->logits, f->logits,
                              (size_t)a->logit_count * (size_t)f->shape->vocab * 4);
    else if (step_samples_here(f, a))
        status = ops_sample_device(f->runtime, a->sample, f->logits, a->logit_count,
                                   f->shape->vocab, a->positions[a->logit_first] + 1, f->sampled);
    else if (a->logit_count && a->sample && a->sample->temperature > 0.0f)
        status = step_sample_rows(f, a);
    return status ? status : step_download_words(f, pages, a);
}

/* Distinct pages: counted by the selection, all up to the last row where there was none. */
static void step_count_pages(const forward_cuda_state *f, const cairn_config *config,
                             const kv_cache *kv, const forward_args *a) {
    const int32_t *counts = f->host_words + STEP_SAMPLED_AT + STEP_STAGE_ROWS;
    int whole = f->shape->layers;
    for (int l = 0; l < f->shape->layers && config; l++) whole -= step_selects_layer(config, l);
    for (int r = 0; r < a->rows && a->pages_read; r++) {
        int s = a->sequences[r];
        if (r + 1 < a->rows && a->sequences[r + 1] == s) continue;
        a->pages_read[s] += (config ? counts[s] : 0) +
                            (int64_t)(a->positions[r] / kv->page_size + 1) * whole *
                                f->shape->kv_heads;
    }
}

/* ---- the forward ----------------------------------------------------------------------------- */

/* Rows of one sequence from r on. */
static int step_run_length(const forward_args *a, int r) {
    int end = r + 1;
    while (end < a->rows && a->sequences[end] == a->sequences[r]) end++;
    return end - r;
}

/* Rows [first, first + rows) as a forward of their own. */
static forward_args step_part(const forward_cuda_state *f, const forward_args *a, int first,
                              int rows) {
    forward_args part = *a;
    int from = a->logit_first > first ? a->logit_first : first;
    int end = a->logit_first + a->logit_count < first + rows ? a->logit_first + a->logit_count
                                                             : first + rows;
    part.rows = rows;
    part.tokens += first;
    part.positions += first;
    part.sequences += first;
    part.logit_first = end > from ? from - first : 0;
    part.logit_count = end > from ? end - from : 0;
    if (part.logit_count && a->logits)
        part.logits += (size_t)(from - a->logit_first) * (size_t)f->shape->vocab;
    if (part.logit_count && a->sampled) part.sampled += from - a->logit_first;
    return part;
}

/* Rows from r on that the stage kernels run at once: as many as they hold, while the exchange has
 * room for all their chunks. */
static int step_part_rows(const forward_cuda_state *f, const cairn_config *config, int page_size,
                          const forward_args *a, int r) {
    int rows = 0, chunks = 0;
    while (rows < STEP_STAGE_ROWS && r + rows < a->rows) {
        int more = step_row_chunks(f, config, page_size, a->positions[r + rows]);
        if (more > chunks) chunks = more;
        if ((int64_t)chunks * (rows + 1) > f->stage_parts) break;
        rows++;
    }
    return rows;
}

/* A prompt sequence by sequence, anything else in parts that the stage kernels hold: a row's bits
 * depend on neither. */
static cairn_status step_run_parts(forward_cuda_state *f, const cairn_config *config, bool prompt,
                                   int page_size, const forward_args *a) {
    cairn_status status = config ? step_forget_pages(f) : CAIRN_OK;
    for (int first = 0, rows; first < a->rows && !status; first += rows) {
        forward_args part;
        rows = prompt ? step_run_length(a, first)
                      : step_part_rows(f, config, page_size, a, first);
        part = step_part(f, a, first, rows);
        status = prompt ? step_run_prompt(f, &part)
                        : step_run_stages(f, config, page_size, &part);
        if (!status) status = step_results(f, config, &part);
    }
    return status;
}

/* Items of attention in one layer of the flow kernel, at most: where rows select pages each is a
 * group of its own, also in layers that attend all. */
static int step_flow_items(const forward_cuda_state *f, const cairn_config *config, int page_size,
                           const forward_args *a) {
    int groups = 0, chunks = 0;
    for (int r = 0, run; r < a->rows; r += run) {
        int more;
        run = step_run_length(a, r);
        more = step_row_chunks(f, config, page_size, a->positions[r + run - 1]);
        chunks = more > chunks ? more : chunks;
        groups += config ? run : (run + f->group_rows - 1) / f->group_rows;
    }
    return groups * chunks * f->shape->kv_heads;
}

/* The flow serves few rows whose logits are all wanted, while its blocks need one round of
 * attention: with more the stage kernels, which have as many blocks as they need, are faster (8
 * rows at 6K tokens: 634 us against 589, at 2K 522 against 534). */
static bool step_suits_flow(const forward_cuda_state *f, const cairn_config *config, int page_size,
                            const forward_args *a) {
    return a->rows <= STEP_FLOW_ROWS && a->logit_count == a->rows &&
           step_flow_items(f, config, page_size, a) <= f->blocks - f->narrow;
}

static cairn_status forward_cuda(cairn_model *model, kv_cache *kv, const forward_args *args) {
    forward_cuda_state *f = (forward_cuda_state *)model->state;
    const cairn_config *config = &model->runtime->config;
    bool flow, prompt;
    cairn_status status = step_check(f, kv, args);
    if (status || !args->rows) return status;
    step_set_selection(f, &f->flow.params, config);
    step_set_selection(f, &f->stage.params, config);
    if (!step_is_sparse(f, config, kv, args)) config = NULL;
    /* a prompt's kernels round otherwise than a step's: what they serve follows from rows alone */
    flow = step_suits_flow(f, config, kv->page_size, args) &&
           step_has_flow(f, config ? STEP_K_SPARSE_FLOW : STEP_K_FLOW);
    prompt = !config && args->dense && args->logit_count <= STEP_STAGE_ROWS &&
             !(args->rows <= STEP_FLOW_ROWS && args->logit_count == args->rows) &&
             (args->rows > STEP_STAGE_ROWS || step_run_length(args, 0) == args->rows);
    if ((status = step_upload_table(f, args)) || (status = step_store_bounds(f, args)))
        return status;
    if (flow) {
        status = step_run_flow(f, config, kv->page_size, args);
        if (!status) status = step_results(f, config, args);
    } else {
        status = step_run_parts(f, config, prompt, kv->page_size, args);
    }
    if (!status) step_count_pages(f, config, kv, args);
    return status;
}

static const model_backend forward_cuda_backend = {
    forward_cuda_open, forward_cuda_close, forward_cuda, true,
    0.05f /* of a row that rides along: the flow hardly depends on it */,
    NULL /* topk, window and the like are parameters of the kernels */, true /* packed weights */,
    forward_cuda_wait, forward_cuda_estimate
};
