/* forward_cuda_open: the buffers, the packed weights and their lifetime. See cuda.c. */

/* ---- memory ---------------------------------------------------------------------------------- */

static cairn_status step_alloc(forward_cuda_state *f, size_t bytes, const char *what, void *out) {
    void *at;
    cairn_status status = device_alloc(f->dev, bytes, what, &at);
    if (status) return status;
    f->allocations[f->allocation_count].at = at;
    f->allocations[f->allocation_count++].bytes = bytes;
    memcpy(out, &at, sizeof at);
    return CAIRN_OK;
}

/* Bytes of one region of the exchange, as step/step.cuh lays it out. */
static size_t step_region_bytes(const forward_cuda_state *f, int rows, int slots, int chunks) {
    const model_shape *s = f->shape;
    size_t hidden = (size_t)s->hidden, r = (size_t)rows;
    size_t attended = (size_t)s->heads * (size_t)s->head_dim;
    size_t squares = ((size_t)slots * (hidden / 16) * 4 + 127) / 128 * 128;
    size_t bytes = 2 * ((size_t)slots * hidden * 2 + squares) +
                   r * ((size_t)step_qkv_rows(s) + (size_t)s->ffn + attended) * 2 +
                   (size_t)f->chunks * r * (size_t)s->heads * 8 +
                   (size_t)chunks * r * attended * 4;
    return (bytes + 127) / 128 * 128;
}

/* Input words and exchange of one lane; `regions` of them, filled with ones where blocks wait. */
static cairn_status step_open_lane(forward_cuda_state *f, step_lane *lane, int rows, int regions,
                                   int chunks) {
    size_t words = (size_t)(STEP_HEAD + STEP_ARRAYS * rows);
    size_t residual = (size_t)rows * (size_t)f->shape->hidden * 4;
    size_t bytes = residual + (size_t)regions * step_region_bytes(f, rows, rows, chunks);
    void *input;
    cairn_status status;
    lane->rows = rows;
    lane->words = (int32_t *)base_new(f->dev->base, words, sizeof *lane->words);
    if (!lane->words) return base_no_memory(f->dev->base, "a step's input", words * 4);
    if ((status = step_alloc(f, words * 4, "a step's input", &input)) ||
        (status = step_alloc(f, bytes, "what the stages of a step exchange",
                             &lane->params.exchange)))
        return status;
    lane->params.input = (const int32_t *)input;
    lane->params.capacity = rows;
    if (regions > 1)
        DEV_TRY(f->dev, cuMemsetD8Async(device_address(lane->params.exchange), 0xff, bytes,
                                        f->dev->stream));
    return CAIRN_OK;
}

static cairn_status step_alloc_weights(forward_cuda_state *f, bool tied) {
    const model_shape *s = f->shape;
    size_t n = (size_t)s->layers;
    int64_t attended = (int64_t)s->heads * s->head_dim;
    const struct { uint8_t **to; size_t bytes; } parts[] = {
        {&f->qkv, n * step_packed_bytes(f->pack_qkv, step_qkv_rows(s), s->hidden)},
        {&f->o, n * step_packed_bytes(f->pack_o, s->hidden, attended)},
        {&f->gate_up, n * step_packed_bytes(f->pack_gate_up, 2 * (int64_t)s->ffn, s->hidden)},
        {&f->down, n * step_packed_bytes(f->pack_down, s->hidden, s->ffn)},
        {&f->head, step_packed_bytes(f->pack_head, s->vocab, s->hidden)},
        {&f->embed, tied ? 0 : step_packed_bytes(f->pack_embed, s->vocab, s->hidden)}};
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < BASE_COUNT(parts) && !status; i++)
        status = step_alloc(f, parts[i].bytes, "the packed weights", parts[i].to);
    if (tied) f->embed = f->head;
    return status;
}

