/* lua_rows: rows of ids in Lua, through cairn_generate_batch and cairn_forward; profiles and traces; and the methods
 * of models and sessions. */
#ifndef CAIRN_NO_LUA

/* ---- generate_batch -------------------------------------------------------------------------- */

/* The wishes of row `row`: those of all, or of the list's entry. */
static void bind_read_row(lua_State *L, cairn_runtime *rt, int row, cairn_batch_args *a) {
    bind_wishes *w = (bind_wishes *)lua_newuserdatauv(L, sizeof *w, 0);
    bool each = lua_istable(L, 3) && lua_rawlen(L, 3) > 0;
    if (each) lua_rawgeti(L, 3, row + 1);
    else lua_pushvalue(L, 3);
    bind_read_wishes(L, lua_gettop(L), rt, w);
    ((cairn_sampling *)a->sampling)[row] = w->config.sampling;
    ((int32_t *)a->limits)[row] = w->options.max_tokens;
    lua_pop(L, 2);
}

static void bind_push_rows(lua_State *L, const cairn_batch_args *a) {
    lua_createtable(L, a->rows, 0);
    for (int row = 0; row < a->rows; row++) {
        lua_createtable(L, 0, 2);
        bind_push_ids(L, a->output + (size_t)row * (size_t)a->capacity, a->total[row]);
        lua_setfield(L, -2, "ids");
        lua_pushinteger(L, a->generated[row]);
        lua_setfield(L, -2, "generated");
        lua_rawseti(L, -2, row + 1);
    }
}

/* A block that Lua frees. */
static void *bind_block(lua_State *L, size_t count, size_t size) {
    void *block = lua_newuserdatauv(L, (count + 1) * size, 0);
    memset(block, 0, (count + 1) * size);
    return block;
}

/* m:generate_batch(rows of ids [, options, or a list of them, one a row]) -> a list of { ids = the row's
 * and those made, generated = how many }; how many forwards that took */
static int bind_generate_batch(lua_State *L) {
    cairn_runtime *rt;
    cairn_model *model = bind_to_model(L, 1, &rt);
    cairn_model_properties p;
    cairn_batch_args a;
    int32_t *lengths, *all;
    lua_settop(L, 3);
    luaL_checktype(L, 2, LUA_TTABLE);
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a, p.struct_size = sizeof p;
    bind_check(L, rt, cairn_model_info(model, &p));
    a.rows = (int32_t)lua_rawlen(L, 2);
    a.stride = a.capacity = p.max_seq_len;
    a.ids = all = (int32_t *)bind_block(L, (size_t)a.rows * (size_t)a.stride, sizeof *all);
    a.lengths = lengths = (int32_t *)bind_block(L, (size_t)a.rows, sizeof *lengths);
    a.limits = (int32_t *)bind_block(L, (size_t)a.rows, sizeof *lengths);
    a.sampling = (cairn_sampling *)bind_block(L, (size_t)a.rows, sizeof *a.sampling);
    for (int row = 0; row < a.rows; row++) {
        int count;
        const int32_t *ids;
        lua_rawgeti(L, 2, row + 1);
        ids = bind_to_ids(L, lua_gettop(L), &count);
        if (count > a.stride) luaL_error(L, "generate_batch: row %d has %d ids", row + 1, count);
        memcpy(all + (size_t)row * (size_t)a.stride, ids, (size_t)count * sizeof *ids);
        lengths[row] = count;
        bind_read_row(L, rt, row, &a);
        lua_settop(L, 7);
    }
    a.output = (int32_t *)bind_block(L, (size_t)a.rows * (size_t)a.capacity, sizeof *all);
    a.generated = (int32_t *)bind_block(L, (size_t)a.rows, sizeof *lengths);
    a.total = (int32_t *)bind_block(L, (size_t)a.rows, sizeof *lengths);
    bind_check(L, rt, cairn_generate_batch(model, &a));
    bind_push_rows(L, &a);
    lua_pushinteger(L, (lua_Integer)a.steps);
    return 2;
}

