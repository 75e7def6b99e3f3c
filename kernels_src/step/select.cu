/* Page-sparse attention of few rows: which pages a row attends. step/attend_pages.cu attends them,
 * step/bounds.cu stores what they are scored by.
 *
 * step_select   the pages of each row and KV head, ascending (step/pages.cuh). Bounds of candidates
 *               not stored yet are taken from the cache. Grid (parts, rows, kv_heads): the blocks
 *               of a row score its candidates, the last of them to finish chooses; CAIRN_WARPS
 *               warps, shared memory SELECT_BYTES.
 *
 * Constants: those of step/step.cuh, CAIRN_BLOCKS 0. Integers exact.
 * Reference: tests/ref/decoder_step.h.
 * matrix: CAIRN_LAYERS=30 CAIRN_HIDDEN=576 CAIRN_HEADS=9 CAIRN_KV_HEADS=3 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=1536 CAIRN_VOCAB=49152 CAIRN_CONTEXT=8192 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=4 CAIRN_PACK_O=4 CAIRN_PACK_GATE_UP=4 CAIRN_PACK_DOWN=4
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=9 CAIRN_MEETING_TILES=4
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=2048 CAIRN_BLOCKS=0 CAIRN_NARROW=0
 * matrix: CAIRN_LAYERS=30 CAIRN_HIDDEN=576 CAIRN_HEADS=9 CAIRN_KV_HEADS=3 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=1536 CAIRN_VOCAB=49152 CAIRN_CONTEXT=8192 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=4 CAIRN_PACK_O=4 CAIRN_PACK_GATE_UP=4 CAIRN_PACK_DOWN=4
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=9 CAIRN_MEETING_TILES=4
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=2048 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_EXTRAS=1
 * matrix: + CAIRN_ABILITIES=3
 * matrix: CAIRN_LAYERS=12 CAIRN_HIDDEN=2048 CAIRN_HEADS=48 CAIRN_KV_HEADS=1 CAIRN_HEAD_DIM=128
 * matrix: + CAIRN_FFN=8192 CAIRN_VOCAB=32064 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=4 CAIRN_PACK_O=4 CAIRN_PACK_GATE_UP=4 CAIRN_PACK_DOWN=4
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=2048 CAIRN_BLOCKS=0 CAIRN_NARROW=0 */
#include "attention/runs.cuh"
#include "step/pages.cuh"

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
    const step_cache cache = cache_of(p, p.layer);
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
        score_candidates(
            p, r, p.layer, s, block_id(), parts, [&] { start_input(); },
            [&](int h, int word) { return queries[h * (HEAD_DIM / 2) + word]; },
            [&](int page) { return cached_bounds(cache + r.page_at(page), p.mean != 0); },
            parts > 1 ? keys : s.keys);
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
