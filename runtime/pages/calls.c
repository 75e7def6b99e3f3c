/* pages_calls: the public calls on page pools and page tables, and the tables' way to the device.
 *
 * The device's copy is brought up to date by one launch that reads what changed from pinned memory.
 * Two such buffers take turns, each with an event that says when it may be written again, so that
 * an update never waits. Calls pages, pages_tables, ops and handles. */

struct cairn_page_pool {
    cairn_runtime *rt;
    cairn_page_pool *next; /* of rt->page_pools */
    page_pool ids;
    int users; /* tables and caches that hold pages of it: it must outlive them */
};

enum { PAGES_TABLE, PAGES_LENGTHS, PAGES_INDPTR, PAGES_INDICES, PAGES_LAST, PAGES_COPIES,
       PAGES_TENSORS };

typedef struct pages_stage {
    void *memory;  /* pinned: page_tables_row [requests], then ids [requests * max_pages] */
    CUevent done;  /* the last update from here */
    bool used;
} pages_stage;

struct cairn_page_tables {
    cairn_runtime *rt;
    cairn_page_tables *next; /* of rt->page_tables */
    cairn_page_pool *from;   /* or NULL */
    page_tables lists;
    int32_t *counts;         /* [requests] */
    tensor_owned *owned; /* a list of its own: these are not the caller's to free */
    tensor_owned *tensors[PAGES_TENSORS];
    pages_stage stages[2];
    int turn; /* the stage of the next update */
};

/* ---- pools ----------------------------------------------------------------------------------- */

cairn_status cairn_page_pool_new(cairn_runtime *rt, int pages, cairn_page_pool **out) {
    cairn_page_pool *p;
    cairn_status status = handles_need(rt, "page_pool", out, "pool");
    if (out) *out = NULL;
    if (status) return status;
    if (pages < 1 || pages > INT_MAX / 8)
        return base_fail(&rt->base, CAIRN_INVALID_ARGUMENT, "page_pool: %d pages; 1 to %d", pages,
                         INT_MAX / 8);
    p = (cairn_page_pool *)base_new(&rt->base, 1, sizeof *p);
    if (!p) return base_no_memory(&rt->base, "a page pool", sizeof *p);
    if ((status = pages_open(&rt->base, pages, &p->ids))) {
        base_delete(&rt->base, p, 1, sizeof *p);
        return status;
    }
    p->rt = rt;
    p->next = rt->page_pools;
    rt->page_pools = p;
    return *out = p, CAIRN_OK;
}

cairn_status cairn_page_pool_free(cairn_page_pool *p) {
    cairn_page_pool **link;
    base *b;
    if (!p) return CAIRN_OK;
    b = &p->rt->base;
    if (p->users)
        return base_fail(b, CAIRN_BUSY, "page_pool_free: %d tables or caches use it", p->users);
    for (link = &p->rt->page_pools; *link != p;) link = &(*link)->next;
    *link = p->next;
    pages_close(b, &p->ids);
    base_delete(b, p, 1, sizeof *p);
    return CAIRN_OK;
}

static cairn_status pages_check_list(cairn_runtime *rt, const char *call, const void *list,
                                     int count) {
    if (count >= 0 && (list || !count)) return CAIRN_OK;
    return base_fail(&rt->base, CAIRN_INVALID_ARGUMENT, "%s: a list of %d at %s", call, count,
                     list ? "an address" : "NULL");
}

cairn_status cairn_page_pool_take(cairn_page_pool *p, int count, int32_t *ids) {
    cairn_status status;
    if (!p) return CAIRN_INVALID_ARGUMENT;
    if ((status = pages_check_list(p->rt, "page_pool_take", ids, count))) return status;
    if (pages_take(&p->ids, count, ids)) return CAIRN_OK;
    return base_fail(&p->rt->base, CAIRN_POOL_FULL, "page_pool_take: %d pages; %d of %d are free",
                     count, p->ids.free_count, p->ids.pages);
}

