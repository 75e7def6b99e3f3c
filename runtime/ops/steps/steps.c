/* ops_steps: prepare_steps, the metadata of N steps: its argument checks, the parameters that the
 * kernel and the CPU both work from, and the CPU's loops (runtime_ops.h has the contract).
 *
 * The outputs of a step stand in one table, so that checks, sizes and names are said once. */

enum { STEPS_MAX_DRAFTS = 1024 };
/* Every output of every step, and the inputs, have their place among the spans of a call. */
_Static_assert(SPANS >= PREPARE_MAX_STEPS * (PREPARE_OUTPUTS + 2) + 6, "spans");

typedef struct steps_call {
    cairn_prepare_steps_args a;
    prepare_steps_params p;
    int page_size;
    bool by_page; /* p.slots holds page ids */
    int span_count;
    spans_item spans[SPANS];
    cairn_step_metadata steps[PREPARE_MAX_STEPS];
} steps_call;

/* ---- arguments ---- */

static void steps_add_span(steps_call *s, const cairn_tensor *t, const char *name, bool out) {
    spans_add(s->spans, &s->span_count, t, name, out);
}

static void steps_want_table(ops_check *c, steps_call *s, const cairn_tensor *t, const char *name) {
    tensor_want want;
    if (c->status || !t) return;
    memset(&want, 0, sizeof want);
    want.op = c->op;
    want.name = name;
    want.types = SPEC_I32;
    want.rank = 2;
    want.shape[0] = want.shape[1] = -1;
    want.rows_may_stride = true;
    c->status = tensor_check(c->dev, t, &want);
    if (!c->status) steps_add_span(s, t, name, true);
}

static int32_t steps_default(int32_t given, int32_t value) { return given ? given : value; }

static void steps_want_numbers(ops_check *c, steps_call *s, int config_page_size) {
    const cairn_prepare_steps_args *a = &s->a;
    prepare_steps_params *p = &s->p;
    ops_refuse(c, a->mode == CAIRN_STEP_TARGET_VERIFY &&
                      (a->draft_tokens < 1 || a->draft_tokens > STEPS_MAX_DRAFTS),
               "draft_tokens = %d; 1 to %d is expected", (int)a->draft_tokens, STEPS_MAX_DRAFTS);
    ops_refuse(c, !a->steps, "steps is NULL");
    p->mode = a->mode;
    p->steps = a->step_count;
    p->step_offset = a->step_offset;
    p->draft_tokens = a->mode == CAIRN_STEP_TARGET_VERIFY ? a->draft_tokens : 0;
    p->index_topk = steps_default(a->index_topk, 2048);
    p->split[PREPARE_INDEX] = steps_default(a->index_split, 256);
    p->split[PREPARE_ATTEND] = steps_default(a->attend_split, 256);
    p->expand = a->expand_tables != 0;
    s->page_size = steps_default(a->page_size, config_page_size);
}

/* Lowers *most to what `columns` of `each` tokens hold. */
static void steps_lower(int32_t *most, int64_t columns, int32_t each) {
    if (columns < (*most + (int64_t)each - 1) / each) *most = (int32_t)(columns * each);
}

static void steps_want_inputs(ops_check *c, steps_call *s) {
    const cairn_prepare_steps_args *a = &s->a;
    prepare_steps_params *p = &s->p;
    const cairn_tensor *source = a->slots ? a->slots : a->pages;
    const bool extend = a->mode == CAIRN_STEP_DRAFT_EXTEND;
    const int64_t batch = a->seq_lens->shape[0];
    s->by_page = !a->slots && a->pages;
    ops_refuse(c, extend && !a->accept, "accept is NULL");
    ops_refuse(c, !extend && a->accept, "accept is for DRAFT_EXTEND");
    ops_refuse(c, a->slots && a->pages, "slots or pages is expected, not both");
    ops_refuse(c, batch * (p->draft_tokens + 1) > INT32_MAX / 4,
               "seq_lens has %lld requests; that is too many", (long long)batch);
    ops_refuse(c, source && !a->requests && source->shape[0] < batch,
               "requests is NULL, but there are %lld requests and %lld rows of slots or pages",
               (long long)batch, (long long)(source ? source->shape[0] : 0));
    if (c->status) return;
    p->seq_lens = (const int32_t *)tensor_data(a->seq_lens);
    if (a->requests) p->requests = (const int32_t *)tensor_data(a->requests);
    if (a->count) p->count = (const int32_t *)tensor_data(a->count);
    if (a->accept) p->accept = (const int32_t *)tensor_data(a->accept);
    steps_add_span(s, a->seq_lens, "seq_lens", false);
    steps_add_span(s, a->requests, "requests", false);
    steps_add_span(s, a->count, "count", false);
    steps_add_span(s, a->accept, "accept", false);
    steps_add_span(s, source, s->by_page ? "pages" : "slots", false);
    p->batch = (int32_t)batch;
    p->pool = p->max_len = INT32_MAX;
    p->row_capacity = INT32_MAX;
    if (!source) return;
    p->slots = (const int32_t *)tensor_data(source);
    p->slots_stride = tensor_stride(source, 0);
    if (source->shape[0] < p->pool) p->pool = (int32_t)source->shape[0];
    steps_lower(&p->max_len, source->shape[1], s->by_page ? s->page_size : 1);
}

