/* config: files that want to hang, grow or break out, damaged ones, and memory and files that fail.
 * Each ends soon, within bounded memory, as a status, with nothing leaked and nothing written. */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "random.h"
#include "tap.h"

/* ---- an allocator that counts and fails ---------------------------------------------------- */

typedef struct meter {
    size_t live, peak;
    long calls, fail_at; /* the call that fails, 0: none */
    bool persistent;     /* and all after it */
    bool wrong_size;
} meter;

static void *meter_realloc(void *user, void *memory, size_t old_bytes, size_t new_bytes) {
    meter *m = (meter *)user;
    size_t *block = memory ? (size_t *)memory - 2 : NULL;
    if (new_bytes) {
        m->calls++;
        if (m->fail_at && (m->persistent ? m->calls >= m->fail_at : m->calls == m->fail_at))
            return NULL;
    }
    if ((block ? block[0] : 0) != old_bytes) m->wrong_size = true;
    m->live += new_bytes - old_bytes;
    if (m->live > m->peak) m->peak = m->live;
    if (!new_bytes) { free(block); return NULL; }
    block = (size_t *)realloc(block, new_bytes + 2 * sizeof *block);
    block[0] = new_bytes;
    return block + 2;
}

static void meter_base(base *b, meter *m, cairn_allocator *allocator) {
    memset(m, 0, sizeof *m);
    allocator->user = m;
    allocator->realloc = meter_realloc;
    base_init(b, allocator, NULL, NULL, CAIRN_LOG_OFF);
}

/* ---- hostile files ------------------------------------------------------------------------- */

#define MANY 2000000 /* bytes; more than a file may have */

typedef struct hostile { const char *name, *text; const char *says; } hostile;

static const hostile hostiles[] = {
    {"endless loop", "while true do end", "endless loop"},
    {"endless goto", "::a:: goto a", "endless loop"},
    {"endless for", "for i = 1, math.huge do end", "endless loop"},
    {"endless tail call", "local function f() return f() end f()", "endless loop"},
    {"endless recursion", "local function f() return 1 + f() end f()", "memory"},
    {"endless C recursion", "local function f(x) for k in f, x do end end f(1)", NULL},
    {"doubling strings", "local s = 'x' while true do s = s .. s end", "memory"},
    {"a string of 16 KiB", "local s = 'x' for i = 1, 14 do s = s .. s end return {}",
     "longer than"},
    {"many strings", "local t = {} for i = 1, 1e9 do t[i] = 'a' .. i end", "memory"},
    {"many tables", "local t = {} while true do t = { t } end", NULL},
    {"growing table", "local t = {} for i = 1, 1e9 do t[i] = i end", "memory"},
    {"hash table", "local t = {} for i = 1, 1e9 do t[-i] = i end", "memory"},
    {"closures", "local t = {} for i = 1, 1e9 do t[i] = function() return i end end", "memory"},
    {"long compares", "local s = 'x' for i = 1, 13 do s = s .. s end local t = s .. 'b' "
     "while true do local b = s < t end", "stopped"},
    {"long upper", "local s = 'x' for i = 1, 13 do s = s .. s end "
     "while true do local b = s:upper() end", "stopped"},
    {"long format", "while true do local b = ('%99.99f'):format(1e308) end", "stopped"},
    {"wide format", "return { log = ('%9999d'):format(1) }", "invalid conversion"},
    {"many results", "local s = 'x' for i = 1, 13 do s = s .. s end while true do "
     "local n = select('#', s:byte(1, -1)) end", "stopped"},
    {"huge byte", "return ('x'):byte(1, 2^53)", "table is expected"},
    {"huge select", "return select(-2^53, 1)", "out of range"},
    {"next over holes", "local t = {} for i = 1, 1e5 do t[i] = 1 end for i = 1, 1e5 do t[i] = nil "
     "end while true do next(t) end", "stopped"},
    {"no rep", "return ('x'):rep(1e9)", "nil value"},
    {"no find", "return ('x'):find('x')", "nil value"},
    {"no gsub", "return string.gsub('x', 'x', 'y')", "nil value"},
    {"no pcall", "pcall(error)", "nil value"},
    {"no load", "load('x = 1')()", "nil value"},
    {"no dofile", "dofile('/etc/passwd')", "nil value"},
    {"no require", "require 'os'", "nil value"},
    {"no io", "io.open('x')", "nil value"},
    {"no os", "os.exit(1)", "nil value"},
    {"no debug", "debug.sethook()", "nil value"},
    {"no metatables", "setmetatable({}, {})", "nil value"},
    {"no metatable of strings", "getmetatable('').__index.rep('x', 1e9)", "nil value"},
    {"no raw access", "rawset({}, 1, 1)", "nil value"},
    {"no coroutines", "coroutine.wrap(function() end)()", "nil value"},
    {"no collector", "collectgarbage('stop')", "nil value"},
    {"no concat", "table.concat({})", "nil value"},
    {"no random", "return { topk = math.random(9) }", "nil value"},
    {"globals are empty", "return _G.string", "nil value"},
    {"error with a table", "error({})", "error called with a table"},
    {"error with nothing", "error()", "error called with nil"},
    {"error at a level", "error('mine', 0)", "mine"},
    {"bytecode", "\x1bLua\x54\0\x19\x93", "binary"},
    {"many unknown keys", "local t = {} for i = 1, 20000 do t['k' .. i] = i end return t",
     "not a field"},
    {"long key", "local s = 'x' for i = 1, 13 do s = s .. s end "
     "return { [s] = 1, stop = { [s] = s }, drafter = s }", "not a field"},
    {"many layers", "local t = {} for i = 1, 60000 do t[i] = i end "
     "return { selection = { layers = t } }", "not allowed"},
    {"a table in itself", "local t = {} t.selection = t t.jit = t t.stop = t return t",
     "not a field"},
    {"prints without end", "while true do print('x', {}, 1) end", "stopped"},
};

