/* families: small random models written to GGUF files, loaded as a host loads them. What becomes of
 * a model whose file changes after it was loaded.
 * emulated: asan */
#define CAIRN_ROOMS_ONLY
#include "../runtime.c"
#include "gguf_build.h"
#include "random.h"
#include "ref/block_ref.h"
#include "ref/f16_ref.h"
#include "tap.h"
#include "backends.h"
#include "family.h"

static uint64_t state;

static const int plain_types[] = {BLOCK_F32, BLOCK_F16, BLOCK_BF16, BLOCK_Q4_0, BLOCK_Q4_1,
                                  BLOCK_Q8_0};

static family a_llama(void) {
    family f = {.architecture = "llama", .layers = 2, .hidden = 128, .heads = 4, .kv_heads = 2,
                .dim = 64, .ffn = 96, .vocab = 120, .context = 256};
    f.own_head = random_next(&state) % 2;
    family_make(&f, plain_types, (int)BASE_COUNT(plain_types), &state);
    return f;
}

static cairn_config small_config(cairn_backend backend) {
    cairn_config c;
    cairn_config_default(&c);
    c.backend = backend, c.log = CAIRN_LOG_OFF;
    c.threads = 2, c.page_size = 16, c.max_batch = 1, c.max_seq_len = 200, c.prefill_chunk = 16;
    return c;
}

static cairn_model *load(cairn_runtime *rt, const char *path) {
    cairn_model *m = NULL;
    if (cairn_load_model(rt, path, &m)) tap_note("%s", cairn_last_error(rt));
    return m;
}

/* ---- files that change ----------------------------------------------------------------------- */

typedef struct said { int32_t ids[64]; int count; uint8_t *saved; size_t bytes; } said;

/* A prompt, then twelve ids, in a session of its own; and the session saved. */
static said say(cairn_model *m) {
    static const int32_t prompt[] = {7, 8, 9, 30, 31, 7, 8, 9, 44, 3, 2, 1, 7, 8, 9, 5, 4, 9, 10};
    cairn_session *s = NULL;
    const int32_t *ids;
    said what = {{0}, 0, NULL, 0};
    if (!m || cairn_session_open(m, &s) || cairn_append_ids(s, prompt, 19) ||
        cairn_generate(s, "", 12, NULL, NULL))
        return what;
    ids = cairn_session_ids(s, &what.count);
    memcpy(what.ids, ids, (size_t)what.count * sizeof *ids);
    if (!cairn_session_save_memory(s, NULL, 0, &what.bytes)) {
        what.saved = (uint8_t *)malloc(what.bytes);
        if (cairn_session_save_memory(s, what.saved, what.bytes, &what.bytes)) what.bytes = 0;
    }
    cairn_session_close(s);
    return what;
}

static bool same(const said *a, const said *b) {
    return a->count > 19 && a->count == b->count && a->bytes && a->bytes == b->bytes &&
           !memcmp(a->ids, b->ids, (size_t)a->count * sizeof *a->ids) &&
           !memcmp(a->saved, b->saved, a->bytes);
}

/* Overwrites the file's second half in place, or cuts the file down to 100 bytes. */
static bool spoil(const char *path, bool cut) {
    FILE *file = fopen(path, cut ? "wb" : "r+b");
    long size;
    if (!file) return false;
    if (cut) {
        for (int i = 0; i < 100; i++) fputc('x', file);
    } else {
        fseek(file, 0, SEEK_END);
        size = ftell(file);
        fseek(file, size / 2, SEEK_SET);
        for (long i = size / 2; i < size; i++) fputc((int)(i * 7 % 60), file);
    }
    return fclose(file) == 0;
}

static void test_spoiled(cairn_backend backend) {
    const char *where = backend == CAIRN_BACKEND_CUDA ? "cuda" : "cpu";
    const char *path = "build/families_spoiled.gguf";
    cairn_config c = small_config(backend);
    cairn_runtime *rt = open_runtime_on(&c, "a file that changes");
    family f;
    if (!rt) return;
    f = a_llama();
    for (int cut = 0; cut < 2; cut++) {
        cairn_model *m = NULL;
        said before, after;
        tap_ok(family_write(&f, path) && (m = load(rt, path)) != NULL, "%s: a model loads", where);
        before = say(m); /* the same file, not yet changed */
        cairn_model_free(m);
        m = load(rt, path);
        spoil(path, cut);
        after = say(m);
        tap_ok(same(&before, &after), "%s: a file %s after the load changes neither text nor what "
               "is saved", where, cut ? "cut short" : "overwritten");
        cairn_model_free(m);
        free(before.saved), free(after.saved);
    }
    cairn_close(rt);
    family_free(&f);
    remove(path);
}

/* memory.map = "file" reads in place, and the runtime allocates no copy. */
static size_t most_bytes, live_bytes;
static void *counting_realloc(void *user, void *memory, size_t old_bytes, size_t new_bytes) {
    (void)user;
    live_bytes += new_bytes - old_bytes;
    if (live_bytes > most_bytes) most_bytes = live_bytes;
    if (new_bytes) return realloc(memory, new_bytes);
    free(memory);
    return NULL;
}

static void test_maps(void) {
    const char *path = "build/families_mapped.gguf";
    size_t bytes[2] = {0, 0}, file = 0;
    said what[2];
    family f = a_llama();
    family_write(&f, path);
    for (int i = 0; i < f.count; i++) file += f.tensors[i].bytes;
    for (int map = 0; map < 2; map++) {
        cairn_config c = small_config(CAIRN_BACKEND_CPU);
        cairn_runtime *rt;
        char error[256];
        c.memory.map = map ? CAIRN_MAP_FILE : CAIRN_MAP_COPY;
        c.allocator.realloc = counting_realloc;
        most_bytes = live_bytes = 0;
        if (!tap_ok(!cairn_open(&c, &rt, error, sizeof error), "a runtime opens")) return;
        what[map] = say(load(rt, path));
        bytes[map] = most_bytes;
        cairn_close(rt);
    }
    tap_ok(same(&what[0], &what[1]), "a copy and the mapped file give the same text");
    tap_ok(bytes[0] > bytes[1] + file && bytes[0] < bytes[1] + file + file / 4,
           "the copy costs the file's size once: %llu bytes more for %llu of weights",
           (unsigned long long)(bytes[0] - bytes[1]), (unsigned long long)file);
    free(what[0].saved), free(what[1].saved);
    family_free(&f);
    remove(path);
}

int main(void) {
    state = random_seed();
    os_make_path("build");
    test_spoiled(CAIRN_BACKEND_CPU);
    test_spoiled(CAIRN_BACKEND_CUDA);
    test_maps();
    return tap_done();
}
