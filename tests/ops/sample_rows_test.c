/* sample by rows: rows with parameters of their own give what each gives alone, and logarithms of
 * probabilities are those of a loop in double precision. Under a mask: what a row gives is what the row without a mask gives whose forbidden logits are
 * -inf, whatever the cuts; the lowest allowed token where no allowed logit is above -inf. And rows of
 * which some have masks, as the engine asks for them; and rows of NaN.
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

enum { ROWS = 4 };

/* Masks of few, of half and of most tokens, of one token, and of none that has a finite logit. */
static void fill(float *x, uint32_t *mask, float *barred, int vocab) {
    int words = (vocab + 31) / 32;
    memset(mask, 0, (size_t)(ROWS * words) * 4);
    for (int r = 0; r < ROWS; r++) {
        int kind = below(5), only = below(vocab);
        for (int i = 0; i < vocab; i++) {
            bool may = kind == 0 ? !below(200) : kind == 1 ? below(2) != 0 : kind == 2 ? below(50) != 0
                                                                                       : i == only;
            float logit = (float)below(6000) / 1000.0f - 3.0f;
            int64_t at = (int64_t)r * vocab + i;
            if (kind == 4 && may) logit = below(2) ? -INFINITY : NAN;
            if (may) mask[r * words + i / 32] |= 1u << i % 32;
            x[at] = logit;
            barred[at] = may ? logit : -INFINITY;
        }
    }
}

static int32_t lowest(const uint32_t *mask, int vocab) {
    for (int i = 0; i < vocab; i++)
        if (mask[i / 32] >> i % 32 & 1) return i;
    return 0;
}

static cairn_tensor *tensor_of(cairn_type type, int64_t rows, int64_t columns, const void *data) {
    int64_t shape[2];
    cairn_tensor *t = NULL;
    shape[0] = rows, shape[1] = columns;
    cairn_tensor_new(rt, type, columns ? 2 : 1, shape, &t);
    if (data) cairn_tensor_write(rt, t, data, (size_t)(rows * (columns ? columns : 1)) * 4);
    return t;
}

static bool draw(cairn_sample_args *a, const cairn_tensor *logits, const cairn_tensor *mask,
                 int32_t *out) {
    a->logits = logits, a->mask = mask;
    return !cairn_sample(rt, a) && !cairn_tensor_read(rt, a->tokens, out, ROWS * 4);
}

static void test_op(int vocab, int top_k, float top_p, float temperature, float penalty) {
    int words = (vocab + 31) / 32;
    float *x = (float *)malloc((size_t)(ROWS * vocab) * 4);
    float *barred = (float *)malloc((size_t)(ROWS * vocab) * 4);
    uint32_t *mask = (uint32_t *)malloc((size_t)(ROWS * words) * 4);
    int32_t with[ROWS], without[ROWS], history[ROWS * 3];
    cairn_tensor *logits, *masked, *bits, *past;
    cairn_sample_args a;
    bool done;
    int right = 0;
    fill(x, mask, barred, vocab);
    for (int i = 0; i < ROWS * 3; i++) history[i] = below(vocab);
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a, a.top_k = top_k, a.top_p = top_p, a.temperature = temperature;
    a.repetition_penalty = penalty;
    logits = tensor_of(CAIRN_F32, ROWS, vocab, x), masked = tensor_of(CAIRN_F32, ROWS, vocab, barred);
    bits = tensor_of(CAIRN_I32, ROWS, words, mask), past = tensor_of(CAIRN_I32, ROWS, 3, history);
    a.tokens = tensor_of(CAIRN_I32, ROWS, 0, NULL);
    if (penalty != 1.0f) a.history = past;
    done = draw(&a, logits, bits, with) && draw(&a, masked, NULL, without);
    for (int r = 0; r < ROWS && done; r++) {
        int32_t want = without[r], least = lowest(mask + r * words, vocab);
        if (!(mask[r * words + want / 32] >> want % 32 & 1)) want = least;
        right += with[r] == want;
        if (with[r] != want) tap_note("row %d: %d, not %d", r, with[r], want);
    }
    tap_ok(done && right == ROWS, "sample on %s: %d logits, top_k %d, top_p %g, temperature %g%s: %d right: %s",
           where, vocab, top_k, (double)top_p, (double)temperature, penalty != 1 ? ", penalty" : "", right,
           cairn_last_error(rt));
    a.mask = past;
    tap_ok(cairn_sample(rt, &a) == CAIRN_INVALID_ARGUMENT && strstr(cairn_last_error(rt), "mask"),
           "a mask of another width: %s", cairn_last_error(rt));
    cairn_tensor_free(rt, logits), cairn_tensor_free(rt, masked), cairn_tensor_free(rt, bits);
    cairn_tensor_free(rt, past), cairn_tensor_free(rt, a.tokens);
    free(x), free(barred), free(mask);
}

