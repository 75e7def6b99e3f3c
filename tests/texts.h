/* texts: what tests of whole models share: the ids that goldens were made from, the check that a model
 * is the golden's, sessions that go on with a text. After runtime.c and tap.h. */
#ifndef TEXTS_H
#define TEXTS_H

/* As scripts/golden makes them, none of them 0. */
BASE_UNUSED static void golden_ids(int vocab, int count, int32_t *ids) {
    uint32_t at = 7;
    for (int i = 0; i < count; i++) {
        at = (at * 1103515245u + 12345u) & 0x7fffffffu;
        ids[i] = 1 + (int32_t)((at >> 8) % (uint32_t)(vocab - 1));
    }
}

/* CRC-32 of a file. */
BASE_UNUSED static uint32_t crc_of(const char *path) {
    uint32_t crc = 0xffffffffu;
    FILE *file = fopen(path, "rb");
    for (int c; file && (c = fgetc(file)) != EOF;) {
        crc ^= (uint32_t)c;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    if (file) fclose(file);
    return ~crc;
}

BASE_UNUSED static cairn_session *session_of(cairn_model *m) {
    cairn_session *s = NULL;
    if (cairn_session_open(m, &s)) tap_note("%s", cairn_last_error(m->runtime));
    return s;
}

/* The ids a session holds after `count` more were generated. */
BASE_UNUSED static int go_on(cairn_session *s, int count, int32_t *out) {
    int n = 0;
    const int32_t *ids;
    if (cairn_generate(s, "", count, NULL, NULL)) tap_note("%s", engine_base(s)->error);
    ids = cairn_session_ids(s, &n);
    memcpy(out, ids, (size_t)n * sizeof *ids);
    return n;
}

#endif
