/* snapshot: sequences as bytes: the parts of a snapshot, written and read. The format stands in
 * snapshot.c, the pages' way in snapshot_pages.c. */

enum { SNAPSHOT_IDENTITY, SNAPSHOT_TOKENS, SNAPSHOT_STATE, SNAPSHOT_PAGES, SNAPSHOT_EXTRA,
       SNAPSHOT_PARTS };
enum { SNAPSHOT_OF_SESSION = 1, SNAPSHOT_OF_REQUEST = 2 };

typedef struct snapshot {
    uint32_t kind;
    size_t bytes[SNAPSHOT_PARTS];
    uint8_t *parts[SNAPSHOT_PARTS]; /* into `memory` */
    uint8_t *memory;                /* [total]; read only when it was given to snapshot_read */
    size_t total;
} snapshot;


/* Little-endian numbers. */
static uint32_t snapshot_get32(const uint8_t *p);
static void snapshot_put_ids(uint8_t *p, const int32_t *ids, int count);
/* -1 for a number above INT32_MAX. */
static int32_t snapshot_get_id(const uint8_t *p, int i);
/* The sum of a part. */
static cairn_status snapshot_sum_part(base *b, struct pool *threads, const uint8_t *data,
                                      size_t bytes, uint64_t *sum);
/* Bytes [at, at + bytes), where they lie or put into `buffer` [SNAPSHOT_CHUNK]; NULL: cannot. Called
 * by many threads. */
typedef const uint8_t *(*snapshot_reader)(const void *from, uint64_t at, size_t bytes, void *buffer);
/* The sum of what `fetch` gives, or with `every` > 1 of one chunk in so many. CAIRN_FILE_ERROR
 * without a message: it could not give all. */
static cairn_status snapshot_sum_chunks(base *b, struct pool *threads, snapshot_reader fetch,
                                        const void *from, size_t bytes, size_t every,
                                        uint64_t *sum);
/* The total of a snapshot whose parts' bytes are known. False when it overflows. */
static bool snapshot_add_up(snapshot *s);
/* The parts lie in `memory` [total]. */
static void snapshot_place(snapshot *s, uint8_t *memory);
/* The header, once all parts are filled. */
static cairn_status snapshot_seal(base *b, struct pool *threads, snapshot *s);
/* What every save into a caller's memory begins with: *bytes is told; true when memory is to be
 * filled. */
static bool snapshot_wants(base *b, const char *call, const snapshot *s, const void *memory,
                           size_t capacity, size_t *bytes, cairn_status *status);
/* Memory [bytes] as a snapshot of this kind, every sum right. */
static cairn_status snapshot_read(base *b, struct pool *threads, const char *call, uint32_t kind,
                                  const void *memory, size_t bytes, snapshot *s);
/* BAD_FILE, and why. */
static cairn_status snapshot_damaged(base *b, const char *call, const char *why);
