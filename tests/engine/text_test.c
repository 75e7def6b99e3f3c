/* text: the calls between text and ids on a toy model: what is plain and what is special, what a
 * stop string leaves, what a piece covers, and sessions closed inside their callback. */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "random.h"
#include "tap.h"
#include "toy_model.h"

static const char *toy_path = "build/toy_text.gguf";

static long live_blocks;
static void *count_realloc(void *user, void *memory, size_t old_bytes, size_t new_bytes) {
    (void)user, (void)old_bytes;
    live_blocks += (new_bytes != 0) - (memory != NULL);
    if (new_bytes) return realloc(memory, new_bytes);
    free(memory);
    return NULL;
}

static cairn_runtime *open_toy(cairn_model **model) {
    cairn_config c;
    char error[1024];
    cairn_runtime *rt = NULL;
    cairn_config_default(&c);
    c.backend = CAIRN_BACKEND_CPU;
    c.threads = 1;
    c.page_size = 16;
    c.prefill_chunk = 16;
    c.max_batch = 2;
    c.allocator.realloc = count_realloc;
    if (cairn_open(&c, &rt, error, sizeof error)) tap_note("open: %s", error);
    else if (toy_load(rt, toy_path, model)) tap_note("%s", cairn_last_error(rt));
    return rt;
}

/* ---- special and plain ----------------------------------------------------------------------- */

static bool holds(cairn_session *s, int32_t id) {
    int count;
    const int32_t *ids = cairn_session_ids(s, &count);
    for (int i = 0; i < count; i++)
        if (ids[i] == id) return true;
    return false;
}

static void test_special(void) {
    static const char text[] = "ab<end>\0c";
    cairn_model *m = NULL;
    cairn_runtime *rt = open_toy(&m);
    cairn_session *s = NULL;
    cairn_generate_options o;
    int32_t ids[16];
    int count = 0;
    memset(&o, 0, sizeof o);
    o.struct_size = sizeof o, o.max_tokens = 1, o.special = -1;
    tap_ok(!cairn_tokenize_with(m, text, 9, true, ids, 16, &count) && count == 4 &&
           ids[1] == TOY_END, "special text becomes its token");
    tap_ok(!cairn_tokenize_with(m, text, 9, false, ids, 16, &count) && count == 8 && ids[1] == '<',
           "or stays text");
    tap_ok(!cairn_session_open(m, &s) && !cairn_append_with(s, text, 9, false) &&
           !holds(s, TOY_END) && cairn_session_ids(s, &count) && count == 8, "append_with");
    tap_ok(!cairn_session_reset(s) && !cairn_generate_with(s, "a<special>", &o, NULL, NULL) &&
           !holds(s, TOY_SPECIAL), "a prompt with special = -1");
    o.special = 0;
    tap_ok(!cairn_session_reset(s) && !cairn_generate_with(s, "a<special>", &o, NULL, NULL) &&
           holds(s, TOY_SPECIAL), "a prompt with special = 0");
    o.special = 2;
    tap_ok(cairn_generate_with(s, "a", &o, NULL, NULL) == CAIRN_INVALID_ARGUMENT &&
           strstr(cairn_last_error(rt), "special = 2"), "any other value: %s",
           cairn_last_error(rt));
    o.special = -1, o.struct_size = offsetof(cairn_generate_options, special);
    tap_ok(!cairn_session_reset(s) && !cairn_generate_with(s, "a<special>", &o, NULL, NULL) &&
           holds(s, TOY_SPECIAL), "options from before it had the field");
    {
        cairn_message message = {"user", "hi"};
        tap_ok(cairn_append_chat(s, &message, 1, true) == CAIRN_UNSUPPORTED &&
               cairn_chat_ids(m, &message, 1, true, true, ids, 16, &count) == CAIRN_UNSUPPORTED,
               "chat without a template: %s", cairn_last_error(rt));
        message.content = NULL;
        tap_ok(cairn_chat_ids(m, &message, 1, true, true, ids, 16, &count) ==
                   CAIRN_INVALID_ARGUMENT &&
               cairn_append_chat(s, NULL, 1, true) == CAIRN_INVALID_ARGUMENT &&
               cairn_append_chat(s, &message, -1, true) == CAIRN_INVALID_ARGUMENT &&
               cairn_append_chat(NULL, &message, 1, true) == CAIRN_INVALID_ARGUMENT &&
               cairn_chat_ids(m, NULL, 0, true, true, NULL, 0, NULL) == CAIRN_INVALID_ARGUMENT,
               "nothing where something is needed");
    }
    cairn_close(rt);
}

