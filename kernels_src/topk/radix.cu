/* topk for any k: the k highest scores of each row, exactly (the contract is in runtime_ops.h).
 *
 * Formula    key(s) orders scores as unsigned integers (-0 = +0, NaN lowest); the threshold T is
 *            the k-th largest key; out = positions with key > T, and the first k - #{key > T} with
 *            key = T, ascending.
 * Route      "radix": one block a row, any n, any k: for k above 4096. Three histogram passes of
 *            11, 11 and 10 bits find T, a fourth pass emits. The row is re-read from L2.
 * Constants  CAIRN_SCORE_TYPE  1 f32, 2 f16, 3 bf16 (cairn_type)
 * Launch     grid rows, block 1024, dynamic shared memory as ops/topk/topk_cuda.c computes it
 * Oracle     tests/ops/topk_test.c sorts
 * matrix: CAIRN_SCORE_TYPE=1 | CAIRN_SCORE_TYPE=2 | CAIRN_SCORE_TYPE=3 */
#include "device/common.cuh"
#include "abi/topk.h"
#include "topk/topk.cuh"

#define THREADS 1024

struct radix_shared { /* or, later, the entries to sort */
    uint32_t bins[2048], sums[WARP];
    bin_found found;
};

/* Sums of `count` over the threads before this one; *total gets the block's. */
CAIRN_INLINE uint32_t block_scan(radix_shared &s, uint32_t count, uint32_t *total) {
    const uint32_t end = warp_scan(count);
    if (lane_id() == WARP - 1) s.sums[warp_id()] = end;
    block_sync();
    const uint32_t of = s.sums[lane_id()];
    block_sync();
    *total = warp_sum(of);
    return warp_sum(lane_id() < warp_id() ? of : 0u) + end - count;
}

/* Adds to the bins the keys whose bits from `upper` on equal `prefix`, by their bits from `shift`
 * to there. */
CAIRN_INLINE void count_keys(radix_shared &s, const score_t *row, int length, uint32_t prefix,
                             int upper, int shift) {
    s.bins[thread_id()] = s.bins[THREADS + thread_id()] = 0;
    block_sync();
    for (int i = thread_id(); i < length; i += THREADS) {
        const uint32_t key = topk_key(row[i]);
        if (upper == 32 || key >> upper == prefix)
            atomic_add(&s.bins[key >> shift & ((1u << (upper - shift)) - 1)], 1u);
    }
    block_sync();
}

/* The k-th largest key, and how many equal to it are chosen. */
struct radix_cut { uint32_t key, equal_left; };
CAIRN_INLINE radix_cut find_kth(radix_shared &s, const score_t *row, int length, uint32_t k) {
    uint32_t prefix = 0;
    int upper = 32;
#pragma unroll 1
    while (upper > 0) {
        const int shift = max_of(upper - 11, 0);
        count_keys(s, row, length, prefix, upper, shift);
        find_bin<2048, THREADS>(s.bins, s.sums, s.found, k);
        prefix = prefix << (upper - shift) | s.found.bin;
        k -= s.found.above;
        upper = shift;
        block_sync(); /* all have read what was found */
    }
    return {prefix, k};
}

/* Positions of keys over T and of the first `equal_left` keys equal to it, ascending; how many. */
CAIRN_INLINE int emit(radix_shared &s, const score_t *row, int length, radix_cut cut,
                      int32_t *out) {
    uint32_t written = 0;
#pragma unroll 1
    for (int base = 0; base < length; base += THREADS) {
        const int i = base + thread_id();
        uint32_t key = i < length ? topk_key(row[i]) : 0, total_equal, total;
        const bool equal = i < length && key == cut.key;
        const uint32_t rank = block_scan(s, equal, &total_equal);
        const bool take = i < length && (key > cut.key || (equal && rank < cut.equal_left));
        const uint32_t slot = written + block_scan(s, take, &total);
        if (take) out[slot] = i;
        written += total;
        cut.equal_left -= min_of(cut.equal_left, total_equal);
    }
    return (int)written;
}

/* Writes the chosen positions, ascending, and returns their number. */
CAIRN_INLINE int select(radix_shared &s, const score_t *row, int length, uint32_t k,
                        bool finite_only, int32_t *out) {
    radix_cut cut = {0, (uint32_t)length}; /* all */
    if ((uint32_t)length > k) cut = find_kth(s, row, length, k);
    if (finite_only && cut.key <= KEY_MINUS_INFINITY) cut = {KEY_MINUS_INFINITY, 0};
    return emit(s, row, length, cut, out);
}

/* Descending score, lowest position first; size: a power of two >= found. The positions then lie in
 * shared memory, at what is returned. */
CAIRN_INLINE const int32_t *sort_by_score(const score_t *row, const int32_t *chosen, int found,
                                          int size) {
    uint32_t *keys = (uint32_t *)shared_base();
    int32_t *positions = (int32_t *)(keys + size);
#pragma unroll 1
    for (int i = thread_id(); i < found; i += THREADS) {
        positions[i] = chosen[i];
        keys[i] = topk_key(row[chosen[i]]);
    }
    pad_entries(keys, positions, found, size);
    sort_entries(keys, positions, size);
    return positions;
}

/* The same in place and of any number: a bitonic sort whose comparators all face one way, so that
 * what would stand behind `found` need not exist. */
CAIRN_INLINE void sort_in_place(const score_t *row, int32_t *out, int found) {
#pragma unroll 1
    for (int length = 2; length < 2 * found; length *= 2)
#pragma unroll 1
        for (int step = length / 2; step > 0; step /= 2) {
#pragma unroll 1
            for (int i = thread_id(); i < found; i += THREADS) {
                int high = step == length / 2 ? i ^ (length - 1) : i ^ step; /* mirrored, then across */
                if (high <= i || high >= found) continue;
                int32_t a = out[i], b = out[high];
                uint32_t key_a = topk_key(row[a]), key_b = topk_key(row[b]);
                if (key_a < key_b || (key_a == key_b && a > b)) {
                    out[i] = b;
                    out[high] = a;
                }
            }
            block_sync();
        }
}

CAIRN_KERNEL(topk_radix, THREADS, 1, topk_params) {
    radix_shared &s = shared_as<radix_shared>();
    const int r = block_id();
    int32_t *chosen = p.indices + (int64_t)r * p.k;
    const int32_t *positions = chosen;
    grid_follow();
    topk_range range = topk_row_range(p, r, thread_id() == 0);
    const score_t *row = (const score_t *)p.scores + (int64_t)r * p.stride + range.start;
    int found = range.length;
    const bool whole = range.length <= p.k && !p.finite_only && !p.sort_size;
    if (!whole) {
        found = select(s, row, range.length, (uint32_t)p.k, p.finite_only != 0, chosen);
        block_sync();
        if (p.sort_size > CAIRN_TOPK_SORT_SHARED) sort_in_place(row, chosen, found);
        else if (p.sort_size) positions = sort_by_score(row, chosen, found, p.sort_size);
    }
    topk_write_row(topk_row_out(p, r, row), !whole, positions, found, p.k);
}
