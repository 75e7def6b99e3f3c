/* forward_cuda_open: a model on the GPU from open to close: what its memory holds at first, kernels, and
 * what a config asks for anew. See cuda.c. */

/* ---- contents -------------------------------------------------------------------------------- */

enum {
    ROPE_PAIRS = 8,        /* that a thread turns side by side: a cache line of the table */
    ROPE_POSITIONS = 4096, /* that are filled at a time, so that the host's memory for them is small */
    ROPE_TASKS = LATENT_KEYS / 2 / ROPE_PAIRS /* of the widest heads */
};

/* Eight pairs of the next position: their cos, and their sin. */
typedef struct rope_turn { double c[ROPE_PAIRS], s[ROPE_PAIRS]; } rope_turn;

/* table: [count, pairs, 2]. */
typedef struct rope_fill {
    const plan_rope *rope;
    float *table;
    int pairs, count;
    rope_turn turn[ROPE_TASKS];
} rope_fill;

/* A pool_task. magnitude * (cos, sin) of position * frequency[j] for eight pairs j, each position turned on from the
 * one before in double: the error stays near 1e-12. Pairs behind the rope's stay. */
static void cuda_fill_pairs(void *context, int index) {
    rope_fill *fill = (rope_fill *)context;
    const int first = index * ROPE_PAIRS, left = fill->pairs - first;
    double dc[ROPE_PAIRS], ds[ROPE_PAIRS], size[ROPE_PAIRS];
    rope_turn now = fill->turn[index];
    for (int j = 0; j < ROPE_PAIRS; j++) {
        const bool turns = first + j < fill->rope->dims / 2;
        const double turn = turns ? fill->rope->frequency[first + j] : 0.0;
        size[j] = turns ? (double)fill->rope->magnitude : 1.0;
        dc[j] = cos(turn), ds[j] = sin(turn);
    }
    for (int i = 0; i < fill->count; i++) {
        float *at = fill->table + ((size_t)i * (size_t)fill->pairs + (size_t)first) * 2;
        for (int j = 0; j < ROPE_PAIRS && j < left; j++)
            at[2 * j] = (float)(now.c[j] * size[j]), at[2 * j + 1] = (float)(now.s[j] * size[j]);
        for (int j = 0; j < ROPE_PAIRS; j++) {
            const double next = now.c[j] * dc[j] - now.s[j] * ds[j];
            now.s[j] = now.s[j] * dc[j] + now.c[j] * ds[j];
            now.c[j] = next;
        }
    }
    fill->turn[index] = now;
}

/* Part by part, each sent before the next is made. */
static cairn_status cuda_fill_rope(forward_cuda_state *f, int which) {
    const int pairs = f->shape->head_dim / 2, positions = f->chunks * f->chunk;
    const int tasks = (pairs + ROPE_PAIRS - 1) / ROPE_PAIRS;
    const size_t width = 2 * (size_t)pairs;
    float *const to = f->rope + (size_t)which * cuda_rope_floats(f);
    rope_fill fill = {.rope = &f->plan->ropes[which], .pairs = pairs};
    cairn_status status = CAIRN_OK;
    fill.table = (float *)base_new(f->dev->base, ROPE_POSITIONS * width, 4);
    if (!fill.table) return base_no_memory(f->dev->base, "the rotations", ROPE_POSITIONS * width * 4);
    for (int i = 0; i < tasks * ROPE_PAIRS; i++) fill.turn[i / ROPE_PAIRS].c[i % ROPE_PAIRS] = 1.0;
    for (int at = 0; at < positions && !status; at += fill.count) {
        fill.count = positions - at < ROPE_POSITIONS ? positions - at : ROPE_POSITIONS;
        pool_run(f->dev->pool, tasks, cuda_fill_pairs, &fill);
        status = device_upload(f->dev, to + (size_t)at * width, fill.table, (size_t)fill.count * width * 4);
    }
    if (!status) status = device_sync(f->dev);
    base_delete(f->dev->base, fill.table, ROPE_POSITIONS * width, 4);
    return status;
}

static cairn_status cuda_fill_ropes(forward_cuda_state *f) {
    cairn_status status = CAIRN_OK;
    for (int i = 0; i < f->ropes && !status; i++) status = cuda_fill_rope(f, i);
    return status;
}

/* A power of two that brings the first layer's typical x weight to 2^-7: the residual stream may
 * grow two million times before f16 overflows, and what f16 loses below is far under the sum's
 * error. Rows that are not numbers are left out: tokens beside a damaged one are computed as ever. */
