/* config: every field at its bounds, the messages and their lines, structs filled by hand, dump and
 * load, the diff of a reload. */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "config_cases.h"
#include "random.h"
#include "tap.h"

static char error[8192];

static cairn_status parse(const char *text, cairn_config *config) {
    memset(error, 0, sizeof error);
    return cairn_config_parse(text, strlen(text), "config.lua", config, error, sizeof error);
}

/* ---- fields -------------------------------------------------------------------------------- */

/* One mistake, on line 3, that names the field. */
static bool names_field(const char *path) {
    char start[96];
    snprintf(start, sizeof start, "config.lua:3: %s", path);
    return !strncmp(error, start, strlen(start)) && !strchr(error, '\n');
}

static void test_bounds(void) {
    int i, wrong = 0, count = (int)BASE_COUNT(config_cases);
    for (i = 0; i < count; i++) {
        cairn_config config, poison;
        cairn_status status;
        memset(&config, 0x5a, sizeof config);
        poison = config;
        status = parse(config_cases[i].text, &config);
        if (config_cases[i].allowed ? !status && config.struct_size == sizeof config
                : status == CAIRN_INVALID_CONFIG && names_field(config_cases[i].path) &&
                  !memcmp(&config, &poison, sizeof config)) continue;
        wrong++;
        tap_note("%.200s: %s", config_cases[i].text, error);
    }
    tap_ok(!wrong && count > 300, "%d cases at, below and above the bounds of every field", count);
}

/* The config that DESIGN shows sets every field to its default. */
static void test_defaults(void) {
    static const char text[] =
        "return { page_size = 64, topk = 32, draft_length = 4, drafter = 'ngram',\n"
        "selection = { source = 'minmax', strategy = 'group', form = 'flat', window = 512,\n"
        "  sinks = 4, layers = 'all' }, landmark_position = 'previous', kv_dtype = 'f16',\n"
        "max_batch = 8, max_seq_len = 0, prefill_chunk = 512,\n"
        "sampling = { temperature = 0.0, top_k = 0, top_p = 1.0, min_p = 0.0,\n"
        "  order = 'top_k_first', repetition_penalty = 1.0, seed = 1 }, stop = {},\n"
        "shape = { heads = 32, kv_heads = 8, head_dim = 128 }, routes = { topk = 'auto' },\n"
        "memory = { budget_mb = 0 }, jit = { cache_dir = 'auto', cache = 'read-write',\n"
        "  quick = false, threads = 0 }, backend = 'auto', device = 0, threads = 0,\n"
        "graphs = true, deterministic = true, log = 'info' }";
    cairn_config all, none, made;
    memset(&made, 0x5a, sizeof made);
    cairn_config_default(&made);
    tap_ok(!parse(text, &all) && !parse("return {}", &none), "the default config loads %s", error);
    tap_ok(!memcmp(&all, &made, sizeof made) && !memcmp(&none, &made, sizeof made),
           "its values are what cairn_config_default sets, in every byte");
    tap_ok(made.page_size == 64 && made.selection.window == 512 && made.sampling.seed == 1 &&
           made.selection.layers[7] == UINT64_MAX && !strcmp(made.jit.cache_dir, "auto") &&
           made.stop_count == 0 && made.log == CAIRN_LOG_INFO, "and DESIGN's");
}

/* ---- messages ------------------------------------------------------------------------------ */

static void test_message(const char *text, const char *expected) {
    cairn_config config;
    cairn_status status = parse(text, &config);
    if (!tap_ok(status == CAIRN_INVALID_CONFIG && !strcmp(error, expected), "%.60s", expected))
        tap_note("got %s", error);
}

