/* gbnf: a grammar's text to a program. The notation is llama.cpp's: rules, alternatives, groups,
 * strings, classes, `.`, repetitions, comments.
 *
 * A rule's code is written in one pass; all jumps are relative, so that code can be moved, copied, or
 * made a rule of its own (what is repeated and long). Groups stand on a stack of our own. */

enum { GBNF_DEPTH = 128, GBNF_OPS = 1 << 18, GBNF_COPY = 6, GBNF_REPEATS = 20000 };

typedef struct gbnf_range { uint32_t low, high; } gbnf_range;
/* Where a rule's name stands first; made ones have none. start -1: not defined yet. */
typedef struct gbnf_name { size_t at, bytes; } gbnf_name;
/* A group's code begins at `start`, its last alternative at `part`. */
typedef struct gbnf_frame { int start, part, parts; size_t at; } gbnf_frame;

typedef struct gbnf {
    base *b;
    const char *text;
    size_t bytes, at;
    grammar_program *out;
    grammar_op *code, *copy; /* of the rule in progress; of what is repeated */
    gbnf_name *names; /* [out->rule_room] */
    gbnf_range *ranges;
    int32_t *work, *marks;
    int count, room, copy_room, name_room, range_count, range_room, work_room, mark_room, depth;
    gbnf_frame frames[GBNF_DEPTH];
} gbnf;

/* Memory for `need` items of `size` bytes at *data, more than is asked for; the new is zero. False:
 * memory is short, and *data stands. */
static bool grammar_grow(base *b, void *data, int *room, int need, size_t size) {
    int more = *room ? *room : 16;
    void *old, *grown;
    if (need <= *room) return true;
    while (more < need) more *= 2;
    memcpy(&old, data, sizeof old);
    grown = base_realloc(b, old, (size_t)*room * size, (size_t)more * size);
    if (!grown) return base_no_memory(b, "a grammar", (size_t)more * size), false;
    memset((char *)grown + (size_t)*room * size, 0, (size_t)(more - *room) * size);
    memcpy(data, &grown, sizeof grown);
    *room = more;
    return true;
}

/* ---- errors ---------------------------------------------------------------------------------- */

/* Line and column, in characters, of text[at]. */
static void gbnf_where(const char *text, size_t at, int *line, int *column) {
    *line = *column = 1;
    for (size_t i = 0; i < at; i++) {
        if (text[i] == '\n') *line += 1, *column = 1;
        else *column += ((unsigned char)text[i] & 0xC0) != 0x80;
    }
}

BASE_PRINTF(3, 4)
static bool gbnf_fail(gbnf *p, size_t at, const char *format, ...) {
    char text[256];
    int line, column;
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    gbnf_where(p->text, at, &line, &column);
    base_fail(p->b, CAIRN_INVALID_ARGUMENT, "grammar: line %d, column %d: %s", line, column, text);
    return false;
}

/* ---- code ------------------------------------------------------------------------------------ */

static bool gbnf_reserve(gbnf *p, int64_t more) {
    if (p->count + p->out->op_count + more > GBNF_OPS)
        return gbnf_fail(p, p->at, "the grammar is too large here: more than %d steps", GBNF_OPS);
    return grammar_grow(p->b, &p->code, &p->room, p->count + (int)more, sizeof *p->code);
}

/* Puts one op at `at`; what stands there and behind moves on. */
static bool gbnf_put(gbnf *p, int at, int kind, int low, int high, int to) {
    grammar_op op;
    if (!gbnf_reserve(p, 1)) return false;
    memmove(p->code + at + 1, p->code + at, (size_t)(p->count - at) * sizeof *p->code);
    memset(&op, 0, sizeof op);
    op.kind = (uint8_t)kind, op.low = (uint8_t)low, op.high = (uint8_t)high, op.to = to;
    p->code[at] = op;
    p->count++;
    return true;
}

