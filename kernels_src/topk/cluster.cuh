/* topk/cluster.cuh: what the blocks of a cluster share, their first guess, and going through a
 * slice in order of position. Constants as in topk/cluster.cu. Without an include guard. */

#define BINS 2048
#define CAPACITY CAIRN_CAPACITY
#define LISTED CAIRN_LISTED       /* of them one block's at most */
#define SHARE (CAPACITY / CLUSTER) /* a block's, where all have as many */
#define LIST 128                    /* keys that are ranked by comparing all pairs */
#define KEYS (CAPACITY / THREADS)   /* of them a thread */
#define CHUNKS (CAPACITY / WARP)    /* of them, a warp's each, of one block */
#define MAP_TILES (BINS * 32 / TILE) /* a window of the slice, as bits in the map */
#define SORT_MAX max_of(CAPACITY / 2, 2048) /* chosen that can be sorted */
#define ROOM max_of(CAIRN_ROOM, 2 * BINS) /* keys at the first block, in regions, one a block */
#define REGION (CAIRN_ROOM / CLUSTER / WARP * WARP)
#define SAMPLES 4 /* of a thread */
#define KEY_INFINITY 0xff800000u

/* What a block needs to write its part: everything over `key`, and of those equal to it the first
 * `ties` (EVERY: all), from output slot `offset` on. The cluster writes `found` in all; EVERY there
 * says that the k-th is not known: then `key` says why, and `ties` is the key of MANY_EQUAL. */
struct verdict { uint32_t key, offset, ties, found; };
enum { TOO_MANY, TOO_FEW, MANY_EQUAL }; /* the last: too many were sent, most equal to one */

struct cluster_shared {
    /* At the first block every block's candidates; at last each block's list of its own share, and
     * in the upper half how many items of the map come before each word. At first the sample. */
    alignas(16) uint32_t keys[ROOM];
    uint32_t chunks[CHUNKS];  /* of the keys, at the first block: begin, count << 16, block << 24 */
    alignas(16) uint32_t own[LISTED]; /* keys of this block's candidates, in any order */
    int32_t elements[LISTED]; /* which they are */
    alignas(16) uint32_t bins[BINS];
    alignas(16) uint32_t map[BINS]; /* empty but while items are visited */
    alignas(16) uint32_t sums[BINS / CLUSTER]; /* over the cluster, this block's part of the bins */
    alignas(16) u32x4 told;                    /* the verdict */
    alignas(16) u32x4 heavy;                   /* by pick_bins */
    alignas(16) u32x4 guesses[CLUSTER];
    alignas(16) u32x2 chosen[CLUSTER]; /* how many over the k-th key, equal to it */
    uint32_t counts[CLUSTER], parts[CLUSTER], over_equal[CLUSTER]; /* the last packed: over << 16 */
    uint32_t totals[2][WARP], picks[2];
    alignas(16) uint32_t list[LIST + 4];
    topk_out out;
    bin_found found;
    uint32_t count[2]; /* of candidates the first time and the second, also of those not listed */
    key_range guessed; /* k scores reach `low`, and few exceed `high`, in all likelihood */
    uint32_t listed, key, ties;
    uint32_t shared_out; /* how often, without the first block */
    int32_t cut;
    alignas(8) uint64_t guesses_in, named_in, counts_in, keys_in, verdict_in, chosen_in;
};
static_assert(THREADS * 4 <= 2 * BINS, "room for the sample");
static_assert(LISTED % 4 == 0 && SHARE % 4 == 0, "keys are sent four at a time");
static_assert(REGION >= SHARE && LISTED >= SHARE && LISTED <= CAPACITY, "a block's keys");
struct staged_shared {
    slice_stage stage;
    cluster_shared s;
    uint32_t sort_keys[SORT_MAX]; /* to be sorted; not there in order of position */
    int32_t sort_positions[SORT_MAX];
};

CAIRN_INLINE void begin_barriers(cluster_shared &s) {
    uint64_t *const all[6] = {&s.guesses_in, &s.named_in,   &s.counts_in,
                              &s.keys_in,    &s.verdict_in, &s.chosen_in};
#pragma unroll
    for (int i = 0; i < 6; i++) mbarrier_init(shared_addr(all[i]), 1);
    mbarrier_arrive_expect(shared_addr(&s.guesses_in), CLUSTER * 16);
    mbarrier_arrive_expect(shared_addr(&s.named_in), CLUSTER * CLUSTER * 4);
    mbarrier_arrive_expect(shared_addr(&s.counts_in), CLUSTER * 4);
    mbarrier_arrive_expect(shared_addr(&s.verdict_in), 16);
    mbarrier_arrive_expect(shared_addr(&s.chosen_in), CLUSTER * 8);
    fence_mbarrier_init();
}

