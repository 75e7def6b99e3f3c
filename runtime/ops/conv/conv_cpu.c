/* ops_conv_cpu: the short convolution on the CPU. Each worker owns a range of channels and goes
 * through all sequences, so that a state is read and written by one thread only. Inputs become f32
 * rows; the sums of a row are SIMD. Calls ops, simd and pool. */

enum { CONV_MAX_WIDTH = 8 };

typedef struct conv_job {
    device *dev;
    const simd_kernels *simd;
    const short_conv_params *p;
    int block_type; /* of x's element type */
    int width, bytes; /* taps; of an element */
    bool whole;     /* no chunk list: every sequence from its first token to its last */
    float *taps;    /* [width + 1, channels]: by tap, then the bias */
    float *rows;    /* a part for each worker, CONV_ROWS(width) rows of its channels */
    size_t worker_floats;
} conv_job;

/* A worker's rows: the window as a ring, one to load into, a new state, a gate, ones. */
#define CONV_ROWS(width) (2 * (width) + 2)

typedef struct conv_worker {
    const conv_job *job;
    int64_t channel;
    int n;            /* channels */
    float *ring[CONV_MAX_WIDTH]; /* inputs, oldest first */
    float *kept, *gate, *ones;
} conv_worker;

typedef struct conv_sequence { int32_t first, count, slot; bool valid, initial; } conv_sequence;

/* As find_sequence of the kernel; *cause is set when something is out of range. */
static conv_sequence conv_find(const short_conv_params *p, int32_t s, const char **cause,
                               int64_t *value) {
    conv_sequence q = {0, 1, 0, false, false};
    int64_t count = p->cu_seqlens ? (int64_t)p->cu_seqlens[s + 1] - p->cu_seqlens[s] : 1;
    q.first = p->cu_seqlens ? p->cu_seqlens[s] : s;
    q.slot = p->state_indices ? p->state_indices[s] : s;
    q.initial = p->has_initial ? p->has_initial[s] != 0 : p->reads_state != 0;
    if (q.slot == -1 || (q.slot >= 0 && q.slot < p->reserved_slots)) return q;
    if (q.slot < 0 || q.slot >= p->slots) {
        *cause = "id out of range", *value = q.slot;
    } else if (q.first < 0 || count < 0 || q.first > p->tokens - count ||
               (p->snapshots && count > p->snapshot_tokens)) {
        *cause = "length out of range", *value = count;
    } else {
        q.count = (int32_t)count;
        q.valid = true;
    }
    return q;
}

/* ---- rows -------------------------------------------------------------------------------------*/

/* In runs of constant length, which compilers make vectors of. */
static void conv_to_bf16(const float *x, uint16_t *out, int n) {
    int i;
    for (i = 0; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++) out[i + j] = block_bf16_of_f32(x[i + j]);
    for (; i < n; i++) out[i] = block_bf16_of_f32(x[i]);
}

static void conv_load(const conv_job *job, const void *rows, int64_t at, float *out, int n) {
    const char *from = (const char *)rows + at * job->bytes;
    if (job->block_type == BLOCK_F16)
        job->simd->of_half((const uint16_t *)(const void *)from, out, n);
    else job->simd->dequantize(job->block_type, (const uint8_t *)from, out, n);
}

static void conv_store(const conv_job *job, void *rows, int64_t at, const float *x, int n) {
    char *to = (char *)rows + at * job->bytes;
    uint16_t *halves = (uint16_t *)(void *)to;
    if (job->block_type == BLOCK_F16) job->simd->to_half(x, halves, n);
    else if (job->block_type == BLOCK_F32) memcpy(to, x, (size_t)n * sizeof *x);
    else conv_to_bf16(x, halves, n);
}

/* x rounded to the element type. */
static void conv_round(const conv_job *job, float *x, int n) {
    uint16_t halves[256];
    for (int at = 0; at < n && job->block_type != BLOCK_F32; at += 256) {
        int some = n - at < 256 ? n - at : 256;
        conv_store(job, halves, 0, x + at, some);
        conv_load(job, halves, 0, x + at, some);
    }
}

/* The input u of one token. */
static void conv_input(const conv_worker *w, int64_t token, float *u) {
    const short_conv_params *p = w->job->p;
    conv_load(w->job, p->x, token * p->x_stride + w->channel, u, w->n);
    if (!p->gate_in) return;
    conv_load(w->job, p->gate_in, token * p->gate_in_stride + w->channel, w->gate, w->n);
    for (int c = 0; c < w->n; c++) u[c] *= w->gate[c];
    conv_round(w->job, u, w->n);
}

