/* cairn: long-context language-model inference to drop into a game or an edge app. README.md says what
 * it is; this is the manual of its calls.
 *
 * Exactly one C file begins as the one below does, before any other include; or, where cairn.h is not
 * built, runtime.c is compiled beside it and runtime.h included.
 *     cc -O2 game.c -llua5.4 -lm -ldl -lpthread        with the Lua config
 *     cc -O2 -DCAIRN_NO_LUA game.c -lm -ldl -lpthread  without it: cairn_config_default only
 *
 * A COMPLETE PROGRAM
 *
 *     #define CAIRN_IMPLEMENTATION
 *     #include "cairn.h"
 *     #include <stdio.h>
 *     static bool piece(void *user, const char *text, size_t bytes) {
 *         (void)user; fwrite(text, 1, bytes, stdout); return true;
 *     }
 *     int main(void) {
 *         char error[1024];
 *         cairn_config config; cairn_runtime *rt; cairn_model *model; cairn_session *session;
 *         if (cairn_config_load("config.lua", &config, error, sizeof error) ||
 *             cairn_open(&config, &rt, error, sizeof error)) { fputs(error, stderr); return 1; }
 *         if (cairn_load_model(rt, "model.gguf", &model) || cairn_session_open(model, &session) ||
 *             cairn_generate(session, "The history of computing began", 64, piece, NULL))
 *             fputs(cairn_last_error(rt), stderr);
 *         cairn_close(rt);
 *     }
 *
 * CONTENTS  1 Rules  2 Version  3 Status  4 Callbacks  5 Config  6 Runtime  7 Model and sessions  8 Lua
 * runtime_ops.h has the rest, for those who call ops on memory of their own: tensors, streams, events
 * and graphs, page tables, and the ops. cairn.h holds both.
 *
 * 1  RULES
 * Memory.  Host memory comes from one realloc-style callback, device memory from one callback pair.
 *          Strings lie inside structs; nothing that Cairn returns needs freeing unless its comment
 *          names the call that does.
 * Structs. Passed by pointer. `struct_size` comes first and is sizeof the struct as the caller
 *          compiled it; fields are only ever appended. In an op's arguments a zero field means the
 *          default its comment names.
 * Threads. Every call carries one tag: [any thread], [owner thread] (the thread that opened the
 *          runtime, or any one thread at a time under the caller's lock), or [blocks] (an owner
 *          thread call that waits for a device, a file or a compiler). Two runtimes are independent.
 *          With config worker.enabled a thread of the runtime computes what sessions ask for: then
 *          all calls on sessions may come from any thread, one at a time on each; the log callback
 *          comes from it, too, and cairn_last_error may be another thread's (cairn_session_error not).
 * Errors.  Every call returns a cairn_status; 0 is success. cairn_last_error(rt) says what, where,
 *          why and what to do. Nothing aborts, exits or prints. A pointer that is NULL where its
 *          comment does not allow it is INVALID_ARGUMENT.
 * Faults seen only on the device (a length or id in device memory out of range) clamp or skip that
 *          row, touch nothing else, and are reported by the next call that waits (CAIRN_BAD_DATA).
 *          On the CPU backend the output is filled in the same way and the op returns the status.
 */
#ifndef CAIRN_H
#define CAIRN_H

#if defined(CAIRN_IMPLEMENTATION) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE 1 /* before the first system header */
#endif
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef CAIRN_API
#define CAIRN_API extern
#endif

/* ---- 2  Version ------------------------------------------------------------------------------ */

#define CAIRN_VERSION 100 /* major * 10000 + minor * 100 + patch */

/* The version the implementation was compiled as; compare with CAIRN_VERSION. [any thread] */
CAIRN_API int cairn_version(void);

/* ---- 3  Status -------------------------------------------------------------------------------- */

/* X(name, code, meaning, hint): the one table of everything that can go wrong. */
#define CAIRN_STATUS_TABLE(X)                                                                                        \
    X(OK, 0, "success", "")                                                                                          \
    X(INVALID_ARGUMENT, 1, "an argument is wrong", "see the named argument's line in the header")                    \
    X(INVALID_CONFIG, 2, "the config has mistakes", "run `cairn check CONFIG.lua` to see them all")                  \
    X(VERSION_MISMATCH, 3, "a struct or file is from another version",                                               \
      "compile against the header of this runtime; write the file anew")                                             \
    X(OUT_OF_MEMORY, 4, "host memory ran out", "lower max_batch, max_seq_len or prefill_chunk")                      \
    X(OUT_OF_DEVICE_MEMORY, 5, "device memory ran out", "lower max_batch or max_seq_len, or raise memory.budget_mb") \
    X(FILE_NOT_FOUND, 6, "a file cannot be opened", "check the path and its permissions")                            \
    X(FILE_ERROR, 7, "reading or writing a file failed", "check the permissions, the disk and its free space")       \
    X(BAD_FILE, 8, "a file is damaged or not of the expected kind", "fetch or write the file again")                 \
    X(UNSUPPORTED, 9, "this is valid but not supported here", "see the message for what is")                         \
    X(NO_DRIVER, 10, "no NVIDIA driver library was found",                                                           \
      "install the NVIDIA driver, or use backend = \"cpu\"; `cairn info` lists the paths tried")                     \
    X(DRIVER_TOO_OLD, 11, "the NVIDIA driver is too old", "update the driver to 525 or newer")                       \
    X(NO_DEVICE, 12, "the driver sees no usable GPU",                                                                \
      "check nvidia-smi and CUDA_VISIBLE_DEVICES, or use backend = \"cpu\"")                                         \
    X(NO_NVRTC, 13, "no NVRTC library was found and kernels must be compiled",                                       \
      "pip install nvidia-cuda-nvrtc, or set CAIRN_NVRTC_PATH, or ship a filled cubin cache")                        \
    X(NO_NVRTC_BUILTINS, 14, "libnvrtc-builtins of the same version was not found",                                  \
      "put libnvrtc-builtins beside libnvrtc")                                                                       \
    X(NVRTC_TOO_OLD, 15, "the GPU is newer than NVRTC", "install a newer NVRTC")                                     \
    X(COMPILE_FAILED, 16, "a kernel did not compile", "see the compiler's log in the message")                       \
    X(DEVICE_ERROR, 17, "the driver reported an error",                                                              \
      "see the driver's error in the message; close and reopen the runtime")                                         \
    X(BAD_DATA, 18, "data in device memory is out of range, or not numbers",                                         \
      "see what is named; an op's row was clamped or skipped")                                                       \
    X(POOL_FULL, 19, "no free KV pages", "close or reset a session, or raise memory.budget_mb")                      \
    X(CONTEXT_FULL, 20, "the sequence does not fit the context",                                                     \
      "shorten the prompt, reset the session, or raise max_seq_len")                                                 \
    X(EMPTY_PROMPT, 21, "an empty prompt on an empty session", "append at least one token first")                    \
    X(INVALID_UTF8, 22, "text is not valid UTF-8", "convert the text to UTF-8")                                      \
    X(CANCELLED, 23, "the call was cancelled", "all is as usable as before; call again to go on")                    \
    X(BUSY, 24, "the resource is still in use", "wait for the running call, then try again")                         \
    X(NEEDS_REOPEN, 25, "the reload changes fields fixed at open; nothing was changed",                              \
      "close and open the runtime with the new config")                                                              \
    X(NOT_FOUND, 26, "no such name", "see the message for the names there are")                                      \
    X(LUA_ERROR, 27, "a Lua script failed", "see the message for its file and line")

