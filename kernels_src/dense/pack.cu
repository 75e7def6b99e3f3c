/* pack: weights of GGUF, [rows, inputs] in blocks, to the tiles that the products of a model read
 * (see abi.h, PACK_4). Values keep their bits, but for f32 and bf16, which become f16 (nearest
 * even).
 *
 * In: source; out: packed, of which the rows of this matrix are written, nothing else.
 * Constants: none. One thread a row and unit of 32 inputs: grid.x = ceil(rows inputs / 32 / 256),
 * 256 threads, no shared memory, no sync. Exact.
 * Reference: tests/simt/step_simt.cpp unpacks and compares.
 * matrix: */
#include "device/common.cuh"
#include "abi/pack.h"

CAIRN_INLINE float source_value(const pack_params &p, int64_t at) {
    if (p.type == 0) return ((const float *)p.source)[at];
    if (p.type == 1) return f16_to_f32(((const f16 *)p.source)[at]);
    if (p.type == 30) return bf16_to_f32(((const bf16 *)p.source)[at]);
    const uint16_t *block = (const uint16_t *)p.source;
    int i = (int)(at % 32);
    if (p.type == 8) {
        block += at / 32 * 17;
        return f16_to_f32(f16{block[0]}) * (float)((const signed char *)(block + 1))[i];
    }
    int words = p.type == 3 ? 10 : 9;
    block += at / 32 * words;
    int n = ((const uint8_t *)(block + words - 8))[i % 16] >> (i / 16 * 4) & 15;
    float d = f16_to_f32(f16{block[0]});
    return p.type == 3 ? fma_f32((float)n, d, f16_to_f32(f16{block[1]})) : d * (float)(n - 8);
}

/* Words of eight nibbles: inputs 8t..8t+7 of a block of 16 bytes, low nibbles first. */
CAIRN_INLINE uint32_t gather_nibbles(const uint16_t *bytes, int t) {
    uint32_t word = 0;
    for (int i = 0; i < 8; i++) {
        int k = 8 * t + i, byte = ((const uint8_t *)bytes)[k % 16];
        word |= (uint32_t)(byte >> (k / 16 * 4) & 15) << (4 * (i / 2) + 16 * (i % 2));
    }
    return word;
}

CAIRN_INLINE void pack_4(const pack_params &p, int64_t block_index, uint8_t *unit, int row) {
    int words = p.type == 3 ? 10 : 9;
    const uint16_t *block = (const uint16_t *)p.source + block_index * words;
    for (int t = 0; t < 4; t++)
        ((uint32_t *)unit)[(row % 8 * 4 + t) * 2 + row / 8] = gather_nibbles(block + words - 8, t);
    uint16_t minimum = p.type == 3 ? block[1] : f32_to_f16(-8.0f * f16_to_f32(f16{block[0]})).bits;
    ((uint32_t *)(unit + 256))[row % 8 * 2 + row / 8] = block[0] | (uint32_t)minimum << 16;
}

CAIRN_INLINE void pack_8(const pack_params &p, int64_t block_index, uint8_t *unit, int row) {
    const uint16_t *block = (const uint16_t *)p.source + block_index * 17;
    for (int k = 0; k < 32; k++)
        unit[(row % 8 * 4 + k / 8) * 16 + row / 8 * 8 + k % 8] =
            (uint8_t)(((const uint8_t *)(block + 1))[k] ^ 0x80);
    ((uint16_t *)(unit + 512))[row % 8 * 2 + row / 8] = block[0];
}

CAIRN_INLINE void pack_16(const pack_params &p, int64_t block_index, uint8_t *unit, int row) {
    for (int k = 0; k < 32; k++)
        ((f16 *)(unit + row / 8 * 512))[(row % 8 * 4 + k / 8) * 8 + k % 8] =
            f32_to_f16(source_value(p, block_index * 32 + k));
}

/* One unit of a group of `units` units, `u`: see PACK_Q4_0. Rows g and g + 8 share bytes, and may
 * come from two matrices: a thread has both, where both are of this one, and leaves the other's. */
