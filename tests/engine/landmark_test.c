/* landmark: pages that end in a landmark. What the engine computes against a walk in double precision
 * that inserts the landmarks itself and attends by the published formulas; tokens, counts, rewinds, forks,
 * snapshots and drafts that never show them; what is refused. emulated: asan */
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

enum { ROOM = 256, PAGE = 16, VOCAB = 120 };

static uint64_t state;
static cairn_backend on = CAIRN_BACKEND_CPU;
static char model_path[] = "/tmp/cairn_landmark_XXXXXX", path[80];

static int below(int n) { return (int)(random_next(&state) % (uint64_t)n); }

static const char *architecture = "llama";

static void save_low(const low *l) {
    gguf_build file = gguf_low(l, architecture, false);
    save(path, &file);
    free(file.data);
}

static low make_landmark(const family *f) {
    low l = make_low(f, 4, 4, false, &state);
    l.hidden = f->hidden;
    l.landmark = low_values(f->hidden, &state);
    return l;
}

static cairn_config config_of(const char *adapter) {
    cairn_config c;
    cairn_config_default(&c);
    c.backend = on, c.log = CAIRN_LOG_OFF, c.threads = 2, c.page_size = PAGE;
    c.max_batch = 4, c.max_seq_len = ROOM, c.prefill_chunk = 64;
    c.drafter = CAIRN_DRAFTER_NONE;
    c.topk = 3, c.selection.window = 24, c.selection.sinks = 3;
    if (*adapter) c.selection.source = CAIRN_SOURCE_LANDMARK;
    snprintf(c.adapter, sizeof c.adapter, "%s", adapter);
    return c;
}

static cairn_runtime *open_model(const cairn_config *c, cairn_model **m) {
    cairn_runtime *rt = open_runtime_on(c, "landmark");
    if (rt && cairn_load_model(rt, model_path, m)) {
        tap_ok(false, "load: %s", cairn_last_error(rt));
        cairn_close(rt);
        return NULL;
    }
    return rt;
}

static void draw_ids(int32_t *ids, int count, int vocab) {
    for (int i = 0; i < count; i++) ids[i] = 1 + (int32_t)below(vocab - 1);
}

/* ---- the oracle ------------------------------------------------------------------------------ */

/* The walk, with the landmark's row behind the vocabulary; the adapter is merged into f. */
static llama_ref walk_of(const family *f, const low *l, const cairn_config *c) {
    llama_ref r = zoo_ref(f);
    const int n = f->hidden;
    double *embed = (double *)malloc((size_t)((f->vocab + 1) * n) * sizeof *embed);
    memcpy(embed, r.embed.w, (size_t)(f->vocab * n) * sizeof *embed);
    if (l->landmark) memcpy(embed + f->vocab * n, l->landmark, (size_t)n * sizeof *embed);
    if (r.head.w == r.embed.w) r.head.w = embed;
    r.embed.w = embed;
    r.size = PAGE, r.topk = c->topk, r.window = c->selection.window, r.sinks = c->selection.sinks;
    r.dense = 0, r.closest = INFINITY;
    r.mean = c->selection.source == CAIRN_SOURCE_MEAN;
    r.by_head = c->selection.strategy == CAIRN_STRATEGY_HEAD;
    r.soft = c->selection.strategy == CAIRN_STRATEGY_SOFTMAX_HEAD;
    r.two_level = c->selection.form == CAIRN_FORM_TWO_LEVEL;
    r.apart = !c->selection.fused;
    r.landmarks = l->landmark != NULL;
    for (int i = 0; i < f->layers; i++)
        r.layer[i].no_choice = !(c->selection.layers[0] >> i & 1);
    return r;
}

/* Runs token `at` of the sequence, and the landmark behind it if there is one. */
static void walk(llama_ref *r, const cairn_config *c, int32_t token, int at, double *logits,
                 double *junk) {
    int slot = r->landmarks ? at / (PAGE - 1) * PAGE + at % (PAGE - 1) : at;
    r->turned = at - slot;
    llama_ref_step(r, token, slot, logits);
    if (!r->landmarks || ++slot % PAGE != PAGE - 1) return;
    r->turned = (c->landmark_position == CAIRN_LANDMARK_NEXT ? at + 1 : at) - slot;
    llama_ref_step(r, r->embed.out, slot, junk);
}

static double furthest; /* from the walk, of logits of tokens that were compared */

/* Scores of pages that are as near as this may change places: a GPU's queries are rounded. */
static double near_by(void) { return on == CAIRN_BACKEND_CPU ? 1e-3 : 4e-3; }

/* How many of ids [count] have the walk's logits, as eval gives them [count, vocab] by ids; stops where
 * a page was kept by a hair and the runs part. wrong: some are not the walk's. */
