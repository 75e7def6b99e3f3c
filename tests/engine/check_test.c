/* check: models load from memory and through a callback as from a path, hostile callbacks are refused;
 * cairn_model_check tells every reason at once, the architecture first, and agrees with loading. */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "small_model.h"
#include "short_memory.h"
#include "tap.h"

static char path[64];
static uint8_t *bytes; /* [size] the file */
static size_t size;
static void config_for(cairn_config *c) {
    cairn_config_default(c);
    c->backend = CAIRN_BACKEND_CPU;
    c->threads = 1;
    c->max_batch = 1;
    c->drafter = CAIRN_DRAFTER_NONE;
    c->page_size = 16;
    c->log = CAIRN_LOG_OFF;
    c->allocator.realloc = test_realloc;
}

static void read_back(void) {
    FILE *file = fopen(path, "rb");
    fseek(file, 0, SEEK_END);
    size = (size_t)ftell(file);
    rewind(file);
    if (posix_memalign((void **)&bytes, 64, size + 64) || fread(bytes, 1, size, file) != size) abort();
    fclose(file);
}

/* ---- sources --------------------------------------------------------------------------------- */

/* A host's file: it gives at most `most` bytes a call, and nothing or too much from `wrong` on. */
typedef struct host_file { size_t most, wrong; bool too_much; uint64_t next; int calls; } host_file;

static size_t host_read(void *user, uint64_t offset, void *out, size_t wanted) {
    host_file *f = (host_file *)user;
    size_t give = wanted < f->most ? wanted : f->most;
    f->calls++;
    if (offset != f->next || offset + wanted > size + 1000) abort();
    if (offset + give > f->wrong) return f->too_much ? wanted + 1 : 0;
    if (offset >= size) return 0;
    if (offset + give > size) give = size - (size_t)offset;
    memcpy(out, bytes + offset, give);
    f->next = offset + give;
    return give;
}

static cairn_model_source memory_source(const void *data) {
    cairn_model_source s;
    memset(&s, 0, sizeof s);
    s.struct_size = sizeof s;
    s.name = "pack:model";
    s.data = data;
    s.bytes = size;
    return s;
}

/* Greedy ids after a prompt; empty: it did not load. */
static int say(cairn_runtime *rt, cairn_model *m, int32_t *ids, int most) {
    cairn_session *s;
    int count = 0;
    if (cairn_session_open(m, &s)) return 0;
    if (cairn_generate(s, "aabab!", 12, NULL, NULL)) tap_note("%s", cairn_last_error(rt));
    else {
        const int32_t *held = cairn_session_ids(s, &count);
        memcpy(ids, held, (size_t)(count < most ? count : most) * sizeof *ids);
    }
    cairn_session_close(s);
    return count;
}

static void test_same(cairn_runtime *rt, const cairn_model_source *s, const int32_t *want, int count,
                      bool gone, const char *what) {
    int32_t ids[64];
    cairn_model *m;
    cairn_status status = cairn_load_model_from(rt, s, &m);
    int got = 0;
    if (!status) {
        if (gone) memset((void *)(uintptr_t)s->data, 0, size); /* nothing of it is needed any more */
        got = say(rt, m, ids, 64);
        cairn_model_free(m);
    }
    if (gone) read_back();
    tap_ok(!status && got == count && !memcmp(ids, want, (size_t)count * sizeof *ids),
           "%s: the same %d ids", what, count);
}

static void test_sources(cairn_memory_map map) {
    cairn_config c;
    cairn_runtime *rt;
    cairn_model *m;
    char error[512];
    int32_t ids[64];
    int count;
    host_file f = {SIZE_MAX, SIZE_MAX, false, 0, 0}, slow = {1000, SIZE_MAX, false, 0, 0};
    cairn_model_source s = memory_source(bytes);
    config_for(&c);
    c.memory.map = map;
    if (!tap_ok(!cairn_open(&c, &rt, error, sizeof error) && !cairn_load_model(rt, path, &m),
                "from a path")) return;
    count = say(rt, m, ids, 64);
    cairn_model_free(m);
    test_same(rt, &s, ids, count, false, "from memory");
    if (map == CAIRN_MAP_COPY) {
        uint8_t *before = bytes;
        test_same(rt, &s, ids, count, true, "from memory that goes");
        free(before);
    }
    memmove(bytes + 1, bytes, size);
    s.data = bytes + 1;
    test_same(rt, &s, ids, count, false, "from memory that is not aligned");
    memmove(bytes, bytes + 1, size);
    s.data = NULL;
    s.read = host_read;
    s.user = &f;
    test_same(rt, &s, ids, count, false, "through a callback");
    s.user = &slow;
    test_same(rt, &s, ids, count, false, "through one that gives little");
    tap_ok(f.calls == 1 && slow.calls == (int)((size + 999) / 1000), "%d and %d calls", f.calls,
           slow.calls);
    cairn_close(rt);
}

