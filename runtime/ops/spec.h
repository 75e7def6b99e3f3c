/* ops/spec: the arguments of every op, in one table.
 *
 * spec_table.c has a row for each argument of each op: its name, whether it is read, written or
 * both, its dtypes, its extents as symbols, what its address is a multiple of; of numbers their
 * range or the names of their values. Who reads it: the checker (spec.c), which refuses a call
 * before anything is done and names the argument; the binding to Lua, for names, order and shapes
 * of outputs; cairn.ops() in Lua; the README's table (gen/readme.lua); the fuzzer (spec_test.c).
 *
 * TO ADD AN OP. Declare its struct and its call in the public header. In spec_table.c write its
 * rows, inputs in the order in which Lua gives them without names, limits for the symbols that have
 * some, and a line in SPEC_OPS. The entry is
 *
 *     cairn_status cairn_OP(cairn_runtime *rt, const cairn_OP_args *args) {
 *         cairn_OP_args a;
 *         spec_call s;
 *         if (spec_take(rt, SPEC_OF(OP), &a, args, &s)) return s.c.status;
 *         ops_refuse(&s.c, ..., "what the table cannot say");
 *         ... s.n[SPEC_ROWS] ...
 *         return spec_end(rt, ...what it does...);
 *
 * What the checker holds for all ops: each extent is below 2^31, their product, a zero counted as
 * 1, below 2^59; rows that stride do not overlap; data that is not empty is there and aligned to
 * its element and to `align`; the tensor lies where the runtime's backend does; a symbol has one
 * value in a call; what is written shares no byte with any other argument; a handle is this
 * runtime's. */

/* Symbols: X(SYMBOL, name, what so many of it are called). */
#define SPEC_SYMBOL_TABLE(X)                                                                       \
    X(NONE, "", "") X(ROWS, "rows", "rows") X(N, "n", "columns") X(K, "k", "columns")              \
    X(HEADS, "heads", "heads") X(KV_HEADS, "kv_heads", "KV heads")                                 \
    X(HEAD_DIM, "head_dim", "values in a head") X(PAGES, "pages", "pages")                         \
    X(PAGE_SIZE, "page_size", "slots in a page") X(SEQUENCES, "sequences", "sequences")            \
    X(MAX_PAGES, "max_pages", "pages a sequence") X(REQUESTS, "requests", "requests")              \
    X(TOPK, "topk", "pages") X(VOCAB, "vocab", "columns") X(HIDDEN, "hidden", "values in a row")   \
    X(OUTS, "out", "outputs") X(INS, "in", "inputs") X(TOKENS, "tokens", "tokens")                 \
    X(CHANNELS, "channels", "channels") X(TAPS, "K - 1", "taps") X(SLOTS, "slots", "slots")        \
    X(KEPT, "K - 1 + most", "rows a sequence") X(CHUNKS, "chunks", "chunks")                       \
    X(CAPACITY, "capacity", "entries") X(BATCH, "B", "requests") X(DRAFTS, "drafts", "drafts")     \
    X(PARTS, "C", "chunks") X(LAYERS, "layers", "layers") X(OUT_ROWS, "rows or more", "rows")      \
    X(COPIES, "n", "copies") X(ENTRIES, "n", "entries") X(VALUES, "values", "values")
typedef enum spec_symbol {
#define SPEC_SYMBOL(symbol, name, words) SPEC_##symbol,
    SPEC_SYMBOL_TABLE(SPEC_SYMBOL) SPEC_SYMBOLS
#undef SPEC_SYMBOL
} spec_symbol;

/* An extent: a symbol, one more than it, at least it, a number, or any; 0 ends a list of them. */
typedef int32_t spec_extent;
enum { SPEC_EXTENT_ONE_MORE = 1 << 8, SPEC_EXTENT_LEAST = 1 << 9, SPEC_EXTENT_NUMBER = 1 << 10,
       SPEC_EXTENT_ANY = 1 << 11 };
#define SPEC_NUMBER(n) (SPEC_EXTENT_NUMBER | (n) << 12)
#define SPEC_ONE_MORE(symbol) (SPEC_##symbol | SPEC_EXTENT_ONE_MORE)
#define SPEC_LEAST(symbol) (SPEC_##symbol | SPEC_EXTENT_LEAST)
#define SPEC_ANY SPEC_EXTENT_ANY

typedef enum spec_kind {
    SPEC_IN, SPEC_OUT, SPEC_INOUT, /* tensors */
    SPEC_LIST,    /* an array of SPEC_LAYERS tensors that are read and written */
    SPEC_INT, SPEC_FLAG /* an int32_t, 0 or not */, SPEC_CHOICE /* an int32_t of `choices` */,
    SPEC_FLOAT, SPEC_BYTES /* a uint64_t */, SPEC_TEXT,
    SPEC_STAGING, /* cairn_staging *, or NULL: if given, inputs with SPEC_STAGED lie on the host */
    SPEC_FUNCTION, /* a callback and its `user` */
    SPEC_OWN      /* what only the entry and its binding know; no offset */
} spec_kind;

