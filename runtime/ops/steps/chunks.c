/* ops_steps_chunks: prefix_chunks, the chunks of a cached prefix: checks, the CPU's loops, the
 * launch (runtime_ops.h has the contract). */

enum { CHUNKS_BLOCK = 256, CHUNKS_TILE = 2048, CHUNKS_SHARED = 64 + 8 * CHUNKS_BLOCK };

static int64_t chunks_length(int32_t capacity, int64_t batch) {
    const int64_t length = (capacity > 0 ? capacity : 131072) / batch;
    return length > 1 ? length : 1;
}

typedef struct chunks_call {
    cairn_prefix_chunks_args a;
    int page_size; /* 0: slots */
    prefix_chunks_params p;
} chunks_call;

static void chunks_want_inputs(ops_check *c, chunks_call *s) {
    const cairn_prefix_chunks_args *a = &s->a;
    const cairn_tensor *source = a->slots ? a->slots : a->pages;
    prefix_chunks_params *p = &s->p;
    const int64_t batch = a->prefix_lens->shape[0];
    ops_refuse(c, a->slots && a->pages, "slots or pages is expected, not both");
    ops_refuse(c, !source, "slots is NULL, and so is pages");
    ops_refuse(c, source && !a->requests && source->shape[0] < batch,
               "requests is NULL, but there are more requests (%lld) than rows of %s",
               (long long)batch, source == a->slots ? "slots" : "pages");
    if (c->status || !batch) return;
    p->prefix_lens = (const int32_t *)tensor_data(a->prefix_lens);
    p->requests = a->requests ? (const int32_t *)tensor_data(a->requests) : NULL;
    p->slots = (const int32_t *)tensor_data(source);
    p->slots_stride = tensor_stride(source, 0);
    p->batch = (int32_t)batch;
    p->pool = steps_clamp(source->shape[0], 0, INT32_MAX);
    p->max_len = INT32_MAX;
    steps_lower(&p->max_len, source->shape[1], s->page_size ? s->page_size : 1);
    p->chunk_len = (int32_t)chunks_length(a->capacity, batch);
}

/* An output [C, extent] or more. */
static int32_t *chunks_want_output(ops_check *c, chunks_call *s, const cairn_tensor *t,
                                   const char *name, int64_t extent) {
    if (c->status || !t) return NULL;
    ops_refuse(c, s->p.chunks && t->shape[0] != s->p.chunks,
               "dimension 0 of %s is %lld; %d is expected", name, (long long)t->shape[0],
               (int)s->p.chunks);
    ops_refuse(c, t->shape[1] < extent, "%s has %lld columns; %lld are needed", name,
               (long long)t->shape[1], (long long)extent);
    ops_refuse(c, t->shape[0] < 1 || t->shape[0] > INT32_MAX / s->p.chunk_len,
               "%s has %lld rows; 1 to %d chunks of %d tokens are possible", name,
               (long long)t->shape[0], INT32_MAX / (int)s->p.chunk_len, (int)s->p.chunk_len);
    if (!c->status) s->p.chunks = (int32_t)t->shape[0];
    return (int32_t *)tensor_data(t);
}

static void chunks_want_outputs(ops_check *c, chunks_call *s) {
    const cairn_prefix_chunks_args *a = &s->a;
    prefix_chunks_params *p = &s->p;
    const int64_t most = p->chunk_len < p->max_len ? p->chunk_len : p->max_len;
    p->starts = chunks_want_output(c, s, a->starts, "starts", p->batch);
    p->lens = chunks_want_output(c, s, a->lens, "lens", p->batch);
    p->cu_lens = chunks_want_output(c, s, a->cu_lens, "cu_lens", p->batch + 1);
    p->kv_indices =
        chunks_want_output(c, s, a->kv_indices, "kv_indices", p->batch * most);
    if (a->chunk_count) p->chunk_count = (int32_t *)tensor_data(a->chunk_count);
    ops_refuse(c, p->batch * most > INT32_MAX / 2, "capacity = %d makes chunks that are too large",
               (int)a->capacity);
    if (c->status) return;
    if (!p->chunks) p->chunks = (int32_t)((p->max_len + (int64_t)p->chunk_len - 1) / p->chunk_len);
    p->kv_stride = a->kv_indices ? a->kv_indices->shape[1] : 0;
    p->tiles = (int32_t)((p->batch * most + CHUNKS_TILE - 1) / CHUNKS_TILE);
    if ((int64_t)p->chunks * p->chunk_len < p->max_len)
        p->max_len = p->chunks * p->chunk_len;
}

/* Without requests nothing is done, whatever the outputs are. */
static void chunks_drop_outputs(cairn_prefix_chunks_args *a) {
    const cairn_tensor *t = a->prefix_lens;
    if (!t || t->ndim != 1 || !t->shape || t->shape[0]) return;
    a->chunk_count = a->starts = a->lens = a->cu_lens = a->kv_indices = NULL;
}

