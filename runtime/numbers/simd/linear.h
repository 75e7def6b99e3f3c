/* simd/linear: products with weights in GGUF blocks, once per level.
 *
 * Every sum of an output element runs over the input in the same order (VEC_N interleaved partial
 * sums, ascending, then sum4), whichever kernel makes it: so a row's result depends neither on
 * how many rows ride along nor on how the outputs are divided. Weights are dequantised exactly as
 * block_dequantize does it. */

#define SIMD_BLOCK_VECS (32 / VEC_N)

/* ---- blocks whose parts of 32 values have heads of their own ---------------------------------- */

/* Parts of a block that go this way; 0: another way. */
#define SIMD_PARTS(type) ((type) == BLOCK_Q5_0 || (type) == BLOCK_Q5_1 ? 1 : \
                          (type) == BLOCK_Q4_K || (type) == BLOCK_Q5_K || (type) == BLOCK_Q6_K ? 8 : 0)

enum { SIMD(MINIMA) = 24 }; /* where the minima stand in heads */

/* heads [32] of one block: of part p a scale at p and a minimum at MINIMA + p; of Q6_K 16 scales of
 * 16 values. */
SIMD_FN BASE_INLINE void SIMD(part_heads)(int type, const uint8_t *block, float *heads) {
    uint32_t words[4] = {0};
    if (type == BLOCK_Q6_K) {
        const VEC factor = VEC_SET(VEC_HALF1((uint16_t)block_load16(block + 208)));
        for (int i = 0; i < 16; i += VEC_N)
            VEC_STORE(heads + i, VEC_MUL(VEC_BYTES(block + 192 + i), factor));
    } else if (type == BLOCK_Q4_K || type == BLOCK_Q5_K) {
        const float scale = VEC_HALF1((uint16_t)block_load16(block));
        const float minimum = -VEC_HALF1((uint16_t)block_load16(block + 2));
        uint8_t six[16]; /* block_parts' numbers: eight of scales, eight of minima */
        memcpy(words, block + 4, 12);
        words[3] = (words[2] >> 4 & 0x0f0f0f0fu) | (words[1] >> 6 & 0x03030303u) << 4;
        words[2] = (words[2] & 0x0f0f0f0fu) | (words[0] >> 6 & 0x03030303u) << 4;
        words[0] &= 0x3f3f3f3fu;
        words[1] &= 0x3f3f3f3fu;
        memcpy(six, words, 4), memcpy(six + 4, words + 2, 4);
        memcpy(six + 8, words + 1, 4), memcpy(six + 12, words + 3, 4);
        for (int i = 0; i < 16; i += VEC_N) {
            VEC_STORE(heads + i, VEC_MUL(VEC_BYTES(six + i), VEC_SET(scale)));
            VEC_STORE(heads + 16 + i, VEC_MUL(VEC_BYTES(six + i), VEC_SET(minimum)));
        }
    } else {
        heads[0] = VEC_HALF1((uint16_t)block_load16(block));
        if (type == BLOCK_Q5_1)
            heads[SIMD(MINIMA)] = VEC_HALF1((uint16_t)block_load16(block + 2));
    }
}

#if !VEC_NUMBERS
/* n [32]: the whole numbers of a part, from 0, or signed where the type has no minimum. */
SIMD_FN BASE_INLINE void SIMD(part_numbers)(int type, const uint8_t *block, int part, uint8_t *n) {
    if (type == BLOCK_Q6_K) {
        const uint8_t *low = block + part / 4 * 64 + part % 2 * 32;
        const uint8_t *high = block + 128 + part / 4 * 32;
        const int shift = part % 4 / 2 * 4, bits = part % 4 * 2;
        for (int i = 0; i < 32; i++)
            n[i] = (uint8_t)(((low[i] >> shift & 15) | (high[i] >> bits & 3) << 4) - 32);
    } else if (type == BLOCK_Q4_K || type == BLOCK_Q5_K) {
        const uint8_t *low = block + (type == BLOCK_Q4_K ? 16 : 48) + part / 2 * 32;
        const int shift = part % 2 * 4;
        for (int i = 0; i < 32; i++) n[i] = (uint8_t)(low[i] >> shift & 15);
        for (int i = 0; i < 32 && type == BLOCK_Q5_K; i++)
            n[i] = (uint8_t)(n[i] | (block[16 + i] >> part & 1) << 4);
    } else {
        const int head = type == BLOCK_Q5_1 ? 4 : 2, less = type == BLOCK_Q5_1 ? 0 : 16;
        for (int i = 0; i < 32; i++) {
            int low = block[head + 4 + i % 16] >> (i < 16 ? 0 : 4) & 15;
            n[i] = (uint8_t)((low | (block[head + i / 8] >> i % 8 & 1) << 4) - less);
        }
    }
}

