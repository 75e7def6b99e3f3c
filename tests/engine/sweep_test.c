/* sweep: the n-th call that can fail fails, once and for good: every allocation, every call of the
 * driver and of NVRTC, every call on files, libraries and threads, from cairn_open over load, append,
 * generation with drafts and sparse selection, fork, save, load and reload to cairn_close; where it is
 * the CPU with a worker, of a folder's model, then by a gated adapter with its drafts, by a grammar and
 * as a batch; and by models whose layers have windows, with landmarks, with drafts from masks. What a call that fails must hold: a status with words, and made once more it does its work; or the right
 * answer all the same. At the end every session has the tokens it has where nothing fails, nothing is
 * left, and memory came back in the sizes it was given.
 * On the CPU, on tests/fake's GPU, which computes nothing, and on the emulated GPU where the test
 * runs on it (tests/simt/emulate.sh). CAIRN_SWEEP=all fails every call (hours in an emulated world),
 * CAIRN_SWEEP=N every N-th, from a random one on; CAIRN_SWEEP_WORLD=N plays in one world alone. Without
 * them it is some calls, others each time, and of the emulated worlds a third of one's sweeps, by the seed.
 * emulated: asan */
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
#include "folder.h"
#include "low.h"
#include "small_model.h"
#include "fake/fake_compiler.h"
#include "fake/said.h"

enum { PROMPT = SAID_PROMPT, SAID = 16, MORE = 6, SEQUENCES = 7 };
typedef enum world {
    CPU, FAKE, EMULATED, WORKER, WINDOWS, LANDMARKS, GATED, WINDOWS_GPU, LANDMARKS_GPU, GATED_GPU, WORLDS
} world;
typedef enum kind { NONE, ALLOCATION, SYSTEM, DRIVER } kind;
static const char *const world_names[] = {"the CPU", "the fake GPU", "the emulated GPU",
                                         "the CPU with a worker and a folder", "layers of windows",
                                         "landmarks", "drafts from masks",
                                         "the emulated GPU, layers of windows",
                                         "the emulated GPU, landmarks",
                                         "the emulated GPU, drafts from masks"};
static const char *const kind_names[] = {"", "allocations", "system calls", "driver calls"};

static char path[64], saved[64], folder[64], model_folder[64], low_path[64];

static bool is_emulated_world(world w) { return w == EMULATED || w >= WINDOWS_GPU; }
static bool is_cpu_world(world w) { return w == CPU || (w >= WORKER && w <= GATED); }

/* ---- faults ------------------------------------------------------------------------------------ */

static struct {
    os_mutex lock;
    world in;
    kind of;
    bool armed, for_good, failed;
    int nth, seen, code;
    int64_t live;
    bool wrong_size;
} f;

static void (*emulated_fail)(int nth, int code, int for_good);
static int (*emulated_calls)(int *failed);
static size_t (*emulated_bytes)(void);

static bool fails(kind k) {
    bool now;
    os_mutex_lock(&f.lock);
    now = f.armed && f.of == k && (f.seen++ == f.nth || (f.failed && f.for_good));
    f.failed = f.failed || now;
    os_mutex_unlock(&f.lock);
    return now;
}

static void arm(kind k, int nth, int code, bool for_good) {
    f.of = k, f.nth = nth, f.code = code, f.for_good = for_good;
    f.seen = 0, f.failed = false, f.armed = true;
    if (k == DRIVER && f.in == FAKE)
        fake.fail_at = nth + 1, fake.fail_with = code, fake.fail_sticky = for_good, fake.calls = 0;
    if (k == DRIVER && is_emulated_world(f.in)) emulated_fail(nth + 1, code, for_good);
}

static void disarm(void) {
    if (!f.armed) return;
    f.armed = false;
    if (f.of != DRIVER) return;
    if (f.in == FAKE) {
        f.failed = fake.failed, f.seen = fake.calls;
        fake.fail_at = 0, fake.failed = false;
    } else {
        int failed;
        f.seen = emulated_calls(&failed);
        f.failed = failed;
        emulated_fail(0, 0, 0);
    }
}

