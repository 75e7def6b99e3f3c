/* gguf: model files. Reads GGUF version 2 and 3 in place, from a map of the file, from a copy in
 * memory, or from a copy of the header with tensors read when they are asked for: typed metadata by
 * key, tensors by name.
 *
 * The file is not trusted. Opening visits every byte of the header once, checks every length against
 * what is left of the file before using it, and fails with a message that names the key or tensor
 * and the byte offset. After it succeeded every pointer handed out lies inside the file, so the
 * getters check kinds and ranges only. Allocates two tables, each bounded by the file's size.
 * Calls base, os, block. */

/* Keys that hf_config.c writes for folders, whose tensors are as they were trained: halves of heads turn
 * together, and norms multiply by 1 more than they hold; whether a word that is a token takes no
 * merges; tokens that take the white space
 * behind them; whether every space begins a word; whether scores add up in doubles, as in
 * tokenizer.json; whether the space before a text is put only where none is, and only before the first
 * of its parts between special tokens. */
#define GGUF_HALVES "cairn.rope_halves"
#define GGUF_NORMS_FROM_ONE "cairn.norms_from_one"
#define GGUF_WHOLE_WORDS "cairn.whole_words"
#define GGUF_EACH_SPACE "cairn.each_space"
#define GGUF_WIDE_SUMS "cairn.wide_sums"
#define GGUF_STRIPS "cairn.strips"
#define GGUF_PREFIX_ONCE "cairn.space_prefix_once"
#define GGUF_PREFIX_FIRST "cairn.space_prefix_first"

enum gguf_value_type {
    GGUF_U8, GGUF_I8, GGUF_U16, GGUF_I16, GGUF_U32, GGUF_I32, GGUF_F32, GGUF_BOOL, GGUF_STRING,
    GGUF_ARRAY, GGUF_U64, GGUF_I64, GGUF_F64, GGUF_TYPES
};

/* Kinds of tokens, as tokenizer.ggml.token_type has them; U+2581 is SentencePiece's space. */
enum { TOK_NORMAL = 1, TOK_UNKNOWN = 2, TOK_CONTROL = 3, TOK_USER = 4, TOK_UNUSED = 5,
       TOK_BYTE = 6 };
#define TOK_SPACE_MARK "\xe2\x96\x81"

#define GGUF_NAME_BYTES 128      /* of a tensor's name, its NUL included */
#define GGUF_PATH_BYTES 256
#define GGUF_ALIGNMENT 64        /* of a file in memory */

typedef struct gguf_key {
    const char *name; /* in the file, not terminated */
    size_t name_bytes;
    uint32_t type;
    uint64_t offset;      /* of the value in the file */
    const uint8_t *value; /* bytes of the string or the array's elements where it is one */
    uint64_t count;       /* bytes of a string, elements of an array */
    uint32_t element;     /* type of an array's elements */
} gguf_key;

typedef struct gguf_tensor {
    char name[GGUF_NAME_BYTES];
    int type;         /* a BLOCK_ type that block_find knows */
    int ndim;         /* 1 to 4 */
    int64_t shape[4]; /* shape[0] is the contiguous one; 1 beyond ndim */
    const void *data; /* in the file, aligned as general.alignment says (8 or more); NULL: gguf_scan */
    uint64_t at;      /* of its data in the file */
    size_t bytes;
    uint64_t offset; /* of its description in the file, for messages */
} gguf_tensor;

typedef struct gguf {
    const uint8_t *data; /* [held], what of the file is at hand: the header at least */
    size_t held, size;   /* size: the file's */
    size_t copied;       /* bytes of the copy */
    os_map map;          /* empty when the file lies in memory */
    void *copy;          /* [copied], NULL when it is mapped */
    int64_t file;        /* gguf_scan's, open while held < size and there are no shards */
    struct shards *shards; /* hf.c's: the files in which what is not held lies; or NULL */
    char path[GGUF_PATH_BYTES]; /* for messages; the end of a longer one */
    uint32_t version, alignment;
    gguf_key *keys; /* [key_count], by name */
    size_t key_count;
    gguf_tensor *tensors; /* [tensor_count], by name */
    size_t tensor_count;
} gguf;

