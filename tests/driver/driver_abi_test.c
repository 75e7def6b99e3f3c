/* driver_abi: our picture of the driver's and NVRTC's binary interface against the real headers,
 * where they are installed: constants, struct layouts, and every prototype (a difference does not
 * compile). */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "tap.h"

#if defined(__has_include)
#if __has_include(<cuda.h>) && __has_include(<nvrtc.h>)
#define HAVE_CUDA 1
#endif
#endif
#ifndef HAVE_CUDA
int main(void) {
    tap_skip("cuda.h and nvrtc.h are not installed");
    return tap_done();
}
#else
#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunused-const-variable"
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wc++-compat"
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
#pragma GCC diagnostic ignored "-Wundef"
#endif
#undef __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <nvrtc.h>
typedef void (*os_function)(void);
#define DRV_TYPES_FROM_CUDA
#include "runtime/generated/driver.h"

/* Newer headers hide old versions behind macros; the symbols keep these types. */
#undef cuCtxCreate_v2
CUresult CUDAAPI cuCtxCreate_v2(CUcontext *, unsigned int, CUdevice);

/* Compiled, never run: both sides of ?: must have the same type. */
#define SAME_TYPE(field, symbol) total += sizeof(1 ? table->field : &symbol);
static size_t prototypes(const driver_calls *table) {
    size_t total = 0;
    (void)table;
    DRV_FUNCTIONS(SAME_TYPE)
    return total / sizeof(os_function);
}

#define SAME_VALUE(name, value) tap_ok((long)name == value, #name " is %d", value);

int main(void) {
    size_t rows = sizeof driver_cuda_rows / sizeof *driver_cuda_rows +
                  sizeof driver_nvrtc_rows / sizeof *driver_nvrtc_rows;
    DRV_CONSTANTS(SAME_VALUE)
    tap_ok(prototypes(NULL) == rows, "%zu prototypes agree with cuda.h %d", rows, CUDA_VERSION);
    tap_ok(sizeof(CUlaunchAttribute) == 72 && offsetof(CUlaunchAttribute, value) == 8,
           "CUlaunchAttribute is 72 bytes, its value at 8");
    tap_ok(sizeof(CUlaunchConfig) == 56 && offsetof(CUlaunchConfig, hStream) == 32 &&
           offsetof(CUlaunchConfig, attrs) == 40 && offsetof(CUlaunchConfig, numAttrs) == 48,
           "CUlaunchConfig");
    tap_ok(sizeof(CUgraphExecUpdateResultInfo) == 24 && sizeof(CUuuid) == 16 &&
           sizeof(CUdeviceptr) == 8, "small types");
    return tap_done();
}
#endif
