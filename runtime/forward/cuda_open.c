/* forward_cuda_open: the buffers, the packed weights and their lifetime. See cuda.c. */

/* ---- memory ---------------------------------------------------------------------------------- */

/* Everything that a model takes on the device stands in this section, once: `a` measures it for an
 * estimate, or allocates it. */

/* One product's weights of all layers, behind each other. */
static void cuda_take_product(forward_cuda_state *f, device_arena *a, int product) {
    uint64_t bytes = 0;
    uint8_t *at;
    for (int i = 0; i < f->shape->layers; i++)
        if (cuda_has_product(&f->plan->layers[i], product))
            bytes += cuda_product_bytes(f->shape, product, cuda_layer_format(f, i, product));
    if (!bytes) return;
    at = (uint8_t *)device_take(a, bytes, "the packed weights");
    for (int i = 0; i < f->shape->layers && at; i++) {
        if (!cuda_has_product(&f->plan->layers[i], product)) continue;
        f->layers[i].weights[product] = at;
        at += cuda_product_bytes(f->shape, product, cuda_layer_format(f, i, product));
    }
}

static void cuda_take_weights(forward_cuda_state *f, device_arena *a, bool tied) {
    static const char what[] = "the packed weights";
    const model_shape *s = f->shape;
    uint64_t n = (uint64_t)s->layers;
    for (int product = 0; product < STEP_PRODUCTS; product++) cuda_take_product(f, a, product);
    f->head = (uint8_t *)device_take(a, cuda_packed_bytes(f->pack_head, s->vocab, s->hidden), what);
    f->embed = tied ? f->head
                    : (uint8_t *)device_take(
                          a, cuda_packed_bytes(f->pack_embed, s->vocab, s->hidden), what);
    f->norms = (float *)device_take(a, (2 * n + 1) * (uint64_t)s->hidden * 4, "the norms");
    if (f->vector_floats)
        f->vectors = (float *)device_take(a, n * f->vector_floats * 4, "the layers' vectors");
    if (s->experts)
        f->routers = (float *)device_take(
            a, n * (uint64_t)s->experts * (uint64_t)s->hidden * 4, "the routers of experts");
    if (f->latents.heads) cuda_take_latent_weights(f, a);
    f->weights_bytes = a->bytes;
}

/* Input words and exchange of one lane of `rows` rows. */
static void cuda_take_lane(forward_cuda_state *f, device_arena *a, step_lane *lane, int rows,
                           int regions, int parts) {
    uint64_t words = (uint64_t)(STEP_HEAD + STEP_ARRAYS * rows);
    lane->rows = rows;
    lane->exchange_bytes = cuda_exchange_bytes(f, rows, regions, parts);
    lane->params.capacity = rows;
    lane->params.input = (const int32_t *)device_take(a, words * 4, "a step's input");
    lane->params.exchange = (uint8_t *)device_take(a, lane->exchange_bytes,
                                                   "what the stages of a step exchange");
}

/* The words that a host reads after a step: fault, sampled tokens, pages read of each sequence, what
 * draft_pick chose, and drafts. */
static size_t cuda_drafted_at(const forward_cuda_state *f) {
    return (size_t)(STEP_SAMPLED_AT + STEP_STAGE_ROWS + f->table_rows + 2);
}
static size_t cuda_result_words(const forward_cuda_state *f) {
    return cuda_drafted_at(f) + STEP_MOST_DRAFTS;
}

/* Blocks of a kernel that count each other. */
static size_t cuda_counters(const forward_cuda_state *f) {
    return STEP_STAGE_ROWS * (size_t)f->shape->kv_heads * (size_t)cuda_shares(f->shape);
}

/* What page selection keeps. */
static void cuda_take_lists(forward_cuda_state *f, device_arena *a) {
    uint64_t pages = (uint64_t)f->max_pages, heads = (uint64_t)f->shape->kv_heads;
    uint64_t layers = (uint64_t)f->shape->layers, words = (pages + 31) / 32;
    f->seen_bytes = (size_t)(layers * (uint64_t)f->table_rows * heads * words * 4);
    f->lists = (int32_t *)device_take(a, STEP_STAGE_ROWS * heads * pages * 4,
                                      "the lists of pages");
    f->list_counts = (int32_t *)device_take(a, STEP_STAGE_ROWS * heads * 4, "the lists' lengths");
    f->arrived = (uint32_t *)device_take(a, cuda_counters(f) * 4, "the blocks' counters");
    f->seen = (uint32_t *)device_take(a, f->seen_bytes, "the pages read");
    f->row_pages = (uint32_t *)device_take(a, layers * STEP_FLOW_ROWS * heads * words * 4,
                                           "the pages of rows");
    f->new_pages = (int32_t *)device_take(a, pages * 4, "new pages");
}

