/* direct: cairn_forward. Logits and hidden states of random rows against a walk in double precision, and
 * to the bit against cairn_eval, however rows are cut, batched and rejected; sessions go on as if they
 * had said the rows themselves; trees by masks, mask tokens by gates; all that is refused, and what fails
 * on the way, with nothing changed.
 * emulated: asan */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "gguf_build.h"
#include "random.h"
#include "ref/block_ref.h"
#include "ref/f16_ref.h"
#include "ref/llama_ref.h"
#include "tap.h"
#include "backends.h"
#include "family.h"
#define ZOO_TYPES BLOCK_F16
#include "family_zoo.h"
#include "low.h"

enum { LENGTH = 60, ROOM = 128, PAGE = 16, MOST = 3 };

static uint64_t state;
static char model_path[] = "/tmp/cairn_direct_XXXXXX", path[80];
static family f;
static const char *where;

static int below(int n) { return (int)(random_next(&state) % (uint64_t)n); }
static void draw_ids(int32_t *ids, int count) {
    for (int i = 0; i < count; i++) ids[i] = 1 + below(f.vocab - 1);
}

/* ---- allocations that fail ------------------------------------------------------------------- */

static int allowed = -1; /* more of them; -1: any number */
static void *some_realloc(void *user, void *memory, size_t old_bytes, size_t new_bytes) {
    (void)user, (void)old_bytes;
    if (!new_bytes) return free(memory), NULL;
    if (!allowed) return NULL;
    allowed -= allowed > 0;
    return realloc(memory, new_bytes);
}

static cairn_runtime *open_model(cairn_backend backend, const char *adapter, cairn_model **m) {
    cairn_config c;
    cairn_config_default(&c);
    c.backend = backend, c.log = CAIRN_LOG_OFF, c.threads = 2, c.page_size = PAGE, c.max_batch = 2;
    c.max_seq_len = ROOM, c.prefill_chunk = 48, c.topk = 1;
    c.selection.window = 20, c.selection.sinks = 2;
    c.allocator.realloc = some_realloc;
    snprintf(c.adapter, sizeof c.adapter, "%s", adapter);
    cairn_runtime *rt = open_runtime_on(&c, "forward");
    if (rt && cairn_load_model(rt, model_path, m)) {
        tap_ok(false, "load: %s", cairn_last_error(rt));
        cairn_close(rt);
        return NULL;
    }
    return rt;
}

/* ---- a call ---------------------------------------------------------------------------------- */

/* Sequences side by side, whose rows all give logits and hidden states. */
typedef struct call {
    cairn_forward_args a;
    cairn_forward_sequence q[MOST];
    int32_t ids[MOST * ROOM], all[MOST * ROOM];
    float *logits, *hidden;
} call;

static void begin(call *c) {
    memset(c, 0, sizeof *c);
    c->a.struct_size = sizeof c->a, c->a.sequences = c->q, c->a.ids = c->ids;
    c->a.logits_rows = c->a.hidden_rows = c->all;
    c->logits = c->a.logits = (float *)malloc(sizeof(float) * (size_t)(MOST * ROOM * f.vocab));
    c->hidden = c->a.hidden = (float *)malloc(sizeof(float) * (size_t)(MOST * ROOM * f.hidden));
    for (int i = 0; i < MOST * ROOM; i++) c->all[i] = i;
}

static void clear(call *c) {
    c->a.sequence_count = c->a.row_count = c->a.logits_count = c->a.hidden_count = 0;
    memset(c->q, 0, sizeof c->q);
}

static void add(call *c, cairn_session *s, int position, const int32_t *ids, int rows, bool prompt) {
    cairn_forward_sequence *q = &c->q[c->a.sequence_count++];
    q->session = s, q->position = position, q->rows = rows, q->prompt = prompt;
    memcpy(c->ids + c->a.row_count, ids, (size_t)rows * sizeof *ids);
    c->a.row_count += rows;
    c->a.logits_count = c->a.hidden_count = c->a.row_count;
}

