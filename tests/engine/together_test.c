/* together: cairn_generate_batch. Random rows, more than max_batch, in any order, greedy and drawn, with
 * drafts and a worker: each is what a session of its own says, id for id; what is behind a row's total is
 * zero; forwards are counted. Then all that is refused, with nothing written. */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "small_model.h"
#include "tap.h"
#include "toy_model.h"

enum { ROWS = 7, STRIDE = 60, CAPACITY = 100, LIMIT = 128, POISON = -77 };

static bool on_toy;
static char path[] = "/tmp/together_XXXXXX";
static const char *where = "the toy";

static int below(int n) { return (int)(random_next(&state) % (uint64_t)n); }

static cairn_runtime *open_runtime(bool worker, int batch, int drafts) {
    cairn_config c;
    cairn_runtime *rt = NULL;
    char error[1024];
    cairn_config_default(&c);
    c.backend = CAIRN_BACKEND_CPU, c.threads = 1, c.page_size = PAGE, c.max_batch = batch;
    c.max_seq_len = LIMIT, c.prefill_chunk = 64, c.log = CAIRN_LOG_OFF, c.worker.enabled = worker;
    c.draft_length = drafts, c.drafter = drafts ? CAIRN_DRAFTER_NGRAM : CAIRN_DRAFTER_NONE;
    if (cairn_open(&c, &rt, error, sizeof error)) tap_note("%s", error);
    return rt;
}

static cairn_status load(cairn_runtime *rt, cairn_model **m) {
    return on_toy ? toy_load(rt, path, m) : cairn_load_model(rt, path, m);
}

static int32_t ids[ROWS * STRIDE], lengths[ROWS], limits[ROWS], output[ROWS * CAPACITY];
static int32_t generated[ROWS], total[ROWS];
static cairn_sampling sampling[ROWS];

static cairn_batch_args batch_of(int rows) {
    cairn_batch_args a;
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a, a.rows = rows, a.stride = STRIDE, a.capacity = CAPACITY;
    a.ids = ids, a.lengths = lengths, a.limits = limits, a.sampling = sampling;
    a.output = output, a.generated = generated, a.total = total, a.steps = POISON;
    for (int i = 0; i < ROWS * CAPACITY; i++) output[i] = POISON;
    for (int i = 0; i < ROWS; i++) generated[i] = total[i] = POISON;
    return a;
}

static void draw_rows(void) {
    for (int i = 0; i < ROWS * STRIDE; i++) ids[i] = POISON;
    memset(sampling, 0, sizeof sampling);
    for (int row = 0; row < ROWS; row++) {
        lengths[row] = 1 + below(STRIDE);
        limits[row] = below(3) ? 1 + below(50) : 0;
        for (int i = 0; i < lengths[row]; i++)
            ids[row * STRIDE + i] = on_toy ? 'a' + below(4) : 1 + below(VOCAB - 3);
        sampling[row].temperature = below(2) ? 0.8f : 0.0f, sampling[row].seed = below(1 << 30);
        sampling[row].top_k = below(2) ? 0 : 8;
    }
}

/* The row by a session of its own. */
static bool same_alone(cairn_model *m, const cairn_batch_args *a, int row) {
    const int32_t *out = a->output + row * CAPACITY, *own;
    cairn_generate_options o;
    cairn_session *s;
    int count = 0, most = CAPACITY - lengths[row];
    bool same;
    memset(&o, 0, sizeof o);
    o.struct_size = sizeof o, o.stop_count = -1, o.sampling = &sampling[row];
    o.max_tokens = limits[row] && limits[row] < most ? limits[row] : most;
    same = !cairn_session_open(m, &s) && !cairn_append_ids(s, ids + row * STRIDE, lengths[row]) &&
           !cairn_generate_with(s, NULL, &o, NULL, NULL);
    own = cairn_session_ids(s, &count);
    same = same && count == a->total[row] && a->generated[row] == count - lengths[row] &&
           !memcmp(own, out, (size_t)count * sizeof *own);
    for (int i = count; i < CAPACITY; i++) same = same && !out[i];
    cairn_session_close(s);
    return same;
}

static void test_rows(bool worker, int batch, int drafts) {
    cairn_runtime *rt = open_runtime(worker, batch, drafts), *one = open_runtime(false, 1, 0);
    cairn_model *m, *alone;
    int good = 0, rounds = 6;
    bool fine = rt && one && !load(rt, &m) && !load(one, &alone);
    for (int round = 0; round < rounds && fine; round++) {
        cairn_batch_args a = batch_of(ROWS);
        draw_rows();
        fine = !cairn_generate_batch(m, &a) && a.steps > 0 && !m->sessions;
        for (int row = 0; row < ROWS && fine; row++) good += same_alone(alone, &a, row);
    }
    tap_ok(fine && good == rounds * ROWS && !toy_faults,
           "on %s: up to %d in a forward, %d drafts%s: %d of %d rows are what each says alone", where,
           batch, drafts, worker ? ", a worker" : "", good, rounds * ROWS);
    if (rt) tap_ok(m->kv.pool.free_count == m->kv.pool.pages, "every page is free again");
    cairn_close(rt);
    cairn_close(one);
}

