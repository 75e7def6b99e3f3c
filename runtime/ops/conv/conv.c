/* ops_conv: the entries short_conv, short_conv_update and short_conv_restore. */

/* Blocks an SM: measured; fewer that go on beat a block a chunk. */
enum { CONV_BLOCK_TOKENS = 32, CONV_THREADS = 256, CONV_BLOCKS_AN_SM = 16 };

/* A checked call: what the kernels get, and what they are specialised to. */
typedef struct conv_call {
    short_conv_params p;
    cairn_type type;
    int width;
    bool aligned; /* every row, and every four channels in a row of weights, to 16 bytes */
} conv_call;

/* ---- arguments --------------------------------------------------------------------------------*/

/* The stride of a matrix of the call's type, and whether each of its rows is aligned. */
static int64_t conv_stride(conv_call *call, const cairn_tensor *t) {
    int64_t stride;
    if (!t) return 0;
    stride = tensor_stride(t, 0);
    if ((uintptr_t)tensor_data(t) % 16 ||
        stride * (int64_t)cairn_type_bytes(cairn_tensor_type(t)) % 16)
        call->aligned = false;
    return stride;
}

static void *conv_data(const cairn_tensor *t) { return t ? tensor_data(t) : NULL; }

/* What the kernels get of a call that the table holds right, but for what is a mode's own. */
static void conv_want(spec_call *s, const cairn_conv *a, conv_call *call) {
    short_conv_params *p = &call->p;
    memset(call, 0, sizeof *call);
    ops_refuse(&s->c, a->bias && cairn_tensor_type(a->bias) != cairn_tensor_type(a->weight),
               "bias has dtype %s; that of weight is expected, %s",
               cairn_type_name(cairn_tensor_type(a->bias)),
               cairn_type_name(cairn_tensor_type(a->weight)));
    if (s->c.status) return;
    call->aligned = true;
    call->type = s->type;
    call->width = (int)s->n[SPEC_TAPS] + 1;
    p->tokens = (int32_t)s->n[SPEC_TOKENS];
    p->channels = (int32_t)s->n[SPEC_CHANNELS];
    p->slots = (int32_t)s->n[SPEC_SLOTS];
    p->sequences = (int32_t)s->n[SPEC_SEQUENCES];
    p->x_stride = conv_stride(call, a->x), p->out_stride = conv_stride(call, a->out);
    p->gate_in_stride = conv_stride(call, a->gate_in);
    p->gate_out_stride = conv_stride(call, a->gate_out);
    p->x = tensor_data(a->x), p->out = tensor_data(a->out);
    p->gate_in = conv_data(a->gate_in), p->gate_out = conv_data(a->gate_out);
    p->weight = tensor_data(a->weight), p->bias = conv_data(a->bias);
    p->weight_is_f32 = cairn_tensor_type(a->weight) == CAIRN_F32;
    p->state = tensor_data(a->state);
    if (((uintptr_t)p->weight | (uintptr_t)p->bias | (uintptr_t)p->state) % 16)
        call->aligned = false;
    p->cu_seqlens = (const int32_t *)conv_data(a->cu_seqlens);
    p->state_indices = (const int32_t *)conv_data(a->state_indices);
    p->has_initial = (const int32_t *)conv_data(a->has_initial);
    p->silu = a->activation == CAIRN_ACTIVATION_SILU;
    p->reserved_slots = a->reserved_slots;
    p->error = ops_error_word(s->c.dev, s->c.op);
}

/* ---- launch -----------------------------------------------------------------------------------*/

