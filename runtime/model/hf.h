/* hf: folders of models as Hugging Face's libraries write them: config.json, tokenizer.json,
 * weights in safetensors or PyTorch's files, a chat template.
 *
 * A folder is read into a gguf: config and tokenizer become the header that the model's GGUF file
 * would have, and the tensors get its names; families, tokenizer and backends know no other form.
 * The tensors keep their bytes: they lie in shards, or in memory, as `how` says. What is not certain
 * to be the same model is refused by name. Calls base, jdoc, os, shards and gguf. */

/* How the weights are to be at hand: as gguf_open, gguf_copy, gguf_scan and gguf_survey have it. */
typedef enum hf_how { HF_MAP, HF_COPY, HF_SCAN, HF_SURVEY } hf_how;

/* Opens a model, whether a folder or a GGUF file, by these threads, or NULL; closed by gguf_close. [blocks] */
static cairn_status hf_open(base *b, struct pool *threads, const char *path, hf_how how, gguf *out);

/* ---- private below --------------------------------------------------------------------------- */

enum { HF_MOST_CONFIG = 16 << 20, HF_MOST_TOKENIZER = 512 << 20, HF_ALIGNMENT = 32 };

typedef struct hf_file {
    base_text path, text;
    jdoc doc;
    bool there;
} hf_file;

typedef struct hf_family {
    const char *type, *architecture; /* model_type in config.json; what GGUF files call it */
    const char *needs[3];            /* keys for which transformers has a default of its own */
    bool halves, norms_from_one;
    bool windows; /* sliding_window is handed on; else it counts by use_sliding_window, which is refused */
    const char *text;                /* where the config of the text's part lies; or NULL */
} hf_family;

typedef struct hf_folder {
    base *b;
    struct pool *threads;
    const char *path;
    hf_how how;
    const hf_family *family;
    uint32_t text;                 /* the object of the config that is the text's */
    hf_file config, tokenizer, tokenizer_config;
    shards *weights;
    base_text keys, tensors, made; /* as GGUF encodes them; made: data that are computed */
    uint64_t key_count, tensor_count;
    uint64_t next;                 /* place in the data section */
    int64_t vocab;                 /* rows of the embedding */
    bool full;                     /* memory ran out */
} hf_folder;
