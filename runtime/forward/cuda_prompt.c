/* forward_cuda_prompt: the rows of a prompt, whose products are of many rows. See cuda.c. */

/* The blocks that a product of layer l runs by: for rows with adapters, and for q, k and v of joined
 * prompts, there are no kernels but of one form. */
static step_form cuda_prompt_form(const forward_cuda_state *f, step_kernel kernel, int outputs, int rows, int l) {
    const int set = f->layers[l].which[cuda_kernel_product((int)kernel)];
    if (f->adapts || (f->joined && cuda_joined_kernel(f, (int)kernel, set))) return STEP_FORM_ALL;
    if (f->few) return STEP_FORM_FEW;
    return f->large_built[set] && cuda_pays_large(f, outputs, rows) ? STEP_FORM_LARGE : STEP_FORM_ALL;
}

/* The product of `outputs` rows of weights with all rows of the prompt. */
static cairn_status cuda_prompt_product(forward_cuda_state *f, step_kernel kernel, int outputs,
                                        int rows, int l) {
    const step_form form = cuda_prompt_form(f, kernel, outputs, rows, l);
    const bool adds = STEP_LAST_PRODUCTS >> cuda_kernel_product((int)kernel) & 1;
    const step_block *b = form == STEP_FORM_LARGE ? &f->large_block
                          : form == STEP_FORM_FEW ? &f->few_blocks[adds]
                                                  : &f->prompt_block;
    const int each = cuda_block_outputs(b);
    cairn_status status;
    f->form = form;
    status = cuda_launch(f, &f->prompt, kernel, (rows + b->tokens - 1) / b->tokens,
                         (outputs + each - 1) / each, (b->warps + b->carriers) * 32,
                         cuda_prompt_bytes(f, b), l, 0);
    f->form = STEP_FORM_ALL;
    return status;
}

static cairn_status cuda_run_prompt_conv(forward_cuda_state *f, int rows, int l) {
    const int hidden = f->shape->hidden;
    cairn_status status;
    if ((status = cuda_prompt_product(f, PROMPT_K_CONV_IN, 3 * hidden, rows, l)) ||
        (status = cuda_convolve(f, &f->prompt, PROMPT_K_CONV, rows, l)))
        return status;
    return cuda_prompt_product(f, PROMPT_K_CONV_OUT, hidden, rows, l);
}

static cairn_status cuda_run_prompt_experts(forward_cuda_state *f, int rows, int l) {
    const step_lane *lane = &f->prompt;
    const model_shape *s = f->shape;
    const int windows = cuda_expert_windows(s, rows, 64), slots = windows * f->prompt_block.tokens;
    cairn_status status;
    if ((status = cuda_route(f, lane, PROMPT_K_ROUTE, rows, l)) ||
        (status = cuda_run_low_slots(f, lane, rows, l, STEP_LOW_GATE)) ||
        (status = cuda_prompt_product(f, PROMPT_K_EXPERT_UP, 2 * s->ffn, slots, l)) ||
        (status = cuda_run_low_slots(f, lane, rows, l, STEP_LOW_DOWN)) ||
        (status = cuda_prompt_product(f, PROMPT_K_EXPERT_DOWN, s->hidden, slots, l)))
        return status;
    return cuda_launch(f, lane, PROMPT_K_COMBINE, rows, 1, 128, 0, l, 0);
}

/* Of a prompt's rows, in the form of a layer that selects. */
static cairn_status cuda_attend_prompt(forward_cuda_state *f, const cuda_form *form, int rows, int l) {
    const model_shape *s = f->shape;
    const bool selects = form->rule && cuda_selects(f, form->rule, l);
    const bool unmarked = selects && form->landmarks, many = cuda_attends_many(f) && !unmarked;
    const int each = cuda_attend_rows(f, many);
    const int tiles = f->joined ? f->prompt.words[STEP_GROUPS] : (rows + each - 1) / each;
    device_dims dims = {{(unsigned)tiles, (unsigned)(many ? s->kv_heads : s->heads), 1},
                        many ? LAYOUT_MANY_THREADS : 128, 0, 0, true};
    step_params p = f->prompt.params;
    const jit_kernel *plain = cuda_kernel_of(f, PROMPT_K_ATTEND, l, &p);
    if (selects && form->rule->prompts) return cuda_attend_formed(f, form, &f->prompt, rows, l);
    dims.shared_bytes = many ? cuda_prompt_attend_bytes(f) : (unsigned)layout_prompt_bytes(s->head_dim);
    return device_launch(f->dev, unmarked ? &f->forms.unmarked : plain, &dims, &p);
}

