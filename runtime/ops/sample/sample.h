/* sample: the next token from a row of logits.
 *
 * Order: repetition penalty, temperature, top_k, top_p, min_p, draw. What is kept is always
 * "every token at least as likely as a threshold", so ties are kept and no sort is needed; a
 * token is drawn by the inverse of the cumulative distribution over ascending ids with a uniform
 * number from Philox (seed, position). The same logits, parameters and position give the same
 * token whatever was drafted or sampled before. A NaN ranks as -inf. sample.c is the CPU's,
 * rows.c decides who draws and launches, call.c has the entries. */

typedef struct sample_params {
    float temperature;        /* 0: the most likely token, lowest id among equals */
    int top_k;                /* 0: all */
    float top_p;              /* 1 (or 0): all */
    float min_p;              /* 0: all */
    bool top_p_first;         /* top_p over the whole vocabulary rather than over the top_k */
    float repetition_penalty; /* 1: none */
    uint64_t seed;
} sample_params;

/* Tokens `from` that are not said: one of `to` takes their place, by the seed and the position. */
typedef struct sample_swap { const int32_t *from, *to; int from_count, to_count; } sample_swap;

/* One row that is asked for. */
typedef struct sample_ask {
    sample_params params;
    int64_t position;       /* of the token to come, in its sequence */
    const int32_t *history; /* [history_count] host: the sequence before it, for the penalty */
    int64_t history_count;
    int32_t expected;       /* the draft that stands there, or -1 */
    bool chained;           /* wanted only if the row before came out as its draft: else -1, or
                               any token */
    const uint32_t *mask;   /* host: a bit for each token that may be drawn; NULL: all may */
    const cairn_logit_bias *bias; /* [bias_count] host: of valid ids, added before all else */
    int bias_count;
    const sample_swap *swap;      /* or NULL */
    cairn_logprob *logprobs;      /* host, out: [1 + best] of the token, then of the best; or NULL */
    int best;
} sample_ask;

/* Memory for sampling: all there once open, so that no call allocates. */
typedef struct sample_space {
    /* private below */
    int vocab, rows;    /* of a call, at most */
    float *row;         /* [vocab] */
    void *scratch;      /* sample_scratch_bytes */
    uint8_t *seen;      /* [vocab] bits */
    sample_rule *rules; /* [rows] host */
    void *device_rules; /* [rows] device; NULL on the CPU */
    uint32_t *device_masks; /* [rows, sample_mask_words] device */
} sample_space;

/* In memory of sample_space_bytes, 4-byte aligned, which the caller frees. */
static void sample_space_place(void *memory, int vocab, sample_space *x);
static size_t sample_space_bytes(int vocab);
/* For calls of up to `rows` rows whose logits are on the GPU: as many rules there, and here, and as
 * many masks there. */
static void sample_space_add_rules(sample_space *x, int rows, sample_rule *host, void *on_device,
                                   uint32_t *masks);
/* What draws rows by these parameters begins to be compiled, so that no step waits for it; for rows
 * with masks it is loaded, too. [blocks: with masks] */
static cairn_status sample_prepare(cairn_runtime *rt, const sample_params *params, int vocab,
                                   bool masks);
/* Words of a mask. */
static size_t sample_mask_words(int vocab);

/* Whether a logit is a number, of those that the mask lets through (NULL: all). */
static bool sample_has_number(const float *logits, const uint32_t *mask, int vocab);
/* Row i of those asked for, in their order, from its logits [vocab] in host memory; its token is
 * CAIRN_SAMPLE_NO_NUMBER where none of those that may be drawn is a number. */
static void sample_row_host(sample_space *x, const float *logits, const sample_ask *const *asks,
                            int i, int32_t *out);
/* Whether the device draws its token, and the host adds nothing. */
static bool sample_is_drawn(const sample_ask *ask, int vocab);
/* Whether its token is the best one of its logits. */
static bool sample_takes_best(const sample_ask *ask, int vocab);
/* Begins to draw what the GPU draws, from logits [rows, vocab] there to `tokens` [rows] there, which
 * hold the best token of each row already. asks[i] NULL: row i is not asked for. */
static cairn_status sample_rows_begin(cairn_runtime *rt, sample_space *x, const float *logits,
                                      const sample_ask *const *asks, int rows, int32_t *tokens);
/* What a row's token is drawn from, to out [vocab]: see cairn_sample_probs. */
static void ops_probs_row(sample_space *x, const sample_ask *ask, const float *logits, float *out);
/* The same, and a draft drawn from it: by other numbers than those of the token at its position. */
static int32_t ops_probs_guess(sample_space *x, const sample_ask *ask, const float *logits, float *out);
/* The lowest id of the greatest; 0 where none is above -inf. */
static int32_t sample_argmax(const float *logits, int vocab);
/* Verifies sequence s, see cairn_verify_chain; false: a draft, *wrong, is no id. */
static bool ops_probs_chain(const verify_chain_params *p, int64_t s, int64_t *wrong);
/* Ends it: out [rows] hold what the GPU drew; the rows that it left are drawn here. As sample_row_host says. */
static cairn_status sample_rows_end(cairn_runtime *rt, sample_space *x, const float *logits,
                                    const sample_ask *const *asks, int rows, int32_t *out);
