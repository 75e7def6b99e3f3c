/* jit_work: the threads that build programs. A batch is what has been asked for and not finished;
 * workers take programs off it until it is empty and then end. They are joined by whoever waits. */

static os_mutex jit_exit_lock = OS_MUTEX_INITIAL; /* of the two below */
static jit *jit_alive;
static os_atomic jit_exiting, jit_exit_registered;

/* ---- workers --------------------------------------------------------------------------------- */

/* Under the lock: the next queued program, or NULL. Programs are listed newest first, asked-for
 * order is oldest first; what someone waits for comes before what is begun beside it, and the rest begin when
 * all of the first is done: beside others each compile takes up to twice its time. */
static jit_program *jit_take(jit *j) {
    jit_program *p, *oldest = NULL;
    bool waits = false;
    if (os_atomic_load(&j->cancel)) return NULL;
    for (p = j->programs; p; p = p->next) {
        waits = waits || (p->wanted && p->state == JIT_RUNNING);
        if (p->state == JIT_QUEUED && (!oldest || jit_rank(p) >= jit_rank(oldest))) oldest = p;
    }
    if (!oldest || (waits && !jit_rank(oldest))) return NULL;
    oldest->state = JIT_RUNNING;
    oldest->comes = true;
    j->queued--;
    j->busy++;
    memcpy(j->current, oldest->name, sizeof j->current);
    return oldest;
}

/* Under the lock. What was requested once more while it ran is not failed by how things were
 * before: it runs once more. */
static void jit_finish(jit *j, const base *b, jit_program *p, cairn_status status) {
    const bool again = status && p->again && !p->lasting && !os_atomic_load(&j->cancel);
    p->status = again ? CAIRN_OK : status;
    p->state = again ? JIT_QUEUED : status ? JIT_FAILED : JIT_READY;
    p->again = p->comes = p->waits = false;
    if (status) memcpy(p->error, b->error, sizeof p->error);
    if (again) j->queued++;
    j->busy--;
    os_cond_broadcast(&j->changed);
}

/* Its worker can be joined from now on. */
static void jit_end_worker(jit_worker *w) {
    jit *j = w->jit_of;
    os_mutex_lock(&j->lock);
    if (w->state == JIT_STARTED) w->state = JIT_ENDED;
    os_cond_broadcast(&j->changed);
    os_mutex_unlock(&j->lock);
}

/* Before there is a program, or a device: see jit_open_ahead. */
static void jit_work_ahead(void *context) {
    jit_worker *w = (jit_worker *)context;
    jit *j = w->jit_of;
    const cairn_status status = jit_need_nvrtc(j, &w->own);
    os_mutex_lock(&j->lock);
    if (!status && !j->twin_tried && !os_atomic_load(&j->cancel)) jit_open_twin(j, &w->own);
    j->ahead = false;
    os_mutex_unlock(&j->lock);
    jit_end_worker(w);
}

static void jit_work(void *context) {
    jit_worker *w = (jit_worker *)context;
    jit *j = w->jit_of;
    CUcontext previous;
    jit_program *p;
    CUresult pushed = j->options.context ? j->options.driver->cuCtxPushCurrent(j->options.context)
                                         : CUDA_SUCCESS;
    os_mutex_lock(&j->lock);
    while ((p = jit_take(j)) != NULL || j->queued) {
        cairn_status status;
        if (!p) { /* what is left is for later, or will be flushed */
            os_cond_wait(&j->changed, &j->lock);
            continue;
        }
        os_mutex_unlock(&j->lock);
        if (pushed) pushed = j->options.driver->cuCtxPushCurrent(j->options.context);
        if (pushed) status = driver_fail(&w->own, j->options.driver, pushed, "cuCtxPushCurrent");
        else status = jit_build(j, &w->own, p);
        os_mutex_lock(&j->lock);
        jit_finish(j, &w->own, p, status);
    }
    j->running--; /* in one step with finding nothing to do: work that comes now starts another */
    os_mutex_unlock(&j->lock);
    if (j->options.context && !pushed) j->options.driver->cuCtxPopCurrent(&previous);
    jit_end_worker(w);
}

static int jit_thread_limit(const jit *j) {
    int n = j->options.threads > 0 ? j->options.threads : os_cpu_count();
    if (j->options.threads <= 0 && n > JIT_OWN_THREADS) n = JIT_OWN_THREADS;
    if (os_memory_bytes() < JIT_AMPLE_MEMORY) return 1;
    return n > JIT_MAX_THREADS ? JIT_MAX_THREADS : n;
}

/* Under the lock: one more worker that does `work`; false: none could be started. */
static bool jit_start_worker(jit *j, void (*work)(void *)) {
    jit_worker *w = j->workers;
    while (w < j->workers + JIT_MAX_THREADS && w->state != JIT_IDLE) w++;
    if (w == j->workers + JIT_MAX_THREADS) return false;
    w->jit_of = j;
    base_fork(j->owner, &w->own);
    w->state = JIT_STARTED;
    if (os_thread_start(&w->thread, JIT_STACK_BYTES, work, w)) return true;
    w->state = JIT_IDLE;
    return false;
}