/* The words that a host reads after a step: fault, sampled tokens, pages read of each sequence. */
static size_t step_result_words(const forward_cuda_state *f) {
    return (size_t)(STEP_SAMPLED_AT + STEP_STAGE_ROWS + f->table_rows);
}

/* What page selection keeps. */
static cairn_status step_alloc_lists(forward_cuda_state *f) {
    size_t pages = (size_t)f->max_pages, heads = (size_t)f->shape->kv_heads;
    size_t sequences = (size_t)f->table_rows;
    cairn_status status;
    f->seen_bytes = (size_t)f->shape->layers * sequences * heads * ((pages + 31) / 32) * 4;
    f->host_pages = (int32_t *)base_new(f->dev->base, pages, 4);
    f->host_words = (int32_t *)base_new(f->dev->base, step_result_words(f), 4);
    if (!f->host_pages || !f->host_words)
        return base_no_memory(f->dev->base, "page ids", pages * 4);
    if ((status = step_alloc(f, STEP_STAGE_ROWS * heads * pages * 4, "the lists of pages",
                             &f->lists)) ||
        (status = step_alloc(f, STEP_STAGE_ROWS * heads * 4, "the lists' lengths",
                             &f->list_counts)) ||
        (status = step_alloc(f, f->seen_bytes, "the pages read", &f->seen)) ||
        (status = step_alloc(f, (size_t)f->shape->layers * STEP_FLOW_ROWS * heads *
                                    ((pages + 31) / 32) * 4, "the pages of rows", &f->row_pages)))
        return status;
    return step_alloc(f, pages * 4, "new pages", &f->new_pages);
}

static cairn_status step_alloc_buffers(forward_cuda_state *f) {
    const model_shape *s = f->shape;
    cairn_status status;
    if ((status = step_alloc(f, (size_t)(2 * s->layers + 1) * (size_t)s->hidden * 4, "the norms",
                             &f->norms)) ||
        (status = step_alloc(f, (size_t)f->chunks * (size_t)f->chunk * (size_t)s->head_dim * 4,
                             "the rotations", &f->rope)) ||
        (status = step_alloc(f, (size_t)STEP_STAGE_ROWS * (size_t)s->vocab * 4, "the logits",
                             &f->logits)) ||
        (status = step_alloc(f, (size_t)s->layers * sizeof(void *), "the cache's addresses",
                             &f->kv)) ||
        (status = step_alloc(f, (size_t)s->layers * sizeof(void *), "the bounds' addresses",
                             &f->bounds)) ||
        (status = step_alloc_lists(f)) ||
        (status = step_alloc(f, (size_t)f->table_rows * (size_t)f->max_pages * 4, "the page table",
                             &f->table)) ||
        (status = step_alloc(f, step_result_words(f) * 4, "the sampled tokens", &f->fault)) ||
        (status = step_alloc(f, (size_t)STEP_STAGE_ROWS * (size_t)f->blocks * 8, "the winners",
                             &f->winners)) ||
        (!f->streamed &&
         (status = step_open_lane(f, &f->flow, STEP_FLOW_ROWS, 2 * (s->layers + 1), f->chunks))) ||
        (status = step_open_lane(f, &f->stage, STEP_STAGE_ROWS, 1, f->chunks)) ||
        (status = step_open_lane(f, &f->prompt, f->max_rows, 1, 0)))
        return status;
    f->sampled = f->fault + STEP_SAMPLED_AT;
    f->pages_read = f->sampled + STEP_STAGE_ROWS;
    return device_zero(f->dev, f->fault, STEP_SAMPLED_AT * 4);
}

/* ---- staging --------------------------------------------------------------------------------- */

static size_t step_weight_bytes(const model_weight *w) {
    return (size_t)w->rows * block_row_bytes(block_find(w->type), w->columns);
}

/* Room for the largest weight as the file holds it: each is uploaded there and packed from there,
 * one after the other on the stream. */
