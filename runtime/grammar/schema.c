/* schema: a JSON Schema to a grammar of the texts that fit it.
 *
 * The schema is read into nodes, flat and without recursion. Each schema in it becomes a rule s<node>;
 * those that a rule names wait on a list, so that $ref may lead anywhere. Objects keep the order of
 * `properties`, white space is at most a blank or a new line with indentation. What is not supported
 * is an error with the keyword and its place. */

enum { SCHEMA_DEPTH = 64, SCHEMA_NODES = 1 << 16, SCHEMA_NONE = -1 };
static const int64_t schema_most = 999999999999999999; /* of integers without a maximum */

typedef enum schema_kind { SCHEMA_OBJECT, SCHEMA_ARRAY, SCHEMA_STRING, SCHEMA_NUMBER, SCHEMA_TRUE,
                           SCHEMA_FALSE, SCHEMA_NULL } schema_kind;

/* A value: text [at, end). A member's key is text [key, key_end), its quotes left out; key_end 0: none.
 * first: of an object's or array's, next: of the one that holds it. */
typedef struct schema_node {
    schema_kind kind;
    int parent, first, last, next, index; /* index: among its siblings */
    uint32_t at, end, key, key_end;
    bool listed; /* its rule is written or waits */
} schema_node;

typedef struct schema {
    base *b;
    const char *text;
    size_t bytes, at;
    schema_node *nodes;
    int32_t *waiting;
    int count, room, waiting_count, waiting_room;
    base_text *out;
    bool failed;
} schema;

static const char schema_rules[] =
    "w ::= (\" \" | \"\\n\" [ \\t]{0,20})?\n"
    "hex ::= [0-9a-fA-F]\n"
    "char ::= [^\"\\\\\\x00-\\x1f\\x7f] | \"\\\\\" ([\"\\\\/bfnrt] | "
    "\"u\" ([0-9a-cA-CefEF] hex | [dD] [0-7]) hex hex)\n"
    "string ::= \"\\\"\" char* \"\\\"\"\n"
    "integer ::= \"-\"? (\"0\" | [1-9] [0-9]{0,17})\n"
    "number ::= \"-\"? (\"0\" | [1-9] [0-9]{0,17}) (\".\" [0-9]{1,17})? ([eE] [-+]? [0-9]{1,2})?\n"
    "boolean ::= \"true\" | \"false\"\n"
    "null ::= \"null\"\n"
    "member ::= string w \":\" w value\n"
    "key ::= [^\"\\\\\\x00-\\x1f\\x7f]\n"
    "object ::= \"{\" w (member (w \",\" w member)* w)? \"}\"\n"
    "array ::= \"[\" w (value (w \",\" w value)* w)? \"]\"\n"
    "value ::= object | array | string | number | boolean | null\n";

/* ---- errors ---------------------------------------------------------------------------------- */

static bool schema_wrong(schema *x, size_t at, const char *what) {
    int line, column;
    gbnf_where(x->text, at, &line, &column);
    base_fail(x->b, CAIRN_INVALID_ARGUMENT, "json_schema: line %d, column %d: %s", line, column, what);
    return false;
}

/* The place of a node as a JSON pointer, cut at its front where it is long. */
static void schema_place(const schema *x, int n, char *out, size_t bytes) {
    size_t at = bytes - 1;
    out[at] = '\0';
    for (; n > 0; n = x->nodes[n].parent) {
        const schema_node *node = &x->nodes[n];
        char number[16];
        const char *key = x->text + node->key;
        size_t length = node->key_end - node->key;
        if (!node->key_end) {
            length = (size_t)snprintf(number, sizeof number, "%d", node->index);
            key = number;
        }
        if (length + 2 > at) break;
        memcpy(out + (at -= length), key, length);
        out[--at] = '/';
    }
    out[--at] = '#';
    memmove(out, out + at, bytes - at);
}

/* What stands at node n, a keyword of the schema that holds it, is refused. */
static bool schema_refuse(schema *x, int n, cairn_status status, const char *why) {
    char place[200];
    const schema_node *node = &x->nodes[n];
    schema_place(x, node->parent > 0 ? node->parent : 0, place, sizeof place);
    base_fail(x->b, status, "json_schema: '%.*s' at %s: %s",
              node->key_end ? (int)(node->key_end - node->key) : 6,
              node->key_end ? x->text + node->key : "schema", place, why);
    return false;
}

static bool schema_unsupported(schema *x, int n) {
    return schema_refuse(x, n, CAIRN_UNSUPPORTED, "this is not supported");
}

/* ---- reading JSON ---------------------------------------------------------------------------- */

