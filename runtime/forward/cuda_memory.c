/* forward_cuda_memory: everything that a model takes on the device and on the host, once: `a` measures
 * it for an estimate, or allocates it. See cuda.c. */

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

/* Of step_params.relay. */
static size_t cuda_relay_bytes(const forward_cuda_state *f) {
    const model_shape *s = f->shape;
    return (size_t)(layout_most_runs(s->kv_heads) + 1) * (size_t)s->heads * (size_t)(s->head_dim + 2 * f->mergers) * 4;
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
    if (f->may_relay) f->relay = (uint32_t *)device_take(a, cuda_relay_bytes(f), "the runs of a row");
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
    f->kv = (void **)device_take(a, 2 * layers * sizeof(void *), "the cache's addresses");
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
    void *words;
    cuda_take_all(f, &f->arena, plan);
    if ((status = f->arena.status) || (status = cuda_open_host(f))) return status;
    f->sampled = f->fault + STEP_SAMPLED_AT;
    f->pages_read = f->sampled + STEP_STAGE_ROWS;
    f->drafted = f->fault + cuda_drafted_at(f);
    if ((status = device_host_alloc(f->dev, cuda_result_words(f) * 8, "a step's results", &words))) return status;
    f->host_told = (int32_t *)words;
    /* where blocks wait for words, there are none; all else begins as zeros */
    if (f->flow_chunks)
        DEV_TRY(f->dev, cuMemsetD8Async(device_address(f->flow.params.exchange), 0xff,
                                        (size_t)f->flow.exchange_bytes, f->dev->stream));
    return CAIRN_OK;
}
