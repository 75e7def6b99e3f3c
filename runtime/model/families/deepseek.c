/* deepseek: DeepSeek V3.2 ('deepseek32') and GLM 5 ('glm-dsa'). Attention is by latents (MLA), of
 * the tokens that an indexer chooses for each row (DSA); the ffn is swiglu. The reference is
 * transformers' DeepseekV32ForCausalLM and GlmMoeDsaForCausalLM, of which only layers with a dense
 * ffn run, each with an indexer of its own.
 *
 * Tensors and keys have llama.cpp's names: blk.N.attn_q_a, attn_q_a_norm, attn_q_b, attn_kv_a_mqa,
 * attn_kv_a_norm, attn_k_b [heads, 512, still] and attn_v_b [heads, value, 512] (kv_b_proj of the
 * reference, its keys turned over), attn_output; blk.N.indexer.attn_q_b, indexer.attn_k,
 * indexer.k_norm with its bias, indexer.proj. Rows are as they were trained: of the heads 2j and
 * 2j + 1 turn together, of the indexer's too in GLM, halves in DeepSeek. */

enum { DEEPSEEK_LATENT = 512, DEEPSEEK_TURNING = 64, DEEPSEEK_INDEX = 128 };

static cairn_status deepseek_heads(plan_reader *r) {
    model_shape *s = r->shape;
    model_latent *l = &s->latent;
    const int width = DEEPSEEK_LATENT + DEEPSEEK_TURNING;
    int length;
    cairn_status status;
    if ((status = plan_fixed(r, "attention.head_count_kv", 0, 1)) ||
        (status = plan_fixed(r, "attention.kv_lora_rank", 0, DEEPSEEK_LATENT)) ||
        (status = plan_fixed(r, "rope.dimension_count", 0, DEEPSEEK_TURNING)) ||
        (status = plan_fixed(r, "attention.indexer.key_length", 0, DEEPSEEK_INDEX)) ||
        (status = plan_fixed(r, "attention.key_length", width, width)) ||
        (status = plan_fixed(r, "attention.value_length", DEEPSEEK_LATENT, DEEPSEEK_LATENT)) ||
        (status = plan_refuse_number(r, "attention.layer_norm_epsilon", 1e-6f)) ||
        (status = plan_key(r, "attention.q_lora_rank", 0, &l->q_rank)) ||
        (status = plan_key(r, "attention.key_length_mla", 0, &length)) ||
        (status = plan_key(r, "attention.value_length_mla", 0, &l->value)) ||
        (status = plan_key(r, "attention.indexer.head_count", 0, &l->index_heads)) ||
        (status = plan_key(r, "attention.indexer.top_k", 0, &l->topk)))
        return status;
    s->kv_heads = 1;
    s->head_dim = width;
    l->still = length - DEEPSEEK_TURNING;
    if (s->heads <= 1 << 10 && l->still > 0 && length <= 1 << 12 && l->value <= 1 << 12 &&
        l->index_heads % 8 == 0 && l->index_heads <= 256)
        return CAIRN_OK;
    return base_fail(r->b, CAIRN_UNSUPPORTED, "%s: %d heads with keys of %d and values of %d, an "
                     "indexer of %d; up to 1024 heads, keys of 65 to 4096, values of up to 4096 "
                     "and an indexer of 8, 16 to 256 heads are supported", r->file->path, s->heads,
                     length, l->value, l->index_heads);
}

/* Where yarn stretches the rope, its factor of magnitude is in the scale alone, squared. */
static cairn_status deepseek_ropes(plan_reader *r, plan_pairing indexer) {
    model_plan *p = r->plan;
    plan_key_name full;
    const char *key = plan_name(r, "rope.scaling.yarn_log_multiplier", &full);
    float more;
    bool found;
    cairn_status status;
    if ((status = gguf_f32(r->b, r->file, key, &found, &r->log_more))) return status;
    if (!(r->log_more >= 0.0f && r->log_more < 1e3f))
        return base_fail(r->b, CAIRN_BAD_FILE, "%s: the key '%s' is %g; 0 to 1000 is expected",
                         r->file->path, key, (double)r->log_more);
    if ((status = plan_read_rope(r, PLAN_PAIRS_BESIDE, &p->ropes[0]))) return status;
    more = 1.0f + r->log_more * logf(r->stretch);
    if (more > 1.0f) p->ropes[0].magnitude = 1.0f;
    p->attention_scale = more * more / sqrtf((float)(r->shape->latent.still + DEEPSEEK_TURNING));
    p->ropes[1] = p->ropes[0];
    p->ropes[1].pairing = indexer;
    return CAIRN_OK;
}