/* w [SIMD_BLOCK_VECS]: those numbers. */
SIMD_FN BASE_INLINE void SIMD(numbers)(int type, const uint8_t *block, int part, VEC *w) {
    uint8_t n[32];
    SIMD(part_numbers)(type, block, part, n);
    VEC_UNROLL
    for (int v = 0; v < SIMD_BLOCK_VECS; v++) w[v] = VEC_BYTES(n + v * VEC_N);
}
#endif

/* w [SIMD_BLOCK_VECS]: the values of one part. */
SIMD_FN BASE_INLINE void SIMD(block_part)(int type, const uint8_t *block, int part, const float *heads,
                                    VEC *w) {
    SIMD(numbers)(type, block, part, w);
    VEC_UNROLL
    for (int v = 0; v < SIMD_BLOCK_VECS; v++) {
        if (type == BLOCK_Q6_K) w[v] = VEC_MUL(w[v], VEC_SET(heads[2 * part + v * VEC_N / 16]));
        else if (type == BLOCK_Q5_0) w[v] = VEC_MUL(w[v], VEC_SET(heads[0]));
        else w[v] = VEC_FMA(w[v], VEC_SET(heads[part]), VEC_SET(heads[SIMD(MINIMA) + part]));
    }
}

SIMD_FN BASE_INLINE void SIMD(dequantize_parts)(int type, int bytes, const uint8_t *blocks,
                                                float *out, int64_t values) {
    for (int64_t i = 0; i < values; i += 32 * SIMD_PARTS(type), blocks += bytes) {
        float heads[32];
        SIMD(part_heads)(type, blocks, heads);
        for (int part = 0; part < SIMD_PARTS(type); part++) {
            VEC w[SIMD_BLOCK_VECS];
            SIMD(block_part)(type, blocks, part, heads, w);
            VEC_UNROLL
            for (int v = 0; v < SIMD_BLOCK_VECS; v++)
                VEC_STORE(out + i + 32 * part + v * VEC_N, w[v]);
        }
    }
}

/* ---- blocks with one head ---------------------------------------------------------------------- */

/* Floats of a block's head: (scale, minimum), or the scale alone. */
#define SIMD_HEAD(type) ((type) == BLOCK_Q8_0 ? 1 : 2)

/* heads [count, SIMD_HEAD(type)] of the blocks from `blocks` on; writes up to a multiple of 16. */
SIMD_FN BASE_INLINE void SIMD(heads)(int type, const uint8_t *blocks, int count, float *heads) {
#if VEC_HEADS
    for (int i = 0; i < count; i += 16) {
        int some = count - i < 16 ? count - i : 16;
        if (type == BLOCK_Q4_1) SIMD(heads16_q4_1)(blocks + 20 * i, some, heads + 2 * i);
        else if (type == BLOCK_Q4_0) SIMD(heads16_q4_0)(blocks + 18 * i, some, heads + 2 * i);
        else SIMD(heads16_q8_0)(blocks + 34 * i, some, heads + i);
    }
#else
    int bytes = type == BLOCK_Q4_1 ? 20 : type == BLOCK_Q4_0 ? 18 : 34;
    for (int i = 0; i < count; i++, blocks += bytes) {
        uint16_t half[2];
        memcpy(half, blocks, sizeof half);
        heads[i * SIMD_HEAD(type)] = VEC_HALF1(half[0]);
        if (type == BLOCK_Q4_1) heads[2 * i + 1] = VEC_HALF1(half[1]);
        if (type == BLOCK_Q4_0) heads[2 * i + 1] = -8.0f * heads[2 * i];
    }
#endif
}

