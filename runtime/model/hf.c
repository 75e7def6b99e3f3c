/* hf: a folder's tensors and weights, and all of it as one model (see hf.h); hf_write.c has the files, hf_config.c
 * the config, hf_tokenizer.c and hf_pieces.c the tokenizer. */

/* ---- tensors --------------------------------------------------------------------------------- */

/* The names in GGUF, without what stands before and behind; of a layer the others. */
static const struct { const char *from, *to; } hf_names[] = {
    {"model.embed_tokens", "token_embd"}, {"model.norm", "output_norm"}, {"lm_head", "output"},
    {"model.embedding_norm", "token_embd_norm"}}, hf_layer_names[] = {
    {"input_layernorm", "attn_norm"}, {"operator_norm", "attn_norm"},
    {"post_attention_layernorm", "ffn_norm"}, {"ffn_norm", "ffn_norm"},
    {"pre_feedforward_layernorm", "ffn_norm"}, {"post_feedforward_layernorm", "post_ffw_norm"},
    {"self_attn.q_proj", "attn_q"}, {"self_attn.k_proj", "attn_k"}, {"self_attn.v_proj", "attn_v"},
    {"self_attn.qkv_proj", "attn_qkv"}, {"self_attn.o_proj", "attn_output"},
    {"self_attn.out_proj", "attn_output"}, {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"}, {"self_attn.q_layernorm", "attn_q_norm"},
    {"self_attn.k_layernorm", "attn_k_norm"}, {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"}, {"mlp.gate_up_proj", "ffn_up"}, {"mlp.down_proj", "ffn_down"},
    {"feed_forward.w1", "ffn_gate"}, {"feed_forward.w3", "ffn_up"}, {"feed_forward.w2", "ffn_down"},
    {"mlp.gate", "ffn_gate_inp"}, {"conv.in_proj", "shortconv.in_proj"},
    {"conv.out_proj", "shortconv.out_proj"}, {"conv.conv", "shortconv.conv"}};

/* A number from the text, without a zero before it; *text goes behind it. -1: there is none. */
static int hf_take_number(const char **text) {
    const char *at = *text;
    int value = 0;
    while (*at >= '0' && *at <= '9' && value < 100000) value = value * 10 + (*at++ - '0');
    if (at == *text || (**text == '0' && at > *text + 1) || value >= 100000) return -1;
    return *text = at, value;
}

/* The name of a layer's tensor, whose own part is `text` up to the last dot. */
static const char *hf_layer_name(const hf_folder *h, const char *text, size_t bytes) {
    if (h->family->norms_from_one && bytes == 24 && !memcmp(text, "post_attention_layernorm", 24))
        return "post_attention_norm";
    for (size_t i = 0; i < BASE_COUNT(hf_layer_names); i++)
        if (strlen(hf_layer_names[i].from) == bytes && !memcmp(hf_layer_names[i].from, text, bytes))
            return hf_layer_names[i].to;
    return NULL;
}

/* An expert's weight: a part of the one tensor that GGUF has for all. */
static bool hf_rename_expert(shards_tensor *t, int layer, const char *rest) {
    static const char *const kinds[] = {"gate", "up", "down"};
    char tail[32];
    int expert;
    if (strncmp(rest, "mlp.experts.", 12)) return false;
    rest += 12;
    expert = hf_take_number(&rest);
    for (int i = 0; i < 3 && expert >= 0; i++) {
        snprintf(tail, sizeof tail, ".%s_proj.weight", kinds[i]);
        if (strcmp(rest, tail)) continue;
        t->part = expert;
        snprintf(t->name, sizeof t->name, "blk.%d.ffn_%s_exps.weight", layer, kinds[i]);
        return true;
    }
    return false;
}

/* Gives the tensor its name in GGUF; one that has none keeps its own, and the family refuses it. */
static void hf_rename(const hf_folder *h, shards_tensor *t) {
    char old[SHARDS_NAME_BYTES];
    const char *rest = old + 13, *dot, *name = NULL;
    int layer = -1;
    memcpy(old, t->name, sizeof old);
    if (!strncmp(old, "model.layers.", 13)) layer = hf_take_number(&rest);
    dot = strrchr(old, '.');
    if (layer >= 0 && *rest == '.' && dot > rest) {
        if (hf_rename_expert(t, layer, ++rest)) return;
        name = hf_layer_name(h, rest, (size_t)(dot - rest));
        if (name) snprintf(t->name, sizeof t->name, "blk.%d.%s%.16s", layer, name, dot);
        return;
    }
    for (size_t i = 0; i < BASE_COUNT(hf_names) && dot; i++)
        if (strlen(hf_names[i].from) == (size_t)(dot - old) &&
            !memcmp(hf_names[i].from, old, (size_t)(dot - old)))
            snprintf(t->name, sizeof t->name, "%s%.16s", hf_names[i].to, dot);
}

/* Whether the tensor says nothing: a head that is the embedding, or what the config tells. */
static bool hf_drops(const hf_folder *h, const shards_tensor *t) {
    const size_t bytes = strlen(t->name);
    const uint32_t tied = hf_config(h, hf_is(h, "lfm2") && hf_config(h, "tie_embedding")
                                           ? "tie_embedding" : "tie_word_embeddings");
    if (bytes > 20 && !strcmp(t->name + bytes - 20, ".rotary_emb.inv_freq")) return true;
    return !strcmp(t->name, "lm_head.weight") && tied && jdoc_says(&h->config.doc, tied, "true");
}

static int hf_tensor_order(const void *left, const void *right) {
    const shards_tensor *a = (const shards_tensor *)left, *c = (const shards_tensor *)right;
    int order = strcmp(a->name, c->name);
    return order ? order : (a->part > c->part) - (a->part < c->part);
}

/* Bytes that a backend may want to find at such an address lie there in the file. */
static bool hf_is_aligned(const shards_tensor *t) { return t->from % 8 == 0; }

/* Places the tensors from `first` on that are parts of one, the first of which is given. Returns
 * where the next begins. */
static cairn_status hf_place(hf_folder *h, size_t first, size_t *end) {
    shards_tensor *t = &h->weights->tensors[first];
    int64_t shape[4] = {1, 1, 1, 1};
    int ndim = t->ndim ? t->ndim : 1;
    uint64_t at = h->next;
    size_t last = first + 1;
    while (last < h->weights->count && t->part >= 0 && !strcmp(t->name, t[last - first].name))
        last++;
    for (size_t i = first; i < last; i++) {
        shards_tensor *each = &h->weights->tensors[i];
        if (t->part >= 0 && (each->part != (int)(i - first) || each->type != t->type ||
                             each->ndim != t->ndim || ndim > 3 ||
                             memcmp(each->shape, t->shape, sizeof t->shape)))
            return base_fail(h->b, CAIRN_BAD_FILE, "%s: the tensor '%s' of expert %d is missing, "
                             "or of another shape or type than that of the first", h->path, t->name,
                             (int)(i - first));
        each->to = at;
        at += each->bytes;
    }
    memcpy(shape + (t->part >= 0), t->shape, sizeof *shape * (size_t)(4 - (t->part >= 0)));
    if (!t->ndim) shape[t->part >= 0] = 1;
    if (t->part >= 0) shape[0] = (int64_t)(last - first), ndim++;
    hf_describe(h, t->name, t->type, ndim, shape, at - t->to);
    return *end = last, CAIRN_OK;
}

/* Names and places: first what has to be put together, so that a map of the rest suffices. Returns
 * in *apart where that ends. */
static cairn_status hf_place_tensors(hf_folder *h, uint64_t *apart) {
    shards *s = h->weights;
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < s->count;)
        if (hf_drops(h, &s->tensors[i])) s->tensors[i] = s->tensors[--s->count];
        else hf_rename(h, &s->tensors[i++]);
    if (s->count) qsort(s->tensors, s->count, sizeof *s->tensors, hf_tensor_order);
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0, end; i < s->count && !status; i = end) {
            const shards_tensor *t = &s->tensors[i];
            const bool together = t->part >= 0 || !hf_is_aligned(t);
            end = i + 1;
            while (t->part >= 0 && end < s->count && !strcmp(t->name, s->tensors[end].name)) end++;
            if (together == !pass) status = hf_place(h, i, &end);
        }
        if (!pass) *apart = h->next;
    }
    return status;
}

