/* lua_core: what the rest of the Lua module stands on: objects, errors, configs, the runtime.
 *
 * A Lua object is a userdata whose first field is the C object, NULL once it is closed. Those that
 * a runtime opened keep their runtime's userdata in user value 1, and look there first: after
 * rt:close() the C object is gone, whatever the order in which Lua collects. A userdata exists
 * before its C object, so that no Lua error can leak one. Names here begin with bind_, for lua_ is
 * Lua's own. */
#ifndef CAIRN_NO_LUA

#define BIND_RUNTIME "cairn.runtime"
#define BIND_ERROR_BYTES 8192

typedef struct bind_runtime {
    cairn_runtime *rt;
    int calls; /* running ones that call Lua: the runtime cannot close */
    bool bar, drawn;    /* progress is shown; and was since a load began */
    bool raised;        /* by the function of `loading`: its error lies on the stack */
    lua_State *loading; /* of the load or evaluation that runs; or NULL */
    int at;             /* where on its stack the runtime lies */
} bind_runtime; /* user values: see bind_graph; the function that loads ask, or nil */
typedef struct bind_object { void *object; } bind_object;        /* user value 1: its runtime */

/* ---- errors ---------------------------------------------------------------------------------- */

/* Raises `text` as it stands, without a position: the same words as in C. */
static int bind_raise_text(lua_State *L, const char *text) {
    lua_pushstring(L, text);
    return lua_error(L);
}

/* Raises the runtime's last error when status is one. */
static void bind_check(lua_State *L, cairn_runtime *rt, cairn_status status) {
    if (status) bind_raise_text(L, cairn_last_error(rt));
}

/* The same of a method that gives its object. */
static int bind_self(lua_State *L, cairn_runtime *rt, cairn_status status) {
    bind_check(L, rt, status);
    lua_settop(L, 1);
    return 1;
}

/* Edit distance of short names, for "did you mean". */
static int bind_distance(const char *a, const char *b) {
    int row[32], i, j, n = (int)strlen(b);
    if (strlen(a) > 31 || n > 31) return 99;
    for (j = 0; j <= n; j++) row[j] = j;
    for (i = 0; a[i]; i++) {
        int diagonal = row[0];
        row[0] = i + 1;
        for (j = 0; j < n; j++) {
            int best = diagonal + (a[i] != b[j]), up = row[j + 1] + 1, left = row[j] + 1;
            diagonal = row[j + 1];
            if (up < best) best = up;
            row[j + 1] = left < best ? left : best;
        }
    }
    return row[n];
}

/* An error; the closest name is a hint where it is close. */
static void bind_no_option(lua_State *L, const char *call, const char *name, const char *closest) {
    const size_t a = strlen(name), b = strlen(closest);
    if (bind_distance(name, closest) * 2 > (int)(a > b ? a : b))
        luaL_error(L, "%s: no option %s", call, name);
    luaL_error(L, "%s: no option %s; did you mean %s?", call, name, closest);
}

/* As lua_getfield, of a caller's table, but no code of the caller's runs, which might close what the
 * call is about: fields are inherited through tables alone, and the tables hold what they give. */
static int bind_field(lua_State *L, int table, const char *name) {
    lua_pushvalue(L, table);
    for (int tables = 0; tables < 16 && lua_istable(L, -1); tables++) {
        lua_pushstring(L, name);
        if (lua_rawget(L, -2) != LUA_TNIL || luaL_getmetafield(L, -2, "__index") == LUA_TNIL) {
            lua_remove(L, -2);
            return lua_type(L, -1);
        }
        lua_replace(L, -3);
        lua_pop(L, 1);
    }
    lua_pop(L, 1);
    lua_pushnil(L);
    return LUA_TNIL;
}

/* The options at `arg`: a table whose names are all among `names`, each ended by a NUL; false where
 * there are none. */