typedef enum cairn_status {
#define CAIRN_STATUS_ENUM(name, code, meaning, hint) CAIRN_##name = code,
    CAIRN_STATUS_TABLE(CAIRN_STATUS_ENUM)
#undef CAIRN_STATUS_ENUM
    CAIRN_STATUS_COUNT
} cairn_status;

/* "CAIRN_POOL_FULL", its meaning, and what to do; never NULL. [any thread] */
CAIRN_API const char *cairn_status_name(cairn_status status);
CAIRN_API const char *cairn_status_meaning(cairn_status status);
CAIRN_API const char *cairn_status_hint(cairn_status status);

/* ---- 4  Callbacks ------------------------------------------------------------------------------ */

/* One function for all host memory: new_bytes 0 frees, memory NULL allocates; old_bytes is always
 * the size given before. Returns 16-byte aligned memory, or NULL, leaving the old block intact.
 * Called from the owner thread and from compile threads. */
typedef struct cairn_allocator {
    void *user;
    void *(*realloc)(void *user, void *memory, size_t old_bytes, size_t new_bytes);
} cairn_allocator;

/* Device memory from the host program; both or neither. alloc returns a device address, 256-byte aligned, or 0. */
typedef struct cairn_device_allocator {
    void *user;
    uint64_t (*alloc)(void *user, size_t bytes);
    void (*free)(void *user, uint64_t address, size_t bytes);
} cairn_device_allocator;

typedef enum cairn_log_level {
    CAIRN_LOG_OFF = 0, CAIRN_LOG_ERROR = 1, CAIRN_LOG_WARN = 2, CAIRN_LOG_INFO = 3,
    CAIRN_LOG_DEBUG = 4
} cairn_log_level;

/* A callback of the log, of the progress or of a model source calls nothing of its runtime but cairn_cancel,
 * cairn_last_error and cairn_session_error: what would change it or wait for it is BUSY, or does nothing where it
 * gives no status. While a model loads and in cairn_eval cairn_close counts, once that has ended: CANCELLED. */

/* One line, no newline at its end. May be called from a compile thread, and from a worker's. */
typedef void (*cairn_log_callback)(void *user, cairn_log_level level, const char *text);

/* A ready-made one that writes "cairn: TEXT" lines to standard error. */
CAIRN_API void cairn_log_stderr(void *user, cairn_log_level level, const char *text);

/* Progress of what takes long: kernels that compile, by their names; a model that loads: MiB of its
 * file, by its path, then "tokenizer", "weights", "model"; cairn_eval: tokens, by "eval". `index` (0-based)
 * of `count` is done. It is called by the thread that waits. Returning false cancels: the call is
 * CANCELLED, a load or eval within some milliseconds, and leaves nothing. */
typedef bool (*cairn_progress_callback)(void *user, const char *what, int index, int count);

/* A piece of generated text, whole UTF-8 characters. Returning false cancels the generation. */
typedef bool (*cairn_piece_callback)(void *user, const char *text, size_t bytes);

/* ---- 5  Config --------------------------------------------------------------------------------- */
/* generated from gen/schema.lua: begin config */
/* The values that a name may have: X(constant, code, "name in Lua", meaning). */
#define CAIRN_VALUE(constant, code, text, meaning) constant = code,

#define CAIRN_MAX_LAYERS 512

#define CAIRN_DRAFTER_TABLE(X)                                                                            \
    X(CAIRN_DRAFTER_NGRAM, 0, "ngram", "prompt lookup: what followed the same tokens before")             \
    X(CAIRN_DRAFTER_MTP, 1, "mtp", "mask tokens, gated LoRA and a sampler head of the session's adapter") \
    X(CAIRN_DRAFTER_MODEL, 2, "model", "drafter_model, a smaller model, says what comes next")            \
    X(CAIRN_DRAFTER_NONE, 3, "none", "plain decoding")
typedef enum cairn_drafter {
    CAIRN_DRAFTER_TABLE(CAIRN_VALUE) CAIRN_DRAFTER_COUNT
} cairn_drafter;

#define CAIRN_PAGE_SOURCE_TABLE(X)                                                                                 \
    X(CAIRN_SOURCE_MINMAX, 0, "minmax", "sum over d of max(q_d lo_d, q_d hi_d): no key of the page scores higher") \
    X(CAIRN_SOURCE_MEAN, 1, "mean", "q . mean(k)")                                                                 \
    X(CAIRN_SOURCE_LANDMARK, 2, "landmark", "q . k of the page's landmark token, with an adapter that has one")
typedef enum cairn_page_source {
    CAIRN_PAGE_SOURCE_TABLE(CAIRN_VALUE) CAIRN_SOURCE_COUNT
} cairn_page_source;

#define CAIRN_PAGE_STRATEGY_TABLE(X)                                                                             \
    X(CAIRN_STRATEGY_GROUP, 0, "group", "sum over the query heads of a KV head")                                 \
    X(CAIRN_STRATEGY_HEAD, 1, "head", "maximum over the query heads of a KV head")                               \
    X(CAIRN_STRATEGY_SOFTMAX_HEAD, 2, "softmax_head", "maximum of the heads' log softmax over pages and window")
typedef enum cairn_page_strategy {
    CAIRN_PAGE_STRATEGY_TABLE(CAIRN_VALUE) CAIRN_STRATEGY_COUNT
} cairn_page_strategy;

#define CAIRN_ATTENTION_FORM_TABLE(X)                                                      \
    X(CAIRN_FORM_FLAT, 0, "flat", "one softmax over all selected tokens")                  \
    X(CAIRN_FORM_TWO_LEVEL, 1, "two_level", "softmax inside each page, then page weights")
typedef enum cairn_attention_form {
    CAIRN_ATTENTION_FORM_TABLE(CAIRN_VALUE) CAIRN_FORM_COUNT
} cairn_attention_form;

#define CAIRN_LANDMARK_POSITION_TABLE(X)                                                              \
    X(CAIRN_LANDMARK_PREVIOUS, 0, "previous", "a landmark takes the position of the token before it") \
    X(CAIRN_LANDMARK_NEXT, 1, "next", "a landmark takes the position of the token after it")
typedef enum cairn_landmark_position {
    CAIRN_LANDMARK_POSITION_TABLE(CAIRN_VALUE) CAIRN_LANDMARK_COUNT
} cairn_landmark_position;

#define CAIRN_KV_DTYPE_TABLE(X)                                     \
    X(CAIRN_KV_F16, 0, "f16", "2 bytes a value")                    \
    X(CAIRN_KV_BF16, 1, "bf16", "2 bytes a value")                  \
    X(CAIRN_KV_F32, 2, "f32", "4 bytes a value")                    \
    X(CAIRN_KV_E4M3, 3, "e4m3", "1 byte a value, scales beside it")
typedef enum cairn_kv_dtype {
    CAIRN_KV_DTYPE_TABLE(CAIRN_VALUE) CAIRN_KV_COUNT
} cairn_kv_dtype;

#define CAIRN_SAMPLING_ORDER_TABLE(X)                                                           \
    X(CAIRN_ORDER_TOP_K_FIRST, 0, "top_k_first", "top_k, then top_p over what is left")         \
    X(CAIRN_ORDER_TOP_P_FIRST, 1, "top_p_first", "top_p over the whole vocabulary, then top_k")
typedef enum cairn_sampling_order {
    CAIRN_SAMPLING_ORDER_TABLE(CAIRN_VALUE) CAIRN_ORDER_COUNT
} cairn_sampling_order;

#define CAIRN_CACHE_MODE_TABLE(X)                                                                          \
    X(CAIRN_CACHE_READ_WRITE, 0, "read-write", "kernels are stored and found again")                       \
    X(CAIRN_CACHE_READ_ONLY, 1, "read-only", "nothing is written: a filled cache that ships with the app") \
    X(CAIRN_CACHE_MEMORY, 2, "memory", "kept while the runtime lives")                                     \
    X(CAIRN_CACHE_OFF, 3, "off", "every kernel is compiled anew")
