/* The public calls on page pools and tables, and copy_pages, on the CPU and, where there is one, on
 * the GPU: the device's tensors against the host's lists, copies against memcpy, forked requests
 * against requests that share nothing.
 * emulated: asan race */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "random.h"
#include "tap.h"
#include "backends.h"

enum { REQUESTS = 5, MAX_TOKENS = 40 };

static uint64_t seed;
static cairn_runtime *rt;
static const char *where;

static uint32_t rnd(uint32_t below) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % below;
}

static bool done(cairn_status status) {
    if (status) printf("# %s: %s\n", cairn_status_name(status), cairn_last_error(rt));
    return !status;
}

static cairn_page_pool *new_pool(int pages) {
    cairn_page_pool *p = NULL;
    done(cairn_page_pool_new(rt, pages, &p));
    return p;
}

static cairn_page_tables *new_tables(cairn_page_pool *p, int page_size) {
    cairn_page_tables *t = NULL;
    cairn_page_tables_options o;
    memset(&o, 0, sizeof o);
    o.struct_size = sizeof o;
    o.requests = REQUESTS, o.max_tokens = MAX_TOKENS, o.page_size = page_size, o.pool = p;
    done(cairn_page_tables_new(rt, &o, &t));
    return t;
}

static cairn_page_tensors tensors_of(cairn_page_tables *t) {
    cairn_page_tensors v;
    memset(&v, 0, sizeof v);
    v.struct_size = sizeof v;
    done(cairn_page_tables_tensors(t, &v));
    return v;
}

static cairn_page_lists lists_of(cairn_page_tables *t) {
    cairn_page_lists l;
    memset(&l, 0, sizeof l);
    l.struct_size = sizeof l;
    done(cairn_page_tables_lists(t, &l));
    return l;
}

static void read_back(const cairn_tensor *t, int32_t *out) {
    done(cairn_tensor_read(rt, t, out, (size_t)tensor_elements(t) * sizeof *out));
}

/* ---- the device's tables --------------------------------------------------------------------- */

/* Every tensor, after an update, as the host's lists say; lists of -1 where nothing is. */
static bool device_agrees(cairn_page_tables *t, const int32_t *pairs) {
    static int32_t table[REQUESTS * MAX_TOKENS], indices[REQUESTS * MAX_TOKENS];
    int32_t lengths[REQUESTS], indptr[REQUESTS + 1], last[REQUESTS], copies[2 * REQUESTS];
    int32_t host_indptr[REQUESTS + 1], host_indices[REQUESTS * MAX_TOKENS], host_last[REQUESTS];
    cairn_page_tensors v = tensors_of(t);
    cairn_page_lists l = lists_of(t);
    int at = 0;
    read_back(v.page_table, table), read_back(v.indices, indices), read_back(v.indptr, indptr);
    read_back(v.lengths, lengths), read_back(v.last_page_len, last), read_back(v.copies, copies);
    if (memcmp(table, l.page_table, (size_t)l.requests * (size_t)l.max_pages * 4)) return false;
    if (memcmp(lengths, l.lengths, sizeof lengths) || memcmp(copies, pairs, sizeof copies))
        return false;
    for (int r = 0; r < REQUESTS; r++) {
        if (indptr[r] != at) return false;
        for (int c = 0; c < l.pages[r]; c++)
            if (indices[at++] != l.page_table[r * l.max_pages + c]) return false;
        if (last[r] != (lengths[r] ? (lengths[r] - 1) % l.page_size + 1 : 0)) return false;
    }
    if (cairn_page_tables_csr(t, host_indptr, host_indices, REQUESTS * MAX_TOKENS, host_last))
        return false;
    return indptr[REQUESTS] == at && !memcmp(host_indptr, indptr, sizeof indptr) &&
           !memcmp(host_indices, indices, (size_t)at * 4) && !memcmp(host_last, last, sizeof last);
}

static void random_change(cairn_page_tables *t) {
    int32_t counts[REQUESTS] = {0}, one = (int32_t)rnd(REQUESTS);
    cairn_page_lists l = lists_of(t);
    for (int r = 0; r < REQUESTS; r++) counts[r] = l.pages[r] ? (int32_t)rnd(4) : 0;
    switch (rnd(12)) {
        case 0: cairn_page_tables_add(t, &one, 1); break;
        case 1: cairn_page_tables_remove(t, &one, 1); break;
        case 2: case 3: cairn_page_tables_fork(t, one, (int)rnd(REQUESTS)); break;
        case 4: cairn_page_tables_delete(t, counts); break;
        case 5: if (!rnd(4)) cairn_page_tables_allocate_for(t, &one, 1); break;
        default: cairn_page_tables_insert(t, counts);
    }
}

