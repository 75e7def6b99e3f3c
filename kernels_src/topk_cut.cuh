/* topk_cut.cuh: finds the cut between what is chosen and what is not among a block's candidates,
 * wherever their keys lie, for topk_short.cu and topk_stream.cu. Here keys count from 1, and 0 is
 * no candidate. Needs CUT_THREADS. Without an include guard: each set of constants includes it. */

#define CUT_WARPS (CUT_THREADS / WARP)
#define CUT_BINS (CUT_THREADS < 512 ? CUT_THREADS * 4 : 2048)
#define CUT_BITS (31 - leading_zeros((uint32_t)CUT_BINS))
#define CUT_LIST (CUT_THREADS < 256 ? CUT_THREADS : 256) /* so many are ranked by all pairs */

/* In: the keys over `least`, and by position the first `equal_left` of those equal to it, which are
 * `equals` in all. */
struct topk_cut { uint32_t least, equal_left, equals; };

struct cut_shared {
    alignas(16) uint32_t bins[CUT_BINS];
    alignas(16) uint32_t list[CUT_LIST + 4]; /* 0 behind them */
    key_range ranges[WARP]; /* one a warp; the next too */
    uint32_t sums[WARP];
    topk_cut cut;
    bin_found found; /* by find_crossing */
    uint32_t listed;
};

CAIRN_INLINE void clear_bins(cut_shared &s) {
    if (CUT_THREADS * 4 == CUT_BINS || thread_id() * 4 < CUT_BINS)
        *(u32x4 *)&s.bins[thread_id() * 4] = {0, 0, 0, 0};
}

/* Lowest and highest over the block of each thread's own. One barrier. */
CAIRN_INLINE key_range block_range(cut_shared &s, key_range own) {
    own = {warp_min(own.low), warp_max(own.high)};
    if (lane_id() == 0) s.ranges[warp_id()] = own;
    if (thread_id() == 0) s.listed = 0;
    block_sync();
    if (lane_id() < CUT_WARPS) own = s.ranges[lane_id()];
    return {warp_min(own.low), warp_max(own.high)};
}

/* The bin that holds the need-th greatest: s.found. Ends with a barrier. */
CAIRN_INLINE void find_crossing(cut_shared &s, uint32_t need) {
    if (thread_id() == 0) s.listed = 0;
    find_bin<CUT_BINS, CUT_THREADS>(s.bins, s.sums, s.found, need);
}

/* So many threads, as a power of two, share the comparisons of each of `count` keys. */
CAIRN_INLINE int cut_share(int count) {
    const int free_bits = leading_zeros((uint32_t)max_of(count, 2) - 1u); /* no division: slow */
    return min_of(max_of(free_bits - leading_zeros((uint32_t)CUT_THREADS - 1u), 0), 4);
}
CAIRN_INLINE int cut_part(int shift) { return thread_id() & ((1 << shift) - 1); }
CAIRN_INLINE uint32_t cut_sum(uint32_t mine, int shift) {
#pragma unroll 1
    for (int i = 0; i < shift; i++) mine += shuffle_xor(mine, 1 << i);
    return mine;
}

/* The cut before the need-th of the listed keys. */
CAIRN_INLINE topk_cut rank_listed(cut_shared &s, int count, uint32_t need) {
    const int shift = cut_share(count), mine = thread_id() >> shift, part = cut_part(shift);
    if (warp_id() * WARP >> shift < count) {
        const uint32_t key = mine < count ? s.list[mine] : 0;
        uint32_t packed = 0;
#pragma unroll 1
        for (int i = part * 4; i < count; i += 4 << shift) {
            const u32x4 v = *(const u32x4 *)&s.list[i];
            const uint32_t others[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int c = 0; c < 4; c++) {
                packed += others[c] > key;                  /* bits 0 to 9: greater */
                packed += others[c] == key ? 1u << 20 : 0u; /* from 20: equal */
                packed += others[c] == key && i + c < mine ? 1u << 10 : 0u; /* and listed before */
            }
        }
        packed = cut_sum(packed, shift);
        const uint32_t greater = packed & 1023u, before = greater + (packed >> 10 & 1023u);
        if (mine < count && part == 0 && before == need - 1)
            s.cut = {key, need - greater, packed >> 20};
    }
    block_sync();
    return s.cut;
}

/* The cut before the need-th candidate in a range of keys, which `inside` >= need are in: each round
 * spreads the range over the bins and goes on with the one that holds it. `each` calls what it is
 * given with every key of this thread. After block_range or find_crossing. `open`: no bounds above,
 * but most keys are no greater than `top`. */
template <bool open = false, class Each>
CAIRN_INLINE topk_cut find_cut(cut_shared &s, key_range range, uint32_t inside, uint32_t need,
                               Each each, uint32_t top = 0) {
#pragma unroll 1
    for (;;) {
        if (need == inside) return {range.low - 1, 0, 0}; /* all of them */
        if (range.low == range.high) return {range.low, need, inside};
        if (inside <= CUT_LIST) break;
        const int shift = range_shift({range.low, open ? top : range.high}, CUT_BITS);
        clear_bins(s);
        block_sync();
        each([&](uint32_t key) {
            if (key - range.low > range.high - range.low) return;
            const uint32_t bin = (key - range.low) >> shift;
            atomic_add(&s.bins[open ? min_of(bin, CUT_BINS - 1u) : bin], 1u);
        });
        block_sync();
        find_crossing(s, need);
        need -= s.found.above;
        inside = s.found.inside;
        range.low += s.found.bin << shift;
        if (!open || s.found.bin < CUT_BINS - 1)
            range.high = range.low + min_of(range.high - range.low, (1u << shift) - 1);
        top = range.high;
    }
    each([&](uint32_t key) {
        if (key - range.low <= range.high - range.low)
            s.list[atomic_add(&s.listed, 1u)] = key;
    });
    if (thread_id() < 4) s.list[inside + (uint32_t)thread_id()] = 0;
    block_sync();
    return rank_listed(s, (int)inside, need);
}
