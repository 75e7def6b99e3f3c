/* embed: rows of a table, plain or in GGUF blocks, as f32.
 *
 * hidden is a multiple of 8, of a block's values for blocks.
 * Launch grid rows, block 128. An id outside the table gives zeros and is reported. */
#include "device/common.cuh"
#include "abi/dense.h"
#include "dense/blocks.cuh"

template <int TYPE> CAIRN_INLINE void write_row(const uint8_t *row, float *out, int hidden) {
    for (int i = thread_id(); i < hidden / 8; i += 128) {
        float v[8];
        load_eight<TYPE>(row, i / 4, i % 4, v);
#pragma unroll
        for (int j = 0; j < 8; j++) out[i * 8 + j] = v[j];
    }
}

CAIRN_KERNEL(embed, 128, 1, embed_params) {
    const int id = p.ids[block_id()];
    const bool known = id >= 0 && id < p.vocab;
    float *out = p.out + (int64_t)block_id() * p.hidden;
    if (!known && thread_id() == 0) report_error(p.error, CAIRN_FAULT_ID, block_id(), id);
    const uint8_t *row = p.table + (known ? id : 0) * p.row_bytes;
    if (!known) {
        for (int i = thread_id(); i < p.hidden; i += 128) out[i] = 0.0f;
        return;
    }
    switch (p.block_type) {
    case TYPE_F32: write_row<TYPE_F32>(row, out, p.hidden); break;
    case TYPE_F16: write_row<TYPE_F16>(row, out, p.hidden); break;
    case TYPE_BF16: write_row<TYPE_BF16>(row, out, p.hidden); break;
    case TYPE_Q4_0: write_row<TYPE_Q4_0>(row, out, p.hidden); break;
    case TYPE_Q4_1: write_row<TYPE_Q4_1>(row, out, p.hidden); break;
    case TYPE_Q8_0: write_row<TYPE_Q8_0>(row, out, p.hidden); break;
    default:
        for (int i = thread_id(); i < p.hidden; i += 128)
            out[i] = block_value(p.block_type, row, i);
    }
}
