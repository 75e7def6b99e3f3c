/* topk_cluster.cuh: what the blocks of a cluster share, their first bound, and going through a
 * slice in order of position. Constants as in topk_cluster.cu. Without an include guard. */

#define BINS 2048
#define CAPACITY CAIRN_CAPACITY
#define REGION (CAPACITY / CLUSTER) /* of which each block may send so many */
#define LIST 128                    /* keys that are ranked by comparing all pairs */
#define KEYS (CAPACITY / THREADS)   /* of them a thread */
#define MAP_TILES (BINS * 32 / TILE) /* a window of the slice, as bits where the bins are */
#define SORT_MAX max_of(CAPACITY / 2, 2048) /* chosen that can be sorted */
#define GROUPS 4
#define EVERY 0xffffffffu

/* What a block needs to write its part: everything over `key`, and of those equal to it the first
 * `ties` (EVERY: all), from output slot `offset` on. The cluster writes `found` in all; EVERY there
 * says that there were too many keys to select from. */
struct verdict { uint32_t key, offset, ties, found; };

struct cluster_shared {
    /* At the first block every block's candidates; at last each block's list of its own share. */
    alignas(16) uint32_t keys[max_of(CAPACITY, 4096)];
    uint32_t own[REGION];     /* keys of this block's candidates, in any order */
    int32_t elements[REGION]; /* which they are */
    alignas(16) uint32_t bins[BINS];
    alignas(16) uint32_t sums[BINS / CLUSTER]; /* over the cluster, this block's part of the bins */
    alignas(16) u32x4 told;                    /* the verdict */
    alignas(16) u32x2 bounds[CLUSTER]; /* of each block: its bound, its greatest */
    alignas(16) u32x2 chosen[CLUSTER]; /* how many over the k-th key, equal to it */
    uint32_t counts[CLUSTER], parts[CLUSTER], over[CLUSTER], equal[CLUSTER];
    uint32_t totals[2][WARP];
    alignas(16) uint32_t list[LIST + 4];
    topk_out out;
    bin_found found;
    uint32_t count, listed, key, ties; /* count: of candidates, over REGION when too many */
    int32_t cut;
    alignas(8) uint64_t bounds_in, counts_in, keys_in, verdict_in, chosen_in;
};
struct staged_shared {
    slice_stage stage;
    cluster_shared s;
    uint32_t sort_keys[SORT_MAX]; /* to be sorted; not there in order of position */
    int32_t sort_positions[SORT_MAX];
};

CAIRN_INLINE void begin_barriers(cluster_shared &s) {
    uint64_t *const all[5] = {&s.bounds_in, &s.counts_in, &s.keys_in, &s.verdict_in, &s.chosen_in};
#pragma unroll
    for (int i = 0; i < 5; i++) mbarrier_init(shared_addr(all[i]), 1);
    mbarrier_arrive_expect(shared_addr(&s.bounds_in), CLUSTER * 8);
    mbarrier_arrive_expect(shared_addr(&s.counts_in), CLUSTER * 4);
    mbarrier_arrive_expect(shared_addr(&s.verdict_in), 16);
    mbarrier_arrive_expect(shared_addr(&s.chosen_in), CLUSTER * 8);
    fence_mbarrier_init();
}

/* Before keys are sent a second time; a barrier of the block must follow. */
CAIRN_INLINE void begin_again(cluster_shared &s) {
    s.count = 0;
    mbarrier_arrive_expect(shared_addr(&s.verdict_in), 16);
    if (cluster_rank() == 0) mbarrier_arrive_expect(shared_addr(&s.counts_in), CLUSTER * 4);
}

CAIRN_INLINE cluster_shared &cluster_here() { return ((staged_shared *)shared_base())->s; }

CAIRN_INLINE void clear_bins(cluster_shared &s) {
#pragma unroll
    for (int i = 0; i < BINS; i += THREADS * 4)
        if (THREADS * 4 <= BINS || thread_id() * 4 < BINS)
            *(u32x4 *)&s.bins[i + thread_id() * 4] = {0, 0, 0, 0};
}

