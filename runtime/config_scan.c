/* config: on which line of the source each field stands. Lua values carry no lines, so the text
 * that Lua has accepted is scanned once more for the table that it returns: `return { ... }`, or
 * `local config = { ... } ... return config`. A field that the scan cannot place for certain, since
 * it is assigned later or by a computed key, has no line. */

typedef enum cfg_token_kind { CFG_END, CFG_NAME, CFG_QUOTED, CFG_OTHER } cfg_token_kind;

typedef struct cfg_token {
    cfg_token_kind kind;
    const char *text; /* of a CFG_QUOTED, what is between the quotes */
    size_t bytes;
    int line;         /* where it starts */
} cfg_token;

typedef struct cfg_scanner {
    const char *at, *end;
    int line;
    cfg_token token; /* the current one */
    int brackets;    /* open ( [ { before the current token */
    int blocks;      /* open function, if, do, repeat */
} cfg_scanner;

/* ---- tokens -------------------------------------------------------------------------------- */

static int cfg_peek(const cfg_scanner *s, size_t ahead) {
    return (size_t)(s->end - s->at) > ahead ? (unsigned char)s->at[ahead] : -1;
}

static bool cfg_is_digit(int c) { return c >= '0' && c <= '9'; }
static bool cfg_is_word(int c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || cfg_is_digit(c) || c == '_';
}

/* Steps over one character, a line break of one or two bytes being one. */
static void cfg_step(cfg_scanner *s) {
    int c = cfg_peek(s, 0), next = cfg_peek(s, 1);
    if (c < 0) return;
    s->at++;
    if (c != '\n' && c != '\r') return;
    if ((next == '\n' || next == '\r') && next != c) s->at++;
    s->line++;
}

/* The number of = in a long bracket that opens here, -1 if none does. */
static int cfg_long_level(const cfg_scanner *s) {
    int level = 0;
    if (cfg_peek(s, 0) != '[') return -1;
    while (cfg_peek(s, (size_t)level + 1) == '=') level++;
    return cfg_peek(s, (size_t)level + 1) == '[' ? level : -1;
}

static bool cfg_closes_here(const cfg_scanner *s, int level) {
    int i;
    if (cfg_peek(s, 0) != ']' || cfg_peek(s, (size_t)level + 1) != ']') return false;
    for (i = 1; i <= level; i++)
        if (cfg_peek(s, (size_t)i) != '=') return false;
    return true;
}

/* Steps over a long string or comment and its brackets. */
static void cfg_skip_long(cfg_scanner *s, int level) {
    s->at += level + 2;
    while (s->at < s->end && !cfg_closes_here(s, level)) cfg_step(s);
    s->at = s->end - s->at < level + 2 ? s->end : s->at + level + 2;
}

static void cfg_skip_blank(cfg_scanner *s) {
    for (;;) {
        int c = cfg_peek(s, 0);
        if (c == ' ' || c == '\t' || c == '\v' || c == '\f' || c == '\n' || c == '\r') {
            cfg_step(s);
        } else if (c == '-' && cfg_peek(s, 1) == '-') {
            int level;
            s->at += 2;
            level = cfg_long_level(s);
            if (level >= 0) cfg_skip_long(s, level);
            else while (s->at < s->end && *s->at != '\n' && *s->at != '\r') s->at++;
        } else {
            return;
        }
    }
}

static void cfg_skip_quoted(cfg_scanner *s, int quote) {
    s->at++;
    s->token.text = s->at;
    while (s->at < s->end && *s->at != quote) {
        if (*s->at == '\\') cfg_step(s);
        cfg_step(s);
    }
    s->token.bytes = (size_t)(s->at - s->token.text);
    if (s->at < s->end) s->at++;
}

/* Digits, a point, letters, and a sign behind an exponent's letter. */
static void cfg_skip_number(cfg_scanner *s) {
    bool hex = cfg_peek(s, 0) == '0' && (cfg_peek(s, 1) | 32) == 'x';
    while (cfg_is_word(cfg_peek(s, 0)) || cfg_peek(s, 0) == '.') {
        int letter = cfg_peek(s, 0) | 32;
        s->at++;
        if (letter != (hex ? 'p' : 'e')) continue;
        if (cfg_peek(s, 0) == '+' || cfg_peek(s, 0) == '-') s->at++;
    }
}

