/* profile: profiles and traces. Percentiles, quantiles, reductions and bins against values by hand; what a
 * profile says of generations against the sessions' own statistics and the ids they said; requests
 * that are left out; a trace as a viewer reads it, with the device's part on a GPU; and nothing at all
 * while neither is taken: no call, no allocation, the same text.
 * emulated: asan */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#ifdef CAIRN_TRACED
enum { TRACED = 1 };
#else /* compiled by hand, without tests/apart.sh */
enum { TRACED = 0 };
static int trace_calls;
#endif
#include "json.h"
#include "tap.h"
#include "backends.h"
#include "small_model.h"

static char path[] = "/tmp/profile_XXXXXX", said_path[64];
static const char *where = "cpu";

static int allocations;
static void *counting_realloc(void *user, void *memory, size_t old_bytes, size_t new_bytes) {
    (void)user, (void)old_bytes;
    if (!new_bytes) return free(memory), NULL;
    allocations++;
    return realloc(memory, new_bytes);
}

static cairn_runtime *open_model(cairn_backend backend, cairn_model **m) {
    cairn_config c;
    cairn_config_default(&c);
    c.backend = backend, c.threads = 2, c.page_size = PAGE, c.max_batch = 3, c.max_seq_len = 160;
    c.prefill_chunk = 32, c.log = CAIRN_LOG_OFF, c.topk = 1;
    c.selection.window = 20, c.selection.sinks = 2;
    c.allocator.realloc = counting_realloc;
    cairn_runtime *rt = open_runtime_on(&c, "profile");
    if (rt && cairn_load_model(rt, path, m)) {
        tap_ok(false, "load: %s", cairn_last_error(rt));
        cairn_close(rt);
        return NULL;
    }
    return rt;
}

/* ---- figures --------------------------------------------------------------------------------- */

static void test_figures(void) {
    static const int edges[] = {0, 511, 512, 1023, 1024, 2047, 2048, 4095, 4096, 8191, 8192, 16383,
                                16384, INT32_MAX};
    static const int32_t one[] = {7}, two[] = {3, 9};
    int32_t hundred[100], mixed[] = {40, 10, 20, 31};
    int wrong = 0;
    for (int i = 0; i < 100; i++) hundred[i] = i + 1;
    for (size_t i = 0; i < BASE_COUNT(edges); i++) wrong += profile_bin(edges[i]) != (int)i / 2;
    tap_ok(!wrong, "bins begin and end where they should");
    tap_ok(profile_percentile(one, 1, 50) == 7 && profile_percentile(one, 1, 99) == 7 &&
               profile_percentile(two, 2, 50) == 3 && profile_percentile(two, 2, 90) == 9 &&
               profile_percentile(hundred, 100, 50) == 50 && profile_percentile(hundred, 100, 90) == 90 &&
               profile_percentile(hundred, 100, 99) == 99, "percentiles are nearest ranks");
    tap_ok(profile_quantile(two, 2, 0.5) > 5.99 && profile_quantile(two, 2, 0.5) < 6.01 &&
               profile_quantile(hundred, 100, 0.9) > 90.09 && profile_quantile(hundred, 100, 0.9) < 90.11,
           "quantiles lie between ranks");
    tap_ok(profile_reduce(mixed, 4, CAIRN_REDUCE_MEAN) == 25 &&
               profile_reduce(mixed, 4, CAIRN_REDUCE_MAX) == 40 &&
               profile_reduce(mixed, 4, CAIRN_REDUCE_P50) == 25 /* 25.5 */ &&
               profile_reduce(mixed, 4, CAIRN_REDUCE_P90) == 37 /* 37.3 */ &&
               profile_reduce(mixed, 4, CAIRN_REDUCE_SUM) == 101 &&
               profile_reduce(hundred, 1, CAIRN_REDUCE_P90) == 1, "lengths are reduced, fractions left out");
}

/* ---- profiles -------------------------------------------------------------------------------- */

static json_value *parse(const char *text, size_t bytes) {
    FILE *file = fopen(said_path, "wb");
    if (file) fwrite(text, 1, bytes, file), fclose(file);
    return json_read(said_path);
}

