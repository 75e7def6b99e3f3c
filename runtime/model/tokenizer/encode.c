/* tokenizer_encode: text into ids. Special tokens are cut out of the text first, the rest is cut
 * into words, and each word's bytes (BPE) or characters (SentencePiece) are merged, lowest rank
 * first, through a heap: O(n log n) in the length of a word, and linear in all else. A unigram model's
 * words are cut where the scores have the greatest sum: a look for each length that a token may have. */

/* ---- merging -------------------------------------------------------------------------------- */

/* A symbol of a word, in a list; id -1: merged away. Symbols of SentencePiece stand at the byte where
 * they begin, and their id is how many bytes they have: they need not be tokens yet. */
typedef struct tokenizer_symbol { int32_t id, previous, next; } tokenizer_symbol;

/* A merge that was possible when it was found: at symbol `at`, which then was `left` and followed
 * by `right`. */
typedef struct tokenizer_candidate { int32_t rank, at, left, right, merged; } tokenizer_candidate;

/* Memory for one word, kept from word to word, and whether the caller has had enough. */
typedef struct tokenizer_work {
    const tokenizer *t;
    os_atomic *cancel; /* or NULL */
    size_t since;      /* steps since it was looked at */
    bool cancelled;
    tokenizer_symbol *symbols;   /* [room] */
    tokenizer_candidate *heap;   /* [2 * room] least first; each merge takes one and adds at most two */
    double *sums;                /* [room] of a unigram model: the best up to a byte, */
    double sum;                  /* and up to the word */
    size_t room, heap_size;
    const char *text;  /* all of it */
    const char *word;  /* SentencePiece: the word's bytes */
    base_text spelled; /* and where they are written */
} tokenizer_work;

/* False when the caller has cancelled: asked before every `steps` steps of work. */
static bool tokenizer_goes_on(tokenizer_work *w, size_t steps) {
    w->since += steps;
    if (w->since < 65536 || !w->cancel) return true;
    w->since = 0;
    w->cancelled = os_atomic_load(w->cancel) != 0;
    return !w->cancelled;
}

static bool tokenizer_less(const tokenizer_candidate *a, const tokenizer_candidate *c) {
    return a->rank != c->rank ? a->rank < c->rank : a->at < c->at;
}