/* ---- forward --------------------------------------------------------------------------------- */

/* m:forward { { session =, ids =, position =, prompt =, rope =, gate =, mask =, logits =, hidden = },
 * ... } -> a list of { logits = [n, vocab], hidden = [n, hidden] }, one a sequence, f32 tensors of the
 * rows whose numbers are listed under these names, ascending from 1; true: of all. Without `position`
 * rows stand behind what the session holds; mask is a list of lists of 0 and 1, one a row. */

typedef struct bind_rows {
    cairn_forward_args a;
    cairn_forward_sequence *sequences;
    int32_t *ids, *rope, *logits, *hidden;
    uint8_t *gate;
} bind_rows;

enum { BIND_SEQUENCES = 2, BIND_ANCHOR, BIND_SEQUENCE }; /* on the stack; the anchor holds blocks */

/* A block that stands as long as the call. */
static void *bind_anchored(lua_State *L, size_t count, size_t size) {
    void *block = bind_block(L, count, size);
    lua_rawseti(L, BIND_ANCHOR, (lua_Integer)lua_rawlen(L, BIND_ANCHOR) + 1);
    return block;
}

/* Pushes the sequence's list of that name, of one entry a row; false: there is none. */
static bool bind_row_list(lua_State *L, const char *name, int rows) {
    if (bind_field(L, BIND_SEQUENCE, name) == LUA_TNIL) return false;
    if (!lua_istable(L, -1) || (int)lua_rawlen(L, -1) != rows)
        luaL_error(L, "forward: %s: a list of one entry a row is expected", name);
    return true;
}

/* Entry i, from 0 on, of the list at the top. */
static int32_t bind_entry(lua_State *L, int i, const char *what) {
    int32_t value;
    lua_rawgeti(L, -1, i + 1);
    value = bind_to_int32(L, -1, what);
    lua_pop(L, 1);
    return value;
}

/* Adds the numbers of the rows that the sequence wants `name` of, from row `first` of all on. */
static int bind_read_wanted(lua_State *L, const char *name, int first, int rows, int32_t *out) {
    const int kind = bind_field(L, BIND_SEQUENCE, name);
    const int count = kind == LUA_TTABLE ? (int)lua_rawlen(L, -1) : lua_toboolean(L, -1) ? rows : 0;
    if (count > rows) luaL_error(L, "forward: %s: %d rows of %d", name, count, rows);
    for (int i = 0; i < count; i++) {
        const int32_t row = kind == LUA_TTABLE ? bind_entry(L, i, "forward: a row") : i + 1;
        if (row < 1 || row > rows) luaL_error(L, "forward: %s: row %d of %d", name, (int)row, rows);
        out[i] = first + row - 1;
    }
    lua_pop(L, 1);
    return count;
}

static void bind_read_mask(lua_State *L, cairn_forward_sequence *q) {
    const size_t each = ((size_t)q->rows + 7) / 8;
    uint8_t *bits;
    if (bind_row_list(L, "mask", q->rows)) {
        q->mask_bytes = (uint64_t)q->rows * each;
        q->mask = bits = (uint8_t *)bind_anchored(L, (size_t)q->mask_bytes, 1);
        for (int i = 0; i < q->rows; i++) {
            if (lua_rawgeti(L, -1, i + 1) != LUA_TTABLE || (int)lua_rawlen(L, -1) < i + 1)
                luaL_error(L, "forward: mask: row %d: a list up to the row itself is expected", i + 1);
            for (int j = 0; j <= i; j++)
                if (bind_entry(L, j, "forward: mask"))
                    bits[(size_t)i * each + (size_t)(j / 8)] |= (uint8_t)(1 << j % 8);
            lua_pop(L, 1);
        }
    }
    lua_pop(L, 1);
}