/* == ~= <= >= and // .. ... :: << >> hold no single = or . */
static void cfg_skip_operator(cfg_scanner *s) {
    int c = cfg_peek(s, 0), next = cfg_peek(s, 1);
    s->at++;
    if (next == '=' && (c == '=' || c == '~' || c == '<' || c == '>')) s->at++;
    else if (next == c && (c == '.' || c == ':' || c == '/')) s->at++;
    if (c == '.' && next == '.' && cfg_peek(s, 0) == '.') s->at++;
}

static bool cfg_is(const cfg_scanner *s, const char *text) {
    return s->token.kind != CFG_QUOTED && s->token.bytes == strlen(text) &&
           !memcmp(s->token.text, text, s->token.bytes);
}

static bool cfg_is_name(const cfg_scanner *s) { return s->token.kind == CFG_NAME; }

/* Reads the next token into s->token. */
static void cfg_read(cfg_scanner *s) {
    int c, level;
    cfg_skip_blank(s);
    s->token.kind = CFG_OTHER;
    s->token.text = s->at;
    s->token.line = s->line;
    c = cfg_peek(s, 0);
    level = cfg_long_level(s);
    if (c < 0) {
        s->token.kind = CFG_END;
    } else if (c == '"' || c == '\'') {
        s->token.kind = CFG_QUOTED;
        cfg_skip_quoted(s, c);
        return;
    } else if (level >= 0) {
        s->token.kind = CFG_QUOTED;
        s->token.text += level + 2;
        cfg_skip_long(s, level);
        s->token.bytes = (size_t)(s->at - s->token.text) - (size_t)level - 2;
        return;
    } else if (cfg_is_digit(c) || (c == '.' && cfg_is_digit(cfg_peek(s, 1)))) {
        cfg_skip_number(s);
    } else if (cfg_is_word(c)) {
        s->token.kind = CFG_NAME;
        while (cfg_is_word(cfg_peek(s, 0))) s->at++;
    } else {
        cfg_skip_operator(s);
    }
    s->token.bytes = (size_t)(s->at - s->token.text);
}

/* Counts what the current token opens and closes, then reads the next. */
static void cfg_next(cfg_scanner *s) {
    if (s->token.kind == CFG_OTHER) {
        if (cfg_is(s, "{") || cfg_is(s, "(") || cfg_is(s, "[")) s->brackets++;
        if (cfg_is(s, "}") || cfg_is(s, ")") || cfg_is(s, "]")) s->brackets--;
    } else if (cfg_is_name(s)) {
        if (cfg_is(s, "function") || cfg_is(s, "if") || cfg_is(s, "do") || cfg_is(s, "repeat"))
            s->blocks++;
        if (cfg_is(s, "end") || cfg_is(s, "until")) s->blocks--;
    }
    cfg_read(s);
}

static void cfg_start(cfg_scanner *s, const char *text, size_t bytes) {
    memset(s, 0, sizeof *s);
    s->at = text;
    s->end = text + bytes;
    s->line = 1;
    cfg_read(s);
}

/* ---- keys ---------------------------------------------------------------------------------- */

#define CFG_MAX_KEYS 512

enum { CFG_ASSIGNED = -2 }; /* the parent of names assigned to outside the table: `x.topk = 1` */

/* A key of the returned table, or of a group in it; `name` NULL for the n-th item without one. */
typedef struct cfg_source_key {
    int parent, line, item;
    const char *name;
    size_t bytes;
} cfg_source_key;

typedef struct cfg_source {
    cfg_source_key keys[CFG_MAX_KEYS];
    int count;
    bool dynamic;          /* some key is computed: what a field is, no line tells for certain */
    int lines[CFG_ROWS];
} cfg_source;

/* The row of a key in a group (-1: at the top), -1 if there is none. */
static int cfg_find(int parent, const char *name, size_t bytes) {
    int row;
    for (row = 0; row < CFG_ROWS; row++) {
        const char *key = cfg_key(&cfg_fields[row]);
        if (cfg_fields[row].parent == parent && strlen(key) == bytes && !memcmp(key, name, bytes))
            return row;
    }
    return -1;
}