static void tokenizer_push(tokenizer_work *w, const tokenizer_candidate *candidate) {
    size_t at = w->heap_size++;
    while (at && tokenizer_less(candidate, &w->heap[(at - 1) / 2])) {
        w->heap[at] = w->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    w->heap[at] = *candidate;
}

static tokenizer_candidate tokenizer_pop(tokenizer_work *w) {
    tokenizer_candidate top = w->heap[0], last = w->heap[--w->heap_size];
    size_t at = 0, child;
    while ((child = 2 * at + 1) < w->heap_size) {
        if (child + 1 < w->heap_size && tokenizer_less(&w->heap[child + 1],
                                                       &w->heap[child])) child++;
        if (!tokenizer_less(&w->heap[child], &last)) break;
        w->heap[at] = w->heap[child];
        at = child;
    }
    w->heap[at] = last;
    return top;
}

/* The same of SentencePiece. By scores any two neighbours merge that together are a token. */
static void tokenizer_consider_score(tokenizer_work *w, int32_t at, int32_t next) {
    tokenizer_candidate c = {0, at, w->symbols[at].id, w->symbols[next].id, 0};
    const tokenizer *t = w->t;
    c.merged = c.left + c.right;
    if (t->ranks) {
        int32_t id = tokenizer_text_find(t, w->word + at, (size_t)c.merged);
        if (id < 0) return;
        c.rank = t->ranks[id];
    } else {
        const tokenizer_merge *merge = tokenizer_merge_find(
            t, tokenizer_text_find(t, w->word + at, (size_t)c.left),
            tokenizer_text_find(t, w->word + next, (size_t)c.right));
        if (!merge) return;
        c.rank = merge->rank;
    }
    tokenizer_push(w, &c);
}

/* Adds the merge of the symbols `at` and its next, when there is one. */
static void tokenizer_consider(tokenizer_work *w, int32_t at) {
    int32_t next = at < 0 ? -1 : w->symbols[at].next;
    const tokenizer_merge *merge;
    tokenizer_candidate candidate;
    if (next < 0) return;
    if (!w->t->rule) {
        tokenizer_consider_score(w, at, next);
        return;
    }
    merge = tokenizer_merge_find(w->t, w->symbols[at].id, w->symbols[next].id);
    if (!merge) return;
    candidate.rank = merge->rank;
    candidate.at = at;
    candidate.left = merge->left;
    candidate.right = merge->right;
    candidate.merged = merge->merged;
    tokenizer_push(w, &candidate);
}

static void tokenizer_apply(tokenizer_work *w, const tokenizer_candidate *c) {
    tokenizer_symbol *left = &w->symbols[c->at];
    int32_t right = left->id == c->left ? left->next : -1;
    if (right < 0 || w->symbols[right].id != c->right) return; /* found before another merge */
    left->id = c->merged;
    left->next = w->symbols[right].next;
    if (left->next >= 0) w->symbols[left->next].previous = c->at;
    w->symbols[right].id = -1;
    tokenizer_consider(w, left->previous);
    tokenizer_consider(w, c->at);
}

/* The bytes as symbols; bytes that the vocabulary lacks are dropped. Returns how many. */
static int32_t tokenizer_spell(tokenizer_work *w, const char *word, size_t bytes) {
    int32_t count = 0;
    for (size_t i = 0; i < bytes; i++) {
        int32_t id = w->t->byte_ids[(unsigned char)word[i]];
        if (id < 0) continue;
        w->symbols[count].id = id;
        w->symbols[count].previous = count - 1;
        w->symbols[count].next = count + 1;
        count++;
    }
    if (count) w->symbols[count - 1].next = -1;
    return count;
}

static bool tokenizer_make_room(base *b, tokenizer_work *w, size_t bytes) {
    size_t room = w->room ? w->room : 64;
    if (bytes <= w->room) return true;
    while (room < bytes) room *= 2;
    base_delete(b, w->symbols, w->room, sizeof *w->symbols);
    base_delete(b, w->heap, 2 * w->room, sizeof *w->heap);
    base_delete(b, w->sums, w->room, sizeof *w->sums);
    w->symbols = (tokenizer_symbol *)base_new(b, room, sizeof *w->symbols);
    w->heap = NULL, w->sums = NULL;
    if (w->t->scores) w->sums = (double *)base_new(b, room, sizeof *w->sums);
    else w->heap = (tokenizer_candidate *)base_new(b, 2 * room, sizeof *w->heap);
    w->room = room;
    return w->symbols && (w->heap || w->sums);
}

/* Merges until nothing merges; false when the caller has cancelled. */
static bool tokenizer_merge_all(tokenizer_work *w) {
    while (w->heap_size) {
        tokenizer_candidate candidate = tokenizer_pop(w);
        if (!tokenizer_goes_on(w, w->t->rule ? 1 : (size_t)candidate.merged)) return false;
        tokenizer_apply(w, &candidate);
    }
    return true;
}

static bool tokenizer_encode_word(base *b, tokenizer_work *w, const char *word, size_t bytes,
                                  tokenizer_ids *out) {
    int32_t count, whole = -1;
    if (w->t->whole_words) whole = tokenizer_text_find(w->t, word, bytes);
    if (whole >= 0) return tokenizer_ids_add(b, out, whole);
    if (!tokenizer_make_room(b, w, bytes)) return false;
    count = tokenizer_spell(w, word, bytes);
    w->heap_size = 0;
    for (int32_t i = 0; i < count; i++) tokenizer_consider(w, i);
    if (!tokenizer_merge_all(w)) return false;
    for (int32_t i = 0; i < count; i++)
        if (w->symbols[i].id >= 0 && !tokenizer_ids_add(b, out, w->symbols[i].id)) return false;
    return true;
}

/* ---- SentencePiece -------------------------------------------------------------------------- */

/* A symbol for each character. */
static void tokenizer_spell_characters(tokenizer_work *w, size_t bytes) {
    int32_t last = -1;
    for (size_t i = 0; i < bytes; i++) w->symbols[i].id = -1;
    for (size_t i = 0; i < bytes; i += (size_t)w->symbols[i].id) {
        w->symbols[i].id = base_utf8_length((unsigned char)w->word[i]);
        w->symbols[i].previous = last;
        w->symbols[i].next = -1;
        if (last >= 0) w->symbols[last].next = (int32_t)i;
        last = (int32_t)i;
    }
}

/* Merges what stands in w->word; false when the caller has cancelled. */
static bool tokenizer_merge_pieces(tokenizer_work *w, size_t bytes) {
    tokenizer_spell_characters(w, bytes);
    w->heap_size = 0;
    for (int32_t at = bytes ? 0 : -1; at >= 0; at = w->symbols[at].next) tokenizer_consider(w, at);
    return tokenizer_merge_all(w);
}

/* Adds the token of a symbol. One that is none is spelled in bytes, or unknown: one token for a
 * character, or for several of them in a row. */
static bool tokenizer_add_piece(base *b, const tokenizer_work *w, size_t at, size_t bytes,
                                bool *unknown, tokenizer_ids *out) {
    const tokenizer *t = w->t;
    int32_t id = tokenizer_text_find(t, w->word + at, bytes);
    bool spelled = true, again = *unknown;
    *unknown = false;
    if (id >= 0) return tokenizer_ids_add(b, out, id);
    for (size_t i = at; i < at + bytes; i++)
        spelled = spelled && t->byte_ids[(unsigned char)w->word[i]] >= 0;
    for (size_t i = at; i < at + bytes && spelled; i++)
        if (!tokenizer_ids_add(b, out, t->byte_ids[(unsigned char)w->word[i]])) return false;
    *unknown = !spelled;
    return spelled || again || t->unknown < 0 || tokenizer_ids_add(b, out, t->unknown);
}

/* ---- a unigram model ------------------------------------------------------------------------- */

/* A piece may end before byte `end`, begun at `at`: of equal sums the first stays, which is the longest
 * piece's. Floats, as SentencePiece's, or doubles tell what is equal. Symbols here are ends: `previous`
 * is where the piece begins. */
static void tokenizer_reach(tokenizer_work *w, size_t at, size_t end, double score) {
    tokenizer_symbol *last = &w->symbols[end - 1];
    double sum = score + (at ? w->sums[at - 1] : w->sum);
    if (!w->t->wide_sums) sum = (double)(float)sum;
    if (last->previous >= 0 && !(sum > w->sums[end - 1])) return;
    last->previous = (int32_t)at;
    w->sums[end - 1] = sum;
}

/* All pieces that begin at `at`, or the unknown one. Returns the bytes of the character there. */
static size_t tokenizer_reach_from(tokenizer_work *w, size_t at, size_t bytes) {
    const tokenizer *t = w->t;
    const size_t one = (size_t)base_utf8_length((unsigned char)w->word[at]);
    const size_t most = bytes - at < t->longest ? bytes - at : t->longest;
    uint64_t hash = TOK_HASH_START;
    bool known = false;
    for (size_t size = 1; size <= most; size++) {
        size_t slot;
        int32_t id;
        hash = tokenizer_hash(hash, w->word + at + size - 1, 1);
        id = tokenizer_text_slot(t, hash, w->word + at, size, &slot);
        if (id < 0) continue;
        tokenizer_reach(w, at, at + size, (double)t->scores[id]);
        known = known || size == one;
    }
    if (!known) tokenizer_reach(w, at, at + one, t->unknown_score);
    return one;
}

/* The pieces whose scores have the greatest sum (Viterbi's way): symbols of so many bytes each. False
 * when the caller has cancelled. */
static bool tokenizer_choose_pieces(tokenizer_work *w, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) w->symbols[i].id = w->symbols[i].previous = -1;
    for (size_t at = 0; at < bytes;) {
        if (!tokenizer_goes_on(w, w->t->longest < bytes ? w->t->longest : bytes)) return false;
        at += tokenizer_reach_from(w, at, bytes);
    }
    if (bytes && !w->t->each_space) w->sum = w->sums[bytes - 1];
    for (size_t end = bytes; end;) {
        const size_t at = (size_t)w->symbols[end - 1].previous;
        w->symbols[at].id = (int32_t)(end - at);
        end = at;
    }
    return true;
}

