/* lua_tensor: tensors and views in Lua.
 *
 * A tensor userdata holds either a tensor of the runtime, or a view of another one: a cairn_tensor
 * of its own over the parent's memory, the parent kept alive in user value 2 (nil: memory of a
 * running op, which ends the view itself, or host memory that follows in the userdata). */
#ifndef CAIRN_NO_LUA

#define BIND_TENSOR "cairn.tensor"
#define BIND_STREAM "cairn.stream"
#define BIND_EVENT "cairn.event"
#define BIND_GRAPH "cairn.graph"
#define BIND_STAGING "cairn.staging"

typedef struct bind_tensor {
    cairn_tensor *tensor; /* NULL once freed; &view in a view */
    cairn_tensor view;
    int64_t shape[CAIRN_MAX_RANK], strides[CAIRN_MAX_RANK];
} bind_tensor;

/* Whether the tensor at `arg` is freed, or the one that it views. */
static bool bind_is_freed(lua_State *L, int arg) {
    bind_tensor *t;
    lua_pushvalue(L, arg);
    while (t = (bind_tensor *)lua_touserdata(L, -1), t && t->tensor == &t->view) {
        lua_getiuservalue(L, -1, 2);
        lua_remove(L, -2);
    }
    lua_pop(L, 1);
    return t && !t->tensor;
}

static cairn_tensor *bind_to_tensor(lua_State *L, int arg) {
    cairn_runtime *rt;
    cairn_tensor *tensor = (cairn_tensor *)bind_to_object(L, arg, BIND_TENSOR, &rt);
    if (bind_is_freed(L, arg)) luaL_error(L, "tensor: the tensor that it views is freed");
    return tensor;
}

static int bind_tensor_free(lua_State *L) {
    cairn_runtime *rt;
    bind_tensor *t = (bind_tensor *)luaL_checkudata(L, 1, BIND_TENSOR);
    bool owned = t->tensor != &t->view;
    cairn_tensor *tensor = (cairn_tensor *)bind_take_object(L, BIND_TENSOR, &rt);
    if (tensor && owned) cairn_tensor_free(rt, tensor);
    return 0;
}

/* Pushes a new tensor of zeros. Memory short: what Lua no longer needs is collected and the
 * allocation tried once more, for Lua does not know how large a tensor is. */
static cairn_tensor *bind_new_tensor(lua_State *L, int owner, cairn_type type, int rank,
                                    const int64_t *shape) {
    cairn_runtime *rt = bind_to_runtime(L, owner);
    bind_tensor *t = (bind_tensor *)bind_new_object(L, BIND_TENSOR, sizeof *t, owner, 2);
    cairn_status status = cairn_tensor_new(rt, type, rank, shape, &t->tensor);
    if (status == CAIRN_OUT_OF_DEVICE_MEMORY || status == CAIRN_OUT_OF_MEMORY) {
        lua_gc(L, LUA_GCCOLLECT);
        status = cairn_tensor_new(rt, type, rank, shape, &t->tensor);
    }
    bind_check(L, rt, status);
    return t->tensor;
}

static cairn_type bind_to_type(lua_State *L, int arg, const char *otherwise) {
    const char *name = luaL_optstring(L, arg, otherwise);
    cairn_type type = cairn_type_from_name(name);
    if (!type) luaL_error(L, "tensor: no dtype %s (f32, f16, bf16, e4m3, i32, i64, u8)", name);
    return type;
}

/* Reads the list of whole numbers at `arg` into out[CAIRN_MAX_RANK]; its length. */
static int bind_to_extents(lua_State *L, int arg, const char *what, int64_t *out) {
    int i, rank;
    luaL_checktype(L, arg, LUA_TTABLE);
    rank = (int)lua_rawlen(L, arg);
    if (rank > CAIRN_MAX_RANK)
        luaL_error(L, "tensor: %s has %d entries; %d is the most", what, rank, CAIRN_MAX_RANK);
    for (i = 0; i < rank; i++) {
        int exact;
        lua_rawgeti(L, arg, i + 1);
        out[i] = (int64_t)lua_tointegerx(L, -1, &exact);
        if (!exact) luaL_error(L, "tensor: %s[%d] is no whole number", what, i + 1);
        lua_pop(L, 1);
    }
    return rank;
}

static size_t bind_tensor_count(const cairn_tensor *t) {
    size_t n = 1;
    int d;
    for (d = 0; d < t->ndim; d++) n *= (size_t)t->shape[d];
    return n;
}

