/* topk_rows: top-k of scores that memory does not hold at once. The caller's function makes the
 * scores of some rows, their top-k is taken, and the same memory serves the next rows. A row's
 * result depends on that row alone, so every way to cut the rows gives the same output. */

enum { ROWS_FEW_SCORES = 8000000 /* below this many, cutting is not worth it */ };

/* Rows at a time by what memory is free: all of them while they are few, or while their scores take
 * no more than half of what is free and 0.3 of all there is; else what half of the free memory
 * holds, at least one. */
static int64_t rows_by_memory(int64_t rows, int64_t n, uint64_t free_bytes, uint64_t total_bytes) {
    uint64_t row_bytes = (uint64_t)n * 4, bytes = (uint64_t)rows * row_bytes, fit;
    if (rows * n < ROWS_FEW_SCORES) return rows;
    if (bytes * 2 <= free_bytes && (double)bytes <= 0.3 * (double)total_bytes) return rows;
    fit = free_bytes / 2 / (row_bytes ? row_bytes : 1);
    return fit < 1 ? 1 : fit < (uint64_t)rows ? (int64_t)fit : rows;
}

static int64_t rows_by_bound(int64_t rows, int64_t n, uint64_t max_bytes) {
    uint64_t fit = n ? max_bytes / ((uint64_t)n * 4) : (uint64_t)rows;
    return rows == 0 ? 0 : fit < 1 ? 1 : fit < (uint64_t)rows ? (int64_t)fit : rows;
}

/* What the device has now, and may use; on the CPU both are what the system has available. */
static cairn_status rows_ask(cairn_runtime *rt, uint64_t *free_bytes, uint64_t *total_bytes) {
    const device *dev = &rt->device;
    uint64_t left = dev->budget_bytes > dev->live_bytes ? dev->budget_bytes - dev->live_bytes : 0;
    cairn_status status = handles_enter(rt);
    if (status) return status;
    device_memory(dev, free_bytes, total_bytes);
    if (dev->budget_bytes && left < *free_bytes) *free_bytes = left;
    if (dev->budget_bytes && dev->budget_bytes < *total_bytes) *total_bytes = dev->budget_bytes;
    return handles_leave(rt, CAIRN_OK);
}

static cairn_status rows_plan(cairn_runtime *rt, const cairn_topk_rows_args *a, int64_t *at_once) {
    uint64_t free_bytes = 0, total_bytes = 0;
    cairn_status status = CAIRN_OK;
    if (a->scores) {
        *at_once = a->scores->shape[0] < a->rows ? a->scores->shape[0] : a->rows;
    } else if (a->max_bytes) {
        *at_once = rows_by_bound(a->rows, a->n, a->max_bytes);
    } else {
        if (!a->free_bytes || !a->total_bytes) status = rows_ask(rt, &free_bytes, &total_bytes);
        if (a->free_bytes) free_bytes = a->free_bytes;
        if (a->total_bytes) total_bytes = a->total_bytes;
        *at_once = rows_by_memory(a->rows, a->n, free_bytes, total_bytes);
    }
    return status;
}

/* ---- arguments ------------------------------------------------------------------------------ */

static void rows_want_scores(ops_check *c, const cairn_topk_rows_args *a) {
    ops_refuse(c, a->scores && a->scores->shape[0] < 1 && a->rows > 0,
               "scores has no row; one or more is expected");
}

/* What the table does not say; map: what topk_transform does with a position. */
static cairn_status rows_check(cairn_runtime *rt, spec_call *s, const cairn_topk_rows_args *a,
                               topk_params *map) {
    cairn_topk_transform_args t;
    topk_want_route(&s->c, a->route);
    rows_want_scores(&s->c, a);
    ops_refuse(&s->c, rt->capturing && !a->scores,
               "scores is NULL; while a graph is captured, memory for them is expected");
    memset(&t, 0, sizeof t);
    t.page_table = a->page_table, t.offsets = a->offsets, t.requests = a->requests;
    t.page_size = a->page_size;
    if (!s->c.status && (a->page_table || a->offsets || a->requests))
        topk_want_map(&s->c, rt->config.page_size, &t, a->rows, map);
    return s->c.status;
}

/* ---- the rows, some at a time --------------------------------------------------------------- */

typedef struct rows_call {
    cairn_runtime *rt;
    const cairn_topk_rows_args *a;
    topk_params map;     /* of all rows */
    cairn_tensor scores; /* memory for `step` rows */
    int64_t shape[2], strides[2];
    int64_t step;
    cairn_status fault;  /* BAD_DATA of the first rows that had it */
    char kept[BASE_ERROR_BYTES];
} rows_call;

typedef struct rows_view { cairn_tensor tensor; int64_t shape[2], strides[2]; } rows_view;

