/* tokenizer_text: what tokenizers need to know about text: classes of characters, and the words
 * that text is cut into before merging. Calls base.
 *
 * Vocabularies come with a regular expression that cuts words. Three forms of it are in use, each
 * with few parameters; so a rule stands for the expression and no expression is run. */

/* ---- classes -------------------------------------------------------------------------------- */

/* Sets of classes. */
enum {
    TEXT_LETTERS = 1 << UNICODE_UPPER | 1 << UNICODE_LOWER | 1 << UNICODE_CASELESS,
    TEXT_NUMBERS = 1 << UNICODE_NUMBER,
    TEXT_SPACES = 1 << UNICODE_SPACE,
    TEXT_OTHERS = 1 << UNICODE_OTHER | 1 << UNICODE_MARK,
    TEXT_UPPERS = 1 << UNICODE_UPPER | 1 << UNICODE_CASELESS | 1 << UNICODE_MARK,
    TEXT_LOWERS = 1 << UNICODE_LOWER | 1 << UNICODE_CASELESS | 1 << UNICODE_MARK
};

static unsigned tokenizer_class(uint32_t point) {
    size_t low = 0, high = BASE_COUNT(unicode_starts);
    unsigned found;
    while (high - low > 1) { /* unicode_starts[low] <= point < unicode_starts[high] */
        size_t middle = (low + high) / 2;
        if (unicode_starts[middle] >> 4 <= point) low = middle;
        else high = middle;
    }
    found = unicode_starts[low] & 15;
    if (found < UNICODE_EVEN_UPPER) return found;
    return (point & 1) == (found == UNICODE_ODD_UPPER) ? UNICODE_UPPER : UNICODE_LOWER;
}

/* The class of the character at text[0], as a set of one, and its bytes. */
static unsigned tokenizer_kindat(const char *text, size_t *bytes) {
    unsigned lead = (unsigned char)text[0];
    *bytes = (size_t)base_utf8_length(lead);
    if (lead >= 'a' && lead <= 'z') return 1 << UNICODE_LOWER;
    return 1u << tokenizer_class(base_utf8_point(text, *bytes));
}

/* Bytes of the run of at most `most` characters of a set at the beginning of the text. */
static size_t tokenizer_run(const char *text, size_t bytes, unsigned set, size_t most) {
    size_t at = 0, size;
    while (at < bytes && most-- > 0 && (tokenizer_kindat(text + at, &size) & set)) at += size;
    return at;
}

/* ---- words ---------------------------------------------------------------------------------- */

enum tokenizer_form {
    TEXT_PLAIN, /* GPT-2: letters, numbers or others with one space before; white space */
    TEXT_LINES, /* Llama 3: any character may stand before letters; line ends end a word */
    TEXT_CASED  /* GPT-4o: as lines, and a word begins where a capital letter follows a small one */
};

/* How a vocabulary cuts words. */
typedef struct tokenizer_rule {
    const char *names;  /* tokenizer.ggml.pre, each name between spaces */
    uint8_t form;
    uint8_t digits;     /* in a word, at most; 0: any number */
    bool short_forms;   /* 's and its like are words, or in cased words the end of one */
    bool slashes;       /* '/' goes with the line ends after other characters */
    bool whole_words;   /* a word that is a token takes no merges */
    bool adds_bos;      /* when the file does not say */
} tokenizer_rule;

static const tokenizer_rule tokenizer_rules[] = {
    {" gpt-2 ", TEXT_PLAIN, 0, true, false, false, false},
    {" smollm ", TEXT_PLAIN, 1, true, false, false, false},
    {" llama-bpe llama3 llama-v3 lfm2 falcon3 ", TEXT_LINES, 3, true, false, true, true},
    {" smaug-bpe dbrx ", TEXT_LINES, 3, true, false, false, false}, /* SmolLM3, Phi 4 */
    {" qwen2 deepseek-r1-qwen stablelm2 ", TEXT_LINES, 1, true, false, false, false},
    {" gpt-4o llama4 ", TEXT_CASED, 3, true, true, false, false},
    {" tekken ", TEXT_CASED, 1, false, true, true, true},
};

static char tokenizer_small(char c) { return (char)(c >= 'A' && c <= 'Z' ? c + 32 : c); }

/* 's 't 're 've 'm 'll 'd, in small letters only or in any; 0: none of them. */
static size_t tokenizer_contraction(const char *text, size_t bytes, bool any_case) {
    char first = bytes > 1 ? text[1] : '\0', second = bytes > 2 ? text[2] : '\0';
    if (!bytes || text[0] != '\'') return 0;
    if (any_case && bytes > 2 && !memcmp(text + 1, "\xc5\xbf", 2)) return 3; /* the long s */
    if (any_case) first = tokenizer_small(first), second = tokenizer_small(second);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
    if ((first == 'r' || first == 'v') && second == 'e') return 3;
    return first == 'l' && second == 'l' ? 3 : 0;
}

