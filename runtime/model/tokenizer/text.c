/* tokenizer_text: what tokenizers need to know about text: UTF-8, classes of characters, and the
 * words that text is cut into before merging. Calls base. */

/* ---- UTF-8 ---------------------------------------------------------------------------------- */

/* Bytes of the sequence that a lead byte begins; 0: not a lead byte. */
static int tokenizer_utf8_length(unsigned lead) {
    if (lead < 0x80) return 1;
    if (lead < 0xc2 || lead > 0xf4) return 0;
    return lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
}

/* Whether `byte` may follow `lead`: no overlong form, no surrogate, nothing past U+10FFFF. */
static bool tokenizer_utf8_second(unsigned lead, unsigned byte) {
    unsigned low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    unsigned high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    return byte >= low && byte <= high;
}

/* How many of the next `bytes` (at least 1) bytes belong together, the largest part of one
 * well-formed character, at least 1; *whole tells whether they are a whole one. */
static size_t tokenizer_utf8_part(const char *text, size_t bytes, bool *whole) {
    const unsigned char *at = (const unsigned char *)text;
    size_t length = (size_t)tokenizer_utf8_length(at[0]), have = 1;
    while (have < length && have < bytes &&
           (have == 1 ? tokenizer_utf8_second(at[0], at[1]) : at[have] >> 6 == 2))
        have++;
    *whole = have == length;
    return have;
}

/* The code point of a whole character. */
static uint32_t tokenizer_utf8_point(const char *text, size_t bytes) {
    const unsigned char *at = (const unsigned char *)text;
    uint32_t point = bytes == 1 ? at[0] : at[0] & (0xffu >> (bytes + 1));
    for (size_t i = 1; i < bytes; i++) point = point << 6 | (at[i] & 63u);
    return point;
}

/* The offset of the first byte that does not begin a whole character; `bytes` when all is well. */
static size_t tokenizer_utf8_fault(const char *text, size_t bytes) {
    bool whole = true;
    size_t at = 0;
    while (at < bytes) {
        size_t part = tokenizer_utf8_part(text + at, bytes - at, &whole);
        if (!whole) return at;
        at += part;
    }
    return at;
}

/* ---- words ---------------------------------------------------------------------------------- */

static int tokenizer_class(uint32_t point) {
    size_t low = 0, high = BASE_COUNT(unicode_starts);
    while (high - low > 1) { /* unicode_starts[low] <= point < unicode_starts[high] */
        size_t middle = (low + high) / 2;
        if (unicode_starts[middle] >> 2 <= point) low = middle;
        else high = middle;
    }
    return (int)(unicode_starts[low] & 3);
}

/* The class of the character at text[0], and its bytes. */
static int tokenizer_kindat(const char *text, size_t *bytes) {
    unsigned lead = (unsigned char)text[0];
    *bytes = (size_t)tokenizer_utf8_length(lead);
    if (lead >= 'a' && lead <= 'z') return UNICODE_LETTER;
    return tokenizer_class(tokenizer_utf8_point(text, *bytes));
}

/* Bytes of the run of characters of one class at the beginning of the text. */
static size_t tokenizer_run(const char *text, size_t bytes, int wanted) {
    size_t at = 0, size;
    while (at < bytes && tokenizer_kindat(text + at, &size) == wanted) at += size;
    return at;
}

/* 's 't 're 've 'm 'll 'd, in small letters only; 0: none of them. */
static size_t tokenizer_contraction(const char *text, size_t bytes) {
    char first = bytes > 1 ? text[1] : '\0', second = bytes > 2 ? text[2] : '\0';
    if (text[0] != '\'') return 0;
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
    if ((first == 'r' || first == 'v') && second == 'e') return 3;
    return first == 'l' && second == 'l' ? 3 : 0;
}

/* Bytes of the white space at the beginning that make a word: all at the end of the text, else all
 * but the last character, which belongs to what follows, else that one. A digit that is a word of
 * its own ends the text for this rule. */
static size_t tokenizer_space_word(const char *text, size_t bytes, bool splits_digits) {
    size_t at = 0, last = 0, size = 0;
    int kind = UNICODE_SPACE;
    while (at < bytes && (kind = tokenizer_kindat(text + at, &size)) == UNICODE_SPACE) {
        last = at;
        at += size;
    }
    if (at == bytes || (kind == UNICODE_NUMBER && splits_digits)) return at;
    return last ? last : at;
}

/* Bytes of the next word of a text without special tokens, at least 1. What GPT-2's pattern says:
 * contractions; letters, numbers or others with one space before them; white space. */
static size_t tokenizer_word(const char *text, size_t bytes, bool splits_digits) {
    size_t size, before = text[0] == ' ' ? 1 : 0, short_form = tokenizer_contraction(text, bytes);
    int kind;
    if (short_form) return short_form;
    if (before == bytes) return before;
    kind = tokenizer_kindat(text + before, &size);
    if (kind == UNICODE_SPACE) return tokenizer_space_word(text, bytes, splits_digits);
    if (kind == UNICODE_NUMBER && splits_digits) return before ? before : size;
    return before + tokenizer_run(text + before, bytes - before, kind);
}
