/* What the kernels of a prompt share: their buffers, and the product of 16 output rows with 64
 * tokens, straight from packed weights.
 *
 * Buffers: one region of the exchange (step/step.cuh) up to the chunks' sums. */
#ifndef CAIRN_PROMPT_CUH
#define CAIRN_PROMPT_CUH

#include "step/stages.cuh"

constexpr int64_t NORMED_AT = HIDDEN_AT;

constexpr int TILE_ROWS = 64;                       /* tokens of a block */
constexpr int STEP_UNITS = 4, STEP_INPUTS = 128;    /* inputs of one step of a product */
constexpr int ROW_BYTES = STEP_INPUTS * 2 + 64;     /* two rows end up 64 bytes apart in banks */

CAIRN_INLINE uint8_t *buffer(const step_params &p, int64_t at) { return region(p, 0, 0) + at; }

/* sum[n] = 16 outputs of tile x tokens 8n.. of the block's 64. */
struct tile_sums {
    float at[TILE_ROWS / 8][4];
};

/* Starts the copy of inputs [step STEP_INPUTS, ...) of the block's rows; zeros beyond the ends. */
template <int INPUTS>
CAIRN_INLINE void fetch_inputs(const uint8_t *from, int first, int rows, int step,
                               unsigned char *memory) {
    constexpr int PER_ROW = STEP_INPUTS / 8;
    shared_addr to(memory + step % 2 * TILE_ROWS * ROW_BYTES);
    for (int i = thread_id(); i < TILE_ROWS * PER_ROW; i += 128) {
        int row = i / PER_ROW, k = step * STEP_INPUTS + i % PER_ROW * 8;
        bool valid = first + row < rows && k < INPUTS;
        int64_t at = valid ? (int64_t)(first + row) * INPUTS + k : 0;
        copy_async16(to + (uint32_t)(row * ROW_BYTES + i % PER_ROW * 16), from + at * 2, valid);
    }
    copy_async_commit();
}

template <int FORMAT, int INPUTS>
CAIRN_INLINE void load_units(packed<FORMAT> *raw, const uint8_t *tile, int step) {
#pragma unroll
    for (int u = 0; u < STEP_UNITS; u++) {
        int unit = min_of(step * STEP_UNITS + u, INPUTS / 32 - 1);
        raw[u].template load<packed_group<FORMAT, INPUTS>()>(tile, unit);
    }
}

/* One warp's tile of 16 outputs by the block's 64 tokens. */
template <int FORMAT, int INPUTS>
CAIRN_INLINE void product(const uint8_t *tile, const uint8_t *inputs, int first, int rows,
                          unsigned char *memory, tile_sums &sum) {
    constexpr int STEPS = ceil_div(INPUTS, STEP_INPUTS);
    const int g = lane_id() / 4, t = lane_id() % 4;
    packed<FORMAT> raw[STEP_UNITS];
    load_units<FORMAT, INPUTS>(raw, tile, 0);
    start_input();
    fetch_inputs<INPUTS>(inputs, first, rows, 0, memory);
    for (int step = 0; step < STEPS; step++) {
        packed<FORMAT> now[STEP_UNITS];
#pragma unroll
        for (int u = 0; u < STEP_UNITS; u++) now[u] = raw[u];
        copy_async_wait<0>();
        block_sync();
        if (step + 1 < STEPS) {
            fetch_inputs<INPUTS>(inputs, first, rows, step + 1, memory);
            load_units<FORMAT, INPUTS>(raw, tile, step + 1);
        }
        const unsigned char *from = memory + step % 2 * TILE_ROWS * ROW_BYTES;
#pragma unroll
        for (int u = 0; u < STEP_UNITS; u++) {
            if (INPUTS % STEP_INPUTS != 0 && step * STEP_UNITS + u >= INPUTS / 32) break;
            uint32_t a[8];
            now[u].expand(a);
#pragma unroll
            for (int n = 0; n < TILE_ROWS / 8; n++) {
                u32x4 b = *(const u32x4 *)(from + (n * 8 + g) * ROW_BYTES + u * 64 + t * 16);
                uint32_t low[2] = {b.x, b.y}, high[2] = {b.z, b.w};
                mma_f16(sum.at[n], a, low);
                mma_f16(sum.at[n], a + 4, high);
            }
        }
    }
}

/* Calls out(row, row of the tile, column: 0 or 1 of value pairs) for the lane's values, whole
 * warps. */
template <class Out>
CAIRN_INLINE void each_output(const tile_sums &sum, int first, Out out) {
    int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
    for (int n = 0; n < TILE_ROWS / 8; n++)
#pragma unroll
        for (int c = 0; c < 2; c++)
            out(first + n * 8 + 2 * t + c, g, sum.at[n][c], sum.at[n][2 + c]);
}

#endif
