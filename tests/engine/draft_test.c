/* draft: drafts by a smaller model. Text against that without drafts, greedy and drawn, alone and
 * together; what is drafted against the small model's own choice, by cairn_eval in a runtime of its own;
 * how many forwards drafts take; a model whose drafts are all right; files and configs that are refused.
 * Rewinds, forks and snapshots beside others: loop_test.
 * emulated: asan */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "tap.h"
#include "backends.h"
#include "short_memory.h"
#include "small_model.h"

enum { K = 3, SAID = 40, MOST = 320 };

static char path[] = "/tmp/draft_XXXXXX", small_path[] = "/tmp/drafts_XXXXXX";
static const char *where;
static bool few; /* kernels are emulated */

static int below(int n) { return (int)(random_next(&state) % (uint64_t)n); }

static cairn_config config_of(cairn_backend backend, const char *drafts, int k) {
    cairn_config c;
    cairn_config_default(&c);
    c.backend = backend, c.threads = 1, c.page_size = PAGE, c.max_batch = 4, c.max_seq_len = MOST;
    c.log = CAIRN_LOG_OFF, c.prefill_chunk = 64, c.draft_length = k, c.draft_adaptive = false;
    c.topk = 2, c.selection.window = 32, c.drafter = drafts ? CAIRN_DRAFTER_MODEL : CAIRN_DRAFTER_NONE;
    if (drafts) snprintf(c.drafter_model, sizeof c.drafter_model, "%s", drafts);
    return c;
}

static cairn_runtime *open_with(cairn_config c, const char *file, cairn_model **m) {
    cairn_runtime *rt = open_runtime_on(&c, "drafts by a model");
    if (!rt || !cairn_load_model(rt, file, m)) return rt;
    tap_ok(false, "%s", cairn_last_error(rt));
    cairn_close(rt);
    return NULL;
}

static const cairn_logit_bias no_end = {END, -INFINITY};

static cairn_generate_options wishes(const cairn_sampling *sampling, int count) {
    cairn_generate_options o;
    memset(&o, 0, sizeof o);
    o.struct_size = sizeof o, o.max_tokens = count, o.sampling = sampling, o.stop_count = -1;
    o.logit_bias = &no_end, o.logit_bias_count = 1;
    return o;
}

static void random_ids(int32_t *ids, int count) {
    for (int i = 0; i < count; i++) ids[i] = 1 + below(VOCAB - 1);
}

/* A session's ids behind a prompt of ids [given]. */
static cairn_session *say(cairn_model *m, const int32_t *ids, int given, int count, float temperature) {
    cairn_session *s = NULL;
    const cairn_sampling sampling = {.temperature = temperature, .top_p = 1, .repetition_penalty = 1,
                                     .seed = 7};
    cairn_generate_options o = wishes(&sampling, count);
    if (temperature <= 0) o.logit_bias_count = 0; /* the drafts' model knows of none */
    if (cairn_session_open(m, &s) || cairn_append_ids(s, ids, given) ||
        cairn_generate_with(s, "", &o, NULL, NULL))
        tap_note("%s", cairn_last_error(m->runtime));
    return s;
}

static bool same_ids(const cairn_session *a, const cairn_session *b) {
    int count, other;
    const int32_t *x = cairn_session_ids(a, &count), *y = cairn_session_ids(b, &other);
    return count == other && !memcmp(x, y, (size_t)count * sizeof *x);
}

static cairn_stats stats_of(cairn_session *s) {
    cairn_stats stats;
    stats.struct_size = sizeof stats;
    cairn_session_stats(s, &stats);
    return stats;
}

