/* engine: a session, one sequence on a model: its tokens, its pages, and the step that makes the
 * next tokens. generate.c turns tokens into text, model.c holds the calls on models.
 *
 * Owns sessions and their page tables. Calls model, pages, sample, drafter and the backend.
 *
 * Invariants between calls:
 *   tokens [0, count) are the sequence; those in [0, cached) have keys and values in the pages, and
 *   cached < count unless the sequence is empty: the last token is always left for the next step,
 *   which needs its logits;
 *   fresh tokens are what the model said after `count`; those that were drafts are cached already;
 *   the bounds of pages [0, bounded) are stored, all of tokens < cached;
 *   a token runs as prompt (it attends all) when it came from the caller, or when the token after
 *   it did: what waits for the next step rides along with the prompt that follows. All others run
 *   as step. So `given`, a bit for each token, says of every token how it ran, and of the last one
 *   how it will run, wherever the sequence is cut, forked, saved or loaded;
 *   tokens [0, pure) ran as prompt, from the beginning on, and so would run again in any session:
 *   their whole pages may stand in the model's prefix cache, `held` of them locked. */

enum {
    ENGINE_ROWS = DRAFTER_MOST + 1, /* rows of a decode step at most */
    ENGINE_EVAL_ROWS = 64,
    ENGINE_STOPS = 16,
    ENGINE_STOP_BYTES = 128,
    ENGINE_POINTS = 192 /* more than bytes are held back as a stop string's beginning */
};

/* Host memory of a model that its sessions use in turn. */
typedef struct engine_scratch {
    int rows; /* of a forward at most */
    float *logits; /* [ENGINE_ROWS, vocab] */
    int32_t *positions, *sequences; /* [rows] */
    void *sample; /* sample_scratch_bytes(vocab) */
    uint8_t *seen; /* [vocab] bits */
} engine_scratch;

/* What a generation was asked for; what is not set comes from the config at every step. */
typedef struct engine_options {
    int max_tokens; /* 0: to the end of the context */
    bool special; /* the prompt's special-token text becomes tokens */
    bool keep_stop; /* ids of a stop string stay in the session */
    bool has_sampling, has_stops;
    cairn_sampling sampling;
    int stop_count;
    char stops[ENGINE_STOPS][ENGINE_STOP_BYTES];
} engine_options;

/* The session's first `count` ids end where the generated text has `end` bytes, with no character
 * unfinished. */
typedef struct engine_point { int64_t end; int count; } engine_point;

struct cairn_session {
    cairn_model *model;
    cairn_session *next; /* of model->sessions */
    int count, cached, bounded;
    int bounds_version; /* of the model, that the stored bounds are of */
    int pure;
    int held_pages;
    prefix_node *held; /* the last node of those pages, locked, or NULL */
    bool apart;      /* takes nothing from the prefix cache and gives nothing */
    int32_t *tokens; /* [max_seq_len] */
    uint8_t *given;  /* [engine_given_bytes(max_seq_len)] bits: the token came from the caller */
    int32_t *table;  /* [table_size] page ids, -1 from `pages` on */
    int table_size, pages;
    uint64_t table_version;
    struct ring ring; /* of the model's convolutions */
    struct drafter drafter; /* opened on first use */
    os_atomic cancel;
    bool busy;       /* inside a call: what its callback must not enter */
    bool closing;    /* closed inside that call: it goes when the call has ended */
    bool generating; /* between begin and the last piece */
    int32_t fresh[ENGINE_ROWS];
    int fresh_count, fresh_at;
    engine_options options;
    tokenizer_stream stream;
    base_text text;  /* generated and not handed out, then what the last piece handed out */
    size_t handed;   /* bytes at the start of `text` that were handed out */
    int64_t dropped; /* bytes of this generation that were handed out before those */
    engine_point points[ENGINE_POINTS]; /* ascending, of what may still be cut or covered */
    int point_count;
    cairn_stats stats;
    int from_prompt; /* ids that came from the prompt's own forward: 0 or 1 */
    int appended;    /* prompt tokens since the last generation began, and their seconds */
    int reused;      /* of these from the prefix cache */
    double append_seconds;
    double pages_read, pages_held; /* sums over the forwards after the prompt */
};

