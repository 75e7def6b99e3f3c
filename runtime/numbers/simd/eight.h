/* simd/eight: products of weights in blocks with rows that are rounded to 8 bits, once per level.
 *
 * Of each 32 inputs the largest magnitude stands for 127: x = d q, q whole, d f32. A weight is scale
 * times a whole number, plus a minimum, so that 32 terms are one sum of whole numbers, exact, and
 *
 *   y[row, out] = sum over 32s, ascending, of d scale (sum of n q) + minimum d (sum of q)
 *
 * VEC_N outputs go together, one a lane: sixteen bytes of each output's block are loaded and turned,
 * so that a lane holds four numbers of its output, and meet four of the row's at a time. So a
 * row's result depends neither on the other rows nor on how outputs are divided. */

enum { SIMD(EIGHT_RUN) = 16 }; /* 32s that are unpacked before several rows meet them */

/* Unpacked weights: VEC_N outputs, some 32s. */
typedef struct SIMD(eight_run) {
    QUADS numbers[SIMD(EIGHT_RUN) * 8]; /* from 0, each 32's in eight steps of four inputs */
    VEC scales[SIMD(EIGHT_RUN) * 2];    /* of 32 inputs; Q6_K: of 16 */
    VEC minima[SIMD(EIGHT_RUN)];
} SIMD(eight_run);

/* What stands for 0 in the numbers of types without a minimum. */
#define SIMD_EIGHT_LESS(type) ((type) == BLOCK_Q4_0 ? 8 : (type) == BLOCK_Q5_0 ? 16 : \
                               (type) == BLOCK_Q6_K ? 32 : (type) == BLOCK_Q8_0 ? QUADS_WIDE : 0)
#define SIMD_EIGHT_MINIMA(type) ((type) == BLOCK_Q4_1 || (type) == BLOCK_Q5_1 || \
                                 (type) == BLOCK_Q4_K || (type) == BLOCK_Q5_K)
#define SIMD_EIGHT_PARTS(type) (SIMD_PARTS(type) ? SIMD_PARTS(type) : 1) /* 32s of a block */
#define SIMD_EIGHT_SMALL(X) X(Q4_0, 18) X(Q4_1, 20) X(Q5_0, 22) X(Q5_1, 24) X(Q8_0, 34)
#define SIMD_EIGHT_LARGE(X) X(Q4_K, 144) X(Q5_K, 176) X(Q6_K, 210)

/* ---- unpacking: one block of VEC_N outputs, `row` bytes apart ---------------------------------- */

/* out [8]: the words of 32 bytes. */
SIMD_EIGHT_FN BASE_INLINE void SIMD(eight_bytes)(const uint8_t *at, size_t row, QUADS *out) {
    SIMD(columns)(at, row, out);
    SIMD(columns)(at + 16, row, out + 4);
}

/* The f16 in the higher half of each word. */
SIMD_EIGHT_FN BASE_INLINE VEC SIMD(high_halves)(QUADS words) {
    return SIMD(low_halves)(QUADS_RIGHT(words, 16));
}

/* 32 numbers with a head: 4 bits or 5, or 8. */
SIMD_EIGHT_FN BASE_INLINE void SIMD(eight_small)(int type, const uint8_t *block, size_t row,
                                                 QUADS *out, VEC *scale, VEC *minimum) {
    const bool five = type == BLOCK_Q5_0 || type == BLOCK_Q5_1;
    const int head = SIMD_EIGHT_MINIMA(type) ? 4 : 2;
    QUADS both[8], first[4], fifth;
    SIMD(columns)(block, row, first); /* whole blocks have sixteen bytes */
    *scale = SIMD(low_halves)(first[0]);
    if (SIMD_EIGHT_MINIMA(type)) *minimum = SIMD(high_halves)(first[0]);
    fifth = head == 4 ? first[1] : QUADS_OR(QUADS_RIGHT(first[0], 16), QUADS_LEFT(first[1], 16));
    if (type == BLOCK_Q8_0) SIMD(eight_bytes)(block + head, row, both);
    else SIMD(columns)(block + head + (five ? 4 : 0), row, both);
    VEC_UNROLL
    for (int i = 0; i < 8; i++) {
        if (type == BLOCK_Q8_0) {
            out[i] = QUADS_OF_WIDE(both[i]);
            continue;
        }
        out[i] = QUADS_AND(i < 4 ? both[i] : QUADS_RIGHT(both[i - 4], 4), 15);
        if (five)
            out[i] = QUADS_OR(out[i],
                              QUADS_LEFT(SIMD(spread)(QUADS_RIGHT(fifth, 4 * i)), 4));
    }
}

