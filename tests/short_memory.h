/* short_memory: an allocator for tests of one thread that counts the blocks that live, and gives no
 * memory once `allocations_left` are made; -1: it always does. */
#ifndef SHORT_MEMORY_H
#define SHORT_MEMORY_H

#include <stdlib.h>

static long live_blocks, allocations_left = -1;

static void *test_realloc(void *user, void *memory, size_t old_bytes, size_t new_bytes) {
    (void)user, (void)old_bytes;
    if (new_bytes && allocations_left == 0) return NULL;
    if (new_bytes && allocations_left > 0) allocations_left--;
    live_blocks += (new_bytes != 0) - (memory != NULL);
    if (new_bytes) return realloc(memory, new_bytes);
    free(memory);
    return NULL;
}

#endif
