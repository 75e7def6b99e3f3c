/* The product of a prompt's block (step/prompt.cuh) on the emulation, by warps that bring and use their
 * operands and by users of what carriers bring, tokens or weights too: to the bit the same, and against sums in double precision;
 * K that comes round all places in shared memory and ends within a step, tokens that end within a block. */
#include "simt.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "attention/layout.h"
#include "dense/product.cuh"

#define CAIRN_LAYERS 1
#define CAIRN_HIDDEN 64
#define CAIRN_HEADS 1
#define CAIRN_KV_HEADS 1
#define CAIRN_HEAD_DIM 64
#define CAIRN_FFN 64
#define CAIRN_VOCAB 64
#define CAIRN_CONTEXT 512
#define CAIRN_PAGE_SIZE 16
#define CAIRN_PACK_QKV 32
#define CAIRN_PACK_O 32
#define CAIRN_PACK_GATE_UP 32
#define CAIRN_PACK_DOWN 32
#define CAIRN_PACK_HEAD 32
#define CAIRN_PACK_EMBED 32
#define CAIRN_WARPS 8
#define CAIRN_MEETING_TILES 2
#define CAIRN_ROWS 512
#define CAIRN_PARTS 0
#define CAIRN_BLOCKS 0
#define CAIRN_NARROW 0
#define CAIRN_PROMPT_EACH 1
#define CAIRN_PROMPT_WARPS 8

struct plain_params {
    const uint8_t *weights, *inputs;
    float *out;
    int rows;
};
constexpr int OUTS = 16 * 11;

#define KERNELS                                                                                        \
    template <int FORMAT, int INPUTS> static void run(const plain_params &p) {                         \
        const int first = block_id() * TOKENS;                                                         \
        product<FORMAT, INPUTS>(p.weights, OUTS / 16, p.inputs, first, p.rows, [&](const tile_sums &sum) { \
            store_outputs<OUTS / 16>(sum, first, p.rows, p.out, [](float v, int, int) { return v; });  \
        });                                                                                            \
    }                                                                                                  \
    CAIRN_KERNEL(q4_0_64, PROMPT_THREADS, 1, plain_params) { run<PACK_Q4_0, 64>(p); }                  \
    CAIRN_KERNEL(q4_0_1056, PROMPT_THREADS, 1, plain_params) { run<PACK_Q4_0, 1056>(p); }              \
    CAIRN_KERNEL(q6_k_768, PROMPT_THREADS, 1, plain_params) { run<PACK_Q6_K, 768>(p); }                \
    CAIRN_KERNEL(f16_576, PROMPT_THREADS, 1, plain_params) { run<PACK_F16, 576>(p); }                  \
    CAIRN_KERNEL(q4_1_3072, PROMPT_THREADS, 1, plain_params) { run<PACK_Q4_1, 3072>(p); }              \
    CAIRN_KERNEL(q8_0_4192, PROMPT_THREADS, 1, plain_params) { run<PACK_Q8_0, 4192>(p); }              \
    CAIRN_KERNEL(q5_k_2048, PROMPT_THREADS, 1, plain_params) { run<PACK_Q5_K, 2048>(p); }

namespace together {
#define CAIRN_PROMPT_TOKENS 64
#include "step/prompt.cuh"
KERNELS
} // namespace together
#undef CAIRN_PROMPT_TOKENS
#include "again.h"
#undef CAIRN_PROMPT_CARRIERS
namespace apart {
#define CAIRN_PROMPT_TOKENS 256
#define CAIRN_PROMPT_CARRIERS 4
#include "step/prompt.cuh"
KERNELS
} // namespace apart
#undef CAIRN_PROMPT_TOKENS
#undef CAIRN_PROMPT_CARRIERS
#include "again.h"
namespace few {
#define CAIRN_PROMPT_TOKENS 32
#define CAIRN_PROMPT_CARRIERS 2
#include "step/prompt.cuh"
KERNELS
} // namespace few
#include "again.h"
#undef CAIRN_PROMPT_WARPS
namespace fewer {
#define CAIRN_PROMPT_WARPS 4
#include "step/prompt.cuh"
KERNELS
} // namespace fewer

