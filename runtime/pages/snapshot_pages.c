/* snapshot_pages: the pages of caches to host memory, one behind the other, and back. On a GPU they
 * go through two pinned buffers: the device fills or reads one while the threads work on the other,
 * so that pageable memory is never waited for by the device. Calls pool and device. */

static size_t snapshot_stage = (size_t)8 << 20; /* bytes of a pinned buffer; tests: few */

enum { SNAPSHOT_CHUNK = 1 << 18 /* bytes that a thread takes at a time */ };

/* ---- what threads copy ------------------------------------------------------------------------*/

typedef struct snapshot_copy { uint8_t *to; const uint8_t *from; size_t bytes; } snapshot_copy;

static void snapshot_copy_chunk(void *context, int i) {
    const snapshot_copy *c = (const snapshot_copy *)context;
    size_t at = (size_t)i * SNAPSHOT_CHUNK, bytes = c->bytes - at;
    memcpy(c->to + at, c->from + at, bytes < SNAPSHOT_CHUNK ? bytes : SNAPSHOT_CHUNK);
}

/* As much as a buffer holds, at most. */
static void snapshot_copy_bytes(struct pool *threads, void *to, const void *from, size_t bytes) {
    snapshot_copy c;
    c.to = (uint8_t *)to, c.from = (const uint8_t *)from, c.bytes = bytes;
    pool_run(threads, (int)((bytes + SNAPSHOT_CHUNK - 1) / SNAPSHOT_CHUNK), snapshot_copy_chunk,
             &c);
}

/* Pages `ids` of a cache in host memory, packed one behind the other to `to`, or else from `from`. */
typedef struct snapshot_pages {
    uint8_t *kept, *to;
    const uint8_t *from;
    size_t page_bytes;
    const int32_t *ids;
} snapshot_pages;

static void snapshot_copy_page(void *context, int i) {
    const snapshot_pages *p = (const snapshot_pages *)context;
    uint8_t *page = p->kept + (size_t)p->ids[i] * p->page_bytes;
    size_t at = (size_t)i * p->page_bytes;
    if (p->to) memcpy(p->to + at, page, p->page_bytes);
    else memcpy(page, p->from + at, p->page_bytes);
}

/* The bytes that were copied. */
static size_t snapshot_copy_pages(struct pool *threads, snapshot_pages p, int count) {
    pool_run(threads, count, snapshot_copy_page, &p);
    return p.page_bytes * (size_t)count;
}

/* Two buffers for `bytes` in all; none where the host reads device memory in place. */
static cairn_status snapshot_open_stages(device *dev, size_t bytes, device_staging *stages) {
    memset(stages, 0, sizeof *stages);
    if (!device_is_apart(dev) || !bytes) return CAIRN_OK;
    return device_staging_open(dev, bytes < snapshot_stage ? bytes : snapshot_stage, stages);
}

/* Waits for what is under way, `status` telling whether something failed before. */
static cairn_status snapshot_close_stages(device *dev, device_staging *stages,
                                          cairn_status status) {
    if (!status) status = device_sync(dev);
    else device_wait(dev);
    device_staging_close(dev, stages);
    return status;
}

/* ---- to host memory ---------------------------------------------------------------------------*/

typedef struct snapshot_fetch {
    device *dev;
    uint8_t *to; /* where the next bytes go that leave a buffer, or that come without one */
    device_staging stages;
    size_t held[DEV_STAGES]; /* bytes on their way into each */
    int turn;                /* the buffer being filled */
} snapshot_fetch;

/* Room at `to` for `bytes` in all. Also after a failure it wants snapshot_fetch_close. */
static cairn_status snapshot_fetch_open(device *dev, size_t bytes, uint8_t *to,
                                        snapshot_fetch *f) {
    memset(f, 0, sizeof *f);
    f->dev = dev;
    f->to = to;
    return snapshot_open_stages(dev, bytes, &f->stages);
}

/* The buffer that was filled goes on its way, the other one is emptied and is filled next. */
static cairn_status snapshot_fetch_turn(snapshot_fetch *f) {
    cairn_status status = device_staging_submit(f->dev, &f->stages, f->turn);
    f->turn ^= 1;
    if (status || !f->held[f->turn]) return status;
    if ((status = device_staging_await(f->dev, &f->stages, f->turn))) return status;
    snapshot_copy_bytes(f->dev->pool, f->to, f->stages.memory[f->turn], f->held[f->turn]);
    f->to += f->held[f->turn];
    f->held[f->turn] = 0;
    return CAIRN_OK;
}

