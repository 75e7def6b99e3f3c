/* speak: the engine on the real model and on the backend that there is. The same text with any
 * drafts, greedy and sampled, dense and sparse; several turns, rewinds and interleaved sessions;
 * fewer forwards and less time where a text copies. Within the whole suite (tests/turns.h) each tree tries one of
 * the four lengths of drafts, and sessions either dense or sparse. Needs the model: CAIRN_MODEL=FILE, or the one
 * that ./build.sh demo fetches. CAIRN_SPEAK_TOKENS sets how much is generated.
 * build: -fno-sanitize=all -O2 */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "tap.h"
#include "turns.h"

static const char *const story = "Once upon a time, in a small village by the sea,";
static const char *const copy =
    "<|im_start|>user\nRepeat the following text exactly.\n\nThe lighthouse at Point Arden was built "
    "in 1871 by a crew of forty men. It stands on a cliff ninety feet above the sea, and its lamp "
    "can be seen for eighteen miles. In 1934 the lamp was replaced with an electric light, and the "
    "last keeper left in 1972. Today the lighthouse is a museum that opens every summer from May to "
    "September.<|im_end|>\n<|im_start|>assistant\n";

static const char *path;
static int most = 32;

enum { MOST_IDS = 2048 };
typedef struct said { int32_t ids[MOST_IDS]; int count; cairn_stats stats; } said;

static cairn_config config;
static cairn_runtime *rt;
static cairn_model *model;

static bool reopen(void) {
    char error[1024];
    cairn_close(rt);
    if (cairn_open(&config, &rt, error, sizeof error)) return tap_ok(false, "open: %s", error);
    if (cairn_load_model(rt, path, &model) || cairn_model_wait(model))
        return tap_ok(false, "load: %s", cairn_last_error(rt));
    return true;
}

static void keep(cairn_session *s, said *out) {
    const int32_t *ids = cairn_session_ids(s, &out->count);
    if (out->count > MOST_IDS) out->count = MOST_IDS;
    memcpy(out->ids, ids, (size_t)out->count * sizeof *ids);
    out->stats.struct_size = sizeof out->stats;
    cairn_session_stats(s, &out->stats);
}

static bool same(const said *a, const said *b) {
    return a->count == b->count && !memcmp(a->ids, b->ids, (size_t)a->count * sizeof *a->ids);
}

/* One generation with so many drafts, a hot field. */
static bool say(const char *prompt, int drafts, const cairn_sampling *sampling, int tokens,
                said *out) {
    cairn_generate_options options;
    cairn_session *s = NULL;
    cairn_status status;
    config.draft_length = drafts;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.max_tokens = tokens;
    options.sampling = sampling;
    status = cairn_reload(rt, &config);
    if (!status) status = cairn_session_open(model, &s);
    if (!status) status = cairn_generate_with(s, prompt, &options, NULL, NULL);
    if (status) tap_note("%s", cairn_last_error(rt));
    else keep(s, out);
    cairn_session_close(s);
    return !status;
}

/* Where two sequences part, for the reader. */
static void note_parting(const said *a, const said *b) {
    int at = 0;
    while (at < a->count && at < b->count && a->ids[at] == b->ids[at]) at++;
    tap_note("they part at token %d of %d and %d", at, a->count, b->count);
}

static void note_speed(const char *what, const said *s) {
    tap_note("%s: %d ids, %d forwards, %.0f tokens/s, prompt %d in %.1f ms, %d of %d drafts, pages "
             "%.2f of %.2f", what, (int)s->stats.generated, (int)s->stats.forwards,
             s->stats.decode_seconds > 0 ? s->stats.decoded / s->stats.decode_seconds : 0.0,
             (int)s->stats.prompt_tokens, s->stats.prompt_seconds * 1e3, (int)s->stats.accepted,
             (int)s->stats.proposed, s->stats.pages_read, s->stats.pages_held);
}

