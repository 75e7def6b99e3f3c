/* topk/kth.cuh: the k-th key of a row by a cluster: candidates go to the first block, which
 * selects; when they are too many, all blocks count theirs. Without an include guard. */

/* ---- candidates, from each block to the first ---------------------------------------------- */

/* Tells the first block how many candidates this one has listed. */
CAIRN_INLINE void send_count(cluster_shared &s, uint32_t placed) {
    remote_store_async(remote(shared_addr(&s.counts[cluster_rank()]), 0), placed,
                       remote(shared_addr(&s.counts_in), 0));
}

/* At the first block: where the keys lie, in chunks of a warp that are each of one block, block after block. */
CAIRN_INLINE void list_chunks(cluster_shared &s, key_region regions, uint32_t count, uint32_t chunks) {
    const uint32_t end = warp_scan(chunks);
    if (warp_id() * WARP >= CHUNKS) return;
    uint32_t chunk = (uint32_t)thread_id();
    int block = 0;
#pragma unroll
    for (int b = 0; b < CLUSTER; b++) block += (int)(chunk >= shuffle(end, b));
    const uint32_t at = (chunk - shuffle(end - chunks, block)) * WARP, left = shuffle(count, block) - at;
    const uint32_t begin = shuffle(regions.start, block) + at;
    if (chunk < CHUNKS)
        s.chunks[chunk] = block < CLUSTER ? begin | min_of(left, (uint32_t)WARP) << 16 | (uint32_t)block << 24 : 0;
}

/* At the first block: waits for all keys; how many, in how many chunks, whether no block has more than its share, for
 * then no chunks are listed, and whether they are too many, of some block or in all. */
struct received_count { uint32_t total, chunks; bool even, overflows; };
CAIRN_INLINE received_count receive_keys(cluster_shared &s, key_region regions, uint32_t phase) {
    mbarrier_wait_cluster(shared_addr(&s.counts_in), phase);
    const uint32_t count = lane_id() < CLUSTER ? s.counts[lane_id()] : 0;
    const uint32_t bytes = warp_sum(round_up(sent_of(count, regions.size), 4u) * 4);
    if (thread_id() == 0) mbarrier_arrive_expect(shared_addr(&s.keys_in), bytes);
    received_count got = {warp_sum(count), 0, warp_all(count <= SHARE), warp_any(count > regions.size)};
    if (!got.even) {
        const uint32_t chunks = (min_of(count, CAPACITY + 1u) + WARP - 1) / WARP;
        got.chunks = warp_sum(chunks);
        got.overflows |= got.chunks > CHUNKS;
        list_chunks(s, regions, count, chunks);
        block_sync();
    }
    mbarrier_wait_cluster(shared_addr(&s.keys_in), phase);
    return got;
}

/* ---- selecting ----------------------------------------------------------------------------- */

/* What a thread of the first block has of the received keys. Each warp has as many chunks, one after the other; where
 * no block has more than its share, its keys are all of one block. */
struct received {
    uint32_t key[KEYS], valid;
    int first, chunks; /* the warp's, if they are listed */
};
static_assert(WARPS % CLUSTER == 0, "a warp's keys may come from one block");

/* Lane l of a warp gets key `at` + l as its j-th, if there are so many `left`. */
CAIRN_INLINE void take_key(const cluster_shared &s, received &mine, int j, int at, int left) {
    mine.key[j] = 0;
    if (lane_id() < left) {
        mine.key[j] = s.keys[at + lane_id()];
        mine.valid |= 1u << j;
    }
}
CAIRN_INLINE received take_received(const cluster_shared &s, key_region regions, received_count got) {
    received mine = {};
    if (got.even) {
        const int block = warp_id() % CLUSTER, count = (int)s.counts[block], begin = (int)shuffle(regions.start, block);
#pragma unroll
        for (int j = 0; j < KEYS; j++) {
            const int i = (j * WARPS + warp_id()) / CLUSTER * WARP;
            take_key(s, mine, j, begin + i, count - i);
        }
        return mine;
    }
    const int each = ceil_div((int)got.chunks, WARPS);
    mine.first = warp_id() * each, mine.chunks = min_of(each, (int)got.chunks - mine.first);
#pragma unroll
    for (int j = 0; j < KEYS; j++) {
        const uint32_t chunk = j < mine.chunks ? s.chunks[mine.first + j] : 0;
        take_key(s, mine, j, (int)(chunk & 0xffff), (int)(chunk >> 16 & 0xff));
    }
    return mine;
}

