/* The radix cache of prefixes against a naive trie of single pages: random inserts, matches, locks
 * and evictions on small alphabets, with memory failing now and then; its inner order recomputed by
 * brute force; directed cases; the pool's references add up throughout. */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "random.h"
#include "tap.h"

static uint64_t state;
static int fail_in; /* allocations until one fails; 0: none */

static void *test_realloc(void *user, void *memory, size_t old_bytes, size_t bytes) {
    (void)user, (void)old_bytes;
    if (!bytes) {
        free(memory);
        return NULL;
    }
    if (fail_in && --fail_in == 0) return NULL;
    return realloc(memory, bytes);
}

static int between(int low, int high) { return low + (int)(random_next(&state) % (uint64_t)(high - low + 1)); }

/* ---- the naive model: a trie whose nodes are single pages ---- */

enum { MOST = 256, PAGES = 220, LONGEST = 24, LOCKS = 16, SIZE_MOST = 4 };

typedef struct page {
    int parent; /* -1: a beginning */
    uint64_t space;
    int32_t tokens[SIZE_MOST], id;
    int locks;
    bool live;
} page;

typedef struct world {
    base b;
    page_pool pool;
    prefix_cache cache;
    int size, alphabet, spaces, count;
    page trie[MOST];
    int32_t mine[PAGES]; /* references of the test's own */
    struct { prefix_node *node; int last; } locks[LOCKS];
} world;

static int child_of(const world *w, int parent, uint64_t space, const int32_t *tokens) {
    int i;
    for (i = 0; i < w->count; i++)
        if (w->trie[i].live && w->trie[i].parent == parent && w->trie[i].space == space &&
            !memcmp(w->trie[i].tokens, tokens, (size_t)w->size * 4))
            return i;
    return -1;
}

/* The trie's way along the key; *last is its last page. */
static int follow(const world *w, uint64_t space, const int32_t *tokens, int pages, int *way, int *last) {
    int n = 0, at = -1;
    while (n < pages) {
        int next = child_of(w, at, space, tokens + n * w->size);
        if (next < 0) break;
        at = next;
        if (way) way[n] = at;
        n++;
    }
    *last = at;
    return n;
}

/* A place for one page more. */
static int new_page(world *w) {
    int i;
    for (i = 0; i < w->count && w->trie[i].live; i++) {}
    if (i == w->count) w->count++;
    return i;
}

static int live_pages(const world *w, bool only_locked) {
    int i, n = 0;
    for (i = 0; i < w->count; i++) n += w->trie[i].live && (!only_locked || w->trie[i].locks);
    return n;
}

/* ---- invariants, recomputed ---- */

static const char *check_node(const world *w, const prefix_node *n, int64_t *pages, int64_t *locked, int *leaves) {
    const prefix_cache *c = &w->cache;
    int i, children = 0;
    for (i = 0; i < c->bucket_count; i++)
        for (const prefix_node *o = c->buckets[i]; o; o = o->next) {
            children += o->parent == n;
            if (o != n && o->parent == n->parent && o->space == n->space && prefix_same_page(c, o->tokens, n->tokens))
                return "two children begin with one page";
        }
    if (children != n->children) return "children are counted wrong";
    if (n->hash != prefix_hash(c, n->parent, n->space, n->tokens)) return "a hash is stale";
    if (n->parent && (n->parent->used < n->used || n->parent->locks < n->locks || n->parent->space != n->space))
        return "a parent is older, less locked or of another space than its child";
    if ((n->heap_at >= 0) != (n->locks == 0 && n->children == 0)) return "the heap holds the wrong nodes";
    if (n->heap_at >= 0 && c->heap[n->heap_at] != n) return "a place in the heap is wrong";
    *pages += n->pages;
    *locked += n->locks ? n->pages : 0;
    *leaves += n->heap_at >= 0;
    return NULL;
}

