/* A short convolution between its two products (step/layer.cu, step/prompt.cu), for steps and prompts
 * alike.
 *
 *   step_conv   out = gate_out * sum over taps of weight * (gate_in * x) of the row and those before
 *               it in its sequence: this forward's from the product's f32 sums (SUMMED_AT: gate in,
 *               gate out, x), earlier ones from the sequence's ring, where row at `position` stands
 *               at position % CAIRN_RING; zeros before the sequence.
 *
 * Grid (ceil(hidden / 128), rows), 128 threads. which: 1 computes, 2 keeps the inputs in the ring, 3
 * does both, for sequences of at most CAIRN_RING - CAIRN_TAPS + 1 rows: more would overwrite what
 * others still read. Out: f16 [row, hidden] (ATTENDED_AT). f32, one row's sum in the order of taps:
 * a row depends on its sequence alone. No shared memory, no sync.
 * Constants: those of step/step.cuh, CAIRN_BLOCKS 0. Reference: tests/ref/llama_ref.h.
 * matrix: CAIRN_LAYERS=16 CAIRN_HIDDEN=1024 CAIRN_HEADS=16 CAIRN_KV_HEADS=8 CAIRN_HEAD_DIM=64
 * matrix: + CAIRN_FFN=4608 CAIRN_VOCAB=65536 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=32 CAIRN_PACK_O=32 CAIRN_PACK_GATE_UP=32 CAIRN_PACK_DOWN=32
 * matrix: + CAIRN_PACK_HEAD=34 CAIRN_PACK_EMBED=34 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=2048 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_EXTRAS=129
 * matrix: + CAIRN_TAPS=3 CAIRN_RING=32 */
#include "step/stages.cuh"

constexpr int TAPS = CAIRN_TAPS, RING = CAIRN_RING, MIXED = 3 * HIDDEN;

CAIRN_KERNEL(step_conv, 128, 1, step_params) {
    const int r = block_id_y(), c = block_id() * 128 + thread_id();
    start_input();
    const int rows = p.input[STEP_ROWS];
    if (r >= rows || c >= HIDDEN) return;
    const int32_t *firsts = input_array(p, STEP_FIRST);
    const int first = firsts[r], position = input_array(p, STEP_POSITION)[r];
    const float *mixed = (const float *)(region(p, 0, 0) + SUMMED_AT) + c;
    const auto input = [&](int row) {
        const float *at = mixed + (int64_t)row * MIXED;
        return mul_f32(at[0], at[2 * HIDDEN]);
    };
    float *ring = p.rings[input_array(p, STEP_SEQUENCE)[r]] + (int64_t)p.state * RING * HIDDEN + c;
    if (p.which & 1) {
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < TAPS; j++) {
            const int back = TAPS - 1 - j;
            float x = 0.0f;
            if (r - back >= first) x = input(r - back);
            else if (position >= back) x = ring[(int64_t)((position - back) % RING) * HIDDEN];
            sum = fma_f32(p.taps[c * TAPS + j], x, sum);
        }
        uint16_t *to = (uint16_t *)(region(p, 0, 0) + ATTENDED_AT);
        to[(int64_t)r * HIDDEN + input_at(c)] =
            (uint16_t)pack_f16x2(sum * mixed[(int64_t)r * MIXED + HIDDEN], 0.0f);
    }
    const bool pushed_out = r + RING < rows && firsts[r + RING] == first;
    if (p.which & 2 && !pushed_out) ring[(int64_t)(position % RING) * HIDDEN] = input(r);
}
