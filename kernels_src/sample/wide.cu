/* sample_wide: the next token of each row for any cuts (sample/few.cu is for a small top_k and for
 * greedy). The result is that of sample/sample.cuh's passes over the row, bit for bit.
 *
 * A row is a cluster's, or below sm_90 a block's; each block has a slice of ids, each warp a span.
 * Scores that were made once stay in shared memory. A cut finds its threshold by exact sums in bins:
 * first of all scores by their distance from the best, then by bits of those in the one bin in which
 * the sum crosses the limit, which are few, as a rule, and listed. Each block adds up its share of
 * the cluster's bins.
 * Launch     grid rows x parts, clusters of parts (<= 16), block 512, shared 25264 bytes, + 4 for
 *            each id of a slice, of 16384 at most, + slice / 8 with a history
 * matrix: | CAIRN_MASKS=1 */
#include "device/common.cuh"
#ifndef CAIRN_MASKS
#define CAIRN_MASKS 0 /* 1: with masks, and with parameters of rows */
#endif
#include "abi/sample.h"
#define THREADS 512
#include "sample/sample.cuh"

#define HELD 16384
#define LISTED 2048
#define STEP (WARP * 4)

struct alignas(16) wide_shared {
    uint32_t low[BINS], high[BINS]; /* the slice's sums; then, of this block's share, the row's */
    uint32_t list[LISTED];          /* score keys of the slice in one bin */
    uint64_t scratch[64];
    uint64_t warps[WARPS]; /* weights of the spans */
    uint64_t best, whole;  /* what the other blocks read */
    crossing at;
    uint32_t count;
}; /* then the held scores, then, with a history, slice bits */
static_assert(sizeof(wide_shared) == 25264, "wide_shared: OPS_WIDE_SHARED of the host");

/* ---- the blocks of a row ---- */

#if CAIRN_ARCH >= 900
CAIRN_INLINE int parts() { return cluster_size(); }
CAIRN_INLINE int part() { return cluster_rank(); }
CAIRN_INLINE void row_sync() { cluster_sync(); }
template <class T> CAIRN_INLINE T of_part(const T &here, int at) {
    return remote_load<T>(remote(shared_addr((void *)&here), at));
}
#else
CAIRN_INLINE int parts() { return 1; }
CAIRN_INLINE int part() { return 0; }
CAIRN_INLINE void row_sync() { block_sync(); }
template <class T> CAIRN_INLINE T of_part(const T &here, int) { return here; }
#endif

/* A warp's span of its block's slice. */
struct wide_span {
    row_view row;
    int first, from, end; /* of the slice; of the span */
    bool aligned, scored; /* scored: held are the first HELD of the slice */
};

/* NaN past the end. */
CAIRN_INLINE void load_logits(const wide_span &w, int at, float *out) {
    if (w.aligned && at + 4 <= w.end) {
        const f32x4 v = load_constant((const f32x4 *)(w.row.logits + at));
        out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) out[i] = at + i < w.end ? w.row.logits[at + i] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        out[i] = at + i < w.end ? penalized_of(w.row, at + i, out[i]) : as_f32(0x7fffffffu);
}

/* The scores of four ids; NaN past the end. */
CAIRN_INLINE void load_scores(wide_shared &s, const wide_span &w, int at, float *out) {
    const int slot = at - w.first;
    f32x4 *held = (f32x4 *)((float *)(&s + 1) + slot);
    if (w.scored && slot < HELD) {
        const f32x4 v = *held;
        out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
        return;
    }
    load_logits(w, at, out);
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (at + i < w.end) out[i] = score_of(w.row, out[i]);
    if (slot < HELD) *held = {out[0], out[1], out[2], out[3]};
}

/* f(score) for each of the span. */
template <class F> CAIRN_INLINE void each_score(wide_shared &s, wide_span &w, const F &f) {
#pragma unroll 1
    for (int at = w.from + lane_id() * 4; at < w.end; at += STEP) {
        float scores[4];
        load_scores(s, w, at, scores);
#pragma unroll
        for (int i = 0; i < 4; i++) f(scores[i]);
    }
    w.scored = true;
}

