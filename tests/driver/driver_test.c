/* driver, cache, jit on the fake driver: the search and its failures, one compile for many
 * requests, errors with their line, cancelling, and a cache that is hit without NVRTC.
 */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "tap.h"
#include "fake/fake_compiler.h"
#include "fake/jit_bench.h"

/* ---- the search ------------------------------------------------------------------------------ */

static cairn_status open_driver(void) {
    driver_calls d;
    cairn_status status = driver_open(&bench.b, NULL, &d);
    driver_close(&d);
    return status;
}

static void test_driver_statuses(void) {
    fake_install();
    tap_ok(open_driver() == CAIRN_OK && fake.opened == 0, "a driver opens and closes");
    fake.no_cuda = true;
    tap_ok(open_driver() == CAIRN_NO_DRIVER && strstr(bench.b.error, FAKE_CUDA_NAME) &&
           (OS_SEPARATOR != '/' || strstr(bench.b.error, "/usr/lib/wsl")),
           "no driver: every place is named");
    fake_install();
    fake.cuda_version = 11040;
    tap_ok(open_driver() == CAIRN_DRIVER_TOO_OLD && strstr(bench.b.error, "11.4"), "CUDA 11.4");
    fake_install();
    fake.missing_symbol = "cuLaunchKernelEx";
    tap_ok(open_driver() == CAIRN_DRIVER_TOO_OLD && strstr(bench.b.error, "cuLaunchKernelEx"),
           "a function is missing");
    fake_install();
    fake.device_count = 0;
    tap_ok(open_driver() == CAIRN_NO_DEVICE, "no device");
    fake.init_result = CUDA_ERROR_NO_DEVICE;
    tap_ok(open_driver() == CAIRN_NO_DEVICE, "cuInit: no device");
    fake.init_result = CUDA_ERROR_STUB_LIBRARY;
    tap_ok(open_driver() == CAIRN_NO_DRIVER && strstr(bench.b.error, "stub"), "the toolkit's stub");
    fake.init_result = CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
    tap_ok(open_driver() == CAIRN_NO_DRIVER && strstr(bench.b.error, "reboot"), "a mismatch");
    fake.init_result = CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE;
    tap_ok(open_driver() == CAIRN_DRIVER_TOO_OLD && strstr(bench.b.error, "forward-compatible"),
           "a driver that this GPU does not take");
    tap_ok(fake.opened == 0, "every library was closed again");
    tap_ok(driver_status(CUDA_SUCCESS) == CAIRN_OK && driver_status(CUDA_ERROR_NOT_READY) == CAIRN_BUSY &&
           driver_status(CUDA_ERROR_INVALID_DEVICE) == CAIRN_NO_DEVICE &&
           driver_status(CUDA_ERROR_NOT_SUPPORTED) == CAIRN_UNSUPPORTED, "results that have a status of their own");
}

static void test_optional(void) {
    driver_calls d;
    fake_install();
    fake.no_optional = true;
    tap_ok(!driver_open(&bench.b, NULL, &d) && d.cuFuncLoad(NULL) == CUDA_ERROR_NOT_SUPPORTED,
           "an absent optional function answers: not supported");
    driver_close(&d);
}

static cairn_status open_nvrtc(int cuda_version) {
    driver_calls d;
    cairn_status status;
    memset(&d, 0, sizeof d);
    d.cuda_version = cuda_version;
    status = driver_open_nvrtc(&bench.b, NULL, &d);
    driver_close(&d);
    return status;
}

static void test_nvrtc_statuses(void) {
    fake_install();
    tap_ok(open_nvrtc(13000) == CAIRN_OK && open_nvrtc(0) == CAIRN_OK, "NVRTC opens");
    fake.no_nvrtc = true;
    tap_ok(open_nvrtc(13000) == CAIRN_NO_NVRTC, "no NVRTC");
    fake.no_nvrtc = false;
    fake.no_builtins = true;
    tap_ok(open_nvrtc(13000) == CAIRN_NO_NVRTC_BUILTINS, "no builtins");
    fake_install();
    fake.missing_symbol = "nvrtcGetCUBIN";
    tap_ok(open_nvrtc(13000) == CAIRN_NVRTC_TOO_OLD, "an NVRTC that lacks a function");
    fake_install();
    fake.nvrtc_major = 12;
    tap_ok(open_nvrtc(13000) == CAIRN_OK, "an older NVRTC than the driver serves");
    fake.nvrtc_major = 14;
    tap_ok(open_nvrtc(13000) == CAIRN_OK, "a newer one is taken when there is no other");
    tap_ok(fake.opened == 0, "every library was closed again");
}

/* ---- Python packages ------------------------------------------------------------------------- */

#ifndef _WIN32
static char opened_at[OS_PATH_BYTES]; /* the NVRTC that was opened last */

/* There is none but below the test's folder. */
static void *open_below(const char *path, bool loaded_only, char *why, size_t why_bytes) {
    void *library = NULL;
    if (strstr(path, "nvrtc.so") && strncmp(path, bench.directory, strlen(bench.directory))) {
        if (why_bytes) snprintf(why, why_bytes, "not here");
        return NULL;
    }
    library = fake_library_open(path, loaded_only, why, why_bytes);
    if (library && strstr(path, "nvrtc.so")) snprintf(opened_at, sizeof opened_at, "%s", path);
    return library;
}

