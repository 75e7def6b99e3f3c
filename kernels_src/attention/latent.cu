/* attend_latent: attention over lists of tokens whose slots are latent (MLA): one KV head, keys of 576
 * values of which the first 512 are the values, too (abi/attention.h: a slot).
 *
 * Four warps share a chunk of 32 keys: each scores 8 of them, the rows' softmax meets in shared
 * memory, and each adds 128 of the 512 dimensions of P V over all 32. So a key is read once for 16
 * heads. Runs of LATENT_RUN chunks, cut by the list alone, are merged by the last block.
 *
 * Constants  CAIRN_ABILITIES  of ATTEND_CACHE (E4M3: slots of LATENT_BYTES), _QUERY_, _SOFTCAP
 * Launch     grid (runs at most, ceil(heads / 16), rows), block 128, shared layout_latent_bytes
 * Numerics   as attention.cu
 * matrix: CAIRN_ABILITIES=43 */
#define CAIRN_HEAD_DIM 512
#define CAIRN_PAGE_SIZE 16
#define CAIRN_PAGES_CSR 0
#ifndef CAIRN_ABILITIES
#define CAIRN_ABILITIES 0
#endif
#include "attention/core.cuh"
#include "abi/attention.h"
#include "attention/paged.cuh"
#include "attention/abilities.cuh"
#include "attention/tile.cuh"

constexpr int KEY_PIECES = LATENT_KEYS / 8, WARP_VALUES = DIM / CORE_WARPS;
constexpr int LATENT_QUERIES = LATENT_CHUNK * LATENT_KEYS * 2;        /* where they lie, f16 */
constexpr int WEIGHTS_AT = LATENT_QUERIES + 16 * LATENT_KEYS * 2;     /* f16 [16, 40] */
constexpr int TOPS_AT = WEIGHTS_AT + 16 * 40 * 2;                     /* [warp, 16] twice */
constexpr int IDS_AT = TOPS_AT + 2 * CORE_WARPS * 16 * 4;
static_assert(THREADS == 128 && IDS_AT + LATENT_CHUNK * 8 == layout_latent_bytes(), "latent: sizes");

/* Eight keys' pieces of one place, and eight pieces of a key, touch all banks. */
CAIRN_INLINE uint32_t latent_at(int key, int piece) {
    return (uint32_t)(key * KEY_PIECES + (piece ^ ((key & 1) * 4 | (key >> 1 & 3)))) * 16;
}

/* Eight values of a slot as f16. */
CAIRN_INLINE u32x4 latent_piece(const attend_params &p, int64_t slot, int piece) {
    if constexpr (CACHE_KIND == ATTEND_CACHE_E4M3) {
        const unsigned char *at = (const unsigned char *)p.at.cache + slot * LATENT_BYTES;
        const int rest = piece - LATENT_VALUES / 8;
        if (rest >= 0) return half_of_bf16(at + LATENT_VALUES + LATENT_SCALES * 4 + rest * 16);
        return half_of_e4m3(at + piece * 8, ((const float *)(at + LATENT_VALUES))[piece / 16]);
    }
    return half_of_cache(p.at.cache, slot * LATENT_KEYS + piece * 8, nullptr);
}

/* The running softmax of rows g and g + 8, the same in all warps, and a warp's part of the values. */
struct latent_sum {
    float top[2], total[2], o[WARP_VALUES / 8][4];
};

/* Chunk `chunk` of the list into shared memory; keys that are not there are zeros. All threads. */
CAIRN_INLINE void latent_fetch(const attend_params &p, const token_list &list, int chunk, int r,
                               unsigned char *memory) {
    int64_t *slots = (int64_t *)(memory + IDS_AT);
    if (thread_id() < LATENT_CHUNK) {
        const int at = chunk * LATENT_CHUNK + thread_id();
        const int id = at < list.length ? list.ids[at] : -1;
        const bool there = id >= 0 && id / p.at.page_size < p.at.pages;
        if (!there && id != -1) report_error(p.at.error, CAIRN_FAULT_ID, r, id);
        slots[thread_id()] = there ? id : -1;
    }
    block_sync();
    for (int n = thread_id(); n < LATENT_CHUNK * KEY_PIECES; n += THREADS) {
        const int key = n / KEY_PIECES, piece = n % KEY_PIECES;
        u32x4 v = {};
        if (slots[key] >= 0) v = latent_piece(p, slots[key], piece);
        *(u32x4 *)(memory + latent_at(key, piece)) = v;
    }
    block_sync();
}

