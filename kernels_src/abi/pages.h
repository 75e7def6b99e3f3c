/* abi: the parameters of kernels in pages/ (see abi.h). */
#ifndef CAIRN_ABI_PAGES_H
#define CAIRN_ABI_PAGES_H
#ifndef CAIRN_ABI_H /* which includes all in order */
#include "abi/base.h"
#endif

/* pages/tables.cu */
typedef struct page_tables_row {
    int32_t length, last_page_len; /* tokens */
    int32_t begin, pages;          /* in the CSR list; held */
    int32_t first, count, change;  /* columns [first, first + count) changed: ids [change, ...) */
    int32_t copy_from, copy_to;    /* page ids, -1: none */
    int32_t pad;
} page_tables_row;

typedef struct page_tables_params {
    const page_tables_row *rows; /* [requests], in pinned host memory like `ids` */
    const int32_t *ids;          /* what changed */
    int32_t *page_table;         /* [requests, max_pages] */
    int32_t *lengths, *indptr, *indices, *last_page_len, *copies;
    int32_t requests, max_pages;
} page_tables_params;

typedef struct copy_pages_params {
    uint32_t *cache;       /* [layers, pages, page_words] */
    const int32_t *copies; /* [n, 2] */
    cairn_error_word *error;
    int64_t page_words, layer_words;
    int32_t pages, wide; /* 1: pages are whole 16-byte words */
} copy_pages_params;

#endif
