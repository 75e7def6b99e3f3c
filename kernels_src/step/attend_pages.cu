/* Page-sparse attention of few rows, over the pages that step_select (step/select.cu) chose.
 *
 * step_attend_pages
 *               as step_attend, over the pages of a row's list. Grid (runs at most, rows,
 *               kv_heads); CAIRN_WARPS warps; shared memory ATTEND_BYTES.
 *
 * Constants: those of step/step.cuh, CAIRN_BLOCKS 0. A list of all pages gives the bits of
 * step_attend.
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
#include "step/pages.cuh"
#include "step/merge.cuh"

CAIRN_KERNEL(step_attend_pages, THREADS, ATTEND_BLOCKS, step_params) {
    unsigned char *memory = shared_base();
    uint8_t *layer = region(p, 0, 0);
    const step_cache cache = cache_of(p, p.layer);
    page_row r;
    r.find(p, block_id_y(), share_kv_head(block_id_z()), true);
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
    key_piece piece[STAGES * WARP_PIECES];
    if (warp_id() < CORE_WARPS) begin_chunks(cache, VALUE_STEP, memory, begin, end, piece, pieces);
    gather_queries(p, r.row, 1, share, layer, memory);
    copy_async_wait<2 * STAGES - 2>();
    block_sync();
    if (warp_id() < CORE_WARPS)
        attend_run<query_tiles(SHARE)>(
            cache, VALUE_STEP, memory, begin, end, share_heads(share), score_scale(p), piece, pieces,
            [](const key_piece &from, int) { return from.last; });
    block_sync();
    send_parts(p, r.row, share, block_id(), layer, memory, share_heads(share));
    const int counter = SHARES == 1 ? at : r.row * ALL_SHARES + share;
    if (last_to_arrive(p.arrived + counter, runs, (uint32_t *)(memory + TOTALS_AT)))
        merge_group(p, layer, r.row, 1, share, [&](int) { return runs; }, [](int) { return 0; },
                    memory);
}
