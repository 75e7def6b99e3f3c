/* The products of a decoder layer, a kernel a stage (step/stages.cuh).
 *
 * step_embed, step_qkv, step_project, step_gate_up, step_down
 *             grid.x tiles, grid.y windows of eight rows, up to CAIRN_ROWS rows; CAIRN_WARPS warps.
 *
 * With formats from PACK_Q4_0 on the products are those of dense/product.cuh: any grid.x, 8 warps,
 * PRODUCT_SHARED bytes; a second block on a multiprocessor asks for its weights before its turn.
 *
 * Constants: those of step/step.cuh, CAIRN_BLOCKS 0.
 * Shared memory: MEETING_BYTES. Sync: one block_sync a round of a product.
 * A row's results are the bits of step_flow, whatever other rows there are.
 * Reference: tests/ref/decoder_step.h.
 * matrix: CAIRN_LAYERS=30 CAIRN_HIDDEN=576 CAIRN_HEADS=9 CAIRN_KV_HEADS=3 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=1536 CAIRN_VOCAB=49152 CAIRN_CONTEXT=8192 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=4 CAIRN_PACK_O=4 CAIRN_PACK_GATE_UP=4 CAIRN_PACK_DOWN=4
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=9 CAIRN_MEETING_TILES=4
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=2048 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_SPARSE=0
 * matrix: CAIRN_LAYERS=16 CAIRN_HIDDEN=2048 CAIRN_HEADS=32 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=128
 * matrix: + CAIRN_FFN=8192 CAIRN_VOCAB=128256 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=16
 * matrix: + CAIRN_PACK_QKV=16 CAIRN_PACK_O=16 CAIRN_PACK_GATE_UP=16 CAIRN_PACK_DOWN=16
 * matrix: + CAIRN_PACK_HEAD=16 CAIRN_PACK_EMBED=16 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=16384 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_SPARSE=0
 * matrix: CAIRN_LAYERS=32 CAIRN_HIDDEN=4096 CAIRN_HEADS=32 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=128
 * matrix: + CAIRN_FFN=14336 CAIRN_VOCAB=128256 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=32 CAIRN_PACK_O=33 CAIRN_PACK_GATE_UP=32 CAIRN_PACK_DOWN=32
 * matrix: + CAIRN_PACK_HEAD=34 CAIRN_PACK_EMBED=32 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=16384 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_SPARSE=0
 * matrix: CAIRN_LAYERS=16 CAIRN_HIDDEN=2048 CAIRN_HEADS=32 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=8192 CAIRN_VOCAB=128256 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=32 CAIRN_PACK_O=34 CAIRN_PACK_GATE_UP=35 CAIRN_PACK_DOWN=32
 * matrix: + CAIRN_PACK_HEAD=34 CAIRN_PACK_EMBED=34 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=16384 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_SPARSE=0
 * matrix: CAIRN_LAYERS=32 CAIRN_HIDDEN=5120 CAIRN_HEADS=40 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=128
 * matrix: + CAIRN_FFN=17408 CAIRN_VOCAB=151936 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=34 CAIRN_PACK_O=32 CAIRN_PACK_GATE_UP=33 CAIRN_PACK_DOWN=35
 * matrix: + CAIRN_PACK_HEAD=34 CAIRN_PACK_EMBED=34 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=16384 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_SPARSE=0
 * matrix: CAIRN_LAYERS=32 CAIRN_HIDDEN=4096 CAIRN_HEADS=32 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=128
 * matrix: + CAIRN_FFN=14336 CAIRN_VOCAB=128256 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=2631206 CAIRN_PACK_O=37 CAIRN_PACK_GATE_UP=38 CAIRN_PACK_DOWN=39
 * matrix: + CAIRN_PACK_HEAD=40 CAIRN_PACK_EMBED=40 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=16384 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_SPARSE=0
 * matrix: CAIRN_LAYERS=30 CAIRN_HIDDEN=576 CAIRN_HEADS=9 CAIRN_KV_HEADS=3 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=1536 CAIRN_VOCAB=49152 CAIRN_CONTEXT=8192 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=4 CAIRN_PACK_O=4 CAIRN_PACK_GATE_UP=4 CAIRN_PACK_DOWN=4
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=9 CAIRN_MEETING_TILES=4
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=2048 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_PRODUCTS=15
 * matrix: + CAIRN_EXTRAS=128 */
#include "step/stages.cuh"

/* Windows beyond the rows only wait, so that the order of the kernels holds. */
#define STAGE(name, ...)                                     \
    CAIRN_KERNEL(name, THREADS, STAGE_BLOCKS, step_params) { \
        workspace work{nullptr, (float *)shared_base(), 0};  \
        row_window rows = window_of(p, block_id_y());        \
        uint8_t *at = region(p, 0, 0);                       \
        int first = block_id(), step = grid_blocks();        \
        if (rows.count <= 0) start_input();                  \
        else __VA_ARGS__;                                    \
    }

#if CAIRN_PRODUCTS & 16
CAIRN_KERNEL(step_embed, THREADS, 1, step_params) {
    start_input();
    row_window rows = window_of(p, block_id_y());
    if (rows.count > 0) stage_embed<1>(p, rows, region(p, 0, 0), block_id(), grid_blocks());
}
#endif
#if CAIRN_PRODUCTS & 1
STAGE(step_qkv, {
    qkv_place place;
    if (!STREAMED)
        place.find(p, rows, first, output_row(thread_id()), output_column(thread_id()));
    stage_qkv<1, true>(p, rows, p.layer, at, place, work, first, step);
})
#endif
#if CAIRN_PRODUCTS & 2
STAGE(step_project, stage_project<1, true>(p, rows, p.layer, at, work, first, step))
#endif
#if CAIRN_PRODUCTS & 4
STAGE(step_gate_up, stage_gate_up<1, true>(p, rows, p.layer, at, work, first, step))
#endif
#if CAIRN_PRODUCTS & 8
STAGE(step_down, stage_down<1, true>(p, rows, p.layer, at, at, work, first, step))
#endif