static void test_messages(void) {
    test_message("return {\n  page_size = 48 }",
                 "config.lua:2: page_size = 48 is not allowed (16, 32, 64, 128, 256); "
                 "did you mean 64?");
    test_message("return { page_sise = 64 }",
                 "config.lua:1: page_sise is not a field; did you mean page_size?");
    test_message("return { window = 64 }",
                 "config.lua:1: window is not a field; did you mean selection.window?");
    test_message("return { selection = { topk = 2 } }",
                 "config.lua:1: selection.topk is not a field; did you mean topk?");
    test_message("return { zebra = 64 }", "config.lua:1: zebra is not a field");
    test_message("return { sampling = { temp = 1 } }",
                 "config.lua:1: sampling.temp is not a field; did you mean sampling.temperature?");
    test_message("return { te = 1 }", "config.lua:1: te is not a field");
    test_message("return { memory = { map = 'mmap' } }",
                 "config.lua:1: memory.map = \"mmap\" is not allowed (\"copy\", \"file\"); did you mean \"file\"?");
    test_message("return { [64] = 64 }", "config.lua: [64] (computed) is not a field");
    test_message("return {\n\n7 }", "config.lua:3: [1] is not a field");
    test_message("return { drafter = 'ngarm' }",
                 "config.lua:1: drafter = \"ngarm\" is not allowed (\"ngram\", \"mtp\", \"model\", "
                 "\"none\"); did you mean \"ngram\"?");
    test_message("return { drafter = 'NGRAM' }",
                 "config.lua:1: drafter = \"NGRAM\" is not allowed (\"ngram\", \"mtp\", \"model\", "
                 "\"none\"); did you mean \"ngram\"?");
    test_message("return { backend = 'a text far too long to be the name of any value, near to none' }",
                 "config.lua:1: backend = \"a text far too long to be the name of an\"... is not "
                 "allowed (\"auto\", \"cuda\", \"cpu\")");
    test_message("return { topk = 4.5 }", "config.lua:1: topk = 4.5 is not an integer (1 to 4096)");
    test_message("return { topk = '4' }",
                 "config.lua:1: topk = \"4\" is a string; an integer is expected (1 to 4096)");
    test_message("return { sampling = { top_p = 0/0 } }",
                 "config.lua:1: sampling.top_p = nan is not allowed (above 0, up to 1)");
    test_message("return { shape = { heads = 32, head_dim = 100 } }",
                 "config.lua:1: shape.head_dim = 100 is not allowed (16 to 256, a multiple of 16); "
                 "did you mean 96?");
    test_message("return {\nshape = {\nheads = 30 } }",
                 "config.lua:3: shape.heads = 30 is not a multiple of shape.kv_heads = 8");
    test_message("return { selection = {\nlayers = { 1,\n512 } } }",
                 "config.lua:2: selection.layers[2] = 512 is not allowed (0 to 511)");
    test_message("return { topk = 1,\n topk = 2 }",
                 "config.lua:2: topk is given twice, first on line 1");
    test_message("local c = { topk = 1 }\nc.topk = 0\nreturn c",
                 "config.lua: topk (computed) = 0 is not allowed (1 to 4096)");
    test_message("local function pick() return { topk = 0 } end\nreturn { selection = pick() }",
                 "config.lua: selection.topk (computed) is not a field; did you mean topk?");
    test_message("return 5", "config.lua: the file returns a number; a table is expected: "
                 "return { ... }");
    test_message("return {\n  topk = }", "config.lua:2: unexpected symbol near '}'");
    test_message("local x\n\nreturn x.y", "config.lua:3: attempt to index a nil value (local 'x')");
}

static void test_all_at_once(void) {
    static const char text[] =
        "return {\n topk = 0,\n stop = { '', 3 },\n jit = { cache = 'of',\n quick = 1 },\n"
        "log = 'loud', selection = { windw = 1 },\n -- topk = 99\n max_batch = [[8]] }";
    static const char *const starts[] = {
        "config.lua:2: topk", "config.lua:3: stop[1]", "config.lua:3: stop[2]",
        "config.lua:4: jit.cache", "config.lua:5: jit.quick", "config.lua:6: log",
        "config.lua:6: selection.windw", "config.lua:8: max_batch"};
    cairn_config config;
    char small[100];
    const char *line = error;
    size_t i;
    tap_ok(parse(text, &config) == CAIRN_INVALID_CONFIG, "a config with eight mistakes");
    for (i = 0; i < BASE_COUNT(starts) && line; i++, line = strchr(line, '\n')) {
        if (*line == '\n') line++;
        if (strncmp(line, starts[i], strlen(starts[i]))) break;
    }
    tap_ok(i == BASE_COUNT(starts) && !line, "names all of them, in order (%d)", (int)i);
    cairn_config_parse(text, strlen(text), "a\nb\x1b[2J.lua", &config, small, sizeof small);
    tap_ok(!strncmp(small, "a\\x0ab\\x1b[2J.lua:", 18), "a file's name commands no terminal: %s", small);
    cairn_config_parse(text, strlen(text), "config.lua", &config, small, sizeof small);
    tap_ok(!strncmp(small, starts[0], strlen(starts[0])) && strstr(small, "\nand 7 more"),
           "a small buffer says how many more");
    tap_ok(cairn_config_parse(text, strlen(text), NULL, &config, NULL, 0) == CAIRN_INVALID_CONFIG,
           "no buffer is needed");
    for (i = 1; i < 40; i++) {
        memset(small, 'x', sizeof small);
        cairn_config_parse(text, strlen(text), "config.lua", &config, small, i);
        if (strlen(small) >= i || small[i] != 'x') break;
    }
    tap_ok(i == 40, "no byte behind a buffer of any size is written");
}

