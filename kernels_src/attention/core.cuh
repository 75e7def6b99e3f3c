/* The core of attention over paged keys: up to 16 query rows of one KV head (the query heads that
 * share it, for one or several tokens) against one run of chunks; S^T = K Q^T and O^T = V^T P^T by mma
 * m16n8k16, f16 x f16 -> f32: keys and dimensions are the rows of a product, eight queries its columns,
 * so that few queries leave little of it empty. Steps, page selection and the ops drive it
 * (attention/layout.h); tiles of many queries: attention/rows.cuh.
 *
 * Each of CORE_WARPS warps has WARP_KEYS keys of every chunk in shared memory of its own, fetches
 * them itself and folds chunk after chunk into a running softmax: K of the next chunk is under way
 * while V of this one is used, and the other way round. At the end of the run the warps' sums meet.
 * A row's result depends on its query and the keys that it sees alone: rows never mix, and keys
 * that no row sees are zeros, whatever lies there.
 *
 * Of a run: for every row sum of 2^(s - m) v, and (m, sum of 2^(s - m)), where s = q.k factor and m
 * is the largest s (NOTHING if there is none).
 *
 * Constants: CAIRN_HEAD_DIM a multiple of 16 up to 256, CAIRN_PAGE_SIZE a multiple of 16. A head of the
 * cache has HEAD_DIM values, one in shared memory and registers DIM, the next multiple of 32: zeros
 * fill it up. */
#ifndef CAIRN_ATTENTION_CORE_CUH
#define CAIRN_ATTENTION_CORE_CUH

#include "attention/shape.cuh"

constexpr int DIM = layout_width(HEAD_DIM);
constexpr int CORE_WARPS = layout_warps(DIM), WARP_KEYS = layout_warp_keys(DIM);
constexpr int CHUNK = CORE_WARPS * WARP_KEYS;
constexpr int WARP_PIECES = WARP_KEYS / 16;
constexpr int PIECES = DIM / 8;                   /* of 16 bytes, of a key */
constexpr int KEYS_BYTES = WARP_KEYS * DIM * 2;   /* of a warp; as many for values */
constexpr int QUERIES_AT = CORE_WARPS * 2 * KEYS_BYTES;
constexpr int TOTALS_AT = QUERIES_AT + 16 * DIM * 2; /* [row, warp] (m, l) */
constexpr int WORDS_AT = TOTALS_AT + 16 * CORE_WARPS * 8; /* eight, for the driver */
constexpr int ATTEND_BYTES = WORDS_AT + 32;
constexpr float NOTHING = -1e30f;                 /* below every score */
/* Blocks of a multiprocessor, at least: as many as the registers allow without spilling. */
constexpr int BLOCKS_EACH = DIM <= 64 || (DIM <= 128 && CAIRN_ARCH == 900) ? 2 : 1;
static_assert(HEAD_DIM % 16 == 0 && DIM <= 512, "attention: the size of a head");
static_assert(ATTEND_BYTES == layout_attend_bytes(DIM), "attention: its shared memory");

/* ---- shared memory ---- */

/* Where piece `piece` of 16 bytes of a key, value or query lies, from the start of the warp's memory or of the
 * queries: the eight rows of an 8x8 tile touch all banks, transposed or not. */
CAIRN_INLINE uint32_t piece_at(int key, int piece) {
    return (uint32_t)(key * PIECES + (piece ^ (DIM % 64 ? key >> 1 & 3 : key & 7))) * 16;
}

/* From where piece 0 or 1 lies to where piece 4u + 2h, or 4u + 2h + 1, of the same key does. */
CAIRN_INLINE uint32_t pieces_on(uint32_t at, int u, int h) {
    if constexpr (DIM % 64 == 0) return (at + (uint32_t)(u / 2) * 128) ^ (uint32_t)(u % 2 * 64 + h * 32);
    return (at + (uint32_t)u * 64) ^ (uint32_t)h * 32;
}

