/* topk of short rows with small k, such as pages: a warp a row, in registers (the contract is in
 * runtime.h).
 *
 * Route      "small": n <= 32 ITEMS, k <= 32. The k-th greatest of the lanes' maxima is a bound
 *            that k scores reach and seldom many more; those that do are gathered and sorted, one a
 *            lane. When they are too many, equal scores are counted off by position, and the others
 *            are narrowed by sorting or a search bit by bit.
 * Constants  CAIRN_SCORE_TYPE, CAIRN_ITEMS scores a lane
 * Launch     grid ceil(rows / 8), block 256, shared memory 8 x 128 words
 * matrix: CAIRN_SCORE_TYPE=1 CAIRN_ITEMS=32 | CAIRN_SCORE_TYPE=2 CAIRN_ITEMS=16
 * matrix: CAIRN_SCORE_TYPE=3 CAIRN_ITEMS=8 */
#include "common.cuh"
#include "topk.cuh"
#include "topk_row.cuh"

#define SMALL_ITEMS CAIRN_ITEMS
#define SMALL_WARPS 8
#define SMALL_LIST 128
#define SMALL_EACH (SMALL_LIST / WARP)

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

/* The k-th greatest of two values a lane, k <= WARP. */
CAIRN_INLINE uint32_t kth_of_pairs(uint32_t a, uint32_t b, int k) {
    a = sort_lanes(a);
    b = shuffle(sort_lanes(b), WARP - 1 - lane_id());
    a = max_of(a, b); /* the WARP greatest of all */
    if (k == WARP) return warp_min(a);
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
    if (least) {
#pragma unroll
        for (int i = 0; i < SMALL_ITEMS; i++) mask |= row.x[i] >= score ? 1u << i : 0u;
    } else {
#pragma unroll
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

/* The greatest key in a range that k of the scores reach: `reached(key)` counts this lane's. */
template <class Reached>
CAIRN_INLINE uint32_t search(key_range range, int k, Reached reached) {
    uint32_t at = 0;
#pragma unroll 1
    for (uint32_t bit = 0x80000000u; bit; bit >>= 1) {
        if ((at | bit) <= range.low) at |= bit; /* k reach it */
        else if ((at | bit) <= range.high && warp_sum(reached(at | bit)) >= k) at |= bit;
    }
    return at;
}

/* The k-th key of a row, which lies in a range whose low `mask` (count of them) reach. */
CAIRN_INLINE uint32_t kth_key(const small_row &row, const score_t *from, int32_t *list,
                              uint32_t mask, int count, key_range range, int k) {
    if (count > SMALL_LIST)
        return search(range, k, [&](uint32_t key) { return popcount(reaching(row, key)); });
    uint32_t keys[SMALL_EACH];
    fill_list(list, mask);
#pragma unroll
    for (int j = 0; j < SMALL_EACH; j++) {
        int i = j * WARP + lane_id();
        keys[j] = i < count ? topk_key(from[list[i]]) : 0;
    }
    warp_sync();
    if (count <= 2 * WARP) return kth_of_pairs(keys[0], keys[1], k);
    return search(range, k, [&](uint32_t key) {
        int mine = 0;
#pragma unroll
        for (int j = 0; j < SMALL_EACH; j++) mine += keys[j] >= key;
        return mine;
    });
}

/* The items that may be among the best k: at most WARP of the warp's. */
CAIRN_INLINE uint32_t small_select(const small_row &row, const score_t *from, int32_t *list, int k,
                                   uint32_t least) {
    float most[2] = {row.x[0], row.x[1]};
#pragma unroll
    for (int i = 2; i < SMALL_ITEMS; i++) most[i % 2] = fmaxf(most[i % 2], row.x[i]);
    const uint32_t highest = topk_key(fmaxf(most[0], most[1]));
    uint32_t bound = k > WARP / 2 ? kth_of_pairs(topk_key(most[0]), topk_key(most[1]), k)
                                  : shuffle(sort_lanes(highest), k - 1);
    bound = max_of(bound, least);
    uint32_t mask = reaching(row, bound);
    int count = count_of(mask);
    if (count <= WARP) return mask;
    uint32_t over = reaching(row, bound + 1);
    int above = count_of(over);
    if (above >= k) {
        bound = kth_key(row, from, list, mask, count, {bound, warp_max(highest)}, k);
        mask = reaching(row, bound);
        over = reaching(row, bound + 1);
        above = count_of(over);
    }
    return over | first_of(mask & ~over, k - above);
}

/* Writes the best k of the masked items, at most WARP. */
CAIRN_INLINE void small_emit(const topk_out &out, int32_t *list, uint32_t mask, int k,
                            bool by_score) {
    const int count = count_of(mask), found = min_of(count, k), lane = lane_id();
    fill_list(list, mask);
    int32_t position = lane < count ? list[lane] : NO_POSITION;
    uint64_t entry = 0;
    if (lane < count)
        entry = (uint64_t)topk_key(out.row[position]) << 32 | (uint32_t)~position;
    if (count > k || by_score) {
        entry = sort_lanes(entry);
        position = (int32_t)~(uint32_t)entry;
    }
    if (!by_score) position = (int32_t)~sort_lanes(lane < found ? ~(uint32_t)position : 0u);
    if (lane < found) topk_write(out, lane, position);
    else if (lane < k) topk_write_none(out, lane);
}

CAIRN_KERNEL(topk_small, SMALL_WARPS * WARP, 4, topk_params) {
    const int r = block_id() * SMALL_WARPS + warp_id();
    if (r >= p.rows) return;
    int32_t *list = shared_as<small_shared>().lists[warp_id()];
    topk_range range = topk_row_range(p, r, lane_id() == 0);
    const score_t *from = (const score_t *)p.scores + (int64_t)r * p.stride + range.start;
    if (range.length <= p.k && !p.finite_only && !p.sort_size) {
        const topk_out out = topk_row_out(p, r, from);
        if (lane_id() >= p.k) return;
        if (lane_id() < range.length) topk_write(out, lane_id(), lane_id());
        else topk_write_none(out, lane_id());
        return;
    }
    topk_vector share[ROW_VECTORS];
    small_row row;
    row.length = range.length;
    load_row(from, range.length, lane_id(), WARP, share);
#pragma unroll
    for (int i = 0; i < SMALL_ITEMS; i++) row.x[i] = to_f32(share[i / VECTOR].score[i % VECTOR]);
    const uint32_t least = p.finite_only ? KEY_MINUS_INFINITY + 1 : 0;
    const uint32_t mask = small_select(row, from, list, p.k, least);
    small_emit(topk_row_out(p, r, from), list, mask, p.k, p.sort_size != 0);
}