static const char *check_all(world *w) {
    const prefix_cache *c = &w->cache;
    int64_t pages = 0, locked = 0;
    int i, leaves = 0, nodes = 0, held = 0;
    int32_t references[PAGES];
    memcpy(references, w->mine, sizeof references);
    for (i = 0; i < c->bucket_count; i++)
        for (const prefix_node *n = c->buckets[i]; n; n = n->next) {
            const char *wrong = check_node(w, n, &pages, &locked, &leaves);
            int p;
            if (wrong) return wrong;
            for (p = 0; p < n->pages; p++) references[prefix_ids(c, n)[p]]++;
            nodes++;
        }
    for (i = 1; i < c->heap_count; i++) if (c->heap[(i - 1) / 2]->used > c->heap[i]->used) return "the heap is out of order";
    if (nodes != c->nodes || pages != c->pages || locked != c->locked_pages || leaves != c->heap_count) return "a sum is wrong";
    if (pages != live_pages(w, false) || locked != live_pages(w, true)) return "it holds other pages than the trie";
    for (i = 0; i < PAGES; i++) {
        if (references[i] != w->pool.references[i]) return "references do not add up";
        held += references[i] > 0;
    }
    return held + w->pool.free_count == PAGES ? NULL : "pages are lost";
}

/* ---- one random operation each; NULL, or what is wrong ---- */

static int random_key(world *w, int32_t *tokens, uint64_t *space) {
    int i, count = between(0, LONGEST * w->size);
    for (i = 0; i < count; i++) tokens[i] = between(0, 7) ? 0 : between(0, w->alphabet - 1);
    *space = (uint64_t)between(0, w->spaces - 1);
    return count;
}

static const char *do_insert(world *w) {
    int32_t tokens[LONGEST * SIZE_MOST], ids[LONGEST];
    uint64_t space;
    int count = random_key(w, tokens, &space), pages = count / w->size, way[LONGEST], last, present = -1, had, i;
    cairn_status status;
    had = follow(w, space, tokens, pages, way, &last);
    if (!pages_take(&w->pool, pages, ids)) return NULL;
    for (i = 0; i < pages; i++) w->mine[ids[i]]++;
    fail_in = between(0, 9) ? 0 : between(1, 4);
    status = prefix_insert(&w->cache, space, tokens, count, ids, &present);
    fail_in = 0;
    if (status && status != CAIRN_OUT_OF_MEMORY) return "insert failed";
    if (present != had) return "insert found another length";
    for (i = had; i < pages && !status; i++) {
        int at = new_page(w);
        page *p = &w->trie[at];
        p->parent = last, p->space = space, p->id = ids[i], p->locks = 0, p->live = true;
        memcpy(p->tokens, tokens + i * w->size, (size_t)w->size * 4);
        last = at;
    }
    for (i = 0; i < pages; i++) w->mine[ids[i]]--;
    return pages_give(&w->b, &w->pool, ids, pages) ? "a page was not ours" : NULL;
}

static const char *do_match(world *w) {
    int32_t tokens[LONGEST * SIZE_MOST], ids[LONGEST];
    uint64_t space;
    int count = random_key(w, tokens, &space), pages = count / w->size, way[LONGEST], last, found = -1, had, i, slot;
    prefix_node *node = NULL;
    bool lock = between(0, 1);
    cairn_status status;
    had = follow(w, space, tokens, pages, way, &last);
    fail_in = between(0, 9) ? 0 : between(1, 3);
    status = prefix_match(&w->cache, space, tokens, count, ids, &found, lock ? &node : NULL);
    fail_in = 0;
    if (status) return status == CAIRN_OUT_OF_MEMORY && lock && !node && found == 0 ? NULL : "match failed";
    if (found != had) return "match found another length";
    for (i = 0; i < had; i++) if (ids[i] != w->trie[way[i]].id) return "match gave other pages";
    if (!lock) return NULL;
    if (!node != !had) return "match gave the wrong node";
    for (slot = 0; slot < LOCKS && w->locks[slot].node; slot++) {}
    if (slot == LOCKS || !node) return NULL;
    prefix_lock(&w->cache, node);
    w->locks[slot].node = node, w->locks[slot].last = last;
    for (i = 0; i < had; i++) w->trie[way[i]].locks++;
    return NULL;
}

