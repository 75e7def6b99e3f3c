/* abi: the parameters of kernels in index/ (see abi.h). */
#ifndef CAIRN_ABI_INDEX_H
#define CAIRN_ABI_INDEX_H
#ifndef CAIRN_ABI_H /* which includes all in order */
#include "abi/base.h"
#endif

enum {
    CAIRN_INDEX_DIM = 128,   /* values of an index key, and of a head of a query */
    CAIRN_INDEX_BYTES = 132, /* of a slot in the cache: a key in e4m3, and its scale in f32 */
    CAIRN_INDEX_TILE = 128,  /* keys that a block of index/logits.cu scores at a time */
    CAIRN_INDEX_COLUMNS = 32, /* heads there are so many, or more times that, zeros behind a row's */
    CAIRN_INDEX_STAGE = CAIRN_INDEX_TILE * (128 + 4), /* bytes of a tile on its way, with its scales */
    CAIRN_INDEX_STAGES = 2   /* such tiles */
};

/* Whether its products are of e4m3 on sm_ARCH, not of f16: where they are an instruction of their own.
 * Bytes of a head in its shared memory: 16 more, so that eight rows of a matrix lie in different
 * banks. */
#define CAIRN_INDEX_FP8(arch) ((arch) == 89 || (arch) == 90 || (arch) >= 120)
#define CAIRN_INDEX_PITCH(arch) (CAIRN_INDEX_FP8(arch) ? 144 : 272)
/* Its blocks on a multiprocessor, as far as registers go: few rows want more, rows of a prompt the registers. */
#define CAIRN_INDEX_BLOCKS(arch, paged) ((arch) == 90 && (paged) ? 4 : 3)

/* index/quantize.cu */
typedef struct quantize_fp8_params {
    const void *x;        /* [blocks, 128] of CAIRN_SOURCE_TYPE */
    uint8_t *out;         /* [blocks, 128] e4m3 */
    float *scales;        /* [blocks] */
    int64_t blocks;
    int32_t power_of_two; /* 1: scales are powers of two */
    int32_t pad;
} quantize_fp8_params;

/* index/cache.cu */
typedef struct index_cache_params {
    uint8_t *cache;            /* [pages][page_size keys of 128 bytes, then page_size scales] */
    uint8_t *keys;             /* [rows, 128] e4m3 */
    float *scales;             /* [rows] */
    const int32_t *slots;      /* [rows], or NULL to gather by the next two */
    const int32_t *page_table; /* [requests, max_pages] */
    const int32_t *cu_seqlens; /* [requests + 1] */
    cairn_error_word *error;
    int32_t rows, pages, page_size, requests, max_pages, pad;
} index_cache_params;

/* index/logits.cu */
typedef struct index_logits_params {
    const uint8_t *q;          /* [rows, heads, 128] e4m3 */
    const float *weights;      /* [rows, heads] */
    const uint8_t *keys;       /* [n, 128] e4m3, or the paged cache */
    const float *key_scales;   /* [n]; of the paged cache NULL */
    const int32_t *page_table; /* paged: [requests, max_pages] */
    const int32_t *row_requests; /* paged: [rows], or NULL: row r is of request r / rows_each */
    const int32_t *row_starts; /* [rows] or NULL: 0 */
    const int32_t *lengths;    /* [rows] or NULL: all behind the start */
    const int32_t *schedule;   /* [workers + 1, 2] or NULL */
    float *out;                /* [rows, n], row stride `stride` elements */
    cairn_error_word *error;
    int64_t stride;
    int32_t rows, heads, n;
    int32_t rows_each; /* rows that share their keys follow each other by so many */
    int32_t group;     /* of those a block has so many in shared memory */
    int32_t tiles;     /* a block's keys: so many tiles */
    int32_t clean;     /* 1: -inf outside the windows */
    int32_t least;     /* rows of at most so many keys are left out */
    int32_t split;     /* tokens of a split of the schedule */
    int32_t workers;
    int32_t pages, page_size, requests, max_pages;
    int32_t first_row; /* of the rows that messages name */
    int32_t pad;
} index_logits_params;

/* index/qk.cu */
typedef struct index_qk_params {
    const float *q;           /* [rows, heads, 128] projected */
    const float *gates;       /* [rows, heads] projected */
    const float *k;           /* [rows, 128] projected */
    const float *norm_weight, *norm_bias; /* [128], the bias or NULL */
    const int32_t *positions; /* [rows] */
    uint8_t *q_out;           /* [rows, heads, 128] e4m3 */
    float *weights;           /* [rows, heads] */
    uint8_t *keys;            /* [rows, 128] e4m3 */
    float *key_scales;        /* [rows] */
    cairn_error_word *error;
    int32_t rows, heads;      /* heads 0: keys alone */
    int32_t power_of_two;
    float epsilon;
    float gate_scale;         /* heads^-0.5 * 128^-0.5 */
    int32_t first_row;        /* of the rows that messages name */
    double turns[32];         /* turns of 2 pi a position */
    float magnitude;          /* with CAIRN_PLANNED: of what has turned */
    int32_t beside;           /* and: pairs are (2j, 2j + 1) */
} index_qk_params;

#endif
