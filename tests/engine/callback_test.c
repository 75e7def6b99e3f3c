/* callback: what the callbacks of the log, of a progress, of a model source and of pieces may call is
 * what runtime.h says. What they may not is a status or does nothing; the call that called them ends as
 * if they had not, with its own message, and runtime, model and sessions go on. With and without a worker,
 * which holds the runtime while it calls them. */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "small_model.h"
#include "tap.h"

enum { SAID = 6 };
typedef enum place { NOWHERE, LOG, PROGRESS, SOURCE, PIECE } place;
static char path[64], saved[64];
static const int32_t ids[4] = {2, 3, 4, 5};

/* What a callback tries, and what came of it. */
static struct {
    cairn_runtime *rt;
    cairn_model *m;
    cairn_session *s, *other;
    place at; /* whose next call tries, once */
    bool closes;
    int calls, refused, other_status;
    const char *wrong;
    bool kept; /* calls without a status did nothing; words said why */
} t;

static void note(const char *name, cairn_status got) {
    t.calls++;
    if (got == CAIRN_BUSY) t.refused++;
    else if (!t.wrong) t.wrong = name, t.other_status = got;
}
#define TRY(call) note(#call, call)

/* The calls on a session that change it. */
static void try_session(cairn_session *s) {
    cairn_piece piece = {.struct_size = sizeof piece};
    int32_t pages[4], count;
    TRY(cairn_append(s, "ab"));
    TRY(cairn_append_ids(s, ids, 4));
    TRY(cairn_generate(s, "ab", 2, NULL, NULL));
    TRY(cairn_generate_begin(s, "ab", NULL));
    TRY(cairn_generate_next(s, &piece));
    TRY(cairn_generate_submit(s, "ab", NULL));
    TRY(cairn_generate_poll(s, &piece));
    TRY(cairn_session_reset(s));
    TRY(cairn_session_rewind(s, 1));
    TRY(cairn_session_adapt(s, NULL));
    TRY(cairn_session_save(s, saved));
    TRY(cairn_session_load(s, saved));
    TRY(cairn_session_selection(s, 0, 0, pages, 4, &count));
}

static void try_runtime(void) {
    const int64_t shape[1] = {4};
    const cairn_forward_sequence own = {.session = t.s, .rows = 1};
    const cairn_forward_args rows = {.struct_size = sizeof rows, .sequence_count = 1, .row_count = 1,
                                     .sequences = &own, .ids = ids};
    cairn_eval_args eval = {.struct_size = sizeof eval, .ids = ids, .count = 4};
    int32_t out[8], length = 4, made, total, pending;
    cairn_batch_args batch = {.struct_size = sizeof batch, .rows = 1, .stride = 4, .capacity = 8,
                              .ids = ids, .lengths = &length, .output = out, .generated = &made,
                              .total = &total};
    cairn_profile_options profile = {.struct_size = sizeof profile};
    cairn_model_properties info = {.struct_size = sizeof info};
    cairn_stats stats = {.struct_size = sizeof stats};
    cairn_config config = *cairn_config_of(t.rt);
    cairn_tensor *tensor = NULL;
    cairn_model *model = NULL;
    cairn_session *session = NULL;
    cairn_adapter *adapter = NULL;
    double mean;
    config.topk++;
    TRY(cairn_session_open(t.m, &session));
    TRY(cairn_session_fork(t.s, &session));
    TRY(cairn_session_stats(t.s, &stats));
    TRY(cairn_load_model(t.rt, path, &model));
    TRY(cairn_model_info(t.m, &info));
    TRY(cairn_model_wait(t.m));
    TRY(cairn_adapter_load(t.m, path, &adapter));
    TRY(cairn_eval(t.m, &eval, &mean));
    TRY(cairn_generate_batch(t.m, &batch));
    TRY(cairn_forward(t.m, &rows));
    TRY(cairn_step(t.m, 0, &pending));
    TRY(cairn_profile_start(t.m, &profile));
    TRY(cairn_reload(t.rt, &config));
    TRY(cairn_sync(t.rt));
    TRY(cairn_tensor_new(t.rt, CAIRN_I32, 1, shape, &tensor));
}

/* What the three callbacks inside a call try. */
static void try_all(place at) {
    int count = 7;
    if (t.at != at) return;
    t.at = NOWHERE;
    try_session(t.s);
    try_session(t.other);
    try_runtime();
    t.kept = !cairn_session_ids(t.s, &count) && !count && cairn_last_error(t.rt)[0];
    cairn_cancel(t.other); /* nothing of it runs */
    cairn_session_close(t.s);
    cairn_model_free(t.m);
    if (t.closes) cairn_close(t.rt);
}

