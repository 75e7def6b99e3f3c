/* next: steps that the GPU begins before their token is known (runtime/forward/cuda_next.c). One session is
 * pulled token by token, and between two tokens anything happens: other draws, rewinds, appends, forks in whose
 * favour it is closed, snapshots, other sessions' forwards, other streams. A runtime whose forwards may stop
 * between two layers, and so never begins a step, does the same deeds: both hold the same ids after each of
 * them. Then a step that cannot be begun, since the driver refuses it, costs nothing but time. So, too, by a model
 * that drafts from masks, about half of whose drafts hold. Within the whole suite (tests/turns.h) each tree tries
 * every other config.
 * emulated: asan */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "gguf_build.h"
#include "random.h"
#include "ref/block_ref.h"
#include "ref/f16_ref.h"
#include "ref/llama_ref.h"
#include "tap.h"
#include "turns.h"
#include "backends.h"
#include "family.h"
#define ZOO_TYPES BLOCK_F16
#include "family_zoo.h"
#include "low.h"
#include "gated.h"
#include "small_model.h"

enum { LIMIT = 200, PULLS = 12, CONFIGS = 4, DRAFTING = 3 };

static const char *where;
static bool drafting; /* the config is that with drafts */

static int below(int n) { return (int)(random_next(&state) % (uint64_t)n); }

/* One of the two runtimes. */
typedef struct rig {
    cairn_runtime *rt;
    cairn_model *m;
    cairn_session *s, *other;
    cairn_stream *stream;
    bool begins;  /* steps */
    bool running; /* a generation */
    int begun, taken;
    cairn_status status;
} rig;

typedef enum deed_kind { BEGIN, PULL, REWIND, APPEND, FORK, SNAPSHOT, OTHER, STREAM, EVAL, DEEDS } deed_kind;
static const char *const deeds[] = {"begin", "pull", "rewind", "append", "fork", "snapshot", "other", "stream", "eval"};

/* What happens next; n: of ids, or tokens. */
typedef struct deed {
    deed_kind kind;
    int n;
    int32_t ids[24];
    cairn_sampling sampling;
    int logprobs;
    bool grammar;
} deed;

/* ---- the two runtimes ------------------------------------------------------------------------ */

static cairn_status open_sessions(rig *g) {
    const cairn_status status = cairn_session_open(g->m, &g->s);
    return status ? status : cairn_session_open(g->m, &g->other);
}

static bool open_rig(rig *g, bool begins, int config) {
    cairn_config c;
    memset(g, 0, sizeof *g);
    g->begins = begins;
    cairn_config_default(&c);
    c.backend = CAIRN_BACKEND_CUDA, c.page_size = PAGE, c.max_batch = 3, c.max_seq_len = LIMIT;
    c.log = CAIRN_LOG_OFF, c.prefill_chunk = 32, c.drafter = CAIRN_DRAFTER_NONE;
    c.topk = 1, c.selection.window = 20, c.selection.sinks = 2;
    if (drafting) {
        c.drafter = CAIRN_DRAFTER_MTP, c.draft_length = 1, c.draft_adaptive = false, c.deterministic = true;
        snprintf(c.adapter, sizeof c.adapter, "%s", path);
    }
    if (config == 0 || drafting) memset(&c.selection.layers, 0, sizeof c.selection.layers);
    if (config == 2) c.kv_dtype = CAIRN_KV_E4M3; /* no flow kernel */
    if (!begins) c.slice_us = 1000;
    g->rt = open_runtime_on(&c, "steps that are begun");
    if (!g->rt) return false;
    g->status = cairn_load_model(g->rt, model_path, &g->m);
    if (!g->status) g->status = open_sessions(g);
    if (!g->status) g->status = cairn_stream_new(g->rt, &g->stream);
    return tap_ok(!g->status, "%s: a model is open: %s", where, cairn_last_error(g->rt));
}

static const forward_cuda_state *state_of(const rig *g) { return (const forward_cuda_state *)g->m->state; }

/* A step counts as short, so that it may run in one go: an emulated one is not. */
static void hurry(rig *g) {
    for (int i = 0; i < ENGINE_COSTS && g->begins; i++) g->m->scratch->cost_us[i] = 1.0;
}

/* ---- deeds ----------------------------------------------------------------------------------- */

static void pull(rig *g, int count) {
    for (int i = 0; i < count && g->running && !g->status; i++) {
        const forward_cuda_state *f = state_of(g);
        const bool there = f->next.there;
        const int tells = f->tells;
        cairn_piece piece;
        memset(&piece, 0, sizeof piece);
        piece.struct_size = sizeof piece;
        hurry(g);
        g->status = cairn_generate_next(g->s, &piece);
        g->running = !piece.stop;
        g->begun += f->next.there;
        g->taken += there && f->next.there && f->tells != tells; /* launched one, not two */
    }
}

