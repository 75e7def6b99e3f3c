/* engine_constrain: how a generation is sampled, and what its grammar lets it say. The grammar's text
 * is the session's ids from grammar_from on; a place in it follows from these alone, so that whatever
 * changes the sequence changes the place, too. */

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

static cairn_status engine_check_grammar(cairn_session *s, int count) {
    const engine_options *o = &s->options;
    const bool any = o->grammar || o->json_schema;
    base *b = engine_base(s);
    if (o->grammar && o->json_schema)
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "generate: a grammar and a json_schema; give one");
    if (o->grammar_from < 0 || o->grammar_from > count || (o->grammar_from && !any))
        return base_fail(b, CAIRN_INVALID_ARGUMENT,
                         "generate: grammar_from = %d; 0 (behind the prompt), or with a grammar one "
                         "of 1 to %d ids, is expected", o->grammar_from, count);
    if (!any || s->model->grammars) return CAIRN_OK;
    s->model->grammars = (grammar_shelf *)base_new(b, 1, sizeof(grammar_shelf));
    return s->model->grammars ? CAIRN_OK : base_no_memory(b, "grammars", sizeof(grammar_shelf));
}

/* Takes the grammar that was asked for; the prompt ends at `count` ids. */
static cairn_status engine_take_grammar(cairn_session *s, int count) {
    engine_options *o = &s->options;
    const char *text = o->grammar ? o->grammar : o->json_schema;
    cairn_status status = engine_check_grammar(s, count);
    if (!status && text)
        status = (o->grammar ? grammar_take : grammar_take_schema)(
            engine_base(s), s->model->grammars, &s->model->tokenizer, text, strlen(text), &s->constraint);
    s->grammar_from = o->grammar_from ? o->grammar_from : count;
    memset(&s->place, 0, sizeof s->place);
    return status;
}

static cairn_status engine_take_bias(cairn_session *s) {
    const engine_options *o = &s->options;
    const int vocab = s->model->shape.vocab;
    base *b = engine_base(s);
    if (o->bias_count < 0 || o->bias_count > vocab || (o->bias_count && !o->bias))
        return base_fail(b, CAIRN_INVALID_ARGUMENT,
                         "generate: logit_bias_count = %d, logit_bias %s; up to %d are allowed", o->bias_count,
                         o->bias ? "given" : "NULL", vocab);
    for (int i = 0; i < o->bias_count; i++)
        if (o->bias[i].id < 0 || o->bias[i].id >= vocab || !(o->bias[i].bias < INFINITY))
            return base_fail(b, CAIRN_INVALID_ARGUMENT,
                             "generate: logit_bias[%d] is of id %d; an id below %d and a number are "
                             "expected", i, (int)o->bias[i].id, vocab);
    if (!o->bias_count) return CAIRN_OK;
    s->bias = (cairn_logit_bias *)base_new(b, (size_t)o->bias_count, sizeof *s->bias);
    if (!s->bias) return base_no_memory(b, "logit_bias", (size_t)o->bias_count * sizeof *s->bias);
    s->bias_count = o->bias_count;
    memcpy(s->bias, o->bias, (size_t)o->bias_count * sizeof *s->bias);
    return CAIRN_OK;
}

static cairn_status engine_take_logprobs(cairn_session *s) {
    const int best = s->options.logprobs;
    s->logprobs.size = s->polled_logprobs.size = 0;
    if (!best) return CAIRN_OK;
    if (best < 0 || best > ENGINE_LOGPROBS || best > s->model->shape.vocab)
        return base_fail(engine_base(s), CAIRN_INVALID_ARGUMENT,
                         "generate: logprobs = %d; 0 (none) to %d is expected", best,
                         ENGINE_LOGPROBS);
    s->row_logprobs = (cairn_logprob *)base_new(engine_base(s), ENGINE_ROWS * (1 + (size_t)best),
                                                sizeof *s->row_logprobs);
    if (!s->row_logprobs)
        return base_no_memory(engine_base(s), "logprobs", (size_t)best * sizeof *s->row_logprobs);
    s->row_best = best;
    return CAIRN_OK;
}

/* Takes over what the options point to, which is the caller's. */
static cairn_status engine_take_wishes(cairn_session *s, int count) {
    const bool masks = s->options.grammar || s->options.json_schema;
    cairn_status status;
    sample_params params;
    engine_sample_params(s, &params);
    status = sample_prepare(s->model->runtime, &params, s->model->shape.vocab, masks);
    if (!status) status = engine_take_logprobs(s);
    if (!status) status = engine_take_bias(s);
    if (!status) status = engine_take_grammar(s, count);
    s->options.grammar = s->options.json_schema = NULL;
    s->options.bias = NULL;
    return status;
}

static cairn_status engine_find_place(cairn_session *s, int count, grammar_place *place) {
    return grammar_go(engine_base(s), s->constraint, &s->model->grammars->words,
                      s->tokens + s->grammar_from, count - s->grammar_from, place);
}

static cairn_status engine_no_token(cairn_session *s) {
    if (grammar_is_lost(&s->place))
        return base_fail(engine_base(s), CAIRN_INVALID_ARGUMENT,
                         "generate: the grammar does not allow the text of ids %d to %d",
                         s->grammar_from, s->count - 1);
    return base_fail(engine_base(s), CAIRN_INVALID_ARGUMENT,
                     "generate: the grammar allows none of the model's tokens after %d ids",
                     s->count - s->grammar_from);
}

/* The masks of a part's rows that are sampled; what the grammar forbids is not drafted. */
static cairn_status engine_constrain(cairn_session *s, engine_part *part) {
    grammar_shelf *shelf = s->model->grammars;
    cairn_status status = engine_find_place(s, s->count, &s->place);
    grammar_place place = s->place;
    for (int i = 0; !status; i++) {
        bool any = !grammar_is_lost(&place);
        if (any)
            status = grammar_allow(engine_base(s), s->constraint, &shelf->words, &place,
                                   s->model->scratch->turn, &s->masks[i], &any);
        if (!any && !i) return engine_no_token(s);
        if (!any) {
            part->rows -= part->drafts - (i - 1);
            part->sampled = i;
            part->drafts = i - 1;
        }
        if (status || i >= part->drafts) break;
        status = engine_find_place(s, s->count + i + 1, &place);
    }
    return status;
}

/* Whether the text of all ids is whole and nothing can follow it. */
static cairn_status engine_is_said(cairn_session *s, bool *done) {
    cairn_status status = s->constraint ? engine_find_place(s, s->count, &s->place) : CAIRN_OK;
    *done = !status && s->constraint && grammar_is_done(s->constraint, &s->place);
    return status;
}
