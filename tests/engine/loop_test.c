/* loop: requests of many sessions on one model: submit, step, poll, cancel. Random sessions submit,
 * cancel, rewind, fork, save, load and generate with blocking calls beside each other, in a pool that is
 * too small for all of them, while the model is stepped in slices of any length; what each said is
 * what it says alone through a fresh runtime. Then wrong use, waiting, priorities and cancels.
 * emulated: asan */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "small_model.h"
#include "tap.h"
#include "toy_model.h"

enum { SESSIONS = 6, DEEDS = 40, MOST_TEXT = 4096, LIMIT = 160, CHUNK = 64 };

static int below(int n) { return (int)(random_next(&state) % (uint64_t)n); }

static bool on_toy;
static char path[] = "/tmp/loop_XXXXXX", small_path[] = "/tmp/small_XXXXXX";
static bool by_model; /* another model drafts */
static const char *where = "the toy";
static cairn_progress_callback progress; /* of the runtimes to come */
static int refused_at;                   /* layer of weights; -1: none */

static cairn_runtime *open_runtime(cairn_backend backend, int batch, int threads) {
    cairn_config c;
    cairn_runtime *rt = NULL;
    char error[1024];
    cairn_config_default(&c);
    c.backend = backend, c.threads = threads, c.page_size = PAGE, c.max_batch = batch;
    c.max_seq_len = LIMIT, c.prefill_chunk = CHUNK, c.log = CAIRN_LOG_OFF, c.topk = 1;
    c.selection.window = 20, c.selection.sinks = 2;
    c.progress_callback = progress;
    if (by_model) snprintf(c.drafter_model, sizeof c.drafter_model, "%s", small_path);
    if (cairn_open(&c, &rt, error, sizeof error)) tap_note("%s", error);
    return rt;
}

static cairn_status load(cairn_runtime *rt, cairn_model **m) {
    return on_toy ? toy_load(rt, path, m) : cairn_load_model(rt, path, m);
}

/* ---- what was done, and the same alone ------------------------------------------------------- */

/* A generation that left the session with `count` ids, the last of them where it was interrupted, and
 * said `text`, all of it where it ended by itself. */
typedef struct deed {
    bool rewind; /* or a generation */
    char prompt[80];
    cairn_sampling sampling;
    bool stops;
    int max_tokens, count;
    bool ended;
    cairn_stop stop;
    char text[MOST_TEXT];
} deed;

typedef struct life {
    cairn_session *s;
    deed deeds[DEEDS];
    int deed_count;
    bool runs;       /* its last deed is a submitted request */
    size_t bytes;    /* of its text */
    int before;      /* ids before its last deed */
} life;

static const char *const stop_strings[] = {"ab", "cd"};

static cairn_generate_options options_of(deed *d) {
    cairn_generate_options o;
    memset(&o, 0, sizeof o);
    o.struct_size = sizeof o, o.sampling = &d->sampling, o.max_tokens = d->max_tokens;
    o.stop = stop_strings, o.stop_count = d->stops ? 2 : -1;
    return o;
}

static char said[MOST_TEXT];
static size_t said_bytes;
static bool say(void *user, const char *text, size_t bytes) {
    (void)user;
    if (said_bytes + bytes < MOST_TEXT) memcpy(said + said_bytes, text, bytes);
    said_bytes += bytes;
    return true;
}

/* The deeds of a life in a session of its own. */
static bool same_alone(const life *l, cairn_session *s, const int32_t *ids, int count) {
    int held = 0;
    bool fine = true;
    for (int i = 0; i < l->deed_count && fine; i++) {
        deed d = l->deeds[i];
        cairn_generate_options o = options_of(&d);
        cairn_session_ids(s, &held);
        if (d.rewind) {
            fine = !cairn_session_rewind(s, d.count);
            continue;
        }
        if (!d.ended && d.count <= held) continue; /* its prompt was not done */
        if (!d.ended) o.stop_count = -1; /* it was interrupted before a stop string was whole */
        said_bytes = 0;
        fine = !cairn_generate_with(s, d.prompt, &o, say, NULL);
        cairn_session_ids(s, &held);
        if (d.ended)
            fine = fine && held == d.count && said_bytes == strlen(d.text) &&
                   !memcmp(said, d.text, said_bytes);
        else fine = fine && held >= d.count && !cairn_session_rewind(s, d.count);
        if (!fine) tap_note("deed %d: %d ids, want %d; \"%.*s\", want \"%s\"", i, held, d.count,
                            (int)said_bytes, said, d.text);
    }
    ids = fine ? ids : NULL;
    if (ids) {
        const int32_t *own = cairn_session_ids(s, &held);
        fine = held == count && (!count || !memcmp(own, ids, (size_t)count * sizeof *ids));
        if (!fine) tap_note("%d ids at the end, want %d", held, count);
        for (int i = 0; !fine && i < l->deed_count; i++)
            tap_note("deed %d: rewind %d, %d ids, ended %d by %s", i, l->deeds[i].rewind,
                     l->deeds[i].count, l->deeds[i].ended, cairn_stop_name(l->deeds[i].stop));
        for (int i = 0; !fine && i < held && i < count; i++)
            if (own[i] != ids[i]) tap_note("parted at %d", i), i = held;
    }
    return fine;
}

