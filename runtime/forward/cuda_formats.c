/* forward_cuda_formats: the packed formats of weights, and which of them each product of a layer has. See
 * cuda.c. */

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