/* A bad file through the given base: the text of the error is checked by the caller. */
static bool fails_soon(base *b, meter *m, const char *text, size_t bytes, char *error,
                       size_t room) {
    cairn_config config, before;
    clock_t began = clock(); /* of this process: whatever else runs */
    memset(&config, 0x33, sizeof config);
    before = config;
    if (config_parse(b, text, bytes, "bad.lua", &config, error, room) != CAIRN_INVALID_CONFIG)
        return false;
    if (memcmp(&config, &before, sizeof config)) return tap_note("the config was written"), false;
    if (clock() - began > 2 * CLOCKS_PER_SEC) return tap_note("took too long"), false;
    if (m->live || m->wrong_size) return tap_note("%d bytes leaked", (int)m->live), false;
    if (m->peak > CFG_MAX_MEMORY + (1 << 20)) return tap_note("took %d bytes", (int)m->peak), false;
    return true;
}

static void test_hostiles(void) {
    size_t i;
    char error[4096];
    for (i = 0; i < BASE_COUNT(hostiles); i++) {
        const hostile *h = &hostiles[i];
        size_t bytes = h->text[0] == 27 ? 8 : strlen(h->text);
        cairn_allocator allocator;
        meter m;
        base b;
        bool good;
        meter_base(&b, &m, &allocator);
        good = fails_soon(&b, &m, h->text, bytes, error, sizeof error);
        if (h->says && !strstr(error, h->says)) good = false;
        if (strncmp(error, "bad.lua", 7)) good = false;
        if (!tap_ok(good, "%s", h->name)) tap_note("%s", error);
    }
}

/* `count` copies of a piece between a head and a tail. */
static void test_repeated(const char *name, const char *head, const char *piece, int count,
                          const char *tail) {
    char *text = (char *)malloc(strlen(head) + strlen(piece) * (size_t)count + strlen(tail) + 1);
    char error[512];
    size_t used = strlen(head);
    cairn_allocator allocator;
    meter m;
    base b;
    int i;
    memcpy(text, head, used);
    for (i = 0; i < count; i++, used += strlen(piece)) memcpy(text + used, piece, strlen(piece));
    memcpy(text + used, tail, strlen(tail));
    meter_base(&b, &m, &allocator);
    tap_ok(fails_soon(&b, &m, text, used + strlen(tail), error, sizeof error), "%s", name);
    free(text);
}

static void test_noise(uint64_t *seed) {
    static char noise[100000];
    char error[512];
    cairn_allocator allocator;
    meter m;
    base b;
    size_t i;
    meter_base(&b, &m, &allocator);
    tap_ok(fails_soon(&b, &m, noise, sizeof noise, error, sizeof error), "a file of zeros");
    for (i = 0; i < sizeof noise; i++) noise[i] = (char)random_next(seed);
    tap_ok(fails_soon(&b, &m, noise, sizeof noise, error, sizeof error), "a file of noise");
}

