/* estimate: what cairn_estimate says is what loading takes, to the byte, for models from 135M to 8B
 * at 8K, 32K and 128K tokens on both backends; loading takes no more than it keeps and 256 MiB; what
 * fails while loading leaves nothing behind; a batch that cannot be is refused with its arithmetic.
 * The GPU is tests/fake's, which counts memory and has none. */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#ifndef _WIN32
#include <sys/mman.h>
#endif
#include "gguf_build.h"
#include "model_shapes.h"
#include "tap.h"
#include "turns.h"
#include "fake/fake_compiler.h"

static char path[64];

/* ---- host memory that counts and reserves ------------------------------------------------------ */

static os_mutex memory_lock;
static uint64_t host_live;
static int live_blocks, allocations_left = -1; /* until one fails */
static bool allocation_failed;
static int allocations; /* asked for */

/* Large blocks are address space alone until they are written, whatever the heap makes of them. */
static void *count_realloc(void *user, void *memory, size_t old_bytes, size_t new_bytes) {
    const size_t large = (size_t)64 << 20;
    void *result = NULL;
    bool fail;
    (void)user;
    os_mutex_lock(&memory_lock);
    fail = new_bytes && allocations_left >= 0 && allocations_left-- == 0;
    allocation_failed = allocation_failed || fail;
    allocations += new_bytes != 0;
    os_mutex_unlock(&memory_lock);
    if (fail) return NULL;
    if (new_bytes >= large)
        result = mmap(NULL, new_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    else if (new_bytes)
        result = malloc(new_bytes);
    if (new_bytes && (!result || result == MAP_FAILED)) return NULL;
    if (memory && new_bytes) memcpy(result, memory, old_bytes < new_bytes ? old_bytes : new_bytes);
    if (memory && old_bytes >= large) munmap(memory, old_bytes);
    else free(memory);
    os_mutex_lock(&memory_lock);
    host_live += new_bytes;
    if (memory) host_live -= old_bytes;
    live_blocks += (new_bytes != 0) - (memory != NULL);
    os_mutex_unlock(&memory_lock);
    return result;
}

static void config_for(cairn_config *c, cairn_backend backend) {
    cairn_config_default(c);
    c->backend = backend;
    c->threads = c->jit.threads = 1;
    c->jit.cache = CAIRN_CACHE_MEMORY;
    c->allocator.realloc = count_realloc;
    c->log = CAIRN_LOG_OFF;
}

static void fresh_device(void) {
    fake_install();
    fake.memory_bytes = (size_t)1 << 30;
}

/* ---- estimates against loads ------------------------------------------------------------------- */

typedef struct taken { cairn_runtime_info before, after; cairn_model_properties model;
                       uint64_t host; } taken;

static cairn_status load(const cairn_config *c, taken *t) {
    char error[1024];
    cairn_runtime *rt;
    cairn_model *m;
    uint64_t host;
    cairn_status status = cairn_open(c, &rt, error, sizeof error);
    if (status) return tap_note("%s", error), status;
    t->before.struct_size = t->after.struct_size = sizeof t->before;
    t->model.struct_size = sizeof t->model;
    cairn_info(rt, &t->before);
    host = host_live;
    status = cairn_load_model(rt, path, &m);
    if (status) tap_note("%s", cairn_last_error(rt));
    cairn_info(rt, &t->after);
    t->host = host_live - host;
    if (!status) cairn_model_info(m, &t->model);
    cairn_close(rt);
    return status;
}

static bool agree(const cairn_memory_estimate *e, const taken *t) {
    uint64_t live = t->after.live_bytes - t->before.live_bytes;
    return e->live_bytes == live && e->peak_bytes == t->after.peak_bytes - t->before.live_bytes &&
           e->pages == t->model.pages && e->weights_bytes == t->model.weights_bytes &&
           e->kv_bytes == t->model.kv_bytes && e->scratch_bytes == t->model.scratch_bytes &&
           e->max_seq_len == t->model.max_seq_len &&
           e->total_bytes == e->weights_bytes + e->kv_bytes + e->scratch_bytes;
}

/* What any loader must take, in the plainest words: values of weights at their bits, keys and values
 * in f16. */
static void plain_bytes(const shape_file *s, double bits, int tokens, double *weights, double *kv) {
    double q = s->heads * s->head_dim, k = s->kv_heads * s->head_dim;
    double layer = (double)s->hidden * (2 * q + 2 * k + 3.0 * s->ffn);
    double wide = s->more_type ? 6.5625 : 8.5;
    *weights = (s->layers * layer * bits + (2.0 - s->tied) * s->vocab * s->hidden * wide) / 8;
    if (s->more_type) *weights += s->layers / 2 * s->hidden * (k + s->ffn) * (wide - bits) / 8;
    *kv = 2.0 * 2.0 * s->layers * k * tokens;
}

static bool near(uint64_t a, double b, double part) {
    return fabs((double)a - b) <= part * b;
}

static void test_shape(const shape_file *s, cairn_backend backend, int tokens,
                       cairn_memory_map map) {
    const bool cuda = backend == CAIRN_BACKEND_CUDA;
    const double mib = 1048576.0;
    cairn_memory_estimate e;
    cairn_config c;
    char error[512];
    double weights, kv;
    taken t;
    cairn_status status;
    config_for(&c, backend);
    c.max_seq_len = tokens;
    c.max_batch = 1;
    c.memory.map = map;
    memset(&e, 0, sizeof e), memset(&t, 0, sizeof t);
    e.struct_size = sizeof e;
    status = cairn_estimate(&c, path, &e, error, sizeof error);
    if (status) tap_note("%s", error);
    tap_ok(!status && !live_blocks, "%s %s at %d: an estimate, nothing left", s->name,
           cuda ? "cuda" : "cpu", tokens);
    tap_ok(!load(&c, &t) && agree(&e, &t), "and loading takes that: live %.1f MiB, peak %.1f",
           (double)e.live_bytes / mib, (double)e.peak_bytes / mib);
    if (!agree(&e, &t))
        tap_note("live %llu, peak %llu, weights %llu, scratch %llu",
                 (unsigned long long)(t.after.live_bytes - t.before.live_bytes),
                 (unsigned long long)t.after.peak_bytes, (unsigned long long)t.model.weights_bytes,
                 (unsigned long long)t.model.scratch_bytes);
    /* the products of smaller models keep a minimum beside each scale on the GPU, those of blocks of
     * 256 have six bits in bytes */
    plain_bytes(s, cuda && s->hidden < 1024 ? 5.0 : cuda && s->more_type ? 4.625 : 4.5, tokens,
                &weights, &kv);
    tap_ok(near(e.weights_bytes, weights, 0.02) && near(e.kv_bytes, kv, 0.02),
           "weights %.1f MiB, cache %.1f MiB", (double)e.weights_bytes / mib,
           (double)e.kv_bytes / mib);
    tap_ok(e.peak_bytes <= e.live_bytes + (256u << 20) &&
           (double)e.scratch_bytes <= 0.1 * (weights + kv) + 320 * mib,
           "buffers %.1f MiB, for opening %.1f MiB", (double)e.scratch_bytes / mib,
           (double)(e.peak_bytes - e.live_bytes) / mib);
    if (cuda)
        tap_ok(fake.device_peak == t.after.peak_bytes && !fake.live && !fake.device_live,
               "the driver gave so much, and has it back");
    else
        tap_ok(near(t.host, (double)(e.live_bytes + e.host_bytes), 0.001) &&
               e.mapped_bytes == (map == CAIRN_MAP_FILE ? t.model.file_bytes : 0) &&
               e.resident_bytes == e.scratch_bytes + e.host_bytes + e.mapped_bytes,
               "host memory %.1f MiB besides", (double)e.host_bytes / mib);
}

static void test_shape_at(const shape_file *s, int tokens, cairn_memory_map map) {
    fake_install();
    fake.memory_bytes = (size_t)192 << 30;
    fake.multiprocessors = 132;
    test_shape(s, CAIRN_BACKEND_CUDA, tokens, CAIRN_MAP_COPY);
    test_shape(s, CAIRN_BACKEND_CPU, tokens, map);
}

/* Within the whole suite each shape at one context, another with each tree. */
static void test_shapes(void) {
    static const int tokens[] = {8192, 32768, 131072};
    const int turn = turn_of(3);
    for (size_t i = 0; i < BASE_COUNT(shape_files); i++) {
        const shape_file *s = &shape_files[i];
        if (!shape_write(path, s)) tap_ok(false, "cannot write %s", path);
        for (size_t j = 0; j < BASE_COUNT(tokens); j++)
            if (turn < 0 || (i + j + (size_t)turn) % BASE_COUNT(tokens) == 0)
                test_shape_at(s, tokens[j], j ? CAIRN_MAP_FILE : CAIRN_MAP_COPY);
    }
    if (!shape_write(path, &shape_mixed)) tap_ok(false, "cannot write %s", path);
    test_shape_at(&shape_mixed, 8192, CAIRN_MAP_FILE);
}

/* So many layers that the flow's exchange, a region for each, would be out of proportion: it goes without. */
static void test_deep(void) {
    static const shape_file deep = {"deep", 24, 512, 16, 1, 128, 2560, 1000, 131072, true, 2, 8, 0};
    if (!shape_write(path, &deep)) tap_ok(false, "cannot write %s", path);
    test_shape_at(&deep, 131072, CAIRN_MAP_FILE);
}

/* Heads so large that attention and the meeting of whole blocks are more than a smaller GPU's multiprocessor
 * holds: no kernel asks for more than there is (the fake refuses it). */
static void test_small_gpu(void) {
    static const shape_file large = {"large heads", 2, 512, 4, 1, 256, 1024, 1000, 8192, true, 2, 8, 0};
    if (!shape_write(path, &large)) tap_ok(false, "cannot write %s", path);
    fake_install();
    fake.memory_bytes = (size_t)8 << 30, fake.multiprocessors = 24;
    fake.major = 8, fake.minor = 9, fake.shared_bytes = 99 << 10;
    test_shape(&large, CAIRN_BACKEND_CUDA, 8192, CAIRN_MAP_COPY);
}

/* What the GPU's products do not take is told, and the CPU takes it. */
static void test_odd(void) {
    static const shape_file odd = {"odd", 1, 72, 2, 1, 32, 64, 100, 512, true, 0, 0, 0};
    cairn_memory_estimate e;
    cairn_config c;
    cairn_runtime *rt = NULL;
    cairn_model *m = NULL;
    char error[512] = "";
    taken t;
    if (!shape_write(path, &odd)) tap_ok(false, "cannot write %s", path);
    fresh_device();
    config_for(&c, CAIRN_BACKEND_CUDA);
    e.struct_size = sizeof e;
    tap_ok(cairn_estimate(&c, path, &e, error, sizeof error) == CAIRN_UNSUPPORTED &&
           strstr(error, "hidden size 72, ffn size 64; multiples of 32 are supported on the GPU"), "%s", error);
    tap_ok(!cairn_open(&c, &rt, error, sizeof error) && cairn_load_model(rt, path, &m) == CAIRN_UNSUPPORTED && !m &&
           strstr(cairn_last_error(rt), "hidden size 72"), "loading says the same");
    cairn_close(rt);
    config_for(&c, CAIRN_BACKEND_CPU);
    tap_ok(!load(&c, &t) && !fake.live && !live_blocks, "the CPU takes it, and nothing is left");
}

/* After a reload with more threads, the forward has memory for as many as it had; then for all, once there is
 * some. Each allocation of an append fails. */
static void test_more_threads(void) {
    int n = 0, bad = 0, kept = 0;
    for (allocation_failed = true; allocation_failed && n < 200; n++) {
        static const int32_t ids[] = {5, 6, 7, 8};
        cairn_config c, next;
        char error[512];
        cairn_runtime *rt;
        cairn_model *m;
        cairn_session *s;
        cairn_status status;
        int count;
        config_for(&c, CAIRN_BACKEND_CPU);
        next = c, next.threads = 3;
        if (cairn_open(&c, &rt, error, sizeof error) || cairn_load_model(rt, path, &m) ||
            cairn_session_open(m, &s) || cairn_append_ids(s, ids, 4) || cairn_reload(rt, &next)) {
            tap_ok(false, "a small model for threads");
            return;
        }
        allocations_left = n, allocation_failed = false;
        status = cairn_append_ids(s, ids, 4);
        allocations_left = -1;
        bad += status && (status != CAIRN_OUT_OF_MEMORY || !cairn_last_error(rt)[0]);
        bad += !status && ((const forward_cpu_state *)m->state)->threads != (allocation_failed ? 1 : 3);
        kept += !status && allocation_failed;
        cairn_session_ids(s, &count);
        bad += count != (status ? 4 : 8);
        bad += cairn_append_ids(s, ids, 4) || ((const forward_cpu_state *)m->state)->threads != 3;
        cairn_close(rt);
        bad += live_blocks != 0;
    }
    tap_ok(!bad && kept > 0, "more threads without memory: %d of %d allocations that fail leave those of before",
           kept, n - 1);
}

/* ---- what does not fit ------------------------------------------------------------------------- */

static void test_budget(cairn_backend backend) {
    int bad = 0, pages = 0;
    for (int mb = 8; mb <= 4096; mb *= 2) {
        cairn_memory_estimate e;
        cairn_config c;
        char error[512];
        taken t;
        config_for(&c, backend);
        c.memory.budget_mb = mb;
        memset(&e, 0, sizeof e), memset(&t, 0, sizeof t);
        e.struct_size = sizeof e;
        bad += cairn_estimate(&c, path, &e, error, sizeof error) != CAIRN_OK;
        if (load(&c, &t)) continue; /* too small for the weights or buffers */
        bad += !agree(&e, &t) || t.after.peak_bytes > (uint64_t)mb << 20;
        pages = e.pages;
    }
    tap_ok(!bad && pages > 1, "budgets from 8 MiB to 4 GiB: pages as estimated, up to %d", pages);
}

static void test_batch(void) {
    cairn_memory_estimate e;
    cairn_config c;
    char error[1024] = "";
    cairn_runtime *rt;
    cairn_model *m;
    cairn_status status;
    config_for(&c, CAIRN_BACKEND_CPU);
    c.max_batch = 1024;
    e.struct_size = sizeof e;
    status = cairn_estimate(&c, path, &e, error, sizeof error);
    tap_ok(status == CAIRN_OUT_OF_MEMORY && strstr(error, "max_batch = 1024") &&
           strstr(error, "max_seq_len = 131072") && strstr(error, "GiB"), "estimate: %s", error);
    tap_ok(!cairn_open(&c, &rt, error, sizeof error) &&
           cairn_load_model(rt, path, &m) == CAIRN_OUT_OF_MEMORY && !m &&
           strstr(cairn_last_error(rt), "max_batch = 1024"), "a load says the same");
    cairn_close(rt);
    c.memory.budget_mb = 1024;
    tap_ok(!cairn_estimate(&c, path, &e, error, sizeof error) && e.peak_bytes <= 1u << 30,
           "with a budget it makes do");
    c.max_batch = 8, c.memory.budget_mb = 0;
    tap_ok(!cairn_estimate(&c, path, &e, error, sizeof error), "the config's own batch loads");
    tap_ok(!live_blocks, "nothing is left");
}

/* ---- estimates without a GPU ------------------------------------------------------------------- */

static void test_no_gpu(void) {
    cairn_memory_estimate e;
    cairn_config c;
    char error[512];
    fake_install();
    fake.no_cuda = true;
    config_for(&c, CAIRN_BACKEND_CUDA);
    c.max_batch = 1;
    e.struct_size = sizeof e;
    tap_ok(!cairn_estimate(&c, path, &e, error, sizeof error) && e.backend == CAIRN_BACKEND_CUDA &&
           e.live_bytes > e.kv_bytes, "backend \"cuda\" without a GPU: one is stood in for");
    c.backend = CAIRN_BACKEND_AUTO;
    tap_ok(!cairn_estimate(&c, path, &e, error, sizeof error) && e.backend == CAIRN_BACKEND_CPU,
           "\"auto\": the CPU, as cairn_open would");
    fake.no_cuda = false;
    fake.memory_bytes = (size_t)8 << 30;
    tap_ok(!cairn_estimate(&c, path, &e, error, sizeof error) && e.backend == CAIRN_BACKEND_CUDA &&
           !fake.live && !fake.opened, "and the GPU where there is one, which is left alone");
    e.struct_size = offsetof(cairn_memory_estimate, live_bytes);
    e.live_bytes = 77;
    tap_ok(!cairn_estimate(&c, path, &e, error, sizeof error) && e.live_bytes == 77,
           "a caller of the older struct gets its fields alone");
}

/* A model that drafts is loaded first: its memory comes on top, and what both need while opened is
 * never needed twice. */
static void test_drafter(cairn_backend backend) {
    cairn_memory_estimate alone, both;
    cairn_config c;
    char error[512] = "";
    taken t;
    memset(&t, 0, sizeof t);
    config_for(&c, backend);
    c.max_batch = 2, c.prefill_chunk = 64;
    alone.struct_size = both.struct_size = sizeof both;
    bool fine = !cairn_estimate(&c, path, &alone, error, sizeof error);
    snprintf(c.drafter_model, sizeof c.drafter_model, "%s", path);
    c.drafter = CAIRN_DRAFTER_MODEL;
    fine = fine && !cairn_estimate(&c, path, &both, error, sizeof error) && !load(&c, &t);
    const uint64_t live = t.after.live_bytes - t.before.live_bytes;
    const uint64_t peak = t.after.peak_bytes - t.before.live_bytes;
    tap_ok(fine && both.live_bytes == live && both.peak_bytes == peak && live > alone.live_bytes &&
           both.weights_bytes == 2 * alone.weights_bytes && !live_blocks,
           "with a model that drafts: live %llu, %llu, peak %llu, %llu %s",
           (unsigned long long)both.live_bytes, (unsigned long long)live,
           (unsigned long long)both.peak_bytes, (unsigned long long)peak, error);
    snprintf(c.drafter_model, sizeof c.drafter_model, "%s.none", path);
    tap_ok(cairn_estimate(&c, path, &both, error, sizeof error) == CAIRN_FILE_NOT_FOUND &&
           strstr(error, ".none"), "one that is not there: %s", error);
}

/* ---- steps ------------------------------------------------------------------------------------- */

/* 30 tokens after a prompt of 150, on a session cut back to nothing; the host's allocations from the
 * first token on. */
static int count_in_steps(cairn_session *s, const cairn_sampling *sampling) {
    cairn_generate_options options;
    cairn_piece piece;
    int32_t ids[150];
    int before, tokens = 0;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options, options.max_tokens = 30, options.sampling = sampling;
    for (int i = 0; i < 150; i++) ids[i] = 3 + i % 7;
    if (cairn_session_rewind(s, 0) || cairn_append_ids(s, ids, 150) ||
        cairn_generate_begin(s, NULL, &options))
        return tap_note("%s", cairn_last_error(s->model->runtime)), -1;
    memset(&piece, 0, sizeof piece);
    piece.struct_size = sizeof piece;
    for (before = allocations; !piece.stop; tokens += piece.id >= 0)
        if (cairn_generate_next(s, &piece))
            return tap_note("%s", cairn_last_error(s->model->runtime)), -1;
    return tokens == 30 ? allocations - before : -2;
}

/* Once a session has spoken so, its steps allocate nothing, on the host nor on the device: greedy,
 * drawn from few tokens and from all, with drafts and sparse selection. */
static void test_steps(cairn_backend backend) {
    static const char *const names[] = {"greedy", "of few", "of all", "penalised"};
    cairn_config c;
    char error[512];
    cairn_runtime *rt;
    cairn_model *m;
    cairn_session *s;
    cairn_stats stats;
    cairn_runtime_info info;
    config_for(&c, backend);
    c.page_size = 16, c.topk = 2, c.selection.window = 16, c.draft_length = 4;
    if (!tap_ok(!cairn_open(&c, &rt, error, sizeof error) && !cairn_load_model(rt, path, &m) &&
                !cairn_model_wait(m) && !cairn_session_open(m, &s), "a small model for steps")) {
        tap_note("%s", error);
        return;
    }
    for (size_t i = 0; i < BASE_COUNT(names); i++) {
        cairn_sampling p = c.sampling;
        size_t live, peak;
        int warm, after;
        p.temperature = i ? 0.9f : 0.0f, p.top_k = i == 1 ? 8 : 0;
        p.repetition_penalty = i == 3 ? 1.1f : 1.0f;
        warm = count_in_steps(s, &p);
        live = rt->device.live_bytes, peak = fake.device_peak;
        after = count_in_steps(s, &p);
        tap_ok(warm >= 0 && after == 0 && rt->device.live_bytes == live &&
               fake.device_peak == peak, "%s steps, %s: %d allocations, %d at first",
               backend == CAIRN_BACKEND_CUDA ? "cuda" : "cpu", names[i], after, warm);
    }
    stats.struct_size = sizeof stats, info.struct_size = sizeof info;
    tap_ok(!cairn_session_stats(s, &stats) && !cairn_info(rt, &info) &&
           stats.peak_bytes == info.peak_bytes && info.peak_bytes >= info.live_bytes,
           "a session's peak is the runtime's");
    cairn_close(rt);
    tap_ok(!live_blocks, "nothing is left");
}

/* ---- faults ------------------------------------------------------------------------------------ */

static int calls_of_open;

/* Open, load, close, with what fails; whether all was given back and a failure had its words. */
static bool scenario(cairn_backend backend, cairn_status *status) {
    cairn_config c;
    char error[1024] = "";
    cairn_runtime *rt;
    cairn_model *m = NULL;
    bool told = true;
    config_for(&c, backend);
    *status = cairn_open(&c, &rt, error, sizeof error);
    if (*status) told = error[0] != '\0';
    if (!*status) {
        size_t before = rt->device.live_bytes;
        calls_of_open = fake.calls;
        *status = cairn_load_model(rt, path, &m);
        if (*status) told = !m && rt->base.error[0] && rt->device.live_bytes == before;
    }
    fake.fail_at = 0;
    fake.failed = false;
    allocations_left = -1;
    cairn_close(rt);
    return told && !fake.live && !fake.device_live && !live_blocks && !host_live;
}

/* What a dead device holds from its opening cannot be given back: it dies later. Within the whole suite one call of
 * four fails once with one tree, others for good. */
static void test_calls(bool sticky) {
    const int turn = turn_of(4), step = turn < 0 ? 1 : 4;
    int calls, first, bad = 0, passed = 0;
    cairn_status status;
    fresh_device();
    tap_ok(scenario(CAIRN_BACKEND_CUDA, &status) && !status, "a small model loads on the fake device");
    calls = fake.calls, first = sticky ? calls_of_open + 1 : 1;
    for (int n = first + (turn < 0 ? 0 : (turn + 2 * (int)sticky) % 4); n <= calls; n += step) {
        fresh_device();
        fake.fail_at = n, fake.fail_sticky = sticky;
        fake.fail_with = sticky ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
        if (!scenario(CAIRN_BACKEND_CUDA, &status) && !bad++)
            tap_note("call %d: status %d, %d live", n, status, fake.live);
        passed += !status;
    }
    tap_ok(!bad && calls > 200 && passed < calls / 2, "driver calls %d to %d failed %s, %d loads "
           "went on", first, calls, sticky ? "with all after" : "once each", passed);
}

static void test_memory(cairn_backend backend) {
    int n = 0, bad = 0;
    for (allocation_failed = true; allocation_failed; n++) {
        cairn_status status;
        fresh_device();
        allocations_left = n, allocation_failed = false;
        if ((!scenario(backend, &status) || (status && status != CAIRN_OUT_OF_MEMORY)) && !bad++)
            tap_note("allocation %d: status %d", n, status);
    }
    tap_ok(!bad && n > 10, "each of %d allocations of a load failed once", n - 1);
}

static void test_estimate_memory(cairn_backend backend) {
    int n = 0, bad = 0;
    for (allocation_failed = true; allocation_failed; n++) {
        cairn_memory_estimate e;
        cairn_config c;
        char error[512] = "";
        cairn_status status;
        fresh_device();
        config_for(&c, backend);
        e.struct_size = sizeof e;
        allocations_left = n, allocation_failed = false;
        status = cairn_estimate(&c, path, &e, error, sizeof error);
        bad += (status && (status != CAIRN_OUT_OF_MEMORY || !error[0])) || live_blocks;
        allocations_left = -1;
    }
    tap_ok(!bad && n > 5, "each of %d allocations of an estimate failed once", n - 1);
}

/* ---- a file cut short -------------------------------------------------------------------------- */

static int reads, cut_at, cut_bytes; /* reads so far, the one before which the file is cut */

static int64_t cutting_read_at(int64_t file, void *data, size_t bytes, uint64_t at) {
    if (reads++ == cut_at && truncate(path, cut_bytes)) tap_note("cannot cut %s", path);
    return fake_real_os.read_at(file, data, bytes / 2 + 1, at);
}

static cairn_status estimate_alone(cairn_backend backend) {
    cairn_memory_estimate e;
    cairn_config c;
    char error[512] = "";
    cairn_status status;
    config_for(&c, backend);
    e.struct_size = sizeof e;
    status = cairn_estimate(&c, path, &e, error, sizeof error);
    return !status || error[0] ? status : CAIRN_BAD_DATA;
}

/* At each read of a load, and of an estimate, somebody cuts the file: a status, and nothing left. */
static void test_cut(cairn_backend backend, bool estimate, int left) {
    int bad = 0, refused = 0, n = 0;
    do {
        cairn_status status;
        shape_write(path, &shape_small);
        fresh_device();
        os_calls.read_at = cutting_read_at;
        reads = 0, cut_at = n, cut_bytes = left;
        if (estimate) status = estimate_alone(backend), bad += live_blocks != 0;
        else bad += !scenario(backend, &status);
        if (status && status != CAIRN_FILE_ERROR && !bad++) tap_note("read %d: %d", n, status);
        refused += status == CAIRN_FILE_ERROR;
    } while (reads > n++);
    fake_install();
    tap_ok(!bad && n > 1 && refused < n && (refused > 0 || (estimate && (size_t)left > gguf_first_bytes)), "%s of %s: cut to %d bytes before each of "
           "%d reads, refused %d times", estimate ? "an estimate" : "a load",
           backend == CAIRN_BACKEND_CUDA ? "cuda" : "cpu", left, n - 1, refused);
    shape_write(path, &shape_small);
}

static void test_cuts(void) {
    os_file_info info;
    int lefts[] = {0, 2000, 0};
    if (fake_real_os.info(path, &info)) tap_note("no %s", path);
    lefts[2] = (int)info.size - 1;
    for (size_t i = 0; i < BASE_COUNT(lefts); i++) {
        test_cut(CAIRN_BACKEND_CUDA, false, lefts[i]);
        test_cut(CAIRN_BACKEND_CUDA, true, lefts[i]);
        test_cut(CAIRN_BACKEND_CPU, false, lefts[i]);
        test_cut(CAIRN_BACKEND_CPU, true, lefts[i]);
    }
}

/* ---- slices ------------------------------------------------------------------------------------ */

/* A weight of 3 MiB in a file behind 77 other bytes, read in slices by several threads: every slice
 * holds the file's bytes and leaves what lies behind it alone; a slice beyond the file is refused. */
static void test_slices(void) {
    enum { BEFORE = 77, ROWS = 1291, COLUMNS = 4096, ROW = COLUMNS / 32 * 18, GUARD = 64 };
    const size_t size = BEFORE + (size_t)ROWS * ROW;
    uint8_t *bytes = (uint8_t *)malloc(size), *to = (uint8_t *)malloc(size + GUARD);
    static forward_cuda_state f;
    static device dev;
    static base b;
    gguf file = {.size = size + ROW};
    const step_packer packer = {.f = &f, .file = &file};
    const model_weight w = {.type = BLOCK_Q4_0, .rows = ROWS, .columns = COLUMNS, .at = BEFORE};
    const int64_t slices[][2] = {{0, ROWS}, {0, 1}, {5, 113}, {5, 114}, {200, 1000}, {ROWS - 1, 1}};
    FILE *out = fopen(path, "wb");
    size_t got, bad = 0;
    uint32_t x = 12345;
    for (size_t i = 0; i < size; i++) bytes[i] = (uint8_t)((x = x * 1664525 + 1013904223) >> 24);
    if (!out || fwrite(bytes, 1, size, out) != size || fclose(out)) tap_note("no %s", path);
    base_init(&b, NULL, NULL, NULL, CAIRN_LOG_OFF);
    f.dev = &dev, dev.base = &b;
    if (pool_open(&b, 3, false, &dev.pool)) tap_note("no threads");
    file.file = os_open_sized(path, &got);
    for (size_t i = 0; i < BASE_COUNT(slices); i++) {
        const size_t first = (size_t)slices[i][0], count = (size_t)slices[i][1];
        memset(to, 0x5a, size + GUARD);
        bad += cuda_fetch_slice(&packer, &w, slices[i][0], slices[i][1], to, &got) ||
               got != count * ROW;
        bad += memcmp(to, bytes + BEFORE + first * ROW, count * ROW) != 0;
        for (size_t k = 0; k < GUARD; k++) bad += to[count * ROW + k] != 0x5a;
    }
    tap_ok(!bad, "slices of a weight by three threads are the file's bytes, and nothing else");
    tap_ok(cuda_fetch_slice(&packer, &w, 1, ROWS, to, &got) == CAIRN_FILE_ERROR,
           "a slice that the file ends in is refused");
    os_calls.close(file.file);
    pool_close(dev.pool);
    free(bytes), free(to);
}

int main(void) {
    gguf_first_bytes = 4096; /* so that small models, too, are read weight by weight */
    os_mutex_init(&memory_lock);
    snprintf(path, sizeof path, "/tmp/cairn_estimate_%d.gguf", os_process_id());
    test_slices();
    test_shapes();
    test_deep(), test_small_gpu(), test_odd();
    shape_write(path, &shape_files[0]);
    fake_install();
    fake.memory_bytes = (size_t)64 << 30;
    test_budget(CAIRN_BACKEND_CUDA);
    test_budget(CAIRN_BACKEND_CPU);
    test_batch();
    test_no_gpu();
    shape_write(path, &shape_small);
    fresh_device();
    test_steps(CAIRN_BACKEND_CUDA);
    test_steps(CAIRN_BACKEND_CPU);
    test_drafter(CAIRN_BACKEND_CUDA);
    test_drafter(CAIRN_BACKEND_CPU);
    test_more_threads();
    test_calls(false);
    test_calls(true);
    test_memory(CAIRN_BACKEND_CPU);
    test_memory(CAIRN_BACKEND_CUDA);
    test_estimate_memory(CAIRN_BACKEND_CPU);
    test_estimate_memory(CAIRN_BACKEND_CUDA);
    test_cuts();
    remove(path);
    return tap_done();
}
