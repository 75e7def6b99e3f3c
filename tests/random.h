/* random: fresh random inputs for tests, repeatable by CAIRN_SEED=N, which they print. */
#ifndef RANDOM_H
#define RANDOM_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* CAIRN_SEED, which tests/suite.sh sets, else another one each time; printed. */
static uint64_t random_seed(void) {
    const char *text = getenv("CAIRN_SEED");
    uint64_t seed;
#ifdef _WIN32 /* msvcrt has no timespec_get */
    seed = (uint64_t)time(NULL) * 1000000 + (uint64_t)clock();
#else
    struct timespec now = {0, 0};
    timespec_get(&now, TIME_UTC);
    seed = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
#endif
    if (text) seed = strtoull(text, NULL, 0);
    printf("# CAIRN_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

/* A fuzzer's bytes in place of splitmix64; the state counts what was taken. */
static uint64_t (*random_source)(uint64_t state);

/* The next 64 bits of splitmix64, and the state moved on. */
static uint64_t random_next(uint64_t *state) {
    if (random_source) return random_source((*state)++);
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

#endif
