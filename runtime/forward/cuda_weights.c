/* forward_cuda_weights: weights on their way to the device, packed there. See cuda.c. */

/* Weights go to the device in slices: from the file into one of two pinned buffers, from there to
 * `slice`, and packed from there into their place. */
typedef struct step_packer {
    forward_cuda_state *f;
    const gguf *file;
    jit_kernel kernel;
    device_staging pinned;
    device_arena arena;
    uint8_t *slice;
    int turn; /* the pinned buffer that is filled next */
} step_packer;

/* What a row takes on its way: its blocks, and its values where the host dequantises them. */
static size_t cuda_row_bytes(const model_weight *w) {
    const size_t blocks = block_row_bytes(block_find(w->type), w->columns);
    return cuda_reads(w->type) ? blocks : blocks + (size_t)w->columns * 4;
}

/* Each slice costs the device a tenth of a millisecond besides, and each MiB of pinned memory takes half a one to get:
 * those of a large model are large, those of a small one small. */
static size_t cuda_most_slice(const model_plan *plan) {
    const uint64_t part = plan->weight_bytes / 256, least = 1 << 20, most = 16 << 20;
    return (size_t)(part < least ? least : part > most ? most : part);
}

/* What slices must hold: so much, but no more than a weight has, and 16 rows of any. */
static void cuda_measure_slice(const model_weight *w, size_t most, size_t *bytes) {
    size_t row = cuda_row_bytes(w), whole = (size_t)w->rows * row;
    size_t wanted = whole < most ? whole : most < 16 * row ? 16 * row : most;
    if (wanted > *bytes) *bytes = wanted;
}

static size_t cuda_slice_bytes(const model_plan *plan) {
    const size_t most = cuda_most_slice(plan);
    size_t bytes = 0;
    cuda_measure_slice(&plan->embed, most, &bytes);
    cuda_measure_slice(&plan->head, most, &bytes);
    for (int i = 0; i < plan->layer_count; i++)
        for (int role = 0; role < PLAN_ROLES; role++)
            if (plan->layers[i].weights[role].rows)
                cuda_measure_slice(&plan->layers[i].weights[role], most, &bytes);
    return bytes;
}

static void cuda_packer_close(step_packer *p) {
    device_staging_close(p->f->dev, &p->pinned);
    device_arena_free(&p->arena);
}

/* On failure cuda_packer_close is still owed. */
static cairn_status cuda_packer_open(step_packer *p, forward_cuda_state *f,
                                     const model_plan *plan) {
    jit_constant constant;
    const jit_request request = cuda_pack_request(f, &constant);
    size_t bytes = cuda_slice_bytes(plan);
    jit_program *program;
    cairn_status status;
    memset(p, 0, sizeof *p);
    p->f = f;
    p->arena.dev = f->dev;
    p->slice = (uint8_t *)device_take(&p->arena, bytes, "a weight on its way");
    if ((status = p->arena.status) || (status = device_staging_open(f->dev, bytes, &p->pinned)) ||
        (status = jit_get(f->dev->jit, &request, &program)))
        return status;
    return jit_function(f->dev->jit, program, "pack", 0, &p->kernel);
}

/* Rows [first, first + count) of a weight on their way into a pinned buffer, `each` at a time. */
typedef struct step_fetch {
    const gguf *file;
    const model_weight *w;
    int64_t first, count, each;
    uint8_t *pinned;
    size_t wide; /* bytes of the values, behind which the blocks are read; 0: they stay blocks */
    os_atomic lost;
} step_fetch;

/* A pool_task. */
static void cuda_fetch_part(void *context, int index) {
    step_fetch *s = (step_fetch *)context;
    const block_type *type = block_find(s->w->type);
    const size_t row = block_row_bytes(type, s->w->columns);
    const int64_t at = index * s->each, rows = s->count - at < s->each ? s->count - at : s->each;
    const size_t bytes = (size_t)rows * row;
    uint8_t *to = s->pinned + (size_t)at * (s->wide ? (size_t)s->w->columns * 4 : row);
    const uint8_t *data = gguf_fetch(s->file, s->w->at + (uint64_t)(s->first + at) * row, bytes,
                                     s->pinned + s->wide + (size_t)at * row);
    if (!data) os_atomic_store(&s->lost, 1);
    else if (s->wide) type->dequantize(data, (float *)(void *)to, rows * s->w->columns);
    else if (data != to) memcpy(to, data, bytes);
}

/* Rows [first, first + count) of a weight into a pinned buffer, as they are, or as f32: by all
 * threads, for one alone copies slower than the device takes it. */
static cairn_status cuda_fetch_slice(const step_packer *p, const model_weight *w, int64_t first,
                                     int64_t count, void *pinned, size_t *bytes) {
    enum { PART = 1 << 16 }; /* bytes for which a thread is worth waking */
    const size_t row = block_row_bytes(block_find(w->type), w->columns);
    step_fetch s = {.file = p->file, .w = w, .first = first, .count = count,
                    .each = row < PART ? PART / (int64_t)row : 1, .pinned = (uint8_t *)pinned};
    if (!cuda_reads(w->type)) s.wide = (size_t)(count * w->columns) * 4;
    os_atomic_store(&s.lost, 0);
    pool_run(p->f->dev->pool, (int)((count + s.each - 1) / s.each), cuda_fetch_part, &s);
    if (os_atomic_load(&s.lost)) return gguf_lost(p->f->dev->base, p->file);
    *bytes = s.wide ? s.wide : (size_t)count * row;
    return CAIRN_OK;
}

