/* llama_ref: a decoder in double precision, one token after the other: of the llama family, and of
 * those that differ from it in what the fields below say; a field of zero means llama's.
 * Written from the architectures and DESIGN.md's rule of what a query attends. Keys and values are rounded
 * as the cache holds them; everything else stays double. */
#ifndef LLAMA_REF_H
#define LLAMA_REF_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "f16_ref.h"
#include "index_ref.h"
#include "quick.h"

typedef struct llama_ref_matrix { int out, in; double *w; } llama_ref_matrix; /* [out, in] */

typedef struct llama_ref {
    int layers, hidden, heads, kv_heads, dim, ffn, vocab;
    double eps, base;
    llama_ref_matrix embed, head;
    double *output_norm;
    struct {
        double *attn_norm, *ffn_norm;
        llama_ref_matrix q, k, v, o, gate, up, down, router;
        double *q_norm, *k_norm;            /* [dim] or NULL */
        llama_ref_matrix conv_in, conv_out; /* of a layer with taps */
        double *taps;                       /* [hidden, width], the oldest first, or NULL */
        double *q_bias, *k_bias, *v_bias;   /* or NULL */
        double *attn_post, *ffn_post;       /* norms of what a layer adds, or NULL */
        int no_choice;     /* sees all, landmarks too */
        int second, still; /* turns by frequency[1]; does not turn */
        int window;        /* sees so many tokens back, itself included, and selects no pages */
    } layer[8];
    double frequency[2][128], magnitude; /* magnitude 0: from base alone */
    int rotated;                         /* values of a head that turn; 0: all */
    int gelu, experts, used; /* gate, up and down hold all experts, one behind the other */
    double embed_scale, scale;
    int halves, width; /* pairs are half a head apart; taps of a convolution */
    double *gated;     /* [layer][position][hidden]: inputs of convolutions */
    /* selection */
    int size, topk, window, sinks, mean, by_head, dense;
    /* and by landmarks: the last slot of a page is one, unseen in layers that select, and scores are of
     * its key; the strategy softmax_head; pages that weigh by their scores; window and pages apart */
    int landmarks, soft, two_level, apart;
    int watched;           /* the layer whose last choice is kept, by KV head, a bit a page */
    unsigned long kept[8];
    int turned; /* the position by which a token turns, less its own */
    int stored; /* what the cache holds: 0 f16, 1 bf16, 2 f32, 3 e4m3 with a scale of a slot and head */
    /* kept between tokens: keys and values [layer][position][kv_head][dim] */
    int capacity;
    double *keys, *values;
    /* Keys and values as who is compared holds them, or NULL. f32 sums fall to the other side of a middle
     * between two that can be held now and then, and all that follows hangs on it: theirs is kept where it is
     * as near as f32 can tell. */
    const double *theirs[2];
    long strayed;   /* how many of theirs were not */
    double closest; /* least distance between the scores of the last page kept and the first left out, of the largest
                       sum of a score's terms without their signs: rounding moves a score by a part of that */
    double nearest; /* least distance between the router's scores of the last expert used and the next */
    long pages_read;
    unsigned long long read[8][8]; /* [layer][kv_head] the pages read since they were 0, a bit each */
    double shake; /* each value of a token's embedding moves by up to so much of itself */
    unsigned long long shaken;
} llama_ref;

/* Eight sums at a time, each in the order of its row. */
QUICK void llama_ref_product(const llama_ref_matrix *m, const double *x, double *y) {
    const long in = m->in;
    int o = 0;
    for (; o + 8 <= m->out; o += 8) {
        const double *w = m->w + o * in;
        double s[8] = {0};
        for (long i = 0; i < in; i++)
            for (int j = 0; j < 8; j++) s[j] += w[j * in + i] * x[i];
        for (int j = 0; j < 8; j++) y[o + j] = s[j];
    }
    for (; o < m->out; o++) {
        double sum = 0;
        for (long i = 0; i < in; i++) sum += m->w[o * in + i] * x[i];
        y[o] = sum;
    }
}

QUICK void llama_ref_norm(const llama_ref *m, const double *x, const double *weight, double *y) {
    double square = 0;
    for (int i = 0; i < m->hidden; i++) square += x[i] * x[i];
    for (int i = 0; i < m->hidden; i++)
        y[i] = x[i] / sqrt(square / m->hidden + m->eps) * weight[i];
}