static void test_hostile_sources(void) {
    cairn_config c;
    cairn_runtime *rt;
    cairn_model *m;
    char error[512];
    static const struct { size_t wrong; bool too_much; int64_t more; cairn_status status;
                          const char *why; } rows[] = {
        {0, false, 0, CAIRN_FILE_ERROR, "byte 0 of"}, {3000, false, 0, CAIRN_FILE_ERROR, "read returned 0"},
        {3000, true, 0, CAIRN_FILE_ERROR, "read returned"}, {SIZE_MAX, false, 1, CAIRN_FILE_ERROR, "1 bytes"},
        {SIZE_MAX, false, -64, CAIRN_BAD_FILE, "past the end"},
        {SIZE_MAX, false, INT64_MIN, CAIRN_BAD_FILE, "empty"}};
    cairn_model_source s;
    config_for(&c);
    if (!tap_ok(!cairn_open(&c, &rt, error, sizeof error), "a runtime")) return;
    for (size_t i = 0; i < BASE_COUNT(rows); i++) {
        host_file f = {1000, rows[i].wrong, rows[i].too_much, 0, 0};
        long before = live_blocks;
        s = memory_source(NULL);
        s.read = host_read;
        s.user = &f;
        s.bytes = rows[i].more == INT64_MIN ? 0 : size + (uint64_t)rows[i].more;
        tap_ok(cairn_load_model_from(rt, &s, &m) == rows[i].status && !m && live_blocks == before &&
               strstr(cairn_last_error(rt), rows[i].why) &&
               strstr(cairn_last_error(rt), "pack:model"), "source %d: %s", (int)i,
               cairn_last_error(rt));
    }
    s.bytes = UINT64_MAX;
    tap_ok(cairn_load_model_from(rt, &s, &m) == CAIRN_OUT_OF_MEMORY, "%s", cairn_last_error(rt));
    s = memory_source(NULL);
    tap_ok(cairn_load_model_from(rt, &s, &m) == CAIRN_INVALID_ARGUMENT, "%s", cairn_last_error(rt));
    s = memory_source(bytes);
    s.read = host_read;
    tap_ok(cairn_load_model_from(rt, &s, &m) == CAIRN_INVALID_ARGUMENT &&
           cairn_load_model_from(rt, NULL, &m) == CAIRN_INVALID_ARGUMENT &&
           cairn_load_model_from(rt, &s, NULL) == CAIRN_INVALID_ARGUMENT &&
           cairn_load_model_from(NULL, &s, &m) == CAIRN_INVALID_ARGUMENT, "no source, both, or no place");
    s.struct_size--;
    tap_ok(cairn_load_model_from(rt, &s, &m) == CAIRN_VERSION_MISMATCH, "%s", cairn_last_error(rt));
    cairn_close(rt);
}

/* ---- reports --------------------------------------------------------------------------------- */

/* The file with one text of it replaced by another of as many bytes; NULL: as it is. */
static void write_changed(const char *from, const char *to, const char *from2, const char *to2) {
    static const char family[] = "architecture\10\0\0\0\5\0\0\0\0\0\0\0llama";
    FILE *file = fopen(path, "wb");
    uint8_t *copy = (uint8_t *)malloc(size);
    memcpy(copy, bytes, size);
    for (size_t i = 0; from && !strcmp(from, "FAMILY") && i + sizeof family < size; i++)
        if (!memcmp(copy + i, family, sizeof family - 1))
            memcpy(copy + i + sizeof family - 6, to, 5), from = NULL;
    for (size_t i = 0; i < 6000 && i + 64 < size; i++) {
        if (from && !memcmp(copy + i, from, strlen(from))) memcpy(copy + i, to, strlen(to)), from = NULL;
        if (from2 && !memcmp(copy + i, from2, strlen(from2))) memcpy(copy + i, to2, strlen(to2)), from2 = NULL;
    }
    fwrite(copy, 1, size, file);
    fclose(file);
    free(copy);
}

static cairn_status load_status(const cairn_config *c) {
    cairn_runtime *rt;
    cairn_model *m;
    char error[512];
    cairn_status status = cairn_open(c, &rt, error, sizeof error);
    if (status) return status;
    status = cairn_load_model(rt, path, &m);
    cairn_close(rt);
    return status;
}

