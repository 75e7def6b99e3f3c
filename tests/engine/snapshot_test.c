/* snapshots of sessions on the toy model: saved at any point and loaded anywhere they go on as if
 * nothing had happened; one bit wrong, one byte missing, another model, page size, version: refused
 * with a status that says which, and nothing changed. Under the emulated driver on cuda too.
 * emulated: asan race */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "random.h"
#include "tap.h"
#include "toy_model.h"

static const char *toy_path = "build/toy_snapshot.gguf", *other_path = "build/toy_snapshot2.gguf";
static const char *tuned_path = "build/toy_snapshot3.gguf";
static const char *file_path = "build/toy.snapshot";
static uint64_t random_state = 1;
static cairn_backend backend = CAIRN_BACKEND_CPU;
static const char *where = "cpu";

static uint32_t rnd(uint32_t below) {
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(random_state >> 33) % below;
}

/* An allocator that counts what is live and fails on demand. */
static int allocations_left = -1, live_blocks;
static void *failing_realloc(void *user, void *memory, size_t old_bytes, size_t new_bytes) {
    (void)user, (void)old_bytes;
    if (new_bytes && allocations_left >= 0 && allocations_left-- == 0) return NULL;
    live_blocks += (new_bytes != 0) - (memory != NULL);
    if (new_bytes) return realloc(memory, new_bytes);
    free(memory);
    return NULL;
}

typedef struct toy { cairn_runtime *rt; cairn_model *m; } toy;

static toy open_toy(const char *path, int page_size, int max_seq_len, int max_batch) {
    cairn_config c;
    char error[1024];
    toy t = {NULL, NULL};
    cairn_config_default(&c);
    c.backend = backend;
    c.threads = 2;
    c.page_size = page_size, c.max_seq_len = max_seq_len, c.max_batch = max_batch;
    c.prefill_chunk = 16;
    c.drafter = rnd(2) ? CAIRN_DRAFTER_NGRAM : CAIRN_DRAFTER_NONE;
    c.allocator.realloc = failing_realloc;
    if (cairn_open(&c, &t.rt, error, sizeof error)) tap_note("%s", error);
    else if (handles_enter(t.rt) ||
             handles_leave(t.rt, toy_load(t.rt, path, &t.m)))
        tap_note("%s", t.rt->base.error);
    return t;
}

static cairn_session *new_session(toy t) {
    cairn_session *s = NULL;
    cairn_session_open(t.m, &s);
    return s;
}

typedef struct bytes { uint8_t *data; size_t size; } bytes;

/* In memory of exactly its size, so that a read past it is seen. */
static bytes save(cairn_session *s) {
    bytes b = {NULL, 0};
    if (cairn_session_save_memory(s, NULL, 0, &b.size)) return b;
    b.data = (uint8_t *)malloc(b.size);
    if (cairn_session_save_memory(s, b.data, b.size, &b.size)) tap_note("%s", engine_base(s)->error);
    return b;
}

typedef struct held { int32_t ids[TOY_CONTEXT]; int count; } held;

static held holds(cairn_session *s) {
    held h;
    const int32_t *ids = cairn_session_ids(s, &h.count);
    memcpy(h.ids, ids, (size_t)h.count * sizeof *ids);
    return h;
}

static bool same(const held *a, const held *b) {
    return a->count == b->count && !memcmp(a->ids, b->ids, (size_t)a->count * sizeof *a->ids);
}

static held go_on(cairn_session *s, const char *prompt, int n) {
    if (cairn_generate(s, prompt, n, NULL, NULL)) tap_note("%s", engine_base(s)->error);
    return holds(s);
}

static void random_text(char *out) {
    int n = (int)rnd(50) + 1;
    for (int i = 0; i < n; i++) out[i] = "abcd "[rnd(5)];
    out[n] = '\0';
}

/* ---- saved anywhere, loaded anywhere --------------------------------------------------------- */

