/* state: all kinds of sequence state as one, and the first kind, KV pages. See state.h. */

/* ---- all kinds as one ------------------------------------------------------------------------ */

static void state_add(sequence_states *s, const state_kind *kind, void *self) {
    s->parts[s->count].kind = kind;
    s->parts[s->count++].self = self;
}

static int state_reach(const sequence_states *s, int row, int tokens) {
    for (int i = 0, before = tokens; i < s->count; i++) {
        tokens = s->parts[i].kind->reach(s->parts[i].self, row, tokens);
        if (i + 1 < s->count || tokens == before) continue;
        before = tokens;
        i = -1;
    }
    return tokens;
}

static cairn_status state_reserve(sequence_states *s, int row, int from, int to) {
    for (int i = 0; i < s->count; i++) {
        cairn_status status = s->parts[i].kind->reserve(s->parts[i].self, row, from, to);
        if (!status) continue;
        while (i-- > 0) s->parts[i].kind->cut(s->parts[i].self, row, from);
        return status;
    }
    return CAIRN_OK;
}

static void state_extend(sequence_states *s, int row, int from, int to) {
    for (int i = 0; i < s->count; i++)
        s->parts[i].kind->extend(s->parts[i].self, row, from, to);
}

static void state_cut(sequence_states *s, int row, int tokens) {
    for (int i = 0; i < s->count; i++) s->parts[i].kind->cut(s->parts[i].self, row, tokens);
}

static cairn_status state_fork(sequence_states *s, int from, int to, int tokens) {
    cairn_status status = CAIRN_OK;
    for (int i = 0; i < s->count && !status; i++)
        status = s->parts[i].kind->fork(s->parts[i].self, from, to, tokens);
    if (status) state_cut(s, to, 0);
    return status;
}

static size_t state_bytes(const sequence_states *s, int tokens) {
    size_t bytes = 0;
    for (int i = 0; i < s->count; i++)
        bytes += s->parts[i].kind->bytes(s->parts[i].self, tokens);
    return bytes;
}

static cairn_status state_save(sequence_states *s, int row, int tokens, uint8_t *to) {
    cairn_status status = CAIRN_OK;
    for (int i = 0; i < s->count && !status; i++) {
        status = s->parts[i].kind->save(s->parts[i].self, row, tokens, to);
        to += s->parts[i].kind->bytes(s->parts[i].self, tokens);
    }
    return status;
}

static cairn_status state_load(sequence_states *s, int row, int tokens, const uint8_t *from) {
    cairn_status status = CAIRN_OK;
    for (int i = 0; i < s->count && !status; i++) {
        status = s->parts[i].kind->load(s->parts[i].self, row, tokens, from);
        from += s->parts[i].kind->bytes(s->parts[i].self, tokens);
    }
    if (status) state_cut(s, row, 0);
    return status;
}

/* ---- keys and values in pages ---------------------------------------------------------------- */

static int state_kv_reach(const void *self, int row, int tokens) {
    const kv_state *s = (const kv_state *)self;
    for (int g = 0; g < s->kv->groups.count && tokens; g++)
        tokens = window_reach(&s->windows[g], row, tokens);
    return tokens;
}

static void state_kv_make_room(kv_state *s, int need) {
    const page_pool *held = s->tables->pool;
    while (s->prefixes->buckets && need > held->free_count &&
           prefix_evict(s->prefixes, need - held->free_count) > 0) {}
}

/* In the layers that keep all. */
static cairn_status state_kv_reserve_all(kv_state *s, int row, int from, int to) {
    page_tables *t = s->tables;
    const int32_t *copy = t->copies + 2 * (size_t)row;
    int pages = t->pages[row], length = t->lengths[row];
    cairn_status status;
    state_kv_make_room(s, tables_need(t, row, from, to));
    if ((status = tables_reserve(s->base, t, "a session", row, from, to))) return status;
    if (copy[0] < 0) return CAIRN_OK;
    if (!(status = pages_kv_copy_page(s->kv, t->pool, copy[0], copy[1]))) {
        tables_copied(t, row);
        return CAIRN_OK;
    }
    tables_uncopy(s->base, t, row);
    tables_trim(s->base, t, row, pages * t->page_size);
    t->lengths[row] = length;
    return status;
}

static void state_kv_cut(void *self, int row, int tokens) {
    kv_state *s = (kv_state *)self;
    tables_trim(s->base, s->tables, row, tokens);
    for (int g = 0; g < s->kv->groups.count; g++) window_cut(&s->windows[g], row, tokens);
}

static cairn_status state_kv_reserve(void *self, int row, int from, int to) {
    kv_state *s = (kv_state *)self;
    const int pages = s->tables->pages[row], length = s->tables->lengths[row];
    cairn_status status = state_kv_reserve_all(s, row, from, to);
    for (int g = 0; g < s->kv->groups.count && !status; g++) {
        if (!(status = window_reserve(&s->windows[g], row, from, to))) continue;
        tables_trim(s->base, s->tables, row, pages * s->tables->page_size);
        s->tables->lengths[row] = length;
    }
    return status;
}

