/* targets: what the fuzzers run, in one unit. A target takes bytes; it aborts with a line when a
 * promise is broken, and the sanitizers see the rest. fuzz.c gives them libFuzzer's bytes
 * (./build.sh fuzz TARGET SECONDS), fuzz_test.c those of tests/fuzz/corpus/TARGET.
 *
 * Files are memory: whoever opens FUZZ_PATH, or during fuzz_cache anything, reads the bytes. Where a
 * checksum would keep nearly all bytes out, the target mends it if the first byte is odd. */
#ifndef FUZZ_TARGETS_H
#define FUZZ_TARGETS_H

#define CAIRN_ROOMS_ONLY
int spec_test_main(void);
#define main spec_test_main
#include "../ops/spec_test.c"
#undef main
#include "toy_model.h"

#define FUZZ_PATH "fuzz.file"

static void fuzz_fail(const char *what, const char *words) {
    fprintf(stderr, "fuzz: %s: %s\n", what, words);
    abort();
}

/* ---- memory and files --------------------------------------------------------------------------- */

static int64_t fuzz_live;

/* What asks for much gets nothing: the target's machine has 96 MiB. */
static void *fuzz_realloc(void *user, void *memory, size_t old_bytes, size_t new_bytes) {
    const int64_t most = (int64_t)96 << 20;
    void *result;
    (void)user;
    if (!new_bytes) {
        fuzz_live -= (int64_t)old_bytes;
        return free(memory), NULL;
    }
    if (new_bytes > (size_t)most || fuzz_live + (int64_t)new_bytes > most) return NULL;
    result = realloc(memory, new_bytes);
    if (result) fuzz_live += (int64_t)new_bytes - (memory ? (int64_t)old_bytes : 0);
    return result;
}

enum { FUZZ_HANDLE = 1 << 28 };
static struct { const uint8_t *data; size_t size, at; bool any; } fuzz_file;
static os_call_table fuzz_system;

/* A folder's files, of one input: two bytes that say how long each but the last is, then they. */
enum { FUZZ_PARTS = 4 };
static const char *const fuzz_names[FUZZ_PARTS] = {"config.json", "tokenizer.json",
                                                   "model.safetensors.index.json", NULL};
static struct { const uint8_t *data; size_t size; } fuzz_parts[FUZZ_PARTS];

/* Which of the files a path names; -1: none. An empty index is none; a zip file is PyTorch's; an
 * adapter's config is the first. */
static int fuzz_part(const char *path) {
    const char *name = path + strlen(FUZZ_PATH "/"), *dot = strrchr(path, '.');
    const bool zip = fuzz_parts[FUZZ_PARTS - 1].size > 1 &&
                     !memcmp(fuzz_parts[FUZZ_PARTS - 1].data, "PK", 2);
    if (strncmp(path, FUZZ_PATH "/", strlen(FUZZ_PATH "/"))) return -1;
    const bool pieces = fuzz_parts[1].size && *fuzz_parts[1].data == '\n'; /* as tokenizer.model begins */
    if (!strcmp(name, pieces ? "tokenizer.model" : "tokenizer.json")) return 1;
    for (int i = 0; i < FUZZ_PARTS - 1; i += 2)
        if (!strcmp(name + (strncmp(name, "adapter_", 8) ? 0 : 8), fuzz_names[i]))
            return i == 2 && !fuzz_parts[i].size ? -1 : i;
    return dot && !strcmp(dot, zip ? ".bin" : ".safetensors") ? FUZZ_PARTS - 1 : -1;
}