/* w [SIMD_BLOCK_VECS]: the values of the numbers of one block, of 4 bits or 8, by its head. */
SIMD_FN BASE_INLINE void SIMD(block)(const bool nibbles, const uint8_t *numbers, const float *head,
                                     VEC *w) {
    if (nibbles) {
        SIMD(nibbles)(numbers, head[0], head[1], w);
    } else {
        VEC_UNROLL
        for (int v = 0; v < SIMD_BLOCK_VECS; v++)
            w[v] = VEC_MUL(VEC_BYTES(numbers + v * VEC_N), VEC_SET(head[0]));
    }
}

SIMD_FN BASE_INLINE void SIMD(dequantize_blocks)(int type, int bytes, const uint8_t *blocks,
                                                 float *out, int64_t values) {
    float heads[2 * SIMD_HEADS]; /* a multiple of 16 blocks */
    for (int64_t i = 0; i < values; i += 32 * SIMD_HEADS) {
        int64_t left = (values - i) / 32;
        int count = left < SIMD_HEADS ? (int)left : SIMD_HEADS;
        SIMD(heads)(type, blocks, count, heads);
        for (int b = 0; b < count; b++, blocks += bytes, out += 32) {
            VEC w[SIMD_BLOCK_VECS];
            SIMD(block)(type != BLOCK_Q8_0, blocks + (type == BLOCK_Q4_1 ? 4 : 2),
                        heads + b * SIMD_HEAD(type), w);
            VEC_UNROLL
            for (int v = 0; v < SIMD_BLOCK_VECS; v++) VEC_STORE(out + v * VEC_N, w[v]);
        }
    }
}

/* blocks: `values` of the type -> out [values], as the type's block_dequantize. */
SIMD_FN static void SIMD(dequantize)(int type, const uint8_t *blocks, float *out, int64_t values) {
    switch (type) {
    case BLOCK_Q4_0: SIMD(dequantize_blocks)(BLOCK_Q4_0, 18, blocks, out, values); return;
    case BLOCK_Q4_1: SIMD(dequantize_blocks)(BLOCK_Q4_1, 20, blocks, out, values); return;
    case BLOCK_Q8_0: SIMD(dequantize_blocks)(BLOCK_Q8_0, 34, blocks, out, values); return;
    case BLOCK_Q5_0: SIMD(dequantize_parts)(BLOCK_Q5_0, 22, blocks, out, values); return;
    case BLOCK_Q5_1: SIMD(dequantize_parts)(BLOCK_Q5_1, 24, blocks, out, values); return;
    case BLOCK_Q4_K: SIMD(dequantize_parts)(BLOCK_Q4_K, 144, blocks, out, values); return;
    case BLOCK_Q5_K: SIMD(dequantize_parts)(BLOCK_Q5_K, 176, blocks, out, values); return;
    case BLOCK_Q6_K: SIMD(dequantize_parts)(BLOCK_Q6_K, 210, blocks, out, values); return;
    case BLOCK_F32: memcpy(out, blocks, (size_t)values * sizeof *out); return;
    case BLOCK_F16: SIMD(of_half)((const uint16_t *)(const void *)blocks, out, (int)values); return;
    case BLOCK_BF16:
        SIMD(of_bf16)((const uint16_t *)(const void *)blocks, out, (int)values);
        return;
    default: block_find(type)->dequantize(blocks, out, values);
    }
}

/* y [row][0..outs) = or += sums [row][out] */
SIMD_FN BASE_INLINE void SIMD(put4)(float *y, int outs, bool add, VEC a, VEC b, VEC c, VEC d) {
    float sums[4];
    if (outs == 4 && !add) {
        SIMD(sum4)(y, a, b, c, d);
        return;
    }
    SIMD(sum4)(sums, a, b, c, d);
    for (int o = 0; o < outs; o++) y[o] = add ? y[o] + sums[o] : sums[o];
}

