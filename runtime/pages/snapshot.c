/* snapshot: sequences as bytes. The format, and the calls on page tables; sessions are in
 * engine/snapshot.c.
 *
 *     offset  bytes
 *          0  8   "CAIRNSNP"
 *          8  4   version
 *         12  4   kind: of a session, of a request of page tables
 *         16  8   bytes in all
 *         24  80  for each part: its bytes, its sum
 *        104  8   sum of the 104 bytes before
 *        112      the parts, one behind the other: identity, tokens, state, pages, extra
 *
 * Numbers are little-endian. The sum of a part is that of the sums of its chunks, so that all
 * threads take part. A snapshot is read only after every sum is right; nothing is changed
 * before everything in it was found to fit. Calls cache_hash, pool, device, pages and
 * snapshot_pages. */

enum { SNAPSHOT_VERSION = 3, SNAPSHOT_HEADER = 112, SNAPSHOT_NAME = 64 };
/* ---- numbers --------------------------------------------------------------------------------- */

static uint32_t snapshot_get32(const uint8_t *p) { return (uint32_t)base_load(p, 4); }

static void snapshot_put_ids(uint8_t *p, const int32_t *ids, int count) {
    for (int i = 0; i < count; i++) cache_store32(p + 4 * (size_t)i, (uint32_t)ids[i]);
}

static int32_t snapshot_get_id(const uint8_t *p, int i) {
    uint32_t v = snapshot_get32(p + 4 * (size_t)i);
    return v > INT32_MAX ? -1 : (int32_t)v;
}

/* ---- sums ------------------------------------------------------------------------------------ */

