/* misuse: what a caller gets wrong is told by name and changes nothing: arguments that are NULL,
 * structs of another version, lists that do not fit, rows that do not, a call beside another. */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "small_model.h"
#include "short_memory.h"
#include "tap.h"

static char path[64], heard[256];
static cairn_runtime *rt;
static cairn_model *m, *other;
static cairn_session *s;

static void hear(void *user, cairn_log_level level, const char *text) {
    (void)user, (void)level;
    snprintf(heard, sizeof heard, "%s", text);
}

static cairn_config config_of(int budget_mb) {
    cairn_config c;
    cairn_config_default(&c);
    c.backend = CAIRN_BACKEND_CPU, c.threads = 1, c.max_batch = 2, c.page_size = PAGE;
    c.prefill_chunk = 16, c.memory.budget_mb = budget_mb;
    c.log = CAIRN_LOG_WARN, c.log_callback = hear;
    c.allocator.realloc = test_realloc;
    return c;
}

/* Refused with that status and those words. */
static void refused(cairn_status got, cairn_status want, const char *words, const char *text) {
    tap_ok(got == want && strstr(text, words), "%s: %s", words, text);
}
#define REFUSED(call, status, words) refused(call, CAIRN_##status, words, cairn_last_error(rt))

/* ---- configs ----------------------------------------------------------------------------------- */

static void test_configs(void) {
    char error[512] = "";
    cairn_config c = config_of(0), checked;
    cairn_runtime *none = NULL;
    cairn_memory_estimate e = {.struct_size = sizeof e + 1};
#define TOLD(call, status, words) refused(call, CAIRN_##status, words, error)
    TOLD(cairn_open(NULL, &none, error, sizeof error), INVALID_ARGUMENT, "open: config is NULL");
    TOLD(cairn_open(&c, NULL, error, sizeof error), INVALID_ARGUMENT, "open: rt is NULL");
    TOLD(cairn_config_check(NULL, &checked, error, sizeof error), INVALID_ARGUMENT, "config is NULL");
    TOLD(cairn_config_check(&c, NULL, error, sizeof error), INVALID_ARGUMENT, "checked is NULL");
    TOLD(cairn_config_parse("", 0, "x", NULL, error, sizeof error), INVALID_ARGUMENT, "config is NULL");
    TOLD(cairn_config_parse(NULL, 1, "x", &c, error, sizeof error), INVALID_ARGUMENT, "text is NULL");
    TOLD(cairn_config_load(NULL, &c, error, sizeof error), INVALID_ARGUMENT, "path is NULL");
    TOLD(cairn_config_load("x", NULL, error, sizeof error), INVALID_ARGUMENT, "config is NULL");
    TOLD(cairn_estimate(&c, NULL, &e, error, sizeof error), INVALID_ARGUMENT, "path is NULL");
    TOLD(cairn_estimate(&c, path, &e, error, sizeof error), VERSION_MISMATCH, "struct_size");
    TOLD(cairn_estimate(&c, path, NULL, error, sizeof error), INVALID_ARGUMENT, "estimate is NULL");
    memset(c.driver_path, 'x', sizeof c.driver_path);
    memset(c.nvrtc_path, 'x', sizeof c.nvrtc_path);
    TOLD(cairn_open(&c, &none, error, sizeof error), INVALID_CONFIG, "driver_path has no NUL");
    tap_ok(strstr(error, "nvrtc_path has no NUL") && !none, "nor has nvrtc_path");
#undef TOLD
}

/* More cold fields than a line names: "..." at its end, once. */
static void test_many_changes(void) {
    cairn_config next = rt->config;
    char *dots;
    next.page_size = 64, next.max_batch = 3, next.max_seq_len = 64, next.prefill_chunk = 32;
    next.shape.heads = 64, next.shape.kv_heads = 4, next.shape.head_dim = 64, next.device = 1;
    next.kv_dtype = CAIRN_KV_F32, next.graphs = !next.graphs;
    next.deterministic = !next.deterministic, next.memory.budget_mb = 7;
    next.memory.map = CAIRN_MAP_FILE, next.memory.prefix_cache = !next.memory.prefix_cache;
    next.jit.quick = true, next.jit.threads = 3, next.jit.cache = CAIRN_CACHE_OFF;
    next.activations = CAIRN_ACTIVATIONS_Q8, next.landmark_position = CAIRN_LANDMARK_NEXT;
    snprintf(next.adapter, sizeof next.adapter, "x"), snprintf(next.jit.cache_dir, 9, "y");
    config_change change;
    config_diff(&rt->config, &next, &change);
    dots = strstr(change.cold_names, ", ...");
    tap_ok(change.cold > 15 && dots && !dots[5], "%d cold fields: %s", change.cold, change.cold_names);
}