/* Whether a head has piece `piece` of 16 bytes of f16. */
CAIRN_INLINE bool has_piece(int piece) { return DIM == HEAD_DIM || piece < HEAD_DIM / 8; }

/* Where the partial output of a warp lies, over its own keys and values: row m, dimension d. */
CAIRN_INLINE int part_at(int m, int d) { return m * DIM + (d ^ (m & 3) << 3); }

/* ---- operands ----
 * With g = lane / 4 and t = lane % 4, a lane has keys g and g + 8 of the sixteen of a piece, and queries 2t and
 * 2t + 1 of a tile of eight. */

/* Tiles of eight for so many queries. */
CAIRN_INLINE constexpr int query_tiles(int queries) { return (queries + 7) / 8; }

/* Scores of a warp's keys: of query 2t + c % 2 of tile q with key g + c / 2 * 8 of piece i. */
template <int TILES> struct scores {
    float v[TILES][WARP_PIECES][4];

    /* f(query, piece, key of it, score): of all that may be among `count` queries. */
    template <class F> CAIRN_MEMBER void each(int count, F f) {
        const int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
        for (int q = 0; q < TILES; q++) {
            if (q > 0 && count <= q * 8) break;
#pragma unroll
            for (int i = 0; i < WARP_PIECES; i++)
#pragma unroll
                for (int c = 0; c < 4; c++) f(q * 8 + 2 * t + c % 2, i, c / 2 * 8 + g, v[q][i][c]);
        }
    }
};

/* Where queries are rows: pieces u * 4 + t of queries g and g + 8 as two A operands. */
CAIRN_INLINE void query_operands(u32x4 low, u32x4 high, uint32_t *a) {
    a[0] = low.x, a[1] = high.x, a[2] = low.y, a[3] = high.y;
    a[4] = low.z, a[5] = high.z, a[6] = low.w, a[7] = high.w;
}

/* The largest, the sum of the eight lanes that have the same queries. */
CAIRN_INLINE float column_max(float v) {
#pragma unroll
    for (int m = 4; m < WARP; m *= 2) v = fmaxf(v, shuffle_xor(v, m));
    return v;
}
CAIRN_INLINE float column_sum(float v) {
#pragma unroll
    for (int m = 4; m < WARP; m *= 2) v += shuffle_xor(v, m);
    return v;
}

/* Scales that a cache without scales has: of keys, and what a key's weight e^(s - m) is taken times
 * before it meets its values, as are the sums before. */
struct no_scales {
    CAIRN_MEMBER explicit no_scales(unsigned char *) {}
    template <int TILES> CAIRN_MEMBER void of_keys(int, scores<TILES> &, int) const {}
    CAIRN_MEMBER void of_values(int) const {}
    CAIRN_MEMBER float weight(int, float e) const { return e; } /* i: of key g + i % 2 * 8 of piece i / 2 */
    CAIRN_MEMBER float fade(float old) const { return old; }
    CAIRN_MEMBER float whole(float v) const { return v; }
};

/* How the keys of a cache lie there, as pieces of 16 bytes, of STAGES chunks at a time, and how they
 * become operands. Another kind of cache has a struct like this one. */
struct half_store {
    static constexpr int STAGES = 1, PARTS = PIECES;
    static constexpr bool TURNED = false; /* rows g and g + 8 of O^T are dimensions 2g and 2g + 1 of sixteen */
    typedef no_scales Scales;

