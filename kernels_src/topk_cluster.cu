/* topk of long rows by clusters (the contract is in runtime.h): CLUSTER blocks a row, each with a
 * slice of it on the chip.
 *
 * Route      "cluster", sm_90 and up
 *            1. Every block finds a key that its part of k scores reach, from the maxima of groups
 *               of its scores; the least of these is reached by k scores of the row.
 *            2. Every block sends the keys that reach it to the first, which selects the k-th.
 *               When there are too many, all blocks count theirs in bins over what range is left,
 *               until few enough lie in the bin of the k-th.
 *            3. Knowing the k-th key and how many of those equal to it are taken, each block marks
 *               its own chosen scores in a bit map and writes them where the blocks before it end.
 * Constants  CAIRN_SCORE_TYPE  1 f32, 2 f16, 3 bf16 (cairn_type)
 *            CAIRN_THREADS, CAIRN_ITEMS  a tile is their product; at most 32 items
 *            CAIRN_CLUSTER  blocks a row, a power of two up to 16
 *            CAIRN_STAGES  tiles kept in shared memory: 0 or 1, which takes up to 227 KiB
 *            CAIRN_CAPACITY  keys the first block can select from
 * Launch     grid rows x CLUSTER, block THREADS, shared memory as topk_cuda.c computes it
 * Oracle     tests/topk_test.c sorts
 * matrix: arch>=90 CAIRN_SCORE_TYPE=1 CAIRN_THREADS=512 CAIRN_ITEMS=16 CAIRN_CLUSTER=16
 * matrix: + CAIRN_STAGES=0 CAIRN_CAPACITY=8192
 * matrix: arch>=90 CAIRN_SCORE_TYPE=2 CAIRN_THREADS=1024 CAIRN_ITEMS=32 CAIRN_CLUSTER=2
 * matrix: + CAIRN_STAGES=1 CAIRN_CAPACITY=4096 */
#include "common.cuh"
#include "topk.cuh"
#include "topk_slice.cuh"

#if CAIRN_ARCH >= 900
#include "topk_cluster.cuh"
#include "topk_kth.cuh"

/* What becomes of a chosen score: output, or the first block's list to be sorted. */
CAIRN_INLINE void put(const topk_out &out, bool sorts, uint32_t slot, uint32_t key,
                      int32_t position) {
    uint64_t *pairs = ((staged_shared *)shared_base())->pairs;
    if (!sorts) topk_write(out, (int)slot, position);
    else
        remote_store(remote(shared_addr(&pairs[slot]), 0),
                     (uint64_t)key << 32 | (uint32_t)~position);
}

/* Descending score, lowest position first: a bitonic sort of (key, ~position). */
CAIRN_INLINE void emit_sorted(uint64_t *pairs, const topk_out &out, int found, int size) {
#pragma unroll 1
    for (int i = found + thread_id(); i < size; i += THREADS) pairs[i] = 0;
    block_sync();
#pragma unroll 1
    for (int length = 2; length <= size; length *= 2)
#pragma unroll 1
        for (int step = length / 2; step > 0; step /= 2) {
#pragma unroll 1
            for (int i = thread_id(); i < size / 2; i += THREADS) {
                int low = 2 * i - (i & (step - 1)), high = low + step;
                uint64_t a = pairs[low], b = pairs[high];
                if ((a < b) == ((low & length) == 0)) {
                    pairs[low] = b;
                    pairs[high] = a;
                }
            }
            block_sync();
        }
#pragma unroll 1
    for (int i = thread_id(); i < found; i += THREADS)
        topk_write(out, i, (int32_t)~(uint32_t)pairs[i]);
}

/* This block's share of the candidates in s.own: two counts go through one scan, of those over
 * the key and, in the upper half, of those equal to it. */
CAIRN_INLINE void emit_placed(cluster_shared &s, const row_slice &w, verdict v, bool sorts) {
    const int count = (int)s.count;
    const uint32_t below = (1u << lane_id()) - 1;
    uint32_t over_before = 0, equal_before = 0;
#pragma unroll 1
    for (int first = 0; first < count; first += THREADS) {
        const int i = first + thread_id();
        const uint32_t key = i < count ? s.own[i] : 0;
        const bool is_over = key > v.key, is_equal = i < count && key == v.key;
        const uint32_t over = warp_ballot(is_over), equal = warp_ballot(is_equal);
        block_sync();
        if (lane_id() == 0)
            s.totals[0][warp_id()] = (uint32_t)(popcount(over) | popcount(equal) << 16);
        block_sync();
        const uint32_t total = lane_id() < WARPS ? s.totals[0][lane_id()] : 0u;
        const uint32_t before = warp_sum(lane_id() < warp_id() ? total : 0u);
        const uint32_t ties = equal_before + (before >> 16) + (uint32_t)popcount(equal & below);
        if (is_over || (is_equal && ties < v.ties))
            put(s.out, sorts,
                v.offset + over_before + (before & 0xffffu) + (uint32_t)popcount(over & below) +
                    min_of(ties, v.ties),
                key, w.origin + s.elements[i]);
        const uint32_t all = warp_sum(total);
        over_before += all & 0xffffu;
        equal_before += all >> 16;
    }
}