static void test_device(int page_size, int pages) {
    cairn_page_pool *p = pages ? new_pool(pages) : NULL;
    cairn_page_tables *t = new_tables(p, page_size);
    int good = 0, runs = 0, copied = 0;
    bool copies = pages && page_size > 1; /* a page of one token is never shared half full */
    for (; t && (runs < 160 || (copies && !copied && runs < 9999)); runs++) {
        int32_t pairs[2 * REQUESTS];
        for (int n = (int)rnd(4); n > 0; n--) random_change(t);
        memset(pairs, 0xff, sizeof pairs);
        if (t->lists.copy_count) memcpy(pairs, t->lists.copies, sizeof pairs), copied++;
        good += done(cairn_page_tables_update(t)) && device_agrees(t, pairs);
    }
    tap_ok(runs >= 160 && good == runs && (copied > 0 || !copies), "tables on %s, page size %d, %s: %d of %d "
           "updates as the host's lists, %d with copies", where, page_size,
           pages ? "pool" : "deterministic", good, runs, copied);
    tap_ok(!pages || cairn_page_pool_free(p) == CAIRN_BUSY, "a pool in use is not freed");
    cairn_page_tables_free(t);
    tap_ok(!pages || cairn_page_pool_free_pages(p) == pages, "freed tables give their pages back");
    done(cairn_page_pool_free(p));
}

/* ---- copies ---------------------------------------------------------------------------------- */

static void test_copy_pages(bool layers, int page_bytes) {
    const int64_t shape[3] = {layers ? 3 : 12, layers ? 12 : page_bytes, page_bytes};
    const int64_t pair_shape[2] = {6, 2};
    const int count = layers ? 3 : 1, all = count * 12 * page_bytes;
    int32_t pairs[12] = {3, 7, -1, 2, 3, 8, 5, -1, 0, 11, 4, 6};
    uint8_t *want = (uint8_t *)malloc((size_t)all), *got = (uint8_t *)malloc((size_t)all);
    cairn_tensor *kept = NULL, *copies = NULL;
    cairn_copy_pages_args a;
    cairn_status status;
    cairn_tensor_new(rt, CAIRN_U8, layers ? 3 : 2, shape, &kept);
    cairn_tensor_new(rt, CAIRN_I32, 2, pair_shape, &copies);
    for (int i = 0; i < all; i++) want[i] = (uint8_t)rnd(256);
    done(cairn_tensor_write(rt, kept, want, (size_t)all));
    done(cairn_tensor_write(rt, copies, pairs, sizeof pairs));
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a, a.layers = layers, a.cache = kept, a.copies = copies;
    status = cairn_copy_pages(rt, &a);
    for (int i = 0; i < 6; i++)
        for (int layer = 0; layer < count && pairs[2 * i] >= 0 && pairs[2 * i + 1] >= 0; layer++)
            memcpy(want + (layer * 12 + pairs[2 * i + 1]) * page_bytes,
                   want + (layer * 12 + pairs[2 * i]) * page_bytes, (size_t)page_bytes);
    done(cairn_tensor_read(rt, kept, got, (size_t)all));
    tap_ok(!status && !memcmp(want, got, (size_t)all), "copy_pages on %s: pages of %d bytes%s",
           where, page_bytes, layers ? ", 3 layers" : "");
    pairs[9] = 12; /* out of range: skipped, the others are copied */
    done(cairn_tensor_write(rt, copies, pairs, sizeof pairs));
    status = cairn_copy_pages(rt, &a);
    if (!status) status = cairn_sync(rt);
    cairn_tensor_read(rt, kept, got, (size_t)all);
    tap_ok(status == CAIRN_BAD_DATA && !memcmp(want, got, (size_t)all), "copy_pages on %s: page 12 "
           "of 12 is reported", where);
    a.cache = NULL;
    tap_ok(cairn_copy_pages(rt, &a) == CAIRN_INVALID_ARGUMENT, "%s", cairn_last_error(rt));
    cairn_tensor_free(rt, kept), cairn_tensor_free(rt, copies);
    free(want), free(got);
}