/* Takes the array of structs, whose size is that of the caller's header. */
static void steps_take_steps(ops_check *c, steps_call *s) {
    const char *at = (const char *)s->a.steps;
    uint32_t size;
    for (int i = 0; i < s->a.step_count && !c->status; i++) {
        c->status = args_take(c->dev->base, "prepare_steps: a step", &s->steps[i],
                              sizeof s->steps[i], at);
        memcpy(&size, s->a.steps, sizeof size);
        at += size;
    }
}

static cairn_tensor *steps_tensor(const steps_call *s, int step, size_t offset) {
    cairn_tensor *t;
    memcpy(&t, (const char *)&s->steps[step] + offset, sizeof t);
    return t;
}

/* A later step names the same tensor: that one writes it. */
static bool steps_again(const steps_call *s, int step, size_t offset) {
    const cairn_tensor *t = steps_tensor(s, step, offset);
    for (int later = step + 1; later < s->p.steps; later++) {
        const cairn_tensor *other = steps_tensor(s, later, offset);
        if (other && tensor_data(other) == tensor_data(t)) return true;
    }
    return false;
}

static int64_t steps_host_rows(const prepare_steps_params *p) {
    if (p->mode == PREPARE_DECODE) return p->batch;
    return p->mode == PREPARE_TARGET_VERIFY ? (int64_t)p->batch * p->draft_tokens : 0;
}

/* Rows for which `there` elements have room; fewer than needed is refused. */
static void steps_want_room(ops_check *c, prepare_steps_params *p, const char *name, int64_t there,
                            int64_t needed, bool by_rows, int64_t spare) {
    ops_refuse(c, there < needed, "%s has room for %lld; %lld are needed", name, (long long)there,
               (long long)needed);
    if (by_rows && there - spare < p->row_capacity) p->row_capacity = (int32_t)(there - spare);
}

static void steps_want_output(ops_check *c, steps_call *s, int step, int which) {
    const steps_output *o = &steps_outputs[which];
    cairn_tensor *t = steps_tensor(s, step, o->offset);
    int64_t rows = steps_host_rows(&s->p), batch = s->p.batch, free1 = -1;
    const int64_t pair[2] = {-1, 2};
    if (!t || c->status) return;
    if (o->extent == STEPS_SCHEDULE) ops_want_as(c, t, o->name, SPEC_I32, false, 2, pair);
    else ops_want_as(c, t, o->name, SPEC_I32, false, 1, &free1);
    if (c->status) return;
    free1 = t->shape[0];
    switch (o->extent) {
        case STEPS_ONE: steps_want_room(c, &s->p, o->name, free1, 1, false, 0); break;
        case STEPS_REQUESTS: steps_want_room(c, &s->p, o->name, free1, batch, false, 0); break;
        case STEPS_REQUESTS_1:
            steps_want_room(c, &s->p, o->name, free1, batch + 1, false, 0);
            break;
        case STEPS_ROWS: steps_want_room(c, &s->p, o->name, free1, rows, true, 0); break;
        case STEPS_ROWS_1: steps_want_room(c, &s->p, o->name, free1, rows + 1, true, 1); break;
        case STEPS_SCHEDULE:
            ops_refuse(c, free1 < 2 || free1 > 65537, "%s has %lld rows; 2 to 65537 are expected",
                       o->name, (long long)free1);
            s->p.workers[step][which == PREPARE_ATTEND_SCHEDULE] = (int32_t)(free1 - 1);
    }
    if (steps_again(s, step, o->offset)) return;
    s->p.out[step][which] = (int32_t *)tensor_data(t);
    steps_add_span(s, t, o->name, true);
}