static base *engine_base(const cairn_session *s) { return &s->model->runtime->base; }
static const cairn_config *engine_config(const cairn_session *s) {
    return &s->model->runtime->config;
}

/* ---- how tokens run -------------------------------------------------------------------------- */

static size_t engine_given_bytes(int tokens) { return ((size_t)tokens + 7) / 8; }

static bool engine_is_given(const cairn_session *s, int at) {
    return s->given[at / 8] >> at % 8 & 1;
}

static void engine_set_given(cairn_session *s, int at, bool given) {
    uint8_t bit = (uint8_t)(1u << at % 8);
    s->given[at / 8] = (uint8_t)(given ? s->given[at / 8] | bit : s->given[at / 8] & ~bit);
}

/* Whether the token runs as prompt: see the file's head. */
static bool engine_is_prompt(const cairn_session *s, int at) {
    return engine_is_given(s, at) || (at + 1 < s->count && engine_is_given(s, at + 1));
}

/* How many tokens from `from` on, before `end`, run as that one does. */
static int engine_run_length(const cairn_session *s, int from, int end) {
    bool prompt = engine_is_prompt(s, from);
    int at = from + 1;
    while (at < end && engine_is_prompt(s, at) == prompt) at++;
    return at - from;
}

static double engine_seconds_since(int64_t start_us) {
    return (double)(os_now_us() - start_us) * 1e-6;
}

/* ---- pages ----------------------------------------------------------------------------------- */

/* A number that no table had before, so that a backend knows when to read a table again. */
static void engine_table_changed(cairn_session *s) {
    s->table_version = ++s->model->table_version;
}

/* The page that the next forward writes first, when another session or a cache holds it too; -1. */
static int engine_shared_page(const cairn_session *s) {
    int c = s->cached / s->model->kv.page_size;
    return c < s->pages && pages_shared(&s->model->kv.pool, s->table[c]) ? c : -1;
}

/* A copy of that page, for this session alone, in the place of it. There is a free page. */
static cairn_status engine_own_page(cairn_session *s, int c) {
    kv_cache *kv = &s->model->kv;
    int32_t from = s->table[c], to;
    cairn_status status = CAIRN_OK;
    pages_take(&kv->pool, 1, &to);
    if (s->cached % kv->page_size) status = kv_copy_page(kv, from, to);
    if (!status) s->table[c] = to;
    pages_give(engine_base(s), &kv->pool, status ? &to : &from, 1);
    engine_table_changed(s);
    return status;
}

/* What the prefix cache holds and no session uses makes room, until `need` pages are free. */
static void engine_make_room(cairn_model *m, int need) {
    while (need > m->kv.pool.free_count &&
           prefix_evict(&m->prefixes, need - m->kv.pool.free_count) > 0) {}
}

/* Pages for `tokens` tokens, those from `cached` on with no other holder; or POOL_FULL and nothing
 * changed. */
static cairn_status engine_reserve(cairn_session *s, int tokens) {
    page_pool *free_pages = &s->model->kv.pool;
    int size = s->model->kv.page_size, shared = engine_shared_page(s);
    int more = model_pages_of(tokens, size) - s->pages, need;
    cairn_status status;
    if (more < 0) more = 0;
    need = more + (shared >= 0);
    if (!need) return CAIRN_OK;
    engine_make_room(s->model, need);
    if (need > free_pages->free_count)
        return base_fail(engine_base(s), CAIRN_POOL_FULL,
                         "%d tokens need %d more pages of %d tokens; %d of %d are free", tokens,
                         need, size, free_pages->free_count, free_pages->pages);
    if (shared >= 0 && (status = engine_own_page(s, shared))) return status;
    pages_take(free_pages, more, s->table + s->pages);
    s->pages += more;
    engine_table_changed(s);
    return CAIRN_OK;
}

