/* config: the fields, as tables; mistakes and their report; numbers and names in words. */

typedef enum config_kind {
    CFG_INT, CFG_INT64, CFG_FLOAT, CFG_BOOL, CFG_ENUM, CFG_CHOICE /* a string among `values` */,
    CFG_STRING, CFG_STRINGS, CFG_LAYERS, CFG_GROUP
} config_kind;

typedef struct config_value { const char *text; int code; } config_value;
typedef struct config_span { size_t offset, bytes; } config_span;

typedef struct config_field {
    const char *path;     /* "selection.window" */
    config_kind kind;
    int parent;           /* row of its group, -1 at the top */
    bool hot;
    size_t offset, bytes; /* in cairn_config; of one string for CFG_STRINGS */
    int64_t low, high;
    int multiple;         /* 0: any */
    const int32_t *allowed; int allowed_count;
    double float_low, float_high;
    bool float_open;      /* float_low itself is not allowed */
    const config_value *values; int value_count;
    int count; size_t count_offset; bool empty; /* CFG_STRINGS; empty: they may be */
    const char *unit;
} config_field;

#define CFG_VALUE(constant, code, text, meaning) {text, constant},
#include "../generated/config.h"
#undef CFG_VALUE

enum { CFG_ROWS = (int)BASE_COUNT(config_fields) };

/* No version's struct was smaller: the fields of the host program may be missing. */
#define CFG_FIRST_BYTES offsetof(cairn_config, allocator)

/* The last part of a path: what stands in the file. */
static const char *config_key(const config_field *field) {
    const char *dot = strrchr(field->path, '.');
    return dot ? dot + 1 : field->path;
}

static const void *config_at_const(const cairn_config *config, const config_field *field) {
    return (const char *)config + field->offset;
}

/* ---- mistakes ------------------------------------------------------------------------------ */

#define CFG_MAX_MISTAKES 64 /* kept; more are counted */
#define CFG_TEXT_BYTES 192  /* one side of a message */

typedef struct config_mistake { int line, row; char text[320]; } config_mistake; /* row: of the field */

typedef struct config_report {
    const char *name;    /* of the file in messages */
    const int *lines;    /* [CFG_ROWS] line of each field, 0: computed; NULL: there is no source */
    bool bad[CFG_ROWS];  /* fields with a mistake */
    int count;           /* all mistakes */
    bool version;        /* one of them means another version */
    config_mistake mistakes[CFG_MAX_MISTAKES];
} config_report;

static void config_report_init(config_report *report, const char *name) {
    report->name = name;
    report->lines = NULL;
    memset(report->bad, 0, sizeof report->bad);
    report->count = 0;
    report->version = false;
}

/* Keeps "NAME:LINE: message", without the line when it is 0. */
BASE_PRINTF(3, 4)
static void config_add(config_report *report, int line, const char *format, ...) {
    config_mistake *mistake;
    size_t used;
    va_list args;
    if (report->count++ >= CFG_MAX_MISTAKES) return;
    mistake = &report->mistakes[report->count - 1];
    mistake->line = line;
    mistake->row = CFG_ROWS;
    if (line) snprintf(mistake->text, sizeof mistake->text, "%s:%d: ", report->name, line);
    else snprintf(mistake->text, sizeof mistake->text, "%s: ", report->name);
    used = strlen(mistake->text);
    va_start(args, format);
    vsnprintf(mistake->text + used, sizeof mistake->text - used, format, args);
    va_end(args);
}

/* A mistake in a field: its path, the item ("[2]" in a list, else ""), "(computed)" when there is a
 * source that does not show it, then the message, which starts with its own space. */
BASE_PRINTF(4, 5)
static void config_bad(config_report *report, const config_field *field, const char *item,
                    const char *format, ...) {
    int row = (int)(field - config_fields), line = report->lines ? report->lines[row] : 0;
    char message[288];
    va_list args;
    report->bad[row] = true;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    config_add(report, line, "%s%s%s%s", field->path, item,
            report->lines && !line ? " (computed)" : "", message);
    if (report->count <= CFG_MAX_MISTAKES) report->mistakes[report->count - 1].row = row;
}

/* Whether another mistake is worth the work of a hint. */
static bool config_has_room(const config_report *report) { return report->count < CFG_MAX_MISTAKES; }