/* Rows [first, first + count) of a weight, whose first row is row `to_row` of what lies at `to`. */
static cairn_status cuda_pack_slice(step_packer *p, const model_weight *w, int64_t first,
                                    int64_t count, const pack_params *place) {
    device *dev = p->f->dev;
    device_dims dims = {{0, 1, 1}, 256, 0, 0, false};
    size_t bytes = 0;
    int turn = p->turn++ % DEV_STAGES;
    pack_params params = *place;
    void *pinned = p->pinned.memory[turn];
    cairn_status status = device_staging_await(dev, &p->pinned, turn);
    if (status || (status = cuda_fetch_slice(p, w, first, count, pinned, &bytes))) return status;
    params.source = p->slice;
    params.rows = (int32_t)count;
    params.first_row += (int32_t)first;
    dims.grid[0] = (unsigned)((count * (w->columns / 32) + 255) / 256);
    if ((status = device_upload(dev, p->slice, pinned, bytes)) ||
        (status = device_launch(dev, &p->kernel, &dims, &params)))
        return status;
    return device_staging_submit(dev, &p->pinned, turn);
}

/* A weight to `to`, as its rows from first_row on; half: see pack_params. */
static cairn_status cuda_pack(step_packer *p, const model_weight *w, uint8_t *to, int format,
                              int64_t first_row, int half) {
    int64_t rows = (int64_t)(p->pinned.bytes / cuda_row_bytes(w));
    pack_params place;
    cairn_status status = CAIRN_OK;
    memset(&place, 0, sizeof place);
    place.packed = to;
    place.type = cuda_reads(w->type) ? w->type : BLOCK_F32;
    place.format = format;
    place.inputs = (int32_t)w->columns;
    place.first_row = (int32_t)first_row;
    place.half = half;
    if (rows >= 16) rows = rows / 16 * 16; /* whole tiles */
    for (int64_t first = 0; first < w->rows && !status; first += rows)
        status = cuda_pack_slice(p, w, first, w->rows - first < rows ? w->rows - first : rows,
                                 &place);
    return status;
}

/* q, k and v behind each other: each has whole tiles. */
static cairn_status cuda_pack_qkv(step_packer *packer, const model_weight *w, int layer) {
    forward_cuda_state *f = packer->f;
    const int format = cuda_layer_format(f, layer, STEP_P_QKV);
    uint8_t *to = f->layers[layer].weights[STEP_P_QKV];
    cairn_status status = CAIRN_OK;
    for (int i = 0; i < 3 && !status; i++) {
        const model_weight *part = &w[i == 0 ? PLAN_Q : i == 1 ? PLAN_K : PLAN_V];
        const int own = cuda_qkv_format(format, i);
        status = cuda_pack(packer, part, to, own, 0, 0);
        to += cuda_packed_bytes(own, part->rows, part->columns);
    }
    return status;
}

/* A layer's vectors, as far as it has them. */
static cairn_status cuda_send_vectors(forward_cuda_state *f, const plan_layer *l, int i) {
    float *to = f->vectors + (size_t)i * f->vector_floats;
    cairn_status status = CAIRN_OK;
    for (size_t n = 0; n < BASE_COUNT(cuda_vectors) && !status && f->vectors; n++) {
        const model_vector *part = &l->parts[cuda_vectors[n]];
        if (part->values)
            status = device_upload(f->dev, to + f->vector_at[cuda_vectors[n]], part->values,
                                   (size_t)part->count * 4);
    }
    return status;
}

/* A layer's router as f32, row by row: the buffers hold many rows of gates, which are as long. */
static cairn_status cuda_send_router(step_packer *p, const model_weight *w, int layer) {
    forward_cuda_state *f = p->f;
    const block_type *type = block_find(w->type);
    const size_t row = block_row_bytes(type, w->columns);
    float *to = f->routers + (size_t)layer * (size_t)(w->rows * w->columns);
    cairn_status status = CAIRN_OK;
    for (int64_t r = 0; r < w->rows && !status; r++, to += w->columns) {
        const int turn = p->turn++ % DEV_STAGES;
        float *pinned = (float *)p->pinned.memory[turn];
        const uint8_t *data;
        if ((status = device_staging_await(f->dev, &p->pinned, turn))) break;
        data = gguf_fetch(p->file, w->at + (uint64_t)r * row, row, pinned + w->columns);
        if (!data) return gguf_lost(f->dev->base, p->file);
        type->dequantize(data, pinned, w->columns);
        status = device_upload(f->dev, to, pinned, (size_t)w->columns * 4);
        if (!status) status = device_staging_submit(f->dev, &p->pinned, turn);
    }
    return status;
}