/* Gives back the pages beyond `tokens` tokens. */
static void engine_release(cairn_session *s, int tokens) {
    int keep = model_pages_of(tokens, s->model->kv.page_size);
    if (s->pages <= keep) return;
    pages_give(engine_base(s), &s->model->kv.pool, s->table + keep, s->pages - keep);
    for (int i = keep; i < s->pages; i++) s->table[i] = -1;
    s->pages = keep;
    engine_table_changed(s);
}

/* ---- prefix cache ---------------------------------------------------------------------------- */

static void engine_let_go(cairn_session *s) {
    prefix_unlock(&s->model->prefixes, s->held);
    s->held = NULL;
    s->held_pages = 0;
}

/* Begins the empty session with the pages that are held of ids [count]. At least two tokens are
 * left: one alone would be computed as a decode step's, which may round otherwise. */
static void engine_reuse(cairn_session *s, const int32_t *ids, int count) {
    cairn_model *m = s->model;
    prefix_node *node;
    int pages;
    if (!m->prefixes.buckets || s->apart || s->count || count < 2 || s->ring.layers) return;
    if (prefix_match(&m->prefixes, 0, ids, count - 2, s->table, &pages, &node)) {
        engine_base(s)->error[0] = '\0'; /* short of memory: all is computed */
        return;
    }
    if (!pages || pages_retain(engine_base(s), &m->kv.pool, s->table, pages)) return;
    prefix_lock(&m->prefixes, node);
    s->held = node;
    s->pages = s->held_pages = pages;
    s->cached = s->pure = s->reused = pages * m->kv.page_size;
    engine_table_changed(s);
}

/* Pages [from, present) that the cache holds too, computed by another session: the same values, so
 * that ours are given back and its taken. Their bounds may not be stored yet. */
static void engine_take_theirs(cairn_session *s, int from, int present, int pages) {
    page_pool *held = &s->model->kv.pool;
    if (present <= from) return;
    pages_give(engine_base(s), held, s->table + from, present - from);
    prefix_match(&s->model->prefixes, 0, s->tokens, pages * s->model->kv.page_size, s->table,
                 &pages, NULL);
    pages_retain(engine_base(s), held, s->table + from, present - from);
    if (s->bounded > from) s->bounded = from;
    engine_table_changed(s);
}

/* Puts what a prompt computed, in whole pages, into the prefix cache; without memory it does not. */
static void engine_remember(cairn_session *s) {
    prefix_cache *c = &s->model->prefixes;
    int pages = s->pure / s->model->kv.page_size, tokens, present, found;
    prefix_node *node;
    if (!c->buckets || s->apart || pages <= s->held_pages || s->ring.layers) return;
    tokens = pages * s->model->kv.page_size;
    if (prefix_insert(c, 0, s->tokens, tokens, s->table, &present) ||
        prefix_match(c, 0, s->tokens, tokens, NULL, &found, &node)) {
        engine_base(s)->error[0] = '\0';
        return;
    }
    prefix_lock(c, node);
    prefix_unlock(c, s->held);
    s->held = node;
    engine_take_theirs(s, s->held_pages, present, pages);
    s->held_pages = pages;
}

/* `rows` tokens from `cached` on were computed as a prompt's. */
static void engine_cached_prompt(cairn_session *s, int rows) {
    if (s->pure == s->cached) s->pure += rows;
    s->cached += rows;
}

/* ---- sequence -------------------------------------------------------------------------------- */

/* Forgets drafts and the surplus of pages: the invariants of the file's head hold after it. */
static void engine_settle(cairn_session *s) {
    int most = s->count > 0 ? s->count - 1 : 0, full;
    s->fresh_count = s->fresh_at = 0;
    if (s->cached > most) s->cached = most;
    s->cached = ring_cut(&s->ring, s->cached);
    full = s->cached / s->model->kv.page_size;
    if (s->bounded > full) s->bounded = full;
    if (s->pure > s->cached) s->pure = s->cached;
    if (s->held_pages > full) engine_let_go(s);
    engine_release(s, s->cached);
}