static const char *do_unlock(world *w) {
    int slot = between(0, LOCKS - 1), at;
    if (!w->locks[slot].node) return NULL;
    prefix_unlock(&w->cache, w->locks[slot].node);
    w->locks[slot].node = NULL;
    for (at = w->locks[slot].last; at >= 0; at = w->trie[at].parent) w->trie[at].locks--;
    return NULL;
}

/* The node that must go next, by brute force. */
static const prefix_node *oldest_leaf(const prefix_cache *c) {
    const prefix_node *oldest = NULL;
    int i;
    for (i = 0; i < c->bucket_count; i++)
        for (const prefix_node *n = c->buckets[i]; n; n = n->next)
            if (!n->children && !n->locks && (!oldest || n->used < oldest->used)) oldest = n;
    return oldest;
}

/* Takes the node's pages out of the trie: its last page is a leaf there. */
static const char *forget(world *w, const prefix_node *n) {
    int i, p;
    for (p = n->pages - 1; p >= 0; p--) {
        int32_t id = prefix_ids(&w->cache, n)[p];
        for (i = 0; i < w->count && !(w->trie[i].live && w->trie[i].id == id); i++) {}
        if (i == w->count) return "a page of the cache is not in the trie";
        if (w->trie[i].locks) return "a locked page goes";
        w->trie[i].live = false;
    }
    return NULL;
}

static const char *do_evict(world *w) {
    int64_t wanted = between(0, 30), freed = 0, held;
    while (freed < wanted) {
        const prefix_node *next = oldest_leaf(&w->cache);
        const char *wrong;
        if (!next) break;
        held = w->cache.pages;
        if ((wrong = forget(w, next)) != NULL) return wrong;
        if (prefix_evict(&w->cache, 1) != held - w->cache.pages || held == w->cache.pages) return "evict counted wrong";
        freed += held - w->cache.pages;
    }
    if (freed < wanted && live_pages(w, false) != live_pages(w, true)) return "evict left what it could drop";
    return NULL;
}

static const char *fuzz(world *w, int rounds) {
    int i;
    const char *wrong = NULL;
    for (i = 0; i < rounds && !wrong; i++) {
        int what = between(0, 99);
        wrong = what < 30 ? do_insert(w) : what < 75 ? do_match(w) : what < 95 ? do_unlock(w) : do_evict(w);
        if (w->pool.free_count < 2 * LONGEST && !wrong) wrong = do_evict(w);
        if (!wrong && i % 500 == 0) wrong = check_all(w);
    }
    if (wrong) printf("# after %d operations, page size %d, alphabet %d\n", i, w->size, w->alphabet);
    return wrong ? wrong : check_all(w);
}

static world *open_world(int size) {
    world *w = (world *)calloc(1, sizeof *w);
    cairn_allocator allocator;
    memset(&allocator, 0, sizeof allocator);
    allocator.realloc = test_realloc;
    base_init(&w->b, &allocator, NULL, NULL, CAIRN_LOG_OFF);
    w->size = size, w->alphabet = 2, w->spaces = 1;
    pages_open(&w->b, PAGES, &w->pool);
    prefix_open(&w->b, &w->pool, size, &w->cache);
    return w;
}

static bool close_world(world *w) {
    bool whole;
    prefix_close(&w->cache);
    whole = w->pool.free_count == PAGES;
    pages_close(&w->b, &w->pool);
    free(w);
    return whole;
}

static void test_fuzz(int size, int rounds) {
    world *w = open_world(size);
    const char *wrong;
    int i;
    w->alphabet = between(2, 4), w->spaces = between(1, 3);
    wrong = fuzz(w, rounds);
    for (i = 0; i < PAGES; i++) if (w->mine[i] && !wrong) wrong = "the test kept a page";
    tap_ok(!wrong, "%d random operations with pages of %d: %s", rounds, size, wrong ? wrong : "as the trie");
    tap_ok(close_world(w), "closing gives every page back");
}

