/* forward_cuda_latent: a layer whose mixer is attention by latents (MLA) over tokens that an indexer
 * chooses (DSA), on the GPU; what it computes is cpu_latent.c's. It is made of the ops' kernels, launched
 * by their rooms in memory of the model's, and what stands between them (step/latent.cu). They take
 * where rows stand from a lane's input and the page table on the device: a captured step serves any
 * lengths, and nothing waits for the host. Prompts and steps go by the same products, so that their
 * keys, choices and what they attend follow from the row alone.
 *
 * All rows' keys are stored first; then so many rows at a time are scored, choose and attend as there
 * is memory for. Products and kernels of other rooms see two heads of 64 values in place of the model's
 * (latents.stages): they have none of attention's work. Weights are the file's blocks, or f32 where no
 * kernel reads them. */

enum { LATENT_K_ROWS, LATENT_K_TURN, LATENT_K_PAGES, LATENT_K_HAND_ON, LATENT_KERNELS };
enum { LATENT_MIB = 128, LATENT_LEAST = 8 }; /* of rows at a time; rows at least */

static const plan_role cuda_latent_roles[] = {PLAN_O, PLAN_Q_DOWN, PLAN_Q_UP, PLAN_LATENTS,
                                              PLAN_TO_LATENT, PLAN_OF_LATENT, PLAN_INDEX_Q,
                                              PLAN_INDEX_K, PLAN_INDEX_GATE};

/* ---- memory ---------------------------------------------------------------------------------- */

static int cuda_latent_type(const model_weight *w) { return cuda_reads(w->type) ? w->type : BLOCK_F32; }
static size_t cuda_latent_row_bytes(const model_weight *w) {
    return block_row_bytes(block_find(cuda_latent_type(w)), w->columns);
}

/* Of a layer's weights, those before `role`; PLAN_ROLES: all. */
static size_t cuda_latent_bytes(const plan_layer *l, plan_role role) {
    size_t bytes = 0;
    for (size_t i = 0; i < BASE_COUNT(cuda_latent_roles) && cuda_latent_roles[i] != role; i++) {
        const model_weight *w = &l->weights[cuda_latent_roles[i]];
        bytes += ((size_t)w->rows * cuda_latent_row_bytes(w) + 255) & ~(size_t)255;
    }
    return bytes;
}
static uint8_t *cuda_latent_at(const forward_cuda_state *f, int layer, plan_role role) {
    return f->latents.weights[layer] + cuda_latent_bytes(&f->plan->layers[layer], role);
}

static void cuda_take_latent_weights(forward_cuda_state *f, device_arena *a) {
    uint64_t bytes = 0;
    uint8_t *at;
    for (int i = 0; i < f->shape->layers; i++)
        bytes += cuda_latent_bytes(&f->plan->layers[i], PLAN_ROLES);
    at = (uint8_t *)device_take(a, bytes, "the weights of attention by latents");
    for (int i = 0; i < f->shape->layers && at; i++) {
        f->latents.weights[i] = at;
        at += cuda_latent_bytes(&f->plan->layers[i], PLAN_ROLES);
    }
}

/* Memory that is cut up; at NULL: measured. */
typedef struct cuda_latent_room { uint8_t *at; uint64_t used; } cuda_latent_room;

static void *cuda_latent_cut(cuda_latent_room *room, uint64_t bytes) {
    void *at = room->at ? room->at + room->used : NULL;
    room->used += (bytes + 255) & ~(uint64_t)255;
    return at;
}
static float *cuda_latent_floats(cuda_latent_room *room, int64_t count) {
    return (float *)cuda_latent_cut(room, (uint64_t)count * 4);
}

