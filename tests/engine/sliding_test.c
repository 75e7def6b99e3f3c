/* sliding: models whose layers see a window keep few pages for them, and say what they would if they
 * kept all. Random sessions append, speak (alone and together), go back, fork, are saved and loaded,
 * with drafts and a prefix cache, dense and sparse, over caches of each type; the oracle says the same in a runtime whose layers
 * keep all pages (forwards so large that windows are not short beside the context), from an empty
 * session, without drafts and prefixes. Page counts of sequence, pool and estimate; a pool that is
 * short; snapshots of one runtime in the other.
 * CAIRN_SLIDING_RUNS sets how many runs a family makes. emulated: asan */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "gguf_build.h"
#include "random.h"
#include "ref/block_ref.h"
#include "ref/f16_ref.h"
#include "tap.h"
#include "backends.h"
#include "short_memory.h"
#include "family.h"

enum { PAGE = 16, WINDOW = 21, ROOM = 640, SLOTS = 3, COMMON = 208, VOCAB = 100 };
/* Of a sequence that decodes: its window, the page before, what rewinds have; of one with a prompt. */
enum { KEPT = (WINDOW + 64) / PAGE + 3, MOST = (WINDOW - 1 + 64 + 64 + PAGE - 1) / PAGE + 2 };

static const char *path = "build/sliding.gguf";
static cairn_backend backend;
static cairn_kv_dtype stored; /* what the cache holds */
static bool sparse; /* steps choose pages in the layers that keep all */
static uint64_t state;
static int32_t common[COMMON];
static int below(int n) { return (int)(random_next(&state) % (uint64_t)n); }

typedef struct talk { int32_t ids[ROOM]; bool given[ROOM]; int count; } talk;
typedef struct house { cairn_runtime *rt; cairn_model *model; cairn_sampling sampling; } house;

static cairn_config make_config(bool windows, bool drafts) {
    cairn_config c;
    cairn_config_default(&c);
    c.backend = backend, c.threads = 1, c.page_size = PAGE, c.max_batch = SLOTS;
    c.kv_dtype = stored;
    c.log = CAIRN_LOG_OFF, c.max_seq_len = ROOM;
    c.prefill_chunk = windows ? 16 + 16 * below(4) : 2048;
    c.drafter = drafts ? CAIRN_DRAFTER_NGRAM : CAIRN_DRAFTER_NONE;
    c.memory.prefix_cache = drafts;
    if (sparse) c.topk = 1, c.selection.window = 8, c.selection.sinks = 2;
    else memset(c.selection.layers, 0, sizeof c.selection.layers);
    return c;
}

static house open_house(const cairn_config *c) {
    house h = {NULL, NULL, c->sampling};
    char error[1024] = "";
    if (cairn_open(c, &h.rt, error, sizeof error)) return tap_note("%s", error), h;
    if (cairn_load_model(h.rt, path, &h.model)) tap_note("%s", cairn_last_error(h.rt));
    h.sampling.temperature = 0.9f, h.sampling.seed = 7;
    return h;
}

static bool say(const house *h, cairn_session *s, int n) {
    cairn_generate_options o = {.struct_size = sizeof o, .max_tokens = n, .sampling = &h->sampling,
                                .stop_count = -1};
    cairn_status status = n > 0 ? cairn_generate_with(s, NULL, &o, NULL, NULL) : CAIRN_OK;
    if (status) tap_note("say %d: %s", n, cairn_last_error(h->rt));
    return !status;
}

/* Keeps what the session holds behind the talk. */
static void keep(const cairn_session *s, bool given, talk *t) {
    int count;
    const int32_t *ids = cairn_session_ids(s, &count);
    for (; t->count < count; t->count++)
        t->ids[t->count] = ids[t->count], t->given[t->count] = given;
}

static bool same(const cairn_session *s, const talk *t) {
    int count, at = 0;
    const int32_t *ids = cairn_session_ids(s, &count);
    while (at < count && at < t->count && ids[at] == t->ids[at]) at++;
    if (at < count || count != t->count) tap_note("%d tokens, not %d; from %d on others", count,
                                                  t->count, at);
    return at == count && count == t->count;
}

