/* lua_ops: every op as a method of the runtime, from ops/spec_table.c, which names arguments
 * and says what shapes outputs have.
 *
 *     out, ... = rt:OP(input, ..., { option = value, ... })
 *
 * Inputs are the tensors that the op reads or changes, in the table's order, given by position or
 * by name. The outputs are made when they are not given, the optional ones only for `name = true`
 * unless the table says SPEC_MADE, and returned in the table's order. An optional output given as
 * a tensor is filled and returned too. The few ops with more to do have a row in bind_specials. */
#ifndef CAIRN_NO_LUA

enum { BIND_LISTED = 2 * (CAIRN_COLLATE_LAYERS + 1) };

typedef struct bind_call {
    lua_State *L;
    const spec_op *op;
    unsigned char *args; /* the op's argument struct */
    int results;         /* outputs on the top of the stack */
    int options;         /* stack index of the table of options, 0: none */
    bool raised;         /* a function of Lua failed; what it raised is on the top */
    int listed;          /* places of `lists` in use */
    cairn_tensor *lists[BIND_LISTED];
} bind_call;

/* ---- reading arguments ----------------------------------------------------------------------- */

static bool bind_is_input(const spec_arg *f) { return f->kind == SPEC_IN || f->kind == SPEC_INOUT; }

static const spec_arg *bind_find_field(const spec_op *op, const char *name) {
    const spec_arg *f;
    for (f = op->args; f->name; f++)
        if (!(f->flags & SPEC_C_ONLY) && !strcmp(spec_lua_name(f), name)) return f;
    return NULL;
}

static void bind_unknown_option(lua_State *L, const spec_op *op, const char *name) {
    const spec_arg *f;
    const char *closest = spec_lua_name(op->args);
    for (f = op->args; f->name; f++)
        if (!(f->flags & SPEC_C_ONLY) &&
            bind_distance(name, spec_lua_name(f)) < bind_distance(name, closest))
            closest = spec_lua_name(f);
    bind_no_option(L, op->name, name, closest);
}

static void bind_set_tensor(bind_call *c, const spec_arg *f, cairn_tensor *t) {
    memcpy(c->args + f->offset, &t, sizeof t);
}

static cairn_tensor *bind_given_tensor(const bind_call *c, const spec_arg *f) {
    cairn_tensor *t;
    memcpy(&t, c->args + f->offset, sizeof t);
    return t;
}

static void bind_set_int(bind_call *c, const spec_arg *f, int32_t value) {
    memcpy(c->args + f->offset, &value, sizeof value);
}

/* The choice of that name; NULL: there is none, or no name. */
static const spec_choice *bind_find_choice(const spec_choice *choices, const char *name) {
    for (; name && choices->name; choices++)
        if (!strcmp(choices->name, name)) return choices;
    return NULL;
}

static void bind_read_choice(bind_call *c, const spec_arg *f, int index) {
    const spec_choice *choice = bind_find_choice(f->choices, lua_tostring(c->L, index));
    if (choice) {
        bind_set_int(c, f, choice->value);
        return;
    }
    lua_pushfstring(c->L, "%s: %s = %s is not allowed (", c->op->name, f->name,
                    luaL_tolstring(c->L, index, NULL));
    for (choice = f->choices; choice->name; choice++)
        lua_pushfstring(c->L, choice == f->choices ? "%s" : ", %s", choice->name);
    lua_pushliteral(c->L, ")");
    lua_concat(c->L, 2 + (int)(choice - f->choices));
    lua_error(c->L);
}

