/* lua_pages: page pools and page tables in Lua. Requests and page ids count from 0, as in tensors;
 * a list for the whole batch has request r at [r + 1]. Tables keep their pool's userdata in user
 * value 2; their tensors are views that keep the tables. */
#ifndef CAIRN_NO_LUA

#define BIND_PAGE_POOL "cairn.page_pool"
#define BIND_PAGE_TABLES "cairn.page_tables"

/* ---- pools ----------------------------------------------------------------------------------- */

static cairn_page_pool *bind_to_page_pool(lua_State *L, int arg, cairn_runtime **rt) {
    return (cairn_page_pool *)bind_to_object(L, arg, BIND_PAGE_POOL, rt);
}

/* The whole number of field `key` in the table at `arg`, `otherwise` when it is absent. */
static int bind_int_field(lua_State *L, int arg, const char *key, int otherwise) {
    int value = otherwise;
    if (bind_field(L, arg, key) != LUA_TNIL) value = bind_to_int32(L, -1, key);
    lua_pop(L, 1);
    return value;
}

/* rt:page_pool(pages) */
static int bind_make_page_pool(lua_State *L) {
    cairn_runtime *rt = bind_to_runtime(L, 1);
    int pages = bind_to_int32(L, 2, "page_pool: pages");
    cairn_page_pool *pool_made = NULL;
    bind_object *o = (bind_object *)bind_new_object(L, BIND_PAGE_POOL, sizeof *o, 1, 1);
    bind_check(L, rt, cairn_page_pool_new(rt, pages, &pool_made));
    o->object = pool_made;
    return 1;
}

/* Collected while tables use it, it is freed with the runtime. */
static void bind_give_page_pool(lua_State *L, cairn_runtime *rt, void *held) {
    (void)L, (void)rt;
    cairn_page_pool_free((cairn_page_pool *)held);
}

/* p:close() */
static int bind_page_pool_close(lua_State *L) {
    cairn_runtime *rt;
    bind_object *o = (bind_object *)luaL_checkudata(L, 1, BIND_PAGE_POOL);
    if (!o->object) return 0;
    bind_to_page_pool(L, 1, &rt);
    bind_check(L, rt, cairn_page_pool_free((cairn_page_pool *)o->object));
    o->object = NULL;
    return 0;
}

/* p:take(count) -> ids */
static int bind_page_pool_take(lua_State *L) {
    cairn_runtime *rt;
    cairn_page_pool *p = bind_to_page_pool(L, 1, &rt);
    int count = bind_to_int32(L, 2, "take: count");
    int32_t *ids = NULL;
    if (count > 0 && count <= cairn_page_pool_free_pages(p))
        ids = (int32_t *)lua_newuserdatauv(L, (size_t)count * sizeof *ids, 0);
    bind_check(L, rt, cairn_page_pool_take(p, count, ids ? ids : &count));
    bind_push_ids(L, ids, count);
    return 1;
}

/* p:retain(ids), p:give(ids) */
static int bind_page_pool_ids(lua_State *L, cairn_status (*change)(cairn_page_pool *, const int32_t *,
                                                                   int)) {
    cairn_runtime *rt;
    cairn_page_pool *p = bind_to_page_pool(L, 1, &rt);
    int count;
    const int32_t *ids = bind_to_ids(L, 2, &count);
    bind_check(L, rt, change(p, ids, count));
    return 0;
}
static int bind_page_pool_retain(lua_State *L) {
    return bind_page_pool_ids(L, cairn_page_pool_retain);
}
static int bind_page_pool_give(lua_State *L) { return bind_page_pool_ids(L, cairn_page_pool_give); }

/* p:free_pages() -> count; p:references(id) -> count */
static int bind_page_pool_free_pages(lua_State *L) {
    cairn_runtime *rt;
    lua_pushinteger(L, cairn_page_pool_free_pages(bind_to_page_pool(L, 1, &rt)));
    return 1;
}

