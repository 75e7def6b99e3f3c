/* schema: random texts under the grammar of a JSON Schema are JSON and fit it, by a reader and a judge
 * of their own; every value of a small schema is allowed and no other; and what is not supported, or is
 * no schema, is named with its place. */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "json.h"
#include "random.h"
#include "short_memory.h"
#include "tap.h"

static uint64_t seed;
static int below(int n) { return (int)(random_next(&seed) % (uint64_t)n); }

static base host;
static grammar_shelf shelf;

/* All bytes, some pieces that go on across a text's parts, and an end token. */
enum { BYTES = 256, PIECES = 22, VOCAB = BYTES + PIECES + 1 };
static const char *const pieces[PIECES] = {"{\"", "\":", "\": ", "\",\"", "\"}", "[1", "],", "12", "true", "null",
    ", \"", "}}", "{}", "[]", "\"a", "ab\"", "\xC3\xA9", "-1", "0.5", "false,", "na", "\\u00"};
static char words_text[BYTES + PIECES * 8];
static uint32_t words_starts[VOCAB + 1];
static uint8_t words_kinds[VOCAB];
static tokenizer words;

static void make_words(void) {
    uint32_t at = 0;
    for (int id = 0; id < VOCAB; id++) {
        words_starts[id] = at;
        words_kinds[id] = id == VOCAB - 1 ? TOK_CONTROL : TOK_NORMAL;
        if (id < BYTES) words_text[at++] = (char)id;
        else if (id < BYTES + PIECES) {
            size_t bytes = strlen(pieces[id - BYTES]);
            memcpy(words_text + at, pieces[id - BYTES], bytes);
            at += (uint32_t)bytes;
        }
    }
    words_starts[VOCAB] = at;
    words.vocab = VOCAB;
    words.text = words_text, words.starts = words_starts, words.kinds = words_kinds;
    words.eos = VOCAB - 1, words.bos = words.eot = words.eom = words.turn_end = -1;
}

static cairn_status take(const char *text, grammar **g) {
    return grammar_take_schema(&host, &shelf, &words, text, strlen(text), g);
}

/* ---- JSON, strictly -------------------------------------------------------------------------- */

static const char *skip(const char *t) {
    while (*t && strchr(" \t\n\r", *t)) t++;
    return t;
}

/* Behind a value; NULL: there is none. */
static const char *read_value(const char *t) {
    char close = *t == '{' ? '}' : ']';
    if (*t == '"') {
        for (t++; *t != '"'; t++) {
            if ((unsigned char)*t < 0x20) return NULL;
            if (*t != '\\') continue;
            if (*++t != 'u') { if (!*t || !strchr("\"\\/bfnrt", *t)) return NULL; else continue; }
            for (int i = 0; i < 4; i++) if (!strchr("0123456789abcdefABCDEF", *++t) || !*t) return NULL;
        }
        return t + 1;
    }
    if (*t == '{' || *t == '[') {
        bool more = false;
        for (t = skip(t + 1); *t != close || more; t = skip(t)) {
            if (close == '}') {
                if (*t != '"' || !(t = read_value(t)) || *(t = skip(t)) != ':') return NULL;
                t = skip(t + 1);
            }
            if (!(t = read_value(t))) return NULL;
            t = skip(t);
            if (!(more = *t == ',') && *t != close) return NULL;
            t = skip(t + more);
        }
        return t + 1;
    }
    if (!strncmp(t, "true", 4) || !strncmp(t, "null", 4)) return t + 4;
    if (!strncmp(t, "false", 5)) return t + 5;
    t += *t == '-';
    if (*t < '0' || *t > '9') return NULL;
    if (*t == '0') t++; else while (*t >= '0' && *t <= '9') t++;
    if (*t == '.') { if (t[1] < '0' || t[1] > '9') return NULL; for (t++; *t >= '0' && *t <= '9';) t++; }
    if (*t == 'e' || *t == 'E') {
        t++;
        t += *t == '-' || *t == '+';
        if (*t < '0' || *t > '9') return NULL;
        while (*t >= '0' && *t <= '9') t++;
    }
    return t;
}

