/* lua_session: sessions in Lua, and what a model does with them. A session keeps its model's userdata
 * in user value 2, for closing a model closes its sessions. Generation is pulled
 * (cairn_generate_next), so that a Lua error in a loop or callback passes no C frame of the engine. */
#ifndef CAIRN_NO_LUA

#define BIND_SESSION "cairn.session"
#define BIND_ADAPTER "cairn.adapter"

/* ---- sessions -------------------------------------------------------------------------------- */

static bool bind_model_is_open(lua_State *L, int arg) {
    bind_object *model;
    lua_getiuservalue(L, arg, 2);
    model = (bind_object *)lua_touserdata(L, -1);
    lua_pop(L, 1);
    return model && model->object;
}

static cairn_session *bind_to_session(lua_State *L, int arg, cairn_runtime **rt) {
    cairn_session *session;
    luaL_checkudata(L, arg, BIND_SESSION);
    session = (cairn_session *)bind_to_object(L, arg, BIND_SESSION, rt);
    if (!bind_model_is_open(L, arg)) luaL_error(L, "%s: its model is closed", BIND_SESSION);
    return session;
}

static bool bind_session_is_open(lua_State *L, int arg) {
    return bind_owner(L, arg) && ((bind_object *)lua_touserdata(L, arg))->object &&
           bind_model_is_open(L, arg);
}

/* m:session() */
static int bind_make_session(lua_State *L) {
    cairn_runtime *rt;
    cairn_model *model = bind_to_model(L, 1, &rt);
    cairn_session *session = NULL;
    int owner = bind_push_owner(L, 1);
    bind_object *o = (bind_object *)bind_new_object(L, BIND_SESSION, sizeof *o, owner, 2);
    lua_pushvalue(L, 1);
    lua_setiuservalue(L, -2, 2);
    bind_check(L, rt, cairn_session_open(model, &session));
    o->object = session;
    return 1;
}

/* m:load_adapter(path) */
static int bind_load_adapter(lua_State *L) {
    cairn_runtime *rt;
    cairn_model *model = bind_to_model(L, 1, &rt);
    const char *path = luaL_checkstring(L, 2);
    cairn_adapter *adapter = NULL;
    int owner = bind_push_owner(L, 1);
    bind_object *o = (bind_object *)bind_new_object(L, BIND_ADAPTER, sizeof *o, owner, 2);
    lua_pushvalue(L, 1);
    lua_setiuservalue(L, -2, 2);
    bind_check(L, rt, cairn_adapter_load(model, path, &adapter));
    o->object = adapter;
    return 1;
}

/* One that a session runs by is BUSY: it goes with its model. */
static void bind_give_adapter(lua_State *L, cairn_runtime *rt, void *adapter) {
    (void)rt;
    if (bind_model_is_open(L, 1)) cairn_adapter_free((cairn_adapter *)adapter);
}

/* s:adapt(adapter or nil); gives the session */
static int bind_adapt(lua_State *L) {
    cairn_runtime *rt, *other;
    cairn_session *session = bind_to_session(L, 1, &rt);
    cairn_adapter *adapter = NULL;
    if (!lua_isnoneornil(L, 2)) {
        adapter = (cairn_adapter *)bind_to_object(L, 2, BIND_ADAPTER, &other);
        if (!bind_model_is_open(L, 2)) return luaL_error(L, "%s: its model is closed", BIND_ADAPTER);
    }
    return bind_self(L, rt, cairn_session_adapt(session, adapter));
}

/* s:save(path), s:load(path): a file; they give the session */
static int bind_session_file(lua_State *L, cairn_status (*call)(cairn_session *, const char *)) {
    cairn_runtime *rt;
    cairn_session *session = bind_to_session(L, 1, &rt);
    return bind_self(L, rt, call(session, luaL_checkstring(L, 2)));
}
static int bind_save(lua_State *L) { return bind_session_file(L, cairn_session_save); }
static int bind_load(lua_State *L) { return bind_session_file(L, cairn_session_load); }

