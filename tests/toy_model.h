/* toy_model: a model small enough to be known by heart, for tests of what lies above the forward
 * pass.
 *
 * toy_write makes a GGUF file with one layer and a byte-level vocabulary; toy_backend is a forward
 * pass whose logits hash the whole sequence, read back from the KV pages through the page table: a
 * wrong page, a stale key, a bad rewind or a wrong `dense` changes what it says. It checks what the
 * engine promises about forwards and counts the faults in toy_faults.
 * toy_logits is the same model without pages, for a naive re-implementation. */
#ifndef TOY_MODEL_H
#define TOY_MODEL_H

enum { TOY_AB = 256, TOY_END = 257, TOY_SPECIAL = 258, TOY_VOCAB = 259, TOY_CONTEXT = 300 };

/* The tokens that the toy likes to say: letters, pieces of é and €, "ab", the end token. */
static const int32_t toy_words[] = {'a', 'b', 'c', 'd', ' ', 0xC3, 0xA9, 0xE2, 0x82, 0xAC,
                                    TOY_AB, TOY_END};

/* ---- the file -------------------------------------------------------------------------------- */

static void toy_u32(FILE *f, uint32_t v) { fwrite(&v, 4, 1, f); }
static void toy_u64(FILE *f, uint64_t v) { fwrite(&v, 8, 1, f); }
static void toy_string(FILE *f, const char *s) {
    toy_u64(f, strlen(s));
    fwrite(s, 1, strlen(s), f);
}

static int toy_keys, toy_tokens = TOY_VOCAB; /* of the vocabulary: fewer than the embedding is bad */
static void toy_key(FILE *f, const char *name, uint32_t type) {
    toy_string(f, name);
    toy_u32(f, type);
    toy_keys++;
}
static void toy_key_u32(FILE *f, const char *name, uint32_t v) {
    toy_key(f, name, 4);
    toy_u32(f, v);
}
static void toy_key_f32(FILE *f, const char *name, float v) {
    toy_key(f, name, 6);
    fwrite(&v, 4, 1, f);
}
static void toy_key_string(FILE *f, const char *name, const char *v) {
    toy_key(f, name, 8);
    toy_string(f, v);
}

/* The name of a byte in a byte-level vocabulary. */
static void toy_byte_name(int byte, char *out) {
    int next = 256, point = byte;
    for (int i = 0; i <= byte; i++)
        if (!((i >= 33 && i <= 126) || (i >= 161 && i <= 172) || i >= 174)) {
            if (i == byte) point = next;
            next++;
        }
    if (point < 0x80) {
        out[0] = (char)point, out[1] = '\0';
    } else {
        out[0] = (char)(0xC0 | point >> 6), out[1] = (char)(0x80 | (point & 63)), out[2] = '\0';
    }
}

static void toy_write_tokens(FILE *f) {
    char name[4];
    toy_key(f, "tokenizer.ggml.tokens", 9);
    toy_u32(f, 8);
    toy_u64(f, (uint64_t)toy_tokens);
    for (int i = 0; i < 256; i++) toy_byte_name(i, name), toy_string(f, name);
    toy_string(f, "ab");
    toy_string(f, "<end>");
    if (toy_tokens == TOY_VOCAB) toy_string(f, "<special>");
    toy_key(f, "tokenizer.ggml.token_type", 9);
    toy_u32(f, 5);
    toy_u64(f, (uint64_t)toy_tokens);
    for (int i = 0; i < toy_tokens; i++) toy_u32(f, i >= TOY_END ? 3 : 1);
    toy_key(f, "tokenizer.ggml.merges", 9);
    toy_u32(f, 8);
    toy_u64(f, 1);
    toy_string(f, "a b");
}

static uint64_t toy_tensor_bytes;
static void toy_tensor(FILE *f, const char *name, int rows, int columns) {
    toy_string(f, name);
    toy_u32(f, rows ? 2 : 1);
    toy_u64(f, (uint64_t)columns);
    if (rows) toy_u64(f, (uint64_t)rows);
    toy_u32(f, 0);
    toy_u64(f, toy_tensor_bytes);
    toy_tensor_bytes += (uint64_t)(rows ? rows : 1) * (uint64_t)columns * 4;
}

enum { TOY_HIDDEN = 32, TOY_HEADS = 2, TOY_DIM = 16, TOY_FFN = 32 };