static bool check_life(const life *l, cairn_model *alone) {
    cairn_session *s;
    int count;
    const int32_t *ids = cairn_session_ids(l->s, &count);
    bool fine = !cairn_session_open(alone, &s) && same_alone(l, s, ids, count);
    cairn_session_close(s);
    return fine;
}

/* ---- lives together -------------------------------------------------------------------------- */

/* Ids that the session holds once its request is withdrawn. */
static int held_by(const life *l) {
    int count;
    cairn_session_ids(l->s, &count);
    return l->s->phase == ENGINE_PROMPT ? l->before : count;
}

static deed *new_deed(life *l, const cairn_config *c) {
    deed *d = &l->deeds[l->deed_count++];
    int bytes = below(70);
    memset(d, 0, sizeof *d);
    for (int i = 0; i < bytes; i++) d->prompt[i] = (char)('a' + below(on_toy ? 4 : 20));
    d->sampling = c->sampling;
    d->sampling.temperature = below(2) ? 0.9f : 0.0f, d->sampling.top_k = below(2) ? 0 : 10;
    d->sampling.seed = below(1 << 30), d->sampling.repetition_penalty = below(3) ? 1.0f : 1.1f;
    d->max_tokens = 1 + below(30), d->stops = below(2);
    l->before = held_by(l);
    l->bytes = 0;
    return d;
}

/* The running request of a life was interrupted: what it left. */
static void left_off(life *l) {
    int held = held_by(l);
    if (!l->runs) return;
    l->deeds[l->deed_count - 1].count = held;
    if (held <= l->before) l->deed_count--;
    l->runs = false;
}

static bool poll(life *l) {
    deed *d = &l->deeds[l->deed_count - 1];
    cairn_piece piece;
    cairn_status status;
    int held;
    piece.struct_size = sizeof piece;
    status = cairn_generate_poll(l->s, &piece);
    if (l->bytes + piece.bytes < MOST_TEXT) memcpy(d->text + l->bytes, piece.text, piece.bytes);
    l->bytes += piece.bytes;
    cairn_session_ids(l->s, &held);
    if (piece.first + piece.count > held) return false;
    if (!piece.stop) return !status;
    if (piece.stop == CAIRN_STOP_CANCEL) {
        left_off(l);
        return status == CAIRN_CANCELLED;
    }
    d->count = held, d->ended = true, d->stop = piece.stop, l->runs = false;
    return !status && piece.stop != CAIRN_STOP_ERROR;
}

/* The same; a request that has ended by itself is heard to its end first. */
static void interrupted(life *l) {
    if (l->runs && l->s->submitted && l->s->stats.stop) poll(l);
    left_off(l);
}

static bool submit(life *l, const cairn_config *c) {
    deed *d;
    cairn_generate_options o;
    cairn_status status;
    interrupted(l);
    d = new_deed(l, c), o = options_of(d);
    o.priority = below(3);
    status = cairn_generate_submit(l->s, d->prompt, &o);
    l->runs = !status;
    if (status) l->deed_count--;
    return !status || status == CAIRN_CONTEXT_FULL || status == CAIRN_EMPTY_PROMPT;
}

/* A blocking call; where the pool is full it fails, with nothing changed. */
static bool generate(life *l, const cairn_config *c) {
    deed *d;
    cairn_generate_options o;
    cairn_status status;
    interrupted(l);
    d = new_deed(l, c), o = options_of(d);
    said_bytes = 0;
    status = cairn_generate_with(l->s, d->prompt, &o, say, NULL);
    cairn_session_ids(l->s, &d->count);
    memcpy(d->text, said, said_bytes);
    d->ended = !status;
    if (d->count <= l->before && !d->ended) l->deed_count--;
    return !status || status == CAIRN_CONTEXT_FULL || status == CAIRN_EMPTY_PROMPT ||
           status == CAIRN_POOL_FULL;
}

