/* spec: a call's arguments against the table (spec.h). Messages name the op, the argument,
 * what was given and what is expected. */

BASE_UNUSED static const char *spec_lua_name(const spec_arg *a) {
    const char *dot = strrchr(a->name, '.');
    return a->lua ? a->lua : dot ? dot + 1 : a->name;
}

static int spec_rank(const spec_arg *a) {
    int rank = 0;
    while (a->extents[rank]) rank++;
    return rank;
}

static bool spec_is_tensor(const spec_arg *a) { return a->kind <= SPEC_INOUT; }

static int32_t spec_int(const spec_call *s, const spec_arg *a) {
    int32_t value;
    memcpy(&value, s->args + a->offset, sizeof value);
    return value;
}

static void *spec_pointer(const spec_call *s, const spec_arg *a) {
    void *value;
    memcpy(&value, s->args + a->offset, sizeof value);
    return value;
}

/* Of an op with tensors that are SPEC_STAGED, which has one. */
static const spec_arg *spec_staging_of(const spec_op *op) {
    const spec_arg *a = op->args;
    while (a->kind != SPEC_STAGING) a++;
    return a;
}

/* ---- symbols --------------------------------------------------------------------------------- */

static spec_symbol spec_symbol_of(spec_extent extent) { return (spec_symbol)(extent & 255); }

static const spec_limit *spec_limit_of(const spec_op *op, spec_symbol symbol) {
    const spec_limit *l = op->limits;
    while (l->symbol && l->symbol != symbol) l++;
    return l->symbol ? l : NULL;
}

/* A symbol that no argument said has the value that its limit names. */
static int64_t spec_symbol_value(const spec_call *s, spec_symbol symbol) {
    const spec_limit *l = s->n[symbol] < 0 ? spec_limit_of(s->op, symbol) : NULL;
    if (!l || !l->otherwise) return s->n[symbol];
    if (l->otherwise & SPEC_EXTENT_NUMBER) return l->otherwise >> 12;
    return s->n[spec_symbol_of(l->otherwise)];
}

static int64_t spec_extent_value(const spec_call *s, spec_extent extent) {
    int64_t value;
    if (extent & SPEC_EXTENT_NUMBER) return extent >> 12;
    if (extent & SPEC_EXTENT_ANY) return -1;
    value = spec_symbol_value(s, spec_symbol_of(extent));
    return value < 0 ? -1 : value + ((extent & SPEC_EXTENT_ONE_MORE) != 0);
}

/* What it must be exactly, as far as arguments said it; -1: free. */
static int64_t spec_said(const spec_call *s, spec_extent extent) {
    int64_t value;
    if (extent & SPEC_EXTENT_NUMBER) return extent >> 12;
    if (extent & (SPEC_EXTENT_ANY | SPEC_EXTENT_LEAST)) return -1;
    value = s->n[spec_symbol_of(extent)];
    return value < 0 ? -1 : value + ((extent & SPEC_EXTENT_ONE_MORE) != 0);
}

/* "1 to 8", "1 or more", "a multiple of 16 from 16 to 256". */
static const char *spec_range_text(const spec_limit *l, int64_t more, char *text, size_t bytes) {
    char by[48] = "";
    const bool open = l->most >= INT32_MAX;
    if (l->multiple > 1)
        snprintf(by, sizeof by, "a multiple of %lld%s", (long long)l->multiple,
                 open ? ", " : " from ");
    if (open)
        snprintf(text, bytes, "%s%lld or more", by, (long long)(l->least + more));
    else
        snprintf(text, bytes, "%s%lld to %lld", by, (long long)(l->least + more),
                 (long long)(l->most + more));
    return text;
}

/* The first tensor given that says the symbol, for messages: one does. */
static const char *spec_who_says(const spec_call *s, spec_symbol symbol) {
    const char *who = NULL;
    for (const spec_arg *a = s->op->args; a->name && !who; a++)
        for (int d = 0; spec_is_tensor(a) && spec_pointer(s, a) && a->extents[d] && !who; d++)
            if ((a->extents[d] & ~SPEC_EXTENT_ONE_MORE) == (spec_extent)symbol) who = a->name;
    return who;
}

