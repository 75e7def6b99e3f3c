/* batch: rows of several sequences in one forward give each the bits that it would get alone. Forwards
 * of a small model on the CPU, and on the GPU or the emulated one: random sequences join and leave,
 * prompts beside decodes, drafts (right and wrong) beside plain rows, each sequence with a rule, a
 * position and a sampling of its own. Then sessions that step together, on the toy and on that
 * model, against the same sessions alone.
 * emulated: asan race */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "small_model.h"
#include "tap.h"
#include "toy_model.h"

enum { SEQUENCES = 4, MOST = 112, ROWS = 160 };

static int below(int n) { return (int)(random_next(&state) % (uint64_t)n); }
static const char *where = "cpu";

static int context = 2 * MOST; /* of models to come */

static cairn_runtime *open_runtime(cairn_backend backend, int topk) {
    cairn_config c;
    cairn_runtime *rt = NULL;
    char error[1024];
    cairn_config_default(&c);
    c.backend = backend, c.threads = 2, c.page_size = PAGE, c.max_batch = SEQUENCES;
    c.max_seq_len = context, c.prefill_chunk = ROWS, c.log = CAIRN_LOG_OFF, c.topk = topk;
    c.selection.window = 20, c.selection.sinks = 2;
    if (cairn_open(&c, &rt, error, sizeof error)) tap_note("%s", error);
    return rt;
}

/* ---- forwards -------------------------------------------------------------------------------- */

/* A sequence as it is told twice, and what it says when told alone. */
typedef struct line {
    int32_t tokens[MOST];
    int prompt; /* tokens before it run as prompt, the others as step */
    int count;
    bool has_rule;
    forward_rule rule;
    sample_params draw;
    float logits[MOST][VOCAB];
    int32_t drawn[MOST];
    int row, at, bounded; /* of the telling in progress */
} line;

static line lines[SEQUENCES];

static void random_line(line *l, int count) {
    memset(l, 0, sizeof *l);
    l->count = count, l->prompt = 20 + below(count - 30);
    for (int i = 0; i < count; i++) l->tokens[i] = 1 + below(VOCAB - 1);
    l->has_rule = below(4) > 0;
    l->rule.select.page_size = PAGE, l->rule.select.topk = 1 + below(2);
    l->rule.select.window = below(2) ? 0 : 1 + below(30), l->rule.select.sinks = below(9);
    l->rule.select.mean = below(2), l->rule.select.head = below(2);
    l->rule.layers[0] = below(3) ? 3 : 1u << below(2);
    l->draw.temperature = below(3) ? 0.7f : 0.0f, l->draw.top_k = below(3) ? 20 : 0;
    l->draw.top_p = 0.9f, l->draw.repetition_penalty = below(3) ? 1.0f : 1.2f;
    l->draw.seed = (uint64_t)below(1 << 30);
    l->row = -1;
}

/* What rows are asked in a forward: of one line `rows` tokens from its place on. */
typedef struct told { line *l; int rows, wrong; /* the tokens from there on are not its own */ } told;

/* One forward; logits of all step rows and of the last prompt rows are compared, or kept where
 * `keep`. The lines go on behind what was their own. */
