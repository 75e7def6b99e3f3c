/* abi: the parameters of kernels in select/ (see abi.h). */
#ifndef CAIRN_ABI_SELECT_H
#define CAIRN_ABI_SELECT_H
#ifndef CAIRN_ABI_H /* which includes all in order */
#include "abi/paged.h"
#endif

/* select/bounds.cu */
typedef struct page_bounds_params {
    const uint16_t *cache; /* f16 [pages, 2, kv_heads, page_size, head_dim] */
    const int32_t *ids;    /* [n] */
    uint16_t *bounds;      /* f16 [pages, kv_heads, 2, head_dim] */
    cairn_error_word *error;
    int32_t pages, kv_heads, page_size, head_dim;
    int32_t mean, pad; /* 0: lowest and highest; 1: the mean and what f16 left */
} page_bounds_params;

/* select/select.cu */
typedef struct score_pages_params {
    paged_rows at;          /* its keys are read with landmarks alone */
    const uint16_t *bounds; /* f16 [pages, kv_heads, 2, head_dim] */
    const float *q;         /* [rows, heads, head_dim] */
    float *scores;          /* [rows, kv_heads, max_pages] */
    float *head_scores;     /* [rows, heads, max_pages] */
    int32_t heads, window;
    int32_t mean, by_head; /* source and strategy */
    float scale;
    int32_t pad;
    const float *lse;      /* [rows, heads] or NULL: score_softmax's alone */
    const float *scales;   /* of an e4m3 cache, with landmarks */
} score_pages_params;

typedef struct select_listed_params {
    const float *scores;      /* [units, pages] */
    const float *head_scores; /* [units, group, pages] */
    const int32_t *selected;  /* [units, topk] */
    float *head_chosen;       /* [units, group, topk] or NULL */
    int32_t *candidates;      /* [units, pages] or NULL */
    int32_t *counts;          /* [units] or NULL */
    int32_t pages, topk, group, pad;
} select_listed_params;

#endif