/* The symbol has this value now, for `name` says so. */
static void spec_say(spec_call *s, const char *name, spec_extent extent, int64_t value) {
    const spec_symbol symbol = spec_symbol_of(extent);
    const spec_limit *l = spec_limit_of(s->op, symbol);
    const int64_t more = (extent & SPEC_EXTENT_ONE_MORE) != 0;
    char range[96];
    s->n[symbol] = value - more;
    ops_refuse(&s->c, more && value < 1, "%s has no entry; one or more is expected", name);
    if (!l || s->c.status) return;
    if (value - more >= l->least && value - more <= l->most &&
        (l->multiple < 2 || (value - more) % l->multiple == 0))
        return;
    ops_refuse(&s->c, true, "%s has %lld %s; %s is expected", name, (long long)value,
               spec_symbol_words[symbol], spec_range_text(l, more, range, sizeof range));
}

/* What symbols are to each other, once all are known. */
static void spec_check_relations(spec_call *s) {
    for (const spec_limit *l = s->op->limits; l->symbol && !s->c.status; l++) {
        const int64_t value = s->n[l->symbol], of = s->n[l->multiple_of], least = s->n[l->at_least];
        const char *words = spec_symbol_words[l->symbol];
        if (value < 0) continue;
        if (l->multiple_of && of > 0 && value % of)
            ops_refuse(&s->c, true, "%s has %lld %s, no multiple of the %lld %s",
                       spec_who_says(s, l->symbol), (long long)value, words, (long long)of,
                       spec_symbol_words[l->multiple_of]);
        if (l->at_least && value < least)
            ops_refuse(&s->c, true, "%s has %lld %s; %lld or more are expected",
                       spec_who_says(s, l->symbol), (long long)value, words, (long long)least);
    }
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* The block type of a matrix: 0 for its own dtype. */
static int32_t spec_block(const spec_call *s) {
    const spec_arg *a = s->op->args;
    while (a->name && a->choices != spec_blocks) a++;
    return a->name ? spec_int(s, a) : CAIRN_BLOCK_NONE;
}

/* Values in a row of t, whose rows may be blocks of bytes. */
static int64_t spec_row_values(const cairn_tensor *t, int32_t block) {
    const block_type *type = block ? block_find(block) : NULL;
    return type ? t->shape[1] / (int64_t)type->bytes * (int64_t)type->values : t->shape[1];
}

static void spec_want_types(const spec_call *s, const spec_arg *a, tensor_want *want) {
    want->types = a->types;
    if ((a->flags & SPEC_SAME_TYPE) && s->type) {
        want->types = a->types & TENSOR_BIT(s->type);
        if (a->flags & SPEC_OR_F32) want->types |= SPEC_F32;
    }
    if ((a->flags & SPEC_BLOCKS) && spec_block(s)) {
        want->types = TENSOR_BIT(CAIRN_U8);
        if (want->align < 2) want->align = 2; /* as blocks begin with an f16 */
    }
}

static void spec_want_shape(const spec_call *s, const spec_arg *a, const cairn_tensor *t,
                            tensor_want *want) {
    want->rank = a->flags & SPEC_ANY_SHAPE ? -1 : spec_rank(a);
    if ((a->flags & SPEC_COLUMN) && t && t->ndim == 1) want->rank = 1;
    for (int d = 0; d < want->rank; d++) {
        want->shape[d] = spec_said(s, a->extents[d]);
        if ((a->flags & SPEC_BLOCKS) && d == 1) want->shape[d] = -1;
    }
}

/* Rows of whole blocks, of as many values as the symbol says. */
static void spec_check_blocks(spec_call *s, const spec_arg *a, const cairn_tensor *t) {
    const int32_t block = spec_block(s);
    const block_type *type = block ? block_find(block) : NULL;
    const int64_t values = spec_row_values(t, block), want = spec_said(s, a->extents[1]);
    ops_refuse(&s->c, type && t->shape[1] % type->bytes != 0,
               "rows of %s have %lld bytes, no multiple of %d", a->name, (long long)t->shape[1],
               type ? type->bytes : 1);
    ops_refuse(&s->c, want >= 0 && values != want, "rows of %s have %lld values; %lld is expected",
               a->name, (long long)values, (long long)want);
    if (!s->c.status && want < 0) spec_say(s, a->name, a->extents[1], values);
}

/* A tensor whose dtype, rank and known extents are right: what its others say. */
static void spec_learn(spec_call *s, const spec_arg *a, const char *name, const cairn_tensor *t,
                       int rank) {
    if ((a->flags & SPEC_SAME_TYPE) && !s->type) s->type = cairn_tensor_type(t);
    for (int d = 0; d < rank && !s->c.status; d++) {
        const spec_extent e = a->extents[d];
        if (e & (SPEC_EXTENT_ANY | SPEC_EXTENT_NUMBER)) continue;
        if ((a->flags & SPEC_BLOCKS) && d == 1) spec_check_blocks(s, a, t);
        else if (e & SPEC_EXTENT_LEAST)
            ops_refuse(&s->c, t->shape[d] < spec_extent_value(s, e),
                       "%s has %lld entries; %lld or more are expected", name,
                       (long long)t->shape[d], (long long)spec_extent_value(s, e));
        else if (s->n[spec_symbol_of(e)] < 0) spec_say(s, name, e, t->shape[d]);
    }
}

static void spec_note_span(spec_call *s, const spec_arg *a, const cairn_tensor *t, size_t bytes) {
    spans_item *span = &s->spans[s->span_count++];
    span->name = a->name;
    span->begin = (uintptr_t)tensor_data(t);
    span->end = span->begin + bytes;
    span->out = a->kind != SPEC_IN;
    span->in_place = (a->flags & SPEC_IN_PLACE) != 0;
}

/* One tensor, which messages call `name`. */
static void spec_check_tensor(spec_call *s, const spec_arg *a, const cairn_tensor *t,
                              const char *name, bool optional) {
    const spec_arg *staging = a->flags & SPEC_STAGED ? spec_staging_of(s->op) : NULL;
    tensor_want want; /* field by field: clearing the whole took a quarter of the check */
    want.op = s->c.op;
    want.name = name;
    want.bytes = 0;
    want.optional = optional;
    want.rows_may_stride = (a->flags & SPEC_STRIDED) != 0;
    want.unread = (a->flags & SPEC_UNREAD) != 0;
    want.align = a->align;
    spec_want_types(s, a, &want);
    spec_want_shape(s, a, t, &want);
    s->c.status = staging && spec_pointer(s, staging)
                      ? tensor_check_at(s->c.dev->base, TENSOR_CPU, t, &want)
                      : tensor_check(s->c.dev, t, &want);
    if (s->c.status || !t) return;
    if (want.rank >= 0) spec_learn(s, a, name, t, want.rank);
    if (a->kind != SPEC_LIST && want.bytes && t->data) spec_note_span(s, a, t, want.bytes);
}

/* A list of as many tensors as SPEC_LAYERS says. The place is put into the name when one is wrong:
 * it is then checked once more, as if what it said had not been said. */
static void spec_check_list(spec_call *s, const spec_arg *a) {
    cairn_tensor *const *list = (cairn_tensor *const *)spec_pointer(s, a);
    const spec_call before = *s;
    char name[32];
    ops_refuse(&s->c, !list && s->n[SPEC_LAYERS] > 0 && !(a->flags & SPEC_OPTIONAL),
               "layers = %d, but %s is NULL", (int)s->n[SPEC_LAYERS], a->name);
    for (int64_t i = 0; list && i < s->n[SPEC_LAYERS] && !s->c.status; i++) {
        spec_check_tensor(s, a, list[i], a->name, false);
        if (!s->c.status) continue;
        snprintf(name, sizeof name, "%s[%d]", a->name, (int)i);
        if (!i) *s = before;
        s->c.status = CAIRN_OK;
        spec_check_tensor(s, a, list[i], name, false);
    }
}

/* ---- numbers and handles --------------------------------------------------------------------- */

static void spec_check_int(spec_call *s, const spec_arg *a) {
    const int32_t value = spec_int(s, a);
    if (value >= a->least && value <= a->most) {
        if (a->extents[0]) s->n[a->extents[0]] = value;
        return;
    }
    if (a->most >= INT32_MAX)
        ops_refuse(&s->c, true, "%s = %d; %.0f or more is expected", a->name, (int)value, a->least);
    else
        ops_refuse(&s->c, true, "%s = %d; %.0f to %.0f is expected", a->name, (int)value, a->least,
                   a->most);
}

static void spec_check_float(spec_call *s, const spec_arg *a) {
    float value;
    memcpy(&value, s->args + a->offset, sizeof value);
    if ((double)value >= a->least && (double)value <= a->most) return;
    if (a->most > 1e30)
        ops_refuse(&s->c, true, "%s = %g; %g or more, finite, is expected", a->name, (double)value,
                   a->least);
    else
        ops_refuse(&s->c, true, "%s = %g; %g to %g is expected", a->name, (double)value, a->least,
                   a->most);
}

static void spec_refuse_choice(spec_call *s, const spec_arg *a) {
    char names[128] = "";
    for (const spec_choice *choice = a->choices; choice->name; choice++) {
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%d (%s)",
                 !used ? "" : choice[1].name ? ", " : " or ", (int)choice->value, choice->name);
    }
    ops_refuse(&s->c, true, "%s = %d; %s is expected", a->name, (int)spec_int(s, a), names);
}