/* An embedding with rows that no token names says ids that no text has. */
static void test_short_vocabulary(void) {
    cairn_model *m = NULL;
    cairn_runtime *rt = open_toy(&m);
    toy_tokens = TOY_VOCAB - 1;
    toy_write("build/toy_short.gguf", NULL);
    toy_tokens = TOY_VOCAB;
    tap_ok(toy_load(rt, "build/toy_short.gguf", &m) == CAIRN_BAD_FILE &&
           strstr(cairn_last_error(rt), "258 tokens, the embedding 259 rows"),
           "a vocabulary shorter than the embedding: %s", cairn_last_error(rt));
    remove("build/toy_short.gguf");
    cairn_close(rt);
}

/* ---- cancelled while it is read -------------------------------------------------------------- */

static cairn_session *cancel_session;
static os_atomic cancel_late; /* the call has ended */
static void cancel_soon(void *unused) {
    (void)unused;
    do { /* the call may not have begun */
        os_sleep_us(30000);
        cairn_cancel(cancel_session);
    } while (!os_atomic_load(&cancel_late));
}

static void test_cancel(void) {
    enum { BYTES = 64 << 20 };
    cairn_model *m = NULL;
    cairn_runtime *rt = open_toy(&m);
    char *text = (char *)malloc(BYTES + 1);
    os_thread thread;
    int64_t start = os_now_us();
    cairn_status status;
    memset(text, 'c', BYTES);
    text[BYTES] = '\0';
    cairn_session_open(m, &cancel_session);
    if (!os_thread_start(&thread, 0, cancel_soon, NULL)) {
        tap_skip("no threads");
    } else {
        status = cairn_append(cancel_session, text);
        os_atomic_store(&cancel_late, 1);
        os_thread_join(&thread);
        tap_ok(status == CAIRN_CANCELLED && os_now_us() - start < 20000000,
               "a text of 64 MiB is cancelled while it is read, after %lld ms: %s",
               (long long)(os_now_us() - start) / 1000, cairn_last_error(rt));
        tap_ok(!cairn_append(cancel_session, "ab"), "the session goes on");
    }
    free(text);
    cairn_close(rt);
}

/* ---- what a stop string leaves ----------------------------------------------------------------- */

static uint32_t rnd(uint64_t *state, uint32_t below) {
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*state >> 33) % below;
}

/* The text of a session's ids from `from` on. */
static size_t text_of(cairn_model *m, cairn_session *s, int from, char *out, size_t room) {
    int count;
    const int32_t *ids = cairn_session_ids(s, &count);
    size_t bytes = 0;
    out[0] = '\0';
    if (count > from) cairn_detokenize(m, ids + from, count - from, out, room, &bytes);
    return bytes;
}

/* Random stop strings, drafts and lengths: the session holds the text that was handed out and not a
 * byte more, pieces cover it without a gap, and the next turn begins there. */
