/* worker: the thread of the runtime that works on what is submitted. What sessions say with it is
 * what they say without, whichever threads submit, poll, cancel and generate; closing, reload and
 * failures while it runs. */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "small_model.h"
#include "tap.h"
#include "toy_model.h"

enum { SESSIONS = 6, THREADS = 3, MOST_TEXT = 4096, LIMIT = 200 };

static bool on_toy;
static char path[] = "/tmp/worker_XXXXXX";
static const char *where = "the toy";

static cairn_runtime *open_runtime(bool worker, int batch, int budget_pages) {
    cairn_config c;
    cairn_runtime *rt = NULL;
    char error[1024];
    cairn_config_default(&c);
    c.backend = CAIRN_BACKEND_CPU, c.threads = 1, c.page_size = PAGE, c.max_batch = batch;
    c.max_seq_len = budget_pages ? budget_pages * PAGE : LIMIT, c.prefill_chunk = 64;
    c.log = CAIRN_LOG_OFF, c.worker.enabled = worker, c.worker.threads = on_toy ? 1 : 2;
    if (cairn_open(&c, &rt, error, sizeof error)) tap_note("%s", error);
    return rt;
}

static cairn_status load(cairn_runtime *rt, cairn_model **m) {
    return on_toy ? toy_load(rt, path, m) : cairn_load_model(rt, path, m);
}

static cairn_generate_options wishes(int tokens) {
    cairn_generate_options o;
    memset(&o, 0, sizeof o);
    o.struct_size = sizeof o, o.max_tokens = tokens, o.stop_count = -1;
    return o;
}

static const char *const prompts[] = {"abcab", "bcdabcdabcdabcdabcdabc", "dd", "acacacab", "badcab",
                                      "ccccccccccccccccccccccccccccccccccccccccccccccccccccccc"};

typedef struct said { char text[MOST_TEXT]; size_t bytes; } said;

static bool hear(void *user, const char *text, size_t bytes) {
    said *to = (said *)user;
    if (to->bytes + bytes < MOST_TEXT) memcpy(to->text + to->bytes, text, bytes);
    to->bytes += bytes;
    return true;
}

static said alone[SESSIONS];
static bool tell_alone(void) {
    cairn_runtime *rt = open_runtime(false, 1, 0);
    cairn_generate_options o = wishes(40);
    cairn_model *m;
    bool fine = rt && !load(rt, &m);
    memset(alone, 0, sizeof alone);
    for (int i = 0; i < SESSIONS && fine; i++) {
        cairn_session *s;
        fine = !cairn_session_open(m, &s) &&
               !cairn_generate_with(s, prompts[i], &o, hear, &alone[i]);
        cairn_session_close(s);
    }
    cairn_close(rt);
    return fine;
}

static bool same_as_alone(const said *x, int i) {
    return x->bytes == alone[i].bytes && !memcmp(x->text, alone[i].text, x->bytes);
}

/* Until the request's last piece; what it returns. */
static cairn_status listen(cairn_session *s, said *to, cairn_stop *stop) {
    cairn_piece piece;
    cairn_status status;
    memset(to, 0, sizeof *to);
    do {
        piece.struct_size = sizeof piece, piece.stop = CAIRN_STOP_NONE;
        status = cairn_generate_poll(s, &piece);
        if (!status || piece.stop) hear(to, piece.text, piece.bytes);
        os_thread_yield();
    } while (!status && !piece.stop);
    *stop = piece.stop;
    return status;
}

static cairn_model *model;
static cairn_session *six[SESSIONS];

/* A thread with two sessions: submits, polls, cancels, and generates with blocking calls. `wrong` says of the first
 * call that failed what it and the session said: a failure once in a thousand runs has to tell its cause. */
typedef struct guest { int index, good, rounds; char wrong[1024]; } guest;

/* Keeps the first of what is wrong; false. */
static bool blame(char *wrong, cairn_session *s, const char *call, cairn_status status) {
    char why[512];
    const cairn_status noted = cairn_session_error(s, why, sizeof why);
    if (!*wrong)
        snprintf(wrong, sizeof ((guest *)0)->wrong, "%s returned %s; its session's error: %s, \"%s\"", call,
                 cairn_status_name(status), cairn_status_name(noted), why);
    return false;
}

