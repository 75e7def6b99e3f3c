/* tokenizer_chat: conversations into the text that a model was trained on, and into ids.
 *
 * Model files carry a template in the language Jinja. Families of templates are recognised, not
 * run: the template is brought to a canonical spelling and compared with what is known. The family
 * here is ChatML, "<|im_start|>ROLE\nCONTENT<|im_end|>\n", with or without a system message
 * that stands where the conversation has none.
 *
 * In the text a content that holds "<|im_end|>" cannot be told from the template. As ids it can:
 * what the template says is control text, what messages say is plain. */

/* ---- canonical spelling --------------------------------------------------------------------- */

/* Reading a template: text between tags as it will be printed, tags without white space, strings in
 * single quotes with their escapes resolved, x['name'] as x.name, 'a' + 'b' as 'ab'. */
typedef struct tokenizer_template {
    const char *at, *end;
    char tail[2];  /* how the tag before ended: "%" or "}", with '-' where it strips what follows */
    bool fits;     /* false: memory ran out */
} tokenizer_template;

static bool tokenizer_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

static const char *tokenizer_next_tag(const char *at, const char *end) {
    for (; at + 1 < end; at++)
        if (at[0] == '{' && (at[1] == '%' || at[1] == '{' || at[1] == '#')) return at;
    return end;
}

/* Text between tags: what a tag's '-' and the rules for blocks leave of it. */
static void tokenizer_canon_text(base *b, tokenizer_template *in, base_text *out) {
    const char *first = in->at, *last = tokenizer_next_tag(in->at, in->end), *line;
    in->at = last;
    if (in->tail[1] == '-') while (first < last && tokenizer_blank(*first)) first++;
    else if (in->tail[0] == '%' && first < last && *first == '\n') first++;
    if (last + 2 < in->end && last[2] == '-') {
        while (first < last && tokenizer_blank(last[-1])) last--;
    } else if (last + 1 < in->end && last[1] != '{') {
        for (line = last; line > first && (line[-1] == ' ' || line[-1] == '\t'); line--) {}
        if (line == first || line[-1] == '\n') last = line;
    }
    if (first < last && !base_text_add(b, out, first, (size_t)(last - first))) in->fits = false;
}

static void tokenizer_canon_string(base *b, tokenizer_template *in, base_text *out) {
    char quote = *in->at++;
    if (out->size >= 2 && !memcmp(out->data + out->size - 2, "'+", 2)) out->size -= 2;
    else if (!base_text_add(b, out, "'", 1)) in->fits = false;
    for (; in->at < in->end && *in->at != quote; in->at++) {
        char c = *in->at;
        if (c == '\\' && in->at + 1 < in->end) {
            c = *++in->at;
            if (c == 'n') c = '\n';
        }
        if (!base_text_add(b, out, &c, 1)) in->fits = false;
    }
    if (in->at < in->end) in->at++;
    if (!base_text_add(b, out, "'", 1)) in->fits = false;
}

/* ['name'] at the end of *out becomes .name. */
static void tokenizer_canon_index(base_text *out) {
    size_t first = out->size;
    if (first < 5 || memcmp(out->data + first - 2, "']", 2) != 0) return;
    for (first -= 2; first > 2 && (out->data[first - 1] == '_' ||
         (out->data[first - 1] >= 'a' && out->data[first - 1] <= 'z')); first--) {}
    if (memcmp(out->data + first - 2, "['", 2) != 0) return;
    out->data[first - 2] = '.';
    memmove(out->data + first - 1, out->data + first, out->size - 2 - first);
    out->size -= 3;
}

/* Whether the tag that `close` ends is over here, with or without a '-' before. */
static bool tokenizer_tag_ends(const tokenizer_template *in, char close) {
    const char *at = in->at + (*in->at == '-');
    return at + 1 < in->end && at[0] == close && at[1] == '}';
}

static void tokenizer_canon_tag(base *b, tokenizer_template *in, base_text *out) {
    char open = in->at[1], close = open == '{' ? '}' : open;
    char closing[3] = {close, '}', '\0'};
    if (open != '#' && !base_text_add(b, out, in->at, 2)) in->fits = false;
    in->at += in->at + 2 < in->end && in->at[2] == '-' ? 3 : 2;
    for (; in->at < in->end; in->at++) {
        bool ends = tokenizer_tag_ends(in, close);
        if (ends || tokenizer_blank(*in->at) || open == '#') {
            if (ends) break;
        } else if (*in->at == '\'' || *in->at == '"') {
            tokenizer_canon_string(b, in, out);
            in->at--;
        } else {
            if (!base_text_add(b, out, in->at, 1)) in->fits = false;
            if (*in->at == ']' && in->fits) tokenizer_canon_index(out);
        }
    }
    in->tail[0] = close;
    in->tail[1] = in->at < in->end && *in->at == '-' ? '-' : '\0';
    if (in->tail[1]) in->at++;
    if (open != '#' && !base_text_add(b, out, closing, 2)) in->fits = false;
    in->at = in->at + 2 < in->end ? in->at + 2 : in->end;
}

