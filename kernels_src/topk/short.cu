/* topk of short rows: one block a row, which lies in its registers (the contract is in runtime_ops.h).
 *
 * Route      "block", for n <= THREADS ITEMS. What may be in is narrowed: for small k to the scores
 *            that reach a bound from the warps' greatest; else, spread over bins as numbers, to those
 *            in the bin of the k-th; and, while too many to list, by bins of their keys. Those listed
 *            are ranked by comparing all pairs, those all equal counted off by position. What is in
 *            is written in order.
 * Constants  CAIRN_SCORE_TYPE  1 f32, 2 f16, 3 bf16 (cairn_type)
 *            CAIRN_THREADS, CAIRN_ITEMS scores a thread
 * Launch     grid rows, block THREADS, shared memory SHORT_BYTES, and 8 bytes for each of
 *            sort_size, or 4 for each of k in order of position
 * Oracle     tests/ops/topk_test.c sorts
 * matrix: CAIRN_SCORE_TYPE=1 CAIRN_THREADS=512 CAIRN_ITEMS=16
 * matrix: CAIRN_SCORE_TYPE=1 CAIRN_THREADS=64 CAIRN_ITEMS=16
 * matrix: CAIRN_SCORE_TYPE=1 CAIRN_THREADS=1024 CAIRN_ITEMS=32
 * matrix: CAIRN_SCORE_TYPE=3 CAIRN_THREADS=1024 CAIRN_ITEMS=32
 * matrix: CAIRN_SCORE_TYPE=2 CAIRN_THREADS=512 CAIRN_ITEMS=16
 * matrix: CAIRN_SCORE_TYPE=3 CAIRN_THREADS=512 CAIRN_ITEMS=8 */
#include "device/common.cuh"
#include "abi/topk.h"
#include "topk/topk.cuh"
#include "topk/row.cuh"
#define SHORT_THREADS CAIRN_THREADS
#define CUT_THREADS CAIRN_THREADS
#include "topk/cut.cuh"

#define SHORT_ITEMS CAIRN_ITEMS
#define SHORT_HELD 4  /* keys of open items that a thread keeps */
#define RAISE_BINS (4 * WARP)
#define SHORT_QUOTA 4 /* the warps name their quota-th score, up to this one */
/* Blocks that fit one SM, by registers. */
#define SHORT_RESIDENT (CAIRN_ARCH / 100 == 9 ? 1536 / SHORT_THREADS : 1)
#define LEVEL_WORDS ((ROW_VECTORS + 1) / 2)
/* Of short_shared at most; behind it: what is in, keys. */
#define SHORT_BYTES (CUT_BINS * 4 + (SHORT_ITEMS > 16 ? 5120 : 4096))

struct short_shared {
    cut_shared cut; /* cut.list: keys of the listed, counted from 1 */
    alignas(16) uint32_t places[CUT_LIST]; /* theirs: ~position, so that the first is the greatest */
    alignas(16) uint32_t chosen[CUT_LIST]; /* places of those that are in; 0 elsewhere */
    union { /* one a warp */
        key_range named[WARP]; /* until all are listed: the bound it names, the greatest it saw */
        uint32_t levels[2][LEVEL_WORDS][WARP];
    };
    uint32_t listed, sorted;   /* so many have been entered */
    uint32_t taken, last;      /* by choose_listed */
};

static_assert(2 * SHORT_THREADS <= CUT_BINS, "room for a map of the row");

struct short_row {
    float x[SHORT_ITEMS]; /* NaN past the end */
    int length;
    uint32_t least; /* keys below it are no candidates */
};

/* This thread's items, as bits: those that are in, and those that may be: `need` of the `inside` that
 * the block has, 0 while it has not counted them; all equal, and more than are needed, if so. */
struct short_choice { uint32_t in, open; int need, inside; bool equal; };

CAIRN_INLINE int short_position(int i) { return row_position(i, thread_id(), SHORT_THREADS); }
CAIRN_INLINE int first_position(uint32_t mask) { return short_position(find_first_set(mask) - 1); }

CAIRN_INLINE void load_short(const score_t *from, int length, bool finite_only, short_row &row) {
    topk_vector share[ROW_VECTORS];
    load_row(from, length, thread_id(), SHORT_THREADS, share);
#pragma unroll
    for (int i = 0; i < SHORT_ITEMS; i++) row.x[i] = to_f32(share[i / VECTOR].score[i % VECTOR]);
    row.length = length;
    row.least = finite_only ? KEY_MINUS_INFINITY + 1 : 0;
}

