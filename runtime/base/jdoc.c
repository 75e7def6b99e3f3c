/* jdoc: the reader (see jdoc.h). It goes down into itself once for each level of nesting. */

enum { JDOC_DEPTH = 64 };

typedef struct jdoc_reader {
    base *b;
    jdoc *out;
    char *text;
    size_t size, at;
    const char *why; /* the first fault, at `at`; "" for memory that ran out */
} jdoc_reader;

static bool jdoc_fault(jdoc_reader *r, const char *why) {
    if (!r->why) r->why = why;
    return false;
}

static jdoc_node *jdoc_at(const jdoc_reader *r, uint32_t node) {
    return (jdoc_node *)(void *)r->out->held.data + node;
}

/* A node of what begins here; false without memory. */
static bool jdoc_add(jdoc_reader *r, jdoc_kind kind, uint32_t *node) {
    const jdoc_node fresh = {(uint32_t)kind, (uint32_t)r->at, 0, 0, 0};
    *node = (uint32_t)(r->out->held.size / sizeof fresh);
    return base_text_add(r->b, &r->out->held, &fresh, sizeof fresh) || jdoc_fault(r, "");
}

static char jdoc_peek(jdoc_reader *r) {
    while (r->at < r->size && (r->text[r->at] == ' ' || r->text[r->at] == '\t' ||
                               r->text[r->at] == '\n' || r->text[r->at] == '\r')) r->at++;
    return r->at < r->size ? r->text[r->at] : '\0';
}

/* The four digits behind a \u; UINT32_MAX: they are none. */
static uint32_t jdoc_hex(const jdoc_reader *r, size_t at) {
    uint32_t value = 0;
    if (at + 4 > r->size) return UINT32_MAX;
    for (int i = 0; i < 4; i++) {
        char c = r->text[at + (size_t)i], small = (char)(c | 32);
        if (c >= '0' && c <= '9') value = value << 4 | (uint32_t)(c - '0');
        else if (small >= 'a' && small <= 'f') value = value << 4 | (uint32_t)(small - 'a' + 10);
        else return UINT32_MAX;
    }
    return value;
}

static size_t jdoc_put_point(char *out, uint32_t point) {
    static const unsigned char leads[] = {0, 0, 0xc0, 0xe0, 0xf0};
    size_t bytes = point < 0x80 ? 1 : point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
    for (size_t i = bytes; i-- > 1; point >>= 6) out[i] = (char)(0x80 | (point & 63));
    out[0] = (char)(leads[bytes] | point);
    return bytes;
}

/* What stands behind a backslash, to `out`; returns its bytes, 0 after a fault. */
static size_t jdoc_escape(jdoc_reader *r, char *out) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *known = r->at < r->size && r->text[r->at] ? strchr(from, r->text[r->at]) : NULL;
    uint32_t point, low;
    if (known) return *out = to[known - from], r->at++, 1;
    if (r->at >= r->size || r->text[r->at] != 'u') return jdoc_fault(r, "an unknown escape");
    point = jdoc_hex(r, r->at + 1);
    if (point >> 10 == 0x36 && r->at + 7 <= r->size && !memcmp(r->text + r->at + 5, "\\u", 2)) {
        low = jdoc_hex(r, r->at + 7);
        if (low >> 10 != 0x37) return jdoc_fault(r, "half a surrogate pair");
        r->at += 6;
        point = 0x10000 + ((point & 0x3ff) << 10) + (low & 0x3ff);
    }
    if (point == UINT32_MAX || point >> 11 == 0x1b)
        return jdoc_fault(r, "an escape that is no character");
    r->at += 5;
    return jdoc_put_point(out, point);
}

