/* pool: gates that threads wait at, and the threads. */
/* ---- SIMD level ------------------------------------------------------------------------------ */

#ifdef CAIRN_NO_AVX512 /* leaves out an eighth of the code */
enum { POOL_WIDEST = SIMD_AVX2 };
#else
enum { POOL_WIDEST = SIMD_AVX512 };
#endif
#if BASE_X86
enum {
    POOL_AVX = 7 << 27 | 1 << 12,            /* leaf 1, ecx: osxsave, avx, f16c; fma */
    POOL_AVX2 = 1 << 5,                      /* leaf 7, ebx; so the next */
    POOL_AVX512_LOW = 3 << 16 | 1 << 30,     /* f, dq, bw */
    POOL_SAVES_AVX = 6, POOL_SAVES_AVX512 = 0xe6 /* what the system keeps across its switches */
};

/* The processor and the system are asked: the compilers' own question knows not every name, and
 * with Microsoft's linker needs a library that is not linked. */
static int pool_simd_here(void) {
    unsigned a, b, c, d, kept, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || ~c & POOL_AVX) return SIMD_SCALAR;
    __asm__ volatile("xgetbv" : "=a"(kept), "=d"(high) : "c"(0));
    if (~kept & POOL_SAVES_AVX || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || ~b & POOL_AVX2)
        return SIMD_SCALAR;
    if (~kept & POOL_SAVES_AVX512 || ~b & POOL_AVX512_LOW || !(b >> 31)) return SIMD_AVX2; /* vl */
    return POOL_WIDEST;
}
#else
static int pool_simd_here(void) { return BASE_NEON ? SIMD_NEON : SIMD_SCALAR; }
#endif

/* Asked once: the instruction is trapped on a virtual machine, for longer than a small op takes. */
static int pool_simd_known(void) {
    static os_atomic known; /* 1 + the answer */
    if (!os_atomic_load(&known)) os_atomic_store(&known, 1 + pool_simd_here());
    return os_atomic_load(&known) - 1;
}

static bool pool_has_vnni(void) {
#if BASE_X86
    static os_atomic known; /* 1 + the answer */
    unsigned a, b, c, d;
    if (!os_atomic_load(&known))
        os_atomic_store(&known, 1 + (__get_cpuid_count(7, 0, &a, &b, &c, &d) && c >> 11 & 1));
    return os_atomic_load(&known) == 2;
#else
    return false;
#endif
}

static int pool_simd(void) {
    const char *wish = os_env("CAIRN_SIMD");
    int here = pool_simd_known();
    if (!wish) return here;
    if (!strcmp(wish, "scalar")) return SIMD_SCALAR;
    if (!strcmp(wish, "avx2") && here == SIMD_AVX512) return SIMD_AVX2;
    return here;
}

/* ---- gates: a number to wait on -------------------------------------------------------------- */

enum { POOL_SPINS = 2000 /* of about 25 ns: 50 us */, POOL_MAX_THREADS = 256 };

typedef struct pool_gate {
    os_atomic value, sleepers;
    os_mutex mutex; /* where the system cannot wait on a number */
    os_cond cond;
} pool_gate;

static void pool_gate_open(pool_gate *gate) {
    os_atomic_store(&gate->value, 0);
    os_atomic_store(&gate->sleepers, 0);
    os_mutex_init(&gate->mutex);
    os_cond_init(&gate->cond);
}

static void pool_gate_close(pool_gate *gate) {
    os_cond_destroy(&gate->cond);
    os_mutex_destroy(&gate->mutex);
}

/* Returns once the value differs from `seen`. A sleeper counts itself before it looks again, and
 * pool_gate_add changes the value before it counts sleepers, so no wake-up is lost. Those who wait for a
 * number wake at once, at a condition one after the other, as each gets its mutex. */
static void pool_gate_sleep(pool_gate *gate, int32_t seen) {
    os_atomic_add(&gate->sleepers, 1);
#ifdef __linux__
    while (os_atomic_load(&gate->value) == seen) os_futex(&gate->value, OS_FUTEX_WAIT, seen, NULL);
#else
    os_mutex_lock(&gate->mutex);
    while (os_atomic_load(&gate->value) == seen) os_cond_wait(&gate->cond, &gate->mutex);
    os_mutex_unlock(&gate->mutex);
#endif
    os_atomic_add(&gate->sleepers, -1);
}

static void pool_gate_wait(pool_gate *gate, int32_t seen) {
    for (int spin = 0; spin < POOL_SPINS; spin++) {
        if (os_atomic_load(&gate->value) != seen) return;
        BASE_PAUSE();
    }
    pool_gate_sleep(gate, seen);
}

