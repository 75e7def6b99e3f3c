/* open: cairn_open, cairn_close and cairn_info. */

static void open_copy_error(const base *b, char *error, size_t error_bytes) {
    if (error && error_bytes) snprintf(error, error_bytes, "%s", b->error);
}

static void open_cache(base *b, const cairn_config *config, cache *kernels) {
    static const cache_mode modes[] = {CACHE_READ_WRITE, CACHE_READ_ONLY, CACHE_MEMORY, CACHE_OFF};
    cache_options options;
    memset(&options, 0, sizeof options);
    options.mode = modes[config->jit.cache];
    options.directory = config->jit.cache_dir;
    cache_open(b, &options, kernels);
}

/* Before the device, whose context takes as long to make as NVRTC takes to open. */
static cairn_status open_jit(cairn_runtime *rt) {
    jit_options options;
    cairn_status status;
    open_cache(&rt->base, &rt->config, &rt->cache);
    memset(&options, 0, sizeof options);
    options.driver = &rt->drv;
    options.kernels = &rt->cache;
    options.nvrtc_path = rt->config.nvrtc_path;
    options.threads = rt->config.jit.threads;
    options.quick = rt->config.jit.quick;
    options.progress = rt->config.progress_callback;
    options.progress_user = rt->config.progress_user;
    if (!(status = jit_open(&rt->base, &options, &rt->jit))) jit_open_ahead(rt->jit);
    return status;
}

static cairn_status open_cuda(cairn_runtime *rt) {
    const cairn_config *config = &rt->config;
    cairn_status status = driver_open(&rt->base, config->driver_path, &rt->drv);
    if (status) return status;
    rt->device.drv = &rt->drv;
    rt->device.allocator = config->device_allocator;
    if ((status = open_jit(rt))) return status;
    status = device_open_cuda(&rt->device, config->device, config->context, config->stream);
    if (status) return status;
    if ((status = device_enter(&rt->device))) return status;
    jit_set_device(rt->jit, rt->device.context, rt->device.arch);
    rt->device.jit = rt->jit;
    return handles_leave(rt, CAIRN_OK);
}

/* Undoes open_cuda, whole or half done. */
static void open_cuda_undo(cairn_runtime *rt) {
    if (rt->jit) jit_close(rt->jit);
    rt->jit = NULL;
    cache_close(&rt->cache);
    device_close(&rt->device);
    driver_close(&rt->drv);
    memset(&rt->device, 0, sizeof rt->device);
    rt->device.base = &rt->base;
    rt->device.pool = rt->pool;
}

static cairn_status open_backend(cairn_runtime *rt) {
    cairn_backend wish = rt->config.backend;
    cairn_status status = CAIRN_OK;
    if (wish != CAIRN_BACKEND_CPU) {
        status = open_cuda(rt);
        if (status) open_cuda_undo(rt);
    }
    if (status && wish == CAIRN_BACKEND_AUTO) {
        static os_atomic said; /* once a process: later runtimes find nothing else */
        base_log(&rt->base, os_atomic_add(&said, 1) ? CAIRN_LOG_DEBUG : CAIRN_LOG_INFO,
                 "no GPU, using the CPU backend: %s", rt->base.error);
        rt->base.error[0] = '\0';
        status = CAIRN_OK;
    }
    if (!status && rt->device.cuda && rt->config.activations == CAIRN_ACTIVATIONS_Q8)
        status = base_fail(&rt->base, CAIRN_INVALID_CONFIG,
                           "activations = \"q8\" is the CPU's, and a GPU was opened: use backend = "
                           "\"cpu\", or activations = \"f32\"");
    if (!status && !rt->device.cuda) device_open_cpu(&rt->device);
    rt->device.budget_bytes = (size_t)rt->config.memory.budget_mb << 20;
    rt->config.backend = rt->device.cuda ? CAIRN_BACKEND_CUDA : CAIRN_BACKEND_CPU;
    if (!status)
        base_log(&rt->base, CAIRN_LOG_DEBUG, "backend %s: %s", rt->device.cuda ? "cuda" : "cpu",
                 rt->device.name);
    return status;
}