    CAIRN_METHOD uint32_t place(int key, int part) { return piece_at(key, part); }
    /* Dimensions 32u.. of keys 16i.. as two A operands. */
    CAIRN_METHOD void keys(const unsigned char *keys, int i, int u, uint32_t *a) {
        const int lane = lane_id();
        const uint32_t at = place(lane % 16, lane / 16);
        keys += i * 16 * PIECES * 16;
#pragma unroll
        for (int h = 0; h < 2; h++) load_matrix_x4(a + 4 * h, shared_addr(keys + pieces_on(at, u, h)));
    }
    /* The same dimensions of queries 8q.., as two B operands. */
    CAIRN_METHOD void queries(const unsigned char *queries, int q, int u, uint32_t *b) {
        const int lane = lane_id();
        load_matrix_x4(b, shared_addr(queries + piece_at(q * 8 + lane % 8, 4 * u + lane / 8)));
    }
    /* Dimensions 32n.. of the values of keys 16i.. as two A operands. */
    CAIRN_METHOD void values(const unsigned char *values, int i, int n, uint32_t *a) {
        const int lane = lane_id();
        const uint32_t at = place(lane / 16 * 8 + lane % 8, lane / 8 & 1);
        values += i * 16 * PIECES * 16;
#pragma unroll
        for (int h = 0; h < 2; h++)
            load_matrix_transposed_x4(a + 4 * h, shared_addr(values + pieces_on(at, n, h)));
    }
};
template <class Cache> struct store_of { typedef half_store type; };

/* ---- keys and values ---- */

/* Sixteen keys of a warp: values from the layer's cache to them, the position of the first, and the
 * last one that any row sees (-1: none). */
struct key_piece {
    int64_t at;
    int position, last;
};

/* Leaves no key alone. */
struct no_skip {
    CAIRN_MEMBER bool operator()(int, int, bool) const { return false; }
};

/* Copies of a piece in one text: what leaves keys alone does so once, before its loop. sm_120 runs out of registers
 * where more is under way at a time; so it does in a step's one kernel by products of keys, and by another way for few
 * queries. */
template <class Skip> constexpr int FETCHES = 1;
template <> constexpr int FETCHES<no_skip> = CAIRN_ARCH >= 1000 || DIM > 64 ? 2 : 4;
#if CAIRN_ARCH >= 1000 && defined(CAIRN_BLOCKS)
constexpr bool SCARCE = CAIRN_BLOCKS > 0;
#else
constexpr bool SCARCE = false;
#endif
constexpr int SCORES_UNROLLED = SCARCE ? 1 : DIM / 32;

/* Starts the copy of part `part` of key `slot` of piece i; zeros where no row sees the key. A cache
 * of another kind is a struct with a function of this name beside it, and with + for values. */
CAIRN_INLINE void fetch_part(const uint16_t *cache, const key_piece &piece, int, int slot, int part,
                             bool seen, shared_addr to) {
    if constexpr (DIM != HEAD_DIM) seen = seen && has_piece(part);
    copy_async16(to, cache + (seen ? piece.at + slot * HEAD_DIM + part * 8 : 0), seen);
}

/* Starts the copies of this warp's keys (`to` is where piece 0 of key 0 goes; place: Store::place);
 * those that no row sees become zero. skip(i, position, seen): whether to leave a key of
 * piece i alone. */
template <class Cache, class Place, class Skip>
CAIRN_INLINE void fetch_pieces(Cache cache, const key_piece *piece, shared_addr to,
                               Place place, Skip skip) {
    constexpr int PARTS = store_of<Cache>::type::PARTS;
#pragma unroll
    for (int i = 0; i < WARP_PIECES; i++) {
#pragma unroll FETCHES<Skip>
        for (int n = lane_id(); n < 16 * PARTS; n += WARP) {
            const int slot = n / PARTS, part = n % PARTS;
            const bool seen = slot <= piece[i].last;
            if (skip(i, piece[i].position + slot, seen)) continue;
            fetch_part(cache, piece[i], i, slot, part, seen, to + place(i * 16 + slot, part));
        }
    }
}

/* The same of f16 whose heads are whole lines, all keys: the sixteen of a piece follow each other, so a
 * lane's copies are steps of one length. (Worked out one by one, addresses were two thirds of all
 * instructions of a long run.) */
