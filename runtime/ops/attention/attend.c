/* attend: the entries attend and attend_pages. See attention.h. */

/* Adds a page to an ascending list, unless it is there. */
static int ops_attend_add_page(int32_t *list, int count, int32_t page) {
    int at = count;
    while (at > 0 && list[at - 1] > page) at--;
    if (at > 0 && list[at - 1] == page) return count;
    memmove(list + at + 1, list + at, (size_t)(count - at) * sizeof *list);
    list[at] = page;
    return count + 1;
}

/* What row r attends with one KV head: the block's rule and pages; chosen [topk]. */
static void ops_attend_rule(const ops_pages_job *job, int64_t r, attention_block *a,
                            int32_t *chosen) {
    const int position = a->positions[0];
    const int32_t *selected = job->selected + (r * a->kv_heads + a->head) * job->topk;
    a->sinks = job->sinks;
    a->chosen = chosen;
    a->candidates = job->window > 0 || job->sparse
                        ? layout_candidates(position, job->window, a->page_size) : 0;
    for (int i = 0; job->selected && i < job->topk; i++)
        if (selected[i] >= 0 && selected[i] < a->candidates)
            a->chosen_count = ops_attend_add_page(chosen, a->chosen_count, selected[i]);
}

/* One row and KV head. */
static void ops_attend_unit(ops_pages_job *job, int64_t u, float *q) {
    const paged_rows *at = job->at;
    const int dim = at->head_dim, group = job->heads / at->kv_heads;
    const int64_t r = u / at->kv_heads;
    attention_sum total = attention_sum_at(q + group * dim, group), piece;
    int32_t position;
    bool missing = false;
    attention_block a;
    memset(&a, 0, sizeof a);
    piece = attention_sum_at(total.m + attention_sum_floats(group, dim), group);
    for (int i = 0; i < group * dim; i++) q[i] = job->q[u * group * dim + i] * job->scale;
    a.simd = job->simd;
    a.cache = at->cache, a.positions = &position, a.rows = 1, a.q = q;
    a.kv_heads = at->kv_heads, a.head = (int)(u % at->kv_heads), a.group = group, a.dim = dim;
    a.page_size = at->page_size, a.pages = at->pages, a.missing = &missing;
    attention_sum_clear(&total, group, dim);
    if (ops_pages_row(job, r, &a.table, &position)) {
        ops_attend_rule(job, r, &a,
                        (int32_t *)(void *)(piece.m + attention_sum_floats(group, dim)));
        attention_all(&a, &total, &piece, job->out + r * job->heads * dim, job->heads * dim);
    } else {
        memset(job->out + u * group * dim, 0, (size_t)(group * dim) * sizeof(float));
    }
    if (missing) ops_pages_missing(job, r);
    for (int g = 0; job->lse && g < group; g++)
        job->lse[u * group + g] = total.l[g] > 0.0f ? total.m[g] + logf(total.l[g]) : -INFINITY;
}

static void ops_attend_task(void *context, int worker) {
    ops_pages_job *job = (ops_pages_job *)context;
    const int workers = pool_threads(job->dev->pool);
    int64_t units = job->rows * job->at->kv_heads, u;
    float *scratch = (float *)(void *)(job->scratch + (size_t)worker * job->scratch_bytes);
    for (u = ops_share(units, worker, workers); u < ops_share(units, worker + 1, workers); u++)
        ops_attend_unit(job, u, scratch);
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
    status = ops_pages_scratch(&job, ((size_t)(group * dim) + 2 * attention_sum_floats(group, dim)) *
                                             sizeof(float) + (size_t)job.topk * sizeof(int32_t));
    if (status) return status;
    status = ops_pages_bad_rows(&rt->device, op, job.at, job.rows);
    pool_run(rt->pool, pool_threads(rt->pool), ops_attend_task, &job);
    return ops_pages_finish(&job, op, status);
}

/* Pages in the longest list that a row may have. */
static int ops_attend_most_pages(const attend_params *p) {
    const int size = p->at.page_size;
    int64_t near = p->window > 0 ? (int64_t)p->window / size + 2 : p->sparse ? 1 : p->at.max_pages;
    int64_t all = near + (p->selected ? p->topk : 0) + layout_sink_pages(p->sinks, size);
    return all < p->at.max_pages ? (int)all : p->at.max_pages;
}

