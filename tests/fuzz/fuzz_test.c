/* fuzz: every file of tests/fuzz/corpus is given to its target, as it is, cut short in places and
 * with bytes changed, without clang; and the same bytes do the same again, so that what a fuzzer
 * finds can be kept here. ./build.sh fuzz TARGET SECONDS looks for more. */
#include "targets.h"

static int runs, files;

static void run_file(const struct fuzz_target *t, const char *path) {
    base_text text = {0};
    base b;
    uint64_t seed = 1;
    base_init(&b, NULL, NULL, NULL, CAIRN_LOG_OFF);
    if (!tap_ok(!os_read_file(&b, path, &text), "%s", path)) return;
    for (int i = 0; i < 24; i++, runs++) {
        uint8_t *copy = (uint8_t *)malloc(text.size + 1); /* as long as it is, for the sanitizers */
        size_t size = text.size;
        if (size) memcpy(copy, text.data, size);
        if (i % 3 == 1) size = (size_t)(random_next(&seed) % (size + 1));
        if (i % 3 == 2)
            for (int j = 0; j < 3 && size; j++)
                copy[random_next(&seed) % size] = (uint8_t)random_next(&seed);
        copy = (uint8_t *)realloc(copy, size + !size);
        t->run(copy, size);
        free(copy);
    }
    files++;
    base_text_free(&b, &text);
}

static const struct fuzz_target *current;
static bool run_entry(void *user, const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", (const char *)user, name);
    run_file(current, path);
    return true;
}

int main(void) {
    fuzz_start();
    for (size_t i = 0; i < BASE_COUNT(fuzz_targets); i++) {
        char folder[128];
        const int before = files;
        current = &fuzz_targets[i];
        snprintf(folder, sizeof folder, "tests/fuzz/corpus/%s", current->name);
        os_calls.list(folder, run_entry, folder);
        tap_ok(files > before, "%s: %d files", current->name, files - before);
    }
    tap_note("%d runs", runs);
    cairn_close(fuzz_rt);
    return tap_done();
}
