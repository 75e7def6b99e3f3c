/* config: reading a config written in Lua. A file runs in a state of its own that sees a few
 * harmless functions only, with limits on instructions, on memory, on the length of a string, and,
 * for compiling and should those leave a loophole, on time. All of its table's mistakes are found
 * in one pass. */

#define CFG_MAX_FILE_BYTES (256 * 1024)
#define CFG_MAX_MEMORY (4 * 1024 * 1024) /* of the state, its stack and all values */
#define CFG_MAX_STRING_BYTES (16 * 1024) /* so that one instruction cannot run for long */
#define CFG_MAX_INSTRUCTIONS 1000000
#define CFG_HOOK_INSTRUCTIONS 1000
#define CFG_MAX_US 500000
#define CFG_PART_BYTES 256 /* compiled between two looks at the clock */
#define CFG_MAX_PRINTS 100

static cairn_status config_copy_error(const base *b, char *error, size_t error_bytes) {
    if (error && error != b->error && error_bytes) snprintf(error, error_bytes, "%s", b->error);
    return b->status;
}

#define CFG_SHOWN_NAME_BYTES 58 /* less than where Lua shortens names of its own accord */

/* A file's name in messages: a long path keeps its end. */
static const char *config_short_name(const char *name) {
    size_t bytes = name ? strlen(name) : 0;
    if (!name) return "config";
    if (bytes > CFG_SHOWN_NAME_BYTES) name += bytes - CFG_SHOWN_NAME_BYTES;
    while ((*name & 0xc0) == 0x80) name++; /* not in the middle of a UTF-8 character */
    return name;
}

#ifndef CAIRN_NO_LUA

static void *config_at(cairn_config *config, const config_field *field) {
    return (char *)config + field->offset;
}

/* Whether two names differ in underscores and the case of letters alone. */
static bool config_is_alike(const char *a, const char *b) {
    for (;; a++, b++) {
        while (*a == '_') a++;
        while (*b == '_') b++;
        if (config_lower(*a) != config_lower(*b)) return false;
        if (!*a) return true;
    }
}

/* The path meant by an unknown key: the same but for underscores in this group, else the same key
 * elsewhere, else the nearest in this group or one that begins so. */
static const char *config_nearest_path(int parent, const char *wrong) {
    const size_t bytes = strlen(wrong);
    int row, best = -1, least = INT_MAX, begins = -1;
    for (row = 0; row < CFG_ROWS; row++)
        if (config_fields[row].parent == parent &&
            config_is_alike(wrong, config_key(&config_fields[row])))
            return config_fields[row].path;
    for (row = 0; row < CFG_ROWS; row++) {
        int distance = config_distance(wrong, config_key(&config_fields[row]));
        if (distance == 0) return config_fields[row].path;
        if (config_fields[row].parent != parent) continue;
        if (distance < least) least = distance, best = row;
        if (begins < 0 && bytes > 2 && !strncmp(config_key(&config_fields[row]), wrong, bytes)) begins = row;
    }
    if (best < 0 || !config_is_near(least, wrong)) best = begins;
    return best >= 0 ? config_fields[best].path : NULL;
}

/* ---- from a Lua value to a field ----------------------------------------------------------- */

typedef struct config_reader {
    lua_State *lua;
    config_report *report;
    const config_source *source; /* NULL: a table without one */
    cairn_config *config;
} config_reader;

static const char *config_expected(const config_field *field) {
    switch (field->kind) {
    case CFG_INT: case CFG_INT64: return "an integer";
    case CFG_FLOAT: return "a number";
    case CFG_BOOL: return "true or false";
    case CFG_ENUM: case CFG_CHOICE: case CFG_STRING: return "a string";
    case CFG_STRINGS: return "a table of strings";
    case CFG_LAYERS: return "\"all\", \"none\" or a table of layer numbers";
    case CFG_GROUP: break;
    }
    return "a table";
}

/* "a string", "an integer": what the value is. */
static const char *config_is_what(lua_State *lua, int index) {
    switch (lua_type(lua, index)) {
    case LUA_TSTRING: return "a string";
    case LUA_TNUMBER: return "a number";
    case LUA_TBOOLEAN: return "a boolean";
    case LUA_TTABLE: return "a table";
    case LUA_TFUNCTION: return "a function";
    case LUA_TNIL: return "nil";
    }
    return "no plain value";
}