static void begin(rig *g, const deed *d) {
    const cairn_generate_options o = {.struct_size = sizeof o, .max_tokens = d->n, .sampling = &d->sampling,
                                      .stop_count = -1, .grammar = d->grammar ? "root ::= [!-~]+" : NULL,
                                      .logprobs = d->logprobs};
    hurry(g);
    g->status = cairn_generate_begin(g->s, "", &o);
    g->running = !g->status;
}

static void fork_over(rig *g) {
    cairn_session *fork = NULL;
    if ((g->status = cairn_session_fork(g->s, &fork))) return;
    cairn_session_close(g->s);
    g->s = fork, g->running = false;
}

/* Back to where it is now, by way of some tokens more. */
static void go_and_return(rig *g, int tokens) {
    size_t bytes = 0;
    void *memory;
    if ((g->status = cairn_session_save_memory(g->s, NULL, 0, &bytes)) || !(memory = malloc(bytes))) return;
    g->status = cairn_session_save_memory(g->s, memory, bytes, &bytes);
    pull(g, tokens);
    if (!g->status) g->status = cairn_session_load_memory(g->s, memory, bytes);
    g->running = false;
    free(memory);
}

static void let_other_speak(rig *g, const deed *d) {
    int count;
    cairn_session_ids(g->other, &count);
    if (count + 2 * d->n >= LIMIT) g->status = cairn_session_reset(g->other);
    if (!g->status) g->status = cairn_append_ids(g->other, d->ids, d->n);
    hurry(g);
    if (!g->status) g->status = cairn_generate(g->other, "", d->n, NULL, NULL);
}

static void do_deed(rig *g, const deed *d) {
    double nll;
    const cairn_eval_args a = {.struct_size = sizeof a, .ids = d->ids, .count = 1 + d->n};
    switch (d->kind) {
        case BEGIN: begin(g, d); break;
        case PULL: pull(g, d->n); break;
        case REWIND: g->status = cairn_session_rewind(g->s, d->n), g->running = false; break;
        case APPEND: g->status = cairn_append_ids(g->s, d->ids, d->n), g->running = false; break;
        case FORK: fork_over(g); break;
        case SNAPSHOT: go_and_return(g, d->n); break;
        case OTHER: let_other_speak(g, d); break;
        case STREAM: g->status = cairn_stream_set(g->rt, d->n & 1 ? g->stream : NULL); break;
        case EVAL: g->status = cairn_eval(g->m, &a, &nll); break;
        default: break;
    }
}

/* What is drawn for a session of so many ids. */
static deed draw_deed(int count, bool running) {
    static const cairn_sampling ways[] = {
        {.top_p = 1}, {.top_p = 1}, {.temperature = 0.9f, .top_k = 20, .top_p = 1},
        {.temperature = 0.9f, .top_p = 0.9f}, {.temperature = 0.9f, .top_p = 1, .repetition_penalty = 1.2f}};
    deed d;
    memset(&d, 0, sizeof d);
    d.kind = count < 2                ? APPEND
             : count + 40 > LIMIT     ? REWIND
             : running && below(3)    ? PULL
             : !running && below(2)   ? BEGIN
                                      : (deed_kind)below(DEEDS);
    d.n = d.kind == REWIND ? 1 + below(count) : d.kind == BEGIN ? 2 + below(40) : 1 + below(PULLS);
    for (int i = 0; i < (int)BASE_COUNT(d.ids); i++) d.ids[i] = 1 + below(VOCAB - 2);
    d.sampling = ways[drafting && below(2) ? 0 : below((int)BASE_COUNT(ways))];
    d.sampling.seed = below(1000);
    d.logprobs = below(6) ? 0 : 2, d.grammar = !below(6);
    return d;
}

static bool same_ids(const rig *a, const rig *b) {
    int count, others;
    const int32_t *ids = cairn_session_ids(a->s, &count), *more = cairn_session_ids(b->s, &others);
    return count == others && !memcmp(ids, more, (size_t)count * sizeof *ids) && a->running == b->running;
}

static void test_deeds(rig *a, rig *b, int many) {
    bool fine = true;
    int i = 0, count = 0;
    for (; i < many && fine; i++) {
        deed d;
        cairn_session_ids(a->s, &count);
        d = draw_deed(count, a->running);
        do_deed(a, &d), do_deed(b, &d);
        fine = !a->status && !b->status && same_ids(a, b);
        if (!fine) tap_note("%s, deed %d, %s %d of %d ids: %s; %s", where, i, deeds[d.kind], d.n, count,
                            cairn_last_error(a->rt), cairn_last_error(b->rt));
    }
    tap_ok(fine, "%s: %d deeds leave the same ids; of %d steps begun %d are taken", where, i, a->begun, a->taken);
    tap_ok(!b->begun, "%s: where a forward may stop none is begun", where);
}

