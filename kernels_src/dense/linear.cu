/* linear: out[r, o] (+)= sum_i x[r, i] w[o, i], the weights read straight from their blocks.
 *
 * Constants  CAIRN_BLOCK_TYPE  GGUF's number, see dense/blocks.cuh
 *            CAIRN_ROW_TILES   tiles of 8 rows of a block: 1 for few rows, 8 for many
 *            CAIRN_APART       1: a product for each block of the grid's z, its outs weights behind
 *                              those of the one before; rows and parts of x and out by the strides;
 *                              in: a multiple of 8
 * Launch     grid (ceil(outs / 64), ceil(rows / (8 CAIRN_ROW_TILES))), block 128,
 *            shared 8 CAIRN_ROW_TILES (256 + 8) 2 bytes
 * Numerics   x and w enter mma m16n8k16 as f16, sums are f32 in ascending groups of 32: a row's
 *            result does not depend on CAIRN_ROW_TILES nor on the other rows.
 * A warp has 16 outputs. In a group of 32 inputs lane (g, c) holds inputs 8 c to 8 c + 7 of outputs g
 * and g + 8 as the A operand, and of row g of a tile as B: both sides take the same order.
 * matrix: CAIRN_BLOCK_TYPE=3 CAIRN_ROW_TILES=1 | CAIRN_BLOCK_TYPE=8 CAIRN_ROW_TILES=8
 * matrix: CAIRN_BLOCK_TYPE=2 CAIRN_ROW_TILES=8 | CAIRN_BLOCK_TYPE=0 CAIRN_ROW_TILES=1
 * matrix: CAIRN_BLOCK_TYPE=13 CAIRN_ROW_TILES=1 | CAIRN_BLOCK_TYPE=14 CAIRN_ROW_TILES=8
 * matrix: CAIRN_BLOCK_TYPE=8 CAIRN_ROW_TILES=8 CAIRN_APART=1 */
#include "device/common.cuh"
#include "abi/dense.h"
#include "dense/blocks.cuh"

#ifndef CAIRN_APART
#define CAIRN_APART 0
#endif

#define TILES CAIRN_ROW_TILES
#define ROWS (8 * TILES)
#define CHUNK 256             /* inputs staged at a time */
#define X_STRIDE (CHUNK + 8)  /* f16, off the bank pattern */

CAIRN_INLINE const float *row_of(const linear_params &p, int row) {
    if constexpr (CAIRN_APART)
        return p.x + block_id_z() * p.x_part + row * p.x_stride;
    return p.x + (int64_t)row * p.in;
}

/* x [ROWS, CHUNK] from input `first` on as f16; zeros beyond the matrix. */
CAIRN_INLINE void stage_x(const linear_params &p, f16 *staged, int row0, int first) {
    for (int i = thread_id(); i < ROWS * CHUNK / 4; i += 128) {
        int row = i / (CHUNK / 4), at = i % (CHUNK / 4) * 4;
        f32x4 v = {0, 0, 0, 0};
        if (row0 + row < p.rows && first + at < p.in)
            v = *(const f32x4 *)(row_of(p, row0 + row) + first + at);
        *(u32x2 *)(staged + row * X_STRIDE + at) = {pack_f16x2(v.x, v.y), pack_f16x2(v.z, v.w)};
    }
}

/* Two A operands of a group: a[0] for inputs 8 c to 8 c + 3, a[1] for the next four. */
CAIRN_INLINE void load_weights(const linear_params &p, int out, int group, uint32_t (*a)[4]) {
    const int g = lane_id() / 4, c = lane_id() % 4;
    const int64_t before = CAIRN_APART ? (int64_t)block_id_z() * p.outs : 0;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int o = min_of(out + g + 8 * half, p.outs - 1); /* beyond: computed and not stored */
        float v[8] = {};
        if (!CAIRN_APART || group * 32 + c * 8 < p.in)
            load_eight<CAIRN_BLOCK_TYPE>(p.w + (before + o) * p.row_bytes, group, c, v);
#pragma unroll
        for (int i = 0; i < 4; i++) a[i / 2][half + i % 2 * 2] = pack_f16x2(v[2 * i], v[2 * i + 1]);
    }
}

CAIRN_INLINE void store_sums(const linear_params &p, const float (*sum)[4], int row0, int out) {
    const int g = lane_id() / 4, c = lane_id() % 4;
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int row = row0 + tile * 8 + c * 2 + i % 2, o = out + g + i / 2 * 8;
            if (row >= p.rows || o >= p.outs) continue;
            float *to = p.out + (int64_t)row * p.outs + o;
            if constexpr (CAIRN_APART)
                to = p.out + block_id_z() * p.out_part + row * p.out_stride + o;
            *to = p.accumulate ? *to + sum[tile][i] : sum[tile][i];
        }
}

CAIRN_KERNEL(linear, 128, 1, linear_params) {
    f16 *staged = (f16 *)shared_base();
    const int out = (block_id() * 4 + warp_id()) * 16, row0 = block_id_y() * ROWS;
    const int g = lane_id() / 4, c = lane_id() % 4;
    float sum[TILES][4] = {};
    for (int first = 0; first < p.in; first += CHUNK) {
        block_sync();
        stage_x(p, staged, row0, first);
        block_sync();
        const int groups = (min_of(CHUNK, p.in - first) + (CAIRN_APART ? 31 : 0)) / 32;
        for (int group = 0; group < groups && out < p.outs; group++) {
            uint32_t a[2][4];
            load_weights(p, out, first / 32 + group, a);
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                u32x4 x = *(const u32x4 *)(staged + (tile * 8 + g) * X_STRIDE + group * 32 + c * 8);
                uint32_t low[2] = {x.x, x.y}, high[2] = {x.z, x.w};
                mma_f16(sum[tile], a[0], low);
                mma_f16(sum[tile], a[1], high);
            }
        }
    }
    store_sums(p, sum, row0, out);
}
