/* topk_select.cuh: one block holds a bounded set of candidates (key, position) in shared memory,
 * takes in a row tile by tile, and keeps the best k; exact for any input.
 *
 * A tile is THREADS x ITEMS scores in registers. Keys below the running bound are left out; when
 * the set would overflow it is cut to its best k, whose k-th gives the new bound, and the tile goes
 * in again: a cut set has room for a whole tile, so nothing is ever dropped. Positions only grow
 * from tile to tile, so once k are held, only a greater key than their least can displace one.
 * The order of entries in the set varies from run to run; no result depends on it.
 * Constants: CAIRN_SCORE_TYPE, CAIRN_THREADS, CAIRN_ITEMS. Without an include guard. */

#define THREADS CAIRN_THREADS
#define ITEMS CAIRN_ITEMS
#define TILE (THREADS * ITEMS)
#define CAPACITY 10240 /* >= k + TILE */
#define BINS 2048
#define LIST 128 /* up to so many are ranked by comparing all pairs */
#define VECTOR (16 / (int)sizeof(score_t))
#define VECTORS (ITEMS / VECTOR)

struct topk_entry { uint32_t key; int32_t position; };

struct topk_shared {
    alignas(16) uint32_t keys[CAPACITY];
    alignas(16) int32_t positions[CAPACITY];
    alignas(16) uint32_t bins[BINS];
    alignas(16) uint32_t totals[2][WARP]; /* one a warp */
    alignas(16) topk_entry list[LIST];
    uint32_t bin, above, inside; /* what find_crossing found */
    uint32_t count;              /* candidates held */
    uint32_t listed;
    topk_entry last;             /* the last entry that is chosen */
    uint32_t bounds[16], counts[16]; /* of each block of a cluster */
};

/* Whether `a` comes before `b` in the order of top-k. */
CAIRN_INLINE bool comes_before(topk_entry a, topk_entry b) {
    return a.key > b.key || (a.key == b.key && a.position < b.position);
}
CAIRN_INLINE bool is_chosen(topk_entry a, topk_entry last) { return !comes_before(last, a); }

/* ---- a tile ------------------------------------------------------------------------------------ */

struct topk_tile { u32x4 raw[VECTORS]; };
struct topk_vector { score_t score[VECTOR]; };

/* Position of this thread's item i of a tile that begins at `base`. */
CAIRN_INLINE int item_position(int base, int i) {
    return base + (i / VECTOR * THREADS + thread_id()) * VECTOR + i % VECTOR;
}

CAIRN_INLINE score_t score_nan() {
    if constexpr (sizeof(score_t) == 4) return bit_cast<score_t>(0x7fffffffu);
    else return bit_cast<score_t>((uint16_t)0x7fff);
}

/* Scores [base, base + TILE) of a row, NaN outside [0, length). row + base is 16-byte aligned. One
 * branch for the whole tile: a branch a vector would wait for each load in turn. */
CAIRN_INLINE topk_tile load_tile(const score_t *row, int base, int length) {
    topk_tile tile;
    if (base >= 0 && base + TILE <= length) {
#pragma unroll
        for (int j = 0; j < VECTORS; j++)
            tile.raw[j] = load_constant((const u32x4 *)(row + item_position(base, j * VECTOR)));
        return tile;
    }
#pragma unroll
    for (int j = 0; j < VECTORS; j++) {
        topk_vector v;
#pragma unroll
        for (int c = 0; c < VECTOR; c++) {
            int at = item_position(base, j * VECTOR + c);
            v.score[c] = at >= 0 && at < length ? row[at] : score_nan();
        }
        tile.raw[j] = bit_cast<u32x4>(v);
    }
    return tile;
}

/* Asks for the scores [base, base + TILE) that lie in [0, length). */
CAIRN_INLINE void prefetch_tile(const score_t *row, int base, int length) {
    constexpr int line = 128 / (int)sizeof(score_t);
    int at = base + thread_id() * line;
    if (at >= 0 && at < min_of(base + TILE, length)) prefetch_l2(row + at);
}

CAIRN_INLINE void tile_keys(const topk_tile &tile, uint32_t *keys) {
#pragma unroll
    for (int j = 0; j < VECTORS; j++) {
        topk_vector v = bit_cast<topk_vector>(tile.raw[j]);
#pragma unroll
        for (int c = 0; c < VECTOR; c++) keys[j * VECTOR + c] = topk_key(v.score[c]);
    }
}

/* ---- choosing among the candidates ------------------------------------------------------------- */

struct key_range { uint32_t low, high; };

