/* The prelude of every kernel: types, conversions, warp reductions, and (from device*.cuh) wrappers
 * for all that depends on the architecture or the compiler. Needs no header of any toolkit.
 *
 * A kernel uses these wrappers only: no threadIdx, no __shared__, no asm. The same source then
 * compiles with NVRTC for sm_80 and up, and as host C++17 in the emulation of tests/simt, which
 * supplies every wrapper of device*.cuh again (simt_device.h).
 *
 * Names: a wrapper of a warp-wide operation must be reached by all 32 lanes (or all in `mask`).
 * Pointers are generic unless a name says shared; shared_addr is a shared-memory address. */
#ifndef CAIRN_COMMON_CUH
#define CAIRN_COMMON_CUH

#include "abi/base.h"

/* ---- types ---- */

struct f16 { uint16_t bits; };   /* IEEE binary16 */
struct bf16 { uint16_t bits; };  /* the upper half of an f32 */
struct e4m3 { uint8_t bits; };   /* 8-bit float, no infinities, NaN = 0x7f; largest 448 */

struct alignas(8) f32x2 { float x, y; };
struct alignas(16) f32x4 { float x, y, z, w; };
struct alignas(8) u32x2 { uint32_t x, y; };
struct alignas(16) u32x4 { uint32_t x, y, z, w; };

#define FULL_MASK 0xffffffffu
#define WARP 32

#ifdef CAIRN_SIMT
#include "simt_device.h"
#else
#include "device/device.cuh"
#include "device/async.cuh"
#include "device/mma.cuh"
#endif

/* ---- small arithmetic ---- */

template <class T> CAIRN_INLINE constexpr T min_of(T a, T b) { return b < a ? b : a; }
template <class T> CAIRN_INLINE constexpr T max_of(T a, T b) { return a < b ? b : a; }

/* One of two types. */
template <bool first, class A, class B> struct pick_type { typedef A type; };
template <class A, class B> struct pick_type<false, A, B> { typedef B type; };
template <bool first, class A, class B> using pick = typename pick_type<first, A, B>::type;

/* ceil(a / b) and a rounded up to a multiple of b, for a >= 0, b > 0. */
template <class T> CAIRN_INLINE constexpr T ceil_div(T a, T b) { return (a + b - 1) / b; }
template <class T> CAIRN_INLINE constexpr T round_up(T a, T b) { return ceil_div(a, b) * b; }

/* Of a swizzled matrix (device/wgmma.cuh): where piece `piece` of 16 bytes of a row lies, in slabs of so many rows. */
CAIRN_INLINE uint32_t swizzled_at(int row, int piece, int rows = 0) {
    return (uint32_t)(piece / 8 * rows * 128 + row * 128 + (piece % 8 ^ row % 8) * 16);
}

/* What a kernel begins with that is a dependent launch, before it reads or writes; on every path. */
CAIRN_INLINE void grid_follow() {
    grid_dependency_wait();
    grid_launch_dependents();
}

/* v, which the lanes of a warp have alike: the compiler knows it then, and computes what follows from it once. */
CAIRN_INLINE int warp_same(int v) { return shuffle(v, 0); }

/* The block's shared memory as one struct, which has to fit every chip from sm_80 on; variants for
 * one chip pass their own limit. The host launches with its size. */
template <class T, int limit = 96 * 1024> CAIRN_INLINE T &shared_as() {
    static_assert((int)sizeof(T) <= limit, "shared memory: larger than the block may have");
    static_assert(alignof(T) <= 128, "shared memory: aligned to 128 bytes at most");
    return *reinterpret_cast<T *>(shared_base());
}

CAIRN_INLINE uint32_t as_u32(float x) { return bit_cast<uint32_t>(x); }
CAIRN_INLINE float as_f32(uint32_t bits) { return bit_cast<float>(bits); }
CAIRN_INLINE float minus_infinity() { return as_f32(0xff800000u); }

CAIRN_INLINE int lane_id() { return thread_id() & (WARP - 1); }
CAIRN_INLINE int warp_id() { return thread_id() / WARP; }
CAIRN_INLINE int warp_count() { return block_threads() / WARP; }

/* exp by the fast base-2 exponential: relative error about 2^-22. */
CAIRN_INLINE float exp_fast(float x) { return exp2_fast(x * 1.4426950408889634f); }

/* x - k pi/2 in [-pi/4, pi/4] (a little more at the ends); *quarter is k. The toolkit's own sine
 * keeps a table in local memory for large x; here doubles serve, exact enough up to 2^30. */
