/* forward_cpu_latent: a layer whose mixer is attention by latents (MLA) over tokens that an indexer
 * chooses (DSA), on the CPU. Heads share one key and value a token, its latent: a query goes to the
 * latents' space before it attends, what it attended comes back from there. The indexer scores
 * every token before a row, and the row attends the best: which follows from its scores alone,
 * whether it is a prompt's or a step's. The config's choice of pages is not asked.
 *
 * Rows of at most `topk` tokens attend all; where a batch of prompts has no others, the indexer
 * makes its keys and nothing else. Scores are in memory for some rows at a time. Sums are the ops'
 * (index, topk, attention: alone.c), so a row's result depends on the row alone. */

static int64_t forward_scores = 1 << 22; /* of all rows at a time, about; tests: few */

typedef struct forward_latent {
    float *q_latent;      /* [rows, q_rank] */
    float *heads;         /* [rows, heads, still + 64] queries, then [rows, heads, value] */
    float *index_q;       /* [rows, index heads, 128] */
    float *index_k;       /* [rows, 128] */
    float *weights;       /* [rows, index heads]: gates, then with all factors */
    uint8_t *index_bytes; /* [rows, index heads, 128] e4m3 */
    float *scores;        /* [score_rows, stride] */
    int32_t *tokens;      /* [rows, most]: slots, -1 behind the last */
    int32_t *lengths;     /* [rows]: tokens that a row sees */
    int32_t *tables, *sequences; /* [rows]: of the page tables, of the batch */
    float *e4m3;          /* [256] */
    float *scratch;       /* [threads, scratch_floats] */
    size_t scratch_floats;
    int64_t stride;       /* tokens of the longest sequence */
    int score_rows, most; /* most: tokens that a row attends */
    int slices, longest;  /* slices of the heads; the longest of lengths */
    bool all;             /* every row attends all, and none is scored */
} forward_latent;

/* What does not depend on a batch. Slices follow from the shape alone. */
static void forward_latent_sizes(const forward_cpu_state *f, forward_latent *l) {
    const model_shape *s = &f->model->shape;
    size_t attend, score, choose;
    memset(l, 0, sizeof *l);
    l->stride = (int64_t)f->max_pages * f->page_size;
    l->most = s->latent.topk < l->stride ? s->latent.topk : (int)l->stride;
    l->score_rows = l->stride * f->max_rows > forward_scores ? (int)(forward_scores / l->stride)
                                                             : f->max_rows;
    if (l->score_rows < ATTENTION_ROWS) l->score_rows = ATTENTION_ROWS;
    l->slices = s->heads % 16 ? s->heads % 8 ? 1 : s->heads / 8 : s->heads / 16;
    attend = attention_alone_floats(s->heads / l->slices);
    score = index_alone_floats(ATTENTION_ROWS, s->latent.index_heads);
    choose = topk_alone_bytes(l->stride, l->most) / sizeof(float) + 1;
    l->scratch_floats = ((attend > score ? attend : score) + 15) & ~(size_t)15;
    if (choose > l->scratch_floats) l->scratch_floats = (choose + 15) & ~(size_t)15;
}

static float *forward_latent_scratch(const forward_walk *walk) {
    const forward_latent *l = walk->f->latent;
    return l->scratch + (size_t)walk->worker * l->scratch_floats;
}

/* Before a forward. */
static void forward_plan_latents(forward_cpu_state *f) {
    const forward_batch *batch = f->batch;
    forward_latent *l = f->latent;
    l->longest = 0;
    l->all = true;
    for (int i = 0; i < batch->sequence_count; i++)
        for (int r = batch->sequences[i].first, n = 0; n < batch->sequences[i].rows; r++, n++) {
            l->sequences[r] = i;
            l->tables[r] = batch->sequences[i].table;
            l->lengths[r] = batch->rows[r].position + 1;
            if (l->lengths[r] > l->longest) l->longest = l->lengths[r];
            if (batch->rows[r].kind != FORWARD_PROMPT) l->all = false;
        }
    if (l->longest > l->most) l->all = false;
}

/* Where values [LATENT_ROTATED] turn by the row's position, as rope `i` of the plan says. */
static void forward_latent_turn(const forward_cpu_state *f, int i, int r, float *x) {
    const plan_rope *rope = &f->model->plan.ropes[i];
    const int64_t at = ((int64_t)i * f->max_rows + r) * f->model->shape.head_dim;
    if (rope->pairing == PLAN_PAIRS_HALVES)
        forward_turn_halves(x, f->cosine + at, f->sine + at, rope->dims);
    else f->simd->rope(x, f->cosine + at, f->sine + at, rope->dims);
}

