/* topk/split.cu, topk/small.cu and topk/radix.cu on the emulation (topk_sweep.h). */
#include "topk_sweep.h"

#define CAIRN_SCORE_TYPE 1
#define CAIRN_THREADS 128
#define CAIRN_ITEMS 8
namespace f32_split {
#include "topk/split.cu"
}
namespace f32_small {
#include "topk/small.cu"
}
#undef CAIRN_SCORE_TYPE
#define CAIRN_SCORE_TYPE 3
namespace bf16_split {
#include "topk/split.cu"
}
namespace bf16_small {
#include "topk/small.cu"
}
#undef THREADS
namespace bf16_radix {
#include "topk/radix.cu"
}
#undef CAIRN_SCORE_TYPE
#undef THREADS
#define CAIRN_SCORE_TYPE 1
namespace f32_radix {
#include "topk/radix.cu"
}

static void bad_rows() {
    std::vector<float> scores(32, 1.0f);
    std::vector<int32_t> lengths = {99, -4}, out(8, 7);
    cairn_error_word error = {};
    topk_params p = {};
    p.scores = scores.data(), p.lengths = lengths.data(), p.indices = out.data(), p.error = &error;
    p.stride = 16, p.n = 16, p.k = 4;
    simt::launch({2, 1, 1024, 20000}, f32_radix::topk_radix, p);
    tap_ok(error.code == CAIRN_FAULT_LENGTH, "a length out of range reaches the error word");
    tap_ok(out == std::vector<int32_t>({0, 1, 2, 3, -1, -1, -1, -1}), "and is clamped");
}

int main() {
    sweep<float>("split, f32", f32_split::topk_split, {1, 128, STREAM_BYTES, SPLIT}, same, same);
    sweep<bf16>("split, bf16", bf16_split::topk_split, {1, 128, STREAM_BYTES, SPLIT}, truncate_bf16,
                to_bf16);
    sweep<float>("small, f32", f32_small::topk_small, {1, 256, 8192, SMALL}, same, same);
    sweep<bf16>("small, bf16", bf16_small::topk_small, {1, 256, 8192, SMALL}, truncate_bf16, to_bf16);
    sweep<float>("radix, f32", f32_radix::topk_radix, {1, 1024, 20000, ALL}, same, same);
    sweep<bf16>("radix, bf16", bf16_radix::topk_radix, {1, 1024, 20000, ALL}, truncate_bf16, to_bf16);
    bad_rows();
    return tap_done();
}
