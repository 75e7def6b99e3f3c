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

/* This lane's part of the largest product that the bounds allow. */
CAIRN_INLINE float score_part(const float *q, const float *lo, const float *hi) {
    float s = 0.0f;
#pragma unroll
    for (int i = 0; i < LANE_DIMS; i++) {
        float low = mul_f32(q[i], lo[i]), high = mul_f32(q[i], hi[i]);
        s = add_f32(s, fmaxf(low, high));
    }
    return s;
}

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

CAIRN_INLINE void unpack_words(const uint32_t *words, float *out) {
#pragma unroll
    for (int i = 0; i < LANE_WORDS; i++) {
        f32x2 two = unpack_f16x2(words[i]);
        out[2 * i] = two.x, out[2 * i + 1] = two.y;
    }
}

/* Bounds as floats; a mean, whole again, is both. */
CAIRN_INLINE void unpack_bounds(const page_bounds &b, bool mean, float *lo, float *hi) {
    unpack_words(b.lo, lo), unpack_words(b.hi, hi);
#pragma unroll
    for (int i = 0; i < LANE_DIMS; i++)
        if (mean) lo[i] = hi[i] = add_f32(lo[i], hi[i]);
}

/* Scores of that many pages: each lane that of page shared_page(). query(head, i): a pair of this
 * lane's dimensions of a query head. */
template <class Query>
CAIRN_INLINE float score_pages(const page_bounds *b, bool mean, bool by_head, Query query) {
    float part[SCORED] = {}, best = -3.4e38f, lo[SCORED][LANE_DIMS], hi[SCORED][LANE_DIMS];
#pragma unroll
    for (int i = 0; i < SCORED; i++) unpack_bounds(b[i], mean, lo[i], hi[i]);
#pragma unroll 1
    for (int h = 0; h < GROUP; h++) {
        uint32_t words[LANE_WORDS];
        float q[LANE_DIMS];
#pragma unroll
        for (int i = 0; i < LANE_WORDS; i++) words[i] = query(h, i);
        unpack_words(words, q);
#pragma unroll
        for (int i = 0; i < SCORED; i++)
            part[i] = add_f32(by_head ? 0.0f : part[i], score_part(q, lo[i], hi[i]));
        if (by_head) best = fmaxf(best, share_sums(part));
    }
    return by_head ? best : share_sums(part);
}

/* Orders as the score does: NaN lowest, -0 as +0. */
CAIRN_INLINE uint32_t score_key(float score) {
    if (score != score) return 0;
    uint32_t bits = as_u32(score + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* keys[c] of the candidates, and zeros up to the next multiple of eight. Neighbours at a time for a
 * warp; the first are asked for before meanwhile(), which leaves the queries where query() finds
 * them. unstored(page): bounds of a page that has none stored. */
template <class Meanwhile, class Query, class Unstored>
CAIRN_INLINE void score_candidates(const step_params &p, const page_row &r, int layer,
                                   uint32_t *keys, Meanwhile meanwhile, Query query,
                                   Unstored unstored) {
    const int count = min_of(r.candidates, r.stored), n = r.candidates;
    const bool mean = p.mean != 0, by_head = p.by_head != 0;
    const uint16_t *stored = p.bounds[layer] + (int64_t)r.kv_head * 2 * HEAD_DIM;
    page_bounds now[SCORED] = {}, next[SCORED] = {};
    auto load = [&](page_bounds *b, int first) {
        if (first >= count) return;
        const int mine = r.table[min_of(first + lane_id() % SCORED, count - 1)];
#pragma unroll
        for (int i = 0; i < SCORED; i++)
            b[i].load(stored + (int64_t)shuffle(mine, i) * KV_HEADS * 2 * HEAD_DIM);
    };
    load(now, warp_id() * SCORED);
    load(next, (warp_id() + WARPS) * SCORED);
    meanwhile();
    if (thread_id() < round_up(n, 8) - n) keys[n + thread_id()] = 0;
#pragma unroll 1
    for (int first = warp_id() * SCORED; first < n; first += WARPS * SCORED) {
#pragma unroll 1
        for (int page = max_of(first, count); page < min_of(first + SCORED, n); page++) {
            const page_bounds b = unstored(page);
#pragma unroll
            for (int i = 0; i < SCORED; i++)
                if (page == first + i) now[i] = b;
        }
        float score = score_pages(now, mean, by_head, query);
        int page = first + shared_page();
        if (lane_id() % 8 == 0 && page < n) keys[page] = score_key(score);
#pragma unroll
        for (int i = 0; i < SCORED; i++) now[i] = next[i];
        load(next, first + 2 * WARPS * SCORED);
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
    for (int word = thread_id(); word <= r.position / PAGE / WARP; word += THREADS) {
        auto below = [&](int page) { /* bits of the pages below it */
            int count = page - word * WARP;
            return count <= 0 ? 0u : count >= WARP ? ~0u : (1u << count) - 1;
        };
        const uint32_t whole = below(r.position / PAGE + 1) & ~below(n);
        bits[word] = page_bits{whole, whole | (below(n) & below(sinks))};
    }
}

/* Adds the topk candidates with the highest keys; only with more candidates than that. Two threads
 * a candidate, each against every other four keys. By whole warps. */
CAIRN_INLINE void choose_pages(const step_params &p, const page_row &r, const uint32_t *keys,
                               page_bits *bits) {
    const int n = r.candidates;
#pragma unroll 1
    for (int first = warp_id() * (WARP / 2); first < n; first += THREADS / 2) {
        const int c = first + lane_id() / 2;
        const uint32_t key = c < n ? keys[c] : 0;
        int above = 0;
#pragma unroll 2
        for (int j = lane_id() % 2 * 4; j < n; j += 8) {
            const u32x4 v = *(const u32x4 *)(keys + j);
            const uint32_t other[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int i = 0; i < 4; i++)
                above += other[i] > key || (other[i] == key && j + i < c);
        }
        warp_sync();
        above += shuffle_xor(above, 1);
        const uint32_t kept = warp_or(c < n && above < p.topk ? 1u << c % WARP : 0u);
        if (lane_id() == 0) {
            atomic_or(&bits[first / WARP].whole, kept);
            atomic_or(&bits[first / WARP].listed, kept);
        }
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
 * skip(i, position, seen): whether to leave a key of piece i alone. */
template <class Skip>
CAIRN_INLINE void fetch_pieces(const uint16_t *cache, const key_piece *piece, unsigned char *mine,
                               Skip skip) {
    shared_addr to(mine);
#pragma unroll
    for (int i = 0; i < WARP_PIECES; i++) {
        const key_piece from = piece[i];
#pragma unroll 2
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
