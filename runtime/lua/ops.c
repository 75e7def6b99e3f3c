/* lua_ops: every op as a method of the runtime, from tables. To add an op: list its struct's
 * fields, write what shapes its outputs have, and add a line to bind_ops.
 *
 *     out, ... = rt:OP(input, ..., { option = value, ... })
 *
 * Inputs are the fields of kind INPUT, in the order of the list, given by position or by name. The
 * outputs are made when they are not given, the optional ones only for `name = true`, and returned
 * in the order of the list. An optional output given as a tensor is filled and returned too. */
#ifndef CAIRN_NO_LUA

typedef enum bind_kind {
    BIND_INPUT,  /* a tensor, may be absent when the op allows it */
    BIND_OUT,    /* a tensor, made when absent */
    BIND_MAYBE,  /* an output that is made for `true` */
    BIND_INT,
    BIND_FLOAT,
    BIND_FLAG,   /* int32_t from a boolean */
    BIND_CHOICE, /* int32_t from one of `choices` */
    BIND_TEXT,
    BIND_BYTES,   /* uint64_t */
    BIND_FUNCTION, /* given by position; the op's `outputs` takes it from there */
    BIND_LIST,   /* a table of tensors; an array that ends with NULL */
    BIND_OWN,    /* read by the op's `outputs` */
    BIND_BUFFERS /* cairn_staging * */
} bind_kind;

enum { BIND_LISTED = 2 * (CAIRN_COLLATE_LAYERS + 1) };

typedef struct bind_choice { const char *name; int32_t value; } bind_choice;

typedef struct bind_field {
    const char *name;
    bind_kind kind;
    size_t offset; /* in the op's argument struct */
    const bind_choice *choices;
} bind_field;

struct bind_op;

typedef struct bind_call {
    lua_State *L;
    const struct bind_op *op;
    unsigned char *args; /* the op's argument struct */
    int results;         /* outputs on the top of the stack */
    int options;         /* stack index of the table of options, 0: none */
    bool raised;         /* a function of Lua failed; what it raised is on the top */
    int listed;          /* places of `lists` in use */
    cairn_tensor *lists[BIND_LISTED];
} bind_call;

typedef struct bind_op {
    const char *name;
    size_t bytes; /* of the argument struct */
    const bind_field *fields;
    void (*outputs)(bind_call *call);
    cairn_status (*run)(cairn_runtime *rt, const void *args);
} bind_op;

/* ---- reading arguments ----------------------------------------------------------------------- */

static const bind_field *bind_find_field(const bind_op *op, const char *name) {
    const bind_field *f;
    for (f = op->fields; f->name; f++)
        if (!strcmp(f->name, name)) return f;
    return NULL;
}

static void bind_unknown_option(lua_State *L, const bind_op *op, const char *name) {
    const bind_field *f, *closest = op->fields;
    for (f = op->fields; f->name; f++)
        if (bind_distance(name, f->name) < bind_distance(name, closest->name)) closest = f;
    luaL_error(L, "%s: no option %s; did you mean %s?", op->name, name, closest->name);
}

static void bind_set_tensor(bind_call *c, const bind_field *f, cairn_tensor *t) {
    memcpy(c->args + f->offset, &t, sizeof t);
}

static cairn_tensor *bind_given_tensor(const bind_call *c, const bind_field *f) {
    cairn_tensor *t;
    memcpy(&t, c->args + f->offset, sizeof t);
    return t;
}

static void bind_set_int(bind_call *c, const bind_field *f, int32_t value) {
    memcpy(c->args + f->offset, &value, sizeof value);
}

/* The choice of that name; NULL: there is none, or no name. */
static const bind_choice *bind_find_choice(const bind_choice *choices, const char *name) {
    for (; name && choices->name; choices++)
        if (!strcmp(choices->name, name)) return choices;
    return NULL;
}

