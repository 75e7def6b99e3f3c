/* constrain: generations under a grammar on a toy model: greedy ones against a naive loop that asks a
 * recogniser about every token, all others against what the grammar means; with and without drafts,
 * beside sessions without a grammar, in forks and snapshots that go on; and what is refused. */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "random.h"
#include "short_memory.h"
#include "tap.h"
#include "toy_model.h"

static const char *toy_path = "build/toy_constrain.gguf";
static uint64_t seed;
static int below(int n) { return (int)(random_next(&seed) % (uint64_t)n); }

static cairn_runtime *open_toy(cairn_model **model, bool drafts) {
    cairn_config c;
    char error[1024];
    cairn_runtime *rt = NULL;
    cairn_config_default(&c);
    c.backend = CAIRN_BACKEND_CPU;
    c.threads = 1, c.page_size = 16, c.prefill_chunk = 32, c.max_batch = 4;
    c.drafter = drafts ? CAIRN_DRAFTER_NGRAM : CAIRN_DRAFTER_NONE;
    c.allocator.realloc = test_realloc;
    if (cairn_open(&c, &rt, error, sizeof error)) tap_note("open: %s", error);
    else if (toy_load(rt, toy_path, model)) tap_note("%s", cairn_last_error(rt));
    return rt;
}

/* ---- a grammar and its recogniser ------------------------------------------------------------ */

/* Words of a, b and é, each but the last behind a blank, and a € at the end. */
static const char *const words_grammar = "root ::= word (\" \" word)* \"\\u20ac\"\nword ::= [ab\\u00e9]+";

/* 2: the text is whole; 1: it may become so; 0: neither. */
static int judge_words(const char *text, int bytes) {
    const uint8_t *t = (const uint8_t *)text;
    bool word = false;
    for (int i = 0; i < bytes;) {
        int left = bytes - i;
        if (t[i] == 'a' || t[i] == 'b') word = true, i++;
        else if (t[i] == 0xC3 && (left == 1 || t[i + 1] == 0xA9)) word = true, i += 2;
        else if (t[i] == ' ' && word) word = false, i++;
        else if (t[i] == 0xE2 && word)
            return (left == 1 || t[i + 1] == 0x82) && (left < 3 || t[i + 2] == 0xAC) && left <= 3
                       ? left == 3 ? 2 : 1 : 0;
        else return 0;
    }
    return 1;
}

static int piece_of(int32_t id, char *out) {
    if (id < 256) return out[0] = (char)id, 1;
    return id == TOY_AB ? (memcpy(out, "ab", 2), 2) : 0;
}

static float bias[TOY_VOCAB]; /* of the naive loop's logits */

/* Greedy tokens behind `prompt` ids, by asking about every token; how many. */
static int naive(const char *prompt, int most, int32_t *out, char *text) {
    int32_t entries[TOY_CONTEXT];
    float logits[TOY_VOCAB];
    char longer[TOY_CONTEXT * 2] = "";
    int count = 0, bytes = 0, made = 0;
    for (; *prompt; prompt++) entries[count++] = toy_entry((uint8_t)*prompt, true);
    while (made < most && judge_words(longer, bytes) < 2) {
        int32_t best = -1;
        toy_logits(entries, count, logits);
        for (int32_t id = 0; id < TOY_VOCAB; id++) {
            int more = piece_of(id, longer + bytes);
            logits[id] += bias[id];
            if (more && judge_words(longer, bytes + more) && (best < 0 || logits[id] > logits[best]))
                best = id;
        }
        bytes += piece_of(best, longer + bytes);
        entries[count++] = toy_entry(best, false);
        out[made++] = best;
    }
    memcpy(text, longer, (size_t)bytes);
    text[bytes] = '\0';
    return made;
}

/* ---- one session ----------------------------------------------------------------------------- */

static base_text said;
static bool keep_text(void *user, const char *text, size_t bytes) {
    return base_text_add((base *)user, &said, text, bytes);
}

static cairn_generate_options with_grammar(const char *text) {
    cairn_generate_options o;
    memset(&o, 0, sizeof o);
    o.struct_size = sizeof o;
    o.max_tokens = 60;
    o.grammar = text;
    return o;
}

static cairn_status generate(cairn_session *s, const char *prompt, const cairn_generate_options *o) {
    said.size = 0;
    return cairn_generate_with(s, prompt, o, keep_text, &s->model->runtime->base);
}

static cairn_stop stop_of(cairn_session *s) {
    cairn_stats stats;
    stats.struct_size = sizeof stats;
    return cairn_session_stats(s, &stats) ? CAIRN_STOP_NONE : stats.stop;
}

