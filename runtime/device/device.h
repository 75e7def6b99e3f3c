/* device: the backend a runtime runs on, cuda or cpu behind one set of calls.
 *
 * Owns the context, the streams, every byte of device memory and the error words. Calls driver,
 * jit and pool. Device addresses are `void *` on both backends; on the CPU they are host memory.
 * Invariant: the context is current only between device_enter and device_leave, so that a host
 * program with CUDA of its own never finds another context than it left.
 *
 * staging.h has pinned buffers and captured work, tensor.h tensors and what ops want of them,
 * handles.h the runtime and what it hands out. */

enum { DEV_MAX_OUTGROWN = 48 /* doublings */, DEV_ERROR_OPS = 32 };

typedef struct device {
    struct base *base;
    bool cuda;
    struct driver_calls *drv;   /* NULL on the CPU */
    struct jit *jit;   /* NULL on the CPU */
    struct pool *pool; /* the CPU threads, on both backends */
    CUdevice ordinal;
    CUcontext context;
    bool owns_context; /* the primary context, retained */
    CUstream stream;   /* where work is enqueued now */
    CUstream own_stream;
    bool owns_stream;
    uint64_t submitted; /* staging buffers handed to the device */
    uint64_t synced;    /* as many when the host last waited, for this stream: */
    CUstream synced_stream;
    char name[96];
    int arch, sm_count, max_shared_bytes, driver_version;
    size_t l2_bytes, total_bytes;
    size_t live_bytes, peak_bytes, budget_bytes /* 0: none */;
    cairn_device_allocator allocator;
    /* private below */
    void *scratch;
    size_t scratch_bytes;
    struct { void *memory; size_t bytes; } outgrown[DEV_MAX_OUTGROWN]; /* by the scratch */
    int outgrown_count;
    void *flags; /* zero between ops */
    size_t flags_bytes;
    struct device_fault_word *error_words; /* host-mapped, so that kernels write where we read */
    const char *error_ops[DEV_ERROR_OPS];  /* whose each is; the last may be of several */
    int error_op_count;
    bool rehearses; /* launches are left out, and kernels that are compiled meanwhile: what was to be
                     * launched is made ready; awaits: some were left out */
    bool awaits;
    int ahead;       /* models whose next step is in the current stream, though no call has asked for it */
    int faults_held; /* above 0: faults wait for a later synchronisation */
    struct trace *trace; /* that is taken, or NULL; trace.h */
} device;

/* Must match cairn_error_word of kernels_src/abi.h. */
typedef struct device_fault_word { int32_t code, row; int64_t value; } device_fault_word;

typedef struct device_dims {
    unsigned grid[3], block;
    unsigned cluster;      /* 0 or 1: none */
    unsigned shared_bytes; /* dynamic */
    bool dependent;        /* starts while its predecessor drains: programmatic dependent launch */
} device_dims;