/* This block's share by its bits. When some of its ties are chosen and some not, a first pass finds
 * the last that is. */
CAIRN_INLINE void emit_marked(cluster_shared &s, const row_slice &w, const thread_bits &mine,
                              verdict v, bool sorts) {
    int32_t *list = (int32_t *)s.keys;
    uint32_t count = 0;
    if (thread_id() == 0) s.cut = v.ties ? NO_POSITION : -1;
    block_sync();
#pragma unroll 1
    for (int mode = v.ties == 0 || v.ties == EVERY ? WRITE : CUT; mode <= WRITE; mode++)
        count = visit_items(s, w, mode, mine, v.key, v.key + 1, v.ties - 1, list);
#pragma unroll 1
    for (uint32_t i = (uint32_t)thread_id(); i < count; i += THREADS)
        put(s.out, sorts, v.offset + i, sorts ? topk_key(w.base[list[i]]) : 0, w.origin + list[i]);
}

/* What the cluster as a whole does at the end. */
CAIRN_INLINE void finish(cluster_shared &s, const topk_params &p, uint32_t found, uint64_t *pairs) {
    if (p.sort_size) cluster_sync();
    if (cluster_rank() != 0) return;
    if (p.sort_size) emit_sorted(pairs, s.out, (int)found, p.sort_size);
#pragma unroll 1
    for (int i = (int)found + thread_id(); i < p.k; i += THREADS) topk_write_none(s.out, i);
}

/* A row of at most k candidates, all of them chosen, without reading a score. */
CAIRN_INLINE void emit_all(const topk_params &p, const topk_out &out, int length) {
#pragma unroll 1
    for (int i = thread_id(); i < p.k; i += THREADS)
        if (i < length) topk_write(out, i, i);
        else topk_write_none(out, i);
}

CAIRN_KERNEL(topk_cluster, THREADS, 1024 / THREADS, topk_params) {
    staged_shared &all = shared_as<staged_shared, 227 * 1024>();
    cluster_shared &s = all.s;
    const int r = block_id() / CLUSTER, rank = cluster_rank();
    if (thread_id() == 0) begin_barriers(s);
    cluster_arrive_relaxed();
    topk_range range = topk_row_range(p, r, rank == 0 && thread_id() == 0);
    const score_t *row = (const score_t *)p.scores + (int64_t)r * p.stride + range.start;
    if (range.length <= p.k && !p.finite_only && !p.sort_size) {
        if (rank == 0) emit_all(p, topk_row_out(p, r, row), range.length);
        cluster_wait();
        return;
    }
    const row_slice whole = slice_of(row, range.length, rank);
    tile_data held;
    if (thread_id() == 0) kept_slice() = whole, s.out = topk_row_out(p, r, row);
    clear_bins(s);
    group_most most = read_slice(whole, held);
    u32x2 mine = slice_bound(s, whole, most, ceil_div(p.k, CLUSTER));
    const row_slice &w = kept_slice();
    cluster_wait(); /* every block has begun and set up its barriers */
    key_range keys = agree(s, mine, p.finite_only ? KEY_MINUS_INFINITY + 1 : 0);
    thread_bits bits = find_candidates(w, held, keys.low);
    uint32_t need = (uint32_t)p.k, parity = 0;
    verdict v = {0, 0, 0, EVERY};
#pragma unroll 1
    for (; keys.low < keys.high; parity = 1) {
        list_keys(s, w, bits, keys);
        if (thread_id() == 0) send_keys(s);
        if (rank == 0) decide(s, keys, need, parity);
        mbarrier_wait_cluster(shared_addr(&s.verdict_in), parity);
        v = bit_cast<verdict>(s.told);
        if (v.found != EVERY) break;
        bin_search at;
#pragma unroll 1
        do {
            at = narrow_cluster(keys, need);
            keys = at.range;
            need = at.need;
        } while (at.inside > REGION && keys.low < keys.high);
        if (keys.low == keys.high) break;
        if (thread_id() == 0) begin_again(s);
        bits = scan_slice(0, keys.low, keys.high + 1).bits;
    }
    if (v.found != EVERY && parity == 0) {
        emit_placed(s, w, v, p.sort_size != 0);
    } else {
        if (v.found != EVERY) keys.low = v.key, need = v.ties;
        v = share_alone(s, keys.low, need, bits);
        emit_marked(s, w, bits, v, p.sort_size != 0);
    }
    finish(s, p, v.found, all.pairs);
}

#endif
