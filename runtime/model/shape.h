/* shape: the sizes of a model, as its family reads them from its file: see plan.h. */

/* Attention by latents (MLA) that chooses its tokens (DSA): the cache holds for a token 512 values
 * that all heads share and 64 that turn, which is what head_dim counts, of one KV head; and an index
 * key. */
typedef struct model_latent {
    int q_rank;      /* of the latent that queries are made of; 0: attention is not by latents */
    int still, value; /* of a head: values of a query that do not turn; of what it attends */
    int index_heads, topk; /* of the indexer; tokens that a row attends at most */
} model_latent;

typedef struct model_shape {
    int layers, hidden, heads, kv_heads, head_dim, ffn, vocab;
    int context; /* the longest sequence the model was made for */
    int kv_layers, conv_layers; /* with attention, with short convolutions */
    int conv_taps;              /* of a convolution, 2 to 8 */
    int experts, experts_used;  /* of a layer's ffn, each ffn wide, and of a row; 0: the ffn is one */
    float norm_eps;
    model_latent latent;
} model_shape;
