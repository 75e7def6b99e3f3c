/* phi: Phi 3, 3.5 and 4 mini. One tensor holds q, k and v, one the gate and the up projection; part
 * of a head may turn, by halves; models for long contexts have factors of frequencies for short and
 * for long ones. Every layer sees the window, where there is one. The reference is transformers'
 * Phi3ForCausalLM. */

static cairn_status phi_sizes(plan_reader *r, int *window) {
    model_shape *s = r->shape;
    cairn_status status;
    if ((status = plan_read_sizes(r)) ||
        (status = plan_key(r, "attention.head_count_kv", s->heads, &s->kv_heads)) ||
        (status = plan_read_heads(r)) || (status = plan_read_window(r, window)))
        return status;
    return plan_read_rope(r, PLAN_PAIRS_HALVES, &r->plan->ropes[0]);
}

static cairn_status phi_layer(plan_reader *r, int layer) {
    const model_shape *s = r->shape;
    const int64_t hidden = s->hidden, kv = (int64_t)s->kv_heads * s->head_dim;
    const plan_layer_weight qkv[] = {{NULL, PLAN_Q, (int64_t)s->heads * s->head_dim, hidden},
                                     {NULL, PLAN_K, kv, hidden}, {NULL, PLAN_V, kv, hidden}};
    const plan_layer_weight both[] = {{NULL, PLAN_GATE, s->ffn, hidden},
                                      {NULL, PLAN_UP, s->ffn, hidden}};
    cairn_status status;
    if ((status = plan_layer_fused(r, layer, "attn_qkv", qkv, BASE_COUNT(qkv))) ||
        (status = plan_attention_out(r, layer)) ||
        (status = plan_layer_fused(r, layer, "ffn_up", both, BASE_COUNT(both))))
        return status;
    return plan_ffn_out(r, layer, PLAN_SWIGLU);
}

static cairn_status phi_read(plan_reader *r) {
    int window;
    cairn_status status;
    if ((status = phi_sizes(r, &window)) || (status = plan_new_layers(r)) ||
        (status = plan_ends(r, "output_norm.weight")))
        return status;
    for (int i = 0; i < r->shape->layers && !status; i++) {
        status = phi_layer(r, i);
        r->plan->layers[i].window = window;
    }
    return status;
}