static cairn_status snapshot_fetch_piece(snapshot_fetch *f, const uint8_t *from, size_t bytes) {
    device *dev = f->dev;
    cairn_status status = CAIRN_OK;
    while (bytes && !status) {
        uint8_t *stage = (uint8_t *)f->stages.memory[f->turn] + f->held[f->turn];
        size_t room = f->stages.bytes - f->held[f->turn], some = bytes < room ? bytes : room;
        DEV_TRY(dev, cuMemcpyDtoHAsync(stage, device_address(from), some, dev->stream));
        f->held[f->turn] += some;
        from += some, bytes -= some;
        if (some == room) status = snapshot_fetch_turn(f);
    }
    return status;
}

/* Pages `ids` of one cache [pages, page_bytes], in their order. */
static cairn_status snapshot_fetch_pages(snapshot_fetch *f, void *kept, size_t page_bytes,
                                         const int32_t *ids, int count) {
    snapshot_pages p = {(uint8_t *)kept, f->to, NULL, page_bytes, ids};
    cairn_status status = CAIRN_OK;
    if (!f->stages.bytes) f->to += snapshot_copy_pages(f->dev->pool, p, count);
    for (int i = 0; i < count && f->stages.bytes && !status; i++)
        status = snapshot_fetch_piece(f, p.kept + (size_t)ids[i] * page_bytes, page_bytes);
    return status;
}

/* Brings what is still on its way, unless `status` says that something failed. */
static cairn_status snapshot_fetch_close(snapshot_fetch *f, cairn_status status) {
    for (int i = 0; i < DEV_STAGES && f->stages.bytes && !status; i++)
        status = snapshot_fetch_turn(f);
    return snapshot_close_stages(f->dev, &f->stages, status);
}

/* ---- and back ---------------------------------------------------------------------------------*/

typedef struct snapshot_send {
    device *dev;
    const uint8_t *from; /* what no buffer has held yet */
    size_t left;
    device_staging stages;
    size_t held, sent; /* bytes in the buffer whose turn it is; of them on their way */
    int turn;
} snapshot_send;

/* `bytes` in all, at `from`. Also after a failure it wants snapshot_send_close. */
static cairn_status snapshot_send_open(device *dev, const uint8_t *from, size_t bytes,
                                       snapshot_send *s) {
    memset(s, 0, sizeof *s);
    s->dev = dev;
    s->from = from;
    s->left = bytes;
    return snapshot_open_stages(dev, bytes, &s->stages);
}

static cairn_status snapshot_send_fill(snapshot_send *s) {
    cairn_status status = device_staging_await(s->dev, &s->stages, s->turn);
    if (status) return status;
    s->held = s->left < s->stages.bytes ? s->left : s->stages.bytes;
    snapshot_copy_bytes(s->dev->pool, s->stages.memory[s->turn], s->from, s->held);
    s->from += s->held, s->left -= s->held;
    return CAIRN_OK;
}

static cairn_status snapshot_send_piece(snapshot_send *s, uint8_t *to, size_t bytes) {
    device *dev = s->dev;
    while (bytes) {
        cairn_status status = s->held ? CAIRN_OK : snapshot_send_fill(s);
        size_t room = s->held - s->sent, some = bytes < room ? bytes : room;
        if (status) return status;
        DEV_TRY(dev, cuMemcpyHtoDAsync(device_address(to),
                                       (const uint8_t *)s->stages.memory[s->turn] + s->sent, some,
                                       dev->stream));
        s->sent += some;
        to += some, bytes -= some;
        if (s->sent < s->held) continue;
        if ((status = device_staging_submit(dev, &s->stages, s->turn))) return status;
        s->held = s->sent = 0;
        s->turn ^= 1;
    }
    return CAIRN_OK;
}

/* Pages `ids` of one cache [pages, page_bytes], in their order. */
static cairn_status snapshot_send_pages(snapshot_send *s, void *kept, size_t page_bytes,
                                        const int32_t *ids, int count) {
    snapshot_pages p = {(uint8_t *)kept, NULL, s->from, page_bytes, ids};
    cairn_status status = CAIRN_OK;
    if (!s->stages.bytes) s->from += snapshot_copy_pages(s->dev->pool, p, count);
    for (int i = 0; i < count && s->stages.bytes && !status; i++)
        status = snapshot_send_piece(s, p.kept + (size_t)ids[i] * page_bytes, page_bytes);
    return status;
}

/* Returns when the device has all, unless `status` says that something failed. */
static cairn_status snapshot_send_close(snapshot_send *s, cairn_status status) {
    return snapshot_close_stages(s->dev, &s->stages, status);
}