/* The sequence at BIND_SEQUENCE, whose rows are those from `first` on. */
static void bind_read_sequence(lua_State *L, bind_rows *r, cairn_forward_sequence *q, int first) {
    cairn_runtime *rt;
    int held;
    bind_options(L, BIND_SEQUENCE, "forward",
                 "session\0ids\0position\0prompt\0rope\0gate\0mask\0logits\0hidden\0");
    bind_field(L, BIND_SEQUENCE, "session");
    q->session = bind_to_session(L, lua_gettop(L), &rt);
    cairn_session_ids(q->session, &held);
    bind_field(L, BIND_SEQUENCE, "ids");
    for (int i = 0; i < q->rows; i++) r->ids[first + i] = bind_entry(L, i, "forward: ids");
    q->position = held;
    if (bind_field(L, BIND_SEQUENCE, "position") != LUA_TNIL)
        q->position = bind_to_int32(L, -1, "forward: position");
    bind_field(L, BIND_SEQUENCE, "prompt");
    q->prompt = lua_toboolean(L, -1);
    if (bind_row_list(L, "rope", q->rows)) r->a.rope = r->rope;
    for (int i = 0; i < q->rows; i++)
        r->rope[first + i] = lua_isnil(L, -1) ? q->position + i : bind_entry(L, i, "forward: rope");
    if (bind_row_list(L, "gate", q->rows)) r->a.gate = r->gate;
    for (int i = 0; i < q->rows; i++)
        r->gate[first + i] = lua_isnil(L, -1) ? engine_adapter(q->session) != NULL
                                              : bind_entry(L, i, "forward: gate") != 0;
    bind_read_mask(L, q);
}

/* Rows of all sequences, counted into each. */
static void bind_count_rows(lua_State *L, bind_rows *r) {
    int64_t rows = 0;
    for (int i = 0; i < r->a.sequence_count; i++, lua_settop(L, BIND_ANCHOR)) {
        if (lua_rawgeti(L, BIND_SEQUENCES, i + 1) != LUA_TTABLE ||
            bind_field(L, BIND_SEQUENCE, "ids") != LUA_TTABLE)
            luaL_error(L, "forward: sequence %d: a table with a list of ids is expected", i + 1);
        rows += r->sequences[i].rows = (int32_t)lua_rawlen(L, -1);
        if (rows > INT32_MAX / 8) luaL_error(L, "forward: too many rows");
    }
    r->a.row_count = (int32_t)rows;
}

/* Sets out[name], of the table at the top, to a tensor of `count` rows. */
static void bind_set_rows(lua_State *L, cairn_runtime *rt, const char *name, int owner,
                          const float *rows, int count, int width) {
    const int64_t shape[2] = {count, width};
    cairn_tensor *t;
    if (!count) return;
    t = bind_new_tensor(L, owner, CAIRN_F32, 2, shape);
    bind_check(L, rt, cairn_tensor_write(rt, t, rows, (size_t)count * (size_t)width * sizeof *rows));
    lua_setfield(L, -2, name);
}

/* How many of a list's rows, from *at on, are below `end`; *at goes behind them. */
static int bind_rows_below(const int32_t *rows, int count, int end, int *at) {
    const int from = *at;
    while (*at < count && rows[*at] < end) ++*at;
    return *at - from;
}

static void bind_push_results(lua_State *L, cairn_runtime *rt, const bind_rows *r,
                              const cairn_model_properties *p) {
    const int owner = bind_push_owner(L, 1);
    int end = 0, logits = 0, hidden = 0;
    lua_createtable(L, r->a.sequence_count, 0);
    for (int i = 0; i < r->a.sequence_count; i++) {
        const float *from = r->a.logits + (size_t)logits * (size_t)p->vocab;
        const float *states = r->a.hidden + (size_t)hidden * (size_t)p->hidden;
        end += r->sequences[i].rows;
        lua_createtable(L, 0, 2);
        bind_set_rows(L, rt, "logits", owner, from,
                      bind_rows_below(r->logits, r->a.logits_count, end, &logits), p->vocab);
        bind_set_rows(L, rt, "hidden", owner, states,
                      bind_rows_below(r->hidden, r->a.hidden_count, end, &hidden), p->hidden);
        lua_rawseti(L, -2, i + 1);
    }
}

