/* attend_latent_wide: attention/latent.cu for many heads, where a block may have 227 KiB of shared memory:
 * 64 heads read each key once. Where there is wgmma, attention/latent_many.cu is launched.
 *
 * Eight warps share tiles of 64 keys, of which the next arrives while one is used. For the scores a warp
 * has 32 heads and 16 keys, for the values all heads and 64 of the 512 dimensions; the softmax meets in
 * between in shared memory. f16 and bf16 lie as they are, slots of bytes become f16 once they are there.
 * Runs of LATENT_WIDE_RUN tiles, cut by the list alone, are merged by the last block.
 *
 * Constants  CAIRN_ABILITIES  of ATTEND_CACHE (not F32; E4M3: slots of LATENT_BYTES), _QUERY_, _SOFTCAP
 * Launch     grid (runs at most, ceil(heads / 64), rows), block 256, shared layout_latent_wide_bytes
 * Numerics   as attention.cu
 * matrix: arch>=90 CAIRN_ABILITIES=0 | arch>=90 CAIRN_ABILITIES=9 | arch>=90 CAIRN_ABILITIES=43 */
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

constexpr int HEADS = LATENT_WIDE_HEADS, KEYS = LATENT_WIDE_KEYS, WIDE_THREADS = 256, WIDE_WARPS = 8;
constexpr int KEY_PIECES = LATENT_KEYS / 8, SLOT_PIECES = LATENT_BYTES / 16;
constexpr int TILE_BYTES = KEYS * LATENT_KEYS * 2, TILES_AT = HEADS * LATENT_KEYS * 2;
constexpr int WEIGHTS_AT = TILES_AT + 2 * TILE_BYTES;   /* f16 [heads, keys] */
constexpr int TOPS_AT = WEIGHTS_AT + HEADS * KEYS * 2;  /* [4, heads], twice */
constexpr int FADES_AT = TOPS_AT + 2 * 4 * HEADS * 4;   /* [heads] */
constexpr int IDS_AT = FADES_AT + HEADS * 4;            /* of three tiles */
constexpr int RAW_AT = TILES_AT + TILE_BYTES;           /* slots of bytes, as they came */
static_assert(IDS_AT + 3 * KEYS * 4 == layout_latent_wide_bytes(), "latent: sizes");
static_assert(KEYS * LATENT_BYTES <= TILE_BYTES, "latent: room for bytes");

/* As in latent.cu: eight keys' pieces of one place, and eight pieces of a key, touch all banks. */
CAIRN_INLINE uint32_t latent_at(int key, int piece) {
    return (uint32_t)(key * KEY_PIECES + (piece ^ ((key & 1) * 4 | (key >> 1 & 3)))) * 16;
}
CAIRN_INLINE uint32_t weight_at(int head, int piece) {
    return (uint32_t)(WEIGHTS_AT + head * KEYS * 2 + (piece ^ (head & 7)) * 16);
}
CAIRN_INLINE int32_t *ids_of(unsigned char *memory, int tile) {
    return (int32_t *)(memory + IDS_AT) + tile % 3 * KEYS;
}

/* Of the first threads: the slot of a key of a tile, -1 for none. */
CAIRN_INLINE int wide_id(const attend_params &p, const token_list &list, int tile, int r) {
    const int at = tile * KEYS + thread_id();
    if (thread_id() >= KEYS || at >= list.length) return -1;
    const int id = list.ids[at];
    if (id >= 0 && id / p.at.page_size < p.at.pages) return id;
    if (id != -1) report_error(p.at.error, CAIRN_FAULT_ID, r, id);
    return -1;
}

/* Starts the copies of a tile. All threads. */
CAIRN_INLINE void wide_fetch(const attend_params &p, int tile, unsigned char *memory) {
    constexpr int COUNT = BYTES ? SLOT_PIECES : KEY_PIECES;
    const unsigned char *cache = (const unsigned char *)p.at.cache;
    const int32_t *ids = ids_of(memory, tile);
    shared_addr to(memory + (BYTES ? RAW_AT : TILES_AT + tile % 2 * TILE_BYTES));
#pragma unroll 6
    for (int n = thread_id(); n < KEYS * COUNT; n += WIDE_THREADS) {
        const int key = n / COUNT, piece = n % COUNT, id = ids[key];
        const int64_t from = id < 0 ? 0 : ((int64_t)id * COUNT + piece) * 16;
        copy_async16(to + (BYTES ? (uint32_t)(key * COUNT + piece) * 16 : latent_at(key, piece)),
                     cache + from, id >= 0);
    }
    copy_async_commit();
}

