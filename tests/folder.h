/* folder: writes a family of tests/family.h as the folder that transformers would: config.json,
 * tokenizer.json, model.safetensors or shards of it with their index. Names and layouts are
 * transformers', written down here by themselves.
 *
 *     folder_write(&f, "build/x", 2);     in two shards; 1: one file, 0: one without padding; -1 and
 *                                         -2: PyTorch's file, under either of its names
 *
 * After family.h, whose weights must be F32, F16 or BF16. */
#ifndef FOLDER_H
#define FOLDER_H

typedef struct folder_text { char *data; size_t size; } folder_text;

TAP_PRINTF(2)
static void folder_print(folder_text *t, const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    int bytes = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    t->data = (char *)realloc(t->data, t->size + (size_t)bytes + 1);
    memcpy(t->data + t->size, text, (size_t)bytes + 1);
    t->size += (size_t)bytes;
}

static bool folder_save(const char *folder, const char *name, const void *data, size_t bytes) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    bool fine = file && fwrite(data, 1, bytes, file) == bytes;
    if (file) fclose(file);
    return fine;
}

/* ---- config.json --------------------------------------------------------------------------------- */

static double folder_key(const family *f, const char *name, double otherwise) {
    for (int i = 0; i < f->key_count; i++)
        if (!strcmp(f->keys[i].name, name)) return f->keys[i].number;
    return otherwise;
}

static const char *folder_scaling(const family *f) {
    for (int i = 0; i < f->key_count; i++)
        if (!strcmp(f->keys[i].name, "rope.scaling.type")) return f->keys[i].text;
    if (family_find(f, "rope_freqs.weight")) return "llama3";
    return family_find(f, "rope_factors_long.weight") ? "longrope" : NULL;
}

static void folder_vector(const family *f, const char *key, const char *name, folder_text *to) {
    const family_tensor *t = family_find(f, name);
    folder_print(to, ", \"%s\": [", key);
    for (int i = 0; i < t->columns; i++) folder_print(to, "%s%.9g", i ? ", " : "", t->values[i]);
    folder_print(to, "]");
}

static void folder_put_scaling(const family *f, folder_text *to) {
    const char *kind = folder_scaling(f);
    const double original = folder_key(f, "rope.scaling.original_context_length", 0);
    if (!kind) return;
    folder_print(to, ", \"rope_scaling\": {\"%s\": \"%s\"", f->fused ? "type" : "rope_type", kind);
    if (!strcmp(kind, "llama3"))
        folder_print(to, ", \"factor\": 8.0, \"low_freq_factor\": 1, \"high_freq_factor\": 4e0, "
                         "\"original_max_position_embeddings\": 32");
    else if (!strcmp(kind, "longrope")) {
        folder_vector(f, "long_factor", "rope_factors_long.weight", to);
        folder_vector(f, "short_factor", "rope_factors_short.weight", to);
    } else folder_print(to, ", \"factor\": %g", folder_key(f, "rope.scaling.factor", 0));
    if (!strcmp(kind, "yarn"))
        folder_print(to, ", \"original_max_position_embeddings\": %g", original);
    folder_print(to, "}");
    if (!strcmp(kind, "longrope"))
        folder_print(to, ", \"original_max_position_embeddings\": %g", original);
}

/* The model_type, as the architecture and its keys tell it. */
static const char *folder_type(const family *f) {
    if (!strcmp(f->architecture, "qwen3moe")) return "qwen3_moe";
    if (!strcmp(f->architecture, "gemma3")) return "gemma3_text";
    return !strcmp(f->architecture, "llama") && f->window ? "mistral" : f->architecture;
}

static void folder_put_kinds(const family *f, folder_text *to) {
    folder_print(to, ", \"layer_types\": [");
    for (int l = 0; l < f->layers; l++)
        folder_print(to, "%s\"%s\"", l ? ", " : "",
                     f->taps ? (f->conv[l] ? "conv" : "full_attention")
                             : (l + 1) % f->period ? "sliding_attention" : "full_attention");
    folder_print(to, "]");
}