/* ---- lines under any layout ---------------------------------------------------------------- */

static void layout(base_text *text, int *line, base *b, uint64_t *seed) {
    static const char *const blanks[] = {
        " ", "\n", "\r\n", "-- topk = 1 {\n", "--[[ return { topk = 3\n }]] ",
        "--[==[ ]] \r\n\n ]==]", "\t"};
    static const int breaks[] = {0, 1, 1, 1, 1, 2, 0};
    int i, count = (int)(random_next(seed) % 4);
    for (i = 0; i < count; i++) {
        size_t pick = (size_t)(random_next(seed) % BASE_COUNT(blanks));
        base_text_print(b, text, "%s", blanks[pick]);
        *line += breaks[pick];
    }
}

/* A config whose only mistake stands on a known line, amid noise to mislead a scanner. */
static int random_layout(base_text *text, base *b, uint64_t *seed) {
    static const char *const noise[] = {
        "stop = { [[topk = 7 }\n]], '}', \"\\\"} topk = 8\" }",
        "draft_length = (function() local t = { topk = 1 } for i = 1, 2 do if t then t = {} end "
        "end return 3 end)()",
        "max_batch = #{ topk = 1, 5 } + 1e0 // 1 - 0x0p+1", "graphs = 1 == 1 and not (2 >= 3)",
        "[\"log\"] = 'in' .. 'fo'", "memory = { budget_mb = ({ 1, 2 })[1] }",
        "jit = { quick = ({ topk = { true } }).topk[1] ; threads = 1 }",
        "shape = { heads = 8, kv_heads = 8, }", "deterministic = '\\z\n  x' ~= ''"};
    static const int breaks[] = {1, 0, 0, 0, 0, 0, 0, 0, 1};
    static const char *const keys[] = {"topk = 0", "[\"topk\"]=0", "topk=- 1", "['topk'] = 'x'",
                                       "[ [[topk]] ] = 9999"};
    int line = 1, found = 0, i, start = (int)(random_next(seed) % BASE_COUNT(noise));
    int count = (int)(random_next(seed) % BASE_COUNT(noise)), at = (int)(random_next(seed) % 9);
    bool named = random_next(seed) % 2;
    layout(text, &line, b, seed);
    base_text_print(b, text, named ? "local c <const> = " : "return ");
    layout(text, &line, b, seed);
    base_text_print(b, text, "{");
    for (i = 0; i <= count || !found; i++) {
        layout(text, &line, b, seed);
        if (i >= at || i == count) {
            at = 1000;
            if (!found) {
                found = line;
                base_text_print(b, text, "%s", keys[random_next(seed) % BASE_COUNT(keys)]);
                layout(text, &line, b, seed);
                base_text_print(b, text, random_next(seed) % 2 ? "," : ";");
                continue;
            }
        }
        if (i > count) break;
        base_text_print(b, text, "%s", noise[(start + i) % (int)BASE_COUNT(noise)]);
        line += breaks[(start + i) % (int)BASE_COUNT(noise)];
        layout(text, &line, b, seed);
        base_text_print(b, text, random_next(seed) % 2 ? "," : ";");
    }
    base_text_print(b, text, named ? "} ; return c" : "}");
    return found;
}

