/* engine: sessions on a toy model against a naive re-implementation (plain loop, no pages, no
 * drafts, everything recomputed): text, ids and stops are the same whatever is drafted, wherever a
 * generation is cut, cancelled or fails, and whatever memory does. */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "random.h"
#include "tap.h"
#include "toy_model.h"

static const char *toy_path = "build/toy_engine.gguf";
static uint64_t random_state = 1;

static uint32_t rnd(uint32_t below) {
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(random_state >> 33) % below;
}

/* An allocator that counts live bytes, checks sizes, and fails on demand. */
typedef struct meter { size_t live; int left; bool always, wrong; } meter;

static void *meter_realloc(void *user, void *memory, size_t old_bytes, size_t new_bytes) {
    meter *m = (meter *)user;
    size_t *block = memory ? (size_t *)memory - 2 : NULL;
    if (new_bytes && m->left == 0) {
        if (!m->always) m->left = -1;
        return NULL;
    }
    if (new_bytes && m->left > 0) m->left--;
    if (block && block[0] != old_bytes) m->wrong = true;
    m->live += new_bytes - old_bytes;
    if (!new_bytes) {
        free(block);
        return NULL;
    }
    block = (size_t *)realloc(block, new_bytes + 2 * sizeof *block);
    block[0] = new_bytes;
    return block + 2;
}

static meter memory_meter;

static void toy_config(cairn_config *c) {
    cairn_config_default(c);
    c->backend = CAIRN_BACKEND_CPU;
    c->threads = 1;
    c->page_size = 16;
    c->prefill_chunk = 16;
    c->max_batch = 2;
    c->allocator.user = &memory_meter;
    c->allocator.realloc = meter_realloc;
}

static cairn_runtime *open_runtime(const cairn_config *c) {
    char error[1024];
    cairn_runtime *rt = NULL;
    if (cairn_open(c, &rt, error, sizeof error)) tap_ok(false, "cairn_open: %s", error);
    return rt;
}

static cairn_model *open_model(cairn_runtime *rt) {
    cairn_model *m = NULL;
    if (toy_load(rt, toy_path, &m)) tap_ok(false, "load: %s", rt->base.error);
    return m;
}

/* ---- naive re-implementation ----------------------------------------------------------------- */

typedef struct naive {
    int32_t ids[TOY_CONTEXT + 1];
    bool given[TOY_CONTEXT + 1]; /* it came from a prompt */
    int count;
    int32_t out[TOY_CONTEXT];    /* the last generation */
    int out_count;
    char text[12 * TOY_CONTEXT];
    size_t text_bytes;
    cairn_stop stop;
} naive;

static void naive_philox(uint64_t key, uint32_t c[4]) {
    uint32_t k[2];
    k[0] = (uint32_t)(key & 0xffffffffu), k[1] = (uint32_t)(key >> 32);
    for (int i = 0; i < 10; i++) {
        uint64_t a = 0xD2511F53ull * c[0], d = 0xCD9E8D57ull * c[2];
        uint32_t n[4];
        n[0] = (uint32_t)(d >> 32) ^ c[1] ^ k[0], n[1] = (uint32_t)d;
        n[2] = (uint32_t)(a >> 32) ^ c[3] ^ k[1], n[3] = (uint32_t)a;
        memcpy(c, n, sizeof n);
        k[0] += 0x9E3779B9u, k[1] += 0xBB67AE85u;
    }
}

typedef struct ranked { double p; int id; } ranked;
static int ranked_order(const void *a, const void *b) {
    double x = ((const ranked *)a)->p, y = ((const ranked *)b)->p;
    return x < y ? 1 : x > y ? -1 : ((const ranked *)a)->id - ((const ranked *)b)->id;
}

/* Sorts everything and cuts the list: what sampling means, said in another way. */
static int32_t naive_sample(const cairn_sampling *s, const float *logits, int position) {
    ranked r[TOY_VOCAB];
    uint32_t c[4] = {0, 0, 0, 0};
    double total = 0, mass = 0, u, sum = 0;
    int keep = TOY_VOCAB, n;
    double best = -1e30;
    for (int i = 0; i < TOY_VOCAB; i++) best = logits[i] > best ? logits[i] : best;
    for (int i = 0; i < TOY_VOCAB; i++) {
        r[i].id = i;
        /* what f32 makes equal is a tie, which top-k keeps whole */
        r[i].p = s->temperature > 0 ? exp((double)((logits[i] - (float)best) / s->temperature))
                                    : (logits[i] == best ? 1.0 : 0.0);
    }
    qsort(r, TOY_VOCAB, sizeof *r, ranked_order);
    if (!(s->temperature > 0)) return r[0].id;
    if (s->top_k > 0)
        for (keep = s->top_k < TOY_VOCAB ? s->top_k : TOY_VOCAB;
             keep < TOY_VOCAB && r[keep].p == r[keep - 1].p; keep++) {}
    for (int i = 0; i < keep; i++) total += r[i].p;
    for (n = 0; n < keep && (n == 0 || mass < s->top_p * total || r[n].p == r[n - 1].p); n++)
        mass += r[n].p;
    if (s->top_p >= 1) n = keep;
    while (n > 1 && r[n - 1].p < s->min_p) n--;
    c[0] = (uint32_t)position;
    naive_philox((uint64_t)s->seed, c);
    u = (double)(c[0] >> 8) / 16777216.0;
    mass = 0;
    for (int i = 0; i < n; i++) mass += r[i].p;
    for (int id = 0; id < TOY_VOCAB; id++)
        for (int i = 0; i < n; i++)
            if (r[i].id == id && (sum += r[i].p) > u * mass) return id;
    return r[0].id;
}

