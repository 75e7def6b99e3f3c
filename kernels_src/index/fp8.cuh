/* index/fp8.cuh: blocks of 128 values as e4m3 with a scale, a warp each: four values a lane. */
#ifndef CAIRN_INDEX_FP8_CUH
#define CAIRN_INDEX_FP8_CUH

/* The scale of a block whose largest magnitude is `most`: most / 448, or the least power of two that
 * is not below it, found in the bits: 448 is 1.75 * 2^8. */
CAIRN_INLINE float fp8_scale(float most, int power_of_two) {
    most = fminf(fmaxf(most, 1e-4f), 3.4028235e38f);
    if (!power_of_two) return div_f32(most, 448.0f);
    const uint32_t bits = as_u32(most);
    return as_f32(((bits >> 23) - ((bits & 0x7fffffu) > 0x600000u ? 7u : 8u)) << 23);
}

/* A lane's values v [4] of the block divided by its scale, which it returns; out: their bytes. */
CAIRN_INLINE float fp8_block(const float *v, int power_of_two, uint32_t *out) {
    float most = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) most = fmaxf(most, fabsf(v[i]));
    const float scale = fp8_scale(warp_max(most), power_of_two);
    *out = pack_e4m3x2(div_f32(v[0], scale), div_f32(v[1], scale)) |
           (uint32_t)pack_e4m3x2(div_f32(v[2], scale), div_f32(v[3], scale)) << 16;
    return scale;
}

#endif
