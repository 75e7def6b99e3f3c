/* device: the cuda and the cpu backend. */

static cairn_status device_enter(device *dev) {
    if (dev->cuda) DEV_TRY(dev, cuCtxPushCurrent(dev->context));
    return CAIRN_OK;
}

static void device_leave(device *dev) {
    CUcontext popped = NULL;
    if (dev->cuda) dev->drv->cuCtxPopCurrent(&popped);
}

static void device_set_threads(device *dev, int threads) {
    pool_resize(dev->pool, threads);
    if (!dev->cuda) dev->sm_count = pool_threads(dev->pool);
}

/* ---- memory ---------------------------------------------------------------------------------- */

enum { DEV_ALIGN = 256 };

static CUdeviceptr device_address(const void *p) { return (CUdeviceptr)(uintptr_t)p; }

/* Host memory for the CPU backend: aligned, the offset to the block's start just before it. */
static void *device_alloc_host(base *b, size_t bytes) {
    char *block = (char *)b->allocator.realloc(b->allocator.user, NULL, 0, bytes + DEV_ALIGN);
    size_t offset;
    if (!block) return NULL;
    offset = DEV_ALIGN - (uintptr_t)block % DEV_ALIGN;
    block[offset - 1] = (char)(offset / 16 - 1); /* offset is a multiple of 16, 16 to 256 */
    return block + offset;
}

static void device_free_host(base *b, void *memory, size_t bytes) {
    char *at = (char *)memory;
    size_t offset = ((size_t)(unsigned char)at[-1] + 1) * 16;
    b->allocator.realloc(b->allocator.user, at - offset, bytes + DEV_ALIGN, 0);
}

static cairn_status device_check_budget(device *dev, size_t bytes, const char *what) {
    if (!dev->budget_bytes || dev->live_bytes + bytes <= dev->budget_bytes) return CAIRN_OK;
    return base_fail(dev->base, CAIRN_OUT_OF_DEVICE_MEMORY,
                     "%s needs %llu bytes; %llu of the budget of %llu are in use", what,
                     (unsigned long long)bytes, (unsigned long long)dev->live_bytes,
                     (unsigned long long)dev->budget_bytes);
}

static cairn_status device_alloc_cuda(device *dev, size_t bytes, const char *what, void **out) {
    CUdeviceptr address = 0;
    CUresult result = CUDA_SUCCESS;
    if (dev->allocator.alloc) address = dev->allocator.alloc(dev->allocator.user, bytes);
    else result = dev->drv->cuMemAlloc(&address, bytes);
    *out = (void *)(uintptr_t)address;
    if (address) return CAIRN_OK;
    if (result && result != CUDA_ERROR_OUT_OF_MEMORY)
        return driver_fail(dev->base, dev->drv, result, "cuMemAlloc");
    return base_fail(dev->base, CAIRN_OUT_OF_DEVICE_MEMORY,
                     "%s needs %llu bytes of device memory; this runtime holds %llu already", what,
                     (unsigned long long)bytes, (unsigned long long)dev->live_bytes);
}

static cairn_status device_free_bytes(const device *dev, uint64_t *bytes) {
    size_t free_bytes = 0, total_bytes = 0;
    *bytes = dev->total_bytes ? (uint64_t)dev->total_bytes : UINT64_MAX;
    if (!dev->cuda) *bytes = (uint64_t)os_memory_bytes();
    if (!dev->cuda || !dev->drv) return CAIRN_OK;
    DEV_TRY(dev, cuMemGetInfo(&free_bytes, &total_bytes));
    return *bytes = (uint64_t)free_bytes, CAIRN_OK;
}

static void device_memory(const device *dev, uint64_t *free_bytes, uint64_t *total_bytes) {
    if (device_free_bytes(dev, free_bytes)) *free_bytes = 0;
    *total_bytes = dev->cuda ? dev->total_bytes : *free_bytes;
}

