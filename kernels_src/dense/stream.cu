/* linear_stream: out[r, o] (+)= sum_i x[r, i] w[o, i], the weights read straight from their blocks by
 * the product of the model's own steps (dense/product.cuh).
 *
 * Constants  CAIRN_BLOCK_TYPE  2 or 3: Q4_0, Q4_1
 *            CAIRN_INPUTS      of a row: such that raw_fits (dense/raw.cuh)
 * Launch     grid (blocks that share the tiles of 16 outputs, ceil(rows / 8)), block 256, shared
 *            PRODUCT_SHARED; outs: a multiple of 16; w and x at multiples of 16 bytes
 * Numerics   those of a step of the model, whose rows are f16: x is rounded to f16 first. A row's
 *            result depends on nothing but the row and the weights.
 * matrix: CAIRN_BLOCK_TYPE=2 CAIRN_INPUTS=4096 | CAIRN_BLOCK_TYPE=3 CAIRN_INPUTS=14336 */
#include "device/common.cuh"
#include "abi/dense.h"
#include "dense/raw.cuh"

/* The rows of the block, of all; asked for anew, as registers are scarce. */
CAIRN_INLINE int first_row() { return block_id_y() * PRODUCT_COLUMNS; }
CAIRN_INLINE int rows_of(const linear_params &p) {
    return min_of(PRODUCT_COLUMNS, p.rows - first_row());
}

struct stream_input {
    const linear_params &p;

    CAIRN_MEMBER void await() const { grid_dependency_wait(); }
    template <int N, class Place = rows_place> CAIRN_MEMBER void fetch(int unit, uint32_t (&b)[N][4]) const {
        const int g = Place::BAND * 8 + lane_anew() / 4;
        const float *from = p.x + (int64_t)(first_row() + g) * CAIRN_INPUTS + unit * 32 +
                            lane_anew() % 4 * 8;
        const int units = g < rows_of(p) ? CAIRN_INPUTS / 32 - unit : 0;
#pragma unroll
        for (int u = 0; u < N; u++) {
            f32x4 v = {0, 0, 0, 0}, w = {0, 0, 0, 0};
            if (u < units) v = *(const f32x4 *)(from + u * 32), w = *(const f32x4 *)(from + u * 32 + 4);
            b[u][0] = pack_f16x2(v.x, v.y), b[u][1] = pack_f16x2(v.z, v.w);
            b[u][2] = pack_f16x2(w.x, w.y), b[u][3] = pack_f16x2(w.z, w.w);
        }
    }
    template <int N> CAIRN_MEMBER void fetch_again(int unit, uint32_t (&b)[N][4]) const {
        fetch(unit, b);
    }
    template <class> CAIRN_MEMBER void before_meeting(float *) const {}
};

struct stream_output {
    const linear_params &p;

    CAIRN_MEMBER void operator()(const output &o, const float *) const {
        if (o.column >= rows_of(p)) return;
        float *to = p.out + (int64_t)(first_row() + o.column) * p.outs + o.tile * 16 + o.row;
        *to = p.accumulate ? add_f32(*to, o.value) : o.value;
    }
};

CAIRN_KERNEL(linear_stream, PRODUCT_THREADS, 1, linear_params) {
    stream_input input{p};
    stream_output out{p};
    stream_product<RAW + CAIRN_BLOCK_TYPE, CAIRN_INPUTS>(p.w, p.outs / 16, rows_of(p), input, out);
}