static void schema_skip(schema *x) {
    while (x->at < x->bytes && strchr(" \t\r\n", x->text[x->at]) && x->text[x->at]) x->at++;
}

static int schema_peek(const schema *x) {
    return x->at < x->bytes ? (unsigned char)x->text[x->at] : -1;
}

static bool schema_read_string(schema *x) {
    size_t start = x->at++;
    for (int c; (c = schema_peek(x)) != '"'; x->at++) {
        if (c < 0x20) return schema_wrong(x, start, "a string is not closed");
        if (c != '\\') continue;
        c = ++x->at < x->bytes ? x->text[x->at] : 0;
        if (!c || !strchr("\"\\/bfnrtu", c)) return schema_wrong(x, x->at, "an unknown escape");
        for (int i = 0; c == 'u' && i < 4; i++) {
            x->at++;
            if (gbnf_hex(schema_peek(x)) < 0) return schema_wrong(x, x->at, "\\u needs four digits");
        }
    }
    return x->at++, true;
}

static bool schema_digits(schema *x) {
    size_t start = x->at;
    while (schema_peek(x) >= '0' && schema_peek(x) <= '9') x->at++;
    return x->at > start || schema_wrong(x, x->at, "a digit is expected");
}

static bool schema_read_number(schema *x) {
    x->at += schema_peek(x) == '-';
    if (schema_peek(x) == '0') x->at++;
    else if (!schema_digits(x)) return false;
    if (schema_peek(x) == '.' && (x->at++, !schema_digits(x))) return false;
    if (schema_peek(x) != 'e' && schema_peek(x) != 'E') return true;
    x->at++;
    x->at += schema_peek(x) == '-' || schema_peek(x) == '+';
    return schema_digits(x);
}

static bool schema_read_word(schema *x, schema_node *node) {
    static const char *const words[] = {"true", "false", "null"};
    for (int i = 0; i < 3; i++) {
        size_t length = strlen(words[i]);
        if (x->bytes - x->at < length || memcmp(x->text + x->at, words[i], length)) continue;
        node->kind = (schema_kind)(SCHEMA_TRUE + i);
        return x->at += length, true;
    }
    return schema_wrong(x, x->at, "a JSON value is expected");
}

/* A value's node in `parent`; of a list or an object its beginning. */
static int schema_read_value(schema *x, int parent) {
    schema_node *node;
    int n = x->count, c;
    bool read = true;
    if (n == SCHEMA_NODES) return schema_wrong(x, x->at, "too many values") - 1;
    if (!grammar_grow(x->b, &x->nodes, &x->room, n + 1, sizeof *x->nodes)) return -1;
    node = &x->nodes[n];
    memset(node, 0, sizeof *node);
    node->parent = parent, node->first = node->last = node->next = SCHEMA_NONE;
    if (parent >= 0 && x->nodes[parent].kind == SCHEMA_OBJECT) {
        if (schema_peek(x) != '"') return schema_wrong(x, x->at, "a key is expected") - 1;
        node->key = (uint32_t)x->at + 1;
        if (!schema_read_string(x)) return -1;
        node->key_end = (uint32_t)x->at - 1;
        schema_skip(x);
        if (schema_peek(x) != ':') return schema_wrong(x, x->at, "':' is expected") - 1;
        x->at++;
        schema_skip(x);
    }
    node->at = (uint32_t)x->at;
    c = schema_peek(x);
    if (c == '{' || c == '[') node->kind = c == '{' ? SCHEMA_OBJECT : SCHEMA_ARRAY, x->at++;
    else if (c == '"') node->kind = SCHEMA_STRING, read = schema_read_string(x);
    else if (c == '-' || (c >= '0' && c <= '9')) node->kind = SCHEMA_NUMBER, read = schema_read_number(x);
    else read = schema_read_word(x, node);
    if (!read) return -1;
    node->end = (uint32_t)x->at;
    x->count++;
    if (parent < 0) return n;
    if (x->nodes[parent].first < 0) x->nodes[parent].first = n;
    else {
        node->index = x->nodes[x->nodes[parent].last].index + 1;
        x->nodes[x->nodes[parent].last].next = n;
    }
    x->nodes[parent].last = n;
    return n;
}

