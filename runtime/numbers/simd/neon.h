/* simd/neon: the words of simd.c for 4 lanes of 64-bit Arm. */
#include <arm_neon.h>
#define SIMD(name) name##_neon
#define SIMD_FN
#define SIMD_LEVEL SIMD_NEON
#define VEC float32x4_t
#define VEC_N 4
#define VEC_ROWS 4
#define VEC_SUMS 16 /* its sums: they stay in registers */
#define VEC_QUERIES 4
#define VEC_TOGETHER 1
#define VEC_UNROLL BASE_UNROLL

#define VEC_LOAD(p) vld1q_f32(p)
#define VEC_PART(p, n) part_neon(p, n)
#define VEC_STORE(p, v) vst1q_f32(p, v)
#define VEC_SET(x) vdupq_n_f32(x)
#define VEC_FIRST(v) vgetq_lane_f32(v, 0)
#define VEC_ADD(a, b) vaddq_f32(a, b)
#define VEC_SUB(a, b) vsubq_f32(a, b)
#define VEC_MUL(a, b) vmulq_f32(a, b)
#define VEC_DIV(a, b) vdivq_f32(a, b)
#define VEC_FMA(a, b, c) vfmaq_f32(c, a, b)
#define VEC_MAX(a, b) vmaxq_f32(a, b)
#define VEC_MOST(a, b) vmaxnmq_f32(a, b)
#define VEC_MIN(a, b) vminq_f32(a, b)
#define VEC_SWAP(v) vrev64q_f32(v)
#define VEC_ROUND(v) vrndnq_f32(v)
#define VEC_POW2(v) \
    vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(v), vdupq_n_s32(127)), 23))
#define VEC_ZERO_BELOW(v, x, limit) \
    vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(v), vcltq_f32(x, vdupq_n_f32(limit))))
#define VEC_HALF(p) vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)))
#define VEC_HALF_STORE(p, v) vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(v)))
#define VEC_HALF1(h) vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(h))), 0)
#define VEC_BF16(p) vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16))
#define VEC_BYTES(p) bytes_neon(p)

BASE_INLINE float32x4_t part_neon(const float *p, int n) {
    float lanes[4] = {0};
    for (int i = 0; i < n; i++) lanes[i] = p[i];
    return vld1q_f32(lanes);
}

BASE_INLINE float32x4_t bytes_neon(const uint8_t *p) {
    uint32_t word;
    memcpy(&word, p, sizeof word);
    return vcvtq_f32_s32(vmovl_s16(
        vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(word))))));
}

BASE_INLINE void SIMD(sum4)(float *sums, VEC a, VEC b, VEC c, VEC d) {
    vst1q_f32(sums, vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)));
}

BASE_INLINE float SIMD(top)(VEC v) { return vmaxvq_f32(v); }

/* w [8]: the 32 values nibble * scale + minimum of 16 bytes, low halves first. */
BASE_INLINE void SIMD(nibbles)(const uint8_t *bytes, float scale, float minimum, VEC *w) {
    uint8x16_t both = vld1q_u8(bytes), half[2];
    float32x4_t a = vdupq_n_f32(scale), b = vdupq_n_f32(minimum);
    half[0] = vandq_u8(both, vdupq_n_u8(15));
    half[1] = vshrq_n_u8(both, 4);
    BASE_UNROLL
    for (int i = 0; i < 2; i++) {
        uint16x8_t first = vmovl_u8(vget_low_u8(half[i])), last = vmovl_u8(vget_high_u8(half[i]));
        w[4 * i] = vfmaq_f32(b, vcvtq_f32_u32(vmovl_u16(vget_low_u16(first))), a);
        w[4 * i + 1] = vfmaq_f32(b, vcvtq_f32_u32(vmovl_u16(vget_high_u16(first))), a);
        w[4 * i + 2] = vfmaq_f32(b, vcvtq_f32_u32(vmovl_u16(vget_low_u16(last))), a);
        w[4 * i + 3] = vfmaq_f32(b, vcvtq_f32_u32(vmovl_u16(vget_high_u16(last))), a);
    }
}

#define VEC_KEYS uint32x4_t
#define KEYS_LOAD(p) vld1q_u32(p)
#define KEYS_STORE(p, v) vst1q_u32(p, v)
#define KEYS_MIN(a, b) vminq_u32(a, b)
#define KEYS_MAX(a, b) vmaxq_u32(a, b)
#define KEYS_SQUEEZE 0