/* A stage: some products, in items of one of them each. */
static void forward_products(forward_walk *walk, const linear_job *jobs, int count) {
    int outs = 0, share;
    for (int i = 0; i < count; i++) outs += jobs[i].out;
    share = forward_share(walk->f, outs, 5);
    for (;;) {
        int item = forward_take(walk), j = 0;
        for (; j < count && item >= (jobs[j].out + share - 1) / share; j++)
            item -= (jobs[j].out + share - 1) / share;
        if (j == count) break;
        linear_range(walk->f->simd, &jobs[j], item * share,
                     (item + 1) * share < jobs[j].out ? (item + 1) * share : jobs[j].out,
                     walk->own->panel);
    }
    forward_meet(walk);
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* The latents of row r and its index key, into their slots. */
static void forward_latent_store(const forward_walk *walk, const plan_layer *layer, int r) {
    const forward_cpu_state *f = walk->f;
    const forward_latent *l = f->latent;
    const kv_cache *kv = f->kv;
    const int position = f->positions[r], size = kv->page_size, slot = position % size;
    const size_t page = (size_t)tables_row(f->batch->tables, l->tables[r])[position / size];
    const float *weight = layer->parts[PLAN_INDEX_NORM].values;
    float *latent = f->k + (int64_t)r * LATENT_KEYS;
    float *key = l->index_k + (int64_t)r * CAIRN_INDEX_DIM;
    uint8_t *index = (uint8_t *)kv->pages[kv->layers + layer->state] +
                     page * pages_plane_bytes(kv, kv->layers);
    float scale;
    f->simd->rmsnorm(latent, layer->parts[PLAN_LATENT_NORM].values, f->model->shape.norm_eps,
                     LATENT_VALUES, latent);
    forward_latent_turn(f, 0, r, latent + LATENT_VALUES);
    f->simd->to_half(latent, (uint16_t *)kv->pages[layer->state] +
                     (page * (size_t)size + (size_t)slot) * LATENT_KEYS, LATENT_KEYS);
    index_alone_norm(weight, layer->parts[PLAN_INDEX_BIAS].values, key);
    forward_latent_turn(f, 1, r, key);
    index_alone_finish(key, true, index + slot * CAIRN_INDEX_DIM, &scale);
    memcpy(index + size * CAIRN_INDEX_DIM + slot * 4, &scale, 4);
}

/* Two stages: what is made of the hidden rows, then the keys, and the queries' latent. */
static void forward_latent_down(forward_walk *walk, const plan_layer *layer) {
    forward_cpu_state *f = walk->f;
    forward_latent *l = f->latent;
    const int rows = f->batch->row_count, rank = f->model->shape.latent.q_rank;
    const float *x = forward_norm(walk, layer->parts[PLAN_MIXER_NORM].values, NULL, rows);
    const linear_job jobs[] = {
        forward_job(f, &layer->weights[PLAN_Q_DOWN], x, l->q_latent, false),
        forward_job(f, &layer->weights[PLAN_LATENTS], x, f->k, false),
        forward_job(f, &layer->weights[PLAN_INDEX_K], x, l->index_k, false),
        forward_job(f, &layer->weights[PLAN_INDEX_GATE], x, l->weights, false)};
    forward_products(walk, jobs, l->all ? 3 : 4);
    for (int r = forward_take(walk); r < rows; r = forward_take(walk)) {
        float *latent = l->q_latent + (int64_t)r * rank;
        f->simd->rmsnorm(latent, layer->parts[PLAN_Q_DOWN_NORM].values, f->model->shape.norm_eps,
                         rank, latent);
        forward_latent_store(walk, layer, r);
    }
    forward_meet(walk);
}

/* ---- queries --------------------------------------------------------------------------------- */

/* The product of one head's part of a weight, x and y the first row's. */
static void forward_latent_head(const forward_walk *walk, const model_weight *w, int head,
                                const float *x, int64_t x_stride, float *y, int64_t y_stride) {
    const forward_cpu_state *f = walk->f;
    const int64_t outs = w->rows / f->model->shape.heads;
    linear_job job = forward_job(f, w, x, y, false);
    job.w = w->data + (size_t)(head * outs) * block_row_bytes(block_find(w->type), w->columns);
    job.out = (int)outs;
    job.x_stride = x_stride;
    job.y_stride = y_stride;
    linear_range(f->simd, &job, 0, job.out, walk->own->panel);
}

/* A head of all rows' queries in the latents' space, and what of it turns behind that. */
static void forward_latent_query(const forward_walk *walk, const plan_layer *layer, int head) {
    const forward_cpu_state *f = walk->f;
    const int heads = f->model->shape.heads, still = f->model->shape.latent.still;
    const int64_t width = still + LATENT_ROTATED;
    const float *x = f->latent->heads + head * width;
    float *y = f->q + (int64_t)head * LATENT_KEYS;
    forward_latent_head(walk, &layer->weights[PLAN_TO_LATENT], head, x, heads * width, y,
                        (int64_t)heads * LATENT_KEYS);
    for (int r = 0; r < f->batch->row_count; r++, x += heads * width, y += heads * LATENT_KEYS) {
        memcpy(y + LATENT_VALUES, x + still, LATENT_ROTATED * sizeof *y);
        forward_latent_turn(f, 0, r, y + LATENT_VALUES);
    }
}

/* Row r's queries of the indexer, and their weights. */
static void forward_latent_index(const forward_cpu_state *f, int r) {
    const forward_latent *l = f->latent;
    const int heads = f->model->shape.latent.index_heads;
    const float factor = (float)(1.0 / sqrt(heads * (double)CAIRN_INDEX_DIM));
    for (int64_t at = (int64_t)r * heads; at < (int64_t)(r + 1) * heads; at++) {
        float *q = l->index_q + at * CAIRN_INDEX_DIM, scale;
        forward_latent_turn(f, 1, r, q);
        index_alone_finish(q, true, l->index_bytes + at * CAIRN_INDEX_DIM, &scale);
        l->weights[at] *= factor * scale;
    }
}

/* Two stages. */
static void forward_latent_up(forward_walk *walk, const plan_layer *layer) {
    forward_cpu_state *f = walk->f;
    forward_latent *l = f->latent;
    const int heads = f->model->shape.heads, rows = l->all ? 0 : f->batch->row_count;
    const linear_job jobs[] = {
        forward_job(f, &layer->weights[PLAN_Q_UP], l->q_latent, l->heads, false),
        forward_job(f, &layer->weights[PLAN_INDEX_Q], l->q_latent, l->index_q, false)};
    forward_products(walk, jobs, l->all ? 1 : 2);
    for (int i = forward_take(walk); i < heads + rows; i = forward_take(walk)) {
        if (i < heads) forward_latent_query(walk, layer, i);
        else forward_latent_index(f, i - heads);
    }
    forward_meet(walk);
}

/* ---- tokens ---------------------------------------------------------------------------------- */

/* The indexer's rows [first, first + count) and their keys. */
static index_logits_params forward_latent_rows(const forward_walk *walk, int first, int count) {
    const forward_cpu_state *f = walk->f;
    const forward_latent *l = f->latent;
    const int64_t heads = f->model->shape.latent.index_heads;
    index_logits_params p;
    memset(&p, 0, sizeof p);
    p.q = l->index_bytes + first * heads * CAIRN_INDEX_DIM;
    p.weights = l->weights + first * heads;
    p.keys = (const uint8_t *)f->kv->pages[f->kv->layers + forward_state(walk)];
    p.page_table = f->batch->tables->ids;
    p.row_requests = l->tables + first;
    p.lengths = l->lengths + first;
    p.out = l->scores;
    p.stride = l->stride;
    p.rows = count;
    p.heads = (int32_t)heads;
    p.n = (int32_t)l->stride;
    p.least = l->most;
    p.pages = f->kv->pool.pages;
    p.page_size = f->kv->page_size;
    p.requests = f->batch->tables->requests;
    p.max_pages = f->batch->tables->max_pages;
    return p;
}

/* A stage: the scores of blocks [from, to). */
static void forward_latent_score(forward_walk *walk, int from, int to) {
    const forward_cpu_state *f = walk->f;
    const forward_latent *l = f->latent;
    const forward_block *blocks = f->whole;
    const int first = blocks[from].first;
    const int count = blocks[to - 1].first + blocks[to - 1].rows - first;
    const int runs = (l->longest + INDEX_RUN - 1) / INDEX_RUN;
    const index_logits_params p = forward_latent_rows(walk, first, count);
    for (int i = forward_take(walk); i < (to - from) * runs; i = forward_take(walk)) {
        const forward_block *one = &blocks[from + i / runs];
        const int64_t column = (int64_t)(i % runs) * INDEX_RUN;
        index_alone_score(l->e4m3, &p, one->first - first, one->rows, column, column + INDEX_RUN,
                          forward_latent_scratch(walk));
    }
    forward_meet(walk);
}

/* Counts the distinct pages of a step row's tokens, which ascend, as forward_count does. */
static void forward_latent_count(const forward_walk *walk, int r, const int32_t *positions) {
    const forward_cpu_state *f = walk->f;
    const int sequence = f->latent->sequences[r];
    const int32_t epoch = f->epoch + walk->layer;
    os_atomic *seen = f->seen + (int64_t)sequence * f->max_pages;
    if (f->batch->rows[r].kind == FORWARD_PROMPT) return;
    for (int i = 0; i < f->latent->most && positions[i] >= 0; i++) {
        os_atomic *page = &seen[positions[i] / f->page_size];
        const int32_t was = os_atomic_load(page);
        if (was == epoch || !os_atomic_swap_if(page, was, epoch)) continue;
        walk->own->pages_read[sequence]++;
        if (f->batch->heat) os_atomic_add(&f->batch->heat[walk->layer * f->model->shape.kv_heads], 1);
    }
}

/* The tokens that row r attends, by its scores where it has more than it may attend. */
static void forward_latent_choose(const forward_walk *walk, int r, const float *scores) {
    const forward_cpu_state *f = walk->f;
    const forward_latent *l = f->latent;
    const int size = f->page_size;
    const int32_t *table = tables_row(f->batch->tables, l->tables[r]);
    int32_t *tokens = l->tokens + (int64_t)r * l->most;
    topk_alone(scores, l->stride, l->lengths[r], l->most, forward_latent_scratch(walk), tokens);
    forward_latent_count(walk, r, tokens);
    for (int i = 0; i < l->most && tokens[i] >= 0; i++)
        tokens[i] = table[tokens[i] / size] * size + tokens[i] % size;
}

/* Up to two stages for as many rows as there is memory for scores. */
static void forward_latent_choices(forward_walk *walk) {
    const forward_cpu_state *f = walk->f;
    const forward_latent *l = f->latent;
    for (int from = 0, to; from < f->whole_count; from = to) {
        const int first = f->whole[from].first, most = first + l->score_rows;
        int last = first;
        for (to = from; to < f->whole_count && last + f->whole[to].rows <= most; to++)
            last += f->whole[to].rows;
        if (l->longest > l->most) forward_latent_score(walk, from, to);
        for (int i = forward_take(walk); i < last - first; i = forward_take(walk))
            forward_latent_choose(walk, first + i, l->scores + i * l->stride);
        forward_meet(walk);
    }
}

/* ---- attention ------------------------------------------------------------------------------- */

/* Two stages: heads attend latents, and come back from them. */
static void forward_latent_attend(forward_walk *walk, const plan_layer *layer) {
    forward_cpu_state *f = walk->f;
    const forward_latent *l = f->latent;
    const model_shape *s = &f->model->shape;
    const int value = s->latent.value;
    attend_params p;
    memset(&p, 0, sizeof p);
    p.at.cache = (uint16_t *)f->kv->pages[layer->state];
    p.at.pages = f->kv->pool.pages;
    p.at.page_size = f->kv->page_size;
    p.at.kv_heads = l->slices;
    p.at.head_dim = LATENT_KEYS;
    p.q = f->q;
    p.out = f->attended;
    p.scale = f->model->plan.attention_scale;
    p.heads = s->heads;
    p.tokens = l->tokens;
    p.token_width = l->most;
    for (int i = forward_take(walk); i < f->batch->row_count * l->slices; i = forward_take(walk))
        attention_alone(&p, i, forward_latent_scratch(walk));
    forward_meet(walk);
    for (int h = forward_take(walk); h < s->heads; h = forward_take(walk))
        forward_latent_head(walk, &layer->weights[PLAN_OF_LATENT], h,
                            f->attended + (int64_t)h * LATENT_VALUES,
                            (int64_t)s->heads * LATENT_VALUES, l->heads + (int64_t)h * value,
                            (int64_t)s->heads * value);
    forward_meet(walk);
}

static void forward_by_latents(forward_walk *walk) {
    forward_cpu_state *f = walk->f;
    const plan_layer *layer = &f->model->plan.layers[walk->layer];
    forward_latent_down(walk, layer);
    forward_latent_up(walk, layer);
    forward_latent_choices(walk);
    forward_latent_attend(walk, layer);
    forward_add(walk, PLAN_O, f->latent->heads, &layer->parts[PLAN_MIXER_POST]);
}