/* The whole text; open: the list or object that the next value is of. */
static bool schema_read(schema *x) {
    int open, depth = 0;
    schema_skip(x);
    open = schema_read_value(x, SCHEMA_NONE);
    if (open < 0) return false;
    if (x->nodes[0].kind > SCHEMA_ARRAY) open = SCHEMA_NONE;
    while (open >= 0) {
        schema_node *node = &x->nodes[open];
        int close = node->kind == SCHEMA_OBJECT ? '}' : ']', n;
        schema_skip(x);
        if (schema_peek(x) == close) {
            x->at++;
            node->end = (uint32_t)x->at;
            open = node->parent;
            depth--;
            continue;
        }
        if (node->first >= 0 && schema_peek(x) != ',')
            return schema_wrong(x, x->at, close == '}' ? "',' or '}' is expected" : "',' or ']' is expected");
        if (node->first >= 0) x->at++, schema_skip(x);
        if ((n = schema_read_value(x, open)) < 0) return false;
        if (x->nodes[n].kind > SCHEMA_ARRAY) continue;
        if (++depth == SCHEMA_DEPTH) return schema_wrong(x, x->nodes[n].at, "values lie too deep");
        open = n;
    }
    schema_skip(x);
    return x->at == x->bytes || schema_wrong(x, x->at, "text behind the schema");
}

/* ---- looking into it ------------------------------------------------------------------------- */

static bool schema_is(const schema *x, uint32_t at, uint32_t end, const char *word) {
    return end - at == strlen(word) && !memcmp(x->text + at, word, end - at);
}

/* A member of an object by its key as it is written; SCHEMA_NONE: there is none. */
static int schema_find(const schema *x, int n, const char *key, size_t bytes) {
    int m = n < 0 || x->nodes[n].kind != SCHEMA_OBJECT ? SCHEMA_NONE : x->nodes[n].first;
    while (m >= 0 && (x->nodes[m].key_end - x->nodes[m].key != bytes ||
                      memcmp(x->text + x->nodes[m].key, key, bytes)))
        m = x->nodes[m].next;
    return m;
}

static int schema_first(const schema *x, int n) { return n < 0 ? SCHEMA_NONE : x->nodes[n].first; }

static int schema_get(const schema *x, int n, const char *key) {
    return schema_find(x, n, key, strlen(key));
}

static bool schema_is_list(const schema *x, int n, bool filled) {
    return n >= 0 && x->nodes[n].kind == SCHEMA_ARRAY && (!filled || x->nodes[n].first >= 0);
}

/* A string's text, its quotes left out. */
static bool schema_says(const schema *x, int n, const char *word) {
    return n >= 0 && x->nodes[n].kind == SCHEMA_STRING &&
           schema_is(x, x->nodes[n].at + 1, x->nodes[n].end - 1, word);
}

/* A whole number of a keyword, at most `most` either way; `none` where it is not given. */
static bool schema_whole(schema *x, int n, const char *key, int64_t most, int64_t none, int64_t *out) {
    double value;
    int m = schema_get(x, n, key);
    const schema_node *node = &x->nodes[m < 0 ? 0 : m];
    *out = none;
    if (m < 0) return true;
    value = node->kind == SCHEMA_NUMBER ? jdoc_decimal(x->text + node->at, x->text + node->end) : NAN;
    if (!(value >= -(double)most && value <= (double)most) || value != floor(value))
        return schema_refuse(x, m, CAIRN_UNSUPPORTED, "a whole number that is not too large is expected");
    return *out = (int64_t)value, true;
}

/* ---- writing the grammar --------------------------------------------------------------------- */

BASE_PRINTF(2, 3)
static void schema_write(schema *x, const char *format, ...) {
    char text[160];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (!x->failed && !base_text_add(x->b, x->out, text, strlen(text)))
        x->failed = true, base_no_memory(x->b, "a grammar", x->out->size);
}

/* Text as it is, as a string of the grammar. */
static void schema_quote(schema *x, uint32_t at, uint32_t end) {
    for (; at < end; at++) {
        unsigned char c = (unsigned char)x->text[at];
        if (c < 0x20) schema_write(x, "\\x%02x", c);
        else schema_write(x, c == '"' || c == '\\' ? "\\%c" : "%c", c);
    }
}

/* The rule of a schema by its name; it will be written. */
static bool schema_name(schema *x, int n) {
    schema_write(x, "s%d", n);
    if (x->nodes[n].listed) return !x->failed;
    x->nodes[n].listed = true;
    if (!grammar_grow(x->b, &x->waiting, &x->waiting_room, x->waiting_count + 1, sizeof *x->waiting))
        return false;
    x->waiting[x->waiting_count++] = n;
    return !x->failed;
}

/* ---- integers -------------------------------------------------------------------------------- */

