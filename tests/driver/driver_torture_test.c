/* driver_torture: every call that can fail fails once, and from then on: the driver's and NVRTC's,
 * allocations, file calls; and the cache's bytes are damaged in every way. Right is a status or the
 * right answer, nothing left over, no damaged byte given to the driver, and all well afterwards.
 */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "tap.h"
#include "fake/fake_compiler.h"
#include "fake/jit_bench.h"

static int ran; /* launches of `first` with the right parameter */
static void run_first(void **parameters, const unsigned grid[3], unsigned block) {
    int value;
    memcpy(&value, parameters[0], sizeof value);
    ran += value == 41 && grid[0] == 3 && block == 64;
}
static const fake_kernel kernels[] = {{"first", sizeof(int), run_first}, {NULL, 0, NULL}};

/* From the driver to a launch, and down again. */
static cairn_status scenario(cache_mode mode) {
    jit_program *p = NULL;
    jit_kernel k;
    CUstream stream = NULL;
    int value = 41;
    void *parameters[1];
    cairn_status status = bench_open(mode);
    CUresult r = CUDA_SUCCESS;
    parameters[0] = &value;
    if (!status) status = bench_get("good.cu", 1, &p);
    if (!status) status = bench_get("good.cu", 2, &p);
    if (!status) status = jit_function(bench.j, p, "first", 60000, &k);
    if (!status) {
        r = bench.d.cuStreamCreateWithPriority(&stream, 0, 0);
        if (!r) r = bench.d.cuLaunchKernel(k.function, 3, 1, 1, 64, 1, 1, 60000, stream, parameters,
                                           NULL);
        if (!r) r = bench.d.cuStreamSynchronize(stream);
        if (stream) bench.d.cuStreamDestroy(stream);
        status = driver_fail(&bench.b, &bench.d, r, "launch");
    }
    if (bench.d.cuda) bench_close();
    return status;
}

static int no_sync(int64_t file) { (void)file; return 0; } /* spares minutes */

static void reset(void) {
    fake_install();
    os_calls.sync = no_sync;
    fake.kernels = kernels;
    bench.b.error[0] = '\0';
    ran = 0;
}

/* ---- driver and NVRTC ------------------------------------------------------------------------ */

static bool fault_once(int nth, int code, bool sticky, cache_mode mode) {
    bool good;
    cairn_status status;
    reset();
    fake.fail_at = nth;
    fake.fail_with = code;
    fake.fail_sticky = sticky;
    status = scenario(mode);
    good = status ? bench.b.error[0] != '\0' : ran == 1;
    if (!good) tap_note("call %d, code %d: status %d, ran %d, no message", nth, code, status, ran);
    if (fake.live || fake.opened || fake.bad_images) {
        tap_note("call %d, code %d: %d objects, %d libraries, %d bad images", nth, code, fake.live,
                 fake.opened, fake.bad_images);
        good = false;
    }
    return good;
}

static void test_call_faults(bool sticky, cache_mode mode, const char *what) {
    static const int codes[] = {
        CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY, NVRTC_ERROR_INVALID_OPTION,
        NVRTC_ERROR_COMPILATION, NVRTC_ERROR_BUILTIN_OPERATION_FAILURE, NVRTC_ERROR_INTERNAL_ERROR,
        NVRTC_ERROR_CANCELLED, CUDA_ERROR_INVALID_IMAGE, CUDA_ERROR_NO_BINARY_FOR_GPU,
        CUDA_ERROR_UNSUPPORTED_PTX_VERSION, CUDA_ERROR_NOT_FOUND, CUDA_ERROR_LAUNCH_FAILED,
        CUDA_ERROR_SYSTEM_NOT_READY, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED};
    size_t c;
    int n, calls, bad = 0, runs = 0;
    reset();
    if (scenario(mode)) tap_note("%s", bench.b.error);
    calls = fake.calls;
    tap_ok(ran == 1 && fake.live == 0, "%s: %d calls when nothing fails", what, calls);
    for (c = 0; c < BASE_COUNT(codes); c++)
        for (n = 1; n <= calls; n++, runs++) bad += !fault_once(n, codes[c], sticky, mode);
    tap_ok(bad == 0, "%s: each of %d calls with each of %zu errors (%d runs)", what, calls,
           BASE_COUNT(codes), runs);
    reset();
    tap_ok(!scenario(mode) && ran == 1, "%s: all is well afterwards", what);
    bench_clear();
}

/* ---- memory ---------------------------------------------------------------------------------- */

typedef struct meter { os_mutex lock; long live, left; bool wrong, persistent; } meter;

