/* handles: the public calls on tensors, streams, events, graphs and staging buffers. */

/* Each knows its runtime: another runtime's is refused. */
struct cairn_stream { cairn_runtime *rt; CUstream stream; struct cairn_stream *next; };
struct cairn_event {
    cairn_runtime *rt;
    CUevent event;
    int64_t us;
    bool recorded;
    struct cairn_event *next;
};
struct cairn_graph { cairn_runtime *rt; device_graph graph; struct cairn_graph *next; };
struct cairn_staging { cairn_runtime *rt; device_staging buffers; struct cairn_staging *next; };

/* ---- turns ----------------------------------------------------------------------------------- */

static void handles_hold_beside(cairn_runtime *rt) {
    if (!rt->turns.shared) return;
    os_atomic_add(&rt->turns.coming, 1);
    os_mutex_lock(&rt->turns.mutex);
    os_atomic_add(&rt->turns.coming, -1);
}

static void handles_settle(cairn_runtime *rt) {
    handles_turns *t = &rt->turns;
    if (!t->shared) return;
    t->waiting++;
    while (t->computing) os_cond_wait(&t->changed, &t->mutex);
    t->waiting--;
}

static void handles_hold(cairn_runtime *rt) {
    handles_hold_beside(rt);
    handles_settle(rt);
}

static void handles_drop(cairn_runtime *rt) {
    if (!rt->turns.shared) return;
    os_cond_broadcast(&rt->turns.changed);
    os_mutex_unlock(&rt->turns.mutex);
}

static void handles_release(cairn_runtime *rt, bool compute) {
    if (compute) rt->turns.computing = true;
    handles_drop(rt);
}

static void handles_retake(cairn_runtime *rt, bool compute) {
    handles_hold_beside(rt);
    if (compute) rt->turns.computing = false;
}

static void handles_wait(cairn_runtime *rt, int64_t us) {
    os_cond_broadcast(&rt->turns.changed);
    if (us) os_cond_wait_us(&rt->turns.changed, &rt->turns.mutex, us);
    else os_cond_wait(&rt->turns.changed, &rt->turns.mutex);
}

static cairn_status handles_enter(cairn_runtime *rt) {
    cairn_status status;
    if (!rt) return CAIRN_INVALID_ARGUMENT;
    if ((status = base_check_callback(&rt->base))) return status;
    handles_hold(rt);
    if ((status = device_enter(&rt->device))) handles_drop(rt);
    return status;
}

static cairn_status handles_leave(cairn_runtime *rt, cairn_status status) {
    device_leave(&rt->device);
    handles_drop(rt);
    return status;
}

static cairn_status handles_need(cairn_runtime *rt, const char *call, const void *given,
                                 const char *name) {
    if (!rt) return CAIRN_INVALID_ARGUMENT;
    if (given) return CAIRN_OK;
    return base_fail(&rt->base, CAIRN_INVALID_ARGUMENT, "%s: %s is NULL", call, name);
}

/* A handle is of the runtime that is asked: `owner` is the handle's. */
static cairn_status handles_check_owner(cairn_runtime *rt, const char *call, const char *name,
                                        const cairn_runtime *owner) {
    if (owner == rt) return CAIRN_OK;
    return base_fail(&rt->base, CAIRN_INVALID_ARGUMENT, "%s: the %s is of another runtime", call,
                     name);
}

const char *cairn_last_error(const cairn_runtime *rt) { return rt ? rt->base.error : ""; }
const cairn_config *cairn_config_of(const cairn_runtime *rt) { return rt ? &rt->config : NULL; }

cairn_status cairn_sync(cairn_runtime *rt) {
    cairn_status status = handles_enter(rt);
    if (status) return status;
    return handles_leave(rt, device_sync(&rt->device));
}

/* ---- tensors --------------------------------------------------------------------------------- */