/* Before keys are sent a second time. */
CAIRN_INLINE void begin_again(cluster_shared &s) {
    mbarrier_arrive_expect(shared_addr(&s.verdict_in), 16);
    if (cluster_rank() == 0) mbarrier_arrive_expect(shared_addr(&s.counts_in), CLUSTER * 4);
}

/* Before all share a second time. */
CAIRN_INLINE void share_again(cluster_shared &s) {
    mbarrier_arrive_expect(shared_addr(&s.chosen_in), CLUSTER * 8);
    s.shared_out = 1;
}

CAIRN_INLINE cluster_shared &cluster_here() { return ((staged_shared *)shared_base())->s; }

CAIRN_INLINE void clear_words(uint32_t *words) {
#pragma unroll
    for (int i = 0; i < BINS; i += THREADS * 4)
        if (THREADS * 4 <= BINS || thread_id() * 4 < BINS)
            *(u32x4 *)&words[i + thread_id() * 4] = {0, 0, 0, 0};
}

/* The bin that holds the need-th largest; inside is 0 when there are fewer. Called, for it is needed
 * in two places. */
CAIRN_CALLED void find_largest(uint32_t need) {
    cluster_shared &s = cluster_here();
    if (thread_id() == 0) s.found = {0, 0, 0};
    find_bin<BINS, THREADS>(s.bins, s.totals[0], s.found, need);
}
CAIRN_INLINE bin_found search_bins(cluster_shared &s, uint32_t need) {
    find_largest(need);
    return s.found;
}

/* ---- the guess ----------------------------------------------------------------------------- */

/* How a range of a sample's keys is spread over bins, one a thread: as numbers, for spread by their bits those on both
 * sides of zero would share a few; by their bits where the numbers reach too far, to infinity say, or not at all. */
struct sample_bins {
    key_range range;
    float least, span, scale;
    bool numbers;

    CAIRN_MEMBER explicit sample_bins(key_range of)
        : range(of), least(key_score(of.low)), span(add_f32(key_score(of.high), -least)) {
        numbers = span > 1e-30f && span < 1e37f;
        if (!numbers) least = 0.0f, span = (float)max_of(of.high - of.low, 1u);
        scale = (float)(THREADS - 1) * rcp_fast(span);
    }
    CAIRN_MEMBER uint32_t bin(uint32_t key) const {
        const value_bins bins = {least, scale};
        return as_u32(value_bin(bins, numbers ? key_score(key) : (float)(key - range.low))) - as_u32(BIN_ZERO);
    }
    /* The least key of a bin. */
    CAIRN_MEMBER uint32_t edge(int bin) const {
        const float begin = fma_f32(((float)bin - 0.5f) * (1.0f / (THREADS - 1)), span, least);
        if (bin == 0) return range.low;
        return min_of(range.high, numbers ? topk_key(begin) : range.low + (uint32_t)begin);
    }
};

/* Leaves in s.picks what bin `ranks.x`, `ranks.y` of the sample fall into, as keys, and in s.heavy, where it is a large
 * part of the sample and more than `few` reach it, the former's ends, how many lie above, and how many reach it. */
CAIRN_INLINE void pick_bins(cluster_shared &s, u32x2 ranks, uint32_t few, const sample_bins &bins) {
    const int bin = THREADS - 1 - thread_id();
    const uint32_t mine = s.bins[bin], total = warp_sum(mine);
    if (lane_id() == 0) s.totals[0][warp_id()] = total;
    if (thread_id() == 0) s.heavy = {0, 0, 0, 0};
    block_sync();
    const uint32_t above = warp_sum(lane_id() < warp_id() ? s.totals[0][lane_id()] : 0u);
    if (above < ranks.y && above + total >= ranks.x) {
        const uint32_t end = above + warp_scan(mine), before = end - mine;
        const uint32_t key = bins.edge(bin);
        if (before < ranks.x && end >= ranks.x) {
            s.picks[0] = key;
            if (mine > 8 + ranks.x / 2 && end > few) s.heavy = {key, bins.edge(bin + 1), before, end};
        }
        if (before < ranks.y && end >= ranks.y) s.picks[1] = key;
    }
    block_sync();
}

