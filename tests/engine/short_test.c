/* short: memory that ends inside a call. Each of the calls below is made with no allocation allowed, then
 * with one, two, and so on until all that it makes succeed: it says OUT_OF_MEMORY, or does its work all
 * the same; what it was to change stands; made again it works. What is refused before memory matters is
 * told as ever. One thread, no worker. */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "small_model.h"
#include "short_memory.h"
#include "tap.h"

enum { MOST = 400, SAID = 6 };
static char path[64];
static cairn_runtime *rt;
static cairn_model *m;
static cairn_session *s;
static const int32_t ids[40] = {2, 3, 4, 5, 6, 7, 8, 9, 2, 4, 6, 8, 3, 5, 7, 9, 2, 5, 8, 3, 6, 9, 4, 7,
                                2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9};

static bool open_model(void) {
    cairn_config c;
    char error[512] = "";
    cairn_config_default(&c);
    c.backend = CAIRN_BACKEND_CPU, c.threads = 1, c.max_batch = 4, c.page_size = PAGE;
    c.prefill_chunk = 32, c.log = CAIRN_LOG_OFF, c.memory.prefix_cache = true;
    c.allocator.realloc = test_realloc;
    c.chat.user_count = c.chat.assistant_count = 2;
    snprintf(c.chat.user[0], sizeof c.chat.user[0], "(");
    snprintf(c.chat.user[1], sizeof c.chat.user[1], ")");
    snprintf(c.chat.assistant[0], sizeof c.chat.assistant[0], "[");
    snprintf(c.chat.assistant[1], sizeof c.chat.assistant[1], "]");
    if (!tap_ok(!cairn_open(&c, &rt, error, sizeof error) && !cairn_load_model(rt, path, &m) &&
                !cairn_session_open(m, &s), "a model: %s", rt ? cairn_last_error(rt) : error))
        return false;
    m->tokenizer.adds_bos = true, m->tokenizer.bos = 1;
    return true;
}

/* ---- the calls ------------------------------------------------------------------------------------ */

static cairn_status call_session(void) {
    cairn_session *one = NULL;
    const cairn_status status = cairn_session_open(m, &one);
    cairn_session_close(one);
    return status || one ? status : CAIRN_DEVICE_ERROR;
}

static cairn_status call_append(void) { return cairn_append_ids(s, ids, 40); }
static cairn_status call_text(void) { return cairn_append(s, "abcabc"); }

static const char *const stops[] = {"zzzz", "yyyy"};
static const cairn_logit_bias bias[] = {{3, -1.0f}, {7, 1.0f}};
static cairn_generate_options options_of(void) {
    return (cairn_generate_options){.struct_size = sizeof(cairn_generate_options), .max_tokens = SAID,
                                    .stop = stops, .stop_count = 2, .logit_bias = bias,
                                    .logit_bias_count = 2, .logprobs = 3};
}

static cairn_status call_generate(void) {
    const cairn_generate_options o = options_of();
    return cairn_generate_with(s, "abc", &o, NULL, NULL);
}

static cairn_status call_pieces(void) {
    const cairn_generate_options o = options_of();
    cairn_piece piece = {.struct_size = sizeof piece};
    cairn_status status = cairn_generate_begin(s, "abc", &o);
    while (!status && !piece.stop) status = cairn_generate_next(s, &piece);
    return status;
}

static cairn_status call_fork(void) {
    cairn_session *fork = NULL;
    cairn_status status = cairn_append_ids(s, ids, 40);
    if (!status) status = cairn_session_fork(s, &fork);
    cairn_session_close(fork);
    return status;
}

static const cairn_message messages[] = {{"user", "abc"}, {"assistant", "de"}, {"user", "f"}};

static cairn_status call_chat(void) { return cairn_append_chat(s, messages, 3, true); }
static cairn_status call_chat_ids(void) {
    int count;
    return cairn_chat_ids(m, messages, 3, true, true, NULL, 0, &count);
}
static cairn_status call_chat_format(void) {
    size_t bytes;
    return cairn_chat_format(m, messages, 3, true, true, NULL, 0, &bytes);
}

static cairn_status call_profile(void) {
    const cairn_profile_options o = {.struct_size = sizeof o};
    const cairn_status status = cairn_profile_start(m, &o);
    if (status && m->scratch->profile) return CAIRN_DEVICE_ERROR; /* half a one is none */
    cairn_profile_stop(m);
    return status;
}