/* Rows [first, first + count) of a checked tensor; NULL of NULL. */
static cairn_tensor *rows_slice(const cairn_tensor *t, int64_t first, int64_t count,
                                rows_view *view) {
    if (!t) return NULL;
    view->tensor = *t;
    view->shape[0] = count;
    view->strides[0] = tensor_stride(t, 0);
    if (t->ndim > 1) view->shape[1] = t->shape[1], view->strides[1] = 1;
    view->tensor.shape = view->shape;
    view->tensor.strides = view->strides;
    view->tensor.byte_offset +=
        (uint64_t)(first * view->strides[0]) * cairn_type_bytes(cairn_tensor_type(t));
    return &view->tensor;
}

/* How many rows the chunk at `first` has. Where rows follow their requests by number, it begins at
 * a request's first row or lies in one request, so that the table's later rows describe it. */
static int64_t rows_count_at(const rows_call *c, int64_t first) {
    int64_t count = c->a->rows - first < c->step ? c->a->rows - first : c->step, each, within;
    if (c->map.form != CAIRN_INDEX_SLOT || c->map.requests) return count;
    each = c->map.rows_each;
    within = first % each;
    if (within == 0 && count >= each) return count - count % each;
    return count < each - within ? count : each - within;
}

static topk_params rows_map_at(const rows_call *c, int64_t first) {
    topk_params map = c->map;
    if (map.requests) map.requests += first;
    else if (map.form == CAIRN_INDEX_SLOT) {
        map.page_table += first / map.rows_each * map.table_stride;
        map.table_rows -= (int32_t)(first / map.rows_each);
    }
    if (map.offsets) map.offsets += first;
    return map;
}

/* first: of the rows that messages name. */
static topk_shape rows_shape(const cairn_tensor *scores, int64_t first) {
    topk_shape shape;
    shape.op = "topk_rows";
    shape.first_row = first;
    shape.rows = scores->shape[0];
    shape.n = scores->shape[1];
    shape.stride = scores->strides[0];
    return shape;
}

/* top-k of `count` rows whose scores are in `scores`. */
static cairn_status rows_select(rows_call *c, int64_t first, int64_t count,
                                const cairn_tensor *scores) {
    const cairn_topk_rows_args *a = c->a;
    rows_view lengths, starts, indices, values;
    topk_params map = rows_map_at(c, first);
    topk_shape shape = rows_shape(scores, first);
    cairn_topk_args top;
    memset(&top, 0, sizeof top);
    top.k = a->k, top.order = a->order, top.route = a->route;
    top.scores = scores;
    top.lengths = rows_slice(a->lengths, first, count, &lengths);
    top.row_starts = rows_slice(a->row_starts, first, count, &starts);
    top.indices = rows_slice(a->indices, first, count, &indices);
    top.values = rows_slice(a->values, first, count, &values);
    return topk_run_checked(c->rt, &top, &shape, &map);
}

/* The rows of the outputs behind the last that has scores: as of rows without candidates. */
static cairn_status rows_pad(rows_call *c) {
    const cairn_topk_rows_args *a = c->a;
    rows_view indices, values;
    topk_params map;
    topk_shape shape;
    cairn_topk_args top;
    int64_t count = a->indices->shape[0] - a->rows;
    if (count == 0) return CAIRN_OK;
    memset(&top, 0, sizeof top);
    memset(&map, 0, sizeof map);
    c->shape[0] = count, c->shape[1] = 0;
    top.k = a->k, top.route = "auto", top.scores = &c->scores;
    top.indices = rows_slice(a->indices, a->rows, count, &indices);
    top.values = rows_slice(a->values, a->rows, count, &values);
    shape = rows_shape(&c->scores, a->rows);
    return topk_run_checked(c->rt, &top, &shape, &map);
}

/* Calls the producer; a status without words of its own gets some. When it waits, a fault of the
 * rows before is not its own: that is for the first wait after. */
static cairn_status rows_produce(rows_call *c, int64_t first, int64_t count,
                                 const cairn_tensor *scores) {
    base *b = &c->rt->base;
    rows_view given;
    const int op = trace_pause(&c->rt->device);
    cairn_status status;
    memcpy(c->kept, b->error, sizeof c->kept);
    b->error[0] = '\0';
    c->rt->device.faults_held++;
    status = c->a->produce(c->a->user, first, count, rows_slice(scores, 0, count, &given));
    c->rt->device.faults_held--;
    trace_resume(&c->rt->device, op);
    if (!status) memcpy(b->error, c->kept, sizeof c->kept);
    if (!status || b->error[0]) return status;
    if ((int)status < 0 || status >= CAIRN_STATUS_COUNT)
        return base_fail(b, CAIRN_INVALID_ARGUMENT,
                         "topk_rows: produce returned %d at row %lld, which is no status",
                         (int)status, (long long)first);
    return base_fail(b, status, "topk_rows: produce ended it at rows %lld to %lld",
                     (long long)first, (long long)(first + count - 1));
}

