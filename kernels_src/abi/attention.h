/* abi: the parameters of kernels in attention/ (see abi.h). */
#ifndef CAIRN_ABI_ATTENTION_H
#define CAIRN_ABI_ATTENTION_H
#ifndef CAIRN_ABI_H /* which includes all in order */
#include "abi/paged.h"
#endif

/* attention/attention.cu */
typedef struct attend_params {
    paged_rows at;
    const float *q;          /* [rows, heads, head_dim] */
    const int32_t *selected; /* [rows, kv_heads, topk] logical pages, or NULL: no selection */
    float *out;              /* [rows, heads, head_dim] */
    float *lse;              /* [rows, heads] or NULL */
    float *partial;          /* [rows, kv_heads x tiles, splits, 16, head_dim + 2] */
    uint32_t *arrived;       /* [rows, kv_heads x tiles], zero before and after */
    float scale;
    int32_t heads, topk, window, sinks;
    int32_t sparse; /* 1: window 0 means the row's own page, not all */
} attend_params;

#endif