static void end(call *c) { free(c->logits), free(c->hidden); }

/* ---- the walk in double ---------------------------------------------------------------------- */

typedef struct walk { llama_ref logits, hidden; } walk;

/* The second walk's head is the identity, so that its logits are hidden states; behind the vocabulary its
 * embedding has `mask`, if that is there. */
static walk open_walk(const double *mask) {
    walk w = {zoo_ref(&f), zoo_ref(&f)};
    const int n = f.hidden;
    double *embed = (double *)calloc((size_t)((f.vocab + 1) * n), sizeof *embed);
    w.hidden.head.out = w.hidden.head.in = n;
    w.hidden.head.w = (double *)calloc((size_t)(n * n), sizeof(double));
    for (int i = 0; i < n; i++) w.hidden.head.w[i * n + i] = 1;
    memcpy(embed, w.hidden.embed.w, (size_t)(f.vocab * n) * sizeof *embed);
    if (mask) memcpy(embed + f.vocab * n, mask, (size_t)n * sizeof *embed);
    w.hidden.embed.w = embed;
    w.logits.dense = w.hidden.dense = 1;
    return w;
}

static void close_walk(walk *w) {
    free(w->hidden.head.w), free(w->hidden.embed.w);
    zoo_ref_free(&w->logits), zoo_ref_free(&w->hidden);
}

static double apart(const float *got, const double *want, int n) {
    double worst = 0;
    for (int i = 0; i < n; i++) {
        double off = fabs((double)got[i] - want[i]) / (1 + fabs(want[i]));
        if (!(off <= worst)) worst = off;
    }
    return worst;
}

/* The row's results beside the walk's next token. */
static double walk_on(walk *w, const call *c, int row, int token, int position) {
    double *want = (double *)calloc((size_t)(f.vocab + f.hidden), sizeof *want), off, other;
    llama_ref_step(&w->logits, token, position, want);
    off = apart(c->logits + (size_t)row * (size_t)f.vocab, want, f.vocab);
    llama_ref_step(&w->hidden, token, position, want);
    other = apart(c->hidden + (size_t)row * (size_t)f.hidden, want, f.hidden);
    free(want);
    return off > other ? off : other;
}

static void test_walk(cairn_model *m, double bound) {
    cairn_session *s[2] = {NULL, NULL};
    int32_t ids[2][40];
    const int given[2] = {21, 9}; /* short of what selection leaves out */
    double worst = 0;
    call c;
    begin(&c);
    for (int i = 0; i < 2; i++) draw_ids(ids[i], 40), cairn_session_open(m, &s[i]);
    add(&c, s[0], 0, ids[0], given[0], true), add(&c, s[1], 0, ids[1], given[1], false);
    if (!tap_ok(!cairn_forward(m, &c.a), "on %s: a prompt beside steps", where))
        tap_note("%s", cairn_last_error(m->runtime));
    for (int i = 0, row = 0; i < 2; i++) {
        walk w = open_walk(NULL);
        for (int at = 0; at < given[i]; at++, row++)
            worst = fmax(worst, walk_on(&w, &c, row, ids[i][at], at));
        close_walk(&w);
    }
    tap_ok(worst < bound, "on %s: logits and hidden states are the double walk's within %.1e", where,
           worst);
    for (int i = 0; i < 2; i++) cairn_session_close(s[i]);
    end(&c);
}

/* ---- to the bit ------------------------------------------------------------------------------ */

/* Where logits of a row are otherwise than eval's best `top`. */
static int other_bits(const float *row, const cairn_eval_args *e, int at) {
    int wrong = 0;
    for (int i = 0; i < e->top; i++)
        wrong += memcmp(&row[e->top_ids[at * e->top + i]], &e->top_logits[at * e->top + i], 4) != 0;
    return wrong;
}

