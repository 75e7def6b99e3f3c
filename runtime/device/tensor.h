/* tensor: what a tensor is made of, what an op may want of one, and tensors that the runtime
 * owns. */

enum { TENSOR_CPU = 1, TENSOR_CUDA = 2 };

typedef struct tensor_type_row {
    const char *name;
    uint8_t code, bits;
    const char *npy;
} tensor_type_row;

/* Indexed by cairn_type. */
static const tensor_type_row tensor_types[] = {
    {"none", 0, 0, ""},      {"f32", 2, 32, "<f4"}, {"f16", 2, 16, "<f2"}, {"bf16", 4, 16, "<V2"},
    {"e4m3", 10, 8, "|V1"},  {"i32", 0, 32, "<i4"}, {"i64", 0, 64, "<i8"}, {"u8", 1, 8, "|u1"},
};

typedef struct tensor_owned {
    cairn_tensor view; /* first, so that the public pointer is this one */
    int64_t shape[CAIRN_MAX_RANK];
    size_t bytes;
    struct tensor_owned *next, **link; /* link: the pointer that points here */
} tensor_owned;

/* What an op wants of one argument. A rank of -1 or an extent of -1 is free. */
typedef struct tensor_want {
    const char *op, *name;
    unsigned types; /* bit set: 1u << CAIRN_F32 | ... */
    int rank;
    int64_t shape[CAIRN_MAX_RANK];
    bool optional;
    bool rows_may_stride; /* the last dimension dense, the others free */
    bool unread;          /* data may be NULL: the op says when it is read */
    int align;            /* bytes that the address is a multiple of, besides its element's */
    size_t bytes;         /* the check says: those of a tensor that is right, as tensor_span */
} tensor_want;

#define TENSOR_BIT(type) (1u << (type))

/* What every view must hold, whoever gives it (runtime_ops.h says so once): the product of its
 * extents, a zero counted as 1, stays below 2^59, so that none of what is computed from it
 * overflows; for an op each extent is below 2^31, the count that kernels work with. */
enum { TENSOR_EXTENT = INT32_MAX };

/* Elements, or -1 when an extent is negative or their product too large. */
static int64_t tensor_elements(const cairn_tensor *t);
/* Whether the elements lie one after the other. The strides of nothing, and of a single row, say
 * nothing: they may hold anything. */
static bool tensor_dense(const cairn_tensor *t);
/* Elements from one row to the next, where dimension d counts rows. */
static int64_t tensor_stride(const cairn_tensor *t, int d);
/* The bytes from the first element of a checked tensor to the end of its last. */
static size_t tensor_span(const cairn_tensor *t);
/* The address of the first element. */
static void *tensor_data(const cairn_tensor *t);

/* Names the argument and what is wrong with it. An optional NULL passes. `place` is TENSOR_CPU or
 * TENSOR_CUDA. */
static cairn_status tensor_check_at(base *b, int place, const cairn_tensor *t, tensor_want *want);
/* The same, where the backend's tensors lie. */
static cairn_status tensor_check(device *dev, const cairn_tensor *t, tensor_want *want);

/* A dense tensor of the device in `list`, its contents undefined. */
static cairn_status tensor_new(device *dev, tensor_owned **list, cairn_type type, int rank,
                               const int64_t *shape, tensor_owned **out);
/* Takes it out of its list and frees it. */
static void tensor_free(device *dev, tensor_owned *t);
