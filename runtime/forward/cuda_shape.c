/* forward_cuda_shape: what the kernels are made for, chosen from the model's shape and the device's: what
 * its layers have beyond plain llama's, blocks, chunks, shared memory, and the exchange's size. See
 * cuda.c. */

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
    if (s->hidden % 32 || s->ffn % 32)
        return base_fail(b, CAIRN_UNSUPPORTED,
                         "hidden size %d, ffn size %d; multiples of 32 are supported on the GPU",
                         s->hidden, s->ffn);
    return CAIRN_OK;
}

/* Shares of a KV head's query heads that attention takes at a time (step/step.cuh). */
static int cuda_shares(const model_shape *s) { return (s->heads / s->kv_heads + 15) / 16; }

/* Of a block of attention that takes chains of runs (cuda_chain.c): its query heads, and its shared memory. */
static int cuda_chain_heads(const forward_cuda_state *f) {
    const int group = f->shape->heads / f->shape->kv_heads, shares = cuda_shares(f->shape);
    return (group + shares - 1) / shares;
}
static size_t cuda_chain_bytes(const forward_cuda_state *f) {
    return f->attend_bytes + (size_t)layout_step_chain_bytes(cuda_chain_heads(f), f->shape->head_dim);
}
/* The same of one by clusters. */
static size_t cuda_cluster_bytes(const forward_cuda_state *f) {
    const model_shape *s = f->shape;
    return f->attend_bytes + (size_t)layout_inbox_bytes(2 * STEP_ROW_CLUSTER, s->heads / s->kv_heads, s->head_dim);
}

