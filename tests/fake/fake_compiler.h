/* fake_compiler: the other half of fake_driver.h: NVRTC, modules, functions, launches, and the
 * installation. An image is "FAKEIMG1", u64 bytes of the rest, 32 bytes digest of the rest, then
 * lines: the architecture option, each kernel's name, and a sum of the source. */
#ifndef FAKE_COMPILER_H
#define FAKE_COMPILER_H
#include "fake_driver.h"
#include "ref/quick.h"

/* ---- images ---------------------------------------------------------------------------------- */

static cache_key fake_digest(const char *data, size_t bytes) {
    cache_hash hash;
    cache_hash_begin(&hash, "fake image");
    cache_hash_add(&hash, data, bytes);
    return cache_hash_end(&hash);
}

/* FNV-1a, so that other constants are other bytes. */
QUICK uint64_t fake_sum(const char *text) {
    uint64_t sum = 0xcbf29ce484222325u;
    while (*text) sum = (sum ^ (unsigned char)*text++) * 0x100000001b3u;
    return sum;
}

static base fake_base; /* the C library's memory: the fakes are not what is tested */

static void fake_image(const char *source, const char *arch, base_text *out) {
    base_text rest = {0};
    uint8_t size[8];
    cache_key digest;
    static const char *const before[] = {"__global__ void ", "\nCAIRN_KERNEL("};
    base_text_print(&fake_base, &rest, "%s\n", arch);
    for (int i = 0; i < 2; i++)
        for (const char *at = source; (at = strstr(at, before[i])) != NULL;) {
            at += strlen(before[i]);
            base_text_print(&fake_base, &rest, "%.*s\n", (int)strcspn(at, "(,"), at);
        }
    base_text_print(&fake_base, &rest, "# %016llx\n", (unsigned long long)fake_sum(source));
    digest = fake_digest(rest.data, rest.size);
    cache_store64(size, rest.size);
    base_text_add(&fake_base, out, "FAKEIMG1", 8);
    base_text_add(&fake_base, out, size, 8);
    base_text_add(&fake_base, out, &digest, sizeof digest);
    base_text_add(&fake_base, out, rest.data, rest.size);
    base_text_free(&fake_base, &rest);
}

/* The lines of a good image, or NULL. */
static const char *fake_image_rest(const void *image, size_t *bytes) {
    const uint8_t *at = (const uint8_t *)image;
    cache_key digest;
    if (memcmp(at, "FAKEIMG1", 8)) return NULL;
    *bytes = (size_t)base_load(at + 8, 8);
    if (*bytes > 1 << 20) return NULL;
    digest = fake_digest((const char *)at + 48, *bytes);
    return memcmp(&digest, at + 16, sizeof digest) ? NULL : (const char *)at + 48;
}

/* ---- modules and functions ------------------------------------------------------------------- */

