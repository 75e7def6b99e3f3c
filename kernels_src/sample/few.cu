/* sample_few: the next token of each row when few tokens can be it: greedy, or a top_k of at most
 * 128 that comes first. The result is that of sample/wide.cu, bit for bit.
 *
 * Each of a row's blocks reads its slice once. The k-th largest of 256 groups' maxima is a bound
 * that k tokens of the slice reach and few others: those go to the block's list in global memory.
 * The row's last block to finish has then every token that can be kept, some hundreds, and cuts and
 * draws among them by comparing all with all. When a list does not hold them (ties by the hundred,
 * or a threshold that rounding blurs past a list's edge), one block passes over the row (sample.cuh).
 * Launch     grid (parts <= 32, rows), block 512, shared 41616 bytes, + vocab / 8 with a history;
 *            `arrived` is zero before and after
 * matrix: | CAIRN_MASKS=1 */
#include "device/common.cuh"
#ifndef CAIRN_MASKS
#define CAIRN_MASKS 0 /* 1: with masks, and with parameters of rows */
#endif
#include "abi/sample.h"
#define THREADS 512
#include "sample/sample.cuh"

#define ITEMS 16
#define TILE (THREADS * ITEMS)
#define GROUPS (THREADS / 2)
#define LISTED 4096 /* candidates of a block, then of all parts together */
#define CROWDED 1000 /* a list of more is cut back to what the k-th best leaves */
#define KEPT 512 /* candidates that top_k leaves */
#define LOWEST 0x00800000u /* key of the lowest finite logit */

struct kept_token { float score; int32_t id; uint64_t weight; };

struct few_shared {
    union {
        uint64_t bins[BINS];
        uint64_t list[LISTED]; /* key of the penalized logit << 32 | ~id */
    };
    union {
        kept_token kept[KEPT];
        uint32_t groups[GROUPS];
    };
    uint64_t scratch[64];
    uint32_t sums[2][WARPS];
    uint32_t edge, top, count, last;
}; /* then, with a history, vocab bits */
static_assert(sizeof(few_shared) == 41616, "few_shared: OPS_FEW_SHARED of the host");

/* ---- a tile: 16 logits a thread ---- */

/* Thread t holds ids base + (512 v + t) 4 + c, ascending in i = 4 v + c. */
CAIRN_INLINE int tile_id(int base, int i) {
    return base + ((i / 4) * THREADS + thread_id()) * 4 + i % 4;
}

struct tile { f32x4 part[ITEMS / 4]; };

/* NaN past the end. */
CAIRN_INLINE tile load_tile(const float *logits, int base, int end, bool aligned) {
    tile t;
    const bool whole = aligned && base + TILE <= end;
#pragma unroll
    for (int v = 0; v < ITEMS / 4; v++) {
        const int id = tile_id(base, 4 * v);
        if (whole) {
            t.part[v] = load_constant((const f32x4 *)(logits + id));
        } else {
            const float none = as_f32(0x7fffffffu);
            t.part[v].x = id < end ? logits[id] : none;
            t.part[v].y = id + 1 < end ? logits[id + 1] : none;
            t.part[v].z = id + 2 < end ? logits[id + 2] : none;
            t.part[v].w = id + 3 < end ? logits[id + 3] : none;
        }
    }
    return t;
}

/* Asks for the lines of a tile while the one before is worked on. */
CAIRN_INLINE void expect_tile(const float *logits, int base, int end) {
#pragma unroll
    for (int v = 0; v < ITEMS / 4; v++)
        if (thread_id() % 8 == 0 && tile_id(base, 4 * v) < end)
            prefetch_l2(logits + tile_id(base, 4 * v));
}

/* Keys of the penalized logits; seen: bits from id `first` on. */
CAIRN_INLINE void tile_keys(const sample_kernel_params &p, const tile &t, const uint32_t *seen,
                            int base, int first, int end, uint32_t *keys) {
    const uint32_t *mask = mask_of(p, block_id_y());
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        const f32x4 &f = t.part[i / 4];
        float logit = i % 4 == 0 ? f.x : i % 4 == 1 ? f.y : i % 4 == 2 ? f.z : f.w;
        const int id = tile_id(base, i), bit = id - first;
        if (p.history && id < end && (seen[bit / 32] >> (bit % 32) & 1u))
            logit = logit > 0.0f ? div_f32(logit, p.repetition_penalty)
                                 : mul_f32(logit, p.repetition_penalty);
        keys[i] = CAIRN_MASKS && id < end && is_masked(mask, id) ? 0 : key_of(logit);
    }
}

/* A bound that the maxima of k or few more of 256 groups reach, and the greatest, to shared edge
 * and top; by one warp. */
