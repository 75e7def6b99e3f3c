/* hf_tokenizer: tokenizer.json and what stands beside it, as the keys of GGUF that say the same.
 *
 * Three forms are known: byte-level BPE, whose words are cut by one of the published expressions, and,
 * as SentencePiece's vocabularies are converted, BPE over characters with bytes for what it lacks, and
 * unigram models.
 * Normalization to NFC is left out, as GGUF has no key for it. */

/* text NULL: none. */
typedef struct hf_token { const char *text; uint32_t bytes; int32_t kind; float score; } hf_token;

typedef struct hf_vocabulary {
    hf_folder *h;
    const jdoc *j;
    uint32_t model;
    hf_token *tokens; /* [h->vocab] */
    bool bytes;       /* byte-level; otherwise over characters */
    bool unigram;
    int64_t unknown, bos, eos; /* as tokenizer.model has them where nothing else does; -1: none */
} hf_vocabulary;

/* ---- how words are cut ----------------------------------------------------------------------- */

#define HF_SHORT "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define HF_LINES HF_SHORT "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define HF_UPPERS "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define HF_LOWERS "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define HF_CASED(tail) "[^\\r\\n\\p{L}\\p{N}]?" HF_UPPERS "*" HF_LOWERS "+" tail \
                       "|[^\\r\\n\\p{L}\\p{N}]?" HF_UPPERS "+" HF_LOWERS "*" tail "|"
#define HF_TAIL(ends) "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n" ends "]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const struct { const char *pattern, *name; } hf_patterns[] = {
    {HF_LINES "\\p{N}{1,3}" HF_TAIL(""), "llama-bpe"}, {HF_LINES "\\p{N}" HF_TAIL(""), "qwen2"},
    {HF_CASED(HF_SHORT "?") "\\p{N}{1,3}" HF_TAIL("/"), "gpt-4o"},
    {HF_CASED("") "\\p{N}" HF_TAIL("/"), "tekken"}};

/* What a pre-tokenizer's steps come to. */
typedef struct hf_steps {
    const char *pattern;
    bool digits, bytes, words, marks, unknown;
    uint32_t first; /* that is unknown; 0: none */
} hf_steps;

static void hf_read_step(const jdoc *j, uint32_t step, hf_steps *out) {
    const uint32_t type = jdoc_get(j, step, "type"), behavior = jdoc_get(j, step, "behavior");
    const bool inverted = jdoc_says(j, jdoc_get(j, step, "invert"), "true");
    uint32_t pattern = jdoc_get(j, step, "pattern"), regex;
    if (jdoc_says(j, type, "Digits")) {
        out->digits = jdoc_says(j, jdoc_get(j, step, "individual_digits"), "true");
        out->unknown = out->unknown || !out->digits;
    } else if (jdoc_says(j, type, "ByteLevel")) {
        out->bytes = true;
        out->words = !jdoc_says(j, jdoc_get(j, step, "use_regex"), "false");
        out->unknown = out->unknown || jdoc_says(j, jdoc_get(j, step, "add_prefix_space"), "true");
    } else if (jdoc_says(j, type, "Metaspace")) {
        out->marks = true;
    } else if (jdoc_says(j, type, "Split") && pattern) {
        regex = jdoc_get(j, pattern, "Regex");
        pattern = jdoc_get(j, pattern, "String");
        if (pattern) { /* gemma's, behind a normalizer that leaves no such space */
            out->unknown = out->unknown || !jdoc_says(j, pattern, " ");
            return;
        }
        out->unknown = out->unknown || out->pattern || !jdoc_is(j, regex, JDOC_STRING) ||
                       !(jdoc_says(j, behavior, "Isolated") ||
                         (inverted && jdoc_says(j, behavior, "Removed")));
        out->pattern = "another one";
        for (size_t i = 0; i < BASE_COUNT(hf_patterns) && regex; i++)
            if (jdoc_says(j, regex, hf_patterns[i].pattern)) out->pattern = hf_patterns[i].name;
    } else {
        out->unknown = true;
    }
}

/* The first of the steps under `key`, and *end behind the last: a sequence's, or the one that is none.
 * There is none where the first is not before *end. */
