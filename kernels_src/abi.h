/* The parameter struct of every kernel, once, for the host (C11) and for the kernels (NVRTC without
 * headers, or the emulation of tests/simt). Rules: fixed-width members only, pointers to device
 * memory, no padding left to chance; a struct is at most 4 KiB and passed whole, by value. */
#ifndef CAIRN_ABI_H
#define CAIRN_ABI_H

#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#else
#include <stdint.h>
#endif

#endif