static bool cfg_same_key(const cfg_source_key *key, int parent, const char *name, size_t bytes) {
    return key->name && key->parent == parent && key->bytes == bytes &&
           !memcmp(key->name, name, bytes);
}

/* The line where a key is given, the last one counting as in Lua; 0: not for certain. */
static int cfg_key_line(const cfg_source *source, int parent, const char *name, size_t bytes) {
    int i, line = 0;
    if (source->dynamic) return 0;
    for (i = 0; i < source->count; i++) {
        if (cfg_same_key(&source->keys[i], CFG_ASSIGNED, name, bytes)) return 0;
        if (cfg_same_key(&source->keys[i], parent, name, bytes)) line = source->keys[i].line;
    }
    return line;
}

static int cfg_item_line(const cfg_source *source, int parent, int64_t item) {
    int i;
    for (i = 0; i < source->count && !source->dynamic; i++) {
        const cfg_source_key *key = &source->keys[i];
        if (!key->name && key->parent == parent && key->item == item) return key->line;
    }
    return 0;
}

static void cfg_add_key(cfg_source *source, int parent, const cfg_token *name, int item, int line) {
    cfg_source_key *key = &source->keys[source->count];
    if (source->count == CFG_MAX_KEYS) return;
    source->count++;
    key->parent = parent;
    key->line = line;
    key->item = item;
    key->name = name ? name->text : NULL;
    key->bytes = name ? name->bytes : 0;
}

static void cfg_check_twice(const cfg_source *source, cfg_report *report, int parent,
                            const cfg_token *name) {
    int i;
    for (i = 0; i < source->count; i++) {
        if (!cfg_same_key(&source->keys[i], parent, name->text, name->bytes)) continue;
        cfg_add(report, name->line, "%s%s%.*s is given twice, first on line %d",
                parent < 0 ? "" : cfg_fields[parent].path, parent < 0 ? "" : ".",
                name->bytes < CFG_NAME_BYTES ? (int)name->bytes : CFG_NAME_BYTES, name->text,
                source->keys[i].line);
        return;
    }
}

/* ---- the returned table -------------------------------------------------------------------- */

/* Goes on to the , ; or } that ends this value of a table whose { left `brackets` open. */
static void cfg_skip_value(cfg_scanner *s, int brackets, int blocks) {
    while (s->token.kind != CFG_END &&
           (s->brackets > brackets || s->blocks > blocks ||
            !(cfg_is(s, ",") || cfg_is(s, ";") || cfg_is(s, "}"))))
        cfg_next(s);
}

/* Whether `=` follows a one-token key; the current token stays the key when it does not. */
static bool cfg_take_key(cfg_scanner *s, cfg_token *key) {
    cfg_scanner ahead = *s;
    bool bracket = cfg_is(s, "[");
    if (bracket) cfg_next(&ahead);
    *key = ahead.token;
    if (key->kind != (bracket ? CFG_QUOTED : CFG_NAME)) return false;
    if (bracket && memchr(key->text, '\\', key->bytes)) return false;
    cfg_next(&ahead);
    if (bracket) {
        if (!cfg_is(&ahead, "]")) return false;
        cfg_next(&ahead);
    }
    if (!cfg_is(&ahead, "=")) return false;
    cfg_next(&ahead);
    *s = ahead;
    return true;
}

/* Whether a number and ] follow the [ : no field's key. */
static bool cfg_has_number_key(const cfg_scanner *s) {
    cfg_scanner ahead = *s;
    cfg_next(&ahead);
    if (ahead.token.kind != CFG_OTHER || !cfg_is_digit(ahead.token.text[0])) return false;
    cfg_next(&ahead);
    return cfg_is(&ahead, "]");
}

/* One `key = value`, `[expression] = value` or `value`; true when the value is a group's table,
 * before which the scanner then stands. */
static bool cfg_scan_field(cfg_scanner *s, cfg_source *source, cfg_report *report, int parent,
                           int *items, int *group) {
    cfg_token key;
    if (cfg_take_key(s, &key)) {
        cfg_check_twice(source, report, parent, &key);
        cfg_add_key(source, parent, &key, 0, key.line);
        *group = cfg_find(parent, key.text, key.bytes);
        return *group >= 0 && cfg_fields[*group].kind == CFG_GROUP && cfg_is(s, "{");
    }
    if (cfg_is(s, "[")) source->dynamic = source->dynamic || !cfg_has_number_key(s);
    else cfg_add_key(source, parent, NULL, ++*items, s->token.line);
    return false;
}