/* s:save_memory() -> a string, s:load_memory(string): the same without a file */
static int bind_save_memory(lua_State *L) {
    cairn_runtime *rt;
    cairn_session *session = bind_to_session(L, 1, &rt);
    size_t bytes = 0;
    luaL_Buffer buffer;
    char *memory;
    bind_check(L, rt, cairn_session_save_memory(session, NULL, 0, &bytes));
    memory = luaL_buffinitsize(L, &buffer, bytes);
    bind_check(L, rt, cairn_session_save_memory(session, memory, bytes, &bytes));
    luaL_pushresultsize(&buffer, bytes);
    return 1;
}

static int bind_load_memory(lua_State *L) {
    cairn_runtime *rt;
    cairn_session *session = bind_to_session(L, 1, &rt);
    size_t bytes;
    const char *memory = luaL_checklstring(L, 2, &bytes);
    return bind_self(L, rt, cairn_session_load_memory(session, memory, bytes));
}

/* s:fork() -> a session that holds the same */
static int bind_fork(lua_State *L) {
    cairn_runtime *rt;
    cairn_session *session = bind_to_session(L, 1, &rt), *fork = NULL;
    int owner = bind_push_owner(L, 1);
    bind_object *o = (bind_object *)bind_new_object(L, BIND_SESSION, sizeof *o, owner, 2);
    lua_getiuservalue(L, 1, 2);
    lua_setiuservalue(L, -2, 2);
    bind_check(L, rt, cairn_session_fork(session, &fork));
    o->object = fork;
    return 1;
}

static void bind_give_session(lua_State *L, cairn_runtime *rt, void *session) {
    (void)rt;
    if (bind_model_is_open(L, 1)) cairn_session_close((cairn_session *)session);
}

/* s:append(text or ids [, { special = true }]). Gives the session. */
static int bind_append(lua_State *L) {
    cairn_runtime *rt;
    cairn_session *session = bind_to_session(L, 1, &rt);
    if (lua_istable(L, 2)) {
        int count;
        const int32_t *ids = bind_to_ids(L, 2, &count);
        bind_check(L, rt, cairn_append_ids(session, ids, count));
    } else {
        size_t bytes;
        const char *text = luaL_checklstring(L, 2, &bytes);
        bind_options(L, 3, "append", "special\0");
        bind_check(L, rt, cairn_append_with(session, text, bytes, bind_to_special(L, 3)));
    }
    lua_settop(L, 1);
    return 1;
}

/* s:chat(messages [, { answer = true }]): adds them behind the turns before; `answer` opens the
 * assistant's turn, which generate() or text() then says. Gives the session. */
static int bind_append_chat(lua_State *L) {
    cairn_runtime *rt;
    cairn_session *session = bind_to_session(L, 1, &rt);
    bool first, answer;
    int count;
    const cairn_message *messages;
    bind_to_turns(L, 3, &first, &answer);
    messages = bind_to_messages(L, 2, &count);
    return bind_self(L, rt, cairn_append_chat(session, messages, count, answer));
}

static int bind_reset(lua_State *L) {
    cairn_runtime *rt;
    cairn_session *session = bind_to_session(L, 1, &rt);
    return bind_self(L, rt, cairn_session_reset(session));
}

/* s:selection(layer, kv_head): the pages that the last step chose, from 0; nil: it attended all */
static int bind_selection(lua_State *L) {
    cairn_runtime *rt;
    cairn_session *session = bind_to_session(L, 1, &rt);
    const int32_t layer = bind_to_int32(L, 2, "selection: layer");
    const int32_t head = bind_to_int32(L, 3, "selection: kv_head");
    int32_t count, *pages;
    bind_check(L, rt, cairn_session_selection(session, layer, head, NULL, 0, &count));
    if (count < 0) return 0;
    pages = (int32_t *)lua_newuserdatauv(L, ((size_t)count + 1) * sizeof *pages, 0);
    bind_check(L, rt, cairn_session_selection(session, layer, head, pages, count, &count));
    bind_push_ids(L, pages, count);
    return 1;
}