/* The talk again, in an empty session of `h`, which then says `more`. */
static bool replay(const house *h, const talk *t, int more, talk *out) {
    cairn_session *s = NULL;
    bool fine = !cairn_session_open(h->model, &s);
    for (int at = 0, n; at < t->count && fine; at += n) {
        for (n = 1; at + n < t->count && t->given[at + n] == t->given[at]; n++) {}
        if (t->given[at]) fine = !cairn_append_ids(s, t->ids + at, n);
        else
            for (int held = at, before = -1; held < at + n && held > before && fine;) {
                before = held;
                fine = say(h, s, at + n - held);
                cairn_session_ids(s, &held);
            }
    }
    fine = fine && same(s, t);
    *out = *t;
    fine = fine && say(h, s, more);
    if (fine) keep(s, false, out);
    cairn_session_close(s);
    return fine;
}

static bool move_to(cairn_session *from, cairn_session *to) {
    size_t bytes = 0;
    void *memory = NULL;
    bool fine = !cairn_session_save_memory(from, NULL, 0, &bytes) && (memory = malloc(bytes)) &&
                !cairn_session_save_memory(from, memory, bytes, &bytes) &&
                !cairn_session_load_memory(to, memory, bytes);
    if (!fine) tap_note("load: %s", engine_base(to)->error);
    free(memory);
    return fine;
}

/* ---- random sessions ------------------------------------------------------------------------- */

static cairn_session *sessions[SLOTS];
static talk talks[SLOTS];

static bool append(int i) {
    const int count = talks[i].count, most = ROOM - 60 - count;
    int32_t ids[COMMON];
    int n = count ? 1 + below(90) : 1 + below(COMMON);
    for (int j = 0; j < COMMON; j++) ids[j] = below(8) || !count ? common[j] : 1 + below(VOCAB - 1);
    for (int j = 0; j < n && count; j++) ids[j] = 1 + below(VOCAB - 1);
    if (n > most) n = most;
    if (n < 1) return true;
    if (cairn_append_ids(sessions[i], ids, n))
        return tap_note("%s", engine_base(sessions[i])->error), false;
    keep(sessions[i], true, &talks[i]);
    return true;
}

static bool speak(const house *h, int i) {
    const int room = ROOM - 30 - talks[i].count, n = 1 + below(40);
    if (!talks[i].count || room < 1) return true;
    if (!say(h, sessions[i], n < room ? n : room)) return false;
    keep(sessions[i], false, &talks[i]);
    return true;
}

/* All that have something, side by side. */
static bool speak_together(const house *h) {
    cairn_generate_options o = {.struct_size = sizeof o, .max_tokens = 1 + below(25),
                                .sampling = &h->sampling, .stop_count = -1};
    int32_t pending = 0;
    for (int i = 0; i < SLOTS; i++)
        if (talks[i].count && talks[i].count < ROOM - 60 &&
            cairn_generate_submit(sessions[i], NULL, &o))
            return tap_note("%s", engine_base(sessions[i])->error), false;
    do
        if (cairn_step(h->model, 2000, &pending)) return tap_note("step"), false;
    while (pending);
    for (int i = 0; i < SLOTS; i++) {
        cairn_piece piece = {.struct_size = sizeof piece};
        if (!talks[i].count || talks[i].count >= ROOM - 60) continue;
        do
            if (cairn_generate_poll(sessions[i], &piece)) return tap_note("poll"), false;
        while (!piece.stop);
        keep(sessions[i], false, &talks[i]);
    }
    return true;
}

static bool rewind_to(int i, int count) {
    if (cairn_session_rewind(sessions[i], count)) return false;
    talks[i].count = count;
    return true;
}

/* Pages that a row has of its window. */
static int kept_of(const window_state *w, int row) {
    return row < w->tables.requests ? w->tables.pages[row] - window_first(w, row) : 0;
}

/* The invariants of windows: what rows keep, and who holds the pool's pages. */
static bool keeps_few(const cairn_model *m) {
    for (int g = 0; g < m->groups.count; g++) {
        const window_state *w = &m->windows[g];
        int promised = 0;
        for (int r = 0; r < w->tables.requests; r++) {
            promised += w->rows[r].promised;
            if (kept_of(w, r) > MOST || w->rows[r].promised > MOST) return false;
        }
        if (promised != w->promised || promised > m->kv.window_pools[g].free_count) return false;
    }
    return true;
}

