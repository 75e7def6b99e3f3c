/* simd, linear, select, pool: the CPU kernels at every level of this machine against
 * double-precision loops, and what they promise to the bit: a row alone equals a row among others,
 * a part of the outputs equals all of them.
 * clang: undefined, turn 1 */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "random.h"
#include "ref/block_ref.h"
#include "ref/f16_ref.h"
#include "tap.h"

#ifndef _WIN32
#include <signal.h>
#endif

static uint64_t state;
static int between(int low, int high) {
    return low + (int)(random_next(&state) % (uint64_t)(high - low + 1));
}
static float uniform(void) { return (float)(random_next(&state) >> 40) / 8388608.0f - 1.0f; }

static const char *const level_names[] = {"scalar", "avx2", "avx512", "neon"};
static const int types[] = {BLOCK_F32, BLOCK_F16, BLOCK_BF16, BLOCK_Q4_0, BLOCK_Q4_1, BLOCK_Q5_0,
                            BLOCK_Q5_1, BLOCK_Q8_0, BLOCK_Q4_K, BLOCK_Q5_K, BLOCK_Q6_K};

/* n floats with guard words around them; aligned to 4 bytes only. */
enum { GUARD = 8 };
static float *guarded(int64_t n) {
    float *p = (float *)malloc(((size_t)n + 2 * GUARD + 1) * sizeof *p) + GUARD + 1;
    for (int64_t i = -GUARD; i < n + GUARD; i++) p[i] = i < 0 || i >= n ? 12345.0f : uniform();
    return p;
}
static bool unguard(float *p, int64_t n) {
    bool whole = true;
    for (int i = 0; i < GUARD; i++) whole = whole && p[-1 - i] == 12345.0f && p[n + i] == 12345.0f;
    free(p - GUARD - 1);
    return whole;
}

static uint8_t *random_weights(const block_type *type, int out, int in) {
    size_t bytes = (size_t)out * block_row_bytes(type, in);
    uint8_t *w = (uint8_t *)malloc(bytes);
    for (size_t i = 0; i < bytes; i++) w[i] = (uint8_t)random_next(&state);
    for (uint8_t *at = w; at < w + bytes; at += type->bytes) {
        uint16_t half = ref_to_f16((double)uniform() * 0.1);
        float whole = uniform();
        uint32_t bits;
        memcpy(&bits, &whole, 4);
        if (type->type == BLOCK_F32) memcpy(at, &bits, 4);
        else if (type->type == BLOCK_BF16) half = (uint16_t)(bits >> 16);
        if (type->type == BLOCK_F32) continue;
        if (type->type == BLOCK_Q6_K) at[208] = (uint8_t)half, at[209] = (uint8_t)(half >> 8);
        else at[0] = (uint8_t)half, at[1] = (uint8_t)(half >> 8);
        if (type->type == BLOCK_Q4_K || type->type == BLOCK_Q5_K)
            at[2] = at[0], at[3] = at[1] & 0x9f; /* a smaller minimum */
        if (type->type == BLOCK_Q4_1 || type->type == BLOCK_Q5_1)
            at[2] = (uint8_t)half, at[3] = (uint8_t)((half >> 8) ^ 0x80);
    }
    return w;
}

/* ---- conversions ----------------------------------------------------------------------------- */

