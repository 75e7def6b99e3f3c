/* simd/attention: attention over one page of keys and values, page bounds, page scores and the scores
 * of index keys, once per level.
 *
 * A query's result over a page depends only on the query and the slots, not on the queries beside
 * it. head_dim is a multiple of VEC_N (simd_for sees to it). */

/* score [q][i - first] = query q . key i for the slots first .. last - 1; `queries` (a constant)
 * rows of q [dim], keys [slots, dim] in f16 or f32. Meanwhile the values are fetched. */
SIMD_FN BASE_INLINE void SIMD(score_slots)(const int queries, const bool half, const float *q,
                                           const simd_page *page, float *score) {
    const uint16_t *k16 = (const uint16_t *)page->keys;
    const float *k32 = (const float *)page->keys;
    const char *values = (const char *)page->values;
    const int first = page->first, last = page->last, dim = page->dim;
    for (int slot = first; slot < last; slot += 4) {
        VEC sum[VEC_QUERIES][4];
        int64_t at[4];
        int i, j, d;
        BASE_UNROLL
        for (j = 0; j < 4; j++) at[j] = (int64_t)(slot + j < last ? slot + j : slot) * dim;
        BASE_UNROLL
        for (i = 0; i < queries; i++)
            sum[i][0] = sum[i][1] = sum[i][2] = sum[i][3] = VEC_SET(0.0f);
        if (half)
            for (d = 0; d < 8 * dim; d += 64) BASE_PREFETCH(values + 2 * slot * dim + d);
        for (d = 0; d < dim; d += VEC_N) {
            VEC key[4];
            BASE_UNROLL
            for (j = 0; j < 4; j++)
                key[j] = half ? VEC_HALF(k16 + at[j] + d) : VEC_LOAD(k32 + at[j] + d);
            BASE_UNROLL
            for (i = 0; i < queries; i++) {
                VEC v = VEC_LOAD(q + i * dim + d);
                BASE_UNROLL
                for (j = 0; j < 4; j++) sum[i][j] = VEC_FMA(v, key[j], sum[i][j]);
            }
        }
        BASE_UNROLL
        for (i = 0; i < queries; i++)
            SIMD(sum4)(score + i * SIMD_MAX_SLOTS + slot - first, sum[i][0], sum[i][1], sum[i][2],
                       sum[i][3]);
    }
}

/* Scores [count] become cap * tanh(score / cap). */
SIMD_FN static void SIMD(cap)(float *score, int count, float cap) {
    const VEC one = VEC_SET(1.0f), twice = VEC_SET(2.0f * cap), by = VEC_SET(2.0f / cap);
    for (int i = count; i < (count + VEC_N - 1) / VEC_N * VEC_N; i++) score[i] = 0.0f;
    for (int i = 0; i < count; i += VEC_N) {
        VEC x = VEC_MUL(VEC_LOAD(score + i), by);
        x = VEC_DIV(twice, VEC_ADD(SIMD(exp)(x), one));
        VEC_STORE(score + i, VEC_SUB(VEC_SET(cap), x));
    }
}

/* Scores [count] become weights e^(score - m); returns the factor e^(m before - m) for what was
 * summed before, and keeps m and l, the sum of all weights. A function of its own: as part of each
 * form of attend_some it is a third of them. */
SIMD_FN static float SIMD(weigh)(float *score, int count, float *m, float *l) {
    int i, padded = (count + VEC_N - 1) / VEC_N * VEC_N;
    VEC top, sum = VEC_SET(0.0f), zero = VEC_SET(0.0f);
    float highest, factor, part[4];
    for (i = count; i < padded; i++) score[i] = -INFINITY;
    top = VEC_LOAD(score);
    for (i = VEC_N; i < padded; i += VEC_N) top = VEC_MAX(top, VEC_LOAD(score + i));
    highest = SIMD(top)(top);
    if (!(highest > *m)) highest = *m;
    factor = *m == highest ? 1.0f : VEC_FIRST(SIMD(exp)(VEC_SET(*m - highest)));
    for (i = 0; i < padded; i += VEC_N) {
        VEC weight = SIMD(exp)(VEC_SUB(VEC_LOAD(score + i), VEC_SET(highest)));
        VEC_STORE(score + i, weight);
        sum = VEC_ADD(sum, weight);
    }
    SIMD(sum4)(part, sum, zero, zero, zero);
    *l = *l * factor + part[0];
    *m = highest;
    return factor;
}

/* out [q][width * VEC_N of dim] = out * factor [q] + sum over slots of weight * value, for columns
 * from `column` on. Meanwhile the next page's keys are fetched. */
