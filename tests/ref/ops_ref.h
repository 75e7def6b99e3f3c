/* ops_ref: double-precision loops for the ops, written from runtime_ops.h alone. */
#ifndef OPS_REF_H
#define OPS_REF_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "f16_ref.h"
#include "quick.h"

typedef struct ref_cache {
    const uint16_t *cache; /* [pages, 2, kv_heads, size, dim] */
    int kv_heads, size, dim, max_pages;
    const int32_t *table; /* [max_pages] of one sequence */
} ref_cache;

QUICK double ref_kv(const ref_cache *c, int k_or_v, int head, int token, int d) {
    int64_t page = c->table[token / c->size];
    return ref_f16(c->cache[(((page * 2 + k_or_v) * c->kv_heads + head) * c->size + token % c->size) * c->dim + d]);
}

/* Attention of one query head over the tokens that `seen` marks; returns lse. */
QUICK double ref_attend(const ref_cache *c, int head, const float *q, int tokens, const uint8_t *seen,
                         double scale, double *out) {
    double top = -(double)INFINITY, total = 0;
    double *s = (double *)calloc((size_t)tokens, sizeof *s);
    int t, d;
    for (d = 0; d < c->dim; d++) out[d] = 0;
    for (t = 0; t < tokens; t++) {
        if (!seen[t]) continue;
        for (d = 0; d < c->dim; d++) s[t] += (double)q[d] * ref_kv(c, 0, head, t, d);
        s[t] *= scale;
        if (s[t] > top) top = s[t];
    }
    for (t = 0; t < tokens; t++) {
        if (!seen[t]) continue;
        total += exp(s[t] - top);
        for (d = 0; d < c->dim; d++) out[d] += exp(s[t] - top) * ref_kv(c, 1, head, t, d);
    }
    for (d = 0; d < c->dim && total > 0; d++) out[d] /= total;
    free(s);
    return total > 0 ? top + log(total) : -(double)INFINITY;
}

/* Marks the tokens that DESIGN.md's rule lets position i see. selected may be NULL (dense). */
QUICK void ref_seen(int i, int size, int window, int sinks, const int32_t *selected, int topk,
                     int sparse, uint8_t *seen) {
    int t, j, from = 0;
    if (window > 0) from = (i - window + 1 > 0 ? i - window + 1 : 0) / size * size;
    else if (sparse) from = i / size * size;
    for (t = 0; t <= i; t++) {
        seen[t] = t < sinks || t >= from;
        for (j = 0; selected && j < topk; j++)
            if (selected[j] >= 0 && t / size == selected[j]) seen[t] = 1;
    }
}

/* Score of page p for one KV head. */
QUICK double ref_page_score(const ref_cache *c, int head, const float *q, int group, int p, int mean,
                             int by_head) {
    double score = 0;
    int g, d, t;
    for (g = 0; g < group; g++) {
        double sum = 0;
        for (d = 0; d < c->dim; d++) {
            double lo = ref_kv(c, 0, head, p * c->size, d), hi = lo, all = 0, x = (double)q[g * c->dim + d];
            for (t = 0; t < c->size; t++) {
                double key = ref_kv(c, 0, head, p * c->size + t, d);
                lo = key < lo ? key : lo;
                hi = key > hi ? key : hi;
                all += key;
            }
            if (mean) sum += x * all / c->size;
            else sum += x * lo > x * hi ? x * lo : x * hi;
        }
        sum /= sqrt(c->dim);
        score = g == 0 ? sum : by_head ? (sum > score ? sum : score) : score + sum;
    }
    return score;
}

#endif
