/* tokenizer_template: which family a chat template is of, and so what stands around messages.
 *
 * Model files carry a template in the language Jinja. Families of templates are recognised, not
 * run: the template is brought to a canonical spelling and looked through for what only that family
 * has. What it then says of a conversation without tools is a format: the texts before and after a
 * message of each role. */

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
            if (c == '\n') continue;
            if (c == 'n' || c == 't' || c == 'r') c = c == 'n' ? '\n' : c == 't' ? '\t' : '\r';
            else if (c != '\'' && c != '"' && c != '\\') in->at--, c = '\\';
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

/* Whether the canonical, terminated template is ChatML and nothing else; [*system, *system_end) is
 * then the system message it puts in, NULL without one. */
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

static void tokenizer_format_role(tokenizer_format *f, int role, const char *before,
                                  const char *after) {
    f->before[role] = before;
    f->after[role] = after;
}

static bool tokenizer_format_chatml(tokenizer_format *f) {
    tokenizer_format_role(f, CHAT_SYSTEM, "<|im_start|>system\n", "<|im_end|>\n");
    tokenizer_format_role(f, CHAT_USER, "<|im_start|>user\n", "<|im_end|>\n");
    tokenizer_format_role(f, CHAT_ASSISTANT, "<|im_start|>assistant\n", "<|im_end|>\n");
    f->reply = f->before[CHAT_ASSISTANT];
    return true;
}

/* The simple template, or one with tools whose turns are the same: Qwen's, Liquid's. */
static bool tokenizer_read_chatml(const char *c, tokenizer_format *f) {
    static const char open[] = "{{'<|im_start|>system\n", close[] = "<|im_end|>\n'}}";
    const char *at = c, *end;
    if (tokenizer_is_chatml(c, &f->system, &f->system_end))
        return tokenizer_format_chatml(f);
    if (!strstr(c, "{{'<|im_start|>'+message.role+'\n'") || !strstr(c, "tools"))
        return false;
    f->thinks = strstr(c, ".split('</think>')") != NULL;
    while (!f->system && (at = strstr(at, open)) != NULL) {
        at += sizeof open - 1;
        end = strstr(at, close);
        if (end && !memchr(at, '\'', (size_t)(end - at))) f->system = at, f->system_end = end;
    }
    return tokenizer_format_chatml(f);
}

static bool tokenizer_read_llama3(const char *c, tokenizer_format *f) {
    static const char dates[] = "Cutting Knowledge Date: December 2023\n"
                                "Today Date: 26 Jul 2024\n\n";
    if (!strstr(c, "<|start_header_id|>") || !strstr(c, "<|end_header_id|>\n\n") ||
        !strstr(c, "<|eot_id|>")) return false;
    tokenizer_format_role(f, CHAT_SYSTEM, "<|start_header_id|>system<|end_header_id|>\n\n",
                          "<|eot_id|>");
    tokenizer_format_role(f, CHAT_USER, "<|start_header_id|>user<|end_header_id|>\n\n",
                          "<|eot_id|>");
    tokenizer_format_role(f, CHAT_ASSISTANT, "<|start_header_id|>assistant<|end_header_id|>\n\n",
                          "<|eot_id|>");
    f->reply = f->before[CHAT_ASSISTANT];
    f->trims = strstr(c, "|trim") ? 7 : 0;
    if (strstr(c, "Cutting Knowledge Date: December 2023\n") &&
        strstr(c, "'26 Jul 2024'"))
        f->head = f->system = f->system_end = dates; /* a system message of the dates alone */
    return true;
}

static bool tokenizer_read_gemma(const char *c, tokenizer_format *f) {
    if (!strstr(c, "'<start_of_turn>'") || !strstr(c, "'model'") ||
        !strstr(c, "<end_of_turn>\n")) return false;
    tokenizer_format_role(f, CHAT_USER, "<start_of_turn>user\n", "<end_of_turn>\n");
    tokenizer_format_role(f, CHAT_ASSISTANT, "<start_of_turn>model\n", "<end_of_turn>\n");
    f->reply = f->before[CHAT_ASSISTANT];
    f->trims = strstr(c, "|trim") ? 1 << CHAT_USER | 1 << CHAT_ASSISTANT : 0;
    if (strstr(c, "first_user_prefix=messages[0].content+'\n\n'")) f->join = "\n\n";
    return true;
}

static bool tokenizer_read_phi(const char *c, tokenizer_format *f) {
    bool roles = strstr(c, "'<|'+message.role+'|>'") != NULL;
    if (strstr(c, "<|im_sep|>")) { /* Phi 4 */
        tokenizer_format_role(f, CHAT_SYSTEM, "<|im_start|>system<|im_sep|>", "<|im_end|>");
        tokenizer_format_role(f, CHAT_USER, "<|im_start|>user<|im_sep|>", "<|im_end|>");
        tokenizer_format_role(f, CHAT_ASSISTANT, "<|im_start|>assistant<|im_sep|>", "<|im_end|>");
    } else if (strstr(c, "'<|user|>\n'") && strstr(c, "<|end|>\n")) { /* Phi 3 */
        if (strstr(c, "'<|system|>\n'"))
            tokenizer_format_role(f, CHAT_SYSTEM, "<|system|>\n", "<|end|>\n");
        tokenizer_format_role(f, CHAT_USER, "<|user|>\n", "<|end|>\n");
        tokenizer_format_role(f, CHAT_ASSISTANT, "<|assistant|>\n", "<|end|>\n");
    } else if (roles && strstr(c, "'<|end|>'") && strstr(c, "{{'<|assistant|>'}}")) {
        tokenizer_format_role(f, CHAT_SYSTEM, "<|system|>", "<|end|>"); /* Phi 4 mini */
        tokenizer_format_role(f, CHAT_USER, "<|user|>", "<|end|>");
        tokenizer_format_role(f, CHAT_ASSISTANT, "<|assistant|>", "<|end|>");
    } else {
        return false;
    }
    f->reply = f->before[CHAT_ASSISTANT];
    return true;
}