/* How many of this thread's j-th key, 0 or 1, are over `key`, << 16, or equal to it. */
CAIRN_INLINE uint32_t over_or_equal(const received &mine, int j, uint32_t key) {
    return mine.key[j] > key ? 1u << 16 : (uint32_t)((mine.valid >> j & 1u) && mine.key[j] == key);
}
/* Adds a warp's, of keys from one block. */
CAIRN_INLINE void add_over_equal(cluster_shared &s, uint32_t block, uint32_t of_lane) {
    const uint32_t sum = warp_sum(of_lane);
    if (lane_id() == 0 && sum) atomic_add(&s.over_equal[block], sum);
}
/* Adds up how many of the received keys are over `key` and equal to it, block by block. */
CAIRN_INLINE void count_received(cluster_shared &s, const received &mine, bool even, uint32_t key) {
    uint32_t block = (uint32_t)warp_id() % CLUSTER, sum = 0;
    if (even) {
#pragma unroll
        for (int j = 0; j < KEYS; j++) sum += over_or_equal(mine, j, key);
    } else {
#pragma unroll
        for (int j = 0; j < KEYS; j++) {
            const uint32_t next = j < mine.chunks ? s.chunks[mine.first + j] >> 24 : block;
            if (next != block) {
                add_over_equal(s, block, sum);
                block = next, sum = 0;
            }
            sum += over_or_equal(mine, j, key);
        }
    }
    add_over_equal(s, block, sum);
}

CAIRN_INLINE bool has_key(const received &mine, int j, key_range range) {
    return (mine.valid >> j & 1u) && mine.key[j] - range.low <= range.high - range.low;
}

/* Puts the need-th of the list, behind which there are zeros, into s.key and how many of its equals are needed into
 * s.ties, which are EVERY and `need`. Several threads beside each other compare a key, each with a part of the list. It
 * is the least that fewer than `need` exceed, and none of those is exceeded by more. */
CAIRN_INLINE void rank_list(cluster_shared &s, int count, uint32_t need) {
    constexpr int PARTS = min_of(THREADS / LIST, WARP);
    if (warp_id() * WARP / PARTS < count) {
        const uint32_t mine = s.list[min_of(thread_id() / PARTS, count - 1)];
        uint32_t over = 0;
#pragma unroll 2
        for (int i = thread_id() % PARTS * 4; i < count; i += PARTS * 4) {
            const u32x4 v = *(const u32x4 *)&s.list[i];
            add_if_over(over, v.x, mine), add_if_over(over, v.y, mine);
            add_if_over(over, v.z, mine), add_if_over(over, v.w, mine);
        }
        over = warp_sum_butterfly(over, PARTS);
        const uint32_t key = warp_min(over < need ? mine : EVERY), ties = warp_min(over < need ? need - over : EVERY);
        if (lane_id() == 0 && key != EVERY) {
            atomic_min(&s.key, key);
            atomic_min(&s.ties, ties);
        }
    }
    block_sync();
}

/* Narrows a range of keys to the bin that holds the need-th of its largest. The last bin has all
 * that is greater, too. */
CAIRN_INLINE void narrow(key_range &range, uint32_t &need, bin_found at, int shift) {
    range.low += at.bin << shift;
    if (at.bin < BINS - 1) range.high = min_of(range.high, range.low + ((1u << shift) - 1));
    need -= at.above;
}
CAIRN_INLINE uint32_t bin_of(uint32_t distance, int shift) {
    return min_of(distance >> shift, (uint32_t)(BINS - 1));
}
/* A barrier must follow. Unless there is something to select, all keys from `key` on are taken. */
CAIRN_INLINE void begin_selecting(cluster_shared &s, uint32_t key, uint32_t need) {
    clear_words(s.bins);
    if (thread_id() < CLUSTER) s.over_equal[thread_id()] = 0;
    if (thread_id() == 0) s.listed = 0, s.key = key, s.ties = need;
}

/* At the first block: the need-th of the received keys in the range, of which there are more: into
 * s.key, s.ties. `top`: most keys are no greater. */
