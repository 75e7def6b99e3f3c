/* Placeholder until the rooms cache and jit land; deleted then. */
typedef struct cache { int unused; } cache;
typedef struct cache_options { int unused; } cache_options;
typedef struct jit jit;
typedef struct jit_program jit_program;
typedef struct jit_kernel { CUfunction function; int registers, local_bytes, max_threads; } jit_kernel;
typedef struct jit_constant { const char *name; int64_t value; } jit_constant;
typedef struct jit_request {
    const char *source;
    const jit_constant *constants;
    int constant_count;
} jit_request;

static void cache_options_from_config(cache_options *o, const cairn_config *c) { (void)c; o->unused = 0; }
static cairn_status cache_open(base *b, const cache_options *o, cache *c) {
    (void)b; (void)o; c->unused = 0;
    return CAIRN_OK;
}
static void cache_close(cache *c) { (void)c; }
static cairn_status jit_open(base *b, drv *d, cache *c, const cairn_config *config, int arch, jit **out) {
    (void)d; (void)c; (void)config; (void)arch; (void)out;
    return base_fail(b, CAIRN_UNSUPPORTED, "the jit room has not landed");
}
static void jit_close(jit *j) { (void)j; }
static void jit_counts(jit *j, int32_t *a, int32_t *b, int32_t *c) { (void)j; *a = *b = *c = 0; }
static cairn_status jit_get(jit *j, const jit_request *r, jit_program **out) {
    (void)j; (void)r; (void)out;
    return CAIRN_UNSUPPORTED;
}
static cairn_status jit_function(jit *j, jit_program *p, const char *name, int shared_bytes, jit_kernel *out) {
    (void)j; (void)p; (void)name; (void)shared_bytes; (void)out;
    return CAIRN_UNSUPPORTED;
}
