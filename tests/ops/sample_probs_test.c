/* sample_probs: the distribution that `sample` draws from, by a loop in double precision and by rows
 * worked out by hand. verify_chain: accepted drafts and bonus by a plain loop; the tokens' distribution
 * against the target's, whatever drafted; drafts that are no ids.
 * emulated: asan race */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "random.h"
#include "tap.h"
#include "backends.h"

static uint64_t seed;
static cairn_runtime *rt;
static const char *where;
static int below(int n) { return (int)(random_next(&seed) % (uint64_t)n); }
static double unit(void) { return (double)(random_next(&seed) >> 11) * 0x1p-53; }

static cairn_tensor *tensor3(cairn_type type, int64_t a, int64_t b, int64_t c, const void *data) {
    int64_t shape[3] = {a, b, c}, values = a * (b < 0 ? 1 : b) * (c < 0 ? 1 : c);
    cairn_tensor *t = NULL;
    cairn_tensor_new(rt, type, b < 0 ? 1 : c < 0 ? 2 : 3, shape, &t);
    if (data && values)
        cairn_tensor_write(rt, t, data, (size_t)values * cairn_type_bytes(type));
    return t;
}

/* ---- sample_probs ---- */

typedef struct rule { double temperature, top_p, min_p, penalty; int top_k, order; } rule;

static double mass_above(const double *p, int n, double than, bool count) {
    double sum = 0.0;
    for (int i = 0; i < n; i++) if (p[i] > than) sum += count ? 1.0 : p[i];
    return sum;
}

/* What is kept: p becomes 0 elsewhere, to a sum of 1. */
static void keep(double *p, int n, double limit, bool count) {
    double before[64], sum = 0.0;
    memcpy(before, p, (size_t)n * sizeof *p);
    for (int i = 0; i < n; i++) if (mass_above(before, n, before[i], count) >= limit) p[i] = 0.0;
    for (int i = 0; i < n; i++) sum += p[i];
    for (int i = 0; i < n; i++) p[i] /= sum;
}

static void expect(const rule *r, const float *logits, int n, const uint32_t *mask,
                   const int32_t *history, int past, double *p) {
    double x[64], top = -INFINITY, sum = 0.0, best = 0.0;
    int at = 0;
    for (int i = 0; i < n; i++) {
        x[i] = (double)logits[i];
        for (int j = 0; j < past; j++)
            if (history[j] == i) { x[i] = x[i] > 0 ? x[i] / r->penalty : x[i] * r->penalty; break; }
        if (mask && !(mask[i / 32] >> i % 32 & 1)) x[i] = -INFINITY;
        if (x[i] > top) top = x[i], at = i;
    }
    for (int i = 0; i < n; i++) {
        p[i] = r->temperature > 0 ? exp((x[i] - top) / r->temperature) : i == at;
        sum += p[i];
    }
    for (int i = 0; i < n; i++) p[i] /= sum;
    for (int pass = 0; pass < 2 && r->temperature > 0; pass++) {
        if (pass == r->order && r->top_k) keep(p, n, r->top_k, true);
        if (pass != r->order && r->top_p < 1) keep(p, n, r->top_p, false);
    }
    for (int i = 0; i < n; i++) if (p[i] > best) best = p[i];
    for (int i = 0; i < n; i++) if (p[i] < r->min_p * best) p[i] = 0.0;
    keep(p, n, 2.0, false); /* to 1 again */
}

static void args_of(const rule *r, cairn_sample_probs_args *a) {
    memset(a, 0, sizeof *a);
    a->struct_size = sizeof *a;
    a->temperature = (float)r->temperature, a->top_p = (float)r->top_p, a->min_p = (float)r->min_p;
    a->repetition_penalty = (float)r->penalty, a->top_k = r->top_k, a->order = r->order;
}