/* s:rewind(count): keeps the first `count` ids */
static int bind_rewind(lua_State *L) {
    cairn_runtime *rt;
    cairn_session *session = bind_to_session(L, 1, &rt);
    return bind_self(L, rt, cairn_session_rewind(session, bind_to_int32(L, 2, "rewind: count")));
}

static int bind_session_ids(lua_State *L) {
    cairn_runtime *rt;
    int count = 0;
    const int32_t *ids = cairn_session_ids(bind_to_session(L, 1, &rt), &count);
    bind_push_ids(L, ids, count);
    return 1;
}

/* s:pointer() -> the cairn_session * that C calls take, while the session is open */
static int bind_pointer(lua_State *L) {
    cairn_runtime *rt;
    lua_pushlightuserdata(L, bind_to_session(L, 1, &rt));
    return 1;
}

static int bind_cancel(lua_State *L) {
    cairn_runtime *rt;
    cairn_cancel(bind_to_session(L, 1, &rt));
    return 0;
}

/* s:error() -> the name of the status that its last failed call or request returned, and its message;
 * nil: its last request has not failed */
static int bind_session_error(lua_State *L) {
    cairn_runtime *rt;
    char text[BASE_ERROR_BYTES];
    cairn_status status = cairn_session_error(bind_to_session(L, 1, &rt), text, sizeof text);
    if (!status) return lua_pushnil(L), 1;
    lua_pushstring(L, cairn_status_name(status));
    lua_pushstring(L, text);
    return 2;
}

/* s:stats() -> a table with the fields of cairn_stats, and the figures that follow from them */
static int bind_stats(lua_State *L) {
    cairn_runtime *rt;
    cairn_session *session = bind_to_session(L, 1, &rt);
    cairn_stats s;
    s.struct_size = (uint32_t)sizeof s;
    bind_check(L, rt, cairn_session_stats(session, &s));
    lua_newtable(L);
    bind_set_string(L, "stop", cairn_stop_name(s.stop));
    bind_set_integer(L, "prompt_tokens", s.prompt_tokens);
    bind_set_integer(L, "generated", s.generated);
    bind_set_integer(L, "decoded", s.decoded);
    bind_set_integer(L, "forwards", s.forwards);
    bind_set_integer(L, "proposed", s.proposed);
    bind_set_integer(L, "accepted", s.accepted);
    bind_set_integer(L, "peak_bytes", (int64_t)s.peak_bytes);
    bind_set_integer(L, "reused_tokens", s.reused_tokens);
    if (s.token_space)
        bind_set_string(L, "token_space", s.token_space == 1 + CAIRN_SPACE_SLOT ? "slot" : "flat");
    bind_set_number(L, "pages_read", s.pages_read);
    bind_set_number(L, "pages_held", s.pages_held);
    bind_set_number(L, "prompt_seconds", s.prompt_seconds);
    bind_set_number(L, "decode_seconds", s.decode_seconds);
    bind_set_number(L, "acceptance", s.proposed ? (double)s.accepted / s.proposed : 0.0);
    bind_set_number(L, "tokens_per_step", s.forwards ? (double)s.generated / s.forwards : 0.0);
    bind_set_number(L, "tokens_per_second",
                    s.decode_seconds > 0.0 ? (double)s.decoded / s.decode_seconds : 0.0);
    return 1;
}

/* ---- generate -------------------------------------------------------------------------------- */

typedef struct bind_wishes {
    cairn_generate_options options;
    cairn_config config; /* for its sampling */
    const char *stop[16];
} bind_wishes;

static const char *const bind_wish_names[] = {
    "max_tokens", "stop", "special", "keep_stop", "priority", "grammar", "grammar_from",
    "json_schema", "logit_bias", "logprobs", "first_token_ms", "temperature", "top_k", "top_p", "min_p",
    "order", "repetition_penalty", "seed"};