/* Bytes of the white space at the beginning that make a word: up to the last line end where those
 * count; all at the end of the text, else all but the last character, which belongs to what
 * follows, else that one. In the plain form a digit that is a word of its own ends the text. */
static size_t tokenizer_space_word(const tokenizer_rule *r, const char *text, size_t bytes) {
    size_t at = 0, last = 0, line = 0, size = 0;
    unsigned kind = TEXT_SPACES;
    while (at < bytes && (kind = tokenizer_kindat(text + at, &size)) == TEXT_SPACES) {
        last = at;
        at += size;
        if (text[last] == '\n' || text[last] == '\r') line = at;
    }
    if (line && r->form != TEXT_PLAIN) return line;
    if (at == bytes || (kind == TEXT_NUMBERS && r->form == TEXT_PLAIN && r->digits)) return at;
    return last ? last : at;
}

static size_t tokenizer_plain_word(const tokenizer_rule *r, const char *text, size_t bytes) {
    size_t size, before = text[0] == ' ' ? 1 : 0;
    size_t short_form = tokenizer_contraction(text, bytes, false);
    unsigned kind, set;
    if (short_form) return short_form;
    if (before == bytes) return before;
    kind = tokenizer_kindat(text + before, &size);
    if (kind == TEXT_SPACES) return tokenizer_space_word(r, text, bytes);
    if (kind == TEXT_NUMBERS && r->digits) return before ? before : size;
    set = kind & TEXT_LETTERS ? TEXT_LETTERS : kind & TEXT_NUMBERS ? TEXT_NUMBERS : TEXT_OTHERS;
    return before + tokenizer_run(text + before, bytes - before, set, SIZE_MAX);
}

/* Capital letters, then at least one small: what a pattern makes of [capital]*[small]+, where
 * letters without case and marks count as both. 0: none. */
static size_t tokenizer_small_word(const char *text, size_t bytes) {
    size_t at = 0, both = 0, size;
    unsigned kind;
    while (at < bytes && ((kind = tokenizer_kindat(text + at, &size)) & TEXT_UPPERS)) {
        at += size;
        if (kind & TEXT_LOWERS) both = at;
    }
    size = tokenizer_run(text + at, bytes - at, TEXT_LOWERS, SIZE_MAX);
    return size ? at + size : both;
}

/* [capital]+[small]*, where no small one follows: tokenizer_small_word has failed. */
static size_t tokenizer_letters(const tokenizer_rule *r, const char *text, size_t bytes) {
    unsigned set = r->form == TEXT_CASED ? TEXT_UPPERS : TEXT_LETTERS;
    return tokenizer_run(text, bytes, set, SIZE_MAX);
}

/* A word of letters with at most one character before them that is no letter, number or line end;
 * 0: none begins here. */
static size_t tokenizer_letter_word(const tokenizer_rule *r, const char *text, size_t bytes) {
    size_t before, size = 0;
    unsigned kind = tokenizer_kindat(text, &before);
    if ((kind & (TEXT_LETTERS | TEXT_NUMBERS)) || text[0] == '\r' || text[0] == '\n') before = 0;
    if (r->form == TEXT_CASED) {
        size = tokenizer_small_word(text + before, bytes - before);
        if (!size && before && (size = tokenizer_small_word(text, bytes)) != 0) before = 0;
    }
    if (!size) size = tokenizer_letters(r, text + before, bytes - before);
    if (!size) return 0;
    size += before;
    if (r->form == TEXT_CASED && r->short_forms)
        size += tokenizer_contraction(text + size, bytes - size, true);
    return size;
}

static size_t tokenizer_line_word(const tokenizer_rule *r, const char *text, size_t bytes) {
    size_t before = text[0] == ' ' ? 1 : 0, at;
    if (r->form == TEXT_LINES && (at = tokenizer_contraction(text, bytes, true)) != 0) return at;
    if ((at = tokenizer_letter_word(r, text, bytes)) != 0) return at;
    if ((at = tokenizer_run(text, bytes, TEXT_NUMBERS, r->digits)) != 0) return at;
    at = before + tokenizer_run(text + before, bytes - before, TEXT_OTHERS, SIZE_MAX);
    if (at == before) return tokenizer_space_word(r, text, bytes);
    while (at < bytes && (text[at] == '\r' || text[at] == '\n' || (r->slashes && text[at] == '/')))
        at++;
    return at;
}

/* Bytes of the next word of a text without special tokens, at least 1. Linear over a whole text: no
 * character is looked at by more than a few words. */
static size_t tokenizer_word(const tokenizer_rule *r, const char *text, size_t bytes) {
    return r->form == TEXT_PLAIN ? tokenizer_plain_word(r, text, bytes)
                                 : tokenizer_line_word(r, text, bytes);
}
