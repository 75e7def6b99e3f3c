/* dense: the entries. Each checks, then loops over rows on the CPU's threads or launches its kernel.
 * See dense.h. */

typedef struct ops_dense_job {
    device *dev;
    const simd_kernels *simd;
    const void *args;
    ops_weight weight;
    int64_t rows, width;
    float *panels;
} ops_dense_job;

/* ---- embed -------------------------------------------------------------------------------------- */

static cairn_status dense_embed_cpu(device *dev, const cairn_embed_args *a,
                                    const ops_weight *table) {
    const int32_t *ids = (const int32_t *)tensor_data(a->ids);
    float *out = (float *)tensor_data(a->out);
    const block_type *type = block_find(table->type);
    cairn_status status = CAIRN_OK;
    int64_t r;
    for (r = 0; r < a->ids->shape[0]; r++, out += table->ins) {
        if (ids[r] >= 0 && ids[r] < table->outs) {
            type->dequantize((const uint8_t *)table->data + ids[r] * table->row_bytes, out,
                             table->ins);
        } else {
            memset(out, 0, (size_t)table->ins * sizeof *out);
            ops_bad_row(dev, "embed", r, "id out of range", ids[r], &status);
        }
    }
    return status;
}

static cairn_status dense_embed_cuda(cairn_runtime *rt, const cairn_embed_args *a,
                                     const ops_weight *table) {
    device_dims dims = {{0, 1, 1}, 128, 0, 0, false};
    embed_params p;
    memset(&p, 0, sizeof p);
    p.ids = (const int32_t *)tensor_data(a->ids);
    p.table = (const uint8_t *)table->data;
    p.out = (float *)tensor_data(a->out);
    p.error = ops_error_word(&rt->device, "embed");
    p.row_bytes = table->row_bytes;
    p.vocab = (int32_t)table->outs;
    p.hidden = (int32_t)table->ins;
    p.block_type = table->type;
    dims.grid[0] = (unsigned)a->ids->shape[0];
    return ops_launch(rt, "dense/embed.cu", "embed", &dims, &p);
}

cairn_status cairn_embed(cairn_runtime *rt, const cairn_embed_args *args) {
    cairn_embed_args a;
    ops_weight table;
    spec_call s;
    if (spec_take(rt, SPEC_OF(embed), &a, args, &s) || !s.n[SPEC_ROWS]) return s.c.status;
    table = ops_weight_of(&s, a.table, a.block, SPEC_VOCAB, SPEC_HIDDEN);
    return spec_end(rt, rt->device.cuda ? dense_embed_cuda(rt, &a, &table)
                                        : dense_embed_cpu(&rt->device, &a, &table));
}

/* ---- rmsnorm ------------------------------------------------------------------------------------ */

static void dense_rmsnorm_task(void *context, int index) {
    const ops_dense_job *job = (const ops_dense_job *)context;
    const cairn_rmsnorm_args *a = (const cairn_rmsnorm_args *)job->args;
    int workers = pool_threads(job->dev->pool);
    int64_t r = ops_share(job->rows, index, workers), end = ops_share(job->rows, index + 1, workers);
    for (; r < end; r++)
        job->simd->rmsnorm((const float *)tensor_data(a->x) + r * job->width,
                           (const float *)tensor_data(a->weight), a->epsilon, (int)job->width,
                           (float *)tensor_data(a->out) + r * job->width);
}

static void ops_dense_run(cairn_runtime *rt, ops_dense_job *job, const void *args, pool_task task) {
    job->dev = &rt->device;
    job->simd = simd_for(0);
    job->args = args;
    pool_run(rt->pool, pool_threads(rt->pool), task, job);
}

static cairn_status dense_rmsnorm_rows(cairn_runtime *rt, const rmsnorm_params *p, int64_t rows) {
    device_dims dims = {{0, 1, 1}, 256, 0, 32, false};
    dims.grid[0] = (unsigned)rows;
    return ops_launch(rt, "dense/norm.cu", "rmsnorm", &dims, p);
}

static cairn_status dense_rmsnorm_cuda(cairn_runtime *rt, const cairn_rmsnorm_args *a) {
    rmsnorm_params p;
    memset(&p, 0, sizeof p);
    p.x = (const float *)tensor_data(a->x);
    p.weight = (const float *)tensor_data(a->weight);
    p.out = (float *)tensor_data(a->out);
    p.n = (int32_t)a->x->shape[1];
    p.epsilon = a->epsilon;
    return dense_rmsnorm_rows(rt, &p, a->x->shape[0]);
}