/* ---- requests that share pages, through the ops ---------------------------------------------- */

enum { HEADS = 2, DIM = 32, LANES = HEADS * DIM };

typedef struct side { /* one set of tables with its cache */
    cairn_page_pool *pool;
    cairn_page_tables *tables;
    cairn_tensor *cache;
} side;

static cairn_tensor *tensor_of(cairn_type type, int rank, int64_t a, int64_t b, int64_t c,
                               int64_t d, int64_t e) {
    int64_t shape[5];
    cairn_tensor *t = NULL;
    shape[0] = a, shape[1] = b, shape[2] = c, shape[3] = d, shape[4] = e;
    done(cairn_tensor_new(rt, type, rank, shape, &t));
    return t;
}

static cairn_pages pages_of(const side *s, const cairn_tensor *sequences,
                            const cairn_tensor *positions) {
    cairn_pages p;
    p.cache = s->cache;
    p.page_table = tensors_of(s->tables).page_table;
    p.sequences = sequences, p.positions = positions;
    return p;
}

/* Appends rows [n] of requests at positions, after the copies that are due. */
static bool append(side *s, cairn_tensor *k, cairn_tensor *sequences, cairn_tensor *positions) {
    cairn_copy_pages_args c;
    cairn_kv_append_args a;
    memset(&c, 0, sizeof c), memset(&a, 0, sizeof a);
    c.struct_size = sizeof c, c.cache = s->cache, c.copies = tensors_of(s->tables).copies;
    a.struct_size = sizeof a, a.pages = pages_of(s, sequences, positions), a.k = k, a.v = k;
    return done(cairn_page_tables_update(s->tables)) && done(cairn_copy_pages(rt, &c)) &&
           done(cairn_kv_append(rt, &a));
}

/* The rows' attention, [n, HEADS, DIM]. */
static bool attend(side *s, cairn_tensor *q, cairn_tensor *sequences, cairn_tensor *positions,
                   float *out) {
    cairn_attend_args a;
    int64_t n = q->shape[0];
    cairn_tensor *to = tensor_of(CAIRN_F32, 3, n, HEADS, DIM, 0, 0);
    bool fine;
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a, a.pages = pages_of(s, sequences, positions), a.q = q, a.out = to;
    fine = done(cairn_attend(rt, &a)) &&
           done(cairn_tensor_read(rt, to, out, (size_t)n * LANES * sizeof *out));
    cairn_tensor_free(rt, to);
    return fine;
}

/* The keys and values of request r in its order, [length, 2, HEADS, DIM], as the cache has them. */
static void gather(side *s, int r, uint16_t *out) {
    cairn_page_lists l = lists_of(s->tables);
    size_t halves = (size_t)tensor_elements(s->cache), page = 2 * HEADS * DIM * (size_t)l.page_size;
    uint16_t *all = (uint16_t *)malloc(halves * 2);
    done(cairn_tensor_read(rt, s->cache, all, halves * 2));
    for (int i = 0; i < l.lengths[r]; i++)
        for (int part = 0; part < 2 * HEADS; part++)
            memcpy(out + (i * 2 * HEADS + part) * DIM,
                   all + (size_t)l.page_table[r * l.max_pages + i / l.page_size] * page +
                       (size_t)(part * l.page_size + i % l.page_size) * DIM, DIM * 2);
    free(all);
}

static bool same_caches(side *a, side *b, const bool *live, const int *length) {
    static uint16_t tokens[2][MAX_TOKENS * 2 * LANES];
    for (int r = 0; r < REQUESTS; r++) {
        if (!live[r]) continue;
        gather(a, r, tokens[0]), gather(b, r, tokens[1]);
        if (memcmp(tokens[0], tokens[1], (size_t)length[r] * 2 * LANES * 2)) return false;
    }
    return true;
}