static CUresult fake_cuModuleLoadDataEx(CUmodule *m, const void *image, unsigned n,
                                        CUjit_option *options, void **values) {
    size_t bytes = 0;
    const char *rest = fake_image_rest(image, &bytes), *line;
    (void)n;
    (void)options;
    (void)values;
    os_mutex_lock(&fake.lock);
    fake.loads++;
    if (!rest) fake.bad_images++;
    os_mutex_unlock(&fake.lock);
    FAKE_ENTER;
    if (!rest) return CUDA_ERROR_INVALID_IMAGE;
    *m = (CUmodule)fake_new(sizeof **m);
    line = (const char *)memchr(rest, '\n', bytes);
    while (line && (*m)->count < 16) {
        size_t size = strcspn(line + 1, "\n");
        if (size == 0 || size > 47) break;
        if (strspn(line + 1, "abcdefghijklmnopqrstuvwxyz_0123456789") < size) break;
        memcpy((*m)->names[(*m)->count++], line + 1, size);
        line += 1 + size;
    }
    return 0;
}
static CUresult fake_cuModuleUnload(CUmodule m) {
    struct CUfunc_st *f = m->functions;
    while (f) {
        struct CUfunc_st *next = f->next;
        free(f);
        f = next;
    }
    FAKE_RELEASE(m);
}
static CUresult fake_cuModuleGetFunction(CUfunction *f, CUmodule m, const char *name) {
    int i;
    FAKE_ENTER;
    for (i = 0; i < m->count && strcmp(m->names[i], name); i++) {}
    if (i == m->count && !fake.memory_bytes) return CUDA_ERROR_NOT_FOUND;
    *f = (CUfunction)calloc(1, sizeof **f);
    snprintf((*f)->name, sizeof (*f)->name, "%s", name);
    (*f)->next = m->functions;
    m->functions = *f;
    return 0;
}
static CUresult fake_cuModuleGetGlobal(CUdeviceptr *p, size_t *n, CUmodule m, const char *name) {
    (void)p;
    (void)n;
    (void)m;
    (void)name;
    FAKE_ENTER;
    return CUDA_ERROR_NOT_FOUND;
}
static CUresult fake_cuFuncGetAttribute(int *v, CUfunction_attribute a, CUfunction f) {
    (void)f;
    FAKE_ENTER;
    *v = a == CU_FUNC_ATTRIBUTE_NUM_REGS ? 32 : 0;
    if (a == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK) *v = 1024;
    return 0;
}
static CUresult fake_cuFuncSetAttribute(CUfunction f, CUfunction_attribute a, int v) {
    FAKE_ENTER;
    if (a == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
        if (v > fake_shared_bytes()) return CUDA_ERROR_INVALID_VALUE;
        f->shared_bytes = v;
    }
    return 0;
}
static CUresult fake_cuFuncLoad(CUfunction f) { (void)f; return fake_enter(); }
static CUresult fake_launch(CUfunction f, const unsigned grid[3], const unsigned block[3],
                            unsigned shared, CUstream s, void **parameters) {
    const fake_kernel *k = fake_find_kernel(f->name);
    fake_work w;
    if (shared > 49152 && shared > (unsigned)f->shared_bytes) return CUDA_ERROR_INVALID_VALUE;
    if (block[0] * block[1] * block[2] > 1024) return CUDA_ERROR_INVALID_VALUE;
    memset(&w, 0, sizeof w);
    w.kind = FAKE_KERNEL;
    memcpy(w.name, f->name, sizeof w.name);
    memcpy(w.grid, grid, sizeof w.grid);
    w.block = block[0];
    w.parameters = parameters ? parameters[0] : NULL;
    return fake_do(s, &w, k ? k->parameter_bytes : 0);
}
static CUresult fake_cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz,
                                    unsigned bx, unsigned by, unsigned bz, unsigned shared,
                                    CUstream s, void **parameters, void **extra) {
    unsigned grid[3], block[3];
    (void)extra;
    grid[0] = gx, grid[1] = gy, grid[2] = gz;
    block[0] = bx, block[1] = by, block[2] = bz;
    return fake_launch(f, grid, block, shared, s, parameters);
}
static CUresult fake_cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **parameters,
                                      void **extra) {
    for (unsigned i = 0; i < c->numAttrs; i++) {
        const unsigned cluster = c->attrs[i].value.clusterDim.x;
        if (c->attrs[i].id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) continue;
        if (!cluster || c->gridDimX % cluster) return CUDA_ERROR_INVALID_VALUE;
        fake.clusters++;
    }
    return fake_cuLaunchKernel(f, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY,
                               c->blockDimZ, c->sharedMemBytes, c->hStream, parameters, extra);
}
static CUresult fake_cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, CUfunction f, int t,
                                                                 size_t shared) {
    (void)f;
    (void)t;
    (void)shared;
    FAKE_ENTER;
    *n = 2;
    return 0;
}
static CUresult fake_cuOccupancyMaxActiveClusters(int *n, CUfunction f, const CUlaunchConfig *c) {
    (void)f;
    (void)c;
    FAKE_ENTER;
    *n = 2;
    return 0;
}

/* ---- the driver's linker: PTX is an image made for another architecture ---------------------- */

static CUresult fake_cuLinkCreate(unsigned n, CUjit_option *o, void **v, CUlinkState *s) {
    (void)n;
    (void)o;
    (void)v;
    FAKE_ENTER;
    *s = (CUlinkState)fake_new(sizeof **s);
    return 0;
}
static CUresult fake_cuLinkAddData(CUlinkState s, CUjitInputType t, void *data, size_t bytes,
                                   const char *name, unsigned n, CUjit_option *o, void **v) {
    (void)t;
    (void)name;
    (void)n;
    (void)o;
    (void)v;
    FAKE_ENTER;
    base_text_add(&fake_base, &s->image, data, bytes);
    return 0;
}
static CUresult fake_cuLinkComplete(CUlinkState s, void **cubin, size_t *bytes) {
    FAKE_ENTER;
    *cubin = s->image.data;
    *bytes = s->image.size;
    return fake.link_result;
}
static CUresult fake_cuLinkDestroy(CUlinkState s) {
    base_text_free(&fake_base, &s->image);
    FAKE_RELEASE(s);
}

