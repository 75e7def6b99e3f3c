/* What the kernels of families beyond plain llama share: where their values lie in the exchange, and the
 * hand-over after a summand.
 *
 * Experts: a slot is a row with one of its experts; the slots of an expert follow each other, and
 * windows of up to expert_rows of them are what a block of a product serves, so that an expert's
 * weights are read once for all rows of a window. */
#ifndef CAIRN_FAMILIES_CUH
#define CAIRN_FAMILIES_CUH

#include "step/step.cuh"

constexpr int64_t ROUTED_AT = EXPERTS_AT;                               /* [slot, hidden] f16 */
constexpr int64_t EXPERT_FFN_AT = ROUTED_AT + EXPERT_SLOTS * HIDDEN * 2; /* [slot, ffn] f16 */
constexpr int64_t EXPERT_OUT_AT = EXPERT_FFN_AT + EXPERT_SLOTS * FFN * 2; /* [slot, hidden] f32 */
constexpr int64_t CHOSEN_AT = EXPERT_OUT_AT + EXPERT_SLOTS * HIDDEN * 4; /* [row, used] experts */
constexpr int64_t SHARES_AT = CHOSEN_AT + EXPERT_SLOTS * 4;             /* [row, used] f32 */
constexpr int64_t PLACES_AT = SHARES_AT + EXPERT_SLOTS * 4;             /* [row, used] slots */
constexpr int64_t WINDOWS_AT = PLACES_AT + EXPERT_SLOTS * 4; /* count, then expert_window each */
static_assert(!CHOOSES || WINDOWS_AT + 16 + EXPERT_WINDOWS * 16 <= REGION_BYTES, "experts: room");

struct expert_window {
    int expert, first, count, pad;
};

/* false: there are not so many */
CAIRN_INLINE bool find_window(const step_params &p, int index, expert_window &window) {
    const int32_t *at = (const int32_t *)(region(p, 0, 0) + WINDOWS_AT);
    if (index >= at[0]) return false;
    at += 4 + index * 4;
    window = expert_window{at[0], at[1], at[2], 0};
    return true;
}

/* 1 / rms of `count` values whose squares sum up to `squares`. */
CAIRN_INLINE float norm_factor(const step_params &p, float squares, int count) {
    return rsqrt_fast(squares * (1.0f / (float)count) + p.norm_eps);
}

/* Row r of the residual stream += added(k), added(k + 1), handed on for the norm behind attention (0)
 * or the ffn (1): a block of 128 threads. */
template <class Added>
CAIRN_INLINE void add_to_row(const step_params &p, int r, int ffn, Added added) {
    const float *norm = p.norms + (int64_t)(2 * p.layer + 1 + ffn) * HIDDEN;
    float *x = residual_of(p) + (int64_t)r * HIDDEN;
    uint8_t *hidden = region(p, 0, 0) + (ffn ? HIDDEN_AT : MIDDLE_AT);
    uint8_t *to = region(p, 0, 0) + (ffn ? SQUARES_AT : MIDDLE_SQUARES_AT);
    for (int first = 0; first < HIDDEN; first += 256) {
        const int k = first + 2 * thread_id();
        float sum = 0.0f;
        if (k < HIDDEN) {
            f32x2 v = *(const f32x2 *)(x + k);
            v.x += added(k), v.y += added(k + 1);
            *(f32x2 *)(x + k) = v;
            *(uint32_t *)(hidden + ((int64_t)r * HIDDEN + k) * 2) = pack_f16x2(
                v.x * (norm[k] * p.input_scale), v.y * (norm[k + 1] * p.input_scale));
            sum = fma_f32(v.x, v.x, v.y * v.y);
        }
#pragma unroll
        for (int m = 1; m < 8; m *= 2) sum += shuffle_xor(sum, m); /* of 16 outputs */
        if (k < HIDDEN && k % 16 == 0) ((float *)to)[(int64_t)r * SQUARES + k / 16] = sum;
    }
}

#endif
