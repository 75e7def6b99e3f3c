/* tokenizer: ids equal to those of Hugging Face tokenizers (tests/golden/tokenizer*.json), text
 * that streams in whole characters, chat templates, and bad vocabularies. The cases for SmolLM2's
 * own vocabulary need its file: CAIRN_MODEL=FILE, or the one that ./build.sh demo fetches. */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "gguf_build.h"
#include "json.h"
#include "random.h"
#include "short_memory.h"
#include "tap.h"

/* ---- golden cases ---- */

static bool same_ids(const tokenizer_ids *got, const json_value *want) {
    size_t i = 0;
    for (const json_value *id = want->first; id; id = id->next, i++)
        if (i >= got->size || got->data[i] != (int32_t)id->number) return false;
    return i == got->size;
}

static void test_cases(base *b, const tokenizer *t, const json_value *cases, const char *name) {
    int wrong = 0, count = 0;
    tokenizer_ids ids = {NULL, 0, 0};
    for (const json_value *c = cases->first; c; c = c->next, count++) {
        const json_value *text = json_get(c, "text");
        ids.size = 0;
        if (tokenizer_encode(b, t, text->text, text->size, true, &ids) ||
            !same_ids(&ids, json_get(c, "ids"))) {
            tap_note("%s: other ids for \"%.60s\"", name, text->text);
            wrong++;
        }
    }
    tokenizer_ids_free(b, &ids);
    tap_ok(count > 200 && !wrong, "%s: ids of %d texts, %d wrong", name, count, wrong);
}

/* Ids that make broken UTF-8: the stream's pieces are whole characters and sum to the text. */
static void test_decode(base *b, const tokenizer *t, const json_value *cases, const char *name) {
    int wrong = 0, count = 0;
    for (const json_value *c = cases->first; c; c = c->next, count++) {
        const json_value *want = json_get(c, "text");
        tokenizer_stream stream = {{0}, 0};
        base_text got = {NULL, 0, 0};
        size_t before = 0;
        bool whole = true;
        for (const json_value *id = json_get(c, "ids")->first; id; id = id->next) {
            if (tokenizer_stream_push(b, t, &stream, (int32_t)id->number, &got)) whole = false;
            whole = whole && (got.size == before || base_utf8_fault(got.data + before,
                                                        got.size - before) == got.size - before);
            before = got.size;
        }
        if (tokenizer_stream_finish(b, &stream, &got)) whole = false;
        wrong += !whole || got.size != want->size ||
                 (want->size && memcmp(got.data, want->text, want->size) != 0);
        base_text_free(b, &got);
    }
    tap_ok(count > 20 && !wrong, "%s: text of %d lists of ids, %d wrong", name, count, wrong);
}

static int read_messages(const json_value *c, tokenizer_message *messages, int most) {
    int count = 0;
    for (const json_value *m = json_get(c, "messages")->first; m && count < most; m = m->next) {
        messages[count].role = json_get(m, "role")->text;
        messages[count].content = json_get(m, "content")->text;
        messages[count++].content_bytes = json_get(m, "content")->size;
    }
    return count;
}

static void test_chat(base *b, const tokenizer *t, const json_value *cases, const char *name) {
    int wrong = 0;
    for (const json_value *c = cases->first; c; c = c->next) {
        tokenizer_message messages[8];
        int count = read_messages(c, messages, 8);
        base_text got = {NULL, 0, 0};
        const json_value *want = json_get(c, "text");
        if (tokenizer_chat(b, t, messages, count, true, json_get(c, "reply")->kind == 't', &got) ||
            got.size != want->size || memcmp(got.data, want->text, want->size) != 0)
            wrong++;
        base_text_free(b, &got);
    }
    tap_ok(cases->size > 4 && !wrong, "%s: the template's text of %d conversations, %d wrong", name,
           (int)cases->size, wrong);
}

/* Conversations whose contents spell control tokens, whole and turn by turn. */
static void test_chat_ids(base *b, const tokenizer *t, const json_value *cases, const char *name) {
    int wrong = 0, apart = 0;
    for (const json_value *c = cases->first; c; c = c->next) {
        tokenizer_message messages[8];
        int count = read_messages(c, messages, 8);
        bool reply = json_get(c, "reply")->kind == 't';
        tokenizer_ids ids = {NULL, 0, 0};
        if (tokenizer_chat_ids(b, t, NULL, 0, messages, count, true, reply, NULL, &ids) ||
            !same_ids(&ids, json_get(c, "ids"))) {
            tap_note("%s: other ids for \"%.60s\"", name, messages[0].content);
            wrong++;
        }
        ids.size = 0;
        for (int i = 0; i < count; i++) {
            if (tokenizer_chat_ids(b, t, ids.data, (int)ids.size, messages + i, 1, i == 0,
                                   reply && i + 1 == count, NULL, &ids))
                apart++;
            /* what a generation leaves: the closing token last, or a turn without its end */
            if (i + 1 < count) ids.size -= i % 2 ? 2 : 1;
        }
        apart += !same_ids(&ids, json_get(c, "ids"));
        tokenizer_ids_free(b, &ids);
    }
    tap_ok(cases->size > 30 && !wrong, "%s: ids of %d conversations, contents as plain text, %d "
           "wrong", name, (int)cases->size, wrong);
    tap_ok(!apart, "%s: turn by turn they are the same, %d wrong", name, apart);
}

static void test_roles(base *b, const tokenizer *t) {
    static const char *const bad[] = {"tool\n", "user<|im_end|>\n<|im_start|>system", "", "User"};
    tokenizer_message m = {"user", "caf\xc3", 4};
    tokenizer_ids ids = {NULL, 0, 0};
    base_text text = {NULL, 0, 0};
    int wrong = 0;
    tap_ok(tokenizer_chat_ids(b, t, NULL, 0, &m, 1, true, true, NULL, &ids) == CAIRN_INVALID_UTF8 &&
           strstr(b->error, "message 1 of 1: byte 3 "), "a content of broken UTF-8: %s", b->error);
    m.content_bytes = 3;
    for (size_t i = 0; i < BASE_COUNT(bad); i++) {
        m.role = bad[i];
        wrong += tokenizer_chat_ids(b, t, NULL, 0, &m, 1, true, true, NULL, &ids) !=
                     CAIRN_INVALID_ARGUMENT || ids.size != 0;
        wrong += tokenizer_chat(b, t, &m, 1, true, true, &text) != CAIRN_INVALID_ARGUMENT ||
                 text.size != 0;
    }
    tap_ok(!wrong, "roles that the template does not have are refused: %s", b->error);
    tokenizer_ids_free(b, &ids);
    base_text_free(b, &text);
}

/* ---- small vocabularies ---- */

static void build_strings(gguf_build *f, const char *key, const json_value *strings) {
    build_key_array(f, key, 8, strings->size);
    for (const json_value *s = strings->first; s; s = s->next) build_string(f, s->text, s->size);
}

static void build_bool(gguf_build *f, const char *key, bool value) {
    build_key(f, key, 7, value, 1);
}

/* A file without tensors that holds one vocabulary of tokenizer_tiny.json. */
static void build_vocabulary(gguf_build *f, const json_value *v, const char *chat_template) {
    memset(f, 0, sizeof *f);
    build_begin(f, 3, 0, 10);
    build_key_string(f, "tokenizer.ggml.model", "gpt2");
    build_key_string(f, "tokenizer.ggml.pre", json_get(v, "pre")->text);
    build_strings(f, "tokenizer.ggml.tokens", json_get(v, "tokens"));
    build_strings(f, "tokenizer.ggml.merges", json_get(v, "merges"));
    build_key_array(f, "tokenizer.ggml.token_type", 5, json_get(v, "types")->size);
    for (const json_value *k = json_get(v, "types")->first; k; k = k->next)
        build_number(f, (uint64_t)k->number, 4);
    build_key_u32(f, "tokenizer.ggml.bos_token_id", 1);
    build_key_u32(f, "tokenizer.ggml.eos_token_id", 2);
    build_key_u32(f, "tokenizer.ggml.eot_token_id", 0);
    build_bool(f, "tokenizer.ggml.add_bos_token", true);
    build_key_string(f, "tokenizer.chat_template", chat_template);
}

static cairn_status open_built(base *b, gguf_build *f, tokenizer *t) {
    gguf g;
    cairn_status status = gguf_parse(b, "tiny.gguf", f->data, f->size, &g);
    if (!status) status = tokenizer_open(b, NULL, &g, t);
    gguf_close(b, &g);
    return status;
}

static void test_named_ids(base *b, const tokenizer *t) {
    tokenizer_ids ids = {NULL, 0, 0};
    size_t bytes;
    const char *piece = tokenizer_piece(t, 1, &bytes);
    tap_ok(t->bos == 1 && t->eos == 2 && t->adds_bos && tokenizer_is_end(t, 2)
           && tokenizer_is_end(t, 0) &&
           !tokenizer_is_end(t, 1) && !tokenizer_is_end(t, -1) && tokenizer_is_special(t, 1) &&
           !tokenizer_is_special(t, 9), "named tokens");
    tap_ok(bytes == 12 && !memcmp(piece, "<|im_start|>", 12), "the piece of a special token");
    tokenizer_piece(t, t->vocab, &bytes);
    tap_ok(bytes == 0, "an id outside has no bytes");
    tap_ok(!tokenizer_encode(b, t, "<|im_end|>", 10, false, &ids) && ids.size > 1,
           "the text of a control token can stay text");
    ids.size = 0;
    tap_ok(!tokenizer_encode(b, t, "<tool>", 6, false, &ids) && ids.size == 1,
           "a user-defined token is always found");
    tokenizer_ids_free(b, &ids);
}

