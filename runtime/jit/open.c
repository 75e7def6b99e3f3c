/* jit_open: what other rooms call. [owner thread] unless said. */

typedef struct jit_progress {
    int done, total;    /* programs of the batch */
    char current[48];   /* the one begun last */
} jit_progress;

static cairn_status jit_open(base *b, const jit_options *options, jit **out) {
    jit *j = (jit *)base_new(b, 1, sizeof *j);
    *out = NULL;
    if (!j) return base_no_memory(b, "jit", sizeof *j);
    j->owner = b;
    j->options = *options;
    if (!j->options.files) j->options.files = kernels_files;
    if (options->nvrtc_path) {
        snprintf(j->nvrtc_path, sizeof j->nvrtc_path, "%s", options->nvrtc_path);
        j->options.nvrtc_path = j->nvrtc_path;
    }
    os_mutex_init(&j->lock);
    os_cond_init(&j->changed);
    os_mutex_init(&j->nvrtc_lock);
    os_mutex_init(&j->load_lock);
    jit_name_arch(j);
    os_mutex_lock(&jit_exit_lock);
    j->next_open = jit_alive;
    jit_alive = j;
    os_mutex_unlock(&jit_exit_lock);
    *out = j;
    return CAIRN_OK;
}

static void jit_set_device(jit *j, CUcontext context, int arch) {
    j->options.context = context, j->options.arch = arch;
    jit_name_arch(j);
}

/* For an exit while NVRTC compiles for the first time. */
static void jit_mind_exit(void) {
    if (!os_atomic_load(&jit_exit_registered) && os_before_exit(jit_at_exit))
        os_atomic_store(&jit_exit_registered, 1);
}

static void jit_open_ahead(jit *j) {
    if (j->options.threads == 1 || !cache_is_empty(j->options.kernels)) return;
    jit_mind_exit();
    os_atomic_store(&j->nvrtc_again, 1);
    os_mutex_lock(&j->lock);
    j->ahead = !os_atomic_load(&jit_exiting) && jit_start_worker(j, jit_work_ahead);
    os_mutex_unlock(&j->lock);
}

static void jit_free_programs(jit *j) {
    const driver_calls *d = j->options.driver;
    CUcontext previous;
    bool pushed = j->options.context && !d->cuCtxPushCurrent(j->options.context);
    while (j->programs) {
        jit_program *p = j->programs;
        j->programs = p->next;
        if (p->module) d->cuModuleUnload(p->module);
        cache_entry_free(j->owner, &p->image);
        base_text_free(j->owner, &p->source);
        base_delete(j->owner, p, 1, sizeof *p);
    }
    if (pushed) d->cuCtxPopCurrent(&previous);
}

static void jit_close(jit *j) {
    jit **link;
    if (!j) return;
    os_mutex_lock(&jit_exit_lock);
    for (link = &jit_alive; *link && *link != j; link = &(*link)->next_open) {}
    if (*link) *link = j->next_open;
    os_mutex_unlock(&jit_exit_lock);
    jit_stop(j);
    jit_free_programs(j);
    jit_free_headers(j, j->owner);
    if (j->twin) driver_close_nvrtc(j->twin);
    base_delete(j->owner, j->twin, 1, sizeof *j->twin);
    os_mutex_destroy(&j->load_lock);
    os_mutex_destroy(&j->nvrtc_lock);
    os_cond_destroy(&j->changed);
    os_mutex_destroy(&j->lock);
    base_delete(j->owner, j, 1, sizeof *j);
}

/* ---- batches --------------------------------------------------------------------------------- */

static bool jit_is_working(jit *j) {
    bool working;
    os_mutex_lock(&j->lock);
    working = j->queued > 0 || j->busy > 0 || j->running > 0 || j->ahead;
    os_mutex_unlock(&j->lock);
    return working;
}

static void jit_want_none(jit *j, bool left) {
    os_mutex_lock(&j->lock);
    for (jit_program *p = j->programs; p; p = p->next) p->wanted = false, p->left = p->left || left;
    os_cond_broadcast(&j->changed);
    os_mutex_unlock(&j->lock);
}

