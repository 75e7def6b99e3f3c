/* The parameter struct of every kernel, once, for the host (C11) and for the kernels (NVRTC without
 * headers, or the emulation of tests/simt). Rules: fixed-width members only, pointers to device
 * memory, no padding left to chance; a struct is at most 4 KiB and passed whole, by value. */
#ifndef CAIRN_ABI_H
#define CAIRN_ABI_H

#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#else
#include <stdint.h>
#endif

/* Where kernels report bad data in device memory: the first fault stays until the host reads it. */
typedef struct cairn_error_word {
    int32_t code; /* 0: none, else a CAIRN_FAULT_ */
    int32_t row;
    int64_t value; /* what was out of range */
} cairn_error_word;

enum {
    CAIRN_FAULT_LENGTH = 1,
    CAIRN_FAULT_ROW_START = 2,
    CAIRN_FAULT_ID = 3,
    CAIRN_FAULT_POSITION = 4
};

/* device/measure.cu */
typedef struct measure_params {
    void *words;       /* [count] of 16 bytes */
    uint32_t *sink;    /* [1] */
    int64_t count;
    uint32_t never, pad;
} measure_params;

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

/* dense/embed.cu; block types are GGUF's: 0 f32, 1 f16, 2 Q4_0, 3 Q4_1, 8 Q8_0, 30 bf16 */
typedef struct embed_params {
    const int32_t *ids;   /* [rows] */
    const uint8_t *table; /* [vocab, row_bytes] */
    float *out;           /* [rows, hidden] */
    cairn_error_word *error;
    int64_t row_bytes;
    int32_t vocab, hidden, block_type, pad;
} embed_params;

/* dense/norm.cu */
typedef struct rmsnorm_params {
    const float *x, *weight; /* [rows, n], [n] */
    float *out;              /* [rows, n], may be x */
    int32_t n;
    float epsilon;
} rmsnorm_params;

typedef struct swiglu_params {
    const float *gate, *up; /* [count] */
    float *out;             /* [count], may be gate or up */
    int64_t count;
} swiglu_params;

/* dense/rope.cu */
typedef struct rope_params {
    const float *x;           /* [rows, heads, head_dim] */
    const int32_t *positions; /* [rows] */
    float *out;               /* as x, may be x */
    cairn_error_word *error;
    float base;
    int32_t heads, head_dim, rotary_dim, half_split, pad;
} rope_params;

/* One layer's paged cache and where its rows stand; part of the parameters below. */
typedef struct paged_rows {
    uint16_t *cache;           /* f16 [pages, 2, kv_heads, page_size, head_dim] */
    const int32_t *page_table; /* [sequences, max_pages] physical ids, -1: none */
    const int32_t *sequences;  /* [rows] or NULL: row r is sequence r */
    const int32_t *positions;  /* [rows] */
    cairn_error_word *error;
    int32_t pages, kv_heads, page_size, head_dim, sequence_count, max_pages;
} paged_rows;

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

/* select/bounds.cu */
typedef struct page_bounds_params {
    const uint16_t *cache; /* f16 [pages, 2, kv_heads, page_size, head_dim] */
    const int32_t *ids;    /* [n] */
    uint16_t *bounds;      /* f16 [pages, kv_heads, 2, head_dim] */
    cairn_error_word *error;
    int32_t pages, kv_heads, page_size, head_dim;
    int32_t mean, pad; /* 0: lowest and highest; 1: the mean and what f16 left */
} page_bounds_params;

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

/* select/select.cu */
typedef struct score_pages_params {
    paged_rows at;          /* its keys are not read */
    const uint16_t *bounds; /* f16 [pages, kv_heads, 2, head_dim] */
    const float *q;         /* [rows, heads, head_dim] */
    float *scores;          /* [rows, kv_heads, max_pages] */
    int32_t heads, window;
    int32_t mean, by_head; /* source and strategy */
} score_pages_params;

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

/* dense/linear.cu */
typedef struct linear_params {
    const float *x;       /* [rows, in] */
    const uint8_t *w;     /* [outs, row_bytes] */
    float *out;           /* [rows, outs] */
    int64_t row_bytes;
    int32_t rows, outs, in; /* in: a multiple of 32 */
    int32_t accumulate;
} linear_params;

/* conv/short_conv.cu; K is the width, T a cairn_type of x, the gates, out, state and snapshots */
typedef struct short_conv_params {
    const void *x, *gate_in, *gate_out; /* [tokens, channels], gates may be NULL */
    const void *weight, *bias;          /* [channels, K], [channels] or NULL */
    void *out;                          /* [tokens, channels] */
    void *state;                        /* [slots, K - 1, channels], oldest first */
    void *snapshots;                    /* [sequences, K - 1 + snapshot_tokens, channels] or NULL */
    const int32_t *cu_seqlens;          /* [sequences + 1], or NULL: sequence s is token s */
    const int32_t *state_indices;       /* [sequences] or NULL: s */
    const int32_t *has_initial;         /* [sequences] or NULL: reads_state for all */
    const int32_t *chunk_sequences;     /* [chunks], a dense prefix, then -1 */
    const int32_t *chunk_offsets;       /* [chunks] chunk of its sequence */
    cairn_error_word *error;
    int64_t x_stride, gate_in_stride, gate_out_stride, out_stride; /* elements a row */
    int32_t tokens, channels, sequences, slots;
    int32_t chunks, block_tokens, snapshot_tokens, reserved_slots;
    int32_t weight_is_f32, silu, reads_state, pad;
} short_conv_params;

