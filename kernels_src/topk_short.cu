/* topk of short rows: one block a row, which lies in its registers (the contract is in runtime.h).
 *
 * Route      "block", for n <= THREADS ITEMS. A bound from the warps' greatest scores leaves few;
 *            those are gathered and ranked by comparing all pairs. Where k is larger or they are
 *            many, histograms find the cut, the k-th key and how many equal to it are in, and a
 *            scan over the registers writes what is chosen in order.
 * Constants  CAIRN_SCORE_TYPE  1 f32, 2 f16, 3 bf16 (cairn_type)
 *            CAIRN_THREADS, CAIRN_ITEMS scores a thread
 * Launch     grid rows, block THREADS, shared memory SHORT_BYTES, and 8 bytes for each of
 *            sort_size, or 4 for each of k in order of position
 * Oracle     tests/topk_test.c sorts
 * matrix: CAIRN_SCORE_TYPE=1 CAIRN_THREADS=512 CAIRN_ITEMS=16
 * matrix: CAIRN_SCORE_TYPE=1 CAIRN_THREADS=512 CAIRN_ITEMS=8
 * matrix: CAIRN_SCORE_TYPE=2 CAIRN_THREADS=512 CAIRN_ITEMS=16
 * matrix: CAIRN_SCORE_TYPE=3 CAIRN_THREADS=512 CAIRN_ITEMS=8 */
#include "common.cuh"
#include "topk.cuh"
#include "topk_row.cuh"
#define SHORT_THREADS CAIRN_THREADS
#define CUT_THREADS CAIRN_THREADS
#include "topk_cut.cuh"

#define SHORT_ITEMS CAIRN_ITEMS
#define SHORT_QUOTA 8 /* scores a warp names at most */
#define LEVEL_WORDS ((ROW_VECTORS + 1) / 2)
#define SHORT_BYTES 13824 /* of short_shared at most; behind it are the chosen positions, keys */

struct short_shared {
    cut_shared cut;
    alignas(16) uint32_t keys[CUT_LIST];   /* of the few candidates; 0 behind them */
    alignas(16) uint32_t chosen[CUT_LIST]; /* places of the best k; 0 behind them */
    uint32_t places[CUT_LIST];             /* ~position, so that the first is the greatest */
    uint32_t levels[2][LEVEL_WORDS][WARP];  /* one a warp */
    uint32_t entered, taken, sorted;
    uint32_t reached; /* keys that reach the bound; in the upper half those above it */
};

struct short_row {
    float x[SHORT_ITEMS]; /* NaN past the end */
    int length;
    uint32_t least; /* keys below it are no candidates */
};

CAIRN_INLINE int short_position(int i) { return row_position(i, thread_id(), SHORT_THREADS); }

CAIRN_INLINE void load_short(const score_t *from, int length, bool finite_only, short_row &row) {
    topk_vector share[ROW_VECTORS];
    load_row(from, length, thread_id(), SHORT_THREADS, share);
#pragma unroll
    for (int i = 0; i < SHORT_ITEMS; i++) row.x[i] = to_f32(share[i / VECTOR].score[i % VECTOR]);
    row.length = length;
    row.least = finite_only ? KEY_MINUS_INFINITY + 1 : 0;
}

/* ---- few candidates -------------------------------------------------------------------------- */

/* The quota-th greatest of the lanes' own. */
CAIRN_INLINE uint32_t kth_of_warp(uint32_t mine, int quota) {
    uint32_t most = warp_max(mine);
    for (int i = 1; i < quota; i++) {
        uint32_t holders = warp_ballot(mine == most);
        if (lane_id() == find_first_set(holders) - 1) mine = 0;
        most = warp_max(mine);
    }
    return most;
}

/* A key that k candidates reach, seldom many more: the least of what the warps name; else 0. Ends
 * with a barrier. */
