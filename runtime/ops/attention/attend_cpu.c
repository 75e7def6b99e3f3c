/* attend_cpu: attention of the ops on the CPU, rows x KV heads spread over the pool. The plain form is
 * attention.c alone; the abilities (abi/attention.h) fold its pages here, in f32. */

typedef struct ops_attend_job {
    ops_pages_job pages; /* rows, scratch, faults */
    const attend_params *p;
    cairn_type query, stored;
    int abilities, width; /* width: of a row of out, head by head */
    bool latent;          /* slots are latent */
} ops_attend_job;

/* What a unit's fold needs beside the block. */
typedef struct ops_attend_unit {
    const ops_attend_job *job;
    attention_sum page;      /* of a page by itself */
    const int32_t *selected; /* [topk] of the unit, with weights */
    const float *weights;    /* [group or 1, topk] */
    int64_t weight_step;
    int base, row, sequence; /* of a mask */
} ops_attend_unit;

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
static void ops_attend_rule(const attend_params *p, int64_t r, attention_block *a, int32_t *chosen) {
    const int position = a->positions[0];
    const int64_t first = (r * a->kv_heads + a->head) * p->topk;
    a->only_chosen = p->part == ATTEND_PART_PAGES;
    a->sinks = a->only_chosen ? 0 : p->sinks;
    a->chosen = chosen;
    a->candidates = p->window > 0 || p->sparse
                        ? layout_candidates(position, p->window, a->page_size) : 0;
    for (int64_t i = first; p->selected && i < first + p->topk; i++)
        if (p->selected[i] >= 0 && p->selected[i] < a->candidates)
            a->chosen_count = ops_attend_add_page(chosen, a->chosen_count, p->selected[i]);
}

/* ---- folding with abilities ------------------------------------------------------------------ */

static bool ops_attend_sees(const ops_attend_unit *unit, int position) {
    const attend_params *p = unit->job->p;
    const int j = position - unit->base, bit = unit->row * p->mask_rows + j;
    if (j < 0) return true;
    if (!p->mask) return layout_draft_sees(unit->row, j, p->mask_side);
    return p->mask[(int64_t)unit->sequence * p->mask_bytes + bit / 8] >> bit % 8 & 1;
}

/* The first slots of a page, in f32. */
static simd_page ops_attend_stage(const attention_block *a, const ops_attend_job *job, int page,
                                  int slots) {
    simd_page view = attention_read(a, page, slots);
    view.cap = job->p->softcap;
    return view;
}

/* A selected page with a weight: its own softmax, as one key of that score. */
static void ops_attend_weighed(const attention_block *a, const ops_attend_unit *unit, int page,
                               const simd_page *view, const attention_sum *sum) {
    int place = 0;
    while (unit->selected[place] != page) place++;
    attention_weigh(a, view, &unit->page, unit->weights + place, unit->weight_step, sum);
}

/* attention_block.fold */
static void ops_attend_fold(const attention_block *a, int page, int last, bool chosen,
                            const attention_sum *sum) {
    const ops_attend_unit *unit = (const ops_attend_unit *)a->context;
    const int abilities = unit->job->abilities, start = page * a->page_size;
    const bool landmark = (abilities & ATTEND_LANDMARKS) && last == a->page_size;
    const int end = last - landmark;
    simd_page view = ops_attend_stage(a, unit->job, page, end);
    if (chosen && (abilities & ATTEND_TWO_LEVEL)) {
        ops_attend_weighed(a, unit, page, &view, sum);
        return;
    }
    for (int slot = 0; slot < end;) {
        view.first = slot;
        if (!(abilities & ATTEND_MASK)) slot = end;
        else while (slot < end && ops_attend_sees(unit, start + slot)) slot++;
        view.last = slot;
        if (view.first < view.last)
            a->simd->attend(&view, a->q, a->group, sum->m, sum->l, sum->out);
        else slot++;
    }
}

