/* forward_cuda: the whole decoder forward on the GPU: packed weights, kernels, buffers. Its state is here;
 * what is chosen for a model in cuda_formats.c and cuda_shape.c, its kernels in cuda_kernels.c and
 * cuda_joined.c, memory, weights and lifetime in cuda_memory.c, cuda_weights.c and cuda_open.c; a run in
 * cuda_rows.c (its input), cuda_bands.c, cuda_chain.c, cuda_launch.c, cuda_select.c, cuda_step.c, cuda_prompt.c,
 * cuda_results.c, cuda_next.c and cuda_run.c, which cuts a batch for them.
 *
 * Three ways through a forward. Of a model with small layers, up to 8 rows with little attention:
 * the flow kernel, one launch for all layers (kernels_src/step/step.cu), which there is for all attention,
 * for pages that rows choose and, with an adapter, for rows that draft by it. Else the stage kernels, the
 * same arithmetic with one launch a stage, 64 rows at a time (step/layer.cu and others). A prompt's
 * rows: tensor-core products of 64 or 128 rows (step/prompt.cu and others). The flow kernels take longest
 * to compile: it goes on in the background after the model is open, and the stage kernels serve
 * until then, to the bit. What families have beyond plain llama's layers (STEP_EXTRA_, step/extras.cu)
 * is constants of the stages' and the prompt's kernels, and kernels between their products: such a
 * model has no flow kernel. Nor has one whose cache is not f16: step/extras.cu writes that.
 * Owns the packed weights and every buffer of the kernels. Calls device, jit, model, pages, block.
 *
 * Invariants: between forwards the half of the flow's exchange that the next one uses is empty; the
 * other holds at most clean_rows rows of clean_chunks chunks. Slot i of the device's page table holds
 * row slot_rows[i] of the host's, as it was when that row was settled. */

enum {
    STEP_FLOW_ROWS = 8,   /* of the flow kernel */
    STEP_STAGE_ROWS = 64, /* of the stage kernels */
    STEP_SELECT_PARTS = 32, /* blocks that score the pages of a row, at most */
    STEP_FLOW_MIB = 256,  /* of the flow's exchange; a model that needs more goes without */
    STEP_PARTS_MIB = 128, /* of the parts of attention that stages exchange, and at least */
    STEP_LONG_ROWS = 16,  /* rows at the end of the longest context */
    STEP_FEW_ROWS = 64,   /* of a prompt whose products run by blocks of few tokens, with wgmma: at least */
    STEP_BANDS_MIB = 24,  /* of weights: a step's product of more than eight rows takes two bands of them at a
                             time (H200: the 8B's gate_up and down 49 and 31 us for 55 and 45, its qkv of 14
                             MiB and all of a 1B's no faster) */
    STEP_MOST_VALUES = 256, /* of a block */
    STEP_MOST_DRAFTS = 16, /* tokens that the sampler head drafts at a time */
    STEP_ROW_CLUSTER = 8, /* blocks of a cluster that has a row alone, or twice as many: see cuda_chain.c */
    STEP_GRAPHS = 14, /* of a step: see cuda_graph_kind */
    STEP_POLL_US = 100, STEP_POLL_LAYERS = 2, /* how long a call launches, and what at a time */
    STEP_CONSTANTS = 43,
    STEP_FORMATS = 8,     /* of the weights of one product, over the layers */
    /* Hidden sizes from which products are those of kernels_src/dense/product.cuh, as they are where
     * weights have more formats than the flow kernel reads: weights stream through kernels of their
     * own, and there is no flow kernel, which wins where a layer is too small to hide the way from
     * one kernel to the next. */
    STEP_STREAM_FROM = 1024
};

