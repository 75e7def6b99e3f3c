/* backends: how a test opens the runtime on each of its backends. After runtime.c and tap.h. */
#ifndef BACKENDS_H
#define BACKENDS_H

/* A slow tool (compute-sanitizer) is run on a part of a test at a time: CAIRN_TEST_BACKEND, cpu or
 * cuda, and CAIRN_TEST_ROUTE, a route by name, leave out all others. */
BASE_UNUSED static bool is_wanted(const char *variable, const char *name) {
    const char *only = getenv(variable);
    return !only || !strcmp(only, name);
}

/* A runtime, or NULL: a GPU that is not there is a skip with the reason, all else a failure. */
static cairn_runtime *open_runtime_on(const cairn_config *config, const char *what) {
    cairn_runtime *opened = NULL;
    char error[1024];
    bool cuda = config->backend == CAIRN_BACKEND_CUDA;
    if (!is_wanted("CAIRN_TEST_BACKEND", cuda ? "cuda" : "cpu")) return NULL;
    if (!cairn_open(config, &opened, error, sizeof error)) return opened;
    if (cuda) tap_skip("%s on cuda: %s", what, error);
    else tap_ok(false, "%s: open: %s", what, error);
    return NULL;
}

/* Kernels run in tests/simt, where cases have to be fewer and smaller. */
BASE_UNUSED static bool is_emulated(cairn_backend backend) {
    return backend == CAIRN_BACKEND_CUDA && getenv("CAIRN_SIMT_KERNELS");
}

/* What a test does on an open runtime; `name` says on which backend. */
typedef void (*backend_part)(cairn_runtime *rt, const char *name);

/* One backend, with what else is in the config; NULL: the defaults. */
BASE_UNUSED static void run_on_backend(const cairn_config *config, cairn_backend backend,
                                       const char *name, const char *what, backend_part part) {
    cairn_config c;
    cairn_runtime *rt;
    if (config) c = *config;
    else cairn_config_default(&c);
    c.backend = backend;
    if (!(rt = open_runtime_on(&c, what))) return;
    part(rt, name);
    cairn_close(rt);
}

/* The CPU, then the GPU. */
BASE_UNUSED static void run_on_backends(const cairn_config *config, const char *what,
                                        backend_part part) {
    run_on_backend(config, CAIRN_BACKEND_CPU, "cpu", what, part);
    run_on_backend(config, CAIRN_BACKEND_CUDA, "cuda", what, part);
}

#endif