static void test_greedy(bool drafts) {
    cairn_model *m = NULL;
    cairn_runtime *rt = open_toy(&m, drafts);
    cairn_session *s = NULL;
    int wrong = 0, ended = 0, accepted = 0;
    cairn_session_open(m, &s);
    for (int i = 0; i < 40 && m; i++) {
        char prompt[24] = "cd", text[TOY_CONTEXT * 2];
        int32_t want[64];
        int count, made, held = 0;
        const int32_t *ids;
        cairn_generate_options o = with_grammar(words_grammar);
        for (int j = 2 + below(18); j > 2; j--) prompt[j - 1] = (char)('a' + 2 * below(2));
        made = naive(prompt, 60, want, text);
        held = (int)strlen(prompt);
        cairn_session_reset(s);
        if (generate(s, prompt, &o)) wrong++, tap_note("%s", cairn_last_error(rt));
        ids = cairn_session_ids(s, &count);
        if (count != held + made || memcmp(ids + held, want, (size_t)made * 4)) wrong++;
        if (judge_words(text, (int)strlen(text)) == 2) {
            ended++;
            if (stop_of(s) != CAIRN_STOP_GRAMMAR || strcmp(said.data, text)) wrong++;
        } else if (stop_of(s) != CAIRN_STOP_LENGTH) wrong++;
        accepted += s->stats.accepted;
    }
    tap_ok(!wrong && ended > 5 && (!drafts || accepted > 20),
           "greedy%s: %d wrong of 40, %d ended by the grammar, %d drafts accepted",
           drafts ? " with drafts" : "", wrong, ended, accepted);
    tap_ok(!toy_faults, "promises to forwards hold");
    cairn_close(rt);
}

/* Biases, one of which forbids a token, and a schema in place of a grammar. */
static void test_bias(void) {
    cairn_model *m = NULL;
    cairn_runtime *rt = open_toy(&m, true);
    cairn_session *s = NULL;
    cairn_logit_bias some[3] = {{'a', -INFINITY}, {'b', 1.5f}, {TOY_AB, -0.5f}};
    int wrong = 0, changed = 0;
    char unbiased[TOY_CONTEXT * 2], text[TOY_CONTEXT * 2];
    if (cairn_session_open(m, &s)) return;
    for (int i = 0; i < 12; i++) {
        char prompt[8] = "cd";
        int32_t want[64];
        int made;
        cairn_generate_options o = with_grammar(words_grammar);
        o.logit_bias = some, o.logit_bias_count = 3;
        for (int j = 2; j < 6; j++) prompt[j] = (char)('a' + 2 * below(2));
        memset(bias, 0, sizeof bias);
        naive(prompt, 60, want, unbiased);
        for (int j = 0; j < 3; j++) bias[some[j].id] = some[j].bias;
        made = naive(prompt, 60, want, text);
        cairn_session_reset(s);
        wrong += generate(s, prompt, &o) || s->count != 6 + made ||
                 memcmp(s->tokens + 6, want, (size_t)made * 4);
        changed += strcmp(text, unbiased) != 0;
    }
    memset(bias, 0, sizeof bias);
    tap_ok(!wrong && changed, "biases: %d wrong, %d texts changed", wrong, changed);
    {
        cairn_generate_options o = with_grammar(NULL);
        o.json_schema = "{\"type\":\"object\",\"properties\":{\"n\":{\"enum\":[\"ab\",7]}},\"required\":[\"n\"]}";
        cairn_session_reset(s);
        tap_ok(!generate(s, "cd", &o) && (strstr(said.data, "\"ab\"") || strstr(said.data, "7")) &&
               said.data[0] == '{' && said.data[said.size - 1] == '}', "a schema: %s", said.data);
        o.grammar = words_grammar;
        tap_ok(generate(s, "cd", &o) == CAIRN_INVALID_ARGUMENT, "%s", cairn_last_error(rt));
        o.grammar = NULL, o.json_schema = "{\"pattern\":\"a\"}";
        tap_ok(generate(s, "cd", &o) == CAIRN_UNSUPPORTED, "%s", cairn_last_error(rt));
        o.json_schema = NULL, o.logit_bias = some, o.logit_bias_count = TOY_VOCAB + 1;
        tap_ok(generate(s, "cd", &o) == CAIRN_INVALID_ARGUMENT, "%s", cairn_last_error(rt));
        o.logit_bias_count = 3, some[1].id = TOY_VOCAB;
        tap_ok(generate(s, "cd", &o) == CAIRN_INVALID_ARGUMENT, "%s", cairn_last_error(rt));
        some[1].id = 'b', some[1].bias = NAN;
        tap_ok(generate(s, "cd", &o) == CAIRN_INVALID_ARGUMENT, "%s", cairn_last_error(rt));
    }
    cairn_close(rt);
}