enum { BIND_FIRST_SAMPLING = 11 };

/* True for an option of sampling; a name of no option is an error. */
static bool bind_check_wish(lua_State *L, const char *name) {
    size_t i, closest = 0;
    for (i = 0; i < BASE_COUNT(bind_wish_names); i++) {
        if (!strcmp(name, bind_wish_names[i])) return i >= BIND_FIRST_SAMPLING;
        if (bind_distance(name, bind_wish_names[i]) < bind_distance(name, bind_wish_names[closest]))
            closest = i;
    }
    return bind_no_option(L, "generate", name, bind_wish_names[closest]), false;
}

/* Pushes option `name`; true when it is there. */
static bool bind_wish(lua_State *L, int options, const char *name) {
    return bind_field(L, options, name) != LUA_TNIL;
}

static float bind_to_float(lua_State *L, const char *name) {
    if (lua_type(L, -1) != LUA_TNUMBER) luaL_error(L, "generate: %s: a number is expected", name);
    return (float)lua_tonumber(L, -1);
}

static cairn_sampling_order bind_to_order(lua_State *L) {
    const spec_choice *choice = bind_find_choice(spec_sampling_orders, lua_tostring(L, -1));
    if (!choice) luaL_error(L, "generate: order: top_k_first or top_p_first is expected");
    return (cairn_sampling_order)choice->value;
}

static void bind_read_sampling(lua_State *L, int options, cairn_sampling *s) {
    int top = lua_gettop(L);
    if (bind_wish(L, options, "temperature")) s->temperature = bind_to_float(L, "temperature");
    if (bind_wish(L, options, "top_k")) s->top_k = bind_to_int32(L, -1, "generate: top_k");
    if (bind_wish(L, options, "top_p")) s->top_p = bind_to_float(L, "top_p");
    if (bind_wish(L, options, "min_p")) s->min_p = bind_to_float(L, "min_p");
    if (bind_wish(L, options, "order")) s->order = bind_to_order(L);
    if (bind_wish(L, options, "repetition_penalty"))
        s->repetition_penalty = bind_to_float(L, "repetition_penalty");
    if (bind_wish(L, options, "seed")) s->seed = bind_to_whole(L, -1, "generate: seed");
    lua_settop(L, top);
}

/* The strings stand while the table of options does. An empty list means none. */
static void bind_read_stop(lua_State *L, int options, bind_wishes *w) {
    int i, count;
    if (!bind_wish(L, options, "stop")) {
        lua_pop(L, 1);
        return;
    }
    if (!lua_istable(L, -1)) luaL_error(L, "generate: stop: a list of strings is expected");
    count = (int)lua_rawlen(L, -1);
    if (count > (int)BASE_COUNT(w->stop)) luaL_error(L, "generate: at most 16 stop strings");
    for (i = 0; i < count; i++) {
        if (lua_rawgeti(L, -1, i + 1) != LUA_TSTRING)
            luaL_error(L, "generate: stop[%d] is no string", i + 1);
        w->stop[i] = lua_tostring(L, -1);
        if (strlen(w->stop[i]) < (size_t)lua_rawlen(L, -1))
            luaL_error(L, "generate: stop[%d] holds a NUL byte", i + 1);
        lua_pop(L, 1);
    }
    lua_pop(L, 1);
    w->options.stop = w->stop;
    w->options.stop_count = count ? count : -1;
}

/* A text, which stands while the table of options does; NULL: it is not there. */
static const char *bind_wish_text(lua_State *L, int options, const char *name) {
    const char *text = NULL;
    size_t bytes = 0;
    if (bind_wish(L, options, name)) {
        if (lua_type(L, -1) != LUA_TSTRING) luaL_error(L, "generate: %s: a string is expected", name);
        text = lua_tolstring(L, -1, &bytes);
        if (strlen(text) < bytes) luaL_error(L, "generate: %s holds a NUL byte", name);
    }
    lua_pop(L, 1);
    return text;
}