static uint32_t hf_first_step(const jdoc *j, const char *key, const char *list, uint32_t *end) {
    const uint32_t whole = jdoc_get(j, 0, key);
    const uint32_t steps = whole && jdoc_says(j, jdoc_get(j, whole, "type"), "Sequence")
                               ? jdoc_get(j, whole, list) : 0;
    *end = steps ? j->nodes[steps].end : whole ? j->nodes[whole].end : 0;
    return steps ? steps + 1 : whole;
}

/* step: the one that is not known, or 0. */
static cairn_status hf_no_words(hf_folder *h, const char *what, uint32_t step) {
    const jdoc *j = &h->tokenizer.doc;
    const uint32_t type = jdoc_get(j, step, "type");
    const jdoc_node *n = &j->nodes[type];
    return base_fail(h->b, CAIRN_UNSUPPORTED, "%s: %s is of no known form%s%.*s; known: byte-level BPE "
                     "of the forms gpt-2, smollm, llama-bpe, qwen2, gpt-4o and tekken, and "
                     "SentencePiece's BPE and unigram models", h->tokenizer.path.data, what,
                     step && type ? ": step " : "", step && type && n->bytes < 64 ? (int)n->bytes : 0,
                     j->text + n->at);
}

/* The name under which GGUF has the pre-tokenizer; NULL in *name: over characters. */
static cairn_status hf_read_words(hf_folder *h, const char **name) {
    const jdoc *j = &h->tokenizer.doc;
    hf_steps steps = {NULL, false, false, false, false, false, 0};
    uint32_t end, at = hf_first_step(j, "pre_tokenizer", "pretokenizers", &end);
    for (; at < end; at = j->nodes[at].end) {
        hf_read_step(j, at, &steps);
        if (steps.unknown && !steps.first) steps.first = at;
    }
    *name = steps.pattern ? steps.pattern : steps.digits ? "smollm" : "gpt-2";
    if (steps.unknown || (steps.pattern && *steps.pattern == 'a') ||
        (steps.bytes ? steps.marks || steps.words == !!steps.pattern
                     : steps.pattern || steps.digits))
        return hf_no_words(h, "the pre_tokenizer", steps.first);
    if (steps.pattern && steps.digits) return hf_no_words(h, "the pre_tokenizer", 0);
    if (!steps.bytes) *name = NULL;
    return CAIRN_OK;
}

