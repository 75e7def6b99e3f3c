/* forward_cuda_joined: the kernels for prompts of several sequences in one part: of attention and of the
 * last rows (STEP_EXTRA_JOINED). All others look up of which sequence each row is, and a prompt alone keeps
 * its own. They are compiled in the background from the first time on that prompts wait beside each other;
 * until they are there prompts run one after the other, to the same bits. */

enum { JOINED_ATTEND, JOINED_LAST, JOINED_SPANS, JOINED_PROGRAMS };

/* false: there is no such program */
static bool cuda_joined_request(const forward_cuda_state *f, int which, jit_constant *constants,
                                jit_request *out) {
    memset(out, 0, sizeof *out);
    out->source = which == JOINED_ATTEND ? "step/prompt_attend.cu"
                  : which == JOINED_LAST ? "step/prompt_residual.cu"
                                         : "step/prompt_spans.cu";
    out->constants = constants;
    out->constant_count = cuda_constants(f, 0, f->max_rows, 0, 0, constants);
    out->turn = JIT_LATER;
    cuda_constant(constants, "EXTRAS")->value |= STEP_EXTRA_JOINED;
    cuda_constant(constants, "PRODUCTS")->value = 1 << STEP_P_OTHER;
    return which != JOINED_SPANS || cuda_attends_many(f);
}

static cairn_status cuda_joined_functions(forward_cuda_state *f, jit_program *program, int which) {
    static const int kernels[JOINED_PROGRAMS][2] = {
        {PROMPT_K_ATTEND}, {PROMPT_K_LAST}, {PROMPT_K_SPAN, PROMPT_K_MERGE}};
    const int *kernel = kernels[which];
    cairn_status status = CAIRN_OK;
    for (int k = 0; k < 2 && kernel[k] && !status; k++)
        status = jit_function(f->dev->jit, program, step_kernel_names[kernel[k]],
                              (int)cuda_shared_bytes(f, kernel[k]),
                              (jit_kernel *)cuda_joined_kernel(f, kernel[k]));
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