/* Ends what is wrong with the text that was heard and the one that was wanted. */
static void blame_text(char *wrong, const said *text, cairn_stop stop, int i) {
    const size_t bytes = strlen(wrong);
    const int heard = (int)(text->bytes < MOST_TEXT ? text->bytes : MOST_TEXT);
    snprintf(wrong + bytes, sizeof ((guest *)0)->wrong - bytes, "; stop %d; %d bytes \"%.*s\", alone %d \"%.*s\"",
             (int)stop, (int)text->bytes, heard < 160 ? heard : 160, text->text, (int)alone[i].bytes,
             (int)(alone[i].bytes < 160 ? alone[i].bytes : 160), alone[i].text);
}

static bool one_round(int round, int i, char *wrong) {
    const char *call = "generate_submit";
    cairn_generate_options o = wishes(40);
    cairn_stop stop = CAIRN_STOP_NONE;
    cairn_status status;
    bool good, first;
    said text;
    char why[256];
    memset(&text, 0, sizeof text);
    if (round % 3 == 1) {
        call = "generate_with";
        status = cairn_generate_with(six[i], prompts[i], &o, hear, &text);
        good = !status && same_as_alone(&text, i);
    } else {
        if ((status = cairn_generate_submit(six[i], prompts[i], &o))) return blame(wrong, six[i], call, status);
        if (round % 3 == 2) cairn_cancel(six[i]);
        call = round % 3 == 2 ? "generate_poll after a cancel" : "generate_poll";
        status = listen(six[i], &text, &stop);
        if (stop == CAIRN_STOP_CANCEL)
            good = round % 3 == 2 && status == CAIRN_CANCELLED &&
                   cairn_session_error(six[i], why, sizeof why) == CAIRN_CANCELLED && strstr(why, "cancel");
        else good = !status && same_as_alone(&text, i);
    }
    if (good) return true;
    first = !*wrong;
    blame(wrong, six[i], call, status);
    if (first) blame_text(wrong, &text, stop, i);
    return false;
}

static void be_guest(void *context) {
    guest *g = (guest *)context;
    for (int round = 0; round < g->rounds; round++)
        for (int j = 0; j < SESSIONS / THREADS; j++) {
            int i = g->index * (SESSIONS / THREADS) + j;
            const bool first = !*g->wrong;
            const bool good = one_round(round, i, g->wrong);
            const cairn_status status = cairn_session_reset(six[i]); /* its pages go */
            if (good && status) blame(g->wrong, six[i], "session_reset", status);
            if (first && *g->wrong) {
                const size_t bytes = strlen(g->wrong);
                snprintf(g->wrong + bytes, sizeof g->wrong - bytes, " (round %d, session %d)", round, i);
            }
            g->good += good && !status;
        }
}

/* What goes on beside the guests: a session that appends, one that forks off it, another config. */
static bool be_host(cairn_runtime *rt, int round, char *wrong) {
    cairn_config c = *cairn_config_of(rt);
    cairn_session *own = NULL, *fork = NULL;
    const char *call = "session_open";
    said text;
    cairn_status status = cairn_session_open(model, &own);
    memset(&text, 0, sizeof text);
    if (!status) call = "append", status = cairn_append(own, "abc");
    if (!status) call = "session_fork", status = cairn_session_fork(own, &fork);
    if (!status) call = "generate", status = cairn_generate(fork, "d", 5, hear, &text);
    if (status) blame(wrong, fork ? fork : own, call, status);
    cairn_session_close(own);
    cairn_session_close(fork);
    if (status) return false;
    c.draft_length = round % 5, c.topk = 32;
    if (!(status = cairn_reload(rt, &c))) return true;
    return blame(wrong, NULL, "reload", status);
}

static void test_guests(int batch, int rounds) {
    cairn_runtime *rt = open_runtime(true, batch, 0);
    os_thread threads[THREADS];
    guest guests[THREADS + 1]; /* the last one: this thread */
    int good = 0, want = rounds * SESSIONS;
    bool fine = rt && !load(rt, &model);
    memset(guests, 0, sizeof guests);
    for (int i = 0; i < SESSIONS && fine; i++) fine = !cairn_session_open(model, &six[i]);
    for (int i = 0; i < THREADS && fine; i++) {
        guests[i].index = i, guests[i].rounds = rounds;
        fine = os_thread_start(&threads[i], 0, be_guest, &guests[i]);
    }
    for (int i = 0; i < rounds * 4 && fine; i++) fine = be_host(rt, i, guests[THREADS].wrong);
    for (int i = 0; i < THREADS; i++) os_thread_join(&threads[i]), good += guests[i].good;
    tap_ok(fine && good == want, "on %s, batches of %d: three threads submit, poll, cancel and "
           "generate: %d of %d texts are what each says alone", where, batch, good, want);
    for (int i = 0; i <= THREADS; i++)
        if (*guests[i].wrong) tap_note("%s: %s", i < THREADS ? "a guest" : "beside them", guests[i].wrong);
    cairn_close(rt);
}

