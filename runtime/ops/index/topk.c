/* index: index_topk. The logits of some rows, their top-k, the next rows in the same memory: that is
 * topk_rows with the scores made here. */

typedef struct index_topk_call {
    cairn_runtime *rt;
    index_logits_params p; /* of all rows */
    bool paged;
    char fault[BASE_ERROR_BYTES]; /* the first of rows that went on past it, else empty */
} index_topk_call;

/* Rows [first, first + count) of c->p, which share a table's rows evenly. */
static cairn_status index_score_some(const index_topk_call *c, int64_t first, int64_t count,
                                     int64_t each, float *out, int64_t stride) {
    index_logits_params p = c->p;
    p.q += first * p.heads * CAIRN_INDEX_DIM;
    p.weights += first * p.heads;
    if (p.row_starts) p.row_starts += first;
    if (p.lengths) p.lengths += first;
    if (p.row_requests) p.row_requests += first;
    else if (c->paged) {
        p.page_table += first / p.rows_each * p.max_pages;
        p.requests -= (int32_t)(first / p.rows_each);
    }
    p.rows = (int32_t)count;
    p.rows_each = (int32_t)each;
    p.first_row = (int32_t)first;
    p.out = out;
    p.stride = stride;
    return index_score(c->rt, "index_topk", c->paged, &p);
}

/* The rows before a request's first, whole requests, the rows behind the last: where rows follow
 * their requests by number, only these divide among rows of the page table. */
static cairn_status index_produce(void *user, int64_t first, int64_t count, cairn_tensor *scores) {
    index_topk_call *c = (index_topk_call *)user;
    const bool even = c->paged && !c->p.row_requests;
    const int64_t stride = tensor_stride(scores, 0), last = first + count;
    float *out = (float *)tensor_data(scores);
    cairn_status status = CAIRN_OK;
    while (first < last && !status) {
        int64_t some = last - first, each = some;
        if (even) {
            const int64_t within = first % c->p.rows_each, left = c->p.rows_each - within;
            if (within == 0 && some >= left) each = left, some -= some % left;
            else each = some = some < left ? some : left;
        }
        status = index_score_some(c, first, some, each, out, stride);
        if (status == CAIRN_BAD_DATA && !c->fault[0])
            memcpy(c->fault, c->rt->base.error, sizeof c->fault);
        if (status == CAIRN_BAD_DATA) status = CAIRN_OK;
        first += some;
        out += some * stride;
    }
    return status;
}

static void index_want_topk(cairn_runtime *rt, spec_call *s, const cairn_index_topk_args *a,
                            index_topk_call *c) {
    const int64_t pages = s->n[SPEC_MAX_PAGES] * s->n[SPEC_PAGE_SIZE];
    ops_check *k = &s->c;
    c->rt = rt;
    c->paged = a->cache != NULL;
    topk_want_route(k, a->route);
    ops_refuse(k, !a->keys == !a->cache, "keys or cache is expected, one of the two");
    ops_refuse(k, !a->keys != !a->key_scales, "keys and key_scales are expected together");
    ops_refuse(k, a->cache && (!a->page_table || !a->lengths),
               "page_table and lengths are expected with cache");
    ops_refuse(k, a->slots && (a->offsets || !a->page_table),
               "slots are wanted: page_table without offsets is expected");
    ops_refuse(k, !a->cache && !a->slots && (a->page_table || a->requests),
               "page_table and requests are expected with cache or slots alone");
    index_rows_of(s, a->q, a->weights, &c->p);
    if (a->page_table) index_want_requests(s, a->requests);
    if (c->paged) index_pages_of(s, a->cache, a->page_table, a->requests, &c->p);
    if (k->status) return;
    c->p.n = a->n ? a->n : (int32_t)(c->paged && pages < INT32_MAX ? pages : s->n[SPEC_N]);
    ops_refuse(k, c->paged && (c->p.n > 1 << 22 || c->p.n > pages),
               "n = %d keys; at most 4194304, and those of %lld pages, are expected", (int)c->p.n,
               (long long)s->n[SPEC_MAX_PAGES]);
    ops_refuse(k, !c->paged && c->p.n != s->n[SPEC_N], "n = %d for %lld keys", (int)c->p.n,
               (long long)s->n[SPEC_N]);
    ops_refuse(k, a->scores && a->scores->shape[1] != c->p.n,
               "scores has %lld columns for n = %d keys",
               (long long)(a->scores ? a->scores->shape[1] : 0), (int)c->p.n);
    ops_refuse(k, a->scores && a->scores->shape[0] < 1, "scores has no row");
    ops_refuse(k, rt->capturing && !a->scores && c->p.n > a->k,
               "scores is NULL; while a graph is captured, memory for them is expected");
}