/* change: a key or tensor to leave out, NULL for none. Returns false when the file fails. */
static bool toy_write(const char *path, const char *without) {
    static const struct { const char *name; int rows, columns; } tensors[] = {
        {"token_embd.weight", TOY_VOCAB, TOY_HIDDEN}, {"output_norm.weight", 0, TOY_HIDDEN},
        {"blk.0.attn_norm.weight", 0, TOY_HIDDEN}, {"blk.0.ffn_norm.weight", 0, TOY_HIDDEN},
        {"blk.0.attn_q.weight", TOY_HEADS * TOY_DIM, TOY_HIDDEN},
        {"blk.0.attn_k.weight", TOY_DIM, TOY_HIDDEN}, {"blk.0.attn_v.weight", TOY_DIM, TOY_HIDDEN},
        {"blk.0.attn_output.weight", TOY_HIDDEN, TOY_HEADS * TOY_DIM},
        {"blk.0.ffn_gate.weight", TOY_FFN, TOY_HIDDEN},
        {"blk.0.ffn_up.weight", TOY_FFN, TOY_HIDDEN},
        {"blk.0.ffn_down.weight", TOY_HIDDEN, TOY_FFN}};
    static const struct { const char *name; uint32_t value; } numbers[] = {
        {"llama.block_count", 1}, {"llama.embedding_length", TOY_HIDDEN},
        {"llama.feed_forward_length", TOY_FFN}, {"llama.context_length", TOY_CONTEXT},
        {"llama.attention.head_count", TOY_HEADS}, {"llama.attention.head_count_kv", 1},
        {"tokenizer.ggml.eos_token_id", TOY_END}};
    FILE *f = fopen(path, "wb");
    long at;
    uint64_t count = 0;
    if (!f) return false;
    toy_keys = 0, toy_tensor_bytes = 0;
    fwrite("GGUF", 1, 4, f);
    toy_u32(f, 3);
    toy_u64(f, 0), toy_u64(f, 0); /* written again at the end */
    toy_key_string(f, "general.architecture", "llama");
    toy_key_string(f, "general.name", "toy");
    toy_key_string(f, "tokenizer.ggml.model", "gpt2");
    toy_key_string(f, "tokenizer.ggml.pre", "gpt-2");
    toy_key_f32(f, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!without || strcmp(without, numbers[i].name) != 0)
            toy_key_u32(f, numbers[i].name, numbers[i].value);
    toy_write_tokens(f);
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        if (!without || strcmp(without, tensors[i].name) != 0) {
            toy_tensor(f, tensors[i].name, tensors[i].rows, tensors[i].columns);
            count++;
        }
    while ((at = ftell(f)) % 32) fputc(0, f);
    for (uint64_t i = 0; i < toy_tensor_bytes; i++) fputc(0, f);
    fseek(f, 8, SEEK_SET);
    toy_u64(f, count), toy_u64(f, (uint64_t)toy_keys);
    return fclose(f) == 0;
}

/* ---- the model ------------------------------------------------------------------------------- */

static uint64_t toy_mix(uint64_t h, uint64_t v) {
    h = (h ^ v) * 0xff51afd7ed558ccdull;
    return h ^ h >> 32;
}

static float toy_loops = 0.75f; /* how much the toy repeats itself: what drafting feeds on */

/* What is kept of a token at its position: the id, and whether its row attended all. */
static int32_t toy_entry(int32_t id, bool dense) { return id * 2 + dense; }

/* Logits [TOY_VOCAB] after entries [count]. */
static void toy_logits(const int32_t *entries, int count, float *out) {
    uint64_t all = 7, last = 11;
    size_t words = sizeof toy_words / sizeof *toy_words;
    for (int i = 0; i < count; i++)
        all = toy_mix(all, (uint64_t)entries[i] * 1000003 + (uint64_t)i);
    for (int i = count > 2 ? count - 2 : 0; i < count; i++)
        last = toy_mix(last, (uint64_t)(entries[i] / 2));
    for (int v = 0; v < TOY_VOCAB; v++) out[v] = -30.0f;
    for (size_t i = 0; i < words; i++)
        out[toy_words[i]] = (float)(toy_mix(all, i) % 10000) * 4e-4f;
    out[toy_words[last % (words - 1)]] += 4.0f * toy_loops + 1.0f;
    out[TOY_END] -= 1.5f;
}

static int toy_faults;           /* promises that a forward found broken */
static int toy_forwards, toy_rows;
static int toy_fail_at = -1;     /* the forward that fails, counted from 0 */
static void (*toy_hook)(void);   /* called in each forward */

static void toy_expect(bool holds, const char *what) {
    if (holds) return;
    if (!toy_faults++) printf("# toy: %s\n", what);
}

/* The entry of logical position p, kept in the first 4 bytes of its key. */
static int32_t *toy_slot(kv_cache *kv, const int32_t *table, int p) {
    uint8_t *page = (uint8_t *)kv->pages[0] + (size_t)table[p / kv->page_size] * kv->page_bytes;
    return (int32_t *)(void *)(page + (size_t)(p % kv->page_size) * (size_t)kv->head_dim * 2);
}

static uint64_t toy_page_hash(kv_cache *kv, const int32_t *table, int page, uint64_t h) {
    for (int i = 0; i < kv->page_size; i++)
        h = toy_mix(h, (uint64_t)*toy_slot(kv, table, page * kv->page_size + i));
    return h;
}

