/* What stands between the ops of a layer whose mixer is attention by latents (MLA) over the tokens that
 * an indexer chooses, for steps and prompts alike; its products, keys, scores, choices and attention are
 * the ops' own kernels (runtime/forward/cuda_latent.c).
 *
 *   latent_rows     how many tokens each row sees, and the slot of its own. Grid ceil(rows / 128).
 *   latent_turn     the LATENT_ROTATED values of heads turn by their rows' positions, f32, to where
 *                   they are wanted. Grid ceil(rows * heads / 4): a warp a head.
 *   latent_pages    adds the distinct pages of the positions that step rows chose, which ascend, to
 *                   their sequences' pages_read. Grid rows.
 *   latent_hand_on  the residual stream of steps, for the norm before the ffn. Grid rows.
 *
 * 128 threads; no shared memory, no barrier. A row's results depend on that row alone.
 * Constants: those of step/step.cuh, CAIRN_BLOCKS 0.
 * Reference: the CPU's forward (runtime/forward/cpu_latent.c), itself against transformers'.
 * matrix: CAIRN_LAYERS=30 CAIRN_HIDDEN=576 CAIRN_HEADS=2 CAIRN_KV_HEADS=2 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=1536 CAIRN_VOCAB=49152 CAIRN_CONTEXT=8192 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=16 CAIRN_PACK_O=16 CAIRN_PACK_GATE_UP=16 CAIRN_PACK_DOWN=16
 * matrix: + CAIRN_PACK_HEAD=16 CAIRN_PACK_EMBED=16 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=2048 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_EXTRAS=32 */
#include "step/families.cuh"
#include "abi/attention.h"

CAIRN_KERNEL(latent_rows, 128, 1, latent_params) {
    const int r = block_id() * 128 + thread_id();
    start_input();
    if (r >= p.rows) return;
    const int position = p.positions[r];
    const int page = p.page_table[(int64_t)p.sequences[r] * p.table_stride + position / PAGE];
    p.lengths[r] = position + 1;
    p.slots[r] = page * PAGE + position % PAGE;
}

CAIRN_KERNEL(latent_turn, 128, 1, latent_params) {
    const int unit = block_id() * 4 + warp_id(), r = unit / p.heads, head = unit % p.heads;
    start_input();
    if (r >= p.rows) return;
    const int pair = lane_id(), a = p.halves ? pair : 2 * pair, b = p.halves ? pair + WARP : a + 1;
    const float *from = p.x + r * p.x_row + head * p.x_head;
    float *to = p.out + r * p.out_row + head * p.out_head;
    const f32x2 turn = ((const f32x2 *)p.turns)[(int64_t)p.ropes[r] * (LATENT_ROTATED / 2) + pair];
    const float x = from[a], y = from[b];
    to[a] = fma_f32(x, turn.x, -(y * turn.y));
    to[b] = fma_f32(x, turn.y, y * turn.x);
}

CAIRN_KERNEL(latent_pages, 128, 1, latent_params) {
    const int r = block_id();
    start_input();
    const int32_t *chosen = p.tokens + (int64_t)r * p.width;
    const int sequence = p.sequences[r];
    uint32_t *seen = p.seen + (int64_t)sequence * p.seen_stride;
    for (int i = thread_id(); i < p.width && chosen[i] >= 0; i += 128) {
        const int page = chosen[i] / PAGE;
        const uint32_t bit = 1u << page % 32;
        if (i > 0 && chosen[i - 1] / PAGE == page) continue;
        if (!(atomic_or(seen + page / 32, bit) & bit)) atomic_add(p.pages_read + sequence, 1);
    }
}

CAIRN_KERNEL(latent_hand_on, 128, 1, step_params) {
    start_input();
    if (block_id() < p.input[STEP_ROWS]) add_to_row(p, block_id(), 0, [](int) { return 0.0f; });
}
