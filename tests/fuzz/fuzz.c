/* fuzz: libFuzzer's entry; CAIRN_FUZZ_TARGET names the target. ./build.sh fuzz builds and runs it. */
#include "targets.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct fuzz_target *chosen;

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    const char *name = getenv("CAIRN_FUZZ_TARGET");
    (void)argc, (void)argv;
    for (size_t i = 0; i < BASE_COUNT(fuzz_targets); i++)
        if (name && !strcmp(name, fuzz_targets[i].name)) chosen = &fuzz_targets[i];
    if (!chosen) fuzz_fail("CAIRN_FUZZ_TARGET", name ? name : "is not set");
    fuzz_start();
    if (!strcmp(chosen->name, "ops")) fuzz_open_gpu();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    chosen->run(data, size);
    return 0;
}
