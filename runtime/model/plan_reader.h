/* plan_reader: what families read a file into a plan with (see plan.h). Each call fails with a message
 * that names file, key or tensor, and what is expected. */
typedef struct plan_reader {
    base *b;
    const gguf *file;
    const char *architecture;
    model_shape *shape;
    model_plan *plan;
    int max_seq_len; /* the config's; 0: the model's */
    bool *used;      /* [file->tensor_count]: the tensors that the plan has read */
    bool *read_keys; /* [file->key_count]: the keys that it asked for */
    model_survey *survey; /* or NULL */
    int window;      /* what plan_read_window read */
    float norm_more; /* the family's: is added to what norms multiply by */
    gguf_list by_layer; /* the family's: numbers of the layers that are still to be read */
    int period;      /* the family's: the last of each so many layers differs; or 0 */
    float log_more;  /* the family's: it heeds rope.scaling.yarn_log_multiplier, which is this */
    float stretch;   /* what plan_read_rope read: the factor of yarn, else 1 */
} plan_reader;

/* A weight blk.LAYER.NAME.weight and its role; a part blk.LAYER.NAME. */
typedef struct plan_layer_weight {
    const char *name;
    plan_role role;
    int64_t rows, columns;
} plan_layer_weight;

typedef struct plan_layer_part {
    const char *name;
    plan_part part;
    int64_t rows, columns;
} plan_layer_part;

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
