/* plan: what a model computes, read from its file once; the walks of the backends interpret it.
 *
 * A family (families/NAME.c) turns the metadata and the tensors of a file into a plan: layers of
 * a mixer and an ffn, weights by role, each in its own block format. Backends ask for roles and
 * never for the names of tensors; one that cannot run what a plan holds refuses it by name at open.
 * Adding a family is a file and a line in model_families; adding a block format is a row in block.c.
 * Weights are host views: bytes as the file holds them, readable while the model is open on the
 * CPU; a backend that keeps its own form (model_backend.copies) fetches them while it opens. */

typedef struct model_weight {
    int type;              /* a block type of block.c */
    int64_t rows, columns; /* rows are outputs; a row's columns are contiguous */
    const uint8_t *data;   /* host, rows * block_row_bytes(columns); NULL: none, or not in memory */
    uint64_t at;           /* of its bytes in the file */
} model_weight;

/* Small tensors that are read as f32, whatever their format in the file. Host memory. */
typedef struct model_vector { const float *values; int64_t count; } model_vector;
typedef enum plan_mixer { PLAN_ATTENTION, PLAN_SHORT_CONV, PLAN_LATENT } plan_mixer;
typedef enum plan_ffn { PLAN_SWIGLU, PLAN_GEGLU } plan_ffn;

typedef enum plan_role {
    PLAN_Q, PLAN_K, PLAN_V, PLAN_O, /* attention: [heads or kv_heads * head_dim, hidden], O back */
    PLAN_CONV_IN,                   /* short conv: [3 * hidden, hidden]: gates in and out, x */
    PLAN_CONV_OUT,                  /* [hidden, hidden] */
    PLAN_GATE, PLAN_UP, PLAN_DOWN,  /* [ffn, hidden] twice, and back; those of all experts */
    PLAN_ROUTER,                    /* [experts, hidden] */
    /* attention by latents: [q_rank, hidden]; [heads * (still + 64), q_rank]; [576, hidden]; of each
     * head [512, still] from a query to the latents, [value, 512] from them; then PLAN_O */
    PLAN_Q_DOWN, PLAN_Q_UP, PLAN_LATENTS, PLAN_TO_LATENT, PLAN_OF_LATENT,
    PLAN_INDEX_Q, PLAN_INDEX_K, PLAN_INDEX_GATE, /* [index_heads * 128, q_rank]; [128, hidden];
                                                    [index_heads, hidden] */
    PLAN_ROLES
} plan_role;

typedef enum plan_part {
    PLAN_MIXER_NORM, PLAN_FFN_NORM, /* [hidden] */
    PLAN_Q_NORM, PLAN_K_NORM,       /* [head_dim], of each head before it turns; or none */
    PLAN_Q_BIAS, PLAN_K_BIAS, PLAN_V_BIAS, /* [heads or kv_heads * head_dim], or none */
    PLAN_MIXER_POST, PLAN_FFN_POST, /* [hidden], of what mixer and ffn add; or none */
    PLAN_CONV_TAPS,                 /* [hidden, shape.conv_taps], the oldest first */
    PLAN_Q_DOWN_NORM, PLAN_LATENT_NORM,    /* [q_rank], [512] */
    PLAN_INDEX_NORM, PLAN_INDEX_BIAS,      /* [128], of the index key's LayerNorm */
    PLAN_PARTS
} plan_part;

typedef struct plan_layer {
    plan_mixer mixer;
    plan_ffn ffn;
    int rope;   /* of plan.ropes; -1: queries and keys do not turn */
    int window; /* tokens that a query sees, itself included, whatever is selected; 0: all */
    int state;  /* which of the layers of its mixer it is: of the KV cache, or of the conv state */
    model_weight weights[PLAN_ROLES]; /* those of its mixer and ffn; others are empty */
    model_vector parts[PLAN_PARTS];
} plan_layer;

/* Which values of a head turn together: 2j and 2j + 1, or j and j + dims / 2. */
typedef enum plan_pairing { PLAN_PAIRS_BESIDE, PLAN_PAIRS_HALVES } plan_pairing;

enum { PLAN_MAX_PAIRS = 128, PLAN_ROPES = 2 };

/* Pair j turns by position * frequency[j]; what scaling a family has is in the numbers. */
typedef struct plan_rope {
    plan_pairing pairing;
    int dims;        /* of a head's values, the first ones, an even number; the others stay */
    float magnitude; /* factor of what has turned */
    double frequency[PLAN_MAX_PAIRS]; /* [dims / 2] */
} plan_rope;

static const char plan_landmark[] = "landmark_embedding"; /* a tensor's name */
typedef struct model_plan {
    int layer_count;
    plan_layer *layers;       /* [layer_count] */
    model_weight embed, head; /* [vocab, hidden]; head is embed's view when they are tied */
    model_vector output_norm, landmark; /* [hidden]; of the token that ends each page, or none */
    float embed_scale;     /* of the embedding's rows; 0: 1 */
    float attention_scale; /* of a query times a key; 0: head_dim^-0.5 */
    plan_rope ropes[PLAN_ROPES];
    bool long_rope; /* max_seq_len chose the turns for long contexts: keys are others */
    uint64_t parameters, weight_bytes; /* of all weights and vectors; bytes as in the file */
} model_plan;