static uint64_t snapshot_step(uint64_t h, uint64_t word) {
    h = (h ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return h << 29 | h >> 35;
}

/* 64 bits of hash at the speed of memory. Each step is one to one in what was before it, and in the
 * word it takes: a change within one word of 8 bytes always changes the sum. */
static uint64_t snapshot_sum(const void *data, size_t bytes) {
    enum { LANES = 8 };
    const uint8_t *at = (const uint8_t *)data;
    uint64_t lanes[LANES], words[LANES] = {0}, h = bytes;
    for (int i = 0; i < LANES; i++) lanes[i] = (uint64_t)(i + 1) * UINT64_C(0xd6e8feb86659fd93);
    for (; bytes >= sizeof words; at += sizeof words, bytes -= sizeof words) {
        BASE_UNROLL
        for (int i = 0; i < LANES; i++) { /* one memcpy of 64 bytes is slow where size counts */
            memcpy(&words[i], at + 8 * i, 8);
            lanes[i] = snapshot_step(lanes[i], words[i]);
        }
    }
    memset(words, 0, sizeof words);
    if (bytes) memcpy(words, at, bytes);
    for (int i = 0; i < LANES; i++) h = snapshot_step(h, snapshot_step(lanes[i], words[i]));
    h = snapshot_step(h ^ h >> 32, 0);
    return h ^ h >> 29;
}

typedef struct snapshot_chunks {
    snapshot_reader fetch;
    const void *from;
    size_t bytes, step, count;
    uint8_t *sums, *buffers; /* [count][8], a chunk for each thread */
    int threads;
    os_atomic lost;
} snapshot_chunks;

/* A pool_task: one thread's chunks. */
static void snapshot_sum_share(void *context, int thread) {
    snapshot_chunks *c = (snapshot_chunks *)context;
    for (size_t i = (size_t)thread; i < c->count; i += (size_t)c->threads) {
        size_t at = i * c->step, bytes = c->bytes - at;
        const uint8_t *data;
        if (bytes > SNAPSHOT_CHUNK) bytes = SNAPSHOT_CHUNK;
        data = c->fetch(c->from, at, bytes,
                        c->buffers ? c->buffers + (size_t)thread * SNAPSHOT_CHUNK : NULL);
        if (data) cache_store64(c->sums + 8 * i, snapshot_sum(data, bytes));
        else os_atomic_store(&c->lost, 1);
    }
}

static const uint8_t *snapshot_fetch_memory(const void *from, uint64_t at, size_t bytes,
                                            void *buffer) {
    (void)bytes, (void)buffer;
    return (const uint8_t *)from + at;
}

static cairn_status snapshot_sum_chunks(base *b, struct pool *threads, snapshot_reader fetch,
                                        const void *from, size_t bytes, size_t every,
                                        uint64_t *sum) {
    const bool reads = fetch != snapshot_fetch_memory;
    snapshot_chunks c;
    c.step = every * SNAPSHOT_CHUNK;
    c.count = bytes / c.step + (bytes % c.step != 0);
    c.fetch = fetch;
    c.from = from;
    c.bytes = bytes;
    c.threads = pool_threads(threads);
    os_atomic_store(&c.lost, 0);
    c.sums = (uint8_t *)base_new(b, c.count, 8);
    c.buffers = NULL;
    if (reads) c.buffers = (uint8_t *)base_realloc(b, NULL, 0, (size_t)c.threads * SNAPSHOT_CHUNK);
    if (c.sums && (c.buffers || !reads)) {
        pool_run(threads, c.threads, snapshot_sum_share, &c);
        *sum = snapshot_sum(c.sums, c.count * 8);
    }
    base_delete(b, c.buffers, (size_t)c.threads, SNAPSHOT_CHUNK);
    base_delete(b, c.sums, c.count, 8);
    if (!c.sums || (!c.buffers && reads))
        return base_no_memory(b, "a snapshot's sums", (size_t)c.threads * SNAPSHOT_CHUNK);
    return os_atomic_load(&c.lost) ? CAIRN_FILE_ERROR : CAIRN_OK;
}

static cairn_status snapshot_sum_part(base *b, struct pool *threads, const uint8_t *data,
                                      size_t bytes, uint64_t *sum) {
    return snapshot_sum_chunks(b, threads, snapshot_fetch_memory, data, bytes, 1, sum);
}

/* ---- writing --------------------------------------------------------------------------------- */

static bool snapshot_add_up(snapshot *s) {
    s->total = SNAPSHOT_HEADER;
    for (int i = 0; i < SNAPSHOT_PARTS; i++) {
        if (s->bytes[i] > PTRDIFF_MAX - s->total) return false;
        s->total += s->bytes[i];
    }
    return true;
}

static void snapshot_place(snapshot *s, uint8_t *memory) {
    size_t at = SNAPSHOT_HEADER;
    s->memory = memory;
    for (int i = 0; i < SNAPSHOT_PARTS; i++) {
        s->parts[i] = memory + at;
        at += s->bytes[i];
    }
}

static cairn_status snapshot_seal(base *b, struct pool *threads, snapshot *s) {
    uint8_t *at = s->memory;
    memcpy(at, "CAIRNSNP", 8);
    cache_store32(at + 8, SNAPSHOT_VERSION);
    cache_store32(at + 12, s->kind);
    cache_store64(at + 16, s->total);
    for (int i = 0; i < SNAPSHOT_PARTS; i++) {
        uint64_t sum = 0;
        cairn_status status = snapshot_sum_part(b, threads, s->parts[i], s->bytes[i], &sum);
        if (status) return status;
        cache_store64(at + 24 + 16 * i, s->bytes[i]);
        cache_store64(at + 32 + 16 * i, sum);
    }
    cache_store64(at + 104, snapshot_sum(at, 104));
    return CAIRN_OK;
}

/* ---- reading --------------------------------------------------------------------------------- */

static cairn_status snapshot_damaged(base *b, const char *call, const char *why) {
    return base_fail(b, CAIRN_BAD_FILE, "%s: the snapshot is damaged: %s", call, why);
}

/* The header of memory [bytes] alone: magic, version, sums of the header, sizes. */
static cairn_status snapshot_read_header(base *b, const char *call, const void *memory,
                                         size_t bytes, snapshot *s) {
    uint8_t *at;
    memset(s, 0, sizeof *s);
    memcpy(&at, &memory, sizeof at); /* nothing is written through it */
    if (!memory || bytes < 12 || memcmp(at, "CAIRNSNP", 8))
        return base_fail(b, CAIRN_BAD_FILE, "%s: this is no snapshot", call);
    if (snapshot_get32(at + 8) != SNAPSHOT_VERSION)
        return base_fail(b, CAIRN_VERSION_MISMATCH,
                         "%s: the snapshot has version %u; version %d is read here", call,
                         (unsigned)snapshot_get32(at + 8), SNAPSHOT_VERSION);
    if (bytes < SNAPSHOT_HEADER) return snapshot_damaged(b, call, "it ends in its header");
    if (base_load(at + 104, 8) != snapshot_sum(at, 104))
        return snapshot_damaged(b, call, "the sum of its header is wrong");
    for (int i = 0; i < SNAPSHOT_PARTS; i++) {
        uint64_t part = base_load(at + 24 + 16 * i, 8);
        if (part > bytes) return snapshot_damaged(b, call, "it ends early");
        s->bytes[i] = (size_t)part;
    }
    s->kind = snapshot_get32(at + 12);
    if (!snapshot_add_up(s) || base_load(at + 16, 8) != s->total)
        return snapshot_damaged(b, call, "its sizes do not add up");
    if (s->total != bytes)
        return snapshot_damaged(b, call, s->total > bytes ? "it ends early" : "it goes on too long");
    snapshot_place(s, at);
    return CAIRN_OK;
}

static cairn_status snapshot_read(base *b, struct pool *threads, const char *call, uint32_t kind,
                                  const void *memory, size_t bytes, snapshot *s) {
    cairn_status status = snapshot_read_header(b, call, memory, bytes, s);
    for (int i = 0; i < SNAPSHOT_PARTS && !status; i++) {
        uint64_t sum = 0;
        status = snapshot_sum_part(b, threads, s->parts[i], s->bytes[i], &sum);
        if (!status && sum != base_load(s->memory + 32 + 16 * i, 8))
            status = snapshot_damaged(b, call, "the sum of a part is wrong");
    }
    if (status || s->kind == kind) return status;
    return base_fail(b, CAIRN_UNSUPPORTED, "%s: the snapshot is not of a %s", call,
                     kind == SNAPSHOT_OF_SESSION ? "session" : "request of page tables");
}

/* ---- requests of page tables ----------------------------------------------------------------- */

/* identity: u32 page size, u32 caches, name, then for each cache a row: u32 dtype, u32 extents of a
 * page, 0 behind them; state: u32 tokens held, u32 pages */
enum { SNAPSHOT_ROW = 4 * CAIRN_MAX_RANK };

typedef struct snapshot_request {
    cairn_page_tables *t;
    cairn_snapshot_args a;
    char name[SNAPSHOT_NAME];
} snapshot_request;

static size_t snapshot_page_bytes(const cairn_tensor *t) {
    size_t bytes = cairn_type_bytes(cairn_tensor_type(t));
    for (int d = 1; d < t->ndim; d++) bytes *= (size_t)t->shape[d];
    return bytes;
}

static cairn_status snapshot_check_caches(const char *call, const snapshot_request *q) {
    static const int64_t any[CAIRN_MAX_RANK] = {-1, -1, -1, -1, -1, -1, -1, -1};
    const page_tables *l = &q->t->lists;
    int64_t least = l->pool ? l->pool->pages : (int64_t)l->requests * l->max_pages;
    ops_check c = {NULL, NULL, CAIRN_OK};
    c.dev = &q->t->rt->device;
    c.op = call;
    ops_refuse(&c, q->a.cache_count < 0 || q->a.cache_count > 4096 ||
                       (q->a.cache_count && !q->a.caches), "cache_count = %d",
               (int)q->a.cache_count);
    for (int i = 0; i < q->a.cache_count && !c.status; i++) {
        const cairn_tensor *one = q->a.caches[i];
        char name[32];
        snprintf(name, sizeof name, "caches[%d]", i);
        ops_want_as(&c, one, name, ~0u, false,
                    one && one->ndim > 1 && one->ndim <= CAIRN_MAX_RANK ? one->ndim : 2, any);
        ops_refuse(&c, !c.status && one->shape[0] < least, "%s has %lld pages of %lld", name,
                   c.status ? 0 : (long long)one->shape[0], (long long)least);
    }
    return c.status;
}

static cairn_status snapshot_take_request(cairn_page_tables *t, const char *call,
                                          const cairn_snapshot_args *args, snapshot_request *q) {
    base *b = &t->rt->base;
    cairn_status status = OPS_TAKE(t->rt, call, q->a, args);
    const cairn_snapshot_args *a = &q->a;
    q->t = t;
    if (status) return status;
    memset(q->name, 0, sizeof q->name);
    if (a->name && strlen(a->name) >= sizeof q->name)
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "%s: the name has %llu bytes; 63 are the most",
                         call, (unsigned long long)strlen(a->name));
    if (a->name) memcpy(q->name, a->name, strlen(a->name));
    if (a->token_count < 0 || (a->token_count && !a->tokens) || (a->state_bytes && !a->state))
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "%s: token_count = %d or state_bytes = %llu "
                         "without memory", call, (int)a->token_count,
                         (unsigned long long)a->state_bytes);
    return snapshot_check_caches(call, q);
}

