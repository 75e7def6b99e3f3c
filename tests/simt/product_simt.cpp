/* The product of packed weights with a few rows (dense/product.cuh) on the emulation, against sums
 * in double precision: every format, shapes that cut K in every way, rows alone and together to the
 * bit. */
#include "simt.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "dense/product.cuh"

struct plain_params {
    const uint8_t *weights;
    const uint16_t *x;
    float *y;
    int outs, rows;
};

template <int INPUTS> struct plain_input {
    const uint16_t *x;
    int rows;

    void await() const { grid_dependency_wait(); grid_launch_dependents(); }
    template <int N> void fetch(int unit, uint32_t (&b)[N][4]) const {
        for (int u = 0; u < N; u++) {
            u32x4 v = {};
            if (lane_id() / 4 < rows && unit + u < INPUTS / 32)
                v = *(const u32x4 *)(x + lane_id() / 4 * INPUTS + (unit + u) * 32 + lane_id() % 4 * 8);
            b[u][0] = v.x, b[u][1] = v.y, b[u][2] = v.z, b[u][3] = v.w;
        }
    }
    void before_meeting(float *f) const { if (thread_id() < 8) f[thread_id()] = 1.0f; }
};
struct plain_output {
    float *y;
    int outs, rows;

    void operator()(const output &o, const float *factors) const {
        if (o.column < rows) y[o.column * outs + o.tile * 16 + o.row] = o.value * factors[o.column];
    }
};
template <int FORMAT, int INPUTS> static void run(const plain_params &p) {
    plain_input<INPUTS> input{p.x, p.rows};
    plain_output output{p.y, p.outs, p.rows};
    stream_product<FORMAT, INPUTS>(p.weights, p.outs / 16, p.rows, input, output);
}

typedef void (*kernel)(plain_params);

template <int FORMAT, int INPUTS> static void check(kernel product, int outs, int blocks) {
    typedef product_cut<FORMAT, INPUTS> cut;
    const int G = cut::GROUP, rows = 5;
    std::vector<uint8_t> w((size_t)(outs / 16) * cut::GROUPS * cut::BYTES);
    std::vector<double> values((size_t)outs * INPUTS);
    std::vector<uint16_t> x((size_t)rows * INPUTS);
    for (auto &v : x) v = simt::f32_to_f16(simt::random_normal());
    for (int o = 0; o < outs; o++)
        for (int unit = 0; unit < INPUTS / 32; unit++) {
            uint8_t *at = &w[((size_t)(o / 16) * cut::GROUPS + unit / G) * cut::BYTES];
            const int u = unit % G, g = o % 8, high = o % 16 / 8;
            const int scales = (FORMAT == PACK_Q8_0 ? 512 : 256) * G;
            uint16_t d = simt::f32_to_f16(0.01 + 0.01 * simt::random_uniform());
            uint16_t m = simt::f32_to_f16(-0.1 + 0.01 * simt::random_uniform());
            double s = simt::f16_to_f32(d), low = simt::f16_to_f32(m);
            if (FORMAT != PACK_F16) std::memcpy(at + scales + ((g * 2 + high) * G + u) * 2, &d, 2);
            if (FORMAT == PACK_Q4_1) std::memcpy(at + 288 * G + ((g * 2 + high) * G + u) * 2, &m, 2);
            for (int k = 0; k < 32; k++) {
                int lane = g * 4 + k / 8, i = k % 8;
                double &v = values[(size_t)o * INPUTS + unit * 32 + k];
                if (FORMAT == PACK_F16) {
                    uint16_t h = simt::f32_to_f16(0.1 * simt::random_normal());
                    std::memcpy(at + u * 1024 + high * 512 + lane * 16 + i * 2, &h, 2);
                    v = simt::f16_to_f32(h);
                } else if (FORMAT == PACK_Q8_0) {
                    int n = simt::random_u32() & 255;
                    at[u * 512 + lane * 16 + high * 8 + i] = (uint8_t)n;
                    v = (n - 128) * s;
                } else {
                    int n = simt::random_u32() & 15, shift = i % 4 / 2 * 8 + i % 2 * 16 + high * 4;
                    uint8_t *word = G > 1 ? at + u / 2 * 512 + lane * 16 + u % 2 * 8 : at + lane * 8;
                    uint32_t bits;
                    std::memcpy(&bits, word + i / 4 * 4, 4);
                    bits |= (uint32_t)n << shift;
                    std::memcpy(word + i / 4 * 4, &bits, 4);
                    v = FORMAT == PACK_Q4_1 ? n * s + low : (n - 8) * s;
                }
            }
        }
    std::vector<float> y((size_t)outs * rows, NAN), one((size_t)outs, NAN);
    plain_params p = {w.data(), x.data(), y.data(), outs, rows};
    simt::launch({(uint32_t)blocks, 1, 256, (uint32_t)PRODUCT_SHARED, true}, product, p);
    double worst = 0.0;
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < outs; o++) {
            double sum = 0.0, size = 0.0;
            for (int k = 0; k < INPUTS; k++) {
                double v = values[(size_t)o * INPUTS + k] * simt::f16_to_f32(x[(size_t)r * INPUTS + k]);
                sum += v, size += std::fabs(v);
            }
            double e = std::fabs(sum - y[(size_t)r * outs + o]) / size;
            worst = e <= worst ? worst : e == e ? e : 1e9;
        }
    tap_ok(worst < 1e-6, "format %d, %d x %d: relative error %.1e", FORMAT, outs, INPUTS, worst);
    plain_params alone = {w.data(), x.data() + 3 * INPUTS, one.data(), outs, 1};
    simt::launch({(uint32_t)(blocks + 1), 1, 256, (uint32_t)PRODUCT_SHARED, true}, product, alone);
    tap_ok(std::equal(one.begin(), one.end(), y.begin() + 3 * outs), "and a row alone to the bit");
}

