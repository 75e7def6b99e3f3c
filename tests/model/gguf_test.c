/* gguf and block: good files are read, bad ones refused with the name and the place, and no damage
 * of any kind makes the reader leave the file's bytes (run under ASan and UBSan). */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "gguf_build.h"
#include "random.h"
#include "ref/block_ref.h"
#include "short_memory.h"
#include "tap.h"

static uint64_t random_state;
static uint32_t random_u32(void) { /* xorshift64* */
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return (uint32_t)(random_state * 2685821657736338717u >> 32);
}

/* ---- blocks ---- */

static bool same_value(float got, double want) {
    return want != want ? got != got : got == (float)want;
}

static void test_block(const block_type *type) {
    enum { VALUES = 4096 };
    static float out[VALUES + 2];
    size_t bytes = block_row_bytes(type, VALUES);
    uint8_t *row = (uint8_t *)malloc(bytes + 1);
    int wrong = 0;
    for (size_t i = 0; i < bytes + 1; i++) row[i] = (uint8_t)random_u32();
    for (int shift = 0; shift < 2; shift++) { /* at any address */
        out[0] = out[VALUES + 1] = 12345.0f;
        type->dequantize(row + shift, out + 1, VALUES);
        for (int i = 0; i < VALUES; i++)
            wrong += !same_value(out[i + 1], block_ref_value(type->type, row + shift, i));
        wrong += out[0] != 12345.0f || out[VALUES + 1] != 12345.0f;
    }
    free(row);
    tap_ok(wrong == 0, "%s: every value equals the double-precision oracle's", type->name);
}

static void test_halves(void) {
    int wrong = 0;
    for (uint32_t half = 0; half < 65536; half++) {
        uint8_t bytes[2] = {(uint8_t)half, (uint8_t)(half >> 8)};
        double want = block_ref_half(bytes);
        float got = block_f32_of_f16(half);
        wrong += !same_value(got, want) || (got == 0 && !signbit(got) != !(half >> 15));
    }
    tap_ok(wrong == 0, "all 65536 halves convert exactly, signs of zero included");
}

/* ---- a small file with everything in it ---- */

static const int all_types[] = {0, 1, 30, 2, 3, 8};

static void build_array_keys(gguf_build *f) {
    build_key_array(f, "a.strings", 8, 3);
    build_string(f, "one", 3);
    build_string(f, "", 0);
    build_string(f, "th\0ee", 5);
    build_key_array(f, "a.numbers", 5, 4);
    for (int i = 0; i < 4; i++) build_number(f, (uint64_t)(i - 2), 4);
    build_key_array(f, "a.nested", 9, 2);
    for (int i = 0; i < 2; i++) {
        build_number(f, 8, 4);
        build_number(f, 2, 8);
        build_string(f, "in", 2);
        build_string(f, "ner", 3);
    }
    build_key_array(f, "a.empty", 12, 0);
}

static void build_sample(gguf_build *f, uint32_t version) {
    static const int sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    char name[32];
    build_begin(f, version, BASE_COUNT(all_types), 11 + 5 + 1);
    for (uint32_t type = 0; type < 13; type++) {
        snprintf(name, sizeof name, "k.%s", gguf_type_name(type));
        if (sizes[type]) build_key(f, name, type, type == 7 ? 1 : 0x123456789abcdef0u, sizes[type]);
    }
    build_key_string(f, "k.string", "a string");
    build_array_keys(f);
    build_key_u32(f, "general.alignment", 16);
    for (size_t i = 0; i < BASE_COUNT(all_types); i++) {
        const block_type *type = block_find(all_types[i]);
        uint64_t shape[4] = {64, 2, 1, 3};
        snprintf(name, sizeof name, "t.%s", type->name);
        build_tensor(f, name, (uint32_t)all_types[i], 4, shape, 6 * block_row_bytes(type, 64), 16);
    }
    build_align(f, 16);
    for (size_t i = 0; i < BASE_COUNT(all_types); i++) {
        for (size_t j = 6 * block_row_bytes(block_find(all_types[i]), 64); j; j--)
            build_number(f, random_u32() & 255, 1);
        build_align(f, 16);
    }
}

