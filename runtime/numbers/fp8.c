/* fp8: e4m3 as numbers: 1 sign, 4 exponent and 3 mantissa bits, no infinities, NaN 0x7f and 0xff. */

static uint8_t fp8_of_f32(float x) {
    uint32_t bits, sign, rest;
    memcpy(&bits, &x, sizeof bits);
    sign = bits >> 24 & 0x80u;
    rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u) return 0x7f;
    if (rest >= 0x43e80000u) return (uint8_t)(sign | 0x7eu); /* 464, the tie above 448 */
    if (rest < 0x3c800000u) /* below 2^-6: multiples of 2^-9 */
        return (uint8_t)(sign | (uint32_t)lrint(fabs((double)x) * 512.0));
    rest += 0x7ffffu + (rest >> 20 & 1);
    return (uint8_t)(sign | ((rest >> 20) - (120u << 3)));
}

static float fp8_to_f32(uint8_t v) {
    const int exponent = v >> 3 & 15, mantissa = v & 7;
    float x = exponent ? (float)((8 + mantissa) << exponent) / 1024.0f : (float)mantissa / 512.0f;
    if ((v & 127) == 127) x = NAN;
    return v & 128 ? -x : x;
}

static void fp8_values(float *values) {
    for (int i = 0; i < 256; i++) values[i] = fp8_to_f32((uint8_t)i);
}

static float fp8_scale(float most, bool power_of_two) {
    uint32_t bits;
    most = fmaxf(most, 1e-4f);
    if (most > FLT_MAX) most = FLT_MAX;
    if (!power_of_two) return most / 448.0f;
    memcpy(&bits, &most, sizeof bits); /* 448 is 1.75 * 2^8 */
    return block_f32_of_bits(((bits >> 23) - ((bits & 0x7fffffu) > 0x600000u ? 7u : 8u)) << 23);
}

static float fp8_of_block(const float *x, int n, bool power_of_two, uint8_t *out) {
    float most = 0.0f, scale;
    for (int i = 0; i < n; i++) most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    scale = fp8_scale(most, power_of_two);
    for (int i = 0; i < n; i++) out[i] = fp8_of_f32(x[i] / scale);
    return scale;
}