static void *meter_realloc(void *user, void *memory, size_t old_bytes, size_t new_bytes) {
    meter *m = (meter *)user;
    size_t *block = memory ? (size_t *)memory - 2 : NULL;
    bool fail;
    os_mutex_lock(&m->lock);
    fail = new_bytes && m->left == 0;
    if (new_bytes && m->left > 0) m->left--;
    if (fail && !m->persistent) m->left = -1;
    if (block && block[0] != old_bytes) m->wrong = true;
    if (!fail) m->live += (long)new_bytes - (long)old_bytes;
    os_mutex_unlock(&m->lock);
    if (fail) return NULL;
    if (!new_bytes) { free(block); return NULL; }
    block = (size_t *)realloc(block, new_bytes + 2 * sizeof *block);
    block[0] = new_bytes;
    return block + 2;
}

static void test_memory(bool persistent) {
    static meter m;
    cairn_allocator allocator;
    int n, bad = 0;
    bool reached = true;
    os_mutex_init(&m.lock);
    allocator.user = &m;
    allocator.realloc = meter_realloc;
    for (n = 0; reached && n < 2000; n++) {
        cairn_status status;
        base_init(&bench.b, &allocator, NULL, NULL, CAIRN_LOG_OFF);
        reset();
        m.live = 0, m.left = n, m.wrong = false, m.persistent = persistent;
        status = scenario(n % 2 ? CACHE_MEMORY : CACHE_READ_WRITE);
        reached = persistent ? m.left == 0 : m.left < 0;
        bad += m.live != 0 || m.wrong || fake.live || fake.opened ||
               (status ? !bench.b.error[0] : ran != 1);
        if (n % 2 == 0) bench_clear();
    }
    base_init(&bench.b, NULL, NULL, NULL, CAIRN_LOG_OFF);
    tap_ok(bad == 0 && n > 20 && !reached, "each of %d allocations fails %s", n - 1,
           persistent ? "and all after it" : "once");
}

/* ---- files ----------------------------------------------------------------------------------- */

static int file_left, file_code;
static bool file_bad(void) { return file_left >= 0 && file_left-- == 0; }
#define FILE_FAULT(type, name, signature, call) \
    static type file_##name signature { return file_bad() ? (type)-file_code : fake_real_os.call; }
FILE_FAULT(int64_t, open, (const char *p, int m), open(p, m))
FILE_FAULT(int64_t, read, (int64_t f, void *d, size_t n), read(f, d, n))
FILE_FAULT(int64_t, write, (int64_t f, const void *d, size_t n), write(f, d, n / 2 + 1))
static int file_sync(int64_t f) { (void)f; return file_bad() ? -file_code : 0; }
FILE_FAULT(int, info, (const char *p, os_file_info *o), info(p, o))
FILE_FAULT(int, file_info, (int64_t f, os_file_info *o), file_info(f, o))
FILE_FAULT(int, rename, (const char *a, const char *b), rename(a, b))
FILE_FAULT(int, remove, (const char *p), remove(p))
FILE_FAULT(int, make_directory, (const char *p), make_directory(p))
FILE_FAULT(int, list, (const char *p, os_list_entry e, void *u), list(p, e, u))

static void arm_files(int nth, int code) {
    file_left = nth;
    file_code = code;
    os_calls.open = file_open, os_calls.read = file_read, os_calls.write = file_write;
    os_calls.sync = file_sync, os_calls.info = file_info, os_calls.file_info = file_file_info;
    os_calls.rename = file_rename, os_calls.remove = file_remove;
    os_calls.make_directory = file_make_directory, os_calls.list = file_list;
}

/* A cold and a warm start under each fault: both must work, a cache is never a reason to fail. */
static void test_file_faults(void) {
    static const int codes[] = {ENOSPC, EROFS, EACCES, EIO, EINTR, ENOENT};
    size_t c;
    for (c = 0; c < BASE_COUNT(codes); c++) {
        int n, bad = 0;
        bool reached = true;
        for (n = 0; reached && n < 200; n++) {
            cairn_status cold, warm;
            reset();
            arm_files(n, codes[c]);
            cold = scenario(CACHE_READ_WRITE);
            warm = scenario(CACHE_READ_WRITE);
            reached = file_left < 0;
            bad += cold || warm || ran != 2 || fake.bad_images;
            reset();
            bench_clear();
        }
        tap_ok(bad == 0 && n > 10 && !reached, "error %d at each of %d file calls", codes[c],
               n - 1);
    }
}

static int no_thread(void *t, size_t n, void (*run)(void *), void *c) {
    (void)t, (void)n, (void)run, (void)c;
    return -EAGAIN;
}
static void test_no_threads(void) {
    reset();
    os_calls.thread_start = no_thread;
    tap_ok(scenario(CACHE_OFF) == CAIRN_OUT_OF_MEMORY && strstr(bench.b.error, "thread"),
           "no thread to be had");
    reset();
    tap_ok(!scenario(CACHE_OFF), "and then there is");
}

