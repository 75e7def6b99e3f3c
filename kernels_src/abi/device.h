/* abi: the parameters of kernels in device/ (see abi.h). */
#ifndef CAIRN_ABI_DEVICE_H
#define CAIRN_ABI_DEVICE_H
#ifndef CAIRN_ABI_H /* which includes all in order */
#include "abi/base.h"
#endif

/* device/measure.cu */
typedef struct measure_params {
    void *words;       /* [count] of 16 bytes */
    uint32_t *sink;    /* [1] */
    int64_t count;
    uint32_t never, pad;
} measure_params;

#endif