/* Texts of any length of prompt, over the end of pages and past 256 tokens, with either file's drafts. */
static void test_text(cairn_backend backend, const char *drafts, bool right) {
    cairn_model *plain = NULL, *m = NULL;
    cairn_runtime *one = open_with(config_of(backend, NULL, 0), path, &plain);
    cairn_runtime *rt = open_with(config_of(backend, drafts, K), path, &m);
    int same = 0, runs = few ? 2 : 8;
    int64_t forwards = 0, proposed = 0, accepted = 0;
    for (int i = 0; i < runs && one && rt; i++) {
        int32_t ids[MOST];
        const int given = i ? 1 + below(few ? 40 : 270) : few ? 14 : 240, said = few ? 10 : SAID;
        cairn_session *a, *b;
        random_ids(ids, given);
        a = say(plain, ids, given, said, i % 2 ? 0.9f : 0);
        b = say(m, ids, given, said, i % 2 ? 0.9f : 0);
        same += same_ids(a, b);
        forwards += stats_of(b).forwards;
        if (i % 2 == 0) proposed += stats_of(b).proposed, accepted += stats_of(b).accepted;
        cairn_session_close(a);
        cairn_session_close(b);
    }
    tap_ok(same == runs, "%s, drafts that are %s: %d of %d texts, in %d forwards", where,
           right ? "right" : "another's", same, runs, (int)forwards);
    tap_ok(!right || ((few || proposed > 0) && accepted == proposed), "%s: greedy, %d drafts of %d are right",
           where, (int)accepted, (int)proposed);
    cairn_close(one);
    cairn_close(rt);
}

/* Sessions that are stepped together, with a small budget; each says what it says alone. */
static void test_together(cairn_backend backend) {
    enum { SESSIONS = 3 };
    cairn_model *plain = NULL, *m = NULL;
    cairn_config c = config_of(backend, small_path, K);
    cairn_runtime *one = open_with(config_of(backend, NULL, 0), path, &plain);
    cairn_session *all[SESSIONS], *alone;
    const cairn_sampling sampling = {.temperature = 0.7f, .top_p = 1, .repetition_penalty = 1, .seed = 7};
    const cairn_generate_options o = wishes(&sampling, few ? 6 : 30);
    int32_t ids[SESSIONS][100], pending = 1;
    int same = 0;
    c.draft_adaptive = true;
    cairn_runtime *rt = open_with(c, path, &m);
    for (int i = 0; i < SESSIONS && one && rt; i++) {
        random_ids(ids[i], 90);
        if (cairn_session_open(m, &all[i]) || cairn_append_ids(all[i], ids[i], few ? 9 + i : 60 + 15 * i) ||
            cairn_generate_submit(all[i], "", &o))
            tap_note("%s", cairn_last_error(rt));
    }
    while (one && rt && pending && !cairn_step(m, 100, &pending)) {}
    for (int i = 0; i < SESSIONS && one && rt; i++) {
        alone = say(plain, ids[i], few ? 9 + i : 60 + 15 * i, few ? 6 : 30, 0.7f);
        same += same_ids(all[i], alone);
        cairn_session_close(alone);
    }
    tap_ok(same == SESSIONS, "%s: %d of %d texts that are stepped together", where, same, SESSIONS);
    cairn_close(one);
    cairn_close(rt);
}

/* ---- what is drafted ------------------------------------------------------------------------- */

static int draft_forwards; /* of the model that drafts */
static const model_backend *counted;
static cairn_status count_forward(cairn_model *m, kv_cache *kv, forward_batch *batch) {
    draft_forwards++;
    return counted->forward(m, kv, batch);
}
static cairn_status count_begin(cairn_model *m, kv_cache *kv, forward_batch *batch) {
    draft_forwards++;
    return counted->begin(m, kv, batch);
}

/* Whether the ids' last ones, from `from` on, are what the model would say; close calls may differ. */
static bool are_own_choice(cairn_model *m, const int32_t *ids, int count, int from) {
    static int32_t top[2 * MOST];
    static float logits[2 * MOST];
    double nll;
    cairn_eval_args args;
    memset(&args, 0, sizeof args);
    args.struct_size = sizeof args, args.ids = ids, args.count = count, args.top = 2;
    args.top_ids = top, args.top_logits = logits;
    if (cairn_eval(m, &args, &nll)) return false;
    for (int i = from; i < count; i++)
        if (ids[i] != top[2 * (i - 1)] && logits[2 * (i - 1)] - logits[2 * i - 1] > 0.02f) return false;
    return true;
}