template <class Cache, class Skip> constexpr bool STEPS = false;
template <> constexpr bool STEPS<const uint16_t *, no_skip> = DIM == HEAD_DIM && WARP % PIECES == 0;
template <> constexpr bool STEPS<uint16_t *, no_skip> = STEPS<const uint16_t *, no_skip>;
constexpr int STEPS_UNROLLED = PAGE < 32 ? 1 : 4; /* as registers allow */
template <class Place>
CAIRN_INLINE void fetch_steps(const uint16_t *cache, const key_piece *piece, shared_addr to, Place place) {
    constexpr int STEP = max_of(WARP / PIECES, 1);
    const int first = lane_id() / PIECES, part = lane_id() % PIECES;
#pragma unroll
    for (int i = 0; i < WARP_PIECES; i++) {
        const int64_t at = piece[i].last < 0 ? 0 : piece[i].at;
        const uint16_t *from = cache + at + lane_id() * 8;
#pragma unroll STEPS_UNROLLED
        for (int slot = 0; slot < 16; slot += STEP)
            copy_async16(to + place(i * 16 + (slot | first), part), from + slot * HEAD_DIM,
                         slot + first <= piece[i].last);
    }
}

template <class Cache, class Skip>
CAIRN_INLINE void fetch_keys(Cache cache, const key_piece *piece, unsigned char *mine,
                             Skip skip) {
    typedef typename store_of<Cache>::type Store;
    const auto place = [](int key, int part) { return Store::place(key, part); };
    if constexpr (STEPS<Cache, Skip>) fetch_steps(cache, piece, shared_addr(mine), place);
    else fetch_pieces(cache, piece, shared_addr(mine), place, skip);
}
/* value_step: values from a key to its value. */
template <class Cache, class Skip>
CAIRN_INLINE void fetch_values(Cache cache, int value_step, const key_piece *piece,
                               unsigned char *mine, Skip skip) {
    fetch_keys(cache + value_step, piece, mine + KEYS_BYTES, skip);
}

/* Both, by one text: for kernels that fetch so once, before their loop, for whose compilation the code counts. Of
 * caches whose keys and values differ by where they lie alone. */
template <class Cache, class Skip>
CAIRN_INLINE void fetch_both(Cache cache, int value_step, const key_piece *piece, unsigned char *mine, Skip skip) {
#pragma unroll 1
    for (int side = 0; side < 2; side++) fetch_keys(cache + side * value_step, piece, mine + side * KEYS_BYTES, skip);
}

/* ---- lists of pages ---- */

constexpr int32_t SINKS_ALONE = 1 << 30; /* with a logical page: only its sinks are attended */

/* An entry of a list: its logical page, as above, and its physical one, -1 for none. */
struct page_entry {
    int page, physical;
};

/* The pieces of this warp, chunk after chunk of a list of pages: a lane looks up the page of one
 * piece, so that the warp knows those of many chunks ahead. source.entry(i): entry i. */
template <class Source> struct listed_pieces {
    static constexpr int AHEAD = WARP / WARP_PIECES; /* chunks */
    Source source;
    int kv_heads, kv_head;
    int end, sinks; /* the position behind the last that any row sees; tokens */
    int chunks;     /* of the list, up to the run's end */
    page_entry held; /* of a piece of the AHEAD chunks around */

    CAIRN_MEMBER void look_up(int chunk) {
        const int mine = chunk / AHEAD * AHEAD + lane_id() / WARP_PIECES;
        const int at = mine * CHUNK + warp_id() * WARP_KEYS + lane_id() % WARP_PIECES * 16;
        held = page_entry{0, -1};
        if (mine >= chunk && mine < chunks) held = source.entry(at / PAGE);
        warp_sync();
    }
    /* Before find, for every chunk but the first in turn. */
    CAIRN_MEMBER void reach(int chunk) {
        if (chunk % AHEAD == 0) look_up(chunk);
    }
    CAIRN_MEMBER void find(int chunk, key_piece *piece) const {
#pragma unroll
        for (int i = 0; i < WARP_PIECES; i++) {
            const int from = chunk % AHEAD * WARP_PIECES + i;
            const int page = shuffle(held.page, from), physical = shuffle(held.physical, from);
            const int slot = (chunk * CHUNK + warp_id() * WARP_KEYS + i * 16) % PAGE;
            const int limit = page & SINKS_ALONE ? min_of(sinks, end) : end;
            piece[i].position = (page & ~SINKS_ALONE) * PAGE + slot;
            piece[i].last = physical < 0 ? -1 : min_of(limit - 1 - piece[i].position, 15);
            piece[i].at = layout_slot(physical, 0, kv_head, slot, kv_heads, PAGE, HEAD_DIM);
        }
    }
};