static void spec_check_choice(spec_call *s, const spec_arg *a) {
    const int32_t value = spec_int(s, a);
    for (const spec_choice *choice = a->choices; choice->name; choice++)
        if (choice->value == value) return;
    spec_refuse_choice(s, a);
}

static void spec_check_function(spec_call *s, const spec_arg *a) {
    void (*function)(void);
    memcpy(&function, s->args + a->offset, sizeof function);
    ops_refuse(&s->c, !function, "%s is NULL", a->name);
}

/* ---- overlap --------------------------------------------------------------------------------- */

/* With lists of tensors, which are written, there are many. */
static void spec_check_many_apart(spec_call *s) {
    spans_item spans[SPANS];
    int count = 0;
    for (const spec_arg *a = s->op->args; a->name; a++) {
        cairn_tensor *const *list = (cairn_tensor *const *)(
            a->kind == SPEC_LIST ? spec_pointer(s, a) : NULL);
        for (int64_t i = 0; list && i < s->n[SPEC_LAYERS]; i++)
            spans_add(spans, &count, list[i], a->name, true);
        if (spec_is_tensor(a))
            spans_add(spans, &count, (const cairn_tensor *)spec_pointer(s, a), a->name,
                          a->kind != SPEC_IN);
    }
    spans_want_apart(&s->c, spans, count);
}

