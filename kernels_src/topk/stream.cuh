/* topk/stream.cuh: a long row, or a slice of one, by one block in one read. A sample of it gives a
 * floor that a little more than k scores reach; those enter a set in shared memory, in the order of
 * their positions. A set that outgrows its place is cut to its best k and the floor rises; a floor
 * that was too high costs a second read. So every row is exact, and none is dear unless it hides
 * from the sample. Each thing stands once in the machine code, since that is what compiling takes
 * time for: a first read, one more, and what is merged go round the same loop.
 * Constants CAIRN_SCORE_TYPE, CAIRN_THREADS, CAIRN_ITEMS: a tile is the product of the last two,
 * and k + tile <= 10240. Without an include guard: each set of constants includes it anew. */
#include "topk/row.cuh"
#define CUT_THREADS CAIRN_THREADS
#include "topk/cut.cuh"

#define STREAM_THREADS CAIRN_THREADS
#define STREAM_ITEMS CAIRN_ITEMS
#define STREAM_TILE (STREAM_THREADS * STREAM_ITEMS)
#define STREAM_SET (10240 + 32) /* >= k + tile, and some at the row's ends */
#define STREAM_BYTES 92160
/* Blocks that fit one SM, by registers and shared memory. */
#define STREAM_RESIDENT (CAIRN_ARCH / 100 == 9 ? 1024 / STREAM_THREADS : 1)

#define SAMPLE_EACH 8 /* scores a thread takes */
#define SAMPLE (STREAM_THREADS * SAMPLE_EACH)
#define LINE (128 / (int)sizeof(score_t)) /* scores of a cache line */

/* A row, and the part of it that this block reads: the scores [begin, end). */
struct stream_part { const score_t *row; int length, begin, end; };
CAIRN_INLINE bool is_slice(const stream_part &part) {
    return part.end - part.begin < part.length;
}

/* Candidates by ascending position. Of a new one the set holds the score as f32, of one that has
 * been sealed the key. */
struct stream_shared {
    alignas(16) uint32_t keys[STREAM_SET];
    alignas(16) int32_t positions[STREAM_SET];
    cut_shared cut;
    uint32_t counts[2][WARP]; /* one a warp */
    uint32_t guess_high;      /* of the range that was guessed */
    stream_part part;
};

/* ---- the sample ------------------------------------------------------------------------------ */

/* A vector from each of as many stretches of a row, at places that do not repeat, since rows have
 * periods; no more than that side by side, since neighbours are alike. row is 16-byte aligned,
 * length >= 2 SAMPLE. */
CAIRN_INLINE void load_sample(const score_t *row, int length, topk_vector *sample) {
    const int stretch = length / SAMPLE; /* in vectors */
#pragma unroll
    for (int j = 0; j < SAMPLE_EACH / VECTOR; j++) {
        const int at = j * STREAM_THREADS + thread_id();
        const int place = (int)multiply_high((uint32_t)at * 0x9e3779b9u, (uint32_t)stretch);
        const score_t *from = row + (at * stretch + place) * VECTOR;
        sample[j] = bit_cast<topk_vector>(load_constant_early((const u32x4 *)from));
    }
}

/* The rank in the sample of a key that k scores reach all but surely, whatever the scores are like:
 * 3 deviations below k where those of a vector are alike, more where they are not. */
CAIRN_INLINE int sample_rank(int k, int length) {
    const float expected = (float)k * (float)SAMPLE * rcp_fast((float)length);
    return (int)(expected + 3.0f * expected * rsqrt_fast(expected * (1.0f / VECTOR))) + 5;
}

/* From a key that `rank` of the sample reach, and few more than that, to as far beyond the sample's
 * highest, where the row's may lie. The bins range from a key that at least `rank` reach, the least
 * maximum of groups of scores; a bin with too many of the sample is spread over all bins again. */
