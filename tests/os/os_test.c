/* os: files, maps, atomic writes under faults of every call, threads, libraries. */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "tap.h"

#ifndef _WIN32
#include <sys/wait.h>
#endif

static const os_call_table *whole;

/* ---- faults: the n-th call of one kind fails ------------------------------------------------- */

static int fault_left = -1, fault_code = EIO;
static size_t fault_short; /* reads and writes give at most this many bytes; 0: no limit */

static bool fault_now(void) { return fault_left >= 0 && fault_left-- == 0; }
static size_t fault_cut(size_t n) { return fault_short && n > fault_short ? fault_short : n; }

static int64_t bad_open(const char *p, int m) {
    return fault_now() ? -fault_code : whole->open(p, m);
}
static int64_t bad_read(int64_t f, void *d, size_t n) {
    return fault_now() ? -fault_code : whole->read(f, d, fault_cut(n));
}
static int64_t bad_write(int64_t f, const void *d, size_t n) {
    return fault_now() ? -fault_code : whole->write(f, d, fault_cut(n));
}
static int bad_sync(int64_t f) { return fault_now() ? -fault_code : whole->sync(f); }
static int bad_close(int64_t f) {
    int error = whole->close(f);
    return fault_now() ? -fault_code : error;
}
static int bad_rename(const char *a, const char *b) {
    return fault_now() ? -fault_code : whole->rename(a, b);
}
static int bad_file_info(int64_t f, os_file_info *out) {
    return fault_now() ? -fault_code : whole->file_info(f, out);
}
static void *bad_map(int64_t f, size_t n) { return fault_now() ? NULL : whole->map(f, n); }

static int bad_sync_directory(const char *p) {
    return fault_now() ? -fault_code : whole->sync_directory(p);
}

static void arm(int nth, int code) {
    fault_left = nth;
    fault_code = code;
    os_calls.open = bad_open; os_calls.read = bad_read; os_calls.write = bad_write;
    os_calls.sync = bad_sync; os_calls.close = bad_close; os_calls.rename = bad_rename;
    os_calls.file_info = bad_file_info; os_calls.map = bad_map;
    os_calls.sync_directory = bad_sync_directory;
}

static void disarm(void) { os_calls = *whole; fault_left = -1; fault_short = 0; }

/* ---- files ----------------------------------------------------------------------------------- */

static char folder[256];
static char *in_folder(const char *name) {
    static char paths[4][OS_PATH_BYTES];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, OS_PATH_BYTES, "%s/%s", folder, name);
    return path;
}

static bool count_entry(void *user, const char *name) { (void)name; ++*(int *)user; return true; }
static int entries(void) {
    int n = 0;
    return os_calls.list(folder, count_entry, &n) ? -1 : n;
}

static void test_files(base *b) {
    base_text text = {0}, big = {0};
    os_map map;
    char path[OS_PATH_BYTES], part[OS_PATH_BYTES];
    int i;
    snprintf(path, sizeof path, "%s", in_folder("a"));
    tap_ok(!os_write_file(b, path, "hello", 5) && !os_read_file(b, path, &text) &&
           text.size == 5 && !strcmp(text.data, "hello"), "what was written is read");
    tap_ok(!os_read_file(b, path, &text) && !strcmp(text.data, "hellohello"), "reading appends");
    for (i = 0; i < 300000; i++) base_text_print(b, &big, "%d\n", i);
    tap_ok(!os_write_file(b, path, big.data, big.size) && !os_map_open(b, path, &map) &&
           map.size == big.size && !memcmp(map.data, big.data, big.size), "a big file maps");
    os_map_close(&map);
    base_text_free(b, &text);
    fault_short = 4099;
    arm(-1, 0);
    tap_ok(!os_write_file(b, path, big.data, big.size) && !os_read_file(b, path, &text) &&
           text.size == big.size && !memcmp(text.data, big.data, big.size),
           "short reads and writes are gone on with");
    disarm();
    tap_ok(!os_write_file(b, path, "", 0) && !os_map_open(b, path, &map) && map.size == 0 &&
           map.data, "an empty file maps to nothing");
    os_map_close(&map);
    tap_ok(os_map_open(b, folder, &map) == CAIRN_FILE_ERROR && !map.data, "no map of a directory");
    tap_ok(os_read_file(b, in_folder("none"), &text) == CAIRN_FILE_NOT_FOUND &&
           strstr(b->error, "none") && text.size == big.size, "a missing file is named");
    tap_ok(os_read_file(b, folder, &text) == CAIRN_FILE_ERROR, "a directory is not read");
    tap_ok(os_mtime(path) > INT64_C(1600000000000000) && os_mtime(in_folder("none")) == -1,
           "modification times");
    tap_ok(os_directory_of("/a/b", part, sizeof part) && !strcmp(part, "/a") &&
           os_directory_of("b", part, sizeof part) && !strcmp(part, ".") &&
           os_directory_of("/b", part, sizeof part) && !strcmp(part, "/"), "directory parts");
    os_calls.remove(path);
    base_text_free(b, &text);
    base_text_free(b, &big);
}

