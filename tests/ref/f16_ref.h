/* f16_ref: half precision in double, from its definition. */
#ifndef F16_REF_H
#define F16_REF_H

#include <math.h>
#include <stdint.h>

#include "quick.h"

QUICK double ref_f16(uint16_t h) {
    int exponent = h >> 10 & 31, mantissa = h & 1023;
    double sign = h & 0x8000 ? -1.0 : 1.0;
    if (exponent == 31) return mantissa ? (double)NAN : sign * (double)INFINITY;
    /* in units of 2^-24, the least there is */
    return sign * (exponent ? (1024 + mantissa) * (double)(1 << exponent) / 2 : mantissa) / 16777216;
}

/* The nearest f16, ties to even, by searching its neighbours: slow and obvious. */
QUICK uint16_t ref_to_f16(double x) {
    uint16_t best = 0;
    int low = 0, high = 0x7bff;
    double magnitude = fabs(x);
    while (low < high) { /* the largest f16 <= magnitude */
        int middle = (low + high + 1) / 2;
        if (ref_f16((uint16_t)middle) <= magnitude) low = middle;
        else high = middle - 1;
    }
    best = (uint16_t)low;
    if (low < 0x7bff) {
        double below = magnitude - ref_f16((uint16_t)low);
        double above = ref_f16((uint16_t)(low + 1)) - magnitude;
        if (above < below || (above == below && (low & 1))) best = (uint16_t)(low + 1);
    }
    return (uint16_t)(best | (x < 0 ? 0x8000 : 0));
}

#endif
