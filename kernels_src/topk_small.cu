/* topk of short rows with small k, such as pages: a warp a row, in registers (the contract is in
 * runtime.h).
 *
 * Route      "small": n <= 32 ITEMS, k <= 32. A bound that k of 64 groups' maxima reach leaves few
 *            candidates, which are ranked by comparing all pairs. When it leaves many, a search bit
 *            by bit finds the k-th key first.
 * Constants  CAIRN_SCORE_TYPE, CAIRN_ITEMS scores a lane
 * Launch     grid ceil(rows / 8), block 256
 * matrix: CAIRN_SCORE_TYPE=1 CAIRN_ITEMS=32 | CAIRN_SCORE_TYPE=2 CAIRN_ITEMS=16
 * matrix: CAIRN_SCORE_TYPE=3 CAIRN_ITEMS=8 */
#include "common.cuh"
#include "topk.cuh"

#define SMALL_ITEMS CAIRN_ITEMS
#define SMALL_WARPS 8
#define SMALL_LIST 128 /* candidates that are ranked */
#define SMALL_BITS 14  /* of the bound; all 32 for the k-th key itself */

/* The candidates of a warp's row, ascending in position. Here keys count from 1; 0 is no score. */
struct small_list { uint32_t keys[SMALL_LIST]; int32_t positions[SMALL_LIST]; };
struct small_shared { small_list lists[SMALL_WARPS]; };

CAIRN_INLINE uint32_t below_me(uint32_t votes) {
    return (uint32_t)popcount(votes & ((1u << lane_id()) - 1));
}

/* The greatest value, in steps of the top `bits` bits that differ, which k of the warp's `count`
 * values a lane reach; *reached of them do. */
template <int count>
CAIRN_INLINE uint32_t search(const uint32_t *values, uint32_t k, int bits, uint32_t *reached) {
    uint32_t low = values[0], high = values[0];
#pragma unroll
    for (int i = 1; i < count; i++) low = min_of(low, values[i]), high = max_of(high, values[i]);
    low = warp_min(low);
    high = warp_max(high);
    int bit = 31 - leading_zeros(low ^ high);
    uint32_t at = bit < 0 ? low : bit == 31 ? 0 : low >> (bit + 1) << (bit + 1);
    *reached = count * WARP;
    for (int end = max_of(bit - bits, -1); bit > end && *reached != k; bit--) {
        uint32_t mine = 0;
#pragma unroll
        for (int i = 0; i < count; i++) mine += values[i] >= (at | 1u << bit);
        mine = warp_sum(mine);
        if (mine < k) continue;
        at |= 1u << bit;
        *reached = mine;
    }
    return at;
}

/* Into the list: keys over `least`, and the first `equal_left` equal to it. How many. */
CAIRN_INLINE int fill_list(small_list &list, const uint32_t *keys, uint32_t least,
                           uint32_t equal_left) {
    uint32_t filled = 0;
#pragma unroll
    for (int i = 0; i < SMALL_ITEMS; i++) {
        uint32_t equal = warp_ballot(keys[i] == least);
        bool takes = keys[i] > least || (keys[i] == least && below_me(equal) < equal_left);
        uint32_t votes = warp_ballot(takes);
        if (takes) {
            list.keys[filled + below_me(votes)] = keys[i];
            list.positions[filled + below_me(votes)] = i * WARP + lane_id();
        }
        filled += (uint32_t)popcount(votes);
        equal_left -= min_of(equal_left, (uint32_t)popcount(equal));
    }
    warp_sync();
    return (int)filled;
}

/* The best k of the list, in order; how many were written. */
CAIRN_INLINE int emit_list(const small_list &list, int m, int k, bool by_score,
                           const topk_out &out) {
    int written = 0;
    for (int first = 0; first < m; first += WARP) {
        const int mine = first + lane_id();
        const uint32_t key = mine < m ? list.keys[mine] : 0;
        int rank = 0;
        for (int i = 0; i < m; i++) {
            uint32_t other = list.keys[i];
            rank += other > key || (other == key && i < mine);
        }
        bool chosen = mine < m && rank < k;
        uint32_t votes = warp_ballot(chosen);
        int slot = by_score ? rank : written + (int)below_me(votes);
        if (chosen) topk_write(out, slot, list.positions[mine]);
        written += popcount(votes);
    }
    return written;
}

CAIRN_KERNEL(topk_small, SMALL_WARPS * WARP, 3, topk_params) {
    const int r = block_id() * SMALL_WARPS + warp_id();
    if (r >= p.rows) return;
    small_list &list = shared_as<small_shared>().lists[warp_id()];
    const uint32_t k = (uint32_t)p.k, least = p.finite_only ? KEY_MINUS_INFINITY + 2 : 1;
    topk_range range = topk_row_range(p, r, lane_id() == 0);
    const score_t *row = (const score_t *)p.scores + (int64_t)r * p.stride + range.start;
    const topk_out out = topk_row_out(p, r, row);
    int found = range.length;
    if (range.length <= p.k && !p.finite_only && !p.sort_size) {
        if (lane_id() < found) topk_write(out, lane_id(), lane_id());
    } else {
        uint32_t keys[SMALL_ITEMS], most[2] = {0, 0}, reached, count = 0;
#pragma unroll
        for (int i = 0; i < SMALL_ITEMS; i++) {
            int position = i * WARP + lane_id();
            keys[i] = position < range.length ? topk_key(row[position]) + 1 : 0;
            most[i % 2] = max_of(most[i % 2], keys[i]);
        }
        uint32_t bound = max_of(search<2>(most, k, SMALL_BITS, &reached), least), equal_left = ~0u;
#pragma unroll
        for (int i = 0; i < SMALL_ITEMS; i++) count += keys[i] >= bound;
        count = warp_sum(count);
        if (count > SMALL_LIST) {
            bound = max_of(search<SMALL_ITEMS>(keys, k, 32, &reached), least);
            uint32_t above = 0;
#pragma unroll
            for (int i = 0; i < SMALL_ITEMS; i++) above += keys[i] > bound;
            equal_left = k - warp_sum(above);
            if (reached == k) equal_left = ~0u; /* all that reach it, and it need not be a key */
        }
        int m = fill_list(list, keys, bound, equal_left);
        found = emit_list(list, m, p.k, p.sort_size != 0, out);
    }
    if (found + lane_id() < p.k) topk_write_none(out, found + lane_id());
}
