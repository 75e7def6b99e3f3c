/* pack: weights of GGUF, [rows, inputs] in blocks, to the tiles that the products of a model read
 * (see abi.h, PACK_4). Values keep their bits, but for f32 and bf16, which become f16 (nearest
 * even).
 *
 * In: source; out: packed, of which the rows of this matrix are written, nothing else.
 * Constants: CAIRN_STREAMED (1: of formats from PACK_Q4_0 on alone, 0: of those before, not there:
 * of all). One thread a row and unit of 32 inputs: grid.x = ceil(rows inputs / 32 / 256), 256
 * threads, no shared memory, no sync. Exact.
 * Reference: tests/simt/step_simt.cpp unpacks and compares.
 * matrix: */
#include "device/common.cuh"
#include "abi/pack.h"
#include "dense/blocks.cuh"
#include "dense/packed.cuh"

#ifdef CAIRN_STREAMED
constexpr bool STREAMS = CAIRN_STREAMED, FLOWS = !STREAMS;
#else
constexpr bool STREAMS = true, FLOWS = true;
#endif

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
#pragma unroll 1
    for (int t = 0; t < 4; t++)
        ((uint32_t *)unit)[(row % 8 * 4 + t) * 2 + row / 8] = gather_nibbles(block + words - 8, t);
    uint16_t minimum = p.type == 3 ? block[1] : f32_to_f16(-8.0f * f16_to_f32(f16{block[0]})).bits;
    ((uint32_t *)(unit + 256))[row % 8 * 2 + row / 8] = block[0] | (uint32_t)minimum << 16;
}

CAIRN_INLINE void pack_8(const pack_params &p, int64_t block_index, uint8_t *unit, int row) {
    const uint16_t *block = (const uint16_t *)p.source + block_index * 17;
#pragma unroll 1
    for (int k = 0; k < 32; k++)
        unit[(row % 8 * 4 + k / 8) * 16 + row / 8 * 8 + k % 8] =
            (uint8_t)(((const uint8_t *)(block + 1))[k] ^ 0x80);
    ((uint16_t *)(unit + 512))[row % 8 * 2 + row / 8] = block[0];
}

CAIRN_INLINE void pack_16(const pack_params &p, int64_t block_index, uint8_t *unit, int row) {
    for (int k = 0; k < 32; k++)
        ((f16 *)(unit + row / 8 * 512))[(row % 8 * 4 + k / 8) * 8 + k % 8] =
            f32_to_f16(block_value(p.type, p.source, block_index * 32 + k));
}

/* What is added to a type's integers where a format's stand for larger ones: see pack_params. */
CAIRN_INLINE int pack_offset(int type, int format) {
    const int middle = type == TYPE_Q4_0 ? 8 : type == TYPE_Q5_0 ? 16 : type == TYPE_Q8_0 ? 128 : 0;
    return format == PACK_Q5_0 ? 16 - middle : format == PACK_Q8_0 ? 128 - middle : 0;
}

/* One unit of a group of `units` units, `u`: see PACK_Q4_0. Rows g and g + 8 share bytes, and may
 * come from two matrices: a thread has both, where both are of this one, and leaves the other's. */
CAIRN_INLINE uint32_t *group_word(uint8_t *group, int units, int u, int lane, int word) {
    return (uint32_t *)(units > 1 ? group + u / 2 * 512 + lane * 16 + u % 2 * 8
                                  : group + lane * 8) + word;
}

CAIRN_INLINE void put_bits(uint8_t *at, uint32_t mask, uint32_t bits) {
    *at = (uint8_t)((*at & ~mask) | bits);
}

/* Upper bits of the integers n of inputs 8t + 4w.. of a row: fifth bits, or bits 4 and 5. */
CAIRN_INLINE void pack_upper(uint8_t *plane, bool two, int units, int u, int lane, int w, int high,
                             const uint32_t *n) {
    for (int i = 0; i < 4; i++) {
        const int at = i / 2 + 2 * w, j = i % 2; /* input 2 at + j of the lane's eight */
        if (two) {
            uint8_t *word = plane + u / 2 * 256 + lane * 8 + u % 2 * 4;
            const int bit = at % 2 * 2 + 4 * high;
            put_bits(word + j * 2 + w, 3u << bit, n[i] >> 4 << bit);
        } else {
            uint8_t *to = units > 1 ? plane + u / 2 * 128 + lane * 4 + u % 2 + j * 2
                                    : plane + lane * 2 + j;
            put_bits(to, 1u << (at + 4 * high), n[i] >> 4 << (at + 4 * high));
        }
    }
}

/* f16 of the units of each row, [g][row g, row g+8][unit]. */
CAIRN_INLINE void pack_scales(const pack_params &p, const uint8_t *block, uint16_t *scales,
                              int units, int u, int row) {
    const int type = p.type;
    scales += (row % 8 * 2 + row / 8) * units + u;
    scales[0] = (uint16_t)load_pair(block);
    if (p.format == PACK_Q4_1 || p.format == PACK_Q5_1)
        scales[16 * units] = type == TYPE_Q4_1 || type == TYPE_Q5_1
                                 ? (uint16_t)load_pair(block + 2)
                                 : f32_to_f16(block_scale(type, block, 0).y).bits;
}