static void bind_read_choice(bind_call *c, const bind_field *f, int index) {
    const bind_choice *choice = bind_find_choice(f->choices, lua_tostring(c->L, index));
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
static void bind_read_tensor(bind_call *c, const bind_field *f, int index) {
    lua_State *L = c->L;
    if (!luaL_testudata(L, index, BIND_TENSOR))
        luaL_error(L, "%s: %s: a tensor is expected, not a %s", c->op->name, f->name,
                   luaL_typename(L, index));
    if (bind_owner(L, index) != bind_to_runtime(L, 1))
        luaL_error(L, "%s: %s: the tensor is of another runtime", c->op->name, f->name);
    if (bind_is_freed(L, index))
        luaL_error(L, "%s: %s: the tensor, or the one that it views, is freed", c->op->name,
                   f->name);
    bind_set_tensor(c, f, bind_to_tensor(L, index));
    bind_note_used(L, 1, index);
}

/* The tensors of the table at `index`, in order. */
static void bind_read_tensors(bind_call *c, const bind_field *f, int index) {
    lua_State *L = c->L;
    cairn_tensor **list = &c->lists[c->listed];
    lua_Integer count, i;
    luaL_argcheck(L, lua_istable(L, index), 2, "a table of tensors is expected");
    count = (lua_Integer)lua_rawlen(L, index);
    if (count + 1 > BIND_LISTED - c->listed)
        luaL_error(L, "%s: %s has %I tensors; %d are allowed", c->op->name, f->name,
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
static void bind_read_option(bind_call *c, const bind_field *f, int index) {
    lua_State *L = c->L;
    char what[96];
    snprintf(what, sizeof what, "%s: %s", c->op->name, f->name);
    switch (f->kind) {
        case BIND_MAYBE:
            if (lua_isboolean(L, index)) break;
            bind_read_tensor(c, f, index);
            break;
        case BIND_INPUT: case BIND_OUT: bind_read_tensor(c, f, index); break;
        case BIND_OWN: break;
        case BIND_INT: bind_set_int(c, f, bind_to_int32(L, index, what)); break;
        case BIND_FLAG: bind_set_int(c, f, lua_toboolean(L, index)); break;
        case BIND_CHOICE: bind_read_choice(c, f, index); break;
        case BIND_LIST: bind_read_tensors(c, f, index); break;
        case BIND_FLOAT: {
            float value = (float)lua_tonumber(L, index);
            if (lua_type(L, index) != LUA_TNUMBER)
                luaL_error(L, "%s: a number is expected, not a %s", what, luaL_typename(L, index));
            memcpy(c->args + f->offset, &value, sizeof value);
            break;
        }
        case BIND_BUFFERS: {
            cairn_runtime *rt;
            void *staging = bind_to_object(L, index, BIND_STAGING, &rt);
            if (rt != bind_to_runtime(L, 1)) luaL_error(L, "%s: of another runtime", what);
            memcpy(c->args + f->offset, &staging, sizeof staging);
            break;
        }
        case BIND_TEXT: {
            const char *text = lua_tostring(L, index); /* stands while the table holds it */
            if (lua_type(L, index) != LUA_TSTRING)
                luaL_error(L, "%s: a string is expected, not a %s", what, luaL_typename(L, index));
            memcpy(c->args + f->offset, &text, sizeof text);
            break;
        }
        case BIND_BYTES: {
            int exact;
            uint64_t value = (uint64_t)lua_tointegerx(L, index, &exact);
            if (!exact || lua_type(L, index) != LUA_TNUMBER || value > INT64_MAX)
                luaL_error(L, "%s: a whole number, 0 or more, is expected", what);
            memcpy(c->args + f->offset, &value, sizeof value);
            break;
        }
        case BIND_FUNCTION: luaL_error(L, "%s: give it first, not by name", what); break;
    }
}

/* Stack: runtime, inputs..., options. */
static void bind_read_arguments(bind_call *c) {
    lua_State *L = c->L;
    const bind_field *f;
    int arg = 2, last = lua_gettop(L);
    if (lua_type(L, last) == LUA_TTABLE) c->options = last--;
    for (f = c->op->fields; f->name && arg <= last; f++) {
        if (f->kind == BIND_FUNCTION) luaL_checktype(L, arg++, LUA_TFUNCTION);
        if (f->kind != BIND_INPUT || arg > last) continue;
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

/* ---- outputs ----------------------------------------------------------------------------------*/

/* Extent d of a tensor, 0 when there is none: then the op says what is wrong. */
static int64_t bind_extent(const cairn_tensor *t, int d) {
    return t && d < t->ndim ? t->shape[d] : 0;
}

/* Pushes output `name`, made here with this shape when it was not given. */
static void bind_output_shaped(bind_call *c, const char *name, cairn_type type, int rank,
                              const int64_t *wanted) {
    lua_State *L = c->L;
    const bind_field *f = bind_find_field(c->op, name);
    int64_t shape[CAIRN_MAX_RANK];
    int d;
    if (c->options) lua_getfield(L, c->options, name);
    else lua_pushnil(L);
    if (!bind_given_tensor(c, f)) {
        bool wish = lua_toboolean(L, -1);
        lua_pop(L, 1);
        if (f->kind == BIND_MAYBE && !wish) return;
        for (d = 0; d < rank; d++) shape[d] = wanted[d] < 0 ? 0 : wanted[d];
        bind_set_tensor(c, f, bind_new_tensor(L, 1, type, rank, shape));
        bind_note_used(L, 1, lua_gettop(L));
    }
    c->results++;
}

/* The usual case: as many rows as `t`, then up to two more extents (-1: none). */
static void bind_output(bind_call *c, const char *name, cairn_type type, const cairn_tensor *t,
                       int64_t second, int64_t third) {
    int64_t shape[3];
    shape[0] = bind_extent(t, 0);
    shape[1] = second;
    shape[2] = third;
    bind_output_shaped(c, name, type, second == -1 ? 1 : third == -1 ? 2 : 3, shape);
}

/* An output shaped as `t`. */
static void bind_output_like(bind_call *c, const char *name, cairn_type type,
                            const cairn_tensor *t) {
    int64_t none = 0;
    bind_output_shaped(c, name, type, t ? t->ndim : 1, t ? t->shape : &none);
}

/* ---- the ops ----------------------------------------------------------------------------------*/

#define BIND_RUN(name)                                                              \
    static cairn_status bind_run_##name(cairn_runtime *rt, const void *args) {      \
        return cairn_##name(rt, (const cairn_##name##_args *)args);                \
    }
#define BIND_FIELD(op, field, kind) {#field, kind, offsetof(cairn_##op##_args, field), NULL}
#define BIND_NAMED(op, name, field, kind) {name, kind, offsetof(cairn_##op##_args, field), NULL}
#define BIND_CHOSEN(op, field, choices) \
    {#field, BIND_CHOICE, offsetof(cairn_##op##_args, field), choices}
#define BIND_END {NULL, BIND_INPUT, 0, NULL}

static const bind_choice bind_orders[] = {
    {"position", CAIRN_ORDER_POSITION}, {"score", CAIRN_ORDER_SCORE}, {NULL, 0}};

static const bind_field bind_topk_fields[] = {
    BIND_FIELD(topk, scores, BIND_INPUT),    BIND_FIELD(topk, k, BIND_INT),
    BIND_FIELD(topk, lengths, BIND_INPUT),   BIND_FIELD(topk, row_starts, BIND_INPUT),
    BIND_NAMED(topk, "out", indices, BIND_OUT), BIND_FIELD(topk, values, BIND_MAYBE),
    BIND_CHOSEN(topk, order, bind_orders),   BIND_FIELD(topk, route, BIND_TEXT),
    BIND_END};

/* Indices and values [rows of the scores, k]. */
static void bind_chosen_outputs(bind_call *c, const cairn_tensor *scores, int32_t k) {
    bind_output(c, "out", CAIRN_I32, scores, k < 0 ? 0 : k, -1);
    bind_output(c, "values", CAIRN_F32, scores, k < 0 ? 0 : k, -1);
}

static void bind_topk_outputs(bind_call *c) {
    const cairn_topk_args *a = (const cairn_topk_args *)(void *)c->args;
    bind_chosen_outputs(c, a->scores, a->k);
}
BIND_RUN(topk)

static const bind_field bind_topk_transform_fields[] = {
    BIND_FIELD(topk_transform, scores, BIND_INPUT),
    BIND_FIELD(topk_transform, k, BIND_INT),
    BIND_FIELD(topk_transform, page_table, BIND_INPUT),
    BIND_FIELD(topk_transform, offsets, BIND_INPUT),
    BIND_FIELD(topk_transform, requests, BIND_INPUT),
    BIND_FIELD(topk_transform, lengths, BIND_INPUT),
    BIND_FIELD(topk_transform, row_starts, BIND_INPUT),
    BIND_FIELD(topk_transform, page_size, BIND_INT),
    BIND_NAMED(topk_transform, "out", indices, BIND_OUT),
    BIND_FIELD(topk_transform, values, BIND_MAYBE),
    BIND_CHOSEN(topk_transform, order, bind_orders),
    BIND_FIELD(topk_transform, route, BIND_TEXT),
    BIND_END};

static void bind_topk_transform_outputs(bind_call *c) {
    const cairn_topk_transform_args *a = (const cairn_topk_transform_args *)(void *)c->args;
    bind_chosen_outputs(c, a->scores, a->k);
}
BIND_RUN(topk_transform)

/* rt:topk_rows(function(first, count, scores) ... end, { rows =, n =, k =, ... }): `first` counts
 * from 0 as the indices do; `scores` is a view that ends with the call; returning false cancels. */
static const bind_field bind_topk_rows_fields[] = {
    BIND_FIELD(topk_rows, produce, BIND_FUNCTION),
    BIND_FIELD(topk_rows, rows, BIND_INT),         BIND_FIELD(topk_rows, n, BIND_INT),
    BIND_FIELD(topk_rows, k, BIND_INT),            BIND_FIELD(topk_rows, scores, BIND_INPUT),
    BIND_FIELD(topk_rows, page_table, BIND_INPUT), BIND_FIELD(topk_rows, offsets, BIND_INPUT),
    BIND_FIELD(topk_rows, requests, BIND_INPUT),   BIND_FIELD(topk_rows, lengths, BIND_INPUT),
    BIND_FIELD(topk_rows, row_starts, BIND_INPUT), BIND_FIELD(topk_rows, max_bytes, BIND_BYTES),
    BIND_FIELD(topk_rows, free_bytes, BIND_BYTES), BIND_FIELD(topk_rows, total_bytes, BIND_BYTES),
    BIND_FIELD(topk_rows, page_size, BIND_INT),
    BIND_NAMED(topk_rows, "out", indices, BIND_OUT),
    BIND_FIELD(topk_rows, values, BIND_MAYBE),     BIND_CHOSEN(topk_rows, order, bind_orders),
    BIND_FIELD(topk_rows, route, BIND_TEXT),       BIND_END};

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
    int64_t shape[2];
    luaL_checktype(c->L, 2, LUA_TFUNCTION);
    shape[0] = a->rows;
    shape[1] = a->k;
    bind_output_shaped(c, "out", CAIRN_I32, 2, shape);
    if (a->indices && a->indices->ndim > 0) shape[0] = a->indices->shape[0];
    bind_output_shaped(c, "values", CAIRN_F32, 2, shape);
    a->produce = bind_produce;
    a->user = c;
}

/* Leaves a list of all tensors of the call on the top. */
static void bind_list_tensors(bind_call *c) {
    lua_State *L = c->L;
    const bind_field *f;
    int last = lua_gettop(L), list, i;
    lua_newtable(L);
    list = lua_gettop(L);
    for (i = 2; i <= last; i++)
        if (luaL_testudata(L, i, BIND_TENSOR)) lua_pushvalue(L, i), bind_add_piece(L, list);
    for (f = c->op->fields; f->name && c->options; f++) {
        if (lua_getfield(L, c->options, f->name) == LUA_TUSERDATA) bind_add_piece(L, list);
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

/* Strings of enums that stand in an argument struct as int32_t. */
static const bind_choice bind_blocks[] = {{"none", CAIRN_BLOCK_NONE}, {"q4_0", CAIRN_BLOCK_Q4_0},
                                          {"q4_1", CAIRN_BLOCK_Q4_1}, {"q8_0", CAIRN_BLOCK_Q8_0},
                                          {NULL, 0}};
static const bind_choice bind_sources[] = {
    {"minmax", CAIRN_SOURCE_MINMAX}, {"mean", CAIRN_SOURCE_MEAN}, {NULL, 0}};
static const bind_choice bind_strategies[] = {
    {"group", CAIRN_STRATEGY_GROUP}, {"head", CAIRN_STRATEGY_HEAD}, {NULL, 0}};

static const bind_field bind_embed_fields[] = {
    BIND_FIELD(embed, ids, BIND_INPUT), BIND_FIELD(embed, table, BIND_INPUT),
    BIND_FIELD(embed, out, BIND_OUT),   BIND_CHOSEN(embed, block, bind_blocks), BIND_END};

/* Values in a row of a matrix, whose rows may be blocks of bytes. */
static int64_t bind_row_values(const cairn_tensor *t, int32_t block) {
    const block_type *type = block ? block_find(block) : NULL;
    int64_t n = bind_extent(t, 1);
    return type ? n / (int64_t)type->bytes * (int64_t)type->values : n;
}

static void bind_embed_outputs(bind_call *c) {
    const cairn_embed_args *a = (const cairn_embed_args *)(void *)c->args;
    bind_output(c, "out", CAIRN_F32, a->ids, bind_row_values(a->table, a->block), -1);
}
BIND_RUN(embed)

static const bind_field bind_rmsnorm_fields[] = {
    BIND_FIELD(rmsnorm, x, BIND_INPUT), BIND_FIELD(rmsnorm, weight, BIND_INPUT),
    BIND_FIELD(rmsnorm, out, BIND_OUT), BIND_FIELD(rmsnorm, epsilon, BIND_FLOAT), BIND_END};

static void bind_rmsnorm_outputs(bind_call *c) {
    bind_output_like(c, "out", CAIRN_F32, ((const cairn_rmsnorm_args *)(void *)c->args)->x);
}
BIND_RUN(rmsnorm)

static const bind_field bind_rope_fields[] = {
    BIND_FIELD(rope, x, BIND_INPUT),        BIND_FIELD(rope, positions, BIND_INPUT),
    BIND_FIELD(rope, out, BIND_OUT),        BIND_FIELD(rope, base, BIND_FLOAT),
    BIND_FIELD(rope, rotary_dim, BIND_INT), BIND_FIELD(rope, half_split, BIND_FLAG), BIND_END};

static void bind_rope_outputs(bind_call *c) {
    bind_output_like(c, "out", CAIRN_F32, ((const cairn_rope_args *)(void *)c->args)->x);
}
BIND_RUN(rope)

static const bind_field bind_linear_fields[] = {
    BIND_FIELD(linear, x, BIND_INPUT), BIND_FIELD(linear, weight, BIND_INPUT),
    BIND_FIELD(linear, out, BIND_OUT), BIND_CHOSEN(linear, block, bind_blocks),
    BIND_FIELD(linear, accumulate, BIND_FLAG), BIND_END};

static void bind_linear_outputs(bind_call *c) {
    const cairn_linear_args *a = (const cairn_linear_args *)(void *)c->args;
    bind_output(c, "out", CAIRN_F32, a->x, bind_extent(a->weight, 0), -1);
}
BIND_RUN(linear)

static const bind_field bind_swiglu_fields[] = {
    BIND_FIELD(swiglu, gate, BIND_INPUT), BIND_FIELD(swiglu, up, BIND_INPUT),
    BIND_FIELD(swiglu, out, BIND_OUT), BIND_END};

static void bind_swiglu_outputs(bind_call *c) {
    bind_output_like(c, "out", CAIRN_F32, ((const cairn_swiglu_args *)(void *)c->args)->gate);
}
BIND_RUN(swiglu)

/* ---- ops on the paged cache -------------------------------------------------------------------- */

#define BIND_PAGES(op)                                      \
    BIND_NAMED(op, "cache", pages.cache, BIND_INPUT),           \
    BIND_NAMED(op, "page_table", pages.page_table, BIND_INPUT), \
    BIND_NAMED(op, "sequences", pages.sequences, BIND_INPUT),   \
    BIND_NAMED(op, "positions", pages.positions, BIND_INPUT)

static const bind_field bind_kv_append_fields[] = {
    BIND_FIELD(kv_append, k, BIND_INPUT), BIND_FIELD(kv_append, v, BIND_INPUT),
    BIND_PAGES(kv_append), BIND_FIELD(kv_append, rope_base, BIND_FLOAT),
    BIND_FIELD(kv_append, rotary_dim, BIND_INT), BIND_FIELD(kv_append, half_split, BIND_FLAG),
    BIND_NAMED(kv_append, "scales", scales, BIND_INPUT), BIND_END};

static void bind_kv_append_outputs(bind_call *c) { (void)c; /* the cache */ }
BIND_RUN(kv_append)

static const bind_field bind_kv_collate_fields[] = {
    BIND_FIELD(kv_collate, caches, BIND_LIST),      BIND_FIELD(kv_collate, scales, BIND_LIST),
    BIND_FIELD(kv_collate, page_table, BIND_INPUT), BIND_FIELD(kv_collate, bases, BIND_INPUT),
    BIND_FIELD(kv_collate, accepted, BIND_INPUT),   BIND_FIELD(kv_collate, sources, BIND_INPUT),
    BIND_FIELD(kv_collate, stride, BIND_INT),       BIND_FIELD(kv_collate, most, BIND_INT),
    BIND_END};

/* Nothing but the caches, which say how many layers there are. */
static void bind_kv_collate_outputs(bind_call *c) {
    cairn_kv_collate_args *a = (cairn_kv_collate_args *)(void *)c->args;
    int scales = 0;
    while (a->caches && a->caches[a->layers]) a->layers++;
    while (a->scales && a->scales[scales]) scales++;
    if (a->scales && scales != a->layers)
        luaL_error(c->L, "kv_collate: %d caches and %d scales", (int)a->layers, scales);
}
BIND_RUN(kv_collate)

static const bind_field bind_copy_pages_fields[] = {
    BIND_FIELD(copy_pages, cache, BIND_INPUT), BIND_FIELD(copy_pages, copies, BIND_INPUT),
    BIND_FIELD(copy_pages, layers, BIND_FLAG), BIND_END};

static void bind_copy_pages_outputs(bind_call *c) { (void)c; /* the cache */ }
BIND_RUN(copy_pages)

static const bind_field bind_attend_fields[] = {
    BIND_FIELD(attend, q, BIND_INPUT),     BIND_PAGES(attend),
    BIND_FIELD(attend, out, BIND_OUT),     BIND_FIELD(attend, lse, BIND_MAYBE),
    BIND_FIELD(attend, scale, BIND_FLOAT), BIND_FIELD(attend, window, BIND_INT),
    BIND_FIELD(attend, sinks, BIND_INT),   BIND_END};

static void bind_attend_outputs(bind_call *c) {
    const cairn_attend_args *a = (const cairn_attend_args *)(void *)c->args;
    bind_output_like(c, "out", CAIRN_F32, a->q);
    bind_output(c, "lse", CAIRN_F32, a->q, bind_extent(a->q, 1), -1);
}
BIND_RUN(attend)

static const bind_field bind_page_bounds_fields[] = {
    BIND_FIELD(page_bounds, cache, BIND_INPUT), BIND_FIELD(page_bounds, ids, BIND_INPUT),
    BIND_FIELD(page_bounds, bounds, BIND_OUT), BIND_CHOSEN(page_bounds, source, bind_sources),
    BIND_END};

static void bind_page_bounds_outputs(bind_call *c) {
    const cairn_tensor *pages = ((const cairn_page_bounds_args *)(void *)c->args)->cache;
    int64_t shape[4];
    shape[0] = bind_extent(pages, 0);
    shape[1] = bind_extent(pages, 2);
    shape[2] = 2;
    shape[3] = bind_extent(pages, 4);
    bind_output_shaped(c, "bounds", CAIRN_F16, 4, shape);
}
BIND_RUN(page_bounds)

static const bind_field bind_score_pages_fields[] = {
    BIND_FIELD(score_pages, q, BIND_INPUT),   BIND_FIELD(score_pages, bounds, BIND_INPUT),
    BIND_PAGES(score_pages),                  BIND_NAMED(score_pages, "out", scores, BIND_OUT),
    BIND_FIELD(score_pages, window, BIND_INT), BIND_CHOSEN(score_pages, source, bind_sources),
    BIND_CHOSEN(score_pages, strategy, bind_strategies), BIND_END};

static void bind_score_pages_outputs(bind_call *c) {
    const cairn_score_pages_args *a = (const cairn_score_pages_args *)(void *)c->args;
    bind_output(c, "out", CAIRN_F32, a->q, bind_extent(a->pages.cache, 2),
                bind_extent(a->pages.page_table, 1));
}
BIND_RUN(score_pages)

static const bind_field bind_select_pages_fields[] = {
    BIND_FIELD(select_pages, scores, BIND_INPUT), BIND_FIELD(select_pages, topk, BIND_INT),
    BIND_NAMED(select_pages, "out", selected, BIND_OUT), BIND_END};

static void bind_select_pages_outputs(bind_call *c) {
    const cairn_select_pages_args *a = (const cairn_select_pages_args *)(void *)c->args;
    bind_output(c, "out", CAIRN_I32, a->scores, bind_extent(a->scores, 1),
                a->topk < 0 ? 0 : a->topk);
}
BIND_RUN(select_pages)

static const bind_field bind_attend_pages_fields[] = {
    BIND_FIELD(attend_pages, q, BIND_INPUT),     BIND_FIELD(attend_pages, selected, BIND_INPUT),
    BIND_PAGES(attend_pages),                    BIND_FIELD(attend_pages, out, BIND_OUT),
    BIND_FIELD(attend_pages, lse, BIND_MAYBE),   BIND_FIELD(attend_pages, scale, BIND_FLOAT),
    BIND_FIELD(attend_pages, window, BIND_INT),  BIND_FIELD(attend_pages, sinks, BIND_INT),
    BIND_END};

static void bind_attend_pages_outputs(bind_call *c) {
    const cairn_attend_pages_args *a = (const cairn_attend_pages_args *)(void *)c->args;
    bind_output_like(c, "out", CAIRN_F32, a->q);
    bind_output(c, "lse", CAIRN_F32, a->q, bind_extent(a->q, 1), -1);
}
BIND_RUN(attend_pages)

/* ---- short convolution ------------------------------------------------------------------------- */

static const bind_choice bind_activations[] = {
    {"none", CAIRN_ACTIVATION_NONE}, {"silu", CAIRN_ACTIVATION_SILU}, {NULL, 0}};

/* x, weight and state first, so that they may stand without names. */
#define BIND_CONV(op)                                                         \
    BIND_NAMED(op, "x", conv.x, BIND_INPUT),                                  \
    BIND_NAMED(op, "weight", conv.weight, BIND_INPUT),                        \
    BIND_NAMED(op, "state", conv.state, BIND_INPUT),                          \
    BIND_NAMED(op, "cu_seqlens", conv.cu_seqlens, BIND_INPUT),                \
    BIND_NAMED(op, "bias", conv.bias, BIND_INPUT),                            \
    BIND_NAMED(op, "gate_in", conv.gate_in, BIND_INPUT),                      \
    BIND_NAMED(op, "gate_out", conv.gate_out, BIND_INPUT),                    \
    BIND_NAMED(op, "state_indices", conv.state_indices, BIND_INPUT),          \
    BIND_NAMED(op, "has_initial", conv.has_initial, BIND_INPUT),              \
    BIND_NAMED(op, "out", conv.out, BIND_OUT),                                \
    {"activation", BIND_CHOICE, offsetof(cairn_##op##_args, conv.activation), \
     bind_activations},                                                       \
    BIND_NAMED(op, "reserved_slots", conv.reserved_slots, BIND_INT)

static void bind_conv_out(bind_call *c, const cairn_tensor *x) {
    bind_output_like(c, "out", x ? cairn_tensor_type(x) : CAIRN_F32, x);
}

static const bind_field bind_short_conv_fields[] = {
    BIND_CONV(short_conv), BIND_FIELD(short_conv, chunk_sequences, BIND_INPUT),
    BIND_FIELD(short_conv, chunk_offsets, BIND_INPUT),
    BIND_FIELD(short_conv, block_tokens, BIND_INT), BIND_END};

static void bind_short_conv_outputs(bind_call *c) {
    bind_conv_out(c, ((const cairn_short_conv_args *)(void *)c->args)->conv.x);
}
BIND_RUN(short_conv)

static const bind_field bind_short_conv_update_fields[] = {
    BIND_CONV(short_conv_update), BIND_FIELD(short_conv_update, snapshots, BIND_INPUT), BIND_END};

static void bind_short_conv_update_outputs(bind_call *c) {
    bind_conv_out(c, ((const cairn_short_conv_update_args *)(void *)c->args)->conv.x);
}
BIND_RUN(short_conv_update)

static const bind_field bind_short_conv_restore_fields[] = {
    BIND_FIELD(short_conv_restore, snapshots, BIND_INPUT),
    BIND_FIELD(short_conv_restore, accepted, BIND_INPUT),
    BIND_FIELD(short_conv_restore, state, BIND_INPUT),
    BIND_FIELD(short_conv_restore, state_indices, BIND_INPUT),
    BIND_FIELD(short_conv_restore, reserved_slots, BIND_INT), BIND_END};

static void bind_short_conv_restore_outputs(bind_call *c) { (void)c; /* the state */ }
BIND_RUN(short_conv_restore)

static const bind_field bind_short_conv_metadata_fields[] = {
    BIND_FIELD(short_conv_metadata, cu_seqlens, BIND_INPUT),
    BIND_FIELD(short_conv_metadata, seq_lens, BIND_INPUT),
    BIND_FIELD(short_conv_metadata, slots, BIND_INPUT),
    BIND_FIELD(short_conv_metadata, live, BIND_INPUT),
    BIND_FIELD(short_conv_metadata, chunk_sequences, BIND_OUT),
    BIND_FIELD(short_conv_metadata, chunk_offsets, BIND_OUT),
    BIND_FIELD(short_conv_metadata, has_initial, BIND_OUT),
    BIND_FIELD(short_conv_metadata, decode_indices, BIND_OUT),
    BIND_FIELD(short_conv_metadata, prompt_indices, BIND_OUT),
    BIND_FIELD(short_conv_metadata, counts, BIND_OUT),
    BIND_FIELD(short_conv_metadata, order, BIND_MAYBE),
    BIND_FIELD(short_conv_metadata, block_tokens, BIND_INT),
    BIND_FIELD(short_conv_metadata, decode_tokens, BIND_INT),
    BIND_FIELD(short_conv_metadata, staging, BIND_BUFFERS), BIND_END};

/* Lists of 2048 chunks and tables of as many entries as requests, unless they are given. */
static void bind_short_conv_metadata_outputs(bind_call *c) {
    const cairn_tensor *cu =
        ((const cairn_short_conv_metadata_args *)(void *)c->args)->cu_seqlens;
    int64_t requests = bind_extent(cu, 0) - 1, chunks = 2048, counts = 8;
    bind_output_shaped(c, "chunk_sequences", CAIRN_I32, 1, &chunks);
    bind_output_shaped(c, "chunk_offsets", CAIRN_I32, 1, &chunks);
    bind_output_shaped(c, "has_initial", CAIRN_I32, 1, &requests);
    bind_output_shaped(c, "decode_indices", CAIRN_I32, 1, &requests);
    bind_output_shaped(c, "prompt_indices", CAIRN_I32, 1, &requests);
    bind_output_shaped(c, "counts", CAIRN_I32, 1, &counts);
    bind_output_shaped(c, "order", CAIRN_I32, 1, &requests);
}
BIND_RUN(short_conv_metadata)

/* ---- sampling ---------------------------------------------------------------------------------- */

static const bind_choice bind_sampling_orders[] = {
    {"top_k_first", CAIRN_ORDER_TOP_K_FIRST}, {"top_p_first", CAIRN_ORDER_TOP_P_FIRST}, {NULL, 0}};

static const bind_field bind_sample_fields[] = {
    BIND_FIELD(sample, logits, BIND_INPUT),    BIND_FIELD(sample, seeds, BIND_INPUT),
    BIND_FIELD(sample, positions, BIND_INPUT), BIND_FIELD(sample, history, BIND_INPUT),
    BIND_NAMED(sample, "out", tokens, BIND_OUT), BIND_FIELD(sample, temperature, BIND_FLOAT),
    BIND_FIELD(sample, top_k, BIND_INT),       BIND_FIELD(sample, top_p, BIND_FLOAT),
    BIND_FIELD(sample, min_p, BIND_FLOAT),
    BIND_FIELD(sample, repetition_penalty, BIND_FLOAT),
    BIND_CHOSEN(sample, order, bind_sampling_orders), BIND_END};

static void bind_sample_outputs(bind_call *c) {
    bind_output(c, "out", CAIRN_I32, ((const cairn_sample_args *)(void *)c->args)->logits, -1, -1);
}
BIND_RUN(sample)

static const bind_field bind_verify_greedy_fields[] = {
    BIND_FIELD(verify_greedy, logits, BIND_INPUT), BIND_FIELD(verify_greedy, drafts, BIND_INPUT),
    BIND_FIELD(verify_greedy, accepted, BIND_OUT), BIND_FIELD(verify_greedy, bonus, BIND_OUT),
    BIND_END};

static void bind_verify_greedy_outputs(bind_call *c) {
    const cairn_verify_greedy_args *a = (const cairn_verify_greedy_args *)(void *)c->args;
    bind_output(c, "accepted", CAIRN_I32, a->logits, -1, -1);
    bind_output(c, "bonus", CAIRN_I32, a->logits, -1, -1);
}
BIND_RUN(verify_greedy)

/* ---- metadata: outputs in steps.c ---------------------------------------------------------- */

#define BIND_OPTION(name) {name, BIND_OWN, 0, NULL}

static const bind_choice bind_step_modes[] = {{"decode", CAIRN_STEP_DECODE},
                                              {"target_verify", CAIRN_STEP_TARGET_VERIFY},
                                              {"draft_extend", CAIRN_STEP_DRAFT_EXTEND},
                                              {NULL, 0}};

static const bind_field bind_prepare_steps_fields[] = {
    BIND_FIELD(prepare_steps, seq_lens, BIND_INPUT), BIND_FIELD(prepare_steps, slots, BIND_INPUT),
    BIND_FIELD(prepare_steps, pages, BIND_INPUT),
    BIND_FIELD(prepare_steps, requests, BIND_INPUT), BIND_FIELD(prepare_steps, accept, BIND_INPUT),
    BIND_FIELD(prepare_steps, count, BIND_INPUT),
    BIND_CHOSEN(prepare_steps, mode, bind_step_modes),
    BIND_NAMED(prepare_steps, "steps", step_count, BIND_INT),
    BIND_FIELD(prepare_steps, step_offset, BIND_INT),
    BIND_FIELD(prepare_steps, draft_tokens, BIND_INT),
    BIND_FIELD(prepare_steps, index_topk, BIND_INT),
    BIND_FIELD(prepare_steps, page_size, BIND_INT),
    BIND_FIELD(prepare_steps, index_split, BIND_INT),
    BIND_FIELD(prepare_steps, attend_split, BIND_INT),
    BIND_FIELD(prepare_steps, expand_tables, BIND_FLAG),
    BIND_OPTION("into"), BIND_OPTION("outputs"), BIND_OPTION("columns"), BIND_OPTION("rows"),
    BIND_OPTION("workers"), BIND_OPTION("own_tables"), BIND_END};

static void bind_prepare_steps_outputs(bind_call *c);
BIND_RUN(prepare_steps)

static const bind_field bind_prefix_chunks_fields[] = {
    BIND_FIELD(prefix_chunks, prefix_lens, BIND_INPUT),
    BIND_FIELD(prefix_chunks, slots, BIND_INPUT), BIND_FIELD(prefix_chunks, pages, BIND_INPUT),
    BIND_FIELD(prefix_chunks, requests, BIND_INPUT),
    BIND_FIELD(prefix_chunks, capacity, BIND_INT), BIND_FIELD(prefix_chunks, page_size, BIND_INT),
    BIND_FIELD(prefix_chunks, kv_indices, BIND_OUT),
    BIND_FIELD(prefix_chunks, cu_lens, BIND_OUT),
    BIND_FIELD(prefix_chunks, lens, BIND_OUT),
    BIND_FIELD(prefix_chunks, starts, BIND_OUT),
    BIND_FIELD(prefix_chunks, chunk_count, BIND_OUT), BIND_END};

static void bind_prefix_chunks_outputs(bind_call *c);
BIND_RUN(prefix_chunks)

/* ---- the table ----------------------------------------------------------------------------------*/

static const bind_op bind_ops[] = {
#define BIND_OP(name)                                                                     \
    {#name, sizeof(cairn_##name##_args), bind_##name##_fields, bind_##name##_outputs, \
     bind_run_##name}
    BIND_OP(topk), BIND_OP(topk_transform), BIND_OP(topk_rows), BIND_OP(embed), BIND_OP(rmsnorm),
    BIND_OP(rope), BIND_OP(swiglu),
    BIND_OP(kv_append), BIND_OP(kv_collate), BIND_OP(copy_pages), BIND_OP(attend), BIND_OP(page_bounds),
    BIND_OP(score_pages),
    BIND_OP(select_pages), BIND_OP(attend_pages), BIND_OP(linear), BIND_OP(sample),
    BIND_OP(verify_greedy), BIND_OP(prepare_steps), BIND_OP(prefix_chunks),
    BIND_OP(short_conv), BIND_OP(short_conv_update), BIND_OP(short_conv_restore),
    BIND_OP(short_conv_metadata),
};

/* The method: upvalue 1 is the op's row. */
static int bind_call_op(lua_State *L) {
    const bind_op *op = &bind_ops[lua_tointeger(L, lua_upvalueindex(1))];
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
    op->outputs(&c);
    status = op->run(rt, args.bytes);
    if (c.raised) return lua_error(L);
    bind_check(L, rt, status);
    return c.results;
}

/* rt:topk_rows_plan { rows =, n =, max_bytes =, ... } -> the rows that topk_rows takes at a time */
static int bind_topk_rows_plan(lua_State *L) {
    static const bind_op op = {"topk_rows_plan", sizeof(cairn_topk_rows_args),
                               bind_topk_rows_fields + 1, NULL, NULL};
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
    for (i = 0; i < BASE_COUNT(bind_ops); i++) {
        lua_pushinteger(L, (lua_Integer)i);
        lua_pushcclosure(L, bind_call_op, 1);
        lua_setfield(L, -2, bind_ops[i].name);
    }
    lua_pushcfunction(L, bind_topk_rows_plan);
    lua_setfield(L, -2, "topk_rows_plan");
    lua_pushcfunction(L, bind_topk_route);
    lua_setfield(L, -2, "topk_route");
}

#endif