/* The tensor at `index`, which must be of the runtime at stack index 1. */
static void bind_read_tensor(bind_call *c, const spec_arg *f, int index) {
    lua_State *L = c->L;
    if (!luaL_testudata(L, index, BIND_TENSOR))
        luaL_error(L, "%s: %s: a tensor is expected, not a %s", c->op->name, spec_lua_name(f),
                   luaL_typename(L, index));
    if (bind_owner(L, index) != bind_to_runtime(L, 1))
        luaL_error(L, "%s: %s: the tensor is of another runtime", c->op->name,
                   spec_lua_name(f));
    if (bind_is_freed(L, index))
        luaL_error(L, "%s: %s: the tensor, or the one that it views, is freed", c->op->name,
                   spec_lua_name(f));
    bind_set_tensor(c, f, bind_to_tensor(L, index));
    bind_note_used(L, 1, index);
}

/* The tensors of the table at `index`, in order. */
static void bind_read_tensors(bind_call *c, const spec_arg *f, int index) {
    lua_State *L = c->L;
    cairn_tensor **list = &c->lists[c->listed];
    lua_Integer count, i;
    luaL_argcheck(L, lua_istable(L, index), 2, "a table of tensors is expected");
    count = (lua_Integer)lua_rawlen(L, index);
    if (count + 1 > BIND_LISTED - c->listed)
        luaL_error(L, "%s: %s has %I tensors; %d are allowed", c->op->name, spec_lua_name(f),
                   (LUAI_UACINT)count, CAIRN_COLLATE_LAYERS);
    for (i = 1; i <= count; i++) {
        lua_rawgeti(L, index, i);
        bind_read_tensor(c, f, lua_gettop(L));
        list[i - 1] = bind_given_tensor(c, f);
        lua_pop(L, 1);
    }
    c->listed += (int)count + 1;
    memcpy(c->args + f->offset, &list, sizeof list);
}

/* One option: its value is at `index`. */
static void bind_read_option(bind_call *c, const spec_arg *f, int index) {
    lua_State *L = c->L;
    char what[96];
    snprintf(what, sizeof what, "%s: %s", c->op->name, spec_lua_name(f));
    switch (f->kind) {
        case SPEC_OUT:
            if ((f->flags & SPEC_OPTIONAL) && lua_isboolean(L, index)) break;
            bind_read_tensor(c, f, index);
            break;
        case SPEC_IN: case SPEC_INOUT: bind_read_tensor(c, f, index); break;
        case SPEC_OWN: break;
        case SPEC_INT: bind_set_int(c, f, bind_to_int32(L, index, what)); break;
        case SPEC_FLAG: bind_set_int(c, f, lua_toboolean(L, index)); break;
        case SPEC_CHOICE: bind_read_choice(c, f, index); break;
        case SPEC_LIST: bind_read_tensors(c, f, index); break;
        case SPEC_FLOAT: {
            float value = (float)lua_tonumber(L, index);
            if (lua_type(L, index) != LUA_TNUMBER)
                luaL_error(L, "%s: a number is expected, not a %s", what, luaL_typename(L, index));
            memcpy(c->args + f->offset, &value, sizeof value);
            break;
        }
        case SPEC_STAGING: {
            cairn_runtime *rt;
            void *staging = bind_to_object(L, index, BIND_STAGING, &rt);
            if (rt != bind_to_runtime(L, 1)) luaL_error(L, "%s: of another runtime", what);
            memcpy(c->args + f->offset, &staging, sizeof staging);
            break;
        }
        case SPEC_TEXT: {
            const char *text;
            if (lua_type(L, index) != LUA_TSTRING)
                luaL_error(L, "%s: a string is expected, not a %s", what, luaL_typename(L, index));
            text = lua_tostring(L, index); /* stands while the table holds it */
            memcpy(c->args + f->offset, &text, sizeof text);
            break;
        }
        case SPEC_BYTES: {
            int exact;
            uint64_t value = (uint64_t)lua_tointegerx(L, index, &exact);
            if (!exact || lua_type(L, index) != LUA_TNUMBER || value > INT64_MAX)
                luaL_error(L, "%s: a whole number, 0 or more, is expected", what);
            memcpy(c->args + f->offset, &value, sizeof value);
            break;
        }
        case SPEC_FUNCTION: luaL_error(L, "%s: give it first, not by name", what); break;
    }
}

