/* topk: the k highest scores of each row, exactly (see cairn_topk in runtime.h for the contract).
 *
 * Routes     "block"    one block a row, tile by tile: one read, with a running bound
 *            "cluster"  CLUSTER blocks a row, each with a slice; they agree on a bound that k scores
 *                       reach, and the first gathers what passes it over distributed shared memory
 *            Rows whose candidates outgrow the set cut it and go on (topk_select.cuh).
 * Order      chosen entries become bits of a map of the row, whose set bits in order are the output
 * Constants  CAIRN_SCORE_TYPE  1 f32, 2 f16, 3 bf16 (cairn_type)
 *            CAIRN_THREADS, CAIRN_ITEMS  a tile is their product; k + tile <= 10240
 *            CAIRN_CLUSTER  blocks a row: 1, or up to 16 on sm_90
 * Launch     grid rows x CLUSTER, block THREADS, shared memory as topk_cuda.c computes it
 * Oracle     tests/topk_test.c sorts
 * matrix: CAIRN_SCORE_TYPE=1 CAIRN_THREADS=512 CAIRN_ITEMS=16 CAIRN_CLUSTER=1
 * matrix: CAIRN_SCORE_TYPE=2 CAIRN_THREADS=512 CAIRN_ITEMS=16 CAIRN_CLUSTER=1
 * matrix: CAIRN_SCORE_TYPE=3 CAIRN_THREADS=512 CAIRN_ITEMS=8 CAIRN_CLUSTER=1
 * matrix: arch>=90 CAIRN_SCORE_TYPE=1 CAIRN_THREADS=512 CAIRN_ITEMS=16 CAIRN_CLUSTER=16
 * matrix: arch>=90 CAIRN_SCORE_TYPE=2 CAIRN_THREADS=512 CAIRN_ITEMS=16 CAIRN_CLUSTER=4 */
#include "common.cuh"
#include "topk.cuh"
#include "topk_select.cuh"

#define MAP_WORDS CAPACITY /* the map lies where the keys were */

/* ---- output ------------------------------------------------------------------------------------ */

/* Up to LIST candidates: all pairs. Returns how many were written. */
CAIRN_INLINE int emit_few(topk_shared &s, const topk_out &out, int m, int k, bool by_score) {
    const int i = thread_id();
    topk_entry mine = {0, NO_POSITION};
    int rank = 0, slot = 0;
    if (i < m) {
        mine = {s.keys[i], s.positions[i]};
        for (int j = 0; j < m; j++) rank += comes_before({s.keys[j], s.positions[j]}, mine);
    }
    bool chosen = i < m && rank < k;
    if (i < LIST) s.list[i] = {0, chosen ? mine.position : NO_POSITION};
    block_sync();
    if (chosen) {
        for (int j = 0; j < m; j++) slot += s.list[j].position < mine.position;
        topk_write(out, by_score ? rank : slot, mine.position);
    }
    return min_of(m, k);
}

/* Words of the map that a thread owns, of `words`. */
CAIRN_INLINE int emit_map(topk_shared &s, const topk_out &out, int base, int words, int written) {
    const int each = ceil_div(words, THREADS), first = thread_id() * each;
    const int end = min_of(first + each, words);
    uint32_t mine = 0;
    for (int i = first; i < end; i++) mine += (uint32_t)popcount(s.keys[i]);
    uint32_t slot = warp_scan(mine);
    if (lane_id() == WARP - 1) s.totals[0][warp_id()] = slot;
    block_sync();
    uint32_t total = lane_id() < THREADS / WARP ? s.totals[0][lane_id()] : 0u;
    slot += warp_sum(lane_id() < warp_id() ? total : 0u) - mine + (uint32_t)written;
    for (int i = first; i < end; i++)
        for (uint32_t bits = s.keys[i]; bits; bits &= bits - 1)
            topk_write(out, (int)slot++, base + i * 32 + find_first_set(bits) - 1);
    return written + (int)warp_sum(total);
}

/* The chosen of m candidates by ascending position. */
CAIRN_INLINE int emit_by_position(topk_shared &s, const topk_out &out, int m, topk_entry last,
                                  int length) {
    int written = 0;
    for (int i = thread_id(); i < m; i += THREADS)
        if (!is_chosen({s.keys[i], s.positions[i]}, last)) s.positions[i] = -1;
    block_sync(); /* from here on the keys' place is the map */
    for (int base = 0; base < length; base += MAP_WORDS * 32) {
        int words = min_of(MAP_WORDS, ceil_div(length - base, 32));
        for (int i = thread_id() * 4; i < words; i += THREADS * 4)
            *(u32x4 *)&s.keys[i] = {0, 0, 0, 0};
        block_sync();
        for (int i = thread_id(); i < m; i += THREADS) {
            int bit = s.positions[i] - base;
            if (s.positions[i] >= 0 && bit >= 0 && bit < words * 32)
                atomic_or(&s.keys[bit / 32], 1u << (bit & 31));
        }
        block_sync();
        written = emit_map(s, out, base, words, written);
        block_sync();
    }
    return written;
}