/* Llama 2's: <s> begins each turn of a user, whose first holds the system message. */
static bool tokenizer_read_llama2(const char *c, tokenizer_format *f) {
    if (!strstr(c, "'<<SYS>>\n'+system_message+'\n<</SYS>>\n\n'+message.content") ||
        !strstr(c, "bos_token+'[INST] '+content.strip()+' [/INST]'") ||
        !strstr(c, "' '+content.strip()+' '+eos_token") || strstr(c, "true==true")) return false;
    tokenizer_format_role(f, CHAT_USER, "[INST] ", " [/INST]");
    tokenizer_format_role(f, CHAT_ASSISTANT, " ", " </s>");
    f->reply = "";
    f->again = "<s>", f->head = "<<SYS>>\n", f->join = "\n<</SYS>>\n\n";
    f->trims = 1 << CHAT_USER | 1 << CHAT_ASSISTANT;
    return f->strips = true;
}

/* SmolLM3's, of chats without tools. */
static bool tokenizer_read_smollm3(const char *c, tokenizer_format *f) {
    static const char *const says[] = {
        "'## Metadata\n\n'", "'Knowledge Cutoff Date: June 2025\n'", "strftime_now('%d %B %Y')",
        "'## Custom Instructions\n\n'", "'/no_think'insystem_message", "'/system_override'",
        "'<|im_start|>assistant\n<think>\n\n</think>\n'+content.lstrip('\n')+'<|im_end|>\n'"};
    static const char open[] = "{%elifreasoning_mode=='/think'%}{{'", next[] = "'}}{%else%}{{'";
    for (size_t i = 0; i < BASE_COUNT(says); i++)
        if (!strstr(c, says[i])) return false;
    if (!(f->system = strstr(c, open))) return false;
    f->system += sizeof open - 1;
    if (!(f->system_end = strstr(f->system, next))) return false;
    f->quiet = f->system_end + sizeof next - 1;
    if (!(f->quiet_end = strstr(f->quiet, "'}}{%endif%}"))) return false;
    f->reasons = true;
    return tokenizer_format_chatml(f);
}

/* The system message that a template of Mistral's has where a conversation has none: text, and the day. */
static bool tokenizer_read_default(const char *c, tokenizer_format *f) {
    static const char name[] = "{%setdefault_system_message='", end[] = "'%}", day[] = "'+today+'";
    const char *at = strstr(c, name), *last;
    if (!at) return !strstr(c, "default_system_message");
    at += sizeof name - 1, last = strstr(at, end);
    if (last == at) return strstr(c, "default_system_message!=''") != NULL;
    f->dated = strstr(c, "{%settoday=strftime_now('%Y-%m-%d')%}") != NULL;
    for (const char *more = at; last && more < last; more++)
        if (more[0] == '\'' && (more[1] == '~' || more[1] == '|' ||
                               (more[1] == '+' && !(f->dated && tokenizer_accept(&more, day)))))
            return false;
    f->system = at, f->system_end = last;
    return last != NULL;
}

/* Mistral's: the versions differ in spaces, in where the system message goes, and in what the
 * answer ends with. */
static bool tokenizer_read_mistral(const char *c, tokenizer_format *f) {
    const bool wide = strstr(c, "' [INST] '") != NULL, open = strstr(c, "'[INST] '") != NULL;
    const bool close = strstr(c, "' [/INST]'") != NULL;
    if ((!wide && !open && !strstr(c, "'[INST]'")) || (!close && !strstr(c, "'[/INST]'")) ||
        strstr(c, "<<SYS>>") || !tokenizer_read_default(c, f)) return false;
    tokenizer_format_role(f, CHAT_USER, wide ? " [INST] " : open ? "[INST] " : "[INST]",
                          close ? " [/INST]" : "[/INST]");
    tokenizer_format_role(f, CHAT_ASSISTANT, strstr(c, "' '+message.content") ? " " : "",
                          strstr(c, "message.content+eos_token+' '") ? "</s> " : "</s>");
    f->reply = "";
    f->joins_last = strstr(c, "loop.lastandsystem_messageisdefined") != NULL;
    if (strstr(c, "message.content|trim+eos_token")) f->trims = 1 << CHAT_ASSISTANT;
    if (strstr(c, "[/SYSTEM_PROMPT]"))
        tokenizer_format_role(f, CHAT_SYSTEM, strstr(c, "'[SYSTEM_PROMPT] '") ? "[SYSTEM_PROMPT] "
                                                                              : "[SYSTEM_PROMPT]",
                              "[/SYSTEM_PROMPT]");
    else if (strstr(c, "system_message+'\n\n'+message.content"))
        f->join = "\n\n";
    return true;
}

/* The format of a canonical template; false: it is of no known family. */
static bool tokenizer_recognise(const char *c, tokenizer_format *f) {
    static bool (*const families[])(const char *, tokenizer_format *) = {
        tokenizer_read_smollm3, tokenizer_read_chatml, tokenizer_read_llama3, tokenizer_read_gemma,
        tokenizer_read_phi, tokenizer_read_llama2, tokenizer_read_mistral};
    for (size_t i = 0; i < BASE_COUNT(families); i++) {
        memset(f, 0, sizeof *f);
        if (families[i](c, f)) return f->needs_marks = true;
    }
    return false;
}
