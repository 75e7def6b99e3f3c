/* jit_bench: a driver, a context, a cache in its own folder, and a jit on two small templates. */
#ifndef JIT_BENCH_H
#define JIT_BENCH_H

static const char *const bench_good[] = {
    "extern \"C\" __global__ void first(int *p) { *p = CAIRN_N; }\n"
    "extern \"C\" __global__ void second(int *p) { *p = 2; }\n", NULL};
static const char *const bench_bad[] = {"#include \"h.cuh\"\n\nint x = MISTAKE;\n", NULL};
static const char *const bench_header[] = {"typedef int i;\n", NULL};
static const kernels_file bench_files[] = {
    {"bad.cu", bench_bad, 40, {1}}, {"good.cu", bench_good, 130, {2}}, {"h.cuh", bench_header, 15, {3}},
    {NULL, NULL, 0, {0}}};
static const kernels_file *bench_table = bench_files; /* what bench_open takes */
static bool bench_alone; /* without a device: programs are compiled, never loaded */

typedef struct jit_bench {
    base b;
    driver_calls d;
    cache store;
    jit *j;
    CUcontext context;
    char directory[512];
} jit_bench;

static jit_bench bench;

static bool bench_start(void) {
    snprintf(bench.directory, sizeof bench.directory, "%s/cairn-jit-XXXXXX",
             os_env("TMPDIR") ? os_env("TMPDIR") : "/tmp");
    base_init(&bench.b, NULL, NULL, NULL, CAIRN_LOG_OFF);
    return tap_ok(mkdtemp(bench.directory) != NULL, "a folder of our own");
}

/* Opens from the driver up; every failure but a CAIRN_OK leaves nothing open. */
static cairn_status bench_open(cache_mode mode) {
    cache_options store;
    jit_options options;
    cairn_status status = driver_open(&bench.b, NULL, &bench.d);
    CUresult r;
    bench.j = NULL;
    bench.context = NULL;
    if (status) return status;
    r = bench_alone ? CUDA_SUCCESS : bench.d.cuDevicePrimaryCtxRetain(&bench.context, 0);
    if (r) bench.context = NULL;
    if (r) return driver_fail(&bench.b, &bench.d, r, "cuDevicePrimaryCtxRetain");
    memset(&store, 0, sizeof store);
    store.mode = mode;
    store.directory = bench.directory;
    cache_open(&bench.b, &store, &bench.store);
    memset(&options, 0, sizeof options);
    options.driver = &bench.d;
    options.context = bench.context;
    options.arch = fake.major * 10 + fake.minor;
    options.kernels = &bench.store;
    options.files = bench_table;
    options.threads = 2;
    return jit_open(&bench.b, &options, &bench.j);
}

static void bench_close(void) {
    jit_close(bench.j);
    bench.j = NULL;
    cache_close(&bench.store);
    if (bench.context) bench.d.cuDevicePrimaryCtxRelease(0);
    bench.context = NULL;
    driver_close(&bench.d);
}

static cairn_status bench_get(const char *source, int n, jit_program **out) {
    jit_constant constant;
    jit_request request;
    constant.name = "N";
    constant.value = n;
    request.source = source;
    request.constants = &constant;
    request.constant_count = 1;
    return jit_get(bench.j, &request, out);
}

typedef struct bench_scan { int entries; bool remove; char last[OS_PATH_BYTES]; } bench_scan;

static bool bench_visit(void *user, const char *name) {
    bench_scan *scan = (bench_scan *)user;
    char path[OS_PATH_BYTES];
    snprintf(path, sizeof path, "%s/%.200s", bench.directory, name);
    if (strstr(name, ".kernel")) {
        scan->entries++;
        memcpy(scan->last, path, sizeof path);
    }
    if (scan->remove && os_calls.remove(path)) rmdir(path);
    return true;
}

static int bench_entries(void) {
    bench_scan scan;
    memset(&scan, 0, sizeof scan);
    os_calls.list(bench.directory, bench_visit, &scan);
    return scan.entries;
}

/* The path of an entry; with one there, of that one. */
BASE_UNUSED static void bench_entry(char path[OS_PATH_BYTES]) {
    bench_scan scan;
    memset(&scan, 0, sizeof scan);
    os_calls.list(bench.directory, bench_visit, &scan);
    memcpy(path, scan.last, OS_PATH_BYTES);
}

static void bench_clear(void) {
    bench_scan scan;
    memset(&scan, 0, sizeof scan);
    scan.remove = true;
    os_calls.list(bench.directory, bench_visit, &scan);
}

static void bench_stop(void) {
    bench_clear();
    tap_ok(rmdir(bench.directory) == 0, "nothing stays behind");
}

#endif
