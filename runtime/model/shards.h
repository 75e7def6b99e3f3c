/* shards: weights that lie in one file or several, as safetensors or as a state dict of PyTorch.
 * safetensors.c and torch.c list what a file holds; hf.c gives the tensors places in one space, and
 * there shards_fetch finds their bytes.
 *
 * No file is trusted: when a list was made every tensor lies within its file, none twice by name,
 * and none of safetensors on another. Calls base, jdoc and os. */

enum { SHARDS_NAME_BYTES = 128, SHARDS_FILES = 256 };

typedef struct shards_file {
    base_text path;
    int64_t handle; /* while it is open to be read */
    os_map map;     /* or, in place of the handle, its bytes */
    size_t size;
    bool open;
} shards_file;

typedef struct shards_tensor {
    char name[SHARDS_NAME_BYTES];
    int type;         /* as in GGUF */
    int ndim;         /* 0 to 4 */
    int64_t shape[4]; /* the first one is the outermost, as the file says it */
    uint64_t from;    /* in its file */
    uint64_t bytes;
    uint64_t to;      /* in the space; 0: it has no place there */
    int file;
    int part;         /* hf.c's: which of the parts of one tensor it is; -1: it is a whole one */
} shards_tensor;

typedef struct shards {
    shards_file *files; /* [SHARDS_FILES] */
    int file_count;
    shards_tensor *tensors; /* [count]: by name, then by place once shards_seal was called */
    size_t count, room;
} shards;

/* Opens a file, mapped or to be read. [blocks] */
static cairn_status shards_open_file(base *b, shards *s, const char *path, bool map, int *file);
/* Bytes of a file that it has; `buffer` is used where it is not mapped. NULL: it cannot be read. */
static const uint8_t *shards_read(const shards *s, int file, uint64_t at, size_t bytes,
                                  void *buffer);
/* A tensor to be filled in; NULL without memory. */
static shards_tensor *shards_add(base *b, shards *s);
/* Adds what the last file opened holds. [blocks] */
static cairn_status safetensors_list(base *b, shards *s);
static cairn_status torch_list(base *b, shards *s);
/* Puts the tensors in the order of their names, and refuses two of one. */
static cairn_status shards_sort(base *b, shards *s);
/* By name, after shards_sort; NULL: there is none. */
static shards_tensor *shards_find(const shards *s, const char *name);
/* Puts them in the order of their places, for shards_fetch. */
static void shards_seal(shards *s);
/* Bytes [at, at + bytes) of the space, between tensors zeros: where they lie, or put together in
 * `buffer`; NULL when they cannot be read. Any number of threads may. */
static const uint8_t *shards_fetch(const shards *s, uint64_t at, size_t bytes, void *buffer);
/* The same, always to `buffer`. */
static bool shards_gather(const shards *s, uint64_t at, size_t bytes, uint8_t *buffer);
/* Closes the files and frees all; also of one that is all zero. */
static void shards_close(base *b, shards *s);