static void *meter(void *user, void *memory, size_t old_bytes, size_t new_bytes) {
    size_t *block = memory ? (size_t *)memory - 2 : NULL;
    (void)user;
    if (new_bytes && fails(ALLOCATION)) return NULL;
    os_mutex_lock(&f.lock);
    f.wrong_size = f.wrong_size || (block && block[0] != old_bytes);
    f.live += (int64_t)new_bytes - (block ? (int64_t)block[0] : 0);
    os_mutex_unlock(&f.lock);
    if (!new_bytes) return free(block), NULL;
    block = (size_t *)realloc(block, new_bytes + 2 * sizeof *block);
    block[0] = new_bytes;
    return block + 2;
}

#define CALL(type, name, signature, call) \
    static type failing_##name signature { \
        return fails(SYSTEM) ? (type)-f.code : below.call; \
    }
static os_call_table below;
CALL(int64_t, open, (const char *p, int m), open(p, m))
CALL(int64_t, read, (int64_t h, void *d, size_t n), read(h, d, n))
CALL(int64_t, read_at, (int64_t h, void *d, size_t n, uint64_t at), read_at(h, d, n, at))
CALL(int64_t, write, (int64_t h, const void *d, size_t n), write(h, d, n))
CALL(int, info, (const char *p, os_file_info *o), info(p, o))
CALL(int, file_info, (int64_t h, os_file_info *o), file_info(h, o))
CALL(int, rename, (const char *a, const char *b), rename(a, b))
CALL(int, remove, (const char *p), remove(p))
CALL(int, remove_unused, (const char *p), remove_unused(p))
CALL(int, make_directory, (const char *p), make_directory(p))
CALL(int, touch, (const char *p), touch(p))
CALL(int, list, (const char *p, os_list_entry e, void *u), list(p, e, u))
CALL(int, thread_start, (void *t, size_t n, void (*run)(void *), void *c), thread_start(t, n, run, c))
static int failing_sync(int64_t h) { (void)h; return fails(SYSTEM) ? -f.code : 0; }
static int failing_sync_directory(const char *p) { (void)p; return fails(SYSTEM) ? -f.code : 0; }
static int failing_close(int64_t h) { /* it is closed all the same */
    int error = below.close(h);
    return fails(SYSTEM) ? -f.code : error;
}
static void *failing_map(int64_t h, size_t n) { return fails(SYSTEM) ? NULL : below.map(h, n); }
static void *failing_library_open(const char *p, bool loaded, char *why, size_t why_bytes) {
    if (!fails(SYSTEM)) return below.library_open(p, loaded, why, why_bytes);
    if (why_bytes) snprintf(why, why_bytes, "it fails here");
    return NULL;
}

static void put_faults_into_the_system(void) {
    below = os_calls;
    os_calls.open = failing_open, os_calls.read = failing_read, os_calls.read_at = failing_read_at;
    os_calls.write = failing_write, os_calls.sync = failing_sync, os_calls.close = failing_close;
    os_calls.info = failing_info, os_calls.file_info = failing_file_info;
    os_calls.rename = failing_rename, os_calls.remove = failing_remove;
    os_calls.remove_unused = failing_remove_unused;
    os_calls.sync_directory = failing_sync_directory;
    os_calls.make_directory = failing_make_directory, os_calls.touch = failing_touch;
    os_calls.list = failing_list, os_calls.map = failing_map;
    os_calls.library_open = failing_library_open, os_calls.thread_start = failing_thread_start;
}

/* ---- the play: steps that are made once more when they fail --------------------------------------- */

typedef struct play {
    cairn_config config;
    cairn_runtime *rt;
    cairn_model *model;
    cairn_session *first, *fork, *loaded;
    cairn_session *adapted, *bound; /* by the adapter, by a grammar */
    cairn_adapter *adapter;
    int32_t rows[2][PROMPT + SAID], totals[2]; /* of the batch */
    char error[1024];
    const char *name;  /* of the step that failed last */
    int refused;       /* steps that failed */
    bool bad;
} play;