/* After each step what was drafted, and how many forwards that took: of all sessions together one a token,
 * besides those that take in what was said. */
static void test_drafts(cairn_backend backend) {
    cairn_model *m = NULL, *small = NULL;
    cairn_config c = config_of(backend, NULL, 0);
    cairn_session *two[2];
    const cairn_generate_options o = wishes(NULL, few ? 10 : 24);
    cairn_stats stats;
    model_backend counting;
    int32_t ids[2][40], pending = 1;
    int wrong = 0, seen = 0, steps = 0;
    memset(c.selection.layers, 0, sizeof c.selection.layers);
    cairn_runtime *one = open_with(c, small_path, &small);
    c.drafter = CAIRN_DRAFTER_MODEL, c.draft_length = K;
    snprintf(c.drafter_model, sizeof c.drafter_model, "%s", small_path);
    cairn_runtime *rt = open_with(c, path, &m);
    if (!one || !rt) return;
    counted = m->drafts->backend, counting = *counted;
    counting.forward = count_forward, counting.begin = counted->begin ? count_begin : NULL;
    m->drafts->backend = &counting;
    draft_forwards = 0;
    for (int i = 0; i < 2; i++) {
        random_ids(ids[i], 40);
        if (cairn_session_open(m, &two[i]) || cairn_append_ids(two[i], ids[i], 20) ||
            cairn_generate_submit(two[i], "", &o))
            tap_note("%s", cairn_last_error(rt));
    }
    while (pending && !cairn_step(m, 0, &pending))
        for (int i = 0; i < 2; i++) {
            const cairn_session *s = two[i], *d = s->shadow;
            if (!d || s->agreed < s->count || d->count - s->count < K) continue;
            seen++;
            wrong += !are_own_choice(small, d->tokens, d->count, s->count);
        }
    stats = stats_of(two[0]);
    steps = (int)stats.forwards;
    stats = stats_of(two[1]);
    if (steps < (int)stats.forwards) steps = (int)stats.forwards;
    tap_ok(seen > 0 && !wrong, "%s: %d times what is drafted is the small model's own, %d not", where, seen,
           wrong);
    tap_ok(draft_forwards <= (steps + 3) * K + 4, "%s: %d forwards draft for two sessions of %d steps or fewer",
           where, draft_forwards, steps);
    m->drafts->backend = counted;
    cairn_close(one);
    cairn_close(rt);
}

/* ---- what is refused ------------------------------------------------------------------------- */

/* The file with a change: 8 bytes before `from` that count it are `from`'s, `to` is as long. */
static bool write_changed(const char *file, const char *from, size_t at, char to) {
    static char bytes[1 << 20];
    FILE *f = fopen(file, "rb");
    size_t size = f ? fread(bytes, 1, sizeof bytes, f) : 0, found = 0;
    if (f) fclose(f);
    for (size_t i = 8; i + strlen(from) + at < size && !found; i++)
        if (!memcmp(bytes + i, from, strlen(from)) && (size_t)bytes[i - 8] == strlen(from)) found = i;
    bytes[found + at] = to;
    f = found ? fopen(file, "wb") : NULL;
    if (!f) return false;
    found = fwrite(bytes, 1, size, f);
    return !fclose(f) && found == size;
}