/* The key of score c of this thread's sample, which lies where it came to: a tile has the registers. */
CAIRN_INLINE uint32_t sample_key(const cluster_shared &s, int c) {
    return topk_key(((const score_t *)s.keys)[thread_id() * VECTOR + c]);
}

/* The least and the greatest key of the sample in a range; whether few warps have any: then the row changes slowly. */
struct sample_part { key_range keys; bool together; };
CAIRN_INLINE sample_part sample_range(cluster_shared &s, key_range of) {
    key_range mine = {EVERY, 0};
#pragma unroll
    for (int c = 0; c < SAMPLES; c++) {
        const uint32_t key = sample_key(s, c);
        if (key >= of.low && key <= of.high) mine = {min_of(mine.low, key), max_of(mine.high, key)};
    }
    mine = {warp_min(mine.low), warp_max(mine.high)};
    if (lane_id() == 0) s.totals[0][warp_id()] = mine.low, s.totals[1][warp_id()] = mine.high;
    block_sync();
    const uint32_t low = lane_id() < WARPS ? s.totals[0][lane_id()] : EVERY;
    const uint32_t high = lane_id() < WARPS ? s.totals[1][lane_id()] : 0u;
    return {{warp_min(low), warp_max(high)}, popcount(warp_ballot(low != EVERY)) * 4 <= WARPS};
}

/* Of the sample how many may reach a guess: where all blocks have as many, and one alone. */
struct sample_room { uint32_t few, alone; };

/* A key that about `ranks.x`, `ranks.y` of the slice's sample reach, 0 when there is none; the greatest; the key that
 * many around the first are equal to, or 0. The sample is this thread's part of it; `lanes` threads have one. Of a row
 * with a long tail one bin has nearly all: it is spread over all bins in turn, unless there is room for all that reach
 * it; for more where they lie together, for then other blocks have others. */
CAIRN_INLINE u32x4 pick_keys(cluster_shared &s, u32x2 ranks, sample_room room, int lanes) {
    uint32_t low = 0, high;
#pragma unroll
    for (int c = 0; c < SAMPLES; c++) low = max_of(low, sample_key(s, c));
    high = warp_max(low);
    /* the least of them is reached by an eighth of random samples, by a fourth, by most, by all */
    if ((int)ranks.x * 5 <= lanes * 4) {
        low = max_of(low, shuffle_xor(low, 1));
        low = max_of(low, shuffle_xor(low, 2));
        if ((int)ranks.y * 10 <= lanes * 4) low = max_of(low, shuffle_xor(low, 4));
    } else if ((int)ranks.x * 5 > lanes * 12) {
#pragma unroll
        for (int c = 0; c < SAMPLES; c++)
            if (sample_key(s, c) > KEY_MINUS_INFINITY) low = min_of(low, sample_key(s, c));
    }
    low = warp_min(low > KEY_MINUS_INFINITY ? low : EVERY);
    if (lane_id() == 0) {
        s.totals[0][warp_id()] = low;
        s.totals[1][warp_id()] = high;
    }
    if (thread_id() == 0) s.picks[0] = s.picks[1] = 0;
    block_sync();
    low = warp_min(lane_id() < WARPS ? s.totals[0][lane_id()] : EVERY);
    high = warp_max(lane_id() < WARPS ? s.totals[1][lane_id()] : 0u);
    key_range range = {low, high};
    uint32_t tied = 0;
#pragma unroll 1
    for (int turn = 0; turn < 4; turn++) {
        const sample_bins bins(range);
#pragma unroll
        for (int c = 0; c < SAMPLES; c++) {
            const uint32_t key = sample_key(s, c);
            if (key >= range.low && key <= range.high) atomic_add(&s.bins[bins.bin(key)], 1u);
        }
        block_sync();
        pick_bins(s, ranks, room.few, bins);
        const u32x4 heavy = s.heavy;
        if (!heavy.w) break;
        const sample_part part = sample_range(s, {heavy.x, heavy.y});
        const key_range inside = part.keys;
        if (inside.low >= inside.high) {
            tied = inside.low == inside.high && heavy.z * 2 < ranks.x ? inside.low : 0;
            break;
        }
        if (part.together && heavy.w <= room.alone) break;
        room = {room.few - min_of(room.few, heavy.z), room.alone - min_of(room.alone, heavy.z)};
        clear_words(s.bins);
        range = inside;
        ranks = {ranks.x - heavy.z, ranks.y - heavy.z};
        block_sync();
    }
    return {s.picks[0], s.picks[1], high, tied};
}

