/* cairn_ops: tensors, streams, pages and ops, for those who run single ops on memory of their own, or
 * an engine of their own on Cairn's kernels. Who embeds a model needs runtime.h alone; its rules on
 * memory, structs, threads, errors and faults seen only on the device hold here too.
 *
 *     cairn_tensor *scores, *indices;      after cairn_open, with error handling left out
 *     cairn_topk_args args = {sizeof args};
 *     cairn_tensor_load(rt, "scores.npy", &scores);
 *     cairn_tensor_new(rt, CAIRN_I32, 2, shape, &indices);
 *     args.k = 2048, args.scores = scores, args.indices = indices;
 *     cairn_topk(rt, &args);
 *     cairn_sync(rt);
 *
 * CONTENTS
 *     1  Tensors, streams, events, graphs
 *     2  Pages: pools and tables of caches of your own
 *     3  Ops
 *     4  Forwards of a model with rows of your own
 *     5  Profiles and traces */
#include "runtime.h" /* an implementation that it brings includes this file, so it comes first */
#ifndef CAIRN_OPS_H
#define CAIRN_OPS_H

#ifdef __cplusplus
extern "C" {
#endif

/* ---- 1  Tensors, streams, events, graphs ------------------------------------------------------- */

/* Element types. bf16 and e4m3 are stored in .npy files as <V2 and |V1. */
typedef enum cairn_type {
    CAIRN_TYPE_NONE = 0, CAIRN_F32, CAIRN_F16, CAIRN_BF16, CAIRN_E4M3, CAIRN_I32, CAIRN_I64,
    CAIRN_U8
} cairn_type;

#define CAIRN_MAX_RANK 8

/* DLPack's DLTensor, field for field, so that a tensor of another library is one as it stands:
 * device 1 is the CPU, 2 CUDA; dtype code 0 int, 1 uint, 2 float, 4 bfloat, 10 e4m3; strides count
 * elements, NULL means row-major and dense. A view owns nothing. */
typedef struct cairn_tensor {
    void *data; /* a device address on the cuda backend */
    struct { int32_t type, id; } device;
    int32_t ndim;
    struct { uint8_t code, bits; uint16_t lanes; } dtype;
    int64_t *shape;   /* [ndim] */
    int64_t *strides; /* [ndim] or NULL */
    uint64_t byte_offset;
} cairn_tensor;

/* The element type, CAIRN_TYPE_NONE for a dtype that Cairn does not know. [any thread] */
CAIRN_API cairn_type cairn_tensor_type(const cairn_tensor *tensor);
/* "f32" and so on; its bytes per element. [any thread] */
CAIRN_API const char *cairn_type_name(cairn_type type);
CAIRN_API size_t cairn_type_bytes(cairn_type type);
/* CAIRN_TYPE_NONE for an unknown name. [any thread] */
CAIRN_API cairn_type cairn_type_from_name(const char *name);

/* A new dense tensor of zeros on the runtime's backend, freed by cairn_tensor_free or at close.
 * rank 0 to 8, extents >= 0, their product, a zero counted as 1, below 2^59. [owner thread]
 * Errors: INVALID_ARGUMENT, OUT_OF_(DEVICE_)MEMORY. */
CAIRN_API cairn_status cairn_tensor_new(cairn_runtime *rt, cairn_type type, int rank,
                                        const int64_t *shape, cairn_tensor **tensor);
/* NULL is ignored; a view or a tensor of another runtime is INVALID_ARGUMENT. [blocks] */
CAIRN_API cairn_status cairn_tensor_free(cairn_runtime *rt, cairn_tensor *tensor);

/* Copies a whole dense tensor from or to host memory; bytes must be its exact size. [blocks] */
CAIRN_API cairn_status cairn_tensor_write(cairn_runtime *rt, cairn_tensor *tensor,
                                          const void *host, size_t bytes);
CAIRN_API cairn_status cairn_tensor_read(cairn_runtime *rt, const cairn_tensor *tensor, void *host,
                                         size_t bytes);

/* .npy files, versions 1 to 3, C order, little endian: f32, f16, bf16, e4m3, i32, i64, u8. Saving
 * replaces the file atomically. [blocks] Errors: FILE_NOT_FOUND, BAD_FILE, UNSUPPORTED. */
CAIRN_API cairn_status cairn_tensor_load(cairn_runtime *rt, const char *path,
                                         cairn_tensor **tensor);
CAIRN_API cairn_status cairn_tensor_save(cairn_runtime *rt, const cairn_tensor *tensor,
                                         const char *path);

/* Ops enqueue on the runtime's current stream: its own unless set here. On the CPU backend an op
 * is done when it returns, and streams and events are in order by nature. Streams, events, graphs
 * and staging buffers of another runtime are INVALID_ARGUMENT. */
typedef struct cairn_stream cairn_stream;
typedef struct cairn_event cairn_event;
typedef struct cairn_graph cairn_graph;

CAIRN_API cairn_status cairn_stream_new(cairn_runtime *rt, cairn_stream **stream);
CAIRN_API cairn_status cairn_stream_free(cairn_runtime *rt, cairn_stream *stream); /* [blocks] */
/* NULL sets the runtime's own stream again. Waits for a step that a session's last call began ahead.
 * [owner thread] */
CAIRN_API cairn_status cairn_stream_set(cairn_runtime *rt, cairn_stream *stream);
/* Waits for this stream (NULL: the runtime's own) alone. [blocks] */
CAIRN_API cairn_status cairn_stream_sync(cairn_runtime *rt, cairn_stream *stream);

CAIRN_API cairn_status cairn_event_new(cairn_runtime *rt, cairn_event **event);
CAIRN_API cairn_status cairn_event_free(cairn_runtime *rt, cairn_event *event);
/* Marks a point of the current stream. [owner thread] */
CAIRN_API cairn_status cairn_event_record(cairn_runtime *rt, cairn_event *event);
/* The current stream goes on only after the event. [owner thread] */
CAIRN_API cairn_status cairn_event_wait(cairn_runtime *rt, cairn_event *event);
/* Microseconds between two recorded events, once both are done. [blocks] */
CAIRN_API cairn_status cairn_event_elapsed(cairn_runtime *rt, cairn_event *from, cairn_event *to,
                                           double *microseconds);

/* Records what is enqueued between begin and end into a graph that replays with one call. Run each
 * op once before capturing it, so that nothing is compiled or allocated in between. cuda only:
 * CAIRN_UNSUPPORTED on the CPU. [owner thread] */
CAIRN_API cairn_status cairn_graph_begin(cairn_runtime *rt);
CAIRN_API cairn_status cairn_graph_end(cairn_runtime *rt, cairn_graph **graph);
CAIRN_API cairn_status cairn_graph_launch(cairn_runtime *rt, cairn_graph *graph);
CAIRN_API cairn_status cairn_graph_free(cairn_runtime *rt, cairn_graph *graph);

/* ---- 2  Pages ---------------------------------------------------------------------------------- */
/* Which pages of a paged cache hold whose tokens, for hosts that bring caches of their own to the
 * ops of section 9; sessions have theirs. All calls are [owner thread]. Each does all it is asked or
 * nothing, and its message names the request or page that is wrong. */

/* A pool hands out the page ids 0 .. pages-1 and counts references: a page is free again once as
 * many were given back as were taken and retained. */
typedef struct cairn_page_pool cairn_page_pool;

/* Errors: INVALID_ARGUMENT, OUT_OF_MEMORY. */
CAIRN_API cairn_status cairn_page_pool_new(cairn_runtime *rt, int pages, cairn_page_pool **pool);
/* BUSY while page tables use it. NULL is ignored; cairn_close frees what is left. */
CAIRN_API cairn_status cairn_page_pool_free(cairn_page_pool *pool);
/* Takes `count` free pages, one reference each. Errors: POOL_FULL. */
CAIRN_API cairn_status cairn_page_pool_take(cairn_page_pool *pool, int count, int32_t *ids);
/* One reference more, or one back, for each id; an id may stand several times.
 * Errors: INVALID_ARGUMENT for an id out of range, one not in use, one given back too often. */
CAIRN_API cairn_status cairn_page_pool_retain(cairn_page_pool *pool, const int32_t *ids, int count);
CAIRN_API cairn_status cairn_page_pool_give(cairn_page_pool *pool, const int32_t *ids, int count);
CAIRN_API int cairn_page_pool_free_pages(const cairn_page_pool *pool);
/* Of one page; 0: free, -1: out of range. */
CAIRN_API int cairn_page_pool_references(const cairn_page_pool *pool, int32_t id);

/* Page tables of a batch of requests, on the host and, after cairn_page_tables_update, on the
 * device in both forms that ops take: dense [requests, max_pages] and CSR. A request is live or not;
 * a live one holds at least one page. Page c of it holds its tokens [c * page_size, ...).
 *
 * With a pool any free page serves and requests may share pages. A shared page is replaced before it
 * is written (copy on write); the partly filled one of a request must then be copied: `copies` says
 * from which page to which, before anything is appended. Without a pool the tables are
 * deterministic: page c of request r is r * max_pages + c, nothing is shared, and every request is
 * live from the start. */
typedef struct cairn_page_tables cairn_page_tables;

typedef struct cairn_page_tables_options {
    uint32_t struct_size;
    int32_t requests;      /* rows of the tables, at least 1 */
    int32_t max_tokens;    /* of a request; max_pages = ceil(max_tokens / page_size) */
    int32_t page_size;     /* tokens, 1 to 256; 0: the config's */
    cairn_page_pool *pool; /* of the same runtime, or NULL: deterministic */
} cairn_page_tables_options;

/* Errors: INVALID_ARGUMENT, OUT_OF_(DEVICE_)MEMORY. [blocks] */
CAIRN_API cairn_status cairn_page_tables_new(cairn_runtime *rt,
                                             const cairn_page_tables_options *options,
                                             cairn_page_tables **tables);
/* Gives its pages back. NULL is ignored; cairn_close frees what is left. [blocks] */
CAIRN_API cairn_status cairn_page_tables_free(cairn_page_tables *tables);

/* The listed requests become live, one page each, or end. Errors: INVALID_ARGUMENT, POOL_FULL. */
CAIRN_API cairn_status cairn_page_tables_add(cairn_page_tables *tables, const int32_t *requests,
                                             int count);
CAIRN_API cairn_status cairn_page_tables_remove(cairn_page_tables *tables,
                                                const int32_t *requests, int count);

/* Request `to`, not live, starts with all that `from` holds; no page is copied now.
 * Errors: INVALID_ARGUMENT, UNSUPPORTED without a pool, POOL_FULL if `from` is empty. */
CAIRN_API cairn_status cairn_page_tables_fork(cairn_page_tables *tables, int from, int to);
/* Request r, not live, starts with `tokens` (>= 1) tokens in the ceil(tokens / page_size) pages
 * `ids`, such as a cached prefix: they get one reference more. Errors: as fork. */
CAIRN_API cairn_status cairn_page_tables_adopt(cairn_page_tables *tables, int r,
                                               const int32_t *ids, int tokens);

/* tokens [requests]: as many more, or fewer (at most all), for each request; 0 for one not live.
 * insert takes the pages that are missing, delete gives back what holds no token but the first.
 * Errors: INVALID_ARGUMENT, CONTEXT_FULL beyond max_pages, POOL_FULL, and BUSY while copies of the
 * insert before are not fetched (by cairn_page_tables_copies or _update). */
CAIRN_API cairn_status cairn_page_tables_insert(cairn_page_tables *tables, const int32_t *tokens);
CAIRN_API cairn_status cairn_page_tables_delete(cairn_page_tables *tables, const int32_t *tokens);
/* One page and no token for every live request. */
CAIRN_API cairn_status cairn_page_tables_clear(cairn_page_tables *tables);

/* Pages by count at the end of each request, counts [requests], or one page for each time that a
 * request is listed. A request keeps what holds tokens, and one page: else INVALID_ARGUMENT. */
CAIRN_API cairn_status cairn_page_tables_allocate(cairn_page_tables *tables,
                                                  const int32_t *counts);
CAIRN_API cairn_status cairn_page_tables_release(cairn_page_tables *tables, const int32_t *counts);
CAIRN_API cairn_status cairn_page_tables_allocate_for(cairn_page_tables *tables,
                                                      const int32_t *requests, int count);
CAIRN_API cairn_status cairn_page_tables_release_for(cairn_page_tables *tables,
                                                     const int32_t *requests, int count);

/* The host's lists. The pointers stand until the tables are freed, what they show changes. */
typedef struct cairn_page_lists {
    uint32_t struct_size;
    int32_t requests, page_size, max_pages;
    const int32_t *page_table; /* [requests, max_pages], -1: none */
    const int32_t *lengths;    /* [requests] tokens */
    const int32_t *pages;      /* [requests] pages held, 0: not live */
} cairn_page_lists;
CAIRN_API cairn_status cairn_page_tables_lists(const cairn_page_tables *tables,
                                               cairn_page_lists *lists);
/* CSR: indptr [requests + 1], indices [capacity >= indptr[requests]] (NULL: not wanted),
 * last_page_len [requests] (NULL): 1 to page_size tokens, 0 of an empty request. */
CAIRN_API cairn_status cairn_page_tables_csr(cairn_page_tables *tables, int32_t *indptr,
                                             int32_t *indices, int capacity,
                                             int32_t *last_page_len);
/* The copies that the last insert wants, pairs [requests, 2] of page ids from, to; *count of them.
 * They are fetched with that. */
CAIRN_API cairn_status cairn_page_tables_copies(cairn_page_tables *tables, int32_t *pairs,
                                                int *count);

/* Brings the device up to date: one launch that reads a pinned buffer, no waiting, no allocation.
 * The copies of the last insert go into the `copies` tensor for cairn_copy_pages and are fetched
 * with that. BUSY, and nothing done, while the two updates before are not carried out yet, and
 * inside a capture (the tensors stay in place, so captured ops see every later update). */
CAIRN_API cairn_status cairn_page_tables_update(cairn_page_tables *tables);

/* Device tensors, all i32, dense, at fixed addresses while the tables live. */
typedef struct cairn_page_tensors {
    uint32_t struct_size;
    const cairn_tensor *page_table;    /* [requests, max_pages], -1: none */
    const cairn_tensor *lengths;       /* [requests] */
    const cairn_tensor *indptr;        /* [requests + 1] */
    const cairn_tensor *indices;       /* [requests * max_pages]; the first indptr[requests] count */
    const cairn_tensor *last_page_len; /* [requests] */
    const cairn_tensor *copies;        /* [requests, 2], -1: none */
} cairn_page_tensors;
CAIRN_API cairn_status cairn_page_tables_tensors(const cairn_page_tables *tables,
                                                 cairn_page_tensors *tensors);

/* A radix cache of prefixes: which pages hold the keys and values of which tokens, so that a request
 * that begins like an earlier one takes over its whole pages. Tokens decide what matches, never a
 * hash alone. Lengths are of the sequence as it is cached: landmark tokens count, in the ids and in
 * every length. It holds one reference of the pool for each page it knows; what it evicts is free
 * once the other holders gave it back. */
typedef struct cairn_prefix_cache cairn_prefix_cache;

typedef struct cairn_prefix_options {
    uint32_t struct_size;
    int32_t page_size;     /* tokens of a page of the pool, 1 to 256; 0: the config's */
    cairn_page_pool *pool; /* of the same runtime; it must outlive the cache */
} cairn_prefix_options;

typedef struct cairn_prefix_key {
    uint32_t struct_size;
    int32_t count;      /* tokens; those behind the last whole page are ignored */
    const int32_t *ids; /* [count] */
    uint64_t space;     /* namespace, such as a model or an adapter: spaces never match each other */
} cairn_prefix_key;

typedef struct cairn_prefix_properties {
    uint32_t struct_size;
    int32_t page_size, nodes, locks;
    int64_t tokens, locked_tokens; /* held; of them those that cannot be evicted */
} cairn_prefix_properties;

/* Errors: INVALID_ARGUMENT, OUT_OF_MEMORY. */
CAIRN_API cairn_status cairn_prefix_new(cairn_runtime *rt, const cairn_prefix_options *options,
                                        cairn_prefix_cache **cache);
/* Gives its pages back, locked or not. NULL is ignored; cairn_close frees what is left. */
CAIRN_API cairn_status cairn_prefix_free(cairn_prefix_cache *cache);

/* The longest prefix of the key in whole pages that is held: *matched tokens of it, and the ids of
 * its pages in pages [count / page_size] (NULL: not wanted). With `lock` it cannot be evicted until
 * cairn_prefix_unlock(*lock); *lock is 0 when nothing matches. A page that a sequence goes on using
 * needs no lock but a reference of its own (cairn_page_pool_retain, cairn_page_tables_adopt).
 * So that a token is left to compute, give one token less than the prompt has.
 * Errors: INVALID_ARGUMENT, OUT_OF_MEMORY (only with `lock`). */
CAIRN_API cairn_status cairn_prefix_match(cairn_prefix_cache *cache, const cairn_prefix_key *key,
                                          int32_t *pages, int32_t *matched, int64_t *lock);
/* INVALID_ARGUMENT for a lock that is not held. 0 is ignored. */
CAIRN_API cairn_status cairn_prefix_unlock(cairn_prefix_cache *cache, int64_t lock);

/* Adds the key's whole pages, whose ids are pages [count / page_size]; they must not be written any
 * more. The first *present tokens were held already, in pages of the cache's own: those of the caller
 * remain the caller's alone. Errors: INVALID_ARGUMENT, OUT_OF_MEMORY; nothing changed. */
CAIRN_API cairn_status cairn_prefix_insert(cairn_prefix_cache *cache, const cairn_prefix_key *key,
                                           const int32_t *pages, int32_t *present);

/* Drops what was used least recently and is not locked, in whole nodes from the leaves on, until at
 * least `tokens` are dropped or nothing is left; *evicted (or NULL) tells how many were. */
CAIRN_API cairn_status cairn_prefix_evict(cairn_prefix_cache *cache, int64_t tokens,
                                          int64_t *evicted);
CAIRN_API cairn_status cairn_prefix_info(cairn_prefix_cache *cache, cairn_prefix_properties *info);

/* Snapshots of a request: its tokens, the bytes of its pages in every cache, and any state that the
 * caller keeps for it, such as that of a convolution; versioned and summed like a session's. */
typedef struct cairn_snapshot_args {
    uint32_t struct_size;
    int32_t request;
    const char *name;             /* of the model, up to 63 bytes; NULL: "" */
    cairn_tensor *const *caches;  /* [cache_count] of [pages, ...], dense, any dtypes */
    int32_t cache_count;          /* layers, say */
    int32_t token_count;
    int32_t *tokens;              /* [token_count] ids >= 0, or NULL: saved, or filled by load */
    void *state;                  /* [state_bytes] host memory, or NULL: likewise */
    size_t state_bytes;
} cairn_snapshot_args;
/* *bytes is what it takes (call with NULL, 0 to ask). [blocks] Errors: INVALID_ARGUMENT, BUSY while
 * the copies of an insert are not fetched. */
CAIRN_API cairn_status cairn_page_tables_save(cairn_page_tables *tables,
                                              const cairn_snapshot_args *args, void *memory,
                                              size_t capacity, size_t *bytes);
/* The request, not live before, is what was saved, in pages of its own (cairn_page_tables_update
 * tells the device). name, caches, token_count and state_bytes are as saved. On failure no request
 * and no output is changed. [blocks] Errors: BAD_FILE, VERSION_MISMATCH, UNSUPPORTED,
 * INVALID_ARGUMENT, CONTEXT_FULL, POOL_FULL. */
CAIRN_API cairn_status cairn_page_tables_load(cairn_page_tables *tables,
                                              const cairn_snapshot_args *args, const void *memory,
                                              size_t bytes);

/* What a snapshot says of itself; its header alone is checked. [owner thread] */
typedef struct cairn_snapshot_info {
    uint32_t struct_size;
    int32_t version;
    int32_t of_session;   /* 1: cairn_session_load takes it; 0: cairn_page_tables_load */
    int32_t token_count;
    uint64_t pages_bytes; /* of all pages in all caches */
    uint64_t state_bytes;
} cairn_snapshot_info;
CAIRN_API cairn_status cairn_snapshot_describe(cairn_runtime *rt, const void *memory,
                                               size_t bytes, cairn_snapshot_info *info);

/* ---- 3  Ops ------------------------------------------------------------------------------------ */
/* Each op enqueues on the current stream (CPU: is done on return), writes every element of its
 * outputs, touches nothing else, and can be captured in a graph after one call outside it. Ops that
 * need workspace share the runtime's: order them by one stream or by events. All are [owner thread].
 * Common errors: INVALID_ARGUMENT names the argument and nothing is written.
 *
 * What every op holds its arguments to, on both backends alike and before anything is done:
 *   extents    each is 0 to 2^31 - 1, their product, a zero counted as 1, below 2^59; rows that may
 *              stride do not overlap, all else is dense (strides of a single row or of nothing may
 *              hold anything)
 *   addresses  data that is not empty is there and a multiple of its element's size; a multiple of 16
 *              bytes: a paged cache, k and v of kv_append, x of linear; of 4: the cache of copy_pages;
 *              of 2: weights in blocks
 *   owners     a tensor lies where the runtime's backend does, a handle is of the same runtime
 *   overlap    what is written shares no byte with any other argument, but where its comment names
 *              the one that it may be */

typedef enum cairn_order {
    CAIRN_ORDER_POSITION = 0, /* ascending position */
    CAIRN_ORDER_SCORE = 1     /* descending score, lowest position first among equals */
} cairn_order;

/* topk: the k highest scores of each row, exactly, for any input.
 *
 * Row r holds the candidates scores[r, start .. start + length); an index counts from `start` (POS).
 * Equal scores keep the lowest position; -0 equals +0; NaN ranks below -inf. Output rows are a
 * dense prefix of min(k, length) entries, then -1 (values: -inf). In position order without values
 * a row of length <= k is never read; with n <= k, scores may then have no data at all. The result
 * depends on that row alone, bit for bit.
 * A start outside [0, n] or a length outside [0, n - start] is clamped and reported as BAD_DATA.
 * Routes of the GPU: small (k <= 32, n <= 1024), block, cluster (sm_90 and up), split (rows <= 512),
 * these with k <= 4096, and radix. Each gives the same bits; one that does not take the shape is
 * UNSUPPORTED, "auto" takes all. On the CPU there is one way, and their names change nothing. */
typedef struct cairn_topk_args {
    uint32_t struct_size;
    int32_t k;                      /* 1 to 4096; larger: route radix, slower */
    const cairn_tensor *scores;     /* [rows, n] f32, f16 or bf16, n <= 2^22; rows may stride */
    const cairn_tensor *lengths;    /* [rows] i32, or NULL: n - start */
    const cairn_tensor *row_starts; /* [rows] i32, or NULL: 0 */
    cairn_tensor *indices;          /* [rows, k] i32, out */
    cairn_tensor *values;           /* [rows, k] f32, out, or NULL */
    int32_t order;                  /* a cairn_order */
    const char *route;              /* forces a route by name; NULL: the config's, "auto" */
} cairn_topk_args;

CAIRN_API cairn_status cairn_topk(cairn_runtime *rt, const cairn_topk_args *args);

/* The route that "auto" takes for rows x n and k on this device, by the config's routes.topk; "cpu" on
 * the CPU. */
CAIRN_API const char *cairn_topk_route(const cairn_runtime *rt, int64_t rows, int64_t n, int32_t k);

/* topk_transform: topk, and in the same launch each position becomes what a gather takes.
 *
 * With page_table (SLOT): page_table[request, position / page_size] * page_size + position %
 * page_size; a row's request is requests[row], or without it row / (rows / R): the consecutive rows
 * of a request, such as its drafts, share its table. With offsets (FLAT): position + offsets[row].
 * Exactly one of the two is given. Entries follow the order of the positions chosen; the rest are
 * -1, and so is a position on no page (past the table, or a page id below 0) or whose place is below
 * 0 or above INT32_MAX, reported as BAD_DATA with a request outside the table. The rest is as in
 * cairn_topk. */
typedef struct cairn_topk_transform_args {
    uint32_t struct_size;
    int32_t k;
    const cairn_tensor *scores;     /* [rows, n] as cairn_topk */
    const cairn_tensor *page_table; /* [R, pages] i32 page ids, or NULL */
    const cairn_tensor *offsets;    /* [rows] i32, or NULL */
    const cairn_tensor *requests;   /* [rows] i32, or NULL; only with page_table */
    const cairn_tensor *lengths;    /* [rows] i32, or NULL: n - start */
    const cairn_tensor *row_starts; /* [rows] i32, or NULL: 0 */
    cairn_tensor *indices;          /* [rows, k] i32, out */
    cairn_tensor *values;           /* [rows, k] f32, out, or NULL */
    int32_t page_size;              /* tokens, any; 0: the config's */
    int32_t order;                  /* a cairn_order */
    const char *route;              /* as cairn_topk */
} cairn_topk_transform_args;
CAIRN_API cairn_status cairn_topk_transform(cairn_runtime *rt,
                                            const cairn_topk_transform_args *args);

/* Fills `scores`, a view [count, n], for rows [first, first + count), by work enqueued on the current
 * stream or, on the CPU, done on return. Any other status than CAIRN_OK ends the op with it. */
typedef cairn_status (*cairn_scores_callback)(void *user, int64_t first, int64_t count,
                                              cairn_tensor *scores);

/* topk_rows: topk or topk_transform of scores that memory does not hold at once.
 *
 * `produce` makes the scores of some rows, their top-k is taken, and so on in ascending order; the
 * result is the same for every number of rows at a time. That number is, in this order: the rows of
 * `scores`; those that max_bytes hold; all, when rows * n is below 8,000,000 or the scores as f32
 * take at most half of the free and 0.3 of the total memory; those that half of the free memory
 * holds. It is at least one. Rows of the outputs behind `rows` are padding: -1 and -inf.
 * Without `scores` the memory is allocated and freed in the call, which waits after each part, so
 * that a producer that returns CAIRN_CANCELLED stops the work ([blocks]; less is tried when the
 * device has less than it says). With `scores` nothing is allocated and nothing waits: such a call
 * can be captured in a graph; a fault that only the device sees then counts its row from the part's
 * first. A producer may call other ops of this runtime, and may wait: faults that the device saw are
 * then reported after the call. It must not free what was given here. */
typedef struct cairn_topk_rows_args {
    uint32_t struct_size;
    int32_t k;
    int32_t rows, n;                /* scores are [rows, n]; n <= 2^22 */
    cairn_scores_callback produce;
    void *user;
    cairn_tensor *scores;           /* [c, n] f32, f16 or bf16: memory for c rows; NULL: allocated */
    const cairn_tensor *page_table; /* this and the next two: as in cairn_topk_transform; all NULL: */
    const cairn_tensor *offsets;    /* as cairn_topk */
    const cairn_tensor *requests;
    const cairn_tensor *lengths;    /* [rows] i32, or NULL: n - start */
    const cairn_tensor *row_starts; /* [rows] i32, or NULL: 0 */
    cairn_tensor *indices;          /* [rows or more, k] i32, out */
    cairn_tensor *values;           /* as many rows, [.., k] f32, out, or NULL */
    uint64_t max_bytes;             /* of scores at a time; 0: by the memory there is */
    uint64_t free_bytes;            /* 0: asked of the device */
    uint64_t total_bytes;           /* 0: asked of the device */
    int32_t page_size;              /* tokens, any; 0: the config's */
    int32_t order;                  /* a cairn_order */
    const char *route;              /* as cairn_topk */
} cairn_topk_rows_args;
/* Errors besides the common ones: what `produce` returned, BAD_DATA after all rows are done,
 * OUT_OF_(DEVICE_)MEMORY when not one row fits. */
CAIRN_API cairn_status cairn_topk_rows(cairn_runtime *rt, const cairn_topk_rows_args *args);
/* The rows that cairn_topk_rows would take at a time; looks at rows, n, scores and the bytes alone. */
CAIRN_API cairn_status cairn_topk_rows_plan(cairn_runtime *rt, const cairn_topk_rows_args *args,
                                            int64_t *rows_at_once);

/* prepare_steps: what the kernels of N draft or verify steps read about their batch, from device
 * arrays, in one launch: lengths and their prefix sums, tables, a row-to-request map, work plans.
 *
 * Request b of B holds seq_lens[b] tokens in row requests[b] of `slots`, or of `pages` as
 * cairn_page_tables_tensors has them (its lengths serve as seq_lens). In step s
 *   its length is seq_lens[b] + s * step_offset, in TARGET_VERIFY + draft_tokens more;
 *   it has a rows: 1 in DECODE, draft_tokens in TARGET_VERIFY, accept[b] in DRAFT_EXTEND (which
 *   counts the bonus token, and is part of seq_lens[b]; 0 gives no rows);
 *   its row j sees length - a + 1 + j tokens, "expanded": what an indexer scores; attention over
 *   the selected ones reads the "clipped" min(expanded, index_topk).
 * Rows are numbered request by request, n in all. Requests from count[0] on are padding of a
 * captured graph: seq_len 1 of request 0, no rows in DRAFT_EXTEND. A kv_append that takes their rows
 * writes the first tokens of that request: let row 0 of slots or pages be no live one's then.
 *
 * Written: of each output the elements named below, of a table's row its first `length` slots or
 * ceil(length / page_size) pages; all else is left as it was, so that buffers made for the largest
 * batch serve smaller ones. A tensor named by several steps is written once, for the last of them.
 * B = 0 does nothing. The device reads the lengths at each run of a captured graph; nothing is
 * allocated and the host waits for nothing.
 * A length above what slots and the tables hold, an accept above the length, and rows behind the
 * room of the outputs are cut; an id outside slots gives length 0; all are reported as BAD_DATA. */
typedef enum cairn_step_mode {
    CAIRN_STEP_DECODE = 0, CAIRN_STEP_TARGET_VERIFY = 1, CAIRN_STEP_DRAFT_EXTEND = 2
} cairn_step_mode;

/* Where one step's metadata goes: i32, each NULL when not wanted, each as large as said or larger.
 * R: B in DECODE, B * draft_tokens in TARGET_VERIFY, room for n in DRAFT_EXTEND. */
typedef struct cairn_step_metadata {
    uint32_t struct_size;
    cairn_tensor *cache_seqlens;      /* [B] length */
    cairn_tensor *cu_seqlens_k;       /* [B + 1] prefix sums of length, from 0 */
    cairn_tensor *cu_rows;            /* [B + 1] first row of each request, then n */
    cairn_tensor *max_seqlen_k;       /* [1] the longest length */
    cairn_tensor *cu_seqlens_q;       /* [R + 1] 0 to n: each row is one query */
    cairn_tensor *row_requests;       /* [R] the row's request b: its row of an unexpanded table */
    cairn_tensor *positions;          /* [R] expanded - 1: the POS of the row's own token, which
                                       * kv_append and attend take */
    cairn_tensor *seqlens_expanded;   /* [R] */
    cairn_tensor *seqlens_clipped;    /* [R] */
    cairn_tensor *cu_seqlens_clipped; /* [R + 1] prefix sums of clipped, from 0 */
    cairn_tensor *index_splits;       /* [R + 1] prefix sums of ceil(expanded / index_split) */
    cairn_tensor *index_schedule;     /* [W + 1, 2] over them; W workers, see below */
    cairn_tensor *attend_splits;      /* [R + 1] prefix sums of ceil(clipped / attend_split) */
    cairn_tensor *attend_schedule;    /* [W + 1, 2] */
    cairn_tensor *token_table;        /* [B, columns], expanded [R, columns]: SLOT of each POS */
    cairn_tensor *page_table;         /* [B, pages], expanded [R, pages]: page id, -1 where slots
                                       * are negative; with page_size 1 it is the token table */
} cairn_step_metadata;

/* A schedule divides all splits, in the order of rows, evenly among W workers, the first ones
 * taking one more: worker w goes from (row, split of the row) schedule[w] up to schedule[w + 1];
 * the end is (n, 0). It changes when a length crosses a multiple of the split (256 -> 257). */
typedef struct cairn_prepare_steps_args {
    uint32_t struct_size;
    int32_t mode;                 /* a cairn_step_mode */
    int32_t step_count;           /* N, 1 to 16 */
    int32_t step_offset;          /* tokens that each step adds; 0: all see the same lengths */
    int32_t draft_tokens;         /* TARGET_VERIFY: 1 to 1024 */
    int32_t index_topk;           /* 0: 2048 */
    int32_t page_size;            /* tokens, any; 0: the config's */
    int32_t index_split;          /* tokens; 0: 256 */
    int32_t attend_split;         /* tokens; 0: 256 */
    int32_t expand_tables;        /* 1: a table row for each row, not for each request */
    const cairn_tensor *seq_lens; /* [B] i32 */
    const cairn_tensor *slots;    /* [pool, context] i32, SLOT of each POS; rows may stride. The
                                   * slots of a page follow each other. NULL: see pages */
    const cairn_tensor *pages;    /* [pool, max_pages] i32 page ids, negative: none; instead of
                                   * slots. Rows may stride. Both NULL: no tables */
    const cairn_tensor *requests; /* [B] i32 rows of slots or pages, or NULL: b */
    const cairn_tensor *accept;   /* [B] i32; DRAFT_EXTEND */
    const cairn_tensor *count;    /* [1] i32, or NULL: B */
    const cairn_step_metadata *steps; /* [step_count] */
} cairn_prepare_steps_args;
CAIRN_API cairn_status cairn_prepare_steps(cairn_runtime *rt, const cairn_prepare_steps_args *args);

/* prefix_chunks: which slots each chunk of a long cached prefix reads, and how many tokens of each
 * request: for attention over the prefix in parts of bounded memory, merged by their lse.
 *
 * L = max(1, capacity / B) tokens of each request go into a chunk, whatever the pages. Chunk c of
 * request b is tokens [c L, min(prefix_lens[b], (c + 1) L)), none behind the prefix; n = ceil(longest
 * prefix / L) chunks hold something. All C rows of starts, lens and cu_lens are written (lens 0 from
 * chunk n on), and the first cu_lens[c, B] of a row of kv_indices; the rest is left as it was.
 * A prefix longer than slots (pages) or C L is cut, an id outside them gives none; both are reported
 * as BAD_DATA. B = 0 does nothing. Nothing is allocated and the host waits for nothing. */
typedef struct cairn_prefix_chunks_args {
    uint32_t struct_size;
    int32_t capacity;                /* tokens of a chunk, of all requests; 0: 131072 */
    const cairn_tensor *prefix_lens; /* [B] i32 */
    int32_t page_size;               /* tokens, any; 0: the config's; only with pages */
    const cairn_tensor *slots;       /* [pool, context] i32, SLOT of each POS; rows may stride */
    const cairn_tensor *pages;       /* [pool, max_pages] i32 page ids, negative: none, which gives
                                      * -1; instead of slots. Its context: max_pages * page_size */
    const cairn_tensor *requests;    /* [B] i32 rows of slots or pages, or NULL: b */
    cairn_tensor *chunk_count;       /* [1] i32 n; like all outputs NULL when not wanted */
    cairn_tensor *starts;            /* [C, B] i32 c L */
    cairn_tensor *lens;              /* [C, B] i32 */
    cairn_tensor *cu_lens;           /* [C, B + 1] i32 prefix sums of lens, from 0 */
    cairn_tensor *kv_indices;        /* [C, K] i32 slots, request by request; K >= B min(L, context) */
} cairn_prefix_chunks_args;
CAIRN_API cairn_status cairn_prefix_chunks(cairn_runtime *rt, const cairn_prefix_chunks_args *args);

/* Weights of a matrix, plain or in GGUF blocks: blocks are a u8 tensor [out, bytes of a row] whose
 * type is named beside it; BLOCK_NONE means the tensor's own dtype, f32, f16 or bf16, [out, in]. */
typedef enum cairn_block {
    CAIRN_BLOCK_NONE = 0, CAIRN_BLOCK_Q4_0 = 2, CAIRN_BLOCK_Q4_1 = 3, CAIRN_BLOCK_Q5_0 = 6,
    CAIRN_BLOCK_Q5_1 = 7, CAIRN_BLOCK_Q8_0 = 8,
    CAIRN_BLOCK_Q4_K = 12, CAIRN_BLOCK_Q5_K = 13, CAIRN_BLOCK_Q6_K = 14 /* rows of 256 values each */
} cairn_block;

/* embed: out[r] = table[ids[r]], dequantised. An id outside the table gives zeros and BAD_DATA. hidden is
 * a multiple of 8. */
typedef struct cairn_embed_args {
    uint32_t struct_size;
    int32_t block;             /* a cairn_block */
    const cairn_tensor *ids;   /* [rows] i32 */
    const cairn_tensor *table; /* [vocab, hidden] or blocks */
    cairn_tensor *out;         /* [rows, hidden] f32 */
} cairn_embed_args;
CAIRN_API cairn_status cairn_embed(cairn_runtime *rt, const cairn_embed_args *args);

/* rmsnorm: out = x * weight / sqrt(mean(x^2) + epsilon), f32 inside. out may be x. */
typedef struct cairn_rmsnorm_args {
    uint32_t struct_size;
    float epsilon;              /* 0: 1e-5 */
    const cairn_tensor *x;      /* [rows, n] f32 */
    const cairn_tensor *weight; /* [n] f32 */
    cairn_tensor *out;          /* [rows, n] f32 */
} cairn_rmsnorm_args;
CAIRN_API cairn_status cairn_rmsnorm(cairn_runtime *rt, const cairn_rmsnorm_args *args);

/* rope: rotates pair j of each head by positions[r] * base^(-2j / rotary_dim). Pairs are (2j, 2j+1),
 * or with half_split (j, j + rotary_dim / 2); what lies behind rotary_dim is copied. out may be x. */
typedef struct cairn_rope_args {
    uint32_t struct_size;
    float base;                    /* 0: 10000 */
    int32_t rotary_dim;            /* 0: head_dim; even */
    int32_t half_split;            /* 0: interleaved */
    const cairn_tensor *x;         /* [rows, heads, head_dim] f32 */
    const cairn_tensor *positions; /* [rows] i32, >= 0 */
    cairn_tensor *out;             /* as x */
} cairn_rope_args;
CAIRN_API cairn_status cairn_rope(cairn_runtime *rt, const cairn_rope_args *args);

/* linear: out[r, o] = sum over i of x[r, i] * weight[o, i] (+ out[r, o] with accumulate), summed in
 * f32. On the GPU x and the weights enter the product as f16; a row's result does not depend on the
 * other rows. `in` is a multiple of 32. Blocks of Q4_0 with `in` a multiple of 256, of Q4_1 with 128,
 * `out` a multiple of 16, at an address that is one of 16, are read in place as the steps of a model
 * read theirs, with the same bits. */
typedef struct cairn_linear_args {
    uint32_t struct_size;
    int32_t block;              /* a cairn_block */
    int32_t accumulate;         /* 1 adds to what out holds */
    const cairn_tensor *x;      /* [rows, in] f32 */
    const cairn_tensor *weight; /* [out, in] or blocks */
    cairn_tensor *out;          /* [rows, out] f32 */
} cairn_linear_args;
CAIRN_API cairn_status cairn_linear(cairn_runtime *rt, const cairn_linear_args *args);

/* swiglu: out = silu(gate) * up. out may be gate or up. */
typedef struct cairn_swiglu_args {
    uint32_t struct_size;
    const cairn_tensor *gate; /* [rows, n] f32 */
    const cairn_tensor *up;   /* [rows, n] f32 */
    cairn_tensor *out;        /* [rows, n] f32 */
} cairn_swiglu_args;
CAIRN_API cairn_status cairn_swiglu(cairn_runtime *rt, const cairn_swiglu_args *args);

/* THE PAGED CACHE of the ops below, one layer of it: f16 [pages, 2, kv_heads, page_size, head_dim],
 * K before V, so that a page of one head is contiguous. Row r belongs to sequence sequences[r],
 * whose logical page c is the physical page page_table[sequence, c]; positions are logical (POS).
 * head_dim is a multiple of 16 up to 256; attend and attend_pages take a page_size that is one, too.
 * An id or position out of range skips the row (output zeros) and reports BAD_DATA. */
typedef struct cairn_pages {
    cairn_tensor *cache;            /* [pages, 2, kv_heads, page_size, head_dim] f16 */
    const cairn_tensor *page_table; /* [sequences, max_pages] i32, -1: no page */
    const cairn_tensor *sequences;  /* [rows] i32, or NULL: row r is sequence r */
    const cairn_tensor *positions;  /* [rows] i32: the row's own position */
} cairn_pages;

/* kv_append: writes each row's K (rotated by rope_base if that is not 0) and V into its slot.
 *
 * Values are rounded to the cache's dtype, f16, bf16, f32 or e4m3. Into an e4m3 cache goes x / s
 * with s = max(|x| of the row's head, 1e-4) / 448, and s to `scales`. Pairs rotate as in cairn_rope.
 * k, v and the cache are aligned to 16 bytes. Two rows of one slot are the caller's error: which one
 * stays is not defined. */
typedef struct cairn_kv_append_args {
    uint32_t struct_size;
    float rope_base;       /* 0: no rotation */
    cairn_pages pages;     /* the cache may be f16, bf16, f32 or e4m3 */
    const cairn_tensor *k; /* [rows, kv_heads, head_dim] f32, f16 or bf16 */
    const cairn_tensor *v; /* as k */
    cairn_tensor *scales;  /* [pages, 2, kv_heads, page_size] f32 with an e4m3 cache, else NULL */
    int32_t rotary_dim;    /* 0: head_dim; a multiple of 16 */
    int32_t half_split;    /* 0: interleaved pairs */
    cairn_tensor *latent;  /* instead of pages.cache: a latent cache as in cairn_attend_tokens_args. Then
                            * k is [rows, 1, 512], v [rows, 1, 64], which alone is rotated, over all of
                            * its values; a u8 slot scales each 128 values of k by themselves */
} cairn_kv_append_args;
CAIRN_API cairn_status cairn_kv_append(cairn_runtime *rt, const cairn_kv_append_args *args);

/* kv_collate: what a verify step accepted moves into place, K and V of all layers in one launch.
 *
 * Entry g < accepted[s] of sequence s goes from position bases[s] + source to bases[s] + g, where
 * source is sources[s, g], ascending strictly, or without `sources` g * stride. Entries whose source
 * is g stay; nothing else is touched, and ranges may overlap. Keys are not rotated again.
 * A count outside [0, most] is clamped, a sequence whose sources do not ascend is left alone, an
 * entry off the page table is skipped; all are BAD_DATA. At most 192 layers go in one launch. */
typedef struct cairn_kv_collate_args {
    uint32_t struct_size;
    int32_t layers;
    cairn_tensor *const *caches;    /* [layers] of [pages, 2, kv_heads, page_size, head_dim], alike
                                     * and distinct; any dtype of cairn_kv_append's */
    cairn_tensor *const *scales;    /* [layers] as cairn_kv_append's, or NULL */
    const cairn_tensor *page_table; /* [sequences, max_pages] i32, -1: no page */
    const cairn_tensor *bases;      /* [sequences] i32: position of entry 0 */
    const cairn_tensor *accepted;   /* [sequences] i32: entries kept */
    const cairn_tensor *sources;    /* [sequences, most] i32, or NULL */
    int32_t stride;                 /* without sources; 1 or more */
    int32_t most;                   /* 0: the width of sources; entries of a sequence at most */
} cairn_kv_collate_args;
CAIRN_API cairn_status cairn_kv_collate(cairn_runtime *rt, const cairn_kv_collate_args *args);

/* copy_pages: cache[to] = cache[from] for each pair; a pair with -1 is skipped, so is one out of
 * range, reported as BAD_DATA. A page written here must stand in no other pair. */
typedef struct cairn_copy_pages_args {
    uint32_t struct_size;
    int32_t layers;             /* 1: the cache is [layers, pages, ...]; 0: [pages, ...] */
    cairn_tensor *cache;        /* any dtype, a page's bytes a multiple of 4 */
    const cairn_tensor *copies; /* [n, 2] i32 page ids: from, to */
} cairn_copy_pages_args;
CAIRN_API cairn_status cairn_copy_pages(cairn_runtime *rt, const cairn_copy_pages_args *args);

/* What the ids of a list of tokens count. */
typedef enum cairn_space { CAIRN_SPACE_SLOT = 0, CAIRN_SPACE_FLAT = 1 } cairn_space;
/* Of what attend_pages attends: all in one softmax, the selected pages, or what is there besides. */
typedef enum cairn_part {
    CAIRN_PART_FUSED = 0, CAIRN_PART_PAGES = 1, CAIRN_PART_WINDOW = 2
} cairn_part;

/* What attend and attend_pages take besides. The page table may come as page_indices, where sequence
 * s has page_indptr[s] .. page_indptr[s + 1] - 1, with pages.page_table NULL: the same bits. A
 * position behind the last page's tokens skips the row and reports BAD_DATA. */
typedef struct cairn_pages_more {
    const cairn_tensor *scales;        /* [pages, 2, kv_heads, page_size] f32 with an e4m3 cache, as
                                        * cairn_kv_append writes them, else NULL */
    const cairn_tensor *page_indptr;   /* [sequences + 1] i32, or NULL */
    const cairn_tensor *page_indices;  /* [n] i32 physical ids */
    const cairn_tensor *last_page_len; /* [sequences] i32 tokens of each last page; NULL: page_size */
    float softcap;                     /* 0, or a scaled logit s counts as softcap tanh(s / softcap) */
    int32_t reserved;
} cairn_pages_more;

/* attend: causal attention over the paged cache: row r sees tokens t <= positions[r], with window
 * W > 0 only t < sinks and t >= max(0, floor((i - W + 1) / S) * S), each once. heads is a multiple
 * of kv_heads. lse is the natural log of the sum of exp of the scaled logits; a row that sees nothing
 * gives 0 and -inf. On a GPU keys, values and queries are rounded to f16 (+-65504 at most).
 *
 * With `bases` the rows are those of a step, whose entry 0 stands at position bases[s] of sequence s:
 * a row sees all before, and of the step's entries those that its mask names. The mask is bit
 * (row * step_rows + entry) % 8 of byte (row * step_rows + entry) / 8 of mask[s]; or, without one,
 * that of draft and verify: with k = draft_length the entries are the (k + 1)^2 of [x0, d1 .. dk], each
 * followed by k masks; a row sees the tokens up to its own, and its token's masks up to itself. A row
 * that is no entry of its step is skipped and reported as BAD_DATA. Not with a window.
 *
 * With kv_indices a row sees, whatever its position, the slots kv_indices[cu_lens[s]] ..
 * kv_indices[cu_lens[s + 1] - 1] (a row each of prefix_chunks' outputs; -1 and what is out of range
 * is skipped, the latter reported as BAD_DATA); pages.page_table and pages.positions are NULL, and
 * merge_states puts the chunks together.
 *
 * With `prompt` rows that stand by sequence read each key once for many of them on a GPU, as the rows
 * of a step do: for prompts, and for chunks of prompts. A row's bits are the same whatever rows stand
 * beside it, and other bits than without. Not with kv_indices. */
typedef struct cairn_attend_args {
    uint32_t struct_size;
    float scale;           /* 0: head_dim^-0.5 */
    int32_t window, sinks; /* in tokens; window 0: all */
    cairn_pages pages;     /* the cache may be f16, bf16, f32 or e4m3 */
    const cairn_tensor *q; /* [rows, heads, head_dim] f32, f16 or bf16 */
    cairn_tensor *out;     /* [rows, heads, head_dim] f32 */
    cairn_tensor *lse;     /* [rows, heads] f32, or NULL */
    cairn_pages_more more;
    const cairn_tensor *bases;      /* [sequences] i32, or NULL */
    const cairn_tensor *mask;       /* [sequences, bytes] u8, or NULL */
    int32_t step_rows;              /* with mask: entries of a step */
    int32_t draft_length;           /* without: k, 0 to 16 */
    const cairn_tensor *kv_indices; /* [n] i32 SLOT ids, or NULL */
    const cairn_tensor *cu_lens;    /* [sequences + 1] i32 */
    int32_t prompt;                 /* 1: many rows of a sequence share its keys */
    int32_t reserved;
} cairn_attend_args;
CAIRN_API cairn_status cairn_attend(cairn_runtime *rt, const cairn_attend_args *args);

/* attend_tokens: attention over a list of tokens for each row: the slots that it names (page *
 * page_size + slot), whatever stands before or behind them; -1 is skipped, what is out of range too,
 * reported as BAD_DATA; one that stands twice counts twice. Ids of the space FLAT are those of a cache
 * with one slot a page, [tokens, 2, kv_heads, 1, head_dim].
 *
 * A latent cache (MLA) has one KV head; its 576 keys' values are q's head_dim, and the first 512 of
 * them are the values, too: out is [rows, heads, 512]. A slot of u8 holds 656 bytes: 512 e4m3, four
 * f32 scales of 128 values each, 64 bf16. */
typedef struct cairn_attend_tokens_args {
    uint32_t struct_size;
    int32_t space;                /* CAIRN_SPACE_SLOT or _FLAT */
    float scale;                  /* 0: head_dim^-0.5 */
    float softcap;                /* as in cairn_pages_more */
    const cairn_tensor *q;        /* [rows, heads, head_dim] f32, f16 or bf16 */
    const cairn_tensor *cache;    /* [pages, 2, kv_heads, page_size, head_dim], page_size 1 or more;
                                   * f16, bf16, f32 or e4m3 */
    const cairn_tensor *scales;   /* as in cairn_pages_more */
    const cairn_tensor *tokens;   /* [rows, topk] i32 */
    cairn_tensor *out;            /* [rows, heads, head_dim] f32 */
    cairn_tensor *lse;            /* [rows, heads] f32, or NULL */
    const cairn_tensor *latent;   /* instead of cache: [pages, page_size, 576] f16, bf16 or f32, or
                                   * [pages, page_size, 656] u8 */
} cairn_attend_tokens_args;
CAIRN_API cairn_status cairn_attend_tokens(cairn_runtime *rt,
                                           const cairn_attend_tokens_args *args);

/* merge_states: attention over parts of the keys put together by their lse:
 * out = sum_c e^(lse_c - lse) part_c, lse = ln sum_c e^(lse_c), c ascending. A part with lse -inf
 * counts nothing, whatever it holds; none at all gives 0 and -inf. */
typedef struct cairn_merge_states_args {
    uint32_t struct_size;
    int32_t reserved;
    const cairn_tensor *parts; /* [C, rows, heads, head_dim] f32 */
    const cairn_tensor *lses;  /* [C, rows, heads] f32 */
    cairn_tensor *out;         /* [rows, heads, head_dim] f32 */
    cairn_tensor *lse;         /* [rows, heads] f32, or NULL */
} cairn_merge_states_args;
CAIRN_API cairn_status cairn_merge_states(cairn_runtime *rt, const cairn_merge_states_args *args);

/* score_pages: for each KV head the score of every candidate page c, 0 <= c < floor((i - W + 1) / S)
 * with window W > 0, else c < floor(i / S); -inf elsewhere. Per query head, `minmax` is
 * D^-0.5 * sum over d of max(q_d lo_d, q_d hi_d), `mean` D^-0.5 * q . mean, `landmark` D^-0.5 * q . k
 * of the page's last slot; over the heads g of one KV head `group` sums these s_g, `head` takes the
 * maximum, `softmax_head` that of s_g - ln(e^lse_g + sum over the candidates of e^s_g), which needs
 * head_scores. Bounds come from the cached keys (page_bounds writes them). */
typedef struct cairn_score_pages_args {
    uint32_t struct_size;
    int32_t source;             /* CAIRN_SOURCE_MINMAX, _MEAN or _LANDMARK */
    int32_t strategy;           /* CAIRN_STRATEGY_GROUP, _HEAD or _SOFTMAX_HEAD */
    int32_t window;
    cairn_pages pages;          /* cache: for its shape; only `landmark` reads its keys */
    const cairn_tensor *bounds; /* [pages, kv_heads, 2, head_dim] f16: lo and hi, or mean and rest;
                                 * NULL with landmarks */
    const cairn_tensor *q;      /* [rows, heads, head_dim] f32 */
    cairn_tensor *scores;       /* [rows, kv_heads, max_pages] f32 */
    cairn_tensor *head_scores;  /* [rows, heads, max_pages] f32, each query head's own, or NULL */
    float scale;                /* in place of D^-0.5; 0: that */
    int32_t reserved;
    const cairn_tensor *lse;    /* [rows, heads] f32 of what is attended besides, for softmax_head;
                                 * NULL: -inf */
} cairn_score_pages_args;
CAIRN_API cairn_status cairn_score_pages(cairn_runtime *rt, const cairn_score_pages_args *args);

/* page_bounds: bounds of the listed physical pages from their keys, all slots taken as full. */
typedef struct cairn_page_bounds_args {
    uint32_t struct_size;
    int32_t source;            /* CAIRN_SOURCE_MINMAX or _MEAN */
    const cairn_tensor *cache; /* as in cairn_pages */
    const cairn_tensor *ids;   /* [n] i32 */
    cairn_tensor *bounds;      /* [pages, kv_heads, 2, head_dim] f16: lowest and highest key of each
                                * dimension; or the mean, and what rounding it to f16 left */
} cairn_page_bounds_args;
CAIRN_API cairn_status cairn_page_bounds(cairn_runtime *rt, const cairn_page_bounds_args *args);

/* select_pages: the topk pages of each KV head with the highest scores above -inf, ascending, then
 * -1; equal scores keep the lowest page. On request it hands out all that is above -inf, too. */
typedef struct cairn_select_pages_args {
    uint32_t struct_size;
    int32_t topk;
    const cairn_tensor *scores; /* [rows, kv_heads, max_pages] f32, -inf: no candidate */
    cairn_tensor *selected;     /* [rows, kv_heads, topk] i32, logical page ids */
    cairn_tensor *chosen;       /* [rows, kv_heads, topk] f32: their scores, then -inf, or NULL */
    const cairn_tensor *head_scores; /* [rows, heads, max_pages] f32: score_pages', or NULL */
    cairn_tensor *head_chosen;  /* [rows, heads, topk] f32: of these what `selected` names, then -inf:
                                 * weights of attend_pages; NULL without head_scores */
    cairn_tensor *candidates;   /* [rows, kv_heads, max_pages] i32: ascending, then -1, or NULL */
    cairn_tensor *counts;       /* [rows, kv_heads] i32: how many, or NULL */
} cairn_select_pages_args;
CAIRN_API cairn_status cairn_select_pages(cairn_runtime *rt, const cairn_select_pages_args *args);

/* attend_pages: attention over what a sparse decode step attends: t < sinks, the window grown to
 * its page's start, the row's own page, and the selected pages; each token once.
 *
 * The form `flat` is one softmax over all. In `two_level` each selected page has a softmax of its own,
 * and its output counts by a second softmax over the pages' weights (logarithms, as select_pages'
 * scores are) and the lse of all else, the window. A weight of -inf or NaN leaves its page out; an
 * own page's lse as its weight makes both forms the same. `part` leaves the window or the selected
 * pages out: so each stands alone, with a softmax and lse of its own. Sinks in a selected page are that
 * page's; the window alone has all of them, so that merged with the pages alone it counts those twice.
 * With `landmarks` the last slot of no page is attended. An empty selection without a window gives 0
 * and lse -inf. */
typedef struct cairn_attend_pages_args {
    uint32_t struct_size;
    float scale;                  /* 0: head_dim^-0.5 */
    int32_t window, sinks;
    cairn_pages pages;
    const cairn_tensor *selected; /* [rows, kv_heads, topk] i32 logical, -1 skipped, no duplicates */
    const cairn_tensor *q;        /* [rows, heads, head_dim] f32, f16 or bf16 */
    cairn_tensor *out;            /* [rows, heads, head_dim] f32 */
    cairn_tensor *lse;            /* [rows, heads] f32, or NULL */
    cairn_pages_more more;
    int32_t form;                 /* CAIRN_FORM_FLAT or _TWO_LEVEL */
    int32_t part;                 /* CAIRN_PART_FUSED, _PAGES or _WINDOW */
    int32_t landmarks;            /* not 0: the last slot of a page is a landmark's */
    int32_t reserved;
    const cairn_tensor *weights;  /* with two_level: f32 [rows, kv_heads, topk] (strategy group), or
                                   * [rows, heads, topk], as `selected` stands */
} cairn_attend_pages_args;
CAIRN_API cairn_status cairn_attend_pages(cairn_runtime *rt, const cairn_attend_pages_args *args);

/* THE TOKEN INDEXER of sparse attention over tokens (DSA). Row i scores key j of its request with
 *
 *     logit[i, j] = key_scale[j] * sum over heads h of weights[i, h] * max(0, q[i, h] . key[j])
 *
 * and attends the k tokens with the highest logits. Queries and keys are 128 e4m3 values; the scales
 * of q and all constant factors are part of the weights. index_qk makes them, index_store keeps keys
 * in a paged cache of their own, index_topk chooses; the parts of it stand alone, too.
 * The cache is u8 [pages, page_size, 132]: a page holds its keys, page_size x 128 bytes, then their
 * scales, page_size f32 (64 tokens: 8448 bytes); page_size is a multiple of 16. Page ids and tables
 * are those of the KV cache. */

/* quantize_fp8: each block of 128 values x as e4m3(x / s) and s = max(|x|, 1e-4) / 448, or with
 * power_of_two the least power of two that is not below that. Rounds to nearest even; infinities
 * saturate, NaN stays NaN. x and out are aligned to 16 bytes. */
typedef struct cairn_quantize_fp8_args {
    uint32_t struct_size;
    int32_t power_of_two;  /* 1: scales are powers of two (ue8m0) */
    const cairn_tensor *x; /* [rows, heads, 128] f32, f16 or bf16 */
    cairn_tensor *out;     /* [rows, heads, 128] e4m3 */
    cairn_tensor *scales;  /* [rows, heads] f32 */
} cairn_quantize_fp8_args;
CAIRN_API cairn_status cairn_quantize_fp8(cairn_runtime *rt, const cairn_quantize_fp8_args *args);

/* index_store: keys and their scales into slots of the cache. A slot of -1 is skipped; so is one out
 * of range, reported as BAD_DATA. Two rows of one slot are the caller's error. */
typedef struct cairn_index_store_args {
    uint32_t struct_size;
    const cairn_tensor *keys;       /* [rows, 128] e4m3 */
    const cairn_tensor *key_scales; /* [rows] f32 */
    const cairn_tensor *slots;      /* [rows] i32: page * page_size + slot of the page */
    cairn_tensor *cache;            /* [pages, page_size, 132] u8 */
} cairn_index_store_args;
CAIRN_API cairn_status cairn_index_store(cairn_runtime *rt, const cairn_index_store_args *args);

/* index_gather: keys and scales out of the cache, one behind the other, as index_logits takes them:
 * of the listed slots, or of the first cu_seqlens[b + 1] - cu_seqlens[b] tokens of each request b,
 * which go to rows cu_seqlens[b] on; rows of no request are left as they were. A slot of -1 gives
 * zeros; so does one out of range and a token on no page, reported as BAD_DATA. */
typedef struct cairn_index_gather_args {
    uint32_t struct_size;
    const cairn_tensor *cache;      /* [pages, page_size, 132] u8 */
    const cairn_tensor *slots;      /* [rows] i32, or NULL: by the next two */
    const cairn_tensor *page_table; /* [requests, max_pages] i32 */
    const cairn_tensor *cu_seqlens; /* [requests + 1] i32, ascending */
    cairn_tensor *keys;             /* [rows, 128] e4m3 */
    cairn_tensor *key_scales;       /* [rows] f32 */
} cairn_index_gather_args;
CAIRN_API cairn_status cairn_index_gather(cairn_runtime *rt, const cairn_index_gather_args *args);

/* index_logits: the logits of rows whose keys lie one behind the other, such as the requests of a
 * prompt after index_gather. Row i scores its window of keys [row_starts[i], row_starts[i] +
 * lengths[i]); elsewhere out is -inf with `clean`, else left as it was. A logit depends on its row and
 * key alone, bit for bit; where tensor cores multiply e4m3 (sm_89, sm_90, sm_120) they keep 13 bits of
 * the largest product, so that it is off by up to 2^-10 of the magnitudes it adds, elsewhere by some
 * 2^-20. A dot product that is NaN counts as 0; a scale that is NaN gives NaN. A start outside [0, n]
 * or a length outside [0, n - start] is cut and reported as BAD_DATA. */
typedef struct cairn_index_logits_args {
    uint32_t struct_size;
    int32_t clean;                  /* 1: -inf outside the windows */
    const cairn_tensor *q;          /* [rows, heads, 128] e4m3, heads a multiple of 8 up to 256; like
                                     * keys and caches aligned to 16 bytes */
    const cairn_tensor *weights;    /* [rows, heads] f32 */
    const cairn_tensor *keys;       /* [n, 128] e4m3, n <= 2^22 */
    const cairn_tensor *key_scales; /* [n] f32 */
    const cairn_tensor *row_starts; /* [rows] i32, or NULL: 0 */
    const cairn_tensor *lengths;    /* [rows] i32, or NULL: n - start */
    cairn_tensor *out;              /* [rows, n] f32; rows may stride */
} cairn_index_logits_args;
CAIRN_API cairn_status cairn_index_logits(cairn_runtime *rt, const cairn_index_logits_args *args);

/* index_logits_paged: the logits of rows whose keys lie in the cache: decode steps, any number of
 * drafts. Row i belongs to requests[i], or without it to request i / (rows / R), and scores the first
 * lengths[i] keys of that request (prepare_steps' seqlens_expanded). A key on no page gets -inf and
 * reports BAD_DATA; so do all keys of a row of no request. The rest is as in index_logits.
 * With `schedule`, prepare_steps' index_schedule for the same lengths and `split`, its workers divide
 * the work on the GPU; without one it is divided evenly by n. The logits are the same. One that names
 * splits which the lengths do not have is BAD_DATA. */
typedef struct cairn_index_logits_paged_args {
    uint32_t struct_size;
    int32_t n;                      /* columns of out: keys of a row at most */
    int32_t clean;                  /* 1: -inf behind a row's length */
    int32_t split;                  /* tokens, a multiple of 16; 0: 256 */
    const cairn_tensor *q;          /* [rows, heads, 128] e4m3 */
    const cairn_tensor *weights;    /* [rows, heads] f32 */
    const cairn_tensor *cache;      /* [pages, page_size, 132] u8 */
    const cairn_tensor *page_table; /* [R, max_pages] i32 */
    const cairn_tensor *lengths;    /* [rows] i32 */
    const cairn_tensor *requests;   /* [rows] i32, or NULL */
    const cairn_tensor *schedule;   /* [workers + 1, 2] i32, or NULL */
    cairn_tensor *out;              /* [rows, n] f32; rows may stride */
} cairn_index_logits_paged_args;
CAIRN_API cairn_status cairn_index_logits_paged(cairn_runtime *rt,
                                                const cairn_index_logits_paged_args *args);

/* index_topk: index_logits, of keys or of a cache, and cairn_topk of them in the same call: the k best
 * keys of each row, exactly, as POS, with `slots` as SLOT by page_table, with offsets as FLAT. Logits
 * exist for a few rows at a time, in `scores` or in memory of the call, by the rules of topk_rows; the
 * result is the same, bit for bit, for every number of rows at a time. For rows of at most k keys no
 * logit is made when indices alone are wanted in position order; with n <= k no memory either. */
typedef struct cairn_index_topk_args {
    uint32_t struct_size;
    int32_t k;                      /* 1 to 4096; larger: slower */
    int32_t n;                      /* with cache: keys of a row at most; 0: max_pages * page_size */
    int32_t slots;                  /* 1: indices are SLOT, by page_table */
    const cairn_tensor *q;          /* [rows, heads, 128] e4m3 */
    const cairn_tensor *weights;    /* [rows, heads] f32 */
    const cairn_tensor *keys;       /* [n, 128] e4m3 as in index_logits; or NULL: */
    const cairn_tensor *key_scales; /* [n] f32 */
    const cairn_tensor *cache;      /* [pages, page_size, 132] u8 as in index_logits_paged, or NULL */
    const cairn_tensor *page_table; /* [R, max_pages] i32, with cache or slots */
    const cairn_tensor *requests;   /* [rows] i32, or NULL: i / (rows / R) */
    const cairn_tensor *lengths;    /* [rows] i32; NULL with keys: n - start */
    const cairn_tensor *row_starts; /* [rows] i32, or NULL: 0; indices count from it */
    const cairn_tensor *offsets;    /* [rows] i32: indices are FLAT, position + offset; or NULL */
    cairn_tensor *scores;           /* [c, n] f32: memory for c rows; NULL: allocated */
    cairn_tensor *indices;          /* [rows, k] i32 */
    cairn_tensor *values;           /* [rows, k] f32, or NULL */
    uint64_t max_bytes;             /* these three: as in cairn_topk_rows */
    uint64_t free_bytes;
    uint64_t total_bytes;
    int32_t page_size;              /* of slots without cache; 0: the config's */
    int32_t order;                  /* a cairn_order */
    const char *route;              /* as cairn_topk */
} cairn_index_topk_args;
CAIRN_API cairn_status cairn_index_topk(cairn_runtime *rt, const cairn_index_topk_args *args);

/* index_qk: the indexer's forward for the tokens of a step.
 *
 *     q    = H rope(wq . q_latent), each head as e4m3 with a scale s
 *     keys = H rope(LayerNorm(wk . x)), as e4m3 with key_scales
 *     weights[i, h] = (gate . x)[i, h] * s[i, h] * heads^-0.5 * 128^-0.5
 *
 * rope turns the pairs (j, j + 32), j < 32, of the first 64 values by positions * rope_base^(-j / 32);
 * H is Hadamard's matrix (Sylvester's order) * 128^-0.5, which leaves dot products as they are.
 * LayerNorm has the variance of 128 values. Products are those of cairn_linear. Without q_latent, wq,
 * gate, q and weights only the keys are made: a prompt of at most k tokens needs no more. A position
 * below 0 counts as 0 and reports BAD_DATA. */
typedef struct cairn_index_qk_args {
    uint32_t struct_size;
    int32_t block;                   /* a cairn_block, of wk and wq */
    float rope_base;                 /* 0: 10000 */
    float epsilon;                   /* of LayerNorm; 0: 1e-6 */
    int32_t power_of_two;            /* 1: scales are powers of two */
    const cairn_tensor *x;           /* [rows, hidden] f32 */
    const cairn_tensor *wk;          /* [128, hidden] or blocks */
    const cairn_tensor *norm_weight; /* [128] f32 */
    const cairn_tensor *norm_bias;   /* [128] f32, or NULL: 0 */
    const cairn_tensor *positions;   /* [rows] i32 */
    const cairn_tensor *q_latent;    /* [rows, in] f32, normalised, or NULL */
    const cairn_tensor *wq;          /* [heads * 128, in] or blocks */
    const cairn_tensor *gate;        /* [heads, hidden] f32, f16 or bf16 */
    cairn_tensor *q;                 /* [rows, heads, 128] e4m3 */
    cairn_tensor *weights;           /* [rows, heads] f32 */
    cairn_tensor *keys;              /* [rows, 128] e4m3 */
    cairn_tensor *key_scales;        /* [rows] f32 */
} cairn_index_qk_args;
CAIRN_API cairn_status cairn_index_qk(cairn_runtime *rt, const cairn_index_qk_args *args);

/* index_transform: the positions that topk chose become what a gather takes, bit for bit as
 * cairn_topk_transform writes them: page_table and requests, or offsets, and faults as there. -1 stays
 * -1; below that it is BAD_DATA. indices may be positions. */
typedef struct cairn_index_transform_args {
    uint32_t struct_size;
    int32_t page_size;              /* tokens, any; 0: the config's */
    const cairn_tensor *positions;  /* [rows, k] i32 */
    const cairn_tensor *page_table; /* [R, pages] i32 page ids, or NULL */
    const cairn_tensor *offsets;    /* [rows] i32, or NULL */
    const cairn_tensor *requests;   /* [rows] i32, or NULL; only with page_table */
    cairn_tensor *indices;          /* [rows, k] i32 */
} cairn_index_transform_args;
CAIRN_API cairn_status cairn_index_transform(cairn_runtime *rt,
                                             const cairn_index_transform_args *args);

/* SHORT CONVOLUTION of hybrid models: depthwise, causal, K taps, over sequences that stand one after
 * the other in x, with a state that carries the last K - 1 inputs of each on.
 *
 *     u[t, c]   = gate_in[t, c] * x[t, c], rounded to x's dtype (x itself without gate_in)
 *     y[t, c]   = bias[c] + sum over j of weight[c, j] * u[t - (K - 1) + j, c], in f32, j ascending
 *     out[t, c] = gate_out[t, c] * activation(y[t, c])
 *
 * so weight[c, K - 1] meets the current token, and the inputs before a sequence's first token are
 * its state. Splitting a sequence over calls in any way changes no bit of out or state.
 * A state index of -1, or below reserved_slots, is PAD: that sequence is skipped, its rows of out
 * and its state are left as they are. A sequence of no tokens leaves its state as it is. Tokens
 * outside [0, tokens] or a state index outside the slots skip the sequence and report BAD_DATA.
 * No two sequences of a call have one state, but those that are PAD: on a GPU they run at once.
 * x, gates and out may have rows with a stride, as parts of one projection. */
typedef enum cairn_activation { CAIRN_ACTIVATION_NONE = 0, CAIRN_ACTIVATION_SILU = 1 } cairn_activation;

typedef struct cairn_conv {
    const cairn_tensor *x;        /* [tokens, channels] f32, f16 or bf16; all below but the weights
                                   * and the i32 ones have its dtype */
    const cairn_tensor *weight;   /* [channels, K] f32 or x's dtype, K 2 to 8 */
    const cairn_tensor *bias;     /* [channels] as weight, or NULL */
    const cairn_tensor *gate_in;  /* [tokens, channels] or NULL */
    const cairn_tensor *gate_out; /* [tokens, channels] or NULL */
    cairn_tensor *state;          /* [slots, K - 1, channels], oldest first; in and out */
    const cairn_tensor *cu_seqlens;    /* [sequences + 1] i32 first token of each, then the end */
    const cairn_tensor *state_indices; /* [sequences] i32 or more, slots; NULL: s */
    const cairn_tensor *has_initial;   /* [sequences] i32 or more, 0: the state is not read, zeros */
    cairn_tensor *out;            /* [tokens, channels] */
    int32_t activation;           /* a cairn_activation */
    int32_t reserved_slots;       /* slots below are PAD too: 1 for a pool whose slot 0 is null */
} cairn_conv;

/* short_conv: the convolution of prompts, any number and length of sequences in one launch.
 * Without has_initial every sequence starts from zeros; a state that is not to be read may hold
 * anything. The chunk list says which parts of which sequences are done (short_conv_metadata makes
 * it); without one all are, at the price of one more small launch. */
typedef struct cairn_short_conv_args {
    uint32_t struct_size;
    int32_t block_tokens;                /* tokens of a chunk, at least K - 1; 0: 32 */
    cairn_conv conv;                     /* cu_seqlens is needed */
    const cairn_tensor *chunk_sequences; /* [chunks] i32, a dense prefix, then -1; or NULL */
    const cairn_tensor *chunk_offsets;   /* [chunks] i32 chunk of that sequence */
} cairn_short_conv_args;
CAIRN_API cairn_status cairn_short_conv(cairn_runtime *rt, const cairn_short_conv_args *args);

/* short_conv_update: the convolution of decode steps, a few tokens a sequence. Without cu_seqlens
 * sequence s is row s of x; without has_initial every state is read. For drafts, snapshots keeps
 * what any number of accepted tokens needs: the K - 1 inputs before, then those of the step. */
typedef struct cairn_short_conv_update_args {
    uint32_t struct_size;
    cairn_conv conv;
    cairn_tensor *snapshots; /* [sequences, K - 1 + most, channels] or NULL; rows in use are written,
                              * K - 1 of a sequence without tokens; one of more than `most` tokens
                              * is skipped and reported */
} cairn_short_conv_update_args;
CAIRN_API cairn_status cairn_short_conv_update(cairn_runtime *rt,
                                               const cairn_short_conv_update_args *args);

/* short_conv_restore: sets each sequence's state to what it was after the first accepted[s] tokens
 * of the update that filled the snapshots: rows accepted[s] .. accepted[s] + K - 2, byte for byte.
 * accepted is 0 to that update's tokens; beyond `most` it is reported and the state stays. */
typedef struct cairn_short_conv_restore_args {
    uint32_t struct_size;
    int32_t reserved_slots;
    const cairn_tensor *snapshots;     /* [sequences, K - 1 + most, channels] f32, f16 or bf16 */
    const cairn_tensor *accepted;      /* [sequences] i32 */
    const cairn_tensor *state_indices; /* [sequences] i32 or more; NULL: s */
    cairn_tensor *state;               /* [slots, K - 1, channels] */
} cairn_short_conv_restore_args;
CAIRN_API cairn_status cairn_short_conv_restore(cairn_runtime *rt,
                                                const cairn_short_conv_restore_args *args);

/* Two pinned buffers for arrays that the host makes anew for each step: one is filled while the
 * device still reads the other. bytes is the size of each. cairn_close frees what is left.
 * [owner thread] Errors: INVALID_ARGUMENT, OUT_OF_MEMORY, DEVICE_ERROR. */
typedef struct cairn_staging cairn_staging;
CAIRN_API cairn_status cairn_staging_new(cairn_runtime *rt, size_t bytes, cairn_staging **staging);
/* Waits until the device has read it. NULL is ignored. [blocks] */
CAIRN_API cairn_status cairn_staging_free(cairn_runtime *rt, cairn_staging *staging);

/* counts[8] of short_conv_metadata. */
typedef enum cairn_conv_count {
    CAIRN_CONV_DECODES = 0,       /* requests before the split point */
    CAIRN_CONV_PROMPTS = 1,       /* requests from it on */
    CAIRN_CONV_DECODE_TOKENS = 2, /* tokens before the first prompt's first */
    CAIRN_CONV_PROMPT_TOKENS = 3,
    CAIRN_CONV_CHUNKS = 4,        /* entries of the chunk list */
    CAIRN_CONV_BLOCK_TOKENS = 5,  /* the block size that it is made for */
    CAIRN_CONV_REQUESTS = 6,      /* live ones */
    CAIRN_CONV_ORDERED = 7        /* 1: no decode stands behind a prompt */
} cairn_conv_count;

/* short_conv_metadata: what the short convolutions of all layers need to know of a batch, in one
 * launch from lengths on the device; the host never waits and need not know them.
 *
 * Request r brings tokens [cu_seqlens[r], cu_seqlens[r + 1]) and is seq_lens[r] tokens long with
 * them. Decodes, of at most decode_tokens new tokens, stand before prompts: the split point is the
 * first request with more; what follows it counts as prompts, however short (right, if slower).
 * `order` is the batch order that has no such ones: decodes, then prompts, each as they stood.
 * Requests keep their numbers in all outputs, so that short_conv_update takes decode_indices and
 * short_conv prompt_indices and the chunk list, both with the whole batch's x and cu_seqlens.
 * Outputs of `capacity` entries end in PAD (-1; has_initial: 0), so that a captured graph serves
 * every batch up to it. A length below 0 counts as 0; that, a sequence shorter than its new tokens,
 * live outside [0, requests], and chunks that do not fit the list are reported as BAD_DATA.
 *
 * With `staging` the inputs lie in host memory (device type 1) and are taken over before the call
 * returns: the kernel reads a pinned copy. Then bad lengths are INVALID_ARGUMENT and nothing is
 * written; BUSY, too, writes nothing: the device has yet to read both buffers. Not in a capture. */
typedef struct cairn_short_conv_metadata_args {
    uint32_t struct_size;
    int32_t block_tokens;           /* tokens of a chunk; 0: 32 */
    int32_t decode_tokens;          /* 0: 1; -1: every request is a prompt */
    cairn_staging *staging;         /* 4 * (3 * requests + 2) bytes or more; NULL: device inputs */
    const cairn_tensor *cu_seqlens; /* [requests + 1] i32, requests <= 8192 */
    const cairn_tensor *seq_lens;   /* [requests] i32, or NULL: as long as their new tokens */
    const cairn_tensor *slots;      /* [requests] i32, or [requests, n]: column 0 of a table; NULL: r */
    const cairn_tensor *live;       /* [1] i32 requests in use, or NULL: all */
    cairn_tensor *chunk_sequences;  /* [chunks] i32, out: request of each chunk, then -1; tokens /
                                     * block_tokens + requests entries always suffice */
    cairn_tensor *chunk_offsets;    /* [chunks] i32, out: which chunk of its request, then -1 */
    cairn_tensor *has_initial;      /* [capacity] i32, out, or NULL: 1 when tokens came before */
    cairn_tensor *decode_indices;   /* [capacity] i32, out, or NULL: slots of decodes, -1 elsewhere and of
                                     * one without a new token */
    cairn_tensor *prompt_indices;   /* [capacity] i32, out, or NULL: slots of prompts, -1 elsewhere */
    cairn_tensor *counts;           /* [8] i32, out, or NULL: see cairn_conv_count */
    cairn_tensor *order;            /* [capacity] i32, out, or NULL */
} cairn_short_conv_metadata_args;
CAIRN_API cairn_status cairn_short_conv_metadata(cairn_runtime *rt,
                                                 const cairn_short_conv_metadata_args *args);

/* sample: one token a row. temperature 0: the highest logit, lowest index. Else logits / T, then
 * top_k and top_p (the smallest set reaching p, ties kept) in the stated order, then min_p; drawn
 * with Philox4x32-10(key = seeds[r], counter = positions[r]), so that a row's token depends on
 * nothing else. The repetition penalty divides positive and multiplies other logits of the tokens
 * in `history`. A token whose bit in `mask` is 0 is never drawn: bit id % 32 of word id / 32.
 * Each of temperatures to top_ks stands in place of the number for all rows; in them a value out of
 * range means off, but a min_p above 1, which is as 1; a row gives what it gives alone. logprobs: the
 * logarithm of the softmax of the logits as they are given, best first, equals by their ids. */
typedef struct cairn_sample_args {
    uint32_t struct_size;
    float temperature, top_p /* 0: 1 */, min_p, repetition_penalty /* 0: 1 */;
    int32_t top_k;                 /* 0: off */
    int32_t order;                 /* a cairn_sampling_order */
    const cairn_tensor *logits;    /* [rows, vocab] f32 */
    const cairn_tensor *seeds;     /* [rows] i64, or NULL: 0 */
    const cairn_tensor *positions; /* [rows] i32, or NULL: 0 */
    const cairn_tensor *history;   /* [rows, n] i32, -1 padded, or NULL */
    cairn_tensor *tokens;          /* [rows] i32 */
    const cairn_tensor *mask;      /* [rows, (vocab + 31) / 32] i32, or NULL: all may be drawn */
    const cairn_tensor *temperatures, *top_ps, *min_ps, *penalties; /* [rows] f32, or NULL */
    const cairn_tensor *top_ks;    /* [rows] i32, or NULL */
    cairn_tensor *logprobs;        /* [rows, 1 + n] f32, out, or NULL: of the token, then of the best */
    cairn_tensor *best;            /* [rows, n] i32, out, or NULL (n 0): the ids of the best, n <= 32 */
} cairn_sample_args;
CAIRN_API cairn_status cairn_sample(cairn_runtime *rt, const cairn_sample_args *args);

/* verify_greedy: per sequence the longest prefix of its drafts that equals the argmax of the row
 * before it, and the argmax that follows (the bonus token). */
typedef struct cairn_verify_greedy_args {
    uint32_t struct_size;
    const cairn_tensor *logits; /* [sequences, drafts + 1, vocab] f32 */
    const cairn_tensor *drafts; /* [sequences, drafts] i32, -1: none from here on */
    cairn_tensor *accepted;     /* [sequences] i32: 0 to drafts */
    cairn_tensor *bonus;        /* [sequences] i32 */
} cairn_verify_greedy_args;
CAIRN_API cairn_status cairn_verify_greedy(cairn_runtime *rt,
                                           const cairn_verify_greedy_args *args);

/* sample_probs: the probabilities that `sample` draws each row from: 0 where it cuts, 1 at its token
 * where it draws none (temperature 0). Fields are those of cairn_sample_args. */
typedef struct cairn_sample_probs_args {
    uint32_t struct_size;
    float temperature, top_p /* 0: 1 */, min_p, repetition_penalty /* 0: 1 */;
    int32_t top_k;                 /* 0: off */
    int32_t order;                 /* a cairn_sampling_order */
    const cairn_tensor *logits;    /* [rows, vocab] f32 */
    const cairn_tensor *history;   /* [rows, n] i32, -1 padded, or NULL */
    const cairn_tensor *mask;      /* [rows, (vocab + 31) / 32] i32, or NULL: all may be drawn */
    const cairn_tensor *temperatures, *top_ps, *min_ps, *penalties; /* [rows] f32, or NULL */
    const cairn_tensor *top_ks;    /* [rows] i32, or NULL */
    cairn_tensor *probs;           /* [rows, vocab] f32, out */
} cairn_sample_probs_args;
CAIRN_API cairn_status cairn_sample_probs(cairn_runtime *rt, const cairn_sample_probs_args *args);

/* verify_chain: speculative sampling along a chain. Draft d of probability q stays while u q < p, p
 * the target's probability of it; where one does not, the bonus is drawn from max(0, target - draft
 * probabilities), behind all of them from the target, and from where nothing is left it is the
 * target's most likely. So tokens come as from the target alone, whatever drafted. u and the draw are
 * words 1 and 0 of Philox4x32-10(key = seeds[s], counter = positions[s] + i), in [0, 1). A draft that
 * is no id ends its row, as if it were none: BAD_DATA. */
typedef struct cairn_verify_chain_args {
    uint32_t struct_size;
    const cairn_tensor *target;      /* [sequences, drafts + 1, vocab] f32, as sample_probs gives them */
    const cairn_tensor *drafts;      /* [sequences, drafts] i32 */
    const cairn_tensor *draft_probs; /* [sequences, drafts, vocab] f32, or NULL: 1 at each draft */
    const cairn_tensor *seeds;       /* [sequences] i64, or NULL: 0 */
    const cairn_tensor *positions;   /* [sequences] i32, of the first draft, or NULL: 0 */
    cairn_tensor *tokens;            /* [sequences, drafts + 1] i32, out: accepted, bonus, then -1 */
    cairn_tensor *accepted;          /* [sequences] i32, out: 0 to drafts */
    cairn_tensor *bonus;             /* [sequences] i32, out */
} cairn_verify_chain_args;
CAIRN_API cairn_status cairn_verify_chain(cairn_runtime *rt, const cairn_verify_chain_args *args);

/* ---- 4  Forwards of a model with rows of your own ---------------------------------------------- */

/* The session's first `position` ids, which stand, and rows behind them, in its page tables. */
typedef struct cairn_forward_sequence {
    cairn_session *session; /* no other sequence's */
    int32_t position;       /* of the first row in the cache: 0 to what the session holds */
    int32_t rows;           /* 1 or more */
    int32_t prompt;         /* 1: they attend all and run as appended ids do; 0: as decode steps do, by
                               the config's `selection`: their logits are those of cairn_eval */
    int32_t reserved;
    const uint8_t *mask;    /* [rows, (rows + 7) / 8] bit j % 8 of byte j / 8 of a row: it sees row j, of
                               those up to itself, and all ids before the rows; NULL: all of them.
                               Without prompt, in up to prefill_chunk rows, that attend densely where
                               the mask leaves out any */
    uint64_t mask_bytes;
} cairn_forward_sequence;

/* Batches of rows through the model: for who samples, searches or drafts by means of their own. */
typedef struct cairn_forward_args {
    uint32_t struct_size;
    int32_t sequence_count, row_count; /* of any number: several forwards serve many */
    int32_t logits_count, hidden_count;
    int32_t reserved;
    const cairn_forward_sequence *sequences;
    const int32_t *ids;         /* [row_count] those of the sequences one behind the other; -1 in a row
                                   with a gate: the adapter's mask token */
    const int32_t *rope;        /* [row_count] positions by which the rows turn; NULL: the cache's */
    const uint8_t *gate;        /* [row_count] 1: the session's adapter adds to the row; NULL: as in a
                                   generation: to every row, of a gated one to none */
    const int32_t *logits_rows; /* [logits_count] of which rows, ascending */
    const int32_t *hidden_rows; /* [hidden_count] likewise */
    float *logits;              /* [logits_count, vocab] host, out */
    float *hidden;              /* [hidden_count, hidden] host, out: behind the output norm */
} cairn_forward_args;
/* Afterwards a session holds its first `position` ids and the rows, up to the first whose mask, rope
 * position or gate is not what it would run by itself: such rows and those behind them leave no trace.
 * A next call goes on from there, or from an earlier position where ids were rejected. What a row gives
 * depends on its own sequence alone, to the bit. Requests of the sessions end. On failure the sessions
 * hold what they held; arguments are checked before anything is computed. [blocks]
 * Errors: INVALID_ARGUMENT (by sequence or row: an id or rope position out of range, a gate without an
 * adapter, a mask shorter than its rows), UNSUPPORTED, CONTEXT_FULL, POOL_FULL, BUSY,
 * VERSION_MISMATCH. */
CAIRN_API cairn_status cairn_forward(cairn_model *model, const cairn_forward_args *args);
/* The pages that the last decode step's first row, its token before all drafts, chose with a KV head in
 * a layer, ascending from 0: *count of them, up to `capacity` written. *count -1: it attended all, or no
 * step ran since the session was opened, forked or loaded, or on the GPU since the first call for it, from
 * which on steps tell. [owner thread] Errors: INVALID_ARGUMENT, BUSY; of that first call OUT_OF_MEMORY, too. */
CAIRN_API cairn_status cairn_session_selection(cairn_session *session, int32_t layer, int32_t kv_head,
                                               int32_t *pages, int32_t capacity, int32_t *count);

/* ---- 5  Profiles and traces: nothing is done for them while they are not taken ------------------ */

/* One length of a step for the lengths of its rows, a fraction left out. */
typedef enum cairn_reduce {
    CAIRN_REDUCE_MEAN = 0, CAIRN_REDUCE_MAX = 1, CAIRN_REDUCE_P50 = 2, CAIRN_REDUCE_P90 = 3,
    CAIRN_REDUCE_SUM = 4
} cairn_reduce;
typedef enum cairn_profile_form { CAIRN_PROFILE_JSON = 0, CAIRN_PROFILE_MARKDOWN = 1 } cairn_profile_form;
typedef struct cairn_profile_options {
    uint32_t struct_size;
    int32_t warmup;        /* requests that are left out, the first to say a token */
    int32_t kv_len_reduce; /* a cairn_reduce */
    int32_t reserved;
} cairn_profile_options;
/* Of the model's generations from now on, begun anew where a profile is taken: steps that decode, by
 * seven bins of their length (tokens held before it): how many, tokens (drafts accepted, and one more a
 * row), tokens a row, latency of the forward; requests' times to the first token (behind ids that were
 * appended before, from there); acceptance by a draft's position; time by phase (plan, prompt, decode,
 * mixed forwards); pages read a step by layer and KV head. Percentiles are nearest ranks;
 * what there is nothing of is null. options NULL: warmup 1, mean. [owner thread] Errors:
 * INVALID_ARGUMENT, OUT_OF_MEMORY. */
CAIRN_API cairn_status cairn_profile_start(cairn_model *model, const cairn_profile_options *options);
/* What is known so far. Buffer as in cairn_detokenize. INVALID_ARGUMENT without a profile. */
CAIRN_API cairn_status cairn_profile_text(cairn_model *model, cairn_profile_form form, char *text,
                                          size_t capacity, size_t *bytes);
CAIRN_API cairn_status cairn_profile_stop(cairn_model *model);

/* Ranges of time for chrome://tracing or Perfetto: each op, and of the engine plan, draft, append and
 * decode (forwards), verify, and wait (the host, for the device); on a GPU the device's part of ops and
 * forwards beside them. Up to `events` (0: 65536), then they are only counted. Each is a range of NVTX, too
 * (nvtxRangePushA), for Nsight Systems, where libnvtx3interop.so.1 or libnvToolsExt.so.1 (nvtx3interop.dll,
 * nvToolsExt64_1.dll) is found, or what CAIRN_NVTX_PATH names. A trace costs time: two marks in the stream
 * for each range of the device. [owner thread] Errors: as cairn_profile_start's. */
CAIRN_API cairn_status cairn_trace_start(cairn_runtime *rt, int32_t events);
/* As JSON; waits for the device. Buffer as in cairn_detokenize. [blocks] */
CAIRN_API cairn_status cairn_trace_text(cairn_runtime *rt, char *text, size_t capacity, size_t *bytes);
CAIRN_API cairn_status cairn_trace_stop(cairn_runtime *rt);

#ifdef __cplusplus
}
#endif
#endif /* CAIRN_OPS_H */