static bool are_right(const float *logits, int vocab, int32_t token, const float *logprobs,
                      const int32_t *best, int count);

static bool are_of(const float *logits, int vocab, int32_t token, const cairn_logprob *given) {
    float logprobs[3];
    int32_t best[2] = {given[1].id, given[2].id};
    for (int i = 0; i < 3; i++) logprobs[i] = given[i].logprob;
    return given[0].id == token && are_right(logits, vocab, token, logprobs, best, 2);
}

/* The rows as the GPU draws them: got [rows]; best: of each row, as whoever made the logits knows it. */
static bool draw_there(sample_space *space, const float *x, int vocab, const sample_ask *const *asks, int rows,
                       const int32_t *best, int32_t *got) {
    static sample_rule host[64];
    cairn_tensor *logits = tensor_of(CAIRN_F32, rows, vocab, x), *tokens = tensor_of(CAIRN_I32, rows, 0, best);
    cairn_tensor *rules = tensor_of(CAIRN_I32, rows, 16, NULL);
    cairn_tensor *bits = tensor_of(CAIRN_I32, rows, (vocab + 31) / 32, NULL);
    const float *there = (const float *)tensor_data(logits);
    bool fine;
    sample_space_add_rules(space, rows, host, tensor_data(rules), (uint32_t *)tensor_data(bits));
    fine = !handles_enter(rt) &&
           !sample_rows_begin(rt, space, there, asks, rows, (int32_t *)tensor_data(tokens)) &&
           !cairn_tensor_read(rt, tokens, got, (size_t)rows * sizeof *got) &&
           !sample_rows_end(rt, space, there, asks, rows, got) && !handles_leave(rt, CAIRN_OK);
    cairn_tensor_free(rt, logits), cairn_tensor_free(rt, tokens);
    cairn_tensor_free(rt, rules), cairn_tensor_free(rt, bits);
    return fine;
}

/* Rows of all cuts, with and without masks, in one call of sample_rows, against each row drawn on the
 * host; of some logprobs are wanted. swaps: what four of the rows would say is not said. */