static json_value *parse(const char *text) {
    json_path = "text", json_at = text, json_end = text + strlen(text);
    return json_parse();
}

/* ---- the judge ------------------------------------------------------------------------------- */

static const json_value *get(const json_value *object, const char *name) {
    for (const json_value *v = object->kind == '{' ? object->first : NULL; v; v = v->next)
        if (!strcmp(v->name, name)) return v;
    return NULL;
}

static bool same(const json_value *a, const json_value *b) {
    const json_value *x = a->first, *y = b->first;
    if (a->kind != b->kind || a->size != b->size) return false;
    if (a->kind == '0') return a->number == b->number;
    if (a->kind == '"') return !memcmp(a->text, b->text, a->size);
    for (; x && y; x = x->next, y = y->next)
        if ((x->name && strcmp(x->name, y->name)) || !same(x, y)) return false;
    return true;
}

static bool is_type(const json_value *v, const char *name) {
    static const char kinds[] = "{[\"0tfn";
    static const char *const names[] = {"object", "array", "string", "number", "boolean", "boolean", "null"};
    if (!strcmp(name, "integer")) return v->kind == '0' && v->number == floor(v->number);
    return !strcmp(names[strchr(kinds, v->kind) - kinds], name);
}

static int points(const json_value *v) {
    int n = 0;
    for (size_t i = 0; i < v->size; i++) n += ((unsigned char)v->text[i] & 0xC0) != 0x80;
    return n;
}

static const json_value *whole; /* the schema */
static bool fits(const json_value *s, const json_value *v);

static bool fits_object(const json_value *s, const json_value *v) {
    const json_value *properties = get(s, "properties"), *required = get(s, "required");
    const json_value *more = get(s, "additionalProperties");
    for (const json_value *r = required ? required->first : NULL; r; r = r->next)
        if (!get(v, r->text)) return false;
    for (const json_value *m = v->first; m; m = m->next) {
        const json_value *p = properties ? get(properties, m->name) : NULL;
        if (p ? !fits(p, m) : more && !fits(more, m)) return false;
        for (const json_value *other = m->next; other && p; other = other->next)
            if (!strcmp(other->name, m->name)) return false;
    }
    return true;
}

static bool fits_array(const json_value *s, const json_value *v) {
    const json_value *prefix = get(s, "prefixItems"), *items = get(s, "items"), *n;
    const json_value *p = prefix ? prefix->first : NULL;
    if ((n = get(s, "minItems")) && v->size < n->number) return false;
    if ((n = get(s, "maxItems")) && v->size > n->number) return false;
    for (const json_value *e = v->first; e; e = e->next) {
        if (p ? !fits(p, e) : items && !fits(items, e)) return false;
        if (p) p = p->next;
    }
    return true;
}

static bool fits_number(const json_value *s, const json_value *v) {
    const json_value *n;
    return !(((n = get(s, "minimum")) && v->number < n->number) ||
             ((n = get(s, "maximum")) && v->number > n->number) ||
             ((n = get(s, "exclusiveMinimum")) && v->number <= n->number) ||
             ((n = get(s, "exclusiveMaximum")) && v->number >= n->number));
}

