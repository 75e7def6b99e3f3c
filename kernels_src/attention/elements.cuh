/* attention/elements.cuh: values of a cache of any kind (CAIRN_ABILITIES & ATTEND_CACHE) as f16, which is
 * what meets queries, bounds and tensor cores. Scales of e4m3: one of each slot and head. */
#ifndef CAIRN_ELEMENTS_CUH
#define CAIRN_ELEMENTS_CUH

#include "device/common.cuh"
#include "abi/attention.h"

constexpr int CACHE_KIND = CAIRN_ABILITIES & ATTEND_CACHE;
constexpr bool BYTES = CACHE_KIND == ATTEND_CACHE_E4M3;

CAIRN_INLINE u32x4 pack_floats(const float *x) {
    return u32x4{pack_f16x2_within(x[0], x[1]), pack_f16x2_within(x[2], x[3]),
                 pack_f16x2_within(x[4], x[5]), pack_f16x2_within(x[6], x[7])};
}
/* Two values of bf16. */
CAIRN_INLINE uint32_t half_of_pair(uint32_t pair) {
    const f32x2 v = unpack_bf16x2(pair);
    return pack_f16x2_within(v.x, v.y);
}
CAIRN_INLINE u32x4 half_of_bf16(const void *from) {
    const u32x4 w = *(const u32x4 *)from;
    return u32x4{half_of_pair(w.x), half_of_pair(w.y), half_of_pair(w.z), half_of_pair(w.w)};
}
CAIRN_INLINE u32x4 half_of_f32(const void *from) {
    const f32x4 a = *(const f32x4 *)from, b = ((const f32x4 *)from)[1];
    const float x[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    return pack_floats(x);
}
CAIRN_INLINE u32x4 half_of_e4m3(const void *from, float scale) {
    const u32x2 w = *(const u32x2 *)from;
    const uint32_t two[4] = {w.x & 0xffff, w.x >> 16, w.y & 0xffff, w.y >> 16};
    float x[8];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const f32x2 v = unpack_f16x2(e4m3x2_to_f16x2((uint16_t)two[i]));
        x[2 * i] = v.x * scale, x[2 * i + 1] = v.y * scale;
    }
    return pack_floats(x);
}
/* Eight values of the cache, from value number `from` on, whose slot has `scale`. */
CAIRN_INLINE u32x4 half_of_cache(const void *cache, int64_t from, const float *scale) {
    if constexpr (CACHE_KIND == ATTEND_CACHE_BF16)
        return half_of_bf16((const uint16_t *)cache + from);
    if constexpr (CACHE_KIND == ATTEND_CACHE_F32) return half_of_f32((const float *)cache + from);
    if constexpr (CACHE_KIND == ATTEND_CACHE_E4M3)
        return half_of_e4m3((const uint8_t *)cache + from, *scale);
    return *(const u32x4 *)((const uint16_t *)cache + from);
}
/* Two of them, likewise. */
CAIRN_INLINE uint32_t half_pair_of_cache(const void *cache, int64_t from, const float *scale) {
    if constexpr (CACHE_KIND == ATTEND_CACHE_BF16)
        return half_of_pair(*(const uint32_t *)((const uint16_t *)cache + from));
    if constexpr (CACHE_KIND == ATTEND_CACHE_F32) {
        const f32x2 v = *(const f32x2 *)((const float *)cache + from);
        return pack_f16x2_within(v.x, v.y);
    }
    if constexpr (CACHE_KIND == ATTEND_CACHE_E4M3) {
        const f32x2 v = unpack_f16x2(e4m3x2_to_f16x2(*(const uint16_t *)((const uint8_t *)cache + from)));
        return pack_f16x2_within(v.x * *scale, v.y * *scale);
    }
    return *(const uint32_t *)((const uint16_t *)cache + from);
}

#endif