cairn_status cairn_tensor_new(cairn_runtime *rt, cairn_type type, int rank, const int64_t *shape,
                              cairn_tensor **tensor) {
    tensor_owned *t = NULL;
    cairn_status status;
    if (tensor) *tensor = NULL;
    if ((status = handles_need(rt, "tensor_new", tensor, "tensor"))) return status;
    if (!cairn_type_bytes(type))
        return base_fail(&rt->base, CAIRN_INVALID_ARGUMENT, "tensor_new: unknown type %d",
                         (int)type);
    if (rank < 0 || rank > CAIRN_MAX_RANK || (rank && !shape))
        return base_fail(&rt->base, CAIRN_INVALID_ARGUMENT,
                         "tensor_new: rank %d; 0 to %d with a shape is allowed", rank,
                         CAIRN_MAX_RANK);
    if ((status = handles_enter(rt))) return status;
    status = tensor_new(&rt->device, &rt->tensors, type, rank, shape, &t);
    if (!status) *tensor = &t->view;
    return handles_leave(rt, status);
}

cairn_status cairn_tensor_free(cairn_runtime *rt, cairn_tensor *tensor) {
    tensor_owned *t;
    cairn_status status;
    if (!tensor) return CAIRN_OK;
    if (!rt) return CAIRN_INVALID_ARGUMENT;
    t = tensor_find(rt->tensors, tensor);
    if (!t)
        return base_fail(&rt->base, CAIRN_INVALID_ARGUMENT,
                         "tensor_free: not a tensor of this runtime (a view frees nothing)");
    if ((status = handles_enter(rt))) return status;
    tensor_free(&rt->device, t);
    return handles_leave(rt, CAIRN_OK);
}

cairn_status cairn_tensor_write(cairn_runtime *rt, cairn_tensor *tensor, const void *host,
                                size_t bytes) {
    cairn_status status = handles_need(rt, "tensor_write", tensor, "tensor");
    if (!status) status = tensor_check_copy(&rt->device, "tensor_write", tensor, host, bytes);
    if (!status && rt->device.cuda && tensor->device.type == TENSOR_CPU && bytes)
        return memcpy(tensor_data(tensor), host, bytes), CAIRN_OK;
    if (status || (status = handles_enter(rt))) return status;
    status = device_upload(&rt->device, tensor_data(tensor), host, bytes);
    if (!status) status = device_sync(&rt->device);
    return handles_leave(rt, status);
}

cairn_status cairn_tensor_read(cairn_runtime *rt, const cairn_tensor *tensor, void *host,
                               size_t bytes) {
    cairn_status status = handles_need(rt, "tensor_read", tensor, "tensor");
    if (!status) status = tensor_check_copy(&rt->device, "tensor_read", tensor, host, bytes);
    if (!status && rt->device.cuda && tensor->device.type == TENSOR_CPU && bytes)
        return memcpy(host, tensor_data(tensor), bytes), CAIRN_OK;
    if (status || (status = handles_enter(rt))) return status;
    status = device_download(&rt->device, host, tensor_data(tensor), bytes);
    if (!status) status = device_check_errors(&rt->device);
    return handles_leave(rt, status);
}

cairn_status cairn_tensor_load(cairn_runtime *rt, const char *path, cairn_tensor **tensor) {
    tensor_owned *t = NULL;
    cairn_status status;
    if (tensor) *tensor = NULL;
    if ((status = handles_need(rt, "tensor_load", tensor, "tensor")) ||
        (status = handles_need(rt, "tensor_load", path, "path")) || (status = handles_enter(rt)))
        return status;
    status = npy_load(&rt->device, &rt->tensors, path, &t);
    if (!status) *tensor = &t->view;
    return handles_leave(rt, status);
}

cairn_status cairn_tensor_save(cairn_runtime *rt, const cairn_tensor *tensor, const char *path) {
    size_t bytes = 0;
    cairn_status status = handles_need(rt, "tensor_save", path, "path");
    if (status) return status;
    if (tensor_is_view(tensor))
        bytes = (size_t)tensor_elements(tensor) * cairn_type_bytes(cairn_tensor_type(tensor));
    status = tensor_check_copy(&rt->device, "tensor_save", tensor, path, bytes);
    if (status || (status = handles_enter(rt))) return status;
    return handles_leave(rt, npy_save(&rt->device, tensor, path));
}

/* ---- streams --------------------------------------------------------------------------------- */

