/* pool: gates that threads wait at, and the threads. */
/* ---- SIMD level ------------------------------------------------------------------------------ */

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
    return SIMD_AVX512;
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
    os_mutex mutex;
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
 * pool_gate_add changes the value before it counts sleepers, so no wake-up is lost. */
static void pool_gate_wait(pool_gate *gate, int32_t seen) {
    for (int spin = 0; spin < POOL_SPINS; spin++) {
        if (os_atomic_load(&gate->value) != seen) return;
        BASE_PAUSE();
    }
    os_mutex_lock(&gate->mutex);
    os_atomic_add(&gate->sleepers, 1);
    while (os_atomic_load(&gate->value) == seen) os_cond_wait(&gate->cond, &gate->mutex);
    os_atomic_add(&gate->sleepers, -1);
    os_mutex_unlock(&gate->mutex);
}

/* Adds one (values wrap) and wakes whoever sleeps. */
static void pool_gate_add(pool_gate *gate) {
    os_atomic_add(&gate->value, 1);
    if (!os_atomic_load(&gate->sleepers)) return;
    os_mutex_lock(&gate->mutex);
    os_cond_broadcast(&gate->cond);
    os_mutex_unlock(&gate->mutex);
}

/* ---- pool ------------------------------------------------------------------------------------ */

typedef struct pool_worker { os_thread thread; struct pool *pool; int index; } pool_worker;

struct pool {
    base *b;
    int threads;             /* the owner included */
    int capacity;            /* of workers */
    pool_worker *workers;    /* workers[0] is the owner and has no thread */
    pool_gate start, meet;   /* a run begins; all have met */
    os_atomic met;           /* workers that wait at the barrier */
    os_atomic next;          /* pool_run: the next index to take */
    pool_task task;
    void *context;
    int count;
    bool stop;
};

static int pool_threads(const pool *p) { return p->threads; }

static void pool_barrier(pool *p) {
    int32_t seen;
    if (p->threads == 1) return;
    seen = os_atomic_load(&p->meet.value);
    if (os_atomic_add(&p->met, 1) == p->threads - 1) {
        os_atomic_store(&p->met, 0);
        pool_gate_add(&p->meet);
    } else {
        pool_gate_wait(&p->meet, seen);
    }
}

static void pool_work(void *context) {
    pool_worker *worker = (pool_worker *)context;
    pool *p = worker->pool;
    int32_t seen = 0;
    for (;;) {
        pool_gate_wait(&p->start, seen++);
        if (p->stop) return;
        p->task(p->context, worker->index);
        pool_barrier(p);
    }
}

static void pool_each(pool *p, pool_task task, void *context) {
    if (p->threads > 1) {
        p->task = task;
        p->context = context;
        pool_gate_add(&p->start);
    }
    task(context, 0);
    pool_barrier(p);
}

typedef struct pool_indices { pool *owner; pool_task task; void *context; int count; } pool_indices;

static void pool_take(void *context, int worker) {
    pool_indices *all = (pool_indices *)context;
    int index;
    (void)worker;
    while ((index = os_atomic_add(&all->owner->next, 1)) < all->count)
        all->task(all->context, index);
}

static void pool_run(pool *p, int count, pool_task task, void *context) {
    pool_indices all;
    int index;
    all.owner = p;
    all.task = task;
    all.context = context;
    all.count = count;
    if (p->threads == 1 || count <= 1) {
        for (index = 0; index < count; index++) task(context, index);
        return;
    }
    os_atomic_store(&p->next, 0);
    pool_each(p, pool_take, &all);
}

static void pool_close(pool *p) {
    base *b = p->b;
    p->stop = true;
    if (p->threads > 1) pool_gate_add(&p->start);
    for (int i = 1; i < p->threads; i++) os_thread_join(&p->workers[i].thread);
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

static cairn_status pool_open(base *b, int threads, pool **out) {
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
    p->threads = 1;
    p->capacity = threads;
    pool_gate_open(&p->start);
    pool_gate_open(&p->meet);
    pool_start(p);
    *out = p;
    return CAIRN_OK;
}
