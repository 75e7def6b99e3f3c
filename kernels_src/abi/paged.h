/* abi: where rows stand in a paged cache (see abi.h). */
#ifndef CAIRN_ABI_PAGED_H
#define CAIRN_ABI_PAGED_H
#ifndef CAIRN_ABI_H /* which includes all in order */
#include "abi/base.h"
#endif

/* One layer's paged cache and where its rows stand; part of the parameters below. */
typedef struct paged_rows {
    uint16_t *cache;           /* f16 [pages, 2, kv_heads, page_size, head_dim] */
    const int32_t *page_table; /* [sequences, max_pages] physical ids, -1: none */
    const int32_t *sequences;  /* [rows] or NULL: row r is sequence r */
    const int32_t *positions;  /* [rows] */
    cairn_error_word *error;
    int32_t pages, kv_heads, page_size, head_dim, sequence_count, max_pages;
    /* With these page_table is [max_pages], sequence s from indptr[s] to indptr[s + 1]. */
    const int32_t *indptr;        /* [sequences + 1], or NULL */
    const int32_t *last_page_len; /* [sequences], or NULL: whole pages */
} paged_rows;

#endif
