/* block: the block types of weights as GGUF stores them, and their exact values.
 *
 * One row of block_types per type: name, values per block, bytes per block, dequantiser. Adding a
 * type is adding a row here and, where it should be fast, its kernels. The dequantisers are plain
 * scalar C: they define the values that the SIMD and CUDA paths must reproduce, and serve the
 * rows that are read once (embeddings, norms). Blocks are little-endian and may lie at any
 * address. Calls nothing. */

static uint32_t block_load16(const uint8_t *at) { return (uint32_t)at[0] | (uint32_t)at[1] << 8; }

static float block_f32_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Without a branch, so that loops over it become vectors. */
static uint16_t block_bf16_of_f32(float value) {
    uint32_t bits, nan, rounded;
    memcpy(&bits, &value, sizeof bits);
    nan = (bits & 0x7fffffffu) > 0x7f800000u ? ~0u : 0u;
    rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
    return (uint16_t)((nan & 0x7fffu) | (~nan & rounded));
}

/* Exact, with denormals, infinities and NaN payloads. */
static float block_f32_of_f16(uint32_t half) {
    uint32_t sign = (half & 0x8000u) << 16, exponent = half >> 10 & 31, fraction = half & 0x3ff;
    if (exponent == 31) return block_f32_of_bits(sign | 0x7f800000u | fraction << 13);
    if (exponent) return block_f32_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
    return (sign ? -1.0f : 1.0f) * (float)fraction * 5.9604644775390625e-8f; /* 2^-24 */
}

static void block_read_f32(const uint8_t *blocks, float *out, int64_t values) {
    for (int64_t i = 0; i < values; i++, blocks += 4)
        out[i] = block_f32_of_bits(block_load16(blocks) | block_load16(blocks + 2) << 16);
}

static void block_read_f16(const uint8_t *blocks, float *out, int64_t values) {
    for (int64_t i = 0; i < values; i++) out[i] = block_f32_of_f16(block_load16(blocks + 2 * i));
}

static void block_read_bf16(const uint8_t *blocks, float *out, int64_t values) {
    for (int64_t i = 0; i < values; i++)
        out[i] = block_f32_of_bits(block_load16(blocks + 2 * i) << 16);
}

/* 18 bytes: scale f16, 16 bytes of two 4-bit values: the low halves are values 0 to 15. */
static void block_read_q4_0(const uint8_t *blocks, float *out, int64_t values) {
    for (int64_t i = 0; i < values; i += 32, blocks += 18) {
        float scale = block_f32_of_f16(block_load16(blocks));
        for (int j = 0; j < 16; j++) {
            out[i + j] = (float)((int)(blocks[2 + j] & 15) - 8) * scale;
            out[i + j + 16] = (float)((int)(blocks[2 + j] >> 4) - 8) * scale;
        }
    }
}

/* 20 bytes: scale f16, minimum f16, nibbles as in Q4_0: value = nibble * scale + minimum. */
static void block_read_q4_1(const uint8_t *blocks, float *out, int64_t values) {
    for (int64_t i = 0; i < values; i += 32, blocks += 20) {
        float scale = block_f32_of_f16(block_load16(blocks));
        float minimum = block_f32_of_f16(block_load16(blocks + 2));
        for (int j = 0; j < 16; j++) {
            out[i + j] = (float)(blocks[4 + j] & 15) * scale + minimum;
            out[i + j + 16] = (float)(blocks[4 + j] >> 4) * scale + minimum;
        }
    }
}

/* 34 bytes: scale f16, 32 signed bytes. */
static void block_read_q8_0(const uint8_t *blocks, float *out, int64_t values) {
    for (int64_t i = 0; i < values; i += 32, blocks += 34) {
        float scale = block_f32_of_f16(block_load16(blocks));
        for (int j = 0; j < 32; j++) {
            int byte = blocks[2 + j];
            out[i + j] = (float)(byte < 128 ? byte : byte - 256) * scale;
        }
    }
}

static const block_type block_types[] = {
    {BLOCK_F32, "F32", 1, 4, block_read_f32},
    {BLOCK_F16, "F16", 1, 2, block_read_f16},
    {BLOCK_BF16, "BF16", 1, 2, block_read_bf16},
    {BLOCK_Q4_0, "Q4_0", 32, 18, block_read_q4_0},
    {BLOCK_Q4_1, "Q4_1", 32, 20, block_read_q4_1},
    {BLOCK_Q8_0, "Q8_0", 32, 34, block_read_q8_0},
};

static const block_type *block_find(int type) {
    for (size_t i = 0; i < BASE_COUNT(block_types); i++)
        if (block_types[i].type == type) return &block_types[i];
    return NULL;
}

static const char *block_name(int type) {
    static const char *const names[] = {
        "F32", "F16", "Q4_0", "Q4_1", "Q4_2", "Q4_3", "Q5_0", "Q5_1", "Q8_0", "Q8_1",
        "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S",
        "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS", "I8", "I16", "I32", "I64", "F64", "IQ1_M",
        "BF16", "Q4_0_4_4", "Q4_0_4_8", "Q4_0_8_8", "TQ1_0", "TQ2_0", "IQ4_NL_4_4",
        "IQ4_NL_4_8", "IQ4_NL_8_8", "MXFP4"};
    return type >= 0 && (size_t)type < BASE_COUNT(names) ? names[type] : "unknown";
}

static size_t block_row_bytes(const block_type *type, int64_t values) {
    return (size_t)(values / type->values) * (size_t)type->bytes;
}
