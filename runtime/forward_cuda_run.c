/* forward_cuda_run: one forward on the GPU. See forward_cuda.c. */

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
        status = dev_upload(f->dev, f->table + (size_t)r * (size_t)f->max_pages,
                            a->page_table + (int64_t)r * a->table_stride, (size_t)width * 4);
    f->table_version = a->table_version;
    f->table_known = !status;
    return status;
}

/* Rows [first, first + rows) of the forward as the input words of a lane. */
static cairn_status step_upload_rows(forward_cuda_state *f, step_lane *lane, const forward_args *a,
                                     int first, int rows) {
    int32_t *head = lane->words, *array = lane->words + STEP_HEAD;
    int n = lane->rows, groups = 0, chunks = 0, from = a->logit_first - first;
    int to = from + a->logit_count;
    for (int r = 0; r < rows; r++) {
        bool same = r > 0 && a->sequences[first + r] == a->sequences[first + r - 1];
        int32_t *last = &array[STEP_GROUP_ROWS * n + (groups ? groups - 1 : 0)];
        array[STEP_TOKEN * n + r] = a->tokens[first + r];
        array[STEP_POSITION * n + r] = a->positions[first + r];
        array[STEP_SEQUENCE * n + r] = a->sequences[first + r];
        array[STEP_FIRST * n + r] = same ? array[STEP_FIRST * n + r - 1] : r;
        array[STEP_STORED * n + r] = a->stored_pages ? a->stored_pages[a->sequences[first + r]] : 0;
        if (same && *last < f->group_rows) {
            ++*last;
        } else {
            array[STEP_GROUP_FIRST * n + groups] = r;
            array[STEP_GROUP_ROWS * n + groups++] = 1;
        }
        if (a->positions[first + r] / f->chunk + 1 > chunks)
            chunks = a->positions[first + r] / f->chunk + 1;
    }
    from = from < 0 ? 0 : from;
    to = to > rows ? rows : to;
    head[STEP_ROWS] = rows;
    head[STEP_GROUPS] = groups;
    head[STEP_CHUNKS] = chunks;
    head[STEP_EPOCH] = f->epoch;
    head[STEP_CLEAN_ROWS] = f->clean_rows;
    head[STEP_CLEAN_CHUNKS] = f->clean_chunks;
    head[STEP_LOGIT_FIRST] = from;
    head[STEP_LOGIT_COUNT] = to > from ? to - from : 0;
    {
        void *input;
        memcpy(&input, &lane->params.input, sizeof input);
        return dev_upload(f->dev, input, lane->words, (size_t)(STEP_HEAD + STEP_ARRAYS * n) * 4);
    }
}

/* ---- launches -------------------------------------------------------------------------------- */

static cairn_status step_launch(forward_cuda_state *f, const step_lane *lane, step_kernel kernel,
                                int x, int y, int threads, unsigned shared, int layer, int which) {
    dev_dims dims = {{0, 0, 1}, 0, 0, 0, true};
    step_params p = lane->params;
    dims.grid[0] = (unsigned)x;
    dims.grid[1] = (unsigned)y;
    dims.block = (unsigned)threads;
    dims.shared_bytes = shared;
    p.layer = layer;
    p.reserved = which;
    return dev_launch(f->dev, &f->kernels[kernel], &dims, &p);
}

/* The best token of each logit row, after any kind of head. */
static cairn_status step_finish(forward_cuda_state *f, int rows) {
    dev_dims dims = {{0, 1, 1}, 32, 0, 0, true};
    finish_params p;
    memset(&p, 0, sizeof p);
    p.winners = f->winners;
    p.tokens = f->sampled;
    p.blocks = f->blocks;
    dims.grid[0] = (unsigned)rows;
    return dev_launch(f->dev, &f->kernels[STEP_K_FINISH], &dims, &p);
}

static cairn_status step_enqueue_flow(forward_cuda_state *f) {
    dev_dims dims = {{0, 1, 1}, 0, 0, 0, false};
    cairn_status status;
    dims.grid[0] = (unsigned)f->blocks;
    dims.block = (unsigned)f->warps * 32;
    dims.shared_bytes = f->attend_bytes + f->product_bytes;
    status = dev_launch(f->dev, &f->kernels[STEP_K_FLOW], &dims, &f->flow.params);
    return status ? status : step_finish(f, STEP_FLOW_ROWS);
}

static cairn_status step_run_flow(forward_cuda_state *f, const forward_args *a) {
    cairn_status status = step_upload_rows(f, &f->flow, a, 0, a->rows);
    if (status) return status;
    if (!f->graph.exec) {
        if ((status = dev_graph_begin(f->dev))) return status;
        if ((status = step_enqueue_flow(f))) {
            dev_graph_abandon(f->dev);
            return status;
        }
        if ((status = dev_graph_end(f->dev, &f->graph))) return status;
    }
    status = dev_graph_launch(f->dev, &f->graph);
    if (status) return status;
    f->epoch++;
    f->clean_rows = a->rows;
    f->clean_chunks = f->flow.words[STEP_CHUNKS];
    return CAIRN_OK;
}