/* Code [start, middle) and [middle, end) become alternatives. */
static bool gbnf_join(gbnf *p, int start, int middle) {
    return gbnf_put(p, middle, GRAMMAR_JUMP, 0, 0, p->count - middle + 1) &&
           gbnf_put(p, start, GRAMMAR_SPLIT, 0, 0, middle - start + 2);
}

/* Code [from, end) ends the rule; it leaves the code in progress. */
static bool gbnf_end_rule(gbnf *p, int rule, int from) {
    grammar_program *out = p->out;
    int length;
    if (!gbnf_put(p, p->count, GRAMMAR_RETURN, 0, 0, 0)) return false;
    length = p->count - from;
    if (!grammar_grow(p->b, &out->ops, &out->op_room, out->op_count + length, sizeof *out->ops))
        return false;
    memcpy(out->ops + out->op_count, p->code + from, (size_t)length * sizeof *p->code);
    out->starts[rule] = out->op_count;
    out->op_count += length;
    p->count = from;
    return true;
}

/* A rule without code; -1: memory is short. */
static int gbnf_new_rule(gbnf *p, size_t at, size_t bytes) {
    grammar_program *out = p->out;
    int rule = out->rule_count;
    if (!grammar_grow(p->b, &out->starts, &out->rule_room, rule + 1, sizeof *out->starts) ||
        !grammar_grow(p->b, &p->names, &p->name_room, rule + 1, sizeof *p->names))
        return -1;
    out->starts[rule] = -1;
    p->names[rule].at = at, p->names[rule].bytes = bytes;
    return out->rule_count++;
}

/* The rule of a name. */
static int gbnf_find_rule(gbnf *p, const char *name, size_t bytes) {
    int rule = 0;
    while (rule < p->out->rule_count && (p->names[rule].bytes != bytes ||
                                         memcmp(p->text + p->names[rule].at, name, bytes)))
        rule++;
    return rule;
}

/* ---- repetitions ----------------------------------------------------------------------------- */

/* Code [from, end) as one call of a rule of its own. */
static bool gbnf_outline(gbnf *p, int from) {
    int rule = gbnf_new_rule(p, 0, 0);
    return rule >= 0 && gbnf_end_rule(p, rule, from) &&
           gbnf_put(p, p->count, GRAMMAR_CALL, 0, 0, rule);
}

/* Puts the code that was copied at the end. */
static bool gbnf_paste(gbnf *p, int length) {
    if (!gbnf_reserve(p, length)) return false;
    if (length) memcpy(p->code + p->count, p->copy, (size_t)length * sizeof *p->code);
    p->count += length;
    return true;
}

/* Code [from, end) `least` to `most` times; most -1: any number. */
static bool gbnf_repeat(gbnf *p, int from, int least, int most) {
    int length = p->count - from, choices = most < 0 ? 1 : most - least, end;
    if (length > GBNF_COPY && least + choices > 1) {
        if (!gbnf_outline(p, from)) return false;
        length = 1;
    }
    if (!grammar_grow(p->b, &p->copy, &p->copy_room, length, sizeof *p->copy)) return false;
    if (length) memcpy(p->copy, p->code + from, (size_t)length * sizeof *p->copy);
    end = from + least * length + choices * (length + 1) + (most < 0);
    p->count = from;
    for (int i = 0; i < least; i++)
        if (!gbnf_paste(p, length)) return false;
    for (int i = 0; i < choices; i++)
        if (!gbnf_put(p, p->count, GRAMMAR_SPLIT, 0, 0, end - p->count) || !gbnf_paste(p, length))
            return false;
    return most >= 0 || gbnf_put(p, p->count, GRAMMAR_JUMP, 0, 0, -length - 1);
}

/* ---- characters ------------------------------------------------------------------------------ */

enum { GBNF_LAST_POINT = 0x10FFFF };

/* The bytes of a character; how many. */
static int gbnf_bytes(uint32_t point, uint8_t out[4]) {
    static const uint8_t leads[] = {0, 0, 0xC0, 0xE0, 0xF0};
    int length = point < 0x80 ? 1 : point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
    for (int i = length - 1; i > 0; i--, point >>= 6) out[i] = (uint8_t)(0x80 | (point & 63));
    out[0] = (uint8_t)(leads[length] | point);
    return length;
}