static void test_wrong_use(void) {
    cairn_runtime *rt = open_runtime(true, 2, 0);
    int32_t pending = 77;
    cairn_generate_options o = wishes(30);
    cairn_piece piece;
    cairn_status status;
    cairn_config c;
    cairn_stop stop;
    said text;
    if (!tap_ok(rt && !load(rt, &model) && !cairn_session_open(model, &six[0]), "opened")) return;
    tap_ok(cairn_step(model, 1000, &pending) == CAIRN_BUSY && pending == 77 &&
               strstr(cairn_last_error(rt), "worker"), "a step beside it: %s", cairn_last_error(rt));
    tap_ok(cairn_step(model, -1, &pending) == CAIRN_INVALID_ARGUMENT, "a budget below zero");
    piece.struct_size = sizeof piece;
    tap_ok(cairn_generate_poll(six[0], &piece) == CAIRN_INVALID_ARGUMENT, "a poll of nothing");
    c = *cairn_config_of(rt);
    c.worker.enabled = false;
    tap_ok(cairn_reload(rt, &c) == CAIRN_NEEDS_REOPEN && strstr(cairn_last_error(rt), "worker.enabled"),
           "it cannot be reloaded away: %s", cairn_last_error(rt));
    tap_ok(cairn_generate_submit(six[0], "", &o) == CAIRN_EMPTY_PROMPT &&
               !cairn_generate_submit(six[0], "abc", &o), "an empty prompt, then one that is not");
    status = listen(six[0], &text, &stop);
    tap_ok(!status && text.bytes, "which is answered");
    cairn_close(rt);
}

/* Closed while requests run, by another call's callback too. */
static bool close_all(void *user, const char *text, size_t bytes) {
    (void)text, (void)bytes;
    cairn_close((cairn_runtime *)user);
    return true;
}

static void test_closing(void) {
    cairn_generate_options o = wishes(30);
    int good = 0;
    for (int i = 0; i < 12; i++) {
        cairn_runtime *rt = open_runtime(true, 2, 0);
        bool fine = rt && !load(rt, &model);
        for (int j = 0; j < 3 && fine; j++)
            fine = !cairn_session_open(model, &six[j]) && !cairn_generate_submit(six[j], prompts[j], &o);
        fine = fine && !cairn_session_open(model, &six[3]);
        if (i % 3 == 1) cairn_session_close(six[1]), cairn_model_free(model);
        if (i % 3 == 2) fine = fine && !cairn_generate(six[3], "ab", 4, close_all, rt);
        else cairn_close(rt);
        good += fine;
    }
    tap_ok(good == 12, "on %s: closed while requests run, %d of 12 times", where, good);
}

/* A pool that an idle session fills: a blocking call fails, a request takes its pages, and what it held
 * is computed anew. While a pulled generation holds them a request waits until there is room. */