static int bind_page_pool_references(lua_State *L) {
    cairn_runtime *rt;
    cairn_page_pool *p = bind_to_page_pool(L, 1, &rt);
    lua_pushinteger(L, cairn_page_pool_references(p, bind_to_int32(L, 2, "references: id")));
    return 1;
}

/* ---- tables ---------------------------------------------------------------------------------- */

static cairn_page_tables *bind_to_page_tables(lua_State *L, int arg, cairn_runtime **rt) {
    return (cairn_page_tables *)bind_to_object(L, arg, BIND_PAGE_TABLES, rt);
}

/* rt:page_tables { requests =, max_tokens =, page_size =, pool = } */
static int bind_make_page_tables(lua_State *L) {
    cairn_runtime *rt = bind_to_runtime(L, 1), *pool_rt;
    cairn_page_tables *t = NULL;
    cairn_page_tables_options options;
    bind_object *o;
    luaL_checktype(L, 2, LUA_TTABLE);
    lua_settop(L, 2);
    memset(&options, 0, sizeof options);
    options.struct_size = (uint32_t)sizeof options;
    options.requests = bind_int_field(L, 2, "requests", 0);
    options.max_tokens = bind_int_field(L, 2, "max_tokens", 0);
    options.page_size = bind_int_field(L, 2, "page_size", 0);
    if (bind_field(L, 2, "pool") != LUA_TNIL)
        options.pool = bind_to_page_pool(L, 3, &pool_rt);
    o = (bind_object *)bind_new_object(L, BIND_PAGE_TABLES, sizeof *o, 1, 2);
    lua_pushvalue(L, 3);
    lua_setiuservalue(L, -2, 2);
    bind_check(L, rt, cairn_page_tables_new(rt, &options, &t));
    o->object = t;
    return 1;
}

static void bind_give_page_tables(lua_State *L, cairn_runtime *rt, void *held) {
    (void)L, (void)rt;
    cairn_page_tables_free((cairn_page_tables *)held);
}

static void bind_page_lists(lua_State *L, const cairn_page_tables *t, cairn_runtime *rt,
                            cairn_page_lists *lists) {
    lists->struct_size = (uint32_t)sizeof *lists;
    bind_check(L, rt, cairn_page_tables_lists(t, lists));
}

typedef cairn_status (*bind_page_change)(cairn_page_tables *, const int32_t *);
typedef cairn_status (*bind_page_list_change)(cairn_page_tables *, const int32_t *, int);

/* t:CHANGE { one number for each request }; gives the tables. */
static int bind_page_counts(lua_State *L, const char *call, bind_page_change change) {
    cairn_runtime *rt;
    cairn_page_tables *t = bind_to_page_tables(L, 1, &rt);
    cairn_page_lists lists;
    int count;
    const int32_t *counts = bind_to_ids(L, 2, &count);
    bind_page_lists(L, t, rt, &lists);
    if (count != lists.requests)
        luaL_error(L, "%s: %d numbers; one for each of %d requests is expected", call, count,
                   (int)lists.requests);
    return bind_self(L, rt, change(t, counts));
}

/* t:CHANGE { requests }; gives the tables. */
static int bind_page_requests(lua_State *L, bind_page_list_change change) {
    cairn_runtime *rt;
    cairn_page_tables *t = bind_to_page_tables(L, 1, &rt);
    int count;
    const int32_t *requests = bind_to_ids(L, 2, &count);
    return bind_self(L, rt, change(t, requests, count));
}

#define BIND_PAGE_COUNTS(name)                                        \
    static int bind_page_tables_##name(lua_State *L) {                \
        return bind_page_counts(L, #name, cairn_page_tables_##name);  \
    }
#define BIND_PAGE_REQUESTS(name)                                      \
    static int bind_page_tables_##name(lua_State *L) {                \
        return bind_page_requests(L, cairn_page_tables_##name);       \
    }
BIND_PAGE_COUNTS(insert)
BIND_PAGE_COUNTS(delete)
BIND_PAGE_COUNTS(allocate)
BIND_PAGE_COUNTS(release)
BIND_PAGE_REQUESTS(add)
BIND_PAGE_REQUESTS(remove)
BIND_PAGE_REQUESTS(allocate_for)
BIND_PAGE_REQUESTS(release_for)