static bool bind_options(lua_State *L, int arg, const char *call, const char *names) {
    if (lua_isnoneornil(L, arg)) return false;
    luaL_checktype(L, arg, LUA_TTABLE);
    for (lua_pushnil(L); lua_next(L, arg); lua_pop(L, 1)) {
        const char *name, *known = names, *closest = names;
        if (lua_type(L, -2) != LUA_TSTRING)
            luaL_error(L, "%s: options have names, as in { %s = ... }", call, names);
        for (name = lua_tostring(L, -2); *known && strcmp(name, known); known += strlen(known) + 1)
            if (bind_distance(name, known) < bind_distance(name, closest)) closest = known;
        if (!*known) bind_no_option(L, call, name, closest);
    }
    return true;
}

/* Which of `names`, each ended by a NUL, the text at `index` is; nil: the first. */
static int bind_choice(lua_State *L, int index, const char *what, const char *names) {
    const char *name = lua_isnoneornil(L, index) ? names : lua_tostring(L, index), *known;
    luaL_Buffer all;
    int at = 0;
    index = lua_absindex(L, index);
    for (known = names; *known; known += strlen(known) + 1, at++)
        if (name && !strcmp(name, known)) return at;
    luaL_buffinit(L, &all);
    for (known = names; *known; known += strlen(known) + 1) {
        if (known != names) luaL_addstring(&all, ", ");
        luaL_addstring(&all, known);
    }
    luaL_pushresult(&all);
    luaL_tolstring(L, index, NULL);
    return luaL_error(L, "%s: %s is none of %s", what, lua_tostring(L, -1), lua_tostring(L, -2));
}

/* ---- objects --------------------------------------------------------------------------------- */

/* A metatable with methods, and as __gc and __close the function on the stack's top, which it pops:
 * as the method `word` too, unless that is NULL. */
static void bind_new_metatable(lua_State *L, const char *type, const luaL_Reg *methods,
                               const char *word) {
    int close = lua_gettop(L);
    luaL_newmetatable(L, type);
    lua_newtable(L);
    luaL_setfuncs(L, methods, 0);
    lua_pushvalue(L, close);
    if (word) lua_setfield(L, -2, word);
    lua_settop(L, close + 2);
    lua_setfield(L, -2, "__index");
    lua_pushvalue(L, close);
    lua_setfield(L, -2, "__gc");
    lua_pushvalue(L, close);
    lua_setfield(L, -2, "__close");
    lua_settop(L, close - 1);
}

/* The same for a type that closes in its own way. Pops nothing, pushes nothing. */
static void bind_new_type(lua_State *L, const char *type, const luaL_Reg *methods,
                          lua_CFunction close) {
    lua_pushcfunction(L, close);
    bind_new_metatable(L, type, methods, NULL);
}

/* Pushes a userdata of `bytes` zeros whose user value 1 is the runtime's userdata at `owner`. */
static void *bind_new_object(lua_State *L, const char *type, size_t bytes, int owner, int values) {
    void *object = lua_newuserdatauv(L, bytes, values);
    memset(object, 0, bytes);
    lua_pushvalue(L, owner);
    lua_setiuservalue(L, -2, 1);
    luaL_setmetatable(L, type);
    return object;
}

/* The runtime of the object at `arg`; NULL once that is closed. */
static cairn_runtime *bind_owner(lua_State *L, int arg) {
    bind_runtime *owner;
    lua_getiuservalue(L, arg, 1);
    owner = (bind_runtime *)lua_touserdata(L, -1);
    lua_pop(L, 1);
    return owner ? owner->rt : NULL;
}

/* Pushes the userdata of the runtime that owns the object at `arg`; its stack index. */
static int bind_push_owner(lua_State *L, int arg) {
    lua_getiuservalue(L, arg, 1);
    return lua_gettop(L);
}

/* The open C object at `arg`, and its runtime. */
static void *bind_to_object(lua_State *L, int arg, const char *type, cairn_runtime **rt) {
    bind_object *o = (bind_object *)luaL_checkudata(L, arg, type);
    *rt = bind_owner(L, arg);
    if (!*rt) luaL_error(L, "%s: its runtime is closed", type);
    if (!o->object) luaL_error(L, "%s: it is closed", type);
    return o->object;
}