static cairn_status conv_launch(cairn_runtime *rt, const conv_call *call, const char *entry,
                                unsigned blocks) {
    const int values = call->aligned && call->p.channels % 4 == 0 ? 4 : 1; /* channels a thread */
    const int32_t threads = (call->p.channels + values - 1) / values;
    device_dims dims = {{0, 1, 1}, CONV_THREADS, 0, 0, false};
    ops_kernel want;
    memset(&want, 0, sizeof want);
    want.source = "conv/short_conv.cu";
    want.entry = entry;
    want.constants[0].name = "TYPE", want.constants[0].value = (int64_t)call->type;
    want.constants[1].name = "WIDTH", want.constants[1].value = call->width;
    want.constants[2].name = "VALUES", want.constants[2].value = values;
    want.constants[3].name = "GATES";
    want.constants[3].value = (call->p.gate_in ? 1 : 0) | (call->p.gate_out ? 2 : 0);
    want.constants[4].name = "SILU", want.constants[4].value = call->p.silu != 0;
    want.constant_count = 5;
    if (threads < CONV_THREADS) dims.block = (unsigned)(threads + 31) / 32 * 32;
    dims.grid[0] = blocks;
    dims.grid[1] = (unsigned)(threads + CONV_THREADS - 1) / CONV_THREADS;
    return ops_launch_as(rt, &want, &dims, &call->p);
}

/* The list of every chunk of every sequence, into the workspace. */
static cairn_status conv_list_all(cairn_runtime *rt, short_conv_params *p) {
    short_conv_metadata_params m;
    int64_t most = (int64_t)p->tokens / p->block_tokens + p->sequences;
    void *memory = NULL;
    cairn_status status = handles_enter(rt);
    if (status) return status;
    status = handles_leave(rt, device_scratch(&rt->device, (size_t)most * 8, "short_conv",
                                              &memory));
    if (status) return status;
    memset(&m, 0, sizeof m);
    m.cu_seqlens = p->cu_seqlens;
    m.chunk_sequences = (int32_t *)memory;
    m.chunk_offsets = m.chunk_sequences + most;
    m.error = p->error;
    m.requests = p->sequences;
    m.chunk_capacity = (int32_t)most;
    m.block_tokens = p->block_tokens;
    m.decode_tokens = -1;
    p->chunk_sequences = m.chunk_sequences;
    p->chunk_offsets = m.chunk_offsets;
    p->chunks = m.chunk_capacity;
    return conv_launch_metadata(rt, &m);
}

static cairn_status conv_run_cuda(cairn_runtime *rt, conv_call *call) {
    int64_t most = (int64_t)call->p.tokens / call->p.block_tokens + call->p.sequences, blocks;
    cairn_status status = call->p.chunk_sequences ? CAIRN_OK : conv_list_all(rt, &call->p);
    if (status) return status;
    blocks = call->p.chunks < most ? call->p.chunks : most;
    if (blocks > CONV_BLOCKS_AN_SM * rt->device.sm_count)
        blocks = CONV_BLOCKS_AN_SM * rt->device.sm_count;
    return conv_launch(rt, call, "short_conv", (unsigned)blocks);
}

/* ---- entries ----------------------------------------------------------------------------------*/

static void conv_want_list(ops_check *c, const cairn_short_conv_args *a, conv_call *call) {
    int32_t block = a->block_tokens ? a->block_tokens : CONV_BLOCK_TOKENS;
    ops_refuse(c, block < call->width - 1, "block_tokens = %d; at least %d is expected", (int)block,
               call->width - 1);
    ops_refuse(c, !a->chunk_sequences != !a->chunk_offsets,
               "chunk_sequences and chunk_offsets go together");
    ops_refuse(c, !a->chunk_sequences && call->p.sequences > CONV_MAX_REQUESTS,
               "cu_seqlens has %d sequences; without a chunk list at most %d are expected",
               (int)call->p.sequences, CONV_MAX_REQUESTS);
    if (c->status) return;
    call->p.block_tokens = block;
    if (!a->chunk_sequences) return;
    call->p.chunks = (int32_t)a->chunk_sequences->shape[0];
    call->p.chunk_sequences = (const int32_t *)tensor_data(a->chunk_sequences);
    call->p.chunk_offsets = (const int32_t *)tensor_data(a->chunk_offsets);
}

