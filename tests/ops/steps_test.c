/* prepare_steps against the per-step path (tests/ref/steps_ref.h): every output of every step, byte
 * for byte, in buffers that are larger than needed and keep what the runs before left there: what
 * is not a live element must stand. Modes, page sizes, offsets, padding, shrinking replays, faults;
 * on the CPU, where there is one on the GPU, and what it asks of the driver on a fake one.
 * emulated: asan race */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "fake/fake_compiler.h"
#include "random.h"
#include "ref/steps_ref.h"
#include "tap.h"
#include "backends.h"
#include "device_words.h"

enum { MOST = PREPARE_MAX_STEPS, TOKENS = PREPARE_OUTPUTS, PAGES, FIELDS, BUFFERS = MOST * FIELDS };

static const char *where;
static bool emulated;

static bool holds_in_step(buffer *b, const char *name, int step) {
    bool fine = holds(b, name);
    if (!fine) tap_note("in step %d", step);
    return fine;
}

/* What a captured graph is made of: shapes and addresses stand, the inputs' values change. */
typedef struct world {
    int mode, steps, offset, drafts, topk, page, split[2], workers[2], expand, shared;
    int batch, pool, context, columns, page_columns, rows_room;
    bool has_count, has_requests, has_slots, by_page;
    buffer seq_lens, requests, accept, count, slots, pages, out[BUFFERS];
    cairn_step_metadata into[MOST];
    cairn_prepare_steps_args args;
    int most_accept;
} world;

static const size_t field_at[FIELDS] = {
    offsetof(cairn_step_metadata, cache_seqlens),    offsetof(cairn_step_metadata, cu_seqlens_k),
    offsetof(cairn_step_metadata, cu_rows),          offsetof(cairn_step_metadata, max_seqlen_k),
    offsetof(cairn_step_metadata, cu_seqlens_q),     offsetof(cairn_step_metadata, row_requests),
    offsetof(cairn_step_metadata, positions),
    offsetof(cairn_step_metadata, seqlens_expanded), offsetof(cairn_step_metadata, seqlens_clipped),
    offsetof(cairn_step_metadata, cu_seqlens_clipped),
    offsetof(cairn_step_metadata, index_splits),     offsetof(cairn_step_metadata, index_schedule),
    offsetof(cairn_step_metadata, attend_splits),    offsetof(cairn_step_metadata, attend_schedule),
    offsetof(cairn_step_metadata, token_table),      offsetof(cairn_step_metadata, page_table)};
static const char *const field_names[FIELDS] = {
    "cache_seqlens", "cu_seqlens_k", "cu_rows", "max_seqlen_k", "cu_seqlens_q", "row_requests",
    "positions", "seqlens_expanded", "seqlens_clipped", "cu_seqlens_clipped", "index_splits", "index_schedule",
    "attend_splits", "attend_schedule", "token_table", "page_table"};

static void point(world *w, int step, int field) {
    memcpy((char *)&w->into[step] + field_at[field], &w->out[step * FIELDS + field].t, sizeof(void *));
}

static int room(void) { return between(0, 3); }

static buffer make_output(const world *w, int field) {
    int table_rows = (w->expand ? w->rows_room : w->batch) + room();
    switch (field) {
        case PREPARE_CACHE_SEQLENS: return make(1, w->batch + room(), 0);
        case PREPARE_CU_SEQLENS_K: case PREPARE_CU_ROWS: return make(1, w->batch + 1 + room(), 0);
        case PREPARE_MAX_SEQLEN_K: return make(1, 1 + room(), 0);
        case PREPARE_ROW_REQUESTS: return make(1, w->rows_room, 0); /* the least of the rows */
        case PREPARE_POSITIONS: case PREPARE_EXPANDED: case PREPARE_CLIPPED: return make(1, w->rows_room + room(), 0);
        case PREPARE_INDEX_SCHEDULE: return make(2, w->workers[0] + 1, 2);
        case PREPARE_ATTEND_SCHEDULE: return make(2, w->workers[1] + 1, 2);
        case TOKENS: return make(2, table_rows, w->columns);
        case PAGES: return make(2, table_rows, w->page_columns);
        default: return make(1, w->rows_room + 1 + room(), 0);
    }
}

/* Tables: none of several steps' when shared; page size 1 has the one table. */
static bool wants(const world *w, int step, int field) {
    if (field < TOKENS) return true;
    if (!w->has_slots || (field == PAGES && w->page == 1)) return false;
    return !w->shared || step == w->steps - 1;
}

