/* topk for any k: the k highest scores of each row, exactly (the contract is in runtime.h).
 *
 * Formula    key(s) orders scores as unsigned integers (-0 = +0, NaN lowest); the threshold T is
 *            the k-th largest key; out = positions with key > T, and the first k - #{key > T} with
 *            key = T, ascending.
 * Route      "radix": one block a row, any n, any k: for k above 4096. Three histogram passes of
 *            11, 11 and 10 bits find T, a fourth pass emits. The row is re-read from L2.
 * Constants  CAIRN_SCORE_TYPE  1 f32, 2 f16, 3 bf16 (cairn_type)
 * Launch     grid rows, block 1024, dynamic shared memory as topk_cuda.c computes it
 * Oracle     tests/topk_test.c sorts
 * matrix: CAIRN_SCORE_TYPE=1 | CAIRN_SCORE_TYPE=2 | CAIRN_SCORE_TYPE=3 */
#include "common.cuh"
#include "topk.cuh"

#define THREADS 1024
#define SORT_SHARED 8192 /* entries that are sorted in shared memory, at most */

/* Sums of `count` over the threads before this one; *total gets the block's. scratch: [33]. */
CAIRN_INLINE uint32_t block_scan(uint32_t count, uint32_t *scratch, uint32_t *total) {
    uint32_t sum = count;
    for (int step = 1; step < WARP; step *= 2) {
        uint32_t below = shuffle_up(sum, step);
        if (lane_id() >= step) sum += below;
    }
    if (lane_id() == WARP - 1) scratch[warp_id()] = sum;
    block_sync();
    if (warp_id() == 0) {
        uint32_t mine = lane_id() < warp_count() ? scratch[lane_id()] : 0, all = mine;
        for (int step = 1; step < WARP; step *= 2) {
            uint32_t below = shuffle_up(all, step);
            if (lane_id() >= step) all += below;
        }
        scratch[lane_id()] = all - mine;
        if (lane_id() == WARP - 1) scratch[WARP] = all;
    }
    block_sync();
    *total = scratch[WARP];
    sum += scratch[warp_id()] - count;
    block_sync();
    return sum;
}

struct crossing { uint32_t bin, above; };

/* One radix pass: among keys whose bits above shift + width equal `prefix`, the bin of `width` bits
 * that holds the k-th largest. bins: [2048], scratch: [36]. */
CAIRN_INLINE crossing radix_pass(const score_t *row, int length, uint32_t prefix, int shift,
                                 int width, uint32_t k, uint32_t *bins, uint32_t *scratch) {
    const int count = 1 << width, each = ceil_div(count, THREADS);
    for (int i = thread_id(); i < count; i += THREADS) bins[i] = 0;
    block_sync();
    for (int i = thread_id(); i < length; i += THREADS) {
        uint32_t key = topk_key(row[i]);
        if (shift + width == 32 || key >> (shift + width) == prefix)
            atomic_add(&bins[key >> shift & (uint32_t)(count - 1)], 1u);
    }
    block_sync();
    /* thread t owns bins from the top down: count - 1 - t * each and below */
    uint32_t mine = 0, total;
    int top = count - 1 - thread_id() * each;
    for (int i = 0; i < each && top - i >= 0; i++) mine += bins[top - i];
    uint32_t above = block_scan(mine, scratch, &total);
    if (above < k && above + mine >= k) {
        int bin = top;
        while (above + bins[bin] < k) above += bins[bin--];
        scratch[34] = (uint32_t)bin;
        scratch[35] = above;
    }
    block_sync();
    crossing found = {scratch[34], scratch[35]};
    block_sync();
    return found;
}

