/* model: a model file -> cairn_model: its family's plan, the tokenizer, the KV cache; and the seam
 * to the forward passes. The file is read by gguf.h into the plan of plan.h.
 *
 * Owns the file, the plan, the tokenizer and the cache; the backend's state, the sessions and their
 * scratch are those of the rooms above, which hang them here. Invariants: between model_load and
 * model_unload the plan is whole, from model_open_tokenizer on the tokenizer, too; the file is open until
 * model_drop_file, and only so long do the plan's weights have bytes to read. Calls base, device, pages. */

/* Bytes that a backend takes for a model. */
typedef struct model_memory {
    uint64_t weights; /* of the device, in a form of its own; 0: it reads the file's */
    uint64_t scratch; /* of the device, for buffers */
    uint64_t opening; /* of the device besides, while it opens */
    uint64_t host;
} model_memory;

enum { MODEL_EVAL_ROWS = 64 }; /* of a forward of cairn_eval */

struct cairn_model {
    cairn_runtime *runtime;
    cairn_model *next; /* of runtime->models */
    gguf file;           /* empty once model_drop_file was called */
    uint64_t file_bytes;
    struct tokenizer tokenizer;
    char name[128], architecture[32];
    model_shape shape;
    model_plan plan;
    int max_seq_len; /* the config's, at most the model's */
    kv_cache kv;
    kv_groups groups; /* of the cache's layers, known before it is opened */
    prefix_cache prefixes;  /* of prompts; not open without memory.prefix_cache */
    page_tables tables;     /* a row for each session; open once the backend is */
    window_state windows[KV_WINDOWS]; /* [groups.count] beside them */
    kv_state kv_of_rows;    /* the sequence state that every model has */
    ring_states rings;      /* and that of its convolutions */
    sequence_states states; /* all there is of it */
    cairn_page_source bounds_source; /* of the last forward */
    int bounds_version;     /* counts its changes */
    int spoilt;             /* counts failures that leave pages of the prefix cache in doubt */
    cache_key fingerprint;  /* of the file, once has_fingerprint */
    bool has_fingerprint;
    const struct model_backend *backend;
    model_memory memory; /* the backend's */
    void *state; /* the backend's */
    cairn_session *sessions;
    cairn_adapter *adapters; /* that are loaded */
    cairn_adapter *adapter;  /* the config's: sessions begin with it; or NULL */
    cairn_adapter *own;      /* of a model with a landmark: where they have no other; or NULL */
    cairn_model *drafts;     /* the config's drafter_model, of this model's own; or NULL */
    bool closing; /* freed inside a session's callback: it goes when the call has ended */
    struct engine_scratch *scratch;
    struct grammar_shelf *grammars; /* NULL: none was asked for */
};

/* Pages that so many tokens fill, the last one perhaps in part. */
static int model_pages_of(int tokens, int page_size);
/* Whether the file's family reads its shape and its tensors for the config's max_seq_len; nothing of it
 * is kept. What ends the reading is not told but the status. */
static cairn_status model_try_plan(base *b, const gguf *file, int max_seq_len, model_survey *survey);

/* Where a model's file is: at a path, or with a source what the host hands over. */
typedef struct model_place {
    const char *path;
    hf_how how;
    const cairn_model_source *source;
} model_place;

/* The model without its tokenizer, cache and backend. [blocks] */
static cairn_status model_load(cairn_runtime *rt, model_place place, cairn_model **out);
/* Its tokenizer, from the same file, which takes as long to read as all else of the header. [blocks] */
static cairn_status model_open_tokenizer(cairn_model *m);
/* How a model's file is opened to run: a backend that copies fetches each weight once. */
static hf_how model_how_of(const cairn_runtime *rt);
/* Undoes model_load, whole or half done. */
static void model_unload(cairn_model *m);
/* Closes the file of a model whose backend has what it needs of the weights: from here on the plan
 * tells of them, and their views are empty. */
static void model_drop_file(cairn_model *m);
/* Whether the layers that the config names are the model's; "all" stands for those there are. */
static cairn_status model_check_layers(base *b, const cairn_config *config, const model_shape *s);
/* Rows of the largest forward. */
static int model_most_rows(const cairn_config *config);
/* Device bytes of a cache of so many pages, with what its groups of layers have beside them. */
static uint64_t model_cache_bytes(const cairn_model *m, int pages);
/* The groups of such a cache. */
static kv_groups model_groups(const cairn_model *m, int pages);
/* The page tables of a layer with attention, beside `whole`, which are those of layers that keep all. */
static page_tables *model_tables(cairn_model *m, page_tables *whole, int layer);
/* Pages of the cache, once m->memory is known: loading and its estimate ask here. */
static cairn_status model_size_cache(const cairn_model *m, const device *dev, int *pages);
/* A cache of so many pages, at most `most`. [blocks] */
static cairn_status model_open_cache(cairn_model *m, device *dev, int most);