static int compare(llama_ref *r, const cairn_config *c, const int32_t *ids, int count,
                   const int32_t *top, const float *logits, bool *wrong) {
    double *want = (double *)malloc((size_t)(2 * r->vocab) * sizeof *want);
    int at = 0;
    for (*wrong = false; at < count && !*wrong; at++) {
        double worst = 0;
        walk(r, c, ids[at], at, want, want + r->vocab);
        for (int i = 0; i < r->vocab; i++)
            worst = fmax(worst, fabs((double)logits[at * r->vocab + i] -
                                     want[top[at * r->vocab + i]]));
        if (worst > furthest) furthest = worst;
        if (worst < (on == CAIRN_BACKEND_CPU ? 0.005 : 0.02)) continue; /* a GPU's products take f16 */
        if (r->closest < near_by()) break;
        *wrong = true;
        tap_note("token %d: logits differ by %g, no page nearer than %g", at, worst, r->closest);
    }
    free(want);
    return at;
}

static cairn_status evaluate(cairn_model *m, const int32_t *ids, int count, int32_t *top,
                             float *logits) {
    cairn_eval_args a = {.struct_size = sizeof a, .ids = ids, .count = count};
    double nll;
    a.top = m->shape.vocab, a.top_ids = top, a.top_logits = logits;
    return cairn_eval(m, &a, &nll);
}

static bool in_file; /* the model's own file has the landmark */

static const char *describe(const cairn_config *c) {
    static const char *const sources[] = {"minmax", "mean", "landmark"};
    static const char *const strategies[] = {"group", "head", "softmax_head"};
    static char text[160];
    snprintf(text, sizeof text, "%s, %s, %s%s%s, window %d%s%s", sources[c->selection.source],
             strategies[c->selection.strategy], c->selection.form ? "two_level" : "flat",
             c->selection.fused ? "" : ", apart", c->landmark_position ? ", next" : "",
             c->selection.window, c->selection.layers[0] & 1 ? "" : ", not layer 0",
             *c->adapter || in_file ? "" : ", no landmarks");
    return text;
}

/* Each token as its decode step would see it, for one config. */
static int test_config(const family *f, low *l, const cairn_config *c, int count) {
    static int32_t ids[ROOM], top[ROOM * VOCAB];
    static float logits[ROOM * VOCAB];
    const low plain = {.count = 0};
    const low *with = *c->adapter || in_file ? l : &plain;
    cairn_model *m = NULL;
    cairn_runtime *rt = open_model(c, &m);
    bool wrong = true;
    int right = 0;
    if (!rt) return 0;
    draw_ids(ids, count, f->vocab);
    merge(with, 1);
    llama_ref r = walk_of(f, with, c);
    if (evaluate(m, ids, count, top, logits)) tap_note("%s", cairn_last_error(rt));
    else right = compare(&r, c, ids, count, top, logits, &wrong);
    merge(with, -1);
    tap_ok(!wrong, "as the walk: %s%s%s (%d of %d tokens, %.1e)", on == CAIRN_BACKEND_CUDA ? "cuda, " : "",
           describe(c), in_file ? ", of the file" : "", right, count, r.closest);
    free(r.embed.w);
    zoo_ref_free(&r);
    cairn_close(rt);
    return right;
}

/* cases: a bit for each that runs. */
static void test_forms(const family *f, low *l, int cases) {
    int right = 0, count = 0;
    for (int i = 0; i < 16; i++) {
        cairn_config c = config_of(i % 8 < 6 ? path : "");
        const int tokens = is_emulated(on) ? 36 + below(4) : 90 + below(2 * PAGE);
        if (!(cases >> i & 1)) continue;
        if (i % 8 >= 6) c.selection.source = i & 1 ? CAIRN_SOURCE_MEAN : CAIRN_SOURCE_MINMAX;
        c.selection.strategy = (cairn_page_strategy)(i % 3);
        c.selection.form = i / 2 & 1 ? CAIRN_FORM_FLAT : CAIRN_FORM_TWO_LEVEL;
        c.selection.fused = i % 4 != 1 && i % 8 != 6;
        c.selection.window = i % 5 == 4 ? 0 : 1 + below(40);
        c.selection.sinks = i & 1 ? 0 : below(20);
        if (is_emulated(on)) c.selection.window = below(4);
        c.landmark_position = i / 4 & 1 ? CAIRN_LANDMARK_NEXT : CAIRN_LANDMARK_PREVIOUS;
        if (i % 8 == 3) {
            memset(c.selection.layers, 0, sizeof c.selection.layers);
            c.selection.layers[0] = 2;
        }
        c.topk = is_emulated(on) ? 1 : 1 + below(4);
        count += tokens;
        right += test_config(f, l, &c, tokens);
    }
    tap_ok(right * 3 > count, "%s%d of %d tokens were compared, the furthest %g away",
           on == CAIRN_BACKEND_CUDA ? "cuda: " : "", right, count, furthest);
    furthest = 0;
}

/* ---- a landmark in the model's file ---------------------------------------------------------- */

