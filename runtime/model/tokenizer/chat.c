/* tokenizer_chat: conversations into the text that a model was trained on, and into ids.
 *
 * A format says what stands around messages; template.c knows it from the file's template, or the
 * config gives one. In the text a content that holds "<|im_end|>" cannot be told from the format.
 * As ids it can: what the format says is control text, what messages say is plain. */

static const char *const tokenizer_roles[CHAT_ROLES] = {"system", "user", "assistant"};

/* ---- formats -------------------------------------------------------------------------------- */

/* Calls the token a control token where the format's texts hold its own: "<...>" or "[...]". */
static void tokenizer_control_marks(tokenizer *t, const tokenizer_format *f,
                                    const tokenizer_index *index) {
    for (int32_t id = 0; id < t->vocab; id++) {
        const char *text = index->strings[id];
        size_t bytes = index->sizes[id];
        char mark[64];
        if (t->kinds[id] != TOK_USER || bytes < 3 || bytes >= sizeof mark ||
            (*text != '<' && *text != '[')) continue;
        memcpy(mark, text, bytes);
        mark[bytes] = '\0';
        if (f->again && !strcmp(f->again, mark)) tokenizer_make_control(t, id);
        for (int role = 0; role < CHAT_ROLES; role++)
            if ((f->before[role] && strstr(f->before[role], mark)) ||
                (f->after[role] && strstr(f->after[role], mark)))
                tokenizer_make_control(t, id);
    }
}

/* A token of ChatML, a control token from now on; -1 when text cannot name it. */
static int32_t tokenizer_turn_token(tokenizer *t, const tokenizer_index *index, const char *text) {
    int32_t id = tokenizer_find(index, text, strlen(text));
    tokenizer_make_control(t, id);
    return id >= 0 && t->kinds[id] == TOK_CONTROL ? id : -1;
}

/* Whether the template is of a known family, whose format is *f and lies in *canon. *fits: memory sufficed. */
static bool tokenizer_know(base *b, const char *text, size_t bytes, base_text *canon, tokenizer_format *f,
                           bool *fits) {
    *fits = bytes >= 1 << 20 ||
            (tokenizer_canon(b, text, bytes, canon) && base_text_add(b, canon, "", 0));
    return *fits && canon->data && !memchr(canon->data, 0, canon->size) &&
           tokenizer_recognise(canon->data, f);
}

/* Both declared in tokenizer.c. A template that is not known is an error only when it is asked for. */
static cairn_status tokenizer_read_template(base *b, const gguf *g, tokenizer *t) {
    const char *text = "";
    size_t bytes = 0;
    base_text canon = {NULL, 0, 0};
    tokenizer_format *f = &t->format;
    bool found, fits;
    if (gguf_string(b, g, "tokenizer.chat_template", &found, &text, &bytes)) return b->status;
    if (!found) return CAIRN_OK;
    t->has_chat = tokenizer_know(b, text, bytes, &canon, f, &fits);
    fits = fits && base_text_add(b, &t->chat_template, text, bytes < 120 ? bytes : 120);
    if (t->has_chat && f->system && fits)
        fits = base_text_add(b, &t->chat_system, f->system, (size_t)(f->system_end - f->system));
    if (t->has_chat && f->quiet && fits)
        fits = base_text_add(b, &t->chat_quiet, f->quiet, (size_t)(f->quiet_end - f->quiet));
    f->system = f->system_end = f->quiet = f->quiet_end = NULL; /* they lay in the canonical text */
    base_text_free(b, &canon);
    return fits ? CAIRN_OK : base_no_memory(b, "tokenizer.chat_template", bytes);
}

static void tokenizer_control_chat(const tokenizer_index *index, tokenizer *t) {
    t->turn_open = tokenizer_turn_token(t, index, "<|im_start|>");
    t->turn_close = tokenizer_turn_token(t, index, "<|im_end|>");
    if (t->has_chat) tokenizer_control_marks(t, &t->format, index);
}

/* Notes the control tokens of a text that opens or closes a turn, until the marks are full, and
 * whether it has any. */