static cairn_status cuda_run_prompt_attention(forward_cuda_state *f, const cuda_form *form, int rows,
                                              int l) {
    const model_shape *s = f->shape;
    const step_lane *lane = &f->prompt;
    cairn_status status;
    if ((status = cuda_run_low(f, lane, rows, l, STEP_LOW_Q, 3)) ||
        (status = cuda_prompt_product(f, PROMPT_K_QKV, (int)cuda_qkv_rows(s), rows, l)) ||
        (status = cuda_work_heads(f, lane, PROMPT_K_HEADS, rows, l)) ||
        (status = cuda_attend_prompt(f, form, rows, l)) ||
        (status = cuda_run_low(f, lane, rows, l, STEP_LOW_O, 1)) ||
        (status = cuda_prompt_product(f, PROMPT_K_PROJECT, s->hidden, rows, l)))
        return status;
    return cuda_add_summand(f, lane, PROMPT_K_ADD, rows, l, 0);
}

static cairn_status cuda_run_prompt_layer(forward_cuda_state *f, const cuda_form *form, int rows,
                                          int l) {
    const model_shape *s = f->shape;
    const step_lane *lane = &f->prompt;
    const int quads = (rows + 3) / 4;
    const plan_mixer mixer = f->plan->layers[l].mixer;
    cairn_status status = mixer == PLAN_LATENT
                              ? cuda_run_latents(f, lane, rows, l)
                              : cuda_launch(f, lane, PROMPT_K_NORM, quads, 1, 128, 0, l, 0);
    if (!status && mixer != PLAN_LATENT)
        status = mixer == PLAN_SHORT_CONV ? cuda_run_prompt_conv(f, rows, l)
                                          : cuda_run_prompt_attention(f, form, rows, l);
    if (status) return status;
    if (s->experts) return cuda_run_prompt_experts(f, rows, l);
    if ((status = cuda_launch(f, lane, PROMPT_K_NORM, quads, 1, 128, 0, l, 1)) ||
        (status = cuda_run_low(f, lane, rows, l, STEP_LOW_GATE, 2)) ||
        (status = cuda_prompt_product(f, PROMPT_K_GATE_UP, 2 * s->ffn, rows, l)) ||
        (status = cuda_run_low(f, lane, rows, l, STEP_LOW_DOWN, 1)) ||
        (status = cuda_prompt_product(f, PROMPT_K_DOWN, s->hidden, rows, l)))
        return status;
    return cuda_add_summand(f, lane, PROMPT_K_ADD, rows, l, 1);
}

/* Launches up to `layers` more of a prompt's part, from f->flight.layer on, with what comes before the
 * first and behind the last. */
static cairn_status cuda_run_prompt(forward_cuda_state *f, const step_part *part, int layers) {
    const step_lane *lane = &f->prompt;
    const int wanted = part->logit_count;
    int *at = &f->flight.layer;
    cairn_status status = CAIRN_OK;
    if (!*at) f->few = part->rows <= cuda_few_rows(f) && cuda_has_few(f, false);
    if (!*at && !(status = cuda_upload_rows(f, &f->prompt, part)) &&
        !(status = cuda_launch(f, lane, PROMPT_K_EMBED, part->rows, 1, 128, 0, 0, 0)))
        status = cuda_run_own(f, part->rows);
    for (int end = *at + layers; *at < end && *at < f->shape->layers && !status; (*at)++)
        status = cuda_run_prompt_layer(f, &part->form, part->rows, *at);
    if (status || *at < f->shape->layers) return status;
    f->flight.launched = true;
    if (!wanted) return CAIRN_OK;
    status = cuda_launch(f, lane, PROMPT_K_LAST, wanted, 1, 128, 0, 0, 0);
    if (!status)
        status = cuda_launch(f, lane, PROMPT_K_HEAD, f->blocks, (wanted + 7) / 8, f->warps * 32,
                             f->product_bytes, 0, 0);
    return status ? status : cuda_finish(f, wanted, false);
}
