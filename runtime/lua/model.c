/* lua_model: models in Lua: what they are, their text and ids, eval. */
#ifndef CAIRN_NO_LUA

#define BIND_MODEL "cairn.model"

static cairn_model *bind_to_model(lua_State *L, int arg, cairn_runtime **rt) {
    return (cairn_model *)bind_to_object(L, arg, BIND_MODEL, rt);
}

/* rt:load_model(path) */
static int bind_load_model(lua_State *L) {
    cairn_runtime *rt = bind_to_runtime(L, 1);
    const char *path = luaL_checkstring(L, 2);
    cairn_model *model = NULL;
    bind_object *o = (bind_object *)bind_new_object(L, BIND_MODEL, sizeof *o, 1, 1);
    bind_runtime *r = bind_begin_load(L, 1);
    cairn_status status = cairn_load_model(rt, path, &model);
    o->object = model;
    bind_end_load(L, r, status);
    return 1;
}

typedef struct bind_bytes { const char *data; size_t bytes; } bind_bytes;

static size_t bind_read_bytes(void *user, uint64_t offset, void *out, size_t bytes) {
    const bind_bytes *from = (const bind_bytes *)user;
    size_t left = offset < from->bytes ? from->bytes - (size_t)offset : 0;
    if (bytes > left) bytes = left;
    memcpy(out, from->data + (left ? offset : 0), bytes);
    return bytes;
}

/* rt:load_model_from(string [, name]): the file's bytes, which are copied */
static int bind_load_model_from(lua_State *L) {
    cairn_runtime *rt = bind_to_runtime(L, 1);
    bind_bytes from;
    cairn_model_source source;
    cairn_model *model = NULL;
    bind_object *o;
    bind_runtime *r;
    cairn_status status;
    from.data = luaL_checklstring(L, 2, &from.bytes);
    memset(&source, 0, sizeof source);
    source.struct_size = (uint32_t)sizeof source;
    source.name = luaL_optstring(L, 3, NULL);
    source.bytes = from.bytes;
    source.read = bind_read_bytes;
    source.user = &from;
    o = (bind_object *)bind_new_object(L, BIND_MODEL, sizeof *o, 1, 1);
    r = bind_begin_load(L, 1);
    status = cairn_load_model_from(rt, &source, &model);
    o->object = model;
    bind_end_load(L, r, status);
    return 1;
}

static void bind_give_model(lua_State *L, cairn_runtime *rt, void *model) {
    (void)L, (void)rt;
    cairn_model_free((cairn_model *)model);
}

/* m:wait(): until every kernel is compiled */
static int bind_model_wait(lua_State *L) {
    cairn_runtime *rt;
    cairn_model *model = bind_to_model(L, 1, &rt);
    bind_check(L, rt, cairn_model_wait(model));
    return 0;
}

/* m:info() -> a table with the fields of cairn_model_properties */
static int bind_model_info(lua_State *L) {
    cairn_runtime *rt;
    cairn_model *model = bind_to_model(L, 1, &rt);
    cairn_model_properties info;
    info.struct_size = (uint32_t)sizeof info;
    bind_check(L, rt, cairn_model_info(model, &info));
    lua_newtable(L);
#define BIND_SET(field) bind_set_integer(L, #field, (int64_t)info.field)
    bind_set_string(L, "architecture", info.architecture);
    bind_set_string(L, "name", info.name);
    BIND_SET(layers);     BIND_SET(hidden);      BIND_SET(heads);      BIND_SET(kv_heads);
    BIND_SET(head_dim);   BIND_SET(ffn);         BIND_SET(vocab);      BIND_SET(context);
    BIND_SET(page_size);  BIND_SET(max_seq_len); BIND_SET(pages);      BIND_SET(free_pages);
    BIND_SET(end_id);     BIND_SET(parameters);  BIND_SET(file_bytes); BIND_SET(weights_bytes);
    BIND_SET(kv_bytes);   BIND_SET(scratch_bytes);
    BIND_SET(window_pages); BIND_SET(free_window_pages);
#undef BIND_SET
    return 1;
}

/* The estimate as a table, pushed. */
static void bind_push_estimate(lua_State *L, const cairn_memory_estimate *e) {
    lua_newtable(L);
    bind_set_string(L, "backend", e->backend == CAIRN_BACKEND_CUDA ? "cuda" : "cpu");
#define BIND_SET(field) bind_set_integer(L, #field, (int64_t)e->field)
    BIND_SET(max_seq_len);   BIND_SET(pages);      BIND_SET(weights_bytes); BIND_SET(kv_bytes);
    BIND_SET(scratch_bytes); BIND_SET(live_bytes); BIND_SET(peak_bytes);    BIND_SET(host_bytes);
    BIND_SET(mapped_bytes);  BIND_SET(resident_bytes);                      BIND_SET(total_bytes);
#undef BIND_SET
}

