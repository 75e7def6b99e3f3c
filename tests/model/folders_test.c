/* folders: models in the form of Hugging Face's libraries (tests/folder.h), each beside its GGUF
 * file: the same logits and ids. Logits against tests/golden/folders, which transformers said of these
 * folders (scripts/golden/folders.py); tokenizers against the files and ids there. Folders with wrong
 * files: a status that names them, and nothing is left allocated. With a folder as its argument the
 * program writes the models there and ends. */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "gguf_build.h"
#include "json.h"
#include "random.h"
#include "ref/block_ref.h"
#include "ref/f16_ref.h"
#include "ref/llama_ref.h"
#include "short_memory.h"
#include "tap.h"
#include "texts.h"
#include "family.h"
#define ZOO_TYPES BLOCK_F32, BLOCK_F16, BLOCK_BF16
#include "family_zoo.h"
#include "folder.h"

enum { COUNT = 70, ANIMALS = 14 };

/* The animal as it always is. */
static family same_animal(int i) {
    uint64_t state = 500 + (uint64_t)i;
    return zoo[i].make(&state);
}

static const char *name_of(int i) { return zoo[i].name; }

static cairn_config small_config(cairn_memory_map map) {
    cairn_config c;
    cairn_config_default(&c);
    c.backend = CAIRN_BACKEND_CPU, c.log = CAIRN_LOG_OFF, c.allocator.realloc = test_realloc;
    c.threads = 1, c.page_size = 16, c.max_batch = 1, c.prefill_chunk = 16, c.memory.map = map;
    return c;
}

/* ---- logits -------------------------------------------------------------------------------------- */

/* Logits [COUNT, vocab] of the model at a path; false: it does not load. */
static bool logits_of(const char *path, cairn_memory_map map, int vocab, float *out) {
    cairn_config c = small_config(map);
    cairn_runtime *rt;
    cairn_model *m = NULL;
    cairn_eval_args a;
    int32_t ids[COUNT], *top_ids = (int32_t *)malloc(sizeof *top_ids * COUNT * (size_t)vocab);
    float *logits = (float *)malloc(sizeof *logits * COUNT * (size_t)vocab);
    char error[512];
    double nll;
    bool fine = !cairn_open(&c, &rt, error, sizeof error);
    golden_ids(vocab, COUNT, ids);
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a, a.ids = ids, a.count = COUNT, a.top = vocab;
    a.top_ids = top_ids, a.top_logits = logits;
    fine = fine && !cairn_load_model(rt, path, &m) && !cairn_eval(m, &a, &nll);
    if (!fine) tap_note("%s", cairn_last_error(rt));
    for (int i = 0; fine && i < COUNT; i++)
        for (int k = 0; k < vocab; k++)
            out[i * vocab + top_ids[i * vocab + k]] = logits[i * vocab + k];
    cairn_close(rt);
    free(top_ids), free(logits);
    return fine;
}

static double worst_off(const float *got, const float *want, int count) {
    double worst = 0;
    for (int i = 0; i < count; i++) {
        double off = fabs((double)got[i] - (double)want[i]) / (1 + fabs((double)want[i]));
        if (!(off <= worst)) worst = off;
    }
    return worst;
}

static void check_golden(int animal, const char *folder, const float *logits, int vocab) {
    char path[256];
    double worst = 0;
    snprintf(path, sizeof path, "tests/golden/folders/%s.json", name_of(animal));
    json_value *file = json_read(path);
    if (!tap_ok(file != NULL, "%s: what transformers says of it is there", folder)) return;
    const json_value *row = json_get(file, "rows")->first, *want = json_get(file, "logits")->first;
    for (; row; row = row->next, want = want->next) {
        int id = 0;
        for (const json_value *w = want->first; w; w = w->next, id++) {
            double got = (double)logits[(int)row->number * vocab + id];
            double off = fabs(got - w->number) / (1 + fabs(w->number));
            if (!(off <= worst)) worst = off;
        }
    }
    tap_ok(worst < 2e-3, "%s: logits as transformers' (%.1e off)", folder, worst);
    json_free(file);
}

/* One file, one without padding, or three shards; mapped and copied. */
static void test_animal(int i) {
    family f = same_animal(i);
    const int count = COUNT * f.vocab;
    float *want = (float *)malloc(sizeof *want * (size_t)count);
    float *got = (float *)malloc(sizeof *got * (size_t)count);
    const bool turned = !f.halves && !f.taps; /* GGUF has the rows in another order */
    char folder[128], file[128];
    snprintf(folder, sizeof folder, "build/folders/%s", name_of(i));
    snprintf(file, sizeof file, "build/folders/%s.gguf", name_of(i));
    folder_write(&f, folder, i % 3 == 2 ? 3 : i % 3);
    family_write(&f, file);
    if (tap_ok(logits_of(file, CAIRN_MAP_FILE, f.vocab, want), "%s: the file loads", file))
        for (int copied = 0; copied < 2; copied++) {
            double off = INFINITY;
            if (tap_ok(logits_of(folder, copied ? CAIRN_MAP_COPY : CAIRN_MAP_FILE, f.vocab, got),
                       "%s: the folder loads, %s", folder, copied ? "copied" : "mapped"))
                off = worst_off(got, want, count);
            tap_ok(turned ? off < 5e-4 : off == 0, "%s: logits as the file's (%.1e off)", folder, off);
        }
    check_golden(i, folder, got, f.vocab);
    tap_ok(live_blocks == 0, "nothing is left allocated");
    free(want), free(got);
    family_free(&f);
}

/* ---- tokenizers ---------------------------------------------------------------------------------- */

static void write_text(const char *folder, const char *name, const char *text) {
    folder_save(folder, name, text, strlen(text));
}

static bool copy_file(const char *from, const char *folder, const char *name) {
    base b;
    base_text text = {NULL, 0, 0};
    bool fine;
    base_init(&b, NULL, NULL, NULL, CAIRN_LOG_OFF);
    fine = !os_read_file(&b, from, &text) && folder_save(folder, name, text.data, text.size);
    base_text_free(&b, &text);
    return fine;
}

/* A folder of a vocabulary and an embedding of so many rows. */
static void write_vocabulary(const char *folder, const char *from, int rows) {
    folder_tensor embed = {"model.embed_tokens.weight", "BF16", {rows, 4, 0}, 2, NULL, (size_t)rows * 8};
    gguf_build file;
    char path[256];
    embed.data = (uint8_t *)calloc(1, embed.bytes);
    file = folder_safetensors(&embed, 1, true);
    os_make_path(folder);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, i ? "tokenizer_config.json" : "chat_template.jinja");
        remove(path);
    }
    folder_save(folder, "model.safetensors", file.data, file.size);
    copy_file(from, folder, "tokenizer.json");
    write_text(folder, "config.json", "{\"model_type\": \"qwen2\", \"num_key_value_heads\": 1, "
                                      "\"eos_token_id\": [2, 1, 5]}");
    free(file.data), free(embed.data);
}

static void check_cases(base *b, const tokenizer *t, const json_value *cases, bool special,
                        const char *name) {
    int wrong = 0, all = 0;
    for (const json_value *c = cases->first; c; c = c->next, all++) {
        const json_value *text = json_get(c, "text"), *ids = json_get(c, "ids");
        tokenizer_ids got = {NULL, 0, 0};
        bool same = !tokenizer_encode(b, t, text->text, text->size, special, &got) &&
                    got.size == ids->size;
        size_t i = 0;
        for (const json_value *id = ids->first; id && same; id = id->next)
            same = got.data[i++] == (int32_t)id->number;
        if (!same && !wrong++) tap_note("\"%s\"", text->text);
        tokenizer_ids_free(b, &got);
    }
    tap_ok(all > 15 && !wrong, "%s: ids as its maker's (%d of %d texts)", name, all - wrong, all);
}

static void test_tokenizer(const char *name) {
    char file[128], folder[128], golden[128];
    const json_value *adds;
    json_value *cases;
    base b;
    gguf g;
    tokenizer t;
    int vocab;
    snprintf(file, sizeof file, "tests/golden/folders/%s/tokenizer.json", name);
    snprintf(golden, sizeof golden, "tests/golden/folders/%s/cases.json", name);
    snprintf(folder, sizeof folder, "build/folders/tokenizer_%s", name);
    if (!tap_ok((cases = json_read(golden)) != NULL, "%s is there", golden)) return;
    vocab = (int)json_get(cases, "vocab")->number;
    adds = json_get(cases, "adds")->first;
    write_vocabulary(folder, file, vocab + 3);
    base_init(&b, &(cairn_allocator){.realloc = test_realloc}, NULL, NULL, CAIRN_LOG_OFF);
    if (!tap_ok(!hf_open(&b, NULL, folder, HF_SCAN, &g) && !tokenizer_open(&b, NULL, &g, &t), "%s: opens", folder))
        tap_note("%s", b.error);
    else {
        check_cases(&b, &t, json_get(cases, "cases"), true, name);
        tap_ok(t.adds_bos == (adds != NULL) && (!adds || t.bos == (int32_t)adds->number),
               "%s: begins texts as tokenizers does", name);
        tap_ok(t.vocab == vocab + 3 && t.eos == 2 && t.eot == 1 && t.eom == 5,
               "%s: rows without a token, and ends from the config", name);
        tokenizer_close(&b, &t);
    }
    gguf_close(&b, &g);
    tap_ok(live_blocks == 0, "nothing is left allocated");
    json_free(cases);
}