/* What of all rows of a forward. */
static void cuda_place_latents(const forward_cuda_state *f, cuda_latents *l, cuda_latent_room *room) {
    const model_latent *m = &f->shape->latent;
    const int64_t rows = f->max_rows > STEP_STAGE_ROWS ? f->max_rows : STEP_STAGE_ROWS;
    l->x = cuda_latent_floats(room, rows * f->shape->hidden);
    l->q_latent = cuda_latent_floats(room, rows * m->q_rank);
    l->k = cuda_latent_floats(room, rows * LATENT_VALUES);
    l->turning = cuda_latent_floats(room, rows * LATENT_ROTATED);
    l->index_k = cuda_latent_floats(room, rows * CAIRN_INDEX_DIM);
    l->gates = cuda_latent_floats(room, rows * m->index_heads);
    l->key_scales = cuda_latent_floats(room, rows);
    l->keys = (uint8_t *)cuda_latent_cut(room, (uint64_t)rows * CAIRN_INDEX_DIM);
    l->lengths = (int32_t *)cuda_latent_cut(room, (uint64_t)rows * 4);
    l->slots = (int32_t *)cuda_latent_cut(room, (uint64_t)rows * 4);
}

/* What of `rows` at a time. */
static void cuda_place_some(const forward_cuda_state *f, cuda_latents *l, int rows,
                            cuda_latent_room *room) {
    const model_latent *m = &f->shape->latent;
    const int64_t heads = (int64_t)rows * l->heads, index = (int64_t)rows * m->index_heads;
    const int wide = m->still + LATENT_ROTATED > m->value ? m->still + LATENT_ROTATED : m->value;
    l->wide = cuda_latent_floats(room, heads * wide);
    l->q = cuda_latent_floats(room, heads * LATENT_KEYS);
    l->attended = cuda_latent_floats(room, heads * LATENT_VALUES);
    l->index_q = cuda_latent_floats(room, index * CAIRN_INDEX_DIM);
    l->weight = cuda_latent_floats(room, index);
    l->index_bytes = (uint8_t *)cuda_latent_cut(room, (uint64_t)index * CAIRN_INDEX_DIM);
    l->scores = cuda_latent_floats(room, rows * l->stride);
    l->tokens = (int32_t *)cuda_latent_cut(room, (uint64_t)rows * (uint64_t)l->most * 4);
    l->parts = (float *)cuda_latent_cut(room, (uint64_t)rows * l->part_bytes);
    l->arrived = (uint32_t *)cuda_latent_cut(room, (uint64_t)rows * l->flag_bytes);
}

static attend_params cuda_latent_attention(const forward_cuda_state *f) {
    attend_params p;
    memset(&p, 0, sizeof p);
    p.heads = f->latents.heads;
    p.token_width = f->latents.most;
    return p;
}

/* The shape of a model, and of its layers here. */
static void cuda_choose_latents(forward_cuda_state *f, const cairn_model *m, int max_rows) {
    cuda_latents *l = &f->latents;
    const int size = m->runtime->config.page_size;
    const int most = max_rows > STEP_STAGE_ROWS ? max_rows : STEP_STAGE_ROWS;
    cuda_latent_room one = {NULL, 0};
    attend_params p;
    l->stages = m->shape;
    l->stages.heads = l->stages.kv_heads = 2;
    l->stages.head_dim = LATENT_ROTATED;
    f->shape = &l->stages;
    l->heads = m->shape.heads;
    l->stride = (int64_t)model_pages_of(m->max_seq_len, size) * size;
    l->most = m->shape.latent.topk < l->stride ? m->shape.latent.topk : (int)l->stride;
    p = cuda_latent_attention(f);
    attention_latent_room(f->dev, &p, &l->part_bytes, &l->flag_bytes);
    cuda_place_some(f, l, 1, &one);
    l->rows = (int)(((uint64_t)LATENT_MIB << 20) / one.used);
    l->rows = l->rows > most ? most : l->rows < LATENT_LEAST ? LATENT_LEAST : l->rows;
    for (int rows = 1; rows <= l->rows; rows++) {
        size_t bytes, flags;
        topk_own_scratch(f->runtime, rows, l->stride, l->most, &bytes, &flags);
        if (bytes > l->choice_bytes) l->choice_bytes = bytes;
        if (flags > l->choice_flags) l->choice_flags = flags;
    }
}