static json_value *profile_of(cairn_model *m) {
    size_t bytes = 0;
    cairn_status status = cairn_profile_text(m, CAIRN_PROFILE_JSON, NULL, 0, &bytes);
    char *text = (char *)malloc(bytes + 1);
    json_value *read;
    if (status || cairn_profile_text(m, CAIRN_PROFILE_JSON, text, bytes + 1, &bytes))
        tap_note("%s", cairn_last_error(m->runtime));
    read = parse(text, bytes);
    free(text);
    return read;
}

static int number(const json_value *object, const char *name) {
    const json_value *v = json_get(object, name);
    return v && v->kind == '0' ? (int)v->number : -1;
}

/* Sums of a list's member; of numbers in lists where there is no name. */
static double sum(const json_value *list, const char *name) {
    double all = 0;
    for (const json_value *v = list->first; v; v = v->next)
        all += !name ? v->kind == '[' ? sum(v, NULL) : v->number : json_get(v, name)->number;
    return all;
}

static cairn_generate_options wishes(int tokens) {
    static const cairn_logit_bias no_end = {END, -INFINITY};
    cairn_generate_options o;
    memset(&o, 0, sizeof o);
    o.struct_size = sizeof o, o.max_tokens = tokens, o.stop_count = -1;
    o.logit_bias = &no_end, o.logit_bias_count = 1;
    return o;
}

static cairn_stats say(cairn_model *m, const char *prompt, int tokens) {
    const cairn_generate_options o = wishes(tokens);
    cairn_stats stats = {.struct_size = sizeof stats};
    cairn_session *s;
    if (cairn_session_open(m, &s) || cairn_generate_with(s, prompt, &o, NULL, NULL))
        tap_note("%s", cairn_last_error(m->runtime));
    cairn_session_stats(s, &stats);
    cairn_session_close(s);
    return stats;
}

static void test_profile(cairn_model *m, int tokens) {
    const char *prompt = "abcabcabcabcabcabcabcabcabcabcabcabcabc";
    cairn_profile_options o = {.struct_size = sizeof o, .warmup = 1};
    cairn_stats stats;
    json_value *p;
    tap_ok(!cairn_profile_start(m, &o), "on %s: a profile", where);
    p = profile_of(m);
    tap_ok(number(p, "steps") == 0 && json_get(json_get(p, "latency_us"), "p50")->kind == 'n' &&
               json_get(p, "pages")->kind == 'n' && number(json_get(p, "first_token"), "count") == 0,
           "on %s: of nothing: no steps, and null", where);
    json_free(p);
    say(m, "what is left out", 5);
    stats = say(m, prompt, tokens);
    p = profile_of(m);
    tap_ok(number(p, "requests") == 2 && number(json_get(p, "first_token"), "count") == 1 &&
               json_get(json_get(json_get(p, "first_token"), "us"), "p99")->number > 0,
           "on %s: two requests, the first is left out", where);
    tap_ok(number(p, "steps") == stats.forwards && number(p, "tokens") >= stats.decoded &&
               number(p, "tokens") <= stats.decoded + 16, /* a last step may give more than is used */
           "on %s: %d steps, %d tokens; statistics say %d and %d", where, number(p, "steps"),
           number(p, "tokens"), stats.forwards, stats.decoded);
    tap_ok((int)sum(json_get(p, "acceptance"), "proposed") == stats.proposed &&
               (int)sum(json_get(p, "acceptance"), "accepted") == stats.accepted,
           "on %s: %d of %d drafts accepted, by position", where, stats.accepted, stats.proposed);
    tap_ok((int)sum(json_get(p, "bins"), "steps") == stats.forwards &&
               number(json_get(p, "bins")->first, "tokens") == number(p, "tokens") &&
               json_get(p, "bins")->size == 7, "on %s: every step in its bin", where);
    double pages = sum(json_get(p, "pages"), NULL) / (LAYERS * KV_HEADS);
    tap_ok(json_get(p, "pages")->size == LAYERS && fabs(pages - stats.pages_read) < 0.01,
           "on %s: pages by layer and head: %.3f a step in the mean, statistics say %.3f", where, pages,
           stats.pages_read);
    tap_ok(number(json_get(json_get(p, "phases"), "prompt"), "rows") > 39 &&
               number(json_get(json_get(p, "phases"), "decode"), "count") >= stats.forwards,
           "on %s: phases", where);
    json_free(p);
    tap_ok(!cairn_profile_start(m, NULL) && !cairn_profile_stop(m), "begun anew, and ended");
}

