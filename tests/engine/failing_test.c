/* failing: a backend that fails beside what a call is about. Drafts that cannot be computed cost time
 * and no text; kernels of a new config that do not compile, of the model or of the one that drafts for it,
 * leave the old config with a line of the log; rows with masks are refused where a layer has a window. */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "small_model.h"
#include "tap.h"

enum { SAID = 24 };
static char path[64], heard[512];
static cairn_runtime *rt;
static cairn_model *m;
static cairn_session *s;
static const int32_t ids[8] = {2, 3, 4, 5, 6, 7, 8, 9};

static void hear(void *user, cairn_log_level level, const char *text) {
    (void)user;
    if (level <= CAIRN_LOG_WARN) snprintf(heard, sizeof heard, "%s", text);
}

static bool open_model(void) {
    cairn_config c;
    char error[512] = "";
    cairn_config_default(&c);
    c.backend = CAIRN_BACKEND_CPU, c.threads = 1, c.max_batch = 2, c.page_size = PAGE;
    c.prefill_chunk = 32, c.log_callback = hear, c.drafter = CAIRN_DRAFTER_MODEL;
    c.draft_length = 3, c.draft_adaptive = false;
    snprintf(c.drafter_model, sizeof c.drafter_model, "%s", path);
    return tap_ok(!cairn_open(&c, &rt, error, sizeof error) && !cairn_load_model(rt, path, &m) &&
                  !cairn_session_open(m, &s), "a model and one that drafts: %s",
                  rt ? cairn_last_error(rt) : error);
}

/* The tokens behind ids of a session whose drafts nobody has yet, to out; how many were accepted drafts. */
static int say(int32_t *out, cairn_status *status) {
    cairn_stats stats = {.struct_size = sizeof stats};
    int count = 0;
    const int32_t *held;
    cairn_session_close(s);
    *status = cairn_session_open(m, &s);
    if (!*status) *status = cairn_append_ids(s, ids, 8);
    if (!*status) *status = cairn_generate(s, NULL, SAID, NULL, NULL);
    held = cairn_session_ids(s, &count);
    memset(out, 0, SAID * sizeof *out);
    if (count == 8 + SAID) memcpy(out, held + 8, SAID * sizeof *out);
    cairn_session_stats(s, &stats);
    return stats.accepted;
}

/* ---- drafts ------------------------------------------------------------------------------------------ */

static int begun, fails_at; /* -1: never; from SAID on: all from then on */
static const model_backend *below;

static cairn_status begin_or_fail(cairn_model *model, kv_cache *kv, forward_batch *batch) {
    const int n = begun++;
    if (n == fails_at || (fails_at >= 1000 && n >= fails_at - 1000))
        return base_fail(&model->runtime->base, CAIRN_DEVICE_ERROR, "the drafts fail here");
    return below->begin(model, kv, batch);
}

static void test_drafts(void) {
    int32_t right[SAID], now[SAID];
    model_backend broken;
    cairn_status status;
    int accepted = say(right, &status), wrong = 0, runs = 0, fewer = 0, least = INT_MAX;
    if (!tap_ok(!status && accepted > 0, "%d drafts are accepted", accepted)) return;
    below = m->drafts->backend, broken = *below;
    broken.begin = begin_or_fail;
    m->drafts->backend = &broken;
    for (fails_at = begun = 0; fails_at <= begun; fails_at++, runs++) {
        begun = 0;
        fewer = say(now, &status);
        if (fewer < least) least = fewer;
        wrong += status || memcmp(now, right, sizeof now) || cairn_last_error(rt)[0];
    }
    tap_ok(!wrong && runs > 4 && least < accepted,
           "each of %d forwards of drafts fails: %d texts differ, at least %d of %d drafts are accepted", runs,
           wrong, least, accepted);
    fails_at = 1000, begun = 0;
    fewer = say(now, &status);
    tap_ok(!status && !fewer && !memcmp(now, right, sizeof now) && begun > 0,
           "all fail: no draft, the same text, after %d tries", begun);
    m->drafts->backend = below;
    fewer = say(now, &status);
    tap_ok(!status && fewer == accepted && !memcmp(now, right, sizeof now), "then it drafts as before");
}

