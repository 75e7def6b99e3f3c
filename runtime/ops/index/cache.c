/* index: index_store and index_gather. */

/* Where a slot's key stands; its scale goes to *scale. */
static uint8_t *index_slot(const index_cache_params *p, int64_t page, int64_t offset,
                           uint8_t **scale) {
    uint8_t *first = p->cache + page * p->page_size * CAIRN_INDEX_BYTES;
    *scale = first + (int64_t)p->page_size * CAIRN_INDEX_DIM + offset * 4;
    return first + offset * CAIRN_INDEX_DIM;
}

/* The slot of row r by number; NULL: none, which is said unless it is -1. */
static uint8_t *index_find_slot(device *dev, const char *op, const index_cache_params *p, int64_t r,
                                uint8_t **scale, cairn_status *status) {
    const int32_t slot = p->slots[r];
    if (slot >= 0 && slot / p->page_size < p->pages)
        return index_slot(p, slot / p->page_size, slot % p->page_size, scale);
    if (slot != -1) ops_bad_row(dev, op, r, "slot out of range", slot, status);
    return NULL;
}

static cairn_status index_store_cpu(device *dev, const index_cache_params *p) {
    cairn_status status = CAIRN_OK;
    for (int64_t r = 0; r < p->rows; r++) {
        uint8_t *scale, *key = index_find_slot(dev, "index_store", p, r, &scale, &status);
        if (!key) continue;
        memcpy(key, p->keys + r * CAIRN_INDEX_DIM, CAIRN_INDEX_DIM);
        memcpy(scale, p->scales + r, 4);
    }
    return status;
}

/* Row r gets what is in the slot, or zeros. */
static void index_take(const index_cache_params *p, int64_t r, const uint8_t *key,
                       const uint8_t *scale) {
    uint8_t *to = p->keys + r * CAIRN_INDEX_DIM;
    p->scales[r] = 0.0f;
    if (!key) memset(to, 0, CAIRN_INDEX_DIM);
    else memcpy(to, key, CAIRN_INDEX_DIM), memcpy(p->scales + r, scale, 4);
}

/* The request whose tokens row r is among, the last that begins at or before it. */
static int index_find_request(const index_cache_params *p, int64_t r) {
    int low = 0, high = p->requests;
    while (low + 1 < high) {
        const int middle = (low + high) / 2;
        if (p->cu_seqlens[middle] <= r) low = middle;
        else high = middle;
    }
    return low;
}

/* Rows of no request are left as they are. */
static void index_gather_token(device *dev, const index_cache_params *p, int64_t r,
                               cairn_status *status) {
    const int32_t *cu = p->cu_seqlens;
    uint8_t *scale = NULL, *key = NULL;
    int64_t token;
    int32_t page = -1;
    int b;
    if (p->requests < 1 || r < cu[0] || r >= cu[p->requests]) return;
    b = index_find_request(p, r);
    token = r - cu[b];
    if (token >= 0 && token / p->page_size < p->max_pages)
        page = p->page_table[(int64_t)b * p->max_pages + token / p->page_size];
    if (page >= 0 && page < p->pages) key = index_slot(p, page, token % p->page_size, &scale);
    else ops_bad_row(dev, "index_gather", r, "page out of range", page, status);
    index_take(p, r, key, scale);
}

static cairn_status index_gather_cpu(device *dev, const index_cache_params *p) {
    cairn_status status = CAIRN_OK;
    for (int64_t r = 0; r < p->rows; r++) {
        uint8_t *scale = NULL, *key;
        if (!p->slots) {
            index_gather_token(dev, p, r, &status);
            continue;
        }
        key = index_find_slot(dev, "index_gather", p, r, &scale, &status);
        index_take(p, r, key, scale);
    }
    return status;
}

static void index_cache_of(const spec_call *s, const cairn_tensor *paged, const cairn_tensor *keys,
                           const cairn_tensor *scales, const cairn_tensor *slots,
                           index_cache_params *p) {
    memset(p, 0, sizeof *p);
    p->cache = (uint8_t *)tensor_data(paged);
    p->keys = (uint8_t *)tensor_data(keys);
    p->scales = (float *)tensor_data(scales);
    p->slots = slots ? (const int32_t *)tensor_data(slots) : NULL;
    p->error = ops_error_word(s->c.dev, s->c.op);
    p->rows = (int32_t)s->n[SPEC_ROWS];
    p->pages = (int32_t)s->n[SPEC_PAGES];
    p->page_size = (int32_t)s->n[SPEC_PAGE_SIZE];
}

static cairn_status index_cache_cuda(cairn_runtime *rt, const char *entry,
                                     const index_cache_params *p) {
    device_dims dims = {{0, 1, 1}, 256, 0, 0, false};
    dims.grid[0] = ((unsigned)p->rows + 7) / 8;
    return ops_launch(rt, "index/cache.cu", entry, &dims, p);
}

cairn_status cairn_index_store(cairn_runtime *rt, const cairn_index_store_args *args) {
    cairn_index_store_args a;
    index_cache_params p;
    spec_call s;
    if (spec_take(rt, SPEC_OF(index_store), &a, args, &s) || !s.n[SPEC_ROWS]) return s.c.status;
    index_cache_of(&s, a.cache, a.keys, a.key_scales, a.slots, &p);
    return spec_end(rt, rt->device.cuda ? index_cache_cuda(rt, "index_store", &p)
                                        : index_store_cpu(&rt->device, &p));
}

cairn_status cairn_index_gather(cairn_runtime *rt, const cairn_index_gather_args *args) {
    cairn_index_gather_args a;
    index_cache_params p;
    spec_call s;
    if (spec_take(rt, SPEC_OF(index_gather), &a, args, &s)) return s.c.status;
    ops_refuse(&s.c, !a.slots == !a.page_table || !a.page_table != !a.cu_seqlens,
               "slots, or page_table and cu_seqlens, are expected");
    if (s.c.status || !s.n[SPEC_ROWS]) return s.c.status;
    index_cache_of(&s, a.cache, a.keys, a.key_scales, a.slots, &p);
    if (a.page_table) {
        p.page_table = (const int32_t *)tensor_data(a.page_table);
        p.cu_seqlens = (const int32_t *)tensor_data(a.cu_seqlens);
        p.requests = (int32_t)s.n[SPEC_REQUESTS];
        p.max_pages = (int32_t)s.n[SPEC_MAX_PAGES];
    }
    return spec_end(rt, rt->device.cuda ? index_cache_cuda(rt, "index_gather", &p)
                                        : index_gather_cpu(&rt->device, &p));
}
