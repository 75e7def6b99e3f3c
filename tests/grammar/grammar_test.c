/* grammar: masks against recognisers written by hand for each grammar, over a made-up vocabulary whose
 * tokens end inside characters; where the mistakes of a grammar are; that nothing of a grammar's text,
 * nor memory that runs out anywhere, does harm. */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "random.h"
#include "short_memory.h"
#include "tap.h"

static uint64_t seed;
static int below(int n) { return (int)(random_next(&seed) % (uint64_t)n); }

static base host;

static void open_host(void) {
    cairn_allocator allocator = {NULL, test_realloc};
    base_init(&host, &allocator, NULL, NULL, CAIRN_LOG_OFF);
}

/* ---- a vocabulary ---------------------------------------------------------------------------- */

enum { WORDS = 900, WORD_BYTES = 12 };
static char word_text[WORDS * WORD_BYTES];
static uint32_t word_starts[WORDS + 1];
static uint8_t word_kinds[WORDS];
static tokenizer words;

/* All bytes, then random pieces of text in the grammars' letters, cut anywhere; the last two are an end
 * token and another control token. */
static void make_words(void) {
    static const char letters[] = "(((()))))0123456789.ab\"{}[],:- aZ\xC3\xA9\xE2\x82\xAC\xC3\xBF!!";
    uint32_t at = 0;
    memset(&words, 0, sizeof words);
    for (int id = 0; id < WORDS; id++) {
        int bytes = 1 + below(below(4) ? 3 : WORD_BYTES - 1);
        const char *from = letters + below((int)sizeof letters - 1 - bytes);
        word_starts[id] = at;
        word_kinds[id] = id >= WORDS - 2 ? TOK_CONTROL : TOK_NORMAL;
        if (id < 256) word_text[at++] = (char)id;
        else memcpy(word_text + at, from, (size_t)bytes), at += (uint32_t)bytes;
    }
    word_starts[WORDS] = at;
    words.vocab = WORDS;
    words.text = word_text, words.starts = word_starts, words.kinds = word_kinds;
    words.eos = WORDS - 2, words.bos = words.eot = words.eom = words.turn_end = -1;
}

/* ---- recognisers ----------------------------------------------------------------------------- */

/* Of a text so far: whether it can still become one of the grammar's, and whether it is one. */
typedef struct verdict { bool viable, whole; } verdict;

/* [0-9]+ ("." [0-9]{2,3})? */
static verdict judge_number(const uint8_t *t, int n) {
    int i = 0, tail = 0;
    verdict v = {false, false};
    while (i < n && t[i] >= '0' && t[i] <= '9') i++;
    if (i == n) return v.viable = true, v.whole = n > 0, v;
    if (!i || t[i++] != '.') return v;
    for (; i < n && t[i] >= '0' && t[i] <= '9'; i++) tail++;
    v.viable = i == n && tail <= 3;
    v.whole = v.viable && tail >= 2;
    return v;
}

/* "(" root* ")" */
static verdict judge_nested(const uint8_t *t, int n) {
    int depth = 0, i;
    verdict v = {true, false};
    for (i = 0; i < n && v.viable; i++) {
        if (i && !depth) v.viable = false;
        depth += t[i] == '(' ? 1 : -1;
        if ((t[i] != '(' && t[i] != ')') || depth < 0) v.viable = false;
    }
    v.whole = v.viable && n && !depth;
    return v;
}

/* Characters of é to ÿ, and €: one to three, then a !; any byte that may begin one counts. */
static verdict judge_points(const uint8_t *t, int n) {
    int points = 0, i = 0;
    verdict v = {false, false};
    while (i < n && t[i] != '!') {
        const uint8_t *c = t + i;
        if (++points > 3) return v;
        if (c[0] == 0xC3) {
            if (i + 1 < n && (c[1] < 0xA9 || c[1] > 0xBF)) return v;
            i += 2;
        } else if (c[0] == 0xE2) {
            if ((i + 1 < n && c[1] != 0x82) || (i + 2 < n && c[2] != 0xAC)) return v;
            i += 3;
        } else return v;
    }
    if (i >= n) return v.viable = true, v;
    v.whole = v.viable = points > 0 && i + 1 == n;
    return v;
}