/* From a { to behind its }. Groups lie one level deep. */
static void cfg_scan_table(cfg_scanner *s, cfg_source *source, cfg_report *report, int parent) {
    int items = 0, blocks = s->blocks, brackets, group;
    cfg_next(s);
    brackets = s->brackets;
    while (s->token.kind != CFG_END && !cfg_is(s, "}")) {
        if (cfg_scan_field(s, source, report, parent, &items, &group))
            cfg_scan_table(s, source, report, group);
        cfg_skip_value(s, brackets, blocks);
        if (cfg_is(s, ",") || cfg_is(s, ";")) cfg_next(s);
    }
    cfg_next(s);
}

/* Notes `.name =`, `.name, ... =` and `x[...] =`, standing on the . or [ of it. */
static void cfg_note_assignment(const cfg_scanner *s, cfg_source *source) {
    cfg_scanner ahead = *s;
    cfg_token name;
    bool bracket = cfg_is(s, "[");
    cfg_next(&ahead);
    name = ahead.token;
    while (bracket && ahead.token.kind != CFG_END && ahead.brackets > s->brackets) cfg_next(&ahead);
    if (!bracket) cfg_next(&ahead);
    if (!cfg_is(&ahead, "=") && !(cfg_is(&ahead, ",") && s->brackets == 0)) return;
    if (bracket) source->dynamic = true;
    else cfg_add_key(source, CFG_ASSIGNED, &name, 0, name.line);
}

/* Goes on to the return statement of the file and notes the assignments before it. */
static void cfg_seek_return(cfg_scanner *s, cfg_source *source) {
    bool opens_table = true; /* a [ here is a key of a table, not an index */
    for (; s->token.kind != CFG_END; cfg_next(s)) {
        if (cfg_is(s, "return") && s->brackets == 0 && s->blocks == 0) return;
        if (cfg_is(s, ".") || (cfg_is(s, "[") && !opens_table)) cfg_note_assignment(s, source);
        opens_table = cfg_is(s, "{") || cfg_is(s, ",") || cfg_is(s, ";");
    }
}

/* Behind the = of the last `name = ` or `name <const> = ` outside functions, else at the end. */
static void cfg_seek_value(cfg_scanner *s, const cfg_token *name) {
    cfg_scanner value;
    memset(&value, 0, sizeof value);
    while (s->token.kind != CFG_END) {
        bool same = s->brackets == 0 && s->blocks == 0 && cfg_is_name(s) &&
                    s->token.bytes == name->bytes &&
                    !memcmp(s->token.text, name->text, name->bytes);
        cfg_next(s);
        if (!same) continue;
        if (cfg_is(s, "<")) { cfg_next(s); cfg_next(s); cfg_next(s); }
        if (!cfg_is(s, "=")) continue;
        cfg_next(s);
        value = *s;
    }
    if (value.at) *s = value;
}

/* Stands on the { of the returned table, or elsewhere when there is none to be seen. */
static void cfg_seek_table(cfg_scanner *s, cfg_source *source) {
    cfg_scanner start = *s;
    cfg_token name;
    cfg_seek_return(s, source);
    cfg_next(s);
    if (!cfg_is_name(s)) return;
    name = s->token;
    cfg_next(s);
    if (cfg_is(s, ";")) cfg_next(s);
    if (s->token.kind != CFG_END) return;
    *s = start;
    cfg_seek_value(s, &name);
}

/* Fills in the line of every field; keys given twice are mistakes. */
static void cfg_scan(const char *text, size_t bytes, cfg_source *source, cfg_report *report) {
    cfg_scanner s;
    int row;
    source->count = 0;
    source->dynamic = false;
    cfg_start(&s, text, bytes);
    cfg_seek_table(&s, source);
    if (cfg_is(&s, "{")) cfg_scan_table(&s, source, report, -1);
    for (row = 0; row < CFG_ROWS; row++) {
        const char *key = cfg_key(&cfg_fields[row]);
        source->lines[row] = cfg_key_line(source, cfg_fields[row].parent, key, strlen(key));
    }
}