static void test_steps(void) {
    cairn_runtime *rt = open_runtime(false, 4, 0);
    cairn_model *m;
    cairn_batch_args a;
    int most = 0, sum = 0;
    if (!tap_ok(rt && !load(rt, &m), "opened")) return;
    draw_rows();
    for (int row = 0; row < 4; row++) lengths[row] = 2, limits[row] = 3 + 4 * row;
    for (int i = 0; i < 4 * STRIDE; i++) if (ids[i] == POISON) ids[i] = 'a';
    a = batch_of(4);
    tap_ok(!cairn_generate_batch(m, &a), "four rows in one forward");
    for (int row = 0; row < 4; row++) {
        sum += generated[row];
        if (generated[row] > most) most = generated[row];
    }
    tap_ok(a.steps == most, "as many forwards as the longest row has tokens, the prompts' own the first: "
           "%d for %d of %d", (int)a.steps, most, sum);
    lengths[0] = CAPACITY < STRIDE ? CAPACITY : STRIDE;
    for (int i = 0; i < STRIDE; i++) ids[i] = 'b';
    a = batch_of(1);
    a.capacity = STRIDE;
    tap_ok(!cairn_generate_batch(m, &a) && !generated[0] && total[0] == STRIDE && a.steps == 0 &&
               output[0] == 'b', "no room behind the prompt: it is all there is");
    a = batch_of(0);
    tap_ok(!cairn_generate_batch(m, &a) && a.steps == 0, "no rows");
    cairn_close(rt);
}

static bool nothing_written(const cairn_batch_args *a) {
    bool nothing = a->steps == POISON;
    for (int i = 0; i < ROWS * CAPACITY; i++) nothing = nothing && output[i] == POISON;
    for (int i = 0; i < ROWS; i++)
        nothing = nothing && generated[i] == POISON && total[i] == POISON;
    return nothing;
}

static void refused(cairn_model *m, cairn_batch_args *a, cairn_status want, const char *text) {
    const char *said = cairn_last_error(m->runtime);
    cairn_status status = cairn_generate_batch(m, a);
    tap_ok(status == want && strstr(said, text) && nothing_written(a) && !m->scratch->part_count &&
               m->kv.pool.free_count == m->kv.pool.pages, "refused: %s", said);
}

static void test_refusals(void) {
    cairn_runtime *rt = open_runtime(false, 2, 0);
    cairn_model *m;
    cairn_batch_args a;
    cairn_session *idle, *other;
    if (!tap_ok(rt && !load(rt, &m), "opened")) return;
    draw_rows();
    a = batch_of(3), a.struct_size = 8;
    refused(m, &a, CAIRN_VERSION_MISMATCH, "struct_size");
    a = batch_of(-1);
    refused(m, &a, CAIRN_INVALID_ARGUMENT, "rows = -1");
    a = batch_of(3), a.total = NULL;
    refused(m, &a, CAIRN_INVALID_ARGUMENT, "total");
    a = batch_of(3), lengths[1] = 0;
    refused(m, &a, CAIRN_INVALID_ARGUMENT, "row 1: its length is 0");
    lengths[1] = STRIDE + 1;
    refused(m, &a, CAIRN_INVALID_ARGUMENT, "row 1: length = 61");
    for (int i = 0; i < 7; i++) ids[STRIDE + i] = ids[2 * STRIDE + i] = 1; /* they may be shorter */
    lengths[1] = 3, limits[2] = -4;
    refused(m, &a, CAIRN_INVALID_ARGUMENT, "row 2: its limit is -4");
    limits[2] = 4, lengths[2] = 8, ids[2 * STRIDE + 7] = 1 << 20;
    refused(m, &a, CAIRN_INVALID_ARGUMENT, "row 2: an id = 1048576");
    ids[2 * STRIDE + 7] = -1;
    refused(m, &a, CAIRN_INVALID_ARGUMENT, "row 2: an id = -1");
    draw_rows(), sampling[2].top_p = 1.5f;
    refused(m, &a, CAIRN_INVALID_ARGUMENT, "row 2: sampling.top_p");
    draw_rows();
    toy_forwards = 0, toy_fail_at = 5;
    for (int i = 0; i < 3; i++) limits[i] = 0, sampling[i].seed = 5;
    refused(m, &a, CAIRN_DEVICE_ERROR, "the toy fails here");
    toy_fail_at = -1;
    tap_ok(!cairn_session_open(m, &idle) && !cairn_session_open(m, &other), "two more sessions");
    for (int i = 0; i < 2; i++) { /* all but three pages, held by sessions that rest */
        int32_t many[LIMIT];
        for (int j = 0; j < LIMIT; j++) many[j] = 'a' + j % 3;
        cairn_append_ids(i ? other : idle, many, i ? LIMIT - 3 * PAGE : LIMIT);
    }
    lengths[0] = lengths[1] = STRIDE;
    for (int i = 0; i < 2 * STRIDE; i++) ids[i] = 'a';
    tap_ok(cairn_generate_batch(m, &a) == CAIRN_POOL_FULL && nothing_written(&a),
           "no room beside sessions that rest: %s", cairn_last_error(rt));
    cairn_session_close(idle);
    tap_ok(!cairn_generate_batch(m, &a) && m->sessions == other && !other->next,
           "it goes on where there is");
    cairn_close(rt);
}

int main(void) {
    int file = mkstemp(path);
    state = random_seed();
    on_toy = true;
    if (!tap_ok(file >= 0 && toy_write(path, NULL), "the toy is written")) return tap_done();
    test_rows(false, 3, 0);
    test_rows(false, 8, 5);
    test_rows(true, 2, 3);
    test_steps();
    test_refusals();
    on_toy = false, where = "cpu";
    if (!tap_ok(write_model(path), "a small model is written")) return tap_done();
    test_rows(false, 3, 4);
    test_rows(true, 8, 0);
    remove(path);
    return tap_done();
}
