/* forward_cuda_adapters: adapters on the GPU: kernels of the products that heed them (step/adapter.cuh),
 * and their values. Both come with the first adapter: a model without one has the kernels it had, and
 * so have forwards none of whose rows has an adapter. */

/* The programs with products, and their kernels. */
static const struct cuda_adapted_program {
    const char *source;
    int first, count;
} cuda_adapted_programs[] = {{"step/prompt_residual.cu", PROMPT_K_EMBED, 7},
                             {"step/prompt.cu", PROMPT_K_QKV, 4}, {"step/layer.cu", STEP_K_EMBED, 9}};

enum { CUDA_ADAPTED_PROGRAMS = (int)BASE_COUNT(cuda_adapted_programs) };

/* The bits of products that adapters add to, among those of a program. */
static int64_t cuda_adapted_products(int64_t products) {
    for (int i = 0; i < STEP_PRODUCTS; i++)
        if (!cuda_is_adapted(i)) products &= ~((int64_t)1 << i);
    return products;
}

/* A request's constants are its model's, with the adapters and, `products`, without other kernels. */
static jit_request cuda_adapted_request(const forward_cuda_state *f, const char *source, int set,
                                        bool prompt, bool products, jit_constant *constants) {
    jit_request request = {source, constants, 0, JIT_AWAITED};
    request.constant_count = cuda_constants(f, set, prompt ? f->max_rows : STEP_STAGE_ROWS,
                                            prompt ? 0 : f->stage_parts, 0, constants);
    cuda_constant(constants, "EXTRAS")->value |= STEP_EXTRA_ADAPTERS;
    if (products)
        cuda_constant(constants, "PRODUCTS")->value =
            cuda_adapted_products((int64_t)cuda_products_of(f, set));
    return request;
}

/* Builds one program, and takes those of its kernels that have products of this set of formats. */
static cairn_status cuda_build_adapted(forward_cuda_state *f, int which, int set) {
    const struct cuda_adapted_program *from = &cuda_adapted_programs[which];
    jit_constant constants[STEP_CONSTANTS];
    const jit_request request = cuda_adapted_request(f, from->source, set,
                                                     from->first >= PROMPT_K_EMBED, true, constants);
    const unsigned held = cuda_products_of(f, set);
    jit_program *program;
    cairn_status status = CAIRN_OK;
    for (int i = from->first; i < from->first + from->count && !status; i++) {
        const int product = cuda_kernel_product(i);
        if (!cuda_is_adapted(product) || !(held >> product & 1)) continue;
        status = jit_get(f->dev->jit, &request, &program);
        if (!status)
            status = jit_function(f->dev->jit, program, step_kernel_names[i],
                                  (int)cuda_shared_bytes(f, i), &f->adapted[set][i]);
    }
    return status;
}

static cairn_status cuda_build_low(forward_cuda_state *f, int prompt) {
    jit_constant constants[STEP_CONSTANTS];
    const jit_request request = cuda_adapted_request(f, "step/adapter.cu", 0, prompt != 0, false,
                                                     constants);
    jit_program *program;
    cairn_status status = jit_get(f->dev->jit, &request, &program);
    if (!status) status = jit_function(f->dev->jit, program, "step_low", STEP_LOW_BYTES, &f->low_kernels[prompt]);
    if (!status && f->shape->experts)
        status = jit_function(f->dev->jit, program, "step_low_slots", STEP_LOW_BYTES, &f->slot_kernels[prompt]);
    if (!status) status = jit_function(f->dev->jit, program, "step_own", 0, &f->own_kernels[prompt]);
    if (!status && !prompt) status = jit_function(f->dev->jit, program, "step_keep", 64, &f->keep_kernel);
    return status;
}

/* Begins to compile everything at once. */
static cairn_status cuda_begin_adapted(forward_cuda_state *f) {
    jit_constant constants[STEP_FORMATS * CUDA_ADAPTED_PROGRAMS + 2][STEP_CONSTANTS];
    jit_request requests[STEP_FORMATS * CUDA_ADAPTED_PROGRAMS + 2];
    int count = 0;
    for (int prompt = 0; prompt < 2; prompt++, count++)
        requests[count] = cuda_adapted_request(f, "step/adapter.cu", 0, prompt != 0, false,
                                               constants[count]);
    for (int set = 0; set < STEP_FORMATS; set++)
        for (int i = 0; i < CUDA_ADAPTED_PROGRAMS; i++) {
            const int first = cuda_adapted_programs[i].first;
            unsigned products = 0;
            for (int k = first; k < first + cuda_adapted_programs[i].count; k++)
                products |= 1u << cuda_kernel_product(k);
            if (!cuda_adapted_products(products & cuda_products_of(f, set))) continue;
            requests[count] = cuda_adapted_request(f, cuda_adapted_programs[i].source, set,
                                                   first >= PROMPT_K_EMBED, true, constants[count]);
            count++;
        }
    return jit_begin(f->dev->jit, requests, count);
}

/* Pairs of all slots; inner values of rows. */
static size_t cuda_pairs(const model_shape *s) {
    return (size_t)(ADAPTER_MOST * STEP_LOW_PRODUCTS) * (size_t)s->layers;
}
static uint64_t cuda_low_bytes(const model_shape *s, int max_rows) {
    const uint64_t rows = (uint64_t)(max_rows > STEP_STAGE_ROWS ? max_rows : STEP_STAGE_ROWS);
    return rows * (uint64_t)(s->experts ? s->experts_used : 1) * 3 * STEP_LOW_MOST * 4;
}