static void test_lines(base *b, uint64_t *seed) {
    int i, wrong = 0;
    for (i = 0; i < 3000; i++) {
        base_text text = {NULL, 0, 0};
        char start[64];
        cairn_config config;
        int line = random_layout(&text, b, seed);
        snprintf(start, sizeof start, "config.lua:%d: topk = ", line);
        parse(text.data, &config);
        if (strncmp(error, start, strlen(start)) || strchr(error, '\n')) {
            if (!wrong++) tap_note("wanted %s got %s in\n%s", start, error, text.data);
        }
        base_text_free(b, &text);
    }
    tap_ok(!wrong, "the line is right in 3000 layouts (%d wrong)", wrong);
}

/* ---- structs filled by hand ---------------------------------------------------------------- */

static bool check_says(const cairn_config *config, cairn_status status, const char *part) {
    cairn_config out, before;
    memset(&out, 0x77, sizeof out);
    before = out;
    error[0] = '\0';
    if (cairn_config_check(config, &out, error, sizeof error) != status) return false;
    if (status && memcmp(&out, &before, sizeof out)) return false;
    return status ? strstr(error, part) != NULL : !*error;
}

static void test_struct_sizes(void) {
    union { cairn_config config; char bytes[sizeof(cairn_config) + 64]; } newer;
    cairn_config config, out;
    cairn_config_default(&config);
    config.struct_size = (uint32_t)offsetof(cairn_config, log_user);
    config.topk = 7;
    memset((char *)&config + config.struct_size, 0xee, sizeof config - config.struct_size);
    tap_ok(!cairn_config_check(&config, &out, NULL, 0) && out.topk == 7 && !out.stream &&
           !out.nvrtc_path[0] && out.struct_size == sizeof out,
           "an older struct: what it lacks gets its default");
    memset(&newer, 0, sizeof newer);
    cairn_config_default(&newer.config);
    newer.config.struct_size = sizeof newer;
    tap_ok(!cairn_config_check(&newer.config, &out, NULL, 0), "a newer struct with a zero tail");
    newer.bytes[sizeof newer - 1] = 1;
    tap_ok(check_says(&newer.config, CAIRN_VERSION_MISMATCH, "does not know"),
           "a newer struct with a field set: %s", error);
    config.struct_size = 0;
    tap_ok(check_says(&config, CAIRN_VERSION_MISMATCH, "struct_size is 0"), "no struct_size");
    memset(&config, 0xaa, sizeof config);
    tap_ok(check_says(&config, CAIRN_VERSION_MISMATCH, "no version's"), "an uninitialised struct");
    cairn_config_default(&config);
    config.jit.reserved[3] = 1;
    tap_ok(check_says(&config, CAIRN_VERSION_MISMATCH, "reserved"), "reserved bytes must be zero");
}

static void log_line(void *user, cairn_log_level level, const char *text) {
    (void)level;
    (void)text;
    ++*(int *)user;
}

static uint64_t no_alloc(void *user, size_t bytes) {
    (void)user;
    (void)bytes;
    return 0;
}

static void test_struct_values(void) {
    cairn_config good, bad;
    int minus = -1, lines = 0;
    cairn_config_default(&good);
    tap_ok(check_says(&good, CAIRN_OK, ""), "the default config is right");
    bad = good;
    memcpy(&bad.drafter, &minus, sizeof minus);
    tap_ok(check_says(&bad, CAIRN_INVALID_CONFIG, "drafter = -1"), "an enum below its range");
    bad = good;
    bad.kv_dtype = CAIRN_KV_COUNT;
    tap_ok(check_says(&bad, CAIRN_INVALID_CONFIG, "kv_dtype = 4"), "an enum above its range");
    bad = good;
    memset(&bad.graphs, 2, 1);
    tap_ok(check_says(&bad, CAIRN_INVALID_CONFIG, "graphs = 2"), "a bool that is neither");
    bad = good;
    memset(bad.jit.cache_dir, 'x', sizeof bad.jit.cache_dir);
    tap_ok(check_says(&bad, CAIRN_INVALID_CONFIG, "jit.cache_dir is too long"),
           "no NUL in a string");
    bad = good;
    bad.stop_count = 17;
    tap_ok(check_says(&bad, CAIRN_INVALID_CONFIG, "stop_count = 17"), "too many stop strings");
    bad = good;
    bad.stop_count = 1;
    tap_ok(check_says(&bad, CAIRN_INVALID_CONFIG, "stop[0] is empty"), "an empty stop string");
    bad = good;
    memset(bad.nvrtc_path, 'x', sizeof bad.nvrtc_path);
    bad.device_allocator.alloc = no_alloc;
    tap_ok(check_says(&bad, CAIRN_INVALID_CONFIG, "nvrtc_path") && strstr(error, "not free"),
           "a path without NUL and half an allocator");
    bad.log_callback = log_line;
    bad.log_user = &lines;
    check_says(&bad, CAIRN_INVALID_CONFIG, "");
    tap_ok(lines == 2, "each mistake goes to the log");
    bad.shape.heads = 0;
    bad.shape.kv_heads = 0;
    tap_ok(check_says(&bad, CAIRN_INVALID_CONFIG, "shape.kv_heads = 0"), "no division by no heads");
}

