/* sample: the next token of each row of logits by passes over the row, for any cuts (sample/few.cu
 * is for a small top_k and for greedy), and greedy verification of drafts.
 *
 * verify_greedy  per sequence the drafts that equal the row before's argmax, and what follows them.
 * Launch         sample: grid rows, block 1024, shared 16896 bytes, + vocab / 8 with a history.
 *                verify_greedy: grid sequences, block 1024, shared 512 bytes
 * matrix: | CAIRN_MASKS=1 */
#include "device/common.cuh"
#include "abi/sample.h"
#define THREADS 1024
#include "sample/sample.cuh"

CAIRN_KERNEL(sample, THREADS, 1, sample_kernel_params) {
    uint64_t *bins = (uint64_t *)shared_base(), *scratch = bins + BINS;
    int token = sample_row(p, block_id(), (uint32_t *)(scratch + 64), bins, scratch);
    if (thread_id() == 0) p.tokens[block_id()] = token;
}

CAIRN_KERNEL(verify_greedy, THREADS, 1, verify_greedy_params) {
    uint64_t *scratch = (uint64_t *)shared_base();
    const int s = block_id();
    const int32_t *drafts = p.drafts + (int64_t)s * p.drafts_count;
    for (int j = 0; j <= p.drafts_count; j++) {
        const float *logits = p.logits + ((int64_t)s * (p.drafts_count + 1) + j) * p.vocab;
        uint64_t best = 0;
        for (int i = thread_id(); i < p.vocab; i += THREADS)
            best = max_of(best, rank(logits[i], i));
        best = block_best(best, scratch);
        int token = best >> 32 > 0x007fffffu ? (int)~(uint32_t)best : 0; /* nothing above -inf: 0 */
        if (j < p.drafts_count && drafts[j] == token) continue;
        if (thread_id() == 0) {
            p.accepted[s] = j;
            p.bonus[s] = token;
        }
        return;
    }
}