static int gbnf_hex(int c) {
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                                               : -1;
}

static int gbnf_peek(const gbnf *p) {
    return p->at < p->bytes ? (unsigned char)p->text[p->at] : -1;
}

/* The digits of \x, \u, \U. */
static bool gbnf_read_hex(gbnf *p, size_t start, int digits, uint32_t *out) {
    *out = 0;
    for (int i = 0; i < digits; i++, p->at++) {
        int digit = gbnf_hex(gbnf_peek(p));
        if (digit < 0) return gbnf_fail(p, start, "%d hexadecimal digits are expected", digits);
        *out = *out << 4 | (uint32_t)digit;
    }
    if (*out > GBNF_LAST_POINT || (*out >= 0xD800 && *out < 0xE000))
        return gbnf_fail(p, start, "U+%04X is no character", *out);
    return true;
}

/* A character of a string or a class, which `end` ends. */
static bool gbnf_read_point(gbnf *p, const char *what, size_t opened, int end, uint32_t *out) {
    static const char names[] = "tnr", points[] = "\t\n\r";
    size_t start = p->at;
    int c = gbnf_peek(p), length = c < 0 ? 0 : base_utf8_length((unsigned)c);
    const char *name;
    if (c < 0 || c == '\n') return gbnf_fail(p, opened, "the %s is not closed by %c", what, end);
    if (c != '\\') {
        *out = base_utf8_point(p->text + p->at, (size_t)length);
        return p->at += (size_t)length, true;
    }
    p->at++;
    c = gbnf_peek(p);
    p->at += c >= 0;
    if (c == 'x' || c == 'u' || c == 'U')
        return gbnf_read_hex(p, start, c == 'x' ? 2 : c == 'u' ? 4 : 8, out);
    name = c > 0 ? strchr(names, c) : NULL;
    if (name) *out = (unsigned char)points[name - names];
    else if (c > 0 && strchr("\\\"[]-^/'", c)) *out = (uint32_t)c;
    else return gbnf_fail(p, start, "an unknown escape");
    return true;
}

static bool gbnf_read_string(gbnf *p) {
    size_t opened = p->at++;
    while (gbnf_peek(p) != '"') {
        uint32_t point;
        uint8_t bytes[4];
        int count;
        if (!gbnf_read_point(p, "string", opened, '"', &point)) return false;
        count = gbnf_bytes(point, bytes);
        for (int i = 0; i < count; i++)
            if (!gbnf_put(p, p->count, GRAMMAR_BYTE, bytes[i], bytes[i], 0)) return false;
    }
    return p->at++, true;
}

/* ---- classes --------------------------------------------------------------------------------- */

static bool gbnf_add_range(gbnf *p, uint32_t low, uint32_t high) {
    if (!grammar_grow(p->b, &p->ranges, &p->range_room, p->range_count + 1, sizeof *p->ranges))
        return false;
    p->ranges[p->range_count].low = low;
    p->ranges[p->range_count++].high = high;
    return true;
}

static int gbnf_order(const void *a, const void *b) {
    uint32_t x = ((const gbnf_range *)a)->low, y = ((const gbnf_range *)b)->low;
    return (x > y) - (x < y);
}

/* Ascending, none touching the next; of all characters the others where `negated`. */
static bool gbnf_tidy_ranges(gbnf *p, bool negated) {
    gbnf_range *r = p->ranges;
    int count = 0;
    uint32_t next = 0;
    qsort(r, (size_t)p->range_count, sizeof *r, gbnf_order);
    for (int i = 0; i < p->range_count; i++) {
        if (count && r[i].low <= r[count - 1].high + 1) {
            if (r[i].high > r[count - 1].high) r[count - 1].high = r[i].high;
        } else r[count++] = r[i];
    }
    p->range_count = count;
    if (!negated) return true;
    for (int i = 0; i < count; i++) { /* fewer than were read, or one more */
        gbnf_range here = r[i];
        r[i].low = next, r[i].high = here.low - 1;
        next = here.high + 1;
    }
    if (next <= GBNF_LAST_POINT && !gbnf_add_range(p, next, GBNF_LAST_POINT)) return false;
    if (count && p->ranges[0].high == UINT32_MAX) /* nothing below the first */
        memmove(p->ranges, p->ranges + 1, (size_t)--p->range_count * sizeof *r);
    return true;
}