static bool do_something(const house *h) {
    const int i = below(SLOTS), j = below(SLOTS), held = talks[i].count;
    cairn_session *fork;
    switch (below(9)) {
    case 0: case 1: return append(i);
    case 2: case 3: return speak(h, i);
    case 4: return speak_together(h);
    case 5: return rewind_to(i, held - below(held < 40 ? held + 1 : 40));
    case 6: return rewind_to(i, below(4) ? held : below(held + 1));
    case 7:
        if (i == j) return true;
        if (cairn_session_fork(sessions[i], &fork)) return false;
        cairn_session_close(sessions[j]);
        sessions[j] = fork, talks[j] = talks[i];
        return true;
    default:
        talks[j] = talks[i];
        return move_to(sessions[i], sessions[j]);
    }
}

static void test_run(const char *name, int run) {
    static talk want;
    const cairn_config plain = make_config(false, false), own = make_config(true, run % 4 < 3);
    house h = open_house(&own), oracle = open_house(&plain);
    bool fine = h.model && oracle.model && h.model->groups.count == 1 &&
                !oracle.model->groups.count;
    for (int i = 0; i < SLOTS && fine; i++) {
        talks[i].count = 0;
        fine = !cairn_session_open(h.model, &sessions[i]);
    }
    for (int n = is_emulated(backend) ? 26 : 0; n < 40 && fine; n++)
        fine = do_something(&h) && keeps_few(h.model);
    tap_ok(fine, "%s, run %d: windows keep %d pages at most", name, run, MOST);
    for (int i = 0; i < SLOTS && fine; i++) {
        if (!talks[i].count) continue;
        fine = replay(&oracle, &talks[i], 12, &want) && say(&h, sessions[i], 12);
        tap_ok(fine && same(sessions[i], &want),
               "%s, run %d: %d tokens and 12 more, as if all were kept", name, run,
               talks[i].count);
    }
    for (int i = 0; i < SLOTS && fine; i++) cairn_session_close(sessions[i]);
    if (fine && h.model->prefixes.buckets) prefix_strip(&h.model->prefixes, 0, INT_MAX);
    tap_ok(fine && h.model->kv.window_pools[0].free_count == h.model->kv.window_pools[0].pages &&
               h.model->windows[0].promised == 0, "%s, run %d: no page is lost", name, run);
    cairn_close(h.rt);
    cairn_close(oracle.rt);
}

/* ---- what is kept ---------------------------------------------------------------------------- */

static void test_counts(const char *name, const family *f, int whole) {
    const cairn_config c = make_config(true, false);
    const int window_layers = f->layers - whole, all = ROOM / PAGE;
    static const int value_bytes[] = {2, 2, 4, 1};
    const int scale = stored == CAIRN_KV_E4M3 ? 4 : 0;
    const uint64_t slot = (uint64_t)(f->kv_heads * (f->dim * value_bytes[stored] + scale)) * 2;
    const uint64_t bounds = (uint64_t)(f->kv_heads * f->dim) * 2 * 2;
    house h = open_house(&c);
    cairn_session *s = NULL;
    cairn_model_properties info = {.struct_size = sizeof info};
    cairn_memory_estimate e = {.struct_size = sizeof e};
    char error[512];
    int32_t ids[ROOM];
    int pages, kept;
    bool fine;
    uint64_t want;
    if (!tap_ok(h.model && !cairn_model_info(h.model, &info) && !cairn_session_open(h.model, &s) &&
                    !cairn_estimate(&c, path, &e, error, sizeof error), "%s: counts", name))
        return;
    pages = h.model->kv.window_pools[0].pages;
    want = (uint64_t)(SLOTS * all) * (uint64_t)whole * (slot * PAGE + bounds) +
           (uint64_t)pages * (uint64_t)window_layers * slot * PAGE;
    tap_ok(info.pages == SLOTS * all && pages == SLOTS * 2 * MOST && info.kv_bytes == want &&
               e.kv_bytes == want && e.pages == info.pages && info.window_pages == pages &&
               info.free_window_pages == pages,
           "%s: pools of %d and %d pages, %llu bytes, as estimated", name, SLOTS * all, pages,
           (unsigned long long)want);
    for (int i = 0; i < ROOM; i++) ids[i] = 1 + below(VOCAB - 1);
    fine = !cairn_append_ids(s, ids, 500);
    kept = kept_of(&h.model->windows[0], s->row);
    tap_ok(fine && kept > 0 && kept <= MOST &&
               h.model->tables.pages[s->row] == (500 + PAGE - 1) / PAGE,
           "%s: a prompt of 500 tokens keeps %d pages", name, kept);
    fine = say(&h, s, 60);
    kept = kept_of(&h.model->windows[0], s->row);
    tap_ok(fine && kept > 0 && kept <= KEPT, "%s: then 60 steps keep %d", name, kept);
    cairn_model_info(h.model, &info);
    tap_ok(info.free_window_pages >= pages - KEPT - 1, "%s: the rest is free", name);
    cairn_session_close(s);
    cairn_close(h.rt);
}