CAIRN_INLINE uint32_t find_bound(short_shared &s, const short_row &row, int k) {
    const int full = min_of(CUT_WARPS, row.length / (VECTOR * WARP)); /* without an idle lane */
    const int quota = full ? ceil_div(k, full) : SHORT_QUOTA + 1;
    float most = row.x[0];
#pragma unroll
    for (int i = 1; i < SHORT_ITEMS; i++) most = fmaxf(most, row.x[i]);
    if (thread_id() == 0) s.entered = s.taken = s.reached = s.sorted = 0;
    for (int i = thread_id(); i < CUT_LIST; i += SHORT_THREADS) s.keys[i] = s.chosen[i] = 0;
    if (quota <= SHORT_QUOTA && warp_id() < full) {
        uint32_t named = kth_of_warp(topk_key(most), quota);
        if (lane_id() == 0) s.cut.sums[warp_id()] = named;
    }
    block_sync();
    if (quota > SHORT_QUOTA) return 0;
    const uint32_t bound = warp_min(lane_id() < full ? s.cut.sums[lane_id()] : 0xffffffffu);
    return bound < row.least ? 0 : bound;
}

/* Enters the candidates that reach the bound, above 0, into the list as far as there is room;
 * s.entered counts all. */
CAIRN_INLINE void enter_reaching(short_shared &s, const score_t *from, const short_row &row,
                                 uint32_t bound) {
    const float least = key_score(bound);
    uint32_t mask = 0;
#pragma unroll
    for (int i = 0; i < SHORT_ITEMS; i++) mask |= row.x[i] >= least ? 1u << i : 0u;
    if (mask) {
        uint32_t at = atomic_add(&s.entered, (uint32_t)popcount(mask));
        for (; mask && at < CUT_LIST; mask &= mask - 1) {
            const int position = short_position(find_first_set(mask) - 1);
            s.places[at] = (uint32_t)~position;
            s.keys[at++] = topk_key(from[position]);
        }
    }
    block_sync();
}

/* How many of a list's `count` values, 0 behind them, are over `mine`; 1 << shift threads count. */
CAIRN_INLINE int count_over(const uint32_t *list, int count, uint32_t mine, int shift) {
    uint32_t over = 0;
#pragma unroll 1
    for (int i = cut_part(shift) * 4; i < count; i += 4 << shift) {
        const u32x4 v = *(const u32x4 *)&list[i];
        over += (uint32_t)(v.x > mine) + (uint32_t)(v.y > mine);
        over += (uint32_t)(v.z > mine) + (uint32_t)(v.w > mine);
    }
    return (int)cut_sum(over, shift);
}

/* Of equal keys, how many have the lower position. */
CAIRN_INLINE int count_equal_before(const short_shared &s, int count, uint32_t key, uint32_t place,
                                    int shift) {
    uint32_t before = 0;
    for (int i = cut_part(shift); i < count; i += 1 << shift)
        before += s.keys[i] == key && s.places[i] > place;
    return (int)cut_sum(before, shift);
}

/* Leaves the places of the best k of `count` in s.chosen, by rank if `ranked`. */
CAIRN_INLINE void choose_listed(short_shared &s, int count, int k, bool ranked) {
    const int shift = cut_share(count), mine = thread_id() >> shift;
    const bool works = warp_id() * WARP >> shift < count, leads = cut_part(shift) == 0;
    const uint32_t key = mine < count ? s.keys[mine] : 0, place = mine < count ? s.places[mine] : 0;
    const int over = works ? count_over(s.keys, count, key, shift) : 0;
    if (!ranked) {
        if (mine < count && leads && over < k) {
            const uint32_t at = atomic_add(&s.taken, 1u);
            s.chosen[at] = place;
        }
        block_sync();
        if (s.taken == (uint32_t)k) return; /* else more are equal to the k-th than fit */
        for (int i = k + thread_id(); i < CUT_LIST; i += SHORT_THREADS) s.chosen[i] = 0;
    }
    if (works) {
        const int rank = over + count_equal_before(s, count, key, place, shift);
        if (mine < count && leads && rank < k) s.chosen[rank] = place;
    }
    block_sync();
}