/* The value as one would write it; nothing for tables and functions. Allocates nothing. */
static void config_print_value(config_text *text, lua_State *lua, int index) {
    size_t bytes = 0;
    const char *string;
    switch (lua_type(lua, index)) {
    case LUA_TSTRING:
        string = lua_tolstring(lua, index, &bytes);
        config_print_short(text, string, bytes);
        break;
    case LUA_TNUMBER:
        if (lua_isinteger(lua, index))
            config_print(text, "%lld", (long long)lua_tointeger(lua, index));
        else config_print_number(text, (double)lua_tonumber(lua, index), false);
        break;
    case LUA_TBOOLEAN: config_print(text, lua_toboolean(lua, index) ? "true" : "false"); break;
    default: break;
    }
}

static void config_wrong_type(const config_reader *r, const config_field *field, const char *item,
                              int index,
                           const char *expected) {
    char shown[CFG_TEXT_BYTES], range[CFG_TEXT_BYTES];
    config_text text;
    config_range(field, range, sizeof range);
    config_text_init(&text, shown, sizeof shown);
    config_print_value(&text, r->lua, index);
    config_bad(r->report, field, item, "%s%s is %s; %s is expected%s", shown[0] ? " = " : "", shown,
            config_is_what(r->lua, index), expected, range);
}

/* The number as an integer, 4.0 counting as one; false after the mistake was kept. */
static bool config_to_int(const config_reader *r, const config_field *field, int index,
                          int64_t *out) {
    int is_int = 0;
    double number = (double)lua_tonumber(r->lua, index);
    char shown[CFG_TEXT_BYTES], range[CFG_TEXT_BYTES];
    config_text text;
    *out = lua_tointegerx(r->lua, index, &is_int);
    if (is_int) return true;
    config_text_init(&text, shown, sizeof shown);
    config_print_value(&text, r->lua, index);
    config_range(field, range, sizeof range);
    if (isfinite(number) && floor(number) < number)
        config_bad(r->report, field, "", " = %s is not an integer%s", shown, range);
    else config_not_allowed(r->report, field, shown, NULL);
    return false;
}

static void config_read_number(const config_reader *r, const config_field *field, int index) {
    void *at = config_at(r->config, field);
    int64_t value;
    int32_t int32;
    float number;
    if (field->kind == CFG_FLOAT) {
        if (!config_check_float(r->report, field, (double)lua_tonumber(r->lua, index))) return;
        number = (float)lua_tonumber(r->lua, index);
        memcpy(at, &number, sizeof number);
        return;
    }
    if (!config_to_int(r, field, index, &value) || !config_check_int(r->report, field,
                                                                     value)) return;
    int32 = (int32_t)value;
    if (field->kind == CFG_INT) memcpy(at, &int32, sizeof int32);
    else memcpy(at, &value, sizeof value);
}

/* A string into a zeroed array of field->bytes. */
static void config_put(char *at, const config_field *field, const char *string, size_t bytes) {
    memset(at, 0, field->bytes);
    memcpy(at, string, bytes);
}

static void config_read_string(const config_reader *r, const config_field *field, int index) {
    size_t bytes = 0;
    const char *string = lua_tolstring(r->lua, index, &bytes);
    void *at = config_at(r->config, field);
    int32_t code;
    if (field->kind == CFG_STRING) {
        if (config_check_text(r->report, field, "", string, bytes))
            config_put((char *)at, field, string, bytes);
        return;
    }
    code = config_check_name(r->report, field, string, bytes);
    if (code < 0) return;
    if (field->kind == CFG_CHOICE) config_put((char *)at, field, string, bytes);
    else memcpy(at, &code, sizeof code);
}

/* Whether all keys of the list are 1 to its length; else one mistake. */
static bool config_is_list(const config_reader *r, const config_field *field, int index) {
    lua_Unsigned count = lua_rawlen(r->lua, index);
    lua_pushnil(r->lua);
    while (lua_next(r->lua, index)) {
        lua_Integer key = lua_isinteger(r->lua, -2) ? lua_tointeger(r->lua, -2) : 0;
        lua_pop(r->lua, 1);
        if (key >= 1 && (lua_Unsigned)key <= count) continue;
        lua_pop(r->lua, 1);
        config_bad(r->report, field, "", " has a key; a list without keys or holes is expected");
        return false;
    }
    return true;
}

