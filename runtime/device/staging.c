/* staging: pinned buffers, and captured work. */

/* ---- staging: host arrays that kernels read -------------------------------------------------- */

static cairn_status device_staging_open(device *dev, size_t bytes, device_staging *s) {
    cairn_status status = CAIRN_OK;
    memset(s, 0, sizeof *s);
    s->bytes = bytes;
    for (int i = 0; i < DEV_STAGES && !status; i++) {
        status = device_host_alloc(dev, bytes, "staging", &s->memory[i]);
        if (!status && dev->cuda) DEV_TRY(dev, cuEventCreate(&s->done[i], CU_EVENT_DISABLE_TIMING));
    }
    return status;
}

static void device_staging_close(device *dev, device_staging *s) {
    for (int i = 0; i < DEV_STAGES; i++) {
        if (s->in_flight[i]) dev->drv->cuEventSynchronize(s->done[i]);
        if (s->done[i]) dev->drv->cuEventDestroy(s->done[i]);
        device_host_free(dev, s->memory[i], s->bytes);
    }
}

/* True when the host has since waited for the work that reads the buffer: the driver, which takes a
 * microsecond to answer, need not be asked. */
static bool device_staging_waited(const device *dev, const device_staging *s, int i) {
    return s->stream[i] == dev->synced_stream && s->submitted[i] <= dev->synced;
}

static cairn_status device_staging_take(device *dev, device_staging *s, const char *op, int *out) {
    for (int i = 0; i < DEV_STAGES; i++) {
        CUresult result = CUDA_SUCCESS;
        if (s->in_flight[i] && !device_staging_waited(dev, s, i))
            result = dev->drv->cuEventQuery(s->done[i]);
        if (result == CUDA_ERROR_NOT_READY) continue;
        if (result) return driver_fail(dev->base, dev->drv, result, "cuEventQuery");
        s->in_flight[i] = false;
        return *out = i, CAIRN_OK;
    }
    return base_fail(dev->base, CAIRN_BUSY,
                     "%s: the device has yet to read both staging buffers; nothing was written", op);
}

static cairn_status device_staging_submit(device *dev, device_staging *s, int i) {
    if (!dev->cuda) return CAIRN_OK;
    DEV_TRY(dev, cuEventRecord(s->done[i], dev->stream));
    s->in_flight[i] = true;
    s->stream[i] = dev->stream;
    s->submitted[i] = ++dev->submitted;
    return CAIRN_OK;
}

static cairn_status device_staging_await(device *dev, device_staging *s, int i) {
    if (s->in_flight[i]) DEV_TRY(dev, cuEventSynchronize(s->done[i]));
    s->in_flight[i] = false;
    return CAIRN_OK;
}

/* ---- graphs ---------------------------------------------------------------------------------- */

static cairn_status device_graph_begin(device *dev) {
    DEV_TRY(dev, cuStreamBeginCapture(dev->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    return CAIRN_OK;
}

static cairn_status device_graph_end(device *dev, device_graph *out) {
    CUgraph graph = NULL;
    CUresult result;
    out->exec = NULL;
    DEV_TRY(dev, cuStreamEndCapture(dev->stream, &graph));
    result = dev->drv->cuGraphInstantiate(&out->exec, graph, 0);
    dev->drv->cuGraphDestroy(graph);
    return result ? driver_fail(dev->base, dev->drv, result, "cuGraphInstantiate") : CAIRN_OK;
}

static void device_graph_abandon(device *dev) {
    CUgraph graph = NULL;
    dev->drv->cuStreamEndCapture(dev->stream, &graph);
    if (graph) dev->drv->cuGraphDestroy(graph);
}

static cairn_status device_graph_launch(device *dev, const device_graph *graph) {
    DEV_TRY(dev, cuGraphLaunch(graph->exec, dev->stream));
    return CAIRN_OK;
}

static void device_graph_free(device *dev, device_graph *graph) {
    if (graph->exec) dev->drv->cuGraphExecDestroy(graph->exec);
    graph->exec = NULL;
}