/* Of a model that sees, too: leaves the tensors of its text, under the names that they have in one that
 * does not. */
static cairn_status hf_keep_text(hf_folder *h) {
    static const char *const seeing[] = {"vision_tower.", "multi_modal_projector."};
    static const char inner[] = "language_model.";
    shards *s = h->weights;
    if (!h->family->text) return CAIRN_OK;
    for (size_t i = 0; i < s->count;) {
        char *name = s->tensors[i].name, *part = name + (strncmp(name, "model.", 6) ? 0 : 6);
        const bool sees = !strncmp(part, seeing[0], strlen(seeing[0])) ||
                          !strncmp(part, seeing[1], strlen(seeing[1]));
        if (sees) s->tensors[i] = s->tensors[--s->count];
        else if (i++, !strncmp(part, inner, sizeof inner - 1))
            memmove(part, part + sizeof inner - 1, strlen(part) + 2 - sizeof inner);
    }
    return shards_sort(h->b, s);
}

/* ---- weights --------------------------------------------------------------------------------- */

static cairn_status hf_open_weights(hf_folder *h, const char *name, bool torch) {
    base_text path = {NULL, 0, 0};
    int file;
    cairn_status status;
    if (!base_text_print(h->b, &path, "%s/%s", h->path, name))
        return base_no_memory(h->b, name, strlen(h->path));
    status = shards_open_file(h->b, h->weights, path.data, h->how == HF_MAP, &file);
    if (!status)
        status = torch ? torch_list(h->b, h->weights) : safetensors_list(h->b, h->weights);
    base_text_free(h->b, &path);
    return status;
}