/* The estimate is what loading takes, with the file's landmark and an adapter's. */
static void test_own_bytes(const cairn_config *c) {
    cairn_memory_estimate e;
    cairn_runtime_info before, after;
    cairn_model *m = NULL;
    char error[1024] = "";
    memset(&e, 0, sizeof e), memset(&before, 0, sizeof before);
    e.struct_size = sizeof e, before.struct_size = sizeof before;
    after = before;
    bool fine = !cairn_estimate(c, model_path, &e, error, sizeof error);
    cairn_runtime *rt = open_runtime_on(c, "bytes");
    if (!rt) return;
    cairn_info(rt, &before);
    fine = !cairn_load_model(rt, model_path, &m) && fine;
    cairn_info(rt, &after);
    tap_ok(fine && e.live_bytes == after.live_bytes - before.live_bytes,
           "the estimate counts it: %llu bytes of %llu (%s)", (unsigned long long)e.live_bytes,
           (unsigned long long)(after.live_bytes - before.live_bytes), error);
    cairn_close(rt);
}

static void refused_own(const char *file, cairn_status status, const char *part) {
    cairn_config c = config_of("");
    cairn_model *m = NULL;
    cairn_adapter *a = NULL;
    cairn_runtime *rt = open_runtime_on(&c, part);
    if (!rt) return;
    cairn_status got = cairn_load_model(rt, model_path, &m);
    if (file && !got) got = cairn_adapter_load(m, file, &a);
    tap_ok(got == status && !a && strstr(cairn_last_error(rt), part), "refused: %s", cairn_last_error(rt));
    cairn_close(rt);
}

/* A session by an adapter that goes on by none has the file's landmark still. */
static void test_own_adapt(void) {
    cairn_config c = config_of(path);
    cairn_model *m = NULL;
    cairn_session *s[2] = {NULL, NULL};
    int32_t ids[60];
    int held[2] = {0, 0};
    cairn_generate_options o = {.struct_size = sizeof o, .max_tokens = 12};
    cairn_runtime *rt = open_model(&c, &m);
    if (!rt) return;
    draw_ids(ids, 60, VOCAB);
    bool fine = true;
    for (int i = 0; i < 2; i++) {
        fine = fine && !cairn_session_open(m, &s[i]);
        if (i) fine = fine && !cairn_session_adapt(s[i], NULL);
        fine = fine && !cairn_append_ids(s[i], ids, 60) && !cairn_generate_with(s[i], "", &o, NULL, NULL);
        if (!i) fine = fine && !cairn_session_rewind(s[i], 60) && !cairn_session_adapt(s[i], NULL) &&
                       !cairn_generate_with(s[i], "", &o, NULL, NULL);
    }
    const int32_t *said[2] = {cairn_session_ids(s[0], &held[0]), cairn_session_ids(s[1], &held[1])};
    tap_ok(fine && held[0] == held[1] && !memcmp(said[0], said[1], (size_t)held[0] * sizeof **said) &&
           landmarks_with(s[0]->adapter), "without an adapter sessions go on by the file's landmark");
    cairn_close(rt);
}

static void test_own(void) {
    family f = zoo_llama(&state);
    zoo_fill(&f, &state);
    low row = {.hidden = f.hidden, .landmark = low_values(f.hidden, &state)};
    low more = make_low(&f, 3, 2, false, &state); /* with no row of its own */
    cairn_config c = config_of("");
    cairn_model_report report = {.struct_size = sizeof report};
    family_vector(&f, "landmark_embedding", row.landmark, f.hidden);
    family_write(&f, model_path);
    c.selection.source = CAIRN_SOURCE_LANDMARK;
    c.topk = 1, c.selection.window = 5;
    in_file = true;
    tap_ok(!cairn_model_check(&c, model_path, &report, NULL, 0) && report.has_landmark == 1,
           "the report says that the file has a landmark");
    test_config(&f, &row, &c, is_emulated(on) ? 36 : 80);
    if (on == CAIRN_BACKEND_CPU) test_own_bytes(&c);
    save_low(&more);
    snprintf(c.adapter, sizeof c.adapter, "%s", path);
    more.hidden = f.hidden, more.landmark = row.landmark;
    if (on == CAIRN_BACKEND_CPU) test_own_bytes(&c);
    if (!is_emulated(on)) test_config(&f, &more, &c, 80), test_own_adapt();
    if (!is_emulated(on)) {
        more.landmark = NULL;
        low_gate(&more, f.hidden, &state);
        save_low(&more);
        refused_own(path, CAIRN_UNSUPPORTED, "a model with landmarks");
    }
    in_file = false;
    more.landmark = NULL;
    free_low(&more), free_low(&row), family_free(&f);
}