/* Rows cost next to nothing, whatever they did on this machine: prompts are not cut into slices. */
static void make_cheap(cairn_model *m) {
    for (int i = 0; i < ENGINE_COSTS; i++) m->scratch->cost_us[i] = 1;
}

/* Several rows at once: a step's length is what was asked for. */
static void test_together(cairn_model *m) {
    static const int32_t wanted[] = {CAIRN_REDUCE_MEAN, CAIRN_REDUCE_MAX, CAIRN_REDUCE_SUM};
    const cairn_generate_options o = wishes(4);
    int lengths[3] = {0};
    m->runtime->config.drafter = CAIRN_DRAFTER_NONE;
    for (int i = 0; i < 3; i++) {
        cairn_profile_options with = {.struct_size = sizeof with, .kv_len_reduce = wanted[i]};
        cairn_session *two[2];
        int32_t pending = 1;
        cairn_profile_start(m, &with);
        for (int j = 0; j < 2; j++) {
            cairn_session_open(m, &two[j]);
            cairn_generate_submit(two[j], j ? "abcdefghij" : "abcd", &o);
        }
        make_cheap(m);
        while (pending && !cairn_step(m, 1000000, &pending)) {}
        lengths[i] = ((const profile_step *)(const void *)m->scratch->profile->steps.data)->length;
        for (int j = 0; j < 2; j++) cairn_session_close(two[j]);
        cairn_profile_stop(m);
    }
    tap_ok(lengths[0] == 8 && lengths[1] == 11 && lengths[2] == 16,
           "rows of 5 and 11 tokens: mean %d, max %d, sum %d", lengths[0], lengths[1], lengths[2]);
    m->runtime->config.drafter = CAIRN_DRAFTER_NGRAM;
}

static void test_markdown(cairn_model *m) {
    char text[8192], few[10];
    size_t bytes;
    cairn_profile_start(m, NULL);
    say(m, "abc", 3), say(m, "abcabc", 9);
    cairn_status status = cairn_profile_text(m, CAIRN_PROFILE_MARKDOWN, text, sizeof text, &bytes);
    tap_ok(!status && strlen(text) == bytes && strstr(text, "\n## Steps\n\n| length |") &&
               strstr(text, "\n| 16384 to null |") && strstr(text, "\n| decode | "),
           "on %s: as Markdown, %d bytes", where, (int)bytes);
    tap_ok(cairn_profile_text(m, CAIRN_PROFILE_JSON, few, sizeof few, &bytes) == CAIRN_INVALID_ARGUMENT &&
               cairn_profile_text(m, (cairn_profile_form)9, text, sizeof text, NULL) ==
                   CAIRN_INVALID_ARGUMENT, "a short buffer, an unknown form: %s",
           cairn_last_error(m->runtime));
    cairn_profile_stop(m);
}

static void test_refused(cairn_model *m) {
    cairn_profile_options o = {.struct_size = sizeof o, .warmup = -1};
    size_t bytes;
    tap_ok(cairn_profile_start(m, &o) == CAIRN_INVALID_ARGUMENT, "%s", cairn_last_error(m->runtime));
    o.warmup = 0, o.kv_len_reduce = CAIRN_REDUCE_SUM + 1;
    tap_ok(cairn_profile_start(m, &o) == CAIRN_INVALID_ARGUMENT && !m->scratch->profile, "%s",
           cairn_last_error(m->runtime));
    tap_ok(cairn_profile_text(m, CAIRN_PROFILE_JSON, NULL, 0, &bytes) == CAIRN_INVALID_ARGUMENT, "%s",
           cairn_last_error(m->runtime));
    tap_ok(cairn_trace_text(m->runtime, NULL, 0, &bytes) == CAIRN_INVALID_ARGUMENT &&
               cairn_trace_start(m->runtime, -1) == CAIRN_INVALID_ARGUMENT, "%s",
           cairn_last_error(m->runtime));
    tap_ok(!cairn_profile_stop(m) && !cairn_trace_stop(m->runtime), "ended without having begun");
}

