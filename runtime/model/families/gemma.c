/* gemma: Gemma 3. The embedding is scaled by the root of its width, norms stand before and after
 * attention and ffn, heads of q and k are normed, the ffn is geglu. Five of six layers see a window
 * and turn by a rope of their own, the sixth sees all and turns by the file's; heads turn by halves.
 * The reference is transformers' Gemma3ForCausalLM; a GGUF file's norms are what is multiplied by, a
 * folder's are 1 less. */

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

static cairn_status gemma_sizes(plan_reader *r) {
    bool found, from_one = false;
    cairn_status status;
    if ((status = gguf_bool(r->b, r->file, GGUF_NORMS_FROM_ONE, &found, &from_one)) ||
        (status = plan_read_shape(r)) || (status = gemma_scale(r)) || (status = gemma_ropes(r)) ||
        (status = plan_key(r, "attention.sliding_window", 0, &r->window)) ||
        (status = plan_key(r, "attention.sliding_window_pattern", 6, &r->period)) ||
        (status = plan_refuse_number(r, "attn_logit_softcapping", 0.0f)))
        return status;
    if (r->window >= r->shape->context) r->window = 0; /* it hides nothing */
    r->norm_more = from_one ? 1.0f : 0.0f;
    r->plan->embed_scale = sqrtf((float)r->shape->hidden);
    return plan_refuse_number(r, "final_logit_softcapping", 0.0f);
}

static cairn_status gemma_layer(plan_reader *r, int layer) {
    const int64_t hidden = r->shape->hidden;
    const plan_layer_part norms[] = {{"post_attention_norm.weight", PLAN_MIXER_POST, 1, hidden},
                                     {"post_ffw_norm.weight", PLAN_FFN_POST, 1, hidden}};
    cairn_status status;
    if ((layer + 1) % r->period) {
        r->plan->layers[layer].rope = 1;
        r->plan->layers[layer].window = r->window;
    }
    if ((status = plan_attention(r, layer)) || (status = plan_head_norms(r, layer)) ||
        (status = plan_gated_ffn(r, layer, PLAN_GEGLU)))
        return status;
    return plan_layer_parts(r, layer, norms, BASE_COUNT(norms));
}

static cairn_status gemma_read(plan_reader *r) {
    cairn_status status = gemma_sizes(r);
    return status ? status : plan_read_layers(r, "output_norm.weight", gemma_layer);
}