/* Bits of the pages of word `word` below `page`, 32 to a word. */
CAIRN_INLINE uint32_t bits_below(int page, int word) {
    const int count = page - word * WARP;
    return count <= 0 ? 0u : count >= WARP ? ~0u : (1u << count) - 1;
}

/* The sum of the values of the threads before this one. All threads; totals, a word for each warp,
 * are free again after another block_sync. */
CAIRN_INLINE int sum_before(int v, int *totals) {
    const int sum = warp_scan(v);
    if (lane_id() == WARP - 1) totals[warp_id()] = sum;
    block_sync();
    int before = sum - v;
    for (int w = 0; w < warp_id(); w++) before += totals[w];
    return before;
}

/* ---- the softmax ---- */

/* The largest, the sum of the four lanes that share a row. */
CAIRN_INLINE float quad_max(float v) {
    v = fmaxf(v, shuffle_xor(v, 1));
    return fmaxf(v, shuffle_xor(v, 2));
}
CAIRN_INLINE float quad_sum(float v) {
    v += shuffle_xor(v, 1);
    return v + shuffle_xor(v, 2);
}

/* Scores of KEYS keys as wgmma leaves a thread's two rows become weights, times `factor` in the
 * exponent of two; top and total go on, old: what the sums so far are to be taken times. */
template <int KEYS>
CAIRN_INLINE void weigh_scores(float *s, float factor, float *top, float *total, float *old) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float most = s[2 * h], sum = 0.0f;
#pragma unroll
        for (int i = 0; i < KEYS / 8; i++) most = fmaxf(most, fmaxf(s[4 * i + 2 * h], s[4 * i + 2 * h + 1]));
        most = fmaxf(top[h], quad_max(most) * factor);
        const float base = most == minus_infinity() ? 0.0f : most;
        old[h] = exp2_fast(top[h] - base);
        top[h] = most;
#pragma unroll
        for (int i = 0; i < KEYS / 8; i++) {
            float *two = s + 4 * i + 2 * h;
            two[0] = exp2_fast(fma_f32(two[0], factor, -base));
            two[1] = exp2_fast(fma_f32(two[1], factor, -base));
            sum += two[0] + two[1];
        }
        total[h] = fma_f32(total[h], old[h], sum);
    }
}
/* The running softmax of a warp's keys: of queries 2t and 2t + 1 of each tile, the total over the keys of this
 * lane alone; o: rows g and g + 8 of sixteen dimensions of O^T. */
template <int TILES> struct running {
    float top[TILES][2], total[TILES][2];
    float o[TILES][DIM / 16][4];

    CAIRN_MEMBER void clear() {
#pragma unroll
        for (int q = 0; q < TILES; q++) {
            top[q][0] = top[q][1] = NOTHING;
            total[q][0] = total[q][1] = 0.0f;
#pragma unroll
            for (int n = 0; n < DIM / 16; n++)
#pragma unroll
                for (int c = 0; c < 4; c++) o[q][n][c] = 0.0f;
        }
    }
};

/* Products of `count` queries, which stand at piece_at, with a warp's keys. */
template <class Store, int TILES>
CAIRN_INLINE void score_keys(const unsigned char *queries, const unsigned char *keys, int count,
                             scores<TILES> &s) {
#pragma unroll
    for (int q = 0; q < TILES; q++)
#pragma unroll
        for (int i = 0; i < WARP_PIECES * 4; i++) s.v[q][i / 4][i % 4] = 0.0f;
#pragma unroll SCORES_UNROLLED
    for (int u = 0; u < DIM / 32; u++) {
        uint32_t b[TILES][4];
#pragma unroll
        for (int q = 0; q < TILES; q++)
            if (q == 0 || count > q * 8) Store::queries(queries, q, u, b[q]);
#pragma unroll
        for (int i = 0; i < WARP_PIECES; i++) {
            uint32_t a[8];
            Store::keys(keys, i, u, a);
#pragma unroll
            for (int q = 0; q < TILES; q++) {
                if (q > 0 && count <= q * 8) break;
                mma_f16(s.v[q][i], a, b[q]);
                mma_f16(s.v[q][i], a + 4, b[q] + 2);
            }
        }
    }
}

