/* simd/math: elementwise kernels of a decoder layer, once per level. */

/* Within 2 ulp where the result is normal, 0 below; at most exp(88.37), so never infinite. NaN
 * stays NaN: min and max give their second operand when one is NaN. */
SIMD_FN BASE_INLINE VEC SIMD(exp)(VEC x) {
    VEC t = VEC_MIN(VEC_SET(88.37f), VEC_MAX(VEC_SET(-88.0f), x));
    VEC n = VEC_ROUND(VEC_MUL(t, VEC_SET(1.44269504089f)));
    VEC r = VEC_FMA(n, VEC_SET(-0.693359375f), t), p;
    r = VEC_FMA(n, VEC_SET(2.12194440e-4f), r);
    p = VEC_FMA(r, VEC_SET(1.9875691500e-4f), VEC_SET(1.3981999507e-3f));
    p = VEC_FMA(p, r, VEC_SET(8.3334519073e-3f));
    p = VEC_FMA(p, r, VEC_SET(4.1665795894e-2f));
    p = VEC_FMA(p, r, VEC_SET(1.6666665459e-1f));
    p = VEC_FMA(p, r, VEC_SET(5.0000001201e-1f));
    p = VEC_ADD(VEC_FMA(p, VEC_MUL(r, r), r), VEC_SET(1.0f));
    n = VEC_MAX(n, VEC_SET(-126.0f));
    return VEC_ZERO_BELOW(VEC_MUL(p, VEC_POW2(n)), x, -87.3f);
}

#ifndef VEC_MOST
#define VEC_MOST VEC_MAX /* b where a is NaN */
#endif

/* The first of the largest of x [n]; NaN is below all, and 0 where nothing is above -infinity. */
SIMD_FN static int SIMD(argmax)(const float *x, int n) {
    float top = -INFINITY;
    int best = 0;
    for (int i = 0, end; i < n; i = end) {
        VEC most = VEC_SET(-INFINITY);
        float here;
        int at = i;
        end = n - i < 1024 ? n : i + 1024; /* a part is looked through only if the largest is in it */
        for (; at + VEC_N <= end; at += VEC_N) most = VEC_MOST(VEC_LOAD(x + at), most);
        for (here = SIMD(top)(most); at < end; at++)
            if (x[at] > here) here = x[at];
        if (!(here > top)) continue;
        for (top = here, best = i; x[best] != top;) best++;
    }
    return best;
}

/* out [n] = e^x */
SIMD_FN static void SIMD(exp_row)(const float *x, float *out, int n) {
    int i;
    for (i = 0; i + VEC_N <= n; i += VEC_N) VEC_STORE(out + i, SIMD(exp)(VEC_LOAD(x + i)));
    for (; i < n; i++) out[i] = VEC_FIRST(SIMD(exp)(VEC_SET(x[i])));
}

/* out [n] = x / sqrt(mean(x^2) + eps) * weight */
SIMD_FN static void SIMD(rmsnorm)(const float *x, const float *weight, float eps, int n,
                                  float *out) {
    VEC sum[4];
    float part[4], square = 0, scale;
    int i, j;
    for (j = 0; j < 4; j++) sum[j] = VEC_SET(0.0f);
    for (i = 0; i + 4 * VEC_N <= n; i += 4 * VEC_N) {
        BASE_UNROLL
        for (j = 0; j < 4; j++) {
            VEC v = VEC_LOAD(x + i + j * VEC_N);
            sum[j] = VEC_FMA(v, v, sum[j]);
        }
    }
    for (; i < n; i++) square += x[i] * x[i];
    SIMD(sum4)(part, sum[0], sum[1], sum[2], sum[3]);
    square += (part[0] + part[1]) + (part[2] + part[3]);
    scale = 1.0f / sqrtf(square / (float)n + eps);
    for (i = 0; i + VEC_N <= n; i += VEC_N)
        VEC_STORE(out + i, VEC_MUL(VEC_MUL(VEC_LOAD(x + i), VEC_SET(scale)), VEC_LOAD(weight + i)));
    for (; i < n; i++) out[i] = x[i] * scale * weight[i];
}

