/* short_memory: an allocator that counts the blocks that live, and gives no memory once `allocations_left` are made;
 * -1: it always does. Kernels that compile in the background allocate, too. */
#ifndef SHORT_MEMORY_H
#define SHORT_MEMORY_H

#include <stdatomic.h>
#include <stdlib.h>

static atomic_long live_blocks, allocations_left = -1;

static int may_allocate(void) {
    long left = allocations_left;
    while (left > 0 && !atomic_compare_exchange_weak(&allocations_left, &left, left - 1)) {}
    return left != 0;
}

static void *test_realloc(void *user, void *memory, size_t old_bytes, size_t new_bytes) {
    (void)user, (void)old_bytes;
    if (new_bytes && !may_allocate()) return NULL;
    live_blocks += (new_bytes != 0) - (memory != NULL);
    if (new_bytes) return realloc(memory, new_bytes);
    free(memory);
    return NULL;
}

#endif