static bool fits(const json_value *s, const json_value *v) {
    const json_value *k, *n;
    bool one = false;
    if (s->kind == 't' || s->kind == 'f') return s->kind == 't';
    if ((k = get(s, "type"))) {
        for (n = k->kind == '[' ? k->first : k; n; n = k->kind == '[' ? n->next : NULL)
            one = one || is_type(v, n->text);
        if (!one) return false;
    }
    if ((k = get(s, "const")) && !same(k, v)) return false;
    if ((k = get(s, "enum"))) {
        for (one = false, n = k->first; n; n = n->next) one = one || same(n, v);
        if (!one) return false;
    }
    if ((k = get(s, "anyOf")) || (k = get(s, "oneOf"))) {
        for (one = false, n = k->first; n; n = n->next) one = one || fits(n, v);
        if (!one) return false;
    }
    if ((k = get(s, "$ref"))) {
        char path[64], *part;
        const json_value *at = whole;
        snprintf(path, sizeof path, "%s", k->text);
        for (strtok(path, "/"); (part = strtok(NULL, "/"));) at = get(at, part);
        if (!fits(at, v)) return false;
    }
    if (v->kind == '"' && (((k = get(s, "minLength")) && points(v) < k->number) ||
                           ((k = get(s, "maxLength")) && points(v) > k->number)))
        return false;
    if (v->kind == '0' && !fits_number(s, v)) return false;
    if (v->kind == '[' && !fits_array(s, v)) return false;
    return v->kind != '{' || fits_object(s, v);
}

/* ---- random texts ---------------------------------------------------------------------------- */

static const char *const schemas[] = {
    "{}", "true",
    "{\"type\":\"object\"}", "{\"type\":\"array\"}", "{\"type\":[\"string\",\"null\",\"boolean\"]}", "{\"type\":\"number\"}",
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"minLength\":2,\"maxLength\":9},"
    "\"age\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":150},\"tags\":{\"type\":\"array\",\"items\":{\"enum\":"
    "[\"a\",\"b\\n\",3,null,{\"x\": [1, 2]}]},\"minItems\":1,\"maxItems\":3}},\"required\":[\"name\",\"tags\"]}",
    "{\"properties\":{\"a\":{\"const\":1},\"b\":{\"const\":\"\xC3\xA9\\\"\"},\"c\":true,\"d\":{\"type\":\"null\"}}}",
    "{\"properties\":{\"a\":{\"const\":1},\"b\":{\"const\":2},\"c\":{\"const\":3}},\"required\":[\"c\"],"
    "\"additionalProperties\":false}",
    "{\"properties\":{\"na\":{\"type\":\"integer\"},\"name\":{\"type\":\"null\"},\"nb\":true,\"\xC3\xA9x\":{\"const\":0}},"
    "\"required\":[\"name\"],\"additionalProperties\":{\"type\":\"boolean\"}}",
    "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"string\",\"maxLength\":4}}",
    "{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}],\"items\":{\"type\":\"null\"}}",
    "{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}],\"items\":false,\"minItems\":1}",
    "{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"},true],\"maxItems\":2,\"minItems\":2}",
    "{\"type\":\"array\",\"prefixItems\":[{\"const\":0}],\"items\":{\"const\":1},\"minItems\":3,\"maxItems\":5}",
    "{\"type\":\"array\",\"items\":{\"type\":\"boolean\"},\"minItems\":2,\"maxItems\":2}", "{\"items\":{\"const\":7},\"maxItems\":0}",
    "{\"anyOf\":[{\"type\":\"integer\",\"exclusiveMinimum\":-3,\"exclusiveMaximum\":12},{\"type\":\"string\",\"maxLength\":1}]}",
    "{\"oneOf\":[{\"const\":true},{\"enum\":[1.5,-2e3,\"x\"],\"type\":\"number\"}],\"title\":\"t\",\"description\":\"d\"}",
    "{\"$defs\":{\"node\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\",\"minimum\":-20,\"maximum\":-7},"
    "\"next\":{\"anyOf\":[{\"$ref\":\"#/$defs/node\"},{\"type\":\"null\"}]}},\"required\":[\"v\",\"next\"]}},\"$ref\":\"#/$defs/node\"}",
    "{\"type\":\"object\",\"properties\":{\"kids\":{\"type\":\"array\",\"items\":{\"$ref\":\"#\"},\"maxItems\":2}},\"required\":[\"kids\"]}",
    "{\"type\":\"integer\",\"minimum\":-1234,\"maximum\":98765}", "{\"minimum\":17}", "{\"type\":\"integer\",\"maximum\":-1000}",
};

