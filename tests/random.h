/* random: fresh random inputs for tests, repeatable by CAIRN_SEED=N. Print the seed. */
#ifndef RANDOM_H
#define RANDOM_H

#include <stdint.h>
#include <stdlib.h>
#include <time.h>

/* CAIRN_SEED, else another one each second. */
static uint64_t random_seed(void) {
    const char *text = getenv("CAIRN_SEED");
    return text ? strtoull(text, NULL, 0) : (uint64_t)time(NULL);
}

/* The next 64 bits of splitmix64, and the state moved on. */
static uint64_t random_next(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

#endif