/* Whole numbers [low, high], 0 <= low <= high: alternatives of digits that are ranges each. */
static void schema_digit_ranges(schema *x, int64_t low, int64_t high, bool first) {
    while (low <= high) {
        int64_t block = 1;
        int zeros = 0, digit, last;
        while (low && low % (block * 10) == 0 && block * 10 - 1 <= high - low) block *= 10, zeros++;
        digit = last = (int)(low / block % 10);
        while (low && last < 9 && low + (last - digit + 2) * block - 1 <= high) last++;
        if (!first) schema_write(x, " | ");
        first = false;
        if (low / block >= 10) schema_write(x, "\"%lld\" ", (long long)(low / block / 10));
        schema_write(x, "[%d-%d] [0-9]{%d}", digit, last, zeros);
        low += (last - digit + 1) * block;
    }
}

static bool schema_put_integers(schema *x, int n) {
    int64_t low, high, above, below;
    if (!schema_whole(x, n, "minimum", schema_most, -schema_most, &low) ||
        !schema_whole(x, n, "maximum", schema_most, schema_most, &high) ||
        !schema_whole(x, n, "exclusiveMinimum", schema_most - 1, -schema_most - 1, &above) ||
        !schema_whole(x, n, "exclusiveMaximum", schema_most - 1, schema_most + 1, &below))
        return false;
    if (above >= low) low = above + 1;
    if (below <= high) high = below - 1;
    if (low > high)
        return schema_refuse(x, x->nodes[n].first, CAIRN_INVALID_ARGUMENT, "no integer fits the schema");
    if (low == -schema_most && high == schema_most) return schema_write(x, "integer"), true;
    schema_write(x, "(");
    if (high >= 0) schema_digit_ranges(x, low < 0 ? 0 : low, high, true);
    if (low < 0) {
        schema_write(x, high >= 0 ? " | \"-\" (" : "\"-\" (");
        schema_digit_ranges(x, high < 0 ? -high : 1, -low, true);
        schema_write(x, ")");
    }
    schema_write(x, ")");
    return true;
}

/* ---- strings and arrays ---------------------------------------------------------------------- */

enum { SCHEMA_REPEATS = GBNF_REPEATS };

/* Two keywords' numbers, least and most (-1: any), of 0 or more. */
static bool schema_bounds(schema *x, int n, const char *least_key, const char *most_key,
                          int64_t *least, int64_t *most) {
    if (!schema_whole(x, n, least_key, SCHEMA_REPEATS, 0, least) ||
        !schema_whole(x, n, most_key, SCHEMA_REPEATS, -1, most))
        return false;
    if (*least >= 0 && (*most >= *least || schema_get(x, n, most_key) < 0)) return true;
    return schema_refuse(x, schema_get(x, n, *least > 0 ? least_key : most_key),
                         CAIRN_INVALID_ARGUMENT, "no length fits the schema");
}

static void schema_write_count(schema *x, int64_t least, int64_t most) {
    if (most < 0) schema_write(x, "{%d,}", (int)least);
    else schema_write(x, "{%d,%d}", (int)least, (int)most);
}

static bool schema_put_string(schema *x, int n) {
    int64_t least, most;
    if (!schema_bounds(x, n, "minLength", "maxLength", &least, &most)) return false;
    schema_write(x, "\"\\\"\" char");
    schema_write_count(x, least, most);
    schema_write(x, " \"\\\"\"");
    return true;
}

/* The schema of an array's elements behind the first ones, or SCHEMA_NONE: any value. */
static bool schema_write_item(schema *x, int item) {
    if (item >= 0 && x->nodes[item].kind != SCHEMA_TRUE) return schema_name(x, item);
    return schema_write(x, "value"), true;
}

/* Elements from the `at`-th on, `element` of prefixItems or SCHEMA_NONE, each behind a comma but the
 * first; nested, so that each may be the last once there are enough. */
static bool schema_put_elements(schema *x, int element, int items, int64_t least, int64_t most) {
    int at = 0, open = 0;
    bool none = items >= 0 && x->nodes[items].kind == SCHEMA_FALSE;
    for (; element >= 0 && at != most; element = x->nodes[element].next, at++) {
        if (at >= least) schema_write(x, "("), open++;
        schema_write(x, at ? "w \",\" w " : "");
        if (!schema_write_item(x, element)) return false;
        schema_write(x, " ");
    }
    if (at != most && !none) {
        int64_t left = most < 0 ? -1 : most - at, first = least > at ? least - at : 0;
        if (!at) {
            if (!least) schema_write(x, "("), open++;
            if (!schema_write_item(x, items)) return false;
            schema_write(x, " ");
            left -= left > 0, first -= first > 0;
        }
        schema_write(x, "(w \",\" w ");
        if (!schema_write_item(x, items)) return false;
        schema_write(x, ")");
        schema_write_count(x, first, left);
    }
    while (open--) schema_write(x, ")?");
    return true;
}