CAIRN_INLINE void select_key(cluster_shared &s, const received &mine, key_range range, uint32_t top,
                             uint32_t need) {
#pragma unroll 1
    for (;;) {
        const int shift = range_shift({range.low, top});
#pragma unroll
        for (int j = 0; j < KEYS; j++)
            if (has_key(mine, j, range))
                atomic_add(&s.bins[bin_of(mine.key[j] - range.low, shift)], 1u);
        block_sync();
        bin_found at = search_bins(s, need);
        narrow(range, need, at, shift);
        top = range.high;
        if (range.low == range.high || need == at.inside) { /* in the latter case: all of them */
            if (thread_id() == 0) s.key = range.low, s.ties = need;
            block_sync();
            return;
        }
        if (at.inside <= LIST) {
            uint32_t in = 0;
#pragma unroll
            for (int j = 0; j < KEYS; j++) in |= has_key(mine, j, range) ? 1u << j : 0u;
            if (in) {
                uint32_t at = atomic_add(&s.listed, (uint32_t)popcount(in));
#pragma unroll
                for (int j = 0; j < KEYS; j++)
                    if (in >> j & 1u) s.list[at++] = mine.key[j];
            }
            if (thread_id() < 3) s.list[(int)at.inside + thread_id()] = 0;
            if (thread_id() == 0) s.key = EVERY, s.ties = need;
            block_sync();
            rank_list(s, (int)at.inside, need);
            return;
        }
        begin_selecting(s, range.low, need);
        block_sync();
    }
}

/* Lane b gets block b's verdict from how many scores it holds over the key and equal to it. */
CAIRN_INLINE verdict share_out(uint32_t key, uint32_t need, uint32_t over, uint32_t equal) {
    /* both in one scan: at most 4096 are over the key, and more equals than needed do not count */
    const uint32_t mine = over << 18 | min_of(equal, need), end = warp_scan(mine);
    const uint32_t before = (end - mine) & 0x3ffffu, all = shuffle(end, WARP - 1);
    const uint32_t left = need - min_of(need, before);
    return {key, ((end - mine) >> 18) + min_of(before, need), left >= equal ? EVERY : left,
            (all >> 18) + min_of(all & 0x3ffffu, need)};
}

CAIRN_INLINE void tell(cluster_shared &s, verdict v, int rank) {
    remote_store_async(remote(shared_addr(&s.told), rank), bit_cast<u32x4>(v),
                       remote(shared_addr(&s.verdict_in), rank));
}

/* Whether most of the keys that the first block itself has sent are equal to the first of them. */
CAIRN_INLINE bool mostly_equal(const cluster_shared &s, key_region regions) {
    const int count = (int)min_of(sent_of(s.counts[0], shuffle(regions.size, 0)), (uint32_t)min_of(SHARE, THREADS));
    const bool equal = thread_id() < count && s.keys[thread_id()] == s.keys[0];
    return block_sync_count(equal) * 4 > count * 3;
}

/* At the first block: selects the need-th key of all that were sent, which are those in the range,
 * and tells every block; when they are too few, unless none are below it (`least`). After
 * begin_selecting. `again`: the blocks still have to share it out, for what is over the range was not sent. */
CAIRN_INLINE void decide(cluster_shared &s, key_range range, uint32_t top, uint32_t need, key_region regions,
                         bool least, bool again, uint32_t phase) {
    const received_count got = receive_keys(s, regions, phase);
    const bool few = got.total < need && !least;
    if (few || got.overflows) {
        const uint32_t why = mostly_equal(s, regions) ? MANY_EQUAL : TOO_MANY;
        if (thread_id() < CLUSTER) tell(s, {few ? TOO_FEW : why, 0, s.keys[0], EVERY}, thread_id());
        return;
    }
    const received mine = take_received(s, regions, got);
    if (got.total > need) select_key(s, mine, range, top, need);
    const uint32_t key = s.key;
    count_received(s, mine, got.even, key);
    block_sync();
    if (warp_id() == 0) {
        const uint32_t of = lane_id() < CLUSTER ? s.over_equal[lane_id()] : 0u;
        verdict v = share_out(key, s.ties, of >> 16, of & 0xffffu);
        if (again) v.ties = s.ties;
        if (lane_id() < CLUSTER) tell(s, v, lane_id());
    }
}

/* ---- more keys than the first block can take ----------------------------------------------- */

/* Adds `count` to a lane's bin; twice, lanes of one bin together, lest equal ones queue. */
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
        bins[c] = key <= span ? bin_of(key, shift) : EVERY;
        any |= bins[c] != EVERY;
        same &= bins[c] == bins[0];
    }
    if (warp_all(same)) {
        count_together(s, bins[0], any, VECTOR);
        return;
    }
#pragma unroll
    for (int c = 0; c < VECTOR; c++)
        if (bins[c] != EVERY) atomic_add(&s.bins[bins[c]], 1u);
}