static bool rewind_life(life *l) {
    deed *d;
    int count;
    count = below(held_by(l) + 1);
    if (l->runs && count > l->before) count = l->before;
    if (l->runs && count < l->before) interrupted(l);
    else if (l->runs) l->deed_count--, l->runs = false;
    d = &l->deeds[l->deed_count++];
    memset(d, 0, sizeof *d);
    d->rewind = true, d->count = count;
    return !cairn_session_rewind(l->s, count);
}

/* `to` becomes what `from` is: by a fork, or saved and loaded. */
static bool copy_life(cairn_model *m, life *from, life *to) {
    size_t bytes = 0;
    void *memory = NULL;
    bool fine = true;
    if (from->runs && from->s->phase == ENGINE_PROMPT) return true; /* holds a part of its prompt */
    if (from->runs && from->s->stats.stop && !poll(from)) return false;
    if (below(2)) {
        cairn_session_close(to->s);
        fine = !cairn_session_fork(from->s, &to->s);
    } else {
        cairn_status status;
        fine = !cairn_session_save_memory(from->s, NULL, 0, &bytes) && (memory = malloc(bytes)) &&
               !cairn_session_save_memory(from->s, memory, bytes, &bytes);
        status = fine ? cairn_session_load_memory(to->s, memory, bytes) : CAIRN_OK;
        free(memory);
        if (status == CAIRN_POOL_FULL) return true; /* it is as it was */
        fine = fine && !status;
    }
    (void)m;
    to->deed_count = from->deed_count, to->runs = from->runs, to->before = from->before;
    memcpy(to->deeds, from->deeds, sizeof to->deeds);
    left_off(to);
    return fine;
}

static bool close_life(cairn_model *m, cairn_model *alone, life *l) {
    bool fine = true;
    int count = held_by(l);
    interrupted(l);
    fine = !cairn_session_rewind(l->s, count) && check_life(l, alone);
    cairn_session_close(l->s);
    l->deed_count = 0, l->runs = false;
    return fine && !cairn_session_open(m, &l->s);
}

static int what; /* the last act */

static bool act(cairn_model *m, cairn_model *alone, life *lives, const cairn_config *c) {
    life *l = &lives[below(SESSIONS)], *other = &lives[below(SESSIONS)];
    int32_t pending;
    what = -1;
    if (l->deed_count > DEEDS - 3) return close_life(m, alone, l);
    what = below(16);
    switch (what) {
    case 0: case 1: case 2: return l->runs || submit(l, c);
    case 3: return submit(l, c);
    case 4: return below(3) || generate(l, c);
    case 5: return cairn_cancel(l->s), true;
    case 6: return below(3) || rewind_life(l);
    case 7: return below(3) || l == other || copy_life(m, other, l);
    case 8: return below(3) || close_life(m, alone, l);
    case 9: case 10: return !l->runs || poll(l);
    default: return !cairn_step(m, below(4) ? below(300) : 0, &pending);
    }
}

static bool live_together(cairn_backend backend, int acts, int threads) {
    static life lives[SESSIONS];
    cairn_runtime *rt = open_runtime(backend, 1 + below(4), threads);
    cairn_runtime *one;
    cairn_model *m = NULL, *alone = NULL;
    bool fine, drafts = by_model;
    by_model = false;
    one = open_runtime(backend, 1, 1);
    fine = rt && one && !load(rt, &m) && !load(one, &alone);
    if (fine) {
        uint64_t layers = below(3) ? UINT64_MAX : (uint64_t)below(2);
        rt->config.drafter = below(3) ? CAIRN_DRAFTER_NGRAM : CAIRN_DRAFTER_NONE;
        if (drafts) rt->config.drafter = CAIRN_DRAFTER_MODEL, rt->config.draft_adaptive = below(2);
        rt->config.draft_length = below(9);
        rt->config.slice_us = below(3) ? 0 : 1 + below(2000);
        rt->config.selection.layers[0] = one->config.selection.layers[0] = layers;
        one->config.drafter = CAIRN_DRAFTER_NONE;
    }
    for (int i = 0; i < SESSIONS && fine; i++)
        lives[i].deed_count = 0, lives[i].runs = false, fine = !cairn_session_open(m, &lives[i].s);
    for (int i = 0; i < acts && fine; i++) {
        fine = act(m, alone, lives, &rt->config);
        if (!fine) tap_note("act %d, a %d: %s", i, what, cairn_last_error(rt));
    }
    for (int i = 0; i < SESSIONS && fine; i++) fine = close_life(m, alone, &lives[i]);
    for (int i = 0; i < SESSIONS && fine; i++) cairn_session_close(lives[i].s);
    fine = fine && m->kv.pool.free_count + m->prefixes.pages == m->kv.pool.pages && !toy_faults;
    cairn_close(rt);
    cairn_close(one);
    return fine;
}