static void test_make_path(base *b) {
    char path[OS_PATH_BYTES];
    snprintf(path, sizeof path, "%s", in_folder("x/y/z"));
    tap_ok(os_make_path(path) == 0 && os_make_path(path) == 0, "a path is made, and made again");
    rmdir(in_folder("x/y/z")); rmdir(in_folder("x/y")); rmdir(in_folder("x"));
    os_write_file(b, in_folder("file"), "", 0);
    tap_ok(os_make_path(in_folder("file/of/this")) < 0, "an impossible path is an error");
    os_calls.remove(in_folder("file"));
    tap_ok(os_make_path("") < 0, "an empty path is an error");
}

/* Every call of an atomic write fails in turn: the file holds the old or the new bytes, nothing
 * stays behind. */
static void test_write_faults(base *b) {
    static const int codes[] = {ENOSPC, EROFS, EACCES, EIO, EINTR};
    char path[OS_PATH_BYTES];
    size_t c;
    snprintf(path, sizeof path, "%s", in_folder("kept"));
    for (c = 0; c < BASE_COUNT(codes); c++) {
        bool good = true, done = false;
        int n, before, fired = 0;
        os_write_file(b, path, "old!", 4);
        before = entries();
        for (n = 0; !done && n < 50; n++) {
            base_text text = {0};
            cairn_status status;
            arm(n, codes[c]);
            status = os_write_file(b, path, "new!", 4);
            done = fault_left >= 0; /* nothing was left to fail */
            disarm();
            fired += !done;
            if (os_read_file(b, path, &text)) good = false;
            else if (strcmp(text.data, "new!") && (!status || strcmp(text.data, "old!")))
                good = false;
            if (entries() != before) good = false;
            base_text_free(b, &text);
        }
        tap_ok(good && done && fired >= 5, "error %d at each of %d calls of a write", codes[c],
               fired);
    }
    os_calls.remove(path);
}

static void test_read_faults(base *b) {
    char path[OS_PATH_BYTES];
    bool good = true, done = false;
    int n;
    snprintf(path, sizeof path, "%s", in_folder("read"));
    os_write_file(b, path, "text", 4);
    for (n = 0; !done && n < 50; n++) {
        base_text text = {0};
        os_map map;
        cairn_status read, mapped;
        base_text_print(b, &text, "before");
        arm(n, EIO);
        read = os_read_file(b, path, &text);
        mapped = os_map_open(b, path, &map);
        done = fault_left >= 0;
        disarm();
        if (strcmp(text.data, read ? "before" : "beforetext")) good = false;
        if (!mapped && (map.size != 4 || memcmp(map.data, "text", 4))) good = false;
        if (mapped && map.data) good = false;
        os_map_close(&map);
        base_text_free(b, &text);
    }
    tap_ok(good && done && n > 5, "EIO at each of %d calls of a read and a map", n - 1);
    os_calls.remove(path);
}

