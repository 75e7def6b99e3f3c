/* quantize_fp8: blocks of 128 values to e4m3, a warp a block.
 *
 * Formula    s = max(|x|, 1e-4) / 448, or the least power of two not below it; out = e4m3(x / s)
 * Constants  CAIRN_SOURCE_TYPE  1 f32, 2 f16, 3 bf16 (cairn_type)
 * Launch     grid of any size, block 256
 * Oracle     tests/ops/index_test.c rounds by comparing with all e4m3 numbers
 * matrix: CAIRN_SOURCE_TYPE=1 | CAIRN_SOURCE_TYPE=3 */
#include "device/common.cuh"
#include "abi/index.h"
#include "index/fp8.cuh"

CAIRN_INLINE void load_four(const quantize_fp8_params &p, int64_t at, float *v) {
    if constexpr (CAIRN_SOURCE_TYPE == 1) {
        const f32x4 x = load_once((const f32x4 *)((const float *)p.x + at));
        v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
    } else {
        const u32x2 x = load_once((const u32x2 *)((const uint16_t *)p.x + at));
        const f32x2 a = CAIRN_SOURCE_TYPE == 2 ? unpack_f16x2(x.x) : unpack_bf16x2(x.x);
        const f32x2 b = CAIRN_SOURCE_TYPE == 2 ? unpack_f16x2(x.y) : unpack_bf16x2(x.y);
        v[0] = a.x, v[1] = a.y, v[2] = b.x, v[3] = b.y;
    }
}

CAIRN_KERNEL(quantize_fp8, 256, 4, quantize_fp8_params) {
    const int64_t step = (int64_t)grid_blocks() * warp_count();
    for (int64_t b = (int64_t)block_id() * warp_count() + warp_id(); b < p.blocks; b += step) {
        const int64_t at = b * CAIRN_INDEX_DIM + lane_id() * 4;
        float v[4];
        uint32_t bytes;
        load_four(p, at, v);
        const float scale = fp8_block(v, p.power_of_two, &bytes);
        *(uint32_t *)(p.out + at) = bytes;
        if (lane_id() == 0) p.scales[b] = scale;
    }
}
