/* mtp: drafts from mask tokens. What a gated adapter drafts against a walk in double precision; text and
 * draws as without drafts, token for token; a model whose drafts are perfect; the end of the context,
 * few rows, few pages; files that are refused.
 * emulated: asan */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "gguf_build.h"
#include "random.h"
#include "ref/block_ref.h"
#include "ref/f16_ref.h"
#include "ref/llama_ref.h"
#include "tap.h"
#include "backends.h"
#include "family.h"
#define ZOO_TYPES BLOCK_F16
#include "family_zoo.h"
#include "low.h"
#include "gated.h"

enum { GIVEN = 17, SAID = 60 };

static const char *where;
static bool few; /* kernels are emulated: fewer and shorter */

static cairn_runtime *open_model(const char *adapter, int drafts, int chunk, cairn_model **m) {
    cairn_config c = gated_config(adapter, drafts);
    c.prefill_chunk = chunk;
    return open_gated(&c, m);
}

/* A session's ids after `given` of ids and `count` more by temperature; how many to *held. */
static cairn_session *say(cairn_model *m, const int32_t *ids, int given, int count, float temperature,
                          int32_t *out, int *held) {
    cairn_session *s = NULL;
    cairn_sampling sampling = {.temperature = temperature, .seed = 7};
    cairn_generate_options o = {.struct_size = sizeof o, .max_tokens = count, .sampling = &sampling};
    if (cairn_session_open(m, &s) || cairn_append_ids(s, ids, given) ||
        cairn_generate_with(s, "", &o, NULL, NULL))
        tap_note("%s", cairn_last_error(m->runtime));
    const int32_t *all = cairn_session_ids(s, held);
    memcpy(out, all, (size_t)*held * sizeof *out);
    return s;
}

/* ---- the oracle ------------------------------------------------------------------------------ */

static void ref_block(const double *w, const double *norm, const double *x, int n, int in, double *y) {
    double square = 0;
    for (int o = 0; o < n; o++) {
        double sum = 0;
        for (int i = 0; i < in; i++) sum += w[o * in + i] * x[i];
        y[o] = sum / (1 + exp(-sum));
        square += y[o] * y[o];
    }
    for (int o = 0; o < n; o++) y[o] *= norm[o] / sqrt(square / n + (double)1e-5f);
}

/* The tokens drafted behind ids [count], which a walk by plain weights holds, by `masks` walked with
 * merged ones; stops at a close call. */
static int ref_drafts(const low *l, const llama_ref *plain, const llama_ref *merged, const int32_t *ids,
                      int count, int masks, int32_t *out) {
    const int n = plain->hidden;
    double *hidden = (double *)calloc((size_t)(6 * n), sizeof *hidden);
    double *x = hidden + n, *y = x + 2 * n, *more = y + n;
    int32_t token = ids[count];
    llama_ref walk = *merged;
    int j = 0;
    for (; j < masks; j++) {
        double best = -INFINITY, second = -INFINITY;
        llama_ref_step(&walk, plain->vocab, count + j, hidden);
        memcpy(x, plain->embed.w + (long)token * n, (size_t)n * sizeof *x);
        memcpy(x + n, hidden, (size_t)n * sizeof *x);
        ref_block(l->parts[1], l->parts[2], x, n, 2 * n, y);
        ref_block(l->parts[3], l->parts[4], y, n, n, more);
        for (int i = 0; i < n; i++) y[i] += more[i];
        for (int v = 0; v < plain->vocab; v++) {
            double sum = 0;
            for (int i = 0; i < n; i++) sum += plain->head.w[(long)v * n + i] * y[i];
            if (sum > best) second = best, best = sum, out[j] = v;
            else if (sum > second) second = sum;
        }
        if (best - second < 0.01) break;
        token = out[j];
    }
    free(hidden);
    return j;
}

/* A walk whose head is the identity, so that its logits are hidden rows, with the mask's embedding behind
 * the vocabulary. */