static void test_rows(int vocab, bool swaps) {
    enum { CALL = 16 };
    static const int32_t to[3] = {7, 11, 13};
    int32_t from[4], swapped = 0;
    const sample_swap swap = {from, to, 4, 3};
    cairn_logprob logprobs[CALL][3];
    int words = (vocab + 31) / 32, wrong = 0;
    float *x = (float *)malloc((size_t)(CALL * vocab) * 4);
    uint32_t *mask = (uint32_t *)malloc((size_t)(CALL * words) * 4);
    void *memory = malloc(sample_space_bytes(vocab));
    sample_ask asks[CALL];
    const sample_ask *all[CALL];
    int32_t best[CALL], want[CALL], got[CALL];
    sample_space space;
    memset(asks, 0, sizeof asks);
    for (int i = 0; i < CALL * vocab; i++) x[i] = (float)below(6000) / 1000.0f;
    for (int i = 0; i < CALL * words; i++) mask[i] = (uint32_t)random_next(&seed);
    sample_space_place(memory, vocab, &space);
    for (int r = 0; r < CALL; r++) {
        static const int top_k[] = {40, 0, 5};
        all[r] = &asks[r];
        asks[r].params.temperature = r % 2 ? 0.8f : 0.0f;
        asks[r].params.top_k = top_k[r % 3], asks[r].params.top_p = 1.0f;
        asks[r].params.repetition_penalty = 1.0f, asks[r].params.seed = (uint64_t)r;
        asks[r].params.min_p = r == 13 ? 0.05f : 0.0f, asks[r].params.top_p_first = r == 11;
        if (r == 9) asks[r].params.top_k = 300;
        if (r == 7 || r == 9 || r == 11) asks[r].params.top_p = 0.7f;
        asks[r].position = r;
        asks[r].mask = r % 4 ? mask + (size_t)r * (size_t)words : NULL;
        sample_row_host(&space, x + (int64_t)r * vocab, all, r, want);
        best[r] = sample_argmax(x + (int64_t)r * vocab, vocab);
        if (r < 4) from[r] = want[r];
    }
    for (int r = 0; r < CALL && swaps; r++) {
        const int32_t plain = want[r];
        asks[r].swap = &swap;
        sample_row_host(&space, x + (int64_t)r * vocab, all, r, want);
        swapped += want[r] != plain;
        if (r >= 4 ? want[r] != plain && plain != from[0] && plain != from[1] && plain != from[2] &&
                         plain != from[3]
                   : want[r] != plain && want[r] != 7 && want[r] != 11 && want[r] != 13) wrong++;
    }
    if (swaps && !swapped) wrong++, tap_note("nothing was swapped");
    for (int r = 0; r < CALL; r += 2) {
        asks[r].best = 2, asks[r].logprobs = logprobs[r];
        sample_row_host(&space, x + (int64_t)r * vocab, all, r, want);
        wrong += !are_of(x + (int64_t)r * vocab, vocab, want[r], logprobs[r]);
        memset(logprobs[r], 0, sizeof logprobs[r]);
    }
    if (rt->device.cuda) {
        wrong += !draw_there(&space, x, vocab, all, CALL, best, got);
        for (int r = 0; r < CALL && !wrong; r++)
            if (got[r] != want[r]) wrong++, tap_note("row %d: %d, not %d", r, got[r], want[r]);
        for (int r = 0; r < CALL && !wrong; r += 2)
            wrong += !are_of(x + (int64_t)r * vocab, vocab, want[r], logprobs[r]);
    }
    for (int r = 0; r < CALL; r++)
        wrong += asks[r].mask && !(asks[r].mask[want[r] / 32] >> want[r] % 32 & 1);
    tap_ok(!wrong, "rows with and without masks%s on %s: %d wrong: %s", swaps ? ", swapped" : "", where, wrong,
           cairn_last_error(rt));
    free(x), free(mask), free(memory);
}

/* Rows of NaN, by every kernel and the host: alone, beside one -inf or one number, and, where a mask lets
 * even ids from 2 on through, beside numbers that it forbids. A row with rules has no token where no logit
 * that may be drawn is a number; the op gives the lowest that may be. */