static void test_goldens(void) {
    static const struct { rule r; float q[4], want[4]; } rows[] = {
        {{1, 0.5, 0, 1, 0, 0}, {.5f, .25f, .125f, .125f}, {1, 0, 0, 0}},
        {{1, 0.75, 0, 1, 0, 0}, {.5f, .25f, .125f, .125f}, {2 / 3.f, 1 / 3.f, 0, 0}},
        {{1, 0.76, 0, 1, 0, 0}, {.5f, .25f, .125f, .125f}, {.5f, .25f, .125f, .125f}},
        {{1, 0.75, 0, 1, 3, 0}, {.4f, .3f, .2f, .1f}, {4 / 7.f, 3 / 7.f, 0, 0}},
        {{1, 0.75, 0, 1, 3, 1}, {.4f, .3f, .2f, .1f}, {4 / 9.f, 3 / 9.f, 2 / 9.f, 0}},
        {{1, 1, 0.5, 1, 0, 0}, {.4f, .3f, .2f, .1f}, {4 / 9.f, 3 / 9.f, 2 / 9.f, 0}},
        {{0.5, 1, 0, 1, 0, 0}, {.4f, .3f, .2f, .1f}, {.16f / .3f, .09f / .3f, .04f / .3f, .01f / .3f}},
        {{0, 1, 0, 1, 0, 0}, {.3f, .3f, .2f, .2f}, {1, 0, 0, 0}}};
    int right = 0;
    for (size_t i = 0; i < BASE_COUNT(rows); i++) {
        cairn_sample_probs_args a;
        float logits[4], got[4] = {9, 9, 9, 9};
        bool near = true;
        for (int j = 0; j < 4; j++) logits[j] = logf(rows[i].q[j]) + 3.0f;
        args_of(&rows[i].r, &a);
        a.logits = tensor3(CAIRN_F32, 1, 4, -1, logits), a.probs = tensor3(CAIRN_F32, 1, 4, -1, NULL);
        near = !cairn_sample_probs(rt, &a) && !cairn_tensor_read(rt, a.probs, got, sizeof got);
        for (int j = 0; j < 4; j++) near = near && fabsf(got[j] - rows[i].want[j]) < 1e-6f;
        right += near;
    }
    tap_ok(right == (int)BASE_COUNT(rows), "%s: sample_probs of rows by hand: %d of %d", where, right,
           (int)BASE_COUNT(rows));
}

/* Rows of parameters of their own, some with a mask and a history. */
static void test_rows(int run) {
    enum { ROWS = 5, N = 50, WORDS = 2, PAST = 6 };
    float logits[ROWS][N], t[ROWS], tp[ROWS], mp[ROWS], pen[ROWS], got[ROWS][N];
    int32_t tk[ROWS], history[ROWS][PAST];
    uint32_t mask[ROWS][WORDS];
    rule r = {0.9, 0.8, 0.02, 1.3, 20, run & 1}, rows[ROWS];
    cairn_sample_probs_args a;
    double worst = 0.0;
    bool done, masked = run & 2, apart = run & 4;
    for (int i = 0; i < ROWS; i++) {
        for (int j = 0; j < N; j++) logits[i][j] = (float)(unit() * 8 - 4);
        for (int j = 0; j < PAST; j++) history[i][j] = below(N + 1) - 1;
        for (int j = 0; j < WORDS; j++) mask[i][j] = (uint32_t)random_next(&seed) | 1u << below(18);
        rows[i] = r;
        if (!apart) continue;
        rows[i].temperature = i ? 0.3 + unit() : 0, rows[i].top_p = i & 1 ? 1 : 0.5 + unit() / 2;
        rows[i].min_p = i & 2 ? 0 : unit() / 10, rows[i].penalty = 0.5 + unit();
        rows[i].top_k = below(3) * 7;
        if (i == 1) rows[i].min_p = 1;
    }
    args_of(&r, &a);
    for (int i = 0; i < ROWS; i++) {
        t[i] = (float)rows[i].temperature, tp[i] = (float)rows[i].top_p, mp[i] = (float)rows[i].min_p;
        pen[i] = (float)rows[i].penalty, tk[i] = rows[i].top_k;
        if (apart && i == 1) mp[i] = 2.5f; /* as 1 */
    }
    a.logits = tensor3(CAIRN_F32, ROWS, N, -1, logits), a.probs = tensor3(CAIRN_F32, ROWS, N, -1, NULL);
    a.history = tensor3(CAIRN_I32, ROWS, PAST, -1, history);
    if (masked) a.mask = tensor3(CAIRN_I32, ROWS, WORDS, -1, mask);
    if (apart) {
        a.temperatures = tensor3(CAIRN_F32, ROWS, -1, -1, t), a.top_ps = tensor3(CAIRN_F32, ROWS, -1, -1, tp);
        a.min_ps = tensor3(CAIRN_F32, ROWS, -1, -1, mp), a.penalties = tensor3(CAIRN_F32, ROWS, -1, -1, pen);
        a.top_ks = tensor3(CAIRN_I32, ROWS, -1, -1, tk);
    }
    done = !cairn_sample_probs(rt, &a) && !cairn_tensor_read(rt, a.probs, got, sizeof got);
    for (int i = 0; i < ROWS && done; i++) {
        double want[64];
        expect(&rows[i], logits[i], N, masked ? mask[i] : NULL, history[i], PAST, want);
        for (int j = 0; j < N; j++)
            if (!(fabs(want[j] - (double)got[i][j]) <= worst)) worst = fabs(want[j] - (double)got[i][j]);
    }
    tap_ok(done && worst < 2e-6, "%s: sample_probs, rows %d: %.2g from a loop in double", where, run, worst);
}

