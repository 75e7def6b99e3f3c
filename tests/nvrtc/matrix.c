/* Compiles every kernels_src/NAME.cu with NVRTC, without a GPU: all instances for sm_80, sm_90a and
 * sm_120, the first one for sm_89 and sm_100, too; and the kernels take turns at the other
 * architectures from sm_80 to sm_121 that NVRTC knows, whose code differs little: with
 * CAIRN_TEST_LONG=1 each is compiled for each.
 * Within the whole suite (CAIRN_TEST_TURNS=1, run.sh says why) the first is compiled for sm_90a, and takes its
 * turn at each of the others or none, as another instance does at one of the three, by CAIRN_SEED.
 * Each entry must spill nothing, keep no local memory, hold its launch bounds' registers and have
 * no static shared memory; dynamic shared memory is asserted by the kernels (shared_as).
 *
 * Instances stand in a line of the head of each .cu, constants as the JIT's prologue has them:
 *     matrix: PAGE_SIZE=64 HEAD_DIM=128 | PAGE_SIZE=16 HEAD_DIM=64 | arch>=90 STAGES=4
 * More such lines go on; one that begins with + adds to the instance before.
 *
 * A program that passed is not compiled again while its text, the headers that it includes, options
 * and the library stay: its line is kept in the folder CAIRN_MATRIX_KEPT, by a digest of all these.
 *
 * usage: matrix [PART/PARTS] [NAME...]   TAP on standard output; run.sh adds up the parts. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <glob.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "../tap.h"
#include "../turns.h"

enum { max_headers = 160, max_files = 128, max_instances = 64, max_text = 1 << 20 };

typedef struct { char name[64]; char *text; } source;
static source headers[max_headers], kernels[max_files];
static int header_count, kernel_count;

/* ---- NVRTC ---- */

static int (*create_program)(void **, const char *, const char *, int, const char **,
                             const char **);
static int (*compile_program)(void *, int, const char **), (*destroy_program)(void **);
static int (*log_size)(void *, size_t *), (*get_log)(void *, char *);
static int (*ptx_size)(void *, size_t *), (*get_ptx)(void *, char *);
static int (*arch_count)(int *), (*get_archs)(int *);

static char library_path[1024];

static void *open_first(const char *pattern) {
    glob_t found;
    void *library = NULL;
    if (glob(pattern, 0, NULL, &found) == 0)
        for (size_t i = found.gl_pathc; i-- > 0 && !library;)
            library = dlopen(found.gl_pathv[i], RTLD_NOW);
    globfree(&found);
    return library;
}

/* CAIRN_NVRTC_PATH, the loader's own search, a toolkit, the Python package where pip puts it. */
static void *open_nvrtc(void) {
    static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12"};
    static const char *const patterns[] = {
        "/usr/local/cuda/lib64/libnvrtc.so.1*", "/usr/local/cuda-*/lib64/libnvrtc.so.1*",
        "/usr/local/cuda*/targets/*/lib/libnvrtc.so.1*", "build/nvrtc/libnvrtc.so.1*",
        "/usr/lib/python3*/dist-packages/nvidia/*/lib/libnvrtc.so.1*",
        "/usr/local/lib/python3*/*-packages/nvidia/*/lib/libnvrtc.so.1*",
    };
    const char *path = getenv("CAIRN_NVRTC_PATH"), *home = getenv("HOME");
    char user[512];
    snprintf(user, sizeof user, "%s/.local/lib/python3*/site-packages/nvidia/*/lib/libnvrtc.so.1*",
             home ? home : "");
    if (path) return dlopen(path, RTLD_NOW);
    void *library = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !library; i++)
        library = dlopen(names[i], RTLD_NOW);
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns && !library; i++)
        library = open_first(patterns[i]);
    return library ? library : open_first(user);
}