/* For __gc and close: the C object when it is still there to be closed, forgotten by Lua. */
static void *bind_take_object(lua_State *L, const char *type, cairn_runtime **rt) {
    bind_object *o = (bind_object *)luaL_checkudata(L, 1, type);
    void *object = o->object;
    *rt = bind_owner(L, 1);
    o->object = NULL;
    return *rt ? object : NULL;
}

/* What a runtime opened and Lua holds: how it is given back while the runtime is open, in a method
 * of this name (NULL: its methods have one of their own), by Lua's collector, or at a block's end. */
typedef struct bind_handle {
    const char *type, *word;
    void (*give_back)(lua_State *L, cairn_runtime *rt, void *object); /* the userdata is at 1 */
} bind_handle;

static int bind_close_handle(lua_State *L) {
    const bind_handle *handle = (const bind_handle *)lua_touserdata(L, lua_upvalueindex(1));
    cairn_runtime *rt;
    void *object = bind_take_object(L, handle->type, &rt);
    if (object) handle->give_back(L, rt, object);
    return 0;
}

/* `handle` is static: the closing function keeps it. */
static void bind_new_handle(lua_State *L, const bind_handle *handle, const luaL_Reg *methods) {
    lua_pushlightuserdata(L, (void *)(uintptr_t)handle);
    lua_pushcclosure(L, bind_close_handle, 1);
    bind_new_metatable(L, handle->type, methods, handle->word);
}

static cairn_runtime *bind_to_runtime(lua_State *L, int arg) {
    bind_runtime *r = (bind_runtime *)luaL_checkudata(L, arg, BIND_RUNTIME);
    if (!r->rt) luaL_error(L, "the runtime is closed");
    return r->rt;
}

/* ---- small readers and writers of tables ----------------------------------------------------- */

static lua_Integer bind_to_whole(lua_State *L, int index, const char *what) {
    int exact;
    lua_Integer value = lua_tointegerx(L, index, &exact);
    if (!exact || lua_type(L, index) != LUA_TNUMBER)
        luaL_error(L, "%s: a whole number is expected, not %s", what,
                   luaL_tolstring(L, index, NULL));
    return value;
}

static int32_t bind_to_int32(lua_State *L, int index, const char *what) {
    lua_Integer value = bind_to_whole(L, index, what);
    if (value < INT32_MIN || value > INT32_MAX)
        luaL_error(L, "%s: %I is out of range", what, (LUAI_UACINT)value);
    return (int32_t)value;
}

static void bind_set_integer(lua_State *L, const char *key, int64_t value) {
    lua_pushinteger(L, (lua_Integer)value);
    lua_setfield(L, -2, key);
}

static void bind_set_number(lua_State *L, const char *key, double value) {
    lua_pushnumber(L, value);
    lua_setfield(L, -2, key);
}

static void bind_set_string(lua_State *L, const char *key, const char *value) {
    lua_pushstring(L, value);
    lua_setfield(L, -2, key);
}

static void bind_set_bool(lua_State *L, const char *key, bool value) {
    lua_pushboolean(L, value);
    lua_setfield(L, -2, key);
}

/* ---- config: a path, or a table that is written as Lua text and then read like a file -------- */

/* Pops the string at the top and adds it to the list at `out`. */
static void bind_add_piece(lua_State *L, int out) {
    lua_rawseti(L, out, (lua_Integer)lua_rawlen(L, out) + 1);
}

static void bind_add_text(lua_State *L, int out, const char *text) {
    lua_pushstring(L, text);
    bind_add_piece(L, out);
}

/* The string at `index`, quoted; bytes other than printable ASCII as \ddd. */
static void bind_add_quoted(lua_State *L, int out, int index) {
    size_t bytes, i;
    const char *text = lua_tolstring(L, index, &bytes);
    luaL_Buffer buffer;
    luaL_buffinit(L, &buffer);
    luaL_addchar(&buffer, '"');
    for (i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)text[i];
        char escaped[8];
        if (c >= ' ' && c < 127 && c != '"' && c != '\\') {
            luaL_addchar(&buffer, (char)c);
            continue;
        }
        snprintf(escaped, sizeof escaped, "\\%03u", c);
        luaL_addstring(&buffer, escaped);
    }
    luaL_addchar(&buffer, '"');
    luaL_pushresult(&buffer);
    bind_add_piece(L, out);
}