/* The end of the longest part of [low, high], from low on, whose bytes are ranges each. */
static uint32_t gbnf_part_end(uint32_t low, uint32_t high) {
    static const uint32_t ends[] = {0x7F, 0x7FF, 0xD7FF, 0xDFFF, 0xFFFF};
    for (size_t i = 0; i < BASE_COUNT(ends); i++)
        if (low <= ends[i] && high > ends[i]) high = ends[i];
    if (high < 0x80) return high;
    for (int shift = 6; shift <= 18; shift += 6) {
        uint32_t rest = (1u << shift) - 1;
        if ((low | rest) == (high | rest)) break;
        if (low & rest) return low | rest;
        if ((high & rest) != rest) high = (high & ~rest) - 1;
    }
    return high;
}

/* An alternative of [low, high], whose bytes are ranges each, behind those from `start` on. */
static bool gbnf_put_part(gbnf *p, int start, uint32_t low, uint32_t high) {
    uint8_t first[4], last[4];
    int count = gbnf_bytes(low, first), middle = p->count;
    gbnf_bytes(high, last);
    for (int i = 0; i < count; i++)
        if (!gbnf_put(p, p->count, GRAMMAR_BYTE, first[i], last[i], 0)) return false;
    return middle == start || gbnf_join(p, start, middle);
}

/* One character of the ranges. */
static bool gbnf_put_ranges(gbnf *p) {
    int start = p->count;
    for (int i = 0; i < p->range_count; i++) {
        uint32_t low = p->ranges[i].low, high = p->ranges[i].high, end;
        for (; low <= high; low = end + 1) {
            end = gbnf_part_end(low, high);
            if (low >= 0xD800 && low < 0xE000) continue; /* surrogates */
            if (!gbnf_put_part(p, start, low, end)) return false;
        }
    }
    return true;
}

static bool gbnf_read_class(gbnf *p) {
    size_t opened = p->at++;
    bool negated = gbnf_peek(p) == '^';
    p->at += negated;
    p->range_count = 0;
    while (gbnf_peek(p) != ']') {
        size_t start = p->at;
        uint32_t low, high;
        if (!gbnf_read_point(p, "class", opened, ']', &low)) return false;
        high = low;
        if (gbnf_peek(p) == '-' && p->at + 1 < p->bytes && p->text[p->at + 1] != ']') {
            p->at++;
            if (!gbnf_read_point(p, "class", opened, ']', &high)) return false;
        }
        if (low > high) return gbnf_fail(p, start, "a range whose end comes before its beginning");
        if (!gbnf_add_range(p, low, high)) return false;
    }
    p->at++;
    if (!p->range_count || !gbnf_tidy_ranges(p, negated) || !p->range_count)
        return p->range_count ? false : gbnf_fail(p, opened, "a class of no character");
    opened = (size_t)p->count;
    return gbnf_put_ranges(p) && ((size_t)p->count > opened ||
                                  gbnf_fail(p, p->at - 1, "a class of no character"));
}

static bool gbnf_read_any(gbnf *p) {
    p->at++;
    p->range_count = 0;
    return gbnf_add_range(p, 0, GBNF_LAST_POINT) && gbnf_put_ranges(p);
}

/* ---- rules ----------------------------------------------------------------------------------- */

