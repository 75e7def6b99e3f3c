/* embed: rows of a table, plain or in GGUF blocks, as f32.
 *
 * Q4_0  {f16 d; 16 bytes}       value (n - 8) d     Q4_1  {f16 d, m; 16 bytes}  value n d + m
 * Q8_0  {f16 d; 32 bytes}       value n d           nibble i of a block is value i (low nibbles)
 *                                                   and i + 16 (high nibbles)
 * Launch grid rows, block 128. An id outside the table gives zeros and is reported. */
#include "common.cuh"

enum { TYPE_F32 = 0, TYPE_F16 = 1, TYPE_Q4_0 = 2, TYPE_Q4_1 = 3, TYPE_Q8_0 = 8, TYPE_BF16 = 30 };

CAIRN_INLINE float load_half(const uint8_t *at) {
    return f16_to_f32(f16{(uint16_t)(at[0] | at[1] << 8)});
}

CAIRN_INLINE float nibble(const uint8_t *bytes, int i) {
    return (float)(i < 16 ? bytes[i] & 15 : bytes[i - 16] >> 4);
}

/* Value i of a row of blocks. */
CAIRN_INLINE float block_value(const uint8_t *row, int type, int i) {
    const int inside = i % 32;
    switch (type) {
    case TYPE_F32: return ((const float *)row)[i];
    case TYPE_F16: return to_f32(((const f16 *)row)[i]);
    case TYPE_BF16: return to_f32(((const bf16 *)row)[i]);
    case TYPE_Q4_0: row += i / 32 * 18; return (nibble(row + 2, inside) - 8.0f) * load_half(row);
    case TYPE_Q4_1:
        row += i / 32 * 20;
        return fma_f32(nibble(row + 4, inside), load_half(row), load_half(row + 2));
    default: row += i / 32 * 34; return (float)(int8_t)row[2 + inside] * load_half(row);
    }
}

CAIRN_KERNEL(embed, 128, 1, embed_params) {
    const int id = p.ids[block_id()];
    const bool known = id >= 0 && id < p.vocab;
    float *out = p.out + (int64_t)block_id() * p.hidden;
    if (!known && thread_id() == 0) report_error(p.error, CAIRN_FAULT_ID, block_id(), id);
    const uint8_t *row = p.table + (known ? id : 0) * p.row_bytes;
    for (int i = thread_id(); i < p.hidden; i += 128)
        out[i] = known ? block_value(row, p.block_type, i) : 0.0f;
}