/* A byte of each word as f32. */
SIMD_EIGHT_FN BASE_INLINE VEC SIMD(eight_byte)(QUADS words, int byte) {
    return SUMS_FLOATS(QUADS_SUMS(QUADS_RIGHT(QUADS_LEFT(words, 24 - 8 * byte), 24)));
}

/* Scales and minima [8] of Q4_K and Q5_K: numbers of six bits in twelve bytes. */
SIMD_EIGHT_FN BASE_INLINE void SIMD(eight_sixes)(const uint8_t *block, size_t row, VEC *scales,
                                                 VEC *minima) {
    QUADS head[4], a, b, high_a, high_b, last_a, last_b;
    VEC scale, minimum;
    SIMD(columns)(block, row, head);
    scale = SIMD(low_halves)(head[0]);
    minimum = VEC_SUB(VEC_SET(0.0f), SIMD(high_halves)(head[0]));
    a = QUADS_AND(head[1], 63), b = QUADS_AND(head[2], 63);
    high_a = QUADS_LEFT(QUADS_AND(QUADS_RIGHT(head[1], 6), 3), 4);
    high_b = QUADS_LEFT(QUADS_AND(QUADS_RIGHT(head[2], 6), 3), 4);
    last_a = QUADS_OR(QUADS_AND(head[3], 15), high_a);
    last_b = QUADS_OR(QUADS_AND(QUADS_RIGHT(head[3], 4), 15), high_b);
    VEC_UNROLL
    for (int i = 0; i < 4; i++) {
        scales[i] = VEC_MUL(SIMD(eight_byte)(a, i), scale);
        scales[4 + i] = VEC_MUL(SIMD(eight_byte)(last_a, i), scale);
        minima[i] = VEC_MUL(SIMD(eight_byte)(b, i), minimum);
        minima[4 + i] = VEC_MUL(SIMD(eight_byte)(last_b, i), minimum);
    }
}

/* The 16 scales of Q6_K: signed bytes. */
SIMD_EIGHT_FN BASE_INLINE void SIMD(eight_sixteen)(const uint8_t *block, size_t row, VEC *scales) {
    QUADS last[4], signs[4];
    VEC scale;
    SIMD(columns)(block + 194, row, last);
    SIMD(columns)(block + 192, row, signs);
    scale = SIMD(high_halves)(last[3]);
    VEC_UNROLL
    for (int i = 0; i < 16; i++)
        scales[i] = VEC_MUL(SUMS_FLOATS(SUMS_RIGHT(
                                QUADS_SUMS(QUADS_LEFT(signs[i / 4], 24 - 8 * (i % 4))), 24)),
                            scale);
}

/* Scales and minima of a block of 256. */
SIMD_EIGHT_FN BASE_INLINE void SIMD(eight_heads)(int type, const uint8_t *block, size_t row,
                                                 VEC *scales, VEC *minima) {
    if (type == BLOCK_Q6_K) SIMD(eight_sixteen)(block, row, scales);
    else SIMD(eight_sixes)(block, row, scales, minima);
}

/* out [8]: the 32 numbers of a part (a constant below 4) of a block's half of 128, whose bytes the
 * parts before it have left in `low` and `high`. */
SIMD_EIGHT_FN BASE_INLINE void SIMD(eight_part)(int type, const uint8_t *block, size_t row, int half,
                                                const int part, QUADS *low, QUADS *high, QUADS *out) {
    const bool six = type == BLOCK_Q6_K; /* four parts share 64 bytes of nibbles, else two 32 */
    const int bit = six ? part * 2 : part, second = six ? part / 2 : part % 2;
    const int8_t mask = six ? 48 : 16; /* of the higher bits */
    const uint8_t *at = block + (six ? 0 : type == BLOCK_Q4_K ? 16 : 48) + 64 * half;
    if (six && part < 2) SIMD(eight_bytes)(at + 32 * part, row, low + 8 * part);
    if (!six && !second) SIMD(eight_bytes)(at + 16 * part, row, low);
    if (six && part == 0) SIMD(eight_bytes)(block + 128 + 32 * half, row, high);
    if (type == BLOCK_Q5_K && part == 0 && !half) SIMD(eight_bytes)(block + 16, row, high);
    VEC_UNROLL
    for (int i = 0; i < 8; i++) {
        const QUADS of = low[six ? 8 * (part % 2) + i : i];
        out[i] = QUADS_AND(second ? QUADS_RIGHT(of, 4) : of, 15);
        if (type == BLOCK_Q4_K) continue;
        if (bit < 4) out[i] = QUADS_OR(out[i], QUADS_AND(QUADS_LEFT(high[i], 4 - bit), mask));
        else out[i] = QUADS_OR(out[i], QUADS_AND(QUADS_RIGHT(high[i], bit - 4), mask));
        if (!six && part == 3) high[i] = QUADS_RIGHT(high[i], 4); /* the other half's */
    }
}