/* How long the character that begins with `lead` is, and what its second byte may be. */
static size_t naive_need(unsigned char lead, unsigned char *low, unsigned char *high) {
    *low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    *high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    return lead < 0x80 ? 1 : lead < 0xC2 || lead > 0xF4 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

/* Text of ids by bytes: whole characters, U+FFFD for each longest part of one that cannot become
 * whole; an unfinished end waits. */
static size_t naive_text(const int32_t *ids, int count, bool finished, char *out) {
    unsigned char bytes[12 * TOY_CONTEXT], low, high;
    size_t n = 0, used = 0, i = 0;
    for (int k = 0; k < count; k++) {
        if (ids[k] == TOY_AB) bytes[n++] = 'a', bytes[n++] = 'b';
        else if (ids[k] == TOY_SPECIAL) memcpy(bytes + n, "<special>", 9), n += 9;
        else if (ids[k] < 256) bytes[n++] = (unsigned char)ids[k];
    }
    while (i < n) {
        size_t need = naive_need(bytes[i], &low, &high), have = 1;
        while (have < need && i + have < n && bytes[i + have] >= (have == 1 ? low : 0x80) &&
               bytes[i + have] <= (have == 1 ? high : 0xBF))
            have++;
        if (have < need && i + have == n && !finished) break;
        if (need && have == need) memcpy(out + used, bytes + i, have), used += have;
        else memcpy(out + used, "\xEF\xBF\xBD", 3), used += 3;
        i += have;
    }
    out[used] = '\0';
    return used;
}

static void naive_append(naive *o, const int32_t *ids, int count) {
    for (int i = 0; i < count; i++) o->ids[o->count] = ids[i], o->given[o->count++] = true;
}

/* Whether a row attends all: it came from a prompt, or a prompt follows it, with which it rides. */
static bool naive_dense(const naive *o, int i) {
    return o->given[i] || (i + 1 < o->count && o->given[i + 1]);
}

static bool naive_stops(naive *o, const char *const *stops, int stop_count) {
    char *first = NULL;
    for (int i = 0; i < stop_count; i++) {
        char *at = strstr(o->text, stops[i]);
        if (at && (!first || at < first)) first = at;
    }
    if (first) *first = '\0', o->text_bytes = (size_t)(first - o->text);
    return first != NULL;
}

/* The ids after a stop string: those whose text lies before it, then what is left of the text, each
 * byte a token but for "ab", as far as the context goes. */
static void naive_cut(naive *o, int context) {
    static char part[12 * TOY_CONTEXT];
    int first = o->count - o->out_count, k = o->out_count;
    size_t bytes = 0;
    for (; k > 0; k--) {
        bytes = naive_text(o->out, k, false, part);
        if (bytes <= o->text_bytes && bytes == naive_text(o->out, k, true, part)) break;
    }
    if (!k) bytes = 0;
    for (o->count = first + k; bytes < o->text_bytes && o->count < context; bytes++) {
        bool pair = o->text[bytes] == 'a' && o->text[bytes + 1] == 'b';
        o->ids[o->count] = pair ? TOY_AB : (unsigned char)o->text[bytes];
        o->given[o->count++] = false;
        bytes += pair;
    }
}

static void naive_generate(naive *o, int max_tokens, int context, const cairn_sampling *s,
                           const char *const *stops, int stop_count) {
    o->out_count = 0;
    o->stop = CAIRN_STOP_NONE;
    while (!o->stop) {
        float logits[TOY_VOCAB];
        int32_t entries[TOY_CONTEXT + 1];
        bool seen[TOY_VOCAB] = {false};
        if (o->count >= context || (max_tokens && o->out_count >= max_tokens)) {
            o->stop = CAIRN_STOP_LENGTH;
            break;
        }
        for (int i = 0; i < o->count; i++) entries[i] = toy_entry(o->ids[i], naive_dense(o, i));
        toy_logits(entries, o->count, logits);
        for (int i = 0; i < o->count; i++) seen[o->ids[i]] = true;
        for (int v = 0; v < TOY_VOCAB && s->repetition_penalty != 1; v++)
            if (seen[v]) logits[v] = logits[v] > 0 ? logits[v] / s->repetition_penalty
                                                   : logits[v] * s->repetition_penalty;
        o->ids[o->count] = o->out[o->out_count] = naive_sample(s, logits, o->count);
        o->given[o->count++] = false;
        if (o->out[o->out_count++] == TOY_END) {
            o->stop = CAIRN_STOP_EOS;
            break;
        }
        o->text_bytes = naive_text(o->out, o->out_count, false, o->text);
        if (naive_stops(o, stops, stop_count)) {
            o->stop = CAIRN_STOP_STRING;
            naive_cut(o, context);
            return;
        }
    }
    o->text_bytes = naive_text(o->out, o->out_count, true, o->text);
}

/* ---- what a caller sees ---------------------------------------------------------------------- */

typedef struct heard {
    char text[12 * TOY_CONTEXT];
    size_t bytes;
    int pieces, stop_after; /* stop_after pieces the callback says false; -1: never */
    bool split;             /* a piece was not whole UTF-8 */
} heard;

static bool whole_characters(const char *text, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        unsigned char lead = (unsigned char)text[i];
        int more = lead < 0x80 ? 0 : lead < 0xC2 ? -1 : lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
        if (more < 0) return false;
        for (; more > 0; more--)
            if (++i >= bytes || ((unsigned char)text[i] & 0xC0) != 0x80) return false;
    }
    return bytes > 0;
}

static bool hear(void *user, const char *text, size_t bytes) {
    heard *h = (heard *)user;
    if (!whole_characters(text, bytes)) h->split = true;
    memcpy(h->text + h->bytes, text, bytes);
    h->bytes += bytes;
    h->text[h->bytes] = '\0';
    return h->pieces++ != h->stop_after;
}

static bool same_ids(cairn_session *s, const naive *o) {
    int count;
    const int32_t *ids = cairn_session_ids(s, &count);
    return count == o->count && !memcmp(ids, o->ids, (size_t)count * sizeof *ids);
}

static int random_prompt(char *out, int most) {
    static const char *const parts[] = {"a", "b", "ab", "c", "d ", "\xC3\xA9", "cd", "abcab", "x"};
    int length = (int)rnd((uint32_t)most) + 1;
    *out = '\0';
    for (int i = 0; i < length; i++) strcat(out, parts[rnd(9)]);
    return length;
}

static void random_sampling(cairn_sampling *s) {
    static const float temperatures[] = {0, 0, 0.3f, 1, 3};
    s->temperature = temperatures[rnd(5)];
    s->top_k = rnd(2) ? 0 : (int)rnd(8) + 1;
    s->top_p = rnd(2) ? 1.0f : 0.2f + 0.1f * (float)rnd(8);
    s->min_p = rnd(3) ? 0.0f : 0.05f * (float)rnd(10);
    s->repetition_penalty = rnd(2) ? 1.0f : 0.8f + 0.1f * (float)rnd(6);
    s->seed = (int64_t)(((uint64_t)rnd(1u << 30) << 33) >> 1 | rnd(1000));
}

static void random_drafting(cairn_config *c) {
    c->draft_length = (int32_t)rnd(17);
    c->drafter = rnd(5) ? CAIRN_DRAFTER_NGRAM : CAIRN_DRAFTER_NONE;
}

static const char *const stop_pool[] = {"abab", "cd", "a a", "\xC3\xA9\x61", "dd",
                                        "abcabc", "b", "\xE2\x82\xAC"};