CAIRN_INLINE key_range sample_range(cut_shared &s, const topk_vector *sample, int rank) {
    uint32_t keys[SAMPLE_EACH], most = 0, least = 0xffffffffu;
#pragma unroll
    for (int i = 0; i < SAMPLE_EACH; i++) {
        keys[i] = topk_key(sample[i / VECTOR].score[i % VECTOR]);
        most = max_of(most, keys[i]);
        least = min_of(least, keys[i]);
    }
    key_range own = {rank <= STREAM_THREADS ? most : least, most};
    if (rank <= STREAM_THREADS / 2) own.low = max_of(own.low, shuffle_xor(own.low, 1));
    if (rank <= STREAM_THREADS / 4) own.low = max_of(own.low, shuffle_xor(own.low, 2));
    clear_bins(s);
    key_range range = block_range(s, own);
    const uint32_t high = range.high;
    uint32_t need = (uint32_t)rank;
#pragma unroll 1
    for (;;) {
        const int shift = range_shift(range, CUT_BITS);
#pragma unroll
        for (int i = 0; i < SAMPLE_EACH; i++)
            if (keys[i] - range.low <= range.high - range.low)
                atomic_add(&s.bins[(keys[i] - range.low) >> shift], 1u);
        block_sync();
        find_crossing(s, need);
        need -= s.found.above;
        range.low += s.found.bin << shift;
        if (shift == 0 || s.found.inside * 4 <= (uint32_t)rank) break;
        range.high = min_of(range.high, range.low + ((1u << shift) - 1));
        clear_bins(s);
        block_sync();
    }
    return {range.low, high + min_of(high - range.low, 0xfffffffeu - high)};
}

/* ---- the tiles ------------------------------------------------------------------------------- */

/* A warp's part of a tile is contiguous, so that what it adds is in order. */
CAIRN_INLINE int tile_position(int base, int i) {
    return base + warp_id() * (WARP * STREAM_ITEMS) + row_position(i, lane_id(), WARP);
}

/* The vectors of a part of a row, and the few scores before and after them. */
struct stream_body {
    const score_t *from; /* 16-byte aligned */
    int first, size;     /* its position; scores in its vectors */
};

CAIRN_INLINE stream_body body_of(const stream_part &part) {
    const score_t *from = part.row + part.begin;
    const int head = (int)((0 - (uint64_t)from) % 16 / sizeof(score_t));
    return {from + head, part.begin + head,
            max_of(part.end - part.begin - head, 0) / VECTOR * VECTOR};
}

struct stream_tile { topk_vector share[ROW_VECTORS]; };

/* The body's scores [base, base + STREAM_TILE); past its end its last again and again. Nothing is
 * done with them here, which would wait for them. */
CAIRN_INLINE void load_tile(const stream_body &body, int base, stream_tile &tile) {
#pragma unroll
    for (int j = 0; j < ROW_VECTORS; j++) {
        const int at = min_of(tile_position(base, j * VECTOR), body.size - VECTOR);
        tile.share[j] = bit_cast<topk_vector>(load_constant_early((const u32x4 *)(body.from + at)));
    }
}

/* Asks for the body's scores [base, base + STREAM_TILE). */
CAIRN_INLINE void prefetch_tile(const stream_body &body, int base) {
    int at = base + thread_id() * LINE;
    if (at < min_of(base + STREAM_TILE, body.size)) prefetch_l2(body.from + at);
}

/* A tile that has come. Adding 0 is what takes it out of the registers that the next one is loaded
 * into: a plain copy would be made when that one has come. */
struct stream_scores { float item[STREAM_ITEMS]; };

CAIRN_INLINE void take_tile(const stream_tile &tile, stream_scores &scores) {
#pragma unroll
    for (int i = 0; i < STREAM_ITEMS; i++)
        scores.item[i] = add_f32(to_f32(tile.share[i / VECTOR].score[i % VECTOR]), 0.0f);
}

/* This thread's items in the body that reach the floor, as bits; a floor of 0 NaN too reaches. */
CAIRN_INLINE uint32_t tile_mask(const stream_scores &scores, int base, int size, uint32_t floor) {
    const float least = key_score(floor);
    uint32_t mask = 0;
#pragma unroll
    for (int i = 0; i < STREAM_ITEMS; i++) mask |= scores.item[i] >= least ? 1u << i : 0u;
    if (floor == 0) mask = (1u << STREAM_ITEMS) - 1;
    if (base + STREAM_TILE > size) {
#pragma unroll(sizeof(score_t) == 4 ? ROW_VECTORS : 1) /* else the tiles do not overlap */
        for (int j = 0; j < ROW_VECTORS; j++)
            if (tile_position(base, j * VECTOR) >= size)
                mask &= ~(((1u << VECTOR) - 1) << (j * VECTOR));
    }
    return mask;
}

/* Where a warp's masked items go: counts by level (vector), packed into one word, summed over the
 * lanes before this one, and over all. */