/* Reads all there is through every getter; returns a sum so that nothing is optimised away. */
static unsigned read_everything(base *b, const gguf *g) {
    unsigned sum = 0;
    float values[64];
    for (size_t i = 0; i < g->key_count; i++) {
        char name[64];
        uint32_t number = 0;
        float real = 0;
        bool truth = false, found;
        const char *text = "";
        size_t bytes = 0;
        gguf_list list = {0, 0, NULL};
        if (g->keys[i].name_bytes >= sizeof name) continue;
        snprintf(name, sizeof name, "%.*s", (int)g->keys[i].name_bytes, g->keys[i].name);
        gguf_u32(b, g, name, &found, &number);
        gguf_f32(b, g, name, &found, &real);
        gguf_bool(b, g, name, &found, &truth);
        if (!gguf_string(b, g, name, &found, &text, &bytes) && bytes)
            sum += (unsigned char)text[0] + (unsigned char)text[bytes - 1];
        if (!gguf_array(b, g, name, &found, GGUF_STRING, &list))
            for (uint64_t j = 0; j < list.count; j++) {
                text = gguf_next_string(&list, &bytes);
                if (bytes) sum += (unsigned char)text[bytes - 1];
            }
        list.count = 0;
        if (!gguf_array(b, g, name, &found, GGUF_I32, &list))
            for (uint64_t j = 0; j < list.count; j++) sum += gguf_next_u32(&list);
        sum += number + (real > 0) + truth;
    }
    for (size_t i = 0; i < g->tensor_count; i++) {
        const gguf_tensor *t = &g->tensors[i];
        const block_type *type = block_find(t->type);
        const uint8_t *data = (const uint8_t *)t->data;
        type->dequantize(data, values, type->values);
        type->dequantize(data + t->bytes - (size_t)type->bytes, values, type->values);
        sum += values[0] > 0;
    }
    return sum;
}

/* Parses a copy that ends where its memory ends; true when that gave a sound answer. */
static bool parse_copy(base *b, const uint8_t *data, size_t size, cairn_status *status) {
    static volatile unsigned sink = 0;
    uint8_t *copy = (uint8_t *)malloc(size ? size : 1);
    gguf g;
    bool sound;
    memcpy(copy, data, size);
    b->error[0] = '\0';
    *status = gguf_parse(b, "fuzz.gguf", copy, size, &g);
    if (*status == CAIRN_OK) sink = sink + read_everything(b, &g);
    sound = *status == CAIRN_OK ||
            (!g.keys && !g.tensors && strstr(b->error, "fuzz.gguf: ") != NULL &&
             (*status == CAIRN_BAD_FILE || *status == CAIRN_UNSUPPORTED));
    if (*status == CAIRN_OK) gguf_close(b, &g);
    free(copy);
    return sound && live_blocks == 0;
}

/* ---- good files ---- */

static void test_values(base *b, const gguf *g) {
    uint32_t number = 0;
    float real = 0;
    bool truth = false, found = true;
    const char *text = "";
    size_t bytes = 0;
    gguf_list list = {0, 0, NULL};
    tap_ok(!gguf_u32(b, g, "k.u8", NULL, &number) && number == 0xf0, "a u8 as u32");
    tap_ok(gguf_u32(b, g, "k.i32", &found, &number) == CAIRN_BAD_FILE && found &&
           strstr(b->error, "'k.i32'") && number == 0xf0, "a negative i32 is refused by name");
    tap_ok(gguf_u32(b, g, "k.u64", NULL, &number) && number == 0xf0, "a large u64 is refused");
    tap_ok(!gguf_bool(b, g, "k.bool", NULL, &truth) && truth, "a bool");
    tap_ok(!gguf_f32(b, g, "k.f32", NULL, &real) && same_value(real, block_ref_single(0x9abcdef0)),
           "an f32");
    tap_ok(!gguf_string(b, g, "k.string", NULL, &text, &bytes) && bytes == 8 &&
           !memcmp(text, "a string", 8), "a string");
    tap_ok(!gguf_u32(b, g, "k.none", &found, &number) && !found && number == 0xf0,
           "an absent key leaves the default");
    tap_ok(gguf_u32(b, g, "k.none", NULL, &number) == CAIRN_BAD_FILE &&
           strstr(b->error, "'k.none'"), "a missing key is named");
    tap_ok(gguf_string(b, g, "k.u8", NULL, &text, &bytes) == CAIRN_BAD_FILE &&
           strstr(b->error, "it is u8"), "a key of another kind says both kinds");
    tap_ok(!gguf_array(b, g, "a.strings", NULL, GGUF_STRING, &list) && list.count == 3, "an array");
    text = gguf_next_string(&list, &bytes);
    tap_ok(bytes == 3 && !memcmp(text, "one", 3), "its first string");
    gguf_next_string(&list, &bytes);
    text = gguf_next_string(&list, &bytes);
    tap_ok(bytes == 5 && !memcmp(text, "th\0ee", 5), "a string with a NUL inside");
    tap_ok(!gguf_array(b, g, "a.numbers", NULL, GGUF_I32, &list) && list.count == 4 &&
           (int32_t)gguf_next_u32(&list) == -2, "an array of numbers");
    tap_ok(gguf_array(b, g, "a.numbers", NULL, GGUF_STRING, &list) == CAIRN_BAD_FILE,
           "an array of another kind is refused");
}

