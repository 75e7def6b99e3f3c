/* not_a_number: logits that are NaN. A file in which the embedding of one token is NaN, and nothing else:
 * from the moment on that a sequence holds the token, none of its logits is a number. What is said up to
 * there is what the sound file says; then that session fails, by every way that tokens are drawn, alone and
 * beside one that goes on; a session that goes back, and others on the pages that it leaves, say what the
 * sound file says. So with drafts, by the sequence and by models that are broken or not; so cairn_eval and
 * cairn_generate_batch. One NaN among numbers fails nothing.
 * emulated: asan */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "tap.h"
#include "backends.h"
#include "small_model.h"

enum { GIVEN = 20, SAID = 12, ROOM = 48 };

static char sound[] = "/tmp/sound_XXXXXX", broken[] = "/tmp/broken_XXXXXX";
static const char *where;
static cairn_backend on;
static bool few; /* kernels are emulated */

static int below(int n) { return (int)(random_next(&state) % (uint64_t)n); }

/* How tokens are drawn; each goes through a place of its own on the GPU. */
typedef struct way {
    const char *name;
    cairn_sampling sampling;
    const char *grammar;
    int logprobs;
    cairn_drafter drafter;
    const char *drafts; /* the file of the model that drafts */
} way;

static const char all_text[] = "root ::= [!-~]+";

static const way ways[] = {
    {"greedy", {.top_p = 1, .repetition_penalty = 1}, NULL, 0, CAIRN_DRAFTER_NONE, NULL},
    {"greedy with drafts", {.top_p = 1, .repetition_penalty = 1}, NULL, 0, CAIRN_DRAFTER_NGRAM, NULL},
    {"top_k", {.temperature = 0.9f, .top_k = 20, .top_p = 1, .repetition_penalty = 1, .seed = 5}, NULL, 0,
     CAIRN_DRAFTER_NGRAM, NULL},
    {"top_p", {.temperature = 0.9f, .top_p = 0.9f, .repetition_penalty = 1, .seed = 6}, NULL, 0,
     CAIRN_DRAFTER_NONE, NULL},
    {"a penalty", {.temperature = 0.9f, .top_p = 1, .repetition_penalty = 1.2f, .seed = 7}, NULL, 2,
     CAIRN_DRAFTER_NGRAM, NULL},
    {"a grammar, greedy", {.top_p = 1, .repetition_penalty = 1}, all_text, 0, CAIRN_DRAFTER_NGRAM, NULL},
    {"a grammar, drawn", {.temperature = 0.9f, .top_p = 1, .repetition_penalty = 1, .seed = 8}, all_text, 3,
     CAIRN_DRAFTER_NONE, NULL},
    {"drafts of a sound model", {.top_p = 1, .repetition_penalty = 1}, NULL, 0, CAIRN_DRAFTER_MODEL, sound},
    {"drafts of a broken model", {.top_p = 1, .repetition_penalty = 1}, NULL, 0, CAIRN_DRAFTER_MODEL, broken}};

static cairn_runtime *open_way(const way *w, const char *file, cairn_model **m) {
    cairn_config c;
    cairn_runtime *rt;
    cairn_config_default(&c);
    c.backend = on, c.threads = 2, c.page_size = PAGE, c.max_batch = 2, c.max_seq_len = ROOM;
    c.log = CAIRN_LOG_OFF, c.prefill_chunk = 32, c.drafter = w->drafter, c.draft_length = 3;
    c.draft_adaptive = false;
    if (w->drafts) snprintf(c.drafter_model, sizeof c.drafter_model, "%s", w->drafts);
    rt = open_runtime_on(&c, "logits that are NaN");
    if (!rt || !cairn_load_model(rt, file, m)) return rt;
    tap_ok(false, "%s: %s", file, cairn_last_error(rt));
    cairn_close(rt);
    return NULL;
}

static cairn_generate_options options_of(const way *w, int count) {
    return (cairn_generate_options){.struct_size = sizeof(cairn_generate_options), .max_tokens = count,
                                    .sampling = &w->sampling, .stop_count = -1, .grammar = w->grammar,
                                    .logprobs = w->logprobs};
}

/* A sequence as the sound file says it, or as it should be: ids [count] behind `given` of them. */
typedef struct line { int32_t ids[ROOM + 1]; int given, count; } line;

static void take_ids(cairn_session *s, line *out) {
    const int32_t *all = cairn_session_ids(s, &out->count);
    memcpy(out->ids, all, (size_t)out->count * sizeof *all);
}

static cairn_status say(cairn_session *s, const way *w, const line *l, int count, line *out) {
    const cairn_generate_options o = options_of(w, count);
    cairn_status status = cairn_append_ids(s, l->ids, l->given);
    if (!status) status = cairn_generate_with(s, NULL, &o, NULL, NULL);
    take_ids(s, out);
    out->given = l->given;
    return status;
}

