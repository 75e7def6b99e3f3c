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

/* 22 bytes: scale f16, the fifth bit of 32 values, nibbles as in Q4_0: value = (n - 16) * scale. */
static void block_read_q5_0(const uint8_t *blocks, float *out, int64_t values) {
    for (int64_t i = 0; i < values; i += 32, blocks += 22) {
        float scale = block_f32_of_f16(block_load16(blocks));
        for (int j = 0; j < 32; j++) {
            int low = blocks[6 + j % 16] >> (j < 16 ? 0 : 4) & 15;
            int high = blocks[2 + j / 8] >> j % 8 & 1;
            out[i + j] = (float)((low | high << 4) - 16) * scale;
        }
    }
}

/* 24 bytes: scale f16, minimum f16, then as Q5_0: value = n * scale + minimum. */
static void block_read_q5_1(const uint8_t *blocks, float *out, int64_t values) {
    for (int64_t i = 0; i < values; i += 32, blocks += 24) {
        float scale = block_f32_of_f16(block_load16(blocks));
        float minimum = block_f32_of_f16(block_load16(blocks + 2));
        for (int j = 0; j < 32; j++) {
            int low = blocks[8 + j % 16] >> (j < 16 ? 0 : 4) & 15;
            int high = blocks[4 + j / 8] >> j % 8 & 1;
            out[i + j] = (float)(low | high << 4) * scale + minimum;
        }
    }
}

/* heads [8]: (scale, -minimum) of the eight parts of 32 values that a block of Q4_K and Q5_K begins
 * with: two f16 factors, then twelve bytes of six-bit numbers. */
static void block_parts(const uint8_t *block, float *heads) {
    const float scale = block_f32_of_f16(block_load16(block));
    const float minimum = block_f32_of_f16(block_load16(block + 2));
    const uint8_t *packed = block + 4;
    for (int j = 0; j < 4; j++) {
        heads[2 * j] = scale * (float)(packed[j] & 63);
        heads[2 * j + 1] = -(minimum * (float)(packed[j + 4] & 63));
        heads[2 * j + 8] = scale * (float)((packed[j + 8] & 15) | packed[j] >> 6 << 4);
        heads[2 * j + 9] = -(minimum * (float)(packed[j + 8] >> 4 | packed[j + 4] >> 6 << 4));
    }
}

/* 144 bytes for 256 values: block_parts' 16, then 4 times 32 bytes, whose low halves are a part and
 * whose high halves are the next. */
static void block_read_q4_k(const uint8_t *blocks, float *out, int64_t values) {
    float heads[16];
    for (int64_t i = 0; i < values; i += 256, blocks += 144) {
        block_parts(blocks, heads);
        for (int j = 0; j < 256; j++) {
            int part = j / 32, n = blocks[16 + part / 2 * 32 + j % 32] >> part % 2 * 4 & 15;
            out[i + j] = (float)n * heads[2 * part] + heads[2 * part + 1];
        }
    }
}

/* 176 bytes: block_parts' 16, the fifth bit of part p in bit p of 32 bytes, then as Q4_K. */
static void block_read_q5_k(const uint8_t *blocks, float *out, int64_t values) {
    float heads[16];
    for (int64_t i = 0; i < values; i += 256, blocks += 176) {
        block_parts(blocks, heads);
        for (int j = 0; j < 256; j++) {
            int part = j / 32, n = blocks[48 + part / 2 * 32 + j % 32] >> part % 2 * 4 & 15;
            n |= (blocks[16 + j % 32] >> part & 1) << 4;
            out[i + j] = (float)n * heads[2 * part] + heads[2 * part + 1];
        }
    }
}

/* 210 bytes for 256 values: 128 of nibbles, 64 of the upper two bits, 16 signed scales, an f16
 * factor. Of each half, part p of 32 values has the low or high (p > 1) halves of 32 bytes of
 * nibbles, and bits 2 p of 32 bytes: value = (n - 32) * scale of 16 values. */
static void block_read_q6_k(const uint8_t *blocks, float *out, int64_t values) {
    for (int64_t i = 0; i < values; i += 256, blocks += 210) {
        const float factor = block_f32_of_f16(block_load16(blocks + 208));
        for (int j = 0; j < 256; j++) {
            int half = j / 128, part = j / 32 % 4, at = j % 32, byte = blocks[192 + j / 16];
            int n = blocks[half * 64 + part % 2 * 32 + at] >> part / 2 * 4 & 15;
            n |= (blocks[128 + half * 32 + at] >> 2 * part & 3) << 4;
            out[i + j] = (float)(n - 32) * (factor * (float)(byte < 128 ? byte : byte - 256));
        }
    }
}

static const block_type block_types[] = {
    {BLOCK_F32, "F32", 1, 4, block_read_f32},
    {BLOCK_F16, "F16", 1, 2, block_read_f16},
    {BLOCK_BF16, "BF16", 1, 2, block_read_bf16},
    {BLOCK_Q4_0, "Q4_0", 32, 18, block_read_q4_0},
    {BLOCK_Q4_1, "Q4_1", 32, 20, block_read_q4_1},
    {BLOCK_Q5_0, "Q5_0", 32, 22, block_read_q5_0},
    {BLOCK_Q5_1, "Q5_1", 32, 24, block_read_q5_1},
    {BLOCK_Q8_0, "Q8_0", 32, 34, block_read_q8_0},
    {BLOCK_Q4_K, "Q4_K", 256, 144, block_read_q4_k},
    {BLOCK_Q5_K, "Q5_K", 256, 176, block_read_q5_k},
    {BLOCK_Q6_K, "Q6_K", 256, 210, block_read_q6_k},
#ifdef CAIRN_BLOCK_TYPES /* others, numbered below 64: a model in them needs nothing else to run */
    CAIRN_BLOCK_TYPES
#endif
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
