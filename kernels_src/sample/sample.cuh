/* sample/sample.cuh: what the samplers share. The kernel that includes it defines THREADS, 512 or 1024.
 *
 * In this order: repetition penalty, s = (logit - max) / temperature, top_k, top_p, min_p, draw.
 * With CAIRN_MASKS 1 a token whose bit is not set is as one whose logit is a NaN.
 * What is kept is every token whose score reaches a threshold, so ties are kept. A token's weight
 * e^s is a multiple of 2^-40 in 64 bits: sums are exact, in any order, and the draw walks ascending
 * ids. */

#define BINS 2048
#define WARPS (THREADS / WARP)
#if THREADS == 512
#define ROW_LOOP _Pragma("unroll 1") /* beside the fast path's registers */
#else
#define ROW_LOOP
#endif

/* The parameters of row r. */
CAIRN_INLINE sample_kernel_params params_of(const sample_kernel_params &given, int r) {
    sample_kernel_params p = given;
    if (!given.rules) return p;
    const sample_rule rule = given.rules[r];
    p.seeds = nullptr, p.positions = nullptr;
    p.seed = rule.seed, p.position_first = rule.position, p.position_step = 0;
    p.top_k = rule.top_k, p.top_p_first = 0;
    p.temperature = rule.temperature, p.top_p = rule.top_p, p.min_p = rule.min_p;
#if CAIRN_MASKS
    if (rule.skip & CAIRN_SAMPLE_UNMASKED) p.masks = nullptr;
#endif
    return p;
}

#if CAIRN_MASKS
/* The parameters of row r: what is out of range is off. */
CAIRN_INLINE sample_kernel_params row_params(const sample_kernel_params &given, int r) {
    sample_kernel_params p = given;
    if (p.temperatures) p.temperature = p.temperatures[r];
    if (p.top_ps) p.top_p = p.top_ps[r];
    if (p.min_ps) p.min_p = p.min_ps[r];
    if (p.penalties) p.repetition_penalty = p.penalties[r] > 0.0f ? p.penalties[r] : 1.0f;
    if (p.top_ks) p.top_k = p.top_ks[r];
    return p;
}
#else
#define row_params(given, r) (given)
#endif

/* ---- masks ---- */

/* Row r's, or NULL: all tokens may be drawn. */
CAIRN_INLINE const uint32_t *mask_of(const sample_kernel_params &p, int r) {
#if CAIRN_MASKS
    if (p.masks) return p.masks + (int64_t)r * ceil_div(p.vocab, 32);
#endif
    return nullptr;
}

CAIRN_INLINE bool is_masked(const uint32_t *mask, int id) {
    return CAIRN_MASKS && mask && !(mask[id / 32] >> (id % 32) & 1u);
}

/* The token of a row that has nothing above -inf: the lowest that may be drawn; where rows have rules that
 * is said of rows with a number alone. */
CAIRN_INLINE int first_token(const sample_kernel_params &p, const uint32_t *mask, bool number) {
    int id = 0;
    if (p.rules && !number) return CAIRN_SAMPLE_NO_NUMBER;
    while (CAIRN_MASKS && id < p.vocab && is_masked(mask, id)) id++;
    return id < p.vocab ? id : 0;
}

/* ---- argmax ---- */

/* Greater logit first, then the lower id; a NaN is below everything. */
CAIRN_INLINE uint64_t rank(float logit, int id) {
    uint32_t bits = as_u32(logit + 0.0f), key = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (uint64_t)(logit != logit ? 0u : key) << 32 | (uint32_t)~id;
}

