/* fake_driver: libcuda and libnvrtc in the test's own process, so that every host path runs without
 * a GPU. Include after runtime.c. fake_install() puts them behind os_calls, so that driver_open finds
 * them as it would find the real ones.
 *
 * Device memory is the heap; work runs when enqueued, or when its graph is launched. "Compiling"
 * gives an image that lists the kernels of the source under a checksum; loading an image whose
 * checksum is wrong counts in fake.bad_images. A launch calls the C function registered for the
 * kernel's name, if there is one.
 *
 * With fake.memory_bytes set the device has so much memory, which is reserved and never touched: no
 * copies are made, no kernel runs, and every function is found, so that models larger than the
 * host's memory load. fake.device_live and device_peak count what is allocated.
 *
 * Faults: fake.fail_at = n makes the n-th call from now return fake.fail_with (a CUresult or an
 * nvrtcResult); fake.fail_sticky makes all later driver calls fail too, as after a device fault. */
#ifndef FAKE_DRIVER_H
#define FAKE_DRIVER_H

#ifdef _WIN32
#include "windows/posix.h"
#define FAKE_CUDA_NAME "nvcuda.dll"
#else
#define FAKE_CUDA_NAME "libcuda.so.1"
#endif

typedef void (*fake_kernel_run)(void **parameters, const unsigned grid[3], unsigned block);
typedef struct fake_kernel {
    const char *name;
    size_t parameter_bytes; /* of the one struct that every kernel takes */
    fake_kernel_run run;
} fake_kernel;

typedef struct fake_state {
    /* set by tests */
    int cuda_version, nvrtc_major, device_count, major, minor;
    CUresult init_result, link_result;
    int nvrtc_archs[4], nvrtc_arch_count;
    bool no_cuda, no_nvrtc, no_builtins, no_optional;
    const char *missing_symbol;  /* looked up in vain */
    int64_t compile_us;          /* how long a compile takes */
    int64_t front_us;            /* its front end, before it first asks whether to go on */
    bool twin;                   /* a second copy of NVRTC is there */
    os_atomic let_go;            /* not 0: compiles end at once */
    int compile_result;          /* nvrtcResult of every compile after the priming one */
    const char *compile_fails;   /* of templates with this in their name alone; NULL: of all */
    const char *compile_log;
    const fake_kernel *kernels;  /* ends with a NULL name */
    size_t memory_bytes;         /* 0: 1 GiB is said to be free, and memory is the heap */
    int multiprocessors;         /* 0: 4 */
    int shared_bytes;            /* of a block; 0: 227 KiB */
    int fail_at;                 /* 0: never */
    int fail_with;
    bool fail_sticky;
    /* counted */
    os_mutex lock;
    int calls, compiles, loads, bad_images, launches, opened, clusters /* launches in these */;
    int fronts, most_fronts, read[32]; /* front ends at once; CAIRN_N of programs as they were read */
    size_t device_live, device_peak; /* bytes by cuMemAlloc, with memory_bytes */
    int live; /* contexts, streams, events, modules, graphs, programs, links, memory */
    bool failed;
} fake_state;

static fake_state fake;
static os_call_table fake_real_os;

/* Counts a call; not 0: what it must return instead of doing its work. */
static int fake_enter(void) {
    int result = 0;
    os_mutex_lock(&fake.lock);
    fake.calls++;
    if (fake.failed && fake.fail_sticky) result = fake.fail_with;
    if (fake.fail_at > 0 && --fake.fail_at == 0) {
        fake.failed = true;
        result = fake.fail_with;
    }
    os_mutex_unlock(&fake.lock);
    return result;
}

static void fake_live(int change) {
    os_mutex_lock(&fake.lock);
    fake.live += change;
    os_mutex_unlock(&fake.lock);
}

static void *fake_new(size_t bytes) { fake_live(1); return calloc(1, bytes ? bytes : 1); }
static void fake_delete(void *object) { if (object) fake_live(-1); free(object); }

#define FAKE_ENTER \
    do { \
        int fake_result_ = fake_enter(); \
        if (fake_result_) return fake_result_; \
    } while (0)
/* Releasing calls fail too, but release first, so that a test can ask for no leak at all. */
#define FAKE_RELEASE(object) do { fake_delete(object); return fake_enter(); } while (0)

/* ---- objects --------------------------------------------------------------------------------- */