/* ---- reloads ----------------------------------------------------------------------------------------- */

static int asked;

/* Kernels are compiled for a while, and then they are not. */
static cairn_status prepare_and_fail(cairn_model *model, const cairn_config *config) {
    (void)config;
    if (asked++ < 2) return CAIRN_BUSY;
    return base_fail(&model->runtime->base, CAIRN_COMPILE_FAILED, "the kernels fail here");
}

static void test_reload(cairn_model *of, const char *name) {
    cairn_config next = *cairn_config_of(rt);
    const int topk = next.topk;
    model_backend broken = *of->backend;
    int32_t now[SAID];
    cairn_status status, said;
    below = of->backend;
    broken.prepare = prepare_and_fail;
    of->backend = &broken;
    next.topk = topk + 1;
    asked = 0, heard[0] = '\0';
    status = cairn_reload(rt, &next);
    say(now, &said);
    of->backend = below;
    tap_ok(!status && !said && asked == 3 && cairn_config_of(rt)->topk == topk &&
               strstr(heard, "reload: the old config stays") && strstr(heard, "the kernels fail here"),
           "kernels of %s that do not compile leave the old config: %s", name, heard);
    status = cairn_reload(rt, &next);
    say(now, &said);
    tap_ok(!status && !said && cairn_config_of(rt)->topk == topk + 1, "and the next reload counts");
}

/* ---- masks --------------------------------------------------------------------------------------------- */

static void test_masks(void) {
    static const uint8_t mask[2] = {1, 3};
    const cairn_forward_sequence rows = {.session = s, .position = 8, .rows = 2, .mask = mask,
                                         .mask_bytes = sizeof mask};
    const cairn_forward_args a = {.struct_size = sizeof a, .sequence_count = 1, .row_count = 2,
                                  .sequences = &rows, .ids = ids};
    cairn_status status = cairn_session_reset(s);
    if (!status) status = cairn_append_ids(s, ids, 8);
    m->plan.layers[1].window = 16;
    tap_ok(!status && cairn_forward(m, &a) == CAIRN_UNSUPPORTED &&
               strstr(cairn_last_error(rt), "sequence 0: masks want a model of which every layer attends all"),
           "rows with masks beside a layer with a window: %s", cairn_last_error(rt));
    m->plan.layers[1].window = 0;
    tap_ok(!cairn_forward(m, &a), "without one they run: %s", cairn_last_error(rt));
}

/* ---- how far a device is told ahead ----------------------------------------------------------------------- */

static void test_layers_ahead(void) {
    cairn_config *c = &rt->config;
    engine_scratch *x = m->scratch;
    const double known = x->cost_us[0];
    int first, half, one, all;
    memset(x->cost_us, 0, sizeof x->cost_us);
    x->batch.row_count = 1, x->cost_us[0] = 0.0;
    c->slice_us = 1000;
    first = engine_layers_ahead(m); /* nothing was measured: few */
    x->cost_us[0] = 2000.0, half = engine_layers_ahead(m);
    x->cost_us[0] = 1e6, one = engine_layers_ahead(m);
    x->cost_us[0] = 10.0, all = engine_layers_ahead(m);
    c->slice_us = 0;
    tap_ok(first == 1 && half == 1 && one == 1 && all == INT_MAX && engine_layers_ahead(m) == INT_MAX,
           "of two layers that take 2000 us a slice of 1000 tells one (%d), a slice of many all", half);
    memset(x->cost_us, 0, sizeof x->cost_us);
    x->cost_us[0] = known, x->batch.row_count = 0;
}

int main(void) {
    state = 1;
    snprintf(path, sizeof path, "/tmp/cairn_failing_%d.gguf", os_process_id());
    if (tap_ok(write_model(path), "a model's file") && open_model()) {
        test_drafts();
        test_reload(m, "the model");
        test_reload(m->drafts, "the one that drafts");
        test_masks();
        test_layers_ahead();
    }
    cairn_close(rt);
    remove(path);
    return tap_done();
}