CAIRN_INLINE void bound_tile(few_shared &s, const uint32_t *keys, int k) {
    uint32_t mine = 0;
#pragma unroll
    for (int i = 0; i < ITEMS; i++) mine = max_of(mine, keys[i]);
    mine = max_of(mine, shuffle_xor(mine, 1));
    if (thread_id() % 2 == 0) s.groups[thread_id() / 2] = mine;
    block_sync();
    if (warp_id() == 0) {
        uint32_t group[GROUPS / WARP], least = ~0u, most = 0;
#pragma unroll
        for (int i = 0; i < GROUPS / WARP; i++) {
            group[i] = s.groups[i * WARP + lane_id()];
            least = min_of(least, group[i]);
            most = max_of(most, group[i]);
        }
        uint32_t low = redux_min(least), high = redux_max(most);
        if (lane_id() == 0) s.top = high;
        while (low < high) { /* k or more reach low */
            const uint32_t middle = low + (high - low + 1) / 2;
            uint32_t reach = 0;
#pragma unroll
            for (int i = 0; i < GROUPS / WARP; i++) reach += group[i] >= middle;
            reach = redux_add(reach);
            if (reach >= (uint32_t)k) low = middle;
            else high = middle - 1;
            if (reach >= (uint32_t)k && reach <= (uint32_t)(k + k / 16)) break;
        }
        if (lane_id() == 0) s.edge = low;
    }
    block_sync();
}

/* A little below the bound, so that scores which round to one are on one side of it. */
CAIRN_INLINE uint32_t widen(uint32_t edge, uint32_t top) {
    if (edge <= LOWEST) return LOWEST;
    float bound = logit_of(edge), best = logit_of(top);
    float slack = (fabsf(bound) + fabsf(best)) * 3.814697265625e-6f; /* 2^-18 */
    if (!(slack < as_f32(0x7f800000u))) return edge;
    return max_of(key_of(bound - slack), LOWEST);
}

/* ---- the list ---- */

CAIRN_INLINE uint32_t block_count(few_shared &s, uint32_t mine, int round) {
    mine = redux_add(mine);
    if (lane_id() == 0) s.sums[round & 1][warp_id()] = mine;
    block_sync();
    return redux_add(lane_id() < WARPS ? s.sums[round & 1][lane_id()] : 0u);
}

/* The k-th largest key of the list, or the least when there are fewer. k or more reach edge, none
 * exceeds top. */
CAIRN_INLINE uint32_t find_threshold(few_shared &s, int count, int k, uint32_t edge, uint32_t top) {
    uint32_t keys[LISTED / THREADS], low = edge, high = top, least = top;
    int round = 0;
#pragma unroll
    for (int i = 0; i < LISTED / THREADS; i++) {
        int at = i * THREADS + thread_id();
        keys[i] = at < count ? (uint32_t)(s.list[at] >> 32) : 0;
    }
    if (count <= k) low = LOWEST, high = LOWEST;
    while (low < high) {
        const uint32_t middle = low + (high - low + 1) / 2;
        uint32_t reach = 0;
#pragma unroll
        for (int i = 0; i < LISTED / THREADS; i++) reach += keys[i] >= middle;
        reach = block_count(s, reach, round++);
        if (reach >= (uint32_t)k) low = middle;
        else high = middle - 1;
        if (reach == (uint32_t)k) break;
    }
#pragma unroll
    for (int i = 0; i < LISTED / THREADS; i++)
        if (keys[i] >= low) least = min_of(least, keys[i]);
    least = redux_min(least);
    if (lane_id() == 0) s.sums[round & 1][warp_id()] = least;
    block_sync();
    return redux_min(s.sums[round & 1][lane_id() % WARPS]);
}

/* Drops from the list what the k-th best of it leaves out; the new edge. */
CAIRN_INLINE uint32_t cut_list(few_shared &s, int k, uint32_t edge) {
    const int count = (int)s.count;
    uint32_t top = 0;
#pragma unroll 1
    for (int i = thread_id(); i < count; i += THREADS)
        top = max_of(top, (uint32_t)(s.list[i] >> 32));
    top = (uint32_t)(block_best((uint64_t)top << 32, s.scratch) >> 32);
    edge = max_of(edge, widen(find_threshold(s, count, k, edge, top), top));
    if (thread_id() == 0) s.count = 0;
#pragma unroll 1
    for (int at = thread_id(); at - thread_id() < count; at += THREADS) {
        const uint64_t mine = at < count ? s.list[at] : 0;
        block_sync(); /* what is kept goes no further than what was read */
        if ((uint32_t)(mine >> 32) >= edge) s.list[atomic_add(&s.count, 1u)] = mine;
    }
    block_sync();
    return edge;
}

