/* jit: its state, the source text of programs, and the keys that name them. */
#include <fenv.h>

#define JIT_SCHEMA 4 /* counts changes of what a key covers */
#define JIT_ABI 1    /* counts changes of how compiled kernels are called */
#define JIT_MAX_THREADS 16
#define JIT_OWN_THREADS 12 /* unless asked for more: as many programs as a model waits for */
#define JIT_MAX_ARCHS 64
#define JIT_MAX_HEADERS 160 /* more than kernels_src/ has files */
#define JIT_STACK_BYTES ((size_t)8 << 20)

typedef enum jit_worker_state { JIT_IDLE, JIT_STARTED, JIT_ENDED, JIT_JOINING } jit_worker_state;

typedef struct jit_worker {
    struct jit *jit_of;
    os_thread thread;
    base own; /* for its memory and messages */
    jit_worker_state state;
} jit_worker;

struct jit {
    struct jit *next_open; /* jits alive, for the end of the process */
    base *owner;
    jit_options options;
    char nvrtc_path[OS_PATH_BYTES];
    char arch[12];         /* "sm_90a": what is asked for; part of the key */

    os_mutex lock;         /* guards all below, and the states of programs */
    os_cond changed;
    jit_program *programs;
    jit_worker workers[JIT_MAX_THREADS];
    int running;           /* workers at work */
    bool ahead;            /* one more opens NVRTC before there are programs */
    int queued, busy;      /* programs in these states */
    char current[48];      /* the program taken last */
    os_atomic cancel;
    os_atomic nvrtc_again; /* something was requested since NVRTC was searched for */
    driver_calls *twin;    /* a second copy of NVRTC; NULL: none */
    bool twin_tried;
    bool fronts[2];        /* whether a front end runs: NVRTC's, its twin's */

    os_mutex nvrtc_lock;   /* guards opening, and all below */
    cairn_status nvrtc_status;
    char nvrtc_error[BASE_ERROR_BYTES];
    bool nvrtc_ready;
    char compiler[96];
    int archs[JIT_MAX_ARCHS], arch_count;
    char *header_texts[JIT_MAX_HEADERS];
    const char *header_names[JIT_MAX_HEADERS];
    size_t header_sizes[JIT_MAX_HEADERS];
    int header_count;
    int64_t nvrtc_open_us;

    os_mutex load_lock;    /* one module load, or second attempt to compile, at a time */
};

/* Who of those that wait comes first: the oldest of the highest rank. */
static int jit_rank(const jit_program *p) { return 2 * p->wanted + p->beside; }

/* ---- source text ----------------------------------------------------------------------------- */

static const kernels_file *jit_find_file(const jit *j, const char *name) {
    const kernels_file *file = j->options.files;
    while (file->name && strcmp(file->name, name)) file++;
    return file->name ? file : NULL;
}

static bool jit_is_header(const kernels_file *file) {
    size_t size = strlen(file->name);
    return (size > 4 && !strcmp(file->name + size - 4, ".cuh")) || file->name[size - 1] == 'h';
}

static bool jit_add_file(base *b, base_text *text, const kernels_file *file) {
    int i;
    bool good = base_text_reserve(b, text, file->bytes);
    for (i = 0; good && file->pieces[i]; i++)
        good = base_text_add(b, text, file->pieces[i], strlen(file->pieces[i]));
    return good;
}

/* order[i]: the i-th constant by name. */
static void jit_sort_constants(const jit_request *request, int *order) {
    int i, k;
    for (i = 0; i < request->constant_count; i++) {
        for (k = i; k > 0 && strcmp(request->constants[order[k - 1]].name,
                                    request->constants[i].name) > 0; k--) order[k] = order[k - 1];
        order[k] = i;
    }
}

/* A repeated or odd name would compile into something else than what was asked for. */
static cairn_status jit_check_request(const jit *j, base *b, const jit_request *request,
                                      const int *order) {
    int i;
    if (!jit_find_file(j, request->source))
        return base_fail(b, CAIRN_NOT_FOUND, "there is no kernel template %s", request->source);
    for (i = 0; i < request->constant_count; i++) {
        const char *name = request->constants[order[i]].name;
        size_t size = strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
        if (size == 0 || name[size])
            return base_fail(b, CAIRN_INVALID_ARGUMENT, "%s: a constant cannot be named \"%s\"",
                             request->source, name);
        if (i > 0 && !strcmp(name, request->constants[order[i - 1]].name))
            return base_fail(b, CAIRN_INVALID_ARGUMENT, "%s: the constant %s is given twice",
                             request->source, name);
    }
    return CAIRN_OK;
}

static bool jit_add_constants(base *b, base_text *text, const jit_request *request,
                              const int *order) {
    bool good = true;
    int i;
    for (i = 0; good && i < request->constant_count; i++) {
        const jit_constant *c = &request->constants[order[i]];
        good = base_text_print(b, text, c->value < 0 ? "#define CAIRN_%s (%lld)\n"
                                                     : "#define CAIRN_%s %lld\n",
                               c->name, (long long)c->value);
    }
    return good;
}

