/* jit_compile: one expanded template to a cubin by NVRTC, and what goes wrong on the way.
 *
 * - NVRTC registers destructors of its own during its first compile; a compile on another thread
 *   while the process exits then crashes. So the first compile is a tiny one, and jit_at_exit,
 *   which cancels and joins, is registered after it, to run before those destructors. For an exit
 *   in the middle of that one, jit_begin has the main thread run jit_at_exit before all handlers.
 * - It folds constants in the rounding mode of the calling thread: set to the default here.
 * - It aborts the process when memory runs out, so it is not opened when little is free.
 * - A failure with no error line of the template is the environment's (memory, builtins): it is
 *   tried once more alone, and not remembered. */

#define JIT_LEAST_MEMORY ((int64_t)192 << 20)
#define JIT_AMPLE_MEMORY ((int64_t)768 << 20) /* below it, one compile at a time */

static void jit_at_exit(void);

/* ---- opening --------------------------------------------------------------------------------- */

static void jit_free_headers(jit *j, base *b) {
    int i;
    for (i = 0; i < j->header_count; i++)
        base_delete(b, j->header_texts[i], j->header_sizes[i] + 1, 1);
    j->header_count = 0;
}

/* NVRTC takes the headers from memory, under the names that templates include. */
static cairn_status jit_join_headers(jit *j, base *b) {
    const kernels_file *file;
    for (file = j->options.files; file->name; file++) {
        base_text text = {0};
        char *copy;
        if (!jit_is_header(file) || j->header_count == JIT_MAX_HEADERS) continue;
        copy = (char *)base_new(b, file->bytes + 1, 1);
        if (!copy || !jit_add_file(b, &text, file)) {
            base_delete(b, copy, file->bytes + 1, 1);
            base_text_free(b, &text);
            return base_no_memory(b, "kernel headers", file->bytes);
        }
        memcpy(copy, text.data, file->bytes);
        base_text_free(b, &text);
        j->header_names[j->header_count] = file->name;
        j->header_sizes[j->header_count] = file->bytes;
        j->header_texts[j->header_count++] = copy;
    }
    return CAIRN_OK;
}

static cairn_status jit_read_archs(jit *j, base *b) {
    const driver_calls *d = j->options.driver;
    int count = 0;
    nvrtcResult result = d->nvrtcGetNumSupportedArchs(&count);
    if (result) return driver_nvrtc_fail(b, d, result, "nvrtcGetNumSupportedArchs");
    if (count < 1 || count > JIT_MAX_ARCHS)
        return base_fail(b, CAIRN_UNSUPPORTED, "NVRTC lists %d architectures", count);
    result = d->nvrtcGetSupportedArchs(j->archs);
    if (result) return driver_nvrtc_fail(b, d, result, "nvrtcGetSupportedArchs");
    j->arch_count = count;
    return CAIRN_OK;
}

/* False: it cannot compile. Builtins that are missing show at the first true compile, too. */
static bool jit_prime(const driver_calls *d) {
    nvrtcProgram program = NULL;
    bool good;
    if (d->nvrtcCreateProgram(&program, "extern \"C\" __global__ void prime() {}\n", "prime.cu", 0,
                              NULL, NULL)) return false;
    good = !d->nvrtcCompileProgram(program, 0, NULL);
    d->nvrtcDestroyProgram(&program);
    return good;
}

static cairn_status jit_load_nvrtc(jit *j, base *b) {
    driver_calls *d = j->options.driver;
    cairn_status status = driver_open_nvrtc(b, j->options.nvrtc_path, d);
    if (!status) status = jit_read_archs(j, b);
    if (!status) status = jit_join_headers(j, b);
    if (!status) jit_prime(d);
    if (!status)
        snprintf(j->compiler, sizeof j->compiler, "NVRTC %d.%d, library of %lld",
                 d->nvrtc_version / 1000, d->nvrtc_version % 1000 / 10,
                 (long long)os_mtime(d->nvrtc_path));
    return status;
}

static cairn_status jit_open_nvrtc_now(jit *j, base *b) {
    cairn_status status;
    int64_t start = os_now_us(), memory = os_memory_bytes();
    if (memory < JIT_LEAST_MEMORY)
        return base_fail(b, CAIRN_OUT_OF_MEMORY, "NVRTC aborts the program when memory runs out: "
                         "%lld MiB are free, it needs %lld", (long long)memory >> 20,
                         (long long)JIT_LEAST_MEMORY >> 20);
    jit_free_headers(j, b);
    status = jit_load_nvrtc(j, b);
    atexit(jit_at_exit);
    j->nvrtc_open_us = os_now_us() - start;
    return status;
}

