/* lfm2: short convolutions in most layers, attention with norms of queries and keys in some, a
 * swiglu ffn in all. The reference is transformers' Lfm2ForCausalLM. A layer without KV heads is a
 * convolution; heads turn by halves; the norm before the head is named for the embedding. */

/* KV heads by layer: those that are not 0 are the same number. */
static cairn_status lfm2_kv_heads(plan_reader *r, gguf_list *list) {
    gguf_list all;
    plan_key_name key;
    cairn_status status = gguf_array(r->b, r->file, plan_name(r, "attention.head_count_kv", &key), NULL,
                                     GGUF_I32, list);
    if (status) return status;
    if (list->count != (uint64_t)r->shape->layers)
        return base_fail(r->b, CAIRN_BAD_FILE, "%s: the key 'lfm2.attention.head_count_kv' has "
                         "%llu numbers for %d layers", r->file->path,
                         (unsigned long long)list->count, r->shape->layers);
    all = *list;
    for (int i = 0; i < r->shape->layers; i++) {
        uint32_t heads = gguf_next_u32(&all);
        if (!heads) continue;
        if (heads > 1 << 16 || (r->shape->kv_heads && heads != (uint32_t)r->shape->kv_heads))
            return base_fail(r->b, CAIRN_UNSUPPORTED, "%s: layer %d has %u KV heads; one number in "
                             "all layers with attention is supported", r->file->path, i, heads);
        r->shape->kv_heads = (int)heads;
    }
    if (r->shape->kv_heads) return CAIRN_OK;
    return base_fail(r->b, CAIRN_UNSUPPORTED, "%s: no layer has attention", r->file->path);
}

static cairn_status lfm2_attention(plan_reader *r, int layer) {
    cairn_status status = plan_attention(r, layer);
    return status ? status : plan_head_norms(r, layer);
}

static cairn_status lfm2_conv(plan_reader *r, int layer) {
    const int64_t hidden = r->shape->hidden;
    const plan_layer_weight weights[] = {{"shortconv.in_proj", PLAN_CONV_IN, 3 * hidden, hidden},
                                         {"shortconv.out_proj", PLAN_CONV_OUT, hidden, hidden}};
    const plan_layer_part parts[] = {
        {"shortconv.conv.weight", PLAN_CONV_TAPS, hidden, r->shape->conv_taps},
        {"attn_norm.weight", PLAN_MIXER_NORM, 1, hidden}};
    cairn_status status = plan_layer_weights(r, layer, weights, BASE_COUNT(weights));
    if (status) return status;
    r->plan->layers[layer].mixer = PLAN_SHORT_CONV;
    r->plan->layers[layer].state = r->shape->conv_layers++;
    return plan_layer_parts(r, layer, parts, BASE_COUNT(parts));
}

static cairn_status lfm2_sizes(plan_reader *r) {
    model_shape *s = r->shape;
    cairn_status status;
    if ((status = plan_read_sizes(r)) || (status = lfm2_kv_heads(r, &r->by_layer)) ||
        (status = plan_read_heads(r)) || (status = plan_key(r, "shortconv.l_cache", 0,
                                                            &s->conv_taps)))
        return status;
    if (s->conv_taps < 2 || s->conv_taps > 8)
        return base_fail(r->b, CAIRN_UNSUPPORTED,
                         "%s: convolutions of %d taps; 2 to 8 are supported", r->file->path,
                         s->conv_taps);
    return plan_read_rope(r, PLAN_PAIRS_HALVES, &r->plan->ropes[0]);
}

static cairn_status lfm2_layer(plan_reader *r, int layer) {
    cairn_status status = gguf_next_u32(&r->by_layer) ? lfm2_attention(r, layer)
                                                      : lfm2_conv(r, layer);
    return status ? status : plan_gated_ffn(r, layer, PLAN_SWIGLU);
}

static cairn_status lfm2_read(plan_reader *r) {
    cairn_status status = lfm2_sizes(r);
    return status ? status : plan_read_layers(r, "token_embd_norm.weight", lfm2_layer);
}