static int calls_of_open[WORLDS]; /* of each world's driver */
typedef struct tokens {
    int32_t ids[SEQUENCES][PROMPT + SAID + 2 * MORE + 8];
    int count[SEQUENCES];
} tokens;
static tokens right[WORLDS]; /* of each world */

static int driver_calls_so_far(void) {
    int failed;
    return f.in == FAKE ? fake.calls : is_emulated_world(f.in) ? emulated_calls(&failed) : 0;
}

static cairn_status step_open(play *p) {
    cairn_status status = cairn_open(&p->config, &p->rt, p->error, sizeof p->error);
    if (f.of == NONE) calls_of_open[f.in] = driver_calls_so_far();
    return status;
}
static cairn_status step_load(play *p) {
    return cairn_load_model(p->rt, f.in == WORKER ? model_folder : path, &p->model);
}
static cairn_status step_wait(play *p) { return cairn_model_wait(p->model); }
static cairn_status step_session(play *p) { return cairn_session_open(p->model, &p->first); }

static cairn_status step_append(play *p) { return append_to(p->first); }

static cairn_status step_say(play *p) { return say_to(p->first, PROMPT + SAID); }
static cairn_status step_fork(play *p) { return cairn_session_fork(p->first, &p->fork); }
static cairn_status step_say_fork(play *p) { return say_to(p->fork, PROMPT + SAID + MORE); }
static cairn_status step_save(play *p) { return cairn_session_save(p->first, saved); }
static cairn_status step_another(play *p) { return cairn_session_open(p->model, &p->loaded); }
static cairn_status step_load_session(play *p) { return cairn_session_load(p->loaded, saved); }
static cairn_status step_say_loaded(play *p) { return say_to(p->loaded, PROMPT + SAID + MORE); }

/* Nothing that changes what is said. */
static cairn_status step_reload(play *p) {
    cairn_config next = p->config;
    next.draft_length = 2, next.sampling.seed = 7;
    if (f.in == WORKER) next.drafter = CAIRN_DRAFTER_MTP;
    return cairn_reload(p->rt, &next);
}
static cairn_status step_say_again(play *p) { return say_to(p->first, PROMPT + SAID + 2 * MORE); }

/* What is done with a worker and a folder's model alone. */
static cairn_status step_adapter(play *p) {
    return cairn_adapter_load(p->model, low_path, &p->adapter);
}
static cairn_status step_adapted(play *p) { return cairn_session_open(p->model, &p->adapted); }
static cairn_status step_adapt(play *p) { return cairn_session_adapt(p->adapted, p->adapter); }
static cairn_status step_append_adapted(play *p) { return append_to(p->adapted); }
static cairn_status step_say_adapted(play *p) { return say_to(p->adapted, PROMPT + SAID); }
static cairn_status step_bound(play *p) { return cairn_session_open(p->model, &p->bound); }
static cairn_status step_append_bound(play *p) { return append_to(p->bound); }

/* By a grammar and then, behind eight tokens, by a schema; with logprobs. */
static cairn_status say_bound(cairn_session *s, const char *rules, const char *form, int from,
                              int count) {
    cairn_generate_options options;
    int have;
    cairn_session_ids(s, &have);
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options, options.max_tokens = count - have, options.logprobs = 2;
    options.grammar = rules, options.json_schema = form, options.grammar_from = from;
    return have >= count ? CAIRN_OK : cairn_generate_with(s, NULL, &options, NULL, NULL);
}
static cairn_status step_say_bound(play *p) {
    return say_bound(p->bound, "root ::= ([A-Z] | [a-z0-9]{2,3})+\n", NULL, PROMPT, PROMPT + 8);
}
static cairn_status step_say_schema(play *p) {
    return say_bound(p->bound, NULL, "{\"type\": \"array\", \"items\": {\"type\": \"integer\"}, "
                     "\"minItems\": 9}", PROMPT + 8, PROMPT + SAID);
}

