/* gemma: Gemma 3. The embedding is scaled by the root of its width, norms stand before and after
 * attention and ffn, heads of q and k are normed, the ffn is geglu. Five of six layers see a window
 * and turn by a rope of their own, the sixth sees all and turns by the file's; heads turn by halves.
 * The reference is transformers' Gemma3ForCausalLM; a file's norms are what is multiplied by. */

/* The size that queries are divided by the root of; the largest model takes hidden / heads. */
static cairn_status gemma_scale(plan_reader *r) {
    const model_shape *s = r->shape;
    const int size = s->layers == 62 ? s->hidden / s->heads : s->head_dim;
    return plan_number(r, "attention.scale", 1.0f / sqrtf((float)size), &r->plan->attention_scale);
}

static cairn_status gemma_ropes(plan_reader *r) {
    float turns;
    cairn_status status;
    if ((status = plan_read_rope(r, PLAN_PAIRS_HALVES, &r->plan->ropes[0])) ||
        (status = plan_number(r, "rope.freq_base_swa", 10000.0f, &turns)))
        return status;
    plan_plain_rope(&r->plan->ropes[1], PLAN_PAIRS_HALVES, r->shape->head_dim, (double)turns);
    return CAIRN_OK;
}

static cairn_status gemma_sizes(plan_reader *r, int *window, int *period) {
    model_shape *s = r->shape;
    cairn_status status;
    if ((status = plan_read_sizes(r)) ||
        (status = plan_key(r, "attention.head_count_kv", s->heads, &s->kv_heads)) ||
        (status = plan_read_heads(r)) || (status = gemma_scale(r)) || (status = gemma_ropes(r)) ||
        (status = plan_key(r, "attention.sliding_window", 0, window)) ||
        (status = plan_key(r, "attention.sliding_window_pattern", 6, period)) ||
        (status = plan_refuse_number(r, "attn_logit_softcapping", 0.0f)))
        return status;
    r->plan->embed_scale = sqrtf((float)s->hidden);
    return plan_refuse_number(r, "final_logit_softcapping", 0.0f);
}

static cairn_status gemma_layer(plan_reader *r, int layer) {
    const int64_t hidden = r->shape->hidden;
    const plan_layer_part norms[] = {{"post_attention_norm.weight", PLAN_MIXER_POST, 1, hidden},
                                     {"post_ffw_norm.weight", PLAN_FFN_POST, 1, hidden}};
    cairn_status status;
    if ((status = plan_attention(r, layer)) || (status = plan_head_norms(r, layer)) ||
        (status = plan_gated_ffn(r, layer, PLAN_GEGLU)))
        return status;
    return plan_layer_parts(r, layer, norms, BASE_COUNT(norms));
}

static cairn_status gemma_read(plan_reader *r) {
    int window, period;
    cairn_status status;
    if ((status = gemma_sizes(r, &window, &period)) || (status = plan_new_layers(r)) ||
        (status = plan_ends(r, "output_norm.weight")))
        return status;
    for (int i = 0; i < r->shape->layers && !status; i++) {
        plan_layer *layer = &r->plan->layers[i];
        status = gemma_layer(r, i);
        if ((i + 1) % period == 0) continue;
        layer->rope = 1;
        layer->window = window < r->shape->context ? window : 0;
    }
    return status;
}