enum {
    SPEC_OPTIONAL = 1,  /* may be NULL */
    SPEC_MADE = 2,      /* in Lua an optional output is made unless it is given */
    SPEC_STRIDED = 4,   /* rows may stride */
    SPEC_UNREAD = 8,    /* data may be NULL; the entry says when it is read */
    SPEC_SAME_TYPE = 16,/* of one dtype with the others so marked, the first that is given */
    SPEC_OR_F32 = 32,   /* or f32 */
    SPEC_IN_PLACE = 64, /* the output may be this very tensor */
    SPEC_BLOCKS = 128,  /* a matrix whose rows may be blocks of the SPEC_CHOICE `block` */
    SPEC_COLUMN = 256,  /* may lack its last dimension */
    SPEC_ANY_SHAPE = 512, /* the entry checks rank and extents */
    SPEC_STAGED = 1024, /* lies on the host when `staging` is given */
    SPEC_C_ONLY = 2048  /* the binding sets it */
};

enum { SPEC_RANK = 5, SPEC_ARGS = 24 /* rows of an op */ };

typedef struct spec_choice { const char *name; int32_t value; } spec_choice;

typedef struct spec_arg {
    const char *name;  /* in messages; in Lua what follows its last '.', unless `lua` says else */
    const char *lua;
    spec_kind kind;
    unsigned flags;
    size_t offset;     /* in the argument struct */
    unsigned types;    /* bits of dtypes */
    spec_extent extents[SPEC_RANK + 1]; /* a number's first: the symbol that it is, or 0 */
    int align;         /* bytes; 0: the element's */
    double least, most;/* of numbers; NaN is never within */
    const spec_choice *choices;
} spec_arg;

/* What a symbol's value must be, whatever argument says it. */
typedef struct spec_limit {
    spec_symbol symbol;
    int64_t least, most, multiple;     /* multiple 0: any */
    spec_symbol multiple_of, at_least; /* SPEC_NONE: of nothing */
    spec_extent otherwise;     /* its value in a call that does not say it */
} spec_limit;

typedef struct spec_op {
    const char *name;
    size_t bytes; /* of the argument struct */
    const spec_arg *args;      /* ends with a name of NULL */
    const spec_limit *limits;  /* ends with SPEC_NONE */
    cairn_status (*run)(cairn_runtime *rt, const void *args);
} spec_op;

/* The values of a call's symbols. */
typedef struct spec_call {
    ops_check c;
    const spec_op *op;
    const char *args;
    int64_t n[SPEC_SYMBOLS]; /* -1: nothing said it */
    cairn_type type;         /* of SPEC_SAME_TYPE */
    int span_count;
    spans_item spans[SPEC_ARGS]; /* of its tensors, but lists */
} spec_call;

#define SPEC_OF(name) (&spec_ops[SPEC_OP_##name])
enum { SPEC_I32 = TENSOR_BIT(CAIRN_I32) };

/* static spec_op spec_ops: the ops [SPEC_OP_COUNT]. */
/* static spec_op spec_topk_rows_plan: what topk_rows_plan looks at. */
/* static spec_arg spec_topk_rows_args: the rows of topk_rows, the callback first. */
/* static spec_limit spec_topk_rows_limits: and its limits. */
/* static spec_choice spec_sampling_orders: the names of cairn_sampling_order. */
/* static spec_symbol spec_symbol_names: [SPEC_SYMBOLS]. */

/* The argument's name in Lua. */
static const char *spec_lua_name(const spec_arg *a);
/* Takes the caller's struct into `ours` and checks it by the table; 0: all is well, and the op begins. */
static cairn_status spec_take(cairn_runtime *rt, const spec_op *op, void *ours, const void *theirs,
                              spec_call *s);
/* Its range in a trace ends; status. An op that is refused or empty has none. */
static cairn_status spec_end(cairn_runtime *rt, cairn_status status);
/* It begins, if a trace is taken; spec_take has done it. */
static void spec_begin(cairn_runtime *rt, const char *name);
/* The same of a struct that is ours already, for ops that call each other. */
static cairn_status spec_check(spec_call *s, device *dev, const spec_op *op, const void *args);
/* What the symbols are as far as the arguments say it, with no check: for shapes of outputs. */
static void spec_guess(spec_call *s, const spec_op *op, const void *args);

/* An extent's value in a call; -1: unknown. */
static int64_t spec_extent_value(const spec_call *s, spec_extent extent);