SIMD_FN BASE_INLINE void SIMD(add_values)(const int queries, const int width, const bool half,
                                          const float *weight, const simd_page *page, int column,
                                          const float *factor, float *out) {
    const int first = page->first, last = page->last, dim = page->dim;
    const uint16_t *v16 = (const uint16_t *)page->values + (int64_t)first * dim + column;
    const float *v32 = (const float *)page->values + (int64_t)first * dim + column;
    const char *ahead = (const char *)page->ahead + 2 * column;
    VEC sum[VEC_QUERIES][4];
    int i, w;
    BASE_UNROLL
    for (i = 0; i < queries; i++) {
        BASE_UNROLL
        for (w = 0; w < width; w++)
            sum[i][w] = VEC_MUL(VEC_LOAD(out + i * dim + w * VEC_N), VEC_SET(factor[i]));
    }
    for (int slot = 0; slot < last - first; slot++, v16 += dim, v32 += dim) {
        VEC value[4];
        if (half) {
            for (i = 0; i < 2 * width * VEC_N; i += 64) BASE_PREFETCH(ahead + i);
            ahead += 2 * dim;
        }
        BASE_UNROLL
        for (w = 0; w < width; w++)
            value[w] = half ? VEC_HALF(v16 + w * VEC_N) : VEC_LOAD(v32 + w * VEC_N);
        BASE_UNROLL
        for (i = 0; i < queries; i++) {
            VEC p = VEC_SET(weight[i * SIMD_MAX_SLOTS + slot]);
            BASE_UNROLL
            for (w = 0; w < width; w++) sum[i][w] = VEC_FMA(p, value[w], sum[i][w]);
        }
    }
    BASE_UNROLL
    for (i = 0; i < queries; i++) {
        BASE_UNROLL
        for (w = 0; w < width; w++) VEC_STORE(out + i * dim + w * VEC_N, sum[i][w]);
    }
}

/* The columns from `column` on where they are no multiple of four vectors: two queries at a time, in
 * one text for all forms. */
SIMD_FN BASE_INLINE void SIMD(add_columns)(const int some, const bool half, const float *weight,
                                           const simd_page *page, int column, const float *factor,
                                           float *out) {
    for (; column < page->dim; column += VEC_N)
        SIMD(add_values)(some, 1, half, weight, page, column, factor, out + column);
}

SIMD_FN static void SIMD(add_rest)(int queries, const float *weight, const simd_page *page,
                                   int column, const float *factor, float *out) {
    for (int i = 0, some; i < queries; i += some) {
        const float *w = weight + i * SIMD_MAX_SLOTS;
        float *to = out + i * page->dim;
        some = VEC_QUERIES > 1 && queries - i > 1 ? 2 : 1;
#if VEC_QUERIES > 1
        if (some == 2 && page->half) SIMD(add_columns)(2, true, w, page, column, factor + i, to);
        else if (some == 2) SIMD(add_columns)(2, false, w, page, column, factor + i, to);
        else
#endif
        if (page->half) SIMD(add_columns)(1, true, w, page, column, factor + i, to);
        else SIMD(add_columns)(1, false, w, page, column, factor + i, to);
    }
}

/* `queries` (a constant) queries over the slots first .. last - 1 of one page. */
SIMD_FN BASE_INLINE void SIMD(attend_some)(const int queries, const bool half,
                                           const simd_page *page, const float *q, float *m,
                                           float *l, float *out) {
    float score[VEC_QUERIES * SIMD_MAX_SLOTS], factor[VEC_QUERIES];
    const int slots = page->last - page->first, wide = page->dim / (4 * VEC_N) * (4 * VEC_N);
    int i, d;
    SIMD(score_slots)(queries, half, q, page, score);
    for (i = 0; i < queries && page->cap > 0.0f; i++)
        SIMD(cap)(score + i * SIMD_MAX_SLOTS, slots, page->cap);
    for (i = 0; i < queries; i++)
        factor[i] = SIMD(weigh)(score + i * SIMD_MAX_SLOTS, slots, m + i, l + i);
    for (d = 0; d < wide; d += 4 * VEC_N)
        SIMD(add_values)(queries, 4, half, score, page, d, factor, out + d);
    if (d < page->dim) SIMD(add_rest)(queries, score, page, d, factor, out);
}

/* Folds a page (first < last) into the running softmax of q [queries, dim], already scaled:
 * m, l [queries] and out [queries, dim], unnormalised. Start: m -inf, l and out 0. Two and three
 * queries have a form of their own where a step has them: over pages in f16. */
SIMD_FN static void SIMD(attend)(const simd_page *page, const float *q, int queries, float *m,
                                 float *l, float *out) {
    for (int left = queries, some; left; left -= some) {
        some = left < VEC_QUERIES ? left : VEC_QUERIES;
        if (!page->half && some < VEC_QUERIES) some = 1;
#define SIMD_ATTEND(count, half) SIMD(attend_some)(count, half, page, q, m, l, out)
        if (!page->half && some == 1) SIMD_ATTEND(1, false);
#if VEC_QUERIES > 1
        else if (!page->half) SIMD_ATTEND(VEC_QUERIES, false);
        else if (some == VEC_QUERIES) SIMD_ATTEND(VEC_QUERIES, true);
#if VEC_QUERIES > 2
        else if (some == 2) SIMD_ATTEND(2, true);
        else if (some == 3) SIMD_ATTEND(3, true);
#endif
#endif
        else SIMD_ATTEND(1, true);
#undef SIMD_ATTEND
        q += (int64_t)some * page->dim, out += (int64_t)some * page->dim;
        m += some, l += some;
    }
}