/* More sessions than the windows' pool has room for: a status, and the others go on. */
static void test_short(const char *name) {
    static talk t, want;
    const cairn_config plain = make_config(false, false);
    cairn_config c = make_config(true, true);
    cairn_session *all[40] = {NULL};
    int32_t ids[COMMON];
    int count = t.count = 0;
    cairn_status status = CAIRN_OK;
    house h, oracle = open_house(&plain);
    c.max_batch = 1;
    h = open_house(&c);
    while (h.model && !status && count < 40 && !cairn_session_open(h.model, &all[count])) {
        for (int i = 0; i < 60; i++) ids[i] = 1 + below(VOCAB - 1);
        status = cairn_append_ids(all[count++], ids, 60);
        if (count == 1) keep(all[0], true, &t);
    }
    tap_ok(status == CAIRN_POOL_FULL && count > 2, "%s: session %d finds the pool full", name, count);
    while (count > 1) cairn_session_close(all[--count]);
    tap_ok(oracle.model && replay(&oracle, &t, 200, &want) && say(&h, all[0], 200) &&
               same(all[0], &want), "%s: the first goes on", name);
    cairn_close(h.rt);
    cairn_close(oracle.rt);
}

/* A snapshot of a runtime that keeps all is taken by one that does not, and the other way. */
static void test_snapshots(const char *name) {
    static talk t, want;
    const cairn_config plain = make_config(false, false), own = make_config(true, false);
    house h = open_house(&own), oracle = open_house(&plain);
    cairn_session *a, *b;
    bool fine = h.model && oracle.model && !cairn_session_open(h.model, &a) &&
                !cairn_session_open(oracle.model, &b);
    t.count = 0;
    fine = fine && !cairn_append_ids(a, common, COMMON);
    if (fine) keep(a, true, &t);
    fine = fine && say(&h, a, 100);
    if (fine) keep(a, false, &t);
    tap_ok(fine && replay(&oracle, &t, 20, &want) && move_to(a, b) && say(&oracle, b, 20) &&
               same(b, &want), "%s: a snapshot of few pages where all are kept", name);
    tap_ok(fine && !cairn_session_rewind(b, t.count) && move_to(b, a) && say(&h, a, 20) &&
               same(a, &want), "%s: and the other way", name);
    cairn_close(h.rt);
    cairn_close(oracle.rt);
}

/* A pool that has no room for a session and for what it saved: what it has goes first. */
static void test_tight(const char *name) {
    enum { HELD = ROOM / 2 + 100 };
    static talk want;
    cairn_config own = make_config(true, false);
    house h;
    cairn_session *s = NULL;
    int32_t ids[HELD];
    size_t bytes = 0;
    void *memory = NULL;
    bool fine;
    own.max_batch = 1;
    h = open_house(&own);
    for (int i = 0; i < HELD; i++) ids[i] = 1 + below(VOCAB - 1);
    fine = h.model && !cairn_session_open(h.model, &s) && !cairn_append_ids(s, ids, HELD) &&
           !cairn_session_save_memory(s, NULL, 0, &bytes) && (memory = malloc(bytes)) &&
           !cairn_session_save_memory(s, memory, bytes, &bytes);
    fine = fine && say(&h, s, 20);
    want.count = 0;
    if (fine) keep(s, false, &want);
    fine = fine && h.model->kv.pool.free_count < HELD / PAGE;
    fine = fine && !cairn_session_load_memory(s, memory, bytes) && say(&h, s, 20);
    if (!fine && h.rt) tap_note("%s", cairn_last_error(h.rt));
    tap_ok(fine && same(s, &want), "%s: a snapshot where there is no room beside what it replaces", name);
    free(memory);
    cairn_close(h.rt);
}