/* A session is pulled along; at a random point it is saved, by file or in memory, and loaded into
 * another session, of this runtime or another, that may hold something; both go on. */
static bool travels(void) {
    static const int sizes[] = {16, 32, 64};
    int page_size = sizes[rnd(3)], most = 20 + (int)rnd(40), at = (int)rnd(70);
    toy here = open_toy(toy_path, page_size, 280, 2), there = open_toy(toy_path, page_size, 290, 3);
    cairn_session *s = new_session(here), *t = rnd(2) ? new_session(there) : new_session(here);
    char text[64];
    cairn_piece piece;
    held before, after, copy;
    bytes b;
    bool fine = s && t;
    toy_loops = (float)rnd(11) / 10;
    random_text(text);
    if (rnd(3)) cairn_append(s, text);
    if (rnd(2) && fine) go_on(s, text, 5);
    if (rnd(2) && fine) cairn_generate(t, "abc", 7, NULL, NULL);
    if (rnd(8) == 0) cairn_session_reset(s);
    piece.struct_size = sizeof piece, piece.stop = CAIRN_STOP_NONE;
    if (fine && holds(s).count && !cairn_generate_begin(s, NULL, NULL))
        for (int i = 0; i < at && !piece.stop; i++) fine = fine && !cairn_generate_next(s, &piece);
    before = holds(s);
    b = save(s);
    fine = fine && b.data && !cairn_session_save(s, file_path);
    if (rnd(2)) fine = fine && !cairn_session_load(t, file_path);
    else fine = fine && !cairn_session_load_memory(t, b.data, b.size);
    copy = holds(t);
    fine = fine && same(&before, &copy);
    if (rnd(2)) random_text(text);
    else if (before.count) text[0] = '\0';
    after = go_on(s, text, most), copy = go_on(t, text, most);
    fine = fine && same(&after, &copy) && !toy_faults;
    free(b.data);
    cairn_close(here.rt), cairn_close(there.rt);
    return fine;
}

static void test_travels(int runs) {
    int good = 0;
    for (int i = 0; i < runs; i++) good += travels();
    tap_ok(good == runs && !live_blocks, "on %s: %d of %d snapshots go on as the session they were "
           "taken of", where, good, runs);
    remove(file_path);
}

/* ---- damaged --------------------------------------------------------------------------------- */

/* A load that must fail, and change nothing. */
static bool refused(cairn_session *s, const uint8_t *data, size_t size, cairn_status want,
                    const char *says) {
    int free_pages = s->model->kv.pool.free_count, pages = engine_pages(s);
    held before = holds(s), after;
    cairn_status got = cairn_session_load_memory(s, data, size);
    bool fine = got == want && (!says || strstr(engine_base(s)->error, says));
    after = holds(s);
    if (!fine) tap_note("%s: %s", cairn_status_name(got), engine_base(s)->error);
    return fine && same(&before, &after) && free_pages == s->model->kv.pool.free_count &&
           pages == engine_pages(s);
}

static void test_bits(void) {
    toy t = open_toy(toy_path, 16, 200, 2);
    cairn_session *s = new_session(t), *other = new_session(t);
    held after, want;
    bytes b;
    int good = 0, bits, cuts = 0;
    go_on(other, "abc abc", 6);
    go_on(s, "abcabcabcabc dd", 9);
    b = save(s);
    bits = (int)b.size * 8;
    for (int i = 0; i < bits; i++) {
        bool version = i / 8 >= 8 && i / 8 < 12;
        b.data[i / 8] ^= (uint8_t)(1 << i % 8);
        good += refused(other, b.data, b.size, version ? CAIRN_VERSION_MISMATCH : CAIRN_BAD_FILE,
                        NULL);
        b.data[i / 8] ^= (uint8_t)(1 << i % 8);
    }
    tap_ok(good == bits, "on %s: each of %d bits flipped is found (%d)", where, bits, good);
    for (size_t n = 0; n < b.size; n++) {
        uint8_t *part = (uint8_t *)malloc(n + 1); /* the sanitizer knows where it ends */
        memcpy(part, b.data, n);
        cuts += refused(other, n ? part : NULL, n, n ? CAIRN_BAD_FILE : CAIRN_INVALID_ARGUMENT, NULL);
        free(part);
    }
    tap_ok(cuts == (int)b.size, "on %s: cut anywhere it is refused", where);
    b.data = (uint8_t *)realloc(b.data, b.size + 1);
    b.data[b.size] = 0;
    tap_ok(refused(other, b.data, b.size + 1, CAIRN_BAD_FILE, "too long"), "so is a byte more");
    after = go_on(s, NULL, 20);
    tap_ok(!cairn_session_load_memory(other, b.data, b.size) &&
           (want = go_on(other, NULL, 20), same(&after, &want)), "whole it is taken");
    free(b.data);
    cairn_close(t.rt);
}