static void test_halves(const simd_kernels *simd) {
    uint16_t *bits = (uint16_t *)malloc(65536 * 2), *back = (uint16_t *)malloc(65536 * 2);
    float *values = (float *)malloc(65536 * 4);
    int wrong = 0, n = between(60000, 65536), i;
    for (i = 0; i < 65536; i++) bits[i] = (uint16_t)i;
    simd->of_half(bits, values, 65536);
    simd->to_half(values, back, 65536);
    for (i = 0; i < 65536; i++) {
        double want = ref_f16((uint16_t)i);
        if (isnan(want) ? !isnan(values[i]) : (double)values[i] != want || back[i] != i) wrong++;
    }
    tap_ok(wrong == 0, "%s: all f16 values there and back", level_names[simd->level]);
    for (wrong = 0, i = 0; i < n; i++)
        values[i] = ldexpf(uniform(), between(-30, 15)) * (i % 7 ? 1.0f : 1.0f + 4.8828125e-4f);
    simd->to_half(values, back, n);
    for (i = 0; i < n; i++) wrong += back[i] != ref_to_f16((double)values[i]) && values[i] != 0;
    tap_ok(wrong == 0, "%s: f32 to the nearest f16", level_names[simd->level]);
    free(bits), free(back), free(values);
}

static void test_exp(const simd_kernels *simd) {
    enum { N = 20003 };
    float *x = guarded(N), *out = guarded(N);
    double worst = 0;
    int wrong = 0;
    for (int i = 0; i < N; i++) x[i] = -90.0f + 178.0f * (float)i / N;
    x[0] = -INFINITY, x[1] = -1e9f, x[2] = 0.0f, x[3] = 1e9f, x[4] = NAN;
    simd->exp_row(x, out, N);
    for (int i = 5; i < N; i++) {
        double want = exp((double)x[i]), ulp = ldexp(1, ilogb(want) - 23);
        double off = fabs((double)out[i] - want) / ulp;
        if (x[i] < -87.3f) wrong += out[i] != 0.0f;
        else if (off > worst) worst = off;
    }
    wrong += out[0] != 0.0f || out[1] != 0.0f || out[2] != 1.0f;
    wrong += !(out[3] > 1e38f) || !isnan(out[4]);
    tap_ok(!wrong && worst <= 2.0, "%s: exp within %.2f ulp", level_names[simd->level], worst);
    tap_ok(unguard(x, N) & unguard(out, N), "%s: exp stays inside", level_names[simd->level]);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Against a look at one value after the other; many are equal, NaN or infinite. */
static void test_argmax(const simd_kernels *simd) {
    static const float odd[] = {0.0f, -0.0f, 1.0f, -1.0f, INFINITY, -INFINITY, NAN, -NAN, 1e-40f};
    int wrong = 0;
    for (int round = 0; round < 400; round++) {
        const int n = 1 + between(0, round % 4 ? 70 : 5000), kind = between(0, 3);
        float *x = guarded(n), top = -INFINITY;
        int best = 0;
        for (int i = 0; i < n; i++)
            x[i] = kind == 0   ? uniform()
                   : kind == 1 ? odd[between(0, 8)]
                   : kind == 2 ? odd[between(5, 7)]
                               : (float)between(0, 9);
        for (int i = 0; i < n; i++)
            if (x[i] > top) top = x[i], best = i;
        wrong += simd->argmax(x, n) != best;
        unguard(x, n);
    }
    tap_ok(wrong == 0, "%s: the first of the largest of 400 rows, %d wrong", level_names[simd->level], wrong);
}

static void test_rows(const simd_kernels *simd) {
    int n = 2 * between(1, 400), wrong = 0;
    float *x = guarded(n), *w = guarded(n), *out = guarded(n), *c = guarded(n), *s = guarded(n);
    double square = 0;
    for (int i = 0; i < n; i++) square += (double)x[i] * (double)x[i];
    simd->rmsnorm(x, w, 1e-5f, n, out);
    for (int i = 0; i < n; i++) {
        double want = (double)x[i] * (double)w[i] / sqrt(square / n + 1e-5);
        wrong += !(fabs((double)out[i] - want) <= 1e-6 * (1 + fabs(want)));
    }
    tap_ok(!wrong, "%s: rmsnorm of %d", level_names[simd->level], n);
    for (int i = 0; i < n; i += 2) c[i + 1] = c[i], s[i] = -s[i + 1];
    memcpy(out, x, (size_t)n * sizeof *out);
    simd->rope(out, c, s, n);
    for (int i = 0; i < n; i += 2) {
        double even = (double)x[i] * (double)c[i] - (double)x[i + 1] * (double)s[i + 1];
        double odd = (double)x[i + 1] * (double)c[i] + (double)x[i] * (double)s[i + 1];
        wrong += !(fabs((double)out[i] - even) < 1e-6) + !(fabs((double)out[i + 1] - odd) < 1e-6);
    }
    tap_ok(!wrong, "%s: rope of %d", level_names[simd->level], n);
    for (int i = 0; i < n; i++) out[i] = x[i] * 100.0f;
    simd->swiglu(out, w, n);
    for (int i = 0; i < n; i++) {
        double g = (double)(x[i] * 100.0f), want = g / (1 + exp(-g)) * (double)w[i];
        wrong += !(fabs((double)out[i] - want) <= 1e-6 * (1e-3 + fabs(want)));
    }
    tap_ok(!wrong, "%s: swiglu of %d", level_names[simd->level], n);
    tap_ok(unguard(x, n) & unguard(w, n) & unguard(out, n) & unguard(c, n) & unguard(s, n),
           "%s: rows of %d stay inside", level_names[simd->level], n);
}

/* ---- products -------------------------------------------------------------------------------- */

static bool eight; /* x is rounded to 8 bits */

typedef struct product { linear_job job; double *want, *size; float *start, *panel; } product;

static void product_want(product *p) {
    const linear_job *j = &p->job;
    const size_t row = block_row_bytes(block_find(j->type), j->in);
    for (int o = 0; o < j->out; o++)
        for (int i = 0; i < j->in; i++) {
            double w = block_ref_value(j->type, (const uint8_t *)j->w + (size_t)o * row, i);
            for (int r = 0; r < j->rows; r++) {
                double term = w * (double)j->x[r * j->x_stride + i];
                p->want[r * j->out + o] += term;
                p->size[r * j->out + o] += fabs(term);
            }
        }
}

/* x as it is after rounding. */
static void round_rows(const simd_kernels *simd, const linear_job *j, float *out) {
    int8_t *q = (int8_t *)malloc((size_t)j->in);
    float *scale = (float *)malloc((size_t)j->in / 16 * sizeof *scale);
    int32_t *sum = (int32_t *)malloc((size_t)j->in / 16 * sizeof *sum);
    for (int r = 0; r < j->rows; r++) {
        simd_eight_of(simd)->round_eight(j->type, j->x + r * j->x_stride, j->in, q, scale,
                                         scale + j->in / 32, sum);
        for (int i = 0; i < j->in; i++) out[r * j->in + i] = (float)q[i] * scale[i / 32];
    }
    free(q), free(scale), free(sum);
}

static void test_product(const simd_kernels *simd, int type_number, int rows, int out, int in) {
    const block_type *type = block_find(type_number);
    product p;
    linear_job *j = &p.job, alone;
    int wrong = 0, unlike = 0, cut = between(0, out / FORWARD_STEP) * FORWARD_STEP;
    int64_t cells = (int64_t)rows * out;
    float *rounded = NULL;
    float *whole = guarded(cells), *single = guarded(cells), *x = guarded((int64_t)rows * in);
    memset(j, 0, sizeof *j);
    j->type = type_number, j->out = out, j->in = in, j->rows = rows, j->add = between(0, 1);
    j->w = random_weights(type, out, in);
    j->x = x, j->x_stride = in, j->y_stride = out, j->eight = eight;
    p.want = (double *)calloc((size_t)cells, sizeof *p.want);
    p.size = (double *)calloc((size_t)cells, sizeof *p.size);
    p.panel = (float *)malloc(linear_panel_floats(in) * sizeof(float));
    for (int64_t i = 0; j->add && i < cells; i++) p.want[i] = (double)whole[i], p.size[i] = 1;
    memcpy(single, whole, (size_t)cells * sizeof *single);
    if (eight) {
        j->x = rounded = (float *)malloc((size_t)rows * (size_t)in * sizeof *rounded);
        alone = *j, alone.x = x;
        round_rows(simd, &alone, rounded);
    }
    product_want(&p);
    j->x = x, j->y = whole;
    linear_range(simd, j, 0, out, p.panel);
    for (int r = 0; r < rows; r++) { /* one row at a time, in two parts */
        alone = *j;
        alone.rows = 1, alone.x = x + r * in, alone.y = single + r * out;
        linear_range(simd, &alone, cut, out, p.panel);
        linear_range(simd, &alone, 0, cut, p.panel);
    }
    for (int64_t i = 0; i < cells; i++) {
        wrong += !(fabs((double)whole[i] - p.want[i]) <= 1e-6 * (p.size[i] + 1e-3));
        unlike += memcmp(&whole[i], &single[i], sizeof *whole) != 0;
    }
    tap_ok(!wrong, "%s: %s [%d, %d] of %d rows", level_names[simd->level], type->name, out, in,
           rows);
    tap_ok(!unlike, "%s: each row alone, outputs in parts, to the bit", level_names[simd->level]);
    wrong = !unguard(whole, cells) | !unguard(single, cells) | !unguard(x, (int64_t)rows * in);
    tap_ok(!wrong, "%s: products stay inside", level_names[simd->level]);
    free((void *)(uintptr_t)j->w), free(p.want), free(p.size), free(p.panel);
    free(rounded);
}

static void test_products(const simd_kernels *simd) {
    for (size_t t = 0; t < BASE_COUNT(types); t++) {
        int unit = block_find(types[t])->values;
        test_product(simd, types[t], 1, 16, unit > 32 ? unit : 32);
        test_product(simd, types[t], between(1, 20), between(1, 70), unit * between(1, 300 / unit));
        test_product(simd, types[t], between(1, 3), between(8, 20),
                     unit * (2100 / unit + between(0, 3)));
    }
    for (int rows = 2; rows <= 9; rows++) /* few: each number of rows has a kernel of its own */
        for (int t = 0; t < 3; t++) {
            static const int few[] = {BLOCK_Q4_0, BLOCK_Q4_1, BLOCK_Q8_0};
            test_product(simd, few[t], rows, between(8, 140), 32 * between(1, 90));
        }
    test_product(simd, BLOCK_Q4_1, 40, 130, 576);
}

/* ---- products with rows of 8 bits ------------------------------------------------------------- */

static void test_rounding(const simd_kernels *simd) {
    const int n = 32 * between(1, 40);
    float *x = guarded(n), *scale = guarded(n / 32), *lies = guarded(n / 32);
    int8_t *q = (int8_t *)malloc((size_t)n);
    int32_t *sum = (int32_t *)malloc((size_t)n / 16 * sizeof *sum);
    int wrong = 0, total = 0;
    for (int i = 0; i < n; i++) x[i] *= ldexpf(1.0f, i / 32 % 20 - 10);
    if (n > 64) memset(x + 32, 0, 32 * sizeof *x);
    simd->round_eight(BLOCK_Q6_K, x, n, q, scale, lies, sum);
    for (int i = 0; i < n; i++) {
        double most = 0, step;
        for (int j = i / 32 * 32; j < i / 32 * 32 + 32; j++) most = fmax(most, fabs((double)x[j]));
        step = most / 127;
        wrong += !(fabs((double)scale[i / 32] - step) <= 1e-6 * step);
        wrong += !(fabs((double)x[i] - step * q[i]) <= 0.50001 * step);
        total = i % 16 ? total + q[i] : q[i];
        if (i % 16 == 15) wrong += sum[i / 16] != -32 * total;
    }
    tap_ok(!wrong, "%s: %d values to 8 bits", level_names[simd->level], n);
    x[between(0, n - 1)] = between(0, 1) ? NAN : INFINITY;
    simd->round_eight(BLOCK_Q6_K, x, n, q, scale, lies, sum);
    for (wrong = 1, total = 0; total < n / 32; total++) wrong = wrong && isfinite(scale[total]);
    tap_ok(!wrong, "%s: what is not finite stays so", level_names[simd->level]);
    tap_ok(unguard(x, n) & unguard(scale, n / 32) & unguard(lies, n / 32), "%s: rounding stays inside",
           level_names[simd->level]);
    free(q), free(sum);
}

static void test_eight(const simd_kernels *simd) {
    eight = true;
    test_rounding(simd_eight_of(simd));
    for (size_t t = 0; t < BASE_COUNT(types); t++) {
        int unit = block_find(types[t])->values;
        if (unit == 1) continue;
        for (int i = 0; i < 4; i++)
            test_product(simd, types[t], between(1, 9), between(1, 70), unit * between(1, 900 / unit));
        test_product(simd, types[t], 130, 35, unit * (2100 / unit)); /* the panel holds fewer rows */
    }
    eight = false;
}

/* The values of blocks are exact, so that every path sees the same weights. */
static void test_dequantize(const simd_kernels *simd) {
    for (size_t t = 0; t < BASE_COUNT(types); t++) {
        const block_type *type = block_find(types[t]);
        int n = type->values * between(1, 3000 / type->values), wrong = 0;
        uint8_t *w = random_weights(type, 1, n);
        float *out = guarded(n);
        simd->dequantize(types[t], w, out, n);
        for (int i = 0; i < n; i++) wrong += out[i] != (float)block_ref_value(types[t], w, i);
        tap_ok(!wrong, "%s: %d values of %s", level_names[simd->level], n, type->name);
        tap_ok(unguard(out, n), "%s: dequantising stays inside", level_names[simd->level]);
        free(w);
    }
}

/* Every format to the bit as the Python package gguf has it, at this level and in plain C. */
static void test_goldens(const simd_kernels *simd) {
    FILE *file = fopen("tests/golden/blocks.bin", "rb");
    uint32_t head[3];
    int formats = 0;
    while (file && fread(head, 4, 3, file) == 3) {
        const block_type *type = block_find((int)head[0]);
        uint8_t *blocks = (uint8_t *)malloc(head[1]);
        float *want = guarded(head[2]), *out = guarded(head[2]), *plain = guarded(head[2]);
        bool same = true, read = fread(blocks, 1, head[1], file) == head[1] &&
                    fread(want, 4, head[2], file) == head[2];
        if (tap_ok(read && type && block_row_bytes(type, head[2]) == head[1], "%s: %s is read",
                   level_names[simd->level], block_name((int)head[0]))) {
            simd->dequantize(type->type, blocks, out, head[2]);
            type->dequantize(blocks, plain, head[2]);
            for (uint32_t i = 0; i < head[2]; i++) /* a zero may have the other sign */
                same = same && out[i] == want[i];
            tap_ok(same && !memcmp(plain, want, head[2] * 4),
                   "%s: %u values of %s, to the bit", level_names[simd->level], head[2], type->name);
            formats++;
        }
        free(blocks), unguard(want, head[2]), unguard(out, head[2]), unguard(plain, head[2]);
    }
    tap_ok(formats == (int)BASE_COUNT(types), "%s: %d formats", level_names[simd->level], formats);
    if (file) fclose(file);
}

/* ---- selection ------------------------------------------------------------------------------- */

static bool ranks_before(float a, float b) { /* strictly */
    if (isnan(b)) return !isnan(a);
    return a > b;
}

static void test_select_top(void) {
    static const float odd[] = {0.0f, -0.0f, 1.0f, -1.0f, INFINITY, -INFINITY, NAN, 1e-40f};
    int wrong = 0;
    for (int round = 0; round < 300; round++) {
        float scores[600];
        uint32_t keys[600];
        int32_t ids[600];
        int n = between(1, 600), k = between(0, n + 3), kind = between(0, 3), made, kept = 0;
        for (int i = 0; i < n; i++)
            scores[i] = kind == 0 ? uniform() : kind == 1 ? odd[between(0, 7)]
                        : kind == 2 ? 3.5f : (float)between(-2, 2);
        made = select_top(scores, n, k, keys, ids);
        for (int i = 0; i < n; i++) { /* kept: fewer than k rank before it */
            int before = 0;
            for (int j = 0; j < n; j++)
                before += ranks_before(scores[j], scores[i]) ||
                          (j < i && !ranks_before(scores[i], scores[j]));
            if (before < k) wrong += kept >= made || ids[kept] != i, kept++;
        }
        wrong += kept != made;
    }
    tap_ok(!wrong, "the k best pages, ascending, the lowest among equals");
}

/* ---- pool ------------------------------------------------------------------------------------ */

enum { STAGES = 64, ITEMS = 24 };

/* Each stage doubles what the one before left and adds an index: a stage that began before the last one
 * had ended, or an item done twice or not at all, gives another number. */
typedef struct phases {
    pool *p;
    uint64_t value[ITEMS];
    os_atomic inside, wrong, came;
    int late; /* this worker sleeps where it holds nothing, now and then */
} phases;

static void phase_task(void *context, int worker) {
    phases *all = (phases *)context;
    os_atomic_add(&all->came, 1);
    for (int i = 0; i < STAGES; i++) {
        if (worker == all->late && i % 16 == 3 && !pool_takes_part(all->p, worker)) {
            int64_t until = os_now_us() + 300;
            while (os_now_us() < until) os_thread_yield();
        }
        for (int j; (j = pool_next(all->p, worker)) < ITEMS;) {
            all->value[j] = 2 * all->value[j] + (uint64_t)i;
            if (!pool_takes_part(all->p, worker)) os_atomic_add(&all->wrong, 1);
        }
        pool_meet(all->p, worker);
    }
}

static bool phases_right(phases *all) {
    uint64_t want = 0;
    bool right = !os_atomic_load(&all->wrong);
    for (int i = 0; i < STAGES; i++) want = 2 * want + (uint64_t)i;
    for (int j = 0; j < ITEMS; j++) right = right && all->value[j] == want;
    return right;
}

static void test_stages(pool *p, int threads) {
    int good = 0, rounds = 60, most = 1;
    for (int round = 0; round < rounds; round++) {
        phases all;
        memset(&all, 0, sizeof all);
        all.p = p, all.late = round % (threads + 1), most = round % 3 ? threads : 1 + round % threads;
        pool_each(p, most, phase_task, &all);
        good += phases_right(&all) && os_atomic_load(&all.came) <= most;
    }
    tap_ok(good == rounds, "%d threads: stages follow one another, by whoever comes: %d of %d", threads,
           good, rounds);
}

static void index_task(void *context, int index) { os_atomic_add((os_atomic *)context + index, 1); }

/* A thread whose core is busy with something else: a signal holds it while the pool is idle, and runs
 * end without it. */
#ifdef _WIN32
static void test_busy_core(pool *p, int threads) { (void)p, (void)threads; }
#else
static os_atomic held, release;
static void hold(int signal) {
    (void)signal;
    os_atomic_store(&held, 1);
    while (!os_atomic_load(&release)) BASE_PAUSE();
    os_atomic_store(&held, 0);
}

static void test_busy_core(pool *p, int threads) {
    static os_atomic done[1000];
    phases all;
    bool right = true;
    if (threads < 2) return;
    signal(SIGUSR1, hold);
    os_atomic_store(&release, 0);
    pthread_kill(p->workers[1].thread.id, SIGUSR1);
    while (!os_atomic_load(&held)) os_thread_yield();
    memset(&all, 0, sizeof all);
    all.p = p, all.late = -1;
    pool_each(p, threads, phase_task, &all);
    memset(done, 0, sizeof done);
    pool_run(p, 1000, index_task, done);
    for (int i = 0; i < 1000; i++) right = right && os_atomic_load(&done[i]) == 1;
    tap_ok(right && phases_right(&all) && os_atomic_load(&all.came) < threads &&
               os_atomic_load(&held),
           "%d threads, one of them held: the others do it all", threads);
    os_atomic_store(&release, 1);
    while (os_atomic_load(&held)) os_thread_yield();
}
#endif


static void test_pool(base *b, int threads) {
    os_atomic *done = (os_atomic *)calloc(1000, sizeof *done);
    pool *p;
    int wrong = 0;
    if (!tap_ok(pool_open(b, threads, false, &p) == CAIRN_OK, "a pool of %d opens", threads)) return;
    for (int round = 1; round <= 30; round++) {
        pool_run(p, 1000, index_task, done);
        for (int i = 0; i < 1000; i++) wrong += os_atomic_load(&done[i]) != round;
        if (round % 10 == 0) { /* long enough to fall asleep */
            int64_t until = os_now_us() + 3000;
            while (os_now_us() < until) os_thread_yield();
        }
    }
    tap_ok(!wrong, "%d threads: each index once in each run", threads);
    test_stages(p, threads);
    test_busy_core(p, threads);
    pool_resize(p, 1 + threads % 4);
    tap_ok(pool_threads(p) == 1 + threads % 4, "resized to %d", pool_threads(p));
    test_stages(p, pool_threads(p));
    pool_close(p);
    free(done);
}

static int allocations_left = -1, warnings;
static void *short_realloc(void *user, void *memory, size_t old_bytes, size_t new_bytes) {
    (void)user, (void)old_bytes;
    if (new_bytes && allocations_left >= 0 && allocations_left-- == 0) return NULL;
    if (new_bytes) return realloc(memory, new_bytes);
    free(memory);
    return NULL;
}
static void hear(void *user, cairn_log_level level, const char *text) {
    (void)user;
    warnings += level == CAIRN_LOG_WARN && strstr(text, "no memory for 3 threads: 2 go on");
}

/* Without memory for more threads those that there are go on. */
static void test_pool_memory(void) {
    const cairn_allocator allocator = {NULL, short_realloc};
    os_atomic *done = (os_atomic *)calloc(1000, sizeof *done);
    base b;
    pool *p;
    int wrong = 0;
    base_init(&b, &allocator, hear, NULL, CAIRN_LOG_WARN);
    for (int n = 0; n < 2; n++) {
        allocations_left = n;
        wrong += pool_open(&b, 2, false, &p) != CAIRN_OUT_OF_MEMORY || p;
    }
    allocations_left = -1;
    tap_ok(!wrong, "no memory for a pool");
    if (!tap_ok(!pool_open(&b, 2, false, &p), "a pool of two")) return;
    allocations_left = 0;
    pool_resize(p, 3);
    allocations_left = -1;
    tap_ok(pool_threads(p) == 2 && warnings == 1, "no memory for three threads: two go on, and it is said");
    pool_run(p, 1000, index_task, done);
    for (int i = 0; i < 1000; i++) wrong += os_atomic_load(&done[i]) != 1;
    pool_resize(p, 3);
    tap_ok(!wrong && pool_threads(p) == 3, "they do their work, and with memory there are three");
    pool_close(p);
    free(done);
}

/* What the processor can is what the system lists of it. */
static void test_processor(void) {
#if BASE_X86 && defined(__linux__)
    char flags[8192] = "";
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file && fgets(flags, sizeof flags, file) && strncmp(flags, "flags", 5)) {}
    if (file) fclose(file);
    if (strncmp(flags, "flags", 5)) {
        tap_skip("the system lists no flags of the processor");
        return;
    }
    flags[strcspn(flags, "\n")] = ' ';
    const bool wide = (int)POOL_WIDEST == SIMD_AVX512 && strstr(flags, " avx512f ") && strstr(flags, " avx512dq ") &&
                      strstr(flags, " avx512bw ") && strstr(flags, " avx512vl ");
    const int level = !strstr(flags, " avx2 ") ? SIMD_SCALAR : wide ? SIMD_AVX512 : SIMD_AVX2;
    tap_ok(pool_simd_here() == level && pool_has_vnni() == (strstr(flags, " avx512_vnni ") != NULL),
           "the processor is one of %s%s", level_names[level], pool_has_vnni() ? " that multiplies bytes" : "");
#endif
}