static cairn_status step_batch(play *p) {
    int32_t ids[2 * PROMPT], made[2];
    const int32_t lengths[2] = {PROMPT, PROMPT / 2}, limits[2] = {MORE, SAID};
    cairn_batch_args a;
    memset(&a, 0, sizeof a);
    for (int i = 0; i < 2 * PROMPT; i++) ids[i] = 2 + i % 9;
    a.struct_size = sizeof a, a.rows = 2, a.stride = PROMPT, a.capacity = PROMPT + SAID;
    a.ids = ids, a.lengths = lengths, a.limits = limits, a.output = p->rows[0];
    a.generated = made, a.total = p->totals;
    return cairn_generate_batch(p->model, &a);
}

static cairn_status step_free_adapter(play *p) {
    cairn_status status = cairn_session_adapt(p->adapted, NULL);
    if (!status && !(status = cairn_adapter_free(p->adapter))) p->adapter = NULL;
    return status;
}

static const struct { const char *name; cairn_status (*make)(play *p); } steps[] = {
    {"open", step_open}, {"load", step_load}, {"session", step_session}, {"append", step_append},
    {"generate", step_say}, {"fork", step_fork}, {"generate, the fork", step_say_fork},
    {"save", step_save}, {"another session", step_another}, {"load the session", step_load_session},
    {"generate, the loaded", step_say_loaded}, {"reload", step_reload},
    {"generate again", step_say_again}, {"wait", step_wait}, {"adapter", step_adapter},
    {"the adapter's session", step_adapted}, {"adapt", step_adapt},
    {"append by the adapter", step_append_adapted}, {"generate by the adapter", step_say_adapted},
    {"the grammar's session", step_bound}, {"append for the grammar", step_append_bound},
    {"generate by a grammar", step_say_bound}, {"generate by a schema", step_say_schema},
    {"batch", step_batch}, {"free the adapter", step_free_adapter}};

static size_t steps_of(world w) { return w == WORKER ? BASE_COUNT(steps) : 14; }

/* Made, and when it fails made once more with no fault. */
static bool make(play *p, size_t i) {
    cairn_status status = steps[i].make(p);
    const char *words = p->rt ? cairn_last_error(p->rt) : p->error;
    if (!status) return true;
    p->refused++;
    p->name = steps[i].name;
    if (!words[0]) tap_note("%s: status %d without words", p->name, status), p->bad = true;
    disarm();
    status = steps[i].make(p);
    if (!status) return true;
    tap_note("%s: fails again: %s", p->name, p->rt ? cairn_last_error(p->rt) : p->error);
    p->bad = true;
    return false;
}

static void list_tokens(const play *p, tokens *t) {
    cairn_session *const sessions[] = {p->first, p->fork, p->loaded, p->adapted, p->bound};
    memset(t, 0, sizeof *t);
    for (int i = 0; i < 2; i++) {
        memcpy(t->ids[5 + i], p->rows[i], sizeof p->rows[i]);
        t->count[5 + i] = p->totals[i];
    }
    for (int i = 0; i < 5; i++) {
        const int32_t *ids = sessions[i] ? cairn_session_ids(sessions[i], &t->count[i]) : NULL;
        if (ids) memcpy(t->ids[i], ids, (size_t)t->count[i] * sizeof *ids);
    }
}

/* The fake GPU is found where real ones are, not where the emulated one lies. */
static void leave_emulation(bool leave) {
#ifndef _WIN32
    static const char *const names[] = {"CAIRN_CUDA_PATH", "CAIRN_NVRTC_PATH"};
    static char *kept[2];
    for (int i = 0; i < 2; i++) {
        const char *now = getenv(names[i]);
        if (leave && now) free(kept[i]), kept[i] = strdup(now), unsetenv(names[i]);
        else if (!leave && kept[i]) setenv(names[i], kept[i], 1);
    }
#else
    (void)leave;
#endif
}

