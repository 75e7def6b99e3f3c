/* forward_cpu: the whole decoder forward on the CPU: its memory, its checks, and the run.
 *
 * All scratch is allocated at open, nothing in a forward. Weights are read where they lie in the
 * mapped file. Results of a row depend on its sequence alone: not on other rows, on how a prompt
 * was cut, on the number of threads, nor on the run. Calls forward_cpu_work and what it calls. */

/* Hands out 64-byte aligned parts of one block; with no block it only measures. */
typedef struct forward_carver { char *memory; size_t used; } forward_carver;

static void *forward_carve(forward_carver *c, int64_t count, size_t size) {
    size_t at = c->used;
    c->used += ((size_t)count * size + 63) / 64 * 64;
    return c->memory ? c->memory + at : NULL;
}

static float *forward_floats(forward_carver *c, int64_t count) {
    return (float *)forward_carve(c, count, sizeof(float));
}

static void forward_carve_worker(const forward_cpu_state *f, forward_carver *c, forward_worker *w) {
    const model_shape *s = &f->model->shape;
    const int queries = ATTENTION_ROWS * f->group, q_width = s->heads * s->head_dim;
    int wide = s->hidden > s->ffn ? s->hidden : s->ffn;
    const int64_t sum = (int64_t)attention_sum_floats(queries, s->head_dim);
    if (q_width > wide) wide = q_width;
    if (s->latent.q_rank > wide) wide = s->latent.q_rank;
    w->panel = forward_floats(c, (int64_t)linear_panel_floats(wide));
    w->normed = forward_floats(c, (int64_t)FORWARD_FEW * s->hidden);
    w->q = forward_floats(c, (int64_t)queries * s->head_dim);
    w->vectors = forward_floats(c, (int64_t)2 * f->group * s->head_dim);
    w->staged = forward_floats(c, (int64_t)2 * f->page_size * s->head_dim);
    w->scores = forward_floats(c, f->max_pages);
    w->head_scores = forward_floats(c, (int64_t)f->group * f->max_pages);
    w->window_lse = forward_floats(c, f->group);
    w->keys = (uint32_t *)forward_carve(c, f->max_pages, sizeof *w->keys);
    w->chosen = (int32_t *)forward_carve(c, f->max_pages, sizeof *w->chosen);
    w->pages_read = (int64_t *)forward_carve(c, f->max_sequences, sizeof *w->pages_read);
    w->total = attention_sum_at(forward_floats(c, sum), queries);
    w->piece = attention_sum_at(forward_floats(c, sum), queries);
    w->page = attention_sum_at(
        forward_floats(c, (int64_t)attention_sum_floats(f->group, s->head_dim)), f->group);
}

static void forward_carve_experts(forward_cpu_state *f, forward_carver *c) {
    const model_shape *s = &f->model->shape;
    const int64_t rows = f->max_rows, slots = rows * s->experts_used;
    f->routes = forward_floats(c, rows * s->experts);
    f->shares = forward_floats(c, slots);
    f->routed = forward_floats(c, slots * s->hidden);
    f->chosen_experts = (int32_t *)forward_carve(c, slots, sizeof *f->chosen_experts);
    f->slots = (int32_t *)forward_carve(c, slots, sizeof *f->slots);
    f->slot_rows = (int32_t *)forward_carve(c, slots, sizeof *f->slot_rows);
    f->first_slots = (int32_t *)forward_carve(c, s->experts + 1, sizeof *f->first_slots);
    f->busy_experts = (int32_t *)forward_carve(c, s->experts, sizeof *f->busy_experts);
}