/* One tile: `rows` (a constant) rows of x against outs <= 4 rows of w, n values each, in f32. */
SIMD_FN BASE_INLINE void SIMD(tile)(const int rows, const float *w, int64_t w_stride, int outs,
                                    const float *x, int64_t x_stride, int n, float *y,
                                    int64_t y_stride, bool add) {
    const float *w1 = w + (outs > 1 ? w_stride : 0), *w2 = w + (outs > 2 ? 2 * w_stride : 0),
                *w3 = w + (outs > 3 ? 3 * w_stride : 0);
    VEC sum[4][VEC_ROWS];
    int i, r;
    BASE_UNROLL
    for (r = 0; r < rows; r++) sum[0][r] = sum[1][r] = sum[2][r] = sum[3][r] = VEC_SET(0.0f);
    for (i = 0; i + VEC_N <= n; i += VEC_N) {
        VEC a = VEC_LOAD(w + i), b = VEC_LOAD(w1 + i), c = VEC_LOAD(w2 + i), d = VEC_LOAD(w3 + i);
        BASE_UNROLL
        for (r = 0; r < rows; r++) {
            VEC v = VEC_LOAD(x + r * x_stride + i);
            sum[0][r] = VEC_FMA(a, v, sum[0][r]);
            sum[1][r] = VEC_FMA(b, v, sum[1][r]);
            sum[2][r] = VEC_FMA(c, v, sum[2][r]);
            sum[3][r] = VEC_FMA(d, v, sum[3][r]);
        }
    }
    if (i < n) {
        VEC a = VEC_PART(w + i, n - i), b = VEC_PART(w1 + i, n - i), c = VEC_PART(w2 + i, n - i),
            d = VEC_PART(w3 + i, n - i);
        BASE_UNROLL
        for (r = 0; r < rows; r++) {
            VEC v = VEC_PART(x + r * x_stride + i, n - i);
            sum[0][r] = VEC_FMA(a, v, sum[0][r]);
            sum[1][r] = VEC_FMA(b, v, sum[1][r]);
            sum[2][r] = VEC_FMA(c, v, sum[2][r]);
            sum[3][r] = VEC_FMA(d, v, sum[3][r]);
        }
    }
    BASE_UNROLL
    for (r = 0; r < rows; r++)
        SIMD(put4)(y + r * y_stride, outs, add, sum[0][r], sum[1][r], sum[2][r], sum[3][r]);
}

/* y [rows, outs] = or += x [rows, n] . w [outs, n]^T; w is a panel in f32. */
SIMD_FN static void SIMD(panel)(const float *w, int outs, const float *x, int64_t x_stride,
                                int rows, int n, float *y, int64_t y_stride, bool add) {
    for (int r = 0; r < rows; r += VEC_ROWS, x += VEC_ROWS * x_stride, y += VEC_ROWS * y_stride)
        for (int o = 0; o < outs; o += 4) {
            const float *at = w + (int64_t)o * n;
            int some = outs - o < 4 ? outs - o : 4;
#define SIMD_TILE(count) \
    SIMD(tile)(count, at, n, some, x, x_stride, n, y + o, y_stride, add)
            switch (rows - r) {
            case 1: SIMD_TILE(1); break;
#if VEC_ROWS > 2
            case 2: SIMD_TILE(2); break;
            case 3: SIMD_TILE(3); break;
#endif
#if VEC_ROWS > 4
            case 4: SIMD_TILE(4); break;
            case 5: SIMD_TILE(5); break;
#endif
            default: SIMD_TILE(VEC_ROWS);
            }
#undef SIMD_TILE
        }
}

#if VEC_N > 1
/* Rows of weights whose sums with `rows` rows of x stay in registers: 8, 4, 2 or 1. */
#define SIMD_OUTS(rows) \
    (8 * (rows) <= VEC_SUMS ? 8 : 4 * (rows) <= VEC_SUMS ? 4 : 2 * (rows) <= VEC_SUMS ? 2 : 1)

/* Where a few rows of x meet eight rows of w, in blocks with one head: of 4 bits (any minimum) or
 * of 8. */
typedef struct SIMD(few_job) {
    const uint8_t *w;   /* the numbers of the first block */
    size_t bytes, row;  /* from block to block, from row to row of w */
    int blocks;
    const float *heads; /* [8, blocks, 2 or 1] */
    const float *x;     /* [blocks, rows, 32] */
    size_t ahead;       /* so many bytes further lies what is fetched meanwhile */
    bool begins;        /* sums: else they go on */
} SIMD(few_job);

