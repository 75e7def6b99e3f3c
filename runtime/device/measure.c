/* measure: what this device can do at best, measured now: the ceiling of every bench line. */

enum { MEASURE_BYTES = 1 << 30, MEASURE_RUNS = 11, MEASURE_STAGES = 100 };

static int measure_compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double measure_median(double *samples, int count) {
    qsort(samples, (size_t)count, sizeof *samples, measure_compare);
    return samples[count / 2];
}

typedef struct measure_job { char *bytes; size_t size; int pieces; uint64_t *sums; } measure_job;

static void measure_read_task(void *context, int index) {
    measure_job *job = (measure_job *)context;
    const char *at = job->bytes + job->size / (size_t)job->pieces * (size_t)index;
    const char *end = at + job->size / (size_t)job->pieces;
    uint64_t sum = 0, word;
    for (; at + 8 <= end; at += 8) {
        memcpy(&word, at, 8);
        sum += word;
    }
    job->sums[index * 8] = sum; /* apart, so that threads share no cache line */
}

/* The first half of the bytes to the second. */
static void measure_copy_task(void *context, int index) {
    measure_job *job = (measure_job *)context;
    size_t half = job->size / 2, part = half / (size_t)job->pieces;
    char *to = job->bytes + half + part * (size_t)index;
    memcpy(to, to - half, part);
}

static double measure_cpu_rate(device *dev, pool_task task, measure_job *job) {
    double rates[MEASURE_RUNS];
    int i;
    for (i = 0; i < MEASURE_RUNS; i++) {
        int64_t start = os_now_us();
        pool_run(dev->pool, job->pieces, task, job);
        rates[i] = (double)job->size / ((double)(os_now_us() - start) + 0.5) * 1e6;
    }
    return measure_median(rates, MEASURE_RUNS);
}

static cairn_status measure_cpu(device *dev, cairn_floor *floor) {
    size_t bytes = MEASURE_BYTES / 4;
    measure_job job;
    void *memory, *sums;
    cairn_status status = device_alloc(dev, bytes, "measure", &memory);
    if (status) return status;
    job.pieces = pool_threads(dev->pool);
    status = device_alloc(dev, (size_t)job.pieces * 64, "measure", &sums);
    if (!status) {
        memset(memory, 1, bytes);
        job.bytes = (char *)memory;
        job.size = bytes;
        job.sums = (uint64_t *)sums;
        floor->read_bytes_per_second = measure_cpu_rate(dev, measure_read_task, &job);
        floor->copy_bytes_per_second = measure_cpu_rate(dev, measure_copy_task, &job);
        device_free(dev, sums, (size_t)job.pieces * 64);
    }
    device_free(dev, memory, bytes);
    return status;
}

typedef struct measure_gpu {
    device *dev;
    CUevent start, stop;
    jit_kernel read, copy, empty;
    measure_params params;
} measure_gpu;

static cairn_status measure_elapsed(measure_gpu *m, double *us) {
    device *dev = m->dev;
    float ms = 0;
    DEV_TRY(dev, cuEventRecord(m->stop, dev->stream));
    DEV_TRY(dev, cuEventSynchronize(m->stop));
    DEV_TRY(dev, cuEventElapsedTime(&ms, m->start, m->stop));
    *us = (double)ms * 1000;
    return CAIRN_OK;
}

/* Bytes a second of a kernel that moves MEASURE_BYTES. */
static cairn_status measure_rate(measure_gpu *m, const jit_kernel *kernel, unsigned blocks,
                                 unsigned threads, double *rate) {
    device *dev = m->dev;
    device_dims dims = {{1, 1, 1}, 0, 0, 0, false};
    double rates[MEASURE_RUNS], us = 0;
    cairn_status status;
    int i;
    dims.grid[0] = blocks;
    dims.block = threads;
    for (i = -2; i < MEASURE_RUNS; i++) {
        DEV_TRY(dev, cuEventRecord(m->start, dev->stream));
        if ((status = device_launch(dev, kernel, &dims, &m->params)) ||
            (status = measure_elapsed(m, &us)))
            return status;
        if (i >= 0) rates[i] = (double)MEASURE_BYTES / us * 1e6;
    }
    *rate = measure_median(rates, MEASURE_RUNS);
    return CAIRN_OK;
}

