/* ops: what the entries of the ops share: what their arguments must be (spec.h, one table), refusing
 * a call in one line, launching a kernel in one, and rows of the paged cache (paged.h). An entry
 * takes its arguments (spec_take), refuses what the table cannot say (an ops_check keeps the first
 * failure, the rest then do nothing), and either works on the CPU or launches. Nothing is written
 * before every check has passed. */

/* Takes the caller's struct into `ours` of the current layout. */
#define OPS_TAKE(rt, name, ours, args) \
    ((rt) ? args_take(&(rt)->base, name, &(ours), sizeof(ours), args) : CAIRN_INVALID_ARGUMENT)

typedef struct ops_check { device *dev; const char *op; cairn_status status; } ops_check;

/* One kernel in its instance: found again by value, so that an op's second call asks nobody. */
typedef struct ops_kernel {
    const char *source, *entry; /* literals */
    jit_constant constants[8];
    int constant_count, shared_bytes;
    jit_kernel kernel;
    struct ops_kernel *next;
} ops_kernel;

/* ---- arguments ------------------------------------------------------------------------------- */

/* Checks one dense argument against rank and extents (-1: free); the first failure stays. */
static void ops_want_as(ops_check *c, const cairn_tensor *t, const char *name, unsigned types,
                        bool optional, int rank, const int64_t *extents);
/* Fails with INVALID_ARGUMENT and the text when `wrong`, unless something failed before. */
BASE_PRINTF(3, 4)
static void ops_refuse(ops_check *c, bool wrong, const char *format, ...);

/* ---- launching ------------------------------------------------------------------------------- */

/* The same for a template without constants. */
static cairn_status ops_launch(cairn_runtime *rt, const char *source, const char *entry,
                               const device_dims *dims, const void *params);
/* Launches entry `want->entry` with one parameter struct of abi.h. */
static cairn_status ops_launch_as(cairn_runtime *rt, ops_kernel *want, const device_dims *dims,
                                  const void *params);
/* Whether a launch of so many rows is to be a dependent one, as device_dims has it: blocks of more would crowd on the
 * multiprocessors that the kernel before leaves first. */
static bool ops_is_dependent(const device *dev, int64_t rows);
/* Compiles and loads the entry, so that a launch of it does not. [blocks] */
static cairn_status ops_prepare(cairn_runtime *rt, ops_kernel *want, int shared_bytes);
/* The program of a request, without waiting: CAIRN_BUSY while it is compiled, from now on if it was
 * not before. */
static cairn_status ops_ask_program(cairn_runtime *rt, const jit_request *request,
                                    jit_program **out);
/* Where the op's kernels report a fault; NULL on the CPU. */
static cairn_error_word *ops_error_word(device *dev, const char *op);
/* Forgets the instances that ops have launched; for cairn_close. */
static void ops_free_kernels(cairn_runtime *rt);

/* ---- on the CPU ------------------------------------------------------------------------------ */

/* On the CPU: remembers the first bad row of an op that went on past it. */
static void ops_bad_row(device *dev, const char *op, int64_t row, const char *cause, int64_t value,
                        cairn_status *status);
/* The first of a worker's `rows`, divided evenly; its last is before the next worker's first. */
static int64_t ops_share(int64_t rows, int index, int workers);