typedef enum cairn_cache_mode {
    CAIRN_CACHE_MODE_TABLE(CAIRN_VALUE) CAIRN_CACHE_COUNT
} cairn_cache_mode;

#define CAIRN_MEMORY_MAP_TABLE(X)                                                                    \
    X(CAIRN_MAP_COPY, 0, "copy", "read into memory of the runtime's")                                \
    X(CAIRN_MAP_FILE, 1, "file", "mapped: several processes share it; it must not change meanwhile")
typedef enum cairn_memory_map {
    CAIRN_MEMORY_MAP_TABLE(CAIRN_VALUE) CAIRN_MAP_COUNT
} cairn_memory_map;

#define CAIRN_ACTIVATIONS_TABLE(X)                                                                                    \
    X(CAIRN_ACTIVATIONS_F32, 0, "f32", "as they are")                                                                 \
    X(CAIRN_ACTIVATIONS_Q8, 1, "q8", "rounded to 8 bits, 32 at a time, before they meet weights in blocks; CPU only")
typedef enum cairn_activations {
    CAIRN_ACTIVATIONS_TABLE(CAIRN_VALUE) CAIRN_ACTIVATIONS_COUNT
} cairn_activations;

#define CAIRN_BACKEND_TABLE(X)                                                     \
    X(CAIRN_BACKEND_AUTO, 0, "auto", "cuda where there is a usable GPU, else cpu") \
    X(CAIRN_BACKEND_CUDA, 1, "cuda", "an NVIDIA GPU")                              \
    X(CAIRN_BACKEND_CPU, 2, "cpu", "threads and SIMD")
typedef enum cairn_backend {
    CAIRN_BACKEND_TABLE(CAIRN_VALUE) CAIRN_BACKEND_COUNT
} cairn_backend;

#define CAIRN_WORKER_PRIORITY_TABLE(X)                                                               \
    X(CAIRN_PRIORITY_LOW, 0, "low", "after the host program's threads, where the system knows such") \
    X(CAIRN_PRIORITY_NORMAL, 1, "normal", "like the host program's threads")
typedef enum cairn_worker_priority {
    CAIRN_WORKER_PRIORITY_TABLE(CAIRN_VALUE) CAIRN_PRIORITY_COUNT
} cairn_worker_priority;

/* Which pages a query attends; all hot. */
typedef struct cairn_selection {
    cairn_page_source source;   /* how a page is scored against a query; default "minmax" */
    cairn_page_strategy strategy; /* how the scores of the query heads of one KV head become one; default "group" */
    cairn_attention_form form;  /* how the selected pages are attended; default "flat" */
    int32_t window;             /* latest tokens always attended, grown to a page's start; 0: none but the own page;
                                 * 0 to 4194304; default 512 */
    int32_t sinks;              /* first tokens always attended; 0 to 65536; default 4 */
    uint64_t layers[CAIRN_MAX_LAYERS / 64]; /* bit l % 64 of word l / 64: layer l selects; all by default */
    bool fused;                 /* false: window and pages are two attentions, which are added; default true */
    bool prompts;               /* true: prompts select like steps, for models trained so; default false */
    uint8_t reserved[166];      /* zero: room for fields to come */
} cairn_selection;

/* How the next token is drawn; all hot. */
typedef struct cairn_sampling {
    float temperature;          /* 0: greedy; 0 to 100; default 0.0 */
    int32_t top_k;              /* most likely tokens kept; 0: all; 0 to 1048576; default 0 */
    float top_p;                /* smallest set of tokens reaching this probability; 1: all; above 0, up to 1;
                                 * default 1.0 */
    float min_p;                /* tokens at least this likely relative to the best; 0: all; 0 to 1; default 0.0 */
    cairn_sampling_order order; /* which of top_k and top_p comes first; default "top_k_first" */
    float repetition_penalty;   /* divides positive, multiplies negative logits of tokens already in the sequence;
                                 * above 0, up to 100; default 1.0 */
    int64_t seed;               /* Philox key; same seed, same text; 0 to 2^63-1; default 1 */
    uint8_t reserved[96];       /* zero: room for fields to come */
} cairn_sampling;

/* Texts before and after messages, in place of the model's template. */
typedef struct cairn_chat_texts {
    int32_t system_count;       /* strings in use */
    char system[2][256];        /* around a system message; none: there are no such messages; default {} */
    int32_t user_count;         /* strings in use */
    char user[2][256];          /* around a user's message; none: the model's template holds; default {} */
    int32_t assistant_count;    /* strings in use */
    char assistant[2][256];     /* around an answer: the first opens it, the second ends it; default {} */
    uint8_t reserved[500];      /* zero: room for fields to come */
} cairn_chat_texts;

/* Head shapes for kernels and ops used without a model. */
typedef struct cairn_shape {
    int32_t heads;              /* query heads, a multiple of kv_heads; 1 to 1024; default 32 */
    int32_t kv_heads;           /* KV heads; 1 to 1024; default 8 */
    int32_t head_dim;           /* values per head; 16 to 256, a multiple of 16; default 128 */
    uint8_t reserved[52];       /* zero: room for fields to come */
} cairn_shape;

/* Force one route of an op, for tests and tuning; all hot. */
typedef struct cairn_routes {
    char topk[16];              /* route of topk; auto, small, block, cluster, split, radix; default "auto" */
    uint8_t reserved[1008];     /* zero: room for fields to come */
} cairn_routes;

/* Memory of models. */
typedef struct cairn_memory {
    int32_t budget_mb;          /* device memory for model and KV pages; 0: what is free; 0 to 16777216; default 0 */
    bool prefix_cache;          /* keep the pages of prompts for sessions that begin alike, as long as no other
                                 * session needs them; default false */
    cairn_memory_map map;       /* where the CPU reads weights: a copy in memory, or the mapped file itself; default
                                 * "copy" */
    uint8_t reserved[52];       /* zero: room for fields to come */
} cairn_memory;

/* Kernel compilation. */
typedef struct cairn_jit {
    char cache_dir[512];        /* folder of compiled kernels; "auto": the user's cache folder; default "auto" */
    cairn_cache_mode cache;     /* what the cache may do; default "read-write" */
    bool quick;                 /* compile fast rather than for speed, while editing kernels; default false */
    int32_t threads;            /* compile threads; 0: chosen from the cores; 0 to 256; default 0 */
    uint8_t reserved[500];      /* zero: room for fields to come */
} cairn_jit;

/* A thread of the runtime that works on what is submitted. */
typedef struct cairn_worker {
    bool enabled;               /* it runs, in place of cairn_step; default false */
    cairn_worker_priority priority; /* of it and of the CPU threads; default "low" */
    int32_t threads;            /* CPU threads it computes with; 0: as `threads` says; 0 to 1024; default 1 */
    uint8_t reserved[52];       /* zero: room for fields to come */
} cairn_worker;

/* Tokens that are replaced when they are drawn, so that thinking goes on; all hot. */
typedef struct cairn_budget {
    bool force;                 /* end tokens are replaced, too: a generation runs to max_tokens; default false */
    int32_t suppress_count;     /* strings in use */
    char suppress[8][48];       /* texts whose first tokens are replaced; default {} */
    int32_t replace_count;      /* strings in use */
    char replace[8][48];        /* texts of whose first tokens one takes the place, by the seed and the position;
                                 * default {} */
    uint8_t reserved[244];      /* zero: room for fields to come */
} cairn_budget;

