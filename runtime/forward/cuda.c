/* forward_cuda: the whole decoder forward on the GPU: packed weights, kernels, buffers. The run
 * itself is in cuda_run.c, memory and lifetime in cuda_open.c.
 *
 * Three ways through a forward. Of a model with small layers, up to 8 rows with little attention:
 * the flow kernel, one launch for all layers (kernels_src/step/step.cu). Else the stage kernels, the
 * same arithmetic with one launch a stage, 64 rows at a time (step/layer.cu and others). A prompt's
 * rows: tensor-core products of 64 or 128 rows (step/prompt.cu and others). The flow kernels take longest
 * to compile: it goes on in the background after the model is open, and the stage kernels serve
 * until then, to the bit. What families have beyond plain llama's layers (STEP_EXTRA_, step/extras.cu)
 * is constants of the stages' and the prompt's kernels, and kernels between their products: such a
 * model has no flow kernel.
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
    STEP_SLICE_MIB = 4,   /* of a weight on its way to the device */
    STEP_MOST_VALUES = 256, /* of a block */
    STEP_SAMPLED_AT = 4,  /* words from the fault word to the sampled tokens */
    STEP_MOST_DRAFTS = 16, /* tokens that the sampler head drafts at a time */
    STEP_GRAPHS = 5, /* of a step: see cuda_graph_kind */
    STEP_CONSTANTS = 37,
    STEP_MOST_GROUP = 32, /* query heads of a KV head */
    STEP_FORMATS = 8,     /* of the weights of one product, over the layers */
    /* Hidden sizes from which products are those of kernels_src/dense/product.cuh, as they are where
     * weights have more formats than the flow kernel reads: weights stream through kernels of their
     * own, and there is no flow kernel, which wins where a layer is too small to hide the way from
     * one kernel to the next. */
    STEP_STREAM_FROM = 1024
};