static void test_drafts(const char *what, const char *prompt, const cairn_sampling *sampling) {
    static const int lengths[] = {1, 4, 7, 16};
    static said plain, drafted;
    if (!tap_ok(say(prompt, 0, sampling, most, &plain), "%s: plain", what)) return;
    note_speed(what, &plain);
    for (size_t i = 0; i < BASE_COUNT(lengths); i++) {
        if (turn_of(4) >= 0 && turn_of(4) != (int)i) continue;
        bool fine = say(prompt, lengths[i], sampling, most, &drafted) && same(&plain, &drafted);
        tap_ok(fine, "%s: the same %d ids with draft_length %d", what, (int)plain.stats.generated,
               lengths[i]);
        if (!fine) note_parting(&plain, &drafted);
        note_speed(what, &drafted);
    }
}

static void test_copying(void) {
    static said plain, drafted;
    int tokens = most < 80 ? 80 : most;
    if (!say(copy, 0, NULL, tokens, &plain) || !say(copy, 4, NULL, tokens, &drafted)) {
        tap_ok(false, "copying");
        return;
    }
    note_speed("copying, plain", &plain);
    note_speed("copying, 4 drafts", &drafted);
    tap_ok(same(&plain, &drafted) && drafted.stats.decoded > 3 * drafted.stats.forwards,
           "a copied text: %.2f tokens a forward",
           drafted.stats.decoded / (double)drafted.stats.forwards);
    tap_ok(drafted.stats.decode_seconds < plain.stats.decode_seconds,
           "and faster: %.1f ms after %.1f ms", drafted.stats.decode_seconds * 1e3,
           plain.stats.decode_seconds * 1e3);
}

/* Generates n more tokens and keeps what the session then holds. */
static bool more(cairn_session *s, const char *prompt, int n, said *out) {
    bool fine = !cairn_generate(s, prompt, n, NULL, NULL);
    if (!fine) tap_note("%s", cairn_last_error(rt));
    keep(s, out);
    return fine;
}

static void test_turns(void) {
    static said whole, again, other, mixed;
    cairn_session *s = NULL, *t = NULL;
    int n = most < 24 ? most : 24, held;
    bool fine = !cairn_session_open(model, &s) && !cairn_session_open(model, &t);
    fine = fine && more(s, story, 2 * n, &whole);
    held = whole.count - whole.stats.generated;
    fine = fine && !cairn_session_rewind(s, held) && more(s, NULL, 2 * n, &again);
    tap_ok(fine && same(&whole, &again), "rewound to its prompt a session says the same");
    fine = fine && !cairn_session_reset(s) && more(s, story, n, &again);
    fine = fine && more(s, NULL, n, &again);
    tap_ok(fine && same(&whole, &again), "so does one that stops half way and goes on");
    fine = fine && !cairn_session_reset(s) && more(t, copy, n, &other);
    fine = fine && !cairn_session_reset(t) && more(s, story, n, &again);
    fine = fine && more(t, copy, n / 2, &mixed) && more(s, NULL, n, &again);
    fine = fine && more(t, NULL, n - n / 2, &mixed);
    tap_ok(fine && same(&whole, &again) && same(&other, &mixed), "two sessions in turn, too");
    fine = fine && !cairn_session_reset(s) && more(s, story, 8, &again) &&
           more(s, " But then", n, &again) && more(s, " The end", 4, &again);
    tap_ok(fine, "several turns on one cache");
    cairn_session_close(s);
    cairn_session_close(t);
}

/* A fork and the session it came from go on alike, and apart, as sessions of their own do. */
static void test_fork(void) {
    static said whole, first, second, apart, alone;
    cairn_session *s = NULL, *t = NULL;
    int n = most < 20 ? most : 20;
    bool fine = !cairn_session_open(model, &s) && more(s, story, 2 * n, &whole) &&
                !cairn_session_reset(s) && more(s, story, n, &first) &&
                !cairn_session_fork(s, &t) && more(t, NULL, n, &second) && more(s, NULL, n, &first);
    tap_ok(fine && same(&whole, &first) && same(&whole, &second), "a fork goes on as its origin");
    fine = fine && !cairn_session_rewind(t, whole.count - n) && !cairn_session_rewind(s, 7) &&
           more(t, " But", n, &apart) && more(s, " then", n, &second);
    cairn_session_reset(s);
    fine = fine && more(s, story, n, &first) && more(s, " But", n, &alone);
    tap_ok(fine && same(&apart, &alone), "and its own way as if it had never shared a page");
    cairn_session_close(s);
    cairn_session_close(t);
}