/* Unigram files with something else written into them. */
static void test_bad_unigram(void) {
    static const struct { const char *from, *to; cairn_status status; const char *says; } rows[] = {
        {"\"normalizer\":null", "\"normalizer\":{\"type\":\"Precompiled\"}", CAIRN_UNSUPPORTED,
         "the normalizer is of no known form: step Precompiled"},
        {"\"type\":\"Metaspace\"", "\"type\":\"Whitespace\"", CAIRN_UNSUPPORTED, "step Whitespace"},
        {"\"unk_id\":0", "\"unk_id\":-1", CAIRN_BAD_FILE, "unk_id a number"},
        {"\"unk_id\":0", "\"unk_id\":900", CAIRN_OK, ""},
        {"\"unk_id\":0", "\"unk_id\":null", CAIRN_OK, ""},
        {"[\"<unk>\",0.0]", "[\"<unk>\"]", CAIRN_BAD_FILE, "a list of texts with scores"},
        {"[\"<unk>\",0.0]", "[0.0,\"<unk>\"]", CAIRN_BAD_FILE, "a list of texts with scores"},
        {"[\"<unk>\",0.0]", "[\"<unk>\",[0.0]]", CAIRN_BAD_FILE, "a list of texts with scores"},
        {"[\"<unk>\",0.0]", "{\"<unk>\":0.0}", CAIRN_BAD_FILE, "a list of texts with scores"},
        {"[\"<unk>\",0.0]", "[\"<unk>\",1e300]", CAIRN_BAD_FILE, "scores[0] is no number"},
        {"\"vocab\":[", "\"vocab\":7,\"other\":[", CAIRN_BAD_FILE, "vocab"}};
    static const char *const folder = "build/folders/bad_unigram";
    static const char *const from = "tests/golden/folders/unigram-split/tokenizer.json";
    base b;
    base_text file = {NULL, 0, 0};
    base_init(&b, &(cairn_allocator){.realloc = test_realloc}, NULL, NULL, CAIRN_LOG_OFF);
    if (!tap_ok(!os_read_file(&b, from, &file) && base_text_add(&b, &file, "", 1), "%s", from)) return;
    write_vocabulary(folder, from, 200);
    for (size_t i = 0; i < BASE_COUNT(rows); i++) {
        const char *at = strstr(file.data, rows[i].from);
        base_text text = {NULL, 0, 0};
        tokenizer t;
        gguf g;
        cairn_status status;
        if (!tap_ok(at != NULL, "%s stands there", rows[i].from)) continue;
        base_text_print(&b, &text, "%.*s%s%s", (int)(at - file.data), file.data, rows[i].to,
                        at + strlen(rows[i].from));
        folder_save(folder, "tokenizer.json", text.data, text.size);
        base_text_free(&b, &text);
        status = hf_open(&b, NULL, folder, HF_SCAN, &g);
        if (!status) status = tokenizer_open(&b, NULL, &g, &t);
        tap_ok(status == rows[i].status && (!status || strstr(b.error, rows[i].says)), "%s: %s",
               rows[i].to, status ? b.error : "opens");
        if (!status) tokenizer_close(&b, &t);
        gguf_close(&b, &g);
    }
    base_text_free(&b, &file);
    tap_ok(live_blocks == 0, "nothing is left allocated");
}

/* ---- tokenizer.model ----------------------------------------------------------------------------- */

static const char *const pieces_folder = "build/folders/pieces";

/* A folder of this tokenizer.model and an embedding of so many rows. */
static void write_pieces(const void *model, size_t bytes, int rows) {
    write_vocabulary(pieces_folder, "tests/golden/folders/gpt-2/tokenizer.json", rows);
    remove("build/folders/pieces/tokenizer.json");
    write_text(pieces_folder, "config.json", "{\"model_type\": \"qwen2\", \"num_key_value_heads\": 1}");
    folder_save(pieces_folder, "tokenizer.model", model, bytes);
}

static cairn_status open_pieces(base *b, tokenizer *t) {
    gguf g;
    cairn_status status;
    base_init(b, &(cairn_allocator){.realloc = test_realloc}, NULL, NULL, CAIRN_LOG_OFF);
    status = hf_open(b, NULL, pieces_folder, HF_SCAN, &g);
    if (!status) status = tokenizer_open(b, NULL, &g, t);
    gguf_close(b, &g);
    return status;
}

/* The files that sentencepiece wrote, whole, cut short and with a byte changed. */
static void test_pieces(const json_value *vocabulary) {
    const char *name = json_get(vocabulary, "name")->text;
    const int vocab = (int)json_get(vocabulary, "tokens")->size;
    uint64_t state = 11;
    base b;
    base_text file = {NULL, 0, 0};
    tokenizer t;
    char path[128];
    int cut = 0, opened = 0;
    snprintf(path, sizeof path, "tests/golden/folders/pieces-%s/tokenizer.model", name);
    base_init(&b, &(cairn_allocator){.realloc = test_realloc}, NULL, NULL, CAIRN_LOG_OFF);
    if (!tap_ok(!os_read_file(&b, path, &file), "%s is there", path)) return;
    write_pieces(file.data, file.size, vocab + 3);
    if (!tap_ok(!open_pieces(&b, &t), "%s: opens", path)) tap_note("%s", b.error);
    else {
        check_cases(&b, &t, json_get(vocabulary, "cases"), false, path);
        tap_ok(t.adds_bos && t.bos == 1 && t.eos == 2 && t.vocab == vocab + 3,
               "%s: ends, and rows without a token", path);
        tokenizer_close(&b, &t);
    }
    for (size_t size = 0; size < file.size; size += file.size / 41 + 1) {
        write_pieces(file.data, size, vocab);
        if (open_pieces(&b, &t)) cut++;
        else tokenizer_close(&b, &t), opened++;
    }
    tap_ok(cut > 30 && !opened, "%s: cut short it is refused", path);
    for (int i = 0; i < 60; i++) {
        const size_t at = random_next(&state) % file.size;
        const char was = file.data[at];
        file.data[at] = (char)random_next(&state);
        write_pieces(file.data, file.size, vocab);
        if (!open_pieces(&b, &t)) tokenizer_close(&b, &t);
        file.data[at] = was;
    }
    base_text_free(&b, &file);
    tap_ok(live_blocks == 0, "nothing is left allocated");
}

#define PIECE "\x0a\x0a\x0a\x01" "a\x15\x00\x00\x80\xbf\x18\x01"
#define BPE "\x12\x02\x18\x02"
#define PLAIN "\x1a\x02\x20\x00"
#define ROW(bytes, status, says) {bytes, sizeof bytes - 1, status, says}
static const struct { const char *bytes; size_t size; cairn_status status; const char *says; } pieces_rows[] = {
    ROW(PIECE BPE PLAIN, CAIRN_OK, ""),
    ROW(PIECE BPE PLAIN "\x22\x01x\xf9\x07" "12345678", CAIRN_OK, ""), /* fields that it has not */
    ROW("", CAIRN_BAD_FILE, "no model of SentencePiece, from byte 0 on"),
    ROW(BPE PLAIN, CAIRN_BAD_FILE, "no model of SentencePiece"),
    ROW(PIECE "\x0a\x0b\x0a\x01" "a", CAIRN_BAD_FILE, "no model of SentencePiece"),
    ROW(PIECE "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", CAIRN_BAD_FILE, "no model"),
    ROW(PIECE BPE PLAIN "\x22\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", CAIRN_BAD_FILE, "no model"),
    ROW(PIECE BPE PLAIN "\x20\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", CAIRN_BAD_FILE, "no model"),
    ROW(PIECE BPE PLAIN "\x20\x80", CAIRN_BAD_FILE, "no model"),
    ROW("\x08\x05" BPE PLAIN, CAIRN_BAD_FILE, "no model"), ROW("\x0b", CAIRN_BAD_FILE, "no model"),
    ROW(PIECE BPE PLAIN "\x00\x01", CAIRN_BAD_FILE, "no model"),
    ROW(PIECE "\x12\x05\x1d\x02\x00\x00\x00" PLAIN, CAIRN_BAD_FILE, "no model"),
    ROW("\x0a\x02\x18\x01" BPE PLAIN, CAIRN_BAD_FILE, "piece 0: no text"),
    ROW(PIECE "\x0a\x03\x0a\x09" "a" BPE PLAIN, CAIRN_BAD_FILE, "piece 1: no text"),
    ROW("\x0a\x02\x08\x05" BPE PLAIN, CAIRN_BAD_FILE, "piece 0: a field of another type"),
    ROW("\x0a\x05\x0a\x01" "a\x18\x09" BPE PLAIN, CAIRN_BAD_FILE, "a kind or a score"),
    ROW("\x0a\x08\x0a\x01" "a\x15\x00\x00\xc0\x7f" BPE PLAIN, CAIRN_BAD_FILE, "a kind or a score"),
    ROW(PIECE PIECE PIECE PIECE PIECE BPE PLAIN, CAIRN_BAD_FILE, "token 4: the embedding has 4 rows"),
    ROW(PIECE "\x12\x00" PLAIN, CAIRN_OK, ""), /* a unigram model */
    ROW(PIECE PLAIN, CAIRN_BAD_FILE, "no model"), ROW(PIECE BPE, CAIRN_BAD_FILE, "no model"),
    ROW(PIECE "\x12\x02\x18\x03" PLAIN, CAIRN_UNSUPPORTED, "words or characters; BPE or unigram"),
    ROW(PIECE BPE "\x1a\x00", CAIRN_OK, ""), /* remove_extra_whitespaces */
    ROW(PIECE BPE "\x1a\x05\x20\x00\x12\x01x", CAIRN_UNSUPPORTED, "a normalization"),
    ROW(PIECE BPE "\x1a\x04\x20\x00\x28\x00", CAIRN_UNSUPPORTED, "escape_whitespaces = false"),
    ROW(PIECE "\x12\x05\x18\x02\xc0\x01\x01" PLAIN, CAIRN_UNSUPPORTED, "treat_whitespace_as_suffix")};