/* An index in an index, 180 times, around a long sum: each bracket might be an assignment's. */
static void test_deep_and_long(void) {
    enum { DEEP = 180, LONG = 125000 };
    char *head = (char *)calloc(1, 16 + 2 * DEEP + 2), *tail = (char *)calloc(1, DEEP + 32);
    strcpy(head, "local c = {} ");
    for (int i = 0; i < DEEP; i++) strcat(head, "c["), strcat(tail, "]");
    strcat(head, "1");
    strcat(tail, " = 1 return 1");
    test_repeated("deep and long", head, "+1", LONG, tail);
    free(head), free(tail);
}

static void test_big_sources(void) {
    test_repeated("2 MB of blanks", "return {", " ", MANY, "}");
    test_repeated("deep tables", "return ", "{", 5000, "}");
    test_repeated("deep brackets", "return ", "(", 100000, "1");
    test_repeated("deep functions", "", "return function() ", 5000, "");
    test_repeated("deep index", "return { topk = x", "[x", 190, "");
    test_repeated("many keys", "return {", "topk = 1,", 25000, "}");
    test_repeated("many groups", "return {", "selection = { window = 1 },", 9000, "}");
    test_repeated("many constants", "local x; x = {", "{1.5},", 40000, "} return x");
    test_repeated("an open string", "return { topk = '", "x", 100000, "");
    test_repeated("an open comment", "return { --[[", "x", 100000, "");
    test_repeated("a long string", "return { log = [[", "x", 100000, "]] }");
    test_repeated("many assignments", "local c = {} ", "c.topk = 1 ", 10000, "return c c");
    test_repeated("a long or", "local x return { topk = x", " or x", 52000, " }");
    test_repeated("a long and", "local x return { topk = 1", " and x", 43000, " }");
    test_repeated("a long or of comparisons", "local x return { topk = x", " or x == 1", 26000, " }");
    test_repeated("many jumps", "do ", "goto a ", 37000, "::a:: end return { topk = -1 }");
    test_repeated("many breaks", "while x do ", "if x then break end ", 13000, "end return 1");
    test_deep_and_long();
}

/* ---- mutations ----------------------------------------------------------------------------- */

#define MAX_TOKENS 256

typedef struct dictionary { char tokens[MAX_TOKENS][48]; int count; } dictionary;

/* tests/config/config.dict: one "token" a line, with \" and \\. */
static bool read_dictionary(dictionary *d) {
    FILE *file = fopen("tests/config/config.dict", "r");
    char line[128];
    d->count = 0;
    if (!file) return false;
    while (d->count < MAX_TOKENS && fgets(line, sizeof line, file)) {
        char *to = d->tokens[d->count], *from = line + 1, *end = strrchr(line, '"');
        if (line[0] != '"' || end == line || end - line > 40) continue;
        while (from < end) {
            if (*from == '\\') from++;
            *to++ = *from++;
        }
        *to = '\0';
        d->count++;
    }
    fclose(file);
    return d->count > 50;
}

/* Replaces up to 8 bytes at a random place by a token, a byte, or a piece of the text itself. */
static size_t mutate(char *text, size_t bytes, size_t room, const dictionary *d, uint64_t *seed) {
    size_t at = (size_t)(random_next(seed) % (bytes + 1)), cut = (size_t)(random_next(seed) % 8);
    char piece[64];
    size_t more = 1;
    piece[0] = (char)random_next(seed);
    if (random_next(seed) % 4) {
        snprintf(piece, sizeof piece, " %s ", d->tokens[random_next(seed) % (uint64_t)d->count]);
        more = strlen(piece);
    } else if (random_next(seed) % 2 && bytes > 40) {
        more = (size_t)(random_next(seed) % 40);
        memcpy(piece, text + random_next(seed) % (bytes - 40), more);
    }
    if (random_next(seed) % 3) cut = 0;
    if (cut > bytes - at) cut = bytes - at;
    if (bytes - cut + more > room) return bytes;
    memmove(text + at + more, text + at + cut, bytes - at - cut);
    memcpy(text + at, piece, more);
    return bytes - cut + more;
}

/* What was accepted is right, and dumps to what loads to the same; what was not says why. */
static bool is_consistent(cairn_status status, const cairn_config *config, const char *error) {
    static char dump[CAIRN_CONFIG_TEXT_BYTES];
    cairn_config again;
    if (status) return status == CAIRN_INVALID_CONFIG && !strncmp(error, "bad.lua", 7);
    return !cairn_config_check(config, &again, NULL, 0) &&
           !cairn_config_dump(config, dump, sizeof dump) &&
           !cairn_config_parse(dump, strlen(dump), NULL, &again, NULL, 0) &&
           !memcmp(config, &again, sizeof again);
}

