/* trace: named ranges of the host's time and, on a GPU, of the device's, for a viewer of Chrome traces.
 *
 * device.trace is NULL while no trace is taken: then nothing of this is called. Ranges of one runtime are
 * opened and shut inside its turns (handles.h), and nest. A range may have an interval: what the device
 * did in the current stream meanwhile. Past the room for events they are counted, no more. Each is also a
 * range of NVTX, of the thread that opens and shuts it, where its library is found: of CAIRN_NVTX_PATH,
 * else the system's. */

typedef struct trace_event {
    const char *name; /* a literal */
    int64_t from, until; /* microseconds; until 0: it is open */
    int32_t rows;        /* 0: it has none */
    CUevent begun, ended; /* of the interval, or NULL */
} trace_event;

typedef struct trace {
    trace_event *events; /* [most] */
    int most, count;
    int64_t dropped;
    int64_t zero_us;  /* when the device reached `zero` */
    CUevent zero;
    int op_event;     /* of the op that runs, or -1 */
    void *nvtx;       /* its library, or NULL: then there is no push, and no pop */
    int (*push)(const char *name);
    int (*pop)(void);
} trace;

/* The number of a new range; -1: no trace is taken. */
#define TRACE_OPEN(dev, name, interval) ((dev)->trace ? trace_open(dev, name, interval) : -1)
#define TRACE_SHUT(dev, at, rows) do { if ((at) >= 0) trace_shut(dev, at, rows); } while (0)

/* By TRACE_OPEN, where there is a trace. */
static int trace_open(device *dev, const char *name, bool interval);
/* What was open when a trace ended is no range of the next. */
static void trace_shut(device *dev, int at, int rows);
/* Other ops begin and end within the one that runs, until it is told that it goes on. */
static int trace_pause(device *dev);
static void trace_resume(device *dev, int op);
/* The op that began is none: it was refused, or had nothing to do. */
static void trace_drop_op(trace *t);
/* Begins one of up to `most` ranges, in place of one that is taken. Inside an entered device. */
static cairn_status trace_start(device *dev, int most);
/* Ends it; nothing happens without one. */
static void trace_stop(device *dev);
/* All ranges that are shut, as JSON; waits for the device. */
static cairn_status trace_print(device *dev, base_text *out);