static void test_good(base *b, uint32_t version) {
    gguf_build f = {0};
    gguf g;
    bool placed = true;
    build_sample(&f, version);
    if (tap_ok(!gguf_parse(b, "good.gguf", f.data, f.size, &g), "version %u is read", version)) {
        test_values(b, &g);
        for (size_t i = 0; i < BASE_COUNT(all_types); i++) {
            char name[32];
            const gguf_tensor *t;
            snprintf(name, sizeof name, "t.%s", block_name(all_types[i]));
            t = gguf_tensor_find(&g, name);
            placed = placed && t && t->type == all_types[i] && t->ndim == 4 && t->shape[0] == 64 &&
                     t->shape[1] == 2 && t->shape[3] == 3 && (size_t)t->data % 16 == 0 &&
                     t->bytes == 6 * block_row_bytes(block_find(all_types[i]), 64);
        }
        tap_ok(placed, "every tensor is found with its type, shape and bytes");
        tap_ok(!gguf_tensor_find(&g, "t.") && !gguf_tensor_find(&g, "zz"), "others are not");
        gguf_close(b, &g);
    }
    tap_ok(live_blocks == 0, "nothing leaks");
    free(f.data);
}

/* Of a scanned file tensors come as they do from a copy, until it is cut. */
static void test_fetch(base *b, const char *path, const gguf_build *f, gguf *g) {
    int bad = 0;
    gguf whole;
    if (!tap_ok(!gguf_copy(b, NULL, path, &whole) && whole.tensor_count == g->tensor_count &&
                whole.key_count == g->key_count, "as the whole file says")) return;
    for (size_t i = 0; i < g->tensor_count; i++) {
        const gguf_tensor *t = &g->tensors[i], *same = gguf_tensor_find(&whole, t->name);
        void *buffer = malloc(t->bytes);
        const uint8_t *data = gguf_fetch(g, t->at, t->bytes, buffer);
        bad += !same || t->data || t->at != same->at || t->bytes != same->bytes || !data ||
               memcmp(data, same->data, t->bytes);
        free(buffer);
    }
    tap_ok(!bad, "each tensor is fetched, %d differ", bad);
    gguf_close(b, &whole);
    {
        const gguf_tensor *last = &g->tensors[0];
        uint8_t buffer[8];
        bool said;
        for (size_t i = 0; i < g->tensor_count; i++)
            if (g->tensors[i].at > last->at) last = &g->tensors[i];
        said = !truncate(path, (off_t)last->at) && !gguf_fetch(g, last->at, sizeof buffer, buffer) &&
               gguf_lost(b, g) == CAIRN_FILE_ERROR && strstr(b->error, "cut short");
        gguf_close(b, g); /* Windows writes to no file that is open */
        tap_ok(said && !os_write_file(b, path, f->data, f->size), "a file that was cut: %s", b->error);
    }
}

static void test_open(base *b) {
    const char *path = "build/gguf_test.gguf";
    gguf_build f = {0};
    gguf g;
    build_sample(&f, 3);
    os_make_path("build");
    if (os_write_file(b, path, f.data, f.size)) {
        tap_ok(false, "%s", b->error);
    } else {
        tap_ok(!gguf_open(b, path, &g) && g.tensor_count == BASE_COUNT(all_types), "a file maps");
        gguf_close(b, &g);
    }
    tap_ok(!gguf_scan(b, NULL, path, &g) && g.held < f.size && g.size == f.size, "a header alone is read");
    test_fetch(b, path, &f, &g);
    gguf_close(b, &g);
    tap_ok(gguf_open(b, "build/no.gguf", &g) == CAIRN_FILE_NOT_FOUND, "a missing file");
    tap_ok(!os_write_file(b, path, "", 0) && gguf_open(b, path, &g) == CAIRN_BAD_FILE &&
           strstr(b->error, "empty"), "an empty file");
    remove(path);
    free(f.data);
    tap_ok(live_blocks == 0, "nothing leaks");
}

