/* abi: the parameters of kernels in step/: the decoder step (see abi.h). */
#ifndef CAIRN_ABI_STEP_H
#define CAIRN_ABI_STEP_H
#ifndef CAIRN_ABI_H /* which includes all in order */
#include "abi/pack.h"
#endif

/* What a forward changes, int32 words in device memory at a fixed address (so that a graph can be
 * replayed): a head of STEP_HEAD words, then STEP_ARRAYS arrays of `capacity` words each. */
enum {
    STEP_ROWS,        /* rows of this forward */
    STEP_GROUPS,      /* attention groups */
    STEP_CHUNKS,      /* the most chunks of KV that any row attends, where all is attended */
    STEP_LIST_CHUNKS, /* and where pages are selected; at most STEP_CHUNKS */
    STEP_EPOCH,       /* counts forwards: its low bit chooses the half of the exchange */
    STEP_CLEAN_ROWS,  /* rows and chunks which the forward before left in the other half */
    STEP_CLEAN_CHUNKS,
    STEP_LOGIT_FIRST, /* rows whose logits are wanted: [first, first + count) */
    STEP_LOGIT_COUNT,
    STEP_HEAD
};
enum {
    STEP_TOKEN,       /* [row] token id */
    STEP_POSITION,    /* [row] position in its sequence */
    STEP_SEQUENCE,    /* [row] row of the page table */
    STEP_FIRST,       /* [row] the first row of the same sequence in this forward */
    STEP_GROUP_FIRST, /* [group] first row; a group's rows follow each other in one sequence */
    STEP_GROUP_ROWS,  /* [group] number of rows, at most 16 / (heads / kv_heads) */
    STEP_STORED,      /* [row] pages of its sequence whose bounds are stored */
    STEP_ROPE,        /* [row] the position by which its query and key turn */
    STEP_ARRAYS
};

typedef struct step_params {
    /* packed weights; those of the layers follow each other */
    const uint8_t *qkv, *o, *gate_up, *down, *head, *embed;
    const float *norms;         /* [2 layers + 1, hidden]: attention, ffn, ..., output */
    const float *rope;          /* [context, head_dim / 2, (cos, sin)] */
    uint16_t *const *kv;        /* [layers] -> f16 [page, K or V, kv_head, slot, head_dim] */
    const int32_t *input;       /* see STEP_ROWS */
    const int32_t *page_table;  /* [sequence, table_stride] page ids by logical page */
    uint8_t *exchange;          /* what stages hand on; see step/step.cuh */
    float *logits;              /* [row, vocab] */
    uint64_t *winners;          /* [row, head block] best logit of the block's part, see step/step.cu */
    int32_t *fault;             /* set when a wait does not end */
    int32_t table_stride;
    int32_t capacity;           /* of the arrays of `input` */
    int32_t layer;              /* the stage kernels': which layer */
    float norm_eps;
    float input_scale;          /* power of two that brings the residual stream well into f16 */
    int32_t reserved;
    /* page selection, step/select.cu */
    uint16_t *const *bounds;    /* [layers] -> f16 [page, kv_head, lo or hi, head_dim] */
    int32_t *lists;             /* [row, kv_head, list_stride] pages attended, ascending */
    int32_t *list_counts;       /* [row, kv_head] */
    uint32_t *seen;             /* [layer, sequence, kv_head, seen_words] pages counted, bits */
    int32_t *pages_read;        /* [sequence] */
    const int32_t *new_pages;   /* page ids whose bounds are to be stored */
    int32_t list_stride, seen_words, sequences;
    int32_t topk, window, sinks; /* pages; tokens; tokens */
    int32_t mean, by_head;       /* pages are scored by their mean key; the best head counts */
    uint32_t select_layers[16];  /* bit l % 32 of word l / 32: layer l selects */
    uint32_t *row_pages;         /* [layer, row, kv_head, seen_words] of the flow: bits of pages */
} step_params;

/* step/finish.cu */
typedef struct finish_params {
    const uint64_t *winners;   /* [rows, blocks] */
    int32_t *tokens;           /* [rows] */
    const int32_t *input;      /* of the forward, see STEP_ROWS; read only with row_pages */
    const uint32_t *row_pages; /* [layers, count_rows, kv_heads, seen_words], or NULL */
    int32_t *pages_read;       /* [sequence] */
    int32_t blocks, rows;      /* rows: of winners and tokens; the blocks behind count pages */
    int32_t layers, count_rows, kv_heads, seen_words;
    int32_t capacity, pad;     /* of the arrays of `input` */
} finish_params;

#endif