typedef void (*kernel)(plain_params);
struct form {
    const char *name;
    kernel of[7];
    int tokens, outputs, threads, bytes;
};
#define FORM(ns) \
    {#ns, {ns::q4_0_64, ns::q4_0_1056, ns::q6_k_768, ns::f16_576, ns::q4_1_3072, ns::q8_0_4192, ns::q5_k_2048}, \
     ns::TOKENS, ns::BLOCK_TILES * 16, ns::PROMPT_THREADS, ns::PROMPT_BYTES}
static const form forms[] = {FORM(together), FORM(apart), FORM(few), FORM(fewer)};

static std::vector<float> run(const form &f, int which, plain_params p) {
    std::vector<float> out((size_t)p.rows * OUTS, NAN);
    p.out = out.data();
    simt::launch({{(uint32_t)((p.rows + f.tokens - 1) / f.tokens), (uint32_t)((OUTS + f.outputs - 1) / f.outputs)}, 1,
                  (uint32_t)f.threads, (uint32_t)f.bytes, true}, f.of[which], p);
    return out;
}

/* Random tiles with small scales. */
static std::vector<uint8_t> random_tiles(int format, int inputs) {
    const int G = pack_group(format, inputs), unit = packed_unit_bytes(format);
    std::vector<uint8_t> w((size_t)(OUTS / 16) * (size_t)(inputs / 32 * unit));
    for (auto &b : w) b = (uint8_t)simt::random_u32();
    for (size_t at = 0; at < w.size(); at += (size_t)(G * unit)) {
        const int from = format == PACK_F16    ? 0
                         : format == PACK_Q8_0 ? G * 512
                         : format == PACK_Q6_K ? G * (256 + 128 + 32)
                         : format == PACK_Q5_K ? G * (256 + 64 + 32)
                                               : G * 256;
        for (int i = from; i < G * unit; i += 2) {
            uint16_t d = simt::f32_to_f16((format >= PACK_Q5_K ? 1e-4f : 0.01f) * simt::random_normal());
            std::memcpy(&w[at + (size_t)i], &d, 2);
        }
    }
    return w;
}

template <int FORMAT, int INPUTS> static void check(int which, int rows) {
    const std::vector<uint8_t> w = random_tiles(FORMAT, INPUTS);
    std::vector<uint16_t> x((size_t)rows * INPUTS);
    for (auto &v : x) v = simt::f32_to_f16(simt::random_normal());
    const plain_params p = {w.data(), (const uint8_t *)x.data(), nullptr, rows};
    const std::vector<float> want = run(forms[0], which, p);
    double worst = 0.0;
    for (int i = 0; i < 500; i++) {
        const int r = (int)(simt::random_u32() % (uint32_t)rows), o = (int)(simt::random_u32() % OUTS);
        double sum = 0.0, size = 0.0;
        for (int k = 0; k < INPUTS; k++) {
            const double v = packed<FORMAT>::template value<pack_group(FORMAT, INPUTS)>(
                w.data() + (size_t)(o / 16) * (INPUTS / 32) * packed_unit_bytes(FORMAT), k / 32, o % 16, k % 32);
            const double e = v * simt::f16_to_f32(x[(size_t)r * INPUTS + (size_t)together::operand_at(k)]);
            sum += e, size += std::fabs(e);
        }
        const double e = std::fabs(sum - want[(size_t)r * OUTS + (size_t)o]) / size;
        worst = e <= worst ? worst : e == e ? e : 1e9;
    }
    tap_ok(worst < 1e-4, "format %d, %d inputs, %d tokens: relative error %.1e", FORMAT, INPUTS, rows, worst);
    for (size_t i = 1; i < sizeof forms / sizeof *forms; i++)
        tap_ok(run(forms[i], which, p) == want, "and to the bit, %s", forms[i].name);
}

int main() {
    check<PACK_Q4_0, 64>(0, 5);
    check<PACK_Q4_0, 1056>(1, 300);
    check<PACK_Q6_K, 768>(2, 70);
    check<PACK_F16, 576>(3, 130);
    check<PACK_Q4_1, 3072>(4, 1);
    check<PACK_Q8_0, 4192>(5, 32);
    check<PACK_Q5_K, 2048>(6, 7);
    return tap_done();
}
