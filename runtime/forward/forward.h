/* forward: one pass of a model over a batch of rows, and the backends that can make it.
 *
 * A batch is rows of several sequences: chunks of prompts, decode steps, steps with their drafts,
 * side by side. A forward appends the keys and values of all rows, then each row attends what its
 * kind and its sequence's rule let it see.
 *
 * What a row gives depends on its sequence, its kind and the rule alone: not on the rows beside it,
 * nor on how a prompt was cut, nor on threads or the run. So the form of a product follows from
 * the row's kind and the weight's shape, never from how many rows share it; keys are cut by the
 * row's own length. Backends read no config for any of this: the engine hands them the rule. */

/* FORWARD_PROMPT: attends all before it, by the products that serve many rows. FORWARD_STEP: attends
 * as its sequence's rule says, by those that serve few. */
typedef enum forward_kind { FORWARD_PROMPT, FORWARD_STEP } forward_kind;

/* In the layers of `layers` step rows choose pages by `select`, in the others they attend all. */
typedef struct forward_rule {
    select_rule select;
    uint64_t layers[CAIRN_MAX_LAYERS / 64];
    bool two_level; /* else flat */
    bool apart;     /* window and pages are two attentions, which are added */
    bool prompts;   /* prompt rows choose like step rows */
} forward_rule;

typedef struct forward_row {
    int32_t token;
    int32_t position; /* of its key and value in the cache: 1 behind that of the row before it */
    int32_t rope;     /* the position by which its query and key turn, below max_seq_len */
    forward_kind kind;
    bool logits;      /* are wanted */
    bool hidden;      /* its last hidden state is, behind the output norm */
    const sample_ask *sample; /* the token after it is wanted; or NULL */
    const float *embedding;   /* [hidden], in place of the token's; or NULL */
    /* Above 0: the row sees the tokens before `seen` and, of the rows up to itself, the last `own`, or of
     * these those whose bit is set in `mask` (bit i % 8 of byte i / 8, the first of them bit 0): a row
     * that drafts, or a tree's. */
    int seen, own;
    const uint8_t *mask; /* or NULL: all `own` */
    const cairn_adapter *adapter; /* adds to its products, one that the backend took in; or NULL */
} forward_row;

typedef struct forward_sequence {
    int table;       /* row of the page tables, which have its pages; no other sequence's */
    int first, rows; /* of batch.rows: those of all sequences follow one another */
    /* bounded <= stored: pages whose bounds are in memory already, and pages that are complete with
     * accepted tokens. Where there is a rule the forward stores the bounds of pages [bounded,
     * stored) before its rows attend; sequences that share pages have rules of one source. */
    int bounded, stored;
    const forward_rule *rule; /* NULL: step rows attend all, no bounds are stored */
    bool landmarks; /* the last slot of each page is a landmark's: no row sees it in the layers of the
                       rule, but for those with a window of their own */
    int32_t *chosen; /* NULL, or out [layers, kv_heads, chosen_step], all -1 before: of the first row, if
                        it is a step's, how many pages it chose and which; -1 where it attends all */
    int chosen_step;
    bool continues; /* see forward_batch */
    int64_t pages_read; /* out, added to: the distinct pages that its step rows attended, summed over
                           layers and KV heads */
} forward_sequence;

typedef struct forward_batch {
    page_tables *tables; /* what is new in the rows of `sequences` is checked, and settled */
    int sequence_count, row_count;
    forward_sequence *sequences;
    const forward_row *rows;
    float *logits;    /* host [rows that want them, vocab], in their order */
    float *hidden;    /* host [rows with `hidden`, hidden], in their order */
    bool drafts;      /* `hidden` is for `draft` alone: a backend may keep it on its side */
    bool continues;   /* the next forward is likely to be of those sequences that continue, but for some whose text
                         ends, each with the token drawn here and, where it drafts, with as many drafts and masks: a
                         backend may begin it. What it writes lies at and behind the first row's position */
    int64_t took_us;  /* out: what the device took, where it had begun before the call; else 0 */
    bool prepared;    /* out: something was made ready that later forwards find: what this one took says
                         nothing of them */
    os_atomic *heat;  /* NULL, or out [layers, KV heads], added to: the pages of pages_read */
    int32_t *sampled; /* host [rows with `sample`], in their order; see sample_ask.chained */
} forward_batch;

