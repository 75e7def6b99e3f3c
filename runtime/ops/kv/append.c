/* ops_kv: kv_append, the entry and its CPU half. Rows are spread over the pool's threads, each row
 * converted through one head's f32 values. */

enum {
    OPS_KV_DIM = 256,  /* values of a head at most */
    OPS_KV_BLOCK = 256 /* threads at most */
};

/* ---- elements -------------------------------------------------------------------------------- */

static void ops_kv_write(const simd_kernels *simd, cairn_type type, const float *x, void *to,
                         int64_t at, int n) {
    if (type == CAIRN_F32) memcpy((float *)to + at, x, (size_t)n * sizeof *x);
    else if (type == CAIRN_F16) simd->to_half(x, (uint16_t *)to + at, n);
    else if (type == CAIRN_BF16)
        for (int i = 0; i < n; i++) ((uint16_t *)to)[at + i] = block_bf16_of_f32(x[i]);
    else
        for (int i = 0; i < n; i++) ((uint8_t *)to)[at + i] = fp8_of_f32(x[i]);
}

/* ---- CPU ------------------------------------------------------------------------------------- */

typedef struct ops_append_job {
    device *dev;
    const kv_append_params *p;
    const simd_kernels *simd;
    cairn_type source, stored;
    bool latent;
    os_atomic bad_row; /* some row + 1 with a page that is missing; 0: none */
} ops_append_job;

/* Cosine and sine of every pair at a position. */
static void ops_append_angles(const kv_append_params *p, int32_t position, float *cosine,
                              float *sine) {
    for (int i = 0; i < p->rotary_pairs; i++) {
        double turns = (double)position * p->turns[i];
        double angle = (turns - floor(turns)) * 6.283185307179586;
        cosine[i] = (float)cos(angle);
        sine[i] = (float)sin(angle);
    }
}

static void ops_append_rotate(const kv_append_params *p, const float *cosine, const float *sine,
                              float *x) {
    int pairs = p->rotary_pairs;
    for (int i = 0; i < pairs; i++) {
        int a = p->half_split ? i : 2 * i, b = p->half_split ? i + pairs : a + 1;
        float u = x[a], v = x[b];
        x[a] = u * cosine[i] - v * sine[i];
        x[b] = u * sine[i] + v * cosine[i];
    }
}

/* Divides by the scale that it returns, for e4m3. */
static float ops_append_scale(float *x, int n) {
    float most = 1e-4f, scale;
    for (int i = 0; i < n; i++) most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    scale = most / 448.0f;
    for (int i = 0; i < n; i++) x[i] /= scale;
    return scale;
}

/* One head of K or V to row `row` of the cache, scaled where that is e4m3. */
static void ops_append_put(const ops_append_job *job, float *x, int64_t row) {
    int dim = job->p->at.head_dim;
    if (job->stored == CAIRN_E4M3) job->p->scales[row] = ops_append_scale(x, dim);
    ops_kv_write(job->simd, job->stored, x, job->p->at.cache, row * dim, dim);
}

static void ops_append_row(const ops_append_job *job, int64_t r, int32_t page, int32_t position) {
    const kv_append_params *p = job->p;
    const int dim = p->at.head_dim, heads = p->at.kv_heads;
    float x[OPS_KV_DIM], cosine[OPS_KV_DIM / 2], sine[OPS_KV_DIM / 2];
    ops_append_angles(p, position, cosine, sine);
    for (int h = 0; h < 2 * heads; h++) {
        int64_t from = (r * heads + h % heads) * dim;
        int64_t to = ((int64_t)page * 2 * heads + h) * p->at.page_size + position % p->at.page_size;
        ops_read_values(job->simd, job->source, h < heads ? p->k : p->v, from, dim, 1.0f, x);
        if (h < heads) ops_append_rotate(p, cosine, sine, x);
        ops_append_put(job, x, to);
    }
}