static void config_read_strings(const config_reader *r, const config_field *field, int index) {
    char *at = (char *)config_at(r->config, field);
    int32_t i, count = 0;
    if (!config_is_list(r, field, index)) return;
    if (lua_rawlen(r->lua, index) > (lua_Unsigned)field->count) {
        config_bad(r->report, field, "", " has %llu strings; %d at most",
                (unsigned long long)lua_rawlen(r->lua, index), field->count);
        return;
    }
    for (i = 1; i <= (int32_t)lua_rawlen(r->lua, index); i++) {
        char item[16];
        size_t bytes = 0;
        snprintf(item, sizeof item, "[%d]", (int)i);
        if (lua_rawgeti(r->lua, index, i) != LUA_TSTRING) {
            config_wrong_type(r, field, item, -1, "a string");
        } else {
            const char *string = lua_tolstring(r->lua, -1, &bytes);
            if (config_check_text(r->report, field, item, string, bytes))
                config_put(at + (size_t)count++ * field->bytes, field, string, bytes);
        }
        lua_pop(r->lua, 1);
    }
    memcpy((char *)r->config + field->count_offset, &count, sizeof count);
}

static void config_read_layer_list(const config_reader *r, const config_field *field, int index) {
    uint64_t layers[CAIRN_MAX_LAYERS / 64] = {0};
    lua_Unsigned i, count = lua_rawlen(r->lua, index);
    if (!config_is_list(r, field, index)) return;
    for (i = 1; i <= count && config_has_room(r->report); i++) {
        int is_int = 0;
        char item[32];
        lua_Integer layer;
        lua_rawgeti(r->lua, index, (lua_Integer)i);
        layer = lua_type(r->lua, -1) == LUA_TNUMBER ? lua_tointegerx(r->lua, -1, &is_int) : 0;
        snprintf(item, sizeof item, "[%llu]", (unsigned long long)i);
        if (!is_int) config_wrong_type(r, field, item, -1, "a layer number");
        else if (layer < 0 || layer >= CAIRN_MAX_LAYERS)
            config_bad(r->report, field, item, " = %lld is not allowed (0 to %d)", (long long)layer,
                    CAIRN_MAX_LAYERS - 1);
        else layers[layer / 64] |= (uint64_t)1 << (layer % 64);
        lua_pop(r->lua, 1);
    }
    memcpy(config_at(r->config, field), layers, sizeof layers);
}

static void config_read_layers(const config_reader *r, const config_field *field, int index) {
    const char *word;
    char shown[CFG_TEXT_BYTES];
    config_text text;
    if (lua_type(r->lua, index) == LUA_TTABLE) {
        config_read_layer_list(r, field, index);
        return;
    }
    word = lua_tostring(r->lua, index);
    if (!strcmp(word, "all") || !strcmp(word, "none")) {
        memset(config_at(r->config, field), word[0] == 'a' ? 0xff : 0, field->bytes);
        return;
    }
    config_text_init(&text, shown, sizeof shown);
    config_print_value(&text, r->lua, index);
    config_bad(r->report, field, "", " = %s is not allowed (%s)", shown, config_expected(field));
}

static bool config_has_type(const config_field *field, int type) {
    switch (field->kind) {
    case CFG_INT: case CFG_INT64: case CFG_FLOAT: return type == LUA_TNUMBER;
    case CFG_BOOL: return type == LUA_TBOOLEAN;
    case CFG_ENUM: case CFG_CHOICE: case CFG_STRING: return type == LUA_TSTRING;
    case CFG_LAYERS: return type == LUA_TTABLE || type == LUA_TSTRING;
    case CFG_STRINGS: case CFG_GROUP: break;
    }
    return type == LUA_TTABLE;
}

/* ---- from a Lua table to a config ---------------------------------------------------------- */

static void config_read_table(const config_reader *r, int parent, int index);

