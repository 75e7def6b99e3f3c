/* mtp_walk: sessions that draft from masks on a toy whose drafts hold often and whose layers matter. Walks
 * of appends, generations, rewinds, forks, snapshots and adapters beside the same walks without drafts;
 * logprobs bit for bit in batches; the budget; as many drafts as pay. With deterministic = false, the
 * frequencies of what follows each token by chi-square. And what is refused, by which nothing changes. */
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

enum { HIDDEN = 64 };

static int below(int n) { return (int)(random_next(&state) % (uint64_t)n); }

static double small(const family *f, int row, int column) {
    return (void)f, (void)row, (void)column, 0.01 * (double)family_uniform(&state);
}
/* What follows a token mostly, and what else may. */
static double mostly(const family *f, int row, int column) {
    return after(f, row, column) + 0.1 * (double)family_uniform(&state) - (row == 0);
}

/* A model of tokens that mostly follow one another. */
static family make_follower(int vocab) {
    static const int types[] = {BLOCK_F32};
    family f = {.architecture = "llama", .layers = 2, .hidden = HIDDEN, .heads = 2, .kv_heads = 1,
                .dim = 32, .ffn = 64, .vocab = vocab, .context = 256, .own_head = true};
    family_make(&f, types, 1, &state);
    set_values(&f, "token_embd", same), set_values(&f, "output.weight", mostly);
    set_values(&f, "attn_output", small), set_values(&f, "ffn_down", small);
    set_values(&f, "output_norm", one);
    return f;
}

/* Its sampler head sees the token before, and `other` of the one behind that in the vocabulary. */
static low make_knowing(const family *f, double other) {
    low l = make_gated(f);
    for (int i = 0; i < HIDDEN * 2 * HIDDEN; i++) {
        const int row = i / (2 * HIDDEN), column = i % (2 * HIDDEN);
        l.parts[1][i] = row == column ? 20 : column == (row + 1) % f->vocab ? other : 0;
    }
    for (int i = 0; i < HIDDEN * HIDDEN; i++) l.parts[3][i] = 0;
    for (int i = 0; i < HIDDEN; i++) l.parts[2][i] = 1;
    return l;
}

/* ---- walks ----------------------------------------------------------------------------------- */

typedef struct pair {
    cairn_model *m[2]; /* with drafts, without */
    cairn_session *s[2], *kept[2];
    char *saved[2];
    size_t bytes[2];
} pair;

static bool is_same(const pair *p) {
    int count[2];
    const int32_t *a = cairn_session_ids(p->s[0], &count[0]);
    const int32_t *b = cairn_session_ids(p->s[1], &count[1]);
    return count[0] == count[1] && !memcmp(a, b, (size_t)count[0] * sizeof *a);
}

static void save_one(pair *p, int i) {
    free(p->saved[i]);
    p->saved[i] = NULL;
    cairn_session_save_memory(p->s[i], NULL, 0, &p->bytes[i]);
    p->saved[i] = (char *)malloc(p->bytes[i]);
    cairn_session_save_memory(p->s[i], p->saved[i], p->bytes[i], &p->bytes[i]);
}

/* The same with both; what is loaded comes from the other's snapshot. */
static void walk_step(pair *p, int what, int amount, int seed) {
    int32_t ids[8];
    int held = 0;
    cairn_sampling sampling = {.temperature = seed % 3 ? 1.6f : 0.0f, .seed = seed};
    cairn_generate_options o = {.struct_size = sizeof o, .max_tokens = amount, .sampling = &sampling};
    for (int i = 0; i < 8; i++) ids[i] = 1 + (seed + i * amount) % 50;
    for (int i = 0; i < 2; i++) {
        cairn_session_ids(p->s[i], &held);
        if (what < 4 && held + amount < ROOM) cairn_generate_with(p->s[i], "", &o, NULL, NULL);
        else if (what == 4 && held + 8 < ROOM) cairn_append_ids(p->s[i], ids, 1 + amount % 8);
        else if (what == 5) cairn_session_rewind(p->s[i], 1 + held * 2 / 3);
        else if (what == 6) save_one(p, i);
        else if (what == 7) cairn_session_adapt(p->s[i], seed % 3 ? p->m[i]->adapter : NULL);
        else if (what == 8) {
            cairn_session_close(p->kept[i]);
            p->kept[i] = p->s[i];
            cairn_session_fork(p->kept[i], &p->s[i]);
        } else if (what == 9 && p->kept[i]) {
            cairn_session *s = p->kept[i];
            p->kept[i] = p->s[i], p->s[i] = s;
        }
    }
    for (int i = 0; i < 2 && what == 10 && p->saved[0]; i++)
        cairn_session_load_memory(p->s[i], p->saved[!i], p->bytes[!i]);
}

