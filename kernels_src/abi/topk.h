/* abi: the parameters of kernels in topk/ (see abi.h). */
#ifndef CAIRN_ABI_TOPK_H
#define CAIRN_ABI_TOPK_H
#ifndef CAIRN_ABI_H /* which includes all in order */
#include "abi/base.h"
#endif

/* What topk writes for a position. */
enum { CAIRN_INDEX_POS = 0, CAIRN_INDEX_SLOT = 1, CAIRN_INDEX_FLAT = 2 };

/* Entries that topk/radix.cu sorts in shared memory, at most: the host gives it room for them. */
enum { CAIRN_TOPK_SORT_SHARED = 8192 };

/* topk*.cu */
typedef struct topk_params {
    const void *scores;        /* [rows, n] of CAIRN_SCORE_TYPE, row stride `stride` elements */
    const int32_t *lengths;    /* [rows] or NULL */
    const int32_t *row_starts; /* [rows] or NULL */
    int32_t *indices;          /* [rows, k] */
    float *values;             /* [rows, k] or NULL */
    cairn_error_word *error;
    int64_t stride;
    int32_t n, k;
    int32_t sort_size;   /* 0: position order; else a power of two >= min(k, n) */
    int32_t finite_only; /* 1: -inf and NaN are no candidates (page selection) */
    int32_t form;        /* a CAIRN_INDEX_ */
    int32_t rows_each;   /* without `requests`: row r belongs to request r / rows_each */
    const int32_t *page_table; /* SLOT: [table_rows, table_stride] page ids */
    const int32_t *requests;   /* SLOT: [rows] row of the page table, or NULL */
    const int32_t *offsets;    /* FLAT: [rows] */
    int32_t page_size, table_rows, table_stride, rows;
    uint32_t *scratch; /* split: each block's candidates */
    uint32_t *arrived; /* split: [rows] blocks that have left theirs; zero between launches */
} topk_params;

#endif