cairn_status cairn_stream_new(cairn_runtime *rt, cairn_stream **stream) {
    device *dev;
    cairn_stream *s;
    cairn_status status;
    if (stream) *stream = NULL;
    if ((status = handles_need(rt, "stream_new", stream, "stream"))) return status;
    dev = &rt->device;
    s = (cairn_stream *)base_new(&rt->base, 1, sizeof *s);
    if (!s) return base_no_memory(&rt->base, "a stream", sizeof *s);
    if (!(status = handles_enter(rt))) {
        CUresult result = CUDA_SUCCESS;
        if (dev->cuda) result = dev->drv->cuStreamCreateWithPriority(&s->stream, CU_STREAM_NON_BLOCKING, 0);
        if (result) status = driver_fail(&rt->base, dev->drv, result, "cuStreamCreateWithPriority");
        device_leave(dev);
    }
    if (status) {
        base_delete(&rt->base, s, 1, sizeof *s);
        return status;
    }
    s->rt = rt;
    s->next = rt->streams;
    rt->streams = s;
    return *stream = s, CAIRN_OK;
}

cairn_status cairn_stream_set(cairn_runtime *rt, cairn_stream *stream) {
    cairn_status status = CAIRN_OK;
    if (!rt) return CAIRN_INVALID_ARGUMENT;
    if (stream) status = handles_check_owner(rt, "stream_set", "stream", stream->rt);
    if (status) return status;
    if (rt->capturing)
        return base_fail(&rt->base, CAIRN_BUSY, "stream_set: a graph is being captured");
    if (rt->device.ahead) { /* what comes on another stream may use the same pages */
        if ((status = handles_enter(rt))) return status;
        device_wait(&rt->device);
        handles_leave(rt, CAIRN_OK);
    }
    rt->device.stream = stream ? stream->stream : rt->device.own_stream;
    return CAIRN_OK;
}

cairn_status cairn_stream_sync(cairn_runtime *rt, cairn_stream *stream) {
    device *dev;
    CUstream current;
    cairn_status status = CAIRN_OK;
    if (!rt) return CAIRN_INVALID_ARGUMENT;
    if (stream) status = handles_check_owner(rt, "stream_sync", "stream", stream->rt);
    if (status || (status = handles_enter(rt))) return status;
    dev = &rt->device;
    current = dev->stream;
    dev->stream = stream ? stream->stream : dev->own_stream;
    status = device_sync(dev);
    dev->stream = current;
    return handles_leave(rt, status);
}

cairn_status cairn_stream_free(cairn_runtime *rt, cairn_stream *stream) {
    device *dev;
    cairn_stream **at;
    cairn_status status;
    if (!stream) return CAIRN_OK;
    if (!rt) return CAIRN_INVALID_ARGUMENT;
    dev = &rt->device;
    at = &rt->streams;
    while (*at && *at != stream) at = &(*at)->next;
    if (!*at)
        return base_fail(&rt->base, CAIRN_INVALID_ARGUMENT,
                         "stream_free: not a stream of this runtime");
    status = cairn_stream_sync(rt, stream);
    if (dev->stream == stream->stream) dev->stream = dev->own_stream;
    *at = stream->next;
    if (dev->cuda && !handles_enter(rt)) {
        dev->drv->cuStreamDestroy(stream->stream);
        device_leave(dev);
    }
    base_delete(&rt->base, stream, 1, sizeof *stream);
    return status;
}

/* ---- events ---------------------------------------------------------------------------------- */

cairn_status cairn_event_new(cairn_runtime *rt, cairn_event **event) {
    device *dev;
    cairn_event *e;
    cairn_status status;
    if (event) *event = NULL;
    if ((status = handles_need(rt, "event_new", event, "event"))) return status;
    dev = &rt->device;
    e = (cairn_event *)base_new(&rt->base, 1, sizeof *e);
    if (!e) return base_no_memory(&rt->base, "an event", sizeof *e);
    if (!(status = handles_enter(rt))) {
        CUresult result = dev->cuda ? dev->drv->cuEventCreate(&e->event, 0) : CUDA_SUCCESS;
        if (result) status = driver_fail(&rt->base, dev->drv, result, "cuEventCreate");
        device_leave(dev);
    }
    if (status) {
        base_delete(&rt->base, e, 1, sizeof *e);
        return status;
    }
    e->rt = rt;
    e->next = rt->events;
    rt->events = e;
    return *event = e, CAIRN_OK;
}