static cairn_status device_alloc(device *dev, size_t bytes, const char *what, void **out) {
    cairn_status status;
    *out = NULL;
    if (!bytes) bytes = DEV_ALIGN;
    if ((status = device_check_budget(dev, bytes, what))) return status;
    if (dev->cuda) {
        if ((status = device_alloc_cuda(dev, bytes, what, out))) return status;
    } else {
        *out = device_alloc_host(dev->base, bytes);
        if (!*out) return base_no_memory(dev->base, what, bytes);
    }
    dev->live_bytes += bytes;
    if (dev->live_bytes > dev->peak_bytes) dev->peak_bytes = dev->live_bytes;
    return CAIRN_OK;
}

static void device_free(device *dev, void *memory, size_t bytes) {
    if (!memory) return;
    if (!bytes) bytes = DEV_ALIGN;
    dev->live_bytes -= bytes;
    if (!dev->cuda) device_free_host(dev->base, memory, bytes);
    else if (dev->allocator.free)
        dev->allocator.free(dev->allocator.user, device_address(memory), bytes);
    else dev->drv->cuMemFree(device_address(memory));
}

/* Memory that a captured graph may still point to: stands until the end. */
static void device_retire(device *dev, void *memory, size_t bytes) {
    if (dev->cuda && memory && dev->outgrown_count < DEV_MAX_OUTGROWN) {
        dev->outgrown[dev->outgrown_count].memory = memory;
        dev->outgrown[dev->outgrown_count++].bytes = bytes;
    } else {
        device_free(dev, memory, bytes);
    }
}

static cairn_status device_scratch(device *dev, size_t bytes, const char *what, void **out) {
    cairn_status status;
    *out = dev->scratch;
    if (bytes <= dev->scratch_bytes) return CAIRN_OK;
    if (bytes < 2 * dev->scratch_bytes) bytes = 2 * dev->scratch_bytes;
    if ((status = device_alloc(dev, bytes, what, out))) return status;
    device_retire(dev, dev->scratch, dev->scratch_bytes);
    dev->scratch = *out;
    dev->scratch_bytes = bytes;
    return CAIRN_OK;
}

static void device_free_scratch(device *dev) {
    device_free(dev, dev->scratch, dev->scratch_bytes);
    device_free(dev, dev->flags, dev->flags_bytes);
    while (dev->outgrown_count) {
        dev->outgrown_count--;
        device_free(dev, dev->outgrown[dev->outgrown_count].memory,
                 dev->outgrown[dev->outgrown_count].bytes);
    }
}