/* Slots of bytes become f16. All threads. */
CAIRN_INLINE void wide_convert(unsigned char *memory) {
#pragma unroll 1
    for (int n = thread_id(); n < KEYS * KEY_PIECES; n += WIDE_THREADS) {
        const int key = n / KEY_PIECES, piece = n % KEY_PIECES, rest = piece - LATENT_VALUES / 8;
        const unsigned char *at = memory + RAW_AT + key * LATENT_BYTES;
        const float *scales = (const float *)(at + LATENT_VALUES);
        *(u32x4 *)(memory + TILES_AT + latent_at(key, piece)) =
            rest < 0 ? half_of_e4m3(at + piece * 8, scales[piece / 16])
                     : half_of_bf16(at + LATENT_VALUES + LATENT_SCALES * 4 + rest * 16);
    }
}

/* The running softmax of the rows (head 32 (warp % 2) + 16 i / 2 + 8 (i % 2) + g) of a warp's scores, and
 * its part of the values of all heads. */
struct wide_sum {
    float top[4], total[4], o[HEADS / 16][8][4];
};
CAIRN_INLINE int head_of(int i) { return warp_id() % 2 * 32 + i * 8 + lane_id() / 4; }

/* Steps at a time: what the registers allow. */
constexpr int SCORE_STEPS = CACHE_KIND == ATTEND_CACHE_BF16 && !SOFTCAP ? 3 : 2;

/* s[m][n]: heads 32 (warp % 2) + 16 m.. with keys 16 (warp / 2) + 8 n... */
CAIRN_INLINE void wide_scores(const attend_params &p, const unsigned char *memory,
                              const unsigned char *keys, const int32_t *ids, float (*s)[2][4]) {
    const int g = lane_id() / 4, t = lane_id() % 4;
    const int row = warp_id() % 2 * 32 + g, first = warp_id() / 2 * 16;
#pragma unroll
    for (int i = 0; i < 16; i++) s[i / 8][i / 4 % 2][i % 4] = 0.0f;
#pragma unroll SCORE_STEPS
    for (int u = 0; u < LATENT_KEYS / 32; u++) {
        uint32_t a[2][8];
#pragma unroll
        for (int m = 0; m < 2; m++)
            query_operands(*(const u32x4 *)(memory + latent_at(row + m * 16, u * 4 + t)),
                           *(const u32x4 *)(memory + latent_at(row + m * 16 + 8, u * 4 + t)), a[m]);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const unsigned char *at = keys + latent_at(first + n * 8 + g, u * 4 + t);
            const u32x4 b = CACHE_KIND == ATTEND_CACHE_BF16 ? half_of_bf16(at) : *(const u32x4 *)at;
            const uint32_t low[2] = {b.x, b.y}, high[2] = {b.z, b.w};
#pragma unroll
            for (int m = 0; m < 2; m++) {
                mma_f16(s[m][n], a[m], low);
                mma_f16(s[m][n], a[m] + 4, high);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const int m = i / 8, n = i / 4 % 2, c = i % 4;
        s[m][n][c] = ids[first + n * 8 + 2 * t + c % 2] >= 0 ? score_of(p, s[m][n][c]) : NO_SCORE;
    }
}

/* The weights of a tile's scores, and the share of the sums before that stays. All threads. */
CAIRN_INLINE void wide_softmax(unsigned char *memory, float (*s)[2][4], wide_sum &r) {
    const int t = lane_id() % 4, part = warp_id() / 2;
    float *tops = (float *)(memory + TOPS_AT), *totals = tops + 4 * HEADS;
    float *fades = (float *)(memory + FADES_AT), old[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float *v = &s[i / 2][0][i % 2 * 2], *w = &s[i / 2][1][i % 2 * 2];
        const float top = quad_max(fmaxf(fmaxf(v[0], v[1]), fmaxf(w[0], w[1])));
        if (t == 0) tops[part * HEADS + head_of(i)] = top;
    }
    block_sync();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int head = head_of(i);
        float top = r.top[i], sum = 0.0f;
#pragma unroll
        for (int k = 0; k < 4; k++) top = fmaxf(top, tops[k * HEADS + head]);
        const float base = fmaxf(top, 0.5f * NOTHING);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const float e0 = exp2_fast(s[i / 2][n][i % 2 * 2] - base);
            const float e1 = exp2_fast(s[i / 2][n][i % 2 * 2 + 1] - base);
            *(uint32_t *)(memory + weight_at(head, part * 2 + n) + t * 4) = pack_f16x2(e0, e1);
            sum += e0 + e1;
        }
        sum = quad_sum(sum);
        old[i] = exp2_fast(r.top[i] - base), r.top[i] = top;
        if (t == 0) totals[part * HEADS + head] = sum;
        if (t == 0 && part == 0) fades[head] = old[i];
    }
    block_sync();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float sum = 0.0f;
#pragma unroll
        for (int k = 0; k < 4; k++) sum += totals[k * HEADS + head_of(i)];
        r.total[i] = fma_f32(r.total[i], old[i], sum);
    }
}

