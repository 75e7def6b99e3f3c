/* Runs of one row and KV head that the blocks of a cluster share: each block merges some of the row's values, and is
 * sent what every run gave for these, as bytes that a barrier counts. Nothing goes through memory in between, and
 * no block waits for another but for its bytes. */
#ifndef CAIRN_ATTENTION_CLUSTER_CUH
#define CAIRN_ATTENTION_CLUSTER_CUH

#include "attention/runs.cuh"

/* What the blocks of a cluster send each other, as bytes that a barrier of who gets them counts. */
struct exchange {
    shared_addr barrier;

    /* By one thread; then a fence_mbarrier_init, before the blocks meet. */
    CAIRN_MEMBER void open() const { mbarrier_init(barrier, 1); }
    /* By one thread. */
    CAIRN_MEMBER void expect(int bytes) const { mbarrier_arrive_expect(barrier, (uint32_t)bytes); }
    template <class T> CAIRN_MEMBER void send(T *to, T v, int rank) const {
        remote_store_async(remote(shared_addr(to), rank), v, remote(barrier, rank));
    }
    /* All threads: all is there that was sent. */
    CAIRN_MEMBER void await_sent() const { mbarrier_wait_cluster(barrier, 0); }
    /* And what this block's threads wrote there themselves. */
    CAIRN_MEMBER void await() const {
        block_sync();
        await_sent();
    }
};

/* What a block is sent of runs, in layout_inbox_bytes of its shared memory: a barrier; of every run `each` values, and
 * (m, l) of the queries. Block r has values r each to (r + 1) each of [queries, HEAD_DIM]. */
struct cluster_inbox {
    unsigned char *memory;
    exchange mail;
    int queries, values;
    int each, stride; /* values of a block, a multiple of four; bytes of a run */
    float share;      /* of a block, a value */

    CAIRN_MEMBER cluster_inbox(unsigned char *at, int count)
        : memory(at), mail{shared_addr(at)}, queries(count), values(count * HEAD_DIM),
          each(round_up(ceil_div(values, cluster_size()), 4)), stride(each * 4 + round_up(count * 8, 16)),
          share(1.0f / (float)each) {}

    CAIRN_MEMBER float *values_of(int run) const { return (float *)(memory + 16 + run * stride); }
    CAIRN_MEMBER f32x2 *sums_of(int run) const { return (f32x2 *)(memory + 16 + run * stride + each * 4); }
    CAIRN_MEMBER int rank_of(int value) const { return (int)(((float)value + 0.5f) * share); }
    CAIRN_MEMBER int begin() const { return min_of(cluster_rank() * each, values); }
    CAIRN_MEMBER int end() const { return min_of(begin() + each, values); }

    /* Before the others send anything: all threads; then a cluster_wait. */
    CAIRN_MEMBER void open() const {
        if (thread_id() == 0) {
            mail.open();
            fence_mbarrier_init();
        }
        block_sync();
        cluster_arrive_relaxed();
    }
    /* By one thread: so many runs will come. */
    CAIRN_MEMBER void expect(int runs) const {
        const int own = end() - begin(), heads = own ? (end() - 1) / HEAD_DIM - begin() / HEAD_DIM + 1 : 0;
        mail.expect(runs * (own * 4 + heads * 8));
    }
    /* Of a run, what this block's warps left (merge_warps), behind the cluster's first meeting. All threads. */
    CAIRN_MEMBER void send(int run, const f32x2 *totals, const unsigned char *parts, int step) const {
        merge_warps(totals, parts, step, queries, [&](int m, int d, f32x4 v, f32x2 both) {
            const int i = m * HEAD_DIM + d, own = rank_of(i), last = rank_of((m + 1) * HEAD_DIM - 1);
            mail.send((f32x4 *)(values_of(run) + (i - own * each)), v, own);
            if (d > 0) return;
#pragma unroll 1
            for (int to = own; to <= last; to++) mail.send(sums_of(run) + m, both, to);
        });
    }
};

/* What the row attends by its `runs` runs, once they are there: out(m, d, pair) of values d, d + 1 of query m that are
 * this block's, by one thread each. Eight lanes have two of them, of eight runs at a time a run each. All threads. */
template <class Out> CAIRN_INLINE void merge_sent(const cluster_inbox &inbox, int runs, Out out) {
    const int begin = inbox.begin(), end = inbox.end();
    inbox.mail.await_sent();
#pragma unroll 1
    for (int first = begin + warp_id() * 8; first < end; first += block_threads() / WARP * 8) {
        const int i = min_of(first + lane_id() / 8 * 2, end - 2), m = i / HEAD_DIM;
        merged_pair pair;
#pragma unroll 1
        for (int run = lane_id() % 8; run / 8 * 8 < runs; run += 8) {
            f32x2 sums = {NOTHING, 0.0f}, two = {0.0f, 0.0f};
            if (run < runs) sums = inbox.sums_of(run)[m], two = *(const f32x2 *)(inbox.values_of(run) + (i - begin));
            const float top = max_eight(sums.x);
            const float weight = exp2_fast(sums.x - top), total = sum_eight(mul_f32(sums.y, weight));
            pair.add(f32x2{top, total}, sum_eight(mul_f32(two.x, weight)), sum_eight(mul_f32(two.y, weight)));
        }
        if (lane_id() % 8 == 0 && first + lane_id() / 8 * 2 < end) out(m, i % HEAD_DIM, pair);
    }
}

#endif
