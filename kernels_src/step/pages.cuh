/* Page selection of one row and KV head, and attention over the pages that it keeps: what the flow
 * kernel and the stage kernels (step/select.cu) share, so that both keep the same pages and give
 * the same bits.
 *
 * The row at position i has the whole pages before its window as candidates. Scores are
 * sum_d max(q_d lo_d, q_d hi_d) (or q . mean), summed over the KV head's query heads or the best of
 * them; the topk highest are kept, the lowest page among equals, NaN last. All pages from the
 * window on are attended, and of a page with sinks that is not kept the sinks alone. */
#ifndef CAIRN_STEP_PAGES_CUH
#define CAIRN_STEP_PAGES_CUH

#include "step/attend.cuh"

constexpr int LANE_DIMS = HEAD_DIM / WARP, LANE_WORDS = LANE_DIMS / 2;
constexpr int MOST_PAGES = ceil_div(CAIRN_CONTEXT, PAGE), PAGE_WORDS = ceil_div(MOST_PAGES, WARP);

/* A row and KV head that select. */
struct page_row {
    int row, kv_head, position, sequence;
    int stored;           /* pages of the sequence whose bounds are stored */
    int fresh_row, fresh; /* first row of the sequence in this forward, and its position */
    int candidates;       /* none where the layer does not select */
    const int32_t *table;

    CAIRN_MEMBER void find(const step_params &p, int at_row, int head, bool selects) {
        const int32_t *array = p.input + STEP_HEAD;
        row = at_row, kv_head = head;
        position = array[STEP_POSITION * p.capacity + row];
        sequence = array[STEP_SEQUENCE * p.capacity + row];
        stored = array[STEP_STORED * p.capacity + row];
        fresh_row = array[STEP_FIRST * p.capacity + row];
        fresh = array[STEP_POSITION * p.capacity + fresh_row];
        table = p.page_table + (int64_t)sequence * p.table_stride;
        int before = p.window > 0 ? position - p.window + 1 : position;
        candidates = selects ? max_of(before, 0) / PAGE : 0;
    }
    CAIRN_MEMBER int64_t page_at(int page) const { /* values from a layer's KV to its keys */
        return ((int64_t)table[page] * 2 * KV_HEADS + kv_head) * PAGE * HEAD_DIM;
    }
};

/* ---- bounds: of dimensions lane LANE_DIMS.. of a page ---- */

struct page_bounds {
    uint32_t lo[LANE_WORDS], hi[LANE_WORDS]; /* pairs of f16 */

    CAIRN_MEMBER void load(const uint16_t *from) { /* [lo or hi, HEAD_DIM] */
#pragma unroll
        for (int i = 0; i < LANE_WORDS; i++) {
            lo[i] = load_early((const uint32_t *)from + lane_id() * LANE_WORDS + i);
            hi[i] = load_early((const uint32_t *)(from + HEAD_DIM) + lane_id() * LANE_WORDS + i);
        }
    }
};

/* Words of the mean, from sums over a page, and of what f16 left of it. */
CAIRN_INLINE void mean_words(const float *sum, uint32_t *mean, uint32_t *rest) {
    const float x = sum[0] / (float)PAGE, y = sum[1] / (float)PAGE;
    *mean = pack_f16x2(x, y);
    const f32x2 two = unpack_f16x2(*mean);
    *rest = pack_f16x2(add_f32(x, -two.x), add_f32(y, -two.y));
}

/* Lowest and highest of the keys of a page; or, as lo and hi, their mean (sum over ascending slots
 * in f32) and what f16 left of it, for a mean rounded once too often picks other pages.
 * word(slot, i): a pair of a key's dimensions. */
template <class Word> CAIRN_INLINE page_bounds bounds_of(bool mean, Word word) {
    page_bounds out;
    float lo[LANE_DIMS], hi[LANE_DIMS], sum[LANE_DIMS] = {};
#pragma unroll 1
    for (int slot = 0; slot < PAGE; slot++)
#pragma unroll
        for (int i = 0; i < LANE_DIMS; i++) {
            f32x2 two = unpack_f16x2(word(slot, i / 2));
            float k = i % 2 ? two.y : two.x;
            lo[i] = slot ? min_of(lo[i], k) : k;
            hi[i] = slot ? max_of(hi[i], k) : k;
            sum[i] = add_f32(sum[i], k);
        }
#pragma unroll
    for (int i = 0; i < LANE_WORDS; i++) {
        out.lo[i] = pack_f16x2(lo[2 * i], lo[2 * i + 1]);
        out.hi[i] = pack_f16x2(hi[2 * i], hi[2 * i + 1]);
        if (mean) mean_words(sum + 2 * i, &out.lo[i], &out.hi[i]);
    }
    return out;
}