static void state_kv_extend(void *self, int row, int from, int to) {
    kv_state *s = (kv_state *)self; /* of the pages that keep all the slots are written over */
    for (int g = 0; g < s->kv->groups.count; g++) window_extend(&s->windows[g], row, from, to);
}

static cairn_status state_kv_fork(void *self, int from, int to, int tokens) {
    kv_state *s = (kv_state *)self;
    page_tables *t = s->tables;
    cairn_status status = tables_hold(s->base, t, to, 0, tables_row(t, from),
                                      tables_filled(t, tokens));
    if (!status) t->lengths[to] = tokens;
    for (int g = 0; g < s->kv->groups.count && !status; g++)
        status = window_fork(&s->windows[g], from, to, tokens);
    return status;
}

/* The tables of the layer that a plane is of, and its first page that `tokens` tokens need. */
static const page_tables *state_kv_plane(const kv_state *s, int plane, int tokens, int *first) {
    const kv_groups *groups = &s->kv->groups;
    const int group = groups->of[plane % s->kv->layers];
    *first = group ? pages_window_first(groups->window[group - 1], tokens, s->kv->page_size) : 0;
    return group ? &s->windows[group - 1].tables : s->tables;
}

static size_t state_kv_bytes(const void *self, int tokens) {
    const kv_state *s = (const kv_state *)self;
    const int pages = tables_filled(s->tables, tokens);
    size_t bytes = 0;
    for (int i = 0, first; i < s->kv->planes; i++) {
        state_kv_plane(s, i, tokens, &first);
        bytes += pages_plane_bytes(s->kv, i) * (size_t)(pages - first);
    }
    return bytes;
}

/* Slots past the last token hold what was there before: not part of the sequence. */
static void state_kv_blank(const kv_cache *kv, int plane, uint8_t *page, int used) {
    const bool latent = !kv->bounds, index = latent && plane >= kv->layers;
    size_t row = index                 ? CAIRN_INDEX_DIM
                 : plane >= kv->layers ? sizeof(float)
                                       : (size_t)kv->head_dim * cairn_type_bytes(kv->type);
    const size_t size = (size_t)kv->page_size;
    for (int i = 0; i < (latent ? 1 : 2 * kv->kv_heads) && used; i++)
        memset(page + ((size_t)i * size + (size_t)used) * row, 0, (size - (size_t)used) * row);
    page += size * row;
    row = sizeof(float); /* the scales of index keys */
    if (index && used) memset(page + (size_t)used * row, 0, (size - (size_t)used) * row);
}

/* Plane by plane the pages, in their order: of a window those that what follows needs. */
static cairn_status state_kv_save(void *self, int row, int tokens, uint8_t *to) {
    kv_state *s = (kv_state *)self;
    const kv_cache *kv = s->kv;
    const int pages = tables_filled(s->tables, tokens);
    snapshot_fetch f;
    cairn_status status = snapshot_fetch_open(kv->device, state_kv_bytes(self, tokens), to, &f);
    for (int i = 0, first; i < kv->planes && pages && !status; i++) {
        const page_tables *t = state_kv_plane(s, i, tokens, &first);
        status = snapshot_fetch_pages(&f, kv->pages[i], pages_plane_bytes(kv, i),
                                      tables_row(t, row) + first, pages - first);
    }
    status = snapshot_fetch_close(&f, status);
    for (int i = 0, first; i < kv->planes && pages && !status; i++) {
        state_kv_plane(s, i, tokens, &first);
        to += (size_t)(pages - first) * pages_plane_bytes(kv, i);
        state_kv_blank(kv, i, to - pages_plane_bytes(kv, i), tokens % kv->page_size);
    }
    return status;
}

static cairn_status state_kv_load(void *self, int row, int tokens, const uint8_t *from) {
    kv_state *s = (kv_state *)self;
    const kv_cache *kv = s->kv;
    snapshot_send f;
    const int pages = tables_filled(s->tables, tokens);
    cairn_status status = state_kv_reserve_all(s, row, 0, tokens);
    for (int g = 0; g < kv->groups.count && !status; g++)
        status = window_fill(&s->windows[g], row, tokens);
    if (status) return state_kv_cut(self, row, 0), status;
    status = snapshot_send_open(kv->device, from, state_kv_bytes(self, tokens), &f);
    for (int i = 0, first; i < kv->planes && pages && !status; i++) {
        const page_tables *t = state_kv_plane(s, i, tokens, &first);
        status = snapshot_send_pages(&f, kv->pages[i], pages_plane_bytes(kv, i),
                                     tables_row(t, row) + first, pages - first);
    }
    status = snapshot_send_close(&f, status);
    if (status) state_kv_cut(self, row, 0);
    return status;
}

static const state_kind kv_state_kind = {
    "KV pages", state_kv_reach, state_kv_reserve, state_kv_extend, state_kv_cut,
    state_kv_fork, state_kv_bytes, state_kv_save, state_kv_load
};