/* Any characters but " and controls between quotes: where bytes are UTF-8, whole or not. */
static verdict judge_string(const uint8_t *t, int n) {
    verdict v = {true, false};
    int i = 1;
    if (n && t[0] != '"') return v.viable = false, v;
    while (i < n && t[i] != '"') {
        bool whole;
        size_t part = base_utf8_part((const char *)t + i, (size_t)(n - i), &whole);
        int length = base_utf8_length(t[i]);
        if (t[i] < 0x20 || !length || (!whole && i + (int)part < n) ||
            (!whole && (int)part >= length))
            return v.viable = false, v;
        i += (int)part;
    }
    if (i >= n) return v;
    v.whole = v.viable = i + 1 == n;
    return v;
}

/* a{2}b or ab*c? over alternatives that begin alike: "aab" | "ab" "b"* | "a" ("." | "") */
static verdict judge_alike(const uint8_t *t, int n) {
    static const char *const others[] = {"aab", "a", "a."};
    verdict v = {n == 0, false};
    int i = 1;
    for (size_t k = 0; k < 3; k++)
        if ((int)strlen(others[k]) >= n && !memcmp(others[k], t, (size_t)n))
            v.viable = true, v.whole = v.whole || (int)strlen(others[k]) == n;
    while (i < n && t[i] == 'b') i++;
    if (n > 1 && t[0] == 'a' && i == n) v.viable = v.whole = true;
    return v;
}

typedef struct sample_grammar { const char *text; verdict (*judge)(const uint8_t *, int); }
    sample_grammar;

static const sample_grammar grammars[] = {
    {"root ::= [0-9]+ (\".\" [0-9]{2,3})? # a number\n", judge_number},
    {"# nested\nroot ::= digit+ frac?\nfrac ::= \".\" two digit?\ntwo ::= digit{2}\ndigit ::= [\\x30-\\x39]",
     judge_number},
    {"root ::= \"(\" root* \")\"", judge_nested},
    {"root ::= open (root | \"\")+ \")\"\nopen ::= \"\\u0028\"", judge_nested},
    {"root ::= [\xC3\xA9-\xC3\xBF\xE2\x82\xAC]{1,3} \"!\"", judge_points},
    {"root ::= [\\u00e9-\\xff\\U000020AC] [\\u00e9-\\xff\xE2\x82\xAC]{,2} \"!\"", judge_points},
    {"root ::= \"\\\"\" [^\"\\x00-\\x1f]* \"\\\"\"", judge_string},
    {"root ::= \"aab\" | \"ab\" \"b\"*\n  | \"a\" (\".\" |\n \"\")\n", judge_alike},
};

/* ---- masks ----------------------------------------------------------------------------------- */

static grammar_shelf shelf;

static cairn_status take(const char *text, grammar **g) {
    return grammar_take(&host, &shelf, &words, text, strlen(text), g);
}

/* Whether the mask after text [n], which is of ids [count], is what the recogniser says. */
static bool is_right(const sample_grammar *x, const uint32_t *bits, const uint8_t *text, int n) {
    uint8_t longer[512];
    memcpy(longer, text, (size_t)n);
    for (int id = 0; id < WORDS; id++) {
        int bytes = (int)(word_starts[id + 1] - word_starts[id]);
        bool may = bits[id / 32] >> id % 32 & 1, should;
        memcpy(longer + n, word_text + word_starts[id], (size_t)bytes);
        should = id < WORDS - 2 ? x->judge(longer, n + bytes).viable
                                : id == WORDS - 2 && x->judge(text, n).whole;
        if (may == should) continue;
        tap_note("%s: after %d bytes '%.*s' token %d '%.*s' is %d", x->text, n, n, text, id, bytes,
                 word_text + word_starts[id], may);
        return false;
    }
    return true;
}