/* The same of blocks of 256, of which the unit is part `part`: see PACK_Q4_K and PACK_Q6_K. */
CAIRN_INLINE void pack_heads(const pack_params &p, const uint8_t *block, uint8_t *heads, int units,
                             int u, int part, int row) {
    const int g = row % 8, high = row / 8;
    uint8_t *head = heads + (g * units + u) * 4 + high;
    uint16_t *factors = (uint16_t *)(heads + units * 32);
    if (p.format == PACK_Q6_K) {
        head[0] = (uint8_t)(block[192 + part * 2] ^ 0x80u);
        head[2] = (uint8_t)(block[193 + part * 2] ^ 0x80u);
        if (u == 0) factors[g * 2 + high] = (uint16_t)load_pair(block + 208);
    } else {
        const uint32_t six = block_six(block, part);
        head[0] = (uint8_t)six, head[2] = (uint8_t)(six >> 8);
        if (u) return; /* one writes what all units share */
        factors[g * 4 + high * 2] = (uint16_t)load_pair(block);
        factors[g * 4 + high * 2 + 1] = (uint16_t)load_pair(block + 2);
    }
}

CAIRN_INLINE void pack_nibbles(const pack_params &p, int64_t block_index, uint8_t *group, int units,
                               int u, int row) {
    const int values = block_values(p.type), part = (int)(block_index % (values / 32));
    const uint8_t *block = p.source + block_index / (values / 32) * block_bytes(p.type);
    const int offset = pack_offset(p.type, p.format), upper = packed_upper(p.format);
    uint8_t *plane = group + units * 256, *heads = plane + units * upper * 64;
    for (int t = 0; t < 4; t++)
        for (int w = 0; w < 2; w++) {
            const int lane = row % 8 * 4 + t;
            uint32_t nibbles = 0, n[4];
            for (int i = 0; i < 4; i++) {
                n[i] = block_integer(p.type, block, part * 32 + 8 * t + 4 * w + i) + (uint32_t)offset;
                nibbles |= (n[i] & 15u) << (i / 2 * 8 + i % 2 * 16 + row / 8 * 4);
            }
            uint32_t *to = group_word(group, units, u, lane, w);
            *to = (*to & ~(0x0f0f0f0fu << row / 8 * 4)) | nibbles;
            if (upper) pack_upper(plane, upper == 2, units, u, lane, w, row / 8, n);
        }
    if (p.format < PACK_Q4_K) pack_scales(p, block, (uint16_t *)heads, units, u, row);
    else pack_heads(p, block, heads, units, u, part, row);
}

CAIRN_INLINE void pack_bytes(const pack_params &p, int64_t block_index, uint8_t *group, int units,
                             int u, int row) {
    const uint8_t *block = p.source + block_index * block_bytes(p.type);
    const int offset = pack_offset(p.type, p.format);
    for (int k = 0; k < 32; k++)
        group[u * 512 + (row % 8 * 4 + k / 8) * 16 + row / 8 * 8 + k % 8] =
            (uint8_t)(block_integer(p.type, block, k) + (uint32_t)offset);
    pack_scales(p, block, (uint16_t *)(group + units * 512), units, u, row);
}

/* Row `row` of the source. */
CAIRN_INLINE void pack_row(const pack_params &p, int row, int unit) {
    const int units = p.inputs / 32, to = p.first_row + row, format = p.format;
    const int64_t tile = p.half ? to / 8 : to / 16, index = (int64_t)row * units + unit;
    const int at = p.half ? to % 8 + (p.half - 1) * 8 : to % 16;
    const int group = format == PACK_F16 ? 1 : pack_group(format, p.inputs);
    uint8_t *place = p.packed + (tile * units + unit / group * group) * packed_unit_bytes(format);
    if (format == PACK_16 || format == PACK_F16) pack_16(p, index, place, at);
    else if (FLOWS && format == PACK_4) pack_4(p, index, place, at);
    else if (FLOWS && format == PACK_8) pack_8(p, index, place, at);
    else if (STREAMS && format == PACK_Q8_0) pack_bytes(p, index, place, group, unit % group, at);
    else if (STREAMS) pack_nibbles(p, index, place, group, unit % group, at);
}

CAIRN_KERNEL(pack, 256, 1, pack_params) {
    const int units = p.inputs / 32;
    const int64_t index = (int64_t)block_id() * block_threads() + thread_id();
    grid_dependency_wait();
    if (index >= (int64_t)p.rows * units) return;
    const int row = (int)(index / units), unit = (int)(index % units);
    /* Whoever has a row below eight of a tile has the one eight further too. */
    const bool second = (p.first_row + row) % 16 >= 8;
    if (!p.half && second && row >= 8) return;
    const int end = p.half || second || row + 8 >= p.rows ? row : row + 8;
#pragma unroll 1 /* twice the code takes twice as long to compile */
    for (int at = row; at <= end; at += 8) pack_row(p, at, unit);
}