cairn_status cairn_event_record(cairn_runtime *rt, cairn_event *event) {
    device *dev;
    cairn_status status = handles_need(rt, "event_record", event, "event");
    if (!status) status = handles_check_owner(rt, "event_record", "event", event->rt);
    if (status || (status = handles_enter(rt))) return status;
    dev = &rt->device;
    if (dev->cuda) {
        CUresult result = dev->drv->cuEventRecord(event->event, dev->stream);
        if (result) status = driver_fail(&rt->base, dev->drv, result, "cuEventRecord");
    } else {
        event->us = os_now_us();
    }
    event->recorded = !status;
    return handles_leave(rt, status);
}

static cairn_status handles_check_recorded(cairn_runtime *rt, const cairn_event *event,
                                           const char *call) {
    cairn_status status = handles_need(rt, call, event, "event");
    if (!status) status = handles_check_owner(rt, call, "event", event->rt);
    if (status || event->recorded) return status;
    return base_fail(&rt->base, CAIRN_INVALID_ARGUMENT, "%s: the event was never recorded", call);
}

cairn_status cairn_event_wait(cairn_runtime *rt, cairn_event *event) {
    cairn_status status = handles_check_recorded(rt, event, "event_wait");
    device *dev = status ? NULL : &rt->device;
    if (status || !dev->cuda || (status = handles_enter(rt))) return status;
    {
        CUresult result = dev->drv->cuStreamWaitEvent(dev->stream, event->event, 0);
        if (result) status = driver_fail(&rt->base, dev->drv, result, "cuStreamWaitEvent");
    }
    return handles_leave(rt, status);
}

static cairn_status handles_elapsed_cuda(device *dev, cairn_event *from, cairn_event *to,
                                         double *microseconds) {
    float milliseconds = 0;
    DEV_TRY(dev, cuEventSynchronize(to->event));
    DEV_TRY(dev, cuEventElapsedTime(&milliseconds, from->event, to->event));
    *microseconds = (double)milliseconds * 1000.0;
    return CAIRN_OK;
}

cairn_status cairn_event_elapsed(cairn_runtime *rt, cairn_event *from, cairn_event *to,
                                 double *microseconds) {
    cairn_status status;
    if ((status = handles_check_recorded(rt, from, "event_elapsed")) ||
        (status = handles_check_recorded(rt, to, "event_elapsed")) ||
        (status = handles_need(rt, "event_elapsed", microseconds, "microseconds")))
        return status;
    if (!rt->device.cuda) {
        *microseconds = (double)(to->us - from->us);
        return CAIRN_OK;
    }
    if ((status = handles_enter(rt))) return status;
    return handles_leave(rt, handles_elapsed_cuda(&rt->device, from, to, microseconds));
}

cairn_status cairn_event_free(cairn_runtime *rt, cairn_event *event) {
    cairn_event **at;
    if (!event) return CAIRN_OK;
    if (!rt) return CAIRN_INVALID_ARGUMENT;
    at = &rt->events;
    while (*at && *at != event) at = &(*at)->next;
    if (!*at)
        return base_fail(&rt->base, CAIRN_INVALID_ARGUMENT,
                         "event_free: not an event of this runtime");
    *at = event->next;
    if (rt->device.cuda && !handles_enter(rt)) {
        rt->device.drv->cuEventDestroy(event->event);
        device_leave(&rt->device);
    }
    base_delete(&rt->base, event, 1, sizeof *event);
    return CAIRN_OK;
}

/* ---- graphs ---------------------------------------------------------------------------------- */

cairn_status cairn_graph_begin(cairn_runtime *rt) {
    cairn_status status;
    if (!rt) return CAIRN_INVALID_ARGUMENT;
    if (!rt->device.cuda)
        return base_fail(&rt->base, CAIRN_UNSUPPORTED, "graph_begin: the CPU backend has no graphs");
    if (rt->capturing)
        return base_fail(&rt->base, CAIRN_BUSY, "graph_begin: a graph is being captured already");
    if ((status = handles_enter(rt))) return status;
    status = device_graph_begin(&rt->device);
    rt->capturing = !status;
    return handles_leave(rt, status);
}

