/* ops_pages: the entries page_bounds, score_pages and select_pages. See pages.h. */

static void ops_pages_job_open(ops_pages_job *job, device *dev, const ops_paged *paged) {
    memset(job, 0, sizeof *job);
    job->dev = dev;
    job->simd = simd_for(paged->at.head_dim);
    job->at = &paged->at;
    job->rows = paged->rows;
}

static cairn_status ops_pages_scratch(ops_pages_job *job, size_t bytes) {
    void *memory;
    cairn_status status;
    job->scratch_bytes = (bytes + 63) & ~(size_t)63;
    status = device_scratch(job->dev, job->scratch_bytes * (size_t)pool_threads(job->dev->pool),
                            "ops",
                         &memory);
    job->scratch = (char *)memory;
    return status;
}

static cairn_status ops_pages_bad_rows(device *dev, const char *op, const paged_rows *at,
                                       int64_t rows) {
    const int32_t *table;
    int32_t position;
    cairn_status status = CAIRN_OK;
    for (int64_t r = 0; r < rows && !status; r++)
        ops_find_row(dev, op, at, r, &table, &position, &status);
    return status;
}

static bool ops_pages_row(const ops_pages_job *job, int64_t r, const int32_t **table,
                          int32_t *position) {
    cairn_status reported = CAIRN_BAD_DATA; /* ops_pages_bad_rows has said it */
    return ops_find_row(job->dev, "", job->at, r, table, position, &reported);
}

static bool ops_pages_exists(const paged_rows *at, int32_t page) {
    return page >= 0 && page < at->pages;
}

static void ops_pages_missing(ops_pages_job *job, int64_t r) {
    os_atomic_swap_if(&job->bad_row, 0, (int32_t)r + 1);
}

static cairn_status ops_pages_finish(ops_pages_job *job, const char *op, cairn_status status) {
    int32_t bad = os_atomic_load(&job->bad_row);
    if (!status && bad) ops_bad_row(job->dev, op, bad - 1, "page missing from the table", -1, &status);
    return status;
}

/* ---- page_bounds -------------------------------------------------------------------------------- */

static cairn_status ops_pages_bounds_cpu(device *dev, const page_bounds_params *p, int64_t n) {
    const simd_kernels *simd = simd_for(p->head_dim);
    const size_t dim = (size_t)p->head_dim;
    cairn_status status = CAIRN_OK;
    for (int64_t i = 0; i < n; i++) {
        if (p->ids[i] < 0 || p->ids[i] >= p->pages) {
            ops_bad_row(dev, "page_bounds", i, "id out of range", p->ids[i], &status);
            continue;
        }
        for (int h = 0; h < p->kv_heads; h++) {
            const uint16_t *keys = p->cache + layout_slot(p->ids[i], 0, h, 0, p->kv_heads,
                                                          p->page_size, p->head_dim);
            uint16_t *low = p->bounds + layout_bounds(p->ids[i], h, p->kv_heads, p->head_dim);
            if (p->mean) simd->mean(keys, p->page_size, p->head_dim, low, low + dim);
            else simd->bounds(keys, p->page_size, p->head_dim, low, low + dim);
        }
    }
    return status;
}

cairn_status cairn_page_bounds(cairn_runtime *rt, const cairn_page_bounds_args *args) {
    cairn_page_bounds_args a;
    page_bounds_params p;
    spec_call s;
    if (spec_take(rt, SPEC_OF(page_bounds), &a, args, &s)) return s.c.status;
    if (!s.n[SPEC_N]) return CAIRN_OK;
    memset(&p, 0, sizeof p);
    p.cache = (const uint16_t *)tensor_data(a.cache);
    p.ids = (const int32_t *)tensor_data(a.ids);
    p.bounds = (uint16_t *)tensor_data(a.bounds);
    p.error = ops_error_word(&rt->device, s.c.op);
    p.pages = (int32_t)s.n[SPEC_PAGES];
    p.kv_heads = (int32_t)s.n[SPEC_KV_HEADS];
    p.page_size = (int32_t)s.n[SPEC_PAGE_SIZE];
    p.head_dim = (int32_t)s.n[SPEC_HEAD_DIM];
    p.mean = a.source == CAIRN_SOURCE_MEAN;
    if (!rt->device.cuda) return spec_end(rt, ops_pages_bounds_cpu(&rt->device, &p, a.ids->shape[0]));
    {
        device_dims dims = {{0, 1, 1}, 128, 0, 0, false};
        dims.grid[0] = (unsigned)a.ids->shape[0];
        dims.grid[1] = (unsigned)p.kv_heads;
        return spec_end(rt, ops_launch(rt, "select/bounds.cu", "page_bounds", &dims, &p));
    }
}