/* Whether the model has such: of so few heads a block that two share a multiprocessor. */
static bool cuda_may_chain(const forward_cuda_state *f) {
    return !f->latents.heads && cuda_chain_heads(f) <= LAYOUT_STEP_CHAIN_HEADS &&
           cuda_chain_bytes(f) <= (size_t)f->dev->max_shared_bytes;
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

/* Pages of the whole context, as the kernels know it. */
static int cuda_context_pages(const forward_cuda_state *f) {
    return (f->chunks * f->chunk + f->page_size - 1) / f->page_size;
}

/* Shared memory of step_select. */
static size_t cuda_selection_bytes(const forward_cuda_state *f) {
    return (size_t)layout_select_bytes(cuda_context_pages(f), f->shape->heads / f->shape->kv_heads,
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

/* Bytes of one region of the exchange, as step/step.cuh lays it out; slots: of hidden states. */
static uint64_t cuda_region_bytes(const forward_cuda_state *f, int slots, int rows, int parts) {
    const model_shape *s = f->shape;
    const bool convolves = f->extras & STEP_EXTRA_CONV;
    uint64_t hidden = (uint64_t)s->hidden, n = (uint64_t)slots, r = (uint64_t)rows, heads = (uint64_t)s->heads;
    uint64_t attended = heads * (uint64_t)s->head_dim, qkv = (uint64_t)cuda_qkv_rows(s), summed = 0;
    uint64_t mixed = convolves && hidden > attended ? hidden : attended;
    uint64_t squares = (n * (hidden / 16) * 4 + 127) / 128 * 128;
    uint64_t bytes = 2 * (n * hidden * 2 + squares) + r * (qkv + (uint64_t)s->ffn + mixed) * 2 +
                     (uint64_t)parts * (heads * 8 + attended * 4);
    if (f->extras & (STEP_EXTRA_HEADS | STEP_EXTRA_POST)) summed = qkv > hidden ? qkv : hidden;
    if (convolves && 3 * hidden > summed) summed = 3 * hidden;
    bytes = (bytes + r * summed * 4 + 127) / 128 * 128;
    return (bytes + cuda_expert_bytes(f, rows) + 127) / 128 * 128;
}

/* Bytes of a lane's exchange: the residual stream, and so many regions. */
static uint64_t cuda_exchange_bytes(const forward_cuda_state *f, int rows, int regions, int parts) {
    return (uint64_t)rows * (uint64_t)f->shape->hidden * 4 +
           (uint64_t)regions * cuda_region_bytes(f, regions > 1 ? STEP_FLOW_SLOTS : rows, rows, parts);
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

static int cuda_block_outputs(const step_block *b) { return b->warps * b->each * 16; }

/* Whether prompts attend by wgmma, 128 queries a block. */
static bool cuda_attends_many(const forward_cuda_state *f) {
    return f->dev->arch == 90 && layout_has_many(f->shape->head_dim) && !f->cache_kind &&
           f->shape->heads <= LAYOUT_MANY_ROWS * f->shape->kv_heads && !f->latents.heads &&
           f->dev->max_shared_bytes >= layout_spans_bytes(f->shape->head_dim);
}

/* Rows of one block of a prompt's attention. */
static int cuda_attend_rows(const forward_cuda_state *f, bool many) {
    return many ? LAYOUT_MANY_ROWS / (f->shape->heads / f->shape->kv_heads) : 64;
}

static unsigned cuda_prompt_attend_bytes(const forward_cuda_state *f) {
    const int dim = f->shape->head_dim;
    return (unsigned)(cuda_attends_many(f) ? layout_spans_bytes(dim) : layout_prompt_bytes(dim));
}

/* Shared memory of a prompt's products: as many steps of 128 inputs as are held at once. */
static unsigned cuda_prompt_bytes(const forward_cuda_state *f, const step_block *b) {
    if (b->carriers) return (unsigned)step_apart_bytes(b->tokens);
    return (unsigned)(b->tokens * 256 * (f->dev->arch == 90 ? 4 : 2));
}

/* A product's blocks, of as many outputs as `b` has and of so many tokens. */
static int cuda_prompt_blocks(const step_block *b, int outputs, int rows, int tokens) {
    const int each = cuda_block_outputs(b);
    return (outputs + each - 1) / each * ((rows + tokens - 1) / tokens);
}

/* Turns that the multiprocessors take with them. */
static int cuda_prompt_turns(const forward_cuda_state *f, int outputs, int rows, int tokens) {
    const int sms = f->dev->sm_count;
    return (cuda_prompt_blocks(&f->prompt_block, outputs, rows, tokens) + sms - 1) / sms;
}

/* Whether a product takes less time by blocks of 256 tokens than of 128: one takes 1.45 times as long as one
 * of these. */
static bool cuda_pays_large(const forward_cuda_state *f, int outputs, int rows) {
    return 29 * cuda_prompt_turns(f, outputs, rows, 256) <= 20 * cuda_prompt_turns(f, outputs, rows, 128);
}

/* Whether a product takes less time by blocks `b` of few tokens: of few rows always; of more while there are
 * no more blocks than take as long as one turn of blocks of 128 tokens (H200, 135M to 8B, 80 to 2000 rows):
 * four of four warps a multiprocessor, or one of eight. */
static bool cuda_pays_few(const forward_cuda_state *f, const step_block *b, int outputs, int rows) {
    const bool wgmma = f->dev->arch == 90;
    const int most = f->dev->sm_count * (b->warps == 4 ? 4 : 1);
    if (!b->tokens) return false;
    if (rows <= (wgmma ? STEP_FEW_ROWS : 32)) return true;
    return wgmma && cuda_prompt_blocks(b, outputs, rows, b->tokens) <= most;
}

/* Blocks of 128 tokens whose carriers bring them, and of 256 where the product of the most outputs is faster
 * by these. Of few rows weights are what takes
 * time: blocks whose carriers bring these far ahead, of 128 outputs, and of 64 where outputs are as few as
 * the residual stream's. Of experts few slots are one's: there the largest blocks without carriers of which the product
 * of the fewest has enough for three of four multiprocessors. A row's bits are the same in all. */
static void cuda_choose_prompt(forward_cuda_state *f) {
    static const step_block wide[] = {{8, 1, 128, 0}, {8, 1, 64, 0}};
    const model_shape *s = f->shape;
    const bool parts = s->heads * s->head_dim % 128 || s->kv_heads * s->head_dim % 128;
    f->prompt_block = (step_block){4, 1, 64, 0};
    if (f->dev->arch != 90 && !s->experts) f->few_blocks[0] = f->few_blocks[1] = (step_block){4, 1, 32, 0};
    if (f->dev->arch != 90) return; /* by mma two tiles a warp spill with Q5_K, Q6_K */
    if (parts && !cuda_is_uniform(f->plan)) return; /* a block's tiles are all of q, of k or of v */
    for (size_t i = BASE_COUNT(wide); i-- > 0 && s->experts;)
        if ((s->hidden / 128) * (f->max_rows / wide[i].tokens) >= f->dev->sm_count * 3 / 4)
            f->prompt_block = wide[i];
    if (s->experts) return;
    f->prompt_block = (step_block){8, 1, 128, 4};
    f->few_blocks[0] = (step_block){8, 1, STEP_FEW_TOKENS, 2};
    f->few_blocks[1] = (step_block){4, 1, STEP_FEW_TOKENS, 2};
    if (cuda_pays_large(f, 2 * s->ffn, f->max_rows)) f->large_block = (step_block){8, 1, 256, 4};
}

/* Kernels of a row alone (cuda_chain.c): not where a flow kernel serves such rows. Of more KV heads the clusters would
 * not all find room at once; sixteen blocks wait longer for it, which runs of heads of 64 do not make up for (H200: a
 * 1B behind 2050 tokens 397 us for 389 by relay, an 8B of Q4_K_M behind 1900 1674 for 1716). Blocks that merge wait for
 * others, also for some that begin later: they are few enough that those find room beside them. */
static void cuda_choose_row_kernels(forward_cuda_state *f) {
    const int kv_heads = f->shape->kv_heads, mergers = f->blocks / 4 / kv_heads;
    f->may_relay = !f->flow_chunks && !f->latents.heads && cuda_shares(f->shape) == 1;
    f->row_places = f->blocks;
    f->row_most = f->shape->head_dim > 64 ? 2 * STEP_ROW_CLUSTER : STEP_ROW_CLUSTER;
    while (f->row_most * kv_heads > 2 * f->blocks) f->row_most /= 2;
    if (!f->may_relay || !device_has_clusters(f->dev) || f->row_most < STEP_ROW_CLUSTER) f->row_most = 0;
    f->mergers = mergers < 1 ? 1 : mergers > 8 ? 8 : mergers;
}

/* Whether products whose K is cut into parts spread them over clusters (dense/product.cuh). */
static bool cuda_spreads(const forward_cuda_state *f) { return f->streamed && device_has_clusters(f->dev); }

_Static_assert((int)CAIRN_KV_BF16 == ATTEND_CACHE_BF16 && (int)CAIRN_KV_F32 == ATTEND_CACHE_F32 &&
               (int)CAIRN_KV_E4M3 == ATTEND_CACHE_E4M3, "kinds of caches");

/* What the kernels are made for. */
static void cuda_choose_shape(forward_cuda_state *f, const cairn_model *m, int max_rows) {
    const model_shape *s = f->shape;
    int tiles = s->hidden / 16;
    size_t meeting;
    f->streamed = (s->hidden >= STEP_STREAM_FROM || !cuda_is_uniform(&m->plan)) &&
                  f->dev->max_shared_bytes >= PRODUCT_SHARED;
    cuda_choose_formats(f, m);
    f->cache_kind = s->latent.q_rank ? ATTEND_CACHE_F16 : (int)m->runtime->config.kv_dtype;
    /* Only the kernel that works on whole heads writes another kind of cache than f16. */
    f->extras = cuda_plan_extras(f->plan) | (f->cache_kind ? STEP_EXTRA_HEADS : 0);
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
    if (f->cache_kind == ATTEND_CACHE_E4M3) f->attend_bytes += (unsigned)layout_scale_bytes(s->head_dim);
    f->head_tiles = 4;
    meeting = 2 * 4 * ((size_t)f->warps * 4 * 128 + 8);
    if (f->attend_bytes + meeting > (size_t)f->dev->max_shared_bytes) {
        f->head_tiles = 2;
        meeting = 2 * 4 * ((size_t)f->warps * 2 * 128 + 8);
    }
    f->product_bytes = f->streamed ? (unsigned)PRODUCT_SHARED : (unsigned)meeting;
    if (cuda_spreads(f)) f->product_bytes += PRODUCT_SPREAD_SHARED;
    f->bands_from = (size_t)STEP_BANDS_MIB << 20;
    if (!f->streamed && !f->extras && cuda_is_uniform(&m->plan) && s->head_dim % 64 == 0 &&
        cuda_shares(s) == 1 && !f->latents.heads)
        cuda_choose_flow(f);
    cuda_choose_row_kernels(f);
    cuda_choose_parts(f);
    f->can_select = f->flow_chunks > 0 && cuda_selection_bytes(f) <= meeting;
    f->sparse_flow = f->can_select && cuda_selects_any(&m->runtime->config, s->layers);
}