static void start_world(world w) {
    f.in = w;
    leave_emulation(w == FAKE);
    if (w == FAKE) {
        fake_install();
        fake.memory_bytes = (size_t)1 << 30;
    } else {
        os_calls = fake_real_os;
    }
    put_faults_into_the_system();
}

static void config_for(world w, cairn_config *c) {
    cairn_config_default(c);
    c->backend = is_cpu_world(w) ? CAIRN_BACKEND_CPU : CAIRN_BACKEND_CUDA;
    c->worker.enabled = w == WORKER;
    c->page_size = PAGE, c->topk = 2, c->selection.window = 16, c->draft_length = 4;
    c->max_batch = 4, c->prefill_chunk = 32, c->threads = 2, c->jit.threads = 1;
    c->memory.prefix_cache = true;
    c->allocator.realloc = meter, c->log = CAIRN_LOG_OFF;
    snprintf(c->jit.cache_dir, sizeof c->jit.cache_dir, "%s", folder);
    if (w == LANDMARKS || w == LANDMARKS_GPU) c->selection.source = CAIRN_SOURCE_LANDMARK;
    if (w == GATED || w == GATED_GPU) c->drafter = CAIRN_DRAFTER_MTP;
    if (c->selection.source == CAIRN_SOURCE_LANDMARK || c->drafter == CAIRN_DRAFTER_MTP)
        snprintf(c->adapter, sizeof c->adapter, "%s", low_path);
}

/* All of it with the n-th call of a kind failing; *reached: whether there was one. */
static bool run(world w, kind k, int nth, int code, bool for_good, play *p) {
    bool whole = true;
    tokens said;
    memset(p, 0, sizeof *p);
    start_world(w);
    config_for(w, &p->config);
    f.live = 0, f.wrong_size = false;
    arm(k, nth, code, for_good);
    for (size_t i = 0; i < steps_of(w) && whole; i++) whole = make(p, i);
    if (whole) list_tokens(p, &said);
    if (k == DRIVER) disarm(); /* a driver that is dead gives nothing back */
    cairn_close(p->rt);
    disarm();
    if (f.live || f.wrong_size) tap_note("%lld bytes are left, sizes %s", (long long)f.live,
                                         f.wrong_size ? "wrong" : "right");
    if (w == FAKE && (fake.live || fake.device_live || fake.opened))
        tap_note("%d objects, %d libraries are left", fake.live, fake.opened), p->bad = true;
    if (is_emulated_world(w) && emulated_bytes())
        tap_note("%zu bytes of the device are left", emulated_bytes()), p->bad = true;
    if (whole && k != NONE && memcmp(&said, &right[w], sizeof said)) {
        tap_note("other tokens: %d, %d, %d", said.count[0], said.count[1], said.count[2]);
        p->bad = true;
    }
    if (k == NONE) right[w] = said;
    return whole && !p->bad && !f.live && !f.wrong_size;
}

static uint64_t seed;

/* ---- the sweep ------------------------------------------------------------------------------------ */

static void empty_cache(void) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (system(command)) tap_note("cannot empty %s", folder);
}

/* Every `stride`-th from a random one on, or from before it where there are fewer; of the fake driver's calls
 * every one that opens a runtime, which is over at once. What a device that
 * dies while it is opened holds goes with its context: of the driver's calls, those for good begin
 * behind that. */
