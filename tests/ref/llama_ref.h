/* llama_ref: a decoder in double precision, one token after the other: of the llama family, and of
 * those whose layers may be short convolutions, whose heads may be normed and turn by halves.
 * Written from the architectures and DESIGN.md's rule of what a query attends. Keys and values are rounded
 * to f16 as the cache holds them; everything else stays double. */
#ifndef LLAMA_REF_H
#define LLAMA_REF_H

#include <math.h>
#include <stdlib.h>

#include "f16_ref.h"

typedef struct llama_ref_matrix { int out, in; double *w; } llama_ref_matrix; /* [out, in] */

typedef struct llama_ref {
    int layers, hidden, heads, kv_heads, dim, ffn, vocab;
    double eps, base;
    llama_ref_matrix embed, head;
    double *output_norm;
    struct {
        double *attn_norm, *ffn_norm;
        llama_ref_matrix q, k, v, o, gate, up, down;
        double *q_norm, *k_norm;            /* [dim] or NULL */
        llama_ref_matrix conv_in, conv_out; /* of a layer with taps */
        double *taps;                       /* [hidden, width], the oldest first, or NULL */
    } layer[8];
    int halves, width; /* pairs are half a head apart; taps of a convolution */
    double *gated;     /* [layer][position][hidden]: inputs of convolutions */
    /* selection */
    int size, topk, window, sinks, mean, by_head, dense;
    /* kept between tokens: keys and values [layer][position][kv_head][dim] */
    int capacity;
    double *keys, *values;
    double closest; /* least relative distance between the last page kept and the first left out */
    long pages_read;
} llama_ref;

static void llama_ref_product(const llama_ref_matrix *m, const double *x, double *y) {
    for (int o = 0; o < m->out; o++) {
        y[o] = 0;
        for (int i = 0; i < m->in; i++) y[o] += m->w[(long)o * m->in + i] * x[i];
    }
}

static void llama_ref_norm(const llama_ref *m, const double *x, const double *weight, double *y) {
    double square = 0;
    for (int i = 0; i < m->hidden; i++) square += x[i] * x[i];
    for (int i = 0; i < m->hidden; i++)
        y[i] = x[i] / sqrt(square / m->hidden + m->eps) * weight[i];
}

static void llama_ref_rope(const llama_ref *m, double *x, int heads, int position) {
    for (int h = 0; h < heads; h++)
        for (int j = 0; j < m->dim / 2; j++) {
            double angle = position * pow(m->base, -2.0 * j / m->dim);
            double *low = x + h * m->dim + (m->halves ? j : 2 * j);
            double *high = low + (m->halves ? m->dim / 2 : 1), a = *low, b = *high;
            *low = a * cos(angle) - b * sin(angle);
            *high = b * cos(angle) + a * sin(angle);
        }
}

static void llama_ref_norm_heads(const llama_ref *m, double *x, int heads, const double *weight) {
    for (int h = 0; h < heads && weight; h++) {
        double *at = x + h * m->dim, square = 0;
        for (int i = 0; i < m->dim; i++) square += at[i] * at[i];
        for (int i = 0; i < m->dim; i++) at[i] *= weight[i] / sqrt(square / m->dim + m->eps);
    }
}

/* y [hidden] of a convolution's layer from its normed x, at the end of what was gated before. */
static void llama_ref_convolve(llama_ref *m, int layer, int position, const double *x, double *y) {
    const int n = m->hidden;
    double *mixed = (double *)calloc((size_t)(4 * n), sizeof *mixed), *sums = mixed + 3 * n;
    double *kept = m->gated + (long)layer * m->capacity * n;
    llama_ref_product(&m->layer[layer].conv_in, x, mixed);
    for (int c = 0; c < n; c++) {
        kept[(long)position * n + c] = mixed[c] * mixed[2 * n + c];
        for (int j = 0; j < m->width; j++) {
            int from = position - (m->width - 1) + j;
            if (from >= 0)
                sums[c] += m->layer[layer].taps[c * m->width + j] * kept[(long)from * n + c];
        }
        sums[c] *= mixed[n + c];
    }
    llama_ref_product(&m->layer[layer].conv_out, sums, y);
    free(mixed);
}

static double *llama_ref_at(const llama_ref *m, double *kept, int layer, int position, int head) {
    return kept + (((long)layer * m->capacity + position) * m->kv_heads + head) * m->dim;
}

static double llama_ref_score(llama_ref *m, int layer, int head, int page, const double *q) {
    const int group = m->heads / m->kv_heads;
    double score = 0;
    for (int g = 0; g < group; g++) {
        double sum = 0;
        for (int d = 0; d < m->dim; d++) {
            double low = INFINITY, high = -INFINITY, all = 0, x = q[g * m->dim + d];
            for (int t = page * m->size; t < (page + 1) * m->size; t++) {
                double key = llama_ref_at(m, m->keys, layer, t, head)[d];
                low = fmin(low, key), high = fmax(high, key), all += key;
            }
            sum += m->mean ? x * all / m->size : fmax(x * low, x * high);
        }
        score = !g ? sum : m->by_head ? fmax(score, sum) : score + sum;
    }
    return score;
}