/* Mostly any allowed token; once the text is long those that end things. */
static int choose(const uint32_t *bits, int length) {
    static const char closers[] = "}}]]\"\"\"0e:,";
    int id, tries = 0;
    for (int i = 0; length > 60 && i < 40; i++) {
        int closer = closers[below((int)sizeof closers - 1)];
        if (bits[closer / 32] >> closer % 32 & 1) return closer;
    }
    do id = below(3) ? 32 + below(96) : below(VOCAB);
    while (!(bits[id / 32] >> id % 32 & 1) && tries++ < 400);
    for (int i = 0; tries > 400 && i < VOCAB; i++)
        if (bits[i / 32] >> i % 32 & 1) return i;
    return id;
}

/* A random text; its length, or -1: it did not end. */
static int say(grammar *g, char *text) {
    static int64_t turn;
    grammar_place place = {0, 0, 0};
    int32_t ids[700];
    int length = 0;
    for (int count = 0; count < 600; count++) {
        const uint32_t *bits;
        bool any = false;
        int id;
        if (grammar_go(&host, g, &shelf.words, ids, count, &place) || grammar_is_lost(&place) ||
            grammar_allow(&host, g, &shelf.words, &place, ++turn, &bits, &any) || !any)
            return tap_note("%s", host.error), -1;
        id = choose(bits, length);
        if ((bits[(VOCAB - 1) / 32] >> (VOCAB - 1) % 32 & 1) && (length > 60 || !below(4))) id = VOCAB - 1;
        if (id == VOCAB - 1) return text[length] = '\0', length;
        ids[count] = id;
        memcpy(text + length, words_text + words_starts[id], words_starts[id + 1] - words_starts[id]);
        length += (int)(words_starts[id + 1] - words_starts[id]);
    }
    text[length] = '\0';
    return -1;
}

static void test_texts(void) {
    for (size_t i = 0; i < BASE_COUNT(schemas); i++) {
        json_value *s = parse(schemas[i]);
        grammar *g = NULL;
        int right = 0, texts = 0;
        whole = s;
        if (take(schemas[i], &g)) tap_note("%s", host.error);
        for (; g && texts < 60; texts++) {
            char text[8000];
            const char *end;
            json_value *v;
            bool well;
            if (say(g, text) < 0) { tap_note("no end: %.60s", text); continue; }
            end = read_value(text);
            well = end && !*end && base_utf8_fault(text, strlen(text)) == strlen(text);
            if (well) v = parse(text), well = fits(s, v), json_free(v);
            if (!well) tap_note("'%.200s'", text);
            right += well;
        }
        tap_ok(texts && right == texts, "schema %d: %d of %d texts fit: %s", (int)i, right, texts, schemas[i]);
        if (g) grammar_give(&host, &shelf, g);
        json_free(s);
    }
}

/* ---- all values ------------------------------------------------------------------------------ */

static bool allows(grammar *g, const char *text) {
    grammar_place place = {0, 0, 0};
    int32_t ids[64];
    const uint32_t *bits;
    bool any;
    for (int i = 0; text[i]; i++) ids[i] = (uint8_t)text[i];
    return !grammar_go(&host, g, &shelf.words, ids, (int)strlen(text), &place) && !grammar_is_lost(&place) &&
           !grammar_allow(&host, g, &shelf.words, &place, 1 << 30, &bits, &any) &&
           (bits[(VOCAB - 1) / 32] >> (VOCAB - 1) % 32 & 1);
}

