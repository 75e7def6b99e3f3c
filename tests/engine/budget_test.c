/* budget: tokens that the config replaces, on a toy model, against a plain loop that replaces them one
 * by one: greedy and sampled, with and without drafts, at the prompt's first token and after a reload;
 * end tokens under force. And the logprobs of a generation: by a loop in double precision, whoever
 * pulls or polls. */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "random.h"
#include "tap.h"
#include "toy_model.h"

static const char *toy_path = "build/toy_budget.gguf";
static uint64_t seed;
static int below(int n) { return (int)(random_next(&seed) % (uint64_t)n); }

static cairn_config config_of(bool drafts) {
    cairn_config c;
    cairn_config_default(&c);
    c.backend = CAIRN_BACKEND_CPU;
    c.threads = 1, c.page_size = 16, c.prefill_chunk = 32, c.max_batch = 4;
    c.drafter = drafts ? CAIRN_DRAFTER_NGRAM : CAIRN_DRAFTER_NONE;
    return c;
}

static cairn_runtime *open_toy(const cairn_config *c, cairn_model **model) {
    char error[1024];
    cairn_runtime *rt = NULL;
    if (cairn_open(c, &rt, error, sizeof error)) tap_note("open: %s", error);
    else if (toy_load(rt, toy_path, model)) tap_note("%s", cairn_last_error(rt));
    return rt;
}

static void put(char (*list)[48], int32_t *count, const char *text) {
    snprintf(list[(*count)++], 48, "%s", text);
}

/* "ab" is one token; of "ca" and "d" the first counts. */
static void fill_budget(cairn_budget *b) {
    memset(b, 0, sizeof *b);
    put(b->suppress, &b->suppress_count, "ab");
    put(b->suppress, &b->suppress_count, "ca");
    put(b->replace, &b->replace_count, "d");
    put(b->replace, &b->replace_count, "bc");
    put(b->replace, &b->replace_count, "aaa");
}

static int32_t replaced(int32_t id, bool force, uint64_t key, int position) {
    static const int32_t to[3] = {'d', 'b', 'a'};
    uint32_t keys[2], counter[4] = {0, 0, 0, 0}, words[4];
    if (id != TOY_AB && id != 'c' && !(force && id == TOY_END)) return id;
    keys[0] = (uint32_t)key, keys[1] = (uint32_t)(key >> 32), counter[0] = (uint32_t)position;
    sample_philox(counter, keys, words);
    return to[(int)((double)(words[1] >> 8) * 0x1p-24 * 3)];
}

/* The loop: one token at a time, then replaced. How many; hits: how many were. */
static int naive(const char *prompt, int most, const sample_params *p, bool replaces, bool force,
                 int32_t *out, int *hits) {
    int32_t entries[TOY_CONTEXT + 1];
    float logits[TOY_VOCAB], scratch[TOY_VOCAB * 3];
    int count = 0, made = 0;
    for (; *prompt; prompt++) entries[count++] = toy_entry((uint8_t)*prompt, true);
    while (made < most) {
        int32_t id, said;
        toy_logits(entries, count, logits);
        said = id = sample_token(p, logits, TOY_VOCAB, count, scratch);
        if (replaces) id = replaced(said, force, p->seed, count);
        *hits += id != said;
        entries[count++] = toy_entry(id, false);
        out[made++] = id;
        if (id == TOY_END) break;
    }
    return made;
}