/* The whole config. Hot fields change between steps (cairn_reload); the others are fixed at open. */
typedef struct cairn_config {
    uint32_t struct_size;       /* sizeof(cairn_config) as the caller compiled it */
    int32_t page_size;          /* tokens per KV page, landmark slot included; 16, 32, 64, 128, 256; default 64 */
    int32_t topk;               /* pages kept per KV head, besides sinks, window and the unfinished page; 1 to 4096;
                                 * default 32; hot */
    int32_t draft_length;       /* tokens drafted per step; 0 to 16; default 4; hot */
    bool draft_adaptive;        /* as many as pay; else all; default true; hot */
    cairn_drafter drafter;      /* what drafts the tokens that a step verifies; default "ngram"; hot */
    char drafter_model[512];    /* model file that drafter = "model" asks; "": none; default "" */
    char adapter[512];          /* a file of low-rank additions (LoRA) that sessions begin with, see
                                 * cairn_adapter_load; "": none; default "" */
    cairn_selection selection;
    cairn_landmark_position landmark_position; /* position that a landmark token takes, for models trained with
                                 * landmarks; default "previous" */
    cairn_kv_dtype kv_dtype;    /* element type of the KV cache; default "f16" */
    int32_t max_batch;          /* sequences decoded together; 1 to 1024; default 8 */
    int32_t max_seq_len;        /* longest sequence; 0: the model's; 0 to 4194304; default 0 */
    int32_t prefill_chunk;      /* prompt tokens per forward; 16 to 16384; default 512 */
    int32_t slice_us;           /* at most what a prompt holds the device for; 0: a whole prefill_chunk; 0 to
                                 * 1000000; default 0; hot */
    cairn_sampling sampling;
    int32_t stop_count;         /* strings in use */
    char stop[16][128];         /* strings that end a generation; default {}; hot */
    cairn_chat_texts chat;
    cairn_shape shape;
    cairn_routes routes;
    cairn_memory memory;
    cairn_jit jit;
    cairn_backend backend;      /* where ops run; default "auto" */
    int32_t device;             /* GPU ordinal as the driver counts; 0 to 255; default 0 */
    int32_t threads;            /* CPU threads; 0: one per core; 0 to 1024; default 0; hot */
    cairn_activations activations; /* of a model on the CPU; see scripts/bench/RESULTS.md; default "f32" */
    bool graphs;                /* run a decode step as one CUDA graph; default true */
    bool deterministic;         /* results do not depend on batch, drafts and run; false: drafts from masks are
                                 * drawn, too; default true */
    cairn_log_level log;        /* what reaches the log callback; default "info"; hot */
    cairn_worker worker;
    cairn_budget budget;

    /* From the host program, not from Lua; a reload keeps what open was given. */
    cairn_allocator allocator;                  /* host memory; realloc NULL: the C library's */
    cairn_device_allocator device_allocator;    /* device memory; alloc NULL: the driver's */
    cairn_log_callback log_callback;            /* NULL: silent */
    void *log_user;
    cairn_progress_callback progress_callback;  /* of compiles and loads; NULL: none */
    void *progress_user;
    void *context;                              /* CUcontext to run in; NULL: the device's primary context */
    void *stream;                               /* CUstream to enqueue on; NULL: one of our own */
    char driver_path[512];                      /* libcuda to load; "": searched, see `cairn info` */
    char nvrtc_path[512];                       /* libnvrtc to load; "": searched */
} cairn_config;
/* generated: end config */

/* Every default. Sets all of *config, whatever was there; so do load and parse. [any thread] */
CAIRN_API void cairn_config_default(cairn_config *config);

/* Runs a Lua file, or `bytes` of Lua text called `name` in messages, that returns a table, in a sandbox with limits
 * on time and memory, and checks every field. All mistakes, one a line as `config.lua:12: page_size = 48 is not
 * allowed (16, 32, 64, 128, 256); did you mean 64?`, go to error[error_bytes] (may be NULL, 0; cut with a line `and
 * N more` when it is small). A failure leaves *config as it was. [any thread]
 * Errors: INVALID_CONFIG, FILE_NOT_FOUND, FILE_ERROR, OUT_OF_MEMORY, UNSUPPORTED (no Lua). */
CAIRN_API cairn_status cairn_config_load(const char *path, cairn_config *config, char *error, size_t error_bytes);
CAIRN_API cairn_status cairn_config_parse(const char *text, size_t bytes, const char *name, cairn_config *config,
                                          char *error, size_t error_bytes);

/* Checks a config filled by hand and copies it to *checked: fields that an older caller's struct
 * lacks get their defaults. *checked may be config itself when the sizes agree; a failure leaves it
 * as it was. Mistakes go to error and to the config's log callback. [any thread]
 * Errors: INVALID_CONFIG, VERSION_MISMATCH (a struct_size of no version, or one newer than this
 * runtime's with fields set that it does not know). */
CAIRN_API cairn_status cairn_config_check(const cairn_config *config, cairn_config *checked, char *error,
                                          size_t error_bytes);

#define CAIRN_CONFIG_TEXT_BYTES 16384 /* enough for any config */

/* Lua text that loads to the same config, the host program's fields aside, NUL-terminated. [any thread] Errors:
 * INVALID_ARGUMENT when it does not fit, or what cairn_config_check says of the config; text is "" then. */
CAIRN_API cairn_status cairn_config_dump(const cairn_config *config, char *text, size_t bytes);

/* ---- 6  Runtime -------------------------------------------------------------------------------- */

typedef struct cairn_runtime cairn_runtime;

/* Opens a runtime on the backend that the config names: loads the driver, makes a context or takes the host
 * program's, starts the CPU threads. backend "auto" falls back to the CPU with one log line. Where no compiled
 * kernel is kept a thread begins to open NVRTC meanwhile, unless jit.threads is 1. On failure *rt is NULL and the
 * message stands in error[error_bytes] (may be NULL, 0). [blocks] Errors: INVALID_CONFIG, VERSION_MISMATCH,
 * NO_DRIVER, DRIVER_TOO_OLD, NO_DEVICE, OUT_OF_MEMORY, DEVICE_ERROR. */
CAIRN_API cairn_status cairn_open(const cairn_config *config, cairn_runtime **rt, char *error, size_t error_bytes);

/* Closes the runtime and all it opened: sessions, models, tensors, streams. NULL is ignored.
 * Waits for the device and for compiles in the background. [blocks] */
CAIRN_API void cairn_close(cairn_runtime *rt);

/* The message of the last failed call on this runtime, or ""; stands until the next. [owner thread] */
CAIRN_API const char *cairn_last_error(const cairn_runtime *rt);

/* The config in force, every "auto" resolved. [owner thread] */
CAIRN_API const cairn_config *cairn_config_of(const cairn_runtime *rt);

/* Takes a new config over while the program runs. Hot fields change between two steps of a
 * generation, at once or, when kernels must be compiled for them first, once that is done in the
 * background (cairn_reload_waits tells); a compile that fails leaves the old config, with a log line.
 * (A kernel that only makes steps faster is done without where it cannot be had, as after a load.)
 * The host program's fields are not looked at. On failure nothing changes. [owner thread]
 * Errors: NEEDS_REOPEN names the cold fields that differ; INVALID_CONFIG, VERSION_MISMATCH. */
CAIRN_API cairn_status cairn_reload(cairn_runtime *rt, const cairn_config *config);
CAIRN_API bool cairn_reload_waits(const cairn_runtime *rt);

/* Waits until all that was enqueued is done and reports faults that only the device saw
 * (CAIRN_BAD_DATA names op, row and cause). [blocks] */
CAIRN_API cairn_status cairn_sync(cairn_runtime *rt);

