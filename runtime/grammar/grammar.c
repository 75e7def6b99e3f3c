/* grammar: the automaton. See grammar.h. */

enum { GRAMMAR_STACKS = 1024, GRAMMAR_NODES = 1 << 18, GRAMMAR_STATES = 1 << 15,
       GRAMMAR_MOVES = 1 << 22 };

static void grammar_forget(grammar *g) {
    g->epoch++;
    g->node_count = g->pool_count = 0;
    g->state_count = 1;
    if (g->moves) memset(g->moves, 0, (size_t)g->move_room * sizeof *g->moves);
    memset(g->node_of, 0, sizeof g->node_of);
    memset(g->state_of, 0, sizeof g->state_of);
    for (int i = 0; i < g->mask_count; i++) g->masks[i].state = -1;
}

static bool grammar_too_much(base *b, const char *of, int most) {
    base_fail(b, CAIRN_UNSUPPORTED, "grammar: more than %d %s here; make it less ambiguous", most, of);
    return false;
}

/* ---- stacks ---------------------------------------------------------------------------------- */

static uint32_t grammar_hash(uint32_t a, uint32_t b) {
    uint32_t h = (a * 0x9E3779B1u ^ b) * 0x85EBCA6Bu;
    return h ^ h >> 15;
}

/* The stack of op `at` upon `below`; -1: it failed. */
static int grammar_stack(base *b, grammar *g, int at, int below) {
    uint32_t bucket = grammar_hash((uint32_t)at, (uint32_t)below) % GRAMMAR_BUCKETS;
    grammar_node *node;
    int n = g->node_of[bucket] - 1;
    while (n >= 0 && (g->nodes[n].at != at || g->nodes[n].below != below)) n = g->nodes[n].chain - 1;
    if (n >= 0) return n;
    if (g->node_count == GRAMMAR_NODES) return grammar_too_much(b, "stacks", GRAMMAR_NODES) - 1;
    if (!grammar_grow(b, &g->nodes, &g->node_room, g->node_count + 1, sizeof *g->nodes) ||
        !grammar_grow(b, &g->work, &g->work_room, g->node_room, sizeof *g->work))
        return -1;
    node = &g->nodes[n = g->node_count++];
    node->at = at, node->below = below, node->seen = 0;
    node->chain = g->node_of[bucket];
    g->node_of[bucket] = n + 1;
    return n;
}

/* The op at which something is done. */
static int grammar_settle(const grammar *g, int at) {
    while (g->program.ops[at].kind == GRAMMAR_JUMP) at += g->program.ops[at].to;
    return at;
}

/* One more stack to look at, unless it was. */
static bool grammar_push(base *b, grammar *g, int at, int below, int *count) {
    int n = grammar_stack(b, g, grammar_settle(g, at), below);
    if (n < 0) return false;
    if (g->nodes[n].seen == g->stamp) return true;
    g->nodes[n].seen = g->stamp;
    g->work[(*count)++] = n;
    return true;
}

/* Calls rule r at op `at`; what is left to do behind it lies below, if anything is. */
static bool grammar_call(base *b, grammar *g, int at, int below, int *count) {
    int behind = grammar_settle(g, at + 1), start = g->program.starts[g->program.ops[at].to];
    if (g->program.ops[behind].kind != GRAMMAR_RETURN &&
        (below = grammar_stack(b, g, behind, below)) < 0)
        return false;
    return grammar_push(b, g, start, below, count);
}

/* Follows the work's stacks until each waits for a byte: those go to g->found. *ends: one of them
 * ended the text. How many; -1: it failed. */
static int grammar_follow(base *b, grammar *g, int count, int found, bool *ends) {
    while (count) {
        int n = g->work[--count], at = g->nodes[n].at, below = g->nodes[n].below;
        const grammar_op op = g->program.ops[at];
        bool well = true;
        if (op.kind == GRAMMAR_BYTE) {
            if (found == GRAMMAR_STACKS)
                return grammar_too_much(b, "ways to read the text", GRAMMAR_STACKS) - 1;
            g->found[found++] = n;
        } else if (op.kind == GRAMMAR_SPLIT) {
            well = grammar_push(b, g, at + 1, below, &count) &&
                   grammar_push(b, g, at + op.to, below, &count);
        } else if (op.kind == GRAMMAR_CALL) well = grammar_call(b, g, at, below, &count);
        else if (below < 0) *ends = true;
        else well = grammar_push(b, g, g->nodes[below].at, g->nodes[below].below, &count);
        if (!well) return -1;
    }
    return found;
}

/* ---- states ---------------------------------------------------------------------------------- */

