/* The product of packed weights with a few rows (dense/product.cuh) on the emulation, against sums
 * in double precision: every format, shapes that cut K in every way, rows alone and together to the
 * bit; and the op `linear` on blocks as they are (dense/stream.cu), to the bit what a step of
 * the model makes of the same weights. */
#include "simt.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "dense/product.cuh"
#include "dense/pack.cu"
#include "dense/raw.cuh"
#include "abi/dense.h"

#include "../ref/block_ref.h"

enum { ROWS = BANDS == 1 ? 5 : 13 }; /* of both bands, where there are two */

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
    template <int N, class Place = rows_place> void fetch(int unit, uint32_t (&b)[N][4]) const {
        for (int u = 0; u < N; u++) {
            u32x4 v = {};
            const int own = unit + Place::unit() + u * Place::STEP;
            if (Place::row() < rows && Place::mine() && own < INPUTS / 32)
                v = *(const u32x4 *)(x + Place::row() * INPUTS + own * 32 + lane_id() % 4 * 8);
            b[u][0] = v.x, b[u][1] = v.y, b[u][2] = v.z, b[u][3] = v.w;
        }
    }
    template <int N, class Place = rows_place>
    void fetch_again(int unit, uint32_t (&b)[N][4]) const { fetch<N, Place>(unit, b); }
    template <class Place> void aim(int) {}
    template <class Place> void before_meeting(float *f) const {
        if (Place::factor() < rows && lane_id() < Place::FACTORS)
            f[Place::factor_at() + lane_id()] = 1.0f;
    }
};
struct plain_output {
    float *y;
    int outs, rows;

    void operator()(const output &o, const float *factors) const {
        if (o.column < rows) y[o.column * outs + o.tile * 16 + o.row] = o.value * factors[o.column];
    }
};
template <int FORMAT, int INPUTS, bool SPREAD = false> static void run(const plain_params &p) {
    plain_input<INPUTS> input{p.x, p.rows};
    plain_output output{p.y, p.outs, p.rows};
    constexpr bool ALONE = pack_alone(FORMAT);
    if (ALONE && p.rows == 1)
        stream_product<FORMAT, INPUTS, SPREAD, ALONE>(p.weights, p.outs / 16, 1, input, output);
    else stream_product<FORMAT, INPUTS, SPREAD>(p.weights, p.outs / 16, p.rows, input, output);
}

typedef void (*kernel)(plain_params);

/* spread: the same with the parts of K spread over clusters of blocks, or none. */
template <int FORMAT, int INPUTS>
static void check(kernel product, int outs, int blocks, kernel spread = nullptr) {
    typedef product_cut<FORMAT, INPUTS> cut;
    const int G = cut::GROUP, rows = ROWS;
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
    simt::launch({(uint32_t)blocks, 1, 256, (uint32_t)sizeof(product_memory), true}, product, p);
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
    simt::launch({(uint32_t)(blocks + 1), 1, 256, (uint32_t)sizeof(product_memory), true}, product, alone);
    tap_ok(std::equal(one.begin(), one.end(), y.begin() + 3 * outs), "and a row alone to the bit");
    if (!spread) return;
    std::vector<float> apart((size_t)outs * rows, NAN);
    p.y = apart.data();
    simt::launch({(uint32_t)(blocks * cut::PARTS), (uint32_t)cut::PARTS, 256,
                  (uint32_t)(sizeof(product_memory) + sizeof(spread_memory)), true}, spread, p);
    tap_ok(apart == y, "and to the bit with its %d parts spread over %d clusters", cut::PARTS, blocks);
}

