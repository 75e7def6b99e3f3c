/* step: what stands in a forward of a model's sessions while it is in flight, and what forwards cost.
 * See step.c and loop.c. */

enum {
    ENGINE_COSTS = 16, /* powers of two of rows whose cost is measured */
    ENGINE_SWAPS = 16, /* tokens that the budget swaps at most */
    ENGINE_LEAST_ROWS = 8, /* of a slice of a prompt */
    ENGINE_LEFT_ROWS = 64, /* that an append leaves, where more rows of a forward cost a device next to nothing */
    ENGINE_EVAL_ROWS = MODEL_EVAL_ROWS,
    ENGINE_FIRST_ROWS = 4, /* of the page tables, before sessions ask for more */
    ENGINE_LOGPROBS = 32,  /* of the best tokens, at most */
    ENGINE_POINTS = 192,   /* more than bytes are held back as a stop string's beginning */
    ENGINE_HEED_US = 8000 /* a forward looks about so often: for a cancel, and whether time is over */
};
#define ENGINE_NO_LIMIT 1e12 /* us */

/* Of a session's request. WAITS: its ids are not the session's yet. PROMPT: they are, and are being
 * processed. SAYS: tokens are made. */
typedef enum engine_phase { ENGINE_IDLE, ENGINE_WAITS, ENGINE_PROMPT, ENGINE_SAYS } engine_phase;

/* What one session does in one forward. */
typedef struct engine_part {
    cairn_session *s;
    forward_kind kind;
    int rows;    /* tokens from s->cached on */
    int sampled; /* of the last rows the tokens after them are drawn */
    int drafts;  /* of the last rows */
    int masks;   /* rows of mask tokens behind each of the sampled ones: they draft what follows; their
                    hidden rows come to `hidden` */
    int short_by; /* fewer of them behind the last */
    int says;     /* tokens that its session may still say by steps like this one; 0: others may follow */
    bool chained; /* the drafts were drawn, and may be verified by what from */
    float *hidden;
    float *target; /* [sampled, vocab] logits, where the drafts are verified by what they were drawn from;
                      else NULL */
    float *logits; /* eval: [rows, vocab] of all rows; of one part in a batch at most */
    int32_t *tokens; /* out: [sampled] certain up to the first that is not the draft */
    int64_t pages_read;    /* out */
} engine_part;

/* For drafts that were drawn, once there are any: logits of rows, the probabilities that they are of, and
 * memory for both. */
typedef struct engine_chain {
    int rows;       /* of logits, in the forward in flight */
    float *logits;  /* [ENGINE_ROWS, vocab] */
    float *target;  /* [ENGINE_ROWS, vocab] */
    void *memory;
    sample_space space;
} engine_chain;

/* Host memory of a model that its sessions use in turn. */
typedef struct engine_scratch {
    int rows, sequences; /* of a forward at most */
    int asks_count;      /* how many `asks` and `sampled` hold */
    forward_row *row;            /* [rows] */
    forward_sequence *sequence;  /* [sequences] */
    sample_ask *asks;            /* [asks_count] */
    int32_t *sampled;            /* [asks_count] */
    int32_t *page_ids;           /* [pages of a sequence] */
    float *hidden;               /* [rows, the model's hidden], once something drafts from masks */
    engine_chain chain;
    int32_t *filled;             /* [max_seq_len], once an adapter has landmarks */
    /* the forward in flight, of parts [part_count]; 0: there is none */
    int hidden_rows;             /* of `hidden`, so far */
    engine_part *parts;          /* [sequences] */
    int part_count, draws;
    bool begun;                  /* by the backend */
    int total, left;             /* its parts then, and how many of them are left */
    forward_batch batch;
    int64_t flight_us;           /* worked on it so far */
    /* the loop */
    int64_t turn, tickets;
    int64_t held_us;             /* since when prompts wait for others to share a forward with; 0: none does */
    struct engine_profile *profile; /* that is taken, or NULL; see profile.c */
    os_atomic stepping;          /* a thread is inside cairn_step */
    double cost_us[ENGINE_COSTS]; /* of a layer of 2^i rows and more, or of a forward where it runs in
                                     one go; 0: unknown */
    double draw_us;              /* of a row's draw */
    double head_us;              /* of a token that the sampler head drafts */
    struct pace pace;            /* as the last step that could draft from masks left it */
    const cairn_adapter *pace_of; /* whose drafts, or NULL */
    cairn_budget budget;         /* that `swap` is of */
    sample_swap swap;
    int32_t swap_from[ENGINE_SWAPS], swap_to[ENGINE_SWAPS];
} engine_scratch;