cairn_status cairn_short_conv(cairn_runtime *rt, const cairn_short_conv_args *args) {
    cairn_short_conv_args a;
    conv_call call;
    spec_call s;
    if (spec_take(rt, SPEC_OF(short_conv), &a, args, &s)) return s.c.status;
    conv_want(&s, &a.conv, &call);
    if (s.c.status) return s.c.status;
    conv_want_list(&s.c, &a, &call);
    if (s.c.status || !call.p.channels || !call.p.sequences) return s.c.status;
    if (a.chunk_sequences && !call.p.chunks) return CAIRN_OK;
    if (rt->device.cuda) return spec_end(rt, conv_run_cuda(rt, &call));
    return spec_end(rt, conv_run_cpu(rt, "short_conv", &call.p, call.type, call.width));
}

cairn_status cairn_short_conv_update(cairn_runtime *rt, const cairn_short_conv_update_args *args) {
    cairn_short_conv_update_args a;
    conv_call call;
    spec_call s;
    if (spec_take(rt, SPEC_OF(short_conv_update), &a, args, &s)) return s.c.status;
    conv_want(&s, &a.conv, &call);
    ops_refuse(&s.c, a.snapshots && s.n[SPEC_KEPT] < s.n[SPEC_TAPS] + 1,
               "snapshots has %lld rows a sequence; at least %lld are expected",
               (long long)s.n[SPEC_KEPT], (long long)s.n[SPEC_TAPS] + 1);
    if (s.c.status) return s.c.status;
    call.p.reads_state = 1;
    if (a.snapshots) {
        call.p.snapshots = tensor_data(a.snapshots);
        call.p.snapshot_tokens = (int32_t)(s.n[SPEC_KEPT] - s.n[SPEC_TAPS]);
        if ((uintptr_t)call.p.snapshots % 16) call.aligned = false;
    }
    if (!call.p.channels || !call.p.sequences) return CAIRN_OK; /* no tokens: snapshots, faults */
    if (rt->device.cuda)
        return spec_end(rt, conv_launch(rt, &call, "short_conv_update", (unsigned)call.p.sequences));
    return spec_end(rt, conv_run_cpu(rt, "short_conv_update", &call.p, call.type, call.width));
}

static void conv_restore_params(const spec_call *s, const cairn_short_conv_restore_args *a,
                                short_conv_restore_params *p) {
    memset(p, 0, sizeof *p);
    p->snapshots = tensor_data(a->snapshots);
    p->accepted = (const int32_t *)tensor_data(a->accepted);
    p->state_indices = (const int32_t *)conv_data(a->state_indices);
    p->state = tensor_data(a->state);
    p->error = ops_error_word(s->c.dev, s->c.op);
    p->row_bytes = s->n[SPEC_CHANNELS] * (int64_t)cairn_type_bytes(s->type);
    p->rows = (int32_t)s->n[SPEC_TAPS];
    p->snapshot_tokens = (int32_t)(s->n[SPEC_KEPT] - s->n[SPEC_TAPS]);
    p->slots = (int32_t)s->n[SPEC_SLOTS];
    p->reserved_slots = a->reserved_slots;
}

cairn_status cairn_short_conv_restore(cairn_runtime *rt,
                                      const cairn_short_conv_restore_args *args) {
    cairn_short_conv_restore_args a;
    short_conv_restore_params p;
    spec_call s;
    if (spec_take(rt, SPEC_OF(short_conv_restore), &a, args, &s)) return s.c.status;
    conv_restore_params(&s, &a, &p);
    if (!s.n[SPEC_SEQUENCES] || !p.row_bytes || !p.rows) return CAIRN_OK;
    if (!rt->device.cuda) return spec_end(rt, conv_restore_cpu(&rt->device, &p, s.n[SPEC_SEQUENCES]));
    {
        device_dims dims = {{0, 1, 1}, CONV_THREADS, 0, 0, false};
        dims.grid[0] = (unsigned)s.n[SPEC_SEQUENCES];
        dims.grid[1] = (unsigned)((p.rows * p.row_bytes + 8191) / 8192);
        if (dims.grid[1] > 65535) dims.grid[1] = 65535;
        return spec_end(rt, ops_launch(rt, "conv/restore.cu", "short_conv_restore", &dims, &p));
    }
}