QUICK void llama_ref_rope(const llama_ref *m, int layer, double *x, int heads, int position) {
    const int dims = m->rotated ? m->rotated : m->dim;
    for (int h = 0; h < heads && !m->layer[layer].still; h++)
        for (int j = 0; j < dims / 2; j++) {
            double turn = m->magnitude > 0 ? m->frequency[m->layer[layer].second][j]
                                           : pow(m->base, -2.0 * j / m->dim);
            double size = m->magnitude > 0 && !m->layer[layer].second ? m->magnitude : 1;
            double c = size * cos(position * turn), s = size * sin(position * turn);
            double *low = x + h * m->dim + (m->halves ? j : 2 * j);
            double *high = low + (m->halves ? dims / 2 : 1), a = *low, b = *high;
            *low = a * c - b * s;
            *high = b * c + a * s;
        }
}

QUICK void llama_ref_norm_heads(const llama_ref *m, double *x, int heads, const double *weight) {
    for (int h = 0; h < heads && weight; h++) {
        double *at = x + h * m->dim, square = 0;
        for (int i = 0; i < m->dim; i++) square += at[i] * at[i];
        for (int i = 0; i < m->dim; i++) at[i] *= weight[i] / sqrt(square / m->dim + m->eps);
    }
}

/* y [hidden] of a convolution's layer from its normed x, at the end of what was gated before. */
QUICK void llama_ref_convolve(llama_ref *m, int layer, int position, const double *x, double *y) {
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

QUICK double *llama_ref_at(const llama_ref *m, double *kept, int layer, int position, int head) {
    return kept + (((long)layer * m->capacity + position) * m->kv_heads + head) * m->dim;
}

/* A page's score; *terms becomes at least the sum of its terms without their signs. */
QUICK double llama_ref_score(llama_ref *m, int layer, int head, int page, const double *q, double *terms) {
    const int group = m->heads / m->kv_heads;
    double score = 0, size = 0;
    for (int g = 0; g < group; g++) {
        double sum = 0, one = 0;
        for (int d = 0; d < m->dim; d++) {
            double low = INFINITY, high = -INFINITY, all = 0, x = q[g * m->dim + d];
            for (int t = page * m->size; t < (page + 1) * m->size; t++) {
                double key = llama_ref_at(m, m->keys, layer, t, head)[d];
                low = key < low ? key : low, high = key > high ? key : high, all += key;
            }
            const double term = m->mean ? x * all / m->size : fmax(x * low, x * high);
            sum += term, one += fabs(term);
        }
        score = !g ? sum : m->by_head ? fmax(score, sum) : score + sum;
        size = m->by_head ? fmax(size, one) : size + one;
    }
    *terms = fmax(*terms, size);
    return score;
}

/* Marks what the query at `position` attends; picks the pages one by one, the best first. */
QUICK void llama_ref_seen(llama_ref *m, int layer, int head, int position, const double *q,
                           unsigned char *seen) {
    int first = m->window > 0 ? position - m->window + 1 : position;
    int candidates = first > 0 ? first / m->size : 0, t;
    double *scores = (double *)calloc((size_t)candidates + 1, sizeof *scores), last = 0;
    const int own = m->layer[layer].window;
    if (own) candidates = 0;
    for (t = 0; t <= position; t++)
        seen[t] = own ? position - t < own
                      : m->dense || t < m->sinks || t >= candidates * m->size;
    double largest = 1e-9;
    for (int c = 0; c < candidates; c++) scores[c] = llama_ref_score(m, layer, head, c, q, &largest);
    for (int k = 0; k <= m->topk && k < candidates && !m->dense; k++) {
        int best = -1;
        for (int c = 0; c < candidates; c++)
            if (scores[c] > -INFINITY && (best < 0 || scores[c] > scores[best])) best = c;
        if (k == m->topk) { /* the first page left out */
            m->closest = fmin(m->closest, (last - scores[best]) / largest);
            break;
        }
        last = scores[best];
        scores[best] = -INFINITY;
        for (t = best * m->size; t < (best + 1) * m->size; t++) seen[t] = 1;
    }
    for (int c = 0; c * m->size <= position; c++)
        for (t = c * m->size; t <= position && t < (c + 1) * m->size; t++)
            if (seen[t]) {
                m->pages_read++;
                m->read[layer][head % 8] |= 1ull << c;
                break;
            }
    free(scores);
}

QUICK void llama_ref_attend(llama_ref *m, int layer, int position, const double *q, double *out) {
    const int group = m->heads / m->kv_heads;
    unsigned char *seen = (unsigned char *)calloc((size_t)position + 1, 1);
    double *p = (double *)calloc((size_t)position + 1, sizeof *p);
    for (int h = 0; h < m->heads; h++) {
        double total = 0, top = -INFINITY;
        if (h % group == 0)
            llama_ref_seen(m, layer, h / group, position, q + h * m->dim, seen);
        for (int t = 0; t <= position; t++) {
            if (!seen[t]) continue;
            p[t] = 0;
            for (int d = 0; d < m->dim; d++)
                p[t] += q[h * m->dim + d] * llama_ref_at(m, m->keys, layer, t, h / group)[d];
            p[t] *= m->scale > 0 ? m->scale : 1 / sqrt(m->dim);
            top = fmax(top, p[t]);
        }
        for (int d = 0; d < m->dim; d++) out[h * m->dim + d] = 0;
        for (int t = 0; t <= position; t++) {
            if (!seen[t]) continue;
            const double weight = exp(p[t] - top);
            total += weight;
            for (int d = 0; d < m->dim; d++)
                out[h * m->dim + d] += weight * llama_ref_at(m, m->values, layer, t, h / group)[d];
        }
        for (int d = 0; d < m->dim; d++) out[h * m->dim + d] /= total;
    }
    free(seen), free(p);
}

/* ---- selection by landmarks, in two levels, with window and pages apart ---- */

/* terms: as of llama_ref_score, or NULL */
QUICK double llama_ref_dot(const llama_ref *m, int layer, int head, int t, const double *q, double *terms) {
    const double scale = m->scale > 0 ? m->scale : 1 / sqrt(m->dim);
    double sum = 0, size = 0;
    for (int d = 0; d < m->dim; d++) {
        const double term = q[d] * llama_ref_at(m, m->keys, layer, t, head)[d];
        sum += term, size += fabs(term);
    }
    if (terms) *terms = fmax(*terms, size * scale);
    return sum * scale;
}

/* Softmax over the tokens marked 1: out [dim], 0 with none; returns lse. */
QUICK double llama_ref_softmax(const llama_ref *m, int layer, int head, const double *q,
                                const unsigned char *marks, int mark, int end, double *out) {
    double top = -INFINITY, total = 0;
    for (int t = 0; t < end; t++)
        if (marks[t] == mark) top = fmax(top, llama_ref_dot(m, layer, head, t, q, NULL));
    for (int d = 0; d < m->dim; d++) out[d] = 0;
    for (int t = 0; t < end; t++) {
        if (marks[t] != mark) continue;
        const double p = exp(llama_ref_dot(m, layer, head, t, q, NULL) - top);
        total += p;
        for (int d = 0; d < m->dim; d++)
            out[d] += p * llama_ref_at(m, m->values, layer, t, head)[d];
    }
    for (int d = 0; d < m->dim && total > 0; d++) out[d] /= total;
    return total > 0 ? top + log(total) : -INFINITY;
}

/* Parts [count] of one head by weights, as logarithms; those of -inf count nothing. */
QUICK void llama_ref_join(const llama_ref *m, const double *parts, const double *weights, int count,
                           double *out) {
    double top = -INFINITY, total = 0;
    for (int i = 0; i < count; i++) top = fmax(top, weights[i]);
    for (int i = 0; i < count && top > -INFINITY; i++) total += exp(weights[i] - top);
    for (int i = 0; i < count && total > 0; i++) {
        const double share = exp(weights[i] - top) / total;
        for (int d = 0; d < m->dim; d++) out[d] += share * parts[i * m->dim + d];
    }
}

/* The k best of scores [count], marked; the distance to the best left out, of `largest`, to m->closest. */
QUICK void llama_ref_best(llama_ref *m, const double *scores, int count, int k, double largest,
                           unsigned char *chosen) {
    double last = 0;
    for (int i = 0; i <= k && i < count; i++) {
        int best = -1;
        for (int c = 0; c < count; c++)
            if (!chosen[c] && (best < 0 || scores[c] > scores[best])) best = c;
        if (i == k) m->closest = fmin(m->closest, (last - scores[best]) / largest);
        else chosen[best] = 1, last = scores[best];
    }
}

/* One KV head: own [group][candidates] scores; marks of tokens: 1 window and sinks, 2 + c of page c,
 * 0 what is not seen. */
QUICK void llama_ref_forms_head(llama_ref *m, int layer, int head, int position, const double *q,
                                 double *out) {
    const int group = m->heads / m->kv_heads, own_window = m->layer[layer].window;
    const int first = m->window > 0 ? position - m->window + 1 : position;
    const int all = own_window || m->layer[layer].no_choice;
    const int count = all || m->dense || first < 0 ? 0 : first / m->size;
    double *own = (double *)calloc((size_t)((group + 1) * (count + 1)), sizeof *own);
    double *key = own + group * (count + 1);
    double *parts = (double *)calloc((size_t)((count + 1) * (m->dim + 1)), sizeof *parts);
    double *weights = parts + (count + 1) * m->dim;
    unsigned char *marks = (unsigned char *)calloc((size_t)position + 1, 1);
    unsigned char *chosen = (unsigned char *)calloc((size_t)count + 1, 1);
    for (int t = 0; t <= position; t++) {
        marks[t] = own_window ? position - t < own_window : t < m->sinks || t >= count * m->size;
        if (m->landmarks && !all && (t + 1) % m->size == 0) marks[t] = 0;
    }
    double largest = 1e-9;
    for (int g = 0; g < group; g++) {
        const double *x = q + g * m->dim;
        double terms = 0;
        double whole = llama_ref_softmax(m, layer, head, x, marks, 1, position + 1, parts), sum;
        double top = whole;
        for (int c = 0; c < count; c++) {
            if (m->landmarks && !m->mean)
                own[g * count + c] = llama_ref_dot(m, layer, head, (c + 1) * m->size - 1, x, &terms);
            else {
                llama_ref one = *m;
                one.heads = one.kv_heads; /* a group of one */
                double raw = 0;
                own[g * count + c] = llama_ref_score(&one, layer, head, c, x, &raw) / sqrt(m->dim);
                terms = fmax(terms, raw / sqrt(m->dim));
            }
            top = fmax(top, own[g * count + c]);
        }
        largest = m->by_head || m->soft ? fmax(largest, terms) : largest + terms;
        sum = exp(whole - top);
        for (int c = 0; c < count; c++) sum += exp(own[g * count + c] - top);
        for (int c = 0; c < count; c++) {
            const double s = own[g * count + c] - (m->soft ? top + log(sum) : 0);
            key[c] = !g ? s : m->by_head || m->soft ? fmax(key[c], s) : key[c] + s;
        }
    }
    llama_ref_best(m, key, count, m->topk, largest, chosen);
    if (layer == m->watched && head < 8) m->kept[head] = 0;
    for (int c = 0; c < count && layer == m->watched && head < 8; c++)
        m->kept[head] |= (unsigned long)chosen[c] << c;
    for (int t = 0; t < count * m->size; t++)
        if (chosen[t / m->size] && !(m->landmarks && (t + 1) % m->size == 0))
            marks[t] = (unsigned char)(m->apart && t < m->sinks ? 1 : 2 + t / m->size);
    for (int t = 0; t <= position; t++)
        if (marks[t]) m->read[layer][head % 8] |= 1ull << t / m->size;
    for (int g = 0; g < group; g++) {
        const double *x = q + g * m->dim;
        double *to = out + g * m->dim;
        int made = 0;
        for (int d = 0; d < m->dim; d++) to[d] = 0;
        weights[made] = llama_ref_softmax(m, layer, head, x, marks, 1, position + 1,
                                          parts + made * m->dim);
        made++;
        if (m->apart) llama_ref_join(m, parts, weights, 1, to), made = 0;
        for (int c = 0; c < count; c++) {
            unsigned char *page = marks + c * m->size;
            unsigned char kept[256];
            double lse;
            if (!chosen[c]) continue;
            memcpy(kept, page, (size_t)m->size);
            for (int i = 0; i < m->size; i++) /* a sink stands in both where they are apart */
                if (!(m->landmarks && i == m->size - 1)) page[i] = (unsigned char)(2 + c);
            lse = llama_ref_softmax(m, layer, head, x, marks, 2 + c, position + 1,
                                    parts + made * m->dim);
            memcpy(page, kept, (size_t)m->size);
            weights[made++] = !m->two_level ? lse
                              : m->by_head || m->soft ? own[g * count + c] : key[c];
        }
        llama_ref_join(m, parts, weights, made, to);
    }
    free(own), free(parts), free(marks), free(chosen);
}

QUICK void llama_ref_attend_forms(llama_ref *m, int layer, int position, const double *q,
                                   double *out) {
    const int group = m->heads / m->kv_heads;
    for (int h = 0; h < m->kv_heads; h++)
        llama_ref_forms_head(m, layer, h, position, q + h * group * m->dim,
                             out + h * group * m->dim);
}

QUICK void llama_ref_bias(double *x, const double *bias, int n) {
    for (int i = 0; i < n && bias; i++) x[i] += bias[i];
}

/* The largest magnitude of the head that value i of x [kv_heads, dim] belongs to. */
QUICK double llama_ref_largest(const llama_ref *m, const double *x, int i) {
    const double *head = x + i / m->dim * m->dim;
    double most = 1e-4;
    for (int d = 0; d < m->dim; d++) most = fmax(most, fabs(head[d]));
    return most;
}

/* Value i of x [kv_heads, dim] as the cache holds it. */
QUICK double llama_ref_stored(const llama_ref *m, const double *x, int i) {
    double unit;
    int exponent;
    if (m->stored == 0) return ref_f16(ref_to_f16(x[i]));
    if (m->stored == 2) return (double)(float)x[i];
    if (m->stored == 1) { /* eight bits of it, ties to even */
        frexp(x[i], &exponent);
        unit = ldexp(1.0, exponent - 8);
        return nearbyint(x[i] / unit) * unit;
    }
    unit = llama_ref_largest(m, x, i) / 448;
    return ref_e4m3(ref_to_e4m3(x[i] / unit)) * unit;
}

/* The same or theirs; f32 errs by up to 1.4e-6 of the head's largest in 1,600 walks of small models. */
QUICK double llama_ref_held(llama_ref *m, const double *x, int i, const double *theirs) {
    const double nearest = llama_ref_stored(m, x, i);
    if (!theirs) return nearest;
    if (fabs(theirs[i] - x[i]) <= fabs(nearest - x[i]) + 1e-5 * llama_ref_largest(m, x, i)) return theirs[i];
    m->strayed++;
    return nearest;
}

/* Keeps x [kv_heads, dim], the keys (0) or values (1) of a token. */
QUICK void llama_ref_keep(llama_ref *m, int l, int position, int part, const double *x) {
    double *to = llama_ref_at(m, part ? m->values : m->keys, l, position, 0);
    const double *theirs = m->theirs[part];
    if (theirs) theirs += ((long)l * m->capacity + position) * m->kv_heads * m->dim;
    for (int i = 0; i < m->kv_heads * m->dim; i++) to[i] = llama_ref_held(m, x, i, theirs);
}

/* out from x: the attention of a layer, with the token's key and value kept. */
QUICK void llama_ref_attention(llama_ref *m, int l, int position, const double *x, double *out) {
    const int q_width = m->heads * m->dim, kv_width = m->kv_heads * m->dim;
    double *q = (double *)calloc((size_t)(q_width + 2 * kv_width), sizeof *q);
    double *k = q + q_width, *v = k + kv_width;
    llama_ref_product(&m->layer[l].q, x, q);
    llama_ref_product(&m->layer[l].k, x, k);
    llama_ref_product(&m->layer[l].v, x, v);
    llama_ref_bias(q, m->layer[l].q_bias, q_width);
    llama_ref_bias(k, m->layer[l].k_bias, kv_width);
    llama_ref_bias(v, m->layer[l].v_bias, kv_width);
    llama_ref_norm_heads(m, q, m->heads, m->layer[l].q_norm);
    llama_ref_norm_heads(m, k, m->kv_heads, m->layer[l].k_norm);
    llama_ref_rope(m, l, q, m->heads, position + m->turned);
    llama_ref_rope(m, l, k, m->kv_heads, position + m->turned);
    llama_ref_keep(m, l, position, 0, k), llama_ref_keep(m, l, position, 1, v);
    if (m->landmarks || m->soft || m->two_level || m->apart || (m->watched && l == m->watched))
        llama_ref_attend_forms(m, l, position, q, out);
    else llama_ref_attend(m, l, position, q, out);
    free(q);
}

QUICK double llama_ref_act(const llama_ref *m, double x) {
    if (!m->gelu) return x / (1 + exp(-x));
    return 0.5 * x * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

/* y [hidden] += share of one expert's ffn of x, or of the only one. */
QUICK void llama_ref_ffn(const llama_ref *m, int l, int expert, const double *x, double share,
                          double *y) {
    double *gate = (double *)calloc((size_t)(2 * m->ffn + m->hidden), sizeof *gate);
    double *up = gate + m->ffn, *out = up + m->ffn;
    llama_ref_matrix g = m->layer[l].gate, u = m->layer[l].up, d = m->layer[l].down;
    g.out = u.out = m->ffn, d.out = m->hidden;
    g.w += (long)expert * m->ffn * m->hidden, u.w += (long)expert * m->ffn * m->hidden;
    d.w += (long)expert * m->ffn * m->hidden;
    llama_ref_product(&g, x, gate);
    llama_ref_product(&u, x, up);
    for (int i = 0; i < m->ffn; i++) gate[i] = llama_ref_act(m, gate[i]) * up[i];
    llama_ref_product(&d, gate, out);
    for (int i = 0; i < m->hidden; i++) y[i] += share * out[i];
    free(gate);
}

/* Of the probabilities of all experts the largest `used`, which then sum to 1. */
QUICK void llama_ref_route(llama_ref *m, int l, const double *x, double *y) {
    double *score = (double *)calloc((size_t)m->experts, sizeof *score), kept = 0, least = 0;
    double *share = (double *)calloc((size_t)m->experts, sizeof *share);
    llama_ref_product(&m->layer[l].router, x, score);
    for (int k = 0; k <= m->used && k < m->experts; k++) {
        int best = 0;
        for (int e = 0; e < m->experts; e++) if (score[e] > score[best]) best = e;
        if (k == m->used) m->nearest = fmin(m->nearest, least - score[best]);
        else kept += share[best] = exp(score[best]), least = score[best];
        score[best] = -INFINITY;
    }
    for (int e = 0; e < m->experts; e++)
        if (share[e] > 0) llama_ref_ffn(m, l, e, x, share[e] / kept, y);
    free(score), free(share);
}

/* Another factor each time, within `shake` of 1. */
QUICK double llama_ref_shaken(llama_ref *m) {
    m->shaken = m->shaken * 6364136223846793005u + 1442695040888963407u;
    return 1 + m->shake * ((double)(m->shaken >> 11) / 4503599627370496.0 - 1);
}

/* Appends a token; logits [vocab]. */
QUICK void llama_ref_step(llama_ref *m, int token, int position, double *logits) {
    double *memory = (double *)calloc((size_t)(3 * m->hidden + m->heads * m->dim), sizeof *memory);
    double *h = memory, *x = h + m->hidden, *y = x + m->hidden, *out = y + m->hidden;
    for (int i = 0; i < m->hidden; i++)
        h[i] = m->embed.w[(long)token * m->hidden + i] * (m->embed_scale > 0 ? m->embed_scale : 1) *
               llama_ref_shaken(m);
    for (int l = 0; l < m->layers; l++) {
        llama_ref_norm(m, h, m->layer[l].attn_norm, x);
        if (m->layer[l].taps) {
            llama_ref_convolve(m, l, position, x, y);
        } else {
            llama_ref_attention(m, l, position, x, out);
            llama_ref_product(&m->layer[l].o, out, y);
        }
        if (m->layer[l].attn_post) llama_ref_norm(m, y, m->layer[l].attn_post, y);
        for (int i = 0; i < m->hidden; i++) h[i] += y[i];
        llama_ref_norm(m, h, m->layer[l].ffn_norm, x);
        for (int i = 0; i < m->hidden; i++) y[i] = 0;
        if (m->experts) llama_ref_route(m, l, x, y);
        else llama_ref_ffn(m, l, 0, x, 1, y);
        if (m->layer[l].ffn_post) llama_ref_norm(m, y, m->layer[l].ffn_post, y);
        for (int i = 0; i < m->hidden; i++) h[i] += y[i];
    }
    llama_ref_norm(m, h, m->output_norm, x);
    llama_ref_product(&m->head, x, logits);
    free(memory);
}

#endif
