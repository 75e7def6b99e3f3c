/* engine: sessions on a model: their tokens, the steps that make the next ones, and the text of
 * them. It hands batches of rows to a backend (forward/forward.h) and keeps what a sequence leaves
 * behind by the contract of pages/state.h; it knows neither kernels nor what a page holds.
 *
 * Invariants of a session between calls:
 *   tokens [0, count) are the sequence; its state stands for [0, cached), and cached < count unless
 *   the sequence is empty: the last token is always left for the next step, which needs its logits;
 *   fresh tokens are what the model said after `count`; those that were drafts are cached already;
 *   the bounds of pages [0, bounded) are stored, all of tokens < cached;
 *   a token runs as prompt (it attends all) when it came from the caller, or when the token after
 *   it did: what waits for the next step rides along with the prompt that follows. All others run
 *   as step. `given`, a bit for each token, says so of every token, and of the last one how it will
 *   run, wherever the sequence is cut, forked, saved or loaded. Where the state could only be cut
 *   further back than was asked for, tokens [cached, count - 1) run again so;
 *   tokens [0, pure) ran as prompt, from the beginning on, and so would run again in any session:
 *   their whole pages may stand in the model's prefix cache, `held` of them locked.
 * All these count tokens of the caller's; where there are landmarks the state holds more (landmarks.c).
 *
 * What calls want of sessions are requests: an append, or a generation, which is pulled (blocking
 * calls take its tokens) or was submitted (the loop takes them). One loop serves all of a model
 * (loop.c): from the requests that want something it plans a forward, which may stay in flight
 * between calls. A session in flight is as before the forward until that has landed; what changes
 * such a session gives the forward up first (engine_withdraw). */

enum {
    ENGINE_ROWS = DRAFTER_MOST + 1, /* rows of a decode step at most */
    ENGINE_STOPS = 16,
    ENGINE_STOP_BYTES = 128
};

/* What a generation was asked for; what is not set comes from the config at every step. */
typedef struct engine_options {
    int max_tokens; /* 0: to the end of the context */
    int priority;   /* higher goes first */
    int first_token_ms; /* 0: when it may be */
    bool special; /* the prompt's special-token text becomes tokens */
    bool keep_stop; /* ids of a stop string stay in the session */
    bool has_sampling, has_stops, plain; /* plain: no drafts (more), see engine_take_part */
    const char *grammar, *json_schema; /* the caller's, while its call begins; NULL: none */
    const cairn_logit_bias *bias;      /* the same */
    int bias_count;
    int grammar_from;    /* 0: behind the prompt */
    int logprobs;        /* 0: none are wanted */
    cairn_sampling sampling;
    int stop_count;
    char stops[ENGINE_STOPS][ENGINE_STOP_BYTES];
} engine_options;

/* The session's first `count` ids end where the generated text has `end` bytes, with no character
 * unfinished. */
typedef struct engine_point { int64_t end; int count; } engine_point;

/* Forwards that any of the rows had a part in that a call generates together. */
typedef struct engine_tally { int64_t forwards, turn; } engine_tally;

