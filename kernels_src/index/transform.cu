/* index_transform: what becomes of positions that topk chose, by the same code as in its launch.
 *
 * Launch     grid (rows, ceil(k / 256)), block 256; p.indices may be p.scores, the positions
 * matrix: */
#include "device/common.cuh"
#include "abi/topk.h"
#define CAIRN_SCORE_TYPE 1
#include "topk/topk.cuh"

CAIRN_KERNEL(index_transform, 256, 4, topk_params) {
    const int i = block_id_y() * 256 + thread_id(), r = block_id();
    const topk_out out = topk_row_out(p, r, nullptr);
    if (i >= p.k) return;
    const int32_t position = ((const int32_t *)p.scores)[(int64_t)r * p.k + i];
    if (position < -1) report_error(p.error, CAIRN_FAULT_POSITION, r, position);
    out.indices[i] = position < 0 ? -1 : topk_place(out, position);
}