static bool schema_put_array(schema *x, int n) {
    int items = schema_get(x, n, "items"), prefix = schema_get(x, n, "prefixItems"), count;
    int64_t least, most;
    if (!schema_bounds(x, n, "minItems", "maxItems", &least, &most)) return false;
    if (prefix >= 0 && !schema_is_list(x, prefix, true))
        return schema_refuse(x, prefix, CAIRN_INVALID_ARGUMENT, "a list of schemas is expected");
    count = prefix < 0 ? 0 : x->nodes[x->nodes[prefix].last].index + 1;
    if (items >= 0 && x->nodes[items].kind == SCHEMA_FALSE && least > count)
        return schema_refuse(x, items, CAIRN_INVALID_ARGUMENT, "no length fits the schema");
    schema_write(x, "\"[\" w (");
    if (!schema_put_elements(x, schema_first(x, prefix), items, least, most))
        return false;
    schema_write(x, " w) \"]\"");
    return true;
}

/* ---- objects --------------------------------------------------------------------------------- */

/* A property: its key as it is written, and its value. */
static bool schema_put_property(schema *x, int property) {
    schema_write(x, "\"\\\"");
    schema_quote(x, x->nodes[property].key, x->nodes[property].key_end);
    schema_write(x, "\\\"\" w \":\" w ");
    return schema_write_item(x, property);
}

static bool schema_is_required(const schema *x, int required, int property) {
    const schema_node *p = &x->nodes[property];
    int r = schema_first(x, required);
    for (; r >= 0; r = x->nodes[r].next) {
        const schema_node *node = &x->nodes[r];
        if (node->end - node->at - 2 == p->key_end - p->key &&
            !memcmp(x->text + node->at + 1, x->text + p->key, p->key_end - p->key))
            return true;
    }
    return false;
}

static bool schema_check_required(schema *x, int required, int properties) {
    int r = schema_first(x, required);
    if (required >= 0 && !schema_is_list(x, required, false))
        return schema_refuse(x, required, CAIRN_INVALID_ARGUMENT, "a list of names is expected");
    for (; r >= 0; r = x->nodes[r].next) {
        const schema_node *node = &x->nodes[r];
        if (node->kind != SCHEMA_STRING)
            return schema_refuse(x, required, CAIRN_INVALID_ARGUMENT, "a list of names is expected");
        if (schema_find(x, properties, x->text + node->at + 1, node->end - node->at - 2) < 0)
            return schema_refuse(x, required, CAIRN_UNSUPPORTED, "a name that is no property's");
    }
    return true;
}

/* Keys that are none of the properties', without escapes: rule k<n>_<p>_<l> is what may follow the first
 * l bytes of property p's key. Each beginning stands once, at the first property that has it. */
static void schema_put_other_keys(schema *x, int n, int properties);

static bool schema_put_object(schema *x, int n) {
    int properties = schema_get(x, n, "properties"), required = schema_get(x, n, "required");
    int more = schema_get(x, n, "additionalProperties"), p;
    bool others = more >= 0 ? x->nodes[more].kind != SCHEMA_FALSE : properties < 0;
    if (properties >= 0 && x->nodes[properties].kind != SCHEMA_OBJECT)
        return schema_refuse(x, properties, CAIRN_INVALID_ARGUMENT, "an object is expected");
    if (!schema_check_required(x, required, properties)) return false;
    for (p = schema_first(x, properties); p >= 0 && others; p = x->nodes[p].next)
        if (memchr(x->text + x->nodes[p].key, '\\', x->nodes[p].key_end - x->nodes[p].key))
            return schema_unsupported(x, p); /* a key that could be written in other ways */
    p = schema_first(x, properties);
    /* what may come first: each property up to the first that must come, and then what follows it */
    schema_write(x, "\"{\" w (");
    for (; p >= 0; p = x->nodes[p].next) {
        if (!schema_put_property(x, p)) return false;
        schema_write(x, " r%d_%d", n, x->nodes[p].index + 1);
        if (schema_is_required(x, required, p)) break;
        schema_write(x, " | ");
    }
    if (p < 0 && others) schema_write(x, "o%d r%d_e | ", n, n);
    schema_write(x, p < 0 ? "\"\") w \"}\"\n" : ") w \"}\"\n");
    for (p = schema_first(x, properties); p >= 0; p = x->nodes[p].next) {
        schema_write(x, "r%d_%d ::= (w \",\" w ", n, x->nodes[p].index);
        if (!schema_put_property(x, p)) return false;
        schema_write(x, schema_is_required(x, required, p) ? ") " : ")? ");
        schema_write(x, x->nodes[p].next < 0 ? "r%d_e\n" : "r%d_%d\n", n, x->nodes[p].index + 1);
        if (x->nodes[p].next < 0) schema_write(x, "r%d_%d ::= r%d_e\n", n, x->nodes[p].index + 1, n);
    }
    if (!others) return schema_write(x, "r%d_e ::= \"\"", n), true;
    schema_write(x, "r%d_e ::= (w \",\" w o%d)*\n", n, n);
    schema_put_other_keys(x, n, properties);
    schema_write(x, "o%d ::= k%d w \":\" w ", n, n);
    return schema_write_item(x, more);
}

