/* sample: the random numbers by known answers, the cuts against sorting, the draw against the
 * distribution, and logits that no model should make. */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "random.h"
#include "tap.h"

static uint64_t random_state;
static uint32_t rnd(uint32_t below) {
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(random_state >> 33) % below;
}

static void defaults(sample_params *p) {
    memset(p, 0, sizeof *p);
    p->temperature = 1.0f;
    p->top_p = 1.0f;
    p->repetition_penalty = 1.0f;
}

static void test_philox(void) {
    /* the known answers that come with Random123 */
    static const uint32_t keys[3][2] = {{0, 0}, {~0u, ~0u}, {0xa4093822u, 0x299f31d0u}};
    static const uint32_t counters[3][4] = {
        {0, 0, 0, 0}, {~0u, ~0u, ~0u, ~0u}, {0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}};
    static const uint32_t answers[3][4] = {
        {0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u},
        {0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu},
        {0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}};
    int good = 0;
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        sample_philox(counters[i], keys[i], out);
        good += !memcmp(out, answers[i], sizeof out);
    }
    tap_ok(good == 3, "%d of 3 known answers of Philox4x32-10", good);
    tap_ok(sample_uniform(0, 0) == (float)(0x6627e8d5u >> 8) / 16777216.0f &&
           sample_uniform(1, 0) != sample_uniform(0, 0) &&
           sample_uniform((uint64_t)1 << 40, 0) != sample_uniform(0, 0) &&
           sample_uniform(0, 1) != sample_uniform(0, 0), "seed, its high half and position count");
}