/* A row of a latent cache: 512 values, and 64 that are rotated. */
static void ops_append_latent_row(const ops_append_job *job, int64_t r, int32_t page,
                                  int32_t position) {
    enum { PART = LATENT_VALUES / LATENT_SCALES };
    const kv_append_params *p = job->p;
    const int64_t slot = (int64_t)page * p->at.page_size + position % p->at.page_size;
    uint8_t *to = (uint8_t *)(void *)p->at.cache + slot * LATENT_BYTES;
    float x[LATENT_KEYS], cosine[LATENT_ROTATED / 2], sine[LATENT_ROTATED / 2], scales[LATENT_SCALES];
    ops_read_values(job->simd, job->source, p->k, r * LATENT_VALUES, LATENT_VALUES, 1.0f, x);
    ops_read_values(job->simd, job->source, p->v, r * LATENT_ROTATED, LATENT_ROTATED, 1.0f,
                    x + LATENT_VALUES);
    ops_append_angles(p, position, cosine, sine);
    ops_append_rotate(p, cosine, sine, x + LATENT_VALUES);
    if (job->stored != CAIRN_U8) {
        ops_kv_write(job->simd, job->stored, x, p->at.cache, slot * LATENT_KEYS, LATENT_KEYS);
        return;
    }
    for (int j = 0; j < LATENT_SCALES; j++) {
        scales[j] = ops_append_scale(x + j * PART, PART);
        ops_kv_write(job->simd, CAIRN_E4M3, x + j * PART, to, j * PART, PART);
    }
    memcpy(to + LATENT_VALUES, scales, sizeof scales);
    ops_kv_write(job->simd, CAIRN_BF16, x + LATENT_VALUES, to + LATENT_VALUES + sizeof scales, 0,
                 LATENT_ROTATED);
}

static void ops_append_task(void *context, int worker) {
    ops_append_job *job = (ops_append_job *)context;
    const paged_rows *at = &job->p->at;
    cairn_status reported = CAIRN_BAD_DATA; /* ops_pages_bad_rows has said it */
    for (int64_t r = worker; r < job->p->rows; r += pool_threads(job->dev->pool)) {
        const int32_t *table;
        int32_t position, page;
        if (!ops_find_row(job->dev, "", at, r, &table, &position, &reported)) continue;
        page = table[position / at->page_size];
        if (!ops_pages_exists(at, page)) os_atomic_swap_if(&job->bad_row, 0, (int32_t)r + 1);
        else if (job->latent) ops_append_latent_row(job, r, page, position);
        else ops_append_row(job, r, page, position);
    }
}

static cairn_status ops_append_cpu(ops_append_job *job) {
    const paged_rows *at = &job->p->at;
    cairn_status status = ops_pages_bad_rows(job->dev, "kv_append", at, job->p->rows);
    int32_t bad;
    pool_run(job->dev->pool, pool_threads(job->dev->pool), ops_append_task, job);
    bad = os_atomic_load(&job->bad_row);
    if (bad)
        ops_bad_row(job->dev, "kv_append", bad - 1, "page missing from the table", -1, &status);
    return status;
}

/* ---- CUDA ------------------------------------------------------------------------------------ */

/* Blocks are small, mostly a row each, with lanes for every head. e4m3 of many rows, where converting
 * takes about as long as copying: a lane works on all heads of its row, so that the two overlap. */
static void ops_append_shape(const device *dev, kv_append_params *p, cairn_type stored,
                             device_dims *dims) {
    int lanes = 1, side = p->at.kv_heads, threads = 64;
    while (lanes * 16 < p->at.head_dim) lanes *= 2;
    if (stored == CAIRN_E4M3 && (int64_t)p->rows * lanes > (int64_t)dev->sm_count * 1024)
        side = 1, threads = 128;
    if (side * lanes > OPS_KV_BLOCK) side = OPS_KV_BLOCK / lanes;
    p->heads_each = side;
    p->rows_each = side * lanes < threads ? threads / (side * lanes) : 1;
    dims->block = ((unsigned)(p->rows_each * side * lanes) + 31) / 32 * 32;
    dims->grid[0] = ((unsigned)p->rows + (unsigned)p->rows_each - 1) / (unsigned)p->rows_each;
    if (p->rotary_pairs) dims->shared_bytes = (unsigned)(p->rows_each * lanes * 64);
}

static cairn_status ops_append_cuda(cairn_runtime *rt, kv_append_params *p, cairn_type source,
                                    cairn_type stored) {
    static const char *const names[] = {"HEAD_DIM", "SOURCE_TYPE", "CACHE_TYPE", "ROPE"};
    device_dims dims = {{1, 1, 1}, 0, 0, 0, false};
    ops_kernel want;
    ops_append_shape(&rt->device, p, stored, &dims);
    memset(&want, 0, sizeof want);
    want.source = "kv/append.cu";
    want.entry = "kv_append";
    want.constant_count = (int)BASE_COUNT(names);
    for (int i = 0; i < want.constant_count; i++) want.constants[i].name = names[i];
    want.constants[0].value = p->at.head_dim;
    want.constants[1].value = source;
    want.constants[2].value = stored;
    want.constants[3].value = !p->rotary_pairs ? 0 : p->half_split ? 2 : 1;
    return ops_launch_as(rt, &want, &dims, p);
}

