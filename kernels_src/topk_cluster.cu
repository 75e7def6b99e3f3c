/* topk of long rows by clusters (the contract is in runtime.h): CLUSTER blocks a row, each with a
 * slice of it on the chip.
 *
 * Route      "cluster", sm_90 and up
 *            1. Every block finds a key that its part of k scores reach, from the maxima of groups
 *               of its scores; the least of these is reached by k scores of the row.
 *            2. Every block sends the keys that reach it to the first, which selects the k-th.
 *               When there are too many, all blocks count theirs in bins over what range is left,
 *               until few enough lie in the bin of the k-th.
 *            3. Knowing the k-th key and how many of those equal to it are taken, each block marks
 *               its own chosen scores in a bit map and writes them where the blocks before it end.
 * Constants  CAIRN_SCORE_TYPE  1 f32, 2 f16, 3 bf16 (cairn_type)
 *            CAIRN_THREADS, CAIRN_ITEMS  a tile is their product; at most 32 items
 *            CAIRN_CLUSTER  blocks a row, a power of two up to 16
 *            CAIRN_STAGES  tiles kept in shared memory: 0 or 1, which takes up to 227 KiB
 *            CAIRN_CAPACITY  keys the first block can select from
 * Launch     grid rows x CLUSTER, block THREADS, shared memory as topk_cuda.c computes it
 * Oracle     tests/topk_test.c sorts
 * matrix: arch>=90 CAIRN_SCORE_TYPE=1 CAIRN_THREADS=512 CAIRN_ITEMS=16 CAIRN_CLUSTER=16 CAIRN_STAGES=0
 * matrix: arch>=90 CAIRN_SCORE_TYPE=2 CAIRN_THREADS=512 CAIRN_ITEMS=16 CAIRN_CLUSTER=4 CAIRN_STAGES=0
 * matrix: arch>=90 CAIRN_SCORE_TYPE=1 CAIRN_THREADS=1024 CAIRN_ITEMS=32 CAIRN_CLUSTER=4 CAIRN_STAGES=0 */
#include "common.cuh"
#include "topk.cuh"
#include "topk_slice.cuh"

#if CAIRN_ARCH >= 900

#define BINS 2048
#define CAPACITY CAIRN_CAPACITY
#define REGION (CAPACITY / CLUSTER) /* of which each block may send so many */
#define LIST 128                    /* keys that are ranked by comparing all pairs */
#define MAP_WORDS CAPACITY          /* of the bit map: a window of the slice */
#define MAP_TILES (MAP_WORDS * 32 / TILE)
#define SORT_MAX 4096
#define GROUPS 4
#define EVERY 0xffffffffu

struct key_range { uint32_t low, high; };
struct bin_found { uint32_t bin, above, inside; }; /* scores in greater bins, in the bin */

/* What a block needs to write its part: everything over `key`, and of those equal to it the first
 * `ties` (EVERY: all), from output slot `offset` on. `found` is written in all by the cluster; EVERY
 * says that there were too many keys to select from. */
struct verdict { uint32_t key, offset, ties, found; };

struct cluster_shared {
    alignas(16) uint32_t keys[CAPACITY]; /* at the first block; later every block's bit map */
    alignas(16) uint32_t own[REGION];
    alignas(16) uint32_t bins[BINS];
    alignas(16) uint32_t sums[BINS / CLUSTER]; /* over the cluster, this block's part of the bins */
    alignas(16) u32x4 told;                    /* the verdict */
    alignas(16) u32x2 bounds[CLUSTER], chosen[CLUSTER]; /* each block's {bound, most}, {over, equal} */
    uint32_t counts[CLUSTER], parts[CLUSTER], over[CLUSTER], equal[CLUSTER];
    uint32_t totals[2][WARP], list[LIST];
    topk_out out;
    bin_found found;
    uint32_t count, listed, key, ties;
    int32_t cut;
    alignas(8) uint64_t bounds_in, counts_in, keys_in, verdict_in, chosen_in;
};
struct staged_shared {
    slice_stage stage;
    cluster_shared s;
    alignas(16) uint64_t pairs[SORT_MAX]; /* to be sorted: not there when the order is by position */
};