/* ---- models ------------------------------------------------------------------------------------ */

static void test_models(void) {
    cairn_model *none = NULL;
    cairn_session *session = NULL;
    cairn_adapter *adapter = NULL;
    cairn_model_properties info = {.struct_size = 1};
    cairn_runtime_info about = {.struct_size = 1};
    int32_t ids[4] = {2, 3, 4, 5};
    int count;
    size_t bytes;
    double mean;
    cairn_eval_args eval = {.struct_size = 1, .ids = ids, .count = 4};
    const cairn_message nothing = {"user", NULL};
    REFUSED(cairn_info(rt, &about), VERSION_MISMATCH, "info: struct_size is 1");
    REFUSED(cairn_load_model(rt, "a\xe2\x81\xa6z", &none), FILE_NOT_FOUND, "a\\xe2\\x81\\xa6z");
    REFUSED(cairn_load_model(rt, NULL, &none), INVALID_ARGUMENT, "load_model: path is NULL");
    REFUSED(cairn_adapter_load(m, NULL, &adapter), INVALID_ARGUMENT, "adapter_load: path is NULL");
    REFUSED(cairn_load_model(rt, path, NULL), INVALID_ARGUMENT, "load_model: model is NULL");
    REFUSED(cairn_load_model_from(rt, NULL, &none), INVALID_ARGUMENT, "load_model_from: source is NULL");
    REFUSED(cairn_adapter_load(m, path, NULL), INVALID_ARGUMENT, "adapter_load: adapter is NULL");
    REFUSED(cairn_session_open(m, NULL), INVALID_ARGUMENT, "session_open: session is NULL");
    REFUSED(cairn_session_fork(s, NULL), INVALID_ARGUMENT, "session_fork: fork is NULL");
    tap_ok(cairn_load_model(NULL, path, &none) && cairn_adapter_load(NULL, path, &adapter) &&
           cairn_session_open(NULL, &session) && cairn_session_fork(NULL, &session),
           "no runtime, no model, no session: a status");
    REFUSED(cairn_model_info(m, &info), VERSION_MISMATCH, "model_info: struct_size is 1");
    REFUSED(cairn_model_info(m, NULL), INVALID_ARGUMENT, "model_info: info is NULL");
    REFUSED(cairn_eval(m, NULL, &mean), INVALID_ARGUMENT, "eval: args is NULL");
    REFUSED(cairn_chat_ids(m, NULL, 1, true, true, ids, 4, &count), INVALID_ARGUMENT, "messages NULL");
    REFUSED(cairn_chat_ids(m, &nothing, 1, true, true, ids, 4, &count), INVALID_ARGUMENT, "lacks its role or content");
    REFUSED(cairn_chat_ids(m, NULL, 0, true, true, NULL, 4, &count), INVALID_ARGUMENT, "chat_ids: ids or count");
    REFUSED(cairn_generate_batch(m, NULL), INVALID_ARGUMENT, "generate_batch: args is NULL");
    REFUSED(cairn_step(m, 0, NULL), INVALID_ARGUMENT, "step: pending is NULL");
    REFUSED(cairn_tokenize(m, NULL, 3, ids, 4, &count), INVALID_ARGUMENT, "tokenize: text");
    REFUSED(cairn_tokenize(m, "a", 1, NULL, 4, &count), INVALID_ARGUMENT, "tokenize: text, ids");
    REFUSED(cairn_detokenize(m, NULL, 3, NULL, 0, &bytes), INVALID_ARGUMENT, "ids NULL");
    REFUSED(cairn_detokenize(m, ids, -1, NULL, 0, &bytes), INVALID_ARGUMENT, "count = -1");
    REFUSED(cairn_eval(m, &eval, &mean), VERSION_MISMATCH, "eval: args->struct_size");
    eval.struct_size = sizeof eval, eval.top = 2;
    REFUSED(cairn_eval(m, &eval, &mean), INVALID_ARGUMENT, "eval: top = 2");
    eval.top = 0, eval.count = 1;
    REFUSED(cairn_eval(m, &eval, &mean), INVALID_ARGUMENT, "eval: count = 1");
}