static void bind_add_number(lua_State *L, int out, int index) {
    char text[64];
    double value = lua_tonumber(L, index);
    if (lua_isinteger(L, index))
        snprintf(text, sizeof text, "%lld", (long long)lua_tointeger(L, index));
    else if (isnan(value)) snprintf(text, sizeof text, "(0/0)");
    else if (isinf(value)) snprintf(text, sizeof text, value > 0 ? "(1/0)" : "(-1/0)");
    else snprintf(text, sizeof text, floor(value) == value ? "%.1f" : "%.17g", value);
    base_decimal_point(text);
    bind_add_text(L, out, text);
}

static void bind_add_value(lua_State *L, int out, int index, int depth);

static void bind_add_table(lua_State *L, int out, int index, int depth) {
    if (depth > 16) luaL_error(L, "config: tables are nested too deep");
    luaL_checkstack(L, 8, "config");
    bind_add_text(L, out, "{");
    lua_pushnil(L);
    while (lua_next(L, index)) {
        int value = lua_gettop(L);
        bind_add_text(L, out, "[");
        bind_add_value(L, out, value - 1, depth);
        bind_add_text(L, out, "]=");
        bind_add_value(L, out, value, depth);
        bind_add_text(L, out, ",");
        lua_settop(L, value - 1);
    }
    bind_add_text(L, out, "}");
}

/* What a config cannot hold becomes a function, which the reader refuses by its key. */
static void bind_add_value(lua_State *L, int out, int index, int depth) {
    switch (lua_type(L, index)) {
        case LUA_TSTRING: bind_add_quoted(L, out, index); break;
        case LUA_TNUMBER: bind_add_number(L, out, index); break;
        case LUA_TBOOLEAN: bind_add_text(L, out, lua_toboolean(L, index) ? "true" : "false"); break;
        case LUA_TTABLE: bind_add_table(L, out, index, depth + 1); break;
        default: bind_add_text(L, out, "(function() end)");
    }
}

/* Pushes the strings of the list at `pieces` as one. */
static const char *bind_join(lua_State *L, int pieces) {
    luaL_Buffer buffer;
    lua_Integer i, count = (lua_Integer)lua_rawlen(L, pieces);
    luaL_buffinit(L, &buffer);
    for (i = 1; i <= count; i++) {
        lua_rawgeti(L, pieces, i);
        luaL_addvalue(&buffer);
    }
    luaL_pushresult(&buffer);
    return lua_tostring(L, -1);
}

/* Pushes the Lua text of the table at `index`, one line. */
static const char *bind_push_config_text(lua_State *L, int index, size_t *bytes) {
    int out;
    lua_newtable(L);
    out = lua_gettop(L);
    bind_add_text(L, out, "return ");
    bind_add_value(L, out, index, 0);
    bind_join(L, out);
    lua_remove(L, out);
    return lua_tolstring(L, -1, bytes);
}

/* A table has no lines: takes the ":1" out of every "config:1: ". */
static void bind_strip_lines(char *text) {
    static const char mark[] = "config:1: ";
    char *at;
    while ((at = strstr(text, mark)) != NULL)
        memmove(at + 6, at + 8, strlen(at + 8) + 1), text = at + 8;
}

/* The config at `index`: nil, a path or a table. Raises every mistake at once. */
static void bind_to_config(lua_State *L, int index, cairn_config *config) {
    char error[BIND_ERROR_BYTES] = "";
    cairn_status status;
    if (lua_isnoneornil(L, index)) {
        cairn_config_default(config);
        return;
    }
    if (lua_type(L, index) == LUA_TTABLE) {
        size_t bytes;
        const char *text = bind_push_config_text(L, index, &bytes);
        status = cairn_config_parse(text, bytes, "config", config, error, sizeof error);
        lua_pop(L, 1);
        bind_strip_lines(error);
    } else {
        status = cairn_config_load(luaL_checkstring(L, index), config, error, sizeof error);
    }
    if (status) bind_raise_text(L, error);
}

