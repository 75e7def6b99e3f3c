/* What a page is known by to those that select (step/select.cu), once it is complete.
 *
 * step_bounds   lowest and highest key of a page per dimension, or its mean (sum over ascending
 *               slots in f32) and what f16 leaves of it; f16. Grid (new pages, kv_heads,
 *               layers), 128 threads.
 *
 * Constants: those of step/step.cuh, CAIRN_BLOCKS 0.
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

CAIRN_KERNEL(step_bounds, 128, 1, step_params) {
    const int page = p.new_pages[block_id()], head = block_id_y(), layer = block_id_z();
    grid_dependency_wait();
    if (warp_id() > 0 || (CONVOLVES && !p.kv[layer])) return;
    const step_cache keys =
        cache_of(p, layer) + layout_slot(page, 0, head, 0, KV_HEADS, PAGE, HEAD_DIM);
    uint16_t *to = p.bounds[layer] + layout_bounds(page, head, KV_HEADS, HEAD_DIM);
    store_bounds(cached_bounds(keys, p.mean != 0), to);
}
