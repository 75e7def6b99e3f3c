/* Runs of one row and KV head that the blocks of a cluster share: what each gives waits in the shared memory of the
 * block that had it, and every block merges some of the values. Nothing goes through memory in between. */
#ifndef CAIRN_STEP_CLUSTER_CUH
#define CAIRN_STEP_CLUSTER_CUH

#include "step/merge.cuh"

/* A block's sums of up to MOST runs: values [run, head, HEAD_DIM], (m, l) [run, head]; `each` a block, in order. In
 * layout_own_sums_bytes of every block. */
template <int MOST> struct cluster_sums {
    float *values;
    f32x2 *sums;
    float share; /* of a block, a run */

    CAIRN_MEMBER cluster_sums(unsigned char *memory, int each_block)
        : values((float *)memory), sums((f32x2 *)(memory + MOST * GROUP * HEAD_DIM * 4)),
          share(1.0f / (float)each_block) {}

    CAIRN_METHOD int slot(int m, int run) { return run % MOST * GROUP + m; } /* consecutive runs' differ */
    CAIRN_MEMBER int rank(int run) const { return (int)(((float)run + 0.5f) * share); }
    /* Of a run of this block, what its warps left (merge_warps). All threads. */
    CAIRN_MEMBER void keep(int run, const f32x2 *totals, const unsigned char *parts, int step) const {
        merge_warps(
            totals, parts, step, GROUP,
            [&](int m, int d, f32x4 v) { *(f32x4 *)(values + slot(m, run) * HEAD_DIM + d) = v; },
            [&](int m, float top, float total) { sums[slot(m, run)] = f32x2{top, total}; });
    }
    /* Of any run, behind a cluster_sync. */
    CAIRN_MEMBER u32x2 two(int m, int run, int d) const {
        return remote_load<u32x2>(remote(shared_addr(values + slot(m, run) * HEAD_DIM + d), rank(run)));
    }
    CAIRN_MEMBER u32x2 sum(int m, int run) const {
        return remote_load<u32x2>(remote(shared_addr(sums + slot(m, run)), rank(run)));
    }
};

/* The sum of the values of eight lanes next to each other, as weigh_eight adds them. */
CAIRN_INLINE float sum_eight(float v) {
#pragma unroll
    for (int i = 1; i < 8; i *= 2) v = add_f32(v, shuffle_xor(v, i));
    return v;
}

/* What the row attends by its `runs` runs, to the bit as merge_block. Every block has some of the values; eight lanes
 * have two of them, of eight runs at a time a run each. All threads of the cluster, which waits for all of them
 * before and after. */
template <int MOST>
CAIRN_INLINE void merge_cluster(const cluster_sums<MOST> &all, int runs, int row, int kv_head, uint8_t *layer) {
    constexpr int PAIRS = HEAD_DIM / 2;
    const int rank = cluster_rank(), blocks = cluster_size();
    const int begin = rank * GROUP * PAIRS / blocks, end = (rank + 1) * GROUP * PAIRS / blocks;
    cluster_sync();
#pragma unroll 1
    for (int first = begin + warp_id() * 4; first < end; first += WARPS * 4) {
        const int i = min_of(first + lane_id() / 8, end - 1), m = i / PAIRS, d = i % PAIRS * 2;
        u32x2 sums, two;
        const auto ask = [&](int run) {
            sums = u32x2{as_u32(NOTHING), 0}, two = u32x2{};
            if (run < runs) sums = all.sum(m, run), two = all.two(m, run, d);
        };
        merged_pair pair;
        ask(lane_id() % 8);
#pragma unroll 1
        for (int run = lane_id() % 8; run / 8 * 8 < runs; run += 8) {
            const float own = as_f32(sums.x), l = as_f32(sums.y), x = as_f32(two.x), y = as_f32(two.y);
            ask(run + 8);
            float top = own;
#pragma unroll
            for (int k = 1; k < 8; k *= 2) top = fmaxf(top, shuffle_xor(top, k));
            const float weight = exp2_fast(own - top), total = sum_eight(mul_f32(l, weight));
            pair.add(f32x2{top, total}, sum_eight(mul_f32(x, weight)), sum_eight(mul_f32(y, weight)));
        }
        const f32x2 o = pair.share();
        if (lane_id() % 8 == 0 && first + lane_id() / 8 < end)
            send_attended(layer, row, kv_head * GROUP + m, d, o.x, o.y);
    }
    cluster_arrive_relaxed(); /* its reads of others' sums are done */
    cluster_wait();
}

#endif