/* A random text of a grammar, every mask on its way checked; a state is asked for by a place that goes
 * on, by one that begins anew, and after all states were forgotten. */
static bool walk(const sample_grammar *x, grammar *g, int64_t *turn) {
    grammar_place place = {0, 0, 0};
    int32_t ids[64];
    uint8_t text[512];
    int n = 0;
    for (int count = 0; count < 40 && n < 400; count++) {
        const uint32_t *bits;
        bool any;
        int id, tries = 0;
        grammar_place other = {0, 0, 0};
        if (!below(20)) grammar_forget(g);
        if (grammar_go(&host, g, &shelf.words, ids, count, below(3) ? &place : &other)) return false;
        if (grammar_go(&host, g, &shelf.words, ids, count, &place)) return false;
        if (grammar_is_lost(&place)) return tap_note("lost"), false;
        if (grammar_allow(&host, g, &shelf.words, &place, ++*turn, &bits, &any)) return false;
        if (!is_right(x, bits, text, n)) return false;
        if (grammar_is_done(g, &place)) return x->judge(text, n).whole;
        do id = below(WORDS - 2);
        while (!(bits[id / 32] >> id % 32 & 1) && tries++ < 20000);
        if (tries > 20000) return true;
        ids[count] = id;
        memcpy(text + n, word_text + word_starts[id], word_starts[id + 1] - word_starts[id]);
        n += (int)(word_starts[id + 1] - word_starts[id]);
    }
    return true;
}

static void test_masks(void) {
    int64_t turn = 0;
    for (size_t i = 0; i < BASE_COUNT(grammars); i++) {
        grammar *g;
        bool right = true;
        int walks = 0;
        if (tap_ok(!take(grammars[i].text, &g), "grammar %d compiles: %s", (int)i, host.error))
            for (; walks < 12 && right; walks++) right = walk(&grammars[i], g, &turn);
        tap_ok(right, "grammar %d: masks on %d texts", (int)i, walks);
        grammar_give(&host, &shelf, g);
    }
}

/* ---- shelf ----------------------------------------------------------------------------------- */

static void test_shelf(void) {
    grammar *a, *b, *c;
    char text[64];
    int kept = 0;
    tap_ok(!take("root ::= \"a\"", &a) && !take("root ::= \"a\"", &b) && a == b &&
           !take("root ::= \"b\"", &c) && c != a, "one grammar for one text");
    for (int i = 0; i < 40; i++) {
        grammar *g;
        snprintf(text, sizeof text, "root ::= \"%d\"", i);
        if (!take(text, &g)) grammar_give(&host, &shelf, g);
    }
    for (grammar *g = shelf.first; g; g = g->next) kept++;
    tap_ok(kept == GRAMMAR_KEPT + 2, "%d are kept", kept);
    grammar_give(&host, &shelf, a), grammar_give(&host, &shelf, b), grammar_give(&host, &shelf, c);
}

/* ---- mistakes -------------------------------------------------------------------------------- */