CAIRN_INLINE void begin_barriers(cluster_shared &s) {
    uint64_t *const all[5] = {&s.bounds_in, &s.counts_in, &s.keys_in, &s.verdict_in, &s.chosen_in};
#pragma unroll
    for (int i = 0; i < 5; i++) mbarrier_init(shared_addr(all[i]), 1);
    mbarrier_arrive_expect(shared_addr(&s.bounds_in), CLUSTER * 8);
    mbarrier_arrive_expect(shared_addr(&s.counts_in), CLUSTER * 4);
    mbarrier_arrive_expect(shared_addr(&s.verdict_in), 16);
    mbarrier_arrive_expect(shared_addr(&s.chosen_in), CLUSTER * 8);
    s.count = 0;
    fence_mbarrier_init();
}

/* Before keys are sent a second time. */
CAIRN_INLINE void begin_again(cluster_shared &s) {
    s.count = 0;
    mbarrier_arrive_expect(shared_addr(&s.verdict_in), 16);
    if (cluster_rank() == 0) mbarrier_arrive_expect(shared_addr(&s.counts_in), CLUSTER * 4);
}

CAIRN_INLINE void clear_bins(cluster_shared &s) {
    for (int i = thread_id() * 4; i < BINS; i += THREADS * 4) *(u32x4 *)&s.bins[i] = {0, 0, 0, 0};
}

/* The bin that holds the need-th largest, of the first `bins`; inside is 0 when there are fewer. */
template <int bins> CAIRN_INLINE bin_found find_bin(cluster_shared &s, uint32_t need) {
    constexpr int each = bins / THREADS;
    const int top = bins - 1 - thread_id() * each;
    uint32_t mine = 0;
#pragma unroll
    for (int i = 0; i < each; i++) mine += s.bins[top - i];
    uint32_t total = warp_sum(mine);
    if (lane_id() == 0) s.totals[0][warp_id()] = total;
    if (thread_id() == 0) s.found = {0, 0, 0};
    block_sync();
    uint32_t above = warp_sum(lane_id() < warp_id() ? s.totals[0][lane_id()] : 0u);
    if (above < need && above + total >= need) {
        above += warp_scan(mine) - mine;
        if (above < need && above + mine >= need) {
            int bin = top;
#pragma unroll 1
            while (above + s.bins[bin] < need) above += s.bins[bin--];
            s.found = {(uint32_t)bin, above, s.bins[bin]};
        }
    }
    block_sync();
    return s.found;
}

/* ---- 1. the bound ------------------------------------------------------------------------------ */

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
    if (low == EVERY) return {0, high};
    constexpr int log2_bins = THREADS == 1024 ? 10 : THREADS == 512 ? 9 : 7;
    const int shift = max_of(0, 32 - log2_bins - leading_zeros(high - low));
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
        if (g < groups && keys[g] >= low) atomic_add(&s.bins[(keys[g] - low) >> shift], 1u);
    block_sync();
    bin_found at = find_bin<THREADS>(s, (uint32_t)quota);
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

/* ---- 2. the k-th key --------------------------------------------------------------------------- */

/* Where this thread's `mine` of the block's go, counted in s.count. */
CAIRN_INLINE uint32_t take_places(cluster_shared &s, uint32_t mine) {
    uint32_t end = warp_scan(mine), at = 0;
    if (lane_id() == WARP - 1 && end) at = atomic_add(&s.count, end);
    return shuffle(at, WARP - 1) + end - mine;
}

/* This thread's candidates of the first two tiles: which items, and where in s.own their keys are. */
struct thread_keys { uint32_t bits[2], at[2]; };

/* Puts the slice's keys in the range into s.own, as far as they fit, and counts them. While the tile
 * is held, no key exceeds the range. */
CAIRN_INLINE thread_keys list_held(cluster_shared &s, const row_slice &w, const tile_data &held,
                                   uint32_t low) {
    uint32_t bits = held_bits(w, held, low), at = take_places(s, (uint32_t)popcount(bits));
    thread_keys mine = {{bits, 0}, {at, 0}};
#pragma unroll
    for (int j = 0; j < VECTORS; j++) {
        score_vector v = bit_cast<score_vector>(held.raw[j]);
#pragma unroll
        for (int c = 0; c < VECTOR; c++)
            if (bits >> (j * VECTOR + c) & 1u) {
                if (at < REGION) s.own[at] = topk_key(v.score[c]);
                at++;
            }
    }
    return mine;
}
CAIRN_INLINE void list_keys(cluster_shared &s, const row_slice &w, key_range range, int tile,
                            thread_keys &mine) {
#pragma unroll 1
    for (int t = tile; t < w.tiles; t++) {
        uint32_t bits = range_bits(w, t, range.low, range.high);
        uint32_t at = take_places(s, (uint32_t)popcount(bits));
        if (t == 1) mine.bits[1] = bits, mine.at[1] = at;
#pragma unroll 1
        for (; bits; bits &= bits - 1, at++)
            if (at < REGION) s.own[at] = item_key(w, t, find_first_set(bits) - 1);
    }
    fence_async();
    block_sync();
}