/* ---- bins ---- */

/* Two words a sum, since the adder of shared memory has one. */
CAIRN_INLINE void add_to_bin(wide_shared &s, uint32_t bin, uint64_t value) {
    const uint32_t low = (uint32_t)value;
    uint32_t high = (uint32_t)(value >> 32);
    if (low) high += atomic_add(&s.low[bin], low) > ~low; /* it carries */
    if (high) atomic_add(&s.high[bin], high);
}

CAIRN_INLINE void clear_bins(wide_shared &s) {
    for (int i = thread_id(); i < BINS; i += THREADS) s.low[i] = s.high[i] = 0;
    block_sync();
}

/* The slices' sums into the shares'; s.whole is the share's. */
CAIRN_INLINE void sum_bins(wide_shared &s) {
    const int count = BINS / parts(), first = part() * count;
    uint64_t all = 0;
#pragma unroll 1
    for (int i = first + thread_id(); i < first + count; i += THREADS) {
        uint64_t sum = 0;
#pragma unroll 4
        for (int b = 0; b < parts(); b++)
            sum += ((uint64_t)of_part(s.high[i], b) << 32) + of_part(s.low[i], b);
        s.low[i] = (uint32_t)sum, s.high[i] = (uint32_t)(sum >> 32);
        all += sum;
    }
    all = block_sum(all, s.scratch);
    if (thread_id() == 0) s.whole = all;
}

/* As find_crossing, of the bins from block `owner`'s share. */
CAIRN_INLINE void find_in_share(wide_shared &s, int owner, uint64_t above, uint64_t limit) {
    const int count = BINS / parts(), each = max_of(count / THREADS, 1);
    const int top = (owner + 1) * count - 1 - thread_id() * each;
    const bool mine = thread_id() * each < count;
    uint64_t bins[BINS / THREADS], own = 0;
#pragma unroll
    for (int i = 0; i < BINS / THREADS; i++) {
        bins[i] = 0;
        if (mine && i < each)
            bins[i] = (uint64_t)of_part(s.high[top - i], owner) << 32 |
                      of_part(s.low[top - i], owner);
        own += bins[i];
    }
    uint64_t before = warp_scan(own);
    if (lane_id() == WARP - 1) s.scratch[warp_id()] = before;
    block_sync();
    before += above - own;
    for (int w = 0; w < warp_id(); w++) before += s.scratch[w];
#pragma unroll
    for (int i = 0; i < BINS / THREADS; i++) {
        if (before < limit && before + bins[i] >= limit) s.at = {(uint32_t)(top - i), before};
        before += bins[i];
    }
}

/* The bin, from the top, in which the sum over the row reaches limit_of(the sum of all); BINS when
 * none does. Every block is told; the bins are free again. */
template <class L> CAIRN_INLINE crossing cross(wide_shared &s, const L &limit_of) {
    row_sync();
    sum_bins(s);
    row_sync();
    const int down = parts() - 1 - lane_id();
    const uint64_t mine = down >= 0 ? of_part(s.whole, down) : 0, sum = warp_scan(mine);
    const uint64_t limit = limit_of(shuffle(sum, WARP - 1));
    const uint32_t over = warp_ballot(sum >= limit);
    crossing found = {BINS, 0};
    if (over) {
        const int lane = find_first_set(over) - 1;
        find_in_share(s, parts() - 1 - lane, shuffle(sum - mine, lane), limit);
        block_sync();
        found = s.at;
    }
    row_sync();
    return found;
}

/* ---- cuts ---- */

/* 64 bins a unit, the best score's on top. */
CAIRN_INLINE uint32_t bin_of(float s) {
    return (uint32_t)(BINS - 1 - (int)min_of(s * -64.0f, (float)(BINS - 1)));
}

struct key_range { uint32_t low, high; };

CAIRN_INLINE key_range keys_of(uint32_t bin) {
    const float from = (float)(BINS - 1 - (int)bin) * -0.015625f;
    const uint32_t below = score_key(from - 0.015625f), none = score_key(minus_infinity());
    return {bin ? below + 1 : none, score_key(from)};
}