static void test_full_pool(void) {
    cairn_runtime *rt = open_runtime(true, 1, 6);
    cairn_generate_options o = wishes(4);
    cairn_session *idle;
    cairn_piece piece;
    cairn_stop stop;
    char text[80];
    said heard, first = {{0}, 0}, again = {{0}, 0};
    bool fine = rt && !load(rt, &model) && !cairn_session_open(model, &idle) &&
                !cairn_session_open(model, &six[0]) && !cairn_session_open(model, &six[1]);
    memset(text, 'a', sizeof text - 1), text[sizeof text - 1] = '\0';
    fine = fine && !cairn_generate(idle, text, 4, hear, &first) && !cairn_session_reset(idle) &&
           !cairn_append(idle, text);
    memset(text, 'b', sizeof text - 1);
    if (!tap_ok(fine, "on %s: an idle session holds the pool", where)) {
        cairn_close(rt);
        return;
    }
    tap_ok(cairn_generate(six[0], text, 4, NULL, NULL) == CAIRN_POOL_FULL, "a blocking call: %s",
           cairn_last_error(rt));
    tap_ok(!cairn_generate_submit(six[1], text, &o) && !listen(six[1], &heard, &stop) &&
               (stop == CAIRN_STOP_LENGTH || stop == CAIRN_STOP_EOS),
           "a request takes its pages");
    cairn_session_reset(six[1]);
    tap_ok(!cairn_generate(idle, NULL, 4, hear, &again) && again.bytes == first.bytes &&
               !memcmp(again.text, first.text, first.bytes), "it says the same without them");
    fine = !cairn_session_reset(idle) && !cairn_generate_begin(six[0], text, &o) &&
           !cairn_generate_submit(six[1], text, &o);
    piece.struct_size = sizeof piece, piece.request = CAIRN_REQUEST_NONE;
    for (int64_t until = os_now_us() + 60000000; fine && piece.request != CAIRN_REQUEST_PAGES;) {
        fine = !cairn_generate_poll(six[1], &piece) && os_now_us() < until;
        os_thread_yield(); /* the worker's turn comes when the machine has time for it */
    }
    tap_ok(fine && piece.request == CAIRN_REQUEST_PAGES, "a request waits for pages");
    cairn_session_close(six[0]);
    tap_ok(!listen(six[1], &heard, &stop) && (stop == CAIRN_STOP_LENGTH || stop == CAIRN_STOP_EOS),
           "and goes on once there are some");
    cairn_close(rt);
}

/* Threads change between two steps, in the middle of a forward too. */
static void test_threads(void) {
    static const int counts[] = {3, 1, 2, 4};
    cairn_runtime *rt = open_runtime(false, 4, 0);
    cairn_generate_options o = wishes(40);
    cairn_runtime_info info;
    int32_t pending = 1, steps = 0;
    int good = 0;
    bool fine = rt && !load(rt, &model);
    for (int i = 0; i < 4 && fine; i++)
        fine = !cairn_session_open(model, &six[i]) && !cairn_generate_submit(six[i], prompts[i], &o);
    for (; pending && fine; steps++) {
        cairn_config c = *cairn_config_of(rt);
        c.threads = counts[steps / 5 % 4];
        info.struct_size = sizeof info;
        fine = !cairn_step(model, 0, &pending) && !cairn_reload(rt, &c) && !cairn_info(rt, &info) &&
               info.multiprocessors == c.threads;
    }
    for (int i = 0; i < 4 && fine; i++) {
        cairn_stop stop;
        said text;
        good += !listen(six[i], &text, &stop) && same_as_alone(&text, i);
    }
    tap_ok(fine && good == 4, "on %s: %d steps by 1 to 4 threads, %d of 4 texts", where, steps, good);
    cairn_close(rt);
}

/* A forward that fails ends its requests, and no other. */
static void test_failing(void) {
    cairn_runtime *rt = open_runtime(true, 1, 0);
    cairn_generate_options o = wishes(12);
    char why[256];
    cairn_stop stop;
    said heard;
    bool fine = rt && !load(rt, &model) && !cairn_session_open(model, &six[0]);
    toy_forwards = 0, toy_fail_at = 2;
    fine = fine && !cairn_generate_submit(six[0], prompts[0], &o);
    tap_ok(fine && listen(six[0], &heard, &stop) == CAIRN_DEVICE_ERROR && stop == CAIRN_STOP_ERROR &&
               cairn_session_error(six[0], why, sizeof why) == CAIRN_DEVICE_ERROR &&
               strstr(why, "the toy fails here"), "a forward fails: %s", why);
    toy_fail_at = -1;
    tap_ok(!cairn_generate_submit(six[0], "c", &o) && !listen(six[0], &heard, &stop),
           "the session goes on");
    cairn_close(rt);
}

int main(void) {
    int file = mkstemp(path);
    state = random_seed();
    on_toy = true;
    if (!tap_ok(file >= 0 && toy_write(path, NULL) && tell_alone(), "the toy is written")) return tap_done();
    test_guests(3, 6); /* with pages for all six: those that rest keep theirs for a while */
    test_guests(4, 12);
    test_wrong_use();
    test_closing();
    test_full_pool();
    test_failing();
    tap_ok(!toy_faults, "no forward found a promise broken");
    on_toy = false, where = "cpu";
    if (!tap_ok(write_model(path) && tell_alone(), "a small model is written")) return tap_done();
    test_guests(4, 12);
    test_closing();
    test_full_pool();
    test_threads();
    remove(path);
    return tap_done();
}