static void test_invalid(base *b, const tokenizer *t) {
    static const struct { const char *text; size_t bytes; int at; } bad[] = {
        {"\x80", 1, 0}, {"ab\xff""c", 4, 2}, {"\xc0\xaf", 2, 0}, {"a\xe0\x9f\xbf", 4, 1},
        {"\xed\xa0\x80", 3, 0}, {"\xf4\x90\x80\x80", 4, 0}, {"caf\xc3", 4, 3},
        {"\xe4\xbd", 2, 0}, {"\xf0\x9f\x91", 3, 0}, {"x\xf5\x80\x80\x80", 5, 1}, {"\xc3(", 2, 0}};
    tokenizer_ids ids = {NULL, 0, 0};
    int wrong = 0;
    tokenizer_encode(b, t, "the", 3, true, &ids);
    for (size_t i = 0; i < BASE_COUNT(bad); i++) {
        char place[32];
        size_t before = ids.size;
        snprintf(place, sizeof place, "byte %d ", bad[i].at);
        wrong += tokenizer_encode(b, t, bad[i].text, bad[i].bytes, true,
                                  &ids) != CAIRN_INVALID_UTF8 ||
                 !strstr(b->error, place) || ids.size != before;
    }
    tap_ok(!wrong, "invalid UTF-8 is refused at the right byte, and adds nothing");
    tokenizer_ids_free(b, &ids);
}

/* One word of 1 MiB: a quadratic merge would take hours. */
static void test_long_word(base *b, const tokenizer *t) {
    size_t bytes = 1 << 20;
    char *text = (char *)malloc(bytes);
    tokenizer_ids ids = {NULL, 0, 0};
    base_text back = {NULL, 0, 0};
    clock_t start = clock(); /* of this process: whatever else runs */
    bool fine;
    int ms;
    memset(text, 'a', bytes);
    fine = !tokenizer_encode(b, t, text, bytes, true, &ids) &&
           !tokenizer_decode(b, t, ids.data, ids.size, &back) &&
           back.size == bytes + (t->space_prefix && !t->rule) &&
           !memcmp(back.data + back.size - bytes, text, bytes);
    ms = (int)((double)(clock() - start) * 1000.0 / CLOCKS_PER_SEC);
    tap_ok(fine && ms < 20000, "a word of 1 MiB: %d ids in %d ms", (int)ids.size, ms);
    base_text_free(b, &back);
    tokenizer_ids_free(b, &ids);
    free(text);
}

static void test_memory_faults(base *b, gguf_build *f) {
    tokenizer t;
    gguf g;
    int n = 0;
    bool clean = true;
    cairn_status status;
    gguf_parse(b, "tiny.gguf", f->data, f->size, &g);
    do {
        long before = live_blocks;
        tokenizer_ids ids = {NULL, 0, 0};
        allocations_left = n++;
        status = tokenizer_open(b, NULL, &g, &t);
        if (!status) status = tokenizer_encode(b, &t, "the first machine", 17, true, &ids);
        allocations_left = -1;
        clean = clean && (!status || status == CAIRN_OUT_OF_MEMORY) && (!status || !ids.size);
        tokenizer_ids_free(b, &ids);
        tokenizer_close(b, &t);
        clean = clean && live_blocks == before;
    } while (status && n < 100);
    gguf_close(b, &g);
    tap_ok(clean && n > 10 && n < 100, "each of %d allocations may fail", n - 1);
}

/* A damaged vocabulary is refused, or works in some way within its bounds. */
static void test_damage(base *b, const gguf_build *f) {
    static const char text[] = "The <|x|>> first 42 machines, it's \xc3\xa9t\xc3\xa9\r\n\0 <tool>";
    enum { MUTATIONS = 1000 };
    uint8_t *copy = (uint8_t *)malloc(f->size);
    uint64_t seed = random_seed() | 1, random = seed;
    int opened = 0, sound = 0;
    for (int i = 0; i < MUTATIONS; i++) {
        tokenizer t;
        gguf g;
        tokenizer_ids ids = {NULL, 0, 0};
        base_text back = {NULL, 0, 0};
        cairn_status status;
        long before = live_blocks;
        memcpy(copy, f->data, f->size);
        for (int n = 0; n < 1 + i % 3; n++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            copy[(random >> 33) % f->size] = (uint8_t)(i % 2 ? random >> 24 : random >> 24 & 0x83);
        }
        status = gguf_parse(b, "damaged.gguf", copy, f->size, &g);
        if (!status) status = tokenizer_open(b, NULL, &g, &t);
        gguf_close(b, &g);
        if (!status) {
            opened++;
            status = tokenizer_encode(b, &t, text, sizeof text - 1, true, &ids);
            if (!status) status = tokenizer_decode(b, &t, ids.data, ids.size, &back);
            sound += !status && base_utf8_fault(back.data, back.size) == back.size;
            tokenizer_close(b, &t);
        }
        tokenizer_ids_free(b, &ids);
        base_text_free(b, &back);
        if (live_blocks != before) sound = -MUTATIONS;
    }
    tap_ok(opened == sound && opened > MUTATIONS / 50, "%d of %d damaged vocabularies still work "
           "(seed %llu)", sound, MUTATIONS, (unsigned long long)seed);
    free(copy);
}

/* ---- special tokens ---- */

/* A vocabulary of the bytes a, b, < and of special tokens; kind 3: control, 4: user-defined. */
static cairn_status open_specials(base *b, const char *const *texts, const int *kinds, int count,
                                  tokenizer *t) {
    static const char *const bytes[] = {"a", "b", "<"};
    gguf_build f = {0};
    cairn_status status;
    build_begin(&f, 3, 0, 5);
    build_key_string(&f, "tokenizer.ggml.model", "gpt2");
    build_key_string(&f, "tokenizer.ggml.pre", "gpt-2");
    build_key_array(&f, "tokenizer.ggml.tokens", 8, (size_t)count + 3);
    for (int i = 0; i < 3; i++) build_string(&f, bytes[i], 1);
    for (int i = 0; i < count; i++) build_string(&f, texts[i], strlen(texts[i]));
    build_key_array(&f, "tokenizer.ggml.merges", 8, 0);
    build_key_array(&f, "tokenizer.ggml.token_type", 5, (size_t)count + 3);
    for (int i = 0; i < count + 3; i++) build_number(&f, i < 3 ? 1 : (uint64_t)kinds[i - 3], 4);
    status = open_built(b, &f, t);
    free(f.data);
    return status;
}

/* The rule, plainly: at each byte the longest special text that lies in bounds, else the byte. */
static void plain_specials(const char *const *texts, const int *kinds, int count,
                           const char *text, int bytes, int control_from, int control_end,
                           tokenizer_ids *out, base *b) {
    for (int at = 0; at < bytes;) {
        int best = -1, best_size = 0;
        for (int i = 0; i < count; i++) {
            int size = (int)strlen(texts[i]);
            bool fits = at + size <= bytes && !memcmp(text + at, texts[i], (size_t)size);
            bool inside = at >= control_from && at + size <= control_end;
            if (fits && (kinds[i] == 4 || inside) && size > best_size) best = i, best_size = size;
        }
        tokenizer_ids_add(b, out, best >= 0 ? best + 3 : text[at] == 'a' ? 0
                                                       : text[at] == 'b' ? 1 : 2);
        at += best >= 0 ? best_size : 1;
    }
}

