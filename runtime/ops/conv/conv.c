/* ops_conv: the entries short_conv, short_conv_update and short_conv_restore. */

/* Blocks an SM: measured; fewer that go on beat a block a chunk. */
enum { CONV_BLOCK_TOKENS = 32, CONV_THREADS = 256, CONV_BLOCKS_AN_SM = 16 };
enum { CONV_FLOATS = OPS_F32 | OPS_F16 | 1 << CAIRN_BF16 };

/* A checked call: what the kernels get, and what they are specialised to. */
typedef struct conv_call {
    short_conv_params p;
    cairn_type type;
    int width;
    bool aligned; /* every row, and every four channels in a row of weights, to 16 bytes */
} conv_call;

/* ---- arguments --------------------------------------------------------------------------------*/

/* A matrix of the call's type whose rows may have a stride; gives the stride. */
static int64_t conv_want_rows(ops_check *c, conv_call *call, const cairn_tensor *t,
                              const char *name, int64_t tokens, int64_t channels,
                              bool optional) {
    tensor_want want;
    int64_t stride;
    if (c->status || (optional && !t)) return 0;
    memset(&want, 0, sizeof want);
    want.op = c->op;
    want.name = name;
    want.types = call->type ? TENSOR_BIT(call->type) : (unsigned)CONV_FLOATS;
    want.rank = 2;
    want.shape[0] = tokens, want.shape[1] = channels;
    want.rows_may_stride = true;
    c->status = tensor_check(c->dev, t, &want);
    if (c->status) return 0;
    stride = tensor_stride(t, 0);
    if ((uintptr_t)tensor_data(t) % 16 ||
        stride * (int64_t)cairn_type_bytes(cairn_tensor_type(t)) % 16)
        call->aligned = false;
    return stride;
}

/* [n] i32 or longer. */
static const int32_t *conv_want_ids(ops_check *c, const cairn_tensor *t, const char *name,
                                    int64_t least) {
    if (c->status || !t) return NULL;
    ops_want1(c, t, name, OPS_I32, -1);
    if (c->status) return NULL;
    ops_refuse(c, t->shape[0] < least, "%s has %lld entries; %lld or more are expected", name,
               (long long)t->shape[0], (long long)least);
    return (const int32_t *)tensor_data(t);
}

static void conv_want_weight(ops_check *c, const cairn_conv *a, conv_call *call) {
    const unsigned types = OPS_F32 | TENSOR_BIT(call->type);
    ops_want2(c, a->weight, "weight", types, a->x->shape[1], -1);
    if (c->status) return;
    ops_refuse(c, a->weight->shape[1] < 2 || a->weight->shape[1] > CONV_MAX_WIDTH,
               "weight has %lld taps; 2 to %d are expected", (long long)a->weight->shape[1],
               CONV_MAX_WIDTH);
    if (c->status) return;
    call->width = (int)a->weight->shape[1];
    call->p.weight = tensor_data(a->weight);
    call->p.weight_is_f32 = cairn_tensor_type(a->weight) == CAIRN_F32;
    if (a->bias)
        ops_want1(c, a->bias, "bias", TENSOR_BIT(cairn_tensor_type(a->weight)), a->x->shape[1]);
    if (c->status) return;
    call->p.bias = a->bias ? tensor_data(a->bias) : NULL;
    if ((uintptr_t)call->p.weight % 16 || (uintptr_t)call->p.bias % 16) call->aligned = false;
}

static void conv_want_state(ops_check *c, cairn_tensor *state, conv_call *call) {
    ops_want3(c, state, "state", TENSOR_BIT(call->type), -1, call->width - 1, call->p.channels);
    if (c->status) return;
    call->p.state = tensor_data(state);
    call->p.slots = (int32_t)state->shape[0];
    if ((uintptr_t)call->p.state % 16) call->aligned = false;
}

static void conv_want_sequences(ops_check *c, const cairn_conv *a, conv_call *call) {
    call->p.sequences = call->p.tokens;
    if (a->cu_seqlens) {
        ops_want1(c, a->cu_seqlens, "cu_seqlens", OPS_I32, -1);
        if (c->status) return;
        ops_refuse(c, a->cu_seqlens->shape[0] < 1 || a->cu_seqlens->shape[0] > INT32_MAX / 2,
                   "cu_seqlens has %lld entries; one more than sequences are expected",
                   (long long)a->cu_seqlens->shape[0]);
        if (c->status) return;
        call->p.sequences = (int32_t)a->cu_seqlens->shape[0] - 1;
        call->p.cu_seqlens = (const int32_t *)tensor_data(a->cu_seqlens);
    }
    call->p.state_indices =
        conv_want_ids(c, a->state_indices, "state_indices", call->p.sequences);
    call->p.has_initial = conv_want_ids(c, a->has_initial, "has_initial", call->p.sequences);
}