/* Cuts the sequence to `count` tokens. */
static void engine_cut(cairn_session *s, int count) {
    if (s->drafter.heads) drafter_truncate(&s->drafter, s->tokens, count);
    s->count = count;
    engine_settle(s);
}

/* ---- forward --------------------------------------------------------------------------------- */

static void engine_sample_params(const cairn_session *s, sample_params *out) {
    const cairn_sampling *from = s->options.has_sampling ? &s->options.sampling
                                                         : &engine_config(s)->sampling;
    out->temperature = from->temperature;
    out->top_k = from->top_k;
    out->top_p = from->top_p;
    out->min_p = from->min_p;
    out->top_p_first = from->order == CAIRN_ORDER_TOP_P_FIRST;
    out->repetition_penalty = from->repetition_penalty;
    out->seed = (uint64_t)from->seed;
}

/* Another source of page scores was loaded: bounds stored until now, which sessions may share, are
 * of the one before. */
static void engine_check_bounds(cairn_session *s) {
    cairn_model *m = s->model;
    if (m->bounds_source != engine_config(s)->selection.source) {
        m->bounds_source = engine_config(s)->selection.source;
        m->bounds_version++;
    }
    if (s->bounds_version != m->bounds_version) s->bounded = 0;
    s->bounds_version = m->bounds_version;
}

/* The last `logit_count` of `rows` tokens from `cached` on: logits to `logits`, or the token after
 * each to `sampled`. Nothing but the cache's pages and `bounded` changes. */
static cairn_status engine_forward(cairn_session *s, int rows, bool dense, int logit_count,
                                   float *logits, const sample_params *sample, int32_t *sampled,
                                   int64_t *pages_read) {
    cairn_model *m = s->model;
    engine_scratch *scratch = m->scratch;
    int32_t bounded, stored = s->cached / m->kv.page_size;
    struct ring *kept = &s->ring;
    forward_args args;
    cairn_status status;
    engine_check_bounds(s);
    bounded = s->bounded;
    memset(&args, 0, sizeof args);
    args.rows = rows;
    args.tokens = s->tokens + s->cached;
    for (int i = 0; i < rows; i++) scratch->positions[i] = s->cached + i;
    args.positions = scratch->positions;
    args.sequences = scratch->sequences;
    args.page_table = s->table;
    args.table_rows = 1;
    args.table_stride = s->table_size;
    args.table_version = s->table_version;
    args.rings = &kept;
    ring_extend(kept, s->cached, rows);
    args.bounded_pages = &bounded;
    args.stored_pages = &stored;
    args.dense = dense;
    args.logit_first = rows - logit_count;
    args.logit_count = logit_count;
    args.logits = logits;
    args.sample = sample;
    args.sampled = sampled;
    args.pages_read = pages_read;
    status = m->backend->forward(m, &m->kv, &args);
    if (!status) s->bounded = stored;
    return status;
}

/* Samples row j of `rows` logit rows as the token after tokens[0, first + j], up to the first that
 * is not the draft there: the rows behind it will not be asked for. */
static void engine_sample_rows(cairn_session *s, const sample_params *p, int first, int rows,
                               int32_t *sampled) {
    engine_scratch *scratch = s->model->scratch;
    int vocab = s->model->shape.vocab;
    for (int j = 0; j < rows; j++) {
        float *logits = scratch->logits + (size_t)j * (size_t)vocab;
        if (p->repetition_penalty != 1.0f)
            sample_penalize(logits, vocab, s->tokens, first + j + 1, p->repetition_penalty,
                            scratch->seen);
        sampled[j] = sample_token(p, logits, vocab, first + j + 1, scratch->sample);
        if (j + 1 < rows && sampled[j] != s->tokens[first + j + 1]) break;
    }
}

