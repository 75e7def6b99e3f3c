/* mask: which tokens of a vocabulary a state of a grammar allows. */

enum { MASK_KEPT = 32 /* of a grammar, besides those of the forward in flight */ };

/* ---- the vocabulary in order ----------------------------------------------------------------- */

typedef struct mask_word { const char *text; uint32_t bytes; int32_t id; } mask_word;

static int mask_order(const void *a, const void *b) {
    const mask_word *x = (const mask_word *)a, *y = (const mask_word *)b;
    int order = memcmp(x->text, y->text, x->bytes < y->bytes ? x->bytes : y->bytes);
    if (order) return order;
    return x->bytes != y->bytes ? (x->bytes > y->bytes) - (x->bytes < y->bytes)
                                : (x->id > y->id) - (x->id < y->id);
}

/* The words, in order; how many. */
static int mask_collect(const tokenizer *t, mask_word *words) {
    int count = 0;
    for (int32_t id = 0; id < t->vocab; id++) {
        size_t bytes;
        const char *text = tokenizer_piece(t, id, &bytes);
        if (!bytes || bytes >= UINT16_MAX || tokenizer_is_special(t, id) || tokenizer_is_end(t, id))
            continue;
        words[count].text = text, words[count].bytes = (uint32_t)bytes, words[count++].id = id;
    }
    qsort(words, (size_t)count, sizeof *words, mask_order);
    return count;
}

static void mask_close(base *b, grammar_words *w) {
    base_delete(b, w->ids, (size_t)w->vocab, sizeof *w->ids);
    base_delete(b, w->shared, (size_t)w->vocab, sizeof *w->shared);
    base_delete(b, w->path, (size_t)w->longest + 1, sizeof *w->path);
    memset(w, 0, sizeof *w);
}

static void mask_list(const mask_word *words, grammar_words *w) {
    for (int i = 0; i < w->count; i++) {
        const mask_word *x = &words[i], *before = &words[i ? i - 1 : 0];
        uint32_t most = i ? x->bytes < before->bytes ? x->bytes : before->bytes : 0, same = 0;
        while (same < most && x->text[same] == before->text[same]) same++;
        w->ids[i] = x->id;
        w->shared[i] = (uint16_t)same;
        if ((int)x->bytes > w->longest) w->longest = (int)x->bytes;
    }
}

/* The words of a vocabulary, into an empty *w. */
static cairn_status mask_open(base *b, const tokenizer *t, grammar_words *w) {
    size_t vocab = (size_t)t->vocab;
    mask_word *words = (mask_word *)base_new(b, vocab, sizeof *words);
    w->t = t;
    w->vocab = t->vocab;
    w->ids = (int32_t *)base_new(b, vocab, sizeof *w->ids);
    w->shared = (uint16_t *)base_new(b, vocab, sizeof *w->shared);
    if (words && w->ids && w->shared) {
        w->count = mask_collect(t, words);
        mask_list(words, w);
        w->path = (int32_t *)base_new(b, (size_t)w->longest + 1, sizeof *w->path);
    }
    base_delete(b, words, vocab, sizeof *words);
    if (w->path) return CAIRN_OK;
    w->longest = -1; /* no path */
    mask_close(b, w);
    return base_no_memory(b, "a vocabulary's order", vocab * sizeof *words);
}

/* ---- masks ----------------------------------------------------------------------------------- */

static size_t mask_words(const grammar_words *w) { return ((size_t)w->vocab + 31) / 32; }

/* Reads word i from its byte `from` on; how many of its bytes are allowed, -1: it failed. */
static int mask_read(base *b, grammar *g, grammar_words *w, int i, int from) {
    size_t bytes;
    const char *text = tokenizer_piece(w->t, w->ids[i], &bytes);
    for (; from < (int)bytes; from++) {
        int state = grammar_step(b, g, w->path[from], (unsigned char)text[from]);
        if (state <= 0) return state ? -1 : from;
        w->path[from + 1] = state;
    }
    return from;
}

static void mask_set(grammar_mask *m, int32_t id) {
    m->bits[id / 32] |= 1u << id % 32;
    m->any = true;
}

/* All tokens after `state`. A word that shares more with the one before than of that is allowed is
 * not allowed either. */
static bool mask_fill(base *b, grammar *g, grammar_words *w, int state, grammar_mask *m) {
    int reach = 0;
    memset(m->bits, 0, mask_words(w) * sizeof *m->bits);
    m->any = false;
    m->state = -1;
    w->path[0] = state;
    for (int i = 0; i < w->count; i++) {
        if (w->shared[i] > reach) continue;
        if ((reach = mask_read(b, g, w, i, w->shared[i])) < 0) return false;
        if (reach == (int)(w->t->starts[w->ids[i] + 1] - w->t->starts[w->ids[i]]))
            mask_set(m, w->ids[i]);
    }
    for (int32_t id = 0; id < w->vocab && g->states[state].ends; id++)
        if (tokenizer_is_end(w->t, id)) mask_set(m, id);
    m->state = state;
    return true;
}

/* The mask of a state, or the one that may be overwritten, or a new one; NULL: memory is short. */
static grammar_mask *mask_find(base *b, grammar *g, const grammar_words *w, int state,
                               int64_t turn) {
    grammar_mask *oldest = NULL;
    for (int i = 0; i < g->mask_count; i++) {
        grammar_mask *m = &g->masks[i];
        if (m->state == state) return m;
        if (m->turn < turn && (!oldest || m->turn < oldest->turn)) oldest = m;
    }
    if (oldest && g->mask_count >= MASK_KEPT) return oldest;
    if (!grammar_grow(b, &g->masks, &g->mask_room, g->mask_count + 1, sizeof *g->masks)) return NULL;
    oldest = &g->masks[g->mask_count];
    oldest->bits = (uint32_t *)base_new(b, mask_words(w), sizeof *oldest->bits);
    oldest->state = -1;
    if (oldest->bits) return g->mask_count++, oldest;
    base_no_memory(b, "a mask of tokens", mask_words(w) * 4);
    return NULL;
}

