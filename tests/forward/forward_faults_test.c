/* forward_faults: calls of the driver fail once in the forwards of models of every kind of layer, on tests/fake's
 * GPU (fake/fault_walk.h says what holds): prompts, steps and their graphs, pages that a fork shares, rules
 * that select in a form of their own, what was selected, adapters. */
#define CAIRN_ROOMS_ONLY
#include "runtime.c"
#include "gguf_build.h"
#include "random.h"
#include "ref/block_ref.h"
#include "ref/f16_ref.h"
#include "ref/llama_ref.h"
#include "model_shapes.h"
#include "tap.h"
#include "family.h"
#define ZOO_TYPES BLOCK_F16
#include "family_zoo.h"
#include "low.h"
#include "fake/fake_compiler.h"
#include "fake/fault_walk.h"

static char path[64], low_path[64];

static cairn_config config_for(void) {
    cairn_config c;
    cairn_config_default(&c);
    c.backend = CAIRN_BACKEND_CUDA, c.log = CAIRN_LOG_OFF, c.threads = c.jit.threads = 1;
    c.jit.cache = CAIRN_CACHE_MEMORY;
    c.page_size = 16, c.max_batch = 4, c.prefill_chunk = 32;
    c.topk = 2, c.selection.window = 16, c.draft_length = 3;
    return c;
}

/* An adapter for all products, gated where it drafts. */
static void write_low(const family *f, bool gated, uint64_t *seed) {
    low l = make_low(f, 3, 6, true, seed);
    gguf_build file;
    l.hidden = f->hidden;
    if (gated) low_gate(&l, f->hidden, seed);
    file = gguf_low(&l, f->architecture, false);
    tap_ok(save(low_path, &file), "an adapter is written");
    free(file.data), free_low(&l);
}

static void test_family(family f, const char *name, cairn_config c, const char *adapter,
                        int each) {
    f.end = 1; /* zeros say 0 */
    tap_ok(family_write(&f, path), "%s is written", name);
    walk_faults(&c, path, adapter, name, each);
    family_free(&f);
}

static void test_small(void) {
    const cairn_config c = config_for();
    tap_ok(shape_write(path, &shape_small), "a small llama is written");
    walk_faults(&c, path, NULL, "a small llama", 1);
}

/* Products of so many inputs that several rows share them among clusters: each launch is of whole ones. */
static void test_clusters(void) {
    static const shape_file wide = {"wide", 1, 1024, 8, 2, 128, 12288, 96, 96 * 16, true, 2, 8, 0};
    const cairn_config c = config_for();
    int refused = 0;
    bool failed;
    walk w;
    tap_ok(shape_write(path, &wide), "a wide llama is written");
    if (!walk_begin(&w, &c, path, NULL, "a wide llama")) return;
    const bool fine = walk_run(&w, 0, &refused, &failed) && !refused;
    tap_ok(fine && fake.clusters > 0, "%d launches of whole clusters", fake.clusters);
    cairn_close(w.rt);
    tap_ok(!fake.live && !fake.device_live && !fake.opened, "and nothing is left");
}

int main(void) {
    uint64_t seed = 5;
    cairn_config c = config_for();
    family f;
    snprintf(path, sizeof path, "/tmp/cairn_faults_%d.gguf", os_process_id());
    snprintf(low_path, sizeof low_path, "/tmp/cairn_faults_%d.low", os_process_id());
    test_small();
    test_clusters();
    test_family(zoo_lfm2(&seed), "layers of short convolutions", c, NULL, 1);
    test_family(zoo_qwen3moe(&seed), "experts", c, NULL, 1);
    c.selection.strategy = CAIRN_STRATEGY_SOFTMAX_HEAD;
    f = zoo_llama(&seed);
    zoo_fill(&f, &seed);
    test_family(f, "pages chosen by head", c, NULL, 11);
    c = config_for();
    f = zoo_llama(&seed);
    zoo_fill(&f, &seed);
    write_low(&f, false, &seed);
    test_family(f, "an adapter", c, low_path, 1);
    f = zoo_llama(&seed);
    zoo_fill(&f, &seed);
    write_low(&f, true, &seed);
    c.drafter = CAIRN_DRAFTER_MTP;
    test_family(f, "an adapter that drafts", c, low_path, 1);
    remove(path), remove(low_path);
    return tap_done();
}
