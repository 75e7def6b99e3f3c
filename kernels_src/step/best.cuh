/* step/best.cuh: the token of the best of a row's ranks (rank_logit of step/stages.cuh). Where that is a
 * NaN's, all logits are. */
#ifndef CAIRN_STEP_BEST_CUH
#define CAIRN_STEP_BEST_CUH

#include "abi/sample.h"

CAIRN_INLINE int32_t token_of(uint64_t best) {
    return best >> 32 ? (int32_t)(0xffffffffu - (uint32_t)best) : CAIRN_SAMPLE_NO_NUMBER;
}

#endif