/* The slice's candidates into the part; more than it holds are only counted. */
CAIRN_INLINE void fill_part(const sample_kernel_params &p, few_shared &s, const uint32_t *seen,
                            sample_part *part, int first, int end) {
    const float *logits = p.logits + (int64_t)block_id_y() * p.vocab;
    const bool aligned = p.vocab % 4 == 0 && (uint64_t)p.logits % 16 == 0;
    uint32_t edge = 0;
    bool lost = false;
    if (thread_id() == 0) s.count = 0;
    for (int base = first; base < end && !lost; base += TILE) {
        uint32_t keys[ITEMS], latest = 0;
        const tile here = load_tile(logits, base, end, aligned);
        if (base + TILE < end) expect_tile(logits, base + TILE, end);
        tile_keys(p, here, seen, base, first, end, keys);
        if (base == first) {
            bound_tile(s, keys, p.top_k);
            edge = widen(s.edge, s.top);
        }
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            if (keys[i] < edge) continue;
            latest = atomic_add(&s.count, 1u);
            if (latest < LISTED)
                s.list[latest] = (uint64_t)keys[i] << 32 | (uint32_t)~tile_id(base, i);
        }
        /* in the end there must be room for the other parts' */
        const uint32_t room = base + TILE < end ? CROWDED : LISTED / grid_blocks();
        if (block_sync_or(latest >= min_of(room, (uint32_t)CROWDED))) { /* by this tile */
            lost = s.count > LISTED;
            block_sync();
            if (!lost) edge = cut_list(s, p.top_k, edge);
        }
    }
    block_sync();
    const int count = (int)s.count;
    if (count <= CAIRN_SAMPLE_PART)
        for (int i = thread_id(); i < count; i += THREADS) part->ranks[i] = s.list[i];
    if (thread_id() == 0) part->count = s.count, part->edge = max_of(edge, LOWEST);
}

/* Greedy: the slice's best, alone. */
CAIRN_INLINE void fill_best(const sample_kernel_params &p, few_shared &s, const uint32_t *seen,
                            sample_part *part, int first, int end) {
    const float *logits = p.logits + (int64_t)block_id_y() * p.vocab;
    const bool aligned = p.vocab % 4 == 0 && (uint64_t)p.logits % 16 == 0;
    uint32_t best = 0;
    int id = first;
    for (int base = first; base < end; base += TILE) {
        uint32_t keys[ITEMS];
        const tile here = load_tile(logits, base, end, aligned);
        if (base + TILE < end) expect_tile(logits, base + TILE, end);
        tile_keys(p, here, seen, base, first, end, keys);
#pragma unroll
        for (int i = 0; i < ITEMS; i++)
            if (keys[i] > best) best = keys[i], id = tile_id(base, i);
    }
    uint64_t all = block_best((uint64_t)best << 32 | (uint32_t)~id, s.scratch);
    if (thread_id() == 0) part->count = 1, part->edge = LOWEST, part->ranks[0] = all;
}

/* True in the whole block when all other blocks of the row are done. */
CAIRN_INLINE bool is_last(const sample_kernel_params &p, few_shared &s) {
    block_sync();
    if (thread_id() == 0) {
        uint32_t *arrived = p.arrived + block_id_y();
        s.last = atomic_add_acq_rel(arrived, 1u) == (uint32_t)grid_blocks() - 1;
        if (s.last) *arrived = 0;
    }
    block_sync();
    return s.last != 0;
}

/* ---- the row, by its candidates ---- */

/* What all parts hold above the highest edge into the list; its length, or -1 when that does not
 * hold it. Nothing that reaches *edge is missing, and k reach it. */
CAIRN_INLINE int gather(const sample_part *parts, int count, few_shared &s, uint32_t *edge) {
    uint32_t most = LOWEST;
    bool fits = true;
    const int part = thread_id() / 16; /* sixteen threads a part */
    if (thread_id() == 0) s.count = 0;
    block_sync();
    for (int i = 0; i < count; i++) {
        fits = fits && parts[i].count <= CAIRN_SAMPLE_PART;
        most = max_of(most, parts[i].edge);
    }
    *edge = most;
    if (!fits) return -1;
    for (int i = thread_id() % 16; part < count && i < (int)parts[part].count; i += 16) {
        const uint64_t one = parts[part].ranks[i];
        if ((uint32_t)(one >> 32) < most) continue;
        uint32_t at = atomic_add(&s.count, 1u);
        if (at < LISTED) s.list[at] = one;
    }
    block_sync();
    return s.count <= LISTED ? (int)s.count : -1;
}

/* The tokens whose score reaches least, weighed, in any order; how many. */
CAIRN_INLINE int keep_tokens(const sample_kernel_params &p, few_shared &s, int count, float top,
                             float least) {
    row_view row = {&top, nullptr, 1, 1.0f, top, p.temperature, nullptr};
    if (thread_id() == 0) s.count = 0;
    block_sync();
    for (int i = thread_id(); i < count; i += THREADS) {
        float logit = logit_of((uint32_t)(s.list[i] >> 32));
        row.logits = &logit;
        float mine = score(row, 0);
        if (!(mine >= least)) continue;
        uint32_t at = atomic_add(&s.count, 1u);
        if (at < KEPT) s.kept[at] = {mine, (int32_t)~(uint32_t)s.list[i], weight(mine)};
    }
    block_sync();
    return (int)s.count;
}