static llama_ref hidden_ref(const family *f, const low *l) {
    llama_ref r = zoo_ref(f);
    const int n = f->hidden;
    r.head.out = r.head.in = n;
    r.head.w = (double *)calloc((size_t)(n * n), sizeof(double));
    for (int i = 0; i < n; i++) r.head.w[i * n + i] = 1;
    double *embed = (double *)malloc((size_t)((f->vocab + 1) * n) * sizeof *embed);
    memcpy(embed, r.embed.w, (size_t)(f->vocab * n) * sizeof *embed);
    memcpy(embed + f->vocab * n, l->parts[0], (size_t)n * sizeof *embed);
    r.embed.w = embed;
    return r;
}

/* After every step of a text, what is drafted next. */
static void test_drafts(const family *f, low *l, const int32_t *ids) {
    enum { K = 3 };
    cairn_model *m = NULL;
    cairn_session *s = NULL;
    cairn_runtime *rt = open_model(path, K, 64, &m);
    double *logits;
    const cairn_logit_bias no_end = {0, -INFINITY};
    const cairn_sampling drawn = {.temperature = 1.0f, .seed = 3}; /* or it would loop */
    cairn_generate_options o = {.struct_size = sizeof o, .logit_bias = &no_end, .logit_bias_count = 1,
                                .sampling = &drawn};
    cairn_stats stats = {.struct_size = sizeof stats};
    int checked = 0, wrong = 0, walked = 0, held = 0;
    if (!rt) return;
    logits = (double *)malloc((size_t)(f->vocab + f->hidden) * sizeof *logits);
    llama_ref plain = zoo_ref(f); /* its values are f's, which merging changes: it walks between */
    merge(l, 1);
    low *added = l;
    llama_ref merged = hidden_ref(f, l);
    merge(added, -1);
    free(merged.keys), free(merged.values);
    merged.keys = plain.keys, merged.values = plain.values;
    cairn_session_open(m, &s);
    cairn_append_ids(s, ids, GIVEN);
    cairn_generate_begin(s, "", &o);
    for (int piece = 0; piece < (few ? 7 : 80); piece++) {
        int32_t want[K];
        cairn_piece p = {.struct_size = sizeof p};
        if (cairn_generate_next(s, &p) || p.stop) break;
        const int32_t *all = cairn_session_ids(s, &held);
        if (s->ahead_at != held || !s->ahead_count || s->fresh_at < s->fresh_count) continue;
        for (; walked < held - 1; walked++) llama_ref_step(&plain, all[walked], walked, logits);
        merge(l, 1);
        const int sure = ref_drafts(l, &plain, &merged, all, held - 1, s->ahead_count, want);
        merge(l, -1);
        for (int j = 0; j < sure; j++) checked++, wrong += want[j] != s->ahead[j];
    }
    cairn_cancel(s);
    cairn_session_stats(s, &stats);
    tap_ok(checked > 8 && !wrong, "on %s: %d drafts are those of the double walk, %d are not (%d taken)",
           where, checked, wrong, stats.accepted);
    free(merged.head.w), free(merged.embed.w), free(merged.gated);
    zoo_ref_free(&plain);
    free(logits);
    cairn_close(rt);
}

/* ---- text ------------------------------------------------------------------------------------ */