static cairn_status tokenizer_note_marks(base *b, tokenizer *t, const char *text, bool opens,
                                         bool *any) {
    tokenizer_ids ids = {NULL, 0, 0};
    cairn_status status = text ? tokenizer_encode(b, t, text, strlen(text), true, &ids) : CAIRN_OK;
    for (size_t i = 0; i < ids.size; i++) {
        int known = 0;
        if (t->kinds[ids.data[i]] != TOK_CONTROL) continue;
        *any = true;
        while (known < t->mark_count && t->marks[known].id != ids.data[i]) known++;
        if (known < t->mark_count || known == TOK_MARKS) continue;
        t->marks[known].id = ids.data[i];
        t->marks[known].opens = opens;
        t->mark_count++;
    }
    tokenizer_ids_free(b, &ids);
    return status;
}

/* Declared in tokenizer.c. The first mark is the end of the assistant's turn, if it has one. */
static cairn_status tokenizer_find_marks(base *b, tokenizer *t) {
    const tokenizer_format *f = &t->format;
    bool any[CHAT_ROLES] = {false, false, false}, closed = false;
    cairn_status status;
    t->mark_count = 0;
    t->turn_end = -1;
    if (!t->has_chat) return CAIRN_OK;
    status = tokenizer_note_marks(b, t, f->after[CHAT_ASSISTANT], false, &closed);
    if (closed) t->turn_end = t->marks[0].id;
    for (int role = 0; role < CHAT_ROLES && !status; role++)
        status = tokenizer_note_marks(b, t, f->before[role], true, &any[role]);
    if (!status) status = tokenizer_note_marks(b, t, f->again, true, &any[CHAT_USER]);
    t->is_safe = closed && any[CHAT_USER];
    if (!status) /* without a beginning of its own an answer begins where the question ends */
        status = tokenizer_note_marks(b, t, f->after[CHAT_USER], !any[CHAT_ASSISTANT], &closed);
    return status ? status
                  : tokenizer_note_marks(b, t, f->after[CHAT_SYSTEM], false, &closed);
}

static cairn_status tokenizer_set_format(base *b, tokenizer *t, const char *const *before,
                                         const char *const *after) {
    memset(&t->format, 0, sizeof t->format);
    base_text_free(b, &t->chat_system);
    base_text_free(b, &t->chat_quiet);
    for (int role = 0; role < CHAT_ROLES; role++) {
        t->format.before[role] = before[role];
        t->format.after[role] = after[role];
    }
    t->format.reply = before[CHAT_ASSISTANT];
    t->has_chat = true;
    return tokenizer_find_marks(b, t);
}

/* ---- conversations -------------------------------------------------------------------------- */

static cairn_status tokenizer_no_chat(base *b, const tokenizer *t) {
    static const char instead[] =
        "Say in the config what stands around messages: chat = { system = { \"before\", "
        "\"after\" }, user = { .. }, assistant = { .. } }";
    char shown[80] = "";
    if (!t->chat_template.size)
        return base_fail(b, CAIRN_UNSUPPORTED, "chat: the model has no tokenizer.chat_template. %s",
                         instead);
    for (size_t i = 0; i < t->chat_template.size && i + 1 < sizeof shown; i++)
        shown[i] = tokenizer_blank(t->chat_template.data[i]) ? ' ' : t->chat_template.data[i];
    for (size_t i = 0; shown[i]; i++)
        if (shown[i] < ' ' || shown[i] > '~') shown[i] = '?';
    return base_fail(b, CAIRN_UNSUPPORTED, "chat: the template that begins \"%s\" is of no known "
                     "family; known: ChatML, SmolLM3, Llama 2 and 3, Gemma, Phi, Mistral. %s", shown,
                     instead);
}

/* What is written: the text, and where its spans end; adjacent ones of a kind are one. */
typedef struct tokenizer_chat_text {
    base_text text;
    tokenizer_span *spans; /* [room] */
    size_t count, room;
} tokenizer_chat_text;

/* A message has at most three parts that it says itself, each behind one that the format says. */
static bool tokenizer_chat_open(base *b, int messages, tokenizer_chat_text *out) {
    memset(out, 0, sizeof *out);
    out->room = 8 * (size_t)messages + 4;
    out->spans = (tokenizer_span *)base_new(b, out->room, sizeof *out->spans);
    return out->spans != NULL;
}

