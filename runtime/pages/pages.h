/* pages: where keys and values lie. A pool of page ids, the KV cache whose pages they name, the page
 * tables that say which of them hold a sequence, and the cache of prefixes that sequences share.
 *
 * A page holds page_size consecutive tokens of one sequence, in every layer under the same id. A
 * table's row maps logical page c to a page id; ids carry no order. Ids are counted by who holds
 * them: what is held by more than one must not be written. What a sequence leaves behind, pages and
 * other state, is driven by the contract of state.h; snapshots of it are in snapshot.h. Every call
 * does all it is asked or nothing. All calls are the owner thread's. */

/* Hands out the ids 0 .. pages-1 and counts who holds each: a page is free again when as many
 * references were given back as were taken and retained. Each call does all it is asked or
 * nothing. What is held by more than one must not be written (pages_shared). */
typedef struct page_pool {
    int pages, free_count;
    int32_t *free_ids;   /* [pages], a stack: the first free_count are free */
    int32_t *references; /* [pages], 0: free */
} page_pool;

/* Whether a page has another holder than the one who asks, so that it must be copied to be
 * written. */
static bool pages_shared(const page_pool *p, int32_t id);
/* For cairn_close, once all else that holds pages is gone: the tables and pools of callers. */
static void pages_free_all(cairn_runtime *rt);

enum {
    KV_WINDOWS = 2,   /* groups at most */
    WINDOW_SLACK = 64 /* tokens that stay behind a window: rejected drafts and short rewinds */
};

/* Layers that see a window of tokens alone keep few pages, under ids of their own: those of one
 * window are a group. Layers of no group (0) keep all pages; they alone have bounds. */
typedef struct kv_groups {
    int count;
    int window[KV_WINDOWS]; /* tokens that a layer of group 1 + i sees, itself included */
    int layers[KV_WINDOWS];
    int most[KV_WINDOWS];   /* pages that a sequence needs at once, at most */
    int pages[KV_WINDOWS];  /* of the group's pool, once the cache is sized */
    uint8_t of[CAIRN_MAX_LAYERS]; /* the group of each layer of the cache */
} kv_groups;

/* Values of `type`; bounds are f16, those of the page's keys, written by a forward once the page is
 * complete. e4m3 values are divided by a scale of their slot and head: behind the planes of all
 * layers stand as many of scales, f32 [page][K or V][kv_head][slot].
 *
 * A latent cache (MLA) has one head, whose keys are its values, too, f16, and no bounds: its pages are
 * [page][slot][head_dim], and behind those of all layers stand as many of the indexer's keys, u8
 * [page][page_size * CAIRN_INDEX_BYTES]. Planes of a layer share the ids, and go wherever a page
 * goes. */
typedef struct kv_cache {
    struct device *device;
    int layers, kv_heads, head_dim, page_size;
    cairn_type type;    /* f16, bf16, f32 or e4m3 */
    int planes;         /* of `pages`: layers; of a latent cache and of e4m3 twice as many */
    size_t page_bytes;  /* of one page in one layer, K and V */
    size_t bound_bytes; /* of one page's bounds in one layer */
    void **pages;       /* [planes] device address of [page][K or V][kv_head][slot][head_dim] */
    void **bounds;      /* [layers] device address of [page][kv_head][lo or hi][head_dim], or NULL */
    page_pool pool;
    page_pool window_pools[KV_WINDOWS];
    kv_groups groups;
} kv_cache;

/* A cache of `pages` pages, and with groups of theirs; NULL: there are none. On failure *kv is empty
 * and nothing is held. [blocks] */
static cairn_status pages_groups_open(device *dev, int layers, int kv_heads, int head_dim,
                                      int page_size, cairn_type type, int pages,
                                      const kv_groups *groups, kv_cache *kv);
/* Only the pools of such a cache; a failure is undone by pages_pools_close. */
static cairn_status pages_pools_open(base *b, int pages, const kv_groups *groups, kv_cache *kv);
static void pages_pools_close(base *b, kv_cache *kv);
/* The same of a latent cache, of 576 values a token. */
static cairn_status pages_latent_open(device *dev, int layers, int page_size, int pages,
                                      kv_cache *kv);