/* Rows of another width, and of a model whose layers are not all attention. */
static void test_own_refused(void) {
    const double values[512] = {0};
    for (int i = 0; i < 2; i++) {
        family f = i ? zoo_lfm2(&state) : zoo_llama(&state);
        if (!i) zoo_fill(&f, &state);
        family_vector(&f, "landmark_embedding", values, i ? f.hidden : f.hidden + 32);
        family_write(&f, model_path);
        refused_own(NULL, i ? CAIRN_UNSUPPORTED : CAIRN_BAD_FILE,
                    i ? "'landmark_embedding': some layers" : "'landmark_embedding' is [1, 160]");
        family_free(&f);
    }
}

/* ---- prompts --------------------------------------------------------------------------------- */

/* Prompts that select say what steps do, and such that do not what the walk says that attends all in
 * them; for each residue of the prompt's length. */
static void test_prompts(const family *f, low *l) {
    static int32_t ids[ROOM];
    double logits[2 * VOCAB];
    int wrong = 0, close = 0;
    for (int i = 0; i < PAGE; i++) {
        cairn_config c = config_of(path);
        const int given = 60 + i;
        cairn_model *m = NULL;
        cairn_session *s = NULL;
        cairn_generate_options o = {.struct_size = sizeof o, .max_tokens = 6};
        int held = 0;
        c.selection.prompts = i % 3 == 0;
        c.topk = 1;
        c.selection.form = i & 1 ? CAIRN_FORM_TWO_LEVEL : CAIRN_FORM_FLAT;
        c.prefill_chunk = i & 2 ? 16 : 64;
        cairn_runtime *rt = open_model(&c, &m);
        if (!rt) return;
        draw_ids(ids, given, f->vocab);
        if (cairn_session_open(m, &s) || cairn_append_ids(s, ids, given) ||
            cairn_generate_with(s, "", &o, NULL, NULL))
            tap_note("%s", cairn_last_error(rt)), wrong++;
        const int32_t *said = cairn_session_ids(s, &held);
        merge(l, 1);
        llama_ref r = walk_of(f, l, &c);
        for (int at = 0; at < held; at++) {
            double best = -INFINITY;
            r.dense = at < given && !c.selection.prompts;
            walk(&r, &c, said[at], at, logits, logits + VOCAB);
            for (int v = 0; v < f->vocab; v++) best = fmax(best, logits[v]);
            if (at + 1 < given || at + 1 >= held || best - logits[said[at + 1]] < 0.05) continue;
            close += r.closest < near_by();
            wrong += r.closest >= near_by();
            break;
        }
        merge(l, -1);
        free(r.embed.w);
        zoo_ref_free(&r);
        cairn_close(rt);
    }
    tap_ok(!wrong && close < PAGE / 2, "prompts of every residue, selecting or not, say what the walk "
           "does (%d do not, %d where pages were close)", wrong, close);
}

/* ---- what is handed out ---------------------------------------------------------------------- */

enum { ENDS = 2 }; /* ids that end a text: not said where a choice of pages is to follow */

/* Whether a token is what the walk says, as far as it says it clearly. */
static bool said_by(const llama_ref *r, int said, const double *logits) {
    double best = -INFINITY;
    for (int v = ENDS; v < r->vocab; v++) best = fmax(best, logits[v]);
    return best - logits[said] < 0.05;
}

/* The pages of what the walk ran since it was asked last, by layer and KV head, to heat. */
static void add_heat(llama_ref *r, int64_t *heat) {
    for (int i = 0; i < r->layers * r->kv_heads; i++)
        for (unsigned long long left = r->read[i / r->kv_heads][i % r->kv_heads]; left; left &= left - 1) heat[i]++;
    memset(r->read, 0, sizeof r->read);
}

/* A session's last selection is what the walk chose for its last token but one, and so are its tokens and,
 * without drafts, what a profile says of pages read.
 * cases: bit 0: two_level, bit 1: drafts, and prompts that select; from, of these. */