/* The bin that holds the need-th largest, of the first `bins`; inside is 0 when there are fewer. */
template <int bins> CAIRN_INLINE bin_found search_bins(cluster_shared &s, uint32_t need) {
    if (thread_id() == 0) s.found = {0, 0, 0};
    find_bin<bins, THREADS>(s.bins, s.totals[0], s.found, need);
    return s.found;
}

/* ---- the bound ----------------------------------------------------------------------------- */

/* Greatest scores of four groups of this thread's; NaN counts as none. */
struct group_most { float of[GROUPS]; };

CAIRN_INLINE void take_vector(group_most &most, int g, u32x4 raw) {
    score_vector v = bit_cast<score_vector>(raw);
#pragma unroll
    for (int c = 0; c < VECTOR; c++) most.of[g] = fmaxf(most.of[g], to_f32(v.score[c]));
}

CAIRN_INLINE group_most read_slice(const row_slice &w, tile_data &held) {
    const float none = as_f32(0x7fffffffu);
    group_most most = {{none, none, none, none}};
    stage_second(w);
    load_first(w, held);
#pragma unroll
    for (int j = 0; j < VECTORS; j++) take_vector(most, j % GROUPS, held.raw[j]);
    if (STAGES) copy_async_wait<0>();
#pragma unroll 1
    for (int t = 1; t < w.tiles; t++) {
#pragma unroll 1
        for (int j = 0; j < VECTORS; j += GROUPS)
#pragma unroll
            for (int g = 0; g < GROUPS; g++)
                if (j + g < VECTORS) take_vector(most, g, load_again(w, t, j + g));
    }
    return most;
}

/* {A key that at least `quota` scores of the slice reach, 0 when none is at hand; the greatest}. */
CAIRN_INLINE u32x2 slice_bound(cluster_shared &s, const row_slice &w, const group_most &most,
                               int quota) {
    const int lanes = min_of(THREADS, ceil_div(w.end, VECTOR));
    const int groups = quota * 2 <= lanes ? 1 : quota <= lanes ? 2 : 4;
    float a = fmaxf(most.of[0], most.of[1]), b = fmaxf(most.of[2], most.of[3]), ab = fmaxf(a, b);
    uint32_t keys[GROUPS] = {topk_key(groups == 1 ? ab : groups == 2 ? a : most.of[0]),
                             topk_key(groups == 2 ? b : most.of[1]), topk_key(most.of[2]),
                             topk_key(most.of[3])};
    uint32_t high = topk_key(ab), low = high;
    /* the least of these is reached by half, a quarter of the lanes */
    if (quota * 2 <= lanes) low = max_of(low, shuffle_xor(low, 1));
    if (quota * 4 <= lanes) low = max_of(low, shuffle_xor(low, 2));
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
        if (groups > 1 && g < groups && keys[g] > KEY_MINUS_INFINITY) low = min_of(low, keys[g]);
    low = warp_min(low > KEY_MINUS_INFINITY ? low : EVERY);
    high = warp_max(high);
    if (lane_id() == 0) {
        s.totals[0][warp_id()] = low;
        s.totals[1][warp_id()] = high;
    }
    block_sync();
    low = warp_min(lane_id() < WARPS ? s.totals[0][lane_id()] : EVERY);
    high = warp_max(lane_id() < WARPS ? s.totals[1][lane_id()] : 0u);
    if (low == EVERY) {
        block_sync(); /* the totals have been read */
        return {0, high};
    }
    constexpr int log2_bins = THREADS == 1024 ? 10 : THREADS == 512 ? 9 : 7;
    const int shift = max_of(0, 32 - log2_bins - leading_zeros(high - low));
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
        if (g < groups && keys[g] >= low) atomic_add(&s.bins[(keys[g] - low) >> shift], 1u);
    block_sync();
    bin_found at = search_bins<THREADS>(s, (uint32_t)quota);
    return {at.inside ? low + (at.bin << shift) : 0, high};
}