static void config_read_field(const config_reader *r, int row, int index) {
    const config_field *field = &config_fields[row];
    bool flag;
    if (!config_has_type(field, lua_type(r->lua, index))) {
        config_wrong_type(r, field, "", index, config_expected(field));
        return;
    }
    switch (field->kind) {
    case CFG_INT: case CFG_INT64: case CFG_FLOAT: config_read_number(r, field, index); break;
    case CFG_ENUM: case CFG_CHOICE: case CFG_STRING: config_read_string(r, field, index); break;
    case CFG_STRINGS: config_read_strings(r, field, index); break;
    case CFG_LAYERS: config_read_layers(r, field, index); break;
    case CFG_GROUP: config_read_table(r, row, index); break;
    case CFG_BOOL:
        flag = lua_toboolean(r->lua, index);
        memcpy(config_at(r->config, field), &flag, sizeof flag);
        break;
    }
}

/* A key that is no field: the key stands at -2 of the stack. */
static void config_unknown_key(const config_reader *r, int parent) {
    char shown[CFG_TEXT_BYTES], name[CFG_NAME_BYTES + 1];
    const char *key = NULL, *hint = NULL, *group = parent < 0 ? "" : config_fields[parent].path;
    size_t bytes = 0;
    int line = 0;
    config_text text;
    if (!config_has_room(r->report)) { r->report->count++; return; }
    if (lua_type(r->lua, -2) == LUA_TSTRING) key = lua_tolstring(r->lua, -2, &bytes);
    config_text_init(&text, shown, sizeof shown);
    if (key && bytes < sizeof name && strspn(key, "abcdefghijklmnopqrstuvwxyz"
            "ABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789") == bytes) {
        snprintf(name, sizeof name, "%s", key);
        config_print(&text, "%s%s%s", group, *group ? "." : "", key);
        hint = config_nearest_path(parent, name);
    } else {
        config_print(&text, "%s[", group);
        config_print_value(&text, r->lua, -2);
        config_print(&text, "]");
    }
    if (key) line = config_key_line(r->source, parent, key, bytes);
    else if (lua_isinteger(r->lua, -2))
        line = config_item_line(r->source, parent, lua_tointeger(r->lua, -2));
    config_add(r->report, line, "%s%s is not a field%s%s%s", shown,
            !line ? " (computed)" : "", hint ? "; did you mean " : "",
            hint ? hint : "", hint ? "?" : "");
}

/* Reads the table at the absolute index, raw: metamethods are never called. */
static void config_read_table(const config_reader *r, int parent, int index) {
    lua_pushnil(r->lua);
    while (lua_next(r->lua, index)) {
        int row = -1;
        if (lua_type(r->lua, -2) == LUA_TSTRING) {
            size_t bytes;
            const char *key = lua_tolstring(r->lua, -2, &bytes);
            row = config_find(parent, key, bytes);
        }
        if (row >= 0) config_read_field(r, row, lua_gettop(r->lua));
        else config_unknown_key(r, parent);
        lua_pop(r->lua, 1);
    }
}

/* ---- the sandbox --------------------------------------------------------------------------- */

typedef struct config_work {
    base *host;
    const char *text, *name;
    char shown[4 * CFG_SHOWN_NAME_BYTES + 1]; /* the name, with what commands a terminal escaped */
    size_t text_bytes, memory_bytes;
    size_t text_read;   /* by the compiler */
    bool late;          /* it was stopped, for the time it took */
    bool host_is_short; /* the last failed allocation was the host's, not a limit of ours */
    long instructions;
    int64_t deadline_us;
    int prints;
    cairn_config config;
    config_report report;
    config_source source;
} config_work;

static config_work *config_work_of(lua_State *lua) {
    void *user;
    lua_getallocf(lua, &user);
    return (config_work *)user;
}