/* ---- score_pages -------------------------------------------------------------------------------- */

static void ops_pages_score_task(void *context, int worker) {
    ops_pages_job *job = (ops_pages_job *)context;
    const paged_rows *at = job->at;
    const int dim = at->head_dim, group = job->heads / at->kv_heads;
    int64_t units = job->rows * at->kv_heads, u;
    int workers = pool_threads(job->dev->pool);
    float *q = (float *)(void *)(job->scratch + (size_t)worker * job->scratch_bytes);
    select_rule rule;
    select_pages pages;
    memset(&rule, 0, sizeof rule);
    memset(&pages, 0, sizeof pages);
    rule.page_size = at->page_size, rule.window = job->window;
    rule.mean = job->mean, rule.landmark = job->landmark, rule.head = job->by_head;
    pages.cache = at->cache, pages.type = CAIRN_F16, pages.bounds = job->bounds;
    pages.kv_heads = at->kv_heads, pages.dim = dim, pages.stored = at->max_pages;
    for (u = ops_share(units, worker, workers); u < ops_share(units, worker + 1, workers); u++) {
        float *scores = job->scores + u * at->max_pages;
        float *own = job->head_scores ? job->head_scores + u * group * at->max_pages : NULL;
        const int32_t *table;
        int32_t position;
        int candidates = 0;
        for (int c = 0; c < at->max_pages; c++) scores[c] = -INFINITY;
        for (int c = 0; own && c < group * at->max_pages; c++) own[c] = -INFINITY;
        if (!ops_pages_row(job, u / at->kv_heads, &table, &position)) continue;
        candidates = select_candidates(&rule, position);
        for (int i = 0; i < group * dim; i++)
            q[i] = job->scale == 0.0f ? job->q[u * group * dim + i] / sqrtf((float)dim)
                                      : job->q[u * group * dim + i] * job->scale;
        pages.head = (int)(u % at->kv_heads);
        for (int c = 0; c < candidates; c++) {
            if (!ops_pages_exists(at, table[c])) continue;
            pages.table = table + c;
            select_score(job->simd, &pages, &rule, q, group, 1, q + group * dim, scores + c);
            for (int g = 0; own && g < group; g++)
                select_score(job->simd, &pages, &rule, q + g * dim, 1, 1, q + group * dim,
                             own + g * at->max_pages + c);
        }
        if (job->soft)
            select_soften(own, group, at->max_pages, candidates,
                          job->window_lse ? job->window_lse + u * group : NULL, scores);
    }
}

static cairn_status ops_pages_score_cpu(cairn_runtime *rt, const score_pages_params *p,
                                        const ops_paged *paged, bool landmark, bool soft) {
    ops_pages_job job;
    size_t floats = (size_t)p->heads / (size_t)p->at.kv_heads * (size_t)p->at.head_dim * 3;
    cairn_status status;
    ops_pages_job_open(&job, &rt->device, paged);
    job.heads = p->heads, job.q = p->q, job.window = p->window;
    job.bounds = p->bounds, job.scores = p->scores;
    job.head_scores = p->head_scores, job.scale = p->scale;
    job.mean = p->mean != 0, job.by_head = p->by_head != 0;
    job.landmark = landmark, job.soft = soft, job.window_lse = p->lse;
    if ((status = ops_pages_scratch(&job, floats * sizeof(float)))) return status;
    status = ops_pages_bad_rows(&rt->device, "score_pages", job.at, job.rows);
    pool_run(rt->pool, pool_threads(rt->pool), ops_pages_score_task, &job);
    return status;
}

