/* sample_few: the next token of each row when few tokens can be it: greedy, or a top_k of at most
 * 128 that comes first. The result is that of sample.cu, bit for bit.
 *
 * Each of a row's blocks reads its slice once. The k-th largest of 256 groups' maxima is a bound
 * that k tokens of the slice reach and few others: those go to the block's list in global memory.
 * The row's last block to finish has then every token that can be kept, some hundreds, and cuts and
 * draws among them by comparing all with all. When a list does not hold them (ties by the hundred,
 * or a threshold that rounding blurs past a list's edge), it takes the row as sample.cu does.
 * Launch     grid (parts <= 32, rows), block 512, shared 25232 bytes, + vocab / 8 with a history;
 *            `arrived` is zero before and after
 * matrix: */
#include "common.cuh"
#define THREADS 512
#include "sample.cuh"

#define ITEMS 16
#define TILE (THREADS * ITEMS)
#define GROUPS (THREADS / 2)
#define LISTED 2048 /* candidates of all parts together */
#define KEPT 512    /* of them, after top_k */
#define LOWEST 0x00800000u /* key of the lowest finite logit */

struct kept_token { float score; int32_t id; uint64_t weight; };

struct few_shared {
    union {
        uint64_t bins[BINS];
        uint64_t list[LISTED];
        uint32_t groups[GROUPS];
    };
    kept_token kept[KEPT];
    uint64_t scratch[64];
    uint32_t sums[2][WARPS];
    uint32_t edge, top, count, last;
}; /* then, with a history, vocab bits */
static_assert(sizeof(few_shared) == 25232, "few_shared: FEW_SHARED of the host");