/* lua_Alloc. old_bytes is the type of a new object when memory is NULL. */
static void *config_lua_memory(void *user, void *memory, size_t old_bytes, size_t new_bytes) {
    config_work *work = (config_work *)user;
    size_t held = memory ? old_bytes : 0;
    void *fresh;
    bool string = !memory && old_bytes == LUA_TSTRING;
    if (!memory && !new_bytes) return NULL;
    if (new_bytes > held && ((string && new_bytes > CFG_MAX_STRING_BYTES) ||
                             new_bytes - held > CFG_MAX_MEMORY - work->memory_bytes)) {
        work->host_is_short = false;
        return NULL;
    }
    fresh = base_realloc(work->host, memory, held, new_bytes);
    if (!fresh && new_bytes) {
        work->host_is_short = true;
        return NULL;
    }
    work->memory_bytes = work->memory_bytes - held + new_bytes;
    return fresh;
}

static void config_count(lua_State *lua, lua_Debug *ar) {
    config_work *work = config_work_of(lua);
    const char *why = NULL;
    work->instructions += CFG_HOOK_INSTRUCTIONS;
    if (work->instructions >= CFG_MAX_INSTRUCTIONS) why = "instructions";
    else if (os_thread_us() > work->deadline_us) why = "milliseconds";
    if (!why) return;
    lua_getinfo(lua, "Sl", ar);
    lua_pushfstring(lua, "%s:%d: stopped after %d %s; is there an endless loop?", work->name,
                    ar->currentline, *why == 'i' ? CFG_MAX_INSTRUCTIONS : CFG_MAX_US / 1000, why);
    lua_error(lua);
}

static int config_lua_print(lua_State *lua) {
    config_work *work = config_work_of(lua);
    char line[CFG_TEXT_BYTES * 2];
    config_text text;
    int i, count = lua_gettop(lua);
    config_text_init(&text, line, sizeof line);
    for (i = 1; i <= count && !text.full; i++) {
        config_print(&text, "%s%s", i > 1 ? "\t" : "", luaL_tolstring(lua, i, NULL));
        lua_pop(lua, 1);
    }
    if (work->prints++ < CFG_MAX_PRINTS) base_log(work->host, CAIRN_LOG_INFO, "%s", line);
    return 0;
}

/* Copies the named fields of the table at -1 into a new table that takes its place. */
static void config_keep(lua_State *lua, const char *const *names) {
    lua_newtable(lua);
    for (; *names; names++) {
        lua_getfield(lua, -2, *names);
        lua_setfield(lua, -2, *names);
    }
    lua_remove(lua, -2);
}

/* What a config sees. Nothing here calls back, catches an error, reaches outside, or does more work
 * than its arguments' sizes, which are small. */
static void config_open_library(lua_State *lua) {
    static const char *const base_names[] = {"assert", "error", "ipairs", "next", "pairs", "select",
                                             "tonumber", "tostring", "type", NULL};
    static const char *const string_names[] = {"byte", "char", "format", "len", "lower", "reverse",
                                               "sub", "upper", NULL};
    static const char *const math_names[] = {
        "abs", "acos", "asin", "atan", "ceil", "cos", "deg", "exp", "floor", "fmod", "huge", "log",
        "max", "maxinteger", "min", "mininteger", "modf", "pi", "rad", "sin", "sqrt", "tan",
        "tointeger", "type", "ult", NULL};
    lua_pushcfunction(lua, luaopen_base);
    lua_call(lua, 0, 1);
    config_keep(lua, base_names);
    lua_pushcfunction(lua, luaopen_math);
    lua_call(lua, 0, 1);
    config_keep(lua, math_names);
    lua_setfield(lua, -2, "math");
    lua_pushcfunction(lua, luaopen_string);
    lua_call(lua, 0, 1);
    config_keep(lua, string_names);
    lua_pushliteral(lua, "");
    lua_newtable(lua);
    lua_pushvalue(lua, -3);
    lua_setfield(lua, -2, "__index");
    lua_setmetatable(lua, -2); /* of all strings */
    lua_pop(lua, 1);
    lua_setfield(lua, -2, "string");
    lua_pushcfunction(lua, config_lua_print);
    lua_setfield(lua, -2, "print");
    lua_rawseti(lua, LUA_REGISTRYINDEX, LUA_RIDX_GLOBALS);
}

/* ---- running a file ------------------------------------------------------------------------ */

/* A lua_Reader. To compile some texts takes long (jumps and labels are kept in lists), and only
 * here can it be stopped: then the text seems to end. */