/* ---- sessions ---------------------------------------------------------------------------------- */

static cairn_status say(const cairn_generate_options *o) {
    return cairn_generate_with(s, NULL, o, NULL, NULL);
}

static void test_options(void) {
    static char long_stop[200];
    const char *stops[20] = {"", long_stop};
    cairn_generate_options o = {.struct_size = sizeof o + 4, .max_tokens = 2};
    REFUSED(say(&o), VERSION_MISMATCH, "options.struct_size");
    o.struct_size = sizeof o, o.stop_count = 2;
    REFUSED(say(&o), INVALID_ARGUMENT, "stop_count = 2");
    o.stop = stops;
    REFUSED(say(&o), INVALID_ARGUMENT, "stop[0] has 0 bytes");
    memset(long_stop, 'x', sizeof long_stop - 1);
    stops[0] = "fine";
    REFUSED(say(&o), INVALID_ARGUMENT, "stop[1] has 199 bytes");
    stops[0] = "\xff", o.stop_count = 1;
    REFUSED(say(&o), INVALID_UTF8, "stop[0] is not valid UTF-8");
    o.stop_count = 17;
    REFUSED(say(&o), INVALID_ARGUMENT, "stop_count = 17");
    o.stop_count = -2;
    REFUSED(say(&o), INVALID_ARGUMENT, "stop_count = -2");
    o.stop_count = 0, o.special = 2;
    REFUSED(say(&o), INVALID_ARGUMENT, "special = 2");
    o.special = 0;
    o.stop_count = 0, o.grammar = "root ::= [a-c]", o.grammar_from = 1;
    REFUSED(say(&o), INVALID_ARGUMENT, "the grammar does not allow the text of ids 1 to 3");
    o.grammar = NULL, o.json_schema = "{\"const\": \"\\u12g4\"}", o.grammar_from = 0;
    REFUSED(say(&o), INVALID_ARGUMENT, "\\u needs four digits");
    o.json_schema = NULL;
    o.grammar = "root ::= \"\\u00e9\"", o.grammar_from = 0;
    REFUSED(say(&o), INVALID_ARGUMENT, "allows none of the model's tokens");
}

static void test_sessions(void) {
    cairn_piece piece = {.struct_size = 3};
    cairn_stats stats = {.struct_size = 2};
    cairn_generate_options o = {.struct_size = sizeof o, .max_tokens = 1};
    int32_t ids[4] = {2, 3, 4, 5}, pages[4], count;
    REFUSED(cairn_append_ids(s, NULL, 2), INVALID_ARGUMENT, "append_ids: count = 2 with no ids");
    REFUSED(cairn_append_ids(s, ids, -1), INVALID_ARGUMENT, "append_ids: count = -1");
    REFUSED(cairn_append(s, NULL), INVALID_ARGUMENT, "append: text is NULL");
    REFUSED(cairn_session_stats(s, &stats), VERSION_MISMATCH, "session_stats: struct_size");
    REFUSED(cairn_session_stats(s, NULL), INVALID_ARGUMENT, "session_stats: stats is NULL");
    REFUSED(cairn_generate_next(s, NULL), INVALID_ARGUMENT, "piece is NULL");
    REFUSED(cairn_generate_poll(s, NULL), INVALID_ARGUMENT, "piece is NULL");
    REFUSED(cairn_generate_next(s, &piece), VERSION_MISMATCH, "piece->struct_size");
    REFUSED(cairn_generate_poll(s, &piece), VERSION_MISMATCH, "piece->struct_size");
    piece.struct_size = sizeof piece;
    REFUSED(cairn_generate_poll(s, &piece), INVALID_ARGUMENT, "no request is submitted");
    REFUSED(cairn_session_selection(s, 99, 0, pages, 4, &count), INVALID_ARGUMENT, "selection");
    tap_ok(!cairn_append_ids(s, ids, 4), "four ids are appended all the same");
    test_options();
    const bool said = !say(&o);
    cairn_session_ids(s, &count);
    tap_ok(said && count == 5, "and the session goes on: %d", count);
}

