/* topk of short rows: one block a row, which lies in its registers (the contract is in runtime.h).
 *
 * Route      "block", for n <= THREADS ITEMS. For small k a bound from the warps' greatest scores
 *            leaves few; those are gathered and ranked by comparing all pairs. Else the scores from a
 *            bound on are spread over bins as numbers, those in the bin of the k-th are ranked, and
 *            a scan over the registers writes what is chosen in order. Where scores cannot be spread
 *            so (infinite ones, many equal) the k-th key is searched bit by bit.
 * Constants  CAIRN_SCORE_TYPE  1 f32, 2 f16, 3 bf16 (cairn_type)
 *            CAIRN_THREADS, CAIRN_ITEMS scores a thread
 * Launch     grid rows, block THREADS, shared memory SHORT_BYTES, and 8 bytes for each of
 *            sort_size, or 4 for each of k in order of position
 * Oracle     tests/topk_test.c sorts
 * matrix: CAIRN_SCORE_TYPE=1 CAIRN_THREADS=512 CAIRN_ITEMS=16
 * matrix: CAIRN_SCORE_TYPE=1 CAIRN_THREADS=128 CAIRN_ITEMS=8
 * matrix: CAIRN_SCORE_TYPE=2 CAIRN_THREADS=512 CAIRN_ITEMS=16
 * matrix: CAIRN_SCORE_TYPE=3 CAIRN_THREADS=512 CAIRN_ITEMS=8 */
#include "common.cuh"
#include "topk.cuh"
#include "topk_row.cuh"
#define SHORT_THREADS CAIRN_THREADS
#define CUT_THREADS CAIRN_THREADS
#include "topk_cut.cuh"

#define SHORT_ITEMS CAIRN_ITEMS
#define SHORT_QUOTA 4 /* scores a warp names at most */
/* Blocks that fit one SM, by registers. */
#define SHORT_RESIDENT (CAIRN_ARCH / 100 == 9 ? 1024 / SHORT_THREADS : 1)
#define LEVEL_WORDS ((ROW_VECTORS + 1) / 2)
#define SHORT_ENTRIES 128 /* so many in one bin are ranked by all pairs */
#define SHORT_BYTES 14848 /* of short_shared at most; behind it are the chosen positions, keys */

/* The last that is chosen: better scores are too, of equal ones those up to its position. */
struct short_last { float score; int position; };

struct short_shared {
    cut_shared cut;
    alignas(16) uint32_t keys[CUT_LIST];   /* of the few candidates; 0 behind them */
    alignas(16) uint32_t chosen[CUT_LIST]; /* places of the best k; 0 behind them */
    alignas(16) uint32_t places[CUT_LIST]; /* ~position, so that the first is the greatest */
    uint32_t levels[2][LEVEL_WORDS][WARP];  /* one a warp */
    uint64_t entries[SHORT_ENTRIES];       /* of the bin of the k-th: key, ~position */
    short_last last;
    uint32_t counts[2][WARP];              /* one a warp */
    uint32_t entered, taken, sorted;
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
#pragma unroll 1
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
    if (thread_id() == 0) {
        s.entered = s.taken = s.sorted = 0;
        s.cut.found = {0, 0, 0};
    }
    if (thread_id() < CUT_LIST) s.keys[thread_id()] = s.chosen[thread_id()] = 0;
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
#pragma unroll(SHORT_ITEMS > 8 ? 4 : 1)
    for (int i = cut_part(shift) * 4; i < count; i += 4 << shift) {
        const u32x4 v = *(const u32x4 *)&list[i];
        over += (uint32_t)(v.x > mine) + (uint32_t)(v.y > mine);
        over += (uint32_t)(v.z > mine) + (uint32_t)(v.w > mine);
    }
    return (int)cut_sum(over, shift);
}

