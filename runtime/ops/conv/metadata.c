/* ops_conv_metadata: the entry short_conv_metadata, from device memory or from the host through
 * staging buffers, and its CPU implementation. */

enum { CONV_MAX_REQUESTS = 8192, CONV_METADATA_THREADS = 512, CONV_METADATA_HEAD = 16 * 12,
       CONV_LIST_PART = 256 /* entries of the list that a block writes */ };

/* ---- CPU --------------------------------------------------------------------------------------*/

/* The new tokens of requests [from, to); a length below 0 counts as 0. */
static int32_t conv_tokens(const short_conv_metadata_params *p, int32_t from, int32_t to) {
    int64_t count = (int64_t)p->cu_seqlens[to] - p->cu_seqlens[from];
    return (int32_t)(count < 0 ? 0 : count < INT32_MAX ? count : INT32_MAX);
}

static int64_t conv_new_tokens(const short_conv_metadata_params *p, int32_t r) {
    return conv_tokens(p, r, r + 1);
}

/* The first thing wrong with the lengths; NULL: nothing. Chunks are those of the prompts. */
static const char *conv_bad_lengths(const short_conv_metadata_params *p, int32_t live, int32_t *row,
                                    int64_t *value) {
    int64_t chunks = 0;
    bool prompts = false;
    for (int32_t r = 0; r < live; r++) {
        int64_t count = (int64_t)p->cu_seqlens[r + 1] - p->cu_seqlens[r];
        *row = r, *value = count;
        if (count < 0) return "cu_seqlens decreases";
        if (p->seq_lens && p->seq_lens[r] < count)
            return *value = p->seq_lens[r], "seq_lens is less than the new tokens";
        prompts = prompts || count > p->decode_tokens;
        if (prompts) chunks += (count + p->block_tokens - 1) / p->block_tokens;
        if (chunks > p->chunk_capacity) return "the chunks do not fit the list";
    }
    return NULL;
}

static void conv_write_request(const short_conv_metadata_params *p, int32_t r, bool decodes) {
    int64_t count = conv_new_tokens(p, r);
    int32_t slot = p->slots ? p->slots[r * p->slots_stride] : r;
    if (p->has_initial) p->has_initial[r] = p->seq_lens && p->seq_lens[r] > count;
    if (p->decode_indices) p->decode_indices[r] = decodes && count > 0 ? slot : -1;
    if (p->prompt_indices) p->prompt_indices[r] = decodes ? -1 : slot;
}

static void conv_write_order(const short_conv_metadata_params *p, int32_t live) {
    int32_t at = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int32_t r = 0; r < live; r++)
            if ((conv_new_tokens(p, r) > p->decode_tokens) == (pass == 1)) p->order[at++] = r;
}

static void conv_write_counts(const short_conv_metadata_params *p, int32_t live, int32_t split,
                              int64_t chunks) {
    int32_t late = 0; /* decodes behind the split */
    for (int32_t r = split; r < live; r++) late += conv_new_tokens(p, r) <= p->decode_tokens;
    p->counts[CAIRN_CONV_DECODES] = split;
    p->counts[CAIRN_CONV_PROMPTS] = live - split;
    p->counts[CAIRN_CONV_DECODE_TOKENS] = conv_tokens(p, 0, split);
    p->counts[CAIRN_CONV_PROMPT_TOKENS] = conv_tokens(p, split, live);
    p->counts[CAIRN_CONV_CHUNKS] = (int32_t)chunks;
    p->counts[CAIRN_CONV_BLOCK_TOKENS] = p->block_tokens;
    p->counts[CAIRN_CONV_REQUESTS] = live;
    p->counts[CAIRN_CONV_ORDERED] = late == 0;
}

