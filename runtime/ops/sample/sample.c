/* sample: one row of logits to one token, on the CPU. */

/* A candidate: (logit - max) / temperature, and what it weighs in the set being cut. */
typedef struct sample_candidate { float score, weight; } sample_candidate;

/* ---- random ---------------------------------------------------------------------------------- */

/* Philox4x32-10: counter and key -> 4 random words. */
static void sample_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t k0 = key[0], k1 = key[1];
    memcpy(out, counter, 4 * sizeof *out);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * out[0], p1 = (uint64_t)0xCD9E8D57u * out[2];
        uint32_t next0 = (uint32_t)(p1 >> 32) ^ out[1] ^ k0;
        uint32_t next2 = (uint32_t)(p0 >> 32) ^ out[3] ^ k1;
        out[1] = (uint32_t)p1;
        out[3] = (uint32_t)p0;
        out[0] = next0;
        out[2] = next2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

/* In [0, 1), multiples of 2^-24: the numbers for the token at `position`, to draw it and to keep it. */
static void sample_uniforms(uint64_t seed, int64_t position, float *draw, float *keep) {
    uint32_t key[2], counter[4] = {0, 0, 0, 0}, words[4];
    key[0] = (uint32_t)seed;
    key[1] = (uint32_t)(seed >> 32);
    counter[0] = (uint32_t)position;
    sample_philox(counter, key, words);
    *draw = (float)(words[0] >> 8) * 5.9604644775390625e-8f; /* 2^-24 */
    *keep = (float)(words[1] >> 8) * 5.9604644775390625e-8f;
}

static float sample_uniform(uint64_t seed, int64_t position) {
    float draw, keep;
    sample_uniforms(seed, position, &draw, &keep);
    return draw;
}

/* ---- greedy and penalty ---------------------------------------------------------------------- */

static int32_t sample_argmax(const float *logits, int vocab) { return simd_for(0)->argmax(logits, vocab); }

static void sample_penalize(float *logits, int vocab, const int32_t *sequence, int64_t count,
                            float penalty, uint8_t *seen) {
    memset(seen, 0, ((size_t)vocab + 7) / 8);
    for (int64_t i = 0; i < count; i++) {
        int32_t id = sequence[i];
        uint8_t bit;
        if (id < 0 || id >= vocab) continue;
        bit = (uint8_t)(1u << (id & 7));
        if (seen[id >> 3] & bit) continue;
        seen[id >> 3] |= bit;
        logits[id] = logits[id] > 0.0f ? logits[id] / penalty : logits[id] * penalty;
    }
}

/* ---- logarithms of probabilities ------------------------------------------------------------- */

/* Greater logit first, then the lower id; a NaN is below everything. */
static uint64_t sample_rank(const float *logits, int id) {
    const float logit = logits[id] + 0.0f;
    uint32_t bits;
    memcpy(&bits, &logit, sizeof bits);
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (uint64_t)(logit == logit ? bits : 0) << 32 | (uint32_t)~id;
}

/* Of the softmax: out [1 + best] of the token and of the best, which are found one after another. */
static void sample_logprobs_row(const float *logits, int vocab, int32_t token, int best,
                                cairn_logprob *out) {
    const float top = logits[sample_argmax(logits, vocab)];
    uint64_t last = UINT64_MAX;
    double sum = 0.0;
    for (int i = 0; i < vocab; i++)
        if (logits[i] <= top) sum += exp((double)logits[i] - (double)top);
    for (int n = 0; n <= best; n++) {
        uint64_t next = 0;
        for (int i = 0; i < vocab && n; i++) {
            uint64_t mine = sample_rank(logits, i);
            if (mine < last && mine > next) next = mine;
        }
        if (n) token = (int32_t)~(uint32_t)next, last = next;
        out[n].id = token;
        out[n].logprob = logits[token] > -INFINITY
                             ? (float)((double)logits[token] - (double)top - log(sum))
                             : -INFINITY;
    }
}

/* ---- thresholds ------------------------------------------------------------------------------ */

static float sample_median(float a, float b, float c) {
    float low = a < b ? a : b, high = a < b ? b : a;
    return c < low ? low : c > high ? high : c;
}

/* The lowest score that is kept when a candidate is kept while the weight of all strictly better
 * ones is below `limit` (> 0). Reorders the candidates; expected time linear in count (>= 1). */
