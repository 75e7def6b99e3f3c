/* dense/packed.cuh: weights as the products of a model read them (see abi.h, PACK_4): a unit of 32
 * inputs of a tile as the operand of a product in f16, and single values.
 *
 * load<G>(tile, unit) and value<G>(tile, unit, row, k) take the start of a tile; G: units that lie
 * together, packed_group<FORMAT, INPUTS>(). */
#ifndef CAIRN_PACKED_CUH
#define CAIRN_PACKED_CUH

#include "device/common.cuh"
#include "abi/pack.h"

template <int FORMAT, int INPUTS> CAIRN_INLINE constexpr int packed_group() {
    return pack_group(FORMAT, INPUTS);
}

/* Where load finds its bytes: weights in memory, or, of packed_near, in shared memory. */
struct packed_far {
    template <class T> static CAIRN_MEMBER T read(const T *p) { return load_constant_early(p); }
};
struct packed_near {
    template <class T> static CAIRN_MEMBER T read(const T *p) {
        return *(const T *)__builtin_assume_aligned(p, sizeof(T));
    }
};

/* Bits above the nibbles. */
CAIRN_INLINE constexpr int packed_upper(int format) {
    return format == PACK_Q6_K                                                    ? 2
           : format == PACK_Q5_0 || format == PACK_Q5_1 || format == PACK_Q5_K ? 1 : 0;
}
CAIRN_INLINE constexpr int packed_unit_bytes(int format) {
    return format == PACK_16 || format == PACK_F16    ? 1024
           : format == PACK_8 || format == PACK_Q8_0  ? 544
           : format == PACK_4                         ? 320
           : format == PACK_Q4_0 || format == PACK_Q5_0 ? 288 + packed_upper(format) * 64
           : format == PACK_Q4_1 || format == PACK_Q5_1 ? 320 + packed_upper(format) * 64
                                                        : 296 + packed_upper(format) * 64;
}

template <int FORMAT> struct packed;

/* Two of the same f16. */
CAIRN_INLINE uint32_t twice(uint16_t half) { return byte_permute(half, 0, 0x1010u); }

/* Two nibbles of a word, bits 4 i.. and 16 + 4 i.., less BASE (0 or 8), exactly: as 1024 + n, or, in place of a
 * shift, as 1024 + 16 n. i: known when compiled. */
template <int BASE> CAIRN_INLINE uint32_t nibbles_f16x2(uint32_t word, int i) {
    const uint32_t two = i / 2 ? word >> 8 : word;
    if (i % 2 == 0)
        return sub_f16x2(logic3<0xea>(two, 0x000f000fu, 0x64006400u), BASE ? 0x64086408u : 0x64006400u);
    return fma_f16x2(logic3<0xea>(two, 0x00f000f0u, 0x64006400u), 0x2c002c00u, BASE ? 0xd480d480u : 0xd400d400u);
}

