/* sample_probs: the probabilities that sample/wide.cu draws from, and chain verification of drafts.
 *
 * sample_probs  what the cuts leave of each row, by the same code, to a sum of 1; 0 elsewhere.
 * verify_chain  a draft d stays while u q(d) < p(d), p the target's probabilities, q the drafter's (1
 *               where none are given). At the first that does not, a token is drawn from what p has
 *               above q; of weights that are whole numbers of 2^-40, so that sums are exact.
 * Launch        sample_probs: grid rows, block 1024, shared 16896 bytes, + vocab / 8 with a history.
 *               verify_chain: grid sequences, block 1024, shared 512 bytes
 * matrix: */
#include "device/common.cuh"
#define CAIRN_MASKS 1
#include "abi/sample.h"
#define THREADS 1024
#include "sample/sample.cuh"

CAIRN_KERNEL(sample_probs, THREADS, 1, sample_probs_params) {
    uint64_t *bins = (uint64_t *)shared_base(), *scratch = bins + BINS;
    const row_cut c = cut_row(row_params(p.rows, block_id()), block_id(),
                              (uint32_t *)(scratch + 64), bins, scratch);
    const int vocab = c.row.vocab;
    float *out = p.probs + (int64_t)block_id() * vocab;
    if (!c.drawn) {
        for (int i = thread_id(); i < vocab; i += THREADS) out[i] = i == c.token ? 1.0f : 0.0f;
        return;
    }
    const double all = (double)mass_from(c.row, c.least, scratch); /* 2^40 or more: the best is in */
    for (int i = thread_id(); i < vocab; i += THREADS)
        out[i] = (float)((double)weight_at(c.row, i, vocab, c.least) / all);
}

/* What the target's probability is above the drafter's; q NULL: that of `draft` is 1. */
CAIRN_INLINE uint64_t residual(const float *target, const float *q, int draft, int i) {
    const float mine = q ? q[i] : i == draft ? 1.0f : 0.0f;
    const float over = add_f32(target[i], -(mine > 0.0f ? mine : 0.0f));
    return over > 0.0f ? (uint64_t)(min_of(over, 1.0f) * 1099511627776.0f) : 0;
}

CAIRN_KERNEL(verify_chain, THREADS, 1, verify_chain_params) {
    uint64_t *scratch = (uint64_t *)shared_base();
    const int s = block_id(), count = p.drafts_count, vocab = p.vocab;
    const int32_t *drafts = p.drafts + (int64_t)s * count;
    const float *target = p.target + (int64_t)s * (count + 1) * vocab;
    const uint64_t seed = p.seeds ? (uint64_t)p.seeds[s] : 0;
    const uint32_t position = p.positions ? (uint32_t)p.positions[s] : 0;
    const float *q = nullptr;
    int draft = -1, at = 0;
    for (; at < count; at++, target += vocab) {
        draft = drafts[at];
        if (draft < 0 || draft >= vocab) {
            if (thread_id() == 0) report_error(p.error, CAIRN_FAULT_ID, s, draft);
            draft = -1;
            break;
        }
        if (p.draft_probs) q = p.draft_probs + ((int64_t)s * count + at) * vocab;
        const float u = unit_of(philox<1>(seed, position + (uint32_t)at));
        if (!(mul_f32(u, q ? q[draft] : 1.0f) < target[draft])) break;
        draft = -1;
    }
    if (draft < 0) q = nullptr;
    uint64_t best = 0;
    for (int i = thread_id(); i < vocab; i += THREADS) best = max_of(best, rank(target[i], i));
    best = block_best(best, scratch);
    const int top = best >> 32 > 0x007fffffu ? (int)~(uint32_t)best : 0; /* nothing above -inf: 0 */
    const int bonus = draw_by(
        vocab, [&](int i, int end) { return i < end ? residual(target, q, draft, i) : 0; },
        unit_of(philox(seed, position + (uint32_t)at)), top, scratch);
    int32_t *tokens = p.tokens + (int64_t)s * (count + 1);
    for (int i = thread_id(); i <= count; i += THREADS)
        tokens[i] = i < at ? drafts[i] : i == at ? bonus : -1;
    if (thread_id() == 0) p.accepted[s] = at, p.bonus[s] = bonus;
}