/* One weight that is a product of layer i. */
static cairn_status cuda_pack_whole(step_packer *packer, const plan_layer *l, int i, plan_role role,
                                    step_product product, int half) {
    return cuda_pack(packer, &l->weights[role], packer->f->layers[i].weights[product],
                     cuda_layer_format(packer->f, i, (int)product), 0, half);
}

/* A layer's weights as they are. */
static cairn_status cuda_send_latents(step_packer *p, const plan_layer *l, int layer) {
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < BASE_COUNT(cuda_latent_roles) && !status; i++) {
        const model_weight *w = &l->weights[cuda_latent_roles[i]];
        const size_t row = cuda_latent_row_bytes(w);
        const int64_t rows = (int64_t)(p->pinned.bytes / cuda_row_bytes(w));
        uint8_t *to = cuda_latent_at(p->f, layer, cuda_latent_roles[i]);
        for (int64_t first = 0; first < w->rows && !status; first += rows) {
            const int64_t count = w->rows - first < rows ? w->rows - first : rows;
            const int turn = p->turn++ % DEV_STAGES;
            void *pinned = p->pinned.memory[turn];
            size_t bytes = 0;
            if ((status = device_staging_await(p->f->dev, &p->pinned, turn)) ||
                (status = cuda_fetch_slice(p, w, first, count, pinned, &bytes)) ||
                (status = device_upload(p->f->dev, to + (size_t)first * row, pinned, bytes)))
                break;
            status = device_staging_submit(p->f->dev, &p->pinned, turn);
        }
    }
    return status;
}

static cairn_status cuda_pack_mixer(step_packer *packer, const plan_layer *l, int i) {
    const bool conv = l->mixer == PLAN_SHORT_CONV;
    cairn_status status;
    if (l->mixer == PLAN_LATENT) return cuda_send_latents(packer, l, i);
    status = conv ? cuda_pack_whole(packer, l, i, PLAN_CONV_IN, STEP_P_CONV_IN, 0)
                  : cuda_pack_qkv(packer, l->weights, i);
    if (status) return status;
    return cuda_pack_whole(packer, l, i, conv ? PLAN_CONV_OUT : PLAN_O,
                           conv ? STEP_P_CONV_OUT : STEP_P_O, 0);
}

/* Experts lie behind each other, each in whole tiles. */
static cairn_status cuda_pack_ffn(step_packer *packer, const plan_layer *l, int i) {
    const bool experts = l->weights[PLAN_ROUTER].rows > 0;
    const step_product up = experts ? STEP_P_EXPERT_UP : STEP_P_GATE_UP;
    cairn_status status = CAIRN_OK;
    if (experts) status = cuda_send_router(packer, &l->weights[PLAN_ROUTER], i);
    if (status || (status = cuda_pack_whole(packer, l, i, PLAN_GATE, up, 1)) ||
        (status = cuda_pack_whole(packer, l, i, PLAN_UP, up, 2)))
        return status;
    return cuda_pack_whole(packer, l, i, PLAN_DOWN, experts ? STEP_P_EXPERT_DOWN : STEP_P_DOWN, 0);
}

static cairn_status cuda_pack_layer(step_packer *packer, const plan_layer *l, int i) {
    forward_cuda_state *f = packer->f;
    float *norms = f->norms + 2 * (size_t)i * (size_t)f->shape->hidden;
    size_t hidden = (size_t)f->shape->hidden * 4;
    cairn_status status;
    if ((status = cuda_pack_mixer(packer, l, i)) || (status = cuda_pack_ffn(packer, l, i)) ||
        (status = cuda_send_vectors(f, l, i)) ||
        (status = device_upload(f->dev, norms, l->parts[PLAN_MIXER_NORM].values, hidden)))
        return status;
    return device_upload(f->dev, norms + f->shape->hidden, l->parts[PLAN_FFN_NORM].values, hidden);
}

static cairn_status cuda_pack_into(step_packer *packer, const model_plan *plan) {
    forward_cuda_state *f = packer->f;
    size_t layers = (size_t)f->shape->layers, hidden = (size_t)f->shape->hidden;
    cairn_status status = cuda_pack(packer, &plan->head, f->head, f->pack_head, 0, 0);
    if (!status && f->embed != f->head)
        status = cuda_pack(packer, &plan->embed, f->embed, f->pack_embed, 0, 0);
    for (size_t i = 0; i < layers && !status; i++) {
        status = base_progress(f->dev->base, "weights", i, layers);
        if (!status) status = cuda_pack_layer(packer, &plan->layers[i], (int)i);
    }
    return status ? status : device_upload(f->dev, f->norms + 2 * layers * hidden,
                                           plan->output_norm.values, hidden * 4);
}

/* All weights; the memory of their way is given back. */
static cairn_status cuda_pack_all(forward_cuda_state *f, const cairn_model *m) {
    step_packer packer;
    cairn_status status = cuda_packer_open(&packer, f, &m->plan);
    packer.file = &m->file;
    if (!status) status = cuda_pack_into(&packer, &m->plan);
    if (!status) status = device_sync(f->dev);
    else device_wait(f->dev); /* copies may be under way */
    cuda_packer_close(&packer);
    return status;
}
