/* step_finish: after the head, the most likely token of each row, from what its blocks found best;
 * and, after the flow kernel with page selection, the count of the pages that were read.
 *
 * In: winners [rows, blocks], never 0, larger is better (rank_logit of step/stages.cuh); row_pages
 *     [layers, count_rows, kv_heads, seen_words], a bit a page that a row attends, or NULL.
 * Out: tokens [rows], CAIRN_SAMPLE_NO_NUMBER where all logits are NaN; pages_read [sequence], the
 *     distinct pages that the rows of a sequence attend, summed over layers and KV heads.
 *      With told both, and the fault word, go to the host's memory too, where they lie once the kernel has
 *      ended: a copy behind it takes 8 us more (H200).
 * Grid: `rows` blocks, then with row_pages `count_rows` more, the one of a sequence's first row
 * counts; one block where rows is 0, which only tells; one warp a block; no shared memory. Exact: the largest
 * logit, the lowest token among equals.
 * Reference: sample_argmax of runtime/ops/sample/sample.c.
 * matrix: */
#include "device/common.cuh"
#include "abi/step.h"
#include "step/best.cuh"

/* One word of the results, by one lane. */
CAIRN_INLINE void tell(const finish_params &p, const int32_t *word) {
    const int64_t at = word - p.results;
    if (p.told) p.told[p.input[STEP_TELLS] * p.told_words + at] = *word;
}
CAIRN_INLINE void tell_words(const finish_params &p, int first, int end) {
    for (int i = first + lane_id(); i < end && p.told; i += WARP) tell(p, p.results + i);
}

/* What no block of this kernel makes: the fault word, and the pages that the kernels before counted. */
CAIRN_INLINE void tell_others(const finish_params &p) {
    tell_words(p, 0, p.rows ? 1 : p.told_words);
    if (p.rows && !p.row_pages) tell_words(p, (int)(p.pages_read - p.results), p.told_words);
}

CAIRN_INLINE void find_best(const finish_params &p) {
    const int32_t token = best_token(p.winners + (int64_t)block_id() * p.blocks, p.blocks);
    if (lane_id() != 0) return;
    p.tokens[block_id()] = token;
    tell(p, p.tokens + block_id());
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
    if (lane_id() != 0) return;
    int32_t *to = p.pages_read + p.input[STEP_HEAD + STEP_SEQUENCE * p.capacity + row];
    *to = count;
    tell(p, to);
}

CAIRN_KERNEL(step_finish, 32, 1, finish_params) {
    grid_dependency_wait();
    if (block_id() < p.rows) find_best(p);
    else if (p.row_pages) count_pages(p, block_id() - p.rows);
    if (block_id() == 0) tell_others(p);
}