static void make_inputs(world *w) {
    w->seq_lens = make(1, w->batch, 0), w->requests = make(1, w->batch, 0);
    w->accept = make(1, w->batch, 0), w->count = make(1, 1, 0);
    w->slots = make(2, w->pool, w->context);
    for (int r = 0; r < w->pool; r++)
        for (int t = 0; t < w->context; t++) { /* pages in any order, slots of a page in a row */
            int32_t *slot = &w->slots.want[r * w->context + t];
            *slot = t % w->page ? slot[-1] + 1 : between(0, 100000) * w->page;
            if (t % w->page == 0 && between(0, 19) == 0) *slot = -1;
            if (t % w->page && slot[-1] == -1) *slot = -1;
        }
    upload(&w->slots);
    w->pages = make(2, w->pool, (w->context + w->page - 1) / w->page);
    for (int r = 0, i = 0; r < w->pool; r++)
        for (int t = 0; t < w->context; t += w->page, i++) {
            int32_t slot = w->slots.want[r * w->context + t];
            w->pages.want[i] = slot < 0 ? -between(1, 9) : slot / w->page;
        }
    upload(&w->pages);
}

static void make_args(world *w) {
    cairn_prepare_steps_args *a = &w->args;
    memset(a, 0, sizeof *a);
    a->struct_size = sizeof *a;
    a->mode = w->mode, a->step_count = w->steps, a->step_offset = w->offset;
    a->draft_tokens = w->drafts, a->index_topk = w->topk, a->page_size = w->page;
    a->index_split = w->split[0], a->attend_split = w->split[1], a->expand_tables = w->expand;
    a->seq_lens = w->seq_lens.t;
    if (w->has_slots && !w->by_page) a->slots = w->slots.t;
    if (w->has_slots && w->by_page) a->pages = w->pages.t;
    if (w->has_requests) a->requests = w->requests.t;
    if (w->has_count) a->count = w->count.t;
    if (w->mode == CAIRN_STEP_DRAFT_EXTEND) a->accept = w->accept.t;
    a->steps = w->into;
}

static void make_world(world *w) {
    make_inputs(w);
    for (int s = 0; s < w->steps; s++) {
        memset(&w->into[s], 0, sizeof w->into[s]);
        w->into[s].struct_size = sizeof w->into[s];
        for (int f = 0; f < FIELDS; f++) {
            if (!wants(w, s, f)) continue;
            w->out[s * FIELDS + f] = make_output(w, f);
            upload(&w->out[s * FIELDS + f]);
            point(w, s, f);
        }
        if (w->page == 1 && w->has_slots && between(0, 1)) w->into[s].page_table = w->into[s].token_table;
        if (w->page == 1 && w->has_slots && between(0, 1)) w->into[s].token_table = NULL,
            w->into[s].page_table = w->out[s * FIELDS + TOKENS].t;
    }
    for (int s = 0; w->shared && w->has_slots && s < w->steps - 1 && between(0, 1); s++) {
        w->into[s].token_table = w->into[w->steps - 1].token_table; /* named by several steps */
        w->into[s].page_table = w->into[w->steps - 1].page_table;
    }
    make_args(w);
}

static void drop_world(world *w) {
    for (int i = 0; i < BUFFERS; i++) drop(&w->out[i]);
    drop(&w->seq_lens), drop(&w->requests), drop(&w->accept), drop(&w->count), drop(&w->slots), drop(&w->pages);
}

/* Lengths about the places where something changes. */
static int some_length(const world *w, int most) {
    const int special[] = {1, w->page - 1, w->page, w->page + 1, w->topk - 1, w->topk, w->topk + 1,
                           w->split[0], w->split[0] + 1, most, 0};
    int length = between(0, 2) ? between(1, most) : special[between(0, 10)];
    return length < 0 ? 0 : length > most ? most : length;
}

/* New values of the inputs, none out of range. */
static void draw_inputs(world *w, int most) {
    int rows = 0;
    for (int b = 0; b < w->batch; b++) {
        int length = some_length(w, most), accept = between(0, w->most_accept);
        if (accept > length) accept = length;
        if (rows + accept > w->rows_room) accept = 0;
        rows += accept;
        w->seq_lens.want[b] = length;
        w->requests.want[b] = between(0, w->pool - 1);
        w->accept.want[b] = accept;
    }
    w->count.want[0] = between(0, w->batch);
}

static void upload_inputs(world *w) {
    upload(&w->seq_lens), upload(&w->requests), upload(&w->accept), upload(&w->count);
}