/* Forward of `rows` tokens from `cached` on, the last `wanted` of them sampled. */
static cairn_status engine_forward_sampled(cairn_session *s, int rows, bool dense, int wanted,
                                           int32_t *sampled, int64_t *pages_read) {
    sample_params p;
    bool on_device;
    cairn_status status;
    engine_sample_params(s, &p);
    /* a draw from many tokens is quicker here, row by row as needed */
    on_device = s->model->backend->samples && p.repetition_penalty == 1.0f &&
                ops_sample_is_few(&p, s->model->shape.vocab);
    status = engine_forward(s, rows, dense, wanted, on_device ? NULL : s->model->scratch->logits,
                            on_device ? &p : NULL, on_device ? sampled : NULL, pages_read);
    if (!status && !on_device)
        engine_sample_rows(s, &p, s->cached + rows - wanted, wanted, sampled);
    return status;
}

static cairn_status engine_check_cancel(cairn_session *s) {
    if (!os_atomic_load(&s->cancel)) return CAIRN_OK;
    return base_fail(engine_base(s), CAIRN_CANCELLED, "cancelled at token %d", s->count);
}

/* ---- prompt ---------------------------------------------------------------------------------- */

/* Rows of the next forward that brings `cached` towards `end`: tokens that run alike, a chunk of a
 * prompt at most; those that run as step stay inside a page, so that what they may select is
 * complete before them. */
static int engine_next_rows(const cairn_session *s, int end) {
    int size = s->model->kv.page_size, rows = engine_run_length(s, s->cached, end);
    int most = engine_config(s)->prefill_chunk;
    if (!engine_is_prompt(s, s->cached)) {
        most = size - s->cached % size;
        if (most > ENGINE_EVAL_ROWS) most = ENGINE_EVAL_ROWS;
    }
    return rows < most ? rows : most;
}

/* Processes tokens from `cached` on, each as it runs, until at most `leave` are left. */
static cairn_status engine_process(cairn_session *s, int leave) {
    cairn_status status = CAIRN_OK;
    while (s->count - s->cached > leave && !(status = engine_check_cancel(s))) {
        int rows = engine_next_rows(s, s->count - leave);
        bool prompt = engine_is_prompt(s, s->cached);
        status = engine_forward(s, rows, prompt, 0, NULL, NULL, NULL, NULL);
        if (status) return status;
        if (prompt) engine_cached_prompt(s, rows);
        else s->cached += rows;
    }
    if (!status) engine_remember(s);
    return status;
}

/* Puts ids at the end, nothing processed yet; nothing changed on failure. */
static cairn_status engine_add(cairn_session *s, const int32_t *ids, int count) {
    base *b = engine_base(s);
    cairn_status status;
    for (int i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= s->model->shape.vocab)
            return base_fail(b, CAIRN_INVALID_ARGUMENT, "append: id %d at %d; 0 to %d is expected",
                             (int)ids[i], i, s->model->shape.vocab - 1);
    engine_settle(s);
    if (count > s->model->max_seq_len - s->count)
        return base_fail(b, CAIRN_CONTEXT_FULL,
                         "append: %d tokens held and %d more, the context is %d", s->count, count,
                         s->model->max_seq_len);
    engine_reuse(s, ids, count);
    if ((status = engine_reserve(s, s->count + count))) {
        if (!s->count) s->reused = 0;
        engine_settle(s);
        return status;
    }
    if (count) memcpy(s->tokens + s->count, ids, (size_t)count * sizeof *ids);
    for (int i = 0; i < count; i++) engine_set_given(s, s->count + i, true);
    s->count += count;
    s->appended += count;
    return CAIRN_OK;
}

/* What engine_add and a failed engine_process changed, undone. */
static void engine_take_back(cairn_session *s, int count, int cached) {
    s->appended -= s->count - count;
    if (!count) s->reused = 0;
    if (s->cached > cached) s->cached = cached;
    engine_cut(s, count);
}

/* ---- step ------------------------------------------------------------------------------------ */