/* Keys of simd_key, but for -0 (one below +0) and NaN. */
BASE_INLINE uint32x4_t SIMD(rank)(VEC v) {
    int32x4_t bits = vreinterpretq_s32_f32(v);
    return veorq_u32(vreinterpretq_u32_s32(bits),
                     vorrq_u32(vreinterpretq_u32_s32(vshrq_n_s32(bits, 31)),
                               vdupq_n_u32(0x80000000u)));
}

BASE_INLINE bool SIMD(reach)(VEC a, VEC b, VEC c, VEC d, uint32_t least) {
    return vmaxvq_u32(vmaxq_u32(vmaxq_u32(SIMD(rank)(a), SIMD(rank)(b)),
                                vmaxq_u32(SIMD(rank)(c), SIMD(rank)(d)))) >= least;
}

BASE_INLINE int SIMD(keep)(VEC v, uint32_t least, int32_t position, uint32_t *keys,
                           int32_t *positions) {
    uint32_t lanes[4];
    int i, count = 0;
    vst1q_u32(lanes, vreinterpretq_u32_f32(v));
    for (i = 0; i < 4; i++)
        count += simd_keep_one(lanes[i], least, position + i, keys + count, positions + count);
    return count;
}

#define SIMD_EIGHT_FN
#define QUADS uint32x4_t
#define SUMS int32x4_t
#define QUADS_SET(word) vdupq_n_u32(word)
#define QUADS_AND(a, byte) vandq_u32(a, vdupq_n_u32((uint32_t)(byte) * 0x01010101u))
#define QUADS_OR(a, b) vorrq_u32(a, b)
#define QUADS_LEFT(a, n) vshlq_u32(a, vdupq_n_s32(n))
#define QUADS_RIGHT(a, n) vshlq_u32(a, vdupq_n_s32(-(n)))
#define QUADS_SUMS(a) vreinterpretq_s32_u32(a)
#define QUADS_WIDE 0
#define QUADS_OF_WIDE(a) (a)
#define SUMS_RIGHT(s, n) vshlq_s32(s, vdupq_n_s32(-(n)))
#define SUMS_SET(x) vdupq_n_s32(x)
#define SUMS_FLOATS(s) vcvtq_f32_s32(s)
#define SUMS_FIRST(s) vgetq_lane_s32(s, 0)

BASE_INLINE void SIMD(columns)(const uint8_t *at, size_t row, QUADS *out) {
    uint32x4_t a = vreinterpretq_u32_u8(vld1q_u8(at)), b = vreinterpretq_u32_u8(vld1q_u8(at + row));
    uint32x4_t c = vreinterpretq_u32_u8(vld1q_u8(at + 2 * row));
    uint32x4_t d = vreinterpretq_u32_u8(vld1q_u8(at + 3 * row));
    uint32x4_t ac = vzip1q_u32(a, c), bd = vzip1q_u32(b, d);
    out[0] = vzip1q_u32(ac, bd);
    out[1] = vzip2q_u32(ac, bd);
    ac = vzip2q_u32(a, c), bd = vzip2q_u32(b, d);
    out[2] = vzip1q_u32(ac, bd);
    out[3] = vzip2q_u32(ac, bd);
}

BASE_INLINE VEC SIMD(low_halves)(QUADS words) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(words)));
}

BASE_INLINE QUADS SIMD(spread)(QUADS bits) {
    bits = vmulq_u32(vandq_u32(bits, vdupq_n_u32(15)), vdupq_n_u32(0x00204081));
    return vandq_u32(bits, vdupq_n_u32(0x01010101));
}

BASE_INLINE SUMS SIMD(dot)(const bool wide, SUMS sums, QUADS numbers, const int8_t *q) {
    int8x16_t n = vreinterpretq_s8_u32(numbers), x;
    int32_t four;
    (void)wide; /* the numbers of others are as good as signed */
    memcpy(&four, q, sizeof four);
    x = vreinterpretq_s8_s32(vdupq_n_s32(four));
    return vaddq_s32(sums, vpaddq_s32(vpaddlq_s16(vmull_s8(vget_low_s8(n), vget_low_s8(x))),
                                      vpaddlq_s16(vmull_high_s8(n, x))));
}

BASE_INLINE void SIMD(store_bytes)(int8_t *q, VEC v) {
    int32_t whole[4];
    vst1q_s32(whole, vcvtq_s32_f32(v));
    for (int i = 0; i < 4; i++) q[i] = (int8_t)whole[i];
}

#define VEC_HEADS 0
#define VEC_NUMBERS 0
