/* The launches that selftest_simt noted, again on a GPU: every word of output has to be the same.
 *
 *     CAIRN_SIMT_DUMP=build/simt/dump build/simt/selftest
 *     cc -std=c11 tests/simt/selftest_gpu.c -ldl -o build/simt/selftest_gpu
 *     build/simt/selftest_gpu kernels_src tests/simt/selftest.cu build/simt/dump
 *
 * Compiles the kernels with NVRTC itself, apart from the runtime, whose own tests come later. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../tap.h"

typedef struct { uint64_t input, output; } parameters;
typedef struct { char name[32]; uint32_t shape[6]; } record;
enum { inputs = 4096, outputs = 8192 };

/* Only what is used, by the C names of the driver and of NVRTC. */
typedef struct {
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
    void *stream;
    void *attributes;
    unsigned attribute_count;
} launch_config;
typedef struct {
    int id;
    char pad[4];
    union { char bytes[64]; unsigned dims[3]; } value;
} attribute;

static int (*cuInit)(unsigned), (*cuDeviceGet)(int *, int);
static int (*cuModuleLoadData)(void **, const void *);
static int (*cuDeviceGetAttribute)(int *, int, int), (*cuDevicePrimaryCtxRetain)(void **, int);
static int (*cuCtxSetCurrent)(void *), (*cuModuleGetFunction)(void **, void *, const char *);
static int (*cuMemAlloc)(uint64_t *, size_t), (*cuMemcpyHtoD)(uint64_t, const void *, size_t);
static int (*cuMemcpyDtoH)(void *, uint64_t, size_t), (*cuCtxSynchronize)(void);
static int (*cuFuncSetAttribute)(void *, int, int);
static int (*cuLaunchKernelEx)(const launch_config *, void *, void **, void **);
static int (*nvrtcCreateProgram)(void **, const char *, const char *, int, const char **,
                                 const char **);
static int (*nvrtcCompileProgram)(void *, int, const char **);
static int (*nvrtcGetCUBINSize)(void *, size_t *);
static int (*nvrtcGetCUBIN)(void *, char *), (*nvrtcGetProgramLogSize)(void *, size_t *);
static int (*nvrtcGetProgramLog)(void *, char *);