static void cuda_take_latents(forward_cuda_state *f, device_arena *a) {
    cuda_latents *l = &f->latents;
    cuda_latent_room room = {NULL, 0};
    for (int pass = 0; pass < 2; pass++) {
        room.used = 0;
        cuda_place_latents(f, l, &room);
        cuda_place_some(f, l, l->rows, &room);
        l->scratch = (uint32_t *)cuda_latent_cut(&room, l->choice_bytes);
        l->flags = (uint32_t *)cuda_latent_cut(&room, l->choice_flags);
        if (!pass) room.at = (uint8_t *)device_take(a, room.used, "attention by latents");
        if (!room.at) return;
    }
}

/* ---- launches -------------------------------------------------------------------------------- */

/* A layer of some rows in a lane. */
typedef struct cuda_latent_call {
    forward_cuda_state *f;
    const step_lane *lane;
    const plan_layer *layer;
    int number, rows;
    bool step, all; /* all: every row attends all, and none is scored */
} cuda_latent_call;

/* The lane's input of its rows from `first` on. */
static const int32_t *cuda_latent_input(const cuda_latent_call *c, int array, int first) {
    return c->lane->params.input + STEP_HEAD + (int64_t)array * c->lane->params.capacity + first;
}

static cairn_status cuda_latent_launch(const cuda_latent_call *c, int kernel, int blocks,
                                       const void *params) {
    device_dims dims = {{0, 1, 1}, 128, 0, 0, false};
    dims.grid[0] = (unsigned)blocks;
    return device_launch(c->f->dev, &c->f->latents.kernels[kernel], &dims, params);
}

/* What kernels of step/latent.cu are given of rows [first, first + count). */
static latent_params cuda_latent_rows(const cuda_latent_call *c, int first, int count) {
    const forward_cuda_state *f = c->f;
    latent_params p;
    memset(&p, 0, sizeof p);
    p.positions = cuda_latent_input(c, STEP_POSITION, first);
    p.sequences = cuda_latent_input(c, STEP_SEQUENCE, first);
    p.ropes = cuda_latent_input(c, STEP_ROPE, first);
    p.page_table = f->table, p.table_stride = f->max_pages;
    p.lengths = f->latents.lengths + first, p.slots = f->latents.slots + first;
    p.turns = f->rope;
    p.rows = count, p.heads = 1;
    p.halves = f->plan->ropes[0].pairing == PLAN_PAIRS_HALVES;
    return p;
}

static const float *cuda_latent_vector(const cuda_latent_call *c, plan_part part) {
    const forward_cuda_state *f = c->f;
    return f->vectors + (size_t)c->number * f->vector_floats + f->vector_at[part];
}

static cairn_status cuda_latent_norm(const cuda_latent_call *c, const float *x, const float *weight,
                                     int n, float *out) {
    rmsnorm_params p;
    p.x = x, p.weight = weight, p.out = out;
    p.n = n, p.epsilon = c->f->shape->norm_eps;
    return dense_rmsnorm_rows(c->f->runtime, &p, c->rows);
}

/* `parts` products of a weight, from its row `first` on, whose outputs are p.outs, or all; strides
 * that are 0 are those of rows one behind the other. */
static cairn_status cuda_latent_multiply(const cuda_latent_call *c, plan_role role, int first, int parts,
                                         linear_params p) {
    const model_weight *w = &c->layer->weights[role];
    p.row_bytes = (int64_t)cuda_latent_row_bytes(w);
    p.w = cuda_latent_at(c->f, c->number, role) + first * p.row_bytes;
    p.in = (int32_t)w->columns;
    if (!p.outs) p.outs = (int32_t)(w->rows / parts);
    if (!p.x_stride) p.x_stride = p.in;
    if (!p.out_stride) p.out_stride = p.outs;
    return dense_linear_parts(c->f->runtime, &p, cuda_latent_type(w), parts);
}