/* ---- what is wanted --------------------------------------------------------------------------- */

static void expect_array(world *w, int step, int field, const ref_array *a) {
    memcpy(w->out[step * FIELDS + field].want, a->v, (size_t)a->n * 4);
}

static void expect_plan(world *w, int step, int field, const ref_array *lengths, int kind) {
    ref_array cu = ref_splits(*lengths, w->split[kind]), schedule = ref_schedule(cu, w->workers[kind]);
    expect_array(w, step, field, &cu);
    expect_array(w, step, field + 1, &schedule);
    free(cu.v), free(schedule.v);
}

/* The live part of each row: slots below its request's length. */
static void expect_tables(world *w, int step, const ref_step *m) {
    buffer *tokens = &w->out[step * FIELDS + TOKENS], *pages = &w->out[step * FIELDS + PAGES];
    for (int row = 0; row < m->table_rows; row++) {
        int length = m->cache_seqlens.v[w->expand ? m->row_requests.v[row] : row];
        int held = (length + w->page - 1) / w->page;
        if (tokens->want)
            memcpy(tokens->want + row * w->columns, m->page_indices + row * m->max_len, (size_t)length * 4);
        if (pages->want)
            memcpy(pages->want + row * w->page_columns, m->real_page_table + row * m->real_cols, (size_t)held * 4);
    }
}

static void expect_step(world *w, int step, const ref_step *m) {
    ref_array rows = ref_new(m->seqlens_expanded.n + 1);
    for (int i = 0; i < rows.n; i++) rows.v[i] = i;
    expect_array(w, step, PREPARE_CACHE_SEQLENS, &m->cache_seqlens);
    expect_array(w, step, PREPARE_CU_SEQLENS_K, &m->cu_seqlens_k);
    expect_array(w, step, PREPARE_CU_ROWS, &m->cu_rows);
    w->out[step * FIELDS + PREPARE_MAX_SEQLEN_K].want[0] = m->max_len;
    expect_array(w, step, PREPARE_CU_SEQLENS_Q, &rows);
    expect_array(w, step, PREPARE_ROW_REQUESTS, &m->row_requests);
    expect_array(w, step, PREPARE_EXPANDED, &m->seqlens_expanded);
    for (int r = 0; r < m->seqlens_expanded.n; r++)
        w->out[step * FIELDS + PREPARE_POSITIONS].want[r] = m->seqlens_expanded.v[r] - 1;
    expect_array(w, step, PREPARE_CLIPPED, &m->nsa_cache_seqlens);
    expect_array(w, step, PREPARE_CU_CLIPPED, &m->nsa_cu_seqlens_k);
    expect_plan(w, step, PREPARE_INDEX_SPLITS, &m->seqlens_expanded, 0);
    expect_plan(w, step, PREPARE_ATTEND_SPLITS, &m->nsa_cache_seqlens, 1);
    if (m->page_indices) expect_tables(w, step, m);
    free(rows.v);
}

/* What faults leave: lengths and accepts cut, unknown requests without tokens. */
static int cut(int64_t value, int most) { return value < 0 ? 0 : value > most ? most : (int)value; }

static void expect(world *w) {
    int32_t *seq = (int32_t *)malloc((size_t)w->batch * 12 + 4), *req = seq + w->batch, *accept = req + w->batch;
    int live = w->has_count ? w->count.want[0] : w->batch, capacity = w->context;
    ref_step_inputs in;
    if (w->has_slots && w->columns < capacity) capacity = w->columns;
    if (w->has_slots && w->page > 1 && w->page_columns * w->page < capacity) capacity = w->page_columns * w->page;
    if (!w->has_slots) capacity = INT32_MAX;
    for (int b = 0; b < w->batch; b++) {
        req[b] = b >= live ? 0 : w->has_requests ? w->requests.want[b] : b;
        if (req[b] >= w->pool || req[b] < 0) req[b] = w->has_slots || req[b] < 0 ? -1 : req[b];
        seq[b] = b >= live ? 1 : cut(w->seq_lens.want[b], capacity);
        accept[b] = b >= live || req[b] < 0 ? 0 : cut(w->accept.want[b], seq[b]);
    }
    memset(&in, 0, sizeof in);
    in.mode = w->mode, in.bs = w->batch, in.num_draft_tokens = w->drafts, in.index_topk = w->topk;
    in.page_size = w->page, in.max_ctx = w->context, in.capacity = capacity, in.rows_room = w->rows_room;
    in.seq_lens = seq, in.req = req, in.accept = accept, in.stride = w->context;
    in.req_to_token = w->has_slots ? w->slots.want : NULL;
    for (int s = 0; s < w->steps; s++) {
        ref_step m = ref_prepare(&in, s * w->offset, w->expand);
        if (!w->shared || s == w->steps - 1 || !w->has_slots) expect_step(w, s, &m);
        else {
            int32_t *none = m.page_indices;
            m.page_indices = NULL;
            expect_step(w, s, &m);
            m.page_indices = none;
        }
        ref_free_step(&m);
    }
    free(seq);
}