static void refuses(const char *drafts, cairn_status expected, const char *text) {
    cairn_config c = config_of(CAIRN_BACKEND_CPU, drafts, K);
    cairn_runtime *rt = NULL;
    cairn_model *m = NULL;
    char error[1024];
    c.max_seq_len = 0;
    cairn_status status = cairn_open(&c, &rt, error, sizeof error);
    if (!status && (status = cairn_load_model(rt, path, &m)))
        snprintf(error, sizeof error, "%s", cairn_last_error(rt));
    tap_ok(status == expected && strstr(error, text), "refused: %s", error);
    cairn_close(rt);
}

static void test_refused(void) {
    static char other[] = "/tmp/other_XXXXXX";
    uint64_t was = state;
    refuses("", CAIRN_INVALID_CONFIG, "drafter = \"model\" needs drafter_model");
    refuses("/tmp/there is no such file", CAIRN_FILE_NOT_FOUND, "no such file");
    if (mkstemp(other) < 0) return;
    tap_ok(write_model(other) && write_changed(other, "ab", 1, 'c'), "other tokens");
    refuses(other, CAIRN_UNSUPPORTED, "first that differs is id 95");
    state = was;
    tap_ok(write_model(other) && write_changed(other, "llama.context_length", 20 + 4 + 1, 1),
           "a shorter context");
    refuses(other, CAIRN_UNSUPPORTED, "a context of 256 tokens");
    remove(other);
}

/* No memory for the session that drafts, while one of the first tokens is made: that one comes without drafts. */
static void test_short(void) {
    cairn_model *plain = NULL, *m = NULL;
    cairn_config c = config_of(CAIRN_BACKEND_CPU, small_path, K);
    cairn_runtime *one = open_with(config_of(CAIRN_BACKEND_CPU, NULL, 0), path, &plain), *rt;
    const cairn_generate_options o = {.struct_size = sizeof o, .max_tokens = 12, .stop_count = -1};
    int32_t ids[20];
    cairn_session *a;
    int same = 0, failed = 0, without = 0;
    c.allocator.realloc = test_realloc;
    rt = open_with(c, path, &m);
    if (!one || !rt) return;
    random_ids(ids, 20);
    a = say(plain, ids, 20, 12, 0);
    for (int at = 0; at < 4; at++) {
        cairn_session *s = NULL;
        cairn_piece piece = {.struct_size = sizeof piece};
        cairn_status status = cairn_session_open(m, &s);
        if (!status) status = cairn_append_ids(s, ids, 20);
        if (!status) status = cairn_generate_begin(s, "", &o);
        for (int i = 0; !status && !piece.stop; i++) {
            allocations_left = i == at ? 0 : -1;
            status = cairn_generate_next(s, &piece);
            allocations_left = -1;
            without += i == at && !status && !s->shadow;
        }
        same += !status && same_ids(a, s);
        failed += status == CAIRN_OUT_OF_MEMORY;
        cairn_session_close(s);
    }
    tap_ok(same + failed == 4 && same > 0 && without > 0,
           "no memory for one token: %d texts of 4 are whole, %d failed, %d pieces without a drafting session", same,
           failed, without);
    cairn_session_close(a);
    cairn_close(one);
    cairn_close(rt);
    tap_ok(!live_blocks, "nothing is left");
}

static void test_backend(cairn_backend backend, const char *name) {
    cairn_config c = config_of(backend, NULL, 0);
    cairn_runtime *rt = open_runtime_on(&c, "drafts by a model");
    where = name, few = is_emulated(backend);
    cairn_close(rt);
    if (!rt) return;
    test_text(backend, path, true);
    test_text(backend, small_path, false);
    test_together(backend);
    test_drafts(backend);
}

int main(void) {
    state = random_seed();
    if (mkstemp(path) < 0 || mkstemp(small_path) < 0 ||
        !tap_ok(write_model(path) && write_model(small_path), "two models are written"))
        return tap_done();
    test_backend(CAIRN_BACKEND_CPU, "cpu");
    test_backend(CAIRN_BACKEND_CUDA, "cuda");
    test_refused();
    test_short();
    remove(path);
    remove(small_path);
    return tap_done();
}