static void snapshot_put_identity(const snapshot_request *q, uint8_t *at) {
    cache_store32(at, (uint32_t)q->t->lists.page_size);
    cache_store32(at + 4, (uint32_t)q->a.cache_count);
    memcpy(at + 8, q->name, SNAPSHOT_NAME);
    for (int i = 0; i < q->a.cache_count; i++) {
        const cairn_tensor *one = q->a.caches[i];
        uint8_t *row = at + 8 + SNAPSHOT_NAME + SNAPSHOT_ROW * (size_t)i;
        memset(row, 0, SNAPSHOT_ROW);
        cache_store32(row, (uint32_t)cairn_tensor_type(one));
        for (int d = 1; d < one->ndim; d++) cache_store32(row + 4 * d, (uint32_t)one->shape[d]);
    }
}

static size_t snapshot_all_page_bytes(const snapshot_request *q) {
    size_t bytes = 0;
    for (int i = 0; i < q->a.cache_count; i++) bytes += snapshot_page_bytes(q->a.caches[i]);
    return bytes;
}

static cairn_status snapshot_fetch_request(const snapshot_request *q, int pages, uint8_t *to) {
    cairn_runtime *rt = q->t->rt;
    snapshot_fetch f;
    cairn_status status = handles_enter(rt);
    if (status) return status;
    status = snapshot_fetch_open(&rt->device, snapshot_all_page_bytes(q) * (size_t)pages, to, &f);
    for (int i = 0; i < q->a.cache_count && !status; i++)
        status = snapshot_fetch_pages(&f, tensor_data(q->a.caches[i]),
                                      snapshot_page_bytes(q->a.caches[i]),
                                      tables_row(&q->t->lists, q->a.request), pages);
    return handles_leave(rt, snapshot_fetch_close(&f, status));
}