CAIRN_KERNEL(pack_q4_0_2048, 256, 1, plain_params) { run<PACK_Q4_0, 2048>(p); }
CAIRN_KERNEL(pack_q4_0_4096, 256, 1, plain_params) { run<PACK_Q4_0, 4096>(p); }
CAIRN_KERNEL(pack_q4_0_14336, 256, 1, plain_params) { run<PACK_Q4_0, 14336>(p); }
CAIRN_KERNEL(pack_q4_0_8192, 256, 1, plain_params) { run<PACK_Q4_0, 8192>(p); }
CAIRN_KERNEL(spread_q4_0_14336, 256, 1, plain_params) { run<PACK_Q4_0, 14336, true>(p); }
CAIRN_KERNEL(spread_q4_0_8192, 256, 1, plain_params) { run<PACK_Q4_0, 8192, true>(p); }
CAIRN_KERNEL(pack_q4_0_64, 256, 1, plain_params) { run<PACK_Q4_0, 64>(p); }
CAIRN_KERNEL(pack_q4_0_96, 256, 1, plain_params) { run<PACK_Q4_0, 96>(p); }
CAIRN_KERNEL(pack_q4_1_1152, 256, 1, plain_params) { run<PACK_Q4_1, 1152>(p); }
CAIRN_KERNEL(pack_q4_1_4096, 256, 1, plain_params) { run<PACK_Q4_1, 4096>(p); }
CAIRN_KERNEL(pack_q8_0_2048, 256, 1, plain_params) { run<PACK_Q8_0, 2048>(p); }
CAIRN_KERNEL(pack_q8_0_576, 256, 1, plain_params) { run<PACK_Q8_0, 576>(p); }
CAIRN_KERNEL(pack_f16_4096, 256, 1, plain_params) { run<PACK_F16, 4096>(p); }
CAIRN_KERNEL(pack_f16_128, 256, 1, plain_params) { run<PACK_F16, 128>(p); }

/* ---- packed by dense/pack.cu ---- */

/* Everything that packed<FORMAT> says of one tile and unit a warp: [unit][lane] operands of a prompt's
 * products, and [row, k] single values. */
struct unpack_params {
    const uint8_t *tiles;
    uint32_t *operands;
    float *values;
};
template <int FORMAT, int INPUTS> static void unpack(const unpack_params &p) {
    constexpr int G = packed_group<FORMAT, INPUTS>();
    const int unit = block_id() % (INPUTS / 32), tile = block_id() / (INPUTS / 32);
    const uint8_t *from = p.tiles + tile * tile_bytes<FORMAT, INPUTS>();
    packed<FORMAT> raw;
    raw.template load<G>(from, unit);
    raw.expand(p.operands + (block_id() * 32 + lane_id()) * 8);
    for (int row = 0; row < 16; row++)
        p.values[(tile * 16 + row) * INPUTS + unit * 32 + lane_id()] =
            packed<FORMAT>::template value<G>(from, unit, row, lane_id());
}

/* Random blocks of a GGUF type, whose values are around 0.1. */
static std::vector<uint8_t> random_blocks(int type, int64_t values) {
    std::vector<uint8_t> blocks((size_t)(values / block_values(type) * block_bytes(type)));
    for (auto &b : blocks) b = (uint8_t)simt::random_u32();
    for (size_t at = 0; at < blocks.size(); at += (size_t)block_bytes(type)) {
        const double some = 0.5 + simt::random_uniform();
        const double top = type == 12 ? 15 * 63 : type == 13 ? 31 * 63 : type == 14 ? 32 * 128
                           : type == 8 ? 128 : 16;
        uint16_t d = simt::f32_to_f16((float)(0.2 * some / top));
        uint16_t low = simt::f32_to_f16((float)(type >= 12 ? 0.1 * some / 63 : -0.1 * some));
        std::memcpy(&blocks[at + (type == 14 ? 208 : 0)], &d, 2);
        if (type == 3 || type == 7 || type == 12 || type == 13) std::memcpy(&blocks[at + 2], &low, 2);
    }
    return blocks;
}

/* The tiles of random blocks, from one matrix or (halves) from two whose rows share tiles; what is
 * not written would show. */
