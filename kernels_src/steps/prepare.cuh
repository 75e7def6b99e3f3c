/* steps/prepare.cuh: prefix sums over a block, for the kernels that prepare a batch's metadata. */
#ifndef CAIRN_PREPARE_CUH
#define CAIRN_PREPARE_CUH

#define THREADS 256
#define WARPS (THREADS / WARP)
#define SUM_MAX 0x7fffffffu /* sums stop here, so that none becomes negative as an int32 */

struct prepare_shared { u32x2 totals[WARPS]; };

CAIRN_INLINE uint32_t add_sums(uint32_t a, uint32_t b) { return min_of(a + b, SUM_MAX); }
CAIRN_INLINE u32x2 add_sums(u32x2 a, u32x2 b) { return {add_sums(a.x, b.x), add_sums(a.y, b.y)}; }

struct scanned { u32x2 below, total; }; /* of the threads before this one, of all */

CAIRN_INLINE scanned block_scan(prepare_shared &s, u32x2 v) {
    u32x2 sum = v;
#pragma unroll
    for (int d = 1; d < WARP; d <<= 1) {
        u32x2 before = {shuffle_up(sum.x, d), shuffle_up(sum.y, d)};
        if (lane_id() >= d) sum = add_sums(sum, before);
    }
    block_sync(); /* the totals of an earlier scan have been read */
    if (lane_id() == WARP - 1) s.totals[warp_id()] = sum;
    block_sync();
    u32x2 before = {shuffle_up(sum.x, 1), shuffle_up(sum.y, 1)};
    if (lane_id() == 0) before = {0, 0};
    scanned result = {{0, 0}, {0, 0}};
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        if (w == warp_id()) result.below = add_sums(result.total, before);
        result.total = add_sums(result.total, s.totals[w]);
    }
    return result;
}

/* The highest of the block's values, for every thread. */
CAIRN_INLINE int32_t block_max(prepare_shared &s, int32_t v) {
    v = warp_max(v);
    block_sync();
    if (lane_id() == 0) s.totals[warp_id()].x = (uint32_t)v;
    block_sync();
#pragma unroll
    for (int w = 0; w < WARPS; w++) v = max_of(v, (int32_t)s.totals[w].x);
    return v;
}

#endif