static cairn_status chunks_take(cairn_runtime *rt, const cairn_prefix_chunks_args *args,
                                chunks_call *s) {
    spec_call call;
    ops_check c;
    memset(s, 0, sizeof *s);
    memset(&c, 0, sizeof c);
    if ((c.status = OPS_TAKE(rt, "prefix_chunks", s->a, args))) return c.status;
    chunks_drop_outputs(&s->a);
    if (spec_check(&call, &rt->device, SPEC_OF(prefix_chunks), &s->a)) return call.c.status;
    c = call.c;
    spec_begin(rt, c.op);
    if (s->a.pages) s->page_size = steps_default(s->a.page_size, rt->config.page_size);
    chunks_want_inputs(&c, s);
    if (c.status || !s->p.batch) return c.status;
    chunks_want_outputs(&c, s);
    s->p.error = ops_error_word(c.dev, c.op);
    return c.status;
}

/* ---- CPU ---- */

typedef struct chunks_job {
    device *dev;
    const prefix_chunks_params *p;
    int page_size;
} chunks_job;

/* Slots [start, start + length) of a row of slots or page ids. */
static void chunks_copy(const chunks_job *job, const int32_t *row, int64_t start, int32_t length,
                        int32_t *out) {
    if (job->page_size) steps_copy_slots(row, job->page_size, start, start + length, out);
    else memcpy(out, row + start, (size_t)length * sizeof *row);
}

/* The request's row of slots and its prefix, cut; `status`, if given, takes what is wrong. */
static int32_t chunks_prefix(device *dev, const prefix_chunks_params *p, int b, int32_t *id,
                             cairn_status *status) {
    const int32_t given = p->prefix_lens[b], length = steps_clamp(given, 0, p->max_len);
    *id = p->requests ? p->requests[b] : b;
    if (*id < 0 || *id >= p->pool) {
        if (status) ops_bad_row(dev, "prefix_chunks", b, "id out of range", *id, status);
        return 0;
    }
    if (status && given != length)
        ops_bad_row(dev, "prefix_chunks", b, "length out of range", given, status);
    return length;
}

static void chunks_write(void *context, int chunk) {
    const chunks_job *job = (const chunks_job *)context;
    const prefix_chunks_params *p = job->p;
    const int64_t start = (int64_t)chunk * p->chunk_len, row = (int64_t)chunk * p->batch;
    int64_t end = 0;
    if (p->cu_lens) p->cu_lens[row + chunk] = 0;
    for (int b = 0; b < p->batch; b++) {
        int32_t id, length;
        length = steps_clamp(chunks_prefix(job->dev, p, b, &id, NULL) - start, 0, p->chunk_len);
        if (p->starts) p->starts[row + b] = (int32_t)start;
        if (p->lens) p->lens[row + b] = length;
        if (p->kv_indices && length)
            chunks_copy(job, p->slots + id * p->slots_stride, start, length,
                        p->kv_indices + chunk * p->kv_stride + end);
        end += length;
        if (p->cu_lens) p->cu_lens[row + chunk + b + 1] = (int32_t)end;
    }
}

static cairn_status chunks_run_cpu(device *dev, const chunks_call *s) {
    const prefix_chunks_params *p = &s->p;
    cairn_status status = CAIRN_OK;
    chunks_job job;
    int32_t longest = 0, id;
    job.dev = dev;
    job.p = p;
    job.page_size = s->page_size;
    for (int b = 0; b < p->batch; b++) {
        const int32_t length = chunks_prefix(dev, p, b, &id, &status);
        if (length > longest) longest = length;
    }
    if (p->chunk_count)
        *p->chunk_count = longest / p->chunk_len + (longest % p->chunk_len != 0);
    if (p->starts || p->lens || p->cu_lens || p->kv_indices) /* else there may be any number */
        pool_run(dev->pool, p->chunks, chunks_write, &job);
    return status;
}

/* ---- GPU ---- */

static int32_t chunks_at_most(int64_t wanted, int64_t most) {
    return (int32_t)(wanted < most ? wanted : most);
}

static cairn_status chunks_run_cuda(cairn_runtime *rt, chunks_call *s) {
    prefix_chunks_params *p = &s->p;
    ops_kernel want;
    device_dims dims = {{0, 1, 1}, CHUNKS_BLOCK, 0, CHUNKS_SHARED, true};
    const int64_t tiles = (int64_t)p->chunks * p->tiles, sms = rt->device.sm_count;
    if (p->starts || p->lens || p->cu_lens) p->length_blocks = chunks_at_most(p->chunks, sms);
    dims.grid[0] = 1 + (unsigned)p->length_blocks;
    if (p->kv_indices) dims.grid[0] += (unsigned)chunks_at_most(tiles, 8 * sms);
    memset(&want, 0, sizeof want);
    want.source = "steps/chunks.cu";
    want.entry = "prefix_chunks";
    want.constants[0].name = "PAGE_SIZE", want.constants[0].value = s->page_size;
    want.constant_count = 1;
    return ops_launch_as(rt, &want, &dims, p);
}

cairn_status cairn_prefix_chunks(cairn_runtime *rt, const cairn_prefix_chunks_args *args) {
    chunks_call s;
    cairn_status status = chunks_take(rt, args, &s);
    if (status || !s.p.batch) return status;
    return spec_end(rt, rt->device.cuda ? chunks_run_cuda(rt, &s) : chunks_run_cpu(&rt->device, &s));
}