/* ---- dump, load, diff ---------------------------------------------------------------------- */

static const char *random_value(const config_field *field, uint64_t *seed, int *code) {
    *code = (int)(random_next(seed) % (uint64_t)field->value_count);
    return field->values[*code].text;
}

static void random_string(char *at, size_t bytes, uint64_t *seed) {
    size_t i, length = 1 + (size_t)random_next(seed) % (bytes - 1);
    memset(at, 0, bytes);
    for (i = 0; i < length; i++) at[i] = (char)(1 + random_next(seed) % 255);
}

static int64_t random_int(const config_field *field, uint64_t *seed) {
    uint64_t span = (uint64_t)field->high - (uint64_t)field->low + 1;
    int64_t value = field->low + (int64_t)(random_next(seed) % span);
    if (field->allowed) return field->allowed[random_next(seed) % (uint64_t)field->allowed_count];
    return field->multiple ? value / field->multiple * field->multiple : value;
}

static void random_field(cairn_config *config, const config_field *field, uint64_t *seed) {
    char *at = (char *)config + field->offset;
    bool is_int = field->kind == CFG_INT || field->kind == CFG_INT64;
    int64_t int64 = is_int ? random_int(field, seed) : 0;
    int32_t int32 = (int32_t)int64, i, count;
    float number;
    int code;
    switch (field->kind) {
    case CFG_INT: memcpy(at, &int32, 4); break;
    case CFG_INT64: memcpy(at, &int64, 8); break;
    case CFG_FLOAT:
        number = (float)(field->float_low + (field->float_high - field->float_low) *
                         ((double)(random_next(seed) >> 11) + 1) * 0x1p-53);
        memcpy(at, &number, 4);
        break;
    case CFG_BOOL: *(bool *)at = random_next(seed) % 2; break;
    case CFG_ENUM: random_value(field, seed, &code); memcpy(at, &code, 4); break;
    case CFG_CHOICE: snprintf(at, field->bytes, "%s", random_value(field, seed, &code)); break;
    case CFG_STRING: random_string(at, field->bytes, seed); break;
    case CFG_STRINGS:
        count = (int32_t)(random_next(seed) % (uint64_t)(field->count + 1));
        memcpy((char *)config + field->count_offset, &count, 4);
        for (i = 0; i < count; i++)
            random_string(at + (size_t)i * field->bytes, field->bytes, seed);
        break;
    case CFG_LAYERS:
        for (i = 0; i < (int32_t)field->bytes; i++)
            at[i] = (char)(random_next(seed) & random_next(seed));
        break;
    case CFG_GROUP: break;
    }
}

static void random_config(cairn_config *config, uint64_t *seed) {
    int row;
    cairn_config_default(config);
    for (row = 0; row < CFG_ROWS; row++) random_field(config, &config_fields[row], seed);
    config->shape.heads = config->shape.kv_heads;
    if (config->shape.kv_heads <= 512) config->shape.heads *= 1 + (int32_t)(random_next(seed) % 2);
    if (config->budget.replace_count) return;
    config->budget.force = false, config->budget.suppress_count = 0;
    memset(config->budget.suppress, 0, sizeof config->budget.suppress);
}