/* A wheel's NVRTC is found in the folder of packages `below` the root that the variable names. */
static void find_package(const char *variable, const char *below, const char *file) {
    char folder[OS_PATH_BYTES], path[OS_PATH_BYTES], kept[OS_PATH_BYTES] = "";
    const char *before = getenv(variable);
    if (before) snprintf(kept, sizeof kept, "%s", before);
    snprintf(folder, sizeof folder, "%s/%s", bench.directory, below);
    snprintf(path, sizeof path, "%.400s/%s", folder, file);
    tap_ok(!os_make_path(folder), "a folder of packages: %s", below);
    fake_install();
    os_calls.library_open = open_below;
    setenv(variable, bench.directory, 1);
    opened_at[0] = '\0';
    tap_ok(open_nvrtc(13000) == CAIRN_NO_NVRTC && !opened_at[0], "there is no NVRTC in it");
    os_directory_of(path, folder, sizeof folder);
    tap_ok(!os_make_path(folder) && !os_write_file(&bench.b, path, "", 0) &&
           open_nvrtc(13000) == CAIRN_OK && !strcmp(opened_at, path), "found: %s", opened_at);
    tap_ok(fake.opened == 0, "every library was closed again");
    if (before) setenv(variable, kept, 1);
    else unsetenv(variable);
    os_calls.remove(path);
    for (size_t top = strlen(bench.directory); os_directory_of(path, folder, sizeof folder) &&
                                               strlen(folder) > top;) {
        rmdir(folder);
        memcpy(path, folder, sizeof path);
    }
}

static void test_packages(void) {
    find_package("VIRTUAL_ENV", "lib/python3.11/site-packages", "nvidia/cu13/lib/libnvrtc.so.13");
    find_package("HOME", ".local/lib/python3.9/dist-packages", "nvidia/cuda_nvrtc/lib/libnvrtc.so.13");
}
#else
static void test_packages(void) {}
#endif

/* ---- programs -------------------------------------------------------------------------------- */

static void test_programs(void) {
    jit_program *a = NULL, *b = NULL, *c = NULL;
    jit_kernel kernel, held;
    jit_constant twice[2], bad[1];
    jit_request request;
    fake_install();
    bench_open(CACHE_OFF);
    tap_ok(!bench_get("good.cu", 1, &a) && !bench_get("good.cu", 1, &b) && a == b &&
           fake.compiles == 1, "a program is compiled once");
    tap_ok(!bench_get("good.cu", 2, &c) && c != a && fake.compiles == 2, "another constant");
    tap_ok(!jit_function(bench.j, a, "first", 100000, &kernel) && kernel.registers == 32 &&
           kernel.function->shared_bytes == 100000, "its function is ready to launch");
    held = kernel;
    tap_ok(jit_function(bench.j, a, "none", 0, &kernel) == CAIRN_NOT_FOUND &&
           strstr(bench.b.error, "good.cu"), "a kernel that is not there");
    tap_ok(jit_function(bench.j, a, "first", 1 << 20, &kernel) && strstr(bench.b.error, "1048576"),
           "too much shared memory");
    tap_ok(!memcmp(&held, &kernel, sizeof held), "and the kernel that was there stays");
    tap_ok(bench_get("none.cu", 1, &b) == CAIRN_NOT_FOUND && !b, "a template that is not there");
    twice[0].name = twice[1].name = "N";
    twice[0].value = twice[1].value = 1;
    request.source = "good.cu", request.constants = twice, request.constant_count = 2;
    tap_ok(jit_get(bench.j, &request, &b) == CAIRN_INVALID_ARGUMENT, "a constant given twice");
    bad[0].name = "N 1\n#define M", bad[0].value = 1;
    request.constants = bad, request.constant_count = 1;
    tap_ok(jit_get(bench.j, &request, &b) == CAIRN_INVALID_ARGUMENT, "a name that is none");
    bench_close();
    tap_ok(fake.live == 0, "nothing is left (%d)", fake.live);
}

/* Compiled for a machine that has no device: there is an image, and nothing to launch. */
static void test_alone(void) {
    jit_program *p = NULL;
    jit_kernel kernel = {0};
    fake_install();
    bench_alone = true;
    bench_open(CACHE_OFF);
    tap_ok(!bench_get("good.cu", 1, &p) && fake.compiles == 1 && !fake.loads,
           "compiled without a device, and not loaded");
    tap_ok(jit_function(bench.j, p, "first", 0, &kernel) == CAIRN_UNSUPPORTED && !kernel.function &&
           strstr(bench.b.error, "good.cu was compiled without a device"), "%s", bench.b.error);
    bench_close();
    bench_alone = false;
}

#ifdef __linux__
#include <sys/resource.h>

