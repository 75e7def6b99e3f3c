/* attention: the pieces of a block summed, folded and put out, on the CPU. See attention.h. */

static size_t attention_sum_floats(int queries, int dim) {
    return (size_t)queries * (size_t)(dim + 2);
}

static attention_sum attention_sum_at(float *memory, int queries) {
    attention_sum sum;
    sum.m = memory; /* NULL: its size is being counted */
    sum.l = memory ? memory + queries : NULL;
    sum.out = memory ? memory + 2 * queries : NULL;
    return sum;
}

static void attention_sum_clear(const attention_sum *sum, int queries, int dim) {
    for (int i = 0; i < queries; i++) sum->m[i] = -INFINITY;
    memset(sum->l, 0, (size_t)queries * sizeof *sum->l);
    memset(sum->out, 0, (size_t)queries * (size_t)dim * sizeof *sum->out);
}

static int attention_last_page(const attention_block *a) {
    return a->positions[a->rows - 1] / a->page_size;
}

static int attention_from(const attention_block *a, int row) {
    int from = a->window ? a->positions[row] - a->window + 1 : 0;
    return from > 0 ? from : 0;
}

static int attention_first_piece(const attention_block *a) {
    return attention_from(a, 0) / ATTENTION_PIECE;
}

static int attention_pieces(const attention_block *a) {
    return attention_last_page(a) / (ATTENTION_PIECE / a->page_size) + 1;
}

static bool attention_lacks(const attention_block *a, int page) {
    return a->missing && (a->table[page] < 0 || a->table[page] >= a->pages);
}

