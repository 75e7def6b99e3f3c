/* fault_walk: a model on tests/fake's GPU whose sessions append, generate, fork, tell what was selected and
 * take an adapter, where the n-th call of the driver fails. What a call that fails must hold: a
 * status with words, and made once more it does its work; or the right answer all the same. At the end
 * every session has the tokens that it has where nothing fails, and the model leaves nothing behind.
 * The fake computes nothing; that rows are right is not what is tested. After fake_compiler.h. */
#ifndef FAULT_WALK_H
#define FAULT_WALK_H

#include "said.h"
#include "turns.h"

enum { WALK_PROMPT = SAID_PROMPT, WALK_SAID = 12, WALK_MORE = 6, WALK_SESSIONS = 3 };

typedef struct walk {
    cairn_runtime *rt;
    cairn_model *m;
    const char *path, *adapter_path; /* NULL: none */
    cairn_adapter *adapter;
    cairn_session *sessions[WALK_SESSIONS]; /* the first, its fork, the adapted */
    int32_t ids[WALK_SESSIONS][128];
    int counts[WALK_SESSIONS];
} walk;

static cairn_status walk_open(walk *w) { return cairn_session_open(w->m, &w->sessions[0]); }
static cairn_status walk_append(walk *w) { return append_to(w->sessions[0]); }
static cairn_status walk_generate(walk *w) { return say_to(w->sessions[0], WALK_PROMPT + WALK_SAID); }
static cairn_status walk_fork(walk *w) { return cairn_session_fork(w->sessions[0], &w->sessions[1]); }
static cairn_status walk_generate_fork(walk *w) { return say_to(w->sessions[1], WALK_PROMPT + WALK_SAID + WALK_MORE); }
static cairn_status walk_select(walk *w) {
    int32_t pages[64], count;
    return cairn_session_selection(w->sessions[0], 0, 0, pages, 64, &count);
}
static cairn_status walk_generate_on(walk *w) { return say_to(w->sessions[0], WALK_PROMPT + WALK_SAID + 2 * WALK_MORE); }
static cairn_status walk_reload(walk *w) {
    cairn_config next = w->rt->config;
    next.topk = next.topk == 2 ? 3 : 2;
    return cairn_reload(w->rt, &next);
}
static cairn_status walk_load(walk *w) {
    return w->adapter_path ? cairn_adapter_load(w->m, w->adapter_path, &w->adapter) : CAIRN_OK;
}
static cairn_status walk_other(walk *w) { return cairn_session_open(w->m, &w->sessions[2]); }
static cairn_status walk_adapt(walk *w) { return cairn_session_adapt(w->sessions[2], w->adapter); }
static cairn_status walk_append_other(walk *w) { return append_to(w->sessions[2]); }
static cairn_status walk_generate_other(walk *w) { return say_to(w->sessions[2], WALK_PROMPT + WALK_SAID); }

static const struct { const char *name; cairn_status (*make)(walk *w); } walk_steps[] = {
    {"open", walk_open}, {"append", walk_append}, {"generate", walk_generate}, {"fork", walk_fork},
    {"generate, the fork", walk_generate_fork}, {"selection", walk_select}, {"generate on", walk_generate_on},
    {"reload", walk_reload}, {"adapter", walk_load}, {"another", walk_other}, {"adapt", walk_adapt},
    {"append, the other", walk_append_other}, {"generate, the other", walk_generate_other}};

/* All of it, call n failing (0: none); *failed: whether there was one. */
static bool walk_run(walk *w, int n, int *refused, bool *failed) {
    bool fine = true;
    w->adapter = NULL;
    memset(w->sessions, 0, sizeof w->sessions);
    if (cairn_load_model(w->rt, w->path, &w->m) || cairn_model_wait(w->m)) {
        tap_note("load: %s", cairn_last_error(w->rt));
        return false;
    }
    fake.fail_at = n, fake.fail_with = CUDA_ERROR_INVALID_VALUE, fake.failed = false, fake.calls = 0;
    for (size_t i = 0; i < BASE_COUNT(walk_steps) && fine; i++) {
        w->rt->base.error[0] = '\0';
        if (!walk_steps[i].make(w)) continue;
        ++*refused;
        fine = fake.failed && cairn_last_error(w->rt)[0] && !walk_steps[i].make(w);
        if (!fine) tap_note("call %d, %s: %s", n, walk_steps[i].name, cairn_last_error(w->rt));
    }
    *failed = fake.failed;
    fake.fail_at = 0, fake.failed = false;
    for (int i = 0; i < WALK_SESSIONS; i++) {
        const int32_t *ids = w->sessions[i] ? cairn_session_ids(w->sessions[i], &w->counts[i]) : NULL;
        memset(w->ids[i], 0, sizeof w->ids[i]);
        if (ids) memcpy(w->ids[i], ids, (size_t)w->counts[i] * sizeof *ids);
        cairn_session_close(w->sessions[i]);
    }
    cairn_model_free(w->m);
    return fine;
}

static bool walk_begin(walk *w, const cairn_config *c, const char *path, const char *adapter, const char *name) {
    char error[1024] = "";
    memset(w, 0, sizeof *w);
    unsetenv("CAIRN_CUDA_PATH"), unsetenv("CAIRN_NVRTC_PATH"); /* tests/simt's, which a test used before */
    fake_install();
    fake.memory_bytes = (size_t)8 << 30;
    w->path = path, w->adapter_path = adapter;
    return tap_ok(!cairn_open(c, &w->rt, error, sizeof error), "%s on the fake GPU %s", name, error);
}

/* Every n-th call, and within the whole suite (turns.h) every other one of those, each tree others; c: of a GPU. */
static void walk_faults(const cairn_config *c, const char *path, const char *adapter, const char *name, int each) {
    walk w, right;
    int refused = 0, bad = 0, n = 0, runs = 0, first = 1;
    bool failed = false;
    if (turn_of(1) >= 0) each *= 2, first += turn_of(each);
    if (!walk_begin(&w, c, path, adapter, name)) return;
    if (tap_ok(walk_run(&w, 0, &refused, &failed) && walk_run(&w, 0, &refused, &failed) && !refused,
               "%s: nothing fails", name)) {
        const int live = fake.live;
        const size_t lent = fake.device_live;
        right = w, failed = true;
        for (n = first; failed; n += each, runs++) {
            bool fine = walk_run(&w, n, &refused, &failed);
            if (fine && (memcmp(w.counts, right.counts, sizeof w.counts) || memcmp(w.ids, right.ids, sizeof w.ids)))
                tap_note("call %d: other tokens: %d, %d, %d", n, w.counts[0], w.counts[1], w.counts[2]), fine = false;
            if (fine && (fake.live != live || fake.device_live != lent))
                tap_note("call %d: %d objects, %lld bytes are left", n, fake.live - live,
                         (long long)fake.device_live - (long long)lent), fine = false;
            bad += !fine;
        }
        tap_ok(!bad && n > 150 && right.counts[0] == WALK_PROMPT + WALK_SAID + 2 * WALK_MORE &&
               right.counts[1] == WALK_PROMPT + WALK_SAID + WALK_MORE && right.counts[2] == WALK_PROMPT + WALK_SAID,
               "%s: %d of %d calls of the driver fail, %d are refused", name, runs - 1, n - each - 1, refused);
    }
    cairn_close(w.rt);
    tap_ok(!fake.live && !fake.device_live && !fake.opened, "%s: nothing is left", name);
}

#endif