static void test_integers(void) {
    int wrong = 0;
    for (int round = 0; round < 60; round++) {
        int spread = round % 3 ? 40 : 1500, low = below(2 * spread) - spread, high = low + below(spread);
        char text[128];
        grammar *g;
        snprintf(text, sizeof text, "{\"type\":\"integer\",\"minimum\":%d,\"maximum\":%d}", low, high);
        if (take(text, &g)) { wrong++, tap_note("%s", host.error); continue; }
        for (int n = -2 * spread; n <= 2 * spread; n += round % 3 ? 1 : 7) {
            snprintf(text, sizeof text, "%d", n);
            if (allows(g, text) != (n >= low && n <= high)) wrong++, tap_note("%d in %d to %d", n, low, high);
        }
        wrong += allows(g, "01") || allows(g, "");
        grammar_give(&host, &shelf, g);
    }
    tap_ok(!wrong, "integers of a range, and no others: %d wrong", wrong);
}

static void test_allowed(void) {
    static const struct { int schema; const char *text; bool may; } cases[] = {
        {6, "{\"name\":\"ab\",\"tags\":[3]}", true}, {6, "{ \"name\" : \"ab\" , \"age\": 7, \"tags\": [ null, \"a\" ] }", true},
        {6, "{\"name\":\"a\",\"tags\":[3]}", false}, {6, "{\"name\":\"ab\",\"tags\":[]}", false},
        {6, "{\"name\":\"ab\"}", false}, {6, "{\"tags\":[3],\"name\":\"ab\"}", false},
        {7, "{}", true}, {7, "{\"d\":null}", true}, {7, "{\"a\":1,\"c\":[{}],\"d\":null}", true}, {7, "{\"a\":1,}", false},
        {8, "{\"c\":3}", true}, {8, "{\"b\":2,\"c\":3}", true}, {8, "{\"a\":1,\"b\":2}", false}, {8, "{}", false},
        {9, "{\"name\":null,\"n\":true,\"names\":false,\"\":true}", true}, {9, "{\"name\":null,\"nb\":1,\"nam\":true}", true},
        {9, "{\"name\":null,\"na\":true}", false}, {9, "{\"name\":null,\"x\":1}", false}, {9, "{\"n\":true}", false},
        {10, "{}", true}, {10, "{\"a\":\"\\u00e9\\n\",\"b\":\"\"}", true}, {10, "{\"a\":\"abcde\"}", false},
        {11, "[]", true}, {11, "[1]", true}, {11, "[1,\"\",null,null]", true}, {11, "[\"\"]", false},
        {12, "[]", false}, {12, "[1, \"x\"]", true}, {12, "[1,\"x\",null]", false},
        {14, "[0,1]", false}, {14, "[0,1,1]", true}, {14, "[0,1,1,1,1,1]", false}, {16, "[]", true}, {16, "[7]", false},
    };
    int wrong = 0;
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        grammar *g;
        if (take(schemas[cases[i].schema], &g)) { wrong++; continue; }
        if (allows(g, cases[i].text) != cases[i].may) wrong++, tap_note("%s", cases[i].text);
        grammar_give(&host, &shelf, g);
    }
    tap_ok(!wrong, "what a schema allows: %d wrong of %d", wrong, (int)BASE_COUNT(cases));
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void test_refused(void) {
    static const struct { const char *text; cairn_status status; const char *error; } wrong[] = {
        {"{\"type\":\"string\",\"pattern\":\"^a\"}", CAIRN_UNSUPPORTED, "'pattern' at #:"},
        {"{\"properties\":{\"a\":{\"items\":{\"multipleOf\":2}}}}", CAIRN_UNSUPPORTED, "'multipleOf' at #/properties/a/items:"},
        {"{\"anyOf\":[true,{\"not\":{}}]}", CAIRN_UNSUPPORTED, "'not' at #/anyOf/1:"},
        {"{\"type\":\"number\",\"minimum\":1}", CAIRN_UNSUPPORTED, "'minimum' at #:"},
        {"{\"type\":\"string\",\"minimum\":1}", CAIRN_UNSUPPORTED, "'minimum' at #:"},
        {"{\"anyOf\":[true],\"properties\":{}}", CAIRN_UNSUPPORTED, "'properties' at #:"},
        {"{\"items\":{\"$ref\":\"#/$defs/a\"}}", CAIRN_UNSUPPORTED, "'$ref' at #/items: it names nothing"},
        {"{\"$ref\":\"http://x\"}", CAIRN_UNSUPPORTED, "'$ref' at #:"},
        {"{\"properties\":{\"a\":false}}", CAIRN_UNSUPPORTED, "'a' at #/properties:"},
        {"{\"required\":[\"a\"]}", CAIRN_UNSUPPORTED, "'required' at #:"},
        {"{\"properties\":{\"a\\u0062\":true},\"additionalProperties\":true}", CAIRN_UNSUPPORTED, "at #/properties"},
        {"{\"maxLength\":20001}", CAIRN_UNSUPPORTED, "'maxLength' at #:"}, {"{\"minItems\":1.5}", CAIRN_UNSUPPORTED, "'minItems'"},
        {"{\"minimum\":\"1\"}", CAIRN_UNSUPPORTED, "'minimum'"}, {"{\"maximum\":15e-1}", CAIRN_UNSUPPORTED, "'maximum'"},
        {"{\"exclusiveMinimum\":1e300}", CAIRN_UNSUPPORTED, "'exclusiveMinimum'"}, {"{\"exclusiveMaximum\":-1e19}", CAIRN_UNSUPPORTED, "'exclusiveMaximum'"},
        {"{\"type\":\"array\",\"items\":{\"multipleOf\":2}}", CAIRN_UNSUPPORTED, "'multipleOf' at #/items:"},
        {"{\"prefixItems\":[{\"multipleOf\":2}]}", CAIRN_UNSUPPORTED, "'multipleOf' at #/prefixItems/0:"},
        {"{\"type\":\"thing\"}", CAIRN_INVALID_ARGUMENT, "'type' at #: no type"}, {"{\"type\":7}", CAIRN_INVALID_ARGUMENT, "'type'"},
        {"{\"minLength\":3,\"maxLength\":2}", CAIRN_INVALID_ARGUMENT, "'minLength' at #: no length"},
        {"{\"minimum\":3,\"maximum\":2}", CAIRN_INVALID_ARGUMENT, "no integer"},
        {"{\"enum\":[]}", CAIRN_INVALID_ARGUMENT, "'enum'"}, {"{\"enum\":[1],\"type\":\"null\"}", CAIRN_INVALID_ARGUMENT, "no value"},
        {"{\"items\":3}", CAIRN_INVALID_ARGUMENT, "'items' at #: a schema"}, {"[]", CAIRN_INVALID_ARGUMENT, "'schema' at #"},
        {"{\"properties\":[]}", CAIRN_INVALID_ARGUMENT, "'properties'"}, {"{\"required\":3}", CAIRN_INVALID_ARGUMENT, "'required'"},
        {"{\"required\":[1]}", CAIRN_INVALID_ARGUMENT, "'required' at #: a list of names"},
        {"{\"prefixItems\":3}", CAIRN_INVALID_ARGUMENT, "'prefixItems' at #: a list of schemas"},
        {"{\"items\":false,\"minItems\":1}", CAIRN_INVALID_ARGUMENT, "'items' at #: no length"},
        {"{\"type\":[\"integer\",\"number\"],\"minimum\":1}", CAIRN_UNSUPPORTED, "'minimum' at #:"},
        {"{\"anyOf\":[true,{\"items\":{\"$ref\":\"#/anyOf/7\"}}]}", CAIRN_UNSUPPORTED, "it names nothing"},
        {"{\"$ref\":\"#\"}", CAIRN_INVALID_ARGUMENT, "leads back to itself"},
        {"", CAIRN_INVALID_ARGUMENT, "line 1, column 1"}, {"{\n \"a\" 1}", CAIRN_INVALID_ARGUMENT, "line 2, column 6: ':'"},
        {"{\"a\":1,}", CAIRN_INVALID_ARGUMENT, "a key is expected"}, {"{} x", CAIRN_INVALID_ARGUMENT, "text behind"},
        {"{\"a\":\"\\x\"}", CAIRN_INVALID_ARGUMENT, "unknown escape"}, {"[1", CAIRN_INVALID_ARGUMENT, "',' or ']'"},
        {"{\"a\":01}", CAIRN_INVALID_ARGUMENT, "',' or '}'"}, {"{\"a\":\"", CAIRN_INVALID_ARGUMENT, "not closed"},
        {"{\"const\":\xFF}", CAIRN_INVALID_ARGUMENT, "UTF-8"},
    };
    char deep[400] = "";
    grammar *g = NULL;
    for (size_t i = 0; i < BASE_COUNT(wrong); i++) {
        cairn_status status = take(wrong[i].text, &g);
        tap_ok(status == wrong[i].status && strstr(host.error, wrong[i].error), "%s: %s", wrong[i].text, host.error);
        if (!status) grammar_give(&host, &shelf, g);
    }
    for (int i = 0; i < 200; i++) strcat(deep, "[");
    tap_ok(take(deep, &g) == CAIRN_INVALID_ARGUMENT && strstr(host.error, "too deep"), "%s", host.error);
}