static int bind_forward(lua_State *L) {
    cairn_runtime *rt;
    cairn_model *model = bind_to_model(L, 1, &rt);
    cairn_model_properties p;
    bind_rows r;
    int first = 0;
    luaL_checktype(L, BIND_SEQUENCES, LUA_TTABLE);
    lua_settop(L, BIND_SEQUENCES);
    lua_newtable(L);
    memset(&r, 0, sizeof r);
    r.a.struct_size = sizeof r.a, p.struct_size = sizeof p;
    bind_check(L, rt, cairn_model_info(model, &p));
    r.a.sequence_count = (int32_t)lua_rawlen(L, BIND_SEQUENCES);
    r.sequences = (cairn_forward_sequence *)bind_anchored(L, (size_t)r.a.sequence_count,
                                                          sizeof *r.sequences);
    bind_count_rows(L, &r);
    r.ids = (int32_t *)bind_anchored(L, 4 * (size_t)r.a.row_count, sizeof *r.ids);
    r.rope = r.ids + r.a.row_count, r.logits = r.rope + r.a.row_count;
    r.hidden = r.logits + r.a.row_count;
    r.gate = (uint8_t *)bind_anchored(L, (size_t)r.a.row_count, 1);
    for (int i = 0; i < r.a.sequence_count; i++, lua_settop(L, BIND_ANCHOR)) {
        const int rows = r.sequences[i].rows;
        lua_rawgeti(L, BIND_SEQUENCES, i + 1);
        bind_read_sequence(L, &r, &r.sequences[i], first);
        r.a.logits_count += bind_read_wanted(L, "logits", first, rows, r.logits + r.a.logits_count);
        r.a.hidden_count += bind_read_wanted(L, "hidden", first, rows, r.hidden + r.a.hidden_count);
        first += rows;
    }
    r.a.sequences = r.sequences, r.a.ids = r.ids, r.a.logits_rows = r.logits, r.a.hidden_rows = r.hidden;
    r.a.logits = (float *)bind_anchored(L, (size_t)r.a.logits_count, (size_t)p.vocab * sizeof(float));
    r.a.hidden = (float *)bind_anchored(L, (size_t)r.a.hidden_count, (size_t)p.hidden * sizeof(float));
    bind_check(L, rt, cairn_forward(model, &r.a));
    bind_push_results(L, rt, &r, &p);
    return 1;
}

/* ---- profiles and traces --------------------------------------------------------------------- */

/* m:profile([{ warmup = 1, kv_len_reduce = "mean" }]): begins one; max, p50, p90, sum, too */
static int bind_profile(lua_State *L) {
    cairn_runtime *rt;
    cairn_model *model = bind_to_model(L, 1, &rt);
    cairn_profile_options o;
    memset(&o, 0, sizeof o);
    o.struct_size = sizeof o;
    o.warmup = 1;
    if (bind_options(L, 2, "profile", "warmup\0kv_len_reduce\0")) {
        if (bind_field(L, 2, "warmup") != LUA_TNIL)
            o.warmup = bind_to_int32(L, -1, "profile: warmup");
        bind_field(L, 2, "kv_len_reduce");
        o.kv_len_reduce = bind_choice(L, -1, "profile: kv_len_reduce", "mean\0max\0p50\0p90\0sum\0");
    }
    bind_check(L, rt, cairn_profile_start(model, &o));
    return 0;
}