static int bind_page_tables_clear(lua_State *L) {
    cairn_runtime *rt;
    cairn_page_tables *t = bind_to_page_tables(L, 1, &rt);
    return bind_self(L, rt, cairn_page_tables_clear(t));
}

/* t:fork(from, to) */
static int bind_page_tables_fork(lua_State *L) {
    cairn_runtime *rt;
    cairn_page_tables *t = bind_to_page_tables(L, 1, &rt);
    int from = bind_to_int32(L, 2, "fork: from"), to = bind_to_int32(L, 3, "fork: to");
    return bind_self(L, rt, cairn_page_tables_fork(t, from, to));
}

/* t:adopt(request, ids, tokens) */
static int bind_page_tables_adopt(lua_State *L) {
    cairn_runtime *rt;
    cairn_page_tables *t = bind_to_page_tables(L, 1, &rt);
    int r = bind_to_int32(L, 2, "adopt: request"), tokens = bind_to_int32(L, 4, "adopt: tokens");
    cairn_page_lists lists;
    int count;
    const int32_t *ids = bind_to_ids(L, 3, &count);
    bind_page_lists(L, t, rt, &lists);
    if (tokens < 1 || count != (tokens - 1) / lists.page_size + 1)
        luaL_error(L, "adopt: %d tokens do not fill %d pages of %d", tokens, count,
                   (int)lists.page_size);
    return bind_self(L, rt, cairn_page_tables_adopt(t, r, ids, tokens));
}