/* Sends s.own to the first block, or only how many there are when they are too many. */
CAIRN_INLINE void send_keys(cluster_shared &s) {
    const int rank = cluster_rank();
    const uint32_t count = s.count;
    remote_store_async(remote(shared_addr(&s.counts[rank]), 0), count,
                       remote(shared_addr(&s.counts_in), 0));
    if (count && count <= REGION)
        copy_bulk_remote(remote(shared_addr(&s.keys[rank * REGION]), 0), s.own,
                         round_up(count, 4u) * 4, remote(shared_addr(&s.keys_in), 0));
}

/* At the first block: waits for all keys; how many, or EVERY when some block had too many. */
CAIRN_INLINE uint32_t receive_keys(cluster_shared &s, uint32_t parity) {
    mbarrier_wait_cluster(shared_addr(&s.counts_in), parity);
    uint32_t count = lane_id() < CLUSTER ? s.counts[lane_id()] : 0;
    uint32_t bytes = warp_sum(count <= REGION ? round_up(count, 4u) * 4 : 0u);
    if (thread_id() == 0) mbarrier_arrive_expect(shared_addr(&s.keys_in), bytes);
    mbarrier_wait_cluster(shared_addr(&s.keys_in), parity);
    uint32_t total = warp_sum(count);
    return warp_any(count > REGION) ? EVERY : total;
}

/* Calls f(key or nothing, region) with each region's keys, a warp at a time, all lanes together. */
template <class F> CAIRN_INLINE void visit_keys(cluster_shared &s, F f) {
    constexpr int each = max_of(WARPS / CLUSTER, 1); /* warps a region */
#pragma unroll 1
    for (int b = warp_id() / each; b < CLUSTER; b += WARPS / each) {
        const int count = (int)s.counts[b];
#pragma unroll 1
        for (int first = warp_id() % each * WARP; first < count; first += each * WARP) {
            int i = first + lane_id();
            f(i < count ? s.keys[b * REGION + i] : 0u, i < count, b);
        }
    }
}

/* Puts the need-th of the list into s.key and how many of its equals are needed into s.ties. */
CAIRN_INLINE void rank_list(cluster_shared &s, int count, uint32_t need) {
    if (thread_id() < count) {
        uint32_t mine = s.list[thread_id()], over = 0, equal = 0;
        for (int i = 0; i < count; i++) {
            over += s.list[i] > mine;
            equal += s.list[i] == mine;
        }
        if (over < need && over + equal >= need) {
            s.key = mine;
            s.ties = need - over;
        }
    }
    block_sync();
}

/* Narrows a range of keys to the bin that holds the need-th of its largest. */
CAIRN_INLINE void narrow(key_range &range, uint32_t &need, bin_found at, int shift) {
    range.low += at.bin << shift;
    range.high = min_of(range.high, range.low + ((1u << shift) - 1));
    need -= at.above;
}
CAIRN_INLINE int range_shift(key_range range) {
    return max_of(0, 32 - 11 - leading_zeros(range.high - range.low));
}

/* At the first block: the need-th of the received keys in the range, of which there are more: into
 * s.key, s.ties. */