static int64_t conv_state_at(const conv_worker *w, int32_t slot, int row) {
    const short_conv_params *p = w->job->p;
    return ((int64_t)slot * (w->job->width - 1) + row) * p->channels + w->channel;
}

/* Input t of a sequence, t >= 1 - K: below 0 from its state, or zero. */
static void conv_input_or_state(const conv_worker *w, const conv_sequence *q, int t, float *u) {
    if (t >= 0) conv_input(w, q->first + t, u);
    else if (!q->initial) memset(u, 0, (size_t)w->n * sizeof *u);
    else conv_load(w->job, w->job->p->state, conv_state_at(w, q->slot, w->job->width - 1 + t), u,
                   w->n);
}

/* ---- sequences --------------------------------------------------------------------------------*/

/* ring [width]: the window and the token's own input -> out */
static void conv_finish(const conv_worker *w, int64_t token) {
    const conv_job *job = w->job;
    const short_conv_params *p = job->p;
    const float *up = w->ones;
    float *y = w->kept;
    job->simd->conv((const float *const *)w->ring, job->taps + w->channel, p->channels, job->width,
                    w->n, y);
    if (p->gate_out) {
        conv_load(job, p->gate_out, token * p->gate_out_stride + w->channel, w->gate, w->n);
        up = w->gate;
    }
    if (p->silu) job->simd->swiglu(y, up, w->n);
    else if (p->gate_out) for (int c = 0; c < w->n; c++) y[c] *= up[c];
    conv_store(job, p->out, token * p->out_stride + w->channel, y, w->n);
}

static void conv_write_state(const conv_worker *w, const conv_sequence *q) {
    const int kept = w->job->width - 1;
    for (int j = 0; j < kept; j++) { /* row j takes a row above it: none is overwritten before */
        conv_input_or_state(w, q, q->count - kept + j, w->kept);
        conv_store(w->job, w->job->p->state, conv_state_at(w, q->slot, j), w->kept, w->n);
    }
}

static void conv_snapshot(const conv_worker *w, int32_t s, int row, const float *u) {
    const short_conv_params *p = w->job->p;
    int64_t rows = w->job->width - 1 + p->snapshot_tokens;
    if (p->snapshots)
        conv_store(w->job, p->snapshots, (s * rows + row) * p->channels + w->channel, u, w->n);
}

/* Tokens [first, last) of sequence s. */
static void conv_span(conv_worker *w, int32_t s, const conv_sequence *q, int first, int last) {
    const int kept = w->job->width - 1;
    for (int j = 0; j < kept; j++) {
        conv_input_or_state(w, q, first - kept + j, w->ring[j]);
        conv_snapshot(w, s, j, w->ring[j]);
    }
    if (first == 0 && q->count) conv_write_state(w, q);
    for (int t = first; t < last; t++) {
        float *oldest = w->ring[0];
        conv_input(w, q->first + t, w->ring[kept]);
        conv_snapshot(w, s, kept + t, w->ring[kept]);
        conv_finish(w, q->first + t);
        for (int j = 0; j < kept; j++) w->ring[j] = w->ring[j + 1];
        w->ring[kept] = oldest;
    }
}

/* What entry c of the chunk list names; false: nothing to do. */
static bool conv_chunk(const short_conv_params *p, int32_t c, conv_sequence *q, int *first,
                       const char **cause, int64_t *value) {
    int32_t s = p->chunk_sequences[c], offset = p->chunk_offsets[c];
    *value = s >= p->sequences ? s : offset;
    if (s >= p->sequences || offset < 0) return *cause = "id out of range", false;
    *q = conv_find(p, s, cause, value);
    if (!q->valid || !q->count) return false;
    if (offset > (q->count - 1) / p->block_tokens) {
        *value = offset;
        return *cause = "length out of range", false;
    }
    *first = offset * p->block_tokens;
    return true;
}

static void conv_run_all(conv_worker *w) {
    const short_conv_params *p = w->job->p;
    const char *cause;
    int64_t value;
    conv_sequence q;
    int first;
    for (int32_t s = 0; s < p->sequences && w->job->whole; s++) {
        q = conv_find(p, s, &cause, &value);
        if (q.valid) conv_span(w, s, &q, 0, q.count);
    }
    for (int32_t c = 0; !w->job->whole && c < p->chunks && p->chunk_sequences[c] >= 0; c++)
        if (conv_chunk(p, c, &q, &first, &cause, &value))
            conv_span(w, p->chunk_sequences[c], &q, first,
                      q.count - first < p->block_tokens ? q.count : first + p->block_tokens);
}

