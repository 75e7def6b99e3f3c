/* dense/blocks.cuh: values of GGUF's block types, as integers n under scales: n scale + minimum.
 *
 * Of 32 values    Q4_0  {f16 d; 16 bytes of nibbles}  (n - 8) d
 *                 Q4_1  {f16 d, m; nibbles}  n d + m
 *                 Q5_0  {f16 d; 32 fifth bits; nibbles}  (n - 16) d
 *                 Q5_1  {f16 d, m; fifth bits; nibbles}  n d + m
 *                 Q8_0  {f16 d; 32 signed bytes}  n d
 * Of 256          Q4_K  {f16 d, dmin; 12 bytes of 8 scales and 8 minima; nibbles}  n d s - dmin m
 *                 Q5_K  {as Q4_K; 256 fifth bits; nibbles}
 *                 Q6_K  {nibbles; 256 upper pairs of bits; 16 signed scales s; f16 d}  (n - 32) d s
 * Of 32 values in a block of nibbles, value i < 16 is the low half of byte i, i + 16 the high half; of
 * 64 in a block of 256, value i < 32 is the low half of byte i, i + 32 the high half (of Q6_K, of 128
 * values i < 64). Blocks lie at multiples of 2 bytes. */
#ifndef CAIRN_BLOCKS_CUH
#define CAIRN_BLOCKS_CUH

enum { TYPE_F32 = 0, TYPE_F16 = 1, TYPE_Q4_0 = 2, TYPE_Q4_1 = 3, TYPE_Q5_0 = 6, TYPE_Q5_1 = 7,
       TYPE_Q8_0 = 8, TYPE_Q4_K = 12, TYPE_Q5_K = 13, TYPE_Q6_K = 14, TYPE_BF16 = 30 };

CAIRN_INLINE uint32_t load_pair(const uint8_t *at) { return load_constant((const uint16_t *)at); }
CAIRN_INLINE float load_half(const uint8_t *at) { return f16_to_f32(f16{(uint16_t)load_pair(at)}); }

CAIRN_INLINE constexpr int block_values(int type) {
    return type == TYPE_Q4_K || type == TYPE_Q5_K || type == TYPE_Q6_K ? 256 : 32;
}
CAIRN_INLINE constexpr int block_bytes(int type) {
    return type == TYPE_Q4_0   ? 18
           : type == TYPE_Q4_1 ? 20
           : type == TYPE_Q5_0 ? 22
           : type == TYPE_Q5_1 ? 24
           : type == TYPE_Q8_0 ? 34
           : type == TYPE_Q4_K ? 144
           : type == TYPE_Q5_K ? 176
                               : 210;
}

/* The n of value i of a block; Q8_0: n + 128. */
CAIRN_INLINE uint32_t block_integer(int type, const uint8_t *block, int i) {
    const int half = i % 32 / 16 * 4, part = i / 32, at = i % 32;
    switch (type) {
    case TYPE_Q4_0: return block[2 + i % 16] >> half & 15u;
    case TYPE_Q4_1: return block[4 + i % 16] >> half & 15u;
    case TYPE_Q5_0:
        return (block[6 + i % 16] >> half & 15u) | (block[2 + i / 8] >> i % 8 & 1u) << 4;
    case TYPE_Q5_1:
        return (block[8 + i % 16] >> half & 15u) | (block[4 + i / 8] >> i % 8 & 1u) << 4;
    case TYPE_Q8_0: return block[2 + i] ^ 0x80u;
    case TYPE_Q4_K: return block[16 + part / 2 * 32 + at] >> part % 2 * 4 & 15u;
    case TYPE_Q5_K:
        return (block[48 + part / 2 * 32 + at] >> part % 2 * 4 & 15u) |
               (block[16 + at] >> part & 1u) << 4;
    default:
        return (block[part / 4 * 64 + part % 2 * 32 + at] >> part % 4 / 2 * 4 & 15u) |
               (block[128 + part / 4 * 32 + at] >> part % 4 * 2 & 3u) << 4;
    }
}

