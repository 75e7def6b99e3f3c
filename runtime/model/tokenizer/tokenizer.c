/* tokenizer: the tables, read from the file.
 *
 * BPE vocabularies write each byte as one printable character ("Ġ" is the space), SentencePiece
 * writes the space as U+2581 and a byte as "<0x0A>"; the tables here hold the bytes themselves. The
 * file is not trusted: what it says is checked here, so that encoding and decoding need not check. */

/* A pair of neighbouring tokens that becomes one; of all pairs in a word the lowest rank goes
 * first, the leftmost of equals. */
typedef struct tokenizer_merge { int32_t left, right, rank, merged; } tokenizer_merge;

static bool tokenizer_ids_add(base *b, tokenizer_ids *ids, int32_t id) {
    if (ids->size == ids->capacity) {
        size_t capacity = ids->capacity ? 2 * ids->capacity : 64;
        int32_t *data = capacity > SIZE_MAX / sizeof *data ? NULL : (int32_t *)base_realloc(
            b, ids->data, ids->capacity * sizeof *data, capacity * sizeof *data);
        if (!data) return false;
        ids->data = data;
        ids->capacity = capacity;
    }
    ids->data[ids->size++] = id;
    return true;
}

static void tokenizer_ids_free(base *b, tokenizer_ids *ids) {
    if (ids->data) base_realloc(b, ids->data, ids->capacity * sizeof *ids->data, 0);
    memset(ids, 0, sizeof *ids);
}

/* The bytes of a token: not terminated, not always whole characters. `id` outside gives none. */
static const char *tokenizer_piece(const tokenizer *t, int32_t id, size_t *bytes) {
    *bytes = 0;
    if (id < 0 || id >= t->vocab) return "";
    *bytes = t->starts[id + 1] - t->starts[id];
    return t->text + t->starts[id];
}

static bool tokenizer_is_end(const tokenizer *t, int32_t id) {
    return id >= 0 && (id == t->eos || id == t->eot || id == t->eom || id == t->turn_end);
}

static bool tokenizer_is_special(const tokenizer *t, int32_t id) {
    return id >= 0 && id < t->vocab && (t->kinds[id] == TOK_CONTROL || t->kinds[id] == TOK_UNKNOWN);
}

/* ---- the alphabet: bytes written as characters ---------------------------------------------- */

