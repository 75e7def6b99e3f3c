/* select: which pages a sparse decode step attends.
 *
 * score_pages   s = D^-0.5 * sum_d max(q_d lo_d, q_d hi_d) per query head, or D^-0.5 * q . mean;
 *               summed over the heads of a KV head, or their maximum; -inf where no candidate.
 *               One warp a page. grid (ceil(max_pages / 8), kv_heads, rows), block 256
 * The pages are then chosen by topk with finite_only. */
#include "common.cuh"
#include "paged.cuh"

CAIRN_INLINE float page_score(const score_pages_params &p, const float *q, const uint16_t *lo,
                              const uint16_t *hi) {
    const int group = p.heads / p.at.kv_heads, dim = p.at.head_dim;
    float score = 0.0f;
    for (int g = 0; g < group; g++) {
        float sum = 0.0f;
        for (int d = lane_id(); d < dim; d += WARP) {
            float x = q[g * dim + d], low = f16_to_f32(f16{lo[d]}), high = f16_to_f32(f16{hi[d]});
            if (p.mean) low = high = low + high;
            sum += max_of(x * low, x * high);
        }
        sum = warp_sum(sum) / sqrt_f32((float)dim);
        score = g == 0 ? sum : p.by_head ? max_of(score, sum) : score + sum;
    }
    return score;
}

CAIRN_KERNEL(score_pages, 256, 1, score_pages_params) {
    const paged_rows &at = p.at;
    const int c = block_id() * 8 + warp_id(), head = block_id_y(), r = block_id_z();
    paged_row row = paged_find(at, r);
    if (c >= at.max_pages) return;
    int reach = row.position - (p.window > 0 ? p.window - 1 : 0);
    bool candidate = row.valid && reach >= 0 && c < reach / at.page_size;
    int page = candidate ? paged_physical(at, row, c) : -1;
    float score = as_f32(0xff800000u);
    if (page >= 0) {
        const uint16_t *lo = p.bounds + ((int64_t)page * at.kv_heads + head) * 2 * at.head_dim;
        const float *q = p.q + ((int64_t)r * p.heads + head * (p.heads / at.kv_heads)) * at.head_dim;
        score = page_score(p, q, lo, lo + at.head_dim);
    }
    if (lane_id() == 0) p.scores[((int64_t)r * at.kv_heads + head) * at.max_pages + c] = score;
}
