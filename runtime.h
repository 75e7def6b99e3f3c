/* cairn: long-context language-model inference to drop into a game or an edge app.
 *
 * Cairn JIT-compiles sparse-attention and top-k kernels for the NVIDIA GPU it finds (NVRTC, cached
 * as cubins), keeps the KV cache in pages, attends only the pages that matter, and decodes by
 * drafting and verifying. Without a GPU the same program runs on the CPU backend.
 *
 * DO THIS, in exactly one C file, before any other include:
 *
 *     #define CAIRN_IMPLEMENTATION
 *     #include "cairn.h"              (the single-header build; or compile runtime.c beside runtime.h)
 *
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
 * CONTENTS
 *     1  Rules: memory, threads, errors, determinism
 *     2  Version
 *     3  Status
 *     4  Callbacks
 *     5  Config
 *     6  Runtime: open, close, reload, warm-up, information
 *     7  Tensors, streams, events, graphs
 *     8  Model and sessions
 *     9  Ops
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
 * Errors.  Every call returns a cairn_status; 0 is success. cairn_last_error(rt) says what, where,
 *          why and what to do. Nothing aborts, exits or prints.
 * Faults seen only on the device (a length or id in device memory out of range) clamp or skip that
 *          row, touch nothing else, and are reported by the next call that waits (CAIRN_BAD_DATA).
 *          On the CPU backend the output is filled in the same way and the op returns the status.
 */
#ifndef CAIRN_H
#define CAIRN_H

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
#define CAIRN_STATUS_TABLE(X)                                                                        \
    X(OK, 0, "success", "")                                                                          \
    X(INVALID_ARGUMENT, 1, "an argument is wrong",                                                   \
      "see the named argument's line in runtime.h")                                                  \
    X(INVALID_CONFIG, 2, "the config has mistakes", "run `cairn check CONFIG.lua` to see them all")  \
    X(VERSION_MISMATCH, 3, "a struct or file is from another version",                               \
      "compile against the header of this runtime; write the file anew")                             \
    X(OUT_OF_MEMORY, 4, "host memory ran out", "lower max_batch, max_seq_len or prefill_chunk")      \
    X(OUT_OF_DEVICE_MEMORY, 5, "device memory ran out",                                              \
      "lower max_batch or max_seq_len, or raise memory.budget_mb")                                   \
    X(FILE_NOT_FOUND, 6, "a file cannot be opened", "check the path and its permissions")            \
    X(FILE_ERROR, 7, "reading or writing a file failed", "check the disk and its free space")        \
    X(BAD_FILE, 8, "a file is damaged or not of the expected kind",                                  \
      "fetch or write the file again")                                                               \
    X(UNSUPPORTED, 9, "this is valid but not supported here", "see the message for what is")         \
    X(NO_DRIVER, 10, "no NVIDIA driver library was found",                                           \
      "install the NVIDIA driver, or use backend = \"cpu\"; `cairn info` lists the paths tried")     \
    X(DRIVER_TOO_OLD, 11, "the NVIDIA driver is too old", "update the driver to 525 or newer")       \
    X(NO_DEVICE, 12, "the driver sees no usable GPU",                                                \
      "check nvidia-smi and CUDA_VISIBLE_DEVICES, or use backend = \"cpu\"")                         \
    X(NO_NVRTC, 13, "no NVRTC library was found and kernels must be compiled",                       \
      "pip install nvidia-cuda-nvrtc, or set CAIRN_NVRTC_PATH, or ship a filled cubin cache")        \
    X(NO_NVRTC_BUILTINS, 14, "libnvrtc-builtins of the same version was not found",                  \
      "put libnvrtc-builtins beside libnvrtc")                                                       \
    X(NVRTC_TOO_OLD, 15, "the GPU is newer than NVRTC", "install a newer NVRTC")                     \
    X(COMPILE_FAILED, 16, "a kernel did not compile", "see the compiler's log in the message")       \
    X(DEVICE_ERROR, 17, "the driver reported an error",                                              \
      "see the driver's error in the message; close and reopen the runtime")                         \
    X(BAD_DATA, 18, "data in device memory is out of range",                                         \
      "see the named row; its output was clamped or skipped")                                        \
    X(POOL_FULL, 19, "no free KV pages", "close or reset a session, or raise memory.budget_mb")      \
    X(CONTEXT_FULL, 20, "the sequence does not fit the context",                                     \
      "shorten the prompt, reset the session, or raise max_seq_len")                                 \
    X(EMPTY_PROMPT, 21, "an empty prompt on an empty session", "append at least one token first")    \
    X(INVALID_UTF8, 22, "text is not valid UTF-8", "convert the text to UTF-8")                      \
    X(CANCELLED, 23, "the call was cancelled", "the session is usable; call again to go on")         \
    X(BUSY, 24, "the resource is still in use", "wait for the running call, then try again")         \
    X(NEEDS_REOPEN, 25, "the reload changes fields fixed at open; nothing was changed",              \
      "close and open the runtime with the new config")                                              \
    X(NOT_FOUND, 26, "no such name", "see the message for the names there are")                      \
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

/* Device memory from the host program; both or neither. alloc returns a device address, 256-byte
 * aligned, or 0. */
typedef struct cairn_device_allocator {
    void *user;
    uint64_t (*alloc)(void *user, size_t bytes);
    void (*free)(void *user, uint64_t address, size_t bytes);
} cairn_device_allocator;

typedef enum cairn_log_level {
    CAIRN_LOG_OFF = 0, CAIRN_LOG_ERROR = 1, CAIRN_LOG_WARN = 2, CAIRN_LOG_INFO = 3,
    CAIRN_LOG_DEBUG = 4
} cairn_log_level;

/* One line, no newline at its end. May be called from a compile thread. */
typedef void (*cairn_log_callback)(void *user, cairn_log_level level, const char *text);

/* A ready-made one that writes "cairn: TEXT" lines to standard error. */
CAIRN_API void cairn_log_stderr(void *user, cairn_log_level level, const char *text);

/* Compile progress: kernel `index` (0-based) of `count` by name. Returning false cancels. */
typedef bool (*cairn_progress_callback)(void *user, const char *kernel, int index, int count);

/* A piece of generated text, whole UTF-8 characters. Returning false cancels the generation. */
typedef bool (*cairn_piece_callback)(void *user, const char *text, size_t bytes);

/* ---- 5  Config --------------------------------------------------------------------------------- */
/* generated from gen/schema.lua: begin config */
/* generated: end config */

/* ---- 6  Runtime -------------------------------------------------------------------------------- */

typedef struct cairn_runtime cairn_runtime;

/* ---- 7  Tensors, streams, events, graphs ------------------------------------------------------- */
/* ---- 8  Model and sessions --------------------------------------------------------------------- */
/* ---- 9  Ops ------------------------------------------------------------------------------------ */

#ifdef __cplusplus
}
#endif
#endif /* CAIRN_H */

#if defined(CAIRN_IMPLEMENTATION) && !defined(CAIRN_IMPLEMENTED)
#define CAIRN_IMPLEMENTED
#include "runtime.c"
#endif