CAIRN_INLINE uint32_t key_of(float logit) { return (uint32_t)(rank(logit, 0) >> 32); }
CAIRN_INLINE float logit_of(uint32_t key) {
    return as_f32(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

/* ---- a slice ---- */

/* Sixteen logits of the tile at `base`, penalized; thread t holds ids base + (512 v + t) 4 + c. */
CAIRN_INLINE int tile_id(int base, int i) {
    return base + ((i / 4) * THREADS + thread_id()) * 4 + i % 4;
}

CAIRN_INLINE void load_tile(const sample_kernel_params &p, const float *logits,
                            const uint32_t *seen, int base, int first, int end, uint32_t *keys) {
    const bool whole = p.vocab % 4 == 0 && base + TILE <= end;
    f32x4 four[ITEMS / 4];
#pragma unroll
    for (int v = 0; v < ITEMS / 4; v++)
        if (whole) four[v] = load_constant((const f32x4 *)(logits + tile_id(base, 4 * v)));
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        const int id = tile_id(base, i), bit = id - first;
        keys[i] = 0;
        if (id >= end) continue;
        const f32x4 &f = four[i / 4];
        float logit = i % 4 == 0 ? f.x : i % 4 == 1 ? f.y : i % 4 == 2 ? f.z : f.w;
        if (!whole) logit = logits[id];
        if (p.history && (seen[bit / 32] >> (bit % 32) & 1u))
            logit = logit > 0.0f ? div_f32(logit, p.repetition_penalty)
                                 : mul_f32(logit, p.repetition_penalty);
        keys[i] = key_of(logit);
    }
}

/* The k-th largest group maximum, and the largest, to shared edge and top. */
CAIRN_INLINE void bound_tile(few_shared &s, const uint32_t *keys, int k) {
    uint32_t mine = 0, above = 0;
    const int group = thread_id() / 2, half = thread_id() % 2;
#pragma unroll
    for (int i = 0; i < ITEMS; i++) mine = max_of(mine, keys[i]);
    mine = max_of(mine, shuffle_xor(mine, 1));
    block_sync();
    if (half == 0) s.groups[group] = mine;
    block_sync();
    const u32x4 *others = (const u32x4 *)(s.groups + half * (GROUPS / 2));
#pragma unroll 8
    for (int i = 0; i < GROUPS / 8; i++) {
        const u32x4 v = others[i];
        const int at = half * (GROUPS / 2) + 4 * i;
        above += v.x > mine || (v.x == mine && at < group);
        above += v.y > mine || (v.y == mine && at + 1 < group);
        above += v.z > mine || (v.z == mine && at + 2 < group);
        above += v.w > mine || (v.w == mine && at + 3 < group);
    }
    above += shuffle_xor(above, 1);
    if (half == 0 && above == (uint32_t)k - 1) s.edge = mine;
    if (half == 0 && above == 0) s.top = mine;
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

/* The slice's candidates into the part; more than it holds: only counted. */
CAIRN_INLINE void fill_part(const sample_kernel_params &p, few_shared &s, uint32_t *seen,
                            sample_part *part, int first, int end) {
    const float *logits = p.logits + (int64_t)block_id_y() * p.vocab;
    uint32_t edge = LOWEST;
    if (thread_id() == 0) s.count = 0;
    for (int base = first; base < end; base += TILE) {
        uint32_t keys[ITEMS];
        load_tile(p, logits, seen, base, first, end, keys);
        bound_tile(s, keys, p.top_k);
        edge = max_of(edge, widen(s.edge, s.top));
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            if (keys[i] < edge) continue;
            uint32_t at = atomic_add(&s.count, 1u);
            if (at < CAIRN_SAMPLE_PART)
                part->ranks[at] = (uint64_t)keys[i] << 32 | (uint32_t)~tile_id(base, i);
        }
    }
    block_sync();
    if (thread_id() == 0) part->count = s.count, part->edge = edge;
}

/* Greedy: the slice's best, alone. */
CAIRN_INLINE void fill_best(const sample_kernel_params &p, few_shared &s, uint32_t *seen,
                            sample_part *part, int first, int end) {
    const float *logits = p.logits + (int64_t)block_id_y() * p.vocab;
    uint64_t best = 0;
    for (int base = first; base < end; base += TILE) {
        uint32_t keys[ITEMS];
        load_tile(p, logits, seen, base, first, end, keys);
#pragma unroll
        for (int i = 0; i < ITEMS; i++)
            best = max_of(best, (uint64_t)keys[i] << 32 | (uint32_t)~tile_id(base, i));
    }
    best = block_best(best, s.scratch);
    if (thread_id() == 0) part->count = 1, part->edge = LOWEST, part->ranks[0] = best;
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

/* All parts into the list; its length, or -1 when it does not hold them. *edge: nothing below it
 * is missing. */
CAIRN_INLINE int gather(const sample_part *parts, int count, few_shared &s, uint32_t *edge) {
    int total = 0, before = 0;
    uint32_t most = LOWEST;
    bool fits = true;
    const int part = thread_id() / 16; /* sixteen threads a part */
    for (int i = 0; i < count; i++) {
        int n = (int)parts[i].count;
        if (i < part) before += n;
        total += n;
        fits = fits && n <= CAIRN_SAMPLE_PART;
        most = max_of(most, parts[i].edge);
    }
    *edge = most;
    if (!fits || total > LISTED) return -1;
    if (part < count)
        for (int i = thread_id() % 16; i < (int)parts[part].count; i += 16)
            s.list[before + i] = parts[part].ranks[i];
    block_sync();
    return total;
}

CAIRN_INLINE uint32_t block_count(few_shared &s, uint32_t mine, int round) {
    mine = redux_add(mine);
    if (lane_id() == 0) s.sums[round & 1][warp_id()] = mine;
    block_sync();
    return redux_add(lane_id() < WARPS ? s.sums[round & 1][lane_id()] : 0u);
}

/* The k-th largest key, or the least when there are fewer. */
CAIRN_INLINE uint32_t find_threshold(few_shared &s, int count, int k, uint32_t edge, uint32_t top) {
    uint32_t keys[LISTED / THREADS], low = edge, high = top, least = top;
    int round = 0;
#pragma unroll
    for (int i = 0; i < LISTED / THREADS; i++) {
        int at = i * THREADS + thread_id();
        keys[i] = at < count ? (uint32_t)(s.list[at] >> 32) : 0;
    }
    if (count <= k) low = LOWEST, high = LOWEST;
    while (low < high) { /* k or more reach low; the k-th is at most high */
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

/* The tokens whose score reaches least, weighed, in any order; how many. */
CAIRN_INLINE int keep_tokens(const sample_kernel_params &p, few_shared &s, int count, float top,
                             float least) {
    row_view row = {&top, nullptr, 1, 1.0f, top, p.temperature};
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
    for (int i = 0; i < count; i++) {
        total += s.kept[i].weight;
        if (s.kept[i].score > mine.score) better += s.kept[i].weight;
    }
    double limit = (double)p.top_p * (double)total;
    uint64_t whole = (uint64_t)limit; /* sums are whole: below limit is below its ceiling */
    whole = max_of(whole + ((double)whole < limit), (uint64_t)1);
    return better < whole ? mine.weight : 0;
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
    if (top < LOWEST) return 0; /* nothing above -inf */
    if (p.temperature <= 0.0f || top >= 0xff800000u) return token;
    row_view row = {p.logits, nullptr, 1, 1.0f, logit_of(top), p.temperature};
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

CAIRN_KERNEL(sample_few, THREADS, 2, sample_kernel_params) {
    few_shared &s = shared_as<few_shared>();
    uint32_t *seen = (uint32_t *)(&s + 1);
    const int slice = round_up(ceil_div(p.vocab, grid_blocks()), TILE), r = block_id_y();
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
