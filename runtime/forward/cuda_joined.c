/* forward_cuda_joined: the kernels for prompts of several sequences in one part: those that ask of which
 * sequence a row is (STEP_EXTRA_JOINED). All others are told nothing of it, and a prompt alone keeps the
 * kernels it had. They are compiled in the background from the first time on that prompts wait beside each
 * other; until they are there prompts run one after the other, to the same bits. */

enum { JOINED_ATTEND = STEP_FORMATS, JOINED_LAST, JOINED_SPANS, JOINED_PROGRAMS }; /* before them q, k and v, by set */

/* false: there is no such program */
static bool cuda_joined_request(const forward_cuda_state *f, int which, jit_constant *constants,
                                jit_request *out) {
    const int set = which < STEP_FORMATS ? which : 0;
    const int product = which < STEP_FORMATS ? STEP_P_QKV : STEP_P_OTHER;
    memset(out, 0, sizeof *out);
    out->source = which == JOINED_ATTEND ? "step/prompt_attend.cu"
                  : which == JOINED_LAST ? "step/prompt_residual.cu"
                  : which == JOINED_SPANS ? "step/prompt_spans.cu"
                                         : "step/prompt.cu";
    out->constants = constants;
    out->constant_count = cuda_constants(f, set, f->max_rows, 0, 0, constants);
    out->later = true;
    cuda_constant(constants, "EXTRAS")->value |= STEP_EXTRA_JOINED;
    cuda_constant(constants, "PRODUCTS")->value = (int64_t)1 << product;
    return which == JOINED_SPANS ? cuda_attends_many(f) : cuda_products_of(f, set) >> product & 1;
}

static cairn_status cuda_joined_functions(forward_cuda_state *f, jit_program *program, int which) {
    static const int kernels[][2] = {
        {PROMPT_K_QKV}, {PROMPT_K_ATTEND}, {PROMPT_K_LAST}, {PROMPT_K_SPAN, PROMPT_K_MERGE}};
    const int *kernel = kernels[which < STEP_FORMATS ? 0 : 1 + which - STEP_FORMATS];
    cairn_status status = CAIRN_OK;
    for (int k = 0; k < 2 && kernel[k] && !status; k++)
        status = jit_function(f->dev->jit, program, step_kernel_names[kernel[k]],
                              (int)cuda_shared_bytes(f, kernel[k]),
                              (jit_kernel *)cuda_joined_kernel(f, kernel[k], which % STEP_FORMATS));
    return status;
}

/* As cuda_get_extra. */
static cairn_status cuda_get_joined(forward_cuda_state *f, bool waits) {
    static const cuda_extra joined = {cuda_joined_request, cuda_joined_functions, 0, JOINED_PROGRAMS,
                                      "prompts go on one after the other", false};
    return cuda_get_extra(f, &joined, &f->joined_state, &f->joined_asked, waits);
}

/* Whether several sequences' prompts can be one part by now. */
static bool cuda_has_joined(forward_cuda_state *f, forward_batch *batch) {
    batch->prepared |= f->joined_state == STEP_FLOW_WAITS;
    return !cuda_get_joined(f, false);
}