cairn_status cairn_open(const cairn_config *config, cairn_runtime **out, char *error,
                        size_t error_bytes) {
    cairn_config checked;
    base early;
    cairn_runtime *rt;
    cairn_status status;
    if (out) *out = NULL;
    if (!config || !out)
        return config_refuse_null(config ? "open: rt" : "open: config", error, error_bytes);
    if ((status = cairn_config_check(config, &checked, error, error_bytes))) return status;
    base_init(&early, &checked.allocator, checked.log_callback, checked.log_user, checked.log);
    rt = (cairn_runtime *)base_new(&early, 1, sizeof *rt);
    if (!rt) {
        status = base_no_memory(&early, "a runtime", sizeof *rt);
        open_copy_error(&early, error, error_bytes);
        return status;
    }
    rt->base = early;
    rt->config = checked;
    rt->base.progress = checked.progress_callback, rt->base.progress_user = checked.progress_user;
    rt->device.base = &rt->base;
    status = pool_open(&rt->base, config_threads(&checked), config_is_low(&checked), &rt->pool);
    rt->device.pool = rt->pool;
    if (!status) status = open_backend(rt);
    if (!status) status = worker_start(rt);
    if (status) {
        open_copy_error(&rt->base, error, error_bytes);
        cairn_close(rt);
        return status;
    }
    return *out = rt, CAIRN_OK;
}

void cairn_close(cairn_runtime *rt) {
    base last;
    bool closing;
    if (!rt) return;
    if (os_atomic_load(&rt->loading)) { /* in a callback of the load, which holds the runtime */
        rt->closing = true;
        return;
    }
    if (base_check_callback(&rt->base)) return;
    handles_hold(rt);
    rt->closing = closing = engine_is_any_busy(rt);
    handles_drop(rt);
    if (closing) return;
    worker_stop(rt);
    while (rt->models) cairn_model_free(rt->models);
    base_delete(&rt->base, rt->reload, 1, sizeof *rt->reload);
    prefix_free_all(rt);
    pages_free_all(rt);
    handles_free_all(rt);
    ops_free_kernels(rt);
    open_cuda_undo(rt);
    if (rt->pool) pool_close(rt->pool);
    last = rt->base;
    base_delete(&last, rt, 1, sizeof *rt);
}

cairn_status cairn_info(cairn_runtime *rt, cairn_runtime_info *out) {
    const device *dev;
    cairn_runtime_info info;
    size_t bytes;
    cairn_status status = handles_need(rt, "info", out, "info");
    if (status) return status;
    dev = &rt->device;
    bytes = out->struct_size < sizeof info ? out->struct_size : sizeof info;
    if (bytes < sizeof out->struct_size)
        return base_fail(&rt->base, CAIRN_VERSION_MISMATCH,
                         "info: struct_size is %u; set it to sizeof the struct", out->struct_size);
    memset(&info, 0, sizeof info);
    info.struct_size = out->struct_size;
    info.backend = (int32_t)rt->config.backend;
    memcpy(info.device_name, dev->name, sizeof info.device_name);
    info.arch = dev->arch;
    info.multiprocessors = dev->sm_count;
    info.max_shared_bytes = dev->max_shared_bytes;
    info.driver_version = dev->driver_version;
    info.total_bytes = dev->total_bytes;
    info.live_bytes = dev->live_bytes;
    info.peak_bytes = dev->peak_bytes;
    info.l2_bytes = dev->l2_bytes;
    if (rt->jit) jit_counts(rt->jit, &info.kernels_compiled, &info.kernels_from_cache,
                            &info.nvrtc_opened);
    memcpy(out, &info, bytes);
    return CAIRN_OK;
}