/* ---- many ------------------------------------------------------------------------------------ */

static cairn_sampling hot(int i) {
    static const int top_k[] = {0, 3, 40};
    cairn_sampling sampling;
    memset(&sampling, 0, sizeof sampling);
    sampling.temperature = i % 4 ? 1.5f : 0.0f;
    sampling.top_k = top_k[i % 3];
    sampling.top_p = i % 5 ? 1.0f : 0.7f;
    sampling.repetition_penalty = i % 7 ? 1.0f : 1.3f;
    sampling.seed = i;
    return sampling;
}

/* Sampled texts of eight sessions at once, half of them without a grammar, are those of each alone. */
static void test_together(void) {
    cairn_model *m = NULL;
    cairn_runtime *rt = open_toy(&m, true);
    cairn_session *s[8];
    cairn_sampling sampling[8];
    cairn_generate_options o[8];
    const cairn_logit_bias less[2] = {{'a', -2.0f}, {'d', -INFINITY}};
    char alone[8][512];
    int pending = 1, wrong = 0, different = 0;
    if (!m) return;
    for (int i = 0; i < 8; i++) {
        cairn_session *one = NULL;
        sampling[i] = hot(i);
        o[i] = with_grammar(i % 2 ? words_grammar : NULL);
        o[i].sampling = &sampling[i];
        o[i].logit_bias = less, o[i].logit_bias_count = i % 3;
        wrong += cairn_session_open(m, &s[i]) || cairn_session_open(m, &one) ||
                 generate(one, i % 3 ? "ab" : "dcdc", &o[i]);
        snprintf(alone[i], sizeof alone[i], "%s", said.data ? said.data : "");
        if (i % 2 && !judge_words(alone[i], (int)strlen(alone[i])) &&
            !strstr(alone[i], "\xEF\xBF\xBD"))
            wrong++, tap_note("'%s'", alone[i]);
        cairn_session_close(one);
    }
    for (int i = 0; i < 8; i++) wrong += cairn_generate_submit(s[i], i % 3 ? "ab" : "dcdc", &o[i]) != 0;
    while (pending && !wrong) wrong += cairn_step(m, 1000, &pending) != 0;
    for (int i = 0; i < 8; i++) {
        cairn_piece piece;
        piece.struct_size = sizeof piece;
        wrong += cairn_generate_poll(s[i], &piece) != 0;
        different += strcmp(piece.text, alone[i]) != 0;
    }
    tap_ok(!wrong && !different, "eight together: %d wrong, %d differ from alone", wrong, different);
    cairn_close(rt);
}

/* A text cut anywhere goes on in a fork, in a loaded snapshot and after a rewind as it did. */
static void test_goes_on(void) {
    cairn_model *m = NULL;
    cairn_runtime *rt = open_toy(&m, true);
    const char *file = "build/toy_constrain.snapshot";
    int wrong = 0, cuts = 0;
    for (int round = 0; round < 8 && m; round++) {
        cairn_generate_options o = with_grammar(words_grammar);
        cairn_session *s = NULL, *other = NULL;
        int32_t ids[TOY_CONTEXT];
        int count, cut;
        const char *prompt = round % 2 ? "abcd" : "dc";
        if (cairn_session_open(m, &s) || generate(s, prompt, &o)) wrong++;
        count = s->count;
        memcpy(ids, s->tokens, (size_t)count * 4);
        cut = (int)strlen(prompt) + 1 + below(count - (int)strlen(prompt) - 1);
        o.grammar_from = (int)strlen(prompt);
        o.max_tokens = 60 - (cut - o.grammar_from);
        wrong += cairn_session_rewind(s, cut) != 0;
        if (round % 3 == 0) wrong += cairn_session_fork(s, &other) != 0;
        else if (round % 3 == 1)
            wrong += cairn_session_save(s, file) || cairn_session_open(m, &other) ||
                     cairn_session_load(other, file);
        wrong += generate(other ? other : s, NULL, &o) != 0;
        {
            int again;
            const int32_t *made = cairn_session_ids(other ? other : s, &again);
            wrong += again != count || memcmp(made, ids, (size_t)count * 4);
            cuts++;
        }
        cairn_session_close(other);
        cairn_session_close(s);
    }
    remove(file);
    tap_ok(cuts && !wrong, "texts go on: %d wrong of %d: %s", wrong, cuts, cairn_last_error(rt));
    cairn_close(rt);
}

