/* base: statuses, the failure path, the log, host memory and growing text. */

/* ---- status ---------------------------------------------------------------------------------- */

typedef struct base_status_row { const char *name, *meaning, *hint; } base_status_row;

static const base_status_row base_status_rows[] = {
#define BASE_STATUS_ROW(name, code, meaning, hint) {"CAIRN_" #name, meaning, hint},
    CAIRN_STATUS_TABLE(BASE_STATUS_ROW)
#undef BASE_STATUS_ROW
};

static const base_status_row *base_status(cairn_status status) {
    static const base_status_row unknown = {"CAIRN_UNKNOWN", "no such status", ""};
    size_t row = (size_t)status;
    return row < BASE_COUNT(base_status_rows) ? &base_status_rows[row] : &unknown;
}

const char *cairn_status_name(cairn_status status) { return base_status(status)->name; }
const char *cairn_status_meaning(cairn_status status) { return base_status(status)->meaning; }
const char *cairn_status_hint(cairn_status status) { return base_status(status)->hint; }
int cairn_version(void) { return CAIRN_VERSION; }

/* ---- base ------------------------------------------------------------------------------------ */

static void *base_default_realloc(void *user, void *memory, size_t old_bytes, size_t new_bytes) {
    (void)user;
    (void)old_bytes;
    if (new_bytes) return realloc(memory, new_bytes);
    free(memory);
    return NULL;
}

static void base_init(base *b, const cairn_allocator *allocator, cairn_log_callback log,
                      void *log_user, cairn_log_level level) {
    memset(b, 0, sizeof *b);
    if (allocator && allocator->realloc) b->allocator = *allocator;
    else b->allocator.realloc = base_default_realloc;
    b->log = log;
    b->log_user = log_user;
    b->log_level = level;
}

static void base_fork(const base *from, base *to) {
    base_init(to, &from->allocator, from->log, from->log_user, from->log_level);
    to->root = from;
}

void cairn_log_stderr(void *user, cairn_log_level level, const char *text) {
    char line[2304]; /* whole: mingw's fprintf writes bytes, of which a console shows no character */
    int size = snprintf(line, sizeof line, "cairn: %s\n", text);
    (void)user, (void)level;
    if (size > 0 && (size_t)size < sizeof line) fwrite(line, 1, (size_t)size, stderr);
    else fprintf(stderr, "cairn: %s\n", text);
}

static void base_log(base *b, cairn_log_level level, const char *format, ...) {
    char text[2048], shown[sizeof text];
    base_callback within;
    va_list args;
    if (!b->log || level > b->log_level) return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    base_show(text, strchr(format, '\n') != NULL, shown, sizeof shown);
    base_begin_callback(b, &within);
    b->log(b->log_user, level, shown);
    base_end_callback(&within);
}

static cairn_status base_fail(base *b, cairn_status status, const char *format, ...) {
    char text[BASE_ERROR_BYTES];
    va_list args;
    const char *hint = cairn_status_hint(status);
    size_t used;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    base_show(text, strchr(format, '\n') != NULL, b->error, sizeof b->error);
    used = strlen(b->error);
    b->status = status;
    if (*hint)
        snprintf(b->error + used, sizeof b->error - used, " (%s: %s)", cairn_status_name(status),
                 hint);
    return status;
}

/* ---- host memory ----------------------------------------------------------------------------- */

static void *base_realloc(base *b, void *memory, size_t old_bytes, size_t new_bytes) {
    return b->allocator.realloc(b->allocator.user, memory, old_bytes, new_bytes);
}

static void *base_new(base *b, size_t count, size_t size) {
    void *memory;
    if (count == 0 || size == 0) count = size = 1;
    if (count > SIZE_MAX / size) return NULL;
    memory = b->allocator.realloc(b->allocator.user, NULL, 0, count * size);
    if (memory) memset(memory, 0, count * size);
    return memory;
}

static void base_delete(base *b, void *memory, size_t count, size_t size) {
    if (count == 0 || size == 0) count = size = 1;
    if (memory) b->allocator.realloc(b->allocator.user, memory, count * size, 0);
}

static cairn_status base_progress(base *b, const char *what, uint64_t done, uint64_t all) {
    base_callback within;
    bool more;
    if (!b->progress) return CAIRN_OK;
    base_begin_callback(b, &within);
    more = b->progress(b->progress_user, what, (int)done, (int)all);
    base_end_callback(&within);
    if (more) return CAIRN_OK;
    if (!done) return base_fail(b, CAIRN_CANCELLED, "cancelled at the beginning of %s", what);
    return base_fail(b, CAIRN_CANCELLED, "cancelled at %llu of %llu of %s",
                     (unsigned long long)done, (unsigned long long)all, what);
}

static cairn_status base_no_memory(base *b, const char *what, size_t bytes) {
    return base_fail(b, CAIRN_OUT_OF_MEMORY, "%s: cannot allocate %llu bytes", what,
                     (unsigned long long)bytes);
}

/* ---- growing bytes --------------------------------------------------------------------------- */

static bool base_text_reserve(base *b, base_text *text, size_t more) {
    size_t capacity = text->capacity ? text->capacity : 64;
    char *data;
    if (more > SIZE_MAX / 2 - text->size - 1) return false;
    while (capacity < text->size + more + 1) capacity *= 2;
    if (capacity == text->capacity) return true;
    data = (char *)base_realloc(b, text->data, text->capacity, capacity);
    if (!data) return false;
    text->data = data;
    text->capacity = capacity;
    return true;
}

static bool base_text_add(base *b, base_text *text, const void *bytes, size_t count) {
    if (!base_text_reserve(b, text, count)) return false;
    if (count) memcpy(text->data + text->size, bytes, count);
    text->size += count;
    text->data[text->size] = '\0';
    return true;
}

static void base_decimal_point(char *digits) {
    char *at = digits + strspn(digits, "-0123456789");
    const size_t bytes = strcspn(at, "0123456789eE");
    if (at == digits || at[-1] == '-' || !bytes) return; /* nan, -inf, a whole number */
    *at = '.';
    memmove(at + 1, at + bytes, strlen(at + bytes) + 1);
}

static bool base_text_print(base *b, base_text *text, const char *format, ...) {
    va_list args, again;
    int need;
    va_start(args, format);
    va_copy(again, args);
    need = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (need >= 0 && base_text_reserve(b, text, (size_t)need)) {
        vsnprintf(text->data + text->size, (size_t)need + 1, format, again);
        text->size += (size_t)need;
    } else {
        need = -1;
    }
    va_end(again);
    return need >= 0;
}

static void base_text_free(base *b, base_text *text) {
    if (text->data) base_realloc(b, text->data, text->capacity, 0);
    memset(text, 0, sizeof *text);
}