/* Whether properties p and q begin with the same `length` bytes. */
static bool schema_begins_alike(const schema *x, int p, int q, uint32_t length) {
    const schema_node *a = &x->nodes[p], *b = &x->nodes[q];
    return b->key_end - b->key >= length && !memcmp(x->text + a->key, x->text + b->key, length);
}

/* The rule of what may follow `length` bytes of p's key. */
static void schema_put_beginning(schema *x, int n, int properties, int p, uint32_t length) {
    int q;
    bool whole = false;
    for (q = x->nodes[properties].first; !schema_begins_alike(x, p, q, length); q = x->nodes[q].next) {}
    if (q != p) return;
    schema_write(x, "k%d_%d_%u ::= [^\"\\\\\\x00-\\x1f\\x7f", n, p, length);
    for (q = p; q >= 0; q = x->nodes[q].next) {
        const schema_node *key = &x->nodes[q];
        uint32_t at = key->key + length;
        if (!schema_begins_alike(x, p, q, length)) continue;
        if (at == key->key_end) whole = true;
        else schema_write(x, "\\U%08X", base_utf8_point(x->text + at, (size_t)base_utf8_length(
                                            (unsigned char)x->text[at])));
    }
    schema_write(x, "] key*");
    for (q = p; q >= 0; q = x->nodes[q].next) {
        const schema_node *key = &x->nodes[q];
        uint32_t at = key->key + length, next;
        int first;
        if (!schema_begins_alike(x, p, q, length) || at == key->key_end) continue;
        next = length + (uint32_t)base_utf8_length((unsigned char)x->text[at]);
        for (first = p; !schema_begins_alike(x, q, first, next); first = x->nodes[first].next) {}
        if (first != q) continue;
        schema_write(x, " | \"");
        schema_quote(x, at, key->key + next);
        schema_write(x, "\" k%d_%d_%u", n, q, next);
    }
    schema_write(x, whole ? "\n" : " | \"\"\n");
}

static void schema_put_other_keys(schema *x, int n, int properties) {
    int p = schema_first(x, properties);
    if (p < 0) {
        schema_write(x, "k%d ::= string\n", n);
        return;
    }
    schema_write(x, "k%d ::= \"\\\"\" k%d_%d_0 \"\\\"\"\n", n, n, p);
    for (; p >= 0; p = x->nodes[p].next) {
        uint32_t length = 0, bytes = x->nodes[p].key_end - x->nodes[p].key;
        schema_put_beginning(x, n, properties, p, 0);
        while (length < bytes) {
            length += (uint32_t)base_utf8_length((unsigned char)x->text[x->nodes[p].key + length]);
            schema_put_beginning(x, n, properties, p, length);
        }
    }
}

/* ---- schemas --------------------------------------------------------------------------------- */

typedef struct schema_type { const char *name, *rule, *keywords; bool (*body)(schema *x, int n); }
    schema_type;

enum { SCHEMA_INTEGERS = 3 /* of schema_types; numbers follow */ };
/* What each type is written by; the keywords that say something of it, each between blanks. */
static const schema_type schema_types[] = {
    {"object", "object", " properties required additionalProperties ", schema_put_object},
    {"array", "array", " items prefixItems minItems maxItems ", schema_put_array},
    {"string", "string", " minLength maxLength ", schema_put_string},
    {"integer", "integer", " minimum maximum exclusiveMinimum exclusiveMaximum ", schema_put_integers},
    {"number", "number", " ", NULL},
    {"boolean", "boolean", " ", NULL},
    {"null", "null", " ", NULL},
};

/* Keywords that ask for nothing. */
static const char schema_notes[] = " title description default examples $schema $id $comment $anchor "
                                   "$defs definitions deprecated readOnly writeOnly format ";
/* Each says all by itself, but for a type beside the first two. */
static const char *const schema_alone[] = {"enum", "const", "anyOf", "oneOf", "$ref"};

static bool schema_lists(const char *words, const char *word, size_t bytes) {
    for (const char *at = words; bytes && (at = strchr(at, ' ')) && *++at;)
        if (!strncmp(at, word, bytes) && at[bytes] == ' ') return true;
    return false;
}

