/* device_arena: device memory taken piece by piece and given back at once.
 *
 * With `measures` nothing is allocated: the same calls add up what they would take, so that an
 * estimate and an allocation are one arithmetic. */

typedef struct device_piece { void *at; size_t bytes; } device_piece;

typedef struct device_arena {
    device *dev;
    bool measures;
    cairn_status status; /* the first failure, which stays */
    uint64_t bytes;      /* of all pieces, as dev->live_bytes counts them */
    /* private below */
    device_piece *pieces;
    size_t count, capacity;
} device_arena;

/* Memory of the arena, as device_alloc_clear gives it; NULL while measuring and from a failure on. An
 * arena starts as all zero but for dev and measures. */
static void *device_take(device_arena *a, uint64_t bytes, const char *what);
/* Waits for work that may still use the memory. What was measured stays known. */
static void device_arena_free(device_arena *a);