/* Folds the scores of tile q into the running softmax and leaves their weights as a B operand for each piece.
 * last(i, query): the last key that it sees of piece i, counted from there. */
template <int TILES, class Last, class Scales>
CAIRN_INLINE void fold_scores(running<TILES> &r, scores<TILES> &s, int q, Last last, float factor,
                              uint32_t *weights, const Scales &times) {
    const int g = lane_id() / 4, t = lane_id() % 4;
    float fade[2];
#pragma unroll
    for (int c = 0; c < 2; c++) {
        float top = r.top[q][c], total = 0.0f;
#pragma unroll
        for (int i = 0; i < WARP_PIECES * 2; i++) {
            float &v = s.v[q][i / 2][i % 2 * 2 + c];
            v = i % 2 * 8 + g <= last(i / 2, q * 8 + 2 * t + c) ? v * factor : NOTHING;
            top = fmaxf(top, v);
        }
        top = column_max(top);
        const float base = fmaxf(top, 0.5f * NOTHING); /* so that an unseen key weighs nothing */
        const float old = exp2_fast(r.top[q][c] - base);
#pragma unroll
        for (int i = 0; i < WARP_PIECES * 2; i++) {
            float &v = s.v[q][i / 2][i % 2 * 2 + c];
            const float e = exp2_fast(v - base);
            total += e;
            v = times.weight(i, e);
        }
        r.top[q][c] = top;
        r.total[q][c] = fma_f32(r.total[q][c], old, total);
        fade[c] = times.fade(old);
    }
#pragma unroll
    for (int i = 0; i < WARP_PIECES * 2; i++) {
        const float *two = s.v[q][i / 2] + i % 2 * 2;
        weights[i] = transpose_matrix(pack_f16x2(two[0], two[1]));
    }
    if (!warp_ballot(fade[0] != 1.0f || fade[1] != 1.0f)) return;
#pragma unroll
    for (int n = 0; n < DIM / 16; n++)
#pragma unroll
        for (int c = 0; c < 4; c++) r.o[q][n][c] *= fade[c % 2];
}

/* Adds V^T P^T. */
template <class Store, int TILES>
CAIRN_INLINE void add_values(running<TILES> &r, const uint32_t (*weights)[WARP_PIECES * 2],
                             const unsigned char *values, int count) {
#pragma unroll
    for (int i = 0; i < WARP_PIECES; i++) {
#pragma unroll
        for (int n = 0; n < DIM / 32; n++) {
            uint32_t a[8];
            Store::values(values, i, n, a);
#pragma unroll
            for (int q = 0; q < TILES; q++) {
                if (q > 0 && count <= q * 8) break;
                mma_f16(r.o[q][2 * n], a, weights[q] + 2 * i);
                mma_f16(r.o[q][2 * n + 1], a + 4, weights[q] + 2 * i);
            }
        }
    }
}

/* ---- a run ---- */

/* The sums of a warp's keys into `part` and, (m, l) of them, to the other warps. totals: [query, warp] */
template <class Store, int TILES, class Scales>
CAIRN_INLINE void put_sums(const running<TILES> &r, const Scales &scales, int count, float *part,
                           f32x2 *totals) {
    const int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
    for (int i = 0; i < TILES * 2; i++) {
        const int q = i / 2, c = i % 2, m = q * 8 + 2 * t + c;
        if (q > 0 && count <= q * 8) break;
        const float total = column_sum(r.total[q][c]);
        if (m >= count) continue;
#pragma unroll
        for (int n = 0; n < DIM / 16; n++) {
            const float x = scales.whole(r.o[q][n][c]), y = scales.whole(r.o[q][n][2 + c]);
            if (Store::TURNED) *(f32x2 *)(part + part_at(m, n * 16 + 2 * g)) = f32x2{x, y};
            else part[part_at(m, n * 16 + g)] = x, part[part_at(m, n * 16 + 8 + g)] = y;
        }
        if (g == 0) totals[m * CORE_WARPS + warp_id()] = f32x2{r.top[q][c], total};
    }
}