/* Passes over white space and comments, over the ends of lines where `lines`. */
static void gbnf_skip(gbnf *p, bool lines) {
    for (int c; (c = gbnf_peek(p)) == ' ' || c == '\t' || c == '#' ||
                (lines && (c == '\n' || c == '\r'));) {
        if (c != '#') p->at++;
        else
            while (p->at < p->bytes && p->text[p->at] != '\n' && p->text[p->at] != '\r') p->at++;
    }
}

static bool gbnf_is_word(int c) {
    return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || c == '-' || c == '_';
}

/* The rule named here; -1: it failed. */
static int gbnf_read_name(gbnf *p) {
    size_t start = p->at;
    int rule;
    while (gbnf_is_word(gbnf_peek(p))) p->at++;
    if (p->at == start) return gbnf_fail(p, start, "the name of a rule is expected") - 1;
    rule = gbnf_find_rule(p, p->text + start, p->at - start);
    return rule < p->out->rule_count ? rule : gbnf_new_rule(p, start, p->at - start);
}

static bool gbnf_read_count(gbnf *p, int *out) {
    size_t start = p->at;
    for (*out = 0; gbnf_peek(p) >= '0' && gbnf_peek(p) <= '9'; p->at++) {
        *out = *out * 10 + gbnf_peek(p) - '0';
        if (*out > GBNF_REPEATS)
            return gbnf_fail(p, start, "more than %d repetitions", GBNF_REPEATS);
    }
    if (p->at == start) return gbnf_fail(p, start, "a number of repetitions is expected");
    return true;
}

/* One of * + ? {m} {m,} {m,n} {,n}, of the code from `element` on. */
static bool gbnf_read_repeat(gbnf *p, int element) {
    size_t start = p->at;
    int c = gbnf_peek(p), least = c == '+', most = c == '?' ? 1 : -1;
    if (element < 0) return gbnf_fail(p, start, "'%c' has nothing to repeat", c);
    p->at++;
    if (c != '{') return gbnf_repeat(p, element, least, most);
    gbnf_skip(p, false);
    if (gbnf_peek(p) != ',' && !gbnf_read_count(p, &least)) return false;
    gbnf_skip(p, false);
    if (gbnf_peek(p) != ',') most = least;
    else {
        p->at++;
        gbnf_skip(p, false);
        if (gbnf_peek(p) != '}' && !gbnf_read_count(p, &most)) return false;
        gbnf_skip(p, false);
    }
    if (gbnf_peek(p) != '}') return gbnf_fail(p, start, "the repetition is not closed by }");
    p->at++;
    if (most >= 0 && most < least)
        return gbnf_fail(p, start, "a repetition of at least %d and at most %d", least, most);
    return gbnf_repeat(p, element, least, most);
}

/* The last alternative of the innermost group ends here. */
static bool gbnf_end_part(gbnf *p) {
    gbnf_frame *f = &p->frames[p->depth];
    if (f->parts++ && !gbnf_join(p, f->start, f->part)) return false;
    return f->part = p->count, true;
}

static void gbnf_open_group(gbnf *p) {
    gbnf_frame *f = &p->frames[p->depth];
    f->start = f->part = p->count;
    f->parts = 0;
    f->at = p->at;
}

/* Opens, parts or closes a group: one of ( | ). *element: the code of what was closed. */
static bool gbnf_read_group(gbnf *p, int *element) {
    int c = gbnf_peek(p);
    *element = -1;
    if (c == ')' && !p->depth) return gbnf_fail(p, p->at, "')' without '('");
    if (c == '(' && p->depth + 1 == GBNF_DEPTH)
        return gbnf_fail(p, p->at, "more than %d groups within each other", GBNF_DEPTH - 1);
    if (c == '(') p->depth++, gbnf_open_group(p);
    else if (!gbnf_end_part(p)) return false;
    if (c == ')') *element = p->frames[p->depth--].start;
    p->at++;
    gbnf_skip(p, p->depth || c == '|');
    return true;
}