static cairn_status grammar_allow(base *b, grammar *g, grammar_words *w,
                                  const grammar_place *place, int64_t turn, const uint32_t **bits,
                                  bool *any) {
    grammar_mask *m = mask_find(b, g, w, place->state, turn);
    if (!m) return b->status;
    if (m->state != place->state && !mask_fill(b, g, w, place->state, m)) return b->status;
    m->turn = turn;
    *bits = m->bits;
    *any = m->any;
    return CAIRN_OK;
}

/* ---- the shelf ------------------------------------------------------------------------------- */

enum { GRAMMAR_KEPT = 8 /* that no one uses */ };

static void grammar_free(base *b, const grammar_words *w, grammar *g) {
    grammar_program *p = &g->program;
    for (int i = 0; i < g->mask_count; i++) base_delete(b, g->masks[i].bits, mask_words(w), 4);
    base_delete(b, p->ops, (size_t)p->op_room, sizeof *p->ops);
    base_delete(b, p->starts, (size_t)p->rule_room, sizeof *p->starts);
    base_delete(b, g->nodes, (size_t)g->node_room, sizeof *g->nodes);
    base_delete(b, g->states, (size_t)g->state_room, sizeof *g->states);
    base_delete(b, g->pool, (size_t)g->pool_room, sizeof *g->pool);
    base_delete(b, g->moves, (size_t)g->move_room, sizeof *g->moves);
    base_delete(b, g->work, (size_t)g->work_room, sizeof *g->work);
    base_delete(b, g->found, (size_t)g->found_room, sizeof *g->found);
    base_delete(b, g->masks, (size_t)g->mask_room, sizeof *g->masks);
    base_delete(b, g->text, g->bytes + 1, 1);
    base_delete(b, g, 1, sizeof *g);
}

/* Bytes that all ops treat alike are of one class. */
static void grammar_classify(grammar *g) {
    uint8_t edges[257];
    memset(edges, 0, sizeof edges);
    for (int i = 0; i < g->program.op_count; i++)
        if (g->program.ops[i].kind == GRAMMAR_BYTE)
            edges[g->program.ops[i].low] = edges[g->program.ops[i].high + 1] = 1;
    for (int i = 0; i < 256; i++) {
        g->class_count += i && edges[i];
        g->classes[i] = (uint8_t)g->class_count;
    }
    g->class_count++;
}

/* A compiled grammar that no shelf has. */
static cairn_status grammar_open(base *b, const grammar_words *w, const char *text, size_t bytes,
                                 grammar **out) {
    grammar *g = (grammar *)base_new(b, 1, sizeof *g);
    cairn_status status;
    if (!g) return base_no_memory(b, "a grammar", sizeof *g);
    status = gbnf_compile(b, text, bytes, &g->program);
    g->bytes = bytes;
    if (!status && (!(g->text = (char *)base_new(b, bytes + 1, 1)) ||
                    !grammar_grow(b, &g->found, &g->found_room, GRAMMAR_STACKS, sizeof *g->found)))
        status = base_no_memory(b, "a grammar", bytes + 1);
    if (!status) grammar_classify(g);
    if (!status && !grammar_has_room(b, g, 0)) status = b->status;
    if (status) return grammar_free(b, w, g), status;
    memcpy(g->text, text, bytes);
    grammar_forget(g);
    return *out = g, CAIRN_OK;
}

static cairn_status grammar_take(base *b, grammar_shelf *shelf, const struct tokenizer *t,
                                 const char *text, size_t bytes, grammar **out) {
    grammar **link = &shelf->first, *g;
    cairn_status status = shelf->words.path ? CAIRN_OK : mask_open(b, t, &shelf->words);
    if (status) return status;
    while ((g = *link) && (g->bytes != bytes || memcmp(g->text, text, bytes))) link = &g->next;
    if (g) *link = g->next;
    else if ((status = grammar_open(b, &shelf->words, text, bytes, &g))) return status;
    g->next = shelf->first;
    shelf->first = g;
    g->users++;
    return *out = g, CAIRN_OK;
}

static cairn_status grammar_take_schema(base *b, grammar_shelf *shelf, const struct tokenizer *t,
                                        const char *text, size_t bytes, grammar **out) {
    base_text written = {NULL, 0, 0};
    cairn_status status = schema_compile(b, text, bytes, &written);
    if (!status) {
        status = grammar_take(b, shelf, t, written.data, written.size, out);
        if (status == CAIRN_INVALID_ARGUMENT)
            base_fail(b, status, "json_schema: a $ref that leads back to itself, or too large a schema");
    }
    base_text_free(b, &written);
    return status;
}

static void grammar_give(base *b, grammar_shelf *shelf, grammar *g) {
    int idle = 0;
    if (!g) return;
    g->users--;
    for (grammar **link = &shelf->first; (g = *link);) {
        idle += !g->users;
        if (g->users || idle <= GRAMMAR_KEPT) link = &g->next;
        else *link = g->next, grammar_free(b, &shelf->words, g);
    }
}

static void grammar_clear(base *b, grammar_shelf *shelf) {
    for (grammar *g; (g = shelf->first);) shelf->first = g->next, grammar_free(b, &shelf->words, g);
    if (shelf->words.path) mask_close(b, &shelf->words);
}