static void test_mutations(uint64_t *seed) {
    static dictionary d;
    static char valid[CAIRN_CONFIG_TEXT_BYTES], text[CAIRN_CONFIG_TEXT_BYTES];
    clock_t until = clock() + 4 * CLOCKS_PER_SEC;
    int runs = 0, accepted = 0, wrong = 0;
    cairn_config config;
    if (!tap_ok(read_dictionary(&d), "tests/config/config.dict has tokens")) return;
    cairn_config_default(&config);
    cairn_config_dump(&config, valid, sizeof valid);
    while (clock() < until && wrong < 3) {
        size_t bytes = strlen(valid);
        int i, count = 1 + (int)(random_next(seed) % 6);
        char error[512] = "";
        cairn_allocator allocator;
        cairn_status status;
        meter m;
        base b;
        memcpy(text, valid, bytes);
        for (i = 0; i < count; i++) bytes = mutate(text, bytes, sizeof text, &d, seed);
        meter_base(&b, &m, &allocator);
        status = config_parse(&b, text, bytes, "bad.lua", &config, error, sizeof error);
        accepted += !status;
        runs++;
        if (is_consistent(status, &config, error) && !m.live && !m.wrong_size) continue;
        wrong++;
        tap_note("status %d, %s, of\n%.*s", status, error, (int)bytes, text);
    }
    tap_ok(!wrong && runs > 20 && accepted > 0, "%d mutated configs, %d of them right", runs,
           accepted);
}

/* ---- failing memory ------------------------------------------------------------------------ */

/* Fails the n-th allocation, for every n until all succeed. */
static void test_torture(const char *name, const char *text, cairn_status right, bool persistent) {
    long n;
    int wrong = 0, unharmed = 0;
    cairn_status status = CAIRN_OK;
    for (n = 1; n < 5000; n++) {
        cairn_config config, before;
        cairn_allocator allocator;
        char error[512] = "";
        meter m;
        base b;
        memset(&config, 0x33, sizeof config);
        before = config;
        meter_base(&b, &m, &allocator);
        m.fail_at = n;
        m.persistent = persistent;
        status = config_parse(&b, text, strlen(text), "c.lua", &config, error, sizeof error);
        if (m.live || m.wrong_size) wrong++;
        if (status != right && status != CAIRN_OUT_OF_MEMORY) wrong++;
        if (status == CAIRN_OUT_OF_MEMORY && !strstr(error, "cannot allocate")) wrong++;
        if (status && memcmp(&config, &before, sizeof config)) wrong++;
        if (m.calls < n) break;
        unharmed += status == right;
    }
    tap_ok(!wrong && n > 50 && n < 5000 && status == right, "%s: each of %ld allocations failed %s "
           "(%d times without harm)", name, n - 1, persistent ? "for good" : "once", unharmed);
}

/* ---- failing files ------------------------------------------------------------------------- */

static os_call_table real_calls;
static int broken_reads;

static int64_t broken_read(int64_t file, void *data, size_t bytes) {
    switch (++broken_reads) {
    case 1: return -EINTR;
    case 2: return real_calls.read(file, data, 1);
    case 3: return real_calls.read(file, data, bytes < 3 ? bytes : 3);
    default: return -EIO;
    }
}

static int64_t slow_read(int64_t file, void *data, size_t bytes) {
    return broken_reads++ % 2 ? -EINTR : real_calls.read(file, data, bytes ? 1 : 0);
}

static void test_files(void) {
    const char *path = "build/config_hostile.lua";
    static const char text[] = "\xef\xbb\xbfreturn { topk = 5 }";
    char error[512], long_path[300];
    cairn_config config;
    cairn_status status;
    base b;
    base_init(&b, NULL, NULL, NULL, CAIRN_LOG_OFF);
    os_calls.make_directory("build");
    if (!tap_ok(!os_write_file(&b, path, text, sizeof text - 1), "a file is written")) return;
    tap_ok(!cairn_config_load(path, &config, error, sizeof error) && config.topk == 5,
           "a file with a byte order mark loads");
    real_calls = os_calls;
    os_calls.read = slow_read;
    status = cairn_config_load(path, &config, error, sizeof error);
    tap_ok(!status && config.topk == 5, "a file read byte by byte, with interruptions");
    os_calls.read = broken_read;
    broken_reads = 0;
    status = cairn_config_load(path, &config, error, sizeof error);
    os_calls = real_calls;
    tap_ok(status == CAIRN_FILE_ERROR && strstr(error, path), "a read error: %s", error);
    os_calls.remove(path);
    tap_ok(cairn_config_load(path, &config, error, sizeof error) == CAIRN_FILE_NOT_FOUND &&
           strstr(error, path), "no such file: %s", error);
    tap_ok(cairn_config_load("build", &config, error, sizeof error) != CAIRN_OK && *error,
           "a directory: %s", error);
    memset(long_path, 'p', sizeof long_path - 1);
    long_path[sizeof long_path - 1] = '\0';
    memcpy(long_path + 240, "\xc3\xa9", 2);
    cairn_config_parse("return { topk = 0 }", 19, long_path, &config, error, sizeof error);
    tap_ok(strstr(error, "pp:1: topk = 0") && strlen(error) < 160, "a long name is shortened");
    cairn_config_parse("return { topk = }", 17, long_path, &config, error, sizeof error);
    tap_ok(strstr(error, "pp:1: unexpected") == strstr(error, "pp:1:") && strlen(error) < 160,
           "in Lua's messages too");
}

