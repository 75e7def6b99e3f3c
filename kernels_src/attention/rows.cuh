/* Attention of tiles of many queries, sixteen to a warp at a time: queries are the rows of S = Q K^T and O = P V,
 * keys and dimensions the columns. For the few queries of a step: attention/core.cuh. */
#ifndef CAIRN_ATTENTION_ROWS_CUH
#define CAIRN_ATTENTION_ROWS_CUH

#include "attention/core.cuh"

/* Where a piece of a key or query lies: eight lanes that read four pieces of two neighbours touch all banks.
 * Values lie at piece_at. */
CAIRN_INLINE uint32_t key_at(int key, int piece) {
    return (uint32_t)(key * PIECES + (DIM % 64 ? piece : piece ^ (key & 1) * 4)) * 16;
}

/* How keys and values become B operands. */
struct half_rows {
    /* Eight values of a key. */
    CAIRN_METHOD u32x4 key(const unsigned char *keys, int key, int piece) {
        return *(const u32x4 *)(keys + key_at(key, piece));
    }
    /* Values 16n.. of keys 16k.. as two B operands. */
    CAIRN_METHOD void values(const unsigned char *values, int k, int n, uint32_t *b) {
        const int lane = lane_id(), key = k * 16 + (lane / 8 & 1) * 8 + lane % 8;
        load_matrix_transposed_x4(b, shared_addr(values + piece_at(key, 2 * n + lane / 16)));
    }
};

/* The running softmax of rows g (half 0) and g + 8 (half 1) over the keys of a warp. */
struct running_rows {
    float top[2], total[2];
    float o[DIM / 8][4];

    CAIRN_MEMBER void clear() {
        top[0] = top[1] = NOTHING;
        total[0] = total[1] = 0.0f;
#pragma unroll
        for (int n = 0; n < DIM / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) o[n][i] = 0.0f;
    }
};

/* s[n]: products of queries g, g + 8 with keys 8n.. at key_at. queries(u, a): dimensions 32u.. of
 * both as two A operands. */
template <int KEYS, class Queries>
CAIRN_INLINE void score_rows(Queries queries, const unsigned char *keys, float (*s)[4]) {
    const int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) s[n][i] = 0.0f;
#pragma unroll
    for (int u = 0; u < DIM / 32; u++) {
        uint32_t a[8];
        queries(u, a);
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
            u32x4 b = half_rows::key(keys, n * 8 + g, u * 4 + t);
            uint32_t first[2] = {b.x, b.y}, second[2] = {b.z, b.w};
            mma_f16(s[n], a, first);
            mma_f16(s[n], a + 4, second);
        }
    }
}

/* Folds the scores of rows g (half 0) or g + 8 (half 1) into the running softmax and leaves their
 * weights as an A operand. last[i] is the last key that the row sees of keys 16i.., counted from
 * there. */
template <int KEYS>
CAIRN_INLINE void fold_rows(running_rows &r, float (*s)[4], int half, const int *last, float factor,
                            uint32_t *weights) {
    const int t = lane_id() % 4;
    float top = r.top[half], total = 0.0f;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int c = 2 * half; c < 2 * half + 2; c++) {
            s[n][c] = n % 2 * 8 + 2 * t + c % 2 <= last[n / 2] ? s[n][c] * factor : NOTHING;
            top = fmaxf(top, s[n][c]);
        }
    top = quad_max(top);
    const float base = fmaxf(top, 0.5f * NOTHING); /* so that an unseen key weighs nothing */
    const float old = exp2_fast(r.top[half] - base);
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) {
        float e0 = exp2_fast(s[n][2 * half] - base), e1 = exp2_fast(s[n][2 * half + 1] - base);
        total += e0 + e1;
        weights[n / 2 * 4 + n % 2 * 2 + half] = pack_f16x2(e0, e1);
    }
    r.top[half] = top;
    r.total[half] = fma_f32(r.total[half], old, quad_sum(total));
#pragma unroll
    for (int n = 0; n < DIM / 8; n++)
        r.o[n][2 * half] *= old, r.o[n][2 * half + 1] *= old;
}

/* Adds P V; values [KEYS, DIM] at piece_at. */
template <int KEYS>
CAIRN_INLINE void add_rows(running_rows &r, const uint32_t *weights, const unsigned char *values) {
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
#pragma unroll
        for (int n = 0; n < DIM / 16; n++) {
            uint32_t b[4];
            half_rows::values(values, k, n, b);
            mma_f16(r.o[2 * n], weights + 4 * k, b);
            mma_f16(r.o[2 * n + 1], weights + 4 * k, b + 2);
        }
    }
}

#endif