/* ---- NVRTC ----------------------------------------------------------------------------------- */

static nvrtcResult fake_nvrtcVersion(int *major, int *minor) {
    FAKE_ENTER;
    *major = fake.nvrtc_major;
    *minor = 0;
    return 0;
}
static const char *fake_nvrtcGetErrorString(nvrtcResult r) { (void)r; return "NVRTC_ERROR_FAKE"; }
static nvrtcResult fake_nvrtcGetNumSupportedArchs(int *n) {
    FAKE_ENTER;
    *n = fake.nvrtc_arch_count;
    return 0;
}
static nvrtcResult fake_nvrtcGetSupportedArchs(int *a) {
    FAKE_ENTER;
    memcpy(a, fake.nvrtc_archs, sizeof *a * (size_t)fake.nvrtc_arch_count);
    return 0;
}
static nvrtcResult fake_nvrtcCreateProgram(nvrtcProgram *p, const char *source, const char *name,
                                           int count, const char *const *headers,
                                           const char *const *names) {
    int i;
    FAKE_ENTER;
    for (i = 0; i < count; i++)
        if (!headers[i] || !names[i]) return NVRTC_ERROR_INVALID_INPUT;
    *p = (nvrtcProgram)fake_new(sizeof **p);
    (*p)->source = strdup(source);
    (*p)->name = strdup(name);
    return 0;
}
static nvrtcResult fake_nvrtcDestroyProgram(nvrtcProgram *p) {
    nvrtcProgram program = *p;
    free(program->source);
    free(program->name);
    base_text_free(&fake_base, &program->image);
    *p = NULL;
    FAKE_RELEASE(program);
}
static nvrtcResult fake_nvrtcSetFlowCallback(nvrtcProgram p, driver_flow_callback f,
                                             void *payload) {
    FAKE_ENTER;
    p->flow = f;
    p->payload = payload;
    return 0;
}
/* The line of `word` in the template, by its #line. */
static int fake_line_of(const char *source, const char *word) {
    const char *start = strstr(source, "#line 1 "), *at = strstr(source, word);
    int line = 0;
    for (; start && start < at; start++) line += *start == '\n';
    return line;
}
/* The front end: what is read, and how many are at once. */
static void fake_read(nvrtcProgram p) {
    const char *n = strstr(p->source, "#define CAIRN_N ");
    os_mutex_lock(&fake.lock);
    fake.read[fake.compiles++ % (int)BASE_COUNT(fake.read)] = n ? atoi(n + 16) : 0;
    if (++fake.fronts > fake.most_fronts) fake.most_fronts = fake.fronts;
    os_mutex_unlock(&fake.lock);
    if (fake.front_us) os_sleep_us(fake.front_us);
    os_mutex_lock(&fake.lock);
    fake.fronts--;
    os_mutex_unlock(&fake.lock);
}

static nvrtcResult fake_nvrtcCompileProgram(nvrtcProgram p, int n, const char *const *options) {
    int64_t until = os_now_us() + fake.compile_us;
    const char *mistake = strstr(p->source, "MISTAKE");
    bool priming = !strcmp(p->name, "prime.cu");
    FAKE_ENTER;
    if (!priming) fake_read(p);
    while (!priming && os_now_us() < until && !os_atomic_load(&fake.let_go)) {
        if (p->flow && p->flow(p->payload, NULL)) return NVRTC_ERROR_CANCELLED;
        os_sleep_us(500);
    }
    if (mistake)
        snprintf(p->log, sizeof p->log, "%s(%d): error: identifier \"MISTAKE\" is undefined\n\n"
                 "1 error detected\n", p->name, fake_line_of(p->source, "MISTAKE"));
    if (mistake) return NVRTC_ERROR_COMPILATION;
    if (!priming && fake.compile_result && (!fake.compile_fails || strstr(p->name, fake.compile_fails))) {
        snprintf(p->log, sizeof p->log, "%s", fake.compile_log ? fake.compile_log : "");
        return fake.compile_result;
    }
    fake_image(p->source, n > 0 ? options[n - 1] : "default", &p->image);
    return 0;
}
static nvrtcResult fake_nvrtcGetCUBINSize(nvrtcProgram p, size_t *n) {
    FAKE_ENTER;
    *n = p->image.size;
    return 0;
}
static nvrtcResult fake_nvrtcGetCUBIN(nvrtcProgram p, char *out) {
    FAKE_ENTER;
    memcpy(out, p->image.data, p->image.size);
    return 0;
}
static nvrtcResult fake_nvrtcGetProgramLogSize(nvrtcProgram p, size_t *n) {
    FAKE_ENTER;
    *n = strlen(p->log) + 1;
    return 0;
}
static nvrtcResult fake_nvrtcGetProgramLog(nvrtcProgram p, char *out) {
    FAKE_ENTER;
    memcpy(out, p->log, strlen(p->log) + 1);
    return 0;
}
static nvrtcResult fake_nvrtcAddNameExpression(nvrtcProgram p, const char *e) {
    (void)p;
    (void)e;
    return fake_enter();
}
static nvrtcResult fake_nvrtcGetLoweredName(nvrtcProgram p, const char *e, const char **n) {
    (void)p;
    *n = e;
    return fake_enter();
}
#define fake_nvrtcGetPTXSize fake_nvrtcGetCUBINSize
#define fake_nvrtcGetPTX fake_nvrtcGetCUBIN
static CUresult fake_cuGetProcAddress(const char *s, void **a, int v, cuuint64_t f,
                                      CUdriverProcAddressQueryResult *r) {
    (void)s;
    (void)a;
    (void)v;
    (void)f;
    (void)r;
    FAKE_ENTER;
    return CUDA_ERROR_NOT_FOUND;
}