static void sweep(world w, kind k, int code, bool for_good, bool cold, int stride) {
    int runs = 0, bad = 0, refused = 0, n = (int)(random_next(&seed) % (uint64_t)stride);
    int first, least = 0;
    bool reached = true;
    const bool opens = w == FAKE && k == DRIVER && !for_good;
    if (k == DRIVER && for_good) least = calls_of_open[w], n += least;
    if (opens) n = 0;
    first = n;
    for (; reached; n += opens && n < calls_of_open[w] ? 1 : stride, runs++) {
        play p;
        if (cold) empty_cache();
        if (!run(w, k, n, code, for_good, &p) && bad++ < 5)
            tap_note("%s: number %d of %s, error %d%s, at %s: as above", kind_names[k], n, world_names[w], code,
                     for_good ? " for good" : "", p.name ? p.name : "no step");
        reached = f.failed;
        refused += p.refused != 0;
        if (!reached && !runs && n > least) { /* there are not so many */
            first = least + (n - least) / 2;
            n = first - stride, runs = -1, reached = true;
        }
    }
    tap_ok(!bad && runs > 1, "%s: %s %d to %d, every %d%s, error %d, failed %s: %d runs, %d refused",
           world_names[w], kind_names[k], first, n - stride, stride, cold ? ", no kernel kept" : "", code,
           for_good ? "for good" : "once", runs - 1, refused);
}

/* What is swept: the last four with a GPU. */
static const struct { kind of; int codes[2] /* once, for good */; bool cold; int stride; } sweeps[] = {
    {ALLOCATION, {0, 0}, false, 0}, {SYSTEM, {EIO, EIO}, false, 1},
    {SYSTEM, {ENOSPC, ENOSPC}, true, 1}, {ALLOCATION, {0, 0}, true, 2},
    {DRIVER, {CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY}, false, 3},
    {DRIVER, {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY}, true, 3}};

/* few: a third of the sweeps, others each time. */
static void sweep_world(world w, const int strides[4], bool few) {
    const bool gpu = !is_cpu_world(w);
    const int turn = (int)(random_next(&seed) % 3);
    play p;
    int seen;
    empty_cache();
    if (!tap_ok(run(w, NONE, 0, 0, false, &p), "%s: a whole play where nothing fails", world_names[w]))
        return;
    seen = right[w].count[0];
    tap_ok(seen == PROMPT + SAID + 2 * MORE && right[w].count[1] == PROMPT + SAID + MORE &&
           right[w].count[2] == right[w].count[1] &&
           !memcmp(right[w].ids[1], right[w].ids[2], sizeof right[w].ids[1]),
           "with %d tokens; the fork and the loaded session say the same", seen);
    if (w == WORKER)
        tap_ok(right[w].count[3] == PROMPT + SAID && right[w].count[4] > PROMPT + 8 &&
               !memcmp(right[w].ids[3], right[w].ids[0], (PROMPT + SAID) * sizeof(int32_t)) &&
               right[w].count[5] == PROMPT + MORE && right[w].count[6] == PROMPT / 2 + SAID,
               "the gated adapter's session, which says the same, the grammar's, a batch: %d, %d, %d and "
               "%d tokens", right[w].count[3], right[w].count[4], right[w].count[5], right[w].count[6]);
    for (int good = 0; good < 2; good++)
        for (int i = 0; i < (gpu ? (int)BASE_COUNT(sweeps) : 2); i++)
            if (!few || (turn + good + i) % 3 == 0)
                sweep(w, sweeps[i].of, sweeps[i].codes[good], good, sweeps[i].cold,
                      strides[sweeps[i].stride]);
}

static bool find_emulated(void) {
    const char *library = getenv("CAIRN_SIMT_KERNELS") ? getenv("CAIRN_CUDA_PATH") : NULL;
    void *handle = library ? dlopen(library, RTLD_NOW) : NULL;
    if (!handle) return false;
    *(void **)&emulated_fail = dlsym(handle, "emulated_fail");
    *(void **)&emulated_calls = dlsym(handle, "emulated_calls");
    *(void **)&emulated_bytes = dlsym(handle, "emulated_bytes");
    return emulated_fail && emulated_calls && emulated_bytes;
}