static void test_stops(uint64_t seed) {
    static const char *const stops[] = {"b", "ab", "abab", "cd", "\xC3\xA9", "\xE2\x82\xAC\x61",
                                        "a a", "bc", "d d d d d d d"};
    static char text[4096], held[4096];
    uint64_t random = seed;
    int ended = 0, wrong = 0, inside = 0, gaps = 0;
    cairn_model *m = NULL;
    cairn_runtime *rt = open_toy(&m);
    for (int run = 0; run < 600; run++) {
        cairn_session *s = NULL;
        cairn_generate_options o;
        cairn_piece piece;
        cairn_stats stats;
        const char *stop[2];
        int from, covered, count;
        size_t bytes = 0, kept;
        cairn_status status;
        memset(&o, 0, sizeof o);
        o.struct_size = sizeof o, o.stop = stop, o.stop_count = 2;
        stop[0] = stops[rnd(&random, 9)], stop[1] = stops[rnd(&random, 9)];
        o.max_tokens = 60;
        o.keep_stop = run % 4 == 0;
        toy_loops = 0.2f * (float)rnd(&random, 5);
        cairn_session_open(m, &s);
        held[0] = (char)('a' + rnd(&random, 26)), held[1] = "abcd"[rnd(&random, 4)];
        held[2] = (char)('a' + rnd(&random, 26)), held[3] = '\0';
        status = cairn_generate_begin(s, held, &o);
        cairn_session_ids(s, &from);
        covered = from;
        piece.struct_size = sizeof piece, piece.stop = CAIRN_STOP_NONE;
        while (!status && !piece.stop) {
            status = cairn_generate_next(s, &piece);
            memcpy(text + bytes, piece.text, piece.bytes);
            bytes += piece.bytes;
            if (!piece.bytes) continue;
            gaps += piece.first > covered || piece.first + piece.count < covered;
            covered = piece.first + piece.count;
        }
        kept = text_of(m, s, from, held, sizeof held);
        stats.struct_size = sizeof stats;
        cairn_session_stats(s, &stats);
        cairn_session_ids(s, &count);
        if (piece.stop == CAIRN_STOP_STRING) {
            ended++;
            inside += count - from != stats.generated - 1;
            wrong += o.keep_stop ? kept <= bytes || memcmp(held, text, bytes) != 0
                                 : kept != bytes || memcmp(held, text, bytes) != 0;
        }
        gaps += piece.stop == CAIRN_STOP_LENGTH && covered != count;
        wrong += status != CAIRN_OK || toy_faults;
        wrong += cairn_generate(s, "c", 8, NULL, NULL) != CAIRN_OK || toy_faults;
        cairn_session_close(s);
    }
    toy_loops = 0.75f;
    tap_ok(!wrong && ended > 150 && inside > 20, "after %d stop strings the session ends where its "
           "text does, %d wrong (seed %llu)", ended, wrong, (unsigned long long)seed);
    tap_ok(!gaps, "pieces cover the ids without a gap, %d do not", gaps);
    cairn_close(rt);
}

/* Counts characters of several bytes; false for a piece that is not of whole ones. */
static bool hear_whole(void *user, const char *text, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) *(int *)user += ((unsigned char)text[i] & 0xC0) == 0xC0;
    return base_utf8_fault(text, bytes) == bytes;
}

static void test_stop_strings(void) {
    static const char *const bad[] = {"a", "\xa9"};
    cairn_model *m = NULL;
    cairn_runtime *rt = open_toy(&m);
    cairn_session *s = NULL;
    cairn_generate_options o;
    cairn_config c = rt->config;
    int broken = 0, characters = 0;
    cairn_session_open(m, &s);
    memset(&o, 0, sizeof o);
    o.struct_size = sizeof o, o.max_tokens = 1, o.stop = bad, o.stop_count = 2;
    tap_ok(cairn_generate_with(s, "a", &o, NULL, NULL) == CAIRN_INVALID_UTF8 &&
           strstr(cairn_last_error(rt), "stop[1]"), "%s", cairn_last_error(rt));
    c.stop_count = 2;
    strcpy(c.stop[0], "\xa9"); /* the end of a character, and a beginning */
    strcpy(c.stop[1], "\xac\xe2");
    if (cairn_reload(rt, &c)) tap_ok(false, "%s", cairn_last_error(rt));
    for (int i = 0; i < 50; i++) {
        static const char *const prompts[] = {"\xc3\xa9", "\xe2\x82\xac", "ab", "cd "};
        char prompt[8];
        snprintf(prompt, sizeof prompt, "%s%c", prompts[i % 4], 'a' + i % 26);
        cairn_session_reset(s);
        broken += cairn_generate(s, prompt, 60, hear_whole, &characters) != CAIRN_OK;
    }
    tap_ok(!broken && characters > 50, "in a config they cut no character: %d of more than one byte",
           characters);
    cairn_close(rt);
}

/* ---- words to the user -------------------------------------------------------------------------- */

static int notices;
static void count_notices(void *user, cairn_log_level level, const char *text) {
    (void)user, (void)level;
    notices += strstr(text, "no GPU") != NULL;
}

