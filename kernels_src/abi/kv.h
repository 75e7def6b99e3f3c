/* abi: the parameters of kernels in kv/ (see abi.h). */
#ifndef CAIRN_ABI_KV_H
#define CAIRN_ABI_KV_H
#ifndef CAIRN_ABI_H /* which includes all in order */
#include "abi/paged.h"
#endif

/* kv/append.cu */
typedef struct kv_append_params {
    paged_rows at;        /* its cache is of the constants' type, not always f16 */
    const void *k, *v;    /* [rows, kv_heads, head_dim] */
    float *scales;        /* [pages, 2, kv_heads, page_size] with an e4m3 cache */
    int32_t rows;
    int32_t rows_each;    /* rows of a block */
    int32_t heads_each;   /* heads of a row that are worked on side by side */
    int32_t rotary_pairs; /* 0: no rotation; a multiple of 8 */
    int32_t half_split, pad;
    double turns[128];    /* [rotary_pairs] turns of 2 pi a position */
} kv_append_params;

/* kv/collate.cu */
enum { CAIRN_COLLATE_LAYERS = 192 }; /* of one launch */
typedef struct kv_collate_params {
    const int32_t *page_table; /* [sequences, max_pages] physical ids, -1: none */
    const int32_t *bases;      /* [sequences] position of entry 0 */
    const int32_t *accepted;   /* [sequences] entries kept */
    const int32_t *sources;    /* [sequences, most] or NULL: g * stride */
    cairn_error_word *error;
    int32_t most, stride;
    int32_t pages, kv_heads, page_size, max_pages;
    int32_t row_bytes;         /* of one slot of one head */
    int32_t has_scales;
    void *caches[CAIRN_COLLATE_LAYERS];  /* [pages, 2, kv_heads, page_size, row_bytes] */
    float *scales[CAIRN_COLLATE_LAYERS]; /* [pages, 2, kv_heads, page_size] */
} kv_collate_params;

#endif