static void conv_want_apart(ops_check *c, const cairn_conv *a, const cairn_tensor *out,
                            const char *name) {
    ops_want_apart(c, out, name, a->x, "x", false);
    ops_want_apart(c, out, name, a->gate_in, "gate_in", false);
    ops_want_apart(c, out, name, a->gate_out, "gate_out", false);
    ops_want_apart(c, out, name, a->weight, "weight", false);
    ops_want_apart(c, out, name, a->bias, "bias", false);
    ops_want_apart(c, out, name, a->cu_seqlens, "cu_seqlens", false);
    ops_want_apart(c, out, name, a->state_indices, "state_indices", false);
    ops_want_apart(c, out, name, a->has_initial, "has_initial", false);
    if (out != a->state) ops_want_apart(c, out, name, a->state, "state", false);
}

/* All but what is particular to a mode. Outputs lie apart from all inputs, the gaps between strided
 * rows included. */
static void conv_want(ops_check *c, const cairn_conv *a, conv_call *call) {
    short_conv_params *p = &call->p;
    memset(call, 0, sizeof *call);
    call->aligned = true;
    p->x_stride = conv_want_rows(c, call, a->x, "x", -1, -1, false);
    if (c->status) return;
    call->type = cairn_tensor_type(a->x);
    ops_refuse(c, a->x->shape[0] > INT32_MAX / 2 || a->x->shape[1] > INT32_MAX / 64,
               "x is too large");
    if (c->status) return;
    p->tokens = (int32_t)a->x->shape[0];
    p->channels = (int32_t)a->x->shape[1];
    p->gate_in_stride =
        conv_want_rows(c, call, a->gate_in, "gate_in", p->tokens, p->channels, true);
    p->gate_out_stride =
        conv_want_rows(c, call, a->gate_out, "gate_out", p->tokens, p->channels, true);
    p->out_stride = conv_want_rows(c, call, a->out, "out", p->tokens, p->channels, false);
    if (c->status) return;
    conv_want_weight(c, a, call);
    if (c->status) return;
    conv_want_state(c, a->state, call);
    conv_want_sequences(c, a, call);
    ops_refuse(c, a->activation != CAIRN_ACTIVATION_NONE && a->activation != CAIRN_ACTIVATION_SILU,
               "activation = %d; see cairn_activation", (int)a->activation);
    ops_refuse(c, a->reserved_slots < 0, "reserved_slots = %d is negative", (int)a->reserved_slots);
    conv_want_apart(c, a, a->out, "out");
    conv_want_apart(c, a, a->state, "state");
    if (c->status) return;
    p->x = tensor_data(a->x);
    p->gate_in = a->gate_in ? tensor_data(a->gate_in) : NULL;
    p->gate_out = a->gate_out ? tensor_data(a->gate_out) : NULL;
    p->out = tensor_data(a->out);
    p->silu = a->activation == CAIRN_ACTIVATION_SILU;
    p->reserved_slots = a->reserved_slots;
    p->error = ops_error_word(c->dev, c->op);
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
    if (c->status) return;
    call->p.block_tokens = block;
    if (!a->chunk_sequences) {
        ops_refuse(c, call->p.sequences > CONV_MAX_REQUESTS,
                   "cu_seqlens has %d sequences; without a chunk list at most %d are expected",
                   (int)call->p.sequences, CONV_MAX_REQUESTS);
        return;
    }
    ops_want1(c, a->chunk_sequences, "chunk_sequences", OPS_I32, -1);
    if (c->status) return;
    ops_refuse(c, a->chunk_sequences->shape[0] > INT32_MAX, "chunk_sequences is too long");
    ops_want1(c, a->chunk_offsets, "chunk_offsets", OPS_I32, a->chunk_sequences->shape[0]);
    ops_want_apart(c, a->conv.out, "out", a->chunk_sequences, "chunk_sequences", false);
    ops_want_apart(c, a->conv.out, "out", a->chunk_offsets, "chunk_offsets", false);
    ops_want_apart(c, a->conv.state, "state", a->chunk_sequences, "chunk_sequences", false);
    ops_want_apart(c, a->conv.state, "state", a->chunk_offsets, "chunk_offsets", false);
    if (c->status) return;
    call->p.chunks = (int32_t)a->chunk_sequences->shape[0];
    call->p.chunk_sequences = (const int32_t *)tensor_data(a->chunk_sequences);
    call->p.chunk_offsets = (const int32_t *)tensor_data(a->chunk_offsets);
}

cairn_status cairn_short_conv(cairn_runtime *rt, const cairn_short_conv_args *args) {
    cairn_short_conv_args a;
    conv_call call;
    ops_check c = {NULL, "short_conv", CAIRN_OK};
    c.dev = ops_device(rt);
    c.status = OPS_TAKE(rt, "short_conv", a, args);
    if (c.status) return c.status;
    ops_refuse(&c, !a.conv.cu_seqlens, "cu_seqlens is NULL");
    conv_want(&c, &a.conv, &call);
    if (c.status) return c.status;
    conv_want_list(&c, &a, &call);
    if (c.status || !call.p.tokens || !call.p.channels || !call.p.sequences) return c.status;
    if (a.chunk_sequences && !call.p.chunks) return CAIRN_OK;
    if (rt->device.cuda) return conv_run_cuda(rt, &call);
    return conv_run_cpu(rt, "short_conv", &call.p, call.type, call.width);
}