static int tell(cairn_model *m, told *parts, int count, bool keep) {
    static forward_row rows[ROWS];
    static sample_ask asks[ROWS];
    static float logits[ROWS][VOCAB];
    static int32_t sampled[ROWS];
    const sample_ask blank = {0};
    forward_sequence sequences[SEQUENCES] = {0};
    forward_batch b = {0};
    int same = 0, n = 0, asked = 0;
    b.tables = &m->tables, b.rows = rows, b.sequences = sequences, b.logits = logits[0];
    b.sampled = sampled;
    for (int i = 0; i < count; i++) {
        line *l = parts[i].l;
        forward_sequence *s = &sequences[b.sequence_count++];
        s->table = l->row, s->first = b.row_count, s->rows = parts[i].rows;
        s->rule = l->has_rule ? &l->rule : NULL;
        s->stored = l->at / PAGE, s->bounded = l->bounded < s->stored ? l->bounded : s->stored;
        if (state_reserve(&m->states, l->row, l->at, l->at + parts[i].rows)) {
            tap_note("%s", cairn_last_error(m->runtime));
            return -1;
        }
        for (int r = 0; r < parts[i].rows; r++) {
            forward_row *row = &rows[b.row_count];
            int p = l->at + r;
            memset(row, 0, sizeof *row);
            row->token = l->tokens[p];
            if (r >= parts[i].wrong) row->token = 1 + row->token % (VOCAB - 1);
            row->position = row->rope = p;
            row->kind = p < l->prompt ? FORWARD_PROMPT : FORWARD_STEP;
            row->logits = p + 1 >= l->prompt;
            if (row->logits) {
                asks[b.row_count] = blank, row->sample = &asks[b.row_count];
                asks[b.row_count].params = l->draw, asks[b.row_count].position = p + 1;
                asks[b.row_count].history = l->tokens, asks[b.row_count].history_count = p + 1;
                asks[b.row_count].expected = -1;
            }
            b.row_count++;
        }
    }
    if (handles_enter(m->runtime)) return -1;
    if (handles_leave(m->runtime, m->backend->forward(m, &m->kv, &b))) {
        tap_note("%s", cairn_last_error(m->runtime));
        return -1;
    }
    for (int i = 0; i < count; i++) {
        line *l = parts[i].l;
        int own = parts[i].wrong < parts[i].rows ? parts[i].wrong : parts[i].rows;
        for (int r = 0; r < parts[i].rows; r++) {
            int p = l->at + r;
            if (p + 1 < l->prompt) continue;
            if (r < own && keep) {
                memcpy(l->logits[p], logits[asked], sizeof l->logits[p]);
                l->drawn[p] = sampled[asked];
            } else if (r < own) {
                n++;
                same += !memcmp(l->logits[p], logits[asked], sizeof l->logits[p]) &&
                        l->drawn[p] == sampled[asked];
            }
            asked++;
        }
        if (sequences[i].rule) l->bounded = sequences[i].stored;
        l->at += own;
        if (l->at / PAGE < l->bounded) l->bounded = l->at / PAGE;
    }
    return n - same;
}

static bool join(cairn_model *m, line *l) {
    l->at = l->bounded = 0;
    return !tables_take_row(&m->runtime->base, &m->tables, &l->row);
}

static void leave(cairn_model *m, line *l) {
    tables_leave_row(&m->runtime->base, &m->tables, l->row);
    l->row = -1;
}

/* Each line alone: its prompt in one go, then token by token. */
static bool alone(cairn_model *m, line *l) {
    bool fine = join(m, l);
    for (int rows; l->at < l->count && fine;) {
        told one = {l, 0, 1000};
        rows = l->at < l->prompt ? l->prompt - l->at : 1;
        one.rows = rows;
        fine = tell(m, &one, 1, true) == 0;
    }
    leave(m, l);
    return fine;
}

/* A random part of what is left of a line: of its prompt a chunk, of the rest some tokens, the last
 * of them wrong drafts. */
static told next_part(line *l) {
    told next = {l, 1, 1000};
    int left = l->at < l->prompt ? l->prompt - l->at : l->count - l->at;
    next.rows = 1 + below(left < (l->at < l->prompt ? 40 : 6) ? left : l->at < l->prompt ? 40 : 6);
    if (l->at >= l->prompt && below(2)) next.wrong = 1 + below(next.rows);
    if (l->at < l->prompt && below(3) == 0) { /* a prompt's end and steps behind it, in one forward */
        next.rows = left + (l->count - l->prompt < 3 ? l->count - l->prompt : 3);
        if (next.rows > 40) next.rows = left < 40 ? left : 40;
    }
    return next;
}

static void test_forwards(cairn_model *m, int count, int length) {
    int wrong = 0, forwards = 0, done = 0;
    bool fine = true;
    for (int i = 0; i < count; i++) {
        random_line(&lines[i], length - below(10));
        fine = fine && alone(m, &lines[i]);
    }
    tap_ok(fine, "on %s: %d sequences alone", where, count);
    while (done < count && fine && forwards < 999) {
        told parts[SEQUENCES];
        int n = 0, off;
        for (int i = 0; i < count; i++) {
            line *l = &lines[i];
            if (l->row < 0 && l->at < l->count && below(3) == 0) fine = fine && join(m, l);
            if (l->row < 0 && l->at >= l->count && l->at) l->at = 0;
        }
        for (int i = 0; i < count; i++)
            if (lines[i].row >= 0 && below(3)) parts[n++] = next_part(&lines[i]);
        if (!n) continue;
        off = tell(m, parts, n, false);
        fine = off >= 0, wrong += off, forwards++;
        for (int i = 0; i < n; i++)
            if (parts[i].l->at >= parts[i].l->count) leave(m, parts[i].l), done++;
    }
    for (int i = 0; i < count; i++)
        if (lines[i].row >= 0) leave(m, &lines[i]);
    fine = fine && m->kv.pool.free_count + m->prefixes.pages == m->kv.pool.pages;
    tap_ok(fine && wrong == 0 && done >= count, "on %s: %d sequences side by side in %d forwards, %d "
           "rows otherwise than alone", where, done, forwards, wrong);
}