CAIRN_INLINE void select_key(cluster_shared &s, key_range range, uint32_t need) {
#pragma unroll 1
    for (;;) {
        const int shift = range_shift(range);
        clear_bins(s);
        if (thread_id() == 0) s.listed = 0;
        block_sync();
        visit_keys(s, [&](uint32_t key, bool is, int) {
            if (is && key - range.low <= range.high - range.low)
                atomic_add(&s.bins[(key - range.low) >> shift], 1u);
        });
        block_sync();
        bin_found at = find_bin<BINS>(s, need);
        narrow(range, need, at, shift);
        if (range.low == range.high || need == at.inside) { /* in the latter case: all of them */
            if (thread_id() == 0) s.key = range.low, s.ties = need;
            block_sync();
            return;
        }
        if (at.inside <= LIST) {
            visit_keys(s, [&](uint32_t key, bool is, int) {
                if (is && key - range.low <= range.high - range.low)
                    s.list[atomic_add(&s.listed, 1u)] = key;
            });
            block_sync();
            rank_list(s, (int)at.inside, need);
            return;
        }
    }
}

/* Lane b gets block b's verdict from how many scores it holds over the key and equal to it. */
CAIRN_INLINE verdict share_out(uint32_t key, uint32_t need, uint32_t over, uint32_t equal) {
    uint32_t equal_end = warp_scan(equal), over_end = warp_scan(over), before = equal_end - equal;
    uint32_t left = need - min_of(need, before);
    return {key, over_end - over + min_of(before, need), left >= equal ? EVERY : left,
            shuffle(over_end, WARP - 1) + min_of(shuffle(equal_end, WARP - 1), need)};
}

CAIRN_INLINE void tell(cluster_shared &s, verdict v, int rank) {
    remote_store_async(remote(shared_addr(&s.told), rank), bit_cast<u32x4>(v),
                       remote(shared_addr(&s.verdict_in), rank));
}

/* At the first block: selects the need-th key of all that were sent and tells every block. */
CAIRN_INLINE void decide(cluster_shared &s, key_range range, uint32_t need, uint32_t parity) {
    const uint32_t total = receive_keys(s, parity);
    if (total == EVERY) {
        if (thread_id() < CLUSTER) tell(s, {0, 0, 0, EVERY}, thread_id());
        return;
    }
    if (thread_id() < CLUSTER) s.over[thread_id()] = s.equal[thread_id()] = 0;
    if (thread_id() == 0) s.key = range.low, s.ties = need;
    if (total > need) select_key(s, range, need);
    else block_sync();
    const uint32_t key = s.key;
    visit_keys(s, [&](uint32_t other, bool is, int b) {
        int over = popcount(warp_ballot(is && other > key));
        int equal = popcount(warp_ballot(is && other == key));
        if (lane_id() == 0 && over) atomic_add(&s.over[b], (uint32_t)over);
        if (lane_id() == 0 && equal) atomic_add(&s.equal[b], (uint32_t)equal);
    });
    block_sync();
    if (warp_id() == 0) {
        bool is = lane_id() < CLUSTER;
        verdict v = share_out(key, s.ties, is ? s.over[lane_id()] : 0u,
                              is ? s.equal[lane_id()] : 0u);
        if (parity) v.ties = s.ties; /* the blocks still have to share it out */
        if (is) tell(s, v, lane_id());
    }
}

/* ---- 2b. more keys than the first block can take ----------------------------------------------- */

/* Counts in the bins; lanes of one bin together, twice, so that equal scores do not queue. */
CAIRN_INLINE void count_bin(cluster_shared &s, uint32_t bin, bool is) {
#pragma unroll
    for (int turn = 0; turn < 2; turn++) {
        uint32_t votes = warp_ballot(is);
        if (!votes) return;
        const int leader = find_first_set(votes) - 1;
        const uint32_t first = shuffle(bin, leader), same = warp_ballot(is && bin == first);
        if (lane_id() == leader) atomic_add(&s.bins[bin], (uint32_t)popcount(same));
        is = is && !(same >> lane_id() & 1u);
    }
    if (is) atomic_add(&s.bins[bin], 1u);
}

CAIRN_INLINE void count_vector(cluster_shared &s, u32x4 raw, key_range range, int shift) {
    score_vector v = bit_cast<score_vector>(raw);
#pragma unroll
    for (int c = 0; c < VECTOR; c++) {
        uint32_t key = topk_key(v.score[c]) - range.low;
        count_bin(s, key >> shift, key <= range.high - range.low);
    }
}

/* Bins of the cluster's scores in the range; each block gets its part of them in s.sums, every
 * block the parts' totals in s.parts. */