typedef struct short_conv_restore_params {
    const void *snapshots;        /* [sequences, rows + snapshot_tokens, row_bytes] */
    const int32_t *accepted;      /* [sequences] tokens */
    const int32_t *state_indices; /* [sequences] or NULL: s */
    void *state;                  /* [slots, rows, row_bytes] */
    cairn_error_word *error;
    int64_t row_bytes;
    int32_t rows, snapshot_tokens, slots, reserved_slots;
} short_conv_restore_params;

/* conv/metadata.cu */
typedef struct short_conv_metadata_params {
    const int32_t *cu_seqlens;  /* [requests + 1] */
    const int32_t *seq_lens;    /* [requests], or NULL: no request has a context */
    const int32_t *slots;       /* [requests] at slots_stride, or NULL: r */
    const int32_t *live;        /* [1] or NULL: requests */
    int32_t *counts;            /* [8], a CAIRN_CONV_ each, or NULL */
    int32_t *has_initial;       /* [capacity] or NULL */
    int32_t *decode_indices;    /* [capacity] or NULL */
    int32_t *prompt_indices;    /* [capacity] or NULL */
    int32_t *order;             /* [capacity] or NULL */
    int32_t *chunk_sequences;   /* [chunk_capacity] */
    int32_t *chunk_offsets;     /* [chunk_capacity] */
    cairn_error_word *error;
    int64_t slots_stride;
    int32_t requests, capacity, chunk_capacity;
    int32_t block_tokens, decode_tokens, pad;
} short_conv_metadata_params;

/* sample*.cu */
enum { CAIRN_SAMPLE_PART = 1022 };
typedef struct sample_part { /* what one block of sample_few found */
    uint32_t count;          /* of ranks, or more than they are */
    uint32_t edge;           /* key: every logit of the slice that reaches it is listed */
    uint64_t ranks[CAIRN_SAMPLE_PART]; /* key of the penalized logit << 32 | ~id */
} sample_part;

typedef struct sample_kernel_params {
    const float *logits;      /* [rows, vocab] */
    const int64_t *seeds;     /* [rows] or NULL: seed */
    const int32_t *positions; /* [rows] or NULL: 0 */
    const int32_t *history;   /* [rows, history_count], -1 padded, or NULL */
    int32_t *tokens;          /* [rows] */
    int64_t seed;
    int32_t vocab, history_count, top_k, top_p_first;
    float temperature, top_p, min_p, repetition_penalty;
    int32_t position_first, position_step; /* row r: + first + r * step */
    sample_part *parts; /* sample_few: [rows, parts of a row] */
    uint32_t *arrived;  /* sample_few: [rows], zero before and after */
} sample_kernel_params;

typedef struct verify_greedy_params {
    const float *logits;   /* [sequences, drafts + 1, vocab] */
    const int32_t *drafts; /* [sequences, drafts] */
    int32_t *accepted;     /* [sequences] */
    int32_t *bonus;        /* [sequences] */
    int32_t drafts_count, vocab;
} verify_greedy_params;

/* ---- the decoder step: step*.cu, dense/pack.cu ---- */

/* Weights as the kernels read them: tiles of 16 output rows, each a run of units of 32 inputs, each
 * unit in the order in which a warp's lanes need it as the A operand of mma m16n8k16. With
 * g = lane / 4, t = lane % 4, a lane holds inputs 8t..8t+7 of rows g and g + 8.
 * Of models that one kernel computes (step/step.cu), each unit for itself:
 *   PACK_4   320 bytes  [lane][row g, row g+8] one word: input 2i in bits 4i.., 2i+1 in bits 16+4i..
 *                       then [g][row g, row g+8] {f16 d, f16 m}: value = n d + m, n in 0..15
 *   PACK_8   544 bytes  [lane][row g, row g+8][8] bytes n + 128, then [g][row g, row g+8] f16 d
 *   PACK_16 1024 bytes  [row g, row g+8][lane][8] f16
 * Of all others, in groups of G units, G the largest power of two that divides a row, up to 8, 4 for
 * bytes (dense/packed.cuh: packed_group); for each unit as many bytes as its GGUF blocks have:
 *   PACK_Q4_0 [pair of units][lane][unit of the pair][2] words: input 2i + j of row g + 8 h in bits
 *             8 (i % 2) + 16 j + 4 h of word i / 2; then [g][row g, row g+8][unit] f16 d
 *   PACK_Q4_1 the same, and after d the minima likewise
 *   PACK_Q8_0 [unit][lane][row g, row g+8][8] bytes n + 128, then d as above
 *   PACK_F16  as PACK_16 */
enum { PACK_4 = 4, PACK_8 = 8, PACK_16 = 16,
       PACK_Q4_0 = 32, PACK_Q4_1 = 33, PACK_Q8_0 = 34, PACK_F16 = 35 };

/* Shared memory of a block of dense/product.cuh. */
enum { PRODUCT_SHARED = (4 * 8 + 8 + 4) * 512 + 128 + 72 * 1024 };

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

/* pack: GGUF blocks, row by row, to packed tiles. */
typedef struct pack_params {
    const uint8_t *source;  /* [rows, inputs] in blocks of `type` */
    uint8_t *packed;        /* tiles of `format` */
    int32_t type;           /* block type of GGUF: 0 f32, 1 f16, 2 Q4_0, 3 Q4_1, 8 Q8_0, 30 bf16 */
    int32_t format;         /* PACK_16, PACK_F16 for any type; PACK_4, PACK_Q4_1 for Q4_0 and Q4_1;
                             * PACK_Q4_0, PACK_8 and PACK_Q8_0 for what they are named after */
    int32_t rows, inputs;   /* inputs: a multiple of 32 */
    int32_t first_row;      /* of the destination, where source row 0 goes */
    int32_t half;           /* 0: row r to tile r / 16; 1, 2: to the first, second half of r / 8 */
} pack_params;

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
