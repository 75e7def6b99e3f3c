/* The head of a decoder step and of a prompt (step/stages.cuh): logits of the rows that want them,
 * and the best of each block's part.
 *
 * step_head   any number of blocks, grid.y windows of eight rows whose logits are wanted
 *
 * Constants: those of step/step.cuh, CAIRN_BLOCKS 0; CAIRN_WARPS warps. Whatever CAIRN_ROWS is, the rows that
 * there is room for are p.capacity: one program serves steps and prompts. Shared memory MEETING_BYTES. Sync: one
 * block_sync a round of the product.
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
 * matrix: + CAIRN_PACK_QKV=32 CAIRN_PACK_O=33 CAIRN_PACK_GATE_UP=32 CAIRN_PACK_DOWN=35
 * matrix: + CAIRN_PACK_HEAD=34 CAIRN_PACK_EMBED=32 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=16384 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_SPARSE=0
 * matrix: CAIRN_LAYERS=18 CAIRN_HIDDEN=640 CAIRN_HEADS=4 CAIRN_KV_HEADS=1 CAIRN_HEAD_DIM=256
 * matrix: + CAIRN_FFN=2048 CAIRN_VOCAB=262144 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=8 CAIRN_PACK_O=8 CAIRN_PACK_GATE_UP=8 CAIRN_PACK_DOWN=8
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=8192 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_EXTRAS=93 */
#undef CAIRN_ALONE /* both forms: it is short */
#include "step/stages.cuh"

CAIRN_KERNEL(step_head, THREADS, STAGE_BLOCKS, step_params) {
    workspace work{nullptr, (float *)shared_base(), 0};
    row_window rows = logits_of(p, block_id_y());
    const uint8_t *at = p.exchange + residual_bytes(p.capacity);
    const uint8_t *hidden = at + HIDDEN_AT, *squares = at + squares_at(p.capacity);
    if (rows.count > 0) stage_head<HEAD_TILES>(p, rows, hidden, squares, work, block_id(), grid_blocks());
    else start_input();
}