static void test_selection(const family *f, low *l, const char *adapter, int from, int cases) {
    static int32_t ids[ROOM];
    double logits[2 * VOCAB];
    const int given = is_emulated(on) ? 50 : 120;
    const low plain = {.count = 0};
    for (int i = from; i < cases; i++) {
        const low *with = *adapter ? l : &plain;
        cairn_config c = config_of(adapter);
        cairn_model *m = NULL;
        cairn_session *s = NULL;
        const cairn_logit_bias never[ENDS] = {{0, -INFINITY}, {1, -INFINITY}};
        cairn_generate_options o = {.struct_size = sizeof o, .max_tokens = 9, .logit_bias_count = ENDS,
                                    .logit_bias = never};
        int held = 0, wrong = 0, chosen = 0, unlike = 0;
        int32_t pages[8], count = 0;
        c.selection.form = i & 1 ? CAIRN_FORM_TWO_LEVEL : CAIRN_FORM_FLAT;
        if (i & 2) c.drafter = CAIRN_DRAFTER_NGRAM, c.selection.prompts = true;
        if (is_emulated(on)) c.topk = 1, c.selection.window = 5;
        int64_t heat[64] = {0};
        const cairn_profile_options all = {.struct_size = sizeof all};
        cairn_runtime *rt = open_model(&c, &m);
        if (!rt) return;
        draw_ids(ids, given, 3);
        cairn_profile_start(m, &all);
        if (cairn_session_open(m, &s) || cairn_session_selection(s, 0, 0, NULL, 0, &count) || count != -1 ||
            cairn_append_ids(s, ids, given) || cairn_generate_with(s, "", &o, NULL, NULL))
            tap_note("%s", cairn_last_error(rt)), wrong++;
        const int32_t *said = cairn_session_ids(s, &held);
        int last = held - 2; /* ran last, but for drafts behind it */
        cairn_stats stats = {.struct_size = sizeof stats};
        cairn_session_stats(s, &stats);
        merge(with, 1);
        llama_ref r = walk_of(f, with, &c);
        r.watched = f->layers - 1;
        for (int at = 0; at <= last; at++) {
            r.dense = at < given && !c.selection.prompts;
            walk(&r, &c, said[at], at, logits, logits + VOCAB);
            if (at + 1 >= given && r.closest > near_by()) unlike += !said_by(&r, said[at + 1], logits);
            if (at < given) memset(r.read, 0, sizeof r.read);
            else add_heat(&r, heat);
        }
        merge(with, -1);
        unlike += !stats.proposed && !unlike && r.closest > near_by() &&
                  memcmp(heat, m->scratch->profile->pages, (size_t)(f->layers * f->kv_heads) * sizeof *heat);
        for (int head = 0; head < f->kv_heads && !stats.accepted; head++) {
            wrong += cairn_session_selection(s, f->layers - 1, head, pages, 8, &count) || count != c.topk;
            for (int p = 0; p < count; p++) wrong += !(r.kept[head] >> pages[p] & 1), chosen++;
        }
        wrong += cairn_session_selection(s, f->layers, 0, pages, 8, &count) != CAIRN_INVALID_ARGUMENT;
        tap_ok((!wrong || r.closest < near_by()) && !unlike, "%s%s, %d pages of the last step are those of the "
               "walk (%.1e, %d drafts taken), as are the tokens, and %d pages read by its first head", on == CAIRN_BACKEND_CUDA ? "cuda, " : "",
               describe(&c), chosen, r.closest, stats.accepted, (int)heat[0]);
        free(r.embed.w);
        zoo_ref_free(&r);
        cairn_close(rt);
    }
}

/* ---- rows of the caller's -------------------------------------------------------------------- */

/* cairn_forward counts tokens: the same bits as eval's, a few rows a call, of two sessions. */
static void test_direct(int vocab) {
    static int32_t ids[ROOM], top[ROOM * VOCAB];
    static float logits[ROOM * VOCAB], rows[2 * 64 * VOCAB];
    cairn_config c = config_of(path);
    cairn_model *m = NULL;
    cairn_runtime *rt = open_model(&c, &m);
    cairn_session *s[2] = {NULL, NULL};
    int wrong = 0, at = 0;
    const int count = 8 * PAGE + 5;
    if (!rt) return;
    draw_ids(ids, count, vocab);
    if (evaluate(m, ids, count, top, logits)) tap_note("%s", cairn_last_error(rt)), wrong++;
    if (cairn_session_open(m, &s[0]) || cairn_session_open(m, &s[1])) wrong++;
    while (at < count && !wrong) {
        const int n = at + 40 < count ? 1 + below(40) : count - at;
        int32_t both[2 * 64], wanted[2 * 64];
        cairn_forward_sequence of[2] = {{.session = s[0], .position = at, .rows = n},
                                        {.session = s[1], .position = at, .rows = n}};
        cairn_forward_args a = {.struct_size = sizeof a, .sequence_count = 2, .row_count = 2 * n,
                                .logits_count = 2 * n, .sequences = of, .ids = both,
                                .logits_rows = wanted, .logits = rows};
        for (int i = 0; i < 2 * n; i++) both[i] = ids[at + i % n], wanted[i] = i;
        if (cairn_forward(m, &a)) tap_note("%s", cairn_last_error(rt)), wrong++;
        for (int r = 0; r < 2 * n && !wrong; r++)
            for (int v = 0; v < vocab; v++) {
                const int from = (at + r % n) * vocab + v;
                wrong += logits[from] != rows[r * vocab + top[from]];
            }
        at += n;
    }
    tap_ok(!wrong && cairn_session_ids(s[1], &at) && at == count,
           "cairn_forward of two sessions gives eval's logits to the bit, landmarks or not in between");
    cairn_close(rt);
}

/* ---- sessions that change their minds -------------------------------------------------------- */

typedef struct segment { int given, count; } segment; /* tokens of the caller's, or said */

typedef struct history {
    int32_t ids[ROOM];
    int count, segments;
    segment made[64];
} history;