static void cuda_take_buffers(forward_cuda_state *f, device_arena *a) {
    const model_shape *s = f->shape;
    uint64_t layers = (uint64_t)s->layers;
    f->rope = (float *)device_take(a, (uint64_t)f->ropes * cuda_rope_floats(f) * 4,
                                   "the rotations");
    f->logits = (float *)device_take(a, (uint64_t)STEP_STAGE_ROWS * (uint64_t)s->vocab * 4,
                                     "the logits");
    f->kv = (void **)device_take(a, layers * sizeof(void *), "the cache's addresses");
    f->bounds = (void **)device_take(a, layers * sizeof(void *), "the bounds' addresses");
    if (s->conv_layers)
        f->rings = (float **)device_take(a, (uint64_t)f->table_rows * sizeof(float *),
                                         "the rings' addresses");
    cuda_take_lists(f, a);
    f->table = (int32_t *)device_take(
        a, (uint64_t)f->table_words * (uint64_t)(1 + f->groups->count) * 4, "the page table");
    f->fault = (int32_t *)device_take(a, cuda_result_words(f) * 4, "the sampled tokens");
    f->rules = device_take(a, STEP_STAGE_ROWS * sizeof(sample_rule), "sampling");
    f->masks = (uint32_t *)device_take(a, STEP_STAGE_ROWS * 4 * sample_mask_words(s->vocab),
                                       "the masks of tokens");
    f->trees = (uint32_t *)device_take(a, STEP_STAGE_ROWS * (uint64_t)f->tree_words * 4, "masks of rows");
    f->winners = (uint64_t *)device_take(a, (uint64_t)STEP_STAGE_ROWS * (uint64_t)f->blocks * 8,
                                         "the winners");
    if (f->flow_chunks)
        cuda_take_lane(f, a, &f->flow, STEP_FLOW_ROWS, cuda_flow_regions(f),
                       f->flow_chunks * STEP_FLOW_ROWS);
    cuda_take_lane(f, a, &f->stage, STEP_STAGE_ROWS, 1, f->stage_parts);
    cuda_take_lane(f, a, &f->prompt, f->max_rows, 1, 0);
    if (f->latents.heads) cuda_take_latents(f, a);
}

static void cuda_take_all(forward_cuda_state *f, device_arena *a, const model_plan *plan) {
    cuda_take_weights(f, a, plan->head.at == plan->embed.at);
    cuda_take_buffers(f, a);
}

/* What is being served: see forward_cuda_state. */
static void cuda_carve_batch(forward_cuda_state *f, forward_carver *c) {
    int sequences = f->table_rows, rows = f->max_rows;
    void *space = forward_carve(c, 1, sample_space_bytes(f->shape->vocab));
    sample_rule *rules = (sample_rule *)forward_carve(c, STEP_STAGE_ROWS, sizeof *rules);
    f->slot_rows = (int32_t *)forward_carve(c, sequences, sizeof(int32_t));
    f->slot_rings = (float **)forward_carve(c, sequences, sizeof(float *));
    f->slot_used = (uint64_t *)forward_carve(c, sequences, sizeof(uint64_t));
    f->slots = (int32_t *)forward_carve(c, sequences, sizeof(int32_t));
    f->done = (int32_t *)forward_carve(c, sequences, sizeof(int32_t));
    f->stepped = (int32_t *)forward_carve(c, sequences, sizeof(int32_t));
    f->part_rows = (int32_t *)forward_carve(c, rows, sizeof(int32_t));
    f->part_sequences = (int32_t *)forward_carve(c, rows, sizeof(int32_t));
    f->ask_index = (int32_t *)forward_carve(c, rows, sizeof(int32_t));
    f->logit_index = (int32_t *)forward_carve(c, rows, sizeof(int32_t));
    f->hidden_index = (int32_t *)forward_carve(c, rows, sizeof(int32_t));
    f->host_trees = (uint8_t *)forward_carve(c, STEP_STAGE_ROWS * (int64_t)f->tree_words, 4);
    if (!space) return;
    sample_space_place(space, f->shape->vocab, &f->space);
    sample_space_add_rules(&f->space, STEP_STAGE_ROWS, rules, f->rules, f->masks);
    for (int i = 0; i < sequences; i++) f->slot_rows[i] = -1, f->slot_rings[i] = NULL;
}

/* Host memory: parts of one block, or only their sizes. */
static void cuda_carve_host(forward_cuda_state *f, forward_carver *c) {
    step_lane *lanes[3];
    lanes[0] = &f->flow, lanes[1] = &f->stage, lanes[2] = &f->prompt;
    for (int i = 0; i < 3; i++)
        lanes[i]->words = (int32_t *)forward_carve(c, STEP_HEAD + STEP_ARRAYS * lanes[i]->rows,
                                                   sizeof(int32_t));
    f->host_pages = (int32_t *)forward_carve(c, f->max_pages, sizeof(int32_t));
    f->host_words = (int32_t *)forward_carve(c, (int64_t)cuda_result_words(f), sizeof(int32_t));
    cuda_carve_batch(f, c);
}

