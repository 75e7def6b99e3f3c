/* handles: what is no tensor, stream, graph, key or snapshot is told by name, and the next call works.
 * On tests/fake's GPU every call of the driver and every allocation fails once: a status with words, nothing
 * is left of it, and the next call works. */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "tap.h"
#include "short_memory.h"
#include "fake/fake_compiler.h"

static cairn_runtime *rt, *other;

/* Refused with that status and those words. */
static void refused(cairn_status got, cairn_status want, const char *words) {
    tap_ok(got == want && strstr(cairn_last_error(rt), words), "%s: %s", words, cairn_last_error(rt));
}
#define REFUSED(call, status, words) refused(call, CAIRN_##status, words)

static cairn_config config_of(cairn_backend backend) {
    cairn_config c;
    cairn_config_default(&c);
    c.backend = backend, c.threads = c.jit.threads = 1, c.log = CAIRN_LOG_OFF;
    c.jit.cache = CAIRN_CACHE_MEMORY, c.allocator.realloc = test_realloc;
    return c;
}

static cairn_runtime *open_by(const cairn_config *c) {
    cairn_runtime *made = NULL;
    char error[512] = "";
    if (cairn_open(c, &made, error, sizeof error)) tap_note("%s", error);
    return made;
}

static cairn_runtime *open_one(void) {
    const cairn_config c = config_of(CAIRN_BACKEND_CPU);
    return open_by(&c);
}

static void test_tensors(void) {
    const int64_t shape[2] = {2, 3};
    float values[6] = {1, 2, 3, 4, 5, 6}, read[6];
    cairn_tensor *t = NULL, view;
    int64_t strides[2] = {1, 2};
    REFUSED(cairn_tensor_new(rt, CAIRN_F32, 2, shape, NULL), INVALID_ARGUMENT, "tensor_new: tensor is NULL");
    REFUSED(cairn_tensor_new(rt, (cairn_type)99, 2, shape, &t), INVALID_ARGUMENT, "unknown type 99");
    REFUSED(cairn_tensor_new(rt, CAIRN_F32, -1, shape, &t), INVALID_ARGUMENT, "rank -1");
    REFUSED(cairn_tensor_new(rt, CAIRN_F32, 2, NULL, &t), INVALID_ARGUMENT, "rank 2");
    REFUSED(cairn_tensor_load(rt, NULL, &t), INVALID_ARGUMENT, "path is NULL");
    if (!tap_ok(!cairn_tensor_new(rt, CAIRN_F32, 2, shape, &t), "a tensor")) return;
    REFUSED(cairn_tensor_write(rt, NULL, values, sizeof values), INVALID_ARGUMENT, "tensor is NULL");
    REFUSED(cairn_tensor_write(rt, t, values, 20), INVALID_ARGUMENT, "holds 24 bytes, not 20");
    REFUSED(cairn_tensor_read(rt, t, NULL, sizeof read), INVALID_ARGUMENT, "holds 24 bytes");
    view = *t, view.strides = strides;
    REFUSED(cairn_tensor_write(rt, &view, values, sizeof values), INVALID_ARGUMENT, "must be dense");
    view = *t, view.ndim = 99;
    REFUSED(cairn_tensor_read(rt, &view, read, sizeof read), INVALID_ARGUMENT, "not a valid view");
    REFUSED(cairn_tensor_free(rt, &view), INVALID_ARGUMENT, "a view frees nothing");
    tap_ok(!cairn_tensor_write(rt, t, values, sizeof values) && !cairn_tensor_read(rt, t, read, sizeof read) &&
           !memcmp(values, read, sizeof read) && !cairn_tensor_free(rt, t) && !cairn_tensor_free(rt, NULL),
           "it holds what is written all the same");
}