static void tokenizer_chat_close(base *b, tokenizer_chat_text *out) {
    base_delete(b, out->spans, out->room, sizeof *out->spans);
    base_text_free(b, &out->text);
}

static bool tokenizer_chat_add(base *b, tokenizer_chat_text *out, const char *text, size_t bytes,
                               bool special) {
    if (!base_text_add(b, &out->text, text, bytes)) return false;
    if (!out->count || out->spans[out->count - 1].special != special)
        out->spans[out->count++].special = special;
    out->spans[out->count - 1].bytes += bytes;
    return true;
}

static bool tokenizer_chat_control(base *b, tokenizer_chat_text *out, const char *text) {
    return !text || tokenizer_chat_add(b, out, text, strlen(text), true);
}

/* A content: bytes of a message. */
typedef struct tokenizer_content { const char *text; size_t bytes; } tokenizer_content;

/* Without white space, or with `lines` without line ends, at its ends. */
static tokenizer_content tokenizer_trim(tokenizer_content c, bool lines, bool at_end) {
    size_t size, last = 0;
    while (c.bytes && (lines ? *c.text == '\n' : tokenizer_kindat(c.text, &size) == TEXT_SPACES ||
                                                 (*c.text >= 0x1c && *c.text <= 0x1f))) {
        size = lines ? 1 : (size_t)base_utf8_length((unsigned char)*c.text);
        c.text += size, c.bytes -= size;
    }
    for (size_t at = 0; at < c.bytes && at_end; at += size) {
        bool blank = tokenizer_kindat(c.text + at, &size) == TEXT_SPACES;
        if (lines ? c.text[at] != '\n' : !blank && (c.text[at] < 0x1c || c.text[at] > 0x1f))
            last = at + size;
    }
    if (at_end) c.bytes = last;
    return c;
}

/* Without white space at its end. */
static tokenizer_content tokenizer_trim_end(tokenizer_content c) {
    const tokenizer_content inner = tokenizer_trim(c, false, true);
    c.bytes = inner.bytes ? (size_t)(inner.text + inner.bytes - c.text) : 0;
    return c;
}

/* The last place of a mark in a content, or NULL. */
static const char *tokenizer_last(tokenizer_content c, const char *mark, size_t bytes) {
    for (size_t at = c.bytes; at >= bytes; at--)
        if (!memcmp(c.text + at - bytes, mark, bytes)) return c.text + at - bytes;
    return NULL;
}

/* The first place of a mark in a content; its end without one. */
static size_t tokenizer_first(tokenizer_content c, const char *mark, size_t bytes) {
    for (size_t at = 0; at + bytes <= c.bytes; at++)
        if (!memcmp(c.text + at, mark, bytes)) return at;
    return c.bytes;
}

/* An answer of a model that thinks: what it thought before "</think>" is left out, but of an answer
 * behind the last question (`latest`), where it is put into place. */
static bool tokenizer_chat_thoughts(base *b, tokenizer_content c, bool latest, bool last,
                                    tokenizer_chat_text *out) {
    const char *end = tokenizer_last(c, "</think>", 8), *begin;
    tokenizer_content thought = {c.text, 0};
    if (end) {
        thought.bytes = tokenizer_first(c, "</think>", 8);
        if ((begin = tokenizer_last(thought, "<think>", 7)) != NULL) {
            thought.bytes -= (size_t)(begin + 7 - thought.text);
            thought.text = begin + 7;
        }
        c.bytes -= (size_t)(end + 8 - c.text);
        c.text = end + 8;
        c = tokenizer_trim(c, true, false);
        thought = tokenizer_trim(thought, true, true);
    }
    if (latest && (last || thought.bytes)) {
        if (!tokenizer_chat_control(b, out, "<think>\n") ||
            !tokenizer_chat_add(b, out, thought.text, thought.bytes, false) ||
            !tokenizer_chat_control(b, out, "\n</think>\n\n")) return false;
        c = tokenizer_trim(c, true, false);
    }
    return tokenizer_chat_add(b, out, c.text, c.bytes, false);
}

