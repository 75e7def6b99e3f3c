/* lua_steps: the outputs of the ops that prepare metadata. prepare_steps' are lists of tensors:
 *
 *     list = rt:prepare_steps(seq_lens, slots, { mode =, steps =, ... })
 *     list = rt:prepare_steps(seq_lens, slots, { mode =, into = list, ... })
 *
 * `list` has one table of tensors for each step, under the names of cairn_step_metadata. Without
 * `into` they are made: those named in `outputs`, else all. Tables are of `columns` slots (else as
 * many as `slots` has), shared among the steps unless `own_tables`; schedules for `workers` (else
 * one for each SM or thread); in draft_extend there is room for `rows` rows. */
#ifndef CAIRN_NO_LUA

/* What a made output's shape depends on. */
typedef struct bind_step_shape {
    int64_t batch, rows, columns, pages, workers;
    bool own_tables;
} bind_step_shape;

/* The whole number under `name` in the options. */
static int64_t bind_option(bind_call *c, const char *name, int64_t otherwise) {
    char what[96];
    int64_t value = otherwise;
    if (!c->options) return otherwise;
    snprintf(what, sizeof what, "%s: %s", c->op->name, name);
    if (bind_field(c->L, c->options, name) != LUA_TNIL) value = bind_to_int32(c->L, -1, what);
    lua_pop(c->L, 1);
    return value;
}

static bool bind_option_flag(bind_call *c, const char *name) {
    bool value = false;
    if (!c->options) return false;
    bind_field(c->L, c->options, name);
    value = lua_toboolean(c->L, -1);
    lua_pop(c->L, 1);
    return value;
}

/* The tensor at the top, which must be of the runtime at stack index 1. */
static cairn_tensor *bind_listed_tensor(bind_call *c, const char *name) {
    lua_State *L = c->L;
    if (!luaL_testudata(L, -1, BIND_TENSOR))
        luaL_error(L, "%s: into: %s: a tensor is expected, not a %s", c->op->name, name,
                   luaL_typename(L, -1));
    if (bind_owner(L, lua_gettop(L)) != bind_to_runtime(L, 1))
        luaL_error(L, "%s: into: %s: the tensor is of another runtime", c->op->name, name);
    bind_note_used(L, 1, lua_gettop(L));
    return bind_to_tensor(L, lua_gettop(L));
}

typedef struct bind_step_field { const char *name; size_t offset; int extent; } bind_step_field;

enum { BIND_STEP_TOKENS = PREPARE_OUTPUTS, BIND_STEP_PAGES, BIND_STEP_FIELDS };

static bind_step_field bind_step_field_at(int which) {
    bind_step_field f = {"page_table", offsetof(cairn_step_metadata, page_table), -1};
    if (which < PREPARE_OUTPUTS) {
        f.name = steps_outputs[which].name;
        f.offset = steps_outputs[which].offset;
        f.extent = (int)steps_outputs[which].extent;
    } else if (which == BIND_STEP_TOKENS) {
        f.name = "token_table";
        f.offset = offsetof(cairn_step_metadata, token_table);
    }
    return f;
}

/* True when the options list no outputs, or this one. */
static bool bind_step_wanted(bind_call *c, const char *name) {
    lua_State *L = c->L;
    bool found = false;
    if (!c->options) return true;
    if (bind_field(L, c->options, "outputs") != LUA_TTABLE) {
        lua_pop(L, 1);
        return true;
    }
    for (lua_Integer i = 1; lua_rawgeti(L, -1, i) != LUA_TNIL; i++) {
        found = found || (lua_type(L, -1) == LUA_TSTRING && !strcmp(lua_tostring(L, -1), name));
        lua_pop(L, 1);
    }
    lua_pop(L, 2);
    return found;
}

/* Pushes output `which`, new. */
static void bind_make_step_output(bind_call *c, int which, const bind_step_shape *s) {
    int64_t shape[2];
    int rank = 1;
    shape[1] = 0;
    switch (which < PREPARE_OUTPUTS ? bind_step_field_at(which).extent : -1) {
        case STEPS_ONE: shape[0] = 1; break;
        case STEPS_REQUESTS: shape[0] = s->batch; break;
        case STEPS_REQUESTS_1: shape[0] = s->batch + 1; break;
        case STEPS_ROWS: shape[0] = s->rows; break;
        case STEPS_ROWS_1: shape[0] = s->rows + 1; break;
        case STEPS_SCHEDULE: shape[0] = s->workers + 1, shape[1] = rank = 2; break;
        default:
            rank = 2;
            shape[0] = bind_option_flag(c, "expand_tables") ? s->rows : s->batch;
            shape[1] = which == BIND_STEP_TOKENS ? s->columns : s->pages;
    }
    bind_new_tensor(c->L, 1, CAIRN_I32, rank, shape);
}

/* Stack: the list, the step's table. Makes what is wanted there; tables are the first step's. */
static void bind_make_step(bind_call *c, int step, const bind_step_shape *s) {
    lua_State *L = c->L;
    for (int which = 0; which < BIND_STEP_FIELDS; which++) {
        const bind_step_field f = bind_step_field_at(which);
        bool table = which >= PREPARE_OUTPUTS;
        if (table && !(which == BIND_STEP_TOKENS ? s->columns : s->pages)) continue;
        if (!bind_step_wanted(c, f.name)) continue;
        if (table && step > 0 && !s->own_tables) {
            lua_rawgeti(L, -2, 1);
            bind_field(L, -1, f.name);
            lua_remove(L, -2);
        } else {
            bind_make_step_output(c, which, s);
        }
        lua_setfield(L, -2, f.name);
    }
}

