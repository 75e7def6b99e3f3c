/* select: which pages a sparse decode step attends.
 *
 * score_pages   s = scale * sum_d max(q_d lo_d, q_d hi_d) per query head, or scale * q . mean;
 *               summed over the heads of a KV head, or their maximum; -inf where no candidate.
 *               CAIRN_EACH_HEAD: a query head's own too
 *               CAIRN_LANDMARKS: scale * q . key of the page's last slot, of a cache of the kind that
 *               CAIRN_ABILITIES says (an ATTEND_CACHE_, f16 where it is not given)
 *               grid (ceil(max_pages / 32), kv_heads, rows), block 256, shared memory 8 bytes a
 *               dimension, up to a multiple of 32
 * softmax_head goes on in heads.cu. The pages are then chosen by topk with finite_only.
 * matrix: CAIRN_EACH_HEAD=0 | CAIRN_EACH_HEAD=1 CAIRN_LANDMARKS=1
 *
 * max(q lo, q hi) is max(q, 0) hi + min(q, 0) lo, so that a sum over heads is one product of a
 * page's bounds, as they lie, with the heads' sums of these. Four pages at a time for a warp. */
#include "device/common.cuh"
#include "abi/select.h"
#include "attention/paged.cuh"
#ifndef CAIRN_ABILITIES
#define CAIRN_ABILITIES 0
#endif
#include "attention/elements.cuh"

#ifndef CAIRN_EACH_HEAD
#define CAIRN_EACH_HEAD 0
#endif
#ifndef CAIRN_LANDMARKS
#define CAIRN_LANDMARKS 0
#endif

constexpr int SCORED = 4; /* pages of a warp */

/* parts [2 D, padded with zeros]: what lo is multiplied with, then what hi is, for heads [first,
 * end) of q. All threads. */
CAIRN_INLINE void sum_queries(const score_pages_params &p, const float *q, int first, int end,
                              float *parts) {
    const int dim = p.at.head_dim;
    for (int d = thread_id(); d < round_up(2 * dim, 8) - dim; d += 256) {
        float below = 0.0f, above = 0.0f;
        for (int g = first; g < end && d < dim; g++) {
            const float x = q[g * dim + d];
            if (p.mean || x > 0.0f) above += x;
            if (p.mean || !(x > 0.0f)) below += x;
        }
        if (d < dim) parts[d] = below;
        parts[dim + d] = above;
    }
}

/* Eight values, or as many as are left and zeros; in one load where they are aligned. */
CAIRN_INLINE u32x4 load_eight_f16(const uint16_t *from, int left, bool aligned) {
    if (aligned && left >= 8) return load_constant((const u32x4 *)from);
    uint32_t v[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[i] = 2 * i < left ? load_constant(from + 2 * i) : 0u;
        if (2 * i + 1 < left) v[i] |= (uint32_t)load_constant(from + 2 * i + 1) << 16;
    }
    return {v[0], v[1], v[2], v[3]};
}

CAIRN_INLINE float dot_eight(u32x4 v, const float *parts) {
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const f32x2 two = unpack_f16x2(words[i]);
        sum = fma_f32(two.x, parts[2 * i], sum);
        sum = fma_f32(two.y, parts[2 * i + 1], sum);
    }
    return sum;
}

/* The pages of one warp: physical ids, -1 for none; where a page's bounds of this head lie. */
struct scored_pages {
    int page[SCORED];
    const uint16_t *bounds; /* of page 0 */
    int64_t stride;         /* values from page to page */
    int values;             /* of a page: 2 D */
    bool aligned;
    const void *cache;      /* of a kind that is not f16: its values and scales, and the number of the */
    const float *scales;    /* first value of page 0's landmark */
    int64_t first;
    u32x4 held[SCORED];     /* the eight values of this lane's first turn */

