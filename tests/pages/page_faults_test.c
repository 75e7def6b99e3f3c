/* Page tables and snapshots of requests where every call fails once, or from then on until the close:
 * the driver's (tests/fake) and allocations. Right is a status with the host's lists as before, or the right
 * answer; nothing is left over. The fake's kernels are the real ones' work in plain loops. */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "tap.h"
#include "fake/fake_compiler.h"

enum { REQUESTS = 3, PAGE = 2, PAGES = 12, PAGE_BYTES = 16 };

/* ---- the kernels ------------------------------------------------------------------------------ */

static void run_update(void **parameters, const unsigned grid[3], unsigned block) {
    page_tables_params p;
    (void)block;
    memcpy(&p, parameters[0], sizeof p);
    if (grid[0] == (unsigned)p.requests) pages_apply(&p);
}

static void run_copy(void **parameters, const unsigned grid[3], unsigned block) {
    copy_pages_params p;
    (void)block;
    memcpy(&p, parameters[0], sizeof p);
    for (unsigned i = 0; i < grid[1]; i++)
        if (p.copies[2 * i] >= 0)
            memcpy(p.cache + p.copies[2 * i + 1] * p.page_words,
                   p.cache + p.copies[2 * i] * p.page_words, (size_t)p.page_words * 4);
}

static const fake_kernel kernels[] = {
    {"update_page_tables", sizeof(page_tables_params), run_update},
    {"copy_pages", sizeof(copy_pages_params), run_copy}, {NULL, 0, NULL}};

/* ---- memory ----------------------------------------------------------------------------------- */

static int allocations_left = -1, live_blocks;
static os_mutex memory_lock;
static void *failing_realloc(void *user, void *memory, size_t old_bytes, size_t new_bytes) {
    bool fail;
    (void)user, (void)old_bytes;
    os_mutex_lock(&memory_lock);
    fail = new_bytes && allocations_left >= 0 && allocations_left-- == 0;
    if (!fail) live_blocks += (new_bytes != 0) - (memory != NULL);
    os_mutex_unlock(&memory_lock);
    if (fail) return NULL;
    if (new_bytes) return realloc(memory, new_bytes);
    free(memory);
    return NULL;
}

/* ---- the scenario ----------------------------------------------------------------------------- */

typedef struct scene {
    cairn_runtime *rt;
    cairn_page_pool *pool;
    cairn_page_tables *tables;
    cairn_tensor *cache;
    bool right; /* what was answered was right, and a failed call changed nothing */
} scene;

static bool lists_same(const page_tables *a, const int32_t *ids, const int32_t *lengths,
                       int free_pages) {
    return !memcmp(a->ids, ids, (size_t)(a->requests * a->max_pages) * 4) &&
           !memcmp(a->lengths, lengths, (size_t)a->requests * 4) && a->pool->free_count == free_pages;
}

/* One call that may fail; then the lists are what they were. */
#define TRY(call)                                                                                 \
    do {                                                                                          \
        int32_t ids_[REQUESTS * 8], lengths_[REQUESTS];                                           \
        int free_ = s->tables->lists.pool->free_count;                                            \
        memcpy(ids_, s->tables->lists.ids, (size_t)(REQUESTS * s->tables->lists.max_pages) * 4);  \
        memcpy(lengths_, s->tables->lists.lengths, sizeof lengths_);                              \
        status = call;                                                                            \
        if (status) s->right = s->right && lists_same(&s->tables->lists, ids_, lengths_, free_);  \
        if (status) return status;                                                                \
    } while (0)

static cairn_status copies_made(scene *s) {
    cairn_page_tensors on;
    cairn_copy_pages_args c;
    memset(&c, 0, sizeof c);
    on.struct_size = sizeof on;
    cairn_page_tables_tensors(s->tables, &on);
    c.struct_size = sizeof c, c.cache = s->cache, c.copies = on.copies;
    return cairn_copy_pages(s->rt, &c);
}

/* Saved, loaded as request 1; its pages hold what request 0's do. */
static cairn_status save_and_load(scene *s) {
    uint8_t bytes[PAGES * PAGE_BYTES], *memory;
    size_t size = 0;
    cairn_snapshot_args a;
    const page_tables *l = &s->tables->lists;
    cairn_status status = CAIRN_OK;
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a, a.caches = &s->cache, a.cache_count = 1;
    if ((status = cairn_page_tables_save(s->tables, &a, NULL, 0, &size))) return status;
    memory = (uint8_t *)malloc(size);
    status = cairn_page_tables_save(s->tables, &a, memory, size, &size);
    a.request = 1;
    if (!status) {
        int free_pages = l->pool->free_count;
        status = cairn_page_tables_load(s->tables, &a, memory, size);
        if (status) s->right = s->right && !l->pages[1] && l->pool->free_count == free_pages;
    }
    free(memory);
    if (!status) status = cairn_tensor_read(s->rt, s->cache, bytes, sizeof bytes);
    for (int c = 0; !status && c < l->pages[0]; c++)
        s->right = s->right && !memcmp(bytes + l->ids[c] * PAGE_BYTES,
                                       bytes + l->ids[l->max_pages + c] * PAGE_BYTES, PAGE_BYTES);
    return status;
}