/* Whether the keyword at m says something of a type. */
static bool schema_is_of(const schema *x, int m, const schema_type *type) {
    return schema_lists(type->keywords, x->text + x->nodes[m].key,
                        x->nodes[m].key_end - x->nodes[m].key);
}

/* Whether schema n allows the type: its `type` is it, or lists it; where it has none, a keyword of it. */
static bool schema_has_type(const schema *x, int n, const schema_type *type, bool guess) {
    int t = schema_get(x, n, "type"), m = x->nodes[n].first;
    if (t >= 0) m = x->nodes[t].kind == SCHEMA_ARRAY ? x->nodes[t].first : t;
    for (; m >= 0; m = t >= 0 && x->nodes[t].kind != SCHEMA_ARRAY ? SCHEMA_NONE : x->nodes[m].next)
        if (t >= 0 ? schema_says(x, m, type->name) : guess && schema_is_of(x, m, type)) return true;
    return false;
}

/* Each keyword is known, and asks for something of a type that the schema has. */
static bool schema_check(schema *x, int n, int alone) {
    for (int m = x->nodes[n].first; m >= 0; m = x->nodes[m].next) {
        const schema_node *node = &x->nodes[m];
        const char *key = x->text + node->key;
        bool known = m == alone || schema_lists(schema_notes, key, node->key_end - node->key) ||
                     schema_is(x, node->key, node->key_end, "type");
        for (size_t i = 0; i < BASE_COUNT(schema_types) && !known; i++)
            known = alone < 0 && schema_is_of(x, m, &schema_types[i]) &&
                    schema_has_type(x, n, &schema_types[i], true);
        if (known && schema_is_of(x, m, &schema_types[SCHEMA_INTEGERS]) &&
            schema_has_type(x, n, &schema_types[SCHEMA_INTEGERS + 1], false))
            known = false; /* of numbers that are no integers */
        if (!known) return schema_unsupported(x, m);
    }
    return true;
}

/* The value at m fits the `type` of schema n. */
static bool schema_value_fits(const schema *x, int n, int m) {
    static const char *const kinds[] = {"object", "array", "string", "number", "boolean", "boolean",
                                        "null"};
    const schema_node *node = &x->nodes[m];
    if (schema_get(x, n, "type") < 0) return true;
    for (size_t i = 0; i < BASE_COUNT(schema_types); i++) {
        const schema_type *type = &schema_types[i];
        bool whole = node->kind == SCHEMA_NUMBER && !strcmp(type->name, "integer") &&
                     !memchr(x->text + node->at, '.', node->end - node->at) &&
                     !memchr(x->text + node->at, 'e', node->end - node->at);
        if ((whole || !strcmp(kinds[node->kind], type->name)) && schema_has_type(x, n, type, false))
            return true;
    }
    return false;
}

static bool schema_put_values(schema *x, int n, int keyword, int first) {
    int count = 0;
    for (int m = first; m >= 0; m = m == keyword ? SCHEMA_NONE : x->nodes[m].next) {
        if (!schema_value_fits(x, n, m)) continue;
        schema_write(x, count++ ? " | \"" : "\"");
        schema_quote(x, x->nodes[m].at, x->nodes[m].end);
        schema_write(x, "\"");
    }
    return count || schema_refuse(x, keyword, CAIRN_INVALID_ARGUMENT, "no value fits the schema");
}

/* The node that "#/a/b" names; ~0 and ~1 stand for ~ and /. */
static int schema_follow(schema *x, int reference) {
    const schema_node *node = &x->nodes[reference];
    uint32_t at = node->at + 1, end = node->end - 1;
    int n = 0;
    if (node->kind != SCHEMA_STRING || at == end || x->text[at++] != '#') return SCHEMA_NONE;
    while (at < end && n >= 0) {
        char key[256];
        size_t bytes = 0;
        if (x->text[at++] != '/') return SCHEMA_NONE;
        for (; at < end && x->text[at] != '/'; at++) {
            char c = x->text[at];
            if (c == '~' && at + 1 < end) c = x->text[++at] == '1' ? '/' : '~';
            if (bytes == sizeof key) return SCHEMA_NONE;
            key[bytes++] = c;
        }
        if (x->nodes[n].kind == SCHEMA_ARRAY) {
            int index = bytes && bytes < 6 ? (int)strtol(x->text + at - bytes, NULL, 10) : -1;
            for (n = x->nodes[n].first; n >= 0 && x->nodes[n].index != index;) n = x->nodes[n].next;
        } else n = schema_find(x, n, key, bytes);
    }
    return n;
}