static cairn_status step_open_staging(forward_cuda_state *f, const model_plan *plan) {
    f->staged_bytes = step_weight_bytes(&plan->embed);
    if (step_weight_bytes(&plan->head) > f->staged_bytes)
        f->staged_bytes = step_weight_bytes(&plan->head);
    for (int i = 0; i < plan->layer_count; i++)
        for (int role = 0; role < PLAN_ROLES; role++) {
            const model_weight *w = &plan->layers[i].weights[role];
            if (w->data && step_weight_bytes(w) > f->staged_bytes)
                f->staged_bytes = step_weight_bytes(w);
        }
    return device_alloc(f->dev, f->staged_bytes, "a weight on its way", &f->staged);
}

static void step_close_staging(forward_cuda_state *f) {
    device_free(f->dev, f->staged, f->staged_bytes);
    f->staged = NULL;
}

/* ---- contents -------------------------------------------------------------------------------- */

static cairn_status step_pack(forward_cuda_state *f, const jit_kernel *kernel,
                              const model_weight *w, uint8_t *to, int format, int64_t first_row,
                              int half) {
    device_dims dims = {{0, 1, 1}, 256, 0, 0, false};
    pack_params p;
    cairn_status status = device_upload(f->dev, f->staged, w->data, step_weight_bytes(w));
    if (status) return status;
    memset(&p, 0, sizeof p);
    p.source = (const uint8_t *)f->staged;
    p.packed = to;
    p.type = w->type;
    p.format = format;
    p.rows = (int32_t)w->rows;
    p.inputs = (int32_t)w->columns;
    p.first_row = (int32_t)first_row;
    p.half = half;
    dims.grid[0] = (unsigned)((w->rows * (w->columns / 32) + 255) / 256);
    return device_launch(f->dev, kernel, &dims, &p);
}

static cairn_status step_pack_layer(forward_cuda_state *f, const jit_kernel *kernel,
                                    const plan_layer *l, size_t i) {
    const model_shape *s = f->shape;
    int64_t q = (int64_t)s->heads * s->head_dim, kv = (int64_t)s->kv_heads * s->head_dim;
    uint8_t *qkv = f->qkv + i * step_packed_bytes(f->pack_qkv, step_qkv_rows(s), s->hidden);
    uint8_t *both = f->gate_up + i * step_packed_bytes(f->pack_gate_up, 2 * (int64_t)s->ffn,
                                                       s->hidden);
    size_t hidden = (size_t)s->hidden * 4;
    cairn_status status;
    if ((status = step_pack(f, kernel, &l->weights[PLAN_Q], qkv, f->pack_qkv, 0, 0)) ||
        (status = step_pack(f, kernel, &l->weights[PLAN_K], qkv, f->pack_qkv, q, 0)) ||
        (status = step_pack(f, kernel, &l->weights[PLAN_V], qkv, f->pack_qkv, q + kv, 0)) ||
        (status = step_pack(f, kernel, &l->weights[PLAN_O], f->o + i * step_packed_bytes(f->pack_o, s->hidden, q),
                            f->pack_o, 0, 0)) ||
        (status = step_pack(f, kernel, &l->weights[PLAN_GATE], both, f->pack_gate_up, 0, 1)) ||
        (status = step_pack(f, kernel, &l->weights[PLAN_UP], both, f->pack_gate_up, 0, 2)) ||
        (status = step_pack(f, kernel, &l->weights[PLAN_DOWN],
                            f->down + i * step_packed_bytes(f->pack_down, s->hidden, s->ffn),
                            f->pack_down, 0, 0)) ||
        (status = device_upload(f->dev, f->norms + 2 * i * (size_t)s->hidden,
                                l->parts[PLAN_MIXER_NORM].values, hidden)))
        return status;
    return device_upload(f->dev, f->norms + (2 * i + 1) * (size_t)s->hidden,
                         l->parts[PLAN_FFN_NORM].values, hidden);
}