static cairn_status cuda_open_host(forward_cuda_state *f) {
    base *b = f->dev->base;
    forward_carver carve = {NULL, 0};
    cuda_carve_host(f, &carve);
    f->host_bytes = carve.used;
    f->host = base_new(b, f->host_bytes, 1);
    if (!f->host) return base_no_memory(b, "the host's side of the GPU forward", f->host_bytes);
    carve.memory = (char *)f->host;
    carve.used = 0;
    cuda_carve_host(f, &carve);
    return CAIRN_OK;
}

/* All memory, and what must stand in it before the first step. */
static cairn_status cuda_open_memory(forward_cuda_state *f, const model_plan *plan) {
    cairn_status status;
    cuda_take_all(f, &f->arena, plan);
    if ((status = f->arena.status) || (status = cuda_open_host(f))) return status;
    f->sampled = f->fault + STEP_SAMPLED_AT;
    f->pages_read = f->sampled + STEP_STAGE_ROWS;
    f->drafted = f->fault + cuda_drafted_at(f);
    if (f->flow_chunks) /* where blocks wait for words, there are none */
        DEV_TRY(f->dev, cuMemsetD8Async(device_address(f->flow.params.exchange), 0xff,
                                        (size_t)f->flow.exchange_bytes, f->dev->stream));
    return CAIRN_OK; /* all else begins as zeros */
}

/* ---- packing --------------------------------------------------------------------------------- */

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

/* What slices must hold: STEP_SLICE_MIB, but no more than a weight has, and 16 rows of any. */
static void cuda_measure_slice(const model_weight *w, size_t *bytes) {
    size_t row = cuda_row_bytes(w), whole = (size_t)w->rows * row;
    size_t most = (size_t)STEP_SLICE_MIB << 20;
    size_t wanted = whole < most ? whole : most < 16 * row ? 16 * row : most;
    if (wanted > *bytes) *bytes = wanted;
}