static void conv_task(void *context, int index) {
    const conv_job *job = (const conv_job *)context;
    const int workers = pool_threads(job->dev->pool);
    const int64_t groups = (job->p->channels + 15) / 16; /* 64 bytes of f32 */
    int64_t last = ops_share(groups, index + 1, workers) * 16;
    float *rows = job->rows + (size_t)index * job->worker_floats;
    conv_worker w;
    memset(&w, 0, sizeof w);
    w.job = job;
    w.channel = ops_share(groups, index, workers) * 16;
    if (last > job->p->channels) last = job->p->channels;
    if (last <= w.channel) return;
    w.n = (int)(last - w.channel);
    for (int j = 0; j < job->width; j++, rows += w.n) w.ring[j] = rows;
    w.kept = rows, w.gate = rows + w.n, w.ones = rows + 2 * w.n;
    for (int c = 0; c < w.n; c++) w.ones[c] = 1.0f;
    conv_run_all(&w);
}

/* ---- the op -----------------------------------------------------------------------------------*/

static void conv_fill_taps(const conv_job *job) {
    const short_conv_params *p = job->p;
    const int64_t n = p->channels;
    conv_job plain = *job; /* the weights' own type */
    float *raw = job->rows;
    if (p->weight_is_f32) plain.block_type = BLOCK_F32, plain.bytes = 4;
    conv_load(&plain, p->weight, 0, raw, (int)(n * job->width));
    for (int64_t c = 0; c < n; c++)
        for (int j = 0; j < job->width; j++) job->taps[j * n + c] = raw[c * job->width + j];
    if (p->bias) conv_load(&plain, p->bias, 0, job->taps + job->width * n, (int)n);
    else memset(job->taps + job->width * n, 0, (size_t)n * sizeof(float));
}

/* The first fault, as the kernel would report it; found before the work, on one thread. */
static cairn_status conv_check_all(const conv_job *job, const char *op) {
    const short_conv_params *p = job->p;
    const char *cause = NULL;
    cairn_status status = CAIRN_OK;
    int64_t value = 0;
    conv_sequence q;
    int first;
    for (int32_t s = 0; job->whole && s < p->sequences && !status; s++, cause = NULL) {
        conv_find(p, s, &cause, &value);
        if (cause) ops_bad_row(job->dev, op, s, cause, value, &status);
    }
    for (int32_t c = 0; !job->whole && !status && c < p->chunks; c++) {
        if (p->chunk_sequences[c] < 0) break;
        conv_chunk(p, c, &q, &first, &cause, &value);
        if (cause) ops_bad_row(job->dev, op, c, cause, value, &status);
    }
    return status;
}

static cairn_status conv_run_cpu(cairn_runtime *rt, const char *op, const short_conv_params *p,
                                 cairn_type type, int width) {
    const size_t channels = (size_t)p->channels, workers = (size_t)pool_threads(rt->pool);
    conv_job job;
    void *memory;
    cairn_status status;
    memset(&job, 0, sizeof job);
    job.dev = &rt->device;
    job.simd = simd_for(0);
    job.p = p;
    job.width = width;
    job.bytes = (int)cairn_type_bytes(type);
    job.block_type = ops_block_of(type);
    job.whole = p->chunk_sequences == NULL;
    job.worker_floats = (channels / workers + 32) * (size_t)CONV_ROWS(width);
    status = device_scratch(job.dev,
                            ((size_t)(width + 1) * channels + job.worker_floats * workers) *
                                      sizeof(float), op, &memory);
    if (status) return status;
    job.taps = (float *)memory;
    job.rows = job.taps + (size_t)(width + 1) * channels;
    conv_fill_taps(&job);
    status = conv_check_all(&job, op);
    pool_run(rt->pool, (int)workers, conv_task, &job);
    return status;
}

static cairn_status conv_restore_cpu(device *dev, const short_conv_restore_params *p,
                                     int64_t sequences) {
    cairn_status status = CAIRN_OK;
    for (int64_t s = 0; s < sequences; s++) {
        int32_t slot = p->state_indices ? p->state_indices[s] : (int32_t)s;
        int32_t accepted = p->accepted[s];
        int64_t row = s * (p->rows + p->snapshot_tokens) + accepted;
        if (slot == -1 || (slot >= 0 && slot < p->reserved_slots)) continue;
        if (slot < 0 || slot >= p->slots)
            ops_bad_row(dev, "short_conv_restore", s, "id out of range", slot, &status);
        else if (accepted < 0 || accepted > p->snapshot_tokens)
            ops_bad_row(dev, "short_conv_restore", s, "length out of range", accepted, &status);
        else memcpy((char *)p->state + slot * p->rows * p->row_bytes,
                    (const char *)p->snapshots + row * p->row_bytes,
                    (size_t)(p->rows * p->row_bytes));
    }
    return status;
}
