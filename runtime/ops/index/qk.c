/* index: index_qk. The projections are linear's, into scratch; then each head of each row on its own. */

enum {
    INDEX_PAIRS = 32,    /* that rope turns */
    INDEX_QK_ROWS = 512  /* whose projections are in memory at a time */
};

/* ---- CPU ------------------------------------------------------------------------------------- */

typedef struct index_qk_job { device *dev; const index_qk_params *p; } index_qk_job;

static void index_normalize(const index_qk_params *p, float *v) {
    float mean = 0.0f, square = 0.0f, deviation;
    for (int d = 0; d < CAIRN_INDEX_DIM; d++) mean += v[d];
    mean /= (float)CAIRN_INDEX_DIM;
    for (int d = 0; d < CAIRN_INDEX_DIM; d++) {
        v[d] -= mean;
        square += v[d] * v[d];
    }
    deviation = sqrtf(square / (float)CAIRN_INDEX_DIM + p->epsilon);
    for (int d = 0; d < CAIRN_INDEX_DIM; d++)
        v[d] = v[d] / deviation * p->norm_weight[d] + (p->norm_bias ? p->norm_bias[d] : 0.0f);
}

static void index_turn(const float *cosine, const float *sine, float *v) {
    for (int j = 0; j < INDEX_PAIRS; j++) {
        const float x = v[j], y = v[j + INDEX_PAIRS];
        v[j] = x * cosine[j] - y * sine[j];
        v[j + INDEX_PAIRS] = x * sine[j] + y * cosine[j];
    }
}

static void index_hadamard(float *v) {
    for (int m = 1; m < CAIRN_INDEX_DIM; m *= 2)
        for (int d = 0; d < CAIRN_INDEX_DIM; d++) {
            const float x = v[d], y = v[d | m];
            if (d & m) continue;
            v[d] = x + y;
            v[d | m] = x - y;
        }
    for (int d = 0; d < CAIRN_INDEX_DIM; d++) v[d] *= 0.08838834764831845f; /* 128^-0.5 */
}

static void index_qk_row(const index_qk_params *p, int64_t r) {
    const int32_t position = p->positions[r] < 0 ? 0 : p->positions[r];
    float cosine[INDEX_PAIRS], sine[INDEX_PAIRS], v[CAIRN_INDEX_DIM];
    for (int j = 0; j < INDEX_PAIRS; j++) {
        const double turns = (double)position * p->turns[j];
        const double angle = (turns - floor(turns)) * 6.283185307179586;
        cosine[j] = (float)cos(angle);
        sine[j] = (float)sin(angle);
    }
    for (int h = 0; h <= p->heads; h++) {
        const int64_t at = r * p->heads + h;
        const bool key = h == p->heads;
        float scale;
        memcpy(v, key ? p->k + r * CAIRN_INDEX_DIM : p->q + at * CAIRN_INDEX_DIM, sizeof v);
        if (key) index_normalize(p, v);
        index_turn(cosine, sine, v);
        index_hadamard(v);
        scale = fp8_of_block(v, CAIRN_INDEX_DIM, p->power_of_two != 0,
                             key ? p->keys + r * CAIRN_INDEX_DIM : p->q_out + at * CAIRN_INDEX_DIM);
        if (key) p->key_scales[r] = scale;
        else p->weights[at] = p->gates[at] * p->gate_scale * scale;
    }
}

static void index_qk_task(void *context, int index) {
    const index_qk_job *job = (const index_qk_job *)context;
    const int workers = pool_threads(job->dev->pool);
    const int64_t last = ops_share(job->p->rows, index + 1, workers);
    for (int64_t r = ops_share(job->p->rows, index, workers); r < last; r++)
        index_qk_row(job->p, r);
}