static void test_words(void) {
    static const struct { const char *text, *says; } configs[] = {
        {"return { backend = 'gpu' }", "did you mean \"cuda\"?"},
        {"return { backend = 'GPU' }", "did you mean \"cuda\"?"},
        {"return { drafter = 'lookup' }", "did you mean \"ngram\"?"},
        {"return { sampling = { topk = 4 } }", "did you mean sampling.top_k?"},
        {"return { sampling = { topP = 0.4 } }", "did you mean sampling.top_p?"},
        {"return { topk = os.getenv 'K' }", "a config may use assert"},
        {"return { topk = ('x'):rep(3) }", "a config may use assert"}};
    cairn_model *m = NULL;
    cairn_runtime *rt = open_toy(&m);
    cairn_session *s = NULL;
    cairn_sampling zero;
    cairn_generate_options o;
    cairn_config c;
    char error[512];
    memset(&zero, 0, sizeof zero);
    memset(&o, 0, sizeof o);
    o.struct_size = sizeof o, o.max_tokens = 4, o.sampling = &zero;
    cairn_session_open(m, &s);
    tap_ok(!cairn_generate_with(s, "ab", &o, NULL, NULL), "a zeroed cairn_sampling is greedy");
    cairn_close(rt);
    for (size_t i = 0; i < BASE_COUNT(configs); i++) {
        cairn_status status = cairn_config_parse(configs[i].text, strlen(configs[i].text), "c.lua",
                                                 &c, error, sizeof error);
        tap_ok(status == CAIRN_INVALID_CONFIG && strstr(error, configs[i].says), "%s", error);
    }
    cairn_config_default(&c);
    c.backend = CAIRN_BACKEND_AUTO;
    c.log_callback = count_notices;
    strcpy(c.driver_path, "build/no_driver.so");
    for (int i = 0; i < 3; i++)
        if (!cairn_open(&c, &rt, error, sizeof error)) cairn_close(rt);
    tap_ok(notices == 1, "that there is no GPU is said once: %d", notices);
}

/* ---- closed inside the callback ---------------------------------------------------------------- */

enum { CLOSE_SESSION, CLOSE_MODEL, CLOSE_RUNTIME, CLOSE_ALL, CLOSE_KINDS };
typedef struct closer { cairn_session *s; cairn_model *m; cairn_runtime *rt; int kind, pieces; } closer;

static bool close_inside(void *user, const char *text, size_t bytes) {
    closer *c = (closer *)user;
    (void)text, (void)bytes;
    if (c->pieces++ % 3) return true;
    if (c->kind == CLOSE_SESSION || c->kind == CLOSE_ALL) cairn_session_close(c->s);
    if (c->kind == CLOSE_MODEL || c->kind == CLOSE_ALL) cairn_model_free(c->m);
    if (c->kind == CLOSE_RUNTIME || c->kind == CLOSE_ALL) cairn_close(c->rt);
    return true;
}

/* Another session's call in the callback must not make it go early. */
static bool close_and_call(void *user, const char *text, size_t bytes) {
    closer *c = (closer *)user;
    cairn_session *other = NULL;
    close_inside(user, text, bytes);
    return !cairn_session_open(c->m, &other) && !cairn_generate(other, "cd", 3, NULL, NULL);
}

static void test_closing(void) {
    static const char *const names[] = {"session", "model", "runtime", "all three"};
    for (int kind = 0; kind < CLOSE_KINDS; kind++) {
        long before = live_blocks;
        closer c;
        cairn_session *other = NULL;
        cairn_status status;
        int gone = 0;
        memset(&c, 0, sizeof c);
        c.kind = kind;
        c.rt = open_toy(&c.m);
        cairn_session_open(c.m, &c.s);
        cairn_session_open(c.m, &other);
        status = cairn_generate(c.s, "abcd", 12, kind == CLOSE_MODEL ? close_and_call : close_inside,
                                &c);
        tap_ok(!status && c.pieces > 3, "the %s closed inside the callback: the call goes on to its "
               "end (%d pieces)", names[kind], c.pieces);
        if (kind == CLOSE_SESSION) {
            cairn_session *s = c.m->sessions;
            for (; s; s = s->next) gone += s == c.s;
            tap_ok(!gone && other == c.m->sessions, "then it is gone");
        }
        if (kind == CLOSE_MODEL) tap_ok(!c.rt->models, "then it is gone");
        if (kind < CLOSE_RUNTIME) cairn_close(c.rt);
        tap_ok(live_blocks == before, "nothing is left");
    }
}

int main(void) {
    if (!tap_ok(toy_write(toy_path, NULL), "the toy's file")) return tap_done();
    test_special();
    test_short_vocabulary();
    test_cancel();
    test_stops(random_seed() | 1);
    test_stop_strings();
    test_words();
    test_closing();
    remove(toy_path);
    tap_ok(live_blocks == 0, "no block is left");
    return tap_done();
}