static bool all_hold(world *w) {
    bool fine = true;
    for (int s = 0; s < w->steps && fine; s++)
        for (int f = 0; f < FIELDS && fine; f++)
            if (w->out[s * FIELDS + f].t)
                fine = holds_in_step(&w->out[s * FIELDS + f], field_names[f], s);
    return fine && holds(&w->slots, "slots") && holds(&w->seq_lens, "seq_lens");
}

static cairn_status run(world *w) {
    cairn_status status = cairn_prepare_steps(rt, &w->args), later = cairn_sync(rt);
    return status ? status : later;
}

static bool run_once(world *w) {
    cairn_status status;
    upload_inputs(w);
    expect(w);
    status = run(w);
    if (status) tap_note("%s", cairn_last_error(rt));
    return !status && all_hold(w);
}

/* ---- tests ------------------------------------------------------------------------------------ */

static world *draw_world(int mode, int page, int batch, int context) {
    world *w = (world *)calloc(1, sizeof *w);
    w->by_page = between(0, 2) == 0;
    if (w->by_page) context = (context + page - 1) / page * page;
    w->mode = mode, w->page = page, w->batch = batch, w->context = context;
    w->steps = between(1, emulated ? 4 : 8), w->offset = between(0, 3) ? 0 : between(1, 3);
    w->drafts = mode == CAIRN_STEP_TARGET_VERIFY ? between(1, 5) : 0;
    w->topk = between(1, context), w->split[0] = between(0, 2) ? 256 : between(1, 70);
    w->split[1] = between(1, 300);
    w->workers[0] = between(1, 150), w->workers[1] = between(1, 5);
    w->expand = between(0, 1), w->shared = between(0, 1);
    w->has_requests = between(0, 1), w->has_count = between(0, 1), w->has_slots = between(0, 5) > 0;
    w->pool = batch + between(0, 3), w->most_accept = 5;
    w->columns = context + between(0, 5), w->page_columns = (context + page - 1) / page + between(0, 2);
    w->rows_room = mode == 0 ? batch : mode == 1 ? batch * w->drafts : batch * 3 + 1;
    make_world(w);
    return w;
}

static int longest_for(const world *w) {
    return w->context - w->drafts - w->offset * (w->steps - 1);
}

static void test_random(int mode, int page) {
    bool fine = true;
    int batch = 0;
    for (int round = 0; round < (emulated ? 2 : 8) && fine; round++) {
        world *w = draw_world(mode, page, between(1, emulated ? 9 : 40), between(40, emulated ? 300 : 900));
        batch = w->batch;
        draw_inputs(w, longest_for(w));
        fine = run_once(w);
        if (!fine) tap_note("batch %d steps %d offset %d drafts %d expand %d shared %d context %d by page %d", batch, w->steps, w->offset, w->drafts, w->expand, w->shared, w->context, w->by_page);
        drop_world(w), free(w);
    }
    tap_ok(fine, "steps on %s: mode %d, pages of %d: every step equals the per-step path, all else stands", where, mode, page);
}

/* More requests than a block scans at a time. */
static void test_large(int mode) {
    world *w = draw_world(mode, 16, between(300, 1500), emulated ? 50 : 300);
    bool fine;
    draw_inputs(w, longest_for(w));
    fine = run_once(w);
    tap_ok(fine, "steps on %s: mode %d, %d requests", where, mode, w->batch);
    drop_world(w), free(w);
}