static void test_mistakes(void) {
    static const struct { const char *text, *error; } wrong[] = {
        {"", "line 1, column 1: there is no rule 'root'"},
        {"a ::= \"x\"", "there is no rule 'root'"},
        {"root ::= \"x\"\n  b", "line 2, column 4: ::= is expected"},
        {"root ::= \"x", "line 1, column 10: the string is not closed"},
        {"root ::= \"x\ny\"", "line 1, column 10: the string is not closed"},
        {"root ::= [a", "line 1, column 10: the class is not closed"},
        {"root ::= []", "column 10: a class of no character"},
        {"root ::= [^\\x00-\\U0010FFFF]", "a class of no character"},
        {"root ::= [^\\x00-\\uD7FF\\uE000-\\U0010FFFF]", "a class of no character"},
        {"root ::= [z-a]", "column 11: a range whose end comes before"},
        {"root ::= \"\xC3\xA9\" ( \"a\"", "line 1, column 14: the group is not closed"},
        {"root ::= \"a\" )", "column 14: ')' without '('"},
        {"root ::= *", "column 10: '*' has nothing to repeat"},
        {"root ::= \"a\" | +", "column 16: '+' has nothing to repeat"},
        {"root ::= \"a\"{3,2}", "at least 3 and at most 2"},
        {"root ::= \"a\"{", "a number of repetitions is expected"},
        {"root ::= \"a\"{2", "the repetition is not closed"},
        {"root ::= \"a\"{99999}", "more than 20000 repetitions"},
        {"root ::= \"\\q\"", "column 11: an unknown escape"},
        {"root ::= \"\\u12\"", "4 hexadecimal digits are expected"},
        {"root ::= \"\\uD800\"", "U+D800 is no character"},
        {"root ::= \"\\U00110000\"", "U+110000 is no character"},
        {"root ::= a\na ::= b", "line 2, column 7: rule 'b' is not given"},
        {"root ::= \"a\"\nroot ::= \"b\"", "line 2, column 1: rule 'root' is given a second time"},
        {"root ::= root \"a\" | \"a\"", "rule 'root' begins with itself: left recursion"},
        {"root ::= a\na ::= \"\"? [x]* b\nb ::= (a | \"y\") \"z\"", "begins with itself: left recursion"},
        {"root ::= (\"x\"? root){1,9}", "rule 'root' begins with itself"},
        {"root ::= \"a\" \xFF", "column 14: this is not UTF-8"},
        {"root ::= \"a\" ;", "column 14: this begins no element"},
        {"root = \"a\"", "column 6: ::= is expected"},
    };
    char deep[600];
    grammar *g;
    for (size_t i = 0; i < BASE_COUNT(wrong); i++)
        tap_ok(take(wrong[i].text, &g) == CAIRN_INVALID_ARGUMENT && strstr(host.error, wrong[i].error),
               "%s", host.error);
    strcpy(deep, "root ::= ");
    for (int i = 0; i < 250; i++) strcat(deep, "(");
    tap_ok(take(deep, &g) == CAIRN_INVALID_ARGUMENT && strstr(host.error, "groups within each other"),
           "%s", host.error);
    tap_ok(take("root ::= (((([a-z]{9000} | \"x\"){9000}){9000}){9000} [a-z]{9000})", &g) == CAIRN_OK,
           "repetitions of repetitions: %s", host.error);
    grammar_give(&host, &shelf, g);
    tap_ok(take("root ::= a{20000}\na ::= (b c d e){20000} (b | c){20000} [a-c]{20000} \"abcdef\"{20000} "
                "b{20000} (\"a\"? \"b\"? \"c\"?){20000} (b c){20000} (c b){20000} [abc] [abc]{19999}\n"
                "b ::= \"b\"{0,20000}\nc ::= \"c\"{,20000}\nd ::= \"d\"{20000}\ne ::= \"e\"{20000}", &g) ==
               CAIRN_INVALID_ARGUMENT && strstr(host.error, "too large"), "%s", host.error);
}

/* As many ways to read a text as it has letters, to the power of two. */
static void test_ambiguous(void) {
    grammar *g;
    grammar_place place = {0, 0, 0};
    int32_t ids[64];
    cairn_status status;
    for (int i = 0; i < 64; i++) ids[i] = 'a';
    if (take("root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"a\"", &g)) return;
    status = grammar_go(&host, g, &shelf.words, ids, 64, &place);
    tap_ok(status == CAIRN_UNSUPPORTED && strstr(host.error, "ways to read"), "%s", host.error);
    place.count = 0, place.epoch = 0;
    tap_ok(!grammar_go(&host, g, &shelf.words, ids, 4, &place) && !grammar_is_lost(&place),
           "a shorter text is read after that");
    grammar_give(&host, &shelf, g);
}

/* ---- hostile --------------------------------------------------------------------------------- */

