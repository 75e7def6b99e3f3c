/* ops_attend: the entries attend and attend_pages: softmax attention over the paged cache. */

/* One page of a row's list, as attention/attention.cu orders it. */
static void ops_attend_page(ops_pages_job *job, int64_t r, int head, const int32_t *table, int page,
                            int tokens, const float *q, attention_sum *sum) {
    const paged_rows *at = job->at;
    simd_page view;
    if (tokens <= 0) return;
    if (!ops_page_exists(at, table[page])) {
        ops_pages_missing(job, r);
        return;
    }
    view.keys = ops_slots(at, table[page], 0, head);
    view.values = ops_slots(at, table[page], 1, head);
    view.ahead = view.values;
    view.half = true;
    view.first = 0;
    view.last = tokens < at->page_size ? tokens : at->page_size;
    view.dim = at->head_dim;
    job->simd->attend(&view, q, job->heads / at->kv_heads, sum->m, sum->l, sum->out);
}

static bool ops_is_selected(const int32_t *selected, int count, int page) {
    for (int i = 0; i < count; i++)
        if (selected[i] == page) return true;
    return false;
}

/* All that row r attends with one KV head. */
static void ops_attend_row(ops_pages_job *job, int64_t r, int head, const int32_t *table,
                           int position, const float *q, attention_sum *sum) {
    const paged_rows *at = job->at;
    const int size = at->page_size, own = position / size;
    const int32_t *selected = NULL;
    int first = 0, count = job->selected ? job->topk : 0;
    if (job->window > 0) first = position >= job->window ? (position - job->window + 1) / size : 0;
    else if (job->sparse) first = own;
    if (count) selected = job->selected + (r * at->kv_heads + head) * job->topk;
    for (int page = 0; page < first && page * size < job->sinks; page++)
        if (!ops_is_selected(selected, count, page))
            ops_attend_page(job, r, head, table, page, job->sinks - page * size, q, sum);
    for (int i = 0; i < count; i++)
        if (selected[i] >= 0 && selected[i] < first)
            ops_attend_page(job, r, head, table, selected[i], size, q, sum);
    for (int page = first; page <= own; page++)
        ops_attend_page(job, r, head, table, page, position - page * size + 1, q, sum);
}

static void ops_attend_task(void *context, int worker) {
    ops_pages_job *job = (ops_pages_job *)context;
    const paged_rows *at = job->at;
    const int dim = at->head_dim, group = job->heads / at->kv_heads;
    int64_t units = job->rows * at->kv_heads, u;
    int workers = pool_threads(job->dev->pool);
    float *q = (float *)(void *)(job->scratch + (size_t)worker * job->scratch_bytes);
    attention_sum sum = attention_sum_at(q + group * dim, group);
    for (u = ops_share(units, worker, workers); u < ops_share(units, worker + 1, workers); u++) {
        const int32_t *table;
        int32_t position;
        float *out = job->out + u * group * dim;
        attention_sum_clear(&sum, group, dim);
        for (int i = 0; i < group * dim; i++) q[i] = job->q[u * group * dim + i] * job->scale;
        if (ops_pages_row(job, u / at->kv_heads, &table, &position))
            ops_attend_row(job, u / at->kv_heads, (int)(u % at->kv_heads), table, position, q, &sum);
        for (int i = 0; i < group * dim; i++)
            out[i] = sum.l[i / dim] > 0.0f ? sum.out[i] / sum.l[i / dim] : 0.0f;
        for (int g = 0; job->lse && g < group; g++)
            job->lse[u * group + g] = sum.l[g] > 0.0f ? sum.m[g] + logf(sum.l[g]) : -INFINITY;
    }
}

static cairn_status ops_attend_cpu(cairn_runtime *rt, const char *op, const attend_params *p,
                                   const ops_paged *paged) {
    ops_pages_job job;
    const int group = p->heads / p->at.kv_heads, dim = p->at.head_dim;
    cairn_status status;
    ops_pages_job_open(&job, &rt->device, paged);
    job.heads = p->heads, job.q = p->q, job.out = p->out, job.lse = p->lse;
    job.scale = p->scale, job.window = p->window, job.sinks = p->sinks;
    job.selected = p->selected, job.topk = p->topk, job.sparse = p->sparse != 0;
    status = ops_pages_scratch(&job, ((size_t)(group * dim) + attention_sum_floats(group, dim)) *
                                         sizeof(float));
    if (status) return status;
    status = ops_pages_bad_rows(&rt->device, op, job.at, job.rows);
    pool_run(rt->pool, pool_threads(rt->pool), ops_attend_task, &job);
    return ops_pages_finish(&job, op, status);
}

enum { OPS_SPLIT_TOKENS = 256, OPS_WARPS = 4 };

/* Bytes of shared memory as attention/attention.cu lays it out. */
static unsigned ops_attend_shared(int dim, int list) {
    unsigned head = (unsigned)(2 * list * 4 + 64 + 127) / 128 * 128;
    unsigned merge = OPS_WARPS * 16 * (unsigned)(dim + 2) * 4;
    unsigned stage = OPS_WARPS * 16 * (unsigned)(dim * 2 + 16);
    unsigned queries = dim > 128 ? (unsigned)dim * 32 : 0;
    return head + queries + (merge > stage ? merge : stage);
}