/* What is left of a line behind the first of `token`; whether it held any with more behind it. */
static bool cut_behind(line *l, int token) {
    for (int i = 0; i + 1 < l->count; i++)
        if (l->ids[i] == token && (i >= l->given || i == l->given - 1)) return l->count = i + 1, true;
    return false;
}

static bool holds(const line *l, int count, int token) {
    int i = 0;
    while (i < count && l->ids[i] != token) i++;
    return i < count;
}

static bool same(const line *a, const line *b) {
    return a->count == b->count && !memcmp(a->ids, b->ids, (size_t)a->count * sizeof *a->ids);
}

static bool tells(cairn_status status, const char *text, const char *call, int token) {
    char start[80];
    snprintf(start, sizeof start, "%s: the logits for token %d are not numbers", call, token);
    if (status == CAIRN_BAD_DATA && !strncmp(text, start, strlen(start)) && strstr(text, "65504") &&
        strstr(text, "backend = \"cpu\"")) return true;
    tap_note("status %d, not \"%s\": %s", (int)status, start, text);
    return false;
}

/* ---- a sequence of each kind, from the sound file -------------------------------------------- */

enum { FAILS, STAYS, LONGER, LINES };

static double stays_nll; /* of the line that stays, by the sound file */

static cairn_status eval_line(cairn_model *m, const line *l, double *nll) {
    const cairn_eval_args a = {.struct_size = sizeof a, .ids = l->ids, .count = l->count};
    return cairn_eval(m, &a, nll);
}

static bool say_sound(const way *w, line *lines) {
    cairn_model *m = NULL;
    way plain = *w;
    plain.drafts = NULL, plain.drafter = CAIRN_DRAFTER_NONE;
    cairn_runtime *rt = open_way(&plain, sound, &m);
    bool fine = rt != NULL;
    for (int i = 0; i < LINES && fine; i++) {
        line given = {.given = i == LONGER ? ROOM - 6 : GIVEN};
        cairn_session *s = NULL;
        for (int j = 0; j < given.given; j++) given.ids[j] = 1 + below(VOCAB - 1);
        fine = !cairn_session_open(m, &s) && !say(s, w, &given, i == LONGER ? 5 : SAID, &lines[i]);
        cairn_session_close(s);
    }
    fine = fine && !eval_line(m, &lines[STAYS], &stays_nll);
    if (rt && !fine) tap_note("%s", cairn_last_error(rt));
    cairn_close(rt);
    return fine;
}

/* A token that the first line says midway, and that no other line holds; -1: there is none. */
static int choose_token(const line *lines) {
    const line *l = &lines[FAILS];
    for (int at = GIVEN + 2; at + 1 < l->count; at++) {
        const int token = l->ids[at];
        bool good = token != END && !holds(l, at, token);
        for (int i = STAYS; i < LINES; i++) good = good && !holds(&lines[i], lines[i].count, token);
        if (good) return token;
    }
    return -1;
}

/* ---- the broken file ------------------------------------------------------------------------- */

static void test_alone(cairn_model *m, const way *w, const line *lines, const line *want) {
    cairn_session *s = NULL;
    cairn_stats stats = {.struct_size = sizeof stats};
    char text[1024];
    line got, again = *want; /* its token ends the prompt */
    const cairn_generate_options o = options_of(w, SAID);
    cairn_status status = cairn_session_open(m, &s);
    bool right;
    if (!status) status = say(s, w, &lines[FAILS], SAID, &got);
    right = tells(status, cairn_last_error(m->runtime), "generate", want->count) && same(&got, want) &&
            tells(cairn_session_error(s, text, sizeof text), text, "generate", want->count) &&
            !cairn_session_stats(s, &stats) && stats.stop == CAIRN_STOP_ERROR &&
            stats.generated == want->count - GIVEN;
    tap_ok(right, "%s, %s: it says %d ids and fails", where, w->name, stats.generated);
    status = cairn_generate(s, NULL, 1, NULL, NULL);
    right = tells(status, cairn_last_error(m->runtime), "generate", want->count);
    status = cairn_session_rewind(s, 3);
    if (!status) status = cairn_session_rewind(s, 0);
    if (!status) status = say(s, w, &lines[STAYS], SAID, &got);
    tap_ok(right && !status && same(&got, &lines[STAYS]) && !cairn_session_error(s, text, sizeof text),
           "%s, %s: again, and once it went back it says another text: %s", where, w->name, text);
    status = cairn_session_reset(s);
    again.given = want->count;
    if (!status) status = say(s, w, &again, 4, &got);
    tap_ok(tells(status, cairn_last_error(m->runtime), "generate", want->count) && same(&got, want),
           "%s, %s: it fails behind a prompt, which stays", where, w->name);
    status = cairn_session_rewind(s, GIVEN);
    if (!status) status = cairn_generate_with(s, NULL, &o, NULL, NULL);
    take_ids(s, &got);
    tap_ok(tells(status, cairn_last_error(m->runtime), "generate", want->count) && same(&got, want),
           "%s, %s: cut to what came before, it says what it said", where, w->name);
    cairn_session_close(s);
}

