/* step_low: before a product to which rows' adapters add, their inner values low = A x.
 * step_low_slots: the same before a product of experts, of their slots; and where each slot's B is.
 *
 * In: what the product reads, p.which its first product (STEP_LOW_). Of steps, which hand on a
 *     hidden state with its sums of squares, or of prompts (CAIRN_PARTS 0), which norm it first.
 * Out: p.low [row, product of the kernel]. f32 sums in an order that depends on nothing.
 * Grid (products of the kernel, or experts of a row, rows), 128 threads: a warp has every fourth inner value.
 * step_own: rows with an embedding of their own (STEP_EMBED_LOW) begin with that. Of prompts behind the
 *     kernel that embeds tokens, grid rows, 128 threads; of steps in place of it, grid and threads its.
 * step_keep: hidden states behind the output norm, of rows with STEP_KEEP. Grid rows, 256 threads, 64
 *     bytes of shared memory, one block_sync.
 * Constants: those of step/step.cuh, CAIRN_BLOCKS 0. No other shared memory or barrier.
 * Reference: tests/ref/llama_ref.h on merged weights (tests/engine/adapter_test.c).
 * matrix: CAIRN_LAYERS=30 CAIRN_HIDDEN=576 CAIRN_HEADS=9 CAIRN_KV_HEADS=3 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=1536 CAIRN_VOCAB=49152 CAIRN_CONTEXT=8192 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=4 CAIRN_PACK_O=4 CAIRN_PACK_GATE_UP=4 CAIRN_PACK_DOWN=4
 * matrix: + CAIRN_PACK_HEAD=8 CAIRN_PACK_EMBED=8 CAIRN_WARPS=9 CAIRN_MEETING_TILES=4
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=2048 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_EXTRAS=768
 * matrix: + CAIRN_PRODUCTS=432 CAIRN_PACK_EXPERT_UP=4 CAIRN_PACK_EXPERT_DOWN=4 CAIRN_EXPERTS=16
 * matrix: + CAIRN_USED=4 */
#include "step/families.cuh"

/* 1 / (rms scale) of a row of the residual stream, from its sums of squares; every lane has it. */
CAIRN_INLINE float row_factor(const step_params &p, const float *squares) {
    float sum = 0.0f;
    for (int i = lane_id(); i < SQUARES; i += WARP) sum += squares[i];
    return rsqrt_fast(warp_sum(sum) * (1.0f / HIDDEN) + p.norm_eps) * (1.0f / p.input_scale);
}

CAIRN_INLINE void low_values(const step_params &p, int row, int which, const step_pair &pair,
                             const uint8_t *input, int inputs, float factor) {
    const uint16_t *x = (const uint16_t *)input + (int64_t)row * inputs;
    float *low = p.low + ((int64_t)row * 3 + which) * STEP_LOW_MOST;
    for (int k = warp_id(); k < pair.rank; k += 4) {
        const float *a = pair.a + (int64_t)k * inputs;
        float sum = 0.0f;
        for (int i = lane_id(); i < inputs; i += WARP) sum = fma_f32(a[i], f16_to_f32(f16{x[input_at(i)]}), sum);
        sum = warp_sum(sum) * factor;
        if (lane_id() == 0) low[k] = sum;
    }
}

CAIRN_KERNEL(step_low, 128, 1, step_params) {
    constexpr bool PROMPT = CAIRN_PARTS == 0;
    const int row = block_id_y(), first = p.which, product = first + block_id();
    const uint8_t *at = region(p, 0, 0);
    start_input();
    if (row >= p.input[STEP_ROWS]) return;
    const step_pair pair = pair_of(p, row, product);
    if (!pair.a) return;
    if (first == STEP_LOW_O)
        return low_values(p, row, 0, pair, at + ATTENDED_AT, ATTENDED, 1.0f);
    if (first == STEP_LOW_DOWN) return low_values(p, row, 0, pair, at + FFN_AT, FFN, 1.0f);
    const bool middle = !PROMPT && first == STEP_LOW_GATE;
    const float *squares = (const float *)(at + (middle ? MIDDLE_SQUARES_AT : SQUARES_AT)) +
                           (int64_t)row * SQUARES;
    low_values(p, row, block_id(), pair, at + (middle ? MIDDLE_AT : HIDDEN_AT), HIDDEN,
               PROMPT ? 1.0f : row_factor(p, squares));
}

#if CAIRN_PRODUCTS & 128
CAIRN_KERNEL(step_low_slots, 128, 1, step_params) {
    const int row = block_id_y(), choice = row * USED + block_id(), first = p.which;
    const bool down = first == STEP_LOW_DOWN;
    const int inputs = down ? FFN : HIDDEN, outputs = down ? HIDDEN : FFN;
    const uint8_t *at = region(p, 0, 0);
    start_input();
    if (row >= p.input[STEP_ROWS]) return;
    const int slot = ((const int32_t *)(at + PLACES_AT))[choice];
    const int64_t expert = ((const int32_t *)(at + CHOSEN_AT))[choice];
    for (int which = 0; which < (down ? 1 : 2); which++) {
        step_pair pair = pair_of(p, row, first + which);
        if (pair.a) {
            pair.a += expert * pair.rank * inputs, pair.b += expert * pair.rank * outputs;
            low_values(p, slot, which, pair, at + (down ? EXPERT_FFN_AT : ROUTED_AT), inputs, 1.0f);
        }
        if (thread_id() == 0) slot_pairs(p, slot)[which] = pair;
    }
}
#endif

#if CAIRN_PARTS > 0
CAIRN_KERNEL(step_own, THREADS, 1, step_params) {
    start_input();
    const row_window rows = window_of(p, block_id_y());
    if (rows.count > 0) stage_embed<1>(p, rows, region(p, 0, 0), block_id(), grid_blocks());
}
#else
CAIRN_KERNEL(step_own, 128, 1, step_params) {
    const int row = block_id();
    start_input();
    const float *own = own_embedding(p, row);
    float *to = residual_of(p) + (int64_t)row * HIDDEN;
    const float scale = EMBED_SCALED ? p.embed_scale : 1.0f;
    for (int i = thread_id(); i < HIDDEN && own; i += 128) to[i] = own[i] * scale;
}
#endif

CAIRN_KERNEL(step_keep, 256, 1, step_params) {
    start_input();
    keep_row<8>(p, block_id(), (float *)shared_base());
}