#define DEV_TRY(dev, call) \
    do { \
        CUresult device_result_ = (dev)->drv->call; \
        if (device_result_) return driver_fail((dev)->base, (dev)->drv, device_result_, #call); \
    } while (0)

/* ---- life ------------------------------------------------------------------------------------ */

/* The cuda backend on an opened driver. The caller has set base, drv and allocator. */
static cairn_status device_open_cuda(device *dev, int ordinal, void *context, void *stream);
/* The backend that opening would give for `wish`, its shape and memory, for an estimate: nothing is
 * opened, `drv` is closed again. Without a GPU the shape for CAIRN_BACKEND_CUDA is a large one's. */
static cairn_backend device_measure(device *dev, cairn_backend wish, const char *path, int ordinal,
                                    driver_calls *drv);
/* The CPU backend, on the pool. Never fails. */
static void device_open_cpu(device *dev);
/* Also right after a failed open. */
static void device_close(device *dev);
/* Nothing to do on the CPU. Each enter that returned CAIRN_OK owes one leave. */
static cairn_status device_enter(device *dev);
static void device_leave(device *dev);
/* The CPU threads are so many from now on, see pool_resize. */
static void device_set_threads(device *dev, int threads);

/* Whether device memory lies apart from the host's: the host reads none of it in place, and what the
 * host's memory holds says nothing of it. */
static bool device_is_apart(const device *dev);
/* Whether kernels may be launched as clusters of many blocks, which reach each other's memory. */
static bool device_has_clusters(const device *dev);

/* ---- memory ---------------------------------------------------------------------------------- */

/* Device memory, 256-byte aligned, contents undefined. `what` names the consumer in the message.
 * 0 bytes give a valid address too. */
static cairn_status device_alloc(device *dev, size_t bytes, const char *what, void **out);
/* The same; on a GPU it begins as zeros, for kernels that read words of which they replace a part. */
static cairn_status device_alloc_clear(device *dev, size_t bytes, const char *what, void **out);
/* bytes as given to device_alloc. NULL is ignored. Waits for work that may still use the memory. */
static void device_free(device *dev, void *memory, size_t bytes);
/* Device memory that nobody holds now; all there is of a device that was only measured for, and
 * UINT64_MAX where no figure is known. */
static cairn_status device_free_bytes(const device *dev, uint64_t *bytes);
/* What the backend has free and in all; on the CPU both are what the system has available. */
static void device_memory(const device *dev, uint64_t *free_bytes, uint64_t *total_bytes);
/* Memory of the device that an op needs during one call: kept, at least doubled when it must grow.
 * What it outgrew stands until the end, since a captured graph may still point there. */
static cairn_status device_scratch(device *dev, size_t bytes, const char *what, void **out);
/* As device_scratch, for flags that are zero between ops: each op that sets some leaves them
 * zero. */
static cairn_status device_flags(device *dev, size_t bytes, const char *what, void **out);
/* Pinned host memory, for copies that need not wait; plain host memory on the CPU. Zeroed. */
static cairn_status device_host_alloc(device *dev, size_t bytes, const char *what, void **out);
/* bytes as given to device_host_alloc. NULL is ignored. */
static void device_host_free(device *dev, void *memory, size_t bytes);
/* The number that the driver knows it by. */
static CUdeviceptr device_address(const void *p);

/* ---- work, in the order of the current stream ------------------------------------------------ */

/* All copies are in the order of the current stream. From pageable memory an upload has left the
 * host buffer when it returns; from pinned memory the buffer must stand until the copy is done. */
static cairn_status device_upload(device *dev, void *to, const void *host, size_t bytes);
/* Waits until the bytes are there. */
static cairn_status device_download(device *dev, void *host, const void *from, size_t bytes);
/* Between device memory and device memory. */
static cairn_status device_copy(device *dev, void *to, const void *from, size_t bytes);
/* Bytes of device memory become 0. */
static cairn_status device_zero(device *dev, void *to, size_t bytes);
/* Launches on the current stream with one by-value parameter struct of kernels_src/abi.h. */
static cairn_status device_launch(device *dev, const jit_kernel *kernel, const device_dims *dims,
                                  const void *params);
/* Where kernels of this op leave their first fault; NULL on the CPU. `op` is a literal. */
static device_fault_word *device_error_word(device *dev, const char *op);
/* Waits for the current stream, then reports what the kernels found wrong with their data. */
static cairn_status device_sync(device *dev);
/* Waits alike, and leaves faults for the next device_sync. False when the driver fails. */
static bool device_wait(device *dev);
/* Marks the end of what is enqueued; *mark NULL: it is made. */
static cairn_status device_mark(device *dev, CUevent *mark);
/* Whether the device came past the mark, or never will: what waits next says why. Never waits. */
static bool device_has_passed(const device *dev, CUevent mark);
/* Waits until the device has; mark NULL: until it came past all of the current stream. [blocks] */
static cairn_status device_await(device *dev, CUevent mark);
/* Microseconds from one mark to another that the device came past; 0: it does not say. */
static int64_t device_between(const device *dev, CUevent from, CUevent to);
static void device_mark_free(device *dev, CUevent mark);