static cairn_status index_qk_cpu(cairn_runtime *rt, const index_qk_params *p) {
    cairn_status status = CAIRN_OK;
    index_qk_job job;
    job.dev = &rt->device;
    job.p = p;
    pool_run(rt->pool, pool_threads(rt->pool), index_qk_task, &job);
    for (int64_t r = 0; r < p->rows && !status; r++)
        if (p->positions[r] < 0)
            ops_bad_row(&rt->device, "index_qk", p->first_row + r, "position out of range",
                        p->positions[r], &status);
    return status;
}

/* ---- entry ----------------------------------------------------------------------------------- */

/* out [count, outs] = rows of x . weight^T, in this call's scratch. */
static cairn_status index_project(cairn_runtime *rt, const cairn_tensor *x, int64_t first,
                                  int64_t count, const cairn_tensor *weight, int32_t block,
                                  float *out) {
    cairn_linear_args a;
    cairn_tensor from = *x, to = *x;
    int64_t some[2], shape[2];
    const int op = trace_pause(&rt->device);
    cairn_status status;
    some[0] = shape[0] = count, some[1] = x->shape[1], shape[1] = weight->shape[0];
    from.shape = some, from.strides = NULL;
    from.byte_offset += (uint64_t)(first * some[1]) * sizeof(float);
    to.data = out, to.byte_offset = 0, to.shape = shape, to.strides = NULL;
    memset(&a, 0, sizeof a);
    a.struct_size = (uint32_t)sizeof a;
    a.block = block, a.x = &from, a.weight = weight, a.out = &to;
    status = cairn_linear(rt, &a);
    trace_resume(&rt->device, op);
    return status;
}

/* Room for the projections. linear takes scratch of its own on the CPU, from the first byte on: what
 * it takes is left free. */
static cairn_status index_qk_scratch(cairn_runtime *rt, const spec_call *s, int64_t heads,
                                     float **room) {
    const int64_t in = s->n[SPEC_INS] > s->n[SPEC_HIDDEN] ? s->n[SPEC_INS] : s->n[SPEC_HIDDEN];
    const int64_t rows = s->n[SPEC_ROWS] < INDEX_QK_ROWS ? s->n[SPEC_ROWS] : INDEX_QK_ROWS;
    size_t before = 0, floats = (size_t)(rows * (heads * 129 + CAIRN_INDEX_DIM));
    void *memory = NULL;
    cairn_status status = handles_enter(rt);
    if (status) return status;
    if (!rt->device.cuda)
        before = linear_panel_floats((int)in) * (size_t)pool_threads(rt->pool);
    status = device_scratch(&rt->device, (before + floats) * sizeof(float), "index_qk", &memory);
    if (!status) *room = memory ? (float *)memory + before : NULL;
    return handles_leave(rt, status);
}

static void index_want_qk(spec_call *s, const cairn_index_qk_args *a) {
    const int given = (a->q_latent != NULL) + (a->wq != NULL) + (a->gate != NULL) +
                      (a->q != NULL) + (a->weights != NULL);
    ops_refuse(&s->c, given != 0 && given != 5,
               "q_latent, wq, gate, q and weights are expected together, or none of them");
    ops_refuse(&s->c, given == 5 && s->n[SPEC_OUTS] != s->n[SPEC_HEADS] * CAIRN_INDEX_DIM,
               "wq has %lld outputs for %lld heads of 128", (long long)s->n[SPEC_OUTS],
               (long long)s->n[SPEC_HEADS]);
}

/* All that does not change from one part of the rows to the next. */
static void index_qk_params_of(const spec_call *s, const cairn_index_qk_args *a, int heads,
                               index_qk_params *p) {
    const double theta = a->rope_base == 0.0f ? 10000.0 : (double)a->rope_base;
    memset(p, 0, sizeof *p);
    p->heads = heads;
    p->norm_weight = (const float *)tensor_data(a->norm_weight);
    p->norm_bias = a->norm_bias ? (const float *)tensor_data(a->norm_bias) : NULL;
    p->error = ops_error_word(s->c.dev, s->c.op);
    p->power_of_two = a->power_of_two != 0;
    p->epsilon = a->epsilon == 0.0f ? 1e-6f : a->epsilon;
    p->gate_scale = heads ? (float)(1.0 / sqrt(heads * (double)CAIRN_INDEX_DIM)) : 0.0f;
    for (int j = 0; j < INDEX_PAIRS; j++)
        p->turns[j] = pow(theta, -j / (double)INDEX_PAIRS) * 0.15915494309189535;
}