struct cairn_session { /* all of it private below: other rooms use the calls of runtime.h */
    cairn_model *model;
    cairn_session *next; /* of model->sessions */
    int row;             /* of the model's page tables, and of every kind of state */
    cairn_adapter *adapter; /* that its tokens run by, or NULL */
    int count, cached, bounded, pure;
    int bounds_version;  /* of the model, that the stored bounds are of */
    uint64_t space;      /* of the prefix cache, that they ran in */
    int held_pages;
    prefix_node *held;   /* the last node of those pages, locked, or NULL */
    bool apart;          /* takes nothing from the prefix cache and gives nothing */
    int32_t *tokens;     /* [max_seq_len] */
    uint8_t *given;      /* [engine_given_bytes(max_seq_len)] bits: the token came from the caller */
    forward_rule rule;   /* of the step in progress, from the config */
    int32_t *chosen;     /* [layers, KV heads, chosen_step] of the last step, see forward_sequence */
    int chosen_step;     /* 0: there is none */
    bool watched;        /* somebody asks for them */
    struct drafter drafter; /* opened on first use */
    int32_t ahead[DRAFTER_MOST]; /* drafted from masks: what may follow `ahead_at` tokens, */
    int ahead_count, ahead_at;
    int32_t ahead_last;  /* the last of which was this one */
    bool ahead_drawn;    /* from ahead_probs; else they are the likeliest */
    float *ahead_probs;  /* [DRAFTER_MOST, vocab], once drafts are drawn */
    cairn_session *shadow; /* on the model that drafts, outside its list: this one's first `agreed` */
    int agreed;          /* tokens, then what was drafted; opened on first use, see draft.c */
    cairn_session *of;   /* whose shadow it is; or NULL */
    int wanted, wanted_at; /* how many tokens it is to draft behind so many */
    struct pace pace;
    os_atomic cancel;
    bool busy;           /* inside a call: what its callback must not enter */
    bool closing;        /* closed inside that call: it goes when the call has ended */
    bool generating;     /* tokens are still to come, or to be pulled */
    engine_phase phase;
    bool appending;      /* the request is an append */
    bool pulled;         /* blocking calls take its tokens */
    bool wants;          /* the loop is to work on it: always, or until the call has what it needs */
    bool submitted;      /* its last piece was not polled yet */
    bool flying;         /* has a part in the forward in flight */
    bool starved;        /* found no free pages when it was last its turn */
    bool aside;          /* gave its pages to others, and computes its state anew */
    tokenizer_ids waiting; /* ids to be added, while the phase is WAITS */
    int held_before, cached_before; /* the sequence before the request */
    int32_t last_id;     /* taken since the last poll, or -1 */
    int64_t ticket;      /* of its request: requests in their order */
    int64_t wanted_us;   /* when its first token is; INT64_MAX: when it may be */
    int64_t asked_us;    /* when it came, while its first token is to be measured; else 0 */
    bool measured;       /* the profile counts its steps */
    int64_t turn;        /* of the model's loop that last looked at it */
    int64_t served;      /* and that last let it make a token */
    engine_tally *tally; /* or NULL */
    cairn_status outcome; /* of the submitted request */
    os_atomic status_guard; /* held while `status` and `error` are written or copied */
    cairn_status status; /* of the request, or of the last call that failed since */
    char error[BASE_ERROR_BYTES]; /* the message of it */
    int32_t fresh[ENGINE_ROWS];
    int fresh_count, fresh_at;
    engine_options options;
    grammar *constraint; /* of the generation, or NULL */
    int grammar_from;    /* its text is of the ids from here on */
    grammar_place place; /* after some of them */
    cairn_logit_bias *bias; /* [bias_count] of the generation */
    int bias_count;
    cairn_logprob *row_logprobs; /* [ENGINE_ROWS, 1 + row_best] of the step in progress, or NULL */
    int row_best;
    const uint32_t *masks[ENGINE_ROWS]; /* of the step in progress: tokens that its rows may draw */
    tokenizer_stream stream;
    base_text text;      /* generated and not handed out, then what the last piece handed out */
    base_text logprobs, polled_logprobs; /* bytes of cairn_logprob of ids not handed out, or polled */
    base_text polled;    /* of the last poll's piece, which the loop leaves alone */
    size_t handed;       /* bytes at the start of `text` that were handed out */
    int64_t dropped;     /* bytes of this generation that were handed out before those */
    engine_point points[ENGINE_POINTS]; /* ascending, of what may still be cut or covered */
    int point_count;
    cairn_stats stats;
    int from_prompt;     /* ids that came from the prompt's own forward: 0 or 1 */
    int appended;        /* prompt tokens since the last generation began, and their seconds */
    int reused;          /* of these from the prefix cache */
    double append_seconds;
    double pages_read, pages_held; /* sums over the forwards after the prompt */
};

/* cairn_generate_begin for a prompt of `bytes` bytes, which may hold NUL. */
static cairn_status engine_generate_begin(cairn_session *session, const char *prompt, size_t bytes,
                                          const cairn_generate_options *options);
/* cairn_generate_submit in the same way. */
static cairn_status engine_submit(cairn_session *session, const char *prompt, size_t bytes,
                                  const cairn_generate_options *options);
/* The adapter of the session's tokens; a gated one is the masks' alone. */
static const cairn_adapter *engine_adapter(const cairn_session *s);
/* Starts the worker, if the config wants one; nothing stands on failure. */
static cairn_status worker_start(cairn_runtime *rt);
/* Returns when it has ended: what it had begun stays in flight. No call runs. */
static void worker_stop(cairn_runtime *rt);
/* Whether a load or a call on a session of the runtime runs: we are inside its callback. */
static bool engine_is_any_busy(cairn_runtime *rt);