static void test_round_trip(uint64_t *seed) {
    static char text[CAIRN_CONFIG_TEXT_BYTES];
    int i, wrong = 0;
    size_t longest = 0;
    for (i = 0; i < 300; i++) {
        cairn_config config, again;
        random_config(&config, seed);
        if (cairn_config_dump(&config, text, sizeof text) || parse(text, &again) ||
            memcmp(&config, &again, sizeof config)) {
            if (!wrong++) tap_note("%s in\n%s", error, text);
        }
        if (strlen(text) > longest) longest = strlen(text);
    }
    tap_ok(!wrong, "300 random configs dump to text that loads to the same bytes (%d wrong, "
           "longest %d)", wrong, (int)longest);
}

static void test_dump_room(void) {
    cairn_config config;
    char text[CAIRN_CONFIG_TEXT_BYTES];
    size_t bytes, need;
    int i;
    bool good = true;
    cairn_config_default(&config);
    cairn_config_dump(&config, text, sizeof text);
    need = strlen(text) + 1;
    for (bytes = 0; bytes < need; bytes += 7) {
        memset(text, 'x', sizeof text);
        if (cairn_config_dump(&config, text, bytes) != CAIRN_INVALID_ARGUMENT) good = false;
        if (text[bytes] != 'x' || (bytes && text[0])) good = false;
    }
    tap_ok(good && !cairn_config_dump(&config, text, need), "too little room is a status");
    for (i = 0; i < 16; i++) memset(config.stop[i], 1, 127);
    config.stop_count = 16;
    memset(config.jit.cache_dir, 2, 511);
    memset(config.selection.layers, 0x7f, sizeof config.selection.layers);
    tap_ok(!cairn_config_dump(&config, text, sizeof text), "the longest dump fits: %d bytes",
           (int)strlen(text));
    config.topk = 0;
    tap_ok(cairn_config_dump(&config, text, sizeof text) == CAIRN_INVALID_CONFIG && !text[0],
           "a wrong config is not dumped");
}

/* One field changed at a time is the one that the diff names. */
static void test_diff(uint64_t *seed) {
    int row, wrong = 0;
    config_change change;
    cairn_config a, b;
    for (row = 0; row < CFG_ROWS; row++) {
        const config_field *field = &config_fields[row];
        cairn_config_default(&a);
        b = a;
        if (field->kind == CFG_GROUP || field->kind == CFG_CHOICE) continue;
        do random_field(&b, field, seed);
        while (!memcmp(&a, &b, sizeof a) && strcmp(field->path, "landmark_position") &&
               strcmp(field->path, "kv_dtype") && strcmp(field->path, "sampling.order") &&
               strcmp(field->path, "selection.form"));
        if (!memcmp(&a, &b, sizeof a)) continue;
        config_diff(&a, &b, &change);
        if (change.hot + change.cold != 1 || (change.hot == 1) != field->hot ||
            strcmp(field->hot ? change.hot_names : change.cold_names, field->path)) wrong++;
    }
    tap_ok(!wrong, "a change of one field is named, hot or cold");
    b = a;
    a.topk = 1; b.topk = 2; a.page_size = 16; b.page_size = 32; a.sampling.seed = 1;
    b.sampling.seed = 2; a.backend = CAIRN_BACKEND_CPU; b.backend = CAIRN_BACKEND_CUDA;
    config_diff(&a, &b, &change);
    tap_ok(!strcmp(change.hot_names, "topk, sampling.seed") &&
           !strcmp(change.cold_names, "page_size, backend"), "several: %s; %s", change.hot_names,
           change.cold_names);
    random_config(&a, seed);
    memset(a.stop[15], 'z', sizeof a.stop[15] - 1);
    b = a;
    b.stop[15][0] = 'y';
    if (b.stop_count > 15) b.stop_count = a.stop_count = 15;
    config_diff(&a, &b, &change);
    tap_ok(change.hot + change.cold == 0, "what lies behind the last stop string does not count");
}

int main(void) {
    uint64_t seed = random_seed();
    base b;
    base_init(&b, NULL, NULL, NULL, CAIRN_LOG_OFF);
    test_defaults();
    test_bounds();
    test_messages();
    test_all_at_once();
    test_lines(&b, &seed);
    test_struct_sizes();
    test_struct_values();
    test_round_trip(&seed);
    test_dump_room();
    test_diff(&seed);
    return tap_done();
}
