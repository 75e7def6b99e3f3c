/* prefix_chunks against the formulas of its contract in plain loops, with buffers that keep what is
 * not written; the chunks of a request put together are its prefix. On the CPU and, where there is
 * one, on the GPU.
 * emulated: asan race */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "random.h"
#include "tap.h"
#include "backends.h"
#include "device_words.h"

static const char *where;
static bool emulated;

typedef struct world {
    int batch, pool, context, capacity, length, chunks, columns;
    int page; /* 0: by slots */
    bool has_requests;
    buffer lens_in, requests, slots, pages, count, starts, lens, cu, kv;
    cairn_prefix_chunks_args args;
} world;

static world make_world(int batch, int context, int capacity, int chunks) {
    world w;
    memset(&w, 0, sizeof w);
    w.page = between(0, 1) ? 0 : between(0, 1) ? 64 : between(1, 50);
    if (w.page) context = (context + w.page - 1) / w.page * w.page;
    w.batch = batch, w.context = context, w.capacity = capacity, w.pool = batch + between(0, 2);
    w.length = (capacity ? capacity : 131072) / batch;
    if (w.length < 1) w.length = 1;
    w.chunks = chunks ? chunks : (context + w.length - 1) / w.length + between(0, 2);
    w.columns = batch * (w.length < context ? w.length : context) + between(0, 3);
    w.has_requests = between(0, 1);
    w.lens_in = make(1, batch, 0), w.requests = make(1, batch, 0), w.slots = make(2, w.pool, context);
    w.count = make(1, 1, 0), w.starts = make(2, w.chunks, batch), w.lens = make(2, w.chunks, batch);
    w.cu = make(2, w.chunks, batch + 1), w.kv = make(2, w.chunks, w.columns);
    w.args.struct_size = sizeof w.args, w.args.capacity = capacity;
    w.args.prefix_lens = w.lens_in.t;
    w.pages = make(2, w.pool, w.page ? context / w.page : 1);
    for (int r = 0; r < w.pool && w.page; r++)
        for (int t = 0; t < context; t++) {
            int32_t *id = &w.pages.want[r * (context / w.page) + t / w.page];
            if (t % w.page == 0) *id = between(0, 9) ? between(0, 1 << 20) : -between(1, 9);
            w.slots.want[r * context + t] = *id < 0 ? -1 : *id * w.page + t % w.page;
        }
    upload(&w.pages), upload(&w.slots);
    if (w.page) w.args.pages = w.pages.t, w.args.page_size = w.page;
    else w.args.slots = w.slots.t;
    w.args.requests = w.has_requests ? w.requests.t : NULL;
    w.args.chunk_count = w.count.t, w.args.starts = w.starts.t, w.args.lens = w.lens.t;
    w.args.cu_lens = w.cu.t, w.args.kv_indices = w.kv.t;
    return w;
}

static void drop_world(world *w) {
    drop(&w->lens_in), drop(&w->requests), drop(&w->slots), drop(&w->pages), drop(&w->count);
    drop(&w->starts), drop(&w->lens), drop(&w->cu), drop(&w->kv);
}

static void draw_inputs(world *w, int most) {
    for (int b = 0; b < w->batch; b++) {
        w->lens_in.want[b] = between(0, 3) ? between(0, most) : between(0, 1) ? 0 : w->length < most ? w->length : most;
        w->requests.want[b] = between(0, w->pool - 1);
    }
}

/* The formulas, chunk by chunk. */
static void expect(world *w) {
    int64_t longest = 0, limit = (int64_t)w->chunks * w->length < w->context ? (int64_t)w->chunks * w->length : w->context;
    for (int c = 0; c < w->chunks; c++) {
        int at = 0;
        w->cu.want[c * (w->batch + 1)] = 0;
        for (int b = 0; b < w->batch; b++) {
            int id = w->has_requests ? w->requests.want[b] : b, i;
            int64_t prefix = w->lens_in.want[b], start = (int64_t)c * w->length, end = start + w->length;
            prefix = id < 0 || id >= w->pool || prefix < 0 ? 0 : prefix > limit ? limit : prefix;
            if (prefix > longest) longest = prefix;
            if (end > prefix) end = prefix;
            w->starts.want[c * w->batch + b] = (int32_t)start;
            w->lens.want[c * w->batch + b] = end > start ? (int32_t)(end - start) : 0;
            for (i = 0; start + i < end; i++)
                w->kv.want[(int64_t)c * w->columns + at++] = w->slots.want[(int64_t)id * w->context + start + i];
            w->cu.want[c * (w->batch + 1) + b + 1] = at;
        }
    }
    w->count.want[0] = (int32_t)((longest + w->length - 1) / w->length);
}