/* Lowest and highest over the block of each thread's own. */
CAIRN_INLINE key_range block_range(topk_shared &s, key_range own) {
    uint32_t low = warp_min(own.low), high = warp_max(own.high);
    if (lane_id() == 0) {
        s.totals[0][warp_id()] = low;
        s.totals[1][warp_id()] = high;
    }
    block_sync();
    low = lane_id() < THREADS / WARP ? s.totals[0][lane_id()] : 0xffffffffu;
    high = lane_id() < THREADS / WARP ? s.totals[1][lane_id()] : 0u;
    return {warp_min(low), warp_max(high)};
}

/* Bits to leave out so that a range falls into BINS bins. */
CAIRN_INLINE int range_shift(key_range range) {
    return max_of(0, 32 - 11 - leading_zeros(range.high - range.low));
}

CAIRN_INLINE void clear_bins(topk_shared &s) {
    for (int i = thread_id() * 4; i < BINS; i += THREADS * 4) *(u32x4 *)&s.bins[i] = {0, 0, 0, 0};
}

/* The bin that holds the need-th largest: s.bin, s.above (in greater bins), s.inside. */
CAIRN_INLINE void find_crossing(topk_shared &s, uint32_t need) {
    constexpr int each = BINS / THREADS;
    const int top = BINS - 1 - thread_id() * each;
    uint32_t mine = 0;
#pragma unroll
    for (int i = 0; i < each; i++) mine += s.bins[top - i];
    uint32_t total = warp_sum(mine);
    if (lane_id() == 0) s.totals[0][warp_id()] = total;
    block_sync();
    uint32_t above = warp_sum(lane_id() < warp_id() ? s.totals[0][lane_id()] : 0u);
    if (above < need && above + total >= need) {
        above += warp_scan(mine) - mine;
        if (above < need && above + mine >= need) {
            int bin = top;
            while (above + s.bins[bin] < need) above += s.bins[bin--];
            s.bin = (uint32_t)bin;
            s.above = above;
            s.inside = s.bins[bin];
        }
    }
    block_sync();
}

/* A key that at least `quota` of the block's items reach; 0 when no good one is at hand. It comes
 * from the maxima of groups of items: quota of those reach it. */
template <int groups>
CAIRN_INLINE uint32_t bound_from_groups(topk_shared &s, const uint32_t *keys, uint32_t quota) {
    constexpr int size = ITEMS / groups;
    uint32_t most[groups];
    key_range own = {0xffffffffu, 0u};
#pragma unroll
    for (int g = 0; g < groups; g++) {
        most[g] = keys[g * size];
#pragma unroll
        for (int i = 1; i < size; i++) most[g] = max_of(most[g], keys[g * size + i]);
        own = {min_of(own.low, most[g]), max_of(own.high, most[g])};
    }
    clear_bins(s);
    key_range range = block_range(s, own);
    const int shift = range_shift(range);
#pragma unroll
    for (int g = 0; g < groups; g++) atomic_add(&s.bins[(most[g] - range.low) >> shift], 1u);
    block_sync();
    find_crossing(s, quota);
    return range.low + (s.bin << shift);
}
CAIRN_INLINE uint32_t tile_bound(topk_shared &s, const uint32_t *keys, int quota) {
    if (quota <= THREADS / 2) return bound_from_groups<1>(s, keys, (uint32_t)quota);
    if (quota <= THREADS * 2) return bound_from_groups<4>(s, keys, (uint32_t)quota);
    return 0;
}

/* Puts the need-th of the list into s.last. */
CAIRN_INLINE void rank_list(topk_shared &s, int count, uint32_t need) {
    if (thread_id() < count) {
        topk_entry mine = s.list[thread_id()];
        uint32_t rank = 0;
        for (int i = 0; i < count; i++) rank += comes_before(s.list[i], mine);
        if (rank == need - 1) s.last = mine;
    }
    block_sync();
}

/* The k-th of m candidates, 1 <= k <= m, positions below `length`: each round spreads the range that
 * holds it over the bins; first keys, then, when too many are equal, the positions of those. */