/* ---- damage ---------------------------------------------------------------------------------- */

static base_text whole; /* a good entry */
static char entry_path[OS_PATH_BYTES];

static void make_entry(void) {
    jit_program *p;
    reset();
    bench_clear();
    bench_open(CACHE_READ_WRITE);
    bench_get("good.cu", 1, &p);
    bench_close();
    bench_entry(entry_path);
    whole.size = 0;
    os_read_file(&bench.b, entry_path, &whole);
}

/* With these bytes in the entry's place: the program is got, and not from the entry. */
static bool survives(const void *bytes, size_t size) {
    jit_program *p = NULL;
    bool good;
    os_write_file(&bench.b, entry_path, bytes, size);
    reset();
    good = !bench_open(CACHE_READ_WRITE) && !bench_get("good.cu", 1, &p) && !p->from_cache;
    bench_close();
    good = good && fake.bad_images == 0 && fake.live == 0;
    good = good && !bench_open(CACHE_READ_ONLY) && !bench_get("good.cu", 1, &p) && p->from_cache;
    bench_close(); /* it was written anew, and whole */
    return good;
}

static void test_truncation(void) {
    size_t n;
    int bad = 0;
    make_entry();
    for (n = 0; n < whole.size; n++) bad += !survives(whole.data, n);
    tap_ok(bad == 0 && whole.size > 300, "an entry cut at each of %zu lengths", whole.size);
    base_text_add(&bench.b, &whole, "x", 1);
    tap_ok(survives(whole.data, whole.size), "an entry with a byte too many");
}

static void test_flips(unsigned seed) {
    int bit, bad = 0, i;
    make_entry();
    for (bit = 0; bit < CACHE_HEADER_BYTES * 8; bit += 3) {
        whole.data[bit / 8] = (char)(whole.data[bit / 8] ^ 1 << bit % 8);
        bad += !survives(whole.data, whole.size);
        whole.data[bit / 8] = (char)(whole.data[bit / 8] ^ 1 << bit % 8);
    }
    tap_ok(bad == 0, "every third bit of the header flipped");
    for (i = 0, bad = 0; i < 300; i++) {
        size_t at = CACHE_HEADER_BYTES + (size_t)rand() % (whole.size - CACHE_HEADER_BYTES);
        char mask = (char)(1 << rand() % 8);
        whole.data[at] = (char)(whole.data[at] ^ mask);
        bad += !survives(whole.data, whole.size);
        whole.data[at] = (char)(whole.data[at] ^ mask);
    }
    tap_ok(bad == 0, "300 bits of the payload flipped (seed %u)", seed);
}

/* The right name on another program's entry; a directory in an entry's place. */
static void test_wrong_place(void) {
    jit_program *p = NULL;
    make_entry();
    bench_open(CACHE_READ_WRITE);
    os_calls.remove(entry_path);
    bench_get("good.cu", 2, &p);
    bench_close();
    {
        char other[OS_PATH_BYTES];
        bench_entry(other);
        whole.size = 0;
        os_read_file(&bench.b, other, &whole);
    }
    tap_ok(survives(whole.data, whole.size), "another program's entry under this name");
    os_calls.remove(entry_path);
    mkdir(entry_path, 0777);
    reset();
    bench_open(CACHE_READ_WRITE);
    tap_ok(!bench_get("good.cu", 1, &p) && !p->from_cache && !fake.bad_images, "a folder there");
    bench_close();
    rmdir(entry_path);
}

/* An entry that is whole, but that the driver refuses: compiled anew. */
static void test_refused(void) {
    jit_program *p = NULL;
    int n, calls;
    make_entry();
    reset();
    bench_open(CACHE_READ_WRITE);
    calls = fake.calls;
    for (n = 1; n < 10 && (!p || p->from_cache); n++) {
        bench_close();
        reset();
        fake.fail_with = CUDA_ERROR_NO_BINARY_FOR_GPU;
        bench_open(CACHE_READ_WRITE);
        fake.fail_at = n;
        if (bench_get("good.cu", 1, &p)) p = NULL;
    }
    tap_ok(p && !p->from_cache && fake.compiles == 1, "an entry the driver refuses (call %d)",
           calls);
    bench_close();
}

int main(void) {
    unsigned seed = (unsigned)os_wall_us();
    if (!bench_start()) return tap_done();
    srand(seed);
    test_call_faults(false, CACHE_OFF, "once");
    test_call_faults(true, CACHE_MEMORY, "for good");
    test_memory(false);
    test_memory(true);
    test_file_faults();
    test_no_threads();
    test_truncation();
    test_flips(seed);
    test_wrong_place();
    test_refused();
    base_text_free(&bench.b, &whole);
    bench_stop();
    return tap_done();
}