/* Faults of one chunk do not stop the others; the first is what the call returns. */
static cairn_status rows_note(rows_call *c, cairn_status status) {
    base *b = &c->rt->base;
    if (status != CAIRN_BAD_DATA) return status;
    if (c->fault) {
        memcpy(b->error, c->kept, sizeof c->kept);
    } else {
        c->fault = status;
    }
    return CAIRN_OK;
}

/* Waits, so that a producer that ends the call ends it here, and counts the row of a fault that the
 * device saw from the first of all. */
static cairn_status rows_wait(rows_call *c, int64_t first) {
    device *dev = &c->rt->device;
    device_fault_word *word = device_error_word(dev, "topk_rows");
    cairn_status status;
    if (!word) return CAIRN_OK;
    if ((status = handles_enter(c->rt))) return status;
    if (device_wait(dev) && word->code) word->row += (int32_t)first;
    return handles_leave(c->rt, device_sync(dev));
}

static cairn_status rows_run(rows_call *c) {
    const cairn_topk_rows_args *a = c->a;
    cairn_status status = CAIRN_OK;
    int64_t first, count;
    rows_view part;
    for (first = 0; first < a->rows && !status; first += count) {
        count = rows_count_at(c, first);
        status = rows_produce(c, first, count, &c->scores);
        if (!status) memcpy(c->kept, c->rt->base.error, sizeof c->kept);
        if (!status)
            status = rows_note(c, rows_select(c, first, count,
                                              rows_slice(&c->scores, 0, count, &part)));
        if (!status && !a->scores) status = rows_note(c, rows_wait(c, first));
    }
    if (!status) status = rows_pad(c);
    return status ? status : c->fault;
}

/* Memory for the scores; less of it when the device has less than it said. */
static cairn_status rows_alloc(rows_call *c, void **memory, size_t *bytes) {
    device *dev = &c->rt->device;
    cairn_status status = handles_enter(c->rt);
    if (status) return status;
    memcpy(c->kept, dev->base->error, sizeof c->kept);
    for (;;) {
        *bytes = (size_t)c->step * (size_t)c->a->n * 4;
        status = device_alloc(dev, *bytes, "topk_rows", memory);
        if ((status != CAIRN_OUT_OF_MEMORY && status != CAIRN_OUT_OF_DEVICE_MEMORY) || c->step < 2)
            break;
        c->step = c->step / 2;
    }
    if (!status) memcpy(dev->base->error, c->kept, sizeof c->kept);
    return handles_leave(c->rt, status);
}

static cairn_status rows_run_in_own_memory(rows_call *c) {
    device *dev = &c->rt->device;
    void *memory = NULL;
    size_t bytes = 0;
    cairn_status status = rows_alloc(c, &memory, &bytes);
    if (status) return status;
    c->scores.data = memory;
    c->scores.device.type = c->a->indices->device.type;
    c->scores.device.id = c->a->indices->device.id;
    c->scores.ndim = 2;
    c->scores.shape = c->shape;
    c->scores.strides = c->strides;
    c->scores.dtype.code = tensor_types[CAIRN_F32].code;
    c->scores.dtype.bits = 32;
    c->scores.dtype.lanes = 1;
    c->shape[0] = c->step;
    c->shape[1] = c->strides[0] = c->a->n;
    status = rows_run(c);
    if (handles_enter(c->rt)) return status; /* the context is gone, and its memory with it */
    device_wait(dev);
    device_free(dev, memory, bytes);
    return handles_leave(c->rt, status);
}

cairn_status cairn_topk_rows(cairn_runtime *rt, const cairn_topk_rows_args *args) {
    cairn_topk_rows_args a;
    rows_call c;
    spec_call s;
    cairn_status status = spec_take(rt, SPEC_OF(topk_rows), &a, args, &s);
    if (status) return status;
    memset(&c, 0, sizeof c);
    c.rt = rt;
    c.a = &a;
    if ((status = rows_check(rt, &s, &a, &c.map)) || (status = rows_plan(rt, &a, &c.step)))
        return status;
    c.strides[1] = 1;
    if (!a.scores) return spec_end(rt, rows_run_in_own_memory(&c));
    c.scores = *a.scores;
    c.scores.shape = c.shape;
    c.scores.strides = c.strides;
    c.shape[0] = c.step;
    c.shape[1] = a.n;
    c.strides[0] = tensor_stride(a.scores, 0);
    return spec_end(rt, rows_run(&c));
}

cairn_status cairn_topk_rows_plan(cairn_runtime *rt, const cairn_topk_rows_args *args,
                                  int64_t *rows_at_once) {
    cairn_topk_rows_args a;
    spec_call s;
    cairn_status status = spec_take(rt, &spec_topk_rows_plan, &a, args, &s);
    if (rows_at_once) *rows_at_once = 0;
    if (status || (status = handles_need(rt, "topk_rows_plan", rows_at_once, "rows_at_once")))
        return status;
    rows_want_scores(&s.c, &a);
    return s.c.status ? s.c.status : rows_plan(rt, &a, rows_at_once);
}
