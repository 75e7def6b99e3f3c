/* tokenizer_special: where a text holds the texts of special tokens.
 *
 * One automaton (Aho and Corasick) over the texts spelled backwards reads a text from its end to
 * its beginning, and so knows at each byte the longest special token that begins there. That costs
 * a step per byte, however many tokens there are, however long, and whatever they share. Calls
 * base. */

/* So that a state and a byte make a key of 32 bits. A sensible vocabulary has some kilobytes. */
enum { SPECIAL_MOST_BYTES = (1 << 24) - 2 };

static special_edge *special_slot(const special_finder *f, int32_t state, unsigned byte) {
    uint32_t key = (uint32_t)state << 8 | byte;
    size_t slot = (size_t)(key * 0x9e3779b1u) & (f->edge_slots - 1);
    while (f->edges[slot].to && f->edges[slot].key != key) slot = (slot + 1) & (f->edge_slots - 1);
    return &f->edges[slot];
}

/* The state after `byte`, 0: no text goes on so. */
static int32_t special_child(const special_finder *f, int32_t state, unsigned byte) {
    return state ? special_slot(f, state, byte)->to : f->first[byte];
}

static int32_t special_step(const special_finder *f, int32_t state, unsigned byte) {
    int32_t next = special_child(f, state, byte);
    while (!next && state) {
        state = f->states[state].fail;
        next = special_child(f, state, byte);
    }
    return next;
}

static void special_close(base *b, special_finder *f) {
    base_delete(b, f->states, f->room, sizeof *f->states);
    base_delete(b, f->edges, f->edge_slots, sizeof *f->edges);
    memset(f, 0, sizeof *f);
}

/* Room for texts of `bytes` bytes in all, at most SPECIAL_MOST_BYTES. */
static bool special_open(base *b, size_t bytes, special_finder *f) {
    memset(f, 0, sizeof *f);
    f->room = bytes + 1;
    for (f->edge_slots = 64; f->edge_slots - f->edge_slots / 4 < f->room;) f->edge_slots *= 2;
    f->states = (special_state *)base_new(b, f->room, sizeof *f->states);
    f->edges = (special_edge *)base_new(b, f->edge_slots, sizeof *f->edges);
    if (!f->states || !f->edges) {
        special_close(b, f);
        return false;
    }
    f->states[f->count++].any = -1;
    f->states[0].user = -1;
    return true;
}

static int32_t special_new_child(special_finder *f, int32_t state, unsigned byte) {
    int32_t child = (int32_t)f->count++;
    f->states[child].any = f->states[child].user = -1;
    f->states[child].fail = state; /* its parent, until special_link */
    if (state) {
        special_edge *edge = special_slot(f, state, byte);
        edge->key = (uint32_t)state << 8 | byte;
        edge->to = child;
    } else {
        f->first[byte] = child;
    }
    return child;
}

/* Adds a token; of equal texts the one added first counts. user: found in every text. */
static void special_add(special_finder *f, int32_t id, const char *text, size_t bytes, bool user) {
    int32_t state = 0;
    for (size_t i = bytes; i-- > 0;) {
        unsigned byte = (unsigned char)text[i];
        int32_t next = special_child(f, state, byte);
        state = next ? next : special_new_child(f, state, byte);
    }
    if (f->states[state].any < 0) f->states[state].any = id;
    if (user && f->states[state].user < 0) f->states[state].user = id;
    f->has_user = f->has_user || user;
}

/* Gives `child` the state to fail to, and what begins there too; its parent has both already. */
static void special_link_child(special_finder *f, int32_t parent, int32_t child, unsigned byte) {
    special_state *s = &f->states[child];
    s->fail = parent ? special_step(f, f->states[parent].fail, byte) : 0;
    if (s->any < 0) s->any = f->states[s->fail].any;
    if (s->user < 0) s->user = f->states[s->fail].user;
}

/* The edges in the order of their states: those of s end at ends[s], and begin where those of the
 * state before end. The start has none. */
static void special_sort_edges(const special_finder *f, int32_t *ends, special_edge *sorted) {
    for (size_t i = 0; i < f->edge_slots; i++)
        if (f->edges[i].to) ends[(f->edges[i].key >> 8) + 1]++;
    for (size_t i = 0; i < f->count; i++) ends[i + 1] += ends[i];
    for (size_t i = 0; i < f->edge_slots; i++)
        if (f->edges[i].to) sorted[ends[f->edges[i].key >> 8]++] = f->edges[i];
}

/* Links the states, those of shorter texts first, as `queue` comes to hold them. */
static void special_link_all(special_finder *f, const int32_t *ends, const special_edge *sorted,
                             int32_t *queue) {
    size_t done = 0, count = 0;
    for (unsigned byte = 0; byte < 256; byte++)
        if (f->first[byte]) {
            special_link_child(f, 0, f->first[byte], byte);
            queue[count++] = f->first[byte];
        }
    for (; done < count; done++) {
        int32_t s = queue[done];
        for (int32_t i = ends[s - 1]; i < ends[s]; i++) {
            special_link_child(f, s, sorted[i].to, sorted[i].key & 255);
            queue[count++] = sorted[i].to;
        }
    }
}

/* Completes the automaton, once, after the last token was added. False without memory. */
static bool special_link(base *b, special_finder *f) {
    int32_t *ends = (int32_t *)base_new(b, f->count + 1, sizeof *ends);
    special_edge *sorted = (special_edge *)base_new(b, f->count, sizeof *sorted);
    int32_t *queue = (int32_t *)base_new(b, f->count, sizeof *queue);
    bool enough = ends && sorted && queue;
    if (enough) {
        special_sort_edges(f, ends, sorted);
        special_link_all(f, ends, sorted, queue);
    }
    base_delete(b, ends, f->count + 1, sizeof *ends);
    base_delete(b, sorted, f->count, sizeof *sorted);
    base_delete(b, queue, f->count, sizeof *queue);
    return enough;
}