/* ---- a call ---------------------------------------------------------------------------------- */

static void spec_open(spec_call *s, const spec_op *op, const void *args) {
    memset(&s->c, 0, sizeof s->c);
    s->type = CAIRN_TYPE_NONE;
    s->span_count = 0;
    s->op = op;
    s->c.op = op->name;
    s->args = (const char *)args;
    memset(s->n, 0xff, sizeof s->n); /* -1 */
}

static void spec_check_staging(spec_call *s, const spec_arg *a) {
    const cairn_staging *staging = (const cairn_staging *)spec_pointer(s, a);
    ops_refuse(&s->c, staging && &staging->rt->device != s->c.dev, "%s is of another runtime",
               a->name);
}

static void spec_check_arg(spec_call *s, const spec_arg *a) {
    switch (a->kind) {
        case SPEC_IN: case SPEC_OUT: case SPEC_INOUT:
            spec_check_tensor(s, a, (const cairn_tensor *)spec_pointer(s, a), a->name,
                              (a->flags & SPEC_OPTIONAL) != 0);
            break;
        case SPEC_LIST: spec_check_list(s, a); break;
        case SPEC_INT: spec_check_int(s, a); break;
        case SPEC_FLOAT: spec_check_float(s, a); break;
        case SPEC_CHOICE: spec_check_choice(s, a); break;
        case SPEC_FUNCTION: spec_check_function(s, a); break;
        case SPEC_STAGING: spec_check_staging(s, a); break;
        case SPEC_FLAG: case SPEC_BYTES: case SPEC_TEXT: case SPEC_OWN: break;
    }
}