static void test_walks(void) {
    pair p;
    int different = -1, steps = 0, accepted = 0;
    cairn_runtime *rt[2] = {NULL, NULL};
    memset(&p, 0, sizeof p);
    for (int i = 0; i < 2; i++) {
        cairn_config c = gated_config(path, i ? 0 : 3);
        c.memory.prefix_cache = true;
        if (!(rt[i] = open_gated(&c, &p.m[i]))) {
            cairn_close(rt[0]);
            return;
        }
        cairn_session_open(p.m[i], &p.s[i]);
    }
    for (; steps < 160 && different < 0; steps++) {
        cairn_stats stats = {.struct_size = sizeof stats};
        int held = 0;
        cairn_session_ids(p.s[1], &held);
        walk_step(&p, held < 2 ? 4 : held > ROOM - 30 ? 5 : below(11), 1 + below(20), below(1000));
        cairn_session_stats(p.s[0], &stats);
        accepted += stats.accepted;
        if (!is_same(&p)) different = steps;
    }
    tap_ok(different < 0 && accepted > 100, "%d steps of a walk with drafts and without: the same ids "
           "(drafts were taken: %d)", steps, accepted);
    for (int i = 0; i < 2; i++) {
        free(p.saved[i]);
        cairn_close(rt[i]);
    }
}

/* ---- beside others --------------------------------------------------------------------------- */

/* Polls what is new of a request's logprobs to out; whether it has ended. */
static bool collect(cairn_session *s, cairn_logprob *out, int *count) {
    cairn_piece p = {.struct_size = sizeof p};
    if (cairn_generate_poll(s, &p)) return true;
    memcpy(out + 3 * *count, p.logprobs, (size_t)(3 * p.logprob_ids) * sizeof *out);
    *count += p.logprob_ids;
    return p.stop != CAIRN_STOP_NONE;
}

/* Sessions with masks, with those of another length, and with none: alone, then in one forward. */
static void test_bits(void) {
    enum { SAID = 40 };
    static cairn_logprob alone[4][3 * ROOM], beside[3 * ROOM];
    cairn_model *m = NULL;
    cairn_config c = gated_config(path, 3);
    cairn_runtime *rt = open_gated(&c, &m);
    cairn_session *s[4] = {NULL};
    int counts[4] = {0}, wrong = 0;
    for (int round = 0; round < 2 && rt; round++) {
        int32_t pending = 1;
        for (int i = 0; i < 4; i++) {
            cairn_sampling sampling = {.temperature = 0.4f * (float)i, .seed = 5 + i};
            cairn_generate_options o = {.struct_size = sizeof o, .max_tokens = SAID, .logprobs = 2,
                                        .sampling = &sampling};
            const int32_t ids[] = {3 + i, 7, 8, 9, 40 - i};
            cairn_session_open(m, &s[i]);
            if (i % 2) cairn_session_adapt(s[i], NULL);
            cairn_append_ids(s[i], ids, 5);
            cairn_generate_submit(s[i], NULL, &o);
            for (bool done = round; !done; done = collect(s[i], alone[i], &counts[i]))
                cairn_step(m, 1000000, &pending);
        }
        for (pending = 1; round && pending;) cairn_step(m, 1000000, &pending);
        for (int i = 0; i < 4; i++) {
            int count = 0;
            while (round && !collect(s[i], beside, &count)) continue;
            wrong += round && (count != counts[i] || count < 10 ||
                               memcmp(beside, alone[i], (size_t)(3 * count) * sizeof *beside));
            cairn_session_close(s[i]);
        }
    }
    if (!rt) return;
    tap_ok(!wrong, "with masks and without in one forward: ids and logprobs bit for bit as alone");
    cairn_close(rt);
}

