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
    STEP_CHUNKS,      /* the most runs of chunks that any row has, where it attends all */
    STEP_LIST_CHUNKS, /* and where it selects pages */
    STEP_EPOCH,       /* counts forwards: its low bit chooses the half of the exchange */
    STEP_CLEAN_ROWS,  /* rows and chunks which the forward before left in the other half */
    STEP_CLEAN_CHUNKS,
    STEP_LOGIT_FIRST, /* rows whose logits are wanted: [first, first + count) */
    STEP_LOGIT_COUNT,
    STEP_TELLS,       /* the half of finish_params.told that is this forward's */
    STEP_HEAD
};
enum {
    STEP_TOKEN,       /* [row] token id; STEP_DRAWN - i: the i-th that the step before drew, see p.fault */
    STEP_POSITION,    /* [row] position in its sequence */
    STEP_SEQUENCE,    /* [row] row of the page table */
    STEP_FIRST,       /* [row] the first row of the same sequence in this forward */
    STEP_GROUP_FIRST, /* [group] first row; a group's rows follow each other in one sequence */
    STEP_GROUP_ROWS,  /* [group] number of rows, at most 16 / (heads / kv_heads), or one */
    STEP_STORED,      /* [row] pages of its sequence whose bounds are stored */
    STEP_WANTED = STEP_STORED, /* of joined prompts: the rows whose logits are wanted */
    STEP_ROPE,        /* [row] the position by which its query and key turn */
    STEP_ADAPTER,     /* [row] slot of its adapter, or -1; read by kernels with STEP_EXTRA_ADAPTERS */
    STEP_PLAIN_ARRAYS, /* what follows is there where some row drafts or has an embedding of its own */
    STEP_SEEN = STEP_PLAIN_ARRAYS, /* [row] of one that drafts: the tokens that it sees */
    STEP_OWN,         /* [row] 0: it sees all before it; n: those, and of the rows up to itself the last
                         n; -n: of these those whose bit is set in its trees */
    STEP_EMBED_LOW,   /* [row] the halves of its embedding's address; 0: its token's */
    STEP_EMBED_HIGH,
    STEP_KEEP,        /* [row] its place among the hidden states that are kept, or -1 */
    STEP_ARRAYS
};

enum {
    STEP_DRAWN = -1,
    STEP_SAMPLED_AT = 4 /* words from p.fault to the tokens that a step draws, [row] */
};

/* What the layers of a model have beyond plain llama's, bits of the constant CAIRN_EXTRAS: kernels
 * without them are what they were. */
enum {
    STEP_EXTRA_HEADS = 1,   /* heads are biased, normed or turned over halves: step/extras.cu */
    STEP_EXTRA_STILL = 2,   /* some layers do not turn */
    STEP_EXTRA_POST = 4,    /* what mixer and ffn add is normed first: step/extras.cu */
    STEP_EXTRA_GEGLU = 8,   /* gelu in place of silu */
    STEP_EXTRA_EMBED = 16,  /* embeddings are scaled */
    STEP_EXTRA_SCALE = 32,  /* attention has a scale of its own */
    STEP_EXTRA_WINDOW = 64, /* some layers see a window */
    STEP_EXTRA_CONV = 128,  /* some layers' mixer is a short convolution: step/conv.cu */
    STEP_EXTRA_EXPERTS = 256, /* ffns are of experts: step/experts.cu */
    STEP_EXTRA_ADAPTERS = 512, /* rows may have adapters: products add theirs, see step/adapter.cuh */
    STEP_EXTRA_DRAFTS = 1024, /* rows may draft: STEP_SEEN and STEP_OWN say what they see */
    STEP_EXTRA_LANDMARKS = 2048, /* a prompt's rows do not see the last slots of pages */
    STEP_EXTRA_JOINED = 4096 /* a prompt's rows are of several sequences; each is in the group that a
                                block of attention serves, and STEP_WANTED says whose logits are made */
};