static void test_odd_rows(void) {
    float rows[3][4] = {{-INFINITY, -INFINITY, -INFINITY, -INFINITY}, {NAN, 1, INFINITY, 2},
                        {NAN, 0, NAN, -INFINITY}}, got[3][4];
    rule r = {1, 0.9, 0.1, 1, 3, 0};
    cairn_sample_probs_args a;
    bool fine;
    args_of(&r, &a);
    a.logits = tensor3(CAIRN_F32, 3, 4, -1, rows), a.probs = tensor3(CAIRN_F32, 3, 4, -1, NULL);
    fine = !cairn_sample_probs(rt, &a) && !cairn_tensor_read(rt, a.probs, got, sizeof got);
    tap_ok(fine && got[0][0] == 1 && got[0][3] == 0 && got[1][2] == 1 && got[1][0] == 0 &&
               got[2][1] == 1 && got[2][0] == 0,
           "%s: sample_probs of rows without a finite best, and with NaN, is one at what is drawn", where);
}

/* ---- verify_chain ---- */

enum { V = 6, MOST = 3 };
typedef struct chain { int sequences, count; cairn_verify_chain_args a; } chain;

static void spread(float *p, int n) { /* some zeros */
    double x[V], sum = 0.0;
    for (int i = 0; i < n; i++) sum += x[i] = below(4) ? unit() : 0.0;
    if (sum == 0.0) sum = x[below(n)] = 1.0;
    for (int i = 0; i < n; i++) p[i] = (float)(x[i] / sum);
}

static int pick(const float *p, int n) {
    double u = unit(), sum = 0.0;
    int last = 0;
    for (int i = 0; i < n; i++) if (p[i] > 0) { last = i; if ((sum += (double)p[i]) > u) return i; }
    return last;
}

/* The call on plain arrays; outputs [sequences, count + 1], [sequences], [sequences]. */
static cairn_status verify(int sequences, int count, const float *target, const float *q,
                           const int32_t *drafts, const int64_t *seeds, const int32_t *positions,
                           int32_t *tokens, int32_t *accepted, int32_t *bonus) {
    cairn_verify_chain_args a;
    cairn_status status;
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a;
    a.target = tensor3(CAIRN_F32, sequences, count + 1, V, target);
    a.drafts = tensor3(CAIRN_I32, sequences, count, -1, drafts);
    if (q) a.draft_probs = tensor3(CAIRN_F32, sequences, count, V, q);
    a.seeds = tensor3(CAIRN_I64, sequences, -1, -1, seeds);
    a.positions = tensor3(CAIRN_I32, sequences, -1, -1, positions);
    a.tokens = tensor3(CAIRN_I32, sequences, count + 1, -1, NULL);
    a.accepted = tensor3(CAIRN_I32, sequences, -1, -1, NULL);
    a.bonus = tensor3(CAIRN_I32, sequences, -1, -1, NULL);
    status = cairn_verify_chain(rt, &a);
    if (!status) status = cairn_sync(rt); /* faults that the device saw */
    cairn_tensor_read(rt, a.tokens, tokens, (size_t)(sequences * (count + 1)) * 4);
    cairn_tensor_read(rt, a.accepted, accepted, (size_t)sequences * 4);
    cairn_tensor_read(rt, a.bonus, bonus, (size_t)sequences * 4);
    cairn_tensor_free(rt, (cairn_tensor *)a.target), cairn_tensor_free(rt, (cairn_tensor *)a.drafts);
    cairn_tensor_free(rt, (cairn_tensor *)a.draft_probs), cairn_tensor_free(rt, (cairn_tensor *)a.seeds);
    cairn_tensor_free(rt, (cairn_tensor *)a.positions), cairn_tensor_free(rt, a.tokens);
    cairn_tensor_free(rt, a.accepted), cairn_tensor_free(rt, a.bonus);
    return status;
}