/* A block of 256. */
SIMD_EIGHT_FN BASE_INLINE void SIMD(eight_large)(int type, const uint8_t *block, size_t row,
                                                 QUADS *out, VEC *scales, VEC *minima) {
    QUADS low[16], high[8];
    SIMD(eight_heads)(type, block, row, scales, minima);
    for (int half = 0; half < 2; half++) {
        VEC_UNROLL
        for (int part = 0; part < 4; part++, out += 8)
            SIMD(eight_part)(type, block, row, half, part, low, high, out);
    }
}

/* A block of any type. */
SIMD_EIGHT_FN BASE_INLINE void SIMD(eight_block)(int type, const uint8_t *block, size_t row,
                                                 QUADS *out, VEC *scales, VEC *minima) {
    if (SIMD_EIGHT_PARTS(type) == 8) SIMD(eight_large)(type, block, row, out, scales, minima);
    else SIMD(eight_small)(type, block, row, out, scales, minima);
}

#define SIMD_EIGHT_UNPACK(type, bytes) \
    SIMD_EIGHT_FN static void SIMD(eight_##type)(const uint8_t *w, size_t row, int count, \
                                                 SIMD(eight_run) *run) { \
        const int parts = SIMD_EIGHT_PARTS(BLOCK_##type); \
        for (int g = 0; g < count; g += parts, w += bytes) \
            SIMD(eight_block)(BLOCK_##type, w, row, run->numbers + 8 * g, \
                              run->scales + (BLOCK_##type == BLOCK_Q6_K ? 2 * g : g), \
                              run->minima + g); \
    }
SIMD_EIGHT_SMALL(SIMD_EIGHT_UNPACK)
SIMD_EIGHT_LARGE(SIMD_EIGHT_UNPACK)
#undef SIMD_EIGHT_UNPACK

/* ---- multiplying ------------------------------------------------------------------------------- */

/* Rows of x as they meet weights from some 32 on; `apart`: values from a row to the next. */
typedef struct SIMD(eight_row) {
    const int8_t *q;
    const float *scale, *lies;
    const int32_t *start;
    int64_t apart;
} SIMD(eight_row);

BASE_INLINE void SIMD(eight_advance)(SIMD(eight_row) *x, int64_t values) {
    x->q += values;
    x->scale += values / 32;
    x->lies += values / 32;
    x->start += values / 16;
}

/* total [rows] += `rows` (a constant) rows of x times 32 inputs. */
SIMD_EIGHT_FN BASE_INLINE void SIMD(eight_multiply)(const int rows, const bool minima,
                                                    const int halves, const bool wide,
                                                    const QUADS *numbers, const VEC *scales,
                                                    const VEC *minimum, const SIMD(eight_row) *x,
                                                    VEC *total) {
    VEC_UNROLL
    for (int h = 0; h < halves; h++) {
        SUMS whole[4];
        VEC_UNROLL
        for (int r = 0; r < rows; r++) whole[r] = SUMS_SET(x->start[r * (x->apart / 16) + h]);
        VEC_UNROLL
        for (int i = 8 / halves * h; i < 8 / halves * (h + 1); i++)
            VEC_UNROLL
            for (int r = 0; r < rows; r++)
                whole[r] = SIMD(dot)(wide, whole[r], numbers[i], x->q + r * x->apart + 4 * i);
        VEC_UNROLL
        for (int r = 0; r < rows; r++)
            total[r] = VEC_FMA(SUMS_FLOATS(whole[r]),
                               VEC_MUL(scales[h], VEC_SET(x->scale[r * (x->apart / 32)])),
                               total[r]);
    }
    if (!minima) return;
    VEC_UNROLL
    for (int r = 0; r < rows; r++)
        total[r] = VEC_FMA(*minimum, VEC_SET(x->lies[r * (x->apart / 32)]), total[r]);
}

/* One row times VEC_N outputs in blocks of 32, each as it is unpacked. The next outputs lie `ahead`
 * bytes on; they are fetched into the cache as they lie, since memory reads sixteen rows at once
 * badly. */
SIMD_EIGHT_FN BASE_INLINE void SIMD(eight_single)(int type, int bytes, const uint8_t *w, size_t row,
                                                  int count, size_t ahead, SIMD(eight_row) x,
                                                  float *sums) {
    const uint8_t *fetch = w + ahead;
    VEC total = VEC_SET(0.0f);
    for (int g = 0; g < count; g++, w += bytes, fetch += VEC_N * bytes) {
        QUADS numbers[8];
        VEC scale, minimum;
        SIMD(eight_small)(type, w, row, numbers, &scale, &minimum);
        for (int i = 0; i < VEC_N * bytes && ahead; i += 64) BASE_PREFETCH(fetch + i);
        SIMD(eight_multiply)(1, SIMD_EIGHT_MINIMA(type), 1, type == BLOCK_Q8_0, numbers, &scale,
                             &minimum, &x, &total);
        SIMD(eight_advance)(&x, 32);
    }
    VEC_STORE(sums, total);
}

/* The same in blocks of 256. */
SIMD_EIGHT_FN BASE_INLINE void SIMD(eight_single_large)(int type, int bytes, const uint8_t *w,
                                                        size_t row, int count, size_t ahead,
                                                        SIMD(eight_row) x, float *sums) {
    const int halves = type == BLOCK_Q6_K ? 2 : 1;
    const uint8_t *fetch = w + ahead;
    VEC total = VEC_SET(0.0f);
    for (int g = 0; g < count; g += 8, w += bytes) {
        QUADS numbers[8], low[16], high[8];
        VEC scales[16], minima[8];
        SIMD(eight_heads)(type, w, row, scales, minima);
        VEC_UNROLL
        for (int half = 0; half < 2; half++) {
            VEC_UNROLL
            for (int part = 0; part < 4; part++, fetch += VEC_N * bytes / 8) {
                const int at = 4 * half + part;
                for (int i = 0; i < VEC_N * bytes / 8 && ahead; i += 64) BASE_PREFETCH(fetch + i);
                SIMD(eight_part)(type, w, row, half, part, low, high, numbers);
                SIMD(eight_multiply)(1, SIMD_EIGHT_MINIMA(type), halves, false, numbers,
                                     scales + at * halves, minima + at, &x, &total);
                SIMD(eight_advance)(&x, 32);
            }
        }
    }
    VEC_STORE(sums, total);
}

#define SIMD_EIGHT_SINGLE(type, bytes) \
    SIMD_EIGHT_FN static void SIMD(single_##type)(const uint8_t *w, size_t row, int count, \
                                                  size_t ahead, SIMD(eight_row) x, float *sums) { \
        if (SIMD_EIGHT_PARTS(BLOCK_##type) == 8) \
            SIMD(eight_single_large)(BLOCK_##type, bytes, w, row, count, ahead, x, sums); \
        else SIMD(eight_single)(BLOCK_##type, bytes, w, row, count, ahead, x, sums); \
    }
SIMD_EIGHT_SMALL(SIMD_EIGHT_SINGLE)
SIMD_EIGHT_LARGE(SIMD_EIGHT_SINGLE)
#undef SIMD_EIGHT_SINGLE

/* sums [rows, VEC_N] += `rows` rows of x times a run. */
SIMD_EIGHT_FN BASE_INLINE void SIMD(eight_several)(const int rows, const bool minima,
                                                   const int halves, const bool wide,
                                                   const SIMD(eight_run) *run, int count,
                                                   SIMD(eight_row) x, float *sums) {
    VEC total[4];
    VEC_UNROLL
    for (int r = 0; r < rows; r++) total[r] = VEC_LOAD(sums + r * VEC_N);
    for (int g = 0; g < count; g++) {
        SIMD(eight_multiply)(rows, minima, halves, wide, run->numbers + 8 * g,
                             run->scales + g * halves, run->minima + g, &x, total);
        SIMD(eight_advance)(&x, 32);
    }
    VEC_UNROLL
    for (int r = 0; r < rows; r++) VEC_STORE(sums + r * VEC_N, total[r]);
}

typedef void SIMD(eight_function)(const SIMD(eight_run) *run, int count, SIMD(eight_row) x,
                                  float *sums);
#define SIMD_EIGHT_INSTANCE(name, rows, minima, halves, wide) \
    SIMD_EIGHT_FN static void SIMD(name##_##rows)(const SIMD(eight_run) *run, int count, \
                                                  SIMD(eight_row) x, float *sums) { \
        SIMD(eight_several)(rows, minima, halves, wide, run, count, x, sums); \
    }
SIMD_EIGHT_INSTANCE(eight_plain, 1, false, 1, false)
SIMD_EIGHT_INSTANCE(eight_plain, 4, false, 1, false)
SIMD_EIGHT_INSTANCE(eight_minima, 1, true, 1, false)
SIMD_EIGHT_INSTANCE(eight_minima, 4, true, 1, false)
SIMD_EIGHT_INSTANCE(eight_halves, 1, false, 2, false)
SIMD_EIGHT_INSTANCE(eight_halves, 4, false, 2, false)
SIMD_EIGHT_INSTANCE(eight_wide, 1, false, 1, true)
SIMD_EIGHT_INSTANCE(eight_wide, 4, false, 1, true)
#undef SIMD_EIGHT_INSTANCE

/* What a type is made of. */
typedef struct SIMD(eight_kind) {
    int type, bytes, parts;
    void (*unpack)(const uint8_t *w, size_t row, int count, SIMD(eight_run) *run);
    void (*single)(const uint8_t *w, size_t row, int count, size_t ahead, SIMD(eight_row) x,
                   float *sums);
    SIMD(eight_function) *one, *four;
} SIMD(eight_kind);

/* NULL: it has no whole numbers. */
SIMD_EIGHT_FN static const SIMD(eight_kind) *SIMD(eight_kind_of)(int type) {
#define SIMD_EIGHT_ROWS(type, rows) \
    ((type) == BLOCK_Q8_0 ? SIMD(eight_wide_##rows) : (type) == BLOCK_Q6_K ? \
     SIMD(eight_halves_##rows) : SIMD_EIGHT_MINIMA(type) ? SIMD(eight_minima_##rows) : \
     SIMD(eight_plain_##rows))
#define SIMD_EIGHT_KIND(name, bytes) \
    {BLOCK_##name, bytes, SIMD_EIGHT_PARTS(BLOCK_##name), SIMD(eight_##name), SIMD(single_##name), \
     SIMD_EIGHT_ROWS(BLOCK_##name, 1), SIMD_EIGHT_ROWS(BLOCK_##name, 4)},
    static const SIMD(eight_kind) kinds[] = {
        SIMD_EIGHT_SMALL(SIMD_EIGHT_KIND) SIMD_EIGHT_LARGE(SIMD_EIGHT_KIND)};
#undef SIMD_EIGHT_KIND
#undef SIMD_EIGHT_ROWS
    for (size_t i = 0; i < BASE_COUNT(kinds); i++)
        if (kinds[i].type == type) return &kinds[i];
    return NULL;
}

/* sums [rows, VEC_N]: the rows of x times the outputs from w on. What is read next is fetched as in
 * eight_single. */
SIMD_EIGHT_FN static void SIMD(eight_tile)(const SIMD(eight_kind) *kind, const uint8_t *w, size_t row,
                                           const simd_eight *x, SIMD(eight_row) at, float *sums) {
    const int all = x->n / 32;
    const uint8_t *fetch = w + VEC_N * row;
    SIMD(eight_run) run;
    memset(sums, 0, (size_t)x->rows * VEC_N * sizeof *sums);
    for (int g = 0, count; g < all; g += count) {
        SIMD(eight_row) from = at;
        int bytes;
        count = all - g < SIMD(EIGHT_RUN) ? all - g : SIMD(EIGHT_RUN);
        bytes = count / kind->parts * kind->bytes;
        kind->unpack(w, row, count, &run);
        for (int i = 0; i < VEC_N * bytes && row; i += 64) BASE_PREFETCH(fetch + i);
        for (int r = 0, some; r < x->rows; r += some) {
            some = x->rows - r < 4 ? 1 : 4;
            (some == 4 ? kind->four : kind->one)(&run, count, from, sums + r * VEC_N);
            SIMD(eight_advance)(&from, some * at.apart);
        }
        SIMD(eight_advance)(&at, 32 * count);
        w += bytes, fetch += VEC_N * bytes;
    }
}

/* y [rows, outs] = or += the rows of x times w [outs, n]^T; x is rounded for the type. sums [rows *
 * SIMD_MAX_LANES] */
SIMD_EIGHT_FN static void SIMD(product_eight)(int type, const uint8_t *w, int outs,
                                              const simd_eight *x, float *y, int64_t y_stride,
                                              bool add, float *sums) {
    const SIMD(eight_kind) *kind = SIMD(eight_kind_of)(type);
    const SIMD(eight_row) at = {x->q, x->scale, x->lies, x->start, x->n};
    const size_t row = (size_t)(x->n / 32 / kind->parts) * (size_t)kind->bytes;
    for (int o = 0, some; o < outs; o += some, w += (size_t)some * row) {
        some = outs - o < VEC_N ? 1 : VEC_N; /* the last ones singly: all lanes the same output */
        if (x->rows == 1)
            kind->single(w, some == 1 ? 0 : row, x->n / 32, some == 1 ? 0 : VEC_N * row, at, sums);
        else SIMD(eight_tile)(kind, w, some == 1 ? 0 : row, x, at, sums);
        for (int r = 0; r < x->rows; r++)
            for (int i = 0; i < some; i++) {
                float *to = y + r * y_stride + o + i;
                *to = add ? *to + sums[r * VEC_N + i] : sums[r * VEC_N + i];
            }
    }
}

/* ---- rounding ---------------------------------------------------------------------------------- */

/* x [n], n a multiple of 32, for products with weights of the type -> q [n], scale and lies [n / 32]:
 * a 32's scale, and that times the sum of its q; start [n / 16]: with what its sums of whole numbers
 * begin, of each 16 where scales are. What is not finite makes its scale so too. False, and nothing
 * done, for a type that has no whole numbers. */
SIMD_EIGHT_FN static bool SIMD(round_eight)(int type, const float *x, int n, int8_t *q, float *scale,
                                            float *lies, int32_t *start) {
    const QUADS one = QUADS_SET(0x01010101);
    if (!SIMD(eight_kind_of)(type)) return false;
    for (int i = 0; i < n; i += 32, scale++, lies++, start += 2) {
        VEC most = VEC_SET(0.0f), bad = VEC_SET(0.0f);
        float largest, factor, flaw[4];
        int32_t sum[2];
        for (int j = 0; j < 32; j += VEC_N) {
            VEC v = VEC_LOAD(x + i + j);
            most = VEC_MAX(most, VEC_MAX(v, VEC_SUB(VEC_SET(0.0f), v)));
            bad = VEC_FMA(v, VEC_SET(0.0f), bad);
        }
        SIMD(sum4)(flaw, bad, bad, bad, bad);
        largest = SIMD(top)(most);
        factor = largest > 1e-30f ? 127.0f / largest : 0.0f; /* finite */
        for (int j = 0; j < 32; j += VEC_N)
            SIMD(store_bytes)(q + i + j, VEC_ROUND(VEC_MUL(VEC_LOAD(x + i + j), VEC_SET(factor))));
        for (int j = 0; j < 2; j++) {
            SUMS all = SUMS_SET(0);
            for (int k = 0; k < 16; k += 4)
                all = SIMD(dot)(false, all, one, q + i + 16 * j + k);
            sum[j] = SUMS_FIRST(all);
        }
        *scale = largest / 127.0f + flaw[0];
        *lies = *scale * (float)(sum[0] + sum[1]);
        start[0] = -SIMD_EIGHT_LESS(type) * (sum[0] + (type == BLOCK_Q6_K ? 0 : sum[1]));
        start[1] = -SIMD_EIGHT_LESS(type) * sum[1];
    }
    return true;
}

#undef SIMD_PARTS
#undef SIMD_EIGHT_LESS
#undef SIMD_EIGHT_MINIMA
#undef SIMD_EIGHT_PARTS
#undef SIMD_EIGHT_SMALL
#undef SIMD_EIGHT_LARGE
