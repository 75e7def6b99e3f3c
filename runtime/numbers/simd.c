/* simd: the table of each level, compiled from the words of simd/. */

/* Rounded to nearest even; NaN stays NaN. */
static uint16_t simd_f16_of_f32(float value) {
    uint32_t bits, sign, rest;
    memcpy(&bits, &value, sizeof bits);
    sign = bits >> 16 & 0x8000u;
    rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (rest >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and up */
    if (rest < 0x38800000u) { /* below 2^-14: a multiple of 2^-24 */
        float magnitude = block_f32_of_bits(rest) + 0.5f; /* 0.5's last place is 2^-24 */
        memcpy(&bits, &magnitude, sizeof bits);
        return (uint16_t)(sign | (bits - 0x3f000000u));
    }
    rest += 0xfffu + (rest >> 13 & 1);
    return (uint16_t)(sign | (rest - 0x38000000u) >> 13);
}

/* f32 bits -> a key whose unsigned order is the scores' order; -0 = +0, NaN lowest. Whole numbers
 * throughout, so that a host program's treatment of denormals changes nothing. */
BASE_INLINE uint32_t simd_key(uint32_t bits) {
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0;
    if (magnitude == 0) return SIMD_KEY_ZERO;
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

BASE_INLINE uint32_t simd_bits_of_f32(const float *x) {
    uint32_t bits;
    memcpy(&bits, x, sizeof bits);
    return bits;
}
BASE_INLINE uint32_t simd_bits_of_bf16(const uint16_t *x) { return (uint32_t)*x << 16; }
BASE_INLINE uint32_t simd_bits_of_f16(const uint16_t *x) {
    uint32_t sign = (uint32_t)(*x & 0x8000u) << 16, exponent = *x >> 10 & 31u;
    uint32_t mantissa = *x & 1023u;
    if (exponent == 31) return sign | 0x7f800000u | mantissa << 13;
    if (exponent) return sign | (exponent + 112) << 23 | mantissa << 13;
    if (!mantissa) return sign;
    for (exponent = 113; !(mantissa & 1024u); exponent--) mantissa <<= 1;
    return sign | exponent << 23 | (mantissa & 1023u) << 13;
}

/* Writes the entry in any case and returns 1 if it stays. */
BASE_INLINE int simd_keep_one(uint32_t bits, uint32_t least, int32_t position, uint32_t *key,
                              int32_t *at) {
    *key = simd_key(bits);
    *at = position;
    return *key >= least;
}

/* Tests compile the levels once, as an object that all of them link: there, the unit with
 * CAIRN_SIMD_UNIT ends after this room and has the tables, the units with CAIRN_SIMD_APART lack
 * them. */
#if defined(CAIRN_SIMD_UNIT) || defined(CAIRN_SIMD_APART)
extern const simd_kernels simd_scalar, simd_avx2, simd_avx512, simd_neon;
#define SIMD_LINKAGE
#else
#define SIMD_LINKAGE static
#endif

#ifndef CAIRN_SIMD_APART
#define SIMD_ENTRY(result, name, parameters) SIMD(name),

#include "simd/scalar.h"
#include "simd/math.h"
#include "simd/linear.h"
#include "simd/eight.h"
#include "simd/attention.h"
#include "simd/topk.h"
SIMD_LINKAGE const simd_kernels simd_scalar = {SIMD_LEVEL, VEC_N, SIMD_TABLE(SIMD_ENTRY)};
#include "simd/end.h"

#if BASE_X86
#include "simd/avx2.h"
#include "simd/math.h"
#include "simd/linear.h"
#include "simd/eight.h"
#include "simd/attention.h"
#include "simd/topk.h"
SIMD_LINKAGE const simd_kernels simd_avx2 = {SIMD_LEVEL, VEC_N, SIMD_TABLE(SIMD_ENTRY)};
#include "simd/end.h"

#ifndef CAIRN_NO_AVX512
#include "simd/avx512.h"
#include "simd/math.h"
#include "simd/linear.h"
#include "simd/eight.h"
#include "simd/attention.h"
#include "simd/topk.h"
SIMD_LINKAGE const simd_kernels simd_avx512 = {SIMD_LEVEL, VEC_N, SIMD_TABLE(SIMD_ENTRY)};
#include "simd/end.h"
#endif
#elif BASE_NEON
#include "simd/neon.h"
#include "simd/math.h"
#include "simd/linear.h"
#include "simd/eight.h"
#include "simd/attention.h"
#include "simd/topk.h"
SIMD_LINKAGE const simd_kernels simd_neon = {SIMD_LEVEL, VEC_N, SIMD_TABLE(SIMD_ENTRY)};
#include "simd/end.h"
#endif
#undef SIMD_ENTRY
#endif

static const simd_kernels *simd_of_level(int level) {
#if BASE_X86
#ifndef CAIRN_NO_AVX512
    if (level == SIMD_AVX512) return &simd_avx512;
#endif
    if (level == SIMD_AVX2) return &simd_avx2;
#elif BASE_NEON
    if (level == SIMD_NEON) return &simd_neon;
#endif
    (void)level;
    return &simd_scalar;
}

static const simd_kernels *simd_eight_of(const simd_kernels *simd) {
    return simd->level == SIMD_AVX512 && !pool_has_vnni() ? simd_of_level(SIMD_AVX2) : simd;
}

static const simd_kernels *simd_for(int head_dim) {
    const simd_kernels *kernels = simd_of_level(pool_simd());
    if (head_dim % kernels->lanes && kernels->level == SIMD_AVX512)
        kernels = simd_of_level(SIMD_AVX2);
    if (head_dim % kernels->lanes) kernels = &simd_scalar;
    return kernels;
}