static void cut_history(history *h, int count) {
    h->count = count;
    for (int at = 0, i = 0; i < h->segments; at += h->made[i++].count)
        if (at + h->made[i].count >= count) {
            h->made[i].count = count - at;
            h->segments = i + (count > at);
            return;
        }
}

static bool say(cairn_session *s, int count) {
    const cairn_logit_bias no_end = {0, -INFINITY};
    const cairn_sampling drawn = {.temperature = 0.8f, .top_p = 1.0f, .repetition_penalty = 1.0f, .seed = 5};
    cairn_generate_options o = {.struct_size = sizeof o, .max_tokens = count, .sampling = &drawn,
                                .logit_bias = &no_end, .logit_bias_count = 1};
    return !cairn_generate_with(s, "", &o, NULL, NULL);
}

/* The same in a session of another runtime that does nothing else. */
static bool replay(cairn_model *m, const history *h) {
    cairn_session *s = NULL;
    int at = 0, held = 0;
    bool fine = !cairn_session_open(m, &s);
    for (int i = 0; i < h->segments && fine; at += h->made[i++].count)
        fine = h->made[i].given ? !cairn_append_ids(s, h->ids + at, h->made[i].count)
                                : say(s, h->made[i].count);
    const int32_t *ids = cairn_session_ids(s, &held);
    if (fine && (held != h->count || memcmp(ids, h->ids, (size_t)held * sizeof *ids))) {
        int i = 0;
        while (i < held && i < h->count && ids[i] == h->ids[i]) i++;
        tap_note("%d ids, %d expected; alike up to %d", held, h->count, i);
        fine = false;
    }
    cairn_session_close(s);
    return fine;
}

static bool add(cairn_session *s, history *h, bool given, int count) {
    int held = 0;
    bool fine;
    if (given) {
        draw_ids(h->ids + h->count, count, 8); /* few, so that drafts are found */
        fine = !cairn_append_ids(s, h->ids + h->count, count);
    } else {
        fine = say(s, count);
    }
    const int32_t *ids = cairn_session_ids(s, &held);
    if (fine && held != h->count + count) fine = false;
    if (fine) memcpy(h->ids, ids, (size_t)held * sizeof *ids);
    h->made[h->segments++] = (segment){given, count};
    h->count += count;
    return fine;
}

static bool swap_by_fork(cairn_session **s) {
    cairn_session *fork = NULL;
    if (cairn_session_fork(*s, &fork)) return false;
    cairn_session_close(*s);
    *s = fork;
    return true;
}

static bool swap_by_snapshot(cairn_model *m, cairn_session **s) {
    cairn_session *other = NULL;
    size_t bytes = 0;
    bool fine = !cairn_session_save_memory(*s, NULL, 0, &bytes) || bytes;
    void *memory = malloc(bytes);
    fine = fine && !cairn_session_save_memory(*s, memory, bytes, &bytes) &&
           !cairn_session_open(m, &other) && !cairn_session_load_memory(other, memory, bytes);
    free(memory);
    if (!fine) return false;
    cairn_session_close(*s);
    *s = other;
    return true;
}

static void test_walks(void) {
    const int rounds = is_emulated(on) ? 1 : 6;
    for (int round = 0; round < rounds; round++) {
        cairn_config c = config_of(path), plain;
        cairn_model *m = NULL, *quiet = NULL;
        cairn_session *s = NULL;
        int turns = 0, forks = 0, cuts = 0, loads = 0, drafts = 0;
        history h = {.count = 0};
        c.selection.form = round & 1 ? CAIRN_FORM_TWO_LEVEL : CAIRN_FORM_FLAT;
        c.selection.prompts = round % 3 == 2;
        c.topk = 2, c.selection.window = 10;
        plain = c;
        c.drafter = CAIRN_DRAFTER_NGRAM, c.draft_length = 6, c.prefill_chunk = 16;
        c.memory.prefix_cache = round != 3;
        cairn_runtime *rt = open_model(&c, &m), *other = open_model(&plain, &quiet);
        bool fine = rt && other && !cairn_session_open(m, &s);
        for (; fine && turns < 14 && h.count < 190; turns++) {
            cairn_stats stats = {.struct_size = sizeof stats};
            fine = add(s, &h, turns % 2 == 0, 1 + below(turns ? 22 : 60));
            cairn_session_stats(s, &stats);
            drafts += turns % 2 ? stats.accepted : 0;
            if (!fine) break;
            switch (below(5)) {
            case 0: fine = swap_by_fork(&s), forks++; break;
            case 1: fine = swap_by_snapshot(m, &s), loads++; break;
            case 2: case 3:
                cut_history(&h, h.count - below(h.count < 40 ? h.count / 2 + 1 : 36));
                fine = !cairn_session_rewind(s, h.count), cuts++;
                break;
            default: break;
            }
        }
        if (!fine && rt) tap_note("%s", cairn_last_error(rt));
        tap_ok(fine && replay(quiet, &h) && replay(m, &h),
               "%d turns with %d forks, %d rewinds, %d snapshots, %d drafts taken: as a session "
               "undisturbed", turns, forks, cuts, loads, drafts);
        cairn_close(rt), cairn_close(other);
    }
}