static void test_others(void) {
    cairn_stream *stream = NULL;
    cairn_graph *graph = NULL;
    cairn_staging *staging = NULL;
    cairn_topk_args args = {.struct_size = 3};
    struct { cairn_topk_args known; int64_t more; } later;
    REFUSED(cairn_staging_new(rt, 0, &staging), INVALID_ARGUMENT, "staging_new: bytes = 0");
    REFUSED(cairn_graph_begin(rt), UNSUPPORTED, "the CPU backend has no graphs");
    REFUSED(cairn_graph_end(rt, &graph), INVALID_ARGUMENT, "no graph is being captured");
    REFUSED(cairn_graph_free(rt, (cairn_graph *)&args), INVALID_ARGUMENT, "not a graph of this runtime");
    tap_ok(!cairn_stream_new(other, &stream), "another runtime's stream");
    REFUSED(cairn_stream_set(rt, stream), INVALID_ARGUMENT, "of another runtime");
    REFUSED(cairn_topk(rt, NULL), INVALID_ARGUMENT, "the arguments are NULL");
    REFUSED(cairn_topk(rt, &args), VERSION_MISMATCH, "struct_size is 3");
    memset(&later, 0, sizeof later);
    later.known.struct_size = sizeof later, later.more = 1;
    REFUSED(cairn_topk(rt, &later.known), VERSION_MISMATCH, "fields that this version does not know");
    tap_ok(!strcmp(cairn_topk_route(rt, 1, 100, 10), "cpu"), "top-k goes by the CPU here");
}

/* What they say: into structs of the sizes that there are, into buffers that are large enough. */
static void test_lists(cairn_page_tables *t) {
    static const int32_t tokens[1] = {20}, first[1] = {0};
    cairn_page_lists l;
    int32_t indptr[2] = {-5, -5}, pages[2] = {-5, -5};
    memset(&l, 0, sizeof l);
    l.struct_size = 3;
    REFUSED(cairn_page_tables_lists(t, &l), VERSION_MISMATCH, "page_tables_lists: struct_size is 3");
    l.struct_size = sizeof l + 8;
    REFUSED(cairn_page_tables_lists(t, &l), VERSION_MISMATCH, "set it to sizeof the struct");
    tap_ok(!l.page_table && !l.requests, "and nothing is written");
    cairn_page_tables_add(t, first, 1);
    tap_ok(!cairn_page_tables_insert(t, tokens), "20 tokens, two pages");
    REFUSED(cairn_page_tables_csr(t, indptr, pages, 1, NULL), INVALID_ARGUMENT,
            "page_tables_csr: 2 pages are held, the buffer has room for 1");
    tap_ok(indptr[0] == -5 && pages[0] == -5 && !cairn_page_tables_csr(t, indptr, pages, 2, NULL) &&
           indptr[0] == 0 && indptr[1] == 2 && pages[0] >= 0 && pages[1] >= 0, "with room for two they come");
}

/* A cache of prefixes, and 17 locks on one, where each allocation fails. */
static void test_prefix_memory(const cairn_prefix_options *o) {
    const long before = live_blocks;
    cairn_prefix_cache *c = NULL;
    cairn_prefix_properties info = {.struct_size = sizeof info};
    cairn_prefix_key key = {.struct_size = sizeof key, .count = 16};
    int32_t ids[16] = {0}, page = 3, found[1], matched, present;
    int64_t locks[17] = {0};
    cairn_status status = CAIRN_OUT_OF_MEMORY;
    int n = 0, bad = 0;
    for (; status && n < 50; n++) {
        allocations_left = n;
        status = cairn_prefix_new(rt, o, &c);
        allocations_left = -1;
        if (status) bad += status != CAIRN_OUT_OF_MEMORY || c || live_blocks != before;
    }
    if (!tap_ok(!status && !bad && n > 2, "a prefix cache: each of %d allocations fails", n - 1)) return;
    key.ids = ids;
    tap_ok(!cairn_page_pool_take(o->pool, 1, &page) && !cairn_prefix_insert(c, &key, &page, &present), "a prefix");
    for (int i = 0; i < 17; i++) { /* room for 16 more each time */
        allocations_left = 0;
        status = cairn_prefix_match(c, &key, found, &matched, &locks[i]);
        allocations_left = -1;
        if (i % 16) {
            bad += status != CAIRN_OK;
            continue;
        }
        bad += status != CAIRN_OUT_OF_MEMORY || locks[i] || matched ||
               !strstr(cairn_last_error(rt), "locks of a prefix cache");
        bad += cairn_prefix_info(c, &info) || info.locks != i;
        bad += cairn_prefix_match(c, &key, found, &matched, &locks[i]) || !locks[i] || found[0] != page;
    }
    tap_ok(!bad && !cairn_prefix_info(c, &info) && info.locks == 17 && info.locked_tokens == 16,
           "no memory for a lock: none is held, and those before it are");
    for (int i = 0; i < 17; i++) bad += cairn_prefix_unlock(c, locks[i]) != CAIRN_OK;
    tap_ok(!bad && !cairn_prefix_info(c, &info) && !info.locks, "each is given back");
    cairn_prefix_free(c);
    tap_ok(live_blocks == before, "and the cache leaves nothing");
}

