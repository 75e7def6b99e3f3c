/* The parameter struct of every kernel, once, for the host (C11) and for the kernels (NVRTC without
 * headers, or the emulation of tests/simt). A kernel includes its room's header alone, so that a change
 * here leaves the others' cubins valid; the host includes this page. Rules: fixed-width members only,
 * pointers to device memory, no padding left to chance; a struct is at most 4 KiB and passed whole, by
 * value. */
#ifndef CAIRN_ABI_H
#define CAIRN_ABI_H
#include "abi/base.h"
#include "abi/topk.h"
#include "abi/index.h"
#include "abi/steps.h"
#include "abi/dense.h"
#include "abi/paged.h"
#include "abi/kv.h"
#include "abi/select.h"
#include "abi/pages.h"
#include "abi/attention.h"
#include "abi/conv.h"
#include "abi/sample.h"
#include "abi/pack.h"
#include "abi/step.h"
#include "abi/device.h"
#endif
