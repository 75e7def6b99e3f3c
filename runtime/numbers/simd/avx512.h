/* simd/avx512: the words of simd.c for 16 lanes. Sums go by a fixed tree, the same for each lane
 * set, so that a sum does not depend on its neighbours. */
#define SIMD(name) name##_avx512
#define SIMD_FN BASE_TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,popcnt")
#define SIMD_LEVEL SIMD_AVX512
#define VEC __m512
#define VEC_N 16
#define VEC_ROWS 6 /* token rows of a product's tile: 4 * 6 sums and 5 operands in 32 registers */
#define VEC_SUMS 24 /* its sums: they stay in registers */
#define VEC_QUERIES 4
#define VEC_TOGETHER 2 /* rows of weights that meet a value of x once it is loaded */
#define VEC_UNROLL BASE_UNROLL

#define VEC_BITS(n) ((__mmask16)((1u << (n)) - 1u))
#define VEC_LOAD(p) _mm512_loadu_ps(p)
#define VEC_PART(p, n) _mm512_maskz_loadu_ps(VEC_BITS(n), p) /* n < 16 lanes, then zeros */
#define VEC_STORE(p, v) _mm512_storeu_ps(p, v)
#define VEC_SET(x) _mm512_set1_ps(x)
#define VEC_FIRST(v) _mm512_cvtss_f32(v)
#define VEC_ADD(a, b) _mm512_add_ps(a, b)
#define VEC_SUB(a, b) _mm512_sub_ps(a, b)
#define VEC_MUL(a, b) _mm512_mul_ps(a, b)
#define VEC_DIV(a, b) _mm512_div_ps(a, b)
#define VEC_FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define VEC_MAX(a, b) _mm512_max_ps(a, b)
#define VEC_MIN(a, b) _mm512_min_ps(a, b)
#define VEC_SWAP(v) _mm512_permute_ps(v, 0xb1) /* lanes 2i and 2i + 1 */
#define VEC_ROUND(v) _mm512_roundscale_ps(v, 8)
#define VEC_POW2(v) /* of whole numbers from -126 to 127 */ \
    _mm512_castsi512_ps(_mm512_slli_epi32( \
        _mm512_add_epi32(_mm512_cvtps_epi32(v), _mm512_set1_epi32(127)), 23))
#define VEC_ZERO_BELOW(v, x, limit) /* x < limit ? 0 : v */ \
    _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_NLT_UQ), v)
#define VEC_HALF(p) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(p)))
#define VEC_HALF_STORE(p, v) \
    _mm256_storeu_si256((__m256i *)(void *)(p), _mm512_cvtps_ph(v, 8))
#define VEC_HALF1(h) _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)))
#define VEC_BF16(p) \
    _mm512_castsi512_ps(_mm512_slli_epi32( \
        _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)(p))), 16))
#define VEC_BYTES(p) /* signed */ \
    _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p))))

/* sums [4]: of a, b, c, d. */
SIMD_FN BASE_INLINE void SIMD(sum4)(float *sums, VEC a, VEC b, VEC c, VEC d) {
    __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    __m512 all = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
    _mm_storeu_ps(sums, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}

SIMD_FN BASE_INLINE float SIMD(top)(VEC v) { return _mm512_reduce_max_ps(v); }

/* w [2]: the 32 values nibble * scale + minimum of 16 bytes, low halves first. A permute by a table
 * of the 16 possible values is conversion, product and sum in one step. */
SIMD_FN BASE_INLINE void SIMD(nibbles)(const uint8_t *bytes, float scale, float minimum, VEC *w) {
    const __m512 steps = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512 table = _mm512_fmadd_ps(_mm512_set1_ps(scale), steps, _mm512_set1_ps(minimum));
    __m512i index =
        _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)bytes));
    w[0] = _mm512_permutexvar_ps(index, table);
    w[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(index, 4), table);
}

#define VEC_NUMBERS 1 /* its own numbers */
SIMD_FN BASE_INLINE void SIMD(numbers)(int type, const uint8_t *block, int part, VEC *w) {
    __m256i n = simd_numbers_x86(type, block, part);
    w[0] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(n)));
    w[1] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(n, 1)));
}

#define VEC_KEYS __m512i
#define KEYS_LOAD(p) _mm512_loadu_si512(p)
#define KEYS_STORE(p, v) _mm512_storeu_si512(p, v)
#define KEYS_MIN(a, b) _mm512_min_epu32(a, b)
#define KEYS_MAX(a, b) _mm512_max_epu32(a, b)
#define KEYS_SQUEEZE 1 /* its own squeeze */

/* Writes the entries of at least `least` next to each other, 16 in any case; returns how many. The
 * mask is counted before a call can come between (gcc 12 spills 16 bits of it and counts 32): under
 * the thread sanitizer stores are calls. */
