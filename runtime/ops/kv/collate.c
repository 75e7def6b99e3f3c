/* ops_collate: kv_collate, the entry and its CPU half, which spreads sequences x layers over the
 * pool's threads. */

typedef struct ops_collate_job {
    device *dev;
    const kv_collate_params *p;
    int64_t sequences, layers;
} ops_collate_job;

/* ---- CPU ------------------------------------------------------------------------------------- */

static int32_t ops_collate_source(const kv_collate_params *p, int64_t s, int32_t g) {
    return p->sources ? p->sources[s * p->most + g] : g * p->stride;
}

/* The row that head 0 of K has at a position, counted from the cache's start; -1: no such page. */
static int64_t ops_collate_row(const kv_collate_params *p, int64_t s, int64_t position) {
    int32_t page;
    if (position < 0 || position / p->page_size >= p->max_pages) return -1;
    page = p->page_table[s * p->max_pages + position / p->page_size];
    if (page < 0 || page >= p->pages) return -1;
    return (int64_t)page * 2 * p->kv_heads * p->page_size + position % p->page_size;
}

/* Entries of sequence s that are kept, 0 when its sources do not ascend. */
static int32_t ops_collate_count(device *dev, const kv_collate_params *p, int64_t s,
                                 cairn_status *status) {
    int32_t count = p->accepted[s], kept = count < 0 ? 0 : count > p->most ? p->most : count;
    if (kept != count) ops_bad_row(dev, "kv_collate", s, "accepted out of range", count, status);
    for (int32_t g = 0; p->sources && g < kept; g++) {
        int32_t here = ops_collate_source(p, s, g);
        if (here > (g ? ops_collate_source(p, s, g - 1) : -1)) continue;
        ops_bad_row(dev, "kv_collate", s, "sources do not ascend", here, status);
        return 0;
    }
    return kept;
}

/* Where entry g moves from and to; false when it stays, or there is no place for it. */
static bool ops_collate_entry(const kv_collate_params *p, int64_t s, int32_t g, int64_t *from,
                              int64_t *to) {
    int64_t first = p->bases[s], source = ops_collate_source(p, s, g);
    if (source == g) return false;
    *to = ops_collate_row(p, s, first < 0 ? first : first + g);
    *from = ops_collate_row(p, s, first < 0 ? first : first + source);
    return *to >= 0 && *from >= 0;
}

static cairn_status ops_collate_bad_rows(const ops_collate_job *job) {
    const kv_collate_params *p = job->p;
    cairn_status status = CAIRN_OK;
    for (int64_t s = 0; s < job->sequences; s++) {
        int32_t kept = ops_collate_count(job->dev, p, s, &status);
        for (int32_t g = 0; g < kept && !status; g++) {
            int64_t from, to;
            if (ops_collate_source(p, s, g) != g && !ops_collate_entry(p, s, g, &from, &to))
                ops_bad_row(job->dev, "kv_collate", s, "no page for the entry at", g, &status);
        }
    }
    return status;
}

/* One sequence in one layer, in ascending order: a source lies above every place written before. */
static void ops_collate_unit(const ops_collate_job *job, int64_t s, int64_t layer) {
    const kv_collate_params *p = job->p;
    cairn_status reported = CAIRN_BAD_DATA;
    int32_t kept = ops_collate_count(job->dev, p, s, &reported);
    size_t bytes = (size_t)p->row_bytes;
    for (int32_t g = 0; g < kept; g++) {
        int64_t from, to;
        if (!ops_collate_entry(p, s, g, &from, &to)) continue;
        for (int h = 0; h < 2 * p->kv_heads; h++, from += p->page_size, to += p->page_size) {
            char *rows = (char *)p->caches[layer];
            memcpy(rows + (size_t)to * bytes, rows + (size_t)from * bytes, bytes);
            if (p->has_scales) p->scales[layer][to] = p->scales[layer][from];
        }
    }
}

static void ops_collate_task(void *context, int worker) {
    ops_collate_job *job = (ops_collate_job *)context;
    int64_t units = job->sequences * job->layers, unit;
    for (unit = worker; unit < units; unit += pool_threads(job->dev->pool))
        ops_collate_unit(job, unit / job->layers, unit % job->layers);
}