static bool all_hold(world *w) {
    return holds(&w->count, "chunk_count") && holds(&w->starts, "starts") && holds(&w->lens, "lens") &&
           holds(&w->cu, "cu_lens") && holds(&w->kv, "kv_indices") && holds(&w->slots, "slots");
}

static cairn_status run(world *w) {
    cairn_status status, later;
    upload(&w->lens_in), upload(&w->requests);
    status = cairn_prefix_chunks(rt, &w->args), later = cairn_sync(rt);
    return status ? status : later;
}

static bool run_once(world *w) {
    cairn_status status;
    expect(w);
    status = run(w);
    if (status) tap_note("%s", cairn_last_error(rt));
    return !status && all_hold(w);
}

/* From what was written: each request's parts, one after the other, are its prefix. */
static bool joins(const world *w) {
    for (int b = 0; b < w->batch; b++) {
        const int32_t *slots = w->slots.want + (int64_t)(w->has_requests ? w->requests.want[b] : b) * w->context;
        int at = 0;
        for (int c = 0; c < w->count.got[0]; c++) {
            int from = w->cu.got[c * (w->batch + 1) + b], to = w->cu.got[c * (w->batch + 1) + b + 1];
            if (memcmp(w->kv.got + (int64_t)c * w->columns + from, slots + at, (size_t)(to - from) * 4)) return false;
            at += to - from;
        }
        if (at != w->lens_in.want[b]) return false;
    }
    return true;
}

static void test_random(int batch, int context, int capacity) {
    world w = make_world(batch, context, capacity, 0);
    bool fine = true;
    for (int round = 0; round < 3 && fine; round++) { /* shorter ones leave what was there */
        draw_inputs(&w, context >> round);
        fine = run_once(&w) && joins(&w);
    }
    tap_ok(fine, "prefix_chunks on %s: %d requests of up to %d tokens, capacity %d: %d chunks, pages of %d", where, batch, context, capacity, w.chunks, w.page);
    drop_world(&w);
}

static bool row_is(const buffer *b, int row, int columns, const int32_t *want) {
    return !memcmp(b->got + row * columns, want, (size_t)columns * 4);
}

static void test_golden(void) {
    static const int32_t first[] = {256, 512, 768, 1024}, second[] = {0, 5, 12};
    static const int32_t lens[4][4] = {{256, 256, 256, 256}, {0, 256, 256, 256}, {0, 0, 256, 256}, {0, 0, 0, 256}};
    static const int32_t small[3][3] = {{0, 4, 4}, {0, 1, 4}, {0, 0, 4}}, sums[3][4] = {{0, 0, 4, 8}, {0, 0, 1, 5}, {0, 0, 0, 4}};
    world w = make_world(4, 1024, 1024, 4);
    bool fine;
    draw_inputs(&w, 10);
    memcpy(w.lens_in.want, first, sizeof first);
    fine = run_once(&w) && w.count.got[0] == 4;
    for (int c = 0; c < 4; c++) fine = fine && row_is(&w.lens, c, 4, lens[c]);
    drop_world(&w);
    w = make_world(3, 16, 12, 3);
    draw_inputs(&w, 10);
    memcpy(w.lens_in.want, second, sizeof second);
    fine = fine && run_once(&w) && w.count.got[0] == 3;
    for (int c = 0; c < 3; c++) fine = fine && row_is(&w.lens, c, 3, small[c]) && row_is(&w.cu, c, 4, sums[c]);
    for (int b = 0; b < 3; b++) w.lens_in.want[b] = 0;
    fine = fine && run_once(&w) && w.count.got[0] == 0;
    drop_world(&w);
    tap_ok(fine, "prefix_chunks on %s: the worked examples; without a prefix there is no chunk", where);
}

static bool faulty(world *w, const char *text) {
    cairn_status status;
    expect(w);
    status = run(w);
    if (status != CAIRN_BAD_DATA || !strstr(cairn_last_error(rt), text)) {
        tap_note("%s: %s", cairn_status_name(status), cairn_last_error(rt));
        return false;
    }
    return all_hold(w);
}

static void test_faults(void) {
    world w = make_world(5, 130, 50, 6); /* 60 tokens of each fit */
    bool fine;
    draw_inputs(&w, 60), w.lens_in.want[2] = -3;
    fine = faulty(&w, "row 2");
    draw_inputs(&w, 60), w.lens_in.want[3] = 61;
    fine = fine && faulty(&w, "row 3");
    draw_inputs(&w, 60), w.lens_in.want[4] = INT32_MAX;
    fine = fine && faulty(&w, "row 4");
    w.has_requests = true, w.args.requests = w.requests.t;
    draw_inputs(&w, 60), w.requests.want[1] = between(0, 1) ? -1 : w.pool;
    fine = fine && faulty(&w, "id out of range");
    draw_inputs(&w, 60);
    tap_ok(fine && run_once(&w), "prefix_chunks on %s: what is out of range on the device is cut and reported", where);
    drop_world(&w);
}