/* Adds one (values wrap) and wakes whoever sleeps. */
static void pool_gate_add(pool_gate *gate) {
    os_atomic_add(&gate->value, 1);
    if (!os_atomic_load(&gate->sleepers)) return;
#ifdef __linux__
    os_futex(&gate->value, OS_FUTEX_WAKE, INT_MAX, NULL);
#else
    os_mutex_lock(&gate->mutex);
    os_cond_broadcast(&gate->cond);
    os_mutex_unlock(&gate->mutex);
#endif
}

/* ---- pool ------------------------------------------------------------------------------------ */

/* What pool.state holds: the stage's number, which wraps, above these. */
enum {
    POOL_INSIDE = 1023,  /* threads in the stage */
    POOL_DONE = 1 << 10, /* nothing of it is left to take */
    POOL_LAST = 1 << 11, /* no stage follows */
    POOL_OPEN = 1 << 12, /* a run is on */
    POOL_STAGE = 1 << 13
};

/* A thread's own: nobody else reads it. */
typedef struct pool_worker {
    os_thread thread;
    struct pool *pool;
    int index;
    int run;           /* that its task is of */
    int stage, joined; /* of the run: where its task is, and which one it is inside */
    bool inside;
    jmp_buf out;       /* of a task whose run has ended without it */
} pool_worker;

struct pool {
    base *b;
    int threads;             /* the owner included */
    int capacity;            /* of workers */
    bool low;
    pool_worker *workers;    /* workers[0] is the owner and has no thread */
    pool_gate start, meet;   /* a run begins; a stage has ended */
    os_atomic state, stop;
    os_atomic next[2];       /* to be taken of this stage, and of the one after it */
    /* of the run; written while none is on, read by those inside */
    int run, most;
    uint32_t first;          /* the number of its first stage */
    pool_task task;
    void *context;
};

static int pool_threads(const pool *p) { return p->threads; }

static uint32_t pool_stage(pool *p) { return (uint32_t)os_atomic_load(&p->state) / POOL_STAGE; }

/* Goes into the stage that is on, of whatever run; false: none is. */
static bool pool_join(pool *p, pool_worker *w) {
    int32_t state;
    do {
        state = os_atomic_load(&p->state);
        w->inside = (state & POOL_OPEN) != 0;
        if (!w->inside) return false;
    } while (!os_atomic_swap_if(&p->state, state, state + 1));
    w->joined = (int)(((uint32_t)state / POOL_STAGE - p->first) % (UINT32_MAX / POOL_STAGE + 1));
    return true;
}

/* Leaves its stage; done: nothing of it is left. The last one out ends a stage that is done. Returns
 * whether it did. */
static bool pool_leave(pool *p, pool_worker *w, int32_t done) {
    uint32_t state, next;
    bool ends;
    if (done) os_atomic_store(&p->next[(pool_stage(p) + 1) % 2], 0);
    do {
        state = (uint32_t)os_atomic_load(&p->state);
        next = (state | (uint32_t)done) - 1;
        ends = !(next & POOL_INSIDE) && next & POOL_DONE;
        if (ends)
            next = (state / POOL_STAGE + 1) * POOL_STAGE + (next & POOL_LAST ? 0 : POOL_OPEN);
    } while (!os_atomic_swap_if(&p->state, (int32_t)state, (int32_t)next));
    if (ends) pool_gate_add(&p->meet);
    w->inside = false;
    return ends;
}

/* Returns when that stage has ended. */
static void pool_await(pool *p, uint32_t stage) {
    for (int spin = 0; spin < POOL_SPINS && pool_stage(p) == stage; spin++) BASE_PAUSE();
    while (pool_stage(p) == stage && !os_atomic_load(&p->stop)) {
        int32_t seen = os_atomic_load(&p->meet.value);
        if (pool_stage(p) == stage) pool_gate_sleep(&p->meet, seen);
    }
}

static int pool_next(pool *p, int worker) {
    const pool_worker *w = &p->workers[worker];
    if (w->stage != w->joined) return INT_MAX;
    return os_atomic_add(&p->next[pool_stage(p) % 2], 1);
}

static bool pool_takes_part(const pool *p, int worker) {
    return p->workers[worker].stage == p->workers[worker].joined;
}

static void pool_meet(pool *p, int worker) {
    pool_worker *w = &p->workers[worker];
    uint32_t stage;
    if (w->stage++ < w->joined) return;
    stage = pool_stage(p);
    if (!pool_leave(p, w, POOL_DONE)) pool_await(p, stage);
    if (!pool_join(p, w) || p->run != w->run) longjmp(w->out, 1);
}

/* The task, by a thread that is inside; what it works on stands while some thread is. So one that
 * comes to a stage after the last leaves the task where it is. */