static void test_pages(void) {
    cairn_page_pool *theirs = NULL, *pool_made = NULL;
    cairn_page_tables *t = NULL;
    cairn_page_tables_options o = {.struct_size = sizeof o, .requests = 1, .max_tokens = 64, .page_size = 16};
    cairn_prefix_options p = {.struct_size = sizeof p, .page_size = 16};
    cairn_prefix_cache *c = NULL;
    cairn_prefix_key key = {.struct_size = sizeof key, .count = 16};
    cairn_snapshot_args a = {.struct_size = sizeof a, .token_count = 3};
    int32_t ids[16] = {0}, matched;
    size_t bytes;
    char name[80];
    tap_ok(!cairn_page_pool_new(other, 4, &theirs) && !cairn_page_pool_new(rt, 4, &pool_made), "two pools");
    o.pool = theirs;
    REFUSED(cairn_page_tables_new(rt, &o, &t), INVALID_ARGUMENT, "the pool is another runtime's");
    o.pool = p.pool = pool_made;
    if (!tap_ok(!cairn_page_tables_new(rt, &o, &t) && !cairn_prefix_new(rt, &p, &c), "tables and prefixes")) return;
    REFUSED(cairn_page_tables_adopt(t, 0, ids, 0), INVALID_ARGUMENT, "adopt: 0 tokens");
    REFUSED(cairn_prefix_match(c, &key, ids, &matched, NULL), INVALID_ARGUMENT, "count = 16, ids NULL");
    key.ids = ids;
    REFUSED(cairn_prefix_match(c, &key, ids, NULL, NULL), INVALID_ARGUMENT, "matched is NULL");
    REFUSED(cairn_prefix_insert(c, &key, NULL, NULL), INVALID_ARGUMENT, "pages is NULL");
    REFUSED(cairn_page_tables_save(t, &a, NULL, 0, &bytes), INVALID_ARGUMENT, "token_count = 3");
    memset(name, 'n', sizeof name - 1), name[sizeof name - 1] = '\0';
    a.token_count = 0, a.name = name;
    REFUSED(cairn_page_tables_save(t, &a, NULL, 0, &bytes), INVALID_ARGUMENT, "the name has 79 bytes");
    key.count = 0;
    tap_ok(!cairn_prefix_match(c, &key, ids, &matched, NULL) && !matched, "nothing matches nothing");
    test_lists(t);
    test_prefix_memory(&p);
}

/* A file is whole or is not there. */
static void test_save(void) {
    const int64_t shape[1] = {100};
    const char *path = "handles_test.npy";
    cairn_tensor *t = NULL;
    int n = 0, bad = 0;
    cairn_status status = CAIRN_OUT_OF_MEMORY;
    if (!tap_ok(!cairn_tensor_new(rt, CAIRN_F32, 1, shape, &t), "a tensor to save")) return;
    for (; status && n < 100; n++) {
        FILE *file;
        const long before = live_blocks;
        allocations_left = n;
        status = cairn_tensor_save(rt, t, path);
        allocations_left = -1;
        file = status ? fopen(path, "rb") : NULL;
        if (status)
            bad += status != CAIRN_OUT_OF_MEMORY || !strstr(cairn_last_error(rt), path) || file ||
                   live_blocks != before;
        if (file) fclose(file);
    }
    tap_ok(!status && !bad && n > 1, "save: each of %d allocations fails: no file, nothing left", n - 1);
    remove(path);
    cairn_tensor_free(rt, t);
}

/* ---- on a GPU -------------------------------------------------------------------------------------- */

static cairn_status make_stream(void **out) { return cairn_stream_new(rt, (cairn_stream **)out); }
static cairn_status free_stream(void *made) { return cairn_stream_free(rt, (cairn_stream *)made); }
static cairn_status make_event(void **out) { return cairn_event_new(rt, (cairn_event **)out); }
static cairn_status free_event(void *made) { return cairn_event_free(rt, (cairn_event *)made); }
static cairn_status make_staging(void **out) {
    return cairn_staging_new(rt, 1000, (cairn_staging **)out);
}
static cairn_status free_staging(void *made) { return cairn_staging_free(rt, (cairn_staging *)made); }
/* What could not be entered goes on being captured, and is ended by the next call. */
static cairn_status make_graph(void **out) {
    cairn_status status = cairn_graph_begin(rt);
    if (!status) status = cairn_graph_end(rt, (cairn_graph **)out);
    if (status && rt->capturing) {
        char kept[1024];
        snprintf(kept, sizeof kept, "%s", cairn_last_error(rt));
        if (!cairn_graph_end(rt, (cairn_graph **)out)) cairn_graph_free(rt, (cairn_graph *)*out);
        *out = NULL;
        snprintf(rt->base.error, sizeof rt->base.error, "%s", kept);
    }
    return status;
}
static cairn_status free_graph(void *made) { return cairn_graph_free(rt, (cairn_graph *)made); }

