/* Page selection of one row and KV head, and attention over the pages that it keeps: what the flow
 * kernel and the stage kernels (step_select.cu) share, so that both keep the same pages and give
 * the same bits.
 *
 * The row at position i has the whole pages before its window as candidates. Scores are
 * sum_d max(q_d lo_d, q_d hi_d) (or q . mean), summed over the KV head's query heads or the best of
 * them; the topk highest are kept, the lowest page among equals, NaN last. All pages from the
 * window on are attended, and of a page with sinks that is not kept the sinks alone. */
#ifndef CAIRN_STEP_PAGES_CUH
#define CAIRN_STEP_PAGES_CUH

#include "step_attend.cuh"

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

/* What a page's bounds are multiplied with, this lane's dimensions. The largest product that they
 * allow, max(q lo, q hi), is max(q, 0) hi + min(q, 0) lo, so that the sum over heads is one product
 * with the sums of these; of a mean, whose bounds are its two halves, both are q. */
struct query_parts {
    float above[LANE_DIMS], below[LANE_DIMS];

    CAIRN_MEMBER void clear() {
#pragma unroll
        for (int i = 0; i < LANE_DIMS; i++) above[i] = below[i] = 0.0f;
    }
    template <class Query> CAIRN_MEMBER void add(bool mean, int head, Query query) {
#pragma unroll
        for (int i = 0; i < LANE_WORDS; i++) {
            const f32x2 two = unpack_f16x2(query(head, i));
            const float q[2] = {two.x, two.y};
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const bool positive = q[k] > 0.0f;
                above[2 * i + k] = add_f32(above[2 * i + k], mean || positive ? q[k] : 0.0f);
                below[2 * i + k] = add_f32(below[2 * i + k], mean || !positive ? q[k] : 0.0f);
            }
        }
    }
    /* This lane's part of a page's score. */
    CAIRN_MEMBER float score(const page_bounds &b) const {
        float s = 0.0f;
#pragma unroll
        for (int i = 0; i < LANE_WORDS; i++) {
            const f32x2 lo = unpack_f16x2(b.lo[i]), hi = unpack_f16x2(b.hi[i]);
            s = fma_f32(above[2 * i], hi.x, fma_f32(below[2 * i], lo.x, s));
            s = fma_f32(above[2 * i + 1], hi.y, fma_f32(below[2 * i + 1], lo.y, s));
        }
        return s;
    }
};

/* Sums over the warp of part[0..4): each lane gets that of page shared_page(), with the bits of
 * warp_sum. */