cairn_status cairn_page_pool_retain(cairn_page_pool *p, const int32_t *ids, int count) {
    cairn_status status;
    if (!p) return CAIRN_INVALID_ARGUMENT;
    status = pages_check_list(p->rt, "page_pool_retain", ids, count);
    return status ? status : pages_retain(&p->rt->base, &p->ids, ids, count);
}

cairn_status cairn_page_pool_give(cairn_page_pool *p, const int32_t *ids, int count) {
    cairn_status status;
    if (!p) return CAIRN_INVALID_ARGUMENT;
    status = pages_check_list(p->rt, "page_pool_give", ids, count);
    return status ? status : pages_give(&p->rt->base, &p->ids, ids, count);
}

int cairn_page_pool_free_pages(const cairn_page_pool *p) { return p ? p->ids.free_count : 0; }

int cairn_page_pool_references(const cairn_page_pool *p, int32_t id) {
    return p && id >= 0 && id < p->ids.pages ? p->ids.references[id] : -1;
}

/* ---- tables: open and close ------------------------------------------------------------------ */

static size_t pages_stage_bytes(const page_tables *t) {
    return (size_t)t->requests * (sizeof(page_tables_row) +
                                  (size_t)t->max_pages * sizeof(int32_t));
}

/* Also half made. */
static void pages_tables_destroy(cairn_page_tables *t) {
    cairn_runtime *rt = t->rt;
    base *b = &rt->base;
    bool entered = !handles_enter(rt);
    for (int i = 0; i < 2; i++) {
        pages_stage *s = &t->stages[i];
        if (s->done && s->used) rt->drv.cuEventSynchronize(s->done);
        if (s->done) rt->drv.cuEventDestroy(s->done);
        device_host_free(&rt->device, s->memory, pages_stage_bytes(&t->lists));
    }
    for (int i = 0; i < PAGES_TENSORS; i++)
        if (t->tensors[i]) tensor_free(&rt->device, t->tensors[i]);
    if (entered) handles_leave(rt, CAIRN_OK);
    if (t->lists.pool)
        for (int r = 0; r < t->lists.requests; r++)
            pages_give(b, t->lists.pool, tables_row(&t->lists, r), t->lists.pages[r]);
    base_delete(b, t->counts, (size_t)t->lists.requests, sizeof *t->counts);
    tables_close(b, &t->lists);
    if (t->from) t->from->users--;
    base_delete(b, t, 1, sizeof *t);
}

static cairn_status pages_new_tensors(cairn_page_tables *t) {
    const int64_t n = t->lists.requests, all = n * t->lists.max_pages;
    const int64_t shapes[PAGES_TENSORS][2] = {{n, t->lists.max_pages}, {n, 0}, {n + 1, 0},
                                              {all, 0}, {n, 0}, {n, 2}};
    cairn_status status = CAIRN_OK;
    for (int i = 0; i < PAGES_TENSORS && !status; i++)
        status = tensor_new(&t->rt->device, &t->owned, CAIRN_I32, shapes[i][1] ? 2 : 1,
                            shapes[i], &t->tensors[i]);
    return status;
}

static cairn_status pages_new_stages(cairn_page_tables *t) {
    device *dev = &t->rt->device;
    cairn_status status = CAIRN_OK;
    for (int i = 0; i < 2 && !status; i++) {
        status = device_host_alloc(dev, pages_stage_bytes(&t->lists), "page tables",
                                &t->stages[i].memory);
        if (!status && device_is_apart(dev))
            DEV_TRY(dev, cuEventCreate(&t->stages[i].done, CU_EVENT_DISABLE_TIMING));
    }
    return status;
}

/* Everything is to be sent, for the device knows nothing yet. */
static void pages_touch_all(page_tables *t) {
    for (int r = 0; r < t->requests; r++) {
        tables_touch(t, r, 0);
        tables_touch(t, r, t->max_pages - 1);
    }
}