static void test_no_number(int vocab) {
    enum { KINDS = 5, PLACES = 4, CALL = KINDS * PLACES };
    static const char *const places[] = {"few", "wide", "host", "greedy"};
    const int words = (vocab + 31) / 32, at = 2 + 2 * below(vocab / 2 - 1);
    const int32_t want[KINDS] = {CAIRN_SAMPLE_NO_NUMBER, 0, at, CAIRN_SAMPLE_NO_NUMBER, 2}, past = 3;
    float *x = (float *)malloc((size_t)(CALL * vocab) * 4);
    uint32_t *mask = (uint32_t *)malloc((size_t)(CALL * words) * 4);
    void *memory = malloc(sample_space_bytes(vocab));
    cairn_logprob logprobs[3];
    sample_ask asks[CALL];
    const sample_ask *all[CALL];
    int32_t best[CALL] = {0}, got[CALL], plain[CALL];
    sample_space space;
    cairn_tensor *logits, *bits;
    cairn_sample_args a;
    int wrong = 0;
    memset(asks, 0, sizeof asks);
    sample_space_place(memory, vocab, &space);
    for (int r = 0; r < CALL; r++) {
        const int kind = r % KINDS, place = r / KINDS;
        for (int i = 0; i < vocab; i++) x[r * vocab + i] = kind >= 3 && i % 2 ? (float)i : NAN;
        if (kind == 1 || kind == 4) x[r * vocab + at] = -INFINITY;
        if (kind == 2) x[r * vocab + at] = -5.0f;
        memset(mask + r * words, kind < 3 ? 0xff : 0x55, (size_t)words * 4);
        if (kind >= 3) mask[r * words] &= ~1u;
        all[r] = &asks[r];
        asks[r].params.temperature = place < 3 ? 0.8f : 0.0f, asks[r].params.top_k = place ? 0 : 20;
        asks[r].params.top_p = place == 1 ? 0.9f : 1.0f, asks[r].params.repetition_penalty = place == 2 ? 1.5f : 1.0f;
        if (place == 2) asks[r].history = &past, asks[r].history_count = 1;
        if (kind >= 3 || place == 3) asks[r].mask = mask + r * words;
        if (kind == 0) asks[r].logprobs = logprobs, asks[r].best = 2;
        if (!rt->device.cuda) sample_row_host(&space, x + (int64_t)r * vocab, all, r, got);
    }
    if (rt->device.cuda) wrong += !draw_there(&space, x, vocab, all, CALL, best, got);
    for (int r = 0; r < CALL; r++)
        if (got[r] != want[r % KINDS])
            wrong++, tap_note("%s, kind %d: %d, not %d", places[r / KINDS], r % KINDS, got[r], want[r % KINDS]);
    logits = tensor_of(CAIRN_F32, CALL, vocab, x), bits = tensor_of(CAIRN_I32, CALL, words, mask);
    for (int place = 0; place < PLACES; place++) {
        memset(&a, 0, sizeof a);
        a.struct_size = sizeof a, a.logits = logits, a.mask = bits, a.tokens = tensor_of(CAIRN_I32, CALL, 0, NULL);
        a.temperature = place < 3 ? 0.8f : 0.0f, a.top_k = place ? 0 : 20, a.top_p = place == 1 ? 0.9f : 1.0f;
        wrong += cairn_sample(rt, &a) || cairn_tensor_read(rt, a.tokens, plain, sizeof plain);
        for (int r = 0; r < CALL; r++)
            if (plain[r] != (want[r % KINDS] >= 0 ? want[r % KINDS] : r % KINDS ? 2 : 0)) wrong++;
        cairn_tensor_free(rt, a.tokens);
    }
    tap_ok(!wrong, "rows of NaN on %s, %d logits: %d wrong: %s", where, vocab, wrong, cairn_last_error(rt));
    cairn_tensor_free(rt, logits), cairn_tensor_free(rt, bits);
    free(x), free(mask), free(memory);
}

/* ---- parameters of rows, logprobs ------------------------------------------------------------ */

static const float *sorted_logits;
static int by_logit(const void *a, const void *b) {
    int x = *(const int *)a, y = *(const int *)b;
    float p = sorted_logits[x], q = sorted_logits[y];
    return p > q ? -1 : p < q ? 1 : x - y;
}

/* Whether row r's logprobs are those of the ids, the best in order. */
static bool are_right(const float *logits, int vocab, int32_t token, const float *logprobs,
                      const int32_t *best, int count) {
    int *order = (int *)malloc((size_t)vocab * sizeof *order);
    double sum = 0, top;
    bool right = true;
    for (int i = 0; i < vocab; i++) order[i] = i;
    sorted_logits = logits;
    qsort(order, (size_t)vocab, sizeof *order, by_logit);
    top = (double)logits[order[0]];
    for (int i = 0; i < vocab; i++) sum += exp((double)logits[i] - top);
    for (int n = 0; n <= count; n++) {
        int id = n ? order[n - 1] : token;
        double want = (double)logits[id] - top - log(sum);
        if (n && best[n - 1] != id) right = false;
        if (isinf(want) ? logprobs[n] != -INFINITY : !(fabs((double)logprobs[n] - want) < 1e-5 * (1 - want)))
            right = false;
    }
    free(order);
    return right;
}

