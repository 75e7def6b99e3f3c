/* simd: the CPU kernels at every SIMD level, chosen at run time.
 *
 * simd/LEVEL.h gives words for a vector of VEC_N floats; simd/linear.h, math.h, attention.h and
 * topk.h are written once in these words and compiled once per level into a table of functions. The
 * levels agree to f32 rounding, top-k exactly. A new kernel is one function there and one line in
 * SIMD_TABLE; a new level is one file of words. Calls base, pool (the level) and block. */

enum {
    SIMD_HEADS = 64,     /* block scales that are unpacked at a time */
    SIMD_FEW = 8,        /* rows up to which a product dequantises as it goes */
    SIMD_MAX_LANES = 16,
    SIMD_MAX_SLOTS = 256, /* of a page */
    SIMD_MAX_DIM = 256,   /* of a head */
    SIMD_DOT_DIM = 128,   /* of relu_dots: values of a head, */
    SIMD_DOT_KEYS = 64,   /* and keys beside each other */
    SIMD_SLACK = 16       /* entries behind its result that a filter may overwrite */
};

/* One page as attention reads it. */
typedef struct simd_page {
    const void *keys, *values; /* [slots, dim] */
    const void *ahead;         /* the keys that are read next, to be fetched into the cache */
    bool half;                 /* they are f16, else f32 */
    int first, last, dim;      /* slots first .. last - 1 are attended */
    float cap;                 /* 0, or a score s counts as cap * tanh(s / cap) */
} simd_page;

/* Rows that were rounded to 8 bits, see simd/eight.h. */
typedef struct simd_eight {
    int rows, n;
    const int8_t *q;      /* [rows, n] */
    const float *scale, *lies; /* [rows, n / 32] */
    const int32_t *start;      /* [rows, n / 16] */
} simd_eight;

/* Each function is documented where it stands, in simd/. */
#define SIMD_TABLE(X) \
    X(void, dequantize, (int type, const uint8_t *blocks, float *out, int64_t values)) \
    X(void, panel, (const float *w, int outs, const float *x, int64_t x_stride, int rows, int n, \
                    float *y, int64_t y_stride, bool add)) \
    X(int, few, (int type, const uint8_t *w, int outs, const float *x, int64_t x_stride, int rows, \
                 int n, float *y, int64_t y_stride, bool add, float *packed)) \
    X(bool, round_eight, (int type, const float *x, int n, int8_t *q, float *scale, float *lies, \
                          int32_t *start)) \
    X(void, product_eight, (int type, const uint8_t *w, int outs, const simd_eight *x, float *y, \
                            int64_t y_stride, bool add, float *sums)) \
    X(int, argmax, (const float *x, int n)) \
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
    X(void, relu_dots, (const float *keys, const float *q, const float *weights, int heads, \
                        float *out)) \
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

#define SIMD_KEY_ZERO 0x80000000u /* a score's key orders as the score does; this is the key of 0 */

/* The f32 bits of one value of each type. */
BASE_INLINE uint32_t simd_bits_of_f32(const float *x);
BASE_INLINE uint32_t simd_bits_of_bf16(const uint16_t *x);
BASE_INLINE uint32_t simd_bits_of_f16(const uint16_t *x);

/* The kernels of a SIMD_ level that this build has, else the scalar ones. */
static const simd_kernels *simd_of_level(int level);
/* The kernels for products of 8 bits: these, or where the machine lacks what they want for that, those
 * of the level below. */
static const simd_kernels *simd_eight_of(const simd_kernels *simd);
/* The kernels of this machine for heads of head_dim values (0: no attention); a width that no
 * vector divides takes the next lower level. */
static const simd_kernels *simd_for(int head_dim);