static os_atomic reads, fails_at; /* the read that is refused; 0: none */
static int64_t (*real_read_at)(int64_t file, void *data, size_t bytes, uint64_t at);

static int64_t counted_read_at(int64_t file, void *data, size_t bytes, uint64_t at) {
    return os_atomic_add(&reads, 1) + 1 == os_atomic_load(&fails_at) ? -EIO : real_read_at(file, data, bytes, at);
}

/* Nine parts and a bit, copied by one thread and by three: the same bytes; whichever read fails, so does the whole. */
static void test_large(base *b) {
    enum { WORDS = (9 << 20) + 13 };
    const char *path = "build/gguf_large.gguf";
    const uint64_t shape[4] = {WORDS, 1, 1, 1};
    uint32_t *words = (uint32_t *)malloc(WORDS * 4);
    gguf_build f = {0};
    pool *three = NULL;
    build_begin(&f, 3, 1, 1);
    build_key_u32(&f, "general.alignment", 32);
    build_tensor(&f, "large", BLOCK_F32, 1, shape, WORDS * 4, 32);
    build_align(&f, 32);
    for (int i = 0; i < WORDS; i++) words[i] = (uint32_t)i * 2654435761u;
    build_bytes(&f, words, WORDS * 4);
    tap_ok(!os_write_file(b, path, f.data, f.size) && !pool_open(b, 3, false, &three), "a file of %d MiB",
           (int)(f.size >> 20));
    real_read_at = os_calls.read_at;
    os_calls.read_at = counted_read_at;
    for (int threads = 1; threads <= 3; threads += 2) {
        const long before = live_blocks;
        int all, wrong = 0;
        gguf g;
        os_atomic_store(&reads, 0), os_atomic_store(&fails_at, 0);
        tap_ok(!gguf_copy(b, threads > 1 ? three : NULL, path, &g) &&
               !memcmp(gguf_tensor_find(&g, "large")->data, words, WORDS * 4), "its bytes, by %d threads", threads);
        gguf_close(b, &g);
        all = os_atomic_load(&reads);
        for (int n = 1; n <= all; n += 1 + all / 20) {
            os_atomic_store(&reads, 0), os_atomic_store(&fails_at, n);
            wrong += gguf_copy(b, threads > 1 ? three : NULL, path, &g) != CAIRN_FILE_ERROR ||
                       !strstr(b->error, "gguf_large.gguf: cannot read") || live_blocks != before;
        }
        tap_ok(!wrong && all >= 10, "one of %d reads fails: %s", all, b->error);
    }
    os_calls.read_at = real_read_at;
    pool_close(three);
    remove(path);
    free(words), free(f.data);
}

/* ---- bad files, one fault each ---- */

typedef struct bad_tensor {
    const char *what, *error;
    uint32_t type, ndim;
    uint64_t shape[4], offset;
    cairn_status status;
} bad_tensor;

static const bad_tensor bad_tensors[] = {
    {"a zero dimension", "zero", 0, 2, {4, 0}, 0, CAIRN_BAD_FILE},
    {"a negative dimension", "too large", 0, 2, {4, UINT64_MAX}, 0, CAIRN_BAD_FILE},
    {"no dimensions", "1 to 4", 0, 0, {0}, 0, CAIRN_BAD_FILE},
    {"five dimensions", "1 to 4", 0, 5, {1, 1, 1, 1}, 0, CAIRN_BAD_FILE},
    {"a product over 2^64", "larger than the file", 0, 4,
     {1u << 31, 1u << 31, 1u << 31, 1u << 31}, 0, CAIRN_BAD_FILE},
    {"a product that wraps to 4", "larger than the file", 0, 2,
     {0x4000000000000001u, 4}, 0, CAIRN_BAD_FILE},
    {"a broken block", "multiple", 8, 2, {33, 2}, 0, CAIRN_BAD_FILE},
    {"an unsupported type", "Q3_K (11)", 11, 1, {256}, 0, CAIRN_UNSUPPORTED},
    {"a type beyond 2^31", "unknown", 0x80000000u, 1, {4}, 0, CAIRN_UNSUPPORTED},
    {"a misaligned offset", "not a multiple of 32", 0, 1, {4}, 8, CAIRN_BAD_FILE},
    {"an offset outside", "past the end", 0, 1, {4}, 1u << 20, CAIRN_BAD_FILE},
    {"an offset that wraps", "past the end", 0, 1, {4}, UINT64_MAX - 31, CAIRN_BAD_FILE},
    {"data longer than the rest", "past the end", 0, 1, {9}, 0, CAIRN_BAD_FILE},
};