/* What of the abilities a unit needs; false for a row that is no entry of its step. */
static bool ops_attend_open_unit(const ops_attend_job *job, int64_t u, attention_block *a,
                                 int32_t *position, ops_attend_unit *unit) {
    const attend_params *p = job->p;
    const int64_t r = u / p->at.kv_heads;
    const bool shared = p->weight_heads == p->at.kv_heads;
    const int64_t weight_row = shared ? u : u * a->group;
    const int32_t *table;
    a->fold = ops_attend_fold;
    a->context = unit;
    if (job->abilities & ATTEND_TWO_LEVEL) {
        unit->selected = p->selected + u * p->topk;
        unit->weights = p->weights + weight_row * p->topk;
        unit->weight_step = shared ? 0 : p->topk;
    }
    if (!(job->abilities & ATTEND_MASK)) return true;
    unit->sequence = p->at.sequences ? p->at.sequences[r] : (int32_t)r;
    unit->base = p->bases[unit->sequence];
    unit->row = *position - unit->base;
    if (unit->base < 0 || unit->row < 0 || unit->row >= p->mask_rows ||
        !ops_row_holds(&p->at, unit->sequence, (int64_t)unit->base + p->mask_rows - 1, &table))
        return false;
    *position = unit->base + p->mask_rows - 1;
    return true;
}

/* ---- a unit: one row and KV head ------------------------------------------------------------- */

static void ops_attend_nothing(const ops_attend_job *job, int64_t u, int group) {
    const int64_t width = (int64_t)group * job->width;
    memset(job->p->out + u * width, 0, (size_t)width * sizeof(float));
    for (int g = 0; job->p->lse && g < group; g++) job->p->lse[u * group + g] = -INFINITY;
}

static void ops_attend_put_lse(const ops_attend_job *job, int64_t u, const attention_sum *total,
                               int group) {
    for (int g = 0; job->p->lse && g < group; g++)
        job->p->lse[u * group + g] =
            total->l[g] > 0.0f ? total->m[g] + logf(total->l[g]) : -INFINITY;
}

/* Queries of a unit, scaled; returns what stands behind them in the scratch. */
static float *ops_attend_queries(const ops_attend_job *job, int64_t u, int group, float *q) {
    const int values = group * job->p->at.head_dim;
    ops_read_values(job->pages.simd, job->query, job->p->q, u * values, values, 1.0f, q);
    for (int i = 0; i < values; i++) q[i] *= job->p->scale;
    return q + values;
}

static void ops_attend_paged(ops_attend_job *job, int64_t u, float *q) {
    const attend_params *p = job->p;
    const paged_rows *at = &p->at;
    const int dim = at->head_dim, group = p->heads / at->kv_heads;
    const size_t floats = attention_sum_floats(group, dim);
    const int64_t r = u / at->kv_heads;
    attention_sum total = attention_sum_at(ops_attend_queries(job, u, group, q), group), piece;
    int32_t position;
    bool missing = false;
    attention_block a;
    ops_attend_unit unit;
    memset(&a, 0, sizeof a);
    piece = attention_sum_at(total.m + floats, group);
    unit.job = job, unit.page = attention_sum_at(piece.m + floats, group);
    a.staged = unit.page.m + floats;
    a.simd = job->pages.simd;
    a.cache = at->cache, a.type = job->stored, a.scales = p->scales;
    a.positions = &position, a.rows = 1, a.q = q;
    a.kv_heads = at->kv_heads, a.head = (int)(u % at->kv_heads), a.group = group, a.dim = dim;
    a.page_size = at->page_size, a.pages = at->pages, a.missing = &missing;
    if (!ops_pages_row(&job->pages, r, &a.table, &position) ||
        (job->abilities && !ops_attend_open_unit(job, u, &a, &position, &unit))) {
        ops_attend_nothing(job, u, group);
        return;
    }
    ops_attend_rule(p, r, &a, (int32_t *)(void *)(a.staged + (job->abilities ? 2 * a.page_size * dim
                                                                            : 0)));
    attention_all(&a, &total, &piece, p->out + r * p->heads * dim, p->heads * dim);
    if (missing) ops_pages_missing(&job->pages, r);
    ops_attend_put_lse(job, u, &total, group);
}

/* ---- lists of tokens ------------------------------------------------------------------------- */