/* Marks what the query at `position` attends; picks the pages one by one, the best first. */
static void llama_ref_seen(llama_ref *m, int layer, int head, int position, const double *q,
                           unsigned char *seen) {
    int first = m->window > 0 ? position - m->window + 1 : position;
    int candidates = first > 0 ? first / m->size : 0, t;
    double *scores = (double *)calloc((size_t)candidates + 1, sizeof *scores), last = 0;
    for (t = 0; t <= position; t++)
        seen[t] = m->dense || t < m->sinks || t >= candidates * m->size;
    for (int c = 0; c < candidates; c++) scores[c] = llama_ref_score(m, layer, head, c, q);
    for (int k = 0; k <= m->topk && k < candidates && !m->dense; k++) {
        int best = -1;
        for (int c = 0; c < candidates; c++)
            if (scores[c] > -INFINITY && (best < 0 || scores[c] > scores[best])) best = c;
        if (k == m->topk) { /* the first page left out */
            m->closest = fmin(m->closest, (last - scores[best]) / (fabs(last) + 1e-9));
            break;
        }
        last = scores[best];
        scores[best] = -INFINITY;
        for (t = best * m->size; t < (best + 1) * m->size; t++) seen[t] = 1;
    }
    for (int c = 0; c * m->size <= position; c++)
        for (t = c * m->size; t <= position && t < (c + 1) * m->size; t++)
            if (seen[t]) { m->pages_read++; break; }
    free(scores);
}

static void llama_ref_attend(llama_ref *m, int layer, int position, const double *q, double *out) {
    const int group = m->heads / m->kv_heads;
    unsigned char *seen = (unsigned char *)calloc((size_t)position + 1, 1);
    double *p = (double *)calloc((size_t)position + 1, sizeof *p);
    for (int h = 0; h < m->heads; h++) {
        double total = 0, top = -INFINITY;
        if (h % group == 0)
            llama_ref_seen(m, layer, h / group, position, q + h * m->dim, seen);
        for (int t = 0; t <= position; t++) {
            p[t] = 0;
            for (int d = 0; d < m->dim; d++)
                p[t] += q[h * m->dim + d] * llama_ref_at(m, m->keys, layer, t, h / group)[d];
            p[t] /= sqrt(m->dim);
            if (seen[t]) top = fmax(top, p[t]);
        }
        for (int d = 0; d < m->dim; d++) out[h * m->dim + d] = 0;
        for (int t = 0; t <= position; t++) {
            if (!seen[t]) continue;
            total += exp(p[t] - top);
            for (int d = 0; d < m->dim; d++)
                out[h * m->dim + d] +=
                    exp(p[t] - top) * llama_ref_at(m, m->values, layer, t, h / group)[d];
        }
        for (int d = 0; d < m->dim; d++) out[h * m->dim + d] /= total;
    }
    free(seen), free(p);
}

/* Appends a token; logits [vocab]. */
static void llama_ref_step(llama_ref *m, int token, int position, double *logits) {
    const int q_width = m->heads * m->dim, kv_width = m->kv_heads * m->dim;
    double *memory = (double *)calloc((size_t)(4 * m->hidden + 2 * q_width + 2 * kv_width +
                                               2 * m->ffn), sizeof *memory);
    double *h = memory, *x = h + m->hidden, *y = x + m->hidden, *q = y + m->hidden;
    double *out = q + q_width, *k = out + q_width, *v = k + kv_width, *gate = v + kv_width;
    double *up = gate + m->ffn;
    for (int i = 0; i < m->hidden; i++) h[i] = m->embed.w[(long)token * m->hidden + i];
    for (int l = 0; l < m->layers; l++) {
        llama_ref_norm(m, h, m->layer[l].attn_norm, x);
        if (m->layer[l].taps) {
            llama_ref_convolve(m, l, position, x, y);
        } else {
            llama_ref_product(&m->layer[l].q, x, q);
            llama_ref_product(&m->layer[l].k, x, k);
            llama_ref_product(&m->layer[l].v, x, v);
            llama_ref_norm_heads(m, q, m->heads, m->layer[l].q_norm);
            llama_ref_norm_heads(m, k, m->kv_heads, m->layer[l].k_norm);
            llama_ref_rope(m, q, m->heads, position);
            llama_ref_rope(m, k, m->kv_heads, position);
            for (int i = 0; i < kv_width; i++) {
                llama_ref_at(m, m->keys, l, position, 0)[i] = ref_f16(ref_to_f16(k[i]));
                llama_ref_at(m, m->values, l, position, 0)[i] = ref_f16(ref_to_f16(v[i]));
            }
            llama_ref_attend(m, l, position, q, out);
            llama_ref_product(&m->layer[l].o, out, y);
        }
        for (int i = 0; i < m->hidden; i++) h[i] += y[i];
        llama_ref_norm(m, h, m->layer[l].ffn_norm, x);
        llama_ref_product(&m->layer[l].gate, x, gate);
        llama_ref_product(&m->layer[l].up, x, up);
        for (int i = 0; i < m->ffn; i++) gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
        llama_ref_product(&m->layer[l].down, gate, y);
        for (int i = 0; i < m->hidden; i++) h[i] += y[i];
    }
    llama_ref_norm(m, h, m->output_norm, x);
    llama_ref_product(&m->head, x, logits);
    free(memory);
}

#endif