static void test_text(const int32_t *ids) {
    static int32_t want[ROOM], got[ROOM];
    for (int i = few ? 1 : 0; i < (few ? 2 : 8); i++) {
        const int k = 1 + i % 4 * 2, chunk = i == 5 ? 16 : 64;
        const float temperature = i % 2 ? 0.9f : 0.0f;
        cairn_model *m = NULL;
        cairn_stats stats = {.struct_size = sizeof stats};
        int held = 0, more = 0, count = few ? 5 : i == 7 ? (int)ROOM : (int)SAID;
        cairn_runtime *rt = open_model("", 0, chunk, &m);
        if (!rt) return;
        say(m, ids + i, GIVEN, count, temperature, want, &held);
        cairn_close(rt);
        if (!(rt = open_model(path, k, chunk, &m))) return;
        cairn_session *s = say(m, ids + i, GIVEN, count, temperature, got, &more);
        cairn_session_stats(s, &stats);
        tap_ok(held == more && !memcmp(want, got, (size_t)held * sizeof *want) &&
                   (stats.proposed > 0 || held < GIVEN + 4 /* it ended at once */),
               "on %s: k = %d, temperature %.1f: %d ids as without drafts (%d of %d drafts taken)", where, k,
               (double)temperature, held, stats.accepted, stats.proposed);
        cairn_close(rt);
    }
}

/* Sessions with masks, with another adapter and with none in the same forwards. */
static void test_beside(const family *f, const int32_t *ids) {
    static int32_t want[3][ROOM];
    cairn_model *m = NULL;
    cairn_session *s[3];
    cairn_adapter *voice = NULL;
    cairn_generate_options o = {.struct_size = sizeof o, .max_tokens = 30};
    int32_t pending = 1;
    int held[3];
    bool fine;
    cairn_runtime *rt = open_model(path, 3, 64, &m);
    if (!rt) return;
    low l = make_low(f, 4, 4, true, &state);
    char own[96];
    snprintf(own, sizeof own, "%s", path);
    path[strlen(path) - 1] = 'v';
    save_low(&l);
    fine = !cairn_adapter_load(m, path, &voice);
    snprintf(path, sizeof path, "%s", own);
    for (int i = 0; i < 3 && fine; i++) {
        cairn_session *one = NULL;
        cairn_adapter *by[] = {m->adapter, voice, NULL};
        fine = !cairn_session_open(m, &one) && !cairn_session_adapt(one, by[i]) &&
               !cairn_append_ids(one, ids + i, GIVEN) && !cairn_generate(one, "", 30, NULL, NULL);
        const int32_t *all = cairn_session_ids(one, &held[i]);
        memcpy(want[i], all, (size_t)held[i] * sizeof *all);
        cairn_session_close(one);
        fine = fine && !cairn_session_open(m, &s[i]) && !cairn_session_adapt(s[i], by[i]) &&
               !cairn_append_ids(s[i], ids + i, GIVEN) && !cairn_generate_submit(s[i], NULL, &o);
    }
    while (fine && pending) fine = !cairn_step(m, 100000, &pending);
    for (int i = 0; i < 3 && fine; i++) {
        int count = 0;
        const int32_t *all = cairn_session_ids(s[i], &count);
        fine = count == held[i] && !memcmp(all, want[i], (size_t)count * sizeof *all);
    }
    tap_ok(fine, "masks, another adapter and none in the same forwards");
    free_low(&l);
    cairn_close(rt);
}

/* ---- perfect drafts -------------------------------------------------------------------------- */

/* As many as pay, two, by costs as if they were measured: on a backend that likes few rows the last token
 * has a mask fewer where all would be nine, and then one draft follows, not two. */