static bool load_nvrtc(void) {
    void *library = open_nvrtc();
    if (!library) return false;
    bool all = true;
#define SYMBOL(function, name) \
    do { \
        void *s = dlsym(library, name); \
        all = all && s; \
        memcpy(&function, &s, sizeof s); \
    } while (0)
    SYMBOL(create_program, "nvrtcCreateProgram");
    SYMBOL(compile_program, "nvrtcCompileProgram");
    SYMBOL(destroy_program, "nvrtcDestroyProgram");
    SYMBOL(log_size, "nvrtcGetProgramLogSize");
    SYMBOL(get_log, "nvrtcGetProgramLog");
    SYMBOL(ptx_size, "nvrtcGetPTXSize");
    SYMBOL(get_ptx, "nvrtcGetPTX");
    SYMBOL(arch_count, "nvrtcGetNumSupportedArchs");
    SYMBOL(get_archs, "nvrtcGetSupportedArchs");
#undef SYMBOL
    Dl_info info;
    if (all && dladdr(dlsym(library, "nvrtcCompileProgram"), &info))
        snprintf(library_path, sizeof library_path, "%s", info.dli_fname);
    return all;
}

/* ---- sources ---- */

static char *read_file(const char *path) {
    FILE *file = fopen(path, "rb");
    char *text = (char *)calloc(1, max_text);
    if (file && text) (void)!fread(text, 1, max_text - 1, file);
    if (file) fclose(file);
    return text;
}

static bool ends_with(const char *name, const char *end) {
    size_t n = strlen(name), m = strlen(end);
    return n > m && strcmp(name + n - m, end) == 0;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const source *)a)->name, ((const source *)b)->name);
}

/* One file of kernels_src/, by its path below it. */
static void read_source(const char *name) {
    char path[512];
    bool kernel = ends_with(name, ".cu");
    bool header = ends_with(name, ".cuh") || ends_with(name, ".h");
    if ((!kernel && !header) || strlen(name) > 63) return;
    if (kernel ? kernel_count == max_files : header_count == max_headers) return;
    source *s = kernel ? &kernels[kernel_count++] : &headers[header_count++];
    snprintf(s->name, sizeof s->name, "%.63s", name);
    snprintf(path, sizeof path, "kernels_src/%.63s", name);
    s->text = read_file(path);
}

/* `below`: "" or the name of a room's folder. */
static void read_folder(const char *below) {
    char path[512];
    struct dirent *entry;
    snprintf(path, sizeof path, "kernels_src/%.200s", below);
    DIR *folder = opendir(path);
    while (folder && (entry = readdir(folder))) {
        bool room = !*below && !strchr(entry->d_name, '.');
        snprintf(path, sizeof path, "%.200s%s%.200s", below, *below ? "/" : "", entry->d_name);
        if (room) read_folder(entry->d_name);
        else read_source(path);
    }
    if (folder) closedir(folder);
}

static bool read_sources(void) {
    read_folder("");
    qsort(kernels, (size_t)kernel_count, sizeof *kernels, by_name);
    return kernel_count > 0;
}

/* ---- instances: from the lines with `matrix:` in the head of a file ---- */

typedef struct { char constants[1024]; int least_arch; } instance;

static void trim(char *text) {
    size_t n = strlen(text), lead = strspn(text, " \t");
    while (n > lead && strchr(" \t*/", text[n - 1])) n--;
    memmove(text, text + lead, n - lead);
    text[n - lead] = 0;
}

/* Without such a line: one instance, no constants. */
static int read_instances(const char *text, instance *all) {
    int count = 0, line_number = 0;
    const char *next = text;
    for (const char *line = text; *line && line_number++ < 120; line = next) {
        next = line + strcspn(line, "\n");
        next += *next != 0;
        const char *start = line + strspn(line, " \t*/");
        if (strncmp(start, "matrix:", 7)) continue;
        start += 7;
        size_t left = strcspn(start, "\n"), plus = strspn(start, " ");
        if (start[plus] == '+' && count > 0) {
            instance *it = &all[count - 1];
            size_t used = strlen(it->constants);
            snprintf(it->constants + used, sizeof it->constants - used, " %.*s",
                     (int)(left - plus - 1), start + plus + 1);
            trim(it->constants);
            continue;
        }
        for (bool more = true; more && count < max_instances;) {
            size_t n = strcspn(start, "|\n");
            instance *it = &all[count++];
            snprintf(it->constants, sizeof it->constants, "%.*s", (int)n, start);
            trim(it->constants);
            it->least_arch = 0;
            if (sscanf(it->constants, "arch>=%d", &it->least_arch) == 1)
                memmove(it->constants, it->constants + strcspn(it->constants, " "),
                        strlen(it->constants + strcspn(it->constants, " ")) + 1);
            more = n < left && start[n] == '|';
            left -= more ? n + 1 : n;
            start += more ? n + 1 : n;
        }
    }
    if (!count) memset(&all[count++], 0, sizeof *all);
    return count;
}

