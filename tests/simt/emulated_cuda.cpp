/* A CUDA driver without a GPU: the functions of libcuda that Cairn uses, over host memory and the
 * emulation of kernels. Its NVRTC half (emulated_nvrtc.cpp) makes "cubins" that are host libraries.
 * So the whole CUDA backend runs anywhere: JIT, cache, launches, graphs, dependent launch.
 *
 * Streams run at once, in the order of the calls. Memory is poisoned when allocated. A fault of a
 * kernel goes to standard error and is CUDA_ERROR_LAUNCH_FAILED from then on. CAIRN_SIMT_ARCH is
 * the compute capability it pretends, 90 by default. */
#include "simt_core.h"

#include <dlfcn.h>
#include <elf.h>
#include <stddef.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

typedef void (*os_function)(void);
#include "../../runtime/generated/driver.h"

typedef std::function<CUresult()> Work;

struct CUctx_st { int unused; };
struct CUmod_st {
    void *library;
    int file;
    std::vector<std::unique_ptr<CUfunc_st>> functions;
};
struct CUfunc_st {
    simt::Entry entry;
    uint32_t shared_bytes = 0;
};
struct CUgraph_st { std::vector<Work> works; };
struct CUgraphExec_st { std::vector<Work> works; };
struct CUstream_st { std::shared_ptr<CUgraph_st> capture; };
struct CUevent_st {
    timespec time;
    std::shared_ptr<CUgraph_st> capture;
};

static std::recursive_mutex lock;
typedef std::lock_guard<std::recursive_mutex> Guard;
static CUctx_st primary;
static thread_local std::vector<CUcontext> contexts;
static CUstream_st null_stream;
static std::map<CUdeviceptr, size_t> allocations;
static size_t allocated_bytes;
static const size_t total_bytes = (size_t)8 << 30;
static CUresult sticky;

static CUstream_st *stream_of(CUstream stream) { return stream ? stream : &null_stream; }

/* Now, or when the graph that is being captured runs. */
static CUresult enqueue(CUstream stream, Work work) {
    Guard guard(lock);
    if (sticky) return sticky;
    CUstream_st *s = stream_of(stream);
    if (!s->capture) return work();
    s->capture->works.push_back(work);
    return CUDA_SUCCESS;
}

#define API extern "C" __attribute__((visibility("default"))) CUresult

/* ---- faults ---- */

/* A test that asks for it (emulated_fail, found with dlsym) has the n-th call from then on fail, or
 * that and all after it; calls that give something back never do. */
static struct { int calls, nth, code; bool for_good, failed; } faults;

extern "C" __attribute__((visibility("default"))) void emulated_fail(int nth, int code, int for_good) {
    Guard guard(lock);
    faults = {0, nth, code, for_good != 0, false};
}
/* Calls since then; *failed: whether one did. */
extern "C" __attribute__((visibility("default"))) int emulated_calls(int *failed) {
    Guard guard(lock);
    return *failed = faults.failed, faults.calls;
}
/* Bytes of device memory that were not given back. */
extern "C" __attribute__((visibility("default"))) size_t emulated_bytes() {
    Guard guard(lock);
    return allocated_bytes;
}

int emulated_fault() {
    Guard guard(lock);
    const bool now = ++faults.calls == faults.nth;
    faults.failed = faults.failed || now;
    return now || (faults.failed && faults.for_good) ? faults.code : 0;
}
#define FAULT() if (int fault_ = emulated_fault()) return fault_

/* ---- device ---- */