static void test_short(const family *f, const int32_t *ids) {
    cairn_model *m = NULL;
    cairn_session *s = NULL;
    cairn_stats stats = {.struct_size = sizeof stats};
    cairn_generate_options o = {.struct_size = sizeof o, .max_tokens = 12};
    cairn_config c = gated_config(path, 2);
    int right = 1, held = 0, shorter = 0;
    c.draft_adaptive = true;
    cairn_runtime *rt = open_gated(&c, &m);
    if (!rt) return;
    cairn_session_open(m, &s);
    cairn_append_ids(s, ids, 4);
    cairn_generate_begin(s, "", &o);
    for (cairn_piece p = {.struct_size = sizeof p}; !p.stop;) {
        for (int i = 0; i < ENGINE_COSTS; i++) m->scratch->cost_us[i] = i < 4 ? 1000 + 10 * i : 9000;
        s->pace.saved = 5, s->pace.rates[0] = s->pace.rates[1] = 0.9f, m->scratch->head_us = 10;
        if (cairn_generate_next(s, &p)) break;
        shorter += m->scratch->parts[0].short_by > 0;
    }
    const int32_t *all = cairn_session_ids(s, &held);
    for (int j = 4; j < held; j++) right = right && all[j] == follower(f, all[j - 1]);
    cairn_session_stats(s, &stats);
    tap_ok(right && held == 16 && stats.accepted == stats.proposed && stats.accepted > 3 &&
               (shorter > 0) == (m->backend->few_rows > 0),
           "on %s: as many as pay: %d of %d drafts taken, %d tokens said behind fewer masks", where,
           stats.accepted, stats.proposed, shorter);
    cairn_close(rt);
}

/* Texts beside each other, each with drafts of its own behind what it verifies: each follows, in as many
 * forwards as one alone. */
static void test_crowd(const family *f) {
    enum { TEXTS = 3, K = 2, STEPS = 2, MADE = 1 + 1 + STEPS * (K + 1), HELD = 4 + MADE };
    cairn_config c = gated_config(path, K);
    cairn_model *m = NULL;
    int32_t ids[TEXTS * 4], made[TEXTS], totals[TEXTS], out[TEXTS * HELD];
    const int32_t lengths[TEXTS] = {4, 3, 4}, limits[TEXTS] = {MADE, MADE, MADE};
    cairn_batch_args a = {.struct_size = sizeof a, .rows = TEXTS, .stride = 4, .capacity = HELD};
    int right = 1;
    cairn_runtime *rt = open_gated(&c, &m);
    if (!rt) return;
    for (int i = 0; i < TEXTS * 4; i++) ids[i] = 5 + 3 * i;
    a.ids = ids, a.lengths = lengths, a.limits = limits, a.output = out, a.generated = made, a.total = totals;
    if (cairn_generate_batch(m, &a)) tap_note("%s", cairn_last_error(rt)), right = 0;
    for (int t = 0; t < TEXTS && right; t++) {
        right = made[t] == MADE && totals[t] == lengths[t] + MADE;
        for (int j = lengths[t]; j < totals[t]; j++)
            right = right && out[t * HELD + j] == follower(f, out[t * HELD + j - 1]);
    }
    tap_ok(right && a.steps <= 3 + STEPS + 1, "on %s: %d texts with drafts beside each other, in %d forwards", where,
           TEXTS, (int)a.steps);
    cairn_close(rt);
}

enum { BROKEN = 17 }; /* a token */
static double same_but_one(const family *f, int row, int column) {
    return row == BROKEN ? (double)NAN : same(f, row, column);
}

/* The text behind ids 5 to 8 is each token's follower, up to `last`; its status, CAIRN_NO_DRIVER where the backend is
 * not there, or not asked for. */
static cairn_status follow(const family *f, bool drawn, int last, bool *right) {
    static int32_t got[ROOM];
    const int32_t ids[] = {5, 6, 7, 8};
    cairn_model *m = NULL;
    cairn_config c = gated_config(path, few ? 2 : 3);
    cairn_status status;
    char text[1024];
    int held = 0;
    c.deterministic = !drawn;
    cairn_runtime *rt = open_gated(&c, &m);
    *right = true;
    if (!rt) return CAIRN_NO_DRIVER;
    cairn_session *s = say(m, ids, 4, few ? 12 : 20, drawn ? 0.5f : 0.0f, got, &held);
    status = cairn_session_error(s, text, sizeof text);
    for (int j = 4; j < held; j++) *right = *right && got[j] == follower(f, got[j - 1]);
    *right = *right && (last ? got[held - 1] == last && strstr(text, "not numbers") : held == (few ? 16 : 24));
    cairn_close(rt);
    return status;
}