/* Over characters: where a space comes before a text, and whether every space parts words. */
static cairn_status hf_read_spaces(const hf_vocabulary *v) {
    hf_folder *h = v->h;
    const jdoc *j = v->j;
    uint32_t end, at = hf_first_step(j, "normalizer", "normalizers", &end);
    bool marks = false, known = true, prefix = false;
    uint32_t unknown = 0;
    for (; at < end; at = j->nodes[at].end) {
        const uint32_t type = jdoc_get(j, at, "type"), from = jdoc_get(j, at, "pattern");
        if (jdoc_says(j, type, "Prepend") &&
            jdoc_says(j, jdoc_get(j, at, "prepend"), TOK_SPACE_MARK))
            prefix = true;
        else if (jdoc_says(j, type, "Replace") && from &&
                 jdoc_says(j, jdoc_get(j, from, "String"), " ") &&
                 jdoc_says(j, jdoc_get(j, at, "content"), TOK_SPACE_MARK))
            marks = true;
        else if (known) known = false, unknown = at;
    }
    for (at = hf_first_step(j, "pre_tokenizer", "pretokenizers", &end); at < end;
         at = j->nodes[at].end) {
        if (!jdoc_says(j, jdoc_get(j, at, "type"), "Metaspace")) continue;
        known = known && !marks && (v->unigram || !jdoc_says(j, jdoc_get(j, at, "split"), "true")) &&
                jdoc_says(j, jdoc_get(j, at, "replacement"), TOK_SPACE_MARK);
        if (v->unigram && !jdoc_says(j, jdoc_get(j, at, "split"), "false"))
            hf_key_bool(h, GGUF_EACH_SPACE, true);
        marks = true;
        prefix = !jdoc_says(j, jdoc_get(j, at, "prepend_scheme"), "never");
        hf_key_bool(h, GGUF_PREFIX_ONCE, true);
        hf_key_bool(h, GGUF_PREFIX_FIRST, jdoc_says(j, jdoc_get(j, at, "prepend_scheme"), "first"));
    }
    hf_key_bool(h, "tokenizer.ggml.add_space_prefix", prefix);
    return known && marks ? CAIRN_OK : hf_no_words(h, "the normalizer", unknown);
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static cairn_status hf_place_token(hf_vocabulary *v, uint64_t id, const char *text, size_t bytes,
                                   int kind) {
    hf_folder *h = v->h;
    hf_token *t;
    if (bytes > UINT32_MAX / 2 || id >= (uint64_t)h->vocab)
        return base_fail(h->b, CAIRN_BAD_FILE, "%s: token %llu: the embedding has %lld rows",
                         h->tokenizer.path.data, (unsigned long long)id, (long long)h->vocab);
    t = &v->tokens[id];
    if (t->text && (t->bytes != bytes || memcmp(t->text, text, bytes)))
        return base_fail(h->b, CAIRN_BAD_FILE, "%s: token %llu has two texts",
                         h->tokenizer.path.data, (unsigned long long)id);
    t->text = text, t->bytes = (uint32_t)bytes;
    if (t->kind != TOK_UNKNOWN) t->kind = kind;
    return CAIRN_OK;
}

static cairn_status hf_add_token(hf_vocabulary *v, uint32_t text, uint32_t number, int kind) {
    hf_folder *h = v->h;
    const jdoc_node *n = &v->j->nodes[text];
    uint64_t id = 0;
    if (!jdoc_is(v->j, text, JDOC_STRING) || !jdoc_whole(v->j, number, INT32_MAX, &id))
        return hf_wrong(h, &h->tokenizer, "vocab, added_tokens", "a text and its number");
    return hf_place_token(v, id, v->j->text + n->at, n->bytes, kind);
}

/* A unigram model's: a list of texts with scores; the place in it is the id. */
static cairn_status hf_read_scored(hf_vocabulary *v, uint32_t vocab) {
    const jdoc *j = v->j;
    const uint32_t unknown = jdoc_get(j, v->model, "unk_id");
    uint64_t id = 0, none = UINT64_MAX;
    cairn_status status = CAIRN_OK;
    if (!jdoc_is(j, vocab, JDOC_ARRAY) || (unknown && !jdoc_whole(j, unknown, INT32_MAX, &none)))
        return hf_wrong(v->h, &v->h->tokenizer, "vocab", "a list, and unk_id a number,");
    for (uint32_t at = vocab + 1; at < j->nodes[vocab].end && !status; at = j->nodes[at].end, id++) {
        const jdoc_node *n = &j->nodes[at], *text = n + 1;
        if (n->kind != JDOC_ARRAY || n->count != 2 || text->kind != JDOC_STRING ||
            !jdoc_is(j, text->end, JDOC_NUMBER))
            return hf_wrong(v->h, &v->h->tokenizer, "vocab", "a list of texts with scores");
        status = hf_place_token(v, id, j->text + text->at, text->bytes,
                                id == none ? TOK_UNKNOWN
                                : tokenizer_byte_token(j->text + text->at, text->bytes) < 0
                                    ? TOK_NORMAL : TOK_BYTE);
        if (!status) v->tokens[id].score = (float)jdoc_value(j, text->end);
    }
    if (unknown && none < id) v->unknown = (int64_t)none;
    return status;
}

static cairn_status hf_read_named(hf_vocabulary *v, uint32_t vocab) {
    const jdoc *j = v->j;
    const uint32_t unknown = jdoc_get(j, v->model, "unk_token");
    cairn_status status = CAIRN_OK;
    if (!jdoc_is(j, vocab, JDOC_OBJECT))
        return hf_wrong(v->h, &v->h->tokenizer, "vocab", "an object");
    for (uint32_t at = vocab + 1; at < j->nodes[vocab].end && !status; at = j->nodes[at + 1].end) {
        const char *text = j->text + j->nodes[at].at;
        const size_t bytes = j->nodes[at].bytes;
        const bool is_unknown = unknown && !v->bytes && j->nodes[unknown].bytes == bytes &&
                                !memcmp(text, j->text + j->nodes[unknown].at, bytes);
        const bool is_byte = !v->bytes && tokenizer_byte_token(text, bytes) >= 0;
        status = hf_add_token(v, at, at + 1,
                              is_unknown ? TOK_UNKNOWN : is_byte ? TOK_BYTE : TOK_NORMAL);
    }
    return status;
}

static cairn_status hf_read_vocab(hf_vocabulary *v) {
    const jdoc *j = v->j;
    const uint32_t vocab = jdoc_get(j, v->model, "vocab"), added = jdoc_get(j, 0, "added_tokens");
    cairn_status status = v->unigram ? hf_read_scored(v, vocab) : hf_read_named(v, vocab);
    if (!status && added && j->nodes[added].kind != JDOC_ARRAY)
        status = hf_wrong(v->h, &v->h->tokenizer, "added_tokens", "a list");
    for (uint32_t at = added + 1; added && at < j->nodes[added].end && !status;
         at = j->nodes[at].end) {
        const bool special = jdoc_says(j, jdoc_get(j, at, "special"), "true");
        status = hf_add_token(v, jdoc_get(j, at, "content"), jdoc_get(j, at, "id"),
                              special ? TOK_CONTROL : TOK_USER);
    }
    return status;
}

static void hf_write_tokens(hf_vocabulary *v) {
    hf_folder *h = v->h;
    hf_key_array(h, "tokenizer.ggml.tokens", GGUF_STRING, (uint64_t)h->vocab);
    for (int64_t i = 0; i < h->vocab; i++) {
        char name[32]; /* of a row of the embedding that no token has */
        snprintf(name, sizeof name, "[PAD%lld]", (long long)i);
        if (v->tokens[i].text) hf_put_string(h, &h->keys, v->tokens[i].text, v->tokens[i].bytes);
        else hf_put_string(h, &h->keys, name, strlen(name));
    }
    hf_key_array(h, "tokenizer.ggml.token_type", GGUF_I32, (uint64_t)h->vocab);
    for (int64_t i = 0; i < h->vocab; i++)
        hf_put_number(h, &h->keys,
                      (uint64_t)(v->tokens[i].text ? v->tokens[i].kind : TOK_UNUSED), 4);
}

static void hf_write_scores(hf_vocabulary *v) {
    hf_key_array(v->h, "tokenizer.ggml.scores", GGUF_F32, (uint64_t)v->h->vocab);
    for (int64_t i = 0; i < v->h->vocab; i++)
        hf_put(v->h, &v->h->keys, &v->tokens[i].score, sizeof v->tokens[i].score);
}

/* A merge is "LEFT RIGHT" or ["LEFT", "RIGHT"]. */
static cairn_status hf_write_merges(hf_vocabulary *v) {
    hf_folder *h = v->h;
    const jdoc *j = v->j;
    const uint32_t merges = jdoc_get(j, v->model, "merges");
    if (!jdoc_is(j, merges, JDOC_ARRAY)) return hf_wrong(h, &h->tokenizer, "merges", "a list");
    hf_key_array(h, "tokenizer.ggml.merges", GGUF_STRING, j->nodes[merges].count);
    for (uint32_t at = merges + 1; at < j->nodes[merges].end; at = j->nodes[at].end) {
        const jdoc_node *n = &j->nodes[at], *left = n + 1, *right = n + 2;
        if (n->kind == JDOC_STRING) {
            hf_put_string(h, &h->keys, j->text + n->at, n->bytes);
            continue;
        }
        if (n->kind != JDOC_ARRAY || n->count != 2 || left->kind != JDOC_STRING ||
            right->kind != JDOC_STRING)
            return hf_wrong(h, &h->tokenizer, "merges", "a pair of texts");
        hf_put_number(h, &h->keys, (uint64_t)left->bytes + 1 + right->bytes, 8);
        hf_put(h, &h->keys, j->text + left->at, left->bytes);
        hf_put(h, &h->keys, " ", 1);
        hf_put(h, &h->keys, j->text + right->at, right->bytes);
    }
    return CAIRN_OK;
}

/* ---- ends of texts --------------------------------------------------------------------------- */

/* The id of a token by its text; -1: there is none. */
static int64_t hf_id_of(const hf_vocabulary *v, const char *text, size_t bytes) {
    for (int64_t i = 0; i < v->h->vocab; i++)
        if (v->tokens[i].text && v->tokens[i].bytes == bytes &&
            !memcmp(v->tokens[i].text, text, bytes))
            return i;
    return -1;
}

/* The id of a token that tokenizer_config.json names, or else config.json numbers: the `which`th of
 * a list that is not `other`. */
static int64_t hf_named_id(const hf_vocabulary *v, const char *name, const char *number,
                           uint32_t which, int64_t other) {
    const jdoc *t = &v->h->tokenizer_config.doc, *c = &v->h->config.doc;
    uint32_t at = name ? jdoc_get(t, 0, name) : 0, list = jdoc_get(c, 0, number), end;
    uint64_t id = 0;
    if (at && t->nodes[at].kind == JDOC_OBJECT) at = jdoc_get(t, at, "content");
    if (at && t->nodes[at].kind == JDOC_STRING)
        return hf_id_of(v, t->text + t->nodes[at].at, t->nodes[at].bytes);
    if (!list) return -1;
    end = c->nodes[list].end;
    for (at = list + (c->nodes[list].kind == JDOC_ARRAY); at < end; at = c->nodes[at].end)
        if (jdoc_whole(c, at, (uint64_t)v->h->vocab - 1, &id) && (int64_t)id != other && !which--)
            return (int64_t)id;
    return -1;
}

/* Whether a text begins with bos: as the post-processor has it, or else the config. *bos: the one
 * that the post-processor names, where nothing else does. */
static bool hf_adds_bos(const hf_vocabulary *v, int64_t *bos) {
    const jdoc *j = v->j, *t = &v->h->tokenizer_config.doc;
    uint32_t end, at = hf_first_step(j, "post_processor", "processors", &end), said, first, id;
    for (; at < end; at = j->nodes[at].end) {
        said = jdoc_get(j, at, "single");
        if (!jdoc_says(j, jdoc_get(j, at, "type"), "TemplateProcessing") ||
            !jdoc_is(j, said, JDOC_ARRAY) || !j->nodes[said].count) continue;
        first = jdoc_get(j, said + 1, "SpecialToken");
        id = first ? jdoc_get(j, first, "id") : 0;
        if (!jdoc_is(j, id, JDOC_STRING)) return false;
        if (*bos < 0) *bos = hf_id_of(v, j->text + j->nodes[id].at, j->nodes[id].bytes);
        return true;
    }
    said = jdoc_get(t, 0, "add_bos_token");
    return said ? jdoc_says(t, said, "true") : !j->nodes; /* as classes for tokenizer.model have it */
}

static void hf_write_ends(const hf_vocabulary *v) {
    hf_folder *h = v->h;
    const uint32_t unknown = jdoc_get(v->j, v->model, "unk_token");
    int64_t bos = hf_named_id(v, "bos_token", "bos_token_id", 0, -1), ids[4];
    const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                "tokenizer.ggml.eom_token_id", "tokenizer.ggml.unknown_token_id"};
    const bool adds = hf_adds_bos(v, &bos);
    if (bos < 0) bos = v->bos;
    ids[0] = hf_named_id(v, "eos_token", "eos_token_id", 0, -1);
    ids[1] = hf_named_id(v, NULL, "eos_token_id", 0, ids[0]);
    ids[2] = hf_named_id(v, NULL, "eos_token_id", 1, ids[0]);
    ids[3] = jdoc_is(v->j, unknown, JDOC_STRING)
                 ? hf_id_of(v, v->j->text + v->j->nodes[unknown].at, v->j->nodes[unknown].bytes) : -1;
    if (ids[0] < 0) ids[0] = v->eos;
    if (ids[3] < 0) ids[3] = v->unknown;
    for (int i = 0; i < 4; i++)
        if (ids[i] >= 0) hf_key_u32(h, keys[i], (uint64_t)ids[i]);
    if (bos >= 0) hf_key_u32(h, "tokenizer.ggml.bos_token_id", (uint64_t)bos);
    hf_key_bool(h, "tokenizer.ggml.add_bos_token", adds);
}

