/* jit_load: cubins to modules and functions. The bytes come from the compiler or from a cache entry
 * whose checksum held; a driver may crash on others. */

#define JIT_LOG_BYTES 1024

/* Driver errors that speak of the image and not of the machine. */
static bool jit_is_image_error(CUresult result) {
    return result == CUDA_ERROR_INVALID_IMAGE || result == CUDA_ERROR_NO_BINARY_FOR_GPU ||
           result == CUDA_ERROR_INVALID_PTX || result == CUDA_ERROR_UNSUPPORTED_PTX_VERSION ||
           result == CUDA_ERROR_INVALID_SOURCE || result == CUDA_ERROR_JIT_COMPILER_NOT_FOUND;
}

static CUresult jit_load_module(jit *j, CUmodule *module, const void *image, char *log) {
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[2];
    CUresult result;
    log[0] = '\0';
    values[0] = log;
    values[1] = (void *)(uintptr_t)JIT_LOG_BYTES;
    os_mutex_lock(&j->load_lock);
    result = j->options.driver->cuModuleLoadDataEx(module, image, 2, options, values);
    os_mutex_unlock(&j->load_lock);
    log[JIT_LOG_BYTES - 1] = '\0';
    return result;
}

/* Without a context there is nothing to load into, and that is well. The worker's context is
 * current. `*image_error`: the driver refuses these bytes, others may do. */
static cairn_status jit_load(jit *j, base *b, jit_program *p, const void *image,
                             bool *image_error) {
    char log[JIT_LOG_BYTES], call[600];
    CUresult result;
    int64_t start = os_now_us();
    *image_error = false;
    if (!j->options.context) return CAIRN_OK;
    result = jit_load_module(j, &p->module, image, log);
    p->load_us = os_now_us() - start;
    if (!result) return CAIRN_OK;
    p->module = NULL;
    *image_error = jit_is_image_error(result);
    snprintf(call, sizeof call, "cuModuleLoadDataEx(%s) %.400s", p->name, log);
    return driver_fail(b, j->options.driver, result, call);
}

static cairn_status jit_link_failed(jit *j, base *b, const jit_program *p, CUresult result,
                                    const char *log) {
    const driver_calls *d = j->options.driver;
    const char *name = "driver error";
    if (!jit_is_image_error(result)) return driver_fail(b, d, result, "cuLinkComplete");
    if (d->cuGetErrorName(result, &name)) name = "driver error";
    return base_fail(b, CAIRN_NVRTC_TOO_OLD, "sm_%d is newer than NVRTC %d.%d, and the driver "
                     "cannot use its PTX of %s: %s (%d) %.300s", j->options.arch,
                     d->nvrtc_version / 1000, d->nvrtc_version % 1000 / 10, p->name, name, result,
                     log);
}

/* PTX to a cubin for the device by the driver's own compiler; `code` holds the PTX, then the cubin.
 * Its last byte is the NUL that NVRTC counts. */
static cairn_status jit_link_ptx(jit *j, base *b, jit_program *p, base_text *code) {
    const driver_calls *d = j->options.driver;
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    char log[JIT_LOG_BYTES] = "";
    void *values[2], *cubin = NULL;
    size_t bytes = 0;
    CUlinkState state = NULL;
    base_text linked = {0};
    bool kept = false;
    CUresult result;
    values[0] = log;
    values[1] = (void *)(uintptr_t)sizeof log;
    result = d->cuLinkCreate(2, options, values, &state);
    if (result) return driver_fail(b, d, result, "cuLinkCreate");
    result = d->cuLinkAddData(state, CU_JIT_INPUT_PTX, code->data, code->size, p->name, 0, NULL,
                              NULL);
    if (!result) result = d->cuLinkComplete(state, &cubin, &bytes);
    if (!result) kept = base_text_add(b, &linked, cubin, bytes);
    d->cuLinkDestroy(state);
    log[sizeof log - 1] = '\0';
    if (result || !kept) base_text_free(b, &linked);
    if (result) return jit_link_failed(j, b, p, result, log);
    if (!kept) return base_no_memory(b, "cubin", bytes);
    base_text_free(b, code);
    *code = linked;
    return CAIRN_OK;
}

/* ---- one program ----------------------------------------------------------------------------- */

static bool jit_build_from_cache(jit *j, base *b, jit_program *p, const cache_key *key) {
    cache_entry entry;
    bool image_error;
    if (!cache_get(j->options.kernels, b, key, &entry)) return false;
    os_mutex_lock(&j->lock);
    p->comes = false;
    os_cond_broadcast(&j->changed);
    os_mutex_unlock(&j->lock);
    if (jit_load(j, b, p, entry.data, &image_error)) {
        base_log(b, CAIRN_LOG_WARN, "%s: the driver refuses the cached kernel: %s", p->name,
                 b->error);
        cache_entry_free(b, &entry);
        return false;
    }
    p->from_cache = true;
    p->compile_us = entry.compile_us;
    p->image_bytes = entry.size;
    if (j->options.keep_images) p->image = entry;
    else cache_entry_free(b, &entry);
    return true;
}