static cairn_status cuda_input_scale(const cairn_model *m, float *scale) {
    const model_weight *embed = &m->plan.embed;
    const float *norm = m->plan.layers[0].parts[PLAN_MIXER_NORM].values;
    const block_type *type = block_find(embed->type);
    const int n = m->shape.hidden, some = type->values > 32 ? type->values : 32;
    const size_t bytes = block_row_bytes(type, n);
    float values[STEP_MOST_VALUES];
    float buffer[STEP_MOST_VALUES]; /* no block type is wider */
    double sum = 0.0;
    int64_t looked = 0, count = 0;
    int exponent;
    for (int64_t r = 0; r < embed->rows; r += 1 + embed->rows / 64, looked += some) {
        int64_t at = looked % n / some * some;
        double squares = 0.0;
        const uint8_t *data = gguf_fetch(&m->file, embed->at + (uint64_t)r * bytes +
                                                       block_row_bytes(type, at),
                                         block_row_bytes(type, some), buffer);
        if (!data) return gguf_lost(&m->runtime->base, &m->file);
        type->dequantize(data, values, some);
        for (int i = 0; i < some; i++) {
            double x = (double)values[i] * (double)norm[at + i];
            squares += x * x;
        }
        if (isfinite(squares)) sum += squares, count += some;
    }
    sum = sqrt(sum / (double)count);
    if (m->plan.embed_scale > 0.0f) sum *= (double)m->plan.embed_scale;
    *scale = 1.0f;
    if (!(sum > 1e-20 && sum < 1e20)) return CAIRN_OK;
    frexp(sum, &exponent);
    *scale = ldexpf(1.0f, -7 - exponent);
    return CAIRN_OK;
}

/* What a layer with attention has of the cache, to its place among all layers; others have none. */
static cairn_status cuda_send_addresses(forward_cuda_state *f, void *const *from, void **to) {
    void *all[CAIRN_MAX_LAYERS] = {NULL};
    cairn_status status;
    for (int i = 0; i < f->shape->layers; i++)
        if (f->plan->layers[i].mixer == PLAN_ATTENTION) all[i] = from[f->plan->layers[i].state];
    status = device_upload(f->dev, to, all, (size_t)f->shape->layers * sizeof *all);
    return status ? status : device_sync(f->dev);
}

/* What the kernels of every lane are given; input, exchange and capacity are the lane's own. */
static void cuda_set_params(forward_cuda_state *f, float input_scale) {
    uint8_t *const *first = f->layers[0].weights;
    const step_params all = {
        .qkv = first[STEP_P_QKV], .o = first[STEP_P_O], .gate_up = first[STEP_P_GATE_UP],
        .down = first[STEP_P_DOWN], .head = f->head, .embed = f->embed, .norms = f->norms,
        .rope = f->rope, .page_table = f->table,
        .kv = (uint16_t *const *)(void *)f->kv, .bounds = (uint16_t *const *)(void *)f->bounds,
        .logits = f->logits, .winners = f->winners, .fault = f->fault,
        .table_stride = f->max_pages, .list_stride = f->max_pages,
        .norm_eps = f->shape->norm_eps, .input_scale = input_scale,
        .embed_scale = f->plan->embed_scale, .rings = (float *const *)(void *)f->rings,
        .score_scale = 1.4426950408889634f * f->plan->attention_scale,
        .lists = f->lists, .list_counts = f->list_counts, .arrived = f->arrived, .seen = f->seen,
        .seen_words = (f->max_pages + 31) / 32, .pages_read = f->pages_read,
        .row_pages = f->row_pages, .new_pages = f->new_pages, .sequences = f->table_rows,
        .trees = f->trees, .tree_words = f->tree_words, .relay = f->relay, .mergers = f->mergers};
    step_params *const lanes[] = {&f->flow.params, &f->stage.params, &f->prompt.params};
    for (size_t i = 0; i < BASE_COUNT(lanes); i++) {
        const step_params own = *lanes[i];
        *lanes[i] = all;
        lanes[i]->input = own.input, lanes[i]->exchange = own.exchange;
        lanes[i]->capacity = own.capacity;
        lanes[i]->expert_rows = lanes[i] == &f->prompt.params ? 64 : 8;
    }
}

static void forward_cuda_leave_adapter(cairn_model *model, cairn_adapter *adapter); /* cuda_adapters.c */

/* ---- open and close -------------------------------------------------------------------------- */

/* No forward is in flight any more: of one that was given up the device is done with what it was told. */
static void cuda_clear_flight(forward_cuda_state *f) {
    const CUstream stream = f->dev->stream;
    const CUevent start = f->flight.start, mark = f->flight.mark;
    if (f->flight.batch) {
        f->dev->stream = f->flight.stream;
        device_wait(f->dev);
        f->dev->stream = stream;
    }
    memset(&f->flight, 0, sizeof f->flight);
    f->flight.start = start;
    f->flight.mark = mark;
    f->flight.kind = FORWARD_STEP;
}