static cairn_status index_qk_cuda(cairn_runtime *rt, const index_qk_params *p) {
    device_dims dims = {{0, 1, 1}, 128, 0, 0, false};
    ops_kernel want;
    memset(&want, 0, sizeof want);
    want.source = "index/qk.cu", want.entry = "index_qk";
    want.constants[0].name = "PLANNED", want.constants[0].value = 1;
    want.constant_count = p->magnitude > 0.0f;
    dims.grid[0] = (unsigned)(((int64_t)p->rows * (p->heads + 1) + 3) / 4);
    return ops_launch_as(rt, &want, &dims, p);
}

/* Rows [first, first + count): their projections into the room, then what becomes of them. */
static cairn_status index_qk_rows(cairn_runtime *rt, const cairn_index_qk_args *a,
                                  index_qk_params *p, float *room, int64_t first, int64_t count) {
    const int64_t width = (int64_t)p->heads * CAIRN_INDEX_DIM;
    float *k = room + count * width, *gates = k + count * CAIRN_INDEX_DIM;
    cairn_status status = index_project(rt, a->x, first, count, a->wk, a->block, k);
    if (p->heads && !status)
        status = index_project(rt, a->q_latent, first, count, a->wq, a->block, room);
    if (p->heads && !status)
        status = index_project(rt, a->x, first, count, a->gate, CAIRN_BLOCK_NONE, gates);
    if (status) return status;
    p->q = room, p->k = k, p->gates = gates;
    p->first_row = (int32_t)first;
    p->rows = (int32_t)count;
    p->positions = index_ints(a->positions) + first;
    p->q_out = p->heads ? (uint8_t *)tensor_data(a->q) + first * width : NULL;
    p->weights = p->heads ? (float *)tensor_data(a->weights) + first * p->heads : NULL;
    p->keys = (uint8_t *)tensor_data(a->keys) + first * CAIRN_INDEX_DIM;
    p->key_scales = (float *)tensor_data(a->key_scales) + first;
    return rt->device.cuda ? index_qk_cuda(rt, p) : index_qk_cpu(rt, p);
}

cairn_status cairn_index_qk(cairn_runtime *rt, const cairn_index_qk_args *args) {
    cairn_index_qk_args a;
    index_qk_params p;
    spec_call s;
    float *room = NULL;
    int heads;
    cairn_status status = spec_take(rt, SPEC_OF(index_qk), &a, args, &s), bad = CAIRN_OK;
    char kept[BASE_ERROR_BYTES];
    if (status) return status;
    index_want_qk(&s, &a);
    if (s.c.status || !s.n[SPEC_ROWS]) return s.c.status;
    heads = a.q ? (int)s.n[SPEC_HEADS] : 0;
    if ((status = index_qk_scratch(rt, &s, heads, &room))) return status;
    index_qk_params_of(&s, &a, heads, &p);
    for (int64_t first = 0; first < s.n[SPEC_ROWS] && !status; first += INDEX_QK_ROWS) {
        const int64_t left = s.n[SPEC_ROWS] - first;
        status = index_qk_rows(rt, &a, &p, room, first, left < INDEX_QK_ROWS ? left : INDEX_QK_ROWS);
        if (status != CAIRN_BAD_DATA) continue;
        if (!bad) memcpy(kept, rt->base.error, sizeof kept);
        bad = status, status = CAIRN_OK;
    }
    if (!status && bad) memcpy(rt->base.error, kept, sizeof kept);
    return spec_end(rt, status ? status : bad);
}