static double word(int64_t of, int64_t position, int which) {
    uint32_t key[2], counter[4] = {0, 0, 0, 0}, words[4];
    key[0] = (uint32_t)of, key[1] = (uint32_t)((uint64_t)of >> 32), counter[0] = (uint32_t)position;
    sample_philox(counter, key, words);
    return (double)(words[which] >> 8) * 0x1p-24;
}

/* One sequence by the formula. Returns false where the draw is too near an edge to say. */
static bool expect_chain(int count, const float *target, const float *q, const int32_t *drafts,
                         int64_t key, int32_t position, int *accepted, int *bonus) {
    double rest[V], sum = 0.0, at = 0.0, u;
    int n = 0, none = -1;
    for (; n < count; n++) {
        double mine = q ? (double)q[n * V + drafts[n]] : 1.0;
        if (!((double)(float)(word(key, position + n, 1) * mine) < (double)target[n * V + drafts[n]])) break;
    }
    for (int i = 0; i < V; i++) {
        double mine = n == count ? 0.0 : q ? (double)q[n * V + i] : i == drafts[n] ? 1.0 : 0.0;
        double over = (double)target[n * V + i] - mine;
        sum += rest[i] = over > 0 ? over : 0;
    }
    *accepted = n, *bonus = none, u = word(key, position + n, 0) * sum;
    for (int i = 0; i < V; i++) {
        if (fabs((at += rest[i]) - u) < 1e-6) return false;
        if (*bonus < 0 && at > u) *bonus = i;
    }
    return sum > 1e-4;
}

static void test_loop(int count, bool with) {
    enum { S = 60 };
    static float target[S * (MOST + 1) * V], q[S * MOST * V + 1];
    int32_t drafts[S * MOST + 1], tokens[S * (MOST + 1)], accepted[S], bonus[S], positions[S];
    int64_t seeds[S];
    int right = 0, asked = 0;
    for (int i = 0; i < S * (count + 1); i++) spread(target + i * V, V);
    for (int i = 0; i < S * count; i++) spread(q + i * V, V), drafts[i] = below(V);
    for (int i = 0; i < S; i++) seeds[i] = (int64_t)(random_next(&seed) >> 1), positions[i] = below(9999);
    verify(S, count, target, with ? q : NULL, drafts, seeds, positions, tokens, accepted, bonus);
    for (int s = 0; s < S; s++) {
        int n, last;
        bool same;
        if (!expect_chain(count, target + s * (count + 1) * V, with ? q + s * count * V : NULL,
                          drafts + s * count, seeds[s], positions[s], &n, &last)) continue;
        asked++;
        same = accepted[s] == n && bonus[s] == last;
        for (int i = 0; i <= count; i++)
            same = same && tokens[s * (count + 1) + i] == (i < n ? drafts[s * count + i] : i == n ? last : -1);
        right += same;
    }
    tap_ok(right == asked && asked > S / 2, "%s: verify_chain of %d drafts %s: %d of %d as by a loop", where,
           count, with ? "with probabilities" : "of one", right, asked);
}