/* Descending score, lowest position first: a bitonic sort of (key, ~position), `size` a power of
 * two >= m. The set is exactly what is chosen. */
CAIRN_INLINE void emit_by_score(topk_shared &s, const topk_out &out, int m, int size) {
    uint64_t *pairs = (uint64_t *)s.keys;
    constexpr int most = 4096 / THREADS;
    uint64_t mine[most];
#pragma unroll
    for (int j = 0; j < most; j++) {
        int i = j * THREADS + thread_id();
        mine[j] = i < m ? (uint64_t)s.keys[i] << 32 | (uint32_t)~s.positions[i] : 0;
    }
    block_sync();
#pragma unroll
    for (int j = 0; j < most; j++)
        if (j * THREADS + thread_id() < size) pairs[j * THREADS + thread_id()] = mine[j];
    block_sync();
    for (int length = 2; length <= size; length *= 2)
        for (int step = length / 2; step > 0; step /= 2) {
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
    for (int i = thread_id(); i < m; i += THREADS)
        topk_write(out, i, (int32_t)~(uint32_t)pairs[i]);
}

/* The best k of the set, in order. */
CAIRN_INLINE void emit(topk_shared &s, const topk_params &p, const topk_out &out, int length) {
    int m = (int)s.count, found = min_of(m, p.k);
    if (m <= LIST) {
        emit_few(s, out, m, p.k, p.sort_size != 0);
    } else {
        topk_entry last = {0, NO_POSITION};
        if (m > p.k) last = find_last(s, m, (uint32_t)p.k, length);
        if (!p.sort_size) {
            emit_by_position(s, out, m, last, length);
        } else {
            if (m > p.k) keep_chosen(s, m, last);
            emit_by_score(s, out, found, p.sort_size);
        }
    }
    for (int i = found + thread_id(); i < p.k; i += THREADS) topk_write_none(out, i);
}

/* A row of at most k candidates, all of them chosen, without reading a score. */
CAIRN_INLINE void emit_all(const topk_params &p, const topk_out &out, int length) {
    for (int i = thread_id(); i < p.k; i += THREADS)
        if (i < length) topk_write(out, i, i);
        else topk_write_none(out, i);
}

/* ---- a row, or a cluster block's slice of it --------------------------------------------------- */

/* Puts into the set every candidate of the slice that can be among the row's best k. `agree` turns
 * this block's bound, which `quota` of its scores reach, into one that k of the row reach. */
template <class Agree>
CAIRN_INLINE void take_slice(topk_shared &s, const topk_params &p, const score_t *row,
                             topk_slice slice, int quota, Agree agree) {
    const int head = (int)((uint64_t)(row + slice.begin) % 16 / sizeof(score_t));
    const uint32_t least = p.finite_only ? KEY_MINUS_INFINITY + 1 : 0;
    uint32_t keys[ITEMS], floor = 0;
    int base = slice.begin - head;
    const score_t *from = row + slice.begin;
    const int size = slice.end - slice.begin;
    topk_tile tile = load_tile(from, -head, size);
    if (thread_id() == 0) s.count = 0;
    tile_keys(tile, keys);
    bool more = base + TILE < slice.end;
    if (more) tile = load_tile(from, TILE - head, size);
    floor = max_of(least, agree(tile_bound(s, keys, quota)));
    block_sync();
    append_items(s, keys, base, slice, floor);
    block_sync();
    if (CAIRN_CLUSTER == 1 && s.count >= (uint32_t)p.k) floor++; /* an equal key comes too late */
    while (more) {
        base += TILE;
        tile_keys(tile, keys);
        more = base + TILE < slice.end;
        if (more) tile = load_tile(from, base + TILE - slice.begin, size);
        floor = take_tile(s, keys, base, slice, p.k, floor);
    }
}

#if CAIRN_CLUSTER == 1

CAIRN_KERNEL(topk_row, THREADS, 1024 / THREADS, topk_params) {
    topk_shared &s = shared_as<topk_shared>();
    const int r = block_id();
    topk_range range = topk_row_range(p, r, thread_id() == 0);
    const score_t *row = (const score_t *)p.scores + (int64_t)r * p.stride + range.start;
    if (range.length <= p.k && !p.finite_only && !p.sort_size) {
        emit_all(p, topk_row_out(p, r, row), range.length);
        return;
    }
    take_slice(s, p, row, {0, range.length}, p.k, [](uint32_t bound) { return bound; });
    emit(s, p, topk_row_out(p, r, row), range.length);
}

#elif CAIRN_ARCH >= 900

/* The least of the cluster's bounds: CLUSTER quotas of scores, at least k, reach it. */
CAIRN_INLINE uint32_t cluster_bound(topk_shared &s, uint32_t bound) {
    if (thread_id() < CAIRN_CLUSTER)
        remote_store(remote(shared_addr(&s.bounds[cluster_rank()]), thread_id()), bound);
    cluster_sync();
    return warp_min(lane_id() < CAIRN_CLUSTER ? s.bounds[lane_id()] : 0xffffffffu);
}

/* Block `from`'s entry i. */
CAIRN_INLINE topk_entry remote_entry(topk_shared &s, int from, int i) {
    return {remote_load<uint32_t>(remote(shared_addr(&s.keys[i]), from)),
            remote_load<int32_t>(remote(shared_addr(&s.positions[i]), from))};
}

/* All other blocks' sets, behind the first block's own: they fit. */
CAIRN_INLINE void gather_all(topk_shared &s, int own, int total) {
    uint32_t ends[CAIRN_CLUSTER];
    uint32_t sum = 0;
#pragma unroll
    for (int b = 0; b < CAIRN_CLUSTER; b++) ends[b] = sum += s.counts[b];
#pragma unroll 4
    for (int i = own + thread_id(); i < total; i += THREADS) {
        int from = 0, first = 0;
#pragma unroll
        for (int b = 0; b < CAIRN_CLUSTER - 1; b++)
            if ((uint32_t)i >= ends[b]) from = b + 1, first = (int)ends[b];
        topk_entry e = remote_entry(s, from, i - first);
        s.keys[i] = e.key;
        s.positions[i] = e.position;
    }
    if (thread_id() == 0) s.count = (uint32_t)total;
    block_sync();
}

/* The same when they may not fit: the set is cut when it is full. */
CAIRN_INLINE void gather_in_turn(topk_shared &s, int k, int length) {
    topk_entry last = {0, NO_POSITION};
    for (int from = 1; from < CAIRN_CLUSTER; from++)
        for (int first = 0; first < (int)s.counts[from]; first += THREADS) {
            const int i = first + thread_id(), held = (int)s.count;
            topk_entry e = {0, 0};
            if (i < (int)s.counts[from]) e = remote_entry(s, from, i);
            block_sync();
            if (held + THREADS > CAPACITY) {
                last = find_last(s, held, (uint32_t)k, length);
                keep_chosen(s, held, last);
            }
            bool takes = i < (int)s.counts[from] && is_chosen(e, last);
            uint32_t votes = warp_ballot(takes), at = 0;
            if (lane_id() == 0 && votes) at = atomic_add(&s.count, (uint32_t)popcount(votes));
            at = shuffle(at, 0) + (uint32_t)popcount(votes & ((1u << lane_id()) - 1));
            if (takes) {
                s.keys[at] = e.key;
                s.positions[at] = e.position;
            }
            block_sync();
        }
}

CAIRN_KERNEL(topk_row, THREADS, 1024 / THREADS, topk_params) {
    topk_shared &s = shared_as<topk_shared>();
    const int r = block_id() / CAIRN_CLUSTER, rank = cluster_rank();
    cluster_arrive_relaxed();
    topk_range range = topk_row_range(p, r, rank == 0 && thread_id() == 0);
    const score_t *row = (const score_t *)p.scores + (int64_t)r * p.stride + range.start;
    const int size = round_up(ceil_div(range.length, CAIRN_CLUSTER), 16);
    topk_slice slice = {min_of(rank * size, range.length), min_of((rank + 1) * size, range.length)};
    cluster_wait(); /* every block has begun: its shared memory may be written */
    if (range.length <= p.k && !p.finite_only && !p.sort_size) {
        if (rank == 0) emit_all(p, topk_row_out(p, r, row), range.length);
        return;
    }
    take_slice(s, p, row, slice, ceil_div(p.k, CAIRN_CLUSTER),
               [&](uint32_t bound) { return cluster_bound(s, bound); });
    if (thread_id() == 0) remote_store(remote(shared_addr(&s.counts[rank]), 0), s.count);
    cluster_sync();
    if (rank == 0) {
        uint32_t total = warp_sum(lane_id() < CAIRN_CLUSTER ? s.counts[lane_id()] : 0u);
        if (total <= CAPACITY) gather_all(s, (int)s.counts[0], (int)total);
        else gather_in_turn(s, p.k, range.length);
    }
    cluster_arrive_relaxed(); /* the others' sets have been read */
    if (rank == 0) emit(s, p, topk_row_out(p, r, row), range.length);
    cluster_wait();
}

#endif