/* Starts the copies of the chunks that attend_chunks finds there or under way, of [begin, end): once all
 * groups of copies but the last 2 STAGES - 2 are waited for. piece: of so many chunks. */
template <class Cache, class Keys>
CAIRN_INLINE void begin_chunks(Cache cache, int value_step, unsigned char *memory, int begin, int end,
                               key_piece *piece, Keys &keys) {
    constexpr int STAGES = store_of<Cache>::type::STAGES;
    const no_skip none;
    unsigned char *mine = memory + warp_id() * 2 * KEYS_BYTES;
#pragma unroll
    for (int i = 0; i < STAGES; i++) {
        const int chunk = begin + i;
        unsigned char *to = mine + chunk % STAGES * (KEYS_BYTES / STAGES);
        if (i > 0 && chunk >= end) {
            copy_async_commit();
            copy_async_commit();
            continue;
        }
        if (i == 0) keys.look_up(chunk);
        else keys.reach(chunk);
        keys.find(chunk, piece + i * WARP_PIECES);
        fetch_keys(cache, piece + i * WARP_PIECES, to, none);
        if (i > 0) copy_async_commit();
        fetch_values(cache, value_step, piece + i * WARP_PIECES, to, none);
        copy_async_commit();
    }
}

/* One warp: chunks [first, end), of which the first lies in shared memory as do the queries, once
 * copies and a block_sync are waited for; and as many more as the store has stages are under way, a
 * group of copies for keys and one for values. keys.find(chunk, piece), after keys.reach(chunk): the
 * warp's pieces of a chunk; piece: those of the chunks that are there. last(piece, m): the last of
 * its keys that query m sees; adjust(chunk, piece, s): what becomes of the scores s. TILES: of queries, so many
 * at most.
 * RUN_AFTER_RUN: chunks from `end` up to `stop` are fetched ahead, and lie there as the first did when the next
 * such call begins: then the warp's sums must not lie over its keys. parts(), totals(): where put_sums is to
 * put them. */
template <bool RUN_AFTER_RUN, int TILES, class Cache, class Keys, class Last, class Adjust, class Parts, class Totals>
CAIRN_INLINE void attend_chunks(Cache cache, int value_step, unsigned char *memory, int first,
                                int end, int stop, int count, float factor, key_piece *piece, Keys &keys,
                                Last last, Adjust adjust, Parts parts, Totals totals) {
    typedef typename store_of<Cache>::type Store;
    constexpr int STAGES = Store::STAGES, PENDING = 2 * STAGES - 1;
    const no_skip none;
    unsigned char *mine = memory + warp_id() * 2 * KEYS_BYTES;
    typename Store::Scales scales(memory);
    running<TILES> r;
    r.clear();
#pragma unroll 1
    for (int chunk = first; chunk < end; chunk++) {
        scores<TILES> s;
        uint32_t weights[TILES][WARP_PIECES * 2];
        const int stage = chunk % STAGES;
        unsigned char *at = mine + stage * (KEYS_BYTES / STAGES);
        if (RUN_AFTER_RUN || chunk > first) {
            copy_async_wait<PENDING>(); /* its keys are here, its values may be under way */
            warp_sync();
        }
        score_keys<Store>(memory + QUERIES_AT, at, count, s);
        scales.of_keys(stage, s, count);
        adjust(chunk, piece, s);
        warp_sync();
        key_piece next[WARP_PIECES];
        if (chunk + STAGES < stop) {
            keys.reach(chunk + STAGES);
            keys.find(chunk + STAGES, next);
            fetch_keys(cache, next, at, none);
        }
        copy_async_commit();
        if (STAGES > 1) {
            copy_async_wait<PENDING>();
            warp_sync();
        }
        scales.of_values(stage);
#pragma unroll
        for (int q = 0; q < TILES; q++)
            if (q == 0 || count > q * 8)
                fold_scores(r, s, q, [&](int i, int m) { return last(piece[i], m); }, factor, weights[q],
                            scales);
        if (STAGES == 1 && (RUN_AFTER_RUN || chunk > first)) {
            copy_async_wait<PENDING>();
            warp_sync();
        }
        add_values<Store>(r, weights, at + KEYS_BYTES, count);
        warp_sync();
#pragma unroll
        for (int i = 0; i < WARP_PIECES * (STAGES - 1); i++) piece[i] = piece[i + WARP_PIECES];
        if (chunk + STAGES < stop) {
            key_piece *behind = piece + WARP_PIECES * (STAGES - 1);
            if (STAGES == 1) keys.find(chunk + STAGES, behind);
            for (int i = 0; i < WARP_PIECES && STAGES > 1; i++) behind[i] = next[i];
            fetch_values(cache, value_step, behind, at, none);
        }
        copy_async_commit();
    }
    put_sums<Store>(r, scales, count, parts(), totals());
    warp_sync();
}

