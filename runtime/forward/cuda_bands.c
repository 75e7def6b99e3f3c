/* forward_cuda_bands: products of a step of more than eight rows (BANDS in kernels_src/dense/product.cuh). A block
 * takes two bands of eight rows, so that weights are read and expanded once for sixteen; it has a multiprocessor
 * of its own. The bits are those of a band alone. The kernels are compiled in the background from the first such
 * step on, and from the first with rows that have adapters those that heed these; until they are there windows of
 * eight rows serve. */

/* The products that have such a form, as bits: of a set of formats those whose weights are so many that one block
 * for each multiprocessor is enough to read them; adapts: of them those that adapters add to. */
static unsigned cuda_band_products(const forward_cuda_state *f, int set, bool adapts) {
    static const int products[] = {STEP_P_QKV, STEP_P_O, STEP_P_GATE_UP, STEP_P_DOWN, STEP_P_CONV_IN,
                                   STEP_P_CONV_OUT};
    const unsigned there = cuda_products_of(f, set);
    unsigned bits = 0;
    for (size_t i = 0; i < BASE_COUNT(products); i++)
        if (there >> products[i] & 1 &&
            cuda_product_bytes(f->shape, products[i], f->formats[products[i]][set]) >= f->bands_from)
            bits |= 1u << products[i];
    return adapts ? (unsigned)cuda_adapted_products(bits) : bits;
}

static unsigned cuda_band_bytes(void) { return PRODUCT_BANDS_SHARED + 2 * PRODUCT_SPREAD_SHARED; }

/* `which`: a set of formats, and STEP_FORMATS further with adapters. false: none of these has such a product */
static bool cuda_band_request(const forward_cuda_state *f, int which, jit_constant *constants, jit_request *out) {
    const bool adapts = which >= STEP_FORMATS;
    const unsigned products = cuda_band_products(f, which % STEP_FORMATS, adapts);
    cuda_wants_stage(f, "step/layer.cu", NULL, which % STEP_FORMATS, constants, out);
    cuda_constant(constants, "PRODUCTS")->value = (int64_t)products;
    cuda_constant(constants, "BANDS")->value = 2;
    if (adapts) cuda_constant(constants, "EXTRAS")->value |= STEP_EXTRA_ADAPTERS;
    return products != 0;
}

static cairn_status cuda_band_functions(forward_cuda_state *f, jit_program *program, int which) {
    const bool adapts = which >= STEP_FORMATS;
    const int set = which % STEP_FORMATS;
    cairn_status status = CAIRN_OK;
    for (int i = STEP_K_QKV; i < STEP_K_ATTEND && !status; i++)
        if (cuda_band_products(f, set, adapts) >> cuda_kernel_product(i) & 1)
            status = jit_function(f->dev->jit, program, step_kernel_names[i], (int)cuda_band_bytes(),
                                  &f->band_kernels[adapts][set][i]);
    return status;
}

/* Whether they can be launched by now; waits: once they are there, if they were asked for. */
static bool cuda_has_bands(forward_cuda_state *f, bool adapts, bool waits) {
    const cuda_extra bands = {cuda_band_request, cuda_band_functions, adapts ? STEP_FORMATS : 0, STEP_FORMATS,
                              "steps of many rows go on by slower kernels", true};
    unsigned any = 0;
    for (int set = 0; set < STEP_FORMATS; set++) any |= cuda_band_products(f, set, adapts);
    if (!any || !cuda_spreads(f) || f->dev->max_shared_bytes < (int)cuda_band_bytes()) return false;
    return !cuda_get_extra(f, &bands, &f->bands_state[adapts], &f->bands_asked[adapts], waits);
}

/* Whether a product of the step that is launched runs so. */
static bool cuda_takes_bands(const forward_cuda_state *f, step_kernel kernel, int layer) {
    const int product = cuda_kernel_product((int)kernel);
    return f->banded && cuda_band_products(f, f->layers[layer].which[product], f->adapts) >> product & 1;
}
