/* forward_cuda_draft: rows that draft, and the sampler head (model/adapter.h) on the GPU.
 *
 * What such a row sees is a constant of the attention kernel (STEP_EXTRA_DRAFTS): others run by the kernel
 * they had. The hidden states of masks stay on the device. Where one sequence verifies, the token behind
 * the drafts that hold is found there too, and what the head drafts from it comes with the tokens drawn:
 * the host waits once. */

/* The attention kernel of rows that draft; compiled when the first does. */
static cairn_status cuda_need_drafts(forward_cuda_state *f, forward_batch *batch) {
    jit_constant constants[STEP_CONSTANTS];
    jit_request request;
    jit_program *program;
    cairn_status status;
    if (f->has_drafts) return CAIRN_OK;
    cuda_wants_stage(f, "step/attend.cu", "LARGE_GROUPS", 0, constants, &request);
    cuda_constant(constants, "EXTRAS")->value |= STEP_EXTRA_DRAFTS;
    if (batch) batch->prepared = true;
    if ((status = jit_get(f->dev->jit, &request, &program)) ||
        (status = jit_function(f->dev->jit, program, "step_attend", (int)f->attend_bytes,
                               &f->draft_attend)))
        return status;
    f->has_drafts = true;
    return CAIRN_OK;
}

/* ---- wide products --------------------------------------------------------------------------- */

/* Whether step/wide.cu is for the model: plain and small. */
static bool cuda_may_be_wide(const forward_cuda_state *f) {
    for (int i = STEP_P_QKV; i <= STEP_P_DOWN; i++)
        if (f->format_counts[i] != 1) return false;
    return !f->streamed && !f->extras && STEP_WIDE_BYTES(f->warps) <= f->dev->max_shared_bytes;
}

/* Whether it serves the adapter: one that drafts, of few inner values. */
static bool cuda_is_wide(const forward_cuda_state *f, const cairn_adapter *a) {
    return a->parts[ADAPTER_MASK] && a->rank <= STEP_WIDE_RANK && cuda_may_be_wide(f);
}

/* Bytes of what an adapter adds to a layer: tiles of A of q, k, v, o, gate and up in one, down; B. */
static size_t cuda_tile_bytes(const model_shape *s) {
    const size_t inputs = 4 * (size_t)s->hidden + (size_t)(s->heads * s->head_dim) + (size_t)s->ffn;
    const size_t outputs = (size_t)cuda_qkv_rows(s) + 2 * (size_t)(s->hidden + s->ffn);
    return inputs * 32 + outputs * STEP_WIDE_RANK * sizeof(float);
}

/* A of a product to rows from `row` on of a tile, as PACK_16 has them. */
static void cuda_pack_low(const adapter_pair *pair, int inputs, int row, uint8_t *tile) {
    for (int r = 0; pair && r < pair->rank; r++)
        for (int i = 0; i < inputs; i += 8) {
            uint16_t half[8];
            simd_for(0)->to_half(pair->a + (size_t)r * (size_t)inputs + i, half, 8);
            memcpy(tile + i / 32 * 1024 + row * 64 + (r * 4 + i % 32 / 8) * 16, half, sizeof half);
        }
}

/* B of a product, which every 16 outputs of a tile has `each` rows of. */
static void cuda_pack_gains(const adapter_pair *pair, int outputs, int each, float *to) {
    for (int n = 0; pair && n < outputs; n++)
        memcpy(to + (n / each * 16 + n % each) * STEP_WIDE_RANK, pair->b + (size_t)n * (size_t)pair->rank,
               (size_t)pair->rank * sizeof *to);
}

static void cuda_pack_tiles(const model_shape *s, const cairn_adapter *a, int layer, uint8_t *to) {
    const int width = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    const struct { int role, inputs, outputs, row; } all[] = {
        {PLAN_Q, s->hidden, width, 0}, {PLAN_K, s->hidden, kv, 0}, {PLAN_V, s->hidden, kv, 0},
        {PLAN_O, width, s->hidden, 0}, {PLAN_GATE, s->hidden, s->ffn, 0},
        {PLAN_UP, s->hidden, s->ffn, 8}, {PLAN_DOWN, s->ffn, s->hidden, 0}};
    float *b = (float *)(void *)(to + (4 * (size_t)s->hidden + (size_t)width + (size_t)s->ffn) * 32);
    for (size_t i = 0; i < BASE_COUNT(all); i++) {
        const adapter_pair *pair = adapter_of(a, layer, all[i].role);
        const bool halves = all[i].role == PLAN_GATE || all[i].role == PLAN_UP;
        cuda_pack_low(pair, all[i].inputs, all[i].row, to);
        cuda_pack_gains(pair, all[i].outputs, halves ? 8 : 16, b + all[i].row * STEP_WIDE_RANK);
        if (all[i].role == PLAN_GATE) continue; /* up is beside it */
        to += (size_t)all[i].inputs * 32;
        b += (size_t)all[i].outputs * (halves ? 2 : 1) * STEP_WIDE_RANK;
    }
}