/* ---- directed ---- */

static int held(world *w, uint64_t space, const int32_t *tokens, int count) {
    int pages = -1;
    prefix_match(&w->cache, space, tokens, count, NULL, &pages, NULL);
    return pages;
}

static int put(world *w, uint64_t space, const int32_t *tokens, int count) {
    int32_t ids[PAGES];
    int present = -1;
    pages_take(&w->pool, count / w->size, ids);
    prefix_insert(&w->cache, space, tokens, count, ids, &present);
    pages_give(&w->b, &w->pool, ids, count / w->size);
    return present;
}

static void test_directed(void) {
    static const int32_t a[] = {1, 2, 3, 4, 5, 6, 7, 8}, b[] = {1, 2, 3, 4, 5, 9, 7, 8};
    world *w = open_world(2);
    prefix_node *node = NULL;
    int pages, present;
    int32_t bad[2];
    uint64_t hash;
    tap_ok(held(w, 0, a, 8) == 0 && held(w, 0, a, 0) == 0 && put(w, 0, a, 0) == 0 && put(w, 0, a, 1) == 0 && w->cache.pages == 0,
           "an empty key, and less than a page, match nothing and add nothing");
    tap_ok(put(w, 0, a, 7) == 0 && w->cache.pages == 3 && held(w, 0, a, 8) == 3 && held(w, 0, a, 5) == 2, "whole pages are held, the rest is cut off");
    tap_ok(put(w, 0, b, 8) == 2 && held(w, 0, b, 8) == 4 && held(w, 0, a, 8) == 3 && w->cache.nodes == 3, "a key that diverges inside a page shares the pages before it");
    tap_ok(held(w, 1, a, 8) == 0 && put(w, 1, a, 8) == 0 && held(w, 1, a, 8) == 4, "namespaces never match each other");
    bad[0] = PAGES, bad[1] = 0;
    tap_ok(prefix_insert(&w->cache, 2, a, 4, bad, &present) == CAIRN_INVALID_ARGUMENT && held(w, 2, a, 4) == 0, "a page that the pool does not hold is refused: %s", w->b.error);
    prefix_match(&w->cache, 0, a, 6, NULL, &pages, &node);
    prefix_lock(&w->cache, node);
    tap_ok(w->cache.locked_pages == 3 && prefix_evict(&w->cache, 100) == 6 && held(w, 0, a, 8) == 3 && held(w, 0, b, 8) == 2, "evict drops all but the locked way");
    tap_ok(prefix_evict(&w->cache, 1) == 0, "evict with everything locked drops nothing");
    prefix_match(&w->cache, 0, a, 2, NULL, &pages, &node);
    tap_ok(node->locks == 1 && w->cache.locked_pages == 3 && pages == 1, "a split keeps the lock on both parts");
    while (node->children) node = prefix_child(&w->cache, node, 0, a + (node->parent ? 4 : 2));
    prefix_unlock(&w->cache, node);
    tap_ok(w->cache.locked_pages == 0 && prefix_evict(&w->cache, 1) >= 1, "unlocking the lower part frees the upper too");
    prefix_evict(&w->cache, 100);
    put(w, 0, a, 2);
    hash = prefix_hash(&w->cache, NULL, 0, b + 4);
    node = prefix_child(&w->cache, NULL, 0, a);
    prefix_unlink(&w->cache, node);
    node->hash = hash, node->next = *prefix_bucket(&w->cache, node), *prefix_bucket(&w->cache, node) = node;
    tap_ok(held(w, 0, b + 4, 2) == 0, "a key with the same hash but other tokens does not match");
    prefix_unlink(&w->cache, node);
    node->hash = prefix_hash(&w->cache, NULL, 5, a);
    node->next = *prefix_bucket(&w->cache, node), *prefix_bucket(&w->cache, node) = node;
    tap_ok(held(w, 5, a, 2) == 0, "nor one of another namespace");
    tap_ok(close_world(w), "every page came back");
}