/* out [count, outs] of x [count, in]. */
static cairn_status cuda_latent_product(const cuda_latent_call *c, plan_role role, int count,
                                        const float *x, float *out) {
    linear_params p;
    memset(&p, 0, sizeof p);
    p.x = x, p.out = out, p.rows = count;
    return cuda_latent_multiply(c, role, 0, 1, p);
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* Keys and values of all rows, normed and turned, to their slots. */
static cairn_status cuda_latent_append(const cuda_latent_call *c) {
    const forward_cuda_state *f = c->f;
    const cuda_latents *l = &f->latents;
    latent_params turn = cuda_latent_rows(c, 0, c->rows);
    linear_params p;
    kv_append_params to;
    cairn_status status;
    memset(&p, 0, sizeof p), memset(&to, 0, sizeof to);
    p.x = l->x, p.rows = c->rows;
    p.out = l->k, p.outs = LATENT_VALUES;
    if ((status = cuda_latent_multiply(c, PLAN_LATENTS, 0, 1, p))) return status;
    p.out = l->turning, p.outs = LATENT_ROTATED;
    turn.x = l->turning, turn.out = l->turning;
    turn.x_row = turn.out_row = LATENT_ROTATED;
    if ((status = cuda_latent_multiply(c, PLAN_LATENTS, LATENT_VALUES, 1, p)) ||
        (status = cuda_latent_norm(c, l->k, cuda_latent_vector(c, PLAN_LATENT_NORM), LATENT_VALUES,
                                   l->k)) ||
        (status = cuda_latent_launch(c, LATENT_K_TURN, (c->rows + 3) / 4, &turn)))
        return status;
    to.at.cache = (uint16_t *)f->held->pages[c->layer->state];
    to.at.page_table = turn.page_table;
    to.at.sequences = turn.sequences, to.at.positions = turn.positions;
    to.at.pages = f->held->pool.pages, to.at.kv_heads = 1, to.at.page_size = f->page_size;
    to.at.head_dim = LATENT_VALUES;
    to.at.sequence_count = f->table_rows, to.at.max_pages = f->max_pages;
    to.k = l->k, to.v = l->turning, to.rows = c->rows;
    return kv_append_latents(f->runtime, &to);
}

/* index_qk of rows [first, first + count): of the key alone, or of queries too. */
static cairn_status cuda_latent_index(const cuda_latent_call *c, int first, int count, bool queries) {
    const cuda_latents *l = &c->f->latents;
    const plan_rope *rope = &c->f->plan->ropes[1];
    const int heads = c->f->shape->latent.index_heads;
    index_qk_params p;
    memset(&p, 0, sizeof p);
    p.q = l->index_q, p.q_out = l->index_bytes, p.weights = l->weight;
    p.gates = l->gates + (int64_t)first * heads;
    p.k = l->index_k + (int64_t)first * CAIRN_INDEX_DIM;
    p.keys = l->keys + (int64_t)first * CAIRN_INDEX_DIM, p.key_scales = l->key_scales + first;
    p.norm_weight = cuda_latent_vector(c, PLAN_INDEX_NORM);
    p.norm_bias = cuda_latent_vector(c, PLAN_INDEX_BIAS);
    p.positions = cuda_latent_input(c, STEP_ROPE, first);
    p.error = ops_error_word(c->f->dev, "index_qk");
    p.rows = count, p.heads = queries ? heads : 0;
    p.power_of_two = 1;
    p.epsilon = 1e-6f;
    p.gate_scale = (float)(1.0 / sqrt(heads * (double)CAIRN_INDEX_DIM));
    p.magnitude = rope->magnitude;
    p.beside = rope->pairing == PLAN_PAIRS_BESIDE;
    for (int i = 0; i < LATENT_ROTATED / 2; i++) p.turns[i] = rope->frequency[i] * 0.15915494309189535;
    return index_qk_cuda(c->f->runtime, &p);
}

/* What all rows make of the hidden state, and their keys. */
static cairn_status cuda_latent_keys(const cuda_latent_call *c) {
    forward_cuda_state *f = c->f;
    const cuda_latents *l = &f->latents;
    const float *residual, *norm = f->norms + 2 * (size_t)c->number * (size_t)f->shape->hidden;
    index_cache_params to;
    cairn_status status;
    memcpy(&residual, &c->lane->params.exchange, sizeof residual);
    if ((status = cuda_latent_norm(c, residual, norm, f->shape->hidden, l->x)) ||
        (status = cuda_latent_product(c, PLAN_Q_DOWN, c->rows, l->x, l->q_latent)) ||
        (status = cuda_latent_norm(c, l->q_latent, cuda_latent_vector(c, PLAN_Q_DOWN_NORM),
                                   f->shape->latent.q_rank, l->q_latent)) ||
        (status = cuda_latent_append(c)) ||
        (status = cuda_latent_product(c, PLAN_INDEX_K, c->rows, l->x, l->index_k)) ||
        (status = cuda_latent_index(c, 0, c->rows, false)))
        return status;
    memset(&to, 0, sizeof to);
    to.cache = (uint8_t *)f->held->pages[f->held->layers + c->layer->state];
    to.keys = l->keys, to.scales = l->key_scales, to.slots = l->slots;
    to.error = ops_error_word(f->dev, "index_store");
    to.rows = c->rows, to.pages = f->held->pool.pages, to.page_size = f->page_size;
    if ((status = index_cache_cuda(f->runtime, "index_store", &to)) || c->all) return status;
    return cuda_latent_product(c, PLAN_INDEX_GATE, c->rows, l->x, l->gates);
}

/* ---- tokens ---------------------------------------------------------------------------------- */

/* The scores of rows [first, first + count). Rows of a prompt are of one sequence. */
static cairn_status cuda_latent_score(const cuda_latent_call *c, int first, int count) {
    const forward_cuda_state *f = c->f;
    const cuda_latents *l = &f->latents;
    const int64_t q_rank = f->shape->latent.q_rank;
    index_logits_params p;
    cairn_status status = cuda_latent_product(c, PLAN_INDEX_Q, count, l->q_latent + first * q_rank,
                                              l->index_q);
    if (!status) status = cuda_latent_index(c, first, count, true);
    if (status) return status;
    memset(&p, 0, sizeof p);
    p.q = l->index_bytes, p.weights = l->weight;
    p.keys = (const uint8_t *)f->held->pages[f->held->layers + c->layer->state];
    p.page_table = f->table, p.requests = f->table_rows, p.max_pages = f->max_pages;
    p.row_requests = cuda_latent_input(c, STEP_SEQUENCE, first);
    p.lengths = l->lengths + first;
    p.out = l->scores, p.stride = l->stride;
    p.rows = p.rows_each = count, p.heads = f->shape->latent.index_heads;
    p.n = (int32_t)l->stride, p.least = l->most, p.first_row = first;
    p.pages = f->held->pool.pages, p.page_size = f->page_size;
    if (!c->step) {
        const int32_t *words = c->lane->words + STEP_HEAD;
        p.page_table += (int64_t)words[STEP_SEQUENCE * c->lane->rows] * f->max_pages;
        p.row_requests = NULL, p.requests = 1;
        p.n = words[STEP_POSITION * c->lane->rows + first + count - 1] + 1;
    }
    return index_score(f->runtime, "index_logits_paged", true, &p);
}

/* The slots of the tokens that rows [first, first + count) attend; of steps their pages are counted. */
static cairn_status cuda_latent_choose(const cuda_latent_call *c, int first, int count) {
    forward_cuda_state *f = c->f;
    const cuda_latents *l = &f->latents;
    const topk_shape shape = {"topk", count, l->stride, l->stride, first};
    const int stride = f->shape->kv_heads * ((f->max_pages + 31) / 32);
    latent_params count_of = cuda_latent_rows(c, first, count);
    topk_params p;
    cairn_status status;
    memset(&p, 0, sizeof p);
    p.scores = l->scores, p.indices = l->tokens, p.lengths = l->lengths + first, p.k = l->most;
    p.scratch = l->scratch, p.arrived = l->flags;
    p.form = c->step ? CAIRN_INDEX_POS : CAIRN_INDEX_SLOT;
    p.page_table = f->table, p.table_rows = f->table_rows, p.table_stride = f->max_pages;
    p.requests = cuda_latent_input(c, STEP_SEQUENCE, first);
    p.page_size = f->page_size;
    if ((status = topk_launch(f->runtime, &p, &shape, CAIRN_F32, "auto")) || !c->step) return status;
    count_of.tokens = l->tokens, count_of.width = l->most;
    count_of.seen = f->seen + (size_t)c->number * (size_t)f->table_rows * (size_t)stride;
    count_of.seen_stride = stride, count_of.pages_read = f->pages_read;
    if ((status = cuda_latent_launch(c, LATENT_K_PAGES, count, &count_of))) return status;
    p.scores = l->tokens, p.form = CAIRN_INDEX_SLOT;
    p.error = ops_error_word(f->dev, "index_transform");
    return index_transform_cuda(f->runtime, &p);
}

/* ---- attention ------------------------------------------------------------------------------- */

/* The queries of rows [first, first + count) in the latents' space. */
static cairn_status cuda_latent_queries(const cuda_latent_call *c, int first, int count) {
    const cuda_latents *l = &c->f->latents;
    const model_latent *m = &c->f->shape->latent;
    const int64_t width = m->still + LATENT_ROTATED;
    latent_params turn = cuda_latent_rows(c, first, count);
    linear_params p;
    cairn_status status = cuda_latent_product(c, PLAN_Q_UP, count,
                                              l->q_latent + (int64_t)first * m->q_rank, l->wide);
    memset(&p, 0, sizeof p);
    p.x = l->wide, p.out = l->q, p.rows = count;
    p.x_part = width, p.x_stride = l->heads * width;
    p.out_part = LATENT_KEYS, p.out_stride = (int64_t)l->heads * LATENT_KEYS;
    if (!status) status = cuda_latent_multiply(c, PLAN_TO_LATENT, 0, l->heads, p);
    if (status) return status;
    turn.x = l->wide + m->still, turn.x_head = width, turn.x_row = p.x_stride;
    turn.out = l->q + LATENT_VALUES, turn.out_head = LATENT_KEYS, turn.out_row = p.out_stride;
    turn.heads = l->heads;
    return cuda_latent_launch(c, LATENT_K_TURN, (int)(((int64_t)count * l->heads + 3) / 4), &turn);
}

/* Rows [first, first + count) attend what they chose; what comes back is added to the residual stream. */
static cairn_status cuda_latent_attend(const cuda_latent_call *c, int first, int count) {
    forward_cuda_state *f = c->f;
    const cuda_latents *l = &f->latents;
    const int value = f->shape->latent.value;
    attend_params p = cuda_latent_attention(f);
    linear_params back;
    float *residual;
    cairn_status status;
    p.at.cache = (uint16_t *)f->held->pages[c->layer->state];
    p.at.pages = f->held->pool.pages, p.at.page_size = f->page_size, p.at.kv_heads = 1;
    p.q = l->q, p.out = l->attended, p.tokens = l->tokens;
    p.scale = f->plan->attention_scale;
    p.partial = l->parts, p.arrived = l->arrived;
    p.sums = l->parts + (size_t)count * (l->part_bytes / (LATENT_VALUES * 4 + 8)) * LATENT_VALUES;
    if ((status = attention_latent_rows(f->runtime, &p, count))) return status;
    memset(&back, 0, sizeof back);
    back.x = l->attended, back.out = l->wide, back.rows = count;
    back.x_part = LATENT_VALUES, back.x_stride = (int64_t)l->heads * LATENT_VALUES;
    back.out_part = value, back.out_stride = (int64_t)l->heads * value;
    if ((status = cuda_latent_multiply(c, PLAN_OF_LATENT, 0, l->heads, back))) return status;
    memset(&back, 0, sizeof back);
    memcpy(&residual, &c->lane->params.exchange, sizeof residual);
    back.x = l->wide, back.out = residual + (int64_t)first * f->shape->hidden;
    back.rows = count, back.accumulate = 1;
    return cuda_latent_multiply(c, PLAN_O, 0, 1, back);
}

/* The mixer of a layer, of the first `rows` of a lane. */
static cairn_status cuda_run_latents(forward_cuda_state *f, const step_lane *lane, int rows, int number) {
    cuda_latent_call c = {f, lane, &f->plan->layers[number], number, rows, lane == &f->stage, false};
    const int32_t *positions = lane->words + STEP_HEAD + STEP_POSITION * lane->rows;
    const latent_params all = cuda_latent_rows(&c, 0, rows);
    step_params p = lane->params;
    cairn_status status = CAIRN_OK;
    c.all = !c.step && positions[rows - 1] < f->latents.most;
    if (!number) status = cuda_latent_launch(&c, LATENT_K_ROWS, (rows + 127) / 128, &all);
    if (!status) status = cuda_latent_keys(&c);
    for (int first = 0, some; first < rows && !status; first += some) {
        some = rows - first < f->latents.rows ? rows - first : f->latents.rows;
        if ((!c.all && (status = cuda_latent_score(&c, first, some))) ||
            (status = cuda_latent_choose(&c, first, some)) ||
            (status = cuda_latent_queries(&c, first, some)) ||
            (status = cuda_latent_attend(&c, first, some)))
            return status;
    }
    p.layer = number;
    return status || !c.step ? status : cuda_latent_launch(&c, LATENT_K_HAND_ON, rows, &p);
}

/* ---- kernels --------------------------------------------------------------------------------- */

static jit_request cuda_latent_request(const forward_cuda_state *f, jit_constant *constants) {
    jit_request request = {"step/latent.cu", constants, 0, JIT_AWAITED};
    request.constant_count = cuda_stage_constants(f, 0, constants);
    return request;
}

/* Whether another layer has the products that this one asks for. */
static bool cuda_latent_follows(const forward_cuda_state *f, int number) {
    const plan_layer *l = &f->plan->layers[number];
    size_t i = 0;
    if (!number) return false;
    while (i < BASE_COUNT(cuda_latent_roles) &&
           l[0].weights[cuda_latent_roles[i]].type == l[-1].weights[cuda_latent_roles[i]].type) i++;
    return i == BASE_COUNT(cuda_latent_roles);
}

/* Goes through every launch that a forward may come to (device.h): those of topk follow from the rows,
 * those of scores from how many of a prompt share their keys, the products' from whether rows are few. */
static cairn_status cuda_rehearse_latents(forward_cuda_state *f) {
    static const int some[] = {1, 2, 3, 4, 9};
    cuda_latent_call c = {f, NULL, NULL, 0, 0, false, false};
    cairn_status status = CAIRN_OK;
    f->dev->rehearses = true, f->dev->awaits = false;
    for (int i = 0; i < f->shape->layers * 2 * (int)BASE_COUNT(some) && !status; i++) {
        c.number = i / (2 * (int)BASE_COUNT(some)), c.layer = &f->plan->layers[c.number];
        c.rows = some[i / 2 % (int)BASE_COUNT(some)], c.step = i % 2;
        c.lane = c.step ? &f->stage : &f->prompt;
        if (cuda_latent_follows(f, c.number)) continue;
        if (!(status = cuda_latent_keys(&c)) && !(status = cuda_latent_score(&c, 0, c.rows)) &&
            !(status = cuda_latent_queries(&c, 0, c.rows)))
            status = cuda_latent_attend(&c, 0, c.rows);
    }
    for (int rows = 1; rows <= f->latents.rows && !status; rows++)
        status = cuda_latent_choose(&c, 0, rows);
    f->dev->rehearses = false;
    return status;
}

/* Begins to compile everything. */
static cairn_status cuda_begin_latents(forward_cuda_state *f) {
    jit_constant constants[STEP_CONSTANTS];
    const jit_request request = cuda_latent_request(f, constants);
    cairn_status status = jit_begin(f->dev->jit, &request, 1);
    return status ? status : cuda_rehearse_latents(f);
}

static cairn_status cuda_end_latents(forward_cuda_state *f) {
    static const char *const names[] = {"latent_rows", "latent_turn", "latent_pages", "latent_hand_on"};
    jit_constant constants[STEP_CONSTANTS];
    const jit_request request = cuda_latent_request(f, constants);
    jit_program *program;
    cairn_status status = jit_get(f->dev->jit, &request, &program);
    for (int i = 0; i < LATENT_KERNELS && !status; i++)
        status = jit_function(f->dev->jit, program, names[i], 0, &f->latents.kernels[i]);
    do status = status ? status : cuda_rehearse_latents(f);
    while (!status && f->dev->awaits && !(status = jit_wait(f->dev->jit)));
    return status;
}