/* One element of a sequence: *element is where its code begins. */
static bool gbnf_read_element(gbnf *p, int *element) {
    int c = gbnf_peek(p), rule;
    bool read;
    *element = p->count;
    if (c == '"') read = gbnf_read_string(p);
    else if (c == '[') read = gbnf_read_class(p);
    else if (c == '.') read = gbnf_read_any(p);
    else if (gbnf_is_word(c))
        read = (rule = gbnf_read_name(p)) >= 0 && gbnf_put(p, p->count, GRAMMAR_CALL, 0, 0, rule);
    else return gbnf_fail(p, p->at, "this begins no element of a rule");
    return read;
}

/* Whether the rule goes on: behind the ends of lines only with another alternative. */
static bool gbnf_goes_on(gbnf *p) {
    size_t start = p->at;
    int c = gbnf_peek(p);
    if (c >= 0 && c != '\n' && c != '\r') return true;
    gbnf_skip(p, true);
    if (gbnf_peek(p) == '|') return true;
    p->at = start;
    return p->depth > 0 && p->at < p->bytes;
}

/* What stands behind ::= */
static bool gbnf_read_body(gbnf *p, int rule) {
    int element = -1;
    p->depth = p->count = 0;
    gbnf_open_group(p);
    while (gbnf_goes_on(p)) {
        int c = gbnf_peek(p);
        bool read = c == '(' || c == '|' || c == ')'                ? gbnf_read_group(p, &element)
                    : c == '*' || c == '+' || c == '?' || c == '{' ? gbnf_read_repeat(p, element)
                                                                   : gbnf_read_element(p, &element);
        if (!read) return false;
        gbnf_skip(p, p->depth > 0);
    }
    if (p->depth) return gbnf_fail(p, p->frames[p->depth].at, "the group is not closed by ')'");
    return gbnf_end_part(p) && gbnf_end_rule(p, rule, 0);
}

static bool gbnf_read_rule(gbnf *p) {
    size_t start = p->at, end;
    int rule = gbnf_read_name(p);
    if (rule < 0) return false;
    end = p->at;
    gbnf_skip(p, false);
    if (p->bytes - p->at < 3 || memcmp(p->text + p->at, "::=", 3))
        return gbnf_fail(p, p->at, "::= is expected after the name of a rule");
    if (p->out->starts[rule] >= 0)
        return gbnf_fail(p, start, "rule '%.*s' is given a second time", (int)(end - start),
                         p->text + start);
    p->at += 3;
    gbnf_skip(p, true);
    p->names[rule].at = start;
    return gbnf_read_body(p, rule);
}

/* ---- left recursion -------------------------------------------------------------------------- */

/* Of a rule: what it may do before its first byte. */
enum { GBNF_EMPTY = 1 /* end */, GBNF_SAFE = 2 /* never reach itself */ };

/* Looks at all that rule r does before its first byte. Returns whether it can end; *call: a rule
 * that it calls so and that is not safe, or -1. facts: of all rules, as far as they are known. */
static bool gbnf_explore(gbnf *p, int r, const uint8_t *facts, int stamp, int *call) {
    const grammar_program *g = p->out;
    int count = 0;
    bool empty = false;
    *call = -1;
    p->work[count++] = g->starts[r];
    while (count) {
        int at = p->work[--count];
        const grammar_op *op = &g->ops[at];
        if (p->marks[at] == stamp) continue;
        p->marks[at] = stamp;
        if (op->kind == GRAMMAR_RETURN) empty = true;
        if (op->kind == GRAMMAR_CALL && !(facts[op->to] & GBNF_SAFE)) *call = op->to;
        if (op->kind == GRAMMAR_SPLIT || op->kind == GRAMMAR_JUMP) p->work[count++] = at + op->to;
        if (op->kind == GRAMMAR_SPLIT ||
            (op->kind == GRAMMAR_CALL && (facts[op->to] & GBNF_EMPTY)))
            p->work[count++] = at + 1;
    }
    return empty;
}