/* Scores of this warp's eight keys. */
CAIRN_INLINE void latent_scores(const attend_params &p, const unsigned char *memory, float *s) {
    const int g = lane_id() / 4, t = lane_id() % 4, first = warp_id() * 8;
    const int64_t *slots = (const int64_t *)(memory + IDS_AT);
#pragma unroll
    for (int i = 0; i < 4; i++) s[i] = 0.0f;
#pragma unroll 6
    for (int u = 0; u < LATENT_KEYS / 32; u++) {
        const unsigned char *q = memory + LATENT_QUERIES;
        uint32_t a[8];
        query_operands(*(const u32x4 *)(q + latent_at(g, u * 4 + t)),
                       *(const u32x4 *)(q + latent_at(g + 8, u * 4 + t)), a);
        const u32x4 b = *(const u32x4 *)(memory + latent_at(first + g, u * 4 + t));
        const uint32_t low[2] = {b.x, b.y}, high[2] = {b.z, b.w};
        mma_f16(s, a, low);
        mma_f16(s, a + 4, high);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        s[i] = slots[first + 2 * t + i % 2] >= 0 ? score_of(p, s[i]) : NO_SCORE;
}

/* Folds the chunk that lies in shared memory. All threads. */
CAIRN_INLINE void latent_fold(const attend_params &p, unsigned char *memory, latent_sum &r) {
    const int lane = lane_id(), g = lane / 4, t = lane % 4, warp = warp_id();
    float *tops = (float *)(memory + TOPS_AT), *totals = tops + CORE_WARPS * 16;
    uint32_t *weights = (uint32_t *)(memory + WEIGHTS_AT);
    float s[4], old[2];
    latent_scores(p, memory, s);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float top = quad_max(fmaxf(s[2 * half], s[2 * half + 1]));
        if (t == 0) tops[warp * 16 + g + half * 8] = top;
    }
    block_sync();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int m = g + half * 8;
        float top = r.top[half];
        for (int w = 0; w < CORE_WARPS; w++) top = fmaxf(top, tops[w * 16 + m]);
        const float base = fmaxf(top, 0.5f * NOTHING);
        const float e0 = exp2_fast(s[2 * half] - base), e1 = exp2_fast(s[2 * half + 1] - base);
        const float sum = quad_sum(e0 + e1);
        old[half] = exp2_fast(r.top[half] - base);
        r.top[half] = top;
        weights[m * 20 + warp * 4 + t] = pack_f16x2(e0, e1);
        if (t == 0) totals[warp * 16 + m] = sum;
    }
    block_sync();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = 0.0f;
        for (int w = 0; w < CORE_WARPS; w++) sum += totals[w * 16 + g + half * 8];
        r.total[half] = fma_f32(r.total[half], old[half], sum);
    }
#pragma unroll
    for (int n = 0; n < WARP_VALUES / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) r.o[n][i] *= old[i / 2];
#pragma unroll
    for (int k = 0; k < LATENT_CHUNK / 16; k++) {
        const uint32_t *row = weights + k * 8 + t;
        const uint32_t a[4] = {row[g * 20], row[(g + 8) * 20], row[g * 20 + 4], row[(g + 8) * 20 + 4]};
        const int key = k * 16 + (lane / 8 & 1) * 8 + lane % 8;
#pragma unroll
        for (int n = 0; n < WARP_VALUES / 16; n++) {
            const int piece = warp * (WARP_VALUES / 8) + 2 * n + lane / 16;
            uint32_t b[4];
            load_matrix_transposed_x4(b, shared_addr(memory + latent_at(key, piece)));
            mma_f16(r.o[2 * n], a, b);
            mma_f16(r.o[2 * n + 1], a, b + 2);
        }
    }
    block_sync();
}

CAIRN_KERNEL(attend_latent, THREADS, 2, attend_params) {
    unsigned char *memory = shared_base();
    tile at;
    token_list list;
    at.find(p);
    list.find(p, at.r);
    const int chunks = ceil_div(list.length, (int)LATENT_CHUNK);
    const int runs = ceil_div(chunks, (int)LATENT_RUN), begin = at.block * LATENT_RUN;
    const int end = min_of(begin + LATENT_RUN, chunks);
    if (chunks == 0 && at.block == 0) write_nothing(p, at.head, at.count);
    if (begin >= end) return;
    for (int i = thread_id(); i < 16 * KEY_PIECES; i += THREADS) {
        const int m = i / KEY_PIECES, piece = i % KEY_PIECES;
        u32x4 v = {};
        if (m < at.count) v = half_of_query(p.q, (at.head + m) * LATENT_KEYS + piece * 8);
        *(u32x4 *)(memory + LATENT_QUERIES + latent_at(m, piece)) = v;
    }
    latent_sum r = {{NOTHING, NOTHING}, {}, {}};
#pragma unroll 1
    for (int chunk = begin; chunk < end; chunk++) {
        latent_fetch(p, list, chunk, at.r, memory);
        latent_fold(p, memory, r);
    }
    const int64_t slot = ((int64_t)at.r * grid_blocks_y() + at.unit) * grid_blocks() * at.most;
    const int g = lane_id() / 4, t = lane_id() % 4;
    float *parts = p.partial + slot * DIM;
    f32x2 *sums = (f32x2 *)p.sums + slot;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int64_t row = (int64_t)at.block * at.most + g + half * 8;
        if (g + half * 8 >= at.count) continue;
#pragma unroll
        for (int n = 0; n < WARP_VALUES / 8; n++)
            *(f32x2 *)(parts + row * DIM + warp_id() * WARP_VALUES + n * 8 + 2 * t) =
                f32x2{r.o[n][2 * half], r.o[n][2 * half + 1]};
        if (warp_id() == 0 && t == 0) sums[row] = f32x2{r.top[half], r.total[half]};
    }
    if (!last_to_arrive(p.arrived + (int64_t)at.r * grid_blocks_y() + at.unit, runs,
                        (uint32_t *)(memory + TOPS_AT)))
        return;
    merge_parts(p, at, parts, sums, runs);
}
