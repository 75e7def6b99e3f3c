/* simd/scalar: the words of simd.c for one lane of plain C. */
#define SIMD(name) name##_scalar
#define SIMD_FN
#define SIMD_LEVEL SIMD_SCALAR
#define VEC float
#define VEC_N 1
#define VEC_ROWS 2
#define VEC_QUERIES 1
#define VEC_TOGETHER 1
#define VEC_UNROLL /* a block is 32 lanes: not unrolled */

#define VEC_LOAD(p) (*(p))
#define VEC_PART(p, n) (*(p))
#define VEC_STORE(p, v) (*(p) = (v))
#define VEC_SET(x) (x)
#define VEC_FIRST(v) (v)
#define VEC_ADD(a, b) ((a) + (b))
#define VEC_SUB(a, b) ((a) - (b))
#define VEC_MUL(a, b) ((a) * (b))
#define VEC_DIV(a, b) ((a) / (b))
#define VEC_FMA(a, b, c) ((a) * (b) + (c))
#define VEC_MAX(a, b) ((a) > (b) ? (a) : (b))
#define VEC_MIN(a, b) ((a) < (b) ? (a) : (b))
#define VEC_ROUND(v) round_scalar(v)
#define VEC_POW2(v) block_f32_of_bits((uint32_t)((int32_t)(v) + 127) << 23)
#define VEC_ZERO_BELOW(v, x, limit) ((x) < (limit) ? 0.0f : (v))
#define VEC_HALF(p) block_f32_of_f16(*(p))
#define VEC_HALF_STORE(p, v) (*(p) = simd_f16_of_f32(v))
#define VEC_HALF1(h) block_f32_of_f16(h)
#define VEC_BF16(p) block_f32_of_bits((uint32_t)*(p) << 16)
#define VEC_BYTES(p) ((float)((int)(*(p) ^ 128) - 128))

/* To the nearest whole number, halves to even; |v| < 2^22. */
BASE_INLINE float round_scalar(float v) {
    volatile float big = v + 12582912.0f; /* 1.5 * 2^23; volatile: not to be simplified away */
    return big - 12582912.0f;
}

BASE_INLINE void SIMD(sum4)(float *sums, VEC a, VEC b, VEC c, VEC d) {
    sums[0] = a;
    sums[1] = b;
    sums[2] = c;
    sums[3] = d;
}

BASE_INLINE float SIMD(top)(VEC v) { return v; }

/* w [32]: the values nibble * scale + minimum of 16 bytes, low halves first. */
BASE_INLINE void SIMD(nibbles)(const uint8_t *bytes, float scale, float minimum, VEC *w) {
    for (int i = 0; i < 16; i++) {
        w[i] = (float)(bytes[i] & 15) * scale + minimum;
        w[i + 16] = (float)(bytes[i] >> 4) * scale + minimum;
    }
}

#define VEC_KEYS uint32_t
#define KEYS_LOAD(p) (*(p))
#define KEYS_STORE(p, v) (*(p) = (v))
#define KEYS_MIN(a, b) ((a) < (b) ? (a) : (b))
#define KEYS_MAX(a, b) ((a) > (b) ? (a) : (b))
#define KEYS_SQUEEZE 0

/* Whether a score of a, b, c, d may have a key of `least` or more. */
BASE_INLINE bool SIMD(reach)(VEC a, VEC b, VEC c, VEC d, uint32_t least) {
    return simd_key(simd_bits_of_f32(&a)) >= least || simd_key(simd_bits_of_f32(&b)) >= least ||
           simd_key(simd_bits_of_f32(&c)) >= least || simd_key(simd_bits_of_f32(&d)) >= least;
}

/* Appends the keys of at least `least`, in order; returns how many. Lane 0 stands at `position`. */
BASE_INLINE int SIMD(keep)(VEC v, uint32_t least, int32_t position, uint32_t *keys,
                           int32_t *positions) {
    return simd_keep_one(simd_bits_of_f32(&v), least, position, keys, positions);
}

#define SIMD_EIGHT_FN
#define QUADS uint32_t /* four bytes of an output, a number each */
#define SUMS int32_t
#define QUADS_SET(word) (word)
#define QUADS_AND(a, byte) ((a) & (uint32_t)(byte) * 0x01010101u)
#define QUADS_OR(a, b) ((a) | (b))
#define QUADS_LEFT(a, n) ((a) << (n))
#define QUADS_RIGHT(a, n) ((a) >> (n))
#define QUADS_SUMS(a) ((int32_t)(a))
#define QUADS_WIDE 0 /* what stands for 0 in numbers of 8 bits as dot takes them */
#define QUADS_OF_WIDE(a) (a)
#define SUMS_RIGHT(s, n) ((s) >> (n)) /* keeps the sign */
#define SUMS_SET(x) (x)
#define SUMS_FLOATS(s) ((float)(s))
#define SUMS_FIRST(s) (s)

/* out [4]: the four words at `at` of VEC_N rows; word i of all rows is out[i]. */
BASE_INLINE void SIMD(columns)(const uint8_t *at, size_t row, QUADS *out) {
    (void)row;
    memcpy(out, at, 16);
}

/* The f16 in the lower half of each word. */
BASE_INLINE VEC SIMD(low_halves)(QUADS words) { return VEC_HALF1((uint16_t)words); }

/* Bits 0 to 3 of each word, one a byte. */
BASE_INLINE QUADS SIMD(spread)(QUADS bits) {
    return (bits & 1) | (bits & 2) << 7 | (bits & 4) << 14 | (bits & 8) << 21;
}

/* sums + the four numbers of each output times q [4]. wide: numbers of 8 bits, else of 6 or less. */
BASE_INLINE SUMS SIMD(dot)(const bool wide, SUMS sums, QUADS numbers, const int8_t *q) {
    for (int i = 0; i < 4; i++) {
        int n = (int)(numbers >> 8 * i & 255);
        sums += (wide ? (n ^ 128) - 128 : n) * q[i];
    }
    return sums;
}

/* v holds whole numbers from -127 to 127, or what is not finite. */
BASE_INLINE void SIMD(store_bytes)(int8_t *q, VEC v) { *q = v > -128 && v < 128 ? (int8_t)v : 0; }

#define VEC_HEADS 0
#define VEC_NUMBERS 0