/* sum [outs, rows] += rows of x against `outs` rows of w from `first` on; outs, rows and nibbles
 * are constants. */
SIMD_FN BASE_INLINE void SIMD(few_some)(const bool nibbles, const int outs, const int rows,
                                        const SIMD(few_job) *f, int first, VEC *sum) {
    /* Two bases and their multiples, so that eight rows need few registers. */
    const size_t row = f->row, row3 = 3 * row, next = (size_t)f->blocks * (nibbles ? 2 : 1);
    const size_t next3 = 3 * next, bytes = f->bytes;
    const int read = outs * (nibbles ? 20 : 34); /* bytes of a round */
    const int together = VEC_TOGETHER < outs ? VEC_TOGETHER : outs;
    const uint8_t *low = f->w + (size_t)first * row, *high = low + 4 * row;
    const uint8_t *fetch = f->w + f->ahead + (size_t)(first * f->blocks) * bytes;
    const float *heads = f->heads + (size_t)first * next, *high_heads = heads + 4 * next;
    const float *x = f->x;
    for (int b = 0; b < f->blocks; b++) {
        VEC_UNROLL
        for (int group = 0; group < outs; group += together) {
            VEC w[VEC_TOGETHER][SIMD_BLOCK_VECS];
            VEC_UNROLL
            for (int i = 0; i < together; i++) {
                const int o = group + i;
                const size_t at = (o & 3) == 3 ? row3 : (size_t)(o & 3) * row;
                const float *head = (o < 4 ? heads : high_heads) +
                                    ((o & 3) == 3 ? next3 : (size_t)(o & 3) * next);
                SIMD(block)(nibbles, (o < 4 ? low : high) + at, head, w[i]);
            }
            VEC_UNROLL
            for (int v = 0; v < SIMD_BLOCK_VECS; v++) {
                VEC_UNROLL
                for (int r = 0; r < rows; r++) {
                    const VEC of = VEC_LOAD(x + 32 * r + v * VEC_N);
                    VEC_UNROLL
                    for (int i = 0; i < together; i++)
                        sum[(group + i) * rows + r] = VEC_FMA(w[i][v], of, sum[(group + i) * rows + r]);
                }
            }
        }
        BASE_PREFETCH(fetch);
        if (read > 64) BASE_PREFETCH(fetch + 64);
        if (read > 128) BASE_PREFETCH(fetch + 128);
        if (read > 192) BASE_PREFETCH(fetch + 192);
        if (read > 256) BASE_PREFETCH(fetch + 256);
        fetch += (size_t)outs * bytes;
        low += bytes;
        high += bytes;
        heads += nibbles ? 2 : 1;
        high_heads += nibbles ? 2 : 1;
        x += 32 * rows;
    }
}

/* sum [8, rows] += rows of x against the eight rows of w. */
SIMD_FN BASE_INLINE void SIMD(few_eight)(const bool nibbles, const int rows, const SIMD(few_job) *f,
                                         VEC *sum) {
    const int outs = SIMD_OUTS(rows);
    for (int first = 0; first < 8; first += outs) {
        VEC some[SIMD_OUTS(rows) * rows];
        BASE_UNROLL
        for (int i = 0; i < outs * rows; i++) some[i] = f->begins ? VEC_SET(0.0f) : sum[first * rows + i];
        SIMD(few_some)(nibbles, outs, rows, f, first, some);
        BASE_UNROLL
        for (int i = 0; i < outs * rows; i++) sum[first * rows + i] = some[i];
    }
}

#define SIMD_EACH_FEW(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) /* up to SIMD_FEW */
#define SIMD_INSTANCE(rows) \
    SIMD_FN static void SIMD(nibbles_##rows)(const SIMD(few_job) *f, VEC *sum) { \
        SIMD(few_eight)(true, rows, f, sum); \
    } \
    SIMD_FN static void SIMD(bytes_##rows)(const SIMD(few_job) *f, VEC *sum) { \
        SIMD(few_eight)(false, rows, f, sum); \
    }