static void test_bad_tensor(base *b, const bad_tensor *bad) {
    gguf_build f = {0};
    cairn_status status;
    build_begin(&f, 3, 1, 0);
    build_string(&f, "wei\x01ght", 7);
    build_number(&f, bad->ndim, 4);
    for (uint32_t i = 0; i < bad->ndim; i++) build_number(&f, i < 4 ? bad->shape[i] : 1, 8);
    build_number(&f, bad->type, 4);
    build_number(&f, bad->offset, 8);
    build_align(&f, 32);
    for (int i = 0; i < 4; i++) build_number(&f, 0, 8);
    tap_ok(parse_copy(b, f.data, f.size, &status) && status == bad->status &&
           strstr(b->error, "'wei?ght'") && strstr(b->error, bad->error) &&
           strstr(b->error, "byte "), "%s: %s", bad->what, b->error);
    free(f.data);
}

static void expect_bad(base *b, gguf_build *f, cairn_status want, const char *text,
                       const char *what) {
    cairn_status status;
    tap_ok(parse_copy(b, f->data, f->size, &status) && status == want && strstr(b->error, text),
           "%s: %s", what, b->error);
    free(f->data);
    memset(f, 0, sizeof *f);
}

static void test_bad_keys(base *b) {
    gguf_build f = {0};
    build_begin(&f, 3, 0, 2);
    build_key_u32(&f, "x.twice", 1);
    build_key_u32(&f, "x.twice", 2);
    expect_bad(b, &f, CAIRN_BAD_FILE, "'x.twice': the key stands twice", "a key twice");
    build_begin(&f, 3, 0, 1);
    build_key(&f, "general.alignment", 4, 48, 4);
    expect_bad(b, &f, CAIRN_BAD_FILE, "power of two", "alignment 48");
    build_begin(&f, 3, 0, 1);
    build_key_array(&f, "x.long", 8, UINT64_MAX);
    expect_bad(b, &f, CAIRN_BAD_FILE, "'x.long'", "2^64 strings");
    build_begin(&f, 3, 0, 1);
    build_key_array(&f, "x.wide", 10, UINT64_C(1) << 61);
    expect_bad(b, &f, CAIRN_BAD_FILE, "'x.wide'", "2^61 numbers of 8 bytes");
    build_begin(&f, 3, 0, 1);
    build_key_array(&f, "x.deep", 9, 1);
    for (int i = 0; i < 100; i++) { build_number(&f, 9, 4); build_number(&f, 1, 8); }
    expect_bad(b, &f, CAIRN_BAD_FILE, "nested too deep", "a hundred nested arrays");
    build_begin(&f, 3, 0, 1);
    build_key(&f, "x.bool", 7, 2, 1);
    expect_bad(b, &f, CAIRN_BAD_FILE, "'x.bool'", "a bool of 2");
    build_begin(&f, 3, 0, 1);
    build_key(&f, "x.type", 13, 0, 8);
    expect_bad(b, &f, CAIRN_BAD_FILE, "unknown type", "a type of 13");
}

static void test_bad_header(base *b) {
    gguf_build f = {0};
    build_begin(&f, 1, 0, 0);
    expect_bad(b, &f, CAIRN_UNSUPPORTED, "version 1", "version 1");
    build_begin(&f, 0x03000000, 0, 0);
    expect_bad(b, &f, CAIRN_UNSUPPORTED, "big-endian", "big-endian");
    build_bytes(&f, "GGML\3\0\0\0................", 24);
    expect_bad(b, &f, CAIRN_BAD_FILE, "not a GGUF file", "another file");
    build_begin(&f, 3, UINT64_MAX, 0);
    expect_bad(b, &f, CAIRN_BAD_FILE, "byte 8,", "2^64 tensors");
    build_begin(&f, 3, 0, UINT64_C(1) << 59);
    expect_bad(b, &f, CAIRN_BAD_FILE, "byte 16,", "2^59 keys");
    build_begin(&f, 3, 2, 0);
    for (int i = 0; i < 2; i++) {
        uint64_t four = 4;
        build_tensor(&f, "w", 0, 1, &four, 16, 32);
    }
    build_align(&f, 32);
    for (int i = 0; i < 12; i++) build_number(&f, 0, 8);
    expect_bad(b, &f, CAIRN_BAD_FILE, "'w': the tensor stands twice", "a tensor twice");
}

