/* cairn's implementation: one translation unit. This file is its table of contents; the rooms lie
 * in runtime/, lowest first, and each calls only those above it here. */
#if !defined(CAIRN_ROOMS_ONLY) && (defined(_STDIO_H) || defined(_STDLIB_H))
#error "put the cairn implementation before every other include, so that its feature macros count"
#endif
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include "runtime.h"
#include "kernels_src/abi.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifndef CAIRN_NO_LUA
#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#endif

#include "runtime/base.c"

BASE_SMALL_BEGIN
#include "runtime/os.c"
#ifdef _WIN32
#include "runtime/os_win32.c"
#else
#include "runtime/os_posix.c"
#endif
#include "runtime/os_file.c"
#include "runtime/pool.c"
#include "runtime/generated/driver.h"
#include "runtime/driver.c"
#include "runtime/driver_nvrtc.c"
#include "runtime/config.c"
#include "runtime/config_check.c"
#ifndef CAIRN_NO_LUA
#include "runtime/config_scan.c"
#endif
#include "runtime/config_lua.c"
#include "runtime/cache_hash.c"
#include "runtime/cache.c"
#include "runtime/generated/kernels.h"
#include "runtime/jit.c"
#include "runtime/jit_compile.c"
#include "runtime/jit_load.c"
#include "runtime/jit_work.c"
#include "runtime/jit_open.c"
#include "runtime/device.c"
#include "runtime/tensor.c"
#include "runtime/npy.c"
#include "runtime/handles.c"
#include "runtime/measure.c"
BASE_SMALL_END

#include "runtime/block.c"

BASE_SMALL_BEGIN
#include "runtime/gguf.c"
#include "runtime/generated/unicode.h"
#include "runtime/tokenizer_text.c"
#include "runtime/tokenizer.c"
#include "runtime/tokenizer_encode.c"
#include "runtime/tokenizer_decode.c"
#include "runtime/tokenizer_chat.c"
BASE_SMALL_END

#include "runtime/simd.c"
#include "runtime/linear.c"
#include "runtime/select.c"
#include "runtime/attention.c"
#include "runtime/topk_cpu.c"

BASE_SMALL_BEGIN
#include "runtime/ops.c"
#include "runtime/topk_cuda.c"
#include "runtime/topk.c"
#include "runtime/topk_rows.c"
BASE_SMALL_END

#include "runtime/ops_dense.c"
#include "runtime/ops_pages.c"
#include "runtime/ops_kv.c"
#include "runtime/ops_collate.c"
#include "runtime/ops_attend.c"
#include "runtime/ops_conv_cpu.c"
#include "runtime/ops_conv_metadata.c"
#include "runtime/ops_conv.c"
#include "runtime/sample.c"
#include "runtime/ops_sample.c"
#include "runtime/ops_steps.c"
#include "runtime/ops_steps_chunks.c"

BASE_SMALL_BEGIN
#include "runtime/pages.c"
#include "runtime/pages_tables.c"
#include "runtime/pages_calls.c"
#include "runtime/snapshot_pages.c"
#include "runtime/snapshot.c"
#include "runtime/prefix.c"
#include "runtime/prefix_calls.c"
#include "runtime/model.c"
BASE_SMALL_END

#include "runtime/forward_cpu_work.c"
#include "runtime/forward_cpu.c"

BASE_SMALL_BEGIN
#include "runtime/forward_cuda.c"
#include "runtime/forward_cuda_open.c"
#include "runtime/forward_cuda_run.c"
#include "runtime/reload.c"
#include "runtime/drafter.c"
#include "runtime/engine.c"
#include "runtime/engine_snapshot.c"
#include "runtime/engine_generate.c"
#include "runtime/engine_model.c"
#include "runtime/open.c"
#include "runtime/lua_core.c"
#include "runtime/lua_tensor.c"
#include "runtime/lua_stream.c"
#include "runtime/lua_ops.c"
#include "runtime/lua_steps.c"
#include "runtime/lua_model.c"
#include "runtime/lua_pages.c"
#include "runtime/lua_prefix.c"
#include "runtime/lua_jit.c"
#include "runtime/lua.c"
BASE_SMALL_END