#ifdef _WIN32
static const char *const library_name = "msvcrt.dll";

/* ---- UTF-16 ---------------------------------------------------------------------------------- */

static void test_wide(base *b) {
    static const wchar_t value[] = L"\u00e4\u65e5\u672c";
    const char *place = os_env("CAIRN_TEST_NAME");
    base_text text = {0};
    int before = entries();
    tap_ok(!place, "a variable that is not set");
    SetEnvironmentVariableW(L"CAIRN_TEST_NAME", value);
    place = os_env("CAIRN_TEST_NAME");
    tap_ok(place && !strcmp(place, "\xc3\xa4\xe6\x97\xa5\xe6\x9c\xac"), "a variable in UTF-8");
    SetEnvironmentVariableW(L"CAIRN_TEST_OTHER", L"other");
    tap_ok(os_env("CAIRN_TEST_OTHER") && os_env("CAIRN_TEST_NAME") == place &&
           !strcmp(place, "\xc3\xa4\xe6\x97\xa5\xe6\x9c\xac"), "it stands where it stood");
    SetEnvironmentVariableW(L"CAIRN_TEST_NAME", L"");
    tap_ok(!os_env("CAIRN_TEST_NAME"), "an empty variable");
    SetEnvironmentVariableW(L"CAIRN_TEST_NAME", NULL);
    tap_ok(!os_write_file(b, in_folder("\xc3\xa4\xe6\x97\xa5"), "text", 4) &&
           entries() == before + 1 && !os_read_file(b, in_folder("\xc3\xa4\xe6\x97\xa5"), &text) &&
           !strcmp(text.data, "text") && os_mtime(in_folder("\xc3\xa4\xe6\x97\xa5")) > 0,
           "a file's name in UTF-8");
    os_calls.remove(in_folder("\xc3\xa4\xe6\x97\xa5"));
    base_text_free(b, &text);
}

/* Of the things that are no files a pipe is the one that every Windows and every wine calls so. */
static void test_pipe(base *b) {
    static const char name[] = "\\\\.\\pipe\\cairn-os-test";
    HANDLE pipe = CreateNamedPipeA(name, PIPE_ACCESS_DUPLEX, PIPE_TYPE_BYTE, 1, 64, 64, 0, NULL);
    base_text text = {0};
    tap_ok(pipe != INVALID_HANDLE_VALUE && os_read_file(b, name, &text) == CAIRN_FILE_ERROR,
           "a pipe is refused: %s", b->error);
    CloseHandle(pipe);
    base_text_free(b, &text);
}
#else
static const char *const library_name = "libm.so.6";

/* ---- what crashes leave, and what is no file ------------------------------------------------- */

/* Writes in a child that ends half way, without a word, as a crash does. */
static int64_t crash_in_write(int64_t f, const void *d, size_t n) {
    whole->write(f, d, n / 2);
    _exit(3);
}

static void crash_while_writing(base *b, const char *path) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        os_calls.write = crash_in_write;
        os_write_file(b, path, "half done", 9);
        _exit(4);
    }
    waitpid(child, &status, 0);
    tap_ok(WIFEXITED(status) && WEXITSTATUS(status) == 3, "a process ends while it writes");
}

static int busy_before; /* entries while another process is in the middle of a write */
static int64_t write_meanwhile(int64_t f, const void *d, size_t n) {
    base b;
    int status;
    pid_t child = fork();
    busy_before = entries();
    if (child == 0) { /* another process saves the same file */
        os_calls = *whole;
        base_init(&b, NULL, NULL, NULL, CAIRN_LOG_OFF);
        _exit(os_write_file(&b, in_folder("save"), "other", 5) || entries() != busy_before);
    }
    waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status)) return -EIO;
    return whole->write(f, d, n);
}