/* "A=1 B=2" as #defines, then the file under its own line numbers. */
static char *expand(const source *kernel, const char *constants) {
    size_t room = strlen(kernel->text) + 4096;
    char *text = (char *)malloc(room), words[1024];
    if (!text) abort();
    size_t used = 0;
    snprintf(words, sizeof words, "%s", constants);
    for (char *word = strtok(words, " "); word; word = strtok(NULL, " ")) {
        char *value = strchr(word, '=');
        if (value) *value++ = 0;
        used += (size_t)snprintf(text + used, room - used, "#define %s %s\n", word,
                                 value ? value : "");
    }
    snprintf(text + used, room - used, "#line 1 \"kernels_src/%s\"\n%s", kernel->name,
             kernel->text);
    return text;
}

/* ---- one compilation, judged ---- */

/* The data-centre chips hold 2048 threads an SM, the others 1536; fewer blocks fit there. */
static int threads_of_sm(const char *arch) {
    int n = atoi(arch);
    return n == 80 || n == 90 || n == 100 || n == 103 ? 2048 : 1536;
}

/* 64 Ki registers shared by the blocks that the bounds promise, in steps of 8, at most 255. */
static int register_limit(const char *ptx, const char *entry, const char *arch) {
    char mark[160];
    int threads = 0, blocks = 1;
    snprintf(mark, sizeof mark, ".entry %s(", entry);
    const char *at = strstr(ptx, mark), *body = at ? strstr(at, "\n{") : NULL;
    const char *bound = at ? strstr(at, ".maxntid ") : NULL;
    const char *least = at ? strstr(at, ".minnctapersm ") : NULL;
    if (!body || !bound || bound > body || sscanf(bound, ".maxntid %d", &threads) != 1) return 0;
    if (least && least < body) sscanf(least, ".minnctapersm %d", &blocks);
    int warps = (threads + 31) / 32;
    if (warps * 32 * blocks > threads_of_sm(arch)) blocks = threads_of_sm(arch) / (warps * 32);
    int limit = 65536 / (warps * 32 * blocks) / 8 * 8;
    return limit > 255 ? 255 : limit;
}

/* One entry's lines of the log of ptxas; false and a note if anything is out of bounds. */
static bool judge_entry(const char *log, const char *ptx, const char *entry, const char *arch) {
    int stack = -1, stores = -1, loads = -1, registers = -1, shared = 0;
    const char *next = strstr(log, "Compiling entry function");
    const char *at = strstr(log, "bytes stack frame");
    const char *used = strstr(log, "Used ");
    while (at && at > log && at[-1] != '\n') at--;
    if (at) sscanf(at + strcspn(at, "0123456789"),
                   "%d bytes stack frame, %d bytes spill stores, %d", &stack, &stores, &loads);
    if (used && (!next || used < next)) {
        sscanf(used, "Used %d registers", &registers);
        const char *smem = strstr(used, " bytes smem"), *end = strchr(used, '\n');
        while (smem && end && smem < end && smem > used && strchr("0123456789", smem[-1])) smem--;
        if (smem && end && smem < end) shared = atoi(smem);
    }
    int limit = register_limit(ptx, entry, arch);
    bool good = !stack && !stores && !loads && registers > 0 && registers <= limit && !shared;
    if (!good)
        tap_note("%s: %d registers (bounds give %d), %d bytes of local memory, spills %d and %d"
                 " bytes, static shared memory %d bytes", entry, registers, limit, stack, stores,
                 loads, shared);
    return good;
}