/* Pushes the config as a table. */
static int bind_push_config(lua_State *L, const cairn_config *config) {
    char text[CAIRN_CONFIG_TEXT_BYTES];
    if (cairn_config_dump(config, text, sizeof text)) luaL_error(L, "the config is too long");
    if (luaL_loadbufferx(L, text, strlen(text), "=config", "t")) return lua_error(L);
    lua_call(L, 0, 1);
    return 1;
}

/* cairn.check(path or table) -> the config with every default filled in */
static int bind_check_config(lua_State *L) {
    cairn_config config;
    bind_to_config(L, 1, &config);
    return bind_push_config(L, &config);
}

/* ---- the runtime ----------------------------------------------------------------------------- */

/* A bar on standard error while kernels compile. */
typedef struct bind_moment { const char *what; int index, count; } bind_moment; /* of progress */

static void bind_draw(const bind_moment *s) {
    const size_t bytes = strlen(s->what);
    char bar[25] = "                        ";
    int done = s->count > 0 ? (int)((int64_t)s->index * 24 / s->count) : 24;
    memset(bar, '#', (size_t)(done < 0 ? 0 : done > 24 ? 24 : done));
    fprintf(stderr, "\r[%s] %d/%d %-36.36s%s", bar, s->index, s->count, s->what + (bytes > 36 ? bytes - 36 : 0),
            s->index >= s->count ? "\r\x1b[K" : "");
    fflush(stderr);
}

/* Arguments: the runtime, the step. Gives what its function for loads gives. */
static int bind_ask_loading(lua_State *L) {
    const bind_moment *s = (const bind_moment *)lua_touserdata(L, 2);
    if (lua_getiuservalue(L, 1, 2) == LUA_TNIL) return 1;
    lua_pushstring(L, s->what);
    lua_pushinteger(L, s->index);
    lua_pushinteger(L, s->count);
    lua_call(L, 3, 1);
    return 1;
}

/* A cairn_progress_callback. An error passes no C frame of what is asked about. */
static bool bind_progress(void *user, const char *what, int index, int count) {
    bind_runtime *r = (bind_runtime *)user;
    lua_State *L = r->loading;
    bind_moment step;
    bool more;
    step.what = what, step.index = index, step.count = count;
    if (r->bar) bind_draw(&step), r->drawn = true;
    if (!L || r->raised || !lua_checkstack(L, 4)) return !r->raised;
    r->loading = NULL; /* another load within is not asked about */
    lua_pushcfunction(L, bind_ask_loading);
    lua_pushvalue(L, r->at);
    lua_pushlightuserdata(L, &step);
    r->raised = lua_pcall(L, 2, 1, 0) != LUA_OK;
    r->loading = L;
    if (r->raised) return false;
    more = !lua_isboolean(L, -1) || lua_toboolean(L, -1);
    lua_pop(L, 1);
    return more;
}

/* Around a load or an evaluation of the runtime at `at`. */
static bind_runtime *bind_begin_load(lua_State *L, int at) {
    bind_runtime *r = (bind_runtime *)luaL_checkudata(L, at, BIND_RUNTIME);
    r->drawn = false;
    r->loading = L;
    r->at = at;
    r->calls++;
    return r;
}

static void bind_end_load(lua_State *L, bind_runtime *r, cairn_status status) {
    const bool raised = r->raised;
    r->calls--;
    r->loading = NULL;
    r->raised = false;
    if (r->drawn) fputs("\r\x1b[K", stderr);
    if (raised) lua_error(L);
    bind_check(L, r->rt, status);
}

/* Lines of their own amid text that streams to the same terminal. */
static void bind_log_apart(void *user, cairn_log_level level, const char *text) {
    fputc('\n', stderr);
    cairn_log_stderr(user, level, text);
}

/* cairn.open([path or table [, { progress = true, log = false, loading = f }]]) -> runtime; log = "apart":
 * each line begins a new one; f(what, index, count) is called while a model loads or evaluates: false ends that */