/* accept 0 for some or all; the lists of the issue; lengths about index_topk and a split. */
static void test_edges(void) {
    world *w = draw_world(CAIRN_STEP_DRAFT_EXTEND, 64, 6, 600);
    bool fine;
    draw_inputs(w, longest_for(w));
    for (int b = 0; b < w->batch; b++) w->accept.want[b] = b % 2 || !w->seq_lens.want[b] ? 0 : 1;
    fine = run_once(w);
    for (int b = 0; b < w->batch; b++) w->accept.want[b] = 0;
    fine = fine && run_once(w);
    tap_ok(fine, "steps on %s: accept 0 gives no rows, for some and for all requests", where);
    drop_world(w), free(w);
    w = draw_world(CAIRN_STEP_DECODE, 64, 3, 600);
    for (int i = 255, b; i <= 258 && fine; i++) {
        draw_inputs(w, longest_for(w));
        for (b = 0; b < 3; b++) w->seq_lens.want[b] = i;
        w->count.want[0] = 3;
        fine = run_once(w);
    }
    for (int i = -1; i <= 1 && fine; i++) {
        for (int b = 0; b < 3; b++) w->seq_lens.want[b] = cut(w->topk + i, longest_for(w));
        fine = run_once(w);
    }
    tap_ok(fine, "steps on %s: lengths about 256 and index_topk", where);
    drop_world(w), free(w);
}

static world *golden_world(int mode, int batch, int drafts) {
    world *w = (world *)calloc(1, sizeof *w);
    w->mode = mode, w->page = 2, w->batch = batch, w->context = 16, w->steps = 1, w->drafts = drafts;
    w->topk = 4, w->split[0] = w->split[1] = 256, w->workers[0] = w->workers[1] = 2;
    w->pool = batch, w->columns = 16, w->page_columns = 8, w->has_slots = true;
    w->rows_room = mode == 0 ? batch : mode == 1 ? batch * drafts : 8, w->most_accept = 3;
    make_world(w);
    return w;
}

static bool starts_with(world *w, int field, int count, const int32_t *values) {
    buffer *b = &w->out[field];
    cairn_tensor_read(rt, b->t, b->got, (size_t)b->count * 4);
    for (int i = 0; i < count; i++)
        if (b->got[i] != values[i]) {
            tap_note("%s[%d]: %d, not %d", field_names[field], i, (int)b->got[i], (int)values[i]);
            return false;
        }
    return true;
}

/* The worked examples of the document's corrected reading. */
static void test_golden(void) {
    static const int32_t decode[] = {3, 5}, decode_cu[] = {0, 3, 8}, decode_nsa[] = {3, 4}, decode_nsa_cu[] = {0, 3, 7};
    static const int32_t verify[] = {5, 7}, verify_cu[] = {0, 5, 12}, verify_rows[] = {4, 5, 6, 7}, verify_nsa_cu[] = {0, 4, 8, 12, 16};
    static const int32_t extend_seq[] = {6, 5, 9}, extend_accept[] = {2, 0, 3}, extend_rows[] = {5, 6, 7, 8, 9}, extend_of[] = {0, 0, 2, 2, 2};
    static const int32_t slots[] = {8, 9, 4, 5, 12, 13, 6}, pages[] = {4, 2, 6, 3};
    world *w = golden_world(CAIRN_STEP_DECODE, 2, 0);
    bool fine;
    memcpy(w->seq_lens.want, decode, sizeof decode), upload_inputs(w);
    fine = !run(w) && starts_with(w, PREPARE_CU_SEQLENS_K, 3, decode_cu) && starts_with(w, PREPARE_CLIPPED, 2, decode_nsa) && starts_with(w, PREPARE_CU_CLIPPED, 3, decode_nsa_cu);
    memcpy(w->slots.want, slots, sizeof slots), upload(&w->slots);
    w->seq_lens.want[0] = 7, upload_inputs(w);
    fine = fine && !run(w) && starts_with(w, PAGES, 4, pages) && starts_with(w, TOKENS, 7, slots);
    drop_world(w), free(w);
    w = golden_world(CAIRN_STEP_TARGET_VERIFY, 2, 2);
    memcpy(w->seq_lens.want, decode, sizeof decode), upload_inputs(w);
    fine = fine && !run(w) && starts_with(w, PREPARE_CACHE_SEQLENS, 2, verify) && starts_with(w, PREPARE_CU_SEQLENS_K, 3, verify_cu) &&
           starts_with(w, PREPARE_EXPANDED, 4, verify_rows) && starts_with(w, PREPARE_CU_CLIPPED, 5, verify_nsa_cu);
    drop_world(w), free(w);
    w = golden_world(CAIRN_STEP_DRAFT_EXTEND, 3, 0);
    memcpy(w->seq_lens.want, extend_seq, sizeof extend_seq), memcpy(w->accept.want, extend_accept, sizeof extend_accept);
    upload_inputs(w);
    fine = fine && !run(w) && starts_with(w, PREPARE_EXPANDED, 5, extend_rows) && starts_with(w, PREPARE_ROW_REQUESTS, 5, extend_of);
    drop_world(w), free(w);
    tap_ok(fine, "steps on %s: the worked examples", where);
}