/* The time of one empty kernel among MEASURE_STAGES in a graph. */
static cairn_status measure_stage(measure_gpu *m, bool dependent, double *stage_us) {
    device *dev = m->dev;
    device_dims dims = {{132, 1, 1}, 256, 0, 0, false};
    double samples[MEASURE_RUNS], us = 0;
    device_graph graph;
    cairn_status status;
    int i;
    dims.grid[0] = (unsigned)dev->sm_count;
    dims.dependent = dependent;
    if ((status = device_graph_begin(dev))) return status;
    for (i = 0; i < MEASURE_STAGES && !status; i++)
        status = device_launch(dev, &m->empty, &dims, &m->params);
    if (status) {
        device_graph_abandon(dev);
        return status;
    }
    if ((status = device_graph_end(dev, &graph))) return status;
    for (i = -2; i < MEASURE_RUNS && !status; i++) {
        CUresult result = dev->drv->cuEventRecord(m->start, dev->stream);
        if (result) status = driver_fail(dev->base, dev->drv, result, "cuEventRecord");
        if (!status) status = device_graph_launch(dev, &graph);
        if (!status) status = measure_elapsed(m, &us);
        if (i >= 0) samples[i] = us / MEASURE_STAGES;
    }
    device_graph_free(dev, &graph);
    if (!status) *stage_us = measure_median(samples, MEASURE_RUNS);
    return status;
}

static cairn_status measure_kernels(measure_gpu *m) {
    jit_request request;
    jit_program *program;
    cairn_status status;
    memset(&request, 0, sizeof request);
    request.source = "device/measure.cu";
    if ((status = jit_get(m->dev->jit, &request, &program))) return status;
    if ((status = jit_function(m->dev->jit, program, "measure_read", 0, &m->read)) ||
        (status = jit_function(m->dev->jit, program, "measure_copy", 0, &m->copy)))
        return status;
    return jit_function(m->dev->jit, program, "measure_empty", 0, &m->empty);
}

/* Times the launch of one kernel from the host, waited for. */
static cairn_status measure_launch(measure_gpu *m, cairn_floor *floor) {
    device *dev = m->dev;
    device_dims dims = {{1, 1, 1}, 256, 0, 0, false};
    double samples[MEASURE_RUNS];
    cairn_status status = CAIRN_OK;
    int i, j;
    for (i = -2; i < MEASURE_RUNS; i++) {
        int64_t start = os_now_us();
        for (j = 0; j < 20; j++)
            if ((status = device_launch(dev, &m->empty, &dims, &m->params)) || (status = device_sync(dev)))
                return status;
        if (i >= 0) samples[i] = (double)(os_now_us() - start) / 20;
    }
    floor->launch_us = measure_median(samples, MEASURE_RUNS);
    return CAIRN_OK;
}

static cairn_status measure_cuda(device *dev, cairn_floor *floor) {
    measure_gpu m;
    void *words = NULL, *sink = NULL;
    cairn_status status;
    memset(&m, 0, sizeof m);
    m.dev = dev;
    if ((status = measure_kernels(&m))) return status;
    status = device_alloc(dev, MEASURE_BYTES, "measure", &words);
    if (!status) status = device_alloc(dev, 4, "measure", &sink);
    if (!status) status = device_zero(dev, words, MEASURE_BYTES);
    if (!status && (dev->drv->cuEventCreate(&m.start, 0) || dev->drv->cuEventCreate(&m.stop, 0)))
        status = base_fail(dev->base, CAIRN_DEVICE_ERROR, "measure: cuEventCreate failed");
    m.params.words = words;
    m.params.sink = (uint32_t *)sink;
    m.params.count = MEASURE_BYTES / 16;
    m.params.never = 12345;
    if (!status) status = measure_rate(&m, &m.read, (unsigned)dev->sm_count * 4, 512,
                                       &floor->read_bytes_per_second);
    if (!status) status = measure_rate(&m, &m.copy, MEASURE_BYTES / 32 / 256, 256,
                                       &floor->copy_bytes_per_second);
    if (!status) status = measure_launch(&m, floor);
    if (!status) status = measure_stage(&m, false, &floor->stage_us);
    if (!status) status = measure_stage(&m, true, &floor->dependent_stage_us);
    if (m.start) dev->drv->cuEventDestroy(m.start);
    if (m.stop) dev->drv->cuEventDestroy(m.stop);
    device_free(dev, sink, 4);
    device_free(dev, words, MEASURE_BYTES);
    return status;
}

cairn_status cairn_measure(cairn_runtime *rt, cairn_floor *floor) {
    cairn_floor ours;
    uint32_t bytes;
    cairn_status status = handles_need(rt, "measure", floor, "floor");
    if (status || (status = handles_enter(rt))) return status;
    bytes = floor->struct_size;
    memset(&ours, 0, sizeof ours);
    status = rt->device.cuda ? measure_cuda(&rt->device, &ours) : measure_cpu(&rt->device, &ours);
    ours.struct_size = bytes;
    if (!status) memcpy(floor, &ours, bytes < sizeof ours ? bytes : sizeof ours);
    return handles_leave(rt, status);
}
