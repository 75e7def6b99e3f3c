/* device_words: tensors of i32 on the device beside the words they should hold, for tests that
 * compare all of them, what no call may touch included. */
#ifndef DEVICE_WORDS_H
#define DEVICE_WORDS_H

static uint64_t seed;
static cairn_runtime *rt;

static int between(int low, int high) {
    return low + (int)(random_next(&seed) % (uint64_t)(high - low + 1));
}

typedef struct buffer { cairn_tensor *t; int32_t *want, *got; int count; } buffer;

static void upload(buffer *b) { cairn_tensor_write(rt, b->t, b->want, (size_t)b->count * 4); }

/* Random words at first. */
static buffer make(int rank, int64_t rows, int64_t columns) {
    buffer b;
    int64_t shape[2];
    shape[0] = rows, shape[1] = columns;
    memset(&b, 0, sizeof b);
    b.count = (int)(rank == 1 ? rows : rows * columns);
    b.want = (int32_t *)malloc((size_t)b.count * 4 + 4);
    b.got = (int32_t *)malloc((size_t)b.count * 4 + 4);
    for (int i = 0; i < b.count; i++) b.want[i] = (int32_t)random_next(&seed);
    if (cairn_tensor_new(rt, CAIRN_I32, rank, shape, &b.t)) tap_note("%s", cairn_last_error(rt));
    upload(&b);
    return b;
}

static void drop(buffer *b) {
    if (b->t) cairn_tensor_free(rt, b->t);
    free(b->want), free(b->got);
}

static bool holds(buffer *b, const char *name) {
    cairn_tensor_read(rt, b->t, b->got, (size_t)b->count * 4);
    for (int i = 0; i < b->count; i++)
        if (b->got[i] != b->want[i]) {
            tap_note("%s[%d]: %d, not %d", name, i, (int)b->got[i], (int)b->want[i]);
            return false;
        }
    return true;
}

#endif