/* NVRTC would abort the process: it is not opened then, and is when there is memory again. */
static void test_little_memory(void) {
    jit_program *p = NULL;
    struct rlimit kept, low;
    cairn_status status;
    fake_install();
    bench_open(CACHE_OFF);
    getrlimit(RLIMIT_AS, &kept);
    low = kept;
    low.rlim_cur = (rlim_t)(os_posix_number_in("/proc/self/statm", "") * sysconf(_SC_PAGESIZE)) +
                   ((rlim_t)180 << 20);
    setrlimit(RLIMIT_AS, &low);
    status = bench_get("good.cu", 1, &p);
    setrlimit(RLIMIT_AS, &kept);
    tap_ok(status == CAIRN_OUT_OF_MEMORY && strstr(bench.b.error, "NVRTC aborts the program when memory") &&
           !fake.compiles, "little memory: %s", bench.b.error);
    tap_ok(!bench_get("good.cu", 1, &p) && fake.compiles == 1, "compiled when there is memory again");
    bench_close();
}
#else
static void test_little_memory(void) {}
#endif

static void test_mistake(void) {
    jit_program *p;
    fake_install();
    bench_open(CACHE_OFF);
    tap_ok(bench_get("bad.cu", 7, &p) == CAIRN_COMPILE_FAILED &&
           strstr(bench.b.error, "kernels_src/bad.cu(3): error") && strstr(bench.b.error, "N 7"),
           "a mistake names template, line and constants");
    tap_ok(bench_get("bad.cu", 7, &p) == CAIRN_COMPILE_FAILED && fake.compiles == 1 &&
           strstr(bench.b.error, "bad.cu(3)"), "and is not compiled again");
    fake.compile_result = NVRTC_ERROR_BUILTIN_OPERATION_FAILURE;
    fake.compile_log = "nvrtc: error: failed to open libnvrtc-builtins.so.13.0";
    tap_ok(bench_get("good.cu", 1, &p) == CAIRN_NO_NVRTC_BUILTINS && fake.compiles == 3 &&
           strstr(bench.b.error, "failed to open"), "builtins missing at the compile: tried twice");
    fake.compile_result = NVRTC_ERROR_COMPILATION;
    fake.compile_log = "";
    tap_ok(bench_get("good.cu", 1, &p) == CAIRN_COMPILE_FAILED && fake.compiles == 5,
           "a failure without a word is not the template's");
    fake.compile_result = 0;
    tap_ok(!bench_get("good.cu", 1, &p), "and when the cause is gone it compiles");
    fake.no_nvrtc = true;
    bench_close();
    bench_open(CACHE_OFF);
    tap_ok(bench_get("good.cu", 1, &p) == CAIRN_NO_NVRTC, "no NVRTC when it is needed");
    fake.no_nvrtc = false;
    tap_ok(!bench_get("good.cu", 1, &p), "and it is looked for again");
    bench_close();
}

static void test_new_device(void) {
    jit_program *p = NULL;
    fake_install();
    fake.major = 13;
    bench_open(CACHE_MEMORY);
    tap_ok(!bench_get("good.cu", 1, &p) && p->from_ptx, "a device newer than NVRTC runs its PTX");
    bench_close();
    for (int image = 0; image < 2; image++) {
        bench_open(CACHE_OFF);
        fake.link_result = image ? CUDA_ERROR_UNSUPPORTED_PTX_VERSION : CUDA_ERROR_OUT_OF_MEMORY;
        tap_ok(bench_get("good.cu", 1, &p) == (image ? CAIRN_NVRTC_TOO_OLD : CAIRN_OUT_OF_DEVICE_MEMORY) &&
               strstr(bench.b.error, image ? "sm_130 is newer than NVRTC" : "cuLinkComplete"),
               "or says what the driver's linker said: %s", bench.b.error);
        fake.link_result = CUDA_SUCCESS;
        bench_close();
    }
    fake.nvrtc_arch_count = 0;
    bench_open(CACHE_OFF);
    tap_ok(bench_get("good.cu", 1, &p) == CAIRN_UNSUPPORTED && strstr(bench.b.error, "lists 0 architectures"),
           "an NVRTC that knows no device: %s", bench.b.error);
    bench_close();
    fake.nvrtc_arch_count = 3;
    fake.major = 7;
    bench_open(CACHE_MEMORY);
    tap_ok(bench_get("good.cu", 1, &p) == CAIRN_UNSUPPORTED && strstr(bench.b.error, "sm_70"),
           "a device older than NVRTC knows");
    bench_close();
    tap_ok(fake.live == 0, "nothing is left (%d)", fake.live);
}

/* ---- batches --------------------------------------------------------------------------------- */

enum { MANY = 24 };
static jit_constant many_constants[MANY];
static const jit_request *many(int from) {
    static jit_request requests[MANY];
    int i;
    for (i = 0; i < MANY; i++) {
        many_constants[i].name = "N";
        many_constants[i].value = from + i / 2; /* every program twice */
        requests[i].source = "good.cu";
        requests[i].constants = &many_constants[i];
        requests[i].constant_count = 1;
    }
    return requests;
}