/* Schemas with bytes changed or cut: a grammar or an error. */
static void test_noise(void) {
    int taken = 0;
    for (int round = 0; round < 3000; round++) {
        char text[600];
        grammar *g;
        snprintf(text, sizeof text, "%s", schemas[below((int)BASE_COUNT(schemas))]);
        for (int i = below(4); i > 0; i--) text[below((int)strlen(text) + 1)] = (char)(below(6) ? 32 + below(96) : below(256));
        if (!below(4)) text[below((int)strlen(text) + 1)] = '\0';
        if (take(text, &g)) continue;
        taken++;
        grammar_give(&host, &shelf, g);
    }
    tap_ok(taken > 300, "%d of 3000 changed schemas are taken", taken);
}

/* Memory ends at each allocation of a schema. How often; -1: wrongly. */
static int fail_memory(const char *text) {
    for (int allowed = 0; allowed < 400; allowed++) {
        grammar *g;
        cairn_status status;
        allocations_left = allowed;
        status = take(text, &g);
        allocations_left = -1;
        if (!status) grammar_give(&host, &shelf, g);
        grammar_clear(&host, &shelf);
        if (!status) return live_blocks ? -1 : allowed;
        if (status != CAIRN_OUT_OF_MEMORY) return tap_note("%s", host.error), -1;
    }
    return -1;
}

/* The grammar's text grows in the middle of another rule by what stands before it. */
static void test_memory(void) {
    int times = 0, bad = 0;
    grammar_clear(&host, &shelf);
    for (size_t i = 0; i < BASE_COUNT(schemas); i++)
        for (int before = 0; before < 700 && !strstr(schemas[i], "$ref"); before += 23) {
            char text[1600];
            int failed;
            snprintf(text, sizeof text, "{\"anyOf\":[{\"const\":\"%0*d\"},%s]}", before, 1, schemas[i]);
            failed = fail_memory(text);
            times += failed, bad += failed <= 5;
        }
    for (size_t i = 0; i < BASE_COUNT(schemas); i++) bad += fail_memory(schemas[i]) <= 5;
    tap_ok(!bad && times > 5000 && !live_blocks, "memory failed %d times, %d of them wrongly: %s", times, bad,
           host.error);
}

int main(void) {
    cairn_allocator allocator = {NULL, test_realloc};
    seed = random_seed();
    base_init(&host, &allocator, NULL, NULL, CAIRN_LOG_OFF);
    make_words();
    test_texts();
    test_integers();
    test_allowed();
    test_refused();
    test_noise();
    test_memory();
    return tap_done();
}