/* Stack: runtime, inputs..., options. */
static void bind_read_arguments(bind_call *c) {
    lua_State *L = c->L;
    const spec_arg *f;
    int arg = 2, last = lua_gettop(L);
    if (lua_type(L, last) == LUA_TTABLE) c->options = last--;
    for (f = c->op->args; f->name && arg <= last; f++) {
        if (f->kind == SPEC_FUNCTION) luaL_checktype(L, arg++, LUA_TFUNCTION);
        if (!bind_is_input(f) || arg > last) continue;
        if (!lua_isnil(L, arg)) bind_read_tensor(c, f, arg);
        arg++;
    }
    if (arg <= last) luaL_error(L, "%s: too many arguments", c->op->name);
    if (!c->options) return;
    lua_pushnil(L);
    while (lua_next(L, c->options)) {
        const char *name = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "?";
        f = bind_find_field(c->op, name);
        if (!f) bind_unknown_option(L, c->op, name);
        else bind_read_option(c, f, lua_gettop(L));
        lua_settop(L, last + 2);
    }
}

/* ---- outputs --------------------------------------------------------------------------------- */

/* Extent d of a tensor, 0 when there is none: then the op says what is wrong. */
static int64_t bind_extent(const cairn_tensor *t, int d) {
    return t && d < t->ndim ? t->shape[d] : 0;
}

/* Pushes an output, made here with this shape when it was not given. An unknown extent is 0: then
 * the op says what is wrong. */
static void bind_output(bind_call *c, const spec_arg *f, cairn_type type, int rank,
                        const int64_t *wanted) {
    lua_State *L = c->L;
    int64_t shape[CAIRN_MAX_RANK];
    int d;
    if (c->options) bind_field(L, c->options, spec_lua_name(f));
    else lua_pushnil(L);
    if (!bind_given_tensor(c, f)) {
        bool wish = lua_toboolean(L, -1);
        lua_pop(L, 1);
        if ((f->flags & SPEC_OPTIONAL) && !(f->flags & SPEC_MADE) && !wish) return;
        for (d = 0; d < rank; d++) shape[d] = wanted[d] < 0 ? 0 : wanted[d];
        bind_set_tensor(c, f, bind_new_tensor(L, 1, type, rank, shape));
        bind_note_used(L, 1, lua_gettop(L));
    }
    c->results++;
}

/* The only dtype of an argument, or the call's common one. */
static cairn_type bind_output_type(const spec_call *s, const spec_arg *f) {
    int type = CAIRN_F32;
    if (f->flags & SPEC_SAME_TYPE) return s->type ? s->type : CAIRN_F32;
    while (!(f->types & TENSOR_BIT(type))) type++;
    return (cairn_type)type;
}

/* All outputs, in shapes from the table and the arguments. */
static void bind_outputs(bind_call *c) {
    spec_call s;
    spec_guess(&s, c->op, c->args);
    for (const spec_arg *f = c->op->args; f->name; f++) {
        int64_t shape[SPEC_RANK];
        int rank = 0;
        if (f->kind != SPEC_OUT) continue;
        for (; f->extents[rank]; rank++) shape[rank] = spec_extent_value(&s, f->extents[rank]);
        bind_output(c, f, bind_output_type(&s, f), rank, shape);
    }
}

/* ---- topk_rows ------------------------------------------------------------------------------- */

/* rt:topk_rows(function(first, count, scores) ... end, { rows =, n =, k =, ... }): `first` counts
 * from 0 as the indices do; `scores` is a view that ends with the call; returning false cancels. */

/* One call of the producer; an error in it passes no C frame of the op. */
typedef struct bind_part {
    bind_call *call;
    int64_t first;
    const cairn_tensor *scores;
} bind_part;

/* Raises when the producer freed a tensor that the op still uses. */
static void bind_check_alive(lua_State *L, int tensors) {
    lua_Integer i, n = (lua_Integer)lua_rawlen(L, tensors);
    for (i = 1; i <= n; i++) {
        lua_rawgeti(L, tensors, i);
        bind_to_tensor(L, lua_gettop(L));
        lua_pop(L, 1);
    }
}