/* Scale (low byte) and minimum of part `part` of Q4_K and Q5_K. */
CAIRN_INLINE uint32_t block_six(const uint8_t *block, int part) {
    const uint8_t *six = block + 4, *low = six + part % 4;
    if (part < 4) return (low[0] & 63u) | (low[4] & 63u) << 8;
    return (low[8] & 15u) | low[0] >> 6 << 4 | (low[8] >> 4 | (uint32_t)low[4] >> 6 << 4) << 8;
}

/* {x, y}: value i is block_integer x + y, rounded once. */
CAIRN_INLINE f32x2 block_scale(int type, const uint8_t *block, int i) {
    if (type == TYPE_Q6_K) {
        float d = load_half(block + 208) * (float)(signed char)block[192 + i / 16];
        return f32x2{d, -32.0f * d};
    }
    const float d = load_half(block);
    if (type == TYPE_Q4_K || type == TYPE_Q5_K) {
        uint32_t six = block_six(block, i / 32);
        return f32x2{d * (float)(six & 255u), -(load_half(block + 2) * (float)(six >> 8))};
    }
    if (type == TYPE_Q4_1 || type == TYPE_Q5_1) return f32x2{d, load_half(block + 2)};
    return f32x2{d, (type == TYPE_Q4_0 ? -8.0f : type == TYPE_Q5_0 ? -16.0f : -128.0f) * d};
}

/* Value `at` of a row of any type. */
CAIRN_INLINE float block_value(int type, const uint8_t *row, int64_t at) {
    if (type == TYPE_F32) return ((const float *)row)[at];
    if (type == TYPE_F16) return f16_to_f32(((const f16 *)row)[at]);
    if (type == TYPE_BF16) return bf16_to_f32(((const bf16 *)row)[at]);
    const uint8_t *block = row + at / block_values(type) * block_bytes(type);
    const int i = (int)(at % block_values(type));
    const f32x2 scale = block_scale(type, block, i);
    return fma_f32((float)block_integer(type, block, i), scale.x, scale.y);
}

/* Eight nibbles, low or high halves of the eight bytes at `at`. */
CAIRN_INLINE void load_nibbles(const uint8_t *at, int high, float *n) {
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
        uint32_t two = load_pair(at + i) >> (high * 4);
        n[i] = (float)(two & 15u);
        n[i + 1] = (float)(two >> 8 & 15u);
    }
}

/* Values [8 piece, 8 piece + 8) of 32-value group `group` of a row, piece 0 to 3. */
template <int TYPE> CAIRN_INLINE void load_eight(const uint8_t *row, int group, int piece, float *v) {
    if constexpr (TYPE == TYPE_F32 || TYPE == TYPE_F16 || TYPE == TYPE_BF16) {
        const int first = group * 32 + piece * 8;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if constexpr (TYPE == TYPE_F32) v[i] = load_constant((const float *)row + first + i);
            if constexpr (TYPE == TYPE_F16) v[i] = to_f32(load_constant((const f16 *)row + first + i));
            if constexpr (TYPE == TYPE_BF16) v[i] = to_f32(load_constant((const bf16 *)row + first + i));
        }
    } else if constexpr (TYPE == TYPE_Q8_0) {
        const uint8_t *block = row + group * 34;
        const float d = load_half(block);
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
            uint32_t two = load_pair(block + 2 + piece * 8 + i);
            v[i] = (float)(int8_t)two * d;
            v[i + 1] = (float)(int8_t)(two >> 8) * d;
        }
    } else if constexpr (TYPE == TYPE_Q4_0 || TYPE == TYPE_Q4_1) {
        constexpr int HEAD = TYPE == TYPE_Q4_0 ? 2 : 4;
        const uint8_t *block = row + group * (HEAD + 16);
        const float d = load_half(block), m = TYPE == TYPE_Q4_1 ? load_half(block + 2) : -8.0f * d;
        load_nibbles(block + HEAD + piece % 2 * 8, piece / 2, v);
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = fma_f32(v[i], d, m);
    } else {
        const int first = group * 32 + piece * 8, from = first % block_values(TYPE);
        const uint8_t *block = row + first / block_values(TYPE) * block_bytes(TYPE);
        const f32x2 scale = block_scale(TYPE, block, from);
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = fma_f32((float)block_integer(TYPE, block, from + i), scale.x, scale.y);
    }
}

#endif