/* Scores of which a thread's sample is taken. */
CAIRN_INLINE float sampled_each(const row_slice &w) {
    return fmaxf((float)w.size * (1.0f / THREADS), (float)VECTOR);
}

/* About as many more as chance may add to a count: a root is slow where it is exact. */
CAIRN_INLINE float with_chance(float count) { return count + 4.0f * count * rsqrt_fast(fmaxf(count, 1e-6f)) + 2.0f; }

/* How many of the row's sample are to reach a key, that k scores do in all likelihood. */
CAIRN_INLINE float sample_wanted(const row_slice &w, int k) {
    return with_chance((float)(k * SAMPLES) * rcp_fast(sampled_each(w)));
}

/* From a sample of the slice: {a key that this block's part of k scores reach, or EVERY where that
 * says little of the row; a key that k scores of this block alone reach; the greatest; what the last of
 * its part is equal to with many others}, in all likelihood; 0: all scores may be needed, there is no
 * such key. */
CAIRN_INLINE u32x4 slice_guess(cluster_shared &s, const row_slice &w, float wanted) {
    const float part = rcp_fast(sampled_each(w));
    const int lanes = (int)((float)w.end * part) + 1;
    const sample_room room = {(uint32_t)((float)(SHARE * SAMPLES) * 0.9f * part),
                              (uint32_t)((float)(LISTED * SAMPLES) * 0.75f * part)};
    u32x4 guess = pick_keys(s, {(uint32_t)(wanted * (1.0f / CLUSTER)) + 1, (uint32_t)wanted + 1}, room,
                            min_of(lanes, THREADS));
    if ((w.end - w.first) * 2 < w.size) guess.x = EVERY;
    return guess;
}

/* Of lane b: where block b's keys begin at the first block, and how many there may be. */
struct key_region {
    uint32_t start, size;

    CAIRN_METHOD key_region even(uint32_t most) {
        return {(uint32_t)min_of(lane_id(), CLUSTER - 1) * REGION, min_of(most, (uint32_t)min_of(REGION, LISTED))};
    }
    /* As many as each is expected to have, or of what room there is its part. */
    CAIRN_METHOD key_region expected(uint32_t count) {
        const uint32_t most = min_of((uint32_t)round_up((int)count, WARP), (uint32_t)LISTED);
        const float part = fminf((float)ROOM * rcp_fast((float)max_of(warp_sum(most), 1u)), 1.0f);
        const uint32_t size = (uint32_t)((float)most * part) / WARP * WARP;
        return {warp_scan(size) - size, size};
    }
};

/* Of lane b: how many scores of block b reach a key at most, in all likelihood, which `count` of its sample reach. */
CAIRN_INLINE uint32_t candidates_of(const row_slice &w, float count) {
    const float scores = (float)w.size * (1.0f / (THREADS * SAMPLES)) * with_chance(count);
    return lane_id() < CLUSTER ? (uint32_t)fminf(scores, (float)LISTED) : 0u;
}

struct agreed_guess {
    key_range keys;
    key_region region;
    uint32_t tied; /* the k-th key, in all likelihood, where so many are equal to it; else 0 */
};

/* Where one block alone has what is wanted: a key that k scores of it reach. */
CAIRN_INLINE agreed_guess only_guess(const row_slice &w, bool has, float wanted, uint32_t alone) {
    return {{alone, 0}, key_region::expected(candidates_of(w, has ? wanted + 1.0f : 0.0f)), 0};
}

/* How many of a warp's part of the sample reach this lane's name; lanes that share one have each a part of it. */
CAIRN_INLINE uint32_t count_reaching(const cluster_shared &s, float name) {
    constexpr int PARTS = WARP / CLUSTER;
    uint32_t reach = 0;
#pragma unroll 4
    for (int i = warp_id() * PARTS + lane_id() / CLUSTER; i < THREADS; i += WARPS * PARTS) {
        const score_vector v = bit_cast<score_vector>(((const u32x4 *)s.keys)[i]);
#pragma unroll
        for (int c = 0; c < SAMPLES; c++) add_if_reaching(reach, to_f32(v.score[c]), name);
    }
    return reach;
}

/* Where the blocks differ: the greatest key that some block named and that `wanted` of the row's sample reach; and what
 * that makes of each block's candidates. `alone` is such a key, so that it stands for lesser ones. Every block counts
 * its own sample, which lies where it did until all have. The bins are no longer used. */