/* Gives the cache's memory back; also of an empty one. */
static void pages_kv_close(kv_cache *kv);
/* Device bytes that one page takes over all layers. */
static uint64_t pages_kv_bytes(int layers, int kv_heads, int head_dim, int page_size,
                               cairn_type type);
static uint64_t pages_latent_bytes(int layers, int page_size);
/* The same of layers with a window, which have no bounds. */
static uint64_t pages_window_bytes(int layers, int kv_heads, int head_dim, int page_size,
                                   cairn_type type);
/* The scales of a layer's e4m3 values. */
static float *pages_scales(const kv_cache *kv, int layer);
/* Of one page in one plane. */
static size_t pages_plane_bytes(const kv_cache *kv, int plane);
/* Pages of a window that a sequence needs at once, in forwards of up to `rows` rows. */
static int pages_window_most(int window, int rows, int page_size);

/* pages_tables: which pages hold the tokens of each sequence: one row a sequence. Host lists; every
 * change happens whole or not at all. Growth, sharing and copy on write stand here once, row by row
 * (tables_reserve, tables_trim, tables_hold); the calls on requests do the same for a whole batch,
 * the sequence state (state.h) for a model's sessions.
 *
 * Tokens [0, length) of a row lie in its pages in order. A request is live or not; a live one holds
 * at least one page. A session's row is taken (tables_take_row) and may hold none. Two modes. With
 * a pool any free page serves, requests may share pages, and a page that has another holder is
 * replaced before it is written (copy on write): the tables then list the one page a request must
 * copy, its partly filled one. Without a pool (deterministic) page c of request r has the id r *
 * max_pages + c, and nothing is shared. Calls pages. */

typedef struct page_tables {
    page_pool *pool; /* NULL: deterministic */
    int requests, page_size, max_pages;
    int32_t *ids;       /* [requests, max_pages], -1 from pages[r] on */
    int32_t *lengths;   /* [requests] tokens */
    int32_t *pages;     /* [requests] pages held, 0: not live */
    int32_t *first_changed, *last_changed; /* [requests] columns of ids since tables_settle; last
                                              < first: none */
    int32_t *plan;      /* [requests] of the change in progress */
    int32_t *surplus;   /* [requests * max_pages] of the change in progress */
    int32_t *copies;    /* [requests, 2] page to copy from and to, as the last insert wants; -1 */
    int copy_count;     /* of them, 0 once they were fetched */
    bool *taken;        /* [requests] rows given out by tables_take_row */
} page_tables;

/* No request is live. The pool stays the caller's and must outlive the tables. */
static cairn_status tables_open(base *b, page_pool *from, int requests, int page_size,
                                int max_pages, page_tables *t);
/* Forgets all rows; their pages are the caller's to give back before. */
static void tables_close(base *b, page_tables *t);
/* A row that nobody has, with no page, is the caller's until tables_leave_row. */
static cairn_status tables_take_row(base *b, page_tables *t, int *row);
/* Of a row that was taken; its pages go back. */
static void tables_leave_row(base *b, page_tables *t, int r);
/* Row r's page ids, -1 from pages[r] on. */
static int32_t *tables_row(const page_tables *t, int r);
/* Pages that `tokens` tokens fill, the last one perhaps in part. */
static int tables_filled(const page_tables *t, int64_t tokens);
/* Free pages that tables_reserve would take. */
static int tables_need(const page_tables *t, int r, int from, int to);
/* Columns [first, first + count) of row r, which has as many or gets them at its end, name pages
 * that somebody holds: they get a reference more, those of before give theirs back. */
static cairn_status tables_hold(base *b, page_tables *t, int r, int first, const int32_t *ids,
                                int count);
/* That what is new of row r since tables_settle_row names pages of the pool. */
static cairn_status tables_check_new(base *b, const page_tables *t, int r);
/* Nothing of row r has changed since now. */
static void tables_settle_row(page_tables *t, int r);
