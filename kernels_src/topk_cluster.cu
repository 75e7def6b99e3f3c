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
 * matrix: arch>=90 CAIRN_SCORE_TYPE=1 CAIRN_THREADS=512 CAIRN_ITEMS=16 CAIRN_CLUSTER=16
 * matrix: + CAIRN_STAGES=0 CAIRN_CAPACITY=8192 */
#include "common.cuh"
#include "topk.cuh"
#include "topk_slice.cuh"

#if CAIRN_ARCH >= 900

#define BINS 2048
#define CAPACITY CAIRN_CAPACITY
#define REGION (CAPACITY / CLUSTER) /* of which each block may send so many */
#define LIST 128                    /* keys that are ranked by comparing all pairs */
#define KEYS (CAPACITY / THREADS)   /* of them a thread */
#define MAP_TILES (BINS * 32 / TILE) /* a window of the slice, as bits where the bins are */
#define SORT_MAX max_of(CAPACITY / 2, 2048) /* chosen that can be sorted */
#define GROUPS 4
#define EVERY 0xffffffffu

struct key_range { uint32_t low, high; };
struct bin_found { uint32_t bin, above, inside; }; /* scores in greater bins, in the bin */

/* What a block needs to write its part: everything over `key`, and of those equal to it the first
 * `ties` (EVERY: all), from output slot `offset` on. `found` is written in all by the cluster; EVERY
 * says that there were too many keys to select from. */
struct verdict { uint32_t key, offset, ties, found; };

struct cluster_shared {
    /* At the first block every block's candidates; at last each block's list of its own share. */
    alignas(16) uint32_t keys[max_of(CAPACITY, 4096)];
    alignas(16) uint32_t own[REGION];    /* this block's candidates in ascending order of position */
    int32_t elements[REGION];            /* which they are */
    alignas(16) uint32_t bins[BINS];
    alignas(16) uint32_t sums[BINS / CLUSTER]; /* over the cluster, this block's part of the bins */
    alignas(16) u32x4 told;                    /* the verdict */
    alignas(16) u32x2 bounds[CLUSTER], chosen[CLUSTER]; /* each block's {bound, most}, {over, equal} */
    uint32_t counts[CLUSTER], parts[CLUSTER], over[CLUSTER], equal[CLUSTER];
    uint32_t totals[2][WARP], list[LIST];
    topk_out out;
    bin_found found;
    uint32_t count, listed, key, ties; /* count: of s.own, or how many there would be */
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
    fence_mbarrier_init();
}

/* Before keys are sent a second time. */
CAIRN_INLINE void begin_again(cluster_shared &s) {
    mbarrier_arrive_expect(shared_addr(&s.verdict_in), 16);
    if (cluster_rank() == 0) mbarrier_arrive_expect(shared_addr(&s.counts_in), CLUSTER * 4);
}

CAIRN_INLINE cluster_shared &cluster_here() { return ((staged_shared *)shared_base())->s; }

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

/* Of the first two tiles, this thread's items with keys that reach one bound and another. */
struct thread_bits { reach_bits of[2]; };

/* Scans the tiles from `tile` on once more: how many items reach two keys, and which. */
struct slice_scan { thread_bits bits; uint32_t low, high; };
CAIRN_INLINE slice_scan scan_slice(int tile, uint32_t low, uint32_t high) {
    const row_slice w = kept_slice();
    slice_scan scan = {{{{0, 0}, {0, 0}}}, 0, 0};
#pragma unroll 1
    for (int t = tile; t < w.tiles; t++) {
        reach_bits bits = tile_bits(w, t, low, high);
        if (t == 0) scan.bits.of[0] = bits;
        if (t == 1) scan.bits.of[1] = bits;
        scan.low += (uint32_t)popcount(bits.low);
        scan.high += (uint32_t)popcount(bits.high);
    }
    return scan;
}

/* The candidates: items with a key of at least `low`. */
CAIRN_INLINE thread_bits find_candidates(const row_slice &w, tile_data &held, uint32_t low) {
    thread_bits mine = {{{held_bits(held, 0, low), 0}, {0, 0}}};
    if (w.tiles < 2) return mine;
    if (STAGES) {
        hold_again(w, 1, held);
        mine.of[1].low = held_bits(held, 1, low);
    } else mine.of[1] = tile_bits(w, 1, low, EVERY);
    return mine;
}