template <int FORMAT, int INPUTS>
static void packed_of(int type, int outs, bool halves, std::vector<uint8_t> &tiles,
                      std::vector<double> &values) {
    tiles.assign((size_t)(outs / 16 * tile_bytes<FORMAT, INPUTS>()), 0xa5);
    values.resize((size_t)outs * INPUTS);
    for (int half = halves ? 1 : 0; half <= (halves ? 2 : 0); half++) {
        const int rows = halves ? outs / 2 : outs;
        std::vector<uint8_t> blocks = random_blocks(type, (int64_t)rows * INPUTS);
        pack_params p = {blocks.data(), tiles.data(), type, FORMAT, rows, INPUTS, 0, half};
        simt::launch({(uint32_t)(rows * INPUTS / 32 + 255) / 256, 1, 256, 0, true}, pack, p);
        for (int r = 0; r < rows; r++)
            for (int k = 0; k < INPUTS; k++) {
                int row = halves ? r / 8 * 16 + r % 8 + (half - 1) * 8 : r;
                values[(size_t)row * INPUTS + k] = block_ref_value(
                    type, blocks.data() + (size_t)r * INPUTS / block_values(type) * block_bytes(type),
                    k);
            }
    }
}

/* Values to the bit of f32 (EXACT) or of f16, operands near them, products against double. */
template <int FORMAT, int INPUTS>
static void check_packed(void (*unpacked)(unpack_params), kernel product, int type, int outs,
                         bool halves) {
    std::vector<uint8_t> tiles;
    std::vector<double> values;
    packed_of<FORMAT, INPUTS>(type, outs, halves, tiles, values);
    const int units = outs / 16 * (INPUTS / 32), rows = ROWS;
    std::vector<uint32_t> operands((size_t)units * 256, 0);
    std::vector<float> got(values.size(), NAN);
    unpack_params u = {tiles.data(), operands.data(), got.data()};
    simt::launch({(uint32_t)units, 1, 32, 0, false}, unpacked, u);
    size_t wrong = 0;
    double far = 0.0, worst = 0.0;
    for (size_t i = 0; i < values.size(); i++)
        wrong += got[i] != (FORMAT >= PACK_Q5_0 ? (float)values[i]
                                                : simt::f16_to_f32(simt::f32_to_f16((float)values[i])));
    for (int unit = 0; unit < units; unit++)
        for (int lane = 0; lane < 32; lane++)
            for (int i = 0; i < 16; i++) {
                int word = i / 2, k = unit % (INPUTS / 32) * 32 + lane % 4 * 8 + word / 2 * 2 + i % 2;
                int row = unit / (INPUTS / 32) * 16 + lane / 4 + word % 2 * 8;
                uint16_t half;
                std::memcpy(&half, (uint16_t *)&operands[(size_t)(unit * 32 + lane) * 8] + i, 2);
                far = std::fmax(far, std::fabs(simt::f16_to_f32(half) -
                                               values[(size_t)row * INPUTS + k]));
            }
    tap_ok(!wrong && far < 0.3 / 1024, "type %d as format %d%s: %d values wrong, operands off by %.1e",
           type, FORMAT, halves ? ", two matrices" : "", (int)wrong, far);
    std::vector<uint16_t> x((size_t)rows * INPUTS);
    for (auto &v : x) v = simt::f32_to_f16(simt::random_normal());
    std::vector<float> y((size_t)outs * rows, NAN), one((size_t)outs, NAN);
    plain_params p = {tiles.data(), x.data(), y.data(), outs, rows};
    plain_params alone = {tiles.data(), x.data() + 3 * INPUTS, one.data(), outs, 1};
    simt::launch({2, 1, 256, (uint32_t)sizeof(product_memory), true}, product, p);
    simt::launch({1, 1, 256, (uint32_t)sizeof(product_memory), true}, product, alone);
    for (int i = 0; i < rows * outs; i++) {
        double sum = 0.0, size = 0.0;
        for (int k = 0; k < INPUTS; k++) {
            double v = values[(size_t)(i % outs) * INPUTS + k] *
                       simt::f16_to_f32(x[(size_t)(i / outs) * INPUTS + k]);
            sum += v, size += std::fabs(v);
        }
        double e = std::fabs(sum - y[(size_t)i]) / size;
        worst = e <= worst ? worst : e == e ? e : 1e9;
    }
    /* Wide bytes of narrow integers are far from their middle, whose sums are 22 bits. */
    const double most = FORMAT == PACK_Q8_0 && type != TYPE_Q8_0 ? 4e-6 : 1e-6;
    tap_ok(worst < most && std::equal(one.begin(), one.end(), y.begin() + 3 * outs),
           "%d x %d: relative error %.1e, and a row alone to the bit", outs, INPUTS, worst);
}