/* A sampler head that overflows into NaN changes no token. A token whose embedding is NaN, said midway,
 * ends the text. */
static void test_broken(family *f, low *l) {
    double *head = l->parts[1];
    bool right;
    l->parts[1] = (double *)malloc((size_t)(2 * f->hidden * f->hidden) * sizeof *head);
    memcpy(l->parts[1], head, (size_t)(2 * f->hidden * f->hidden) * sizeof *head);
    for (int i = 0; i < 2 * f->hidden; i++) l->parts[1][i] = 3e38;
    save_low(l);
    for (int i = 0; i < 2; i++) {
        const cairn_status status = follow(f, i, 0, &right);
        if (status == CAIRN_NO_DRIVER) break;
        tap_ok(!status && right, "on %s: drafts that are NaN%s: the text is what it is", where, i ? ", drawn" : "");
    }
    free(l->parts[1]), l->parts[1] = head;
    save_low(l);
    set_values(f, "token_embd", same_but_one);
    family_write(f, model_path);
    for (int i = 0; i < 2; i++) {
        const cairn_status status = follow(f, i, BROKEN, &right);
        if (status == CAIRN_NO_DRIVER) break;
        tap_ok(status == CAIRN_BAD_DATA && right, "on %s: behind a token that is NaN no more is said%s", where,
               i ? ", drawn" : "");
    }
}

/* Its layers add nothing, and each token has one that follows, which the sampler head knows too. Drawn
 * drafts are verified by what they were drawn from, which is what is drawn from. */
static void test_perfect(void) {
    static const int types[] = {BLOCK_F32};
    static const struct { int k; bool drawn, few; } turns[] = {
        {1, false, false}, {2, false, false}, {3, false, false}, {4, false, true}, {5, false, false},
        {3, true, true}, {8, false, true} /* more rows than a part of a GPU's steps holds */};
    family f = zoo_llama(&state);
    int32_t ids[] = {5, 6, 7, 8}, got[ROOM];
    const int steps = few ? 2 : 4;
    f.own_head = true;
    family_make(&f, types, 1, &state);
    set_values(&f, "token_embd", same), set_values(&f, "output.weight", after);
    set_values(&f, "output_norm", one);
    set_values(&f, "attn_output", zero), set_values(&f, "ffn_down", zero);
    family_write(&f, model_path);
    low l = make_gated(&f);
    know_followers(&l, f.hidden);
    save_low(&l);
    for (size_t i = 0; i < sizeof turns / sizeof *turns; i++) {
        const int k = turns[i].k;
        const bool drawn = turns[i].drawn;
        cairn_model *m = NULL;
        cairn_stats stats = {.struct_size = sizeof stats};
        int held = 0, right = 1;
        cairn_config c = gated_config(path, k);
        if (few && !turns[i].few) continue;
        c.deterministic = !drawn, c.prefill_chunk = 96;
        cairn_runtime *rt = open_gated(&c, &m);
        if (!rt) break;
        cairn_session *s = say(m, ids, 4, 1 + 1 + steps * (k + 1), drawn ? 0.5f : 0.0f, got, &held);
        cairn_session_stats(s, &stats);
        for (int j = 4; j < held; j++) right = right && got[j] == follower(&f, got[j - 1]);
        tap_ok(right && stats.forwards == 1 + steps && stats.accepted == steps * k &&
               stats.proposed == steps * k,
               "on %s: perfect drafts, k = %d%s: a first step, then %d tokens a step (%d forwards, %d of "
               "%d)", where, k, drawn ? ", drawn" : "", k + 1, stats.forwards, stats.accepted,
               stats.proposed);
        cairn_close(rt);
    }
    test_short(&f, ids), test_crowd(&f), test_broken(&f, &l);
    free_low(&l), family_free(&f);
}

/* ---- on the GPU ------------------------------------------------------------------------------ */