/* ---- budget ---------------------------------------------------------------------------------- */

static void test_budget(bool force, float temperature) {
    static int32_t ids[2][ROOM];
    int held[2] = {0, 0}, swapped = 0, accepted = 0;
    for (int i = 0; i < 2; i++) {
        cairn_model *m = NULL;
        cairn_session *s = NULL;
        cairn_config c = gated_config(path, i ? 0 : 4);
        cairn_sampling sampling = {.temperature = temperature, .seed = 11};
        cairn_generate_options o = {.struct_size = sizeof o, .max_tokens = 90, .sampling = &sampling};
        cairn_stats stats = {.struct_size = sizeof stats};
        const int32_t prompt[] = {5, 6, 7};
        const cairn_budget budget = {.force = force, .suppress_count = 2, .suppress = {"-", "6"},
                                     .replace_count = 2, .replace = {"%", "A"}};
        c.budget = budget;
        cairn_runtime *rt = open_gated(&c, &m);
        if (!rt) return;
        cairn_session_open(m, &s);
        cairn_append_ids(s, prompt, 3);
        cairn_generate_with(s, "", &o, NULL, NULL);
        memcpy(ids[i], cairn_session_ids(s, &held[i]), (size_t)ROOM / 2 * sizeof **ids);
        cairn_session_stats(s, &stats);
        if (!i) accepted = stats.accepted;
        for (int n = 3; n < held[i]; n++)
            swapped += ids[i][n] == '-' - '!' || ids[i][n] == '6' - '!' ? -1000 : 0;
        cairn_close(rt);
    }
    tap_ok(held[0] == held[1] && !memcmp(ids[0], ids[1], sizeof ids[0] / 2) && !swapped && accepted > 9 &&
               (!force || held[0] == 93), "budget, force %d, temperature %.1f: %d ids as without "
           "drafts, none is suppressed (%d drafts taken)", force, (double)temperature, held[0], accepted);
}

/* ---- as many as pay -------------------------------------------------------------------------- */

/* Masks of the next step, by costs as if they were measured. */
static int masks_at(cairn_session *s, double row_us, double saved) {
    engine_scratch *x = s->model->scratch;
    int drafts = 4, short_by = 0;
    for (int i = 0; i < ENGINE_COSTS; i++) x->cost_us[i] = row_us < 0 ? 0 : 1000 + row_us * ((1 << i) - 1);
    x->head_us = 20;
    s->pace.saved = saved;
    return engine_pace(s, 4, &drafts, &short_by);
}

/* What a generation drafts, by what was measured. */
static void test_adaptive(void) {
    cairn_model *m = NULL;
    cairn_session *s = NULL, *next = NULL;
    cairn_config c = gated_config(path, 4);
    cairn_stats stats = {.struct_size = sizeof stats};
    const int32_t prompt[] = {5, 6, 7};
    int right = 1, held = 0;
    c.draft_adaptive = true, c.max_batch = 2;
    cairn_runtime *rt = open_gated(&c, &m);
    if (!rt) return;
    cairn_session_open(m, &s);
    cairn_append_ids(s, prompt, 3);
    cairn_generate(s, "", 100, NULL, NULL);
    cairn_session_stats(s, &stats);
    const int32_t *ids = cairn_session_ids(s, &held);
    for (int i = 3; i < held; i++) right = right && ids[i] == ids[i - 1] % 59 + 1;
    tap_ok(right && held == 103 && stats.proposed > 0 && stats.accepted == stats.proposed,
           "as many as pay here: %d forwards for 100 tokens, %d of %d drafts taken",
           stats.forwards, stats.accepted, stats.proposed);
    cairn_session_open(m, &next);
    tap_ok(next && !memcmp(next->pace.rates, s->pace.rates, sizeof s->pace.rates) &&
               s->pace.rates[0] > PACE_PRIOR && next->pace.saved <= PACE_FIRST,
           "another session begins with what this one learnt");
    pace_clear(&s->pace);
    tap_ok(masks_at(s, 10, 1) == 4 && !masks_at(s, 600, 0.2) && masks_at(s, 600, 1) == 1 &&
               !masks_at(s, 10, -1) && !masks_at(s, -1, 1), "4 masks where rows are cheap, none where "
           "they are not, but for a trial; none before a plain step was measured");
    m->runtime->config.draft_adaptive = false;
    tap_ok(masks_at(s, 600, -1) == 4, "a fixed length is kept");
    cairn_close(rt);
}