/* { [id] = bias }, into memory of the stack's top, where it stays. */
static void bind_read_bias(lua_State *L, int options, bind_wishes *w) {
    cairn_logit_bias *bias;
    int table, count = 0;
    if (!bind_wish(L, options, "logit_bias")) return;
    table = lua_gettop(L);
    if (!lua_istable(L, table)) luaL_error(L, "generate: logit_bias: { [id] = number } is expected");
    for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1)) count++;
    bias = (cairn_logit_bias *)lua_newuserdatauv(L, (size_t)(count + 1) * sizeof *bias, 0);
    count = 0;
    for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1)) {
        bias[count].bias = bind_to_float(L, "logit_bias");
        bias[count++].id = bind_to_int32(L, -2, "generate: logit_bias");
    }
    w->options.logit_bias = bias;
    w->options.logit_bias_count = count;
}

static void bind_read_wishes(lua_State *L, int options, cairn_runtime *rt, bind_wishes *w) {
    char error[BIND_ERROR_BYTES];
    bool sampling = false;
    memset(&w->options, 0, sizeof w->options);
    w->options.struct_size = (uint32_t)sizeof w->options;
    w->config = *cairn_config_of(rt);
    w->config.log_callback = NULL; /* mistakes are raised, not logged */
    if (!lua_istable(L, options)) return;
    lua_pushnil(L);
    while (lua_next(L, options)) {
        sampling |= bind_check_wish(L, lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "?");
        lua_pop(L, 1);
    }
    if (bind_wish(L, options, "max_tokens"))
        w->options.max_tokens = bind_to_int32(L, -1, "generate: max_tokens");
    lua_pop(L, 1);
    if (bind_wish(L, options, "priority"))
        w->options.priority = bind_to_int32(L, -1, "generate: priority");
    lua_pop(L, 1);
    if (bind_wish(L, options, "first_token_ms"))
        w->options.first_token_ms = bind_to_int32(L, -1, "generate: first_token_ms");
    lua_pop(L, 1);
    w->options.grammar = bind_wish_text(L, options, "grammar");
    w->options.json_schema = bind_wish_text(L, options, "json_schema");
    if (bind_wish(L, options, "grammar_from"))
        w->options.grammar_from = bind_to_int32(L, -1, "generate: grammar_from");
    lua_pop(L, 1);
    if (bind_wish(L, options, "logprobs"))
        w->options.logprobs = bind_to_int32(L, -1, "generate: logprobs");
    lua_pop(L, 1);
    bind_read_stop(L, options, w);
    w->options.special = bind_to_special(L, options) ? 0 : -1;
    bind_wish(L, options, "keep_stop");
    w->options.keep_stop = lua_toboolean(L, -1);
    lua_pop(L, 1);
    bind_read_bias(L, options, w);
    if (!sampling) return; /* the config's, as a reload leaves it at every step */
    bind_read_sampling(L, options, &w->config.sampling);
    if (cairn_config_check(&w->config, &w->config, error, sizeof error)) bind_raise_text(L, error);
    w->options.sampling = &w->config.sampling;
}

enum { BIND_PIECE = 5 }; /* values of a piece: text, id, of which of the session's ids it is, logprobs */

/* Pushes { { id =, logprob =, best = { { id =, logprob = }, ... } }, ... } of a piece's ids, or nil. */
static void bind_push_logprobs(lua_State *L, cairn_session *session, const cairn_piece *piece) {
    const int each = 1 + session->row_best;
    if (!piece->logprob_ids) {
        lua_pushnil(L);
        return;
    }
    lua_createtable(L, piece->logprob_ids, 0);
    for (int i = 0; i < piece->logprob_ids * each; i++) {
        lua_createtable(L, 0, 3);
        bind_set_integer(L, "id", piece->logprobs[i].id);
        bind_set_number(L, "logprob", (double)piece->logprobs[i].logprob);
        if (i % each) {
            lua_rawseti(L, -2, i % each);
            if (i % each < each - 1) continue;
            lua_setfield(L, -2, "best");
            lua_rawseti(L, -2, i / each + 1);
        } else lua_createtable(L, each - 1, 0);
    }
}