/* All that a step with drafts leaves on the device, logits, and hidden states of `kept` values of masks; false: it
 * can't be read, which is said. */
static bool keep_step(cairn_runtime *rt, const forward_cuda_state *f, int kept, float *to) {
    bool read = false;
    if (!device_enter(&rt->device)) {
        read = !device_download(&rt->device, to, f->draft.kept, (size_t)kept * 4) &&
               !device_download(&rt->device, to + kept, f->logits, 2 * (size_t)f->shape->vocab * 4);
        device_leave(&rt->device);
    }
    return read || tap_ok(false, "on cuda: what a step leaves: %s", cairn_last_error(rt));
}

/* How steps run: by the flow kernel, each asked for or begun before, or by the stages. */
typedef enum keep_way { BY_FLOW, BEGUN, BY_STAGES } keep_way;

/* The values of all steps behind ids, none where what is said ends at once; -1: no runtime, for the reason that
 * open_gated said. */
static int keep_steps(keep_way way, int k, const int32_t *ids, float *to, int most, bool *served) {
    cairn_model *m = NULL;
    cairn_session *s = NULL;
    cairn_generate_options o = {.struct_size = sizeof o, .max_tokens = 12};
    cairn_config c = gated_config(path, k);
    c.slice_us = way == BEGUN ? 0 : 1000;
    cairn_runtime *rt = open_gated(&c, &m);
    int held = 0;
    *served = false;
    if (!rt) return -1;
    forward_cuda_state *f = (forward_cuda_state *)m->state;
    const int kept = (k + 1) * k * f->shape->hidden, each = kept + 2 * f->shape->vocab;
    if (way == BY_STAGES) f->flow_states[STEP_K_DRAFT_FLOW] = STEP_FLOW_FAILED;
    if (cairn_session_open(m, &s) || cairn_append_ids(s, ids, GIVEN) || cairn_generate_begin(s, "", &o))
        tap_note("%s", cairn_last_error(rt));
    for (int piece = 0; s && piece < (few ? 4 : 12) && held + each <= most; piece++) {
        cairn_piece p = {.struct_size = sizeof p};
        const cairn_status status = cairn_generate_next(s, &p);
        if (status) tap_note("%s", cairn_last_error(rt));
        if (status || p.stop) break;
        *served |= way == BEGUN ? f->next.there && f->next.masks == k : f->draft_flow_graphs[k].exec != NULL;
        if (!keep_step(rt, f, kept, to + held)) break;
        held += each;
    }
    cairn_close(rt);
    return held;
}

/* Whether each step's values are among those of `all`, one step or none further on: of a step that was begun they lie
 * there before it is asked for. *ahead: of how many. */
static bool are_steps_of(const float *begun, int count, const float *all, int each, int *ahead) {
    bool fine = true;
    for (int at = 0; at < count && fine; at += each) {
        const size_t bytes = (size_t)each * sizeof *all;
        int to = at;
        while (to < count && !memcmp(all + to, all + at, bytes)) to += each; /* a step that said several tokens */
        const bool next = to < count && !memcmp(begun + at, all + to, bytes);
        *ahead += next;
        fine = next || to == count || !memcmp(begun + at, all + at, bytes);
    }
    return fine;
}