static const uint8_t *cuda_tiles_of(const cairn_adapter *a) {
    return (const uint8_t *)a->device + (a->count * sizeof *a->values + 255) / 256 * 256;
}

/* Behind the adapter's values: its tiles. */
static cairn_status cuda_send_tiles(forward_cuda_state *f, const cairn_adapter *a) {
    const size_t each = cuda_tile_bytes(f->shape), bytes = each * (size_t)f->shape->layers;
    uint8_t *all;
    cairn_status status;
    if (!cuda_is_wide(f, a)) return CAIRN_OK;
    if (!(all = (uint8_t *)base_new(f->dev->base, bytes, 1)))
        return base_no_memory(f->dev->base, "an adapter", bytes);
    for (int l = 0; l < f->shape->layers; l++) cuda_pack_tiles(f->shape, a, l, all + (size_t)l * each);
    status = device_upload(f->dev, (uint8_t *)(uintptr_t)cuda_tiles_of(a), all, bytes);
    if (!status) status = device_sync(f->dev);
    else device_wait(f->dev);
    base_delete(f->dev->base, all, bytes, 1);
    return status;
}

static cairn_status cuda_build_wide(forward_cuda_state *f) {
    static const char *const names[] = {"wide_qkv", "wide_project", "wide_gate_up", "wide_down"};
    jit_constant constants[STEP_CONSTANTS];
    jit_request request;
    jit_program *program;
    cairn_status status;
    if (!cuda_may_be_wide(f)) return CAIRN_OK;
    cuda_wants_stage(f, "step/wide.cu", NULL, 0, constants, &request);
    status = jit_get(f->dev->jit, &request, &program);
    for (int i = 0; i < STEP_WIDE && !status; i++)
        status = jit_function(f->dev->jit, program, names[i], STEP_WIDE_BYTES(f->warps),
                              &f->wide_kernels[i]);
    f->has_wide = !status;
    return status;
}

/* Whether rows that draft are to have a flow kernel; it is begun before all that adapters need. */
static bool cuda_wants_draft_flow(const forward_cuda_state *f) {
    return cuda_may_be_wide(f) && f->flow_chunks && f->head_tiles >= 4; /* where A x meets */
}
static cairn_status cuda_begin_draft_flow(const forward_cuda_state *f) {
    jit_constant constants[STEP_CONSTANTS];
    jit_request request;
    if (f->draft.words || !cuda_wants_draft_flow(f)) return CAIRN_OK;
    request = cuda_flow_request(f, STEP_K_DRAFT_FLOW, constants);
    return jit_begin(f->dev->jit, &request, 1);
}

/* The adapter whose tiles serve the part: its rows that have one have one and the same, by which they
 * draft, as the last does; or NULL. */
static const cairn_adapter *cuda_wide_adapter(const forward_cuda_state *f, const step_part *part) {
    const cairn_adapter *a = part->rows ? cuda_part_row(part, part->rows - 1)->adapter : NULL;
    if (!f->has_wide || !a || !cuda_is_wide(f, a)) return NULL;
    for (int r = 0; r < part->rows; r++) {
        const cairn_adapter *own = cuda_part_row(part, r)->adapter;
        if (own && own != a) return NULL;
    }
    return a;
}

/* Its tiles are read now; graphs are made for one adapter. */
static void cuda_use_tiles(forward_cuda_state *f, const cairn_adapter *a) {
    if (f->wide_by == a) return;
    for (int i = 0; i < STEP_FLOW_ROWS; i++) cuda_free_graph(f, &f->draft_flow_graphs[i]);
    for (int i = 0; i <= STEP_STAGE_ROWS; i++)
        cuda_free_graph(f, &f->dense_graphs[STEP_GRAPHS - 1][i]);
    f->wide_by = a, f->stage.params.low_tiles = f->flow.params.low_tiles = cuda_tiles_of(a);
}