static size_t cuda_slice_bytes(const model_plan *plan) {
    size_t bytes = 0;
    cuda_measure_slice(&plan->embed, &bytes);
    cuda_measure_slice(&plan->head, &bytes);
    for (int i = 0; i < plan->layer_count; i++)
        for (int role = 0; role < PLAN_ROLES; role++)
            if (plan->layers[i].weights[role].rows)
                cuda_measure_slice(&plan->layers[i].weights[role], &bytes);
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

/* Rows [first, first + count) of a weight into a pinned buffer: as they are, or as f32. */
static cairn_status cuda_fetch_slice(const step_packer *p, const model_weight *w, int64_t first,
                                     int64_t count, void *pinned, size_t *bytes) {
    const block_type *type = block_find(w->type);
    const size_t row = block_row_bytes(type, w->columns), blocks = (size_t)count * row;
    const size_t wide = cuda_reads(w->type) ? 0 : (size_t)(count * w->columns) * 4;
    const uint8_t *data = gguf_fetch(p->file, w->at + (uint64_t)first * row, blocks,
                                     (char *)pinned + wide);
    if (!data) return gguf_lost(p->f->dev->base, p->file);
    *bytes = wide ? wide : blocks;
    if (wide) type->dequantize(data, (float *)pinned, count * w->columns);
    else if (data != pinned) memcpy(pinned, data, blocks);
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
    for (size_t i = 0; i < layers && !status; i++)
        status = cuda_pack_layer(packer, &plan->layers[i], (int)i);
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

/* ---- contents -------------------------------------------------------------------------------- */

/* magnitude * (cos, sin) of position * frequency[j], each position turned on from the one before in
 * double: the error stays near 1e-12. Pairs behind the rope's stay. */
static cairn_status cuda_fill_rope(forward_cuda_state *f, int which) {
    const plan_rope *rope = &f->plan->ropes[which];
    int pairs = f->shape->head_dim / 2, positions = f->chunks * f->chunk;
    size_t count = (size_t)positions * (size_t)pairs * 2;
    float *table = (float *)base_new(f->dev->base, count, sizeof *table);
    cairn_status status;
    if (!table) return base_no_memory(f->dev->base, "the rotations", count * sizeof *table);
    for (int j = 0; j < pairs; j++) {
        const bool turns = j < rope->dims / 2;
        const double turn = turns ? rope->frequency[j] : 0.0;
        const double size = turns ? (double)rope->magnitude : 1.0;
        double dc = cos(turn), ds = sin(turn), c = 1.0, s = 0.0;
        for (int i = 0; i < positions; i++) {
            double next = c * dc - s * ds;
            float *at = table + ((size_t)i * (size_t)pairs + (size_t)j) * 2;
            at[0] = (float)(c * size);
            at[1] = (float)(s * size);
            s = s * dc + c * ds;
            c = next;
        }
    }
    status = device_upload(f->dev, f->rope + (size_t)which * count, table, count * sizeof *table);
    if (!status) status = device_sync(f->dev);
    base_delete(f->dev->base, table, count, sizeof *table);
    return status;
}

static cairn_status cuda_fill_ropes(forward_cuda_state *f) {
    cairn_status status = CAIRN_OK;
    for (int i = 0; i < f->ropes && !status; i++) status = cuda_fill_rope(f, i);
    return status;
}

/* A power of two that brings the first layer's typical x weight to 2^-7: the residual stream may
 * grow two million times before f16 overflows, and what f16 loses below is far under the sum's
 * error. */
static cairn_status cuda_input_scale(const cairn_model *m, float *scale) {
    const model_weight *embed = &m->plan.embed;
    const float *norm = m->plan.layers[0].parts[PLAN_MIXER_NORM].values;
    const block_type *type = block_find(embed->type);
    const int n = m->shape.hidden, some = type->values > 32 ? type->values : 32;
    const size_t bytes = block_row_bytes(type, n);
    float values[STEP_MOST_VALUES];
    float buffer[STEP_MOST_VALUES]; /* no block type is wider */
    double sum = 0.0;
    int64_t count = 0;
    int exponent;
    for (int64_t r = 0; r < embed->rows; r += 1 + embed->rows / 64, count += some) {
        int64_t at = count % n / some * some;
        const uint8_t *data = gguf_fetch(&m->file, embed->at + (uint64_t)r * bytes +
                                                       block_row_bytes(type, at),
                                         block_row_bytes(type, some), buffer);
        if (!data) return gguf_lost(&m->runtime->base, &m->file);
        type->dequantize(data, values, some);
        for (int i = 0; i < some; i++) {
            double x = (double)values[i] * (double)norm[at + i];
            sum += x * x;
        }
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
        .trees = f->trees, .tree_words = f->tree_words};
    step_params *const lanes[] = {&f->flow.params, &f->stage.params, &f->prompt.params};
    for (size_t i = 0; i < BASE_COUNT(lanes); i++) {
        const step_params own = *lanes[i];
        *lanes[i] = all;
        lanes[i]->input = own.input, lanes[i]->exchange = own.exchange;
        lanes[i]->capacity = own.capacity;
        lanes[i]->expert_rows = lanes[i] == &f->prompt.params ? 64 : 8;
    }
}

static void cuda_free_sparse_graphs(forward_cuda_state *f) {
    device_graph_free(f->dev, &f->sparse_graph);
    for (int i = 0; i < STEP_GRAPHS * (STEP_STAGE_ROWS + 1); i++)
        device_graph_free(f->dev, &f->stage_graphs[i % STEP_GRAPHS][i / STEP_GRAPHS]);
}

static void forward_cuda_leave_adapter(cairn_model *model, cairn_adapter *adapter); /* cuda_adapters.c */

/* ---- open and close -------------------------------------------------------------------------- */

static void forward_cuda_close(cairn_model *model) {
    forward_cuda_state *f = (forward_cuda_state *)model->state;
    base *b = &model->runtime->base;
    if (!f) return;
    device_sync(f->dev);
    device_graph_free(f->dev, &f->graph);
    cuda_free_sparse_graphs(f);
    for (int i = 0; i < STEP_GRAPHS * (STEP_STAGE_ROWS + 1); i++)
        device_graph_free(f->dev, &f->dense_graphs[i % STEP_GRAPHS][i / STEP_GRAPHS]);
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

/* max_rows: of any forward to come. Weights are packed while other kernels are compiled or loaded.
 * [blocks] */
static cairn_status forward_cuda_open(cairn_model *model, int max_rows) {
    float scale;
    forward_cuda_state *f;
    cairn_status status = cuda_new(model, max_rows, &f);
    if (status) return status;
    model->state = f;
    if ((status = cuda_begin_build(f)) || (status = cuda_open_memory(f, &model->plan)) ||
        (f->latents.heads && (status = cuda_begin_latents(f))) ||
        (status = cuda_fill_ropes(f)) || (status = cuda_pack_all(f, model)) ||
        (status = cuda_input_scale(model, &scale)) ||
        (status = cuda_send_addresses(f, model->kv.pages, f->kv)) ||
        (status = cuda_send_addresses(f, model->kv.bounds, f->bounds)) ||
        (status = device_sync(f->dev)) || (status = cuda_end_build(f))) {
        forward_cuda_close(model);
        return status;
    }
    cuda_set_params(f, scale);
    if ((status = cuda_get_forms(model, NULL))) forward_cuda_close(model);
    return status;
}