CAIRN_INLINE void count_cluster(cluster_shared &s, const row_slice &w, key_range range,
                                int shift) {
    constexpr int part = BINS / CLUSTER;
    const int rank = cluster_rank();
    clear_bins(s);
    block_sync();
#pragma unroll 1
    for (int t = 0; t < w.tiles; t++)
#pragma unroll 1
        for (int j = 0; j < VECTORS; j++) count_vector(s, load_again(w, t, j), range, shift);
    cluster_sync();
    uint32_t sum = 0;
#pragma unroll 1
    for (int i = thread_id(); i < part; i += THREADS) {
        uint32_t here = 0;
#pragma unroll
        for (int b = 0; b < CLUSTER; b++)
            here += remote_load<uint32_t>(remote(shared_addr(&s.bins[rank * part + i]), b));
        s.sums[i] = here;
        sum += here;
    }
    sum = warp_sum(sum);
    if (lane_id() == 0) s.totals[1][warp_id()] = sum;
    block_sync();
    sum = warp_sum(lane_id() < WARPS ? s.totals[1][lane_id()] : 0u);
    if (thread_id() < CLUSTER)
        remote_store(remote(shared_addr(&s.parts[rank]), thread_id()), sum);
    cluster_sync();
}

/* Narrows the range to the bin of the need-th largest and returns how many are in it. The range's
 * least key has no bin: rows with many of it are common, and it is what is left over. */
CAIRN_INLINE uint32_t narrow_cluster(cluster_shared &s, const row_slice &w, key_range &range,
                                     uint32_t &need) {
    constexpr int part = BINS / CLUSTER;
    key_range over = {range.low + 1, range.high};
    const int shift = range_shift(over);
    count_cluster(s, w, over, shift);
    uint32_t mine = lane_id() < CLUSTER ? s.parts[CLUSTER - 1 - lane_id()] : 0;
    uint32_t end = warp_scan(mine);
    uint32_t votes = warp_ballot(end >= need && end - mine < need);
    if (!votes) {
        need -= shuffle(end, WARP - 1);
        range.high = range.low;
        return 0;
    }
    const int lane = find_first_set(votes) - 1, owner = CLUSTER - 1 - lane;
    const uint32_t above = shuffle(end - mine, lane);
    clear_bins(s);
    block_sync();
#pragma unroll 1
    for (int i = thread_id(); i < part; i += THREADS)
        s.bins[i] = remote_load<uint32_t>(remote(shared_addr(&s.sums[i]), owner));
    block_sync();
    bin_found at = find_bin<BINS>(s, need - above);
    at.bin += (uint32_t)(owner * part);
    at.above += above;
    narrow(over, need, at, shift);
    range = over;
    return at.inside;
}

/* Every block's share when only the key and the ties needed are known. */
CAIRN_INLINE verdict share_alone(cluster_shared &s, const row_slice &w, uint32_t key,
                                 uint32_t need) {
    uint32_t over = 0, reach = 0;
#pragma unroll 1
    for (int t = 0; t < w.tiles; t++) {
        uint32_t bits = range_bits(w, t, key, EVERY);
        reach += (uint32_t)popcount(bits);
        over += (uint32_t)popcount(bits & ~range_bits(w, t, key, key));
    }
    over = warp_sum(over);
    reach = warp_sum(reach);
    block_sync();
    if (lane_id() == 0) {
        s.totals[0][warp_id()] = over;
        s.totals[1][warp_id()] = reach;
    }
    block_sync();
    over = warp_sum(lane_id() < WARPS ? s.totals[0][lane_id()] : 0u);
    reach = warp_sum(lane_id() < WARPS ? s.totals[1][lane_id()] : 0u);
    if (thread_id() < CLUSTER)
        remote_store_async(remote(shared_addr(&s.chosen[cluster_rank()]), thread_id()),
                           u32x2{over, reach - over},
                           remote(shared_addr(&s.chosen_in), thread_id()));
    mbarrier_wait_cluster(shared_addr(&s.chosen_in), 0);
    u32x2 of = lane_id() < CLUSTER ? s.chosen[lane_id()] : u32x2{0, 0};
    verdict v = share_out(key, need, of.x, of.y);
    return {key, shuffle(v.offset, cluster_rank()), shuffle(v.ties, cluster_rank()), v.found};
}

/* The row's k-th key and this block's share of what is chosen. On the way, `mine` becomes this
 * thread's candidates; listed says that they stand in s.own. */