static float sample_threshold(sample_candidate *c, int count, double limit) {
    double above = 0.0; /* weight of what is better than all of c[0, count) */
    for (;;) {
        float pivot = sample_median(c[0].score, c[count / 2].score, c[count - 1].score);
        double better_weight = 0.0, equal_weight = 0.0;
        int better = 0, equal = 0; /* c = better | equal | worse */
        for (int i = 0; i < count; i++) {
            sample_candidate at = c[i];
            if (at.score < pivot) continue;
            c[i] = c[better + equal];
            c[better + equal] = at;
            if (at.score == pivot) {
                equal_weight += (double)at.weight;
                equal++;
                continue;
            }
            better_weight += (double)at.weight;
            c[better + equal] = c[better];
            c[better++] = at;
        }
        if (above + better_weight >= limit && better) {
            count = better;
            continue;
        }
        above += better_weight + equal_weight;
        if (above >= limit || better + equal == count) return pivot;
        c += better + equal;
        count -= better + equal;
    }
}

/* Fills the candidates of score >= least; weighs each 1, or its probability times some constant.
 * Returns how many there are. */
static int sample_gather(const float *scores, int vocab, float least, bool probability,
                         sample_candidate *out, double *total) {
    int count = 0;
    *total = 0.0;
    for (int i = 0; i < vocab; i++) {
        if (!(scores[i] >= least)) continue;
        out[count].score = scores[i];
        out[count].weight = probability ? expf(scores[i]) : 1.0f;
        *total += (double)out[count++].weight;
    }
    return count;
}

static float sample_cut_top_k(const sample_params *p, const float *scores, int vocab,
                              sample_candidate *scratch) {
    double total;
    int count;
    if (p->top_k <= 0 || p->top_k >= vocab) return -INFINITY;
    count = sample_gather(scores, vocab, -INFINITY, false, scratch, &total);
    return count ? sample_threshold(scratch, count, (double)p->top_k) : -INFINITY;
}

static float sample_cut_top_p(const sample_params *p, const float *scores, int vocab, float least,
                              sample_candidate *scratch) {
    double total;
    int count;
    if (p->top_p <= 0.0f || p->top_p >= 1.0f) return -INFINITY;
    count = sample_gather(scores, vocab, p->top_p_first ? -INFINITY : least, true, scratch, &total);
    return count ? sample_threshold(scratch, count, (double)p->top_p * total) : -INFINITY;
}

/* The lowest score kept by top_k, top_p and min_p together. */
static float sample_cut(const sample_params *p, const float *scores, int vocab,
                        sample_candidate *scratch) {
    float top_k = sample_cut_top_k(p, scores, vocab, scratch);
    float top_p = sample_cut_top_p(p, scores, vocab, top_k, scratch);
    float least = top_k > top_p ? top_k : top_p;
    if (p->min_p > 0.0f) {
        float min_p = logf(p->min_p); /* the best score is 0 */
        if (min_p > least) least = min_p > 0.0f ? 0.0f : min_p;
    }
    return least;
}

/* ---- draw ------------------------------------------------------------------------------------ */

/* scores [vocab], kept where >= least: the first token whose cumulative probability exceeds u. */
static int32_t sample_draw(const float *scores, int vocab, float least, float u) {
    double total = 0.0, target, sum = 0.0;
    int32_t last = 0;
    for (int i = 0; i < vocab; i++)
        if (scores[i] >= least) total += (double)expf(scores[i]);
    target = (double)u * total;
    for (int i = 0; i < vocab && sum <= target; i++) {
        const float weight = scores[i] >= least ? expf(scores[i]) : 0.0f;
        if (weight > 0.0f) last = i;
        sum += (double)weight;
    }
    return last;
}

static size_t sample_scratch_bytes(int vocab) {
    return (size_t)vocab * (sizeof(float) + sizeof(sample_candidate));
}

/* Scores of a row into the scratch, and the least that is kept; NULL: nothing is drawn, *best is the
 * next. */
static const float *sample_scores(const sample_params *p, const float *logits, int vocab,
                                  void *scratch, int32_t *best, float *least) {
    sample_candidate *candidates = (sample_candidate *)scratch;
    float *scores, top;
    *best = sample_argmax(logits, vocab);
    top = logits[*best];
    if (p->temperature <= 0.0f || !(top > -INFINITY && top < INFINITY)) return NULL;
    scores = (float *)(candidates + vocab); /* greedy rows need none and may have no scratch */
    for (int i = 0; i < vocab; i++) {
        float distance = logits[i] - top;
        scores[i] = distance < 0.0f ? distance / p->temperature
                                    : distance >= 0.0f ? 0.0f : -INFINITY;
    }
    *least = sample_cut(p, scores, vocab, candidates);
    return scores;
}

static int32_t sample_token(const sample_params *p, const float *logits, int vocab,
                            int64_t position, void *scratch) {
    int32_t best;
    float least;
    const float *scores = sample_scores(p, logits, vocab, scratch, &best, &least);
    if (!scores) return best;
    return sample_draw(scores, vocab, least, sample_uniform(p->seed, position));
}