static cairn_status pages_tables_make(cairn_page_tables *t, const cairn_page_tables_options *o) {
    base *b = &t->rt->base;
    page_tables *lists = &t->lists;
    int page_size = o->page_size ? o->page_size : (int)t->rt->config.page_size;
    cairn_status status = tables_open(b, t->from ? &t->from->ids : NULL, o->requests, page_size,
                                      (int)(((int64_t)o->max_tokens + page_size - 1) / page_size),
                                      lists);
    if (status) return status;
    t->counts = (int32_t *)base_new(b, (size_t)o->requests, sizeof *t->counts);
    if (!t->counts) return base_no_memory(b, "page tables", (size_t)o->requests * sizeof(int32_t));
    for (int r = 0; r < lists->requests && !lists->pool; r++) tables_grow(lists, r, 1);
    pages_touch_all(lists);
    if ((status = handles_enter(t->rt))) return status;
    if (!(status = pages_new_tensors(t))) status = pages_new_stages(t);
    return handles_leave(t->rt, status);
}

static cairn_status pages_check_options(cairn_runtime *rt, const cairn_page_tables_options *o) {
    base *b = &rt->base;
    int page_size = o->page_size ? o->page_size : (int)rt->config.page_size;
    if (o->requests < 1 || o->requests > 65536)
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "page_tables: requests = %d; 1 to 65536",
                         (int)o->requests);
    if (page_size < 1 || page_size > 256)
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "page_tables: page_size = %d; 1 to 256",
                         page_size);
    if (o->max_tokens < 1 ||
        ((int64_t)o->max_tokens / page_size + 1) * o->requests > INT_MAX / 8)
        return base_fail(b, CAIRN_INVALID_ARGUMENT,
                         "page_tables: max_tokens = %d; at least 1, and %d pages in all",
                         (int)o->max_tokens, INT_MAX / 8);
    if (o->pool && o->pool->rt != rt)
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "page_tables: the pool is another runtime's");
    return CAIRN_OK;
}

cairn_status cairn_page_tables_new(cairn_runtime *rt, const cairn_page_tables_options *options,
                                   cairn_page_tables **out) {
    cairn_page_tables_options o;
    cairn_page_tables *t;
    cairn_status status = handles_need(rt, "page_tables", out, "tables");
    if (out) *out = NULL;
    if (status || (status = OPS_TAKE(rt, "page_tables", o, options))) return status;
    if ((status = pages_check_options(rt, &o))) return status;
    t = (cairn_page_tables *)base_new(&rt->base, 1, sizeof *t);
    if (!t) return base_no_memory(&rt->base, "page tables", sizeof *t);
    t->rt = rt;
    t->from = o.pool;
    if (t->from) t->from->users++;
    if ((status = pages_tables_make(t, &o))) {
        pages_tables_destroy(t);
        return status;
    }
    t->next = rt->page_tables;
    rt->page_tables = t;
    return *out = t, CAIRN_OK;
}

cairn_status cairn_page_tables_free(cairn_page_tables *t) {
    cairn_page_tables **link;
    if (!t) return CAIRN_OK;
    for (link = &t->rt->page_tables; *link != t;) link = &(*link)->next;
    *link = t->next;
    pages_tables_destroy(t);
    return CAIRN_OK;
}

static void pages_free_all(cairn_runtime *rt) {
    while (rt->page_tables) cairn_page_tables_free(rt->page_tables);
    while (rt->page_pools) {
        rt->page_pools->users = 0;
        cairn_page_pool_free(rt->page_pools);
    }
}

/* ---- tables: changes ------------------------------------------------------------------------- */