static void test_lives(cairn_backend backend, int runs, int acts, int threads) {
    int good = 0;
    for (int i = 0; i < runs; i++) {
        uint64_t seed = state;
        by_model = !on_toy && i % 2;
        bool fine = live_together(backend, acts, threads);
        if (!fine) tap_note("CAIRN_SEED=%llu repeats it as the first", (unsigned long long)seed);
        good += fine;
    }
    tap_ok(good == runs, "on %s: %d of %d crowds of sessions say what each says alone", where, good,
           runs);
}

/* ---- what a request may rely on -------------------------------------------------------------- */

static cairn_session *three[3];
static cairn_model *model;

static bool open_three(cairn_runtime *rt) {
    bool fine = rt && !load(rt, &model);
    for (int i = 0; i < 3; i++) fine = fine && !cairn_session_open(model, &three[i]);
    return fine;
}

static cairn_generate_options wishes(int tokens, int priority) {
    cairn_generate_options o;
    memset(&o, 0, sizeof o);
    o.struct_size = sizeof o, o.max_tokens = tokens, o.priority = priority, o.stop_count = -1;
    return o;
}

/* The same, of a text that does not end by itself, as one of random weights may at once. */
static cairn_generate_options endless(int tokens) {
    static cairn_logit_bias no_end;
    cairn_generate_options o = wishes(tokens, 0);
    no_end.id = on_toy ? (int)TOY_END : (int)END, no_end.bias = -INFINITY;
    o.logit_bias = &no_end, o.logit_bias_count = 1;
    return o;
}

static cairn_piece polled(cairn_session *s, cairn_status *status) {
    cairn_piece piece;
    memset(&piece, 0, sizeof piece);
    piece.struct_size = sizeof piece;
    *status = cairn_generate_poll(s, &piece);
    return piece;
}

static cairn_status inside;
static bool step_inside(void *user, const char *text, size_t bytes) {
    int32_t pending = 77;
    (void)user, (void)text, (void)bytes;
    inside = cairn_step(model, 1000, &pending);
    return pending == 77;
}

static void test_wrong_use(cairn_runtime *rt) {
    int32_t pending = 77;
    cairn_status status;
    cairn_generate_options o = wishes(3, 0);
    char text[64];
    if (!tap_ok(open_three(rt), "on %s: three sessions", where)) return;
    tap_ok(cairn_step(model, -1, &pending) == CAIRN_INVALID_ARGUMENT && pending == 77 &&
               strstr(cairn_last_error(rt), "budget_us = -1"), "a budget below zero: %s",
           cairn_last_error(rt));
    tap_ok(!cairn_step(model, 0, &pending) && pending == 0, "nothing to do");
    polled(three[0], &status);
    tap_ok(status == CAIRN_INVALID_ARGUMENT, "a poll without a request: %s", cairn_last_error(rt));
    tap_ok(cairn_generate_submit(three[0], "", &o) == CAIRN_EMPTY_PROMPT &&
               cairn_session_error(three[0], text, sizeof text) == CAIRN_EMPTY_PROMPT &&
               strlen(text) == sizeof text - 1, "an empty prompt; its message, cut: %s", text);
    o.priority = 101;
    tap_ok(cairn_generate_submit(three[0], "a", &o) == CAIRN_INVALID_ARGUMENT, "a priority of 101");
    inside = CAIRN_OK;
    o = endless(40);
    status = cairn_generate_with(three[0], "abc", &o, step_inside, NULL);
    tap_ok(!status && inside == CAIRN_BUSY, "a step inside a callback: %d, %d: %s", status, inside,
           cairn_last_error(rt));
    model->scratch->stepping = 1;
    tap_ok(cairn_step(model, 10, &pending) == CAIRN_BUSY, "a step while another thread is in it");
    model->scratch->stepping = 0;
    cairn_model_free(model);
}