/* The ids of what stands in w->spelled. */
static bool tokenizer_encode_spelled(base *b, tokenizer_work *w, bool *unknown,
                                     tokenizer_ids *out) {
    size_t bytes = w->spelled.size;
    w->word = w->spelled.data;
    if (!tokenizer_make_room(b, w, bytes)) return false;
    if (!(w->t->scores ? tokenizer_choose_pieces(w, bytes) : tokenizer_merge_pieces(w, bytes)))
        return false;
    for (size_t i = 0; i < bytes; i++)
        if (w->symbols[i].id > 0 &&
            !tokenizer_add_piece(b, w, i, (size_t)w->symbols[i].id, unknown, out)) return false;
    return true;
}

/* Writes the next word to w->spelled, behind the space that may stand there, and returns its bytes
 * in the text: spaces, then others. Where tokens reach over words the text is one. */
static size_t tokenizer_take_words(base *b, tokenizer_work *w, const char *text, size_t bytes) {
    const tokenizer *t = w->t;
    size_t at = 0;
    bool begun = t->each_space && w->spelled.size;
    while (at < bytes) {
        bool mark = tokenizer_has_space_mark(text, bytes, at), space = mark || text[at] == ' ';
        if (space && begun && (t->splits_words || t->each_space)) break;
        begun = begun || !space || t->each_space;
        while (t->trims && at + 1 < bytes && text[at] == ' ' && text[at + 1] == ' ') at++;
        if (!base_text_add(b, &w->spelled, mark ? " " : text + at, 1)) return 0;
        at += mark ? 3 : 1;
    }
    return at;
}

