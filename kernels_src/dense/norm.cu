/* norm: rmsnorm and swiglu, the element-wise parts of a decoder layer.
 *
 * rmsnorm   out = x * weight / sqrt(mean(x^2) + epsilon); grid rows, block 256, 32 bytes shared
 * swiglu    out = gate / (1 + e^-gate) * up; grid any, block 256
 * Sums in a fixed order: lanes, then warps ascending. */
#include "device/common.cuh"
#include "abi/dense.h"

CAIRN_KERNEL(rmsnorm, 256, 1, rmsnorm_params) {
    float *sums = (float *)shared_base(); /* [8] */
    const float *x = p.x + (int64_t)block_id() * p.n;
    float *out = p.out + (int64_t)block_id() * p.n;
    float sum = 0.0f;
    for (int i = thread_id(); i < p.n; i += 256) sum = fma_f32(x[i], x[i], sum);
    sum = warp_sum(sum);
    if (lane_id() == 0) sums[warp_id()] = sum;
    block_sync();
    sum = 0.0f;
    for (int w = 0; w < 8; w++) sum += sums[w];
    float scale = 1.0f / sqrt_f32(sum / (float)p.n + p.epsilon);
    for (int i = thread_id(); i < p.n; i += 256) out[i] = x[i] * scale * p.weight[i];
}

CAIRN_KERNEL(swiglu, 256, 1, swiglu_params) {
    const int64_t step = (int64_t)grid_blocks() * 256;
    for (int64_t i = (int64_t)block_id() * 256 + thread_id(); i < p.count; i += step) {
        float gate = p.gate[i];
        p.out[i] = gate / (1.0f + exp_fast(-gate)) * p.up[i];
    }
}