/* The text of a request so far; its status. */
static cairn_status poll_all(cairn_session *s, char *text, cairn_piece *piece) {
    cairn_status status;
    *piece = (cairn_piece){.struct_size = sizeof *piece};
    status = cairn_generate_poll(s, piece);
    strncat(text, piece->text ? piece->text : "", piece->bytes);
    return status;
}

static void test_beside(cairn_model *m, const way *w, const line *lines, const line *want) {
    cairn_session *s[2] = {NULL, NULL};
    cairn_generate_options o = options_of(w, SAID);
    cairn_piece piece;
    char text[1024], expected[1024], error[1024] = "";
    size_t bytes = 0;
    line got[2];
    int32_t pending = 1;
    bool right = true;
    cairn_status ended[2] = {CAIRN_OK, CAIRN_OK};
    for (int i = 0; i < 2; i++)
        right = right && !cairn_session_open(m, &s[i]) && !cairn_append_ids(s[i], lines[i].ids, GIVEN) &&
                !cairn_generate_submit(s[i], NULL, &o);
    *text = '\0';
    while (right && pending) {
        right = !cairn_step(m, 100000, &pending);
        if (!ended[0]) ended[0] = poll_all(s[0], text, &piece);
    }
    for (int i = 0; i < 2; i++) take_ids(s[i], &got[i]);
    snprintf(error, sizeof error, "%s", cairn_last_error(m->runtime));
    cairn_detokenize(m, want->ids + GIVEN, want->count - GIVEN, expected, sizeof expected, &bytes);
    right = right && tells(ended[0], error, "generate", want->count) && piece.stop == CAIRN_STOP_ERROR &&
            same(&got[0], want) && !strcmp(text, expected);
    *text = '\0';
    ended[1] = poll_all(s[1], text, &piece);
    tap_ok(right && !ended[1] && piece.stop && piece.stop != CAIRN_STOP_ERROR && same(&got[1], &lines[STAYS]),
           "%s, %s: one of two that are stepped fails (%d), the other says its %d ids (%d)", where, w->name,
           (int)ended[0], got[1].count - GIVEN, (int)ended[1]);
    cairn_session_close(s[0]);
    cairn_session_close(s[1]);
}

/* Two that need all pages, those that NaN was written to among them. */
static void test_pages(cairn_model *m, const way *w, const line *lines) {
    cairn_session *s[2] = {NULL, NULL};
    line got[2];
    bool right = true;
    for (int i = 0; i < 2 && right; i++)
        right = !cairn_session_open(m, &s[i]) && !say(s[i], w, &lines[LONGER], 5, &got[i]) &&
                same(&got[i], &lines[LONGER]);
    tap_ok(right && !m->kv.pool.free_count, "%s, %s: others on all pages say what they say: %s", where, w->name,
           cairn_last_error(m->runtime));
    cairn_session_close(s[0]);
    cairn_session_close(s[1]);
}

static void test_calls(cairn_model *m, const way *w, const line *lines, const line *want) {
    float nll[ROOM];
    double mean = -1.0, other = -1.0;
    cairn_eval_args e = {.struct_size = sizeof e, .ids = lines[FAILS].ids, .count = want->count + 1, .nll = nll};
    int32_t lengths[2] = {GIVEN, GIVEN}, limits[2] = {SAID, SAID}, ids[2 * GIVEN], out[2 * ROOM], made[2], totals[2];
    cairn_batch_args a = {.struct_size = sizeof a, .rows = 2, .stride = GIVEN, .capacity = ROOM, .ids = ids,
                          .lengths = lengths, .limits = limits, .sampling = NULL, .output = out,
                          .generated = made, .total = totals};
    const cairn_sampling sampling[2] = {w->sampling, w->sampling};
    cairn_status status = cairn_eval(m, &e, &mean);
    bool right = tells(status, cairn_last_error(m->runtime), "eval", want->count) && mean == -1.0;
    e.count = want->count - 1; /* its row is the first that fails */
    right = right && !cairn_eval(m, &e, &mean) && mean > 0.0 && mean < 20.0;
    e.ids = lines[STAYS].ids, e.count = lines[STAYS].count;
    right = right && !cairn_eval(m, &e, &other) && other > 0.0 && other < 20.0;
    tap_ok(right, "%s: eval fails at the same token, and not before (%g, %g): %s", where, mean, other,
           cairn_last_error(m->runtime));
    a.sampling = sampling;
    for (int i = 0; i < 2; i++) memcpy(ids + i * GIVEN, lines[1 - i].ids, GIVEN * sizeof *ids);
    status = cairn_generate_batch(m, &a);
    right = tells(status, cairn_last_error(m->runtime), "generate", want->count);
    memcpy(ids + GIVEN, ids, GIVEN * sizeof *ids);
    right = right && !cairn_generate_batch(m, &a);
    for (int i = 0; i < 2 && right; i++)
        right = totals[i] == lines[STAYS].count &&
                !memcmp(out + i * ROOM, lines[STAYS].ids, (size_t)totals[i] * sizeof *out);
    tap_ok(right, "%s: rows together fail where one does: %s", where, cairn_last_error(m->runtime));
}

