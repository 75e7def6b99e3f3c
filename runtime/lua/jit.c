/* lua_jit: kernel templates compiled from Lua, without a GPU: cairn.templates and cairn.compile. */
#ifndef CAIRN_NO_LUA

#define BIND_COMPILER "cairn.compiler"

/* What compiling needs; closed by the collector whatever happens in between. */
typedef struct bind_compiler {
    base room;
    driver_calls driver;
    cache kernels;
    cairn_config config;
    jit *programs;
    bool open;
} bind_compiler;

static int bind_compiler_close(lua_State *L) {
    bind_compiler *c = (bind_compiler *)luaL_checkudata(L, 1, BIND_COMPILER);
    if (c->open) {
        jit_close(c->programs);
        cache_close(&c->kernels);
        driver_close(&c->driver);
    }
    c->open = false;
    return 0;
}

/* cairn.templates() -> { ["topk.cu"] = text, ... }: the carried kernels_src/ */
static int bind_templates(lua_State *L) {
    const kernels_file *file;
    int i;
    lua_newtable(L);
    for (file = kernels_files; file->name; file++) {
        int pieces;
        lua_newtable(L);
        pieces = lua_gettop(L);
        for (i = 0; file->pieces[i]; i++) bind_add_text(L, pieces, file->pieces[i]);
        bind_join(L, pieces);
        lua_setfield(L, pieces - 1, file->name);
        lua_settop(L, pieces - 1);
    }
    return 1;
}

/* Pushes an open compiler for `arch` as the config at `index` has it; PTX is never cached. */
static bind_compiler *bind_open_compiler(lua_State *L, int index, int arch, bool ptx) {
    bind_compiler *c = (bind_compiler *)lua_newuserdatauv(L, sizeof *c, 0);
    jit_options wish;
    memset(c, 0, sizeof *c);
    luaL_setmetatable(L, BIND_COMPILER);
    bind_to_config(L, index, &c->config);
    base_init(&c->room, NULL, NULL, NULL, CAIRN_LOG_OFF);
    if (ptx) c->config.jit.cache = CAIRN_CACHE_OFF;
    open_cache(&c->room, &c->config, &c->kernels);
    memset(&wish, 0, sizeof wish);
    wish.driver = &c->driver;
    wish.arch = arch;
    wish.kernels = &c->kernels;
    wish.nvrtc_path = c->config.nvrtc_path;
    wish.threads = c->config.jit.threads;
    wish.quick = c->config.jit.quick;
    wish.keep_images = true;
    wish.want_ptx = ptx;
    if (jit_open(&c->room, &wish, &c->programs)) {
        cache_close(&c->kernels);
        bind_raise_text(L, c->room.error);
    }
    c->open = true;
    return c;
}

/* Pushes a userdata with the request { source =, constants = { NAME = value } } at `index`; its
 * strings stand while the tables do. */
static jit_request *bind_to_request(lua_State *L, int index) {
    jit_request *request = (jit_request *)lua_newuserdatauv(L, sizeof *request, 1);
    jit_constant *constants = (jit_constant *)lua_newuserdatauv(
        L, JIT_MAX_CONSTANTS * sizeof *constants, 0);
    int table;
    lua_setiuservalue(L, -2, 1);
    memset(request, 0, sizeof *request);
    request->constants = constants;
    if (bind_field(L, index, "source") != LUA_TSTRING) luaL_error(L, "compile: no source");
    request->source = lua_tostring(L, -1);
    lua_pop(L, 1);
    if (bind_field(L, index, "constants") != LUA_TTABLE) luaL_error(L, "compile: no constants");
    table = lua_gettop(L);
    lua_pushnil(L);
    while (lua_next(L, table)) {
        if (request->constant_count == JIT_MAX_CONSTANTS || lua_type(L, -2) != LUA_TSTRING)
            luaL_error(L, "compile: at most %d constants, by name", JIT_MAX_CONSTANTS);
        constants[request->constant_count].name = lua_tostring(L, -2);
        constants[request->constant_count++].value = (int64_t)luaL_checkinteger(L, -1);
        lua_pop(L, 1);
    }
    lua_pop(L, 1);
    return request;
}

/* Whether the request at `index` wants PTX: its field kind is "ptx" rather than "cubin" or nil. */
static bool bind_wants_ptx(lua_State *L, int index) {
    int kind;
    bind_field(L, index, "kind");
    kind = bind_choice(L, -1, "compile: kind", "cubin\0ptx\0");
    lua_pop(L, 1);
    return kind == 1;
}

/* cairn.compile(config, arch, { source =, constants =, kind = "cubin" or "ptx" }) -> { image =,
 * kind =, cached =, compile_ms =, text = } of one program for sm_ARCH, or NVRTC's words as error */
static int bind_compile(lua_State *L) {
    int arch = (int)luaL_checkinteger(L, 2);
    jit_program *p;
    bind_compiler *c;
    jit_request *request;
    const uint8_t *image;
    size_t bytes;
    lua_settop(L, 3);
    luaL_checktype(L, 3, LUA_TTABLE);
    request = bind_to_request(L, 3);
    c = bind_open_compiler(L, 1, arch, bind_wants_ptx(L, 3));
    if (jit_get(c->programs, request, &p)) bind_raise_text(L, c->room.error);
    image = jit_image(p, &bytes);
    lua_newtable(L);
    lua_pushlstring(L, (const char *)image, bytes);
    lua_setfield(L, -2, "image");
    bind_set_string(L, "kind", p->from_ptx ? "ptx" : "cubin");
    bind_set_bool(L, "cached", p->from_cache);
    bind_set_number(L, "compile_ms", (double)p->compile_us / 1000.0);
    bind_set_string(L, "text", p->source.data);
    lua_getfield(L, -2, "close"); /* the libraries are given back now */
    lua_pushvalue(L, -3);
    lua_call(L, 1, 0);
    return 1;
}

static void bind_new_compiler_type(lua_State *L) {
    static const luaL_Reg methods[] = {{"close", bind_compiler_close}, {NULL, NULL}};
    bind_new_type(L, BIND_COMPILER, methods, bind_compiler_close);
}

#endif