/* ---- counts and refusals --------------------------------------------------------------------- */

/* Kernels of what a reload brings are compiled while the program goes on. */
static bool await_reload(cairn_runtime *rt, cairn_model *m) {
    bool fine = true;
    for (int i = 0; fine && rt->reload && i < 200; i++) {
        int32_t pending;
        fine = !cairn_step(m, 1000, &pending);
        if (rt->reload) os_sleep_us(100000);
    }
    return fine && !rt->reload;
}

static void test_counts(const int32_t *ids) {
    cairn_config c = config_of(path);
    cairn_model *m = NULL;
    cairn_session *s = NULL, *again = NULL;
    cairn_stats stats = {.struct_size = sizeof stats};
    const int most = ROOM / PAGE * (PAGE - 1);
    int held = 0;
    c.memory.prefix_cache = true;
    cairn_runtime *rt = open_model(&c, &m);
    if (!rt) return;
    bool fine = !cairn_session_open(m, &s) && cairn_append_ids(s, ids, most + 1) == CAIRN_CONTEXT_FULL &&
                !cairn_append_ids(s, ids, most) && cairn_session_ids(s, &held) && held == most &&
                !cairn_session_rewind(s, 40);
    tap_ok(fine && m->tables.pages[s->row] == 3, "%d slots hold %d tokens; 40 tokens fill %d pages", ROOM,
           held, (int)m->tables.pages[s->row]);
    fine = !cairn_session_open(m, &again) && !cairn_append_ids(again, ids, 47) &&
           !cairn_generate(again, "", 1, NULL, NULL) && !cairn_session_stats(again, &stats) &&
           stats.reused_tokens == 45;
    tap_ok(fine, "of 47 tokens 45, three pages without their landmarks, came from the prefix cache (%d)",
           stats.reused_tokens);
    cairn_close(rt);
}

static bool refuses(cairn_status status, cairn_status want, cairn_runtime *rt, const char *text) {
    if (status == want && strstr(cairn_last_error(rt), text)) return true;
    tap_note("%s", cairn_last_error(rt));
    return false;
}

static void test_refused(const family *f, const low *good, const int32_t *ids) {
    cairn_config c = config_of("");
    cairn_model *m = NULL;
    cairn_adapter *a = NULL;
    cairn_session *s = NULL;
    static int32_t top[4 * VOCAB];
    static float logits[4 * VOCAB];
    int held = 1;
    c.selection.source = CAIRN_SOURCE_LANDMARK;
    cairn_runtime *rt = open_model(&c, &m);
    low l = *good;
    if (!rt) return;
    bool fine = !cairn_session_open(m, &s) &&
                refuses(cairn_append_ids(s, ids, 20), CAIRN_UNSUPPORTED, rt, "landmark_embedding") &&
                cairn_session_ids(s, &held) && held == 0 &&
                refuses(evaluate(m, ids, 4, top, logits), CAIRN_UNSUPPORTED, rt, "landmark_embedding");
    tap_ok(fine, "source landmark without an adapter's: %s", cairn_last_error(rt));
    fine = !cairn_adapter_load(m, path, &a) && !cairn_session_adapt(s, a) && !cairn_append_ids(s, ids, 200);
    tap_ok(fine && !cairn_generate(s, "", 3, NULL, NULL), "with the adapter it runs");
    cairn_forward_sequence row = {.session = s, .rows = 1};
    cairn_forward_args rows = {.struct_size = sizeof rows, .sequences = &row, .sequence_count = 1, .ids = ids,
                               .rope = ids, .row_count = 1};
    tap_ok(refuses(cairn_forward(m, &rows), CAIRN_UNSUPPORTED, rt, "landmarks"), "%s", cairn_last_error(rt));
    cairn_session_close(s);
    fine = !cairn_session_open(m, &s);
    cairn_config_default(&c);
    c = config_of(""), c.selection.source = CAIRN_SOURCE_MEAN;
    fine = fine && !cairn_reload(rt, &c) && await_reload(rt, m) && !cairn_append_ids(s, ids, ROOM - 1) &&
           refuses(cairn_session_adapt(s, a), CAIRN_CONTEXT_FULL, rt, "landmarks");
    tap_ok(fine, "more tokens than a context with landmarks holds: %s", cairn_last_error(rt));
    l.hidden = f->hidden / 2;
    save_low(&l);
    tap_ok(refuses(cairn_adapter_load(m, path, &a), CAIRN_UNSUPPORTED, rt, "'landmark_embedding'"), "%s",
           cairn_last_error(rt));
    l.hidden = f->hidden;
    for (int i = 0; i < 5; i++) l.parts[i] = low_values((i == 1 ? 2 : 1) * f->hidden * (i % 2 ? f->hidden : 1), &state);
    save_low(&l);
    tap_ok(refuses(cairn_adapter_load(m, path, &a), CAIRN_UNSUPPORTED, rt, "mask_embedding"), "%s",
           cairn_last_error(rt));
    for (int i = 0; i < 5; i++) free(l.parts[i]);
    save_low(good);
    cairn_close(rt);
}