/* units: of rows x KV heads x tiles of queries. */
static cairn_status ops_attend_workspace(device *dev, attend_params *p, int64_t units, int runs) {
    const int group = p->heads / p->at.kv_heads, queries = group < 16 ? group : 16;
    size_t parts = (size_t)units * (size_t)runs * (size_t)queries * (size_t)p->at.head_dim * 4;
    size_t sums = (size_t)units * (size_t)runs * (size_t)queries * 8;
    void *memory, *flags;
    cairn_status status = device_scratch(dev, parts + sums, "attend", &memory);
    if (!status) status = device_flags(dev, (size_t)units * 4, "attend", &flags);
    if (status) return status;
    p->arrived = (uint32_t *)flags;
    p->partial = (float *)memory;
    p->sums = (float *)(void *)((char *)memory + parts);
    return CAIRN_OK;
}

static cairn_status ops_attend_cuda(cairn_runtime *rt, attend_params *p, int64_t rows) {
    const int group = p->heads / p->at.kv_heads, size = p->at.page_size, dim = p->at.head_dim;
    const int pages = ops_attend_most_pages(p), chunks = layout_chunks(pages, size, dim);
    const int run = layout_run(chunks, p->at.kv_heads);
    const int runs = layout_context_runs(pages * size, size, dim, p->at.kv_heads);
    int64_t units = (int64_t)p->at.kv_heads * ((group + 15) / 16);
    device_dims dims = {{0, 0, 0}, 0, 0, 0, false};
    ops_kernel want;
    cairn_status status = handles_enter(rt);
    if (status) return status;
    status = handles_leave(rt, ops_attend_workspace(&rt->device, p, units * rows, runs));
    if (status) return status;
    memset(&want, 0, sizeof want);
    want.source = "attention/attention.cu";
    want.entry = "attend";
    want.constants[0].name = "HEAD_DIM", want.constants[0].value = dim;
    want.constants[1].name = "PAGE_SIZE", want.constants[1].value = size;
    want.constant_count = 2;
    dims.grid[0] = (unsigned)runs;
    dims.grid[1] = (unsigned)units;
    dims.grid[2] = (unsigned)rows;
    dims.block = (unsigned)layout_warps(dim) * 32;
    dims.shared_bytes = (unsigned)(layout_attend_bytes(dim) +
                                   layout_list_bytes(p->at.max_pages,
                                                     run * layout_chunk(dim) / size + 2));
    return ops_launch_as(rt, &want, &dims, p);
}

/* What both entries fill in from a checked call. */
static void ops_attend_want(spec_call *s, const cairn_pages *pages, const cairn_tensor *q,
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

static cairn_status ops_attend_run(cairn_runtime *rt, const char *op, attend_params *p,
                                   ops_paged *paged, float scale, int32_t window, int32_t sinks) {
    if (!paged->rows) return CAIRN_OK;
    p->scale = scale > 0.0f ? scale : (float)(1.0 / sqrt((double)paged->at.head_dim));
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
    ops_attend_want(&s, &a.pages, a.q, a.out, a.lse, &paged, &p);
    if (s.c.status) return s.c.status;
    return ops_attend_run(rt, s.c.op, &p, &paged, a.scale, a.window, a.sinks);
}

cairn_status cairn_attend_pages(cairn_runtime *rt, const cairn_attend_pages_args *args) {
    cairn_attend_pages_args a;
    ops_paged paged;
    attend_params p;
    spec_call s;
    if (spec_take(rt, SPEC_OF(attend_pages), &a, args, &s)) return s.c.status;
    ops_attend_want(&s, &a.pages, a.q, a.out, a.lse, &paged, &p);
    if (s.c.status) return s.c.status;
    p.selected = (const int32_t *)tensor_data(a.selected);
    p.topk = (int32_t)s.n[SPEC_TOPK];
    p.sparse = 1;
    return ops_attend_run(rt, s.c.op, &p, &paged, a.scale, a.window, a.sinks);
}
