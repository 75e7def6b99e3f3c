/* dense/packed.cuh: weights as the products of a model read them (see abi.h, PACK_4): a unit of 32
 * inputs of a tile as the operand of a product in f16, and single values.
 *
 * load<G>(tile, unit) and value<G>(tile, unit, row, k) take the start of a tile; G: units that lie
 * together, packed_group<FORMAT, INPUTS>(). */
#ifndef CAIRN_PACKED_CUH
#define CAIRN_PACKED_CUH

#include "device/common.cuh"
#include "abi/pack.h"

/* Units of 32 inputs that are packed together: the largest power of two that divides a row, up to 8
 * units of nibbles, 4 of bytes, 2 of f16. */
CAIRN_INLINE constexpr int common_power(int n, int most) {
    while (n % most) most /= 2;
    return most;
}
template <int FORMAT, int INPUTS> CAIRN_INLINE constexpr int packed_group() {
    return FORMAT < PACK_Q4_0 ? 1
                              : common_power(INPUTS / 32, FORMAT == PACK_F16 ? 2
                                                          : FORMAT == PACK_Q8_0 ? 4 : 8);
}

template <int FORMAT> struct packed;

template <> struct packed<PACK_4> {
    static constexpr int UNIT_BYTES = 320;
    u32x2 nibbles, scale;

    template <int> CAIRN_MEMBER void load(const uint8_t *tile, int number) {
        const uint8_t *unit = tile + number * UNIT_BYTES;
        int lane = lane_id();
        nibbles = load_constant_early((const u32x2 *)unit + lane);
        scale = load_constant_early((const u32x2 *)(unit + 256) + lane / 4);
    }
    /* a[4 s ..]: the operand of k-step s. The subtraction is exact, the fma rounds once. */
    CAIRN_MEMBER void expand(uint32_t *a) const {
        uint32_t d0 = byte_permute(scale.x, 0, 0x1010), m0 = byte_permute(scale.x, 0, 0x3232);
        uint32_t d1 = byte_permute(scale.y, 0, 0x1010), m1 = byte_permute(scale.y, 0, 0x3232);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t n0 = (nibbles.x >> 4 * i & 0x000f000fu) | 0x64006400u;
            uint32_t n1 = (nibbles.y >> 4 * i & 0x000f000fu) | 0x64006400u;
            a[2 * i] = fma_f16x2(sub_f16x2(n0, 0x64006400u), d0, m0);
            a[2 * i + 1] = fma_f16x2(sub_f16x2(n1, 0x64006400u), d1, m1);
        }
    }
    template <int> static CAIRN_MEMBER float value(const uint8_t *tile, int number, int row,
                                                   int k) {
        const uint8_t *unit = tile + number * UNIT_BYTES;
        int lane = row % 8 * 4 + k / 8, i = k % 8;
        uint32_t word = ((const uint32_t *)unit)[lane * 2 + row / 8];
        uint32_t scale = ((const uint32_t *)(unit + 256))[row % 8 * 2 + row / 8];
        f32x2 dm = unpack_f16x2(scale);
        float n = (float)(word >> (4 * (i / 2) + 16 * (i % 2)) & 15u);
        return f16_to_f32(f32_to_f16(fma_f32(n, dm.x, dm.y)));
    }
};

template <> struct packed<PACK_8> {
    static constexpr int UNIT_BYTES = 544;
    u32x4 bytes;
    uint32_t scale;

    template <int> CAIRN_MEMBER void load(const uint8_t *tile, int number) {
        const uint8_t *unit = tile + number * UNIT_BYTES;
        int lane = lane_id();
        bytes = load_constant_early((const u32x4 *)unit + lane);
        scale = load_constant_early((const uint32_t *)(unit + 512) + lane / 4);
    }
    CAIRN_MEMBER void expand(uint32_t *a) const {
        uint32_t d0 = byte_permute(scale, 0, 0x1010), d1 = byte_permute(scale, 0, 0x3232);
        const uint32_t word[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t pick = i % 2 ? 0x4342u : 0x4140u; /* bytes under 0x64: 1024 + n */
            uint32_t n0 = byte_permute(word[i / 2], 0x64646464u, pick);
            uint32_t n1 = byte_permute(word[2 + i / 2], 0x64646464u, pick);
            a[2 * i] = mul_f16x2(sub_f16x2(n0, 0x64806480u), d0);
            a[2 * i + 1] = mul_f16x2(sub_f16x2(n1, 0x64806480u), d1);
        }
    }
    template <int> static CAIRN_MEMBER float value(const uint8_t *tile, int number, int row,
                                                   int k) {
        const uint8_t *unit = tile + number * UNIT_BYTES;
        int lane = row % 8 * 4 + k / 8;
        float n = (float)unit[lane * 16 + row / 8 * 8 + k % 8] - 128.0f;
        uint16_t d = ((const uint16_t *)(unit + 512))[row % 8 * 2 + row / 8];
        return f16_to_f32(f32_to_f16(n * f16_to_f32(f16{d})));
    }
};