/* A latent slot's keys, the first of which are its values. */
static void ops_attend_slot(const ops_attend_job *job, int64_t slot, float *keys) {
    const simd_kernels *simd = job->pages.simd;
    const uint8_t *at = (const uint8_t *)(const void *)job->p->at.cache + slot * LATENT_BYTES;
    float scales[LATENT_SCALES];
    if (job->stored != CAIRN_U8) {
        ops_read_values(simd, job->stored, job->p->at.cache, slot * LATENT_KEYS, LATENT_KEYS, 1.0f,
                        keys);
        return;
    }
    memcpy(scales, at + LATENT_VALUES, sizeof scales);
    for (int i = 0; i < LATENT_SCALES; i++)
        ops_read_values(simd, CAIRN_E4M3, at, i * (LATENT_VALUES / LATENT_SCALES),
                        LATENT_VALUES / LATENT_SCALES, scales[i],
                        keys + i * (LATENT_VALUES / LATENT_SCALES));
    ops_read_values(simd, CAIRN_BF16, at + LATENT_VALUES + sizeof scales, 0, LATENT_ROTATED, 1.0f,
                    keys + LATENT_VALUES);
}

/* Whether the cache has a slot of that id. */
static bool ops_attend_holds(const paged_rows *at, int32_t id) {
    return id >= 0 && ops_pages_exists(at, id / at->page_size);
}

/* Up to ATTENTION_PIECE tokens of a list side by side: how many there are. */
static int ops_attend_gather(const ops_attend_job *job, int64_t u, const int32_t *ids, int count,
                             float *keys) {
    const attend_params *p = job->p;
    const paged_rows *at = &p->at;
    const int dim = at->head_dim, size = at->page_size, head = (int)(u % at->kv_heads);
    float *values = keys + ATTENTION_PIECE * dim;
    int kept = 0;
    for (int i = 0; i < count; i++) {
        const int32_t id = ids[i];
        if (!ops_attend_holds(at, id)) continue;
        if (job->latent) ops_attend_slot(job, id, keys + kept * dim);
        for (int side = 0; side < 2 && !job->latent; side++) {
            const int64_t row = layout_slot(id / size, side, head, id % size, at->kv_heads, size, 1);
            ops_read_values(job->pages.simd, job->stored, at->cache, row * dim, dim,
                            job->stored == CAIRN_E4M3 ? p->scales[row] : 1.0f,
                            (side ? values : keys) + kept * dim);
        }
        kept++;
    }
    return kept;
}

/* The ids of row r; 0 with none, and where its request's are out of range. */
static int ops_attend_ids(const ops_attend_job *job, int64_t r, const int32_t **ids) {
    const attend_params *p = job->p;
    int32_t b, from, to;
    *ids = p->tokens + r * p->token_width;
    if (!p->cu_lens) return p->token_width;
    b = p->at.sequences ? p->at.sequences[r] : (int32_t)r;
    if (b < 0 || b >= p->at.sequence_count) return 0;
    from = p->cu_lens[b], to = p->cu_lens[b + 1];
    if (from < 0 || from > to || to > p->token_width) return 0;
    *ids = p->tokens + from;
    return to - from;
}

static void ops_attend_listed(ops_attend_job *job, int64_t u, float *q) {
    const attend_params *p = job->p;
    const int dim = p->at.head_dim, group = p->heads / p->at.kv_heads;
    const size_t floats = attention_sum_floats(group, dim);
    attention_sum total = attention_sum_at(ops_attend_queries(job, u, group, q), group);
    const attention_sum piece = attention_sum_at(total.m + floats, group);
    const int32_t *ids;
    const int count = ops_attend_ids(job, u / p->at.kv_heads, &ids);
    simd_page view;
    attention_sum_clear(&total, group, dim);
    view.keys = view.ahead = piece.m + floats;
    view.values = piece.m + floats + (job->latent ? 0 : ATTENTION_PIECE * dim);
    view.half = false;
    view.first = 0, view.dim = dim, view.cap = p->softcap;
    for (int i = 0; i < count; i += ATTENTION_PIECE) {
        const int some = count - i < ATTENTION_PIECE ? count - i : ATTENTION_PIECE;
        view.last = ops_attend_gather(job, u, ids + i, some, piece.m + floats);
        if (!view.last) continue;
        attention_sum_clear(&piece, group, dim);
        job->pages.simd->attend(&view, q, group, piece.m, piece.l, piece.out);
        attention_fold(job->pages.simd, &total, &piece, group, dim);
    }
    for (int g = 0; g < group; g++) {
        const float share = total.l[g] > 0.0f ? 1.0f / total.l[g] : 0.0f;
        float *to = p->out + (u * group + g) * job->width;
        for (int d = 0; d < job->width; d++) to[d] = total.out[g * dim + d] * share;
    }
    ops_attend_put_lse(job, u, &total, group);
}