static folder_text folder_config(const family *f) {
    folder_text t = {0};
    const char *type = folder_type(f);
    const double scale = folder_key(f, "attention.scale", 1 / sqrt(f->dim));
    folder_print(&t, "{\"model_type\": \"%s\", \"num_hidden_layers\": %d, \"hidden_size\": %d, "
                 "\"vocab_size\": %d, \"max_position_embeddings\": %d, \"num_attention_heads\": %d, "
                 "\"num_key_value_heads\": %d, \"%s\": 1e-05, \"rope_theta\": %.1f, ", type,
                 f->layers, f->hidden, f->vocab, f->context, f->heads, f->kv_heads,
                 f->taps ? "norm_eps" : "rms_norm_eps", folder_key(f, "rope.freq_base", 10000));
    folder_print(&t, "\"tie_word_embeddings\": %s, \"torch_dtype\": \"float32\", "
                 "\"eos_token_id\": [0], \"bos_token_id\": null, \"pad_token_id\": null, "
                 "\"intermediate_size\": %d", f->own_head ? "false" : "true", f->ffn);
    if (f->dim * f->heads != f->hidden || f->head_norms || f->window)
        if (!f->fused && !f->taps) folder_print(&t, ", \"head_dim\": %d", f->dim);
    if (f->experts)
        folder_print(&t, ", \"num_experts\": %d, \"num_experts_per_tok\": %d, "
                     "\"moe_intermediate_size\": %d, \"norm_topk_prob\": true, "
                     "\"decoder_sparse_step\": 1, \"mlp_only_layers\": []", f->experts, f->used,
                     f->ffn);
    if (f->window) folder_print(&t, ", \"sliding_window\": %d", f->window);
    else if (!f->taps) folder_print(&t, ", \"use_sliding_window\": false");
    if (f->period)
        folder_print(&t, ", \"query_pre_attn_scalar\": %g, \"rope_local_base_freq\": %.1f, "
                     "\"hidden_activation\": \"gelu_pytorch_tanh\", \"attn_logit_softcapping\": null, "
                     "\"architectures\": [\"Gemma3ForCausalLM\"]", 1 / (scale * scale),
                     folder_key(f, "rope.freq_base_swa", 10000));
    else folder_print(&t, ", \"hidden_act\": \"silu\"");
    if (f->period || f->taps) folder_put_kinds(f, &t);
    if (f->taps)
        folder_print(&t, ", \"conv_L_cache\": %d, \"conv_bias\": false, \"block_ff_dim\": %d, "
                     "\"block_auto_adjust_ff_dim\": false", f->taps, f->ffn);
    if (f->rotated) folder_print(&t, ", \"partial_rotary_factor\": %g", (double)f->rotated / f->dim);
    folder_put_scaling(f, &t);
    folder_print(&t, "}");
    return t;
}

/* ---- tokenizer.json ------------------------------------------------------------------------------ */

/* The tokens of family_write. */
static folder_text folder_tokenizer(const family *f) {
    folder_text t = {0};
    folder_print(&t, "{\"version\": \"1.0\", \"added_tokens\": [{\"id\": 0, \"content\": \"!\", "
                 "\"special\": true}], \"normalizer\": null, \"pre_tokenizer\": {\"type\": "
                 "\"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": true}, "
                 "\"post_processor\": null, \"decoder\": {\"type\": \"ByteLevel\"}, \"model\": "
                 "{\"type\": \"BPE\", \"vocab\": {");
    for (int i = 0; i < f->vocab; i++) {
        char name[3] = {(char)('!' + i), 0, 0};
        if (i >= 94) name[0] = (char)('!' + (i - 94) / 94), name[1] = (char)('!' + (i - 94) % 94);
        folder_print(&t, "%s\"", i ? ", " : "");
        for (int k = 0; name[k]; k++)
            folder_print(&t, name[k] == '/' ? "\\u00%02x" : name[k] == '"' || name[k] == '\\' ? "\\%c"
                                                                                      : "%c", name[k]);
        folder_print(&t, "\": %d", i);
    }
    folder_print(&t, "}, \"merges\": []}}");
    return t;
}

/* ---- tensors ------------------------------------------------------------------------------------- */

typedef struct folder_tensor {
    char name[96];
    const char *dtype;
    int64_t shape[3];
    int ndim;
    uint8_t *data; /* of its own */
    size_t bytes;
} folder_tensor;

