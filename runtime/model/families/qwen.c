/* qwen: Qwen 2 and 2.5 have biases on q, k and v; Qwen 3 has none, and a norm of each head of q and
 * k before it turns, whose size is apart from hidden / heads. Attention and a swiglu ffn in every
 * layer, heads turn by halves. The references are transformers' Qwen2ForCausalLM and
 * Qwen3ForCausalLM. */

static cairn_status qwen_sizes(plan_reader *r) {
    model_shape *s = r->shape;
    cairn_status status;
    if ((status = plan_read_sizes(r)) ||
        (status = plan_key(r, "attention.head_count_kv", s->heads, &s->kv_heads)) ||
        (status = plan_read_heads(r)))
        return status;
    return plan_read_rope(r, PLAN_PAIRS_HALVES, &r->plan->ropes[0]);
}

/* own: what a layer's attention has besides. */
static cairn_status qwen_read(plan_reader *r, cairn_status (*own)(plan_reader *r, int layer)) {
    cairn_status status;
    if ((status = qwen_sizes(r)) || (status = plan_new_layers(r)) ||
        (status = plan_ends(r, "output_norm.weight")))
        return status;
    for (int i = 0; i < r->shape->layers && !status; i++)
        if (!(status = plan_attention(r, i)) && !(status = own(r, i)))
            status = plan_gated_ffn(r, i, PLAN_SWIGLU);
    return status;
}

static cairn_status qwen_read_biased(plan_reader *r) { return qwen_read(r, plan_biases); }
static cairn_status qwen_read_normed(plan_reader *r) { return qwen_read(r, plan_head_norms); }