/* ---- page selection -------------------------------------------------------------------------- */

static bool step_selects_layer(const cairn_config *config, int layer) {
    return config->selection.layers[layer / 64] >> (layer % 64) & 1;
}

/* Whether any row attends less than everything before it. */
static bool step_is_sparse(const forward_cuda_state *f, const cairn_config *config,
                           const kv_cache *kv, const forward_args *a) {
    bool any = false;
    for (int l = 0; l < f->shape->layers && !any; l++) any = step_selects_layer(config, l);
    if (a->dense || !any) return false;
    for (int r = 0; r < a->rows; r++) {
        int window = config->selection.window;
        int before = window > 0 ? a->positions[r] - window + 1 : a->positions[r];
        if (before > 0 && before / kv->page_size > config->topk) return true;
    }
    return false;
}

static void step_set_selection(forward_cuda_state *f, const cairn_config *config) {
    step_params *p = &f->stage.params;
    p->topk = config->topk;
    p->window = config->selection.window;
    p->sinks = config->selection.sinks;
    p->mean = config->selection.source == CAIRN_SOURCE_MEAN;
    p->by_head = config->selection.strategy == CAIRN_STRATEGY_HEAD;
}

/* Bounds of the pages that were completed since the last forward. */
static cairn_status step_store_bounds(forward_cuda_state *f, const forward_args *a) {
    dev_dims dims = {{0, 0, 0}, 128, 0, 0, false};
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
            if ((status = dev_upload(f->dev, f->new_pages, f->host_pages, (size_t)count * 4)) ||
                (status = dev_launch(f->dev, &f->kernels[STEP_K_BOUNDS], &dims, &f->stage.params)))
                return status;
            count = 0;
        }
    if (!count) return CAIRN_OK;
    dims.grid[0] = (unsigned)count;
    dims.grid[1] = (unsigned)f->shape->kv_heads;
    dims.grid[2] = (unsigned)f->shape->layers;
    status = dev_upload(f->dev, f->new_pages, f->host_pages, (size_t)count * 4);
    return status ? status
                  : dev_launch(f->dev, &f->kernels[STEP_K_BOUNDS], &dims, &f->stage.params);
}

/* Chunks that a row's list of pages can fill. */
static int step_list_chunks(const forward_cuda_state *f, const cairn_config *config,
                            int page_size) {
    int64_t window = config->selection.window > 0 ? config->selection.window : 0;
    int64_t pages = (int64_t)config->topk + (config->selection.sinks + page_size - 1) / page_size +
                    window / page_size + 2;
    int64_t chunks = (pages * page_size + f->chunk - 1) / f->chunk;
    return chunks < f->chunks ? (int)chunks : f->chunks;
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
    dev_dims dims = {{0, 0, 0}, 0, 0, 0, true};
    step_params p = f->stage.params;
    cairn_status status = step_launch(f, &f->stage, STEP_K_SELECT, rows, heads, t,
                                      8 * (unsigned)f->max_pages, l, 0);
    if (status) return status;
    dims.grid[0] = (unsigned)chunks;
    dims.grid[1] = (unsigned)rows;
    dims.grid[2] = (unsigned)heads;
    dims.block = (unsigned)t;
    dims.shared_bytes = f->attend_bytes;
    p.layer = l;
    if ((status = dev_launch(f->dev, &f->kernels[STEP_K_ATTEND_PAGES], &dims, &p))) return status;
    return step_launch(f, &f->stage, STEP_K_MERGE_PAGES, (rows * f->shape->heads + 3) / 4, 1, t, 0,
                       l, 0);
}

/* All launches of a forward, its best tokens included. config: NULL for whole attention. */
static cairn_status step_enqueue_stages(forward_cuda_state *f, const cairn_config *config,
                                        int page_size, int rows, int items, int wanted) {
    const model_shape *s = f->shape;
    const step_lane *lane = &f->stage;
    int t = f->warps * 32, y = (rows + 7) / 8, tiles = s->hidden / 16;
    unsigned shared = f->product_bytes;
    cairn_status status = step_launch(f, lane, STEP_K_EMBED, tiles, y, t, 0, 0, 0);
    for (int l = 0; l < s->layers && !status; l++) {
        bool sparse = config && step_selects_layer(config, l);
        if ((status = step_launch(f, lane, STEP_K_QKV, (int)step_qkv_rows(s) / 16, y, t, shared, l,
                                  0)) ||
            (status = sparse ? step_attend_selected(f, rows, step_list_chunks(f, config, page_size),
                                                    l)
                             : step_attend_dense(f, rows, items, l)) ||
            (status = step_launch(f, lane, STEP_K_PROJECT, tiles, y, t, shared, l, 0)) ||
            (status = step_launch(f, lane, STEP_K_GATE_UP, s->ffn / 8, y, t, shared, l, 0)) ||
            (status = step_launch(f, lane, STEP_K_DOWN, tiles, y, t, shared, l, 0)))
            break;
    }
    if (status || !wanted) return status;
    status = step_launch(f, lane, STEP_K_HEAD, f->blocks, (wanted + 7) / 8, t, shared, 0, 0);
    return status ? status : step_finish(f, wanted);
}

