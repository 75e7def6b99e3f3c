/* pages: the pool of page ids, and the KV cache whose pages they name. See pages.h. */

/* ---- pool ------------------------------------------------------------------------------------ */

static void pages_close(base *b, page_pool *p) {
    base_delete(b, p->free_ids, (size_t)p->pages, sizeof *p->free_ids);
    base_delete(b, p->references, (size_t)p->pages, sizeof *p->references);
    memset(p, 0, sizeof *p);
}

/* All `pages` ids are free. pages_close: nothing is held any more. */
static cairn_status pages_open(base *b, int pages, page_pool *p) {
    memset(p, 0, sizeof *p);
    p->pages = p->free_count = pages;
    p->free_ids = (int32_t *)base_new(b, (size_t)pages, sizeof *p->free_ids);
    p->references = (int32_t *)base_new(b, (size_t)pages, sizeof *p->references);
    if (!p->free_ids || !p->references) {
        pages_close(b, p);
        return base_no_memory(b, "the page pool", (size_t)pages * 2 * sizeof(int32_t));
    }
    for (int i = 0; i < pages; i++) p->free_ids[i] = pages - 1 - i;
    return CAIRN_OK;
}

/* Writes `count` ids of one reference each, or returns false and changes nothing. */
static bool pages_take(page_pool *p, int count, int32_t *out) {
    if (count > p->free_count) return false;
    for (int i = 0; i < count; i++) {
        out[i] = p->free_ids[--p->free_count];
        p->references[out[i]] = 1;
    }
    return true;
}

static cairn_status pages_check(base *b, const page_pool *p, int32_t id) {
    if (id < 0 || id >= p->pages)
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "page %d is outside the pool of %d pages",
                         (int)id, p->pages);
    if (p->references[id] < 1)
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "page %d is not in use", (int)id);
    return CAIRN_OK;
}

/* One more reference for each of `count` ids; an id that stands twice gets two. Nothing changes
 * when one is free or out of range. */
static cairn_status pages_retain(base *b, page_pool *p, const int32_t *ids, int count) {
    cairn_status status;
    for (int i = 0; i < count; i++) {
        status = pages_check(b, p, ids[i]);
        if (!status && p->references[ids[i]] == INT32_MAX)
            status = base_fail(b, CAIRN_INVALID_ARGUMENT, "page %d has too many holders",
                               (int)ids[i]);
        if (status) {
            while (i-- > 0) p->references[ids[i]]--;
            return status;
        }
        p->references[ids[i]]++;
    }
    return CAIRN_OK;
}

/* Gives back one reference of each of `count` ids. More than are held, such as a page freed twice,
 * or an id out of range, is a mistake: nothing changes. */
static cairn_status pages_give(base *b, page_pool *p, const int32_t *ids, int count) {
    for (int i = count - 1; i >= 0; i--) { /* backwards: they are taken again in this order */
        cairn_status status = pages_check(b, p, ids[i]);
        if (status) {
            for (int j = i + 1; j < count; j++)
                if (p->references[ids[j]]++ == 0) p->free_count--;
            return status;
        }
        if (--p->references[ids[i]] == 0) p->free_ids[p->free_count++] = ids[i];
    }
    return CAIRN_OK;
}

static bool pages_shared(const page_pool *p, int32_t id) {
    return p->references[id] > 1;
}

/* ---- cache ----------------------------------------------------------------------------------- */

/* Of a slot's keys or values of one head, with their scale. */
static uint64_t pages_head_bytes(int head_dim, cairn_type type) {
    return (uint64_t)head_dim * cairn_type_bytes(type) + (type == CAIRN_E4M3 ? sizeof(float) : 0);
}

static uint64_t pages_window_bytes(int layers, int kv_heads, int head_dim, int page_size,
                                   cairn_type type) {
    return (uint64_t)layers * (uint64_t)kv_heads * 2 * (uint64_t)page_size *
           pages_head_bytes(head_dim, type);
}

static uint64_t pages_kv_bytes(int layers, int kv_heads, int head_dim, int page_size,
                               cairn_type type) {
    return pages_window_bytes(layers, kv_heads, head_dim, page_size, type) +
           (uint64_t)layers * (uint64_t)kv_heads * (uint64_t)head_dim * 2 * 2; /* bounds */
}

static uint64_t pages_latent_bytes(int layers, int page_size) {
    return (uint64_t)layers * (uint64_t)page_size * (LATENT_KEYS * 2 + CAIRN_INDEX_BYTES);
}

static size_t pages_plane_bytes(const kv_cache *kv, int plane) {
    const size_t slots = (size_t)kv->page_size;
    if (plane < kv->layers) return kv->page_bytes;
    return slots * (kv->type == CAIRN_E4M3 ? 2 * (size_t)kv->kv_heads * sizeof(float) : CAIRN_INDEX_BYTES);
}

static float *pages_scales(const kv_cache *kv, int layer) {
    return kv->type == CAIRN_E4M3 ? (float *)kv->pages[kv->layers + layer] : NULL;
}

/* The first page that a window needs of a sequence of `tokens` tokens, whatever comes next: that of
 * the first token which the next one sees, and one more, so that the first page kept is full. */
static int pages_window_first(int window, int tokens, int page_size) {
    const int page = tokens >= window ? (tokens - window + 1) / page_size : 0;
    return page > 0 ? page - 1 : 0;
}