static void conv_write_metadata(const short_conv_metadata_params *p, int32_t live) {
    int32_t split = 0;
    int64_t chunks = 0;
    while (split < live && conv_new_tokens(p, split) <= p->decode_tokens) split++;
    for (int32_t r = 0; r < live; r++) {
        conv_write_request(p, r, r < split);
        for (int64_t t = 0; r >= split && t < conv_new_tokens(p, r); t += p->block_tokens) {
            if (chunks >= p->chunk_capacity) break;
            p->chunk_sequences[chunks] = r;
            p->chunk_offsets[chunks++] = (int32_t)(t / p->block_tokens);
        }
    }
    if (p->order) conv_write_order(p, live);
    if (p->counts) conv_write_counts(p, live, split, chunks);
    for (int32_t r = live; r < p->capacity; r++) {
        if (p->has_initial) p->has_initial[r] = 0;
        if (p->decode_indices) p->decode_indices[r] = -1;
        if (p->prompt_indices) p->prompt_indices[r] = -1;
        if (p->order) p->order[r] = -1;
    }
    for (; chunks < p->chunk_capacity; chunks++)
        p->chunk_sequences[chunks] = p->chunk_offsets[chunks] = -1;
}

static cairn_status conv_metadata_cpu(device *dev, const short_conv_metadata_params *p) {
    int32_t live = p->live ? *p->live : p->requests, in, row = 0;
    int64_t value = live;
    cairn_status status = CAIRN_OK;
    const char *bad;
    in = live < 0 ? 0 : live < p->requests ? live : p->requests;
    if (in != live)
        ops_bad_row(dev, "short_conv_metadata", 0, "length out of range", live, &status);
    bad = conv_bad_lengths(p, in, &row, &value);
    if (bad) ops_bad_row(dev, "short_conv_metadata", row, bad, value, &status);
    conv_write_metadata(p, in);
    return status;
}

/* ---- GPU --------------------------------------------------------------------------------------*/

static cairn_status conv_launch_metadata(cairn_runtime *rt, const short_conv_metadata_params *p) {
    device_dims dims = {{0, 1, 1}, CONV_METADATA_THREADS, 0, 0, false};
    const bool many = p->requests > CONV_METADATA_THREADS;
    const int32_t parts = p->chunk_capacity / CONV_LIST_PART + 1;
    dims.grid[0] = (unsigned)(parts < rt->device.sm_count ? parts : rt->device.sm_count);
    dims.shared_bytes =
        (unsigned)(CONV_METADATA_HEAD + 4 * ((many ? CONV_MAX_REQUESTS : dims.block) + 1));
    return ops_launch(rt, "conv/metadata.cu",
                      many ? "short_conv_metadata_many" : "short_conv_metadata", &dims, p);
}

/* Copies the host's arrays into buffer `to` and lets p point there. */
static void conv_stage(short_conv_metadata_params *p, int32_t *to) {
    const size_t n = (size_t)p->requests;
    memcpy(to, p->cu_seqlens, (n + 1) * sizeof *to);
    p->cu_seqlens = to, to += n + 1;
    if (p->seq_lens) {
        memcpy(to, p->seq_lens, n * sizeof *to);
        p->seq_lens = to, to += n;
    }
    if (p->slots) {
        for (size_t r = 0; r < n; r++) to[r] = p->slots[(int64_t)r * p->slots_stride];
        p->slots = to, p->slots_stride = 1, to += n;
    }
    if (p->live) *to = *p->live, p->live = to;
}

/* Takes a buffer, fills it, launches; the buffer is free again when the kernel is done. */
static cairn_status conv_metadata_staged(cairn_runtime *rt, cairn_staging *staging,
                                         short_conv_metadata_params *p) {
    int buffer = 0;
    cairn_status status = handles_enter(rt);
    if (status) return status;
    status = device_staging_take(&rt->device, &staging->buffers, "short_conv_metadata", &buffer);
    if (!status) {
        conv_stage(p, (int32_t *)staging->buffers.memory[buffer]);
        status = conv_launch_metadata(rt, p);
    }
    if (!status) status = device_staging_submit(&rt->device, &staging->buffers, buffer);
    return handles_leave(rt, status);
}

/* ---- the op -----------------------------------------------------------------------------------*/

