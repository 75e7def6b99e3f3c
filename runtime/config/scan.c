/* config: on which line of the source each field stands. Lua values carry no lines, so the text
 * that Lua has accepted is scanned once more for the table that it returns: `return { ... }`, or
 * `local config = { ... } ... return config`. A field that the scan cannot place for certain, since
 * it is assigned later or by a computed key, has no line. */

typedef enum config_token_kind { CFG_END, CFG_NAME, CFG_QUOTED, CFG_OTHER } config_token_kind;

typedef struct config_token {
    config_token_kind kind;
    const char *text; /* of a CFG_QUOTED, what is between the quotes */
    size_t bytes;
    int line;         /* where it starts */
} config_token;

typedef struct config_scanner {
    const char *at, *end;
    int line;
    config_token token; /* the current one */
    int brackets;    /* open ( [ { before the current token */
    int blocks;      /* open function, if, do, repeat */
} config_scanner;

/* ---- tokens -------------------------------------------------------------------------------- */

static int config_peek(const config_scanner *s, size_t ahead) {
    return (size_t)(s->end - s->at) > ahead ? (unsigned char)s->at[ahead] : -1;
}

static bool config_is_digit(int c) { return c >= '0' && c <= '9'; }
static bool config_is_word(int c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || config_is_digit(c) || c == '_';
}

/* Steps over one character, a line break of one or two bytes being one. */
static void config_step(config_scanner *s) {
    int c = config_peek(s, 0), next = config_peek(s, 1);
    if (c < 0) return;
    s->at++;
    if (c != '\n' && c != '\r') return;
    if ((next == '\n' || next == '\r') && next != c) s->at++;
    s->line++;
}

/* The number of = in a long bracket that opens here, -1 if none does. */
static int config_long_level(const config_scanner *s) {
    int level = 0;
    if (config_peek(s, 0) != '[') return -1;
    while (config_peek(s, (size_t)level + 1) == '=') level++;
    return config_peek(s, (size_t)level + 1) == '[' ? level : -1;
}

static bool config_closes_here(const config_scanner *s, int level) {
    int i;
    if (config_peek(s, 0) != ']' || config_peek(s, (size_t)level + 1) != ']') return false;
    for (i = 1; i <= level; i++)
        if (config_peek(s, (size_t)i) != '=') return false;
    return true;
}

/* Steps over a long string or comment and its brackets. */
static void config_skip_long(config_scanner *s, int level) {
    s->at += level + 2;
    while (s->at < s->end && !config_closes_here(s, level)) config_step(s);
    s->at = s->end - s->at < level + 2 ? s->end : s->at + level + 2;
}

static void config_skip_blank(config_scanner *s) {
    for (;;) {
        int c = config_peek(s, 0);
        if (c == ' ' || c == '\t' || c == '\v' || c == '\f' || c == '\n' || c == '\r') {
            config_step(s);
        } else if (c == '-' && config_peek(s, 1) == '-') {
            int level;
            s->at += 2;
            level = config_long_level(s);
            if (level >= 0) config_skip_long(s, level);
            else while (s->at < s->end && *s->at != '\n' && *s->at != '\r') s->at++;
        } else {
            return;
        }
    }
}

static void config_skip_quoted(config_scanner *s, int quote) {
    s->at++;
    s->token.text = s->at;
    while (s->at < s->end && *s->at != quote) {
        if (*s->at == '\\') config_step(s);
        config_step(s);
    }
    s->token.bytes = (size_t)(s->at - s->token.text);
    if (s->at < s->end) s->at++;
}

/* Digits, a point, letters, and a sign behind an exponent's letter. */
static void config_skip_number(config_scanner *s) {
    bool hex = config_peek(s, 0) == '0' && (config_peek(s, 1) | 32) == 'x';
    while (config_is_word(config_peek(s, 0)) || config_peek(s, 0) == '.') {
        int letter = config_peek(s, 0) | 32;
        s->at++;
        if (letter != (hex ? 'p' : 'e')) continue;
        if (config_peek(s, 0) == '+' || config_peek(s, 0) == '-') s->at++;
    }
}

