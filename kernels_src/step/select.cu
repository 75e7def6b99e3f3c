/* Page-sparse attention of few rows: which pages a row attends, and the attention over them.
 *
 * step_bounds   lowest and highest key of a page per dimension, or its mean (sum over ascending
 *               slots in f32) and what f16 leaves of it; f16. Grid (new pages, kv_heads,
 *               layers), 128 threads.
 * step_select   the pages of each row and KV head, ascending (step/pages.cuh). Bounds of candidates
 *               not stored yet are taken from the cache. Grid (parts, rows, kv_heads): the blocks
 *               of a row score its candidates, the last of them to finish chooses; CAIRN_WARPS
 *               warps, shared memory SELECT_BYTES.
 * step_attend_pages
 *               as step_attend, over the pages of a row's list. Grid (runs at most, rows,
 *               kv_heads); CAIRN_WARPS warps; shared memory ATTEND_BYTES.
 *
 * Constants: those of step/step.cuh, CAIRN_BLOCKS 0. A list of all pages gives the bits of step_attend.
 * Integers exact.
 * Reference: tests/ref/decoder_step.h.
 * matrix: CAIRN_LAYERS=30 CAIRN_HIDDEN=576 CAIRN_HEADS=9 CAIRN_KV_HEADS=3 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=1536 CAIRN_VOCAB=49152 CAIRN_CONTEXT=8192 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=4 CAIRN_PACK_O=4 CAIRN_PACK_GATE_UP=4 CAIRN_PACK_DOWN=4
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=9 CAIRN_MEETING_TILES=4
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=2048 CAIRN_BLOCKS=0 CAIRN_NARROW=0 */
#include "step/pages.cuh"
#include "step/stages.cuh"

CAIRN_KERNEL(step_bounds, 128, 1, step_params) {
    const int page = p.new_pages[block_id()], head = block_id_y(), layer = block_id_z();
    grid_dependency_wait();
    if (warp_id() > 0 || (CONVOLVES && !p.kv[layer])) return;
    const uint16_t *keys = p.kv[layer] + layout_slot(page, 0, head, 0, KV_HEADS, PAGE, HEAD_DIM);
    uint16_t *to = p.bounds[layer] + layout_bounds(page, head, KV_HEADS, HEAD_DIM);
    store_bounds(cached_bounds(keys, p.mean != 0), to);
}

/* The list of pages, ascending; `before`: how many come before those of this thread's words. */
CAIRN_INLINE void write_list(const step_params &p, const page_row &r, const page_bits *chosen,
                             int before) {
    const int words = r.position / PAGE / WARP + 1, each = ceil_div(words, THREADS);
    const int at = r.row * KV_HEADS + r.kv_head, first = thread_id() * each;
    const int end = min_of(first + each, words);
    int32_t *list = p.lists + (int64_t)at * p.list_stride;
    for (int word = first; word < end; word++) {
        const page_bits bits = chosen[word];
        if (bits.listed) count_pages(p, r, word, bits.listed);
        for (uint32_t left = bits.listed; left; left &= left - 1) {
            const int bit = find_first_set(left) - 1, page = word * WARP + bit;
            list[before++] = bits.whole >> bit & 1 ? page : page | SINKS_ALONE;
        }
    }
    if (first < words && end == words) p.list_counts[at] = before;
}