/* Random special texts of two letters, overlapping in every way, in texts with a control part. */
static void test_special_rule(base *b) {
    enum { ROUNDS = 300, TEXTS = 12 };
    uint64_t seed = random_seed() | 1, random = seed;
    int wrong = 0, opened = 0, found = 0;
    for (int round = 0; round < ROUNDS; round++) {
        char store[TEXTS][8], text[64];
        const char *texts[TEXTS];
        int kinds[TEXTS];
        tokenizer t;
        for (int i = 0; i < TEXTS; i++) {
            int size = 1;
            for (; size < 7; size++) {
                random = random * 6364136223846793005u + 1442695040888963407u;
                store[i][size] = random >> 40 & 3 ? 'a' : '<';
                if (random >> 50 & 1) break;
            }
            store[i][0] = random >> 33 & 1 ? '<' : 'b', store[i][size] = '\0';
            texts[i] = store[i], kinds[i] = random >> 60 & 3 ? 3 : 4;
        }
        if (open_specials(b, texts, kinds, TEXTS, &t)) { wrong++; continue; }
        for (int n = 0; n < 20; n++, opened++) {
            tokenizer_ids got = {NULL, 0, 0}, want = {NULL, 0, 0};
            int bytes = (int)(random >> 20 & 63), cuts[2];
            for (int i = 0; i < bytes; i++) {
                random = random * 6364136223846793005u + 1442695040888963407u;
                text[i] = "aab<"[random >> 45 & 3];
            }
            cuts[0] = bytes ? (int)((random >> 12 & 1023) % (unsigned)(bytes + 1)) : 0;
            cuts[1] = cuts[0] + (int)((random >> 24 & 1023) % (unsigned)(bytes - cuts[0] + 1));
            {
                tokenizer_span spans[3] = {{(size_t)cuts[0], false},
                                           {(size_t)(cuts[1] - cuts[0]), true},
                                           {(size_t)(bytes - cuts[1]), false}};
                wrong += tokenizer_encode_spans(b, &t, text, spans, 3, NULL, &got) != CAIRN_OK;
            }
            plain_specials(texts, kinds, TEXTS, text, bytes, cuts[0], cuts[1], &want, b);
            found += (int)want.size < bytes;
            wrong += got.size != want.size ||
                     (got.size && memcmp(got.data, want.data, got.size * sizeof *got.data) != 0);
            tokenizer_ids_free(b, &got);
            tokenizer_ids_free(b, &want);
        }
        tokenizer_close(b, &t);
    }
    tap_ok(!wrong && found > opened / 4, "special tokens in %d texts as the plain rule finds them, "
           "%d wrong (seed %llu)", opened, wrong, (unsigned long long)seed);
}

/* Time does not grow with the number of special tokens, nor with their length. */
static void test_many_specials(base *b) {
    enum { MANY = 60000, TEXT = 100000, LONG = 60000 };
    char *store = (char *)malloc((size_t)MANY * 16), *text = (char *)malloc(TEXT);
    char *tall = (char *)malloc(LONG + 1);
    const char **texts = (const char **)malloc(MANY * sizeof *texts);
    int *kinds = (int *)malloc(MANY * sizeof *kinds), ms;
    const char *two[2] = {"a", tall};
    tokenizer t;
    tokenizer_ids ids = {NULL, 0, 0};
    clock_t start = clock();
    for (int i = 0; i < MANY; i++) {
        snprintf(store + i * 16, 16, "<%07da", i);
        texts[i] = store + i * 16, kinds[i] = 3;
    }
    memset(text, '<', TEXT);
    tap_ok(!open_specials(b, texts, kinds, MANY, &t) &&
           !tokenizer_encode(b, &t, text, TEXT, true, &ids) && ids.size == TEXT,
           "%d special tokens that begin alike, and a text of their beginnings", (int)MANY);
    ms = (int)((double)(clock() - start) * 1000.0 / CLOCKS_PER_SEC);
    tap_ok(ms < 3000, "take %d ms", ms);
    tokenizer_close(b, &t);
    memset(tall, 'a', LONG), tall[LONG - 1] = '<', tall[LONG] = '\0';
    memset(text, 'a', TEXT);
    ids.size = 0;
    start = clock();
    tap_ok(!open_specials(b, two, kinds, 2, &t) &&
           !tokenizer_encode(b, &t, text, TEXT, true, &ids) && ids.size == TEXT && ids.data[0] == 3,
           "one of %d bytes, and a text that nearly is that at every byte", (int)LONG);
    ms = (int)((double)(clock() - start) * 1000.0 / CLOCKS_PER_SEC);
    tap_ok(ms < 3000, "take %d ms", ms);
    tokenizer_close(b, &t);
    tokenizer_ids_free(b, &ids);
    free(store), free(text), free(tall), free(texts), free(kinds);
}

/* Tokens of more bytes, special ones of more number, than make sense. */
static void test_too_many(base *b) {
    enum { MANY = 65537, LONG = 65536 };
    char *store = (char *)malloc((size_t)MANY * 8), *tall = (char *)malloc(LONG + 1);
    const char **texts = (const char **)malloc(MANY * sizeof *texts);
    int *kinds = (int *)malloc(MANY * sizeof *kinds);
    gguf_build f = {0};
    tokenizer t;
    for (int i = 0; i < MANY; i++) {
        snprintf(store + i * 8, 8, "<%06d", i);
        texts[i] = store + i * 8, kinds[i] = 3;
    }
    tap_ok(open_specials(b, texts, kinds, MANY, &t) == CAIRN_BAD_FILE &&
               strstr(b->error, "65537 special tokens of 458759 bytes"), "%s", b->error);
    memset(tall, 'a', LONG), tall[LONG] = '\0';
    texts[0] = tall;
    tap_ok(open_specials(b, texts, kinds, 1, &t) == CAIRN_BAD_FILE &&
               strstr(b->error, "tokens[3] has 65536 bytes"), "%s", b->error);
    build_begin(&f, 3, 0, 3);
    build_key_string(&f, "tokenizer.ggml.model", "gpt2");
    build_key_string(&f, "tokenizer.ggml.pre", "gpt-2");
    build_key_array(&f, "tokenizer.ggml.tokens", 8, 0);
    tap_ok(open_built(b, &f, &t) == CAIRN_BAD_FILE && strstr(b->error, "tokens has 0 entries"), "%s", b->error);
    free(f.data), free(store), free(tall), free(texts), free(kinds);
}

/* ---- many merges ---- */

enum { LETTERS = 26, PAIRS = LETTERS * LETTERS, TRIPLES = 12000 };

/* Triple n; its last two letters are pair n % PAIRS, its last is letter n % LETTERS. */
static void triple_of(int n, char *letters) {
    letters[0] = (char)('a' + n / PAIRS), letters[1] = (char)('a' + n / LETTERS % LETTERS);
    letters[2] = (char)('a' + n % LETTERS);
}

/* Letters, all pairs of letters, and the first triples, each from its pair and a letter; line `bad` is none. */
static void build_triples(gguf_build *f, int bad) {
    char letters[3], text[8];
    memset(f, 0, sizeof *f);
    build_begin(f, 3, 0, 4);
    build_key_string(f, "tokenizer.ggml.model", "gpt2");
    build_key_string(f, "tokenizer.ggml.pre", "gpt-2");
    build_key_array(f, "tokenizer.ggml.tokens", 8, LETTERS + PAIRS + TRIPLES);
    for (int i = 0; i < LETTERS + PAIRS + TRIPLES; i++) {
        const int n = i < LETTERS ? i : i < LETTERS + PAIRS ? i - LETTERS : i - LETTERS - PAIRS;
        const int size = i < LETTERS ? 1 : i < LETTERS + PAIRS ? 2 : 3;
        triple_of(n, letters);
        build_string(f, letters + 3 - size, (size_t)size);
    }
    build_key_array(f, "tokenizer.ggml.merges", 8, PAIRS + TRIPLES);
    for (int i = 0; i < PAIRS + TRIPLES; i++) {
        triple_of(i < PAIRS ? i : i - PAIRS, letters);
        if (i < PAIRS) snprintf(text, sizeof text, "%c %c", letters[1], letters[2]);
        else snprintf(text, sizeof text, "%c%c %c", letters[0], letters[1], letters[2]);
        if (i == bad) text[0] = '?';
        build_string(f, text, strlen(text));
    }
}

/* The pair of the lower rank goes first: a triple is one token where that is its first pair. */
static int wrong_triples(base *b, const tokenizer *t) {
    int wrong = 0;
    for (int n = 0; n < TRIPLES; n++) {
        const int first = n / LETTERS, second = n % PAIRS;
        tokenizer_ids ids = {NULL, 0, 0};
        char text[3];
        triple_of(n, text);
        if (tokenizer_encode(b, t, text, 3, true, &ids)) wrong++;
        else if (first <= second) wrong += ids.size != 1 || ids.data[0] != LETTERS + PAIRS + n;
        else wrong += ids.size != 2 || ids.data[0] != n / PAIRS || ids.data[1] != LETTERS + second;
        tokenizer_ids_free(b, &ids);
    }
    return wrong;
}

/* More lines than are looked up at a time, by one thread and by three; the first line that is none is named. */
static void test_many_merges(base *b) {
    static const int bad[] = {-1, 0, 4095, 4096, 9000, PAIRS + TRIPLES - 1};
    pool *three;
    if (!tap_ok(!pool_open(b, 3, false, &three), "three threads")) return;
    for (size_t i = 0; i < 2 * BASE_COUNT(bad); i++) {
        char named[40];
        gguf_build f;
        gguf g;
        tokenizer t;
        cairn_status status;
        build_triples(&f, bad[i / 2]);
        snprintf(named, sizeof named, "merges[%d]: not two tokens", bad[i / 2]);
        status = gguf_parse(b, "triples.gguf", f.data, f.size, &g);
        if (!status) status = tokenizer_open(b, i % 2 ? three : NULL, &g, &t);
        gguf_close(b, &g);
        free(f.data);
        if (bad[i / 2] >= 0)
            tap_ok(status == CAIRN_BAD_FILE && strstr(b->error, named), "%s", b->error);
        else if (tap_ok(!status, "%d merges by %d threads", PAIRS + TRIPLES, i % 2 ? 3 : 1)) {
            const int wrong = wrong_triples(b, &t);
            tap_ok(!wrong, "%d texts of three letters, %d wrong", (int)TRIPLES, wrong);
            tokenizer_close(b, &t);
        }
    }
    pool_close(three);
}