/* ---- SmolLM3's system turn ---- */

static bool tokenizer_says(tokenizer_content c, const char *mark) {
    return tokenizer_first(c, mark, strlen(mark)) < c.bytes;
}

/* Takes each `flag` out of the text. */
static void tokenizer_take_out(base_text *text, const char *flag) {
    const size_t bytes = strlen(flag);
    size_t to = 0;
    for (size_t at = 0; at < text->size;) {
        if (at + bytes <= text->size && !memcmp(text->data + at, flag, bytes)) at += bytes;
        else text->data[to++] = text->data[at++];
    }
    text->size = to;
}

/* What a system message says besides its flags. */
static bool tokenizer_instructions(base *b, tokenizer_content c, bool instead, base_text *out) {
    if (c.bytes && !base_text_add(b, out, c.text, c.bytes)) return false;
    tokenizer_take_out(out, "/no_think");
    tokenizer_take_out(out, "/think");
    if (out->size) out->size = tokenizer_trim_end((tokenizer_content){out->data, out->size}).bytes;
    if (instead) tokenizer_take_out(out, "/system_override");
    if (out->size) out->size = tokenizer_trim_end((tokenizer_content){out->data, out->size}).bytes;
    return true;
}

/* Today in Greenwich, as "05 March 2026", or in digits "2026-03-05". */
static void tokenizer_today(char *out, size_t bytes, bool digits) {
    static const char *const months[] = {"January", "February", "March", "April", "May", "June",
                                         "July", "August", "September", "October", "November",
                                         "December"};
    /* Years that begin in March, 146097 days in 400 of them. */
    const int64_t days = os_wall_us() / 86400000000 + 719468, era = days / 146097;
    const int day = (int)(days % 146097);
    const int year = (day - day / 1460 + day / 36524 - day / 146096) / 365;
    const int rest = day - (365 * year + year / 4 - year / 100), month = (5 * rest + 2) / 153;
    const int date = rest - (153 * month + 2) / 5 + 1, full = (int)(era * 400) + year + (month >= 10);
    if (digits) snprintf(out, bytes, "%04d-%02d-%02d", full, (month + 2) % 12 + 1, date);
    else snprintf(out, bytes, "%02d %s %d", date, months[(month + 2) % 12], full);
}

static bool tokenizer_chat_header(base *b, const tokenizer *t, const tokenizer_message *system,
                                  bool quiet, tokenizer_chat_text *out) {
    const tokenizer_content c = {system ? system->content : "", system ? system->content_bytes : 0};
    const bool instead = tokenizer_says(c, "/system_override");
    const base_text *own = quiet ? &t->chat_quiet : &t->chat_system;
    base_text said = {NULL, 0, 0};
    char head[160], today[32];
    bool done = tokenizer_instructions(b, c, instead, &said) &&
                tokenizer_chat_control(b, out, t->format.before[CHAT_SYSTEM]);
    tokenizer_today(today, sizeof today, false);
    snprintf(head, sizeof head, "## Metadata\n\nKnowledge Cutoff Date: June 2025\nToday Date: %s\n"
             "Reasoning Mode: %s\n\n## Custom Instructions\n\n", today, quiet ? "/no_think" : "/think");
    if (!instead) done = done && tokenizer_chat_control(b, out, head);
    if (said.size || instead)
        done = done && tokenizer_chat_add(b, out, said.data ? said.data : "", said.size, false) &&
               (instead || tokenizer_chat_control(b, out, "\n\n"));
    else done = done && tokenizer_chat_add(b, out, own->data, own->size, true);
    base_text_free(b, &said);
    return done && tokenizer_chat_control(b, out, t->format.after[CHAT_SYSTEM]);
}

/* Whether the conversation that begins with these ids began by telling the model not to think; after
 * "/system_override" nothing says so. */