/* ---- values ---------------------------------------------------------------------------------- */

/* A small float of `mantissa` bits: nearest, ties to even; `most` is its largest bit pattern. */
static uint32_t bind_round_float(double x, int mantissa, int bias, uint32_t most) {
    double a = fabs(x), scaled;
    int exponent;
    uint32_t bits;
    if (a > 1e300) return most;
    if (a == 0.0) return 0;
    frexp(a, &exponent);
    exponent = exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
    scaled = nearbyint(ldexp(a, mantissa - exponent));
    if (exponent + bias > 255) return most;
    bits = ((uint32_t)(exponent + bias - 1) << mantissa) + (uint32_t)scaled;
    return bits > most ? most : bits;
}

static void bind_store(void *data, size_t i, cairn_type type, double x, int64_t n) {
    uint32_t sign = signbit(x) ? 1 : 0;
    switch (type) {
        case CAIRN_F32: ((float *)data)[i] = (float)x; break;
        case CAIRN_F16:
            ((uint16_t *)data)[i] = (uint16_t)(
                sign << 15 | (isnan(x) ? 0x7e00u : bind_round_float(x, 10, 15, 0x7c00)));
            break;
        case CAIRN_BF16:
            ((uint16_t *)data)[i] = (uint16_t)(
                sign << 15 | (isnan(x) ? 0x7fc0u : bind_round_float(x, 7, 127, 0x7f80)));
            break;
        case CAIRN_E4M3: /* no infinity: the largest value is kept */
            ((uint8_t *)data)[i] = (uint8_t)(
                sign << 7 | (isnan(x) ? 0x7fu : bind_round_float(x, 3, 7, 0x7e)));
            break;
        case CAIRN_I32: ((int32_t *)data)[i] = (int32_t)n; break;
        case CAIRN_I64: ((int64_t *)data)[i] = n; break;
        default: ((uint8_t *)data)[i] = (uint8_t)n; break; /* CAIRN_U8: there are no others */
    }
}

static double bind_float_of_bits(uint32_t bits, int mantissa, int bias) {
    uint32_t fraction = bits & ((1u << mantissa) - 1), exponent = bits >> mantissa;
    if (!exponent) return ldexp((double)fraction, 1 - bias - mantissa);
    return ldexp((double)(fraction | 1u << mantissa), (int)exponent - bias - mantissa);
}

static double bind_small_float(uint32_t bits, int mantissa, int bias, uint32_t infinity,
                               bool negative) {
    double x = bits > infinity ? (double)NAN : bits == infinity ? (double)INFINITY
                                             : bind_float_of_bits(bits, mantissa, bias);
    return negative ? -x : x;
}

static void bind_push_element(lua_State *L, const void *data, size_t i, cairn_type type) {
    uint32_t h = 0;
    if (type == CAIRN_F16 || type == CAIRN_BF16) h = ((const uint16_t *)data)[i];
    if (type == CAIRN_E4M3) h = ((const uint8_t *)data)[i];
    switch (type) {
        case CAIRN_F32: lua_pushnumber(L, (double)((const float *)data)[i]); break;
        case CAIRN_F16:
            lua_pushnumber(L, bind_small_float(h & 0x7fff, 10, 15, 0x7c00, h >> 15));
            break;
        case CAIRN_BF16:
            lua_pushnumber(L, bind_small_float(h & 0x7fff, 7, 127, 0x7f80, h >> 15));
            break;
        case CAIRN_E4M3:
            lua_pushnumber(L, (h & 0x7f) == 0x7f ? (double)NAN
                                                 : bind_small_float(h & 0x7f, 3, 7, 0x80, h >> 7));
            break;
        case CAIRN_I32: lua_pushinteger(L, ((const int32_t *)data)[i]); break;
        case CAIRN_I64: lua_pushinteger(L, (lua_Integer)((const int64_t *)data)[i]); break;
        default: lua_pushinteger(L, ((const uint8_t *)data)[i]); break;
    }
}

/* The range of whole numbers that a type holds. */
static bool bind_in_range(cairn_type type, lua_Integer n) {
    if (type == CAIRN_I32) return n >= INT32_MIN && n <= INT32_MAX;
    return type != CAIRN_U8 || (n >= 0 && n <= 255);
}