/* cairn.estimate(config, path) -> what loading the model would take */
static int bind_estimate(lua_State *L) {
    char error[BIND_ERROR_BYTES];
    cairn_config config;
    cairn_memory_estimate e;
    const char *path = luaL_checkstring(L, 2);
    e.struct_size = (uint32_t)sizeof e;
    bind_to_config(L, 1, &config);
    if (cairn_estimate(&config, path, &e, error, sizeof error)) bind_raise_text(L, error);
    bind_push_estimate(L, &e);
    return 1;
}

/* A list of the lines of a text, pushed. */
static void bind_push_lines(lua_State *L, const char *text) {
    int count = 0;
    lua_newtable(L);
    while (*text) {
        size_t bytes = strcspn(text, "\n");
        lua_pushlstring(L, text, bytes);
        lua_rawseti(L, -2, ++count);
        text += bytes + (text[bytes] != '\0');
    }
}

/* cairn.model_check(config, path) -> what the file is: the fields of cairn_model_report, `status` by
 * name, `reasons` as a list, and `estimate` where it loads */
static int bind_model_check(lua_State *L) {
    char reasons[BIND_ERROR_BYTES];
    cairn_config config;
    cairn_model_report r;
    const char *path = luaL_checkstring(L, 2);
    cairn_status status;
    memset(&r, 0, sizeof r);
    r.struct_size = (uint32_t)sizeof r;
    bind_to_config(L, 1, &config);
    status = cairn_model_check(&config, path, &r, reasons, sizeof reasons);
    lua_newtable(L);
    bind_set_string(L, "status", cairn_status_name(status));
#define BIND_SET(field) bind_set_integer(L, #field, (int64_t)r.field)
#define BIND_TEXT(field) bind_set_string(L, #field, r.field)
    BIND_TEXT(name); BIND_TEXT(architecture); BIND_TEXT(tokenizer); BIND_TEXT(pre_tokenizer);
    BIND_TEXT(types); BIND_SET(layers); BIND_SET(hidden); BIND_SET(heads); BIND_SET(kv_heads);
    BIND_SET(context); BIND_SET(vocab); BIND_SET(tensors); BIND_SET(parameters);
    BIND_SET(file_bytes);
#undef BIND_TEXT
#undef BIND_SET
    lua_pushboolean(L, r.has_chat);
    lua_setfield(L, -2, "has_chat");
    lua_pushboolean(L, r.has_template);
    lua_setfield(L, -2, "has_template");
    lua_pushboolean(L, r.has_landmark);
    lua_setfield(L, -2, "has_landmark");
    bind_push_lines(L, reasons);
    lua_setfield(L, -2, "reasons");
    if (!status) bind_push_estimate(L, &r.estimate), lua_setfield(L, -2, "estimate");
    return 1;
}

/* ---- text and ids ---------------------------------------------------------------------------- */

static void bind_push_ids(lua_State *L, const int32_t *ids, int count) {
    int i;
    lua_createtable(L, count, 0);
    for (i = 0; i < count; i++) {
        lua_pushinteger(L, ids[i]);
        lua_rawseti(L, -2, i + 1);
    }
}

/* The ids of a tensor from rt:host(list), which stands while the tensor at `arg` does. */
static int32_t *bind_to_host_ids(lua_State *L, int arg, int *count) {
    const cairn_tensor *t = bind_to_tensor(L, arg);
    size_t values = bind_tensor_count(t);
    if (t->device.type != TENSOR_CPU || t->strides || t->ndim != 1 ||
        cairn_tensor_type(t) != CAIRN_I32 || values > INT_MAX)
        luaL_error(L, "ids: a list, or a tensor of i32 from rt:host(list), is expected");
    *count = (int)values;
    lua_pushvalue(L, arg);
    return (int32_t *)tensor_data(t);
}

