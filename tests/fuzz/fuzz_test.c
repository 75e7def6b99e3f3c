/* fuzz: every file of tests/fuzz/corpus is given to its target, as it is, cut short in places and
 * with bytes changed, without clang; and the same bytes do the same again, so that what a fuzzer
 * finds can be kept here. ./build.sh fuzz TARGET SECONDS looks for more. On the emulated GPU a few of
 * ops, others each time, as they are: each may compile a kernel. CAIRN_FUZZ_FILES says how many.
 * emulated: asan */
#include "targets.h"

static int runs, files;
static int passes = 24; /* of a file: itself, cut short, changed */

static void run_file(const struct fuzz_target *t, const char *path) {
    base_text text = {0};
    base b;
    uint64_t seed = 1;
    base_init(&b, NULL, NULL, NULL, CAIRN_LOG_OFF);
    if (!tap_ok(!os_read_file(&b, path, &text), "%s", path)) return;
    for (int i = 0; i < passes; i++, runs++) {
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

static int first_entry, most_entries, entry_number;
static bool run_some(void *user, const char *name) {
    const int number = entry_number++;
    return number < first_entry || number >= first_entry + most_entries || run_entry(user, name);
}

/* Ops on the emulated GPU beside the CPU. */
static void run_emulated(void) {
    static char folder[] = "tests/fuzz/corpus/ops";
    const char *want = getenv("CAIRN_FUZZ_FILES");
    const int before = files;
    uint64_t seed = random_seed();
    fuzz_open_gpu();
    if (!fuzz_gpu) return;
    while (strcmp(current->name, "ops")) current--;
    most_entries = INT_MAX, first_entry = INT_MAX, passes = 1;
    os_calls.list(folder, run_some, folder);
    most_entries = want ? atoi(want) : 3;
    if (most_entries > entry_number) most_entries = entry_number;
    first_entry = (int)(random_next(&seed) % (uint64_t)(entry_number - most_entries + 1)), entry_number = 0;
    os_calls.list(folder, run_some, folder);
    tap_ok(files == before + most_entries, "ops on the emulated GPU: %d files from number %d on", most_entries,
           first_entry);
    cairn_close(fuzz_gpu);
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
    run_emulated();
    cairn_close(fuzz_rt);
    return tap_done();
}