SIMD_FN BASE_INLINE int SIMD(squeeze)(__m512i key, __m512i position, uint32_t least,
                                      uint32_t *keys, int32_t *positions) {
    __mmask16 kept = _mm512_cmpge_epu32_mask(key, _mm512_set1_epi32((int32_t)least));
    int count = _mm_popcnt_u32(kept);
    _mm512_storeu_si512(keys, _mm512_maskz_compress_epi32(kept, key));
    _mm512_storeu_si512(positions, _mm512_maskz_compress_epi32(kept, position));
    return count;
}

/* Keys of simd_key, but for -0 (one below +0) and NaN. */
SIMD_FN BASE_INLINE __m512i SIMD(rank)(VEC v) {
    __m512i bits = _mm512_castps_si512(v);
    __m512i flip = _mm512_or_si512(_mm512_srai_epi32(bits, 31), _mm512_set1_epi32(INT32_MIN));
    return _mm512_xor_si512(bits, flip);
}

SIMD_FN BASE_INLINE bool SIMD(reach)(VEC a, VEC b, VEC c, VEC d, uint32_t least) {
    __m512i limit = _mm512_set1_epi32((int32_t)least);
    __mmask16 ab = _kor_mask16(_mm512_cmpge_epu32_mask(SIMD(rank)(a), limit),
                               _mm512_cmpge_epu32_mask(SIMD(rank)(b), limit));
    __mmask16 cd = _kor_mask16(_mm512_cmpge_epu32_mask(SIMD(rank)(c), limit),
                               _mm512_cmpge_epu32_mask(SIMD(rank)(d), limit));
    return !_kortestz_mask16_u8(ab, cd);
}

SIMD_FN BASE_INLINE int SIMD(keep)(VEC v, uint32_t least, int32_t position, uint32_t *keys,
                                   int32_t *positions) {
    const __m512i top = _mm512_set1_epi32(INT32_MIN);
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i magnitude = _mm512_andnot_si512(top, _mm512_castps_si512(v)), key = SIMD(rank)(v);
    key = _mm512_mask_mov_epi32(key, _mm512_testn_epi32_mask(magnitude, magnitude), top);
    key = _mm512_maskz_mov_epi32(
        _mm512_cmple_epu32_mask(magnitude, _mm512_set1_epi32(0x7f800000)), key);
    return SIMD(squeeze)(key, _mm512_add_epi32(lanes, _mm512_set1_epi32(position)), least, keys,
                         positions);
}

/* Whoever has no VNNI takes the products of 8 bits from the level below (simd_eight_of). */
#define SIMD_EIGHT_FN BASE_TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,popcnt")
#define QUADS __m512i
#define SUMS __m512i
#define QUADS_SET(word) _mm512_set1_epi32(word)
#define QUADS_AND(a, byte) _mm512_and_si512(a, _mm512_set1_epi8(byte))
#define QUADS_OR(a, b) _mm512_or_si512(a, b)
#define QUADS_LEFT(a, n) _mm512_slli_epi32(a, (unsigned)(n))
#define QUADS_RIGHT(a, n) _mm512_srli_epi32(a, (unsigned)(n))
#define QUADS_SUMS(a) (a)
#define QUADS_WIDE 128
#define QUADS_OF_WIDE(a) _mm512_xor_si512(a, _mm512_set1_epi8(-128))
#define SUMS_RIGHT(s, n) _mm512_srai_epi32(s, (unsigned)(n))
#define SUMS_SET(x) _mm512_set1_epi32(x)
#define SUMS_FLOATS(s) _mm512_cvtepi32_ps(s)
#define SUMS_FIRST(s) _mm_cvtsi128_si32(_mm512_castsi512_si128(s))

SIMD_FN BASE_INLINE __m512i SIMD(four_rows)(const uint8_t *at, size_t row) {
    const __m128i *from = (const __m128i *)(const void *)at;
    __m512i v = _mm512_castsi128_si512(_mm_loadu_si128(from));
    BASE_UNROLL
    for (int i = 1; i < 4; i++) {
        from = (const __m128i *)(const void *)(at + (size_t)i * 4 * row);
        v = _mm512_mask_broadcast_i32x4(v, (__mmask16)(15u << 4 * i), _mm_loadu_si128(from));
    }
    return v;
}

SIMD_FN BASE_INLINE void SIMD(columns)(const uint8_t *at, size_t row, QUADS *out) {
    __m512i a = SIMD(four_rows)(at, row), b = SIMD(four_rows)(at + row, row);
    __m512i c = SIMD(four_rows)(at + 2 * row, row), d = SIMD(four_rows)(at + 3 * row, row);
    __m512i ab = _mm512_unpacklo_epi32(a, b), cd = _mm512_unpacklo_epi32(c, d);
    out[0] = _mm512_unpacklo_epi64(ab, cd);
    out[1] = _mm512_unpackhi_epi64(ab, cd);
    ab = _mm512_unpackhi_epi32(a, b), cd = _mm512_unpackhi_epi32(c, d);
    out[2] = _mm512_unpacklo_epi64(ab, cd);
    out[3] = _mm512_unpackhi_epi64(ab, cd);
}