/* No escape is shorter than what it stands for. */
static bool jdoc_string(jdoc_reader *r) {
    uint32_t node;
    char *out;
    r->at++;
    if (!jdoc_add(r, JDOC_STRING, &node)) return false;
    for (out = r->text + r->at; r->at < r->size && r->text[r->at] != '"';) {
        if ((unsigned char)r->text[r->at] < ' ') return jdoc_fault(r, "a control character");
        if (r->text[r->at] != '\\') {
            *out++ = r->text[r->at++];
        } else {
            r->at++;
            out += jdoc_escape(r, out);
            if (r->why) return false;
        }
    }
    if (r->at == r->size) return jdoc_fault(r, "a string without an end");
    r->at++;
    jdoc_at(r, node)->bytes = (uint32_t)(out - r->text) - jdoc_at(r, node)->at;
    return jdoc_at(r, node)->end = node + 1, true;
}

/* Digits from `at` on; false without one. */
static bool jdoc_digits(const jdoc_reader *r, size_t *at) {
    const size_t first = *at;
    while (*at < r->size && r->text[*at] >= '0' && r->text[*at] <= '9') ++*at;
    return *at > first;
}

static bool jdoc_number(jdoc_reader *r) {
    size_t at = r->at + (r->text[r->at] == '-'), first = at;
    bool fine = jdoc_digits(r, &at) && (r->text[first] != '0' || at == first + 1);
    uint32_t node;
    if (fine && at < r->size && r->text[at] == '.') at++, fine = jdoc_digits(r, &at);
    if (fine && at < r->size && (r->text[at] | 32) == 'e') {
        at++;
        at += at < r->size && (r->text[at] == '-' || r->text[at] == '+');
        fine = jdoc_digits(r, &at);
    }
    if (!fine) return jdoc_fault(r, "not a JSON value");
    if (!jdoc_add(r, JDOC_NUMBER, &node)) return false;
    jdoc_at(r, node)->bytes = (uint32_t)(at - r->at);
    r->at = at;
    return jdoc_at(r, node)->end = node + 1, true;
}

static bool jdoc_literal(jdoc_reader *r) {
    static const char *const known[] = {"true", "false", "null"};
    uint32_t node;
    for (size_t i = 0; i < BASE_COUNT(known); i++) {
        size_t bytes = strlen(known[i]);
        if (r->size - r->at < bytes || memcmp(r->text + r->at, known[i], bytes)) continue;
        if (!jdoc_add(r, JDOC_LITERAL, &node)) return false;
        jdoc_at(r, node)->bytes = (uint32_t)bytes;
        r->at += bytes;
        return jdoc_at(r, node)->end = node + 1, true;
    }
    return jdoc_number(r);
}

static bool jdoc_read(jdoc_reader *r, int depth);

/* What stands between brackets. */
static bool jdoc_read_list(jdoc_reader *r, char close, int depth) {
    const jdoc_kind kind = close == '}' ? JDOC_OBJECT : JDOC_ARRAY;
    uint32_t node, count = 0;
    if (!depth) return jdoc_fault(r, "nested too deep");
    if (!jdoc_add(r, kind, &node)) return false;
    r->at++;
    if (jdoc_peek(r) != close) do {
        if (count) r->at++;
        if (kind == JDOC_OBJECT) {
            if (jdoc_peek(r) != '"') return jdoc_fault(r, "a name is expected");
            if (!jdoc_string(r)) return false;
            if (jdoc_peek(r) != ':') return jdoc_fault(r, "':' is expected");
            r->at++;
        }
        if (!jdoc_read(r, depth - 1)) return false;
        count++;
    } while (jdoc_peek(r) == ',');
    if (jdoc_peek(r) != close) return jdoc_fault(r, "',' or the end of a list is expected");
    r->at++;
    jdoc_at(r, node)->count = count;
    jdoc_at(r, node)->end = (uint32_t)(r->out->held.size / sizeof(jdoc_node));
    return true;
}

static bool jdoc_read(jdoc_reader *r, int depth) {
    char c = jdoc_peek(r);
    if (c == '{' || c == '[') return jdoc_read_list(r, c == '{' ? '}' : ']', depth);
    return c == '"' ? jdoc_string(r) : r->at < r->size ? jdoc_literal(r)
                                                       : jdoc_fault(r, "the text ends too early");
}