static bool tokenizer_canon(base *b, const char *text, size_t bytes, base_text *out) {
    tokenizer_template in = {text, text + bytes, {0, 0}, true};
    if (bytes && text[bytes - 1] == '\n') in.end--; /* Jinja drops one newline at the end */
    while (in.at < in.end && in.fits) {
        tokenizer_canon_text(b, &in, out);
        if (in.at < in.end && in.fits) tokenizer_canon_tag(b, &in, out);
    }
    return in.fits;
}

/* ---- families ------------------------------------------------------------------------------- */

/* Steps over `text` when it comes next. */
static bool tokenizer_accept(const char **at, const char *text) {
    size_t bytes = strlen(text);
    if (strncmp(*at, text, bytes) != 0) return false;
    *at += bytes;
    return true;
}

/* Whether the canonical, terminated template is ChatML; [*system, *system_end) is then the system
 * message it puts in, NULL without one. */
static bool tokenizer_is_chatml(const char *at, const char **system, const char **system_end) {
    static const char after_system[] = "<|im_end|>\n'}}{%endif%}";
    *system = *system_end = NULL;
    tokenizer_accept(&at,
                     "{%ifnotadd_generation_promptisdefined%}{%setadd_generation_prompt=false%}"
                    "{%endif%}");
    if (!tokenizer_accept(&at, "{%formessageinmessages%}")) return false;
    if (tokenizer_accept(&at,
                         "{%ifloop.firstandmessages[0].role!='system'%}{{'<|im_start|>system\n")) {
        *system = at;
        *system_end = strstr(at, after_system);
        if (!*system_end || memchr(at, '\'', (size_t)(*system_end - at))) return false;
        at = *system_end + strlen(after_system);
    }
    return tokenizer_accept(&at,
                            "{{'<|im_start|>'+message.role+'\n'+message.content+'<|im_end|>\n'}}"
                           "{%endfor%}{%ifadd_generation_prompt%}{{'<|im_start|>assistant\n'}}"
                           "{%endif%}") && *at == '\0';
}

/* A token of the template, a control token from now on; -1 when text cannot name it. */
static int32_t tokenizer_turn_token(tokenizer *t, const tokenizer_index *index, const char *text) {
    int32_t id = tokenizer_find(index, text, strlen(text));
    tokenizer_make_control(t, id);
    return id >= 0 && t->kinds[id] == TOK_CONTROL ? id : -1;
}

/* Declared in tokenizer.c. A template that is not known is an error only when it is asked for. */
static cairn_status tokenizer_read_chat(base *b, const gguf *g, const tokenizer_index *index,
                                        tokenizer *t) {
    const char *text = "", *system, *system_end;
    size_t bytes = 0;
    base_text canon = {NULL, 0, 0};
    bool found, fits;
    t->turn_open = tokenizer_turn_token(t, index, "<|im_start|>");
    t->turn_close = tokenizer_turn_token(t, index, "<|im_end|>");
    if (gguf_string(b, g, "tokenizer.chat_template", &found, &text, &bytes)) return b->status;
    if (!found) return CAIRN_OK;
    fits = base_text_add(b, &t->chat_template, text, bytes < 120 ? bytes : 120) &&
           (bytes >= 1 << 20 ||
            (tokenizer_canon(b, text, bytes, &canon) && base_text_add(b, &canon, "", 0)));
    t->has_chat = fits && canon.data && !memchr(canon.data, 0, canon.size) &&
                  tokenizer_is_chatml(canon.data, &system, &system_end);
    if (t->has_chat && system)
        fits = base_text_add(b, &t->chat_system, system, (size_t)(system_end - system));
    base_text_free(b, &canon);
    return fits ? CAIRN_OK : base_no_memory(b, "tokenizer.chat_template", bytes);
}

/* ---- conversations -------------------------------------------------------------------------- */

static cairn_status tokenizer_no_chat(base *b, const tokenizer *t) {
    char shown[80] = "";
    if (!t->chat_template.size)
        return base_fail(b, CAIRN_UNSUPPORTED, "chat: the model has no tokenizer.chat_template");
    for (size_t i = 0; i < t->chat_template.size && i + 1 < sizeof shown; i++)
        shown[i] = tokenizer_blank(t->chat_template.data[i]) ? ' ' : t->chat_template.data[i];
    for (size_t i = 0; shown[i]; i++)
        if (shown[i] < ' ' || shown[i] > '~') shown[i] = '?';
    return base_fail(b, CAIRN_UNSUPPORTED, "chat: the template that begins \"%s\" is of no known "
                     "family; known: ChatML. Write the template's text yourself", shown);
}

/* What is written: the text, and where its spans end; adjacent ones of a kind are one. */
typedef struct tokenizer_chat_text {
    base_text text;
    tokenizer_span *spans; /* [room] */
    size_t count, room;
} tokenizer_chat_text;

