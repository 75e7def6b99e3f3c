/* prefix: a radix cache of prefixes: which pages hold the keys and values of which tokens, so that
 * a sequence which begins like an earlier one need not compute its beginning again.
 *
 * A tree per namespace. A node is a run of whole pages: their tokens and their page ids; its parent
 * holds the tokens before them, and no two children of a node begin with the same page. Tokens
 * decide what matches; a hash of a node's first page only finds the candidate. The tokens are the
 * sequence as it is cached, landmark tokens included, and so is their count.
 *
 * The cache holds one reference of the pool for each page id that stands in a node; and one of the
 * pool of a group with a window for each of its ids that a node was lent (-1: none). Those go back
 * when their pool is short, locked or not: whoever goes on from them has references of its own. A
 * prefix ends where all that its windows need is there (prefix_offer). A node that is
 * locked, and so every node above it, is not evicted. A leaf without locks stands in a heap, the
 * least recently used first. Calls base and pages. Each call does all it is asked or nothing. */

struct prefix_node {
    struct prefix_node *parent; /* NULL: the beginning */
    struct prefix_node *next;   /* of its bucket */
    uint64_t space;             /* namespace */
    uint64_t hash;              /* of parent, space and first page */
    uint64_t used;              /* the cache's clock when last matched or inserted */
    uint64_t lent;              /* the same when its windows' pages were last lent or read */
    int pages;                  /* at least 1 */
    int children, locks;
    int heap_at;                /* place in the heap, -1: none */
    int32_t *tokens;            /* [pages, page_size], then ids [1 + windows, pages]: one allocation */
};

/* Where a key leads: `matched` pages agree, `inside` of them in the last node (1 to its pages). */
typedef struct prefix_walk {
    prefix_node *node; /* NULL: nothing agrees */
    int matched, inside;
} prefix_walk;

/* Of a group; 0: the pool's. */
static int32_t *prefix_group_ids(const prefix_cache *c, const prefix_node *n, int group) {
    return n->tokens + (size_t)n->pages * (size_t)(c->page_size + group);
}