typedef enum step_kernel {
    STEP_K_FLOW, STEP_K_SPARSE_FLOW, STEP_K_DRAFT_FLOW,
    STEP_K_EMBED, STEP_K_QKV, STEP_K_PROJECT, STEP_K_GATE_UP, STEP_K_DOWN,
    STEP_K_CONV_IN, STEP_K_CONV_OUT, STEP_K_EXPERT_UP, STEP_K_EXPERT_DOWN,
    STEP_K_ATTEND, STEP_K_HEAD,
    STEP_K_BOUNDS, STEP_K_SELECT, STEP_K_ATTEND_PAGES, STEP_K_FINISH, STEP_K_HEADS, STEP_K_ADD,
    STEP_K_CONV, STEP_K_ROUTE, STEP_K_PLACES, STEP_K_GATHER, STEP_K_COMBINE,
    PROMPT_K_EMBED, PROMPT_K_NORM, PROMPT_K_PROJECT, PROMPT_K_DOWN, PROMPT_K_LAST,
    PROMPT_K_CONV_OUT, PROMPT_K_EXPERT_DOWN,
    PROMPT_K_QKV, PROMPT_K_CONV_IN, PROMPT_K_EXPERT_UP, PROMPT_K_GATE_UP,
    PROMPT_K_ATTEND, PROMPT_K_HEADS, PROMPT_K_ADD,
    PROMPT_K_CONV, PROMPT_K_ROUTE, PROMPT_K_PLACES, PROMPT_K_GATHER, PROMPT_K_COMBINE,
    PROMPT_K_SPAN, PROMPT_K_MERGE,
    STEP_KERNELS
} step_kernel;

/* The products of a layer with its weights, and whatever else a program may hold: the bits of
 * CAIRN_PRODUCTS. A layer has those of its mixer and of its ffn. */
typedef enum step_product {
    STEP_P_QKV, STEP_P_O, STEP_P_GATE_UP, STEP_P_DOWN, STEP_P_OTHER,
    STEP_P_CONV_IN, STEP_P_CONV_OUT, STEP_P_EXPERT_UP, STEP_P_EXPERT_DOWN, STEP_PRODUCTS
} step_product;

/* Of each product of a layer: which of its formats the weights have, and where they lie; NULL: the
 * layer has no such product. */
typedef struct step_layer {
    uint8_t which[STEP_PRODUCTS];
    uint8_t *weights[STEP_PRODUCTS];
} step_layer;

/* Of a model whose layers attend by latents: what cuda_latent.c works on. */
typedef struct cuda_latents {
    model_shape stages;    /* what the other kernels are made for: the model's, but for its heads */
    int heads;             /* of the model; 0: there are no such layers */
    int rows, most;        /* at a time; tokens that a row attends at most */
    int64_t stride;        /* tokens of the longest sequence */
    uint8_t *weights[CAIRN_MAX_LAYERS]; /* of a layer, one behind the other, as the file has them */
    jit_kernel kernels[4];
    /* of all rows of a forward */
    float *x, *q_latent, *k, *turning, *index_k, *gates, *key_scales;
    uint8_t *keys;
    int32_t *lengths, *slots;
    /* of those at a time; `wide`: heads as they come from a product, and as they go into one */
    float *wide, *q, *attended, *index_q, *weight, *scores, *parts;
    uint8_t *index_bytes;
    int32_t *tokens;
    uint32_t *arrived, *scratch, *flags; /* of attention, and of topk: zero between kernels */
    size_t part_bytes, flag_bytes, choice_bytes, choice_flags; /* the first two of a row */
} cuda_latents;

/* What is compiled in the background waits until it can be launched, or never can. */
typedef enum step_flow_state { STEP_FLOW_WAITS, STEP_FLOW_READY, STEP_FLOW_FAILED } step_flow_state;

/* A block of a prompt's products (kernels_src/step/prompt.cuh): its warps that multiply, the tiles of 16 outputs
 * that each has, its tokens, and the warps that bring those. */
typedef struct step_block {
    int warps, each, tokens, carriers;
} step_block;