/* ---- ends and refusals ----------------------------------------------------------------------- */

static void test_ends(void) {
    cairn_model *m = NULL;
    cairn_runtime *rt = open_toy(&m, false);
    cairn_session *s = NULL;
    cairn_generate_options o = with_grammar("root ::= \"\"");
    char whole[512] = "?";
    int count;
    if (cairn_session_open(m, &s)) return;
    tap_ok(!generate(s, "ab", &o) && stop_of(s) == CAIRN_STOP_EOS && !said.size, "nothing but the end");
    o.grammar = "root ::= \"xyz\"";
    tap_ok(!generate(s, "ab", &o) && stop_of(s) == CAIRN_STOP_GRAMMAR && !strcmp(said.data, "xyz") &&
           !strcmp(cairn_stop_name(CAIRN_STOP_GRAMMAR), "grammar"), "a text that can only be one");
    o.grammar = "root ::= \"x\" \"y\"{0,400}";
    tap_ok(!generate(s, NULL, &o) && (stop_of(s) == CAIRN_STOP_EOS || stop_of(s) == CAIRN_STOP_LENGTH),
           "one that may end: %s", cairn_stop_name(stop_of(s)));
    cairn_session_ids(s, &count);
    o.grammar = "root ::= a\na ::= a \"x\"";
    tap_ok(generate(s, "ab", &o) == CAIRN_INVALID_ARGUMENT && strstr(cairn_last_error(rt),
           "line 2, column 1") && (cairn_session_ids(s, &count), s->count == count),
           "%s", cairn_last_error(rt));
    o.grammar = words_grammar, o.grammar_from = 10000;
    tap_ok(generate(s, "ab", &o) == CAIRN_INVALID_ARGUMENT, "%s", cairn_last_error(rt));
    o.grammar_from = -1;
    tap_ok(generate(s, "ab", &o) == CAIRN_INVALID_ARGUMENT, "%s", cairn_last_error(rt));
    o.grammar = NULL, o.grammar_from = 1;
    tap_ok(generate(s, "ab", &o) == CAIRN_INVALID_ARGUMENT, "%s", cairn_last_error(rt));
    cairn_session_reset(s);
    o.grammar = words_grammar, o.grammar_from = 1;
    tap_ok(generate(s, "axb", &o) == CAIRN_INVALID_ARGUMENT &&
           strstr(cairn_last_error(rt), "does not allow the text of ids 1 to 2") && !s->count,
           "%s", cairn_last_error(rt));
    if (!generate(s, "xab", &o)) snprintf(whole, sizeof whole, "ab%s", said.data);
    tap_ok(judge_words(whole, (int)strlen(whole)) == (stop_of(s) == CAIRN_STOP_GRAMMAR ? 2 : 1),
           "an answer that the prompt begins: '%s'", whole);
    cairn_close(rt);
}

static void test_memory(void) {
    cairn_model *m = NULL;
    cairn_runtime *rt = open_toy(&m, true);
    cairn_session *s = NULL, *free_one = NULL;
    cairn_generate_options o = with_grammar(words_grammar), plain = with_grammar(NULL);
    int failed = 0, wrong = 0;
    bool done = false;
    if (cairn_session_open(m, &s) || cairn_session_open(m, &free_one)) return;
    for (int allowed = 0; allowed < 300 && !done; allowed++) {
        int pending = 1;
        cairn_status status;
        cairn_session_reset(s), cairn_session_reset(free_one);
        wrong += cairn_generate_submit(free_one, "ab", &plain) != 0;
        allocations_left = allowed;
        status = cairn_generate_submit(s, "cdab", &o);
        allocations_left = -1;
        done = !status;
        failed += !done;
        wrong += status && status != CAIRN_OUT_OF_MEMORY;
        while (pending) wrong += cairn_step(m, 1000000, &pending) != 0;
        wrong += stop_of(free_one) == CAIRN_STOP_ERROR || (done && stop_of(s) == CAIRN_STOP_ERROR);
    }
    tap_ok(done && failed > 3 && !wrong, "memory failed %d times, %d wrong", failed, wrong);
    cairn_close(rt);
}

int main(void) {
    seed = random_seed();
    toy_write(toy_path, NULL);
    test_greedy(false);
    test_greedy(true);
    test_bias();
    test_together();
    test_goes_on();
    test_ends();
    test_memory();
    if (said.data) test_realloc(NULL, said.data, said.capacity, 0);
    tap_ok(!live_blocks, "all memory is given back: %ld blocks", live_blocks);
    remove(toy_path);
    return tap_done();
}