/* Pushes a value that holds the ids of the list, or of the tensor in host memory, at `arg`. */
static int32_t *bind_to_ids(lua_State *L, int arg, int *count) {
    int32_t *ids;
    int i;
    if (lua_isuserdata(L, arg)) return bind_to_host_ids(L, arg, count);
    luaL_checktype(L, arg, LUA_TTABLE);
    *count = (int)lua_rawlen(L, arg);
    ids = (int32_t *)lua_newuserdatauv(L, (size_t)*count * sizeof *ids, 0);
    for (i = 0; i < *count; i++) {
        lua_rawgeti(L, arg, i + 1);
        ids[i] = bind_to_int32(L, -1, "ids");
        lua_pop(L, 1);
    }
    return ids;
}

/* Whether the table of options at `arg`, if there is one, leaves special-token text special. */
static bool bind_to_special(lua_State *L, int arg) {
    bool special = true;
    if (lua_istable(L, arg)) {
        special = bind_field(L, arg, "special") == LUA_TNIL || lua_toboolean(L, -1);
        lua_pop(L, 1);
    }
    return special;
}

/* m:tokenize(text [, { special = true }]) -> ids; special = false: no control tokens */
static int bind_tokenize(lua_State *L) {
    cairn_runtime *rt;
    cairn_model *model = bind_to_model(L, 1, &rt);
    size_t bytes;
    const char *text = luaL_checklstring(L, 2, &bytes);
    int capacity = 0, count = 0;
    bool special = !bind_options(L, 3, "tokenize", "special\0") || bind_to_special(L, 3);
    int32_t *ids;
    if (bytes > INT_MAX / 8) luaL_error(L, "tokenize: the text is too long");
    capacity = (int)bytes + 1; /* no token is empty */
    ids = (int32_t *)lua_newuserdatauv(L, (size_t)capacity * sizeof *ids, 0);
    bind_check(L, rt, cairn_tokenize_with(model, text, bytes, special, ids, capacity, &count));
    bind_push_ids(L, ids, count);
    return 1;
}

/* m:detokenize(ids) -> text */
static int bind_detokenize(lua_State *L) {
    cairn_runtime *rt;
    cairn_model *model = bind_to_model(L, 1, &rt);
    int count;
    size_t bytes = 0;
    int32_t *ids = bind_to_ids(L, 2, &count);
    char *text;
    cairn_detokenize(model, ids, count, NULL, 0, &bytes); /* asks for the length */
    text = (char *)lua_newuserdatauv(L, bytes + 1, 0);
    bind_check(L, rt, cairn_detokenize(model, ids, count, text, bytes + 1, &bytes));
    lua_pushlstring(L, text, bytes);
    return 1;
}

/* Pushes a userdata with the messages of the list { { role =, content = }, ... } at `arg`; the
 * strings stand while the list holds them. */
static cairn_message *bind_to_messages(lua_State *L, int arg, int *count) {
    cairn_message *messages;
    size_t role_bytes, bytes;
    int i;
    luaL_checktype(L, arg, LUA_TTABLE);
    *count = (int)lua_rawlen(L, arg);
    if (!*count && bind_field(L, arg, "content") != LUA_TNIL)
        luaL_error(L, "chat: a list of messages is expected, { { role =, content = } }; this is one");
    messages = (cairn_message *)lua_newuserdatauv(L, (size_t)*count * sizeof *messages, 0);
    for (i = 0; i < *count; i++) {
        lua_rawgeti(L, arg, i + 1);
        if (!lua_istable(L, -1)) luaL_error(L, "chat: message %d is no table", i + 1);
        if (bind_field(L, -1, "role") != LUA_TSTRING ||
            bind_field(L, -2, "content") != LUA_TSTRING)
            luaL_error(L, "chat: message %d needs the strings role and content", i + 1);
        messages[i].role = lua_tolstring(L, -2, &role_bytes);
        messages[i].content = lua_tolstring(L, -1, &bytes);
        if (strlen(messages[i].role) < role_bytes || strlen(messages[i].content) < bytes)
            luaL_error(L, "chat: the role or the content of message %d holds a NUL byte", i + 1);
        lua_pop(L, 3);
    }
    return messages;
}

/* The options { first =, answer = } at `arg`, both true where they are not given. */
static void bind_to_turns(lua_State *L, int arg, bool *first, bool *answer) {
    *first = *answer = true;
    if (!bind_options(L, arg, "chat", "first\0answer\0")) return;
    *first = bind_field(L, arg, "first") == LUA_TNIL || lua_toboolean(L, -1);
    *answer = bind_field(L, arg, "answer") == LUA_TNIL || lua_toboolean(L, -1);
    lua_pop(L, 2);
}

/* m:chat(messages [, { first = true, answer = true }]) -> text in the model's chat template: `first`
 * when the messages begin a session, `answer` opens the assistant's turn */