static int32_t *prefix_ids(const prefix_cache *c, const prefix_node *n) {
    return prefix_group_ids(c, n, 0);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static size_t prefix_run_words(const prefix_cache *c, int pages) {
    return (size_t)pages * ((size_t)c->page_size + 1 + (size_t)c->windows);
}

static int32_t *prefix_run_new(prefix_cache *c, int pages) {
    return (int32_t *)base_realloc(c->base, NULL, 0,
                                   prefix_run_words(c, pages) * sizeof(int32_t));
}

static void prefix_run_free(prefix_cache *c, int32_t *run, int pages) {
    base_delete(c->base, run, prefix_run_words(c, pages), sizeof *run);
}

/* Pages [from, from + count) of a run of `pages` pages, copied. */
static void prefix_run_copy(const prefix_cache *c, int32_t *to, const int32_t *run, int pages,
                            int from, int count) {
    const size_t size = (size_t)c->page_size;
    memcpy(to, run + (size_t)from * size, (size_t)count * size * sizeof *to);
    for (size_t list = size; list <= size + (size_t)c->windows; list++)
        memcpy(to + (size_t)count * list, run + (size_t)pages * list + from,
               (size_t)count * sizeof *to);
}

/* Doubles an array of pointers until it holds `wanted`; false: memory is short. */
static bool prefix_grow(base *b, prefix_node ***array, int *capacity, int wanted) {
    int more = *capacity ? *capacity : 64;
    prefix_node **larger;
    while (more < wanted) more *= 2;
    if (more == *capacity) return true;
    larger = (prefix_node **)base_realloc(b, *array, (size_t)*capacity * sizeof *larger,
                                          (size_t)more * sizeof *larger);
    if (!larger) return false;
    *array = larger;
    *capacity = more;
    return true;
}

/* ---- the heap of leaves without locks ---------------------------------------------------------- */

static void prefix_heap_put(prefix_cache *c, int at, prefix_node *n) {
    c->heap[at] = n;
    n->heap_at = at;
}

/* Moves a node whose place is `at` up or down to where it belongs. */
static void prefix_heap_sift(prefix_cache *c, int at) {
    prefix_node *n = c->heap[at];
    int child;
    while (at && c->heap[(at - 1) / 2]->used > n->used) {
        prefix_heap_put(c, at, c->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    while ((child = 2 * at + 1) < c->heap_count) {
        if (child + 1 < c->heap_count && c->heap[child + 1]->used < c->heap[child]->used) child++;
        if (c->heap[child]->used >= n->used) break;
        prefix_heap_put(c, at, c->heap[child]);
        at = child;
    }
    prefix_heap_put(c, at, n);
}

static void prefix_heap_remove(prefix_cache *c, prefix_node *n) {
    int at = n->heap_at;
    n->heap_at = -1;
    if (at == --c->heap_count) return;
    prefix_heap_put(c, at, c->heap[c->heap_count]);
    prefix_heap_sift(c, at);
}

/* After any change of locks, children or use. The heap has room for every node. */
static void prefix_heap_update(prefix_cache *c, prefix_node *n) {
    bool wanted = n->locks == 0 && n->children == 0;
    if (wanted && n->heap_at < 0) prefix_heap_put(c, c->heap_count++, n);
    if (wanted) prefix_heap_sift(c, n->heap_at);
    else if (n->heap_at >= 0) prefix_heap_remove(c, n);
}

/* ---- the table of children --------------------------------------------------------------------- */

/* Of a node's first page. One part of the key after the other, so that no two runs of equal words
 * cancel out. */
static uint64_t prefix_hash(const prefix_cache *c, const prefix_node *parent, uint64_t space,
                            const int32_t *page) {
    uint64_t h = ((uint64_t)(uintptr_t)parent ^ space * 0x9e3779b97f4a7c15u) + 0x632be59bd9b4e019u;
    int i = 0;
    for (; i + 1 < c->page_size; i += 2) {
        h = (h ^ ((uint64_t)(uint32_t)page[i] << 32 | (uint32_t)page[i + 1])) * 0xd6e8feb86659fd93u;
        h ^= h >> 32;
    }
    if (i < c->page_size) h = (h ^ (uint32_t)page[i]) * 0xd6e8feb86659fd93u;
    return h ^ h >> 29;
}

static bool prefix_same_page(const prefix_cache *c, const int32_t *a, const int32_t *b) {
    return !memcmp(a, b, (size_t)c->page_size * sizeof *a);
}

static prefix_node *prefix_child(const prefix_cache *c, prefix_node *parent, uint64_t space,
                                 const int32_t *page) {
    uint64_t hash = prefix_hash(c, parent, space, page);
    prefix_node *n = c->buckets[hash & (uint64_t)(c->bucket_count - 1)];
    while (n && !(n->hash == hash && n->parent == parent && n->space == space &&
                  prefix_same_page(c, n->tokens, page)))
        n = n->next;
    return n;
}

static prefix_node **prefix_bucket(prefix_cache *c, const prefix_node *n) {
    return &c->buckets[n->hash & (uint64_t)(c->bucket_count - 1)];
}

/* Hashes n anew, for its parent or first page, and puts it into its bucket. */
static void prefix_link(prefix_cache *c, prefix_node *n) {
    prefix_node **bucket;
    n->hash = prefix_hash(c, n->parent, n->space, n->tokens);
    bucket = prefix_bucket(c, n);
    n->next = *bucket;
    *bucket = n;
}

static void prefix_unlink(prefix_cache *c, const prefix_node *n) {
    prefix_node **link = prefix_bucket(c, n);
    while (*link != n) link = &(*link)->next;
    *link = n->next;
}

/* ---- open and close ---------------------------------------------------------------------------- */

/* What a node was lent of a group goes back. */
static void prefix_give_window(prefix_cache *c, prefix_node *n, int g) {
    int32_t *ids = prefix_group_ids(c, n, 1 + g);
    for (int i = 0; i < n->pages; i++) {
        if (ids[i] >= 0) pages_give(c->base, &c->windows_of->window_pools[g], &ids[i], 1);
        ids[i] = -1;
    }
}

/* All pages of a node go back, and its run. */
static void prefix_empty(prefix_cache *c, prefix_node *n) {
    for (int g = 0; g < c->windows; g++) prefix_give_window(c, n, g);
    pages_give(c->base, c->pool, prefix_ids(c, n), n->pages);
}

static void prefix_keep_windows(prefix_cache *c, kv_cache *kv) {
    c->windows_of = kv;
    c->windows = kv->groups.count;
}

static void prefix_close(prefix_cache *c) {
    for (int i = 0; c->buckets && i < c->bucket_count; i++)
        for (prefix_node *n = c->buckets[i], *next; n; n = next) {
            next = n->next;
            prefix_empty(c, n);
            prefix_run_free(c, n->tokens, n->pages);
            base_delete(c->base, n, 1, sizeof *n);
        }
    base_delete(c->base, c->buckets, (size_t)c->bucket_count, sizeof *c->buckets);
    base_delete(c->base, c->heap, (size_t)c->heap_capacity, sizeof *c->heap);
    memset(c, 0, sizeof *c);
}

static cairn_status prefix_open(base *b, page_pool *ids, int page_size, prefix_cache *c) {
    memset(c, 0, sizeof *c);
    c->base = b;
    c->pool = ids;
    c->page_size = page_size;
    c->bucket_count = 64;
    /* nodes hardly outnumber pages */
    while (c->bucket_count < ids->pages / 2) c->bucket_count *= 2;
    c->buckets = (prefix_node **)base_new(b, (size_t)c->bucket_count, sizeof *c->buckets);
    if (!c->buckets)
        return base_no_memory(b, "a prefix cache", (size_t)c->bucket_count * sizeof *c->buckets);
    return CAIRN_OK;
}

/* ---- nodes ------------------------------------------------------------------------------------- */

static cairn_status prefix_no_memory(const prefix_cache *c, int pages) {
    return base_no_memory(c->base, "the prefix cache",
                          prefix_run_words(c, pages) * sizeof(int32_t) + sizeof(prefix_node));
}

/* A node of `pages` pages, its run not filled, part of no tree; room for it in the heap. */
static prefix_node *prefix_node_new(prefix_cache *c, int pages) {
    prefix_node *n;
    if (!prefix_grow(c->base, &c->heap, &c->heap_capacity, c->nodes + 2)) return NULL;
    n = (prefix_node *)base_new(c->base, 1, sizeof *n);
    if (!n) return NULL;
    n->tokens = prefix_run_new(c, pages);
    if (!n->tokens) {
        base_delete(c->base, n, 1, sizeof *n);
        return NULL;
    }
    n->pages = pages;
    n->heap_at = -1;
    return n;
}

static void prefix_node_free(prefix_cache *c, prefix_node *n) {
    prefix_run_free(c, n->tokens, n->pages);
    base_delete(c->base, n, 1, sizeof *n);
}

static void prefix_attach(prefix_cache *c, prefix_node *n, prefix_node *parent, uint64_t space) {
    n->parent = parent;
    n->space = space;
    if (parent) parent->children++;
    c->nodes++;
    prefix_link(c, n);
}

/* Cuts n after its first `keep` pages. They become a new node above it, so that whoever locked n
 * holds both; the new node, or NULL when memory is short and nothing changed. */
static prefix_node *prefix_split(prefix_cache *c, prefix_node *n, int keep) {
    int rest = n->pages - keep;
    int32_t *tail = prefix_run_new(c, rest);
    prefix_node *above = tail ? prefix_node_new(c, keep) : NULL;
    if (!above) {
        if (tail) prefix_run_free(c, tail, rest);
        return NULL;
    }
    prefix_run_copy(c, above->tokens, n->tokens, n->pages, 0, keep);
    prefix_run_copy(c, tail, n->tokens, n->pages, keep, rest);
    prefix_unlink(c, n);
    prefix_run_free(c, n->tokens, n->pages);
    n->tokens = tail;
    n->pages = rest;
    above->locks = n->locks;
    above->used = n->used;
    above->lent = n->lent;
    prefix_attach(c, above, n->parent, n->space);
    if (n->parent) n->parent->children--; /* which was n */
    n->parent = above;
    above->children = 1;
    prefix_link(c, n);
    return above;
}

/* ---- walking ----------------------------------------------------------------------------------- */

/* Follows the first `pages` pages of tokens as far as they are held. */
static prefix_walk prefix_find(const prefix_cache *c, uint64_t space, const int32_t *tokens,
                               int pages) {
    prefix_walk w = {NULL, 0, 0};
    size_t size = (size_t)c->page_size;
    while (w.matched < pages && (!w.node || w.inside == w.node->pages)) {
        const int32_t *key = tokens + (size_t)w.matched * size;
        prefix_node *n = prefix_child(c, w.node, space, key);
        int most, same = 1;
        if (!n) break;
        most = n->pages < pages - w.matched ? n->pages : pages - w.matched;
        if (!memcmp(key, n->tokens, (size_t)most * size * sizeof *key)) same = most;
        while (same < most && prefix_same_page(c, key + (size_t)same * size,
                                               n->tokens + (size_t)same * size))
            same++;
        w.node = n;
        w.inside = same;
        w.matched += same;
    }
    return w;
}

/* The way from `n` to the beginning was used now. */
static void prefix_touch(prefix_cache *c, prefix_node *n) {
    c->clock++;
    for (; n; n = n->parent) {
        n->used = c->clock;
        if (n->heap_at >= 0) prefix_heap_sift(c, n->heap_at);
    }
}

/* The page ids of a walk's `matched` pages. */
static void prefix_read_ids(const prefix_cache *c, const prefix_walk *w, int32_t *ids) {
    int end = w->matched, inside = w->inside;
    for (const prefix_node *n = w->node; n; n = n->parent) {
        end -= inside;
        memcpy(ids + end, prefix_ids(c, n), (size_t)inside * sizeof *ids);
        if (n->parent) inside = n->parent->pages;
    }
}

/* ---- locks ------------------------------------------------------------------------------------- */

static void prefix_lock(prefix_cache *c, prefix_node *n) {
    for (; n; n = n->parent) {
        if (n->locks++ == 0) c->locked_pages += n->pages;
        prefix_heap_update(c, n);
    }
}

static void prefix_unlock(prefix_cache *c, prefix_node *n) {
    for (; n; n = n->parent) {
        if (--n->locks == 0) c->locked_pages -= n->pages;
        prefix_heap_update(c, n);
    }
}

/* ---- what callers do --------------------------------------------------------------------------- */

static cairn_status prefix_match(prefix_cache *c, uint64_t space, const int32_t *tokens, int count,
                                 int32_t *ids, int *pages, prefix_node **node) {
    prefix_walk w = prefix_find(c, space, tokens, count / c->page_size);
    *pages = 0;
    if (node) *node = NULL;
    if (node && w.node && w.inside < w.node->pages) {
        prefix_node *above = prefix_split(c, w.node, w.inside);
        if (!above) return prefix_no_memory(c, w.inside);
        w.node = above;
    }
    if (ids) prefix_read_ids(c, &w, ids);
    prefix_touch(c, w.node);
    *pages = w.matched;
    if (node) *node = w.node;
    return CAIRN_OK;
}

static cairn_status prefix_insert(prefix_cache *c, uint64_t space, const int32_t *tokens,
                                  int count, const int32_t *ids, int *present) {
    int pages = count / c->page_size, fresh;
    prefix_walk w = prefix_find(c, space, tokens, pages);
    prefix_node *leaf, *parent = w.node;
    cairn_status status;
    *present = w.matched;
    fresh = pages - w.matched;
    if (!fresh) return prefix_touch(c, w.node), CAIRN_OK;
    if ((status = pages_retain(c->base, c->pool, ids + w.matched, fresh))) return status;
    leaf = prefix_node_new(c, fresh);
    if (leaf && w.node && w.inside < w.node->pages) parent = prefix_split(c, w.node, w.inside);
    if (!leaf || (w.node && !parent)) {
        if (leaf) prefix_node_free(c, leaf);
        pages_give(c->base, c->pool, ids + w.matched, fresh);
        return prefix_no_memory(c, fresh);
    }
    memcpy(leaf->tokens, tokens + (size_t)w.matched * (size_t)c->page_size,
           (size_t)fresh * (size_t)c->page_size * sizeof *tokens);
    memcpy(prefix_ids(c, leaf), ids + w.matched, (size_t)fresh * sizeof *ids);
    memset(prefix_group_ids(c, leaf, 1), 0xff, (size_t)(fresh * c->windows) * sizeof *ids);
    prefix_attach(c, leaf, parent, space);
    c->pages += fresh;
    if (parent) prefix_heap_update(c, parent);
    prefix_touch(c, leaf);
    prefix_heap_update(c, leaf);
    return CAIRN_OK;
}

static void prefix_remove(prefix_cache *c, prefix_node *n) {
    prefix_node *parent = n->parent;
    prefix_heap_remove(c, n);
    prefix_unlink(c, n);
    prefix_empty(c, n);
    c->pages -= n->pages;
    c->nodes--;
    prefix_node_free(c, n);
    if (!parent) return;
    parent->children--;
    prefix_heap_update(c, parent);
}

/* Drops leaves without locks, the least recently used first, until `pages` pages or more are no
 * longer held or nothing is left to drop. Returns how many: whole nodes, so it may be more. */
static int64_t prefix_evict(prefix_cache *c, int64_t pages) {
    int64_t before = c->pages;
    while (before - c->pages < pages && c->heap_count) prefix_remove(c, c->heap[0]);
    return before - c->pages;
}

/* ---- pages of windows ------------------------------------------------------------------------ */

/* Whether a sequence of `pages` pages could not go on for want of its page `at`, a node's i-th. */
static bool prefix_lacks(const prefix_cache *c, const prefix_node *n, int i, int at, int pages) {
    const kv_groups *groups = c->windows ? &c->windows_of->groups : NULL;
    for (int g = 0; g < c->windows; g++)
        if (prefix_group_ids(c, n, 1 + g)[i] < 0 &&
            at >= pages_window_first(groups->window[g], pages * c->page_size, c->page_size))
            return true;
    return false;
}

static int prefix_offer(const prefix_cache *c, uint64_t space, const int32_t *tokens, int count) {
    const prefix_walk w = prefix_find(c, space, tokens, count / c->page_size);
    int pages = w.matched, at = w.matched, inside = w.inside;
    for (const prefix_node *n = w.node; n; n = n->parent) {
        while (inside-- > 0)
            if (prefix_lacks(c, n, inside, --at, pages)) pages = at;
        if (n->parent) inside = n->parent->pages;
    }
    return pages;
}

static void prefix_lend(prefix_cache *c, uint64_t space, const int32_t *tokens, int pages, int g,
                        int first, const int32_t *ids) {
    const prefix_walk w = prefix_find(c, space, tokens, pages);
    int end = w.matched, inside = w.inside;
    if (w.matched < pages) return;
    for (prefix_node *n = w.node; n && end > first; n = n->parent) {
        int32_t *held = prefix_group_ids(c, n, 1 + g);
        const int start = end - inside;
        for (int at = start > first ? start : first; at < end; at++)
            if (held[at - start] < 0 &&
                !pages_retain(c->base, &c->windows_of->window_pools[g], ids + at, 1))
                held[at - start] = ids[at];
        n->lent = c->clock;
        end = start;
        if (n->parent) inside = n->parent->pages;
    }
}

static void prefix_read_window(prefix_cache *c, prefix_node *n, int pages, int g, int32_t *ids) {
    const int first = pages_window_first(c->windows_of->groups.window[g], pages * c->page_size,
                                         c->page_size);
    for (; n; n = n->parent) {
        if (pages > first) n->lent = c->clock;
        pages -= n->pages;
        memcpy(ids + pages, prefix_group_ids(c, n, 1 + g), (size_t)n->pages * sizeof *ids);
    }
}

/* Whether pages would be free if the node gave back what it was lent. */
static bool prefix_helps(const prefix_cache *c, const prefix_node *n, int g) {
    const int32_t *ids = prefix_group_ids(c, n, 1 + g);
    int i = 0;
    while (i < n->pages && (ids[i] < 0 || pages_shared(&c->windows_of->window_pools[g], ids[i]))) i++;
    return i < n->pages;
}

/* What was lent of group 1 + g and not used for longest goes back, until its pool has `wanted` free
 * pages or nothing is left that would help. */
static void prefix_strip(prefix_cache *c, int g, int wanted) {
    while (c->windows_of->window_pools[g].free_count < wanted) {
        prefix_node *oldest = NULL;
        for (int i = 0; i < c->bucket_count; i++)
            for (prefix_node *n = c->buckets[i]; n; n = n->next)
                if ((!oldest || n->lent < oldest->lent) && prefix_helps(c, n, g)) oldest = n;
        if (!oldest) return;
        prefix_give_window(c, oldest, g);
    }
}