CAIRN_INLINE agreed_guess count_guesses(cluster_shared &s, const row_slice &w, float wanted, uint32_t alone) {
    constexpr int OWN = BINS / 2;
    static_assert(CLUSTER * CLUSTER <= OWN && THREADS <= OWN, "room in the bins, of which the upper half is empty");
    const int of = lane_id() % CLUSTER;
    const uint32_t named = s.guesses[of].x, name = named == EVERY ? alone : max_of(named, alone);
    if (s.guesses[cluster_rank()].z >= warp_min(name ? name : EVERY)) { /* in most blocks none does */
        const uint32_t reach = name ? count_reaching(s, key_score(name)) : 0;
        if (reach) atomic_add(&s.bins[OWN + of], reach);
    }
    block_sync();
#pragma unroll 1
    for (int i = thread_id(); i < CLUSTER * CLUSTER; i += THREADS)
        remote_store_async(remote(shared_addr(&s.bins[cluster_rank() * CLUSTER + i % CLUSTER]), i / CLUSTER),
                           s.bins[OWN + i % CLUSTER], remote(shared_addr(&s.named_in), i / CLUSTER));
    mbarrier_wait_cluster(shared_addr(&s.named_in), 0);
    uint32_t all = 0;
#pragma unroll
    for (int b = 0; b < CLUSTER; b++) all += s.bins[b * CLUSTER + of];
    const bool enough = name && (float)all >= wanted;
    const uint32_t key = warp_max(enough ? name : 0u);
    const int chosen = max_of(find_first_set(warp_ballot(enough && name == key)) - 1, 0);
    const float count = (float)s.bins[of * CLUSTER + chosen];
    block_sync(); /* the bins are others' now */
    if (!key) return {{0, 0}, key_region::even(REGION), 0};
    return {{key, 0}, key_region::expected(candidates_of(w, count)), 0};
}

/* Whether the row's wanted scores, and half as many again, fit any block's region. */
CAIRN_INLINE bool few_wanted(const row_slice &w, float wanted) {
    return wanted * 1.5f * (float)w.size <= (float)(SHARE * THREADS * SAMPLES);
}

/* The key that most blocks say their part of the best ends in equals of, 0 where they do not. */
CAIRN_INLINE uint32_t agreed_tie(u32x4 of) {
    if (!warp_any(of.w != 0)) return 0;
    const uint32_t tied = warp_max(of.w);
    return popcount(warp_ballot(of.w && of.w == tied)) * 2 > CLUSTER ? tied : 0;
}

/* {A key that k scores of the row reach, in all likelihood, or the floor; the sample's greatest}.
 * Where the blocks say much the same, their mean; where few are wanted, the least of them; else what they count. */
CAIRN_INLINE agreed_guess agree(cluster_shared &s, const row_slice &w, u32x4 mine, float wanted,
                                uint32_t floor) {
    if (thread_id() < CLUSTER)
        remote_store_async(remote(shared_addr(&s.guesses[cluster_rank()]), thread_id()), mine,
                           remote(shared_addr(&s.guesses_in), thread_id()));
    mbarrier_wait_cluster(shared_addr(&s.guesses_in), 0);
    u32x4 of = lane_id() < CLUSTER ? s.guesses[lane_id()] : u32x4{EVERY, 0, 0, 0};
    const uint32_t least = warp_min(of.x), each = of.x == EVERY ? least : of.x;
    const uint32_t more = lane_id() < CLUSTER ? each - least : 0u; /* of narrow rows thousands share a key */
    const uint32_t mean = least + (warp_all(more < 1u << 28) ? warp_sum(more) / CLUSTER : warp_sum(more / CLUSTER));
    const uint32_t alone = warp_max(of.y), high = warp_max(of.z), tied = agreed_tie(of);
    const bool alike = warp_all(lane_id() >= CLUSTER || of.z >= mean);
    agreed_guess guess = {{0, 0}, key_region::even(2 * SHARE), tied >= max_of(floor, alone) ? tied : 0};
    if (least && least != EVERY) {
        if (alike || guess.tied) guess.keys.low = mean;
        else if (popcount(warp_ballot(lane_id() < CLUSTER && of.z >= alone)) == 1)
            guess = only_guess(w, of.z >= alone, wanted, alone);
        else if (few_wanted(w, wanted) && alone <= least) guess.keys.low = least;
        else guess = count_guesses(s, w, wanted, alone);
    }
    guess.keys.low = max_of(max_of(floor, alone), guess.keys.low);
    guess.keys.high = max_of(guess.keys.low, high);
    return guess;
}

/* ---- a slice again, item by item ----------------------------------------------------------- */