static cairn_status jdoc_parse(base *b, const char *name, char *text, size_t size, jdoc *out) {
    jdoc_reader r = {b, out, text, size, 0, NULL};
    const jdoc empty = {name, text, NULL, {NULL, 0, 0}};
    *out = empty;
    if (size > UINT32_MAX / 2) {
        r.why = "over 2 GiB of text";
    } else if ((r.at = base_utf8_fault(text, size)) < size) {
        r.why = "not UTF-8";
    } else {
        r.at = 0;
        if (jdoc_read(&r, JDOC_DEPTH) && (jdoc_peek(&r), r.at < size))
            jdoc_fault(&r, "something stands behind the value");
    }
    out->nodes = (const jdoc_node *)(const void *)out->held.data;
    if (!r.why) return CAIRN_OK;
    if (!*r.why) return base_no_memory(b, name, 2 * out->held.size);
    return base_fail(b, CAIRN_BAD_FILE, "%s: byte %llu: %s", name, (unsigned long long)r.at, r.why);
}

static void jdoc_close(base *b, jdoc *j) {
    base_text_free(b, &j->held);
    j->nodes = NULL;
}

static bool jdoc_says(const jdoc *j, uint32_t node, const char *text) {
    const jdoc_node *n = &j->nodes[node];
    return n->kind <= JDOC_STRING && n->bytes == strlen(text) &&
           !memcmp(j->text + n->at, text, n->bytes);
}

static bool jdoc_is(const jdoc *j, uint32_t node, jdoc_kind kind) {
    return node && j->nodes[node].kind == (uint32_t)kind;
}

static uint32_t jdoc_get(const jdoc *j, uint32_t object, const char *name) {
    const jdoc_node *o = j->nodes ? &j->nodes[object] : NULL;
    uint32_t found = 0;
    if (!o || o->kind != JDOC_OBJECT) return 0;
    for (uint32_t at = object + 1; at < o->end; at = j->nodes[at + 1].end)
        if (jdoc_says(j, at, name)) found = at + 1;
    return jdoc_is(j, found, JDOC_LITERAL) && jdoc_says(j, found, "null") ? 0 : found;
}

static bool jdoc_whole(const jdoc *j, uint32_t node, uint64_t most, uint64_t *out) {
    const jdoc_node *n = &j->nodes[node];
    uint64_t value = 0;
    if (!jdoc_is(j, node, JDOC_NUMBER)) return false;
    for (uint32_t i = 0; i < n->bytes; i++) {
        char c = j->text[n->at + i];
        if (c < '0' || c > '9' || value > (most - (uint64_t)(c - '0')) / 10) return false;
        value = value * 10 + (uint64_t)(c - '0');
        if (value > most) return false;
    }
    return *out = value, true;
}

static double jdoc_decimal(const char *at, const char *end) {
    double value = 0, power;
    int digits = 0, exponent = 0, said = 0;
    bool point = false, minus = false;
    uint64_t mantissa = 0;
    if (*at == '-') at++, minus = true;
    for (; at < end && (*at | 32) != 'e'; at++) {
        if (*at == '.') point = true;
        else if (digits == 18) exponent += !point;
        else {
            mantissa = mantissa * 10 + (uint64_t)(*at - '0');
            digits += mantissa > 0;
            exponent -= point;
        }
    }
    if (at < end) {
        bool down = *++at == '-';
        at += *at == '-' || *at == '+';
        for (; at < end; at++) said = said < 10000 ? said * 10 + (*at - '0') : said;
        exponent += down ? -said : said;
    }
    power = pow(10, exponent < 0 ? -exponent : exponent);
    if (mantissa) value = exponent < 0 ? (double)mantissa / power : (double)mantissa * power;
    return minus ? -value : value;
}

static double jdoc_value(const jdoc *j, uint32_t node) {
    const jdoc_node *n = &j->nodes[node];
    const char *at = j->text + n->at;
    return jdoc_is(j, node, JDOC_NUMBER) ? jdoc_decimal(at, at + n->bytes) : 0;
}