static int bind_chat(lua_State *L) {
    cairn_runtime *rt;
    cairn_model *model = bind_to_model(L, 1, &rt);
    bool first, answer;
    int count;
    size_t bytes = 0;
    cairn_message *messages;
    char *text;
    bind_to_turns(L, 3, &first, &answer);
    messages = bind_to_messages(L, 2, &count);
    cairn_chat_format(model, messages, count, first, answer, NULL, 0, &bytes);
    text = (char *)lua_newuserdatauv(L, bytes + 1, 0);
    bind_check(L, rt, cairn_chat_format(model, messages, count, first, answer, text, bytes + 1,
                                        &bytes));
    lua_pushlstring(L, text, bytes);
    return 1;
}

/* m:chat_ids(messages [, { first =, answer = }]) -> ids; contents give no control token */
static int bind_chat_ids(lua_State *L) {
    cairn_runtime *rt;
    cairn_model *model = bind_to_model(L, 1, &rt);
    bool first, answer;
    int count, capacity = 0;
    cairn_message *messages;
    int32_t *ids;
    bind_to_turns(L, 3, &first, &answer);
    messages = bind_to_messages(L, 2, &count);
    bind_check(L, rt, cairn_chat_ids(model, messages, count, first, answer, NULL, 0, &capacity));
    ids = (int32_t *)lua_newuserdatauv(L, ((size_t)capacity + 1) * sizeof *ids, 0);
    bind_check(L, rt, cairn_chat_ids(model, messages, count, first, answer, ids, capacity,
                                     &capacity));
    bind_push_ids(L, ids, capacity);
    return 1;
}

/* ---- eval ------------------------------------------------------------------------------------ */

/* Adds `top` = { { ids =, logits = }, ... }, one entry a position, to the table at the top. */
static void bind_set_top(lua_State *L, const cairn_eval_args *a) {
    int i, j;
    lua_createtable(L, a->count, 0);
    for (i = 0; i < a->count; i++) {
        lua_createtable(L, 0, 2);
        bind_push_ids(L, a->top_ids + (size_t)i * (size_t)a->top, a->top);
        lua_setfield(L, -2, "ids");
        lua_createtable(L, a->top, 0);
        for (j = 0; j < a->top; j++) {
            lua_pushnumber(L, (double)a->top_logits[(size_t)i * (size_t)a->top + (size_t)j]);
            lua_rawseti(L, -2, j + 1);
        }
        lua_setfield(L, -2, "logits");
        lua_rawseti(L, -2, i + 1);
    }
    lua_setfield(L, -2, "top");
}

/* m:eval(ids [, { top = N }]) -> { tokens =, mean_nll =, nll = {...}, top = {...} } */
static int bind_eval(lua_State *L) {
    cairn_runtime *rt;
    cairn_model *model = bind_to_model(L, 1, &rt);
    cairn_eval_args a;
    bind_runtime *r;
    double mean = 0.0;
    size_t count;
    int i;
    memset(&a, 0, sizeof a);
    a.struct_size = (uint32_t)sizeof a;
    if (bind_options(L, 3, "eval", "top\0") && bind_field(L, 3, "top") != LUA_TNIL)
        a.top = bind_to_int32(L, -1, "eval: top");
    if (a.top < 0 || a.top > 4096) luaL_error(L, "eval: top = %d; 0 to 4096 is allowed", a.top);
    a.ids = bind_to_ids(L, 2, &a.count);
    count = (size_t)a.count * (size_t)(a.top ? a.top : 1);
    a.top_ids = (int32_t *)lua_newuserdatauv(L, count * sizeof *a.top_ids, 0);
    a.top_logits = (float *)lua_newuserdatauv(L, count * sizeof *a.top_logits, 0);
    a.nll = (float *)lua_newuserdatauv(L, (size_t)a.count * sizeof *a.nll, 0);
    lua_getiuservalue(L, 1, 1);
    r = bind_begin_load(L, lua_gettop(L));
    bind_end_load(L, r, cairn_eval(model, &a, &mean));
    lua_newtable(L);
    bind_set_integer(L, "tokens", a.count);
    bind_set_number(L, "mean_nll", mean);
    lua_createtable(L, a.count, 0);
    for (i = 0; i < a.count; i++) {
        lua_pushnumber(L, (double)a.nll[i]);
        lua_rawseti(L, -2, i + 1);
    }
    lua_setfield(L, -2, "nll");
    if (a.top) bind_set_top(L, &a);
    return 1;
}

#endif