/* A sparse step of few rows, from a graph that serves every position and page table. */
static cairn_status step_run_sparse_graph(forward_cuda_state *f, const cairn_config *config,
                                          int page_size, int rows) {
    dev_graph *graph = &f->stage_graphs[rows];
    int items = rows * f->chunks * f->shape->kv_heads;
    cairn_status status;
    if (memcmp(&f->graph_selection, &config->selection, sizeof config->selection) ||
        f->graph_topk != config->topk) {
        step_free_stage_graphs(f);
        f->graph_selection = config->selection;
        f->graph_topk = config->topk;
    }
    if (!graph->exec) {
        if ((status = dev_graph_begin(f->dev))) return status;
        if ((status = step_enqueue_stages(f, config, page_size, rows, items, rows))) {
            dev_graph_abandon(f->dev);
            return status;
        }
        if ((status = dev_graph_end(f->dev, graph))) return status;
    }
    return dev_graph_launch(f->dev, graph);
}

static cairn_status step_run_stages(forward_cuda_state *f, const cairn_config *config,
                                    int page_size, const forward_args *a) {
    const int32_t *head = f->stage.words;
    cairn_status status = step_upload_rows(f, &f->stage, a, 0, a->rows);
    if (!status && config)
        status = dev_zero(f->dev, f->seen, f->seen_bytes);
    if (!status && config)
        status = dev_zero(f->dev, f->pages_read, (size_t)f->table_rows * 4);
    if (status) return status;
    if (config && a->rows <= STEP_GRAPH_ROWS && a->logit_count == a->rows)
        return step_run_sparse_graph(f, config, page_size, a->rows);
    return step_enqueue_stages(f, config, page_size, a->rows,
                               head[STEP_GROUPS] * head[STEP_CHUNKS] * f->shape->kv_heads,
                               head[STEP_LOGIT_COUNT]);
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

static cairn_status step_run_prompt(forward_cuda_state *f, const forward_args *a, int first,
                                    int rows) {
    const step_lane *lane = &f->prompt;
    int wanted;
    cairn_status status = step_upload_rows(f, &f->prompt, a, first, rows);
    if (!status) status = step_launch(f, lane, PROMPT_K_EMBED, rows, 1, 128, 0, 0, 0);
    for (int l = 0; l < f->shape->layers && !status; l++)
        status = step_run_prompt_layer(f, rows, l);
    wanted = lane->words[STEP_LOGIT_COUNT];
    if (status || !wanted) return status;
    status = step_launch(f, lane, PROMPT_K_LAST, wanted, 1, 128, 0, 0, 0);
    if (!status)
        status = step_launch(f, lane, PROMPT_K_HEAD, f->blocks, (wanted + 7) / 8, f->warps * 32,
                             f->product_bytes, 0, 0);
    return status ? status : step_finish(f, wanted);
}

/* ---- results --------------------------------------------------------------------------------- */

static cairn_status step_fault(const forward_cuda_state *f, int32_t fault) {
    if (!fault) return CAIRN_OK;
    return base_fail(f->dev->base, CAIRN_DEVICE_ERROR,
                     "a step's blocks did not all run at once; is another program using the GPU?");
}

/* The sampled tokens, with the fault word before them in one copy. */
static cairn_status step_download_sampled(forward_cuda_state *f, const forward_args *a) {
    int32_t words[STEP_SAMPLED_AT + STEP_STAGE_ROWS];
    size_t count = (size_t)a->logit_count;
    cairn_status status = dev_download(f->dev, words, f->fault, (STEP_SAMPLED_AT + count) * 4);
    if (!status) status = step_fault(f, words[0]);
    if (!status) memcpy(a->sampled, words + STEP_SAMPLED_AT, count * 4);
    return status;
}

/* Tokens from logits: on the host, by the very code of the CPU backend. */
static cairn_status step_sample_rows(forward_cuda_state *f, const forward_args *a) {
    int vocab = f->shape->vocab;
    size_t row_bytes = (size_t)vocab * 4, scratch_bytes = sample_scratch_bytes(vocab);
    float *logits = (float *)base_new(f->dev->base, (size_t)vocab, 4);
    void *scratch = base_new(f->dev->base, 1, scratch_bytes);
    cairn_status status = logits && scratch ? CAIRN_OK
                                            : base_no_memory(f->dev->base, "sampling", row_bytes);
    for (int i = 0; i < a->logit_count && !status; i++) {
        status = dev_download(f->dev, logits, f->logits + (size_t)i * (size_t)vocab, row_bytes);
        if (!status)
            a->sampled[i] = sample_token(a->sample, logits, vocab,
                                         a->positions[a->logit_first + i] + 1, scratch);
    }
    base_delete(f->dev->base, logits, (size_t)vocab, 4);
    base_delete(f->dev->base, scratch, 1, scratch_bytes);
    return status;
}

static cairn_status step_results(forward_cuda_state *f, const forward_args *a) {
    if (!a->logit_count) return CAIRN_OK;
    if (a->logits)
        return dev_download(f->dev, a->logits, f->logits,
                            (size_t)a->logit_count * (size_t)f->shape->vocab * 4);
    if (!a->sample) return CAIRN_OK;
    if (a->sample->temperature > 0.0f) return step_sample_rows(f, a);
    return step_download_sampled(f, a);
}

/* Distinct pages: counted by the selection, all up to the last row where there was none. */
static cairn_status step_count_pages(const forward_cuda_state *f, const cairn_config *config,
                                     const kv_cache *kv, const forward_args *a) {
    int whole = f->shape->layers;
    int32_t count = 0;
    cairn_status status = CAIRN_OK;
    if (!a->pages_read) return CAIRN_OK;
    for (int l = 0; l < f->shape->layers && config; l++) whole -= step_selects_layer(config, l);
    for (int r = 0; r < a->rows && !status; r++) {
        int s = a->sequences[r];
        if (r + 1 < a->rows && a->sequences[r + 1] == s) continue;
        if (config) status = dev_download(f->dev, &count, f->pages_read + s, sizeof count);
        a->pages_read[s] += count + (int64_t)(a->positions[r] / kv->page_size + 1) * whole *
                                        f->shape->kv_heads;
    }
    return status;
}

/* ---- the forward ----------------------------------------------------------------------------- */

/* Rows of one sequence from r on. */
static int step_run_length(const forward_args *a, int r) {
    int end = r + 1;
    while (end < a->rows && a->sequences[end] == a->sequences[r]) end++;
    return end - r;
}

/* A prompt's rows, sequence by sequence. */
static cairn_status step_run_prompts(forward_cuda_state *f, const forward_args *a) {
    cairn_status status = CAIRN_OK;
    for (int r = 0, rows; r < a->rows && !status; r += rows) {
        rows = step_run_length(a, r);
        status = step_run_prompt(f, a, r, rows);
    }
    return status;
}

static cairn_status step_refuse_rows(const forward_cuda_state *f, const forward_args *a) {
    return base_fail(f->dev->base, CAIRN_UNSUPPORTED,
                     "%d rows with page selection or of several sequences; up to %d", a->rows,
                     STEP_STAGE_ROWS);
}

static cairn_status forward_cuda(cairn_model *model, kv_cache *kv, const forward_args *args) {
    forward_cuda_state *f = (forward_cuda_state *)model->state;
    const cairn_config *config = &model->runtime->config;
    bool flow, prompt;
    cairn_status status = step_check(f, kv, args);
    if (status || !args->rows) return status;
    step_set_selection(f, config);
    if (!step_is_sparse(f, config, kv, args)) config = NULL;
    /* the flow hands out every row's logits; a prompt's kernels round otherwise than a step's */
    flow = !config && args->rows <= STEP_FLOW_ROWS && args->logit_count == args->rows;
    prompt = !config && !flow && args->dense && args->logit_count <= STEP_STAGE_ROWS &&
             (args->rows > STEP_STAGE_ROWS || step_run_length(args, 0) == args->rows);
    if (!flow && !prompt && args->rows > STEP_STAGE_ROWS) return step_refuse_rows(f, args);
    if ((status = step_upload_table(f, args)) || (status = step_store_bounds(f, args)) ||
        (status = flow ? step_run_flow(f, args)
                       : prompt ? step_run_prompts(f, args)
                                : step_run_stages(f, config, kv->page_size, args)) ||
        (status = step_results(f, args)))
        return status;
    return step_count_pages(f, config, kv, args);
}

static const model_backend forward_cuda_backend = {
    forward_cuda_open, forward_cuda_close, forward_cuda, true,
    0.05f /* of a row that rides along: the flow hardly depends on it */,
    NULL /* topk, window and the like are parameters of the kernels */, true /* packed weights */
};