/* Bytes that print stand for themselves; the 68 others are written as U+0100 and on, in order. */
static bool tokenizer_byte_prints(int byte) {
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

typedef struct tokenizer_alphabet {
    int16_t byte_of[512];  /* of a code point; -1: not in the alphabet */
    uint16_t point_of[256];
} tokenizer_alphabet;

static void tokenizer_make_alphabet(tokenizer_alphabet *a) {
    uint16_t next = 256;
    for (int i = 0; i < 512; i++) a->byte_of[i] = -1;
    for (int i = 0; i < 256; i++) {
        a->point_of[i] = tokenizer_byte_prints(i) ? (uint16_t)i : next++;
        a->byte_of[a->point_of[i]] = (int16_t)i;
    }
}

/* Writes the bytes that a token's text stands for (never more than it has) and returns how many;
 * a text with a character outside the alphabet stands for itself. */
static size_t tokenizer_unwrite(const tokenizer_alphabet *a, const char *text, size_t bytes,
                                char *out) {
    size_t used = 0;
    for (size_t i = 0; i < bytes; i++) {
        unsigned point = (unsigned char)text[i];
        if (point >= 0x80) {
            unsigned next = i + 1 < bytes ? (unsigned char)text[i + 1] : 0;
            point = point >= 0xc2 && point <= 0xc7 && next >> 6 == 2
                        ? (point & 31) << 6 | (next & 63) : 511;
            i++;
        }
        if (a->byte_of[point] < 0) {
            memcpy(out, text, bytes);
            return bytes;
        }
        out[used++] = (char)(unsigned char)a->byte_of[point];
    }
    return used;
}

enum { TOK_LINES = 4096 /* that are looked up, or read, between two looks at the host */, TOK_LINES_EACH = 256 };

/* Tells the host now and then; CANCELLED when it is to end. */
static cairn_status tokenizer_progress(base *b, int32_t i, uint64_t count) {
    return i % TOK_LINES ? CAIRN_OK : base_progress(b, "tokenizer", (uint64_t)i, count);
}

/* ---- finding tokens by text, while the tables are made -------------------------------------- */

/* Strings of the file by text: where a pair's parts and its whole stand in the vocabulary. */
typedef struct tokenizer_index {
    const char **strings; /* [vocab] in the file */
    uint32_t *sizes;      /* [vocab] */
    int32_t *slots;       /* [slot_count] -1: free */
    size_t slot_count;    /* a power of two */
} tokenizer_index;

static size_t tokenizer_slots_for(size_t entries) {
    size_t slots = 64;
    while (slots - slots / 4 < entries) slots *= 2;
    return slots;
}

/* FNV-1a, fed in parts. */
static uint64_t tokenizer_hash(uint64_t hash, const char *bytes, size_t count) {
    for (size_t i = 0; i < count; i++) hash = (hash ^ (unsigned char)bytes[i]) * 0x100000001b3u;
    return hash;
}
#define TOK_HASH_START 0xcbf29ce484222325u

/* The token whose text is `a` followed by `c`, or -1; *slot is where it is or belongs. */
static int32_t tokenizer_find_joined(const tokenizer_index *index, const char *a, size_t a_bytes,
                                     const char *c,
                               size_t c_bytes, size_t *slot) {
    uint64_t hash = tokenizer_hash(tokenizer_hash(TOK_HASH_START, a, a_bytes), c, c_bytes);
    size_t mask = index->slot_count - 1;
    for (*slot = (size_t)(hash ^ hash >> 32) & mask; index->slots[*slot] >= 0;
         *slot = (*slot + 1) & mask) {
        int32_t id = index->slots[*slot];
        if (index->sizes[id] == a_bytes + c_bytes && !memcmp(index->strings[id], a, a_bytes) &&
            !memcmp(index->strings[id] + a_bytes, c, c_bytes))
            return id;
    }
    return -1;
}

static int32_t tokenizer_find(const tokenizer_index *index, const char *text, size_t bytes) {
    size_t slot;
    return tokenizer_find_joined(index, text, bytes, "", 0, &slot);
}

static void tokenizer_index_free(base *b, tokenizer_index *index, size_t vocab) {
    base_delete(b, index->strings, vocab, sizeof *index->strings);
    base_delete(b, index->sizes, vocab, sizeof *index->sizes);
    base_delete(b, index->slots, index->slot_count, sizeof *index->slots);
}

static cairn_status tokenizer_index_open(base *b, gguf_list list, tokenizer_index *index) {
    size_t vocab = (size_t)list.count, slot;
    index->slot_count = tokenizer_slots_for(vocab);
    index->strings = (const char **)base_new(b, vocab, sizeof *index->strings);
    index->sizes = (uint32_t *)base_new(b, vocab, sizeof *index->sizes);
    index->slots = (int32_t *)base_new(b, index->slot_count, sizeof *index->slots);
    if (!index->strings || !index->sizes || !index->slots)
        return base_no_memory(b, "tokenizer.ggml.tokens", vocab * sizeof *index->strings);
    memset(index->slots, 0xff, index->slot_count * sizeof *index->slots);
    for (size_t i = 0; i < vocab; i++) {
        size_t bytes;
        if (tokenizer_progress(b, (int32_t)i, vocab)) return b->status;
        index->strings[i] = gguf_next_string(&list, &bytes);
        if (bytes > UINT16_MAX)
            return base_fail(b, CAIRN_BAD_FILE, "tokenizer.ggml.tokens[%llu] has %llu bytes; at "
                             "most 65535 are sensible", (unsigned long long)i,
                             (unsigned long long)bytes);
        index->sizes[i] = (uint32_t)bytes;
        if (tokenizer_find_joined(index, index->strings[i], bytes, "", 0, &slot) < 0)
            index->slots[slot] = (int32_t)i; /* of equal texts the first counts */
    }
    return CAIRN_OK;
}

/* ---- pieces --------------------------------------------------------------------------------- */

static cairn_status tokenizer_read_kinds(base *b, const gguf *g, tokenizer *t) {
    gguf_list list = {0, 0, NULL};
    bool found;
    cairn_status status =
        gguf_array(b, g, "tokenizer.ggml.token_type", &found, GGUF_I32, &list);
    if (status) return status;
    if (found && list.count != (uint64_t)t->vocab)
        return base_fail(b, CAIRN_BAD_FILE, "%s: tokenizer.ggml.token_type has %llu entries, "
                         "tokenizer.ggml.tokens has %d", g->path, (unsigned long long)list.count,
                         (int)t->vocab);
    for (int32_t i = 0; i < t->vocab; i++) {
        uint32_t kind = found ? gguf_next_u32(&list) : TOK_NORMAL;
        t->kinds[i] = kind >= TOK_NORMAL && kind <= TOK_BYTE ? (uint8_t)kind : TOK_NORMAL;
    }
    return CAIRN_OK;
}

static int tokenizer_hex(char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static int tokenizer_byte_token(const char *text, size_t bytes) {
    int high = bytes == 6 ? tokenizer_hex(text[3]) : -1;
    int low = bytes == 6 ? tokenizer_hex(text[4]) : -1;
    return high < 0 || low < 0 || memcmp(text, "<0x", 3) || text[5] != '>' ? -1 : 16 * high + low;
}

/* Whether the file's text has U+2581, a space, at `at`. */
static bool tokenizer_has_space_mark(const char *text, size_t bytes, size_t at) {
    return bytes - at >= 3 && !memcmp(text + at, TOK_SPACE_MARK, 3);
}

/* As tokenizer_unwrite, for a token of SentencePiece. */
static size_t tokenizer_unmark(const tokenizer *t, int32_t id, const char *text, size_t bytes,
                               char *out) {
    int byte = t->kinds[id] == TOK_BYTE ? tokenizer_byte_token(text, bytes) : -1;
    size_t used = 0;
    if (byte >= 0) return *out = (char)(unsigned char)byte, 1;
    for (size_t i = 0; i < bytes; i++) {
        bool space = tokenizer_has_space_mark(text, bytes, i);
        out[used++] = space ? ' ' : text[i];
        if (space) i += 2;
    }
    return used;
}

/* Fills text and starts. Control and user-defined tokens stand for their text as it is. */
static cairn_status tokenizer_read_pieces(base *b, const gguf *g,
                                          const tokenizer_alphabet *alphabet,
                                    const tokenizer_index *index, tokenizer *t) {
    size_t used = 0;
    for (int32_t i = 0; i < t->vocab; i++) t->text_bytes += index->sizes[i];
    if (t->text_bytes > UINT32_MAX)
        return base_fail(b, CAIRN_BAD_FILE, "%s: tokenizer.ggml.tokens holds over 4 GiB", g->path);
    t->text = (char *)base_new(b, t->text_bytes, 1);
    t->starts = (uint32_t *)base_new(b, (size_t)t->vocab + 1, sizeof *t->starts);
    t->kinds = (uint8_t *)base_new(b, (size_t)t->vocab, 1);
    if (!t->text || !t->starts || !t->kinds)
        return base_no_memory(b, "tokenizer.ggml.tokens", t->text_bytes);
    if (tokenizer_read_kinds(b, g, t)) return b->status;
    for (int32_t i = 0; i < t->vocab; i++) {
        const char *string = index->strings[i];
        size_t bytes = index->sizes[i];
        t->starts[i] = (uint32_t)used;
        if (tokenizer_progress(b, i, (uint64_t)t->vocab)) return b->status;
        if (t->kinds[i] == TOK_CONTROL || (t->rule && t->kinds[i] == TOK_USER)) {
            memcpy(t->text + used, string, bytes);
            used += bytes;
        } else if (!t->rule) {
            used += tokenizer_unmark(t, i, string, bytes, t->text + used);
        } else {
            used += tokenizer_unwrite(alphabet, string, bytes, t->text + used);
        }
    }
    t->starts[t->vocab] = (uint32_t)used;
    return CAIRN_OK;
}

/* Of SentencePiece: the tokens of single bytes. */
static void tokenizer_read_byte_tokens(const tokenizer_index *index, tokenizer *t) {
    memset(t->byte_ids, 0xff, sizeof t->byte_ids);
    for (int32_t id = t->vocab - 1; id >= 0; id--) {
        int byte = t->kinds[id] == TOK_BYTE
                       ? tokenizer_byte_token(index->strings[id], index->sizes[id]) : -1;
        if (byte >= 0) t->byte_ids[byte] = id;
    }
}

/* After the kinds: no text's bytes spell a control token. */
static void tokenizer_read_bytes(const tokenizer_alphabet *alphabet, const tokenizer_index *index,
                                 tokenizer *t) {
    for (int i = 0; i < 256; i++) {
        unsigned point = alphabet->point_of[i];
        char text[2] = {(char)point, 0};
        if (point >= 0x80) {
            text[0] = (char)(0xc0 | point >> 6);
            text[1] = (char)(0x80 | (point & 63));
        }
        t->byte_ids[i] = tokenizer_find(index, text, point < 0x80 ? 1 : 2);
        if (tokenizer_is_special(t, t->byte_ids[i])) t->byte_ids[i] = -1;
    }
}

/* ---- tokens by their bytes ------------------------------------------------------------------- */

/* The plain token of these bytes and their hash, or -1; *slot is where it is or belongs. */
static int32_t tokenizer_text_slot(const tokenizer *t, uint64_t hash, const char *text,
                                   size_t bytes, size_t *slot) {
    size_t mask = t->text_slots - 1;
    for (*slot = (size_t)(hash ^ hash >> 32) & mask; t->by_text[*slot] >= 0;
         *slot = (*slot + 1) & mask) {
        int32_t id = t->by_text[*slot];
        if (t->starts[id + 1] - t->starts[id] == bytes && !memcmp(t->text + t->starts[id], text,
                                                                  bytes))
            return id;
    }
    return -1;
}

static int32_t tokenizer_text_find(const tokenizer *t, const char *text, size_t bytes) {
    size_t slot;
    return bytes > t->longest ? -1 : tokenizer_text_slot(
        t, tokenizer_hash(TOK_HASH_START, text, bytes), text, bytes, &slot);
}

/* Whether a space follows another character: then words cannot be told apart by their spaces. */
static bool tokenizer_joins_words(const char *text, size_t bytes) {
    for (size_t i = 1; i < bytes; i++)
        if (text[i] == ' ' && text[i - 1] != ' ') return true;
    return false;
}

/* After the kinds, so that no control token is found. Of equal bytes the first token counts. */
static cairn_status tokenizer_index_texts(base *b, tokenizer *t) {
    t->text_slots = tokenizer_slots_for((size_t)t->vocab);
    t->by_text = (int32_t *)base_new(b, t->text_slots, sizeof *t->by_text);
    if (!t->by_text)
        return base_no_memory(b, "tokenizer.ggml.tokens", t->text_slots * sizeof *t->by_text);
    memset(t->by_text, 0xff, t->text_slots * sizeof *t->by_text);
    t->splits_words = true;
    for (int32_t id = 0; id < t->vocab; id++) {
        const char *text = t->text + t->starts[id];
        size_t bytes = t->starts[id + 1] - t->starts[id], slot;
        bool joins = tokenizer_joins_words(text, bytes);
        if (tokenizer_progress(b, id, (uint64_t)t->vocab)) return b->status;
        if (tokenizer_is_special(t, id) || t->kinds[id] == TOK_BYTE || !bytes) continue;
        if (t->scores && t->kinds[id] == TOK_UNUSED) continue;
        if (joins && t->kinds[id] == TOK_USER) continue; /* cut out of every text before */
        if (tokenizer_text_slot(t, tokenizer_hash(TOK_HASH_START, text, bytes), text, bytes,
                                &slot) >= 0) continue;
        t->by_text[slot] = id;
        if (bytes > t->longest) t->longest = bytes;
        if (joins) t->splits_words = false;
    }
    return CAIRN_OK;
}

/* ---- scores --------------------------------------------------------------------------------- */

/* Numbers in the opposite order of the scores; what is no number comes last. */
static int32_t tokenizer_rank_of(uint32_t bits) {
    if ((bits & 0x7fffffff) > 0x7f800000) return INT32_MAX;
    if (bits >> 31) return (int32_t)(bits & 0x7fffffff);
    return -(int32_t)bits;
}

enum { TOK_UNKNOWN_PENALTY = 10 }; /* below the least score of a plain token, as SentencePiece has it */

/* A unigram model's: logarithms of how often a token is met. */
static cairn_status tokenizer_keep_scores(base *b, const gguf *g, tokenizer *t, gguf_list *list) {
    bool any = false;
    t->scores = (float *)base_new(b, (size_t)t->vocab, sizeof *t->scores);
    if (!t->scores)
        return base_no_memory(b, "tokenizer.ggml.scores", (size_t)t->vocab * sizeof *t->scores);
    for (int32_t i = 0; i < t->vocab; i++) {
        const uint32_t bits = gguf_next_u32(list);
        memcpy(&t->scores[i], &bits, sizeof bits);
        if (!isfinite(t->scores[i]))
            return base_fail(b, CAIRN_BAD_FILE, "%s: tokenizer.ggml.scores[%d] is no number",
                             g->path, (int)i);
        if (t->kinds[i] != TOK_NORMAL || (any && t->scores[i] >= t->unknown_score)) continue;
        t->unknown_score = (double)t->scores[i], any = true;
    }
    t->unknown_score -= TOK_UNKNOWN_PENALTY;
    if (!t->wide_sums) t->unknown_score = (double)(float)t->unknown_score;
    return CAIRN_OK;
}

static cairn_status tokenizer_read_scores(base *b, const gguf *g, tokenizer *t) {
    gguf_list list;
    if (gguf_array(b, g, "tokenizer.ggml.scores", NULL, GGUF_F32, &list)) return b->status;
    if (list.count != (uint64_t)t->vocab)
        return base_fail(b, CAIRN_BAD_FILE, "%s: tokenizer.ggml.scores has %llu entries, "
                         "tokenizer.ggml.tokens has %d", g->path, (unsigned long long)list.count,
                         (int)t->vocab);
    if (t->unigram) return tokenizer_keep_scores(b, g, t, &list);
    t->ranks = (int32_t *)base_new(b, (size_t)t->vocab, sizeof *t->ranks);
    if (!t->ranks)
        return base_no_memory(b, "tokenizer.ggml.scores", (size_t)t->vocab * sizeof *t->ranks);
    for (int32_t i = 0; i < t->vocab; i++) t->ranks[i] = tokenizer_rank_of(gguf_next_u32(&list));
    return CAIRN_OK;
}

/* ---- merges --------------------------------------------------------------------------------- */

static size_t tokenizer_merge_slot(const tokenizer *t, int32_t left, int32_t right) {
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    key *= 0x9e3779b97f4a7c15u;
    return (size_t)(key >> 32) & (t->merge_slots - 1);
}

/* The merge of two neighbours, or NULL. */
static const tokenizer_merge *tokenizer_merge_find(const tokenizer *t, int32_t left,
                                                   int32_t right) {
    size_t slot = tokenizer_merge_slot(t, left, right);
    for (; t->merges[slot].left >= 0; slot = (slot + 1) & (t->merge_slots - 1))
        if (t->merges[slot].left == left && t->merges[slot].right == right) return &t->merges[slot];
    return NULL;
}

/* Of equal pairs the first counts. */
static void tokenizer_merge_add(tokenizer *t, const tokenizer_merge *merge) {
    size_t slot = tokenizer_merge_slot(t, merge->left, merge->right);
    if (tokenizer_merge_find(t, merge->left, merge->right)) return;
    while (t->merges[slot].left >= 0) slot = (slot + 1) & (t->merge_slots - 1);
    t->merges[slot] = *merge;
}

/* One line of the list, "LEFT RIGHT": the first space that is not the first byte parts them. */
static bool tokenizer_read_merge(const tokenizer_index *index, const char *text, size_t bytes,
                                 tokenizer_merge *out) {
    const char *space = bytes > 1 ? (const char *)memchr(text + 1, ' ', bytes - 1) : NULL;
    size_t left, right, slot;
    if (!space) return false;
    left = (size_t)(space - text);
    right = bytes - left - 1;
    out->left = tokenizer_find(index, text, left);
    out->right = tokenizer_find(index, space + 1, right);
    out->merged = tokenizer_find_joined(index, text, left, space + 1, right, &slot);
    return out->left >= 0 && out->right >= 0 && out->merged >= 0;
}

typedef struct tokenizer_line { const char *text; size_t bytes; tokenizer_merge merge; bool good; } tokenizer_line;
typedef struct tokenizer_lines { const tokenizer_index *index; tokenizer_line *line; int count; } tokenizer_lines;

/* A pool_task, of TOK_LINES_EACH lines. */
static void tokenizer_read_lines(void *context, int part) {
    const tokenizer_lines *l = (const tokenizer_lines *)context;
    for (int i = part * TOK_LINES_EACH; i < l->count && i < (part + 1) * TOK_LINES_EACH; i++)
        l->line[i].good = tokenizer_read_merge(l->index, l->line[i].text, l->line[i].bytes, &l->line[i].merge);
}

/* Lines wait for memory most of their time: all threads look them up, and they are added in their order. */
static cairn_status tokenizer_add_lines(base *b, struct pool *threads, const gguf *g, gguf_list *list,
                                        tokenizer_lines *l, tokenizer *t) {
    const int32_t all = (int32_t)list->count;
    for (int32_t rank = 0; rank < all; rank += l->count) {
        l->count = all - rank < TOK_LINES ? all - rank : TOK_LINES;
        if (tokenizer_progress(b, rank, (uint64_t)all)) return b->status;
        for (int i = 0; i < l->count; i++) l->line[i].text = gguf_next_string(list, &l->line[i].bytes);
        pool_run(threads, (l->count + TOK_LINES_EACH - 1) / TOK_LINES_EACH, tokenizer_read_lines, l);
        for (int i = 0; i < l->count; i++) {
            tokenizer_merge *merge = &l->line[i].merge;
            if (!l->line[i].good)
                return base_fail(b, CAIRN_BAD_FILE, "%s: tokenizer.ggml.merges[%d]: not two tokens of the "
                                 "vocabulary whose join is a third", g->path, (int)rank + i);
            merge->rank = rank + i;
            if (!tokenizer_is_special(t, merge->merged)) tokenizer_merge_add(t, merge);
        }
    }
    return CAIRN_OK;
}

static cairn_status tokenizer_read_merges(base *b, struct pool *threads, const gguf *g,
                                          const tokenizer_index *index, tokenizer *t) {
    tokenizer_lines lines = {index, NULL, 0};
    gguf_list list;
    cairn_status status;
    if (gguf_array(b, g, "tokenizer.ggml.merges", NULL, GGUF_STRING, &list)) return b->status;
    if (list.count > INT32_MAX)
        return base_fail(b, CAIRN_BAD_FILE, "%s: tokenizer.ggml.merges: too many", g->path);
    t->merge_slots = tokenizer_slots_for((size_t)list.count);
    t->merges = (tokenizer_merge *)base_new(b, t->merge_slots, sizeof *t->merges);
    if (!t->merges)
        return base_no_memory(b, "tokenizer.ggml.merges", t->merge_slots * sizeof *t->merges);
    for (size_t i = 0; i < t->merge_slots; i++) t->merges[i].left = -1;
    lines.line = (tokenizer_line *)base_new(b, TOK_LINES, sizeof *lines.line);
    if (!lines.line) return base_no_memory(b, "tokenizer.ggml.merges", TOK_LINES * sizeof *lines.line);
    status = tokenizer_add_lines(b, threads, g, &list, &lines, t);
    base_delete(b, lines.line, TOK_LINES, sizeof *lines.line);
    return status;
}

/* ---- special tokens and named ids ----------------------------------------------------------- */

/* Whether the token is cut out of text. Only whole characters are, so that cutting a text of whole
 * characters leaves such texts. */
static bool tokenizer_stands_in_text(const tokenizer *t, int32_t id) {
    size_t bytes = t->starts[id + 1] - t->starts[id];
    return (t->kinds[id] == TOK_CONTROL || t->kinds[id] == TOK_USER) && bytes > 0 &&
           base_utf8_fault(t->text + t->starts[id], bytes) == bytes;
}

static cairn_status tokenizer_read_specials(base *b, tokenizer *t) {
    size_t count = 0, total = 0;
    for (int32_t i = 0; i < t->vocab; i++)
        if (tokenizer_stands_in_text(t, i)) count++, total += t->starts[i + 1] - t->starts[i];
    if (count > 65536 || total > SPECIAL_MOST_BYTES)
        return base_fail(b, CAIRN_BAD_FILE, "tokenizer.ggml.token_type: %llu special tokens of "
                         "%llu bytes; at most 65536 of 16 MiB are sensible",
                         (unsigned long long)count, (unsigned long long)total);
    if (!special_open(b, total, &t->special)) return base_no_memory(b, "special tokens", total);
    for (int32_t i = 0; i < t->vocab; i++)
        if (tokenizer_stands_in_text(t, i))
            special_add(&t->special, i, t->text + t->starts[i], t->starts[i + 1] - t->starts[i],
                        t->kinds[i] == TOK_USER);
    return special_link(b, &t->special) ? CAIRN_OK : base_no_memory(b, "special tokens", total);
}

static cairn_status tokenizer_read_id(base *b, const gguf *g, model_survey *survey, const char *key,
                                      tokenizer *t, int32_t *out) {
    uint32_t id = 0;
    bool found;
    *out = -1;
    if (gguf_u32(b, g, key, &found, &id)) return b->status;
    if (found && id >= (uint32_t)t->vocab)
        return survey_go_on(b, survey, base_fail(b, CAIRN_BAD_FILE, "%s: %s is %u; the vocabulary has %d "
                                                 "tokens", g->path, key, id, (int)t->vocab));
    if (found) *out = (int32_t)id;
    return CAIRN_OK;
}

/* A token that the file calls user-defined, and that begins or ends what a model says. */
static void tokenizer_make_control(tokenizer *t, int32_t id) {
    if (id >= 0 && t->kinds[id] == TOK_USER) t->kinds[id] = TOK_CONTROL;
}

static cairn_status tokenizer_read_ids(base *b, const gguf *g, model_survey *survey, tokenizer *t) {
    bool found;
    t->space_prefix = true;
    t->adds_bos = t->rule ? t->rule->adds_bos : !t->unigram;
    t->whole_words = t->rule && t->rule->whole_words;
    if (tokenizer_read_id(b, g, survey, "tokenizer.ggml.bos_token_id", t, &t->bos) ||
        tokenizer_read_id(b, g, survey, "tokenizer.ggml.eos_token_id", t, &t->eos) ||
        tokenizer_read_id(b, g, survey, "tokenizer.ggml.eot_token_id", t, &t->eot) ||
        tokenizer_read_id(b, g, survey, "tokenizer.ggml.eom_token_id", t, &t->eom) ||
        tokenizer_read_id(b, g, survey, "tokenizer.ggml.unknown_token_id", t, &t->unknown) ||
        gguf_bool(b, g, GGUF_WHOLE_WORDS, &found, &t->whole_words) ||
        gguf_bool(b, g, "tokenizer.ggml.add_space_prefix", &found, &t->space_prefix) ||
        gguf_bool(b, g, GGUF_PREFIX_ONCE, &found, &t->prefix_once) ||
        gguf_bool(b, g, GGUF_PREFIX_FIRST, &found, &t->prefix_first) ||
        gguf_bool(b, g, GGUF_EACH_SPACE, &found, &t->each_space) ||
        gguf_bool(b, g, GGUF_WIDE_SUMS, &found, &t->wide_sums) ||
        gguf_bool(b, g, "tokenizer.ggml.remove_extra_whitespaces", &found, &t->trims) ||
        gguf_bool(b, g, "tokenizer.ggml.add_bos_token", &found, &t->adds_bos))
        return b->status;
    t->adds_bos = t->adds_bos && t->bos >= 0;
    tokenizer_make_control(t, t->bos);
    tokenizer_make_control(t, t->eos);
    tokenizer_make_control(t, t->eot);
    tokenizer_make_control(t, t->eom);
    return CAIRN_OK;
}

/* Whether the token is one of Phi 3's that take white space: all special ones but three. */
static bool tokenizer_phi3_strips(const tokenizer *t, int32_t id) {
    static const char *const keep[] = {"<unk>", "<s>", "<|endoftext|>"};
    const size_t bytes = t->starts[id + 1] - t->starts[id];
    for (size_t i = 0; i < BASE_COUNT(keep); i++)
        if (strlen(keep[i]) == bytes && !memcmp(keep[i], t->text + t->starts[id], bytes)) return false;
    return tokenizer_stands_in_text(t, id);
}

/* After the kinds. GGUF has no key for it: its files of Phi 3 are known by their vocabulary. */
static cairn_status tokenizer_read_strips(base *b, const gguf *g, tokenizer *t) {
    gguf_list list = {0, 0, NULL};
    const char *name = "";
    size_t bytes = 0;
    bool found, phi3;
    if (gguf_array(b, g, GGUF_STRIPS, &found, GGUF_I32, &list) ||
        gguf_string(b, g, "general.architecture", &phi3, &name, &bytes))
        return b->status;
    phi3 = !found && !t->rule && bytes == 4 && !memcmp(name, "phi3", 4);
    if (!phi3 && !list.count) return CAIRN_OK;
    t->strips = (uint8_t *)base_new(b, (size_t)t->vocab, 1);
    if (!t->strips) return base_no_memory(b, "special tokens", (size_t)t->vocab);
    for (uint64_t i = 0; i < list.count; i++) {
        const uint32_t id = gguf_next_u32(&list);
        if (id < (uint32_t)t->vocab) t->strips[id] = true;
    }
    for (int32_t id = 0; phi3 && id < t->vocab; id++) t->strips[id] = tokenizer_phi3_strips(t, id);
    return CAIRN_OK;
}

/* ---- open ----------------------------------------------------------------------------------- */

/* The rule of a pre-tokenizer's name, or NULL. */
static const tokenizer_rule *tokenizer_rule_find(const char *name, size_t bytes) {
    char wanted[32];
    if (!bytes || bytes > sizeof wanted - 3 || memchr(name, ' ', bytes)) return NULL;
    snprintf(wanted, sizeof wanted, " %.*s ", (int)bytes, name);
    for (size_t i = 0; i < BASE_COUNT(tokenizer_rules); i++)
        if (strstr(tokenizer_rules[i].names, wanted)) return &tokenizer_rules[i];
    return NULL;
}

static cairn_status tokenizer_no_rule(base *b, const gguf *g, const char *pre, size_t bytes) {
    char known[512];
    size_t at = 0;
    for (size_t i = 0; i < BASE_COUNT(tokenizer_rules); i++)
        at += (size_t)snprintf(known + at, sizeof known - at, "%s", tokenizer_rules[i].names + !!i);
    known[at - 1] = '\0'; /* the space behind the last name */
    return base_fail(b, CAIRN_UNSUPPORTED, "%s: tokenizer.ggml.pre is '%.*s'; supported:%s",
                     g->path, (int)(bytes < 64 ? bytes : 64), pre, known);
}

/* A model of SentencePiece may say how characters are replaced first; only that none is has code. */
static cairn_status tokenizer_check_charsmap(base *b, const gguf *g, model_survey *survey) {
    static const char *const key = "tokenizer.ggml.precompiled_charsmap";
    gguf_list list = {0, 0, NULL};
    bool found;
    if (gguf_array(b, g, key, &found, GGUF_U8, &list)) return b->status;
    if (!list.count) return CAIRN_OK;
    return survey_go_on(b, survey, base_fail(b, CAIRN_UNSUPPORTED, "%s: %s replaces characters (a "
                                             "normalization such as nmt_nfkc); identity is supported",
                                             g->path, key));
}

/* What the vocabulary is: t->rule, t->unigram. */
static cairn_status tokenizer_read_pre(base *b, const gguf *g, model_survey *survey, tokenizer *t) {
    const char *model = "", *pre = "";
    size_t model_bytes = 0, pre_bytes = 0;
    bool found;
    if (gguf_string(b, g, "tokenizer.ggml.model", NULL, &model, &model_bytes) ||
        gguf_string(b, g, "tokenizer.ggml.pre", &found, &pre, &pre_bytes))
        return b->status;
    t->unigram = model_bytes == 2 && !memcmp(model, "t5", 2);
    if (t->unigram || (model_bytes == 5 && !memcmp(model, "llama", 5)))
        return tokenizer_check_charsmap(b, g, survey);
    if (model_bytes != 4 || memcmp(model, "gpt2", 4) != 0)
        return base_fail(b, CAIRN_UNSUPPORTED, "%s: tokenizer.ggml.model is '%.*s'; supported: "
                         "gpt2 (byte-level BPE), llama (SentencePiece), t5 (its unigram models)", g->path,
                         (int)(model_bytes < 64 ? model_bytes : 64), model);
    if ((t->rule = tokenizer_rule_find(pre, pre_bytes)) != NULL) return CAIRN_OK;
    t->rule = tokenizer_rules; /* for a survey any will do: the tables are those of BPE */
    return survey_go_on(b, survey, tokenizer_no_rule(b, g, pre, pre_bytes));
}

static cairn_status tokenizer_read_template(base *b, const gguf *g, tokenizer *t); /* these in chat.c */
static void tokenizer_control_chat(const tokenizer_index *index, tokenizer *t);
static cairn_status tokenizer_find_marks(base *b, tokenizer *t);

/* After the pieces it is known what is a control token. */
static cairn_status tokenizer_read(base *b, struct pool *threads, const gguf *g, model_survey *survey,
                                   const tokenizer_index *index, tokenizer *t) {
    tokenizer_alphabet alphabet;
    bool by_merges;
    tokenizer_make_alphabet(&alphabet);
    /* SentencePiece's vocabulary as tokenizer.json has it goes by merges */
    by_merges = t->rule || (!t->unigram && !gguf_has(g, "tokenizer.ggml.scores") &&
                            gguf_has(g, "tokenizer.ggml.merges"));
    if (tokenizer_read_pieces(b, g, &alphabet, index, t) || tokenizer_read_ids(b, g, survey, t))
        return b->status;
    tokenizer_control_chat(index, t);
    if (survey_go_on(b, survey, by_merges ? tokenizer_read_merges(b, threads, g, index, t)
                                          : tokenizer_read_scores(b, g, t)) ||
        ((!t->rule || t->whole_words) && tokenizer_index_texts(b, t)))
        return b->status;
    if (t->rule) tokenizer_read_bytes(&alphabet, index, t);
    else tokenizer_read_byte_tokens(index, t);
    if (survey_go_on(b, survey, tokenizer_read_specials(b, t)) || tokenizer_read_strips(b, g, t))
        return b->status;
    return survey ? CAIRN_OK : tokenizer_find_marks(b, t); /* which needs all tables */
}

static void tokenizer_close(base *b, tokenizer *t) {
    base_delete(b, t->text, t->text_bytes, 1);
    base_delete(b, t->starts, (size_t)t->vocab + 1, sizeof *t->starts);
    base_delete(b, t->kinds, (size_t)t->vocab, 1);
    base_delete(b, t->strips, (size_t)t->vocab, 1);
    base_delete(b, t->by_text, t->text_slots, sizeof *t->by_text);
    base_delete(b, t->ranks, (size_t)t->vocab, sizeof *t->ranks);
    base_delete(b, t->scores, (size_t)t->vocab, sizeof *t->scores);
    base_delete(b, t->merges, t->merge_slots, sizeof *t->merges);
    special_close(b, &t->special);
    base_text_free(b, &t->chat_system);
    base_text_free(b, &t->chat_quiet);
    base_text_free(b, &t->chat_template);
    memset(t, 0, sizeof *t);
}

/* On failure *t is half made. */
static cairn_status tokenizer_make(base *b, struct pool *threads, const gguf *g, model_survey *survey,
                                   tokenizer *t) {
    gguf_list list;
    tokenizer_index index;
    cairn_status status;
    memset(t, 0, sizeof *t);
    memset(&index, 0, sizeof index);
    if (survey_go_on(b, survey, tokenizer_read_template(b, g, t)) || tokenizer_read_pre(b, g, survey, t))
        return b->status;
    if (gguf_array(b, g, "tokenizer.ggml.tokens", NULL, GGUF_STRING, &list)) return b->status;
    if (list.count == 0 || list.count > INT32_MAX / 2)
        return base_fail(b, CAIRN_BAD_FILE, "%s: tokenizer.ggml.tokens has %llu entries", g->path,
                         (unsigned long long)list.count);
    t->vocab = (int32_t)list.count;
    status = tokenizer_index_open(b, list, &index);
    if (!status) status = tokenizer_read(b, threads, g, survey, &index, t);
    tokenizer_index_free(b, &index, (size_t)t->vocab);
    return status;
}

static cairn_status tokenizer_open(base *b, struct pool *threads, const gguf *g, tokenizer *t) {
    cairn_status status = tokenizer_make(b, threads, g, NULL, t);
    if (status) tokenizer_close(b, t);
    return status;
}

static cairn_status tokenizer_survey(base *b, const gguf *g, model_survey *survey, bool *knows_chat) {
    tokenizer t;
    cairn_status status = tokenizer_make(b, NULL, g, survey, &t);
    *knows_chat = t.has_chat;
    tokenizer_close(b, &t);
    return status;
}
