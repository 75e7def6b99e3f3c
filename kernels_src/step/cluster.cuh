/* Runs of one row and KV head that the blocks of a cluster share: each block merges some of the row's values, and is
 * sent what every run gave for these, as bytes that a barrier counts. Nothing goes through memory in between, and
 * no block waits for another but for its bytes. */
#ifndef CAIRN_STEP_CLUSTER_CUH
#define CAIRN_STEP_CLUSTER_CUH

#include "step/merge.cuh"

/* What a block is sent, in layout_inbox_bytes of its shared memory: a barrier; of every run `each` values, and (m, l)
 * of the heads. Block r has values r each to (r + 1) each of [GROUP, HEAD_DIM]. */
struct cluster_inbox {
    static constexpr int VALUES = GROUP * HEAD_DIM;
    unsigned char *memory;
    int each, stride; /* values of a block, a multiple of four; bytes of a run */
    float share;      /* of a block, a value */

    CAIRN_MEMBER explicit cluster_inbox(unsigned char *at)
        : memory(at), each(round_up(ceil_div(VALUES, cluster_size()), 4)), stride(each * 4 + round_up(GROUP * 8, 16)),
          share(1.0f / (float)each) {}

    CAIRN_MEMBER shared_addr barrier() const { return shared_addr(memory); }
    CAIRN_MEMBER float *values(int run) const { return (float *)(memory + 16 + run * stride); }
    CAIRN_MEMBER f32x2 *sums(int run) const { return (f32x2 *)(memory + 16 + run * stride + each * 4); }
    CAIRN_MEMBER int rank_of(int value) const { return (int)(((float)value + 0.5f) * share); }
    CAIRN_MEMBER int begin() const { return min_of(cluster_rank() * each, VALUES); }
    CAIRN_MEMBER int end() const { return min_of(begin() + each, VALUES); }

    /* By one thread, before the cluster's blocks have met. */
    CAIRN_MEMBER void open() const {
        mbarrier_init(barrier(), 1);
        fence_mbarrier_init();
    }
    /* By one thread: so many runs will come. */
    CAIRN_MEMBER void expect(int runs) const {
        const int own = end() - begin(), heads = own ? (end() - 1) / HEAD_DIM - begin() / HEAD_DIM + 1 : 0;
        mbarrier_arrive_expect(barrier(), (uint32_t)(runs * (own * 4 + heads * 8)));
    }
    /* Of a run, what this block's warps left (merge_warps), behind the cluster's first meeting. All threads. */
    CAIRN_MEMBER void send(int run, const f32x2 *totals, const unsigned char *parts, int step) const {
        merge_warps(
            totals, parts, step, GROUP,
            [&](int m, int d, f32x4 v) {
                const int i = m * HEAD_DIM + d, to = rank_of(i);
                remote_store_async(remote(shared_addr(values(run) + (i - to * each)), to), v, remote(barrier(), to));
            },
            [&](int m, float top, float total) {
                const int last = rank_of((m + 1) * HEAD_DIM - 1);
#pragma unroll 1
                for (int to = rank_of(m * HEAD_DIM); to <= last; to++)
                    remote_store_async(remote(shared_addr(sums(run) + m), to), f32x2{top, total},
                                       remote(barrier(), to));
            });
    }
};

/* The sum of the values of eight lanes next to each other, as weigh_eight adds them. */
CAIRN_INLINE float sum_eight(float v) {
#pragma unroll
    for (int i = 1; i < 8; i *= 2) v = add_f32(v, shuffle_xor(v, i));
    return v;
}

/* What the row attends by its `runs` runs, to the bit as merge_block: this block's values of it, once they are there.
 * Eight lanes have two of them, of eight runs at a time a run each. All threads. */
CAIRN_INLINE void merge_cluster(const cluster_inbox &inbox, int runs, int row, int kv_head, uint8_t *layer) {
    const int begin = inbox.begin(), end = inbox.end();
    mbarrier_wait_cluster(inbox.barrier(), 0);
#pragma unroll 1
    for (int first = begin + warp_id() * 8; first < end; first += WARPS * 8) {
        const int i = min_of(first + lane_id() / 8 * 2, end - 2), m = i / HEAD_DIM;
        merged_pair pair;
#pragma unroll 1
        for (int run = lane_id() % 8; run / 8 * 8 < runs; run += 8) {
            f32x2 sums = {NOTHING, 0.0f}, two = {0.0f, 0.0f};
            if (run < runs) sums = inbox.sums(run)[m], two = *(const f32x2 *)(inbox.values(run) + (i - begin));
            float top = sums.x;
#pragma unroll
            for (int k = 1; k < 8; k *= 2) top = fmaxf(top, shuffle_xor(top, k));
            const float weight = exp2_fast(sums.x - top), total = sum_eight(mul_f32(sums.y, weight));
            pair.add(f32x2{top, total}, sum_eight(mul_f32(two.x, weight)), sum_eight(mul_f32(two.y, weight)));
        }
        const f32x2 o = pair.share();
        if (lane_id() % 8 == 0 && first + lane_id() / 8 * 2 < end)
            send_attended(layer, row, kv_head * GROUP + m, i % HEAD_DIM, o.x, o.y);
    }
}

#endif