/* A name in the folder, and nothing that leads out of it. */
static bool hf_is_plain(const jdoc *j, uint32_t at) {
    const jdoc_node *n = &j->nodes[at];
    bool plain = n->kind == JDOC_STRING && n->bytes && n->bytes <= 200 && j->text[n->at] != '.';
    for (uint32_t i = 0; plain && i < n->bytes; i++)
        plain = (unsigned char)j->text[n->at + i] >= ' ' && !strchr("/\\:", j->text[n->at + i]);
    return plain;
}

/* The file of the index that is open already; -1. */
static int hf_shard_of(const hf_folder *h, const char *text, size_t bytes) {
    const size_t folder = strlen(h->path) + 1;
    for (int i = 0; i < h->weights->file_count; i++) {
        const base_text *path = &h->weights->files[i].path;
        if (path->size == folder + bytes && !memcmp(path->data + folder, text, bytes)) return i;
    }
    return -1;
}

/* Opens the files that the index names. */
static cairn_status hf_open_shards(hf_folder *h, const hf_file *index, uint32_t map, bool torch) {
    const jdoc *j = &index->doc;
    char name[256];
    cairn_status status = CAIRN_OK;
    if (!jdoc_is(j, map, JDOC_OBJECT))
        return hf_wrong(h, index, "weight_map", "an object of names of files");
    for (uint32_t at = map + 1; at < j->nodes[map].end && !status; at = j->nodes[at + 1].end) {
        const jdoc_node *file = &j->nodes[at + 1];
        if (!hf_is_plain(j, at + 1))
            return hf_wrong(h, index, "weight_map", "the name of a file in the folder");
        if (hf_shard_of(h, j->text + file->at, file->bytes) >= 0) continue;
        snprintf(name, sizeof name, "%.*s", (int)file->bytes, j->text + file->at);
        status = hf_open_weights(h, name, torch);
    }
    return status;
}

/* Whether each tensor of the index lies in its file. */
static cairn_status hf_check_index(hf_folder *h, const hf_file *index, uint32_t map) {
    const jdoc *j = &index->doc;
    char name[SHARDS_NAME_BYTES];
    for (uint32_t at = map + 1; at < j->nodes[map].end; at = j->nodes[at + 1].end) {
        const jdoc_node *file = &j->nodes[at + 1];
        const shards_tensor *t;
        size_t bytes = j->nodes[at].bytes < sizeof name ? j->nodes[at].bytes : sizeof name - 1;
        snprintf(name, sizeof name, "%.*s", (int)bytes, j->text + j->nodes[at].at);
        t = shards_find(h->weights, name);
        if (!t || t->file != hf_shard_of(h, j->text + file->at, file->bytes))
            return base_fail(h->b, CAIRN_BAD_FILE, "%s: the tensor '%s' is not in the file '%.*s'",
                             index->path.data, name, (int)(file->bytes < 100 ? file->bytes : 100),
                             j->text + file->at);
    }
    return CAIRN_OK;
}

static cairn_status hf_open_index(hf_folder *h, const char *name, bool torch, bool *there) {
    hf_file index;
    uint32_t map;
    cairn_status status;
    memset(&index, 0, sizeof index);
    status = hf_read_file(h, name, HF_MOST_CONFIG, true, &index);
    *there = index.there;
    if (!status && index.there) {
        map = jdoc_get(&index.doc, 0, "weight_map");
        status = hf_open_shards(h, &index, map, torch);
        if (!status) status = shards_sort(h->b, h->weights);
        if (!status) status = hf_check_index(h, &index, map);
    }
    hf_close_file(h->b, &index);
    return status;
}