static bool tokenizer_was_quiet(base *b, const tokenizer *t, const int32_t *ids, int count) {
    static const char mode[] = "Reasoning Mode: ", no[] = "/no_think\n";
    base_text text = {NULL, 0, 0};
    bool quiet = false;
    if (t->format.reasons && count && /* it stands near the beginning */
        !tokenizer_decode(b, t, ids, (size_t)(count < 128 ? count : 128), &text)) {
        const tokenizer_content c = {text.data, text.size};
        const size_t at = tokenizer_first(c, mode, sizeof mode - 1) + sizeof mode - 1;
        quiet = at + sizeof no - 1 <= c.bytes && !memcmp(c.text + at, no, sizeof no - 1);
    }
    base_text_free(b, &text);
    return quiet;
}

static int tokenizer_role(const char *name) {
    int role = 0;
    while (role < CHAT_ROLES && strcmp(name, tokenizer_roles[role])) role++;
    return role;
}

/* The message that a first system message goes into. */
static int tokenizer_joined(const tokenizer_format *f, int count) { return f->joins_last ? count - 1 : 1; }

/* Whether the message is a first system message that goes into a user's. */
static bool tokenizer_joins(const tokenizer_format *f, const tokenizer_message *messages, int i,
                            int count, bool first) {
    return f->join && first && i == 0 && tokenizer_role(messages[0].role) == CHAT_SYSTEM &&
           count > 1 && tokenizer_role(messages[tokenizer_joined(f, count)].role) == CHAT_USER;
}

static cairn_status tokenizer_check_role(base *b, const tokenizer_format *f,
                                         const tokenizer_message *messages, int i, int count,
                                         bool first) {
    int role = tokenizer_role(messages[i].role);
    if (f->reasons && role == CHAT_SYSTEM && (i || !first))
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "chat: message %d of %d: a message of the system "
                         "can only be the first", i + 1, count);
    if (role < CHAT_ROLES && (f->before[role] || tokenizer_joins(f, messages, i, count, first)))
        return CAIRN_OK;
    if (role == CHAT_SYSTEM && f->join)
        return base_fail(b, CAIRN_INVALID_ARGUMENT, "chat: message %d of %d: the template has no turn "
                         "of the system: its message can only be the first, in one call with a "
                         "user's %s", i + 1, count, f->joins_last ? "at the end" : "after it");
    return base_fail(b, CAIRN_INVALID_ARGUMENT, "chat: message %d of %d: '%.64s' is no role of "
                     "the template; it has %suser and assistant", i + 1, count, messages[i].role,
                     f->before[CHAT_SYSTEM] || f->join ? "system, " : "");
}

static cairn_status tokenizer_check_messages(base *b, const tokenizer *t,
                                             const tokenizer_message *messages, int count,
                                             bool first) {
    for (int i = 0; i < count; i++) {
        size_t fault = base_utf8_fault(messages[i].content, messages[i].content_bytes);
        if (tokenizer_check_role(b, &t->format, messages, i, count, first)) return b->status;
        if (fault < messages[i].content_bytes)
            return base_fail(b, CAIRN_INVALID_UTF8, "chat: message %d of %d: byte %llu (0x%02x) of "
                             "its content does not begin a whole UTF-8 character", i + 1, count,
                             (unsigned long long)fault,
                             (unsigned)(unsigned char)messages[i].content[fault]);
    }
    return CAIRN_OK;
}

static const char *const tokenizer_no_thought = "<think>\n\n</think>\n";

/* What stands between a first system message and the user's after it; of a blank one less. */
static bool tokenizer_chat_join(base *b, const tokenizer_format *f, const tokenizer_message *next,
                                tokenizer_chat_text *out) {
    const tokenizer_content c = {next->content, next->content_bytes};
    tokenizer_content join = {f->join, strlen(f->join)};
    if (f->strips && !tokenizer_trim_end(c).bytes) join = tokenizer_trim_end(join);
    return tokenizer_chat_add(b, out, join.text, join.bytes, true);
}