    CAIRN_MEMBER u32x4 load(int i, int at) const {
        if (page[i] < 0 || at >= values) return u32x4{};
        if constexpr (CACHE_KIND != ATTEND_CACHE_F16) {
            const int64_t from = first + page[i] * stride;
            return half_of_cache(cache, from + at, scales + from / values);
        }
        return load_eight_f16(bounds + page[i] * stride + at, values - at, aligned);
    }
    /* This warp's scores, in every lane. */
    CAIRN_MEMBER void score(const float *parts, float *scores) const {
        int at = lane_id() * 8;
#pragma unroll
        for (int i = 0; i < SCORED; i++)
            scores[i] = at < values ? dot_eight(held[i], parts + at) : 0.0f;
#pragma unroll 1
        for (at += WARP * 8; at < values; at += WARP * 8)
#pragma unroll
            for (int i = 0; i < SCORED; i++) scores[i] += dot_eight(load(i, at), parts + at);
#pragma unroll
        for (int m = WARP / 2; m > 0; m /= 2)
#pragma unroll
            for (int i = 0; i < SCORED; i++) scores[i] += shuffle_xor(scores[i], m);
    }
};

/* The scores of this warp's pages from `first` on, a row of `count`, -inf where there is none. */
CAIRN_INLINE void write_scores(const scored_pages &pages, const float *scores, float scale, int first,
                               int count, float *out) {
    if (lane_id() > 0) return;
#pragma unroll
    for (int i = 0; i < SCORED; i++)
        if (first + i < count)
            out[first + i] = pages.page[i] >= 0 ? scores[i] * scale : minus_infinity();
}

CAIRN_KERNEL(score_pages, 256, 1, score_pages_params) {
    const paged_rows &at = p.at;
    const int first = (block_id() * 8 + warp_id()) * SCORED, head = block_id_y(), r = block_id_z();
    const int group = p.heads / at.kv_heads, vectors = p.by_head ? group : 1;
    const float *q = p.q + ((int64_t)r * p.heads + head * group) * at.head_dim;
    const paged_row row = paged_find(at, r);
    const int reach = row.position - (p.window > 0 ? p.window - 1 : 0);
    const int candidates = row.valid && reach >= 0 ? reach / at.page_size : 0;
    float *parts = (float *)shared_base(), best[SCORED];
    scored_pages pages;
    pages.values = 2 * at.head_dim;
    pages.bounds = p.bounds + (int64_t)head * pages.values;
    pages.stride = (int64_t)at.kv_heads * pages.values;
    pages.aligned = ((uint64_t)p.bounds | (uint64_t)pages.values * 2) % 16 == 0;
    if constexpr (CAIRN_LANDMARKS) {
        pages.values = at.head_dim;
        pages.bounds = at.cache + (int64_t)((head + 1) * at.page_size - 1) * at.head_dim;
        pages.stride = (int64_t)2 * at.kv_heads * at.page_size * at.head_dim;
        pages.aligned = ((uint64_t)pages.bounds | (uint64_t)pages.stride * 2) % 16 == 0;
        pages.cache = at.cache, pages.scales = p.scales;
        pages.first = (int64_t)((head + 1) * at.page_size - 1) * at.head_dim;
    }
#pragma unroll
    for (int i = 0; i < SCORED; i++) {
        const bool inside = first + i < min_of(candidates, at.max_pages);
        pages.page[i] = inside ? paged_physical(at, row, first + i) : -1;
    }
#pragma unroll
    for (int i = 0; i < SCORED; i++) pages.held[i] = pages.load(i, lane_id() * 8);
    for (int v = 0; v < vectors; v++) {
        float scores[SCORED];
        if (v > 0) block_sync();
        sum_queries(p, q, v, p.by_head ? v + 1 : group, parts);
        block_sync();
        pages.score(parts, scores);
#pragma unroll
        for (int i = 0; i < SCORED; i++) best[i] = v == 0 ? scores[i] : max_of(best[i], scores[i]);
    }
    write_scores(pages, best, p.scale, first, at.max_pages,
                 p.scores + ((int64_t)r * at.kv_heads + head) * at.max_pages);
    for (int g = 0; CAIRN_EACH_HEAD && g < group; g++) {
        block_sync();
        sum_queries(p, q, g, g + 1, parts);
        block_sync();
        pages.score(parts, best);
        write_scores(pages, best, p.scale, first, at.max_pages,
                     p.head_scores + ((int64_t)r * p.heads + head * group + g) * at.max_pages);
    }
}