/* ---- what may be among the best k ------------------------------------------------------------- */

/* The quota-th greatest of the lanes' own, of which `most` is the greatest. */
CAIRN_INLINE uint32_t kth_of_warp(uint32_t mine, uint32_t most, int quota) {
#pragma unroll 1
    for (int i = 1; i < quota; i++) {
        uint32_t holders = warp_ballot(mine == most);
        if (lane_id() == find_first_set(holders) - 1) mine = 0;
        most = warp_max(mine);
    }
    return most;
}

/* This thread's of the threads' own, when each warp gets some of every warp's. Rows change slowly, so that neighbours,
 * which share a warp, are alike; here warps see as much as each other of the row. One barrier. */
CAIRN_INLINE uint32_t spread_over_warps(uint32_t *all, uint32_t own) {
    constexpr int EACH = WARP / CUT_WARPS;
    all[thread_id()] = own;
    block_sync();
    const int warp = lane_id() % CUT_WARPS, lane = (warp_id() + warp) * EACH + lane_id() / CUT_WARPS;
    return all[warp * WARP + lane % WARP];
}

/* A key that k candidates reach, for small k seldom many more: the least of what the warps name;
 * else 0. Ends with a barrier. */
CAIRN_INLINE uint32_t find_bound(short_shared &s, const short_row &row, int k) {
    const int quota = ceil_div(k, CUT_WARPS), full = row.length / (VECTOR * WARP); /* warps without an idle lane */
    const bool names = quota <= min_of(full * (WARP / CUT_WARPS), SHORT_QUOTA);
    if (thread_id() == 0) s.listed = s.taken = s.last = s.sorted = 0;
    if (thread_id() < CUT_LIST) s.cut.list[thread_id()] = s.chosen[thread_id()] = 0;
    if (names) {
        float most = row.x[0];
#pragma unroll
        for (int i = 1; i < SHORT_ITEMS; i++) most = fmaxf(most, row.x[i]);
        const uint32_t own = spread_over_warps(s.cut.bins, topk_key(most)), greatest = warp_max(own);
        const uint32_t named = kth_of_warp(own, greatest, quota);
        if (lane_id() == 0) s.named[warp_id()] = {named, greatest};
    }
    block_sync();
    if (!names) return 0;
    const uint32_t bound = warp_min(lane_id() < CUT_WARPS ? s.named[lane_id()].low : 0xffffffffu);
    return bound < row.least ? 0 : bound;
}

/* The items that reach a bound above 0. */
CAIRN_INLINE uint32_t reaching(const short_row &row, uint32_t bound) {
    const float least = key_score(bound);
    uint32_t mask = 0;
#pragma unroll
    for (int i = 0; i < SHORT_ITEMS; i++) mask |= row.x[i] >= least ? 1u << i : 0u;
    return mask;
}

/* This thread's part in the range from a score that k candidates reach to the greatest: the least
 * of the greatest of as many groups of scores, or the least of all where there are fewer. NaN counts
 * as none, so that with some in the row it may be too high. */
CAIRN_INLINE key_range reached_range(const short_row &row, int k) {
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
    return {least == least ? topk_key(least) : 0xffffffffu, topk_key(most)};
}

/* Keys of this thread's first open items, read at once; of what is behind them each is read when it is asked for. */
struct held_keys {
    uint32_t key[SHORT_HELD];

    CAIRN_MEMBER held_keys(const score_t *from, uint32_t open) {
#pragma unroll
        for (int i = 0; i < SHORT_HELD; i++) {
            key[i] = topk_key(from[open ? first_position(open) : 0]);
            open &= open - 1;
        }
    }
    /* use(BIT, KEY) for each open item. */
    template <class Use> CAIRN_MEMBER void visit(const score_t *from, uint32_t open, Use use) const {
#pragma unroll
        for (int i = 0; i < SHORT_HELD; i++) {
            if (open) use(open & (0u - open), key[i]);
            open &= open - 1;
        }
#pragma unroll 1
        for (; open; open &= open - 1) use(open & (0u - open), topk_key(from[first_position(open)]));
    }
};

/* The same of the open items. */
CAIRN_INLINE key_range open_range(const score_t *from, uint32_t open, const held_keys &held) {
    key_range range = {0xffffffffu, 0u};
    held.visit(from, open, [&](uint32_t, uint32_t key) {
        range = {min_of(range.low, key), max_of(range.high, key)};
    });
    return range;
}

