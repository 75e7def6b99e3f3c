/* callback: what the host is told inside a call, by its log, its progress and its source's read. Such a
 * callback may hold a turn of the runtime, which another call from it would wait for, and what it changes
 * is in use: it calls nothing, and is told so. */

/* One that runs on this thread, on its stack. */
typedef struct base_callback {
    base *of;
    const struct base_callback *outer;
    cairn_status status; /* of `of`, and its message: they stand, whatever the callback calls */
    char error[BASE_ERROR_BYTES];
} base_callback;

/* Around its call. */
static void base_begin_callback(base *b, base_callback *c);
static void base_end_callback(const base_callback *c);
/* BUSY where this thread is in one of b's or of its forks'. */
static cairn_status base_check_callback(base *b);