/* ---- scores ---- */

/* The largest product that bounds allow, max(q lo, q hi), is max(q, 0) hi + min(q, 0) lo, so that a
 * sum over heads is one product of a page's bounds, [lo | hi] as they lie, with the heads' sums of
 * these parts; of a mean, whose bounds are its two halves, both parts are q. A vector of parts is
 * two columns of an mma: f16, and what f16 left. Sixteen pages at a time for a warp. */
constexpr int SCORED = 16;
constexpr int BOUND_PIECES = HEAD_DIM / 16; /* of 16 bytes, of a page's bounds that a lane holds */
constexpr int PART_WORDS = HEAD_DIM;        /* of a column */

/* parts [vectors, 2, PART_WORDS]: the sums over all heads, or with by_head a vector for each.
 * query(head, i): a head's dimensions 2i, 2i + 1. All threads; then a block_sync. */
template <class Query>
CAIRN_INLINE void split_queries(uint32_t *parts, bool mean, bool by_head, Query query) {
#pragma unroll 1
    for (int i = thread_id(); i < (by_head ? GROUP : 1) * (HEAD_DIM / 2); i += THREADS) {
        const int vector = i / (HEAD_DIM / 2), word = i % (HEAD_DIM / 2);
        float part[2][2] = {}; /* below and above zero */
#pragma unroll 1
        for (int h = by_head ? vector : 0; h < (by_head ? vector + 1 : GROUP); h++) {
            const f32x2 two = unpack_f16x2(query(h, word));
            const float q[2] = {two.x, two.y};
#pragma unroll
            for (int k = 0; k < 2; k++) {
                part[0][k] = add_f32(part[0][k], mean || !(q[k] > 0.0f) ? q[k] : 0.0f);
                part[1][k] = add_f32(part[1][k], mean || q[k] > 0.0f ? q[k] : 0.0f);
            }
        }
#pragma unroll
        for (int k = 0; k < 2; k++) {
            uint32_t *to = parts + vector * 2 * PART_WORDS + k * (HEAD_DIM / 2) + word;
            const uint32_t rounded = pack_f16x2(part[k][0], part[k][1]);
            const f32x2 two = unpack_f16x2(rounded);
            to[0] = rounded;
            to[PART_WORDS] = pack_f16x2(add_f32(part[k][0], -two.x), add_f32(part[k][1], -two.y));
        }
    }
}

/* Bounds of SCORED pages as the mma's A: piece u of a lane is piece u * 4 + t of pages g, g + 8. */
struct page_tile {
    u32x4 row[2][BOUND_PIECES];