/* Of the tiles on the chip, this thread's items with keys that reach one bound and another. */
struct thread_bits { reach_bits of[1 + STAGES]; };

/* How many of this thread's items reach two keys, and which: of those on the chip if they are given (`first` is the
 * tile behind them), of all others read once more. */
struct slice_scan { thread_bits bits; uint32_t low, high; };
CAIRN_INLINE slice_scan scan_slice(const thread_bits &given, int first, uint32_t low, uint32_t high) {
    slice_scan scan = {};
    const int tiles = kept_slice().tiles;
    if (first) {
        scan.bits = given;
#pragma unroll
        for (int i = 0; i <= STAGES; i++) {
            scan.low += (uint32_t)popcount(given.of[i].low);
            scan.high += (uint32_t)popcount(given.of[i].high);
        }
    }
#pragma unroll 1
    for (int t = first; t < tiles; t++) {
        const reach_bits bits = reach_again(t, low, high);
        if (t == 0) scan.bits.of[0] = bits;
        if (STAGES && t == 1) scan.bits.of[STAGES] = bits;
        scan.low += (uint32_t)popcount(bits.low);
        scan.high += (uint32_t)popcount(bits.high);
    }
    return scan;
}

/* The candidates on the chip: items with a key of at least `low`; and, unless it is 0, of at least `high`. */
CAIRN_INLINE thread_bits find_candidates(tile_data &held, uint32_t low, uint32_t high) {
    thread_bits mine = {};
    mine.of[0].low = held_bits(held, 0, low);
    if (high) mine.of[0].high = held_bits(held, 0, high);
    if (STAGES) {
        copy_async_wait<0>();
#pragma unroll
        for (int j = 0; j < VECTORS; j++) held.raw[j] = *staged_vector(j);
        mine.of[STAGES].low = held_bits(held, 1, low);
        if (high) mine.of[STAGES].high = held_bits(held, 1, high);
    }
    return mine;
}

/* The items of tile t up to element `cut`, one bit each. */
CAIRN_INLINE uint32_t bits_up_to(int t, int cut) {
    const int left = cut - t / TILES * SPAN, vector = left / VECTOR, lane = vector % WARP;
    const int before = vector / WARP - (warp_id() * TILES + t % TILES) * VECTORS; /* of this run */
    if (left < 0 || before < 0) return 0;
    const int items = before * VECTOR +
                      (lane_id() < lane ? VECTOR : lane_id() == lane ? left % VECTOR + 1 : 0);
    return items >= ITEMS ? EVERY : (1u << items) - 1;
}

/* This thread's items of tile t; `mine` has the bits of the tiles on the chip. */
CAIRN_INLINE reach_bits visited_bits(const thread_bits &mine, int t, uint32_t low, uint32_t high) {
    if (t > STAGES) return reach_again(t, low, high);
    return STAGES && t == 1 ? mine.of[STAGES] : mine.of[0];
}

/* How many keys a block sends that has so many candidates, but for some behind them that fill a vector, for each store
 * takes as long: of too many, which are not selected from, a few. */
CAIRN_INLINE uint32_t sent_of(uint32_t candidates, uint32_t most) {
    return candidates <= most ? candidates : min_of(most, (uint32_t)min_of(SHARE, THREADS));
}

/* Puts the items that this thread's bits name from place `at` on, as far as `most`: all vectors in turn, each lane
 * from another on, lest lanes whose places are as many apart as there are banks wait for each other. */
CAIRN_INLINE void put_many(cluster_shared &s, int t, uint32_t bits, uint32_t at, uint32_t most) {
#pragma unroll 4
    for (int j = 0; j < VECTORS; j++) {
        const int v = (int)((uint32_t)(j + lane_id()) % VECTORS), element = vector_element(t, v);
        const uint32_t own = bits >> (v * VECTOR);
        uint32_t place = at + (uint32_t)popcount(bits & ((1u << (v * VECTOR)) - 1));
#pragma unroll
        for (int c = 0; c < VECTOR; c++) {
            const uint32_t is = own >> c & 1u;
            if (is && place < most) s.elements[place] = element + c;
            place += is;
        }
    }
}

/* Lists the candidates, which reach `low` and not `high`, in any order, as many as the region takes:
 * elements and keys; the keys go to the first block too. How many there are in `placed`, which was
 * 0. Ends with a barrier but for the keys. */
