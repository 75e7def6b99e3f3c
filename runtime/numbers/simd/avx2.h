/* simd/avx2: the words of simd.c for 8 lanes. */
#define SIMD(name) name##_avx2
#define SIMD_FN BASE_TARGET("avx2,fma,f16c")
#define SIMD_LEVEL SIMD_AVX2
#define VEC __m256
#define VEC_N 8
#define VEC_ROWS 2 /* 4 * 2 sums and 5 operands in 16 registers */
#define VEC_SUMS 8 /* its sums: they stay in registers */
#define VEC_QUERIES 2
#define VEC_TOGETHER 1
#define VEC_UNROLL BASE_UNROLL

#define VEC_LOAD(p) _mm256_loadu_ps(p)
#define VEC_PART(p, n) \
    _mm256_maskload_ps(p, _mm256_cmpgt_epi32(_mm256_set1_epi32(n), \
                                             _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)))
#define VEC_STORE(p, v) _mm256_storeu_ps(p, v)
#define VEC_SET(x) _mm256_set1_ps(x)
#define VEC_FIRST(v) _mm256_cvtss_f32(v)
#define VEC_ADD(a, b) _mm256_add_ps(a, b)
#define VEC_SUB(a, b) _mm256_sub_ps(a, b)
#define VEC_MUL(a, b) _mm256_mul_ps(a, b)
#define VEC_DIV(a, b) _mm256_div_ps(a, b)
#define VEC_FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define VEC_MAX(a, b) _mm256_max_ps(a, b)
#define VEC_MIN(a, b) _mm256_min_ps(a, b)
#define VEC_SWAP(v) _mm256_permute_ps(v, 0xb1)
#define VEC_ROUND(v) _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define VEC_POW2(v) \
    _mm256_castsi256_ps(_mm256_slli_epi32( \
        _mm256_add_epi32(_mm256_cvtps_epi32(v), _mm256_set1_epi32(127)), 23))
#define VEC_ZERO_BELOW(v, x, limit) \
    _mm256_and_ps(v, _mm256_cmp_ps(x, _mm256_set1_ps(limit), _CMP_NLT_UQ))
#define VEC_HALF(p) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p)))
#define VEC_HALF_STORE(p, v) _mm_storeu_si128((__m128i *)(void *)(p), _mm256_cvtps_ph(v, 0))
#define VEC_HALF1(h) _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)))
#define VEC_BF16(p) \
    _mm256_castsi256_ps(_mm256_slli_epi32( \
        _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p))), 16))
#define VEC_BYTES(p) \
    _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(p))))

SIMD_FN BASE_INLINE void SIMD(sum4)(float *sums, VEC a, VEC b, VEC c, VEC d) {
    __m256 all = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    _mm_storeu_ps(sums, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
}

SIMD_FN BASE_INLINE float SIMD(top)(VEC v) {
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
}

/* w [4]: the 32 values nibble * scale + minimum of 16 bytes, low halves first. */
SIMD_FN BASE_INLINE void SIMD(nibbles)(const uint8_t *bytes, float scale, float minimum, VEC *w) {
    const __m128i low = _mm_set1_epi8(15);
    __m128i both = _mm_loadu_si128((const __m128i *)(const void *)bytes);
    __m128i half[2];
    __m256 a = _mm256_set1_ps(scale), b = _mm256_set1_ps(minimum);
    half[0] = _mm_and_si128(both, low);
    half[1] = _mm_and_si128(_mm_srli_epi16(both, 4), low);
    BASE_UNROLL
    for (int i = 0; i < 2; i++) {
        __m256i first = _mm256_cvtepu8_epi32(half[i]);
        __m256i last = _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(half[i], half[i]));
        w[2 * i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(first), a, b);
        w[2 * i + 1] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(last), a, b);
    }
}

/* The 32 whole numbers of a part of a block, from 0, or signed where the type has no minimum; of
 * both levels. */