#undef ROW

static void test_pieces_rows(void) {
    base b;
    tokenizer t;
    for (size_t i = 0; i < BASE_COUNT(pieces_rows); i++) {
        cairn_status status;
        write_pieces(pieces_rows[i].bytes, pieces_rows[i].size, 4);
        status = open_pieces(&b, &t);
        tap_ok(status == pieces_rows[i].status && (!status || strstr(b.error, pieces_rows[i].says)),
               "tokenizer.model %d: %s", (int)i, status ? b.error : "opens");
        if (!status) tokenizer_close(&b, &t);
    }
    write_pieces(pieces_rows[0].bytes, pieces_rows[0].size, 4);
    write_text(pieces_folder, "tokenizer_config.json", "{\"added_tokens_decoder\": {\"3\": {\"content\": "
               "\"<end>\", \"special\": true}}, \"add_bos_token\": false, \"eos_token\": \"<end>\"}");
    if (tap_ok(!open_pieces(&b, &t), "a token that tokenizer_config.json adds")) {
        tap_ok(t.eos == 3 && !t.adds_bos && tokenizer_is_special(&t, 3), "ends a text, none begins it");
        tokenizer_close(&b, &t);
    }
    write_text(pieces_folder, "tokenizer_config.json",
               "{\"added_tokens_decoder\": {\"0\": {\"content\": \"b\"}}}");
    tap_ok(open_pieces(&b, &t) == CAIRN_BAD_FILE && strstr(b.error, "token 0 has two texts"), "%s", b.error);
    write_text(pieces_folder, "tokenizer_config.json", "{\"added_tokens_decoder\": {\"0x\": {}}}");
    tap_ok(open_pieces(&b, &t) == CAIRN_BAD_FILE && strstr(b.error, "numbers and texts"), "%s", b.error);
    tap_ok(live_blocks == 0, "nothing is left allocated");
}

/* What tokenizer_config.json and chat_template.jinja say. */
static void test_chat(void) {
    static const char chatml[] = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n'"
                                 " + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}";
    static const char *const folder = "build/folders/tokenizer_gpt-2";
    const char *said = NULL;
    char text[1024];
    size_t bytes = 0;
    base b;
    gguf g;
    uint32_t id = 0;
    bool found = true;
    base_init(&b, &(cairn_allocator){.realloc = test_realloc}, NULL, NULL, CAIRN_LOG_OFF);
    snprintf(text, sizeof text, "{\"eos_token\": {\"content\": \"<|end|>\"}, \"bos_token\": \"<tool>\", "
             "\"add_bos_token\": true, \"chat_template\": [{\"name\": \"x\", \"template\": \"no\"}, "
             "{\"name\": \"default\", \"template\": \"a\\u00e9\\n\\ud83d\\ude00\"}]}");
    write_text(folder, "tokenizer_config.json", text);
    tap_ok(!hf_open(&b, NULL, folder, HF_SCAN, &g) &&
           !gguf_string(&b, &g, "tokenizer.chat_template", NULL, &said, &bytes) && bytes == 8 &&
           !memcmp(said, "a\xc3\xa9\n\xf0\x9f\x98\x80", 8), "the default template of several");
    tap_ok(!gguf_u32(&b, &g, "tokenizer.ggml.bos_token_id", NULL, &id) && id > 255 &&
           !gguf_u32(&b, &g, "tokenizer.ggml.eos_token_id", NULL, &id) && id == 1,
           "tokens that tokenizer_config.json names");
    gguf_close(&b, &g);
    write_text(folder, "chat_template.jinja", chatml);
    tap_ok(!hf_open(&b, NULL, folder, HF_SCAN, &g) &&
           !gguf_string(&b, &g, "tokenizer.chat_template", NULL, &said, &bytes) &&
           bytes == strlen(chatml) && !memcmp(said, chatml, bytes), "a template of its own file");
    gguf_close(&b, &g);
    write_text(folder, "tokenizer_config.json", "{\"eos_token\": \"<no such token>\"}");
    tap_ok(!hf_open(&b, NULL, folder, HF_SCAN, &g) && !gguf_u32(&b, &g, "tokenizer.ggml.eos_token_id", &found, &id) && !found,
           "an end token that the vocabulary lacks is none");
    gguf_close(&b, &g);
    tap_ok(live_blocks == 0, "nothing is left allocated");
}

/* ---- the ways to open ---------------------------------------------------------------------------- */

static void same_bytes(const gguf *a, const gguf *c, const char *what) {
    uint8_t *left = (uint8_t *)malloc(a->size), *right = (uint8_t *)malloc(a->size);
    bool same = a->size == c->size && a->tensor_count == c->tensor_count;
    for (size_t i = 0; same && i < a->tensor_count; i++) {
        const gguf_tensor *t = &a->tensors[i];
        const uint8_t *x = gguf_fetch(a, t->at, t->bytes, left);
        const uint8_t *y = gguf_fetch(c, t->at, t->bytes, right);
        same = x && y && !memcmp(x, y, t->bytes) && !strcmp(t->name, c->tensors[i].name);
    }
    tap_ok(same, "%s: tensors hold the same bytes", what);
    for (size_t at = 1; same && at < a->size; at += a->size / 7) {
        const size_t bytes = a->size - at < a->size / 3 ? a->size - at : a->size / 3;
        const uint8_t *x = gguf_fetch(a, at, bytes, left), *y = gguf_fetch(c, at, bytes, right);
        same = x && y && !memcmp(x, y, bytes);
    }
    tap_ok(same, "%s: and so do parts of the whole", what);
    free(left), free(right);
}

static void test_ways(int i) {
    char folder[128];
    base b;
    gguf copied, other;
    snprintf(folder, sizeof folder, "build/folders/%s/", name_of(i));
    base_init(&b, &(cairn_allocator){.realloc = test_realloc}, NULL, NULL, CAIRN_LOG_OFF);
    if (!tap_ok(!hf_open(&b, NULL, folder, HF_COPY, &copied), "%s is copied", folder)) return;
    for (int how = HF_MAP; how <= HF_SURVEY; how++) {
        if (how == HF_COPY) continue;
        if (tap_ok(!hf_open(&b, NULL, folder, (hf_how)how, &other), "%s is opened, way %d", folder, how))
            same_bytes(&copied, &other, folder);
        gguf_close(&b, &other);
    }
    gguf_close(&b, &copied);
    tap_ok(live_blocks == 0, "nothing is left allocated");
}

/* Each allocation fails once: a status, and nothing is left. */
static void test_short_memory(const char *folder, hf_how how) {
    long tries = 0;
    bool told = true;
    base b;
    gguf g;
    base_init(&b, &(cairn_allocator){.realloc = test_realloc}, NULL, NULL, CAIRN_LOG_OFF);
    for (cairn_status status = CAIRN_OUT_OF_MEMORY; status; tries++) {
        allocations_left = tries;
        status = hf_open(&b, NULL, folder, how, &g);
        allocations_left = -1;
        told = told && (!status || status == CAIRN_OUT_OF_MEMORY) && tries < 10000;
        if (!status) gguf_close(&b, &g);
        if (live_blocks || !told) break;
    }
    tap_ok(told && tries > 9 && live_blocks == 0, "%s, way %d: memory runs out at each of %ld allocations",
           folder, (int)how, tries);
}