/* What becomes of a chosen score: output, or the first block's list to be sorted. */
CAIRN_INLINE void put(const topk_out &out, bool sorts, uint32_t slot, uint32_t key,
                      int32_t position) {
    uint64_t *pairs = ((staged_shared *)shared_base())->pairs;
    if (!sorts) topk_write(out, (int)slot, position);
    else
        remote_store(remote(shared_addr(&pairs[slot]), 0),
                     (uint64_t)key << 32 | (uint32_t)~position);
}

/* Goes through items of the slice in ascending order, numbered from 0, by a map of bits; how many:
 * PLACE  those that reach `low` and not `high`, into the list unless they are more than REGION;
 * CUT    the same, to leave the element of number `last` in s.cut;
 * WRITE  those that reach `high`, and of the others that reach `low` the ones up to s.cut, into the
 *        list, which then has room for k.
 * `mine` has the first two tiles' bits. */
enum { PLACE, CUT, WRITE };

/* The items of tile t up to element `cut`, one bit each. */
CAIRN_INLINE uint32_t bits_up_to(int t, int cut) {
    const int left = cut - t * TILE, vector = left / VECTOR, lane = vector % THREADS;
    if (left < 0) return 0;
    int items = vector / THREADS * VECTOR;
    items += thread_id() < lane ? VECTOR : thread_id() == lane ? left % VECTOR + 1 : 0;
    return items >= ITEMS ? EVERY : (1u << items) - 1;
}

CAIRN_INLINE uint32_t visited_bits(int mode, const thread_bits &mine, int t, uint32_t low,
                                   uint32_t high, int cut) {
    reach_bits bits = t == 0 ? mine.of[0] : mine.of[1];
    if (t > 1) bits = tile_bits(kept_slice(), t, low, high);
    const uint32_t between = bits.low & ~bits.high;
    return mode == WRITE ? bits.high | (between & bits_up_to(t, cut)) : between;
}