CAIRN_INLINE void place(cluster_shared &s, const row_slice &w, const thread_bits &mine, uint32_t low,
                        uint32_t high, key_region regions, uint32_t &placed) {
    const uint32_t start = shuffle(regions.start, cluster_rank()), most = shuffle(regions.size, cluster_rank());
    const shared_addr there = remote(shared_addr(&s.keys[start]), 0);
    const shared_addr barrier = remote(shared_addr(&s.keys_in), 0);
#pragma unroll 1
    for (int t = 0; t < w.tiles; t++) {
        const reach_bits reach = visited_bits(mine, t, low, high);
        uint32_t bits = reach.low & ~reach.high, at = 0;
        const uint32_t count = (uint32_t)popcount(bits), end = warp_scan(count);
        if (lane_id() == WARP - 1) at = atomic_add(&placed, end);
        at = shuffle(at, WARP - 1) + end - count;
        if (shuffle(end, WARP - 1) > ITEMS * WARP / 4) {
            put_many(s, t, bits, at, most);
            continue;
        }
#pragma unroll 1
        for (; bits && at < most; bits &= bits - 1, at++)
            s.elements[at] = item_element(t, find_first_set(bits) - 1);
    }
    block_sync();
    const uint32_t count = sent_of(placed, most);
    const score_t *base = w.base;
    uint32_t at = (uint32_t)thread_id();
#pragma unroll 1
    for (; at + THREADS < count; at += 2 * THREADS) { /* two loads at once */
        const score_t one = load_constant(base + s.elements[at]), two = load_constant(base + s.elements[at + THREADS]);
        s.own[at] = topk_key(one), s.own[at + THREADS] = topk_key(two);
    }
    if (at < count) s.own[at] = topk_key(load_constant(base + s.elements[at]));
    warp_sync(); /* a warp sends what it has written itself */
#pragma unroll 1
    for (uint32_t i = (uint32_t)(lane_id() / 8 * THREADS + warp_id() * WARP + lane_id() % 8 * 4); i < count;
         i += 4 * THREADS)
        remote_store_async(there + i * 4, *(const u32x4 *)&s.own[i], barrier);
}

/* What a block has chosen: everything over `key`, and of those equal to it what lies at or before
 * element `cut`; from the list of candidates, or from the bits of all that reach it, exceed it. */
struct chosen_items { bool listed; uint32_t key; int cut; };

/* Item i of the candidates: whether it is chosen or, with `equals`, equal to the key, and lies in
 * the map, of which bit 0 is element `first`; which bit. */
struct mapped_item { bool is; int bit, element; };
CAIRN_INLINE mapped_item map_listed(const cluster_shared &s, int i, int first, int elements,
                                    chosen_items of, bool equals) {
    const uint32_t key = s.own[i];
    const int e = s.elements[i], bit = e - first;
    const bool is = equals ? key == of.key : key > of.key || (key == of.key && e <= of.cut);
    return {is && bit >= 0 && bit < elements, bit, e};
}

/* Marks them in the map. */
CAIRN_INLINE void mark_listed(cluster_shared &s, int first, int elements, chosen_items of,
                              bool equals) {
    const int count = (int)s.count[0];
#pragma unroll 1
    for (int i = thread_id(); i < count; i += THREADS) {
        const mapped_item item = map_listed(s, i, first, elements, of, equals);
        if (item.is) atomic_or(&s.map[item.bit / 32], 1u << (item.bit & 31));
    }
}

/* Puts the chosen ones into the list, each behind those marked before it. */
CAIRN_INLINE void put_listed(const cluster_shared &s, int first, int elements, chosen_items of,
                             const uint32_t *before, int32_t *list) {
    const int count = (int)s.count[0];
#pragma unroll 1
    for (int i = thread_id(); i < count; i += THREADS) {
        const mapped_item item = map_listed(s, i, first, elements, of, false);
        const int word = item.bit / 32;
        if (item.is)
            list[before[word] + (uint32_t)popcount(s.map[word] & ((1u << (item.bit & 31)) - 1))] =
                item.element;
    }
}

/* Marks the slice's items by their bits. The lanes that have a word's put them together: where most are marked, as
 * of equal scores, they would wait for each other at the word. */
CAIRN_INLINE void mark_bits(cluster_shared &s, int tile, int tiles, const thread_bits &mine,
                            chosen_items of, bool equals) {
    constexpr int LANES = WARP / VECTOR;
#pragma unroll 1
    for (int t = tile; t < tile + tiles; t++) {
        const reach_bits reach = visited_bits(mine, t, of.key, of.key + 1);
        const uint32_t between = reach.low & ~reach.high;
        const uint32_t bits = equals ? between : reach.high | (between & bits_up_to(t, of.cut));
        if (!warp_any(bits != 0)) continue;
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            uint32_t word = (bits >> (v * VECTOR) & ((1u << VECTOR) - 1)) << (lane_id() % LANES * VECTOR);
#pragma unroll
            for (int m = 1; m < LANES; m *= 2) word |= shuffle_xor(word, m);
            if (lane_id() % LANES == 0 && word) s.map[vector_element(t - tile, v) / WARP] = word;
        }
    }
}