/* Counts half a tile: of most ranges it has nothing in most places, and that is soon seen. */
CAIRN_INLINE void count_half(cluster_shared &s, const u32x4 *raw, key_range range, int shift) {
    const uint32_t bits = reaching_bits<HALF>(raw, key_score(range.low));
    uint32_t vectors = 0; /* that some lane has something in */
#pragma unroll
    for (int j = 0; j < HALF; j++)
        if (warp_any((bits >> (j * VECTOR) & ((1u << VECTOR) - 1)) != 0)) vectors |= 1u << j;
#pragma unroll 1
    for (; vectors; vectors &= vectors - 1) {
        u32x4 one = raw[0];
#pragma unroll
        for (int j = 1; j < HALF; j++)
            if (find_first_set(vectors) == j + 1) one = raw[j];
        count_vector(s, one, range, shift);
    }
}

/* Bins of the cluster's scores in the range; each block gets its part of them in s.sums, every
 * block the parts' totals in s.parts. */
CAIRN_INLINE void count_cluster(cluster_shared &s, const row_slice &w, key_range range,
                                int shift) {
    constexpr int part = BINS / CLUSTER;
    const int rank = cluster_rank();
    clear_words(s.bins);
    block_sync();
#pragma unroll 1
    for (int i = 0; i < 2 * w.tiles; i++) {
        u32x4 raw[HALF];
        hold_half(w, i / 2, i % 2, raw);
        count_half(s, raw, range, shift);
    }
    cluster_sync();
    uint32_t sum = 0;
#pragma unroll 1
    for (int i = thread_id(); i < part; i += THREADS) {
        uint32_t here = 0;
#pragma unroll 4
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
 * many of it are common, and it is what is left over. `top`: most keys are no greater. */
struct bin_search { key_range range; uint32_t need, inside; };
CAIRN_INLINE bin_search narrow_cluster(key_range range, uint32_t top, uint32_t need) {
    cluster_shared &s = cluster_here();
    constexpr int part = BINS / CLUSTER;
    key_range over = {range.low + 1, range.high};
    const int shift = range_shift({over.low, max_of(over.low, top)});
    count_cluster(s, kept_slice(), over, shift);
    uint32_t mine = lane_id() < CLUSTER ? s.parts[CLUSTER - 1 - lane_id()] : 0;
    uint32_t end = warp_scan(mine);
    uint32_t votes = warp_ballot(end >= need && end - mine < need);
    if (!votes) {
        return {{range.low, range.low}, need - shuffle(end, WARP - 1), 0};
    }
    const int lane = find_first_set(votes) - 1, owner = CLUSTER - 1 - lane;
    const uint32_t above = shuffle(end - mine, lane);
    clear_words(s.bins);
    block_sync();
#pragma unroll 1
    for (int i = thread_id(); i < part; i += THREADS)
        s.bins[i] = remote_load<uint32_t>(remote(shared_addr(&s.sums[i]), owner));
    block_sync();
    bin_found at = search_bins(s, need - above);
    at.bin += (uint32_t)(owner * part);
    at.above += above;
    narrow(over, need, at, shift);
    return {over, need, at.inside};
}

/* Every block's share of the best k when only the key is known, and how many of this thread's items
 * reach it, how many exceed it. `found` is EVERY if it proves not to be the k-th, unless it is sure
 * to be or the row has fewer than k. */
CAIRN_INLINE verdict share_alone(cluster_shared &s, uint32_t key, uint32_t k, slice_scan scan,
                                 bool sure) {
    const uint32_t over = warp_sum(scan.high), reach = warp_sum(scan.low);
    block_sync();
    if (lane_id() == 0) {
        s.totals[0][warp_id()] = over;
        s.totals[1][warp_id()] = reach;
    }
    block_sync();
    const uint32_t over_here = warp_sum(lane_id() < WARPS ? s.totals[0][lane_id()] : 0u);
    const uint32_t reach_here = warp_sum(lane_id() < WARPS ? s.totals[1][lane_id()] : 0u);
    const uint32_t parity = s.shared_out;
    if (thread_id() < CLUSTER)
        remote_store_async(remote(shared_addr(&s.chosen[cluster_rank()]), thread_id()),
                           u32x2{over_here, reach_here - over_here},
                           remote(shared_addr(&s.chosen_in), thread_id()));
    mbarrier_wait_cluster(shared_addr(&s.chosen_in), parity);
    u32x2 of = lane_id() < CLUSTER ? s.chosen[lane_id()] : u32x2{0, 0};
    const uint32_t all = warp_sum(of.x);
    verdict v = share_out(key, k - min_of(all, k), of.x, of.y);
    v.offset = shuffle(v.offset, cluster_rank());
    v.ties = shuffle(v.ties, cluster_rank());
    if (!sure && (all >= k || all + warp_sum(of.y) < k)) v.found = EVERY;
    return v;
}
