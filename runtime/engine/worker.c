/* worker: the thread that the config may ask for. It works on the requests of all models, in turns of
 * a few milliseconds; between these, and while a forward computes, other threads' calls have theirs.
 * Blocking calls ask and wait for it. Calls loop. */

enum {
    WORKER_TURN_US = 4000,
    WORKER_LOOK_US = 10000, /* requests that wait may be cancelled: it looks so often */
    WORKER_YIELDS = 100
};

struct worker_thread { os_thread thread; cairn_runtime *rt; bool stop; };

/* False: nothing can be done now. What a blocking call waits for then fails, as without a worker. */
static bool worker_turn(cairn_model *m) {
    device *dev = &m->runtime->device;
    cairn_status status = device_enter(dev);
    bool worked = false;
    if (!status) {
        worked = loop_turn(m, os_now_us() + WORKER_TURN_US, loop_limit(m), true);
        device_leave(dev);
    }
    for (cairn_session *s = m->sessions; s && !worked; s = s->next)
        if (loop_has_work(s) && (status || s->busy)) {
            loop_end(s, CAIRN_STOP_ERROR, status ? status : engine_raise_noted(s));
            worked = true;
        }
    return worked;
}

static bool worker_expects(const cairn_runtime *rt) {
    bool expects = rt->reload != NULL;
    for (const cairn_model *m = rt->models; m; m = m->next)
        for (const cairn_session *s = m->sessions; s; s = s->next) expects |= loop_has_work(s);
    return expects;
}

/* Between two turns whoever came meanwhile goes first. */
static void worker_let_others(cairn_runtime *rt) {
    handles_drop(rt);
    for (int i = 0; i < WORKER_YIELDS && os_atomic_load(&rt->turns.coming); i++) os_thread_yield();
    handles_hold_beside(rt);
    while (rt->turns.waiting) handles_wait(rt, 0);
}

static void worker_run(void *context) {
    struct worker_thread *w = (struct worker_thread *)context;
    cairn_runtime *rt = w->rt;
    if (rt->config.worker.priority == CAIRN_PRIORITY_LOW) os_thread_lower();
    handles_hold(rt);
    while (!w->stop) {
        bool worked = false;
        for (cairn_model *m = rt->models; m; m = m->next) worked |= worker_turn(m);
        if (worked) worker_let_others(rt);
        else handles_wait(rt, worker_expects(rt) ? WORKER_LOOK_US : 0);
        handles_settle(rt);
    }
    handles_drop(rt);
}

static void worker_free(cairn_runtime *rt) {
    rt->turns.shared = false;
    os_cond_destroy(&rt->turns.changed);
    os_mutex_destroy(&rt->turns.mutex);
    base_delete(&rt->base, rt->worker, 1, sizeof *rt->worker);
    rt->worker = NULL;
}

static cairn_status worker_start(cairn_runtime *rt) {
    struct worker_thread *w;
    if (!rt->config.worker.enabled) return CAIRN_OK;
    rt->worker = w = (struct worker_thread *)base_new(&rt->base, 1, sizeof *w);
    if (!w) return base_no_memory(&rt->base, "the worker", sizeof *w);
    w->rt = rt;
    os_mutex_init(&rt->turns.mutex);
    os_cond_init(&rt->turns.changed);
    rt->turns.shared = true;
    if (os_thread_start(&w->thread, 0, worker_run, w)) return CAIRN_OK;
    worker_free(rt);
    return base_fail(&rt->base, CAIRN_OUT_OF_MEMORY, "the system gives no thread for the worker");
}

static void worker_stop(cairn_runtime *rt) {
    if (!rt->worker) return;
    handles_hold(rt);
    rt->worker->stop = true;
    handles_drop(rt);
    os_thread_join(&rt->worker->thread);
    worker_free(rt);
}
