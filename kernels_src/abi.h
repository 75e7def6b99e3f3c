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

/* measure.cu */
typedef struct measure_params {
    const void *words; /* [count] of 16 bytes */
    uint32_t *sink;    /* [1] */
    int64_t count;
    uint32_t never, pad;
} measure_params;

/* topk.cu */
typedef struct topk_params {
    const void *scores;        /* [rows, n] of CAIRN_SCORE_TYPE, row stride `stride` elements */
    const int32_t *lengths;    /* [rows] or NULL */
    const int32_t *row_starts; /* [rows] or NULL */
    int32_t *indices;          /* [rows, k] */
    float *values;             /* [rows, k] or NULL */
    cairn_error_word *error;
    int64_t stride;
    int32_t n, k;
    int32_t sort_size; /* 0: position order; else a power of two >= k */
    int32_t pad;
} topk_params;

#endif