static void jit_give_up(jit *j) { jit_want_none(j, true); }

/* Before the first request of a batch: what the last one left is forgotten. */
static void jit_new_batch(jit *j) {
    jit_join(j, true);
    os_atomic_store(&j->cancel, os_atomic_load(&jit_exiting));
    jit_want_none(j, false);
}

/* While programs are compiled that no one waits for, a batch may have ended, too. What failed in one
 * that was given up is told to who asks for it, not to who waits for others. */
static void jit_end_batch(jit *j) {
    jit_program *p;
    os_mutex_lock(&j->lock);
    for (p = j->programs; p; p = p->next) p->wanted = p->wanted && p->state != JIT_FAILED;
    for (p = j->programs; p; p = p->next)
        if (p->wanted && (p->state == JIT_QUEUED || p->state == JIT_RUNNING)) break;
    if (!p)
        for (p = j->programs; p; p = p->next) p->wanted = false;
    os_mutex_unlock(&j->lock);
}

static cairn_status jit_begin(jit *j, const jit_request *requests, int count) {
    cairn_status status = CAIRN_OK;
    jit_program *p;
    int i;
    jit_mind_exit();
    os_atomic_store(&j->nvrtc_again, 1);
    if (os_atomic_load(&j->cancel) || !jit_is_working(j)) jit_new_batch(j);
    else jit_end_batch(j);
    for (i = 0; i < count && !status; i++) status = jit_program_of(j, &requests[i], &p);
    if (status) return status;
    for (i = 0; i < count && !status; i++) {
        status = jit_program_of(j, &requests[i], &p);
        if (status) break;
        os_mutex_lock(&j->lock);
        if (!j->busy && !j->queued) memcpy(j->current, p->name, sizeof j->current);
        jit_enqueue(j, p, requests[i].turn);
        os_mutex_unlock(&j->lock);
    }
    jit_join(j, false);
    os_mutex_lock(&j->lock);
    if (os_atomic_load(&j->cancel)) jit_flush(j, CAIRN_CANCELLED, "compiling was cancelled");
    else if (j->queued && !jit_start_workers(j))
        jit_flush(j, CAIRN_OUT_OF_MEMORY, "no thread could be started to compile on");
    os_mutex_unlock(&j->lock);
    return status;
}

/* Under the lock: counts, and the oldest program of the batch that failed. */
static const jit_program *jit_count(const jit *j, jit_progress *out) {
    const jit_program *p, *failed = NULL;
    memset(out, 0, sizeof *out);
    memcpy(out->current, j->current, sizeof out->current);
    for (p = j->programs; p; p = p->next) {
        if (!p->wanted) continue;
        out->total++;
        out->done += p->state == JIT_READY || p->state == JIT_FAILED;
        if (p->state == JIT_FAILED) failed = p;
    }
    return failed;
}

static cairn_status jit_copy_error(jit *j, const jit_program *p) {
    memcpy(j->owner->error, p->error, sizeof j->owner->error);
    j->owner->status = p->status;
    return p->status;
}

/* CAIRN_BUSY while the batch is under way (and no error text then), CAIRN_OK when all of it is
 * ready, else the first failure. Requests for later do not count. `out` may be NULL. */
static cairn_status jit_poll(jit *j, jit_progress *out) {
    jit_progress progress;
    const jit_program *failed;
    bool idle;
    os_mutex_lock(&j->lock);
    failed = jit_count(j, &progress);
    idle = j->queued == 0 && j->busy == 0;
    os_mutex_unlock(&j->lock);
    if (out) *out = progress;
    if (progress.done < progress.total) return CAIRN_BUSY;
    jit_join(j, idle);
    return failed ? jit_copy_error(j, failed) : CAIRN_OK;
}

/* Ends the batch under way early: queued programs fail with CAIRN_CANCELLED, running compiles stop
 * at NVRTC's next stage (some 0.1 s). A later request for them starts anew. [any thread] */
static void jit_cancel(jit *j) {
    os_atomic_store(&j->cancel, 1);
    os_mutex_lock(&j->lock);
    jit_flush(j, CAIRN_CANCELLED, "compiling was cancelled");
    os_mutex_unlock(&j->lock);
}