/* Positions of keys over T and of the first `equal_left` keys equal to it, ascending; how many. */
CAIRN_INLINE int emit(const score_t *row, int length, uint32_t threshold, uint32_t equal_left,
                       int32_t *out, uint32_t *scratch) {
    uint32_t written = 0;
    for (int base = 0; base < length; base += THREADS) {
        int i = base + thread_id();
        uint32_t key = i < length ? topk_key(row[i]) : 0, total_equal, total;
        bool equal = i < length && key == threshold;
        uint32_t rank = block_scan(equal, scratch, &total_equal);
        bool take = i < length && (key > threshold || (equal && rank < equal_left));
        uint32_t slot = written + block_scan(take, scratch, &total);
        if (take) out[slot] = i;
        written += total;
        equal_left -= min_of(equal_left, total_equal);
    }
    return (int)written;
}

/* Descending score, lowest position first: a bitonic sort of (key, ~position) in shared memory,
 * `size` a power of two >= found; back into out. */
CAIRN_INLINE void sort_by_score(const score_t *row, int32_t *out, int found, int size,
                                uint64_t *pairs) {
    for (int i = thread_id(); i < size; i += THREADS)
        pairs[i] = i < found ? (uint64_t)topk_key(row[out[i]]) << 32 | (uint32_t)~out[i] : 0;
    block_sync();
    for (int length = 2; length <= size; length *= 2)
        for (int step = length / 2; step > 0; step /= 2) {
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
    for (int i = thread_id(); i < found; i += THREADS) out[i] = (int32_t)~(uint32_t)pairs[i];
}

/* The same in place and of any number: a bitonic sort whose comparators all face one way, so that
 * what would stand behind `found` need not exist. */
CAIRN_INLINE void sort_in_place(const score_t *row, int32_t *out, int found) {
    for (int length = 2; length < 2 * found; length *= 2)
        for (int step = length / 2; step > 0; step /= 2) {
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

/* Writes the chosen positions, ascending, and returns their number. */
CAIRN_INLINE int select(const score_t *row, int length, uint32_t k, bool finite_only, int32_t *out,
                        uint32_t *bins, uint32_t *scratch) {
    const uint32_t lowest = topk_key(as_f32(0xff800000u));
    uint32_t threshold = lowest, equal_left = 0;
    if ((uint32_t)length > k) {
        crossing a = radix_pass(row, length, 0, 21, 11, k, bins, scratch);
        crossing b = radix_pass(row, length, a.bin, 10, 11, k - a.above, bins, scratch);
        uint32_t prefix = a.bin << 11 | b.bin, above = a.above + b.above;
        crossing c = radix_pass(row, length, prefix, 0, 10, k - above, bins, scratch);
        threshold = prefix << 10 | c.bin;
        equal_left = k - above - c.above;
    }
    if (finite_only && threshold <= lowest) {
        threshold = lowest;
        equal_left = 0;
    }
    return emit(row, length, threshold, equal_left, out, scratch);
}

CAIRN_KERNEL(topk_radix, THREADS, 1, topk_params) {
    uint64_t *pairs = (uint64_t *)shared_base();
    uint32_t *bins = (uint32_t *)shared_base(), *scratch = bins + 2048;
    const int r = block_id();
    int32_t *positions = p.indices + (int64_t)r * p.k;
    topk_range range = topk_row_range(p, r, thread_id() == 0);
    const score_t *row = (const score_t *)p.scores + (int64_t)r * p.stride + range.start;
    topk_out out = topk_row_out(p, r, row);
    int found = min_of(range.length, p.k);
    if (range.length <= p.k && !p.finite_only) {
        for (int i = thread_id(); i < found; i += THREADS) positions[i] = i;
    } else {
        found = select(row, range.length, (uint32_t)p.k, p.finite_only != 0, positions, bins,
                       scratch);
    }
    block_sync();
    if (p.sort_size > SORT_SHARED) sort_in_place(row, positions, found);
    else if (p.sort_size) sort_by_score(row, positions, found, p.sort_size, pairs);
    block_sync();
    for (int i = thread_id(); i < p.k; i += THREADS)
        if (i < found) topk_write(out, i, positions[i]);
        else topk_write_none(out, i);
}