static void test_crashes(base *b) {
    char path[OS_PATH_BYTES], like[OS_PATH_BYTES];
    base_text text = {0};
    struct stat s;
    int before;
    snprintf(path, sizeof path, "%s", in_folder("save"));
    snprintf(like, sizeof like, "%s", in_folder("save.0.tmp"));
    os_write_file(b, path, "first", 5);
    os_write_file(b, like, "a file of the user's", 20);
    before = entries();
    crash_while_writing(b, path);
    crash_while_writing(b, path);
    tap_ok(entries() == before + 1, "it leaves a file behind, and takes the last one's away");
    tap_ok(!os_write_file(b, path, "second", 6) && entries() == before &&
           !os_read_file(b, path, &text) && !strcmp(text.data, "second"),
           "the next write removes what was left, and nothing else: %d of %d", entries(), before);
    os_calls.write = write_meanwhile;
    tap_ok(!os_write_file(b, path, "third", 5), "two processes write at once: %s", b->error);
    os_calls = *whole;
    text.size = 0;
    tap_ok(!os_read_file(b, path, &text) && !strcmp(text.data, "third") && entries() == before,
           "neither takes the other's file for one left behind");
    tap_ok(!os_write_private(b, path, "mine", 4) && !stat(path, &s) && (s.st_mode & 0777) == 0600,
           "a private file is its owner's");
    os_calls.remove(path);
    os_calls.remove(like);
    base_text_free(b, &text);
}

static void test_no_files(base *b) {
    base_text text = {0};
    os_file_info info;
    os_map map;
    char pipe[OS_PATH_BYTES], error[256];
    cairn_config config;
    snprintf(pipe, sizeof pipe, "%s", in_folder("pipe"));
    if (mkfifo(pipe, 0600)) { tap_skip("no pipes"); return; }
    tap_ok(os_read_file(b, pipe, &text) == CAIRN_FILE_ERROR && strstr(b->error, "a pipe") &&
           os_map_open(b, pipe, &map) == CAIRN_FILE_ERROR, "a pipe is refused at once: %s",
           b->error);
    tap_ok(os_read_file(b, "/dev/zero", &text) == CAIRN_FILE_ERROR &&
           os_map_open(b, "/dev/zero", &map) == CAIRN_FILE_ERROR, "so is a device: %s", b->error);
    tap_ok(cairn_config_load(pipe, &config, error, sizeof error) == CAIRN_FILE_ERROR &&
           cairn_config_load("/dev/zero", &config, error, sizeof error) == CAIRN_FILE_ERROR,
           "as a config, too: %s", error);
    tap_ok(os_write_file(b, pipe, "x", 1) == CAIRN_FILE_ERROR && strstr(b->error, "a pipe") &&
           !os_calls.info(pipe, &info) && !info.regular && !info.directory,
           "it is not written over: %s", b->error);
    tap_ok(os_write_private(b, in_folder(""), "x", 1) == CAIRN_FILE_ERROR &&
           os_write_private(b, "", "x", 1) == CAIRN_FILE_NOT_FOUND, "nor a folder, nor no name: %s",
           b->error);
    os_calls.remove(pipe);
    base_text_free(b, &text);
}

/* ---- memory of a container ------------------------------------------------------------------- */

static void put(const char *name, const char *text) {
    base b;
    char path[OS_PATH_BYTES], directory[OS_PATH_BYTES];
    base_init(&b, NULL, NULL, NULL, CAIRN_LOG_OFF);
    snprintf(path, sizeof path, "%s", in_folder(name));
    os_directory_of(path, directory, sizeof directory);
    os_make_path(directory);
    os_write_file(&b, path, text, strlen(text));
}