static void bind_store_value(lua_State *L, int index, void *data, size_t i, cairn_type type) {
    int exact = 1;
    bool whole = type == CAIRN_I32 || type == CAIRN_I64 || type == CAIRN_U8;
    lua_Integer n = whole ? lua_tointegerx(L, index, &exact) : 0;
    if (lua_type(L, index) != LUA_TNUMBER || !exact || (whole && !bind_in_range(type, n)))
        luaL_error(L, "tensor: element %I is %s, which is no %s", (LUAI_UACINT)i + 1,
                   luaL_tolstring(L, index, NULL), cairn_type_name(type));
    bind_store(data, i, type, lua_tonumber(L, index), (int64_t)n);
}

/* ---- nested lists ---------------------------------------------------------------------------- */

/* The shape of the nested list at `index`, by its first elements. */
static int bind_list_shape(lua_State *L, int index, int64_t *shape) {
    int rank = 0, top = lua_gettop(L);
    lua_pushvalue(L, index);
    while (lua_istable(L, -1)) {
        if (rank == CAIRN_MAX_RANK) luaL_error(L, "tensor: the list is nested too deep");
        shape[rank++] = (int64_t)lua_rawlen(L, -1);
        lua_rawgeti(L, -1, 1);
    }
    lua_settop(L, top);
    return rank;
}

static void bind_read_list(lua_State *L, int index, int rank, const int64_t *shape, void *data,
                          size_t *at, cairn_type type) {
    int64_t i;
    if (rank == 0) {
        bind_store_value(L, index, data, (*at)++, type);
        return;
    }
    if (!lua_istable(L, index) || (int64_t)lua_rawlen(L, index) != shape[0])
        luaL_error(L, "tensor: the list is ragged; %I entries are expected in each",
                   (LUAI_UACINT)shape[0]);
    luaL_checkstack(L, 4, "tensor");
    for (i = 0; i < shape[0]; i++) {
        lua_rawgeti(L, index, (lua_Integer)i + 1);
        bind_read_list(L, lua_gettop(L), rank - 1, shape + 1, data, at, type);
        lua_pop(L, 1);
    }
}