/* Changes the block type of the tensor of that name. */
static void write_type(const char *name, uint8_t type, const char *from, const char *to) {
    size_t bytes_of_name = strlen(name);
    for (size_t i = 0; i + bytes_of_name + 40 < size; i++) {
        size_t at = i + bytes_of_name + 4 + 16;
        if (memcmp(bytes + i, name, bytes_of_name)) continue;
        uint8_t before = bytes[at];
        bytes[at] = type;
        write_changed(from, to, NULL, NULL);
        bytes[at] = before;
        return;
    }
}

static void test_report(void) {
    cairn_config c;
    cairn_model_report r;
    cairn_memory_estimate e;
    char why[2048];
    config_for(&c);
    memset(&r, 0, sizeof r);
    r.struct_size = sizeof r;
    e.struct_size = sizeof e;
    write_changed(NULL, NULL, NULL, NULL);
    tap_ok(!cairn_model_check(&c, path, &r, why, sizeof why) && r.reasons == 0 && !*why &&
           !strcmp(r.architecture, "llama") && !strcmp(r.tokenizer, "gpt2") && r.layers == LAYERS &&
           r.hidden == HIDDEN && r.heads == HEADS && r.context == SMALL_CONTEXT && r.vocab == VOCAB &&
           r.file_bytes == size && strstr(r.types, "F16 x ") && strstr(r.types, "F32 x ") &&
           r.tensors == 2 + 9 * LAYERS && !r.has_chat, "a model that loads: %s", r.types);
    tap_ok(!cairn_estimate(&c, path, &e, why, sizeof why) && !memcmp(&e, &r.estimate, sizeof e),
           "with what it takes");
    tap_ok(!r.has_template, "and no chat template");
    write_changed("FAMILY", "llamb", "gpt-2", "gpt-7");
    tap_ok(cairn_model_check(&c, path, &r, why, sizeof why) == CAIRN_UNSUPPORTED && r.reasons == 2 &&
           strstr(why, "'llamb'") < strstr(why, "\n") && strstr(why, "\n") < strstr(why, "'gpt-7'"),
           "two reasons: %s", why);
    tap_ok(load_status(&c) == CAIRN_UNSUPPORTED, "it does not load");
    write_type("blk.0.attn_q.weight", 23, NULL, NULL);
    tap_ok(cairn_model_check(&c, path, &r, why, sizeof why) == CAIRN_UNSUPPORTED && r.reasons == 1 &&
           strstr(why, "(23) of 1 tensors, the first 'blk.0.attn_q.weight'") && !r.estimate.pages &&
           load_status(&c) == CAIRN_UNSUPPORTED, "a block type: %s", why);
    write_type("blk.0.attn_q.weight", 23, "gpt-2", "gpt-7");
    tap_ok(cairn_model_check(&c, path, &r, why, sizeof why) == CAIRN_UNSUPPORTED && r.reasons == 2 &&
           strstr(why, "block type") < strstr(why, "gpt-7"), "and a tokenizer: %s", why);
    write_changed("gpt-2", "gpt-7", "ggml.merges", "ggml.mergez");
    tap_ok(cairn_model_check(&c, path, &r, why, sizeof why) == CAIRN_UNSUPPORTED && r.reasons == 2 &&
           strstr(why, "gpt-7") < strstr(why, "\n") && strstr(why, "\n") < strstr(why, "ggml.merges") &&
           load_status(&c) == CAIRN_UNSUPPORTED, "two of a tokenizer: %s", why);
    write_changed("blk.0.attn_q", "blk.0.attn_x", NULL, NULL);
    tap_ok(cairn_model_check(&c, path, &r, why, sizeof why) == load_status(&c) && r.reasons == 1 &&
           load_status(&c) == CAIRN_BAD_FILE, "a tensor that is missing: %s", why);
    c.selection.layers[0] = 1 << 5;
    for (int i = 1; i < CAIRN_MAX_LAYERS / 64; i++) c.selection.layers[i] = 0;
    write_changed(NULL, NULL, NULL, NULL);
    tap_ok(cairn_model_check(&c, path, &r, why, sizeof why) == CAIRN_INVALID_ARGUMENT &&
           r.reasons == 1 && strstr(why, "selection.layers"), "what the config asks: %s", why);
    config_for(&c);
    tap_ok(cairn_model_check(&c, "no such.gguf", &r, why, sizeof why) == CAIRN_FILE_NOT_FOUND &&
           r.reasons == 1, "%s", why);
    c.page_size = 7;
    tap_ok(cairn_model_check(&c, path, &r, why, sizeof why) == CAIRN_INVALID_CONFIG, "%s", why);
    r.struct_size--;
    tap_ok(cairn_model_check(&c, path, &r, NULL, 0) == CAIRN_VERSION_MISMATCH &&
           cairn_model_check(&c, NULL, &r, NULL, 0) == CAIRN_INVALID_ARGUMENT &&
           cairn_model_check(&c, path, NULL, NULL, 0) == CAIRN_INVALID_ARGUMENT, "bad calls");
}