static void forward_carve_latent(forward_cpu_state *f, forward_carver *c) {
    const model_shape *s = &f->model->shape;
    const model_latent *m = &s->latent;
    const int64_t rows = f->max_rows;
    const int width = m->still + LATENT_ROTATED;
    forward_latent measured, *l = &measured;
    f->latent = (forward_latent *)forward_carve(c, 1, sizeof *l);
    if (f->latent) l = f->latent;
    forward_latent_sizes(f, l);
    l->q_latent = forward_floats(c, rows * m->q_rank);
    l->heads = forward_floats(c, rows * s->heads * (width > m->value ? width : m->value));
    l->index_q = forward_floats(c, rows * m->index_heads * CAIRN_INDEX_DIM);
    l->index_k = forward_floats(c, rows * CAIRN_INDEX_DIM);
    l->weights = forward_floats(c, rows * m->index_heads);
    l->index_bytes = (uint8_t *)forward_carve(c, rows * m->index_heads, CAIRN_INDEX_DIM);
    l->scores = forward_floats(c, l->score_rows * l->stride);
    l->tokens = (int32_t *)forward_carve(c, rows * l->most, sizeof *l->tokens);
    l->lengths = (int32_t *)forward_carve(c, rows, sizeof *l->lengths);
    l->tables = (int32_t *)forward_carve(c, rows, sizeof *l->tables);
    l->sequences = (int32_t *)forward_carve(c, rows, sizeof *l->sequences);
    l->e4m3 = forward_floats(c, 256);
    l->scratch = forward_floats(c, (int64_t)l->scratch_floats * f->threads);
    if (c->memory) fp8_values(l->e4m3);
}

static void forward_carve_all(forward_cpu_state *f, forward_carver *c) {
    const model_shape *s = &f->model->shape;
    const int64_t rows = f->max_rows, sum = (int64_t)attention_sum_floats(f->group, s->head_dim);
    void *space;
    f->workers = (forward_worker *)forward_carve(c, f->threads, sizeof *f->workers);
    f->h = forward_floats(c, rows * s->hidden);
    f->normed = forward_floats(c, rows * s->hidden);
    f->q = forward_floats(c, rows * s->heads * s->head_dim);
    f->k = forward_floats(c, rows * s->kv_heads * s->head_dim);
    f->v = forward_floats(c, rows * s->kv_heads * s->head_dim);
    f->attended = forward_floats(c, rows * s->heads * s->head_dim);
    f->gate = forward_floats(c, rows * (s->experts ? s->experts_used : 1) * s->ffn);
    f->up = forward_floats(c, rows * (s->experts ? s->experts_used : 1) * s->ffn);
    if (s->experts) forward_carve_experts(f, c);
    if (s->latent.q_rank) forward_carve_latent(f, c);
    f->added = forward_floats(c, f->norms_added ? rows * s->hidden : 0);
    f->cosine = forward_floats(c, f->ropes * rows * s->head_dim);
    f->sine = forward_floats(c, f->ropes * rows * s->head_dim);
    f->mixed = forward_floats(c, s->conv_layers ? rows * 3 * s->hidden : 0);
    f->taps = forward_floats(c, (int64_t)s->conv_layers * (s->conv_taps + 1) * s->hidden);
    f->zeros = forward_floats(c, s->conv_layers ? s->hidden : 0);
    f->whole = (forward_block *)forward_carve(c, rows, sizeof *f->whole);
    f->split = (forward_block *)forward_carve(c, rows, sizeof *f->split);
    f->positions = (int32_t *)forward_carve(c, rows, sizeof *f->positions);
    f->slots_of = (int32_t *)forward_carve(c, rows, sizeof *f->slots_of);
    f->wanted = (int32_t *)forward_carve(c, rows, sizeof *f->wanted);
    f->asks = (const sample_ask **)forward_carve(c, rows, sizeof *f->asks);
    f->unit_chosen =
        (int32_t *)forward_carve(c, (int64_t)f->units * f->max_pages, sizeof *f->unit_chosen);
    f->unit_chosen_count = (int32_t *)forward_carve(c, f->units, sizeof *f->unit_chosen_count);
    f->unit_sums = forward_floats(c, (int64_t)f->units * f->max_pieces * sum);
    f->unit_done = (os_atomic *)forward_carve(c, f->units, sizeof *f->unit_done);
    f->seen = (os_atomic *)forward_carve(
        c, (int64_t)f->max_sequences * s->kv_heads * f->max_pages, sizeof *f->seen);
    for (int i = 0; i < f->threads; i++) {
        forward_worker measured;
        forward_carve_worker(f, c, c->memory ? &f->workers[i] : &measured);
    }
    f->draft_rows = forward_floats(c, 5 * (int64_t)s->hidden);
    f->zero_bytes = c->used; /* pages of the system's that no step uses are never touched */
    f->logits = forward_floats(c, (int64_t)FORWARD_HEAD * s->vocab);
    space = forward_carve(c, 1, sample_space_bytes(s->vocab));
    if (space) sample_space_place(space, s->vocab, &f->space);
}