/* Of equal keys, which are not 0, how many have the lower position. */
CAIRN_INLINE int count_equal_before(const short_shared &s, int count, uint32_t key, uint32_t place,
                                    int shift) {
    uint32_t before = 0;
#pragma unroll 2
    for (int i = cut_part(shift) * 4; i < count; i += 4 << shift) {
        const u32x4 k = *(const u32x4 *)&s.keys[i], at = *(const u32x4 *)&s.places[i];
        before += (uint32_t)(k.x == key && at.x > place) + (uint32_t)(k.y == key && at.y > place);
        before += (uint32_t)(k.z == key && at.z > place) + (uint32_t)(k.w == key && at.w > place);
    }
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
        if (thread_id() >= k && thread_id() < CUT_LIST) s.chosen[thread_id()] = 0;
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

/* From a score that k candidates reach to the greatest: the least of the greatest of as many groups
 * of scores, or the least of all where there are fewer. NaN counts as none, so that with some in the
 * row it may be too high. Ends with a barrier; the bins are clear. */
CAIRN_INLINE key_range reached_range(short_shared &s, const short_row &row, int k) {
    const int vectors = ceil_div(row.length, VECTOR), threads = min_of(vectors, SHORT_THREADS);
    float most = row.x[0], least = as_f32(0x7fffffffu), lowest = row.x[0];
#pragma unroll
    for (int j = 0; j < ROW_VECTORS; j++) {
        float group = row.x[j * VECTOR];
#pragma unroll
        for (int c = 0; c < VECTOR; c++) {
            group = fmaxf(group, row.x[j * VECTOR + c]);
            lowest = fminf(lowest, row.x[j * VECTOR + c]);
        }
        most = fmaxf(most, group);
        least = fminf(least, group);
    }
    if (k <= threads) least = most;
    if (k * 2 <= threads) least = fmaxf(least, shuffle_xor(least, 1));
    if (k * 4 <= threads) least = fmaxf(least, shuffle_xor(least, 2));
    if (k > vectors) least = lowest;
    clear_bins(s.cut);
    return block_range(s.cut, {least == least ? topk_key(least) : 0xffffffffu, topk_key(most)});
}

/* Finds the bin that holds the k-th: s.found. False when the scores cannot be spread so, or NaN hid
 * some. */
CAIRN_INLINE bool find_value_bin(short_shared &s, const short_row &row, key_range range, int k,
                                 value_bins &bins) {
    const float span = add_f32(key_score(range.high), -key_score(range.low));
    if (range.low <= KEY_MINUS_INFINITY || !(span > 1e-30f && span < 1e37f)) return false;
    bins = {key_score(range.low), (float)(CUT_BINS - 1) * rcp_fast(span)};
#pragma unroll
    for (int i = 0; i < SHORT_ITEMS; i++) {
        const float bin = value_bin(bins, row.x[i]);
        if (bin >= BIN_ZERO) atomic_add(&s.cut.bins[as_u32(bin) - as_u32(BIN_ZERO)], 1u);
    }
    block_sync();
    find_crossing(s.cut, (uint32_t)k);
    return s.cut.found.inside > 0;
}

/* The need-th best of the `count` in a bin. */
CAIRN_INLINE short_last rank_bin(short_shared &s, const short_row &row, value_bins bins, float bin,
                                 int count, int need) {
#pragma unroll
    for (int i = 0; i < SHORT_ITEMS; i++)
        if (value_bin(bins, row.x[i]) == bin) {
            const uint32_t at = atomic_add(&s.cut.listed, 1u);
            s.entries[at] = (uint64_t)topk_key(row.x[i]) << 32 | (uint32_t)~short_position(i);
        }
    block_sync();
    const int shift = cut_share(count), mine = thread_id() >> shift;
    if (warp_id() * WARP >> shift < count) {
        const uint64_t entry = mine < count ? s.entries[mine] : 0;
        uint32_t over = 0;
#pragma unroll 2
        for (int i = cut_part(shift); i < count; i += 1 << shift) over += s.entries[i] > entry;
        over = cut_sum(over, shift);
        if (mine < count && cut_part(shift) == 0 && (int)over == need - 1)
            s.last = {key_score((uint32_t)(entry >> 32)), (int)~(uint32_t)entry};
    }
    block_sync();
    return s.last;
}

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

/* The block's keys that reach `least`, and those above it. `turn`: calls use 0 and 1 in turn. */
struct reach_count { uint32_t reach, above; };
CAIRN_INLINE reach_count count_keys(short_shared &s, const short_keys &keys, uint32_t least,
                                    int turn) {
    uint32_t count = 0;
#pragma unroll
    for (int i = 0; i < SHORT_ITEMS; i++)
        count += (uint32_t)(keys.key[i] >= least) + (keys.key[i] > least ? 1u << 16 : 0u);
    count = warp_sum(count);
    if (lane_id() == 0) s.counts[turn][warp_id()] = count;
    block_sync();
    count = warp_sum(lane_id() < CUT_WARPS ? s.counts[turn][lane_id()] : 0u);
    return {count & 0xffffu, count >> 16};
}

/* The cut before the k-th key, which lies in a range, but for NaN: bit by bit, for rows that nothing
 * else helps with. *found: how many are chosen. */
CAIRN_INLINE topk_cut search_keys(short_shared &s, const short_keys &keys, key_range range, int k,
                                  int *found) {
    const uint32_t need = (uint32_t)k;
    uint32_t least = range.low;
    int turn = 0;
    reach_count count = count_keys(s, keys, least, turn);
    *found = k;
    if (count.reach < need || count.above >= need || least == 0) {
        if (count.reach < need) range.low = 0;
        least = 0;
#pragma unroll 1
        for (uint32_t bit = 0x80000000u; bit; bit >>= 1) {
            const uint32_t next = least | bit;
            if (next > range.high) continue;
            if (next <= range.low || count_keys(s, keys, next, turn ^= 1).reach >= need)
                least = next;
        }
        count = count_keys(s, keys, max_of(least, 1u), turn ^ 1);
        if (least == 0) { /* there are fewer */
            *found = (int)count.reach;
            return {0, 0, 0};
        }
    } /* else many are equal to the lowest, the k-th among them */
    return {least, need - count.above, count.reach - count.above};
}

/* The keys of those in a bin, from the lowest to the highest. */
CAIRN_INLINE key_range range_of_bin(short_shared &s, const short_row &row, value_bins bins,
                                    float bin) {
    key_range own = {0xffffffffu, 0u};
#pragma unroll
    for (int i = 0; i < SHORT_ITEMS; i++)
        if (value_bin(bins, row.x[i]) == bin) {
            const uint32_t key = topk_key(row.x[i]) + 1;
            own = {min_of(own.low, key), max_of(own.high, key)};
        }
    return block_range(s.cut, own);
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
        int32_t *at = positions + slots[j];
#pragma unroll
        for (int c = 0; c < VECTOR; c++)
            if (mask >> (j * VECTOR + c) & 1u) *at++ = short_position(j * VECTOR + c);
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

/* This thread's items that are in; *found: how many of the row's. */
CAIRN_INLINE uint32_t choose_many(short_shared &s, const short_row &row, int k, int *found) {
    value_bins bins = {0, 0};
    const key_range reached = reached_range(s, row, k);
    const bool binned = find_value_bin(s, row, reached, k, bins);
    const int inside = (int)s.cut.found.inside, need = k - (int)s.cut.found.above;
    const float bin = as_f32(as_u32(BIN_ZERO) + s.cut.found.bin);
    uint32_t mask = 0;
    *found = k;
    if (!binned || (inside > SHORT_ENTRIES && inside > need)) {
        key_range range = {reached.low + 1, reached.high + 1};
        if (binned) range = range_of_bin(s, row, bins, bin);
        const short_keys keys = keys_of(row);
        return chosen_items(s, keys, search_keys(s, keys, range, k, found));
    }
    short_last last = {0, 0};
    if (inside > need) last = rank_bin(s, row, bins, bin, inside, need);
#pragma unroll
    for (int i = 0; i < SHORT_ITEMS; i++) {
        const float x = row.x[i];
        const bool in = inside > need ? x > last.score || (x == last.score &&
                                                           short_position(i) <= last.position)
                                      : value_bin(bins, x) >= bin;
        mask |= in ? 1u << i : 0u;
    }
    return mask;
}

CAIRN_KERNEL(topk_short, SHORT_THREADS, SHORT_RESIDENT, topk_params) {
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
        const uint32_t mask = choose_many(s, row, p.k, &found);
        if (p.sort_size) list_by_score(s, from, mask, found, p.sort_size, positions);
        else list_by_position(s, mask, positions);
        block_sync();
    }
    topk_write_row(topk_row_out(p, r, from), !whole, positions, found, p.k);
}