/* The weights: by an index, or in one file; safetensors first. */
static cairn_status hf_list_weights(hf_folder *h) {
    static const struct { const char *name, *index; bool torch; } forms[] = {
        {"model.safetensors", "model.safetensors.index.json", false},
        {"pytorch_model.bin", "pytorch_model.bin.index.json", true},
        {"model.pt", NULL, true}};
    os_file_info info;
    base_text path = {NULL, 0, 0};
    cairn_status status = CAIRN_OK;
    bool there = false;
    for (size_t i = 0; i < BASE_COUNT(forms) && !there && !status; i++) {
        if (forms[i].index) status = hf_open_index(h, forms[i].index, forms[i].torch, &there);
        if (there || status) break;
        path.size = 0;
        if (!base_text_print(h->b, &path, "%s/%s", h->path, forms[i].name)) {
            status = base_no_memory(h->b, forms[i].name, strlen(h->path));
            break;
        }
        there = !os_calls.info(path.data, &info);
        if (there) status = hf_open_weights(h, forms[i].name, forms[i].torch);
        if (there && !status) status = shards_sort(h->b, h->weights);
    }
    base_text_free(h->b, &path);
    if (status || there) return status;
    return base_fail(h->b, CAIRN_FILE_NOT_FOUND, "%s: the folder has no model.safetensors, "
                     "model.safetensors.index.json, pytorch_model.bin or model.pt", h->path);
}

/* ---- the folder ------------------------------------------------------------------------------ */

/* What lfm2's config says only by way of other numbers. */
static void hf_read_ffn(hf_folder *h) {
    const shards_tensor *gate = shards_find(h->weights, "model.layers.0.feed_forward.w1.weight");
    const uint32_t said = hf_config(h, "intermediate_size");
    uint64_t ffn = 0;
    if (gate) ffn = (uint64_t)gate->shape[0];
    else jdoc_whole(&h->config.doc, said, 1 << 24, &ffn);
    if (ffn && ffn <= 1 << 24) hf_key_u32(h, ".feed_forward_length", ffn);
}

/* tokenizer.json; in its absence tokenizer.model. */
static cairn_status hf_find_tokenizer(hf_folder *h) {
    hf_file *f = &h->tokenizer;
    cairn_status status = hf_read_file(h, "tokenizer.json", HF_MOST_TOKENIZER, true, f);
    if (status || f->there) return status;
    base_text_free(h->b, &f->path);
    if ((status = hf_read_file(h, "tokenizer.model", HF_MOST_TOKENIZER, true, f)) || f->there)
        return status;
    return base_fail(h->b, CAIRN_FILE_NOT_FOUND, "%s: the folder has no tokenizer.json and no "
                     "tokenizer.model", h->path);
}

static cairn_status hf_read_all(hf_folder *h, uint64_t *apart) {
    const shards_tensor *embed;
    cairn_status status;
    if ((status = hf_read_file(h, "config.json", HF_MOST_CONFIG, false, &h->config)) ||
        (status = hf_find_family(h)) ||
        (status = hf_find_tokenizer(h)) ||
        (status = hf_read_file(h, "tokenizer_config.json", HF_MOST_CONFIG, true,
                               &h->tokenizer_config)) ||
        (status = hf_list_weights(h)) || (status = hf_keep_text(h)))
        return status;
    embed = shards_find(h->weights, "model.embed_tokens.weight");
    h->vocab = embed && embed->ndim == 2 ? embed->shape[0] : 0;
    if (h->vocab < 1 || h->vocab > 1 << 24)
        return base_fail(h->b, CAIRN_BAD_FILE, "%s: the tensor 'model.embed_tokens.weight' "
                         "[vocabulary, hidden] is missing", h->path);
    hf_read_ffn(h);
    if ((status = hf_read_config(h)) || (status = hf_read_tokenizer(h)) ||
        (status = hf_place_tensors(h, apart)))
        return status;
    return h->full ? base_no_memory(h->b, h->path, h->keys.size + h->tensors.size) : CAIRN_OK;
}

/* The head of the file, padded as its data begin. */
static bool hf_write_header(hf_folder *h, base_text *head) {
    base_text *to = head;
    hf_put(h, to, "GGUF", 4);
    hf_put_number(h, to, 3, 4);
    hf_put_number(h, to, h->tensor_count, 8);
    hf_put_number(h, to, h->key_count, 8);
    hf_put(h, to, h->keys.data, h->keys.size);
    hf_put(h, to, h->tensors.data, h->tensors.size);
    while (to->size % HF_ALIGNMENT && !h->full) hf_put(h, to, "", 1);
    return !h->full;
}