static cairn_status step_pack_all(forward_cuda_state *f, const cairn_model *m) {
    const jit_request request = {"dense/pack.cu", NULL, 0, false};
    jit_program *program;
    jit_kernel kernel;
    size_t layers = (size_t)f->shape->layers;
    cairn_status status;
    if ((status = jit_get(f->dev->jit, &request, &program)) ||
        (status = jit_function(f->dev->jit, program, "pack", 0, &kernel)) ||
        (status = step_pack(f, &kernel, &m->plan.head, f->head, f->pack_head, 0, 0)))
        return status;
    if (f->embed != f->head &&
        (status = step_pack(f, &kernel, &m->plan.embed, f->embed, f->pack_embed, 0, 0)))
        return status;
    for (size_t i = 0; i < layers; i++)
        if ((status = step_pack_layer(f, &kernel, &m->plan.layers[i], i))) return status;
    return device_upload(f->dev, f->norms + 2 * layers * (size_t)f->shape->hidden,
                         m->plan.output_norm.values, (size_t)f->shape->hidden * 4);
}

/* (cos, sin) of position * base^(-2j / dim), each position turned on from the one before in double:
 * the error stays near 1e-12. */
static cairn_status step_fill_rope(forward_cuda_state *f, const plan_rope *rope) {
    int pairs = f->shape->head_dim / 2, positions = f->chunks * f->chunk;
    size_t count = (size_t)positions * (size_t)pairs * 2;
    float *table = (float *)base_new(f->dev->base, count, sizeof *table);
    cairn_status status;
    if (!table) return base_no_memory(f->dev->base, "the rotations", count * sizeof *table);
    for (int j = 0; j < pairs; j++) {
        double turn = rope->frequency[j];
        double dc = cos(turn), ds = sin(turn), c = 1.0, s = 0.0;
        for (int i = 0; i < positions; i++) {
            double next = c * dc - s * ds;
            float *at = table + ((size_t)i * (size_t)pairs + (size_t)j) * 2;
            at[0] = (float)c;
            at[1] = (float)s;
            s = s * dc + c * ds;
            c = next;
        }
    }
    status = device_upload(f->dev, f->rope, table, count * sizeof *table);
    if (!status) status = device_sync(f->dev);
    base_delete(f->dev->base, table, count, sizeof *table);
    return status;
}

/* A power of two that brings the first layer's typical x weight to 2^-7: the residual stream may
 * grow two million times before f16 overflows, and what f16 loses below is far under the sum's
 * error. */
static float step_input_scale(const cairn_model *m) {
    const model_weight *embed = &m->plan.embed;
    const float *norm = m->plan.layers[0].parts[PLAN_MIXER_NORM].values;
    const block_type *type = block_find(embed->type);
    const int n = m->shape.hidden, some = type->values > 32 ? type->values : 32;
    const size_t bytes = block_row_bytes(type, n);
    float values[STEP_MOST_VALUES];
    double sum = 0.0;
    int64_t count = 0;
    int exponent;
    for (int64_t r = 0; r < embed->rows; r += 1 + embed->rows / 64, count += some) {
        int64_t at = count % n / some * some;
        type->dequantize(embed->data + (size_t)r * bytes + block_row_bytes(type, at), values, some);
        for (int i = 0; i < some; i++) {
            double x = (double)values[i] * (double)norm[at + i];
            sum += x * x;
        }
    }
    sum = sqrt(sum / (double)count);
    if (!(sum > 1e-20 && sum < 1e20)) return 1.0f;
    frexp(sum, &exponent);
    return ldexpf(1.0f, -7 - exponent);
}