/* Everything a generation handed out is what the naive one says. */
static bool matches(cairn_session *s, const naive *o, const heard *h, cairn_status status,
                    const char *what) {
    cairn_stats stats;
    bool good;
    stats.struct_size = sizeof stats;
    cairn_session_stats(s, &stats);
    good = !status && same_ids(s, o) && h->bytes == o->text_bytes &&
           !memcmp(h->text, o->text, h->bytes) && stats.stop == o->stop &&
           stats.generated == o->out_count && !h->split && !toy_faults &&
           stats.accepted <= stats.proposed && stats.decoded <= stats.forwards + stats.accepted;
    if (!good)
        tap_note("%s: status %s, ids %s, text \"%s\" want \"%s\", stop %s want %s, %d of %d ids, "
                 "split %d, faults %d", what, cairn_status_name(status),
                 same_ids(s, o) ? "same" : "differ", h->text, o->text, cairn_stop_name(stats.stop),
                 cairn_stop_name(o->stop), (int)stats.generated, o->out_count, h->split,
                 toy_faults);
    return good;
}

/* ---- turns with anything drafted ------------------------------------------------------------- */

static cairn_status pull(cairn_session *s, const char *prompt,
                         const cairn_generate_options *options, heard *h) {
    cairn_piece piece;
    cairn_status status = cairn_generate_begin(s, prompt, options);
    piece.struct_size = sizeof piece;
    piece.stop = CAIRN_STOP_NONE;
    while (!status && !piece.stop) {
        status = cairn_generate_next(s, &piece);
        if (piece.bytes) hear(h, piece.text, piece.bytes);
    }
    return status;
}

static char turn_stem[256]; /* what the prompt of a first turn begins with */

static bool one_turn(cairn_session *s, naive *o, cairn_config *config, int turn) {
    const char *stops[3];
    char prompt[512] = "";
    cairn_generate_options options;
    cairn_sampling sampling = config->sampling;
    heard h;
    tokenizer_ids ids;
    cairn_status status;
    int split = (int)rnd(3);
    memset(&options, 0, sizeof options);
    memset(&h, 0, sizeof h);
    memset(&ids, 0, sizeof ids);
    h.stop_after = -1;
    if (turn == 0) strcpy(prompt, turn_stem);
    if (turn == 0 || rnd(4)) random_prompt(prompt + strlen(prompt), 40);
    random_sampling(&sampling);
    options.struct_size = sizeof options;
    options.sampling = &sampling;
    options.max_tokens = rnd(4) ? (int)rnd(60) + 1 : 0;
    options.stop_count = rnd(2) ? -1 : (int)rnd(3) + 1;
    for (int i = 0; i < options.stop_count; i++) stops[i] = stop_pool[rnd(8)];
    options.stop = stops;
    tokenizer_encode(engine_base(s), &s->model->tokenizer, prompt, strlen(prompt), true, &ids);
    if (o->count + (int)ids.size > s->model->max_seq_len) {
        tokenizer_ids_free(engine_base(s), &ids);
        return true;
    }
    naive_append(o, ids.data, (int)ids.size);
    tokenizer_ids_free(engine_base(s), &ids);
    naive_generate(o, options.max_tokens, s->model->max_seq_len, &sampling, stops,
                   options.stop_count < 0 ? 0 : options.stop_count);
    if (split == 0 && *prompt) {
        status = cairn_append(s, prompt);
        if (!status) status = cairn_generate_with(s, NULL, &options, hear, &h);
    } else if (split == 1) {
        status = pull(s, prompt, &options, &h);
    } else {
        status = cairn_generate_with(s, prompt, &options, hear, &h);
    }
    return matches(s, o, &h, status, "turn");
}

static bool turns(uint64_t seed) {
    static const int sizes[] = {16, 32, 64};
    cairn_config c;
    cairn_runtime *rt;
    cairn_session *s = NULL;
    naive *o = (naive *)calloc(1, sizeof *o);
    bool good = true;
    random_state = seed;
    toy_config(&c);
    c.page_size = sizes[rnd(3)];
    c.prefill_chunk = 16 + (int32_t)rnd(40);
    c.max_seq_len = 100 + (int32_t)rnd(250);
    c.memory.prefix_cache = rnd(2);
    random_drafting(&c);
    toy_loops = (float)rnd(11) / 10;
    rt = open_runtime(&c);
    cairn_session_open(open_model(rt), &s);
    for (int turn = 0; turn < 4 && good; turn++) {
        if (turn && !rnd(3)) {
            int keep = (int)rnd((uint32_t)o->count + 1);
            good = !cairn_session_rewind(s, keep);
            o->count = keep;
            if (!keep && good) turn = -1;
        }
        random_drafting(&rt->config); /* hot fields, between turns */
        rt->config.selection.source = rnd(2) ? CAIRN_SOURCE_MEAN : CAIRN_SOURCE_MINMAX;
        good = good && one_turn(s, o, &c, o->count ? turn : 0);
        if (turn < 0) break;
    }
    free(o);
    cairn_close(rt);
    if (!good) tap_note("seed %llu", (unsigned long long)seed);
    return good;
}

static void test_turns(uint64_t seed, int runs) {
    int good = 0;
    for (int i = 0; i < runs; i++) good += turns(seed + (uint64_t)i);
    tap_ok(good == runs, "%d of %d sequences of turns equal the naive loop (seed %llu)", good, runs,
           (unsigned long long)seed);
    tap_ok(!memory_meter.live && !memory_meter.wrong, "no byte is left, every size is right");
}

/* ---- forks ----------------------------------------------------------------------------------- */

enum { FORKS = 5 };

/* Sessions fork, go on, rewind and close in any order; each says what a naive one says that was
 * copied whole, and the toy's check that a row is written to a page of its own holds. */
static bool forks(uint64_t seed) {
    cairn_config c;
    cairn_runtime *rt;
    cairn_model *m;
    cairn_session *s[FORKS] = {NULL};
    naive *o = (naive *)calloc(FORKS, sizeof *o);
    bool good = true;
    random_state = seed;
    toy_config(&c);
    c.page_size = rnd(2) ? 16 : 32;
    c.max_batch = FORKS + 1;
    c.max_seq_len = 200;
    c.memory.prefix_cache = rnd(2);
    toy_loops = (float)rnd(11) / 10;
    rt = open_runtime(&c);
    m = open_model(rt);
    cairn_session_open(m, &s[0]);
    good = one_turn(s[0], &o[0], &c, 0);
    for (int step = 0; step < 12 && good; step++) {
        int a = (int)rnd(FORKS), to = (int)rnd(FORKS);
        if (!s[a]) continue;
        random_drafting(&rt->config);
        rt->config.selection.source = rnd(2) ? CAIRN_SOURCE_MEAN : CAIRN_SOURCE_MINMAX;
        if (!s[to]) {
            int before = m->kv.pool.free_count;
            good = !cairn_session_fork(s[a], &s[to]) && m->kv.pool.free_count == before;
            o[to] = o[a];
        } else if (a != to && !rnd(4)) {
            cairn_session_close(s[to]);
            s[to] = NULL;
        } else if (!rnd(3)) {
            int keep = (int)rnd((uint32_t)o[a].count) + 1;
            if (o[a].count) good = !cairn_session_rewind(s[a], o[a].count = keep);
        }
        good = good && one_turn(s[a], &o[a], &c, o[a].count ? 1 : 0);
    }
    for (int i = 0; i < FORKS; i++) cairn_session_close(s[i]);
    good = good && m->kv.pool.free_count + m->prefixes.pages == m->kv.pool.pages && !toy_faults;
    free(o);
    cairn_close(rt);
    if (!good) tap_note("seed %llu", (unsigned long long)seed);
    return good;
}