static void forward_cpu_close(cairn_model *model) {
    forward_cpu_state *f = (forward_cpu_state *)model->state;
    if (!f) return;
    device_free(&model->runtime->device, f->memory, f->memory_bytes);
    device_free(&model->runtime->device, f->low, f->low_bytes);
    base_delete(&model->runtime->base, f, 1, sizeof *f);
    model->state = NULL;
}

/* Fills the shapes of an empty state; its memory is measured and not there. */
static void forward_choose_shape(forward_cpu_state *f, cairn_model *model, int max_rows) {
    const model_shape *s = &model->shape;
    forward_carver measure = {NULL, 0};
    f->model = model;
    f->simd = simd_for(s->head_dim);
    f->threads_pool = model->runtime->device.pool;
    f->threads = f->threads_pool ? pool_threads(f->threads_pool)
                                 : pool_count(config_threads(&model->runtime->config));
    f->units = 8 * f->threads;
    f->eight = model->runtime->config.activations == CAIRN_ACTIVATIONS_Q8;
    f->max_rows = max_rows;
    f->page_size = model->runtime->config.page_size;
    f->max_pages = model_pages_of(model->max_seq_len, f->page_size);
    f->max_pieces = (model->max_seq_len + ATTENTION_PIECE - 1) / ATTENTION_PIECE;
    f->max_sequences = model->runtime->config.max_batch;
    f->group = s->latent.q_rank ? 0 : s->heads / s->kv_heads; /* by latents no pages are attended */
    if (s->latent.q_rank) f->ropes = PLAN_ROPES;
    for (int i = 0; i < s->layers; i++) {
        const plan_layer *l = &model->plan.layers[i];
        if (l->rope >= f->ropes) f->ropes = l->rope + 1;
        f->norms_added |= l->parts[PLAN_MIXER_POST].values || l->parts[PLAN_FFN_POST].values;
    }
    f->epoch = 1;
    forward_carve_all(f, &measure);
    f->memory_bytes = measure.used;
}

/* What forward_cpu_open would take: the weights stay in the file. */
static cairn_status forward_cpu_estimate(cairn_model *model, int max_rows, model_memory *out) {
    forward_cpu_state f;
    memset(&f, 0, sizeof f);
    forward_choose_shape(&f, model, max_rows);
    out->scratch = f.memory_bytes;
    out->host = sizeof f;
    return CAIRN_OK;
}

/* max_rows: of any forward to come. [blocks] */
static cairn_status forward_cpu_open(cairn_model *model, int max_rows) {
    base *b = &model->runtime->base;
    forward_cpu_state *f;
    forward_carver carve = {NULL, 0};
    cairn_status status;
    f = (forward_cpu_state *)base_new(b, 1, sizeof *f);
    if (!f) return base_no_memory(b, "the CPU forward", sizeof *f);
    model->state = f;
    forward_choose_shape(f, model, max_rows);
    status = device_alloc(&model->runtime->device, f->memory_bytes, "scratch of the CPU forward",
                          &f->memory);
    if (status) {
        forward_cpu_close(model);
        return status;
    }
    memset(f->memory, 0, f->zero_bytes);
    carve.memory = (char *)f->memory;
    forward_carve_all(f, &carve);
    forward_fill_taps(f);
    return CAIRN_OK;
}

static uint64_t forward_cpu_adapter_bytes(const cairn_model *model, const cairn_adapter *adapter,
                                          bool first, int max_rows) {
    (void)first; /* the other may be one that has no rank */
    const int used = model->shape.experts ? model->shape.experts_used : 1;
    return (uint64_t)max_rows * (uint64_t)used * 3 * (uint64_t)adapter->rank * sizeof(float);
}