static void toy_bounds(kv_cache *kv, const int32_t *table, const forward_sequence *s) {
    uint64_t source = s->rule && s->rule->select.mean ? CAIRN_SOURCE_MEAN : CAIRN_SOURCE_MINMAX;
    for (int c = 0; c < s->stored && s->rule; c++) {
        uint8_t *at = (uint8_t *)kv->bounds[0] + (size_t)table[c] * kv->bound_bytes;
        uint64_t now = toy_page_hash(kv, table, c, source + 3), kept;
        if (c >= s->bounded) memcpy(at, &now, sizeof now);
        memcpy(&kept, at, sizeof kept);
        toy_expect(kept == now, "stored bounds are not of the page's tokens");
    }
}

/* Writes the entries of a sequence's rows. */
static void toy_append(cairn_model *m, kv_cache *kv, const forward_batch *b,
                       const forward_sequence *s) {
    const int32_t *table = tables_row(b->tables, s->table);
    int first = b->rows[s->first].position;
    toy_expect(s->rows >= 1 && first + s->rows <= m->max_seq_len, "rows beyond the context");
    toy_expect(s->stored == first / kv->page_size, "stored is not length / S");
    toy_expect(s->bounded <= s->stored, "bounded > stored");
    toy_bounds(kv, table, s);
    for (int r = 0; r < s->rows; r++) {
        const forward_row *row = &b->rows[s->first + r];
        int page = row->position / kv->page_size;
        toy_expect(row->position == first + r && row->rope == row->position, "positions not in order");
        toy_expect(page < b->tables->pages[s->table] && table[page] >= 0 &&
                   kv->pool.references[table[page]] == 1, "a row has no page of its own");
        toy_expect(row->token >= 0 && row->token < TOY_VOCAB, "an id out of range");
        *toy_slot(kv, table, first + r) = toy_entry(row->token, row->kind == FORWARD_PROMPT);
    }
}

static cairn_status toy_forward(cairn_model *m, kv_cache *kv, forward_batch *b) {
    static float memory[16 * TOY_VOCAB]; /* sample_space_bytes */
    float logits[TOY_VOCAB], *wanted = b->logits;
    int32_t entries[TOY_CONTEXT];
    const sample_ask *asks[512];
    sample_space space;
    int asked = 0;
    sample_space_place(memory, TOY_VOCAB, &space);
    toy_rows += b->row_count;
    if (toy_hook) toy_hook();
    if (toy_forwards++ == toy_fail_at)
        return base_fail(&m->runtime->base, CAIRN_DEVICE_ERROR, "the toy fails here");
    toy_expect(!forward_check(&m->runtime->base, m, 1 << 20, b), "a bad batch");
    for (int i = 0; i < b->sequence_count; i++) toy_append(m, kv, b, &b->sequences[i]);
    for (int i = 0; i < b->sequence_count; i++) {
        forward_sequence *s = &b->sequences[i];
        const int32_t *table = tables_row(b->tables, s->table);
        int last = b->rows[s->first + s->rows - 1].position;
        for (int p = 0; p <= last; p++) entries[p] = *toy_slot(kv, table, p);
        for (int r = s->first; r < s->first + s->rows; r++) {
            toy_logits(entries, b->rows[r].position + 1, logits);
            if (b->rows[r].logits) memcpy(wanted, logits, sizeof logits), wanted += TOY_VOCAB;
            if (!b->rows[r].sample) continue;
            toy_expect(asked < 512, "too many rows are sampled");
            asks[asked & 511] = b->rows[r].sample;
            sample_row_host(&space, logits, asks, asked++ & 511, b->sampled);
        }
        if (b->rows[s->first].kind == FORWARD_STEP) s->pages_read += last / kv->page_size + 1;
        tables_settle_row(b->tables, s->table);
    }
    return CAIRN_OK;
}

static int toy_most_pages = 1 << 30; /* beyond which there is no memory for the toy */
static cairn_status toy_open(cairn_model *m, int max_rows) {
    (void)max_rows;
    if (m->kv.pool.pages <= toy_most_pages) return CAIRN_OK;
    return base_fail(&m->runtime->base, CAIRN_OUT_OF_DEVICE_MEMORY, "no room for the toy");
}
static void toy_close(cairn_model *m) { (void)m; }

static cairn_status toy_ready; /* what `prepare` says */
static cairn_status toy_prepare(cairn_model *m, const cairn_config *config) {
    (void)config;
    return toy_ready <= CAIRN_OK ? toy_ready : base_fail(&m->runtime->base, toy_ready, "not ready");
}

static const model_backend toy_backend = {.open = toy_open, .close = toy_close, .forward = toy_forward,
                                          .row_cost = 0.1f, .prepare = toy_prepare};

/* A file of toy_write's kind on it. */
static cairn_status toy_load(cairn_runtime *rt, const char *path, cairn_model **model) {
    const model_place place = {path, HF_COPY, NULL};
    cairn_status status;
    handles_hold(rt); /* beside a worker, where there is one */
    status = engine_load(rt, place, &toy_backend, model);
    handles_drop(rt);
    return status;
}

#endif
