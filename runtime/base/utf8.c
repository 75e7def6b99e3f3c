/* utf8: characters of UTF-8 text, whole and broken, and text made fit to be shown. */

static int base_utf8_length(unsigned lead) {
    if (lead < 0x80) return 1;
    if (lead < 0xc2 || lead > 0xf4) return 0;
    return lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
}

/* Whether `byte` may follow `lead`: no overlong form, no surrogate, nothing past U+10FFFF. */
static bool base_utf8_second(unsigned lead, unsigned byte) {
    unsigned low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    unsigned high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    return byte >= low && byte <= high;
}

static size_t base_utf8_part(const char *text, size_t bytes, bool *whole) {
    const unsigned char *at = (const unsigned char *)text;
    size_t length = (size_t)base_utf8_length(at[0]), have = 1;
    while (have < length && have < bytes &&
           (have == 1 ? base_utf8_second(at[0], at[1]) : at[have] >> 6 == 2))
        have++;
    *whole = have == length;
    return have;
}

static uint32_t base_utf8_point(const char *text, size_t bytes) {
    const unsigned char *at = (const unsigned char *)text;
    uint32_t point = bytes == 1 ? at[0] : at[0] & (0xffu >> (bytes + 1));
    for (size_t i = 1; i < bytes; i++) point = point << 6 | (at[i] & 63u);
    return point;
}

static size_t base_utf8_fault(const char *text, size_t bytes) {
    bool whole = true;
    size_t at = 0;
    while (at < bytes) {
        size_t part = base_utf8_part(text + at, bytes - at, &whole);
        if (!whole) return at;
        at += part;
    }
    return at;
}

/* Whether a terminal shows the character and does nothing else: no control character, no change of
 * the direction of writing. Line breaks and tabs are fine. */
static bool base_utf8_is_plain(uint32_t point) {
    if (point < 0x20) return point == '\n' || point == '\t';
    return (point < 0x7f || point > 0x9f) && !(point >= 0x202a && point <= 0x202e) &&
           !(point >= 0x2066 && point <= 0x2069);
}

static void base_show(const char *text, bool lines, char *out, size_t out_bytes) {
    size_t left = strlen(text), used = 0;
    while (left && used + 1 < out_bytes) {
        bool whole;
        size_t part = base_utf8_part(text, left, &whole);
        bool plain = whole && base_utf8_is_plain(base_utf8_point(text, part)) && (lines || *text != '\n');
        if (used + (plain ? part : 4 * part) >= out_bytes) break;
        for (size_t i = 0; i < part && !plain; i++)
            used += (size_t)snprintf(out + used, 5, "\\x%02x", (unsigned)(unsigned char)text[i]);
        if (plain) memcpy(out + used, text, part), used += part;
        text += part;
        left -= part;
    }
    if (out_bytes) out[used] = '\0';
}