CAIRN_INLINE uint32_t visit_items(cluster_shared &s, const row_slice &w, int mode,
                                  const thread_bits &mine, uint32_t low, uint32_t high,
                                  uint32_t last, int32_t *list) {
    const int cut = s.cut;
    uint32_t *map = s.bins, done = 0;
#pragma unroll 1
    for (int tile = 0; tile < w.tiles; tile += MAP_TILES) {
        const int tiles = min_of(MAP_TILES, w.tiles - tile), words = tiles * (TILE / 32);
        const int each = ceil_div(words, THREADS), first = thread_id() * each;
        const int end = min_of(first + each, words);
        block_sync();
        clear_bins(s);
        block_sync();
#pragma unroll 1
        for (int t = tile; t < tile + tiles; t++) {
            uint32_t bits = visited_bits(mode, mine, t, low, high, cut);
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
        for (int i = first; i < end; i++) count += (uint32_t)popcount(map[i]);
        uint32_t at = warp_scan(count);
        if (lane_id() == WARP - 1) s.totals[0][warp_id()] = at;
        block_sync();
        uint32_t total = lane_id() < WARPS ? s.totals[0][lane_id()] : 0u;
        at += warp_sum(lane_id() < warp_id() ? total : 0u) - count + done;
        done += warp_sum(total);
        if (mode == PLACE && done > REGION) continue;
        if (mode == CUT && (last < at || last >= at + count)) continue;
#pragma unroll 1
        for (int i = first; i < end; i++)
#pragma unroll 1
            for (uint32_t bits = map[i]; bits; bits &= bits - 1, at++) {
                const int e = tile * TILE + i * 32 + find_first_set(bits) - 1;
                if (mode != CUT) list[at] = e;
                else if (at == last) s.cut = e;
            }
    }
    block_sync();
    return done;
}

/* The block's candidates among the first two tiles. */
CAIRN_INLINE uint32_t count_bits(cluster_shared &s, const thread_bits &mine) {
    uint32_t count = (uint32_t)popcount(mine.of[0].low & ~mine.of[0].high) +
                     (uint32_t)popcount(mine.of[1].low & ~mine.of[1].high);
    count = warp_sum(count);
    if (lane_id() == 0) s.totals[1][warp_id()] = count;
    block_sync();
    return warp_sum(lane_id() < WARPS ? s.totals[1][lane_id()] : 0u);
}

/* Puts the candidates' keys into s.own, in order of position, and their number into s.count. */
CAIRN_INLINE void list_keys(cluster_shared &s, const row_slice &w, const thread_bits &mine,
                            key_range range) {
    const uint32_t high = range.high == EVERY ? EVERY : range.high + 1;
    uint32_t count = count_bits(s, mine);
    if (count <= REGION)
        count = visit_items(s, w, PLACE, mine, range.low, high, 0, s.elements);
    if (thread_id() == 0) s.count = count;
    if (count <= REGION)
#pragma unroll 2
        for (uint32_t i = (uint32_t)thread_id(); i < count; i += THREADS)
            s.own[i] = topk_key(w.base[s.elements[i]]);
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

/* What a thread of the first block has of the received keys: chunks of a warp each go round the
 * warps, region by region, so that a warp's are all of one region. */
struct received { uint32_t key[KEYS], valid; };
static_assert(WARPS % CLUSTER == 0, "a warp's keys come from one block");

CAIRN_INLINE received take_received(const cluster_shared &s) {
    const int region = warp_id() % CLUSTER, count = (int)s.counts[region];
    received mine = {{}, 0};
#pragma unroll
    for (int j = 0; j < KEYS; j++) {
        int i = (j * WARPS + warp_id()) / CLUSTER * WARP + lane_id();
        mine.key[j] = 0;
        if (i < count) {
            mine.key[j] = s.keys[region * REGION + i];
            mine.valid |= 1u << j;
        }
    }
    return mine;
}
CAIRN_INLINE bool has_key(const received &mine, int j, key_range range) {
    return (mine.valid >> j & 1u) && mine.key[j] - range.low <= range.high - range.low;
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

CAIRN_INLINE void begin_selecting(cluster_shared &s) {
    clear_bins(s);
    if (thread_id() == 0) s.listed = 0;
    block_sync();
}

/* At the first block: the need-th of the received keys in the range, of which there are more: into
 * s.key, s.ties. */
CAIRN_INLINE void select_key(cluster_shared &s, const received &mine, key_range range,
                             uint32_t need) {
#pragma unroll 1
    for (;;) {
        const int shift = range_shift(range);
#pragma unroll
        for (int j = 0; j < KEYS; j++)
            if (has_key(mine, j, range))
                atomic_add(&s.bins[(mine.key[j] - range.low) >> shift], 1u);
        block_sync();
        bin_found at = find_bin<BINS>(s, need);
        narrow(range, need, at, shift);
        if (range.low == range.high || need == at.inside) { /* in the latter case: all of them */
            if (thread_id() == 0) s.key = range.low, s.ties = need;
            block_sync();
            return;
        }
        if (at.inside <= LIST) {
#pragma unroll
            for (int j = 0; j < KEYS; j++)
                if (has_key(mine, j, range)) s.list[atomic_add(&s.listed, 1u)] = mine.key[j];
            block_sync();
            rank_list(s, (int)at.inside, need);
            return;
        }
        begin_selecting(s);
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
    if (thread_id() < CLUSTER) s.over[thread_id()] = s.equal[thread_id()] = 0;
    if (thread_id() == 0) s.key = range.low, s.ties = need;
    begin_selecting(s);
    const uint32_t total = receive_keys(s, parity);
    if (total == EVERY) {
        if (thread_id() < CLUSTER) tell(s, {0, 0, 0, EVERY}, thread_id());
        return;
    }
    const received mine = take_received(s);
    if (total > need) select_key(s, mine, range, need);
    const uint32_t key = s.key;
    uint32_t over = 0, equal = 0;
#pragma unroll
    for (int j = 0; j < KEYS; j++) {
        over += mine.key[j] > key;
        equal += (mine.valid >> j & 1u) && mine.key[j] == key;
    }
    over = warp_sum(over);
    equal = warp_sum(equal);
    if (lane_id() == 0) {
        atomic_add(&s.over[warp_id() % CLUSTER], over);
        atomic_add(&s.equal[warp_id() % CLUSTER], equal);
    }
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

/* Adds `count` to a lane's bin; lanes of one bin together, twice, so that equal ones do not queue. */
CAIRN_INLINE void count_together(cluster_shared &s, uint32_t bin, bool is, uint32_t count) {
#pragma unroll 1
    for (int turn = 0; turn < 2; turn++) {
        const uint32_t votes = warp_ballot(is);
        if (!votes) return;
        const int leader = find_first_set(votes) - 1;
        const uint32_t first = shuffle(bin, leader), same = warp_ballot(is && bin == first);
        if (lane_id() == leader) atomic_add(&s.bins[bin], count * (uint32_t)popcount(same));
        is = is && bin != first;
    }
    if (is) atomic_add(&s.bins[bin], count);
}

/* Counts a vector of each lane. In ramps and among equals a lane's scores all share a bin. */
CAIRN_INLINE void count_vector(cluster_shared &s, u32x4 raw, key_range range, int shift) {
    score_vector v = bit_cast<score_vector>(raw);
    const uint32_t span = range.high - range.low;
    uint32_t bins[VECTOR];
    bool any = false, same = true;
#pragma unroll
    for (int c = 0; c < VECTOR; c++) {
        uint32_t key = topk_key(v.score[c]) - range.low;
        bins[c] = key <= span ? key >> shift : EVERY;
        any |= bins[c] != EVERY;
        same &= bins[c] == bins[0];
    }
    if (!warp_any(any)) return;
    if (warp_all(same)) {
        count_together(s, bins[0], any, VECTOR);
        return;
    }
#pragma unroll
    for (int c = 0; c < VECTOR; c++)
        if (bins[c] != EVERY) atomic_add(&s.bins[bins[c]], 1u);
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
        for (int j = 0; j < VECTORS; j += 2) {
            u32x4 a = load_again(w, t, j), b = load_again(w, t, j + 1);
            count_vector(s, a, range, shift);
            count_vector(s, b, range, shift);
        }
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

/* The bin of a range that holds its need-th largest. The range's least key has no bin: rows with
 * many of it are common, and it is what is left over. */
struct bin_search { key_range range; uint32_t need, inside; };
CAIRN_INLINE bin_search narrow_cluster(key_range range, uint32_t need) {
    cluster_shared &s = cluster_here();
    constexpr int part = BINS / CLUSTER;
    key_range over = {range.low + 1, range.high};
    const int shift = range_shift(over);
    count_cluster(s, kept_slice(), over, shift);
    uint32_t mine = lane_id() < CLUSTER ? s.parts[CLUSTER - 1 - lane_id()] : 0;
    uint32_t end = warp_scan(mine);
    uint32_t votes = warp_ballot(end >= need && end - mine < need);
    if (!votes) {
        return {{range.low, range.low}, need - shuffle(end, WARP - 1), 0};
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
    return {over, need, at.inside};
}

/* Every block's share when only the key and the ties needed are known. `mine` gets this thread's
 * items that reach the key, that exceed it. */
CAIRN_INLINE verdict share_alone(cluster_shared &s, uint32_t key, uint32_t need,
                                 thread_bits &mine) {
    const slice_scan scan = scan_slice(0, key, key + 1);
    uint32_t over = scan.high, reach = scan.low;
    mine = scan.bits;
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

/* ---- 3. the output ----------------------------------------------------------------------------- */

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

/* This block's share of the candidates in s.own: two counts go through one scan, of those over
 * the key and, in the upper half, of those equal to it. */
CAIRN_INLINE void emit_placed(cluster_shared &s, const row_slice &w, verdict v, bool sorts) {
    const int count = (int)s.count;
    const uint32_t below = (1u << lane_id()) - 1;
    uint32_t over_before = 0, equal_before = 0;
#pragma unroll 1
    for (int first = 0; first < count; first += THREADS) {
        const int i = first + thread_id();
        const uint32_t key = i < count ? s.own[i] : 0;
        const bool is_over = key > v.key, is_equal = i < count && key == v.key;
        const uint32_t over = warp_ballot(is_over), equal = warp_ballot(is_equal);
        block_sync();
        if (lane_id() == 0)
            s.totals[0][warp_id()] = (uint32_t)(popcount(over) | popcount(equal) << 16);
        block_sync();
        const uint32_t total = lane_id() < WARPS ? s.totals[0][lane_id()] : 0u;
        const uint32_t before = warp_sum(lane_id() < warp_id() ? total : 0u);
        const uint32_t ties = equal_before + (before >> 16) + (uint32_t)popcount(equal & below);
        if (is_over || (is_equal && ties < v.ties))
            put(s.out, sorts,
                v.offset + over_before + (before & 0xffffu) + (uint32_t)popcount(over & below) +
                    min_of(ties, v.ties),
                key, w.origin + s.elements[i]);
        const uint32_t all = warp_sum(total);
        over_before += all & 0xffffu;
        equal_before += all >> 16;
    }
}

/* This block's share by its bits. When some of its ties are chosen and some not, a first pass finds
 * the last that is. */
CAIRN_INLINE void emit_marked(cluster_shared &s, const row_slice &w, const thread_bits &mine,
                              verdict v, bool sorts) {
    int32_t *list = (int32_t *)s.keys;
    uint32_t count = 0;
    if (thread_id() == 0) s.cut = v.ties ? NO_POSITION : -1;
    block_sync();
#pragma unroll 1
    for (int mode = v.ties == 0 || v.ties == EVERY ? WRITE : CUT; mode <= WRITE; mode++)
        count = visit_items(s, w, mode, mine, v.key, v.key + 1, v.ties - 1, list);
#pragma unroll 1
    for (uint32_t i = (uint32_t)thread_id(); i < count; i += THREADS)
        put(s.out, sorts, v.offset + i, sorts ? topk_key(w.base[list[i]]) : 0, w.origin + list[i]);
}

/* What the cluster as a whole does at the end. */
CAIRN_INLINE void finish(cluster_shared &s, const topk_params &p, uint32_t found, uint64_t *pairs) {
    if (p.sort_size) cluster_sync();
    if (cluster_rank() != 0) return;
    if (p.sort_size) emit_sorted(pairs, s.out, (int)found, p.sort_size);
#pragma unroll 1
    for (int i = (int)found + thread_id(); i < p.k; i += THREADS) topk_write_none(s.out, i);
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
    const row_slice whole = slice_of(row, range.length, rank);
    tile_data held;
    if (thread_id() == 0) kept_slice() = whole, s.out = topk_row_out(p, r, row);
    clear_bins(s);
    group_most most = read_slice(whole, held);
    u32x2 mine = slice_bound(s, whole, most, ceil_div(p.k, CLUSTER));
    const row_slice &w = kept_slice();
    cluster_wait(); /* every block has begun and set up its barriers */
    key_range keys = agree(s, mine, p.finite_only ? KEY_MINUS_INFINITY + 1 : 0);
    thread_bits bits = find_candidates(w, held, keys.low);
    uint32_t need = (uint32_t)p.k, parity = 0;
    verdict v = {0, 0, 0, EVERY};
#pragma unroll 1
    for (; keys.low < keys.high; parity = 1) {
        list_keys(s, w, bits, keys);
        if (thread_id() == 0) send_keys(s);
        if (rank == 0) decide(s, keys, need, parity);
        mbarrier_wait_cluster(shared_addr(&s.verdict_in), parity);
        v = bit_cast<verdict>(s.told);
        if (v.found != EVERY) break;
        bin_search at;
#pragma unroll 1
        do {
            at = narrow_cluster(keys, need);
            keys = at.range;
            need = at.need;
        } while (at.inside > REGION && keys.low < keys.high);
        if (keys.low == keys.high) break;
        if (thread_id() == 0) begin_again(s);
        bits = scan_slice(0, keys.low, keys.high + 1).bits;
    }
    if (v.found != EVERY && parity == 0) {
        emit_placed(s, w, v, p.sort_size != 0);
    } else {
        if (v.found != EVERY) keys.low = v.key, need = v.ties;
        v = share_alone(s, keys.low, need, bits);
        emit_marked(s, w, bits, v, p.sort_size != 0);
    }
    finish(s, p, v.found, all.pairs);
}

#endif