cairn_status cairn_short_conv_update(cairn_runtime *rt, const cairn_short_conv_update_args *args) {
    cairn_short_conv_update_args a;
    conv_call call;
    ops_check c = {NULL, "short_conv_update", CAIRN_OK};
    c.dev = ops_device(rt);
    c.status = OPS_TAKE(rt, "short_conv_update", a, args);
    if (c.status) return c.status;
    conv_want(&c, &a.conv, &call);
    if (c.status) return c.status;
    call.p.reads_state = 1;
    if (a.snapshots) {
        ops_want3(&c, a.snapshots, "snapshots", TENSOR_BIT(call.type), call.p.sequences, -1,
                  call.p.channels);
        if (c.status) return c.status;
        ops_refuse(&c, a.snapshots->shape[1] < call.width || a.snapshots->shape[1] > INT32_MAX,
                   "snapshots has %lld rows a sequence; at least %d are expected",
                   (long long)a.snapshots->shape[1], call.width);
        conv_want_apart(&c, &a.conv, a.snapshots, "snapshots");
        ops_want_apart(&c, a.snapshots, "snapshots", a.conv.out, "out", false);
        if (c.status) return c.status;
        call.p.snapshots = tensor_data(a.snapshots);
        call.p.snapshot_tokens = (int32_t)a.snapshots->shape[1] - (call.width - 1);
        if ((uintptr_t)call.p.snapshots % 16) call.aligned = false;
    }
    if (!call.p.tokens || !call.p.channels || !call.p.sequences) return CAIRN_OK;
    if (rt->device.cuda)
        return conv_launch(rt, &call, "short_conv_update", (unsigned)call.p.sequences);
    return conv_run_cpu(rt, "short_conv_update", &call.p, call.type, call.width);
}

static void conv_want_restore(ops_check *c, const cairn_short_conv_restore_args *a,
                              short_conv_restore_params *p) {
    memset(p, 0, sizeof *p);
    ops_want3(c, a->state, "state", (unsigned)CONV_FLOATS, -1, -1, -1);
    if (c->status) return;
    ops_want3(c, a->snapshots, "snapshots", TENSOR_BIT(cairn_tensor_type(a->state)), -1, -1,
              a->state->shape[2]);
    if (c->status) return;
    ops_refuse(c, a->snapshots->shape[1] < a->state->shape[1] || a->state->shape[0] > INT32_MAX ||
                      a->snapshots->shape[1] > INT32_MAX || a->snapshots->shape[0] > INT32_MAX,
               "snapshots has %lld rows a sequence; at least the state's %lld are expected",
               (long long)a->snapshots->shape[1], (long long)a->state->shape[1]);
    ops_refuse(c, a->reserved_slots < 0, "reserved_slots = %d is negative", (int)a->reserved_slots);
    ops_want1(c, a->accepted, "accepted", OPS_I32, a->snapshots->shape[0]);
    p->state_indices = conv_want_ids(c, a->state_indices, "state_indices", a->snapshots->shape[0]);
    ops_want_apart(c, a->state, "state", a->snapshots, "snapshots", false);
    ops_want_apart(c, a->state, "state", a->accepted, "accepted", false);
    ops_want_apart(c, a->state, "state", a->state_indices, "state_indices", false);
    if (c->status) return;
    p->snapshots = tensor_data(a->snapshots);
    p->accepted = (const int32_t *)tensor_data(a->accepted);
    p->state = tensor_data(a->state);
    p->error = ops_error_word(c->dev, c->op);
    p->row_bytes = a->state->shape[2] * (int64_t)cairn_type_bytes(cairn_tensor_type(a->state));
    p->rows = (int32_t)a->state->shape[1];
    p->snapshot_tokens = (int32_t)(a->snapshots->shape[1] - a->state->shape[1]);
    p->slots = (int32_t)a->state->shape[0];
    p->reserved_slots = a->reserved_slots;
}

cairn_status cairn_short_conv_restore(cairn_runtime *rt,
                                      const cairn_short_conv_restore_args *args) {
    cairn_short_conv_restore_args a;
    short_conv_restore_params p;
    ops_check c = {NULL, "short_conv_restore", CAIRN_OK};
    c.dev = ops_device(rt);
    c.status = OPS_TAKE(rt, "short_conv_restore", a, args);
    if (c.status) return c.status;
    conv_want_restore(&c, &a, &p);
    if (c.status || !a.snapshots->shape[0] || !p.row_bytes || !p.rows) return c.status;
    if (!rt->device.cuda) return conv_restore_cpu(&rt->device, &p, a.snapshots->shape[0]);
    {
        device_dims dims = {{0, 1, 1}, CONV_THREADS, 0, 0, false};
        dims.grid[0] = (unsigned)a.snapshots->shape[0];
        dims.grid[1] = (unsigned)((p.rows * p.row_bytes + 8191) / 8192);
        if (dims.grid[1] > 65535) dims.grid[1] = 65535;
        return ops_launch(rt, "conv/restore.cu", "short_conv_restore", &dims, &p);
    }
}
