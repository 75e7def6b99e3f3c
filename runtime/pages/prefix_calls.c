/* prefix_calls: the public calls on prefix caches. Locks are numbers, so that one given back twice
 * is found out. Calls prefix, pages_calls and handles. */

typedef struct prefix_hold { int64_t id; prefix_node *node; } prefix_hold; /* id 0: free */

struct cairn_prefix_cache {
    cairn_runtime *rt;
    cairn_prefix_cache *next; /* of rt->prefix_caches */
    cairn_page_pool *from;
    prefix_cache tree;
    prefix_hold *holds; /* [hold_capacity]; lock id = serial * 2^24 + place + 1 */
    int hold_capacity, hold_count;
    int64_t serial;
};

enum { PREFIX_HOLDS = 1 << 24 };

/* ---- new and free ------------------------------------------------------------------------------ */

static cairn_status prefix_check_options(cairn_runtime *rt, cairn_prefix_options *o) {
    if (!o->page_size) o->page_size = rt->config.page_size;
    if (o->page_size < 1 || o->page_size > 256)
        return base_fail(&rt->base, CAIRN_INVALID_ARGUMENT,
                         "prefix_cache: page_size = %d; 1 to 256 is expected", (int)o->page_size);
    if (!o->pool || o->pool->rt != rt)
        return base_fail(&rt->base, CAIRN_INVALID_ARGUMENT, "prefix_cache: pool is %s",
                         o->pool ? "of another runtime" : "NULL");
    return CAIRN_OK;
}

cairn_status cairn_prefix_new(cairn_runtime *rt, const cairn_prefix_options *options,
                              cairn_prefix_cache **out) {
    cairn_prefix_options o;
    cairn_prefix_cache *c;
    cairn_status status = handles_need(rt, "prefix_cache", out, "cache");
    if (out) *out = NULL;
    if (status || (status = OPS_TAKE(rt, "prefix_cache", o, options))) return status;
    if ((status = prefix_check_options(rt, &o))) return status;
    c = (cairn_prefix_cache *)base_new(&rt->base, 1, sizeof *c);
    if (!c) return base_no_memory(&rt->base, "a prefix cache", sizeof *c);
    if ((status = prefix_open(&rt->base, &o.pool->ids, o.page_size, &c->tree))) {
        base_delete(&rt->base, c, 1, sizeof *c);
        return status;
    }
    c->rt = rt;
    c->from = o.pool;
    c->from->users++;
    c->next = rt->prefix_caches;
    rt->prefix_caches = c;
    return *out = c, CAIRN_OK;
}

cairn_status cairn_prefix_free(cairn_prefix_cache *c) {
    cairn_prefix_cache **link;
    base *b;
    if (!c) return CAIRN_OK;
    b = &c->rt->base;
    for (link = &c->rt->prefix_caches; *link != c;) link = &(*link)->next;
    *link = c->next;
    prefix_close(&c->tree);
    c->from->users--;
    base_delete(b, c->holds, (size_t)c->hold_capacity, sizeof *c->holds);
    base_delete(b, c, 1, sizeof *c);
    return CAIRN_OK;
}

static void prefix_free_all(cairn_runtime *rt) {
    while (rt->prefix_caches) cairn_prefix_free(rt->prefix_caches);
}

/* ---- locks ------------------------------------------------------------------------------------- */

/* Room for one lock more. */
static cairn_status prefix_reserve_hold(cairn_prefix_cache *c) {
    int more = c->hold_capacity ? 2 * c->hold_capacity : 16;
    prefix_hold *larger;
    if (c->hold_count < c->hold_capacity) return CAIRN_OK;
    if (more > PREFIX_HOLDS)
        return base_fail(&c->rt->base, CAIRN_INVALID_ARGUMENT, "prefix_match: %d locks are held",
                         c->hold_count);
    larger = (prefix_hold *)base_new(&c->rt->base, (size_t)more, sizeof *larger);
    if (!larger)
        return base_no_memory(&c->rt->base, "locks of a prefix cache",
                              (size_t)more * sizeof *larger);
    if (c->hold_capacity) memcpy(larger, c->holds, (size_t)c->hold_capacity * sizeof *larger);
    base_delete(&c->rt->base, c->holds, (size_t)c->hold_capacity, sizeof *c->holds);
    c->holds = larger;
    c->hold_capacity = more;
    return CAIRN_OK;
}

/* The number of a lock on node, for which there is room. */
static int64_t prefix_hold_node(cairn_prefix_cache *c, prefix_node *node) {
    int at = 0;
    while (c->holds[at].id) at++;
    c->holds[at].id = ++c->serial * PREFIX_HOLDS + at + 1;
    c->holds[at].node = node;
    c->hold_count++;
    prefix_lock(&c->tree, node);
    return c->holds[at].id;
}