/* Each call: its list exists, then the change on the host's lists. */
#define PAGES_LISTED(name, change)                                                                 \
    cairn_status cairn_page_tables_##name(cairn_page_tables *t, const int32_t *requests,           \
                                          int count) {                                             \
        cairn_status status;                                                                       \
        if (!t) return CAIRN_INVALID_ARGUMENT;                                                     \
        status = pages_check_list(t->rt, #name, requests, count);                                  \
        return status ? status : change(&t->rt->base, &t->lists, requests, count);                 \
    }
#define PAGES_COUNTED(name)                                                                        \
    cairn_status cairn_page_tables_##name(cairn_page_tables *t, const int32_t *counts) {           \
        cairn_status status;                                                                       \
        if (!t) return CAIRN_INVALID_ARGUMENT;                                                     \
        status = pages_check_list(t->rt, #name, counts, t->lists.requests);                        \
        return status ? status : tables_##name(&t->rt->base, &t->lists, counts);                   \
    }

PAGES_LISTED(add, tables_add)
PAGES_LISTED(remove, tables_remove)
PAGES_COUNTED(insert)
PAGES_COUNTED(delete)
PAGES_COUNTED(allocate)
PAGES_COUNTED(release)

cairn_status cairn_page_tables_clear(cairn_page_tables *t) {
    return t ? tables_clear(&t->rt->base, &t->lists) : CAIRN_INVALID_ARGUMENT;
}

cairn_status cairn_page_tables_fork(cairn_page_tables *t, int from, int to) {
    return t ? tables_fork(&t->rt->base, &t->lists, from, to) : CAIRN_INVALID_ARGUMENT;
}

cairn_status cairn_page_tables_adopt(cairn_page_tables *t, int r, const int32_t *ids, int tokens) {
    cairn_status status;
    if (!t) return CAIRN_INVALID_ARGUMENT;
    status = pages_check_list(t->rt, "adopt", ids, tokens);
    return status ? status : tables_adopt(&t->rt->base, &t->lists, r, ids, tokens);
}

/* How often each request is listed, into t->counts. */
static cairn_status pages_count_listed(cairn_page_tables *t, const char *call,
                                       const int32_t *requests, int count) {
    cairn_status status = pages_check_list(t->rt, call, requests, count);
    memset(t->counts, 0, (size_t)t->lists.requests * sizeof *t->counts);
    for (int i = 0; i < count && !status; i++) {
        status = tables_check_request(&t->rt->base, &t->lists, call, requests[i], true);
        if (!status) t->counts[requests[i]]++;
    }
    return status;
}

cairn_status cairn_page_tables_allocate_for(cairn_page_tables *t, const int32_t *requests,
                                            int count) {
    cairn_status status;
    if (!t) return CAIRN_INVALID_ARGUMENT;
    status = pages_count_listed(t, "allocate_for", requests, count);
    return status ? status : tables_allocate(&t->rt->base, &t->lists, t->counts);
}

cairn_status cairn_page_tables_release_for(cairn_page_tables *t, const int32_t *requests,
                                           int count) {
    cairn_status status;
    if (!t) return CAIRN_INVALID_ARGUMENT;
    status = pages_count_listed(t, "release_for", requests, count);
    return status ? status : tables_release(&t->rt->base, &t->lists, t->counts);
}

/* ---- tables: what they say ------------------------------------------------------------------- */

static cairn_status pages_need(const cairn_page_tables *t, const char *call, const void *given,
                               const char *name) {
    return handles_need(t ? t->rt : NULL, call, given, name);
}

/* Gives a caller's struct what its size has room for. */
static cairn_status pages_show(base *b, const char *call, void *theirs, const void *ours,
                               size_t our_bytes) {
    uint32_t bytes;
    memcpy(&bytes, theirs, sizeof bytes);
    if (bytes < sizeof bytes || bytes > our_bytes)
        return base_fail(b, CAIRN_VERSION_MISMATCH,
                         "%s: struct_size is %u; set it to sizeof the struct", call, bytes);
    memcpy((char *)theirs + sizeof bytes, (const char *)ours + sizeof bytes, bytes - sizeof bytes);
    return CAIRN_OK;
}

cairn_status cairn_page_tables_lists(const cairn_page_tables *t, cairn_page_lists *lists) {
    cairn_page_lists l;
    cairn_status status = pages_need(t, "page_tables_lists", lists, "lists");
    if (status) return status;
    memset(&l, 0, sizeof l);
    l.requests = t->lists.requests;
    l.page_size = t->lists.page_size;
    l.max_pages = t->lists.max_pages;
    l.page_table = t->lists.ids;
    l.lengths = t->lists.lengths;
    l.pages = t->lists.pages;
    return pages_show(&t->rt->base, "page_tables_lists", lists, &l, sizeof l);
}

cairn_status cairn_page_tables_tensors(const cairn_page_tables *t, cairn_page_tensors *tensors) {
    cairn_page_tensors v;
    cairn_status status = pages_need(t, "page_tables_tensors", tensors, "tensors");
    if (status) return status;
    memset(&v, 0, sizeof v);
    v.page_table = &t->tensors[PAGES_TABLE]->view;
    v.lengths = &t->tensors[PAGES_LENGTHS]->view;
    v.indptr = &t->tensors[PAGES_INDPTR]->view;
    v.indices = &t->tensors[PAGES_INDICES]->view;
    v.last_page_len = &t->tensors[PAGES_LAST]->view;
    v.copies = &t->tensors[PAGES_COPIES]->view;
    return pages_show(&t->rt->base, "page_tables_tensors", tensors, &v, sizeof v);
}

cairn_status cairn_page_tables_csr(cairn_page_tables *t, int32_t *indptr, int32_t *indices,
                                   int capacity, int32_t *last_page_len) {
    const page_tables *l;
    int total = 0;
    cairn_status status = pages_need(t, "page_tables_csr", indptr, "indptr");
    if (status) return status;
    l = &t->lists;
    for (int r = 0; r < l->requests; r++) total += l->pages[r];
    if (indices && total > capacity)
        return base_fail(&t->rt->base, CAIRN_INVALID_ARGUMENT,
                         "page_tables_csr: %d pages are held, the buffer has room for %d", total,
                         capacity);
    tables_indptr(l, indptr);
    for (int r = 0; r < l->requests; r++) {
        if (indices && l->pages[r])
            memcpy(indices + indptr[r], tables_row(l, r), (size_t)l->pages[r] * sizeof *indices);
        if (last_page_len) last_page_len[r] = tables_last_page_len(l, r);
    }
    return CAIRN_OK;
}

cairn_status cairn_page_tables_copies(cairn_page_tables *t, int32_t *pairs, int *count) {
    page_tables *l;
    cairn_status status = pages_need(t, "page_tables_copies", pairs && count ? pairs : NULL,
                                       pairs ? "count" : "pairs");
    if (status) return status;
    l = &t->lists;
    *count = 0;
    for (int r = 0; r < l->requests && l->copy_count; r++) {
        if (l->copies[2 * r] < 0) continue;
        pairs[2 * *count] = l->copies[2 * r];
        pairs[2 * (*count)++ + 1] = l->copies[2 * r + 1];
    }
    l->copy_count = 0;
    return CAIRN_OK;
}

/* ---- tables: to the device ------------------------------------------------------------------- */

/* Writes what changed into the stage: a row of figures for each request, and the ids. */
static void pages_fill_stage(const page_tables *t, page_tables_row *rows) {
    int32_t *ids = (int32_t *)(void *)(rows + t->requests), begin = 0, change = 0;
    for (int r = 0; r < t->requests; r++) {
        page_tables_row *row = &rows[r];
        row->length = t->lengths[r];
        row->last_page_len = tables_last_page_len(t, r);
        row->begin = begin;
        row->pages = t->pages[r];
        row->count = t->last_changed[r] < 0 ? 0 : t->last_changed[r] - t->first_changed[r] + 1;
        row->first = row->count ? t->first_changed[r] : 0;
        row->change = change;
        row->copy_from = t->copy_count ? t->copies[2 * r] : -1;
        row->copy_to = t->copy_count ? t->copies[2 * r + 1] : -1;
        row->pad = 0;
        memcpy(ids + change, tables_row(t, r) + row->first,
               (size_t)row->count * sizeof *ids);
        begin += row->pages;
        change += row->count;
    }
}

/* The kernel's work on the CPU. */
static void pages_apply(const page_tables_params *p) {
    for (int r = 0; r < p->requests; r++) {
        const page_tables_row *row = &p->rows[r];
        int32_t *table = p->page_table + (size_t)r * (size_t)p->max_pages;
        memcpy(table + row->first, p->ids + row->change, (size_t)row->count * sizeof *table);
        memcpy(p->indices + row->begin, table, (size_t)row->pages * sizeof *table);
        p->lengths[r] = row->length;
        p->last_page_len[r] = row->last_page_len;
        p->indptr[r] = row->begin;
        p->copies[2 * r] = row->copy_from;
        p->copies[2 * r + 1] = row->copy_to;
        p->indptr[r + 1] = row->begin + row->pages;
    }
}

static int32_t *pages_data(const cairn_page_tables *t, int i) {
    return (int32_t *)tensor_data(&t->tensors[i]->view);
}

static cairn_status pages_launch_update(cairn_page_tables *t, const page_tables_params *p) {
    device_dims dims = {{0, 1, 1}, 128, 0, 0, false};
    device *dev = &t->rt->device;
    cairn_status status;
    dims.grid[0] = (unsigned)p->requests;
    status = ops_launch(t->rt, "pages/tables.cu", "update_page_tables", &dims, p);
    if (status || (status = handles_enter(t->rt))) return status;
    {
        CUresult result = dev->drv->cuEventRecord(t->stages[t->turn].done, dev->stream);
        if (result) status = driver_fail(dev->base, dev->drv, result, "cuEventRecord");
    }
    return handles_leave(t->rt, status);
}

/* That the stage whose turn it is was read to its end, without waiting for it. */
static cairn_status pages_check_stage(cairn_page_tables *t) {
    device *dev = &t->rt->device;
    CUresult result = CUDA_SUCCESS;
    cairn_status status;
    if (t->rt->capturing)
        return base_fail(dev->base, CAIRN_BUSY,
                         "page_tables_update: a graph is being captured; update before or after");
    if (!device_is_apart(dev) || !t->stages[t->turn].used) return CAIRN_OK;
    if ((status = handles_enter(t->rt))) return status;
    result = dev->drv->cuEventQuery(t->stages[t->turn].done);
    if (result == CUDA_ERROR_NOT_READY)
        status = base_fail(dev->base, CAIRN_BUSY,
                           "page_tables_update: the two updates before are not carried out yet");
    else if (result) status = driver_fail(dev->base, dev->drv, result, "cuEventQuery");
    return handles_leave(t->rt, status);
}

cairn_status cairn_page_tables_update(cairn_page_tables *t) {
    page_tables_params p;
    pages_stage *stage;
    cairn_status status = CAIRN_OK;
    if (!t) return CAIRN_INVALID_ARGUMENT;
    if ((status = pages_check_stage(t))) return status;
    stage = &t->stages[t->turn];
    pages_fill_stage(&t->lists, (page_tables_row *)stage->memory);
    memset(&p, 0, sizeof p);
    p.rows = (const page_tables_row *)stage->memory;
    p.ids = (const int32_t *)(const void *)(p.rows + t->lists.requests);
    p.page_table = pages_data(t, PAGES_TABLE);
    p.lengths = pages_data(t, PAGES_LENGTHS);
    p.indptr = pages_data(t, PAGES_INDPTR);
    p.indices = pages_data(t, PAGES_INDICES);
    p.last_page_len = pages_data(t, PAGES_LAST);
    p.copies = pages_data(t, PAGES_COPIES);
    p.requests = t->lists.requests;
    p.max_pages = t->lists.max_pages;
    if (!t->rt->device.cuda) pages_apply(&p);
    else if ((status = pages_launch_update(t, &p))) return status;
    stage->used = true;
    t->turn ^= 1;
    tables_settle(&t->lists);
    t->lists.copy_count = 0;
    return CAIRN_OK;
}

/* ---- copy_pages ------------------------------------------------------------------------------ */

static cairn_status pages_copy_cpu(device *dev, const copy_pages_params *p, int64_t n, int layers) {
    cairn_status status = CAIRN_OK;
    for (int64_t i = 0; i < n; i++) {
        int32_t from = p->copies[2 * i], to = p->copies[2 * i + 1];
        if (from == -1 || to == -1) continue;
        if (from < 0 || from >= p->pages || to < 0 || to >= p->pages) {
            ops_bad_row(dev, "copy_pages", i, "id out of range",
                        from < 0 || from >= p->pages ? from : to, &status);
            continue;
        }
        for (int layer = 0; layer < layers && from != to; layer++) {
            uint32_t *pages = p->cache + layer * p->layer_words;
            memcpy(pages + to * p->page_words, pages + from * p->page_words,
                   (size_t)p->page_words * sizeof *pages);
        }
    }
    return status;
}

/* A cache of any rank whose pages are dimension `axis`. */
static void pages_want_cache(ops_check *c, const cairn_tensor *t, int axis, copy_pages_params *p) {
    int64_t bytes;
    ops_refuse(c, t->ndim < axis + 1, "cache has rank %d; the pages are dimension %d", (int)t->ndim,
               axis);
    if (c->status) return;
    bytes = (int64_t)cairn_type_bytes(cairn_tensor_type(t));
    for (int d = axis + 1; d < t->ndim; d++) bytes *= t->shape[d];
    ops_refuse(c, bytes % 4 != 0, "a page of cache has %lld bytes; whole 4-byte words are expected",
               (long long)bytes);
    p->cache = (uint32_t *)tensor_data(t);
    p->pages = (int32_t)t->shape[axis];
    p->page_words = bytes / 4;
    p->layer_words = p->page_words * p->pages;
    p->wide = bytes % 16 == 0 && (uintptr_t)tensor_data(t) % 16 == 0;
}

cairn_status cairn_copy_pages(cairn_runtime *rt, const cairn_copy_pages_args *args) {
    cairn_copy_pages_args a;
    copy_pages_params p;
    int64_t n, layers, parts;
    spec_call s;
    if (spec_take(rt, SPEC_OF(copy_pages), &a, args, &s)) return s.c.status;
    memset(&p, 0, sizeof p);
    pages_want_cache(&s.c, a.cache, a.layers != 0, &p);
    if (s.c.status) return s.c.status;
    n = s.n[SPEC_COPIES];
    layers = a.layers ? a.cache->shape[0] : 1;
    ops_refuse(&s.c, layers > 65535, "cache has %lld layers; 65535 is the most", (long long)layers);
    if (s.c.status || !n || !layers || !p.page_words) return s.c.status;
    p.copies = (const int32_t *)tensor_data(a.copies);
    p.error = ops_error_word(&rt->device, s.c.op);
    if (!rt->device.cuda) return spec_end(rt, pages_copy_cpu(&rt->device, &p, n, (int)layers));
    parts = (p.page_words / (p.wide ? 4 : 1) + 1023) / 1024; /* four steps a thread */
    {
        device_dims dims = {{0, 0, 0}, 256, 0, 0, false};
        dims.grid[0] = (unsigned)(parts < 256 ? parts : 256);
        dims.grid[1] = (unsigned)n;
        dims.grid[2] = (unsigned)layers;
        return spec_end(rt, ops_launch(rt, "pages/tables.cu", "copy_pages", &dims, &p));
    }
}