/* Tokens to draft now: no more than the generation can still use and the pages hold. */
static int engine_draft(cairn_session *s, int room) {
    const cairn_config *config = engine_config(s);
    int limit = config->draft_length < room - 1 ? config->draft_length : room - 1, held;
    page_pool *free_pages = &s->model->kv.pool;
    if (config->drafter != CAIRN_DRAFTER_NGRAM || limit < 1) return 0;
    engine_make_room(s->model, model_pages_of(s->count + limit, s->model->kv.page_size) - s->pages);
    held = (s->pages + free_pages->free_count) * s->model->kv.page_size - s->count;
    if (limit > held) limit = held;
    if (!s->drafter.heads && drafter_open(engine_base(s), s->model->max_seq_len, &s->drafter)) {
        engine_base(s)->error[0] = '\0'; /* short of memory: plain decoding goes on */
        return 0;
    }
    return drafter_propose(&s->drafter, s->tokens, s->count, limit, s->model->backend->row_cost,
                           s->tokens + s->count);
}

/* Keeps what a decode step sampled: drafts while they equal it, then the token after them. */
static void engine_verify(cairn_session *s, const int32_t *sampled, int drafts) {
    int accepted = 0;
    while (accepted < drafts && s->tokens[s->count + accepted] == sampled[accepted]) accepted++;
    if (drafts) drafter_learn(&s->drafter, drafts, accepted);
    memcpy(s->fresh, sampled, (size_t)(accepted + 1) * sizeof *sampled);
    s->fresh_count = accepted + 1;
    s->fresh_at = 0;
    s->cached = s->count + accepted;
    s->stats.proposed += drafts;
    s->stats.accepted += accepted;
}

static void engine_count_step(cairn_session *s, int drafts, int64_t pages_read,
                              int64_t start_us) {
    const model_shape *shape = &s->model->shape;
    s->stats.forwards++;
    s->pages_read += (double)pages_read / ((double)shape->kv_layers * (double)shape->kv_heads);
    s->pages_held += (double)model_pages_of(s->count + drafts, s->model->kv.page_size);
    s->stats.decode_seconds += engine_seconds_since(start_us);
}

/* Tokens at the end of the sequence that run as prompt, a chunk at most. */
static int engine_last_chunk(const cairn_session *s) {
    int rows = 0, chunk = engine_config(s)->prefill_chunk;
    while (rows < chunk && rows < s->count && engine_is_prompt(s, s->count - 1 - rows)) rows++;
    return rows;
}

/* The first token after a prompt: what is left of it in chunks, the last one sampled. */
static cairn_status engine_step_prompt(cairn_session *s) {
    int64_t start = os_now_us();
    int rows;
    cairn_status status = engine_process(s, engine_last_chunk(s));
    if (status || (status = engine_check_cancel(s))) return status;
    rows = s->count - s->cached;
    status = engine_forward_sampled(s, rows, true, 1, s->fresh, NULL);
    if (status) return status;
    if (rows > 1) engine_cached_prompt(s, rows); /* one row alone is computed as a step's */
    else s->cached = s->count;
    engine_remember(s);
    s->fresh_count = 1;
    s->fresh_at = 0;
    s->append_seconds += engine_seconds_since(start);
    return CAIRN_OK;
}

/* One forward: at least one fresh token, at most `room` (>= 1) of them. */
static cairn_status engine_step(cairn_session *s, int room) {
    int32_t sampled[ENGINE_ROWS]; /* certain up to the first that is not the draft */
    int64_t start = os_now_us(), pages_read = 0;
    int drafts;
    cairn_status status;
    reload_poll(s->model->runtime);
    if ((status = engine_check_cancel(s)) || (status = engine_reserve(s, s->count))) return status;
    if (engine_is_prompt(s, s->count - 1)) return engine_step_prompt(s);
    if ((status = engine_process(s, 1))) return status;
    drafts = engine_draft(s, room);
    if ((status = engine_reserve(s, s->count + drafts))) return status;
    status = engine_forward_sampled(s, 1 + drafts, false, 1 + drafts, sampled, &pages_read);
    if (status) return status;
    engine_verify(s, sampled, drafts);
    engine_count_step(s, drafts, pages_read, start);
    return CAIRN_OK;
}

/* ---- open and close -------------------------------------------------------------------------- */