cairn_status cairn_graph_end(cairn_runtime *rt, cairn_graph **graph) {
    cairn_graph *g;
    cairn_status status;
    if (graph) *graph = NULL;
    if ((status = handles_need(rt, "graph_end", graph, "graph"))) return status;
    if (!rt->capturing)
        return base_fail(&rt->base, CAIRN_INVALID_ARGUMENT, "graph_end: no graph is being captured");
    if ((status = handles_enter(rt))) return status;
    rt->capturing = false;
    g = (cairn_graph *)base_new(&rt->base, 1, sizeof *g);
    if (g) {
        status = device_graph_end(&rt->device, &g->graph);
    } else {
        device_graph_abandon(&rt->device);
        status = base_no_memory(&rt->base, "a graph", sizeof *g);
    }
    if (status) {
        base_delete(&rt->base, g, 1, sizeof *g);
    } else {
        g->rt = rt;
        g->next = rt->graphs;
        rt->graphs = g;
        *graph = g;
    }
    return handles_leave(rt, status);
}

cairn_status cairn_graph_launch(cairn_runtime *rt, cairn_graph *graph) {
    cairn_status status = handles_need(rt, "graph_launch", graph, "graph");
    if (!status) status = handles_check_owner(rt, "graph_launch", "graph", graph->rt);
    if (status || (status = handles_enter(rt))) return status;
    return handles_leave(rt, device_graph_launch(&rt->device, &graph->graph));
}

cairn_status cairn_graph_free(cairn_runtime *rt, cairn_graph *graph) {
    cairn_graph **at;
    if (!graph) return CAIRN_OK;
    if (!rt) return CAIRN_INVALID_ARGUMENT;
    at = &rt->graphs;
    while (*at && *at != graph) at = &(*at)->next;
    if (!*at)
        return base_fail(&rt->base, CAIRN_INVALID_ARGUMENT,
                         "graph_free: not a graph of this runtime");
    *at = graph->next;
    if (!handles_enter(rt)) {
        device_graph_free(&rt->device, &graph->graph);
        device_leave(&rt->device);
    }
    base_delete(&rt->base, graph, 1, sizeof *graph);
    return CAIRN_OK;
}

/* ---- staging --------------------------------------------------------------------------------- */

cairn_status cairn_staging_new(cairn_runtime *rt, size_t bytes, cairn_staging **staging) {
    cairn_staging *s;
    cairn_status status;
    if (staging) *staging = NULL;
    if ((status = handles_need(rt, "staging_new", staging, "staging"))) return status;
    if (!bytes)
        return base_fail(&rt->base, CAIRN_INVALID_ARGUMENT, "staging_new: bytes = 0");
    s = (cairn_staging *)base_new(&rt->base, 1, sizeof *s);
    if (!s) return base_no_memory(&rt->base, "staging buffers", sizeof *s);
    if (!(status = handles_enter(rt))) {
        status = device_staging_open(&rt->device, bytes, &s->buffers);
        if (status) device_staging_close(&rt->device, &s->buffers);
        device_leave(&rt->device);
    }
    if (status) {
        base_delete(&rt->base, s, 1, sizeof *s);
        return status;
    }
    s->rt = rt;
    s->next = rt->stagings;
    rt->stagings = s;
    return *staging = s, CAIRN_OK;
}

cairn_status cairn_staging_free(cairn_runtime *rt, cairn_staging *staging) {
    cairn_staging **at;
    if (!staging) return CAIRN_OK;
    if (!rt) return CAIRN_INVALID_ARGUMENT;
    at = &rt->stagings;
    while (*at && *at != staging) at = &(*at)->next;
    if (!*at)
        return base_fail(&rt->base, CAIRN_INVALID_ARGUMENT,
                         "staging_free: not a staging of this runtime");
    *at = staging->next;
    if (!handles_enter(rt)) {
        device_staging_close(&rt->device, &staging->buffers);
        device_leave(&rt->device);
    }
    base_delete(&rt->base, staging, 1, sizeof *staging);
    return CAIRN_OK;
}

static void handles_free_all(cairn_runtime *rt) {
    bool entered;
    trace_stop(&rt->device);
    while (rt->graphs) cairn_graph_free(rt, rt->graphs);
    while (rt->stagings) cairn_staging_free(rt, rt->stagings);
    while (rt->events) cairn_event_free(rt, rt->events);
    while (rt->streams) cairn_stream_free(rt, rt->streams);
    entered = !handles_enter(rt);
    while (rt->tensors) tensor_free(&rt->device, rt->tensors);
    if (entered) handles_leave(rt, CAIRN_OK);
}