/* An i32 input of `requests` entries, on the host when it is staged. */
static const int32_t *conv_want_lengths(ops_check *c, const cairn_short_conv_metadata_args *a,
                                        const cairn_tensor *t, const char *name, int64_t n,
                                        int rank) {
    tensor_want want;
    if (c->status || (!t && strcmp(name, "cu_seqlens"))) return NULL;
    memset(&want, 0, sizeof want);
    want.op = c->op, want.name = name, want.types = OPS_I32;
    want.rank = rank, want.shape[0] = n, want.shape[1] = -1;
    want.rows_may_stride = rank == 2;
    c->status = tensor_check_at(
        c->dev->base, a->staging ? TENSOR_CPU : tensor_place(c->dev), t, &want);
    return c->status ? NULL : (const int32_t *)tensor_data(t);
}

static void conv_want_inputs(ops_check *c, const cairn_short_conv_metadata_args *a,
                             short_conv_metadata_params *p) {
    const int rank = a->slots && a->slots->ndim == 2 ? 2 : 1;
    p->cu_seqlens = conv_want_lengths(c, a, a->cu_seqlens, "cu_seqlens", -1, 1);
    if (c->status) return;
    ops_refuse(c, a->cu_seqlens->shape[0] < 1 || a->cu_seqlens->shape[0] > CONV_MAX_REQUESTS + 1,
               "cu_seqlens has %lld entries; 1 to %d are expected",
               (long long)a->cu_seqlens->shape[0], CONV_MAX_REQUESTS + 1);
    if (c->status) return;
    p->requests = (int32_t)a->cu_seqlens->shape[0] - 1;
    p->seq_lens = conv_want_lengths(c, a, a->seq_lens, "seq_lens", p->requests, 1);
    p->slots = conv_want_lengths(c, a, a->slots, "slots", p->requests, rank);
    p->live = conv_want_lengths(c, a, a->live, "live", 1, 1);
    if (c->status || !a->slots) return;
    p->slots_stride = rank == 2 ? tensor_stride(a->slots, 0) : 1;
    ops_refuse(c, rank == 2 && a->slots->shape[1] < 1, "slots has no column");
}

static void conv_want_output(ops_check *c, const cairn_short_conv_metadata_args *a, cairn_tensor *t,
                             const char *name, int64_t n) {
    ops_want1(c, t, name, OPS_I32, n);
    ops_want_apart(c, t, name, a->cu_seqlens, "cu_seqlens", false);
    ops_want_apart(c, t, name, a->seq_lens, "seq_lens", false);
    ops_want_apart(c, t, name, a->slots, "slots", false);
    ops_want_apart(c, t, name, a->live, "live", false);
}

/* One of the outputs of `capacity` entries, which the first of them tells. */
static int32_t *conv_want_table(ops_check *c, const cairn_short_conv_metadata_args *a,
                                cairn_tensor *t, const char *name, short_conv_metadata_params *p) {
    if (!t || c->status) return NULL;
    conv_want_output(c, a, t, name, p->capacity >= 0 ? p->capacity : -1);
    if (c->status) return NULL;
    ops_refuse(c, t->shape[0] < p->requests || t->shape[0] > INT32_MAX / 2,
               "%s has %lld entries; at least the %d requests are expected", name,
               (long long)t->shape[0], (int)p->requests);
    p->capacity = (int32_t)t->shape[0];
    return c->status ? NULL : (int32_t *)tensor_data(t);
}

