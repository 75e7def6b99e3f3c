/* abi: the parameters of kernels in sample/ (see abi.h). */
#ifndef CAIRN_ABI_SAMPLE_H
#define CAIRN_ABI_SAMPLE_H
#ifndef CAIRN_ABI_H /* which includes all in order */
#include "abi/base.h"
#endif

/* sample*.cu */
enum { CAIRN_SAMPLE_PART = 1022 };
typedef struct sample_part { /* what one block of sample_few found */
    uint32_t count;          /* of ranks, or more than they are */
    uint32_t edge;           /* key: every logit of the slice that reaches it is listed */
    uint64_t ranks[CAIRN_SAMPLE_PART]; /* key of the penalized logit << 32 | ~id */
} sample_part;

/* What one row is sampled by, where rows differ. */
typedef struct sample_rule {
    int64_t seed;
    int32_t position, top_k;
    float temperature, top_p, min_p;
    int32_t skip; /* bits of CAIRN_SAMPLE_SKIP */
} sample_rule;

enum { CAIRN_SAMPLE_SKIP = 1 /* nothing is written for this row */,
       CAIRN_SAMPLE_UNMASKED = 2 /* it has no mask, though others have */,
       CAIRN_SAMPLE_WIDE = 4 /* sample_wide's, and only its */,
       CAIRN_SAMPLE_TOP_P_FIRST = 8 /* sample_wide: top_p over the whole vocabulary */ };

/* In place of a row's token where rows have rules (others' is the lowest that may be drawn): of the
 * logits that may be drawn none is a number. -1 is that of a row that is not wanted. */
enum { CAIRN_SAMPLE_NO_NUMBER = -2 };

typedef struct sample_kernel_params {
    const float *logits;      /* [rows, vocab] */
    const int64_t *seeds;     /* [rows] or NULL: seed */
    const int32_t *positions; /* [rows] or NULL: 0 */
    const int32_t *history;   /* [rows, history_count], -1 padded, or NULL */
    int32_t *tokens;          /* [rows] */
    int64_t seed;
    int32_t vocab, history_count, top_k, top_p_first;
    float temperature, top_p, min_p, repetition_penalty;
    int32_t position_first, position_step; /* row r: + first + r * step */
    const sample_rule *rules; /* [rows] in place of seed to min_p and positions, or NULL */
    sample_part *parts; /* sample_few: [rows, parts of a row] */
    uint32_t *arrived;  /* sample_few: [rows], zero before and after */
#if !defined(CAIRN_MASKS) || CAIRN_MASKS /* the host, and kernels that read them */
    const uint32_t *masks; /* [rows, words of vocab bits] of the tokens that may be
                              drawn, or NULL */
    /* [rows] in place of the numbers for all rows, or NULL */
    const float *temperatures, *top_ps, *min_ps, *penalties;
    const int32_t *top_ks;
#endif
} sample_kernel_params;

typedef struct sample_logprobs_params {
    const float *logits;   /* [rows, vocab] */
    const int32_t *tokens; /* [rows] */
    float *logprobs;       /* [rows, 1 + count] of the token, then of the best */
    int32_t *best;         /* [rows, count] */
    int32_t vocab, count;
} sample_logprobs_params;

#if !defined(CAIRN_MASKS) || CAIRN_MASKS
typedef struct sample_probs_params {
    sample_kernel_params rows; /* no tokens */
    float *probs;              /* [rows, vocab] */
} sample_probs_params;
#endif

typedef struct verify_chain_params {
    const float *draft_probs; /* [sequences, drafts, vocab] or NULL: 1 at the draft */
    const float *target;      /* [sequences, drafts + 1, vocab] */
    const int32_t *drafts;    /* [sequences, drafts] */
    const int64_t *seeds;     /* [sequences] or NULL: 0 */
    const int32_t *positions; /* [sequences] of the first draft, or NULL: 0 */
    int32_t *tokens;          /* [sequences, drafts + 1] */
    int32_t *accepted;        /* [sequences] */
    int32_t *bonus;           /* [sequences] */
    cairn_error_word *error;
    int32_t drafts_count, vocab;
} verify_chain_params;

typedef struct verify_greedy_params {
    const float *logits;   /* [sequences, drafts + 1, vocab] */
    const int32_t *drafts; /* [sequences, drafts] */
    int32_t *accepted;     /* [sequences] */
    int32_t *bonus;        /* [sequences] */
    int32_t drafts_count, vocab;
} verify_greedy_params;

#endif