CAIRN_INLINE int shared_page() { return (lane_id() & 16) / 8 + (lane_id() & 8) / 8; }
CAIRN_INLINE float share_sums(const float *part) {
    const int lane = lane_id();
    float two[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        two[i] = add_f32(lane & 16 ? part[2 + i] : part[i],
                         shuffle_xor(lane & 16 ? part[i] : part[2 + i], 16));
    float sum = add_f32(lane & 8 ? two[1] : two[0], shuffle_xor(lane & 8 ? two[0] : two[1], 8));
#pragma unroll
    for (int m = 4; m > 0; m /= 2) sum = add_f32(sum, shuffle_xor(sum, m));
    return sum;
}

constexpr int SCORED = 4; /* pages at a time for a warp */

/* Scores of that many pages: each lane that of page shared_page(). all: the sums over the heads;
 * query(head, i): a pair of this lane's dimensions of a query head. */
template <class Query>
CAIRN_INLINE float score_pages(const page_bounds *b, const query_parts &all, bool mean,
                               bool by_head, Query query) {
    float part[SCORED], best = -3.4e38f;
#pragma unroll
    for (int i = 0; i < SCORED; i++) part[i] = all.score(b[i]);
    if (!by_head) return share_sums(part);
#pragma unroll 1
    for (int h = 0; h < GROUP; h++) {
        query_parts one;
        one.clear();
        one.add(mean, h, query);
#pragma unroll
        for (int i = 0; i < SCORED; i++) part[i] = one.score(b[i]);
        best = fmaxf(best, share_sums(part));
    }
    return best;
}

/* Orders as the score does: NaN lowest, -0 as +0; never 0. */
CAIRN_INLINE uint32_t score_key(float score) {
    if (score != score) return 1;
    uint32_t bits = as_u32(score + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* keys[c] of the candidates. Neighbours at a time for a warp; the first are asked for before
 * meanwhile(), which leaves the queries where query() finds them. unstored(page): bounds of a page
 * that has none stored. */
template <class Meanwhile, class Query, class Unstored>
CAIRN_INLINE void score_candidates(const step_params &p, const page_row &r, int layer,
                                   uint32_t *keys, Meanwhile meanwhile, Query query,
                                   Unstored unstored) {
    const int count = min_of(r.candidates, r.stored), n = r.candidates;
    const bool mean = p.mean != 0, by_head = p.by_head != 0;
    const uint16_t *stored = p.bounds[layer] + (int64_t)r.kv_head * 2 * HEAD_DIM;
    constexpr int AHEAD = HEAD_DIM == 64 ? 3 : 2; /* turns whose bounds are under way */
    page_bounds turns[AHEAD][SCORED] = {};
    auto load = [&](page_bounds *b, int first) {
        if (first >= count) return;
        const int mine = r.table[min_of(first + lane_id() % SCORED, count - 1)];
#pragma unroll
        for (int i = 0; i < SCORED; i++)
            b[i].load(stored + (int64_t)shuffle(mine, i) * KV_HEADS * 2 * HEAD_DIM);
    };
#pragma unroll
    for (int i = 0; i < AHEAD; i++) load(turns[i], (warp_id() + i * WARPS) * SCORED);
    meanwhile();
    query_parts all;
    all.clear();
#pragma unroll 3
    for (int h = 0; h < GROUP; h++) all.add(mean, h, query);
#pragma unroll 1
    for (int first = warp_id() * SCORED; first < n; first += WARPS * SCORED) {
#pragma unroll 1
        for (int page = max_of(first, count); page < min_of(first + SCORED, n); page++) {
            const page_bounds b = unstored(page);
#pragma unroll
            for (int i = 0; i < SCORED; i++)
                if (page == first + i) turns[0][i] = b;
        }
        float score = score_pages(turns[0], all, mean, by_head, query);
        int page = first + shared_page();
        if (lane_id() % 8 == 0 && page < n) keys[page] = score_key(score);
#pragma unroll
        for (int k = 0; k + 1 < AHEAD; k++)
#pragma unroll
            for (int i = 0; i < SCORED; i++) turns[k][i] = turns[k + 1][i];
        load(turns[AHEAD - 1], first + AHEAD * WARPS * SCORED);
    }
}

/* ---- the pages ---- */

/* Of 32 pages, a bit each: attended whole; attended at all, if only for its sinks. */
struct page_bits {
    uint32_t whole, listed;
};

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

constexpr int RANKED = 8; /* candidates at a time for a warp */

/* Adds the topk candidates with the highest keys; only with more candidates than that. A warp
 * compares its candidates with 32 keys at once: those that are higher, or equal and earlier, come
 * before. By whole warps. */
CAIRN_INLINE void choose_pages(const step_params &p, const page_row &r, const uint32_t *keys,
                               page_bits *bits) {
    const int n = r.candidates;
#pragma unroll 1
    for (int first = warp_id() * RANKED; first < n; first += WARPS * RANKED) {
        uint32_t key[RANKED], before[RANKED] = {}, kept = 0;
#pragma unroll
        for (int i = 0; i < RANKED; i++) key[i] = keys[min_of(first + i, n - 1)];
#pragma unroll 1
        for (int j = lane_id(); j < round_up(n, WARP); j += WARP) {
            const uint32_t other = j < n ? keys[j] : 0;
#pragma unroll
            for (int i = 0; i < RANKED; i++) before[i] += other > key[i] - (j < first + i);
        }
#pragma unroll
        for (int i = 0; i < RANKED; i++)
            if ((int)warp_sum(before[i]) < p.topk && first + i < n) kept |= 1u << i;
        if (lane_id() == 0) {
            atomic_or(&bits[first / WARP].whole, kept << first % WARP);
            atomic_or(&bits[first / WARP].listed, kept << first % WARP);
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
#pragma unroll
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