    /* Pages [first, count), those behind the last as the last. */
    CAIRN_MEMBER void load(const page_row &r, const uint16_t *stored, int first, int count) {
        if (first >= count) return;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int page = min_of(first + half * 8 + lane_id() / 4, count - 1);
            const uint16_t *from = stored + (int64_t)r.table[page] * KV_HEADS * 2 * HEAD_DIM +
                                   lane_id() % 4 * 8;
#pragma unroll
            for (int u = 0; u < BOUND_PIECES; u++)
                row[half][u] = load_early((const u32x4 *)(from + u * 32));
        }
    }
    /* Page `at` of the tile, from all lanes' dimensions. */
    CAIRN_MEMBER void put(int at, const page_bounds &b) {
#pragma unroll
        for (int u = 0; u < BOUND_PIECES; u++) {
            uint32_t v[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int word = (u % (BOUND_PIECES / 2) * 4 + lane_id() % 4) * 4 + k;
                v[k] = shuffle(u < BOUND_PIECES / 2 ? b.lo[k % LANE_WORDS] : b.hi[k % LANE_WORDS],
                               word / LANE_WORDS);
            }
#pragma unroll
            for (int half = 0; half < 2; half++)
                if (at == half * 8 + lane_id() / 4) row[half][u] = u32x4{v[0], v[1], v[2], v[3]};
        }
    }
    /* s[half]: the score of page g + 8 half by vector first + t. */
    CAIRN_MEMBER void multiply(const uint32_t *parts, int first, int vectors, float *s) const {
        const int g = lane_id() / 4, t = lane_id() % 4;
        float c[2][4] = {};
#pragma unroll
        for (int u = 0; u < BOUND_PIECES; u++) {
            u32x4 v = {};
            if (first + g / 2 < vectors)
                v = *(const u32x4 *)(parts + (first * 2 + g) * PART_WORDS + (u * 4 + t) * 4);
            const u32x4 low = row[0][u], high = row[1][u];
            const uint32_t a[8] = {low.x, high.x, low.y, high.y, low.z, high.z, low.w, high.w};
            const uint32_t b[4] = {v.x, v.y, v.z, v.w};
            mma_f16(c[0], a, b);
            mma_f16(c[1], a + 4, b + 2);
        }
#pragma unroll
        for (int half = 0; half < 2; half++)
            s[half] = (c[0][2 * half] + c[1][2 * half]) + (c[0][2 * half + 1] + c[1][2 * half + 1]);
    }
    /* The scores of pages g, g + 8 in the lanes of t = 0. */
    CAIRN_MEMBER void score(const uint32_t *parts, bool by_head, float *best) const {
        const int vectors = by_head ? GROUP : 1;
        best[0] = best[1] = -3.4e38f;
#pragma unroll 1
        for (int first = 0; first < vectors; first += 4) {
            float s[2];
            multiply(parts, first, vectors, s);
#pragma unroll
            for (int half = 0; half < 2; half++)
                if (first + lane_id() % 4 < vectors)
                    best[half] = by_head ? fmaxf(best[half], s[half]) : s[half];
            warp_sync();
        }
#pragma unroll
        for (int half = 0; half < 2 && by_head; half++) best[half] = quad_max(best[half]);
    }
};