/* Writes the best k of the listed candidates, in order. */
CAIRN_INLINE void emit_listed(short_shared &s, const topk_params &p, int r, const score_t *from,
                              int count) {
    choose_listed(s, count, p.k, p.sort_size != 0);
    const int shift = min_of(cut_share(p.k), 3), mine = thread_id() >> shift;
    if (warp_id() * WARP >> shift >= p.k) return;
    const uint32_t place = mine < p.k ? s.chosen[mine] : 0;
    const int slot = p.sort_size ? mine : count_over(s.chosen, p.k, place, shift);
    if (mine < p.k && cut_part(shift) == 0)
        topk_write(topk_row_out(p, r, from), slot, (int32_t)~place);
}

/* ---- many candidates ------------------------------------------------------------------------- */

/* Of the row in registers; counted from 1, 0 is no candidate. */
struct short_keys { uint32_t key[SHORT_ITEMS]; };

CAIRN_INLINE short_keys keys_of(const short_row &row) {
    short_keys keys;
#pragma unroll
    for (int i = 0; i < SHORT_ITEMS; i++) {
        const uint32_t key = topk_key(row.x[i]);
        keys.key[i] = short_position(i) < row.length && key >= row.least ? key + 1 : 0;
    }
    return keys;
}

/* Counts the keys that reach the bound, and those above it. */
CAIRN_INLINE void count_reaching(short_shared &s, const short_keys &keys, uint32_t bound) {
    uint32_t reach = 0, above = 0;
#pragma unroll
    for (int i = 0; i < SHORT_ITEMS; i++) {
        reach += keys.key[i] >= bound;
        above += keys.key[i] > bound;
    }
    reach = warp_sum(reach | above << 16);
    if (lane_id() == 0) atomic_add(&s.reached, reach);
    block_sync();
}

/* The lowest and the highest of the keys that reach the bound. */
CAIRN_INLINE key_range range_reaching(short_shared &s, const short_keys &keys, uint32_t bound) {
    key_range own = {0xffffffffu, 0u};
#pragma unroll
    for (int i = 0; i < SHORT_ITEMS; i++) {
        own.low = min_of(own.low, keys.key[i] >= bound ? keys.key[i] : 0xffffffffu);
        own.high = max_of(own.high, keys.key[i]);
    }
    return block_range(s.cut, own);
}

/* The cut, given a bound (counted from 1) that k candidates reach, or 1. *found: the chosen. */
CAIRN_INLINE topk_cut short_cut(short_shared &s, const short_keys &keys, int k, uint32_t bound,
                                int *found) {
    const uint32_t need = (uint32_t)k;
    count_reaching(s, keys, bound);
    const uint32_t count = s.reached & 0xffffu, above = s.reached >> 16;
    *found = (int)min_of(count, need);
    if (count <= need) return {bound - 1, 0, 0};
    if (above < need) return {bound, need - above, count - above};
    const key_range range = range_reaching(s, keys, bound);
    return find_cut(s.cut, range, count, need, [&](auto take) {
#pragma unroll
        for (int i = 0; i < SHORT_ITEMS; i++) take(keys.key[i]);
    });
}

/* slots[j]: how many of the block's masked items come before this thread's first of level j, that
 * is of its vector j. Two levels go into one word. `turn`: calls use 0 and 1 in turn. */
CAIRN_INLINE void find_slots(short_shared &s, uint32_t mask, int turn, uint32_t *slots) {
    constexpr uint32_t level = (1u << VECTOR) - 1;
    uint32_t mine[LEVEL_WORDS], end[LEVEL_WORDS];
#pragma unroll
    for (int w = 0; w < LEVEL_WORDS; w++) {
        const uint32_t pair = mask >> (2 * w * VECTOR);
        mine[w] = (uint32_t)popcount(pair & level);
        if (ROW_VECTORS > 1) mine[w] |= (uint32_t)popcount(pair >> VECTOR & level) << 16;
        end[w] = warp_scan(mine[w]);
        if (lane_id() == WARP - 1) s.levels[turn][w][warp_id()] = end[w];
    }
    block_sync();
    uint32_t start = 0;
#pragma unroll
    for (int w = 0; w < LEVEL_WORDS; w++) {
        uint32_t total = lane_id() < CUT_WARPS ? s.levels[turn][w][lane_id()] : 0u;
        uint32_t below = warp_sum(lane_id() < warp_id() ? total : 0u) + end[w] - mine[w];
        total = warp_sum(total);
        slots[2 * w] = start + (below & 0xffffu);
        start += total & 0xffffu;
        slots[2 * w + 1] = start + (below >> 16);
        start += total >> 16;
    }
}

