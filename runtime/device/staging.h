/* device_staging: host arrays that kernels read in place, one buffer filled while the device
 * reads the other; and device_graph: work captured once and launched again. */

enum { DEV_STAGES = 2 };

/* Pinned buffers that kernels read in place. One is free when the work that reads it is done. */
typedef struct device_staging {
    size_t bytes; /* of each */
    void *memory[DEV_STAGES];
    CUevent done[DEV_STAGES]; /* after the work that reads the buffer */
    bool in_flight[DEV_STAGES];
    CUstream stream[DEV_STAGES];    /* where that work is */
    uint64_t submitted[DEV_STAGES]; /* its number */
} device_staging;

typedef struct device_graph { CUgraphExec exec; } device_graph;

/* ---- staging: pinned buffers, one filled while the device reads the other -------------------- */

/* `bytes` is the size of each buffer. */
static cairn_status device_staging_open(device *dev, size_t bytes, device_staging *s);
/* Also after an open that failed. */
static void device_staging_close(device *dev, device_staging *s);
/* The number of a buffer that may be written; CAIRN_BUSY when there is none. Never waits. */
static cairn_status device_staging_take(device *dev, device_staging *s, const char *op, int *out);
/* After the work that reads buffer i was enqueued on the current stream. */
static cairn_status device_staging_submit(device *dev, device_staging *s, int i);
/* Returns when the device is done with buffer i. [blocks] */
static cairn_status device_staging_await(device *dev, device_staging *s, int i);

/* ---- graphs ---------------------------------------------------------------------------------- */

/* Begins a capture; other threads' calls do not disturb it. */
static cairn_status device_graph_begin(device *dev);
/* Ends the capture with a graph that can be launched any number of times. */
static cairn_status device_graph_end(device *dev, device_graph *out);
/* After a failure between begin and end: leaves capture mode, keeps the message. */
static void device_graph_abandon(device *dev);
/* Enqueues the captured work on the current stream. */
static cairn_status device_graph_launch(device *dev, const device_graph *graph);
/* An empty graph is left as it is. */
static void device_graph_free(device *dev, device_graph *graph);