static cairn_status cuda_open_adapters(forward_cuda_state *f) {
    const size_t pairs = cuda_pairs(f->shape);
    device_arena *a = &f->adapter_arena;
    step_pair *all;
    float *low;
    cairn_status status = cuda_begin_adapted(f);
    for (int prompt = 0; prompt < 2 && !status; prompt++) status = cuda_build_low(f, prompt);
    for (int i = 0; i < STEP_FORMATS * CUDA_ADAPTED_PROGRAMS && !status; i++)
        status = cuda_build_adapted(f, i % CUDA_ADAPTED_PROGRAMS, i / CUDA_ADAPTED_PROGRAMS);
    if (status) return status;
    all = (step_pair *)device_take(a, pairs * sizeof *all, "the adapters");
    low = (float *)device_take(a, cuda_low_bytes(f->shape, f->max_rows), "rows of adapters");
    if ((status = a->status)) {
        device_arena_free(a);
        memset(a, 0, sizeof *a);
        a->dev = f->dev;
        return status;
    }
    f->pairs = all;
    f->stage.params.adapters = f->prompt.params.adapters = all;
    f->stage.params.low = f->prompt.params.low = low;
    return CAIRN_OK;
}

/* An adapter's values to its memory on the device, and its pairs to its slot. */
static cairn_status cuda_send_adapter(forward_cuda_state *f, const cairn_adapter *a) {
    static const int roles[STEP_LOW_PRODUCTS] = {PLAN_Q, PLAN_K, PLAN_V, PLAN_O, PLAN_GATE, PLAN_UP,
                                                 PLAN_DOWN};
    const size_t count = (size_t)f->shape->layers * STEP_LOW_PRODUCTS;
    step_pair *pairs = (step_pair *)base_new(f->dev->base, count, sizeof *pairs);
    const float *values = (const float *)a->device;
    cairn_status status;
    if (!pairs) return base_no_memory(f->dev->base, "an adapter", count * sizeof *pairs);
    for (size_t i = 0; i < count; i++) {
        const adapter_pair *from = adapter_of(a, (int)(i / STEP_LOW_PRODUCTS),
                                              roles[i % STEP_LOW_PRODUCTS]);
        if (!from) continue;
        pairs[i].a = values + (from->a - a->values), pairs[i].b = values + (from->b - a->values);
        pairs[i].rank = from->rank;
    }
    status = device_upload(f->dev, a->device, a->values, a->count * sizeof *a->values);
    if (!status)
        status = device_upload(f->dev, f->pairs + (size_t)a->slot * count, pairs,
                               count * sizeof *pairs);
    if (!status) status = device_sync(f->dev);
    else device_wait(f->dev);
    base_delete(f->dev->base, pairs, count, sizeof *pairs);
    return status;
}

/* What one takes beside that of all. */
static size_t cuda_adapter_bytes(const forward_cuda_state *f, const cairn_adapter *a) {
    const size_t bytes = a->count * sizeof *a->values;
    if (!cuda_is_wide(f, a)) return bytes;
    return (bytes + 255) / 256 * 256 + cuda_tile_bytes(f->shape) * (size_t)f->shape->layers;
}

static uint64_t forward_cuda_adapter_bytes(const cairn_model *model, const cairn_adapter *adapter,
                                           bool first, int max_rows) {
    forward_cuda_state *f;
    uint64_t bytes;
    if (cuda_new(model, max_rows, &f)) return 0;
    bytes = cuda_adapter_bytes(f, adapter) + cuda_draft_bytes(f, adapter);
    if (first) bytes += cuda_pairs(&model->shape) * sizeof(step_pair) +
                        cuda_low_bytes(&model->shape, max_rows);
    if (first && adapter->parts[ADAPTER_LANDMARK] && !cuda_wants_forms(f, &model->runtime->config, false))
        bytes += cuda_measure_forms(f, &model->runtime->config, true);
    base_delete(&model->runtime->base, f, 1, sizeof *f);
    return bytes;
}

/* Nobody asks for the next step any more, which may still run (cuda_next.c). */
static void cuda_forget_next(forward_cuda_state *f);

static void forward_cuda_leave_adapter(cairn_model *model, cairn_adapter *adapter) {
    forward_cuda_state *f = (forward_cuda_state *)model->state;
    device *dev = &model->runtime->device;
    jit_give_up(dev->jit);
    device_wait(dev);
    cuda_forget_next(f); /* its rows may be the adapter's, and another come to lie where it did */
    if (f->ahead_by == adapter) f->ahead_by = NULL;
    if (f->wide_by == adapter) f->wide_by = NULL;
    f->drafting.first = NULL;
    device_free(dev, adapter->device, cuda_adapter_bytes(f, adapter));
    adapter->device = NULL;
}

static cairn_status forward_cuda_take_adapter(cairn_model *model, cairn_adapter *adapter) {
    forward_cuda_state *f = (forward_cuda_state *)model->state;
    cairn_status status = adapter->parts[ADAPTER_MASK] ? cuda_begin_draft_flow(f) : CAIRN_OK;
    if (!status && !f->pairs) status = cuda_open_adapters(f);
    if (!status && adapter->parts[ADAPTER_MASK]) status = cuda_open_drafts(f);
    if (!status)
        status = device_alloc_clear(f->dev, cuda_adapter_bytes(f, adapter), "an adapter",
                                    &adapter->device);
    if (!status) status = cuda_send_adapter(f, adapter);
    if (!status) status = cuda_send_tiles(f, adapter);
    if (!status && adapter->parts[ADAPTER_LANDMARK]) status = cuda_need_drafts(f, NULL);
    if (!status) status = cuda_get_forms(model, adapter);
    if (status) forward_cuda_leave_adapter(model, adapter);
    return status;
}