/* Once for all workers; a failure stands until something is requested anew. */
static cairn_status jit_need_nvrtc(jit *j, base *b) {
    const driver_calls *d = j->options.driver;
    cairn_status status;
    bool opened = false;
    os_mutex_lock(&j->nvrtc_lock);
    if (!j->nvrtc_ready && os_atomic_swap_if(&j->nvrtc_again, 1, 0)) {
        opened = true;
        j->nvrtc_status = jit_open_nvrtc_now(j, b);
        j->nvrtc_ready = j->nvrtc_status == CAIRN_OK;
        memcpy(j->nvrtc_error, b->error, sizeof b->error);
    }
    status = j->nvrtc_status;
    if (status) {
        memcpy(b->error, j->nvrtc_error, sizeof b->error);
        b->status = status;
    }
    os_mutex_unlock(&j->nvrtc_lock);
    if (opened && !status)
        base_log(b, CAIRN_LOG_INFO, "opened NVRTC %d.%d (%s) in %lld ms", d->nvrtc_version / 1000,
                 d->nvrtc_version % 1000 / 10, d->nvrtc_path, (long long)j->nvrtc_open_us / 1000);
    return status;
}

/* ---- front ends ------------------------------------------------------------------------------ */

/* NVRTC reads one program at a time, whatever the threads: its front end, some 50 ms of 150 to 600, is
 * under a lock, and who gets it next is chance. So programs come to it one by one here, in the order
 * of requests: what takes longest behind it is asked for first. Where many wait, a second copy of the
 * library reads, too. */

enum { JIT_TWIN_WAITERS = 4 };

typedef struct jit_front { jit *of; const driver_calls *calls; bool inside; } jit_front;

/* Under the lock: who of those that wait or may come yet is next, as jit_take chooses; count: of those that wait. */
static const jit_program *jit_next_front(const jit *j, int *count) {
    const jit_program *p, *next = NULL;
    *count = 0;
    for (p = j->programs; p; p = p->next) {
        *count += p->waits;
        if ((p->waits || p->comes) && (!next || jit_rank(p) >= jit_rank(next))) next = p;
    }
    return next;
}

/* Under the lock: a copy whose front end is free, or NULL. */
static const driver_calls *jit_free_front(const jit *j) {
    return !j->fronts[0] ? j->options.driver : j->twin && !j->fronts[1] ? j->twin : NULL;
}

/* Under the lock, which it gives away meanwhile. Without a twin all is well, too. */
static void jit_open_twin(jit *j, base *b) {
    const int64_t start = os_now_us();
    driver_calls *twin;
    j->twin_tried = true;
    os_mutex_unlock(&j->lock);
    twin = os_memory_bytes() < JIT_AMPLE_MEMORY ? NULL : (driver_calls *)base_new(b, 1, sizeof *twin);
    if (twin && !driver_open_twin(j->options.driver, twin)) base_delete(b, twin, 1, sizeof *twin), twin = NULL;
    if (twin && !jit_prime(twin)) driver_close_nvrtc(twin), base_delete(b, twin, 1, sizeof *twin), twin = NULL;
    if (twin) {
        atexit(jit_at_exit);
        base_log(b, CAIRN_LOG_INFO, "opened NVRTC's second copy in %lld ms",
                 (long long)(os_now_us() - start) / 1000);
    }
    os_mutex_lock(&j->lock);
    j->twin = twin;
    os_cond_broadcast(&j->changed);
}

/* Waits for a front end. False: compiling was cancelled. */
static bool jit_enter_front(jit *j, base *b, jit_program *p, jit_front *front) {
    int count;
    front->of = j, front->calls = NULL;
    os_mutex_lock(&j->lock);
    p->waits = true, p->comes = false;
    while (!os_atomic_load(&j->cancel)) {
        const bool first = jit_next_front(j, &count) == p;
        if (first && (front->calls = jit_free_front(j)) != NULL) break;
        if (j->twin_tried || count < JIT_TWIN_WAITERS) os_cond_wait(&j->changed, &j->lock);
        else {
            p->waits = false; /* others go on */
            jit_open_twin(j, b);
            p->waits = true;
        }
    }
    p->waits = false;
    front->inside = front->calls != NULL;
    if (front->inside) j->fronts[front->calls == j->twin] = true;
    os_cond_broadcast(&j->changed);
    os_mutex_unlock(&j->lock);
    return front->inside;
}

static void jit_leave_front(jit_front *front) {
    jit *j = front->of;
    if (!front->inside) return;
    os_mutex_lock(&j->lock);
    front->inside = false;
    j->fronts[front->calls == j->twin] = false;
    os_cond_broadcast(&j->changed);
    os_mutex_unlock(&j->lock);
}