/* Right sums over wrong contents: written by someone else. Never a read or write out of bounds. */
static void test_hostile(int runs) {
    toy t = open_toy(toy_path, 16, 200, 2);
    cairn_session *s = new_session(t), *other = new_session(t);
    int taken = 0, refusals = 0;
    bytes b;
    go_on(s, "abcabcabcabc dd", 9);
    b = save(s);
    for (int run = 0; run < runs; run++) {
        snapshot snap;
        bytes c = {NULL, 0};
        memset(&snap, 0, sizeof snap);
        snapshot_read_header(&t.rt->base, "test", b.data, b.size, &snap);
        if (rnd(2))
            for (int i = 0; i < SNAPSHOT_PARTS; i++)
                if (!rnd(3)) snap.bytes[i] = rnd(2) ? rnd(300) : snap.bytes[i] + rnd(9) - 4;
        for (int i = 0; i < SNAPSHOT_PARTS; i++) if (snap.bytes[i] > 99999) snap.bytes[i] = 0;
        snapshot_add_up(&snap);
        c.size = snap.total, c.data = (uint8_t *)calloc(1, c.size);
        memcpy(c.data, b.data, b.size < c.size ? b.size : c.size);
        snapshot_place(&snap, c.data);
        for (int n = (int)rnd(4); n > 0; n--) {
            int part = rnd(4) ? SNAPSHOT_STATE : (int)rnd(SNAPSHOT_PARTS);
            if (!snap.bytes[part]) continue;
            snap.parts[part][rnd((uint32_t)snap.bytes[part])] = (uint8_t)(rnd(2) ? rnd(256) : 255);
        }
        snapshot_seal(&t.rt->base, t.rt->pool, &snap);
        if (cairn_session_load_memory(other, c.data, c.size)) refusals++;
        else taken++;
        free(c.data);
    }
    cairn_session_reset(other);
    tap_ok(refusals > runs / 4, "on %s: of %d forged snapshots %d are refused, %d mean something",
           where, runs, refusals, taken);
    tap_ok(t.m->kv.pool.free_count + engine_pages(s) == t.m->kv.pool.pages, "and no page is lost");
    free(b.data);
    cairn_close(t.rt);
}

/* ---- of something else ----------------------------------------------------------------------- */

/* The first model's file with another name inside. */
static bool write_other(void) {
    base_text text;
    base b;
    char *at = NULL;
    bool fine;
    memset(&text, 0, sizeof text);
    base_init(&b, NULL, NULL, NULL, CAIRN_LOG_OFF);
    fine = !os_read_file(&b, toy_path, &text);
    for (size_t i = 0; fine && i + 12 < text.size && !at; i++)
        if (!memcmp(text.data + i, "general.name", 12)) at = text.data + i + 12 + 4 + 8;
    if (at) memcpy(at, "yot", 3);
    fine = fine && at && !os_write_file(&b, other_path, text.data, text.size);
    base_text_free(&b, &text);
    return fine;
}

