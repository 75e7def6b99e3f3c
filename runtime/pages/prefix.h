/* prefix: a cache of the prefixes that sequences share, as a radix tree. How it is kept stands in
 * prefix.c; it holds pages of the pool, and of the groups of layers with windows what it was lent. */

typedef struct prefix_node prefix_node;

typedef struct prefix_cache {
    struct base *base;
    page_pool *pool;
    int page_size;
    struct kv_cache *windows_of; /* whose groups' pages nodes hold, too; or NULL */
    int windows;                 /* its groups */
    int nodes, heap_count, heap_capacity, bucket_count; /* buckets: a power of two */
    prefix_node **buckets, **heap;
    uint64_t clock;
    int64_t pages, locked_pages; /* held; of nodes with locks */
} prefix_cache;

/* The pool must stand until prefix_close. page_size is that of the pool's pages. */
static cairn_status prefix_open(base *b, page_pool *ids, int page_size, prefix_cache *c);
/* Gives all pages back. Nobody holds a node any more. */
static void prefix_close(prefix_cache *c);
/* The longest prefix of tokens [count], in whole pages, that is held: how many pages, their ids to
 * ids [up to count / page_size], and with `node` its last node, which then ends where the match
 * does, so that it can be locked. Errors: OUT_OF_MEMORY, only with `node`; nothing changed. */
static cairn_status prefix_match(prefix_cache *c, uint64_t space, const int32_t *tokens, int count,
                                 int32_t *ids, int *pages, prefix_node **node);
/* Of an empty cache: nodes hold pages of kv's groups with windows, too, where they are lent some. */
static void prefix_keep_windows(prefix_cache *c, kv_cache *kv);
/* Of the longest prefix of tokens [count] that is held, as many pages as a sequence can begin with:
 * what each window needs behind them is held, too. */
static int prefix_offer(const prefix_cache *c, uint64_t space, const int32_t *tokens, int count);
/* Pages [first, pages) of group 1 + g, whose ids stand in ids [pages], are held for tokens that are
 * held in `pages` pages, where the cache has none; the others stay. */
static void prefix_lend(prefix_cache *c, uint64_t space, const int32_t *tokens, int pages, int g,
                        int first, const int32_t *ids);
/* The ids of group 1 + g up to the end of node n, which is at `pages`, to ids [pages]; -1: none. */
static void prefix_read_window(prefix_cache *c, prefix_node *n, int pages, int g, int32_t *ids);
/* Holds what is new of tokens [count] in whole pages, whose ids stand in ids [count / page_size]:
 * the first *present pages were there, under ids of their own, and the caller's are no concern of
 * the cache; each page behind them gets one reference more.
 * Errors: OUT_OF_MEMORY, INVALID_ARGUMENT for an id the pool does not hold; nothing changed. */
static cairn_status prefix_insert(prefix_cache *c, uint64_t space, const int32_t *tokens,
                                  int count, const int32_t *ids, int *present);
/* n and all above it stay until prefix_unlock(n). NULL is ignored. */
static void prefix_lock(prefix_cache *c, prefix_node *n);
/* Undoes prefix_lock. */
static void prefix_unlock(prefix_cache *c, prefix_node *n);
/* For cairn_close, before the pools go: the prefix caches of callers. */
static void prefix_free_all(cairn_runtime *rt);
