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