/* ---- the whole ------------------------------------------------------------------------------- */

static void ops_attend_task(void *context, int worker) {
    ops_attend_job *job = (ops_attend_job *)context;
    const int workers = pool_threads(job->pages.dev->pool);
    const int64_t units = job->pages.rows * job->p->at.kv_heads;
    float *scratch = (float *)(void *)(job->pages.scratch +
                                       (size_t)worker * job->pages.scratch_bytes);
    for (int64_t u = ops_share(units, worker, workers); u < ops_share(units, worker + 1, workers);
         u++) {
        if (job->abilities & ATTEND_TOKENS) ops_attend_listed(job, u, scratch);
        else ops_attend_paged(job, u, scratch);
    }
}

/* Bytes of a worker: queries, three sums, a page or piece in f32, the chosen pages. */
static size_t ops_attend_scratch(const attend_params *p, int abilities) {
    const size_t dim = (size_t)p->at.head_dim;
    const int group = p->heads / p->at.kv_heads;
    const size_t slots = abilities & ATTEND_TOKENS ? ATTENTION_PIECE
                         : abilities ? (size_t)p->at.page_size : 0;
    return ((size_t)group * dim + 3 * attention_sum_floats(group, (int)dim) + 2 * slots * dim) *
               sizeof(float) + (size_t)p->topk * sizeof(int32_t);
}

/* The first id of row r's list that no slot has, as the kernels report it. */
static void ops_attend_bad_ids(const ops_attend_job *job, const char *op, int64_t r,
                               cairn_status *status) {
    const int32_t *ids;
    const int count = ops_attend_ids(job, r, &ids);
    for (int i = 0; i < count && !*status; i++)
        if (ids[i] != -1 && !ops_attend_holds(&job->p->at, ids[i]))
            ops_bad_row(job->pages.dev, op, r, "id out of range", ids[i], status);
}

/* The first row whose ids, position or entry of a step is out of range. */
static cairn_status ops_attend_bad_rows(const ops_attend_job *job, const char *op) {
    const attend_params *p = job->p;
    device *dev = job->pages.dev;
    cairn_status status = CAIRN_OK;
    if (!(job->abilities & ATTEND_TOKENS))
        status = ops_pages_bad_rows(dev, op, &p->at, job->pages.rows);
    for (int64_t r = 0; r < job->pages.rows && !status; r++) {
        const int32_t s = p->at.sequences ? p->at.sequences[r] : (int32_t)r, *table;
        if (p->cu_lens) {
            if (s < 0 || s >= p->at.sequence_count)
                ops_bad_row(dev, op, r, "sequence out of range", s, &status);
            else if (p->cu_lens[s] < 0 || p->cu_lens[s] > p->cu_lens[s + 1] ||
                     p->cu_lens[s + 1] > p->token_width)
                ops_bad_row(dev, op, r, "cu_lens out of range", p->cu_lens[s + 1], &status);
        } else if (job->abilities & ATTEND_MASK) {
            const int64_t first = p->bases[s], row = p->at.positions[r] - first;
            if (first < 0 || row < 0 || row >= p->mask_rows ||
                !ops_row_holds(&p->at, s, first + p->mask_rows - 1, &table))
                ops_bad_row(dev, op, r, "no entry of the step at", first, &status);
        }
        if (job->abilities & ATTEND_TOKENS) ops_attend_bad_ids(job, op, r, &status);
    }
    return status;
}

static cairn_status ops_attend_cpu(cairn_runtime *rt, const char *op, const attend_params *p,
                                   const ops_paged *paged, int abilities, cairn_type query,
                                   cairn_type stored, bool latent) {
    ops_attend_job job;
    cairn_status status;
    ops_pages_job_open(&job.pages, &rt->device, paged);
    job.p = p, job.query = query, job.stored = stored;
    job.abilities = abilities, job.latent = latent;
    job.width = latent ? LATENT_VALUES : p->at.head_dim;
    status = ops_pages_scratch(&job.pages, ops_attend_scratch(p, abilities));
    if (status) return status;
    status = ops_attend_bad_rows(&job, op);
    pool_run(rt->pool, pool_threads(rt->pool), ops_attend_task, &job);
    return ops_pages_finish(&job.pages, op, status);
}