#define PACKED(name, format, inputs)                                                             \
    CAIRN_KERNEL(name, 256, 1, plain_params) { run<format, inputs>(p); }                         \
    CAIRN_KERNEL(unpack_##name, 32, 1, unpack_params) { unpack<format, inputs>(p); }
PACKED(q5_0_96, PACK_Q5_0, 96)
PACKED(q5_0_2048, PACK_Q5_0, 2048)
PACKED(q5_1_320, PACK_Q5_1, 320)
PACKED(q4_k_768, PACK_Q4_K, 768)
PACKED(q4_k_8192, PACK_Q4_K, 8192)
PACKED(q5_k_2048, PACK_Q5_K, 2048)
PACKED(q6_k_256, PACK_Q6_K, 256)
PACKED(q6_k_2560, PACK_Q6_K, 2560)
PACKED(q8_0_128, PACK_Q8_0, 128)
PACKED(q4_1_64, PACK_Q4_1, 64)

static void check_all_packed() {
    check_packed<PACK_Q5_0, 96>(unpack_q5_0_96, q5_0_96, 6, 32, true);
    check_packed<PACK_Q5_0, 2048>(unpack_q5_0_2048, q5_0_2048, 6, 16, false);
    check_packed<PACK_Q5_0, 96>(unpack_q5_0_96, q5_0_96, 2, 16, false);
    check_packed<PACK_Q5_1, 320>(unpack_q5_1_320, q5_1_320, 7, 48, false);
    check_packed<PACK_Q5_1, 320>(unpack_q5_1_320, q5_1_320, 6, 16, false);
    check_packed<PACK_Q5_1, 320>(unpack_q5_1_320, q5_1_320, 3, 16, false);
    check_packed<PACK_Q5_1, 320>(unpack_q5_1_320, q5_1_320, 2, 16, true);
    check_packed<PACK_Q4_K, 768>(unpack_q4_k_768, q4_k_768, 12, 32, true);
    check_packed<PACK_Q4_K, 8192>(unpack_q4_k_8192, q4_k_8192, 12, 16, false);
    check_packed<PACK_Q5_K, 2048>(unpack_q5_k_2048, q5_k_2048, 13, 32, true);
    check_packed<PACK_Q5_K, 2048>(unpack_q5_k_2048, q5_k_2048, 12, 16, false);
    check_packed<PACK_Q6_K, 256>(unpack_q6_k_256, q6_k_256, 14, 48, true);
    check_packed<PACK_Q6_K, 2560>(unpack_q6_k_2560, q6_k_2560, 14, 16, false);
    check_packed<PACK_Q8_0, 128>(unpack_q8_0_128, q8_0_128, 8, 16, true);
    check_packed<PACK_Q8_0, 128>(unpack_q8_0_128, q8_0_128, 6, 16, false);
    check_packed<PACK_Q8_0, 128>(unpack_q8_0_128, q8_0_128, 2, 16, true);
    check_packed<PACK_Q4_1, 64>(unpack_q4_1_64, q4_1_64, 2, 16, false);
}

/* ---- blocks as they are ---- */

namespace stream_4096 {
#define CAIRN_BLOCK_TYPE 2
#define CAIRN_INPUTS 4096
#include "../../kernels_src/dense/stream.cu"
#undef CAIRN_INPUTS
} // namespace stream_4096
namespace stream_14336 {
#define CAIRN_INPUTS 14336
#include "../../kernels_src/dense/stream.cu"
#undef CAIRN_INPUTS
#undef CAIRN_BLOCK_TYPE
} // namespace stream_14336
namespace stream_1152 {
#define CAIRN_BLOCK_TYPE 3
#define CAIRN_INPUTS 1152
#include "../../kernels_src/dense/stream.cu"
#undef CAIRN_INPUTS
#undef CAIRN_BLOCK_TYPE
} // namespace stream_1152

/* Eleven rows are two blocks' worth, of one band; the second call adds to the first. */
template <int FORMAT, int INPUTS>
static void check_raw(void (*stream)(linear_params), kernel product, int type, int outs) {
    constexpr int rows = 11;
    constexpr uint32_t windows = (rows + PRODUCT_COLUMNS - 1) / PRODUCT_COLUMNS;
    const int row_bytes = INPUTS / 32 * block_bytes(type);
    std::vector<uint8_t> raw = random_blocks(type, (int64_t)outs * INPUTS), blocks(raw.size() + 16);
    std::vector<uint8_t> tiles((size_t)(outs / 16 * tile_bytes<FORMAT, INPUTS>()));
    uint8_t *at = blocks.data() + (16 - (uintptr_t)blocks.data() % 16) % 16;
    std::vector<float> x((size_t)rows * INPUTS), y((size_t)rows * outs, NAN), want(y), twice;
    std::vector<uint16_t> half(x.size());
    std::copy(raw.begin(), raw.end(), at);
    for (size_t i = 0; i < x.size(); i++) {
        x[i] = (float)simt::random_normal();
        half[i] = simt::f32_to_f16(x[i]);
    }
    pack_params q = {at, tiles.data(), type, FORMAT, outs, INPUTS, 0, 0};
    simt::launch({(uint32_t)(outs * INPUTS / 32 + 255) / 256, 1, 256, 0, true}, pack, q);
    for (int first = 0; first < rows; first += PRODUCT_COLUMNS) {
        plain_params p = {tiles.data(), half.data() + first * INPUTS, want.data() + first * outs, outs,
                          std::min(PRODUCT_COLUMNS, rows - first)};
        simt::launch({2, 1, 256, (uint32_t)sizeof(product_memory), true}, product, p);
    }
    linear_params p = {x.data(), at, y.data(), row_bytes, rows, outs, INPUTS, 0};
    simt::launch({{1, windows, 1}, 1, 256, (uint32_t)sizeof(product_memory), true}, stream, p);
    twice = y, p.out = twice.data(), p.accumulate = 1;
    simt::launch({{3, windows, 1}, 1, 256, (uint32_t)sizeof(product_memory), true}, stream, p);
    bool added = true;
    for (size_t i = 0; i < y.size(); i++) added = added && twice[i] == y[i] + y[i];
    tap_ok(y == want && added, "linear of %d x %d from blocks of type %d: a step's bits, and added up",
           outs, INPUTS, type);
}

int main() {
    check<PACK_Q4_0, 2048>(pack_q4_0_2048, 48, 1);
    check<PACK_Q4_0, 4096>(pack_q4_0_4096, 48, 2);
    check<PACK_Q4_0, 14336>(pack_q4_0_14336, 16 * 11, 1, spread_q4_0_14336);
    check<PACK_Q4_0, 8192>(pack_q4_0_8192, 16 * 19, 1, spread_q4_0_8192); /* two rounds */
    check<PACK_Q4_0, 8192>(pack_q4_0_8192, 32, 3, spread_q4_0_8192);
    check<PACK_Q4_0, 64>(pack_q4_0_64, 48, 2);
    check<PACK_Q4_0, 96>(pack_q4_0_96, 80, 1);
    check<PACK_Q4_1, 1152>(pack_q4_1_1152, 32, 1);
    check<PACK_Q4_1, 4096>(pack_q4_1_4096, 32, 1);
    check<PACK_Q8_0, 2048>(pack_q8_0_2048, 32, 1);
    check<PACK_Q8_0, 576>(pack_q8_0_576, 64, 2);
    check<PACK_F16, 4096>(pack_f16_4096, 16, 1);
    check<PACK_F16, 128>(pack_f16_128, 64, 2);
    check_all_packed();
    check_raw<PACK_Q4_0, 4096>(stream_4096::linear_stream, pack_q4_0_4096, 2, 48);
    check_raw<PACK_Q4_0, 14336>(stream_14336::linear_stream, pack_q4_0_14336, 2, 16);
    check_raw<PACK_Q4_1, 1152>(stream_1152::linear_stream, pack_q4_1_1152, 3, 64);
    return tap_done();
}