typedef struct watch { int calls, last, stop_at; bool wrong; } watch;
static bool on_progress(void *user, const char *kernel, int index, int count) {
    watch *w = (watch *)user;
    if (index < w->last || count != MANY / 2 || strcmp(kernel, "good.cu")) w->wrong = true;
    w->last = index;
    return ++w->calls != w->stop_at;
}

static cairn_status build_all(jit *j, const jit_request *requests, int count) {
    cairn_status status = jit_begin(j, requests, count);
    return status ? status : jit_wait(j);
}

static void test_batches(void) {
    jit_progress progress;
    cairn_status status;
    watch w;
    fake_install();
    bench_open(CACHE_OFF);
    fake.compile_us = 3000;
    memset(&w, 0, sizeof w);
    bench.j->options.progress = on_progress;
    bench.j->options.progress_user = &w;
    tap_ok(!build_all(bench.j, many(0), MANY) && fake.compiles == MANY / 2 && w.calls > 0 &&
           !w.wrong, "%d requests, %d programs, %d progress calls", MANY, fake.compiles, w.calls);
    fake.compile_us = 20000000;
    tap_ok(!jit_begin(bench.j, many(100), MANY) && jit_poll(bench.j, &progress) == CAIRN_BUSY &&
           progress.done == 0, "begin returns before a program is compiled");
    os_atomic_store(&fake.let_go, 1);
    while ((status = jit_poll(bench.j, &progress)) == CAIRN_BUSY) os_sleep_us(200);
    tap_ok(!status && progress.done == MANY / 2 && progress.total == MANY / 2, "poll sees the end");
    os_atomic_store(&fake.let_go, 0);
    memset(&w, 0, sizeof w);
    w.stop_at = 2;
    fake.compile_us = 100000;
    tap_ok(build_all(bench.j, many(200), MANY) == CAIRN_CANCELLED && fake.compiles < MANY * 3 / 2,
           "progress that returns false cancels");
    w.stop_at = 0;
    fake.compile_us = 2000;
    tap_ok(!build_all(bench.j, many(200), MANY), "and what was cancelled can be had after all");
    fake.compile_us = 50000;
    jit_begin(bench.j, many(300), MANY);
    os_sleep_us(5000);
    bench_close();
    tap_ok(fake.live == 0, "closed in the middle of a batch, nothing is left (%d)", fake.live);
}

/* Front ends come one by one, as was asked for, whether NVRTC is opened by then or not; with a second copy of it two
 * at once. They do not wait for what is behind another's front end. */
static void test_fronts(void) {
    int sorted, kept;
    for (int i = 0; i < 4; i++) {
        const int twin = i % 2;
        fake_install();
        fake.twin = twin != 0;
        bench_open(CACHE_OFF);
        bench.j->options.threads = 12;
        if (i / 2) jit_open_ahead(bench.j), jit_join(bench.j, true);
        fake.front_us = 60000, fake.compile_us = 20000000;
        sorted = 0;
        jit_begin(bench.j, many(0), MANY);
        for (int n = 0; n < 5000 && fake.compiles < MANY / 2; n++) os_sleep_us(1000);
        tap_ok(fake.compiles == MANY / 2, "all are read while none is through");
        os_atomic_store(&fake.let_go, 1);
        tap_ok(!jit_wait(bench.j) && fake.most_fronts == 1 + twin, "%d front ends at once", fake.most_fronts);
        for (int k = 1; k < MANY / 2; k++) sorted += fake.read[k] > fake.read[k - 1];
        kept = fake.opened;
        tap_ok(twin ? sorted >= MANY / 2 - 5 : sorted == MANY / 2 - 1, "%d of %d in their order", sorted, MANY / 2 - 1);
        bench_close();
        tap_ok(fake.opened == 0 && kept == 3 + 2 * twin && fake.live == 0, "every library was closed again");
    }
    fake_install();
    fake.twin = fake.no_optional = true;
    bench_open(CACHE_OFF);
    bench.j->options.threads = 12;
    fake.front_us = 60000;
    tap_ok(!build_all(bench.j, many(0), MANY) && fake.most_fronts > 2, "an NVRTC that does not ask: as it likes");
    bench_close();
}

typedef struct front_visit { jit_program *p; base own; os_thread thread; os_atomic inside; } front_visit;

static void visit_front(void *context) {
    front_visit *v = (front_visit *)context;
    jit_front front;
    os_atomic_store(&v->inside, jit_enter_front(bench.j, &v->own, v->p, &front));
    jit_leave_front(&front);
}

/* Who gives way to an older program that has yet to come to the front end need not any more once someone waits for
 * it: it is told, for the older one will give way to it. */
