/* forward_cpu_heads: queries, keys and values of a layer on the CPU: the product, what is done to their
 * heads, and their way into the cache. */

/* NULL: the layer's heads do not turn. */
static const plan_rope *forward_rope_of(const forward_cpu_state *f, const plan_layer *layer) {
    return layer->rope < 0 ? NULL : &f->model->plan.ropes[layer->rope];
}

/* Whether a layer's queries, keys and values are worked on by whole heads. */
static bool forward_by_head(const forward_cpu_state *f, const plan_layer *layer) {
    const plan_rope *rope = forward_rope_of(f, layer);
    return layer->parts[PLAN_Q_NORM].values || (rope && rope->pairing == PLAN_PAIRS_HALVES) ||
           f->kv->type == CAIRN_E4M3; /* whose scales are heads' */
}

/* Where row r of a layer's cosines or sines begins. */
static const float *forward_turns(const forward_cpu_state *f, const plan_layer *layer,
                                  const float *table, int r) {
    return table + ((int64_t)layer->rope * f->max_rows + r) * f->model->shape.head_dim;
}

/* x [dim] turns: value i with that half of dim away. */
static void forward_turn_halves(float *x, const float *cosine, const float *sine, int dim) {
    for (int i = 0, j = dim / 2; j < dim; i++, j++) {
        float low = x[i], high = x[j];
        x[i] = low * cosine[i] + high * sine[i];
        x[j] = high * cosine[j] + low * sine[j];
    }
}

/* Turns outputs first .. last - 1 of row r [width] of heads. */
static void forward_rope(const forward_cpu_state *f, const plan_layer *layer, float *x, int r,
                          int first, int last) {
    const int dim = f->model->shape.head_dim;
    const plan_rope *rope = forward_rope_of(f, layer);
    const float *cosine, *sine;
    if (!rope) return;
    cosine = forward_turns(f, layer, f->cosine, r);
    sine = forward_turns(f, layer, f->sine, r);
    for (int at = first; at < last;) {
        int within = at % dim, count = dim - within < last - at ? dim - within : last - at;
        if (rope->pairing == PLAN_PAIRS_HALVES)
            forward_turn_halves(x + at, cosine, sine, rope->dims);
        else f->simd->rope(x + at, cosine + within, sine + within, count);
        at += count;
    }
}

/* Biases, norms and turns outputs first .. last - 1 of rows [rows, width]; whole heads where
 * forward_by_head says so. part: 0 queries, 1 keys, 2 values. */
static void forward_heads(const forward_cpu_state *f, const plan_layer *layer, int part, float *x,
                          int width, int first, int last) {
    const int dim = f->model->shape.head_dim;
    const float *bias = layer->parts[PLAN_Q_BIAS + part].values;
    const float *norm = part < 2 ? layer->parts[PLAN_Q_NORM + part].values : NULL;
    for (int r = 0; r < f->batch->row_count; r++, x += width) {
        for (int i = first; i < last && bias; i++) x[i] += bias[i];
        for (int at = first; at < last && norm; at += dim)
            f->simd->rmsnorm(x + at, norm, f->model->shape.norm_eps, dim, x + at);
        if (part < 2) forward_rope(f, layer, x, r, first, last);
        }
}

/* The pages of a sequence in this layer. */
static const int32_t *forward_table(const forward_walk *walk, const forward_sequence *s) {
    return tables_row(model_tables(walk->f->model, walk->f->batch->tables, walk->layer), s->table);
}

/* Writes values from `within` on of the head whose cache row is `row`; of e4m3 they are all its. */
static void forward_store(const forward_walk *walk, const float *x, int64_t row, int within, int count) {
    const kv_cache *kv = walk->f->kv;
    void *pages = kv->pages[forward_state(walk)];
    float *scales = pages_scales(kv, forward_state(walk));
    if (!scales) ops_kv_write(walk->f->simd, kv->type, x, pages, row * kv->head_dim + within, count);
    else scales[row] = fp8_of_block(x, count, false, (uint8_t *)pages + row * kv->head_dim);
}

/* Writes outputs first .. last - 1 of rows [rows, kv_heads * dim] to their slots; part 0 keys, 1
 * values. */