/* The chat template, of a file of its own or of tokenizer_config.json, there perhaps one of
 * several. */
static cairn_status hf_write_template(hf_folder *h) {
    const jdoc *t = &h->tokenizer_config.doc;
    uint32_t at = jdoc_get(t, 0, "chat_template");
    hf_file file;
    cairn_status status;
    memset(&file, 0, sizeof file);
    status = hf_read_file(h, "chat_template.jinja", HF_MOST_CONFIG, true, &file);
    if (at && t->nodes[at].kind == JDOC_ARRAY) {
        uint32_t each = at + 1, end = t->nodes[at].end;
        for (at = 0; each < end; each = t->nodes[each].end)
            if (jdoc_says(t, jdoc_get(t, each, "name"), "default"))
                at = jdoc_get(t, each, "template");
    }
    if (!status && file.there)
        hf_key_text(h, "tokenizer.chat_template", file.text.data ? file.text.data : "",
                    file.text.size);
    else if (!status && jdoc_is(t, at, JDOC_STRING))
        hf_key_text(h, "tokenizer.chat_template", t->text + t->nodes[at].at, t->nodes[at].bytes);
    hf_close_file(h->b, &file);
    return status;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static cairn_status hf_find_model(hf_vocabulary *v) {
    const jdoc *j = v->j;
    uint32_t type;
    v->model = jdoc_get(j, 0, "model");
    type = v->model ? jdoc_get(j, v->model, "type") : 0;
    if (!jdoc_is(j, v->model, JDOC_OBJECT))
        return hf_wrong(v->h, &v->h->tokenizer, "model", "an object");
    v->unigram = type && jdoc_says(j, type, "Unigram");
    if (type && !v->unigram && !jdoc_says(j, type, "BPE"))
        return base_fail(v->h->b, CAIRN_UNSUPPORTED, "%s: a model of type '%.*s'; BPE and Unigram are "
                         "supported", v->h->tokenizer.path.data,
                         (int)(j->nodes[type].bytes < 64 ? j->nodes[type].bytes : 0),
                         j->text + j->nodes[type].at);
    return CAIRN_OK;
}

/* The keys of the model: what it is called, and where it puts spaces. */
static cairn_status hf_write_model(hf_vocabulary *v) {
    hf_folder *h = v->h;
    const jdoc *j = v->j;
    const char *name;
    cairn_status status = hf_find_model(v);
    if (status || (status = hf_read_words(h, &name))) return status;
    v->bytes = name != NULL;
    if (v->bytes && v->unigram) return hf_no_words(h, "a unigram model of bytes", 0);
    if (!v->bytes && (status = hf_read_spaces(v))) return status;
    if (v->unigram) hf_key_bool(h, GGUF_WIDE_SUMS, true);
    if (!v->bytes && !v->unigram &&
        !jdoc_says(j, jdoc_get(j, v->model, "byte_fallback"), "true"))
        return hf_no_words(h, "a model without byte_fallback", 0);
    name = v->bytes ? name : v->unigram ? "t5" : "llama";
    if (v->bytes) hf_key_text(h, "tokenizer.ggml.pre", name, strlen(name));
    if (v->bytes)
        hf_key_bool(h, GGUF_WHOLE_WORDS,
                    jdoc_says(j, jdoc_get(j, v->model, "ignore_merges"), "true"));
    name = v->bytes ? "gpt2" : name;
    hf_key_text(h, "tokenizer.ggml.model", name, strlen(name));
    return CAIRN_OK;
}

static cairn_status hf_write_tokenizer(hf_vocabulary *v) {
    cairn_status status = hf_write_model(v);
    if (status || (status = hf_read_vocab(v))) return status;
    hf_write_tokens(v);
    if (v->unigram) hf_write_scores(v);
    else if ((status = hf_write_merges(v))) return status;
    hf_write_ends(v);
    return hf_write_template(v->h);
}