/* Sequences in random cuts, some of whose rows are wrong and then replaced. */
static void test_eval(cairn_model *m, int length) {
    static int32_t ids[MOST][LENGTH];
    cairn_eval_args e[MOST];
    cairn_session *s[MOST];
    int at[MOST] = {0}, wrong = 0, checked = 0, calls = 0;
    call c;
    bool fine = true;
    begin(&c);
    memset(e, 0, sizeof e);
    for (int i = 0; i < MOST; i++) {
        double nll;
        draw_ids(ids[i], length);
        e[i].struct_size = sizeof e[i], e[i].ids = ids[i], e[i].count = length, e[i].top = f.vocab;
        e[i].top_ids = (int32_t *)malloc(sizeof(int32_t) * (size_t)(length * f.vocab));
        e[i].top_logits = (float *)malloc(sizeof(float) * (size_t)(length * f.vocab));
        fine = fine && !cairn_eval(m, &e[i], &nll) && !cairn_session_open(m, &s[i]);
    }
    while (fine && (at[0] < length || at[1] < length || at[2] < length)) {
        int who[MOST], rows[MOST], good[MOST], n = 0, row = 0;
        clear(&c);
        for (int i = 0; i < MOST; i++) {
            if (at[i] >= length || !below(3)) continue;
            rows[n] = 1 + below(length - at[i] < 24 ? length - at[i] : 24);
            good[n] = 1 + below(rows[n]);
            who[n] = i;
            add(&c, s[i], at[i], ids[i] + at[i], rows[n], false);
            for (int r = good[n]; r < rows[n]; r++)
                c.ids[c.a.row_count - rows[n] + r] = 1 + below(f.vocab - 1);
            n++;
        }
        fine = !cairn_forward(m, &c.a), calls++;
        for (int i = 0; i < n && fine; row += rows[i++]) {
            for (int r = 0; r < good[i]; r++, checked++)
                wrong += other_bits(c.logits + (size_t)(row + r) * (size_t)f.vocab, &e[who[i]],
                                    at[who[i]] + r);
            at[who[i]] += good[i];
        }
    }
    if (!fine) tap_note("%s", cairn_last_error(m->runtime));
    tap_ok(fine && checked == MOST * length && !wrong,
           "on %s: %d rows in %d calls have eval's logits, bit for bit; %d values do not", where,
           checked, calls, wrong);
    for (int i = 0; i < MOST; i++)
        free(e[i].top_ids), free(e[i].top_logits), cairn_session_close(s[i]);
    end(&c);
}