/* By line, those without one last; then in the order of the schema, other keys last. */
static int config_order(const void *left, const void *right) {
    const config_mistake *a = (const config_mistake *)left, *b = (const config_mistake *)right;
    unsigned line_a = (unsigned)a->line - 1u, line_b = (unsigned)b->line - 1u;
    if (line_a != line_b) return line_a < line_b ? -1 : 1;
    if (a->row != b->row) return a->row < b->row ? -1 : 1;
    return strcmp(a->text, b->text);
}

static int config_kept(const config_report *report) {
    return report->count < CFG_MAX_MISTAKES ? report->count : CFG_MAX_MISTAKES;
}

/* Writes as many lines as fit, the last one saying how many do not. */
static void config_write(const config_report *report, char *error, size_t error_bytes) {
    size_t used = 0;
    int i, kept = config_kept(report);
    if (!error || !error_bytes) return;
    error[0] = '\0';
    for (i = 0; i < kept; i++) {
        const char *text = report->mistakes[i].text;
        size_t more = strlen(text) + (i > 0), tail = i + 1 < report->count ? 24 : 0;
        if (used + more + tail >= error_bytes) break;
        used += (size_t)snprintf(error + used, error_bytes - used, "%s%s", i ? "\n" : "", text);
    }
    if (i == 0) snprintf(error, error_bytes, "%s", report->mistakes[0].text);
    else if (i < report->count)
        snprintf(error + used, error_bytes - used, "\nand %d more", report->count - i);
}

/* CAIRN_OK without mistakes; else logs each and leaves the list in error. */
static cairn_status config_finish(base *b, config_report *report, char *error, size_t error_bytes) {
    int i;
    if (!report->count) return CAIRN_OK;
    qsort(report->mistakes, (size_t)config_kept(report), sizeof report->mistakes[0], config_order);
    for (i = 0; i < config_kept(report); i++)
        base_log(b, CAIRN_LOG_ERROR, "%s", report->mistakes[i].text);
    if (i < report->count)
        base_log(b, CAIRN_LOG_ERROR, "and %d more", report->count - i);
    config_write(report, error, error_bytes);
    b->status = report->version ? CAIRN_VERSION_MISMATCH : CAIRN_INVALID_CONFIG;
    return b->status;
}

/* ---- text ---------------------------------------------------------------------------------- */

/* Text that stops growing when its room is used up. */
typedef struct config_text { char *data; size_t bytes, used; bool full; } config_text;

static void config_text_init(config_text *text, char *data, size_t bytes) {
    text->data = data;
    text->bytes = bytes;
    text->used = 0;
    text->full = bytes == 0;
    if (bytes) data[0] = '\0';
}

BASE_PRINTF(2, 3)
static void config_print(config_text *text, const char *format, ...) {
    int need;
    va_list args;
    if (text->full) return;
    va_start(args, format);
    need = vsnprintf(text->data + text->used, text->bytes - text->used, format, args);
    va_end(args);
    if (need < 0 || (size_t)need >= text->bytes - text->used) text->full = true;
    else text->used += (size_t)need;
}

/* A Lua string that reads back as these bytes. */
static void config_print_quoted(config_text *text, const char *bytes, size_t count) {
    size_t i;
    config_print(text, "\"");
    for (i = 0; i < count; i++) {
        unsigned char c = (unsigned char)bytes[i];
        if (c == '"' || c == '\\') config_print(text, "\\%c", c);
        else if (c == '\n') config_print(text, "\\n");
        else if (c < 32 || c == 127) config_print(text, "\\%03d", c);
        else config_print(text, "%c", c);
    }
    config_print(text, "\"");
}

/* The same for messages: cut where it gets long. */
static void config_print_short(config_text *text, const char *bytes, size_t count) {
    config_print_quoted(text, bytes, count <= 40 ? count : 40);
    if (count > 40) config_print(text, "...");
}

/* The shortest decimals that read back as the same float (or double), in every locale. */
static void config_print_number(config_text *text, double x, bool is_float) {
    char digits[40];
    int precision = 6;
    if (x != x) { config_print(text, "nan"); return; }
    do {
        snprintf(digits, sizeof digits, "%.*g", precision, x);
    } while (precision++ < (is_float ? 9 : 17) &&
             !(is_float ? (float)strtod(digits, NULL) == (float)x : strtod(digits, NULL) == x));
    base_decimal_point(digits);
    config_print(text, strpbrk(digits, ".en") ? "%s" : "%s.0", digits);
}

/* " (16, 32, 64)", " (1 to 4096)", " (\"ngram\", \"none\")": what the field may be; "" for a list
 * or a group. */