SIMD_FN BASE_INLINE __m256i simd_numbers_x86(int type, const uint8_t *block, int part) {
    const __m256i four = _mm256_set1_epi8(15), bit = _mm256_set1_epi8(1);
    const __m256i two = _mm256_set1_epi8(3);
    const uint8_t *low = block + (type == BLOCK_Q4_K ? 16 : 48) + part / 2 * 32, *high = block + 16;
    int shift = part % 2 * 4;
    __m256i n, upper;
    if (type == BLOCK_Q5_0 || type == BLOCK_Q5_1) {
        const uint8_t *at = block + (type == BLOCK_Q5_1 ? 4 : 2);
        const __m256i each = _mm256_set1_epi64x((long long)0x8040201008040201);
        const __m256i bytes = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202,
                                                 0x0303030303030303);
        __m128i both = _mm_loadu_si128((const __m128i *)(const void *)(at + 4));
        int32_t fifth;
        memcpy(&fifth, at, 4);
        n = _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(both, 4), both), four);
        upper = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(fifth), bytes), each);
        upper = _mm256_and_si256(_mm256_cmpeq_epi8(upper, each), _mm256_set1_epi8(16));
        n = _mm256_or_si256(n, upper);
        return type == BLOCK_Q5_1 ? n : _mm256_sub_epi8(n, _mm256_set1_epi8(16));
    }
    if (type == BLOCK_Q6_K) {
        low = block + part / 4 * 64 + part % 2 * 32;
        high = block + 128 + part / 4 * 32;
        shift = part % 4 / 2 * 4;
    }
    n = _mm256_loadu_si256((const __m256i *)(const void *)low);
    n = _mm256_and_si256(_mm256_srl_epi16(n, _mm_cvtsi32_si128(shift)), four);
    if (type == BLOCK_Q4_K) return n;
    upper = _mm256_loadu_si256((const __m256i *)(const void *)high);
    upper = _mm256_srl_epi16(upper, _mm_cvtsi32_si128(type == BLOCK_Q6_K ? part % 4 * 2 : part));
    upper = _mm256_slli_epi16(_mm256_and_si256(upper, type == BLOCK_Q6_K ? two : bit), 4);
    n = _mm256_or_si256(n, upper);
    return type == BLOCK_Q5_K ? n : _mm256_sub_epi8(n, _mm256_set1_epi8(32));
}

#define VEC_NUMBERS 1 /* its own numbers */
SIMD_FN BASE_INLINE void SIMD(numbers)(int type, const uint8_t *block, int part, VEC *w) {
    __m256i n = simd_numbers_x86(type, block, part);
    __m128i half = _mm256_castsi256_si128(n), last = _mm256_extracti128_si256(n, 1);
    w[0] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(half));
    w[1] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(half, half)));
    w[2] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(last));
    w[3] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(last, last)));
}

#define VEC_KEYS __m256i
#define KEYS_LOAD(p) _mm256_loadu_si256((const __m256i *)(const void *)(p))
#define KEYS_STORE(p, v) _mm256_storeu_si256((__m256i *)(void *)(p), v)
#define KEYS_MIN(a, b) _mm256_min_epu32(a, b)
#define KEYS_MAX(a, b) _mm256_max_epu32(a, b)
#define KEYS_SQUEEZE 0

/* Scores as signed numbers in their order, but for -0 (one below +0) and NaN. */
SIMD_FN BASE_INLINE __m256i SIMD(rank)(VEC v) {
    __m256i bits = _mm256_castps_si256(v);
    return _mm256_xor_si256(bits, _mm256_srli_epi32(_mm256_srai_epi32(bits, 31), 1));
}

SIMD_FN BASE_INLINE bool SIMD(reach)(VEC a, VEC b, VEC c, VEC d, uint32_t least) {
    __m256i limit = _mm256_set1_epi32((int32_t)(least ^ 0x80000000u));
    __m256i ab = _mm256_and_si256(_mm256_cmpgt_epi32(limit, SIMD(rank)(a)),
                                  _mm256_cmpgt_epi32(limit, SIMD(rank)(b)));
    __m256i cd = _mm256_and_si256(_mm256_cmpgt_epi32(limit, SIMD(rank)(c)),
                                  _mm256_cmpgt_epi32(limit, SIMD(rank)(d)));
    return _mm256_movemask_epi8(_mm256_and_si256(ab, cd)) != -1;
}

