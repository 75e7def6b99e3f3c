/* sample, where few tokens can be drawn and where any can, against a sort-free double-precision rule:
 * rows whose ties, masks, spreads and NaNs make a quick sampler miss a token, at every size at which
 * rows are split.
 * emulated: asan race */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "random.h"
#include "tap.h"
#include "backends.h"
#include "turns.h"

static uint64_t seed;
static cairn_runtime *rt;
static const char *where;
static bool small; /* kernels are emulated */

static int between(int low, int high) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return low + (int)((seed >> 33) % (uint64_t)(high - low + 1));
}
static float normal(void) {
    float sum = 0;
    for (int i = 0; i < 6; i++) sum += (float)between(0, 1 << 20) / 1048576.0f - 0.5f;
    return sum * 1.4142f;
}

typedef struct setup {
    int rows, vocab, top_k, order, history;
    float temperature, top_p, min_p, penalty;
    const float *logits; /* [rows, vocab] */
    const int32_t *past; /* [rows, history] */
    const int64_t *seeds;
    const int32_t *positions;
} setup;

/* The scores that the contract's f32 steps give. */
static void scores_of(const setup *s, int r, double *out) {
    float top = -INFINITY;
    float *row = (float *)malloc((size_t)s->vocab * sizeof *row);
    memcpy(row, s->logits + (int64_t)r * s->vocab, (size_t)s->vocab * sizeof *row);
    for (int i = 0; i < s->history; i++) {
        int id = s->past[r * s->history + i];
        bool again = false;
        for (int j = 0; j < i; j++) again = again || s->past[r * s->history + j] == id;
        if (id < 0 || id >= s->vocab || again) continue;
        row[id] = row[id] > 0 ? row[id] / s->penalty : row[id] * s->penalty;
    }
    for (int i = 0; i < s->vocab; i++) if (row[i] > top) top = row[i];
    for (int i = 0; i < s->vocab; i++) {
        float distance = row[i] - top;
        out[i] = isnan(row[i]) ? -(double)INFINITY : (double)(distance / s->temperature);
    }
    free(row);
}

typedef struct item { double score; int id; } item;

