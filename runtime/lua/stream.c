/* lua_stream: streams, events and graphs in Lua. A graph keeps the tensors that were given to ops
 * while it was captured alive, for it replays on their memory. */
#ifndef CAIRN_NO_LUA

static void bind_give_stream(lua_State *L, cairn_runtime *rt, void *stream) {
    (void)L;
    cairn_stream_free(rt, (cairn_stream *)stream);
}

/* rt:stream() */
static int bind_make_stream(lua_State *L) {
    cairn_runtime *rt = bind_to_runtime(L, 1);
    cairn_stream *stream = NULL;
    bind_object *o = (bind_object *)bind_new_object(L, BIND_STREAM, sizeof *o, 1, 1);
    bind_check(L, rt, cairn_stream_new(rt, &stream));
    o->object = stream;
    return 1;
}

/* rt:use(stream or nil): what is enqueued from now on goes there; nil: the runtime's own */
static int bind_use_stream(lua_State *L) {
    cairn_runtime *rt = bind_to_runtime(L, 1), *other = rt;
    cairn_stream *stream = NULL;
    if (!lua_isnoneornil(L, 2)) stream = (cairn_stream *)bind_to_object(L, 2, BIND_STREAM, &other);
    if (other != rt) luaL_error(L, "use: the stream is of another runtime");
    bind_check(L, rt, cairn_stream_set(rt, stream));
    return 0;
}

static int bind_stream_sync(lua_State *L) {
    cairn_runtime *rt;
    cairn_stream *stream = (cairn_stream *)bind_to_object(L, 1, BIND_STREAM, &rt);
    bind_check(L, rt, cairn_stream_sync(rt, stream));
    return 0;
}

/* ---- events ---------------------------------------------------------------------------------- */

static void bind_give_event(lua_State *L, cairn_runtime *rt, void *event) {
    (void)L;
    cairn_event_free(rt, (cairn_event *)event);
}

/* rt:event() */
static int bind_make_event(lua_State *L) {
    cairn_runtime *rt = bind_to_runtime(L, 1);
    cairn_event *event = NULL;
    bind_object *o = (bind_object *)bind_new_object(L, BIND_EVENT, sizeof *o, 1, 1);
    bind_check(L, rt, cairn_event_new(rt, &event));
    o->object = event;
    return 1;
}

/* e:record(): marks a point of the current stream. Gives the event. */
static int bind_event_record(lua_State *L) {
    cairn_runtime *rt;
    cairn_event *event = (cairn_event *)bind_to_object(L, 1, BIND_EVENT, &rt);
    return bind_self(L, rt, cairn_event_record(rt, event));
}

/* e:wait(): the current stream goes on after it */
static int bind_event_wait(lua_State *L) {
    cairn_runtime *rt;
    cairn_event *event = (cairn_event *)bind_to_object(L, 1, BIND_EVENT, &rt);
    bind_check(L, rt, cairn_event_wait(rt, event));
    return 0;
}

/* e:elapsed(later) -> microseconds */
static int bind_event_elapsed(lua_State *L) {
    cairn_runtime *rt, *other;
    cairn_event *from = (cairn_event *)bind_to_object(L, 1, BIND_EVENT, &rt);
    cairn_event *to = (cairn_event *)bind_to_object(L, 2, BIND_EVENT, &other);
    double microseconds = 0.0;
    if (other != rt) luaL_error(L, "elapsed: the events are of two runtimes");
    bind_check(L, rt, cairn_event_elapsed(rt, from, to, &microseconds));
    lua_pushnumber(L, microseconds);
    return 1;
}

/* ---- graphs ---------------------------------------------------------------------------------- */

static void bind_give_graph(lua_State *L, cairn_runtime *rt, void *graph) {
    (void)L;
    cairn_graph_free(rt, (cairn_graph *)graph);
}

/* Adds the tensor at `index` to what the capture in progress on the runtime at `owner` uses. */
static void bind_note_used(lua_State *L, int owner, int index) {
    if (lua_getiuservalue(L, owner, 1) == LUA_TTABLE) {
        lua_pushvalue(L, index);
        lua_rawseti(L, -2, (lua_Integer)lua_rawlen(L, -2) + 1);
    }
    lua_pop(L, 1);
}

/* rt:capture(f) -> a graph of what f enqueues. An error in f ends the capture and goes on. Lua
 * collects nothing meanwhile: device memory that is freed during a capture spoils it. */
static int bind_capture(lua_State *L) {
    cairn_runtime *rt = bind_to_runtime(L, 1);
    cairn_graph *graph = NULL;
    cairn_status status;
    bind_object *o;
    int failed, collects = lua_gc(L, LUA_GCISRUNNING);
    lua_settop(L, 2);
    luaL_checktype(L, 2, LUA_TFUNCTION);
    o = (bind_object *)bind_new_object(L, BIND_GRAPH, sizeof *o, 1, 2);
    lua_newtable(L);
    lua_pushvalue(L, -1);
    lua_setiuservalue(L, 3, 2);
    bind_check(L, rt, cairn_graph_begin(rt));
    lua_setiuservalue(L, 1, 1);
    lua_pushvalue(L, 2);
    lua_gc(L, LUA_GCSTOP);
    failed = lua_pcall(L, 0, 0, 0);
    if (collects) lua_gc(L, LUA_GCRESTART);
    lua_pushnil(L);
    lua_setiuservalue(L, 1, 1);
    if (((bind_runtime *)lua_touserdata(L, 1))->rt != rt) return failed ? lua_error(L) : 0;
    status = cairn_graph_end(rt, &graph);
    o->object = graph;
    if (failed) return lua_error(L);
    bind_check(L, rt, status);
    lua_settop(L, 3);
    return 1;
}

/* g:launch(): replays. Gives the graph. */
static int bind_graph_launch(lua_State *L) {
    cairn_runtime *rt;
    cairn_graph *graph = (cairn_graph *)bind_to_object(L, 1, BIND_GRAPH, &rt);
    return bind_self(L, rt, cairn_graph_launch(rt, graph));
}

static void bind_new_stream_types(lua_State *L) {
    static const luaL_Reg stream[] = {{"sync", bind_stream_sync}, {NULL, NULL}};
    static const luaL_Reg event[] = {{"record", bind_event_record}, {"wait", bind_event_wait},
                                     {"elapsed", bind_event_elapsed}, {NULL, NULL}};
    static const luaL_Reg graph[] = {{"launch", bind_graph_launch}, {NULL, NULL}};
    static const bind_handle streams = {BIND_STREAM, "free", bind_give_stream};
    static const bind_handle events = {BIND_EVENT, "free", bind_give_event};
    static const bind_handle graphs = {BIND_GRAPH, "free", bind_give_graph};
    bind_new_handle(L, &streams, stream);
    bind_new_handle(L, &events, event);
    bind_new_handle(L, &graphs, graph);
}

#endif