static bool snapshot_wants(base *b, const char *call, const snapshot *s, const void *memory,
                           size_t capacity, size_t *bytes, cairn_status *status) {
    if (bytes) *bytes = s->total;
    *status = CAIRN_OK;
    if (!memory && !capacity && bytes) return false;
    if (memory && capacity >= s->total) return true;
    *status = base_fail(b, CAIRN_INVALID_ARGUMENT,
                        "%s: the snapshot takes %llu bytes, the memory has %llu", call,
                        (unsigned long long)s->total, memory ? (unsigned long long)capacity : 0);
    return false;
}

cairn_status cairn_page_tables_save(cairn_page_tables *t, const cairn_snapshot_args *args,
                                    void *memory, size_t capacity, size_t *bytes) {
    snapshot_request q;
    snapshot s;
    base *b;
    cairn_status status;
    int length, pages;
    if (!t) return CAIRN_INVALID_ARGUMENT;
    b = &t->rt->base;
    if ((status = snapshot_take_request(t, "page_tables_save", args, &q)) ||
        (status = tables_check_copies(b, &t->lists, "page_tables_save")) ||
        (status = tables_check_request(b, &t->lists, "page_tables_save", q.a.request, true)))
        return status;
    length = t->lists.lengths[q.a.request];
    pages = length ? tables_pages_of(&t->lists, length) : 0;
    memset(&s, 0, sizeof s);
    s.kind = SNAPSHOT_OF_REQUEST;
    s.bytes[SNAPSHOT_IDENTITY] = 8 + SNAPSHOT_NAME + SNAPSHOT_ROW * (size_t)q.a.cache_count;
    s.bytes[SNAPSHOT_TOKENS] = 4 * (size_t)q.a.token_count;
    s.bytes[SNAPSHOT_STATE] = 8;
    s.bytes[SNAPSHOT_PAGES] = snapshot_all_page_bytes(&q) * (size_t)pages;
    s.bytes[SNAPSHOT_EXTRA] = q.a.state_bytes;
    if (!snapshot_add_up(&s))
        return base_fail(b, CAIRN_UNSUPPORTED, "page_tables_save: the sizes overflow");
    if (!snapshot_wants(b, "page_tables_save", &s, memory, capacity, bytes, &status)) return status;
    snapshot_place(&s, (uint8_t *)memory);
    snapshot_put_identity(&q, s.parts[SNAPSHOT_IDENTITY]);
    snapshot_put_ids(s.parts[SNAPSHOT_TOKENS], q.a.tokens, q.a.token_count);
    cache_store32(s.parts[SNAPSHOT_STATE], (uint32_t)length);
    cache_store32(s.parts[SNAPSHOT_STATE] + 4, (uint32_t)pages);
    if (q.a.state_bytes) memcpy(s.parts[SNAPSHOT_EXTRA], q.a.state, q.a.state_bytes);
    if ((status = snapshot_fetch_request(&q, pages, s.parts[SNAPSHOT_PAGES]))) return status;
    return snapshot_seal(b, t->rt->pool, &s);
}