typedef struct cairn_runtime_info {
    uint32_t struct_size;
    int32_t backend;           /* a cairn_backend: cuda or cpu */
    char device_name[96];      /* the GPU's name, or the CPU with its SIMD level */
    int32_t arch;              /* compute capability * 10: 90 for sm_90; 0 on the CPU */
    int32_t multiprocessors;   /* or CPU threads */
    int32_t max_shared_bytes;  /* per block, opt-in */
    int32_t driver_version;    /* 13000 for 13.0; 0 on the CPU */
    uint64_t total_bytes;      /* device memory */
    uint64_t live_bytes;       /* device memory that this runtime holds */
    uint64_t peak_bytes;       /* the most it held */
    uint64_t l2_bytes;
    int32_t kernels_compiled;  /* by NVRTC since open */
    int32_t kernels_from_cache;
    int32_t nvrtc_opened;      /* 1 once libnvrtc was loaded */
} cairn_runtime_info;

/* [owner thread] */
CAIRN_API cairn_status cairn_info(cairn_runtime *rt, cairn_runtime_info *info);

/* What the device can do at best, measured now; the ceilings that `cairn bench` divides by. */
typedef struct cairn_floor {
    uint32_t struct_size;
    double read_bytes_per_second; /* plain loads over 1 GiB */
    double launch_us;             /* one kernel launched and waited for; 0 on the CPU */
    double stage_us;              /* one empty kernel in a graph; 0 on the CPU */
    double dependent_stage_us;    /* the same with programmatic dependent launch */
    double copy_bytes_per_second; /* bytes read plus bytes written, copying 512 MiB */
} cairn_floor;

/* Takes about 50 ms and 1 GiB of device memory. [blocks] */
CAIRN_API cairn_status cairn_measure(cairn_runtime *rt, cairn_floor *floor);

/* ---- 7  Model and sessions --------------------------------------------------------------------- */
/* A model is a GGUF file, or a folder of config.json, tokenizer.json and weights, of a family that
 * README names, loaded once; a session is one sequence on it: the tokens so far and their pages of the
 * KV cache. Sessions of a model share one pool of pages, and those that have something to do share
 * forwards; what one says does not depend on the others.
 *
 * What a session holds after each call:
 *   success                the prompt and every id that was handed out;
 *   a failed or cancelled  what it held before the prompt, when the prompt was not done; else the
 *   call                   prompt and every id that was handed out before.
 * It is usable then. CONTEXT_FULL and POOL_FULL are known before anything is changed. */
typedef struct cairn_model cairn_model;
typedef struct cairn_session cairn_session;

/* Loads a model: checks every shape, reads the tokenizer, places the weights, and reserves the KV cache: pages for
 * max_batch sequences of max_seq_len tokens, or as many as memory.budget_mb or the device leaves; on the CPU a
 * max_batch above 8 whose cache memory cannot hold is OUT_OF_MEMORY with the arithmetic. max_seq_len is lowered to
 * the model's with one log line. On failure *model is NULL. [blocks] Errors: FILE_NOT_FOUND, BAD_FILE, UNSUPPORTED,
 * OUT_OF_(DEVICE_)MEMORY, COMPILE_FAILED, NO_NVRTC, FILE_ERROR, CANCELLED (by the config's progress_callback).
 * Heads have 16 to 256 values, a multiple of 16; query heads are a multiple of KV heads.
 * The file may be changed, cut short or removed once the call has returned: the GPU holds its weights, the CPU a
 * copy. With memory.map = "file" the CPU reads the file itself, through a map that processes share: then it must
 * stand as it is until cairn_model_free, since a system ends a process that reads what was cut off. A file cut short
 * while the call reads it is a FILE_ERROR.
 * It returns once the model can speak. Kernels that are not in the cache and only make steps and prompts faster go on
 * compiling in the background; until they are there steps are a third slower, with the same bits. Those that choose
 * pages do, too: the first step that has more pages than it may read waits for them, and fails as a load would where
 * they cannot be had. */
CAIRN_API cairn_status cairn_load_model(cairn_runtime *rt, const char *path, cairn_model **model);

/* A model file that lies in memory or that the host reads, from an archive of its own. Zeroed, then
 * struct_size and either data or read are set. */
typedef struct cairn_model_source {
    uint32_t struct_size;
    uint32_t reserved;
    const char *name;        /* for messages; NULL: "model source" */
    const void *data;        /* the file's bytes, or NULL */
    uint64_t bytes;          /* how many it has */
    /* data NULL: writes up to `bytes` bytes of the file, from `offset` on, and returns how many it
     * wrote; 0: none can be read. Called in the order of the file, from the calling thread. */
    size_t (*read)(void *user, uint64_t offset, void *out, size_t bytes);
    void *user;
} cairn_model_source;

/* As cairn_load_model from a source. Nothing of it is needed once the call has returned, but for one case: with
 * memory.map = "file" the CPU reads data that is aligned to 64 bytes in place, which must then stand as it is until
 * cairn_model_free. A name is copied. [blocks] Errors: as cairn_load_model, VERSION_MISMATCH, and FILE_ERROR with
 * the offset where read gave nothing or more than it was asked for. */
CAIRN_API cairn_status cairn_load_model_from(cairn_runtime *rt, const cairn_model_source *source, cairn_model **model);

/* Waits until the model has every kernel. [blocks] Errors: COMPILE_FAILED and the like; it goes on without. */
CAIRN_API cairn_status cairn_model_wait(cairn_model *model);

/* Closes the model's sessions too. cairn_close does it for every model. NULL is ignored. [blocks] */
CAIRN_API void cairn_model_free(cairn_model *model);

typedef struct cairn_model_properties {
    uint32_t struct_size;
    char architecture[32], name[128];
    int32_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab;
    int32_t context;           /* tokens, as the file says */
    int32_t max_seq_len;       /* tokens, the longest sequence here */
    int32_t page_size;         /* tokens */
    int32_t pages, free_pages; /* of the pool */
    int32_t end_id;            /* the end-of-sequence token, -1 if there is none */
    uint64_t parameters;
    uint64_t file_bytes;
    uint64_t weights_bytes;    /* on the GPU in the kernels' form, on the CPU the file's */
    uint64_t kv_bytes, scratch_bytes; /* device memory of KV cache, and of the backend's buffers */
    int32_t window_pages, free_window_pages; /* the same of layers that keep a window alone, or 0 */
} cairn_model_properties;

/* [owner thread] Errors: VERSION_MISMATCH. */
CAIRN_API cairn_status cairn_model_info(cairn_model *model, cairn_model_properties *info);

typedef struct cairn_memory_estimate {
    uint32_t struct_size;
    int32_t max_seq_len;     /* tokens, after the model's limit */
    int32_t pages;           /* what max_batch * max_seq_len needs, or what memory leaves */
    int32_t backend;         /* a cairn_backend: cuda or cpu, whose memory the next six are of */
    uint64_t weights_bytes;  /* as in cairn_model_info, and so the next two */
    uint64_t kv_bytes;
    uint64_t scratch_bytes;
    uint64_t total_bytes;    /* of the three */
    uint64_t live_bytes;     /* by so much loading raises live_bytes of cairn_info: the total, on
                                the CPU less the weights, which are the file's or its copy's */
    uint64_t peak_bytes;     /* and by so much, at most, while it goes on */
    uint64_t host_bytes;     /* host memory besides: tokenizer, logits, page lists, on the CPU the
                                copy of the file */
    uint64_t mapped_bytes;   /* of the file, with memory.map = "file" */
    uint64_t resident_bytes; /* host memory in use once the model speaks; on the CPU the pages of
                                the cache come to it as tokens fill them, up to kv_bytes */
} cairn_memory_estimate;