/* The first model's file with one bit of a weight changed, in the middle of its largest tensor. */
static bool write_tuned(void) {
    base_text text;
    base b;
    gguf g;
    const gguf_tensor *largest;
    bool fine;
    memset(&text, 0, sizeof text);
    base_init(&b, NULL, NULL, NULL, CAIRN_LOG_OFF);
    if (os_read_file(&b, toy_path, &text) || gguf_open(&b, toy_path, &g)) return false;
    largest = g.tensors;
    for (size_t i = 1; i < g.tensor_count; i++)
        if (g.tensors[i].bytes > largest->bytes) largest = &g.tensors[i];
    text.data[(size_t)((const uint8_t *)largest->data - g.data) + largest->bytes / 2] ^= 1;
    fine = largest->bytes > 3 * 4096 && !os_write_file(&b, tuned_path, text.data, text.size);
    gguf_close(&b, &g);
    base_text_free(&b, &text);
    return fine;
}

static bool refused_by(const char *path, int page_size, int max_seq_len, bytes b,
                       cairn_status want, const char *says) {
    toy t = open_toy(path, page_size, max_seq_len, 1);
    cairn_session *s = new_session(t);
    bool fine = s && refused(s, b.data, b.size, want, says);
    tap_note("%s", t.rt->base.error);
    cairn_close(t.rt);
    return fine;
}

static void test_strangers(void) {
    toy t = open_toy(toy_path, 16, 200, 1);
    cairn_session *s = new_session(t);
    char text[64];
    bytes b;
    memset(text, 'c', 60), text[60] = '\0';
    cairn_append(s, text);
    b = save(s);
    tap_ok(refused_by(toy_path, 32, 200, b, CAIRN_UNSUPPORTED, "page size 16, this runtime has 32"),
           "on %s: another page size", where);
    tap_ok(refused_by(other_path, 16, 200, b, CAIRN_UNSUPPORTED, "another model, 'toy', not of "
                      "'yot'"), "on %s: another model", where);
    tap_ok(refused_by(tuned_path, 16, 200, b, CAIRN_UNSUPPORTED, "the files differ"),
           "on %s: the same model with another weight", where);
    tap_ok(refused_by(toy_path, 16, 59, b, CAIRN_CONTEXT_FULL, "60 tokens, the context is 59"),
           "on %s: a context too short", where);
    tap_ok(cairn_session_load(s, "build/none.snapshot") == CAIRN_FILE_NOT_FOUND &&
           cairn_session_save(s, "build/no/such/folder/x") == CAIRN_FILE_NOT_FOUND &&
           cairn_session_save(s, NULL) == CAIRN_INVALID_ARGUMENT &&
           cairn_session_load(s, NULL) == CAIRN_INVALID_ARGUMENT &&
           cairn_session_load(s, toy_path) == CAIRN_BAD_FILE, "files that are not there: %s",
           t.rt->base.error);
    b.size--;
    tap_ok(cairn_session_save_memory(s, b.data, b.size, &b.size) == CAIRN_INVALID_ARGUMENT,
           "%s", t.rt->base.error);
    free(b.data);
    cairn_close(t.rt);
}

/* A pool with room for one of the two: the session's own pages go; with room for neither it is
 * full, and nothing changes. */
static void test_short_pool(void) {
    toy t = open_toy(toy_path, 16, 64, 1);
    cairn_session *s = new_session(t), *other = new_session(t);
    held before = go_on(s, "cccccccccccccccccccccccccccccccccccc", 5), after;
    bytes b = save(s);
    go_on(s, "dddddd", 8);
    tap_ok(!cairn_session_load_memory(s, b.data, b.size) && (after = holds(s), same(&before, &after)),
           "on %s: %d of 4 pages loaded over as many", where, engine_pages(s));
    cairn_append(other, "ab"); /* of one token: no page yet */
    tap_ok(refused(other, b.data, b.size, CAIRN_POOL_FULL, "needs"), "%s", t.rt->base.error);
    cairn_session_close(s); /* what the prefix cache keeps of it makes room */
    tap_ok(!cairn_session_load_memory(other, b.data, b.size) &&
           (after = holds(other), same(&before, &after)), "with the other session closed it loads");
    tap_ok(!toy_faults, "the toy found no fault");
    free(b.data);
    cairn_close(t.rt);
}