/* t:copies() -> { { from, to }, ... }: what the last insert wants copied, fetched with this */
static int bind_page_tables_copies(lua_State *L) {
    cairn_runtime *rt;
    cairn_page_tables *t = bind_to_page_tables(L, 1, &rt);
    cairn_page_lists lists;
    int32_t *pairs;
    int count;
    bind_page_lists(L, t, rt, &lists);
    pairs = (int32_t *)lua_newuserdatauv(L, (size_t)lists.requests * 2 * sizeof *pairs, 0);
    bind_check(L, rt, cairn_page_tables_copies(t, pairs, &count));
    lua_createtable(L, count, 0);
    for (int i = 0; i < count; i++) {
        bind_push_ids(L, pairs + 2 * i, 2);
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

/* t:update(): brings the tensors up to date */
static int bind_page_tables_update(lua_State *L) {
    cairn_runtime *rt;
    cairn_page_tables *t = bind_to_page_tables(L, 1, &rt);
    return bind_self(L, rt, cairn_page_tables_update(t));
}

/* t:pages(request) -> page ids; t:lengths() -> tokens of each request, -1 when it is not live */
static int bind_page_tables_pages(lua_State *L) {
    cairn_runtime *rt;
    cairn_page_tables *t = bind_to_page_tables(L, 1, &rt);
    int r = bind_to_int32(L, 2, "pages: request");
    cairn_page_lists lists;
    bind_page_lists(L, t, rt, &lists);
    if (r < 0 || r >= lists.requests)
        luaL_error(L, "pages: request %d; there are %d", r, (int)lists.requests);
    bind_push_ids(L, lists.page_table + (size_t)r * (size_t)lists.max_pages, lists.pages[r]);
    return 1;
}

static int bind_page_tables_lengths(lua_State *L) {
    cairn_runtime *rt;
    cairn_page_tables *t = bind_to_page_tables(L, 1, &rt);
    cairn_page_lists lists;
    bind_page_lists(L, t, rt, &lists);
    lua_createtable(L, lists.requests, 0);
    for (int r = 0; r < lists.requests; r++) {
        lua_pushinteger(L, lists.pages[r] ? lists.lengths[r] : -1);
        lua_rawseti(L, -2, r + 1);
    }
    return 1;
}

/* Adds a view of a tensor of the tables at stack index 1 to the table at the top. */
static void bind_set_page_tensor(lua_State *L, int owner, const char *key, const cairn_tensor *of) {
    bind_tensor *t = (bind_tensor *)bind_new_object(L, BIND_TENSOR, sizeof *t, owner, 2);
    t->view = *of;
    memcpy(t->shape, of->shape, (size_t)of->ndim * sizeof *of->shape);
    t->view.shape = t->shape;
    t->tensor = &t->view;
    lua_pushvalue(L, 1);
    lua_setiuservalue(L, -2, 2);
    lua_setfield(L, -2, key);
}

/* t:tensors() -> { page_table =, lengths =, indptr =, indices =, last_page_len =, copies = } */
static int bind_page_tables_tensors(lua_State *L) {
    cairn_runtime *rt;
    cairn_page_tables *t = bind_to_page_tables(L, 1, &rt);
    cairn_page_tensors v;
    int owner = bind_push_owner(L, 1);
    v.struct_size = (uint32_t)sizeof v;
    bind_check(L, rt, cairn_page_tables_tensors(t, &v));
    lua_newtable(L);
    bind_set_page_tensor(L, owner, "page_table", v.page_table);
    bind_set_page_tensor(L, owner, "lengths", v.lengths);
    bind_set_page_tensor(L, owner, "indptr", v.indptr);
    bind_set_page_tensor(L, owner, "indices", v.indices);
    bind_set_page_tensor(L, owner, "last_page_len", v.last_page_len);
    bind_set_page_tensor(L, owner, "copies", v.copies);
    return 1;
}

/* ---- snapshots ------------------------------------------------------------------------------- */

/* The options { caches = { tensors }, name = } at `arg`; their memory stays on the stack. */
static void bind_read_snapshot(lua_State *L, cairn_runtime *rt, int arg, cairn_snapshot_args *a) {
    cairn_tensor **caches = NULL;
    memset(a, 0, sizeof *a);
    a->struct_size = (uint32_t)sizeof *a;
    luaL_checktype(L, arg, LUA_TTABLE);
    bind_field(L, arg, "name");
    a->name = luaL_optstring(L, -1, NULL);
    if (bind_field(L, arg, "caches") != LUA_TTABLE) luaL_error(L, "caches: a list is expected");
    a->cache_count = (int32_t)lua_rawlen(L, -1);
    caches = (cairn_tensor **)lua_newuserdatauv(L, (size_t)a->cache_count * sizeof *caches + 1, 0);
    for (int i = 0; i < a->cache_count; i++) {
        lua_rawgeti(L, -2, i + 1);
        caches[i] = bind_to_tensor(L, lua_gettop(L));
        if (bind_owner(L, lua_gettop(L)) != rt)
            luaL_error(L, "caches: tensor %d is of another runtime", i + 1);
        lua_pop(L, 1);
    }
    a->caches = caches;
}

/* The arguments (request, { caches =, name =, tokens = ids, state = string }) of a save, and the
 * bytes it takes. */
static size_t bind_read_save(lua_State *L, cairn_page_tables *t, cairn_runtime *rt,
                             cairn_snapshot_args *a) {
    size_t bytes = 0;
    lua_settop(L, 3);
    bind_read_snapshot(L, rt, 3, a);
    a->request = bind_to_int32(L, 2, "save: request");
    if (bind_field(L, 3, "tokens") != LUA_TNIL)
        a->tokens = bind_to_ids(L, lua_gettop(L), &a->token_count);
    if (bind_field(L, 3, "state") != LUA_TNIL) {
        const char *state = luaL_checklstring(L, lua_gettop(L), &a->state_bytes);
        a->state = lua_newuserdatauv(L, a->state_bytes + 1, 0);
        memcpy(a->state, state, a->state_bytes);
    }
    bind_check(L, rt, cairn_page_tables_save(t, a, NULL, 0, &bytes));
    return bytes;
}

static int bind_page_tables_save_bytes(lua_State *L) {
    cairn_runtime *rt;
    cairn_page_tables *t = bind_to_page_tables(L, 1, &rt);
    cairn_snapshot_args a;
    lua_pushinteger(L, (lua_Integer)bind_read_save(L, t, rt, &a));
    return 1;
}

/* t:save(request, options) -> a string; with out = rt:host(bytes) the bytes it took there, without
 * Lua's copy of so large a string */
static int bind_page_tables_save(lua_State *L) {
    cairn_runtime *rt;
    cairn_page_tables *t = bind_to_page_tables(L, 1, &rt);
    cairn_snapshot_args a;
    luaL_Buffer buffer;
    size_t bytes = bind_read_save(L, t, rt, &a);
    char *memory;
    if (bind_field(L, 3, "out") != LUA_TNIL) {
        size_t capacity;
        luaL_checktype(L, -1, LUA_TUSERDATA);
        memory = (char *)bind_to_memory(L, lua_gettop(L), &capacity);
        bind_check(L, rt, cairn_page_tables_save(t, &a, memory, capacity, &bytes));
        lua_pushinteger(L, (lua_Integer)bytes);
        return 1;
    }
    memory = luaL_buffinitsize(L, &buffer, bytes);
    bind_check(L, rt, cairn_page_tables_save(t, &a, memory, bytes, &bytes));
    luaL_pushresultsize(&buffer, bytes);
    return 1;
}

/* t:load(request, string or tensor, { caches =, name = }) -> tokens, state */
static int bind_page_tables_load(lua_State *L) {
    cairn_runtime *rt;
    cairn_page_tables *t = bind_to_page_tables(L, 1, &rt);
    cairn_snapshot_args a;
    cairn_snapshot_info info;
    size_t bytes;
    const void *memory = bind_to_memory(L, 3, &bytes);
    lua_settop(L, 4);
    bind_read_snapshot(L, rt, 4, &a);
    a.request = bind_to_int32(L, 2, "load: request");
    info.struct_size = (uint32_t)sizeof info;
    bind_check(L, rt, cairn_snapshot_describe(rt, memory, bytes, &info));
    a.token_count = info.token_count;
    a.state_bytes = (size_t)info.state_bytes;
    a.tokens = (int32_t *)lua_newuserdatauv(L, (size_t)a.token_count * 4 + 1, 0);
    a.state = lua_newuserdatauv(L, a.state_bytes + 1, 0);
    bind_check(L, rt, cairn_page_tables_load(t, &a, memory, bytes));
    bind_push_ids(L, a.tokens, a.token_count);
    lua_pushlstring(L, (const char *)a.state, a.state_bytes);
    return 2;
}

static const luaL_Reg bind_page_pool_methods[] = {
    {"take", bind_page_pool_take}, {"retain", bind_page_pool_retain}, {"give", bind_page_pool_give},
    {"free_pages", bind_page_pool_free_pages}, {"references", bind_page_pool_references},
    {"close", bind_page_pool_close}, {NULL, NULL},
};

#define BIND_METHOD(name) {#name, bind_page_tables_##name}
static const luaL_Reg bind_page_tables_methods[] = {
    BIND_METHOD(add),      BIND_METHOD(remove),  BIND_METHOD(fork),         BIND_METHOD(adopt),
    BIND_METHOD(insert),   BIND_METHOD(delete),  BIND_METHOD(clear),        BIND_METHOD(allocate),
    BIND_METHOD(release),  BIND_METHOD(copies),  BIND_METHOD(allocate_for), BIND_METHOD(release_for),
    BIND_METHOD(update),   BIND_METHOD(pages),   BIND_METHOD(lengths),      BIND_METHOD(tensors),
    BIND_METHOD(save),     BIND_METHOD(load),    BIND_METHOD(save_bytes),
    {NULL, NULL},
};

static void bind_new_page_types(lua_State *L) {
    static const bind_handle pools = {BIND_PAGE_POOL, NULL, bind_give_page_pool};
    static const bind_handle tables = {BIND_PAGE_TABLES, "close", bind_give_page_tables};
    bind_new_handle(L, &pools, bind_page_pool_methods);
    bind_new_handle(L, &tables, bind_page_tables_methods);
}

#endif