static void test_cancel(cairn_runtime *rt) {
    cairn_generate_options o = endless(9);
    cairn_piece piece;
    cairn_status status;
    int32_t pending;
    int count, parts = 0;
    if (!open_three(rt)) return;
    cairn_cancel(three[0]); /* before: of nothing */
    status = cairn_generate_submit(three[0], "abcabc", &o);
    piece = polled(three[0], &status);
    tap_ok(!status && !piece.stop && piece.id < 0 && !piece.bytes &&
               piece.request == CAIRN_REQUEST_QUEUED, "submitted: nothing yet");
    cairn_cancel(three[0]);
    cairn_generate_submit(three[1], "bcd", &o);
    while (!cairn_step(model, 1000, &pending) && pending) {}
    piece = polled(three[0], &status);
    cairn_session_ids(three[0], &count);
    tap_ok(status == CAIRN_CANCELLED && piece.stop == CAIRN_STOP_CANCEL && !count,
           "cancelled before the first step: the session is as before");
    piece = polled(three[1], &status);
    tap_ok(!status && piece.stop == CAIRN_STOP_LENGTH && piece.count > 0, "the other went on");
    status = cairn_generate_submit(three[2], "abcdabcdabcdabcdabcdabcdabcdabcdabcdabcd", &o);
    for (; parts < 2 && !status; parts++) status = cairn_step(model, 0, &pending);
    cairn_cancel(three[2]);
    while (!cairn_step(model, 1000, &pending) && pending) {}
    cairn_session_ids(three[2], &count);
    piece = polled(three[2], &status);
    tap_ok(status == CAIRN_CANCELLED && (count == 0 || on_toy), "cancelled in a forward");
    cairn_model_free(model);
}

/* The pool has room for one of three texts or two, and all are told: *waits, *aside count what polls saw
 * of them. */
static bool tell_three(int *waits, int *aside) {
    static char text[3][MOST_TEXT], prompt[3][80];
    cairn_sampling draw = model->runtime->config.sampling;
    cairn_generate_options o = wishes(90, 0);
    cairn_status status = CAIRN_OK;
    const int64_t until = os_now_us() + 60000000;
    int32_t pending = 3;
    int same = 0;
    size_t bytes[3] = {0};
    draw.temperature = 1.2f, draw.seed = below(9999), o.sampling = &draw;
    for (int i = 0; i < 3 && !status; i++) {
        memset(prompt[i], 0, sizeof prompt[i]);
        for (int j = 20 + below(40); j > 0; j--) prompt[i][j - 1] = (char)('b' + below(3));
        status = cairn_generate_submit(three[i], prompt[i], &o);
    }
    while (pending && !status && os_now_us() < until) {
        status = cairn_step(model, 100, &pending);
        for (int i = 0; i < 3 && !status; i++) {
            cairn_piece piece;
            if (!three[i]->submitted) continue;
            piece = polled(three[i], &status);
            memcpy(text[i] + bytes[i], piece.text, piece.bytes), bytes[i] += piece.bytes;
            *waits += piece.request == CAIRN_REQUEST_PAGES, *aside += three[i]->aside;
            if (piece.stop && !status) status = cairn_session_reset(three[i]);
        }
    }
    for (int i = 0; i < 3 && !status; i++) {
        said_bytes = 0;
        status = cairn_generate_with(three[0], prompt[i], &o, say, NULL);
        same += said_bytes == bytes[i] && !memcmp(said, text[i], bytes[i]);
        cairn_session_reset(three[0]);
    }
    if (status || pending) tap_note("%s, %d pending", cairn_status_name(status), (int)pending);
    return !status && !pending && same == 3;
}

static void test_full_pool(cairn_runtime *rt) {
    int waits = 0, aside = 0, good = 0, told = 0;
    if (!open_three(rt)) return;
    for (; told < 1000 && good == told && (told < 8 || (!aside && !on_toy)); told++)
        good += tell_three(&waits, &aside);
    /* on the toy they would wait for ended texts alone, whose pages they take */
    tap_ok(good == told && ((waits > 0 && aside > 0) || on_toy),
           "on %s: %d pages for three texts: %d of %d times all are told; %d polls saw one wait, %d "
           "put aside", where, model->kv.pool.pages, good, told, waits, aside);
    cairn_model_free(model);
}

/* Of two prompts that wait the one of higher priority is first. */
static void test_priority(cairn_runtime *rt) {
    cairn_generate_options low = wishes(1, -1), high = wishes(1, 5);
    int32_t pending;
    int a = 0, b = 0;
    if (!open_three(rt)) return;
    cairn_generate_submit(three[0], "abcdabcdabcdabcdabcdabcdabcdabcdabcdabcdabcdabcdabcdabcd", &low);
    cairn_generate_submit(three[1], "dcbadcbadcbadcbadcbadcbadcbadcbadcbadcbadcbadcbadcbadcba", &high);
    while (!a && !b && !cairn_step(model, 0, &pending))
        a = three[0]->stats.generated, b = three[1]->stats.generated;
    tap_ok(b && !a, "on %s: the higher priority first", where);
    cairn_model_free(model);
}