CAIRN_KERNEL(pack_q4_0_2048, 256, 1, plain_params) { run<PACK_Q4_0, 2048>(p); }
CAIRN_KERNEL(pack_q4_0_4096, 256, 1, plain_params) { run<PACK_Q4_0, 4096>(p); }
CAIRN_KERNEL(pack_q4_0_14336, 256, 1, plain_params) { run<PACK_Q4_0, 14336>(p); }
CAIRN_KERNEL(pack_q4_0_8192, 256, 1, plain_params) { run<PACK_Q4_0, 8192>(p); }
CAIRN_KERNEL(pack_q4_0_64, 256, 1, plain_params) { run<PACK_Q4_0, 64>(p); }
CAIRN_KERNEL(pack_q4_0_96, 256, 1, plain_params) { run<PACK_Q4_0, 96>(p); }
CAIRN_KERNEL(pack_q4_1_1152, 256, 1, plain_params) { run<PACK_Q4_1, 1152>(p); }
CAIRN_KERNEL(pack_q4_1_4096, 256, 1, plain_params) { run<PACK_Q4_1, 4096>(p); }
CAIRN_KERNEL(pack_q8_0_2048, 256, 1, plain_params) { run<PACK_Q8_0, 2048>(p); }
CAIRN_KERNEL(pack_q8_0_576, 256, 1, plain_params) { run<PACK_Q8_0, 576>(p); }
CAIRN_KERNEL(pack_f16_4096, 256, 1, plain_params) { run<PACK_F16, 4096>(p); }
CAIRN_KERNEL(pack_f16_128, 256, 1, plain_params) { run<PACK_F16, 128>(p); }

int main() {
    check<PACK_Q4_0, 2048>(pack_q4_0_2048, 48, 1);
    check<PACK_Q4_0, 4096>(pack_q4_0_4096, 48, 2);
    check<PACK_Q4_0, 14336>(pack_q4_0_14336, 16 * 11, 1);
    check<PACK_Q4_0, 8192>(pack_q4_0_8192, 32, 3);
    check<PACK_Q4_0, 64>(pack_q4_0_64, 48, 2);
    check<PACK_Q4_0, 96>(pack_q4_0_96, 80, 1);
    check<PACK_Q4_1, 1152>(pack_q4_1_1152, 32, 1);
    check<PACK_Q4_1, 4096>(pack_q4_1_4096, 32, 1);
    check<PACK_Q8_0, 2048>(pack_q8_0_2048, 32, 1);
    check<PACK_Q8_0, 576>(pack_q8_0_576, 64, 2);
    check<PACK_F16, 4096>(pack_f16_4096, 16, 1);
    check<PACK_F16, 128>(pack_f16_128, 64, 2);
    return tap_done();
}
