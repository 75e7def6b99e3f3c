/* cairn's implementation: one translation unit. This file is its table of contents; the rooms lie
 * in runtime/, lowest first, and each calls only those above it here. */
#ifdef __cplusplus
#error "cairn's implementation is C11: compile it as one C file; C++ includes the header alone"
#endif
#if !defined(CAIRN_ROOMS_ONLY) && (defined(_STDIO_H) || defined(_STDLIB_H))
#error "put the cairn implementation before every other include, so that its feature macros count"
#endif
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include "runtime.h"
#include "runtime_ops.h"
#include "kernels_src/abi.h"
#include "kernels_src/attention/layout.h"

#include <errno.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifndef CAIRN_NO_LUA
#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#endif

#include "runtime/base/base.h"
#include "runtime/base/callback.h"

BASE_EXACT_BEGIN
#include "runtime/base/utf8.c"
#include "runtime/base/base.c"

BASE_SMALL_BEGIN
#include "runtime/base/callback.c"
#include "runtime/base/jdoc.h"
#include "runtime/base/jdoc.c"
#include "runtime/os/atomic.h"
#include "runtime/os/system.h"
#include "runtime/os/calls.h"
#include "runtime/os/os.h"
#include "runtime/os/pool.h"
#include "runtime/os/os.c"
#ifdef _WIN32
#include "runtime/os/os_win32.c"
#else
#include "runtime/os/os_posix.c"
#endif
#include "runtime/os/file.c"
#include "runtime/os/pool.c"

#include "runtime/generated/driver.h"
#include "runtime/driver/driver.h"
#include "runtime/driver/driver.c"
#include "runtime/driver/nvrtc.c"

#include "runtime/config/config.h"
#include "runtime/config/config.c"
#include "runtime/config/check.c"
#ifndef CAIRN_NO_LUA
#include "runtime/config/scan.c"
#endif
#include "runtime/config/read.c"

#include "runtime/cache/cache.h"
#include "runtime/cache/hash.c"
#include "runtime/cache/cache.c"

#include "runtime/generated/kernels.h"
#include "runtime/jit/jit.h"
#include "runtime/jit/jit.c"
#include "runtime/jit/compile.c"
#include "runtime/jit/load.c"
#include "runtime/jit/work.c"
#include "runtime/jit/open.c"
BASE_SMALL_END

#include "runtime/numbers/numbers.h"
#include "runtime/numbers/simd.h"
#include "runtime/numbers/block.c"
#include "runtime/numbers/simd.c"

#ifndef CAIRN_SIMD_UNIT /* an object of the tests, see there */
#include "runtime/numbers/fp8.c"
BASE_SMALL_BEGIN
#include "runtime/device/device.h"
#include "runtime/device/trace.h"
#include "runtime/device/arena.h"
#include "runtime/device/staging.h"
#include "runtime/device/tensor.h"
#include "runtime/device/handles.h"
#include "runtime/device/trace.c"
#include "runtime/device/device.c"
#include "runtime/device/arena.c"
#include "runtime/device/staging.c"
#include "runtime/device/tensor.c"
#include "runtime/device/npy.c"
#include "runtime/device/handles.c"
#include "runtime/device/args.c"
#include "runtime/device/measure.c"

#include "runtime/ops/ops.h"
#include "runtime/ops/ops.c"

#include "runtime/ops/spans.h"
#include "runtime/ops/spans.c"
#include "runtime/ops/spec.h"
#include "runtime/ops/spec_table.c"
#include "runtime/ops/spec.c"
#include "runtime/ops/paged.h"
#include "runtime/ops/paged.c"
BASE_SMALL_END

#include "runtime/ops/topk/topk.h"
#include "runtime/ops/topk/topk_cpu.c"
#include "runtime/ops/topk/alone.c"
BASE_SMALL_BEGIN
#include "runtime/ops/topk/topk_cuda.c"
#include "runtime/ops/topk/topk.c"
#include "runtime/ops/topk/rows.c"
BASE_SMALL_END