static bool load(void) {
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *nvrtc = dlopen("libnvrtc.so.13", RTLD_NOW);
    if (!nvrtc) nvrtc = dlopen("libnvrtc.so.12", RTLD_NOW);
    if (!nvrtc) nvrtc = dlopen("/usr/local/cuda/lib64/libnvrtc.so", RTLD_NOW);
    if (!cuda || !nvrtc) return false;
    bool all = true;
#define SYMBOL(library, function, name) \
    do { \
        void *s = dlsym(library, name); \
        all = all && s; \
        memcpy(&function, &s, sizeof s); \
    } while (0)
    SYMBOL(cuda, cuInit, "cuInit");
    SYMBOL(cuda, cuDeviceGet, "cuDeviceGet");
    SYMBOL(cuda, cuDeviceGetAttribute, "cuDeviceGetAttribute");
    SYMBOL(cuda, cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
    SYMBOL(cuda, cuCtxSetCurrent, "cuCtxSetCurrent");
    SYMBOL(cuda, cuModuleLoadData, "cuModuleLoadData");
    SYMBOL(cuda, cuModuleGetFunction, "cuModuleGetFunction");
    SYMBOL(cuda, cuMemAlloc, "cuMemAlloc_v2");
    SYMBOL(cuda, cuMemcpyHtoD, "cuMemcpyHtoD_v2");
    SYMBOL(cuda, cuMemcpyDtoH, "cuMemcpyDtoH_v2");
    SYMBOL(cuda, cuCtxSynchronize, "cuCtxSynchronize");
    SYMBOL(cuda, cuFuncSetAttribute, "cuFuncSetAttribute");
    SYMBOL(cuda, cuLaunchKernelEx, "cuLaunchKernelEx");
    SYMBOL(nvrtc, nvrtcCreateProgram, "nvrtcCreateProgram");
    SYMBOL(nvrtc, nvrtcCompileProgram, "nvrtcCompileProgram");
    SYMBOL(nvrtc, nvrtcGetCUBINSize, "nvrtcGetCUBINSize");
    SYMBOL(nvrtc, nvrtcGetCUBIN, "nvrtcGetCUBIN");
    SYMBOL(nvrtc, nvrtcGetProgramLogSize, "nvrtcGetProgramLogSize");
    SYMBOL(nvrtc, nvrtcGetProgramLog, "nvrtcGetProgramLog");
    return all;
}

static char *read_text(const char *folder, const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s%s%s", folder, *folder ? "/" : "", name);
    FILE *file = fopen(path, "rb");
    char *text = (char *)calloc(1, 1 << 20);
    if (file && text) (void)!fread(text, 1, (1 << 20) - 1, file);
    if (file) fclose(file);
    return text;
}

/* The cubin of a source file for this device, or null with the log printed. */
static void *compile(const char *headers, const char *source, int arch) {
    const char *names[] = {"abi/base.h", "device/common.cuh", "device/device.cuh", "device/async.cuh",
                           "device/mma.cuh"};
    const char *texts[5];
    for (int i = 0; i < 5; i++) texts[i] = read_text(headers, names[i]);
    char target[32];
    snprintf(target, sizeof target, "--gpu-architecture=sm_%d", arch);
    const char *options[] = {target, "--std=c++17", "--device-as-default-execution-space",
                             "--restrict"};
    void *program;
    size_t size = 0;
    nvrtcCreateProgram(&program, read_text("", source), source, 5, texts, names);
    int bad = nvrtcCompileProgram(program, 4, options);
    if (bad) nvrtcGetProgramLogSize(program, &size);
    else nvrtcGetCUBINSize(program, &size);
    char *bytes = (char *)malloc(size + 1);
    if (!bytes) return NULL;
    if (!bad) return nvrtcGetCUBIN(program, bytes) ? NULL : bytes;
    nvrtcGetProgramLog(program, bytes);
    printf("%s\n", bytes);
    return NULL;
}

static int launch(void *module, const record *r, parameters *p) {
    void *function, *arguments[] = {p};
    int status = cuModuleGetFunction(&function, module, r->name);
    if (status) return status;
    status = cuFuncSetAttribute(function, 14, 1); /* clusters of 16 */
    if (status) return status;
    attribute cluster = {.id = 4, .value.dims = {r->shape[3], 1, 1}};
    launch_config config = {r->shape[0], r->shape[1], r->shape[2], r->shape[4], 1, 1,
                            r->shape[5], NULL, &cluster, r->shape[3] > 1};
    status = cuLaunchKernelEx(&config, function, arguments, NULL);
    return status ? status : cuCtxSynchronize();
}

static void check(void *module, const record *r, FILE *dump) {
    static uint32_t input[inputs], before[outputs], after[outputs], got[outputs];
    size_t words = fread(input, 4, inputs, dump) + fread(before, 4, outputs, dump) +
                   fread(after, 4, outputs, dump);
    parameters p;
    int status = words != inputs + 2 * outputs;
    status |= cuMemAlloc(&p.input, sizeof input) | cuMemAlloc(&p.output, sizeof got);
    status |= cuMemcpyHtoD(p.input, input, sizeof input);
    status |= cuMemcpyHtoD(p.output, before, sizeof before);
    if (!status) status = launch(module, r, &p);
    if (!status) status = cuMemcpyDtoH(got, p.output, sizeof got);
    int different = 0;
    for (int i = outputs - 1; i >= 0 && !status; i--)
        if (got[i] != after[i]) {
            different++;
            if (different < 20) tap_note("word %d: %08x, emulated %08x", i, got[i], after[i]);
        }
    tap_ok(!status && !different, "%s, %u blocks in clusters of %u: status %d, %d words differ",
           r->name, r->shape[0], r->shape[3], status, different);
}

int main(int argc, char **argv) {
    void *context, *module, *cubin;
    int device, major, minor;
    if (argc != 4) return fprintf(stderr, "usage: selftest_gpu HEADERS SOURCE DUMP\n"), 2;
    if (!load() || cuInit(0) || cuDeviceGet(&device, 0)) {
        tap_skip("selftest on a GPU: no driver, device or NVRTC");
        return tap_done();
    }
    cuDeviceGetAttribute(&major, 75, device);
    cuDeviceGetAttribute(&minor, 76, device);
    FILE *dump = fopen(argv[3], "rb");
    cubin = compile(argv[1], argv[2], 10 * major + minor);
    bool ready = dump && cubin && !cuDevicePrimaryCtxRetain(&context, device) &&
                 !cuCtxSetCurrent(context) && !cuModuleLoadData(&module, cubin);
    if (!tap_ok(ready, "selftest.cu compiled and loaded")) return tap_done();
    record r;
    while (fread(&r, sizeof r, 1, dump) == 1) check(module, &r, dump);
    fclose(dump);
    return tap_done();
}