/* An adapter of another model; as many as there is room for, and one more. */
static void test_adapters(void) {
    cairn_adapter wrong = {.model = other};
    snprintf(wrong.name, sizeof wrong.name, "theirs");
    REFUSED(cairn_session_adapt(s, &wrong), INVALID_ARGUMENT, "theirs was loaded for another model");
    cairn_adapter held[ADAPTER_MOST] = {{NULL}}, *one = NULL;
    for (int i = 0; i < ADAPTER_MOST; i++) {
        held[i].slot = i, held[i].model = m;
        held[i].next = i + 1 < ADAPTER_MOST ? &held[i + 1] : NULL;
    }
    m->adapters = held;
    REFUSED(cairn_adapter_load(m, "x.gguf", &one), INVALID_ARGUMENT, "free one first");
    m->adapters = NULL;
}

/* A text without a first token takes nothing from a budget's end, and is told. */
static void test_budget(void) {
    cairn_config next = rt->config;
    cairn_generate_options o = {.struct_size = sizeof o, .max_tokens = 2};
    next.budget.suppress_count = 1;
    next.budget.replace_count = 1, next.budget.replace[0][0] = 'a';
    snprintf(next.budget.suppress[0], sizeof next.budget.suppress[0], "\xc3\xa9");
    heard[0] = '\0';
    tap_ok(!cairn_reload(rt, &next) && !say(&o), "a budget with a text: %s", cairn_last_error(rt));
    tap_ok(strstr(heard, "has no first token") != NULL, "of which no token begins: %s", heard);
}

/* Prompts that no pool of this size holds are refused at once, by a request and by a batch. */
/* Rows of a session from within its own generation. */
static bool forward_beside(void *user, const char *text, size_t bytes) {
    static const int32_t id = 2;
    const cairn_forward_sequence own = {.session = s, .position = 0, .rows = 1};
    const cairn_forward_args a = {.struct_size = sizeof a, .sequence_count = 1, .row_count = 1,
                                  .sequences = &own, .ids = &id};
    (void)text, (void)bytes;
    *(cairn_status *)user = cairn_forward(m, &a);
    snprintf(heard, sizeof heard, "%s", cairn_last_error(rt));
    return false;
}

static void test_beside(void) {
    cairn_status status = CAIRN_OK;
    cairn_generate(s, "ab", 8, forward_beside, &status);
    refused(status, CAIRN_BUSY, "is running", heard);
}

static void test_pool(void) {
    const cairn_config c = config_of(1);
    char error[512] = "";
    cairn_runtime *kept = rt;
    cairn_model *small = NULL;
    cairn_session *one = NULL;
    static int32_t ids[SMALL_CONTEXT], out[SMALL_CONTEXT];
    int32_t length = SMALL_CONTEXT, made, total;
    cairn_batch_args a = {.struct_size = sizeof a, .rows = 1, .stride = SMALL_CONTEXT,
                          .capacity = SMALL_CONTEXT, .ids = ids, .lengths = &length, .output = out,
                          .generated = &made, .total = &total};
    for (int i = 0; i < SMALL_CONTEXT; i++) ids[i] = 2;
    if (!tap_ok(!cairn_open(&c, &rt, error, sizeof error) && !cairn_load_model(rt, path, &small) &&
                !cairn_session_open(small, &one), "a pool of few pages: %s", rt ? cairn_last_error(rt) : error))
        return;
    small->kv.pool.pages = 3; /* as a smaller budget leaves; none of them is taken */
    REFUSED(cairn_generate_batch(small, &a), POOL_FULL, "pages");
    length = SMALL_CONTEXT + 1, a.stride = a.capacity = length;
    REFUSED(cairn_generate_batch(small, &a), CONTEXT_FULL, "length");
    small->kv.pool.pages = 0;
    REFUSED(cairn_generate_submit(one, "ab", NULL), POOL_FULL, "1 pages are needed, the pool has 0");
    cairn_close(rt);
    rt = kept;
}

/* ---- closed while it loads --------------------------------------------------------------------- */

/* What a source's read closes at its first call. */
typedef struct closing_source { FILE *file; cairn_runtime *rt; bool fails; int calls; } closing_source;