#define LEVEL_BITS (32 / ROW_VECTORS)
#define LEVEL_MASK (ROW_VECTORS == 1 ? ~0u : (1u << LEVEL_BITS % 32) - 1)
struct level_counts { uint32_t before, all; };

CAIRN_INLINE level_counts count_levels(uint32_t mask) {
    uint32_t mine = 0;
#pragma unroll
    for (int j = 0; j < ROW_VECTORS; j++)
        mine |= (uint32_t)popcount(mask >> (j * VECTOR) & ((1u << VECTOR) - 1)) << (j * LEVEL_BITS);
    uint32_t end = warp_scan(mine);
    return {end - mine, shuffle(end, WARP - 1)};
}
CAIRN_INLINE uint32_t level_sum(uint32_t all) {
    uint32_t sum = 0;
#pragma unroll
    for (int j = 0; j < ROW_VECTORS; j++) sum += all >> (j * LEVEL_BITS) & LEVEL_MASK;
    return sum;
}

/* Puts the masked items of a tile, which begins at position `first`, into the set, this warp's from
 * `at` on. */
CAIRN_INLINE void add_items(stream_shared &s, const stream_scores &scores, int first, uint32_t mask,
                            level_counts counts, uint32_t at) {
#pragma unroll
    for (int j = 0; j < ROW_VECTORS; j++) {
        uint32_t slot = at + (counts.before >> (j * LEVEL_BITS) & LEVEL_MASK);
#pragma unroll
        for (int c = 0; c < VECTOR; c++) {
            const int i = j * VECTOR + c;
            if (!(mask >> i & 1u)) continue;
            s.keys[slot] = as_u32(scores.item[i]);
            s.positions[slot++] = tile_position(first, i);
        }
        at += counts.all >> (j * LEVEL_BITS) & LEVEL_MASK;
    }
}

/* Adds of the scores [first, first + count), fewer than a vector, those that reach the floor;
 * returns how many are held then. */
CAIRN_INLINE int add_edge(stream_shared &s, const score_t *row, int first, int count,
                          uint32_t floor, int held) {
    const int at = first + lane_id();
    const float score = lane_id() < count ? to_f32(row[at]) : 0.0f;
    const uint32_t votes =
        warp_ballot(lane_id() < count && (floor == 0 || score >= key_score(floor)));
    if (warp_id() == 0 && votes >> lane_id() & 1u) {
        const int slot = held + popcount(votes & ((1u << lane_id()) - 1));
        s.keys[slot] = as_u32(score);
        s.positions[slot] = at;
    }
    return held + popcount(votes);
}

/* ---- the set --------------------------------------------------------------------------------- */

/* Turns the scores [from, to) into keys. Returns the range of this thread's, of these or of `all`
 * before them too. */
CAIRN_INLINE key_range seal(stream_shared &s, int from, int to, bool all) {
    key_range own = {0xffffffffu, 0u};
    block_sync();
#pragma unroll 1
    for (int i = thread_id() + (all ? 0 : from); i < to; i += STREAM_THREADS) {
        uint32_t key = s.keys[i];
        if (i >= from) s.keys[i] = key = topk_key(as_f32(key)) + 1;
        own = {min_of(own.low, key), max_of(own.high, key)};
    }
    return own;
}

/* In: the keys over `least`, and by position the first `equal_left` of those equal to it. */
struct stream_cut { uint32_t least, equal_left; };

/* The cut before the k-th of the set's `count` > k entries, all sealed: each round spreads a range
 * of keys over the bins and goes on with the bin that holds it. own: this thread's range. guess.low:
 * 0, or no key is below it, and most are no greater than guess.high. */
CAIRN_INLINE stream_cut find_cut(stream_shared &s, int count, int k, key_range own,
                                 key_range guess) {
    key_range range = {guess.low + 1, 0xffffffffu};
    uint32_t top = guess.high + 1, inside = 0xffffffffu, need = (uint32_t)k;
    if (guess.low == 0) {
        range = block_range(s.cut, own);
        top = range.high;
    }
#pragma unroll 1
    while (need != inside && range.low != range.high) {
        const int shift = range_shift({range.low, top}, CUT_BITS);
        clear_bins(s.cut);
        block_sync();
#pragma unroll 2
        for (int i = thread_id(); i < count; i += STREAM_THREADS) {
            const uint32_t from_low = s.keys[i] - range.low;
            if (from_low <= range.high - range.low)
                atomic_add(&s.cut.bins[min_of(from_low >> shift, CUT_BINS - 1u)], 1u);
        }
        block_sync();
        find_crossing(s.cut, need);
        need -= s.cut.found.above;
        inside = s.cut.found.inside;
        range.low += s.cut.found.bin << shift;
        if (s.cut.found.bin < CUT_BINS - 1) /* which has all above, too */
            range.high = range.low + min_of(range.high - range.low, (1u << shift) - 1);
        top = range.high;
    }
    if (need == inside) return {range.low - 1, 0};
    return {range.low, need};
}

