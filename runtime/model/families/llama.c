/* llama: attention with rope over pairs of neighbours and a swiglu ffn in every layer: Llama,
 * Mistral, SmolLM2 and others of their form. Llama 3.x stretches its rope by factors in a tensor;
 * a window, where a file has one, is every layer's; biases of q, k and v may be there. In SmolLM3
 * every fourth layer has no rope. The reference is transformers' LlamaForCausalLM,
 * MistralForCausalLM and SmolLM3ForCausalLM; GGUF files have the rows of q and k permuted so that
 * pairs lie side by side, folders have them as they were trained, half a head apart. */

static cairn_status llama_layer(plan_reader *r, int layer) {
    char bias[GGUF_NAME_BYTES];
    cairn_status status = plan_attention(r, layer);
    snprintf(bias, sizeof bias, "blk.%d.attn_q.bias", layer);
    if (!status && gguf_tensor_find(r->file, bias)) status = plan_biases(r, layer);
    if (r->period && (layer + 1) % r->period == 0) r->plan->layers[layer].rope = -1;
    r->plan->layers[layer].window = r->window;
    return status ? status : plan_gated_ffn(r, layer, PLAN_SWIGLU);
}

static cairn_status llama_read(plan_reader *r) {
    bool found, halves = false;
    cairn_status status;
    if ((status = gguf_bool(r->b, r->file, GGUF_HALVES, &found, &halves)) ||
        (status = plan_read_shape(r)) || (status = plan_read_window(r)) ||
        (status = plan_read_rope(r, halves ? PLAN_PAIRS_HALVES : PLAN_PAIRS_BESIDE,
                                 &r->plan->ropes[0])))
        return status;
    return plan_read_layers(r, "output_norm.weight", llama_layer);
}

static cairn_status llama_read_smollm3(plan_reader *r) {
    r->period = 4;
    return llama_read(r);
}