static cairn_status ops_pages_score_cuda(cairn_runtime *rt, score_pages_params *p,
                                         const ops_paged *paged, bool landmark, bool soft,
                                         int kind) {
    device_dims dims = {{0, 1, 1}, 256, 0, 0, false};
    ops_kernel want;
    cairn_status status;
    dims.grid[0] = (unsigned)(p->at.max_pages + 31) / 32;
    dims.grid[1] = (unsigned)p->at.kv_heads;
    dims.grid[2] = (unsigned)paged->rows;
    dims.shared_bytes = (unsigned)(2 * p->at.head_dim + 7) / 8 * 32;
    if (p->scale == 0.0f) p->scale = 1.0f / sqrtf((float)p->at.head_dim);
    memset(&want, 0, sizeof want);
    want.source = "select/select.cu", want.entry = "score_pages";
    if (p->head_scores) {
        want.constants[0].name = "EACH_HEAD";
        want.constants[want.constant_count++].value = 1;
    }
    if (landmark) { /* parts of a query as a mean takes them */
        p->mean = 1;
        want.constants[want.constant_count].name = "LANDMARKS";
        want.constants[want.constant_count++].value = 1;
        want.constants[want.constant_count].name = "ABILITIES";
        want.constants[want.constant_count++].value = kind;
    }
    status = ops_launch_as(rt, &want, &dims, p);
    if (status || !soft) return status;
    dims.grid[0] = (unsigned)p->at.kv_heads, dims.grid[1] = (unsigned)paged->rows, dims.grid[2] = 1;
    dims.shared_bytes = (unsigned)(8 + p->heads / p->at.kv_heads) * 4;
    return ops_launch(rt, "select/heads.cu", "score_softmax", &dims, p);
}

cairn_status cairn_score_pages(cairn_runtime *rt, const cairn_score_pages_args *args) {
    cairn_score_pages_args a;
    ops_paged paged;
    score_pages_params p;
    spec_call s;
    bool landmark, soft;
    if (spec_take(rt, SPEC_OF(score_pages), &a, args, &s)) return s.c.status;
    landmark = a.source == CAIRN_SOURCE_LANDMARK;
    soft = a.strategy == CAIRN_STRATEGY_SOFTMAX_HEAD;
    ops_want_paged(&s, &a.pages, &paged);
    ops_refuse(&s.c, !a.bounds != landmark, landmark ? "bounds are given, but source is landmark"
                                                     : "bounds is NULL");
    ops_refuse(&s.c, soft && !a.head_scores, "head_scores is NULL, but strategy is softmax_head");
    ops_refuse(&s.c, !soft && a.lse, "lse is given, but strategy is not softmax_head");
    if (s.c.status || !paged.rows || !paged.at.max_pages) return s.c.status;
    memset(&p, 0, sizeof p);
    p.at = paged.at;
    p.bounds = a.bounds ? (const uint16_t *)tensor_data(a.bounds) : NULL;
    p.q = (const float *)tensor_data(a.q);
    p.scores = (float *)tensor_data(a.scores);
    p.head_scores = a.head_scores ? (float *)tensor_data(a.head_scores) : NULL;
    p.lse = a.lse ? (const float *)tensor_data(a.lse) : NULL;
    p.scale = a.scale;
    p.heads = (int32_t)s.n[SPEC_HEADS];
    p.window = ops_clamp_tokens(a.window, &p.at);
    p.mean = a.source == CAIRN_SOURCE_MEAN;
    p.by_head = a.strategy != CAIRN_STRATEGY_GROUP;
    return spec_end(rt, rt->device.cuda
                            ? ops_pages_score_cuda(rt, &p, &paged, landmark, soft, ATTEND_CACHE_F16)
                            : ops_pages_score_cpu(rt, &p, &paged, landmark, soft));
}

/* ---- select_pages ------------------------------------------------------------------------------- */

static void ops_select_row(const float *scores, int candidates, int topk, uint32_t *keys,
                           int32_t *selected) {
    int count = 0, found = 0;
    for (int c = 0; c < candidates; c++) count += scores[c] > -INFINITY;
    if (count) found = select_top(scores, candidates, count < topk ? count : topk, keys, selected);
    while (found < topk) selected[found++] = -1;
}

/* What select_pages hands out besides; *any: whether it was asked for. */
static select_listed_params ops_select_listed(const cairn_select_pages_args *a, const spec_call *s,
                                              bool *any) {
    select_listed_params p;
    memset(&p, 0, sizeof p);
    p.scores = (const float *)tensor_data(a->scores);
    p.selected = (const int32_t *)tensor_data(a->selected);
    p.pages = (int32_t)s->n[SPEC_MAX_PAGES];
    p.topk = a->topk;
    if (a->head_chosen) {
        p.head_scores = (const float *)tensor_data(a->head_scores);
        p.head_chosen = (float *)tensor_data(a->head_chosen);
        p.group = (int32_t)(s->n[SPEC_HEADS] / s->n[SPEC_KV_HEADS]);
    }
    if (a->candidates) p.candidates = (int32_t *)tensor_data(a->candidates);
    if (a->counts) p.counts = (int32_t *)tensor_data(a->counts);
    *any = a->head_chosen || a->candidates || a->counts;
    return p;
}

