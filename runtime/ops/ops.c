/* ops: checks, launches and faults, for every op's entry. */

static void ops_want_as(ops_check *c, const cairn_tensor *t, const char *name, unsigned types,
                        bool optional, int rank, const int64_t *extents) {
    tensor_want want;
    int d;
    if (c->status) return;
    memset(&want, 0, sizeof want);
    want.op = c->op;
    want.name = name;
    want.types = types;
    want.rank = rank;
    want.optional = optional;
    for (d = 0; d < rank; d++) want.shape[d] = extents[d];
    c->status = tensor_check(c->dev, t, &want);
}

static void ops_refuse(ops_check *c, bool wrong, const char *format, ...) {
    char text[256];
    va_list args;
    if (c->status || !wrong) return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    c->status = base_fail(c->dev->base, CAIRN_INVALID_ARGUMENT, "%s: %s", c->op, text);
    if (c->dev->trace) trace_drop_op(c->dev->trace);
}

/* Names count as values do: a kernel with one constant may have another one elsewhere. */
static bool ops_same_kernel(const ops_kernel *a, const ops_kernel *b) {
    if (strcmp(a->source, b->source) || strcmp(a->entry, b->entry) ||
        a->constant_count != b->constant_count)
        return false;
    for (int i = 0; i < a->constant_count; i++)
        if (a->constants[i].value != b->constants[i].value ||
            strcmp(a->constants[i].name, b->constants[i].name))
            return false;
    return true;
}

static cairn_status ops_ask_program(cairn_runtime *rt, const jit_request *request,
                                    jit_program **out) {
    cairn_status status = jit_try(rt->jit, request, out);
    if (status != CAIRN_BUSY && status != CAIRN_CANCELLED) return status;
    rt->base.error[0] = '\0';
    status = jit_begin(rt->jit, request, 1);
    return status ? status : CAIRN_BUSY;
}

/* Compiles the program, unless it is in the cache, and finds the entry. */
static cairn_status ops_make_kernel(cairn_runtime *rt, ops_kernel *k) {
    jit_request request;
    jit_program *program;
    cairn_status status;
    memset(&request, 0, sizeof request);
    request.source = k->source;
    request.constants = k->constants;
    request.constant_count = k->constant_count;
    status = rt->device.rehearses ? ops_ask_program(rt, &request, &program)
                                  : jit_get(rt->jit, &request, &program);
    if (status) return status;
    return jit_function(rt->jit, program, k->entry, k->shared_bytes, &k->kernel);
}

static cairn_status ops_find_kernel(cairn_runtime *rt, const ops_kernel *want,
                                    const jit_kernel **out) {
    ops_kernel *k = rt->kernels;
    cairn_status status;
    while (k && !ops_same_kernel(k, want)) k = k->next;
    if (!k) {
        k = (ops_kernel *)base_new(&rt->base, 1, sizeof *k);
        if (!k) return base_no_memory(&rt->base, want->entry, sizeof *k);
        *k = *want;
        if ((status = ops_make_kernel(rt, k))) {
            base_delete(&rt->base, k, 1, sizeof *k);
            return status;
        }
        k->next = rt->kernels;
        rt->kernels = k;
    } else if (k->shared_bytes < want->shared_bytes) {
        ops_kernel larger = *k; /* the limit of a function only rises */
        larger.shared_bytes = want->shared_bytes;
        if ((status = ops_make_kernel(rt, &larger))) return status;
        *k = larger;
    }
    *out = &k->kernel;
    return CAIRN_OK;
}

static void ops_free_kernels(cairn_runtime *rt) {
    while (rt->kernels) {
        ops_kernel *next = rt->kernels->next;
        base_delete(&rt->base, rt->kernels, 1, sizeof *rt->kernels);
        rt->kernels = next;
    }
}

enum { OPS_GRID = 65535 /* blocks in a grid's second and third dimension, of any GPU */ };

static bool ops_is_dependent(const device *dev, int64_t rows) { return rows <= dev->sm_count / 2; }

static cairn_status ops_launch_as(cairn_runtime *rt, ops_kernel *want, const device_dims *dims,
                                  const void *params) {
    const jit_kernel *kernel = NULL;
    cairn_status status;
    if (dims->grid[1] > OPS_GRID || dims->grid[2] > OPS_GRID)
        return base_fail(&rt->base, CAIRN_UNSUPPORTED,
                         "%s: %u x %u blocks in one launch, and %d are the most each way; give "
                         "fewer rows a call", want->entry, dims->grid[1], dims->grid[2], OPS_GRID);
    if ((status = handles_enter(rt))) return status;
    want->shared_bytes = (int)dims->shared_bytes;
    status = ops_find_kernel(rt, want, &kernel);
    if (!status) status = device_launch(&rt->device, kernel, dims, params);
    if (status == CAIRN_BUSY && rt->device.rehearses) rt->device.awaits = true, status = CAIRN_OK;
    return handles_leave(rt, status);
}

static cairn_status ops_prepare(cairn_runtime *rt, ops_kernel *want, int shared_bytes) {
    const jit_kernel *kernel = NULL;
    cairn_status status = handles_enter(rt);
    if (status) return status;
    want->shared_bytes = shared_bytes;
    return handles_leave(rt, ops_find_kernel(rt, want, &kernel));
}

static cairn_status ops_launch(cairn_runtime *rt, const char *source, const char *entry,
                               const device_dims *dims, const void *params) {
    ops_kernel want;
    memset(&want, 0, sizeof want);
    want.source = source;
    want.entry = entry;
    return ops_launch_as(rt, &want, dims, params);
}

static cairn_error_word *ops_error_word(device *dev, const char *op) {
    return (cairn_error_word *)(void *)device_error_word(dev, op);
}

static void ops_bad_row(device *dev, const char *op, int64_t row, const char *cause, int64_t value,
                        cairn_status *status) {
    if (!*status)
        *status = base_fail(dev->base, CAIRN_BAD_DATA, "%s: row %lld: %s (%lld)", op,
                            (long long)row, cause, (long long)value);
}

static int64_t ops_share(int64_t rows, int index, int workers) {
    return rows * index / workers;
}
