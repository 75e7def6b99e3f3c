/* A ffn of experts but for its products (step/layer.cu, step/prompt.cu, step/prompt_residual.cu), for
 * steps and prompts alike:
 *
 *   step_route    which experts take a row, and their shares: the router's best `used` of its normed
 *                 residual, all in f32, equal scores to the lowest number; shares are a softmax over
 *                 these. Grid rows, 256 threads; 4 (hidden + experts + 8) bytes.
 *   step_places   slots in the order of experts, in each of rows, and windows of them
 *                 (step/families.cuh). One block of 256 threads; 4 (2 experts + 1024) bytes.
 *   step_gather   the normed residual of rows as f16, in their slots. Grid rows, 128 threads; 16 bytes.
 *   step_combine  residual += shares of what the slots came to, in the order of a row's choices, handed
 *                 on for the next norm. Grid rows, 128 threads; none.
 *
 * Constants: those of step/step.cuh, CAIRN_BLOCKS 0. A row's results depend on that row alone.
 * Sync: block_sync. Reference: tests/ref/llama_ref.h.
 * matrix: CAIRN_LAYERS=48 CAIRN_HIDDEN=2048 CAIRN_HEADS=32 CAIRN_KV_HEADS=4 CAIRN_HEAD_DIM=128
 * matrix: + CAIRN_FFN=768 CAIRN_VOCAB=151936 CAIRN_CONTEXT=32768 CAIRN_PAGE_SIZE=64
 * matrix: + CAIRN_PACK_QKV=38 CAIRN_PACK_O=38 CAIRN_PACK_GATE_UP=38 CAIRN_PACK_DOWN=40
 * matrix: + CAIRN_PACK_HEAD=40 CAIRN_PACK_EMBED=38 CAIRN_WARPS=8 CAIRN_MEETING_TILES=2
 * matrix: + CAIRN_ROWS=64 CAIRN_PARTS=2048 CAIRN_BLOCKS=0 CAIRN_NARROW=0 CAIRN_EXTRAS=257
 * matrix: + CAIRN_EXPERTS=128 CAIRN_USED=8 */
#include "step/stages.cuh"
#include "step/families.cuh"

/* 1 / rms of a row of the residual stream, for all threads of a block. */
template <int COUNT> CAIRN_INLINE float row_factor(const step_params &p, const float *x, float *sums) {
    float squares = 0.0f, all = 0.0f;
    for (int i = thread_id(); i < HIDDEN; i += COUNT) squares = fma_f32(x[i], x[i], squares);
    squares = warp_sum(squares);
    if (lane_id() == 0) sums[warp_id()] = squares;
    block_sync();
    for (int w = 0; w < COUNT / WARP; w++) all += sums[w];
    return norm_factor(p, all, HIDDEN);
}

/* By one warp. */
CAIRN_INLINE void choose_experts(const step_params &p, int r, const float *scores) {
    int32_t *chosen = (int32_t *)(region(p, 0, 0) + CHOSEN_AT) + (int64_t)r * USED;
    float *shares = (float *)(region(p, 0, 0) + SHARES_AT) + (int64_t)r * USED;
    uint64_t last = ~(uint64_t)0;
    float top = 0.0f, total = 0.0f;
    for (int k = 0; k < USED; k++) {
        uint64_t best = 0;
        for (int e = lane_id(); e < EXPERTS; e += WARP) {
            const uint64_t rank = rank_logit(scores[e], e);
            if (rank < last) best = max_of(best, rank);
        }
        last = warp_max(best);
        const int expert = (int)(0xffffffffu - (uint32_t)last);
        if (k == 0) top = scores[expert];
        const float share = exp_fast(scores[expert] - top);
        total += share;
        if (lane_id() == 0) chosen[k] = expert, shares[k] = share;
    }
    warp_sync();
    for (int k = lane_id(); k < USED; k += WARP) shares[k] = shares[k] / total;
}