static cairn_status spec_check(spec_call *s, device *dev, const spec_op *op, const void *args) {
    bool listed = false;
    spec_open(s, op, args);
    s->c.dev = dev;
    for (const spec_arg *a = op->args; a->name && !s->c.status; a++)
        if (!spec_is_tensor(a)) { /* numbers say how large tensors are */
            listed = listed || a->kind == SPEC_LIST;
            spec_check_arg(s, a);
        }
    for (const spec_arg *a = op->args; a->name && !s->c.status; a++)
        if (spec_is_tensor(a)) spec_check_arg(s, a);
    if (!s->c.status) spec_check_relations(s);
    if (s->c.status) return s->c.status;
    if (listed) spec_check_many_apart(s);
    else spans_want_few_apart(&s->c, s->spans, s->span_count);
    for (const spec_limit *l = op->limits; l->symbol; l++)
        s->n[l->symbol] = spec_symbol_value(s, l->symbol);
    return s->c.status;
}

static void spec_begin(cairn_runtime *rt, const char *name) {
    trace *t = rt->device.trace;
    if (!t) return;
    trace_drop_op(t);
    if (handles_enter(rt)) return;
    t->op_event = trace_open(&rt->device, name, !rt->capturing);
    handles_leave(rt, CAIRN_OK);
}

static cairn_status spec_end(cairn_runtime *rt, cairn_status status) {
    trace *t = rt->device.trace;
    if (!t || t->op_event < 0 || handles_enter(rt)) return status;
    trace_shut(&rt->device, t->op_event, 0);
    t->op_event = -1;
    return handles_leave(rt, status);
}

static cairn_status spec_take(cairn_runtime *rt, const spec_op *op, void *ours, const void *theirs,
                              spec_call *s) {
    spec_open(s, op, ours);
    if (!rt) return s->c.status = CAIRN_INVALID_ARGUMENT;
    s->c.dev = &rt->device;
    s->c.status = args_take(&rt->base, op->name, ours, op->bytes, theirs);
    if (!s->c.status) s->c.status = spec_check(s, &rt->device, op, ours);
    if (!s->c.status) spec_begin(rt, op->name);
    return s->c.status;
}

/* ---- shapes ---------------------------------------------------------------------------------- */

BASE_UNUSED static void spec_guess(spec_call *s, const spec_op *op, const void *args) {
    spec_open(s, op, args);
    for (const spec_arg *a = op->args; a->name; a++) {
        const cairn_tensor *t =
            spec_is_tensor(a) ? (const cairn_tensor *)spec_pointer(s, a) : NULL;
        if (a->kind == SPEC_INT && a->extents[0]) s->n[a->extents[0]] = spec_int(s, a);
        if (!t) continue;
        if ((a->flags & SPEC_SAME_TYPE) && !s->type) s->type = cairn_tensor_type(t);
        for (int d = 0; d < t->ndim && a->extents[d]; d++) {
            const spec_extent e = a->extents[d];
            const bool more = (e & SPEC_EXTENT_ONE_MORE) != 0;
            if (e & ~(spec_extent)(255 | SPEC_EXTENT_ONE_MORE)) continue;
            if (s->n[spec_symbol_of(e)] >= 0) continue;
            s->n[spec_symbol_of(e)] = (a->flags & SPEC_BLOCKS) && d == 1
                                          ? spec_row_values(t, spec_block(s))
                                          : t->shape[d] - more;
        }
    }
}
