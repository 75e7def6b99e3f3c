/* step/best.cuh: the token of the best of a row's ranks (rank_logit of step/stages.cuh). Where that is a
 * NaN's, all logits are. */
#ifndef CAIRN_STEP_BEST_CUH
#define CAIRN_STEP_BEST_CUH

#include "abi/sample.h"

/* One rank of each block that made a part of its logits. All lanes. */
CAIRN_INLINE int32_t best_token(const uint64_t *ranks, int blocks) {
    uint64_t best = 0;
    for (int i = lane_id(); i < blocks; i += WARP) best = max_of(best, ranks[i]);
    best = warp_max(best);
    return best >> 32 ? (int32_t)(0xffffffffu - (uint32_t)best) : CAIRN_SAMPLE_NO_NUMBER;
}

#endif
