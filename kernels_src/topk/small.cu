/* topk of short rows with small k, such as pages: a warp a row, in registers (the contract is in
 * runtime_ops.h).
 *
 * Route      "small": n <= 32 ITEMS, k <= 32. The k-th greatest of the lanes' maxima is a bound
 *            that k scores reach and seldom many more; those that do are gathered and sorted, one a
 *            lane. When they are too many, a bound from the greatest of each quarter of a lane's is
 *            tried, then the k-th itself, both found by a search bit by bit; scores equal to the
 *            k-th are counted off by position.
 * Constants  CAIRN_SCORE_TYPE, CAIRN_ITEMS scores a lane
 * Launch     grid ceil(rows / 8), block 256, shared memory 8 x 128 words
 * matrix: CAIRN_SCORE_TYPE=1 CAIRN_ITEMS=32 | CAIRN_SCORE_TYPE=2 CAIRN_ITEMS=16
 * matrix: CAIRN_SCORE_TYPE=3 CAIRN_ITEMS=8 */
#include "device/common.cuh"
#include "abi/topk.h"
#include "topk/topk.cuh"
#include "topk/row.cuh"

#define SMALL_ITEMS CAIRN_ITEMS
#define SMALL_WARPS 8
#define PARTS 4 /* of a lane's scores */
#define SMALL_LIST (PARTS * WARP)

struct small_shared { int32_t lists[SMALL_WARPS][SMALL_LIST]; };

/* Lane i gets the i-th greatest of the warp's values. */
template <class T> CAIRN_INLINE T sort_lanes(T v) {
#pragma unroll
    for (int size = 2; size <= WARP; size *= 2)
#pragma unroll
        for (int step = size / 2; step > 0; step /= 2) {
            T other = shuffle_xor(v, step);
            bool upper = ((lane_id() & step) == 0) == ((lane_id() & size) == 0);
            v = (v < other) == upper ? other : v;
        }
    return v;
}

/* The k-th greatest of the values in `a`, and of those in `b` if `both`; k <= WARP. */
CAIRN_INLINE uint32_t kth_of_lanes(uint32_t a, uint32_t b, bool both, int k) {
    if (both) {
        a = sort_lanes(a);
        b = shuffle(sort_lanes(b), WARP - 1 - lane_id());
        a = max_of(a, b); /* the WARP greatest of all */
        if (k == WARP) return warp_min(a);
    }
    return shuffle(sort_lanes(a), k - 1);
}

/* What a warp knows of its row. */
struct small_row {
    float x[SMALL_ITEMS];
    int length;
};

CAIRN_INLINE int small_position(int i) { return row_position(i, lane_id(), WARP); }

/* Items with a key of at least `least`, as bits; with 0, all of the row. */
CAIRN_INLINE uint32_t reaching(const small_row &row, uint32_t least) {
    uint32_t mask = 0;
    const float score = key_score(least);
#pragma unroll
    for (int i = 0; i < SMALL_ITEMS; i++) mask |= row.x[i] >= score ? 1u << i : 0u;
    if (least == 0) {
#pragma unroll 1
        for (int i = 0; i < SMALL_ITEMS; i++)
            mask |= small_position(i) < row.length ? 1u << i : 0u;
    }
    return mask;
}

CAIRN_INLINE int count_of(uint32_t mask) { return warp_sum(popcount(mask)); }

/* Of the masked items the first `count` by position. */
CAIRN_INLINE uint32_t first_of(uint32_t mask, int count) {
    uint32_t taken = 0;
#pragma unroll 1
    for (int j = 0; j < ROW_VECTORS && count > 0; j++) {
        uint32_t items = mask & ((1u << VECTOR) - 1) << (j * VECTOR);
        int end = warp_scan(popcount(items)), room = count - (end - popcount(items));
        for (; items && room > 0; room--) {
            taken |= items & (0u - items);
            items &= items - 1;
        }
        count -= shuffle(end, WARP - 1);
    }
    return taken;
}

/* Puts the masked items' positions into the list: count_of(mask) <= SMALL_LIST. */
CAIRN_INLINE void fill_list(int32_t *list, uint32_t mask) {
    int at = warp_scan(popcount(mask)) - popcount(mask);
    for (; mask; mask &= mask - 1) list[at++] = small_position(find_first_set(mask) - 1);
    warp_sync();
}

/* A key in a range that k scores reach, as `reach` counts them, and at most `most`; the greatest that k do where there
 * is none. k reach the range's least. Bit by bit, from the first in which its ends differ. */
template <class Reach>
CAIRN_INLINE uint32_t search(key_range range, int k, int most, Reach reach) {
    if (range.low >= range.high) return range.low;
    const uint32_t differ = 0xffffffffu >> leading_zeros(range.low ^ range.high);
    uint32_t at = range.low & ~differ;
#pragma unroll 1
    for (uint32_t bit = differ - (differ >> 1); bit; bit >>= 1) {
        if ((at | bit) <= range.low) at |= bit; /* k reach it */
        else if ((at | bit) <= range.high) {
            const int count = reach(at | bit);
            if (count < k) continue;
            at |= bit;
            if (count <= most) break;
        }
    }
    return at;
}