static void test_raised(void) {
    static const jit_constant seven = {"N", 7}, eight = {"N", 8};
    const jit_request older = {"good.cu", &seven, 1, JIT_LATER}, newer = {"good.cu", &eight, 1, JIT_LATER};
    jit_program *comes = NULL;
    front_visit v;
    bool waits = false;
    memset(&v, 0, sizeof v);
    fake_install();
    bench_open(CACHE_OFF);
    if (!tap_ok(!jit_program_of(bench.j, &older, &comes) && !jit_program_of(bench.j, &newer, &v.p), "two programs"))
        return;
    base_fork(&bench.b, &v.own);
    comes->state = v.p->state = JIT_RUNNING, comes->comes = true;
    if (!tap_ok(os_thread_start(&v.thread, 0, visit_front, &v), "the newer one comes to the front end")) return;
    for (int i = 0; i < 5000 && !waits; i++) {
        os_sleep_us(1000);
        os_mutex_lock(&bench.j->lock);
        waits = v.p->waits;
        os_mutex_unlock(&bench.j->lock);
    }
    tap_ok(waits && !os_atomic_load(&v.inside), "and waits for the older one");
    os_mutex_lock(&bench.j->lock);
    jit_enqueue(bench.j, v.p, JIT_AWAITED);
    os_mutex_unlock(&bench.j->lock);
    for (int i = 0; i < 5000 && !os_atomic_load(&v.inside); i++) os_sleep_us(1000);
    tap_ok(os_atomic_load(&v.inside), "until someone waits for it");
    jit_cancel(bench.j);
    os_mutex_lock(&bench.j->lock);
    os_cond_broadcast(&bench.j->changed);
    comes->comes = false, comes->state = v.p->state = JIT_NEW;
    os_mutex_unlock(&bench.j->lock);
    os_thread_join(&v.thread);
    bench_close();
}

/* Each call fails once while a second copy is opened and used. */
static void test_front_faults(void) {
    int left = 0, wrong = 0, failures = 0;
    for (int n = 20; n < 100; n++) {
        cairn_status status;
        fake_install();
        fake.twin = true, fake.front_us = 1000;
        fake.fail_at = n, fake.fail_with = NVRTC_ERROR_INTERNAL_ERROR;
        status = bench_open(CACHE_OFF);
        if (!status) {
            bench.j->options.threads = 12;
            status = build_all(bench.j, many(0), MANY);
            wrong += fake.compiles < MANY / 2 && !status;
        }
        failures += status != CAIRN_OK;
        if (bench.d.cuda) bench_close();
        left += fake.live != 0 || fake.opened != 0;
    }
    tap_ok(!left && !wrong, "with 80 calls that fail in turn, %d of them told, nothing is left", failures);
}

/* A request for later is compiled, but no one waits for it. */
static void test_later(void) {
    static const jit_constant seven = {"N", 7}, eight = {"N", 8};
    jit_request slow = {"good.cu", &seven, 1, JIT_LATER}, now = {"good.cu", &eight, 1, JIT_AWAITED};
    jit_program *p = NULL, *q = NULL;
    fake_install();
    bench_open(CACHE_OFF);
    fake.compile_us = 20000000;
    tap_ok(!jit_begin(bench.j, &slow, 1) && !jit_poll(bench.j, NULL) &&
           jit_try(bench.j, &slow, &p) == CAIRN_BUSY && !p, "later: begun, and not waited for");
    for (int i = 0; i < 5000 && fake.compiles < 1; i++) os_sleep_us(1000);
    fake.compile_us = 0;
    tap_ok(!build_all(bench.j, &now, 1) && !jit_get(bench.j, &now, &q) && fake.compiles == 2 &&
           jit_try(bench.j, &slow, &p) == CAIRN_BUSY, "another is there before it");
    os_atomic_store(&fake.let_go, 1);
    tap_ok(!jit_get(bench.j, &slow, &p) && p && p != q && fake.compiles == 2 &&
           !jit_try(bench.j, &slow, &q) && q == p, "it can be waited for after all");
    os_atomic_store(&fake.let_go, 0);
    fake.compile_us = 20000000;
    slow.constant_count = 0;
    jit_begin(bench.j, &slow, 1);
    bench_close();
    tap_ok(fake.live == 0, "closed while one is under way, nothing is left (%d)", fake.live);
}

/* What is begun beside what someone waits for does not rest, and no one waits for it. */
static void test_beside(void) {
    static const jit_constant seven = {"N", 7}, eight = {"N", 8}, nine = {"N", 9};
    const jit_request all[] = {{"good.cu", &seven, 1, JIT_LATER}, {"good.cu", &eight, 1, JIT_BESIDE},
                               {"good.cu", &nine, 1, JIT_AWAITED}};
    jit_progress progress;
    jit_program *p = NULL;
    fake_install();
    bench_open(CACHE_OFF);
    bench.j->options.threads = 12;
    fake.compile_us = 20000000;
    jit_begin(bench.j, all, 3);
    for (int i = 0; i < 5000 && fake.compiles < 2; i++) os_sleep_us(1000);
    os_sleep_us(20000);
    tap_ok(fake.compiles == 2 && jit_state_of(bench.j, bench.j->programs) == JIT_RUNNING &&
           jit_state_of(bench.j, bench.j->programs->next) == JIT_RUNNING &&
           jit_poll(bench.j, &progress) == CAIRN_BUSY && progress.total == 1,
           "beside: begun with what is waited for, and not counted (%d of %d)", (int)fake.compiles, progress.total);
    os_atomic_store(&fake.let_go, 1);
    tap_ok(!jit_wait(bench.j) && !jit_get(bench.j, &all[1], &p) && p && !jit_get(bench.j, &all[0], &p) &&
           fake.compiles == 3, "each is compiled once");
    os_atomic_store(&fake.let_go, 0);
    bench_close();
    tap_ok(fake.live == 0, "and nothing is left (%d)", fake.live);
}