static void forward_append(const forward_walk *walk, const float *x, int part, int first,
                           int last) {
    const forward_cpu_state *f = walk->f;
    const kv_cache *kv = f->kv;
    const int dim = kv->head_dim, size = kv->page_size, width = kv->kv_heads * dim;
    const forward_sequence *s = f->batch->sequences;
    for (int r = 0; r < f->batch->row_count; r++) {
        int position = f->batch->rows[r].position;
        const int32_t *table;
        while (r >= s->first + s->rows) s++;
        table = forward_table(walk, s);
        int64_t page = table[position / size];
        for (int at = first; at < last;) {
            int head = at / dim, within = at % dim;
            int count = dim - within < last - at ? dim - within : last - at;
            int64_t row = ((page * 2 + part) * kv->kv_heads + head) * size + position % size;
            forward_store(walk, x + (int64_t)r * width + at, row, within, count);
            at += count;
        }
    }
}

static select_pages forward_pages(const forward_walk *walk, int sequence, int head) {
    const forward_cpu_state *f = walk->f;
    select_pages pages;
    pages.table = forward_table(walk, &f->batch->sequences[sequence]);
    pages.cache = f->kv->pages[forward_state(walk)];
    pages.type = f->kv->type;
    pages.scales = pages_scales(f->kv, forward_state(walk));
    pages.half = (uint16_t *)(void *)walk->own->staged;
    pages.bounds = (const uint16_t *)f->kv->bounds[forward_state(walk)];
    pages.kv_heads = f->kv->kv_heads;
    pages.head = head;
    pages.dim = f->kv->head_dim;
    pages.stored = f->batch->sequences[sequence].stored;
    return pages;
}

/* Stores the bounds of one sequence's pages that were completed since, where the layer has bounds. */
static void forward_store_bounds(const forward_walk *walk, int sequence) {
    const forward_cpu_state *f = walk->f;
    const forward_sequence *s = &f->batch->sequences[sequence];
    if (!s->rule || s->rule->select.landmark || !f->kv->bounds[forward_state(walk)]) return;
    for (int page = s->bounded; page < s->stored; page++)
        for (int head = 0; head < f->kv->kv_heads; head++) {
            select_pages pages = forward_pages(walk, sequence, head);
            uint16_t *low =
                (uint16_t *)f->kv->bounds[forward_state(walk)] + select_bounds_at(&pages, page);
            select_bounds(f->simd, &pages, &s->rule->select, page, low, low + pages.dim);
        }
}

/* Outputs first .. last - 1 of q, k and v side by side. */
static void forward_qkv_range(const forward_walk *walk, const float *x, int first, int last) {
    forward_cpu_state *f = walk->f;
    const plan_layer *layer = &f->model->plan.layers[walk->layer];
    const model_weight *weights = &layer->weights[PLAN_Q]; /* Q, K and V follow one another */
    float *to[3];
    to[0] = f->q;
    to[1] = f->k;
    to[2] = f->v;
    for (int i = 0; i < 3 && first < last; i++) {
        const int width = (int)weights[i].rows, end = last < width ? last : width;
        if (first < end) {
            linear_job job = forward_job(f, &weights[i], x, to[i], false);
            linear_range(f->simd, &job, first, end, walk->own->panel);
            forward_lift(walk, PLAN_Q + i, i, to[i], width, first, end);
            forward_heads(f, layer, i, to[i], width, first, end);
            if (i > 0) forward_append(walk, to[i], i - 1, first, end);
        }
        first = first > width ? first - width : 0;
        last -= width;
    }
}

static void forward_qkv(forward_walk *walk) {
    forward_cpu_state *f = walk->f;
    const plan_layer *layer = &f->model->plan.layers[walk->layer];
    const int outs = (int)(layer->weights[PLAN_Q].rows + 2 * layer->weights[PLAN_K].rows);
    const int dim = f->model->shape.head_dim, even = forward_share(f, outs, 5);
    const int share = forward_by_head(f, layer) ? (even + dim - 1) / dim * dim : even;
    const int items = (outs + share - 1) / share;
    const float *x = forward_norm_low(walk, layer->parts[PLAN_MIXER_NORM].values, PLAN_Q, 3);
    for (int i = forward_take(walk); i < items + f->batch->sequence_count; i = forward_take(walk)) {
        int first = i * share;
        if (i >= items) forward_store_bounds(walk, i - items);
        else forward_qkv_range(walk, x, first, first + share < outs ? first + share : outs);
    }
    forward_meet(walk);
}