/* Where a fork's first step needs a page that is not there, nothing changes. */
static void test_fork_short(void) {
    cairn_config c;
    cairn_runtime *rt;
    cairn_model *m;
    cairn_session *s = NULL, *fork = NULL;
    char text[41];
    int count;
    toy_config(&c);
    c.max_batch = 1, c.max_seq_len = 48;
    c.drafter = CAIRN_DRAFTER_NONE;
    rt = open_runtime(&c);
    m = open_model(rt);
    cairn_session_open(m, &s);
    memset(text, 'c', 40), text[40] = '\0';
    tap_ok(m->kv.pool.pages == 3 && !cairn_append(s, text) && !cairn_session_fork(s, &fork) &&
           m->kv.pool.free_count == 0, "a pool of 3 pages, all shared");
    tap_ok(cairn_generate(fork, NULL, 1, NULL, NULL) == CAIRN_POOL_FULL &&
           cairn_generate(s, NULL, 1, NULL, NULL) == CAIRN_POOL_FULL, "%s", cairn_last_error(rt));
    cairn_session_ids(fork, &count);
    tap_ok(count == 40 && !cairn_session_rewind(s, 17) && !cairn_generate(fork, NULL, 1, NULL, NULL),
           "once the other is rewound, the page is the fork's own");
    cairn_session_close(s);
    tap_ok(m->kv.pool.free_count == 0 && !toy_faults, "its pages outlive the session it came from");
    cairn_session_close(fork);
    tap_ok(m->kv.pool.free_count == 3, "all pages are free again");
    cairn_close(rt);
}

static void test_forks(uint64_t seed, int runs) {
    int good = 0;
    for (int i = 0; i < runs; i++) good += forks(seed + (uint64_t)i);
    tap_ok(good == runs, "%d of %d families of forks equal the naive loop (seed %llu)", good, runs,
           (unsigned long long)seed);
    test_fork_short();
    tap_ok(!memory_meter.live && !memory_meter.wrong, "no byte is left, every size is right");
}

/* ---- prefixes -------------------------------------------------------------------------------- */

static int prefixes_reused;

/* Sessions come and go, their prompts begin alike, and the pool holds what they need and no more:
 * each says what a naive one says, none runs out of pages, and no page is lost. */
static bool prefixes(uint64_t seed) {
    enum { SLOTS = 3 };
    cairn_config c;
    cairn_runtime *rt;
    cairn_model *m;
    cairn_session *s[SLOTS] = {NULL};
    naive *o = (naive *)calloc(SLOTS, sizeof *o);
    char stems[3][256];
    bool good = true;
    random_state = seed;
    toy_config(&c);
    c.page_size = rnd(2) ? 16 : 32;
    c.max_batch = 1 + (int32_t)rnd(SLOTS);
    c.max_seq_len = 260;
    c.prefill_chunk = 16 + (int32_t)rnd(40);
    c.memory.prefix_cache = true;
    toy_loops = (float)rnd(11) / 10;
    rt = open_runtime(&c);
    m = open_model(rt);
    for (int i = 0; i < 3; i++) random_prompt(stems[i], 50);
    for (int step = 0; step < 16 && good; step++) {
        int a = (int)rnd((uint32_t)c.max_batch), turn = 1;
        cairn_stats stats;
        stats.struct_size = sizeof stats;
        if (s[a] && rnd(2)) {
            o[a].count = 0;
            if (rnd(2)) cairn_session_reset(s[a]);
            else cairn_session_close(s[a]), s[a] = NULL;
        }
        if (!s[a]) cairn_session_open(m, &s[a]), o[a].count = 0;
        random_drafting(&rt->config);
        rt->config.selection.source = rnd(2) ? CAIRN_SOURCE_MEAN : CAIRN_SOURCE_MINMAX;
        if (!o[a].count) turn = 0, strcpy(turn_stem, stems[rnd(3)]);
        good = one_turn(s[a], &o[a], &c, turn);
        turn_stem[0] = '\0';
        cairn_session_stats(s[a], &stats);
        prefixes_reused += stats.reused_tokens;
        good = good && stats.reused_tokens % c.page_size == 0 && stats.reused_tokens <= stats.prompt_tokens;
    }
    for (int i = 0; i < SLOTS; i++) cairn_session_close(s[i]);
    good = good && m->kv.pool.free_count + m->prefixes.pages == m->kv.pool.pages && !toy_faults &&
           m->prefixes.locked_pages == 0;
    free(o);
    cairn_close(rt);
    if (!good) tap_note("seed %llu", (unsigned long long)seed);
    return good;
}

/* A second session with the same prompt takes whole pages and leaves two tokens or more. */
static void test_prefix_lengths(void) {
    cairn_config c;
    cairn_runtime *rt;
    cairn_model *m;
    cairn_stats stats;
    int32_t ids[50];
    int lengths = 0;
    toy_config(&c);
    c.memory.prefix_cache = true;
    rt = open_runtime(&c);
    m = open_model(rt);
    for (int i = 0; i < 50; i++) ids[i] = 'a' + i % 4;
    for (int count = 1; count <= 50; count++) {
        int want = count < 2 ? 0 : (count - 2) / 16 * 16, held = (int)m->prefixes.pages * 16;
        cairn_session *s;
        ids[0] = 'a'; /* the prompt of before and one token more */
        cairn_session_open(m, &s);
        cairn_append_ids(s, ids, count);
        cairn_generate(s, NULL, 1, NULL, NULL);
        stats.struct_size = sizeof stats;
        cairn_session_stats(s, &stats);
        lengths += stats.reused_tokens == (want < held ? want : held);
        cairn_session_close(s);
    }
    tap_ok(lengths == 50 && m->prefixes.pages == 3, "whole pages of a prompt, all but two tokens of it at most");
    cairn_close(rt);
}

