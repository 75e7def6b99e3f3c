/* tokenizer_decode: ids into text. Tokens are bytes and may end inside a character; a stream holds
 * such bytes back until the character is whole, so that its output is always valid UTF-8. */

#define TOK_REPLACEMENT "\xEF\xBF\xBD" /* U+FFFD, for bytes that are no character */

/* Adds to *out what is decided about the pending bytes: a whole character, or U+FFFD for the
 * longest part of one that cannot become whole. */
static bool tokenizer_stream_settle(base *b, tokenizer_stream *s, base_text *out) {
    while (s->count) {
        bool whole, added;
        size_t part = base_utf8_part(s->pending, s->count, &whole);
        int length = base_utf8_length((unsigned char)s->pending[0]);
        if (!whole && part == s->count && (size_t)length > part) return true; /* may become whole */
        added = whole ? base_text_add(b, out, s->pending, part)
                      : base_text_add(b, out, TOK_REPLACEMENT, 3);
        s->count -= part;
        memmove(s->pending, s->pending + part, s->count);
        if (!added) return false;
    }
    return true;
}

static cairn_status tokenizer_stream_push(base *b, const tokenizer *t, tokenizer_stream *s,
                                          int32_t id, base_text *out) {
    size_t bytes;
    const char *piece = tokenizer_piece(t, id, &bytes);
    if (id < 0 || id >= t->vocab)
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "token id %d; the vocabulary has %d tokens",
                         (int)id, (int)t->vocab);
    for (size_t i = 0; i < bytes; i++) {
        s->pending[s->count++] = piece[i];
        if (!tokenizer_stream_settle(b, s, out)) return base_no_memory(b, "text", out->size + 4);
    }
    return CAIRN_OK;
}

static cairn_status tokenizer_stream_finish(base *b, tokenizer_stream *s, base_text *out) {
    bool done = s->count == 0 || base_text_add(b, out, TOK_REPLACEMENT, 3);
    s->count = 0;
    return done ? CAIRN_OK : base_no_memory(b, "text", out->size + 4);
}

static cairn_status tokenizer_decode(base *b, const tokenizer *t, const int32_t *ids, size_t count,
                                     base_text *out) {
    tokenizer_stream stream = {{0}, 0};
    for (size_t i = 0; i < count; i++)
        if (tokenizer_stream_push(b, t, &stream, ids[i], out)) return b->status;
    return tokenizer_stream_finish(b, &stream, out);
}