/* Whether the generation with that ticket is still the session's: whatever else the session began or
 * was made to hold since has ended it. */
static bool bind_goes_on(const cairn_session *session, int64_t ticket) {
    return session->generating && !session->submitted && session->ticket == ticket;
}

/* Pushes the values of the next piece with text; false at the end of the generation. */
static bool bind_push_piece(lua_State *L, cairn_runtime *rt, cairn_session *session, int64_t ticket,
                            cairn_stop *stop) {
    cairn_piece piece;
    piece.struct_size = (uint32_t)sizeof piece;
    do {
        if (*stop || !bind_goes_on(session, ticket)) return false;
        bind_check(L, rt, cairn_generate_next(session, &piece));
        *stop = piece.stop;
    } while (!piece.bytes && !piece.logprob_ids);
    lua_pushlstring(L, piece.text, piece.bytes);
    lua_pushinteger(L, piece.id);
    lua_pushinteger(L, piece.first + 1);
    lua_pushinteger(L, piece.first + piece.count);
    bind_push_logprobs(L, session, &piece);
    return true;
}

/* The iterator: upvalue 1 is the session, 2 the stop so far, 3 the ticket of the generation. It ends
 * with nil, and says nothing of a later generation's. */
static int bind_generate_next(lua_State *L) {
    cairn_runtime *rt;
    cairn_session *session;
    cairn_stop stop = (cairn_stop)lua_tointeger(L, lua_upvalueindex(2));
    const int64_t ticket = lua_tointeger(L, lua_upvalueindex(3));
    bool more;
    lua_settop(L, 0);
    lua_pushvalue(L, lua_upvalueindex(1));
    session = bind_to_session(L, 1, &rt);
    more = bind_push_piece(L, rt, session, ticket, &stop);
    lua_pushinteger(L, (lua_Integer)stop);
    lua_replace(L, lua_upvalueindex(2));
    if (!more) lua_pushnil(L);
    return more ? BIND_PIECE : 1;
}

/* Calls the function at f, if there is one, with the values at the top of the stack; whether it
 * wants more. */
static bool bind_say_piece(lua_State *L, int f) {
    bool more;
    if (!f) return true;
    lua_pushvalue(L, f);
    lua_insert(L, -BIND_PIECE - 1);
    lua_call(L, BIND_PIECE, 1);
    more = !lua_isboolean(L, -1) || lua_toboolean(L, -1);
    return more;
}

/* Generates to the end, and calls the function at `f` (0: none) with every piece; false ends the
 * generation, and so does closing what generates. Gives the whole text. */
static int bind_generate_all(lua_State *L, cairn_runtime *rt, cairn_session *session, int f) {
    const int64_t ticket = session->ticket;
    cairn_stop stop = CAIRN_STOP_NONE;
    int pieces;
    lua_newtable(L);
    pieces = lua_gettop(L);
    while (bind_push_piece(L, rt, session, ticket, &stop)) {
        cairn_piece last;
        bool more;
        lua_pushvalue(L, pieces + 1);
        bind_add_piece(L, pieces);
        more = bind_say_piece(L, f);
        lua_settop(L, pieces);
        if (!bind_session_is_open(L, 1) || !bind_goes_on(session, ticket)) break;
        if (stop || more) continue;
        cairn_cancel(session);
        last.struct_size = (uint32_t)sizeof last;
        stop = cairn_generate_next(session, &last) ? CAIRN_STOP_CANCEL : last.stop;
        if (!stop) stop = CAIRN_STOP_CANCEL;
    }
    bind_join(L, pieces);
    return 1;
}