static void hear(void *user, cairn_log_level level, const char *text) {
    (void)user, (void)level, (void)text;
    try_all(LOG);
}

static bool watch(void *user, const char *what, int index, int count) {
    (void)user, (void)what, (void)index, (void)count;
    try_all(PROGRESS);
    return true;
}

static size_t read_part(void *user, uint64_t offset, void *out, size_t bytes) {
    FILE *file = (FILE *)user;
    try_all(SOURCE);
    return fseek(file, (long)offset, SEEK_SET) ? 0 : fread(out, 1, bytes, file);
}

static bool open_all(bool worker) {
    char error[512] = "";
    cairn_config c;
    memset(&t, 0, sizeof t);
    cairn_config_default(&c);
    c.backend = CAIRN_BACKEND_CPU, c.threads = 1, c.max_batch = 4, c.page_size = PAGE;
    c.max_seq_len = 4 * SMALL_CONTEXT; /* lowered with a line of the log */
    c.log = CAIRN_LOG_INFO, c.log_callback = hear, c.progress_callback = watch;
    c.worker.enabled = worker;
    return tap_ok(!cairn_open(&c, &t.rt, error, sizeof error) && !cairn_load_model(t.rt, path, &t.m) &&
                  !cairn_session_open(t.m, &t.s) && !cairn_session_open(t.m, &t.other) &&
                  !cairn_append_ids(t.s, ids, 4) && !cairn_append_ids(t.other, ids, 4),
                  "a model and two sessions%s: %s", worker ? ", a worker" : "",
                  t.rt ? cairn_last_error(t.rt) : error);
}

/* Both sessions say the same, as they held the same. */
static bool goes_on(void) {
    int a, b;
    const bool said = !cairn_generate(t.s, NULL, SAID, NULL, NULL) &&
                      !cairn_generate(t.other, NULL, SAID, NULL, NULL);
    const int32_t *mine = cairn_session_ids(t.s, &a), *its = cairn_session_ids(t.other, &b);
    return said && a == b && a > 4 && !memcmp(mine, its, (size_t)a * sizeof *mine);
}

static void arm(place at, bool closes) {
    t.at = at, t.closes = closes;
    t.calls = t.refused = 0, t.wrong = NULL, t.kept = false;
}

/* All were refused, and the call ended with `got`, and its own words. */
static void told(const char *where, cairn_status got, cairn_status want) {
    const bool own = !got || strstr(cairn_last_error(t.rt), cairn_status_name(got));
    tap_ok(!t.at && got == want && t.calls > 40 && t.refused == t.calls && t.kept && own,
           "%s: %d of %d calls are BUSY%s%s; then the call ends: %s", where, t.refused, t.calls,
           t.wrong ? ", not " : "", t.wrong ? t.wrong : "", cairn_status_name(got));
    tap_ok(goes_on(), "and all goes on: %s", cairn_last_error(t.rt));
}

static void test_log(void) {
    cairn_model *more = NULL;
    cairn_config config = *cairn_config_of(t.rt);
    cairn_status status;
    arm(LOG, false);
    status = cairn_load_model(t.rt, path, &more);
    told("a line of a load", status, CAIRN_OK);
    cairn_model_free(more);
    config.budget.suppress_count = config.budget.replace_count = 1;
    config.budget.replace[0][0] = 'a';
    snprintf(config.budget.suppress[0], sizeof config.budget.suppress[0], "\xc3\xa9");
    arm(LOG, true); /* which counts in a load alone */
    status = cairn_reload(t.rt, &config);
    if (!status) status = cairn_generate(t.s, NULL, 1, NULL, NULL);
    if (!status) status = cairn_generate(t.other, NULL, 1, NULL, NULL);
    told("a line of a generation", status, CAIRN_OK);
    config.topk = -1;
    arm(LOG, true);
    told("a mistake in a config", cairn_reload(t.rt, &config), CAIRN_INVALID_CONFIG);
}

static void test_progress(void) {
    cairn_eval_args eval = {.struct_size = sizeof eval, .ids = ids, .count = 4};
    cairn_model *more = NULL;
    cairn_status status;
    double mean = 0.0;
    arm(PROGRESS, false);
    status = cairn_load_model(t.rt, path, &more);
    told("the progress of a load", status, CAIRN_OK);
    cairn_model_free(more);
    arm(PROGRESS, false);
    status = cairn_eval(t.m, &eval, &mean);
    told("the progress of an evaluation", status, CAIRN_OK);
}