/* So many tokens of a text that goes on, drawn by `seed` or one behind it; false: all texts end before. */
static bool speak(rig *a, rig *b, int seed, int tokens) {
    const deed prompt = {.kind = APPEND, .n = 5, .ids = {8, 9, 10, 11, 12}};
    for (int i = 0; i < 20; i++) {
        const deed back = {.kind = REWIND, .n = 1};
        const deed say = {.kind = BEGIN, .n = 30,
                          .sampling = {.top_p = 1, .temperature = drafting ? 0.0f : 2.0f, .seed = seed + i}};
        do_deed(a, &back), do_deed(b, &back), do_deed(a, &prompt), do_deed(b, &prompt);
        do_deed(a, &say), do_deed(b, &say);
        pull(a, tokens), pull(b, tokens);
        if (a->running || a->status || b->status) break;
    }
    return a->running && same_ids(a, b);
}

/* Steps that are begun are taken: one at least within eight tokens, four steps or more even if drafts hold. */
static void test_taken(rig *a, rig *b) {
    const int begun = a->begun, taken = a->taken;
    const bool fine = speak(a, b, 1000, 8);
    tap_ok(fine && a->taken > taken && a->begun - begun >= a->taken - taken,
           "%s: of %d steps begun %d are taken", where, a->begun - begun, a->taken - taken);
}

/* What comes on another stream finds nothing in flight on the one before. */
static void test_streams(rig *a, rig *b) {
    bool fine = speak(a, b, 2000, 4);
    int waited = 0;
    for (int i = 1; i < 8 && fine; i++) {
        const deed other = {.kind = STREAM, .n = i};
        waited += a->rt->device.ahead;
        do_deed(a, &other), do_deed(b, &other);
        pull(a, 1), pull(b, 1);
        fine = !a->status && !b->status && same_ids(a, b);
    }
    cairn_stream_set(a->rt, NULL), cairn_stream_set(b->rt, NULL);
    tap_ok(fine && waited > 0, "%s: a stream is waited for %d times before another is set", where, waited);
}

/* ---- several sessions ------------------------------------------------------------------------ */

enum { MANY = 3 };

/* Sessions of a rig that say texts of several lengths; the steps that were taken, and those of them that some of the
 * sessions had ended before. */
typedef struct crowd {
    cairn_session *s[MANY];
    int taken, taken_late;
    cairn_status status;
} crowd;

static void gather_crowd(rig *g, crowd *c, uint64_t seed) {
    memset(c, 0, sizeof *c);
    for (int i = 0; i < MANY && !c->status; i++) {
        const int32_t ids[] = {8, 9 + i, 10, (int32_t)(11 + seed % 5), 12};
        const bool on_host = i == 0 && seed % 2 == 0; /* then the first one's logits are read until it ends */
        const cairn_sampling sampling = {.top_p = 1, .temperature = i || on_host ? 2.0f : 0.0f,
                                         .repetition_penalty = on_host ? 1.5f : 0.0f, .seed = (int64_t)seed + i};
        const cairn_generate_options o = {.struct_size = sizeof o, .max_tokens = 6 + 8 * i,
                                          .sampling = &sampling, .stop_count = -1};
        c->status = cairn_session_open(g->m, &c->s[i]);
        if (!c->status) c->status = cairn_append_ids(c->s[i], ids, 2 + i);
        if (!c->status) c->status = cairn_generate_submit(c->s[i], "", &o);
    }
}

/* A call a forward at most: of one that is taken another is begun. How many calls find the GPU at work says nothing:
 * others may have it. */
static void step_crowd(rig *g, crowd *c) {
    const forward_cuda_state *f = state_of(g);
    const int64_t until = os_now_us() + 60000000;
    int pending = MANY;
    while (pending && !c->status && os_now_us() < until) {
        const bool there = f->next.there;
        const int tells = f->tells, rows = f->next.count;
        hurry(g);
        c->status = cairn_step(g->m, 0, &pending);
        if (!there || !f->next.there || f->tells == tells) continue;
        c->taken++;
        c->taken_late += f->next.count < MANY || rows < MANY;
    }
    if (pending && !c->status) c->status = CAIRN_BUSY;
}