/* A layer's name in transformers. */
static const char *folder_name(const family *f, const char *name) {
    static const char *const names[][2] = {
        {"attn_norm", "input_layernorm"}, {"ffn_norm", "post_attention_layernorm"},
        {"attn_q", "self_attn.q_proj"}, {"attn_k", "self_attn.k_proj"}, {"attn_v", "self_attn.v_proj"},
        {"attn_output", "self_attn.o_proj"}, {"attn_q_norm", "self_attn.q_norm"},
        {"attn_k_norm", "self_attn.k_norm"}, {"attn_qkv", "self_attn.qkv_proj"},
        {"ffn_gate", "mlp.gate_proj"}, {"ffn_up", "mlp.up_proj"}, {"ffn_down", "mlp.down_proj"},
        {"ffn_gate_inp", "mlp.gate"}, {"post_ffw_norm", "post_feedforward_layernorm"},
        {"post_attention_norm", "post_attention_layernorm"}};
    static const char *const conv[][2] = {
        {"attn_norm", "operator_norm"}, {"ffn_norm", "ffn_norm"}, {"attn_output", "self_attn.out_proj"},
        {"attn_q_norm", "self_attn.q_layernorm"}, {"attn_k_norm", "self_attn.k_layernorm"},
        {"ffn_gate", "feed_forward.w1"}, {"ffn_up", "feed_forward.w3"},
        {"ffn_down", "feed_forward.w2"}, {"shortconv.in_proj", "conv.in_proj"},
        {"shortconv.out_proj", "conv.out_proj"}, {"shortconv.conv", "conv.conv"}};
    for (size_t i = 0; f->taps && i < BASE_COUNT(conv); i++)
        if (!strcmp(conv[i][0], name)) return conv[i][1];
    if (f->post_norms && !strcmp(name, "ffn_norm")) return "pre_feedforward_layernorm";
    if (f->fused && !strcmp(name, "ffn_up")) return "mlp.gate_up_proj";
    for (size_t i = 0; i < BASE_COUNT(names); i++)
        if (!strcmp(names[i][0], name)) return names[i][1];
    return "?";
}

/* Rows of pairs side by side into rows of halves. */
static void folder_part_halves(folder_tensor *t, int heads, int dim) {
    const size_t row = t->bytes / (size_t)(heads * dim);
    uint8_t *old = t->data;
    t->data = (uint8_t *)malloc(t->bytes);
    for (int h = 0; h < heads; h++)
        for (int i = 0; i < dim; i++)
            memcpy(t->data + (size_t)(h * dim + i % 2 * (dim / 2) + i / 2) * row,
                   old + (size_t)(h * dim + i) * row, row);
    free(old);
}

static void folder_less_one(folder_tensor *t) {
    for (size_t i = 0; i < t->bytes; i += 4) {
        float value;
        memcpy(&value, t->data + i, 4);
        value -= 1.0f;
        memcpy(t->data + i, &value, 4);
    }
}

/* The tensors as transformers has them; returns how many. */
static int folder_tensors(const family *f, folder_tensor *out) {
    int count = 0;
    for (int i = 0; i < f->count; i++) {
        const family_tensor *t = &f->tensors[i];
        const bool norm = strstr(t->name, "norm") != NULL, taps = strstr(t->name, "shortconv.conv.");
        const int parts = t->parts > 1 ? t->parts : 1;
        char name[64] = "", tail[16] = "";
        int layer;
        if (!strncmp(t->name, "rope_", 5)) continue;
        for (int p = 0; p < parts; p++) {
            folder_tensor *o = &out[count++];
            memset(o, 0, sizeof *o);
            o->dtype = t->type == BLOCK_F32 ? "F32" : t->type == BLOCK_F16 ? "F16" : "BF16";
            o->bytes = t->bytes / (size_t)parts;
            o->data = (uint8_t *)malloc(o->bytes);
            memcpy(o->data, t->data + (size_t)p * o->bytes, o->bytes);
            o->shape[0] = (t->rows ? t->rows : t->columns) / parts, o->shape[1] = t->columns;
            o->ndim = t->rows ? 2 : 1;
            if (taps) o->shape[1] = 1, o->shape[2] = t->columns, o->ndim = 3;
            if (f->post_norms && norm) folder_less_one(o);
            if (sscanf(t->name, "blk.%d.%60s", &layer, name) != 2) {
                snprintf(o->name, sizeof o->name, "%s",
                         !strcmp(t->name, "token_embd.weight") ? "model.embed_tokens.weight"
                         : !strcmp(t->name, "output.weight") ? "lm_head.weight"
                         : f->taps ? "model.embedding_norm.weight" : "model.norm.weight");
                continue;
            }
            snprintf(tail, sizeof tail, "%s", strrchr(name, '.'));
            *strrchr(name, '.') = '\0';
            if (parts > 1) {
                *strrchr(name, '_') = '\0'; /* ffn_gate_exps */
                snprintf(o->name, sizeof o->name, "model.layers.%d.mlp.experts.%d.%s_proj.weight",
                         layer, p, name + 4);
                continue;
            }
            if (!f->halves && !f->taps && !strcmp(name, "attn_q")) folder_part_halves(o, f->heads, f->dim);
            if (!f->halves && !f->taps && !strcmp(name, "attn_k"))
                folder_part_halves(o, f->kv_heads, f->dim);
            snprintf(o->name, sizeof o->name, "model.layers.%d.%s%s", layer, folder_name(f, name), tail);
        }
    }
    return count;
}