/* Sequences whose pages all come to be selected from at once: together more than a context has. */
static void test_many_bounds(cairn_backend backend, const char *path) {
    enum { LINES = 3, PROMPT = 3 * PAGE, TOLD = 3 };
    cairn_runtime *rt;
    cairn_model *m = NULL;
    told parts[LINES];
    bool fine = true;
    int wrong = 0;
    context = 4 * PAGE;
    rt = open_runtime(backend, 1);
    context = 2 * MOST;
    if (!rt) return;
    fine = tap_ok(!cairn_load_model(rt, path, &m), "on %s: a model of a short context", where);
    for (int i = 0; i < LINES && fine; i++) {
        line *l = &lines[i];
        random_line(l, 40);
        l->count = PROMPT + TOLD, l->prompt = PROMPT;
        for (int t = 0; t < l->count; t++) l->tokens[t] = 1 + below(VOCAB - 1);
        l->has_rule = true, l->rule.select.topk = 1, l->rule.select.window = 0, l->rule.select.mean = false;
        l->rule.layers[0] = 3;
        fine = alone(m, l);
        fine = fine && join(m, l);
        parts[i].l = l, parts[i].wrong = 1000;
    }
    for (int step = 0; step < 1 + TOLD && fine; step++) {
        int off;
        for (int i = 0; i < LINES; i++) parts[i].rows = step ? 1 : PROMPT;
        off = tell(m, parts, LINES, false);
        fine = off >= 0, wrong += off;
    }
    tap_ok(fine && !wrong, "on %s: %d sequences of three pages to select from, the same as alone", where, LINES);
    cairn_close(rt);
}

/* ---- sessions -------------------------------------------------------------------------------- */

typedef struct speaker {
    int32_t prompt[64], said[200];
    int given, count, most; /* count: with the prompt */
    cairn_sampling sampling;
    const char *grammar; /* or NULL */
    cairn_logit_bias bias[1];
    int bias_count;
    cairn_session *s;
} speaker;

static void random_speaker(speaker *p, const cairn_config *c, bool toy) {
    memset(p, 0, sizeof *p);
    p->given = 1 + below(60), p->most = p->given + 1 + below(30);
    for (int i = 0; i < p->given; i++)
        p->prompt[i] = toy ? toy_words[below(11)] : 1 + below(VOCAB - 1);
    p->sampling = c->sampling;
    p->sampling.temperature = below(2) ? 0.9f : 0.0f, p->sampling.top_k = below(2) ? 0 : 10;
    p->sampling.repetition_penalty = below(3) ? 1.0f : 1.1f, p->sampling.seed = below(1 << 30);
    p->grammar = below(2) ? "root ::= ([a-d]{2} [A-Z0-9x]{1,3})*" : NULL;
    p->bias_count = !below(3);
    p->bias[0].id = 1 + below(VOCAB - 1), p->bias[0].bias = 3.0f;
}

static bool speak_alone(cairn_model *m, speaker *p) {
    cairn_generate_options o;
    const int32_t *ids;
    bool fine;
    memset(&o, 0, sizeof o);
    o.struct_size = sizeof o, o.sampling = &p->sampling, o.max_tokens = p->most - p->given;
    o.stop_count = -1;
    o.grammar = p->grammar, o.logit_bias = p->bias, o.logit_bias_count = p->bias_count;
    fine = !cairn_session_open(m, &p->s) && !cairn_append_ids(p->s, p->prompt, p->given) &&
           !cairn_generate_with(p->s, NULL, &o, NULL, NULL);
    ids = cairn_session_ids(p->s, &p->count);
    memcpy(p->said, ids, (size_t)p->count * sizeof *ids);
    cairn_session_close(p->s);
    p->s = NULL;
    return fine;
}

/* A session of the speaker's with its prompt waiting. */
static bool arrive(cairn_model *m, speaker *p) {
    if (cairn_session_open(m, &p->s)) return false;
    p->s->options.has_sampling = true, p->s->options.sampling = p->sampling;
    p->s->phase = ENGINE_PROMPT, p->s->pulled = true; /* as a call that pulls leaves it */
    p->s->options.grammar = p->grammar;
    p->s->options.bias = p->bias, p->s->options.bias_count = p->bias_count;
    return !engine_take_wishes(p->s, p->given) && !engine_add(p->s, p->prompt, p->given);
}

