/* A decoder's forward in double precision, by plain loops: the oracle of the step's kernels. Shares
 * no code with the runtime. Weights are given as values [out, in]; K and V are rounded to f16 as
 * the cache holds them, nothing else is rounded. */
#ifndef CAIRN_REF_DECODER_STEP_H
#define CAIRN_REF_DECODER_STEP_H

#include <math.h>

#include <functional>
#include <vector>

namespace ref {

typedef std::vector<double> vec;

struct layer_weights {
    vec attn_norm, ffn_norm, q, k, v, o, gate, up, down;
};

struct decoder {
    int hidden, heads, kv_heads, dim, ffn, vocab;
    double eps, rope_base;
    std::vector<layer_weights> layers;
    vec embed, head, norm;
    /* cache[layer]: [position][kv_head][dim], grown by forward */
    std::vector<std::vector<vec>> keys, values;
    std::function<double(double)> round_f16;
    /* Whether the query row at `position` sees key t in this layer and KV head; may look at q. */
    std::function<bool(int layer, int kv_head, int position, int t, const vec &q)> sees;

    static vec product(const vec &w, const vec &x) {
        size_t in = x.size(), out = w.size() / in;
        vec y(out, 0.0);
        for (size_t r = 0; r < out; r++)
            for (size_t i = 0; i < in; i++) y[r] += w[r * in + i] * x[i];
        return y;
    }
    vec normed(const vec &x, const vec &weight) const {
        double sum = 0.0;
        for (double v : x) sum += v * v;
        double factor = 1.0 / sqrt(sum / (double)x.size() + eps);
        vec y(x.size());
        for (size_t i = 0; i < x.size(); i++) y[i] = x[i] * factor * weight[i];
        return y;
    }
    /* Pairs 2i, 2i + 1 of each head. */
    void turn(vec &x, int position) const {
        for (size_t at = 0; at < x.size(); at += 2) {
            int i = (int)(at % (size_t)dim) / 2;
            double angle = position * pow(rope_base, -2.0 * i / dim);
            double a = x[at], b = x[at + 1];
            x[at] = a * cos(angle) - b * sin(angle);
            x[at + 1] = a * sin(angle) + b * cos(angle);
        }
    }
    void attend(int layer, int head, int position, const vec &q, vec &out) const {
        int kv = head / (heads / kv_heads);
        vec score;
        std::vector<int> seen;
        double top = -1e300, total = 0.0;
        for (int t = 0; t <= position; t++) {
            if (sees && !sees(layer, kv, position, t, q)) continue;
            double s = 0.0;
            for (int d = 0; d < dim; d++)
                s += q[(size_t)(head * dim + d)] * keys[layer][t][kv * dim + d];
            seen.push_back(t);
            score.push_back(s / sqrt((double)dim));
            top = fmax(top, score.back());
        }
        for (double &s : score) total += s = exp(s - top);
        for (int d = 0; d < dim; d++) {
            double sum = 0.0;
            for (size_t i = 0; i < seen.size(); i++)
                sum += score[i] * values[layer][seen[i]][kv * dim + d];
            out[(size_t)(head * dim + d)] = sum / total;
        }
    }
    void append(int layer, int position, const vec &k, const vec &v) {
        if ((int)keys[layer].size() <= position) {
            keys[layer].resize((size_t)position + 1);
            values[layer].resize((size_t)position + 1);
        }
        keys[layer][position] = k;
        values[layer][position] = v;
        for (double &x : keys[layer][position]) x = round_f16(x);
        for (double &x : values[layer][position]) x = round_f16(x);
    }
    vec forward(int token, int position) {
        vec x(embed.begin() + (long)token * hidden, embed.begin() + (long)(token + 1) * hidden);
        for (int l = 0; l < (int)layers.size(); l++) {
            const layer_weights &w = layers[(size_t)l];
            vec h = normed(x, w.attn_norm), out((size_t)(heads * dim));
            vec q = product(w.q, h), k = product(w.k, h), v = product(w.v, h);
            turn(q, position);
            turn(k, position);
            append(l, position, k, v);
            for (int head = 0; head < heads; head++) attend(l, head, position, q, out);
            vec add = product(w.o, out);
            for (size_t i = 0; i < x.size(); i++) x[i] += add[i];
            h = normed(x, w.ffn_norm);
            vec gate = product(w.gate, h), up = product(w.up, h);
            for (size_t i = 0; i < gate.size(); i++) gate[i] *= up[i] / (1.0 + exp(-gate[i]));
            add = product(w.down, gate);
            for (size_t i = 0; i < x.size(); i++) x[i] += add[i];
        }
        return product(head, normed(x, norm));
    }
};

} // namespace ref

#endif