/* Moves the chosen of `count` entries to the front; their order stays. Each thread looks at four
 * neighbours between barriers. Counts are in halves of a word: above the cut, equal to it. */
CAIRN_INLINE void take_chosen(stream_shared &s, int count, stream_cut cut) {
    uint32_t done = 0;
    int turn = 0;
#pragma unroll 1
    for (int first = 0; first < count; first += STREAM_THREADS * 4, turn ^= 1) {
        const int at = min_of(first + thread_id() * 4, STREAM_SET - 4);
        const u32x4 v = *(const u32x4 *)&s.keys[at], w = *(const u32x4 *)&s.positions[at];
        const uint32_t keys[4] = {v.x, v.y, v.z, v.w}, positions[4] = {w.x, w.y, w.z, w.w};
        uint32_t counts[4], mine = 0;
#pragma unroll
        for (int c = 0; c < 4; c++) {
            counts[c] = keys[c] > cut.least ? 1u : keys[c] == cut.least ? 1u << 16 : 0u;
            if (at + c >= count) counts[c] = 0;
            mine += counts[c];
        }
        const uint32_t end = warp_scan(mine);
        if (lane_id() == WARP - 1) s.counts[turn][warp_id()] = end;
        block_sync(); /* what is written now has been read */
        const uint32_t of = lane_id() < CUT_WARPS ? s.counts[turn][lane_id()] : 0;
        uint32_t before = done + warp_sum(lane_id() < warp_id() ? of : 0u) + end - mine;
        done += warp_sum(of);
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const uint32_t equals = min_of(before >> 16, cut.equal_left);
            const uint32_t slot = (before & 0xffffu) + equals;
            if (counts[c] == 1 || (counts[c] && equals < cut.equal_left)) {
                s.keys[slot] = keys[c];
                s.positions[slot] = (int32_t)positions[c];
            }
            before += counts[c];
        }
    }
    block_sync();
}

/* Where the read of a row stands; the same in every thread. */
struct stream_state {
    int base, held, kept, turn; /* of what is held, `kept` has been cut before */
    uint32_t floor;
};

/* Seals the set, unless all of it is `sealed`, and cuts it to its best k where it holds more.
 * guess: as for find_cut, of the first cut. */
CAIRN_INLINE void cut_set(stream_shared &s, int k, bool sealed, key_range guess,
                          stream_state &state) {
    if (state.kept) guess.low = 0;
    const key_range own = seal(s, sealed ? state.held : state.kept, state.held, guess.low == 0);
    if (state.held > k) {
        const stream_cut cut = find_cut(s, state.held, k, own, guess);
        take_chosen(s, state.held, cut);
        /* least is above the k-th's own key, or k of the set's reach that, counted from 1 */
        state.floor = max_of(state.floor, cut.least + (cut.equal_left == 0));
        state.held = k;
    }
    state.kept = state.held;
}

/* Adds of the tile at state.base what reaches the floor, and goes on to the next one; false when
 * the set has no room: it then holds k and more, and once they are cut, the tile fits. */
CAIRN_INLINE bool add_tile(stream_shared &s, const stream_body &body, const stream_scores &scores,
                           int k, stream_state &state) {
    const uint32_t mask = tile_mask(scores, state.base, body.size, state.floor);
    const level_counts counts = count_levels(mask);
    if (lane_id() == 0) s.counts[state.turn][warp_id()] = level_sum(counts.all);
    block_sync();
    const uint32_t of = lane_id() < CUT_WARPS ? s.counts[state.turn][lane_id()] : 0;
    const int total = state.held + (int)warp_sum(of);
    state.turn ^= 1;
    if (total > STREAM_SET - VECTOR) return false;
    add_items(s, scores, body.first + state.base, mask, counts,
              (uint32_t)state.held + warp_sum(lane_id() < warp_id() ? of : 0u));
    if (state.held < k && total >= k) state.floor++; /* k reach it, later equals come too late */
    state.held = total;
    state.base += STREAM_TILE;
    return true;
}