/* One random token for each live request, on both sides; both then hold and say the same. */
static bool token_for_all(side *shared, side *plain, const bool *live, int *length) {
    static float out[2][REQUESTS * LANES];
    float k[REQUESTS * LANES];
    int32_t rows[REQUESTS], at[REQUESTS], one[REQUESTS] = {0};
    cairn_tensor *keys, *sequences, *positions;
    bool fine;
    int n = 0;
    for (int r = 0; r < REQUESTS; r++)
        if (live[r]) rows[n] = r, at[n++] = length[r], one[r] = 1;
    for (int i = 0; i < n * LANES; i++) k[i] = (float)rnd(1000) / 500 - 1;
    keys = tensor_of(CAIRN_F32, 3, n, HEADS, DIM, 0, 0);
    sequences = tensor_of(CAIRN_I32, 1, n, 0, 0, 0, 0);
    positions = tensor_of(CAIRN_I32, 1, n, 0, 0, 0, 0);
    fine = done(cairn_tensor_write(rt, keys, k, (size_t)n * LANES * 4)) &&
           done(cairn_tensor_write(rt, sequences, rows, (size_t)n * 4)) &&
           done(cairn_tensor_write(rt, positions, at, (size_t)n * 4)) &&
           done(cairn_page_tables_insert(shared->tables, one)) &&
           done(cairn_page_tables_insert(plain->tables, one)) &&
           append(shared, keys, sequences, positions) && append(plain, keys, sequences, positions);
    for (int r = 0; r < REQUESTS; r++) length[r] += live[r];
    fine = fine && same_caches(shared, plain, live, length);
    if (fine && shared->tables->lists.page_size % 16 == 0) /* what attend takes */
        fine = attend(shared, keys, sequences, positions, out[0]) &&
               attend(plain, keys, sequences, positions, out[1]) &&
               !memcmp(out[0], out[1], (size_t)n * LANES * 4);
    cairn_tensor_free(rt, keys), cairn_tensor_free(rt, sequences), cairn_tensor_free(rt, positions);
    return fine;
}

/* The plain side copies a whole request by giving it the same pages' bytes. */
static bool copy_request(side *s, int from, int to, int length, int page_size) {
    cairn_page_lists l = lists_of(s->tables);
    int32_t pairs[2 * MAX_TOKENS], tokens[REQUESTS] = {0};
    int n = (length + page_size - 1) / page_size;
    cairn_tensor *copies = tensor_of(CAIRN_I32, 2, n, 2, 0, 0, 0);
    cairn_copy_pages_args c;
    bool fine;
    for (int i = 0; i < n; i++) {
        pairs[2 * i] = l.page_table[from * l.max_pages + i];
        pairs[2 * i + 1] = to * l.max_pages + i;
    }
    tokens[to] = length;
    memset(&c, 0, sizeof c);
    c.struct_size = sizeof c, c.cache = s->cache, c.copies = copies;
    fine = done(cairn_page_tables_insert(s->tables, tokens)) &&
           done(cairn_tensor_write(rt, copies, pairs, (size_t)n * 8)) &&
           done(cairn_copy_pages(rt, &c));
    cairn_tensor_free(rt, copies);
    return fine;
}

static void test_forks_attend(int page_size) {
    bool live[REQUESTS] = {true}, fine;
    int length[REQUESTS] = {0}, steps = 0, pages = (MAX_TOKENS + page_size - 1) / page_size;
    const int32_t first = 0;
    side shared, plain;
    shared.pool = new_pool(REQUESTS * pages), plain.pool = NULL;
    shared.tables = new_tables(shared.pool, page_size), plain.tables = new_tables(NULL, page_size);
    shared.cache = tensor_of(CAIRN_F16, 5, REQUESTS * pages, 2, HEADS, page_size, DIM);
    plain.cache = tensor_of(CAIRN_F16, 5, REQUESTS * pages, 2, HEADS, page_size, DIM);
    fine = done(cairn_page_tables_add(shared.tables, &first, 1));
    for (; steps < (rt->device.cuda ? 16 : 24) && fine; steps++) {
        int from, to = 0;
        while (to < REQUESTS && live[to]) to++;
        from = (int)rnd((uint32_t)to);
        fine = token_for_all(&shared, &plain, live, length);
        if (!fine || to == REQUESTS || !rnd(3)) continue;
        fine = done(cairn_page_tables_fork(shared.tables, from, to)) &&
               copy_request(&plain, from, to, length[from], page_size);
        live[to] = true, length[to] = length[from];
    }
    tap_ok(fine && live[1] + live[2] + live[3] > 1, "forks on %s, page size %d: attend as "
           "without sharing after %d tokens", where, page_size, steps);
    cairn_page_tables_free(shared.tables), cairn_page_tables_free(plain.tables);
    cairn_tensor_free(rt, shared.cache), cairn_tensor_free(rt, plain.cache);
    cairn_page_pool_free(shared.pool);
}