/* Pieces of grammars in random order, and grammars with random bytes in them. */
static void test_noise(void) {
    static const char *const pieces[] = {"root", "::=", "\"a\"", "[a-z]", "(", ")", "|", "*", "+", "?",
        "{2}", "{1,", "}", "\n", " ", "a", "#", "\\", "[^", "]", "\"", "\xC3", "\xC3\xA9", ".", "root ::= ",
        "a ::= ", "{0}", "\\x4", "{,3}", "-"};
    int compiled = 0;
    for (int round = 0; round < 4000; round++) {
        char text[256] = "root ::= ";
        grammar *g;
        grammar_place place = {0, 0, 0};
        int32_t ids[6];
        for (int i = below(14); i > 0; i--) strcat(text, pieces[below((int)BASE_COUNT(pieces))]);
        if (!below(3)) text[below((int)strlen(text) + 1)] = (char)below(256);
        if (take(text, &g)) continue;
        compiled++;
        for (int i = 0; i < 6; i++) ids[i] = below(WORDS);
        for (int n = 0; n < 6 && !grammar_go(&host, g, &shelf.words, ids, n, &place); n++) {
            const uint32_t *bits;
            bool any;
            if (grammar_is_lost(&place) ||
                grammar_allow(&host, g, &shelf.words, &place, round + 1, &bits, &any) || !any)
                break;
            do ids[n] = (ids[n] + 1) % WORDS; while (!(bits[ids[n] / 32] >> ids[n] % 32 & 1));
        }
        grammar_give(&host, &shelf, g);
    }
    tap_ok(compiled > 100, "%d of 4000 random grammars compile", compiled);
}

/* Memory ends at each allocation of a grammar, of the way through `text` and of the mask after it. How often;
 * -1: wrongly. */
static int fail_memory(const sample_grammar *x, const char *text, int n) {
    int32_t ids[64];
    for (int i = 0; i < n; i++) ids[i] = (uint8_t)text[i];
    for (int allowed = 0; allowed < 400; allowed++) {
        grammar *g = NULL;
        grammar_place place = {0, 0, 0};
        const uint32_t *bits;
        bool any, right = true;
        cairn_status status;
        allocations_left = allowed;
        status = take(x->text, &g);
        if (!status) status = grammar_go(&host, g, &shelf.words, ids, n, &place);
        if (!status) status = grammar_allow(&host, g, &shelf.words, &place, 1, &bits, &any);
        allocations_left = -1;
        if (!status && x->judge) right = is_right(x, bits, (const uint8_t *)text, n);
        if (g) grammar_give(&host, &shelf, g);
        if (allowed % 2 || !status) grammar_clear(&host, &shelf);
        if (!status) return right && !live_blocks ? allowed : -1;
        if (status != CAIRN_OUT_OF_MEMORY) return tap_note("%s", host.error), -1;
    }
    return -1;
}

static void test_memory(void) {
    static const char deep[] = "((((((((((((((((((((((((";
    int times = 0, bad = 0;
    grammar_clear(&host, &shelf);
    tap_ok(!live_blocks, "all is given back: %ld blocks", live_blocks);
    tap_ok(fail_memory(&grammars[4], "\xE2", 1) > 0, "memory that fails after a part of a character");
    for (int before = 0; before < 12; before++) { /* by it the stacks grow at one call or another */
        char text[200] = "root ::= ";
        const sample_grammar nested = {text, NULL};
        int failed;
        for (int i = 0; i < before; i++) strcat(text, "\"x\"? ");
        strcat(text, "open\nopen ::= \"(\" rest\nrest ::= open rest | \")\"");
        failed = fail_memory(&nested, deep, (int)sizeof deep - 1);
        times += failed, bad += failed <= 0;
    }
    tap_ok(!bad, "and at %d allocations of nested rules: %d wrong, %ld blocks are left", times, bad, live_blocks);
}

int main(void) {
    seed = random_seed();
    open_host();
    make_words();
    test_masks();
    test_shelf();
    test_mistakes();
    test_ambiguous();
    test_noise();
    test_memory();
    return tap_done();
}
