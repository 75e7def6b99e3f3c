/* cache: compiled kernels by the digest of what they were compiled from, in a folder of small
 * files. Owns that folder and the format of an entry; calls os.
 *
 * The cache can only ever save time: whatever is wrong with it (absent, full, read-only, damaged,
 * foreign, shared with other processes) shows as a miss, never as a failure. Every byte of an entry
 * is under its checksum, which is verified before anyone sees the payload. Entries appear whole, by
 * a rename. get and put may be called from any thread, each with a base of its own. */

/* ---- hash.c: what names an entry, and guards bytes ------------------------------------------- */

typedef struct cache_key { uint8_t bytes[32]; } cache_key;

typedef struct cache_hash {
    /* private below */
    uint64_t h[8];
    uint64_t total;      /* bytes compressed so far */
    size_t used;         /* bytes waiting in `block` */
    uint8_t block[128];
} cache_hash;

/* Begins a digest. `personal` is at most 16 characters that set one use apart from another. */
static void cache_hash_begin(cache_hash *s, const char *personal);
/* Adds a field: its length first, so that neighbouring fields cannot run into each other. */
static void cache_hash_field(cache_hash *s, const void *data, size_t bytes);
/* Ends the digest; the hash is to be begun anew. */
static cache_key cache_hash_end(cache_hash *s);

/* Little-endian numbers at any address. */
static void cache_store64(uint8_t *p, uint64_t v);
static void cache_store32(uint8_t *p, uint32_t v);

/* ---- cache.c --------------------------------------------------------------------------------- */

typedef enum cache_mode { CACHE_OFF, CACHE_READ_WRITE, CACHE_READ_ONLY, CACHE_MEMORY } cache_mode;

typedef struct cache_options {
    cache_mode mode;
    const char *directory; /* NULL, "" or "auto": the user's cache folder */
    int64_t limit_bytes;   /* 0: 256 MiB; pruned to 80 % of it, oldest use first */
} cache_options;

/* A payload and what is known of its making. The texts describe; a hit never needs them. */
typedef struct cache_entry {
    base_text file;      /* owns the bytes */
    const uint8_t *data; /* the payload inside it */
    size_t size;
    uint32_t compile_us;
    char arch[16], name[48], compiler[96];
} cache_entry;

typedef struct cache {
    /* private below */
    base *owner; /* the opener's; used by open and close only */
    cache_mode mode;
    char directory[OS_PATH_BYTES - 128];
    int64_t limit_bytes, next_prune_us;
    struct cache_item *items; /* mode memory */
    os_mutex lock;     /* of items and next_prune_us */
    os_atomic no_writes, hits, misses, damaged;
} cache;

/* Never fails: without a usable place the cache is off, which the log says. */
static void cache_open(base *b, const cache_options *options, cache *c);
/* Frees what memory holds; entries on the disk stay. */
static void cache_close(cache *c);

/* Whether no entry is there, as far as can be seen: all that is asked for will be compiled. */
static bool cache_is_empty(cache *c);

/* Whether there is a whole entry; then `out` is to be freed with cache_entry_free. [any thread] */
static bool cache_get(cache *c, base *b, const cache_key *key, cache_entry *out);
/* Keeps entry->data (its file is not looked at) with its descriptions. [any thread] */
static void cache_put(cache *c, base *b, const cache_key *key, const cache_entry *entry);
/* Frees the bytes of an entry that cache_get filled. An entry of all zero is left as it is. */
static void cache_entry_free(base *b, cache_entry *entry);