/* The keys of the slice in one bin to the list; whether all found room. */
CAIRN_INLINE bool list_bin(wide_shared &s, wide_span &w, float least, uint32_t bin) {
    if (thread_id() == 0) s.count = 0;
    block_sync();
    each_score(s, w, [&](float score) {
        if (!(score >= least) || bin_of(score) != bin) return;
        const uint32_t at = atomic_add(&s.count, 1u);
        if (at < LISTED) s.list[at] = score_key(score);
    });
    block_sync();
    return s.count <= LISTED;
}

/* The least score that is kept, as cut() has it: of counts, `count` reaches the limit; with count 0
 * of weights, top_p's share of them all. */
CAIRN_INLINE float cut_wide(wide_shared &s, wide_span &w, float least, uint64_t count,
                            float top_p) {
    uint64_t limit = count;
    clear_bins(s);
    each_score(s, w, [&](float score) {
        if (score >= least) add_to_bin(s, bin_of(score), count ? (uint64_t)1 : weight(score));
    });
    crossing at = cross(s, [&](uint64_t total) {
        if (!count) limit = mass_limit(top_p, total);
        return limit;
    });
    if (at.bin == BINS) return least; /* all together stay below the limit */
    key_range keys = keys_of(at.bin);
    const bool listed = list_bin(s, w, least, at.bin);
    while (keys.low < keys.high) {
        int shift = 0;
        while ((keys.high - keys.low) >> shift >= BINS) shift++;
        const auto add = [&](uint32_t key) {
            if (key < keys.low || key > keys.high) return;
            const uint32_t bin = (key - keys.low) >> shift;
            add_to_bin(s, bin, count ? (uint64_t)1 : weight(score_of_key(key)));
        };
        limit -= at.above;
        clear_bins(s);
        if (listed)
            for (int i = thread_id(); i < (int)s.count; i += THREADS) add(s.list[i]);
        else
            each_score(s, w, [&](float score) { if (score >= least) add(score_key(score)); });
        at = cross(s, [&](uint64_t) { return limit; });
        keys.low += at.bin << shift;
        keys.high = min_of(keys.high, keys.low + (1u << shift) - 1);
    }
    return score_of_key(keys.low);
}

CAIRN_INLINE float keep_wide(const sample_kernel_params &p, wide_shared &s, wide_span &w) {
    const float all = minus_infinity();
    float least = all;
    if (p.top_k > 0 && p.top_k < p.vocab)
        least = cut_wide(s, w, all, (uint64_t)p.top_k, 0.0f);
    if (p.top_p > 0.0f && p.top_p < 1.0f)
        least = max_of(least, cut_wide(s, w, p.top_p_first ? all : least, 0, p.top_p));
    if (p.min_p > 0.0f) least = max_of(least, min_of(log_f32(p.min_p), 0.0f));
    return least;
}

/* ---- draw ---- */

/* The rank of the row's best token; its high half is 0 when nothing is above -inf. */
CAIRN_INLINE uint64_t best_of(wide_shared &s, const wide_span &w) {
    float best = minus_infinity();
    int id = -1;
#pragma unroll 1
    for (int at = w.from + lane_id() * 4; at < w.end; at += STEP) {
        float logits[4];
        load_logits(w, at, logits);
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (logits[i] > best) best = logits[i], id = at + i;
    }
    uint64_t all = block_best(id < 0 ? 0 : rank(best, id), s.scratch);
    if (thread_id() == 0) s.best = all;
    row_sync();
    return warp_max(lane_id() < parts() ? of_part(s.best, lane_id()) : 0);
}

/* Whether any logit of the row is a number; by all of a block. */
CAIRN_INLINE bool has_number(const row_view &row) {
    bool number = false;
#pragma unroll 1
    for (int i = thread_id(); i < row.vocab && !number; i += THREADS)
        number = !is_masked(row.mask, i) && row.logits[i] == row.logits[i];
    return block_sync_or(number);
}

