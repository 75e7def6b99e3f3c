/* cache: where its folder is looked for, that use keeps an entry young, that pruning takes the oldest
 * and what a process left that died. */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "tap.h"

static char folder[64], heard[256];
static base b;

static void hear(void *user, cairn_log_level level, const char *text) {
    (void)user, (void)level;
    snprintf(heard, sizeof heard, "%s", text);
}

static const char *in_folder(const char *name) {
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static cache_key key_of(int n) {
    cache_hash h;
    cache_hash_begin(&h, "test");
    cache_hash_field(&h, &n, sizeof n);
    return cache_hash_end(&h);
}

static void put(cache *c, int n, size_t bytes) {
    static uint8_t data[1 << 16];
    const cache_key key = key_of(n);
    cache_entry entry;
    memset(&entry, 0, sizeof entry);
    memset(data, n, bytes);
    entry.data = data, entry.size = bytes;
    cache_put(c, &b, &key, &entry);
}

static bool has(cache *c, int n) {
    const cache_key key = key_of(n);
    cache_entry entry;
    const bool found = cache_get(c, &b, &key, &entry);
    const bool right = !found || (entry.size > 0 && entry.data[entry.size - 1] == n);
    cache_entry_free(&b, &entry);
    return found && right;
}

#ifndef _WIN32

static void test_places(void) {
    static const char *const names[] = {"CAIRN_CACHE_DIR", "XDG_CACHE_HOME", "HOME"};
    static const char *const ends[] = {"", "/cairn", "/.cache/cairn"};
    const cache_options o = {CACHE_READ_WRITE, "auto", 0}, off = {CACHE_OFF, "auto", 0};
    char *kept[3], want[128];
    cache c;
    for (int i = 0; i < 3; i++) {
        kept[i] = getenv(names[i]) ? strdup(getenv(names[i])) : NULL;
        setenv(names[i], folder, 1);
    }
    for (int i = 0; i < 3; i++) {
        cache_open(&b, &o, &c);
        snprintf(want, sizeof want, "%s%s", folder, ends[i]);
        tap_ok(!strcmp(c.directory, want), "the cache lies where %s says: %s", names[i], c.directory);
        cache_close(&c);
        unsetenv(names[i]);
    }
    cache_open(&b, &o, &c);
    tap_ok(c.mode == CACHE_OFF && strstr(heard, "set jit.cache_dir"), "no place: %s", heard);
    tap_ok(!has(&c, 1) && (put(&c, 1, 10), !has(&c, 1)), "and nothing is kept");
    cache_close(&c);
    cache_open(&b, &off, &c);
    tap_ok(!c.directory[0], "one that is off looks for none");
    cache_close(&c);
    for (int i = 0; i < 3; i++)
        if (kept[i]) setenv(names[i], kept[i], 1), free(kept[i]);
}

static void make_old(const char *path, int hours) {
    struct timespec times[2];
    clock_gettime(CLOCK_REALTIME, &times[0]);
    times[0].tv_sec -= 3600 * hours;
    times[1] = times[0];
    if (utimensat(AT_FDCWD, path, times, 0)) tap_note("cannot make %s old", path);
}

static bool is_there(const char *name) { return os_mtime(in_folder(name)) > 0; }

static void test_ages(void) {
    const cache_options o = {CACHE_READ_WRITE, folder, 100000};
    static const char *const left[] = {"0" CACHE_SUFFIX ".0123.tmp", "1" CACHE_SUFFIX ".0123.tmp"};
    char path[OS_PATH_BYTES];
    cache_key key;
    cache c;
    cache_open(&b, &o, &c);
    for (int i = 0; i < 4; i++) {
        put(&c, i, 30000);
        key = key_of(i), cache_path(&c, &key, path), make_old(path, 100 - i);
    }
    key = key_of(0), cache_path(&c, &key, path);
    tap_ok(has(&c, 0) && os_wall_us() - os_mtime(path) < 600 * (int64_t)1000000, "a hit makes an old entry young");
    for (int i = 0; i < 2; i++) os_replace_file(in_folder(left[i]), "x", 1);
    make_old(in_folder(left[0]), 2);
    cache_prune_now(&c, &b);
    tap_ok(has(&c, 0) && !has(&c, 1) && !has(&c, 2) && has(&c, 3), "pruned: those of the oldest use");
    tap_ok(!is_there(left[0]) && is_there(left[1]), "with what a process left that died, not what is being written");
    cache_close(&c);
    os_calls.remove(in_folder(left[1]));
}

#endif

int main(void) {
    char command[96];
    base_init(&b, NULL, hear, NULL, CAIRN_LOG_WARN);
    snprintf(folder, sizeof folder, "/tmp/cairn_cache_%d", os_process_id());
#ifndef _WIN32
    test_places();
    test_ages();
#else
    tap_skip("places and ages of files are POSIX's here");
#endif
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (system(command)) tap_note("cannot empty %s", folder);
    return tap_done();
}