/* ---- damage ---- */

static void test_damage(base *b) {
    enum { MUTATIONS = 60000 };
    gguf_build f = {0};
    uint8_t *copy;
    size_t header, opened = 0, unsound = 0;
    cairn_status status;
    gguf g;
    build_sample(&f, 3);
    gguf_parse(b, "whole.gguf", f.data, f.size, &g);
    header = (size_t)((const uint8_t *)g.tensors[0].data - f.data);
    for (size_t i = 0; i < g.tensor_count; i++)
        if ((size_t)((const uint8_t *)g.tensors[i].data - f.data) < header)
            header = (size_t)((const uint8_t *)g.tensors[i].data - f.data);
    gguf_close(b, &g);
    copy = (uint8_t *)malloc(f.size);
    for (size_t size = 0; size < f.size; size++) {
        unsound += !parse_copy(b, f.data, size, &status);
        opened += status == CAIRN_OK && f.size - size > 15; /* less is padding at the end */
    }
    tap_ok(!unsound && !opened, "each of %d truncations is refused", (int)f.size);
    for (size_t bit = 0; bit < 8 * header; bit++) {
        memcpy(copy, f.data, f.size);
        copy[bit / 8] ^= (uint8_t)(1 << bit % 8);
        unsound += !parse_copy(b, copy, f.size, &status);
    }
    tap_ok(!unsound, "each of %d flipped bits of the header is refused or harmless",
           (int)(8 * header));
    for (int i = 0; i < MUTATIONS; i++) {
        memcpy(copy, f.data, f.size);
        for (uint32_t n = 1 + random_u32() % 4; n; n--) {
            size_t at = random_u32() % header;
            static const uint8_t interesting[] = {0, 1, 0x7f, 0x80, 0xff};
            uint32_t run = random_u32() % 8 == 0 ? 8 : 1;
            uint8_t value = (uint8_t)random_u32();
            if (random_u32() % 2) value = interesting[random_u32() % 5];
            for (uint32_t j = 0; j < run && at + j < header; j++) copy[at + j] = value;
        }
        unsound += !parse_copy(b, copy, f.size - random_u32() % 2 * (random_u32() % 64), &status);
    }
    tap_ok(!unsound, "%d random mutations are refused or harmless", MUTATIONS);
    free(copy);
    free(f.data);
}

static void test_memory_faults(base *b) {
    gguf_build f = {0};
    gguf g;
    int n = 0;
    bool clean = true;
    cairn_status status;
    build_sample(&f, 2);
    do {
        allocations_left = n++;
        status = gguf_parse(b, "memory.gguf", f.data, f.size, &g);
        allocations_left = -1;
        if (status) clean = clean && status == CAIRN_OUT_OF_MEMORY && live_blocks == 0;
    } while (status);
    gguf_close(b, &g);
    tap_ok(clean && n > 2 && live_blocks == 0, "each of %d allocations may fail", n - 1);
    free(f.data);
}

int main(void) {
    cairn_allocator allocator = {NULL, test_realloc};
    base b;
    base_init(&b, &allocator, NULL, NULL, CAIRN_LOG_INFO);
    gguf_first_bytes = 64; /* a header is read in many steps */
    random_state = random_seed() | 1;
    test_halves();
    for (size_t i = 0; i < BASE_COUNT(all_types); i++) test_block(block_find(all_types[i]));
    tap_ok(!block_find(11) && !strcmp(block_name(11), "Q3_K"), "Q3_K is known by name only");
    test_good(&b, 2);
    test_good(&b, 3);
    test_open(&b);
    test_large(&b);
    for (size_t i = 0; i < BASE_COUNT(bad_tensors); i++) test_bad_tensor(&b, &bad_tensors[i]);
    test_bad_keys(&b);
    test_bad_header(&b);
    test_damage(&b);
    test_memory_faults(&b);
    return tap_done();
}