static int bind_open(lua_State *L) {
    char error[BIND_ERROR_BYTES];
    cairn_config config;
    bind_runtime *r;
    lua_settop(L, 2);
    bind_to_config(L, 1, &config);
    config.log_callback = cairn_log_stderr; /* mistakes before this were raised, not logged */
    r = (bind_runtime *)lua_newuserdatauv(L, sizeof *r, 2);
    memset(r, 0, sizeof *r);
    luaL_setmetatable(L, BIND_RUNTIME);
    config.progress_callback = bind_progress;
    config.progress_user = r;
    if (lua_istable(L, 2)) {
        if (bind_field(L, 2, "loading"), !lua_isnil(L, -1)) luaL_checktype(L, -1, LUA_TFUNCTION);
        lua_setiuservalue(L, 3, 2);
        r->bar = (bind_field(L, 2, "progress"), lua_toboolean(L, -1));
        if (bind_field(L, 2, "log"), lua_isboolean(L, -1) && !lua_toboolean(L, -1))
            config.log_callback = NULL;
        if (lua_type(L, -1) == LUA_TSTRING && !strcmp(lua_tostring(L, -1), "apart"))
            config.log_callback = bind_log_apart;
    }
    lua_settop(L, 3);
    if (cairn_open(&config, &r->rt, error, sizeof error)) bind_raise_text(L, error);
    return 1;
}

/* rt:close(); also when collected and at the end of a <close> variable's block */
static int bind_close_runtime(lua_State *L) {
    bind_runtime *r = (bind_runtime *)luaL_checkudata(L, 1, BIND_RUNTIME);
    cairn_runtime *rt = r->rt;
    if (r->calls) luaL_error(L, "close: an op of the runtime is calling this function");
    r->rt = NULL;
    cairn_close(rt);
    return 0;
}

/* rt:config() -> the config in force */
static int bind_runtime_config(lua_State *L) {
    return bind_push_config(L, cairn_config_of(bind_to_runtime(L, 1)));
}

static int bind_runtime_sync(lua_State *L) {
    cairn_runtime *rt = bind_to_runtime(L, 1);
    bind_check(L, rt, cairn_sync(rt));
    return 0;
}

/* rt:info() -> a table with the fields of cairn_runtime_info */
static int bind_runtime_info(lua_State *L) {
    cairn_runtime *rt = bind_to_runtime(L, 1);
    cairn_runtime_info info;
    info.struct_size = (uint32_t)sizeof info;
    bind_check(L, rt, cairn_info(rt, &info));
    lua_newtable(L);
    bind_set_string(L, "backend", info.backend == CAIRN_BACKEND_CUDA ? "cuda" : "cpu");
    bind_set_string(L, "device_name", info.device_name);
    bind_set_integer(L, "arch", info.arch);
    bind_set_integer(L, "multiprocessors", info.multiprocessors);
    bind_set_integer(L, "max_shared_bytes", info.max_shared_bytes);
    bind_set_integer(L, "driver_version", info.driver_version);
    bind_set_integer(L, "total_bytes", (int64_t)info.total_bytes);
    bind_set_integer(L, "live_bytes", (int64_t)info.live_bytes);
    bind_set_integer(L, "peak_bytes", (int64_t)info.peak_bytes);
    bind_set_integer(L, "l2_bytes", (int64_t)info.l2_bytes);
    bind_set_integer(L, "kernels_compiled", info.kernels_compiled);
    bind_set_integer(L, "kernels_from_cache", info.kernels_from_cache);
    bind_set_bool(L, "nvrtc_opened", info.nvrtc_opened != 0);
    return 1;
}

/* rt:measure() -> the ceilings that a bench divides by */
static int bind_runtime_measure(lua_State *L) {
    cairn_runtime *rt = bind_to_runtime(L, 1);
    cairn_floor f;
    f.struct_size = (uint32_t)sizeof f;
    bind_check(L, rt, cairn_measure(rt, &f));
    lua_newtable(L);
    bind_set_number(L, "read_bytes_per_second", f.read_bytes_per_second);
    bind_set_number(L, "copy_bytes_per_second", f.copy_bytes_per_second);
    bind_set_number(L, "launch_us", f.launch_us);
    bind_set_number(L, "stage_us", f.stage_us);
    bind_set_number(L, "dependent_stage_us", f.dependent_stage_us);
    return 1;
}