CAIRN_KERNEL(step_select, THREADS, 1, step_params) {
    const selection s(shared_base(), MOST_PAGES);
    const uint16_t *cache = p.kv[p.layer];
    page_row r;
    r.find(p, block_id_y(), block_id_z(), true);
    const int n = r.choices(p), at = r.row * KV_HEADS + r.kv_head;
    const int parts = min_of(grid_blocks(), max_of(1, ceil_div(n, WARPS * SCORED)));
    uint32_t *keys = (uint32_t *)p.lists + (int64_t)at * p.list_stride; /* until the list is made */
    const uint32_t *queries = (const uint32_t *)(region(p, 0, 0) + QKV_AT) +
                              ((int64_t)r.row * QKV + r.kv_head * GROUP * HEAD_DIM) / 2;
    if (block_id() >= parts) {
        start_input();
        return;
    }
    if (thread_id() < round_up(n, 4) - n) s.keys[n + thread_id()] = 0;
    if (n) {
        uint32_t *to = parts > 1 ? keys : s.keys;
        score_candidates(
            p, r, p.layer, s, block_id(), parts, [&] { start_input(); },
            [&](int h, int word) { return queries[h * (HEAD_DIM / 2) + word]; },
            [&](int page) { return cached_bounds(cache + r.page_at(page), p.mean != 0); },
            [&](int page, uint32_t key) { to[page] = key; });
    } else {
        start_input();
    }
    if (parts > 1) {
        if (!last_to_arrive(p.arrived + at, parts, &s.meeting->flag)) return;
#pragma unroll 8
        for (int i = thread_id(); i < n; i += THREADS) s.keys[i] = load_relaxed(keys + i);
    }
    block_sync();
    const int before = choose_pages(s, n, p.topk, r.position / PAGE,
                                    layout_sink_pages(p.sinks, PAGE));
    write_list(p, r, s.bits, before);
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

CAIRN_KERNEL(step_attend_pages, THREADS, ATTEND_BLOCKS, step_params) {
    unsigned char *memory = shared_base();
    uint8_t *layer = region(p, 0, 0);
    const uint16_t *cache = p.kv[p.layer];
    page_row r;
    r.find(p, block_id_y(), block_id_z() / SHARES, true);
    const int at = r.row * KV_HEADS + r.kv_head, share = SHARES == 1 ? r.kv_head : (int)block_id_z();
    const int run = layout_run(layout_chunks(r.most_listed(p), PAGE, HEAD_DIM), KV_HEADS);
    start_input();
    /* With the count, and so that the look-up finds them near: the entries of the run's begin. */
    const int32_t *list = p.lists + (int64_t)at * p.list_stride;
    const int soon = (block_id() * run * CHUNK + warp_id() * WARP_KEYS) / PAGE;
    if (soon < p.list_stride) load_early((const uint32_t *)list + soon);
    const int count = p.list_counts[at], chunks = layout_chunks(count, PAGE, HEAD_DIM);
    const int runs = ceil_div(chunks, run), begin = block_id() * run;
    const int end = min_of(begin + run, chunks);
    if (begin >= end) return;
    listed_pieces<chosen_pages> pieces = {
        {list, r.table, count},
        KV_HEADS, r.kv_head, r.position + 1, p.sinks, end, {}};
    key_piece piece[WARP_PIECES];
    if (warp_id() < CORE_WARPS) {
        const auto none = [](int, int, bool) { return false; };
        unsigned char *mine = memory + warp_id() * 2 * KEYS_BYTES;
        pieces.look_up(begin);
        pieces.find(begin, piece);
        fetch_keys(cache, piece, mine, none);
        fetch_values(cache, VALUE_STEP, piece, mine, none);
        copy_async_commit();
    }
    gather_queries(p, r.row, 1, share, layer, memory);
    copy_async_wait<0>();
    block_sync();
    if (warp_id() < CORE_WARPS)
        attend_run(cache, VALUE_STEP, memory, begin, end, share_heads(share), score_scale(p), piece,
                   pieces, [](const key_piece &from, int) { return from.last; });
    block_sync();
    send_parts(p, r.row, share, block_id(), layer, memory, share_heads(share));
    const int counter = SHARES == 1 ? at : r.row * ALL_SHARES + share;
    if (last_to_arrive(p.arrived + counter, runs, (uint32_t *)(memory + TOTALS_AT)))
        merge_group(p, layer, r.row, 1, share, [&](int) { return runs; }, [](int) { return 0; },
                    memory);
}
