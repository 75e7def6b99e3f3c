/* turns: what a test has too much of to run with each change; see tests/turns.sh. */
#ifndef TURNS_H
#define TURNS_H

#include <stdlib.h>

/* Within the whole suite which of `count` turns this tree has, by its seed; else -1: all. */
static int turn_of(int count) {
    const char *turns = getenv("CAIRN_TEST_TURNS"), *seed = getenv("CAIRN_SEED");
    if (!turns || !atoi(turns)) return -1;
    return seed ? (int)(strtoull(seed, NULL, 10) % 1000000 % (unsigned)count) : 0;
}

#endif