CAIRN_INLINE topk_entry find_last(topk_shared &s, int m, uint32_t k, int length) {
    key_range range = {0xffffffffu, 0u};
    for (int i = thread_id(); i < m; i += THREADS)
        range = {min_of(range.low, s.keys[i]), max_of(range.high, s.keys[i])};
    range = block_range(s, range);
    uint32_t tied = 0;
    bool by_position = false;
    for (;;) {
        if (!by_position && range.low == range.high) {
            by_position = true;
            tied = range.low;
            range = {(uint32_t)(NO_POSITION - length + 1), NO_POSITION};
        }
        const int shift = range_shift(range);
        clear_bins(s);
        if (thread_id() == 0) s.listed = 0;
        block_sync();
        for (int i = thread_id(); i < m; i += THREADS) {
            uint32_t v = s.keys[i];
            bool in = !by_position || v == tied;
            if (by_position) v = (uint32_t)(NO_POSITION - s.positions[i]);
            if (in && v - range.low <= range.high - range.low)
                atomic_add(&s.bins[(v - range.low) >> shift], 1u);
        }
        block_sync();
        find_crossing(s, k);
        range.low += s.bin << shift;
        range.high = min_of(range.high, range.low + ((1u << shift) - 1));
        k -= s.above;
        int inside = (int)s.inside;
        if (k == (uint32_t)inside) { /* all of them */
            if (by_position) return {tied, (int32_t)(NO_POSITION - range.low)};
            return {range.low, NO_POSITION};
        }
        if (inside <= LIST) {
            for (int i = thread_id(); i < m; i += THREADS) {
                uint32_t key = s.keys[i], v = key;
                bool in = !by_position || v == tied;
                if (by_position) v = (uint32_t)(NO_POSITION - s.positions[i]);
                if (in && v - range.low <= range.high - range.low)
                    s.list[atomic_add(&s.listed, 1u)] = {key, s.positions[i]};
            }
            block_sync();
            rank_list(s, inside, k);
            return s.last;
        }
    }
}

/* Leaves the chosen ones alone in the set; their number is s.count. */
CAIRN_INLINE void keep_chosen(topk_shared &s, int m, topk_entry last) {
    if (thread_id() == 0) s.count = 0;
#pragma unroll 1
    for (int first = 0; first < m; first += THREADS) {
        int i = first + thread_id();
        topk_entry e = {0, 0};
        bool chosen = i < m;
        if (chosen) {
            e = {s.keys[i], s.positions[i]};
            chosen = is_chosen(e, last);
        }
        block_sync(); /* all have read before one writes, at places read already */
        uint32_t votes = warp_ballot(chosen), at = 0;
        if (lane_id() == 0 && votes) at = atomic_add(&s.count, (uint32_t)popcount(votes));
        at = shuffle(at, 0) + (uint32_t)popcount(votes & ((1u << lane_id()) - 1));
        if (chosen) {
            s.keys[at] = e.key;
            s.positions[at] = e.position;
        }
    }
    block_sync();
}

/* ---- taking in ---------------------------------------------------------------------------------- */

struct topk_slice { int begin, end; }; /* of a row, positions */

/* Adds this thread's items with a key of at least `floor` and a position in the slice; what does
 * not fit is left out, and s.count then exceeds CAPACITY. */
CAIRN_INLINE void append_items(topk_shared &s, const uint32_t *keys, int base, topk_slice slice,
                               uint32_t floor) {
    uint32_t mask = 0;
#pragma unroll
    for (int i = 0; i < ITEMS; i++) mask |= (uint32_t)(keys[i] >= floor) << i;
    if (floor == 0) {
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            int position = item_position(base, i);
            if (position < slice.begin || position >= slice.end) mask &= ~(1u << i);
        }
    }
    uint32_t mine = (uint32_t)popcount(mask), end = warp_scan(mine), at = 0;
    if (!warp_any(mine != 0)) return;
    if (lane_id() == WARP - 1) at = atomic_add(&s.count, end);
    at = shuffle(at, WARP - 1);
    if (at + shuffle(end, WARP - 1) > CAPACITY) return;
    at += end - mine;
#pragma unroll
    for (int i = 0; i < ITEMS; i++)
        if (mask >> i & 1u) {
            s.keys[at] = keys[i];
            s.positions[at++] = item_position(base, i);
        }
}

/* Takes in one tile; returns the floor for the next. s.count is known to all before and after. */
CAIRN_INLINE uint32_t take_tile(topk_shared &s, const uint32_t *keys, int base, topk_slice slice,
                                int k, uint32_t floor) {
    const int held = (int)s.count;
    for (;;) {
        block_sync();
        append_items(s, keys, base, slice, floor);
        block_sync();
        if (s.count <= CAPACITY) return floor;
        topk_entry last = find_last(s, held, (uint32_t)k, slice.end); /* held > CAPACITY - TILE */
        keep_chosen(s, held, last);
        floor = max_of(floor, last.key + 1); /* the greatest key is far from overflow */
    }
}