/* Steps of several sessions are begun, too, and go on when some of these have ended. */
static void test_many(rig *a, rig *b) {
    crowd with, without;
    bool same = true;
    cairn_session_close(a->other), cairn_session_close(b->other), a->other = b->other = NULL;
    cairn_session_close(a->s), cairn_session_close(b->s), a->s = b->s = NULL;
    const uint64_t seeds = is_emulated(CAIRN_BACKEND_CUDA) ? 2 : 6;
    for (uint64_t seed = 1; seed <= seeds && same; seed++) {
        gather_crowd(a, &with, seed), gather_crowd(b, &without, seed);
        if (!with.status) step_crowd(a, &with);
        if (!without.status) step_crowd(b, &without);
        for (int i = 0; i < MANY; i++) {
            int count = 0, others = 1;
            const int32_t *ids = with.s[i] ? cairn_session_ids(with.s[i], &count) : NULL;
            const int32_t *more = without.s[i] ? cairn_session_ids(without.s[i], &others) : NULL;
            same = same && count == others && !memcmp(ids, more, (size_t)count * sizeof *ids);
            cairn_session_close(with.s[i]), cairn_session_close(without.s[i]);
        }
        tap_ok(same && !with.status && !without.status, "%s: several sessions say what they say without: %s; %s",
               where, cairn_last_error(a->rt), cairn_last_error(b->rt));
        tap_ok(with.taken > 3 && with.taken_late > 0 && !without.taken,
               "%s: of their steps %d are taken, %d of them once some have ended", where, with.taken, with.taken_late);
    }
    tap_ok(!open_sessions(a) && !open_sessions(b), "%s: sessions are open again", where);
}

/* ---- a driver that refuses ------------------------------------------------------------------- */

static CUresult(*launch_graph)(CUgraphExec, CUstream);
static int refuse_at; /* the launches that still go through; -1: all */
static int launches;  /* that were asked for */

static CUresult launch_or_refuse(CUgraphExec graph, CUstream stream) {
    launches++;
    if (refuse_at == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    refuse_at -= refuse_at > 0;
    return launch_graph(graph, stream);
}

static void test_refused(rig *a, rig *b) {
    driver_calls *drv = a->rt->device.drv;
    bool fine = true;
    int i, steps = 0;
    if (!tap_ok(speak(a, b, 3000, 4), "%s: four tokens are said", where)) return;
    launch_graph = drv->cuGraphLaunch;
    drv->cuGraphLaunch = launch_or_refuse;
    for (i = 0; i < 8 && fine; i++) {
        /* the step itself, where none is there, goes through; a draft that held needs none */
        launches = 0, refuse_at = state_of(a)->next.there ? 0 : 1;
        pull(a, 1), pull(b, 1);
        steps += launches > 0;
        fine = !a->status && !(launches && state_of(a)->next.there) && same_ids(a, b);
    }
    tap_ok(fine && steps > 0, "%s: where the next step cannot be begun all is said as ever: %d tokens, the next is "
           "%sthere: %s", where, i, state_of(a)->next.there ? "" : "not ", cairn_last_error(a->rt));
    refuse_at = 0;
    pull(a, 2); /* the first may be a draft that held */
    tap_ok(!a->running || a->status == CAIRN_OUT_OF_DEVICE_MEMORY,
           "%s: where the step itself cannot be launched its call fails: %s", where, cairn_last_error(a->rt));
    drv->cuGraphLaunch = launch_graph;
}

/* A token is most often followed by the same one, which the sampler head knows, but for what layers add. */
static void write_drafting(void) {
    static const int types[] = {BLOCK_F32};
    family f = zoo_llama(&state);
    low l;
    f.own_head = true;
    family_make(&f, types, 1, &state);
    set_values(&f, "token_embd", same), set_values(&f, "output.weight", after);
    family_write(&f, model_path);
    l = make_gated(&f);
    know_followers(&l, f.hidden);
    save_low(&l);
    free_low(&l), family_free(&f);
}

static void test_config(int config) {
    static const char *const names[CONFIGS] = {"dense", "sparse", "sparse, e4m3", "drafts"};
    rig a, b;
    where = names[config];
    drafting = config == DRAFTING;
    if (!is_wanted("CAIRN_TEST_ROUTE", where)) return;
    if (drafting) write_drafting();
    else if (!tap_ok(write_model(model_path), "%s: a model is written", where)) return;
    if (!open_rig(&a, true, config)) return;
    if (open_rig(&b, false, config)) {
        if (!drafting) test_many(&a, &b);
        test_deeds(&a, &b, is_emulated(CAIRN_BACKEND_CUDA) ? 24 : 600);
        test_taken(&a, &b);
        test_streams(&a, &b);
        test_refused(&a, &b);
    }
    cairn_session_close(a.s); /* with a step in flight, perhaps */
    cairn_model_free(a.m);
    tap_ok(!a.rt->device.ahead, "%s: with the model its step goes", where);
    cairn_close(b.rt);
    cairn_close(a.rt);
}

int main(void) {
    const int file = mkstemp(model_path);
    state = random_seed();
    if (file < 0) return 1;
    close(file);
    snprintf(path, sizeof path, "%s.low", model_path);
    for (int config = 0; config < CONFIGS; config++)
        if (turn_of(2) < 0 || turn_of(2) == config % 2) test_config(config);
    remove(model_path), remove(path);
    return tap_done();
}
