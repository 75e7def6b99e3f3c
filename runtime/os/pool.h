/* pool: the CPU threads of a runtime, and the SIMD level its kernels run at.
 *
 * One owner thread at a time gives work; it takes part as worker 0 and returns when all is done.
 * Two ways to run: pool_run hands out indices, to be finished in any order by any worker;
 * pool_each calls the task once on every worker at the same time, so that the task may meet its
 * peers at pool_barrier. Work may not start other work on the same pool.
 *
 * Waiting spins for a short while, since stages of a decode step last microseconds, then sleeps, so
 * that an idle pool costs nothing. Calls base and os. */

enum { SIMD_SCALAR = 0, SIMD_AVX2 = 1, SIMD_AVX512 = 2, SIMD_NEON = 3 };

typedef void (*pool_task)(void *context, int index);

typedef struct pool pool;

/* How many a pool of `threads` has if the system gives them; 0: as many as this process may run on. */
static int pool_count(int threads);
/* Starts the threads; 0: as many as this process may run on. Fewer than asked for is no error. */
static cairn_status pool_open(base *b, int threads, pool **out);
/* Stops and joins the threads; `p` is gone. */
static void pool_close(pool *p);

/* How many work, the owner included. */
static int pool_threads(const pool *p);
/* Calls task(context, index) once for each index below count. */
static void pool_run(pool *p, int count, pool_task task, void *context);
/* Calls task(context, worker) for worker 0 to pool_threads - 1, all at the same time. */
static void pool_each(pool *p, pool_task task, void *context);
/* Inside pool_each: returns when every worker has come here. What each wrote before, all see. */
static void pool_barrier(pool *p);
/* The best level of this machine. The environment variable CAIRN_SIMD (scalar, avx2, avx512) can
 * only lower it; asked for on each call, so that a test can compare levels in one process. */
static int pool_simd(void);
/* Whether the processor multiplies bytes in vectors of 512 bits (AVX512_VNNI). */
static bool pool_has_vnni(void);