/* Tokens of many sequences, drafted by q, fall as the target says; at i those that got there. */
static void test_distribution(int count, bool with, int calls) {
    enum { S = 500 };
    static float target[S * (MOST + 1) * V], q[S * MOST * V + 1];
    int32_t drafts[S * MOST + 1], tokens[S * (MOST + 1)], accepted[S], bonus[S], positions[S];
    int64_t seeds[S];
    float p[(MOST + 1) * V], d[MOST * V];
    double seen[MOST + 1][V], total[MOST + 1];
    const uint64_t key = random_next(&seed) >> 1;
    bool fine = true;
    memset(seen, 0, sizeof seen), memset(total, 0, sizeof total);
    for (int i = 0; i <= count; i++) spread(p + i * V, V);
    for (int i = 0; i < count; i++) spread(d + i * V, V);
    for (int s = 0; s < S; s++) {
        memcpy(target + s * (count + 1) * V, p, (size_t)((count + 1) * V) * sizeof *p);
        memcpy(q + s * count * V, d, (size_t)(count * V) * sizeof *d);
    }
    for (int call = 0; call < calls; call++) {
        for (int i = 0; i < S * count; i++) drafts[i] = with ? pick(d + i % count * V, V) : i % count % V;
        for (int s = 0; s < S; s++) seeds[s] = (int64_t)key, positions[s] = (call * S + s) * (MOST + 1);
        verify(S, count, target, with ? q : NULL, drafts, seeds, positions, tokens, accepted, bonus);
        for (int s = 0; s < S; s++)
            for (int i = 0; i <= accepted[s] && i <= count; i++)
                seen[i][tokens[s * (count + 1) + i]]++, total[i]++;
    }
    for (int i = 0; i <= count; i++) {
        double chi = 0.0, few_want = 0.0, few_seen = 0.0; /* few: of tokens expected less than five times */
        int freedom = -1;
        for (int t = 0; t < V && total[i] > 200; t++) {
            const double want = (double)p[i * V + t] * total[i], off = seen[i][t] - want;
            if (want <= 0.0) fine = fine && !seen[i][t];
            else if (want < 5.0) few_want += want, few_seen += seen[i][t];
            else chi += off * off / want, freedom++;
        }
        if (few_want >= 5.0) chi += (few_seen - few_want) * (few_seen - few_want) / few_want, freedom++;
        else fine = fine && few_seen < few_want + 5.0 * sqrt(few_want) + 5.0;
        if (freedom < 1) continue;
        fine = fine && chi < freedom + 4.5 * sqrt(2.0 * freedom) + 9.0; /* beyond p = 1e-4 */
        tap_note("at %d of %d: chi-square %.1f with %d degrees of freedom", i, count, chi, freedom);
    }
    tap_ok(fine, "%s: verify_chain of %d drafts %s says what the target alone says", where, count,
           with ? "by any drafter" : "of one");
}

static void test_hostile(void) {
    static const int32_t wrong[] = {-1, V, INT32_MIN, INT32_MAX};
    float target[2 * 3 * V], none[2 * 3 * V];
    int32_t drafts[4] = {0, 1, 0, 1}, tokens[6], accepted[2], bonus[2], positions[2] = {-1, INT32_MAX};
    int64_t seeds[2] = {0, -1};
    int good = 0;
    memset(none, 0, sizeof none);
    for (int i = 0; i < 6 * V; i++) target[i] = i / V < 2 ? (i % V == 0) : (float)(i % V == 3);
    for (size_t w = 0; w < BASE_COUNT(wrong); w++) {
        cairn_status status;
        drafts[1] = wrong[w];
        status = verify(2, 2, target, NULL, drafts, seeds, positions, tokens, accepted, bonus);
        good += status == CAIRN_BAD_DATA && accepted[0] == 1 && tokens[0] == 0 && bonus[0] == 0 &&
                tokens[1] == 0 && tokens[2] == -1 && accepted[1] == 0 && tokens[3] == 3;
    }
    tap_ok(good == (int)BASE_COUNT(wrong), "%s: a draft that is no id ends its row, BAD_DATA", where);
    drafts[1] = 1;
    none[4] = NAN, none[2] = -INFINITY, none[3 * V + 5] = -1.0f;
    verify(2, 2, none, none + V, drafts, seeds, positions, tokens, accepted, bonus);
    tap_ok(!accepted[0] && !accepted[1] && bonus[0] == 0 && bonus[1] == 0 && tokens[1] == -1,
           "%s: where nothing is left the bonus is the target's best", where);
}

static void test_backend(cairn_runtime *opened, const char *name) {
    bool emulated = is_emulated(opened->config.backend);
    rt = opened, where = name;
    test_goldens();
    for (int run = 0; run < 8; run++) test_rows(run);
    test_odd_rows();
    for (int count = 0; count <= MOST; count++) test_loop(count, true);
    test_loop(2, false);
    test_distribution(2, true, emulated ? 1 : 300);
    test_distribution(1, false, emulated ? 1 : 100);
    test_distribution(0, false, emulated ? 1 : 100);
    if (!emulated) test_distribution(3, true, 100);
    test_hostile();
}

int main(void) {
    seed = random_seed();
    run_on_backends(NULL, "sample_probs", test_backend);
    return tap_done();
}