/* ---- snapshots of a request ------------------------------------------------------------------ */

enum { LAYERS = 3, STATE = 100, TOKENS = 23 };

/* Two caches of one dtype and one of another, filled with noise. */
typedef struct many { cairn_page_tables *tables; cairn_tensor *caches[LAYERS]; } many;

static many new_many(cairn_page_pool *from, int page_size, int pages) {
    many m;
    m.tables = new_tables(from, page_size);
    for (int i = 0; i < LAYERS; i++) {
        cairn_type type = i < 2 ? CAIRN_F16 : CAIRN_U8;
        size_t bytes = (size_t)(pages * page_size * 8) * cairn_type_bytes(type);
        uint8_t *noise = (uint8_t *)malloc(bytes);
        m.caches[i] = tensor_of(type, 3, pages, page_size, 8, 0, 0);
        for (size_t j = 0; j < bytes; j++) noise[j] = (uint8_t)rnd(256);
        done(cairn_tensor_write(rt, m.caches[i], noise, bytes));
        free(noise);
    }
    return m;
}

static void free_many(many *m) {
    cairn_page_tables_free(m->tables);
    for (int i = 0; i < LAYERS; i++) cairn_tensor_free(rt, m->caches[i]);
}

/* The bytes of token i of request r in each cache. */
static void token_bytes(many *m, int r, int i, uint8_t *out) {
    cairn_page_lists l = lists_of(m->tables);
    for (int layer = 0; layer < LAYERS; layer++) {
        size_t row = 8 * cairn_type_bytes(cairn_tensor_type(m->caches[layer]));
        size_t all = (size_t)tensor_elements(m->caches[layer]) / 8 * row;
        uint8_t *bytes = (uint8_t *)malloc(all);
        size_t page = (size_t)l.page_table[r * l.max_pages + i / l.page_size];
        done(cairn_tensor_read(rt, m->caches[layer], bytes, all));
        memcpy(out + layer * 16, bytes + (page * (size_t)l.page_size + (size_t)(i % l.page_size)) * row,
               row);
        free(bytes);
    }
}

static bool same_request(many *a, int ra, many *b, int rb, int length) {
    for (int i = 0; i < length; i++) {
        uint8_t x[LAYERS * 16] = {0}, y[LAYERS * 16] = {0};
        token_bytes(a, ra, i, x), token_bytes(b, rb, i, y);
        if (memcmp(x, y, sizeof x)) return false;
    }
    return lists_of(a->tables).lengths[ra] == length && lists_of(b->tables).lengths[rb] == length;
}

static cairn_snapshot_args snapshot_args(many *m, int r, int32_t *tokens, uint8_t *state) {
    cairn_snapshot_args a;
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a;
    a.request = r, a.name = "some model", a.caches = m->caches, a.cache_count = LAYERS;
    a.token_count = TOKENS, a.tokens = tokens, a.state = state, a.state_bytes = STATE;
    return a;
}

static bool load_refused(many *m, const cairn_snapshot_args *a, const uint8_t *data, size_t size,
                         cairn_status want, const char *says) {
    int pages = lists_of(m->tables).pages[a->request];
    cairn_status got = cairn_page_tables_load(m->tables, a, data, size);
    bool fine = got == want && strstr(cairn_last_error(rt), says) &&
                lists_of(m->tables).pages[a->request] == pages && a->tokens[0] == -7;
    if (!fine) printf("# %s, not %s: %s\n", cairn_status_name(got), says, cairn_last_error(rt));
    return fine;
}