static const char *config_next_part(lua_State *lua, void *user, size_t *bytes) {
    config_work *work = (config_work *)user;
    const char *part = work->text + work->text_read;
    (void)lua;
    *bytes = work->text_bytes - work->text_read;
    if (*bytes > CFG_PART_BYTES) *bytes = CFG_PART_BYTES;
    work->late = work->late || os_thread_us() > work->deadline_us;
    if (work->late) *bytes = 0;
    work->text_read += *bytes;
    return *bytes ? part : NULL;
}

/* Runs protected: (work) -> the chunk's value. */
static int config_run(lua_State *lua) {
    config_work *work = (config_work *)lua_touserdata(lua, 1);
    config_reader reader;
    const char *mark = lua_pushfstring(lua, "@%s", work->name);
    config_open_library(lua);
    if (lua_load(lua, config_next_part, work, mark, "t") && !work->late) return lua_error(lua);
    if (work->late)
        return luaL_error(lua, "%s: stopped after %d milliseconds of compiling; is an expression "
                          "endless?", work->name, CFG_MAX_US / 1000);
    config_scan(work->text, work->text_bytes, &work->source, &work->report);
    work->report.lines = work->source.lines;
    lua_sethook(lua, config_count, LUA_MASKCOUNT, CFG_HOOK_INSTRUCTIONS);
    lua_call(lua, 0, 1);
    lua_sethook(lua, NULL, 0, 0);
    if (lua_type(lua, -1) != LUA_TTABLE) {
        config_add(&work->report, 0, "the file returns %s; a table is expected: return { ... }",
                config_is_what(lua, -1));
        return 0;
    }
    reader.lua = lua;
    reader.report = &work->report;
    reader.source = &work->source;
    reader.config = &work->config;
    config_read_table(&reader, -1, lua_gettop(lua));
    config_check_together(&work->report, &work->config);
    return 0;
}

/* Keeps a Lua error, which has its file and line already, as the only mistake. */
static void config_lua_error(config_work *work, lua_State *lua, int result) {
    config_report *report = &work->report;
    const char *text = lua_type(lua, -1) == LUA_TSTRING ? lua_tostring(lua, -1) : NULL;
    size_t name_bytes = strlen(work->name);
    char *at;
    report->count = 0;
    if (result == LUA_ERRMEM)
        config_add(report, 0,
                   "it needs more than %d MiB of memory, or a string is longer than %d KiB",
                CFG_MAX_MEMORY >> 20, CFG_MAX_STRING_BYTES >> 10);
    else if (!text) config_add(report, 0, "error called with %s", config_is_what(lua, -1));
    else if (strncmp(text, work->name, name_bytes) || text[name_bytes] != ':')
        config_add(report, 0, "%s", text);
    else {
        config_add(report, 0, "%s", "");
        snprintf(report->mistakes[0].text, sizeof report->mistakes[0].text, "%s", text);
    }
    for (at = report->mistakes[0].text; *at; at++)
        if ((unsigned char)*at < 32) *at = ' ';
    if (text && (strstr(text, "a nil value (global") || strstr(text, "a nil value (field") ||
                 strstr(text, "a nil value (method")))
        snprintf(at, sizeof report->mistakes[0].text - (size_t)(at - report->mistakes[0].text),
                 "; a config may use assert error ipairs next pairs print select tonumber tostring "
                 "type, string without patterns and rep, and math without random");
}

/* False when the host's memory ran out. */
static bool config_execute(config_work *work) {
    lua_State *lua = lua_newstate(config_lua_memory, work);
    int result;
    bool enough;
    if (!lua) return false;
    lua_pushcfunction(lua, config_run);
    lua_pushlightuserdata(lua, work);
    result = lua_pcall(lua, 1, 0, 0);
    enough = result != LUA_ERRMEM || !work->host_is_short;
    if (result) config_lua_error(work, lua, result);
    lua_close(lua);
    return enough;
}