static size_t read_and_close(void *user, uint64_t offset, void *out, size_t bytes) {
    closing_source *c = (closing_source *)user;
    if (!c->calls++) cairn_close(c->rt);
    if (c->fails || fseek(c->file, (long)offset, SEEK_SET)) return 0;
    return fread(out, 1, bytes, c->file);
}

/* What a source's read asks for at its first call: a step of a model that is there. */
typedef struct stepping_source { FILE *file; cairn_status step; int32_t pending; int calls; } stepping_source;

static size_t read_and_step(void *user, uint64_t offset, void *out, size_t bytes) {
    stepping_source *c = (stepping_source *)user;
    if (!c->calls++) {
        c->step = cairn_step(m, 0, &c->pending);
        snprintf(heard, sizeof heard, "%s", cairn_last_error(rt));
    }
    return fseek(c->file, (long)offset, SEEK_SET) ? 0 : fread(out, 1, bytes, c->file);
}

/* A step inside a load is refused, the request waits, and both go on afterwards. */
static void test_step_loading(void) {
    stepping_source c = {.file = fopen(path, "rb"), .pending = -1};
    cairn_model_source source = {.struct_size = sizeof source, .read = read_and_step, .user = &c};
    const cairn_generate_options o = {.struct_size = sizeof o, .max_tokens = 3};
    cairn_model *loaded = NULL;
    cairn_stats stats = {.struct_size = sizeof stats};
    int32_t pending = 1;
    if (!tap_ok(c.file && !fseek(c.file, 0, SEEK_END) && !cairn_session_reset(s) &&
                !cairn_generate_submit(s, "ab", &o), "a request: %s", cairn_last_error(rt)))
        return;
    source.bytes = (uint64_t)ftell(c.file);
    const cairn_status status = cairn_load_model_from(rt, &source, &loaded);
    refused(c.step, CAIRN_BUSY, "step: a load", heard);
    while (pending && !cairn_step(m, 1000, &pending)) {}
    tap_ok(!status && loaded && c.pending == -1 && !pending && !cairn_session_stats(s, &stats) &&
               stats.generated == 3, "the load succeeds: %s; then the request is worked on: %d tokens",
           cairn_status_name(status), stats.generated);
    cairn_model_free(loaded);
    fclose(c.file);
}

/* A request that was cancelled, and a call that failed since: poll returns the request's end. */
static void test_end(void) {
    const cairn_generate_options o = {.struct_size = sizeof o, .max_tokens = 3};
    cairn_piece piece = {.struct_size = sizeof piece};
    cairn_snapshot_info info = {.struct_size = sizeof info};
    int32_t pending = 1;
    tap_ok(!cairn_session_reset(s) && !cairn_generate_submit(s, "ab", &o), "a request: %s", cairn_last_error(rt));
    cairn_cancel(s);
    while (pending && !cairn_step(m, 1000, &pending)) {}
    REFUSED(cairn_session_save(s, NULL), INVALID_ARGUMENT, "session_save: path is NULL");
    REFUSED(cairn_generate_poll(s, &piece), CANCELLED, "generate_poll: the request's end");
    REFUSED(cairn_snapshot_describe(rt, "abc", 3, &info), BAD_FILE, "this is no snapshot");
    REFUSED(cairn_snapshot_describe(rt, "abc", 3, NULL), INVALID_ARGUMENT, "snapshot_describe: info is NULL");
}

/* ---- cancelled while it loads ------------------------------------------------------------------ */

/* The progress of a load, which says no at its call of that number. */
typedef struct watched_load { int calls, no_at, last, count; bool backwards; } watched_load;

static bool watch_load(void *user, const char *what, int index, int count) {
    watched_load *w = (watched_load *)user;
    w->backwards = w->backwards || !what || !*what || index < 0 || index > count || count < 1;
    w->last = index, w->count = count;
    return w->calls++ != w->no_at;
}

static size_t read_on(void *user, uint64_t offset, void *out, size_t bytes) {
    FILE *file = (FILE *)user;
    return fseek(file, (long)offset, SEEK_SET) ? 0 : fread(out, 1, bytes, file);
}