/* The scores of index keys; a key's bits do not depend on those beside it. */
static void test_dots(const simd_kernels *simd) {
    enum { HEADS = 10, KEYS = SIMD_DOT_KEYS, DIM = SIMD_DOT_DIM };
    float *keys = guarded(DIM * KEYS), *q = guarded(HEADS * DIM), *w = guarded(HEADS);
    float *out = guarded(KEYS), *again = guarded(KEYS);
    bool fine = true, whole;
    simd->relu_dots(keys, q, w, HEADS, out);
    for (int j = 0; j < KEYS; j++) {
        double sum = 0, size = 0;
        for (int h = 0; h < HEADS; h++) {
            double dot = 0;
            for (int d = 0; d < DIM; d++) dot += (double)q[h * DIM + d] * (double)keys[d * KEYS + j];
            sum += (double)w[h] * (dot > 0 ? dot : 0), size += fabs((double)w[h]) * DIM;
        }
        fine = fine && fabs((double)out[j] - sum) <= 1e-6 * size;
    }
    tap_ok(fine, "relu_dots, %s", level_names[simd->level]);
    for (int d = 0; d < DIM; d++)
        for (int j = 0; j < KEYS / 2; j++) keys[d * KEYS + j] = keys[d * KEYS + (j * 7 + 1) % KEYS];
    simd->relu_dots(keys, q, w, HEADS, again);
    tap_ok(!memcmp(out + KEYS / 2, again + KEYS / 2, KEYS / 2 * 4), "and each key's is its own");
    whole = unguard(keys, DIM * KEYS) & unguard(q, HEADS * DIM) & unguard(w, HEADS);
    whole = unguard(out, KEYS) & unguard(again, KEYS) & whole;
    tap_ok(whole, "and nothing else is touched");
}