/* What cairn_load_model would take, by its own arithmetic, before a runtime exists and without a GPU.
 * Reads of the file its header and norms. backend = "auto" is what cairn_open would take; "cuda" where there is no GPU
 * stands for one of 132 multiprocessors whose memory suffices. error as for cairn_open. [any
 * thread] Errors: as cairn_load_model's. */
CAIRN_API cairn_status cairn_estimate(const cairn_config *config, const char *path, cairn_memory_estimate *estimate,
                                      char *error, size_t error_bytes);

/* What a model file says that it is, as far as it can be read, and whether it loads. */
typedef struct cairn_model_report {
    uint32_t struct_size;
    int32_t reasons;         /* why it does not load; 0: it does, and `estimate` says what it takes */
    char name[128], architecture[64], tokenizer[32], pre_tokenizer[32]; /* "": the file says none */
    char types[256];         /* block types, and how many tensors are of each: "Q4_1 x 120, .." */
    int32_t layers, hidden, heads, kv_heads, context, vocab, tensors; /* 0: the file says none */
    int32_t has_chat;        /* 1: its chat template is of a known family */
    uint64_t parameters, file_bytes;
    cairn_memory_estimate estimate; /* all zero where there are reasons */
    int32_t has_landmark;    /* 1: a landmark_embedding: a token of that row ends each page */
    int32_t has_template;    /* 1: it has a chat template, of a known family or not */
} cairn_model_report;

/* The same, and all reasons why cairn_load_model would not take the file under the config, a line each to `reasons`
 * (a kilobyte is plenty), the architecture first. Nothing is loaded. *report is filled whatever the status, but for
 * the first three errors. [any thread] Errors: INVALID_ARGUMENT, VERSION_MISMATCH, INVALID_CONFIG with the mistakes
 * as reasons; else the status of the first reason: UNSUPPORTED, BAD_FILE, FILE_NOT_FOUND, OUT_OF_(DEVICE_)MEMORY. */
CAIRN_API cairn_status cairn_model_check(const cairn_config *config, const char *path, cairn_model_report *report,
                                         char *reasons, size_t reasons_bytes);

/* Text to token ids, special-token text such as <|im_start|> included; no token is added. Writes
 * up to `capacity` ids, *count is how many there are (call with ids NULL, 0 to ask). [owner thread]
 * Errors: INVALID_UTF8, INVALID_ARGUMENT when they do not fit, OUT_OF_MEMORY. */
CAIRN_API cairn_status cairn_tokenize(cairn_model *model, const char *text, size_t bytes, int32_t *ids, int capacity,
                                      int *count);
/* special false: that text is plain text, and gives no control token whatever it says. */
CAIRN_API cairn_status cairn_tokenize_with(cairn_model *model, const char *text, size_t bytes, bool special,
                                           int32_t *ids, int capacity, int *count);

/* Token ids to text: broken UTF-8 becomes U+FFFD, special tokens their text, the end token too.
 * Writes up to capacity - 1 bytes and a NUL; *bytes is the whole length without it. [owner thread]
 * Errors: INVALID_ARGUMENT for an unknown id or when it does not fit, OUT_OF_MEMORY. */
CAIRN_API cairn_status cairn_detokenize(cairn_model *model, const int32_t *ids, int count, char *text, size_t capacity,
                                        size_t *bytes);

typedef struct cairn_message { const char *role, *content; } cairn_message;

/* The ids of messages (roles system, user, assistant; any other is INVALID_ARGUMENT) in the chat
 * template of the model's family: the template's own marks become tokens, contents are plain text,
 * so that what a player writes opens and ends no turn. first: the conversation begins with them, so
 * that what a model wants at the beginning comes before, and the template's own system message when
 * there is none. answer: opens the assistant's turn at the end. Array as in cairn_tokenize.
 * [owner thread] Errors: UNSUPPORTED for a template of no known family, INVALID_UTF8. */
CAIRN_API cairn_status cairn_chat_ids(cairn_model *model, const cairn_message *messages, int message_count, bool first,
                                      bool answer, int32_t *ids, int capacity, int *count);

/* The same as text, to read or to edit. A content that holds "<|im_end|>" cannot be told from the
 * template in it: to cairn_generate and cairn_append give it only with contents that you wrote.
 * Buffer as in cairn_detokenize. [owner thread] */
CAIRN_API cairn_status cairn_chat_format(cairn_model *model, const cairn_message *messages, int count, bool first,
                                         bool answer, char *text, size_t capacity, size_t *bytes);

/* What a file adds to the model's products, of low rank (LoRA): GGUF as llama.cpp writes it, or PEFT's safetensors
 * and .pt with adapter_config.json beside them, or their folder. Up to 64 of a model, each session by one or none,
 * together in any forward. One with mask_embedding and a sampler head drafts for drafter = "mtp", and changes no
 * token. free: BUSY while a session runs by it; the model frees the rest. [blocks] Errors: of a file of another
 * model or form UNSUPPORTED and BAD_FILE, by name; FILE_NOT_FOUND, OUT_OF_(DEVICE_)MEMORY. */
typedef struct cairn_adapter cairn_adapter;
CAIRN_API cairn_status cairn_adapter_load(cairn_model *model, const char *path, cairn_adapter **adapter);
CAIRN_API cairn_status cairn_adapter_free(cairn_adapter *adapter);
/* The session goes on by this adapter, NULL: none; before the config's `adapter`. What it holds stays
 * and is processed anew with the next call; a running generation ends. Forks and snapshots are by the
 * same; a snapshot by another is refused. [owner thread] Errors: INVALID_ARGUMENT. */
CAIRN_API cairn_status cairn_session_adapt(cairn_session *session, cairn_adapter *adapter);

/* A new empty session. cairn_session_close gives its pages back (NULL is ignored); so does
 * cairn_session_reset, which empties it. [owner thread] Errors: OUT_OF_MEMORY. */
CAIRN_API cairn_status cairn_session_open(cairn_model *model, cairn_session **session);
CAIRN_API void cairn_session_close(cairn_session *session);
CAIRN_API cairn_status cairn_session_reset(cairn_session *session);

/* A new session that holds the same ids and goes on as this one would, sharing its pages until they are
 * written. What a running generation has not handed out is not the fork's. [owner thread]
 * Errors: OUT_OF_MEMORY. */
CAIRN_API cairn_status cairn_session_fork(cairn_session *session, cairn_session **fork);

/* Writes all that the session holds to a file, replaced atomically, and reads it again in place of what a session
 * holds: it goes on token for token as the saved one would have. A running generation is saved up to what it handed
 * out, and goes on; loading ends one. A snapshot is checked whole before anything changes, and refused when a bit is
 * wrong, and for another model, page size or KV dtype. Loading needs free pages for the snapshot, or the session's
 * own; only where there are not enough for both and the device fails in between, the session is left empty. A model
 * is known by its name and a sum of its file, of 1 GiB of a larger one, made at the first save or load. [blocks]
 * Errors: FILE_NOT_FOUND, FILE_ERROR, OUT_OF_MEMORY, BAD_FILE (damaged), VERSION_MISMATCH (another version),
 * UNSUPPORTED (another model, page size or dtype, named), CONTEXT_FULL, POOL_FULL. */
CAIRN_API cairn_status cairn_session_save(cairn_session *session, const char *path);
CAIRN_API cairn_status cairn_session_load(cairn_session *session, const char *path);
/* The same in memory: *bytes is what it takes (call with NULL, 0 to ask). [blocks] */
CAIRN_API cairn_status cairn_session_save_memory(cairn_session *session, void *memory, size_t capacity, size_t *bytes);
CAIRN_API cairn_status cairn_session_load_memory(cairn_session *session, const void *memory, size_t bytes);

