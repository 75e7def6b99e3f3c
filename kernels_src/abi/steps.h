/* abi: the parameters of kernels in steps/ (see abi.h). */
#ifndef CAIRN_ABI_STEPS_H
#define CAIRN_ABI_STEPS_H
#ifndef CAIRN_ABI_H /* which includes all in order */
#include "abi/base.h"
#endif

/* steps/steps.cu: modes, and the outputs of a step but its tables, as in cairn_step_metadata. */
enum { PREPARE_DECODE = 0, PREPARE_TARGET_VERIFY = 1, PREPARE_DRAFT_EXTEND = 2 };
enum {
    PREPARE_CACHE_SEQLENS,
    PREPARE_CU_SEQLENS_K,
    PREPARE_CU_ROWS,
    PREPARE_MAX_SEQLEN_K,
    PREPARE_CU_SEQLENS_Q,
    PREPARE_ROW_REQUESTS,
    PREPARE_POSITIONS,
    PREPARE_EXPANDED,
    PREPARE_CLIPPED,
    PREPARE_CU_CLIPPED,
    PREPARE_INDEX_SPLITS,
    PREPARE_INDEX_SCHEDULE,
    PREPARE_ATTEND_SPLITS,
    PREPARE_ATTEND_SCHEDULE,
    PREPARE_OUTPUTS
};
enum { PREPARE_MAX_STEPS = 16, PREPARE_INDEX = 0, PREPARE_ATTEND = 1 };

typedef struct prepare_table {
    int32_t *tokens; /* [rows, token_stride] or NULL */
    int32_t *pages;  /* [rows, page_stride] or NULL */
    int64_t token_stride, page_stride;
    int32_t step, pad; /* whose lengths it covers */
} prepare_table;

typedef struct prepare_steps_params {
    const int32_t *seq_lens; /* [batch] */
    const int32_t *requests; /* [batch] or NULL: b */
    const int32_t *accept;   /* [batch]; DRAFT_EXTEND */
    const int32_t *count;    /* [1] or NULL: batch */
    const int32_t *slots;    /* [pool, slots_stride] slots, or page ids */
    cairn_error_word *error;
    int64_t slots_stride;
    int32_t batch, pool, mode, draft_tokens, index_topk, step_offset, steps;
    int32_t max_len;      /* the longest length that slots and tables hold */
    int32_t row_capacity; /* rows that the outputs hold */
    int32_t expand;       /* 1: tables have a row for each row */
    int32_t table_count, table_parts; /* blocks a request that copy its tables' rows */
    int32_t vector;       /* 1: slots and token tables are aligned to 16 bytes, rows too */
    int32_t pages_only;   /* 1: no token table */
    int32_t split[2];     /* tokens of a split: index, attend */
    int32_t workers[PREPARE_MAX_STEPS][2];
    int32_t *out[PREPARE_MAX_STEPS][PREPARE_OUTPUTS]; /* NULL: not wanted */
    prepare_table tables[PREPARE_MAX_STEPS];          /* ascending by step */
} prepare_steps_params;

/* steps/chunks.cu */
typedef struct prefix_chunks_params {
    const int32_t *prefix_lens; /* [batch] */
    const int32_t *requests;    /* [batch] or NULL: b */
    const int32_t *slots;       /* [pool, slots_stride] slots, or page ids */
    int32_t *chunk_count;       /* [1]; like all outputs NULL when not wanted */
    int32_t *starts, *lens;     /* [chunks, batch] */
    int32_t *cu_lens;           /* [chunks, batch + 1] */
    int32_t *kv_indices;        /* [chunks, kv_stride] */
    cairn_error_word *error;
    int64_t slots_stride, kv_stride;
    int32_t batch, pool;
    int32_t chunk_len;   /* tokens of a request in a chunk */
    int32_t chunks, max_len;
    int32_t tiles;       /* of a chunk, at most; at least 1 */
    int32_t length_blocks, pad;
} prefix_chunks_params;

#endif