static void bind_push_list(lua_State *L, int rank, const int64_t *shape, const void *data,
                          size_t *at, cairn_type type) {
    int64_t i;
    if (rank == 0) {
        bind_push_element(L, data, (*at)++, type);
        return;
    }
    luaL_checkstack(L, 4, "tensor");
    lua_createtable(L, (int)(shape[0] < INT_MAX ? shape[0] : 0), 0);
    for (i = 0; i < shape[0]; i++) {
        bind_push_list(L, rank - 1, shape + 1, data, at, type);
        lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
}

/* Writes the list at `index`, nested as the tensor or flat, to the tensor. */
static void bind_write_list(lua_State *L, int index, cairn_runtime *rt, cairn_tensor *t) {
    cairn_type type = cairn_tensor_type(t);
    size_t count = bind_tensor_count(t), bytes = count * cairn_type_bytes(type), at = 0;
    void *data = lua_newuserdatauv(L, bytes, 0);
    int64_t shape[CAIRN_MAX_RANK];
    int rank = bind_list_shape(L, index, shape);
    if (rank == 1 && t->ndim != 1) {
        int64_t flat = (int64_t)count;
        bind_read_list(L, index, 1, &flat, data, &at, type);
    } else {
        bind_read_list(L, index, t->ndim, t->shape, data, &at, type);
    }
    bind_check(L, rt, cairn_tensor_write(rt, t, data, bytes));
    lua_pop(L, 1);
}

/* ---- making tensors -------------------------------------------------------------------------- */

/* rt:tensor(list [, dtype [, shape]]) from a nested list, or a flat one with its shape */
static int bind_make_tensor(lua_State *L) {
    cairn_runtime *rt = bind_to_runtime(L, 1);
    cairn_type type = bind_to_type(L, 3, "f32");
    int64_t shape[CAIRN_MAX_RANK];
    int rank;
    luaL_checkany(L, 2);
    if (lua_isnoneornil(L, 4)) rank = bind_list_shape(L, 2, shape);
    else rank = bind_to_extents(L, 4, "shape", shape);
    bind_write_list(L, 2, rt, bind_new_tensor(L, 1, type, rank, shape));
    return 1;
}

/* A tensor of zeros, i32 or u8, in host memory that Lua owns; the runtime is argument 1. */
static cairn_tensor *bind_new_host(lua_State *L, cairn_type type, int rank, const int64_t *shape) {
    size_t bytes = cairn_type_bytes(type);
    bind_tensor *t;
    for (int d = 0; d < rank; d++) bytes *= (size_t)shape[d];
    t = (bind_tensor *)bind_new_object(L, BIND_TENSOR, sizeof *t + bytes, 1, 2);
    memcpy(t->shape, shape, (size_t)rank * sizeof *shape);
    t->view.data = memset(t + 1, 0, bytes);
    t->view.device.type = TENSOR_CPU;
    t->view.ndim = rank;
    t->view.shape = t->shape;
    t->view.dtype.code = type == CAIRN_U8;
    t->view.dtype.bits = (uint8_t)(8 * cairn_type_bytes(type)), t->view.dtype.lanes = 1;
    t->tensor = &t->view;
    return &t->view;
}

/* rt:host(list): i32 in host memory, for what a staging buffer hands to the device; rt:host(bytes):
 * u8, for what snapshots are saved to */
static int bind_make_host(lua_State *L) {
    int64_t shape[CAIRN_MAX_RANK];
    size_t at = 0;
    int rank;
    bind_to_runtime(L, 1);
    if (lua_isinteger(L, 2)) {
        shape[0] = lua_tointeger(L, 2);
        luaL_argcheck(L, shape[0] >= 0 && shape[0] < PTRDIFF_MAX / 2, 2, "bytes out of range");
        bind_new_host(L, CAIRN_U8, 1, shape);
        return 1;
    }
    luaL_checktype(L, 2, LUA_TTABLE);
    rank = bind_list_shape(L, 2, shape);
    bind_read_list(L, 2, rank, shape, bind_new_host(L, CAIRN_I32, rank, shape)->data, &at,
                   CAIRN_I32);
    return 1;
}

/* The bytes of a string, or of a tensor from rt:host(bytes). */
static void *bind_to_memory(lua_State *L, int arg, size_t *bytes) {
    const cairn_tensor *t;
    if (lua_type(L, arg) == LUA_TSTRING) return (void *)(uintptr_t)lua_tolstring(L, arg, bytes);
    t = bind_to_tensor(L, arg);
    if (t->device.type != TENSOR_CPU || t->strides || cairn_tensor_type(t) != CAIRN_U8)
        luaL_error(L, "a dense tensor of u8 in host memory is expected; see rt:host(bytes)");
    *bytes = bind_tensor_count(t);
    return (char *)t->data + t->byte_offset;
}

static void bind_give_staging(lua_State *L, cairn_runtime *rt, void *staging) {
    (void)L;
    cairn_staging_free(rt, (cairn_staging *)staging);
}

/* rt:staging(bytes): two pinned buffers */
static int bind_make_staging(lua_State *L) {
    cairn_runtime *rt = bind_to_runtime(L, 1);
    lua_Integer bytes = luaL_checkinteger(L, 2);
    cairn_staging *staging = NULL;
    bind_object *o = (bind_object *)bind_new_object(L, BIND_STAGING, sizeof *o, 1, 1);
    bind_check(L, rt, cairn_staging_new(rt, bytes > 0 ? (size_t)bytes : 0, &staging));
    o->object = staging;
    return 1;
}

static void bind_new_staging_type(lua_State *L) {
    static const luaL_Reg none[] = {{NULL, NULL}};
    static const bind_handle staging = {BIND_STAGING, "free", bind_give_staging};
    bind_new_handle(L, &staging, none);
}

/* rt:zeros(shape [, dtype]) */
static int bind_make_zeros(lua_State *L) {
    int64_t shape[CAIRN_MAX_RANK];
    int rank;
    luaL_checktype(L, 2, LUA_TTABLE);
    rank = bind_to_extents(L, 2, "shape", shape);
    bind_new_tensor(L, 1, bind_to_type(L, 3, "f32"), rank, shape);
    return 1;
}

/* SplitMix64: the next of a sequence. */
static uint64_t bind_random(uint64_t *state) {
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* rt:random(shape [, dtype [, { seed = 1, low = -1, high = 1 }]]): uniform in [low, high), whole
 * numbers of the integer types */
static int bind_make_random(lua_State *L) {
    cairn_runtime *rt = bind_to_runtime(L, 1);
    cairn_type type = bind_to_type(L, 3, "f32");
    int64_t shape[CAIRN_MAX_RANK];
    int rank;
    size_t i, count, bytes;
    void *data;
    cairn_tensor *t;
    uint64_t state = 1;
    double low = -1.0, high = 1.0;
    lua_settop(L, 4);
    rank = bind_to_extents(L, 2, "shape", shape);
    if (bind_options(L, 4, "random", "seed\0low\0high\0")) {
        bind_field(L, 4, "seed");
        bind_field(L, 4, "low");
        bind_field(L, 4, "high");
        state = (uint64_t)luaL_optinteger(L, -3, 1);
        low = luaL_optnumber(L, -2, -1.0);
        high = luaL_optnumber(L, -1, 1.0);
    }
    t = bind_new_tensor(L, 1, type, rank, shape);
    count = bind_tensor_count(t);
    bytes = count * cairn_type_bytes(type);
    data = lua_newuserdatauv(L, bytes, 0);
    for (i = 0; i < count; i++) {
        double x = low + (high - low) * ((double)(bind_random(&state) >> 11) * 0x1p-53);
        bind_store(data, i, type, x, (int64_t)floor(x));
    }
    bind_check(L, rt, cairn_tensor_write(rt, t, data, bytes));
    lua_pop(L, 1);
    return 1;
}

/* rt:load(path): an .npy file */
static int bind_load_tensor(lua_State *L) {
    cairn_runtime *rt = bind_to_runtime(L, 1);
    const char *path = luaL_checkstring(L, 2);
    bind_tensor *t = (bind_tensor *)bind_new_object(L, BIND_TENSOR, sizeof *t, 1, 2);
    bind_check(L, rt, cairn_tensor_load(rt, path, &t->tensor));
    return 1;
}

/* ---- views ----------------------------------------------------------------------------------- */

/* Elements from the parent's first to the view's last; raises when one lies outside. */
static void bind_check_view(lua_State *L, const bind_tensor *t, size_t parent_count) {
    int64_t last = (int64_t)t->view.byte_offset;
    bool empty = false;
    int d;
    if (last < 0) luaL_error(L, "view: negative offset");
    for (d = 0; d < t->view.ndim; d++) {
        int64_t n = t->shape[d], s = t->strides[d];
        if (n < 0 || s < 0) luaL_error(L, "view: negative shape or stride in dimension %d", d + 1);
        if (n == 0) empty = true;
        else if (s && n - 1 > (INT64_MAX / 4 - last) / s) last = INT64_MAX / 4;
        else last += (n - 1) * s;
    }
    if (!empty && (uint64_t)last >= parent_count)
        luaL_error(L, "view: it ends at element %I of %I", (LUAI_UACINT)last + 1,
                   (LUAI_UACINT)parent_count);
}

/* t:view(shape [, { strides =, offset = }]), in elements: other eyes on the same memory */
static int bind_tensor_view(lua_State *L) {
    cairn_tensor *parent = bind_to_tensor(L, 1);
    const bool options = bind_options(L, 3, "view", "strides\0offset\0");
    int owner = bind_push_owner(L, 1), d;
    bind_tensor *t = (bind_tensor *)bind_new_object(L, BIND_TENSOR, sizeof *t, owner, 2);
    size_t parent_count = bind_tensor_count(parent);
    int64_t stride = 1;
    if (parent->strides) luaL_error(L, "view: of a view with strides");
    t->view = *parent;
    t->view.ndim = bind_to_extents(L, 2, "shape", t->shape);
    t->view.shape = t->shape;
    t->view.byte_offset = 0; /* in elements until it is checked */
    for (d = t->view.ndim - 1; d >= 0; d--) {
        t->strides[d] = stride;
        if (t->shape[d] > 0)
            stride = stride > INT64_MAX / 8 / t->shape[d] ? INT64_MAX / 8 : stride * t->shape[d];
    }
    if (options) {
        if (bind_field(L, 3, "strides") == LUA_TTABLE) {
            if (bind_to_extents(L, lua_gettop(L), "strides", t->strides) != t->view.ndim)
                luaL_error(L, "view: strides and shape differ in rank");
            t->view.strides = t->strides;
        }
        bind_field(L, 3, "offset");
        t->view.byte_offset = (uint64_t)luaL_optinteger(L, -1, 0);
        lua_pop(L, 2);
    }
    bind_check_view(L, t, parent_count);
    t->view.byte_offset = t->view.byte_offset * cairn_type_bytes(cairn_tensor_type(parent)) +
                          parent->byte_offset;
    lua_pushvalue(L, 1);
    lua_setiuservalue(L, -2, 2);
    t->tensor = &t->view;
    return 1;
}

/* ---- methods --------------------------------------------------------------------------------- */

static int bind_tensor_totable(lua_State *L) {
    cairn_tensor *t = bind_to_tensor(L, 1);
    cairn_runtime *rt = bind_owner(L, 1);
    cairn_type type = cairn_tensor_type(t);
    size_t bytes = bind_tensor_count(t) * cairn_type_bytes(type), at = 0;
    void *data = lua_newuserdatauv(L, bytes, 0);
    bind_check(L, rt, cairn_tensor_read(rt, t, data, bytes));
    bind_push_list(L, t->ndim, t->shape, data, &at, type);
    return 1;
}

/* t:write(list), nested as the tensor or flat. Gives the tensor. */
static int bind_tensor_write(lua_State *L) {
    cairn_tensor *t = bind_to_tensor(L, 1);
    bind_write_list(L, 2, bind_owner(L, 1), t);
    lua_settop(L, 1);
    return 1;
}

static int bind_tensor_save(lua_State *L) {
    cairn_tensor *t = bind_to_tensor(L, 1);
    cairn_runtime *rt = bind_owner(L, 1);
    return bind_self(L, rt, cairn_tensor_save(rt, t, luaL_checkstring(L, 2)));
}

static const luaL_Reg bind_tensor_methods[] = {
    {"totable", bind_tensor_totable}, {"write", bind_tensor_write}, {"save", bind_tensor_save},
    {"view", bind_tensor_view},       {"free", bind_tensor_free},   {NULL, NULL},
};

/* t.shape, t.dtype, t.bytes, and the methods in upvalue 1 */
static int bind_tensor_index(lua_State *L) {
    const char *key = luaL_checkstring(L, 2);
    const cairn_tensor *t;
    int d;
    if (lua_getfield(L, lua_upvalueindex(1), key) != LUA_TNIL) return 1;
    t = bind_to_tensor(L, 1);
    if (!strcmp(key, "dtype")) {
        lua_pushstring(L, cairn_type_name(cairn_tensor_type(t)));
    } else if (!strcmp(key, "bytes")) {
        size_t bytes = bind_tensor_count(t) * cairn_type_bytes(cairn_tensor_type(t));
        lua_pushinteger(L, (lua_Integer)bytes);
    } else if (!strcmp(key, "shape")) {
        lua_createtable(L, t->ndim, 0);
        for (d = 0; d < t->ndim; d++) {
            lua_pushinteger(L, (lua_Integer)t->shape[d]);
            lua_rawseti(L, -2, d + 1);
        }
    }
    return 1;
}

static int bind_tensor_tostring(lua_State *L) {
    bind_tensor *t = (bind_tensor *)luaL_checkudata(L, 1, BIND_TENSOR);
    int d;
    luaL_Buffer buffer;
    if (!bind_owner(L, 1) || !t->tensor) return lua_pushliteral(L, "tensor (closed)"), 1;
    luaL_buffinit(L, &buffer);
    luaL_addstring(&buffer, "tensor ");
    luaL_addstring(&buffer, cairn_type_name(cairn_tensor_type(t->tensor)));
    luaL_addstring(&buffer, " [");
    for (d = 0; d < t->tensor->ndim; d++) {
        char text[32];
        snprintf(text, sizeof text, d ? ", %lld" : "%lld", (long long)t->tensor->shape[d]);
        luaL_addstring(&buffer, text);
    }
    luaL_addstring(&buffer, "]");
    luaL_pushresult(&buffer);
    return 1;
}

static void bind_new_tensor_type(lua_State *L) {
    static const luaL_Reg none[] = {{NULL, NULL}};
    bind_new_type(L, BIND_TENSOR, none, bind_tensor_free);
    luaL_getmetatable(L, BIND_TENSOR);
    lua_newtable(L);
    luaL_setfuncs(L, bind_tensor_methods, 0);
    lua_pushcclosure(L, bind_tensor_index, 1);
    lua_setfield(L, -2, "__index");
    lua_pushcfunction(L, bind_tensor_tostring);
    lua_setfield(L, -2, "__tostring");
    lua_pop(L, 1);
}

#endif