/* Tiles that a block of it has. */
static int cuda_wide_tiles(const forward_cuda_state *f, step_wide which) {
    const int tiles = STEP_WIDE_TILES(f->shape->hidden, f->warps);
    return which == STEP_WIDE_GATE_UP ? tiles : 1;
}

static cairn_status cuda_launch_wide(forward_cuda_state *f, step_wide which, int tiles, int rows, int l) {
    const unsigned windows = (unsigned)(rows + STEP_WIDE_ROWS - 1) / STEP_WIDE_ROWS;
    const device_dims dims = {{(unsigned)tiles, windows, 1}, (unsigned)f->warps * 32, 0,
                              (unsigned)STEP_WIDE_BYTES(f->warps), true};
    step_params p = f->stage.params;
    cuda_kernel_of(f, STEP_K_ATTEND, l, &p);
    return device_launch(f->dev, &f->wide_kernels[which], &dims, &p);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* What the sampler head needs. */
static void cuda_take_drafts(forward_cuda_state *f, device_arena *a) {
    static const char what[] = "drafts";
    const uint64_t hidden = (uint64_t)f->shape->hidden * 4;
    float *kept = (float *)device_take(a, (uint64_t)f->max_rows * hidden, what);
    float *gated = (float *)device_take(a, 2 * hidden, what);
    float *logits = (float *)device_take(a, (uint64_t)f->shape->vocab * 4, what);
    uint64_t *winners = (uint64_t *)device_take(a, (uint64_t)f->blocks * 8, what);
    int32_t *input = (int32_t *)device_take(a, STEP_HEAD * 4, what);
    draft_words *words = (draft_words *)device_take(a, sizeof *words, what);
    uint32_t *arrived = (uint32_t *)device_take(a, 4, what);
    if (a->measures || a->status) return;
    f->draft_logits = logits, f->draft_winners = winners, f->draft_input = input;
    f->draft = (draft_params){.words = words, .kept = kept, .tokens = f->drafted, .gated = gated,
                              .embed = f->embed, .exchange = f->stage.params.exchange,
                              .arrived = arrived, .sampled = f->sampled,
                              .norm_eps = f->shape->norm_eps,
                              .input_scale = f->stage.params.input_scale,
                              .embed_scale = f->plan->embed_scale, .told = f->host_told,
                              .told_words = (int32_t)cuda_result_words(f), .chunk = f->chunk};
}

static uint64_t cuda_draft_bytes(forward_cuda_state *f, const cairn_adapter *adapter) {
    device_arena a;
    memset(&a, 0, sizeof a);
    a.dev = f->dev, a.measures = true;
    if (adapter->parts[ADAPTER_MASK]) cuda_take_drafts(f, &a);
    return a.bytes;
}

static unsigned cuda_draft_shared(const forward_cuda_state *f, int kernel) {
    static const unsigned each[DRAFT_KERNELS] = {[DRAFT_FIRST] = 8, [DRAFT_SECOND] = 4};
    return kernel != DRAFT_PICK ? each[kernel] * (unsigned)f->shape->hidden + 64 : 0;
}

static cairn_status cuda_build_drafts(forward_cuda_state *f) {
    static const char *const names[DRAFT_KERNELS] = {"draft_pick", "draft_first", "draft_second", "draft_take",
                                                     "draft_end"};
    jit_constant constants[STEP_CONSTANTS];
    jit_request request;
    jit_program *program;
    cairn_status status;
    cuda_wants_stage(f, "step/draft.cu", NULL, 0, constants, &request);
    status = jit_get(f->dev->jit, &request, &program);
    for (int i = 0; i < DRAFT_KERNELS && !status; i++)
        status = jit_function(f->dev->jit, program, names[i], (int)cuda_draft_shared(f, i),
                              &f->draft_kernels[i]);
    return status;
}

/* For the model's first adapter that drafts. Graphs of steps are made anew: they know no such memory. */
static cairn_status cuda_open_drafts(forward_cuda_state *f) {
    int32_t head[STEP_HEAD] = {0};
    device_arena *a = &f->draft_arena;
    cairn_status status;
    if (f->draft.words) return CAIRN_OK;
    if ((status = cuda_need_drafts(f, NULL)) || (status = cuda_build_drafts(f)) ||
        (status = cuda_build_wide(f)) ||
        (cuda_wants_draft_flow(f) && (status = cuda_wait_flow(f, STEP_K_DRAFT_FLOW))))
        return status;
    cuda_take_drafts(f, a);
    head[STEP_ROWS] = head[STEP_LOGIT_COUNT] = 1;
    if (!(status = a->status))
        status = device_upload(f->dev, f->draft_input, head, sizeof head);
    if (status) {
        device_arena_free(a);
        memset(a, 0, sizeof *a), memset(&f->draft, 0, sizeof f->draft);
        a->dev = f->dev;
        return status;
    }
    memset(&f->drafting, 0, sizeof f->drafting);
    f->stage.params.kept = f->flow.params.kept = (float *)(uintptr_t)f->draft.kept;
    for (int kind = 2; kind < STEP_GRAPHS; kind++)
        for (int i = 0; i <= STEP_STAGE_ROWS; i++) {
            cuda_free_graph(f, &f->stage_graphs[kind][i]);
            cuda_free_graph(f, &f->dense_graphs[kind][i]);
        }
    return CAIRN_OK;
}

/* ---- launches -------------------------------------------------------------------------------- */

/* Behind the layers: the hidden states that are kept. */
static cairn_status cuda_keep_hidden(forward_cuda_state *f, int rows) {
    const device_dims dims = {{(unsigned)rows, 1, 1}, 256, 0, 64, true};
    if (!f->drafts || !f->adapts || !f->draft.words) return CAIRN_OK;
    return device_launch(f->dev, &f->keep_kernel, &dims, &f->stage.params);
}

static cairn_status cuda_launch_draft(forward_cuda_state *f, int kernel, const draft_params *p) {
    const unsigned blocks = kernel == DRAFT_TAKE                             ? 1 + STEP_FLOW_ROWS
                            : kernel == DRAFT_FIRST || kernel == DRAFT_SECOND ? ((unsigned)f->shape->hidden + 7) / 8
                                                                              : 1;
    const device_dims dims = {{blocks, 1, 1}, kernel != DRAFT_PICK ? 256 : 32, 0, cuda_draft_shared(f, kernel), true};
    return device_launch(f->dev, &f->draft_kernels[kernel], &dims, p);
}

/* Of draft `number` the logits, and what is best of each block's: the sampler head, and the model's. */
static cairn_status cuda_draft_logits(forward_cuda_state *f, int number) {
    const device_dims dims = {{(unsigned)f->blocks, 1, 1}, (unsigned)f->warps * 32, 0, f->product_bytes, true};
    draft_params p = f->draft;
    step_params head = f->stage.params;
    cairn_status status;
    p.number = number;
    head.input = f->draft_input, head.logits = f->draft_logits, head.winners = f->draft_winners;
    if ((status = cuda_launch_draft(f, DRAFT_FIRST, &p)) || (status = cuda_launch_draft(f, DRAFT_SECOND, &p)))
        return status;
    return device_launch(f->dev, &f->kernels[STEP_K_HEAD], &dims, &head);
}

/* Draft `number`: these, and the best token. */
static cairn_status cuda_draft_one(forward_cuda_state *f, int number) {
    const device_dims dims = {{1, 1, 1}, 32, 0, 0, true};
    const cairn_status status = cuda_draft_logits(f, number);
    finish_params end;
    memset(&end, 0, sizeof end);
    end.winners = f->draft_winners, end.tokens = f->drafted + number, end.blocks = f->blocks, end.rows = 1;
    return status ? status : device_launch(f->dev, &f->kernels[STEP_K_FINISH], &dims, &end);
}

/* Behind the flow kernel of rows that draft: what they leave and, of one sequence, `count` drafts. */
static cairn_status cuda_take_flow(forward_cuda_state *f, int count) {
    draft_params p = f->draft;
    cairn_status status;
    p.step = f->flow.params, p.capacity = p.step.capacity;
    p.input = cuda_input_of(&f->flow);
    p.masks = count, p.blocks = f->blocks;
    status = cuda_launch_draft(f, DRAFT_TAKE, &p);
    for (int i = 0; i < count - 1 && !status; i++) status = cuda_draft_one(f, i);
    if (status || !count) return status ? status : cuda_tell(f, &f->flow);
    p.step.winners = f->draft_winners, p.number = count - 1;
    return (status = cuda_draft_logits(f, count - 1)) ? status : cuda_launch_draft(f, DRAFT_END, &p);
}

/* `count` drafts from where the words say, as a graph. */
static cairn_status cuda_draft_many(forward_cuda_state *f, int count) {
    device_graph *graph = &f->draft_graphs[count];
    cairn_status status = CAIRN_OK;
    if (!graph->exec) {
        if ((status = device_graph_begin(f->dev))) return status;
        for (int i = 0; i < count && !status; i++) status = cuda_draft_one(f, i);
        if (status) {
            device_graph_abandon(f->dev);
            return status;
        }
        if ((status = device_graph_end(f->dev, graph))) return status;
    }
    return device_graph_launch(f->dev, graph);
}

/* Where the head begins, and whose it is; `at` NULL: row and token stay as they are on the device. */
static cairn_status cuda_send_words(forward_cuda_state *f, const cairn_adapter *a, const int32_t *at) {
    draft_words w, *to = f->draft.words;
    const float *values = (const float *)a->device;
    memset(&w, 0, sizeof w);
    if (at) w.row = at[0], w.token = at[1];
    w.first = values + (a->parts[ADAPTER_FIRST] - a->values);
    w.first_norm = values + (a->parts[ADAPTER_FIRST_NORM] - a->values);
    w.second = values + (a->parts[ADAPTER_SECOND] - a->values);
    w.second_norm = values + (a->parts[ADAPTER_SECOND_NORM] - a->values);
    if (!at && w.first == f->drafting.first) return CAIRN_OK;
    f->drafting = w;
    return device_upload(f->dev, to, &w, sizeof w);
}

/* Drafts behind what a part verifies: its rows from `real` on, `drafts` of them drafts, each with so many
 * masks; masks 0: there are none. */
typedef struct cuda_ahead { const cairn_adapter *adapter; int real, drafts, masks; } cuda_ahead;

static cairn_status cuda_begin_drafts(forward_cuda_state *f, const cuda_ahead *ahead) {
    draft_params p = f->draft;
    cairn_status status = cuda_send_words(f, ahead->adapter, NULL);
    p.input = cuda_input_of(f->lane), p.capacity = f->lane->params.capacity;
    p.real = ahead->real, p.drafts = ahead->drafts, p.masks = ahead->masks;
    if (status || (status = cuda_launch_draft(f, DRAFT_PICK, &p)) || (status = cuda_draft_many(f, ahead->masks)))
        return status;
    f->ahead_count = ahead->masks, f->ahead_by = ahead->adapter;
    return CAIRN_OK;
}

/* ---- the sampler head ------------------------------------------------------------------------ */

/* Drawn one by one, by the host. */
static cairn_status cuda_draw_drafts(forward_cuda_state *f, const cairn_adapter *a, int32_t *at, int count,
                                     const sample_ask *ask, float *probs, int32_t *out) {
    const size_t vocab = (size_t)f->shape->vocab;
    cairn_status status = CAIRN_OK;
    for (int j = 0; j < count && !status; j++, at[0]++) {
        sample_ask one = *ask;
        one.position += j;
        if ((status = cuda_send_words(f, a, at)) || (status = cuda_draft_one(f, 0)) ||
            (status = device_download(f->dev, f->space.row, f->draft_logits, vocab * sizeof(float))))
            break;
        at[1] = out[j] = ops_probs_guess(&f->space, &one, f->space.row, probs + (size_t)j * vocab);
    }
    return status;
}

static cairn_status forward_cuda_draft(cairn_model *model, const cairn_adapter *adapter,
                                       const float *hidden, int32_t token, int count,
                                       const sample_ask *ask, float *probs, int32_t *out) {
    forward_cuda_state *f = (forward_cuda_state *)model->state;
    int32_t at[2] = {(int32_t)((hidden - f->drafts_at) / f->shape->hidden), token};
    const int32_t *ahead = f->host_words + cuda_drafted_at(f);
    cairn_status status;
    if (ask) return cuda_draw_drafts(f, adapter, at, count, ask, probs, out);
    if (f->ahead_count < count || f->ahead_by != adapter || memcmp(ahead - 2, at, sizeof at)) {
        if ((status = cuda_send_words(f, adapter, at)) || (status = cuda_draft_many(f, count)) ||
            (status = device_download(f->dev, f->host_words + cuda_drafted_at(f), f->drafted,
                                      (size_t)count * 4)))
            return status;
    }
    for (int i = 0; i < count; i++) out[i] = ahead[i] < 0 ? 0 : ahead[i]; /* no number: a guess, as any */
    return CAIRN_OK;
}