/* m:profile_text([form]) -> the profile as "json" or "markdown" */
static int bind_profile_text(lua_State *L) {
    cairn_runtime *rt;
    cairn_model *model = bind_to_model(L, 1, &rt);
    const cairn_profile_form form =
        (cairn_profile_form)bind_choice(L, 2, "profile_text", "json\0markdown\0");
    size_t bytes = 0;
    char *text;
    bind_check(L, rt, cairn_profile_text(model, form, NULL, 0, &bytes));
    text = (char *)bind_block(L, bytes, 1);
    bind_check(L, rt, cairn_profile_text(model, form, text, bytes + 1, &bytes));
    lua_pushlstring(L, text, bytes);
    return 1;
}

/* m:profile_stop() */
static int bind_profile_stop(lua_State *L) {
    cairn_runtime *rt;
    cairn_model *model = bind_to_model(L, 1, &rt);
    bind_check(L, rt, cairn_profile_stop(model));
    return 0;
}

/* rt:trace([events]): begins one */
static int bind_trace(lua_State *L) {
    cairn_runtime *rt = bind_to_runtime(L, 1);
    bind_check(L, rt, cairn_trace_start(rt, lua_isnoneornil(L, 2) ? 0 : bind_to_int32(L, 2, "trace")));
    return 0;
}

/* rt:trace_text() -> what was traced so far, for chrome://tracing or Perfetto */
static int bind_trace_text(lua_State *L) {
    cairn_runtime *rt = bind_to_runtime(L, 1);
    size_t bytes = 0;
    char *text;
    bind_check(L, rt, cairn_trace_text(rt, NULL, 0, &bytes));
    bytes += bytes / 8 + 4096; /* a worker may add to it meanwhile */
    text = (char *)bind_block(L, bytes, 1);
    bind_check(L, rt, cairn_trace_text(rt, text, bytes, &bytes));
    lua_pushlstring(L, text, bytes);
    return 1;
}

/* rt:trace_stop() */
static int bind_trace_stop(lua_State *L) {
    cairn_runtime *rt = bind_to_runtime(L, 1);
    bind_check(L, rt, cairn_trace_stop(rt));
    return 0;
}

static void bind_new_model_types(lua_State *L) {
    static const luaL_Reg model[] = {
        {"wait", bind_model_wait}, {"info", bind_model_info},
        {"tokenize", bind_tokenize}, {"detokenize", bind_detokenize},
        {"chat", bind_chat}, {"chat_ids", bind_chat_ids}, {"eval", bind_eval},
        {"session", bind_make_session}, {"step", bind_step}, {"load_adapter", bind_load_adapter},
        {"generate_batch", bind_generate_batch}, {"forward", bind_forward},
        {"profile", bind_profile}, {"profile_text", bind_profile_text},
        {"profile_stop", bind_profile_stop}, {NULL, NULL}};
    static const luaL_Reg session[] = {
        {"append", bind_append}, {"chat", bind_append_chat}, {"reset", bind_reset},
        {"rewind", bind_rewind}, {"selection", bind_selection}, {"adapt", bind_adapt},
        {"fork", bind_fork}, {"save", bind_save}, {"load", bind_load},
        {"save_memory", bind_save_memory}, {"load_memory", bind_load_memory},
        {"ids", bind_session_ids}, {"generate", bind_generate}, {"text", bind_text},
        {"submit", bind_submit}, {"poll", bind_poll},
        {"cancel", bind_cancel}, {"error", bind_session_error}, {"pointer", bind_pointer},
        {"stats", bind_stats}, {NULL, NULL}};
    static const bind_handle models = {BIND_MODEL, "close", bind_give_model};
    static const luaL_Reg none[] = {{NULL, NULL}};
    static const bind_handle sessions = {BIND_SESSION, "close", bind_give_session};
    static const bind_handle adapters = {BIND_ADAPTER, "close", bind_give_adapter};
    bind_new_handle(L, &models, model);
    bind_new_handle(L, &sessions, session);
    bind_new_handle(L, &adapters, none);
}

#endif