/* {A key that k scores of the row reach, or the floor; the greatest}. */
CAIRN_INLINE key_range agree(cluster_shared &s, u32x2 mine, uint32_t floor) {
    if (thread_id() < CLUSTER)
        remote_store_async(remote(shared_addr(&s.bounds[cluster_rank()]), thread_id()), mine,
                           remote(shared_addr(&s.bounds_in), thread_id()));
    mbarrier_wait_cluster(shared_addr(&s.bounds_in), 0);
    u32x2 of = lane_id() < CLUSTER ? s.bounds[lane_id()] : u32x2{EVERY, 0};
    return {max_of(warp_min(of.x), floor), warp_max(of.y)};
}

/* ---- a slice again, item by item ----------------------------------------------------------- */

/* Of the tiles on the chip, this thread's items with keys that reach one bound and another. */
struct thread_bits { reach_bits of[1 + STAGES]; };

/* Scans the slice once more: how many items reach two keys, and which. */
struct slice_scan { thread_bits bits; uint32_t low, high; };
CAIRN_INLINE slice_scan scan_slice(uint32_t low, uint32_t high) {
    const row_slice w = kept_slice();
    slice_scan scan = {};
#pragma unroll 1
    for (int t = 0; t < w.tiles; t++) {
        reach_bits bits = tile_bits(w, t, low, high);
        if (t == 0) scan.bits.of[0] = bits;
        if (STAGES && t == 1) scan.bits.of[STAGES] = bits;
        scan.low += (uint32_t)popcount(bits.low);
        scan.high += (uint32_t)popcount(bits.high);
    }
    return scan;
}

/* The candidates on the chip: items with a key of at least `low`. */
CAIRN_INLINE thread_bits find_candidates(const row_slice &w, tile_data &held, uint32_t low) {
    thread_bits mine = {};
    mine.of[0].low = held_bits(held, 0, low);
    if (STAGES && w.tiles > 1) {
        hold_again(w, 1, held);
        mine.of[STAGES].low = held_bits(held, 1, low);
    }
    return mine;
}

/* The items of tile t up to element `cut`, one bit each. */
CAIRN_INLINE uint32_t bits_up_to(int t, int cut) {
    const int left = cut - t * TILE, vector = left / VECTOR, lane = vector % THREADS;
    if (left < 0) return 0;
    int items = vector / THREADS * VECTOR;
    items += thread_id() < lane ? VECTOR : thread_id() == lane ? left % VECTOR + 1 : 0;
    return items >= ITEMS ? EVERY : (1u << items) - 1;
}

/* This thread's items of tile t; `mine` has the bits of the tiles on the chip. */
CAIRN_INLINE reach_bits visited_bits(const thread_bits &mine, int t, uint32_t low, uint32_t high) {
    if (t > STAGES) return tile_bits(kept_slice(), t, low, high);
    return STAGES && t == 1 ? mine.of[STAGES] : mine.of[0];
}

/* Lists the candidates, which reach `low` and not `high`, in any order, REGION of them at most:
 * elements and keys; the keys go to the first block too, as they come. Counts them in s.count,
 * which was 0; when it ends over REGION it has not counted all. */
CAIRN_INLINE void place(cluster_shared &s, const row_slice &w, const thread_bits &mine,
                        uint32_t low, uint32_t high) {
    const shared_addr there = remote(shared_addr(&s.keys[cluster_rank() * REGION]), 0);
    const shared_addr barrier = remote(shared_addr(&s.keys_in), 0);
#pragma unroll 1
    for (int t = 0; t < w.tiles; t++) {
        const reach_bits reach = visited_bits(mine, t, low, high);
        uint32_t bits = reach.low & ~reach.high, at = 0;
        const uint32_t count = (uint32_t)popcount(bits), end = warp_scan(count);
        if (lane_id() == WARP - 1) at = atomic_add(&s.count, end);
        at = shuffle(at, WARP - 1);
        if (at > REGION) break; /* the warp's: no use in more */
        at += end - count;
#pragma unroll 1
        for (; bits && at < REGION; at += 2) { /* two at a time wait for one load */
            const uint32_t rest = bits & (bits - 1);
            const int i = find_first_set(bits) - 1, j = rest ? find_first_set(rest) - 1 : i;
            const uint32_t a = topk_key(score_again(w, t, i)), b = topk_key(score_again(w, t, j));
            s.elements[at] = item_element(t, i);
            s.own[at] = a;
            remote_store_async(there + at * 4, a, barrier);
            bits = rest & (rest - 1);
            if (!rest || at + 1 >= REGION) continue;
            s.elements[at + 1] = item_element(t, j);
            s.own[at + 1] = b;
            remote_store_async(there + (at + 1) * 4, b, barrier);
        }
    }
    block_sync();
}