/* Orders as the score does: NaN lowest, -0 as +0; never 0. */
CAIRN_INLINE uint32_t score_key(float score) {
    if (score != score) return 1;
    uint32_t bits = as_u32(score + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* Of 32 pages, a bit each: attended whole; attended at all, if only for its sinks. */
struct page_bits {
    uint32_t whole, listed;
};

/* The shared memory of a selection. */
struct alignas(16) selection {
    uint32_t keys[round_up(MOST_PAGES, 8)]; /* of the candidates */
    uint32_t parts[GROUP * 2 * PART_WORDS];
    page_bits bits[PAGE_WORDS];
};

/* The keys of the candidates, and zeros up to the next multiple of four. The first bounds are asked
 * for before meanwhile(), which leaves the queries where query() finds them for all threads.
 * unstored(page): bounds of a page that has none stored. */
template <class Meanwhile, class Query, class Unstored>
CAIRN_INLINE void score_candidates(const step_params &p, const page_row &r, int layer,
                                   selection &chosen, Meanwhile meanwhile, Query query,
                                   Unstored unstored) {
    const int count = min_of(r.candidates, r.stored), n = r.candidates;
    const uint16_t *stored = p.bounds[layer] + (int64_t)r.kv_head * 2 * HEAD_DIM;
    page_tile tile = {};
    tile.load(r, stored, warp_id() * SCORED, count);
    meanwhile();
    split_queries(chosen.parts, p.mean != 0, p.by_head != 0, query);
    if (thread_id() < round_up(n, 4) - n) chosen.keys[n + thread_id()] = 0;
    block_sync();
#pragma unroll 1
    for (int first = warp_id() * SCORED; first < n; first += WARPS * SCORED) {
#pragma unroll 1
        for (int page = max_of(first, count); page < min_of(first + SCORED, n); page++)
            tile.put(page - first, unstored(page));
        float score[2];
        tile.score(chosen.parts, p.by_head != 0, score);
        tile.load(r, stored, first + WARPS * SCORED, count);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int page = first + half * 8 + lane_id() / 4;
            if (lane_id() % 4 == 0 && page < n) chosen.keys[page] = score_key(score[half]);
        }
    }
}

/* ---- the pages ---- */

/* What is known before the scores: pages that are no candidates, or all of them where topk is
 * enough; and those with sinks. By all threads; a block_sync before choose_pages. */
CAIRN_INLINE void start_pages(const step_params &p, const page_row &r, page_bits *bits) {
    const int n = r.candidates > p.topk ? r.candidates : 0, sinks = ceil_div(p.sinks, PAGE);
#pragma unroll 1
    for (int word = THREADS - 1 - thread_id(); word <= r.position / PAGE / WARP; word += THREADS) {
        auto below = [&](int page) { /* bits of the pages below it */
            int count = page - word * WARP;
            return count <= 0 ? 0u : count >= WARP ? ~0u : (1u << count) - 1;
        };
        const uint32_t whole = below(r.position / PAGE + 1) & ~below(n);
        bits[word] = page_bits{whole, whole | (below(n) & below(sinks))};
    }
}

/* How many of keys [from, to), taken four at a time, come before a candidate whose key is `key`;
 * with TIES equal keys do, too. */
template <bool TIES>
CAIRN_INLINE int count_before(const uint32_t *keys, int from, int to, uint32_t key) {
    int count[4] = {};
#pragma unroll 2
    for (int j = from; j < to; j += 4) {
        const u32x4 v = *(const u32x4 *)(keys + j);
        const uint32_t other[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; i++) count[i] += TIES ? other[i] >= key : other[i] > key;
    }
    return (count[0] + count[1]) + (count[2] + count[3]);
}

/* Adds the topk candidates with the highest keys; only with more candidates than that. A lane has a
 * candidate; of the 32 of its own warp those that are equal and earlier come before it, too. */
CAIRN_INLINE void choose_pages(const step_params &p, const page_row &r, const uint32_t *keys,
                               page_bits *bits) {
    const int n = r.candidates;
#pragma unroll 1
    for (int first = warp_id() * WARP; first < n; first += THREADS) {
        const int c = first + lane_id();
        const uint32_t key = c < n ? keys[c] : 0;
        const uint32_t same = match_any(key) & ((1u << lane_id()) - 1);
        int before = count_before<true>(keys, 0, first, key) + popcount(same);
        before += count_before<false>(keys, first, n, key);
        const uint32_t kept = warp_ballot(c < n && before < p.topk);
        if (lane_id() == 0) {
            bits[first / WARP].whole |= kept;
            bits[first / WARP].listed |= kept;
        }
        warp_sync();
    }
}

/* The most pages that a row's list can have: all that follow from its position alone. */
CAIRN_INLINE int most_listed(const step_params &p, int position, bool selects) {
    const int own = position / PAGE, before = p.window > 0 ? position - p.window + 1 : position;
    const int candidates = max_of(before, 0) / PAGE;
    if (!selects || candidates <= p.topk) return own + 1;
    return min_of(own + 1, p.topk + own - candidates + 1 + ceil_div(p.sinks, PAGE));
}

/* ---- attention over listed pages ---- */

constexpr int WARP_PIECES = WARP_KEYS / 16;

/* Sixteen keys of a warp: where they lie, their position, and the last one that the row sees (-1:
 * none). */
struct key_piece {
    int64_t at;
    int position, last;
};

/* The piece `from % PAGE` keys into a listed page. */
CAIRN_INLINE key_piece piece_of(const step_params &p, const page_row &r, int page, bool whole,
                                int from) {
    key_piece piece;
    piece.position = page * PAGE + from % PAGE;
    piece.last = min_of((whole ? r.position : p.sinks - 1) - piece.position, 15);
    piece.at = r.page_at(page) + from % PAGE * HEAD_DIM;
    return piece;
}

/* Turns of fetch_pieces at a time: with more, sm_120 runs out of registers. */
constexpr int FETCHES = CAIRN_ARCH >= 1000 ? 2 : PIECES / 2;

/* Starts the copies of this warp's keys and values; those that the row does not see become zero.
 * Whether to leave alone: all of piece i, there(i); one of its keys, skip(i, position, seen). */
template <class There, class Skip>
CAIRN_INLINE void fetch_pieces(const uint16_t *cache, const key_piece *piece, unsigned char *mine,
                               There there, Skip skip) {
    shared_addr to(mine);
#pragma unroll
    for (int i = 0; i < WARP_PIECES; i++) {
        const key_piece from = piece[i];
        if (there(i)) continue;
#pragma unroll FETCHES
        for (int slot = lane_id() / PIECES; slot < 16; slot += WARP / PIECES) {
            const int key = i * 16 + slot, part = lane_id() % PIECES;
            bool valid = slot <= from.last;
            if (skip(i, from.position + slot, valid)) continue;
            const uint16_t *keys = cache + (valid ? from.at + slot * HEAD_DIM + part * 8 : 0);
            copy_async16(to + key_at(key, part), keys, valid);
            copy_async16(to + value_at(key, part),
                         valid ? keys + KV_HEADS * PAGE * HEAD_DIM : keys, valid);
        }
    }
    copy_async_commit();
}

#endif