/* top_p and min_p among the kept: the weight of mine if it stays, else 0. */
CAIRN_INLINE uint64_t weight_left(const sample_kernel_params &p, few_shared &s, int count) {
    if (thread_id() >= count) return 0;
    const kept_token mine = s.kept[thread_id()];
    uint64_t total = 0, better = 0;
    if (p.min_p > 0.0f && mine.score < min_of(log_f32(p.min_p), 0.0f)) return 0;
    if (!(p.top_p > 0.0f && p.top_p < 1.0f)) return mine.weight;
#pragma unroll 4
    for (int i = 0; i < count; i++) {
        total += s.kept[i].weight;
        if (s.kept[i].score > mine.score) better += s.kept[i].weight;
    }
    return better < mass_limit(p.top_p, total) ? mine.weight : 0;
}

/* The first id, ascending, whose cumulative weight exceeds u * total; in s.last. */
CAIRN_INLINE void draw_kept(few_shared &s, int count, uint64_t weight, int best, float u) {
    block_sync();
    if (thread_id() < count) s.kept[thread_id()].weight = weight;
    if (thread_id() == 0) s.last = (uint32_t)best;
    block_sync();
    if (thread_id() >= count) return;
    const int id = s.kept[thread_id()].id;
    uint64_t total = 0, before = 0;
#pragma unroll 4
    for (int i = 0; i < count; i++) {
        total += s.kept[i].weight;
        if (s.kept[i].id < id) before += s.kept[i].weight;
    }
    const uint64_t target = (uint64_t)((double)u * (double)total);
    if (before <= target && target < before + weight) s.last = (uint32_t)id;
}

/* The row's token; -1 when its candidates do not tell. */
CAIRN_INLINE int sample_parts(const sample_kernel_params &p, few_shared &s) {
    const int r = block_id_y();
    uint32_t edge;
    const int count = gather(p.parts + (int64_t)r * grid_blocks(), grid_blocks(), s, &edge);
    if (count < 0) return -1;
    uint64_t best = 0;
    for (int i = thread_id(); i < count; i += THREADS) best = max_of(best, s.list[i]);
    best = block_best(best, s.scratch);
    const uint32_t top = (uint32_t)(best >> 32);
    const int token = (int)~(uint32_t)best;
    if (top < LOWEST) return -1; /* nothing above -inf: whether it is a number, no list tells */
    if (p.temperature <= 0.0f || top >= 0xff800000u) return token;
    row_view row = {p.logits, nullptr, 1, 1.0f, logit_of(top), p.temperature,
                    nullptr};
    float logit = logit_of(find_threshold(s, count, p.top_k, edge, top));
    row.logits = &logit;
    const float least = score(row, 0);
    if (edge > LOWEST) {
        logit = logit_of(edge - 1);
        if (score(row, 0) >= least) return -1; /* rounds to the same: some may be missing */
    }
    const int kept = keep_tokens(p, s, count, row.top, least);
    if (kept > KEPT) return -1;
    draw_kept(s, kept, weight_left(p, s, kept), token, uniform(p, r));
    block_sync();
    return (int)s.last;
}

/* One row, by all its blocks. */
CAIRN_INLINE void sample_row_few(const sample_kernel_params &p, few_shared &s, uint32_t *seen,
                                 int r) {
    const int slice = round_up(ceil_div(p.vocab, grid_blocks()), TILE);
    const int first = min_of(block_id() * slice, p.vocab), end = min_of(first + slice, p.vocab);
    sample_part *part = p.parts + (int64_t)r * grid_blocks() + block_id();
    if (p.history) mark_history(p, seen, r, first, end);
    if (p.temperature <= 0.0f) fill_best(p, s, seen, part, first, end);
    else fill_part(p, s, seen, part, first, end);
    if (!is_last(p, s)) return;
    int token = sample_parts(p, s);
    if (token < 0) {
        block_sync();
        token = sample_row(p, r, seen, s.bins, s.scratch);
    }
    if (thread_id() == 0) p.tokens[r] = token;
}

CAIRN_KERNEL(sample_few, THREADS, 2, sample_kernel_params) {
    few_shared &s = shared_as<few_shared>();
    uint32_t *seen = (uint32_t *)(&s + 1);
    const int r = block_id_y();
    if (p.rules && (CAIRN_MASKS ? p.rules[r].skip & CAIRN_SAMPLE_SKIP : p.rules[r].skip)) return;
    sample_row_few(params_of(p, r), s, seen, r);
}