#include "runtime/ops/dense/dense.h"
#include "runtime/ops/dense/linear.c"
#include "runtime/ops/dense/dense.c"
#include "runtime/ops/index/index.h"
#include "runtime/ops/index/quantize.c"
#include "runtime/ops/index/logits.c"
BASE_SMALL_BEGIN
#include "runtime/ops/index/cache.c"
#include "runtime/ops/index/topk.c"
#include "runtime/ops/index/qk.c"
#include "runtime/ops/index/transform.c"
#include "runtime/ops/index/alone.c"
BASE_SMALL_END
#include "runtime/ops/select/select.h"
#include "runtime/ops/select/pages.h"
#include "runtime/ops/select/select.c"
BASE_SMALL_BEGIN
#include "runtime/ops/select/pages.c"
BASE_SMALL_END
#include "runtime/ops/attention/attention.h"
#include "runtime/ops/attention/attention.c"
BASE_SMALL_BEGIN
#include "runtime/ops/attention/attend_cpu.c"
#include "runtime/ops/attention/alone.c"
#include "runtime/ops/attention/attend.c"
#include "runtime/ops/attention/merge.c"
BASE_SMALL_END
#include "runtime/ops/kv/kv.h"
#include "runtime/ops/kv/append.c"
#include "runtime/ops/kv/collate.c"
#include "runtime/ops/conv/conv.h"
#include "runtime/ops/conv/conv_cpu.c"
BASE_SMALL_BEGIN
#include "runtime/ops/conv/metadata.c"
#include "runtime/ops/conv/conv.c"
BASE_SMALL_END
#include "runtime/ops/sample/sample.h"
#include "runtime/ops/sample/sample.c"
#include "runtime/ops/sample/rows.c"
BASE_SMALL_BEGIN
#include "runtime/ops/sample/call.c"
#include "runtime/ops/sample/probs.c"
#include "runtime/ops/steps/steps.h"
#include "runtime/ops/steps/steps.c"
#include "runtime/ops/steps/chunks.c"

#include "runtime/pages/pages.h"
#include "runtime/pages/prefix.h"
#include "runtime/pages/snapshot.h"
#include "runtime/pages/window.h"
#include "runtime/pages/state.h"
#include "runtime/pages/ring.h"
#include "runtime/pages/pages.c"
#include "runtime/pages/tables.c"
#include "runtime/pages/calls.c"
#include "runtime/pages/snapshot_pages.c"
#include "runtime/pages/snapshot.c"
#include "runtime/pages/prefix.c"
#include "runtime/pages/prefix_calls.c"
#include "runtime/pages/window.c"
#include "runtime/pages/state.c"
#include "runtime/pages/ring.c"

#include "runtime/model/shards.h"
#include "runtime/model/shards.c"
#include "runtime/model/safetensors.c"
#include "runtime/model/torch.c"
#include "runtime/model/gguf.h"
#include "runtime/model/gguf.c"
#include "runtime/model/shape.h"
#include "runtime/model/survey.h"
#include "runtime/model/survey.c"
#include "runtime/model/plan.h"
#include "runtime/model/plan_reader.h"
#include "runtime/model/plan.c"
#include "runtime/model/families/families.h"
#include "runtime/model/families/llama.c"
#include "runtime/model/families/lfm2.c"
#include "runtime/model/families/qwen.c"
#include "runtime/model/families/gemma.c"
#include "runtime/model/families/phi.c"
#include "runtime/model/families/deepseek.c"
#include "runtime/generated/unicode.h"
#include "runtime/model/tokenizer/tokenizer.h"
#include "runtime/model/tokenizer/text.c"
#include "runtime/model/tokenizer/special.c"
#include "runtime/model/tokenizer/tokenizer.c"
#include "runtime/model/tokenizer/encode.c"
#include "runtime/model/tokenizer/decode.c"
#include "runtime/model/tokenizer/template.c"
#include "runtime/model/tokenizer/chat.c"
#include "runtime/model/hf.h"
#include "runtime/model/hf_write.c"
#include "runtime/model/hf_config.c"
#include "runtime/model/hf_tokenizer.c"
#include "runtime/model/hf_pieces.c"
#include "runtime/model/hf.c"
#include "runtime/model/model.h"
#include "runtime/model/model.c"
#include "runtime/model/adapter.h"
#include "runtime/model/adapter.c"
#include "runtime/grammar/grammar.h"
#include "runtime/grammar/gbnf.c"
#include "runtime/grammar/schema.c"
#include "runtime/grammar/grammar.c"
#include "runtime/grammar/mask.c"
BASE_SMALL_END