static void test_refusals(many *to, cairn_snapshot_args *b, uint8_t *data, size_t size) {
    cairn_snapshot_args wrong = *b;
    cairn_tensor *swapped[LAYERS], turned;
    int64_t turned_shape[3] = {0, 8, 4};
    many coarse = new_many(NULL, 8, 5 * REQUESTS);
    int found = 0, runs = 300;
    bool fine;
    for (int i = 0; i < runs; i++) {
        size_t at = rnd((uint32_t)size);
        uint8_t bit = (uint8_t)(1 << rnd(8));
        data[at] ^= bit;
        found += load_refused(to, b, data, size, at >= 8 && at < 12 ? CAIRN_VERSION_MISMATCH
                                                                   : CAIRN_BAD_FILE, "");
        data[at] ^= bit;
    }
    tap_ok(found == runs, "snapshot of a request on %s: %d of %d flipped bits found", where, found,
           runs);
    fine = load_refused(to, b, data, size - 1, CAIRN_BAD_FILE, "ends early");
    wrong.name = "other model";
    fine = fine && load_refused(to, &wrong, data, size, CAIRN_UNSUPPORTED, "'some model', not");
    wrong = *b, wrong.cache_count = 2;
    fine = fine && load_refused(to, &wrong, data, size, CAIRN_UNSUPPORTED, "3 caches, there are 2");
    wrong = *b, wrong.token_count = 1;
    fine = fine && load_refused(to, &wrong, data, size, CAIRN_INVALID_ARGUMENT, "23 tokens");
    wrong = *b, wrong.state_bytes = 1;
    fine = fine && load_refused(to, &wrong, data, size, CAIRN_INVALID_ARGUMENT, "100 bytes");
    swapped[0] = to->caches[0], swapped[1] = to->caches[2], swapped[2] = to->caches[1];
    wrong = *b, wrong.caches = swapped;
    fine = fine && load_refused(to, &wrong, data, size, CAIRN_UNSUPPORTED, "dtype u8");
    turned = *to->caches[2], turned.shape = turned_shape; /* as many bytes */
    turned_shape[0] = to->caches[2]->shape[0];
    swapped[1] = to->caches[1], swapped[2] = &turned;
    wrong = *b, wrong.caches = swapped;
    fine = fine && load_refused(to, &wrong, data, size, CAIRN_UNSUPPORTED, "has 8 in dimension 1");
    wrong = *b, wrong.request = REQUESTS;
    fine = fine && cairn_page_tables_load(to->tables, &wrong, data, size) == CAIRN_INVALID_ARGUMENT;
    wrong = *b, wrong.caches = coarse.caches, wrong.request = 0;
    fine = fine && load_refused(&coarse, &wrong, data, size, CAIRN_UNSUPPORTED, "page size 4");
    tap_ok(fine, "and what is not as it was saved, by name");
    free_many(&coarse);
}

/* What its writer never made, with sums that are right. */
typedef enum forgery { OF_SESSION, TOTAL, IDENTITY, STATE_BYTES, PAGE_BYTES, HELD, PAGES_HELD } forgery;

static bool forged_refused(many *to, const cairn_snapshot_args *b, const uint8_t *data, size_t size,
                           forgery what, cairn_status want, const char *says) {
    snapshot was, s;
    uint8_t *memory;
    bool fine;
    if (snapshot_read_header(&rt->base, "test", data, size, &was)) return false;
    s = was;
    if (what == OF_SESSION) s.kind = SNAPSHOT_OF_SESSION;
    if (what == IDENTITY) s.bytes[SNAPSHOT_IDENTITY] += 4;
    if (what == STATE_BYTES) s.bytes[SNAPSHOT_STATE] = 4;
    if (what == PAGE_BYTES) s.bytes[SNAPSHOT_PAGES]--;
    snapshot_add_up(&s);
    memory = (uint8_t *)calloc(1, s.total);
    snapshot_place(&s, memory);
    for (int i = 0; i < SNAPSHOT_PARTS; i++)
        memcpy(s.parts[i], was.parts[i], s.bytes[i] < was.bytes[i] ? s.bytes[i] : was.bytes[i]);
    if (what == HELD) cache_store32(s.parts[SNAPSHOT_STATE], 0xffffffffu);
    if (what == PAGES_HELD) cache_store32(s.parts[SNAPSHOT_STATE] + 4, 7);
    fine = !snapshot_seal(&rt->base, rt->pool, &s);
    if (what == TOTAL) {
        cache_store64(memory + 16, s.total + 1);
        cache_store64(memory + 104, snapshot_sum(memory, 104));
    }
    fine = fine && load_refused(to, b, memory, s.total, want, says);
    free(memory);
    return fine;
}

static void test_forged(many *to, const cairn_snapshot_args *b, const uint8_t *data, size_t size) {
    static const struct { forgery what; const char *says; } damaged[] = {
        {TOTAL, "its sizes do not add up"}, {IDENTITY, "a part has a wrong size"},
        {STATE_BYTES, "a part has a wrong size"}, {PAGE_BYTES, "its pages are not those of its tokens"},
        {HELD, "its pages are not those of its tokens"}, {PAGES_HELD, "its pages are not those of its tokens"}};
    bool fine = forged_refused(to, b, data, size, OF_SESSION, CAIRN_UNSUPPORTED,
                               "the snapshot is not of a request of page tables");
    for (size_t i = 0; i < BASE_COUNT(damaged); i++)
        fine = forged_refused(to, b, data, size, damaged[i].what, CAIRN_BAD_FILE, damaged[i].says) && fine;
    tap_ok(fine, "a snapshot on %s whose sums are right and whose sizes are not: nothing is taken of it", where);
}