static const struct {
    const char *name;
    cairn_status (*make)(void **out);
    cairn_status (*free)(void *made);
} makers[] = {{"a stream", make_stream, free_stream}, {"an event", make_event, free_event},
              {"staging buffers", make_staging, free_staging}, {"a graph", make_graph, free_graph}};

/* The n-th call of the driver fails, or the n-th allocation and all behind it. *reached: there was one. */
static bool made_or_not(size_t i, int n, bool memory, bool *reached) {
    const int live = fake.live;
    const long blocks = live_blocks;
    void *made = NULL;
    cairn_status status;
    bool right;
    if (memory) allocations_left = n - 1;
    else fake.fail_at = n, fake.fail_with = CUDA_ERROR_INVALID_VALUE;
    rt->base.error[0] = '\0';
    status = makers[i].make(&made);
    *reached = memory ? status != CAIRN_OK : fake.failed;
    allocations_left = -1;
    fake.fail_at = 0, fake.failed = false;
    right = !status == (made != NULL) && (!status || cairn_last_error(rt)[0]) &&
            (!memory || !status || status == CAIRN_OUT_OF_MEMORY);
    if (!status) right = !makers[i].free(made) && right;
    right = right && fake.live == live && live_blocks == blocks;
    if (!right) tap_note("%s, number %d: status %d, %s", makers[i].name, n, status, cairn_last_error(rt));
    return right;
}

static void test_faults(void) {
    for (size_t i = 0; i < BASE_COUNT(makers); i++) {
        int calls[2] = {0, 0}, bad = 0;
        for (int memory = 0; memory < 2; memory++) {
            bool reached = true;
            for (int n = 1; reached && n < 100; n++) {
                void *again = NULL;
                bad += !made_or_not(i, n, memory != 0, &reached);
                calls[memory] += reached;
                bad += makers[i].make(&again) || makers[i].free(again);
            }
        }
        tap_ok(!bad && calls[0] > 1 && calls[1] > 0, "%s: each of %d calls of the driver, %d allocations",
               makers[i].name, calls[0], calls[1]);
    }
}

static void test_no_device(void) {
    cairn_config c = config_of(CAIRN_BACKEND_CUDA);
    cairn_runtime *made = NULL;
    char error[512] = "";
    c.device = 1;
    tap_ok(cairn_open(&c, &made, error, sizeof error) == CAIRN_NO_DEVICE && !made &&
           strstr(error, "device = 1, but the devices are 0 to 0"), "no such device: %s", error);
    c.device = 0, fake.major = 7, fake.minor = 5;
    tap_ok(cairn_open(&c, &made, error, sizeof error) == CAIRN_UNSUPPORTED && !made &&
           strstr(error, "Fake GPU 0 has compute capability 7.5"), "one too old: %s", error);
    tap_ok(!fake.live && !fake.opened, "nothing is left of them");
    fake_install();
}

/* Tensors of the host, too, are copied by a runtime of a GPU: at once. */
static void test_host_tensor(void) {
    int64_t shape[1] = {3};
    float held[3] = {0, 0, 0}, read[3];
    const float values[3] = {1, 2, 3};
    cairn_tensor t;
    int calls;
    memset(&t, 0, sizeof t);
    t.data = held, t.device.type = TENSOR_CPU, t.ndim = 1, t.shape = shape;
    t.dtype.code = 2, t.dtype.bits = 32, t.dtype.lanes = 1;
    calls = fake.calls;
    tap_ok(!cairn_tensor_write(rt, &t, values, sizeof values) && !memcmp(held, values, sizeof held) &&
           !cairn_tensor_read(rt, &t, read, sizeof read) && !memcmp(read, values, sizeof read) &&
           fake.calls == calls, "a tensor of the host: no call of the driver");
}