/* Stack: the producer, the runtime, the op's tensors, the part. Gives what the producer gives. */
static int bind_call_producer(lua_State *L) {
    const bind_part *part = (const bind_part *)lua_touserdata(L, 4);
    bind_tensor *t = (bind_tensor *)bind_new_object(L, BIND_TENSOR, sizeof *t, 2, 2);
    int status;
    t->view = *part->scores;
    memcpy(t->shape, part->scores->shape, 2 * sizeof *t->shape);
    memcpy(t->strides, part->scores->strides, 2 * sizeof *t->strides);
    t->view.shape = t->shape;
    t->view.strides = tensor_dense(part->scores) ? NULL : t->strides;
    t->tensor = &t->view;
    lua_pushvalue(L, 1);
    lua_pushinteger(L, (lua_Integer)part->first);
    lua_pushinteger(L, (lua_Integer)t->shape[0]);
    lua_pushvalue(L, 5);
    status = lua_pcall(L, 3, 1, 0);
    t->tensor = NULL;
    if (status) return lua_error(L);
    bind_check_alive(L, 3);
    return 1;
}

/* A cairn_scores_callback. The op's stack holds the producer at 2 and its tensors on the top. */
static cairn_status bind_produce(void *user, int64_t first, int64_t count, cairn_tensor *scores) {
    bind_part part;
    lua_State *L;
    bool cancelled;
    (void)count;
    part.call = (bind_call *)user;
    part.first = first;
    part.scores = scores;
    L = part.call->L;
    if (!lua_checkstack(L, 8)) return CAIRN_OUT_OF_MEMORY;
    lua_pushcfunction(L, bind_call_producer);
    lua_pushvalue(L, 2);
    lua_pushvalue(L, 1);
    lua_pushvalue(L, -4);
    lua_pushlightuserdata(L, &part);
    if (lua_pcall(L, 4, 1, 0)) {
        part.call->raised = true;
        return CAIRN_LUA_ERROR;
    }
    cancelled = lua_isboolean(L, -1) && !lua_toboolean(L, -1);
    lua_pop(L, 1);
    return cancelled ? CAIRN_CANCELLED : CAIRN_OK;
}

static void bind_topk_rows_outputs(bind_call *c) {
    cairn_topk_rows_args *a = (cairn_topk_rows_args *)(void *)c->args;
    luaL_checktype(c->L, 2, LUA_TFUNCTION);
    bind_outputs(c);
    a->produce = bind_produce;
    a->user = c;
}

/* Leaves a list of all tensors of the call on the top. */
static void bind_list_tensors(bind_call *c) {
    lua_State *L = c->L;
    const spec_arg *f;
    int last = lua_gettop(L), list, i;
    lua_newtable(L);
    list = lua_gettop(L);
    for (i = 2; i <= last; i++)
        if (luaL_testudata(L, i, BIND_TENSOR)) lua_pushvalue(L, i), bind_add_piece(L, list);
    for (f = c->op->args; f->name && c->options; f++) {
        if (bind_field(L, c->options, spec_lua_name(f)) == LUA_TUSERDATA) bind_add_piece(L, list);
        else lua_pop(L, 1);
    }
}

static cairn_status bind_run_topk_rows(cairn_runtime *rt, const void *args) {
    const cairn_topk_rows_args *a = (const cairn_topk_rows_args *)args;
    bind_call *c = (bind_call *)a->user;
    bind_runtime *r = (bind_runtime *)lua_touserdata(c->L, 1);
    cairn_status status;
    bind_list_tensors(c);
    r->calls++;
    status = cairn_topk_rows(rt, a);
    r->calls--;
    if (!c->raised) lua_pop(c->L, 1);
    return status;
}

/* ---- what else the table does not say -------------------------------------------------------- */