SIMD_EACH_FEW(SIMD_INSTANCE)
#undef SIMD_INSTANCE

SIMD_FN static void SIMD(few_run)(int type, int rows, const SIMD(few_job) *f, VEC *sum) {
    typedef void run(const SIMD(few_job) *f, VEC *sum);
#define SIMD_INSTANCE(rows) SIMD(nibbles_##rows), SIMD(bytes_##rows),
    static run *const runs[] = {SIMD_EACH_FEW(SIMD_INSTANCE)};
#undef SIMD_INSTANCE
    runs[2 * (rows - 1) + (type == BLOCK_Q8_0)](f, sum);
}

/* Blocks at a time, so that x stays in a first cache of 32 KiB. */
#define SIMD_CHUNK(rows) ((rows) > 2 && !VEC_HEADS ? SIMD_HEADS / 4 : (rows) > 5 ? 24 : SIMD_HEADS)

/* y [rows, 8] = or += x . w [8, n]^T; x as SIMD(pack) lays it. */
SIMD_FN static void SIMD(few_rows)(int type, int bytes, const uint8_t *w, const float *x, int rows,
                                   int n, float *y, int64_t y_stride, bool add) {
    const int blocks = n / 32, head = type == BLOCK_Q4_1 ? 4 : 2, some = SIMD_CHUNK(rows);
    const size_t row = (size_t)blocks * (size_t)bytes;
    float heads[8 * SIMD_HEADS * 2 + 32];
    VEC sum[8 * SIMD_FEW];
    for (int i = 0; i < blocks; i += some) {
        const int count = blocks - i < some ? blocks - i : some;
        if (count == blocks) SIMD(heads)(type, w, 8 * blocks, heads); /* one run of blocks */
        else
            for (int o = 0; o < 8; o++) /* ascending: what one writes too much the next replaces */
                SIMD(heads)(type, w + (size_t)o * row + i * bytes, count, heads + o * count * SIMD_HEAD(type));
        const SIMD(few_job) f = {w + head + i * bytes, (size_t)bytes, row, count, heads, x + (int64_t)i * 32 * rows,
                                 8 * row + 7 * (size_t)(i * bytes), i == 0};
        SIMD(few_run)(type, rows, &f, sum);
    }
    for (int r = 0; r < rows; r++, y += y_stride)
        for (int o = 0; o < 8; o += 4) {
            const VEC *of = sum + o * rows + r;
            SIMD(put4)(y + o, 4, add, of[0], of[rows], of[2 * rows], of[3 * rows]);
        }
}

/* y [8] = or += one row of x against eight rows of w, in blocks of parts. */
SIMD_FN BASE_INLINE void SIMD(eight_parts)(int type, int bytes, const uint8_t *w, const float *x, int n,
                                      float *y, bool add) {
    const int blocks = n / (32 * SIMD_PARTS(type));
    const size_t row = (size_t)blocks * (size_t)bytes;
    float heads[8 * 32];
    VEC sum[8];
    BASE_UNROLL
    for (int o = 0; o < 8; o++) sum[o] = VEC_SET(0.0f);
    for (int b = 0; b < blocks; b++, w += bytes) {
        for (int o = 0; o < 8; o++) {
            const uint8_t *block = w + (size_t)o * row;
            SIMD(part_heads)(type, block, heads + 32 * o);
            for (int i = 0; i < bytes; i += 64) BASE_PREFETCH(block + 8 * row + i);
        }
        for (int part = 0; part < SIMD_PARTS(type); part++, x += 32) {
            VEC_UNROLL
            for (int o = 0; o < 8; o++) {
                VEC values[SIMD_BLOCK_VECS];
                SIMD(block_part)(type, w + (size_t)o * row, part, heads + 32 * o, values);
                VEC_UNROLL
                for (int v = 0; v < SIMD_BLOCK_VECS; v++)
                    sum[o] = VEC_FMA(values[v], VEC_LOAD(x + v * VEC_N), sum[o]);
            }
        }
    }
    SIMD(put4)(y, 4, add, sum[0], sum[1], sum[2], sum[3]);
    SIMD(put4)(y + 4, 4, add, sum[4], sum[5], sum[6], sum[7]);
}

