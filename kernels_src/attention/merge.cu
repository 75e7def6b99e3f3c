/* merge_states: partial outputs put together by their lse, a warp for each row and head.
 *   out = sum_c e^(lse_c - m) part_c / sum_c e^(lse_c - m),  lse = m + ln sum_c e^(lse_c - m)
 *
 * Launch  grid ceil(states / 4), block 128. Parts ascend; a part with lse -inf is not read. */
#include "device/common.cuh"
#include "abi/attention.h"

CAIRN_KERNEL(merge_states, 128, 8, merge_states_params) {
    const float nothing = minus_infinity();
    const int64_t i = (int64_t)block_id() * 4 + warp_id();
    if (i >= p.states) return;
    float top = nothing, total = 0.0f;
    for (int c = 0; c < p.parts; c++) top = fmaxf(top, p.lses[c * p.states + i]);
    for (int c = 0; c < p.parts; c++) {
        const float lse = p.lses[c * p.states + i];
        if (lse > nothing) total += exp_fast(lse - top);
    }
    const float share = total > 0.0f ? 1.0f / total : 0.0f;
    for (int d = lane_id(); d < p.head_dim; d += WARP) {
        float sum = 0.0f;
        for (int c = 0; c < p.parts; c++) {
            const float lse = p.lses[c * p.states + i];
            const float weight = lse > nothing ? exp_fast(lse - top) : 0.0f;
            if (weight > 0.0f)
                sum = fma_f32(weight, p.values[(c * p.states + i) * p.head_dim + d], sum);
        }
        p.out[i * p.head_dim + d] = sum * share;
    }
    if (p.lse && lane_id() == 0)
        p.lse[i] = total > 0.0f ? top + log2_fast(total) * 0.6931471805599453f : nothing;
}