static void ops_select_list(const select_listed_params *p, int64_t unit) {
    const float *scores = p->scores + unit * p->pages;
    const int32_t *selected = p->selected + unit * p->topk;
    int found = 0;
    for (int c = 0; c < p->pages; c++) {
        if (!(scores[c] > -INFINITY)) continue;
        if (p->candidates) p->candidates[unit * p->pages + found] = c;
        found++;
    }
    if (p->counts) p->counts[unit] = found;
    for (int c = found; p->candidates && c < p->pages; c++)
        p->candidates[unit * p->pages + c] = -1;
    for (int64_t h = unit * p->group; h < (unit + 1) * p->group; h++)
        for (int i = 0; i < p->topk; i++)
            p->head_chosen[h * p->topk + i] =
                selected[i] < 0 ? -INFINITY : p->head_scores[h * p->pages + selected[i]];
}

static cairn_status ops_select_cpu(device *dev, const cairn_select_pages_args *a,
                                   const select_listed_params *listed, bool lists) {
    int64_t rows = a->scores->shape[0] * a->scores->shape[1], candidates = a->scores->shape[2];
    void *keys;
    cairn_status status = device_scratch(dev, (size_t)(candidates + 1) * sizeof(uint32_t),
                                      "select_pages", &keys);
    for (int64_t r = 0; r < rows && !status; r++) {
        const float *scores = (const float *)tensor_data(a->scores) + r * candidates;
        int32_t *selected = (int32_t *)tensor_data(a->selected) + r * a->topk;
        float *chosen = a->chosen ? (float *)tensor_data(a->chosen) + r * a->topk : NULL;
        ops_select_row(scores, (int)candidates, a->topk, (uint32_t *)keys, selected);
        for (int i = 0; chosen && i < a->topk; i++)
            chosen[i] = selected[i] < 0 ? -INFINITY : scores[selected[i]];
        if (lists) ops_select_list(listed, r);
    }
    return status;
}

static cairn_status ops_select_cuda(cairn_runtime *rt, const cairn_select_pages_args *a,
                                    const select_listed_params *listed, bool lists) {
    device_dims dims = {{0, 1, 1}, 256, 0, 32, false};
    topk_shape shape;
    topk_params p;
    cairn_status status;
    memset(&p, 0, sizeof p);
    shape.op = "select_pages", shape.first_row = 0;
    shape.rows = a->scores->shape[0] * a->scores->shape[1];
    shape.n = shape.stride = a->scores->shape[2];
    p.scores = tensor_data(a->scores);
    p.indices = (int32_t *)tensor_data(a->selected);
    p.values = a->chosen ? (float *)tensor_data(a->chosen) : NULL;
    p.k = a->topk;
    p.finite_only = 1;
    status = topk_launch(rt, &p, &shape, CAIRN_F32, "auto");
    if (status || !lists) return status;
    dims.grid[0] = (unsigned)shape.rows;
    return ops_launch(rt, "select/heads.cu", "select_listed", &dims, listed);
}

cairn_status cairn_select_pages(cairn_runtime *rt, const cairn_select_pages_args *args) {
    cairn_select_pages_args a;
    select_listed_params listed;
    spec_call s;
    bool lists;
    if (spec_take(rt, SPEC_OF(select_pages), &a, args, &s)) return s.c.status;
    ops_refuse(&s.c, s.n[SPEC_ROWS] * s.n[SPEC_KV_HEADS] > INT32_MAX / 64,
               "scores has %lld rows of %lld KV heads; that is too many",
               (long long)s.n[SPEC_ROWS], (long long)s.n[SPEC_KV_HEADS]);
    ops_refuse(&s.c, !a.head_scores != !a.head_chosen,
               "head_scores and head_chosen are to be given together");
    ops_refuse(&s.c, a.head_scores && (s.n[SPEC_KV_HEADS] < 1 ? s.n[SPEC_HEADS] > 0
                                       : s.n[SPEC_HEADS] % s.n[SPEC_KV_HEADS] > 0),
               "head_scores has %lld heads; a multiple of %lld is expected",
               (long long)s.n[SPEC_HEADS], (long long)s.n[SPEC_KV_HEADS]);
    if (s.c.status || !tensor_elements(a.selected)) return s.c.status;
    listed = ops_select_listed(&a, &s, &lists);
    return spec_end(rt, rt->device.cuda ? ops_select_cuda(rt, &a, &listed, lists)
                                        : ops_select_cpu(&rt->device, &a, &listed, lists));
}