/* Whoever waits has all threads' processors; then those rest no longer. */
static void test_later_rests(void) {
    static const jit_constant seven = {"N", 7}, eight = {"N", 8}, nine = {"N", 9};
    const jit_request both[] = {{"good.cu", &seven, 1, JIT_LATER}, {"good.cu", &eight, 1, JIT_AWAITED}};
    const jit_request third = {"good.cu", &nine, 1, JIT_AWAITED};
    jit_program *p = NULL;
    fake_install();
    bench_open(CACHE_OFF);
    fake.compile_us = 20000000;
    jit_begin(bench.j, both, 2);
    for (int i = 0; i < 5000 && fake.compiles < 1; i++) os_sleep_us(1000);
    os_sleep_us(20000);
    tap_ok(fake.compiles == 1 && bench.j->running == 2 && jit_try(bench.j, both, &p) == CAIRN_BUSY,
           "what is for later rests while another is compiled");
    jit_begin(bench.j, &third, 1);
    for (int i = 0; i < 5000 && fake.compiles < 2; i++) os_sleep_us(1000);
    tap_ok(fake.compiles == 2, "what is wanted at once wakes the thread that rests");
    os_atomic_store(&fake.let_go, 1);
    tap_ok(!jit_wait(bench.j), "both are waited for");
    for (int i = 0; i < 5000 && jit_try(bench.j, both, &p) == CAIRN_BUSY; i++) os_sleep_us(1000);
    tap_ok(p && fake.compiles == 3, "and it is compiled when they are done");
    os_atomic_store(&fake.let_go, 0);
    jit_begin(bench.j, &(jit_request){"good.cu", NULL, 0, JIT_LATER}, 1);
    jit_begin(bench.j, &(jit_request){"bad.cu", &nine, 1, JIT_AWAITED}, 1);
    os_sleep_us(20000);
    bench_close();
    tap_ok(fake.live == 0, "closed while one rests, nothing is left (%d)", fake.live);
}

static int opened_now(void) {
    int32_t compiled, cached, opened;
    jit_counts(bench.j, &compiled, &cached, &opened);
    return opened;
}

/* Where nothing is kept NVRTC is opened before there is a device. */
static void test_ahead(void) {
    jit_program *p = NULL;
    int bad = 0;
    fake_install();
    bench_open(CACHE_MEMORY);
    bench.j->options.context = NULL, bench.j->options.arch = 0;
    jit_open_ahead(bench.j);
    for (int i = 0; i < 5000 && !opened_now(); i++) os_sleep_us(1000);
    tap_ok(opened_now() == 1 && !p, "NVRTC is opened ahead of any request");
    jit_set_device(bench.j, bench.context, fake.major * 10 + fake.minor);
    tap_ok(!bench_get("good.cu", 1, &p) && p->module && opened_now() == 1, "and compiles once there is a device");
    bench_close();
    bench_open(CACHE_MEMORY);
    bench.j->options.threads = 1;
    jit_open_ahead(bench.j);
    tap_ok(!bench.j->ahead && opened_now() == 0, "not where one thread is all there may be");
    bench_close();
    for (int i = 0; i < 50; i++) { /* requests and the end come while it is on its way */
        bench_open(CACHE_OFF);
        jit_open_ahead(bench.j);
        if (i % 3) bad += bench_get("good.cu", i, &p) != CAIRN_OK;
        bench_close();
    }
    tap_ok(!bad && fake.live == 0, "at once asked for or closed, all is well (%d, %d)", bad, fake.live);
    fake.no_nvrtc = true;
    bench_open(CACHE_OFF);
    jit_open_ahead(bench.j);
    jit_join(bench.j, true);
    tap_ok(!bench.b.error[0] || !strstr(bench.b.error, "NVRTC"), "what fails ahead is not told");
    tap_ok(bench_get("good.cu", 1, &p) == CAIRN_NO_NVRTC, "but to who asks");
    bench_close();
    fake.no_nvrtc = false;
}

/* What failed for one who gave up is no failure of who comes while others are under way. */
static void test_given_up(void) {
    static const jit_constant seven = {"N", 7}, eight = {"N", 8};
    const jit_request slow = {"good.cu", &seven, 1, JIT_AWAITED}, bad = {"bad.cu", &seven, 1, JIT_AWAITED};
    const jit_request now = {"good.cu", &eight, 1, JIT_AWAITED};
    jit_program *p = NULL;
    fake_install();
    bench_open(CACHE_OFF);
    fake.compile_us = 20000000;
    jit_begin(bench.j, &slow, 1);
    for (int i = 0; i < 5000 && fake.compiles < 1; i++) os_sleep_us(1000);
    fake.compile_us = 0;
    jit_begin(bench.j, &bad, 1);
    for (int i = 0; i < 5000 && jit_try(bench.j, &bad, &p) == CAIRN_BUSY; i++) os_sleep_us(1000);
    jit_begin(bench.j, &now, 1);
    os_atomic_store(&fake.let_go, 1);
    tap_ok(!jit_wait(bench.j) && !jit_try(bench.j, &now, &p) && p, "a wait tells no failure of before");
    tap_ok(jit_try(bench.j, &bad, &p) == CAIRN_COMPILE_FAILED, "which who asks for it is told");
    os_atomic_store(&fake.let_go, 0);
    bench_close();
    tap_ok(fake.live == 0, "nothing is left (%d)", fake.live);
}