/* Describes the code, keeps it in the cache, and hands it to the program if images are wanted. */
static void jit_keep(jit *j, base *b, jit_program *p, const cache_key *key, base_text *code) {
    cache_entry entry;
    memset(&entry, 0, sizeof entry);
    entry.data = (const uint8_t *)code->data;
    entry.size = code->size;
    entry.compile_us = (uint32_t)(p->compile_us > UINT32_MAX ? UINT32_MAX : p->compile_us);
    snprintf(entry.arch, sizeof entry.arch, "%s%s", j->arch, p->from_ptx ? " ptx" : "");
    memcpy(entry.name, p->name, sizeof entry.name);
    memcpy(entry.compiler, j->compiler, sizeof entry.compiler);
    if (!p->from_ptx || j->options.context) cache_put(j->options.kernels, b, key, &entry);
    p->image_bytes = code->size;
    if (!j->options.keep_images) return;
    entry.file = *code;
    memset(code, 0, sizeof *code);
    p->image = entry;
}

static cairn_status jit_build_anew(jit *j, base *b, jit_program *p, const cache_key *key) {
    base_text source = {0}, code = {0};
    bool image_error;
    cairn_status status = jit_expand(j, b, p, &source);
    if (!status) status = jit_compile(j, b, p, &source, &code, &p->from_ptx);
    if (!status && p->from_ptx && j->options.context) status = jit_link_ptx(j, b, p, &code);
    if (!status) status = jit_load(j, b, p, code.data, &image_error);
    if (!status) jit_keep(j, b, p, key, &code);
    if (!status)
        base_log(b, CAIRN_LOG_INFO, "compiled %s for %s in %lld ms, %llu bytes", p->name, j->arch,
                 (long long)p->compile_us / 1000, (unsigned long long)p->image_bytes);
    base_text_free(b, &code);
    base_text_free(b, &source);
    return status;
}

/* On a worker, with its base. */
static cairn_status jit_build(jit *j, base *b, jit_program *p) {
    const cache_key key = jit_key(j, p);
    p->from_cache = p->from_ptx = false;
    return jit_build_from_cache(j, b, p, &key) ? CAIRN_OK : jit_build_anew(j, b, p, &key);
}

/* ---- functions ------------------------------------------------------------------------------- */

static CUresult jit_describe(const driver_calls *d, jit_kernel *k) {
    CUfunction f = k->function;
    CUresult r = d->cuFuncGetAttribute(&k->registers, CU_FUNC_ATTRIBUTE_NUM_REGS, f);
    if (!r) r = d->cuFuncGetAttribute(&k->local_bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, f);
    if (!r) r = d->cuFuncGetAttribute(&k->static_shared_bytes,
                                      CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, f);
    return r;
}

/* Clusters beyond 8 blocks need leave; loading now spares the first launch a stall. Both only where
 * chip and driver know them. */
static CUresult jit_prepare_function(const jit *j, const jit_kernel *k) {
    const driver_calls *d = j->options.driver;
    CUresult r;
    if (j->options.arch >= 90)
        d->cuFuncSetAttribute(k->function, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1);
    r = d->cuFuncLoad(k->function);
    return r == CUDA_ERROR_NOT_SUPPORTED ? CUDA_SUCCESS : r;
}

static cairn_status jit_set_shared(const jit *j, base *b, const jit_program *p, const char *entry,
                                   const jit_kernel *k) {
    char call[200];
    CUresult r = CUDA_SUCCESS;
    if (k->shared_bytes > 0)
        r = j->options.driver->cuFuncSetAttribute(
            k->function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, k->shared_bytes);
    if (r == CUDA_ERROR_INVALID_VALUE)
        return base_fail(b, CAIRN_UNSUPPORTED, "%s in %s needs %d bytes of shared memory a block, "
                         "more than the device has", entry, p->name, k->shared_bytes);
    snprintf(call, sizeof call, "cuFuncSetAttribute(%s in %s)", entry, p->name);
    return driver_fail(b, j->options.driver, r, call);
}

static cairn_status jit_find_function(const jit *j, base *b, const jit_program *p,
                                      const char *entry, jit_kernel *k) {
    const driver_calls *d = j->options.driver;
    char call[200];
    CUresult r = d->cuModuleGetFunction(&k->function, p->module, entry);
    cairn_status status;
    if (r == CUDA_ERROR_NOT_FOUND)
        return base_fail(b, CAIRN_NOT_FOUND, "kernels_src/%s has no kernel %s", p->name, entry);
    snprintf(call, sizeof call, "cuModuleGetFunction(%s in %s)", entry, p->name);
    if (r) return driver_fail(b, d, r, call);
    r = jit_describe(d, k);
    if (r) return driver_fail(b, d, r, "cuFuncGetAttribute");
    status = jit_set_shared(j, b, p, entry, k);
    if (status) return status;
    r = jit_prepare_function(j, k);
    return driver_fail(b, d, r, "cuFuncLoad");
}