struct CUctx_st { int unused; };
struct CUevent_st { int64_t us; };
struct CUmod_st { char names[16][48]; int count; struct CUfunc_st *functions; };
struct CUfunc_st { char name[48]; int shared_bytes; struct CUfunc_st *next; };
enum { FAKE_KERNEL, FAKE_COPY, FAKE_SET };
typedef struct fake_work {
    int kind;
    char name[48];
    unsigned grid[3], block;
    void *parameters;
    void *to;
    const void *from;
    size_t bytes;
    unsigned value, width;
    struct fake_work *next;
} fake_work;
struct CUgraph_st { fake_work *first, **last; size_t count; };
struct CUgraphExec_st { CUgraph graph; };
struct CUstream_st { CUgraph capture; };
struct CUlinkState_st { base_text image; };
struct _nvrtcProgram { char *source, *name; base_text image; bool primed; char log[512];
                       driver_flow_callback flow; void *payload; };

static int fake_shared_bytes(void) { return fake.shared_bytes ? fake.shared_bytes : 232448; }

static CUcontext fake_stack[64]; /* of the thread under test; workers share the one context */
static int fake_depth;

/* ---- device, context, memory ----------------------------------------------------------------- */

static CUresult fake_cuInit(unsigned f) { (void)f; FAKE_ENTER; return fake.init_result; }
static CUresult fake_cuDriverGetVersion(int *v) { FAKE_ENTER; *v = fake.cuda_version; return 0; }
static CUresult fake_cuGetErrorName(CUresult r, const char **n) {
    *n = r == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE";
    return 0;
}
static CUresult fake_cuGetErrorString(CUresult r, const char **t) {
    (void)r;
    *t = "fake";
    return 0;
}
static CUresult fake_cuDeviceGet(CUdevice *d, int i) {
    FAKE_ENTER;
    *d = i;
    return i < fake.device_count ? 0 : CUDA_ERROR_INVALID_DEVICE;
}
static CUresult fake_cuDeviceGetCount(int *n) { FAKE_ENTER; *n = fake.device_count; return 0; }
static CUresult fake_cuDeviceGetName(char *n, int bytes, CUdevice d) {
    FAKE_ENTER;
    snprintf(n, (size_t)bytes, "Fake GPU %d", d);
    return 0;
}
static CUresult fake_cuDeviceGetAttribute(int *v, CUdevice_attribute a, CUdevice d) {
    (void)d;
    FAKE_ENTER;
    switch (a) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *v = fake.major; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *v = fake.minor; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *v = fake.multiprocessors ? fake.multiprocessors : 4;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *v = fake_shared_bytes(); break;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: *v = 1 << 20; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *v = 1024; break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *v = 32; break;
    default: *v = 1;
    }
    return 0;
}
static CUresult fake_cuDeviceTotalMem(size_t *n, CUdevice d) {
    (void)d;
    FAKE_ENTER;
    *n = fake.memory_bytes ? fake.memory_bytes : (size_t)1 << 30;
    return 0;
}
static CUresult fake_cuDeviceGetUuid(CUuuid *u, CUdevice d) {
    (void)d;
    FAKE_ENTER;
    memset(u, 7, sizeof *u);
    return 0;
}
static struct CUctx_st fake_primary;
static CUresult fake_cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d) {
    (void)d;
    FAKE_ENTER;
    fake_live(1);
    *c = &fake_primary;
    return 0;
}
static CUresult fake_cuDevicePrimaryCtxRelease(CUdevice d) {
    (void)d;
    fake_live(-1);
    return fake_enter();
}
static CUresult fake_cuCtxCreate(CUcontext *c, unsigned f, CUdevice d) {
    (void)f;
    (void)d;
    FAKE_ENTER;
    *c = (CUcontext)fake_new(sizeof **c);
    return 0;
}
static CUresult fake_cuCtxDestroy(CUcontext c) { FAKE_RELEASE(c); }
static CUresult fake_cuCtxPushCurrent(CUcontext c) {
    FAKE_ENTER;
    os_mutex_lock(&fake.lock);
    fake_stack[fake_depth++ % 64] = c;
    os_mutex_unlock(&fake.lock);
    return 0;
}
static CUresult fake_cuCtxPopCurrent(CUcontext *c) {
    os_mutex_lock(&fake.lock);
    *c = fake_depth > 0 ? fake_stack[--fake_depth % 64] : NULL;
    os_mutex_unlock(&fake.lock);
    return *c ? fake_enter() : CUDA_ERROR_INVALID_CONTEXT;
}
static CUresult fake_cuCtxGetCurrent(CUcontext *c) {
    FAKE_ENTER;
    *c = fake_depth > 0 ? fake_stack[(fake_depth - 1) % 64] : NULL;
    return 0;
}
static CUresult fake_cuCtxGetDevice(CUdevice *d) { FAKE_ENTER; *d = 0; return 0; }
static CUresult fake_cuCtxSynchronize(void) { return fake_enter(); }
static CUresult fake_cuCtxGetStreamPriorityRange(int *l, int *g) {
    FAKE_ENTER;
    *l = 0;
    *g = -5;
    return 0;
}
/* Address space alone; its size stands before it. */
static CUresult fake_reserve(CUdeviceptr *p, size_t n) {
    char *block;
    if (fake.device_live + n > fake.memory_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
    block = (char *)mmap(NULL, n + 4096, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (block == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(block, &n, sizeof n);
    fake.device_live += n;
    if (fake.device_live > fake.device_peak) fake.device_peak = fake.device_live;
    fake_live(1);
    *p = (CUdeviceptr)(uintptr_t)(block + 4096);
    return 0;
}
static void fake_unreserve(CUdeviceptr p) {
    char *block = (char *)(uintptr_t)p - 4096;
    size_t n;
    memcpy(&n, block, sizeof n);
    fake.device_live -= n;
    fake_live(-1);
    munmap(block, n + 4096);
}

static CUresult fake_cuMemAlloc(CUdeviceptr *p, size_t n) {
    void *memory;
    FAKE_ENTER;
    if (n == 0) return CUDA_ERROR_INVALID_VALUE;
    if (fake.memory_bytes) return fake_reserve(p, n);
    if (posix_memalign(&memory, 512, n)) return CUDA_ERROR_OUT_OF_MEMORY;
    memset(memory, 0xA5, n);
    fake_live(1);
    *p = (CUdeviceptr)(uintptr_t)memory;
    return 0;
}
static CUresult fake_cuMemFree(CUdeviceptr p) {
    if (!fake.memory_bytes) FAKE_RELEASE((void *)(uintptr_t)p);
    if (p) fake_unreserve(p);
    return fake_enter();
}
static CUresult fake_cuMemGetInfo(size_t *f, size_t *t) {
    FAKE_ENTER;
    *t = fake.memory_bytes ? fake.memory_bytes : (size_t)1 << 30;
    *f = *t - fake.device_live;
    return 0;
}
static CUresult fake_cuMemHostAlloc(void **p, size_t n, unsigned f) {
    (void)f;
    FAKE_ENTER;
    if (n == 0) return CUDA_ERROR_INVALID_VALUE;
    if (posix_memalign(p, 512, n)) return CUDA_ERROR_OUT_OF_MEMORY;
    memset(*p, 0xA5, n);
    fake_live(1);
    return 0;
}
static CUresult fake_cuMemFreeHost(void *p) { FAKE_RELEASE(p); }
static CUresult fake_cuMemHostGetDevicePointer(CUdeviceptr *d, void *h, unsigned f) {
    (void)f;
    FAKE_ENTER;
    *d = (CUdeviceptr)(uintptr_t)h;
    return 0;
}
static CUresult fake_cuPointerGetAttribute(void *v, CUpointer_attribute a, CUdeviceptr p) {
    (void)p;
    FAKE_ENTER;
    memset(v, 0, 4);
    if (a == CU_POINTER_ATTRIBUTE_MEMORY_TYPE) *(int *)v = 2;
    return 0;
}

/* ---- work: run now, or recorded -------------------------------------------------------------- */

static const fake_kernel *fake_find_kernel(const char *name) {
    const fake_kernel *k = fake.kernels;
    while (k && k->name && strcmp(k->name, name)) k++;
    return k && k->name ? k : NULL;
}

static void fake_run(const fake_work *w) {
    const fake_kernel *k;
    void *parameters[1];
    size_t i;
    if (w->kind == FAKE_COPY && w->bytes) memmove(w->to, w->from, w->bytes);
    if (w->kind == FAKE_SET && w->width == 1) memset(w->to, (int)w->value, w->bytes);
    if (w->kind == FAKE_SET && w->width == 4)
        for (i = 0; i < w->bytes; i += 4) memcpy((char *)w->to + i, &w->value, 4);
    if (w->kind != FAKE_KERNEL) return;
    fake.launches++;
    k = fake_find_kernel(w->name);
    parameters[0] = w->parameters;
    if (k) k->run(parameters, w->grid, w->block);
}

/* `w` is copied, with its parameters, when the stream is capturing. */
static CUresult fake_do(CUstream s, const fake_work *w, size_t parameter_bytes) {
    fake_work *copy;
    FAKE_ENTER;
    if (fake.memory_bytes) return 0;
    if (!s || !s->capture) { fake_run(w); return 0; }
    copy = (fake_work *)malloc(sizeof *copy);
    *copy = *w;
    copy->next = NULL;
    if (w->parameters) {
        copy->parameters = malloc(parameter_bytes ? parameter_bytes : 1);
        memcpy(copy->parameters, w->parameters, parameter_bytes);
    }
    *s->capture->last = copy;
    s->capture->last = &copy->next;
    s->capture->count++;
    return 0;
}

static CUresult fake_copy(void *to, const void *from, size_t n, CUstream s) {
    fake_work w;
    memset(&w, 0, sizeof w);
    w.kind = FAKE_COPY;
    w.to = to;
    w.from = from;
    w.bytes = n;
    return fake_do(s, &w, 0);
}
static CUresult fake_set(CUdeviceptr to, unsigned value, unsigned width, size_t n, CUstream s) {
    fake_work w;
    memset(&w, 0, sizeof w);
    w.kind = FAKE_SET;
    w.to = (void *)(uintptr_t)to;
    w.value = value;
    w.width = width;
    w.bytes = n * width;
    return fake_do(s, &w, 0);
}
#define FAKE_P(address) ((void *)(uintptr_t)(address))
static CUresult fake_cuMemcpyHtoD(CUdeviceptr t, const void *f, size_t n) {
    return fake_copy(FAKE_P(t), f, n, NULL);
}
static CUresult fake_cuMemcpyDtoH(void *t, CUdeviceptr f, size_t n) {
    return fake_copy(t, FAKE_P(f), n, NULL);
}
static CUresult fake_cuMemcpyDtoD(CUdeviceptr t, CUdeviceptr f, size_t n) {
    return fake_copy(FAKE_P(t), FAKE_P(f), n, NULL);
}
static CUresult fake_cuMemcpyHtoDAsync(CUdeviceptr t, const void *f, size_t n, CUstream s) {
    return fake_copy(FAKE_P(t), f, n, s);
}
static CUresult fake_cuMemcpyDtoHAsync(void *t, CUdeviceptr f, size_t n, CUstream s) {
    return fake_copy(t, FAKE_P(f), n, s);
}
static CUresult fake_cuMemcpyDtoDAsync(CUdeviceptr t, CUdeviceptr f, size_t n, CUstream s) {
    return fake_copy(FAKE_P(t), FAKE_P(f), n, s);
}
static CUresult fake_cuMemsetD8(CUdeviceptr t, unsigned char v, size_t n) {
    return fake_set(t, v, 1, n, NULL);
}
static CUresult fake_cuMemsetD8Async(CUdeviceptr t, unsigned char v, size_t n, CUstream s) {
    return fake_set(t, v, 1, n, s);
}
static CUresult fake_cuMemsetD32Async(CUdeviceptr t, unsigned v, size_t n, CUstream s) {
    return fake_set(t, v, 4, n, s);
}
static CUresult fake_cuLaunchHostFunc(CUstream s, CUhostFn f, void *user) {
    (void)s;
    FAKE_ENTER;
    f(user);
    return 0;
}

/* ---- streams, events, graphs ----------------------------------------------------------------- */

static CUresult fake_cuStreamCreateWithPriority(CUstream *s, unsigned f, int p) {
    (void)f;
    (void)p;
    FAKE_ENTER;
    *s = (CUstream)fake_new(sizeof **s);
    return 0;
}
static CUresult fake_cuStreamDestroy(CUstream s) { FAKE_RELEASE(s); }
static CUresult fake_cuStreamSynchronize(CUstream s) { (void)s; return fake_enter(); }
static CUresult fake_cuStreamQuery(CUstream s) { (void)s; return fake_enter(); }
static CUresult fake_cuStreamWaitEvent(CUstream s, CUevent e, unsigned f) {
    (void)s;
    (void)e;
    (void)f;
    return fake_enter();
}
static CUresult fake_cuStreamBeginCapture(CUstream s, CUstreamCaptureMode m) {
    (void)m;
    FAKE_ENTER;
    s->capture = (CUgraph)fake_new(sizeof *s->capture);
    s->capture->last = &s->capture->first;
    return 0;
}
static CUresult fake_cuGraphDestroy(CUgraph g) {
    fake_work *w = g->first;
    while (w) {
        fake_work *next = w->next;
        free(w->parameters);
        free(w);
        w = next;
    }
    FAKE_RELEASE(g);
}
static CUresult fake_cuStreamEndCapture(CUstream s, CUgraph *g) {
    int r = fake_enter();
    *g = s->capture;
    s->capture = NULL;
    if (r && *g) { fake_cuGraphDestroy(*g); *g = NULL; }
    return r;
}
static CUresult fake_cuStreamIsCapturing(CUstream s, CUstreamCaptureStatus *status) {
    FAKE_ENTER;
    *status = s && s->capture ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return 0;
}
static CUresult fake_cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *m) {
    FAKE_ENTER;
    *m = CU_STREAM_CAPTURE_MODE_GLOBAL;
    return 0;
}
static CUresult fake_cuEventCreate(CUevent *e, unsigned f) {
    (void)f;
    FAKE_ENTER;
    *e = (CUevent)fake_new(sizeof **e);
    return 0;
}
static CUresult fake_cuEventRecord(CUevent e, CUstream s) {
    (void)s;
    FAKE_ENTER;
    e->us = os_now_us();
    return 0;
}
static CUresult fake_cuEventSynchronize(CUevent e) { (void)e; return fake_enter(); }
static CUresult fake_cuEventElapsedTime(float *ms, CUevent a, CUevent b) {
    FAKE_ENTER;
    *ms = (float)(b->us - a->us) / 1000;
    return 0;
}
static CUresult fake_cuEventQuery(CUevent e) { (void)e; return fake_enter(); }
static CUresult fake_cuEventDestroy(CUevent e) { FAKE_RELEASE(e); }

/* The graph's work is shared: the tests keep a graph as long as what was instantiated from it. */
static CUresult fake_cuGraphInstantiate(CUgraphExec *e, CUgraph g, unsigned long long f) {
    fake_work *w;
    (void)f;
    FAKE_ENTER;
    *e = (CUgraphExec)fake_new(sizeof **e);
    (*e)->graph = (CUgraph)calloc(1, sizeof *g);
    (*e)->graph->last = &(*e)->graph->first;
    for (w = g->first; w; w = w->next) {
        const fake_kernel *k = fake_find_kernel(w->name);
        fake_work *copy = (fake_work *)malloc(sizeof *copy);
        *copy = *w;
        copy->next = NULL;
        if (w->parameters) {
            size_t n = k ? k->parameter_bytes : 0;
            copy->parameters = malloc(n ? n : 1);
            memcpy(copy->parameters, w->parameters, n);
        }
        *(*e)->graph->last = copy;
        (*e)->graph->last = &copy->next;
    }
    return 0;
}
static CUresult fake_cuGraphLaunch(CUgraphExec e, CUstream s) {
    fake_work *w;
    (void)s;
    FAKE_ENTER;
    for (w = e->graph->first; w; w = w->next) fake_run(w);
    return 0;
}
static CUresult fake_cuGraphUpload(CUgraphExec e, CUstream s) {
    (void)e;
    (void)s;
    return fake_enter();
}
static CUresult fake_cuGraphExecDestroy(CUgraphExec e) {
    fake_live(1); /* the copy of the graph was not counted */
    fake_cuGraphDestroy(e->graph);
    FAKE_RELEASE(e);
}
static CUresult fake_cuGraphExecUpdate(CUgraphExec e, CUgraph g, CUgraphExecUpdateResultInfo *i) {
    (void)e;
    (void)g;
    (void)i;
    FAKE_ENTER;
    return CUDA_ERROR_NOT_SUPPORTED;
}
static CUresult fake_cuGraphGetNodes(CUgraph g, CUgraphNode *nodes, size_t *count) {
    (void)nodes;
    FAKE_ENTER;
    *count = g->count;
    return 0;
}

#endif