/* The caches say how many layers there are. */
static void bind_kv_collate_outputs(bind_call *c) {
    cairn_kv_collate_args *a = (cairn_kv_collate_args *)(void *)c->args;
    int scales = 0;
    while (a->caches && a->caches[a->layers]) a->layers++;
    while (a->scales && a->scales[scales]) scales++;
    if (a->scales && scales != a->layers)
        luaL_error(c->L, "kv_collate: %d caches and %d scales", (int)a->layers, scales);
}

static void bind_prepare_steps_outputs(bind_call *c); /* in steps.c, as the next */
static void bind_prefix_chunks_outputs(bind_call *c);

typedef struct bind_special {
    const char *op;
    void (*outputs)(bind_call *call);
    cairn_status (*run)(cairn_runtime *rt, const void *args); /* NULL: the op's */
} bind_special;

static const bind_special bind_specials[] = {
    {"topk_rows", bind_topk_rows_outputs, bind_run_topk_rows},
    {"kv_collate", bind_kv_collate_outputs, NULL},
    {"prepare_steps", bind_prepare_steps_outputs, NULL},
    {"prefix_chunks", bind_prefix_chunks_outputs, NULL},
};

static const bind_special *bind_find_special(const char *op) {
    static const bind_special none = {NULL, bind_outputs, NULL};
    for (size_t i = 0; i < BASE_COUNT(bind_specials); i++)
        if (!strcmp(bind_specials[i].op, op)) return &bind_specials[i];
    return &none;
}

/* ---- the methods ----------------------------------------------------------------------------- */

/* The method: upvalue 1 is the op's number. */
static int bind_call_op(lua_State *L) {
    const spec_op *op = &spec_ops[lua_tointeger(L, lua_upvalueindex(1))];
    const bind_special *special = bind_find_special(op->name);
    union { unsigned char bytes[512]; void *align; double align_too; } args;
    bind_call c;
    cairn_runtime *rt = bind_to_runtime(L, 1);
    uint32_t size = (uint32_t)op->bytes;
    cairn_status status;
    memset(&args, 0, sizeof args);
    memcpy(args.bytes, &size, sizeof size); /* struct_size stands first in each */
    c.L = L;
    c.op = op;
    c.args = args.bytes;
    c.raised = false;
    c.results = c.options = c.listed = 0;
    memset(c.lists, 0, sizeof c.lists);
    bind_read_arguments(&c);
    special->outputs(&c);
    status = (special->run ? special->run : op->run)(rt, args.bytes);
    if (c.raised) return lua_error(L);
    bind_check(L, rt, status);
    return c.results;
}

/* rt:topk_rows_plan { rows =, n =, max_bytes =, ... } -> the rows that topk_rows takes at a time */
static int bind_topk_rows_plan(lua_State *L) {
    static const spec_op op = {"topk_rows_plan", sizeof(cairn_topk_rows_args),
                               spec_topk_rows_args + 1, spec_topk_rows_limits, NULL};
    cairn_runtime *rt = bind_to_runtime(L, 1);
    cairn_topk_rows_args args;
    bind_call c;
    int64_t rows = 0;
    memset(&args, 0, sizeof args);
    memset(&c, 0, sizeof c);
    args.struct_size = (uint32_t)sizeof args;
    c.L = L;
    c.op = &op;
    c.args = (unsigned char *)&args;
    bind_read_arguments(&c);
    bind_check(L, rt, cairn_topk_rows_plan(rt, &args, &rows));
    lua_pushinteger(L, (lua_Integer)rows);
    return 1;
}

/* rt:topk_route(rows, n, k) -> the route that topk takes for this shape */
static int bind_topk_route(lua_State *L) {
    cairn_runtime *rt = bind_to_runtime(L, 1);
    lua_pushstring(L, cairn_topk_route(rt, luaL_checkinteger(L, 2), luaL_checkinteger(L, 3),
                                       bind_to_int32(L, 4, "topk_route: k")));
    return 1;
}

