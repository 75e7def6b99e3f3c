/* ops: what the entries of the ops share: wanting tensors in one line, launching a kernel in one
 * call, and the paged cache's argument checks. An entry takes its arguments (OPS_TAKE), says what it
 * wants of each (an ops_check keeps the first failure, the rest then do nothing), and either works
 * on the CPU or launches. Nothing is written before every check has passed. */

#define OPS_F32 TENSOR_BIT(CAIRN_F32)
#define OPS_F16 TENSOR_BIT(CAIRN_F16)
#define OPS_I32 TENSOR_BIT(CAIRN_I32)
#define OPS_I64 TENSOR_BIT(CAIRN_I64)

/* The start of every entry: takes the caller's struct into `ours` of the current layout. */
#define OPS_TAKE(rt, name, ours, args) \
    ((rt) ? args_take(&(rt)->base, name, &(ours), sizeof(ours), args) : CAIRN_INVALID_ARGUMENT)

typedef struct ops_check { device *dev; const char *op; cairn_status status; } ops_check;

/* One kernel in its instance: found again by value, so that an op's second call asks nobody. */
typedef struct ops_kernel {
    const char *source, *entry; /* literals */
    jit_constant constants[6];
    int constant_count, shared_bytes;
    jit_kernel kernel;
    struct ops_kernel *next;
} ops_kernel;

typedef struct ops_weight { int type; int64_t outs, ins, row_bytes; const void *data; } ops_weight;

typedef struct ops_paged {
    int64_t rows;
    paged_rows at; /* also what the kernels get */
} ops_paged;

/* ---- arguments --------------------------------------------------------------------------------- */

/* Checks one dense argument against rank and extents (-1: free); the first failure stays. */
static void ops_want_as(ops_check *c, const cairn_tensor *t, const char *name, unsigned types,
                        bool optional, int rank, const int64_t *extents);
/* The same for an argument that must be there, with its one, two or three extents. */
static void ops_want1(ops_check *c, const cairn_tensor *t, const char *name, unsigned types,
                      int64_t a);
static void ops_want2(ops_check *c, const cairn_tensor *t, const char *name, unsigned types,
                      int64_t a, int64_t b);
static void ops_want3(ops_check *c, const cairn_tensor *t, const char *name, unsigned types,
                      int64_t a, int64_t b, int64_t d);
/* An output shares no byte with an input, or where `in_place` is the input itself. */
static void ops_want_apart(ops_check *c, const cairn_tensor *out, const char *out_name,
                           const cairn_tensor *in, const char *in_name, bool in_place);
/* Fails with INVALID_ARGUMENT and the text when `wrong`, unless something failed before. */
BASE_PRINTF(3, 4)
static void ops_refuse(ops_check *c, bool wrong, const char *format, ...);
/* A matrix [outs, ins], plain or in blocks; its width comes from the tensor. */
static void ops_want_weight(ops_check *c, const cairn_tensor *t, const char *name, int32_t block,
                            ops_weight *out);
/* Checks an f16 cache and where its rows stand; `rows` -1 takes the count from the tensors. */
static void ops_want_paged(ops_check *c, const cairn_pages *pages, int64_t rows, ops_paged *out);
/* The same for a cache of one of `types`. */
static void ops_want_paged_of(ops_check *c, const cairn_pages *pages, unsigned types, int64_t rows,
                              ops_paged *out);

/* ---- launching --------------------------------------------------------------------------------- */

/* The runtime's device, or NULL without a runtime. */
static device *ops_device(cairn_runtime *rt);
/* The same for a template without constants. */
static cairn_status ops_launch(cairn_runtime *rt, const char *source, const char *entry,
                               const device_dims *dims, const void *params);
/* Launches entry `want->entry` with one parameter struct of abi.h. */
static cairn_status ops_launch_as(cairn_runtime *rt, ops_kernel *want, const device_dims *dims,
                                  const void *params);
/* Where the op's kernels report a fault; NULL on the CPU. */
static cairn_error_word *ops_error_word(device *dev, const char *op);
/* Forgets the instances that ops have launched; for cairn_close. */
static void ops_free_kernels(cairn_runtime *rt);

/* ---- on the CPU -------------------------------------------------------------------------------- */

/* Where row r stands, on the CPU; false when an id or position is out of range. */
static bool ops_find_row(device *dev, const char *op, const paged_rows *at, int64_t r,
                         const int32_t **table, int32_t *position, cairn_status *status);
/* Slot 0 of K (0) or V (1) of a page's head. */
static uint16_t *ops_slots(const paged_rows *at, int32_t page, int k_or_v, int head);
/* On the CPU: remembers the first bad row of an op that went on past it. */
static void ops_bad_row(device *dev, const char *op, int64_t row, const char *cause, int64_t value,
                        cairn_status *status);