/* Prompts wait for others while two sessions speak, where a forward for two is told to cost what one for one does: some
 * milliseconds, not where their first tokens are wanted by a time, they outrank who speaks, or are a forward's rows.
 * All are told. */
static void test_company(cairn_runtime *rt) {
    const int chunk = rt->config.prefill_chunk;
    cairn_generate_options o = endless(60);
    cairn_status status = CAIRN_OK;
    int32_t pending = 3;
    bool held, again, late, wanted, outranks, full;
    if (!open_three(rt)) return;
    for (int i = 0; i < 2 && !status; i++) status = cairn_generate_submit(three[i], "abc", &o);
    for (int i = 0; i < 400 && !status && !(loop_decodes(three[0]) && loop_decodes(three[1])); i++)
        status = cairn_step(model, 1, &pending);
    for (int i = 0; i < ENGINE_COSTS; i++) model->scratch->cost_us[i] = i < 3 ? 1.0 : 1e6;
    if (!status) status = cairn_generate_submit(three[2], "abcdabcdabcdabcdabcd", &o);
    held = loop_decodes(three[0]) && loop_decodes(three[1]) && loop_holds_prompts(model, ENGINE_NO_LIMIT);
    os_sleep_us(10100);
    late = loop_holds_prompts(model, ENGINE_NO_LIMIT), again = loop_holds_prompts(model, ENGINE_NO_LIMIT);
    three[2]->wanted_us = os_now_us() + 1000000, wanted = loop_holds_prompts(model, ENGINE_NO_LIMIT);
    three[2]->wanted_us = INT64_MAX, three[2]->options.priority = 1;
    outranks = loop_holds_prompts(model, ENGINE_NO_LIMIT);
    three[2]->options.priority = 0, rt->config.prefill_chunk = 4;
    full = loop_holds_prompts(model, ENGINE_NO_LIMIT);
    rt->config.prefill_chunk = chunk;
    while (!status && pending) status = cairn_step(model, 1000, &pending);
    tap_ok(!status && held && !late && again && !wanted && !outranks && !full,
           "on %s: a prompt waits for others (%d), until (%d, %d); wanted soon (%d), first (%d), of a forward's rows (%d)",
           where, held, late, again, wanted, outranks, full);
    cairn_model_free(model);
}

/* Of prompts of one priority the one whose first token is wanted soonest is first, whoever came before;
 * those of which nobody says when come last, in their order. */
static void test_urgency(cairn_runtime *rt) {
    static const int urgency[3] = {0, 60000, 2000};
    static const char *prompts[3] = {"abcdabcdabcdabcdabcdabcdabcdabcdabcdabcdabcdabcdabcdabcd",
                                     "dcbadcbadcbadcbadcbadcbadcbadcbadcbadcbadcbadcbadcbadcba",
                                     "bbbabbbabbbabbbabbbabbbabbbabbbabbbabbbabbbabbbabbbabbba"};
    cairn_generate_options o = endless(1);
    cairn_status status = CAIRN_OK;
    int32_t pending = 3;
    int came[3] = {0}, count = 0;
    if (!open_three(rt)) return;
    for (int i = 0; i < 3 && !status; i++) {
        o.first_token_ms = urgency[i];
        status = cairn_generate_submit(three[i], prompts[i], &o);
    }
    while (pending && !status) {
        status = cairn_step(model, 0, &pending);
        for (int i = 2; i >= 0; i--)
            if (!came[i] && three[i]->stats.generated) came[i] = ++count;
    }
    tap_ok(!status && came[2] == 1 && came[1] == 2 && came[0] == 3,
           "on %s: the most urgent first: first tokens come %d, %d, %d", where, came[0], came[1], came[2]);
    o.first_token_ms = -1;
    tap_ok(cairn_generate_submit(three[0], "a", &o) == CAIRN_INVALID_ARGUMENT &&
               strstr(cairn_last_error(rt), "first_token_ms = -1"), "%s", cairn_last_error(rt));
    cairn_model_free(model);
}

/* A request of higher priority that finds the pool full takes the pages of a lower one, which says all
 * the same what it says alone. */