/* ---- chances --------------------------------------------------------------------------------- */

enum { FEW = 8, RUNS = 150 };
#define WARM 4.0

/* The chances of what follows each token, by the weights of a model whose layers add nothing. */
static void true_chances(const family *f, const low *l, double (*out)[FEW]) {
    const double *head = NULL;
    for (int i = 0; i < f->count; i++)
        if (!strcmp(f->tensors[i].name, "output.weight")) head = f->tensors[i].values;
    for (int from = 0; from < FEW; from++) {
        double x[FEW] = {0}, sum = 0, square = 0;
        for (int i = 0; i < FEW && l; i++) {
            const double w = l->parts[1][i * 2 * HIDDEN + from];
            x[i] = w / (1 + exp(-w));
            square += x[i] * x[i];
        }
        if (!l) x[from] = square = 1;
        for (int to = 0; to < FEW; to++) {
            double logit = 0;
            for (int i = 0; i < FEW; i++)
                logit += head[to * HIDDEN + i] * x[i] * sqrt(HIDDEN / square);
            sum += out[from][to] = exp(logit / WARM);
        }
        for (int to = 0; to < FEW; to++) out[from][to] /= sum;
    }
}

/* Of counts against chances; *cells: how many differ freely. */
static double chi_square(int (*seen)[FEW], double (*want)[FEW], int *cells) {
    double chi = 0;
    *cells = 0;
    for (int i = 0; i < FEW; i++) {
        int all = 0;
        for (int j = 0; j < FEW; j++) all += seen[i][j];
        for (int j = 0, any = 0; j < FEW; j++) {
            const double expected = want[i][j] * all;
            if (expected < 5) continue;
            chi += (seen[i][j] - expected) * (seen[i][j] - expected) / expected;
            *cells += any++ > 0;
        }
    }
    return chi;
}

static void test_chances(void) {
    int seen[FEW][FEW] = {{0}}, cells = 0, other = 0, proposed = 0, accepted = 0;
    double target[FEW][FEW], drafted[FEW][FEW];
    cairn_model *m = NULL;
    cairn_session *s = NULL;
    family f = make_follower(FEW);
    set_values(&f, "attn_output", zero), set_values(&f, "ffn_down", zero);
    family_write(&f, model_path);
    low l = make_knowing(&f, 12);
    save_low(&l);
    true_chances(&f, NULL, target), true_chances(&f, &l, drafted);
    cairn_config c = gated_config(path, 3);
    c.deterministic = false;
    cairn_runtime *rt = open_gated(&c, &m);
    if (rt) cairn_session_open(m, &s);
    for (int run = 0; run < RUNS && rt; run++) {
        const int32_t prompt[] = {1 + run % (FEW - 1)};
        cairn_sampling sampling = {.temperature = (float)WARM, .seed = 1000 + run};
        cairn_generate_options o = {.struct_size = sizeof o, .max_tokens = 120, .sampling = &sampling};
        cairn_stats stats = {.struct_size = sizeof stats};
        int held = 0;
        cairn_session_reset(s);
        cairn_append_ids(s, prompt, 1);
        cairn_generate_with(s, "", &o, NULL, NULL);
        const int32_t *ids = cairn_session_ids(s, &held);
        for (int i = 1; i < held; i++) seen[ids[i - 1]][ids[i]]++;
        cairn_session_stats(s, &stats);
        proposed += stats.proposed, accepted += stats.accepted;
    }
    if (!rt) {
        free_low(&l), family_free(&f);
        return;
    }
    const double chi = chi_square(seen, target, &cells), apart = chi_square(seen, drafted, &other);
    tap_ok(rt && chi < cells + 4.5 * sqrt(2.0 * cells) + 9 && apart > 3 * chi && accepted > proposed / 5 &&
               accepted < proposed && cells > 20, "drawn drafts: what follows what is the model's: "
           "chi-square %.1f of %d cells (%.0f by what drafts; %d of %d drafts taken)", chi, cells, apart,
           accepted, proposed);
    cairn_close(rt);
    free_low(&l), family_free(&f);
}