static bool fuzz_is_file(const char *path) { return fuzz_file.any || !strcmp(path, FUZZ_PATH); }
static int64_t fuzz_open(const char *path, int mode) {
    const int which = fuzz_part(path);
    if (which >= 0) return FUZZ_HANDLE + 1 + which;
    if (!fuzz_is_file(path)) return fuzz_system.open(path, mode);
    fuzz_file.at = 0;
    return mode == OS_OPEN_READ ? FUZZ_HANDLE : -EROFS;
}
static int64_t fuzz_read_at(int64_t file, void *data, size_t bytes, uint64_t at) {
    const bool whole = file == FUZZ_HANDLE, mine = file > FUZZ_HANDLE && file <= FUZZ_HANDLE + FUZZ_PARTS;
    const int which = mine ? (int)(file - FUZZ_HANDLE - 1) : 0;
    const uint8_t *from = whole ? fuzz_file.data : fuzz_parts[which].data;
    const size_t size = whole ? fuzz_file.size : fuzz_parts[which].size;
    if (!whole && !mine) return fuzz_system.read_at(file, data, bytes, at);
    if (at >= size) return 0;
    if (bytes > size - at) bytes = (size_t)(size - at);
    if (bytes) memcpy(data, from + at, bytes);
    return (int64_t)bytes;
}
static int64_t fuzz_read(int64_t file, void *data, size_t bytes) {
    static size_t at[FUZZ_PARTS];
    int64_t got;
    if (file > FUZZ_HANDLE && file <= FUZZ_HANDLE + FUZZ_PARTS) { /* read from beginning to end */
        size_t *next = &at[file - FUZZ_HANDLE - 1];
        got = fuzz_read_at(file, data, bytes, *next);
        *next = got ? *next + (size_t)got : 0;
        return got;
    }
    if (file != FUZZ_HANDLE) return fuzz_system.read(file, data, bytes);
    got = fuzz_read_at(file, data, bytes, fuzz_file.at);
    fuzz_file.at += (size_t)got;
    return got;
}
static int fuzz_file_info(int64_t file, os_file_info *out) {
    const bool mine = file > FUZZ_HANDLE && file <= FUZZ_HANDLE + FUZZ_PARTS;
    if (file != FUZZ_HANDLE && !mine) return fuzz_system.file_info(file, out);
    memset(out, 0, sizeof *out);
    out->size = (int64_t)(mine ? fuzz_parts[file - FUZZ_HANDLE - 1].size : fuzz_file.size);
    out->regular = true, out->identity = 1;
    return 0;
}
static int fuzz_info(const char *path, os_file_info *out) {
    const int which = fuzz_part(path);
    if (which >= 0) return fuzz_file_info(FUZZ_HANDLE + 1 + which, out);
    if (fuzz_parts[FUZZ_PARTS - 1].data && !strcmp(path, FUZZ_PATH)) {
        memset(out, 0, sizeof *out);
        return out->directory = true, 0;
    }
    return fuzz_is_file(path) ? fuzz_file_info(FUZZ_HANDLE, out) : fuzz_system.info(path, out);
}
static int fuzz_close(int64_t file) {
    return file >= FUZZ_HANDLE && file <= FUZZ_HANDLE + FUZZ_PARTS ? 0 : fuzz_system.close(file);
}
static int fuzz_remove(const char *path) {
    return fuzz_is_file(path) ? 0 : fuzz_system.remove(path);
}
static int fuzz_touch(const char *path) { return fuzz_is_file(path) ? 0 : fuzz_system.touch(path); }

static cairn_runtime *fuzz_rt; /* on the CPU */
static void fuzz_config_of(cairn_config *c) {
    cairn_config_default(c);
    c->backend = CAIRN_BACKEND_CPU;
    c->threads = 1, c->page_size = 16, c->prefill_chunk = 16, c->max_batch = 2;
    c->memory.budget_mb = 32, c->log = CAIRN_LOG_OFF;
    c->allocator.realloc = fuzz_realloc;
}

static void fuzz_start(void) {
    cairn_config c;
    char error[1024];
    gguf_first_bytes = 64;
    fuzz_system = os_calls;
    os_calls.open = fuzz_open, os_calls.read = fuzz_read, os_calls.read_at = fuzz_read_at;
    os_calls.info = fuzz_info, os_calls.file_info = fuzz_file_info, os_calls.close = fuzz_close;
    os_calls.remove = fuzz_remove, os_calls.touch = fuzz_touch;
    fuzz_config_of(&c);
    if (cairn_open(&c, &fuzz_rt, error, sizeof error)) fuzz_fail("open", error);
}

static void fuzz_give(const uint8_t *data, size_t size) {
    fuzz_file.data = data, fuzz_file.size = size;
}

/* A failure has words, and leaves what it found. */
static bool fuzz_told(cairn_status status, const char *what, const char *words) {
    if (status && !words[0]) fuzz_fail(what, "a status without words");
    return !status;
}

/* ---- gguf, npy, config -------------------------------------------------------------------------- */

static void fuzz_speak(cairn_model *m, const uint8_t *data, size_t size) {
    int32_t ids[256];
    int count = 0;
    char text[256];
    size_t n = size < 64 ? size : 64, told = 0;
    cairn_session *s = NULL;
    if (cairn_tokenize(m, (const char *)data + size - n, n, ids, 256, &count) == CAIRN_OK &&
        count <= 256)
        cairn_detokenize(m, ids, count, text, sizeof text, &told);
    if (cairn_session_open(m, &s)) return;
    cairn_generate(s, "a b", 3, NULL, NULL);
    cairn_session_close(s);
}

