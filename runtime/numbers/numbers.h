/* numbers: the block formats of weights (block.c), 8-bit floats (fp8.c), and the CPU's kernels at every SIMD level
 * (simd.c, simd.h). Blocks are little-endian, as GGUF stores them, and may lie at any address.
 * The scalar dequantisers define the values that the SIMD and CUDA paths must reproduce. Calls
 * base and, for the level, pool. */

enum { BLOCK_F32 = 0, BLOCK_F16 = 1, BLOCK_Q4_0 = 2, BLOCK_Q4_1 = 3, BLOCK_Q5_0 = 6, BLOCK_Q5_1 = 7,
       BLOCK_Q8_0 = 8, BLOCK_Q4_K = 12, BLOCK_Q5_K = 13, BLOCK_Q6_K = 14, BLOCK_BF16 = 30 };

#define BLOCK_SUPPORTED "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K"

/* blocks: `values` of the type (a multiple of the block's) -> out [values]. */
typedef void (*block_dequantize)(const uint8_t *blocks, float *out, int64_t values);

typedef struct block_type {
    int type;          /* the number that stands in a GGUF file */
    const char *name;
    int values, bytes; /* of one block */
    block_dequantize dequantize;
} block_type;

/* The traits of a type, or NULL when it is not supported. */
static const block_type *block_find(int type);
/* The name of any type that GGUF files hold, supported or not; "unknown" otherwise. */
static const char *block_name(int type);
/* Bytes of a row of `values` values, a multiple of the type's block. */
static size_t block_row_bytes(const block_type *type, int64_t values);
/* The f32 of these bits. */
static float block_f32_of_bits(uint32_t bits);
/* The nearest e4m3, of two the even, saturating to 448; NaN gives 0x7f. */
static uint8_t fp8_of_f32(float x);
/* values [256]: what each e4m3 byte stands for. */
static void fp8_values(float *values);
/* x [n] / scale as e4m3; the scale is max(|x|, 1e-4) / 448, or the least power of two that is not
 * below it. Infinities saturate, NaN stays NaN. Returns the scale. */
static float fp8_of_block(const float *x, int n, bool power_of_two, uint8_t *out);
/* The nearest bf16, of two the even; every NaN is 0x7fff, as on the GPU. */
static uint16_t block_bf16_of_f32(float value);