template <> struct packed<PACK_16> {
    static constexpr int UNIT_BYTES = 1024;
    u32x4 row[2];

    template <int> CAIRN_MEMBER void load(const uint8_t *tile, int number) {
        const uint8_t *unit = tile + number * UNIT_BYTES;
        int lane = lane_id();
        row[0] = load_constant_early((const u32x4 *)unit + lane);
        row[1] = load_constant_early((const u32x4 *)(unit + 512) + lane);
    }
    CAIRN_MEMBER void expand(uint32_t *a) const {
        a[0] = row[0].x; a[2] = row[0].y; a[4] = row[0].z; a[6] = row[0].w;
        a[1] = row[1].x; a[3] = row[1].y; a[5] = row[1].z; a[7] = row[1].w;
    }
    template <int> static CAIRN_MEMBER float value(const uint8_t *tile, int number, int row,
                                                   int k) {
        const uint8_t *unit = tile + number * UNIT_BYTES;
        int lane = row % 8 * 4 + k / 8;
        return f16_to_f32(f16{((const uint16_t *)(unit + row / 8 * 512))[lane * 8 + k % 8]});
    }
};

/* Nibbles of rows g and g + 8 side by side; f16 scales of a group: [g][row g, row g + 8][unit]. */
template <bool MINIMA> struct packed_nibbles {
    static constexpr int UNIT_BYTES = MINIMA ? 320 : 288;
    u32x2 words;
    uint16_t scale[2], minimum[2]; /* of rows g and g + 8 */

    template <int G> CAIRN_MEMBER void load(const uint8_t *tile, int unit) {
        const uint8_t *group = tile + (int64_t)(unit / G) * (G * UNIT_BYTES);
        const int u = unit % G, lane = lane_id();
        words = load_constant_early(
            (const u32x2 *)(group + (G > 1 ? u / 2 * 512 + lane * 16 + u % 2 * 8 : lane * 8)));
        const uint16_t *scales = (const uint16_t *)(group + G * 256) + lane / 4 * (2 * G) + u;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            scale[i] = load_constant_early(scales + i * G);
            if (MINIMA) minimum[i] = load_constant_early(scales + (16 + i) * G);
        }
    }
    /* The subtraction is exact; scale and minimum round once. */
    CAIRN_MEMBER void expand(uint32_t *a) const {
        const uint32_t word[2] = {words.x, words.y};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint32_t n = (word[i / 4] >> 4 * (i % 4) & 0x000f000fu) | 0x64006400u;
            uint32_t d = scale[i % 2] * 0x10001u;
            a[i] = MINIMA ? fma_f16x2(sub_f16x2(n, 0x64006400u), d, minimum[i % 2] * 0x10001u)
                          : mul_f16x2(sub_f16x2(n, 0x64086408u), d);
        }
    }
    template <int G>
    static CAIRN_MEMBER float value(const uint8_t *tile, int unit, int row, int k) {
        const uint8_t *group = tile + (int64_t)(unit / G) * (G * UNIT_BYTES);
        const int u = unit % G, lane = row % 8 * 4 + k / 8, i = k % 8;
        const uint8_t *at = G > 1 ? group + u / 2 * 512 + lane * 16 + u % 2 * 8 : group + lane * 8;
        const uint16_t *scales =
            (const uint16_t *)(group + G * 256) + (row % 8 * 2 + row / 8) * G + u;
        uint32_t word = ((const uint32_t *)at)[i / 4];
        float n = (float)(word >> (i % 4 / 2 * 8 + i % 2 * 16 + row / 8 * 4) & 15u);
        float d = f16_to_f32(f16{scales[0]});
        float v = MINIMA ? fma_f32(n, d, f16_to_f32(f16{scales[16 * G]})) : (n - 8.0f) * d;
        return f16_to_f32(f32_to_f16(v));
    }
};
template <> struct packed<PACK_Q4_0> : packed_nibbles<false> {};
template <> struct packed<PACK_Q4_1> : packed_nibbles<true> {};

template <> struct packed<PACK_Q8_0> {
    static constexpr int UNIT_BYTES = 544;
    u32x4 bytes;
    uint16_t scale[2];

    template <int G> CAIRN_MEMBER void load(const uint8_t *tile, int unit) {
        const uint8_t *group = tile + (int64_t)(unit / G) * (G * UNIT_BYTES);
        const int u = unit % G, lane = lane_id();
        const uint16_t *scales = (const uint16_t *)(group + G * 512) + lane / 4 * (2 * G) + u;
        bytes = load_constant_early((const u32x4 *)(group + u * 512) + lane);
        scale[0] = load_constant_early(scales), scale[1] = load_constant_early(scales + G);
    }
    CAIRN_MEMBER void expand(uint32_t *a) const {
        const uint32_t word[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint32_t n = byte_permute(word[i % 2 * 2 + i / 4], 0x64646464u,
                                      i / 2 % 2 ? 0x4342u : 0x4140u); /* 1024 + n */
            a[i] = mul_f16x2(sub_f16x2(n, 0x64806480u), scale[i % 2] * 0x10001u);
        }
    }
    template <int G>
    static CAIRN_MEMBER float value(const uint8_t *tile, int unit, int row, int k) {
        const uint8_t *group = tile + (int64_t)(unit / G) * (G * UNIT_BYTES);
        const int u = unit % G, lane = row % 8 * 4 + k / 8;
        float n = (float)group[u * 512 + lane * 16 + row / 8 * 8 + k % 8] - 128.0f;
        const uint16_t *scales = (const uint16_t *)(group + G * 512);
        return f16_to_f32(f32_to_f16(
            n * f16_to_f32(f16{scales[(row % 8 * 2 + row / 8) * G + u]})));
    }
};
template <> struct packed<PACK_F16> : packed<PACK_16> {};

template <int FORMAT, int INPUTS> CAIRN_INLINE constexpr int64_t tile_bytes() {
    return (int64_t)(INPUTS / 32) * packed<FORMAT>::UNIT_BYTES;
}

#endif