static void test_calls(void) {
    static const char *const folder = "build/folders/qwen2";
    cairn_config c = small_config(CAIRN_MAP_FILE);
    cairn_model_report report;
    cairn_memory_estimate e;
    cairn_runtime *rt;
    cairn_model *m = NULL;
    cairn_session *s = NULL;
    const int32_t ids[] = {5, 6, 7, 8};
    char why[2048];
    size_t bytes = 0;
    uint8_t *saved;
    report.struct_size = sizeof report, e.struct_size = sizeof e;
    tap_ok(!cairn_model_check(&c, folder, &report, why, sizeof why) && report.reasons == 0 &&
           !strcmp(report.architecture, "qwen2") && !strcmp(report.name, "qwen2") &&
           report.tensors == 26 && report.vocab == 120, "cairn_model_check knows the folder");
    tap_ok(!cairn_estimate(&c, folder, &e, why, sizeof why) && e.weights_bytes > 100000,
           "cairn_estimate does");
    if (cairn_open(&c, &rt, why, sizeof why) || cairn_load_model(rt, folder, &m) ||
        cairn_session_open(m, &s)) { tap_ok(false, "%s", why); return; }
    cairn_append_ids(s, ids, 4);
    cairn_session_save_memory(s, NULL, 0, &bytes);
    saved = (uint8_t *)malloc(bytes);
    tap_ok(!cairn_session_save_memory(s, saved, bytes, &bytes), "a session is saved");
    cairn_close(rt);
    c.memory.map = CAIRN_MAP_COPY;
    if (cairn_open(&c, &rt, why, sizeof why) || cairn_load_model(rt, folder, &m) ||
        cairn_session_open(m, &s)) { tap_ok(false, "%s", why); return; }
    tap_ok(!cairn_session_load_memory(s, saved, bytes), "and loads where the weights are copied");
    cairn_close(rt);
    free(saved);
}

/* ---- hostile folders ----------------------------------------------------------------------------- */

/* A part of a file is replaced; from NULL: all of it, by `to`, or by nothing where that is NULL. HEAD:
 * the header of model.safetensors. */
#define HEAD "model.safetensors"
#define INDEX "model.safetensors.index.json"
typedef struct hostile {
    const char *file, *from, *to;
    cairn_status status;
    const char *says;
} hostile;