static void refused(world *w, cairn_prefix_chunks_args good, const char *text) {
    cairn_status status = cairn_prefix_chunks(rt, &w->args);
    bool fine = status && strstr(cairn_last_error(rt), text);
    if (!fine) tap_note("%s", cairn_last_error(rt));
    tap_ok(fine && all_hold(w), "prefix_chunks on %s: refused, nothing written: %s", where, text);
    w->args = good;
}

static void test_refusals(void) {
    world w = make_world(3, 90, 30, 0), other = make_world(3, 90, 30, 20);
    cairn_prefix_chunks_args good = w.args;
    cairn_tensor none;
    int64_t shape[1] = {0};
    draw_inputs(&w, 90), upload(&w.lens_in);
    w.args.capacity = -1, refused(&w, good, "capacity = -1");
    w.args.prefix_lens = NULL, refused(&w, good, "prefix_lens is NULL");
    w.args.slots = w.args.pages = NULL, refused(&w, good, "slots is NULL");
    w.args.slots = w.slots.t, w.args.pages = w.pages.t, refused(&w, good, "not both");
    w.args.requests = w.count.t, refused(&w, good, "requests");
    w.args.lens = w.cu.t, refused(&w, good, "lens");
    w.args.cu_lens = other.cu.t, refused(&w, good, "cu_lens is 20");
    w.args.capacity = 150, refused(&w, good, "columns");
    w.args.lens = w.starts.t, refused(&w, good, "overlaps");
    w.args.kv_indices = w.page ? w.pages.t : w.slots.t, refused(&w, good, "kv_indices");
    none = *w.lens_in.t, none.shape = shape, w.args.prefix_lens = &none, w.args.requests = NULL;
    tap_ok(!cairn_prefix_chunks(rt, &w.args) && all_hold(&w), "prefix_chunks on %s: no requests, nothing done", where);
    drop_world(&w), drop_world(&other);
}

/* Some outputs alone, and 100 replays of one graph. */
static void test_parts(void) {
    world w = make_world(7, emulated ? 200 : 3000, emulated ? 300 : 2000, 0);
    cairn_prefix_chunks_args good = w.args;
    cairn_graph *graph = NULL;
    bool fine;
    int replays = emulated ? 10 : 100, i;
    draw_inputs(&w, w.context);
    w.args.kv_indices = NULL, w.args.starts = NULL;
    fine = !run(&w);
    cairn_tensor_read(rt, w.kv.t, w.kv.got, (size_t)w.kv.count * 4);
    fine = fine && !memcmp(w.kv.got, w.kv.want, (size_t)w.kv.count * 4);
    w.args = good, w.args.lens = w.args.cu_lens = w.args.chunk_count = NULL;
    fine = fine && !run(&w);
    w.args = good;
    expect(&w);
    tap_ok(fine && all_hold(&w), "prefix_chunks on %s: some outputs, then the others", where);
    if (rt->device.cuda) {
        fine = !cairn_graph_begin(rt) && !cairn_prefix_chunks(rt, &w.args) && !cairn_graph_end(rt, &graph);
        for (i = 0; i < replays && fine; i++) {
            draw_inputs(&w, w.context / (1 + i % 5));
            upload(&w.lens_in), upload(&w.requests), expect(&w);
            fine = !cairn_graph_launch(rt, graph) && !cairn_sync(rt) && all_hold(&w);
        }
        if (graph) cairn_graph_free(rt, graph);
        tap_ok(fine, "prefix_chunks on %s: one graph, %d replays with other lengths", where, replays);
    }
    drop_world(&w);
}

static void test_backend(cairn_runtime *opened, const char *name) {
    rt = opened, where = name;
    emulated = is_emulated(rt->config.backend);
    test_golden(), test_faults(), test_refusals(), test_parts();
    test_random(between(1, 9), emulated ? 300 : 5000, between(1, 700));
    test_random(between(1, 40), between(1, 300), 0);
    test_random(between(1, 40), between(100, 300), between(1, 100)); /* L can be 1 */
    test_random(between(257, 600), 40, between(1000, 9000)); /* more than a block scans at a time */
}

int main(void) {
    seed = random_seed();
    run_on_backends(NULL, "prefix_chunks", test_backend);
    return tap_done();
}