static void engine_close(cairn_session *s) {
    base *b = engine_base(s);
    engine_cut(s, 0);
    drafter_close(b, &s->drafter);
    base_delete(b, s->tokens, (size_t)s->model->max_seq_len, sizeof *s->tokens);
    base_delete(b, s->given, engine_given_bytes(s->model->max_seq_len), 1);
    base_delete(b, s->table, (size_t)s->table_size, sizeof *s->table);
    ring_close(&s->ring);
    base_text_free(b, &s->text);
    base_delete(b, s, 1, sizeof *s);
}

/* A session outside the model's list. */
static cairn_status engine_open(cairn_model *m, cairn_session **out) {
    base *b = &m->runtime->base;
    cairn_session *s = (cairn_session *)base_new(b, 1, sizeof *s);
    cairn_status status;
    *out = NULL;
    if (!s) return base_no_memory(b, "a session", sizeof *s);
    s->model = m;
    s->stats.struct_size = sizeof s->stats;
    s->table_size = model_pages_of(m->max_seq_len, m->kv.page_size);
    s->tokens = (int32_t *)base_new(b, (size_t)m->max_seq_len, sizeof *s->tokens);
    s->given = (uint8_t *)base_new(b, engine_given_bytes(m->max_seq_len), 1);
    s->table = (int32_t *)base_new(b, (size_t)s->table_size, sizeof *s->table);
    if (!s->tokens || !s->given || !s->table) {
        s->pages = 0;
        engine_close(s);
        return base_no_memory(b, "a session", (size_t)m->max_seq_len * sizeof(int32_t));
    }
    memset(s->table, 0xff, (size_t)s->table_size * sizeof *s->table);
    engine_table_changed(s);
    status = ring_open(&m->runtime->device, m->shape.conv_layers, m->shape.hidden,
                       m->shape.conv_taps, &s->ring);
    if (status) engine_close(s);
    else *out = s;
    return status;
}

static void engine_enlist(cairn_session *s) {
    s->next = s->model->sessions;
    s->model->sessions = s;
}

cairn_status cairn_session_open(cairn_model *model, cairn_session **session) {
    cairn_status status;
    if (!session) return CAIRN_INVALID_ARGUMENT;
    *session = NULL;
    if (!model) return CAIRN_INVALID_ARGUMENT;
    if (!(status = engine_open(model, session))) engine_enlist(*session);
    return status;
}

/* A session like `s`, outside the model's list, that shares its pages. */
static cairn_status engine_fork(const cairn_session *s, cairn_session **out) {
    page_pool *held = &s->model->kv.pool;
    int cached = s->cached < s->count ? s->cached : s->count > 0 ? s->count - 1 : 0, pages;
    cairn_session *fork;
    cairn_status status = engine_open(s->model, &fork);
    if (status) return status;
    pages = model_pages_of(cached, s->model->kv.page_size);
    if ((status = pages_retain(engine_base(s), held, s->table, pages))) {
        engine_close(fork);
        return status;
    }
    if ((status = ring_copy(&s->ring, &fork->ring))) {
        pages_give(engine_base(s), held, s->table, pages);
        engine_close(fork);
        return status;
    }
    memcpy(fork->table, s->table, (size_t)pages * sizeof *s->table);
    memcpy(fork->tokens, s->tokens, (size_t)s->count * sizeof *s->tokens);
    memcpy(fork->given, s->given, engine_given_bytes(s->count));
    fork->pages = pages;
    fork->count = s->count;
    fork->cached = cached;
    fork->pure = s->pure < cached ? s->pure : cached;
    fork->apart = s->apart;
    fork->bounded = s->bounded;
    fork->bounds_version = s->bounds_version;
    engine_settle(fork);
    return *out = fork, CAIRN_OK;
}

cairn_status cairn_session_fork(cairn_session *session, cairn_session **fork) {
    cairn_status status;
    if (!fork) return CAIRN_INVALID_ARGUMENT;
    *fork = NULL;
    if (!session) return CAIRN_INVALID_ARGUMENT;
    if (!(status = engine_fork(session, fork))) engine_enlist(*fork);
    return status;
}