static cairn_status device_host_alloc(device *dev, size_t bytes, const char *what, void **out) {
    *out = NULL;
    if (!bytes) bytes = 1;
    if (dev->cuda) DEV_TRY(dev, cuMemHostAlloc(out, bytes,
                                        CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
    else *out = device_alloc_host(dev->base, bytes);
    if (!*out) return base_no_memory(dev->base, what, bytes);
    memset(*out, 0, bytes);
    return CAIRN_OK;
}

static void device_host_free(device *dev, void *memory, size_t bytes) {
    if (!memory) return;
    if (dev->cuda) dev->drv->cuMemFreeHost(memory);
    else device_free_host(dev->base, memory, bytes ? bytes : 1);
}

static cairn_status device_upload(device *dev, void *to, const void *host, size_t bytes) {
    if (!bytes) return CAIRN_OK;
    if (dev->cuda) DEV_TRY(dev, cuMemcpyHtoDAsync(device_address(to), host, bytes, dev->stream));
    else memcpy(to, host, bytes);
    return CAIRN_OK;
}

static cairn_status device_await(device *dev, CUevent mark) {
    const int range = TRACE_OPEN(dev, "wait", false);
    const CUresult result = mark ? dev->drv->cuEventSynchronize(mark) : dev->drv->cuStreamSynchronize(dev->stream);
    TRACE_SHUT(dev, range, 0);
    if (!result) return CAIRN_OK;
    return driver_fail(dev->base, dev->drv, result, mark ? "cuEventSynchronize" : "cuStreamSynchronize");
}

static cairn_status device_download(device *dev, void *host, const void *from, size_t bytes) {
    if (!bytes) return CAIRN_OK;
    if (dev->cuda) {
        DEV_TRY(dev, cuMemcpyDtoHAsync(host, device_address(from), bytes, dev->stream));
        return device_await(dev, NULL);
    } else {
        memcpy(host, from, bytes);
    }
    return CAIRN_OK;
}

static cairn_status device_copy(device *dev, void *to, const void *from, size_t bytes) {
    if (!bytes) return CAIRN_OK;
    if (dev->cuda)
        DEV_TRY(dev, cuMemcpyDtoDAsync(device_address(to), device_address(from), bytes,
                                       dev->stream));
    else memmove(to, from, bytes);
    return CAIRN_OK;
}

static cairn_status device_zero(device *dev, void *to, size_t bytes) {
    if (!bytes) return CAIRN_OK;
    if (dev->cuda) DEV_TRY(dev, cuMemsetD8Async(device_address(to), 0, bytes, dev->stream));
    else memset(to, 0, bytes);
    return CAIRN_OK;
}

static cairn_status device_alloc_clear(device *dev, size_t bytes, const char *what, void **out) {
    cairn_status status = device_alloc(dev, bytes, what, out);
    if (status || !dev->cuda || !(status = device_zero(dev, *out, bytes))) return status;
    device_free(dev, *out, bytes);
    *out = NULL;
    return status;
}

/* So many bytes are there from the start, since zeroing within a graph would come too late. */
enum { DEV_FLAGS = 4096 };

static cairn_status device_flags(device *dev, size_t bytes, const char *what, void **out) {
    cairn_status status;
    *out = dev->flags;
    if (bytes <= dev->flags_bytes) return CAIRN_OK;
    bytes = bytes < DEV_FLAGS ? DEV_FLAGS : 2 * bytes;
    if ((status = device_alloc_clear(dev, bytes, what, out))) return status;
    device_retire(dev, dev->flags, dev->flags_bytes);
    dev->flags = *out;
    dev->flags_bytes = bytes;
    return CAIRN_OK;
}

/* ---- work ------------------------------------------------------------------------------------ */

static cairn_status device_launch(device *dev, const jit_kernel *kernel, const device_dims *dims,
                                  const void *params) {
    CUlaunchAttribute attributes[2];
    CUlaunchConfig config;
    void *arguments[1];
    unsigned count = 0;
    if (dev->rehearses) return CAIRN_OK;
    memset(attributes, 0, sizeof attributes);
    memset(&config, 0, sizeof config);
    if (dims->cluster > 1) {
        attributes[count].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        attributes[count].value.clusterDim.x = dims->cluster;
        attributes[count].value.clusterDim.y = attributes[count].value.clusterDim.z = 1;
        count++;
    }
    if (dims->dependent && dev->arch >= 90) {
        attributes[count].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attributes[count].value.programmaticStreamSerializationAllowed = 1;
        count++;
    }
    config.gridDimX = dims->grid[0];
    config.gridDimY = dims->grid[1] ? dims->grid[1] : 1;
    config.gridDimZ = dims->grid[2] ? dims->grid[2] : 1;
    config.blockDimX = dims->block;
    config.blockDimY = config.blockDimZ = 1;
    config.sharedMemBytes = dims->shared_bytes;
    config.hStream = dev->stream;
    config.attrs = attributes;
    config.numAttrs = count;
    memcpy(&arguments[0], &params, sizeof params);
    DEV_TRY(dev, cuLaunchKernelEx(&config, kernel->function, arguments, NULL));
    return CAIRN_OK;
}

static device_fault_word *device_error_word(device *dev, const char *op) {
    int i = 0;
    if (!dev->error_words) return NULL;
    while (i < dev->error_op_count && strcmp(dev->error_ops[i], op) != 0) i++;
    if (i == DEV_ERROR_OPS) return &dev->error_words[DEV_ERROR_OPS - 1];
    if (i == dev->error_op_count) dev->error_ops[dev->error_op_count++] = op;
    return &dev->error_words[i];
}

/* The fault that kernels of an op left since the last call; clears those of all. */
static cairn_status device_check_errors(device *dev) {
    static const char *const causes[] = {"", "length out of range", "row start out of range",
                                         "id out of range", "position out of range"};
    device_fault_word word;
    int i = 0;
    if (dev->faults_held) return CAIRN_OK;
    while (i < dev->error_op_count && !dev->error_words[i].code) i++;
    if (i == dev->error_op_count) return CAIRN_OK;
    word = dev->error_words[i];
    memset(dev->error_words, 0, DEV_ERROR_OPS * sizeof *dev->error_words);
    return base_fail(dev->base, CAIRN_BAD_DATA, "%s: row %d: %s (%lld)", dev->error_ops[i],
                     (int)word.row,
                     causes[word.code > 0 && word.code < (int)BASE_COUNT(causes) ? word.code : 0],
                     (long long)word.value);
}

static bool device_is_apart(const device *dev) { return dev->cuda; }

static bool device_has_clusters(const device *dev) { return dev->arch >= 90 && dev->arch < 120; }

static bool device_wait(device *dev) {
    return !dev->cuda || !dev->drv->cuStreamSynchronize(dev->stream);
}

static cairn_status device_mark(device *dev, CUevent *mark) {
    if (!*mark) DEV_TRY(dev, cuEventCreate(mark, 0));
    DEV_TRY(dev, cuEventRecord(*mark, dev->stream));
    return CAIRN_OK;
}

static bool device_has_passed(const device *dev, CUevent mark) {
    return dev->drv->cuEventQuery(mark) != CUDA_ERROR_NOT_READY;
}

static int64_t device_between(const device *dev, CUevent from, CUevent to) {
    float ms = 0.0f;
    return dev->drv->cuEventElapsedTime(&ms, from, to) ? 0 : (int64_t)(ms * 1000.0f);
}

static void device_mark_free(device *dev, CUevent mark) {
    if (mark) dev->drv->cuEventDestroy(mark);
}

static cairn_status device_sync(device *dev) {
    cairn_status status = dev->cuda ? device_await(dev, NULL) : CAIRN_OK;
    if (status) return status;
    dev->synced = dev->submitted;
    dev->synced_stream = dev->stream;
    return device_check_errors(dev);
}

/* ---- open and close -------------------------------------------------------------------------- */

static cairn_status device_choose(device *dev, int ordinal) {
    dev->driver_version = dev->drv->cuda_version;
    if (ordinal < 0 || ordinal >= dev->drv->device_count)
        return base_fail(dev->base, CAIRN_NO_DEVICE, "device = %d, but the devices are 0 to %d",
                         ordinal, dev->drv->device_count - 1);
    DEV_TRY(dev, cuDeviceGet(&dev->ordinal, ordinal));
    return CAIRN_OK;
}

static cairn_status device_describe(device *dev) {
    static const CUdevice_attribute asked[] = {
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE};
    int found[BASE_COUNT(asked)] = {0};
    DEV_TRY(dev, cuDeviceGetName(dev->name, (int)sizeof dev->name, dev->ordinal));
    DEV_TRY(dev, cuDeviceTotalMem(&dev->total_bytes, dev->ordinal));
    for (int i = 0; i < (int)BASE_COUNT(asked); i++)
        DEV_TRY(dev, cuDeviceGetAttribute(&found[i], asked[i], dev->ordinal));
    dev->arch = found[0] * 10 + found[1], dev->sm_count = found[2];
    dev->max_shared_bytes = found[3], dev->l2_bytes = (size_t)found[4];
    if (dev->arch < 80)
        return base_fail(dev->base, CAIRN_UNSUPPORTED,
                         "%s has compute capability %d.%d; 8.0 and newer are supported", dev->name,
                         dev->arch / 10, dev->arch % 10);
    return CAIRN_OK;
}

/* The host program's context and stream when it gave them, else the primary context and a stream
 * of our own. */
static cairn_status device_take_context(device *dev, void *context, void *stream) {
    dev->context = (CUcontext)context;
    if (!context) {
        DEV_TRY(dev, cuDevicePrimaryCtxRetain(&dev->context, dev->ordinal));
        dev->owns_context = true;
    }
    DEV_TRY(dev, cuCtxPushCurrent(dev->context));
    dev->own_stream = (CUstream)stream;
    if (!stream) {
        CUresult result = dev->drv->cuStreamCreateWithPriority(&dev->own_stream,
                                                               CU_STREAM_NON_BLOCKING, 0);
        if (result) {
            device_leave(dev);
            return driver_fail(dev->base, dev->drv, result, "cuStreamCreateWithPriority");
        }
        dev->owns_stream = true;
    }
    dev->stream = dev->own_stream;
    return CAIRN_OK;
}

static void device_close(device *dev) {
    if (!dev->cuda) {
        device_free_scratch(dev);
        return;
    }
    if (dev->context && dev->own_stream && !device_enter(dev)) {
        dev->drv->cuStreamSynchronize(dev->own_stream);
        device_free_scratch(dev);
        device_host_free(dev, dev->error_words, DEV_ERROR_OPS * sizeof *dev->error_words);
        if (dev->owns_stream) dev->drv->cuStreamDestroy(dev->own_stream);
        device_leave(dev);
    }
    if (dev->owns_context) dev->drv->cuDevicePrimaryCtxRelease(dev->ordinal);
    memset(dev, 0, sizeof *dev);
}

static cairn_status device_open_cuda(device *dev, int ordinal, void *context, void *stream) {
    cairn_status status;
    void *words = NULL;
    dev->cuda = true;
    if (!(status = device_choose(dev, ordinal)) && !(status = device_describe(dev)) &&
        !(status = device_take_context(dev, context, stream))) {
        status = device_host_alloc(dev, DEV_ERROR_OPS * sizeof *dev->error_words, "error words", &words);
        dev->error_words = (device_fault_word *)words;
        if (!status) status = device_flags(dev, DEV_FLAGS, "flags", &words);
        if (!status) status = device_sync(dev);
        device_leave(dev);
    }
    if (status) device_close(dev);
    return status;
}

static bool device_measure_cuda(device *dev, const char *path, int ordinal, driver_calls *drv) {
    bool there = !driver_open(dev->base, path, drv);
    dev->drv = drv;
    there = there && !device_choose(dev, ordinal) && !device_describe(dev);
    driver_close(drv);
    dev->drv = NULL;
    dev->base->error[0] = '\0';
    return there;
}

static cairn_backend device_measure(device *dev, cairn_backend wish, const char *path, int ordinal,
                                    driver_calls *drv) {
    bool there = wish != CAIRN_BACKEND_CPU && device_measure_cuda(dev, path, ordinal, drv);
    dev->cuda = there || wish == CAIRN_BACKEND_CUDA;
    if (!dev->cuda) return CAIRN_BACKEND_CPU;
    dev->live_bytes = DEV_FLAGS;
    if (there) return CAIRN_BACKEND_CUDA;
    dev->sm_count = 132;
    dev->max_shared_bytes = 227 << 10;
    dev->total_bytes = 0;
    return CAIRN_BACKEND_CUDA;
}

static void device_open_cpu(device *dev) {
    static const char *const levels[] = {"scalar", "AVX2", "AVX-512", "NEON"};
    dev->cuda = false;
    dev->sm_count = pool_threads(dev->pool);
    snprintf(dev->name, sizeof dev->name, "CPU, %s", levels[pool_simd()]);
    if (!BASE_X86 && !BASE_NEON) {
        static os_atomic said; /* once a process */
        base_log(dev->base, os_atomic_add(&said, 1) ? CAIRN_LOG_DEBUG : CAIRN_LOG_WARN,
                 "this build has no SIMD, so the CPU backend is several times slower: gcc and "
                 "clang have it for 64-bit x86 and Arm, without CAIRN_NO_SIMD");
    }
}