/* A load from a path, through a callback, or through a map. */
static cairn_status load_watched(cairn_runtime *at, int way, cairn_model **model) {
    cairn_model_source source = {.struct_size = sizeof source, .read = read_on, .user = fopen(path, "rb")};
    cairn_status status = CAIRN_FILE_ERROR;
    if (way != 1) status = cairn_load_model(at, path, model);
    else if (!fseek((FILE *)source.user, 0, SEEK_END)) {
        source.bytes = (uint64_t)ftell((FILE *)source.user);
        status = cairn_load_model_from(at, &source, model);
    }
    fclose((FILE *)source.user);
    return status;
}

/* Whichever call of the progress says no, the load ends there and leaves nothing; then it loads. */
static void test_cancelled_loading(int way) {
    watched_load w = {.no_at = 0};
    cairn_config c = config_of(0);
    cairn_runtime *at = NULL;
    cairn_model *model = NULL;
    cairn_session *session = NULL;
    cairn_status status = CAIRN_OK;
    char error[512] = "";
    bool fine = true;
    long before;
    c.progress_callback = watch_load, c.progress_user = &w;
    c.memory.map = way == 2 ? CAIRN_MAP_FILE : CAIRN_MAP_COPY;
    if (!tap_ok(!cairn_open(&c, &at, error, sizeof error), "a runtime: %s", error)) return;
    before = live_blocks;
    for (int n = 0; n < 1000; n++) {
        w.no_at = n, w.calls = 0;
        if ((status = load_watched(at, way, &model)) != CAIRN_CANCELLED) break;
        fine = fine && !model && live_blocks == before && w.calls == n + 1 &&
               strstr(cairn_last_error(at), n ? "cancelled at " : "cancelled at the beginning of ");
    }
    tap_ok(fine && !status && w.no_at >= (way == 2 ? 2 : 3) && !w.backwards && w.last == w.count,
           "way %d: each of %d answers ends a load, which leaves nothing; without one: %s", way, w.no_at,
           cairn_status_name(status));
    tap_ok(model && !cairn_session_open(model, &session) && !cairn_generate(session, "ab", 3, NULL, NULL),
           "the model speaks: %s", cairn_last_error(at));
    cairn_close(at);
}

static void test_closed_loading(bool fails, bool worker) {
    closing_source c = {.file = fopen(path, "rb"), .fails = fails};
    cairn_model_source source = {.struct_size = sizeof source, .read = read_and_close, .user = &c};
    cairn_config config = config_of(0);
    cairn_model *none = m;
    const long before = live_blocks;
    char error[512] = "";
    config.worker.enabled = worker;
    if (worker) config.allocator.realloc = NULL; /* the test's is of one thread */
    if (!tap_ok(c.file && !fseek(c.file, 0, SEEK_END) && !cairn_open(&config, &c.rt, error, sizeof error),
                "a runtime that will load: %s", error))
        return;
    source.bytes = (uint64_t)ftell(c.file);
    const cairn_status status = cairn_load_model_from(c.rt, &source, &none);
    tap_ok(status == (fails ? CAIRN_FILE_ERROR : CAIRN_CANCELLED) && !none && live_blocks == before,
           "a runtime that a source's read closes%s goes when the load has ended: %s, %ld blocks",
           worker ? " beside a worker" : "", cairn_status_name(status), live_blocks - before);
    fclose(c.file);
}

int main(void) {
    static char line[3000];
    const cairn_config c = config_of(0);
    char error[512] = "";
    state = 1;
    snprintf(path, sizeof path, "/tmp/cairn_misuse_%d.gguf", os_process_id());
    if (tap_ok(write_model(path) && !cairn_open(&c, &rt, error, sizeof error) &&
               !cairn_load_model(rt, path, &m) && !cairn_load_model(rt, path, &other) &&
               !cairn_session_open(m, &s), "a model, twice: %s", error)) {
        test_configs();
        test_many_changes();
        test_models();
        test_sessions();
        test_adapters();
        test_budget();
        test_beside();
        test_pool();
        test_step_loading();
        test_end();
        for (int way = 0; way < 3; way++) test_cancelled_loading(way);
        for (int i = 0; i < 4; i++) test_closed_loading(i & 1, i & 2);
    }
    cairn_close(rt);
    cairn_log_stderr(NULL, CAIRN_LOG_INFO, "a line of the log");
    memset(line, '.', sizeof line - 1);
    cairn_log_stderr(NULL, CAIRN_LOG_INFO, line);
    remove(path);
    return tap_done();
}
