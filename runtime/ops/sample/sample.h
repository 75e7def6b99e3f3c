/* sample: the next token from a row of logits.
 *
 * Order: repetition penalty, temperature, top_k, top_p, min_p, draw. What is kept is always
 * "every token at least as likely as a threshold", so ties are kept and no sort is needed; a
 * token is drawn by the inverse of the cumulative distribution over ascending ids with a uniform
 * number from Philox (seed, position). The same logits, parameters and position give the same
 * token whatever was drafted or sampled before. A NaN ranks as -inf. sample.c is the CPU's,
 * call.c has the entries and the launches. */

typedef struct sample_params {
    float temperature;        /* 0: the most likely token, lowest id among equals */
    int top_k;                /* 0: all */
    float top_p;              /* 1 (or 0): all */
    float min_p;              /* 0: all */
    bool top_p_first;         /* top_p over the whole vocabulary rather than over the top_k */
    float repetition_penalty; /* 1: none */
    uint64_t seed;
} sample_params;

/* The token at logical position `position` of its sequence, from logits [vocab] to which the
 * repetition penalty was applied already. scratch: sample_scratch_bytes(vocab), 4-byte aligned. */
static int32_t sample_token(const sample_params *p, const float *logits, int vocab,
                            int64_t position, void *scratch);
/* Scratch for one row of sample_token. */
static size_t sample_scratch_bytes(int vocab);
/* Divides the positive and multiplies the negative logits of the tokens of `sequence`, each once.
 * seen: vocab bits of scratch. */
static void sample_penalize(float *logits, int vocab, const int32_t *sequence, int64_t count,
                            float penalty, uint8_t *seen);

/* Whether sample/few.cu is for these: the rest takes several passes over a row. */
static bool ops_sample_is_few(const sample_params *p, int64_t vocab);
/* The tokens of `rows` rows of logits on the device, where few can be it; row r stands at position
 * first + r of its sequence. For the engine, which has no tensors. */
static cairn_status ops_sample_device(cairn_runtime *rt, const sample_params *rule,
                                      const float *logits, int rows, int vocab, int32_t first,
                                      int32_t *tokens);