/* Rows of at most k keys are whole: no logit is made for them. */
static cairn_status index_choose_all(cairn_runtime *rt, const cairn_topk_rows_args *t, int64_t n) {
    int64_t shape[2];
    cairn_tensor none = *t->indices; /* where, of what rank */
    cairn_topk_transform_args all;
    cairn_topk_args plain;
    shape[0] = t->rows, shape[1] = n;
    none.data = NULL, none.byte_offset = 0, none.shape = shape, none.strides = NULL;
    none.dtype.code = tensor_types[CAIRN_F32].code;
    memset(&all, 0, sizeof all);
    memset(&plain, 0, sizeof plain);
    all.struct_size = (uint32_t)sizeof all, plain.struct_size = (uint32_t)sizeof plain;
    all.k = plain.k = t->k;
    all.scores = plain.scores = &none;
    all.lengths = plain.lengths = t->lengths;
    all.row_starts = plain.row_starts = t->row_starts;
    all.indices = plain.indices = t->indices;
    all.values = plain.values = t->values; /* wanted of no keys alone */
    all.route = plain.route = t->route;
    all.page_table = t->page_table, all.offsets = t->offsets, all.requests = t->requests;
    all.page_size = t->page_size;
    return t->page_table || t->offsets ? cairn_topk_transform(rt, &all) : cairn_topk(rt, &plain);
}

cairn_status cairn_index_topk(cairn_runtime *rt, const cairn_index_topk_args *args) {
    cairn_index_topk_args a;
    cairn_topk_rows_args t;
    index_topk_call c;
    spec_call s;
    cairn_status status;
    int op;
    if (spec_take(rt, SPEC_OF(index_topk), &a, args, &s)) return s.c.status;
    memset(&c, 0, sizeof c);
    index_want_topk(rt, &s, &a, &c);
    if (s.c.status || !c.p.rows) return s.c.status;
    if (!c.paged) c.p.keys = (const uint8_t *)tensor_data(a.keys);
    if (!c.paged) c.p.key_scales = (const float *)tensor_data(a.key_scales);
    c.p.row_starts = index_ints(a.row_starts);
    c.p.lengths = index_ints(a.lengths);
    if (!a.values && a.order == CAIRN_ORDER_POSITION) c.p.least = a.k;
    memset(&t, 0, sizeof t);
    t.struct_size = (uint32_t)sizeof t;
    t.k = a.k, t.rows = c.p.rows, t.n = c.p.n;
    t.produce = index_produce, t.user = &c;
    t.scores = a.scores, t.offsets = a.offsets;
    if (a.slots) t.page_table = a.page_table, t.requests = a.requests;
    t.page_size = c.paged ? c.p.page_size : a.page_size;
    t.lengths = a.lengths, t.row_starts = a.row_starts;
    t.indices = a.indices, t.values = a.values;
    t.max_bytes = a.max_bytes, t.free_bytes = a.free_bytes, t.total_bytes = a.total_bytes;
    t.order = a.order, t.route = a.route;
    op = trace_pause(&rt->device);
    status = c.p.least >= c.p.n ? index_choose_all(rt, &t, c.p.n) : cairn_topk_rows(rt, &t);
    trace_resume(&rt->device, op);
    spec_end(rt, status);
    if (status || !c.fault[0]) return status;
    memcpy(rt->base.error, c.fault, sizeof c.fault);
    return CAIRN_BAD_DATA;
}