/* Tensors [count] as one safetensors file; `pad`: the data begin at a multiple of 8. */
static gguf_build folder_safetensors(const folder_tensor *t, int count, bool pad) {
    gguf_build out = {0};
    folder_text head = {0};
    uint64_t at = 0;
    folder_print(&head, "{\"__metadata__\": {\"format\": \"pt\"}");
    for (int i = 0; i < count; i++, at += t[i - 1].bytes) {
        folder_print(&head, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", t[i].name, t[i].dtype);
        for (int d = 0; d < t[i].ndim; d++)
            folder_print(&head, "%s%lld", d ? "," : "", (long long)t[i].shape[d]);
        folder_print(&head, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
                     (unsigned long long)(at + t[i].bytes));
    }
    folder_print(&head, "}");
    while (head.size % 8 != (pad ? 0 : 5)) folder_print(&head, " ");
    build_number(&out, head.size, 8);
    build_bytes(&out, head.data, head.size);
    for (int i = 0; i < count; i++) build_bytes(&out, t[i].data, t[i].bytes);
    free(head.data);
    return out;
}

/* ---- a state dict of PyTorch --------------------------------------------------------------------- */

static void folder_pickle_text(gguf_build *out, const char *text) {
    build_bytes(out, "X", 1), build_number(out, strlen(text), 4), build_bytes(out, text, strlen(text));
}

static void folder_pickle_dims(gguf_build *out, const int64_t *dims, int count) {
    build_bytes(out, "(", 1);
    for (int i = 0; i < count; i++) {
        build_bytes(out, dims[i] < 256 ? "K" : dims[i] < 65536 ? "M" : "J", 1);
        build_number(out, (uint64_t)dims[i], dims[i] < 256 ? 1 : dims[i] < 65536 ? 2 : 4);
    }
    build_bytes(out, "t", 1);
}

/* What torch.save writes of an OrderedDict, but for its numbers for values that are said again. */
static gguf_build folder_pickle(const folder_tensor *t, int count) {
    static const char ordered[] = "ccollections\nOrderedDict\n", begin[] = "\x80\2";
    static const char made[] = "ctorch._utils\n_rebuild_tensor_v2\n";
    gguf_build out = {0};
    build_bytes(&out, begin, 2), build_bytes(&out, ordered, sizeof ordered - 1);
    build_bytes(&out, "q\0)Rq\1(", 7);
    for (int i = 0; i < count; i++) {
        const char *kind = !strcmp(t[i].dtype, "F32") ? "ctorch\nFloatStorage\n"
                           : !strcmp(t[i].dtype, "F16") ? "ctorch\nHalfStorage\n"
                                                        : "ctorch\nBFloat16Storage\n";
        int64_t strides[3] = {1, 1, 1};
        char key[16];
        snprintf(key, sizeof key, "%d", i);
        for (int d = t[i].ndim - 2; d >= 0; d--) strides[d] = strides[d + 1] * t[i].shape[d + 1];
        folder_pickle_text(&out, t[i].name);
        build_bytes(&out, made, sizeof made - 1), build_bytes(&out, "((", 2);
        folder_pickle_text(&out, "storage"), build_bytes(&out, kind, strlen(kind));
        folder_pickle_text(&out, key), folder_pickle_text(&out, "cpu");
        build_bytes(&out, "J", 1), build_number(&out, t[i].bytes, 4), build_bytes(&out, "tQK\0", 4);
        folder_pickle_dims(&out, t[i].shape, t[i].ndim), folder_pickle_dims(&out, strides, t[i].ndim);
        build_bytes(&out, "\x89", 1), build_bytes(&out, ordered, sizeof ordered - 1);
        build_bytes(&out, ")RtR", 4);
    }
    build_bytes(&out, "u.", 2);
    return out;
}

/* A stored entry; its line of the directory goes to `list`. */
static void folder_zip_entry(gguf_build *out, gguf_build *list, const char *name, const void *data,
                             size_t bytes) {
    const size_t at = out->size;
    for (int i = 0; i < 2; i++) {
        gguf_build *to = i ? list : out;
        build_bytes(to, i ? "PK\1\2" : "PK\3\4", 4);
        if (i) build_number(to, 0, 2);
        build_number(to, 0, 8), build_number(to, 0, 8); /* version, flags, method, time; date, sum */
        to->size -= 2;
        build_number(to, bytes, 4), build_number(to, bytes, 4), build_number(to, strlen(name), 2);
        build_number(to, 0, 2);
        if (i) build_number(to, 0, 8), build_number(to, 0, 2), build_number(to, at, 4);
        build_bytes(to, name, strlen(name));
    }
    build_bytes(out, data, bytes);
}

/* The directory of so many entries, and the record of the end. */
static void folder_zip_end(gguf_build *out, const gguf_build *list, int count) {
    const size_t at = out->size;
    build_bytes(out, list->data, list->size);
    build_bytes(out, "PK\5\6", 4), build_number(out, 0, 4);
    build_number(out, (uint64_t)count, 2), build_number(out, (uint64_t)count, 2);
    build_number(out, list->size, 4), build_number(out, at, 4), build_number(out, 0, 2);
}

static gguf_build folder_torch(const folder_tensor *t, int count) {
    gguf_build out = {0}, list = {0}, pickle = folder_pickle(t, count);
    folder_zip_entry(&out, &list, "archive/data.pkl", pickle.data, pickle.size);
    folder_zip_entry(&out, &list, "archive/byteorder", "little", 6);
    for (int i = 0; i < count; i++) {
        char name[32];
        snprintf(name, sizeof name, "archive/data/%d", i);
        folder_zip_entry(&out, &list, name, t[i].data, t[i].bytes);
    }
    folder_zip_end(&out, &list, count + 2);
    free(list.data), free(pickle.data);
    return out;
}

/* ---- the folder ---------------------------------------------------------------------------------- */

static void folder_shards(const char *folder, const folder_tensor *t, int count, int files) {
    folder_text index = {0};
    folder_print(&index, "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {");
    for (int s = 0; s < files; s++) {
        char name[64];
        const int from = count * s / files, to = count * (s + 1) / files;
        gguf_build file = folder_safetensors(t + from, to - from, true);
        snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", s + 1, files);
        folder_save(folder, name, file.data, file.size);
        free(file.data);
        for (int i = from; i < to; i++)
            folder_print(&index, "%s\"%s\": \"%s\"", i ? ", " : "", t[i].name, name);
    }
    folder_print(&index, "}}");
    folder_save(folder, "model.safetensors.index.json", index.data, index.size);
    free(index.data);
}

static void folder_write(const family *f, const char *folder, int files) {
    static folder_tensor tensors[512];
    folder_text config = folder_config(f), words = folder_tokenizer(f);
    const int count = folder_tensors(f, tensors);
    char path[512];
    os_make_path(folder);
    for (int i = 0; i < 4; i++) {
        static const char *const old[] = {"model.safetensors", "model.safetensors.index.json",
                                          "pytorch_model.bin", "model.pt"};
        snprintf(path, sizeof path, "%s/%s", folder, old[i]);
        remove(path);
    }
    folder_save(folder, "config.json", config.data, config.size);
    folder_save(folder, "tokenizer.json", words.data, words.size);
    if (files > 1) folder_shards(folder, tensors, count, files);
    else {
        gguf_build file = files < 0 ? folder_torch(tensors, count)
                                    : folder_safetensors(tensors, count, files);
        folder_save(folder, files == -1 ? "pytorch_model.bin" : files < 0 ? "model.pt"
                                                                          : "model.safetensors",
                    file.data, file.size);
        free(file.data);
    }
    for (int i = 0; i < count; i++) free(tensors[i].data);
    free(config.data), free(words.data);
}

#endif