/* The same by the warp's keys, PARTS a lane. */
CAIRN_INLINE uint32_t search_keys(key_range range, int k, int most, const uint32_t *key) {
    return search(range, k, most, [&](uint32_t at) {
        int all = 0;
#pragma unroll
        for (int j = 0; j < PARTS; j++) all += popcount(warp_ballot(key[j] >= at));
        return all;
    });
}

/* The greatest key of every PARTS-th item, from each of the first on. */
CAIRN_INLINE void part_maxima(const small_row &row, uint32_t *key) {
#pragma unroll
    for (int j = 0; j < PARTS; j++) {
        float most = row.x[j];
#pragma unroll
        for (int i = j + PARTS; i < SMALL_ITEMS; i += PARTS) most = fmaxf(most, row.x[i]);
        key[j] = topk_key(most);
    }
}

/* A key that k scores reach, for random rows seldom many more: the k-th greatest of the lanes' own, or, where these are
 * few, of two of each. */
CAIRN_INLINE uint32_t lane_bound(const uint32_t *key, int k) {
    const uint32_t a = max_of(key[0], key[2]), b = max_of(key[1], key[3]);
    return k > WARP / 2 ? kth_of_lanes(a, b, true, k) : kth_of_lanes(max_of(a, b), 0, false, k);
}

/* The items that may be among the best k: at most WARP of the warp's. A bound that k reach is tried first; when too
 * many do, one by more scores a lane, for neighbours are alike in rows that change slowly; then the k-th key. */
CAIRN_INLINE uint32_t small_select(const small_row &row, const score_t *from, int32_t *list, int k,
                                   uint32_t least) {
    uint32_t key[PARTS];
    part_maxima(row, key);
    const uint32_t highest = warp_max(max_of(max_of(key[0], key[1]), max_of(key[2], key[3])));
    uint32_t bound = max_of(lane_bound(key, k), least);
    bool by_parts = true;
#pragma unroll 1
    for (;;) {
        const uint32_t mask = reaching(row, bound);
        const int count = count_of(mask);
        if (count <= WARP) return mask;
        if (by_parts) {
            by_parts = false;
            const uint32_t first = bound;
            bound = search_keys({bound, highest}, k, max_of(k, WARP - WARP / 8), key);
            if (bound > first) continue;
        }
        const uint32_t over = reaching(row, bound + 1);
        const int above = count_of(over);
        if (above < k) return over | first_of(mask & ~over, k - above);
        if (count > SMALL_LIST) {
            bound = search({bound, highest}, k, WARP,
                           [&](uint32_t at) { return count_of(reaching(row, at)); });
            continue;
        }
        fill_list(list, mask);
#pragma unroll
        for (int j = 0; j < PARTS; j++) {
            const int i = j * WARP + lane_id();
            key[j] = i < count ? topk_key(from[list[i]]) : 0;
        }
        warp_sync();
        bound = search_keys({bound, highest}, k, WARP, key);
    }
}

/* The best k of the masked items, at most WARP, in order: lane i gets the position of the i-th of
 * *found. */
CAIRN_INLINE int32_t small_order(const score_t *from, int32_t *list, uint32_t mask, int k,
                                 bool by_score, int *found) {
    const int count = count_of(mask), lane = lane_id();
    fill_list(list, mask);
    int32_t position = lane < count ? list[lane] : NO_POSITION;
    *found = min_of(count, k);
    if (count > k || by_score) {
        uint64_t entry = 0;
        if (lane < count) entry = (uint64_t)topk_key(from[position]) << 32 | (uint32_t)~position;
        position = (int32_t)~(uint32_t)sort_lanes(entry);
    }
    if (by_score) return position;
    return (int32_t)~sort_lanes(lane < *found ? ~(uint32_t)position : 0u);
}

CAIRN_KERNEL(topk_small, SMALL_WARPS * WARP, 4, topk_params) {
    const int r = block_id() * SMALL_WARPS + warp_same(warp_id());
    grid_follow();
    if (r >= p.rows) return;
    int32_t *list = shared_as<small_shared>().lists[warp_id()];
    topk_range range = topk_row_range(p, r, lane_id() == 0);
    const score_t *from = (const score_t *)p.scores + (int64_t)r * p.stride + range.start;
    int found = range.length;
    int32_t position = lane_id();
    if (range.length > p.k || p.finite_only || p.sort_size) {
        topk_vector share[ROW_VECTORS];
        small_row row;
        row.length = range.length;
        load_row(from, range.length, lane_id(), WARP, share);
#pragma unroll
        for (int i = 0; i < SMALL_ITEMS; i++)
            row.x[i] = to_f32(share[i / VECTOR].score[i % VECTOR]);
        const uint32_t least = p.finite_only ? KEY_MINUS_INFINITY + 1 : 0;
        const uint32_t mask = small_select(row, from, list, p.k, least);
        position = small_order(from, list, mask, p.k, p.sort_size != 0, &found);
    }
    const topk_out out = topk_row_out(p, r, from);
    if (lane_id() < found) topk_write(out, lane_id(), position);
    else if (lane_id() < p.k) topk_write_none(out, lane_id());
}