static cairn_status call_batch(void) {
    int32_t out[2 * 20], made[2], total[2];
    const int32_t lengths[2] = {8, 5};
    cairn_batch_args a = {.struct_size = sizeof a, .rows = 2, .stride = 20, .capacity = 20, .ids = ids,
                          .lengths = lengths, .output = out, .generated = made, .total = total};
    return cairn_generate_batch(m, &a);
}

static cairn_status call_eval(void) {
    cairn_eval_args a = {.struct_size = sizeof a, .ids = ids, .count = 40};
    double mean;
    return cairn_eval(m, &a, &mean);
}

/* What a prompt finds in the prefix cache, half of what another left, is taken, or computed anew where
 * memory is short. */
static int32_t mine[40];
static cairn_status call_reuse(void) {
    int count = 0;
    cairn_status status = cairn_append_ids(s, mine, 40);
    if (!status) cairn_session_ids(s, &count);
    return status || count == 40 ? status : CAIRN_DEVICE_ERROR;
}

static cairn_status fill_prefixes(int number) {
    cairn_session *other = NULL;
    cairn_status status = cairn_session_open(m, &other);
    memcpy(mine, ids, sizeof mine);
    mine[0] = 2 + number % 90; /* one that no run before had */
    if (!status) status = cairn_append_ids(other, mine, 40);
    cairn_session_close(other);
    mine[20]++;
    return status;
}

static const struct call { const char *name; cairn_status (*make)(void); bool keeps; } calls[] = {
    {"session_open", call_session, true}, {"append_ids", call_append, false}, {"append", call_text, false},
    {"generate", call_generate, false}, {"begin and next", call_pieces, false}, {"fork", call_fork, false},
    {"append_chat", call_chat, false}, {"chat_ids", call_chat_ids, true},
    {"chat_format", call_chat_format, true}, {"profile_start", call_profile, true},
    {"generate_batch", call_batch, true}, {"eval", call_eval, true},
    {"a prompt in the prefix cache", call_reuse, false}};

/* Every allocation of a call is the last one that succeeds, once. */
static void test_call(const struct call *c) {
    int refused = 0, wrong = 0, tries = 0;
    bool all = false;
    for (; tries < MOST && !all; tries++) {
        cairn_status status;
        int held;
        wrong += cairn_session_reset(s) != 0;
        if (c->make == call_reuse) wrong += fill_prefixes(tries) != 0;
        base_text_free(&rt->base, &s->logprobs), base_text_free(&rt->base, &s->text); /* as in a first call */
        allocations_left = tries;
        status = c->make();
        all = allocations_left > 0;
        allocations_left = -1;
        refused += status != 0;
        wrong += status && (status != CAIRN_OUT_OF_MEMORY || !strstr(cairn_last_error(rt), "cannot allocate"));
        cairn_session_ids(s, &held);
        if (c->keeps) wrong += held != 0;
        if (status) wrong += c->make() != 0; /* made again it works */
    }
    tap_ok(all && !wrong, "%s: %d times memory ended, %d refused, %d wrong", c->name, tries - 1, refused,
           wrong);
}

/* ---- a poll ----------------------------------------------------------------------------------------- */

/* A poll that finds no memory takes nothing: the next one gives what it would have given. */
static void test_poll(void) {
    const cairn_generate_options o = options_of();
    char first[256] = "", text[256] = "";
    int count = 0, logprobs = 0, refused = 0, tries = 0;
    bool same = true;
    for (bool all = false; tries < MOST && !all && same; tries++) {
        cairn_piece piece = {.struct_size = sizeof piece};
        int32_t pending = 1;
        bool late = false;
        text[0] = '\0', logprobs = 0;
        same = !cairn_session_reset(s) && !cairn_generate_submit(s, "abc", &o);
        while (pending && same) same = !cairn_step(m, 1000, &pending);
        base_text_free(&rt->base, &s->polled), base_text_free(&rt->base, &s->polled_logprobs);
        while (!piece.stop && same) {
            cairn_status status;
            allocations_left = late ? -1 : tries;
            status = cairn_generate_poll(s, &piece);
            all = all || allocations_left > 0;
            allocations_left = -1;
            late = true;
            refused += status != 0;
            same = !status || (status == CAIRN_OUT_OF_MEMORY && !piece.stop);
            if (status) continue;
            strncat(text, piece.text, piece.bytes);
            logprobs += piece.logprob_ids;
        }
        cairn_session_ids(s, &count);
        if (!*first) snprintf(first, sizeof first, "%s", text);
        same = same && !strcmp(text, first) && logprobs == SAID;
    }
    tap_ok(same && refused && tries < MOST, "a poll: %d refused; then all is said: %s, %d logprobs", refused,
           text, logprobs);
}

