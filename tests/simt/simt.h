/* Kernels without a GPU: runs the very same .cu files of kernels_src as host C++17.
 *
 *     #include "simt.h"
 *     namespace small {                       // one namespace for each set of constants
 *     #define PAGE_SIZE 16
 *     #include "topk.cu"
 *     #undef PAGE_SIZE
 *     }
 *     int main() {
 *         simt::launch({grid, cluster, threads, shared_bytes}, small::topk, params);
 *         tap_ok(equal, "top-k of %d values", n);
 *         return tap_done();
 *     }
 *
 * README.md says what is emulated, and how. */
#ifndef CAIRN_SIMT_H
#define CAIRN_SIMT_H

#ifndef CAIRN_SIMT
#define CAIRN_SIMT 1
#endif

#include "../tap.h"
#include "simt_core.h"

#include "abi.h"
#include "device/common.cuh"

#endif