/* More sessions than the tables of windows have rows at first: each allocation of a first append fails. */
static void test_short_rows(const char *name) {
    enum { SESSIONS = 6 };
    static talk want;
    cairn_config own = make_config(true, false);
    cairn_session *s[SESSIONS];
    house h;
    int32_t ids[40];
    int refused = 0, bad = 0;
    own.max_batch = 2, own.allocator.realloc = test_realloc;
    h = open_house(&own);
    want.count = 0;
    for (int i = 0; i < 40; i++) ids[i] = 1 + below(VOCAB - 1);
    for (int i = 0; h.model && i < SESSIONS; i++) {
        cairn_status status = CAIRN_OUT_OF_MEMORY;
        if (cairn_session_open(h.model, &s[i])) bad++;
        for (int n = 0; !bad && status; n++) {
            int count;
            allocations_left = n;
            status = cairn_append_ids(s[i], ids, 40);
            allocations_left = -1;
            cairn_session_ids(s[i], &count);
            bad += status ? status != CAIRN_OUT_OF_MEMORY || count || n > 99 : count != 40;
            refused += status != CAIRN_OK;
        }
        bad = bad || !say(&h, s[i], 8);
        if (!bad && !i) keep(s[i], false, &want);
        bad = bad || !same(s[i], &want);
    }
    tap_ok(h.model && !bad && refused > SESSIONS, "%s: %d sessions, each of %d allocations of their appends fails", name,
           SESSIONS, refused);
    cairn_close(h.rt);
    tap_ok(!live_blocks, "%s: no memory is left", name);
}

/* What a prompt began with is there for the next, with its windows; not where these went back. */
static void test_prefix(const char *name, bool stripped) {
    static talk t, want;
    const cairn_config plain = make_config(false, false), own = make_config(true, true);
    house h = open_house(&own), oracle = open_house(&plain);
    cairn_session *a, *b;
    int32_t ids[COMMON + 40];
    bool fine = h.model && oracle.model && !cairn_session_open(h.model, &a) &&
                !cairn_session_open(h.model, &b);
    t.count = 0;
    memcpy(ids, common, sizeof common);
    for (int i = 0; i < 40; i++) ids[COMMON + i] = 1 + below(VOCAB - 1);
    fine = fine && !cairn_append_ids(a, ids, COMMON + 40);
    if (fine && stripped) fine = say(&h, a, 60); /* its own window is elsewhere then */
    if (fine && stripped) prefix_strip(&h.model->prefixes, 0, INT_MAX);
    ids[COMMON - 30] = 99 - ids[COMMON - 30]; /* they part in the middle of what the first kept */
    fine = fine && !cairn_append_ids(b, ids, COMMON + 40);
    if (fine) keep(b, true, &t);
    tap_ok(fine && b->reused == (stripped ? 0 : (COMMON - 30) / PAGE * PAGE), "%s: %d tokens of a prompt are reused",
           name, fine ? b->reused : 0);
    tap_ok(fine && replay(&oracle, &t, 30, &want) && say(&h, b, 30) && same(b, &want),
           "%s: to the same text", name);
    cairn_close(h.rt);
    cairn_close(oracle.rt);
}

/* Rows of two sessions at once, in a pool that has just room for both while what their prompts lent to
 * the prefix cache comes back; then rows from where the window's pages are gone. */
static bool run_rows(const house *h, cairn_session **s, const int32_t *ids, int at, float *logits) {
    static const int32_t wanted[] = {0, 120, 249, 250, 369};
    const cairn_forward_sequence two[] = {{s[0], 0, 250, 1, 0, NULL, 0}, {s[1], 0, 120, 1, 0, NULL, 0}};
    const cairn_forward_sequence one[] = {{s[0], at, 5, 0, 0, NULL, 0}};
    cairn_forward_args a = {.struct_size = sizeof a, .sequence_count = 2, .row_count = 370,
                            .logits_count = 5, .sequences = two, .ids = ids, .logits_rows = wanted,
                            .logits = logits};
    static const int32_t all[] = {0, 1, 2, 3, 4};
    bool fine = !cairn_forward(h->model, &a);
    a.sequence_count = 1, a.row_count = 5, a.sequences = one, a.logits_rows = all;
    a.logits = logits + 5 * VOCAB;
    fine = fine && !cairn_forward(h->model, &a);
    if (!fine) tap_note("%s", cairn_last_error(h->rt));
    return fine;
}