/* What the kernels of a program are for: all rows, a row alone, a prompt's products by large blocks, by
 * blocks of few tokens, a step's of many rows. All but the first hold products alone. */
typedef enum step_form {
    STEP_FORM_ALL, STEP_FORM_ALONE, STEP_FORM_LARGE, STEP_FORM_FEW, STEP_FORM_BANDS
} step_form;

typedef enum step_wide {
    STEP_WIDE_QKV, STEP_WIDE_PROJECT, STEP_WIDE_GATE_UP, STEP_WIDE_DOWN, STEP_WIDE
} step_wide;

/* Of a step of many rows: the chunks of runs that a block of attention takes, and the most blocks of a row
 * then; 0: it takes one run (cuda_chain.c). */
typedef struct step_chain { int chunks, blocks; } step_chain;

/* What there is for a step of few rows that see all: of a row alone clusters, too. */
typedef struct step_row_ways { bool clusters, relays; } step_row_ways;

/* What a graph of a step has blocks for: runs of chunks, groups of rows, rows whose logits are wanted. */
typedef struct step_graph_size {
    int chunks, groups, wanted;
    step_chain chain;
} step_graph_size;

/* The buffers of one way through: rows it holds, and what its kernels are given. */
typedef struct step_lane {
    int rows; /* 0: there is no such way */
    uint64_t exchange_bytes;
    step_params params;
    int32_t *words; /* host: STEP_HEAD + STEP_ARRAYS * rows */
} step_lane;

/* What decides over the kernels of a slice: see cuda_forms.c. */
typedef struct cuda_form {
    const forward_rule *rule;
    bool landmarks; /* of the rows' sequences */
    bool steps;     /* not a prompt's: what they read and choose is told */
} cuda_form;

/* Rows of a batch that one run of kernels serves; those of one sequence follow one another. */
typedef struct step_part {
    forward_batch *batch;
    int32_t *at, *sequences;  /* [rows] which of the batch's rows and sequences each is, and is of */
    const int32_t *slots;     /* of the batch's sequences */
    const forward_rule *rule; /* NULL: all rows attend all */
    cuda_form form;           /* of its layers that select; rule NULL: the plain one */
    bool watched;             /* somebody asks what its rows choose in the plain one */
    bool joined;              /* of several sequences' prompts */
    int rows;
    int logit_first, logit_count; /* the rows whose logits are made: from the first wanted on; where they
                                     are joined those that are wanted, f->wanted */
    int runs; /* of chunks that any of its rows' attention is cut into, at most */
} step_part;

/* Row r of a part; its sequence. */
static const forward_row *cuda_part_row(const step_part *part, int r) {
    return &part->batch->rows[part->at[r]];
}
static const forward_sequence *cuda_part_sequence(const step_part *part, int r) {
    return &part->batch->sequences[part->sequences[r]];
}

/* Kernels of the stages that are programs of their own: of steps of many rows, of a row alone by clusters of blocks and
 * by relay (cuda_chain.c), of a row alone that selects (cuda_select.c), of groups of more than eight queries
 * (cuda_rows.c). */
enum {
    STEP_SINGLE_CHAIN, STEP_SINGLE_ROW, STEP_SINGLE_RELAY, STEP_SINGLE_JOINT, STEP_SINGLE_GROUPS, STEP_SINGLES
};
typedef struct step_single {
    jit_kernel kernel;
    step_flow_state state;
    bool asked; /* it is being compiled, or was */
} step_single;