/* ---- other models, other backends ------------------------------------------------------------ */

/* Layers with windows of their own, which see landmarks, beside such as select. */
static void test_windows(void) {
    family f = zoo_gemma3_own(&state);
    family_write(&f, model_path);
    architecture = "gemma3";
    low l = make_landmark(&f);
    save_low(&l);
    for (int i = 0; i < 2; i++) {
        cairn_config c = config_of(path);
        c.selection.form = i ? CAIRN_FORM_TWO_LEVEL : CAIRN_FORM_FLAT;
        c.selection.window = 12, c.topk = 2;
        test_config(&f, &l, &c, 70);
    }
    architecture = "llama";
    free_low(&l), family_free(&f);
}

/* Another form loaded while the program runs: sessions say what they do where it was there from the
 * first. */
static void test_reload(void) {
    static int32_t ids[ROOM];
    int32_t said[2][ROOM];
    int held[2] = {0, 0};
    bool fine = true;
    draw_ids(ids, 44, 9);
    for (int late = 0; late < 2; late++) {
        cairn_config c = config_of(""), plain = c;
        cairn_model *m = NULL;
        cairn_session *s = NULL;
        c.topk = 1, c.selection.window = 5, c.selection.strategy = CAIRN_STRATEGY_HEAD;
        c.selection.form = CAIRN_FORM_TWO_LEVEL, c.selection.prompts = true;
        cairn_runtime *rt = open_model(late ? &plain : &c, &m);
        if (!rt) return;
        fine = fine && (!late || !cairn_reload(rt, &c));
        fine = fine && await_reload(rt, m) && !cairn_session_open(m, &s) && !cairn_append_ids(s, ids, 44) &&
               !cairn_generate(s, "", 4, NULL, NULL);
        if (!fine) tap_note("%s", cairn_last_error(rt));
        const int32_t *from = s ? cairn_session_ids(s, &held[late]) : NULL;
        if (from) memcpy(said[late], from, (size_t)held[late] * sizeof *from);
        cairn_close(rt);
    }
    tap_ok(fine && held[0] == held[1] && !memcmp(said[0], said[1], (size_t)held[0] * sizeof **said),
           "%stwo_level and prompts that select, loaded late: the same %d tokens",
           on == CAIRN_BACKEND_CUDA ? "cuda, " : "", held[0]);
}

/* All that is asked of a backend, of the tokens that f has. */
static void test_backend(const family *f, low *l, const int32_t *ids) {
    const bool small = is_emulated(on);
    if (small) {
        test_forms(f, l, 1 << 1 | 1 << 2);
        test_selection(f, l, "", 0, 1);
        test_selection(f, l, path, 1, 2);
        test_selection(f, l, path, 3, 4);
        test_reload();
        return;
    }
    test_forms(f, l, 0xffff);
    test_prompts(f, l);
    test_direct(f->vocab);
    test_selection(f, l, path, 0, 4);
    test_selection(f, l, "", 0, 4);
    test_reload();
    test_counts(ids);
    test_refused(f, l, ids);
}

int main(void) {
    static int32_t ids[ROOM];
    int file = mkstemp(model_path);
    state = random_seed();
    if (file < 0) return 1;
    close(file);
    snprintf(path, sizeof path, "%s.low", model_path);
    for (on = CAIRN_BACKEND_CPU; on; on = on == CAIRN_BACKEND_CPU ? CAIRN_BACKEND_CUDA : CAIRN_BACKEND_AUTO) {
        const cairn_config c = config_of("");
        cairn_runtime *rt = open_runtime_on(&c, "landmark");
        if (!rt) continue;
        cairn_close(rt);
        family f = zoo_llama(&state);
        zoo_fill(&f, &state);
        family_write(&f, model_path);
        low l = make_landmark(&f);
        save_low(&l);
        draw_ids(ids, ROOM, f.vocab);
        test_backend(&f, &l, ids);
        free_low(&l), family_free(&f);
        test_own();
        if (on == CAIRN_BACKEND_CPU) test_own_refused();
        f = zoo_llama(&state); /* so few tokens that some drafts hold */
        f.vocab = 9;
        zoo_fill(&f, &state);
        family_write(&f, model_path);
        l = make_landmark(&f);
        save_low(&l);
        test_walks();
        free_low(&l), family_free(&f);
        if (!is_emulated(on)) test_windows();
    }
    remove(model_path), remove(path);
    return tap_done();
}