static void test_request_snapshot(void) {
    cairn_page_pool *p = new_pool(60);
    many from = new_many(p, 4, 60), to = new_many(NULL, 4, 10 * REQUESTS);
    int32_t tokens[TOKENS], got[TOKENS], counts[REQUESTS] = {0, TOKENS, 0, 0, 0};
    static const int32_t two[] = {3, 1}, last[] = {4};
    uint8_t state[STATE], loaded[STATE] = {0}, *data;
    cairn_snapshot_args a, b;
    cairn_snapshot_info info;
    size_t size = 0;
    bool fine = done(cairn_page_tables_add(from.tables, two, 2)) &&
                done(cairn_page_tables_insert(from.tables, counts)) &&
                done(cairn_page_tables_remove(to.tables, last, 1));
    for (int i = 0; i < TOKENS; i++) tokens[i] = (int32_t)rnd(1u << 30), got[i] = -7;
    for (int i = 0; i < STATE; i++) state[i] = (uint8_t)rnd(256);
    a = snapshot_args(&from, 1, tokens, state);
    fine = fine && done(cairn_page_tables_save(from.tables, &a, NULL, 0, &size));
    data = (uint8_t *)malloc(size);
    fine = fine && cairn_page_tables_save(from.tables, &a, data, size - 1, NULL) &&
           done(cairn_page_tables_save(from.tables, &a, data, size, NULL));
    info.struct_size = sizeof info;
    fine = fine && done(cairn_snapshot_describe(rt, data, size, &info)) && info.version == 3 &&
           !info.of_session && info.token_count == TOKENS && info.state_bytes == STATE &&
           info.pages_bytes == 6 * 4 * 8 * 5;
    b = snapshot_args(&to, 4, got, loaded);
    test_refusals(&to, &b, data, size);
    test_forged(&to, &b, data, size);
    fine = fine && done(cairn_page_tables_load(to.tables, &b, data, size)) &&
           !memcmp(got, tokens, sizeof got) && !memcmp(b.state, state, STATE) &&
           same_request(&from, 1, &to, 4, TOKENS);
    tap_ok(fine, "a request on %s, from a pool to tables without one: tokens, state and pages", where);
    a.request = 3; /* live, empty */
    size = 0;
    fine = done(cairn_page_tables_save(from.tables, &a, NULL, 0, &size));
    data = (uint8_t *)realloc(data, size);
    a.request = 3;
    fine = fine && done(cairn_page_tables_save(from.tables, &a, data, size, NULL));
    a.request = 0;
    fine = fine && done(cairn_page_tables_load(from.tables, &a, data, size)) &&
           lists_of(from.tables).lengths[0] == 0 && lists_of(from.tables).pages[0] == 1;
    tap_ok(fine, "an empty request, too");
    free(data);
    free_many(&from), free_many(&to);
    cairn_page_pool_free(p);
}

/* ---- no waiting ------------------------------------------------------------------------------ */

static int waits;
static CUresult busy_query(CUevent e) { (void)e; return CUDA_ERROR_NOT_READY; }
static CUresult count_sync(CUstream s) { (void)s; waits++; return CUDA_SUCCESS; }
static CUresult count_event(CUevent e) { (void)e; waits++; return CUDA_SUCCESS; }
static CUresult count_alloc(CUdeviceptr *p, size_t n) { (void)p, (void)n; waits++; return 2; }
static CUresult count_host(void **p, size_t n, unsigned f) { (void)p, (void)n, (void)f; waits++; return 2; }