static void test_groups(void) {
    static const char *const made[] = {
        "g/memory.max", "g/memory.current", "g/a/memory.max", "g/a/memory.current",
        "g/a/memory.stat", "g/a/b/memory.max", "g/memory/memory.limit_in_bytes",
        "g/memory/memory.usage_in_bytes", "g/memory/memory.stat"};
    char mount[OS_PATH_BYTES];
    snprintf(mount, sizeof mount, "%s", in_folder("g"));
    put(made[0], "10000\n"), put(made[1], "1000\n");
    put(made[2], "5000\n"), put(made[3], "4000\n");
    put(made[4], "anon 100\nfile 900\ninactive_file 700\nactive_file 9\n");
    put(made[5], "max\n");
    put(made[6], "8000\n"), put(made[7], "9000\n"), put(made[8], "x 1\ntotal_inactive_file 3000\n");
    tap_ok(os_posix_groups_bytes("0::/\n", mount) == 9000, "a container's limit, less its use");
    tap_ok(os_posix_groups_bytes("0::/a/b\n", mount) == 1700,
           "the least of a group and those above it; files that can go are no use");
    tap_ok(os_posix_groups_bytes("0::/elsewhere/x\n", mount) == 9000,
           "folders that are not to be seen are passed over");
    tap_ok(os_posix_groups_bytes("5:cpu:/\n4:memory:/docker/1\n0::/none\n", mount) == 2000,
           "the first kind of groups");
    tap_ok(os_posix_groups_bytes("", mount) == INT64_MAX &&
           os_posix_groups_bytes("bad\n:\n::\n", "/none") == INT64_MAX, "no groups, no limit");
    tap_ok(os_memory_bytes() > 0, "%lld bytes can be had", (long long)os_memory_bytes());
    struct rlimit kept, low;
    getrlimit(RLIMIT_AS, &kept);
    low = kept, low.rlim_cur = 1 << 20; /* less than there is */
    setrlimit(RLIMIT_AS, &low);
    const int64_t left = os_memory_bytes();
    setrlimit(RLIMIT_AS, &kept);
    tap_ok(left <= 0, "beyond the limit of addresses none");
    for (size_t i = 0; i < BASE_COUNT(made); i++) os_calls.remove(in_folder(made[i]));
    rmdir(in_folder("g/a/b")), rmdir(in_folder("g/a")), rmdir(in_folder("g/memory"));
    rmdir(in_folder("g"));
}

#endif

/* ---- threads and libraries ------------------------------------------------------------------- */

typedef struct shared { os_mutex lock; os_cond turn; os_atomic sum; int stage; } shared;

static void add_many(void *context) {
    shared *s = (shared *)context;
    int i;
    for (i = 0; i < 10000; i++) os_atomic_add(&s->sum, 1);
    os_mutex_lock(&s->lock);
    s->stage++;
    os_cond_broadcast(&s->turn);
    os_mutex_unlock(&s->lock);
}

/* Each raises the stage on its turn, of five; some look again by themselves after a while that never comes. */
typedef struct turns { shared *of; int mine; } turns;

static void take_turns(void *context) {
    const turns *t = (const turns *)context;
    shared *s = t->of;
    os_mutex_lock(&s->lock);
    for (int i = 0; i < 4000; i++) {
        while (s->stage % 5 != t->mine)
            if (t->mine % 2) os_cond_wait(&s->turn, &s->lock);
            else os_cond_wait_us(&s->turn, &s->lock, (int64_t)3600 * 1000000);
        s->stage++;
        os_cond_broadcast(&s->turn);
    }
    os_mutex_unlock(&s->lock);
}

static void test_turns(void) {
    os_thread threads[5];
    turns t[5];
    shared s;
    int started = 0;
    memset(&s, 0, sizeof s);
    os_mutex_init(&s.lock);
    os_cond_init(&s.turn);
    for (int i = 0; i < 5; i++) {
        t[i] = (turns){&s, i};
        started += os_thread_start(&threads[i], 1 << 20, take_turns, &t[i]);
    }
    tap_ok(started == 5, "five threads start"); /* or those that did would wait for the others' turns */
    if (started < 5) exit(tap_done());
    for (int i = 0; i < started; i++) os_thread_join(&threads[i]);
    tap_ok(s.stage == 20000, "five threads take 20000 turns, and no wake-up is lost");
    os_cond_destroy(&s.turn);
    os_mutex_destroy(&s.lock);
}

