/* topk_emit.cuh: taking in a slice of a row (topk_select.cuh) and writing the chosen entries in
 * order: by position they become bits of a map of the row, whose set bits in order are the output.
 * Constants as in topk_select.cuh. Without an include guard. */

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
#pragma unroll 1
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
    const score_t *from = row + slice.begin;
    const int head = (int)((uint64_t)from % 16 / sizeof(score_t));
    const int size = slice.end - slice.begin;
    uint32_t floor = p.finite_only ? KEY_MINUS_INFINITY + 1 : 0;
    int first = -head;
    if (thread_id() == 0) s.count = 0;
    block_sync();
#pragma unroll 1
    do {
        uint32_t keys[ITEMS];
        prefetch_tile(from, first + TILE, size);
        tile_keys(load_tile(from, first, size), keys);
        if (first == -head) floor = max_of(floor, agree(tile_bound(s, keys, quota)));
        floor = take_tile(s, keys, slice.begin + first, slice, p.k, floor);
        /* once k reach the floor, a key that equals it comes too late */
        if (first == -head && quota == p.k && s.count >= (uint32_t)p.k) floor++;
    } while ((first += TILE) < size);
}

/* Adds `count` entries, entry(i), of another set of the same row; the set is cut when it is full.
 * `last` is the worst of the last cut: what comes after it is not needed. */
template <class Entry>
CAIRN_INLINE topk_entry merge_entries(topk_shared &s, int count, int k, int length, topk_entry last,
                                      Entry entry) {
#pragma unroll 1
    for (int first = 0; first < count; first += THREADS) {
        const int i = first + thread_id(), held = (int)s.count;
        topk_entry e = {0, 0};
        if (i < count) e = entry(i);
        block_sync();
        if (held + THREADS > CAPACITY) {
            last = find_last(s, held, (uint32_t)k, length);
            keep_chosen(s, held, last);
        }
        bool takes = i < count && is_chosen(e, last);
        uint32_t votes = warp_ballot(takes), at = 0;
        if (lane_id() == 0 && votes) at = atomic_add(&s.count, (uint32_t)popcount(votes));
        at = shuffle(at, 0) + (uint32_t)popcount(votes & ((1u << lane_id()) - 1));
        if (takes) {
            s.keys[at] = e.key;
            s.positions[at] = e.position;
        }
        block_sync();
    }
    return last;
}
