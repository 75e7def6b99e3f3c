/* trace: see trace.h. */

#ifndef TRACE_CALLED
#define TRACE_CALLED() ((void)0) /* tests count by it */
#endif

static CUevent trace_mark(device *dev) {
    CUevent event = NULL;
    if (dev->drv->cuEventCreate(&event, 0)) return NULL;
    if (!dev->drv->cuEventRecord(event, dev->stream)) return event;
    dev->drv->cuEventDestroy(event);
    return NULL;
}

static int trace_open(device *dev, const char *name, bool interval) {
    trace *t = dev->trace;
    trace_event *e;
    TRACE_CALLED();
    if (t->push) t->push(name);
    if (t->count == t->most) return t->dropped++, t->most;
    e = &t->events[t->count];
    memset(e, 0, sizeof *e);
    e->name = name;
    e->from = os_now_us();
    if (interval && dev->cuda) e->begun = trace_mark(dev);
    return t->count++;
}

static void trace_shut(device *dev, int at, int rows) {
    trace *t = dev->trace;
    trace_event *e;
    TRACE_CALLED();
    if (t && t->push) t->pop();
    if (!t || at >= t->count || t->events[at].until) return;
    e = &t->events[at];
    if (e->begun) e->ended = trace_mark(dev);
    e->rows = rows;
    e->until = os_now_us();
}

static int trace_pause(device *dev) {
    const int op = dev->trace ? dev->trace->op_event : -1;
    if (dev->trace) dev->trace->op_event = -1;
    return op;
}

static void trace_resume(device *dev, int op) {
    if (dev->trace) dev->trace->op_event = op;
}

static void trace_drop_op(trace *t) {
    if (t->op_event >= 0 && t->push) t->pop();
    t->op_event = -1;
}

static void trace_stop(device *dev) {
    trace *t = dev->trace;
    if (!t) return;
    trace_drop_op(t);
    for (int i = 0; i < t->count; i++) {
        if (t->events[i].begun) dev->drv->cuEventDestroy(t->events[i].begun);
        if (t->events[i].ended) dev->drv->cuEventDestroy(t->events[i].ended);
    }
    if (t->zero) dev->drv->cuEventDestroy(t->zero);
    os_library_close(t->nvtx);
    base_delete(dev->base, t->events, (size_t)t->most, sizeof *t->events);
    base_delete(dev->base, t, 1, sizeof *t);
    dev->trace = NULL;
}

/* That of NVTX 3, else of 2. */
static void trace_find_nvtx(trace *t) {
#ifdef _WIN32
    static const char *const names[] = {"nvtx3interop.dll", "nvToolsExt64_1.dll"};
#else
    static const char *const names[] = {"libnvtx3interop.so.1", "libnvToolsExt.so.1"};
#endif
    const char *path = os_env("CAIRN_NVTX_PATH");
    t->nvtx = os_library_open(path ? path : names[0], NULL, 0);
    if (!t->nvtx && !path) t->nvtx = os_library_open(names[1], NULL, 0);
    if (!t->nvtx) return;
    t->push = (int (*)(const char *))os_library_symbol(t->nvtx, "nvtxRangePushA");
    t->pop = (int (*)(void))os_library_symbol(t->nvtx, "nvtxRangePop");
    if (!t->pop) t->push = NULL;
}

static cairn_status trace_start(device *dev, int most) {
    trace *t = (trace *)base_new(dev->base, 1, sizeof *t);
    trace_event *events = (trace_event *)base_new(dev->base, (size_t)most, sizeof *events);
    if (!t || !events) {
        base_delete(dev->base, t, 1, sizeof *t);
        base_delete(dev->base, events, (size_t)most, sizeof *events);
        return base_no_memory(dev->base, "a trace", (size_t)most * sizeof *events);
    }
    trace_stop(dev);
    t->events = events, t->most = most, t->op_event = -1;
    if (dev->cuda && (t->zero = trace_mark(dev))) dev->drv->cuEventSynchronize(t->zero);
    t->zero_us = os_now_us();
    trace_find_nvtx(t);
    dev->trace = t;
    return CAIRN_OK;
}

/* One range of track 1, the host's, or 2, the device's, in microseconds from the trace's begin on. */
static bool trace_print_range(base *b, base_text *out, const trace_event *e, int track, int64_t from,
                              int64_t us) {
    return base_text_print(b, out, ",\n{\"name\":\"%s\",\"ph\":\"X\",\"pid\":1,\"tid\":%d,\"ts\":%lld,"
                           "\"dur\":%lld,\"args\":{\"rows\":%d}}", e->name, track, (long long)from,
                           (long long)us, (int)e->rows);
}

/* When the device was at the mark; false: that is not known. */
static bool trace_us(device *dev, CUevent mark, int64_t *us) {
    float ms;
    if (dev->drv->cuEventSynchronize(mark) || !dev->trace->zero ||
        dev->drv->cuEventElapsedTime(&ms, dev->trace->zero, mark))
        return false;
    *us = (int64_t)((double)ms * 1000.0);
    return true;
}

static cairn_status trace_print(device *dev, base_text *out) {
    const trace *t = dev->trace;
    base *b = dev->base;
    bool fine = base_text_print(b, out, "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"dropped\":%lld},"
                                "\"traceEvents\":[\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":1,"
                                "\"tid\":1,\"args\":{\"name\":\"host\"}},\n{\"name\":\"thread_name\","
                                "\"ph\":\"M\",\"pid\":1,\"tid\":2,\"args\":{\"name\":\"device\"}}",
                                (long long)t->dropped);
    for (int i = 0; i < t->count && fine; i++) {
        const trace_event *e = &t->events[i];
        int64_t from, until;
        if (!e->until) continue;
        fine = trace_print_range(b, out, e, 1, e->from - t->zero_us, e->until - e->from);
        if (fine && e->ended && trace_us(dev, e->begun, &from) && trace_us(dev, e->ended, &until))
            fine = trace_print_range(b, out, e, 2, from, until - from);
    }
    fine = fine && base_text_print(b, out, "]}\n");
    return fine ? CAIRN_OK : base_no_memory(b, "a trace's text", out->size);
}