/* A graph made at 256 tokens, replayed at 257: the plan has one split more. */
static void test_crossing(void) {
    world *w = golden_world(CAIRN_STEP_DECODE, 2, 0);
    buffer *schedule = &w->out[PREPARE_INDEX_SCHEDULE];
    cairn_graph *graph = NULL;
    int32_t before[4] = {0};
    bool fine = true;
    w->args.slots = NULL, w->has_slots = false; /* of 16 tokens a row */
    w->into[0].token_table = w->into[0].page_table = NULL;
    for (int length = 256; length <= 257 && fine; length++) {
        w->seq_lens.want[0] = w->seq_lens.want[1] = length;
        upload_inputs(w), expect(w);
        if (length == 256 || !rt->device.cuda) fine = !run(w);
        else fine = !cairn_graph_launch(rt, graph) && !cairn_sync(rt);
        fine = fine && all_hold(w);
        if (length == 256) memcpy(before, schedule->got, sizeof before);
        if (rt->device.cuda && length == 256)
            fine = fine && !cairn_graph_begin(rt) && !cairn_prepare_steps(rt, &w->args) && !cairn_graph_end(rt, &graph);
    }
    if (graph) cairn_graph_free(rt, graph);
    tap_ok(fine && before[2] == 1 && before[3] == 0 && schedule->got[4] == 2 && w->out[PREPARE_INDEX_SPLITS].got[2] == 4,
           "steps on %s: the plans are made anew from 256 to 257 tokens", where);
    drop_world(w), free(w);
}

/* Only some outputs; page tables alone read no other slots than the first of each page. */
static void test_tables_only(void) {
    world *w = draw_world(CAIRN_STEP_TARGET_VERIFY, 64, 4, 700);
    bool fine;
    for (int s = 0; s < w->steps; s++)
        for (int f = 0; f < PAGES; f++)
            drop(&w->out[s * FIELDS + f]), memset(&w->out[s * FIELDS + f], 0, sizeof(buffer)), point(w, s, f);
    draw_inputs(w, longest_for(w)), upload_inputs(w);
    fine = !run(w);
    for (int s = 0; s < w->steps && fine; s++) {
        buffer *pages = &w->out[s * FIELDS + PAGES];
        if (!pages->t) continue;
        for (int b = 0, row = 0; b < w->batch; b++) {
            int live = !w->has_count || b < w->count.want[0], r = live ? w->has_requests ? w->requests.want[b] : b : 0;
            int length = (live ? w->seq_lens.want[b] : 1) + s * w->offset + w->drafts, last = row + (w->expand ? w->drafts : 1);
            for (; row < last; row++)
                for (int c = 0; c * 64 < length; c++) {
                    int32_t slot = w->slots.want[r * w->context + c * 64];
                    pages->want[row * w->page_columns + c] = slot < 0 ? -1 : slot / 64;
                }
        }
        fine = holds_in_step(pages, "page_table", s);
    }
    tap_ok(fine, "steps on %s: page tables alone", where);
    drop_world(w), free(w);
}

/* One graph, a hundred replays, lengths that grow and shrink, all addresses as they were. */
static void test_replay(int mode) {
    world *w = draw_world(mode, 64, 6, emulated ? 400 : 3000);
    int replays = emulated ? 12 : 100, i;
    cairn_graph *graph = NULL;
    cairn_step_metadata before[MOST];
    bool fine;
    draw_inputs(w, longest_for(w));
    fine = run_once(w);
    memcpy(before, w->into, sizeof before);
    fine = fine && !cairn_graph_begin(rt) && !cairn_prepare_steps(rt, &w->args) && !cairn_graph_end(rt, &graph);
    for (i = 0; i < replays && fine; i++) {
        draw_inputs(w, i % 3 ? longest_for(w) / (1 + i % 4) : longest_for(w));
        upload_inputs(w), expect(w);
        fine = !cairn_graph_launch(rt, graph) && !cairn_sync(rt) && all_hold(w);
    }
    fine = fine && !memcmp(before, w->into, sizeof before);
    if (graph) cairn_graph_free(rt, graph);
    tap_ok(fine, "steps on %s: mode %d: one graph, %d replays with other lengths", where, mode, i);
    drop_world(w), free(w);
}