static void test_way(const way *w, uint64_t seed) {
    static line lines[LINES];
    cairn_model *m = NULL;
    cairn_runtime *rt;
    line want;
    int token = -1;
    for (int tries = 0; token < 0 && tries < 20; tries++) {
        if (!say_sound(w, lines)) return;
        token = choose_token(lines);
    }
    if (!tap_ok(token > 0, "%s, %s: a text says a token that others do not", where, w->name)) return;
    want = lines[FAILS];
    cut_behind(&want, token);
    const uint64_t now = state;
    state = seed, small_broken = token;
    tap_ok(write_model(broken), "a file in which token %d is NaN", token);
    state = now, small_broken = -1;
    if (!(rt = open_way(w, broken, &m))) return;
    double nll = 0.0;
    const cairn_status status = eval_line(m, &lines[STAYS], &nll);
    tap_ok(!status && nll == stays_nll,
           "%s, %s: other tokens have the bits of the sound file: %.9g, %.9g", where, w->name, nll, stays_nll);
    test_alone(m, w, lines, &want);
    test_beside(m, w, lines, &want);
    test_pages(m, w, lines);
    if (!w->grammar && w->drafter == CAIRN_DRAFTER_NONE) test_calls(m, w, lines, &want);
    cairn_close(rt);
    if (!w->drafts || !(rt = open_way(w, sound, &m))) return;
    cairn_session *s = NULL; /* what drafts says nothing that counts */
    line got;
    tap_ok(!cairn_session_open(m, &s) && !say(s, w, &lines[FAILS], SAID, &got) && same(&got, &lines[FAILS]),
           "%s, %s: the sound model says what it says: %s", where, w->name, cairn_last_error(rt));
    cairn_close(rt);
}

/* ---- one NaN among numbers ------------------------------------------------------------------- */

/* The head is the embedding: one logit is NaN in every row, and never drawn. */
static void test_single(void) {
    static const way *const some[] = {&ways[0], &ways[2], &ways[3], &ways[4]};
    const uint64_t now = state;
    small_own_head = false, small_broken = 1 + below(VOCAB - 1);
    tap_ok(write_model(broken), "a file with one NaN among its logits");
    small_own_head = true, state = now;
    for (int i = 0; i < (few ? 2 : 4); i++) {
        cairn_model *m = NULL;
        cairn_session *s = NULL;
        cairn_runtime *rt = open_way(some[i], broken, &m);
        line given = {.given = GIVEN}, got;
        if (!rt) break;
        for (int j = 0; j < GIVEN; j++)
            do given.ids[j] = 1 + below(VOCAB - 1);
            while (given.ids[j] == small_broken);
        tap_ok(!cairn_session_open(m, &s) && !say(s, some[i], &given, SAID, &got) &&
                   !holds(&got, got.count, small_broken),
               "%s, %s: one NaN among numbers is not drawn: %s", where, some[i]->name, cairn_last_error(rt));
        cairn_close(rt);
    }
    small_broken = -1;
}

static void test_backend(cairn_backend backend, uint64_t seed) {
    const int count = (int)BASE_COUNT(ways);
    on = backend, few = is_emulated(backend);
    where = backend == CAIRN_BACKEND_CUDA ? "cuda" : "cpu";
    for (int i = 0; i < count; i++) test_way(&ways[i], seed);
    test_single();
}

int main(void) {
    const uint64_t seed = state = random_seed();
    int files[] = {mkstemp(sound), mkstemp(broken)};
    if (files[0] < 0 || files[1] < 0) return 1;
    close(files[0]), close(files[1]);
    small_own_head = true;
    if (tap_ok(write_model(sound), "a sound file")) {
        test_backend(CAIRN_BACKEND_CPU, seed);
        test_backend(CAIRN_BACKEND_CUDA, seed);
    }
    remove(sound), remove(broken);
    return tap_done();
}