/* The step's table at the top into the struct. */
static void bind_read_step(bind_call *c, cairn_step_metadata *m) {
    lua_State *L = c->L;
    uint32_t size = (uint32_t)sizeof *m;
    memset(m, 0, sizeof *m);
    m->struct_size = size;
    for (int which = 0; which < BIND_STEP_FIELDS; which++) {
        const bind_step_field f = bind_step_field_at(which);
        if (bind_field(L, -1, f.name) != LUA_TNIL) {
            cairn_tensor *t = bind_listed_tensor(c, f.name);
            memcpy((char *)m + f.offset, &t, sizeof t);
        }
        lua_pop(L, 1);
    }
}

static bind_step_shape bind_step_shape_of(bind_call *c, const cairn_prepare_steps_args *a) {
    cairn_runtime *rt = bind_to_runtime(c->L, 1);
    int32_t page_size = a->page_size > 0 ? a->page_size : rt->config.page_size;
    bind_step_shape s;
    s.batch = bind_extent(a->seq_lens, 0);
    s.rows = s.batch * (a->mode == CAIRN_STEP_TARGET_VERIFY ? a->draft_tokens : 1);
    if (a->mode == CAIRN_STEP_DRAFT_EXTEND) s.rows = bind_option(c, "rows", -1);
    if (s.rows < 0) luaL_error(c->L, "prepare_steps: rows is expected: room in the outputs");
    s.columns = bind_extent(a->slots, 1);
    if (a->pages) s.columns = bind_extent(a->pages, 1) * page_size;
    if (s.columns) s.columns = bind_option(c, "columns", s.columns);
    s.pages = page_size > 1 ? (s.columns + page_size - 1) / page_size : 0;
    s.workers = bind_option(c, "workers", rt->device.sm_count);
    s.own_tables = bind_option_flag(c, "own_tables");
    return s;
}

static void bind_prepare_steps_outputs(bind_call *c) {
    lua_State *L = c->L;
    cairn_prepare_steps_args *a = (cairn_prepare_steps_args *)(void *)c->args;
    cairn_step_metadata *steps;
    bool given = c->options && bind_field(L, c->options, "into") == LUA_TTABLE;
    if (given && !a->step_count) a->step_count = (int32_t)lua_rawlen(L, -1);
    if (!a->step_count) a->step_count = 1;
    if (a->step_count < 1 || a->step_count > PREPARE_MAX_STEPS)
        luaL_error(L, "prepare_steps: %d steps; 1 to %d are expected", (int)a->step_count,
                   PREPARE_MAX_STEPS);
    steps = (cairn_step_metadata *)lua_newuserdatauv(L, (size_t)a->step_count * sizeof *steps, 0);
    a->steps = steps;
    if (given) lua_pushvalue(L, -2);
    else lua_createtable(L, a->step_count, 0);
    for (int step = 0; step < a->step_count; step++) {
        if (!given) {
            const bind_step_shape shape = bind_step_shape_of(c, a);
            lua_createtable(L, 0, BIND_STEP_FIELDS);
            bind_make_step(c, step, &shape);
            lua_rawseti(L, -2, step + 1);
        }
        if (lua_rawgeti(L, -1, step + 1) != LUA_TTABLE)
            luaL_error(L, "prepare_steps: into has %d tables; %d are expected", step,
                       (int)a->step_count);
        bind_read_step(c, &steps[step]);
        lua_pop(L, 1);
    }
    c->results = 1;
}

static void bind_chunks_output(bind_call *c, const char *name, int rank, const int64_t *shape) {
    bind_output(c, bind_find_field(c->op, name), CAIRN_I32, rank, shape);
}

/* As many chunks as slots could need. */
static void bind_prefix_chunks_outputs(bind_call *c) {
    const cairn_prefix_chunks_args *a = (const cairn_prefix_chunks_args *)(void *)c->args;
    const int64_t batch = bind_extent(a->prefix_lens, 0);
    const int64_t length = batch ? chunks_length(a->capacity, batch) : 1;
    const int page_size = bind_to_runtime(c->L, 1)->config.page_size;
    int64_t shape[2], one = 1, context = bind_extent(a->slots, 1);
    if (a->pages)
        context = bind_extent(a->pages, 1) * (a->page_size > 0 ? a->page_size : page_size);
    shape[0] = (context + length - 1) / length;
    if (shape[0] < 1) shape[0] = 1;
    shape[1] = batch * (length < context ? length : context);
    bind_chunks_output(c, "kv_indices", 2, shape);
    shape[1] = batch + 1;
    bind_chunks_output(c, "cu_lens", 2, shape);
    shape[1] = batch;
    bind_chunks_output(c, "lens", 2, shape);
    bind_chunks_output(c, "starts", 2, shape);
    bind_chunks_output(c, "chunk_count", 1, &one);
}

#endif