static int descending(const void *a, const void *b) {
    double x = ((const item *)a)->score, y = ((const item *)b)->score;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* How many of the sorted items stay: a token does while the strictly better ones weigh less than
 * `limit`, each 1 or its probability. *close: a sum lies so near the limit that rounding decides. */
static int keep(const item *items, int count, double limit, bool mass, bool *close) {
    double better = 0;
    int kept = 0;
    while (kept < count && better < limit) {
        double group = items[kept].score;
        for (; kept < count && items[kept].score == group; kept++) better += mass ? exp(group) : 1;
        if (mass && fabs(better - limit) < 2e-6 * (1 + limit)) *close = true;
    }
    return kept;
}

/* Whether `token` is what row r may give: kept, and where u falls but for a hair. */
static bool may_be(const setup *s, int r, int token, const double *score, item *items) {
    double total = 0, before = 0, own = 0, u;
    int count = 0, all, most = s->vocab;
    bool close = false;
    for (int i = 0; i < s->vocab; i++)
        if (score[i] > -(double)INFINITY) items[count].score = score[i], items[count++].id = i;
    if (!count) return token == 0;
    qsort(items, (size_t)count, sizeof *items, descending);
    all = count;
    if (s->top_k > 0) count = keep(items, count, s->top_k, false, &close);
    if (s->top_p < 1) {
        if (s->order == CAIRN_ORDER_TOP_P_FIRST) most = count, count = all;
        for (int i = 0; i < count; i++) total += exp(items[i].score);
        count = keep(items, count, (double)s->top_p * total, true, &close);
        if (count > most) count = most;
    }
    if (s->min_p > 0)
        while (count && items[count - 1].score < log((double)s->min_p) + 1e-6) {
            close = close || items[count - 1].score > log((double)s->min_p) - 1e-6;
            count--;
        }
    if (close) return true; /* either is right; the caller counts on few of these */
    total = 0;
    for (int i = 0; i < count; i++) {
        total += exp(items[i].score);
        if (items[i].id < token) before += exp(items[i].score);
        if (items[i].id == token) own = exp(items[i].score);
    }
    u = (double)sample_uniform((uint64_t)s->seeds[r], s->positions[r]) * total;
    return own > 0 && u >= before - 2e-6 * total && u <= before + own + 2e-6 * total;
}

/* ---- rows -------------------------------------------------------------------------------------*/

enum { PLAIN, TIES, EQUAL, MASKED, WIDE, NARROW, ODD, CLUSTERED, KINDS };
static const char *const kinds[KINDS] = {"normal", "ties", "all equal", "masked", "wide", "narrow",
                                         "NaN and infinities", "the best side by side"};

static void fill_row(float *row, int vocab, int kind) {
    int some = between(0, vocab - 1);
    for (int i = 0; i < vocab; i++) {
        float x = normal();
        switch (kind) {
        case TIES: x = (float)between(0, 6); break;
        case EQUAL: x = 1.25f; break;
        case MASKED: x = between(0, 40) ? -INFINITY : x; break;
        case WIDE: x *= 3e4f; break;
        case NARROW: x = 700.0f + x * 1e-4f; break; /* scores a few units in the last place apart */
        case ODD: x = between(0, 30) ? x : between(0, 1) ? NAN : -INFINITY; break;
        case CLUSTERED: x += i >= some && i < some + 70 ? 9 : 0; break;
        default: break;
        }
        row[i] = x;
    }
}

static void test_rows_as(int kind, int vocab, int top_k, bool history, float top_p, int order) {
    setup s;
    const int rows = small ? 3 : turn_of(1) < 0 ? 24 : 8; /* within the whole suite fewer */
    int64_t shape[2], past_shape[2];
    cairn_tensor *logits, *tokens, *seeds, *positions, *past = NULL;
    float *x = (float *)malloc((size_t)rows * (size_t)vocab * sizeof *x);
    int32_t *token = (int32_t *)malloc((size_t)rows * 4), *at = (int32_t *)malloc((size_t)rows * 4);
    int32_t *ids = (int32_t *)malloc((size_t)rows * 9 * 4);
    int64_t *keys = (int64_t *)malloc((size_t)rows * 8);
    double *score = (double *)malloc((size_t)vocab * sizeof *score);
    item *items = (item *)malloc((size_t)vocab * sizeof *items);
    cairn_sample_args a;
    cairn_status status;
    int good = 0;
    for (int r = 0; r < rows; r++) {
        fill_row(x + (int64_t)r * vocab, vocab, kind);
        at[r] = between(0, 1 << 20), keys[r] = between(0, 1 << 30), token[r] = -9;
        for (int i = 0; i < 9; i++) ids[r * 9 + i] = between(0, 3) ? between(0, vocab - 1) : -1;
    }
    shape[0] = rows, shape[1] = vocab, past_shape[0] = rows, past_shape[1] = 9;
    cairn_tensor_new(rt, CAIRN_F32, 2, shape, &logits), cairn_tensor_new(rt, CAIRN_I32, 1, shape, &tokens);
    cairn_tensor_new(rt, CAIRN_I64, 1, shape, &seeds), cairn_tensor_new(rt, CAIRN_I32, 1, shape, &positions);
    cairn_tensor_new(rt, CAIRN_I32, 2, past_shape, &past);
    cairn_tensor_write(rt, logits, x, (size_t)rows * (size_t)vocab * 4);
    cairn_tensor_write(rt, seeds, keys, (size_t)rows * 8);
    cairn_tensor_write(rt, positions, at, (size_t)rows * 4);
    cairn_tensor_write(rt, past, ids, (size_t)rows * 9 * 4);
    memset(&a, 0, sizeof a);
    memset(&s, 0, sizeof s);
    a.struct_size = sizeof a, a.logits = logits, a.tokens = tokens, a.seeds = seeds;
    a.positions = positions, a.top_k = top_k, a.temperature = between(0, 1) ? 1.0f : 0.7f;
    a.top_p = top_p, a.order = (cairn_sampling_order)order, s.order = order, a.min_p = between(0, 2) ? 0.0f : 0.02f;
    if (history) a.history = past, a.repetition_penalty = 1.3f, s.history = 9, s.past = ids;
    s.rows = rows, s.vocab = vocab, s.top_k = top_k, s.temperature = a.temperature;
    s.top_p = a.top_p, s.min_p = a.min_p, s.penalty = 1.3f;
    s.logits = x, s.seeds = keys, s.positions = at;
    status = cairn_sample(rt, &a);
    if (!status) status = cairn_tensor_read(rt, tokens, token, (size_t)rows * 4);
    for (int r = 0; r < rows && !status; r++) {
        scores_of(&s, r, score);
        if (may_be(&s, r, token[r], score, items)) good++;
        else printf("# row %d: token %d, score %g\n", r, (int)token[r], score[token[r] < 0 ? 0 : token[r]]);
    }
    if (status) printf("# %s\n", cairn_last_error(rt));
    tap_ok(good == rows, "sample on %s: %s, %d of %d, top_k %d, top_p %g, min_p %g%s: %d rows right",
           where, kinds[kind], good, vocab, top_k, (double)a.top_p, (double)a.min_p,
           history ? ", penalty" : "", good);
    if (!status) { /* greedy */
        a.temperature = 0, good = 0;
        status = cairn_sample(rt, &a);
        if (!status) status = cairn_tensor_read(rt, tokens, token, (size_t)rows * 4);
        for (int r = 0; r < rows; r++) {
            int best = 0;
            s.temperature = 1;
            scores_of(&s, r, score);
            for (int i = 0; i < vocab; i++) if (score[i] > score[best]) best = i;
            good += token[r] == best || (!(score[best] > -(double)INFINITY) && token[r] == 0);
        }
        tap_ok(good == rows, "sample on %s: %s, %d, greedy: %d of %d rows", where, kinds[kind], vocab, good, rows);
    }
    cairn_tensor_free(rt, logits), cairn_tensor_free(rt, tokens), cairn_tensor_free(rt, seeds);
    cairn_tensor_free(rt, positions), cairn_tensor_free(rt, past);
    free(x), free(token), free(at), free(ids), free(keys), free(score), free(items);
}

static void test_rows(int kind, int vocab, int top_k, bool history) {
    test_rows_as(kind, vocab, top_k, history, between(0, 2) ? 0.9f : 1.0f, CAIRN_ORDER_TOP_K_FIRST);
}

/* Rows of which any token can be next: cuts that fall among ties, far out, and nowhere. */
static void test_wide(int kind, int vocab, bool history) {
    static const int top_k[] = {0, 129, 1000};
    const float top_p = between(0, 3) ? (float)between(1, 999) / 1000.0f : 1.0f;
    test_rows_as(kind, vocab, top_k[between(0, 2)], history, top_p, CAIRN_ORDER_TOP_K_FIRST);
    if (kind % 4 == 0)
        test_rows_as(kind, vocab, between(1, 300), history, top_p, CAIRN_ORDER_TOP_P_FIRST);
}

static void test_backend(cairn_runtime *opened, const char *name) {
    const int processors = opened->device.sm_count;
    rt = opened, where = name;
    small = is_emulated(rt->config.backend);
    for (int kind = 0; kind < KINDS; kind++) {
        rt->device.sm_count = processors;
        test_rows(kind, between(200, 9000), between(1, 128), kind % 2);
        test_rows(kind, 4 * between(3000, small ? 6000 : 33000), between(1, 128), kind % 3 == 0);
        rt->device.sm_count = small ? 2 : 12; /* a block has many tiles, and cuts its list */
        test_rows(kind, between(25000, small ? 40000 : 133000), between(60, 128), kind % 3 == 1);
    }
    rt->device.sm_count = processors;
    for (int kind = 0; kind < KINDS; kind++)
        test_wide(kind, 4 * between(1100, small ? 5000 : 33000), kind % 3 == 0);
    test_wide(PLAIN, small ? 17001 : 300001, true); /* more ids than a block holds the scores of */
    test_wide(TIES, small ? 17001 : 300001, false);
    test_rows(PLAIN, small ? 20000 : 131072, 50, false);
    test_rows(PLAIN, small ? 30001 : 300001, 128, true);
    test_rows(PLAIN, 3, 2, false);
}

int main(void) {
    seed = random_seed();
    run_on_backends(NULL, "sample_few", test_backend);
    return tap_done();
}