/* ---- installation ---------------------------------------------------------------------------- */

typedef struct fake_symbol { const char *name; os_function function; } fake_symbol;
#define FAKE_ROW(field, symbol) {#symbol, (os_function)fake_##field},
static const fake_symbol fake_symbols[] = {DRV_FUNCTIONS(FAKE_ROW) {NULL, NULL}};

static char fake_libraries[4]; /* their addresses are the handles */

static void *fake_library_open(const char *path, bool loaded_only, char *why, size_t why_bytes) {
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    char nvrtc[32], builtins[48];
    void *library = NULL;
    snprintf(nvrtc, sizeof nvrtc, DRV_NVRTC_NAME, fake.nvrtc_major);
    snprintf(builtins, sizeof builtins, DRV_BUILTINS_NAME, fake.nvrtc_major, 0);
    if (!loaded_only && !strcmp(name, FAKE_CUDA_NAME) && !fake.no_cuda)
        library = &fake_libraries[0];
    if (!loaded_only && !strcmp(name, nvrtc) && !fake.no_nvrtc) library = &fake_libraries[1];
    if (!strcmp(name, builtins) && !fake.no_builtins) library = &fake_libraries[2];
    if (strstr(name, ".alt.") && fake.twin)
        library = &fake_libraries[strstr(name, "builtins") ? 2 : 3];
    if (library) fake.opened++;
    if (why_bytes) snprintf(why, why_bytes, library ? "" : "%s: not in this fake world", path);
    return library;
}
static os_function fake_library_symbol(void *library, const char *name) {
    const fake_symbol *s = fake_symbols;
    bool nvrtc = !strncmp(name, "nvrtc", 5);
    if (library != &fake_libraries[nvrtc ? 1 : 0] && !(nvrtc && library == &fake_libraries[3])) return NULL;
    if (fake.missing_symbol && !strcmp(name, fake.missing_symbol)) return NULL;
    if (fake.no_optional && (!strcmp(name, "cuFuncLoad") || !strcmp(name, "nvrtcSetFlowCallback") ||
                             !strcmp(name, "cuGetProcAddress_v2"))) return NULL;
    while (s->name && strcmp(s->name, name)) s++;
    return s->function;
}
static void fake_library_close(void *library) { (void)library; fake.opened--; }

/* An H200-like device, CUDA 13.0, everything present and well. Calls again reset it. */
static void fake_install(void) {
    static bool before;
    if (!before) {
        fake_real_os = os_calls;
        base_init(&fake_base, NULL, NULL, NULL, CAIRN_LOG_OFF);
    }
    before = true;
    memset(&fake, 0, sizeof fake);
    os_mutex_init(&fake.lock);
    fake.cuda_version = 13000;
    fake.nvrtc_major = 13;
    fake.device_count = 1;
    fake.major = 9;
    fake.nvrtc_archs[0] = 80, fake.nvrtc_archs[1] = 90, fake.nvrtc_archs[2] = 120;
    fake.nvrtc_arch_count = 3;
    fake_depth = 0;
    os_calls = fake_real_os;
    os_calls.library_open = fake_library_open;
    os_calls.library_symbol = fake_library_symbol;
    os_calls.library_close = fake_library_close;
}

#endif
