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

static void conv_metadata_params(const spec_call *s, const cairn_short_conv_metadata_args *a,
                                 short_conv_metadata_params *p) {
#define CONV_DATA(t) ((t) ? (int32_t *)tensor_data(t) : NULL)
    p->cu_seqlens = CONV_DATA(a->cu_seqlens), p->seq_lens = CONV_DATA(a->seq_lens);
    p->slots = CONV_DATA(a->slots), p->live = CONV_DATA(a->live);
    p->slots_stride = a->slots && a->slots->ndim == 2 ? tensor_stride(a->slots, 0) : 1;
    p->chunk_sequences = CONV_DATA(a->chunk_sequences);
    p->chunk_offsets = CONV_DATA(a->chunk_offsets);
    p->has_initial = CONV_DATA(a->has_initial);
    p->decode_indices = CONV_DATA(a->decode_indices);
    p->prompt_indices = CONV_DATA(a->prompt_indices);
    p->counts = CONV_DATA(a->counts), p->order = CONV_DATA(a->order);
#undef CONV_DATA
    p->requests = (int32_t)s->n[SPEC_REQUESTS];
    p->capacity = (int32_t)s->n[SPEC_CAPACITY];
    p->chunk_capacity = (int32_t)s->n[SPEC_CHUNKS];
    p->error = ops_error_word(s->c.dev, s->c.op);
}

/* What the host sees of staged lengths is checked before anything is written. */
static void conv_want_staged(ops_check *c, cairn_runtime *rt,
                             const cairn_short_conv_metadata_args *a,
                             const short_conv_metadata_params *p) {
    const int32_t live = p->live ? *p->live : p->requests;
    const size_t bytes = 4 * (3 * (size_t)p->requests + 2);
    const char *bad;
    int32_t row = 0;
    int64_t value = 0;
    ops_refuse(c, a->staging->buffers.bytes < bytes, "staging has %llu bytes; %llu are needed",
               (unsigned long long)a->staging->buffers.bytes, (unsigned long long)bytes);
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
    spec_call s;
    memset(&p, 0, sizeof p);
    if (spec_take(rt, SPEC_OF(short_conv_metadata), &a, args, &s)) return s.c.status;
    p.block_tokens = a.block_tokens ? a.block_tokens : 32;
    p.decode_tokens = a.decode_tokens ? a.decode_tokens : 1;
    conv_metadata_params(&s, &a, &p);
    ops_refuse(&s.c, a.slots && a.slots->ndim == 2 && a.slots->shape[1] < 1, "slots has no column");
    if (a.staging && !s.c.status) conv_want_staged(&s.c, rt, &a, &p);
    if (s.c.status) return s.c.status;
    if (!rt->device.cuda) return spec_end(rt, conv_metadata_cpu(&rt->device, &p));
    if (a.staging) return spec_end(rt, conv_metadata_staged(rt, a.staging, &p));
    return spec_end(rt, conv_launch_metadata(rt, &p));
}