/* NVRTC asks between its stages whether to go on, first when its front end is through. */
static int jit_on_flow(void *payload, void *reserved) {
    jit_front *front = (jit_front *)payload;
    (void)reserved;
    jit_leave_front(front);
    return os_atomic_load(&front->of->cancel) != 0;
}

/* ---- architecture ---------------------------------------------------------------------------- */

/* The option, and whether code for the exact chip can be had or only PTX for an older one. */
static cairn_status jit_choose_arch(const jit *j, base *b, char *option, size_t bytes, bool *ptx) {
    int i, best = 0, oldest = j->archs[0];
    for (i = 0; i < j->arch_count; i++) {
        if (j->archs[i] <= j->options.arch && j->archs[i] > best) best = j->archs[i];
        if (j->archs[i] < oldest) oldest = j->archs[i];
    }
    if (!best)
        return base_fail(b, CAIRN_UNSUPPORTED, "sm_%d is older than all that NVRTC %d.%d compiles "
                         "for (sm_%d and newer)", j->options.arch,
                         j->options.driver->nvrtc_version / 1000,
                         j->options.driver->nvrtc_version % 1000 / 10, oldest);
    *ptx = best != j->options.arch || j->options.want_ptx;
    if (best != j->options.arch) snprintf(option, bytes, "--gpu-architecture=compute_%d", best);
    else if (*ptx) snprintf(option, bytes, "--gpu-architecture=compute_%s", j->arch + 3);
    else snprintf(option, bytes, "--gpu-architecture=%s", j->arch);
    return CAIRN_OK;
}

/* ---- the compiler's log ---------------------------------------------------------------------- */

/* The first line of the log that reports an error in a file of ours. */
static const char *jit_error_line(const char *log) {
    const char *line = log;
    while (line && *line) {
        const char *end = strchr(line, '\n');
        size_t size = end ? (size_t)(end - line) : strlen(line);
        const char *error = strstr(line, "error");
        const char *place = strstr(line, "): ");
        if (error && place && error < line + size && place < error) return line;
        line = end ? end + 1 : NULL;
    }
    return NULL;
}

static bool jit_get_log(base *b, const driver_calls *d, nvrtcProgram program, base_text *log) {
    size_t bytes = 0;
    if (d->nvrtcGetProgramLogSize(program, &bytes) || bytes == 0 ||
        !base_text_reserve(b, log, bytes)) return false;
    if (d->nvrtcGetProgramLog(program, log->data)) return false;
    log->data[bytes] = '\0';
    log->size = strlen(log->data);
    return log->size > 0;
}

/* "PAGE_SIZE 64, TOPK 32" from the lines of #define. */
static const char *jit_constants_text(const jit_program *p, char *text, size_t bytes) {
    const char *at = p->source.data;
    size_t used = 0;
    text[0] = '\0';
    while ((at = strstr(at, "#define CAIRN_")) != NULL) {
        int size;
        at += strlen("#define CAIRN_");
        size = snprintf(text + used, bytes - used, "%s%.*s", used ? ", " : "",
                        (int)strcspn(at, "\n"), at);
        if (size < 0 || (size_t)size >= bytes - used) break;
        used += (size_t)size;
    }
    return used ? text : "no constants";
}

/* A mistake in a template: where and what, then the constants it was compiled with. */
static cairn_status jit_template_error(base *b, jit_program *p, const char *line) {
    char head[480], constants[320];
    size_t i;
    snprintf(head, sizeof head, "%s", line);
    for (i = strlen(head); i > 0 && head[i - 1] == '\n'; i--) head[i - 1] = '\0';
    p->lasting = true;
    return base_fail(b, CAIRN_COMPILE_FAILED, "%s\n  with %s", head,
                     jit_constants_text(p, constants, sizeof constants));
}

static cairn_status jit_compile_failed(jit *j, base *b, jit_program *p, const driver_calls *d,
                                       nvrtcProgram program, nvrtcResult result) {
    base_text log = {0};
    const char *line;
    cairn_status status;
    bool told;
    /* NVRTC calls it by several names, depending on the stage that it was in. */
    if (result == NVRTC_ERROR_CANCELLED || os_atomic_load(&j->cancel))
        return base_fail(b, CAIRN_CANCELLED, "%s: compiling was cancelled", p->name);
    told = jit_get_log(b, d, program, &log);
    if (told) base_log(b, CAIRN_LOG_ERROR, "%s: %s", p->name, log.data);
    line = told ? jit_error_line(log.data) : NULL;
    if (result == NVRTC_ERROR_COMPILATION && line)
        status = jit_template_error(b, p, line);
    else if (result == NVRTC_ERROR_COMPILATION && !told)
        status = base_fail(b, CAIRN_COMPILE_FAILED, "%s: NVRTC failed without a word; it needs "
                           "some 150 MiB of memory", p->name);
    else {
        char call[600];
        snprintf(call, sizeof call, "%s: %.500s", p->name, told ? log.data : "nvrtcCompileProgram");
        status = driver_nvrtc_fail(b, d, result, call);
    }
    base_text_free(b, &log);
    return status;
}

