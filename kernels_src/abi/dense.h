/* abi: the parameters of kernels in dense/, but for packing (see abi.h). */
#ifndef CAIRN_ABI_DENSE_H
#define CAIRN_ABI_DENSE_H
#ifndef CAIRN_ABI_H /* which includes all in order */
#include "abi/base.h"
#endif

/* dense/embed.cu; block types are GGUF's, see dense/blocks.cuh */
typedef struct embed_params {
    const int32_t *ids;   /* [rows] */
    const uint8_t *table; /* [vocab, row_bytes] */
    float *out;           /* [rows, hidden] */
    cairn_error_word *error;
    int64_t row_bytes;
    int32_t vocab, hidden, block_type, pad;
} embed_params;

/* dense/norm.cu */
typedef struct rmsnorm_params {
    const float *x, *weight; /* [rows, n], [n] */
    float *out;              /* [rows, n], may be x */
    int32_t n;
    float epsilon;
} rmsnorm_params;

typedef struct swiglu_params {
    const float *gate, *up; /* [count] */
    float *out;             /* [count], may be gate or up */
    int64_t count;
} swiglu_params;

/* dense/rope.cu */
typedef struct rope_params {
    const float *x;           /* [rows, heads, head_dim] */
    const int32_t *positions; /* [rows] */
    float *out;               /* as x, may be x */
    cairn_error_word *error;
    float base;
    int32_t heads, head_dim, rotary_dim, half_split, pad;
} rope_params;

/* dense/linear.cu */
typedef struct linear_params {
    const float *x;       /* [rows, in] */
    const uint8_t *w;     /* [outs, row_bytes] */
    float *out;           /* [rows, outs] */
    int64_t row_bytes;
    int32_t rows, outs, in; /* in: a multiple of 32 */
    int32_t accumulate;
    int64_t x_stride, out_stride, x_part, out_part; /* floats, with CAIRN_APART: rows; parts */
} linear_params;

#endif