/* The forward that was begun, and the part of it that is served. */
typedef struct cuda_flight {
    forward_batch *batch; /* NULL: there is none */
    forward_kind kind;    /* of the rows that are served, and of which sequence: */
    int first;
    bool serves;          /* the rows that run with those of `first`, of sequences [at, end): */
    int at, end, left;    /* left: rows of sequence `at` */
    bool begun;           /* some of their parts are done */
    step_part part;       /* rows 0: the next is to be made up */
    int layer;            /* of a prompt's: the next to be launched */
    bool launched;        /* all of it */
    bool taken;           /* the forward before began it, see cuda_next.c: */
    int result_rows;      /* so many rows have results, */
    int askers[STEP_STAGE_ROWS]; /* which are those of this wanted row of the part; -1: nobody asks for them */
    CUstream stream;
    int ahead;            /* layers that the device may not have come past */
    CUevent start, mark;  /* before and behind what was launched; made once */
    bool started, marked; /* marked: the device is to come past it before anything else happens */
    int64_t took_us;      /* what the device took for what it came past; -1: it may have waited for more */
    int64_t looked_us;    /* the last call's end */
} cuda_flight;

/* The kernels of step/draft.cu. */
enum { DRAFT_PICK, DRAFT_FIRST, DRAFT_SECOND, DRAFT_TAKE, DRAFT_END, DRAFT_KERNELS };

/* The step after the one that is served, see cuda_next.c. */
typedef struct cuda_next {
    bool there;          /* it was launched, and nobody has asked for it yet */
    bool ruled;          /* it selects, by `rule` */
    forward_rule rule;
    int masks;           /* its rows are of one sequence, so many of them behind each token; 0: they do not draft */
    int count;           /* rows, each of a sequence of its own, in a slot; where they draft, as if all drafts held */
    forward_row rows[STEP_STAGE_ROWS];
    forward_sequence sequences[STEP_STAGE_ROWS];
    int32_t slots[STEP_STAGE_ROWS];
    CUevent ends[2];     /* behind it, by the half that it tells */
} cuda_next;