static bool judge(const char *log, const char *ptx, const char *arch, int *entries) {
    char entry[128];
    int failed = 0;
    *entries = 0;
    for (const char *at = log; (at = strstr(at, "Compiling entry function '"));) {
        at += strlen("Compiling entry function '");
        snprintf(entry, sizeof entry, "%.*s", (int)strcspn(at, "'"), at);
        failed += !judge_entry(at, ptx, entry, arch);
        ++*entries;
    }
    return !failed && *entries > 0;
}

static char *fetch(void *program, int (*size_of)(void *, size_t *), int (*get)(void *, char *)) {
    size_t size = 0;
    size_of(program, &size);
    char *text = (char *)calloc(1, size + 1);
    if (text && size) get(program, text);
    return text;
}

static void note_lines(char *log) {
    int lines = 0;
    for (char *line = strtok(log, "\n"); line && lines++ < 20; line = strtok(NULL, "\n"))
        tap_note("%s", line);
}

/* ---- what passed before ---- */

static uint64_t mix(uint64_t h, const char *text) { /* FNV-1a */
    for (; *text; text++) h = (h ^ (unsigned char)*text) * 1099511628211u;
    return (h ^ 0xff) * 1099511628211u;
}

/* With the headers that the text includes, and those that they do; each once. */
static uint64_t mix_included(uint64_t h, const char *text, bool *seen) {
    for (const char *at = text; (at = strstr(at, "#include \""));) {
        at += strlen("#include \"");
        size_t n = strcspn(at, "\"\n");
        for (int i = 0; i < header_count; i++) {
            if (seen[i] || strlen(headers[i].name) != n || strncmp(headers[i].name, at, n)) continue;
            seen[i] = true;
            h = mix_included(mix(mix(h, headers[i].name), headers[i].text), headers[i].text, seen);
        }
    }
    return h;
}

/* The file of a program's line; empty where none are kept. The library is known by its path, size
 * and time, as its version is not all that can change. */
static void kept_path(char *path, size_t size, const char *text, const char *const *options, int n) {
    const char *folder = getenv("CAIRN_MATRIX_KEPT");
    bool seen[max_headers] = {false};
    struct stat about = {0};
    char library[1200];
    stat(library_path, &about);
    snprintf(library, sizeof library, "%s %lld %lld", library_path, (long long)about.st_size,
             (long long)about.st_mtime);
    uint64_t h = mix_included(mix(mix(14695981039346656037u, library), text), text, seen);
    for (int i = 0; i < n; i++) h = mix(h, options[i]);
    if (folder) snprintf(path, size, "%s/%016llx", folder, (unsigned long long)h);
    else *path = 0;
}

/* The number of entries of a program that passed before; else 0. */
static int kept_entries(const char *path) {
    FILE *file = *path ? fopen(path, "r") : NULL;
    int entries = 0;
    if (file && fscanf(file, "%d", &entries) != 1) entries = 0;
    if (file) fclose(file);
    return entries;
}

static void keep(const char *path, int entries) {
    FILE *file = *path ? fopen(path, "w") : NULL;
    if (file) fprintf(file, "%d\n", entries), fclose(file);
}

/* ---- one program ---- */

static bool compile_and_judge(const source *kernel, const char *text, const char *const *options,
                              int count, const char *arch, int *entries) {
    const char *names[max_headers], *texts[max_headers];
    for (int i = 0; i < header_count; i++) names[i] = headers[i].name, texts[i] = headers[i].text;
    void *program;
    create_program(&program, text, kernel->name, header_count, texts, names);
    int status = compile_program(program, count, (const char **)(uintptr_t)options);
    char *log = fetch(program, log_size, get_log), *ptx = fetch(program, ptx_size, get_ptx);
    bool good = !status && judge(log, ptx, arch, entries);
    if (status) note_lines(log);
    destroy_program(&program);
    free(log);
    free(ptx);
    return good;
}

