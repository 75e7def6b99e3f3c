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
 *   PACK_F16  as PACK_16
 *   PACK_Q5_0 the nibbles of Q4_0; the fifth bits, [pair of units][lane] one word: of input 2i + j of
 *             row g + 8 h and unit u of the pair in bit i + 4 h + 8 u + 16 j (a group of one unit
 *             has no pair: [lane] bits i + 4 h + 8 j); then d
 *   PACK_Q5_1 the same, and the minima
 *   PACK_Q4_K, PACK_Q5_K: nibbles, of Q5_K fifth bits; [g][unit] four bytes: the unit's scale of row
 *             g and g+8, its minimum of row g and g+8; [g][row g, row g+8] f16 d, f16 dmin. Scales
 *             are bytes, six bits in GGUF: 4 bytes of 144 or 176 more, and no arithmetic
 *   PACK_Q6_K in groups of 4 units: nibbles; [pair of units][lane][unit of the pair] one word of upper
 *             bits: of input 2i + j of row g + 8 h in bits 2 (i % 2) + 8 (i / 2) + 4 h + 16 j; [g][unit]
 *             four bytes: scale + 128 of row g and g+8 of inputs 0-15, of inputs 16-31; [g] f16 d of
 *             row g and g+8: each half of a block has it, 2 bytes of 210 more, so that rings hold
 *             more groups */
enum { PACK_4 = 4, PACK_8 = 8, PACK_16 = 16,
       PACK_Q4_0 = 32, PACK_Q4_1 = 33, PACK_Q8_0 = 34, PACK_F16 = 35,
       PACK_Q5_0 = 36, PACK_Q5_1 = 37, PACK_Q4_K = 38, PACK_Q5_K = 39, PACK_Q6_K = 40,
       RAW = 64 /* and a block type of GGUF: its blocks as they are (dense/raw.cuh) */ };

/* Shared memory of a block of dense/product.cuh, of one band of eight rows and of two; and behind that where
 * the parts of K are spread over the blocks of a cluster: sums of so many tiles and parts, for each band. */
enum { PRODUCT_FIXED = (4 * 8 + 8 + 1) * 512 + 384, PRODUCT_RING = 76 * 1024, PRODUCT_BANDS_RING = 152 * 1024,
       PRODUCT_SHARED = PRODUCT_FIXED + PRODUCT_RING,
       PRODUCT_BANDS_SHARED = 2 * PRODUCT_FIXED + PRODUCT_BANDS_RING,
       PRODUCT_CLUSTER = 16, /* blocks at most */
       PRODUCT_SPREAD = 20, PRODUCT_SPREAD_SHARED = PRODUCT_SPREAD * 512 };

/* Units of 32 inputs that are packed together: the largest power of two that divides a row, up to 8
 * units of nibbles, 4 of bytes and of Q6_K, 2 of f16. */
ABI_FUNCTION int pack_group(int format, int inputs) {
    int group = format == PACK_F16 ? 2 : format == PACK_Q8_0 || format == PACK_Q6_K ? 4 : 8;
    if (format < PACK_Q4_0) return 1;
    while (inputs / 32 % group) group /= 2;
    return group;
}

/* Parts that a product's K is cut into: eight warps hold 16 units of it each, of groups of one unit 8. */
ABI_FUNCTION int pack_parts(int format, int inputs) {
    const int group = pack_group(format, inputs), part = 8 * (group == 1 ? 8 : 16);
    return (inputs / 32 + part - 1) / part;
}

/* Warps that share a tile of a product, as each holds so much; a block has eight. */
ABI_FUNCTION int pack_warps(int format, int inputs) {
    const int group = pack_group(format, inputs), most = group == 1 ? 8 : 16; /* units */
    const int parts = pack_parts(format, inputs), groups = inputs / 32 / group;
    const int part = (groups + parts - 1) / parts * group;
    return part > 4 * most ? 8 : part > 2 * most ? 4 : part > most ? 2 : 1;
}

/* Formats whose products have a form for a row alone, with the same bits. Its blocks take all parts. */
ABI_FUNCTION int pack_alone(int format) {
    return format >= PACK_Q4_0 && format < RAW && format != PACK_F16;
}

/* pack: GGUF blocks, row by row, to packed tiles. */
typedef struct pack_params {
    const uint8_t *source;  /* [rows, inputs] in blocks of `type` */
    uint8_t *packed;        /* tiles of `format` */
    int32_t type;           /* block type of GGUF, see dense/blocks.cuh */
    int32_t format;         /* PACK_16, PACK_F16 for any type, rounded to f16; the others for what
                             * they are named after, PACK_4 for Q4_0 and Q4_1, and exactly too: Q4_0
                             * in Q4_1, Q5_0, Q5_1 and Q8_0, Q4_1 in Q5_1, Q5_0 in Q5_1 and Q8_0,
                             * Q4_K in Q5_K */
    int32_t rows, inputs;   /* inputs: a multiple of 32 */
    int32_t first_row;      /* of the destination, where source row 0 goes */
    int32_t half;           /* 0: row r to tile r / 16; 1, 2: to the first, second half of r / 8 */
} pack_params;

#endif
