/* tokenizer_text: what tokenizers need to know about text: classes of characters, and the words
 * that text is cut into before merging. Calls base. */

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
    *bytes = (size_t)base_utf8_length(lead);
    if (lead >= 'a' && lead <= 'z') return UNICODE_LETTER;
    return tokenizer_class(base_utf8_point(text, *bytes));
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
