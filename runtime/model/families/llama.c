/* llama: attention with rope over pairs of neighbours and a swiglu ffn in every layer. The
 * reference is transformers' LlamaForCausalLM; files have the rows of q and k permuted so that
 * pairs lie side by side. */

static cairn_status llama_refuse(plan_reader *r) {
    static const char *const tensors[] = {"rope_freqs.weight", "blk.0.attn_q.bias",
                                          "blk.0.attn_output.bias", "blk.0.ffn_gate_inp.weight"};
    const char *scaling;
    size_t bytes;
    bool found;
    cairn_status status = plan_refuse_tensors(r, tensors, BASE_COUNT(tensors),
                                              "scaled rope, biases and experts");
    if (status) return status;
    status = gguf_string(r->b, r->file, "llama.rope.scaling.type", &found, &scaling, &bytes);
    if (status || !found || (bytes == 4 && !memcmp(scaling, "none", 4))) return status;
    return base_fail(r->b, CAIRN_UNSUPPORTED, "%s: rope scaling '%.*s' is not supported",
                     r->file->path, bytes < 32 ? (int)bytes : 32, scaling);
}

static cairn_status llama_read(plan_reader *r) {
    model_shape *s = r->shape;
    cairn_status status;
    if ((status = llama_refuse(r)) || (status = plan_read_sizes(r)) ||
        (status = plan_key(r, "attention.head_count_kv", s->heads, &s->kv_heads)) ||
        (status = plan_read_heads(r)) ||
        (status = plan_read_rope(r, PLAN_PAIRS_BESIDE, &r->plan->ropes[0])) ||
        (status = plan_new_layers(r)) || (status = plan_ends(r, "output_norm.weight")))
        return status;
    for (int i = 0; i < s->layers && !status; i++) {
        status = plan_attention(r, i);
        if (!status) status = plan_gated_ffn(r, i, PLAN_SWIGLU);
    }
    return status;
}
