/* qwen: Qwen 2 and 2.5 have biases on q, k and v; Qwen 3 has none, and a norm of each head of q and
 * k before it turns, whose size is apart from hidden / heads. Attention and a swiglu ffn in every
 * layer, in one form of Qwen 3 of experts; heads turn by halves. The references are transformers'
 * Qwen2ForCausalLM, Qwen3ForCausalLM and Qwen3MoeForCausalLM. */

static cairn_status qwen_experts(plan_reader *r, int layer) {
    const model_shape *s = r->shape;
    const int64_t hidden = s->hidden, experts = s->experts, ffn = s->ffn;
    const plan_layer_weight weights[] = {{"ffn_gate_inp", PLAN_ROUTER, experts, hidden},
                                         {"ffn_gate_exps", PLAN_GATE, experts * ffn, hidden},
                                         {"ffn_up_exps", PLAN_UP, experts * ffn, hidden},
                                         {"ffn_down_exps", PLAN_DOWN, experts * hidden, ffn}};
    const plan_layer_part norm = {"ffn_norm.weight", PLAN_FFN_NORM, 1, hidden};
    cairn_status status = plan_layer_weights(r, layer, weights, BASE_COUNT(weights));
    return status ? status : plan_layer_parts(r, layer, &norm, 1);
}

static cairn_status qwen_biased_layer(plan_reader *r, int layer) {
    cairn_status status;
    if ((status = plan_attention(r, layer)) || (status = plan_biases(r, layer))) return status;
    return plan_gated_ffn(r, layer, PLAN_SWIGLU);
}

static cairn_status qwen_normed_layer(plan_reader *r, int layer) {
    cairn_status status;
    if ((status = plan_attention(r, layer)) || (status = plan_head_norms(r, layer))) return status;
    return r->shape->experts ? qwen_experts(r, layer) : plan_gated_ffn(r, layer, PLAN_SWIGLU);
}

static cairn_status qwen_read(plan_reader *r, cairn_status (*layer)(plan_reader *r, int layer)) {
    cairn_status status;
    if ((status = plan_read_shape(r)) ||
        (status = plan_read_rope(r, PLAN_PAIRS_HALVES, &r->plan->ropes[0])))
        return status;
    return plan_read_layers(r, "output_norm.weight", layer);
}

static cairn_status qwen_read_biased(plan_reader *r) { return qwen_read(r, qwen_biased_layer); }
static cairn_status qwen_read_normed(plan_reader *r) { return qwen_read(r, qwen_normed_layer); }

static cairn_status qwen_read_experts(plan_reader *r) {
    model_shape *s = r->shape;
    cairn_status status;
    if ((status = plan_key(r, "expert_count", 0, &s->experts)) ||
        (status = plan_key(r, "expert_used_count", 0, &s->experts_used)) ||
        (status = plan_fixed(r, "expert_gating_func", 1, 1)) || /* softmax */
        (status = plan_refuse_number(r, "expert_weights_scale", 1.0f)) ||
        (status = plan_true(r, "expert_weights_norm")))
        return status;
    if (s->experts > 4096 || s->experts_used > s->experts)
        return base_fail(r->b, CAIRN_UNSUPPORTED, "%s: %d of %d experts take a row; up to all of "
                         "4096 are supported", r->file->path, s->experts_used, s->experts);
    return qwen_read(r, qwen_normed_layer);
}