static bool tokenizer_chat_open(base *b, int messages, tokenizer_chat_text *out) {
    memset(out, 0, sizeof *out);
    out->room = 2 * (size_t)messages + 2;
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
    return tokenizer_chat_add(b, out, text, strlen(text), true);
}

static bool tokenizer_chat_message(base *b, const char *role, const char *text, size_t bytes,
                                   bool special, tokenizer_chat_text *out) {
    return tokenizer_chat_control(b, out, "<|im_start|>") &&
           tokenizer_chat_control(b, out, role) && tokenizer_chat_control(b, out, "\n") &&
           tokenizer_chat_add(b, out, text, bytes, special) &&
           tokenizer_chat_control(b, out, "<|im_end|>\n");
}

static cairn_status tokenizer_check_messages(base *b, const tokenizer_message *messages,
                                             int count) {
    for (int i = 0; i < count; i++) {
        const char *role = messages[i].role;
        size_t fault = base_utf8_fault(messages[i].content, messages[i].content_bytes);
        if (strcmp(role, "system") && strcmp(role, "user") && strcmp(role, "assistant"))
            return base_fail(b, CAIRN_INVALID_ARGUMENT, "chat: message %d: '%.64s' is no role of "
                             "the template; it has system, user and assistant", i, role);
        if (fault < messages[i].content_bytes)
            return base_fail(b, CAIRN_INVALID_UTF8, "chat: message %d: byte %llu (0x%02x) of its "
                             "content does not begin a whole UTF-8 character", i,
                             (unsigned long long)fault,
                             (unsigned)(unsigned char)messages[i].content[fault]);
    }
    return CAIRN_OK;
}

/* What the template makes of messages [count], behind the text `before`. */
static cairn_status tokenizer_chat_write(base *b, const tokenizer *t, const char *before,
                                         const tokenizer_message *messages, int count, bool first,
                                         bool reply, tokenizer_chat_text *out) {
    bool done;
    if (!t->has_chat) return tokenizer_no_chat(b, t);
    if (tokenizer_check_messages(b, messages, count)) return b->status;
    done = tokenizer_chat_control(b, out, before);
    if (first && count > 0 && t->chat_system.data && strcmp(messages[0].role, "system") != 0)
        done = done && tokenizer_chat_message(b, "system", t->chat_system.data,
                                              t->chat_system.size, true, out);
    for (int i = 0; i < count && done; i++)
        done = tokenizer_chat_message(b, messages[i].role, messages[i].content,
                                      messages[i].content_bytes, false, out);
    if (done && reply) done = tokenizer_chat_control(b, out, "<|im_start|>assistant\n");
    return done ? CAIRN_OK : base_no_memory(b, "chat", out->text.size);
}

static cairn_status tokenizer_chat(base *b, const tokenizer *t, const tokenizer_message *messages,
                                   int count, bool first, bool reply, base_text *out) {
    tokenizer_chat_text chat;
    cairn_status status;
    if (!tokenizer_chat_open(b, count, &chat)) return base_no_memory(b, "chat", chat.room);
    status = tokenizer_chat_write(b, t, "", messages, count, first, reply, &chat);
    if (!status && chat.text.size && !base_text_add(b, out, chat.text.data, chat.text.size))
        status = base_no_memory(b, "chat", chat.text.size);
    tokenizer_chat_close(b, &chat);
    return status;
}

/* What the template says between ids [count] and the message after them: the end of a turn that
 * they leave open, or what follows its closing token. */
static const char *tokenizer_chat_between(const tokenizer *t, const int32_t *ids, int count) {
    int at = count - 1;
    while (at >= 0 && ids[at] != t->turn_open && ids[at] != t->turn_close) at--;
    if (at < 0 || !t->has_chat) return "";
    if (ids[at] == t->turn_open) return "<|im_end|>\n";
    return at == count - 1 ? "\n" : "";
}

static cairn_status tokenizer_chat_ids(base *b, const tokenizer *t, const int32_t *held,
                                       int held_count, const tokenizer_message *messages, int count,
                                       bool first, bool reply, os_atomic *cancel,
                                       tokenizer_ids *out) {
    const char *before = tokenizer_chat_between(t, held, held_count);
    tokenizer_chat_text chat;
    cairn_status status;
    if (t->has_chat && (t->turn_open < 0 || t->turn_close < 0))
        return base_fail(b, CAIRN_UNSUPPORTED, "chat: the vocabulary has no control tokens "
                         "<|im_start|> and <|im_end|>, so that contents could open turns");
    if (!count) before = "";
    if (!tokenizer_chat_open(b, count, &chat)) return base_no_memory(b, "chat", chat.room);
    status = tokenizer_chat_write(b, t, before, messages, count, first, reply, &chat);
    if (!status)
        status = tokenizer_encode_spans(b, t, chat.text.data, chat.spans, chat.count, cancel, out);
    tokenizer_chat_close(b, &chat);
    return status;
}