static void test_level(const simd_kernels *simd) {
    test_dots(simd);
    test_halves(simd);
    test_argmax(simd);
    test_exp(simd);
    for (int i = 0; i < 4; i++) test_rows(simd);
    test_dequantize(simd);
    test_goldens(simd);
    test_products(simd);
    test_eight(simd);
}

/* The kernels hold wherever a caller's stack stands: Win64 aligns it to 16 bytes, a quarter of the
 * widest vector. */
static void test_level_down(const simd_kernels *simd, int steps) {
    volatile char *room = (volatile char *)__builtin_alloca(16 * (size_t)steps + 16);
    room[0] = 1;
    test_level(simd);
    room[0] = 2;
}

int main(void) {
    base b;
    state = random_seed();
    base_init(&b, NULL, NULL, NULL, CAIRN_LOG_OFF);
    for (int level = SIMD_SCALAR; level <= SIMD_NEON; level++) {
        const simd_kernels *simd = simd_of_level(level);
        if (simd->level != level || (level > pool_simd_here() && level != SIMD_NEON)) {
            tap_skip("%s: not on this machine", level_names[level]);
            continue;
        }
        test_level(simd);
#ifdef _WIN32
        for (int steps = 1; steps < 4; steps++) test_level_down(simd, steps);
#else
        test_level_down(simd, 1);
#endif
    }
    test_select_top();
    for (int threads = 1; threads <= 4; threads++) test_pool(&b, threads);
    test_pool_memory();
    test_processor();
    return tap_done();
}