void cairn_session_close(cairn_session *session) {
    cairn_session **link;
    if (!session) return;
    session->closing = session->busy;
    if (session->busy) return;
    for (link = &session->model->sessions; *link; link = &(*link)->next)
        if (*link == session) {
            *link = session->next;
            break;
        }
    engine_close(session);
}

/* ---- public calls on the sequence ------------------------------------------------------------ */

/* Enters a public call: the device's context is current until engine_leave. */
static cairn_status engine_enter(cairn_session *s, const char *call) {
    cairn_status status;
    if (!s) return CAIRN_INVALID_ARGUMENT;
    if (s->busy)
        return base_fail(engine_base(s), CAIRN_BUSY,
                         "%s: a call on this session is running: this one comes from its callback "
                         "or from another thread",
                         call);
    if ((status = handles_enter(s->model->runtime))) return status;
    s->busy = true;
    return CAIRN_OK;
}

/* Whether a call on one of the model's sessions runs: we are inside its callback. */
static bool engine_is_busy(const cairn_model *m) {
    const cairn_session *s = m->sessions;
    while (s && !s->busy) s = s->next;
    return s != NULL;
}

static bool engine_is_any_busy(const cairn_runtime *rt) {
    const cairn_model *m = rt->models;
    while (m && !engine_is_busy(m)) m = m->next;
    return m != NULL;
}

/* Leaves a public call. What its callback closed goes now: the session, its model, the runtime. */
static cairn_status engine_leave(cairn_session *s, cairn_status status) {
    cairn_model *m = s->model;
    cairn_runtime *rt = m->runtime;
    s->busy = false;
    status = handles_leave(rt, status);
    if (s->closing) cairn_session_close(s);
    if (m->closing && !engine_is_busy(m)) cairn_model_free(m);
    if (rt->closing && !engine_is_any_busy(rt)) cairn_close(rt);
    return status;
}

void cairn_cancel(cairn_session *session) {
    if (session) os_atomic_store(&session->cancel, 1);
}

const int32_t *cairn_session_ids(const cairn_session *session, int *count) {
    if (count) *count = session ? session->count : 0;
    return session ? session->tokens : NULL;
}

cairn_status cairn_session_rewind(cairn_session *session, int count) {
    cairn_status status = engine_enter(session, "session_rewind");
    if (status) return status;
    if (count < 0 || count > session->count)
        return engine_leave(session, base_fail(engine_base(session), CAIRN_INVALID_ARGUMENT,
                                               "session_rewind: count = %d; 0 to %d is held",
                                               count, session->count));
    session->generating = false;
    engine_cut(session, count);
    return engine_leave(session, CAIRN_OK);
}

cairn_status cairn_session_reset(cairn_session *session) {
    cairn_status status = cairn_session_rewind(session, 0);
    if (status) return status;
    session->appended = session->reused = 0;
    session->append_seconds = 0.0;
    if (session->drafter.heads) drafter_clear(&session->drafter);
    return CAIRN_OK;
}

/* Appends inside an entered call, all but the last token processed. The caller has reset `cancel`
 * where the call began: reading a text can be cancelled, too. */
static cairn_status engine_append(cairn_session *s, const int32_t *ids, int count) {
    int held, cached;
    int64_t start = os_now_us();
    cairn_status status;
    s->generating = false;
    engine_settle(s);
    held = s->count, cached = s->cached;
    if ((status = engine_add(s, ids, count))) return status;
    if ((status = engine_process(s, 1))) engine_take_back(s, held, cached);
    else s->append_seconds += engine_seconds_since(start);
    return status;
}

cairn_status cairn_append_ids(cairn_session *session, const int32_t *ids, int count) {
    cairn_status status = engine_enter(session, "append_ids");
    if (status) return status;
    os_atomic_store(&session->cancel, 0);
    if (count < 0 || (count && !ids))
        status = base_fail(engine_base(session), CAIRN_INVALID_ARGUMENT,
                           "append_ids: count = %d with %s", count, ids ? "ids" : "no ids");
    else
        status = engine_append(session, ids, count);
    return engine_leave(session, status);
}