static void test_by_row(int vocab, int count) {
    float *x = (float *)malloc((size_t)(ROWS * vocab) * 4), f[4][ROWS], logprobs[ROWS][33];
    int32_t k[ROWS], with[ROWS], alone[ROWS], best[ROWS][32], history[ROWS * 3], positions[ROWS];
    cairn_tensor *logits, *past, *at, *own[4], *ks;
    cairn_sample_args a, one;
    bool done;
    int wrong = 0;
    for (int i = 0; i < ROWS * vocab; i++) x[i] = below(30) ? (float)below(500) / 100.0f : -INFINITY;
    for (int i = 0; i < ROWS * 3; i++) history[i] = below(vocab);
    for (int r = 0; r < ROWS; r++) {
        f[0][r] = below(4) ? 0.5f + (float)below(10) / 10.0f : below(2) ? 0.0f : NAN;
        f[1][r] = below(2) ? 0.9f : 1.0f, f[2][r] = below(2) ? 0.0f : 0.05f;
        f[3][r] = below(2) ? 1.0f : 1.5f, k[r] = below(2) ? 0 : 1 + below(60), positions[r] = r;
    }
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a;
    logits = tensor_of(CAIRN_F32, ROWS, vocab, x), past = tensor_of(CAIRN_I32, ROWS, 3, history);
    at = tensor_of(CAIRN_I32, ROWS, 0, positions), ks = tensor_of(CAIRN_I32, ROWS, 0, k);
    for (int i = 0; i < 4; i++) own[i] = tensor_of(CAIRN_F32, ROWS, 0, f[i]);
    a.history = past, a.positions = at, a.tokens = tensor_of(CAIRN_I32, ROWS, 0, NULL);
    one = a;
    a.temperatures = own[0], a.top_ps = own[1], a.min_ps = own[2], a.penalties = own[3], a.top_ks = ks;
    a.logprobs = tensor_of(CAIRN_F32, ROWS, 1 + count, NULL);
    a.best = count ? tensor_of(CAIRN_I32, ROWS, count, NULL) : NULL;
    done = draw(&a, logits, NULL, with) &&
           !cairn_tensor_read(rt, a.logprobs, logprobs, (size_t)(ROWS * (1 + count)) * 4) &&
           (!count || !cairn_tensor_read(rt, a.best, best, (size_t)(ROWS * count) * 4));
    for (int r = 0; r < ROWS && done; r++) {
        one.temperature = f[0][r] > 0 ? f[0][r] : 0, one.top_p = f[1][r], one.min_p = f[2][r];
        one.repetition_penalty = f[3][r], one.top_k = k[r];
        done = draw(&one, logits, NULL, alone);
        if (alone[r] != with[r]) wrong++, tap_note("row %d: %d, alone %d", r, with[r], alone[r]);
        wrong += !are_right(x + (int64_t)r * vocab, vocab, with[r], &logprobs[0][0] + r * (1 + count),
                            &best[0][0] + r * count, count);
    }
    tap_ok(done && !wrong, "rows of their own parameters on %s, %d best of %d: %d wrong: %s", where, count,
           vocab, wrong, done ? "" : cairn_last_error(rt));
    a.logprobs = past;
    tap_ok(cairn_sample(rt, &a) == CAIRN_INVALID_ARGUMENT, "logprobs of another type");
    cairn_tensor_free(rt, logits), cairn_tensor_free(rt, past), cairn_tensor_free(rt, at);
    cairn_tensor_free(rt, ks), cairn_tensor_free(rt, a.tokens), cairn_tensor_free(rt, a.best);
    for (int i = 0; i < 4; i++) cairn_tensor_free(rt, own[i]);
    free(x);
}

static void test_backend(cairn_runtime *opened, const char *name) {
    rt = opened, where = name;
    for (int i = 0; i < 3; i++) {
        int vocab = 100 + below(9000);
        test_op(vocab, 40, 1.0f, 0.0f, 1.0f);
        test_op(vocab, 1 + below(128), 0.9f, 1.2f, i % 2 ? 1.3f : 1.0f);
        test_op(vocab, 0, 0.8f, 0.7f, i % 2 ? 1.0f : 1.3f);
    }
    test_op(16384, 50, 0.95f, 1.0f, 1.0f);
    test_rows(5000, false);
    test_rows(3000, true);
    test_no_number(96);
    test_no_number(9000 + below(3000));
    test_by_row(300 + below(3000), 5);
    test_by_row(40, 32);
    test_by_row(3000, 0);
}

int main(void) {
    seed = random_seed();
    run_on_backends(NULL, "sample_rows", test_backend);
    return tap_done();
}