/* Saved half way, and loaded in a runtime opened anew. */
static void test_snapshot(void) {
    static said whole, first, second;
    cairn_session *s = NULL;
    size_t bytes = 0;
    void *memory = NULL;
    int n = most < 8 ? most : 8; /* some configs end this answer after 19 tokens */
    int64_t start, saved_us, loaded_us;
    bool fine = !cairn_session_open(model, &s) && more(s, copy, 2 * n, &whole) &&
                !cairn_session_reset(s) && more(s, copy, n, &first) &&
                !cairn_session_save_memory(s, NULL, 0, &bytes) && (memory = malloc(bytes)) != NULL;
    start = os_now_us();
    fine = fine && !cairn_session_save_memory(s, memory, bytes, &bytes);
    saved_us = os_now_us() - start;
    fine = fine && reopen() && !cairn_session_open(model, &s);
    start = os_now_us();
    fine = fine && !cairn_session_load_memory(s, memory, bytes);
    loaded_us = os_now_us() - start;
    fine = fine && more(s, NULL, n, &second);
    tap_ok(fine && same(&whole, &second), "saved, and loaded in a new runtime, it says the same");
    tap_note("%.1f MB saved in %.1f ms, loaded in %.1f ms", (double)bytes * 1e-6,
             (double)saved_us * 1e-3, (double)loaded_us * 1e-3);
    free(memory);
    cairn_session_close(s);
}

static void test_sessions(void) {
    test_turns();
    test_fork();
    test_snapshot();
}

static const char *find_model(void) {
    static const char fetched[] = "build/model/SmolLM2-135M-Instruct.Q4_1.gguf";
    os_file_info info;
    if (os_env("CAIRN_MODEL")) return os_env("CAIRN_MODEL");
    return os_calls.info(fetched, &info) ? NULL : fetched;
}

int main(void) {
    cairn_sampling warm;
    path = find_model();
    if (!path) {
        tap_skip("no model: set CAIRN_MODEL or run ./build.sh demo");
        return tap_done();
    }
    if (os_env("CAIRN_SPEAK_TOKENS")) most = atoi(os_env("CAIRN_SPEAK_TOKENS"));
    cairn_config_default(&config);
    config.max_batch = 2;
    config.max_seq_len = 2048;
    config.log_callback = cairn_log_stderr;
    if (os_env("CAIRN_SPEAK_BACKEND") && !strcmp(os_env("CAIRN_SPEAK_BACKEND"), "cpu"))
        config.backend = CAIRN_BACKEND_CPU;
    if (!reopen()) return tap_done();
    config = *cairn_config_of(rt);
    tap_note("backend %s", config.backend == CAIRN_BACKEND_CUDA ? "cuda" : "cpu");
    warm = config.sampling;
    warm.temperature = 0.7f, warm.top_p = 0.9f, warm.top_k = 40, warm.seed = 42;
    test_drafts("greedy", story, NULL);
    test_drafts("sampled", story, &warm);
    warm.repetition_penalty = 1.2f;
    test_drafts("sampled with a penalty", copy, &warm);
    test_copying();
    if (turn_of(4) < 2) test_sessions();
    config.page_size = 16, config.topk = 2;
    config.selection.window = 32;
    if (!reopen()) return tap_done();
    test_drafts("sparse", copy, NULL);
    test_drafts("sparse, sampled", copy, &warm);
    if (turn_of(4) < 0 || turn_of(4) > 1) test_sessions();
    cairn_close(rt);
    return tap_done();
}
