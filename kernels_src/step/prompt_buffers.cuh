/* Where the kernels of a prompt find what they hand to each other: in one region of the exchange (step/step.cuh) up to
 * the chunks' sums. What products read there (NORMED_AT, ATTENDED_AT, FFN_AT) lies in the order of operand_at. */
#ifndef CAIRN_PROMPT_BUFFERS_CUH
#define CAIRN_PROMPT_BUFFERS_CUH

#include "step/step.cuh"

constexpr int64_t NORMED_AT = HIDDEN_AT;

constexpr bool JOINED = (CAIRN_EXTRAS & STEP_EXTRA_JOINED) != 0;

constexpr int TILE_ROWS = 64; /* tokens of a block of attention */

CAIRN_INLINE uint8_t *buffer(const step_params &p, int64_t at) { return region(p, 0, 0) + at; }

#endif