template <> struct packed<PACK_4> {
    static constexpr int UNIT_BYTES = 320;
    u32x2 nibbles, scale;

    template <int, class From = packed_far> CAIRN_MEMBER void load(const uint8_t *tile, int number) {
        const uint8_t *unit = tile + number * UNIT_BYTES;
        int lane = lane_id();
        nibbles = From::read((const u32x2 *)unit + lane);
        scale = From::read((const u32x2 *)(unit + 256) + lane / 4);
    }
    /* a[4 s ..]: the operand of k-step s. The subtraction is exact, the fma rounds once. */
    CAIRN_MEMBER void expand(uint32_t *a) const {
        uint32_t d0 = byte_permute(scale.x, 0, 0x1010), m0 = byte_permute(scale.x, 0, 0x3232);
        uint32_t d1 = byte_permute(scale.y, 0, 0x1010), m1 = byte_permute(scale.y, 0, 0x3232);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            a[2 * i] = fma_f16x2(nibbles_f16x2<0>(nibbles.x, i), d0, m0);
            a[2 * i + 1] = fma_f16x2(nibbles_f16x2<0>(nibbles.y, i), d1, m1);
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

    template <int, class From = packed_far> CAIRN_MEMBER void load(const uint8_t *tile, int number) {
        const uint8_t *unit = tile + number * UNIT_BYTES;
        int lane = lane_id();
        bytes = From::read((const u32x4 *)unit + lane);
        scale = From::read((const uint32_t *)(unit + 512) + lane / 4);
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

    template <int, class From = packed_far> CAIRN_MEMBER void load(const uint8_t *tile, int number) {
        const uint8_t *unit = tile + number * UNIT_BYTES;
        int lane = lane_id();
        row[0] = From::read((const u32x4 *)unit + lane);
        row[1] = From::read((const u32x4 *)(unit + 512) + lane);
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

    template <int G, class From = packed_far> CAIRN_MEMBER void load(const uint8_t *tile, int unit) {
        const uint8_t *group = tile + (int64_t)(unit / G) * (G * UNIT_BYTES);
        const int u = unit % G, lane = lane_id();
        words = From::read(
            (const u32x2 *)(group + (G > 1 ? u / 2 * 512 + lane * 16 + u % 2 * 8 : lane * 8)));
        const uint16_t *scales = (const uint16_t *)(group + G * 256) + lane / 4 * (2 * G) + u;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            scale[i] = From::read(scales + i * G);
            if (MINIMA) minimum[i] = From::read(scales + (16 + i) * G);
        }
    }
    /* The subtraction is exact; scale and minimum round once. */
    CAIRN_MEMBER void expand(uint32_t *a) const {
        const uint32_t word[2] = {words.x, words.y};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint32_t n = nibbles_f16x2<MINIMA ? 0 : 8>(word[i / 4], i % 4), d = twice(scale[i % 2]);
            a[i] = MINIMA ? fma_f16x2(n, d, twice(minimum[i % 2])) : mul_f16x2(n, d);
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

    template <int G, class From = packed_far> CAIRN_MEMBER void load(const uint8_t *tile, int unit) {
        const uint8_t *group = tile + (int64_t)(unit / G) * (G * UNIT_BYTES);
        const int u = unit % G, lane = lane_id();
        const uint16_t *scales = (const uint16_t *)(group + G * 512) + lane / 4 * (2 * G) + u;
        bytes = From::read((const u32x4 *)(group + u * 512) + lane);
        scale[0] = From::read(scales), scale[1] = From::read(scales + G);
    }
    CAIRN_MEMBER void expand(uint32_t *a) const {
        const uint32_t word[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint32_t n = byte_permute(word[i % 2 * 2 + i / 4], 0x64646464u,
                                      i / 2 % 2 ? 0x4342u : 0x4140u); /* 1024 + n */
            a[i] = mul_f16x2(sub_f16x2(n, 0x64806480u), twice(scale[i % 2]));
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

/* The upper bits of operand word i of a unit's eight begin at this bit of its plane, and 16 further;
 * of a pair's second unit 8 further. */
template <int UPPER> CAIRN_INLINE constexpr int upper_at(int i) {
    return (UPPER == 1 ? i / 2 : i / 2 % 2 * 2 + i / 4 * 8) + i % 2 * 4;
}
/* A plane moved so that the bits at `at` are at 4 (and 20), above a nibble. */
CAIRN_INLINE uint32_t move_upper(uint32_t plane, int at) {
    return at < 4 ? plane << (4 - at) : plane >> (at - 4);
}
/* The upper bits of one value; i: which of its lane's eight inputs. */
template <int UPPER> CAIRN_INLINE uint32_t upper_of(const uint8_t *plane, int G, int u, int lane,
                                                   int row, int i) {
    const int j = i % 2, high = row / 8;
    if (UPPER == 0) return 0;
    if (UPPER == 2)
        return plane[u / 2 * 256 + lane * 8 + u % 2 * 4 + j * 2 + i / 4] >>
               (i / 2 % 2 * 2 + 4 * high) & 3u;
    return plane[G > 1 ? u / 2 * 128 + lane * 4 + u % 2 + j * 2 : lane * 2 + j] >>
           (i / 2 + 4 * high) & 1u;
}

/* Nibbles with upper bits or the scales of blocks of 256. Values are rounded once or, of these, where
 * dmin m or (n - 32) s takes more than f16's bits, twice. */
template <int FORMAT> struct packed_upper_nibbles {
    static constexpr int UPPER = packed_upper(FORMAT), UNIT_BYTES = packed_unit_bytes(FORMAT);
    static constexpr bool SUPER = FORMAT >= PACK_Q4_K, MINIMA = FORMAT == PACK_Q5_1;
    u32x2 words;
    uint32_t plane, head;
    uint16_t scale[2], minimum[2]; /* of rows g and g + 8; d and dmin */
    bool odd;                      /* the second of a pair */

    template <int G, class From = packed_far> CAIRN_MEMBER void load(const uint8_t *tile, int unit) {
        const uint8_t *group = tile + (int64_t)(unit / G) * (G * UNIT_BYTES);
        const uint8_t *upper = group + G * 256, *heads = upper + G * UPPER * 64;
        const int u = unit % G, lane = lane_id(), g = lane / 4;
        words = From::read(
            (const u32x2 *)(group + (G > 1 ? u / 2 * 512 + lane * 16 + u % 2 * 8 : lane * 8)));
        odd = UPPER == 1 && u % 2;
        plane = head = minimum[0] = minimum[1] = 0;
        if (UPPER == 1 && G > 1)
            plane = From::read((const uint32_t *)(upper + u / 2 * 128) + lane);
        if (UPPER == 1 && G == 1)
            plane = byte_permute(From::read((const uint16_t *)upper + lane), 0, 0x4140u);
        if (UPPER == 2)
            plane = From::read((const uint32_t *)(upper + u / 2 * 256) + lane * 2 +
                                           u % 2);
        if (SUPER) head = From::read((const uint32_t *)heads + g * G + u);
        const uint16_t *scales = (const uint16_t *)heads + g * (2 * G) + u;
        const uint16_t *factors = (const uint16_t *)(heads + G * 32) + g * (UPPER == 2 ? 2 : 4);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            scale[i] = From::read(!SUPER ? scales + i * G
                                                  : factors + i * (UPPER == 2 ? 1 : 2));
            if (MINIMA) minimum[i] = From::read(scales + (16 + i) * G);
            if (SUPER && UPPER < 2) minimum[i] = From::read(factors + i * 2 + 1);
        }
    }
    /* n, under 1024 (0x64..): the subtraction is exact. */
    CAIRN_MEMBER void expand(uint32_t *a) const {
        const uint32_t word[2] = {words.x, words.y}, bits = UPPER == 1 && odd ? plane >> 8
                                                                            : plane;
        const uint32_t here = UPPER == 2 && lane_id() % 4 / 2 ? head >> 16 : head;
        uint32_t s[2], low[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t both = byte_permute(here, 0x64646464u, i ? 0x4141u : 0x4040u);
            s[i] = sub_f16x2(both, UPPER == 2 ? 0x64806480u : 0x64006400u);
            low[i] = twice(minimum[i]);
            if (SUPER && UPPER < 2)
                low[i] = mul_f16x2(low[i] ^ 0x80008000u,
                                   sub_f16x2(byte_permute(here, 0x64646464u, i ? 0x4343u : 0x4242u),
                                             0x64006400u));
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint32_t n;
            if (UPPER) {
                n = logic3<0xea>(word[i / 4] >> 4 * (i % 4), 0x000f000fu, 0x64006400u);
                n |= move_upper(bits, upper_at<UPPER>(i)) &
                     (UPPER == 1 ? 0x00100010u : 0x00300030u);
                n = sub_f16x2(n, UPPER == 2 ? 0x64206420u : FORMAT == PACK_Q5_0 ? 0x64106410u
                                                                               : 0x64006400u);
            } else n = nibbles_f16x2<0>(word[i / 4], i % 4);
            if (SUPER) n = mul_f16x2(n, s[i % 2]);
            const uint32_t d = twice(scale[i % 2]);
            a[i] = MINIMA || (SUPER && UPPER < 2) ? fma_f16x2(n, d, low[i % 2]) : mul_f16x2(n, d);
        }
    }
    /* As GGUF has it, not rounded to f16. */
    template <int G>
    static CAIRN_MEMBER float value(const uint8_t *tile, int unit, int row, int k) {
        const uint8_t *group = tile + (int64_t)(unit / G) * (G * UNIT_BYTES);
        const uint8_t *upper = group + G * 256, *heads = upper + G * UPPER * 64;
        const int u = unit % G, g = row % 8, high = row / 8, lane = g * 4 + k / 8, i = k % 8;
        const uint8_t *at = G > 1 ? group + u / 2 * 512 + lane * 16 + u % 2 * 8 : group + lane * 8;
        uint32_t n = ((const uint32_t *)at)[i / 4] >> (i % 4 / 2 * 8 + i % 2 * 16 + high * 4) & 15u;
        n |= upper_of<UPPER>(upper, G, u, lane, row, i) << 4;
        const uint16_t *scales = (const uint16_t *)heads + (g * 2 + high) * G + u;
        const uint8_t *head = heads + (g * G + u) * 4 + high;
        const uint16_t *factors = (const uint16_t *)(heads + G * 32);
        if (FORMAT == PACK_Q6_K)
            return ((float)n - 32.0f) * (f16_to_f32(f16{factors[g * 2 + high]}) *
                                         ((float)head[k / 16 * 2] - 128.0f));
        if (SUPER)
            return fma_f32((float)n, f16_to_f32(f16{factors[g * 4 + high * 2]}) * (float)head[0],
                           -(f16_to_f32(f16{factors[g * 4 + high * 2 + 1]}) * (float)head[2]));
        float d = f16_to_f32(f16{scales[0]});
        return MINIMA ? fma_f32((float)n, d, f16_to_f32(f16{scales[16 * G]}))
                      : ((float)n - 16.0f) * d;
    }
};
template <> struct packed<PACK_Q5_0> : packed_upper_nibbles<PACK_Q5_0> {};
template <> struct packed<PACK_Q5_1> : packed_upper_nibbles<PACK_Q5_1> {};
template <> struct packed<PACK_Q4_K> : packed_upper_nibbles<PACK_Q4_K> {};
template <> struct packed<PACK_Q5_K> : packed_upper_nibbles<PACK_Q5_K> {};
template <> struct packed<PACK_Q6_K> : packed_upper_nibbles<PACK_Q6_K> {};

template <int FORMAT, int INPUTS> CAIRN_INLINE constexpr int64_t tile_bytes() {
    return (int64_t)(INPUTS / 32) * packed<FORMAT>::UNIT_BYTES;
}

#endif