/* Adds the values of a tile: of all heads, dimensions 64 warp... */
CAIRN_INLINE void wide_values(const unsigned char *memory, const unsigned char *keys, wide_sum &r) {
    const int lane = lane_id(), g = lane / 4, warp = warp_id();
    const float *fades = (const float *)(memory + FADES_AT);
#pragma unroll
    for (int m = 0; m < HEADS / 16; m++) {
        const float low = fades[m * 16 + g], high = fades[m * 16 + 8 + g];
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) r.o[m][n][i] *= i / 2 ? high : low;
    }
#pragma unroll 1
    for (int k = 0; k < KEYS / 16; k++) {
        const int key = k * 16 + lane % 16;
        uint32_t a[HEADS / 16][4];
#pragma unroll
        for (int m = 0; m < HEADS / 16; m++)
            load_matrix_x4(a[m], shared_addr(memory + weight_at(m * 16 + lane % 16, k * 2 + lane / 16)));
#pragma unroll
        for (int n = 0; n < 4; n++) {
            uint32_t b[4];
            load_matrix_transposed_x4(b, shared_addr(keys + latent_at(key, warp * 8 + 2 * n + lane / 16)));
#pragma unroll
            for (int i = 0; i < 4 && CACHE_KIND == ATTEND_CACHE_BF16; i++) b[i] = half_of_pair(b[i]);
#pragma unroll
            for (int m = 0; m < HEADS / 16; m++) {
                mma_f16(r.o[m][2 * n], a[m], b);
                mma_f16(r.o[m][2 * n + 1], a[m], b + 2);
            }
        }
    }
}

/* A run's sums. */
CAIRN_INLINE void wide_put(const tile &at, const wide_sum &r, float *parts, f32x2 *sums) {
    const int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
    for (int i = 0; i < HEADS / 8; i++) {
        const int m = i * 8 + g;
        if (m >= at.count) continue;
#pragma unroll
        for (int n = 0; n < 8; n++)
            *(f32x2 *)(parts + m * DIM + warp_id() * 64 + n * 8 + 2 * t) =
                f32x2{r.o[i / 2][n][i % 2 * 2], r.o[i / 2][n][i % 2 * 2 + 1]};
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (t == 0 && warp_id() < 2 && head_of(i) < at.count)
            sums[head_of(i)] = f32x2{r.top[i], r.total[i]};
}

CAIRN_KERNEL(attend_latent_wide, WIDE_THREADS, 1, attend_params) {
    unsigned char *memory = shared_base();
    tile at;
    token_list list;
    int runs, begin, end;
    if (!find_run<HEADS, KEYS, LATENT_WIDE_RUN, WIDE_THREADS>(p, at, list, runs, begin, end)) return;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int id = wide_id(p, list, begin + i, at.r);
        if (thread_id() < KEYS) ids_of(memory, begin + i)[thread_id()] = id;
    }
    block_sync();
    wide_fetch(p, begin, memory);
    for (int i = thread_id(); i < HEADS * KEY_PIECES; i += WIDE_THREADS) {
        const int m = i / KEY_PIECES, piece = i % KEY_PIECES;
        u32x4 v = {};
        if (m < at.count) v = half_of_query(p.q, (at.head + m) * LATENT_KEYS + piece * 8);
        *(u32x4 *)(memory + latent_at(m, piece)) = v;
    }
    wide_sum r = {{NOTHING, NOTHING, NOTHING, NOTHING}, {}, {}};
#pragma unroll 1
    for (int tile = begin; tile < end; tile++) {
        const unsigned char *keys = memory + TILES_AT + (BYTES ? 0 : tile % 2 * TILE_BYTES);
        float s[2][2][4];
        copy_async_wait<0>();
        block_sync();
        if constexpr (BYTES) {
            wide_convert(memory);
            block_sync();
        }
        if (tile + 1 < end) wide_fetch(p, tile + 1, memory);
        const int id = tile + 2 < end ? wide_id(p, list, tile + 2, at.r) : -1;
        wide_scores(p, memory, keys, ids_of(memory, tile), s);
        if (thread_id() < KEYS) ids_of(memory, tile + 2)[thread_id()] = id;
        wide_softmax(memory, s, r);
        wide_values(memory, keys, r);
    }
    const int64_t unit = (int64_t)at.r * grid_blocks_y() + at.unit;
    const int64_t first = unit * grid_blocks() * at.most, mine = first + (int64_t)at.block * at.most;
    wide_put(at, r, p.partial + mine * DIM, (f32x2 *)p.sums + mine);
    if (!last_to_arrive(p.arrived + unit, runs, (uint32_t *)(memory + TOPS_AT))) return;
    merge_parts<WIDE_WARPS>(p, at, p.partial + first * DIM, (const f32x2 *)p.sums + first, runs);
}