/* Counts the row's scores in bins of a range as numbers, those below it and NaN in the lowest, which
 * holds everything when the range is not one of numbers. The scores become their bins. */
CAIRN_INLINE void fill_by_value(short_shared &s, short_row &row, key_range range) {
    const float low = fmaxf(key_score(range.low), -1e36f), span = key_score(range.high) - low;
    value_bins bins = {low, fminf((float)(CUT_BINS - 2) * rcp_fast(span), 1e37f)};
    if (!(span >= 0 && span < 1e37f)) bins.low = as_f32(0x7fffffffu);
#pragma unroll
    for (int i = 0; i < SHORT_ITEMS; i++) {
        row.x[i] = fmaxf(value_bin(bins, row.x[i], BIN_ZERO + 1), BIN_ZERO);
        atomic_add(&s.cut.bins[as_u32(row.x[i]) - as_u32(BIN_ZERO)], 1u);
    }
}

/* What is in a greater bin is in, what is in the same stays open. */
CAIRN_INLINE void part_by_value(const short_row &row, uint32_t found, short_choice &choice) {
    const float bin = as_f32(as_u32(BIN_ZERO) + found);
#pragma unroll
    for (int i = 0; i < SHORT_ITEMS; i++) {
        choice.in |= row.x[i] > bin ? 1u << i : 0u;
        choice.open |= row.x[i] == bin ? 1u << i : 0u;
    }
}

/* Leaves open only candidates, when what lies past the row's end is open too. */
CAIRN_INLINE void drop_others(const score_t *from, const short_row &row, short_choice &choice) {
    const int past_end = SHORT_ITEMS * SHORT_THREADS - row.length;
    if (!past_end && !row.least) return;
    choice.inside = row.least ? 0 : choice.inside - past_end;
#pragma unroll 1
    for (uint32_t open = choice.open; open; open &= open - 1) {
        const int position = first_position(open);
        if (position >= row.length || (row.least && topk_key(from[position]) < row.least))
            choice.open ^= open & (0u - open);
    }
}

/* The same by bins of keys, of the open items. */
CAIRN_INLINE void fill_by_key(short_shared &s, const score_t *from, uint32_t open, const held_keys &held,
                              uint32_t low, int shift) {
    held.visit(from, open, [&](uint32_t, uint32_t key) { atomic_add(&s.cut.bins[(key - low) >> shift], 1u); });
}
CAIRN_INLINE void part_by_key(const score_t *from, const held_keys &held, uint32_t low, int shift, uint32_t found,
                              short_choice &choice) {
    held.visit(from, choice.open, [&](uint32_t bit, uint32_t key) {
        const uint32_t bin = (key - low) >> shift;
        if (bin > found) choice.in |= bit;
        if (bin != found) choice.open ^= bit;
    });
}

/* The block's range from each thread's own; bins and list are clear. */
CAIRN_INLINE key_range begin_narrowing(short_shared &s, key_range own) {
    clear_bins(s.cut);
    if (thread_id() < CUT_LIST) s.cut.list[thread_id()] = 0;
    const key_range range = block_range(s.cut, own);
    if (thread_id() == 0) s.listed = 0; /* all have read it */
    return range;
}
/* The bin of the last that will be in. */
CAIRN_INLINE uint32_t find_last(short_shared &s, short_choice &choice) {
    block_sync();
    find_crossing(s.cut, (uint32_t)choice.need);
    const bin_found found = s.cut.found;
    choice.need -= (int)found.above;
    choice.inside = (int)found.inside;
    return found.bin;
}

/* Leaves open those in the bin of the last that will be in, of all in the row. */
CAIRN_INLINE void narrow_by_value(short_shared &s, const score_t *from, short_row &row, short_choice &choice) {
    fill_by_value(s, row, begin_narrowing(s, reached_range(row, choice.need)));
    const uint32_t bin = find_last(s, choice);
    part_by_value(row, bin, choice);
    if (bin == 0) drop_others(from, row, choice);
}

/* The same of the open items. False when all are equal. */
CAIRN_INLINE bool narrow_by_key(short_shared &s, const score_t *from, short_choice &choice) {
    const held_keys held(from, choice.open);
    const key_range range = begin_narrowing(s, open_range(from, choice.open, held));
    if (range.low == range.high) return false;
    const int shift = range_shift(range, CUT_BITS);
    fill_by_key(s, from, choice.open, held, range.low, shift);
    part_by_key(from, held, range.low, shift, find_last(s, choice), choice);
    return true;
}