static void test_prefixes(uint64_t seed, int runs) {
    int good = 0;
    prefixes_reused = 0;
    for (int i = 0; i < runs; i++) good += prefixes(seed + (uint64_t)i);
    tap_ok(good == runs && prefixes_reused > 0,
           "%d of %d rows of sessions that begin alike equal the naive loop, %d tokens reused (seed %llu)",
           good, runs, prefixes_reused, (unsigned long long)seed);
    test_prefix_lengths();
    tap_ok(!memory_meter.live && !memory_meter.wrong, "no byte is left, every size is right");
}

/* ---- the same text with any drafter, speed from drafting ------------------------------------- */

static void test_drafts(void) {
    cairn_config c;
    cairn_runtime *rt;
    cairn_session *s = NULL;
    char plain[12 * TOY_CONTEXT] = "";
    int same = 0, plain_forwards = 0, best = 1000;
    toy_config(&c);
    toy_loops = 1.0f;
    for (int d = 0; d <= 16; d++) {
        heard h;
        cairn_stats stats;
        c.draft_length = d;
        rt = open_runtime(&c);
        cairn_session_open(open_model(rt), &s);
        memset(&h, 0, sizeof h);
        h.stop_after = -1;
        cairn_generate(s, "abcabcab", 150, hear, &h);
        stats.struct_size = sizeof stats;
        cairn_session_stats(s, &stats);
        if (d == 0) strcpy(plain, h.text), plain_forwards = stats.forwards;
        if (stats.forwards < best) best = stats.forwards;
        same += !strcmp(plain, h.text) && stats.decoded == stats.forwards + stats.accepted;
        cairn_close(rt);
    }
    tap_ok(same == 17, "draft_length 0 to 16: %d of 17 give the same text", same);
    tap_ok(best * 2 < plain_forwards, "a looping text takes %d forwards with drafts, %d without",
           best, plain_forwards);
}

/* ---- cancelled, refused and failing at every point ------------------------------------------- */

static cairn_session *hook_session;
static int hook_at, hook_count;
static void cancel_hook(void) {
    if (hook_count++ == hook_at) cairn_cancel(hook_session);
}

enum { BY_CANCEL, BY_CALLBACK, BY_FAILURE, WAYS };

/* Interrupts a generation at point `at`; what is left continues as if nothing had happened.
 * Returns false when the point was never reached. */
static bool interrupted(int way, int at, int draft_length, bool *good) {
    static const char *const prompt = "abcd abcd abcd abcd abcd abcd abcdab";
    cairn_config c;
    cairn_runtime *rt;
    cairn_session *s = NULL;
    naive *o = (naive *)calloc(1, sizeof *o);
    heard h;
    cairn_status status, wanted = way == BY_FAILURE ? CAIRN_DEVICE_ERROR : CAIRN_CANCELLED;
    tokenizer_ids ids;
    int count, held;
    toy_config(&c);
    toy_loops = 0.9f;
    c.draft_length = draft_length;
    rt = open_runtime(&c);
    cairn_session_open(open_model(rt), &s);
    memset(&ids, 0, sizeof ids);
    tokenizer_encode(&rt->base, &s->model->tokenizer, prompt, strlen(prompt), true, &ids);
    naive_append(o, ids.data, (int)ids.size);
    held = (int)ids.size;
    tokenizer_ids_free(&rt->base, &ids);
    naive_generate(o, 40, TOY_CONTEXT, &c.sampling, NULL, 0);
    memset(&h, 0, sizeof h);
    h.stop_after = way == BY_CALLBACK ? at : -1;
    hook_session = s, hook_at = at, hook_count = 0;
    toy_hook = way == BY_CANCEL ? cancel_hook : NULL;
    toy_forwards = 0, toy_fail_at = way == BY_FAILURE ? at : -1;
    status = cairn_generate(s, prompt, 40, hear, &h);
    toy_hook = NULL, toy_fail_at = -1;
    cairn_session_ids(s, &count);
    *good = (!status || status == wanted) && !toy_faults &&
            (count == 0 || (count >= held && count <= o->count &&
                            !memcmp(s->tokens, o->ids, (size_t)count * sizeof *s->tokens)));
    if (way == BY_CALLBACK && status) *good = *good && h.pieces == at + 1;
    if (status && count < o->count) { /* go on */
        heard rest;
        memset(&rest, 0, sizeof rest);
        rest.stop_after = -1;
        *good = *good && !cairn_generate(s, count ? NULL : prompt,
                                         count ? 40 - (count - held) : 40, hear, &rest) &&
                same_ids(s, o);
    }
    *good = *good && !toy_faults;
    free(o);
    cairn_close(rt);
    return status == wanted;
}

static void test_interrupted(void) {
    static const char *const names[] = {"cancelled in a forward", "refused by the callback",
                                        "failed in a forward"};
    for (int way = 0; way < WAYS; way++)
        for (int d = 0; d <= 8; d += 4) {
            int points = 0, good = 0;
            bool fine = true;
            while (interrupted(way, points, d, &fine)) points++, good += fine;
            tap_ok(points > 5 && good == points && fine && !memory_meter.live,
                   "%s at each of %d points, draft_length %d: %d go on as if nothing was",
                   names[way], points, d, good);
        }
}

static void test_cancel_between(void) {
    cairn_config c;
    cairn_runtime *rt;
    cairn_session *s = NULL;
    cairn_piece piece;
    int count = 0;
    toy_config(&c);
    rt = open_runtime(&c);
    cairn_session_open(open_model(rt), &s);
    piece.struct_size = sizeof piece;
    cairn_cancel(s);
    tap_ok(!cairn_append(s, "abc"), "a cancel with nothing running does nothing");
    tap_ok(!cairn_generate_begin(s, NULL, NULL) && !cairn_generate_next(s, &piece),
           "pull a first piece");
    cairn_cancel(s);
    tap_ok(cairn_generate_next(s, &piece) == CAIRN_CANCELLED && piece.stop == CAIRN_STOP_CANCEL &&
           piece.id == -1, "a cancel between two pieces ends the next call");
    tap_ok(cairn_generate_next(s, &piece) == CAIRN_INVALID_ARGUMENT, "then none is running");
    cairn_session_ids(s, &count);
    tap_ok(count == 3 && !cairn_generate(s, NULL, 3, NULL, NULL), "and the session goes on");
    cairn_close(rt);
}

static os_atomic cancel_runs; /* 1 once a forward runs, 2 when the thread has cancelled */

static void cancel_thread(void *user) {
    int64_t start = os_now_us();
    while (os_atomic_load(&cancel_runs) < 1 && os_now_us() - start < 10000000) {}
    cairn_cancel((cairn_session *)user);
    os_atomic_store(&cancel_runs, 2);
}

/* Lets the thread begin in the tenth forward, and waits there until it has cancelled. */
static void cancel_thread_hook(void) {
    int64_t start = os_now_us();
    if (hook_count++ != 10) return;
    os_atomic_store(&cancel_runs, 1);
    while (os_atomic_load(&cancel_runs) < 2 && os_now_us() - start < 10000000) {}
}