static const hostile hostiles[] = {
    {"config.json", NULL, NULL, CAIRN_FILE_NOT_FOUND, "config.json"},
    {"config.json", NULL, "", CAIRN_BAD_FILE, "config.json: byte 0: the text ends too early"},
    {"config.json", NULL, "[1]", CAIRN_BAD_FILE, "config.json: no JSON object"},
    {"config.json", NULL, "{\"a\": tru}", CAIRN_BAD_FILE, "byte 6: not a JSON value"},
    {"config.json", NULL, "{\"a\": 01}", CAIRN_BAD_FILE, "config.json: byte 6"},
    {"config.json", NULL, "{\"a\": 1,}", CAIRN_BAD_FILE, "byte 8: a name is expected"},
    {"config.json", NULL, "{\"a\": \"\\ud800\"}", CAIRN_BAD_FILE, "an escape that is no character"},
    {"config.json", NULL, "{\"a\": \"\\ud800\\u0041\"}", CAIRN_BAD_FILE, "half a surrogate pair"},
    {"config.json", NULL, "{\"a\": \"\xff\"}", CAIRN_BAD_FILE, "byte 7: not UTF-8"},
    {"config.json", NULL, "{} x", CAIRN_BAD_FILE, "something stands behind the value"},
    {"config.json", "qwen2", "qwen9", CAIRN_UNSUPPORTED, "model_type is 'qwen9'; supported: llama"},
    {"config.json", "model_type", "model_kind", CAIRN_BAD_FILE, "'model_type': a text is expected"},
    {"config.json", "\"hidden_size\": 128", "\"hidden_size\": 1.5", CAIRN_BAD_FILE,
     "'hidden_size': a whole number"},
    {"config.json", "\"hidden_size\": 128", "\"hidden_size\": -1", CAIRN_BAD_FILE, "'hidden_size'"},
    {"config.json", "\"hidden_size\": 128", "\"hidden_size\": 64", CAIRN_BAD_FILE,
     "'token_embd.weight' is [120, 128]; [120, 64] is expected"},
    {"config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3", CAIRN_BAD_FILE,
     "'blk.2.attn_q.weight' is missing"},
    {"config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1", CAIRN_UNSUPPORTED,
     "'blk.1."},
    {"config.json", "num_key_value_heads", "kv", CAIRN_BAD_FILE, "'num_key_value_heads': a value"},
    {"config.json", "silu", "relu", CAIRN_UNSUPPORTED, "'hidden_act' is not supported so; silu is"},
    {"config.json", "\"use_sliding_window\": false", "\"use_sliding_window\": true", CAIRN_UNSUPPORTED,
     "'use_sliding_window'"},
    {"config.json", "\"hidden_act\"", "\"quantization_config\": {}, \"hidden_act\"", CAIRN_UNSUPPORTED,
     "'quantization_config'"},
    {"config.json", "\"hidden_act\"", "\"layer_types\": [\"linear_attention\"], \"hidden_act\"",
     CAIRN_UNSUPPORTED, "'layer_types'"},
    {"config.json", "\"hidden_act\"", "\"rope_scaling\": {\"type\": \"dynamic\"}, \"hidden_act\"",
     CAIRN_UNSUPPORTED, "'rope_scaling'"},
    {"config.json", "\"hidden_act\"", "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 0.5}, "
     "\"hidden_act\"", CAIRN_BAD_FILE, "'factor'"},
    {"config.json", "\"hidden_act\"", "\"rope_scaling\": {\"type\": \"longrope\", \"long_factor\": 5}, "
     "\"hidden_act\"", CAIRN_BAD_FILE, "'long_factor': a list"},
    {"config.json", "\"hidden_act\"", "\"rope_scaling\": {\"type\": \"llama3\", \"factor\": 8}, "
     "\"hidden_act\"", CAIRN_BAD_FILE, "'rope_scaling': factor, low_freq_factor"},
    {"config.json", "\"hidden_act\"", "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2, \"mscale\": 1}, "
     "\"hidden_act\"", CAIRN_UNSUPPORTED, "yarn without mscale"},
    {"config.json", "\"hidden_act\"", "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2, "
     "\"original_max_position_embeddings\": \"x\"}, \"hidden_act\"", CAIRN_BAD_FILE,
     "'original_max_position_embeddings': a whole number"},
    {"config.json", "qwen2", "mistral\", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2, "
     "\"attention_factor\": 1.1}, \"sliding_window\": \"x\", \"y\": \"", CAIRN_BAD_FILE,
     "'sliding_window': a whole number"},
    {"config.json", "\"num_key_value_heads\": ", "\"num_key_value_heads\": \"x\", \"y\": ", CAIRN_BAD_FILE,
     "'num_key_value_heads': a whole number"},
    {"config.json", "qwen2", "smollm3\", \"no_rope_layers\": [0, 0], \"y\": \"", CAIRN_UNSUPPORTED,
     "'no_rope_layers'"},
    {"config.json", "qwen2", "gemma3_text\", \"sliding_window_pattern\": 0, \"y\": \"", CAIRN_BAD_FILE,
     "'sliding_window_pattern': a whole number"},
    {"config.json", "qwen2", "gemma3_text\", \"rope_parameters\": {\"full_attention\": {}, "
     "\"sliding_attention\": {\"rope_type\": \"linear\"}}, \"y\": \"", CAIRN_UNSUPPORTED,
     "'sliding_attention'"},
    {"config.json", "qwen2", "lfm2\", \"y\": \"", CAIRN_BAD_FILE, "'layer_types': a list"},
    {"config.json", "qwen2", "lfm2\", \"layer_types\": 3, \"y\": \"", CAIRN_BAD_FILE, "'layer_types': a list"},
    {"config.json", "qwen2", "lfm2\", \"layer_types\": [\"mamba\"], \"y\": \"", CAIRN_UNSUPPORTED,
     "'conv' or 'full_attention'"},
    {"config.json", "\"hidden_act\"", "\"rope_scaling\": {\"type\": \"llama3\", \"factor\": \"x\"}, "
     "\"hidden_act\"", CAIRN_BAD_FILE, "'factor'"},
    {"config.json", "\"hidden_act\"", "\"partial_rotary_factor\": \"x\", \"hidden_act\"", CAIRN_BAD_FILE,
     "'partial_rotary_factor'"},
    {"tokenizer.json", "\"type\": \"ByteLevel\", \"add", "\"type\": \"Split\", \"pattern\": {\"Regex\": "
     "\"x\"}, \"behavior\": \"Removed\", \"invert\": true, \"add", CAIRN_UNSUPPORTED,
     "the pre_tokenizer is of no known form"},
    {"tokenizer.json", "\"type\": \"ByteLevel\", \"add", "\"type\": \"Metaspace\", \"replacement\": "
     "\"\xe2\x96\x81\", \"prepend_scheme\": \"never\", \"add", CAIRN_UNSUPPORTED,
     "a model without byte_fallback"},
    {"config.json", NULL, "{\"a\": \"\\u12g4\"}", CAIRN_BAD_FILE, "an escape that is no character"},
    {"tokenizer.json", "\"vocab\": {", "\"vocab\": 5, \"y\": {", CAIRN_BAD_FILE, "'vocab': an object"},
    {"tokenizer.json", "\"added_tokens\": [", "\"added_tokens\": 5, \"y\": [", CAIRN_BAD_FILE,
     "'added_tokens': a list"},
    {"tokenizer.json", NULL, NULL, CAIRN_FILE_NOT_FOUND, "tokenizer.json"},
    {"tokenizer.json", NULL, "{}", CAIRN_BAD_FILE, "'model': an object is expected"},
    {"tokenizer.json", "\"BPE\"", "\"WordPiece\"", CAIRN_UNSUPPORTED, "type 'WordPiece'"},
    {"tokenizer.json", "\"BPE\"", "\"Unigram\"", CAIRN_UNSUPPORTED, "a unigram model of bytes"},
    {"tokenizer.json", "\"type\": \"ByteLevel\", \"add", "\"type\": \"Whitespace\", \"add",
     CAIRN_UNSUPPORTED, "the pre_tokenizer is of no known form"},
    {"tokenizer.json", "\"use_regex\": true", "\"use_regex\": false", CAIRN_UNSUPPORTED, "pre_tokenizer"},
    {"tokenizer.json", "\"\\\"\": 1,", "\"\\\"\": 120,", CAIRN_BAD_FILE, "token 120: the embedding has 120"},
    {"tokenizer.json", "\"\\\"\": 1,", "\"\\\"\": 2,", CAIRN_BAD_FILE, "token 2 has two texts"},
    {"tokenizer.json", "\"\\\"\": 1,", "\"\\\"\": \"1\",", CAIRN_BAD_FILE, "a text and its number"},
    {"tokenizer.json", "\"merges\": []", "\"merges\": [\"a zz\"]", CAIRN_BAD_FILE, "merges[0]"},
    {"tokenizer.json", "\"merges\": []", "\"merges\": [[\"a\"]]", CAIRN_BAD_FILE, "a pair of texts"},
    {"tokenizer.json", "\"merges\": []", "\"merges\": 5", CAIRN_BAD_FILE, "'merges': a list"},
    {HEAD, NULL, NULL, CAIRN_FILE_NOT_FOUND, "the folder has no model.safetensors"},
    {HEAD, NULL, "", CAIRN_BAD_FILE, "a header of 0 bytes in a file of 0"},
    {HEAD, NULL, "\xff\xff\xff\xff\xff\xff\xff\xff{}", CAIRN_BAD_FILE, "not a safetensors file"},
    {HEAD, "\"__metadata__\": {\"format\": \"pt\"}", "\"model.norm.weight\":{\"dtype\":\"F32\","
     "\"shape\":[0],\"data_offsets\":[0,0]}", CAIRN_BAD_FILE, "'model.norm.weight' stands twice"},
    {HEAD, "\"model.norm.weight\"", "\"\"", CAIRN_BAD_FILE, "not a name"},
    {HEAD, "\"model.norm.weight\"", "\"a\\u0000b\"", CAIRN_BAD_FILE, "not a name"},
    {HEAD, "\"model.norm.weight\"", "\"model.extra.weight\"", CAIRN_BAD_FILE,
     "'output_norm.weight' is missing"},
    {HEAD, "\"__metadata__\": {\"format\": \"pt\"}", "\"x\":{\"dtype\":\"F32\",\"shape\":[0],"
     "\"data_offsets\":[0,0]}", CAIRN_BAD_FILE, "'x': a dimension is zero"},
    {HEAD, "\"model.norm.weight\":{\"dtype\":\"F32\"", "\"model.norm.weight\":{\"dtype\":\"F8_E4M3\"",
     CAIRN_UNSUPPORTED, "'model.norm.weight': its dtype is not supported"},
    {HEAD, "\"model.norm.weight\":{\"dtype\":\"F32\"", "\"model.norm.weight\":{\"dtype\":\"I32\"",
     CAIRN_UNSUPPORTED, "I32"},
    {HEAD, "\"model.norm.weight\":{\"dtype\":\"F32\",\"shape\":[128]",
     "\"model.norm.weight\":{\"dtype\":\"F32\",\"shape\":[127]", CAIRN_BAD_FILE,
     "'model.norm.weight': its data_offsets do not hold its shape"},
    {HEAD, "\"shape\":[128]", "\"shape\":[9223372036854775807,9223372036854775807]", CAIRN_BAD_FILE,
     "its shape is no shape"},
    {HEAD, "\"shape\":[128]", "\"shape\":[1,1,1,1,128]", CAIRN_BAD_FILE, "up to 4 numbers"},
    {HEAD, "\"data_offsets\":[0,", "\"data_offsets\":[-1,", CAIRN_BAD_FILE, "do not lie in the file"},
    {HEAD, "\"data_offsets\":[0,", "\"data_offsets\":[99999999999,", CAIRN_BAD_FILE, "do not lie in"},
    {HEAD, "\"__metadata__\": {\"format\": \"pt\"}", "\"x\":{\"dtype\":\"F32\",\"shape\":[1],"
     "\"data_offsets\":[0,4]}", CAIRN_BAD_FILE, "its data lie on another's"},
    {HEAD, "\"model.norm.weight\":{", "\"__metadata__\":{", CAIRN_BAD_FILE, "a gap lies before its data"},
    {HEAD, "{\"__metadata__\"", "[\"__metadata__\"", CAIRN_BAD_FILE, "is expected"},
    {INDEX, NULL, "{\"weight_map\": 5}", CAIRN_BAD_FILE, "'weight_map': an object"},
    {INDEX, NULL, "{\"weight_map\": {\"a\": 5}}", CAIRN_BAD_FILE, "the name of a file in the folder"},
    {INDEX, NULL, "{\"weight_map\": {\"a\": \"../x\"}}", CAIRN_BAD_FILE, "the name of a file"},
    {INDEX, NULL, "{\"weight_map\": {\"a\": \"x/y\"}}", CAIRN_BAD_FILE, "the name of a file"},
    {INDEX, NULL, "{\"weight_map\": {\"a\": \"absent.safetensors\"}}", CAIRN_FILE_NOT_FOUND, "absent"},
    {INDEX, NULL, "{\"weight_map\": {\"a\": \"model.safetensors\"}}", CAIRN_BAD_FILE,
     "the tensor 'a' is not in the file 'model.safetensors'"},
    {INDEX, NULL, "{\"weight_map\": {}}", CAIRN_BAD_FILE, "'model.embed_tokens.weight'"},
};

/* The file of the folder, changed. */
static void spoil_file(const char *folder, const hostile *h) {
    base b;
    base_text was = {NULL, 0, 0};
    gguf_build out = {0};
    char path[256];
    size_t head = 0, at, cut;
    const bool is_head = !strcmp(h->file, HEAD);
    const char *found = NULL;
    snprintf(path, sizeof path, "%s/%s", folder, h->file);
    base_init(&b, NULL, NULL, NULL, CAIRN_LOG_OFF);
    if (!h->from) {
        if (h->to) write_text(folder, h->file, h->to);
        else remove(path);
        return;
    }
    os_read_file(&b, path, &was);
    for (at = is_head ? 8 : 0; at + strlen(h->from) <= was.size && !found; at++)
        if (!memcmp(was.data + at, h->from, strlen(h->from))) found = was.data + at;
    if (!tap_ok(found != NULL, "%s holds %s", h->file, h->from)) {
        base_text_free(&b, &was);
        return;
    }
    cut = (size_t)(found - was.data);
    if (is_head) memcpy(&head, was.data, 8);
    if (is_head) build_number(&out, head + strlen(h->to) - strlen(h->from), 8);
    build_bytes(&out, was.data + (is_head ? 8 : 0), cut - (is_head ? 8 : 0));
    build_bytes(&out, h->to, strlen(h->to));
    build_bytes(&out, found + strlen(h->from), was.size - cut - strlen(h->from));
    folder_save(folder, h->file, out.data, out.size);
    free(out.data);
    base_text_free(&b, &was);
}