cairn_status cairn_rmsnorm(cairn_runtime *rt, const cairn_rmsnorm_args *args) {
    cairn_rmsnorm_args a;
    ops_dense_job job;
    spec_call s;
    if (spec_take(rt, SPEC_OF(rmsnorm), &a, args, &s)) return s.c.status;
    job.rows = s.n[SPEC_ROWS];
    job.width = s.n[SPEC_N];
    if (!job.rows || !job.width) return CAIRN_OK;
    if (a.epsilon == 0.0f) a.epsilon = 1e-5f;
    if (rt->device.cuda) return spec_end(rt, dense_rmsnorm_cuda(rt, &a));
    ops_dense_run(rt, &job, &a, dense_rmsnorm_task);
    return spec_end(rt, CAIRN_OK);
}

/* ---- rope --------------------------------------------------------------------------------------- */

/* cos and sin of position * base^(-2 pair / rotary_dim), the angle in double. */
static void dense_rotation(int32_t position, int pair, int rotary_dim, float theta, float *cosine,
                           float *sine) {
    double angle = (double)position * pow((double)theta, -2.0 * pair / rotary_dim);
    *cosine = (float)cos(angle);
    *sine = (float)sin(angle);
}

static void dense_rope_row(const cairn_rope_args *a, const float *x, float *out, int32_t position) {
    int heads = (int)a->x->shape[1], dim = (int)a->x->shape[2], pairs = a->rotary_dim / 2, pair, h;
    for (pair = 0; pair < pairs; pair++) {
        float cosine, sine;
        int first = a->half_split ? pair : 2 * pair, second = a->half_split ? pair + pairs : first + 1;
        dense_rotation(position, pair, a->rotary_dim, a->base, &cosine, &sine);
        for (h = 0; h < heads; h++) {
            float u = x[h * dim + first], v = x[h * dim + second];
            out[h * dim + first] = u * cosine - v * sine;
            out[h * dim + second] = u * sine + v * cosine;
        }
    }
    for (h = 0; h < heads && out != x; h++)
        memcpy(out + h * dim + a->rotary_dim, x + h * dim + a->rotary_dim,
               (size_t)(dim - a->rotary_dim) * sizeof *x);
}

static cairn_status dense_rope_cpu(device *dev, const cairn_rope_args *a) {
    const int32_t *positions = (const int32_t *)tensor_data(a->positions);
    int64_t width = a->x->shape[1] * a->x->shape[2], r;
    cairn_status status = CAIRN_OK;
    for (r = 0; r < a->x->shape[0]; r++) {
        if (positions[r] < 0)
            ops_bad_row(dev, "rope", r, "position out of range", positions[r], &status);
        dense_rope_row(a, (const float *)tensor_data(a->x) + r * width,
                       (float *)tensor_data(a->out) + r * width,
                       positions[r] < 0 ? 0 : positions[r]);
    }
    return status;
}

static cairn_status dense_rope_cuda(cairn_runtime *rt, const cairn_rope_args *a) {
    device_dims dims = {{0, 1, 1}, 128, 0, 0, false};
    rope_params p;
    memset(&p, 0, sizeof p);
    p.x = (const float *)tensor_data(a->x);
    p.positions = (const int32_t *)tensor_data(a->positions);
    p.out = (float *)tensor_data(a->out);
    p.error = ops_error_word(&rt->device, "rope");
    p.base = a->base;
    p.heads = (int32_t)a->x->shape[1];
    p.head_dim = (int32_t)a->x->shape[2];
    p.rotary_dim = a->rotary_dim;
    p.half_split = a->half_split;
    dims.grid[0] = (unsigned)a->x->shape[0];
    return ops_launch(rt, "dense/rope.cu", "rope", &dims, &p);
}

cairn_status cairn_rope(cairn_runtime *rt, const cairn_rope_args *args) {
    cairn_rope_args a;
    spec_call s;
    if (spec_take(rt, SPEC_OF(rope), &a, args, &s)) return s.c.status;
    if (!a.rotary_dim) a.rotary_dim = (int32_t)s.n[SPEC_HEAD_DIM];
    if (a.base == 0.0f) a.base = 10000.0f;
    ops_refuse(&s.c, a.rotary_dim % 2 || a.rotary_dim > s.n[SPEC_HEAD_DIM],
               "rotary_dim = %d; an even number up to head_dim %lld is expected",
               (int)a.rotary_dim, (long long)s.n[SPEC_HEAD_DIM]);
    if (s.c.status || !tensor_elements(a.x)) return s.c.status;
    return spec_end(rt, rt->device.cuda ? dense_rope_cuda(rt, &a) : dense_rope_cpu(&rt->device, &a));
}