static size_t lent_bytes;
static int lent_blocks;
static uint64_t lend(void *user, size_t bytes) {
    void *memory;
    *(int *)user += 1;
    if (posix_memalign(&memory, 256, bytes)) return 0;
    lent_bytes += bytes, lent_blocks++;
    return (uint64_t)(uintptr_t)memory;
}
static void take_back(void *user, uint64_t address, size_t bytes) {
    *(int *)user += 1;
    lent_bytes -= bytes, lent_blocks--;
    free((void *)(uintptr_t)address);
}

static void test_device_allocator(void) {
    const int64_t shape[1] = {1000};
    cairn_config c = config_of(CAIRN_BACKEND_CUDA);
    cairn_tensor *t = NULL;
    int calls = 0;
    size_t before;
    c.device_allocator.user = &calls;
    c.device_allocator.alloc = lend, c.device_allocator.free = take_back;
    if (!tap_ok((rt = open_by(&c)) != NULL, "a GPU whose memory is the host program's")) return;
    before = lent_bytes;
    tap_ok(!cairn_tensor_new(rt, CAIRN_F32, 1, shape, &t) && lent_bytes == before + 4000 && calls > 0 &&
           !cairn_tensor_free(rt, t) && lent_bytes == before, "a tensor takes of it, and gives back");
    cairn_close(rt);
    tap_ok(!lent_bytes && !lent_blocks && !fake.live, "all of it came back, in the sizes that were given");
}

/* A range of the trace with an interval; the `fails`-th call of the driver fails. Its text, how often it says
 * "mark": once of the host, and once more of the device if that is known. */
static int marks(int fails, bool printing) {
    char text[2048];
    size_t bytes = 0;
    int range, found = 0;
    cairn_trace_start(rt, 0);
    handles_enter(rt);
    fake.fail_at = printing ? 0 : fails, fake.fail_with = CUDA_ERROR_INVALID_VALUE;
    range = TRACE_OPEN(&rt->device, "mark", true);
    TRACE_SHUT(&rt->device, range, 1);
    handles_leave(rt, CAIRN_OK);
    if (printing) fake.fail_at = fails;
    if (cairn_trace_text(rt, text, sizeof text, &bytes)) text[0] = '\0';
    fake.fail_at = 0, fake.failed = false;
    for (const char *at = text; (at = strstr(at, "\"mark\"")) != NULL; at++) found++;
    cairn_trace_stop(rt);
    return found;
}

static void test_trace(void) {
    const int live = fake.live;
    long blocks = live_blocks;
    int n = 0, bad = 0, without = 0;
    tap_ok(marks(0, false) == 2, "a range of the host and of the device");
    for (n = 1; n <= 4; n++) { /* two events made and recorded */
        const int found = marks(n, false);
        bad += found != 1, without += found == 1;
    }
    tap_ok(!bad && without == 4 && fake.live == live, "an event that cannot be had: the host's alone");
    for (n = 1, bad = without = 0; n <= 6; n++) { /* the text: the first calls enter the device */
        const int found = marks(n, true);
        bad += found > 2, without += found == 1;
    }
    tap_ok(!bad && without >= 4 && fake.live == live && live_blocks == blocks,
           "a time that is not known: the host's alone");
    cairn_trace_start(rt, 5);
    blocks = live_blocks;
    for (n = 0, bad = 0; n < 2; n++) {
        allocations_left = n;
        bad += cairn_trace_start(rt, 7) != CAIRN_OUT_OF_MEMORY || !strstr(cairn_last_error(rt), "a trace");
        allocations_left = -1;
    }
    tap_ok(!bad && live_blocks == blocks && rt->device.trace && rt->device.trace->most == 5,
           "no memory for a trace: the one of before goes on");
    cairn_trace_stop(rt);
}

static void test_gpu(void) {
    const cairn_config c = config_of(CAIRN_BACKEND_CUDA);
    fake_install();
    test_no_device();
    if (tap_ok((rt = open_by(&c)) != NULL, "a GPU")) test_faults(), test_host_tensor(), test_trace();
    cairn_close(rt);
    tap_ok(!fake.live && !fake.opened, "nothing is left when it is closed");
    test_device_allocator();
    tap_ok(!live_blocks, "no block of memory is left");
}

int main(void) {
    rt = open_one(), other = open_one();
    if (tap_ok(rt && other, "two runtimes")) test_tensors(), test_others(), test_pages(), test_save();
    cairn_close(rt);
    cairn_close(other);
    test_gpu();
    return tap_done();
}