/* The status and the words of a load, and that nothing is left of it. */
static void check_refused(const char *folder, cairn_status wanted, const char *says, const char *what) {
    for (int copied = 0; copied < 2; copied++) {
        cairn_config c = small_config(copied ? CAIRN_MAP_COPY : CAIRN_MAP_FILE);
        cairn_runtime *rt;
        cairn_model *m = NULL;
        cairn_status status;
        char error[256];
        if (cairn_open(&c, &rt, error, sizeof error)) { tap_ok(false, "%s", error); return; }
        status = cairn_load_model(rt, folder, &m);
        if (!tap_ok(status == wanted && strstr(cairn_last_error(rt), says) && !m, "%s: %s", what, says))
            tap_note("%d: %s", (int)status, cairn_last_error(rt));
        cairn_close(rt);
        tap_ok(live_blocks == 0, "nothing is left allocated");
    }
}

static void test_hostile(const family *f, const hostile *h) {
    static const char *const folder = "build/folders/hostile";
    folder_write(f, folder, 1);
    spoil_file(folder, h);
    check_refused(folder, h->status, h->says, h->file);
}

static void test_deep(const family *f) {
    static const char *const folder = "build/folders/hostile";
    char deep[400], wide[400] = "{\"a\": ";
    memset(deep, '[', sizeof deep - 1), deep[sizeof deep - 1] = '\0';
    memset(wide + 6, '9', sizeof wide - 8), wide[sizeof wide - 2] = '}';
    folder_write(f, folder, 1);
    write_text(folder, "config.json", deep);
    check_refused(folder, CAIRN_BAD_FILE, "byte 64: nested too deep", "400 brackets");
    write_text(folder, "config.json", wide);
    check_refused(folder, CAIRN_BAD_FILE, "'model_type'", "a number of 392 digits");
}