/* rt:reload(path or table): hot fields change between steps, a cold one is an error that names it.
 * Gives true when the change waits for kernels to compile. */
static int bind_reload(lua_State *L) {
    cairn_runtime *rt = bind_to_runtime(L, 1);
    cairn_config config;
    luaL_checkany(L, 2);
    bind_to_config(L, 2, &config);
    bind_check(L, rt, cairn_reload(rt, &config));
    lua_pushboolean(L, cairn_reload_waits(rt));
    return 1;
}

/* cairn.now_us() -> microseconds of a clock that only goes forward */
static int bind_now_us(lua_State *L) {
    lua_pushinteger(L, (lua_Integer)os_now_us());
    return 1;
}

/* ---- what a machine has ---------------------------------------------------------------------- */

typedef struct bind_found {
    driver_calls driver;
    base room;
    cairn_status driver_status, nvrtc_status;
    char driver_error[BASE_ERROR_BYTES], nvrtc_error[BASE_ERROR_BYTES];
    int devices;
    struct { char name[96]; int arch; size_t bytes; } device[16];
} bind_found;

static void bind_find_devices(bind_found *f) {
    int i, count = 0;
    if (f->driver.cuDeviceGetCount(&count)) return;
    for (i = 0; i < count && i < (int)BASE_COUNT(f->device); i++) {
        int major = 0, minor = 0;
        CUdevice gpu = 0;
        if (f->driver.cuDeviceGet(&gpu, i)) continue;
        f->driver.cuDeviceGetName(f->device[i].name, (int)sizeof f->device[i].name, gpu);
        f->driver.cuDeviceGetAttribute(&major, 75, gpu); /* COMPUTE_CAPABILITY_MAJOR, _MINOR */
        f->driver.cuDeviceGetAttribute(&minor, 76, gpu);
        f->driver.cuDeviceTotalMem(&f->device[i].bytes, gpu);
        f->device[i].arch = major * 10 + minor;
        f->devices = i + 1;
    }
}

static void bind_find(bind_found *f) {
    base_init(&f->room, NULL, NULL, NULL, CAIRN_LOG_OFF);
    f->driver_status = driver_open(&f->room, NULL, &f->driver);
    memcpy(f->driver_error, f->room.error, sizeof f->driver_error);
    if (!f->driver_status) bind_find_devices(f);
    f->nvrtc_status = driver_open_nvrtc(&f->room, NULL, &f->driver);
    memcpy(f->nvrtc_error, f->room.error, sizeof f->nvrtc_error);
    driver_close(&f->driver);
}

/* cairn.libraries() -> { tried = text, driver_error = text or nil, nvrtc_error = text or nil,
 * devices = { { name =, arch =, total_bytes = }, ... } }: what was looked for, and what is there */
static int bind_libraries(lua_State *L) {
    bind_found *f = (bind_found *)lua_newuserdatauv(L, sizeof *f, 0);
    int i;
    memset(f, 0, sizeof *f);
    bind_find(f);
    lua_newtable(L);
    bind_set_string(L, "tried", f->driver.tried);
    if (f->driver_status) bind_set_string(L, "driver_error", f->driver_error);
    if (f->nvrtc_status) bind_set_string(L, "nvrtc_error", f->nvrtc_error);
    lua_createtable(L, f->devices, 0);
    for (i = 0; i < f->devices; i++) {
        lua_newtable(L);
        bind_set_string(L, "name", f->device[i].name);
        bind_set_integer(L, "arch", f->device[i].arch);
        bind_set_integer(L, "total_bytes", (int64_t)f->device[i].bytes);
        lua_rawseti(L, -2, i + 1);
    }
    lua_setfield(L, -2, "devices");
    return 1;
}

#endif
