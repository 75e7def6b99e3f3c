/* index_ref: the token indexer in double, written from runtime_ops.h alone. */
#ifndef INDEX_REF_H
#define INDEX_REF_H

#include <math.h>
#include <stdint.h>

#include "quick.h"

QUICK double ref_e4m3(uint8_t x) {
    int exponent = x >> 3 & 15, mantissa = x & 7;
    double sign = x & 0x80 ? -1.0 : 1.0;
    if (exponent == 15 && mantissa == 7) return (double)NAN;
    return sign * (exponent ? (8 + mantissa) * (double)(1 << exponent) / 2 : mantissa) / 512;
}

/* The nearest of all e4m3, of two the even, found by looking at each. */
QUICK uint8_t ref_to_e4m3(double x) {
    int i, best = 0;
    if (isnan(x)) return 0x7f;
    if (fabs(x) > 448) return (uint8_t)(0x7e | (signbit(x) ? 0x80 : 0));
    for (i = 1; i < 127; i++) {
        double gap = fabs(fabs(x) - ref_e4m3((uint8_t)i)), least = fabs(fabs(x) - ref_e4m3((uint8_t)best));
        if (gap < least || (gap == least && !(i & 1))) best = i;
    }
    return (uint8_t)(best | (signbit(x) ? 0x80 : 0));
}

/* The scale of a block whose largest magnitude is `most`. */
QUICK float ref_fp8_scale(double most, int power_of_two) {
    int exponent;
    double fraction;
    if (most < (double)1e-4f) most = (double)1e-4f;
    if (!power_of_two) return (float)most / 448.0f;
    fraction = frexp(most / 448.0, &exponent); /* [0.5, 1) */
    return (float)ldexp(1.0, fraction == 0.5 ? exponent - 1 : exponent);
}

/* One logit: q [heads, 128] and a key in e4m3. */
QUICK double ref_index_logit(const uint8_t *q, const float *weights, int heads, const uint8_t *key,
                              double scale) {
    double sum = 0;
    int h, d;
    for (h = 0; h < heads; h++) {
        double dot = 0;
        for (d = 0; d < 128; d++) dot += ref_e4m3(q[h * 128 + d]) * ref_e4m3(key[d]);
        if (dot > 0) sum += (double)weights[h] * dot;
    }
    return sum * scale;
}

/* rope over the first 64, half split, then Hadamard's matrix over sqrt(128); v may be out. */
QUICK void ref_index_head(const double *v, int position, double theta, double *out) {
    double turned[128];
    int i, j;
    for (i = 0; i < 128; i++) turned[i] = v[i];
    for (j = 0; j < 32; j++) {
        double angle = position * pow(theta, -j / 32.0);
        turned[j] = v[j] * cos(angle) - v[j + 32] * sin(angle);
        turned[j + 32] = v[j] * sin(angle) + v[j + 32] * cos(angle);
    }
    for (i = 0; i < 128; i++) {
        double sum = 0;
        for (j = 0; j < 128; j++) {
            int common = i & j, odd = 0;
            for (; common; common &= common - 1) odd ^= 1;
            sum += odd ? -turned[j] : turned[j];
        }
        out[i] = sum / sqrt(128.0);
    }
}

QUICK void ref_layer_norm(double *v, const float *weight, const float *bias, double epsilon) {
    double mean = 0, square = 0;
    int d;
    for (d = 0; d < 128; d++) mean += v[d] / 128;
    for (d = 0; d < 128; d++) square += (v[d] - mean) * (v[d] - mean) / 128;
    for (d = 0; d < 128; d++)
        v[d] = (v[d] - mean) / sqrt(square + epsilon) * (double)weight[d] + (bias ? (double)bias[d] : 0.0);
}

/* positions [k]: those of the k highest of scores [from, to), counted from `from`, ascending, the
 * lowest among equals, then -1. Reads no score when there are at most k. */
QUICK void ref_best(const float *scores, int from, int to, int k, int32_t *positions) {
    int n = to - from, found = 0, i, j;
    for (i = 0; i < k; i++) positions[i] = -1;
    for (i = 0; i < n; i++) {
        int above = 0;
        for (j = 0; n > k && j < n && above < k; j++)
            above += scores[from + j] > scores[from + i] || (scores[from + j] == scores[from + i] && j < i);
        if (above < k) positions[found++] = i;
    }
}

#endif
