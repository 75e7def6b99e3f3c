/* abi: what every kernel and the host agree on: fixed-width types and the fault word (see abi.h). */
#ifndef CAIRN_ABI_BASE_H
#define CAIRN_ABI_BASE_H
#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#define ABI_FUNCTION static __device__ __forceinline__ constexpr
#else
#include <stdint.h>
#ifdef __cplusplus
#define ABI_FUNCTION static inline constexpr
#else
#define ABI_FUNCTION static inline
#endif
#endif

/* Where kernels report bad data in device memory: the first fault stays until the host reads it. */
typedef struct cairn_error_word {
    int32_t code; /* 0: none, else a CAIRN_FAULT_ */
    int32_t row;
    int64_t value; /* what was out of range */
} cairn_error_word;

enum {
    CAIRN_FAULT_LENGTH = 1,
    CAIRN_FAULT_ROW_START = 2,
    CAIRN_FAULT_ID = 3,
    CAIRN_FAULT_POSITION = 4
};

#endif