#include "runtime/forward/forward.h"
#include "runtime/forward/batch.c"
#include "runtime/forward/cpu_work.c"
#include "runtime/forward/cpu_heads.c"
#include "runtime/forward/cpu_attend.c"
#include "runtime/forward/cpu_conv.c"
#include "runtime/forward/cpu_experts.c"
#include "runtime/forward/cpu_latent.c"
#include "runtime/forward/cpu_layer.c"

BASE_SMALL_BEGIN
#include "runtime/forward/cpu_draft.c"
#include "runtime/forward/cpu.c"
#include "runtime/forward/cuda.c"
#include "runtime/forward/cuda_formats.c"
#include "runtime/forward/cuda_shape.c"
#include "runtime/forward/cuda_kernels.c"
#include "runtime/forward/cuda_joined.c"
#include "runtime/forward/cuda_latent.c"
#include "runtime/forward/cuda_forms.c"
#include "runtime/forward/cuda_memory.c"
#include "runtime/forward/cuda_weights.c"
#include "runtime/forward/cuda_open.c"
#include "runtime/forward/cuda_launch.c"
#include "runtime/forward/cuda_draft.c"
#include "runtime/forward/cuda_adapters.c"
#include "runtime/forward/cuda_rows.c"
#include "runtime/forward/cuda_bands.c"
#include "runtime/forward/cuda_chain.c"
#include "runtime/forward/cuda_select.c"
#include "runtime/forward/cuda_step.c"
#include "runtime/forward/cuda_prompt.c"
#include "runtime/forward/cuda_results.c"
#include "runtime/forward/cuda_next.c"
#include "runtime/forward/cuda_run.c"
#include "runtime/engine/drafter.c"
#include "runtime/engine/pace.c"
#include "runtime/engine/step.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/reload.c"
#include "runtime/engine/landmarks.c"
#include "runtime/engine/session.c"
#include "runtime/engine/constrain.c"
#include "runtime/engine/profile.c"
#include "runtime/engine/step.c"
#include "runtime/engine/snapshot.c"
#include "runtime/engine/generate.c"
#include "runtime/engine/draft.c"
#include "runtime/engine/loop.c"
#include "runtime/engine/worker.c"
#include "runtime/engine/calls.c"
#include "runtime/engine/together.c"
#include "runtime/engine/direct.c"
#include "runtime/engine/adapters.c"
#include "runtime/engine/model.c"
#include "runtime/engine/profile_calls.c"
#include "runtime/engine/estimate.c"
#include "runtime/engine/check.c"

#include "runtime/api/api.h"
#include "runtime/api/open.c"

#include "runtime/lua/lua.h"
#include "runtime/lua/core.c"
#include "runtime/lua/tensor.c"
#include "runtime/lua/stream.c"
#include "runtime/lua/ops.c"
#include "runtime/lua/steps.c"
#include "runtime/lua/model.c"
#include "runtime/lua/session.c"
#include "runtime/lua/rows.c"
#include "runtime/lua/pages.c"
#include "runtime/lua/prefix.c"
#include "runtime/lua/jit.c"
#include "runtime/lua/lua.c"
BASE_SMALL_END
#endif
BASE_EXACT_END