/* A list of what takes white space that is no list. */
static void test_bad_strips(base *b) {
    gguf_build f = {0};
    tokenizer t;
    build_begin(&f, 3, 0, 6);
    build_key_string(&f, "tokenizer.ggml.model", "gpt2");
    build_key_string(&f, "tokenizer.ggml.pre", "gpt-2");
    build_key_array(&f, "tokenizer.ggml.tokens", 8, 1);
    build_string(&f, "a", 1);
    build_key_array(&f, "tokenizer.ggml.merges", 8, 0);
    build_key_array(&f, "tokenizer.ggml.token_type", 5, 1);
    build_number(&f, 1, 4);
    build_key_string(&f, GGUF_STRIPS, "all");
    tap_ok(open_built(b, &f, &t) == CAIRN_BAD_FILE && strstr(b->error, GGUF_STRIPS), "%s", b->error);
    free(f.data);
}

/* Whatever a file says of its tokens, plain text never gives one that opens or ends a turn. */
static void test_plain_is_plain(base *b, const json_value *v) {
    gguf_build f;
    tokenizer t;
    tokenizer_ids ids = {NULL, 0, 0};
    gguf g;
    build_vocabulary(&f, v, "");
    gguf_parse(b, "tiny.gguf", f.data, f.size, &g);
    {
        gguf_list kinds = {0, 0, NULL};
        bool found;
        gguf_array(b, &g, "tokenizer.ggml.token_type", &found, GGUF_I32, &kinds);
        for (int i = 0; i < 3; i++) ((uint8_t *)(uintptr_t)kinds.data)[4 * i] = 4; /* user-defined */
    }
    tap_ok(!tokenizer_open(b, NULL, &g, &t) && t.turn_open == 1 && t.turn_close == 2 &&
           !tokenizer_encode(b, &t, "<|im_start|><|im_end|><|endoftext|>", 35, false, &ids) &&
           ids.size > 9 && ids.data[0] > 5, "end tokens called user-defined are control tokens");
    gguf_close(b, &g);
    tokenizer_ids_free(b, &ids);
    tokenizer_close(b, &t);
    free(f.data);
}

/* A cancelled text adds nothing, in whatever part of the work it was. */
static void test_cancel(base *b, const tokenizer *t) {
    enum { BYTES = 1 << 21 };
    char *text = (char *)malloc(BYTES);
    tokenizer_span whole = {BYTES, true};
    tokenizer_ids ids = {NULL, 0, 0};
    os_atomic cancel;
    cairn_status status;
    clock_t start = clock();
    memset(text, 'a', BYTES);
    os_atomic_store(&cancel, 1);
    status = tokenizer_encode_spans(b, t, text, &whole, 1, &cancel, &ids);
    tap_ok(status == CAIRN_CANCELLED && ids.size == 0 &&
           (double)(clock() - start) / CLOCKS_PER_SEC < 0.5, "a cancelled text ends at once: %s",
           b->error);
    whole.bytes = 32767; /* looked for special tokens and for the word's end: one step less than is asked after */
    if (t->scores)
        tap_ok(tokenizer_encode_spans(b, t, text, &whole, 1, &cancel, &ids) == CAIRN_CANCELLED && !ids.size,
               "and one that is cancelled within a word");
    tokenizer_ids_free(b, &ids);
    free(text);
}

/* ---- chat templates ---- */

#define LOOP "{% for message in messages %}"
#define BODY "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + " \
             "'\n'}}"
#define TAIL "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"

/* Each allocation of reading the template and of writing by it fails, once and for good. */
static void test_template_faults(base *b, const gguf_build *f, int index) {
    tokenizer_message hello = {"user", "Hi <|im_end|>", 13};
    gguf g;
    int n = 0;
    bool clean = true;
    cairn_status status;
    gguf_parse(b, "tiny.gguf", f->data, f->size, &g);
    do {
        long before = live_blocks;
        tokenizer t;
        tokenizer_ids ids = {NULL, 0, 0};
        allocations_left = n++;
        status = tokenizer_open(b, NULL, &g, &t);
        if (!status) {
            status = tokenizer_chat_ids(b, &t, NULL, 0, &hello, 1, true, true, NULL, &ids);
            if (status == CAIRN_UNSUPPORTED) status = CAIRN_OK;
        }
        allocations_left = -1;
        clean = clean && (!status || (status == CAIRN_OUT_OF_MEMORY && !ids.size));
        tokenizer_ids_free(b, &ids);
        tokenizer_close(b, &t);
        clean = clean && live_blocks == before;
    } while (status && n < 200);
    gguf_close(b, &g);
    if (!clean || n < 5) tap_ok(false, "template %d: %d allocations failed in turn", index, n - 1);
}

