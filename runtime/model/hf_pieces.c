/* hf_pieces: tokenizer.model, the file of SentencePiece (a message of protobuf), as the keys of GGUF that
 * say the same. Fields without meaning here are stepped over; what would cut or spell texts otherwise
 * than BPE or a unigram model over characters as they stand is refused by name. */

/* What is left of a message. wrong: it was no message. */
typedef struct hf_wire { const char *at, *end; bool wrong; } hf_wire;

enum { HF_VARINT = 0, HF_EIGHT = 1, HF_BYTES = 2, HF_FOUR = 5 };

/* A field: its value, or what is inside. */
typedef struct hf_field { uint64_t number, value; int wire; hf_wire inside; } hf_field;

/* What trainer_spec (2) and normalizer_spec (3) say in numbers, and what they mean without. */
enum { HF_KIND, HF_SUFFIX, HF_UNKNOWN_ID, HF_BOS_ID, HF_EOS_ID, HF_PREFIX, HF_TRIMS, HF_ESCAPES,
       HF_SETTINGS };
static const struct { uint64_t message, number; int64_t otherwise; } hf_settings[HF_SETTINGS] = {
    {2, 3, 1}, {2, 24, 0}, {2, 40, 0}, {2, 41, 1}, {2, 42, 2}, {3, 3, 1}, {3, 4, 1}, {3, 5, 1}};

typedef struct hf_pieces {
    hf_vocabulary *v;
    int64_t count, said[HF_SETTINGS];
    bool normalizes, has[2]; /* trainer_spec and normalizer_spec, which every whole file has */
} hf_pieces;

static uint64_t hf_varint(hf_wire *in) {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && in->at < in->end; shift += 7) {
        const uint64_t byte = (uint8_t)*in->at++;
        if (shift == 63 && byte > 1) break;
        value |= (byte & 127) << shift;
        if (byte < 128) return value;
    }
    in->wrong = true;
    return 0;
}

/* The next field; false at the end, and where there is none that is whole. */
static bool hf_next_field(hf_wire *in, hf_field *out) {
    uint64_t tag, bytes = 0;
    memset(out, 0, sizeof *out);
    if (in->wrong || in->at == in->end) return false;
    tag = hf_varint(in);
    out->number = tag >> 3, out->wire = (int)(tag & 7);
    if (!out->number || tag > UINT32_MAX) in->wrong = true;
    if (out->wire == HF_VARINT) out->value = hf_varint(in);
    else if (out->wire == HF_BYTES) bytes = hf_varint(in);
    else if (out->wire == HF_EIGHT || out->wire == HF_FOUR) bytes = out->wire == HF_FOUR ? 4 : 8;
    else in->wrong = true;
    if (in->wrong || bytes > (uint64_t)(in->end - in->at)) return !(in->wrong = true);
    out->inside = (hf_wire){in->at, in->at + bytes, false};
    in->at += bytes;
    if (out->wire == HF_FOUR) out->value = base_load(out->inside.at, 4);
    return true;
}

static cairn_status hf_bad_piece(const hf_pieces *p, const char *what) {
    return base_fail(p->v->h->b, CAIRN_BAD_FILE, "%s: piece %lld: %s",
                     p->v->h->tokenizer.path.data, (long long)p->count, what);
}

/* One of the pieces: text (1), score (2), kind (3), which counts as GGUF does. */
static cairn_status hf_read_piece(hf_pieces *p, hf_wire *in) {
    static const int wires[] = {0, HF_BYTES, HF_FOUR, HF_VARINT};
    hf_field f;
    hf_wire text = {NULL, NULL, false};
    uint32_t bits = 0;
    uint64_t kind = TOK_NORMAL;
    cairn_status status;
    while (hf_next_field(in, &f)) {
        if (f.number <= 3 && f.wire != wires[f.number])
            return hf_bad_piece(p, "a field of another type than SentencePiece's");
        if (f.number == 1) text = f.inside;
        if (f.number == 2) bits = (uint32_t)f.value;
        if (f.number == 3) kind = f.value;
    }
    if (in->wrong || !text.at) return hf_bad_piece(p, "no text, or a field that is not whole");
    if (kind < TOK_NORMAL || kind > TOK_BYTE || (bits & 0x7f800000u) == 0x7f800000u)
        return hf_bad_piece(p, "a kind or a score that there is not");
    status = hf_place_token(p->v, (uint64_t)p->count, text.at, (size_t)(text.end - text.at),
                            (int)kind);
    if (!status) memcpy(&p->v->tokens[p->count++].score, &bits, sizeof bits);
    return status;
}

/* trainer_spec or normalizer_spec. */
static bool hf_read_settings(hf_pieces *p, uint64_t message, hf_wire *in) {
    hf_field f;
    while (hf_next_field(in, &f)) {
        for (int i = 0; i < HF_SETTINGS; i++) {
            if (hf_settings[i].message != message || hf_settings[i].number != f.number) continue;
            if (f.wire != HF_VARINT) return false;
            p->said[i] = (int64_t)f.value;
        }
        if (message == 3 && f.number == 2)
            p->normalizes = f.wire != HF_BYTES || f.inside.at < f.inside.end;
    }
    return !in->wrong;
}