/* Learns one fact about all rules that have it. */
static void gbnf_learn(gbnf *p, uint8_t *facts, int fact, int *stamp) {
    bool more = true;
    while (more) {
        more = false;
        for (int r = p->out->rule_count - 1; r >= 0; r--) {
            int call;
            bool empty;
            if (facts[r] & fact) continue;
            empty = gbnf_explore(p, r, facts, ++*stamp, &call);
            if (fact == GBNF_EMPTY ? !empty : call >= 0) continue;
            facts[r] |= (uint8_t)fact;
            more = true;
        }
    }
}

/* A rule that has a name and is not safe: the next on the way from r that comes back to itself. */
static bool gbnf_name_recursion(gbnf *p, const uint8_t *facts, int r, int *stamp) {
    int call = r;
    for (int i = 0; i < 2 * p->out->rule_count || !p->names[r].bytes; i++) {
        gbnf_explore(p, r, facts, ++*stamp, &call);
        r = call;
    }
    return gbnf_fail(p, p->names[r].at, "rule '%.*s' begins with itself: left recursion",
                     (int)p->names[r].bytes, p->text + p->names[r].at);
}

static bool gbnf_check_recursion(gbnf *p, uint8_t *facts) {
    int stamp = 0;
    gbnf_learn(p, facts, GBNF_EMPTY, &stamp);
    gbnf_learn(p, facts, GBNF_SAFE, &stamp);
    for (int r = 0; r < p->out->rule_count; r++)
        if (!(facts[r] & GBNF_SAFE)) return gbnf_name_recursion(p, facts, r, &stamp);
    return true;
}

/* Every rule is there, root is one, and none begins with itself. */
static bool gbnf_check(gbnf *p) {
    const grammar_program *g = p->out;
    uint8_t *facts;
    bool well;
    for (int r = 0; r < g->rule_count; r++)
        if (g->starts[r] < 0)
            return gbnf_fail(p, p->names[r].at, "rule '%.*s' is not given anywhere",
                             (int)p->names[r].bytes, p->text + p->names[r].at);
    p->out->root = gbnf_find_rule(p, "root", 4);
    if (g->root == g->rule_count) return gbnf_fail(p, 0, "there is no rule 'root'");
    if (!grammar_grow(p->b, &p->work, &p->work_room, 2 * g->op_count + 2, sizeof *p->work) ||
        !grammar_grow(p->b, &p->marks, &p->mark_room, g->op_count, sizeof *p->marks))
        return false;
    facts = (uint8_t *)base_new(p->b, (size_t)g->rule_count, 1);
    if (!facts) return base_no_memory(p->b, "a grammar", (size_t)g->rule_count), false;
    well = gbnf_check_recursion(p, facts);
    base_delete(p->b, facts, (size_t)g->rule_count, 1);
    return well;
}

static bool gbnf_read(gbnf *p) {
    size_t fault = base_utf8_fault(p->text, p->bytes);
    if (fault < p->bytes) return gbnf_fail(p, fault, "this is not UTF-8");
    for (gbnf_skip(p, true); p->at < p->bytes; gbnf_skip(p, true))
        if (!gbnf_read_rule(p)) return false;
    return gbnf_check(p);
}

/* The program of a grammar's text; else INVALID_ARGUMENT with line and column. */
static cairn_status gbnf_compile(base *b, const char *text, size_t bytes, grammar_program *out) {
    gbnf p;
    bool read;
    memset(&p, 0, sizeof p);
    memset(out, 0, sizeof *out);
    p.b = b, p.text = text, p.bytes = bytes, p.out = out;
    read = gbnf_read(&p);
    base_delete(b, p.code, (size_t)p.room, sizeof *p.code);
    base_delete(b, p.copy, (size_t)p.copy_room, sizeof *p.copy);
    base_delete(b, p.names, (size_t)p.name_room, sizeof *p.names);
    base_delete(b, p.ranges, (size_t)p.range_room, sizeof *p.ranges);
    base_delete(b, p.work, (size_t)p.work_room, sizeof *p.work);
    base_delete(b, p.marks, (size_t)p.mark_room, sizeof *p.marks);
    return read ? CAIRN_OK : b->status;
}