/* Begun under a compiler that fails for the moment. */
static void begin_failing(const jit_request *request) {
    const int before = fake.compiles;
    fake.compile_us = 20000000, fake.compile_result = NVRTC_ERROR_OUT_OF_MEMORY;
    os_atomic_store(&fake.let_go, 0);
    jit_begin(bench.j, request, 1);
    for (int i = 0; i < 5000 && fake.compiles == before; i++) os_sleep_us(1000);
}

static cairn_status end_failing(const jit_request *request) {
    jit_program *p;
    cairn_status status = CAIRN_BUSY;
    os_atomic_store(&fake.let_go, 1);
    for (int i = 0; i < 5000 && (status = jit_try(bench.j, request, &p)) == CAIRN_BUSY; i++) os_sleep_us(1000);
    return status;
}

/* Who asks once more has a compile of his own, however far the one was that another gave up. */
static void test_asked_anew(void) {
    static const jit_constant seven = {"N", 7}, eight = {"N", 8}, nine = {"N", 9}, ten = {"N", 10};
    const jit_request first = {"good.cu", &seven, 1, JIT_AWAITED}, second = {"good.cu", &eight, 1, JIT_AWAITED};
    const jit_request third = {"good.cu", &nine, 1, JIT_AWAITED}, bad = {"bad.cu", &seven, 1, JIT_AWAITED};
    const jit_request fourth = {"good.cu", &ten, 1, JIT_AWAITED};
    jit_program *p = NULL;
    int before;
    fake_install();
    bench_open(CACHE_OFF);
    begin_failing(&first);
    tap_ok(end_failing(&first) == CAIRN_OUT_OF_MEMORY && jit_try(bench.j, &first, &p) == CAIRN_OUT_OF_MEMORY,
           "what failed is told: %s", bench.b.error);
    jit_give_up(bench.j);
    tap_ok(jit_try(bench.j, &first, &p) == CAIRN_CANCELLED && !p, "given up, it is to be begun anew");
    begin_failing(&second);
    jit_give_up(bench.j);
    tap_ok(end_failing(&second) == CAIRN_CANCELLED, "what is given up before it fails, too");
    begin_failing(&third);
    jit_give_up(bench.j);
    jit_begin(bench.j, &third, 1);
    fake.compile_result = 0;
    tap_ok(!end_failing(&third), "asked for anew while it runs, it is compiled once more: %s", bench.b.error);
    tap_ok(!jit_begin(bench.j, &first, 1) && !jit_begin(bench.j, &second, 1) && !jit_wait(bench.j) &&
           !jit_try(bench.j, &first, &p) && p && !jit_try(bench.j, &second, &p), "and so are the others");
    begin_failing(&fourth);
    before = fake.compiles;
    jit_begin(bench.j, &fourth, 1);
    tap_ok(end_failing(&fourth) == CAIRN_OUT_OF_MEMORY && fake.compiles == before + 1 /* each try has two */,
           "what is still waited for is tried once, however often it is asked for: %s", bench.b.error);
    jit_give_up(bench.j);
    begin_failing(&bad);
    jit_give_up(bench.j);
    tap_ok(end_failing(&bad) == CAIRN_COMPILE_FAILED, "a template's mistake stays one: %.40s", bench.b.error);
    bench_close();
    tap_ok(fake.live == 0, "nothing is left (%d)", fake.live);
}

/* ---- cache ----------------------------------------------------------------------------------- */

static void test_cache_modes(void) {
    jit_program *p = NULL;
    int32_t compiled, cached, opened;
    fake_install();
    bench_open(CACHE_READ_WRITE);
    tap_ok(!bench_get("good.cu", 1, &p) && !p->from_cache, "compiled at first");
    bench_close();
    fake.no_nvrtc = true;
    bench_open(CACHE_READ_WRITE);
    tap_ok(!bench_get("good.cu", 1, &p) && p->from_cache, "then found, without an NVRTC");
    jit_counts(bench.j, &compiled, &cached, &opened);
    tap_ok(compiled == 0 && cached == 1 && opened == 0, "which the counts say");
    fake.no_nvrtc = false;
    jit_open_ahead(bench.j);
    tap_ok(!bench.j->ahead, "and nothing is opened ahead where something is kept");
    fake.no_nvrtc = true;
    bench_close();
    bench_open(CACHE_READ_ONLY);
    tap_ok(!bench_get("good.cu", 1, &p) && p->from_cache, "read-only finds it");
    fake.no_nvrtc = false;
    tap_ok(!bench_get("good.cu", 2, &p) && bench_entries() == 1, "and writes nothing");
    bench_close();
    bench_open(CACHE_OFF);
    tap_ok(!bench_get("good.cu", 1, &p) && !p->from_cache, "off does not look");
    bench_close();
    bench_open(CACHE_READ_WRITE);
    bench.j->options.quick = true;
    tap_ok(!bench_get("good.cu", 1, &p) && !p->from_cache, "other options, another entry");
    bench_close();
    fake.major = 8;
    bench_open(CACHE_READ_WRITE);
    tap_ok(!bench_get("good.cu", 1, &p) && !p->from_cache, "another chip, another entry");
    bench_close();
    bench_clear();
}

