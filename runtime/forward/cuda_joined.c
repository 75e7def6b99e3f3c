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
    static const int qkv[] = {PROMPT_K_QKV, 0};
    static const int others[][2] = {{PROMPT_K_ATTEND}, {PROMPT_K_LAST}, {PROMPT_K_SPAN, PROMPT_K_MERGE}};
    const int *kernel = which < STEP_FORMATS ? qkv : others[which - STEP_FORMATS];
    cairn_status status = CAIRN_OK;
    for (int k = 0; k < 2 && kernel[k] && !status; k++)
        status = jit_function(f->dev->jit, program, step_kernel_names[kernel[k]],
                              (int)cuda_shared_bytes(f, kernel[k]),
                              (jit_kernel *)cuda_joined_kernel(f, kernel[k], which % STEP_FORMATS));
    return status;
}

/* All of them; CAIRN_BUSY: they are not all there yet, and `waits` is false. */
static cairn_status cuda_take_joined(forward_cuda_state *f, bool waits) {
    jit_constant constants[JOINED_PROGRAMS][STEP_CONSTANTS];
    jit_request requests[JOINED_PROGRAMS];
    jit_program *programs[JOINED_PROGRAMS];
    int which[JOINED_PROGRAMS], count = 0;
    cairn_status status;
    for (int i = 0; i < JOINED_PROGRAMS; i++) {
        which[count] = i;
        count += cuda_joined_request(f, i, constants[count], &requests[count]);
    }
    status = cuda_seek(f, requests, count, &f->joined_asked, waits, programs);
    for (int i = 0; i < count && !status; i++) status = cuda_joined_functions(f, programs[i], which[i]);
    if (!status) f->joined_state = STEP_FLOW_READY;
    return status;
}

/* Whether several sequences' prompts can be one part by now. What cannot be had is done without. */
static bool cuda_has_joined(forward_cuda_state *f, forward_batch *batch) {
    if (f->joined_state != STEP_FLOW_WAITS) return f->joined_state == STEP_FLOW_READY;
    batch->prepared = true;
    return cuda_settle(f, &f->joined_state, cuda_take_joined(f, false), "prompts go on one after the other");
}