/* Numbers the marked items, of which `done` came before, for each of this thread's words, and says
 * how many come before each word. */
struct map_words { int first, end; uint32_t at, count; };
CAIRN_INLINE map_words number_words(cluster_shared &s, int words, uint32_t *before,
                                    uint32_t &done) {
    const int each = ceil_div(words, THREADS), first = thread_id() * each;
    map_words mine = {first, min_of(first + each, words), 0, 0};
#pragma unroll 1
    for (int i = mine.first; i < mine.end; i++) mine.count += (uint32_t)popcount(s.map[i]);
    const uint32_t end = warp_scan(mine.count);
    if (lane_id() == WARP - 1) s.totals[0][warp_id()] = end;
    block_sync();
    const uint32_t total = lane_id() < WARPS ? s.totals[0][lane_id()] : 0u;
    mine.at = warp_sum(lane_id() < warp_id() ? total : 0u) + end - mine.count + done;
    done += warp_sum(total);
    uint32_t at = mine.at;
#pragma unroll 1
    for (int i = mine.first; i < mine.end; i++) {
        before[i] = at;
        at += (uint32_t)popcount(s.map[i]);
    }
    return mine;
}

/* Puts the marked items into the list. Words next to each other go to several warps. */
CAIRN_INLINE void put_words(const cluster_shared &s, int first, int words, const uint32_t *before,
                            int32_t *list) {
    const uint32_t below = (1u << lane_id()) - 1;
#pragma unroll 1
    for (int base = 0; base < words; base += WARP * WARPS) {
        const int own = base + lane_id() * WARPS + (warp_id() + lane_id()) % WARPS;
        const uint32_t word = own < words ? s.map[own] : 0;
#pragma unroll 1
        for (uint32_t votes = warp_ballot(word != 0); votes; votes &= votes - 1) {
            const int lane = find_first_set(votes) - 1, i = shuffle(own, lane);
            const uint32_t bits = shuffle(word, lane);
            if (bits >> lane_id() & 1u)
                list[before[i] + (uint32_t)popcount(bits & below)] = first + i * 32 + lane_id();
        }
    }
}

/* Leaves in s.cut the marked item of number `last`, if it lies in this thread's words. */
CAIRN_INLINE void cut_words(cluster_shared &s, int first, map_words mine, uint32_t last) {
    uint32_t at = mine.at;
    if (last < at || last >= at + mine.count) return;
#pragma unroll 1
    for (int i = mine.first; i < mine.end; i++)
#pragma unroll 1
        for (uint32_t bits = s.map[i]; bits; bits &= bits - 1)
            if (at++ == last) s.cut = first + i * 32 + find_first_set(bits) - 1;
}

/* Writes the elements of the chosen items into the list, which has room for k, in ascending order,
 * how many; or, when `ties` is not EVERY, leaves in s.cut which of those equal to the key is the
 * last of so many. The map is clear, and is again after the latter. */
CAIRN_INLINE uint32_t visit_items(cluster_shared &s, const row_slice &w, const thread_bits &mine,
                                  chosen_items of, uint32_t ties, int32_t *list) {
    uint32_t *before = &s.keys[ROOM - BINS], done = 0;
#pragma unroll 1
    for (int tile = 0; tile < w.tiles; tile += MAP_TILES) {
        const int tiles = min_of(MAP_TILES, w.tiles - tile), first = tile * TILE;
        block_sync();
        if (of.listed) mark_listed(s, first, tiles * TILE, of, ties != EVERY);
        else mark_bits(s, tile, tiles, mine, of, ties != EVERY);
        block_sync();
        const map_words words = number_words(s, tiles * (TILE / 32), before, done);
        block_sync();
        if (ties != EVERY) cut_words(s, first, words, ties - 1);
        else if (of.listed) put_listed(s, first, tiles * TILE, of, before, list);
        else put_words(s, first, tiles * (TILE / 32), before, list);
        if (tile + tiles >= w.tiles && ties == EVERY) break;
        block_sync();
        clear_words(s.map);
    }
    block_sync();
    return done;
}