API cuInit(unsigned) {
    FAULT();
    return CUDA_SUCCESS;
}
API cuDriverGetVersion(int *version) {
    FAULT();
    return *version = 13000, CUDA_SUCCESS;
}
API cuGetErrorName(CUresult result, const char **name) {
#define CASE(constant, value)                                    \
    if (result == value && !strncmp(#constant, "CUDA_", 5))      \
        return *name = #constant, CUDA_SUCCESS;
    DRV_CONSTANTS(CASE)
    return CUDA_ERROR_INVALID_VALUE;
}
API cuGetErrorString(CUresult result, const char **text) { return cuGetErrorName(result, text); }
API cuDeviceGet(CUdevice *device, int) {
    FAULT();
    return *device = 0, CUDA_SUCCESS;
}
API cuDeviceGetCount(int *count) {
    FAULT();
    return *count = 1, CUDA_SUCCESS;
}
API cuDeviceGetName(char *name, int bytes, CUdevice) {
    FAULT();
    snprintf(name, (size_t)bytes, "emulated GPU");
    return CUDA_SUCCESS;
}
API cuDeviceTotalMem_v2(size_t *bytes, CUdevice) {
    FAULT();
    return *bytes = total_bytes, CUDA_SUCCESS;
}
API cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice) {
    FAULT();
    return memset(uuid, 7, sizeof *uuid), CUDA_SUCCESS;
}

static int arch() {
    const char *text = getenv("CAIRN_SIMT_ARCH");
    return text ? atoi(text) : 90;
}

API cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice) {
    FAULT();
    static const int values[][2] = {
        {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 48 << 10},
        {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
        {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1000000},
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 4},
        {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 1000000},
        {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 512},
        {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 32 << 20},
        {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
        {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
    };
    const int data_centre = arch() == 80 || arch() == 90 || arch() / 10 == 10;
    *value = 0;
    for (const auto &v : values)
        if (v[0] == attribute) *value = v[1];
    if (attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) *value = arch() / 10;
    if (attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR) *value = arch() % 10;
    if (attribute == CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH) *value = arch() >= 90;
    if (attribute == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN ||
        attribute == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)
        *value = (!data_centre ? 99 : arch() == 80 ? 163 : 227) << 10;
    return CUDA_SUCCESS;
}

/* ---- contexts ---- */

API cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice) {
    FAULT();
    return *context = &primary, CUDA_SUCCESS;
}
API cuDevicePrimaryCtxRelease_v2(CUdevice) { return CUDA_SUCCESS; }
API cuCtxCreate_v2(CUcontext *context, unsigned, CUdevice) {
    FAULT();
    contexts.push_back(*context = new CUctx_st());
    return CUDA_SUCCESS;
}
API cuCtxDestroy_v2(CUcontext context) {
    if (!contexts.empty() && contexts.back() == context) contexts.pop_back();
    delete context;
    return CUDA_SUCCESS;
}
API cuCtxPushCurrent_v2(CUcontext context) {
    FAULT();
    return contexts.push_back(context), CUDA_SUCCESS;
}
API cuCtxPopCurrent_v2(CUcontext *context) {
    if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    if (context) *context = contexts.back();
    contexts.pop_back();
    return CUDA_SUCCESS;
}
API cuCtxGetCurrent(CUcontext *context) {
    FAULT();
    *context = contexts.empty() ? nullptr : contexts.back();
    return CUDA_SUCCESS;
}
API cuCtxGetDevice(CUdevice *device) {
    FAULT();
    return *device = 0, CUDA_SUCCESS;
}
API cuCtxSynchronize() {
    FAULT();
    return sticky;
}
API cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    FAULT();
    *least = *greatest = 0;
    return CUDA_SUCCESS;
}

/* What needs a current context fails without one, as the real driver does. */
#define NEED_CONTEXT() if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT

/* ---- memory ---- */

static CUresult allocate(void **out, size_t bytes) {
    Guard guard(lock);
    *out = nullptr;
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    if (allocated_bytes + bytes > total_bytes || posix_memalign(out, 256, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    memset(*out, 0xff, bytes);
    allocations[(CUdeviceptr)(uintptr_t)*out] = bytes;
    allocated_bytes += bytes;
    simt::forget(*out, bytes);
    return CUDA_SUCCESS;
}
static CUresult release(void *p) {
    Guard guard(lock);
    auto found = allocations.find((CUdeviceptr)(uintptr_t)p);
    if (!p) return CUDA_SUCCESS;
    if (found == allocations.end()) return CUDA_ERROR_INVALID_VALUE;
    allocated_bytes -= found->second;
    simt::forget(p, found->second);
    allocations.erase(found);
    free(p);
    return CUDA_SUCCESS;
}
static void *host(CUdeviceptr address) { return reinterpret_cast<void *>((uintptr_t)address); }

API cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
    FAULT();
    NEED_CONTEXT();
    void *p;
    CUresult result = allocate(&p, bytes);
    return *address = (CUdeviceptr)(uintptr_t)p, result;
}
API cuMemFree_v2(CUdeviceptr address) { return release(host(address)); }
API cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    FAULT();
    *total = total_bytes;
    *free_bytes = total_bytes - allocated_bytes;
    return CUDA_SUCCESS;
}
API cuMemHostAlloc(void **p, size_t bytes, unsigned) {
    FAULT();
    return allocate(p, bytes);
}
API cuMemFreeHost(void *p) { return release(p); }
API cuMemHostGetDevicePointer_v2(CUdeviceptr *address, void *p, unsigned) {
    FAULT();
    return *address = (CUdeviceptr)(uintptr_t)p, CUDA_SUCCESS;
}
API cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr address) {
    FAULT();
    Guard guard(lock);
    auto at = allocations.upper_bound(address);
    if (at == allocations.begin() || address >= (--at)->first + at->second)
        return CUDA_ERROR_INVALID_VALUE;
    CUcontext context = &primary;
    int number = attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE ? 2 : 0;
    if (attribute == CU_POINTER_ATTRIBUTE_CONTEXT) memcpy(value, &context, sizeof context);
    else memcpy(value, &number, sizeof number);
    return CUDA_SUCCESS;
}

