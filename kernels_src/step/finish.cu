/* step_finish: after the head, the most likely token of each row, from what its blocks found best;
 * and, after the flow kernel with page selection, the count of the pages that were read.
 *
 * In: winners [rows, blocks], never 0, larger is better (rank_logit of step/stages.cuh); row_pages
 *     [layers, count_rows, kv_heads, seen_words], a bit a page that a row attends, or NULL.
 * Out: tokens [rows], CAIRN_SAMPLE_NO_NUMBER where all logits are NaN; pages_read [sequence], the
 *     distinct pages that the rows of a sequence attend, summed over layers and KV heads.
 * Grid: `rows` blocks, then with row_pages `count_rows` more, the one of a sequence's first row
 * counts; one warp a block; no shared memory. Exact: the largest logit, the lowest token among
 * equals.
 * Reference: sample_argmax of runtime/ops/sample/sample.c.
 * matrix: */
#include "device/common.cuh"
#include "abi/step.h"
#include "step/best.cuh"

CAIRN_INLINE void find_best(const finish_params &p) {
    uint64_t best = 0;
    for (int i = lane_id(); i < p.blocks; i += WARP)
        best = max_of(best, p.winners[(int64_t)block_id() * p.blocks + i]);
    best = warp_max(best);
    if (lane_id() == 0) p.tokens[block_id()] = token_of(best);
}

CAIRN_INLINE void count_pages(const finish_params &p, int row) {
    const int32_t *first = p.input + STEP_HEAD + STEP_FIRST * p.capacity;
    const int row_words = p.kv_heads * p.seen_words;
    int end = row + 1, count = 0;
    if (row >= p.input[STEP_ROWS] || first[row] != row) return;
    while (end < p.input[STEP_ROWS] && first[end] == row) end++;
    for (int i = lane_id(); i < p.layers * row_words; i += WARP) {
        const int layer = i / row_words;
        const uint32_t *at = p.row_pages + (int64_t)layer * p.count_rows * row_words +
                             i % row_words;
        uint32_t bits = 0;
        for (int r = row; r < end; r++) bits |= at[r * row_words];
        count += popcount(bits);
    }
    count = warp_sum(count);
    if (lane_id() == 0)
        p.pages_read[p.input[STEP_HEAD + STEP_SEQUENCE * p.capacity + row]] = count;
}

CAIRN_KERNEL(step_finish, 32, 1, finish_params) {
    grid_dependency_wait();
    if (block_id() < p.rows) find_best(p);
    else count_pages(p, block_id() - p.rows);
}