/* That caches[i] has pages like those whose row stands in the identity. */
static cairn_status snapshot_check_cache(base *b, const cairn_tensor *one, int i,
                                         const uint8_t *row) {
    cairn_type type = cairn_tensor_type(one);
    if (snapshot_get32(row) != (uint32_t)type)
        return base_fail(b, CAIRN_UNSUPPORTED,
                         "page_tables_load: caches[%d] has dtype %s, the snapshot's had %s", i,
                         cairn_type_name(type),
                         cairn_type_name((cairn_type)(snapshot_get32(row) & 0xff)));
    for (int d = 1; d < CAIRN_MAX_RANK; d++) {
        uint32_t theirs = snapshot_get32(row + 4 * d);
        long long ours = d < one->ndim ? (long long)one->shape[d] : 0;
        if ((uint32_t)ours != theirs)
            return base_fail(b, CAIRN_UNSUPPORTED,
                             "page_tables_load: caches[%d] has %lld in dimension %d, the "
                             "snapshot's had %u", i, ours, d, (unsigned)theirs);
    }
    return CAIRN_OK;
}

/* Every mismatch between the snapshot and what the caller has, by name. */
static cairn_status snapshot_check_identity(base *b, const snapshot_request *q,
                                            const snapshot *s) {
    cairn_status status = CAIRN_OK;
    const uint8_t *at = s->parts[SNAPSHOT_IDENTITY];
    size_t bytes = s->bytes[SNAPSHOT_IDENTITY];
    if (bytes < 8 + SNAPSHOT_NAME || s->bytes[SNAPSHOT_STATE] != 8 ||
        (bytes - 8 - SNAPSHOT_NAME) != SNAPSHOT_ROW * (uint64_t)snapshot_get32(at + 4))
        return snapshot_damaged(b, "page_tables_load", "a part has a wrong size");
    if (snapshot_get32(at) != (uint32_t)q->t->lists.page_size)
        return base_fail(b, CAIRN_UNSUPPORTED,
                         "page_tables_load: the snapshot has page size %u, the tables have %d",
                         (unsigned)snapshot_get32(at), q->t->lists.page_size);
    if (memcmp(at + 8, q->name, SNAPSHOT_NAME))
        return base_fail(b, CAIRN_UNSUPPORTED,
                         "page_tables_load: the snapshot is of '%.63s', not of '%s'",
                         (const char *)at + 8, q->name);
    if (snapshot_get32(at + 4) != (uint32_t)q->a.cache_count)
        return base_fail(b, CAIRN_UNSUPPORTED,
                         "page_tables_load: the snapshot has %u caches, there are %d",
                         (unsigned)snapshot_get32(at + 4), (int)q->a.cache_count);
    for (int i = 0; i < q->a.cache_count && !status; i++)
        status = snapshot_check_cache(b, q->a.caches[i], i,
                                      at + 8 + SNAPSHOT_NAME + SNAPSHOT_ROW * (size_t)i);
    return status;
}