/* Under the lock: as many workers as there is work for. Returns false when none runs. */
static bool jit_start_workers(jit *j) {
    const int limit = jit_thread_limit(j), wanted = j->queued + j->busy < limit ? j->queued + j->busy : limit;
    while (j->running < wanted && jit_start_worker(j, jit_work)) j->running++;
    return j->running > 0;
}

/* Joins workers that have ended; with `all`, waits for the others first. A worker that comes here
 * itself (the program exits from a log callback) is left out. */
static void jit_join(jit *j, bool all) {
    int i;
    os_mutex_lock(&j->lock);
    for (i = 0; i < JIT_MAX_THREADS; i++) {
        jit_worker *w = &j->workers[i];
        if (w->state == JIT_IDLE || (w->state != JIT_ENDED && !all)) continue;
        if (os_thread_is_self(&w->thread)) continue;
        if (w->state == JIT_JOINING) { /* another thread is at it */
            while (w->state == JIT_JOINING) os_cond_wait(&j->changed, &j->lock);
            continue;
        }
        w->state = JIT_JOINING;
        os_mutex_unlock(&j->lock);
        os_thread_join(&w->thread);
        os_mutex_lock(&j->lock);
        w->state = JIT_IDLE;
        os_cond_broadcast(&j->changed);
    }
    os_mutex_unlock(&j->lock);
}

/* ---- batches --------------------------------------------------------------------------------- */

/* Under the lock: whatever is still queued will not be built. */
static void jit_flush(jit *j, cairn_status status, const char *why) {
    jit_program *p;
    for (p = j->programs; p; p = p->next) {
        if (p->state != JIT_QUEUED) continue;
        p->state = JIT_FAILED;
        p->status = status;
        snprintf(p->error, sizeof p->error, "%s: %s", p->name, why);
        j->queued--;
    }
    os_cond_broadcast(&j->changed);
}

static jit_program *jit_lookup(jit *j, const cache_key *id) {
    jit_program *p = j->programs;
    while (p && memcmp(&p->id, id, sizeof *id)) p = p->next;
    return p;
}

/* The program of a request, made if it is new. Only the owner adds programs. */
static cairn_status jit_program_of(jit *j, const jit_request *request, jit_program **out) {
    base_text prologue = {0};
    cache_key id;
    cairn_status status = jit_prologue(j, j->owner, request, &prologue);
    jit_program *p = NULL;
    if (!status) {
        id = jit_request_id(request->source, prologue.data, prologue.size);
        p = jit_lookup(j, &id);
    }
    if (!status && !p) {
        p = (jit_program *)base_new(j->owner, 1, sizeof *p);
        if (!p) status = base_no_memory(j->owner, "kernel program", sizeof *p);
        else {
            p->id = id;
            snprintf(p->name, sizeof p->name, "%s", request->source);
            p->source = prologue;
            memset(&prologue, 0, sizeof prologue);
            os_mutex_lock(&j->lock);
            p->next = j->programs;
            j->programs = p;
            os_mutex_unlock(&j->lock);
        }
    }
    base_text_free(j->owner, &prologue);
    *out = p;
    return status;
}

/* Under the lock. A program that failed by its own fault keeps its failure. One that runs is asked for once more
 * where who asked before has left it; who still waits for it may ask as often as they look. */
static void jit_enqueue(jit *j, jit_program *p, jit_turn turn) {
    p->again = p->state == JIT_RUNNING && (p->again || p->left || !p->wanted);
    p->wanted = p->wanted || turn == JIT_AWAITED;
    p->beside = p->beside || turn == JIT_BESIDE;
    p->left = false;
    os_cond_broadcast(&j->changed); /* who rests in jit_work, or waits in jit_enter_front, may be the next by now */
    if (p->state != JIT_NEW && (p->state != JIT_FAILED || p->lasting)) return;
    p->state = JIT_QUEUED;
    p->status = CAIRN_OK;
    j->queued++;
}

/* ---- end of the process ---------------------------------------------------------------------- */

/* Cancels and waits: at most one stage of one compile, about 0.1 s. */
static void jit_stop(jit *j) {
    os_atomic_store(&j->cancel, 1);
    os_mutex_lock(&j->lock);
    jit_flush(j, CAIRN_CANCELLED, "compiling was cancelled");
    os_mutex_unlock(&j->lock);
    jit_join(j, true);
}

static void jit_at_exit(void) {
    jit *j; /* runs once or more */
    os_atomic_store(&jit_exiting, 1);
    os_mutex_lock(&jit_exit_lock);
    for (j = jit_alive; j; j = j->next_open) jit_stop(j);
    os_mutex_unlock(&jit_exit_lock);
}