cairn_status cairn_prefix_unlock(cairn_prefix_cache *c, int64_t lock) {
    const int64_t at = lock > 0 ? (lock - 1) % PREFIX_HOLDS : 0;
    if (!c) return CAIRN_INVALID_ARGUMENT;
    if (!lock) return CAIRN_OK;
    if (lock < 0 || at >= c->hold_capacity || c->holds[at].id != lock)
        return base_fail(&c->rt->base, CAIRN_INVALID_ARGUMENT,
                         "prefix_unlock: lock %lld is not held", (long long)lock);
    prefix_unlock(&c->tree, c->holds[at].node);
    c->holds[at].id = 0;
    c->hold_count--;
    return CAIRN_OK;
}

/* ---- match, insert, evict ---------------------------------------------------------------------- */

static cairn_status prefix_take_key(cairn_prefix_cache *c, const char *call,
                                    const cairn_prefix_key *given, cairn_prefix_key *key) {
    cairn_status status = OPS_TAKE(c->rt, call, *key, given);
    if (status) return status;
    if (key->count >= 0 && (key->ids || !key->count)) return CAIRN_OK;
    return base_fail(&c->rt->base, CAIRN_INVALID_ARGUMENT, "%s: count = %d, ids %s", call,
                     (int)key->count, key->ids ? "given" : "NULL");
}

cairn_status cairn_prefix_match(cairn_prefix_cache *c, const cairn_prefix_key *given,
                                int32_t *pages, int32_t *matched, int64_t *lock) {
    cairn_prefix_key key;
    prefix_node *node = NULL;
    int found = 0;
    cairn_status status;
    if (matched) *matched = 0;
    if (lock) *lock = 0;
    if (!c) return CAIRN_INVALID_ARGUMENT;
    if ((status = prefix_take_key(c, "prefix_match", given, &key))) return status;
    if (!matched)
        return base_fail(&c->rt->base, CAIRN_INVALID_ARGUMENT, "prefix_match: matched is NULL");
    if (lock && (status = prefix_reserve_hold(c))) return status;
    status = prefix_match(&c->tree, key.space, key.ids, key.count, pages, &found,
                          lock ? &node : NULL);
    if (status) return status;
    *matched = found * c->tree.page_size;
    if (lock && node) *lock = prefix_hold_node(c, node);
    return CAIRN_OK;
}

cairn_status cairn_prefix_insert(cairn_prefix_cache *c, const cairn_prefix_key *given,
                                 const int32_t *pages, int32_t *present) {
    cairn_prefix_key key;
    int found = 0;
    cairn_status status;
    if (present) *present = 0;
    if (!c) return CAIRN_INVALID_ARGUMENT;
    if ((status = prefix_take_key(c, "prefix_insert", given, &key))) return status;
    if (!pages && key.count >= c->tree.page_size)
        return base_fail(&c->rt->base, CAIRN_INVALID_ARGUMENT, "prefix_insert: pages is NULL");
    status = prefix_insert(&c->tree, key.space, key.ids, key.count, pages, &found);
    if (!status && present) *present = found * c->tree.page_size;
    return status;
}

cairn_status cairn_prefix_evict(cairn_prefix_cache *c, int64_t tokens, int64_t *evicted) {
    int64_t pages;
    if (evicted) *evicted = 0;
    if (!c) return CAIRN_INVALID_ARGUMENT;
    if (tokens < 0)
        return base_fail(&c->rt->base, CAIRN_INVALID_ARGUMENT, "prefix_evict: tokens = %lld",
                         (long long)tokens);
    pages = tokens / c->tree.page_size + (tokens % c->tree.page_size != 0);
    pages = prefix_evict(&c->tree, pages);
    if (evicted) *evicted = pages * c->tree.page_size;
    return CAIRN_OK;
}

cairn_status cairn_prefix_info(cairn_prefix_cache *c, cairn_prefix_properties *info) {
    cairn_prefix_properties p;
    cairn_status status;
    if (!c) return CAIRN_INVALID_ARGUMENT;
    if ((status = OPS_TAKE(c->rt, "prefix_info", p, info))) return status;
    p.page_size = c->tree.page_size;
    p.nodes = c->tree.nodes;
    p.locks = c->hold_count;
    p.tokens = c->tree.pages * c->tree.page_size;
    p.locked_tokens = c->tree.locked_pages * c->tree.page_size;
    memcpy(info, &p, info->struct_size < sizeof p ? info->struct_size : sizeof p);
    return CAIRN_OK;
}
