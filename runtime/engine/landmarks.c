/* landmarks: where a session's tokens lie in its state. Tokens of an adapter with a landmark run with one
 * behind every S - 1 of them, as the last slot of their page: nobody sees it but the forward. So all
 * that a session counts are tokens of the caller's, and what pages, state and prefix cache count are
 * slots; without landmarks both are the same. A landmark runs in the forward of the token before it, as
 * that one runs. Calls adapter. */

static bool landmarks_with(const cairn_adapter *a) { return a && a->parts[ADAPTER_LANDMARK]; }
/* The adapter that sessions begin with. */
static cairn_adapter *landmarks_first(const cairn_model *m) { return m->adapter ? m->adapter : m->own; }

/* Slots of the first `tokens` tokens. */
static int landmarks_slots(const cairn_model *m, const cairn_adapter *a, int tokens) {
    return landmarks_with(a) ? tokens + tokens / (m->kv.page_size - 1) : tokens;
}

/* The most tokens that so many slots hold. */
static int landmarks_tokens(const cairn_model *m, const cairn_adapter *a, int slots) {
    const int size = m->kv.page_size, rest = slots % size;
    if (!landmarks_with(a)) return slots;
    return slots / size * (size - 1) + (rest < size - 1 ? rest : size - 2);
}

static int landmarks_context(const cairn_model *m, const cairn_adapter *a) {
    return landmarks_tokens(m, a, m->max_seq_len);
}

static int engine_slots(const cairn_session *s, int tokens) {
    return landmarks_slots(s->model, s->adapter, tokens);
}
static int engine_tokens_in(const cairn_session *s, int slots) {
    return landmarks_tokens(s->model, s->adapter, slots);
}
static int engine_context(const cairn_session *s) {
    return landmarks_context(s->model, s->adapter);
}

/* Pages that so many tokens fill, the last one perhaps in part; and whole ones. */
static int engine_pages_for(const cairn_session *s, int tokens) {
    return model_pages_of(engine_slots(s, tokens), s->model->kv.page_size);
}
static int engine_whole_pages(const cairn_session *s, int tokens) {
    return engine_slots(s, tokens) / s->model->kv.page_size;
}

/* The ids in the first `slots` slots, as the prefix cache knows them: a landmark stands behind the
 * vocabulary. In the scratch, where there are landmarks. */
static const int32_t *engine_fill(const cairn_session *s, const int32_t *ids, int slots) {
    const int size = s->model->kv.page_size;
    int32_t *out = s->model->scratch->filled;
    if (!landmarks_with(s->adapter)) return ids;
    for (int g = 0; g < slots; g++)
        out[g] = (g + 1) % size ? *ids++ : s->model->shape.vocab;
    return out;
}

/* The landmark behind the token in row `before`. */
static void engine_put_landmark(const cairn_session *s, const forward_row *before,
                                forward_row *row) {
    const cairn_config *config = &s->model->runtime->config;
    *row = *before;
    row->position++;
    row->rope += config->landmark_position == CAIRN_LANDMARK_NEXT;
    row->logits = row->hidden = false;
    row->sample = NULL;
    row->embedding = s->adapter->parts[ADAPTER_LANDMARK];
}

/* Tells apart what prompts compute by adapter and, where they select or pages have landmarks, by
 * the rule of selection; 0: as the model alone does. */
static uint64_t engine_space(const cairn_session *s) {
    const cairn_config *config = &s->model->runtime->config;
    uint64_t space = adapter_space(s->adapter) + ((uint64_t)s->model->spoilt << 32);
    uint64_t words[sizeof config->selection / 8];
    if (!config->selection.prompts && !landmarks_with(s->adapter)) return space;
    memcpy(words, &config->selection, sizeof words);
    for (size_t i = 0; i < BASE_COUNT(words); i++)
        space = (space ^ words[i]) * 0x9e3779b97f4a7c15u, space ^= space >> 29;
    return (space ^ (uint64_t)config->topk) * 0xd6e8feb86659fd93u | 1;
}

/* Whether the session's tokens can run as the config selects. */
static cairn_status engine_check_selection(const cairn_session *s) {
    const cairn_model *m = s->model;
    const cairn_selection *selection = &m->runtime->config.selection;
    if (selection->source != CAIRN_SOURCE_LANDMARK || landmarks_with(s->adapter)) return CAIRN_OK;
    return base_fail(&m->runtime->base, CAIRN_UNSUPPORTED, "selection.source = \"landmark\": the "
                     "session runs by no adapter with a landmark_embedding; give it one "
                     "(cairn_session_adapt), or choose \"minmax\" or \"mean\"");
}