/* A schema that one keyword says all of. */
static bool schema_put_alone(schema *x, int n, int m) {
    const schema_node *node = &x->nodes[m];
    bool of_values = schema_is(x, node->key, node->key_end, "enum");
    int target;
    if (schema_is(x, node->key, node->key_end, "const")) return schema_put_values(x, n, m, m);
    if (schema_is(x, node->key, node->key_end, "$ref")) {
        if ((target = schema_follow(x, m)) < 0)
            return schema_refuse(x, m, CAIRN_UNSUPPORTED, "it names nothing in this schema");
        return schema_write_item(x, target);
    }
    if (!schema_is_list(x, m, true))
        return schema_refuse(x, m, CAIRN_INVALID_ARGUMENT, "a list of one or more is expected");
    if (of_values) return schema_put_values(x, n, m, node->first);
    for (target = node->first; target >= 0; target = x->nodes[target].next) {
        if (target != x->nodes[m].first) schema_write(x, " | ");
        if (!schema_write_item(x, target)) return false;
    }
    return true;
}

/* Whether schema n says more of a type than that it is it. */
static bool schema_says_more(const schema *x, int n, const schema_type *type) {
    for (int m = x->nodes[n].first; m >= 0; m = x->nodes[m].next)
        if (schema_is_of(x, m, type)) return true;
    return false;
}

/* The types of schema n as alternatives, each a rule of its own. */
static bool schema_put_types(schema *x, int n) {
    int count = 0, given = schema_get(x, n, "type");
    for (size_t i = 0; i < BASE_COUNT(schema_types); i++)
        if (schema_has_type(x, n, &schema_types[i], true))
            schema_write(x, count++ ? " | t%d_%d" : "t%d_%d", n, (int)i);
    if (!count && given >= 0)
        return schema_refuse(x, given, CAIRN_INVALID_ARGUMENT, "no type of JSON's is named");
    schema_write(x, count ? "\n" : "value\n");
    for (size_t i = 0; i < BASE_COUNT(schema_types); i++) {
        const schema_type *type = &schema_types[i];
        if (!schema_has_type(x, n, type, true)) continue;
        schema_write(x, "t%d_%d ::= ", n, (int)i);
        if (!schema_says_more(x, n, type)) schema_write(x, "%s", type->rule);
        else if (!type->body(x, n)) return false;
        schema_write(x, "\n");
    }
    return true;
}

/* The rule of schema n. */
static bool schema_put(schema *x, int n) {
    int alone = SCHEMA_NONE;
    schema_write(x, "s%d ::= ", n);
    if (x->nodes[n].kind == SCHEMA_TRUE) return schema_write(x, "value\n"), true;
    if (x->nodes[n].kind == SCHEMA_FALSE)
        return schema_refuse(x, n, CAIRN_UNSUPPORTED, "nothing fits it");
    if (x->nodes[n].kind != SCHEMA_OBJECT)
        return schema_refuse(x, n, CAIRN_INVALID_ARGUMENT, "a schema is expected: an object or true");
    for (size_t i = 0; i < BASE_COUNT(schema_alone) && alone < 0; i++)
        alone = schema_get(x, n, schema_alone[i]);
    if (!schema_check(x, n, alone)) return false;
    if (alone < 0) return schema_put_types(x, n);
    if (!schema_put_alone(x, n, alone)) return false;
    return schema_write(x, "\n"), true;
}

static bool schema_put_all(schema *x) {
    size_t fault = base_utf8_fault(x->text, x->bytes);
    if (fault < x->bytes) return schema_wrong(x, fault, "this is not UTF-8");
    if (x->bytes > INT32_MAX) return schema_wrong(x, 0, "it is too long");
    if (!schema_read(x)) return false;
    schema_write(x, "root ::= ");
    if (!schema_name(x, 0)) return false;
    schema_write(x, "\n%s", "");
    if (!x->failed && !base_text_add(x->b, x->out, schema_rules, strlen(schema_rules)))
        return base_no_memory(x->b, "a grammar", x->out->size), false;
    for (int i = 0; i < x->waiting_count; i++)
        if (!schema_put(x, x->waiting[i])) return false;
    return !x->failed;
}

/* Adds the grammar of a schema to *out; else INVALID_ARGUMENT, or UNSUPPORTED, with the keyword and its
 * place. */
static cairn_status schema_compile(base *b, const char *text, size_t bytes, base_text *out) {
    schema x;
    bool well;
    memset(&x, 0, sizeof x);
    x.b = b, x.text = text, x.bytes = bytes, x.out = out;
    well = schema_put_all(&x);
    base_delete(b, x.nodes, (size_t)x.room, sizeof *x.nodes);
    base_delete(b, x.waiting, (size_t)x.waiting_room, sizeof *x.waiting);
    return well ? CAIRN_OK : b->status;
}