/* ---- of those the best ------------------------------------------------------------------------- */

/* Lists the open items, this thread's from the index it returns on, if there is room for all that s.listed counts. */
CAIRN_INLINE uint32_t list_open(short_shared &s, const score_t *from, uint32_t open) {
    uint32_t first = open ? atomic_add(&s.listed, (uint32_t)popcount(open)) : 0;
    block_sync();
    if (s.listed > CUT_LIST) return 0;
    for (uint32_t at = first; open; open &= open - 1) {
        const int position = first_position(open);
        s.places[at] = (uint32_t)~position;
        s.cut.list[at++] = topk_key(from[position]) + 1;
    }
    block_sync();
    return first;
}

/* How many of a list's `count` values, 0 behind them, are over `mine`; 1 << shift threads count. */
CAIRN_INLINE int count_over(const uint32_t *list, int count, uint32_t mine, int shift) {
    uint32_t over = 0;
#pragma unroll 1
    for (int i = cut_part(shift) * 8; i < count; i += 8 << shift) {
        const u32x4 v = *(const u32x4 *)&list[i], w = *(const u32x4 *)&list[i + 4];
        add_if_over(over, v.x, mine), add_if_over(over, v.y, mine);
        add_if_over(over, v.z, mine), add_if_over(over, v.w, mine);
        add_if_over(over, w.x, mine), add_if_over(over, w.y, mine);
        add_if_over(over, w.z, mine), add_if_over(over, w.w, mine);
    }
    return (int)cut_sum(over, shift);
}

/* Whether a thread's key, which has a place and `over` better ones if the thread `leads` it, is among the best `need`,
 * when those equal to the last of them do not all fit: these are numbered by position, as bits of a map. Empties
 * s.chosen. */
CAIRN_INLINE bool is_first_of_equal(short_shared &s, uint32_t place, bool leads, int over, int need) {
    uint32_t *map = s.cut.bins, *before = map + SHORT_THREADS; /* a thread has no more than 32 items */
    const bool reaches = leads && over < need;
    const uint32_t position = ~place, bit = 1u << position % 32;
    map[thread_id()] = 0;
    if (thread_id() < CUT_LIST) s.chosen[thread_id()] = 0;
    if (reaches) atomic_max(&s.last, (uint32_t)over);
    block_sync();
    if (thread_id() == 0) s.taken = 0;
    const bool last = reaches && over == (int)s.last;
    if (last) atomic_or(&map[position / 32], bit);
    block_sync();
    const uint32_t mine = (uint32_t)popcount(map[thread_id()]), end = warp_scan(mine);
    if (lane_id() == WARP - 1) s.cut.sums[warp_id()] = end;
    block_sync();
    before[thread_id()] = warp_sum(lane_id() < warp_id() ? s.cut.sums[lane_id()] : 0u) + end - mine;
    block_sync();
    if (last) over += (int)before[position / 32] + popcount(map[position / 32] & (bit - 1));
    return reaches && over < need;
}

/* Leaves the places of the best `need` of the `count` listed in s.chosen: where they are all of the best k by rank if
 * `ranked`, else together; else each where it was listed, and where it is ranked and equal ones have one rank. Whether
 * it is one of the former. */
CAIRN_INLINE bool choose_listed(short_shared &s, int count, int need, int k, bool ranked) {
    const int shift = cut_share(count), mine = thread_id() >> shift;
    const uint32_t key = mine < count ? s.cut.list[mine] : 0;
    int over = need;
    if (warp_id() * WARP >> shift < count) over = count_over(s.cut.list, count, key, shift);
    const bool alone = need == k, leads = mine < count && cut_part(shift) == 0;
    ranked = ranked && alone;
    if (leads && over < need) {
        const int at = (int)atomic_add(&s.taken, 1u);
        if (ranked) atomic_max(&s.chosen[over], s.places[mine]); /* equal ones have one rank */
        else s.chosen[alone ? at : mine] = s.places[mine];
    }
    block_sync();
    if (s.taken == (uint32_t)need &&
        (!ranked || block_sync_and(thread_id() >= need || s.chosen[thread_id()]))) return alone;
    const uint32_t place = leads ? s.places[mine] : 0;
    if (is_first_of_equal(s, place, leads, over, need))
        s.chosen[alone && !ranked ? (int)atomic_add(&s.taken, 1u) : mine] = place;
    block_sync();
    return alone && !ranked;
}

/* ---- in order ---------------------------------------------------------------------------------- */