static void test_budget(bool drafts, bool force, float temperature) {
    cairn_config c = config_of(drafts);
    cairn_model *m = NULL;
    cairn_runtime *rt;
    int wrong = 0, hits = 0, ends = 0, accepted = 0;
    fill_budget(&c.budget);
    c.budget.force = force;
    rt = open_toy(&c, &m);
    for (int i = 0; i < 30 && m; i++) {
        char prompt[16] = "cd";
        int32_t want[64];
        sample_params p;
        cairn_sampling sampling;
        cairn_generate_options o;
        cairn_session *s = NULL;
        bool replaces = i % 5 != 4; /* a reload takes it away and brings it back */
        const int32_t *ids;
        int count, made, held;
        cairn_config now = c;
        for (int j = 2 + below(9); j > 2; j--) prompt[j - 1] = (char)('a' + 2 * below(2));
        memset(&p, 0, sizeof p), memset(&sampling, 0, sizeof sampling), memset(&o, 0, sizeof o);
        p.temperature = sampling.temperature = temperature;
        p.top_p = p.repetition_penalty = 1.0f;
        p.seed = (uint64_t)(sampling.seed = (int64_t)(random_next(&seed) >> 1));
        if (!replaces) memset(&now.budget, 0, sizeof now.budget);
        wrong += cairn_reload(rt, &now) != 0;
        made = naive(prompt, 60, &p, replaces, force, want, &hits);
        ends += want[made - 1] == TOY_END;
        held = (int)strlen(prompt);
        o.struct_size = sizeof o, o.max_tokens = 60, o.sampling = &sampling;
        wrong += cairn_session_open(m, &s) || cairn_generate_with(s, prompt, &o, NULL, NULL);
        ids = cairn_session_ids(s, &count);
        if (count != held + made || memcmp(ids + held, want, (size_t)made * 4))
            wrong++, tap_note("round %d: %d ids, %d are expected", i, count - held, made);
        accepted += s->stats.accepted;
        cairn_session_close(s);
    }
    tap_ok(m && !wrong && hits > 5 && (!drafts || temperature > 0 || accepted > 5),
           "temperature %g%s%s: %d wrong of 30, %d replaced, %d ended, %d drafts accepted",
           (double)temperature, drafts ? ", drafts" : "", force ? ", force" : "", wrong, hits, ends, accepted);
    tap_ok(!toy_faults, "promises to forwards hold");
    cairn_close(rt);
}

static void test_config(void) {
    const char *text = "return {\nbudget = { suppress = { '' },\nreplace = { 'a' } } }";
    cairn_config c;
    char error[1024];
    tap_ok(cairn_config_parse(text, strlen(text), "c.lua", &c, error, sizeof error) == CAIRN_INVALID_CONFIG &&
               strstr(error, "c.lua:2: budget.suppress"), "a text without tokens is refused by its line");
    text = "return {\nbudget = { force = true } }";
    tap_ok(cairn_config_parse(text, strlen(text), "c.lua", &c, error, sizeof error) == CAIRN_INVALID_CONFIG &&
               strstr(error, "c.lua:2: budget.force needs a text in budget.replace"), "%s", error);
    for (int force = 0; force < 2; force++) {
        cairn_config empty;
        cairn_model *m = NULL;
        cairn_runtime *rt;
        cairn_session *s = NULL;
        c = config_of(false);
        c.budget.force = force;
        if (!force) put(c.budget.suppress, &c.budget.suppress_count, "a");
        empty = c;
        tap_ok(cairn_open(&c, &rt, error, sizeof error) == CAIRN_INVALID_CONFIG && !rt &&
                   strstr(error, "budget.replace"), "nothing to say in its place is refused: %s", error);
        put(c.budget.replace, &c.budget.replace_count, "b");
        rt = open_toy(&c, &m);
        tap_ok(!cairn_session_open(m, &s) && cairn_reload(rt, &empty) == CAIRN_INVALID_CONFIG &&
                   !cairn_generate(s, "ab", 5, NULL, NULL), "as by a reload, which changes nothing");
        cairn_close(rt);
    }
}

/* ---- logprobs -------------------------------------------------------------------------------- */

