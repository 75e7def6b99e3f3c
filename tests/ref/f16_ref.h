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

/* The nearest f16, ties to even; of what is too large the largest, of NaN 0. */
QUICK uint16_t ref_to_f16(double x) {
    const double magnitude = fabs(x);
    const uint16_t sign = x < 0 ? 0x8000 : 0;
    double units, whole;
    int exponent; /* as f16 has it; those too small for one are in units of the least */
    uint16_t h;
    if (!(magnitude < 65504)) return isnan(x) ? 0 : sign | 0x7bff;
    frexp(magnitude, &exponent);
    exponent += 14;
    if (exponent < 1 || magnitude == 0) exponent = 1;
    units = ldexp(magnitude, 25 - exponent), whole = floor(units);
    h = (uint16_t)(((exponent - 1) << 10) + (int)whole); /* a whole 1024 counts the exponent up */
    if (units - whole > 0.5 || (units - whole == 0.5 && h & 1)) h++;
    return h | sign;
}

#endif