typedef cairn_status (*bind_beginning)(cairn_session *session, const char *prompt, size_t bytes,
                                       const cairn_generate_options *options);

/* Begins a generation from the arguments session, prompt, options; keeps the first four. */
static cairn_session *bind_begin(lua_State *L, cairn_runtime **rt, bind_beginning begin) {
    cairn_session *session = bind_to_session(L, 1, rt);
    size_t bytes = 0;
    const char *prompt = luaL_optlstring(L, 2, NULL, &bytes);
    bind_wishes *w;
    lua_settop(L, 4);
    if (!lua_isnoneornil(L, 3)) luaL_checktype(L, 3, LUA_TTABLE);
    w = (bind_wishes *)lua_newuserdatauv(L, sizeof *w, 0);
    bind_read_wishes(L, 3, *rt, w);
    session = bind_to_session(L, 1, rt); /* again: a finalizer of the host's may have closed it */
    bind_check(L, *rt, begin(session, prompt, bytes, &w->options));
    return session;
}

/* s:generate(prompt or nil [, options [, f]]) -> an iterator over pieces (text, the id that brought
 * it, the first and last of the session's ids that it is of, and with the option logprobs = N those of
 * its ids), or with f the whole text. Leaving a loop early leaves the session with what was handed
 * out. */
static int bind_generate(lua_State *L) {
    cairn_runtime *rt;
    cairn_session *session = bind_begin(L, &rt, engine_generate_begin);
    if (!lua_isnil(L, 4)) return bind_generate_all(L, rt, session, 4);
    lua_pushvalue(L, 1);
    lua_pushinteger(L, CAIRN_STOP_NONE);
    lua_pushinteger(L, session->ticket);
    lua_pushcclosure(L, bind_generate_next, 3);
    return 1;
}

/* s:text(prompt or nil [, options]) -> the whole text */
static int bind_text(lua_State *L) {
    cairn_runtime *rt;
    cairn_session *session = bind_begin(L, &rt, engine_generate_begin);
    return bind_generate_all(L, rt, session, 0);
}

/* ---- requests -------------------------------------------------------------------------------- */

/* s:submit(prompt or nil [, options]): queues a generation that m:step works on. Gives the session. */
static int bind_submit(lua_State *L) {
    cairn_runtime *rt;
    bind_begin(L, &rt, engine_submit);
    lua_settop(L, 1);
    return 1;
}

/* m:step(budget_us) -> how many requests still run */
static int bind_step(lua_State *L) {
    cairn_runtime *rt;
    cairn_model *model = bind_to_model(L, 1, &rt);
    int32_t pending = 0;
    bind_check(L, rt, cairn_step(model, bind_to_int32(L, 2, "step: budget_us"), &pending));
    lua_pushinteger(L, pending);
    return 1;
}

/* s:poll() -> the text that is certain since the last poll; how the generation stopped, or nil; what
 * its request does; the last of the ids that came since, or nil; their logprobs, or nil. A cancelled
 * one stops by "cancel". */
static int bind_poll(lua_State *L) {
    static const char *const requests[] = {"none", "queued", "pages", "prompt", "text"};
    cairn_runtime *rt;
    cairn_session *session = bind_to_session(L, 1, &rt);
    cairn_status status;
    cairn_piece piece;
    piece.struct_size = (uint32_t)sizeof piece;
    piece.stop = CAIRN_STOP_NONE;
    status = cairn_generate_poll(session, &piece);
    if (piece.stop != CAIRN_STOP_CANCEL) bind_check(L, rt, status);
    lua_pushlstring(L, piece.text, piece.bytes);
    if (piece.stop) lua_pushstring(L, cairn_stop_name(piece.stop));
    else lua_pushnil(L);
    lua_pushstring(L, requests[piece.request]);
    if (piece.id < 0) lua_pushnil(L);
    else lua_pushinteger(L, piece.id);
    bind_push_logprobs(L, session, &piece);
    return 5;
}

#endif