static void test_rows(const char *name) {
    static float some[10 * VOCAB], want[10 * VOCAB];
    const cairn_config plain = make_config(false, false);
    cairn_config own = make_config(true, true);
    house h, oracle = open_house(&plain);
    cairn_session *a[2], *b[2];
    int32_t ids[370];
    bool fine = oracle.model != NULL;
    own.max_batch = 1;
    h = open_house(&own);
    for (int i = 0; i < 370; i++) ids[i] = 1 + below(VOCAB - 1);
    for (int i = 0; i < 2 && fine; i++)
        fine = h.model && !cairn_session_open(h.model, &a[i]) &&
               !cairn_session_open(oracle.model, &b[i]);
    for (int at = 250; at >= 60 && fine; at -= 95) {
        fine = run_rows(&oracle, b, ids, at, want) && run_rows(&h, a, ids, at, some);
        tap_ok(fine && !memcmp(some, want, sizeof some) && keeps_few(h.model),
               "%s: rows of the caller's, then from %d on, give the same bits", name, at);
    }
    cairn_close(h.rt);
    cairn_close(oracle.rt);
}

static void choose_stored(void) {
    stored = (cairn_kv_dtype)below(CAIRN_KV_COUNT);
}

static void test_family(family f, const char *name, int whole, int runs) {
    static const int types[] = {BLOCK_F16};
    family_make(&f, types, 1, &state);
    if (f.period) family_put(&f, "attention.sliding_window_pattern", 4, f.period, NULL);
    if (!tap_ok(family_write(&f, path), "%s is written", name)) return;
    choose_stored();
    test_counts(name, &f, whole);
    sparse = false;
    if (!is_emulated(backend)) test_short(name), test_rows(name), test_tight(name), test_short_rows(name);
    sparse = is_emulated(backend);
    test_snapshots(name);
    test_prefix(name, false);
    if (!is_emulated(backend)) test_prefix(name, true);
    for (int i = 0; i < runs; i++) sparse = i & 1, choose_stored(), test_run(name, i);
    family_free(&f);
    remove(path);
}

/* Whether there is a GPU, or an emulated one. */
static bool has_cuda(void) {
    cairn_config c = make_config(true, false);
    cairn_runtime *rt;
    c.backend = CAIRN_BACKEND_CUDA, c.kv_dtype = CAIRN_KV_F16;
    rt = open_runtime_on(&c, "windows");
    cairn_close(rt);
    return rt != NULL;
}

int main(void) {
    const family gemma = {.architecture = "gemma3", .layers = 3, .hidden = 64, .heads = 2, .kv_heads = 1,
                          .dim = 64, .ffn = 64, .vocab = VOCAB, .context = 2048, .head_norms = true,
                          .post_norms = true, .halves = true, .gelu = true, .window = WINDOW,
                          .period = 3};
    const family llama = {.architecture = "llama", .layers = 2, .hidden = 64, .heads = 2, .kv_heads = 1,
                          .dim = 64, .ffn = 64, .vocab = VOCAB, .context = 2048, .window = WINDOW};
    const char *more = getenv("CAIRN_SLIDING_RUNS");
    const int runs = more ? atoi(more) : 8;
    state = random_seed();
    for (int i = 0; i < COMMON; i++) common[i] = 1 + below(VOCAB - 1);
    backend = CAIRN_BACKEND_CPU;
    test_family(gemma, "gemma3", 1, runs);
    test_family(llama, "llama", 0, runs / 2);
    if (!has_cuda()) return tap_done();
    backend = CAIRN_BACKEND_CUDA;
    test_family(gemma, "gemma3, cuda", 1, is_emulated(backend) ? 1 : runs);
    if (!is_emulated(backend)) test_family(llama, "llama, cuda", 0, runs / 2);
    return tap_done();
}