/* Adds s.part to the set, from state.base on, where `tile` lies; while a tile is looked at, the
 * next one is on its way. True when the set has no room for more. */
CAIRN_INLINE bool add_part(stream_shared &s, const stream_body &body, stream_tile &tile, int k,
                           stream_state &state) {
    if (state.base == 0) {
        const int begin = s.part.begin;
        const int head = min_of(body.first, s.part.end) - begin;
        state.held = add_edge(s, s.part.row, begin, head, state.floor, 0);
    }
#pragma unroll 1
    while (state.base < body.size) {
        stream_scores scores;
        take_tile(tile, scores);
        load_tile(body, state.base + STREAM_TILE, tile);
        if (!add_tile(s, body, scores, k, state)) return true;
    }
    const int end = body.first + body.size;
    state.held = add_edge(s, s.part.row, end, s.part.end - end, state.floor, state.held);
    return false;
}

/* From a key that k scores of the row reach all but surely, and not many more; 0 without a guess.
 * Meanwhile the first tile of what is read is on its way. */
CAIRN_INLINE key_range guess_range(stream_shared &s, const stream_part &part,
                                   const stream_body &body, int k, stream_tile &tile) {
    const int rank = sample_rank(k, part.length);
    const bool samples = part.length >= 2 * SAMPLE && rank <= SAMPLE;
    topk_vector sample[SAMPLE_EACH / VECTOR] = {};
    const stream_body sampled = body_of({part.row, part.length, 0, part.length});
    if (samples) load_sample(sampled.from, sampled.size, sample);
    if (body.size > 0) load_tile(body, 0, tile);
    if (!samples) return {0, 0};
    prefetch_tile(body, STREAM_TILE);
    return sample_range(s.cut, sample, rank);
}

/* Puts the best k of s.part into the set, sealed; how many there are. Of a slice those below the
 * floor that was guessed for the row are left out, and merge.begin says whether this block goes on
 * with the sets of all the row's slices, from which merge.add fills the set, and says whether there
 * are more; -1 where it does not. When fewer than k reach the floor, all of the row is read. */
template <class Merge>
CAIRN_INLINE int stream_row(stream_shared &s, const topk_params &p, const stream_part &part,
                            Merge merge) {
    const uint32_t least = p.finite_only ? KEY_MINUS_INFINITY + 1 : 0;
    stream_body body = body_of(part);
    stream_tile tile;
    const key_range guessed = guess_range(s, part, body, p.k, tile);
    uint32_t guess = guessed.low;
    stream_state state = {0, 0, 0, 0, max_of(least, guess)};
    bool merging = false;
    if (thread_id() == 0) s.guess_high = guessed.high;
    block_sync();
#pragma unroll 1
    for (;;) {
        const bool more = merging ? merge.add(p, state) : add_part(s, body, tile, p.k, state);
        const bool whole = merging || !is_slice(s.part);
        if (!more && whole && state.held < p.k && guess > least) { /* too few */
            block_sync();
            if (thread_id() == 0) s.part.begin = 0, s.part.end = s.part.length;
            block_sync();
            body = body_of(s.part);
            guess = 0, merging = false;
            state = {0, 0, 0, 0, least};
        } else {
            cut_set(s, p.k, merging, {guess, s.guess_high}, state);
            if (!more && whole) return state.held;
            if (!more) {
                if (!merge.begin(p, state.held)) return -1;
                merging = true;
                state = {0, 0, 0, 0, 0};
            }
        }
        if (!merging) load_tile(body, state.base, tile);
    }
}

/* The row's output: the set's `found` entries, or, without reading a score, a row of at most k. */
CAIRN_INLINE void write_set(stream_shared &s, const topk_params &p, const topk_out &out, bool whole,
                            int found) {
    if (whole) {
#pragma unroll 1
        for (int i = thread_id(); i < found; i += STREAM_THREADS) s.positions[i] = i;
    } else if (p.sort_size) {
        pad_entries(s.keys, s.positions, found, p.sort_size);
        sort_entries(s.keys, s.positions, p.sort_size);
    }
    topk_write_row(out, true, s.positions, found, p.k); /* a thread's own, in the first case */
}