/* A folder's model, and a gated adapter of it as a GGUF file. */
static bool write_folder(void) {
    uint64_t seed_of_it = 5;
    family made = zoo_llama(&seed_of_it);
    made.context = 256, made.own_head = true;
    zoo_fill(&made, &seed_of_it);
    folder_write(&made, model_folder, 1);
    low l = make_low(&made, 3, 6, true, &seed_of_it);
    low_gate(&l, made.hidden, &seed_of_it);
    gguf_build file = gguf_low(&l, made.architecture, false);
    const bool fine = save(low_path, &file);
    free(file.data), free_low(&l), family_free(&made);
    return fine;
}

/* A model as a file, and the adapter that its drafts or landmarks come from. */
static bool write_family(world w) {
    const bool windows = w == WINDOWS || w == WINDOWS_GPU;
    uint64_t seed_of_it = 5;
    family made = windows ? zoo_gemma3_own(&seed_of_it) : zoo_llama(&seed_of_it);
    bool fine = true;
    if (!windows) zoo_fill(&made, &seed_of_it);
    fine = family_write(&made, path);
    if (!windows) {
        const bool gated = w == GATED || w == GATED_GPU;
        low l = make_low(&made, 3, 6, gated, &seed_of_it);
        l.hidden = made.hidden;
        if (gated) low_gate(&l, made.hidden, &seed_of_it);
        else l.landmark = low_values(made.hidden, &seed_of_it);
        gguf_build file = gguf_low(&l, made.architecture, false);
        fine = save(low_path, &file) && fine;
        free(file.data), free_low(&l);
    }
    family_free(&made);
    return fine;
}

static bool write_for(world w) {
    if (w == WORKER) return write_folder();
    if (w > WORKER) return write_family(w);
    return w == FAKE ? shape_write(path, &shape_small) : (state = 1, write_model(path));
}

int main(void) {
    static const int few[WORLDS][4] = {{1, 1, 1, 1}, {23, 11, 59, 29}, {401, 211, 409, 293},
                                       {13, 7, 1, 1}, {11, 7, 1, 1}, {11, 7, 1, 1}, {11, 7, 1, 1},
                                       {401, 211, 409, 293}, {401, 211, 409, 293}, {401, 211, 409, 293}};
    static const world emulations[] = {EMULATED, WINDOWS_GPU, LANDMARKS_GPU, GATED_GPU};
    const char *want = getenv("CAIRN_SWEEP"), *only = getenv("CAIRN_SWEEP_WORLD");
    const int each = !want ? 0 : atoi(want) > 0 ? atoi(want) : 1, asked[4] = {each, each, each, each};
    const bool emulated = find_emulated();
    world turn;
    gguf_first_bytes = 4096; /* the weights of a small model, too, are read one by one */
    seed = random_seed();
    turn = emulations[random_next(&seed) % BASE_COUNT(emulations)];
    os_mutex_init(&f.lock);
    fake_install(); /* keeps the system's calls */
    snprintf(path, sizeof path, "/tmp/cairn_sweep_%d.gguf", os_process_id());
    snprintf(saved, sizeof saved, "/tmp/cairn_sweep_%d.session", os_process_id());
    snprintf(folder, sizeof folder, "/tmp/cairn_sweep_%d", os_process_id());
    snprintf(model_folder, sizeof model_folder, "/tmp/cairn_sweep_%d.folder", os_process_id());
    snprintf(low_path, sizeof low_path, "/tmp/cairn_sweep_%d.low", os_process_id());
    for (int w = CPU; w < WORLDS; w++) {
        const bool on_emulation = is_emulated_world((world)w), written = write_for((world)w);
        if (only ? atoi(only) != w : on_emulation && !each && (world)w != turn) continue;
        if (on_emulation && !emulated) tap_skip("the emulated GPU: tests/simt/emulate.sh has it");
        else if (written) sweep_world((world)w, each ? asked : few[w], on_emulation && !each && !only);
        else tap_ok(false, "cannot write %s", path);
    }
    empty_cache();
    snprintf(folder, sizeof folder, "%s", model_folder), empty_cache();
    remove(path), remove(saved), remove(low_path);
    return tap_done();
}
