/* lua_prefix: prefix caches in Lua. A cache keeps its pool's userdata in user value 2. */
#ifndef CAIRN_NO_LUA

#define BIND_PREFIX_CACHE "cairn.prefix_cache"

static cairn_prefix_cache *bind_to_prefix_cache(lua_State *L, cairn_runtime **rt) {
    return (cairn_prefix_cache *)bind_to_object(L, 1, BIND_PREFIX_CACHE, rt);
}

/* rt:prefix_cache { pool =, page_size = } */
static int bind_make_prefix_cache(lua_State *L) {
    cairn_runtime *rt = bind_to_runtime(L, 1), *pool_rt;
    cairn_prefix_cache *c = NULL;
    cairn_prefix_options options;
    bind_object *o;
    luaL_checktype(L, 2, LUA_TTABLE);
    lua_settop(L, 2);
    memset(&options, 0, sizeof options);
    options.struct_size = (uint32_t)sizeof options;
    options.page_size = bind_int_field(L, 2, "page_size", 0);
    if (bind_field(L, 2, "pool") != LUA_TNIL)
        options.pool = bind_to_page_pool(L, 3, &pool_rt);
    o = (bind_object *)bind_new_object(L, BIND_PREFIX_CACHE, sizeof *o, 1, 2);
    lua_pushvalue(L, 3);
    lua_setiuservalue(L, -2, 2);
    bind_check(L, rt, cairn_prefix_new(rt, &options, &c));
    o->object = c;
    return 1;
}

static void bind_give_prefix(lua_State *L, cairn_runtime *rt, void *held) {
    (void)L, (void)rt;
    cairn_prefix_free((cairn_prefix_cache *)held);
}

/* The ids at stack index 2 and the `space` of the options at `options`. */
static void bind_to_prefix_key(lua_State *L, int options, cairn_prefix_key *key) {
    int count;
    memset(key, 0, sizeof *key);
    key->struct_size = (uint32_t)sizeof *key;
    key->ids = bind_to_ids(L, 2, &count);
    key->count = count;
    if (!bind_options(L, options, "prefix", "space\0lock\0")) return;
    if (bind_field(L, options, "space") != LUA_TNIL)
        key->space = (uint64_t)luaL_checkinteger(L, -1);
    lua_pop(L, 1);
}

/* c:match(ids, { space =, lock = true }) -> page ids, tokens, lock */
static int bind_prefix_match(lua_State *L) {
    cairn_runtime *rt;
    cairn_prefix_cache *c = bind_to_prefix_cache(L, &rt);
    cairn_prefix_key key;
    int64_t lock = 0;
    int32_t *pages, matched = 0;
    bool locks = false;
    lua_settop(L, 3);
    bind_to_prefix_key(L, 3, &key);
    if (lua_istable(L, 3)) {
        bind_field(L, 3, "lock");
        locks = lua_toboolean(L, -1);
        lua_pop(L, 1);
    }
    pages = (int32_t *)lua_newuserdatauv(L, ((size_t)key.count + 1) * sizeof *pages, 0);
    bind_check(L, rt, cairn_prefix_match(c, &key, pages, &matched, locks ? &lock : NULL));
    bind_push_ids(L, pages, matched / c->tree.page_size);
    lua_pushinteger(L, matched);
    if (!lock) return 2;
    lua_pushinteger(L, (lua_Integer)lock);
    return 3;
}

/* c:insert(ids, page ids, { space = }) -> tokens that were present */
static int bind_prefix_insert(lua_State *L) {
    cairn_runtime *rt;
    cairn_prefix_cache *c = bind_to_prefix_cache(L, &rt);
    cairn_prefix_key key;
    int count;
    int32_t present = 0;
    const int32_t *pages;
    lua_settop(L, 4);
    bind_to_prefix_key(L, 4, &key);
    pages = bind_to_ids(L, 3, &count);
    if (count < key.count / c->tree.page_size)
        luaL_error(L, "insert: %d tokens have %d whole pages; %d page ids are given",
                   (int)key.count, (int)key.count / c->tree.page_size, count);
    bind_check(L, rt, cairn_prefix_insert(c, &key, pages, &present));
    lua_pushinteger(L, present);
    return 1;
}

/* c:unlock(lock) */
static int bind_prefix_unlock(lua_State *L) {
    cairn_runtime *rt;
    cairn_prefix_cache *c = bind_to_prefix_cache(L, &rt);
    bind_check(L, rt, cairn_prefix_unlock(c, (int64_t)luaL_checkinteger(L, 2)));
    return 0;
}

/* c:evict(tokens) -> tokens */
static int bind_prefix_evict(lua_State *L) {
    cairn_runtime *rt;
    cairn_prefix_cache *c = bind_to_prefix_cache(L, &rt);
    int64_t evicted = 0;
    bind_check(L, rt, cairn_prefix_evict(c, (int64_t)luaL_checkinteger(L, 2), &evicted));
    lua_pushinteger(L, (lua_Integer)evicted);
    return 1;
}

/* c:info() -> a table with the fields of cairn_prefix_properties */
static int bind_prefix_info(lua_State *L) {
    cairn_runtime *rt;
    cairn_prefix_cache *c = bind_to_prefix_cache(L, &rt);
    cairn_prefix_properties info;
    memset(&info, 0, sizeof info);
    info.struct_size = (uint32_t)sizeof info;
    bind_check(L, rt, cairn_prefix_info(c, &info));
    lua_newtable(L);
    bind_set_integer(L, "page_size", info.page_size);
    bind_set_integer(L, "nodes", info.nodes);
    bind_set_integer(L, "locks", info.locks);
    bind_set_integer(L, "tokens", info.tokens);
    bind_set_integer(L, "locked_tokens", info.locked_tokens);
    return 1;
}

static void bind_new_prefix_type(lua_State *L) {
    static const luaL_Reg methods[] = {
        {"match", bind_prefix_match},   {"insert", bind_prefix_insert},
        {"unlock", bind_prefix_unlock}, {"evict", bind_prefix_evict},
        {"info", bind_prefix_info},     {NULL, NULL}};
    static const bind_handle caches = {BIND_PREFIX_CACHE, "close", bind_give_prefix};
    bind_new_handle(L, &caches, methods);
}

#endif