typedef enum step_kernel {
    STEP_K_FLOW, STEP_K_SPARSE_FLOW,
    STEP_K_EMBED, STEP_K_QKV, STEP_K_PROJECT, STEP_K_GATE_UP, STEP_K_DOWN,
    STEP_K_CONV_IN, STEP_K_CONV_OUT, STEP_K_EXPERT_UP, STEP_K_EXPERT_DOWN,
    STEP_K_ATTEND, STEP_K_HEAD,
    STEP_K_BOUNDS, STEP_K_SELECT, STEP_K_ATTEND_PAGES, STEP_K_FINISH, STEP_K_HEADS, STEP_K_ADD,
    STEP_K_CONV, STEP_K_ROUTE, STEP_K_PLACES, STEP_K_GATHER, STEP_K_COMBINE,
    PROMPT_K_EMBED, PROMPT_K_NORM, PROMPT_K_PROJECT, PROMPT_K_DOWN, PROMPT_K_LAST,
    PROMPT_K_CONV_OUT, PROMPT_K_EXPERT_DOWN,
    PROMPT_K_QKV, PROMPT_K_CONV_IN, PROMPT_K_EXPERT_UP, PROMPT_K_GATE_UP,
    PROMPT_K_ATTEND, PROMPT_K_HEAD, PROMPT_K_HEADS, PROMPT_K_ADD,
    PROMPT_K_CONV, PROMPT_K_ROUTE, PROMPT_K_PLACES, PROMPT_K_GATHER, PROMPT_K_COMBINE,
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

/* A flow kernel is compiled in the background until it can be launched, or never can. */
typedef enum step_flow_state { STEP_FLOW_WAITS, STEP_FLOW_READY, STEP_FLOW_FAILED } step_flow_state;

/* A block of a prompt's products (kernels_src/step/prompt.cuh): its warps, the tiles of 16 outputs
 * that each has, its tokens. */
typedef struct step_block {
    int warps, each, tokens;
} step_block;

typedef enum step_wide {
    STEP_WIDE_QKV, STEP_WIDE_PROJECT, STEP_WIDE_GATE_UP, STEP_WIDE_DOWN, STEP_WIDE
} step_wide;

/* What a graph of a step has blocks for: runs of chunks, groups of rows, rows whose logits are wanted. */
typedef struct step_graph_size { int chunks, groups, wanted; } step_graph_size;

/* The buffers of one way through: rows it holds, and what its kernels are given. */
typedef struct step_lane {
    int rows; /* 0: there is no such way */
    uint64_t exchange_bytes;
    step_params params;
    int32_t *words; /* host: STEP_HEAD + STEP_ARRAYS * rows */
} step_lane;

typedef struct forward_cuda_state {
    cairn_runtime *runtime;
    device *dev;
    const model_shape *shape;
    const model_plan *plan;
    size_t vector_at[PLAN_PARTS]; /* of a layer's vectors, in floats, for those in cuda_vectors */
    size_t vector_floats;         /* of a layer's vectors */
    int extras;      /* STEP_EXTRA_ bits: what its layers have beyond plain llama's */
    int ropes;       /* that layers turn by */
    int window_runs; /* of a group of rows in any layer with a window, at most */
    int pack_head, pack_embed;
    /* The packed formats of each product, each once. Its kernels for formats[..][i] are in kernels
     * for i = 0, else in variants[i]. Of q, k and v that differ: q + 256 k + 65536 v. */
    int formats[STEP_PRODUCTS][STEP_FORMATS], format_counts[STEP_PRODUCTS];
    step_layer layers[CAIRN_MAX_LAYERS];
    step_block prompt_block;
    int warps, blocks, narrow, chunk, chunks, runs, head_tiles, group_rows;
    int flow_chunks; /* of a row in the flow kernel, at most; 0: there is no flow kernel */
    int stage_parts; /* runs of chunks times rows in one run of the stage kernels, at most */
    int max_rows, max_pages, page_size, table_rows;
    int table_words; /* of a group's page table: they follow one another */
    const kv_groups *groups;
    jit_kernel kernels[STEP_KERNELS], variants[STEP_FORMATS][STEP_KERNELS];
    /* For rows with adapters, see cuda_adapters.c: the products' kernels of each set of formats, and
     * the kernels of inner values, of steps and of prompts. */
    jit_kernel adapted[STEP_FORMATS][STEP_KERNELS], low_kernels[2];
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
    const kv_cache *held;
    bool adapts;                /* some row of the part that is served has an adapter */
    bool drafts;                /* some row of it drafts, or has an embedding of its own */
    jit_kernel own_kernels[2], keep_kernel, draft_attend, draft_kernels[3]; /* see cuda_draft.c */
    bool has_drafts; /* draft_attend is there */
    jit_kernel wide_kernels[STEP_WIDE]; /* of step/wide.cu, where has_wide */
    bool has_wide, wide;   /* wide: they serve the part */
    const cairn_adapter *wide_by; /* that graphs of wide products are of */
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
    step_flow_state flow_states[2]; /* of STEP_K_FLOW, STEP_K_SPARSE_FLOW */
    uint8_t *head, *embed;
    float *norms, *rope, *logits;
    float *vectors; /* [layer, vector_floats]: see cuda_vectors */
    float *routers; /* [layer, experts, hidden], where ffns are of experts */
    float **rings;  /* device [table_rows]: of the sequence in each slot, where layers convolve */
    float **slot_rings; /* [table_rows] the same, on the host */
    void **kv, **bounds;
    int32_t *table, *sampled, *fault;
    int32_t *lists, *list_counts, *new_pages, *pages_read;
    uint32_t *seen; /* [layer, sequence, kv_head, seen_words] */
    uint32_t *arrived;   /* [row, share of heads] blocks of a kernel; zero between kernels */
    uint32_t *row_pages; /* [layer, STEP_FLOW_ROWS, kv_head, seen_words] */
    size_t seen_bytes;
    int32_t *host_pages; /* [max_pages] */
    int32_t *host_words; /* the fault word, the sampled tokens, the pages read */
    uint64_t *winners;
    cuda_latents latents;
    int32_t *slot_rows;  /* [table_rows] -1: nothing */
    uint64_t *slot_used; /* [table_rows] the forward that used it last */
    uint64_t forwards;
    int32_t *slots;      /* [table_rows] of this forward's sequences */
    int32_t *done;       /* [table_rows] of this forward's sequences: rows that were served */
    int32_t *stepped;    /* [table_rows] of this forward's sequences: rows in the run of steps */
    int32_t *part_rows, *part_sequences;  /* [max_rows] of the part that is served */
    int32_t *ask_index, *logit_index, *hidden_index; /* [max_rows] of this forward's rows: where
                                                        results go */
    const sample_ask *asks[STEP_STAGE_ROWS]; /* of the part's wanted rows, NULL: not sampled */
    sample_space space;
    void *rules; /* device: of the space */
    uint32_t *masks;   /* device [STEP_STAGE_ROWS, words]: of tokens that may be drawn */
    int32_t epoch, clean_rows, clean_chunks;
    device_graph graph; /* the flow, and its best tokens */
    device_graph sparse_graph; /* the same with page selection */
    device_graph stage_graphs[STEP_GRAPHS][STEP_STAGE_ROWS + 1]; /* of sparse steps, by rows */
    forward_rule graph_rule; /* what these and sparse_graph were made for */
    bool graph_landmarks;
    /* Of others, by rows, for so much: */
    device_graph dense_graphs[STEP_GRAPHS][STEP_STAGE_ROWS + 1];
    step_graph_size graph_sizes[STEP_GRAPHS][STEP_STAGE_ROWS + 1];
} forward_cuda_state;

/* ---- shapes ---------------------------------------------------------------------------------- */

static int64_t cuda_qkv_rows(const model_shape *s) {
    return (int64_t)(s->heads + 2 * s->kv_heads) * s->head_dim;
}

#define STEP_TYPE(type) ((uint64_t)1 << (type))

/* The packed formats, smallest first: bytes of a unit (kernels_src/abi/pack.h), and the block types
 * that they hold exactly; f16 holds all, rounded but for its own. A type of which nothing is said
 * here or in kernels_src/dense/blocks.cuh is dequantised by the host on its way. */
typedef struct step_format {
    int pack, unit_bytes;
    uint64_t types;
} step_format;

static const step_format step_stream_formats[] = {
    {PACK_Q4_0, 288, STEP_TYPE(BLOCK_Q4_0)},
    {PACK_Q4_K, 296, STEP_TYPE(BLOCK_Q4_K)},
    {PACK_Q4_1, 320, STEP_TYPE(BLOCK_Q4_0) | STEP_TYPE(BLOCK_Q4_1)},
    {PACK_Q5_0, 352, STEP_TYPE(BLOCK_Q4_0) | STEP_TYPE(BLOCK_Q5_0)},
    {PACK_Q5_K, 360, STEP_TYPE(BLOCK_Q4_K) | STEP_TYPE(BLOCK_Q5_K)},
    {PACK_Q5_1, 384, STEP_TYPE(BLOCK_Q4_0) | STEP_TYPE(BLOCK_Q4_1) | STEP_TYPE(BLOCK_Q5_0) |
                         STEP_TYPE(BLOCK_Q5_1)},
    {PACK_Q6_K, 424, STEP_TYPE(BLOCK_Q6_K)},
    {PACK_Q8_0, 544, STEP_TYPE(BLOCK_Q4_0) | STEP_TYPE(BLOCK_Q5_0) | STEP_TYPE(BLOCK_Q8_0)},
    {PACK_F16, 1024, ~(uint64_t)0}};

/* Those of the flow kernel. */
static const step_format step_flow_formats[] = {
    {PACK_4, 320, STEP_TYPE(BLOCK_Q4_0) | STEP_TYPE(BLOCK_Q4_1)},
    {PACK_8, 544, STEP_TYPE(BLOCK_Q8_0)},
    {PACK_16, 1024, ~(uint64_t)0}};

static size_t cuda_unit_bytes(int pack) {
    const step_format *all = pack < PACK_Q4_0 ? step_flow_formats : step_stream_formats;
    while (all->pack != pack) all++;
    return (size_t)all->unit_bytes;
}

/* The smallest format that holds both types. */
static int cuda_format(bool streamed, int type, int other) {
    const step_format *all = streamed ? step_stream_formats : step_flow_formats;
    const uint64_t both = STEP_TYPE(type) | STEP_TYPE(other);
    while (both & ~all->types) all++;
    return all->pack;
}

/* Bytes of [rows, inputs] in tiles of 16 rows. */
static size_t cuda_packed_bytes(int pack, int64_t rows, int64_t inputs) {
    return (size_t)((rows + 15) / 16) * (size_t)(inputs / 32) * cuda_unit_bytes(pack);
}

/* Of q, k or v (0 to 2) in a format of all three. */
static int cuda_qkv_format(int format, int which) {
    return format < 256 ? format : format >> 8 * which & 255;
}

/* Bytes of one layer's weights of a product, all in this format. */
static size_t cuda_product_bytes(const model_shape *s, int product, int format) {
    const int64_t q = (int64_t)s->heads * s->head_dim, kv = (int64_t)s->kv_heads * s->head_dim;
    const int64_t experts = s->experts;
    if (product == STEP_P_CONV_IN) return cuda_packed_bytes(format, 3 * (int64_t)s->hidden, s->hidden);
    if (product == STEP_P_CONV_OUT) return cuda_packed_bytes(format, s->hidden, s->hidden);
    if (product == STEP_P_EXPERT_UP) return cuda_packed_bytes(format, 2 * experts * s->ffn, s->hidden);
    if (product == STEP_P_EXPERT_DOWN) return cuda_packed_bytes(format, experts * s->hidden, s->ffn);
    if (product == STEP_P_O) return cuda_packed_bytes(format, s->hidden, q);
    if (product == STEP_P_GATE_UP) return cuda_packed_bytes(format, 2 * (int64_t)s->ffn, s->hidden);
    if (product == STEP_P_DOWN) return cuda_packed_bytes(format, s->hidden, s->ffn);
    return cuda_packed_bytes(cuda_qkv_format(format, 0), q, s->hidden) +
           cuda_packed_bytes(cuda_qkv_format(format, 1), kv, s->hidden) +
           cuda_packed_bytes(cuda_qkv_format(format, 2), kv, s->hidden);
}

static int cuda_layer_format(const forward_cuda_state *f, int layer, int product) {
    return f->formats[product][f->layers[layer].which[product]];
}

/* Whether a layer has a product, and whose roles its weights are: one, or the first of all. */
static bool cuda_has_product(const plan_layer *l, int product) {
    const bool conv = l->mixer == PLAN_SHORT_CONV, experts = l->weights[PLAN_ROUTER].rows > 0;
    switch (product) {
    case STEP_P_QKV: case STEP_P_O: return l->mixer == PLAN_ATTENTION;
    case STEP_P_CONV_IN: case STEP_P_CONV_OUT: return conv;
    case STEP_P_GATE_UP: case STEP_P_DOWN: return !experts;
    case STEP_P_EXPERT_UP: case STEP_P_EXPERT_DOWN: return experts;
    default: return false;
    }
}

static cairn_status forward_cuda_check_model(const cairn_model *model) {
    const model_shape *s = &model->shape;
    base *b = &model->runtime->base;
    if (s->latent.q_rank % 8 || s->latent.still % 8 || s->latent.value % 8)
        return base_fail(b, CAIRN_UNSUPPORTED, "queries of %d values, of a head %d that do not turn "
                         "and %d that come back; multiples of 8 are supported on the GPU",
                         s->latent.q_rank, s->latent.still, s->latent.value);
    if (s->heads * s->head_dim % 32 && !s->latent.q_rank)
        return base_fail(b, CAIRN_UNSUPPORTED, "%d heads of %d values; together a multiple of 32 is "
                         "supported on the GPU", s->heads, s->head_dim);
    if (s->heads / s->kv_heads > STEP_MOST_GROUP && !s->latent.q_rank)
        return base_fail(b, CAIRN_UNSUPPORTED,
                         "%d query heads share a KV head; up to %d are supported on the GPU",
                         s->heads / s->kv_heads, STEP_MOST_GROUP);
    if (s->hidden % 32 || s->ffn % 32)
        return base_fail(b, CAIRN_UNSUPPORTED,
                         "hidden size %d, ffn size %d; multiples of 32 are supported on the GPU",
                         s->hidden, s->ffn);
    return CAIRN_OK;
}

/* The types that kernels_src/dense/pack.cu reads. */
static bool cuda_reads(int type) {
    uint64_t types = STEP_TYPE(BLOCK_F32) | STEP_TYPE(BLOCK_F16) | STEP_TYPE(BLOCK_BF16);
    for (size_t i = 0; i + 1 < BASE_COUNT(step_stream_formats); i++)
        types |= step_stream_formats[i].types;
    return types >> type & 1;
}

/* Whether the flow kernel could read all weights at their size: each product has one format. */
static bool cuda_is_uniform(const model_plan *plan) {
    static const int roles[][2] = {{PLAN_Q, PLAN_Q}, {PLAN_K, PLAN_Q}, {PLAN_V, PLAN_Q},
                                   {PLAN_O, PLAN_O}, {PLAN_GATE, PLAN_GATE}, {PLAN_UP, PLAN_GATE},
                                   {PLAN_DOWN, PLAN_DOWN}}; /* and those whose products they share */
    const uint64_t plain = STEP_TYPE(BLOCK_F32) | STEP_TYPE(BLOCK_F16) | STEP_TYPE(BLOCK_BF16) |
                           STEP_TYPE(BLOCK_Q4_0) | STEP_TYPE(BLOCK_Q4_1) | STEP_TYPE(BLOCK_Q8_0);
    uint64_t types = STEP_TYPE(plan->embed.type) | STEP_TYPE(plan->head.type);
    for (int i = 0; i < plan->layer_count; i++)
        for (size_t j = 0; j < BASE_COUNT(roles) && plan->layers[i].mixer == PLAN_ATTENTION; j++) {
            const int type = plan->layers[i].weights[roles[j][0]].type;
            const int first = plan->layers[0].weights[roles[j][1]].type;
            types |= STEP_TYPE(type);
            if (cuda_format(false, type, type) != cuda_format(false, first, first)) return false;
        }
    return !(types & ~plain);
}

/* Shares of a KV head's query heads that attention takes at a time (step/step.cuh). */
static int cuda_shares(const model_shape *s) { return (s->heads / s->kv_heads + 15) / 16; }

/* q, k and v lie behind each other, each in its own format where weights stream and a prompt's block
 * of outputs, 64 at least, is of one. */
static int cuda_join_formats(const forward_cuda_state *f, int q, int k, int v) {
    const int a = cuda_format(f->streamed, q, q), b = cuda_format(f->streamed, k, k);
    const int dim = f->shape->head_dim;
    const int c = cuda_format(f->streamed, v, v);
    if (a == b && b == c) return a;
    if (f->streamed && (f->shape->heads * dim % 64 || f->shape->kv_heads * dim % 64)) return PACK_F16;
    return f->streamed ? a | b << 8 | c << 16 : PACK_16;
}

/* A layer's format of a product; the last that there is room for is f16, which holds any type. */
static void cuda_add_format(forward_cuda_state *f, step_layer *layer, int product, int format) {
    int *formats = f->formats[product], *count = &f->format_counts[product], i = 0;
    while (i < *count && formats[i] != format) i++;
    if (i == STEP_FORMATS - 1) format = f->streamed ? PACK_F16 : PACK_16;
    for (i = 0; i < *count && formats[i] != format;) i++;
    if (i == *count) formats[(*count)++] = format;
    layer->which[product] = (uint8_t)i;
}

/* The smallest format of a layer's weights of a product. */
static int cuda_layer_wants(const forward_cuda_state *f, const model_weight *w, int product) {
    static const int roles[STEP_PRODUCTS][2] = { /* of one tensor, or of two that lie together */
        {PLAN_Q, PLAN_Q}, {PLAN_O, PLAN_O}, {PLAN_GATE, PLAN_UP}, {PLAN_DOWN, PLAN_DOWN}, {0, 0},
        {PLAN_CONV_IN, PLAN_CONV_IN}, {PLAN_CONV_OUT, PLAN_CONV_OUT}, {PLAN_GATE, PLAN_UP},
        {PLAN_DOWN, PLAN_DOWN}};
    if (product == STEP_P_QKV)
        return cuda_join_formats(f, w[PLAN_Q].type, w[PLAN_K].type, w[PLAN_V].type);
    return cuda_format(f->streamed, w[roles[product][0]].type, w[roles[product][1]].type);
}

static void cuda_choose_formats(forward_cuda_state *f, const cairn_model *m) {
    const bool streamed = f->streamed;
    f->pack_embed = cuda_format(streamed, m->plan.embed.type, m->plan.embed.type);
    f->pack_head = cuda_format(streamed, m->plan.head.type, m->plan.head.type);
    for (int i = 0; i < f->shape->layers; i++) {
        const plan_layer *l = &m->plan.layers[i];
        for (int product = 0; product < STEP_PRODUCTS; product++)
            if (cuda_has_product(l, product))
                cuda_add_format(f, &f->layers[i], product, cuda_layer_wants(f, l->weights, product));
    }
}

/* ---- extras ---------------------------------------------------------------------------------- */

/* The extras of one layer, and those of a whole plan. */
static int cuda_layer_extras(const model_plan *plan, const plan_layer *l) {
    const bool halves = l->mixer == PLAN_ATTENTION && l->rope >= 0 &&
                        plan->ropes[l->rope].pairing == PLAN_PAIRS_HALVES;
    const bool heads = halves || l->parts[PLAN_Q_NORM].values || l->parts[PLAN_Q_BIAS].values;
    return (heads ? STEP_EXTRA_HEADS : 0) | (l->rope < 0 ? STEP_EXTRA_STILL : 0) |
           (l->parts[PLAN_MIXER_POST].values ? STEP_EXTRA_POST : 0) |
           (l->ffn == PLAN_GEGLU ? STEP_EXTRA_GEGLU : 0) | (l->window ? STEP_EXTRA_WINDOW : 0) |
           (l->mixer == PLAN_SHORT_CONV ? STEP_EXTRA_CONV : 0) |
           (l->weights[PLAN_ROUTER].rows ? STEP_EXTRA_EXPERTS : 0);
}
static int cuda_plan_extras(const model_plan *plan) {
    int extras = (plan->embed_scale > 0.0f ? STEP_EXTRA_EMBED : 0) |
                 (plan->attention_scale > 0.0f ? STEP_EXTRA_SCALE : 0);
    for (int i = 0; i < plan->layer_count; i++)
        extras |= cuda_layer_extras(plan, &plan->layers[i]);
    return extras;
}

/* The parts of layers that kernels read besides the norms, in their order: those that some layer has
 * have a place in every layer's vectors. */
static const plan_part cuda_vectors[] = {PLAN_Q_BIAS, PLAN_K_BIAS, PLAN_V_BIAS, PLAN_Q_NORM,
                                         PLAN_K_NORM, PLAN_MIXER_POST, PLAN_FFN_POST,
                                         PLAN_CONV_TAPS, PLAN_Q_DOWN_NORM, PLAN_LATENT_NORM,
                                         PLAN_INDEX_NORM, PLAN_INDEX_BIAS};

static void cuda_choose_vectors(forward_cuda_state *f) {
    for (size_t n = 0; n < BASE_COUNT(cuda_vectors); n++) {
        size_t most = 0;
        for (int i = 0; i < f->plan->layer_count; i++) {
            const model_vector *part = &f->plan->layers[i].parts[cuda_vectors[n]];
            if (part->values && (size_t)part->count > most) most = (size_t)part->count;
        }
        f->vector_at[cuda_vectors[n]] = f->vector_floats;
        f->vector_floats += most;
    }
}

/* Floats of the rotations of one rope. */
static size_t cuda_rope_floats(const forward_cuda_state *f) {
    return (size_t)f->chunks * (size_t)f->chunk * (size_t)f->shape->head_dim;
}

/* Chunks of a run of a window; the most runs with what a group of rows sees. */
static int cuda_window_run(const forward_cuda_state *f, int window) {
    const int chunks = (window + f->chunk - 1) / f->chunk;
    return layout_run(chunks < f->chunks ? chunks : f->chunks, f->shape->kv_heads);
}
static int cuda_window_runs(const forward_cuda_state *f, int window) {
    const int all = f->chunks * f->chunk, seen = window < all ? window : all;
    const int run = f->chunk * cuda_window_run(f, window);
    return (seen + f->group_rows - 1 + run - 2) / run + 1;
}

/* The group of a layer with attention, whose page table and cache are its own; 0: it keeps all pages. */
static int cuda_group(const forward_cuda_state *f, int layer) {
    const plan_layer *l = &f->plan->layers[layer];
    return l->mixer == PLAN_ATTENTION ? f->groups->of[l->state] : 0;
}

/* What a layer's kernels are given of its extras. */
static void cuda_set_extras(const forward_cuda_state *f, int layer, step_params *p) {
    const plan_layer *l = &f->plan->layers[layer];
    const plan_rope *rope = &f->plan->ropes[l->rope < 0 ? 0 : l->rope];
    const float *vectors = f->vectors + (size_t)layer * f->vector_floats;
    p->still = l->rope < 0;
    p->rope = f->rope + (l->rope < 0 ? 0 : (size_t)l->rope * cuda_rope_floats(f));
    p->rope_half = rope->pairing == PLAN_PAIRS_HALVES ? rope->dims / 2 : 0;
    p->rope_dims = rope->dims;
    p->bias = l->parts[PLAN_Q_BIAS].values ? vectors : NULL;
    p->head_norms = l->parts[PLAN_Q_NORM].values ? vectors + f->vector_at[PLAN_Q_NORM] : NULL;
    p->post_norms = vectors + f->vector_at[PLAN_MIXER_POST];
    p->taps = vectors + f->vector_at[PLAN_CONV_TAPS];
    p->state = l->state;
    p->router = f->routers + (size_t)layer * (size_t)f->shape->experts * (size_t)f->shape->hidden;
    p->page_table = f->table + (size_t)f->table_words * (size_t)cuda_group(f, layer);
    p->own_window = l->window;
    p->own_run = cuda_window_run(f, l->window);
    p->own_runs = cuda_window_runs(f, l->window);
}

/* What the plan asks for, once chunks and groups are chosen. */
static void cuda_choose_extras(forward_cuda_state *f) {
    f->ropes = 1;
    cuda_choose_vectors(f);
    for (int i = 0; i < f->plan->layer_count; i++) {
        const plan_layer *l = &f->plan->layers[i];
        const int runs = l->window ? cuda_window_runs(f, l->window) : 0;
        if (runs > f->window_runs) f->window_runs = runs;
        if (l->rope >= f->ropes) f->ropes = l->rope + 1;
    }
}

/* Warps of a block, 8 to 12: as many as share the hidden units most evenly. */
static int cuda_choose_warps(int hidden) {
    int units = hidden / 32, best = 8;
    for (int warps = 9; warps <= 12; warps++) {
        int rounds = (units + warps - 1) / warps, held = (units + best - 1) / best;
        if (rounds * warps < held * best) best = warps;
    }
    return best;
}

/* Whether step rows of such sequences attend in another form than the step's own kernels do. */
static bool cuda_has_forms(const forward_rule *rule, bool landmarks) {
    return rule && (landmarks || rule->two_level || rule->apart || rule->select.soft ||
                    rule->select.landmark);
}

/* Whether a config has layers that select by the step's own kernels: only then their flow kernel is worth
 * compiling. */
static bool cuda_selects_any(const cairn_config *config, int layers) {
    forward_rule rule;
    return forward_rule_of(config, config->page_size, layers, &rule) && !cuda_has_forms(&rule, false);
}

/* Shared memory of step_select. */
static size_t cuda_selection_bytes(const forward_cuda_state *f) {
    int pages = (f->chunks * f->chunk + f->page_size - 1) / f->page_size;
    return (size_t)layout_select_bytes(pages, f->shape->heads / f->shape->kv_heads,
                                       f->shape->head_dim);
}

/* Windows of up to `width` slots of experts that so many rows come to, at most. */
static int cuda_expert_windows(const model_shape *s, int rows, int width) {
    const int64_t slots = (int64_t)rows * s->experts_used;
    return (int)((slots < s->experts ? slots : s->experts) + slots / width);
}

/* Of the exchange, what experts take: step/families.cuh. */
static uint64_t cuda_expert_bytes(const forward_cuda_state *f, int rows) {
    const model_shape *s = f->shape;
    const uint64_t slots = (uint64_t)rows * (uint64_t)s->experts_used;
    if (!s->experts) return 0;
    return slots * ((uint64_t)s->hidden * 6 + (uint64_t)s->ffn * 2 + 12) +
           ((uint64_t)cuda_expert_windows(s, rows, 8) * 4 + 4) * 4;
}

/* Bytes of one region of the exchange, as step/step.cuh lays it out. */
static uint64_t cuda_region_bytes(const forward_cuda_state *f, int rows, int parts) {
    const model_shape *s = f->shape;
    const bool convolves = f->extras & STEP_EXTRA_CONV;
    uint64_t hidden = (uint64_t)s->hidden, r = (uint64_t)rows, heads = (uint64_t)s->heads;
    uint64_t attended = heads * (uint64_t)s->head_dim, qkv = (uint64_t)cuda_qkv_rows(s), summed = 0;
    uint64_t mixed = convolves && hidden > attended ? hidden : attended;
    uint64_t squares = (r * (hidden / 16) * 4 + 127) / 128 * 128;
    uint64_t bytes = 2 * (r * hidden * 2 + squares) + r * (qkv + (uint64_t)s->ffn + mixed) * 2 +
                     (uint64_t)parts * (heads * 8 + attended * 4);
    if (f->extras & (STEP_EXTRA_HEADS | STEP_EXTRA_POST)) summed = qkv > hidden ? qkv : hidden;
    if (convolves && 3 * hidden > summed) summed = 3 * hidden;
    bytes = (bytes + r * summed * 4 + 127) / 128 * 128;
    return (bytes + cuda_expert_bytes(f, rows) + 127) / 128 * 128;
}

/* Bytes of a lane's exchange: the residual stream, and so many regions. */
static uint64_t cuda_exchange_bytes(const forward_cuda_state *f, int rows, int regions, int parts) {
    return (uint64_t)rows * (uint64_t)f->shape->hidden * 4 +
           (uint64_t)regions * cuda_region_bytes(f, rows, parts);
}

/* Two halves of the flow's exchange, a region for each layer and one behind. */
static int cuda_flow_regions(const forward_cuda_state *f) { return 2 * (f->shape->layers + 1); }

/* The flow kernel serves rows whose chunks are one round of its blocks (cuda_suits_flow), so that
 * its exchange, which has a region for every layer, needs room for no more of them; a model whose
 * exchange is out of proportion all the same has no flow kernel. */
static void cuda_choose_flow(forward_cuda_state *f) {
    int most = (f->blocks - f->narrow) / f->shape->kv_heads;
    f->flow_chunks = most < f->runs ? most : f->runs;
    if (cuda_exchange_bytes(f, STEP_FLOW_ROWS, cuda_flow_regions(f),
                            f->flow_chunks * STEP_FLOW_ROWS) > (uint64_t)STEP_FLOW_MIB << 20)
        f->flow_chunks = 0;
}

/* Room for what the stages' rows have of runs: for all rows at the end of the context while that
 * is little, for a few of them always. A step with more is run in parts (cuda_has_room). */
static void cuda_choose_parts(forward_cuda_state *f) {
    int64_t bytes = (int64_t)f->shape->heads * (f->shape->head_dim * 4 + 8);
    int64_t parts = ((int64_t)STEP_PARTS_MIB << 20) / bytes / 16 * 16;
    int64_t least = (int64_t)f->runs * STEP_LONG_ROWS, most = (int64_t)f->runs * STEP_STAGE_ROWS;
    f->stage_parts = (int)(parts < least ? least : parts > most ? most : parts);
}

static int cuda_prompt_outputs(const forward_cuda_state *f) {
    return f->prompt_block.warps * f->prompt_block.each * 16;
}

/* Whether prompts attend by wgmma, 128 queries a block. */
static bool cuda_attends_many(const forward_cuda_state *f) {
    return f->dev->arch == 90 && layout_has_many(f->shape->head_dim);
}

static unsigned cuda_prompt_attend_bytes(const forward_cuda_state *f) {
    const int dim = f->shape->head_dim;
    return (unsigned)(cuda_attends_many(f) ? layout_many_bytes(dim) : layout_prompt_bytes(dim));
}

/* Shared memory of a prompt's products: as many steps of 128 inputs as are held at once. */
static unsigned cuda_prompt_bytes(const forward_cuda_state *f) {
    return (unsigned)(f->prompt_block.tokens * 256 * (f->dev->arch == 90 ? 4 : 2));
}

/* The largest blocks of which the product of the fewest outputs has enough for all multiprocessors.
 * A row's bits are the same in all. */
static void cuda_choose_prompt(forward_cuda_state *f) {
    static const step_block wide[] = {{8, 1, 128}, {8, 1, 64}};
    const model_shape *s = f->shape;
    const int least = f->dev->sm_count * 3 / 4;
    const bool parts = s->heads * s->head_dim % 128 || s->kv_heads * s->head_dim % 128;
    f->prompt_block = (step_block){4, 1, 64};
    if (f->dev->arch != 90) return; /* by mma two tiles a warp spill with Q5_K, Q6_K */
    if (parts && !cuda_is_uniform(f->plan)) return; /* a block's tiles are all of q, of k or of v */
    for (size_t i = BASE_COUNT(wide); i-- > 0;)
        if ((s->hidden / 128) * (f->max_rows / wide[i].tokens) >= least) f->prompt_block = wide[i];
}

/* Whether products whose K is cut into parts spread them over clusters (dense/product.cuh). */
static bool cuda_has_clusters(const forward_cuda_state *f) {
    return f->streamed && f->dev->arch >= 90 && f->dev->arch < 120;
}

/* What the kernels are made for. */
static void cuda_choose_shape(forward_cuda_state *f, const cairn_model *m, int max_rows) {
    const model_shape *s = f->shape;
    int tiles = s->hidden / 16;
    size_t meeting;
    f->streamed = (s->hidden >= STEP_STREAM_FROM || !cuda_is_uniform(&m->plan)) &&
                  f->dev->max_shared_bytes >= PRODUCT_SHARED;
    cuda_choose_formats(f, m);
    f->extras = cuda_plan_extras(f->plan);
    f->max_rows = max_rows;
    f->tree_words = (max_rows + 31) / 32;
    f->page_size = m->runtime->config.page_size;
    f->max_pages = model_pages_of(m->max_seq_len, f->page_size);
    f->table_rows = m->runtime->config.max_batch;
    f->table_words = f->table_rows * f->max_pages;
    f->groups = &m->groups;
    f->group_rows = cuda_shares(s) > 1 ? 1 : 16 / (s->heads / s->kv_heads);
    /* Attention of large heads needs the registers of more. */
    f->warps = f->streamed || s->head_dim > 128 ? 8 : cuda_choose_warps(s->hidden);
    f->chunk = layout_chunk(s->head_dim);
    f->chunks = (m->max_seq_len + f->chunk - 1) / f->chunk;
    f->runs = layout_context_runs(f->chunks * f->chunk, f->page_size, s->head_dim, s->kv_heads);
    cuda_choose_extras(f);
    cuda_choose_prompt(f);
    f->blocks = f->dev->sm_count;
    /* Blocks for the residual stream alone, where enough others are left for the rest. */
    f->narrow = f->blocks >= 2 * tiles ? tiles : 0;
    f->attend_bytes = (unsigned)layout_attend_bytes(s->head_dim);
    f->head_tiles = 4;
    meeting = 2 * 4 * ((size_t)f->warps * 4 * 128 + 8);
    if (f->attend_bytes + meeting > (size_t)f->dev->max_shared_bytes) {
        f->head_tiles = 2;
        meeting = 2 * 4 * ((size_t)f->warps * 2 * 128 + 8);
    }
    f->product_bytes = f->streamed ? (unsigned)PRODUCT_SHARED : (unsigned)meeting;
    if (cuda_has_clusters(f)) f->product_bytes += PRODUCT_SPREAD_SHARED;
    if (!f->streamed && !f->extras && cuda_is_uniform(&m->plan) && s->head_dim % 64 == 0 &&
        cuda_shares(s) == 1 && !f->latents.heads)
        cuda_choose_flow(f);
    cuda_choose_parts(f);
    f->can_select = f->flow_chunks > 0 && cuda_selection_bytes(f) <= meeting;
    f->sparse_flow = f->can_select && cuda_selects_any(&m->runtime->config, s->layers);
}

/* ---- kernels --------------------------------------------------------------------------------- */

/* The products of which there is a format `set`, as bits; of the first set all else too. */
static unsigned cuda_products_of(const forward_cuda_state *f, int set) {
    unsigned bits = set ? 0 : 1u << STEP_P_OTHER;
    for (int i = 0; i < STEP_PRODUCTS; i++) bits |= (unsigned)(f->format_counts[i] > set) << i;
    return bits;
}

/* The format of a product in `set`; where there is none its kernels are not built. */
static int cuda_set_format(const forward_cuda_state *f, int product, int set) {
    if (!f->format_counts[product]) return f->streamed ? PACK_F16 : PACK_16;
    return f->formats[product][f->format_counts[product] > set ? set : 0];
}

/* The last constant is SPARSE. */
static int cuda_constants(const forward_cuda_state *f, int set, int rows, int parts, int blocks,
                          jit_constant *out) {
    const model_shape *s = f->shape;
    const jit_constant all[] = {
        {"LAYERS", s->layers}, {"HIDDEN", s->hidden}, {"HEADS", s->heads},
        {"KV_HEADS", s->kv_heads}, {"HEAD_DIM", s->head_dim}, {"FFN", s->ffn},
        {"VOCAB", s->vocab}, {"CONTEXT", (int64_t)f->chunks * f->chunk},
        {"PAGE_SIZE", f->page_size},
        {"PACK_QKV", cuda_set_format(f, STEP_P_QKV, set)},
        {"PACK_O", cuda_set_format(f, STEP_P_O, set)},
        {"PACK_GATE_UP", cuda_set_format(f, STEP_P_GATE_UP, set)},
        {"PACK_DOWN", cuda_set_format(f, STEP_P_DOWN, set)},
        {"PRODUCTS", (int64_t)cuda_products_of(f, set)}, {"PACK_HEAD", f->pack_head},
        {"PACK_EMBED", f->pack_embed}, {"ROWS", rows}, {"PARTS", parts}, {"WARPS", f->warps},
        {"MEETING_TILES", f->head_tiles}, {"BLOCKS", blocks},
        {"NARROW", blocks ? f->narrow : 0}, {"EXTRAS", f->extras},
        {"PROMPT_WARPS", f->prompt_block.warps}, {"PROMPT_EACH", f->prompt_block.each},
        {"PROMPT_TOKENS", f->prompt_block.tokens},
        {"PACK_CONV_IN", cuda_set_format(f, STEP_P_CONV_IN, set)},
        {"PACK_CONV_OUT", cuda_set_format(f, STEP_P_CONV_OUT, set)}, {"TAPS", s->conv_taps},
        {"RING", RING_ROWS}, {"PACK_EXPERT_UP", cuda_set_format(f, STEP_P_EXPERT_UP, set)},
        {"PACK_EXPERT_DOWN", cuda_set_format(f, STEP_P_EXPERT_DOWN, set)},
        {"EXPERTS", s->experts ? s->experts : 1}, {"USED", s->experts ? s->experts_used : 1},
        {"SPARSE", 0}};
    memcpy(out, all, sizeof all);
    return (int)BASE_COUNT(all);
}

static unsigned cuda_shared_bytes(const forward_cuda_state *f, int kernel) {
    if (kernel == STEP_K_FLOW || kernel == STEP_K_SPARSE_FLOW)
        return f->product_bytes + f->attend_bytes;
    if (kernel == STEP_K_ATTEND || kernel == STEP_K_ATTEND_PAGES) return f->attend_bytes;
    if (kernel == STEP_K_SELECT) return (unsigned)cuda_selection_bytes(f);
    if (kernel >= PROMPT_K_EMBED && kernel <= PROMPT_K_GATE_UP) return cuda_prompt_bytes(f);
    if (kernel == PROMPT_K_ATTEND) return cuda_prompt_attend_bytes(f);
    if (kernel == STEP_K_ROUTE || kernel == PROMPT_K_ROUTE)
        return 4 * (unsigned)(f->shape->hidden + f->shape->experts + 8);
    if (kernel == STEP_K_PLACES || kernel == PROMPT_K_PLACES)
        return 4 * (unsigned)(2 * f->shape->experts + 1024);
    return kernel == STEP_K_FINISH ? 0 : f->product_bytes; /* enough for all others */
}

/* The product whose weights a kernel reads, or STEP_P_OTHER. */
static int cuda_kernel_product(int kernel) {
    switch (kernel) {
    case STEP_K_QKV: case PROMPT_K_QKV: return STEP_P_QKV;
    case STEP_K_PROJECT: case PROMPT_K_PROJECT: return STEP_P_O;
    case STEP_K_GATE_UP: case PROMPT_K_GATE_UP: return STEP_P_GATE_UP;
    case STEP_K_DOWN: case PROMPT_K_DOWN: return STEP_P_DOWN;
    case STEP_K_CONV_IN: case PROMPT_K_CONV_IN: return STEP_P_CONV_IN;
    case STEP_K_CONV_OUT: case PROMPT_K_CONV_OUT: return STEP_P_CONV_OUT;
    case STEP_K_EXPERT_UP: case PROMPT_K_EXPERT_UP: return STEP_P_EXPERT_UP;
    case STEP_K_EXPERT_DOWN: case PROMPT_K_EXPERT_DOWN: return STEP_P_EXPERT_DOWN;
    default: return STEP_P_OTHER;
    }
}

/* The kernel for a layer's weights, which it is given. */
static const jit_kernel *cuda_kernel_of(const forward_cuda_state *f, step_kernel kernel, int layer,
                                        step_params *p) {
    const step_layer *l = &f->layers[layer];
    const int product = cuda_kernel_product((int)kernel);
    const int set = product == STEP_P_OTHER ? 0 : l->which[product];
    const bool conv = l->weights[STEP_P_CONV_IN] != NULL;
    const bool experts = l->weights[STEP_P_EXPERT_UP] != NULL;
    p->layer = layer;
    p->qkv = l->weights[conv ? STEP_P_CONV_IN : STEP_P_QKV];
    p->o = l->weights[conv ? STEP_P_CONV_OUT : STEP_P_O];
    p->gate_up = l->weights[experts ? STEP_P_EXPERT_UP : STEP_P_GATE_UP];
    p->down = l->weights[experts ? STEP_P_EXPERT_DOWN : STEP_P_DOWN];
    cuda_set_extras(f, layer, p);
    if (f->adapts && product < STEP_P_OTHER) return &f->adapted[set][kernel];
    return set ? &f->variants[set][kernel] : &f->kernels[kernel];
}

static const char *const step_kernel_names[] = {
    "step_flow", "step_flow", "step_embed", "step_qkv", "step_project", "step_gate_up",
    "step_down", "step_conv_in", "step_conv_out", "step_expert_up", "step_expert_down",
    "step_attend", "step_head", "step_bounds", "step_select",
    "step_attend_pages", "step_finish", "step_heads", "step_add", "step_conv", "step_route",
    "step_places", "step_gather", "step_combine", "prompt_embed", "prompt_norm",
    "prompt_project", "prompt_down", "prompt_last", "prompt_conv_out", "prompt_expert_down",
    "prompt_qkv", "prompt_conv_in", "prompt_expert_up", "prompt_gate_up",
    "prompt_attend", "step_head", "step_heads", "step_add", "step_conv", "step_route",
    "step_places", "step_gather", "step_combine"};

/* Those of the kernels [first, first + count) that a program of `set` holds, once it is built. */
static cairn_status cuda_functions(forward_cuda_state *f, jit_program *program, int first,
                                   int count, int set) {
    const unsigned held = cuda_products_of(f, set);
    cairn_status status = CAIRN_OK;
    for (int i = first; i < first + count && !status; i++)
        if (held >> cuda_kernel_product(i) & 1)
            status = jit_function(f->dev->jit, program, step_kernel_names[i], (int)cuda_shared_bytes(f, i),
                                  set ? &f->variants[set][i] : &f->kernels[i]);
    return status;
}

static jit_request cuda_flow_request(const forward_cuda_state *f, int kernel,
                                     jit_constant *constants) {
    jit_request request = {"step/step.cu", constants, 0, true};
    request.constant_count = cuda_constants(f, 0, STEP_FLOW_ROWS, f->flow_chunks * STEP_FLOW_ROWS,
                                            f->blocks, constants);
    constants[request.constant_count - 1].value = kernel == STEP_K_SPARSE_FLOW;
    return request;
}

/* The programs without which no forward can be: first what weights wait for, then those that take
 * longest to compile. Each is as small as its kernels allow, for the longest says how long a first
 * start takes. Each set of formats has those with products of its own. */
typedef struct step_program {
    const char *source;
    int first, count;
    unsigned products;
    int extras; /* only for models with one of these */
} step_program;

static const step_program step_programs[] = {
    {"dense/pack.cu", 0, 0, 0, 0},
    {"step/prompt_attend.cu", PROMPT_K_ATTEND, 1, 0, 0}, {"step/attend.cu", STEP_K_ATTEND, 1, 0, 0},
    {"step/attend_pages.cu", STEP_K_ATTEND_PAGES, 1, 0, 0},
    {"step/prompt.cu", PROMPT_K_QKV, 4,
     1u << STEP_P_QKV | 1u << STEP_P_GATE_UP | 1u << STEP_P_CONV_IN | 1u << STEP_P_EXPERT_UP, 0},
    {"step/layer.cu", STEP_K_EMBED, 9, (1u << STEP_PRODUCTS) - 1, 0},
    {"step/prompt_residual.cu", PROMPT_K_EMBED, 7,
     1u << STEP_P_O | 1u << STEP_P_DOWN | 1u << STEP_P_CONV_OUT | 1u << STEP_P_EXPERT_DOWN, 0},
    {"step/select.cu", STEP_K_BOUNDS, 2, 0, 0},
    {"step/head.cu", STEP_K_HEAD, 1, 0, 0}, {"step/head.cu", PROMPT_K_HEAD, 1, 0, 0},
    {"step/extras.cu", STEP_K_HEADS, 2, 0, STEP_EXTRA_HEADS | STEP_EXTRA_POST},
    {"step/extras.cu", PROMPT_K_HEADS, 2, 0, STEP_EXTRA_HEADS | STEP_EXTRA_POST},
    {"step/conv.cu", STEP_K_CONV, 1, 0, STEP_EXTRA_CONV},
    {"step/conv.cu", PROMPT_K_CONV, 1, 0, STEP_EXTRA_CONV},
    {"step/experts.cu", STEP_K_ROUTE, 4, 0, STEP_EXTRA_EXPERTS},
    {"step/experts.cu", PROMPT_K_ROUTE, 4, 0, STEP_EXTRA_EXPERTS},
    {"step/finish.cu", STEP_K_FINISH, 1, 0, 0}};

enum { STEP_PROGRAMS = (int)BASE_COUNT(step_programs), STEP_REQUESTS = STEP_PROGRAMS * STEP_FORMATS };

/* What is asked of the compiler: for program which[i] % STEP_PROGRAMS of set which[i] /
 * STEP_PROGRAMS; constants of each set's stage and prompt kernels. */
typedef struct step_texts {
    jit_constant stage[STEP_FORMATS][STEP_CONSTANTS], prompt[STEP_FORMATS][STEP_CONSTANTS], pack;
    jit_request requests[STEP_REQUESTS + 2];
    int which[STEP_REQUESTS], count;
} step_texts;

static jit_request cuda_pack_request(const forward_cuda_state *f, jit_constant *constant) {
    const jit_request request = {"dense/pack.cu", constant, 1, false};
    *constant = (jit_constant){"STREAMED", f->streamed};
    return request;
}

static void cuda_request(const forward_cuda_state *f, step_texts *t, int set, int program) {
    const step_program *p = &step_programs[program];
    jit_request request = {p->source, t->stage[set], 0, false};
    if (set && !(p->products & cuda_products_of(f, set))) return;
    if (p->extras && !(p->extras & f->extras)) return;
    if (f->latents.heads && (p->first == STEP_K_BOUNDS || p->first == STEP_K_ATTEND_PAGES))
        return; /* no pages are chosen */
    request.constant_count = cuda_constants(f, set, STEP_STAGE_ROWS, f->stage_parts, 0,
                                            t->stage[set]);
    cuda_constants(f, set, f->max_rows, 0, 0, t->prompt[set]);
    if (p->first >= PROMPT_K_EMBED) request.constants = t->prompt[set];
    if (p->first == STEP_K_FINISH) request.constant_count = 0;
    if (!p->count) request = cuda_pack_request(f, &t->pack);
    t->which[t->count] = set * STEP_PROGRAMS + program;
    t->requests[t->count++] = request;
}

static void cuda_requests(const forward_cuda_state *f, step_texts *t) {
    t->count = 0;
    for (int i = 0; i < STEP_REQUESTS; i++)
        cuda_request(f, t, i / STEP_PROGRAMS, i % STEP_PROGRAMS);
}

static cairn_status cuda_end_latents(forward_cuda_state *f); /* cuda_latent.c */

/* Begins to compile everything; what takes long and can be done without comes last. */
static cairn_status cuda_begin_build(forward_cuda_state *f) {
    step_texts texts;
    jit_constant flow[2][STEP_CONSTANTS];
    jit_request *next;
    cuda_requests(f, &texts);
    next = texts.requests + texts.count;
    if (f->flow_chunks) *next++ = cuda_flow_request(f, STEP_K_FLOW, flow[0]);
    else f->flow_states[STEP_K_FLOW] = STEP_FLOW_FAILED;
    if (f->sparse_flow) *next++ = cuda_flow_request(f, STEP_K_SPARSE_FLOW, flow[1]);
    else f->flow_states[STEP_K_SPARSE_FLOW] = STEP_FLOW_FAILED;
    return jit_begin(f->dev->jit, texts.requests, (int)(next - texts.requests));
}

/* Waits for what cuda_begin_build began, but for the flow kernels. */
static cairn_status cuda_end_build(forward_cuda_state *f) {
    step_texts texts;
    cairn_status status = jit_wait(f->dev->jit);
    cuda_requests(f, &texts);
    for (int i = 0; i < texts.count && !status; i++) {
        const step_program *p = &step_programs[texts.which[i] % STEP_PROGRAMS];
        jit_program *program;
        status = jit_get(f->dev->jit, &texts.requests[i], &program);
        if (!status)
            status = cuda_functions(f, program, p->first, p->count, texts.which[i] / STEP_PROGRAMS);
    }
    return status || !f->latents.heads ? status : cuda_end_latents(f);
}

/* Whether a flow kernel can be launched by now. One that cannot be had is done without. */
static bool cuda_has_flow(forward_cuda_state *f, int kernel) {
    jit_constant constants[STEP_CONSTANTS];
    jit_request request;
    jit_program *program;
    cairn_status status;
    if (f->flow_states[kernel] != STEP_FLOW_WAITS) return f->flow_states[kernel] == STEP_FLOW_READY;
    request = cuda_flow_request(f, kernel, constants);
    status = jit_try(f->dev->jit, &request, &program);
    if (!status) status = cuda_functions(f, program, kernel, 1, 0);
    if (status == CAIRN_CANCELLED) status = jit_begin(f->dev->jit, &request, 1);
    else if (status != CAIRN_BUSY) f->flow_states[kernel] = status ? STEP_FLOW_FAILED
                                                                  : STEP_FLOW_READY;
    if (status && status != CAIRN_BUSY)
        base_log(f->dev->base, CAIRN_LOG_WARN, "steps go on by slower kernels: %s",
                 f->dev->base->error);
    return f->flow_states[kernel] == STEP_FLOW_READY;
}

/* A config whose layers select, after one with none that did, runs by the flow kernel that selects:
 * steps go on by the old config until it is compiled. Where it cannot be had the stage kernels
 * serve the new one; all else of a config is a parameter of the kernels. */
static cairn_status cuda_prepare_flow(cairn_model *model, const cairn_config *config) {
    forward_cuda_state *f = (forward_cuda_state *)model->state;
    const int layers = f->shape->layers;
    jit_constant constants[STEP_CONSTANTS];
    jit_request request;
    cairn_status status;
    if (!f->can_select || !cuda_selects_any(config, layers) ||
        cuda_selects_any(&model->runtime->config, layers))
        return CAIRN_OK;
    if (f->sparse_flow) {
        bool ready = cuda_has_flow(f, STEP_K_SPARSE_FLOW);
        return !ready && f->flow_states[STEP_K_SPARSE_FLOW] == STEP_FLOW_WAITS ? CAIRN_BUSY
                                                                              : CAIRN_OK;
    }
    request = cuda_flow_request(f, STEP_K_SPARSE_FLOW, constants);
    if ((status = jit_begin(f->dev->jit, &request, 1))) return status;
    f->flow_states[STEP_K_SPARSE_FLOW] = STEP_FLOW_WAITS;
    f->sparse_flow = true;
    return CAIRN_BUSY;
}

/* Waits for both flow kernels. [blocks] */
static cairn_status forward_cuda_wait(cairn_model *model) {
    forward_cuda_state *f = (forward_cuda_state *)model->state;
    cairn_status status = CAIRN_OK;
    for (int kernel = STEP_K_FLOW; kernel <= STEP_K_SPARSE_FLOW && !status; kernel++) {
        jit_constant constants[STEP_CONSTANTS];
        jit_request request = cuda_flow_request(f, kernel, constants);
        jit_program *program;
        if (kernel == STEP_K_FLOW ? !f->flow_chunks : !f->sparse_flow) break;
        status = jit_get(f->dev->jit, &request, &program);
        if (!status) status = cuda_functions(f, program, kernel, 1, 0);
        if (!status) f->flow_states[kernel] = STEP_FLOW_READY;
    }
    return status;
}