/* Pages in the longest list that a row may have. */
static int64_t ops_attend_most_pages(const attend_params *p) {
    const int size = p->at.page_size;
    int64_t sinks = (p->sinks + size - 1) / size, near = p->at.max_pages, all;
    if (p->window > 0) near = (int64_t)p->window / size + 2;
    else if (p->sparse) near = 1;
    all = sinks + (p->selected ? p->topk : 0) + near;
    return p->sparse || all < p->at.max_pages ? all : p->at.max_pages + sinks;
}

static cairn_status ops_attend_workspace(device *dev, attend_params *p, int64_t units,
                                         int64_t splits) {
    size_t flags = ((size_t)units * 4 + 255) & ~(size_t)255;
    size_t parts = (size_t)units * (size_t)splits * 16 * (size_t)(p->at.head_dim + 2) * 4;
    void *memory;
    cairn_status status = device_scratch(dev, flags + parts, "attend", &memory);
    if (status) return status;
    p->arrived = (uint32_t *)memory;
    p->partial = (float *)(void *)((char *)memory + flags);
    return device_zero(dev, memory, flags); /* another op may have left anything there */
}

static cairn_status ops_attend_cuda(cairn_runtime *rt, attend_params *p, int64_t rows) {
    const int group = p->heads / p->at.kv_heads, size = p->at.page_size;
    const int list = size >= OPS_SPLIT_TOKENS ? 1 : OPS_SPLIT_TOKENS / size;
    int64_t units = (int64_t)p->at.kv_heads * ((group + 15) / 16);
    int64_t splits = (ops_attend_most_pages(p) + list - 1) / list;
    device_dims dims = {{0, 0, 0}, OPS_WARPS * 32, 0, 0, false};
    ops_kernel want;
    cairn_status status = handles_enter(rt);
    if (status) return status;
    status = handles_leave(rt, ops_attend_workspace(&rt->device, p, units * rows, splits));
    if (status) return status;
    memset(&want, 0, sizeof want);
    want.source = "attention/attention.cu";
    want.entry = "attend";
    want.constants[0].name = "HEAD_DIM", want.constants[0].value = p->at.head_dim;
    want.constants[1].name = "PAGE_SIZE", want.constants[1].value = size;
    want.constant_count = 2;
    dims.grid[0] = (unsigned)splits;
    dims.grid[1] = (unsigned)units;
    dims.grid[2] = (unsigned)rows;
    dims.shared_bytes = ops_attend_shared(p->at.head_dim, list);
    return ops_launch_as(rt, &want, &dims, p);
}

/* What both entries fill in from a checked call. */
static void ops_want_attend(spec_call *s, const cairn_pages *pages, const cairn_tensor *q,
                            cairn_tensor *out, cairn_tensor *lse, ops_paged *paged,
                            attend_params *p) {
    memset(p, 0, sizeof *p);
    ops_want_paged(s, pages, paged);
    if (s->c.status) return;
    p->at = paged->at;
    p->q = (const float *)tensor_data(q);
    p->out = (float *)tensor_data(out);
    p->lse = lse ? (float *)tensor_data(lse) : NULL;
    p->heads = (int32_t)s->n[SPEC_HEADS];
}

static cairn_status ops_attend(cairn_runtime *rt, const char *op, attend_params *p,
                               ops_paged *paged, float scale, int32_t window, int32_t sinks) {
    if (!paged->rows) return CAIRN_OK;
    p->scale = scale > 0.0f ? scale : 1.0f / sqrtf((float)paged->at.head_dim);
    p->window = ops_clamp_tokens(window, &p->at);
    p->sinks = ops_clamp_tokens(sinks, &p->at);
    return rt->device.cuda ? ops_attend_cuda(rt, p, paged->rows)
                           : ops_attend_cpu(rt, op, p, paged);
}

cairn_status cairn_attend(cairn_runtime *rt, const cairn_attend_args *args) {
    cairn_attend_args a;
    ops_paged paged;
    attend_params p;
    spec_call s;
    if (spec_take(rt, SPEC_OF(attend), &a, args, &s)) return s.c.status;
    ops_want_attend(&s, &a.pages, a.q, a.out, a.lse, &paged, &p);
    if (s.c.status) return s.c.status;
    return ops_attend(rt, s.c.op, &p, &paged, a.scale, a.window, a.sinks);
}

cairn_status cairn_attend_pages(cairn_runtime *rt, const cairn_attend_pages_args *args) {
    cairn_attend_pages_args a;
    ops_paged paged;
    attend_params p;
    spec_call s;
    if (spec_take(rt, SPEC_OF(attend_pages), &a, args, &s)) return s.c.status;
    ops_want_attend(&s, &a.pages, a.q, a.out, a.lse, &paged, &p);
    if (s.c.status) return s.c.status;
    p.selected = (const int32_t *)tensor_data(a.selected);
    p.topk = (int32_t)s.n[SPEC_TOPK];
    p.sparse = 1;
    return ops_attend(rt, s.c.op, &p, &paged, a.scale, a.window, a.sinks);
}