/* The best k of a list that holds all of them, as choose_listed left them, into `positions`. */
CAIRN_INLINE void order_chosen(short_shared &s, int k, bool ranked, int32_t *positions) {
    const int shift = min_of(cut_share(k), 3), mine = thread_id() >> shift;
    if (warp_id() * WARP >> shift >= k) return;
    const uint32_t place = mine < k ? s.chosen[mine] : 0;
    const int slot = ranked ? mine : count_over(s.chosen, k, place, shift);
    if (mine < k && cut_part(shift) == 0) positions[slot] = (int32_t)~place;
}

/* slots[j]: how many of the block's masked items come before this thread's first of level j, that
 * is of its vector j. Two levels go into one word. `turn`: calls use 0 and 1 in turn. */
CAIRN_INLINE void find_slots(short_shared &s, uint32_t mask, int turn, uint32_t *slots) {
    constexpr uint32_t level = (1u << VECTOR) - 1;
    warp_sync(); /* else shuffles are compiled for lanes that go apart, too */
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

/* Of the masked items those whose slots are below `count`. */
CAIRN_INLINE uint32_t first_of(uint32_t mask, const uint32_t *slots, int count) {
    uint32_t taken = 0;
#pragma unroll
    for (int j = 0; j < ROW_VECTORS; j++) {
        uint32_t level = mask & ((1u << VECTOR) - 1) << (j * VECTOR);
#pragma unroll 1
        for (int room = count - (int)slots[j]; level && room > 0; room--) {
            taken |= level & (0u - level);
            level &= level - 1;
        }
    }
    return taken;
}

/* The masked items' positions, ascending, into `positions`. */
CAIRN_INLINE void order_by_position(const uint32_t *slots, uint32_t mask, int32_t *positions) {
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
CAIRN_INLINE void order_by_score(short_shared &s, const score_t *from, uint32_t mask, int found,
                                 int size, int32_t *positions) {
    uint32_t *keys = (uint32_t *)(positions + size);
    pad_entries(keys, positions, found, size);
#pragma unroll 1
    for (; mask; mask &= mask - 1) {
        const uint32_t at = atomic_add(&s.sorted, 1u);
        positions[at] = first_position(mask);
        keys[at] = topk_key(from[positions[at]]);
    }
    sort_entries(keys, positions, size);
}

/* Lists the open items, this thread's from `first` on; whether all have room, or are no more than are needed. */
CAIRN_INLINE bool list_few(short_shared &s, const score_t *from, short_choice &choice, uint32_t &first) {
    first = list_open(s, from, choice.open);
    choice.inside = (int)s.listed;
    return choice.inside <= max_of(choice.need, CUT_LIST);
}

/* Of scores that reach a bound, too many to list: a higher key that `need` of them reach, too, and few others, or the
 * bound. They are counted in bins of numbers up to the row's greatest; the key lies a bin below the one found, so that
 * no rounding leaves fewer. What overflows is counted too low, which only lowers the key. Each warp finds the bin for
 * itself, without the barriers of find_bin (topk/topk.cuh). `reaches`: this thread has some. The bins are clear. One
 * barrier. */
CAIRN_INLINE uint32_t raise_bound(short_shared &s, const short_row &row, uint32_t bound, bool reaches, int need) {
    const uint32_t greatest = warp_max(lane_id() < CUT_WARPS ? s.named[lane_id()].high : 0u);
    const float least = key_score(bound), span = fminf(key_score(greatest) - least, 1e37f);
    const value_bins bins = {least, (float)(RAISE_BINS - 1) * rcp_fast(fmaxf(span, 1e-30f))};
    if (warp_any(reaches)) {
#pragma unroll
        for (int i = 0; i < SHORT_ITEMS; i++)
            if (row.x[i] >= least) atomic_add(&s.cut.bins[as_u32(value_bin(bins, row.x[i])) % RAISE_BINS], 1u);
    }
    block_sync();
    const int first = (WARP - 1 - lane_id()) * 4; /* of this lane's bins */
    const u32x4 v = *(const u32x4 *)&s.cut.bins[first];
    const uint32_t end = warp_scan(v.x + v.y + v.z + v.w), left = end - min_of(end, (uint32_t)need);
    uint32_t bin = end < (uint32_t)need ? 0u : (uint32_t)first;
    if (end >= (uint32_t)need) bin += (uint32_t)((left >= v.x) + (left >= v.x + v.y) + (left >= v.x + v.y + v.z));
    bin = warp_max(bin);
    return bin < 2 ? bound : topk_key(fma_f32((float)(bin - 1), span * (1.0f / (RAISE_BINS - 1)), least));
}

/* Leaves open so few that they are listed, from the index it returns on, or no more than are needed,
 * or those that are equal. Where a bound leaves too many, as in rows that change slowly, a higher one is tried; unless
 * there is a bound that few are over, the row is then spread by value. */
CAIRN_INLINE uint32_t choose_few(short_shared &s, const score_t *from, short_row &row,
                                 uint32_t bound, short_choice &choice) {
    bool by_value = bound == 0;
    uint32_t first = 0;
    if (bound) {
        choice.open = reaching(row, bound);
        const bool few = list_few(s, from, choice, first);
        if (few && choice.inside <= CUT_LIST - CUT_LIST / 8) return first;
        clear_bins(s.cut);
        const int over = block_sync_count(reaching(row, bound + 1) != 0);
        choice.equal = !over && choice.inside > choice.need;
        if (few || choice.equal) return first;
        /* seldom: a thread's own scores are alike; many equal ones are left to keys */
        by_value = over * 8 > min_of(choice.inside, SHORT_THREADS);
        if (thread_id() == 0) s.listed = 0;
        choice.open = reaching(row, raise_bound(s, row, bound, choice.open != 0, choice.need));
        if (list_few(s, from, choice, first)) return first;
    }
    if (by_value) {
        choice.open = 0;
        narrow_by_value(s, from, row, choice);
        if (choice.inside && choice.inside <= choice.need) return 0;
    }
#pragma unroll 1
    for (;;) {
        if (choice.inside <= CUT_LIST && list_few(s, from, choice, first)) return first;
        choice.equal = !narrow_by_key(s, from, choice);
        if (choice.equal || choice.inside <= choice.need) return 0;
    }
}

/* The best k of the row, in order, into `positions`, or, if k are listed, into `indices` unless it
 * is NULL. Returns how many there are, or -1 when they are in `indices`. */
CAIRN_INLINE int choose_short(short_shared &s, const score_t *from, short_row &row, int k,
                              int sort_size, int32_t *positions, int32_t *indices) {
    short_choice choice = {0, 0, k, 0, false};
    uint32_t first = choose_few(s, from, row, find_bound(s, row, k), choice);
    bool equal = choice.equal;
    if (!equal && choice.inside > choice.need) {
        if (choose_listed(s, choice.inside, choice.need, k, sort_size != 0)) {
            order_chosen(s, k, sort_size != 0, indices ? indices : positions);
            return indices ? -1 : k;
        }
#pragma unroll 1
        for (uint32_t open = choice.open; open; open &= open - 1)
            if (s.chosen[first++]) choice.in |= open & (0u - open);
        choice.open = 0;
    }
    uint32_t slots[2 * LEVEL_WORDS];
#pragma unroll 1
    for (;; equal = false) { /* the first of those that are equal, then all */
        find_slots(s, equal ? choice.open : choice.in | choice.open, equal, slots);
        if (!equal) break;
        choice.open = first_of(choice.open, slots, choice.need);
    }
    const uint32_t mask = choice.in | choice.open;
    const int found = k - max_of(choice.need - choice.inside, 0);
    if (sort_size) order_by_score(s, from, mask, found, sort_size, positions);
    else order_by_position(slots, mask, positions);
    return found;
}

CAIRN_KERNEL(topk_short, SHORT_THREADS, SHORT_RESIDENT, topk_params) {
    short_shared &s = shared_as<short_shared>();
    static_assert(sizeof(short_shared) <= SHORT_BYTES, "what the host launches with");
    const int r = block_id();
    grid_follow();
    topk_range range = topk_row_range(p, r, thread_id() == 0);
    const score_t *from = (const score_t *)p.scores + (int64_t)r * p.stride + range.start;
    const bool whole = range.length == 0 || (range.length <= p.k && !p.finite_only && !p.sort_size);
    int32_t *positions = (int32_t *)(shared_base() + SHORT_BYTES);
    int found = range.length;
    if (!whole) {
        const bool plain = !p.values && p.form == CAIRN_INDEX_POS;
        short_row row;
        load_short(from, range.length, p.finite_only != 0, row);
        found = choose_short(s, from, row, min_of(p.k, range.length), p.sort_size, positions,
                             plain ? p.indices + (int64_t)r * p.k : nullptr);
        if (found < 0) return;
        block_sync();
    }
    topk_write_row(topk_row_out(p, r, from), !whole, positions, found, p.k);
}