CAIRN_INLINE float reduce_quarter(float x, int *quarter) {
    if (fabsf(x) < 65536.0f) {
        float k = rintf(x * 0.636619772f);
        *quarter = (int)k;
        float r = fma_f32(k, -1.57077026f, x); /* pi/2 in three parts, 16 bits each */
        r = fma_f32(k, -2.60630623e-5f, r);
        return fma_f32(k, -6.07710063e-11f, r);
    }
    double wide = x, k = rint(wide * 0.63661977236758134308);
    *quarter = (int)(k - 4.0 * floor(k * 0.25));
    return (float)fma(-k, 6.0771005065061922e-11, fma(-k, 1.5707963267341256, wide));
}

/* Sine and cosine: absolute error below 2^-22 for |x| < 2^30; NaN for infinities and NaN. */
CAIRN_INLINE void sin_cos(float x, float *sine, float *cosine) {
    int quarter;
    float r = reduce_quarter(x, &quarter), square = r * r;
    float s = fma_f32(square, fma_f32(square, -1.95153669e-4f, 8.33216403e-3f), -0.166666552f);
    float c = fma_f32(square, fma_f32(square, 2.44362836e-5f, -1.38873491e-3f), 4.16666456e-2f);
    s = fma_f32(s * square, r, r);
    c = fma_f32(c * square, square, fma_f32(square, -0.5f, 1.0f));
    float even = quarter & 1 ? c : s, odd = quarter & 1 ? s : c;
    *sine = quarter & 2 ? -even : even;
    *cosine = (quarter + 1) & 2 ? -odd : odd;
}

/* ---- conversions ---- */

CAIRN_INLINE float bf16_to_f32(bf16 x) { return as_f32((uint32_t)x.bits << 16); }

/* lo in bits 0-15, hi in bits 16-31; round to nearest even. */
CAIRN_INLINE f32x2 unpack_f16x2(uint32_t v) {
    return {f16_to_f32(f16{(uint16_t)v}), f16_to_f32(f16{(uint16_t)(v >> 16)})};
}
CAIRN_INLINE f32x2 unpack_bf16x2(uint32_t v) { return {as_f32(v << 16), as_f32(v & 0xffff0000u)}; }

/* The e4m3 conversions in integer arithmetic, for architectures without the instruction. */
CAIRN_INLINE uint32_t e4m3x2_to_f16x2_soft(uint16_t pair) {
    uint32_t v = byte_permute(pair, 0, 0x1404); /* each byte becomes the top byte of a half */
    uint32_t magnitude = (v & 0x7f007f00u) >> 1;
    uint32_t scaled = mul_f16x2(magnitude, 0x5c005c00u); /* 256: bias 15 against bias 7 */
    uint32_t halves = scaled | (v & 0x80008000u);
    if ((scaled & 0xffffu) == 0x5f80u) halves = (halves & 0xffff0000u) | 0x7fffu; /* NaN */
    if ((scaled >> 16) == 0x5f80u) halves = (halves & 0xffffu) | 0x7fff0000u;
    return halves;
}

/* Nearest even, saturating to 448; NaN gives 0x7f. */
CAIRN_INLINE uint8_t f32_to_e4m3_soft(float x) {
    uint32_t bits = as_u32(x), sign = bits >> 24 & 0x80u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x7f;
    if (magnitude >= 0x43e80000u) return (uint8_t)(sign | 0x7eu); /* 464, the tie above 448 */
    if (magnitude < 0x3c800000u) {                  /* below 2^-6: multiples of 2^-9 */
        float steps = as_f32(magnitude) + 16384.0f; /* whose ulp is 2^-9 */
        return (uint8_t)(sign | (as_u32(steps) - 0x46800000u));
    }
    uint32_t rounded = magnitude + 0x7ffffu + (magnitude >> 20 & 1u);
    return (uint8_t)(sign | ((rounded >> 20) - (120u << 3)));
}

#if CAIRN_ARCH < 890
CAIRN_INLINE uint32_t e4m3x2_to_f16x2(uint16_t v) { return e4m3x2_to_f16x2_soft(v); }
CAIRN_INLINE void e4m3x4_to_f16x4(uint32_t four, uint32_t *low, uint32_t *high) {
    *low = e4m3x2_to_f16x2((uint16_t)four), *high = e4m3x2_to_f16x2((uint16_t)(four >> 16));
}
CAIRN_INLINE uint16_t pack_e4m3x2(float lo, float hi) {
    return (uint16_t)(f32_to_e4m3_soft(lo) | f32_to_e4m3_soft(hi) << 8);
}
#endif