static bool faulty(world *w, const char *text) {
    cairn_status status;
    upload_inputs(w), expect(w);
    status = run(w);
    if (status != CAIRN_BAD_DATA || !strstr(cairn_last_error(rt), text))
        tap_note("%s: %s", cairn_status_name(status), cairn_last_error(rt));
    return status == CAIRN_BAD_DATA && strstr(cairn_last_error(rt), text) && all_hold(w);
}

/* Numbers in device memory that are out of range: cut, reported, and the next call is well. */
static void test_faults(int mode) {
    world *w = draw_world(mode, 64, 7, 300);
    bool fine;
    int longest = longest_for(w);
    draw_inputs(w, longest);
    w->count.want[0] = 7;
    w->seq_lens.want[2] = -5;
    fine = faulty(w, "row 2");
    draw_inputs(w, longest), w->count.want[0] = 7;
    w->seq_lens.want[3] = w->has_slots ? 100000 : -1, w->accept.want[3] = 0;
    fine = fine && faulty(w, "row 3");
    if (w->has_requests && w->has_slots) {
        draw_inputs(w, longest), w->count.want[0] = 7;
        w->requests.want[1] = between(0, 1) ? -1 : w->pool;
        fine = fine && faulty(w, "id out of range");
    }
    if (w->has_count) {
        draw_inputs(w, longest), w->count.want[0] = 8;
        fine = fine && faulty(w, "row -1");
    }
    if (mode == CAIRN_STEP_DRAFT_EXTEND) {
        draw_inputs(w, longest), w->count.want[0] = 7;
        w->seq_lens.want[4] = 3, w->accept.want[4] = between(0, 1) ? 4 : -1;
        fine = fine && faulty(w, "row 4");
        draw_inputs(w, longest), w->count.want[0] = 7;
        for (int b = 0; b < 7; b++) w->seq_lens.want[b] = 30, w->accept.want[b] = 4; /* 28 of 22 */
        fine = fine && faulty(w, "row ");
    }
    draw_inputs(w, longest);
    fine = fine && run_once(w);
    tap_ok(fine, "steps on %s: mode %d: what is out of range on the device is cut and reported", where, mode);
    drop_world(w), free(w);
}

/* Any bits at all in the inputs; and sums that no int32 holds stop at the highest. */
static void test_garbage(int mode) {
    static const int32_t stopped[] = {0, INT32_MAX, INT32_MAX, INT32_MAX};
    world *w = NULL;
    bool fine = true;
    for (int round = 0; round < (emulated ? 3 : 20) && fine; round++) {
        do {
            if (w) drop_world(w), free(w);
            w = draw_world(mode, between(1, 70), 7, 300);
        } while (!w->has_slots);
        for (int b = 0; b < w->batch; b++) {
            w->seq_lens.want[b] = (int32_t)random_next(&seed) >> between(0, 31);
            w->requests.want[b] = (int32_t)random_next(&seed) >> between(20, 31);
            w->accept.want[b] = (int32_t)random_next(&seed) >> between(0, 31);
        }
        w->count.want[0] = (int32_t)random_next(&seed) >> between(0, 31);
        upload_inputs(w), expect(w);
        cairn_status status = run(w);
        fine = (!status || status == CAIRN_BAD_DATA) && all_hold(w);
    }
    drop_world(w), free(w);
    w = golden_world(mode, 3, mode == CAIRN_STEP_TARGET_VERIFY ? 2 : 0);
    w->args.slots = NULL, w->into[0].token_table = w->into[0].page_table = NULL;
    for (int b = 0; b < 3; b++) w->seq_lens.want[b] = INT32_MAX - w->drafts, w->accept.want[b] = b;
    upload_inputs(w);
    fine = fine && !run(w) && starts_with(w, PREPARE_CU_SEQLENS_K, 4, stopped);
    tap_ok(fine, "steps on %s: mode %d: any bits in the inputs", where, mode);
    drop_world(w), free(w);
}

static void refused(world *w, const char *text) {
    cairn_status status = cairn_prepare_steps(rt, &w->args);
    bool fine = status && strstr(cairn_last_error(rt), text);
    if (!fine) tap_note("%s", cairn_last_error(rt));
    cairn_sync(rt);
    tap_ok(fine && all_hold(w), "steps on %s: refused, nothing written: %s", where, text);
    make_args(w);
    for (int s = 0; s < w->steps; s++)
        for (int f = 0; f < FIELDS; f++) point(w, s, f);
}

