/* adapter: what a file adds to the products of a model: y = W x + B (A x), of low rank (LoRA).
 *
 * Files are llama.cpp's (GGUF), or PEFT's and batch engines' in safetensors or .pt with the
 * adapter_config.json beside them. An adapter is read whole into f32, the scale in B, rows of q and k
 * in the order that the model's rope wants; nothing of the file is needed after that. The file is
 * not trusted: a name, shape or rank that is not the model's is refused by name.
 * Calls base, os, cache (digests), numbers, shards, gguf, jdoc. */

/* A gated adapter may say up to how many tokens it drafts (draft_length) and its mask's id
 * (mask_token_id), in adapter_config.json, or by the GGUF keys adapter.draft_length and
 * adapter.mask_token_id: an id behind the vocabulary, no other adapter's of the model. Without it the
 * mask has the lowest such id.
 * It drafts: it adds to rows of mask tokens alone, whose embedding it has, and its sampler
 * head makes tokens of their hidden rows: y = norm0(silu(W0 [embedding of the token before, hidden])),
 * y + norm1(silu(W1 y)), then the model's head. Tensors: mask_embedding [hidden], and together
 * sampler.0.weight [hidden, 2 hidden], sampler.0.norm, sampler.1.weight [hidden, hidden],
 * sampler.1.norm [hidden].
 *
 * One with a landmark_embedding [hidden] has the row of the token that ends each page, see
 * engine/landmarks.c; it adds to all rows, and to the landmarks' own. A model's file may have one of its
 * own, which is that of its adapters without. */
typedef enum adapter_part {
    ADAPTER_MASK, ADAPTER_FIRST, ADAPTER_FIRST_NORM, ADAPTER_SECOND, ADAPTER_SECOND_NORM,
    ADAPTER_LANDMARK, ADAPTER_PARTS
} adapter_part;

enum { ADAPTER_MOST = 64 /* of a model at a time */, ADAPTER_MOST_RANK = 256 };

/* What one product gains; in a ffn of experts, each has both for itself. */
typedef struct adapter_pair {
    const float *a; /* [(experts,) rank, columns]; NULL: nothing */
    const float *b; /* [(experts,) rows, rank] */
    int rank;
} adapter_pair;

struct cairn_adapter {
    cairn_model *model;
    cairn_adapter *next;    /* of model->adapters */
    int slot;               /* below ADAPTER_MOST, no other's of the model */
    int rank;               /* the largest */
    int drafts;             /* at most, of a gated one; 0: as many as are wanted */
    int32_t mask_id;        /* of a gated one; -1: an adapter without */
    const float *parts[ADAPTER_PARTS]; /* of a gated one, or the landmark; else NULL */
    adapter_pair *pairs;    /* [layers, PLAN_ROLES] */
    float *values;          /* [count] all that they point to */
    size_t count;
    cache_key fingerprint;  /* of what it computes */
    char name[128];         /* the end of its path, for messages */
    void *device;           /* the backend's, or NULL */
};

/* Reads a file, or a folder as PEFT writes it; in no list yet. [blocks] */
static cairn_status adapter_read(cairn_model *m, const char *path, cairn_adapter **out);
/* One that is a model's own landmark and adds nothing, where its file has that; in no list yet. */
static cairn_status adapter_own(cairn_model *m, cairn_adapter **out);
/* Frees one that is in no list. */
static void adapter_free(cairn_adapter *a);
/* What a layer's product gains; NULL: nothing. `a` may be NULL. */
static const adapter_pair *adapter_of(const cairn_adapter *a, int layer, int role);
/* Tells the tokens of one adapter from those of another, by what it computes; 0: of none, or of a gated
 * one, which leaves them as they are. */
static uint64_t adapter_space(const cairn_adapter *a);