/* The products of a layer to which adapters add, and the inner values of one at most. */
enum {
    STEP_LOW_Q, STEP_LOW_K, STEP_LOW_V, STEP_LOW_O, STEP_LOW_GATE, STEP_LOW_UP, STEP_LOW_DOWN,
    STEP_LOW_PRODUCTS, STEP_LOW_MOST = 256
};
/* step/adapter.cu: rows of a block of a step's and of a prompt's; blocks that share the inner values of those. */
enum { STEP_LOW_ROWS = 4, PROMPT_LOW_ROWS = 8, STEP_LOW_SPLITS = 16, STEP_LOW_THREADS = 512, STEP_LOW_BYTES = 2080 };
typedef struct step_pair {
    const float *a, *b; /* [rank, inputs], [outputs, rank], of each expert; NULL: nothing is added */
    int32_t rank, pad;
} step_pair;

/* Rows of the flow's hidden states with their copies, at most (copies_of in step/step.cuh). */
enum { STEP_FLOW_SLOTS = 8 };
/* How long a waiting thread of the flow rests between two looks, where rows are several: so many poll the
 * same lines that they hold up who writes them. */
enum { STEP_FLOW_REST_NS = 200 };

/* Of step/wide.cu: rows and inner values of a block, and its shared memory. */
enum { STEP_WIDE_ROWS = 32, STEP_WIDE_RANK = 8 };
/* Tiles of gate_up a block: two where a warp keeps its inputs. */
#define STEP_WIDE_TILES(hidden, warps) ((hidden) <= 64 * (warps) ? 2 : 1)
#define STEP_WIDE_BYTES(warps) \
    (4 * (8 * (warps) * 128 + (STEP_WIDE_ROWS + 2 * STEP_WIDE_RANK * (STEP_WIDE_ROWS + 16))))

/* Of a block of a prompt's product that has warps of their own for its tokens (step/prompt_apart.cuh): places
 * for 64 inputs of each, and its shared memory, whose places begin at a multiple of 1024 bytes. */
enum { STEP_APART_PLACES = 6, STEP_APART_HEADER = 128 };
/* The same of a block for few tokens (step/prompt_few.cuh): places for its tokens, and a ring of weights;
 * two blocks share a multiprocessor. */
enum { STEP_FEW_TOKENS = 32, STEP_FEW_PLACES = 48 * 1024, STEP_FEW_RING = 63 * 1024, STEP_FEW_HEADER = 512 };
ABI_FUNCTION int step_apart_bytes(int tokens) {
    return tokens > STEP_FEW_TOKENS ? 1024 + STEP_APART_HEADER + STEP_APART_PLACES * tokens * 128
                                    : 1024 + STEP_FEW_HEADER + STEP_FEW_PLACES + STEP_FEW_RING;
}

typedef struct step_params {
    /* packed weights; those of the layers follow each other. A convolution's in place of qkv and o,
     * those of experts, one behind the other, in place of gate_up and down */
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
    int32_t which;              /* of what a kernel can do, or for which products: its head says */
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
    uint32_t *arrived;           /* [row, kv_head] blocks of a kernel; zero between kernels */
    /* extras of a layer */
    const float *bias;           /* [q k v], or NULL */
    const float *head_norms;     /* [q and k, head_dim], or NULL */
    const float *post_norms;     /* [attention and ffn, hidden] */
    int32_t still;               /* the layer does not turn */
    int32_t rope_half;           /* pairs are so many values apart; 0: beside each other */
    int32_t rope_dims;           /* values of a head that turn */
    int32_t own_window, own_run; /* tokens that a row sees, 0: all; chunks of a run of these */
    int32_t own_runs;            /* the most runs of a group of rows */
    float embed_scale, score_scale; /* score_scale: with log2(e) */
    const step_pair *adapters;   /* [slot, layer, STEP_LOW_PRODUCTS] */
    float *low;                  /* [row or slot, 3, STEP_LOW_MOST]: A x of the products of a kernel */
    float *const *rings;         /* [sequence] -> [layers with convolutions, ring, hidden] inputs */
    const float *taps;           /* [hidden, taps], the oldest first */
    const float *router;         /* [experts, hidden] */
    int32_t state, expert_rows;  /* which of the layers with convolutions; rows of a window at most */
    const uint32_t *trees;       /* [row, tree_words] bits of STEP_OWN */
    float *kept;                 /* [STEP_KEEP, hidden] f32, behind the output norm */
    const uint8_t *low_tiles;    /* of the adapter that step/wide.cu serves */
    int32_t tree_words;
    int32_t spans, span_tile, span_rows; /* step/prompt_spans.cu */
    int32_t chain;               /* chunks that a block of step_attend folds where it takes chains of runs */
    int32_t mergers;             /* of step_attend_relay: blocks of a KV head that merge, at most */
    uint32_t *relay;             /* its parts (a row's run), one more than layout_most_runs: [part, head, head_dim],
                                    then (m, l) [part, head, merger]; zero between kernels */
} step_params;