CAIRN_INLINE uint32_t *group_word(uint8_t *group, int units, int u, int lane, int word) {
    return (uint32_t *)(units > 1 ? group + u / 2 * 512 + lane * 16 + u % 2 * 8
                                  : group + lane * 8) + word;
}

CAIRN_INLINE void pack_nibbles(const pack_params &p, int64_t block_index, uint8_t *group, int units,
                               int u, int row) {
    const int words = p.type == 3 ? 10 : 9;
    const uint16_t *block = (const uint16_t *)p.source + block_index * words;
    const uint8_t *bytes = (const uint8_t *)(block + words - 8);
    for (int t = 0; t < 4; t++)
        for (int w = 0; w < 2; w++) {
            uint32_t nibbles = 0;
            for (int i = 0; i < 4; i++) {
                int k = 8 * t + 4 * w + i;
                uint32_t n = bytes[k % 16] >> (k / 16 * 4) & 15u;
                nibbles |= n << (i / 2 * 8 + i % 2 * 16 + row / 8 * 4);
            }
            uint32_t *to = group_word(group, units, u, row % 8 * 4 + t, w);
            *to = (*to & ~(0x0f0f0f0fu << row / 8 * 4)) | nibbles;
        }
    uint16_t *scales = (uint16_t *)(group + units * 256) + (row % 8 * 2 + row / 8) * units + u;
    scales[0] = block[0];
    if (p.format == PACK_Q4_1)
        scales[16 * units] =
            p.type == 3 ? block[1] : f32_to_f16(-8.0f * f16_to_f32(f16{block[0]})).bits;
}

CAIRN_INLINE void pack_bytes(const pack_params &p, int64_t block_index, uint8_t *group, int units,
                             int u, int row) {
    const uint16_t *block = (const uint16_t *)p.source + block_index * 17;
    for (int k = 0; k < 32; k++)
        group[u * 512 + (row % 8 * 4 + k / 8) * 16 + row / 8 * 8 + k % 8] =
            (uint8_t)(((const uint8_t *)(block + 1))[k] ^ 0x80);
    ((uint16_t *)(group + units * 512))[(row % 8 * 2 + row / 8) * units + u] = block[0];
}

/* Row `row` of the source. */
CAIRN_INLINE void pack_row(const pack_params &p, int row, int unit) {
    const int units = p.inputs / 32, to = p.first_row + row, format = p.format;
    const int64_t tile = p.half ? to / 8 : to / 16, index = (int64_t)row * units + unit;
    const int at = p.half ? to % 8 + (p.half - 1) * 8 : to % 16;
    const int bytes = format == PACK_Q4_0                       ? 288
                      : format == PACK_4 || format == PACK_Q4_1 ? 320
                      : format == PACK_8 || format == PACK_Q8_0 ? 544 : 1024;
    int group = format == PACK_Q8_0 ? 4 : format == PACK_Q4_0 || format == PACK_Q4_1 ? 8 : 1;
    while (units % group) group /= 2;
    uint8_t *place = p.packed + (tile * units + unit / group * group) * bytes;
    if (format == PACK_4) pack_4(p, index, place, at);
    else if (format == PACK_8) pack_8(p, index, place, at);
    else if (format == PACK_16 || format == PACK_F16) pack_16(p, index, place, at);
    else if (format == PACK_Q8_0) pack_bytes(p, index, place, group, unit % group, at);
    else pack_nibbles(p, index, place, group, unit % group, at);
}

CAIRN_KERNEL(pack, 256, 1, pack_params) {
    const int units = p.inputs / 32;
    const int64_t index = (int64_t)block_id() * block_threads() + thread_id();
    grid_dependency_wait();
    if (index >= (int64_t)p.rows * units) return;
    const int row = (int)(index / units), unit = (int)(index % units);
    /* Whoever has a row below eight of a tile has the one eight further too. */
    if (p.half) return pack_row(p, row, unit);
    const bool second = (p.first_row + row) % 16 >= 8;
    if (second && row >= 8) return;
    pack_row(p, row, unit);
    if (!second && row + 8 < p.rows) pack_row(p, row + 8, unit);
}
