/* topk/cut.cuh: finds the cut between what is chosen and what is not among a block's candidates, by
 * bins or by comparing all, for topk/short.cu and topk/stream.cuh. Here keys count from 1, and 0 is
 * no candidate. Needs CUT_THREADS. Without an include guard: each set of constants includes it. */

#define CUT_WARPS (CUT_THREADS / WARP)
#define CUT_BINS (CUT_THREADS < 512 ? CUT_THREADS * 4 : 2048)
#define CUT_BITS (31 - leading_zeros((uint32_t)CUT_BINS))
#define CUT_LIST (CUT_THREADS < 256 ? CUT_THREADS : 256) /* so many are ranked by all pairs */

struct cut_shared {
    alignas(16) uint32_t bins[CUT_BINS];
    alignas(16) uint32_t list[CUT_LIST + 4]; /* 0 behind them */
    key_range ranges[WARP]; /* one a warp; the next too */
    uint32_t sums[WARP];
    bin_found found; /* by find_crossing */
};

CAIRN_INLINE void clear_bins(cut_shared &s) {
    if (CUT_THREADS * 4 == CUT_BINS || thread_id() * 4 < CUT_BINS)
        *(u32x4 *)&s.bins[thread_id() * 4] = {0, 0, 0, 0};
}

/* Lowest and highest over the block of each thread's own. One barrier. */
CAIRN_INLINE key_range block_range(cut_shared &s, key_range own) {
    own = {warp_min(own.low), warp_max(own.high)};
    if (lane_id() == 0) s.ranges[warp_id()] = own;
    block_sync();
    if (lane_id() < CUT_WARPS) own = s.ranges[lane_id()];
    return {warp_min(own.low), warp_max(own.high)};
}

/* The bin that holds the need-th greatest: s.found. Ends with a barrier. */
CAIRN_INLINE void find_crossing(cut_shared &s, uint32_t need) {
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