static int pages_window_most(int window, int rows, int page_size) {
    return (window - 1 + WINDOW_SLACK + rows + page_size - 1) / page_size + 2;
}

static page_pool *pages_plane_pool(kv_cache *kv, int plane) {
    const int group = kv->groups.of[plane % kv->layers];
    return group ? &kv->window_pools[group - 1] : &kv->pool;
}

static void pages_pools_close(base *b, kv_cache *kv) {
    pages_close(b, &kv->pool);
    for (int i = 0; i < KV_WINDOWS; i++) pages_close(b, &kv->window_pools[i]);
}

static cairn_status pages_pools_open(base *b, int pages, const kv_groups *groups, kv_cache *kv) {
    cairn_status status = pages_open(b, pages, &kv->pool);
    if (groups) kv->groups = *groups;
    for (int i = 0; i < kv->groups.count && !status; i++)
        status = pages_open(b, kv->groups.pages[i], &kv->window_pools[i]);
    return status;
}

static void pages_kv_close(kv_cache *kv) {
    if (!kv->device) return;
    for (int i = 0; i < kv->planes && kv->pages; i++)
        device_free(kv->device, kv->pages[i],
                    (size_t)pages_plane_pool(kv, i)->pages * pages_plane_bytes(kv, i));
    for (int i = 0; i < kv->layers && kv->bounds; i++)
        device_free(kv->device, kv->bounds[i], (size_t)kv->pool.pages * kv->bound_bytes);
    base_delete(kv->device->base, kv->pages, (size_t)kv->planes, sizeof *kv->pages);
    base_delete(kv->device->base, kv->bounds, (size_t)kv->layers, sizeof *kv->bounds);
    pages_pools_close(kv->device->base, kv);
    memset(kv, 0, sizeof *kv);
}

static cairn_status pages_kv_allocate(kv_cache *kv) {
    cairn_status status = CAIRN_OK;
    for (int i = 0; i < kv->planes && !status; i++) {
        page_pool *own = pages_plane_pool(kv, i);
        /* Clear, since whole pages are saved, those begun too. */
        status = device_alloc_clear(kv->device, (size_t)own->pages * pages_plane_bytes(kv, i),
                                    "the KV cache", &kv->pages[i]);
        if (!status && kv->bounds && i < kv->layers && own == &kv->pool)
            status = device_alloc(kv->device, (size_t)own->pages * kv->bound_bytes,
                                  "the KV page bounds", &kv->bounds[i]);
    }
    return status;
}

/* Whose sizes are filled in; bound_bytes 0: without bounds. */
static cairn_status pages_open_planes(kv_cache *kv, int pages, const kv_groups *groups) {
    base *b = kv->device->base;
    cairn_status status;
    kv->pages = (void **)base_new(b, (size_t)kv->planes, sizeof *kv->pages);
    if (kv->bound_bytes) kv->bounds = (void **)base_new(b, (size_t)kv->layers, sizeof *kv->bounds);
    if (!kv->pages || (kv->bound_bytes && !kv->bounds))
        status = base_no_memory(b, "the KV cache", (size_t)kv->layers * 2 * sizeof(void *));
    else if (!(status = pages_pools_open(b, pages, groups, kv)))
        status = pages_kv_allocate(kv);
    if (status) pages_kv_close(kv);
    return status;
}

static cairn_status pages_groups_open(device *dev, int layers, int kv_heads, int head_dim,
                                      int page_size, cairn_type type, int pages,
                                      const kv_groups *groups, kv_cache *kv) {
    memset(kv, 0, sizeof *kv);
    kv->device = dev;
    kv->layers = layers;
    kv->type = type;
    kv->planes = type == CAIRN_E4M3 ? 2 * layers : layers;
    kv->kv_heads = kv_heads;
    kv->head_dim = head_dim;
    kv->page_size = page_size;
    kv->bound_bytes = (size_t)kv_heads * (size_t)head_dim * 2 * 2;
    kv->page_bytes = (size_t)kv_heads * (size_t)head_dim * 2 * cairn_type_bytes(type) *
                     (size_t)page_size;
    return pages_open_planes(kv, pages, groups);
}

static cairn_status pages_latent_open(device *dev, int layers, int page_size, int pages,
                                      kv_cache *kv) {
    memset(kv, 0, sizeof *kv);
    kv->device = dev;
    kv->layers = layers;
    kv->type = CAIRN_F16;
    kv->planes = 2 * layers;
    kv->kv_heads = 1;
    kv->head_dim = LATENT_KEYS;
    kv->page_size = page_size;
    kv->page_bytes = (size_t)page_size * LATENT_KEYS * 2;
    return pages_open_planes(kv, pages, NULL);
}

/* What a page holds, in every layer of its group; not its bounds, which a page that is written has
 * not. */
static cairn_status pages_kv_copy_page(kv_cache *kv, const page_pool *of, int32_t from,
                                       int32_t to) {
    cairn_status status = CAIRN_OK;
    for (int i = 0; i < kv->planes && !status; i++) {
        if (pages_plane_pool(kv, i) != of) continue;
        const size_t bytes = pages_plane_bytes(kv, i);
        uint8_t *plane = (uint8_t *)kv->pages[i];
        status = device_copy(kv->device, plane + (size_t)to * bytes, plane + (size_t)from * bytes,
                             bytes);
    }
    return status;
}