/* ---- for families -------------------------------------------------------------------------------
 * Each fails with a message that names file, key or tensor, and what is expected. */

typedef struct plan_reader {
    base *b;
    const gguf *file;
    const char *architecture;
    model_shape *shape;
    model_plan *plan;
    int max_seq_len; /* the config's; 0: the model's */
    bool *used;      /* [file->tensor_count]: the tensors that the plan has read */
    bool *read_keys; /* [file->key_count]: the keys that it asked for */
    void (*tell)(void *teller, cairn_status status, const char *why); /* a survey's, or NULL: is told what */
    void *teller; int told; /* speaks against the file, so often; reading goes on where it can */
    int window;      /* what plan_read_window read */
    float norm_more; /* the family's: is added to what norms multiply by */
    gguf_list by_layer; /* the family's: numbers of the layers that are still to be read */
    int period;      /* the family's: the last of each so many layers differs; or 0 */
    float log_more;  /* the family's: it heeds rope.scaling.yarn_log_multiplier, which is this */
    float stretch;   /* what plan_read_rope read: the factor of yarn, else 1 */
} plan_reader;

/* A weight blk.LAYER.NAME.weight and its role; a part blk.LAYER.NAME. */
typedef struct plan_layer_weight { const char *name; plan_role role; int64_t rows, columns; }
    plan_layer_weight;
typedef struct plan_layer_part { const char *name; plan_part part; int64_t rows, columns; } plan_layer_part;

/* ARCHITECTURE.key, which counts as read. */
typedef struct plan_key_name { char text[96]; } plan_key_name;
static const char *plan_name(plan_reader *r, const char *key, plan_key_name *out);
/* A positive number under ARCHITECTURE.key, a whole one from 1 to 2^24; `fallback` where it is
 * absent, 0: it is required. */
static cairn_status plan_number(plan_reader *r, const char *key, float fallback, float *out);
static cairn_status plan_key(plan_reader *r, const char *key, int fallback, int *out);
/* Refuses a file with another number than `neutral`, a whole one than `only`, a false, where more has no code. */
static cairn_status plan_refuse_number(plan_reader *r, const char *key, float neutral);
static cairn_status plan_fixed(plan_reader *r, const char *key, int fallback, int only);
static cairn_status plan_true(plan_reader *r, const char *key);
/* The window of those layers that have one; 0 where the file has none, or it hides nothing. */
static cairn_status plan_read_window(plan_reader *r);
/* Layers, widths, context, norms and vocabulary; head sizes, once shape.kv_heads is known; or both. */
static cairn_status plan_read_sizes(plan_reader *r);
static cairn_status plan_read_heads(plan_reader *r);
static cairn_status plan_read_shape(plan_reader *r); /* a key says how many KV heads there are */
/* Pair j of `dims` values turns by base^(-2j / dims) a position. */
static void plan_plain_rope(plan_rope *rope, plan_pairing pairing, int dims, double turns);
/* The rope that the file's keys give, scaled: linear, yarn, by factors (by max_seq_len: phi). */
static cairn_status plan_read_rope(plan_reader *r, plan_pairing pairing, plan_rope *rope);
/* Embedding, output norm under its name, head (or the embedding again), and all layers, by `read`. Last:
 * refuses tensors, and keys of the family's, that nothing has read: they would change what is computed. */
static cairn_status plan_read_layers(plan_reader *r, const char *norm,
                                     cairn_status (*read)(plan_reader *r, int layer));
static bool plan_all_paged(const model_plan *p); /* every layer is plain attention, over pages */
/* The projections and the norm of an attention layer; and the same but q, k and v. */
static cairn_status plan_attention(plan_reader *r, int layer);
static cairn_status plan_attention_out(plan_reader *r, int layer);
static cairn_status plan_biases(plan_reader *r, int layer); /* of q, k and v */
static cairn_status plan_head_norms(plan_reader *r, int layer); /* of the heads of q and k */
/* The gated ffn and its norm; the same but gate and up; refuses one of experts, where it is. */
static cairn_status plan_gated_ffn(plan_reader *r, int layer, plan_ffn kind);
static cairn_status plan_ffn_out(plan_reader *r, int layer, plan_ffn kind);
static cairn_status plan_refuse_experts(plan_reader *r, int layer);
/* One tensor blk.LAYER.NAME.weight with the rows of a list's weights, which need no names. */
static cairn_status plan_layer_fused(plan_reader *r, int layer, const char *name,
                                     const plan_layer_weight *list, size_t count);
/* Weights and parts of one layer, by a list. */
static cairn_status plan_layer_weights(plan_reader *, int layer, const plan_layer_weight *, size_t count);
static cairn_status plan_layer_parts(plan_reader *, int layer, const plan_layer_part *, size_t count);