/* == ~= <= >= and // .. ... :: << >> hold no single = or . */
static void config_skip_operator(config_scanner *s) {
    int c = config_peek(s, 0), next = config_peek(s, 1);
    s->at++;
    if (next == '=' && (c == '=' || c == '~' || c == '<' || c == '>')) s->at++;
    else if (next == c && (c == '.' || c == ':' || c == '/')) s->at++;
    if (c == '.' && next == '.' && config_peek(s, 0) == '.') s->at++;
}

static bool config_is(const config_scanner *s, const char *text) {
    return s->token.kind != CFG_QUOTED && s->token.bytes == strlen(text) &&
           !memcmp(s->token.text, text, s->token.bytes);
}

static bool config_is_name(const config_scanner *s) { return s->token.kind == CFG_NAME; }

/* Reads the next token into s->token. */
static void config_read(config_scanner *s) {
    int c, level;
    config_skip_blank(s);
    s->token.kind = CFG_OTHER;
    s->token.text = s->at;
    s->token.line = s->line;
    c = config_peek(s, 0);
    level = config_long_level(s);
    if (c < 0) {
        s->token.kind = CFG_END;
    } else if (c == '"' || c == '\'') {
        s->token.kind = CFG_QUOTED;
        config_skip_quoted(s, c);
        return;
    } else if (level >= 0) {
        s->token.kind = CFG_QUOTED;
        s->token.text += level + 2;
        config_skip_long(s, level);
        s->token.bytes = (size_t)(s->at - s->token.text) - (size_t)level - 2;
        return;
    } else if (config_is_digit(c) || (c == '.' && config_is_digit(config_peek(s, 1)))) {
        config_skip_number(s);
    } else if (config_is_word(c)) {
        s->token.kind = CFG_NAME;
        while (config_is_word(config_peek(s, 0))) s->at++;
    } else {
        config_skip_operator(s);
    }
    s->token.bytes = (size_t)(s->at - s->token.text);
}

/* Counts what the current token opens and closes, then reads the next. */
static void config_next(config_scanner *s) {
    if (s->token.kind == CFG_OTHER) {
        if (config_is(s, "{") || config_is(s, "(") || config_is(s, "[")) s->brackets++;
        if (config_is(s, "}") || config_is(s, ")") || config_is(s, "]")) s->brackets--;
    } else if (config_is_name(s)) {
        if (config_is(s, "function") || config_is(s, "if") || config_is(s, "do") || config_is(s, "repeat"))
            s->blocks++;
        if (config_is(s, "end") || config_is(s, "until")) s->blocks--;
    }
    config_read(s);
}

static void config_start(config_scanner *s, const char *text, size_t bytes) {
    memset(s, 0, sizeof *s);
    s->at = text;
    s->end = text + bytes;
    s->line = 1;
    config_read(s);
}

/* ---- keys ---------------------------------------------------------------------------------- */

#define CFG_MAX_KEYS 512

enum { CFG_ASSIGNED = -2 }; /* the parent of names assigned to outside the table: `x.topk = 1` */

/* A key of the returned table, or of a group in it; `name` NULL for the n-th item without one. */
typedef struct config_source_key {
    int parent, line, item;
    const char *name;
    size_t bytes;
} config_source_key;

typedef struct config_source {
    config_source_key keys[CFG_MAX_KEYS];
    int count;
    bool dynamic;          /* some key is computed: what a field is, no line tells for certain */
    int ahead;             /* tokens that were looked at in search of assignments */
    int lines[CFG_ROWS];
} config_source;

/* The row of a key in a group (-1: at the top), -1 if there is none. */
static int config_find(int parent, const char *name, size_t bytes) {
    int row;
    for (row = 0; row < CFG_ROWS; row++) {
        const char *key = config_key(&config_fields[row]);
        if (config_fields[row].parent == parent && strlen(key) == bytes && !memcmp(key, name,
                                                                                   bytes))
            return row;
    }
    return -1;
}