/* ---- compiling ------------------------------------------------------------------------------- */

static bool jit_flag_is_supported(const jit *j, const char *flag) {
    return strncmp(flag, "--Ofast-compile", 15) || j->options.driver->nvrtc_version >= 12090;
}

/* Declarations that no kernel of ours uses take 20 to 40 ms a program to read; the code is the same
 * without them, so that keys do not know of it. */
static bool jit_can_be_minimal(const jit *j) { return j->options.driver->nvrtc_version >= 12040; }

static nvrtcResult jit_run_compiler(jit *j, jit_front *front, nvrtcProgram program,
                                    const char *arch_option) {
    const driver_calls *d = front->calls;
    const char *wished[JIT_MAX_FLAGS], *flags[JIT_MAX_FLAGS + 2];
    int i, count = jit_flags(j, wished), n = 0;
    nvrtcResult result;
    for (i = 0; i < count; i++)
        if (jit_flag_is_supported(j, wished[i])) flags[n++] = wished[i];
    if (jit_can_be_minimal(j)) flags[n++] = "--minimal";
    flags[n++] = arch_option;
    if (d->nvrtcSetFlowCallback(program, jit_on_flow, front)) jit_leave_front(front); /* it never asks */
    result = d->nvrtcCompileProgram(program, n, flags);
    jit_leave_front(front);
    return result;
}

/* The cubin, or the PTX, of a compiled program. */
static cairn_status jit_take_code(base *b, const driver_calls *d, nvrtcProgram program, bool ptx,
                                  base_text *code) {
    size_t bytes = 0;
    nvrtcResult result = ptx ? d->nvrtcGetPTXSize(program, &bytes)
                             : d->nvrtcGetCUBINSize(program, &bytes);
    if (!result && (bytes == 0 || !base_text_reserve(b, code, bytes)))
        return base_no_memory(b, "cubin", bytes);
    if (!result) result = ptx ? d->nvrtcGetPTX(program, code->data)
                              : d->nvrtcGetCUBIN(program, code->data);
    if (result) return driver_nvrtc_fail(b, d, result, ptx ? "nvrtcGetPTX" : "nvrtcGetCUBIN");
    code->size = bytes;
    return CAIRN_OK;
}

/* One attempt. The program's name is fixed, since it can show in the code. */
static cairn_status jit_compile_once(jit *j, base *b, jit_program *p, const char *source,
                                     const char *arch_option, bool ptx, base_text *code) {
    const driver_calls *d;
    char name[64];
    jit_front front;
    nvrtcProgram program = NULL;
    nvrtcResult result;
    cairn_status status;
    const int64_t start = os_now_us();
    if (!jit_enter_front(j, b, p, &front))
        return base_fail(b, CAIRN_CANCELLED, "%s: compiling was cancelled", p->name);
    d = front.calls;
    p->compile_us -= os_now_us() - start;
    snprintf(name, sizeof name, "kernels_src/%s", p->name);
    result = d->nvrtcCreateProgram(&program, source, name, j->header_count,
                                   (const char *const *)j->header_texts, j->header_names);
    if (result) jit_leave_front(&front);
    if (result) return driver_nvrtc_fail(b, d, result, "nvrtcCreateProgram");
    result = jit_run_compiler(j, &front, program, arch_option);
    if (result) status = jit_compile_failed(j, b, p, d, program, result);
    else status = jit_take_code(b, d, program, ptx, code);
    d->nvrtcDestroyProgram(&program);
    return status;
}

/* `code` gets a cubin for the device, or PTX (`*ptx`) when NVRTC is older than the device. */
static cairn_status jit_compile(jit *j, base *b, jit_program *p, const base_text *source,
                                base_text *code, bool *ptx) {
    char option[64];
    cairn_status status;
    int64_t start;
    status = jit_need_nvrtc(j, b);
    if (!status) status = jit_choose_arch(j, b, option, sizeof option, ptx);
    if (status) return status;
    start = os_now_us();
    p->compile_us = 0;
    fesetenv(FE_DFL_ENV);
    status = jit_compile_once(j, b, p, source->data, option, *ptx, code);
    if (status && status != CAIRN_CANCELLED && !p->lasting) {
        os_mutex_lock(&j->load_lock);
        status = jit_compile_once(j, b, p, source->data, option, *ptx, code);
        os_mutex_unlock(&j->load_lock);
    }
    p->compile_us += os_now_us() - start;
    return status;
}