/* The ids the session holds, prompts and generated ones; until the next call on it. [owner thread] */
CAIRN_API const int32_t *cairn_session_ids(const cairn_session *session, int *count);

/* Cuts the session to its first `count` ids, from which it goes on as a session would that never had
 * more; cheap. [owner thread] Errors: INVALID_ARGUMENT. */
CAIRN_API cairn_status cairn_session_rewind(cairn_session *session, int count);

/* Adds text or ids at the end and processes them in chunks of prefill_chunk, attending every earlier
 * token. Adding nothing is allowed. [blocks]
 * Errors: INVALID_UTF8, CONTEXT_FULL, POOL_FULL, CANCELLED, INVALID_ARGUMENT (an unknown id). */
CAIRN_API cairn_status cairn_append(cairn_session *session, const char *text);
CAIRN_API cairn_status cairn_append_with(cairn_session *session, const char *text, size_t bytes,
                                         bool special); /* as cairn_tokenize_with; may hold NUL */
CAIRN_API cairn_status cairn_append_ids(cairn_session *session, const int32_t *ids, int count);
/* Adds messages as cairn_chat_ids does, behind the turns before: one that generation left open, by
 * max_tokens or a stop string, is closed first. Then cairn_generate with no prompt answers. [blocks]
 * Errors: as cairn_chat_ids and cairn_append. */
CAIRN_API cairn_status cairn_append_chat(cairn_session *session, const cairn_message *messages, int count, bool answer);

/* What is added to a token's logit before all else; -INFINITY: it is never drawn. */
typedef struct cairn_logit_bias { int32_t id; float bias; } cairn_logit_bias;

/* The logarithm of a token's probability, by the softmax of the logits as the model gives them. */
typedef struct cairn_logprob { int32_t id; float logprob; } cairn_logprob;

/* How to generate; all zero means the config's values, read anew at every step. */
typedef struct cairn_generate_options {
    uint32_t struct_size;
    int32_t max_tokens;             /* 0: to the end of the context */
    const cairn_sampling *sampling; /* copied; NULL: the config's; in it top_p and */
                                    /* repetition_penalty 0 mean 1, so that all zero is greedy */
    const char *const *stop;        /* copied; strings that end the generation, each up to 127 */
    int32_t stop_count;             /* bytes, at most 16; 0: the config's; -1: none */
    int32_t special;                /* of the prompt: -1: <|im_start|> and its like are plain text */
    int32_t keep_stop;              /* 1: a stop string stays in the session, see below */
    int32_t priority;               /* -100 to 100: higher goes first; 0 */
    const char *grammar;            /* copied; NULL: none, or what the text may be: see below */
    int32_t grammar_from;           /* its text begins at the session's id of this number, as in a */
                                    /* fork or a snapshot that goes on; 0: behind the prompt */
    int32_t logit_bias_count;
    const cairn_logit_bias *logit_bias; /* copied; [logit_bias_count]; of one id they add up */
    const char *json_schema;        /* in place of a grammar: the text is JSON that fits it */
    int32_t logprobs;               /* of each id, and of the best 1 to 32 at its place; 0: none */
    int32_t first_token_ms;         /* its first token is wanted so long after this call: of prompts */
                                    /* of one priority the most urgent goes first; 0: when it may be, */
                                    /* also some milliseconds later, with other prompts */
} cairn_generate_options;

typedef enum cairn_stop {
    CAIRN_STOP_NONE = 0,  /* still generating */
    CAIRN_STOP_EOS = 1,   /* an end token, the last id */
    CAIRN_STOP_LENGTH = 2,/* max_tokens or the end of the context */
    CAIRN_STOP_STRING = 3,/* a stop string, which the text omits */
    CAIRN_STOP_CANCEL = 4,/* cairn_cancel, or a callback that returned false */
    CAIRN_STOP_ERROR = 5, /* the call failed; what was handed out stands */
    CAIRN_STOP_GRAMMAR = 6/* the text is whole by the grammar, and nothing may follow */
} cairn_stop;
/* "none", "eos", "length", "string", "cancel", "error", "grammar". [any thread] */
CAIRN_API const char *cairn_stop_name(cairn_stop stop);

/* Appends the prompt (NULL or "" goes on from what the session holds) and generates until the end token, a stop
 * string, max_tokens (0: none) or the end of the context. `piece` (may be NULL) receives the text as it comes, in
 * whole UTF-8 characters, without the end token, without a stop string and without a part of one; unfinished UTF-8
 * at the end becomes U+FFFD. After a stop string the session ends where the text ends: its ids leave, and of a token
 * that says more than the text what is left is tokenized anew (keep_stop: the session keeps every id). The callback
 * may look at this session (ids, stats, error) and cancel it; other calls on it are BUSY, and so is cairn_step. A
 * session, model or runtime that it closes goes when the call has ended. [blocks]
 *
 * With a grammar the text keeps to it: what it does not allow is neither drawn nor drafted, an end token only where
 * the text may end. When it is whole and nothing may follow, it ends (STOP_GRAMMAR).
 * Notation of llama.cpp's GBNF: rules `name ::= ...`, the first of all is `root`; "text", [a-z0-9], [^\n], `.`,
 * groups, | and * + ? {m} {m,} {m,n}, \xHH \uHHHH \UHHHHHHHH, # comments. Sessions that give the same text share
 * what is known of it. A session's second generation begins the grammar anew, unless grammar_from tells where in its
 * ids the text began.
 * A JSON Schema becomes such a grammar. Supported: type, properties (in their order), required, additionalProperties
 * (not given beside properties: none), items, prefixItems, minItems, maxItems, minLength, maxLength, minimum,
 * maximum and the exclusive ones of integers, enum, const, anyOf, oneOf (as anyOf), $ref within the schema, true;
 * any other keyword but a note is UNSUPPORTED by its name and place.
 * Errors: cairn_append's; EMPTY_PROMPT; BAD_DATA where a token's logits are no numbers, since weights are damaged,
 * or on the GPU values beyond 65504: what was said stays. Of a grammar INVALID_ARGUMENT with line and column (left
 * recursion, too), or when no token may come next; UNSUPPORTED where it is too ambiguous. */
CAIRN_API cairn_status cairn_generate(cairn_session *session, const char *prompt, int max_tokens,
                                      cairn_piece_callback piece, void *user);
CAIRN_API cairn_status cairn_generate_with(cairn_session *session, const char *prompt,
                                           const cairn_generate_options *options, cairn_piece_callback piece,
                                           void *user);

typedef enum cairn_request {
    CAIRN_REQUEST_NONE = 0,   /* it has ended */
    CAIRN_REQUEST_QUEUED = 1, /* its turn has not come */
    CAIRN_REQUEST_PAGES = 2,  /* waits until others leave free KV pages */
    CAIRN_REQUEST_PROMPT = 3, /* its prompt is being processed */
    CAIRN_REQUEST_TEXT = 4    /* its tokens are being made */
} cairn_request;

/* The same by pulling: begin processes the prompt, then each next hands out the ids of one token and the
 * text that became certain, until `stop` is set; without drafts a GPU goes on meanwhile. options: or NULL. [blocks] */
typedef struct cairn_piece {
    uint32_t struct_size;
    int32_t id;       /* -1 when this call brings text or a stop without an id */
    cairn_stop stop;  /* set on the last piece, which may bring text still */
    const char *text; /* [bytes] and a NUL; stands until the next call on this session */
    size_t bytes;
    int32_t first, count; /* the text is of the session's ids [first, first + count); the last of
                             them may have more to say in the next piece */
    cairn_request request; /* of cairn_generate_poll: what the request does */
    int32_t logprob_ids;   /* ids that came since the piece before, where logprobs are wanted */
    const cairn_logprob *logprobs; /* [logprob_ids, 1 + wanted] of the id, then of the best; stand as
                                      long as the text */
} cairn_piece;
CAIRN_API cairn_status cairn_generate_begin(cairn_session *session, const char *prompt,
                                            const cairn_generate_options *options);