static void step_set_params(forward_cuda_state *f, const cairn_model *m, step_lane *lane) {
    step_params *p = &lane->params;
    p->qkv = f->qkv;
    p->o = f->o;
    p->gate_up = f->gate_up;
    p->down = f->down;
    p->head = f->head;
    p->embed = f->embed;
    p->norms = f->norms;
    p->rope = f->rope;
    memcpy(&p->kv, &f->kv, sizeof p->kv);
    p->page_table = f->table;
    p->logits = f->logits;
    p->winners = f->winners;
    p->fault = f->fault;
    p->table_stride = f->max_pages;
    p->norm_eps = f->shape->norm_eps;
    p->input_scale = step_input_scale(m);
    memcpy(&p->bounds, &f->bounds, sizeof p->bounds);
    p->lists = f->lists;
    p->list_counts = f->list_counts;
    p->seen = f->seen;
    p->pages_read = f->pages_read;
    p->new_pages = f->new_pages;
    p->list_stride = f->max_pages;
    p->seen_words = (f->max_pages + 31) / 32;
    p->row_pages = f->row_pages;
    p->sequences = f->table_rows;
}

static void step_free_sparse_graphs(forward_cuda_state *f) {
    device_graph_free(f->dev, &f->sparse_graph);
    for (size_t i = 0; i < BASE_COUNT(f->stage_graphs); i++)
        device_graph_free(f->dev, &f->stage_graphs[i]);
}

/* ---- open and close -------------------------------------------------------------------------- */

static void forward_cuda_close(cairn_model *model) {
    forward_cuda_state *f = (forward_cuda_state *)model->state;
    base *b = &model->runtime->base;
    step_lane *lanes[3];
    if (!f) return;
    device_sync(f->dev);
    step_close_staging(f);
    device_graph_free(f->dev, &f->graph);
    step_free_sparse_graphs(f);
    for (size_t i = 0; i < BASE_COUNT(f->dense_graphs); i++)
        device_graph_free(f->dev, &f->dense_graphs[i]);
    for (int i = 0; i < f->allocation_count; i++)
        device_free(f->dev, f->allocations[i].at, f->allocations[i].bytes);
    lanes[0] = &f->flow, lanes[1] = &f->stage, lanes[2] = &f->prompt;
    for (int i = 0; i < 3; i++)
        base_delete(b, lanes[i]->words, (size_t)(STEP_HEAD + STEP_ARRAYS * lanes[i]->rows),
                    sizeof(int32_t));
    base_delete(b, f->host_pages, (size_t)f->max_pages, 4);
    base_delete(b, f->host_words, step_result_words(f), 4);
    base_delete(b, f, 1, sizeof *f);
    model->state = NULL;
}

/* max_rows: of any forward to come. [blocks] */
static cairn_status forward_cuda_open(cairn_model *model, int max_rows) {
    base *b = &model->runtime->base;
    forward_cuda_state *f;
    cairn_status status = forward_cuda_check_model(model);
    if (status) return status;
    f = (forward_cuda_state *)base_new(b, 1, sizeof *f);
    if (!f) return base_no_memory(b, "the GPU forward", sizeof *f);
    model->state = f;
    f->dev = &model->runtime->device;
    f->runtime = model->runtime;
    f->shape = &model->shape;
    step_choose_shape(f, model, max_rows);
    if ((status = step_begin_build(f)) ||
        (status = step_alloc_weights(f, model->plan.head.data == model->plan.embed.data)) ||
        (status = step_alloc_buffers(f)) || (status = step_fill_rope(f, &model->plan.ropes[0])) ||
        (status = step_end_build(f)) || (status = step_open_staging(f, &model->plan)) ||
        (status = step_pack_all(f, model)) ||
        (status = device_upload(f->dev, f->kv, model->kv.pages,
                             (size_t)f->shape->layers * sizeof(void *))) ||
        (status = device_upload(f->dev, f->bounds, model->kv.bounds,
                             (size_t)f->shape->layers * sizeof(void *))) ||
        (status = device_sync(f->dev))) {
        forward_cuda_close(model);
        return status;
    }
    step_close_staging(f);
    step_set_params(f, model, &f->flow);
    step_set_params(f, model, &f->stage);
    step_set_params(f, model, &f->prompt);
    return CAIRN_OK;
}