static void test_cancel_thread(void) {
    cairn_config c;
    cairn_runtime *rt;
    cairn_session *s = NULL;
    os_thread thread;
    cairn_status status;
    int count = 0;
    toy_config(&c);
    toy_loops = 0.8f;
    c.drafter = CAIRN_DRAFTER_NONE;
    rt = open_runtime(&c);
    cairn_session_open(open_model(rt), &s);
    hook_count = 0, toy_hook = cancel_thread_hook;
    os_atomic_store(&cancel_runs, 0);
    if (!os_thread_start(&thread, 0, cancel_thread, s)) {
        tap_skip("no threads");
    } else {
        status = cairn_generate(s, "abcd", 0, NULL, NULL);
        os_thread_join(&thread);
        cairn_session_ids(s, &count);
        tap_ok(status == CAIRN_CANCELLED && count == 3 + 11,
               "another thread cancels: it takes effect in that very step (%d tokens)", count);
    }
    toy_hook = NULL;
    cairn_close(rt);
}

static bool reenter(void *user, const char *text, size_t bytes) {
    cairn_session *s = (cairn_session *)user;
    (void)text, (void)bytes;
    return cairn_append(s, "x") == CAIRN_BUSY && cairn_session_reset(s) == CAIRN_BUSY;
}

/* ---- limits ---------------------------------------------------------------------------------- */

