/* lua: the Lua module `cairn`, opened by luaopen_cairn: in the program, and in build/cairn.so for a
 * host's own Lua. The public calls of runtime.h with Lua's manners: errors are Lua errors with the
 * same text, what is opened is closed by the collector, by `:close()` or by `<close>`. */
#ifndef CAIRN_NO_LUA

/* cairn.statuses: { [0] = {name =, meaning =, hint =}, ... } */
static void lua_push_statuses(lua_State *L) {
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

int luaopen_cairn(lua_State *L) {
    lua_newtable(L);
    lua_pushfstring(L, "%d.%d.%d", CAIRN_VERSION / 10000, CAIRN_VERSION / 100 % 100,
                    CAIRN_VERSION % 100);
    lua_setfield(L, -2, "version");
    lua_push_statuses(L);
    lua_setfield(L, -2, "statuses");
    return 1;
}

#endif