static void config_range(const config_field *field, char *range, size_t bytes) {
    config_text text;
    int i;
    config_text_init(&text, range, bytes);
    for (i = 0; i < field->allowed_count; i++)
        config_print(&text, "%s%d", i ? ", " : " (", field->allowed[i]);
    for (i = 0; i < field->value_count; i++)
        config_print(&text, "%s\"%s\"", i ? ", " : " (", field->values[i].text);
    if (field->kind == CFG_FLOAT)
        config_print(&text, field->float_open ? " (above %g, up to %g" : " (%g to %g",
                  field->float_low, field->float_high);
    if (field->kind == CFG_INT64 || (field->kind == CFG_INT && !field->allowed))
        config_print(&text, " (%lld to %lld", (long long)field->low, (long long)field->high);
    if (field->multiple) config_print(&text, ", a multiple of %d", field->multiple);
    if (field->kind == CFG_STRING) config_print(&text, " (1 to %d bytes", (int)field->bytes - 1);
    if (text.used) config_print(&text, ")");
}

/* ---- nearest names ------------------------------------------------------------------------- */

#define CFG_NAME_BYTES 48

static int config_least(int a, int b) { return a < b ? a : b; }

static int config_lower(char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; }

/* Insertions, deletions, replacements and swaps of neighbours that turn one name into the other,
 * the case of letters aside; INT_MAX for what is too long to be a name. */
static int config_distance(const char *a, const char *b) {
    int rows[3][CFG_NAME_BYTES + 1], i, j, n = (int)strlen(a), m = (int)strlen(b);
    if (n > CFG_NAME_BYTES || m > CFG_NAME_BYTES) return INT_MAX;
    for (j = 0; j <= m; j++) rows[0][j] = j;
    for (i = 1; i <= n; i++) {
        int *row = rows[i % 3], *above = rows[(i + 2) % 3], *above2 = rows[(i + 1) % 3];
        row[0] = i;
        for (j = 1; j <= m; j++) {
            row[j] = config_least(config_least(above[j], row[j - 1]) + 1,
                               above[j - 1] + (config_lower(a[i - 1]) != config_lower(b[j - 1])));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = config_least(row[j], above2[j - 2] + 1);
        }
    }
    return rows[n % 3][m];
}

/* Near enough to be a slip of the finger. */
static bool config_is_near(int distance, const char *name) {
    return distance <= 1 + (int)strlen(name) / 4;
}

/* What other programs call the values here. */
static const struct config_synonym { const char *said, *meant; } config_synonyms[] = {
    {"gpu", "cuda"}, {"nvidia", "cuda"}, {"host", "cpu"}, {"lookup", "ngram"},
    {"prompt_lookup", "ngram"}, {"off", "none"}, {"mmap", "file"}, {"fp16", "f16"}, {"half", "f16"},
    {"bfloat16", "bf16"}, {"fp32", "f32"}, {"float", "f32"}, {"fp8", "e4m3"}, {"q8_0", "e4m3"},
    {"average", "mean"}, {"verbose", "debug"}, {"warning", "warn"}, {"silent", "off"},
    {"readwrite", "read-write"}, {"readonly", "read-only"}};

/* The allowed text that means the same as `wrong`, or is nearest to it; NULL if none is near. */
static const char *config_nearest_value(const config_field *field, const char *wrong) {
    int i, best = -1, least = INT_MAX;
    for (size_t s = 0; s < BASE_COUNT(config_synonyms); s++)
        for (i = 0; i < field->value_count && !config_distance(wrong, config_synonyms[s].said); i++)
            if (!strcmp(field->values[i].text, config_synonyms[s].meant))
                return field->values[i].text;
    for (i = 0; i < field->value_count; i++) {
        int distance = config_distance(wrong, field->values[i].text);
        if (distance < least) least = distance, best = i;
    }
    return best >= 0 && config_is_near(least, wrong) ? field->values[best].text : NULL;
}

/* The allowed int nearest to `value`, of two the larger; `value` itself when any is. */
static int64_t config_nearest_int(const config_field *field, int64_t value) {
    int64_t best = value;
    int i;
    if (!field->allowed && !field->multiple) return value;
    if (value <= field->low) return field->low;
    if (value >= field->high) return field->high;
    if (field->multiple)
        best = (value + field->multiple / 2) / field->multiple * field->multiple;
    for (i = 0; i < field->allowed_count; i++)
        if (i == 0 || llabs(field->allowed[i] - value) <= llabs(best - value))
            best = field->allowed[i];
    return best;
}
