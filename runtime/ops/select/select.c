/* select: candidates, scores, bounds and the choice, on the CPU. See select.h. */

static int select_candidates(const select_rule *rule, int position) {
    return layout_candidates(position, rule->window, rule->page_size);
}

/* Bits that order as the score does: NaN lowest, then -inf; -0 as +0. */
static uint32_t select_key(float score) {
    uint32_t bits;
    if (score != score) return 0;
    score += 0.0f;
    memcpy(&bits, &score, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* The k-th greatest of keys [count], 1 <= k <= count; *above: how many are greater. */
static uint32_t select_threshold(const uint32_t *keys, int count, int k, int *above) {
    uint32_t prefix = 0, mask = 0;
    int left = k;
    for (int shift = 24; shift >= 0; shift -= 8) {
        int histogram[256] = {0}, digit = 255, i;
        for (i = 0; i < count; i++)
            if ((keys[i] & mask) == prefix) histogram[keys[i] >> shift & 255]++;
        while (histogram[digit] < left) left -= histogram[digit--];
        prefix |= (uint32_t)digit << shift;
        mask |= 255u << shift;
    }
    *above = k - left;
    return prefix;
}

static int select_top(const float *scores, int count, int k, uint32_t *keys, int32_t *ids) {
    uint32_t threshold = 0;
    int above, ties, made = 0, i;
    if (k >= count) {
        for (i = 0; i < count; i++) ids[i] = i;
        return count;
    }
    if (k <= 0) return 0;
    for (i = 0; i < count; i++) keys[i] = select_key(scores[i]);
    threshold = select_threshold(keys, count, k, &above);
    ties = k - above;
    for (i = 0; i < count; i++)
        if (keys[i] > threshold || (keys[i] == threshold && ties-- > 0)) ids[made++] = i;
    return made;
}

/* Keys of slots [first, end) of a page, in f16: at `to` where the cache has others. */
static const uint16_t *select_keys(const simd_kernels *simd, const select_pages *p,
                                   const select_rule *rule, int page, int first, int end,
                                   uint16_t *to) {
    const int64_t at = layout_slot(p->table[page], 0, p->head, first, p->kv_heads, rule->page_size,
                                   p->dim);
    float row[SIMD_MAX_DIM];
    if (p->type == CAIRN_F16) return (const uint16_t *)p->cache + at;
    for (int i = 0; i < end - first; i++) {
        const int64_t slot = at / p->dim + i;
        ops_read_values(simd, p->type, p->cache, slot * p->dim, p->dim,
                        p->scales ? p->scales[slot] : 1.0f, row);
        simd->to_half(row, to + i * p->dim, p->dim);
    }
    return to;
}

static void select_bounds(const simd_kernels *simd, const select_pages *p, const select_rule *rule,
                          int page, uint16_t *low, uint16_t *high) {
    const uint16_t *keys = select_keys(simd, p, rule, page, 0, rule->page_size, p->half);
    if (rule->mean) simd->mean(keys, rule->page_size, p->dim, low, high);
    else simd->bounds(keys, rule->page_size, p->dim, low, high);
}

static size_t select_bounds_at(const select_pages *p, int page) {
    return (size_t)layout_bounds(p->table[page], p->head, p->kv_heads, p->dim);
}

/* Query rows as score_pages4 takes them. Since max(q lo, q hi) is max(q, 0) hi + min(q, 0) lo, a
 * sum over heads is one product with the sums of the parts; a mean is the sum of its two halves.
 * above, below [vectors, dim]; returns vectors: 1, or one per head. */
static int select_vectors(const select_rule *rule, const float *q, int group, int dim, float *above,
                          float *below) {
    int vectors = rule->head ? group : 1;
    memset(above, 0, (size_t)(vectors * dim) * sizeof *above);
    memset(below, 0, (size_t)(vectors * dim) * sizeof *below);
    for (int g = 0; g < group; g++)
        for (int d = 0; d < dim; d++) {
            int at = (rule->head ? g * dim : 0) + d;
            float value = q[g * dim + d];
            bool positive = value > 0.0f;
            if (positive || rule->mean || rule->landmark) above[at] += value;
            if (rule->mean || !(positive || rule->landmark)) below[at] += value;
        }
    return vectors;
}

static void select_score(const simd_kernels *simd, const select_pages *p, const select_rule *rule,
                         const float *q, int group, int candidates, float *scratch, float *scores) {
    uint16_t fresh[4 * 2 * SIMD_MAX_DIM];
    const int dim = p->dim;
    float *below = scratch + group * dim, some[4];
    int vectors = select_vectors(rule, q, group, dim, scratch, below);
    for (int first = 0; first < candidates; first += 4) {
        const uint16_t *low[4], *high[4];
        int count = candidates - first < 4 ? candidates - first : 4;
        for (int j = 0; j < 4; j++) {
            uint16_t *made = fresh + j * 2 * SIMD_MAX_DIM;
            int page = first + (j < count ? j : 0);
            if (rule->landmark) {
                low[j] = high[j] = select_keys(simd, p, rule, page, rule->page_size - 1,
                                               rule->page_size, made);
            } else if (page < p->stored) {
                low[j] = p->bounds + select_bounds_at(p, page);
                high[j] = low[j] + dim;
            } else {
                select_bounds(simd, p, rule, page, made, made + dim);
                low[j] = made;
                high[j] = made + dim;
            }
        }
        simd->score_pages4(scratch, below, vectors, high, low, dim, some);
        memcpy(scores + first, some, (size_t)count * sizeof *scores);
    }
}

static void select_soften(const float *own, int group, int64_t stride, int candidates,
                          const float *lse, float *scores) {
    for (int c = 0; c < candidates; c++) scores[c] = -INFINITY;
    for (int g = 0; g < group; g++, own += stride) {
        float top = lse && lse[g] > -INFINITY ? lse[g] : -INFINITY;
        double sum = 0.0, besides = (double)top;
        for (int c = 0; c < candidates; c++)
            if (own[c] > top) top = own[c];
        for (int c = 0; c < candidates; c++)
            if (own[c] > -INFINITY) sum += exp((double)own[c] - (double)top);
        if (besides > -INFINITY) sum += exp(besides - (double)top);
        for (int c = 0; c < candidates; c++) {
            const float s = (float)((double)own[c] - ((double)top + log(sum)));
            if (own[c] > -INFINITY && s > scores[c]) scores[c] = s;
        }
    }
}