CAIRN_INLINE float e4m3_to_f32(e4m3 x) {
    return f16_to_f32(f16{(uint16_t)e4m3x2_to_f16x2(x.bits)});
}
CAIRN_INLINE e4m3 f32_to_e4m3(float x) { return e4m3{(uint8_t)pack_e4m3x2(x, 0.0f)}; }

/* By type, for templates: to_f32(x) and from_f32<T>(x). */
CAIRN_INLINE float to_f32(float x) { return x; }
CAIRN_INLINE float to_f32(f16 x) { return f16_to_f32(x); }
CAIRN_INLINE float to_f32(bf16 x) { return bf16_to_f32(x); }
CAIRN_INLINE float to_f32(e4m3 x) { return e4m3_to_f32(x); }

template <class T> struct from_f32_of;
template <> struct from_f32_of<float> { CAIRN_METHOD float of(float x) { return x; } };
template <> struct from_f32_of<f16> { CAIRN_METHOD f16 of(float x) { return f32_to_f16(x); } };
template <> struct from_f32_of<bf16> { CAIRN_METHOD bf16 of(float x) { return f32_to_bf16(x); } };
template <> struct from_f32_of<e4m3> { CAIRN_METHOD e4m3 of(float x) { return f32_to_e4m3(x); } };
template <class T> CAIRN_INLINE T from_f32(float x) { return from_f32_of<T>::of(x); }

/* ---- warp reductions: every lane gets the result ---- */

CAIRN_INLINE uint32_t warp_sum(uint32_t v) { return redux_add(v); }
CAIRN_INLINE int32_t warp_sum(int32_t v) { return (int32_t)redux_add((uint32_t)v); }
CAIRN_INLINE uint32_t warp_max(uint32_t v) { return redux_max(v); }
CAIRN_INLINE int32_t warp_max(int32_t v) { return redux_max(v); }
CAIRN_INLINE uint32_t warp_min(uint32_t v) { return redux_min(v); }
CAIRN_INLINE int32_t warp_min(int32_t v) { return redux_min(v); }
CAIRN_INLINE uint32_t warp_or(uint32_t v) { return redux_or(v); }
CAIRN_INLINE uint32_t warp_and(uint32_t v) { return redux_and(v); }

/* Sums in the fixed order of a butterfly: the same bits in every lane and on every run.
 * `width` lanes (a power of two) reduce among themselves. */
template <class T> CAIRN_INLINE T warp_sum_butterfly(T v, int width = WARP) {
#pragma unroll
    for (int m = WARP / 2; m > 0; m >>= 1)
        if (m < width) v += shuffle_xor(v, m);
    return v;
}
CAIRN_INLINE float warp_sum(float v, int width = WARP) { return warp_sum_butterfly(v, width); }
CAIRN_INLINE float warp_max(float v, int width = WARP) {
#pragma unroll
    for (int m = WARP / 2; m > 0; m >>= 1)
        if (m < width) v = fmaxf(v, shuffle_xor(v, m));
    return v;
}
CAIRN_INLINE float warp_min(float v, int width = WARP) {
#pragma unroll
    for (int m = WARP / 2; m > 0; m >>= 1)
        if (m < width) v = fminf(v, shuffle_xor(v, m));
    return v;
}
CAIRN_INLINE uint64_t warp_sum(uint64_t v) { return warp_sum_butterfly(v); }
CAIRN_INLINE uint64_t warp_max(uint64_t v) {
#pragma unroll
    for (int m = WARP / 2; m > 0; m >>= 1) v = max_of(v, shuffle_xor(v, m));
    return v;
}
CAIRN_INLINE uint64_t warp_min(uint64_t v) {
#pragma unroll
    for (int m = WARP / 2; m > 0; m >>= 1) v = min_of(v, shuffle_xor(v, m));
    return v;
}

/* Inclusive prefix sum over the lanes. */
template <class T> CAIRN_INLINE T warp_scan(T v) {
#pragma unroll
    for (int d = 1; d < WARP; d <<= 1) {
        T below = shuffle_up(v, d);
        if (lane_id() >= d) v += below;
    }
    return v;
}

/* ---- faults ---- */

/* Leaves the first fault in the error word, for the host to find at its next synchronisation. */
CAIRN_INLINE void report_error(cairn_error_word *error, int code, int row, int64_t value) {
    if (error && atomic_cas((uint32_t *)&error->code, 0u, (uint32_t)code) == 0u) {
        error->row = row;
        error->value = value;
    }
}

#endif