/* ---- traces ---------------------------------------------------------------------------------- */

static json_value *trace_of(cairn_runtime *rt) {
    size_t bytes = 0;
    cairn_status status = cairn_trace_text(rt, NULL, 0, &bytes);
    char *text = (char *)malloc(bytes + 1);
    json_value *read;
    if (status || cairn_trace_text(rt, text, bytes + 1, &bytes)) tap_note("%s", cairn_last_error(rt));
    read = parse(text, bytes);
    free(text);
    return read;
}

/* Ranges of a track by that name whose times make sense. */
static int ranges(const json_value *from, int track, const char *name) {
    int count = 0;
    for (const json_value *e = json_get(from, "traceEvents")->first; e; e = e->next)
        if (json_get(e, "ph")->text[0] == 'X' && number(e, "tid") == track &&
            (!name || !strcmp(json_get(e, "name")->text, name)) &&
            json_get(e, "dur")->number >= 0 && json_get(e, "ts")->number > -1000)
            count++;
    return count;
}

static void test_trace(cairn_runtime *rt, cairn_model *m, bool cuda) {
    const int64_t shape[2] = {2, 64};
    cairn_tensor *scores = NULL, *top = NULL;
    const int64_t top_shape[2] = {2, 4};
    cairn_topk_args a;
    cairn_stats stats;
    json_value *t;
    memset(&a, 0, sizeof a);
    cairn_tensor_new(rt, CAIRN_F32, 2, shape, &scores), cairn_tensor_new(rt, CAIRN_I32, 2, top_shape, &top);
    a.struct_size = sizeof a, a.scores = scores, a.indices = top, a.k = 4;
    tap_ok(!cairn_trace_start(rt, 0), "on %s: a trace", where);
    a.k = 0;
    cairn_topk(rt, &a); /* refused: it leaves no range */
    a.k = 4;
    tap_ok(!cairn_topk(rt, &a), "an op: %s", cairn_last_error(rt));
    t = trace_of(rt);
    tap_ok(ranges(t, 1, "topk") == 1 && ranges(t, 1, NULL) == 1, "on %s: its range ends with it", where);
    json_free(t);
    tap_ok(!cairn_sync(rt), "on %s: %s", where, cairn_last_error(rt));
    stats = say(m, "abcabcabcabcabcabc", 12);
    t = trace_of(rt);
    tap_ok(ranges(t, 1, "topk") == 1 && ranges(t, 1, "append") > 0 && ranges(t, 1, "plan") > 0 &&
               ranges(t, 1, "decode") >= stats.forwards && ranges(t, 1, "draft") > 0 &&
               ranges(t, 1, "verify") == stats.forwards, "on %s: an op and the phases of %d steps", where,
           stats.forwards);
    tap_ok(cuda ? ranges(t, 1, "wait") > 0 && ranges(t, 2, "decode") == stats.forwards &&
                      ranges(t, 2, "topk") == 1
                : !ranges(t, 2, NULL) && !ranges(t, 1, "wait"),
           "on %s: %d ranges of the device, %d waits", where, ranges(t, 2, NULL), ranges(t, 1, "wait"));
    json_free(t);
    cairn_trace_start(rt, 3);
    say(m, "abc", 6);
    t = trace_of(rt);
    tap_ok(ranges(t, 1, NULL) == 3 && number(json_get(t, "otherData"), "dropped") > 0,
           "on %s: room for three, the others are counted", where);
    json_free(t);
    tap_ok(!cairn_trace_stop(rt) && !rt->device.trace, "ended");
    cairn_tensor_free(rt, scores), cairn_tensor_free(rt, top);
}

/* ---- off ------------------------------------------------------------------------------------- */

static struct driver_calls real;
static int launches, copied;
static CUresult count_launch(const CUlaunchConfig *how, CUfunction f, void **params, void **extra) {
    return launches++, real.cuLaunchKernelEx(how, f, params, extra);
}
static CUresult count_graph(CUgraphExec graph, CUstream stream) {
    return launches++, real.cuGraphLaunch(graph, stream);
}
static CUresult count_copy(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copied += (int)bytes, real.cuMemcpyDtoHAsync(to, from, bytes, stream);
}