/* Reads the gguf of `held` of `size` bytes, of which head and made data are written. */
static cairn_status hf_parse(hf_folder *h, void *copy, uint8_t *data, size_t held, size_t size,
                             gguf *out) {
    const size_t ready = held < size ? held : size;
    bool more = false;
    cairn_status status = gguf_parse_part(h->b, h->path, data, ready, size, h->how == HF_SURVEY,
                                          &more, out);
    if (status) return status;
    out->copy = copy, out->held = ready;
    if (ready < size) {
        out->shards = h->weights;
        h->weights = NULL;
    }
    for (size_t i = 0; i < out->tensor_count && out->shards && h->how == HF_MAP; i++) {
        gguf_tensor *t = &out->tensors[i];
        t->data = gguf_fetch(out, t->at, t->bytes, NULL);
    }
    return CAIRN_OK;
}

static int hf_read_weights(const void *weights, uint64_t at, void *to, size_t bytes) {
    return shards_gather((const shards *)weights, at, bytes, (uint8_t *)to) ? 0 : -EIO;
}

/* Puts the header, and what of the data is to be held, into memory. */
static cairn_status hf_assemble(hf_folder *h, const base_text *head, uint64_t apart, gguf *out) {
    const size_t start = head->size, made = start + h->made.size;
    const uint64_t size = start + h->next;
    const uint64_t held = h->how == HF_COPY ? size : h->how == HF_MAP ? start + apart : made;
    const size_t bytes = (size_t)held + GGUF_ALIGNMENT;
    void *copy;
    uint8_t *data;
    cairn_status status;
    if (size > SIZE_MAX / 2) return base_no_memory(h->b, h->path, SIZE_MAX);
    copy = base_realloc(h->b, NULL, 0, bytes);
    if (!copy) return base_no_memory(h->b, h->path, bytes);
    data = (uint8_t *)copy + (GGUF_ALIGNMENT - (uintptr_t)copy % GGUF_ALIGNMENT) % GGUF_ALIGNMENT;
    for (size_t i = 0; i < h->weights->count; i++) h->weights->tensors[i].to += start;
    shards_seal(h->weights);
    memcpy(data, head->data, start);
    if (h->made.size) memcpy(data + start, h->made.data, h->made.size);
    status = gguf_read_parts(h->b, h->threads, h->path, hf_read_weights, h->weights,
                             (gguf_extent){made, held, size}, data);
    if (!status) status = hf_parse(h, copy, data, (size_t)held, (size_t)size, out);
    if (status) base_delete(h->b, copy, bytes, 1);
    else out->copied = bytes;
    return status;
}

static void hf_close(hf_folder *h) {
    hf_close_file(h->b, &h->config);
    hf_close_file(h->b, &h->tokenizer);
    hf_close_file(h->b, &h->tokenizer_config);
    base_text_free(h->b, &h->keys);
    base_text_free(h->b, &h->tensors);
    base_text_free(h->b, &h->made);
    if (h->weights) shards_close(h->b, h->weights);
    base_delete(h->b, h->weights, 1, sizeof *h->weights);
}

static cairn_status hf_open_folder(base *b, struct pool *threads, const char *path, hf_how how, gguf *out) {
    hf_folder h;
    base_text head = {NULL, 0, 0};
    uint64_t apart = 0;
    cairn_status status;
    memset(&h, 0, sizeof h);
    memset(out, 0, sizeof *out);
    h.b = b, h.threads = threads, h.path = path, h.how = how;
    h.weights = (shards *)base_new(b, 1, sizeof *h.weights);
    if (!h.weights) return base_no_memory(b, path, sizeof *h.weights);
    status = hf_read_all(&h, &apart);
    if (!status && !hf_write_header(&h, &head)) status = base_no_memory(b, path, h.keys.size);
    if (!status) status = hf_assemble(&h, &head, apart, out);
    base_text_free(b, &head);
    hf_close(&h);
    return status;
}

static cairn_status hf_open(base *b, struct pool *threads, const char *path, hf_how how, gguf *out) {
    os_file_info info;
    memset(&info, 0, sizeof info);
    if (!os_calls.info(path, &info) && info.directory) return hf_open_folder(b, threads, path, how, out);
    if (how == HF_MAP) return gguf_open(b, path, out);
    if (how == HF_COPY) return gguf_copy(b, threads, path, out);
    return how == HF_SCAN ? gguf_scan(b, threads, path, out) : gguf_survey(b, path, out);
}
