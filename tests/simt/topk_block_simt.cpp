/* The routes of one block or one warp a row on the emulation: topk/small.cu, topk/short.cu and
 * topk/stream.cu. */
#include "topk_sweep.h"

#define CAIRN_SCORE_TYPE 1
#define CAIRN_THREADS 128
#define CAIRN_ITEMS 8
namespace f32_short {
#include "topk/short.cu"
}
namespace f32_small {
#include "topk/small.cu"
}
namespace f32_stream {
#include "topk/stream.cu"
}
#undef CAIRN_ITEMS
#undef CAIRN_THREADS
#define CAIRN_THREADS 64
#define CAIRN_ITEMS 16
namespace f32_short_64 {
#include "topk/short.cu"
}
#undef CAIRN_SCORE_TYPE
#undef CAIRN_ITEMS
#undef CAIRN_THREADS
#define CAIRN_THREADS 128
#define CAIRN_SCORE_TYPE 3
#define CAIRN_ITEMS 16
namespace bf16_short {
#include "topk/short.cu"
}
namespace bf16_small {
#include "topk/small.cu"
}
namespace bf16_stream {
#include "topk/stream.cu"
}

int main() {
    const unsigned pairs = 2048 * 8;
    sweep<float>("small, f32", f32_small::topk_small, {1, 256, 4096, SMALL}, same, same);
    sweep<bf16>("small, bf16", bf16_small::topk_small, {1, 256, 4096, SMALL}, truncate_bf16,
                to_bf16);
    sweep<float>("short, f32", f32_short::topk_short, {1, 128, SHORT_BYTES + pairs, SHORT}, same,
                 same);
    sweep<float>("short of 64, f32", f32_short_64::topk_short, {1, 64, SHORT_BYTES + pairs, SHORT},
                 same, same);
    sweep<bf16>("short, bf16", bf16_short::topk_short, {1, 128, SHORT_BYTES + pairs, SHORT},
                truncate_bf16, to_bf16);
    sweep<float>("stream, f32", f32_stream::topk_stream, {1, 128, STREAM_BYTES, ALL}, same, same);
    sweep<bf16>("stream, bf16", bf16_stream::topk_stream, {1, 128, STREAM_BYTES, ALL},
                truncate_bf16, to_bf16);
    return tap_done();
}