/* Pageable memory is read before the call returns; a captured copy reads when the graph runs. */
static CUresult copy(void *to, const void *from, size_t bytes, CUstream stream) {
    NEED_CONTEXT();
    return enqueue(stream, [=] { return memmove(to, from, bytes), (CUresult)CUDA_SUCCESS; });
}
API cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    FAULT();
    return copy(host(to), from, bytes, stream);
}
API cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    FAULT();
    return copy(to, host(from), bytes, stream);
}
API cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    FAULT();
    return copy(host(to), host(from), bytes, stream);
}
API cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
    FAULT();
    return copy(host(to), from, bytes, nullptr);
}
API cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
    FAULT();
    return copy(to, host(from), bytes, nullptr);
}
API cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    FAULT();
    return copy(host(to), host(from), bytes, nullptr);
}
API cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
    FAULT();
    return enqueue(stream, [=] { return memset(host(to), value, count), (CUresult)CUDA_SUCCESS; });
}
API cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) {
    FAULT();
    return cuMemsetD8Async(to, value, count, nullptr);
}
API cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
    FAULT();
    return enqueue(stream, [=] {
        for (size_t i = 0; i < count; i++) static_cast<unsigned *>(host(to))[i] = value;
        return (CUresult)CUDA_SUCCESS;
    });
}

/* ---- streams and events ---- */

API cuStreamCreateWithPriority(CUstream *stream, unsigned, int) {
    FAULT();
    NEED_CONTEXT();
    return *stream = new CUstream_st(), CUDA_SUCCESS;
}
API cuStreamDestroy_v2(CUstream stream) { return delete stream, CUDA_SUCCESS; }
API cuStreamSynchronize(CUstream stream) {
    FAULT();
    if (stream_of(stream)->capture) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return sticky;
}
API cuStreamQuery(CUstream stream) {
    FAULT();
    return cuStreamSynchronize(stream);
}
API cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode) {
    FAULT();
    if (!stream || stream->capture) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    stream->capture = std::make_shared<CUgraph_st>();
    return CUDA_SUCCESS;
}
API cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    if (!stream_of(stream)->capture) return CUDA_ERROR_INVALID_VALUE;
    std::shared_ptr<CUgraph_st> capture = std::move(stream_of(stream)->capture);
    *graph = nullptr;
    FAULT(); /* it has ended all the same */
    *graph = new CUgraph_st(*capture);
    return CUDA_SUCCESS;
}
API cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
    FAULT();
    *status = stream_of(stream)->capture ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                         : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}
API cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    FAULT();
    static thread_local CUstreamCaptureMode now = CU_STREAM_CAPTURE_MODE_GLOBAL;
    std::swap(*mode, now);
    return CUDA_SUCCESS;
}
API cuEventCreate(CUevent *event, unsigned) {
    FAULT();
    return *event = new CUevent_st(), CUDA_SUCCESS;
}
API cuEventDestroy_v2(CUevent event) { return delete event, CUDA_SUCCESS; }
API cuEventRecord(CUevent event, CUstream stream) {
    FAULT();
    clock_gettime(CLOCK_MONOTONIC, &event->time);
    event->capture = stream_of(stream)->capture;
    return CUDA_SUCCESS;
}
/* Joins the capture of the stream that recorded the event. */
API cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
    FAULT();
    if (event->capture && stream) stream->capture = event->capture;
    return CUDA_SUCCESS;
}
API cuEventSynchronize(CUevent) {
    FAULT();
    return sticky;
}
/* As a device that is still at work says, so many times of ten: CAIRN_SIMT_LATE. */
API cuEventQuery(CUevent) {
    static std::atomic<unsigned> asked{0};
    const char *late = getenv("CAIRN_SIMT_LATE");
    FAULT();
    if (late && !sticky && asked.fetch_add(7) % 10 < (unsigned)atoi(late)) return CUDA_ERROR_NOT_READY;
    return sticky;
}
API cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    FAULT();
    *milliseconds = (float)((double)(end->time.tv_sec - start->time.tv_sec) * 1e3 +
                            (double)(end->time.tv_nsec - start->time.tv_nsec) * 1e-6);
    return CUDA_SUCCESS;
}
API cuLaunchHostFunc(CUstream stream, CUhostFn function, void *user) {
    FAULT();
    return enqueue(stream, [=] { return function(user), (CUresult)CUDA_SUCCESS; });
}

/* ---- graphs ---- */

static CUresult run_all(const std::vector<Work> &works) {
    CUresult result = CUDA_SUCCESS;
    for (const Work &work : works)
        if (!result) result = work();
    return result;
}
API cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long) {
    FAULT();
    return *exec = new CUgraphExec_st{graph->works}, CUDA_SUCCESS;
}
API cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    FAULT();
    return enqueue(stream, [exec] { return run_all(exec->works); });
}
API cuGraphUpload(CUgraphExec, CUstream) {
    FAULT();
    return CUDA_SUCCESS;
}
API cuGraphDestroy(CUgraph graph) { return delete graph, CUDA_SUCCESS; }
API cuGraphExecDestroy(CUgraphExec exec) { return delete exec, CUDA_SUCCESS; }
API cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info) {
    FAULT();
    memset(info, 0, sizeof *info);
    exec->works = graph->works;
    return CUDA_SUCCESS;
}
API cuGraphGetNodes(CUgraph graph, CUgraphNode *, size_t *count) {
    FAULT();
    return *count = graph->works.size(), CUDA_SUCCESS;
}

/* ---- modules: a "cubin" is a shared library, see emulated_nvrtc.cpp ---- */

static size_t image_bytes(const void *image) {
    Elf64_Ehdr head;
    memcpy(&head, image, sizeof head);
    if (memcmp(head.e_ident, ELFMAG, SELFMAG)) return 0;
    return head.e_shoff + (size_t)head.e_shnum * head.e_shentsize;
}

static CUresult load_library(CUmodule module, const void *image, size_t bytes) {
    char path[64];
    module->file = memfd_create("cairn_kernel", 0);
    if (module->file < 0 || write(module->file, image, bytes) != (ssize_t)bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getpid(), module->file);
    std::map<const void *, bool> before;
    for (const simt::Entry &e : simt::all_entries()) before[e.kernel] = true;
    module->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!module->library) {
        fprintf(stderr, "emulated CUDA: %s\n", dlerror());
        return CUDA_ERROR_INVALID_IMAGE;
    }
    for (const simt::Entry &e : simt::all_entries()) {
        if (before.count(e.kernel)) continue;
        module->functions.emplace_back(new CUfunc_st());
        module->functions.back()->entry = e;
    }
    return CUDA_SUCCESS;
}

API cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned, CUjit_option *, void **) {
    FAULT();
    NEED_CONTEXT();
    Guard guard(lock);
    size_t bytes = image_bytes(image);
    if (!bytes) return CUDA_ERROR_INVALID_IMAGE;
    CUmodule module = new CUmod_st();
    CUresult result = load_library(module, image, bytes);
    if (result) delete module;
    else *out = module;
    return result;
}
API cuModuleUnload(CUmodule module) {
    Guard guard(lock);
    dlclose(module->library);
    close(module->file);
    return delete module, CUDA_SUCCESS;
}
API cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    FAULT();
    for (const auto &f : module->functions)
        if (!strcmp(f->entry.name, name)) return *function = f.get(), CUDA_SUCCESS;
    return CUDA_ERROR_NOT_FOUND;
}
API cuModuleGetGlobal_v2(CUdeviceptr *, size_t *, CUmodule, const char *) {
    FAULT();
    return CUDA_ERROR_NOT_FOUND;
}
API cuLinkCreate_v2(unsigned, CUjit_option *, void **, CUlinkState *) {
    FAULT();
    return CUDA_ERROR_NOT_SUPPORTED;
}
API cuLinkAddData_v2(CUlinkState, CUjitInputType, void *, size_t, const char *, unsigned,
                     CUjit_option *, void **) {
    FAULT();
    return CUDA_ERROR_NOT_SUPPORTED;
}
API cuLinkComplete(CUlinkState, void **, size_t *) {
    FAULT();
    return CUDA_ERROR_NOT_SUPPORTED;
}
API cuLinkDestroy(CUlinkState) { return CUDA_SUCCESS; }
API cuFuncLoad(CUfunction) {
    FAULT();
    return CUDA_SUCCESS;
}

API cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
    FAULT();
    *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? function->entry.threads
             : attribute == CU_FUNC_ATTRIBUTE_NUM_REGS           ? 32
                                                                 : 0;
    return CUDA_SUCCESS;
}
API cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    FAULT();
    int most;
    cuDeviceGetAttribute(&most, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 0);
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_SUCCESS;
    if (value < 0 || value > most) return CUDA_ERROR_INVALID_VALUE;
    function->shared_bytes = (uint32_t)value;
    return CUDA_SUCCESS;
}
API cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction, int threads, size_t) {
    FAULT();
    return *blocks = threads > 512 ? 1 : 2, CUDA_SUCCESS;
}
API cuOccupancyMaxActiveClusters(int *clusters, CUfunction, const CUlaunchConfig *) {
    FAULT();
    return *clusters = 1, CUDA_SUCCESS;
}

/* ---- launches ---- */

static CUresult run_kernel(const simt::Shape &shape, const simt::Entry &entry, const void *params) {
    std::string fault = simt::run(shape, entry.kernel, params);
    if (fault.empty()) return CUDA_SUCCESS;
    fprintf(stderr, "emulated CUDA: %s\n", fault.c_str());
    return sticky = CUDA_ERROR_LAUNCH_FAILED;
}

/* Grids small enough to be resident on a real chip all at once are so here. Of others few blocks are at a time, and they
 * begin in the order of z, as on a real chip: they may wait for those before them, and for no more. */
static simt::Shape shape_of(const CUlaunchConfig &c) {
    simt::Shape shape = {{c.gridDimX, c.gridDimY, c.gridDimZ}, 1, c.blockDimX, c.sharedMemBytes};
    for (unsigned i = 0; i < c.numAttrs; i++) {
        if (c.attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            shape.cluster = c.attrs[i].value.clusterDim.x;
        if (c.attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION &&
            c.attrs[i].value.programmaticStreamSerializationAllowed)
            shape.dependent = 2;
    }
    uint64_t threads = (uint64_t)c.gridDimX * c.gridDimY * c.gridDimZ * c.blockDimX;
    if (threads <= 8192) shape.resident = ~0u;
    shape.ordered = true;
    return shape;
}

API cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction function, void **parameters, void **) {
    FAULT();
    NEED_CONTEXT();
    if (!c->gridDimX || !c->gridDimY || !c->gridDimZ || !c->blockDimX || c->blockDimY != 1 ||
        c->blockDimZ != 1) return CUDA_ERROR_INVALID_VALUE;
    if (c->sharedMemBytes > 48 << 10 && c->sharedMemBytes > function->shared_bytes)
        return CUDA_ERROR_INVALID_VALUE;
    const simt::Entry entry = function->entry;
    const simt::Shape shape = shape_of(*c);
    const char *bytes = static_cast<const char *>(parameters[0]);
    auto params = std::make_shared<std::vector<char>>(bytes, bytes + entry.params_bytes);
    return enqueue(c->hStream, [=] { return run_kernel(shape, entry, params->data()); });
}
API cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                   unsigned by, unsigned bz, unsigned shared_bytes, CUstream stream,
                   void **parameters, void **) {
    FAULT();
    CUlaunchConfig c = {gx, gy, gz, bx, by, bz, shared_bytes, stream, nullptr, 0};
    return cuLaunchKernelEx(&c, function, parameters, nullptr);
}