static void pool_do(pool *p, pool_worker *w) {
    w->run = p->run;
    w->stage = 0;
    if (setjmp(w->out) == 0) {
        uint32_t stage;
        if (w->index >= p->most) longjmp(w->out, 1);
        p->task(p->context, w->index);
        stage = pool_stage(p);
        if (!pool_leave(p, w, POOL_DONE | POOL_LAST) && !w->index) pool_await(p, stage);
    } else if (w->inside) {
        pool_leave(p, w, 0);
    }
}

static void pool_work(void *context) {
    pool_worker *w = (pool_worker *)context;
    pool *p = w->pool;
    if (p->low) os_thread_lower();
    for (;;) {
        int32_t seen = os_atomic_load(&p->start.value);
        if (os_atomic_load(&p->stop)) return;
        if (pool_join(p, w)) pool_do(p, w);
        pool_gate_wait(&p->start, seen);
    }
}

static void pool_each(pool *p, int most, pool_task task, void *context) {
    p->task = task;
    p->context = context;
    p->most = most;
    p->run++;
    p->first = pool_stage(p);
    p->workers->inside = true;
    p->workers->joined = 0;
    os_atomic_store(&p->next[p->first % 2], 0);
    os_atomic_store(&p->state, (int32_t)(p->first * POOL_STAGE + POOL_OPEN + 1));
    if (p->threads > 1 && most > 1) pool_gate_add(&p->start);
    pool_do(p, p->workers);
}

typedef struct pool_indices { pool *owner; pool_task task; void *context; int count; } pool_indices;

static void pool_take(void *context, int worker) {
    pool_indices *all = (pool_indices *)context;
    int index;
    while ((index = pool_next(all->owner, worker)) < all->count) all->task(all->context, index);
}

static void pool_run(pool *p, int count, pool_task task, void *context) {
    pool_indices all;
    int index;
    all.owner = p;
    all.task = task;
    all.context = context;
    all.count = count;
    if (!p || p->threads == 1 || count <= 1) {
        for (index = 0; index < count; index++) task(context, index);
        return;
    }
    pool_each(p, p->threads, pool_take, &all);
}

/* ---- threads --------------------------------------------------------------------------------- */

/* Ends and joins all but the owner. */
static void pool_stop(pool *p) {
    os_atomic_store(&p->stop, 1);
    pool_gate_add(&p->start);
    pool_gate_add(&p->meet);
    for (int i = 1; i < p->threads; i++) os_thread_join(&p->workers[i].thread);
    os_atomic_store(&p->stop, 0);
    p->threads = 1;
}

static void pool_close(pool *p) {
    base *b = p->b;
    pool_stop(p);
    pool_gate_close(&p->start);
    pool_gate_close(&p->meet);
    base_delete(b, p->workers, (size_t)p->capacity, sizeof *p->workers);
    base_delete(b, p, 1, sizeof *p);
}

/* Starts what it can; the system giving fewer threads than asked for is not an error. */
static void pool_start(pool *p) {
    for (int i = 1; i < p->capacity; i++) {
        p->workers[i].pool = p;
        p->workers[i].index = i;
        if (!os_thread_start(&p->workers[i].thread, 0, pool_work, &p->workers[i])) {
            base_log(p->b, CAIRN_LOG_WARN, "the system gives %d threads of %d", i, p->capacity);
            return;
        }
        p->threads = i + 1;
    }
}

static int pool_count(int threads) {
    if (threads <= 0) threads = os_cpu_count();
    return threads > POOL_MAX_THREADS ? POOL_MAX_THREADS : threads;
}

static void pool_resize(pool *p, int threads) {
    pool_worker *workers;
    threads = pool_count(threads);
    if (threads == p->capacity) return;
    workers = (pool_worker *)base_new(p->b, (size_t)threads, sizeof *workers);
    if (!workers) {
        base_log(p->b, CAIRN_LOG_WARN, "no memory for %d threads: %d go on", threads, p->threads);
        return;
    }
    pool_stop(p);
    base_delete(p->b, p->workers, (size_t)p->capacity, sizeof *p->workers);
    p->workers = workers;
    p->capacity = threads;
    pool_start(p);
}

static cairn_status pool_open(base *b, int threads, bool low, pool **out) {
    pool *p = (pool *)base_new(b, 1, sizeof *p);
    *out = NULL;
    threads = pool_count(threads);
    if (!p) return base_no_memory(b, "thread pool", sizeof *p);
    p->workers = (pool_worker *)base_new(b, (size_t)threads, sizeof *p->workers);
    if (!p->workers) {
        base_delete(b, p, 1, sizeof *p);
        return base_no_memory(b, "thread pool", (size_t)threads * sizeof *p->workers);
    }
    p->b = b;
    p->low = low;
    p->threads = 1;
    p->capacity = threads;
    pool_gate_open(&p->start);
    pool_gate_open(&p->meet);
    pool_start(p);
    *out = p;
    return CAIRN_OK;
}