#define SIMD_EIGHT_PARTS(type, bytes)                                                             \
    SIMD_FN static int SIMD(rows_##type)(const uint8_t *w, int outs, const float *x, int n, float *y, \
                                         bool add) {                                              \
        const size_t row = (size_t)(n / (32 * SIMD_PARTS(BLOCK_##type))) * bytes;                 \
        int o = 0;                                                                                \
        for (; o + 8 <= outs; o += 8, w += 8 * row)                                               \
            SIMD(eight_parts)(BLOCK_##type, bytes, w, x, n, y + o, add);                          \
        return o;                                                                                 \
    }
SIMD_EIGHT_PARTS(Q5_0, 22)
SIMD_EIGHT_PARTS(Q5_1, 24)
SIMD_EIGHT_PARTS(Q4_K, 144)
SIMD_EIGHT_PARTS(Q5_K, 176)
SIMD_EIGHT_PARTS(Q6_K, 210)
#undef SIMD_EIGHT_PARTS

/* Rows that are a power of two apart would meet in few sets of the cache: they are laid together,
 * [n / 32, rows, 32]. */
SIMD_FN static void SIMD(pack)(const float *x, int64_t x_stride, int rows, int n, float *packed) {
    for (int i = 0; i < n; i += 32)
        for (int r = 0; r < rows; r++, packed += 32) memcpy(packed, x + r * x_stride + i, 32 * sizeof *packed);
}

/* y [rows, outs] = or += x [rows, n] . w [outs, n]^T for eights of outs; packed [rows * n]. */
SIMD_FN static void SIMD(few_blocks)(int type, int bytes, const uint8_t *w, int outs, const float *x,
                                     int64_t x_stride, int rows, int n, float *y, int64_t y_stride,
                                     bool add, float *packed) {
    const size_t row = (size_t)(n / 32) * (size_t)bytes;
    if (rows > 1) SIMD(pack)(x, x_stride, rows, n, packed), x = packed;
    for (int o = 0; o < outs; o += 8)
        SIMD(few_rows)(type, bytes, w + (size_t)o * row, x, rows, n, y + o, y_stride, add);
}

/* The same; returns how many outs it made: 0 for a type or so many rows that are not its own. */
SIMD_FN static int SIMD(few)(int type, const uint8_t *w, int outs, const float *x,
                             int64_t x_stride, int rows, int n, float *y, int64_t y_stride,
                             bool add, float *packed) {
    const int bytes = type == BLOCK_Q4_1 ? 20 : type == BLOCK_Q4_0 ? 18 : 34;
    if (type == BLOCK_Q4_1 || type == BLOCK_Q4_0 || type == BLOCK_Q8_0) {
        if (rows > SIMD_FEW) return 0;
        outs &= ~7;
        SIMD(few_blocks)(type, bytes, w, outs, x, x_stride, rows, n, y, y_stride, add, packed);
        return outs;
    }
    if (rows > 1) return 0;
    switch (type) {
    case BLOCK_Q5_0: return SIMD(rows_Q5_0)(w, outs, x, n, y, add);
    case BLOCK_Q5_1: return SIMD(rows_Q5_1)(w, outs, x, n, y, add);
    case BLOCK_Q4_K: return SIMD(rows_Q4_K)(w, outs, x, n, y, add);
    case BLOCK_Q5_K: return SIMD(rows_Q5_K)(w, outs, x, n, y, add);
    case BLOCK_Q6_K: return SIMD(rows_Q6_K)(w, outs, x, n, y, add);
    default: return 0;
    }
}
#else
/* One lane has no sums to keep in registers: a panel of f32 weights is faster for any rows. */
static int SIMD(few)(int type, const uint8_t *w, int outs, const float *x, int64_t x_stride,
                     int rows, int n, float *y, int64_t y_stride, bool add, float *packed) {
    (void)type, (void)w, (void)outs, (void)x, (void)x_stride, (void)rows, (void)n, (void)y;
    (void)y_stride, (void)add, (void)packed;
    return 0;
}
#endif
#undef SIMD_BLOCK_VECS
#undef SIMD_HEAD
#undef SIMD_OUTS