static void conv_want_outputs(ops_check *c, const cairn_short_conv_metadata_args *a,
                              short_conv_metadata_params *p) {
    cairn_tensor *outs[7];
    const char *const names[] = {"chunk_sequences", "chunk_offsets", "has_initial",
                                 "decode_indices", "prompt_indices", "counts", "order"};
    conv_want_output(c, a, a->chunk_sequences, "chunk_sequences", -1);
    if (c->status) return;
    ops_refuse(c, a->chunk_sequences->shape[0] > INT32_MAX / 2, "chunk_sequences is too long");
    conv_want_output(c, a, a->chunk_offsets, "chunk_offsets", a->chunk_sequences->shape[0]);
    p->capacity = -1;
    p->has_initial = conv_want_table(c, a, a->has_initial, "has_initial", p);
    p->decode_indices = conv_want_table(c, a, a->decode_indices, "decode_indices", p);
    p->prompt_indices = conv_want_table(c, a, a->prompt_indices, "prompt_indices", p);
    p->order = conv_want_table(c, a, a->order, "order", p);
    if (a->counts) conv_want_output(c, a, a->counts, "counts", 8);
    outs[0] = a->chunk_sequences, outs[1] = a->chunk_offsets, outs[2] = a->has_initial;
    outs[3] = a->decode_indices, outs[4] = a->prompt_indices, outs[5] = a->counts;
    outs[6] = a->order;
    for (int i = 0; i < 7; i++)
        for (int j = 0; j < i; j++) ops_want_apart(c, outs[i], names[i], outs[j], names[j], false);
    if (c->status) return;
    p->chunk_sequences = (int32_t *)tensor_data(a->chunk_sequences);
    p->chunk_offsets = (int32_t *)tensor_data(a->chunk_offsets);
    p->chunk_capacity = (int32_t)a->chunk_sequences->shape[0];
    p->counts = a->counts ? (int32_t *)tensor_data(a->counts) : NULL;
    p->error = ops_error_word(c->dev, c->op);
}

/* What the host sees of staged lengths is checked before anything is written. */
static void conv_want_staged(ops_check *c, cairn_runtime *rt,
                             const cairn_short_conv_metadata_args *a,
                             const short_conv_metadata_params *p) {
    const int32_t live = p->live ? *p->live : p->requests;
    const size_t bytes = 4 * (3 * (size_t)p->requests + 2);
    const cairn_staging *s = rt->stagings;
    const char *bad;
    int32_t row = 0;
    int64_t value = 0;
    while (s && s != a->staging) s = s->next;
    ops_refuse(c, !s, "staging is none of this runtime");
    if (c->status) return;
    ops_refuse(c, s->buffers.bytes < bytes, "staging has %llu bytes; %llu are needed",
               (unsigned long long)s->buffers.bytes, (unsigned long long)bytes);
    ops_refuse(c, live < 0 || live > p->requests, "live = %d; 0 to %d is expected", (int)live,
               (int)p->requests);
    ops_refuse(c, rt->capturing, "staging cannot be captured: build before the graph's launch");
    if (c->status) return;
    bad = conv_bad_lengths(p, live, &row, &value);
    ops_refuse(c, bad != NULL, "request %d: %s (%lld)", (int)row, bad ? bad : "", (long long)value);
}

cairn_status cairn_short_conv_metadata(cairn_runtime *rt,
                                       const cairn_short_conv_metadata_args *args) {
    cairn_short_conv_metadata_args a;
    short_conv_metadata_params p;
    ops_check c = {NULL, "short_conv_metadata", CAIRN_OK};
    c.dev = ops_device(rt);
    memset(&p, 0, sizeof p);
    c.status = OPS_TAKE(rt, "short_conv_metadata", a, args);
    if (c.status) return c.status;
    p.block_tokens = a.block_tokens ? a.block_tokens : 32;
    p.decode_tokens = a.decode_tokens ? a.decode_tokens : 1;
    ops_refuse(&c, p.block_tokens < 1, "block_tokens = %d; 1 or more is expected",
               (int)p.block_tokens);
    ops_refuse(&c, p.decode_tokens < -1, "decode_tokens = %d; -1 or more is expected",
               (int)p.decode_tokens);
    conv_want_inputs(&c, &a, &p);
    if (c.status) return c.status;
    conv_want_outputs(&c, &a, &p);
    if (a.staging && !c.status) conv_want_staged(&c, rt, &a, &p);
    if (c.status) return c.status;
    if (!rt->device.cuda) return conv_metadata_cpu(&rt->device, &p);
    if (a.staging) return conv_metadata_staged(rt, a.staging, &p);
    return conv_launch_metadata(rt, &p);
}
