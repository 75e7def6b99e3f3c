/* backends: how a test opens the runtime on each of its backends. After runtime.c and tap.h. */
#ifndef BACKENDS_H
#define BACKENDS_H

/* A runtime, or NULL: a GPU that is not there is a skip with the reason, all else a failure. */
static cairn_runtime *open_runtime_on(const cairn_config *config, const char *what) {
    cairn_runtime *opened = NULL;
    char error[1024];
    if (!cairn_open(config, &opened, error, sizeof error)) return opened;
    if (config->backend == CAIRN_BACKEND_CUDA) tap_skip("%s on cuda: %s", what, error);
    else tap_ok(false, "%s: open: %s", what, error);
    return NULL;
}

/* Kernels run in tests/simt, where cases have to be fewer and smaller. */
BASE_UNUSED static bool is_emulated(cairn_backend backend) {
    return backend == CAIRN_BACKEND_CUDA && getenv("CAIRN_SIMT_KERNELS");
}

#endif