/* ---- faults ---------------------------------------------------------------------------------- */

static int writes_left;
static int64_t (*real_write)(int64_t, const void *, size_t);
static int64_t failing_write(int64_t file, const void *data, size_t size) {
    if (writes_left-- == 0) return -ENOSPC;
    return real_write(file, data, size);
}

static void test_faults(void) {
    int n = 0, good = 0;
    bool failed = true;
    toy t = open_toy(toy_path, 16, 200, 2);
    cairn_session *s = new_session(t), *other = new_session(t);
    held before = go_on(s, "abcabcabcabc dd", 9), after;
    os_call_table kept = os_calls;
    for (; failed; n++) {
        cairn_status saved, loaded;
        int blocks = live_blocks;
        allocations_left = n;
        saved = cairn_session_save(s, file_path);
        loaded = saved ? saved : cairn_session_load(other, file_path);
        failed = allocations_left < 0;
        allocations_left = -1;
        after = holds(other);
        good += (!failed ? !loaded && same(&before, &after) : loaded == CAIRN_OUT_OF_MEMORY &&
                 after.count == 0) && live_blocks <= blocks;
    }
    tap_ok(good == n && n > 5, "on %s: each of %d allocations failed: a status, nothing changed, no "
           "leak", where, n - 1);
    real_write = kept.write, os_calls.write = failing_write, writes_left = 0;
    go_on(s, NULL, 3);
    tap_ok(cairn_session_save(s, file_path) == CAIRN_FILE_ERROR, "%s", t.rt->base.error);
    os_calls = kept;
    tap_ok(!cairn_session_load(other, file_path) && (after = holds(other), same(&before, &after)),
           "the file before it is still there");
    remove(file_path);
    cairn_close(t.rt);
}

static bool reenter(void *user, const char *text, size_t size) {
    cairn_session *s = (cairn_session *)user;
    (void)text, (void)size;
    return cairn_session_save(s, file_path) == CAIRN_BUSY &&
           cairn_session_load(s, file_path) == CAIRN_BUSY;
}

static void test_busy(void) {
    toy t = open_toy(toy_path, 16, 200, 2);
    cairn_session *s = new_session(t);
    tap_ok(!cairn_generate(s, "ab", 5, reenter, s), "a callback finds its own session busy");
    cairn_close(t.rt);
}

static void test_all(int runs) {
    test_travels(runs);
    test_bits();
    test_hostile(runs * 10);
    test_strangers();
    test_short_pool();
    test_faults();
    test_busy();
    tap_ok(!live_blocks && !toy_faults, "on %s: nothing is left", where);
}

/* The toy reads pages where they lie, which no GPU allows but the emulated one. */
static bool host_reads_device(void) {
    cairn_config c;
    cairn_runtime *rt = NULL;
    char error[1024];
    bool emulated;
    cairn_config_default(&c);
    c.backend = CAIRN_BACKEND_CUDA;
    if (cairn_open(&c, &rt, error, sizeof error)) return false;
    emulated = !strcmp(rt->device.name, "emulated GPU");
    cairn_close(rt);
    return emulated;
}

int main(int argc, char **argv) {
    uint64_t seed = random_seed();
    int runs = argc > 1 ? atoi(argv[1]) : 60;
    random_state = seed;
    snapshot_stage = 5000; /* so that pages straddle the two buffers */
    if (!tap_ok(toy_write(toy_path, NULL) && write_other() && write_tuned(), "the toy's files")) return tap_done();
    test_all(runs);
    if (host_reads_device()) {
        backend = CAIRN_BACKEND_CUDA, where = "cuda";
        test_all(runs / 3);
    }
    remove(toy_path), remove(other_path), remove(tuned_path);
    return tap_done();
}
