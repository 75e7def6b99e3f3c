/* step_finish: the most likely token of each row, from what the blocks of the head found best.
 *
 * In: winners [rows, blocks], never 0, larger is better (rank_logit of step_stages.cuh).
 * Out: tokens [rows]. Grid: rows; one warp a block; no shared memory. Exact: the largest logit, the
 * lowest token among equals.
 * Reference: sample_argmax of runtime/sample.c.
 * matrix: */
#include "common.cuh"

CAIRN_KERNEL(step_finish, 32, 1, finish_params) {
    uint64_t best = 0;
    grid_dependency_wait();
    for (int i = lane_id(); i < p.blocks; i += WARP)
        best = max_of(best, p.winners[(int64_t)block_id() * p.blocks + i]);
    best = warp_max(best);
    if (lane_id() == 0) p.tokens[block_id()] = (int32_t)(0xffffffffu - (uint32_t)best);
}