CAIRN_KERNEL(step_route, 256, 1, step_params) {
    const int r = block_id();
    float *x = (float *)shared_base(), *scores = x + HIDDEN, *sums = scores + EXPERTS;
    const float *norm = p.norms + (int64_t)(2 * p.layer + 1) * HIDDEN;
    start_input();
    if (r >= p.input[STEP_ROWS]) return;
    const float *from = residual_of(p) + (int64_t)r * HIDDEN;
    const float factor = row_factor<256>(p, from, sums);
    for (int i = thread_id(); i < HIDDEN; i += 256) x[i] = from[i] * factor * norm[i];
    block_sync();
    for (int e = warp_id(); e < EXPERTS; e += 8) {
        const float *w = p.router + (int64_t)e * HIDDEN;
        float sum = 0.0f;
#pragma unroll 4
        for (int i = lane_id(); i < HIDDEN; i += WARP) sum = fma_f32(w[i], x[i], sum);
        sum = warp_sum(sum);
        if (lane_id() == 0) scores[e] = sum;
    }
    block_sync();
    if (warp_id() == 0) choose_experts(p, r, scores);
}

/* Calls each(i, expert) for all choices, by every thread, in their order. */
template <class Each>
CAIRN_INLINE void each_choice(const int32_t *chosen, int count, int32_t *some, Each each) {
    for (int first = 0; first < count; first += 1024) {
        const int n = min_of(count - first, 1024);
        block_sync();
        for (int i = thread_id(); i < n; i += 256) some[i] = chosen[first + i];
        block_sync();
        for (int i = 0; i < n; i++) each(first + i, some[i]);
    }
}

CAIRN_KERNEL(step_places, 256, 1, step_params) {
    int32_t *counts = (int32_t *)shared_base(), *next = counts + EXPERTS, *some = next + EXPERTS;
    const int32_t *chosen = (const int32_t *)(region(p, 0, 0) + CHOSEN_AT);
    int32_t *places = (int32_t *)(region(p, 0, 0) + PLACES_AT);
    int32_t *windows = (int32_t *)(region(p, 0, 0) + WINDOWS_AT);
    start_input();
    const int count = p.input[STEP_ROWS] * USED;
    for (int mine = thread_id(); mine < round_up(EXPERTS, 256); mine += 256) {
        int n = 0;
        each_choice(chosen, count, some, [&](int, int e) { n += e == mine; });
        if (mine < EXPERTS) counts[mine] = n;
    }
    block_sync();
    if (thread_id() == 0) {
        int at = 0, used = 0;
        for (int e = 0; e < EXPERTS; e++) {
            next[e] = at;
            for (int first = 0; first < counts[e]; first += p.expert_rows, used++) {
                int32_t *to = windows + 4 + used * 4;
                to[0] = e, to[1] = at + first;
                to[2] = min_of(counts[e] - first, p.expert_rows);
            }
            at += counts[e];
        }
        windows[0] = used;
    }
    block_sync();
    for (int mine = thread_id(); mine < round_up(EXPERTS, 256); mine += 256) {
        int to = mine < EXPERTS ? next[mine] : 0;
        each_choice(chosen, count, some, [&](int i, int e) {
            if (e == mine) places[i] = to++;
        });
    }
}

CAIRN_KERNEL(step_gather, 128, 1, step_params) {
    const int r = block_id();
    const float *norm = p.norms + (int64_t)(2 * p.layer + 1) * HIDDEN;
    start_input();
    if (r >= p.input[STEP_ROWS]) return;
    const int32_t *places = (const int32_t *)(region(p, 0, 0) + PLACES_AT) + (int64_t)r * USED;
    const float *x = residual_of(p) + (int64_t)r * HIDDEN;
    const float factor = row_factor<128>(p, x, (float *)shared_base());
    for (int k = 2 * thread_id(); k < HIDDEN; k += 256) {
        const uint32_t two =
            pack_f16x2(x[k] * factor * norm[k], x[k + 1] * factor * norm[k + 1]);
        for (int i = 0; i < USED; i++)
            *(uint32_t *)(region(p, 0, 0) + ROUTED_AT + ((int64_t)places[i] * HIDDEN + input_at(k)) * 2) = two;
    }
}

CAIRN_KERNEL(step_combine, 128, 1, step_params) {
    const int r = block_id();
    start_input();
    if (r >= p.input[STEP_ROWS]) return;
    const int32_t *places = (const int32_t *)(region(p, 0, 0) + PLACES_AT) + (int64_t)r * USED;
    const float *shares = (const float *)(region(p, 0, 0) + SHARES_AT) + (int64_t)r * USED;
    const float *out = (const float *)(region(p, 0, 0) + EXPERT_OUT_AT);
    add_to_row(p, r, 1, [&](int k) {
        float sum = 0.0f;
        for (int i = 0; i < USED; i++)
            sum = fma_f32(shares[i], out[(int64_t)places[i] * HIDDEN + k], sum);
        return sum;
    });
}