CAIRN_INLINE verdict find_verdict(cluster_shared &s, const row_slice &w, const tile_data &held,
                                  key_range range, uint32_t need, thread_keys &mine, bool &listed) {
    uint32_t parity = 0;
    listed = false;
    if (range.low < range.high) {
        mine = list_held(s, w, held, range.low);
#pragma unroll 1
        for (;; parity = 1) {
            list_keys(s, w, range, parity ? 0 : 1, mine);
            if (thread_id() == 0) send_keys(s);
            if (cluster_rank() == 0) decide(s, range, need, parity);
            mbarrier_wait_cluster(shared_addr(&s.verdict_in), parity);
            verdict v = bit_cast<verdict>(s.told);
            if (v.found != EVERY) {
                if (parity == 0) {
                    listed = w.tiles <= 2;
                    return v;
                }
                range.low = v.key;
                need = v.ties;
                break;
            }
#pragma unroll 1
            while (narrow_cluster(s, w, range, need) > REGION && range.low < range.high) {}
            if (range.low == range.high) break;
            if (thread_id() == 0) begin_again(s);
            block_sync();
        }
    }
    return share_alone(s, w, range.low, need);
}

/* ---- 3. the output ----------------------------------------------------------------------------- */

/* Calls f(number, element) with the slice's elements chosen(t), a tile's items one bit each, in
 * ascending order; how many. */
template <class Chosen, class F>
CAIRN_INLINE uint32_t visit_chosen(cluster_shared &s, const row_slice &w, Chosen chosen, F f) {
    uint32_t *map = s.keys, done = 0;
#pragma unroll 1
    for (int tile = 0; tile < w.tiles; tile += MAP_TILES) {
        const int tiles = min_of(MAP_TILES, w.tiles - tile), words = tiles * (TILE / 32);
        const int each = ceil_div(words, THREADS), mine = thread_id() * each;
        const int end = min_of(mine + each, words);
        block_sync();
#pragma unroll 1
        for (int i = thread_id() * 4; i < words; i += THREADS * 4) *(u32x4 *)&map[i] = {0, 0, 0, 0};
        block_sync();
#pragma unroll 1
        for (int t = tile; t < tile + tiles; t++) {
            uint32_t bits = chosen(t);
#pragma unroll 1
            while (bits) {
                int i = find_first_set(bits) - 1, e = item_element(t - tile, i / VECTOR * VECTOR);
                uint32_t vector = bits >> (i / VECTOR * VECTOR) & ((1u << VECTOR) - 1);
                atomic_or(&map[e / 32], vector << (e & 31));
                bits &= ~(vector << (i / VECTOR * VECTOR));
            }
        }
        block_sync();
        uint32_t count = 0;
#pragma unroll 1
        for (int i = mine; i < end; i++) count += (uint32_t)popcount(map[i]);
        uint32_t at = warp_scan(count);
        if (lane_id() == WARP - 1) s.totals[0][warp_id()] = at;
        block_sync();
        uint32_t total = lane_id() < WARPS ? s.totals[0][lane_id()] : 0u;
        at += warp_sum(lane_id() < warp_id() ? total : 0u) - count + done;
#pragma unroll 1
        for (int i = mine; i < end; i++)
#pragma unroll 1
            for (uint32_t bits = map[i]; bits; bits &= bits - 1)
                f(at++, tile * TILE + i * 32 + find_first_set(bits) - 1);
        done += warp_sum(total);
    }
    return done;
}