static bool config_same_key(const config_source_key *key, int parent, const char *name,
                            size_t bytes) {
    return key->name && key->parent == parent && key->bytes == bytes &&
           !memcmp(key->name, name, bytes);
}

/* The line where a key is given, the last one counting as in Lua; 0: not for certain. */
static int config_key_line(const config_source *source, int parent, const char *name,
                           size_t bytes) {
    int i, line = 0;
    if (source->dynamic) return 0;
    for (i = 0; i < source->count; i++) {
        if (config_same_key(&source->keys[i], CFG_ASSIGNED, name, bytes)) return 0;
        if (config_same_key(&source->keys[i], parent, name, bytes)) line = source->keys[i].line;
    }
    return line;
}

static int config_item_line(const config_source *source, int parent, int64_t item) {
    int i;
    for (i = 0; i < source->count && !source->dynamic; i++) {
        const config_source_key *key = &source->keys[i];
        if (!key->name && key->parent == parent && key->item == item) return key->line;
    }
    return 0;
}

static void config_add_key(config_source *source, int parent, const config_token *name, int item,
                           int line) {
    config_source_key *key = &source->keys[source->count];
    if (source->count == CFG_MAX_KEYS) return;
    source->count++;
    key->parent = parent;
    key->line = line;
    key->item = item;
    key->name = name ? name->text : NULL;
    key->bytes = name ? name->bytes : 0;
}

static void config_check_twice(const config_source *source, config_report *report, int parent,
                            const config_token *name) {
    int i;
    for (i = 0; i < source->count; i++) {
        if (!config_same_key(&source->keys[i], parent, name->text, name->bytes)) continue;
        config_add(report, name->line, "%s%s%.*s is given twice, first on line %d",
                parent < 0 ? "" : config_fields[parent].path, parent < 0 ? "" : ".",
                name->bytes < CFG_NAME_BYTES ? (int)name->bytes : CFG_NAME_BYTES, name->text,
                source->keys[i].line);
        return;
    }
}

/* ---- the returned table -------------------------------------------------------------------- */

/* Goes on to the , ; or } that ends this value of a table whose { left `brackets` open. */
static void config_skip_value(config_scanner *s, int brackets, int blocks) {
    while (s->token.kind != CFG_END &&
           (s->brackets > brackets || s->blocks > blocks ||
            !(config_is(s, ",") || config_is(s, ";") || config_is(s, "}"))))
        config_next(s);
}

/* Whether `=` follows a one-token key; the current token stays the key when it does not. */
static bool config_take_key(config_scanner *s, config_token *key) {
    config_scanner ahead = *s;
    bool bracket = config_is(s, "[");
    if (bracket) config_next(&ahead);
    *key = ahead.token;
    if (key->kind != (bracket ? CFG_QUOTED : CFG_NAME)) return false;
    if (bracket && memchr(key->text, '\\', key->bytes)) return false;
    config_next(&ahead);
    if (bracket) {
        if (!config_is(&ahead, "]")) return false;
        config_next(&ahead);
    }
    if (!config_is(&ahead, "=")) return false;
    config_next(&ahead);
    *s = ahead;
    return true;
}

/* Whether a number and ] follow the [ : no field's key. */
static bool config_has_number_key(const config_scanner *s) {
    config_scanner ahead = *s;
    config_next(&ahead);
    if (ahead.token.kind != CFG_OTHER || !config_is_digit(ahead.token.text[0])) return false;
    config_next(&ahead);
    return config_is(&ahead, "]");
}

/* One `key = value`, `[expression] = value` or `value`; true when the value is a group's table,
 * before which the scanner then stands. */
static bool config_scan_field(config_scanner *s, config_source *source, config_report *report,
                              int parent,
                           int *items, int *group) {
    config_token key;
    if (config_take_key(s, &key)) {
        config_check_twice(source, report, parent, &key);
        config_add_key(source, parent, &key, 0, key.line);
        *group = config_find(parent, key.text, key.bytes);
        return *group >= 0 && config_fields[*group].kind == CFG_GROUP && config_is(s, "{");
    }
    if (config_is(s, "[")) source->dynamic = source->dynamic || !config_has_number_key(s);
    else config_add_key(source, parent, NULL, ++*items, s->token.line);
    return false;
}