/* Adds the ops to the table of methods at the top. */
static void bind_add_ops(lua_State *L) {
    size_t i;
    for (i = 0; i < BASE_COUNT(spec_ops); i++) {
        lua_pushinteger(L, (lua_Integer)i);
        lua_pushcclosure(L, bind_call_op, 1);
        lua_setfield(L, -2, spec_ops[i].name);
    }
    lua_pushcfunction(L, bind_topk_rows_plan);
    lua_setfield(L, -2, "topk_rows_plan");
    lua_pushcfunction(L, bind_topk_route);
    lua_setfield(L, -2, "topk_route");
}

/* ---- what ops there are ---------------------------------------------------------------------- */

static void bind_push_extent(lua_State *L, spec_extent e) {
    const char *name = spec_symbol_names[e & 255];
    if (e & SPEC_EXTENT_NUMBER) lua_pushinteger(L, e >> 12);
    else if (e & SPEC_EXTENT_ANY) lua_pushliteral(L, "any");
    else lua_pushfstring(L, e & SPEC_EXTENT_ONE_MORE ? "%s + 1" : e & SPEC_EXTENT_LEAST
                                ? "%s or more" : "%s", name);
}

/* Adds dtypes and shape of a tensor to the table at the top. */
static void bind_tell_tensor(lua_State *L, const spec_arg *a) {
    int count = 0;
    lua_newtable(L);
    for (int type = 1; type < (int)BASE_COUNT(tensor_types); type++) {
        if (!(a->types & TENSOR_BIT(type))) continue;
        lua_pushstring(L, cairn_type_name((cairn_type)type));
        lua_rawseti(L, -2, ++count);
    }
    lua_setfield(L, -2, "dtypes");
    if (a->flags & SPEC_ANY_SHAPE) return;
    lua_newtable(L);
    for (int d = 0; a->extents[d]; d++) {
        bind_push_extent(L, a->extents[d]);
        lua_rawseti(L, -2, d + 1);
    }
    lua_setfield(L, -2, "shape");
}

/* Pushes an argument as cairn.ops() has it. */
static void bind_push_argument(lua_State *L, const spec_arg *a) {
    static const char *const kinds[] = {"in", "out", "inout", "list", "integer", "flag", "choice",
                                        "number", "bytes", "text", "staging", "function", "other"};
    lua_newtable(L);
    bind_set_string(L, "name", spec_lua_name(a));
    bind_set_string(L, "kind", kinds[a->kind]);
    bind_set_bool(L, "optional", (a->flags & SPEC_OPTIONAL) != 0);
    bind_set_bool(L, "made", a->kind == SPEC_OUT &&
                                 (!(a->flags & SPEC_OPTIONAL) || (a->flags & SPEC_MADE)));
    if (a->kind <= SPEC_LIST) bind_tell_tensor(L, a);
    if (a->align) bind_set_integer(L, "align", a->align);
    if (!a->choices) return;
    lua_newtable(L);
    for (int i = 0; a->choices[i].name; i++) {
        lua_pushstring(L, a->choices[i].name);
        lua_rawseti(L, -2, i + 1);
    }
    lua_setfield(L, -2, "choices");
}

/* cairn.ops() -> { { name =, arguments = { { name =, kind =, optional =, made =, dtypes =, shape =,
 * align =, choices = }, ... } }, ... }: the table of ops/spec.h */
static int bind_list_ops(lua_State *L) {
    lua_createtable(L, SPEC_OP_COUNT, 0);
    for (int i = 0; i < SPEC_OP_COUNT; i++) {
        int count = 0;
        lua_newtable(L);
        bind_set_string(L, "name", spec_ops[i].name);
        lua_newtable(L);
        for (const spec_arg *a = spec_ops[i].args; a->name; a++) {
            if (a->flags & SPEC_C_ONLY) continue;
            bind_push_argument(L, a);
            lua_rawseti(L, -2, ++count);
        }
        lua_setfield(L, -2, "arguments");
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

#endif
