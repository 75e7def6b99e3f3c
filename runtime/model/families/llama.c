/* llama: attention with rope over pairs of neighbours and a swiglu ffn in every layer: Llama,
 * Mistral, SmolLM2 and others of their form. Llama 3.x stretches its rope by factors in a tensor;
 * a window, where a file has one, is every layer's; biases of q, k and v may be there. In SmolLM3
 * every fourth layer has no rope. The reference is transformers' LlamaForCausalLM,
 * MistralForCausalLM and SmolLM3ForCausalLM; files have the rows of q and k permuted so that pairs
 * lie side by side. */

static cairn_status llama_sizes(plan_reader *r, int *window) {
    model_shape *s = r->shape;
    cairn_status status;
    if ((status = plan_read_sizes(r)) ||
        (status = plan_key(r, "attention.head_count_kv", s->heads, &s->kv_heads)) ||
        (status = plan_read_heads(r)) || (status = plan_read_window(r, window)))
        return status;
    return plan_read_rope(r, PLAN_PAIRS_BESIDE, &r->plan->ropes[0]);
}

static cairn_status llama_layer(plan_reader *r, int layer) {
    char bias[GGUF_NAME_BYTES];
    cairn_status status = plan_attention(r, layer);
    snprintf(bias, sizeof bias, "blk.%d.attn_q.bias", layer);
    if (!status && gguf_tensor_find(r->file, bias)) status = plan_biases(r, layer);
    return status ? status : plan_gated_ffn(r, layer, PLAN_SWIGLU);
}

/* still: every so many layers the last does not turn; 0: all turn. */
static cairn_status llama_read_all(plan_reader *r, int still) {
    int window;
    cairn_status status;
    if ((status = llama_sizes(r, &window)) || (status = plan_new_layers(r)) ||
        (status = plan_ends(r, "output_norm.weight")))
        return status;
    for (int i = 0; i < r->shape->layers && !status; i++) {
        status = llama_layer(r, i);
        r->plan->layers[i].window = window;
        if (still && (i + 1) % still == 0) r->plan->layers[i].rope = -1;
    }
    return status;
}

static cairn_status llama_read(plan_reader *r) { return llama_read_all(r, 0); }
static cairn_status llama_read_smollm3(plan_reader *r) { return llama_read_all(r, 4); }
