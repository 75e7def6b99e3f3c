/* handles: the runtime itself, and the objects that it hands out.
 *
 * Every object is in one of the runtime's lists, so that cairn_close frees what the host program
 * forgot. Public calls make the context current (handles_enter) and leave it. */

/* With a worker (config) threads take turns: a call holds the runtime to itself from handles_hold
 * to handles_drop. While a forward computes the holder lets calls beside it, which touch nothing that
 * the forward does; handles_hold waits for its end. Without a worker nothing of this is used. */
typedef struct handles_turns {
    bool shared;    /* there is a worker */
    bool computing; /* the mutex is released, the turn is not over */
    int waiting;    /* for the end of that */
    os_atomic coming; /* threads that want the mutex */
    os_mutex mutex;
    os_cond changed;
} handles_turns;

struct cairn_runtime {
    struct base base;
    cairn_config config; /* in force, "auto" resolved */
    struct driver_calls drv;
    struct cache cache;
    struct jit *jit;
    struct pool *pool;
    struct device device;
    tensor_owned *tensors;
    cairn_stream *streams;
    cairn_event *events;
    cairn_graph *graphs;
    cairn_staging *stagings;
    cairn_model *models;
    cairn_page_pool *page_pools;
    cairn_page_tables *page_tables;
    cairn_prefix_cache *prefix_caches;
    cairn_config *reload; /* waits for kernels, or NULL */
    struct ops_kernel *kernels; /* instances that ops have launched */
    struct handles_turns turns;
    struct worker_thread *worker; /* or NULL */
    bool capturing;
    os_atomic loading; /* loads that run, whose callbacks may close the runtime */
    bool closing; /* closed inside a callback: it goes when the call has ended */
};

/* What a call cannot do without: the runtime, and the pointer `given` as its argument `name`. */
static cairn_status handles_need(cairn_runtime *rt, const char *call, const void *given,
                                 const char *name);
/* Begins and ends a turn; all that wait for a change look again at its end. */
static void handles_hold(cairn_runtime *rt);
static void handles_drop(cairn_runtime *rt);
/* As handles_hold, but maybe beside a forward. Once begun so, handles_settle waits for that. */
static void handles_hold_beside(cairn_runtime *rt);
static void handles_settle(cairn_runtime *rt);
/* Inside a turn: others go on until handles_retake. compute: on nothing that a forward touches. */
static void handles_release(cairn_runtime *rt, bool compute);
static void handles_retake(cairn_runtime *rt, bool compute);
/* Inside a turn: releases it until something has changed, `us` at most; 0: for any time. */
static void handles_wait(cairn_runtime *rt, int64_t us);

/* Begins a public call that works on the device. What succeeded owes one handles_leave. */
static cairn_status handles_enter(cairn_runtime *rt);
/* Leaves the context and hands the status through. */
static cairn_status handles_leave(cairn_runtime *rt, cairn_status status);
/* Frees every handle; for cairn_close, also on a device that fails every call. */
static void handles_free_all(cairn_runtime *rt);

/* Copies a caller's argument struct of an older or newer header into ours: what is missing is zero,
 * what is unknown must be zero. */
static cairn_status args_take(base *b, const char *op, void *ours, size_t our_bytes,
                              const void *theirs);