/* Damaged headers: a status, and the same answer as loading gives. */
static void test_damaged(void) {
    enum { ROUNDS = 150 };
    cairn_config c;
    cairn_model_report r;
    char why[1024];
    int wrong = 0, refused = 0;
    uint64_t seed = random_seed() | 1, random = seed;
    config_for(&c);
    memset(&r, 0, sizeof r);
    r.struct_size = sizeof r;
    for (int i = 0; i < ROUNDS; i++) {
        size_t at = (size_t)(random_next(&random) % 4000), was = bytes[at];
        bytes[at] = (uint8_t)random_next(&random);
        write_changed(NULL, NULL, NULL, NULL);
        bytes[at] = (uint8_t)was;
        if (cairn_model_check(&c, path, &r, why, sizeof why)) refused++;
        wrong += !r.reasons != !*why || (r.reasons == 0) != (load_status(&c) == CAIRN_OK);
    }
    tap_ok(!wrong && refused > ROUNDS / 10, "%d of %d damaged headers are refused, by both (seed %llu)",
           refused, (int)ROUNDS, (unsigned long long)seed);
}

static void test_memory_faults(void) {
    cairn_config c;
    cairn_model_report r;
    char why[1024];
    int n = 0;
    bool clean = true;
    cairn_status status;
    config_for(&c);
    memset(&r, 0, sizeof r);
    r.struct_size = sizeof r;
    write_changed("FAMILY", "llamb", "gpt-2", "gpt-7");
    do {
        long before = live_blocks;
        allocations_left = n++;
        status = cairn_model_check(&c, path, &r, why, sizeof why);
        allocations_left = -1;
        clean = clean && live_blocks == before;
    } while (status == CAIRN_OUT_OF_MEMORY && n < 100);
    tap_ok(clean && status == CAIRN_UNSUPPORTED && n > 2, "each of %d allocations may fail", n - 1);
}

/* The config's chat texts reach the model. */
static void test_chat_config(void) {
    cairn_config c;
    cairn_runtime *rt;
    cairn_model *m;
    cairn_message hi = {"user", "aab"}, system = {"system", "b"};
    char error[512], text[64];
    size_t count;
    config_for(&c);
    write_changed(NULL, NULL, NULL, NULL);
    c.chat.user_count = 2;
    snprintf(c.chat.user[0], sizeof c.chat.user[0], "U:");
    snprintf(c.chat.user[1], sizeof c.chat.user[1], ";");
    tap_ok(load_status(&c) == CAIRN_INVALID_CONFIG, "a user without an assistant is refused");
    c.chat.assistant_count = 1;
    snprintf(c.chat.assistant[0], sizeof c.chat.assistant[0], "A:");
    if (!tap_ok(!cairn_open(&c, &rt, error, sizeof error) && !cairn_load_model(rt, path, &m), "%s",
                "a model under a config with chat")) return;
    tap_ok(!cairn_chat_format(m, &hi, 1, true, true, text, sizeof text, &count) &&
           !strcmp(text, "U:aab;A:"), "says %s", text);
    tap_ok(cairn_chat_format(m, &system, 1, true, true, text, sizeof text, &count) ==
           CAIRN_INVALID_ARGUMENT, "%s", cairn_last_error(rt));
    cairn_close(rt);
}

int main(void) {
    snprintf(path, sizeof path, "/tmp/cairn_check_%d.gguf", (int)getpid());
    state = 7;
    if (!write_model(path)) return 1;
    read_back();
    test_sources(CAIRN_MAP_COPY);
    write_changed(NULL, NULL, NULL, NULL);
    test_sources(CAIRN_MAP_FILE);
    test_hostile_sources();
    test_report();
    test_damaged();
    test_memory_faults();
    test_chat_config();
    remove(path);
    free(bytes);
    tap_ok(live_blocks == 0, "nothing leaks");
    return tap_done();
}