static void test_outranked(cairn_runtime *rt) {
    static char low_text[MOST_TEXT], prompt[81]; /* two of that length never fit together */
    cairn_generate_options low = endless(60), high = wishes(4, 5);
    int aside = 0, first = 0, same = 0, rounds = 0;
    cairn_status status = CAIRN_OK;
    if (!open_three(rt)) return;
    low.priority = -1;
    for (; rounds < 40 && aside < 3 && !status; rounds++) {
        bool gave = false, done[2] = {false, false};
        size_t bytes = 0;
        int32_t pending = 1;
        memset(prompt, 0, sizeof prompt);
        for (int i = 0; i < 80; i++) prompt[i] = (char)('c' + below(2));
        status = cairn_generate_submit(three[0], prompt, &low);
        while (!status && three[0]->phase != ENGINE_SAYS && !three[0]->stats.stop)
            status = cairn_step(model, 0, &pending);
        if (!status) status = cairn_generate_submit(three[1], prompt + 1, &high);
        for (pending = 1; pending && !status;) {
            status = cairn_step(model, 0, &pending);
            gave = gave || three[0]->aside;
            for (int i = 0; i < 2 && !status; i++) {
                cairn_piece piece;
                if (done[i]) continue;
                piece = polled(three[i], &status);
                done[i] = piece.stop != CAIRN_STOP_NONE;
                if (i) first += gave && done[1] && !done[0];
                else memcpy(low_text + bytes, piece.text, piece.bytes), bytes += piece.bytes;
                if (done[i] && !status) status = cairn_session_reset(three[i]);
            }
        }
        aside += gave;
        said_bytes = 0;
        if (!status) status = cairn_generate_with(three[2], prompt, &low, say, NULL);
        same += said_bytes == bytes && !memcmp(said, low_text, bytes);
        cairn_session_reset(three[2]);
    }
    tap_ok(!status && aside == 3 && first == 3 && same == rounds,
           "on %s: a full pool: the lower priority gives way %d times of %d, %d before its end; %d "
           "texts are whole", where, aside, rounds, first, same);
    cairn_model_free(model);
}

/* ---- two threads that alternate -------------------------------------------------------------- */

typedef struct worker {
    os_mutex *lock;
    os_atomic *turn; /* whose it is */
    int index, steps;
    bool fine;
} worker;

static void work(void *context) {
    worker *w = (worker *)context;
    int32_t pending = 1;
    while (pending && w->fine) {
        if (os_atomic_load(w->turn) != w->index) continue;
        os_mutex_lock(w->lock);
        w->fine = !cairn_step(model, 0, &pending);
        w->steps++;
        os_mutex_unlock(w->lock);
        os_atomic_store(w->turn, !w->index);
    }
}

static void test_alternating(cairn_runtime *rt) {
    static char alone[3][MOST_TEXT];
    static const char *const prompts[] = {"abcabc", "bcdbcdbcdbcdbcd", "ddddd"};
    cairn_generate_options o = wishes(25, 0);
    os_mutex lock;
    os_atomic turn;
    worker w[2];
    os_thread other;
    int same = 0;
    bool fine = open_three(rt);
    for (int i = 0; i < 3 && fine; i++) {
        said_bytes = 0;
        fine = !cairn_generate_with(three[i], prompts[i], &o, say, NULL) &&
               !cairn_session_reset(three[i]);
        memcpy(alone[i], said, said_bytes), alone[i][said_bytes] = '\0';
    }
    for (int i = 0; i < 3 && fine; i++)
        fine = !cairn_generate_submit(three[i], prompts[i], &o);
    os_mutex_init(&lock);
    os_atomic_store(&turn, 0);
    for (int i = 0; i < 2; i++) w[i] = (worker){&lock, &turn, i, 0, fine};
    fine = fine && os_thread_start(&other, 0, work, &w[1]);
    if (fine) work(&w[0]), os_thread_join(&other);
    os_mutex_destroy(&lock);
    for (int i = 0; i < 3 && fine; i++) {
        cairn_status status;
        cairn_piece piece = polled(three[i], &status);
        same += !status && piece.stop && piece.bytes == strlen(alone[i]) &&
                !memcmp(piece.text, alone[i], piece.bytes);
    }
    tap_ok(fine && same == 3 && w[0].fine && w[1].fine && w[0].steps > 0 && w[1].steps > 0,
           "on %s: two threads that step in turn, %d and %d times: %d of 3 texts", where, w[0].steps,
           w[1].steps, same);
    cairn_model_free(model);
}

static int most_rows; /* of a forward so far */
static cairn_status count_rows(cairn_model *m, kv_cache *kv, forward_batch *batch) {
    if (batch->row_count > most_rows) most_rows = batch->row_count;
    return toy_backend.forward(m, kv, batch);
}

