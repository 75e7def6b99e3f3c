/* abi: packed weights, and parameters of dense/pack.cu (see abi.h). */
#ifndef CAIRN_ABI_PACK_H
#define CAIRN_ABI_PACK_H
#ifndef CAIRN_ABI_H /* which includes all in order */
#include "abi/base.h"
#endif

/* Weights as the kernels read them: tiles of 16 output rows, each a run of units of 32 inputs, each
 * unit in the order in which a warp's lanes need it as the A operand of mma m16n8k16. With
 * g = lane / 4, t = lane % 4, a lane holds inputs 8t..8t+7 of rows g and g + 8:
 *   PACK_4   320 bytes  [lane][row g, row g+8] one word: input 2i in bits 4i.., 2i+1 in bits 16+4i..
 *                       then [g][row g, row g+8] {f16 d, f16 m}: value = n d + m, n in 0..15
 *   PACK_8   544 bytes  [lane][row g, row g+8][8] bytes n + 128, then [g][row g, row g+8] f16 d
 *   PACK_16 1024 bytes  [row g, row g+8][lane][8] f16 */
enum { PACK_4 = 4, PACK_8 = 8, PACK_16 = 16 };

/* pack: GGUF blocks, row by row, to packed tiles. */
typedef struct pack_params {
    const uint8_t *source;  /* [rows, inputs] in blocks of `type` */
    uint8_t *packed;        /* tiles of `format` */
    int32_t type;           /* block type of GGUF: 0 f32, 1 f16, 2 Q4_0, 3 Q4_1, 8 Q8_0, 30 bf16 */
    int32_t format;         /* PACK_16 for any type, PACK_4 for Q4_0 and Q4_1, PACK_8 for Q8_0 */
    int32_t rows, inputs;   /* inputs: a multiple of 32 */
    int32_t first_row;      /* of the destination, where source row 0 goes */
    int32_t half;           /* 0: row r to tile r / 16; 1, 2: to the first, second half of r / 8 */
} pack_params;

#endif
