/* lua: the Lua module `cairn`, opened by luaopen_cairn: in the program, and in build/cairn.so for a
 * host's own Lua. The public calls of runtime.h with Lua's manners: errors are Lua errors with the
 * same text, what is opened is closed by the collector, by `:close()` or by `<close>`. */
#ifndef CAIRN_NO_LUA

/* cairn.statuses: { [0] = {name =, meaning =, hint =}, ... } */
static void bind_push_statuses(lua_State *L) {
    int i;
    lua_createtable(L, CAIRN_STATUS_COUNT, 0);
    for (i = 0; i < CAIRN_STATUS_COUNT; i++) {
        cairn_status status = (cairn_status)i;
        lua_createtable(L, 0, 3);
        lua_pushstring(L, cairn_status_name(status));
        lua_setfield(L, -2, "name");
        lua_pushstring(L, cairn_status_meaning(status));
        lua_setfield(L, -2, "meaning");
        lua_pushstring(L, cairn_status_hint(status));
        lua_setfield(L, -2, "hint");
        lua_rawseti(L, -2, i);
    }
}

static const luaL_Reg bind_runtime_methods[] = {
    {"close", bind_close_runtime}, {"config", bind_runtime_config}, {"info", bind_runtime_info},
    {"sync", bind_runtime_sync},   {"measure", bind_runtime_measure}, {"tensor", bind_make_tensor},
    {"host", bind_make_host},      {"staging", bind_make_staging},
    {"zeros", bind_make_zeros},    {"random", bind_make_random},    {"load", bind_load_tensor},
    {"stream", bind_make_stream},  {"use", bind_use_stream},        {"event", bind_make_event},
    {"capture", bind_capture},     {"load_model", bind_load_model},
    {"load_model_from", bind_load_model_from}, {"reload", bind_reload},
    {"page_pool", bind_make_page_pool}, {"page_tables", bind_make_page_tables},
    {"prefix_cache", bind_make_prefix_cache}, {"trace", bind_trace},
    {"trace_text", bind_trace_text}, {"trace_stop", bind_trace_stop},
    {NULL, NULL},
};

static const luaL_Reg bind_functions[] = {
    {"open", bind_open}, {"check", bind_check_config}, {"libraries", bind_libraries},
    {"now_us", bind_now_us}, {"estimate", bind_estimate}, {"model_check", bind_model_check},
    {"ops", bind_list_ops}, {"templates", bind_templates}, {"compile", bind_compile}, {NULL, NULL},
};

static void bind_new_runtime_type(lua_State *L) {
    bind_new_type(L, BIND_RUNTIME, bind_runtime_methods, bind_close_runtime);
    luaL_getmetatable(L, BIND_RUNTIME);
    lua_getfield(L, -1, "__index");
    bind_add_ops(L);
    lua_pop(L, 2);
}

int luaopen_cairn(lua_State *L) {
    bind_new_runtime_type(L);
    bind_new_tensor_type(L);
    bind_new_staging_type(L);
    bind_new_stream_types(L);
    bind_new_model_types(L);
    bind_new_page_types(L);
    bind_new_prefix_type(L);
    bind_new_compiler_type(L);
    luaL_newlib(L, bind_functions);
    lua_pushfstring(L, "%d.%d.%d", CAIRN_VERSION / 10000, CAIRN_VERSION / 100 % 100,
                    CAIRN_VERSION % 100);
    lua_setfield(L, -2, "version");
    bind_push_statuses(L);
    lua_setfield(L, -2, "statuses");
    return 1;
}

#endif