static void forward_cuda_close(cairn_model *model) {
    forward_cuda_state *f = (forward_cuda_state *)model->state;
    base *b = &model->runtime->base;
    if (!f) return;
    jit_give_up(f->dev->jit);
    device_sync(f->dev);
    cuda_clear_flight(f);
    f->dev->ahead -= f->next.there;
    device_mark_free(f->dev, f->flight.start);
    device_mark_free(f->dev, f->flight.mark);
    device_host_free(f->dev, f->host_told, cuda_result_words(f) * 8);
    for (int i = 0; i < 2; i++) device_mark_free(f->dev, f->come[i]), device_mark_free(f->dev, f->next.ends[i]);
    device_graph_free(f->dev, &f->graph);
    for (int i = 0; i < STEP_FLOW_ROWS; i++) device_graph_free(f->dev, &f->draft_flow_graphs[i]);
    cuda_free_sparse_graphs(f);
    cuda_free_graphs(f, f->dense_graphs);
    for (int i = 0; i <= STEP_MOST_DRAFTS; i++) device_graph_free(f->dev, &f->draft_graphs[i]);
    for (cairn_adapter *a = model->adapters; a; a = a->next) forward_cuda_leave_adapter(model, a);
    device_arena_free(&f->adapter_arena);
    device_arena_free(&f->forms.arena);
    device_arena_free(&f->draft_arena);
    device_arena_free(&f->arena);
    base_delete(b, f->host, f->host_bytes, 1);
    base_delete(b, f, 1, sizeof *f);
    model->state = NULL;
}

/* A state that knows its shapes and owns nothing yet. */
static cairn_status cuda_new(const cairn_model *model, int max_rows, forward_cuda_state **out) {
    base *b = &model->runtime->base;
    forward_cuda_state *f;
    cairn_status status = forward_cuda_check_model(model);
    *out = NULL;
    if (status) return status;
    f = (forward_cuda_state *)base_new(b, 1, sizeof *f);
    if (!f) return base_no_memory(b, "the GPU forward", sizeof *f);
    f->runtime = model->runtime;
    f->dev = f->arena.dev = f->adapter_arena.dev = &model->runtime->device;
    f->draft_arena.dev = f->forms.arena.dev = f->dev;
    f->shape = &model->shape;
    f->plan = &model->plan;
    f->held = &model->kv;
    f->windows = model->windows;
    if (model->shape.latent.q_rank) cuda_choose_latents(f, model, max_rows);
    cuda_choose_shape(f, model, max_rows);
    return *out = f, CAIRN_OK;
}

/* What forward_cuda_open would take: the same steps, measured. */
static cairn_status forward_cuda_estimate(cairn_model *model, int max_rows, model_memory *out) {
    forward_cuda_state *f;
    forward_carver host = {NULL, 0};
    cairn_status status = cuda_new(model, max_rows, &f);
    if (status) return status;
    f->arena.measures = true;
    cuda_take_all(f, &f->arena, &model->plan);
    cuda_carve_host(f, &host);
    out->weights = f->weights_bytes;
    out->scratch = f->arena.bytes - f->weights_bytes +
                   cuda_measure_forms(f, &model->runtime->config, false);
    out->opening = cuda_slice_bytes(&model->plan);
    out->host = host.used + sizeof *f;
    base_delete(&model->runtime->base, f, 1, sizeof *f);
    return CAIRN_OK;
}

/* Kernels, which are compiled or loaded from here on. */
static cairn_status forward_cuda_begin_open(cairn_model *model, int max_rows) {
    forward_cuda_state *f;
    cairn_status status = cuda_new(model, max_rows, &f);
    if (status) return status;
    model->state = f;
    return cuda_begin_build(f);
}

/* max_rows: of any forward to come. Weights are packed while other kernels are compiled or loaded.
 * [blocks] */
static cairn_status forward_cuda_open(cairn_model *model, int max_rows) {
    float scale;
    cairn_status status = model->state ? CAIRN_OK : forward_cuda_begin_open(model, max_rows);
    forward_cuda_state *f = (forward_cuda_state *)model->state;
    if (status || (status = cuda_open_memory(f, &model->plan)) ||
        (f->latents.heads && (status = cuda_begin_latents(f))) ||
        (status = cuda_fill_ropes(f)) || (status = cuda_pack_all(f, model)) ||
        (status = cuda_input_scale(model, &scale)) ||
        (status = cuda_send_addresses(f, model->kv.pages, f->kv)) ||
        (f->cache_kind == ATTEND_CACHE_E4M3 &&
         (status = cuda_send_addresses(f, model->kv.pages + model->kv.layers,
                                       f->kv + f->shape->layers))) ||
        (status = cuda_send_addresses(f, model->kv.bounds, f->bounds)) ||
        (status = device_sync(f->dev)) || (status = cuda_end_build(f))) {
        forward_cuda_close(model);
        return status;
    }
    cuda_set_params(f, scale);
    if ((status = cuda_get_forms(model, NULL))) forward_cuda_close(model);
    else if (model->runtime->config.draft_length) cuda_has_groups(f); /* drafts will want them */
    return status;
}