/* An array of scalars or strings inside the file. */
typedef struct gguf_list {
    uint32_t type;
    uint64_t count;
    const uint8_t *data; /* next element */
} gguf_list;

/* Maps and reads the file. [blocks] The file must not be cut short while it is open: the system
 * ends a process that reads what is gone. */
static cairn_status gguf_open(base *b, const char *path, gguf *out);
/* Reads the file into memory of our own, which nobody can take away or change, by these threads, or NULL. [blocks] */
static cairn_status gguf_copy(base *b, struct pool *threads, const char *path, gguf *out);
/* Reads the header into memory, and leaves the data of a large file to gguf_fetch: for those who
 * keep it elsewhere. A file that is cut short or changed meanwhile is a failed read. [blocks] */
static cairn_status gguf_scan(base *b, struct pool *threads, const char *path, gguf *out);
/* The same, to look at: tensors of a block type that is not supported stand in it without bytes. */
static cairn_status gguf_survey(base *b, const char *path, gguf *out);
/* Reads `bytes` bytes from `at` on; returns 0, or a negative errno. Any number of threads at once. */
typedef int (*gguf_read_at)(const void *from, uint64_t at, void *to, size_t bytes);
typedef struct gguf_extent { uint64_t begin, end, size; } gguf_extent; /* of a file of `size` bytes */
enum { GGUF_PART = 4 << 20 }; /* is read at once: so soon a load ends that is to */
/* Reads bytes [begin, end) to data + begin, part by part, each by these threads, or NULL; before each the progress is
 * told. */
static cairn_status gguf_read_parts(base *b, struct pool *threads, const char *name, gguf_read_at read,
                                    const void *from, gguf_extent which, uint8_t *data);
/* Bytes [at, at + bytes) of the file, which has them: where they lie, or read into `buffer`; NULL
 * when they cannot be read, which gguf_lost turns into a status. Any number of threads may. */
static const uint8_t *gguf_fetch(const gguf *g, uint64_t at, size_t bytes, void *buffer);
static cairn_status gguf_lost(base *b, const gguf *g);
/* Frees the tables, the map and the copy; also after an open that failed. *g is empty. */
static void gguf_close(base *b, gguf *g);

/* ---- metadata ---------------------------------------------------------------------------------- */

/* The value of a key as a number, with *found set to whether the key is there: without it *out stays
 * as it is; found NULL: it must be there. A value of another kind is CAIRN_BAD_FILE. */
static cairn_status gguf_u32(base *b, const gguf *g, const char *name, bool *found, uint32_t *out);
static cairn_status gguf_f32(base *b, const gguf *g, const char *name, bool *found, float *out);
static cairn_status gguf_bool(base *b, const gguf *g, const char *name, bool *found, bool *out);
/* The string lies in the file and is not terminated. */
static cairn_status gguf_string(base *b, const gguf *g, const char *name, bool *found,
                                const char **out, size_t *bytes);
/* The key of that name, or NULL. Whether the file has it. */
static const gguf_key *gguf_key_find(const gguf *g, const char *name);
static bool gguf_has(const gguf *g, const char *name);
/* An array whose elements are of `element` (GGUF_I32 also takes u32: writers differ). */
static cairn_status gguf_array(base *b, const gguf *g, const char *name, bool *found,
                               uint32_t element, gguf_list *out);
/* The next string of a GGUF_STRING list; call it at most `count` times. */
static const char *gguf_next_string(gguf_list *list, size_t *bytes);
/* The next element of a GGUF_I32 or GGUF_U32 list, its bits; call it at most `count` times. */
static uint32_t gguf_next_u32(gguf_list *list);

/* ---- tensors ----------------------------------------------------------------------------------- */

/* NULL when the file has none of that name. */
static const gguf_tensor *gguf_tensor_find(const gguf *g, const char *name);
