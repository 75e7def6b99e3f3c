/* sample: what stands beside the samplers (sample/few.cu, sample/wide.cu): logarithms of
 * probabilities, and greedy verification of drafts.
 *
 * sample_logprobs  the log of the softmax of a row's logits, of its token and of the best.
 * verify_greedy  per sequence the drafts that equal the row before's argmax, and what follows them.
 * Launch         verify_greedy: grid sequences, block 1024, shared 512 bytes
 *                sample_logprobs: grid rows, block 1024, shared 512 bytes
 * matrix: */
#include "device/common.cuh"
#define CAIRN_MASKS 0
#include "abi/sample.h"
#define THREADS 1024
#include "sample/sample.cuh"

CAIRN_INLINE float logprob(float logit, float top, float all) {
    return logit > minus_infinity() ? add_f32(logit, -top) - all : minus_infinity();
}

CAIRN_KERNEL(sample_logprobs, THREADS, 1, sample_logprobs_params) {
    uint64_t *scratch = (uint64_t *)shared_base(), best = ~(uint64_t)0, sum = 0;
    const int64_t r = block_id();
    const float *logits = p.logits + r * p.vocab;
    float top = 0.0f, all = 0.0f;
    for (int n = 0; n <= max_of(p.count - 1, 0); n++) {
        uint64_t next = 0;
        for (int i = thread_id(); i < p.vocab; i += THREADS) {
            uint64_t mine = rank(logits[i], i);
            if (mine < best) next = max_of(next, mine);
        }
        best = block_best(next, scratch);
        const int id = (int)~(uint32_t)best;
        if (n == 0) {
            top = logits[id];
            for (int i = thread_id(); i < p.vocab; i += THREADS)
                if (logits[i] <= top) sum += weight(add_f32(logits[i], -top));
            all = log_f32((float)block_sum(sum, scratch) * 9.094947017729282e-13f); /* 2^-40 */
        }
        if (thread_id() == 0 && p.count) {
            p.best[r * p.count + n] = id;
            p.logprobs[r * (1 + p.count) + 1 + n] = logprob(logits[id], top, all);
        }
    }
    if (thread_id() == 0)
        p.logprobs[r * (1 + p.count)] = logprob(logits[p.tokens[r]], top, all);
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
