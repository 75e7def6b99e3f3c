/* index_qk: what becomes of the projections of an indexer, a warp for each head of q and for k.
 *
 * Formula    q' = H rope(q), k' = H rope(LayerNorm(k)), both as e4m3 with a scale; weights = gate *
 *            scale of q' * heads^-0.5 * 128^-0.5. rope turns the pairs (j, j + 32), j < 32; H is
 *            Hadamard's matrix (Sylvester's order) * 128^-0.5, symmetric
 * Constants  CAIRN_PLANNED  1: pairs and magnitude as a model's plan says them
 * Launch     grid ceil(rows * (heads + 1) / 4), block 128
 * Oracle     tests/ref/index_ref.h
 * matrix:  | CAIRN_PLANNED=1 */
#include "device/common.cuh"
#include "abi/index.h"
#include "dense/rope.cuh"
#include "index/fp8.cuh"

#ifndef CAIRN_PLANNED
#define CAIRN_PLANNED 0
#endif

/* A lane has the values lane + 32 i: both of its rotary pair. */
CAIRN_INLINE void load_head(const float *from, float *v) {
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = from[lane_id() + 32 * i];
}

CAIRN_INLINE void normalize(const index_qk_params &p, float *v) {
    const float mean = warp_sum(v[0] + v[1] + v[2] + v[3]) * (1.0f / 128.0f);
    float square = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[i] -= mean;
        square = fma_f32(v[i], v[i], square);
    }
    const float deviation = sqrt_f32(warp_sum(square) * (1.0f / 128.0f) + p.epsilon);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int d = lane_id() + 32 * i;
        v[i] = div_f32(v[i], deviation) * p.norm_weight[d] + (p.norm_bias ? p.norm_bias[d] : 0.0f);
    }
}

/* v's value of pairs (2j, 2j + 1), the other of which the next lane has. */
CAIRN_INLINE float turn_beside(const index_qk_params &p, int position, int pair, float v) {
    const rotation turn = rotation_of(position, p.turns[pair]);
    const float other = shuffle_xor(v, 1) * turn.sine;
    return (v * turn.cosine + (lane_id() & 1 ? other : -other)) * p.magnitude;
}

CAIRN_INLINE void rotate(const index_qk_params &p, int position, float *v) {
    if (CAIRN_PLANNED && p.beside) {
        v[0] = turn_beside(p, position, lane_id() / 2, v[0]);
        v[1] = turn_beside(p, position, 16 + lane_id() / 2, v[1]);
        return;
    }
    const rotation turn = rotation_of(position, p.turns[lane_id()]);
    const float x = v[0], y = v[1];
    v[0] = x * turn.cosine - y * turn.sine;
    v[1] = x * turn.sine + y * turn.cosine;
    if (CAIRN_PLANNED) v[0] *= p.magnitude, v[1] *= p.magnitude;
}

CAIRN_INLINE void transform(float *v) {
#pragma unroll
    for (int m = 1; m < WARP; m *= 2)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float other = shuffle_xor(v[i], m);
            v[i] = lane_id() & m ? other - v[i] : v[i] + other;
        }
    const float a = v[0] + v[1], b = v[0] - v[1], c = v[2] + v[3], d = v[2] - v[3];
    v[0] = (a + c) * 0.08838834764831845f; /* 128^-0.5 */
    v[1] = (b + d) * 0.08838834764831845f;
    v[2] = (a - c) * 0.08838834764831845f;
    v[3] = (b - d) * 0.08838834764831845f;
}

CAIRN_INLINE float store_head(const index_qk_params &p, const float *v, uint8_t *to) {
    uint32_t bytes;
    const float scale = fp8_block(v, p.power_of_two, &bytes);
#pragma unroll
    for (int i = 0; i < 4; i++) to[lane_id() + 32 * i] = (uint8_t)(bytes >> 8 * i);
    return scale;
}

CAIRN_KERNEL(index_qk, 128, 4, index_qk_params) {
    const int64_t unit = (int64_t)block_id() * warp_count() + warp_id();
    const int r = (int)(unit / (p.heads + 1)), head = (int)(unit % (p.heads + 1));
    if (r >= p.rows) return;
    const bool key = head == p.heads;
    const int64_t at = (int64_t)r * p.heads + head;
    int position = p.positions[r];
    if (position < 0) {
        if (key && lane_id() == 0)
            report_error(p.error, CAIRN_FAULT_POSITION, p.first_row + r, position);
        position = 0;
    }
    float v[4];
    load_head(key ? p.k + (int64_t)r * CAIRN_INDEX_DIM : p.q + at * CAIRN_INDEX_DIM, v);
    if (key) normalize(p, v);
    rotate(p, position, v);
    transform(v);
    const float scale = store_head(p, v, key ? p.keys + (int64_t)r * CAIRN_INDEX_DIM
                                             : p.q_out + at * CAIRN_INDEX_DIM);
    if (lane_id() != 0) return;
    if (key) p.key_scales[r] = scale;
    else p.weights[at] = p.gates[at] * p.gate_scale * scale;
}