SIMD_FN BASE_INLINE int SIMD(keep)(VEC v, uint32_t least, int32_t position, uint32_t *keys,
                                   int32_t *positions) {
    const __m256i top = _mm256_set1_epi32(INT32_MIN);
    __m256i bits = _mm256_castps_si256(v), key = _mm256_xor_si256(SIMD(rank)(v), top);
    __m256i magnitude = _mm256_andnot_si256(top, bits);
    uint32_t lanes[8];
    int i, count = 0;
    key = _mm256_blendv_epi8(key, top, _mm256_cmpeq_epi32(magnitude, _mm256_setzero_si256()));
    key = _mm256_andnot_si256(_mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f800000)), key);
    _mm256_storeu_si256((__m256i *)(void *)lanes, key);
    BASE_UNROLL
    for (i = 0; i < 8; i++) {
        keys[count] = lanes[i];
        positions[count] = position + i;
        count += lanes[i] >= least;
    }
    return count;
}

#define SIMD_EIGHT_FN SIMD_FN
#define QUADS __m256i
#define SUMS __m256i
#define QUADS_SET(word) _mm256_set1_epi32(word)
#define QUADS_AND(a, byte) _mm256_and_si256(a, _mm256_set1_epi8(byte))
#define QUADS_OR(a, b) _mm256_or_si256(a, b)
#define QUADS_LEFT(a, n) _mm256_slli_epi32(a, n)
#define QUADS_RIGHT(a, n) _mm256_srli_epi32(a, n)
#define QUADS_SUMS(a) (a)
#define QUADS_WIDE 0
#define QUADS_OF_WIDE(a) (a)
#define SUMS_RIGHT(s, n) _mm256_srai_epi32(s, n)
#define SUMS_SET(x) _mm256_set1_epi32(x)
#define SUMS_FLOATS(s) _mm256_cvtepi32_ps(s)
#define SUMS_FIRST(s) _mm_cvtsi128_si32(_mm256_castsi256_si128(s))

SIMD_FN BASE_INLINE __m256i SIMD(two_rows)(const uint8_t *at, size_t row) {
    return _mm256_inserti128_si256(
        _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)at)),
        _mm_loadu_si128((const __m128i *)(const void *)(at + 4 * row)), 1);
}

SIMD_FN BASE_INLINE void SIMD(columns)(const uint8_t *at, size_t row, QUADS *out) {
    __m256i a = SIMD(two_rows)(at, row), b = SIMD(two_rows)(at + row, row);
    __m256i c = SIMD(two_rows)(at + 2 * row, row), d = SIMD(two_rows)(at + 3 * row, row);
    __m256i ab = _mm256_unpacklo_epi32(a, b), cd = _mm256_unpacklo_epi32(c, d);
    out[0] = _mm256_unpacklo_epi64(ab, cd);
    out[1] = _mm256_unpackhi_epi64(ab, cd);
    ab = _mm256_unpackhi_epi32(a, b), cd = _mm256_unpackhi_epi32(c, d);
    out[2] = _mm256_unpacklo_epi64(ab, cd);
    out[3] = _mm256_unpackhi_epi64(ab, cd);
}

SIMD_FN BASE_INLINE VEC SIMD(low_halves)(QUADS words) {
    __m256i low = _mm256_and_si256(words, _mm256_set1_epi32(0xffff));
    low = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, low), 0x08);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(low));
}

SIMD_FN BASE_INLINE QUADS SIMD(spread)(QUADS bits) {
    bits = _mm256_mullo_epi32(_mm256_and_si256(bits, _mm256_set1_epi32(15)),
                              _mm256_set1_epi32(0x00204081));
    return _mm256_and_si256(bits, _mm256_set1_epi8(1));
}

/* Of numbers of 8 bits the sign goes over to q, so that two products fit 16 bits. */
SIMD_FN BASE_INLINE SUMS SIMD(dot)(const bool wide, SUMS sums, QUADS numbers, const int8_t *q) {
    int32_t four;
    __m256i x;
    memcpy(&four, q, sizeof four);
    x = _mm256_set1_epi32(four);
    if (wide) x = _mm256_sign_epi8(x, numbers), numbers = _mm256_abs_epi8(numbers);
    return _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_maddubs_epi16(numbers, x),
                                                    _mm256_set1_epi16(1)));
}

SIMD_FN BASE_INLINE void SIMD(store_bytes)(int8_t *q, VEC v) {
    __m256i whole = _mm256_cvtps_epi32(v);
    __m128i half = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    _mm_storel_epi64((__m128i *)(void *)q, _mm_packs_epi16(half, half));
}

#define VEC_HEADS 0
