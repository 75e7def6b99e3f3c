/* topk: the k highest scores of each row, exactly (see cairn_topk in runtime.h for the contract).
 *
 * Routes     "block"    one block a row, tile by tile: one read, with a running bound
 *            "cluster"  CLUSTER blocks a row, each with a slice; they agree on a bound that k scores
 *                       reach, and the first gathers what passes it over distributed shared memory
 *            Rows whose candidates outgrow the set cut it and go on (topk_select.cuh).
 * Constants  CAIRN_SCORE_TYPE  1 f32, 2 f16, 3 bf16 (cairn_type)
 *            CAIRN_THREADS, CAIRN_ITEMS  a tile is their product; k + tile <= 10240
 *            CAIRN_CLUSTER  blocks a row: 1, or up to 16 on sm_90
 * Launch     grid rows x CLUSTER, block THREADS, shared memory as topk_cuda.c computes it
 * Oracle     tests/topk_test.c sorts
 * matrix: CAIRN_SCORE_TYPE=1 CAIRN_THREADS=512 CAIRN_ITEMS=16 CAIRN_CLUSTER=1
 * matrix: CAIRN_SCORE_TYPE=2 CAIRN_THREADS=512 CAIRN_ITEMS=16 CAIRN_CLUSTER=1
 * matrix: CAIRN_SCORE_TYPE=3 CAIRN_THREADS=512 CAIRN_ITEMS=8 CAIRN_CLUSTER=1
 * matrix: arch>=90 CAIRN_SCORE_TYPE=1 CAIRN_THREADS=512 CAIRN_ITEMS=16 CAIRN_CLUSTER=16
 * matrix: arch>=90 CAIRN_SCORE_TYPE=2 CAIRN_THREADS=512 CAIRN_ITEMS=16 CAIRN_CLUSTER=4 */
#include "common.cuh"
#include "topk.cuh"
#include "topk_select.cuh"
#include "topk_emit.cuh"

/* Blocks that fit one SM, by registers; later chips' compilers need a few more of those. */
#define RESIDENT (CAIRN_ARCH >= 1000 ? 1 : 1024 / THREADS)

#if CAIRN_CLUSTER == 1

CAIRN_KERNEL(topk_row, THREADS, RESIDENT, topk_params) {
    topk_shared &s = shared_as<topk_shared>();
    const int r = block_id();
    topk_range range = topk_row_range(p, r, thread_id() == 0);
    const score_t *row = (const score_t *)p.scores + (int64_t)r * p.stride + range.start;
    if (range.length <= p.k && !p.finite_only && !p.sort_size) {
        emit_all(p, topk_row_out(p, r, row), range.length);
        return;
    }
    take_slice(s, p, row, {0, range.length}, p.k, [](uint32_t bound) { return bound; });
    emit(s, p, topk_row_out(p, r, row), range.length);
}

#elif CAIRN_ARCH >= 900

/* The least of the cluster's bounds: CLUSTER quotas of scores, at least k, reach it. */
CAIRN_INLINE uint32_t cluster_bound(topk_shared &s, uint32_t bound) {
    if (thread_id() < CAIRN_CLUSTER)
        remote_store(remote(shared_addr(&s.bounds[cluster_rank()]), thread_id()), bound);
    cluster_sync();
    return warp_min(lane_id() < CAIRN_CLUSTER ? s.bounds[lane_id()] : 0xffffffffu);
}

/* Block `from`'s entry i. */
CAIRN_INLINE topk_entry remote_entry(topk_shared &s, int from, int i) {
    return {remote_load<uint32_t>(remote(shared_addr(&s.keys[i]), from)),
            remote_load<int32_t>(remote(shared_addr(&s.positions[i]), from))};
}

/* All other blocks' sets, behind the first block's own: they fit. */
CAIRN_INLINE void gather_all(topk_shared &s, int own, int total) {
    uint32_t ends[CAIRN_CLUSTER];
    uint32_t sum = 0;
#pragma unroll
    for (int b = 0; b < CAIRN_CLUSTER; b++) ends[b] = sum += s.counts[b];
#pragma unroll 4
    for (int i = own + thread_id(); i < total; i += THREADS) {
        int from = 0, first = 0;
#pragma unroll
        for (int b = 0; b < CAIRN_CLUSTER - 1; b++)
            if ((uint32_t)i >= ends[b]) from = b + 1, first = (int)ends[b];
        topk_entry e = remote_entry(s, from, i - first);
        s.keys[i] = e.key;
        s.positions[i] = e.position;
    }
    if (thread_id() == 0) s.count = (uint32_t)total;
    block_sync();
}

/* The same when they may not fit. */
CAIRN_INLINE void gather_in_turn(topk_shared &s, int k, int length) {
    topk_entry last = {0, NO_POSITION};
    for (int from = 1; from < CAIRN_CLUSTER; from++)
        last = merge_entries(s, (int)s.counts[from], k, length, last,
                             [&](int i) { return remote_entry(s, from, i); });
}

CAIRN_KERNEL(topk_row, THREADS, RESIDENT, topk_params) {
    topk_shared &s = shared_as<topk_shared>();
    const int r = block_id() / CAIRN_CLUSTER, rank = cluster_rank();
    cluster_arrive_relaxed();
    topk_range range = topk_row_range(p, r, rank == 0 && thread_id() == 0);
    const score_t *row = (const score_t *)p.scores + (int64_t)r * p.stride + range.start;
    const int size = round_up(ceil_div(range.length, CAIRN_CLUSTER), 16);
    topk_slice slice = {min_of(rank * size, range.length), min_of((rank + 1) * size, range.length)};
    cluster_wait(); /* every block has begun: its shared memory may be written */
    if (range.length <= p.k && !p.finite_only && !p.sort_size) {
        if (rank == 0) emit_all(p, topk_row_out(p, r, row), range.length);
        return;
    }
    take_slice(s, p, row, slice, ceil_div(p.k, CAIRN_CLUSTER),
               [&](uint32_t bound) { return cluster_bound(s, bound); });
    if (thread_id() == 0) remote_store(remote(shared_addr(&s.counts[rank]), 0), s.count);
    cluster_sync();
    if (rank == 0) {
        uint32_t total = warp_sum(lane_id() < CAIRN_CLUSTER ? s.counts[lane_id()] : 0u);
        if (total <= CAPACITY) gather_all(s, (int)s.counts[0], (int)total);
        else gather_in_turn(s, p.k, range.length);
    }
    cluster_arrive_relaxed(); /* the others' sets have been read */
    if (rank == 0) emit(s, p, topk_row_out(p, r, row), range.length);
    cluster_wait();
}

#endif