/* Of the masked items the first `count` by position. */
CAIRN_INLINE uint32_t first_of(short_shared &s, uint32_t mask, uint32_t count) {
    uint32_t slots[2 * LEVEL_WORDS], taken = 0;
    find_slots(s, mask, 0, slots);
#pragma unroll
    for (int i = 0; i < SHORT_ITEMS; i++)
        if (mask >> i & 1u) taken |= slots[i / VECTOR]++ < count ? 1u << i : 0u;
    return taken;
}

/* This thread's items that are in, as bits. */
CAIRN_INLINE uint32_t chosen_items(short_shared &s, const short_keys &keys, topk_cut cut) {
    uint32_t over = 0, equal = 0;
#pragma unroll
    for (int i = 0; i < SHORT_ITEMS; i++) {
        over |= keys.key[i] > cut.least ? 1u << i : 0u;
        equal |= keys.key[i] == cut.least ? 1u << i : 0u;
    }
    if (cut.equal_left == 0) return over;
    if (cut.equal_left == cut.equals) return over | equal;
    return over | first_of(s, equal, cut.equal_left);
}

/* The masked items' positions, ascending, into `positions`. */
CAIRN_INLINE void list_by_position(short_shared &s, uint32_t mask, int32_t *positions) {
    uint32_t slots[2 * LEVEL_WORDS];
    find_slots(s, mask, 1, slots);
#pragma unroll
    for (int j = 0; j < ROW_VECTORS; j++) {
        uint32_t items = mask >> (j * VECTOR) & ((1u << VECTOR) - 1);
        int32_t *at = positions + slots[j];
#pragma unroll 1
        for (; items; items &= items - 1)
            *at++ = short_position(j * VECTOR + find_first_set(items) - 1);
    }
}

/* The same by descending score, lowest position first, with room for `size` of them and as many
 * keys: a power of two >= found. */
CAIRN_INLINE void list_by_score(short_shared &s, const score_t *from, uint32_t mask, int found,
                                int size, int32_t *positions) {
    uint32_t *keys = (uint32_t *)(positions + size);
    pad_entries(keys, positions, found, size);
#pragma unroll 1
    for (; mask; mask &= mask - 1) {
        const uint32_t at = atomic_add(&s.sorted, 1u);
        positions[at] = short_position(find_first_set(mask) - 1);
        keys[at] = topk_key(from[positions[at]]);
    }
    sort_entries(keys, positions, size);
}

CAIRN_KERNEL(topk_short, SHORT_THREADS, (CAIRN_ARCH / 100 == 9 ? 1024 / SHORT_THREADS : 1),
             topk_params) {
    short_shared &s = shared_as<short_shared>();
    static_assert(sizeof(short_shared) <= SHORT_BYTES, "what the host launches with");
    const int r = block_id();
    topk_range range = topk_row_range(p, r, thread_id() == 0);
    const score_t *from = (const score_t *)p.scores + (int64_t)r * p.stride + range.start;
    const bool whole = range.length <= p.k && !p.finite_only && !p.sort_size;
    int32_t *positions = (int32_t *)(shared_base() + SHORT_BYTES);
    int found = range.length;
    if (!whole) {
        short_row row;
        load_short(from, range.length, p.finite_only != 0, row);
        const uint32_t bound = find_bound(s, row, p.k);
        if (bound) {
            enter_reaching(s, from, row, bound);
            if (s.entered <= CUT_LIST) {
                emit_listed(s, p, r, from, (int)s.entered);
                return;
            }
        }
        const short_keys keys = keys_of(row);
        const topk_cut cut = short_cut(s, keys, p.k, bound + 1, &found);
        const uint32_t mask = chosen_items(s, keys, cut);
        if (p.sort_size) list_by_score(s, from, mask, found, p.sort_size, positions);
        else list_by_position(s, mask, positions);
        block_sync();
    }
    topk_write_row(topk_row_out(p, r, from), !whole, positions, found, p.k);
}