/* Descending score, lowest position first: a bitonic sort of (key, ~position). */
CAIRN_INLINE void emit_sorted(uint64_t *pairs, const topk_out &out, int found, int size) {
#pragma unroll 1
    for (int i = found + thread_id(); i < size; i += THREADS) pairs[i] = 0;
    block_sync();
#pragma unroll 1
    for (int length = 2; length <= size; length *= 2)
#pragma unroll 1
        for (int step = length / 2; step > 0; step /= 2) {
#pragma unroll 1
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
#pragma unroll 1
    for (int i = thread_id(); i < found; i += THREADS)
        topk_write(out, i, (int32_t)~(uint32_t)pairs[i]);
}

/* The items of tile t with a key in [low, high]; `low` is at least that of the candidates. */
CAIRN_INLINE uint32_t choose_bits(cluster_shared &s, const row_slice &w, const thread_keys &mine,
                                  bool listed, int t, uint32_t low, uint32_t high) {
    if (!listed) return range_bits(w, t, low, high);
    uint32_t all = t ? mine.bits[1] : mine.bits[0], at = t ? mine.at[1] : mine.at[0], bits = 0;
#pragma unroll 1
    for (; all; all &= all - 1, at++)
        if (s.own[at] - low <= high - low) bits |= all & (0u - all);
    return bits;
}

/* Writes this block's share. When some of its ties are chosen and some not, a first pass finds the
 * last that is. */
CAIRN_INLINE void emit(cluster_shared &s, const topk_params &p, const row_slice &w,
                       const thread_keys &mine, bool listed, verdict v, uint64_t *pairs) {
    const topk_out &out = s.out;
    const bool partial = v.ties != 0 && v.ties != EVERY;
    int cut = NO_POSITION;
#pragma unroll 1
    for (int pass = partial ? 0 : 1; pass < 2; pass++) {
        if (pass == 1 && partial) cut = s.cut;
        visit_chosen(
            s, w,
            [&](int t) {
                uint32_t high = pass ? EVERY : v.key, low = pass && v.ties == 0 ? v.key + 1 : v.key;
                uint32_t bits = choose_bits(s, w, mine, listed, t, low, high);
                if (cut == NO_POSITION) return bits;
                uint32_t equal = choose_bits(s, w, mine, listed, t, v.key, v.key);
#pragma unroll 1
                for (; equal; equal &= equal - 1)
                    if (item_element(t, find_first_set(equal) - 1) > cut)
                        bits &= ~(equal & (0u - equal));
                return bits;
            },
            [&](uint32_t number, int e) {
                const uint32_t slot = v.offset + number;
                const int32_t position = w.origin + e;
                if (pass == 0) {
                    if (number == v.ties - 1) s.cut = e;
                } else if (!p.sort_size) {
                    topk_write(out, (int)slot, position);
                } else {
                    remote_store(remote(shared_addr(&pairs[slot]), 0),
                                 (uint64_t)topk_key(out.row[position]) << 32 | (uint32_t)~position);
                }
            });
        block_sync();
    }
    if (p.sort_size) {
        cluster_sync();
        if (cluster_rank() == 0) emit_sorted(pairs, out, (int)v.found, p.sort_size);
    }
    if (cluster_rank() == 0)
#pragma unroll 1
        for (int i = (int)v.found + thread_id(); i < p.k; i += THREADS) topk_write_none(out, i);
}

/* A row of at most k candidates, all of them chosen, without reading a score. */
CAIRN_INLINE void emit_all(const topk_params &p, const topk_out &out, int length) {
#pragma unroll 1
    for (int i = thread_id(); i < p.k; i += THREADS)
        if (i < length) topk_write(out, i, i);
        else topk_write_none(out, i);
}

CAIRN_KERNEL(topk_cluster, THREADS, 1024 / THREADS, topk_params) {
    staged_shared &all = shared_as<staged_shared, 227 * 1024>();
    cluster_shared &s = all.s;
    const int r = block_id() / CLUSTER, rank = cluster_rank();
    if (thread_id() == 0) begin_barriers(s);
    cluster_arrive_relaxed();
    topk_range range = topk_row_range(p, r, rank == 0 && thread_id() == 0);
    const score_t *row = (const score_t *)p.scores + (int64_t)r * p.stride + range.start;
    if (range.length <= p.k && !p.finite_only && !p.sort_size) {
        if (rank == 0) emit_all(p, topk_row_out(p, r, row), range.length);
        cluster_wait();
        return;
    }
    const row_slice w = slice_of(row, range.length, rank);
    tile_data held;
    if (thread_id() == 0) s.out = topk_row_out(p, r, row); /* there, not in registers */
    clear_bins(s);
    group_most most = read_slice(w, held);
    u32x2 mine = slice_bound(s, w, most, ceil_div(p.k, CLUSTER));
    cluster_wait(); /* every block has begun and set up its barriers */
    key_range keys = agree(s, mine, p.finite_only ? KEY_MINUS_INFINITY + 1 : 0);
    thread_keys taken = {{0, 0}, {0, 0}};
    bool listed;
    verdict v = find_verdict(s, w, held, keys, (uint32_t)p.k, taken, listed);
    emit(s, p, w, taken, listed, v, all.pairs);
}

#endif