static bool tokenizer_puts_space(const tokenizer_work *w, const char *text, size_t bytes) {
    const tokenizer *t = w->t;
    if (!bytes || !t->space_prefix || (t->prefix_first && text != w->text)) return false;
    return !t->prefix_once || (*text != ' ' && !tokenizer_has_space_mark(text, bytes, 0));
}

static bool tokenizer_encode_pieces(base *b, tokenizer_work *w, const char *text, size_t bytes,
                                    tokenizer_ids *out) {
    bool unknown = false, space;
    for (size_t mark; w->t->trims && bytes; bytes -= mark) {
        mark = bytes > 2 && tokenizer_has_space_mark(text, bytes, bytes - 3) ? 3 : 1;
        if (mark == 1 && text[bytes - 1] != ' ') break;
    }
    space = tokenizer_puts_space(w, text, bytes);
    for (; w->t->trims && bytes && *text == ' '; bytes--) text++;
    w->spelled.size = 0, w->sum = 0;
    if (space && !base_text_add(b, &w->spelled, " ", 1)) return false;
    for (size_t at = 0, size; at < bytes; at += size) {
        size = tokenizer_take_words(b, w, text + at, bytes - at);
        if (!size || !tokenizer_goes_on(w, size) ||
            !tokenizer_encode_spelled(b, w, &unknown, out)) return false;
        w->spelled.size = 0;
    }
    return true;
}

/* ---- text ----------------------------------------------------------------------------------- */

/* Of two tokens, -1 for none, the one with the longer text. */
static int32_t tokenizer_longer(const tokenizer *t, int32_t a, int32_t c) {
    size_t a_bytes, c_bytes;
    tokenizer_piece(t, a, &a_bytes);
    tokenizer_piece(t, c, &c_bytes);
    return c_bytes > a_bytes ? c : a;
}

/* Adds to *found where each special token begins, and which: pairs of offset and id, the last
 * offset first. Of those that begin at one place it is the longest. */
