/* simd/avx512: the words of simd.c for 16 lanes. Sums go by a fixed tree, the same for each lane
 * set, so that a sum does not depend on its neighbours. */
#define SIMD(name) name##_avx512
#define SIMD_FN BASE_TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#define SIMD_LEVEL SIMD_AVX512
#define VEC __m512
#define VEC_N 16
#define VEC_ROWS 6 /* token rows of a product's tile: 4 * 6 sums and 5 operands in 32 registers */
#define VEC_QUERIES 4

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

#define VEC_HEADS 1 /* its own heads_q4_1, heads_words */

/* The scales and minima of `count` <= 16 blocks of 20 bytes. The 32-bit heads lie five words apart,
 * and 5 has no factor in common with 16: each falls into a lane of its own, so that masked loads
 * over one another collect them. */
SIMD_FN BASE_INLINE void SIMD(heads16_q4_1)(const uint8_t *blocks, int count, float *scales,
                                            float *minima) {
    static const uint16_t lanes[5] = {0x8421, 0x4210, 0x2108, 0x1084, 0x0842};
    const __m512i order = _mm512_setr_epi32(0, 5, 10, 15, 4, 9, 14, 3, 8, 13, 2, 7, 12, 1, 6, 11);
    __m512i words = _mm512_setzero_si512();
    BASE_UNROLL
    for (int i = 0; i < 5; i++) {
        int left = 5 * count - 16 * i;
        unsigned within = left >= 16 ? 0xffffu : left <= 0 ? 0 : (1u << left) - 1u;
        words = _mm512_mask_loadu_epi32(words, (__mmask16)(lanes[i] & within), blocks + 64 * i);
    }
    words = _mm512_permutexvar_epi32(order, words);
    _mm512_storeu_ps(scales, _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words)));
    words = _mm512_srli_epi32(words, 16);
    _mm512_storeu_ps(minima, _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words)));
}

/* The scales of `count` <= 16 blocks of `stride` 16-bit words, 9 (Q4_0) or 17 (Q8_0), both without
 * a factor in common with 32. */
SIMD_FN BASE_INLINE void SIMD(heads16_words)(const uint8_t *blocks, int stride, int count,
                                             float *scales) {
    uint16_t order[32] = {0};
    __m512i words = _mm512_setzero_si512();
    BASE_UNROLL
    for (int i = 0; i < 16; i++) order[i] = (uint16_t)(i * stride & 31);
    BASE_UNROLL
    for (int i = 0; i < 9; i++) {
        uint32_t lanes = 0;
        BASE_UNROLL
        for (int block = 0; block < 16; block++)
            if (block * stride / 32 == i && block < count)
                lanes |= 1u << (block * stride & 31);
        if (i * 32 < stride * 16)
            words = _mm512_mask_loadu_epi16(words, lanes, blocks + 64 * i);
    }
    words = _mm512_permutexvar_epi16(_mm512_loadu_si512(order), words);
    _mm512_storeu_ps(scales, _mm512_cvtph_ps(_mm512_castsi512_si256(words)));
}