static void test_refusals(void) {
    world *w = golden_world(CAIRN_STEP_TARGET_VERIFY, 3, 2);
    cairn_tensor narrow;
    int64_t shape[1];
    for (int i = 0; i < 3; i++) w->seq_lens.want[i] = i + 2;
    upload_inputs(w);
    w->args.mode = 3, refused(w, "mode = 3");
    w->args.step_count = 17, refused(w, "step_count = 17");
    w->args.step_offset = -1, refused(w, "step_offset = -1");
    w->args.draft_tokens = 0, refused(w, "draft_tokens = 0");
    w->args.index_topk = -1, refused(w, "index_topk = -1");
    w->args.page_size = -64, refused(w, "page_size = -64");
    w->args.index_split = -1, refused(w, "index_split");
    w->args.seq_lens = NULL, refused(w, "seq_lens is NULL");
    w->args.accept = w->accept.t, refused(w, "accept is for DRAFT_EXTEND");
    w->args.mode = CAIRN_STEP_DRAFT_EXTEND, refused(w, "accept is NULL");
    w->args.slots = NULL, refused(w, "slots and pages are NULL");
    w->args.pages = w->pages.t, refused(w, "not both");
    w->args.steps = NULL, refused(w, "steps is NULL");
    w->args.requests = w->count.t, refused(w, "requests");
    w->args.draft_tokens = 4, refused(w, "has room for");
    w->into[0].struct_size = 0, refused(w, "struct_size");
    w->into[0].struct_size = sizeof w->into[0];
    w->into[0].seqlens_clipped = w->into[0].seqlens_expanded, refused(w, "overlaps");
    w->into[0].cache_seqlens = w->seq_lens.t, refused(w, "overlaps");
    w->args.page_size = 1, refused(w, "name one tensor");
    narrow = *w->into[0].row_requests, shape[0] = 5, narrow.shape = shape;
    w->into[0].row_requests = &narrow, refused(w, "row_requests has room for 5; 6 are needed");
    shape[0] = 0, narrow = *w->seq_lens.t, narrow.shape = shape;
    w->args.seq_lens = &narrow;
    tap_ok(cairn_prepare_steps(rt, &w->args) == CAIRN_OK && all_hold(w), "steps on %s: no requests, nothing done", where);
    drop_world(w), free(w);
}

static void test_all(void) {
    static const int pages[] = {1, 2, 64};
    for (int mode = 0; mode < 3; mode++) {
        for (int i = 0; i < 3; i++) test_random(mode, pages[i]);
        test_large(mode), test_faults(mode), test_garbage(mode);
        if (rt->device.cuda) test_replay(mode);
    }
    test_golden(), test_edges(), test_refusals();
    test_tables_only(), test_crossing();
}

static int allocations;
static void *counting_realloc(void *user, void *memory, size_t old_bytes, size_t new_bytes) {
    (void)user, (void)old_bytes;
    allocations++;
    if (new_bytes) return realloc(memory, new_bytes);
    free(memory);
    return NULL;
}

/* What a call asks of the driver after the first: to launch one kernel. */
static void test_driver_calls(void) {
    cairn_config config;
    char error[1024];
    world *w;
    int calls, launches, live, blocks;
    cairn_status status;
    fake_install();
    cairn_config_default(&config);
    config.backend = CAIRN_BACKEND_CUDA;
    config.jit.cache = CAIRN_CACHE_OFF;
    config.allocator.realloc = counting_realloc;
    where = "fake";
    if (cairn_open(&config, &rt, error, sizeof error)) {
        tap_ok(false, "open on the fake driver: %s", error);
        return;
    }
    emulated = true;
    w = draw_world(CAIRN_STEP_DRAFT_EXTEND, 64, 8, 300);
    draw_inputs(w, longest_for(w)), upload_inputs(w);
    if (cairn_prepare_steps(rt, &w->args)) tap_note("%s", cairn_last_error(rt));
    calls = fake.calls, launches = fake.launches, live = fake.live, blocks = allocations;
    status = cairn_prepare_steps(rt, &w->args);
    calls = fake.calls - calls, launches = fake.launches - launches;
    tap_ok(!status && launches == 1 && calls == 3 && fake.live == live && allocations == blocks,
           "steps: %d launch of %d driver calls, the context taken and left: no copy, no allocation, no wait", launches, calls);
    drop_world(w), free(w);
    cairn_close(rt);
}

static void test_backend(cairn_runtime *opened, const char *name) {
    rt = opened, where = name;
    emulated = is_emulated(rt->config.backend);
    test_all();
}

int main(void) {
    seed = random_seed();
    run_on_backends(NULL, "steps", test_backend);
    if (!getenv("CAIRN_SIMT_KERNELS")) test_driver_calls();
    return tap_done();
}
