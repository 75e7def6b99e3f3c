/* text: the calls between text and ids on a toy model: what is plain and what is special, what a
 * stop string leaves, what a piece covers, and sessions closed inside their callback. */
#define CAIRN_ROOMS_ONLY
#include "../runtime.c"
#include "random.h"
#include "tap.h"
#include "toy_model.h"

static const char *toy_path = "build/toy_text.gguf";

static long live_blocks;
static void *count_realloc(void *user, void *memory, size_t old_bytes, size_t new_bytes) {
    (void)user, (void)old_bytes;
    live_blocks += (new_bytes != 0) - (memory != NULL);
    if (new_bytes) return realloc(memory, new_bytes);
    free(memory);
    return NULL;
}

static cairn_runtime *open_toy(cairn_model **model) {
    cairn_config c;
    char error[1024];
    cairn_runtime *rt = NULL;
    cairn_config_default(&c);
    c.backend = CAIRN_BACKEND_CPU;
    c.threads = 1;
    c.page_size = 16;
    c.prefill_chunk = 16;
    c.max_batch = 2;
    c.allocator.realloc = count_realloc;
    if (cairn_open(&c, &rt, error, sizeof error)) tap_note("open: %s", error);
    else if (engine_load(rt, toy_path, &toy_backend, model)) tap_note("%s", cairn_last_error(rt));
    return rt;
}

/* ---- special and plain ------------------------------------------------------------------------ */

static bool holds(cairn_session *s, int32_t id) {
    int count;
    const int32_t *ids = cairn_session_ids(s, &count);
    for (int i = 0; i < count; i++)
        if (ids[i] == id) return true;
    return false;
}

static void test_special(void) {
    static const char text[] = "ab<end>\0c";
    cairn_model *m = NULL;
    cairn_runtime *rt = open_toy(&m);
    cairn_session *s = NULL;
    cairn_generate_options o;
    int32_t ids[16];
    int count = 0;
    memset(&o, 0, sizeof o);
    o.struct_size = sizeof o, o.max_tokens = 1, o.special = -1;
    tap_ok(!cairn_tokenize_with(m, text, 9, true, ids, 16, &count) && count == 4 &&
           ids[1] == TOY_END, "special text becomes its token");
    tap_ok(!cairn_tokenize_with(m, text, 9, false, ids, 16, &count) && count == 8 && ids[1] == '<',
           "or stays text");
    tap_ok(!cairn_session_open(m, &s) && !cairn_append_with(s, text, 9, false) &&
           !holds(s, TOY_END) && cairn_session_ids(s, &count) && count == 8, "append_with");
    tap_ok(!cairn_session_reset(s) && !cairn_generate_with(s, "a<special>", &o, NULL, NULL) &&
           !holds(s, TOY_SPECIAL), "a prompt with special = -1");
    o.special = 0;
    tap_ok(!cairn_session_reset(s) && !cairn_generate_with(s, "a<special>", &o, NULL, NULL) &&
           holds(s, TOY_SPECIAL), "a prompt with special = 0");
    o.special = 2;
    tap_ok(cairn_generate_with(s, "a", &o, NULL, NULL) == CAIRN_INVALID_ARGUMENT &&
           strstr(cairn_last_error(rt), "special = 2"), "any other value: %s",
           cairn_last_error(rt));
    o.special = -1, o.struct_size = offsetof(cairn_generate_options, special);
    tap_ok(!cairn_session_reset(s) && !cairn_generate_with(s, "a<special>", &o, NULL, NULL) &&
           holds(s, TOY_SPECIAL), "options from before it had the field");
    {
        cairn_message message = {"user", "hi"};
        tap_ok(cairn_append_chat(s, &message, 1, true) == CAIRN_UNSUPPORTED &&
               cairn_chat_ids(m, &message, 1, true, true, ids, 16, &count) == CAIRN_UNSUPPORTED,
               "chat without a template: %s", cairn_last_error(rt));
        message.content = NULL;
        tap_ok(cairn_chat_ids(m, &message, 1, true, true, ids, 16, &count) ==
                   CAIRN_INVALID_ARGUMENT &&
               cairn_append_chat(s, NULL, 1, true) == CAIRN_INVALID_ARGUMENT &&
               cairn_append_chat(s, &message, -1, true) == CAIRN_INVALID_ARGUMENT &&
               cairn_append_chat(NULL, &message, 1, true) == CAIRN_INVALID_ARGUMENT &&
               cairn_chat_ids(m, NULL, 0, true, true, NULL, 0, NULL) == CAIRN_INVALID_ARGUMENT,
               "nothing where something is needed");
    }
    cairn_close(rt);
}

/* An embedding with rows that no token names says ids that no text has. */
static void test_short_vocabulary(void) {
    cairn_model *m = NULL;
    cairn_runtime *rt = open_toy(&m);
    toy_tokens = TOY_VOCAB - 1;
    toy_write("build/toy_short.gguf", NULL);
    toy_tokens = TOY_VOCAB;
    tap_ok(engine_load(rt, "build/toy_short.gguf", &toy_backend, &m) == CAIRN_BAD_FILE &&
           strstr(cairn_last_error(rt), "258 tokens, the embedding 259 rows"),
           "a vocabulary shorter than the embedding: %s", cairn_last_error(rt));
    remove("build/toy_short.gguf");
    cairn_close(rt);
}

/* ---- cancelled while it is read --------------------------------------------------------------- */

static cairn_session *cancel_session;
static void cancel_soon(void *unused) {
    (void)unused;
    os_sleep_us(30000);
    cairn_cancel(cancel_session);
}

static void test_cancel(void) {
    enum { BYTES = 64 << 20 };
    cairn_model *m = NULL;
    cairn_runtime *rt = open_toy(&m);
    char *text = (char *)malloc(BYTES + 1);
    os_thread thread;
    int64_t start = os_now_us();
    cairn_status status;
    memset(text, 'c', BYTES);
    text[BYTES] = '\0';
    cairn_session_open(m, &cancel_session);
    if (!os_thread_start(&thread, 0, cancel_soon, NULL)) {
        tap_skip("no threads");
    } else {
        status = cairn_append(cancel_session, text);
        os_thread_join(&thread);
        tap_ok(status == CAIRN_CANCELLED && os_now_us() - start < 20000000,
               "a text of 64 MiB is cancelled while it is read, after %lld ms: %s",
               (long long)(os_now_us() - start) / 1000, cairn_last_error(rt));
        tap_ok(!cairn_append(cancel_session, "ab"), "the session goes on");
    }
    free(text);
    cairn_close(rt);
}

int main(void) {
    if (!tap_ok(toy_write(toy_path, NULL), "the toy's file")) return tap_done();
    test_special();
    test_short_vocabulary();
    test_cancel();
    remove(toy_path);
    tap_ok(live_blocks == 0, "no block is left");
    return tap_done();
}