/* From a { to behind its }. Groups lie one level deep. */
static void config_scan_table(config_scanner *s, config_source *source, config_report *report,
                              int parent) {
    int items = 0, blocks = s->blocks, brackets, group;
    config_next(s);
    brackets = s->brackets;
    while (s->token.kind != CFG_END && !config_is(s, "}")) {
        if (config_scan_field(s, source, report, parent, &items, &group))
            config_scan_table(s, source, report, group);
        config_skip_value(s, brackets, blocks);
        if (config_is(s, ",") || config_is(s, ";")) config_next(s);
    }
    config_next(s);
}

#define CFG_MAX_AHEAD 500000 /* brackets in brackets would be looked at again and again */

/* Notes `.name =`, `.name, ... =` and `x[...] =`, standing on the . or [ of it. */
static void config_note_assignment(const config_scanner *s, config_source *source) {
    config_scanner ahead = *s;
    config_token name;
    bool bracket = config_is(s, "[");
    config_next(&ahead);
    name = ahead.token;
    while (bracket && ahead.token.kind != CFG_END && ahead.brackets > s->brackets &&
           source->ahead++ < CFG_MAX_AHEAD)
        config_next(&ahead);
    if (source->ahead > CFG_MAX_AHEAD) source->dynamic = true; /* it might be one */
    if (!bracket) config_next(&ahead);
    if (!config_is(&ahead, "=") && !(config_is(&ahead, ",") && s->brackets == 0)) return;
    if (bracket) source->dynamic = true;
    else config_add_key(source, CFG_ASSIGNED, &name, 0, name.line);
}

/* Goes on to the return statement of the file and notes the assignments before it. */
static void config_seek_return(config_scanner *s, config_source *source) {
    bool opens_table = true; /* a [ here is a key of a table, not an index */
    for (; s->token.kind != CFG_END; config_next(s)) {
        if (config_is(s, "return") && s->brackets == 0 && s->blocks == 0) return;
        if (config_is(s, ".") || (config_is(s, "[") && !opens_table)) config_note_assignment(s, source);
        opens_table = config_is(s, "{") || config_is(s, ",") || config_is(s, ";");
    }
}

/* Behind the = of the last `name = ` or `name <const> = ` outside functions, else at the end. */
static void config_seek_value(config_scanner *s, const config_token *name) {
    config_scanner value;
    memset(&value, 0, sizeof value);
    while (s->token.kind != CFG_END) {
        bool same = s->brackets == 0 && s->blocks == 0 && config_is_name(s) &&
                    s->token.bytes == name->bytes &&
                    !memcmp(s->token.text, name->text, name->bytes);
        config_next(s);
        if (!same) continue;
        if (config_is(s, "<")) { config_next(s); config_next(s); config_next(s); }
        if (!config_is(s, "=")) continue;
        config_next(s);
        value = *s;
    }
    if (value.at) *s = value;
}

/* Stands on the { of the returned table, or elsewhere when there is none to be seen. */
static void config_seek_table(config_scanner *s, config_source *source) {
    config_scanner start = *s;
    config_token name;
    config_seek_return(s, source);
    config_next(s);
    if (!config_is_name(s)) return;
    name = s->token;
    config_next(s);
    if (config_is(s, ";")) config_next(s);
    if (s->token.kind != CFG_END) return;
    *s = start;
    config_seek_value(s, &name);
}

/* Fills in the line of every field; keys given twice are mistakes. */
static void config_scan(const char *text, size_t bytes, config_source *source,
                        config_report *report) {
    config_scanner s;
    int row;
    source->count = 0;
    source->dynamic = false;
    config_start(&s, text, bytes);
    config_seek_table(&s, source);
    if (config_is(&s, "{")) config_scan_table(&s, source, report, -1);
    for (row = 0; row < CFG_ROWS; row++) {
        const char *key = config_key(&config_fields[row]);
        source->lines[row] = config_key_line(source, config_fields[row].parent, key, strlen(key));
    }
}