/* step/latent.cu; of a row: the first `rows` of positions, sequences, ropes and tokens */
typedef struct latent_params {
    const int32_t *positions, *sequences, *ropes; /* see STEP_POSITION */
    const int32_t *page_table; /* [sequence, table_stride] */
    int32_t *lengths, *slots;
    const float *x;            /* heads of 64 values */
    float *out;                /* where they go; may be x */
    const float *turns;        /* [context, 32, (cos, sin)] */
    const int32_t *tokens;     /* [row, width] positions, -1 behind the last */
    uint32_t *seen;            /* [sequence] bits of pages, seen_stride words each */
    int32_t *pages_read;       /* [sequence] */
    int64_t x_row, x_head, out_row, out_head; /* strides, in floats */
    int32_t rows, heads, halves, width, table_stride, seen_stride;
} latent_params;
/* step/forms.cu: rows from `first` on, whose attention is the ops' */
typedef struct form_params {
    step_params step;           /* of the lane, with a layer */
    float *q;                   /* [rows, heads, head_dim] */
    const float *whole, *pages; /* the same: what was attended; what is added to it, or NULL */
    const int32_t *selected;    /* [rows, kv_heads, topk] */
    int32_t *chosen;            /* [sequences, layers, kv_heads, 1 + topk] or NULL: of a sequence's first
                                 * row, how many pages it chose, -1 for none, and which */
    int32_t first, topk;
    int32_t least;              /* candidates up to which a row attends all */
    int32_t counts;             /* the pages that are read count */
    int32_t bounds, pad;        /* pages are scored by bounds */
} form_params;
/* step/draft.cu: a draft's place among kept states, the token before it, and the sampler head. */
typedef struct draft_words {
    int32_t row, token;
    const float *first, *first_norm, *second, *second_norm;
} draft_words;
typedef struct draft_params {
    draft_words *words;
    const float *kept;
    int32_t *tokens;     /* those drafted; before them the row and token that draft_pick chose */
    float *gated;        /* [2, hidden] */
    const uint8_t *embed;
    uint8_t *exchange;   /* of the stage kernels */
    uint32_t *arrived;
    int32_t *input;      /* of the forward whose tokens are verified */
    int32_t *sampled;
    int32_t number;      /* which draft it is */
    int32_t real, drafts, masks; /* the first row that is verified, drafts behind it, masks of each */
    int32_t capacity, blocks; /* blocks: of the head, for draft_take and draft_end; so is what follows */
    float norm_eps, input_scale, embed_scale;
    step_params step;    /* of the flow; of draft_end with the draft's winners */
    int32_t *told;       /* see finish_params */
    int32_t told_words;
    int32_t chunk;       /* tokens of a chunk, which in the flow is a run */
} draft_params;

/* step/finish.cu */
typedef struct finish_params {
    const uint64_t *winners;   /* [rows, blocks] */
    int32_t *tokens;           /* [rows] */
    const int32_t *input;      /* of the forward, see STEP_ROWS */
    const uint32_t *row_pages; /* [layers, count_rows, kv_heads, seen_words], or NULL */
    int32_t *pages_read;       /* [sequence] */
    const int32_t *results;    /* [told_words] the fault word, tokens, pages_read */
    int32_t *told;             /* host [2, told_words], mapped: where these go too; or NULL */
    int32_t blocks, rows;      /* rows: of winners and tokens; the blocks behind count pages */
    int32_t layers, count_rows, kv_heads, seen_words;
    int32_t capacity;          /* of the arrays of `input` */
    int32_t told_words;
} finish_params;

#endif