/* Takes what a step gave; true when all is said that was said alone, *fine: and it was the same. */
static bool hear(speaker *p, bool *fine) {
    cairn_session *s = p->s;
    while (s->fresh_at < s->fresh_count && s->count < p->count)
        engine_add_said(s, s->fresh[s->fresh_at++]);
    *fine = *fine && !memcmp(s->tokens, p->said, (size_t)s->count * sizeof *p->said);
    return s->count == p->count;
}

/* One forward of all of them. */
static bool step(cairn_model *m, speaker **who, int n) {
    bool fine = true;
    for (int i = 0; i < n; i++) who[i]->s->wants = true;
    if (handles_enter(m->runtime)) return false;
    fine = loop_turn(m, INT64_MAX, 1e12, true) && !m->scratch->part_count;
    for (int i = 0; i < n; i++) who[i]->s->wants = false, fine = fine && !who[i]->s->status;
    return !handles_leave(m->runtime, CAIRN_OK) && fine;
}

static bool speak_together(cairn_runtime *rt, cairn_model *m, int count, bool toy) {
    static speaker all[16];
    int done = 0, steps = 0;
    bool fine = true;
    rt->config.drafter = below(3) ? CAIRN_DRAFTER_NGRAM : CAIRN_DRAFTER_NONE;
    rt->config.draft_length = below(9);
    for (int i = 0; i < count; i++) {
        random_speaker(&all[i], &rt->config, toy);
        fine = fine && speak_alone(m, &all[i]);
    }
    for (int i = 0; i < count; i++) done += all[i].count == all[i].given;
    while (done < count && fine && steps++ < 2000) {
        speaker *who[SEQUENCES];
        int n = 0, here = 0;
        for (int i = 0; i < count; i++) here += all[i].s != NULL;
        for (int i = 0; i < count; i++) {
            speaker *p = &all[i];
            if (!p->s && here < SEQUENCES && p->count > p->given && below(4) == 0)
                fine = fine && arrive(m, p), here++;
            if (p->s && n < SEQUENCES && below(4)) who[n++] = p;
        }
        if (!n || !fine) continue;
        fine = step(m, who, n);
        if (!fine) tap_note("%s", cairn_last_error(rt));
        for (int i = 0; i < n && fine; i++) {
            if (!hear(who[i], &fine)) continue;
            cairn_session_close(who[i]->s);
            who[i]->s = NULL, who[i]->count = 0, done++;
        }
    }
    for (int i = 0; i < count; i++)
        if (all[i].s) cairn_session_close(all[i].s), all[i].s = NULL;
    return fine && done == count && !toy_faults;
}

static void test_sessions(cairn_runtime *rt, cairn_model *m, int runs, int count, bool toy) {
    int good = 0;
    for (int i = 0; i < runs; i++) good += speak_together(rt, m, count, toy);
    tap_ok(good == runs, "on %s%s: %d of %d crowds of %d sessions say together what each says alone",
           where, toy ? ", the toy" : "", good, runs, count);
}

static void test_toy(int runs) {
    static const char path[] = "build/toy_batch.gguf";
    cairn_runtime *rt = open_runtime(CAIRN_BACKEND_CPU, 1);
    cairn_model *m = NULL;
    if (tap_ok(toy_write(path, NULL) && rt && !toy_load(rt, path, &m), "the toy"))
        test_sessions(rt, m, runs, 9, true);
    cairn_close(rt);
    remove(path);
}

static void test_backend(cairn_backend backend, const char *path, bool quick) {
    cairn_runtime *rt = open_runtime(backend, 1);
    cairn_model *m = NULL;
    if (!rt) {
        tap_skip("batches on cuda");
        return;
    }
    if (tap_ok(!cairn_load_model(rt, path, &m), "on %s: a model", where)) {
        test_forwards(m, quick ? 3 : SEQUENCES, quick ? 56 : MOST);
        for (int i = 0; i < 4 && !quick; i++) test_forwards(m, SEQUENCES, MOST);
        test_sessions(rt, m, quick ? 1 : 6, quick ? 3 : 7, false);
    }
    cairn_close(rt);
}

int main(void) {
    char path[] = "/tmp/batch_XXXXXX";
    int file = mkstemp(path);
    state = random_seed();
    if (!tap_ok(file >= 0 && write_model(path), "a small model is written")) return tap_done();
    test_toy(60);
    test_backend(CAIRN_BACKEND_CPU, path, false);
    test_many_bounds(CAIRN_BACKEND_CPU, path);
    where = "cuda";
    test_backend(CAIRN_BACKEND_CUDA, path, getenv("CAIRN_SIMT_KERNELS") != NULL);
    test_many_bounds(CAIRN_BACKEND_CUDA, path);
    remove(path);
    return tap_done();
}