/* Rows of the longest forward of a prompt, when each of its rows takes 100 us. */
static int longest_slice(int slice_us, int32_t budget_us) {
    cairn_generate_options o = wishes(1, 0);
    engine_scratch *x = model->scratch;
    int32_t pending = 1;
    most_rows = 0;
    model->runtime->config.slice_us = slice_us;
    if (cairn_session_reset(three[0]) || cairn_generate_submit(three[0],
            "cdabcdcdabcdcdabcdcdabcdcdabcdcdabcdcdabcdcdabcdcdabcdcdabcdcdabcdcdabcdcdabcdcdabcdcd", &o))
        return -1;
    while (pending) {
        for (int i = 0; i < ENGINE_COSTS; i++) x->cost_us[i] = 100.0 * (double)(1 << i); /* what a clock says */
        if (cairn_step(model, budget_us, &pending)) return -1;
    }
    model->runtime->config.slice_us = 0;
    return most_rows;
}

/* A prompt's forwards take no longer than slice_us says, nor than half of a step's budget, whichever is
 * less, where a forward runs in one go. */
static void test_slices(cairn_runtime *rt) {
    model_backend counting = toy_backend;
    int all, sliced, short_budget, both;
    if (!on_toy || !open_three(rt)) return;
    counting.forward = count_rows;
    model->backend = &counting;
    all = longest_slice(0, 100000), sliced = longest_slice(1700, 100000);
    short_budget = longest_slice(0, 3300), both = longest_slice(900, 3300);
    tap_ok(all == 64 && sliced == 16 && short_budget == 16 && both == 8,
           "slices of %d rows; of 1700 us %d, with a budget of 3300 %d, of 900 us then %d", all, sliced,
           short_budget, both);
    cairn_model_free(model);
}

static void test_requests(cairn_backend backend) {
    cairn_runtime *rt = open_runtime(backend, 3, 1), *small = open_runtime(backend, 1, 1);
    test_wrong_use(rt);
    test_cancel(rt);
    test_priority(rt);
    test_company(rt);
    test_urgency(rt);
    test_alternating(rt);
    test_slices(rt);
    test_full_pool(small);
    test_outranked(small);
    cairn_close(rt);
    cairn_close(small);
}

static bool refuse_weights(void *user, const char *loads, int index, int count) {
    (void)user, (void)count;
    return strcmp(loads, "weights") || index != refused_at;
}

/* A load that is cancelled while its weights go to the device leaves nothing there, and loads anew. */
static void test_load_cancelled(void) {
    cairn_runtime *rt;
    cairn_model *m = NULL;
    cairn_runtime_info before = {.struct_size = sizeof before}, after = before;
    cairn_status status;
    progress = refuse_weights, refused_at = 1;
    rt = open_runtime(CAIRN_BACKEND_CUDA, 1, 1);
    cairn_info(rt, &before);
    status = cairn_load_model(rt, path, &m);
    cairn_info(rt, &after);
    tap_ok(status == CAIRN_CANCELLED && !m && before.live_bytes == after.live_bytes,
           "a load ends between two layers: %s", cairn_last_error(rt));
    refused_at = -1;
    tap_ok(!cairn_load_model(rt, path, &m) && m, "then it loads: %s", cairn_last_error(rt));
    cairn_close(rt);
    progress = NULL;
}

int main(void) {
    int file = mkstemp(path);
    bool emulated = getenv("CAIRN_SIMT_KERNELS") != NULL;
    cairn_runtime *rt;
    uint64_t same;
    state = random_seed();
    on_toy = true;
    if (emulated) setenv("CAIRN_SIMT_LATE", "6", 0); /* the device is still at work when it is asked */
    if (!tap_ok(file >= 0 && toy_write(path, NULL), "the toy is written")) return tap_done();
    test_lives(CAIRN_BACKEND_CPU, emulated ? 20 : 40, 400, 1);
    test_requests(CAIRN_BACKEND_CPU);
    on_toy = false, where = "cpu";
    file = mkstemp(small_path);
    same = state;
    if (!tap_ok(file >= 0 && write_model(small_path), "a model that drafts is written"))
        return tap_done();
    if (same % 2) state = same; /* then all of its drafts are right */
    if (!tap_ok(write_model(path), "a small model is written")) return tap_done();
    test_lives(CAIRN_BACKEND_CPU, emulated ? 4 : 8, 400, 1);
    test_lives(CAIRN_BACKEND_CPU, emulated ? 2 : 4, 300, 2);
    test_requests(CAIRN_BACKEND_CPU);
    where = "cuda";
    rt = open_runtime(CAIRN_BACKEND_CUDA, 1, 1);
    cairn_close(rt);
    if (rt) test_load_cancelled();
    if (rt) test_lives(CAIRN_BACKEND_CUDA, emulated ? 1 : 10, emulated ? 40 : 400, 1);
    else tap_skip("requests on cuda");
    remove(path);
    remove(small_path);
    return tap_done();
}