typedef struct forward_cuda_state {
    cairn_runtime *runtime;
    device *dev;
    const model_shape *shape;
    const model_plan *plan;
    size_t vector_at[PLAN_PARTS]; /* of a layer's vectors, in floats, for those in cuda_vectors */
    size_t vector_floats;         /* of a layer's vectors */
    int extras;      /* STEP_EXTRA_ bits: what its layers have beyond plain llama's */
    int cache_kind;  /* ATTEND_CACHE_ */
    int ropes;       /* that layers turn by */
    int window_runs; /* of a group of rows in any layer with a window, at most */
    int pack_head, pack_embed;
    /* The packed formats of each product, each once. Its kernels for formats[..][i] are in kernels
     * for i = 0, else in variants[i]. Of q, k and v that differ: q + 256 k + 65536 v. */
    int formats[STEP_PRODUCTS][STEP_FORMATS], format_counts[STEP_PRODUCTS];
    step_layer layers[CAIRN_MAX_LAYERS];
    step_block prompt_block, large_block; /* the second of many tokens; tokens 0: there is none */
    step_block few_blocks[2]; /* of few tokens; the second of all products but the widest, gate and up */
    int warps, blocks, narrow, chunk, chunks, runs, head_tiles, group_rows;
    int flow_chunks; /* of a row in the flow kernel, at most; 0: there is no flow kernel */
    int stage_parts; /* runs of chunks times rows in one run of the stage kernels, at most */
    int max_rows, max_pages, page_size, table_rows;
    int table_words; /* of a group's page table: they follow one another */
    const kv_groups *groups;
    const struct window_state *windows; /* [groups->count] */
    jit_kernel kernels[STEP_KERNELS], variants[STEP_FORMATS][STEP_KERNELS];
    jit_kernel alone_kernels[STEP_FORMATS][STEP_K_ATTEND]; /* the products of steps of one row */
    bool alone_built[STEP_FORMATS];
    bool alone; /* the step that is launched has one row */
    /* A prompt's products by large_block, by few_blocks; until they are there those by prompt_block serve. */
    jit_kernel large_kernels[STEP_FORMATS][STEP_KERNELS], few_kernels[STEP_FORMATS][STEP_KERNELS];
    bool large_built[STEP_FORMATS];
    step_flow_state later_state; /* of these, and of prompt_span and prompt_merge */
    bool later;   /* the prompt that is under way may run by them */
    step_form form; /* of the product of a prompt, or of a step's many rows, that is launched */
    /* For rows with adapters, see cuda_adapters.c: the products' kernels of each set of formats, and
     * the kernels of inner values, of steps and of prompts. */
    jit_kernel adapted[STEP_FORMATS][STEP_KERNELS], low_kernels[2], slot_kernels[2];
    device_arena adapter_arena; /* what they read and write, once there was an adapter */
    step_pair *pairs;           /* device: step_params.adapters */
    /* Of layers with forms, see cuda_forms.c; nothing before they are needed. [prompt][form_end] */
    struct {
        device_arena arena;
        int rows; /* of a slice */
        float *q, *whole, *pages, *lse, *scores, *weights, *head_scores;
        int32_t *selected, *chosen;
        size_t chosen_words; /* of a sequence */
        jit_kernel kernels[2][2], tell;
        jit_kernel unmarked; /* prompt_attend that sees no landmarks */
        bool watched; /* somebody asks what steps choose */
    } forms;
    /* For parts of several sequences' prompts, see cuda_joined.c. */
    jit_kernel joined_attend, joined_last, joined_span, joined_merge;
    step_flow_state joined_state;
    bool joined_asked;          /* they are being compiled, or were */
    step_single singles[STEP_SINGLES];
    int row_most;               /* blocks of a cluster at most, 0: there is no such kernel for the model */
    int row_places;             /* blocks of the clusters of several rows at most */
    bool may_relay;             /* whether there is such a kernel */
    step_chain chain;           /* of the step that is launched */
    step_row_ways row_ways;     /* of the same */
    int mergers;                /* see step_params */
    bool joint;                 /* the step that is launched selects by its kernel, see cuda_select.c */
    jit_kernel band_kernels[2][STEP_FORMATS][STEP_K_ATTEND]; /* of such steps' products, see cuda_bands.c; 1: that
                                                                heed adapters */
    size_t bands_from;          /* bytes of a layer's weights of a product that has such a kernel, at least */
    step_flow_state bands_state[2];
    bool bands_asked[2], banded; /* banded: the step that is launched may run by them */
    bool joined;                /* the part that is served is such a one */
    int32_t wanted[STEP_STAGE_ROWS]; /* of it: its rows whose logits are made */
    const kv_cache *held;
    bool adapts;                /* some row of the part that is served has an adapter */
    bool drafts;                /* some row of it drafts, or has an embedding of its own */
    jit_kernel own_kernels[2], keep_kernel, draft_attend, draft_kernels[DRAFT_KERNELS]; /* see cuda_draft.c */
    bool has_drafts; /* draft_attend is there */
    jit_kernel wide_kernels[STEP_WIDE]; /* of step/wide.cu, where has_wide */
    bool has_wide, wide;   /* wide: they serve the part */
    const cairn_adapter *wide_by; /* that graphs of wide products, and of the flow that drafts, are of */
    device_arena draft_arena; /* what the sampler head reads and writes, once an adapter had one */
    draft_params draft;
    draft_words drafting;       /* as the device has them, but for row and token */
    float *draft_logits;        /* device [vocab] */
    uint64_t *draft_winners;    /* device [blocks] */
    int32_t *draft_input;       /* device: the input of a head with one row */
    int32_t *drafted;           /* device: behind the pages read */
    const float *drafts_at;     /* where the last forward with drafts was to leave its hidden states */
    int ahead_count;            /* tokens in host_words that were drafted with it */
    const cairn_adapter *ahead_by;
    device_graph draft_graphs[STEP_MOST_DRAFTS + 1]; /* by tokens */
    uint32_t *trees;            /* device [STEP_STAGE_ROWS, tree_words] */
    uint8_t *host_trees;
    int tree_words;
    bool trees_put;             /* some row of the part has a mask */
    unsigned attend_bytes, product_bytes; /* shared memory of the stages */
    step_lane flow, stage, prompt;
    bool streamed;    /* see STEP_STREAM_FROM */
    device_arena arena;      /* all device memory below */
    uint64_t weights_bytes;  /* of it, norms included */
    void *host;              /* all host memory below */
    size_t host_bytes;
    bool can_select;  /* the flow kernel's shared memory would hold what selecting pages needs */
    bool sparse_flow; /* there is to be a flow kernel that selects pages, or there is */
    step_flow_state flow_states[3]; /* of STEP_K_FLOW, STEP_K_SPARSE_FLOW, STEP_K_DRAFT_FLOW */
    uint8_t *head, *embed;
    float *norms, *rope, *logits;
    float *vectors; /* [layer, vector_floats]: see cuda_vectors */
    float *routers; /* [layer, experts, hidden], where ffns are of experts */
    float **rings;  /* device [table_rows]: of the sequence in each slot, where layers convolve */
    float **slot_rings; /* [table_rows] the same, on the host */
    void **kv, **bounds; /* kv: [2 layers], the pages and, of e4m3, their scales */
    int32_t *table, *sampled, *fault;
    int32_t *lists, *list_counts, *new_pages, *pages_read;
    uint32_t *seen; /* [layer, sequence, kv_head, seen_words] */
    uint32_t *arrived;   /* [row, share of heads] blocks of a kernel; zero between kernels */
    uint32_t *relay;     /* see step_params */
    uint32_t *row_pages; /* [layer, STEP_FLOW_ROWS, kv_head, seen_words] */
    size_t seen_bytes;
    int32_t *host_pages; /* [max_pages] */
    int32_t *host_words; /* the fault word, the sampled tokens, the pages read */
    int32_t *host_told;  /* pinned [2, cuda_result_words]: where step_finish leaves them, of parts by turns */
    int tells, told;     /* the half of the last part that was launched; of the one that is served */
    CUevent come[2];     /* behind what is told, by halves */
    uint64_t *winners;
    cuda_latents latents;
    int32_t *slot_rows;  /* [table_rows] -1: nothing */
    uint64_t *slot_used; /* [table_rows] the forward that used it last */
    uint64_t forwards;
    int32_t *slots;      /* [table_rows] of this forward's sequences */
    int32_t *done;       /* [table_rows] of this forward's sequences: rows that were served */
    int32_t *stepped;    /* [table_rows] of this forward's sequences: rows in the run of steps */
    int32_t *part_rows, *part_sequences; /* [max_rows] of the part that is served */
    int32_t *ask_index, *logit_index, *hidden_index; /* [max_rows] of this forward's rows: where
                                                        results go */
    const sample_ask *asks[STEP_STAGE_ROWS]; /* of the part's wanted rows, NULL: not sampled */
    sample_space space;
    void *rules; /* device: of the space */
    uint32_t *masks;   /* device [STEP_STAGE_ROWS, words]: of tokens that may be drawn */
    int32_t epoch, clean_rows, clean_chunks;
    cuda_flight flight;
    cuda_next next;
    device_graph graph; /* the flow, and its best tokens */
    device_graph sparse_graph; /* the same with page selection */
    device_graph draft_flow_graphs[STEP_FLOW_ROWS]; /* the same with rows that draft, by the tokens that the
                                                       sampler head drafts behind them */
    const step_lane *lane; /* that serves the part */
    device_graph stage_graphs[STEP_GRAPHS][STEP_STAGE_ROWS + 1]; /* of sparse steps, by rows */
    forward_rule graph_rule; /* what these and sparse_graph were made for */
    bool graph_landmarks;
    /* Of others, by rows, for so much: */
    device_graph dense_graphs[STEP_GRAPHS][STEP_STAGE_ROWS + 1];
    step_graph_size graph_sizes[STEP_GRAPHS][STEP_STAGE_ROWS + 1];
} forward_cuda_state;