static void test_busy(void) {
    cairn_page_tables *t = new_tables(NULL, 4);
    const int32_t two[REQUESTS] = {2, 2, 2, 2, 2};
    int32_t nothing[2 * REQUESTS];
    driver_calls kept = rt->drv;
    bool fine;
    memset(nothing, 0xff, sizeof nothing);
    done(cairn_page_tables_update(t)); /* compiles */
    rt->drv.cuStreamSynchronize = count_sync, rt->drv.cuEventSynchronize = count_event;
    rt->drv.cuMemAlloc = count_alloc, rt->drv.cuMemHostAlloc = count_host;
    waits = 0;
    fine = done(cairn_page_tables_update(t)); /* the other stage, for the first time */
    rt->drv.cuEventQuery = busy_query;
    fine = fine && done(cairn_page_tables_insert(t, two)) &&
           cairn_page_tables_update(t) == CAIRN_BUSY;
    printf("# %s\n", cairn_last_error(rt));
    tap_ok(fine && !waits, "both uploads in flight on %s: BUSY, no wait, no allocation", where);
    rt->drv = kept;
    done(cairn_sync(rt)); /* else it may be busy in earnest */
    done(cairn_page_tables_update(t));
    tap_ok(device_agrees(t, nothing), "and the next one brings what that did not");
    fine = !cairn_graph_begin(rt) && cairn_page_tables_update(t) == CAIRN_BUSY;
    {
        cairn_graph *g = NULL;
        if (!cairn_graph_end(rt, &g)) cairn_graph_free(rt, g);
    }
    tap_ok(fine, "inside a capture on %s: BUSY", where);
    cairn_page_tables_free(t);
}

/* ---- wrong use ------------------------------------------------------------------------------- */

static cairn_status options_status(int requests, int max_tokens, int page_size) {
    cairn_page_tables *t;
    cairn_page_tables_options o;
    memset(&o, 0, sizeof o);
    o.struct_size = sizeof o;
    o.requests = requests, o.max_tokens = max_tokens, o.page_size = page_size;
    return cairn_page_tables_new(rt, &o, &t);
}

static void test_wrong(void) {
    cairn_page_pool *p = NULL;
    int32_t ids[4] = {0};
    tap_ok(cairn_page_pool_new(rt, 0, &p) == CAIRN_INVALID_ARGUMENT && !p, "no pool of 0 pages");
    p = new_pool(3);
    tap_ok(cairn_page_pool_take(p, 4, ids) == CAIRN_POOL_FULL &&
           cairn_page_pool_take(p, -1, ids) == CAIRN_INVALID_ARGUMENT &&
           cairn_page_pool_free_pages(p) == 3, "4 of 3 pages: %s", cairn_last_error(rt));
    tap_ok(!cairn_page_pool_take(p, 2, ids) && !cairn_page_pool_retain(p, ids, 1) &&
           cairn_page_pool_references(p, ids[0]) == 2 && cairn_page_pool_references(p, 3) == -1 &&
           !cairn_page_pool_give(p, ids, 2) && !cairn_page_pool_give(p, ids, 1) &&
           cairn_page_pool_give(p, ids, 1) == CAIRN_INVALID_ARGUMENT &&
           cairn_page_pool_free_pages(p) == 3, "%s", cairn_last_error(rt));
    cairn_page_pool_free(p);
    tap_ok(options_status(0, 8, 4) == CAIRN_INVALID_ARGUMENT &&
           options_status(2, 0, 4) == CAIRN_INVALID_ARGUMENT &&
           options_status(2, 8, 257) == CAIRN_INVALID_ARGUMENT &&
           options_status(65536, INT_MAX, 1) == CAIRN_INVALID_ARGUMENT, "options out of range: %s",
           cairn_last_error(rt));
}

static void test_all(void) {
    static const int sizes[] = {1, 2, 16, 32, 64, 128, 256};
    test_device(1, 60), test_device(2, 60), test_device(16, 8), test_device(4, 0);
    test_copy_pages(false, 64), test_copy_pages(true, 20), test_copy_pages(true, 4096);
    for (size_t i = 0; i < BASE_COUNT(sizes); i++)
        if (!rt->device.cuda || sizes[i] % 64 == 1 || sizes[i] == 16) test_forks_attend(sizes[i]);
    if (rt->device.cuda) test_busy();
    test_request_snapshot();
    test_wrong();
}

static void test_backend(cairn_runtime *opened, const char *name) {
    rt = opened, where = name;
    test_all();
    new_tables(new_pool(5), 2); /* what is left, cairn_close frees */
}

int main(void) {
    cairn_config config;
    cairn_config_default(&config);
    config.threads = 2;
    seed = random_seed();
    run_on_backends(&config, "page tables", test_backend);
    return tap_done();
}