/* Of whole keys [slots, dim] f16: the least and the greatest value of each dimension. */
SIMD_FN static void SIMD(bounds)(const uint16_t *keys, int slots, int dim, uint16_t *low,
                                 uint16_t *high) {
    for (int d = 0; d < dim; d += VEC_N) {
        VEC least = VEC_HALF(keys + d), most = least;
        for (int slot = 1; slot < slots; slot++) {
            VEC key = VEC_HALF(keys + (int64_t)slot * dim + d);
            least = VEC_MIN(least, key);
            most = VEC_MAX(most, key);
        }
        VEC_HALF_STORE(low + d, least);
        VEC_HALF_STORE(high + d, most);
    }
}

/* Of whole keys [slots, dim] f16: the mean, summed in slot order, and what f16 left of it, for a
 * mean rounded once too often picks other pages. */
SIMD_FN static void SIMD(mean)(const uint16_t *keys, int slots, int dim, uint16_t *mean,
                               uint16_t *rest) {
    const VEC share = VEC_SET(1.0f / (float)slots);
    for (int d = 0; d < dim; d += VEC_N) {
        VEC sum = VEC_HALF(keys + d);
        for (int slot = 1; slot < slots; slot++)
            sum = VEC_ADD(sum, VEC_HALF(keys + (int64_t)slot * dim + d));
        sum = VEC_MUL(sum, share);
        VEC_HALF_STORE(mean + d, sum);
        VEC_HALF_STORE(rest + d, VEC_SUB(sum, VEC_HALF(mean + d)));
    }
}

/* score [4] of pages: over the `vectors` rows, the greatest of
 * above [dim] . high [page] + below [dim] . low [page]. */
SIMD_FN static void SIMD(score_pages4)(const float *above, const float *below, int vectors,
                                       const uint16_t *const *high, const uint16_t *const *low,
                                       int dim, float *score) {
    for (int i = 0; i < vectors; i++, above += dim, below += dim) {
        VEC sum[4];
        float some[4];
        int j, d;
        BASE_UNROLL
        for (j = 0; j < 4; j++) sum[j] = VEC_SET(0.0f);
        for (d = 0; d < dim; d += VEC_N) {
            VEC a = VEC_LOAD(above + d);
            BASE_UNROLL
            for (j = 0; j < 4; j++) sum[j] = VEC_FMA(a, VEC_HALF(high[j] + d), sum[j]);
            a = VEC_LOAD(below + d);
            BASE_UNROLL
            for (j = 0; j < 4; j++) sum[j] = VEC_FMA(a, VEC_HALF(low[j] + d), sum[j]);
        }
        SIMD(sum4)(some, sum[0], sum[1], sum[2], sum[3]);
        for (j = 0; j < 4; j++) score[j] = i && score[j] > some[j] ? score[j] : some[j];
    }
}

/* out [64] = sum over h of weights[h] * max(0, q[h] . key): keys [128, 64], the values of a dimension
 * side by side; q [heads, 128], heads even. A key's sums do not depend on those beside it. */
SIMD_FN static void SIMD(relu_dots)(const float *keys, const float *q, const float *weights,
                                    int heads, float *out) {
    for (int part = 0; part < SIMD_DOT_KEYS; part += 4 * VEC_N) {
        const VEC zero = VEC_SET(0.0f);
        VEC total[4];
        int i, j, d, h;
        BASE_UNROLL
        for (j = 0; j < 4; j++) total[j] = zero;
        for (h = 0; h < heads; h += 2) {
            const float *one = q + (int64_t)h * SIMD_DOT_DIM, *other = one + SIMD_DOT_DIM;
            VEC dots[2][4];
            BASE_UNROLL
            for (j = 0; j < 4; j++) dots[0][j] = dots[1][j] = zero;
            for (d = 0; d < SIMD_DOT_DIM; d++) {
                const VEC a = VEC_SET(one[d]), b = VEC_SET(other[d]);
                BASE_UNROLL
                for (j = 0; j < 4; j++) {
                    const VEC key = VEC_LOAD(keys + d * SIMD_DOT_KEYS + part + j * VEC_N);
                    dots[0][j] = VEC_FMA(a, key, dots[0][j]);
                    dots[1][j] = VEC_FMA(b, key, dots[1][j]);
                }
            }
            BASE_UNROLL
            for (i = 0; i < 2; i++)
                BASE_UNROLL
                for (j = 0; j < 4; j++)
                    total[j] = VEC_FMA(VEC_SET(weights[h + i]), VEC_MAX(dots[i][j], zero), total[j]);
        }
        BASE_UNROLL
        for (j = 0; j < 4; j++) VEC_STORE(out + part + j * VEC_N, total[j]);
    }
}