static void fuzz_gguf(const uint8_t *data, size_t size) {
    const int64_t before = fuzz_live;
    cairn_memory_estimate e;
    cairn_config c;
    char error[1024] = "";
    cairn_model *m = NULL;
    gguf g;
    fuzz_give(data, size);
    if (fuzz_told(hf_open(&fuzz_rt->base, NULL, FUZZ_PATH, HF_SCAN, &g), "scan", fuzz_rt->base.error))
        gguf_close(&fuzz_rt->base, &g);
    fuzz_config_of(&c);
    e.struct_size = sizeof e;
    fuzz_told(cairn_estimate(&c, FUZZ_PATH, &e, error, sizeof error), "estimate", error);
    if (fuzz_told(cairn_load_model(fuzz_rt, FUZZ_PATH, &m), "load", cairn_last_error(fuzz_rt))) {
        fuzz_speak(m, data, size);
        cairn_model_free(m);
    }
    if (fuzz_live != before) fuzz_fail("gguf", "memory is left");
}

/* The files of a folder, as the input has them; false: it is too short. */
static bool fuzz_take_parts(const uint8_t *data, size_t size) {
    size_t at = 2 * (FUZZ_PARTS - 1);
    if (size < at) return false;
    for (int i = 0; i < FUZZ_PARTS; i++) {
        size_t bytes = (size_t)data[2 * (i % 3)] | (size_t)data[2 * (i % 3) + 1] << 8;
        if (i == FUZZ_PARTS - 1 || bytes > size - at) bytes = size - at;
        fuzz_parts[i].data = data + at, fuzz_parts[i].size = bytes;
        at += bytes;
    }
    return true;
}

/* The same for a folder. */
static void fuzz_folder(const uint8_t *data, size_t size) {
    if (!fuzz_take_parts(data, size)) return;
    fuzz_gguf(data, size);
    memset(fuzz_parts, 0, sizeof fuzz_parts);
}

/* A file of the toy's kind on the CPU, in place of its forward pass. */
static cairn_model *fuzz_plain_toy(void) {
    static cairn_model *m;
    static const char *path = "build/toy_fuzz_plain.gguf";
    os_make_path("build");
    if (!m && (!toy_write(path, NULL) || cairn_load_model(fuzz_rt, path, &m)))
        fuzz_fail("toy", fuzz_rt->base.error);
    return m;
}

/* A folder of adapter_config.json and a file of any form, for the toy. */
static void fuzz_adapter(const uint8_t *data, size_t size) {
    cairn_model *m = fuzz_plain_toy();
    cairn_adapter *a = NULL;
    cairn_session *s = NULL;
    int64_t before;
    int count = 0;
    if (!fuzz_take_parts(data, size)) return;
    if (cairn_session_open(m, &s) || cairn_append(s, "ab") || cairn_generate(s, NULL, 1, NULL, NULL))
        fuzz_fail("session", fuzz_rt->base.error);
    before = fuzz_live;
    if (fuzz_told(cairn_adapter_load(m, FUZZ_PATH, &a), "adapter", cairn_last_error(fuzz_rt))) {
        if (cairn_session_adapt(s, a)) fuzz_fail("adapt", fuzz_rt->base.error);
        if (!fuzz_told(cairn_generate(s, "a b", 3, NULL, NULL), "generate", fuzz_rt->base.error) ||
            !cairn_session_ids(s, &count) || count < 5)
            fuzz_fail("adapter", "a session that does not go on by it");
        if (cairn_adapter_free(a) != CAIRN_BUSY) fuzz_fail("adapter", "freed below a session");
        if (cairn_session_adapt(s, NULL) || cairn_adapter_free(a))
            fuzz_fail("free", fuzz_rt->base.error);
    } else if (a || fuzz_live != before) {
        fuzz_fail("adapter", "memory is left");
    }
    cairn_session_close(s);
    memset(fuzz_parts, 0, sizeof fuzz_parts);
}