CAIRN_API cairn_status cairn_generate_next(cairn_session *session, cairn_piece *piece);

/* The same without ever blocking a frame: submit tokenises and queues, and computes nothing; any number of sessions
 * may have a request. step works on all requests of the model together until budget_us is spent, and may stop
 * between two layers; it does one at least. On the GPU it enqueues and looks: with a budget of 0 it never waits,
 * with more until that is over at most, and mostly asleep. *pending: how many still run. poll hands out the text
 * that is certain since the last poll, of any number of ids, `id` the last of them; id -1, bytes 0, stop NONE:
 * nothing yet. The piece with `stop` is the last; for CANCEL and ERROR poll returns why.
 *
 * Higher priorities go first, then decode steps before prompts, of these who wants a first token soonest
 * (first_token_ms), then who came first; at most max_batch sessions to a forward. While others of its priority speak, a
 * prompt that is not wanted by a time, or what is left of one, waits for more to share a forward with, as long as that
 * spares those who speak more than it loses: at most 10 ms. A full pool makes a request wait,
 * too (piece.request says so), a lower one for a higher's sake even once it has begun: its pages go and are computed
 * anew later; so do those of idle sessions, where all wait for them. It never fails midway. The blocking calls work
 * on the queue as well while they wait. Another call on the session that changes it ends its request. The session
 * holds a prompt once it is being processed. A host's job system may call these from any thread, one call on a
 * runtime at a time.
 *
 * With worker.enabled nobody calls step, and submit and poll are [any thread]; they wait for no forward. Blocking
 * calls on sessions ask for their work and wait; their callbacks come from their own thread. Closing a session, a
 * model or the runtime ends what is requested of it.
 * Errors: submit, as cairn_generate_begin; POOL_FULL where the pool is too small at its emptiest. step:
 * INVALID_ARGUMENT for a budget below zero, BUSY inside a callback of a session or a load, while another thread is
 * in it and beside a worker. poll: INVALID_ARGUMENT without a request, and what ended it, as BAD_DATA (see
 * cairn_generate), which ends no other session's request. [owner thread] */
CAIRN_API cairn_status cairn_generate_submit(cairn_session *session, const char *prompt,
                                             const cairn_generate_options *options);
CAIRN_API cairn_status cairn_step(cairn_model *model, int32_t budget_us, int32_t *pending);
CAIRN_API cairn_status cairn_generate_poll(cairn_session *session, cairn_piece *piece);

/* Rows of ids that are generated behind at once, each in a session of its own that lasts as long as
 * the call, and says token for token what it says alone. A row ends by itself, at an end token, its
 * limit, a full output row or the end of the context; no text is made and no stop string heeded. */
typedef struct cairn_batch_args {
    uint32_t struct_size;
    int32_t rows;     /* of any number: at most max_batch have a part in a forward, others wait */
    int32_t stride;   /* ids from one row of `ids` to the next */
    int32_t capacity; /* ids of a row of `output` */
    const int32_t *ids;             /* [rows, stride]; what is behind a row's length is not read */
    const int32_t *lengths;         /* [rows] 1 to stride and to capacity */
    const int32_t *limits;          /* [rows] tokens to make at most, 0: no limit; or NULL */
    const cairn_sampling *sampling; /* [rows] as in cairn_generate_options; NULL: the config's */
    int32_t *output;    /* [rows, capacity], out: a row's ids, those made behind them, zeros */
    int32_t *generated; /* [rows], out: how many were made, an end token included */
    int32_t *total;     /* [rows], out: ids of the output row */
    int64_t steps;      /* out: forwards, those of the prompts too */
} cairn_batch_args;
/* [blocks] On failure nothing was written. Errors: INVALID_ARGUMENT (a length of 0, an unknown id, a
 * limit or a value of the sampling out of range), CONTEXT_FULL, POOL_FULL, each naming the row;
 * BAD_DATA, as cairn_generate; VERSION_MISMATCH. */
CAIRN_API cairn_status cairn_generate_batch(cairn_model *model, cairn_batch_args *args);

/* Ends the running call or request of this session within 20 ms, in a prompt too; between begin and
 * the last next, the next call. It returns CANCELLED. For a request it counts from submit on, before
 * its first step too. Without a generation or append it does nothing. [any thread] */
CAIRN_API void cairn_cancel(cairn_session *session);

/* The status that the session's last failed call or request returned, and its message, copied; OK
 * and "" when the last request began well and has not failed. [any thread] */
CAIRN_API cairn_status cairn_session_error(cairn_session *session, char *text, size_t bytes);

/* What the last generation did; prompt figures: of its prompt and of appends since the one before. */
typedef struct cairn_stats {
    uint32_t struct_size;
    cairn_stop stop;
    int32_t prompt_tokens;
    int32_t generated;     /* ids handed out, the end token included */
    int32_t decoded;       /* of these, by forwards after the prompt: all but the first */
    int32_t forwards;      /* after the prompt */
    int32_t proposed;      /* drafted tokens verified */
    int32_t accepted;      /* of these, equal to what plain decoding gives */
    double pages_read;     /* distinct pages attended, mean per forward, layer and KV head */
    double pages_held;     /* pages of the sequence, mean per forward */
    double prompt_seconds;
    double decode_seconds; /* all forwards after the prompt, sampling and drafting */
    uint64_t peak_bytes;   /* the runtime's device memory at its most */
    int32_t reused_tokens; /* of the prompt, whose pages the prefix cache held */
    int32_t token_space;   /* of tokens that an indexer chose to attend: 1 + a cairn_space; 0: none */
} cairn_stats;
/* [owner thread] Errors: VERSION_MISMATCH. */
CAIRN_API cairn_status cairn_session_stats(cairn_session *session, cairn_stats *stats);

/* Teacher-forced scoring: each token as its own step would see it: a sparse config shows its price. */
typedef struct cairn_eval_args {
    uint32_t struct_size;
    const int32_t *ids; /* [count], count >= 2 */
    int32_t count;
    int32_t top;        /* N: best next tokens wanted per position; 0: none */
    int32_t *top_ids;   /* [count, top], out, best first, lowest id first among equals */
    float *top_logits;  /* [count, top], out */
    float *nll;         /* [count], out, or NULL: of each token; nll[0] is 0 */
} cairn_eval_args;
/* *mean_nll: the mean over tokens 2..count. Needs free pages for count tokens while it runs.
 * [blocks] Errors: INVALID_ARGUMENT, CONTEXT_FULL, POOL_FULL, CANCELLED (by the progress_callback), BAD_DATA
 * (of the first token whose logits are no numbers). */
CAIRN_API cairn_status cairn_eval(cairn_model *model, const cairn_eval_args *args, double *mean_nll);

/* ---- 8  Lua ------------------------------------------------------------------------------------ */

/* The Lua module: luaL_requiref(L, "cairn", luaopen_cairn, 0) in a host that has its own Lua 5.4.
 * Absent with CAIRN_NO_LUA. Pushes the module and returns 1. */
struct lua_State;
CAIRN_API int luaopen_cairn(struct lua_State *L);

#ifdef __cplusplus
}
#endif
#endif /* CAIRN_H */

#if defined(CAIRN_IMPLEMENTATION) && !defined(CAIRN_IMPLEMENTED)
#define CAIRN_IMPLEMENTED
#include "runtime.c"
#endif