static int grammar_order(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static bool grammar_is_state(const grammar *g, int state, int count, bool ends) {
    const grammar_state *s = &g->states[state];
    return s->count == count && s->ends == ends &&
           !memcmp(g->pool + s->first, g->found, (size_t)count * sizeof *g->found);
}

static bool grammar_has_room(base *b, grammar *g, int count) {
    int states = g->state_count + 1, most = GRAMMAR_MOVES / g->class_count;
    if (most > GRAMMAR_STATES) most = GRAMMAR_STATES;
    if (states > most) return grammar_too_much(b, "states", most);
    return grammar_grow(b, &g->states, &g->state_room, states, sizeof *g->states) &&
           grammar_grow(b, &g->pool, &g->pool_room, g->pool_count + count + 1, sizeof *g->pool) &&
           grammar_grow(b, &g->moves, &g->move_room, states * g->class_count, sizeof *g->moves);
}

/* The state of the stacks found; 0: none; -1: it failed. */
static int grammar_find_state(base *b, grammar *g, int count, bool ends) {
    uint32_t hash = ends;
    int state;
    grammar_state *s;
    if (!count && !ends) return 0;
    qsort(g->found, (size_t)count, sizeof *g->found, grammar_order);
    for (int i = 0; i < count; i++) hash = grammar_hash(hash, (uint32_t)g->found[i]);
    hash %= GRAMMAR_BUCKETS;
    for (state = g->state_of[hash] - 1; state >= 0; state = g->states[state].chain - 1)
        if (grammar_is_state(g, state, count, ends)) return state;
    if (!grammar_has_room(b, g, count)) return -1;
    s = &g->states[state = g->state_count++];
    s->first = g->pool_count, s->count = count, s->ends = ends;
    s->chain = g->state_of[hash];
    g->state_of[hash] = state + 1;
    memcpy(g->pool + s->first, g->found, (size_t)count * sizeof *g->found);
    g->pool_count += count;
    return state;
}

/* The state before the text; -1: it failed. */
static int grammar_start(base *b, grammar *g) {
    int count = 0;
    bool ends = false;
    g->stamp++;
    if (!grammar_push(b, g, g->program.starts[g->program.root], -1, &count)) return -1;
    count = grammar_follow(b, g, count, 0, &ends);
    return count < 0 ? -1 : grammar_find_state(b, g, count, ends);
}

/* Where a byte of class c leads for the first time. */
static int grammar_move(base *b, grammar *g, int state, int byte) {
    const grammar_state from = g->states[state];
    int found = 0;
    bool ends = false;
    g->stamp++;
    for (int i = 0; i < from.count; i++) {
        const grammar_node node = g->nodes[g->pool[from.first + i]];
        const grammar_op *op = &g->program.ops[node.at];
        int count = 0;
        if (byte < op->low || byte > op->high) continue;
        if (!grammar_push(b, g, node.at + 1, node.below, &count)) return -1;
        if ((found = grammar_follow(b, g, count, found, &ends)) < 0) return -1;
    }
    found = grammar_find_state(b, g, found, ends);
    if (found >= 0) g->moves[state * g->class_count + g->classes[byte]] = found + 1;
    return found;
}

/* The state after one more byte; 0: the grammar does not allow it; -1: it failed. */
BASE_INLINE int grammar_step(base *b, grammar *g, int state, int byte) {
    int known = g->moves[state * g->class_count + g->classes[byte]];
    return BASE_LIKELY(known) ? known - 1 : grammar_move(b, g, state, byte);
}

/* ---- places ---------------------------------------------------------------------------------- */

/* Forgets all states once they are many: those still needed are found anew. */
static void grammar_tidy(grammar *g) {
    int most = GRAMMAR_MOVES / g->class_count;
    if (most > GRAMMAR_STATES) most = GRAMMAR_STATES;
    if (g->state_count > most / 4 * 3 || g->node_count > GRAMMAR_NODES / 4 * 3) grammar_forget(g);
}

static cairn_status grammar_go(base *b, grammar *g, const grammar_words *w, const int32_t *ids,
                               int count, grammar_place *place) {
    grammar_place at = *place;
    grammar_tidy(g);
    if (at.epoch != g->epoch || at.count > count) {
        at.epoch = g->epoch, at.count = 0;
        if ((at.state = grammar_start(b, g)) < 0) return b->status;
    }
    for (; at.count < count && at.state; at.count++) {
        size_t bytes;
        const char *piece = tokenizer_piece(w->t, ids[at.count], &bytes);
        if (!bytes || tokenizer_is_special(w->t, ids[at.count])) at.state = 0;
        for (size_t i = 0; i < bytes && at.state; i++)
            if ((at.state = grammar_step(b, g, at.state, (unsigned char)piece[i])) < 0)
                return b->status;
    }
    at.count = count;
    return *place = at, CAIRN_OK;
}

static bool grammar_is_lost(const grammar_place *place) { return !place->state; }

static bool grammar_is_done(const grammar *g, const grammar_place *place) {
    return place->state && !g->states[place->state].count;
}
