/* device_arena: see arena.h. */

/* Room to note one more piece. */
static bool device_arena_reserve(device_arena *a) {
    size_t more = a->capacity ? 2 * a->capacity : 32;
    void *grown;
    if (a->count < a->capacity) return true;
    grown = base_realloc(a->dev->base, a->pieces, a->capacity * sizeof *a->pieces,
                         more * sizeof *a->pieces);
    if (!grown) return false;
    a->pieces = (device_piece *)grown;
    a->capacity = more;
    return true;
}

static void *device_take(device_arena *a, uint64_t bytes, const char *what) {
    device_piece piece = {NULL, (size_t)bytes};
    if (!a->measures && !a->status && piece.bytes != bytes)
        a->status = base_no_memory(a->dev->base, what, SIZE_MAX);
    if (!a->measures && !a->status && !device_arena_reserve(a))
        a->status = base_no_memory(a->dev->base, what, piece.bytes);
    if (!a->measures && !a->status)
        a->status = device_alloc_clear(a->dev, piece.bytes, what, &piece.at);
    a->bytes += bytes ? bytes : DEV_ALIGN;
    if (piece.at) a->pieces[a->count++] = piece;
    return piece.at;
}

static void device_arena_free(device_arena *a) {
    while (a->count) {
        a->count--;
        device_free(a->dev, a->pieces[a->count].at, a->pieces[a->count].bytes);
    }
    if (a->pieces)
        base_realloc(a->dev->base, a->pieces, a->capacity * sizeof *a->pieces, 0);
    a->pieces = NULL;
    a->capacity = 0;
}