template <int TILES = 2, class Cache, class Keys, class Last, class Adjust>
CAIRN_INLINE void attend_run(Cache cache, int value_step, unsigned char *memory, int first, int end,
                             int count, float factor, key_piece *piece, Keys &keys, Last last,
                             Adjust adjust) {
    const auto parts = [&] { return (float *)(memory + warp_id() * 2 * KEYS_BYTES); };
    const auto totals = [&] { return (f32x2 *)(memory + TOTALS_AT); };
    if (TILES > 1 && !SCARCE && count <= 8) /* the usual case has registers to spare */
        attend_chunks<false, 1>(cache, value_step, memory, first, end, end, count, factor, piece, keys, last,
                                adjust, parts, totals);
    else
        attend_chunks<false, TILES>(cache, value_step, memory, first, end, end, count, factor, piece, keys,
                                    last, adjust, parts, totals);
}

template <int TILES = 2, class Cache, class Keys, class Last>
CAIRN_INLINE void attend_run(Cache cache, int value_step, unsigned char *memory, int first, int end,
                             int count, float factor, key_piece *piece, Keys &keys, Last last) {
    attend_run<TILES>(cache, value_step, memory, first, end, count, factor, piece, keys, last,
                      [](int, const key_piece *, auto &) {});
}

/* Merges what the warps left, after a block_sync: out(m, d, v, sums) of four dimensions from d on of a row, with its
 * (m, l). All threads. parts, step: where the first warp's sums lie, and the next ones' from there; totals: of
 * put_sums. */
template <class Out>
CAIRN_INLINE void merge_warps(const f32x2 *totals, const unsigned char *parts, int step, int count, Out out) {
#pragma unroll 1
    for (int i = thread_id(); i < count * (HEAD_DIM / 4); i += block_threads()) {
        const int m = i / (HEAD_DIM / 4), d = i % (HEAD_DIM / 4) * 4;
        const f32x2 *own = totals + m * CORE_WARPS;
        float top = NOTHING, total = 0.0f;
        f32x4 v = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int w = 0; w < CORE_WARPS; w++) top = fmaxf(top, own[w].x);
#pragma unroll
        for (int w = 0; w < CORE_WARPS; w++) {
            const float weight = exp2_fast(own[w].x - top);
            const f32x4 part = *(const f32x4 *)((const float *)(parts + w * step) + part_at(m, d));
            total = fma_f32(weight, own[w].y, total);
            v.x = fma_f32(weight, part.x, v.x), v.y = fma_f32(weight, part.y, v.y);
            v.z = fma_f32(weight, part.z, v.z), v.w = fma_f32(weight, part.w, v.w);
        }
        out(m, d, v, f32x2{top, total});
    }
}

#endif