/* ---- swiglu ------------------------------------------------------------------------------------- */

static void dense_swiglu_task(void *context, int index) {
    const ops_dense_job *job = (const ops_dense_job *)context;
    const cairn_swiglu_args *a = (const cairn_swiglu_args *)job->args;
    int workers = pool_threads(job->dev->pool);
    int64_t r = ops_share(job->rows, index, workers), end = ops_share(job->rows, index + 1, workers);
    const float *gate = (const float *)tensor_data(a->gate), *up = (const float *)tensor_data(a->up);
    float *out = (float *)tensor_data(a->out), piece[256];
    for (r *= job->width, end *= job->width; r < end; r += 256) {
        int n = end - r < 256 ? (int)(end - r) : 256;
        memcpy(piece, gate + r, (size_t)n * sizeof *piece);
        job->simd->swiglu(piece, up + r, n);
        memcpy(out + r, piece, (size_t)n * sizeof *piece);
    }
}

static cairn_status dense_swiglu_cuda(cairn_runtime *rt, const cairn_swiglu_args *a) {
    device_dims dims = {{0, 1, 1}, 256, 0, 0, false};
    swiglu_params p;
    int64_t blocks;
    memset(&p, 0, sizeof p);
    p.gate = (const float *)tensor_data(a->gate);
    p.up = (const float *)tensor_data(a->up);
    p.out = (float *)tensor_data(a->out);
    p.count = tensor_elements(a->gate);
    blocks = (p.count + 1023) / 1024;
    dims.grid[0] = (unsigned)(blocks < rt->device.sm_count * 8 ? blocks : rt->device.sm_count * 8);
    return ops_launch(rt, "dense/norm.cu", "swiglu", &dims, &p);
}

cairn_status cairn_swiglu(cairn_runtime *rt, const cairn_swiglu_args *args) {
    cairn_swiglu_args a;
    ops_dense_job job;
    spec_call s;
    if (spec_take(rt, SPEC_OF(swiglu), &a, args, &s)) return s.c.status;
    job.rows = s.n[SPEC_ROWS];
    job.width = s.n[SPEC_N];
    if (!job.rows || !job.width) return CAIRN_OK;
    if (rt->device.cuda) return spec_end(rt, dense_swiglu_cuda(rt, &a));
    ops_dense_run(rt, &job, &a, dense_swiglu_task);
    return spec_end(rt, CAIRN_OK);
}

/* ---- linear ------------------------------------------------------------------------------------- */

static void dense_linear_task(void *context, int index) {
    const ops_dense_job *job = (const ops_dense_job *)context;
    const cairn_linear_args *a = (const cairn_linear_args *)job->args;
    const int64_t steps = (job->weight.outs + LINEAR_STEP - 1) / LINEAR_STEP;
    int workers = pool_threads(job->dev->pool);
    int64_t first = ops_share(steps, index, workers) * LINEAR_STEP;
    int64_t last = ops_share(steps, index + 1, workers) * LINEAR_STEP;
    linear_job work;
    memset(&work, 0, sizeof work);
    work.type = job->weight.type;
    work.w = job->weight.data;
    work.out = (int)job->weight.outs;
    work.in = (int)job->weight.ins;
    work.x = (const float *)tensor_data(a->x);
    work.x_stride = job->weight.ins;
    work.rows = (int)job->rows;
    work.y = (float *)tensor_data(a->out);
    work.y_stride = job->weight.outs;
    work.add = a->accumulate != 0;
    if (last > job->weight.outs) last = job->weight.outs;
    if (first < last)
        linear_range(job->simd, &work, (int)first, (int)last,
                     job->panels + (size_t)index * linear_panel_floats((int)job->weight.ins));
}