/* What a text took: allocations, what was launched, the bytes that came from the device. */
typedef struct effort { int allocations, launches, copied; } effort;

/* A session's ids after a prompt; its rows choose pages towards the end. */
static effort text_of(cairn_model *m, int32_t *ids, int *count) {
    const cairn_generate_options o = wishes(30);
    struct driver_calls *drv = m->runtime->device.drv;
    cairn_session *s;
    effort took;
    cairn_session_open(m, &s);
    if (drv) {
        real = *drv;
        drv->cuLaunchKernelEx = count_launch, drv->cuGraphLaunch = count_graph;
        drv->cuMemcpyDtoHAsync = count_copy;
    }
    took.allocations = allocations, launches = copied = 0;
    cairn_generate_with(s, "abcabcabcabcabcabcabcabcabcabc", &o, NULL, NULL);
    took.allocations = allocations - took.allocations, took.launches = launches, took.copied = copied;
    if (drv) *drv = real;
    const int32_t *all = cairn_session_ids(s, count);
    memcpy(ids, all, (size_t)*count * sizeof *ids);
    cairn_session_close(s);
    return took;
}

static void test_off(cairn_runtime *rt, cairn_model *m) {
    int32_t off[160], on[160], again[160];
    int counts[3];
    effort first, with, last;
    m->runtime->config.drafter = CAIRN_DRAFTER_NONE; /* which follows the clock, and so what it takes */
    text_of(m, off, &counts[0]);
    if (rt->jit) jit_wait(rt->jit); /* what is compiled meanwhile is loaded by the next that wants it */
    text_of(m, off, &counts[0]);
    trace_calls = 0;
    first = text_of(m, off, &counts[0]);
    tap_ok(!trace_calls && !rt->device.trace && !m->scratch->profile && !m->scratch->batch.heat,
           "on %s: off: not one call of the trace, nothing held", where);
    cairn_trace_start(rt, 0), cairn_profile_start(m, NULL);
    with = text_of(m, on, &counts[1]);
    tap_ok((trace_calls > 0 || !TRACED) && counts[0] == counts[1] &&
               !memcmp(off, on, (size_t)counts[0] * sizeof *off) && with.launches == first.launches &&
               (m->runtime->device.cuda ? with.copied > first.copied : !with.copied),
           "on %s: on: the same ids, %d launches, before %d, %d bytes from the device, before %d", where,
           with.launches, first.launches, with.copied, first.copied);
    cairn_trace_stop(rt), cairn_profile_stop(m);
    trace_calls = 0;
    last = text_of(m, again, &counts[2]);
    tap_ok(!trace_calls && !memcmp(&first, &last, sizeof last) && counts[2] == counts[0] &&
               !memcmp(off, again, (size_t)counts[0] * sizeof *off),
           "on %s: off again: %d calls of the trace, %d allocations, before %d, %d launches, %d bytes, %d ids, "
           "before %d", where, trace_calls, last.allocations, first.allocations, last.launches, last.copied,
           counts[2], counts[0]);
    m->runtime->config.drafter = CAIRN_DRAFTER_NGRAM;
}

static void test_backend(cairn_backend backend) {
    cairn_model *m = NULL;
    cairn_runtime *rt = open_model(backend, &m);
    const bool cuda = backend == CAIRN_BACKEND_CUDA;
    where = cuda ? "cuda" : "cpu";
    if (!rt) return;
    test_off(rt, m);
    test_profile(m, is_emulated(backend) ? 20 : 80);
    test_trace(rt, m, cuda);
    if (!is_emulated(backend)) test_together(m), test_markdown(m), test_refused(m);
    cairn_trace_start(rt, 0), cairn_profile_start(m, NULL); /* closing ends both */
    say(m, "abc", 2);
    cairn_close(rt);
}

int main(void) {
    int file = mkstemp(path);
    state = random_seed();
    if (!tap_ok(file >= 0 && write_model(path), "a small model is written")) return tap_done();
    snprintf(said_path, sizeof said_path, "%s.json", path);
    test_figures();
    test_backend(CAIRN_BACKEND_CPU);
    test_backend(CAIRN_BACKEND_CUDA);
    remove(path), remove(said_path);
    return tap_done();
}
