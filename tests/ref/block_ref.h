/* block_ref: the values of GGUF blocks, from the format's description, one value at a time in
 * double precision. The oracle for every implementation of the block types. */
#ifndef BLOCK_REF_H
#define BLOCK_REF_H

#include <math.h>
#include <stdint.h>

#include "quick.h"

QUICK double block_ref_half(const uint8_t *at) {
    int bits = at[0] + 256 * at[1], sign = bits / 32768 ? -1 : 1;
    int exponent = bits / 1024 % 32, fraction = bits % 1024;
    if (exponent == 31) return fraction ? (double)NAN : sign * (double)INFINITY;
    if (exponent == 0) return sign * ldexp(fraction, -24);
    return sign * ldexp(1024 + fraction, exponent - 25);
}

QUICK double block_ref_single(uint32_t bits) {
    int sign = bits >> 31 ? -1 : 1, exponent = (int)(bits >> 23 & 255);
    uint32_t fraction = bits & 0x7fffff;
    if (exponent == 255) return fraction ? (double)NAN : sign * (double)INFINITY;
    if (exponent == 0) return sign * ldexp(fraction, -149);
    return sign * ldexp(fraction + 8388608.0, exponent - 150);
}

/* The six-bit number `which` (0: scale, 1: minimum) of part `eighth` in twelve packed bytes. */
QUICK int block_ref_six(const uint8_t *packed, int eighth, int which) {
    int at = eighth % 4 + 4 * which;
    if (eighth < 4) return packed[at] % 64;
    return packed[8 + eighth % 4] / (which ? 16 : 1) % 16 + packed[at] / 64 * 16;
}

/* Value `j` of a block of 256. */
QUICK double block_ref_super(int type, const uint8_t *q, int j) {
    int eighth = j / 32, at = j % 32, n;
    if (type == 14) { /* Q6_K */
        int half = j / 128, quarter = eighth % 4;
        n = q[64 * half + 32 * (quarter % 2) + at] / (quarter < 2 ? 1 : 16) % 16;
        n += 16 * (q[128 + 32 * half + at] >> (2 * quarter) & 3);
        return (n - 32) * (double)(int8_t)q[192 + j / 16] * block_ref_half(q + 208);
    }
    n = q[(type == 12 ? 16 : 48) + 32 * (eighth / 2) + at] / (eighth % 2 ? 16 : 1) % 16;
    if (type == 13) n += 16 * (q[16 + at] >> eighth & 1);
    return n * block_ref_six(q + 4, eighth, 0) * block_ref_half(q) -
           block_ref_six(q + 4, eighth, 1) * block_ref_half(q + 2);
}

/* Value `i` of a row of blocks of GGUF type `type`. */
QUICK double block_ref_value(int type, const uint8_t *row, int64_t i) {
    int64_t block = i / 32, j = i % 32;
    const uint8_t *q;
    switch (type) {
    case 0: /* F32 */
        row += 4 * i;
        return block_ref_single(row[0] | (uint32_t)row[1] << 8 | (uint32_t)row[2] << 16 |
                                (uint32_t)row[3] << 24);
    case 1: /* F16 */ return block_ref_half(row + 2 * i);
    case 30: /* BF16 */
        row += 2 * i;
        return block_ref_single((uint32_t)row[0] << 16 | (uint32_t)row[1] << 24);
    case 2: /* Q4_0 */
        q = row + 18 * block;
        return (((j < 16 ? q[2 + j] : q[2 + j - 16] / 16) % 16) - 8) * block_ref_half(q);
    case 3: /* Q4_1 */
        q = row + 20 * block;
        return ((j < 16 ? q[4 + j] : q[4 + j - 16] / 16) % 16) * block_ref_half(q) +
               block_ref_half(q + 2);
    case 6: /* Q5_0 */
        q = row + 22 * block;
        return ((j < 16 ? q[6 + j] : q[6 + j - 16] / 16) % 16 + 16 * (q[2 + j / 8] >> j % 8 & 1) -
                16) * block_ref_half(q);
    case 7: /* Q5_1 */
        q = row + 24 * block;
        return ((j < 16 ? q[8 + j] : q[8 + j - 16] / 16) % 16 + 16 * (q[4 + j / 8] >> j % 8 & 1)) *
                   block_ref_half(q) + block_ref_half(q + 2);
    case 12: return block_ref_super(type, row + 144 * (i / 256), (int)(i % 256));
    case 13: return block_ref_super(type, row + 176 * (i / 256), (int)(i % 256));
    case 14: return block_ref_super(type, row + 210 * (i / 256), (int)(i % 256));
    case 8: /* Q8_0 */
        q = row + 34 * block;
        return (q[2 + j] ^ 128) * block_ref_half(q) - 128 * block_ref_half(q);
    default: return NAN;
    }
}

#endif
