/* pool: the CPU threads of a runtime, and the SIMD level its kernels run at.
 *
 * One owner thread at a time gives work; it takes part as worker 0 and returns when all is done.
 * Two ways to run: pool_run hands out indices, to be finished in any order by any worker; pool_each
 * calls a task that walks through stages, of each of which its workers take indices. Work may not
 * start other work on the same pool.
 *
 * No one waits for a thread that does not come, because its core is busy with something else: a
 * stage has ended when nothing of it is left and all have left who took of it, be the others where
 * they are. They take part from the stage on that they come to. So a task may rely on no worker but
 * for what it has taken itself.
 *
 * Waiting spins for a short while, since stages of a decode step last microseconds, then sleeps, so
 * that an idle pool costs nothing. Calls base and os. */

enum { SIMD_SCALAR = 0, SIMD_AVX2 = 1, SIMD_AVX512 = 2, SIMD_NEON = 3 };

typedef void (*pool_task)(void *context, int index);

typedef struct pool pool;

/* How many a pool of `threads` has if the system gives them; 0: as many as this process may run on. */
static int pool_count(int threads);
/* Starts the threads; 0: as many as this process may run on. Fewer than asked for is no error. low:
 * they go after the host program's. */
static cairn_status pool_open(base *b, int threads, bool low, pool **out);
/* Between runs: from now on so many. Without memory or threads it goes on with fewer. */
static void pool_resize(pool *p, int threads);
/* Stops and joins the threads; `p` is gone. */
static void pool_close(pool *p);

/* How many work, the owner included. */
static int pool_threads(const pool *p);
/* Calls task(context, index) once for each index below count; p NULL: all of them here. */
static void pool_run(pool *p, int count, pool_task task, void *context);
/* Calls task(context, worker) on worker 0, and on those below `most` that come while it is on. */
static void pool_each(pool *p, int most, pool_task task, void *context);
/* Inside a task: the next index of the stage, from 0 on; INT_MAX for a worker that came too late. */
static int pool_next(pool *p, int worker);
/* Inside a task: whether the worker can take of the stage that its walk has come to. */
static bool pool_takes_part(const pool *p, int worker);
/* Inside a task, when nothing is left to take: ends the stage. What was written in it all see who
 * take part in a later one. Where the run has ended meanwhile it does not return: the task, which
 * may own nothing here, ends. */
static void pool_meet(pool *p, int worker);
/* The best level of this machine. The environment variable CAIRN_SIMD (scalar, avx2, avx512) can
 * only lower it; asked for on each call, so that a test can compare levels in one process. */
static int pool_simd(void);
/* Whether the processor multiplies bytes in vectors of 512 bits (AVX512_VNNI). */
static bool pool_has_vnni(void);