static void fuzz_npy(const uint8_t *data, size_t size) {
    const int64_t before = fuzz_live;
    cairn_tensor *t;
    fuzz_give(data, size);
    if (fuzz_told(cairn_tensor_load(fuzz_rt, FUZZ_PATH, &t), "npy", cairn_last_error(fuzz_rt))) {
        if (tensor_elements(t) < 0) fuzz_fail("npy", "a shape that is none");
        cairn_tensor_free(fuzz_rt, t);
    }
    if (fuzz_live != before) fuzz_fail("npy", "memory is left");
}

static void fuzz_config(const uint8_t *data, size_t size) {
    cairn_config c, checked;
    char error[4096] = "";
    fuzz_give(data, size);
    if (!fuzz_told(cairn_config_load(FUZZ_PATH, &c, error, sizeof error), "config", error)) return;
    if (cairn_config_check(&c, &checked, error, sizeof error))
        fuzz_fail("config", "what was read does not pass its own check");
}

/* ---- cache, snapshot, json ---------------------------------------------------------------------- */

static void fuzz_cache(const uint8_t *data, size_t size) {
    const cache_options options = {CACHE_READ_ONLY, "fuzz.cache", 0};
    uint8_t *file = (uint8_t *)malloc(size + 1);
    const bool mend = size > 0 && data[0] & 1;
    cache_key key, sum;
    cache_entry entry;
    cache c;
    base b = fuzz_rt->base;
    if (size) size--, memcpy(file, data + 1, size);
    memset(&key, 0x5a, sizeof key), memset(&entry, 0, sizeof entry);
    if (mend && size > CACHE_HEADER_BYTES) {
        memcpy(file, "CAIRNKB1", 8), memcpy(file + 32, &key, sizeof key);
        cache_store64(file + 16, size - CACHE_HEADER_BYTES);
        sum = cache_checksum(file, file + CACHE_HEADER_BYTES, size - CACHE_HEADER_BYTES);
        memcpy(file + CACHE_CHECKED_BYTES, &sum, sizeof sum);
    }
    cache_open(&b, &options, &c);
    fuzz_give(file, size), fuzz_file.any = true;
    if (cache_get(&c, &b, &key, &entry)) {
        if (entry.data + entry.size != (const uint8_t *)entry.file.data + size ||
            strlen(entry.name) >= sizeof entry.name || strlen(entry.arch) >= sizeof entry.arch)
            fuzz_fail("cache", "an entry outside its bytes");
        cache_entry_free(&b, &entry);
    }
    fuzz_file.any = false;
    cache_close(&c);
    free(file);
}

static cairn_model *fuzz_toy(void) {
    static cairn_model *m;
    static const char *path = "build/toy_fuzz.gguf";
    os_make_path("build");
    if (!m && (!toy_write(path, NULL) || toy_load(fuzz_rt, path, &m)))
        fuzz_fail("toy", fuzz_rt->base.error);
    return m;
}

static void fuzz_seal(uint8_t *at, size_t size) {
    size_t from = SNAPSHOT_HEADER;
    for (int i = 0; i < SNAPSHOT_PARTS; i++) {
        const uint64_t bytes = base_load(at + 24 + 16 * i, 8);
        uint64_t sum = 0;
        if (bytes > size - from) return;
        snapshot_sum_part(&fuzz_rt->base, fuzz_rt->pool, at + from, (size_t)bytes, &sum);
        cache_store64(at + 32 + 16 * i, sum);
        from += (size_t)bytes;
    }
    cache_store64(at + 104, snapshot_sum(at, 104));
}

static void fuzz_snapshot(const uint8_t *data, size_t size) {
    cairn_session *s;
    uint8_t *copy = (uint8_t *)malloc(size + 1);
    const bool mend = size > 0 && data[0] & 1;
    int count = 0;
    if (size) size--, memcpy(copy, data + 1, size);
    if (mend && size >= SNAPSHOT_HEADER) fuzz_seal(copy, size);
    if (cairn_session_open(fuzz_toy(), &s)) fuzz_fail("session", fuzz_rt->base.error);
    if (fuzz_told(cairn_session_load_memory(s, copy, size), "snapshot", fuzz_rt->base.error)) {
        const int32_t *ids = cairn_session_ids(s, &count);
        for (int i = 0; i < count; i++)
            if (ids[i] < 0 || ids[i] >= TOY_VOCAB) fuzz_fail("snapshot", "an id that is none");
        cairn_generate(s, NULL, 2, NULL, NULL);
    }
    cairn_session_close(s);
    free(copy);
}

/* A grammar, or a JSON Schema where the first byte is odd, and what the toy says by it: the text, read
 * anew from its beginning, is not lost. */
