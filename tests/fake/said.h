/* said: what a session is given and says where calls fail in between. After runtime.c. */
#ifndef SAID_H
#define SAID_H

enum { SAID_PROMPT = 40 };

static cairn_status append_to(cairn_session *s) {
    int32_t ids[SAID_PROMPT];
    for (int i = 0; i < SAID_PROMPT; i++) ids[i] = 2 + i % 7;
    return cairn_append_ids(s, ids, SAID_PROMPT);
}

/* Up to `count` tokens in all: what was said before a call failed stands. */
static cairn_status say_to(cairn_session *s, int count) {
    cairn_generate_options options;
    int have;
    cairn_session_ids(s, &have);
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options, options.max_tokens = count - have;
    return have >= count ? CAIRN_OK : cairn_generate_with(s, NULL, &options, NULL, NULL);
}

#endif
