/* abi: packed weights, and parameters of dense/pack.cu (see abi.h). */
#ifndef CAIRN_ABI_PACK_H
#define CAIRN_ABI_PACK_H
#ifndef CAIRN_ABI_H /* which includes all in order */
#include "abi/base.h"
#endif

/* Weights as the kernels read them: tiles of 16 output rows, each a run of units of 32 inputs, each
 * unit in the order in which a warp's lanes need it as the A operand of mma m16n8k16. With
 * g = lane / 4, t = lane % 4, a lane holds inputs 8t..8t+7 of rows g and g + 8.
 * Of models that one kernel computes (step/step.cu), each unit for itself:
 *   PACK_4   320 bytes  [lane][row g, row g+8] one word: input 2i in bits 4i.., 2i+1 in bits 16+4i..
 *                       then [g][row g, row g+8] {f16 d, f16 m}: value = n d + m, n in 0..15
 *   PACK_8   544 bytes  [lane][row g, row g+8][8] bytes n + 128, then [g][row g, row g+8] f16 d
 *   PACK_16 1024 bytes  [row g, row g+8][lane][8] f16
 * Of all others, in groups of G units, G the largest power of two that divides a row, up to 8, 4 for
 * bytes (dense/packed.cuh: packed_group); for each unit as many bytes as its GGUF blocks have:
 *   PACK_Q4_0 [pair of units][lane][unit of the pair][2] words: input 2i + j of row g + 8 h in bits
 *             8 (i % 2) + 16 j + 4 h of word i / 2; then [g][row g, row g+8][unit] f16 d
 *   PACK_Q4_1 the same, and after d the minima likewise
 *   PACK_Q8_0 [unit][lane][row g, row g+8][8] bytes n + 128, then d as above
 *   PACK_F16  as PACK_16 */
enum { PACK_4 = 4, PACK_8 = 8, PACK_16 = 16,
       PACK_Q4_0 = 32, PACK_Q4_1 = 33, PACK_Q8_0 = 34, PACK_F16 = 35 };

/* Shared memory of a block of dense/product.cuh. */
enum { PRODUCT_SHARED = (4 * 8 + 8 + 4) * 512 + 128 + 72 * 1024 };

/* pack: GGUF blocks, row by row, to packed tiles. */
typedef struct pack_params {
    const uint8_t *source;  /* [rows, inputs] in blocks of `type` */
    uint8_t *packed;        /* tiles of `format` */
    int32_t type;           /* block type of GGUF: 0 f32, 1 f16, 2 Q4_0, 3 Q4_1, 8 Q8_0, 30 bf16 */
    int32_t format;         /* PACK_16, PACK_F16 for any type; PACK_4, PACK_Q4_1 for Q4_0 and Q4_1;
                             * PACK_Q4_0, PACK_8 and PACK_Q8_0 for what they are named after */
    int32_t rows, inputs;   /* inputs: a multiple of 32 */
    int32_t first_row;      /* of the destination, where source row 0 goes */
    int32_t half;           /* 0: row r to tile r / 16; 1, 2: to the first, second half of r / 8 */
} pack_params;

#endif