/* One table of a step; its extents bound lengths and rows. Returns what is written, or NULL. */
static int32_t *steps_want_out_table(ops_check *c, steps_call *s, int step, const char *name,
                                     size_t offset, int per_column, int64_t *stride) {
    cairn_tensor *t = steps_tensor(s, step, offset);
    prepare_steps_params *p = &s->p;
    int before;
    if (!t || c->status) return NULL;
    before = s->span_count;
    steps_want_table(c, s, t, name);
    ops_refuse(c, !s->p.slots, "%s is wanted, but slots and pages are NULL", name);
    if (c->status) return NULL;
    steps_want_room(c, p, name, t->shape[0], p->expand ? steps_host_rows(p) : p->batch, p->expand,
                    0);
    steps_lower(&p->max_len, t->shape[1], per_column);
    if (steps_again(s, step, offset)) {
        s->span_count = before; /* the later one stands for it */
        return NULL;
    }
    *stride = tensor_stride(t, 0);
    return (int32_t *)tensor_data(t);
}

/* With page_size 1 the page table holds the slots themselves. */
static void steps_join_tables(ops_check *c, steps_call *s) {
    for (int i = 0; i < s->p.steps && s->page_size == 1 && !c->status; i++) {
        cairn_step_metadata *m = &s->steps[i];
        if (!m->page_table) continue;
        ops_refuse(c, m->token_table && m->token_table->data != m->page_table->data,
                   "with page_size 1 page_table is token_table; name one tensor");
        m->token_table = m->page_table;
        m->page_table = NULL;
    }
}

static void steps_want_tables(ops_check *c, steps_call *s, int step) {
    prepare_table *table = &s->p.tables[s->p.table_count];
    table->tokens =
        steps_want_out_table(c, s, step, "token_table", offsetof(cairn_step_metadata, token_table),
                             1, &table->token_stride);
    table->pages =
        steps_want_out_table(c, s, step, "page_table", offsetof(cairn_step_metadata, page_table),
                             s->page_size, &table->page_stride);
    table->step = step;
    if (table->tokens || table->pages) s->p.table_count++;
}

/* Stands after all checks: how the tables may be copied. */
static void steps_choose_copy(steps_call *s) {
    prepare_steps_params *p = &s->p;
    uintptr_t odd = s->by_page ? 0 : (uintptr_t)p->slots | (uintptr_t)(p->slots_stride * 4);
    p->pages_only = 1;
    for (int t = 0; t < p->table_count; t++) {
        if (!p->tables[t].tokens) continue;
        odd |= (uintptr_t)p->tables[t].tokens | (uintptr_t)(p->tables[t].token_stride * 4);
        p->pages_only = 0;
    }
    p->vector = odd % 16 == 0;
}

static cairn_status steps_take(cairn_runtime *rt, const cairn_prepare_steps_args *args,
                               steps_call *s) {
    spec_call call;
    ops_check c;
    memset(s, 0, sizeof *s);
    if (spec_take(rt, SPEC_OF(prepare_steps), &s->a, args, &call)) return call.c.status;
    c = call.c;
    steps_want_numbers(&c, s, rt->config.page_size);
    if (!c.status) steps_want_inputs(&c, s);
    if (!c.status) steps_take_steps(&c, s);
    if (!c.status) steps_join_tables(&c, s);
    for (int i = 0; i < s->p.steps && !c.status; i++) {
        for (int which = 0; which < PREPARE_OUTPUTS; which++) steps_want_output(&c, s, i, which);
        steps_want_tables(&c, s, i);
    }
    if (!c.status) spans_want_apart(&c, s->spans, s->span_count);
    steps_choose_copy(s);
    s->p.error = ops_error_word(c.dev, c.op);
    return c.status;
}

/* ---- CPU: lengths ---- */

typedef struct steps_request { int32_t id, length /* -1: unknown */, rows; } steps_request;

static int32_t steps_clamp(int64_t value, int64_t low, int64_t high) {
    return (int32_t)(value < low ? low : value > high ? high : value);
}