/* Room for the inner values of an adapter's rank, in memory that outlives the other scratch. */
static cairn_status forward_cpu_take_adapter(cairn_model *model, cairn_adapter *adapter) {
    forward_cpu_state *f = (forward_cpu_state *)model->state;
    const size_t bytes = (size_t)forward_cpu_adapter_bytes(model, adapter, true, f->max_rows);
    void *memory;
    cairn_status status;
    if (adapter->rank <= f->low_rank) return CAIRN_OK;
    status = device_alloc(&model->runtime->device, bytes, "rows of an adapter", &memory);
    if (status) return status;
    device_free(&model->runtime->device, f->low, f->low_bytes);
    f->low = (float *)memory, f->low_bytes = bytes, f->low_rank = adapter->rank;
    return CAIRN_OK;
}

/* ---- one forward ----------------------------------------------------------------------------- */

/* Puts row r into a list of blocks: with the rows before it where they are alike. */
static int forward_add_row(forward_block *blocks, int count, const forward_block *one) {
    forward_block *last = count ? &blocks[count - 1] : NULL;
    if (last && !one->rule && !last->rule && !one->own && !last->own && last->rows < ATTENTION_ROWS &&
        last->sequence == one->sequence && last->prompt == one->prompt) {
        last->rows++;
        return count;
    }
    blocks[count] = *one;
    return count + 1;
}

static void forward_plan_blocks(forward_cpu_state *f) {
    const forward_batch *batch = f->batch;
    f->whole_count = f->split_count = 0;
    memset(f->selecting, 0, sizeof f->selecting);
    f->drafts = f->weighs = false;
    for (int i = 0; i < batch->sequence_count; i++) {
        const forward_sequence *s = &batch->sequences[i];
        for (int r = s->first; r < s->first + s->rows; r++) {
            const forward_row *row = &batch->rows[r];
            forward_block one = {r, 1, i, row->kind == FORWARD_PROMPT, row->own, NULL};
            f->whole_count = forward_add_row(f->whole, f->whole_count, &one);
            if (!one.own && s->rule && (!one.prompt || s->rule->prompts)) one.rule = s->rule;
            f->split_count = forward_add_row(f->split, f->split_count, &one);
            f->slots_of[r] = row->position;
            f->positions[r] = row->own ? row->seen - 1 : row->position;
            f->drafts |= row->own > 0;
            f->weighs |= forward_rule_weighs(one.rule);
            for (size_t w = 0; one.rule && w < BASE_COUNT(f->selecting); w++)
                f->selecting[w] |= one.rule->layers[w];
        }
    }
}

static void forward_plan_wanted(forward_cpu_state *f) {
    int asks = 0;
    f->wanted_count = 0;
    f->adapts = false;
    for (int r = 0; r < f->batch->row_count; r++) {
        const forward_row *row = &f->batch->rows[r];
        f->adapts |= row->adapter != NULL;
        if (row->sample) f->asks[asks++] = row->sample;
        if (row->logits || row->sample) f->wanted[f->wanted_count++] = r;
    }
}

/* One row's turns by one rope. The angle in double, so that far positions turn as exactly as near
 * ones; values behind the rope's stay. */
static void forward_plan_turns(const plan_rope *rope, int dim, int position, float *cosine,
                               float *sine) {
    const bool halves = rope->pairing == PLAN_PAIRS_HALVES;
    for (int j = 0; j < rope->dims / 2; j++) {
        double angle = position * rope->frequency[j], size = (double)rope->magnitude;
        int first = halves ? j : 2 * j, second = halves ? j + rope->dims / 2 : 2 * j + 1;
        cosine[first] = cosine[second] = (float)(cos(angle) * size);
        sine[second] = (float)(sin(angle) * size);
        sine[first] = -sine[second];
    }
    for (int i = rope->dims; i < dim; i++) cosine[i] = 1.0f, sine[i] = 0.0f;
}

static void forward_plan_rope(forward_cpu_state *f) {
    const int dim = f->model->shape.head_dim;
    for (int i = 0; i < f->ropes; i++)
        for (int r = 0; r < f->batch->row_count; r++) {
            int64_t at = ((int64_t)i * f->max_rows + r) * dim;
            forward_plan_turns(&f->model->plan.ropes[i], dim, f->batch->rows[r].rope,
                               f->cosine + at, f->sine + at);
        }
}

static void forward_add_pages_read(forward_cpu_state *f) {
    for (int i = 0; i < f->threads; i++)
        for (int s = 0; s < f->batch->sequence_count; s++)
            f->batch->sequences[s].pages_read += f->workers[i].pages_read[s];
}