static int best_of(const float *logits) {
    int best = 0;
    for (int i = 1; i < f.vocab; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

/* A text that is made by forwards, then by the session itself, then by forwards of a fork. */
static void test_text(cairn_model *m, int count) {
    cairn_session *alone, *s, *fork = NULL;
    int32_t ids[ROOM] = {0};
    const cairn_logit_bias no_end = {0, -INFINITY};
    cairn_generate_options o = {.struct_size = sizeof o, .logit_bias = &no_end, .logit_bias_count = 1};
    int given = 17, held, own, forked;
    call c;
    bool fine;
    begin(&c);
    draw_ids(ids, given);
    o.max_tokens = 3 * count;
    cairn_session_open(m, &alone), cairn_session_open(m, &s);
    fine = !cairn_append_ids(alone, ids, given) && !cairn_generate_with(alone, "", &o, NULL, NULL);
    for (int i = 0; i < count && fine; i++) {
        clear(&c);
        if (!i) add(&c, s, 0, ids, given, true);
        else add(&c, s, given + i - 1, ids + given + i - 1, 1, false);
        fine = !cairn_forward(m, &c.a);
        float *last = c.logits + (size_t)(c.a.row_count - 1) * (size_t)f.vocab;
        last[0] = -INFINITY; /* no end */
        ids[given + i] = best_of(last);
    }
    clear(&c); /* the last token is known, but not processed: the session goes on with it */
    add(&c, s, given + count - 1, ids + given + count - 1, 1, false);
    fine = fine && !cairn_forward(m, &c.a);
    o.max_tokens = count;
    fine = fine && !cairn_generate_with(s, "", &o, NULL, NULL) && !cairn_session_fork(s, &fork);
    const int32_t *now = cairn_session_ids(s, &held);
    memcpy(ids, now, (size_t)held * sizeof *ids);
    for (int i = 0; i < count && fine; i++) {
        clear(&c);
        add(&c, fork, held - 1, ids + held - 1, 1, false);
        fine = !cairn_forward(m, &c.a);
        c.logits[0] = -INFINITY;
        ids[held++] = best_of(c.logits);
    }
    const int32_t *want = cairn_session_ids(alone, &own);
    cairn_session_ids(fork, &forked);
    if (!fine) tap_note("%s", cairn_last_error(m->runtime));
    tap_ok(fine && held == own && forked == own - 1 && !memcmp(want, ids, (size_t)own * sizeof *ids),
           "on %s: %d ids by forwards, generation, a fork's forwards: as generated", where, own - given);
    cairn_session_close(alone), cairn_session_close(s), cairn_session_close(fork);
    end(&c);
}

/* ---- masks and gates ------------------------------------------------------------------------- */

/* A tree of rows behind a prompt: each sees its ancestors, and turns as its depth says. */
static void test_tree(cairn_model *m, int given, double bound) {
    enum { ROWS = 13 };
    int parent[ROWS], depth[ROWS], worst_row = -1, held;
    int32_t ids[ROOM], rope[ROWS];
    uint8_t mask[ROWS * 2] = {0};
    double worst = 0;
    cairn_session *s;
    call c;
    begin(&c);
    draw_ids(ids, given + ROWS);
    cairn_session_open(m, &s);
    if (given) cairn_append_ids(s, ids, given);
    for (int r = 0; r < ROWS; r++) {
        parent[r] = r ? below(r + 1) - 1 : -1, depth[r] = parent[r] < 0 ? 0 : depth[parent[r]] + 1;
        rope[r] = given + depth[r];
        for (int a = r; a >= 0; a = parent[a]) mask[r * 2 + a / 8] |= (uint8_t)(1 << a % 8);
    }
    add(&c, s, given, ids + given, ROWS, false);
    c.a.rope = rope, c.q[0].mask = mask, c.q[0].mask_bytes = sizeof mask;
    bool fine = !cairn_forward(m, &c.a);
    if (!fine) tap_note("%s", cairn_last_error(m->runtime));
    for (int r = 0; r < ROWS && fine; r++) {
        int way[ROWS], n = 0;
        double off = 0;
        walk w = open_walk(NULL);
        for (int a = r; a >= 0; a = parent[a]) way[n++] = a;
        for (int i = 0; i < given; i++) walk_on(&w, &c, 0, ids[i], i);
        while (n--) off = walk_on(&w, &c, r, ids[given + way[n]], given + depth[way[n]]);
        if (!(off <= worst)) worst = off, worst_row = r;
        close_walk(&w);
    }
    int kept = 0;
    while (kept < ROWS && depth[kept] == kept) kept++;
    cairn_session_ids(s, &held);
    tap_ok(fine && worst < bound, "a tree of %d rows behind %d: each as its own way alone (%.1e, row %d)",
           ROWS, given, worst, worst_row);
    tap_ok(held == given + kept, "the session keeps the tree's trunk, %d rows (%d)", kept, held - given);
    cairn_session_close(s);
    end(&c);
}

/* A token, then mask tokens behind it by a gated adapter: their hidden states are those of the merged
 * model, and the token's are the model's own. */
static void test_gates(cairn_backend backend) {
    enum { GIVEN = 11, MASKS = 3 };
    cairn_model *m = NULL;
    cairn_adapter *adapter = NULL;
    cairn_session *s = NULL;
    int32_t ids[GIVEN + MASKS];
    const uint8_t gate[1 + MASKS] = {0, 1, 1, 1};
    double own, worst = 0;
    int held;
    low l = make_low(&f, 4, 4, true, &state);
    low_gate(&l, f.hidden, &state);
    gguf_build file = gguf_low(&l, "llama", false);
    save(path, &file);
    cairn_runtime *rt = open_model(backend, "", &m);
    const double bound = backend == CAIRN_BACKEND_CUDA ? 2e-2 : 5e-3;
    call c;
    begin(&c);
    draw_ids(ids, GIVEN);
    for (int i = 0; i < MASKS; i++) ids[GIVEN + i] = -1;
    bool fine = rt && !cairn_adapter_load(m, path, &adapter) && !cairn_session_open(m, &s) &&
                !cairn_session_adapt(s, adapter) && !cairn_append_ids(s, ids, GIVEN);
    if (!rt || !tap_ok(fine, "a gated adapter: %s", fine ? "" : cairn_last_error(rt))) {
        free(file.data), free_low(&l), end(&c);
        return;
    }
    add(&c, s, GIVEN - 1, ids + GIVEN - 1, 1 + MASKS, false);
    c.a.gate = gate;
    fine = !cairn_forward(m, &c.a);
    if (!fine) tap_note("%s", cairn_last_error(rt));
    walk w = open_walk(l.parts[0]);
    for (int i = 0; i < GIVEN - 1; i++) walk_on(&w, &c, 0, ids[i], i);
    own = walk_on(&w, &c, 0, ids[GIVEN - 1], GIVEN - 1);
    merge(&l, 1);
    {
        llama_ref merged = zoo_ref(&f);
        merged.head = w.hidden.head, merged.embed = w.hidden.embed, merged.dense = 1;
        free(merged.keys), free(merged.values);
        merged.keys = w.hidden.keys, merged.values = w.hidden.values;
        double *want = (double *)calloc((size_t)f.hidden, sizeof *want);
        for (int i = 0; i < MASKS; i++) {
            llama_ref_step(&merged, f.vocab, GIVEN + i, want);
            worst = fmax(worst, apart(c.hidden + (size_t)(1 + i) * (size_t)f.hidden, want, f.hidden));
        }
        free(want), free(merged.gated);
    }
    merge(&l, -1);
    cairn_session_ids(s, &held);
    tap_ok(fine && own < bound && worst < bound, "gates: the token by the model's weights (%.1e), mask "
           "tokens by merged ones (%.1e)", own, worst);
    tap_ok(held == GIVEN, "mask tokens leave no trace");
    close_walk(&w);
    end(&c);
    free(file.data), free_low(&l);
    cairn_close(rt);
}

/* ---- what is refused ------------------------------------------------------------------------- */

typedef struct bad { cairn_status status; const char *part; } bad;

static void refused(cairn_model *m, const cairn_forward_args *a, cairn_status want, const char *part) {
    cairn_status status = cairn_forward(m, a);
    const char *text = cairn_last_error(m->runtime);
    tap_ok(status == want && strstr(text, part), "on %s: %s (%s)", where, cairn_status_name(status), text);
}

static void test_refused(cairn_model *m) {
    int32_t ids[ROOM], rope[ROOM] = {0}, few[2] = {1, 1}, before, after;
    uint8_t gate[ROOM] = {0}, mask[ROOM] = {0};
    cairn_session *s, *other;
    call c;
    begin(&c);
    draw_ids(ids, 30);
    cairn_session_open(m, &s), cairn_session_open(m, &other);
    cairn_append_ids(s, ids, 20), cairn_append_ids(other, ids, 9);
    cairn_generate(s, "", 5, NULL, NULL);
    cairn_session_ids(s, &before);
    if (before < 25) cairn_append_ids(s, ids, 25 - before); /* the text ended by itself */
    memcpy(ids, cairn_session_ids(s, &before), 25 * sizeof *ids);
#define REFUSED(change, status, part)                                                               \
    do {                                                                                            \
        clear(&c), add(&c, s, 22, ids, 4, false), add(&c, other, 9, ids, 1, true);                  \
        c.a.rope = NULL, c.a.gate = NULL, c.a.logits_rows = c.a.hidden_rows = c.all;                \
        c.a.struct_size = sizeof c.a;                                                               \
        change;                                                                                     \
        refused(m, &c.a, status, part);                                                             \
    } while (0)
    REFUSED(c.a.struct_size = 3, CAIRN_VERSION_MISMATCH, "struct_size");
    REFUSED(c.a.ids = NULL, CAIRN_INVALID_ARGUMENT, "ids");
    c.a.ids = c.ids;
    REFUSED(c.a.row_count = -1, CAIRN_INVALID_ARGUMENT, "row_count = -1");
    REFUSED(c.a.row_count = 6, CAIRN_INVALID_ARGUMENT, "row 5: it is no sequence's");
    REFUSED(c.a.row_count = 4, CAIRN_INVALID_ARGUMENT, "sequence 1: its rows");
    REFUSED(c.q[1].session = s, CAIRN_INVALID_ARGUMENT, "another sequence's");
    REFUSED(c.q[1].session = NULL, CAIRN_INVALID_ARGUMENT, "sequence 1: its session");
    REFUSED(c.q[0].position = 26, CAIRN_INVALID_ARGUMENT, "sequence 0: its position");
    REFUSED(c.q[1].position = -1, CAIRN_INVALID_ARGUMENT, "sequence 1: its position");
    REFUSED(c.q[1].rows = 0, CAIRN_INVALID_ARGUMENT, "sequence 1: its rows");
    REFUSED(c.ids[4] = f.vocab, CAIRN_INVALID_ARGUMENT, "row 4: its id");
    REFUSED(c.ids[2] = -1, CAIRN_INVALID_ARGUMENT, "row 2: its id");
    REFUSED((c.a.rope = rope, rope[3] = ROOM), CAIRN_INVALID_ARGUMENT, "row 3: its rope");
    REFUSED((c.a.gate = gate, gate[1] = 1), CAIRN_INVALID_ARGUMENT, "row 1: a gate");
    REFUSED((c.q[0].mask = mask, c.q[0].mask_bytes = 3), CAIRN_INVALID_ARGUMENT, "mask is shorter");
    REFUSED((c.q[1].mask = mask, c.q[1].mask_bytes = 9), CAIRN_INVALID_ARGUMENT, "run as steps");
    REFUSED((c.a.logits_rows = few, c.a.logits_count = 2), CAIRN_INVALID_ARGUMENT, "logits_rows[1] = 1");
    REFUSED((few[1] = 5, c.a.hidden_rows = few, c.a.hidden_count = 2), CAIRN_INVALID_ARGUMENT,
            "hidden_rows[1] = 5");
    REFUSED(c.a.hidden_rows = NULL, CAIRN_INVALID_ARGUMENT, "hidden_count");
    mask[0] = 1, mask[1] = 3, mask[2] = 5, mask[3] = 7;
    REFUSED((c.q[0].mask = mask, c.q[0].mask_bytes = 4), CAIRN_INVALID_ARGUMENT, "row 3: by its mask");
    clear(&c), add(&c, s, 20, ids, ROOM - 19, false);
    refused(m, &c.a, CAIRN_CONTEXT_FULL, "the context is 128");
    const int32_t *now = cairn_session_ids(s, &after);
    tap_ok(before == after && !memcmp(now, ids, 25 * sizeof *ids), "on %s: the session is as before",
           where);
    cairn_session_close(s), cairn_session_close(other);
    end(&c);
}

/* Every allocation fails once: the session holds what it held, and goes on as if nothing was asked. */
static void test_faults(cairn_model *m) {
    int32_t ids[ROOM], want[ROOM];
    cairn_session *s, *alone;
    cairn_status status = CAIRN_OUT_OF_MEMORY;
    int held, faults = 0, same = 0;
    call c;
    begin(&c);
    draw_ids(ids, 40);
    cairn_session_open(m, &alone), cairn_append_ids(alone, ids, 30);
    cairn_generate(alone, "", 12, NULL, NULL);
    const int32_t *said = cairn_session_ids(alone, &held);
    memcpy(want, said, sizeof *want * (size_t)held);
    cairn_session_open(m, &s), cairn_append_ids(s, ids, 30);
    for (int n = 0; n < 40 && status; n++) {
        int count;
        add(&c, s, 12, ids + 3, 25, n % 2);
        allowed = n, status = cairn_forward(m, &c.a), allowed = -1;
        const int32_t *now = cairn_session_ids(s, &count);
        faults += status == CAIRN_OUT_OF_MEMORY;
        if (status) same += count == 30 && !memcmp(now, ids, 30 * sizeof *ids);
        if (status) clear(&c);
    }
    tap_ok(!status && faults > 2 && same == faults, "%d of %d failed forwards left the session's ids",
           same, faults);
    cairn_session_reset(s), cairn_append_ids(s, ids, 30);
    clear(&c), add(&c, s, 12, ids + 3, 25, false);
    allowed = 0, status = cairn_forward(m, &c.a), allowed = -1;
    cairn_generate(s, "", 12, NULL, NULL);
    int count;
    const int32_t *now = cairn_session_ids(s, &count);
    tap_ok(status == CAIRN_OUT_OF_MEMORY && count == held && !memcmp(now, want, sizeof *want * (size_t)held),
           "and it says behind one what it says alone");
    cairn_session_close(s), cairn_session_close(alone);
    end(&c);
}

static void test_backend(cairn_backend backend) {
    cairn_model *m = NULL;
    cairn_runtime *rt = open_model(backend, "", &m);
    const bool few = is_emulated(backend);
    where = backend == CAIRN_BACKEND_CUDA ? "cuda" : "cpu";
    if (!rt) return;
    test_walk(m, backend == CAIRN_BACKEND_CUDA ? 2e-2 : 5e-3);
    for (int i = 0; i < (few ? 1 : 6); i++) test_eval(m, few ? 40 : LENGTH);
    test_text(m, few ? 3 : 12);
    test_refused(m);
    for (int given = few ? 20 : 0; given < 30; given += 9)
        test_tree(m, given, backend == CAIRN_BACKEND_CUDA ? 2e-2 : 5e-3);
    if (backend == CAIRN_BACKEND_CPU) test_faults(m);
    cairn_close(rt);
}

/* Sequences with more state than pages of all layers: rows that go take it back. */
static void test_family(family made) {
    cairn_model *m = NULL;
    f = made;
    family_write(&f, model_path);
    where = f.architecture;
    cairn_runtime *rt = open_model(CAIRN_BACKEND_CPU, "", &m);
    for (int i = 0; i < 2 && rt; i++) test_eval(m, LENGTH);
    if (rt) test_text(m, 8);
    cairn_close(rt);
    family_free(&f);
}

int main(void) {
    int file = mkstemp(model_path);
    state = random_seed();
    if (file < 0) return 1;
    close(file);
    snprintf(path, sizeof path, "%s.low", model_path);
    f = zoo_llama(&state);
    zoo_fill(&f, &state);
    family_write(&f, model_path);
    test_backend(CAIRN_BACKEND_CPU);
    test_gates(CAIRN_BACKEND_CPU);
    test_backend(CAIRN_BACKEND_CUDA);
    test_gates(CAIRN_BACKEND_CUDA);
    family_free(&f);
    test_family(zoo_lfm2(&state));
    test_family(zoo_gemma3(&state));
    remove(model_path), remove(path);
    return tap_done();
}