/* Request b; `status`, if given, takes what is out of range. */
static steps_request steps_find(device *dev, const prepare_steps_params *p, int b,
                                cairn_status *status) {
    bool live = b < (p->count ? *p->count : p->batch);
    bool extend = p->mode == PREPARE_DRAFT_EXTEND;
    int32_t seq_len = live ? p->seq_lens[b] : 1, rows = live && extend ? p->accept[b] : 0;
    int64_t longest = seq_len + (int64_t)(p->steps - 1) * p->step_offset + p->draft_tokens;
    steps_request r;
    r.id = !live ? 0 : p->requests ? p->requests[b] : b;
    r.length = r.id < 0 || r.id >= p->pool ? -1 : steps_clamp(seq_len, 0, p->max_len);
    r.rows = p->mode == PREPARE_DECODE ? 1 : p->draft_tokens;
    if (extend) r.rows = steps_clamp(rows, 0, r.length < 0 ? 0 : r.length);
    if (!status) return r;
    if (r.length < 0) ops_bad_row(dev, "prepare_steps", b, "id out of range", r.id, status);
    else if (seq_len < 0 || longest > p->max_len)
        ops_bad_row(dev, "prepare_steps", b, "length out of range",
                    seq_len < 0 ? seq_len : longest, status);
    else if (extend && rows != r.rows)
        ops_bad_row(dev, "prepare_steps", b, "accept out of range", rows, status);
    return r;
}

static int32_t steps_length(const prepare_steps_params *p, steps_request r, int step) {
    int64_t added = (int64_t)step * p->step_offset + p->draft_tokens;
    return r.length < 0 ? 0 : steps_clamp(r.length + added, 0, p->max_len);
}

static void steps_put(int32_t *out, int64_t at, int64_t value) {
    if (out) out[at] = steps_clamp(value, 0, INT32_MAX);
}

static int64_t steps_splits(int64_t length, int32_t split) { return (length + split - 1) / split; }

/* Running sums of one step; `first` is the next row. */
typedef struct steps_sums {
    int64_t lengths, clipped, index_splits, attend_splits, first;
} steps_sums;

static void steps_write_row(const prepare_steps_params *p, int32_t *const *out, int32_t length,
                            int b, steps_sums *sums) {
    const int64_t r = sums->first++;
    const int32_t clipped = length < p->index_topk ? length : p->index_topk;
    sums->clipped += clipped;
    sums->index_splits += steps_splits(length, p->split[PREPARE_INDEX]);
    sums->attend_splits += steps_splits(clipped, p->split[PREPARE_ATTEND]);
    steps_put(out[PREPARE_CU_SEQLENS_Q], r + 1, r + 1);
    steps_put(out[PREPARE_ROW_REQUESTS], r, b);
    if (out[PREPARE_POSITIONS]) out[PREPARE_POSITIONS][r] = length - 1;
    steps_put(out[PREPARE_EXPANDED], r, length);
    steps_put(out[PREPARE_CLIPPED], r, clipped);
    steps_put(out[PREPARE_CU_CLIPPED], r + 1, sums->clipped);
    steps_put(out[PREPARE_INDEX_SPLITS], r + 1, sums->index_splits);
    steps_put(out[PREPARE_ATTEND_SPLITS], r + 1, sums->attend_splits);
}

static void steps_write_request(device *dev, const prepare_steps_params *p, int32_t *const *out,
                                int b, int step, steps_sums *sums) {
    const steps_request r = steps_find(dev, p, b, NULL);
    const int32_t length = steps_length(p, r, step);
    sums->lengths += length;
    for (int j = 0; j < r.rows && sums->first < p->row_capacity; j++)
        steps_write_row(p, out, steps_clamp((int64_t)length - r.rows + 1 + j, 0, INT32_MAX), b,
                        sums);
    steps_put(out[PREPARE_CACHE_SEQLENS], b, length);
    steps_put(out[PREPARE_CU_SEQLENS_K], b + 1, sums->lengths);
    steps_put(out[PREPARE_CU_ROWS], b + 1, sums->first);
}

