/* gated: models and gated adapters for tests of drafter = "mtp", and runtimes with both.
 * After runtime.c, gguf_build.h, random.h, tap.h, backends.h, family.h and low.h. */
#ifndef GATED_H
#define GATED_H

enum { ROOM = 128 };

static uint64_t state;
static cairn_backend gated_backend = CAIRN_BACKEND_CPU;
static char model_path[] = "/tmp/cairn_mtp_XXXXXX", path[80];

static void save_low(const low *l) {
    gguf_build file = gguf_low(l, "llama", false);
    save(path, &file);
    free(file.data);
}

/* A gated adapter with random values. */
static low make_gated(const family *f) {
    low l = make_low(f, 4, 4, true, &state);
    low_gate(&l, f->hidden, &state);
    for (int i = 0; i < f->hidden; i++) l.parts[2][i] += 1, l.parts[4][i] += 1;
    return l;
}

/* drafts 0: none; else as many at each step. */
static cairn_config gated_config(const char *adapter, int drafts) {
    cairn_config c;
    cairn_config_default(&c);
    c.backend = gated_backend, c.log = CAIRN_LOG_OFF, c.threads = 2, c.page_size = 16;
    c.max_batch = 4, c.max_seq_len = ROOM, c.prefill_chunk = 64;
    c.drafter = drafts ? CAIRN_DRAFTER_MTP : CAIRN_DRAFTER_NONE, c.draft_length = drafts;
    c.draft_adaptive = false;
    snprintf(c.adapter, sizeof c.adapter, "%s", adapter);
    return c;
}

static cairn_runtime *open_gated(const cairn_config *c, cairn_model **m) {
    cairn_runtime *rt = open_runtime_on(c, "mtp");
    if (rt && cairn_load_model(rt, model_path, m)) {
        tap_ok(false, "load: %s", cairn_last_error(rt));
        cairn_close(rt);
        return NULL;
    }
    return rt;
}

static void set_values(family *f, const char *name, double (*value)(const family *f, int row, int column)) {
    for (int i = 0; i < f->count; i++) {
        family_tensor *t = &f->tensors[i];
        if (!strstr(t->name, name)) continue;
        for (int n = 0; n < (t->rows ? t->rows : 1) * t->columns; n++) {
            const float v = (float)value(f, n / t->columns, n % t->columns);
            t->values[n] = (double)v;
            memcpy(t->data + 4 * (size_t)n, &v, 4);
        }
    }
}

static int follower(const family *f, int token) { return token % (f->vocab - 1) + 1; }
static double zero(const family *f, int row, int column) { return (void)f, (void)row, (void)column, 0; }
static double one(const family *f, int row, int column) { return (void)f, (void)row, (void)column, 1; }
static double same(const family *f, int row, int column) { return (void)f, row == column; }
static double after(const family *f, int row, int column) {
    return column < f->vocab && row == follower(f, column);
}

/* Its sampler head says the token behind the one before it, whatever the masks say: of embeddings that are `same`. */
BASE_UNUSED static void know_followers(low *l, int hidden) {
    for (int i = 0; i < hidden * 2 * hidden; i++) l->parts[1][i] = i / (2 * hidden) == i % (2 * hidden) ? 20 : 0;
    for (int i = 0; i < hidden * hidden; i++) l->parts[3][i] = 0;
}

/* A test's main: on each backend, with names for a model and an adapter that are removed then. */
static int gated_main(void (*test_backend)(cairn_backend)) {
    int file = mkstemp(model_path);
    state = random_seed();
    if (file < 0) return 1;
    close(file);
    snprintf(path, sizeof path, "%s.low", model_path);
    test_backend(CAIRN_BACKEND_CPU);
    test_backend(CAIRN_BACKEND_CUDA);
    remove(model_path), remove(path);
    return tap_done();
}

#endif