/* Weights in more files than one has hands for. */
static void test_many_files(const family *f, const char *folder) {
    static const uint8_t empty[] = {2, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
    static const char begin[] = "{\"weight_map\": {\"a\": \"model.safetensors\"";
    char name[64], path[256];
    gguf_build index = {0};
    folder_write(f, folder, 1);
    build_bytes(&index, begin, strlen(begin));
    for (int i = 0; i < SHARDS_FILES; i++) {
        snprintf(name, sizeof name, ", \"%d\": \"%d.safetensors\"", i, i);
        build_bytes(&index, name, strlen(name));
        snprintf(name, sizeof name, "%d.safetensors", i);
        folder_save(folder, name, empty, sizeof empty);
    }
    build_bytes(&index, "}}", 2);
    folder_save(folder, INDEX, index.data, index.size);
    check_refused(folder, CAIRN_UNSUPPORTED, "the weights lie in more than 256 files", INDEX);
    for (int i = 0; i < SHARDS_FILES; i++) {
        snprintf(path, sizeof path, "%s/%d.safetensors", folder, i);
        remove(path);
    }
    free(index.data);
}

/* Files of sizes that make no sense. */
static void test_sizes(const family *f) {
    static const char *const folder = "build/folders/hostile";
    static const uint8_t list[] = {2, 0, 0, 0, 0, 0, 0, 0, '[', ']'};
    const char *const large[] = {"config.json", "tokenizer.json"};
    char path[256];
    for (int i = 0; i < 2; i++) {
        folder_write(f, folder, 1);
        snprintf(path, sizeof path, "%s/%s", folder, large[i]);
        if (tap_ok(!truncate(path, (off_t)1 << 30), "%s of 1 GiB, a hole", large[i]))
            check_refused(folder, CAIRN_BAD_FILE, "are sensible", large[i]);
    }
    test_many_files(f, folder);
    folder_write(f, folder, 1);
    FILE *file = fopen("build/folders/hostile/" HEAD, "ab");
    if (tap_ok(file && fputc(0, file) == 0 && !fclose(file), "weights with a byte more"))
        check_refused(folder, CAIRN_BAD_FILE, "the tensors end at byte", HEAD);
    folder_save(folder, HEAD, list, sizeof list);
    check_refused(folder, CAIRN_BAD_FILE, "the header is no object", HEAD);
}

/* An expert that is not there, and one of another type. */
static void test_experts(void) {
    static const hostile bad[] = {
        {HEAD, "mlp.experts.3.up_proj", "mlp.experts.9.up_proj", CAIRN_BAD_FILE,
         "ffn_up_exps.weight' of expert 3 is missing"},
        {HEAD, "mlp.experts.3.up_proj", "mlp.experts.03.up_proj", CAIRN_BAD_FILE, "of expert 3"}};
    family f = same_animal(6);
    for (int i = 0; i < 2; i++) test_hostile(&f, &bad[i]);
    family_free(&f);
}

static void test_hostiles(void) {
    family f = same_animal(4);
    for (size_t i = 0; i < BASE_COUNT(hostiles); i++) test_hostile(&f, &hostiles[i]);
    test_deep(&f);
    test_sizes(&f);
    family_free(&f);
    test_experts();
}

/* ---- other ways to say the same ------------------------------------------------------------------ */

/* The folder of an animal after changes is the same model, bit for bit. */
static void test_same(int animal, const hostile *changes, size_t count) {
    family f = same_animal(animal);
    const size_t values = (size_t)(COUNT * f.vocab);
    float *want = (float *)malloc(sizeof *want * values), *got = (float *)malloc(sizeof *got * values);
    static const char *const folder = "build/folders/same";
    folder_write(&f, folder, 1);
    bool loads = logits_of(folder, CAIRN_MAP_FILE, f.vocab, want);
    for (size_t i = 0; i < count; i++) spoil_file(folder, &changes[i]);
    tap_ok(loads && logits_of(folder, CAIRN_MAP_FILE, f.vocab, got) &&
           !memcmp(got, want, sizeof *got * values), "%s: %s", name_of(animal), changes[0].to);
    free(want), free(got);
    family_free(&f);
}

/* Liquid's own keys; Gemma's ropes as newer libraries write them, and what published configs leave out. */
static void test_other_keys(void) {
    static const hostile liquid[] = {
        {"config.json", "\"layer_types\": [\"conv\", \"full_attention\", \"conv\"]",
         "\"full_attn_idxs\": [1]", CAIRN_OK, ""},
        {"config.json", "\"rope_theta\": 1000000.0", "\"rope_theta\": 7.0, \"theta\": 1000000.0", CAIRN_OK, ""},
        {"config.json", "\"tie_word_embeddings\": true", "\"tie_embedding\": true", CAIRN_OK, ""}};
    static const hostile plain[] = {{"config.json", "\"rope_theta\": 1000000.0, ", "", CAIRN_OK, ""}};
    static const hostile gemma[] = {
        {"config.json", ", \"head_dim\": 256", "", CAIRN_OK, ""},
        {"config.json", "\"query_pre_attn_scalar\": 256, ", "", CAIRN_OK, ""},
        {"config.json", "\"rope_theta\": 1000000.0, ", "", CAIRN_OK, ""}};
    static const hostile ropes[] = {
        {"config.json", "\"rope_theta\": 50000.0, ", "\"rope_parameters\": {\"full_attention\": {\"rope_type\": "
         "\"default\", \"rope_theta\": 50000}, \"sliding_attention\": {\"rope_theta\": 500}}, ", CAIRN_OK, ""},
        {"config.json", ", \"rope_local_base_freq\": 500.0", "", CAIRN_OK, ""}};
    test_same(13, liquid, BASE_COUNT(liquid)), test_same(13, plain, 1);
    test_same(7, gemma, BASE_COUNT(gemma)), test_same(8, ropes, BASE_COUNT(ropes));
}

/* Gemma 3 with eyes: its text's config within another, its tensors under a prefix, older or newer. */
static void test_seeing(bool newer) {
    static const char *const folder = "build/folders/seeing";
    family f = same_animal(7);
    static folder_tensor tensors[512];
    const size_t values = (size_t)(COUNT * f.vocab);
    float *want = (float *)malloc(sizeof *want * values), *got = (float *)malloc(sizeof *got * values);
    folder_text config = folder_config(&f), whole = {0};
    const int count = folder_tensors(&f, tensors);
    gguf_build file;
    folder_write(&f, folder, 1);
    bool loads = logits_of(folder, CAIRN_MAP_FILE, f.vocab, want);
    for (int i = 0; i < count; i++) {
        char name[96];
        memcpy(name, tensors[i].name, sizeof name);
        snprintf(tensors[i].name, sizeof name, "%s%.70s", newer ? "model.language_model." : "language_model.",
                 newer ? name + 6 : name);
    }
    tensors[count] = tensors[0];
    snprintf(tensors[count].name, sizeof tensors[count].name, "%svision_tower.patch.weight", newer ? "model." : "");
    tensors[count + 1] = tensors[0];
    snprintf(tensors[count + 1].name, sizeof tensors[0].name, "%smulti_modal_projector.weight",
             newer ? "model." : "");
    file = folder_safetensors(tensors, count + 2, true);
    folder_print(&whole, "{\"model_type\": \"gemma3\", \"vision_config\": {\"hidden_size\": 3}, "
                 "\"eos_token_id\": [0], \"text_config\": ");
    whole.data = (char *)realloc(whole.data, whole.size + config.size + 2);
    memcpy(whole.data + whole.size, config.data, config.size + 1);
    memcpy(whole.data + whole.size + config.size, "}", 2);
    write_text(folder, "config.json", whole.data);
    folder_save(folder, "model.safetensors", file.data, file.size);
    tap_ok(loads && logits_of(folder, CAIRN_MAP_FILE, f.vocab, got) &&
           !memcmp(got, want, sizeof *got * values), "gemma3: the text of a model that sees");
    if (!newer) { /* the same tensor by both names, and a text_config that is none */
        memcpy(tensors[count].name, "model.norm.weight", 18);
        free(file.data);
        file = folder_safetensors(tensors, count + 1, true);
        folder_save(folder, "model.safetensors", file.data, file.size);
        check_refused(folder, CAIRN_BAD_FILE, "'model.norm.weight' stands twice", "two names");
        write_text(folder, "config.json", "{\"model_type\": \"gemma3\", \"text_config\": [1]}");
        check_refused(folder, CAIRN_BAD_FILE, "'text_config': an object", "text_config");
        write_text(folder, "config.json", "{\"model_type\": \"gemma3\"}");
        check_refused(folder, CAIRN_BAD_FILE, "'text_config': an object", "no text_config");
    }
    for (int i = 0; i < count; i++) free(tensors[i].data);
    free(file.data), free(config.data), free(whole.data), free(want), free(got);
    family_free(&f);
}

/* ---- state dicts of PyTorch ---------------------------------------------------------------------- */

/* The same models as in safetensors, bit for bit. */
static void test_torch(int i, int form) {
    family f = same_animal(i);
    const size_t count = (size_t)(COUNT * f.vocab);
    float *want = (float *)malloc(sizeof *want * count), *got = (float *)malloc(sizeof *got * count);
    char folder[128];
    snprintf(folder, sizeof folder, "build/folders/%s", name_of(i));
    folder_write(&f, folder, 1);
    bool loads = logits_of(folder, CAIRN_MAP_FILE, f.vocab, want);
    folder_write(&f, folder, form);
    for (int copied = 0; copied < 2; copied++)
        tap_ok(loads && logits_of(folder, copied ? CAIRN_MAP_COPY : CAIRN_MAP_FILE, f.vocab, got) &&
               !memcmp(got, want, sizeof *got * count), "%s: a state dict, %s", folder,
               copied ? "copied" : "mapped");
    tap_ok(live_blocks == 0, "nothing is left allocated");
    free(want), free(got);
    family_free(&f);
}

/* A file that torch.save wrote: views, a parameter, one storage for two, and what a module adds. */
static void test_torch_saved(void) {
    static const char *const folder = "build/folders/torch";
    static const char *const tokenizer_file = "tests/golden/folders/gpt-2/tokenizer.json";
    const gguf_tensor *embed, *norm, *other;
    float value, sum = 0;
    base b;
    gguf g;
    write_vocabulary(folder, tokenizer_file, 400);
    remove("build/folders/torch/model.safetensors");
    copy_file("tests/golden/folders/state.pt", folder, "model.pt");
    base_init(&b, &(cairn_allocator){.realloc = test_realloc}, NULL, NULL, CAIRN_LOG_OFF);
    if (!tap_ok(!hf_open(&b, NULL, folder, HF_MAP, &g), "a file of torch.save opens")) {
        tap_note("%s", b.error);
        return;
    }
    embed = gguf_tensor_find(&g, "token_embd.weight"), norm = gguf_tensor_find(&g, "output_norm.weight");
    other = gguf_tensor_find(&g, "blk.0.attn_q.weight");
    tap_ok(embed && embed->shape[0] == 4 && embed->shape[1] == 400 && embed->type == BLOCK_BF16 &&
           norm && norm->shape[0] == 6 && norm->type == BLOCK_F32 &&
           other && other->shape[0] == 4 && other->shape[1] == 3, "its shapes");
    for (int i = 0; i < 6 && norm; i++) {
        memcpy(&value, (const uint8_t *)norm->data + 4 * i, 4);
        sum += value * (float)(1 + i);
    }
    tap_ok(sum == 0.25f * (0 + 2 * 1 + 3 * 2 + 4 * 3 + 5 * 4 + 6 * 5), "and numbers");
    tap_ok(embed && other && !memcmp((const uint8_t *)embed->data + 8 * 10, other->data, 24),
           "a view of some rows");
    gguf_close(&b, &g);
    tap_ok(live_blocks == 0, "nothing is left allocated");
}

/* Bytes that are put at `offset` from where `find` stands. */
typedef struct torch_patch {
    const char *find;
    size_t bytes, offset;
    const char *to;
    size_t to_bytes;
    cairn_status status;
    const char *says;
} torch_patch;

#define PATCH(find, offset, to) find, sizeof find - 1, offset, to, sizeof to - 1
static const torch_patch torch_patches[] = {
    {PATCH("torch._utils\n", 0, "builtins.sys"), CAIRN_BAD_FILE,
     "data.pkl: it names 'builtins.sys _rebuild_tensor_v2'"},
    {PATCH("collections\nOrd", 0, "cOllections"), CAIRN_BAD_FILE, "it names 'cOllections OrderedDict'"},
    {PATCH("\x80\2c", 2, "i"), CAIRN_BAD_FILE, "the opcode 0x69"},
    {PATCH("\x80\2c", 2, "\x93"), CAIRN_BAD_FILE, "the opcode 0x93"},
    {PATCH("\x80\2c", 2, "R"), CAIRN_BAD_FILE, "a value is missing"},
    {PATCH("q\1(", 1, "\7"), CAIRN_BAD_FILE, "a value is missing"},
    {PATCH("q\1(", 0, "h\5"), CAIRN_BAD_FILE, "a value is missing"},
    {PATCH("q\1(", 2, "N"), CAIRN_BAD_FILE, "a mark is missing"},
    {PATCH("RtRu.", 3, ".."), CAIRN_UNSUPPORTED, "no dict of tensors"},
    {PATCH("RtRu.", 4, "N"), CAIRN_BAD_FILE, "it is cut short"},
    {PATCH("PK\1\2", 10, "\x08"), CAIRN_BAD_FILE, "compressed or encrypted"},
    {PATCH("PK\1\2", 8, "\1"), CAIRN_BAD_FILE, "compressed or encrypted"},
    {PATCH("PK\1\2", 42, "\xff\xff\xff\x7f"), CAIRN_BAD_FILE, "lies outside of it"},
    {PATCH("PK\1\2", 28, "\xff\xff"), CAIRN_BAD_FILE, "directory is cut short"},
    {PATCH("PK\1\2", 54, "D"), CAIRN_BAD_FILE, "has no data.pkl"},
    {PATCH("PK\1\2", 20, "\xff\xff\xff\x7f\xff\xff\xff\x7f"), CAIRN_BAD_FILE, "reaches past its end"},
    {PATCH("PK\1\2", 0, "X"), CAIRN_BAD_FILE, "directory is broken"},
    {PATCH("PK\3\4", 0, "X"), CAIRN_BAD_FILE, "not where it should be"},
    {PATCH("PK\5\6", 0, "X"), CAIRN_BAD_FILE, "not a zip file"},
    {PATCH("PK\5\6", 10, "\xff\xff"), CAIRN_BAD_FILE, "directory is cut short"},
    {PATCH("PK\5\6", 16, "\xff\xff\xff\xff"), CAIRN_BAD_FILE, "lies outside of it"},
    {PATCH("little", 0, "biggie"), CAIRN_UNSUPPORTED, "not little-endian"},
    {PATCH("X\1\0\0\0000X\3", 5, "Z"), CAIRN_BAD_FILE, "a storage is not in the zip file"},
    {PATCH("tQK\0", 3, "\x80"), CAIRN_BAD_FILE, "reaches past its storage"},
    {PATCH("tQK\0", 1, "N"), CAIRN_BAD_FILE, "not made as PyTorch makes it"},
    {PATCH("(KxK\x80t", 2, "\xff"), CAIRN_BAD_FILE, "larger than its storage"},
    {PATCH("(KxK\x80t", 2, "\0"), CAIRN_BAD_FILE, "or empty"},
    {PATCH("(K\x80K\1t", 2, "\x81"), CAIRN_UNSUPPORTED, "whose rows do not follow each other"},
    {PATCH("model.layers.1.self_attn.v_proj.bias", 13, "0"), CAIRN_BAD_FILE,
     "'model.layers.0.self_attn.v_proj.bias' stands twice"},
};

static void test_torch_hostile(const family *f, const torch_patch *p) {
    static const char *const folder = "build/folders/hostile";
    base b;
    base_text was = {NULL, 0, 0};
    bool found = false;
    base_init(&b, NULL, NULL, NULL, CAIRN_LOG_OFF);
    folder_write(f, folder, -1);
    os_read_file(&b, "build/folders/hostile/pytorch_model.bin", &was);
    for (size_t at = 0; at + p->bytes <= was.size && !found; at++) {
        if (memcmp(was.data + at, p->find, p->bytes)) continue;
        memcpy(was.data + at + p->offset, p->to, p->to_bytes);
        found = true;
    }
    folder_save(folder, "pytorch_model.bin", was.data, was.size);
    base_text_free(&b, &was);
    if (tap_ok(found, "the file holds what is changed")) check_refused(folder, p->status, p->says, "torch");
}

static void test_torch_hostiles(void) {
    family f = same_animal(4);
    for (size_t i = 0; i < BASE_COUNT(torch_patches); i++) test_torch_hostile(&f, &torch_patches[i]);
    folder_write(&f, "build/folders/hostile", -2);
    write_text("build/folders/hostile", "model.pt", "PK");
    check_refused("build/folders/hostile", CAIRN_BAD_FILE, "not a zip file", "torch");
    family_free(&f);
}

/* Pickles by hand, in a zip file that has one storage of 16 bytes. */
#define TEXT(bytes, text) "X" bytes "\0\0\0" text
#define STORED TEXT("\7", "storage") "ctorch\nFloatStorage\n" TEXT("\1", "0") TEXT("\3", "cpu") "K\4tQ"
#define TENSOR(dims, strides) \
    "ctorch._utils\n_rebuild_tensor_v2\n((" STORED "K\0(" dims "t(" strides "t\x89)tR"
#define ONE TENSOR("K\4", "K\1")
#define PICKLE(text) "\x80\2" text, sizeof text + 1
static const struct { const char *pickle; size_t bytes; cairn_status status; const char *says; } pickles[] = {
    {PICKLE("}" TEXT("\1", "w") ONE "s."), CAIRN_BAD_FILE, "embed_tokens.weight' [voc"}, /* read, but no model */
    {PICKLE("}r\0\0\0\0j\0\0\0\0" TEXT("\1", "w") ONE "s(" TEXT("\1", "n") "\x8a\1\xff"
            TEXT("\1", "g") "G\0\0\0\0\0\0\0\0u."), CAIRN_BAD_FILE, "embed_tokens.weight' [voc"},
    {PICKLE("}" TEXT("\1", "w") TENSOR("K\1K\1K\1K\1K\4", "K\1K\1K\1K\1K\1") "s."), CAIRN_UNSUPPORTED,
     "more than 4 dimensions"},
    {PICKLE("}K\1" ONE "s."), CAIRN_BAD_FILE, "a tensor without a name of 1 to 127 bytes"},
    {PICKLE("}" TEXT("\1", "w") ONE "s}" TEXT("\1", "v") ONE "s."), CAIRN_UNSUPPORTED, "in several dicts"},
    {PICKLE("}(" TEXT("\1", "w") "u."), CAIRN_BAD_FILE, "a key without a value"},
    {PICKLE("}\x8a\11"), CAIRN_BAD_FILE, "a number of more than 8 bytes"},
    {PICKLE("cabc"), CAIRN_BAD_FILE, "it is cut short"},
    {PICKLE("cabc\nde"), CAIRN_BAD_FILE, "it is cut short"}};

static void test_pickles(void) {
    static const char *const folder = "build/folders/hostile";
    static const char zeros[16] = {0};
    family f = same_animal(4);
    folder_write(&f, folder, -1);
    for (size_t i = 0; i < BASE_COUNT(pickles); i++) {
        gguf_build out = {0}, list = {0};
        folder_zip_entry(&out, &list, "a/data.pkl", pickles[i].pickle, pickles[i].bytes);
        folder_zip_entry(&out, &list, "a/data/0", zeros, sizeof zeros);
        folder_zip_end(&out, &list, 2);
        folder_save(folder, "pytorch_model.bin", out.data, out.size);
        free(out.data), free(list.data);
        check_refused(folder, pickles[i].status, pickles[i].says, "a pickle");
    }
    family_free(&f);
}

/* The file as it is where its directory lies behind 4 GiB: all places and sizes in fields of 8 bytes, which
 * stand behind another extra field. */
static gguf_build large_zip(const uint8_t *was, size_t bytes) {
    gguf_build out = {0};
    const uint8_t *const end = was + bytes - 22;
    uint64_t at = end[16] | end[17] << 8 | end[18] << 16, list;
    build_bytes(&out, was, (size_t)at);
    list = out.size;
    for (const uint8_t *d = was + at, *next; d < end; d = next) {
        const size_t name = d[28];
        next = d + 46 + name;
        build_bytes(&out, d, 20);
        for (int i = 0; i < 8; i++) build_number(&out, 0xff, 1);
        build_number(&out, name, 2), build_number(&out, 34, 2);
        build_bytes(&out, d + 32, 10);
        build_number(&out, 0xffffffffu, 4), build_bytes(&out, d + 46, name);
        build_number(&out, 9, 2), build_number(&out, 2, 2), build_number(&out, 7, 2);
        build_number(&out, 1, 2), build_number(&out, 24, 2);
        for (int i = 0; i < 2; i++) build_bytes(&out, d + (i ? 20 : 24), 4), build_number(&out, 0, 4);
        build_bytes(&out, d + 42, 4), build_number(&out, 0, 4);
    }
    at = out.size;
    build_bytes(&out, "PK\6\6", 4), build_number(&out, 44, 8), build_number(&out, 45, 4);
    build_number(&out, 0, 8);
    for (int i = 0; i < 2; i++) build_bytes(&out, end + 10, 2), build_number(&out, 0, 6);
    build_number(&out, at - list, 8), build_number(&out, list, 8);
    build_bytes(&out, "PK\6\7", 4), build_number(&out, 0, 4), build_number(&out, at, 8);
    build_number(&out, 1, 4);
    build_bytes(&out, end, 8);
    for (int i = 0; i < 12; i++) build_number(&out, 0xff, 1);
    build_number(&out, 0, 2);
    return out;
}

static void test_torch_large(void) {
    static const char *const folder = "build/folders/large", *const file = "build/folders/large/pytorch_model.bin";
    family f = same_animal(4);
    const size_t values = (size_t)(COUNT * f.vocab);
    float *want = (float *)malloc(sizeof *want * values), *got = (float *)malloc(sizeof *got * values);
    base b;
    base_text was = {NULL, 0, 0};
    base_init(&b, NULL, NULL, NULL, CAIRN_LOG_OFF);
    folder_write(&f, folder, -1);
    bool loads = logits_of(folder, CAIRN_MAP_FILE, f.vocab, want);
    os_read_file(&b, file, &was);
    gguf_build large = large_zip((const uint8_t *)was.data, was.size);
    folder_save(folder, "pytorch_model.bin", large.data, large.size);
    tap_ok(loads && logits_of(folder, CAIRN_MAP_FILE, f.vocab, got) &&
           !memcmp(got, want, sizeof *got * values), "a state dict in a large zip file's form");
    large.data[large.size - 22 - 20 - 56] = 'X';
    folder_save(folder, "pytorch_model.bin", large.data, large.size);
    check_refused(folder, CAIRN_BAD_FILE, "a broken record of a large zip file", "torch");
    base_text_free(&b, &was);
    free(large.data), free(want), free(got);
    family_free(&f);
}

static int write_zoo(const char *to) {
    char path[256];
    for (int i = 0; i < ANIMALS; i++) {
        family f = same_animal(i);
        snprintf(path, sizeof path, "%s/%s", to, name_of(i));
        folder_write(&f, path, 1);
        family_free(&f);
    }
    return 0;
}

int main(int count, char **words) {
    if (count > 1) return write_zoo(words[1]);
    static const char *const forms[] = {"gpt-2", "smollm", "llama-bpe", "qwen2", "gpt-4o", "tekken",
                                        "llama", "gemma", "always", "first", "phrases", "strips",
                                        "unigram", "unigram-first", "unigram-split"};
    for (int i = 0; i < ANIMALS; i++) test_animal(i);
    for (size_t i = 0; i < BASE_COUNT(forms); i++) test_tokenizer(forms[i]);
    test_bad_unigram();
    json_value *pieces = json_read("tests/golden/sentencepiece.json");
    if (tap_ok(pieces != NULL, "tests/golden/sentencepiece.json is there"))
        for (const json_value *v = json_get(pieces, "vocabularies")->first; v; v = v->next) test_pieces(v);
    json_free(pieces);
    test_pieces_rows();
    test_chat();
    for (int i = 4; i < 7; i++) test_ways(i);
    test_short_memory("build/folders/qwen3moe", HF_MAP), test_short_memory("build/folders/qwen3moe", HF_COPY);
    test_calls();
    test_hostiles();
    test_other_keys();
    test_seeing(false), test_seeing(true);
    test_torch(6, -1), test_torch(7, -2);
    test_torch_saved();
    test_short_memory("build/folders/torch", HF_COPY);
    test_torch_large();
    test_torch_hostiles();
    test_pickles();
    return tap_done();
}