/* As cairn_config_parse, with the caller's memory and log. */
static cairn_status config_parse(base *b, const char *text, size_t bytes, const char *name,
                              cairn_config *out, char *error, size_t error_bytes) {
    static const char mark[] = "\xef\xbb\xbf"; /* some editors put it before UTF-8 */
    config_work *work = (config_work *)base_new(b, 1, sizeof *work);
    cairn_status status;
    if (!work) {
        base_no_memory(b, "reading a config", sizeof *work);
        return config_copy_error(b, error, error_bytes);
    }
    if (bytes >= 3 && !memcmp(text, mark, 3)) text += 3, bytes -= 3;
    work->host = b;
    work->text = text;
    work->text_bytes = bytes;
    if (name) base_show(config_short_name(name), false, work->shown, sizeof work->shown);
    work->name = config_short_name(name ? work->shown : NULL);
    work->deadline_us = os_thread_us() + CFG_MAX_US;
    config_set_defaults(&work->config);
    config_report_init(&work->report, work->name);
    if (bytes > CFG_MAX_FILE_BYTES)
        config_add(&work->report, 0, "longer than %d KiB", CFG_MAX_FILE_BYTES >> 10);
    if (bytes <= CFG_MAX_FILE_BYTES && !config_execute(work)) {
        base_no_memory(b, work->name, work->memory_bytes);
        status = config_copy_error(b, error, error_bytes);
    } else {
        status = config_finish(b, &work->report, error, error_bytes);
    }
    if (!status) *out = work->config;
    base_delete(b, work, 1, sizeof *work);
    return status;
}

/* A config's bytes, never more than one above the limit. */
static cairn_status config_read_file(base *b, const char *path, base_text *text) {
    os_file_info info;
    int64_t got = 1, file = os_open_regular(path, &info);
    if (file < 0) return os_fail(b, (int)file, "open", path);
    while (got > 0 && text->size <= CFG_MAX_FILE_BYTES) {
        if (!base_text_reserve(b, text, 4096)) { got = -ENOMEM; break; }
        got = os_calls.read(file, text->data + text->size, text->capacity - text->size - 1);
        if (got == -EINTR) got = 1;
        else if (got > 0) text->size += (size_t)got;
    }
    os_calls.close(file);
    if (got == -ENOMEM) return base_no_memory(b, path, text->size + 4096);
    return got < 0 ? os_fail(b, (int)got, "read", path) : CAIRN_OK;
}

/* As cairn_config_load, with the caller's memory and log. */
static cairn_status config_load(base *b, const char *path, cairn_config *out, char *error,
                             size_t error_bytes) {
    base_text text = {NULL, 0, 0};
    cairn_status status = config_read_file(b, path, &text);
    if (status) config_copy_error(b, error, error_bytes);
    else status = config_parse(b, text.data, text.size, path, out, error, error_bytes);
    base_text_free(b, &text);
    return status;
}

#else

static cairn_status config_parse(base *b, const char *text, size_t bytes, const char *name,
                              cairn_config *out, char *error, size_t error_bytes) {
    (void)text; (void)bytes; (void)out;
    base_fail(b, CAIRN_UNSUPPORTED, "%s: this build has no Lua (CAIRN_NO_LUA) to read configs "
              "with; call cairn_config_default and set fields in C", config_short_name(name));
    return config_copy_error(b, error, error_bytes);
}

static cairn_status config_load(base *b, const char *path, cairn_config *out, char *error,
                             size_t error_bytes) {
    return config_parse(b, NULL, 0, path, out, error, error_bytes);
}

#endif

/* ---- calls --------------------------------------------------------------------------------- */

cairn_status cairn_config_parse(const char *text, size_t bytes, const char *name,
                                cairn_config *config, char *error, size_t error_bytes) {
    base b;
    if (!config || (!text && bytes))
        return config_refuse_null(config ? "config_parse: text" : "config_parse: config", error,
                               error_bytes);
    base_init(&b, NULL, NULL, NULL, CAIRN_LOG_OFF);
    return config_parse(&b, text, bytes, name, config, error, error_bytes);
}

cairn_status cairn_config_load(const char *path, cairn_config *config, char *error,
                               size_t error_bytes) {
    base b;
    if (!path || !config)
        return config_refuse_null(path ? "config_load: config" : "config_load: path", error,
                               error_bytes);
    base_init(&b, NULL, NULL, NULL, CAIRN_LOG_OFF);
    return config_load(&b, path, config, error, error_bytes);
}