/* Message i of the conversation. */
static bool tokenizer_chat_message(base *b, const tokenizer_format *f,
                                   const tokenizer_message *messages, int i, int count, bool first,
                                   bool quiet, tokenizer_chat_text *out) {
    tokenizer_content c = {messages[i].content, messages[i].content_bytes};
    int role = tokenizer_role(messages[i].role), question = count - 1;
    bool done, joins = tokenizer_joins(f, messages, i, count, first);
    bool joined = i == tokenizer_joined(f, count) && tokenizer_joins(f, messages, 0, count, first);
    if (f->trims >> role & 1)
        c = joined && f->strips ? tokenizer_trim_end(c) : tokenizer_trim(c, false, true);
    if (f->reasons && role == CHAT_ASSISTANT) c = tokenizer_trim(c, true, false);
    done = role != CHAT_USER || joined || (first && i == 0) ||
           tokenizer_chat_control(b, out, f->again);
    done = done && (joined || tokenizer_chat_control(b, out, f->before[joins ? CHAT_USER : role]));
    if (first && i == 0 && role == CHAT_SYSTEM) done = done && tokenizer_chat_control(b, out, f->head);
    while (question >= 0 && tokenizer_role(messages[question].role) != CHAT_USER) question--;
    if (role == CHAT_ASSISTANT && f->thinks)
        done = done && tokenizer_chat_thoughts(b, c, question >= 0 && i > question, i == count - 1,
                                               out);
    else
        done = done && (!quiet || role != CHAT_ASSISTANT ||
                        tokenizer_chat_control(b, out, tokenizer_no_thought)) &&
               tokenizer_chat_add(b, out, c.text, c.bytes, false);
    return done && (joins ? tokenizer_chat_join(b, f, messages + tokenizer_joined(f, count), out)
                          : tokenizer_chat_control(b, out, f->after[role]));
}

/* The template's own system message, with the day in its place. */
static bool tokenizer_chat_own(base *b, const tokenizer *t, tokenizer_chat_text *out) {
    static const char day[] = "'+today+'";
    const base_text *own = &t->chat_system;
    const tokenizer_content c = {own->data, own->size};
    const size_t at = t->format.dated ? tokenizer_first(c, day, sizeof day - 1) : own->size;
    const size_t rest = at < own->size ? at + sizeof day - 1 : at;
    char today[32];
    tokenizer_today(today, sizeof today, true);
    return tokenizer_chat_add(b, out, own->data, at, true) &&
           (at == own->size || tokenizer_chat_control(b, out, today)) &&
           tokenizer_chat_add(b, out, own->data + rest, own->size - rest, true);
}

/* Message i in the order in which they are written: a first system message before the one it joins. */
static int tokenizer_chat_order(const tokenizer_format *f, const tokenizer_message *messages, int i,
                                int count, bool first) {
    if (!tokenizer_joins(f, messages, 0, count, first) || i > tokenizer_joined(f, count) - 1) return i;
    return i == tokenizer_joined(f, count) - 1 ? 0 : i + 1;
}

/* What the template makes of messages [count], behind the text `before`. quiet: the model was told not
 * to think. */
static cairn_status tokenizer_chat_write(base *b, const tokenizer *t, const char *before,
                                         const tokenizer_message *messages, int count, bool first,
                                         bool reply, bool quiet, tokenizer_chat_text *out) {
    const tokenizer_format *f = &t->format;
    const bool told = f->reasons && first && count > 0 && !strcmp(messages[0].role, "system");
    bool done;
    if (!t->has_chat) return tokenizer_no_chat(b, t);
    if (tokenizer_check_messages(b, t, messages, count, first)) return b->status;
    done = tokenizer_chat_control(b, out, before);
    if (told)
        quiet = tokenizer_says((tokenizer_content){messages[0].content, messages[0].content_bytes},
                               "/no_think");
    if (f->reasons && first && count > 0)
        done = done && tokenizer_chat_header(b, t, told ? messages : NULL, quiet, out);
    else if (first && count > 0 && t->chat_system.data && strcmp(messages[0].role, "system") != 0)
        done = done && tokenizer_chat_control(b, out, f->before[CHAT_SYSTEM]) &&
               tokenizer_chat_control(b, out, f->head) &&
               tokenizer_chat_own(b, t, out) &&
               tokenizer_chat_control(b, out, f->after[CHAT_SYSTEM]);
    for (int i = told; i < count && done; i++)
        done = tokenizer_chat_message(b, f, messages, tokenizer_chat_order(f, messages, i, count, first),
                                      count, first, quiet, out);
    if (done && reply) done = tokenizer_chat_control(b, out, f->reply) &&
                              (!quiet || tokenizer_chat_control(b, out, tokenizer_no_thought));
    return done ? CAIRN_OK : base_no_memory(b, "chat", out->text.size);
}