static void forward_next_epoch(forward_cpu_state *f) {
    const model_shape *s = &f->model->shape;
    const int64_t pages = (int64_t)f->max_sequences * s->kv_heads * f->max_pages;
    f->epoch += s->layers;
    if (f->epoch < INT32_MAX - s->layers) return;
    for (int64_t i = 0; i < pages; i++) os_atomic_store(&f->seen[i], 0);
    f->epoch = 1;
}

/* The scratch is of as many threads as there are, since a reload may have changed that. Without memory
 * the one of before serves on, for no more threads than it was made for. */
static void forward_follow_threads(cairn_model *model) {
    forward_cpu_state *old = (forward_cpu_state *)model->state, *f;
    if (pool_threads(old->threads_pool) == old->threads) return;
    if (forward_cpu_open(model, old->max_rows)) {
        model->runtime->base.error[0] = '\0';
        model->state = old;
        return;
    }
    f = (forward_cpu_state *)model->state;
    f->low = old->low, f->low_bytes = old->low_bytes, f->low_rank = old->low_rank;
    device_free(&model->runtime->device, old->memory, old->memory_bytes);
    base_delete(&model->runtime->base, old, 1, sizeof *old);
}

static cairn_status forward_cpu_begin(cairn_model *model, kv_cache *kv, forward_batch *batch) {
    forward_cpu_state *f;
    cairn_status status;
    forward_follow_threads(model);
    f = (forward_cpu_state *)model->state;
    status = forward_check(&model->runtime->base, model, f->max_rows, batch);
    f->part = f->parts = 0;
    if (status || !batch->row_count) return status;
    for (int i = 0; i < batch->sequence_count; i++) {
        tables_settle_row(batch->tables, batch->sequences[i].table);
        for (int g = 0; g < kv->groups.count; g++)
            tables_settle_row(&model->windows[g].tables, batch->sequences[i].table);
    }
    f->kv = kv;
    f->batch = batch;
    forward_plan_blocks(f);
    forward_plan_wanted(f);
    forward_plan_rope(f);
    if (f->latent) forward_plan_latents(f);
    forward_next_epoch(f);
    for (int i = 0; i < f->threads; i++)
        memset(f->workers[i].pages_read, 0, (size_t)f->max_sequences * sizeof(int64_t));
    f->parts = forward_count_parts(f);
    return CAIRN_OK;
}

/* The hidden rows that are wanted. */
static void forward_hand_out_hidden(const forward_cpu_state *f) {
    const int hidden = f->model->shape.hidden;
    float *out = f->batch->hidden;
    for (int r = 0; out && r < f->batch->row_count; r++) {
        if (!f->batch->rows[r].hidden) continue;
        f->simd->rmsnorm(f->h + (int64_t)r * hidden, f->model->plan.output_norm.values,
                         f->model->shape.norm_eps, hidden, out);
        out += hidden;
    }
}

static int forward_cpu_advance(cairn_model *model, int parts) {
    forward_cpu_state *f = (forward_cpu_state *)model->state;
    if (parts < 1 || f->part == f->parts) return f->parts - f->part;
    f->part_end = parts < f->parts - f->part ? f->part + parts : f->parts;
    pool_each(f->threads_pool, f->threads, forward_run_parts, f);
    f->part = f->part_end;
    if (f->part == f->parts) {
        forward_add_pages_read(f);
        forward_hand_out_hidden(f);
    }
    return f->parts - f->part;
}

static cairn_status forward_cpu(cairn_model *model, kv_cache *kv, forward_batch *batch) {
    cairn_status status = forward_cpu_begin(model, kv, batch);
    if (!status) forward_cpu_advance(model, INT_MAX);
    return status;
}

static const model_backend forward_cpu_backend = {
    NULL, forward_cpu_open, forward_cpu_close, forward_cpu,
    0.25f /* of a row that rides along, measured on two cores with AVX-512 */, 0,
    NULL, false, NULL, forward_cpu_estimate, forward_cpu_begin, forward_cpu_advance,
    NULL, forward_cpu_take_adapter, NULL, forward_cpu_draft, NULL, forward_cpu_adapter_bytes
};