static void test_flow(const int32_t *ids, int hidden, int vocab) {
    enum { MOST = 1 << 16, PROMPTS = 8 };
    static float by_flow[MOST], by_stages[MOST], begun[MOST];
    for (int k = 1; k <= (few ? 1 : 3); k++) {
        bool served = false, staged = false, moved = false;
        int from = -1, count = 0, ahead = 0;
        while (!(served && count) && ++from < PROMPTS) {
            count = keep_steps(BY_FLOW, k, ids + from, by_flow, MOST, &served);
            if (count < 0) return;
        }
        if (!tap_ok(served && count, "on cuda: k = %d, rows that draft by the flow kernel", k)) return;
        int other = keep_steps(BY_STAGES, k, ids + from, by_stages, MOST, &staged);
        tap_ok(!staged, "on cuda: k = %d, rows that draft not by the flow kernel", k);
        tap_ok(count == other && !memcmp(by_flow, by_stages, (size_t)count * sizeof *by_flow),
               "on cuda: k = %d, %d values of masks and logits to the bit as by the stages", k, count);
        other = keep_steps(BEGUN, k, ids + from, begun, MOST, &moved);
        const int each = (k + 1) * k * hidden + 2 * vocab;
        const bool same = count == other && are_steps_of(begun, count, by_flow, each, &ahead);
        tap_ok(same && (k == 1 ? moved && ahead : !moved && !ahead), /* more rows have no such kernel */
               "on cuda: k = %d, %d steps that are begun are those asked for", k, ahead);
    }
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void test_refused(const family *f, const low *good, const int32_t *ids) {
    cairn_model *m = NULL;
    cairn_adapter *a = NULL;
    cairn_session *s = NULL;
    int32_t id = f->vocab;
    cairn_runtime *rt = open_model("", 3, 64, &m);
    low l = *good;
    if (!rt) return;
    l.hidden = f->hidden / 2;
    save_low(&l);
    tap_ok(cairn_adapter_load(m, path, &a) == CAIRN_UNSUPPORTED &&
               strstr(cairn_last_error(rt), "'mask_embedding'"), "%s", cairn_last_error(rt));
    l.hidden = f->hidden;
    gguf_build file = gguf_low(&l, "llama", false);
    for (size_t i = 0; i + 16 < file.size; i++)
        if (!memcmp(file.data + i, "sampler.1.weight", 16)) file.data[i + 8] = '2';
    save(path, &file);
    free(file.data);
    tap_ok(cairn_adapter_load(m, path, &a) == CAIRN_UNSUPPORTED &&
               strstr(cairn_last_error(rt), "sampler.2.weight"), "%s", cairn_last_error(rt));
    save_low(good);
    tap_ok(!cairn_adapter_load(m, path, &a) && !cairn_session_open(m, &s) &&
               !cairn_session_adapt(s, a) &&
               cairn_append_ids(s, &id, 1) == CAIRN_INVALID_ARGUMENT && !cairn_append_ids(s, ids, 9),
           "a mask token is no token of a prompt: %s", cairn_last_error(rt));
    cairn_close(rt);
}

static void test_backend(cairn_backend backend) {
    int32_t ids[GIVEN + 8];
    gated_backend = backend, few = is_emulated(backend);
    where = backend == CAIRN_BACKEND_CUDA ? "cuda" : "cpu";
    family f = zoo_llama(&state);
    zoo_fill(&f, &state);
    family_write(&f, model_path);
    low l = make_gated(&f);
    save_low(&l);
    for (int i = 0; i < GIVEN + 8; i++)
        ids[i] = 1 + (int32_t)(random_next(&state) % (uint64_t)(f.vocab - 1));
    test_text(ids);
    if (!few) test_beside(&f, ids);
    if (backend == CAIRN_BACKEND_CPU) test_refused(&f, &l, ids);
    if (backend == CAIRN_BACKEND_CUDA) test_flow(ids, f.hidden, f.vocab);
    free_low(&l), family_free(&f);
    f = zoo_llama(&state);
    if (!few) f.vocab = 8; /* so that some drafts hold */
    zoo_fill(&f, &state);
    family_write(&f, model_path);
    l = make_gated(&f);
    save_low(&l);
    for (int i = 0; i < GIVEN; i++) ids[i] = 1 + (int32_t)(random_next(&state) % (uint64_t)(f.vocab - 1));
    test_drafts(&f, &l, ids);
    free_low(&l), family_free(&f);
    test_perfect();
}

int main(void) { return gated_main(test_backend); }