/* ---- a model's own landmark ---------------------------------------------------------------------------- */

static void test_own(void) {
    static const float row[HIDDEN] = {1.0f, 2.0f};
    cairn_adapter *own = NULL;
    const long before = live_blocks;
    int refused = 0;
    bool fine = true, all = false;
    m->plan.landmark.values = row;
    for (int tries = 0; tries < MOST && !all && fine; tries++) {
        allocations_left = tries;
        const cairn_status status = adapter_own(m, &own);
        all = allocations_left > 0;
        allocations_left = -1;
        refused += status != 0;
        fine = status ? status == CAIRN_OUT_OF_MEMORY && !own && live_blocks == before : own != NULL;
        if (own) adapter_free(own), own = NULL;
    }
    m->plan.landmark.values = NULL;
    tap_ok(fine && all && refused > 1 && live_blocks == before, "a model's own landmark: %d refused", refused);
}

/* ---- what is refused ---------------------------------------------------------------------------------- */

static void test_sampling(void) {
    const struct { const char *name; cairn_sampling of; } wrong[] = {
        {"temperature", {.temperature = -1.0f}}, {"temperature", {.temperature = NAN}},
        {"top_k", {.top_k = -1}}, {"top_p", {.top_p = 1.5f}}, {"min_p", {.min_p = -0.1f}},
        {"repetition_penalty", {.repetition_penalty = 101.0f}},
        {"order", {.order = (cairn_sampling_order)7}}, {"seed", {.seed = -1}}};
    int told = 0;
    for (size_t i = 0; i < BASE_COUNT(wrong); i++) {
        cairn_generate_options o = options_of();
        char words[64];
        o.sampling = &wrong[i].of;
        snprintf(words, sizeof words, "sampling.%s is out of", wrong[i].name);
        told += cairn_generate_with(s, "abc", &o, NULL, NULL) == CAIRN_INVALID_ARGUMENT &&
                strstr(cairn_last_error(rt), words) != NULL;
    }
    tap_ok(told == (int)BASE_COUNT(wrong), "samplings out of range by their names: %d", told);
}

/* The system gives no thread: there is no runtime, and nothing is left. */
static int no_thread(void *thread, size_t bytes, void (*run)(void *), void *context) {
    (void)thread, (void)bytes, (void)run, (void)context;
    return -EAGAIN;
}

static void test_thread(void) {
    const os_call_table before = os_calls;
    const long blocks = live_blocks;
    cairn_runtime *none = NULL;
    cairn_config c;
    char error[512] = "";
    cairn_status status;
    cairn_config_default(&c);
    c.backend = CAIRN_BACKEND_CPU, c.threads = 1, c.log = CAIRN_LOG_OFF, c.worker.enabled = true;
    c.allocator.realloc = test_realloc;
    os_calls.thread_start = no_thread;
    status = cairn_open(&c, &none, error, sizeof error);
    os_calls = before;
    tap_ok(status == CAIRN_OUT_OF_MEMORY && !none && strstr(error, "no thread for the worker") &&
           live_blocks == blocks, "no thread for a worker: %s", error);
}

int main(void) {
    state = 1;
    snprintf(path, sizeof path, "/tmp/cairn_short_%d.gguf", os_process_id());
    if (tap_ok(write_model(path), "a model's file") && open_model()) {
        for (size_t i = 0; i < BASE_COUNT(calls); i++) test_call(&calls[i]);
        test_poll();
        test_own();
        test_sampling();
    }
    cairn_close(rt);
    tap_ok(!live_blocks, "all memory is given back: %ld blocks", live_blocks);
    test_thread();
    remove(path);
    return tap_done();
}