/* A logit's half of its rank, and back. */
CAIRN_INLINE uint32_t key_of(float logit) { return (uint32_t)(rank(logit, 0) >> 32); }
CAIRN_INLINE float logit_of(uint32_t key) {
    return as_f32(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

/* The best of the block's ranks, in every thread. shared: [WARPS]. */
CAIRN_INLINE uint64_t block_best(uint64_t mine, uint64_t *shared) {
    mine = warp_max(mine);
    block_sync();
    if (lane_id() == 0) shared[warp_id()] = mine;
    block_sync();
    return warp_max(shared[lane_id() % WARPS]);
}

CAIRN_INLINE uint64_t block_sum(uint64_t mine, uint64_t *shared) {
    mine = warp_sum(mine);
    block_sync();
    if (lane_id() == 0) shared[warp_id()] = mine;
    block_sync();
    return warp_sum(lane_id() < WARPS ? shared[lane_id()] : (uint64_t)0);
}

/* ---- the row ---- */

struct row_view {
    const float *logits;
    const uint32_t *seen; /* [vocab bits], or NULL: no history */
    int vocab;
    float penalty, top, temperature;
    const uint32_t *mask; /* or NULL */
};

/* Logit i as the row's mask and history leave it. */
CAIRN_INLINE float penalized_of(const row_view &row, int i, float logit) {
    if (is_masked(row.mask, i)) return as_f32(0x7fffffffu);
    if (!row.seen || !(row.seen[i / 32] >> (i % 32) & 1u)) return logit;
    return logit > 0.0f ? div_f32(logit, row.penalty) : mul_f32(logit, row.penalty);
}

CAIRN_INLINE float penalized(const row_view &row, int i) {
    return penalized_of(row, i, row.logits[i]);
}

/* (logit - max) / temperature, at most 0; -inf for a NaN. */
CAIRN_INLINE float score_of(const row_view &row, float logit) {
    float distance = add_f32(logit, -row.top);
    if (distance < 0.0f) return div_f32(distance, row.temperature);
    return distance >= 0.0f ? 0.0f : minus_infinity();
}

CAIRN_INLINE float score(const row_view &row, int i) { return score_of(row, penalized(row, i)); }

CAIRN_INLINE uint64_t weight(float s) { return (uint64_t)(exp_f32(s) * 1099511627776.0f); }

/* Scores are 0 or below: their bits, inverted, order as they do. */
CAIRN_INLINE uint32_t score_key(float s) { return s == 0.0f ? 0x7fffffffu : ~as_u32(s); }
CAIRN_INLINE float score_of_key(uint32_t key) { return key == 0x7fffffffu ? 0.0f : as_f32(~key); }

/* The bits of row r's history among ids [first, last). */
CAIRN_INLINE void mark_history(const sample_kernel_params &p, uint32_t *seen, int r, int first,
                               int last) {
    for (int i = thread_id(); i < ceil_div(last - first, 32); i += THREADS) seen[i] = 0;
    block_sync();
    const int32_t *history = p.history + (int64_t)r * p.history_count;
    for (int i = thread_id(); i < p.history_count; i += THREADS) {
        int id = history[i];
        if (id >= first && id < last)
            atomic_or(&seen[(id - first) / 32], 1u << ((id - first) % 32));
    }
    block_sync();
}

/* ---- thresholds ---- */

struct crossing { uint32_t bin; uint64_t above; };

/* The bin, from the top, in which the running sum reaches `limit`, and the sum above it; the
 * lowest bin that holds anything when it never does. scratch: [36]. */
CAIRN_INLINE crossing find_crossing(const uint64_t *bins, uint64_t limit, uint64_t *scratch) {
    constexpr int each = BINS / THREADS;
    const int top = BINS - 1 - thread_id() * each;
    uint64_t own = 0;
#pragma unroll
    for (int i = 0; i < each; i++) own += bins[top - i];
    uint64_t above = warp_scan(own);
    if (lane_id() == WARP - 1) scratch[warp_id()] = above;
    if (thread_id() == 0) scratch[32] = BINS; /* no crossing */
    block_sync();
    above -= own;
    for (int w = 0; w < warp_id(); w++) above += scratch[w];
#pragma unroll 1
    for (int i = 0; i < each; i++) {
        const uint64_t mine = bins[top - i];
        if (above < limit && above + mine >= limit) {
            scratch[32] = (uint64_t)(top - i);
            scratch[33] = above;
        }
        above += mine;
    }
    block_sync();
    crossing found = {(uint32_t)scratch[32], scratch[33]};
    block_sync();
    return found;
}

/* The least score that is kept when a token is kept while the sum of all strictly better ones is
 * below `limit`: counts for top_k (mass false), weights for top_p, among scores >= least. */
CAIRN_INLINE float cut(const row_view &row, float least, uint64_t limit, bool mass, uint64_t *bins,
                       uint64_t *scratch) {
    uint32_t prefix = 0;
    uint64_t above = 0;
#pragma unroll 1
    for (int shift = 21; shift >= -1; shift -= 11) {
        const int down = max_of(shift, 0), width = shift < 0 ? 10 : 11;
        for (int i = thread_id(); i < BINS; i += THREADS) bins[i] = 0;
        block_sync();
        ROW_LOOP
        for (int i = thread_id(); i < row.vocab; i += THREADS) {
            float s = score(row, i);
            uint32_t key = score_key(s);
            if (!(s >= least) || (shift < 21 && key >> (down + width) != prefix)) continue;
            atomic_add(&bins[key >> down & ((1u << width) - 1)], mass ? weight(s) : (uint64_t)1);
        }
        block_sync();
        crossing at = find_crossing(bins, limit - above, scratch);
        if (at.bin == BINS) return least; /* all together stay below the limit */
        above += at.above;
        prefix = prefix << (shift == 21 ? 0 : width) | at.bin;
    }
    return score_of_key(prefix);
}

/* The weight that top_p keeps of `total`: sums are whole, so below it is below its ceiling. */
CAIRN_INLINE uint64_t mass_limit(float top_p, uint64_t total) {
    const double limit = (double)top_p * (double)total;
    const uint64_t whole = (uint64_t)limit;
    return max_of(whole + ((double)whole < limit), (uint64_t)1);
}

CAIRN_INLINE uint64_t mass_from(const row_view &row, float least, uint64_t *shared) {
    uint64_t sum = 0;
    ROW_LOOP
    for (int i = thread_id(); i < row.vocab; i += THREADS) {
        float s = score(row, i);
        if (s >= least) sum += weight(s);
    }
    return block_sum(sum, shared);
}

CAIRN_INLINE float keep_from(const sample_kernel_params &p, const row_view &row, uint64_t *bins,
                             uint64_t *scratch) {
    const float all = minus_infinity();
    float least = all;
    if (p.top_k > 0 && p.top_k < p.vocab)
        least = cut(row, all, (uint64_t)p.top_k, false, bins, scratch);
    if (p.top_p > 0.0f && p.top_p < 1.0f) {
        float from = p.top_p_first ? all : least;
        uint64_t total = mass_from(row, from, scratch);
        least = max_of(least, cut(row, from, mass_limit(p.top_p, total), true, bins, scratch));
    }
    if (p.min_p > 0.0f) least = max_of(least, min_of(log_f32(p.min_p), 0.0f));
    return least;
}

/* ---- draw ---- */

/* Philox4x32-10, one of the first two words: key = seed, counter = (position, 0, 0, 0). */
template <int WORD = 0> CAIRN_INLINE uint32_t philox(uint64_t seed, uint32_t position) {
    uint32_t x[4] = {position, 0, 0, 0}, k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * x[0], b = (uint64_t)0xCD9E8D57u * x[2];
        x[0] = (uint32_t)(b >> 32) ^ x[1] ^ k0;
        x[2] = (uint32_t)(a >> 32) ^ x[3] ^ k1;
        x[1] = (uint32_t)b;
        x[3] = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return x[WORD];
}

/* In [0, 1), a multiple of 2^-24. */
CAIRN_INLINE float unit_of(uint32_t random) { return (float)(random >> 8) * 5.9604644775390625e-8f; }

/* The number for row r. */
CAIRN_INLINE float uniform(const sample_kernel_params &p, int r) {
    int64_t seed = p.seeds ? p.seeds[r] : p.seed;
    int position = (p.positions ? p.positions[r] : 0) + p.position_first + r * p.position_step;
    return unit_of(philox((uint64_t)seed, (uint32_t)position));
}

CAIRN_INLINE uint64_t weight_at(const row_view &row, int i, int end, float least) {
    if (i >= end) return 0;
    float s = score(row, i);
    return s >= least ? weight(s) : 0;
}

/* The first id, ascending, whose cumulative weight exceeds u * total; a warp has a span of ids.
 * weight_of(i, end): of id i, 0 from end on. */
template <class W>
CAIRN_INLINE int draw_by(int vocab, const W &weight_of, float u, int best, uint64_t *shared) {
    const int span = round_up(ceil_div(vocab, WARPS), WARP), first = warp_id() * span;
    const int end = min_of(first + span, vocab);
    uint64_t mine = 0, total = 0, before = 0;
    ROW_LOOP
    for (int i = first + lane_id(); i < end; i += WARP) mine += weight_of(i, end);
    mine = warp_sum(mine);
    block_sync();
    if (lane_id() == 0) shared[warp_id()] = mine;
    if (thread_id() == 0) shared[32] = (uint64_t)best;
    block_sync();
    for (int w = 0; w < WARPS; w++) {
        total += shared[w];
        before += w < warp_id() ? shared[w] : 0;
    }
    const uint64_t target = (uint64_t)((double)u * (double)total);
    if (before <= target && target < before + mine) {
        for (int base = first; base < end; base += WARP) {
            uint64_t sum = weight_of(base + lane_id(), end);
            for (int step = 1; step < WARP; step *= 2) {
                uint64_t below = shuffle_up(sum, step);
                if (lane_id() >= step) sum += below;
            }
            uint32_t over = warp_ballot(before + sum > target);
            if (over) {
                if (lane_id() == 0) shared[32] = (uint64_t)(base + find_first_set(over) - 1);
                break;
            }
            before += shuffle(sum, WARP - 1);
        }
    }
    block_sync();
    return (int)shared[32];
}

CAIRN_INLINE int draw(const row_view &row, float least, float u, int best, uint64_t *shared) {
    return draw_by(row.vocab, [&](int i, int end) { return weight_at(row, i, end, least); }, u, best,
                   shared);
}

/* What a row's cuts leave. */
struct row_cut {
    row_view row;
    float least; /* score of what is kept at least */
    int token;   /* the best, and the next unless drawn */
    bool drawn;
};

/* By passes over all of the row. seen: vocab bits; bins: [BINS]; scratch: [64]. */
CAIRN_INLINE row_cut cut_row(const sample_kernel_params &p, int r, uint32_t *seen, uint64_t *bins,
                             uint64_t *scratch) {
    row_cut c = {{p.logits + (int64_t)r * p.vocab, p.history ? seen : nullptr, p.vocab,
                  p.repetition_penalty, 0.0f, p.temperature, mask_of(p, r)}, 0.0f, 0, false};
    row_view &row = c.row;
    if (p.history) mark_history(p, seen, r, 0, p.vocab);
    uint64_t best = 0;
    ROW_LOOP
    for (int i = thread_id(); i < p.vocab; i += THREADS)
        best = max_of(best, rank(penalized(row, i), i));
    best = block_best(best, scratch);
    c.token = (int)~(uint32_t)best;
    row.top = penalized(row, c.token);
    const bool finite = row.top > minus_infinity() && row.top < as_f32(0x7f800000u);
    if (!(best >> 32) || row.top == minus_infinity()) /* nothing above -inf */
        c.token = first_token(p, row.mask, best >> 32 != 0);
    c.drawn = p.temperature > 0.0f && finite;
    if (c.drawn) c.least = keep_from(p, row, bins, scratch);
    return c;
}

/* The row's token, with the same memory. */
CAIRN_INLINE int sample_row(const sample_kernel_params &p, int r, uint32_t *seen, uint64_t *bins,
                            uint64_t *scratch) {
    const row_cut c = cut_row(p, r, seen, bins, scratch);
    return c.drawn ? draw(c.row, c.least, uniform(p, r), c.token, scratch) : c.token;
}