/* ---- what a config sees -------------------------------------------------------------------- */

static int logged;
static char last_line[512];

static void keep_line(void *user, cairn_log_level level, const char *text) {
    (void)user;
    (void)level;
    logged++;
    snprintf(last_line, sizeof last_line, "%s", text);
}

static void test_print(void) {
    static const char text[] = "for i = 1, 500 do print('line', i, nil, true, 1.5) end return {}";
    cairn_config config;
    base b;
    base_init(&b, NULL, keep_line, NULL, CAIRN_LOG_INFO);
    tap_ok(!config_parse(&b, text, strlen(text), "c.lua", &config, NULL, 0) &&
           logged == CFG_MAX_PRINTS && !strcmp(last_line, "line\t100\tnil\ttrue\t1.5"),
           "print goes to the log: %s", last_line);
}

static void test_useful(void) {
    static const char text[] =
        "local function twice(x) return 2 * x end\n"
        "local c = { topk = twice(16), sampling = {} }\n"
        "for i, key in ipairs { 'temperature', 'min_p' } do c.sampling[key] = i / 10 end\n"
        "c.stop = { string.format('%s-%d', ('end'):upper(), math.floor(2.5)) }\n"
        "for k in pairs(c) do assert(type(k) == 'string' and #k > 0) end\n"
        "c.selection = { layers = {} } for i = 0, 29, 2 do\n"
        "  c.selection.layers[#c.selection.layers + 1] = i end\n"
        "return c";
    char error[512] = "";
    cairn_config config;
    cairn_status status = cairn_config_parse(text, strlen(text), "c.lua", &config, error,
                                             sizeof error);
    tap_ok(!status && config.topk == 32 && config.sampling.min_p == 0.2f &&
           config.stop_count == 1 && !strcmp(config.stop[0], "END-2") &&
           config.selection.layers[0] == 0x15555555 &&
           !config_layer_selects(&config, 1) && config_layer_selects(&config, 28),
           "a config may compute %s", error);
}

/* Where the process has no processor, as in a debugger, a config takes no time. */
static void sleep_once(void *user, cairn_log_level level, const char *text) {
    (void)user, (void)level, (void)text;
    os_sleep_us(700000);
}

static void test_stopped(void) {
    static const char text[] = "print 'x' local n = 0 for i = 1, 5000 do n = n + 1 end return { topk = n - 4997 }";
    cairn_config c;
    char error[512] = "";
    base b;
    base_init(&b, NULL, sleep_once, NULL, CAIRN_LOG_INFO);
    tap_ok(!config_parse(&b, text, sizeof text - 1, "slow.lua", &c, error, sizeof error) && c.topk == 3,
           "a config beside which the processor does something else for 0.7 s: %s", error);
}

int main(void) {
    static const char right[] = "local c = { topk = 3, stop = { 'a', 'b' }, selection = { layers = "
                                "{ 1 } } } c.sampling = { seed = tonumber('12') } return c";
    static const char wrong[] = "return { topk = 0, sampling = { top_p = 'a' .. 'b' }, z = {} }";
    uint64_t seed = random_seed();
    test_hostiles();
    test_big_sources();
    test_noise(&seed);
    test_useful();
    test_print();
    test_stopped();
    test_files();
    test_torture("a right config", right, CAIRN_OK, false);
    test_torture("a right config", right, CAIRN_OK, true);
    test_torture("a wrong config", wrong, CAIRN_INVALID_CONFIG, false);
    test_torture("a wrong config", wrong, CAIRN_INVALID_CONFIG, true);
    test_mutations(&seed);
    return tap_done();
}