/* Where each worker starts: walks the rows once. */
static void steps_write_schedule(device *dev, const prepare_steps_params *p, int step, int kind,
                                 int64_t all) {
    int32_t *schedule =
        p->out[step][kind == PREPARE_INDEX ? PREPARE_INDEX_SCHEDULE : PREPARE_ATTEND_SCHEDULE];
    const int32_t workers = p->workers[step][kind];
    const int32_t limit = kind == PREPARE_INDEX ? INT32_MAX : p->index_topk;
    int64_t w = 0, before = 0, row = 0;
    if (!schedule) return;
    for (int b = 0; b < p->batch; b++) {
        const steps_request r = steps_find(dev, p, b, NULL);
        const int64_t length = steps_length(p, r, step);
        for (int j = 0; j < r.rows && row < p->row_capacity; j++, row++) {
            const int64_t splits =
                steps_splits(steps_clamp(length - r.rows + 1 + j, 0, limit), p->split[kind]);
            for (; w <= workers; w++) {
                const int64_t more = all % workers;
                const int64_t start = w * (all / workers) + (w < more ? w : more);
                if (start >= before + splits) break;
                schedule[2 * w] = (int32_t)row;
                schedule[2 * w + 1] = (int32_t)(start - before);
            }
            before += splits;
        }
    }
    for (; w <= workers; w++) schedule[2 * w] = (int32_t)row, schedule[2 * w + 1] = 0;
}

static void steps_write_step(device *dev, const prepare_steps_params *p, int step) {
    static const int from_zero[] = {PREPARE_CU_SEQLENS_K, PREPARE_CU_ROWS,
                                    PREPARE_CU_SEQLENS_Q, PREPARE_CU_CLIPPED,
                                    PREPARE_INDEX_SPLITS, PREPARE_ATTEND_SPLITS};
    int32_t *const *out = p->out[step];
    int32_t longest = 0;
    steps_sums sums;
    memset(&sums, 0, sizeof sums);
    for (size_t i = 0; i < BASE_COUNT(from_zero); i++) steps_put(out[from_zero[i]], 0, 0);
    for (int b = 0; b < p->batch; b++) {
        const int32_t length = steps_length(p, steps_find(dev, p, b, NULL), step);
        if (length > longest) longest = length;
        steps_write_request(dev, p, out, b, step, &sums);
    }
    steps_put(out[PREPARE_MAX_SEQLEN_K], 0, longest);
    steps_write_schedule(dev, p, step, PREPARE_INDEX, sums.index_splits);
    steps_write_schedule(dev, p, step, PREPARE_ATTEND, sums.attend_splits);
}

/* ---- CPU: tables ---- */

/* Slots of positions [from, to) of a row of page ids. */
static void steps_copy_slots(const int32_t *pages, int32_t page_size, int64_t from, int64_t to,
                             int32_t *out) {
    while (from < to) {
        const int32_t id = pages[from / page_size];
        int64_t end = (from / page_size + 1) * page_size;
        uint32_t slot = (uint32_t)id * (uint32_t)page_size + (uint32_t)(from % page_size);
        for (end = end < to ? end : to; from < end; from++)
            *out++ = id < 0 ? -1 : (int32_t)slot++;
    }
}

typedef struct steps_job {
    device *dev;
    const prepare_steps_params *p;
    int page_size;
    bool by_page;
    const int64_t *first_rows; /* [batch + 1] */
} steps_job;

static void steps_copy_row(const steps_job *job, const prepare_table *table, int64_t row,
                           const int32_t *from, int32_t length) {
    if (table->tokens)
        memcpy(table->tokens + row * table->token_stride, from, (size_t)length * sizeof *from);
    for (int64_t page = 0; table->pages && page * job->page_size < length; page++) {
        const int32_t slot = from[page * job->page_size];
        table->pages[row * table->page_stride + page] = slot < 0 ? -1 : slot / job->page_size;
    }
}

/* The same from page ids. */
static void steps_copy_pages(const steps_job *job, const prepare_table *table, int64_t row,
                             const int32_t *from, int32_t length) {
    const int32_t size = job->page_size;
    if (table->tokens)
        steps_copy_slots(from, size, 0, length, table->tokens + row * table->token_stride);
    for (int64_t page = 0; table->pages && page * size < length; page++)
        table->pages[row * table->page_stride + page] = from[page] < 0 ? -1 : from[page];
}