static cairn_status ops_append_latent_cuda(cairn_runtime *rt, kv_append_params *p,
                                           cairn_type source, cairn_type stored) {
    device_dims dims = {{1, 1, 1}, 128, 0, 0, false};
    ops_kernel want;
    memset(&want, 0, sizeof want);
    want.source = "kv/latent.cu";
    want.entry = "kv_append_latent";
    want.constants[0].name = "SOURCE_TYPE", want.constants[0].value = source;
    want.constants[1].name = "CACHE_TYPE";
    want.constants[1].value = stored == CAIRN_U8 ? CAIRN_E4M3 : stored;
    want.constant_count = 2;
    dims.grid[0] = ((unsigned)p->rows + 3) / 4;
    return ops_launch_as(rt, &want, &dims, p);
}

static cairn_status kv_append_latents(cairn_runtime *rt, kv_append_params *p) {
    p->at.error = ops_error_word(&rt->device, "kv_append");
    return ops_append_latent_cuda(rt, p, CAIRN_F32, CAIRN_F16);
}

/* ---- entry ----------------------------------------------------------------------------------- */

static void ops_append_params(const cairn_kv_append_args *a, const ops_paged *paged,
                              kv_append_params *p) {
    memset(p, 0, sizeof *p);
    p->at = paged->at;
    p->k = tensor_data(a->k);
    p->v = tensor_data(a->v);
    p->scales = a->scales ? (float *)tensor_data(a->scales) : NULL;
    p->rows = (int32_t)paged->rows;
    p->half_split = a->half_split;
    if (a->rope_base == 0.0f) return;
    p->rotary_pairs = a->rotary_dim / 2;
    for (int i = 0; i < p->rotary_pairs; i++)
        p->turns[i] = pow((double)a->rope_base, -2.0 * i / a->rotary_dim) * 0.15915494309189535;
}

cairn_status cairn_kv_append(cairn_runtime *rt, const cairn_kv_append_args *args) {
    cairn_kv_append_args a;
    ops_paged paged;
    kv_append_params p;
    ops_append_job job;
    spec_call s;
    bool scaled;
    if (spec_take(rt, SPEC_OF(kv_append), &a, args, &s)) return s.c.status;
    ops_want_latent(&s, a.pages.cache, a.latent, LATENT_VALUES, LATENT_ROTATED);
    if (a.latent) a.pages.cache = a.latent;
    ops_want_paged(&s, &a.pages, &paged);
    if (s.c.status) return s.c.status;
    scaled = cairn_tensor_type(a.pages.cache) == CAIRN_E4M3;
    ops_refuse(&s.c, !scaled != !a.scales, scaled ? "scales is NULL, but the cache is e4m3"
                                                  : "scales are given, but the cache is not e4m3");
    if (!a.rotary_dim || a.latent) a.rotary_dim = (int32_t)s.n[SPEC_VALUES];
    ops_refuse(&s.c, a.rotary_dim % 16 || a.rotary_dim > s.n[SPEC_HEAD_DIM],
               "rotary_dim = %d; a multiple of 16 up to head_dim %lld is expected",
               (int)a.rotary_dim, (long long)s.n[SPEC_HEAD_DIM]);
    if (s.c.status || !paged.rows) return s.c.status;
    ops_append_params(&a, &paged, &p);
    memset(&job, 0, sizeof job);
    job.dev = &rt->device;
    job.p = &p;
    job.simd = simd_for(paged.at.head_dim);
    job.source = cairn_tensor_type(a.k);
    job.stored = cairn_tensor_type(a.pages.cache);
    job.latent = a.latent != NULL;
    if (!rt->device.cuda) return spec_end(rt, ops_append_cpu(&job));
    if (a.latent) return spec_end(rt, ops_append_latent_cuda(rt, &p, job.source, job.stored));
    return spec_end(rt, ops_append_cuda(rt, &p, job.source, job.stored));
}
