/* kv_append_latent: each row's latent values and its rotated ones into its slot of a latent cache
 * (abi/attention.h says what a slot holds), a warp for each row.
 *
 * Constants  CAIRN_SOURCE_TYPE  of k and v: 1 f32, 2 f16, 3 bf16 (cairn_type)
 *            CAIRN_CACHE_TYPE   the same, or 4: slots of bytes, x / s with s = max(|x| of 128, 1e-4) / 448
 * Launch     grid ceil(rows / 4), block 128
 * matrix: CAIRN_SOURCE_TYPE=3 CAIRN_CACHE_TYPE=4 */
#include "device/common.cuh"
#include "abi/attention.h"
#include "abi/kv.h"
#include "attention/paged.cuh"
#include "dense/rope.cuh"

CAIRN_INLINE float source_value(const void *from, int64_t i) {
    return CAIRN_SOURCE_TYPE == 1   ? ((const float *)from)[i]
           : CAIRN_SOURCE_TYPE == 2 ? to_f32(((const f16 *)from)[i])
                                    : to_f32(((const bf16 *)from)[i]);
}

/* Value i of slot number `slot`, in caches of one type. */
CAIRN_INLINE void store_value(const kv_append_params &p, int64_t slot, int i, float x) {
    const int64_t at = slot * LATENT_KEYS + i;
    if constexpr (CAIRN_CACHE_TYPE == 1) ((float *)p.at.cache)[at] = x;
    else if constexpr (CAIRN_CACHE_TYPE == 2) ((f16 *)p.at.cache)[at] = f32_to_f16(x);
    else ((bf16 *)p.at.cache)[at] = f32_to_bf16(x);
}

/* A lane's 16 latent values; eight lanes share a scale. */
CAIRN_INLINE void store_latent(const kv_append_params &p, int64_t slot, const float *x) {
    const int lane = lane_id();
    if constexpr (CAIRN_CACHE_TYPE != 4) {
        for (int i = 0; i < 16; i++) store_value(p, slot, lane * 16 + i, x[i]);
    } else {
        unsigned char *to = (unsigned char *)p.at.cache + slot * LATENT_BYTES;
        float most = 1e-4f;
        uint32_t bytes[4];
        for (int i = 0; i < 16; i++) most = fmaxf(most, fabsf(x[i]));
        for (int m = 1; m < 8; m *= 2) most = fmaxf(most, shuffle_xor(most, m));
        const float scale = most / 448.0f;
        for (int i = 0; i < 4; i++)
            bytes[i] = pack_e4m3x2(x[4 * i] / scale, x[4 * i + 1] / scale) |
                       (uint32_t)pack_e4m3x2(x[4 * i + 2] / scale, x[4 * i + 3] / scale) << 16;
        *(u32x4 *)(to + lane * 16) = u32x4{bytes[0], bytes[1], bytes[2], bytes[3]};
        if (lane % 8 == 0) ((float *)(to + LATENT_VALUES))[lane / 8] = scale;
    }
}

CAIRN_INLINE void store_rotated(const kv_append_params &p, int64_t slot, int i, float x) {
    if constexpr (CAIRN_CACHE_TYPE == 4) {
        unsigned char *to = (unsigned char *)p.at.cache + slot * LATENT_BYTES;
        ((bf16 *)(to + LATENT_VALUES + LATENT_SCALES * 4))[i] = f32_to_bf16(x);
    } else {
        store_value(p, slot, LATENT_VALUES + i, x);
    }
}

CAIRN_KERNEL(kv_append_latent, 128, 8, kv_append_params) {
    const int r = block_id() * 4 + warp_id(), lane = lane_id();
    if (r >= p.rows) return;
    const int sequence = p.at.sequences ? p.at.sequences[r] : r, position = p.at.positions[r];
    const bool known = sequence >= 0 && sequence < p.at.sequence_count;
    const bool inside = position >= 0 && position / p.at.page_size < p.at.max_pages;
    const paged_row row = {known && inside, position, sequence};
    const int page = row.valid ? paged_physical(p.at, row, position / p.at.page_size) : -1;
    if (page < 0) {
        if (lane == 0)
            report_error(p.at.error, known && !inside ? CAIRN_FAULT_POSITION : CAIRN_FAULT_ID, r,
                         known ? position : sequence);
        return;
    }
    const int64_t slot = (int64_t)page * p.at.page_size + position % p.at.page_size;
    float x[16];
    for (int i = 0; i < 16; i++) x[i] = source_value(p.k, (int64_t)r * LATENT_VALUES + lane * 16 + i);
    store_latent(p, slot, x);
    const int a = p.half_split ? lane : 2 * lane, b = p.half_split ? lane + 32 : a + 1;
    float u = source_value(p.v, (int64_t)r * LATENT_ROTATED + a);
    float v = source_value(p.v, (int64_t)r * LATENT_ROTATED + b);
    if (p.rotary_pairs) {
        const rotation turn = rotation_of(position, p.turns[lane]);
        const float first = u * turn.cosine - v * turn.sine;
        v = u * turn.sine + v * turn.cosine;
        u = first;
    }
    store_rotated(p, slot, a, u);
    store_rotated(p, slot, b, v);
}