/* ---- what is refused ------------------------------------------------------------------------- */

static cairn_status load_low(cairn_model *m, const low *l, cairn_adapter **a) {
    save_low(l);
    return cairn_adapter_load(m, path, a);
}

static void test_refused(const low *good) {
    cairn_model *m = NULL;
    cairn_adapter *a[4] = {NULL};
    cairn_session *s = NULL;
    cairn_config c = gated_config("", 6);
    cairn_runtime *rt = open_gated(&c, &m);
    low l = *good;
    int held = 9;
    const int32_t prompt[] = {5, 6, 7}, mask = 60, own = 99;
    if (!rt) return;
    l.drafts = 5;
    tap_ok(load_low(m, &l, &a[0]) == CAIRN_UNSUPPORTED && !a[0] && !m->adapters &&
               strstr(cairn_last_error(rt), "draft_length = 6"), "%s", cairn_last_error(rt));
    l.drafts = 6;
    tap_ok(!load_low(m, &l, &a[0]) && a[0]->mask_id == 60, "as many as are asked for; its mask has the "
           "first id behind the vocabulary");
    c.draft_length = 7;
    tap_ok(cairn_reload(rt, &c) == CAIRN_UNSUPPORTED && rt->config.draft_length == 6 &&
               strstr(cairn_last_error(rt), "draft_length = 7"), "%s", cairn_last_error(rt));
    l.mask_id = 60;
    tap_ok(load_low(m, &l, &a[1]) == CAIRN_UNSUPPORTED && strstr(cairn_last_error(rt), "mask_token_id"),
           "%s", cairn_last_error(rt));
    l.mask_id = 59;
    tap_ok(load_low(m, &l, &a[1]) == CAIRN_UNSUPPORTED && strstr(cairn_last_error(rt), "59"), "%s",
           cairn_last_error(rt));
    l.mask_id = 99;
    tap_ok(!load_low(m, &l, &a[1]) && a[1]->mask_id == 99, "a mask's id as the file says");
    l.mask_id = 0;
    tap_ok(!load_low(m, &l, &a[2]) && a[2]->mask_id == 61, "no id is given twice");
    cairn_session_open(m, &s);
    cairn_append_ids(s, prompt, 3);
    tap_ok(cairn_append_ids(s, &mask, 1) == CAIRN_INVALID_ARGUMENT &&
               strstr(cairn_last_error(rt), "is the mask of"), "%s", cairn_last_error(rt));
    cairn_session_ids(s, &held);
    tap_ok(held == 3 && cairn_append_ids(s, &own, 1) == CAIRN_INVALID_ARGUMENT &&
               strstr(cairn_last_error(rt), "is the mask of") &&
               cairn_detokenize(m, &own, 1, NULL, 0, NULL), "nothing changed: %s", cairn_last_error(rt));
    cairn_close(rt);
}

static void test_backend(cairn_backend backend) {
    if (is_emulated(backend)) {
        tap_skip("walks on an emulated GPU take long: mtp_test.c has the same, less of it");
        return;
    }
    gated_backend = backend;
    family f = make_follower(60);
    family_write(&f, model_path);
    low l = make_knowing(&f, 0);
    save_low(&l);
    test_walks();
    test_bits();
    for (int i = 0; i < 4; i++) test_budget(i & 1, i & 2 ? 1.6f : 0.0f);
    if (backend == CAIRN_BACKEND_CPU) test_adaptive(), test_refused(&l);
    free_low(&l), family_free(&f);
    test_chances();
}

int main(void) { return gated_main(test_backend); }