static void fuzz_grammar(const uint8_t *data, size_t size) {
    cairn_model *m = fuzz_toy();
    char *text = (char *)calloc(1, size + 1);
    cairn_session *s = NULL;
    cairn_generate_options o;
    grammar *g;
    grammar_place place;
    const int32_t *ids;
    int count = 0, first = 0;
    if (size) memcpy(text, data + 1, size - 1);
    memset(&o, 0, sizeof o), memset(&place, 0, sizeof place);
    o.struct_size = sizeof o, o.max_tokens = 12;
    *(size && data[0] & 1 ? &o.json_schema : &o.grammar) = text;
    if (cairn_session_open(m, &s) || cairn_append(s, "ab")) fuzz_fail("session", fuzz_rt->base.error);
    cairn_session_ids(s, &first);
    if (fuzz_told(cairn_generate_with(s, NULL, &o, NULL, NULL), "grammar", fuzz_rt->base.error) &&
        !(o.grammar ? grammar_take : grammar_take_schema)(&fuzz_rt->base, m->grammars, &m->tokenizer,
                                                          text, strlen(text), &g)) {
        ids = cairn_session_ids(s, &count);
        if (count > first && ids[count - 1] == TOY_END) count--;
        if (!grammar_go(&fuzz_rt->base, g, &m->grammars->words, ids + first, count - first,
                        &place) &&
            grammar_is_lost(&place))
            fuzz_fail("grammar", "what it says is not allowed");
        grammar_give(&fuzz_rt->base, m->grammars, g);
    }
    cairn_session_close(s);
    free(text);
}

#ifndef CAIRN_NO_LUA
/* json.lua: ids are read or refused with words, text is written as JSON may have it. */
static void fuzz_json(const uint8_t *data, size_t size) {
    static const char *const code =
        "local json = dofile 'scripts/cli/json.lua' return function(text) "
        "local done, e = pcall(json.decode_integers, text, 'ids') "
        "if done then for _, id in ipairs(e) do assert(math.type(id) == 'integer') end "
        "else assert(type(e) == 'table' and #e.usage > 0, e) end "
        "local said = json.encode { a = text, [text] = { #text, 0.5, text } } "
        "assert(not said:find '%c') end";
    static lua_State *L;
    if (!L) {
        L = luaL_newstate();
        luaL_openlibs(L);
        if (luaL_dostring(L, code)) fuzz_fail("json", lua_tostring(L, -1));
    }
    lua_pushvalue(L, 1);
    lua_pushlstring(L, (const char *)data, size);
    if (lua_pcall(L, 1, 0, 0)) fuzz_fail("json", luaL_tolstring(L, -1, NULL));
    lua_settop(L, 1);
}
#endif

/* ---- ops ------------------------------------------------------------------------------------------ */

static struct { const uint8_t *data; size_t size; } fuzz_bytes;

/* A number of two bytes; behind the last, numbers of the place. */
static uint64_t fuzz_number(uint64_t place) {
    const uint64_t at = place * 2, z = (place + 1) * 0xbf58476d1ce4e5b9u;
    if (at + 2 > fuzz_bytes.size) return z ^ z >> 31;
    return fuzz_bytes.data[at] | (uint64_t)fuzz_bytes.data[at + 1] << 8;
}

static cairn_runtime *fuzz_gpu; /* the emulated one, once it is wanted */

static void fuzz_open_gpu(void) {
    cairn_config c;
    cairn_config_default(&c);
    c.backend = CAIRN_BACKEND_CUDA, c.log = CAIRN_LOG_OFF;
    if (getenv("CAIRN_SIMT_KERNELS")) fuzz_gpu = open_runtime_on(&c, "fuzz");
}

/* A call from the table: the op, then what is right of it and what is changed. On the emulated GPU,
 * where it is open, it is compared with the CPU. */
static void fuzz_ops(const uint8_t *data, size_t size) {
    cairn_runtime *const on = fuzz_gpu ? fuzz_gpu : fuzz_rt, *const beside = fuzz_gpu ? fuzz_rt : NULL;
    tally t = {0, 0, 0, false};
    const spec_op *op;
    if (size < 4) return;
    op = &spec_ops[data[0] % SPEC_OP_COUNT];
    fuzz_bytes.data = data + 2, fuzz_bytes.size = size - 2;
    random_source = fuzz_number;
    try_right(&t, op, on, beside, 0);
    if (!t.failed && data[1]) try_wrong(&t, op, on, beside, 0, data[1]);
    random_source = NULL;
    if (t.failed) fuzz_fail(op->name, "see above");
}

