/* dense/blocks.cuh: values of GGUF's block types.
 *
 * Q4_0  {f16 d; 16 bytes}  (n - 8) d    Q4_1  {f16 d, m; 16 bytes}  n d + m    Q8_0  {f16 d; 32 bytes}  n d
 * Of 32 values in a block of nibbles, value i < 16 is the low half of byte i, i + 16 the high half.
 * Blocks lie at multiples of 2 bytes. */
#ifndef CAIRN_BLOCKS_CUH
#define CAIRN_BLOCKS_CUH

enum { TYPE_F32 = 0, TYPE_F16 = 1, TYPE_Q4_0 = 2, TYPE_Q4_1 = 3, TYPE_Q8_0 = 8, TYPE_BF16 = 30 };

CAIRN_INLINE uint32_t load_pair(const uint8_t *at) { return load_constant((const uint16_t *)at); }
CAIRN_INLINE float load_half(const uint8_t *at) { return f16_to_f32(f16{(uint16_t)load_pair(at)}); }

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
    } else {
        constexpr int HEAD = TYPE == TYPE_Q4_0 ? 2 : 4;
        const uint8_t *block = row + group * (HEAD + 16);
        const float d = load_half(block), m = TYPE == TYPE_Q4_1 ? load_half(block + 2) : -8.0f * d;
        load_nibbles(block + HEAD + piece % 2 * 8, piece / 2, v);
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = fma_f32(v[i], d, m);
    }
}

#endif