static bool tokenizer_find_specials(base *b, tokenizer_work *w, const char *text, size_t bytes,
                                    const tokenizer_span *spans, size_t count,
                                    tokenizer_ids *found) {
    const special_finder *f = &w->t->special;
    bool apart = f->has_user && (count > 1 || !spans[0].special);
    int32_t user = 0; /* goes on over the ends of spans, where control tokens do not */
    size_t at = bytes;
    while (count-- > 0) {
        size_t end = at - spans[count].bytes;
        int32_t any = 0;
        if (!spans[count].special && !apart) at = end;
        while (at-- > end) {
            unsigned byte = (unsigned char)text[at];
            int32_t id = -1;
            if (at % 4096 == 0 && !tokenizer_goes_on(w, 4096)) return false;
            if (!apart && !any && !f->first[byte]) continue; /* no special text ends with it */
            if (spans[count].special) id = f->states[any = special_step(f, any, byte)].any;
            if (apart) {
                user = special_step(f, user, byte);
                id = tokenizer_longer(w->t, id, f->states[user].user);
            }
            if (id < 0) continue;
            if (!tokenizer_ids_add(b, found, (int32_t)at) || !tokenizer_ids_add(b, found, id))
                return false;
        }
        at = end;
    }
    return true;
}

static bool tokenizer_encode_plain(base *b, tokenizer_work *w, const char *text, size_t bytes,
                                   tokenizer_ids *out) {
    if (!w->t->rule) return tokenizer_encode_pieces(b, w, text, bytes, out);
    for (size_t at = 0; at < bytes;) {
        size_t size = tokenizer_word(w->t->rule, text + at, bytes - at);
        if (!tokenizer_goes_on(w, size) || !tokenizer_encode_word(b, w, text + at, size, out))
            return false;
        at += size;
    }
    return true;
}

/* The text between the special tokens, and these: the leftmost first, the rest where it ends. */
static bool tokenizer_encode_all(base *b, tokenizer_work *w, const char *text, size_t bytes,
                                 const tokenizer_ids *found, tokenizer_ids *out) {
    size_t from = 0;
    for (size_t i = found->size; i >= 2; i -= 2) {
        size_t at = (size_t)found->data[i - 2], size;
        int32_t id = found->data[i - 1];
        if (at < from) continue;
        if (!tokenizer_encode_plain(b, w, text + from, at - from, out) ||
            !tokenizer_ids_add(b, out, id))
            return false;
        tokenizer_piece(w->t, id, &size);
        from = at + size;
    }
    return tokenizer_encode_plain(b, w, text + from, bytes - from, out);
}

static cairn_status tokenizer_check_text(base *b, const char *text, size_t bytes) {
    size_t fault;
    if (bytes > INT32_MAX / 2)
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "text: %llu bytes; at most 1 GiB at once",
                         (unsigned long long)bytes);
    fault = base_utf8_fault(text, bytes);
    if (fault == bytes) return CAIRN_OK;
    return base_fail(b, CAIRN_INVALID_UTF8, "text: byte %llu (0x%02x) does not begin a whole "
                     "UTF-8 character", (unsigned long long)fault,
                     (unsigned)(unsigned char)text[fault]);
}

static cairn_status tokenizer_encode_spans(base *b, const tokenizer *t, const char *text,
                                           const tokenizer_span *spans, size_t count,
                                           os_atomic *cancel, tokenizer_ids *out) {
    tokenizer_work work;
    tokenizer_ids found = {NULL, 0, 0};
    size_t before = out->size, bytes = 0;
    bool done;
    for (size_t i = 0; i < count; i++) bytes += spans[i].bytes;
    if (tokenizer_check_text(b, text, bytes)) return b->status;
    memset(&work, 0, sizeof work);
    work.t = t;
    work.cancel = cancel, work.text = text;
    done = tokenizer_find_specials(b, &work, text, bytes, spans, count, &found) &&
           tokenizer_encode_all(b, &work, text, bytes, &found, out);
    tokenizer_ids_free(b, &found);
    base_delete(b, work.symbols, work.room, sizeof *work.symbols);
    base_delete(b, work.heap, 2 * work.room, sizeof *work.heap);
    base_delete(b, work.sums, work.room, sizeof *work.sums);
    base_text_free(b, &work.spelled);
    if (done) return CAIRN_OK;
    out->size = before;
    if (work.cancelled) return base_fail(b, CAIRN_CANCELLED, "cancelled while reading a text");
    return base_no_memory(b, "tokenizer_encode", bytes);
}

static cairn_status tokenizer_encode(base *b, const tokenizer *t, const char *text, size_t bytes,
                                     bool special, tokenizer_ids *out) {
    tokenizer_span whole = {bytes, special};
    return tokenizer_encode_spans(b, t, text, &whole, 1, NULL, out);
}