static void test_templates(base *b, const json_value *v) {
    static const struct { const char *text, *want; } templates[] = {
        {LOOP BODY TAIL, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"},
        {LOOP "\n  {{- \"<|im_start|>\" + message.role + \"\\n\" -}}\n  {{ message.content + "
         "'<|im_end|>\\n' }}" TAIL, NULL},
        {"{%- for message in messages -%}\n    {{- '<|im_start|>' + message.role + '\\n' + "
         "message.content + '<|im_end|>\\n' -}}\n{%- endfor -%}\n{%- if add_generation_prompt -%}\n"
         "    {{- '<|im_start|>assistant\\n' -}}\n{%- endif -%}\n",
         "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"},
        {"{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}"
         "{% endif %}" LOOP BODY TAIL, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"},
        {LOOP "{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nBe "
         "good.<|im_end|>\n' }}{% endif %}" BODY TAIL,
         "<|im_start|>system\nBe good.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
         "<|im_start|>assistant\n"},
        {LOOP BODY "\n" TAIL, NULL}, /* prints a line more than ChatML */
        {"{{ bos_token }}" LOOP BODY TAIL, NULL},
        {"{% for m in messages %}[INST] {{ m.content }} [/INST]{% endfor %}", NULL},
        {LOOP BODY "{% endfor %}", NULL},
        {"{%-%}", NULL}, {"{{-}}" LOOP, NULL}, {"{#-#}", NULL}, {"{%-", NULL},
        {"{#-#}" LOOP "{#- turn -#}\n  " BODY TAIL,
         "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"},
        {"{%", NULL}, {"{{ '", NULL}, {"{#", NULL}, {"{{-", NULL}, {"}}", NULL}, {"{{['']", NULL}};
    tokenizer_message hello = {"user", "Hi", 2};
    for (size_t i = 0; i < BASE_COUNT(templates); i++) {
        gguf_build f;
        tokenizer t;
        base_text got = {NULL, 0, 0};
        cairn_status status;
        build_vocabulary(&f, v, templates[i].text);
        if (open_built(b, &f, &t)) { tap_ok(false, "%s", b->error); free(f.data); continue; }
        test_template_faults(b, &f, (int)i);
        status = tokenizer_chat(b, &t, &hello, 1, true, true, &got);
        if (templates[i].want)
            tap_ok(!status && !strcmp(got.data, templates[i].want), "template %d: ChatML", (int)i);
        else
            tap_ok(status == CAIRN_UNSUPPORTED && strstr(b->error, "template that begins"),
                   "template %d is not: %.60s", (int)i, b->error);
        base_text_free(b, &got);
        tokenizer_close(b, &t);
        free(f.data);
    }
}

/* ---- bad vocabularies ---- */

typedef struct bad_vocabulary {
    const char *model, *pre, *tokens[3], *merge;
    uint32_t types, bos;
    cairn_status status;
    const char *error;
} bad_vocabulary;

static void test_bad_vocabularies(base *b) {
    static const bad_vocabulary rows[] = {
        {"gpt2", "gpt-2", {"a", "b", "ab"}, "a b", 3, 2, CAIRN_OK, ""},
        {"bert", "gpt-2", {"a", "b", "ab"}, "a b", 3, 2, CAIRN_UNSUPPORTED, "'bert'"},
        {"gpt2", "llama-bp", {"a", "b", "ab"}, "a b", 3, 2, CAIRN_UNSUPPORTED, "'llama-bp'"},
        {"gpt2", "smollm", {"a", "b", "c"}, "a b", 3, 2, CAIRN_BAD_FILE, "merges[0]"},
        {"gpt2", "smollm", {"a", "b", "ab"}, "ab", 3, 2, CAIRN_BAD_FILE, "merges[0]"},
        {"gpt2", "smollm", {"a", "b", "ab"}, " ", 3, 2, CAIRN_BAD_FILE, "merges[0]"},
        {"gpt2", "smollm", {"a", "b", "ab"}, "", 3, 2, CAIRN_BAD_FILE, "merges[0]"},
        {"gpt2", "smollm", {"a", "b", "ab"}, "a b", 2, 2, CAIRN_BAD_FILE, "token_type has 2"},
        {"gpt2", "smollm", {"a", "b", "ab"}, "a b", 3, 3, CAIRN_BAD_FILE, "bos_token_id is 3"},
        {"gpt2", "smollm", {"\xff", "a", "\xc4"}, "a a", 3, 0, CAIRN_BAD_FILE, "merges[0]"}};
    for (size_t i = 0; i < BASE_COUNT(rows); i++) {
        gguf_build f = {0};
        tokenizer t;
        cairn_status status;
        build_begin(&f, 3, 0, 6);
        build_key_string(&f, "tokenizer.ggml.model", rows[i].model);
        build_key_string(&f, "tokenizer.ggml.pre", rows[i].pre);
        build_key_array(&f, "tokenizer.ggml.tokens", 8, 3);
        for (int j = 0; j < 3; j++) build_string(&f, rows[i].tokens[j], strlen(rows[i].tokens[j]));
        build_key_array(&f, "tokenizer.ggml.merges", 8, 1);
        build_string(&f, rows[i].merge, strlen(rows[i].merge));
        build_key_array(&f, "tokenizer.ggml.token_type", 5, rows[i].types);
        for (uint32_t j = 0; j < rows[i].types; j++) build_number(&f, 1, 4);
        build_key_u32(&f, "tokenizer.ggml.bos_token_id", rows[i].bos);
        status = open_built(b, &f, &t);
        tap_ok(status == rows[i].status && (!status || strstr(b->error, rows[i].error)),
               "vocabulary %d: %s", (int)i, status ? b->error : "is good");
        if (!status) tokenizer_close(b, &t);
        free(f.data);
    }
}

/* Special tokens that are not whole characters must not cut a text into parts that are not. */
static void test_broken_specials(base *b) {
    gguf_build f = {0};
    tokenizer t;
    tokenizer_ids ids = {NULL, 0, 0};
    static const char *const tokens[] = {"\xc3", "\xa9", "x\xc3", ""};
    build_begin(&f, 3, 0, 5);
    build_key_string(&f, "tokenizer.ggml.model", "gpt2");
    build_key_string(&f, "tokenizer.ggml.pre", "smollm");
    build_key_array(&f, "tokenizer.ggml.tokens", 8, 4);
    for (int j = 0; j < 4; j++) build_string(&f, tokens[j], strlen(tokens[j]));
    build_key_array(&f, "tokenizer.ggml.merges", 8, 0);
    build_key_array(&f, "tokenizer.ggml.token_type", 5, 4);
    for (int j = 0; j < 4; j++) build_number(&f, 3, 4);
    tap_ok(!open_built(b, &f, &t) && !tokenizer_encode(b, &t, "x\xc3\xa9 \xc3\xa9", 6, true, &ids)
           &&
           ids.size == 0, "special tokens of broken UTF-8 are never found");
    tokenizer_ids_free(b, &ids);
    tokenizer_close(b, &t);
    free(f.data);
}

/* ---- families of templates ---- */

/* A vocabulary of the 256 bytes and, behind them, of the marks; kind 3: control, 4: user-defined. */
static cairn_status open_template(base *b, const json_value *family, int kind, const char *words,
                                  tokenizer *t) {
    const json_value *marks = json_get(family, "marks");
    tokenizer_alphabet alphabet;
    gguf_build f = {0};
    cairn_status status;
    size_t count = 256 + marks->size;
    tokenizer_make_alphabet(&alphabet);
    build_begin(&f, 3, 0, 6);
    build_key_string(&f, "tokenizer.ggml.model", "gpt2");
    build_key_string(&f, "tokenizer.ggml.pre", "gpt-2");
    build_key_array(&f, "tokenizer.ggml.tokens", 8, count);
    for (int i = 0; i < 256; i++) {
        unsigned point = alphabet.point_of[i];
        char text[2] = {(char)point, 0};
        if (point >= 0x80) text[0] = (char)(0xc0 | point >> 6), text[1] = (char)(0x80 | (point & 63));
        build_string(&f, text, point < 0x80 ? 1 : 2);
    }
    for (const json_value *m = marks->first; m; m = m->next) build_string(&f, m->text, m->size);
    build_key_array(&f, "tokenizer.ggml.token_type", 5, count);
    for (size_t i = 0; i < count; i++) build_number(&f, i < 256 ? 1 : (uint64_t)kind, 4);
    build_key_array(&f, "tokenizer.ggml.merges", 8, 0);
    build_key_string(&f, "tokenizer.chat_template", words);
    status = open_built(b, &f, t);
    free(f.data);
    return status;
}

static cairn_status open_marks(base *b, const json_value *family, int kind, tokenizer *t) {
    return open_template(b, family, kind, json_get(family, "template")->text, t);
}

/* A default text that is made of more than text and the day is none of those that are known. */
static void test_computed_default(base *b, const json_value *family) {
    static const char day[] = "\" + today + \"", other[] = "\" + month + \"";
    const char *was = json_get(family, "template")->text, *at = strstr(was, day);
    char *changed;
    tokenizer t;
    if (!at) return;
    changed = (char *)malloc(strlen(was) + sizeof other);
    snprintf(changed, strlen(was) + sizeof other, "%.*s%s%s", (int)(at - was), was, other,
             at + sizeof day - 1);
    tap_ok(!open_template(b, family, 3, was, &t) && t.has_chat, "a default text with the day is known");
    tokenizer_close(b, &t);
    tap_ok(!open_template(b, family, 3, changed, &t) && !t.has_chat, "one with the month is not");
    tokenizer_close(b, &t);
    free(changed);
}

/* A text with the day in place of "@TODAY@" or "@DAY@". */
static base_text dated(base *b, const json_value *text) {
    const char *mark = strstr(text->text, "@DAY@") ? "@DAY@" : "@TODAY@";
    const time_t now = time(NULL);
    const char *at = strstr(text->text, mark);
    const size_t before = at ? (size_t)(at - text->text) : text->size, after = before + strlen(mark);
    base_text out = {NULL, 0, 0};
    char day[32];
    strftime(day, sizeof day, mark[1] == 'D' ? "%Y-%m-%d" : "%d %B %Y", gmtime(&now));
    base_text_add(b, &out, text->text, before);
    if (at) base_text_add(b, &out, day, strlen(day));
    if (at) base_text_add(b, &out, text->text + after, text->size - after);
    return out;
}

/* The ids of what a template and what contents say, each read as what it is. */
static void part_ids(base *b, const tokenizer *t, const json_value *parts, tokenizer_ids *out) {
    for (const json_value *p = parts->first; p; p = p->next) {
        base_text text = dated(b, p->first);
        tokenizer_encode(b, t, text.data, text.size, p->first->next->kind == 't', out);
        base_text_free(b, &text);
    }
}

static void test_family(base *b, const json_value *family) {
    const char *name = json_get(family, "name")->text;
    bool joined = !strcmp(json_get(family, "roles")->first->text, "joined");
    bool last = !strcmp(json_get(family, "roles")->first->text, "last");
    int wrong = 0, other = 0, apart = 0, count = 0, in_ids = 0;
    tokenizer t;
    if (!tap_ok(!open_marks(b, family, 4, &t), "%s: a vocabulary with its template", name)) return;
    for (const json_value *c = json_get(family, "cases")->first; c; c = c->next, count++) {
        tokenizer_message messages[8];
        int size = read_messages(c, messages, 8), from = 0;
        bool reply = json_get(c, "reply")->kind == 't';
        const json_value *parts = json_get(c, "parts");
        base_text got = {NULL, 0, 0}, want = dated(b, json_get(c, "text"));
        tokenizer_ids ids = {NULL, 0, 0}, expected = {NULL, 0, 0};
        if (tokenizer_chat(b, &t, messages, size, true, reply, &got) || got.size != want.size ||
            memcmp(got.data, want.data, want.size) != 0) {
            tap_note("%s: \"%s\" instead of \"%s\"", name, got.data ? got.data : b->error, want.data);
            wrong++;
        }
        base_text_free(b, &got);
        base_text_free(b, &want);
        if (!parts->first && !t.format.reasons) continue;
        in_ids++;
        if (parts->first) part_ids(b, &t, parts, &expected);
        else /* whose text is right */
            tokenizer_chat_ids(b, &t, NULL, 0, messages, size, true, reply, NULL, &expected);
        other += tokenizer_chat_ids(b, &t, NULL, 0, messages, size, true, reply, NULL, &ids) ||
                 ids.size != expected.size ||
                 memcmp(ids.data, expected.data, ids.size * sizeof *ids.data) != 0;
        /* A turn that replaces the whole header leaves nothing that says whether the model thinks. */
        if (t.format.reasons && strstr(messages[0].content, "/no_think") &&
            strstr(messages[0].content, "/system_override")) in_ids--;
        else for (int left = 0; left < 2 && !t.format.thinks; left++, from = 0) {
            if (last && !strcmp(messages[0].role, "system")) break; /* goes with the last question */
            for (ids.size = 0; from < size;) { /* turn by turn, an answer with or without its end */
                int take = joined && from == 0 && !strcmp(messages[0].role, "system") ? 2 : 1;
                bool answer = from + take < size && !strcmp(messages[from].role, "assistant");
                apart += tokenizer_chat_ids(b, &t, ids.data, (int)ids.size, messages + from, take,
                                            from == 0, reply && from + take == size, NULL,
                                            &ids) != CAIRN_OK;
                from += take;
                while (answer && ids.data[ids.size - 1] != t.turn_end) ids.size--;
                if (answer && left) ids.size--;
            }
            apart += ids.size != expected.size ||
                     memcmp(ids.data, expected.data, ids.size * sizeof *ids.data) != 0;
        }
        tokenizer_ids_free(b, &ids);
        tokenizer_ids_free(b, &expected);
    }
    tap_ok(count > 9 && !wrong, "%s: the text of %d conversations as Jinja's, %d wrong", name,
           count, wrong);
    tap_ok(in_ids > 8 && !other && !apart, "%s: ids of %d, contents as plain text, %d wrong; turn "
           "by turn %d", name, in_ids, other, apart);
    tap_ok(t.is_safe && tokenizer_is_end(&t, t.turn_end) && t.kinds[t.turn_end] == TOK_CONTROL,
           "%s: an answer ends with %.16s", name, t.text + t.starts[t.turn_end]);
    tokenizer_close(b, &t);
}

/* Roles that a template has no turn for, and marks that the vocabulary has not. */
static void test_family_refusals(base *b, const json_value *family) {
    const char *name = json_get(family, "name")->text;
    const char *system = json_get(family, "roles")->first->text;
    tokenizer_message m[2] = {{"tool", "x", 1}, {"user", "x", 1}};
    tokenizer_ids ids = {NULL, 0, 0};
    tokenizer t;
    bool fine = !open_marks(b, family, 3, &t);
    fine = fine && tokenizer_chat_ids(b, &t, NULL, 0, m, 2, true, true, NULL, &ids) ==
                       CAIRN_INVALID_ARGUMENT && strstr(b->error, "'tool' is no role") &&
           !strstr(b->error, "system") == !strcmp(system, "user");
    tap_ok(fine && !ids.size, "%s: %s", name, b->error);
    m[0].role = "system";
    if (t.format.reasons) /* the header of the first turn holds it */
        tap_ok(tokenizer_chat_ids(b, &t, NULL, 0, m, 2, false, true, NULL, &ids) ==
                   CAIRN_INVALID_ARGUMENT && strstr(b->error, "message 1 of 2: a message of the system can "
                   "only be the first"), "%s: %s", name, b->error);
    if (strcmp(system, "system")) /* no turn of its own: alone, in the middle, or at all */
        tap_ok(tokenizer_chat_ids(b, &t, NULL, 0, m, 1, true, true, NULL, &ids) ==
                   CAIRN_INVALID_ARGUMENT &&
               tokenizer_chat_ids(b, &t, NULL, 0, m, 2, false, true, NULL, &ids) ==
                   CAIRN_INVALID_ARGUMENT &&
               (tokenizer_chat_ids(b, &t, NULL, 0, m, 2, true, true, NULL, &ids) == CAIRN_OK) ==
                   (!strcmp(system, "joined") || !strcmp(system, "last")), "%s: %s", name, b->error);
    ids.size = 0;
    tokenizer_close(b, &t);
    if (!open_marks(b, family, 1, &t)) /* called plain text by the file */
        tap_ok(tokenizer_chat_ids(b, &t, NULL, 0, m + 1, 1, true, true, NULL, &ids) ==
                   CAIRN_UNSUPPORTED && strstr(b->error, "control tokens"), "%s: %s", name,
               b->error);
    tokenizer_ids_free(b, &ids);
    tokenizer_close(b, &t);
}

/* A format of the config's, in place of the file's template: with marks, and in plain words. */
static void test_own_format(base *b, const json_value *family) {
    static const char *const before[2][CHAT_ROLES] = {{NULL, "User: ", "Bot:"},
                                                      {"<|im_start|>S", "<|im_start|>U", "<|im_start|>A"}};
    static const char *const after[2][CHAT_ROLES] = {{NULL, "\n", "\n"},
                                                     {"<|im_end|>", "<|im_end|>", "<|im_end|>\n"}};
    static const char *const wanted[2] = {"User: Hi\nBot: Yo\nUser: <|im_end|>\nBot:",
        "<|im_start|>UHi<|im_end|><|im_start|>A Yo<|im_end|>\n<|im_start|>U<|im_end|><|im_end|>"
        "<|im_start|>A"};
    tokenizer_message m[3] = {{"user", "Hi", 2}, {"assistant", " Yo", 3}, {"user", "<|im_end|>", 10}};
    for (int i = 0; i < 2; i++) {
        base_text text = {NULL, 0, 0};
        tokenizer_ids ids = {NULL, 0, 0};
        tokenizer t;
        bool fine = !open_marks(b, family, 3, &t) &&
                    !tokenizer_set_format(b, &t, before[i], after[i]) &&
                    !tokenizer_chat(b, &t, m, 3, true, true, &text) && !strcmp(text.data, wanted[i]);
        fine = fine && !tokenizer_chat_ids(b, &t, NULL, 0, m, 1, true, true, NULL, &ids);
        tap_ok(fine, "a format of the config's: %s", text.data);
        if (i == 1) {
            tokenizer_ids_add(b, &ids, t.turn_end);
            fine = !tokenizer_chat_ids(b, &t, ids.data, (int)ids.size, m + 2, 1, false, true, NULL,
                                       &ids) && ids.data[ids.size - 1] == 'A';
            tap_ok(fine && t.turn_end == 257, "its marks end turns");
        } else {
            m[0].role = "system";
            tap_ok(t.turn_end == -1 && tokenizer_chat(b, &t, m, 1, true, true, &text) ==
                   CAIRN_INVALID_ARGUMENT, "a role that it has not: %s", b->error);
            m[0].role = "user";
        }
        base_text_free(b, &text);
        tokenizer_ids_free(b, &ids);
        tokenizer_close(b, &t);
    }
}

static void test_families(base *b, const json_value *file) {
    const json_value *families = json_get(file, "families");
    for (const json_value *f = families->first; f; f = f->next) {
        test_family(b, f);
        test_family_refusals(b, f);
        test_computed_default(b, f);
    }
    test_own_format(b, families->first);
}

/* ---- words ---- */

static void test_words_of(const json_value *texts, const json_value *rule) {
    const json_value *text = texts->first, *words = json_get(rule, "words")->first;
    const json_value *pre = json_get(rule, "pre");
    const tokenizer_rule *r = tokenizer_rule_find(pre->text, pre->size);
    int wrong = 0, count = 0;
    if (!tap_ok(r != NULL, "%s: a rule of that name", pre->text)) return;
    for (; text && words; text = text->next, words = words->next, count++) {
        size_t at = 0;
        bool same = true;
        for (const json_value *w = words->first; w && same; w = w->next) {
            same = at < text->size &&
                   tokenizer_word(r, text->text + at, text->size - at) == (size_t)w->number;
            at += (size_t)w->number;
        }
        if (same && at == text->size) continue;
        tap_note("%s: other words from byte %d of \"%.60s\"", pre->text, (int)at, text->text);
        wrong++;
    }
    tap_ok(count > 600 && !wrong, "%s: words of %d texts, %d wrong", pre->text, count, wrong);
}

/* A text of one kind of characters takes time in proportion to its length. */
static void test_words_are_linear(void) {
    static const char *const parts[] = {"a", "A", " ", "\n", "1", "!", "'", "\xcc\x81", "\xcc\x81""A",
                                        " A", "'s", "\n ", "/"};
    enum { BYTES = 1 << 20 };
    char *text = (char *)malloc(BYTES + 8);
    clock_t start = clock();
    int wrong = 0;
    for (size_t i = 0; i < BASE_COUNT(parts); i++) {
        size_t bytes = strlen(parts[i]), size = BYTES / bytes * bytes;
        for (size_t at = 0; at < size; at += bytes) memcpy(text + at, parts[i], bytes);
        for (size_t rule = 0; rule < BASE_COUNT(tokenizer_rules); rule++) {
            size_t at = 0, word;
            while (at < size && (word = tokenizer_word(&tokenizer_rules[rule], text + at,
                                                       size - at)) > 0) at += word;
            wrong += at != size;
        }
    }
    tap_ok(!wrong && (double)(clock() - start) / CLOCKS_PER_SEC < 60,
           "words of 1 MiB of one kind under each rule: %d ms",
           (int)((double)(clock() - start) * 1000.0 / CLOCKS_PER_SEC));
    free(text);
}

/* Vocabularies of three pre-tokenizers take a word that is a token as it is. */
static void test_whole_words(base *b) {
    static const struct { const char *pre; int32_t first; size_t size; bool adds_bos; } rows[] = {
        {"llama-bpe", 4, 1, true}, {"tekken", 4, 1, true}, {"qwen2", 3, 2, false},
        {"gpt-4o", 3, 2, false}, {"lfm2", 4, 1, true}, {"smaug-bpe", 3, 2, false}, {"dbrx", 3, 2, false}};
    static const char *const tokens[] = {"a", "b", "c", "ab", "abc", "<s>"};
    for (size_t i = 0; i < BASE_COUNT(rows); i++) {
        gguf_build f = {0};
        tokenizer t;
        tokenizer_ids ids = {NULL, 0, 0};
        build_begin(&f, 3, 0, 6);
        build_key_string(&f, "tokenizer.ggml.model", "gpt2");
        build_key_string(&f, "tokenizer.ggml.pre", rows[i].pre);
        build_key_array(&f, "tokenizer.ggml.tokens", 8, 6);
        for (int j = 0; j < 6; j++) build_string(&f, tokens[j], strlen(tokens[j]));
        build_key_array(&f, "tokenizer.ggml.token_type", 5, 6);
        for (int j = 0; j < 6; j++) build_number(&f, j == 5 ? 3 : 1, 4);
        build_key_array(&f, "tokenizer.ggml.merges", 8, 1);
        build_string(&f, "a b", 3);
        build_key_u32(&f, "tokenizer.ggml.bos_token_id", 5);
        tap_ok(!open_built(b, &f, &t) && !tokenizer_encode(b, &t, "abc", 3, false, &ids) &&
               ids.size == rows[i].size && ids.data[0] == rows[i].first &&
               t.adds_bos == rows[i].adds_bos, "%s: a word that is a token, and what begins a text",
               rows[i].pre);
        tokenizer_ids_free(b, &ids);
        tokenizer_close(b, &t);
        free(f.data);
    }
}

/* ---- SentencePiece ---- */

static void build_pieces(gguf_build *f, const json_value *v, const char *architecture) {
    memset(f, 0, sizeof *f);
    build_begin(f, 3, 0, 10);
    build_key_string(f, "general.architecture", architecture);
    build_key_string(f, "tokenizer.ggml.model", json_get(v, "unigram")->kind == 't' ? "t5" : "llama");
    build_strings(f, "tokenizer.ggml.tokens", json_get(v, "tokens"));
    build_key_array(f, "tokenizer.ggml.token_type", 5, json_get(v, "types")->size);
    for (const json_value *k = json_get(v, "types")->first; k; k = k->next)
        build_number(f, (uint64_t)k->number, 4);
    build_key_array(f, "tokenizer.ggml.scores", 6, json_get(v, "scores")->size);
    for (const json_value *k = json_get(v, "scores")->first; k; k = k->next) {
        float score = (float)k->number;
        build_bytes(f, &score, 4);
    }
    build_bool(f, "tokenizer.ggml.add_space_prefix", json_get(v, "space_prefix")->kind == 't');
    build_bool(f, "tokenizer.ggml.remove_extra_whitespaces",
               json_get(v, "remove_extra_whitespaces")->kind == 't');
    build_key_u32(f, "tokenizer.ggml.unknown_token_id", 0);
    build_key_u32(f, "tokenizer.ggml.bos_token_id", 1);
    build_key_u32(f, "tokenizer.ggml.eos_token_id", 2);
}

static void test_pieces_cases(base *b, const tokenizer *t, const json_value *cases,
                              const char *name) {
    int wrong = 0, count = 0, unread = 0;
    tokenizer_ids ids = {NULL, 0, 0};
    for (const json_value *c = cases->first; c; c = c->next, count++) {
        const json_value *text = json_get(c, "text");
        base_text back = {NULL, 0, 0};
        ids.size = 0;
        if (tokenizer_encode(b, t, text->text, text->size, false, &ids) ||
            !same_ids(&ids, json_get(c, "ids"))) {
            tap_note("%s: other ids for \"%.60s\"", name, text->text);
            wrong++;
        }
        unread += tokenizer_decode(b, t, ids.data, ids.size, &back) != CAIRN_OK ||
                  (t->byte_ids['a'] >= 0 && !strstr(text->text, TOK_SPACE_MARK) && text->size &&
                   strcmp(back.data + t->space_prefix, text->text) != 0);
        base_text_free(b, &back);
    }
    tokenizer_ids_free(b, &ids);
    tap_ok(count > 200 && !wrong, "SentencePiece %s: ids of %d texts, %d wrong", name, count, wrong);
    tap_ok(!unread, "and they are the text again, %d are not", unread);
}

/* Phi 3's special tokens but <s> take the white space behind them, where the file is of that family. */
static void test_strips(base *b, const json_value *vocabulary) {
    for (int phi3 = 0; phi3 < 2; phi3++) {
        gguf_build f;
        tokenizer t;
        tokenizer_ids spaced = {NULL, 0, 0}, plain = {NULL, 0, 0};
        build_pieces(&f, vocabulary, phi3 ? "phi3" : "llama");
        if (tap_ok(!open_built(b, &f, &t), "a vocabulary of %s", phi3 ? "phi3" : "llama")) {
            const char *const texts[] = {"<s>\n </s> \n\xe3\x80\x80 the</s>\n", "<s>\n </s>the</s>"};
            bool fine = !tokenizer_encode(b, &t, texts[0], strlen(texts[0]), true, &spaced) &&
                        !tokenizer_encode(b, &t, texts[1], strlen(texts[1]), true, &plain);
            bool same = fine && spaced.size == plain.size &&
                        !memcmp(spaced.data, plain.data, spaced.size * sizeof *plain.data);
            tap_ok(fine && same == (phi3 == 1) && plain.size > 5, "white space behind special tokens");
            tokenizer_close(b, &t);
        }
        tokenizer_ids_free(b, &spaced), tokenizer_ids_free(b, &plain);
        test_memory_faults(b, &f);
        free(f.data);
    }
}

static void test_sentencepiece(base *b, const json_value *file) {
    test_strips(b, json_get(file, "vocabularies")->first);
    for (const json_value *v = json_get(file, "vocabularies")->first; v; v = v->next) {
        const char *name = json_get(v, "name")->text;
        gguf_build f;
        tokenizer t;
        tokenizer_ids ids = {NULL, 0, 0};
        build_pieces(&f, v, "llama");
        if (tap_ok(!open_built(b, &f, &t), "SentencePiece %s: a small vocabulary is read", name)) {
            test_pieces_cases(b, &t, json_get(v, "cases"), name);
            tap_ok(t.adds_bos != t.unigram && t.splits_words == !strstr(name, "phrases"),
                   "bos without a word of the file, words apart where no token joins them");
            tap_ok(!tokenizer_encode(b, &t, "<s>", 3, true, &ids) && ids.size == 1 &&
                   ids.data[0] == 1, "a control token is found where it is asked for");
            test_cancel(b, &t);
            test_long_word(b, &t);
            tokenizer_close(b, &t);
        }
        tokenizer_ids_free(b, &ids);
        test_memory_faults(b, &f);
        test_damage(b, &f);
        free(f.data);
    }
}

/* The best sum of scores of a text, over every way to cut it. */
static double best_sum(const char *text, int bytes, const char tokens[][8], const float *scores, int count,
                       double unknown) {
    double sums[64];
    for (int end = 0; end <= bytes; end++) {
        sums[end] = end ? -INFINITY : 0;
        if (end) sums[end] = sums[end - 1] + unknown; /* the test's characters have a byte each */
        for (int id = 3; id < count; id++) {
            const int size = (int)strlen(tokens[id]);
            if (size > end || memcmp(text + end - size, tokens[id], (size_t)size)) continue;
            sums[end] = fmax(sums[end], sums[end - size] + (double)scores[id]);
        }
    }
    return sums[bytes];
}

/* A random unigram model: the ids are the text, and no other cut has a greater sum. */
static bool random_unigram(base *b, uint64_t *state) {
    enum { COUNT = 24 };
    char tokens[COUNT][8] = {"<unk>", "<s>", "</s>"}, text[40];
    float scores[COUNT] = {0}, least = 0; /* of the plain tokens */
    gguf_build f = {0};
    tokenizer t;
    bool fine = true;
    for (int i = 3; i < COUNT; i++) { /* "e" is in none, and others perhaps are no token alone */
        const int size = 1 + (int)(random_next(state) % 4);
        for (int k = 0; k < size; k++) tokens[i][k] = "abcd"[random_next(state) % 4];
        scores[i] = -(float)(random_next(state) % 4096) / 64;
        for (int k = 3; k < i; k++) /* of equal texts the first counts */
            if (!strcmp(tokens[k], tokens[i])) scores[i] = scores[k];
    }
    for (int i = 3; i < COUNT; i++) least = i == 3 ? scores[i] : fminf(least, scores[i]);
    build_begin(&f, 3, 0, 5);
    build_key_string(&f, "tokenizer.ggml.model", "t5");
    build_key_array(&f, "tokenizer.ggml.tokens", 8, COUNT);
    for (int i = 0; i < COUNT; i++) build_string(&f, tokens[i], strlen(tokens[i]));
    build_key_array(&f, "tokenizer.ggml.token_type", 5, COUNT);
    for (int i = 0; i < COUNT; i++) build_number(&f, i ? i < 3 ? 3 : 1 : 2, 4);
    build_key_array(&f, "tokenizer.ggml.scores", 6, COUNT);
    for (int i = 0; i < COUNT; i++) build_bytes(&f, &scores[i], 4);
    build_bool(&f, "tokenizer.ggml.add_space_prefix", false);
    build_key_u32(&f, "tokenizer.ggml.bos_token_id", 1);
    fine = !open_built(b, &f, &t);
    for (int n = 0; n < 60 && fine; n++) {
        const int size = 1 + (int)(random_next(state) % 30);
        tokenizer_ids ids = {NULL, 0, 0};
        double sum = 0, want;
        int left = size;
        for (int k = 0; k < size; k++) text[k] = "abcde"[random_next(state) % (n % 2 ? 5 : 4)];
        want = best_sum(text, size, (const char (*)[8])tokens, scores, COUNT, (double)least - 10);
        fine = !tokenizer_encode(b, &t, text, (size_t)size, false, &ids);
        for (size_t i = 0; i < ids.size; i++) {
            size_t bytes;
            tokenizer_piece(&t, ids.data[i], &bytes);
            sum += ids.data[i] < 3 ? NAN : (double)scores[ids.data[i]];
            left -= (int)bytes;
        }
        sum += ((double)least - 10) * left; /* characters without a token are left out */
        fine = fine && fabs(sum - want) < 1e-3 /* scores lie 1/64 apart */;
        if (!fine) tap_note("\"%.*s\": %f, %f is best", size, text, sum, want);
        tokenizer_ids_free(b, &ids);
    }
    if (t.vocab) tokenizer_close(b, &t);
    free(f.data);
    return fine;
}

static void test_random_unigrams(base *b) {
    uint64_t seed = random_seed() | 1, random = seed;
    bool fine = true;
    for (int i = 0; i < 40 && fine; i++) fine = random_unigram(b, &random);
    tap_ok(fine, "unigram: no cut of a text has a greater sum (seed %llu)", (unsigned long long)seed);
}

/* What a file may say wrong of a unigram model; of the last, of one of merges. */
static void test_bad_unigram(base *b) {
    static const uint32_t bits[] = {0x7fc00000, 0x7f800000, 0xff800000, 0x80000000, 0x7f7fffff};
    for (int i = 0; i < 8; i++) {
        gguf_build f = {0};
        tokenizer t;
        const cairn_status want = i < 3 ? CAIRN_BAD_FILE : i >= 6 ? CAIRN_UNSUPPORTED : CAIRN_OK;
        cairn_status status;
        build_begin(&f, 3, 0, i < 5 ? 3 : 4);
        build_key_string(&f, "tokenizer.ggml.model", i == 7 ? "llama" : "t5");
        build_key_array(&f, "tokenizer.ggml.tokens", 8, 2);
        build_string(&f, "a", 1);
        build_string(&f, "b", 1);
        build_key_array(&f, "tokenizer.ggml.scores", 6, 2);
        build_number(&f, 0, 4);
        build_number(&f, bits[i < 5 ? i : 4], 4);
        if (i >= 5) build_key_array(&f, "tokenizer.ggml.precompiled_charsmap", 0, i >= 6 ? 4 : 0);
        if (i >= 6) build_number(&f, 0, 4);
        status = open_built(b, &f, &t);
        tap_ok(status == want, "unigram %d: %s", i, status ? b->error : "opens");
        if (!status) tokenizer_close(b, &t);
        free(f.data);
    }
}

/* What a file may say wrong of pieces, and scores that are no numbers. */
static void test_bad_pieces(base *b) {
    static const uint32_t bits[] = {0x7fc00000, 0xffc00000, 0x7f800000, 0xff800000, 0x80000000, 0};
    static const struct { uint32_t scores, element, unknown; const char *error; } rows[] = {
        {6, 6, 0, NULL}, {5, 6, 0, "scores has 5"}, {6, 5, 0, "scores"}, {6, 6, 6, "is 6"}};
    static const char *const tokens[] = {"<unk>", "<0x41>", "<0xZZ>", "aa", "a", "\xff"};
    for (size_t i = 0; i < BASE_COUNT(rows); i++) {
        gguf_build f = {0};
        tokenizer t;
        tokenizer_ids ids = {NULL, 0, 0};
        cairn_status status;
        build_begin(&f, 3, 0, 5);
        build_key_string(&f, "tokenizer.ggml.model", "llama");
        build_key_array(&f, "tokenizer.ggml.tokens", 8, 6);
        for (int j = 0; j < 6; j++) build_string(&f, tokens[j], strlen(tokens[j]));
        build_key_array(&f, "tokenizer.ggml.token_type", 5, 6);
        for (int j = 0; j < 6; j++) build_number(&f, (uint64_t)"\2\6\6\1\1\1"[j], 4);
        build_key_array(&f, "tokenizer.ggml.scores", rows[i].element, rows[i].scores);
        for (uint32_t j = 0; j < rows[i].scores; j++) build_number(&f, bits[j], 4);
        build_key_u32(&f, "tokenizer.ggml.unknown_token_id", rows[i].unknown);
        status = open_built(b, &f, &t);
        if (rows[i].error)
            tap_ok(status == CAIRN_BAD_FILE && strstr(b->error, rows[i].error), "pieces %d: %s",
                   (int)i, b->error);
        else
            tap_ok(!status && !tokenizer_encode(b, &t, "aaaA??", 6, true, &ids) && ids.size == 5 &&
                   ids.data[0] == 0 && ids.data[1] == 3 && ids.data[2] == 4 && ids.data[3] == 1 &&
                   ids.data[4] == 0, "pieces %d are good: %d ids", (int)i, (int)ids.size);
        tokenizer_ids_free(b, &ids);
        if (!status) tokenizer_close(b, &t);
        free(f.data);
    }
}

/* ---- programs ---- */

static void test_tiny(base *b, const json_value *file) {
    for (const json_value *v = json_get(file, "vocabularies")->first; v; v = v->next) {
        const char *pre = json_get(v, "pre")->text;
        gguf_build f;
        tokenizer t;
        build_vocabulary(&f, v, json_get(file, "chat_template")->text);
        if (tap_ok(!open_built(b, &f, &t), "%s: a small vocabulary is read", pre)) {
            test_cases(b, &t, json_get(v, "cases"), pre);
            test_decode(b, &t, json_get(v, "decode"), pre);
            test_chat(b, &t, json_get(file, "chat"), pre);
            test_chat_ids(b, &t, json_get(v, "chat_ids"), pre);
            test_roles(b, &t);
            test_cancel(b, &t);
            test_named_ids(b, &t);
            test_invalid(b, &t);
            test_long_word(b, &t);
            tokenizer_close(b, &t);
        }
        test_memory_faults(b, &f);
        test_damage(b, &f);
        free(f.data);
    }
    test_templates(b, json_get(file, "vocabularies")->first);
    test_plain_is_plain(b, json_get(file, "vocabularies")->first);
}

static void test_model(base *b, const json_value *file, const char *path) {
    gguf g;
    tokenizer t;
    if (!tap_ok(!gguf_open(b, path, &g), "%s is read", path)) return;
    if (tap_ok(!tokenizer_open(b, NULL, &g, &t), "and its vocabulary")) {
        test_cases(b, &t, json_get(file, "cases"), "SmolLM2");
        test_decode(b, &t, json_get(file, "decode"), "SmolLM2");
        test_chat(b, &t, json_get(file, "chat"), "SmolLM2");
        test_chat_ids(b, &t, json_get(file, "chat_ids"), "SmolLM2");
        tap_ok(tokenizer_is_end(&t, 2) && !t.adds_bos,
               "SmolLM2: <|im_end|> ends, nothing is put before");
        test_long_word(b, &t);
        tokenizer_close(b, &t);
    }
    gguf_close(b, &g);
}

int main(void) {
    cairn_allocator allocator = {NULL, test_realloc};
    json_value *file;
    const char *model = os_env("CAIRN_MODEL");
    FILE *fetched = model ? NULL : fopen("build/model/SmolLM2-135M-Instruct.Q4_1.gguf", "rb");
    base b;
    base_init(&b, &allocator, NULL, NULL, CAIRN_LOG_INFO);
    if (fetched) {
        model = "build/model/SmolLM2-135M-Instruct.Q4_1.gguf";
        fclose(fetched);
    }
    file = json_read("tests/golden/tokenizer_tiny.json");
    if (tap_ok(file != NULL, "tests/golden/tokenizer_tiny.json is there")) test_tiny(&b, file);
    json_free(file);
    file = json_read("tests/golden/chat.json");
    if (tap_ok(file != NULL, "tests/golden/chat.json is there")) test_families(&b, file);
    json_free(file);
    file = json_read("tests/golden/words.json");
    if (tap_ok(file != NULL, "tests/golden/words.json is there"))
        for (const json_value *r = json_get(file, "rules")->first; r; r = r->next)
            test_words_of(json_get(file, "texts"), r);
    json_free(file);
    test_words_are_linear();
    test_whole_words(&b);
    file = json_read("tests/golden/sentencepiece.json");
    if (tap_ok(file != NULL, "tests/golden/sentencepiece.json is there"))
        test_sentencepiece(&b, file);
    json_free(file);
    test_bad_pieces(&b);
    test_bad_unigram(&b);
    test_random_unigrams(&b);
    test_bad_vocabularies(&b);
    test_broken_specials(&b);
    test_special_rule(&b);
    test_many_specials(&b);
    test_many_merges(&b);
    test_too_many(&b);
    test_bad_strips(&b);
    file = json_read("tests/golden/tokenizer.json");
    if (!model) tap_skip("SmolLM2's vocabulary: CAIRN_MODEL names no file");
    else if (tap_ok(file != NULL, "tests/golden/tokenizer.json is there"))
        test_model(&b, file, model);
    json_free(file);
    tap_ok(live_blocks == 0, "nothing leaks");
    return tap_done();
}