/* x [n], pairs (2i, 2i + 1) turned by the angle whose cosine stands in cosine [2i] and [2i + 1],
 * whose sine, negated in [2i], in sine; in place. */
SIMD_FN static void SIMD(rope)(float *x, const float *cosine, const float *sine, int n) {
    int i = 0;
#if VEC_N > 1
    for (; i + VEC_N <= n; i += VEC_N) {
        VEC v = VEC_LOAD(x + i);
        VEC across = VEC_MUL(VEC_SWAP(v), VEC_LOAD(sine + i));
        VEC_STORE(x + i, VEC_FMA(v, VEC_LOAD(cosine + i), across));
    }
#endif
    for (; i < n; i += 2) {
        float even = x[i], odd = x[i + 1];
        x[i] = even * cosine[i] + odd * sine[i];
        x[i + 1] = odd * cosine[i + 1] + even * sine[i + 1];
    }
}

/* gate [n] = gate / (1 + e^-gate) * up */
SIMD_FN static void SIMD(swiglu)(float *gate, const float *up, int n) {
    const VEC one = VEC_SET(1.0f), zero = VEC_SET(0.0f);
    int i;
    for (i = 0; i + VEC_N <= n; i += VEC_N) {
        VEC g = VEC_LOAD(gate + i), s = VEC_ADD(one, SIMD(exp)(VEC_SUB(zero, g)));
        VEC_STORE(gate + i, VEC_MUL(VEC_DIV(g, s), VEC_LOAD(up + i)));
    }
    for (; i < n; i++) {
        float s = 1.0f + VEC_FIRST(SIMD(exp)(VEC_SET(-gate[i])));
        gate[i] = gate[i] / s * up[i];
    }
}

/* out [n] f16, rounded to nearest even. */
SIMD_FN static void SIMD(to_half)(const float *x, uint16_t *out, int n) {
    int i;
    for (i = 0; i + VEC_N <= n; i += VEC_N) VEC_HALF_STORE(out + i, VEC_LOAD(x + i));
    for (; i < n; i++) out[i] = simd_f16_of_f32(x[i]);
}

/* out [n] f32 */
SIMD_FN static void SIMD(of_bf16)(const uint16_t *x, float *out, int n) {
    int i;
    for (i = 0; i + VEC_N <= n; i += VEC_N) VEC_STORE(out + i, VEC_BF16(x + i));
    for (; i < n; i++) out[i] = block_f32_of_bits((uint32_t)x[i] << 16);
}

/* out [n] f32 */
SIMD_FN static void SIMD(of_half)(const uint16_t *x, float *out, int n) {
    int i;
    for (i = 0; i + VEC_N <= n; i += VEC_N) VEC_STORE(out + i, VEC_HALF(x + i));
    for (; i < n; i++) out[i] = block_f32_of_f16(x[i]);
}

/* out [n] = bias + sum over j < width of taps [j, n] * rows [j][n], j ascending; taps have rows of
 * `stride` values, the bias is the last. Products and sums are rounded apart, as on the GPU. */
SIMD_FN static void SIMD(conv)(const float *const *rows, const float *taps, int64_t stride,
                               int width, int n, float *out) {
    const float *bias = taps + width * stride;
    int i, j;
    for (i = 0; i + VEC_N <= n; i += VEC_N) {
        VEC sum = VEC_LOAD(bias + i);
        for (j = 0; j < width; j++)
            sum = VEC_ADD(sum, VEC_MUL(VEC_LOAD(taps + j * stride + i), VEC_LOAD(rows[j] + i)));
        VEC_STORE(out + i, sum);
    }
    for (; i < n; i++) {
        float sum = bias[i];
        for (j = 0; j < width; j++) sum += taps[j * stride + i] * rows[j][i];
        out[i] = sum;
    }
}
