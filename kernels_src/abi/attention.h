/* abi: the parameters of kernels in attention/ (see abi.h). */
#ifndef CAIRN_ABI_ATTENTION_H
#define CAIRN_ABI_ATTENTION_H
#ifndef CAIRN_ABI_H /* which includes all in order */
#include "abi/paged.h"
#endif

/* Bits of CAIRN_ABILITIES: what attention/attention.cu does beside its plain form. */
enum {
    ATTEND_CACHE = 3, /* the cache is not f16 but one of these */
    ATTEND_CACHE_F16 = 0, ATTEND_CACHE_BF16 = 1, ATTEND_CACHE_F32 = 2, ATTEND_CACHE_E4M3 = 3,
    ATTEND_QUERY_F16 = 4, ATTEND_QUERY_BF16 = 8, /* q is not f32 */
    ATTEND_CSR = 16,      /* the page table has rows of any length */
    ATTEND_SOFTCAP = 32,
    ATTEND_MASK = 64,
    ATTEND_TWO_LEVEL = 128,
    ATTEND_LANDMARKS = 256, /* the last slot of a page is not attended */
    ATTEND_PARTS = 512,     /* by `part` */
    ATTEND_TOKENS = 1024,   /* lists of tokens instead of pages */
    ATTEND_CHAINED = 2048,  /* a block takes runs of up to `chain` chunks, one after the other */
    ATTEND_CLUSTER = 4096,  /* a cluster of blocks has all runs of a row, a block each */
    ATTEND_RELAY = 8192     /* blocks of the last runs merge what the others send them through memory */
};

/* A latent slot: values that are keys and values alike, then those of the rotated part, which are
 * keys alone. With one byte a value it holds LATENT_SCALES f32 between them, and the rest as bf16. */
enum {
    LATENT_VALUES = 512, LATENT_ROTATED = 64, LATENT_KEYS = 576, LATENT_SCALES = 4,
    LATENT_BYTES = 512 + 4 * 4 + 64 * 2,
    LATENT_CHUNK = 32, LATENT_RUN = 8, /* keys; chunks that one block folds */
    LATENT_WIDE_HEADS = 64, LATENT_WIDE_KEYS = 64, LATENT_WIDE_RUN = 8, /* of latent_wide.cu */
    LATENT_MANY_RUN = 32 /* tiles as these that a block of latent_many.cu folds */
};

/* Which part of what a row attends. */
enum { ATTEND_PART_ALL = 0, ATTEND_PART_PAGES = 1, ATTEND_PART_WINDOW = 2 };

/* attention/attention.cu */
typedef struct attend_params {
    paged_rows at;
    const void *q;           /* [rows, heads, head_dim] */
    const int32_t *selected; /* [rows, kv_heads, topk] logical pages, or NULL: no selection */
    float *out;              /* [rows, heads, head_dim] */
    float *lse;              /* [rows, heads] or NULL */
    float *partial;          /* [rows, kv_heads x tiles, runs, queries of a tile, head_dim] */
    float *sums;             /* [rows, kv_heads x tiles, runs, queries of a tile, (m, l)] */
    uint32_t *arrived;       /* [rows, kv_heads x tiles], zero before and after; with ATTEND_RELAY in place of
                                these: values as partial, sums [.., queries of a tile, mergers, (m, l)] */
    float scale;
    int32_t heads, topk, window, sinks;
    int32_t sparse; /* 1: window 0 means the row's own page, not all */
    /* with the abilities */
    int32_t part;            /* an ATTEND_PART_ */
    const float *scales;     /* [pages, 2, kv_heads, page_size] of an e4m3 cache */
    const float *weights;    /* [rows, kv_heads or heads, topk] */
    const int32_t *bases;    /* [sequences] position of entry 0 of its step */
    const uint8_t *mask;     /* [sequences, mask_bytes], bit row * mask_rows + key; or NULL: */
    const int32_t *tokens;   /* [rows, token_width] ids of slots, or with cu_lens [token_width] */
    const int32_t *cu_lens;  /* [sequences + 1] */
    float softcap;
    int32_t weight_heads;    /* kv_heads or heads */
    int32_t mask_bytes, mask_rows;
    int32_t mask_side;       /* k + 1 of the mask of draft and verify */
    int32_t token_width;
    int32_t chain, runs;     /* chunks; runs of any row at most */
    int32_t mergers;         /* blocks of a tile that merge, with ATTEND_RELAY */
    int32_t rows, tokens_each; /* attention/packed.cu: rows of a tile of queries; chain: tiles of keys of
                              * a part, 0: all */
} attend_params;

/* attention/merge.cu */
typedef struct merge_states_params {
    const float *values; /* [parts, states, head_dim] */
    const float *lses;   /* [parts, states] */
    float *out;          /* [states, head_dim] */
    float *lse;          /* [states] or NULL */
    int64_t states;      /* rows x heads */
    int32_t parts, head_dim;
} merge_states_params;

#endif