static void test_lru(void) {
    static const int32_t x[] = {1, 1}, y[] = {2, 2}, z[] = {3, 3};
    world *w = open_world(1);
    put(w, 0, x, 2), put(w, 0, y, 2), put(w, 0, z, 2);
    held(w, 0, x, 1);
    tap_ok(prefix_evict(&w->cache, 1) == 2 && held(w, 0, y, 2) == 0 && held(w, 0, z, 2) == 2 && held(w, 0, x, 2) == 2, "evict takes the least recently used, whole");
    tap_ok(prefix_evict(&w->cache, 3) == 4 && w->cache.pages == 0, "until at least as many as asked are dropped");
    tap_ok(close_world(w), "every page came back");
}

/* ---- speed: a prompt of 32K tokens among a million; the bench line of this cache ---- */

enum { PROMPT = 32768, HELD = 1 << 20, RUNS = 32 };

typedef struct speed { double match[RUNS], insert[RUNS]; } speed;

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Prompt after prompt, each beginning as the one before for `shared` tokens at most; `step`: tokens
 * of a turn, each turn inserted by itself. */
static int fill_up(world *w, int32_t *tokens, int32_t *ids, int step, speed *out) {
    int i, run, pages = 0, present = 0, wrong = 0;
    for (run = 0; run < RUNS; run++) {
        int shared = run ? between(0, 2048) : 0, end;
        int64_t start;
        for (i = shared; i < PROMPT; i++) tokens[i] = between(0, 49151);
        wrong += !pages_take(&w->pool, PROMPT / w->size, ids);
        for (end = step; end < PROMPT; end += step) prefix_insert(&w->cache, 0, tokens, end, ids, &present);
        start = os_now_us();
        wrong += prefix_insert(&w->cache, 0, tokens, PROMPT, ids, &present) != CAIRN_OK;
        out->insert[run] = (double)(os_now_us() - start);
        memset(ids, 0, PROMPT / (size_t)w->size * 4);
        if (run) { /* something else was looked at in between */
            held(w, 0, tokens, w->size);
        }
        start = os_now_us();
        prefix_match(&w->cache, 0, tokens, PROMPT, ids, &pages, NULL);
        out->match[run] = (double)(os_now_us() - start);
        wrong += pages != PROMPT / w->size;
    }
    qsort(out->match, RUNS, sizeof(double), compare), qsort(out->insert, RUNS, sizeof(double), compare);
    return wrong;
}

static void test_speed(int size, int step) {
    world *w = (world *)calloc(1, sizeof *w);
    cairn_allocator none;
    int32_t *tokens = (int32_t *)malloc(PROMPT * 4), *ids = (int32_t *)malloc(PROMPT * 4);
    speed s;
    int wrong;
    memset(&none, 0, sizeof none);
    base_init(&w->b, &none, NULL, NULL, CAIRN_LOG_OFF);
    w->size = size;
    pages_open(&w->b, 2 * HELD / size, &w->pool);
    prefix_open(&w->b, &w->pool, size, &w->cache);
    wrong = fill_up(w, tokens, ids, step, &s);
    tap_ok(!wrong, "pages of %d, %lld tokens held in %d nodes: match of 32K tokens %.0f us (worst of %d: %.0f), insert %.0f us (%.0f)", size,
           (long long)(w->cache.pages * size), w->cache.nodes, s.match[RUNS / 2], RUNS, s.match[RUNS - 1], s.insert[RUNS / 2], s.insert[RUNS - 1]);
    prefix_close(&w->cache), pages_close(&w->b, &w->pool);
    free(w), free(tokens), free(ids);
}

int main(int count, char **words) {
    int rounds = count > 1 ? atoi(words[1]) : 250000, size;
    state = random_seed();
    test_directed();
    test_lru();
    for (size = 1; size <= SIZE_MOST; size++) test_fuzz(size, rounds);
    test_speed(16, PROMPT), test_speed(64, PROMPT);
    test_speed(16, 512), test_speed(64, 512); /* turns of 512 tokens: a node each */
    test_speed(16, 16), test_speed(64, 64);  /* a node for every page */
    return tap_done();
}
