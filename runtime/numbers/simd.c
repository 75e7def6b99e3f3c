/* simd: the CPU kernels at every SIMD level, chosen at run time.
 *
 * simd/LEVEL.h gives words for a vector of VEC_N floats; simd/linear.h, math.h, attention.h and
 * topk.h are written once in these words and compiled once per level into a table of functions. The
 * levels agree to f32 rounding, top-k exactly. A new kernel is one function there and one line in
 * SIMD_TABLE; a new level is one file of words. Calls base, pool (the level) and block. */

enum {
    SIMD_HEADS = 64,     /* block scales that are unpacked at a time */
    SIMD_MAX_SLOTS = 256, /* of a page */
    SIMD_MAX_DIM = 256,   /* of a head */
    SIMD_SLACK = 16       /* entries behind its result that a filter may overwrite */
};

/* One page as attention reads it. */
typedef struct simd_page {
    const void *keys, *values; /* [slots, dim] */
    const void *ahead;         /* the keys that are read next, to be fetched into the cache */
    bool half;                 /* they are f16, else f32 */
    int first, last, dim;      /* slots first .. last - 1 are attended */
} simd_page;

/* Each function is documented where it stands, in simd/. */
#define SIMD_TABLE(X) \
    X(void, dequantize, (int type, const uint8_t *blocks, float *out, int64_t values)) \
    X(void, panel, (const float *w, int outs, const float *x, int64_t x_stride, int rows, int n, \
                    float *y, int64_t y_stride, bool add)) \
    X(int, one_row, (int type, const uint8_t *w, int outs, const float *x, int n, float *y, \
                     bool add)) \
    X(void, exp_row, (const float *x, float *out, int n)) \
    X(void, rmsnorm, (const float *x, const float *weight, float eps, int n, float *out)) \
    X(void, rope, (float *x, const float *cosine, const float *sine, int n)) \
    X(void, swiglu, (float *gate, const float *up, int n)) \
    X(void, to_half, (const float *x, uint16_t *out, int n)) \
    X(void, of_half, (const uint16_t *x, float *out, int n)) \
    X(void, conv, (const float *const *rows, const float *taps, int64_t stride, int width, int n, \
                   float *out)) \
    X(void, attend, (const simd_page *page, const float *q, int queries, float *m, float *l, \
                     float *out)) \
    X(void, bounds, (const uint16_t *keys, int slots, int dim, uint16_t *low, uint16_t *high)) \
    X(void, mean, (const uint16_t *keys, int slots, int dim, uint16_t *mean, uint16_t *rest)) \
    X(void, score_pages4, (const float *above, const float *below, int vectors, \
                           const uint16_t *const *high, const uint16_t *const *low, int dim, \
                           float *score)) \
    X(int, filter_f32, (const float *x, int n, uint32_t least, int32_t position, uint32_t *keys, \
                        int32_t *positions)) \
    X(int, filter_f16, (const uint16_t *x, int n, uint32_t least, int32_t position, \
                        uint32_t *keys, int32_t *positions)) \
    X(int, filter_bf16, (const uint16_t *x, int n, uint32_t least, int32_t position, \
                         uint32_t *keys, int32_t *positions)) \
    X(int, retain, (uint32_t *keys, int32_t *positions, int n, uint32_t least)) \
    X(void, span, (const uint32_t *keys, int n, uint32_t *lowest, uint32_t *highest))

typedef struct simd_kernels {
    int level, lanes;
#define SIMD_FIELD(result, name, parameters) result (*name) parameters;
    SIMD_TABLE(SIMD_FIELD)
#undef SIMD_FIELD
} simd_kernels;

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
#define SIMD_KEY_ZERO 0x80000000u
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

#define SIMD_ENTRY(result, name, parameters) SIMD(name),

#include "simd/scalar.h"
#include "simd/math.h"
#include "simd/linear.h"
#include "simd/attention.h"
#include "simd/topk.h"
static const simd_kernels simd_scalar = {SIMD_LEVEL, VEC_N, SIMD_TABLE(SIMD_ENTRY)};
#include "simd/end.h"

#if BASE_X86
#include "simd/avx2.h"
#include "simd/math.h"
#include "simd/linear.h"
#include "simd/attention.h"
#include "simd/topk.h"
static const simd_kernels simd_avx2 = {SIMD_LEVEL, VEC_N, SIMD_TABLE(SIMD_ENTRY)};
#include "simd/end.h"

#include "simd/avx512.h"
#include "simd/math.h"
#include "simd/linear.h"
#include "simd/attention.h"
#include "simd/topk.h"
static const simd_kernels simd_avx512 = {SIMD_LEVEL, VEC_N, SIMD_TABLE(SIMD_ENTRY)};
#include "simd/end.h"
#elif BASE_NEON
#include "simd/neon.h"
#include "simd/math.h"
#include "simd/linear.h"
#include "simd/attention.h"
#include "simd/topk.h"
static const simd_kernels simd_neon = {SIMD_LEVEL, VEC_N, SIMD_TABLE(SIMD_ENTRY)};
#include "simd/end.h"
#endif
#undef SIMD_ENTRY

static const simd_kernels *simd_of_level(int level) {
#if BASE_X86
    if (level == SIMD_AVX512) return &simd_avx512;
    if (level == SIMD_AVX2) return &simd_avx2;
#elif BASE_NEON
    if (level == SIMD_NEON) return &simd_neon;
#endif
    (void)level;
    return &simd_scalar;
}

/* The kernels of this machine for heads of head_dim values (0: no attention); a width that no
 * vector divides takes the next lower level. */
BASE_UNUSED static const simd_kernels *simd_for(int head_dim) {
    const simd_kernels *kernels = simd_of_level(pool_simd());
    if (head_dim % kernels->lanes && kernels->level == SIMD_AVX512)
        kernels = simd_of_level(SIMD_AVX2);
    if (head_dim % kernels->lanes) kernels = &simd_scalar;
    return kernels;
}