/* That the sizes in it agree with each other and with what the caller wants to be filled. */
static cairn_status snapshot_check_request(base *b, const snapshot_request *q, const snapshot *s,
                                           int *length) {
    uint32_t held = snapshot_get32(s->parts[SNAPSHOT_STATE]);
    uint32_t pages = snapshot_get32(s->parts[SNAPSHOT_STATE] + 4);
    if (held > INT32_MAX || pages != (held ? (uint32_t)tables_pages_of(&q->t->lists, held) : 0) ||
        s->bytes[SNAPSHOT_PAGES] / (pages ? pages : 1) != (pages ? snapshot_all_page_bytes(q) : 0) ||
        s->bytes[SNAPSHOT_PAGES] % (pages ? pages : 1))
        return snapshot_damaged(b, "page_tables_load", "its pages are not those of its tokens");
    if (s->bytes[SNAPSHOT_TOKENS] != 4 * (size_t)q->a.token_count)
        return base_fail(b, CAIRN_INVALID_ARGUMENT,
                         "page_tables_load: the snapshot has %llu tokens, token_count is %d",
                         (unsigned long long)(s->bytes[SNAPSHOT_TOKENS] / 4),
                         (int)q->a.token_count);
    if (s->bytes[SNAPSHOT_EXTRA] != q->a.state_bytes)
        return base_fail(b, CAIRN_INVALID_ARGUMENT,
                         "page_tables_load: the snapshot has %llu bytes of state, state_bytes is "
                         "%llu", (unsigned long long)s->bytes[SNAPSHOT_EXTRA],
                         (unsigned long long)q->a.state_bytes);
    *length = (int)held;
    return CAIRN_OK;
}

static cairn_status snapshot_send_request(const snapshot_request *q, int pages,
                                          const uint8_t *from) {
    cairn_runtime *rt = q->t->rt;
    snapshot_send f;
    cairn_status status = handles_enter(rt);
    if (status) return status;
    status = snapshot_send_open(&rt->device, from, snapshot_all_page_bytes(q) * (size_t)pages, &f);
    for (int i = 0; i < q->a.cache_count && !status; i++)
        status = snapshot_send_pages(&f, tensor_data(q->a.caches[i]),
                                     snapshot_page_bytes(q->a.caches[i]),
                                     tables_row(&q->t->lists, q->a.request), pages);
    return handles_leave(rt, snapshot_send_close(&f, status));
}

cairn_status cairn_page_tables_load(cairn_page_tables *t, const cairn_snapshot_args *args,
                                    const void *memory, size_t bytes) {
    snapshot_request q;
    snapshot s;
    base *b;
    cairn_status status;
    int length = 0;
    if (!t) return CAIRN_INVALID_ARGUMENT;
    b = &t->rt->base;
    if ((status = snapshot_take_request(t, "page_tables_load", args, &q)) ||
        (status = snapshot_read(b, t->rt->pool, "page_tables_load", SNAPSHOT_OF_REQUEST, memory,
                                bytes, &s)) ||
        (status = snapshot_check_identity(b, &q, &s)) ||
        (status = snapshot_check_request(b, &q, &s, &length)) ||
        (status = tables_add(b, &t->lists, &q.a.request, 1)))
        return status;
    memset(t->counts, 0, (size_t)t->lists.requests * sizeof *t->counts);
    t->counts[q.a.request] = length;
    status = tables_insert(b, &t->lists, t->counts);
    if (!status)
        status = snapshot_send_request(&q, length ? t->lists.pages[q.a.request] : 0,
                                       s.parts[SNAPSHOT_PAGES]);
    if (status) {
        tables_remove(b, &t->lists, &q.a.request, 1);
        return status;
    }
    for (int i = 0; i < q.a.token_count; i++)
        q.a.tokens[i] = snapshot_get_id(s.parts[SNAPSHOT_TOKENS], i);
    if (q.a.state_bytes) memcpy(q.a.state, s.parts[SNAPSHOT_EXTRA], q.a.state_bytes);
    return CAIRN_OK;
}

cairn_status cairn_snapshot_describe(cairn_runtime *rt, const void *memory, size_t bytes,
                                     cairn_snapshot_info *info) {
    cairn_snapshot_info i;
    snapshot s;
    cairn_status status = handles_need(rt, "snapshot_describe", memory, "memory");
    if (!status) status = handles_need(rt, "snapshot_describe", info, "info");
    if (status || (status = snapshot_read_header(&rt->base, "snapshot_describe", memory, bytes, &s)))
        return status;
    memset(&i, 0, sizeof i);
    i.version = SNAPSHOT_VERSION;
    i.of_session = s.kind == SNAPSHOT_OF_SESSION;
    i.token_count = (int32_t)(s.bytes[SNAPSHOT_TOKENS] / 4 < INT32_MAX
                                  ? s.bytes[SNAPSHOT_TOKENS] / 4 : INT32_MAX);
    i.pages_bytes = s.bytes[SNAPSHOT_PAGES];
    i.state_bytes = s.bytes[SNAPSHOT_EXTRA];
    return pages_show(&rt->base, "snapshot_describe", info, &i, sizeof i);
}