static void test_threads(void) {
    os_thread threads[4];
    shared s;
    int i;
    int64_t start, waited;
    bool started = true;
    memset(&s, 0, sizeof s);
    os_mutex_init(&s.lock);
    os_cond_init(&s.turn);
    for (i = 0; started && i < 4; i++)
        started = os_thread_start(&threads[i], 1 << 20, add_many, &s);
    os_mutex_lock(&s.lock);
    while (started && s.stage < 4) os_cond_wait(&s.turn, &s.lock);
    start = os_now_us();
    os_cond_wait_us(&s.turn, &s.lock, 20000);
    waited = os_now_us() - start;
    os_mutex_unlock(&s.lock);
    for (i = 0; started && i < 4; i++) os_thread_join(&threads[i]);
    tap_ok(started && os_atomic_load(&s.sum) == 40000, "four threads add up");
    tap_ok(waited > 1000 && waited < 5000000, "a timed wait ends (%lld us)", (long long)waited);
    tap_ok(os_atomic_swap_if(&s.sum, 40000, 7) && !os_atomic_swap_if(&s.sum, 40000, 8) &&
           os_atomic_load(&s.sum) == 7, "compare and swap");
    os_cond_destroy(&s.turn);
    os_mutex_destroy(&s.lock);
    tap_ok(os_cpu_count() >= 1, "there is a processor");
}

static void test_own_time(void) {
    const int64_t start = os_thread_us(), clock = os_now_us();
    int64_t slept;
    os_sleep_us(60000);
    slept = os_thread_us() - start;
    while (os_thread_us() - start < slept + 40000 && os_now_us() - clock < 20000000) {}
    tap_ok(slept >= 0 && slept < 40000 && os_thread_us() - start >= slept + 40000,
           "sleep is none of a thread's time (%lld us of 60000), work is", (long long)slept);
}

static void test_libraries(void) {
    char why[256] = "", path[OS_PATH_BYTES];
    void *library = os_library_open(library_name, why, sizeof why);
    os_function f = library ? os_library_symbol(library, "cos") : NULL;
    tap_ok(f && os_library_path(f, path, sizeof path) && !strncmp(strrchr(path, OS_SEPARATOR) + 1, library_name, 4),
           "%s: its place", library_name);
    tap_ok(library && !os_library_symbol(library, "no_such_symbol"), "no such symbol");
    os_library_close(library);
    tap_ok(!os_library_open("libnone-of-this.so", why, sizeof why) && (strstr(why, "none-of-this") || strstr(why, "126")),
           "a missing library says why: %s", why);
    tap_ok(!os_calls.library_open("libnone-of-this.so", true, NULL, 0), "a library that is not loaded");
    tap_ok(os_executable_path(path, sizeof path) && os_mtime(path) > 0, "the program's own file");
}

int main(void) {
    os_call_table first = os_calls;
    base b;
    whole = &first;
    base_init(&b, NULL, NULL, NULL, CAIRN_LOG_INFO);
    snprintf(folder, sizeof folder, "%s/cairn-os-XXXXXX",
             os_env("TMPDIR") ? os_env("TMPDIR") : OS_SEPARATOR == '/' ? "/tmp" : "build");
    if (!tap_ok(mkdtemp(folder) != NULL, "a folder of our own")) return tap_done();
    test_files(&b);
    test_make_path(&b);
    test_write_faults(&b);
    test_read_faults(&b);
#ifdef _WIN32
    test_wide(&b);
    test_pipe(&b);
#else
    test_crashes(&b);
    test_no_files(&b);
    test_groups();
#endif
    test_threads();
    test_turns();
    test_own_time();
    test_libraries();
    tap_ok(rmdir(folder) == 0, "nothing stays behind");
    return tap_done();
}