/* What a block has chosen: everything over `key`, and of those equal to it what lies at or before
 * element `cut`; from the list of candidates, or from the bits of all that reach it, exceed it. */
struct chosen_items { bool listed; uint32_t key; int cut; };

/* Marks items in the map, whose first bit is the first element of `tile`: the chosen ones, or those
 * equal to the key. */
CAIRN_INLINE void mark_items(cluster_shared &s, int tile, int tiles, const thread_bits &mine,
                             chosen_items of, bool equals) {
    const int first = tile * TILE, count = of.listed ? (int)s.count : 0;
#pragma unroll 1
    for (int i = thread_id(); i < count; i += THREADS) {
        const uint32_t key = s.own[i];
        const int e = s.elements[i], bit = e - first;
        const bool is = equals ? key == of.key : key > of.key || (key == of.key && e <= of.cut);
        if (is && bit >= 0 && bit < tiles * TILE) atomic_or(&s.bins[bit / 32], 1u << (bit & 31));
    }
#pragma unroll 1
    for (int t = tile; t < tile + tiles && !of.listed; t++) {
        const reach_bits reach = visited_bits(mine, t, of.key, of.key + 1);
        const uint32_t between = reach.low & ~reach.high;
        uint32_t bits = equals ? between : reach.high | (between & bits_up_to(t, of.cut));
#pragma unroll 1
        while (bits) {
            int i = find_first_set(bits) - 1, bit = item_element(t - tile, i / VECTOR * VECTOR);
            uint32_t vector = bits >> (i / VECTOR * VECTOR) & ((1u << VECTOR) - 1);
            atomic_or(&s.bins[bit / 32], vector << (bit & 31));
            bits &= ~(vector << (i / VECTOR * VECTOR));
        }
    }
}

/* Writes the elements of the chosen items into the list in ascending order, how many; or, when
 * `ties` is not EVERY, leaves in s.cut which of those equal to the key is the last of so many. */
CAIRN_INLINE uint32_t visit_items(cluster_shared &s, const row_slice &w, const thread_bits &mine,
                                  chosen_items of, uint32_t ties, int32_t *list) {
    uint32_t *map = s.bins, done = 0;
#pragma unroll 1
    for (int tile = 0; tile < w.tiles; tile += MAP_TILES) {
        const int tiles = min_of(MAP_TILES, w.tiles - tile), words = tiles * (TILE / 32);
        const int each = ceil_div(words, THREADS), first = thread_id() * each;
        const int end = min_of(first + each, words);
        block_sync();
        clear_bins(s);
        block_sync();
        mark_items(s, tile, tiles, mine, of, ties != EVERY);
        block_sync();
        uint32_t count = 0;
#pragma unroll 1
        for (int i = first; i < end; i++) count += (uint32_t)popcount(map[i]);
        uint32_t at = warp_scan(count);
        if (lane_id() == WARP - 1) s.totals[0][warp_id()] = at;
        block_sync();
        uint32_t total = lane_id() < WARPS ? s.totals[0][lane_id()] : 0u;
        at += warp_sum(lane_id() < warp_id() ? total : 0u) - count + done;
        done += warp_sum(total);
        if (ties != EVERY && (ties <= at || ties > at + count)) continue;
#pragma unroll 1
        for (int i = first; i < end; i++)
#pragma unroll 1
            for (uint32_t bits = map[i]; bits; bits &= bits - 1, at++) {
                const int e = tile * TILE + i * 32 + find_first_set(bits) - 1;
                if (ties == EVERY) list[at] = e;
                else if (at + 1 == ties) s.cut = e;
            }
    }
    block_sync();
    return done;
}