static cairn_status tokenizer_chat(base *b, const tokenizer *t, const tokenizer_message *messages,
                                   int count, bool first, bool reply, base_text *out) {
    tokenizer_chat_text chat;
    cairn_status status;
    if (!tokenizer_chat_open(b, count, &chat)) return base_no_memory(b, "chat", chat.room);
    status = tokenizer_chat_write(b, t, "", messages, count, first, reply, false, &chat);
    if (!status && chat.text.size && !base_text_add(b, out, chat.text.data, chat.text.size))
        status = base_no_memory(b, "chat", chat.text.size);
    tokenizer_chat_close(b, &chat);
    return status;
}

/* Whether the text of ids ends with `end`; asked where a user's turn ends without a mark. */
static bool tokenizer_chat_ends(base *b, const tokenizer *t, const int32_t *ids, int count,
                                const char *end) {
    const size_t bytes = strlen(end);
    const int from = count > (int)bytes ? count - (int)bytes : 0; /* a token has a byte at least */
    base_text text = {NULL, 0, 0};
    bool ends = false;
    if (t->format.again && !tokenizer_decode(b, t, ids + from, (size_t)(count - from), &text))
        ends = text.size >= bytes && !memcmp(text.data + text.size - bytes, end, bytes);
    base_text_free(b, &text);
    return ends;
}

/* What the format says between ids [count] and the message after them: the end of a turn that they
 * leave open, or what follows its closing token. */
static const char *tokenizer_chat_between(base *b, const tokenizer *t, const int32_t *ids, int count,
                                          const tokenizer_message *next) {
    const char *after = t->format.after[CHAT_ASSISTANT], *asked = t->format.after[CHAT_USER];
    const char *tail, *piece;
    int at = count, mark = t->mark_count;
    size_t bytes;
    while (t->mark_count && mark == t->mark_count && at-- > 0)
        for (mark = 0; mark < t->mark_count && t->marks[mark].id != ids[at];) mark++;
    if (!t->has_chat || !t->mark_count || (at < 0 && (!t->format.again || !count))) return "";
    if (at < 0 || t->marks[mark].opens) { /* is something said where an answer begins with no mark? */
        if (*after == ' ' && tokenizer_chat_ends(b, t, ids, count, " ")) after++;
        return !*t->format.reply && tokenizer_role(next->role) == CHAT_ASSISTANT &&
               (at == count - 1 || tokenizer_chat_ends(b, t, ids, count, asked)) ? "" : after;
    }
    if (at < count - 1 || ids[at] != t->turn_end) return "";
    piece = tokenizer_piece(t, t->turn_end, &bytes);
    for (tail = after; strlen(tail) >= bytes; tail++)
        if (!memcmp(tail, piece, bytes)) return tail + bytes;
    return "";
}

static cairn_status tokenizer_chat_ids(base *b, const tokenizer *t, const int32_t *held,
                                       int held_count, const tokenizer_message *messages, int count,
                                       bool first, bool reply, os_atomic *cancel,
                                       tokenizer_ids *out) {
    const char *before = count ? tokenizer_chat_between(b, t, held, held_count, messages) : "";
    tokenizer_chat_text chat;
    cairn_status status;
    if (t->has_chat && t->format.needs_marks && !t->is_safe)
        return base_fail(b, CAIRN_UNSUPPORTED, "chat: the vocabulary has no control tokens for the "
                         "template's \"%.32s\" and \"%.32s\", so that contents could open turns",
                         t->format.before[CHAT_USER], t->format.after[CHAT_ASSISTANT]);
    if (!tokenizer_chat_open(b, count, &chat)) return base_no_memory(b, "chat", chat.room);
    status = tokenizer_chat_write(b, t, before, messages, count, first, reply,
                                  !first && tokenizer_was_quiet(b, t, held, held_count), &chat);
    if (!status)
        status = tokenizer_encode_spans(b, t, chat.text.data, chat.spans, chat.count, cancel, out);
    tokenizer_chat_close(b, &chat);
    return status;
}