SIMD_FN BASE_INLINE VEC SIMD(low_halves)(QUADS words) {
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words));
}

SIMD_FN BASE_INLINE QUADS SIMD(spread)(QUADS bits) {
    const __m512i bytes = _mm512_setr_epi32(
        0, 0x1, 0x100, 0x101, 0x10000, 0x10001, 0x10100, 0x10101, 0x1000000, 0x1000001, 0x1000100,
        0x1000101, 0x1010000, 0x1010001, 0x1010100, 0x1010101);
    return _mm512_permutexvar_epi32(bits, bytes); /* by the lowest four bits */
}

SIMD_EIGHT_FN BASE_INLINE SUMS SIMD(dot)(const bool wide, SUMS sums, QUADS numbers,
                                         const int8_t *q) {
    int32_t four;
    (void)wide;
    memcpy(&four, q, sizeof four);
    return _mm512_dpbusd_epi32(sums, numbers, _mm512_set1_epi32(four));
}

SIMD_FN BASE_INLINE void SIMD(store_bytes)(int8_t *q, VEC v) {
    _mm_storeu_si128((__m128i *)(void *)q, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v)));
}

#define VEC_HEADS 1 /* its own heads16 */

/* The first `width` words of `count` <= 16 blocks of `stride` words (9, 10 or 17): block b's come
 * to word b * stride mod 32. No two meet there, so masked loads over one another collect them. */
SIMD_FN BASE_INLINE __m512i SIMD(collect)(const uint8_t *blocks, int stride, int width, int count) {
    __m512i words = _mm512_setzero_si512();
    BASE_UNROLL
    for (int i = 0; i < 9; i++) {
        uint32_t lanes = 0, within;
        int left = count * stride - 32 * i;
        BASE_UNROLL
        for (int block = 0; block < 16; block++)
            if (block * stride / 32 == i)
                lanes |= (width == 2 ? 3u : 1u) << (block * stride & 31);
        within = left >= 32 ? 0xffffffffu : left <= 0 ? 0 : (1u << left) - 1u;
        if (lanes) words = _mm512_mask_loadu_epi16(words, lanes & within, blocks + 64 * i);
    }
    return words;
}

/* heads [count] (scale, minimum) of `count` <= 16 blocks; writes 16. */
SIMD_FN BASE_INLINE void SIMD(heads16_q4_1)(const uint8_t *blocks, int count, float *heads) {
    const __m512i order = _mm512_setr_epi32(0, 5, 10, 15, 4, 9, 14, 3, 8, 13, 2, 7, 12, 1, 6, 11);
    __m512i words = _mm512_permutexvar_epi32(order, SIMD(collect)(blocks, 10, 2, count));
    _mm512_storeu_ps(heads, _mm512_cvtph_ps(_mm512_castsi512_si256(words)));
    _mm512_storeu_ps(heads + 16, _mm512_cvtph_ps(_mm512_extracti64x4_epi64(words, 1)));
}

/* The scales of 16 blocks of `stride` words. */
SIMD_FN BASE_INLINE __m512 SIMD(scales16)(const uint8_t *blocks, int stride, int count) {
    uint16_t order[32] = {0};
    __m512i words = SIMD(collect)(blocks, stride, 1, count);
    BASE_UNROLL
    for (int i = 0; i < 16; i++) order[i] = (uint16_t)(i * stride & 31);
    words = _mm512_permutexvar_epi16(_mm512_loadu_si512(order), words);
    return _mm512_cvtph_ps(_mm512_castsi512_si256(words));
}

/* heads [count] (scale, -8 * scale); writes 16. */
SIMD_FN BASE_INLINE void SIMD(heads16_q4_0)(const uint8_t *blocks, int count, float *heads) {
    const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i last = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    __m512 scales = SIMD(scales16)(blocks, 9, count);
    __m512 minima = _mm512_mul_ps(scales, _mm512_set1_ps(-8.0f));
    _mm512_storeu_ps(heads, _mm512_permutex2var_ps(scales, first, minima));
    _mm512_storeu_ps(heads + 16, _mm512_permutex2var_ps(scales, last, minima));
}

/* heads [count] (scale); writes 16. */
SIMD_FN BASE_INLINE void SIMD(heads16_q8_0)(const uint8_t *blocks, int count, float *heads) {
    _mm512_storeu_ps(heads, SIMD(scales16)(blocks, 17, count));
}