static cairn_status ops_collate_cpu(ops_collate_job *job) {
    cairn_status status = ops_collate_bad_rows(job);
    pool_run(job->dev->pool, pool_threads(job->dev->pool), ops_collate_task, job);
    return status;
}

/* ---- entry ----------------------------------------------------------------------------------- */

static cairn_status ops_collate_cuda(cairn_runtime *rt, const ops_collate_job *job) {
    int columns = 2 * job->p->kv_heads * (job->p->row_bytes / 16);
    device_dims dims = {{1, 1, 1}, 256, 0, 2 * 64 * 8, false};
    dims.grid[0] = (unsigned)job->sequences;
    dims.grid[1] = (unsigned)job->layers;
    dims.grid[2] = ((unsigned)columns + 255) / 256;
    if (dims.grid[2] > 64) dims.grid[2] = 64;
    return ops_launch(rt, "kv/collate.cu", "kv_collate", &dims, job->p);
}

static void ops_collate_params(spec_call *s, const cairn_kv_collate_args *a,
                               kv_collate_params *p) {
    memset(p, 0, sizeof *p);
    ops_refuse(&s->c, !a->sources && a->stride < 1,
               "stride = %d; 1 or more is expected without sources", (int)a->stride);
    ops_refuse(&s->c, !a->sources && a->most < 1, "most = %d; 1 or more is expected", (int)a->most);
    ops_refuse(&s->c, !a->sources && (int64_t)a->most * a->stride > INT32_MAX,
               "most * stride is above 2^31 - 1");
    ops_refuse(&s->c, a->sources && a->most && a->sources->shape[1] != a->most,
               "dimension 1 of sources is %lld; %d, which is most, is expected",
               a->sources ? (long long)a->sources->shape[1] : 0LL, (int)a->most);
    if (s->c.status || !a->layers) return;
    p->most = a->sources ? (int32_t)a->sources->shape[1] : a->most;
    p->stride = a->stride;
    p->max_pages = (int32_t)s->n[SPEC_MAX_PAGES];
    p->page_table = (const int32_t *)tensor_data(a->page_table);
    p->bases = (const int32_t *)tensor_data(a->bases);
    p->accepted = (const int32_t *)tensor_data(a->accepted);
    p->sources = a->sources ? (const int32_t *)tensor_data(a->sources) : NULL;
    p->error = ops_error_word(s->c.dev, s->c.op);
    p->pages = (int32_t)s->n[SPEC_PAGES];
    p->kv_heads = (int32_t)s->n[SPEC_KV_HEADS];
    p->page_size = (int32_t)s->n[SPEC_PAGE_SIZE];
    p->row_bytes = (int32_t)s->n[SPEC_HEAD_DIM] * (int32_t)cairn_type_bytes(s->type);
    p->has_scales = a->scales != NULL;
    ops_refuse(&s->c, p->row_bytes % 16 != 0,
               "rows of caches have %d bytes; a multiple of 16 is expected", (int)p->row_bytes);
    for (int32_t i = 0; i < a->layers; i++) {
        p->caches[i] = tensor_data(a->caches[i]);
        if (a->scales) p->scales[i] = (float *)tensor_data(a->scales[i]);
    }
}

cairn_status cairn_kv_collate(cairn_runtime *rt, const cairn_kv_collate_args *args) {
    cairn_kv_collate_args a;
    kv_collate_params p;
    ops_collate_job job;
    spec_call s;
    if (spec_take(rt, SPEC_OF(kv_collate), &a, args, &s)) return s.c.status;
    ops_collate_params(&s, &a, &p);
    job.sequences = s.n[SPEC_SEQUENCES];
    if (s.c.status || !job.sequences || !a.layers) return s.c.status;
    job.dev = &rt->device;
    job.p = &p;
    job.layers = a.layers;
    return spec_end(rt, rt->device.cuda ? ops_collate_cuda(rt, &job) : ops_collate_cpu(&job));
}
