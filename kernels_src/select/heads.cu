/* heads: what the query heads of a KV head say of pages, beside select.cu's scores.
 *
 * score_softmax scores from the heads' own: the best of s_g - ln(e^lse_g + sum e^s_g)
 *               grid (kv_heads, rows), block 256, shared memory 4 bytes for 8 and a head of the group
 * select_listed what was chosen from, and the heads' own scores of the chosen pages
 *               grid units, block 256, shared memory 32 bytes */
#include "device/common.cuh"
#include "abi/select.h"

/* The sum or the maximum over the block; every thread gets it. scratch [8]. */
CAIRN_INLINE float meet(float mine, bool sum, float *scratch) {
    mine = sum ? warp_sum(mine) : warp_max(mine);
    block_sync();
    if (lane_id() == 0) scratch[warp_id()] = mine;
    block_sync();
    float all = scratch[0];
#pragma unroll
    for (int w = 1; w < 8; w++) all = sum ? all + scratch[w] : fmaxf(all, scratch[w]);
    return all;
}

CAIRN_KERNEL(score_softmax, 256, 1, score_pages_params) {
    const float nothing = minus_infinity();
    const int pages = p.at.max_pages, group = p.heads / p.at.kv_heads;
    const int64_t unit = (int64_t)block_id_y() * p.at.kv_heads + block_id();
    const float *own = p.head_scores + unit * group * pages;
    float *scratch = (float *)shared_base(), *whole = scratch + 8;
    for (int g = 0; g < group; g++) {
        const float besides = p.lse && p.lse[unit * group + g] > nothing ? p.lse[unit * group + g]
                                                                         : nothing;
        float top = besides, sum = 0.0f;
        for (int c = thread_id(); c < pages; c += 256) top = fmaxf(top, own[g * (int64_t)pages + c]);
        top = meet(top, false, scratch);
        for (int c = thread_id(); c < pages; c += 256) {
            const float s = own[g * (int64_t)pages + c];
            if (s > nothing) sum += exp_f32(s - top);
        }
        sum = meet(sum, true, scratch);
        if (besides > nothing) sum += exp_f32(besides - top);
        if (thread_id() == 0) whole[g] = sum > 0.0f ? top + log_f32(sum) : 0.0f;
    }
    block_sync();
    for (int c = thread_id(); c < pages; c += 256) {
        float best = nothing;
        for (int g = 0; g < group; g++) {
            const float s = own[g * (int64_t)pages + c];
            if (s > nothing) best = fmaxf(best, s - whole[g]);
        }
        p.scores[unit * pages + c] = best;
    }
}

CAIRN_KERNEL(select_listed, 256, 1, select_listed_params) {
    const float nothing = minus_infinity();
    const int64_t unit = block_id();
    const float *scores = p.scores + unit * p.pages;
    int *totals = (int *)shared_base(), found = 0;
    for (int first = 0; first < p.pages; first += 256) {
        const int c = first + thread_id();
        const bool is = c < p.pages && scores[c] > nothing;
        const uint32_t votes = warp_ballot(is);
        if (lane_id() == 0) totals[warp_id()] = popcount(votes);
        block_sync();
        int at = found + popcount(votes & ((1u << lane_id()) - 1));
#pragma unroll
        for (int w = 0; w < 8; w++) {
            if (w < warp_id()) at += totals[w];
            found += totals[w];
        }
        if (is && p.candidates) p.candidates[unit * p.pages + at] = c;
        block_sync();
    }
    for (int c = found + thread_id(); p.candidates && c < p.pages; c += 256)
        p.candidates[unit * p.pages + c] = -1;
    if (p.counts && thread_id() == 0) p.counts[unit] = found;
    for (int i = thread_id(); p.head_chosen && i < p.group * p.topk; i += 256) {
        const int64_t head = unit * p.group + i / p.topk;
        const int page = p.selected[unit * p.topk + i % p.topk];
        p.head_chosen[head * p.topk + i % p.topk] =
            page >= 0 ? p.head_scores[head * p.pages + page] : nothing;
    }
}