/* As gen/embed.lua fills a row. */
static void set_text(kernels_file *file, const char *const *pieces) {
    file->pieces = pieces, file->bytes = 0, file->digest[0] = 0;
    for (; *pieces; pieces++) {
        file->bytes += strlen(*pieces);
        for (const char *c = *pieces; *c; c++) file->digest[0] = file->digest[0] * 31 + (unsigned char)*c;
    }
}

/* Whether reading `source` from the cache still works after one file of the table was changed. */
static bool survives(kernels_file *table, int changed, const char *const *pieces,
                     const char *source) {
    const kernels_file before = table[changed];
    jit_program *p = NULL;
    bool found;
    bench_clear();
    bench_open(CACHE_READ_WRITE);
    bench_get(source, 1, &p);
    bench_close();
    set_text(&table[changed], pieces);
    bench_open(CACHE_READ_WRITE);
    found = !bench_get(source, 1, &p) && p->from_cache;
    bench_close();
    table[changed] = before;
    return found;
}

/* A key covers exactly what a program includes, through other headers too. */
static void test_cache_includes(void) {
    static const char *const outer[] = {"// a piece\n", "  #  include \"in/inner.h\"\n", NULL};
    static const char *const inner[] = {"#include \"outer.cuh\"\n#define DEEP 1\n", NULL};
    static const char *const other[] = {"#define OTHER 1\n", NULL};
    static const char *const user[] = {"#include \"outer.cuh\"\n#include \"elsewhere.h\"\n", NULL};
    static const char *const changed[] = {"#define CHANGED 1\n", NULL};
    static const char *const split[] = {"#define DEEP 1\n", "#include \"other.h\"\n", NULL};
    kernels_file table[] = {{"user.cu", user, 0, {0}},     {"plain.cu", bench_good, 0, {0}},
                            {"outer.cuh", outer, 0, {0}},  {"in/inner.h", inner, 0, {0}},
                            {"other.h", other, 0, {0}},    {NULL, NULL, 0, {0}}};
    jit_program *p = NULL;
    for (int i = 0; i < 5; i++) set_text(&table[i], table[i].pieces);
    fake_install();
    bench_table = table;
    tap_ok(survives(table, 2, outer, "user.cu"), "an entry is found when nothing changed");
    tap_ok(!survives(table, 0, changed, "user.cu"), "an edit to the template is another entry");
    tap_ok(!survives(table, 2, changed, "user.cu"), "an edit to what it includes, too");
    tap_ok(!survives(table, 3, changed, "user.cu"), "and to what that includes, in a later piece");
    tap_ok(survives(table, 4, changed, "user.cu"), "an edit to a header that it lacks is not");
    tap_ok(survives(table, 3, changed, "plain.cu") && survives(table, 0, changed, "plain.cu"),
           "nor is one to another program");
    set_text(&table[3], split);
    tap_ok(!survives(table, 4, changed, "user.cu"), "once it is included it counts");
    bench_clear();
    bench_open(CACHE_READ_WRITE);
    tap_ok(!bench_get("user.cu", 1, &p), "headers that include each other end");
    bench_close();
    bench_table = bench_files;
    bench_clear();
}

static void test_prune(void) {
    jit_program *p = NULL;
    int i;
    fake_install();
    bench_open(CACHE_READ_WRITE);
    bench.store.limit_bytes = 3000;
    for (i = 0; i < 30; i++) {
        char stamp[OS_PATH_BYTES + 16];
        snprintf(stamp, sizeof stamp, "%s/pruned", bench.directory);
        os_calls.remove(stamp);
        bench.store.next_prune_us = 0;
        bench_get("good.cu", i, &p);
    }
    tap_ok(bench_entries() > 0 && bench_entries() < 10, "a small cap keeps %d of 30 entries",
           bench_entries());
    bench_close();
    bench_clear();
}

int main(void) {
    if (!bench_start()) return tap_done();
    test_driver_statuses();
    test_optional();
    test_nvrtc_statuses();
    test_packages();
    test_programs();
    test_alone();
    test_little_memory();
    test_mistake();
    test_new_device();
    test_batches();
    test_fronts();
    test_raised();
    test_front_faults();
    test_later();
    test_beside();
    test_later_rests();
    test_ahead();
    test_given_up();
    test_asked_anew();
    test_cache_modes();
    test_cache_includes();
    test_prune();
    bench_stop();
    return tap_done();
}