static cairn_status hf_read_pieces(hf_pieces *p) {
    const hf_file *file = &p->v->h->tokenizer;
    hf_wire in = {file->text.data, file->text.data + file->text.size, false};
    hf_field f;
    cairn_status status = CAIRN_OK;
    while (!status && hf_next_field(&in, &f)) {
        const bool settings = f.number == 2 || f.number == 3;
        if (f.number <= 3 && f.wire != HF_BYTES) in.wrong = true;
        else if (f.number == 1) status = hf_read_piece(p, &f.inside);
        else if (settings && !hf_read_settings(p, f.number, &f.inside)) in.wrong = true;
        if (settings) p->has[f.number - 2] = true;
    }
    if (status) return status;
    return in.wrong || !p->count || !p->has[0] || !p->has[1]
               ? base_fail(p->v->h->b, CAIRN_BAD_FILE, "%s: no model of SentencePiece, from byte "
                           "%lld on", file->path.data, (long long)(in.at - file->text.data))
               : CAIRN_OK;
}

/* What the file asks for that has no code, or NULL. */
static const char *hf_pieces_lack(const hf_pieces *p) {
    if (p->said[HF_KIND] != 1 && p->said[HF_KIND] != 2)
        return "a model of words or characters; BPE or unigram";
    if (p->normalizes) return "a normalization (precompiled_charsmap); identity";
    if (!p->said[HF_ESCAPES]) return "escape_whitespaces = false; true";
    return p->said[HF_SUFFIX] ? "treat_whitespace_as_suffix; false" : NULL;
}

/* Tokens that tokenizer_config.json adds, or says to be special. */
static cairn_status hf_read_decoder(hf_vocabulary *v) {
    const jdoc *j = &v->h->tokenizer_config.doc;
    const uint32_t list = jdoc_get(j, 0, "added_tokens_decoder");
    cairn_status status = CAIRN_OK;
    if (!jdoc_is(j, list, JDOC_OBJECT)) return CAIRN_OK;
    for (uint32_t at = list + 1; at < j->nodes[list].end && !status; at = j->nodes[at + 1].end) {
        const jdoc_node *key = &j->nodes[at];
        const uint32_t text = jdoc_get(j, at + 1, "content");
        const bool special = jdoc_says(j, jdoc_get(j, at + 1, "special"), "true");
        uint64_t id = 0;
        bool digits = key->bytes > 0 && key->bytes < 10;
        for (uint32_t i = 0; i < key->bytes && digits; i++) {
            const char c = j->text[key->at + i];
            digits = c >= '0' && c <= '9';
            id = id * 10 + (uint64_t)(c - '0');
        }
        if (!digits || !jdoc_is(j, text, JDOC_STRING))
            return hf_wrong(v->h, &v->h->tokenizer_config, "added_tokens_decoder",
                            "numbers and texts");
        status = hf_place_token(v, id, j->text + j->nodes[text].at, j->nodes[text].bytes,
                                special ? TOK_CONTROL : TOK_USER);
    }
    return status;
}

static cairn_status hf_write_pieces(hf_pieces *p) {
    hf_vocabulary *v = p->v;
    hf_folder *h = v->h;
    const jdoc *t = &h->tokenizer_config.doc;
    const uint32_t legacy = jdoc_get(t, 0, "legacy");
    const char *lack;
    cairn_status status = hf_read_pieces(p);
    if (!status && (lack = hf_pieces_lack(p)) != NULL)
        status = base_fail(h->b, CAIRN_UNSUPPORTED, "%s: %s is supported",
                           h->tokenizer.path.data, lack);
    if (status || (status = hf_read_decoder(v))) return status;
    v->unigram = p->said[HF_KIND] == 1;
    hf_key_text(h, "tokenizer.ggml.model", v->unigram ? "t5" : "llama", v->unigram ? 2 : 5);
    hf_write_tokens(v);
    hf_write_scores(v);
    hf_key_bool(h, "tokenizer.ggml.remove_extra_whitespaces", p->said[HF_TRIMS] != 0);
    hf_key_bool(h, "tokenizer.ggml.add_space_prefix", p->said[HF_PREFIX] != 0);
    hf_key_bool(h, GGUF_PREFIX_FIRST, legacy && jdoc_says(t, legacy, "false"));
    v->unknown = p->said[HF_UNKNOWN_ID], v->bos = p->said[HF_BOS_ID], v->eos = p->said[HF_EOS_ID];
    hf_write_ends(v);
    return hf_write_template(h);
}

/* Declared in hf.h. */
static cairn_status hf_read_tokenizer(hf_folder *h) {
    hf_vocabulary v = {h, &h->tokenizer.doc, 0, NULL, false, false, -1, -1, -1};
    hf_pieces p = {&v, 0, {0}, false, {false, false}};
    const size_t rows = (size_t)h->vocab;
    cairn_status status;
    for (int i = 0; i < HF_SETTINGS; i++) p.said[i] = hf_settings[i].otherwise;
    v.tokens = (hf_token *)base_new(h->b, rows, sizeof *v.tokens);
    if (!v.tokens) return base_no_memory(h->b, "the tokens", rows * sizeof *v.tokens);
    status = h->tokenizer.doc.nodes ? hf_write_tokenizer(&v) : hf_write_pieces(&p);
    base_delete(h->b, v.tokens, rows, sizeof *v.tokens);
    return status;
}