static cairn_status play(scene *s) {
    static const int32_t first[] = {0}, three[] = {3, 0, 0}, both[] = {1, 0, 2}, last[] = {2};
    int64_t shape[2] = {PAGES, PAGE_BYTES};
    uint8_t noise[PAGES * PAGE_BYTES];
    cairn_page_tables_options o;
    cairn_status status;
    int32_t table[REQUESTS * 4];
    memset(&o, 0, sizeof o);
    if ((status = cairn_page_pool_new(s->rt, PAGES, &s->pool))) return status;
    o.struct_size = sizeof o;
    o.requests = REQUESTS, o.max_tokens = 4 * PAGE, o.page_size = PAGE, o.pool = s->pool;
    if ((status = cairn_page_tables_new(s->rt, &o, &s->tables))) return status;
    if ((status = cairn_tensor_new(s->rt, CAIRN_U8, 2, shape, &s->cache))) return status;
    for (size_t i = 0; i < sizeof noise; i++) noise[i] = (uint8_t)(i * 37);
    if ((status = cairn_tensor_write(s->rt, s->cache, noise, sizeof noise))) return status;
    TRY(cairn_page_tables_add(s->tables, first, 1));
    TRY(cairn_page_tables_insert(s->tables, three));
    TRY(cairn_page_tables_update(s->tables));
    TRY(cairn_page_tables_fork(s->tables, 0, 2));
    TRY(cairn_page_tables_insert(s->tables, both));
    TRY(cairn_page_tables_update(s->tables));
    TRY(copies_made(s));
    if ((status = save_and_load(s))) return status;
    TRY(cairn_page_tables_remove(s->tables, last, 1));
    TRY(cairn_page_tables_update(s->tables));
    if ((status = cairn_tensor_read(s->rt, &s->tables->tensors[PAGES_TABLE]->view, table,
                                    sizeof table)))
        return status;
    s->right = s->right && !memcmp(table, s->tables->lists.ids, sizeof table);
    return CAIRN_OK;
}

static int calls_of_open;

/* The whole of it; whether what came was right. */
static bool scenario(cairn_status *status) {
    cairn_config c;
    char error[1024];
    scene s;
    memset(&s, 0, sizeof s);
    s.right = true;
    cairn_config_default(&c);
    c.backend = CAIRN_BACKEND_CUDA;
    c.threads = 1;
    c.jit.threads = 1;
    c.jit.cache = CAIRN_CACHE_MEMORY;
    c.allocator.realloc = failing_realloc;
    *status = cairn_open(&c, &s.rt, error, sizeof error);
    if (!*status) calls_of_open = fake.calls;
    if (!*status) *status = play(&s);
    if (*status && s.rt && !s.rt->base.error[0]) s.right = false; /* without a message */
    fake.fail_at = 0;
    fake.failed = false; /* what a dead device holds cannot be given back */
    cairn_close(s.rt);
    return s.right && !fake.live && !live_blocks && !fake.bad_images;
}

static void test_calls(bool sticky) {
    static const int codes[] = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_VALUE,
                                CUDA_ERROR_LAUNCH_FAILED};
    int calls, first, bad = 0, runs = 0, passed = 0;
    cairn_status status;
    fake_install();
    fake.kernels = kernels;
    if (!scenario(&status) || status) tap_note("status %d, %d live", status, fake.live);
    calls = fake.calls, first = calls_of_open + 1;
    tap_ok(!status, "%d driver calls when nothing fails", calls);
    for (size_t c = 0; c < BASE_COUNT(codes); c++)
        for (int n = sticky ? first : 1; n <= calls; n++, runs++) {
            fake_install();
            fake.kernels = kernels;
            fake.fail_at = n, fake.fail_with = codes[c], fake.fail_sticky = sticky;
            if (!scenario(&status)) {
                tap_note("call %d, code %d: status %d, %d live", n, codes[c], status, fake.live);
                bad++;
            }
            passed += !status;
        }
    tap_ok(!bad && runs > 100, "each failed %s: %d runs, %d of them right all the same",
           sticky ? "and all after it" : "once", runs, passed);
}

static void test_memory(void) {
    int n = 0, bad = 0;
    bool reached = true;
    for (; reached; n++) {
        cairn_status status;
        fake_install();
        fake.kernels = kernels;
        allocations_left = n;
        bad += !scenario(&status) || (status && status != CAIRN_OUT_OF_MEMORY);
        reached = allocations_left < 0;
        allocations_left = -1;
    }
    tap_ok(!bad && n > 30, "each of %d allocations failed once", n - 1);
}

int main(void) {
    snapshot_stage = 12; /* so that pages straddle the two buffers */
    os_mutex_init(&memory_lock);
    test_calls(false);
    test_calls(true);
    test_memory();
    return tap_done();
}