/* What a layer may be in these families and has no code. */
static cairn_status deepseek_refuse(plan_reader *r, int layer) {
    char name[GGUF_NAME_BYTES];
    cairn_status status = plan_refuse_experts(r, layer);
    if (status) return status;
    snprintf(name, sizeof name, "blk.%d.indexer.attn_k.weight", layer);
    if (!gguf_tensor_find(r->file, name))
        return base_fail(r->b, CAIRN_UNSUPPORTED, "%s: the tensor '%s' is missing: a layer that "
                         "shares the choice of another's indexer is not supported", r->file->path, name);
    return CAIRN_OK;
}

static cairn_status deepseek_indexer(plan_reader *r, int layer) {
    const int64_t hidden = r->shape->hidden, heads = r->shape->latent.index_heads;
    const plan_layer_weight weights[] = {
        {"indexer.attn_q_b", PLAN_INDEX_Q, heads * DEEPSEEK_INDEX, r->shape->latent.q_rank},
        {"indexer.attn_k", PLAN_INDEX_K, DEEPSEEK_INDEX, hidden},
        {"indexer.proj", PLAN_INDEX_GATE, heads, hidden}};
    const plan_layer_part norms[] = {{"indexer.k_norm.weight", PLAN_INDEX_NORM, 1, DEEPSEEK_INDEX},
                                     {"indexer.k_norm.bias", PLAN_INDEX_BIAS, 1, DEEPSEEK_INDEX}};
    cairn_status status = plan_layer_weights(r, layer, weights, BASE_COUNT(weights));
    return status ? status : plan_layer_parts(r, layer, norms, BASE_COUNT(norms));
}

static cairn_status deepseek_layer(plan_reader *r, int layer) {
    const model_shape *s = r->shape;
    const model_latent *l = &s->latent;
    const int64_t hidden = s->hidden, heads = s->heads;
    const plan_layer_weight weights[] = {
        {"attn_q_a", PLAN_Q_DOWN, l->q_rank, hidden},
        {"attn_q_b", PLAN_Q_UP, heads * (l->still + DEEPSEEK_TURNING), l->q_rank},
        {"attn_kv_a_mqa", PLAN_LATENTS, DEEPSEEK_LATENT + DEEPSEEK_TURNING, hidden},
        {"attn_k_b", PLAN_TO_LATENT, heads * DEEPSEEK_LATENT, l->still},
        {"attn_v_b", PLAN_OF_LATENT, heads * l->value, DEEPSEEK_LATENT},
        {"attn_output", PLAN_O, hidden, heads * l->value}};
    const plan_layer_part norms[] = {{"attn_norm.weight", PLAN_MIXER_NORM, 1, hidden},
                                     {"attn_q_a_norm.weight", PLAN_Q_DOWN_NORM, 1, l->q_rank},
                                     {"attn_kv_a_norm.weight", PLAN_LATENT_NORM, 1,
                                      DEEPSEEK_LATENT}};
    cairn_status status = deepseek_refuse(r, layer);
    if (status || (status = plan_layer_weights(r, layer, weights, BASE_COUNT(weights))) ||
        (status = plan_layer_parts(r, layer, norms, BASE_COUNT(norms))) ||
        (status = deepseek_indexer(r, layer)))
        return status;
    r->plan->layers[layer].mixer = PLAN_LATENT;
    r->plan->layers[layer].state = r->shape->kv_layers++;
    return plan_gated_ffn(r, layer, PLAN_SWIGLU);
}

static cairn_status deepseek_read_as(plan_reader *r, plan_pairing indexer) {
    cairn_status status;
    if ((status = plan_read_sizes(r)) || (status = deepseek_heads(r)) ||
        (status = deepseek_ropes(r, indexer)))
        return status;
    return plan_read_layers(r, "output_norm.weight", deepseek_layer);
}

static cairn_status deepseek_read(plan_reader *r) {
    return deepseek_read_as(r, PLAN_PAIRS_HALVES);
}

static cairn_status deepseek_read_glm(plan_reader *r) {
    return deepseek_read_as(r, PLAN_PAIRS_BESIDE);
}