static int descending(const void *a, const void *b) {
    float x = ((const sample_candidate *)a)->score, y = ((const sample_candidate *)b)->score;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* The lowest kept score by sorting: the weight of strictly better ones is below the limit. */
static float sorted_threshold(sample_candidate *c, int count, double limit) {
    double better = 0.0;
    float kept = 0.0f;
    qsort(c, (size_t)count, sizeof *c, descending);
    for (int i = 0; i < count;) {
        int j = i;
        if (better >= limit) break;
        kept = c[i].score;
        for (; j < count && c[j].score == kept; j++) better += (double)c[j].weight;
        i = j;
    }
    return kept;
}

static void test_thresholds(void) {
    enum { MOST = 3000 };
    static sample_candidate a[MOST], b[MOST];
    int good = 0, runs = 2000;
    for (int run = 0; run < runs; run++) {
        int count = (int)rnd(run % 10 ? 60 : MOST) + 1, levels = (int)rnd(40) + 1;
        double total = 0.0, limit;
        for (int i = 0; i < count; i++) {
            a[i].score = -(float)rnd(run % 3 ? (uint32_t)levels : 1u << 20) / 7.0f;
            a[i].weight = run % 2 ? 1.0f : (float)(rnd(64) + 1); /* sums are exact */
            total += (double)a[i].weight;
        }
        if (run % 7 == 0) qsort(a, (size_t)count, sizeof *a, descending);
        limit = (double)(rnd((uint32_t)total) + 1);
        memcpy(b, a, sizeof a);
        good += sample_threshold(a, count, limit) == sorted_threshold(b, count, limit);
    }
    tap_ok(good == runs, "%d of %d thresholds equal those of sorting, ties and all", good, runs);
}

static void test_top_p(void) {
    /* probabilities .5 .25 .125 .125; how many top_p keeps */
    static const struct { float p; int kept; } rows[] = {
        {0.4f, 1}, {0.5f, 1}, {0.500001f, 2}, {0.75f, 2}, {0.76f, 4}, {1.0f, 4}};
    const float logits[4] = {0.0f, -0.69314718f, -1.38629436f, -1.38629436f};
    float scratch[64];
    int good = 0;
    for (size_t i = 0; i < BASE_COUNT(rows); i++) {
        sample_params p;
        bool seen[4] = {false, false, false, false};
        int kept = 0;
        defaults(&p);
        p.top_p = rows[i].p;
        for (int at = 0; at < 2000; at++) seen[sample_token(&p, logits, 4, at, scratch)] = true;
        for (int t = 0; t < 4; t++) kept += seen[t];
        if (kept == rows[i].kept) good++;
        else tap_note("top_p %g keeps %d", (double)rows[i].p, kept);
    }
    tap_ok(good == (int)BASE_COUNT(rows), "top_p is the smallest set that reaches it, ties kept");
}

/* Draws against probabilities p [n] that the parameters should give. */
static bool chi_square(const sample_params *params, const float *logits, int n, const double *p) {
    enum { DRAWS = 200000 };
    float scratch[64];
    int counts[16] = {0}, freedom = -1;
    double chi = 0.0, limit;
    for (int i = 0; i < DRAWS; i++) counts[sample_token(params, logits, n, i, scratch)]++;
    for (int i = 0; i < n; i++) {
        double expected = p[i] * DRAWS;
        if (p[i] <= 0.0 && counts[i]) return false;
        if (p[i] <= 0.0) continue;
        chi += (counts[i] - expected) * (counts[i] - expected) / expected;
        freedom++;
    }
    limit = freedom + 4.0 * sqrt(2.0 * freedom) + 6.0; /* far beyond p = 1e-4 */
    tap_note("chi-square %.2f with %d degrees of freedom", chi, freedom);
    return chi < limit;
}

static void test_distribution(void) {
    const double q[4] = {0.4, 0.3, 0.2, 0.1};
    double p[4];
    float logits[4];
    sample_params s;
    defaults(&s);
    s.seed = 77;
    for (int i = 0; i < 4; i++) logits[i] = (float)log(q[i]);
    tap_ok(chi_square(&s, logits, 4, q), "plain draws follow the softmax");
    s.temperature = 0.5f;
    for (int i = 0; i < 4; i++) p[i] = q[i] * q[i] / 0.3;
    tap_ok(chi_square(&s, logits, 4, p), "temperature 0.5 squares them");
    s.temperature = 1.0f, s.top_k = 3, s.top_p = 0.75f;
    p[0] = 4.0 / 7, p[1] = 3.0 / 7, p[2] = p[3] = 0.0;
    tap_ok(chi_square(&s, logits, 4, p), "top_k 3, then top_p 0.75 of what is left");
    s.top_p_first = true;
    p[0] = 4.0 / 9, p[1] = 3.0 / 9, p[2] = 2.0 / 9;
    tap_ok(chi_square(&s, logits, 4, p), "top_p 0.75 of all, then top_k 3");
    defaults(&s);
    s.seed = 78, s.min_p = 0.6f;
    p[0] = 4.0 / 7, p[1] = 3.0 / 7, p[2] = p[3] = 0.0;
    tap_ok(chi_square(&s, logits, 4, p), "min_p 0.6 of the best");
}

static void test_odd_logits(void) {
    float scratch[64], odd[5] = {NAN, -INFINITY, 2.0f, NAN, 2.0f};
    const float none[3] = {NAN, NAN, NAN}, lost[3] = {-INFINITY, -INFINITY, -INFINITY};
    const float inf[3] = {1.0f, INFINITY, INFINITY}, huge[3] = {-3e38f, 3e38f, 3e38f};
    sample_params p;
    bool good = true;
    defaults(&p);
    p.temperature = 0.0f;
    tap_ok(sample_token(&p, odd, 5, 0, scratch) == 2, "greedy: the lowest id among equals, no NaN");
    p.temperature = 1.0f;
    for (int mode = 0; mode < 4; mode++) {
        p.top_k = mode & 1 ? 1 : 0;
        p.top_p = mode & 2 ? 0.5f : 1.0f;
        for (int i = 0; i < 200; i++) {
            int32_t t = sample_token(&p, odd, 5, i, scratch);
            good = good && (t == 2 || t == 4);
        }
        good = good && sample_token(&p, none, 3, mode, scratch) == 0 &&
               sample_token(&p, lost, 3, mode, scratch) == 0 &&
               sample_token(&p, inf, 3, mode, scratch) == 1 &&
               sample_token(&p, huge, 3, mode, scratch) >= 1;
    }
    tap_ok(good, "NaN and -inf are never drawn; all of them: id 0; +inf wins");
    p.temperature = 1e-30f, p.top_k = 0, p.top_p = 1.0f;
    odd[2] = 1.999f;
    tap_ok(sample_token(&p, odd, 5, 3, scratch) == 4, "a tiny temperature is greedy");
}

static void test_penalty(void) {
    const int32_t sequence[6] = {1, 3, 1, 1, -5, 99};
    float logits[4] = {2.0f, 2.0f, -1.0f, -1.0f};
    uint8_t seen[1];
    sample_penalize(logits, 4, sequence, 6, 2.0f, seen);
    tap_ok(logits[0] == 2.0f && logits[1] == 1.0f && logits[2] == -1.0f && logits[3] == -2.0f,
           "the penalty divides positive and multiplies negative logits, each token once");
}

int main(void) {
    uint64_t seed = random_seed();
    random_state = seed;
    test_philox();
    test_thresholds();
    test_top_p();
    test_distribution();
    test_odd_logits();
    test_penalty();
    return tap_done();
}