/* One request in one table. */
static void steps_copy(void *context, int index) {
    const steps_job *job = (const steps_job *)context;
    const prepare_steps_params *p = job->p;
    const prepare_table *table = &p->tables[index % p->table_count];
    const int b = index / p->table_count;
    const steps_request r = steps_find(job->dev, p, b, NULL);
    const int32_t length = steps_length(p, r, table->step);
    int64_t row = p->expand ? job->first_rows[b] : b;
    const int64_t end = p->expand ? job->first_rows[b + 1] : b + 1;
    for (; length && row < end; row++)
        (job->by_page ? steps_copy_pages : steps_copy_row)(job, table, row,
                                                         p->slots + r.id * p->slots_stride, length);
}

static void steps_copy_tables(device *dev, const steps_call *s, int64_t *first_rows) {
    const prepare_steps_params *p = &s->p;
    steps_job job;
    job.dev = dev;
    job.p = p;
    job.page_size = s->page_size;
    job.by_page = s->by_page;
    job.first_rows = first_rows;
    first_rows[0] = 0;
    for (int b = 0; b < p->batch; b++) {
        const int64_t end = first_rows[b] + steps_find(dev, p, b, NULL).rows;
        first_rows[b + 1] = end < p->row_capacity ? end : p->row_capacity;
    }
    pool_run(dev->pool, p->batch * p->table_count, steps_copy, &job);
}

/* What is out of range, told after all is written. */
static cairn_status steps_faults(device *dev, const prepare_steps_params *p) {
    cairn_status status = CAIRN_OK;
    int64_t rows = 0;
    if (p->count && (*p->count < 0 || *p->count > p->batch))
        ops_bad_row(dev, "prepare_steps", -1, "count out of range", *p->count, &status);
    for (int b = 0; b < p->batch && !status; b++) {
        rows += steps_find(dev, p, b, &status).rows;
        if (rows > p->row_capacity)
            ops_bad_row(dev, "prepare_steps", b, "more rows than the outputs hold", rows, &status);
    }
    return status;
}

static cairn_status steps_run_cpu(device *dev, const steps_call *s) {
    const prepare_steps_params *p = &s->p;
    void *first_rows = NULL;
    cairn_status status = CAIRN_OK;
    if (p->table_count)
        status = device_scratch(dev, ((size_t)p->batch + 1) * sizeof(int64_t), "prepare_steps",
                             &first_rows);
    if (status) return status;
    for (int step = 0; step < p->steps; step++) steps_write_step(dev, p, step);
    if (p->table_count) steps_copy_tables(dev, s, (int64_t *)first_rows);
    return steps_faults(dev, p);
}

/* ---- GPU ---- */

enum { STEPS_BLOCK = 256, STEPS_TILE = 2048, STEPS_SHARED = 64 };

/* Blocks for each request's row: enough to keep every SM copying, none without a tile. */
static int32_t steps_parts(const device *dev, const prepare_steps_params *p, int page_size) {
    int64_t tile = p->pages_only ? (int64_t)STEPS_BLOCK * page_size : STEPS_TILE;
    int64_t most = (p->max_len + tile - 1) / tile, parts = 4 * (int64_t)dev->sm_count / p->batch;
    if (!p->table_count) return 0;
    if (parts > most) parts = most;
    return parts < 1 ? 1 : (int32_t)parts;
}

static cairn_status steps_run_cuda(cairn_runtime *rt, steps_call *s) {
    device_dims dims = {{0, 1, 1}, STEPS_BLOCK, 0, STEPS_SHARED, true};
    prepare_steps_params *p = &s->p;
    ops_kernel want;
    memset(&want, 0, sizeof want);
    want.source = "steps/steps.cu";
    want.entry = "prepare_steps";
    want.constants[0].name = "PAGE_SIZE", want.constants[0].value = s->page_size;
    want.constants[1].name = "BY_PAGE", want.constants[1].value = s->by_page;
    want.constant_count = 2;
    p->table_parts = steps_parts(&rt->device, p, s->page_size);
    dims.grid[0] = 3 * (unsigned)p->steps + (unsigned)p->batch * (unsigned)p->table_parts;
    return ops_launch_as(rt, &want, &dims, p);
}

cairn_status cairn_prepare_steps(cairn_runtime *rt, const cairn_prepare_steps_args *args) {
    steps_call s;
    cairn_status status = steps_take(rt, args, &s);
    if (status || !s.p.batch) return status;
    return spec_end(rt, rt->device.cuda ? steps_run_cuda(rt, &s) : steps_run_cpu(&rt->device, &s));
}