/* ---- sessions ------------------------------------------------------------------------------------- */

enum { FUZZ_SESSIONS = 4 };

typedef struct fuzz_house { cairn_session *s[FUZZ_SESSIONS]; uint8_t *kept; size_t kept_bytes; } fuzz_house;

static void fuzz_append(cairn_session *s, uint8_t arg, const uint8_t *data, size_t left) {
    int32_t ids[40];
    const int count = arg % 40;
    for (int i = 0; i < count; i++) ids[i] = (size_t)i < left ? data[i] : toy_words[i % 11];
    cairn_append_ids(s, ids, count);
}

static void fuzz_say(cairn_session *s, uint8_t arg) {
    static const char *const stop[] = {"b", "\xc3", "ab "};
    cairn_generate_options o;
    memset(&o, 0, sizeof o);
    o.struct_size = sizeof o, o.max_tokens = 1 + arg % 30;
    o.stop = stop, o.stop_count = arg >> 6, o.keep_stop = arg >> 5 & 1;
    cairn_generate_with(s, NULL, &o, NULL, NULL);
}

static void fuzz_keep(fuzz_house *h, cairn_session *s) {
    size_t bytes = 0;
    uint8_t *memory;
    if (cairn_session_save_memory(s, NULL, 0, &bytes) || !bytes) return;
    memory = (uint8_t *)malloc(bytes);
    if (cairn_session_save_memory(s, memory, bytes, &bytes)) fuzz_fail("save", fuzz_rt->base.error);
    free(h->kept);
    h->kept = memory, h->kept_bytes = bytes;
}

static void fuzz_act(fuzz_house *h, uint8_t act, uint8_t arg, const uint8_t *data, size_t left) {
    cairn_session **at = &h->s[act >> 4 & 3], **other = &h->s[act >> 6];
    int count;
    if (!*at) {
        cairn_session_open(fuzz_toy(), at);
        return;
    }
    cairn_session_ids(*at, &count);
    switch (act % 10) {
        case 0: case 1: fuzz_append(*at, arg, data, left); break;
        case 2: case 3: fuzz_say(*at, arg); break;
        case 4: cairn_session_rewind(*at, arg % (count + 2)); break;
        case 5:
            if (*other) cairn_session_close(*other);
            *other = NULL;
            if (at != other) cairn_session_fork(*at, other);
            break;
        case 6: fuzz_keep(h, *at); break;
        case 7: if (h->kept) cairn_session_load_memory(*at, h->kept, h->kept_bytes); break;
        case 8: cairn_session_reset(*at); break;
        default: {
            cairn_config next = fuzz_rt->config;
            next.draft_length = arg % 7, next.topk = 1 + arg % 3;
            next.drafter = arg & 1 ? CAIRN_DRAFTER_NGRAM : CAIRN_DRAFTER_NONE;
            if (cairn_reload(fuzz_rt, &next)) fuzz_fail("reload", fuzz_rt->base.error);
        }
    }
    if (*at && cairn_session_ids(*at, &count) && (count < 0 || count > TOY_CONTEXT))
        fuzz_fail("sessions", "a count that cannot be");
}

static void fuzz_sessions(const uint8_t *data, size_t size) {
    fuzz_house h;
    memset(&h, 0, sizeof h);
    for (size_t i = 0; i + 2 <= size && i < 400; i += 2)
        fuzz_act(&h, data[i], data[i + 1], data + i + 2, size - i - 2);
    for (int i = 0; i < FUZZ_SESSIONS; i++) cairn_session_close(h.s[i]);
    free(h.kept);
    if (toy_faults) fuzz_fail("sessions", "the toy found a promise broken");
}

/* ---- all ------------------------------------------------------------------------------------------ */

static const struct fuzz_target { const char *name; void (*run)(const uint8_t *data, size_t size); }
fuzz_targets[] = {
    {"gguf", fuzz_gguf}, {"folder", fuzz_folder}, {"adapter", fuzz_adapter},
    {"config", fuzz_config}, {"npy", fuzz_npy}, {"snapshot", fuzz_snapshot}, {"cache", fuzz_cache},
    {"grammar", fuzz_grammar},
#ifndef CAIRN_NO_LUA
    {"json", fuzz_json},
#endif
    {"ops", fuzz_ops}, {"sessions", fuzz_sessions}};

#endif