/* Where, in the span, the sum of weights from `before` on exceeds target; by one warp. */
CAIRN_INLINE int draw_span(wide_shared &s, const wide_span &w, float least, uint64_t before,
                           uint64_t target) {
    for (int base = w.from; base < w.end; base += STEP) {
        float scores[4];
        uint64_t weights[4], own = 0;
        const int at = base + lane_id() * 4;
        if (at < w.end) load_scores(s, w, at, scores);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            weights[i] = at < w.end && scores[i] >= least ? weight(scores[i]) : 0;
            own += weights[i];
        }
        const uint64_t sum = before + warp_scan(own);
        const uint32_t over = warp_ballot(sum > target);
        before = shuffle(sum, WARP - 1);
        if (!over) continue;
        uint64_t upto = sum - own;
        int id = at;
#pragma unroll
        for (int i = 0; i < 3; i++) upto += weights[i], id += upto <= target;
        return shuffle(id, find_first_set(over) - 1);
    }
    return w.from;
}

/* The first id, ascending, whose cumulative weight exceeds u * total, to *out. */
CAIRN_INLINE void draw_wide(wide_shared &s, wide_span &w, float least, float u, int32_t *out) {
    uint64_t mine = 0;
    each_score(s, w, [&](float score) { if (score >= least) mine += weight(score); });
    mine = warp_sum(mine);
    if (lane_id() == 0) s.warps[warp_id()] = mine;
    block_sync();
    const uint64_t block = warp_sum(lane_id() < WARPS ? s.warps[lane_id()] : (uint64_t)0);
    if (thread_id() == 0) s.whole = block;
    row_sync();
    uint64_t before = warp_scan(lane_id() < parts() ? of_part(s.whole, lane_id()) : (uint64_t)0);
    const uint64_t target = (uint64_t)((double)u * (double)shuffle(before, WARP - 1));
    before = shuffle(before, part()) - block;
    for (int i = 0; i < warp_id(); i++) before += s.warps[i];
    if (before > target || target >= before + mine) return;
    const int id = draw_span(s, w, least, before, target);
    if (lane_id() == 0) *out = id;
}

CAIRN_INLINE void sample_row_wide(const sample_kernel_params &p, wide_shared &s, int r) {
    const int slice = round_up(ceil_div(p.vocab, parts()), STEP);
    const int first = min_of(part() * slice, p.vocab), end = min_of(first + slice, p.vocab);
    const int span = round_up(ceil_div(slice, WARPS), STEP), from = first + warp_id() * span;
    uint32_t *seen = (uint32_t *)((float *)(&s + 1) + min_of(slice, HELD));
    wide_span w = {{p.logits + (int64_t)r * p.vocab,
                    p.history ? seen - part() * (slice / 32) : nullptr, p.vocab,
                    p.repetition_penalty, 0.0f, p.temperature, mask_of(p, r)},
                   first, min_of(from, end), min_of(from + span, end),
                   p.vocab % 4 == 0 && (uint64_t)p.logits % 16 == 0, false};
    if (p.history) mark_history(p, seen, r, first, end);
    const uint64_t best = best_of(s, w);
    const int token = best ? (int)~(uint32_t)best : first_token(p, w.row.mask, has_number(w.row));
    w.row.top = best ? logit_of((uint32_t)(best >> 32)) : minus_infinity();
    if (p.temperature > 0.0f && best && w.row.top < as_f32(0x7f800000u))
        draw_wide(s, w, keep_wide(p, s, w), uniform(p, r), p.tokens + r);
    else if (part() == 0 && thread_id() == 0)
        p.tokens[r] = token;
    row_sync(); /* none ends while another reads from it */
}

CAIRN_KERNEL(sample_wide, THREADS, CAIRN_MASKS ? 1 : 2, sample_kernel_params) {
    const int r = block_id() / parts();
    const int32_t kind = p.rules ? p.rules[r].skip : CAIRN_SAMPLE_WIDE;
    if (!(kind & CAIRN_SAMPLE_WIDE)) return;
    sample_kernel_params own = row_params(params_of(p, r), r);
    if (kind & CAIRN_SAMPLE_TOP_P_FIRST) own.top_p_first = 1;
    sample_row_wide(own, shared_as<wide_shared>(), r);
}