static void check(const source *kernel, const instance *it, const char *arch) {
    char target[64], kept[1200];
    snprintf(target, sizeof target, "--gpu-architecture=sm_%s", arch);
    const char *options[] = {target, "--std=c++17", "--device-as-default-execution-space",
                             "--restrict", "--fmad=true", "--ptxas-options=-v"};
    char *text = expand(kernel, it->constants);
    kept_path(kept, sizeof kept, text, options, 6);
    clock_t before = clock(); /* of this process: one core, whatever else runs */
    int entries = kept_entries(kept);
    const bool old = entries > 0, good = old || compile_and_judge(kernel, text, options, 6, arch, &entries);
    int ms = (int)((double)(clock() - before) * 1000.0 / CLOCKS_PER_SEC);
    if (good && !old) keep(kept, entries);
    char took[32];
    snprintf(took, sizeof took, "%d ms", ms);
    tap_ok(good, "%s sm_%s %s%sentries: %d, %s", kernel->name, arch, it->constants,
           *it->constants ? ", " : "", entries, old ? "as before" : took);
    free(text);
}

/* ---- the matrix ---- */

static bool asked(int argc, char **argv, int first, const char *name) {
    if (argc <= first) return true;
    for (int i = first; i < argc; i++)
        if (!strncmp(argv[i], name, strlen(argv[i]))) return true;
    return false;
}

static bool is_set(const char *name) {
    const char *value = getenv(name);
    return value && atoi(value);
}

/* Whether the first instance of the kernel is compiled for that architecture: where turns are taken, one of eight for
 * sm_80, one for sm_120, and three of four for none of the others. */
static bool has_turn(int kernel, int arch, int turn) {
    static const int others[] = {89, 100, 86, 87, 88, 90, 103, 110, 121};
    enum { count = sizeof others / sizeof *others, seldom = count - 2 };
    if (is_set("CAIRN_TEST_LONG")) return true;
    for (int i = 0; i < count; i++)
        if (others[i] == arch)
            return turn >= 0 ? (kernel + turn) % (4 * count) == i : i < 2 || kernel % seldom == i - 2;
    return turn < 0 || (kernel + turn) % 8 == (arch == 120 ? 4 : 0);
}

/* Whether another instance is compiled for wide[a], of which those from `first` on know it: where turns are taken,
 * 23 times of 24 for none. */
static bool instance_has_turn(int kernel, int instance, int a, int first, int turn) {
    return turn < 0 || a == first + (kernel + instance + turn) % (24 * (3 - first));
}

static void check_kernel(const source *kernel, int part, int parts, int *job) {
    static instance all[max_instances];
    static const char *const wide[] = {"80", "90a", "120"};
    const int which = (int)(kernel - kernels), turn = is_set("CAIRN_TEST_LONG") ? -1 : turn_of(1000);
    int archs[64], n = 0, count = read_instances(kernel->text, all);
    char arch[16];
    if (arch_count(&n) || n > 64 || get_archs(archs)) n = 0;
    for (int i = 0; i < n; i++) {
        if (archs[i] < 80 || archs[i] > 121 || archs[i] < all[0].least_arch) continue;
        if (!has_turn(which, archs[i], turn)) continue;
        snprintf(arch, sizeof arch, "%d", archs[i]);
        if ((*job)++ % parts == part) check(kernel, &all[0], arch);
    }
    for (int i = 0; i < count; i++) {
        int first = 0;
        while (first < 3 && atoi(wide[first]) < all[i].least_arch) first++;
        for (int a = first; a < 3; a++) {
            const bool wanted = i ? instance_has_turn(which, i, a, first, turn) : a == 1;
            if (wanted && (*job)++ % parts == part) check(kernel, &all[i], wide[a]);
        }
    }
}

int main(int argc, char **argv) {
    int part = 0, parts = 1, job = 0, first = 1;
    if (argc > 1 && sscanf(argv[1], "%d/%d", &part, &parts) == 2) first = 2;
    if (!load_nvrtc()) {
        tap_skip("matrix: no NVRTC (set CAIRN_NVRTC_PATH or install nvidia-cuda-nvrtc)");
        return tap_done();
    }
    if (!tap_ok(read_sources(), "kernels_src holds kernels")) return tap_done();
    for (int i = 0; i < kernel_count; i++)
        if (asked(argc, argv, first, kernels[i].name)) check_kernel(&kernels[i], part, parts, &job);
    return tap_done();
}
