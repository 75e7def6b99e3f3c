/* base: the status table, the failure path, memory through the caller's allocator, growing text. */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "tap.h"

/* An allocator that counts live bytes, checks the size given on free, and fails on demand. */
typedef struct meter { size_t live; int left; bool wrong_size; } meter;

static void *meter_realloc(void *user, void *memory, size_t old_bytes, size_t new_bytes) {
    meter *m = (meter *)user;
    size_t *block = memory ? (size_t *)memory - 2 : NULL;
    if (new_bytes && m->left == 0) return NULL;
    if (new_bytes && m->left > 0) m->left--;
    if (block && block[0] != old_bytes) m->wrong_size = true;
    m->live += new_bytes - old_bytes;
    if (!new_bytes) { free(block); return NULL; }
    block = (size_t *)realloc(block, new_bytes + 2 * sizeof *block);
    block[0] = new_bytes;
    return block + 2;
}

static void test_status_table(void) {
    int i;
    bool filled = true;
    for (i = 0; i < CAIRN_STATUS_COUNT; i++) {
        cairn_status s = (cairn_status)i;
        if (strncmp(cairn_status_name(s), "CAIRN_", 6) || !*cairn_status_meaning(s)) filled = false;
        if (i && !*cairn_status_hint(s)) filled = false;
    }
    tap_ok(filled, "every status has a name, a meaning and a hint");
    tap_ok(!strcmp(cairn_status_name(CAIRN_POOL_FULL), "CAIRN_POOL_FULL"), "codes are rows");
    tap_ok(!strcmp(cairn_status_name((cairn_status)999), "CAIRN_UNKNOWN"), "999 is no status");
    tap_ok(cairn_version() == CAIRN_VERSION, "the implementation is of the header's version");
}

static void test_failure(base *b) {
    char big[2 * BASE_ERROR_BYTES];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    tap_ok(base_fail(b, CAIRN_POOL_FULL, "want %d pages", 7) == CAIRN_POOL_FULL &&
           strstr(b->error, "want 7 pages") && strstr(b->error, "CAIRN_POOL_FULL") &&
           strstr(b->error, cairn_status_hint(CAIRN_POOL_FULL)), "a failure says what and what to do");
    base_fail(b, CAIRN_BAD_FILE, "%s", big);
    tap_ok(strlen(b->error) == BASE_ERROR_BYTES - 1, "a long message is cut, not overrun");
    base_fail(b, CAIRN_OK, "a\x1b[2Jb\x7f \xc2\x9b" "31m \xff\xc3 \xe2\x80\xae" "\tcaf\xc3\xa9\n");
    tap_ok(!strcmp(b->error, "a\\x1b[2Jb\\x7f \\xc2\\x9b31m \\xff\\xc3 \\xe2\\x80\\xae\tcaf\xc3\xa9\n"),
           "what would command a terminal is escaped: %.40s", b->error);
    base_fail(b, CAIRN_OK, "%s: the architecture is '%s'", "a\nb.gguf", "x\ncairn: all is well");
    tap_ok(!strcmp(b->error, "a\\x0ab.gguf: the architecture is 'x\\x0acairn: all is well'"),
           "and a line break that no message has: %s", b->error);
    base_fail(b, CAIRN_OK, "%s\n  with %s", "a line", "another");
    tap_ok(!strcmp(b->error, "a line\n  with another"), "those of the message's own stay");
    memset(big, '\x1b', sizeof big - 1);
    base_fail(b, CAIRN_BAD_FILE, "%s", big);
    tap_ok(strlen(b->error) < BASE_ERROR_BYTES && strlen(b->error) > BASE_ERROR_BYTES - 8,
           "a long one of such bytes is cut, too");
}

static void test_text(base *b, meter *m) {
    base_text text = {0};
    int i;
    bool good = true;
    for (i = 0; i < 100; i++) good = good && base_text_print(b, &text, "%d,", i);
    tap_ok(good && text.size == 290 && strlen(text.data) == 290, "text grows and stays terminated");
    m->left = 0;
    while (base_text_add(b, &text, "0123456789abcdef", 16)) good = good && text.size < 4096;
    tap_ok(good && text.data[text.size] == '\0', "text is whole after memory ran out");
    m->left = -1;
    tap_ok(!base_text_reserve(b, &text, SIZE_MAX - 8), "an impossible size is refused");
    base_text_free(b, &text);
    tap_ok(m->live == 0 && !m->wrong_size, "all is given back with its size");
}

/* What printf writes in a host's locale, and what is read whatever the locale. */
static void test_numbers(void) {
    static const char *const pairs[][2] = {
        {"-1,5e-07", "-1.5e-07"}, {"1\xd9\xab""5", "1.5"}, {"0.25", "0.25"}, {"12", "12"}, {"1e+20", "1e+20"},
        {"nan", "nan"}, {"-inf", "-inf"}, {"-0", "-0"}};
    static const char *const read[] = {"0", "-0.5", "15e-1", "1.25E+2", "0e999", "123456789012345678",
                                       "1234567890123456789012", "-1e300", "0.1e1", "2.50"};
    int wrong = 0;
    for (size_t i = 0; i < BASE_COUNT(pairs); i++) {
        char text[32];
        snprintf(text, sizeof text, "%s", pairs[i][0]);
        base_decimal_point(text);
        if (strcmp(text, pairs[i][1])) wrong++, tap_note("%s: %s", pairs[i][0], text);
    }
    for (size_t i = 0; i < BASE_COUNT(read); i++) {
        const double got = jdoc_decimal(read[i], read[i] + strlen(read[i])), want = strtod(read[i], NULL);
        if (!(fabs(got - want) <= fabs(want) * 1e-15)) wrong++, tap_note("%s: %g", read[i], got);
    }
    tap_ok(!wrong, "numbers have one decimal point: %d wrong", wrong);
}

static void test_memory(base *b, meter *m) {
    int *zero = (int *)base_new(b, 16, sizeof *zero);
    tap_ok(zero && zero[0] == 0 && zero[15] == 0, "new memory is zero");
    base_delete(b, zero, 16, sizeof *zero);
    tap_ok(base_new(b, SIZE_MAX / 2, 4) == NULL, "a product that overflows is refused");
    tap_ok(m->live == 0 && !m->wrong_size, "nothing leaks");
}

int main(void) {
    meter m = {0, -1, false};
    cairn_allocator allocator = {NULL, meter_realloc};
    base b;
    allocator.user = &m;
    base_init(&b, &allocator, NULL, NULL, CAIRN_LOG_INFO);
    test_status_table();
    test_failure(&b);
    test_text(&b, &m);
    test_numbers();
    test_memory(&b, &m);
    return tap_done();
}