static cairn_status dense_linear_cpu(cairn_runtime *rt, ops_dense_job *job,
                                     const cairn_linear_args *a) {
    size_t bytes = linear_panel_floats((int)job->weight.ins) * sizeof(float);
    void *panels;
    cairn_status status = device_scratch(&rt->device, bytes * (size_t)pool_threads(rt->pool),
                                         "linear", &panels);
    if (status) return status;
    job->panels = (float *)panels;
    ops_dense_run(rt, job, a, dense_linear_task);
    return CAIRN_OK;
}

enum { OPS_LINEAR_OUTS = 64, OPS_LINEAR_CHUNK = 256 };

/* Whether the product of a model's steps reads the blocks in place: see dense/raw.cuh. That depends on
 * nothing but the weights, so that a row's bits do not either. */
static bool dense_streams(const ops_weight *w) {
    const int units = w->type == BLOCK_Q4_0 ? 256 : w->type == BLOCK_Q4_1 ? 128 : 0;
    return units && w->ins % units == 0 && w->outs % 16 == 0 && (uintptr_t)w->data % 16 == 0;
}

/* For weights that it reads; else tiles of 8 rows for the plain kernel. */
static void dense_linear_kernel(device *dev, const linear_params *p, int type, bool streams,
                                ops_kernel *want, device_dims *dims) {
    const int tiles = p->rows <= 8 ? 1 : 8, most = dev->sm_count * 2;
    memset(want, 0, sizeof *want);
    want->source = streams ? "dense/stream.cu" : "dense/linear.cu";
    want->entry = streams ? "linear_stream" : "linear";
    want->constants[0].name = "BLOCK_TYPE", want->constants[0].value = type;
    want->constants[1].name = streams ? "INPUTS" : "ROW_TILES";
    want->constants[1].value = streams ? p->in : tiles;
    want->constant_count = 2;
    dims->block = streams ? 256 : 128;
    dims->grid[0] = (unsigned)((p->outs + OPS_LINEAR_OUTS - 1) / OPS_LINEAR_OUTS);
    dims->grid[1] = (unsigned)((p->rows + 8 * tiles - 1) / (8 * tiles));
    dims->shared_bytes = (unsigned)(8 * tiles * (OPS_LINEAR_CHUNK + 8) * 2);
    if (!streams) return;
    dims->grid[0] = (unsigned)(p->outs / 16 < most ? p->outs / 16 : most);
    dims->grid[1] = (unsigned)((p->rows + 7) / 8);
    dims->shared_bytes = PRODUCT_SHARED;
}

static cairn_status dense_linear_cuda(cairn_runtime *rt, const cairn_linear_args *a,
                                      const ops_dense_job *job) {
    device_dims dims = {{0, 0, 1}, 128, 0, 0, false};
    ops_kernel want;
    linear_params p;
    memset(&p, 0, sizeof p);
    p.x = (const float *)tensor_data(a->x);
    p.w = (const uint8_t *)job->weight.data;
    p.out = (float *)tensor_data(a->out);
    p.row_bytes = job->weight.row_bytes;
    p.rows = (int32_t)job->rows;
    p.outs = (int32_t)job->weight.outs;
    p.in = (int32_t)job->weight.ins;
    p.accumulate = a->accumulate;
    dense_linear_kernel(&rt->device, &p, job->weight.type, dense_streams(&job->weight), &want, &dims);
    return ops_launch_as(rt, &want, &dims, &p);
}

static cairn_status dense_linear_parts(cairn_runtime *rt, const linear_params *p, int type, int parts) {
    device_dims dims = {{0, 0, 1}, 128, 0, 0, false};
    ops_kernel want;
    dense_linear_kernel(&rt->device, p, type, false, &want, &dims);
    want.constants[2].name = "APART", want.constants[2].value = 1;
    want.constant_count = 3;
    dims.grid[2] = (unsigned)parts;
    return ops_launch_as(rt, &want, &dims, p);
}

cairn_status cairn_linear(cairn_runtime *rt, const cairn_linear_args *args) {
    cairn_linear_args a;
    ops_dense_job job;
    spec_call s;
    memset(&job, 0, sizeof job);
    if (spec_take(rt, SPEC_OF(linear), &a, args, &s)) return s.c.status;
    job.weight = ops_weight_of(&s, a.weight, a.block, SPEC_OUTS, SPEC_INS);
    job.rows = s.n[SPEC_ROWS];
    if (!job.rows || !job.weight.outs) return CAIRN_OK;
    return spec_end(rt, rt->device.cuda ? dense_linear_cuda(rt, &a, &job) : dense_linear_cpu(rt, &job, &a));
}