static cache_key jit_request_id(const char *name, const char *constants, size_t bytes) {
    cache_hash hash;
    cache_hash_begin(&hash, "cairn request");
    cache_hash_field(&hash, name, strlen(name));
    cache_hash_field(&hash, constants, bytes);
    return cache_hash_end(&hash);
}

/* `out` gets the sorted constants; the template is added only when a program is built. */
static cairn_status jit_prologue(const jit *j, base *b, const jit_request *request,
                                 base_text *out) {
    int order[JIT_MAX_CONSTANTS];
    cairn_status status;
    if (request->constant_count > JIT_MAX_CONSTANTS)
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "%s: more than %d constants", request->source,
                         JIT_MAX_CONSTANTS);
    jit_sort_constants(request, order);
    status = jit_check_request(j, b, request, order);
    if (status) return status;
    if (base_text_add(b, out, "", 0) && jit_add_constants(b, out, request, order)) return CAIRN_OK;
    return base_no_memory(b, "kernel source", 4096);
}

static cairn_status jit_expand(const jit *j, base *b, const jit_program *p, base_text *out) {
    if (base_text_add(b, out, p->source.data, p->source.size) &&
        base_text_print(b, out, "#line 1 \"kernels_src/%s\"\n", p->name) &&
        jit_add_file(b, out, jit_find_file(j, p->name))) return CAIRN_OK;
    return base_no_memory(b, "kernel source", out->size);
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* sm_90 has instructions that only its own variant `a` gives; other chips take the plain name. A
 * function of the device alone, so that no key asks NVRTC. */
static void jit_name_arch(jit *j) {
    snprintf(j->arch, sizeof j->arch, "sm_%d%s", j->options.arch, j->options.arch == 90 ? "a" : "");
}

/* What a program includes: each file once, in the order of first mention. */
typedef struct jit_includes { const kernels_file *files[JIT_MAX_HEADERS]; int count; } jit_includes;

/* The name that a line includes, NULL if none; it ends with a quote. */
static const char *jit_included(const char *line) {
    line += strspn(line, " \t");
    if (*line++ != '#') return NULL;
    line += strspn(line, " \t");
    if (strncmp(line, "include", 7)) return NULL;
    line += 7 + strspn(line + 7, " \t");
    return *line == '"' ? line + 1 : NULL;
}

/* A name that no file bears is for another compiler (the emulation's), or for NVRTC to refuse. */
static void jit_include(const jit *j, const char *name, jit_includes *found) {
    size_t size = strcspn(name, "\"\n");
    const kernels_file *file = j->options.files;
    int i;
    while (file->name && (strncmp(file->name, name, size) || file->name[size])) file++;
    for (i = 0; i < found->count && found->files[i] != file; i++) {}
    if (file->name && i == found->count && i < JIT_MAX_HEADERS) found->files[found->count++] = file;
}

/* `text` begins at the start of a line, as every piece of a file does. */
static void jit_scan_includes(const jit *j, const char *text, jit_includes *found) {
    while (text) {
        const char *name = jit_included(text);
        if (name) jit_include(j, name, found);
        text = strchr(text, '\n');
        if (text) text++;
    }
}

/* The names and digests of a template and of all that it includes, directly or not, and of nothing else: an edit to
 * another header leaves the program's key as it is. */
static void jit_hash_files(const jit *j, const kernels_file *source, cache_hash *hash) {
    jit_includes found;
    found.files[0] = source, found.count = 1;
    for (int f = 0; f < found.count; f++) {
        const kernels_file *file = found.files[f];
        cache_hash_field(hash, file->name, strlen(file->name));
        cache_hash_field(hash, file->digest, sizeof file->digest);
        for (int i = 0; file->pieces[i]; i++) jit_scan_includes(j, file->pieces[i], &found);
    }
}

#define JIT_MAX_FLAGS 8

/* The options that decide the code, as wished; an older NVRTC is given fewer of them. */
static int jit_flags(const jit *j, const char *flags[JIT_MAX_FLAGS]) {
    int n = 0;
    flags[n++] = "--std=c++17";
    flags[n++] = "--device-as-default-execution-space";
    flags[n++] = "--restrict";
    flags[n++] = "--fmad=true";
    if (j->options.quick) flags[n++] = "--Ofast-compile=mid";
    if (j->options.debug) flags[n++] = "-lineinfo";
    return n;
}

static cache_key jit_key(const jit *j, const jit_program *p) {
    const char *flags[JIT_MAX_FLAGS];
    uint8_t numbers[8];
    cache_hash hash;
    int i, count = jit_flags(j, flags);
    cache_store32(numbers, JIT_SCHEMA);
    cache_store32(numbers + 4, JIT_ABI);
    cache_hash_begin(&hash, "cairn kernel");
    cache_hash_field(&hash, numbers, sizeof numbers);
    jit_hash_files(j, jit_find_file(j, p->name), &hash);
    cache_hash_field(&hash, p->source.data, p->source.size);
    cache_hash_field(&hash, j->arch, strlen(j->arch));
    for (i = 0; i < count; i++) cache_hash_field(&hash, flags[i], strlen(flags[i]));
    return cache_hash_end(&hash);
}
