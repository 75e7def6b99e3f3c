/* jit: from a kernel template and constants to a loaded function. Owns the programs, the threads
 * that compile them, and NVRTC while it is open; calls cache, driver, os.
 *
 * A program is one template of kernels_src/ with one set of constants. It comes from memory, from
 * the cache, or from NVRTC, which is opened on the first miss, or ahead of it where nothing is kept.
 * All work is done on threads of our own: NVRTC needs a deep stack and the default floating-point
 * environment, and a frame loop must not wait. Several requests for one program do the work once.
 *
 * jit.c: state, source text, keys. compile.c: NVRTC. load.c: modules and functions.
 * work.c: threads, batches, cancelling, exit. open.c: the calls for other rooms. [owner thread] */

#define JIT_MAX_CONSTANTS 128

typedef struct jit_constant { const char *name; int64_t value; } jit_constant;

/* When a program is begun: at once; when all such are done; behind those that are begun at once, as threads become
 * free. No one waits for the last two: see jit_try. */
typedef enum jit_turn { JIT_AWAITED, JIT_LATER, JIT_BESIDE } jit_turn;

/* `constants` become `#define CAIRN_<name> <value>` before the template, sorted by name. */
typedef struct jit_request {
    const char *source; /* "topk.cu", of kernels_src/ */
    const jit_constant *constants;
    int constant_count;
    jit_turn turn;
} jit_request;

typedef struct jit_options {
    driver_calls *driver;
    CUcontext context;        /* NULL: compile only; there are then no functions */
    int arch;                 /* of the device: 10 * major + minor */
    struct cache *kernels;    /* an open cache */
    const char *nvrtc_path;   /* NULL or "": see driver/nvrtc.c */
    int threads;              /* 0: one per processor, at most 12 */
    bool quick;               /* compile fast rather than fast code */
    bool debug;               /* line tables for the tools */
    bool keep_images;         /* keep the bytes of each program for jit_image */
    bool want_ptx;            /* PTX of the exact architecture instead of a cubin, to be read */
    const kernels_file *files; /* NULL: the embedded kernels_src/ */
    cairn_progress_callback progress; /* called on the thread that waits */
    void *progress_user;
} jit_options;

typedef struct jit jit;
typedef enum jit_state { JIT_NEW, JIT_QUEUED, JIT_RUNNING, JIT_READY, JIT_FAILED } jit_state;

typedef struct jit_program {
    bool from_cache, from_ptx; /* valid once it is built, like compile_us */
    int64_t compile_us;
    base_text source; /* constants and template */
    /* private below */
    struct jit_program *next;
    cache_key id;     /* digest of the request: tells programs apart in memory */
    char name[48];    /* "topk.cu" */
    jit_state state;
    bool wanted;      /* by the last batch, which waits for it */
    bool beside;      /* begun beside those */
    bool lasting;     /* failed by its own fault: not tried again */
    bool again;       /* requested while it ran, after who had asked before left it */
    bool left;        /* given up by all who requested it */
    bool comes, waits; /* to NVRTC's front end: unless it is kept; there */
    cairn_status status;
    char error[BASE_ERROR_BYTES];
    CUmodule module;
    cache_entry image;
    int64_t load_us;
    size_t image_bytes;
} jit_program;

typedef struct jit_kernel {
    CUfunction function;
    int registers, local_bytes; /* a thread; local bytes are spills and local arrays */
    int static_shared_bytes, shared_bytes;
} jit_kernel;

/* Opens no NVRTC. The driver, the cache and the kernel files stay valid until jit_close; without a
 * context programs can be compiled but hold no functions. */
static cairn_status jit_open(base *b, const jit_options *options, jit **out);
/* Where nothing is kept, so that all will be compiled: begins to open NVRTC and its second copy on a thread, unless
 * options.threads is 1, while the device is opened. What is wrong with it is told to who needs it. */
static void jit_open_ahead(jit *j);
/* The context and its device's architecture, where jit_open was given none. Before any request. */
static void jit_set_device(jit *j, CUcontext context, int arch);
/* Cancels what is under way and frees every program. The context, if any, still lives. */
static void jit_close(jit *j);

/* Starts work on all requests and returns; a batch under way grows by them. The requests need not
 * outlive the call. A request that is wrong in itself is an error, and nothing is begun. */
static cairn_status jit_begin(jit *j, const jit_request *requests, int count);
/* Waits for the batch, but for what was requested for later, and tells the progress callback, at
 * each change and four times a second. [blocks] */
static cairn_status jit_wait(jit *j);
/* No one waits any more for what was asked for so far: who asked has given up, or is gone. How it fails is
 * not told to who asks later: he has a compile of his own, by jit_begin. */
static void jit_give_up(jit *j);
/* The program of a request: at once if it is built, else after building it; others of the batch may
 * still be under way. [blocks] */
static cairn_status jit_get(jit *j, const jit_request *request, jit_program **out);
/* The same without waiting, for what was begun before: CAIRN_BUSY (and no error text) while it is
 * being built, CAIRN_CANCELLED where it is to be begun anew: compiling was cancelled, or given up. */
static cairn_status jit_try(jit *j, const jit_request *request, jit_program **out);
/* The function `entry` of a built program, ready to launch: with `shared_bytes` of dynamic shared
 * memory allowed, clusters beyond 8 blocks allowed, its code loaded. Where it fails *out is what it was: a
 * kernel that is in use stays. */
static cairn_status jit_function(jit *j, jit_program *p, const char *entry, int shared_bytes,
                                 jit_kernel *out);
/* The cubin (or PTX) of a built program, if options.keep_images; NULL otherwise. */
BASE_UNUSED static const uint8_t *jit_image(const jit_program *p, size_t *bytes);
/* Programs compiled and found in the cache since the jit was opened; how often NVRTC was opened. */
static void jit_counts(jit *j, int32_t *compiled, int32_t *cached, int32_t *opened);