/* What a backend gives to the engine. `open` may prepare scratch and kernels in model->state. */
typedef struct model_backend {
    /* NULL, or: begins what needs the model's plan alone, for open to go on with. */
    cairn_status (*begin_open)(cairn_model *model, int max_rows);
    cairn_status (*open)(cairn_model *model, int max_rows); /* of any batch to come. [blocks] */
    void (*close)(cairn_model *model); /* also after a failed open */
    /* Up to max_batch sequences. On failure nothing that a later forward relies on has changed but
     * slots at and behind the rows' positions. */
    cairn_status (*forward)(cairn_model *model, kv_cache *kv, forward_batch *batch);
    float row_cost; /* of one more row in a decode step, in plain steps */
    int few_rows;   /* rows from which on it is more; 0: there is no such number */
    /* NULL, or: whether the model can run with another config. Begins to compile what is missing
     * and returns CAIRN_BUSY until it is there. */
    cairn_status (*prepare)(cairn_model *model, const cairn_config *config);
    bool copies; /* holds the weights in a form of its own once open: it reads no view after that */
    /* NULL, or: waits for what open left to be compiled in the background. [blocks] */
    cairn_status (*wait)(cairn_model *model);
    /* NULL: nothing, or: what open will take, by the arithmetic of open. The device is asked for
     * its shape alone; *out is zero before. */
    cairn_status (*estimate)(cairn_model *model, int max_rows, model_memory *out);
    /* NULL: forwards run in one go, by `forward`. Or: begins one, with the promises of `forward`; the
     * batch and all it points to stand until `advance` says that it is done, or until it is given up,
     * which leaves what a failed one leaves. */
    cairn_status (*begin)(cairn_model *model, kv_cache *kv, forward_batch *batch);
    /* Runs up to `parts` parts of what was begun: first the layers, each a part, then pieces of the
     * head, then each row's draw. Returns how many are left; 0: it is done. */
    int (*advance)(cairn_model *model, int parts);
    /* In place of advance, where another device computes what was begun: enqueues what can be, for as long
     * as a call may take, up to so many layers before the device has come past them, and takes what
     * it left. *done: all of it, and took_us is what the device took for it, 0: it is not known; before,
     * took_us < 0: there is more to enqueue. Never waits. After a failure the forward is over, as a failed one. */
    cairn_status (*poll)(cairn_model *model, int layers, bool *done, int64_t *took_us);
    /* Makes ready for rows with the adapter, whose slot is no other's; nothing changed on failure.
     * No forward runs. [blocks] */
    cairn_status (*take_adapter)(cairn_model *model, cairn_adapter *adapter);
    void (*leave_adapter)(cairn_model *model, cairn_adapter *adapter);
    /* What a gated adapter's sampler head says after `token`: `count` tokens, each from its
     * row of hidden [count, hidden] and the token before it. ask NULL: the likeliest. Or: drawn by its
     * parameters and its position, which is the first one's, and out in probs [count, vocab] from what.
     * `hidden` is where the last forward with `drafts` was to leave it. Runs as a forward does. */
    cairn_status (*draft)(cairn_model *model, const cairn_adapter *adapter, const float *hidden,
                          int32_t token, int count, const sample_ask *ask, float *probs, int32_t *out);
    /* NULL: forwards hand out what is chosen. Or: they do from this call on. No forward runs. [blocks] */
    cairn_status (*watch)(cairn_model *model);
    /* What take_adapter takes of the device, for the model's first with what all of them share, beside
     * rows of up to so many. */
    uint64_t (*adapter_bytes)(const cairn_model *model, const cairn_adapter *adapter, bool first,
                              int max_rows);
} model_backend;

/* static model_backend forward_cpu_backend: the CPU's (cpu.c). */
/* static model_backend forward_cuda_backend: the GPU's (cuda_run.c). */

/* A config's rule. False: no layer chooses, there is none. */
static bool forward_rule_of(const cairn_config *config, int page_size, int layers,
                            forward_rule *rule);