static void test_limits(void) {
    cairn_config c;
    cairn_runtime *rt;
    cairn_model *m;
    cairn_session *s = NULL, *other = NULL;
    cairn_stats stats;
    char big[400];
    int count, before;
    toy_config(&c);
    c.max_batch = 1;
    c.max_seq_len = 128;
    c.drafter = CAIRN_DRAFTER_NONE;
    toy_loops = 1.0f;
    rt = open_runtime(&c);
    m = open_model(rt);
    cairn_session_open(m, &s);
    cairn_session_open(m, &other);
    memset(big, 'c', sizeof big);
    big[399] = '\0';
    tap_ok(cairn_generate(s, NULL, 5, NULL, NULL) == CAIRN_EMPTY_PROMPT &&
           cairn_generate(s, "", 5, NULL, NULL) == CAIRN_EMPTY_PROMPT, "an empty prompt");
    tap_ok(cairn_generate(s, "a\xC3(", 5, NULL, NULL) == CAIRN_INVALID_UTF8 &&
           cairn_append(s, "\xFF") == CAIRN_INVALID_UTF8, "invalid UTF-8");
    tap_ok(cairn_generate(s, big, 5, NULL, NULL) == CAIRN_CONTEXT_FULL, "beyond the context");
    cairn_session_ids(s, &count);
    tap_ok(count == 0 && m->kv.pool.free_count == 8, "nothing was changed");
    big[100] = '\0';
    tap_ok(!cairn_append(s, big), "100 tokens fit");
    tap_ok(cairn_append(other, big) == CAIRN_POOL_FULL, "the same in another session: POOL_FULL");
    tap_note("%s", cairn_last_error(rt));
    cairn_session_ids(other, &count);
    before = m->kv.pool.free_count;
    tap_ok(count == 0 && before == 1, "which holds nothing and took nothing");
    big[14] = '\0';
    tap_ok(!cairn_append(other, big), "14 tokens fit");
    tap_ok(cairn_generate(other, NULL, 40, NULL, NULL) == CAIRN_POOL_FULL, "until its page is");
    cairn_session_ids(other, &count);
    stats.struct_size = sizeof stats;
    cairn_session_stats(other, &stats);
    tap_ok(count == 17 && stats.generated == 3 && stats.stop == CAIRN_STOP_ERROR,
           "it holds the %d tokens that came before", count);
    tap_ok(!cairn_session_reset(s) && !cairn_generate(other, NULL, 40, NULL, NULL),
           "with the first session reset it goes on");
    cairn_session_stats(other, &stats);
    tap_ok(stats.generated == 40 || stats.stop == CAIRN_STOP_EOS, "to the end");
    cairn_session_close(other);
    tap_ok(m->kv.pool.free_count == 8, "closed, it gives its pages back");
    memset(big, 'c', 128), big[128] = '\0';
    tap_ok(!cairn_generate(s, big, 5, NULL, NULL), "a prompt that fills the context");
    cairn_session_stats(s, &stats);
    tap_ok(stats.stop == CAIRN_STOP_LENGTH && stats.generated == 0, "leaves no room: length");
    cairn_session_reset(s);
    big[120] = '\0';
    cairn_generate(s, big, 0, NULL, NULL);
    cairn_session_stats(s, &stats);
    tap_ok(stats.stop == CAIRN_STOP_EOS ||
           (stats.stop == CAIRN_STOP_LENGTH && stats.generated == 8), "the context's end: length");
    tap_ok(cairn_append_ids(s, (const int32_t[]){5, 9999}, 2) == CAIRN_INVALID_ARGUMENT &&
           strstr(cairn_last_error(rt), "9999"), "an unknown id is named");
    tap_ok(cairn_session_rewind(s, 999) == CAIRN_INVALID_ARGUMENT, "rewind past the end");
    tap_ok(cairn_generate(s, NULL, -1, NULL, NULL) == CAIRN_INVALID_ARGUMENT, "max_tokens -1");
    cairn_session_reset(s);
    tap_ok(!cairn_generate(s, "ab", 5, reenter, s), "a callback finds its own session busy");
    tap_ok(!toy_faults, "the toy found no fault");
    cairn_close(rt);
    tap_ok(!memory_meter.live, "no byte is left");
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Load, generate, evaluate, with the n-th allocation failing. Returns whether one failed. */
static bool torture(int n, bool always, bool *good) {
    cairn_config c;
    cairn_runtime *rt = NULL;
    cairn_model *m = NULL;
    cairn_session *s = NULL, *fork = NULL, *like = NULL;
    static const char prompt[] = "abcabcabcabcabcabcabdabcabcabcabcabcabc";
    cairn_status status;
    char error[256];
    heard h;
    bool hit;
    const char *stop = "zz";
    cairn_generate_options options;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.max_tokens = 60, options.stop = &stop, options.stop_count = 1;
    toy_config(&c);
    c.memory.prefix_cache = true;
    memory_meter.left = n;
    memory_meter.always = always;
    memset(&h, 0, sizeof h);
    h.stop_after = -1;
    status = cairn_open(&c, &rt, error, sizeof error);
    if (!status) status = toy_load(rt, toy_path, &m);
    if (!status) status = cairn_session_open(m, &s);
    if (!status) status = cairn_append(s, prompt);
    if (!status) status = cairn_generate_with(s, "abcab", &options, hear, &h);
    if (!status) status = cairn_session_fork(s, &fork);
    if (!status) status = cairn_generate(fork, NULL, 20, NULL, NULL);
    if (!status) status = cairn_session_open(m, &like);
    if (!status) status = cairn_generate(like, prompt, 20, NULL, NULL);
    hit = memory_meter.left <= 0 && !(memory_meter.left < 0 && always);
    *good = (status == CAIRN_OK || status == CAIRN_OUT_OF_MEMORY) && !h.split && !toy_faults;
    memory_meter.left = -1;
    if (s) {
        *good = *good && !cairn_generate(s, "cd", 30, NULL, NULL);
        cairn_session_close(s);
        cairn_session_close(fork);
        cairn_session_close(like);
        *good = *good && m->kv.pool.free_count + m->prefixes.pages == m->kv.pool.pages;
    }
    cairn_close(rt);
    *good = *good && !memory_meter.live && !memory_meter.wrong && !toy_faults;
    return hit;
}

static void test_memory(void) {
    for (int always = 0; always < 2; always++) {
        int n = 0, good = 0;
        bool fine;
        while (torture(n, always != 0, &fine)) n++, good += fine;
        tap_ok(n > 20 && good == n, "each of %d allocations failed %s: %d handled, no leak", n,
               always ? "and all after it" : "once", good);
    }
}

static int steps_until_meter;
static int meter_calls(void) { return 1 << 20; }
static void meter_hook(void) {
    if (steps_until_meter-- == 0) memory_meter.left = meter_calls();
}

/* Once a generation runs, a step allocates nothing. */
static void test_no_allocation(void) {
    cairn_config c;
    cairn_runtime *rt;
    cairn_session *s = NULL;
    heard h;
    toy_config(&c);
    toy_loops = 0.8f;
    rt = open_runtime(&c);
    cairn_session_open(open_model(rt), &s);
    for (int run = 0; run < 2; run++) {
        memset(&h, 0, sizeof h);
        h.stop_after = -1;
        steps_until_meter = run ? 3 : 1000;
        toy_hook = meter_hook;
        cairn_generate(s, "abcd abcd", 200, hear, &h);
        toy_hook = NULL;
        if (run)
            tap_ok(memory_meter.left == meter_calls() && h.pieces > 10,
                   "%d pieces without an allocation", h.pieces);
        memory_meter.left = -1;
        cairn_session_reset(s);
    }
    cairn_close(rt);
}

/* ---- eval, text, description ----------------------------------------------------------------- */

static void test_eval(void) {
    enum { N = 90 };
    cairn_config c;
    cairn_runtime *rt;
    cairn_model *m;
    cairn_eval_args args;
    int32_t ids[N], entries[N], top_ids[N * 5];
    float logits[TOY_VOCAB], top_logits[N * 5], nll[N];
    double mean = 0, sum = 0, worst = 0;
    int wrong = 0;
    toy_config(&c);
    rt = open_runtime(&c);
    m = open_model(rt);
    random_state = 5;
    for (int i = 0; i < N; i++) {
        ids[i] = toy_words[rnd(11)];
        entries[i] = toy_entry(ids[i], false);
    }
    memset(&args, 0, sizeof args);
    args.struct_size = sizeof args;
    args.ids = ids, args.count = N, args.top = 5, args.top_ids = top_ids;
    args.top_logits = top_logits, args.nll = nll;
    tap_ok(!cairn_eval(m, &args, &mean), "eval of %d tokens", N);
    for (int i = 0; i < N; i++) {
        double top = -1e30, total = 0;
        toy_logits(entries, i + 1, logits);
        for (int v = 0; v < TOY_VOCAB; v++) top = logits[v] > top ? logits[v] : top;
        for (int v = 0; v < TOY_VOCAB; v++) total += exp(logits[v] - top);
        if (i + 1 < N) {
            double loss = log(total) + top - logits[ids[i + 1]];
            sum += loss;
            if (fabs(loss - nll[i + 1]) > worst) worst = fabs(loss - nll[i + 1]);
        }
        for (int k = 0; k < 5; k++) {
            int best = 0;
            for (int v = 1; v < TOY_VOCAB; v++)
                if (logits[v] > logits[best]) best = v;
            if (top_ids[i * 5 + k] != best || top_logits[i * 5 + k] != logits[best]) wrong++;
            logits[best] = -1e30f;
        }
    }
    tap_ok(fabs(mean - sum / (N - 1)) < 1e-9 && worst < 1e-5, "mean NLL %.6f, worst off by %g", mean,
           worst);
    tap_ok(wrong == 0, "the 5 best of each position, lowest id first among equals");
    tap_ok(m->kv.pool.free_count == m->kv.pool.pages && !toy_faults, "its pages are given back");
    args.count = 1;
    tap_ok(cairn_eval(m, &args, &mean) == CAIRN_INVALID_ARGUMENT, "one token is too few");
    args.count = N, ids[3] = -1;
    tap_ok(cairn_eval(m, &args, &mean) == CAIRN_INVALID_ARGUMENT, "an unknown id");
    cairn_close(rt);
}

static void test_text(void) {
    cairn_config c;
    cairn_runtime *rt;
    cairn_model *m;
    cairn_model_properties p;
    cairn_memory_estimate e;
    int32_t ids[16];
    char text[32], error[256];
    size_t bytes;
    int count;
    cairn_status status;
    toy_config(&c);
    rt = open_runtime(&c);
    m = open_model(rt);
    tap_ok(!cairn_tokenize(m, "abc<end>\xC3\xA9", 10, ids, 16, &count) && count == 5 &&
           ids[0] == TOY_AB && ids[1] == 'c' && ids[2] == TOY_END && ids[4] == 0xA9, "tokenize");
    tap_ok(!cairn_tokenize(m, "abc", 3, NULL, 0, &count) && count == 2, "ask for the count");
    tap_ok(cairn_tokenize(m, "abc", 3, ids, 1, &count) == CAIRN_INVALID_ARGUMENT && count == 2,
           "a short buffer");
    tap_ok(!cairn_detokenize(m, ids, 4, text, sizeof text, &bytes) &&
           !strcmp(text, "abc<end>\xEF\xBF\xBD"), "detokenize: half a character is U+FFFD");
    tap_ok(cairn_detokenize(m, ids, 4, text, 5, &bytes) == CAIRN_INVALID_ARGUMENT && bytes == 11,
           "a short buffer");
    ids[0] = 12345;
    tap_ok(cairn_detokenize(m, ids, 1, text, sizeof text, &bytes) == CAIRN_INVALID_ARGUMENT,
           "an unknown id");
    p.struct_size = sizeof p;
    tap_ok(!cairn_model_info(m, &p) && p.layers == 1 && p.vocab == TOY_VOCAB &&
           p.context == TOY_CONTEXT && !strcmp(p.name, "toy") && p.end_id == TOY_END &&
           p.pages == 2 * 19 && p.free_pages == p.pages, "model_info");
    e.struct_size = sizeof e;
    status = cairn_estimate(&c, toy_path, &e, error, sizeof error);
    tap_ok(!status && e.pages == p.pages && e.kv_bytes == p.kv_bytes &&
           e.weights_bytes == p.weights_bytes && e.max_seq_len == TOY_CONTEXT,
           "estimate says what loading takes");
    tap_ok(cairn_estimate(&c, "nowhere.gguf", &e, error, sizeof error) == CAIRN_FILE_NOT_FOUND &&
           strstr(error, "nowhere.gguf"), "estimate of no file");
    cairn_close(rt);
    c.memory.budget_mb = 1;
    rt = open_runtime(&c);
    m = open_model(rt);
    cairn_model_info(m, &p);
    cairn_estimate(&c, toy_path, &e, error, sizeof error);
    tap_ok(e.pages == p.pages, "with a budget too: %d pages", (int)p.pages);
    cairn_close(rt);
    rt = open_runtime(&c);
    toy_most_pages = 10;
    m = open_model(rt);
    tap_ok(m->kv.pool.pages == 9 && m->kv.pool.free_count == 9, "a backend short of memory gets "
           "what the cache can spare");
    toy_most_pages = 0, m = NULL;
    tap_ok(toy_load(rt, toy_path, &m) == CAIRN_OUT_OF_DEVICE_MEMORY && !m,
           "and fails when that is nothing");
    toy_most_pages = 1 << 30;
    cairn_close(rt);
}

static void test_bad_models(void) {
    static const char *const parts[] = {
        "llama.block_count", "llama.embedding_length", "llama.feed_forward_length",
        "llama.context_length", "llama.attention.head_count", "token_embd.weight",
        "output_norm.weight", "blk.0.attn_norm.weight", "blk.0.attn_q.weight",
        "blk.0.attn_k.weight", "blk.0.attn_v.weight", "blk.0.attn_output.weight",
        "blk.0.ffn_gate.weight", "blk.0.ffn_up.weight", "blk.0.ffn_down.weight"};
    cairn_config c;
    cairn_runtime *rt;
    int good = 0;
    toy_config(&c);
    rt = open_runtime(&c);
    for (size_t i = 0; i < BASE_COUNT(parts); i++) {
        cairn_model *m = NULL;
        cairn_status status;
        toy_write("build/toy_bad.gguf", parts[i]);
        status = toy_load(rt, "build/toy_bad.gguf", &m);
        if (status == CAIRN_BAD_FILE && !m && strstr(cairn_last_error(rt), parts[i])) good++;
        else tap_note("without %s: %s", parts[i], cairn_last_error(rt));
    }
    tap_ok(good == (int)BASE_COUNT(parts), "a model without any one of %d parts is refused by name",
           good);
    remove("build/toy_bad.gguf");
    cairn_close(rt);
    tap_ok(!memory_meter.live, "no byte is left");
}

/* ---- reload ---------------------------------------------------------------------------------- */

static void ready_hook(void) {
    if (hook_count++ == hook_at) toy_ready = CAIRN_OK;
}

static void test_reload(void) {
    cairn_config c, next;
    cairn_runtime *rt;
    cairn_session *s = NULL;
    cairn_stats stats;
    heard h;
    toy_config(&c);
    toy_loops = 1.0f;
    c.draft_length = 0;
    rt = open_runtime(&c);
    cairn_session_open(open_model(rt), &s);
    next = c;
    next.page_size = 32, next.max_batch = 7, next.draft_length = 8;
    tap_ok(cairn_reload(rt, &next) == CAIRN_NEEDS_REOPEN && rt->config.draft_length == 0 &&
           strstr(cairn_last_error(rt), "page_size, max_batch"), "cold fields are named: %s",
           cairn_last_error(rt));
    next = c;
    next.topk = -4;
    tap_ok(cairn_reload(rt, &next) == CAIRN_INVALID_CONFIG && rt->config.topk == c.topk,
           "a bad config changes nothing");
    next = c;
    next.backend = CAIRN_BACKEND_AUTO, next.draft_length = 8;
    toy_ready = CAIRN_COMPILE_FAILED;
    tap_ok(cairn_reload(rt, &next) == CAIRN_COMPILE_FAILED && rt->config.draft_length == 0 &&
           !cairn_reload_waits(rt), "nor does one whose kernels cannot be");
    toy_ready = CAIRN_BUSY;
    tap_ok(!cairn_reload(rt, &next) && cairn_reload_waits(rt) && rt->config.draft_length == 0,
           "one whose kernels are compiled waits");
    memset(&h, 0, sizeof h);
    h.stop_after = -1;
    hook_at = 20, hook_count = 0, toy_hook = ready_hook;
    cairn_generate(s, "abcabcabc", 80, hear, &h);
    toy_hook = NULL;
    stats.struct_size = sizeof stats;
    cairn_session_stats(s, &stats);
    tap_ok(!cairn_reload_waits(rt) && rt->config.draft_length == 8 && stats.forwards > 20 &&
           stats.forwards < 60 && stats.accepted > 0,
           "and comes into force between two steps of a generation");
    next.stop_count = 1;
    strcpy(next.stop[0], "c");
    tap_ok(!cairn_reload(rt, &next), "stop strings are hot");
    cairn_session_reset(s);
    memset(&h, 0, sizeof h);
    h.stop_after = -1;
    cairn_generate(s, "abcabcabc", 80, hear, &h);
    tap_ok(!strchr(h.text, 'c'), "and stop");
    toy_ready = CAIRN_BUSY;
    cairn_reload(rt, &c);
    cairn_close(rt);
    toy_ready = CAIRN_OK;
    tap_ok(!memory_meter.live, "closed while one waits: no byte is left");
}

int main(int argc, char **argv) {
    uint64_t seed = random_seed();
    memory_meter.left = -1;
    if (!tap_ok(toy_write(toy_path, NULL), "the toy's file")) return tap_done();
    test_turns(seed, argc > 1 ? atoi(argv[1]) : 300);
    test_forks(seed, argc > 1 ? atoi(argv[1]) : 150);
    test_prefixes(seed, argc > 1 ? atoi(argv[1]) : 150);
    test_drafts();
    test_interrupted();
    test_cancel_between();
    test_cancel_thread();
    test_limits();
    test_reload();
    test_memory();
    test_no_allocation();
    test_eval();
    test_text();
    test_bad_models();
    remove(toy_path);
    return tap_done();
}