static void test_source(void) {
    cairn_model_source source = {.struct_size = sizeof source, .read = read_part};
    FILE *file = fopen(path, "rb");
    cairn_model *more = NULL;
    cairn_status status;
    if (!tap_ok(file && !fseek(file, 0, SEEK_END), "a source")) return;
    source.user = file, source.bytes = (uint64_t)ftell(file);
    arm(SOURCE, false);
    status = cairn_load_model_from(t.rt, &source, &more);
    told("a source's read", status, CAIRN_OK);
    cairn_model_free(more);
    more = NULL;
    arm(SOURCE, false);
    source.bytes++;
    status = cairn_load_model_from(t.rt, &source, &more);
    told("a read of more than there is", status, CAIRN_FILE_ERROR);
    fclose(file);
}

/* ---- pieces -------------------------------------------------------------------------------------- */

/* Its session is BUSY, and a step is; it may be looked at; others may be worked with. */
static bool say(void *user, const char *text, size_t bytes) {
    cairn_stats stats = {.struct_size = sizeof stats};
    cairn_session *more = NULL;
    cairn_model *model = NULL;
    int32_t pending;
    int count = 0;
    char words[64];
    (void)user, (void)text, (void)bytes;
    if (t.at != PIECE) return true;
    t.at = NOWHERE;
    try_session(t.s);
    TRY(cairn_step(t.m, 0, &pending));
    t.kept = cairn_session_ids(t.s, &count) && count > 4 && !cairn_session_stats(t.s, &stats) &&
             stats.generated > 0 && !cairn_session_error(t.s, words, sizeof words) &&
             !cairn_session_open(t.m, &more) && !cairn_append_ids(more, ids, 4) &&
             !cairn_generate(more, NULL, 2, NULL, NULL) && !cairn_load_model(t.rt, path, &model);
    cairn_session_close(more);
    cairn_model_free(model);
    return true;
}

static void test_piece(void) {
    cairn_status status;
    arm(PIECE, false);
    status = cairn_generate(t.s, NULL, SAID, say, NULL);
    tap_ok(!t.at && !status && t.calls == 14 && t.refused == t.calls && t.kept,
           "a piece: %d of %d calls are BUSY%s%s, others work: %s; it ends: %s", t.refused, t.calls,
           t.wrong ? ", not " : "", t.wrong ? t.wrong : "", t.kept ? "yes" : cairn_last_error(t.rt),
           cairn_status_name(status));
    tap_ok(!cairn_generate(t.other, NULL, SAID, NULL, NULL) && goes_on(), "and all goes on");
}

/* ---- closed in an evaluation ----------------------------------------------------------------------- */

static bool close_it(void *user, const char *what, int index, int count) {
    (void)index, (void)count;
    if (!strcmp(what, "eval")) cairn_close(*(cairn_runtime **)user);
    return true;
}

static void test_closed(bool worker) {
    cairn_eval_args eval = {.struct_size = sizeof eval, .ids = ids, .count = 4};
    cairn_runtime *rt = NULL;
    cairn_model *m = NULL;
    cairn_config c;
    char error[512];
    double mean = -1.0;
    cairn_config_default(&c);
    c.backend = CAIRN_BACKEND_CPU, c.threads = 1, c.max_batch = 1, c.page_size = PAGE;
    c.log = CAIRN_LOG_OFF, c.progress_callback = close_it, c.progress_user = &rt;
    c.worker.enabled = worker;
    if (!tap_ok(!cairn_open(&c, &rt, error, sizeof error) && !cairn_load_model(rt, path, &m), "a model"))
        return;
    tap_ok(cairn_eval(m, &eval, &mean) == CAIRN_CANCELLED,
           "a runtime that the progress of an evaluation closes%s goes when that has ended",
           worker ? " beside a worker" : "");
}

int main(void) {
    state = 1;
    snprintf(path, sizeof path, "/tmp/cairn_callback_%d.gguf", os_process_id());
    snprintf(saved, sizeof saved, "/tmp/cairn_callback_%d.state", os_process_id());
    if (!tap_ok(write_model(path), "a model's file")) return tap_done();
    for (int worker = 0; worker < 2; worker++) {
        if (open_all(worker)) {
            test_piece();
            test_progress();
            test_source();
            test_log();
        }
        cairn_close(t.rt);
        test_closed(worker);
    }
    remove(path);
    remove(saved);
    return tap_done();
}