/* Whether [1 + best] are those of the sequence's last id and of the best at its place. */
static bool are_right(const int32_t *ids, int at, int prompt, const cairn_logprob *given, int best) {
    int32_t entries[TOY_CONTEXT];
    float logits[TOY_VOCAB];
    double top = -INFINITY, sum = 0.0;
    bool used[TOY_VOCAB] = {false};
    for (int i = 0; i < at; i++) entries[i] = toy_entry(ids[i], i < prompt);
    toy_logits(entries, at, logits);
    for (int i = 0; i < TOY_VOCAB; i++) if (logits[i] > top) top = logits[i];
    for (int i = 0; i < TOY_VOCAB; i++) sum += exp(logits[i] - top);
    for (int n = 0; n <= best; n++) {
        int id = ids[at], most = -1;
        for (int i = 0; i < TOY_VOCAB && n; i++)
            if (!used[i] && (most < 0 || logits[i] > logits[most])) most = i;
        if (n) used[id = most] = true;
        if (given[n].id != id || !(fabs(given[n].logprob - (logits[id] - top - log(sum))) < 1e-5)) return false;
    }
    return true;
}

static void test_logprobs(bool drafts, int best, bool polls, bool budget) {
    cairn_config c = config_of(drafts);
    cairn_model *m = NULL;
    cairn_runtime *rt;
    cairn_session *s = NULL;
    cairn_generate_options o;
    cairn_piece piece;
    cairn_logprob got[64 * 33];
    const int32_t *ids;
    int count, told = 0, right = 0, plain;
    int32_t pending = 0, want[64];
    if (budget) fill_budget(&c.budget);
    rt = open_toy(&c, &m);
    memset(&o, 0, sizeof o), memset(&piece, 0, sizeof piece);
    o.struct_size = sizeof o, o.max_tokens = 50, piece.struct_size = sizeof piece;
    if (cairn_session_open(m, &s) || cairn_generate_with(s, "cdca", &o, NULL, NULL)) return;
    ids = cairn_session_ids(s, &plain);
    memcpy(want, ids + 4, (size_t)(plain - 4) * 4);
    cairn_session_reset(s);
    o.logprobs = best;
    if (polls ? cairn_generate_submit(s, "cdca", &o) : cairn_generate_begin(s, "cdca", &o)) return;
    while (!piece.stop) {
        if (polls && cairn_step(m, below(3000), &pending)) break;
        if (polls ? cairn_generate_poll(s, &piece) : cairn_generate_next(s, &piece)) break;
        for (int i = 0; i < piece.logprob_ids; i++, told++)
            memcpy(got + told * (1 + best), piece.logprobs + i * (1 + best), (size_t)(1 + best) * sizeof *got);
    }
    ids = cairn_session_ids(s, &count);
    for (int i = 0; i < told && 4 + i < count; i++) right += are_right(ids, 4 + i, 4, got + i * (1 + best), best);
    tap_ok(piece.stop && count == plain && !memcmp(ids + 4, want, (size_t)(count - 4) * 4) &&
               told == count - 4 && right == told && told > 3,
           "logprobs%s%s%s, %d best: %d right of %d, the text is as without", drafts ? ", drafts" : "",
           polls ? ", polled" : "", budget ? ", budget" : "", best, right, told);
    o.logprobs = 33;
    tap_ok(cairn_generate_begin(s, "", &o) == CAIRN_INVALID_ARGUMENT && strstr(cairn_last_error(rt), "logprobs"),
           "33 are refused");
    o.logprobs = 0;
    cairn_session_reset(s);
    memset(&piece, 0, sizeof piece), piece.struct_size = sizeof piece;
    tap_ok(!cairn_generate_begin(s, "cd", &o) && !cairn_generate_next(s, &piece) && !piece.logprob_ids,
           "none where none are wanted");
    cairn_close(rt);
}

int main(void) {
    seed = random_seed();
    toy_write(toy_path, NULL);
    for (int i = 0; i < 8; i++) test_budget(i & 1, i & 2, i & 4 ? 1.0f : 0.0f);
    test_config();
    for (int i = 0; i < 8; i++) test_logprobs(i & 1, i & 4 ? 1 : 32, i & 2, i & 4);
    remove(toy_path);
    return tap_done();
}