static jit_state jit_state_of(jit *j, const jit_program *p) {
    jit_state state;
    os_mutex_lock(&j->lock);
    state = p->state;
    os_mutex_unlock(&j->lock);
    return state;
}

/* Until the batch ends, or a program of it is built (CAIRN_BUSY if others are not yet). */
static cairn_status jit_wait_for(jit *j, const jit_program *p) {
    jit_progress progress, last;
    base_callback within;
    cairn_status status;
    memset(&last, 0, sizeof last);
    while ((status = jit_poll(j, &progress)) == CAIRN_BUSY && !(p && jit_state_of(j, p) >= JIT_READY)) {
        base_begin_callback(j->owner, &within);
        if (j->options.progress &&
            !j->options.progress(j->options.progress_user, progress.current, progress.done,
                                 progress.total)) jit_cancel(j);
        base_end_callback(&within);
        os_mutex_lock(&j->lock);
        jit_count(j, &last);
        if (last.done == progress.done) os_cond_wait_us(&j->changed, &j->lock, 250000);
        os_mutex_unlock(&j->lock);
    }
    return status;
}

static cairn_status jit_wait(jit *j) { return jit_wait_for(j, NULL); }

/* ---- programs -------------------------------------------------------------------------------- */

/* What is said of a program to who does not wait for it. */
static cairn_status jit_look(jit *j, const jit_program *p) {
    cairn_status status = CAIRN_OK;
    os_mutex_lock(&j->lock);
    if (p->state == JIT_FAILED)
        status = p->left && !p->lasting ? CAIRN_CANCELLED : jit_copy_error(j, p);
    else if (p->state != JIT_READY) status = CAIRN_BUSY;
    os_mutex_unlock(&j->lock);
    return status;
}

static cairn_status jit_get(jit *j, const jit_request *request, jit_program **out) {
    jit_request now = *request;
    jit_program *p = NULL;
    cairn_status status = jit_program_of(j, request, &p);
    now.turn = JIT_AWAITED;
    if (!status && jit_state_of(j, p) != JIT_READY && !(status = jit_begin(j, &now, 1))) {
        jit_wait_for(j, p);
        status = jit_look(j, p);
    }
    *out = status ? NULL : p;
    return status;
}

static cairn_status jit_try(jit *j, const jit_request *request, jit_program **out) {
    jit_program *p = NULL;
    cairn_status status = jit_program_of(j, request, &p);
    if (!status) status = jit_look(j, p);
    *out = status ? NULL : p;
    return status;
}

static cairn_status jit_function(jit *j, jit_program *p, const char *entry, int shared_bytes,
                                 jit_kernel *out) {
    const driver_calls *d = j->options.driver;
    jit_kernel found;
    CUcontext previous;
    cairn_status status;
    CUresult r;
    memset(&found, 0, sizeof found);
    found.shared_bytes = shared_bytes;
    if (!p->module)
        return base_fail(j->owner, CAIRN_UNSUPPORTED, "%s was compiled without a device", p->name);
    r = d->cuCtxPushCurrent(j->options.context);
    if (r) return driver_fail(j->owner, d, r, "cuCtxPushCurrent");
    status = jit_find_function(j, j->owner, p, entry, &found);
    d->cuCtxPopCurrent(&previous);
    if (!status) *out = found;
    return status;
}

static const uint8_t *jit_image(const jit_program *p, size_t *bytes) {
    *bytes = p->image.size;
    return p->image.data;
}

static void jit_counts(jit *j, int32_t *compiled, int32_t *cached, int32_t *opened) {
    const jit_program *p;
    *compiled = *cached = 0;
    os_mutex_lock(&j->lock);
    for (p = j->programs; p; p = p->next) {
        if (p->state != JIT_READY) continue;
        if (p->from_cache) ++*cached;
        else ++*compiled;
    }
    os_mutex_unlock(&j->lock);
    os_mutex_lock(&j->nvrtc_lock);
    *opened = j->options.driver->nvrtc_opened;
    os_mutex_unlock(&j->nvrtc_lock);
}
