/* jit_nvrtc: the jit on the real NVRTC, where it is found, without a device: the rounding mode of
 * the caller does not show in the code, a mistake is reported with its line, a cached program opens
 * no NVRTC, and the process can exit at any moment of compiling.
 * build: -fno-sanitize=all */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "tap.h"
#include <sys/wait.h>

static const char *const good[] = {
    "extern \"C\" __global__ void k(float *p) { p[threadIdx.x] = 1.0f / 3 * CAIRN_N + 0.1f; }\n",
    NULL};
static const char *const bad[] = {
    "\n\nextern \"C\" __global__ void k(int *p) { *p = nothing; }\n", NULL};
static const kernels_file files[] = {{"bad.cu", bad, 60, {1}}, {"good.cu", good, 90, {2}}, {NULL, NULL, 0, {0}}};

static base b;
static driver_calls d;
static cache store;
static jit *j;

static void open_jit_at(const char *directory, bool keep) {
    cache_options c;
    jit_options o;
    memset(&c, 0, sizeof c);
    c.mode = directory ? CACHE_READ_WRITE : CACHE_OFF;
    c.directory = directory;
    cache_open(&b, &c, &store);
    memset(&o, 0, sizeof o);
    o.driver = &d;
    o.arch = 90;
    o.kernels = &store;
    o.files = files;
    o.keep_images = keep;
    o.threads = 8; /* so many wait that a second copy of NVRTC is opened */
    jit_open(&b, &o, &j);
}

static void close_jit(void) {
    jit_close(j);
    cache_close(&store);
}

static cairn_status get(const char *source, int n, jit_program **out) {
    jit_constant constant;
    jit_request request;
    constant.name = "N";
    constant.value = n;
    request.source = source;
    request.constants = &constant;
    request.constant_count = 1;
    return jit_get(j, &request, out);
}

static void test_rounding(void) {
    jit_program *p = NULL, *q = NULL;
    uint8_t *first = NULL;
    const uint8_t *image;
    size_t bytes, again;
    open_jit_at(NULL, true);
    if (!tap_ok(!get("good.cu", 7, &p), "a cubin: %s", b.error)) return;
    image = jit_image(p, &bytes);
    first = (uint8_t *)malloc(bytes);
    memcpy(first, image, bytes);
    close_jit();
    fesetround(FE_TOWARDZERO);
    open_jit_at(NULL, true);
    get("good.cu", 7, &q);
    fesetround(FE_TONEAREST);
    image = q ? jit_image(q, &again) : NULL;
    tap_ok(image && again == bytes && !memcmp(first, image, bytes),
           "the same %zu bytes whatever the caller's rounding", bytes);
    tap_ok(get("bad.cu", 1, &p) == CAIRN_COMPILE_FAILED &&
           strstr(b.error, "kernels_src/bad.cu(3)") && strstr(b.error, "nothing"),
           "a mistake has its line");
    close_jit();
    free(first);
}

/* In a process of its own, so that the second has never seen NVRTC. */
static int get_once(const char *directory) {
    jit_program *p = NULL;
    open_jit_at(directory, false);
    if (get("good.cu", 5, &p)) return 99;
    return d.nvrtc_opened * 10 + p->from_cache;
}

static int in_child(int (*run)(const char *), const char *argument) {
    int status = 0;
    pid_t child = fork();
    if (child == 0) _exit(run(argument));
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

static void test_cache(void) {
    char directory[] = "/tmp/cairn-nvrtc-XXXXXX", command[64];
    if (!tap_ok(mkdtemp(directory) != NULL, "a folder")) return;
    tap_ok(in_child(get_once, directory) == 10, "the first process compiles");
    tap_ok(in_child(get_once, directory) == 1, "the second opens no NVRTC");
    snprintf(command, sizeof command, "rm -r %s", directory);
    tap_ok(system(command) == 0, "cleaned up");
}

static int exit_after(const char *milliseconds) {
    static jit_constant constants[6];
    static jit_request requests[6];
    int i;
    open_jit_at(NULL, false);
    for (i = 0; i < 6; i++) {
        constants[i].name = "N";
        constants[i].value = i;
        requests[i].source = "good.cu";
        requests[i].constants = &constants[i];
        requests[i].constant_count = 1;
    }
    jit_begin(j, requests, 6);
    os_sleep_us(atoi(milliseconds) * 1000);
    exit(7);
}

static void test_exit(void) {
    int at, bad_exits = 0, count = 0;
    for (at = 0; at <= 160; at += at < 40 ? 5 : 10, count++) {
        char text[16];
        snprintf(text, sizeof text, "%d", at);
        fflush(stdout);
        if (in_child(exit_after, text) == 7) continue;
        bad_exits++;
        tap_note("exit after %d ms is not clean", at);
    }
    tap_ok(bad_exits == 0, "exit at %d moments of opening and compiling", count);
}

int main(void) {
    base_init(&b, NULL, NULL, NULL, CAIRN_LOG_OFF);
    if (driver_open_nvrtc(&b, NULL, &d)) {
        tap_skip("%s", b.error);
        return tap_done();
    }
    driver_close(&d);
    memset(&d, 0, sizeof d);
    test_cache(); /* the children first: no NVRTC in their parent */
    test_exit();
    test_rounding();
    return tap_done();
}
