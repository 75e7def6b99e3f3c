/* Page selection of one row and KV head of a step, and attention over the pages that it keeps: what
 * the flow kernel and the stage kernels (step/select.cu) share, so that both keep the same pages and
 * give the same bits. The row attends as attention/layout.h says; select/core.cuh scores and
 * chooses. */
#ifndef CAIRN_STEP_PAGES_CUH
#define CAIRN_STEP_PAGES_CUH

#include "step/attend.cuh"
#include "select/core.cuh"

constexpr int MOST_PAGES = ceil_div(CAIRN_CONTEXT, PAGE);
constexpr int SELECT_BYTES = layout_select_bytes(MOST_PAGES, GROUP, HEAD_DIM);

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
        candidates = selects ? layout_candidates(position, p.window, PAGE) : 0;
    }
    /* The candidates where some of them are to be left out. */
    CAIRN_MEMBER int choices(const step_params &p) const {
        return candidates > p.topk ? candidates : 0;
    }
    CAIRN_MEMBER int64_t page_at(int page) const { /* values from a layer's KV to its keys */
        return layout_slot(table[page], 0, kv_head, 0, KV_HEADS, PAGE, HEAD_DIM);
    }
    /* The most pages that its list can have. */
    CAIRN_MEMBER int most_listed(const step_params &p) const {
        return layout_most_listed(position, candidates, p.topk, p.sinks, PAGE);
    }
};

/* Part `part` of `parts`: keys[page] of its candidates. The first bounds are asked for before
 * meanwhile(), which leaves the queries where query() finds them for all threads. Where heads are too many
 * for one turn, the best of them is the best turn's.
 * unstored(page): bounds of a page that has none stored. All threads. */
template <class Meanwhile, class Query, class Unstored>
CAIRN_INLINE void score_candidates(const step_params &p, const page_row &r, int layer,
                                   const selection &s, int part, int parts, Meanwhile meanwhile,
                                   Query query, Unstored unstored, uint32_t *keys) {
    const int count = min_of(r.candidates, r.stored), n = r.candidates;
    const int step = parts * WARPS * SCORED, bounds_step = KV_HEADS * 2 * HEAD_DIM;
    const uint16_t *stored = p.bounds[layer] + layout_bounds(0, r.kv_head, KV_HEADS, HEAD_DIM);
    const int own = (warp_id() * parts + part) * SCORED;
    page_tile tile = {};
    tile.load(r.table, stored, bounds_step, own, count);
    meanwhile();
#pragma unroll 1
    for (int turn = 0; turn < TURNS && (turn == 0 || p.by_head); turn++) {
        if (turn > 0) { /* nobody reads the parts any more */
            block_sync();
            tile.load(r.table, stored, bounds_step, own, count);
        }
        split_queries(s.parts, p.mean != 0, p.by_head != 0, turn, query);
        block_sync();
#pragma unroll 1
        for (int first = own; first < n; first += step) {
#pragma unroll 1
            for (int page = max_of(first, count); page < min_of(first + SCORED, n); page++)
                tile.put(page - first, unstored(page));
            float score[2];
            tile.score(s.parts, p.by_head != 0, turn, score);
            tile.load(r.table, stored, bounds_step, first + step, count);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int page = first + half * 8 + lane_id() / 4;
                const uint32_t key = score_key(score[half]);
                if (lane_id() % 4 == 0 && page < n) keys[page] = turn ? max_of(keys[page], key) : key;
            }
        }
    }
}

/* The pages that a row selected. */
struct chosen_pages {
    const int32_t *list, *table;
    int count;

    CAIRN_MEMBER page_entry entry(int i) const {
        if (i >= count) return page_entry{0, -1};
        const int page = list[i];
        return page_entry{page, table[page & ~SINKS_ALONE]};
    }
};

/* Bounds of a page from its keys [PAGE, HEAD_DIM] in the cache. */
CAIRN_INLINE page_bounds cached_bounds(step_cache keys, bool mean) {
    return bounds_of(mean, [&](int slot, int i) {
        return pair_at(keys, slot, lane_id() * LANE_WORDS + i);
    });
}

/* A page's bounds to their place, by one warp. */
CAIRN_INLINE void store_bounds(const page_bounds &b, uint16_t *to) {
#pragma unroll
    for (int i = 0; i < LANE_WORDS && lane_has_words(); i++) {
        ((uint32_t *)to)[lane_id() * LANE_WORDS + i] = b.lo[i];
        ((uint32_t *)(to + HEAD_DIM))[lane_id() * LANE_WORDS + i] = b.hi[i];
    }
}

/* Bits of pages that a row of this sequence is the first to read add to pages_read. */
CAIRN_INLINE void count_pages(const step_params &p, const page_row &r, int word, uint32_t bits) {
    int64_t head = ((int64_t)p.layer * p.sequences + r.sequence) * KV_HEADS + r.kv_head;
    uint32_t *seen = p.seen + head * p.seen_words;
    uint32_t before = atomic_or(seen + word, bits);
    int fresh = popcount(bits & ~before);
    if (fresh) atomic_add(p.pages_read + r.sequence, fresh);
}

#endif