/* Index of the first chosen page >= page. */
static int attention_seek(const attention_block *a, int page) {
    int low = 0, high = a->chosen_count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (a->chosen[middle] < page) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* Where the page's keys (side 0) or values begin, in values. */
static int64_t attention_at(const attention_block *a, int page, int side) {
    return layout_slot(a->table[page], side, a->head, 0, a->kv_heads, a->page_size, a->dim);
}

static const void *attention_place(const attention_block *a, int page, int side) {
    return (const uint8_t *)a->cache + attention_at(a, page, side) * (int64_t)cairn_type_bytes(a->type);
}

/* The first slots of a page's keys and values in f32, at `staged`. */
static simd_page attention_read(const attention_block *a, int page, int slots) {
    simd_page out = {a->staged, a->staged + a->page_size * a->dim, a->staged, false, 0, slots, a->dim,
                     0.0f};
    for (int side = 0; side < 2; side++) {
        const int64_t row = attention_at(a, page, side) / a->dim;
        float *to = a->staged + side * a->page_size * a->dim;
        if (a->type != CAIRN_E4M3)
            ops_read_values(a->simd, a->type, a->cache, row * a->dim, slots * a->dim, 1.0f, to);
        for (int slot = 0; slot < slots && a->type == CAIRN_E4M3; slot++)
            ops_read_values(a->simd, a->type, a->cache, (row + slot) * a->dim, a->dim,
                            a->scales[row + slot], to + slot * a->dim);
    }
    return out;
}

/* The page as a whole. `next` is a guess at the page that follows. */
static simd_page attention_page(const attention_block *a, int page, int next) {
    simd_page out;
    if (a->type != CAIRN_F16 && a->type != CAIRN_F32) {
        out = attention_read(a, page, a->page_size);
    } else {
        out.keys = attention_place(a, page, 0);
        out.values = attention_place(a, page, 1);
    }
    out.ahead = attention_place(
        a, next <= attention_last_page(a) && !attention_lacks(a, next) ? next : page, 0);
    out.half = a->type == CAIRN_F16;
    out.first = 0;
    out.last = a->page_size;
    out.dim = a->dim;
    out.cap = 0.0f;
    return out;
}

/* A page that several rows attend is converted once. */
static void attention_stage(const attention_block *a, simd_page *page) {
    const int values = a->page_size * a->dim;
    if (!page->half) return;
    a->simd->of_half((const uint16_t *)page->keys, a->staged, values);
    a->simd->of_half((const uint16_t *)page->values, a->staged + values, values);
    page->keys = a->staged;
    page->values = a->staged + values;
    page->half = false;
}

/* A page in which windows begin: each row by itself sees what lies between its first token and
 * itself. */
static void attention_fold_cut(const attention_block *a, simd_page *page, int start,
                               const attention_sum *sum) {
    for (int row = 0; row < a->rows; row++) {
        const int from = attention_from(a, row) - start, last = a->positions[row] - start + 1;
        const int at = row * a->group;
        page->first = from > 0 ? from : 0;
        page->last = last < a->page_size ? last : a->page_size;
        if (page->first < page->last)
            a->simd->attend(page, a->q + at * a->dim, a->group, sum->m + at, sum->l + at,
                            sum->out + at * a->dim);
    }
}

/* Adds a page's softmax as one key, of weight [g * step] for query g; -inf or NaN: nothing. */
static void attention_weigh(const attention_block *a, const simd_page *view,
                            const attention_sum *one, const float *weight, int64_t step,
                            const attention_sum *sum) {
    attention_sum_clear(one, a->group, a->dim);
    if (view->last > 0) a->simd->attend(view, a->q, a->group, one->m, one->l, one->out);
    for (int g = 0; g < a->group; g++) {
        const float share = one->l[g] > 0.0f ? 1.0f / one->l[g] : 0.0f;
        for (int d = 0; d < a->dim; d++) one->out[g * a->dim + d] *= share;
        one->m[g] = weight[g * step];
        one->l[g] = share > 0.0f && one->m[g] > -INFINITY ? 1.0f : 0.0f;
    }
    attention_fold(a->simd, sum, one, a->group, a->dim);
}

/* A page before or at the last row's own: rows of a later page see all of it, rows whose own it is
 * see it up to themselves. */
static void attention_fold_page(const attention_block *a, simd_page *page, int number,
                                const attention_sum *sum) {
    const int whole = a->page_size - a->landmarks;
    int start = number * a->page_size, row = 0, at;
    while (a->positions[row] < start) row++;
    if (a->rows - row > 1) attention_stage(a, page);
    if (attention_from(a, a->rows - 1) > start) {
        attention_fold_cut(a, page, start, sum);
        return;
    }
    for (; row < a->rows && a->positions[row] < start + a->page_size; row++) {
        page->last = a->positions[row] - start + 1;
        if (page->last > whole) page->last = whole;
        at = row * a->group;
        a->simd->attend(page, a->q + at * a->dim, a->group, sum->m + at, sum->l + at,
                        sum->out + at * a->dim);
    }
    page->last = whole;
    at = row * a->group;
    if (row < a->rows)
        a->simd->attend(page, a->q + at * a->dim, (a->rows - row) * a->group, sum->m + at,
                        sum->l + at, sum->out + at * a->dim);
}

/* The page that is attended after this one: the next chosen (index `chosen`), or its neighbour. */
static int attention_next(const attention_block *a, int page, int chosen) {
    if (page + 1 >= a->candidates) return page + 1;
    return chosen < a->chosen_count ? a->chosen[chosen] : a->candidates;
}

static void attention_piece(const attention_block *a, int piece, const attention_sum *sum) {
    const int per_piece = ATTENTION_PIECE / a->page_size, last = attention_last_page(a);
    const int from = attention_from(a, 0) / a->page_size;
    int page = piece * per_piece > from ? piece * per_piece : from;
    int end = (piece + 1) * per_piece;
    int chosen = a->candidates ? attention_seek(a, page) : 0;
    attention_sum_clear(sum, a->rows * a->group, a->dim);
    for (; page < end && page <= last; page++) {
        simd_page view;
        bool whole = page >= a->candidates;
        if (whole && a->only_chosen) break;
        if (!whole && chosen < a->chosen_count && a->chosen[chosen] == page) {
            whole = true;
            chosen++;
        }
        if (!whole && page * a->page_size >= a->sinks) continue;
        if (attention_lacks(a, page)) {
            *a->missing = true;
            continue;
        }
        if (a->fold) {
            const int start = page * a->page_size, own = a->positions[0] - start + 1;
            const int limit = whole ? a->page_size : a->sinks - start;
            const int slots = own < a->page_size ? own : a->page_size;
            a->fold(a, page, slots < limit ? slots : limit, whole && page < a->candidates, sum);
            continue;
        }
        view = attention_page(a, page, attention_next(a, page, chosen));
        if (a->weights && whole && page < a->candidates) {
            view.last = a->page_size - a->landmarks;
            attention_weigh(a, &view, a->page, a->weights + chosen - 1, a->weight_step, sum);
        } else if (!whole && a->sinks - page * a->page_size < a->page_size) {
            view.last = a->sinks - page * a->page_size;
            a->simd->attend(&view, a->q, a->group, sum->m, sum->l, sum->out);
        } else {
            attention_fold_page(a, &view, page, sum);
        }
    }
}

static void attention_fold(const simd_kernels *simd, const attention_sum *total,
                           const attention_sum *piece, int queries, int dim) {
    for (int i = 0; i < queries; i++) {
        float *out = total->out + i * dim, factor[2];
        const float *more = piece->out + i * dim;
        float m = total->m[i] > piece->m[i] ? total->m[i] : piece->m[i];
        if (piece->l[i] <= 0.0f) continue; /* an empty piece */
        factor[0] = total->m[i] - m;
        factor[1] = piece->m[i] - m;
        simd->exp_row(factor, factor, 2);
        total->m[i] = m;
        total->l[i] = total->l[i] * factor[0] + piece->l[i] * factor[1];
        for (int d = 0; d < dim; d++) out[d] = out[d] * factor[0] + more[d] * factor[1];
    }
}

static void attention_put(const attention_block *a, const attention_sum *total, float *out,
                          int64_t out_stride) {
    const int width = a->group * a->dim;
    for (int row = 0; row < a->rows; row++)
        for (int g = 0; g < a->group; g++) {
            int at = row * a->group + g;
            float share = total->l[at] > 0.0f ? 1.0f / total->l[at] : 0.0f;
            float *to = out + row * out_stride + a->head * width + g * a->dim;
            for (int d = 0; d < a->dim; d++) to[d] = total->out[at * a->dim + d] * share;
        }
}

static void attention_gather(const attention_block *a, const attention_sum *total,
                             const attention_sum *piece) {
    const int pieces = attention_pieces(a);
    for (int i = attention_first_piece(a); i < pieces; i++) {
        attention_piece(a, i, piece);
        attention_fold(a->simd, total, piece, a->rows * a->group, a->dim);
    }
}

static void attention_all(const attention_block *a, const attention_sum *total,
                          const attention_sum *piece, float *out, int64_t out_stride) {
    attention_sum_clear(total, a->rows * a->group, a->dim);
    attention_gather(a, total, piece);
    attention_put(a, total, out, out_stride);
}
