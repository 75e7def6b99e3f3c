/* cache_hash: BLAKE2b with a 256-bit digest and a personal string, after RFC 7693. Names cache
 * entries and guards their bytes; it is not used for secrets. */

static const uint64_t cache_hash_iv[8] = {
    UINT64_C(0x6a09e667f3bcc908), UINT64_C(0xbb67ae8584caa73b), UINT64_C(0x3c6ef372fe94f82b),
    UINT64_C(0xa54ff53a5f1d36f1), UINT64_C(0x510e527fade682d1), UINT64_C(0x9b05688c2b3e6c1f),
    UINT64_C(0x1f83d9abfb41bd6b), UINT64_C(0x5be0cd19137e2179),
};

static void cache_store64(uint8_t *p, uint64_t v) {
    int i;
    for (i = 0; i < 8; i++) p[i] = (uint8_t)(v >> (8 * i));
}

BASE_INLINE uint64_t cache_rotate(uint64_t v, int right) { return v >> right | v << (64 - right); }

BASE_INLINE void cache_mix(uint64_t *v, int a, int b, int c, int d, uint64_t x, uint64_t y) {
    v[a] += v[b] + x;
    v[d] = cache_rotate(v[d] ^ v[a], 32);
    v[c] += v[d];
    v[b] = cache_rotate(v[b] ^ v[c], 24);
    v[a] += v[b] + y;
    v[d] = cache_rotate(v[d] ^ v[a], 16);
    v[c] += v[d];
    v[b] = cache_rotate(v[b] ^ v[c], 63);
}

static const uint8_t cache_sigma[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
    {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
    {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
    {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
    {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
};

static void cache_hash_block(cache_hash *s, const uint8_t *block, bool last) {
    uint64_t v[16], m[16];
    int i, round;
    for (i = 0; i < 16; i++) m[i] = base_load(block + 8 * i, 8);
    for (i = 0; i < 8; i++) { v[i] = s->h[i]; v[i + 8] = cache_hash_iv[i]; }
    v[12] ^= s->total;
    if (last) v[14] = ~v[14];
    for (round = 0; round < 12; round++) {
        const uint8_t *g = cache_sigma[round % 10];
        cache_mix(v, 0, 4, 8, 12, m[g[0]], m[g[1]]);
        cache_mix(v, 1, 5, 9, 13, m[g[2]], m[g[3]]);
        cache_mix(v, 2, 6, 10, 14, m[g[4]], m[g[5]]);
        cache_mix(v, 3, 7, 11, 15, m[g[6]], m[g[7]]);
        cache_mix(v, 0, 5, 10, 15, m[g[8]], m[g[9]]);
        cache_mix(v, 1, 6, 11, 12, m[g[10]], m[g[11]]);
        cache_mix(v, 2, 7, 8, 13, m[g[12]], m[g[13]]);
        cache_mix(v, 3, 4, 9, 14, m[g[14]], m[g[15]]);
    }
    for (i = 0; i < 8; i++) s->h[i] ^= v[i] ^ v[i + 8];
}

static void cache_hash_begin(cache_hash *s, const char *personal) {
    uint8_t words[16] = {0};
    size_t i;
    memset(s, 0, sizeof *s);
    for (i = 0; i < 16 && personal[i]; i++) words[i] = (uint8_t)personal[i];
    memcpy(s->h, cache_hash_iv, sizeof s->h);
    s->h[0] ^= 0x01010000u ^ (uint64_t)sizeof(cache_key); /* sequential, no key, 32 bytes out */
    s->h[6] ^= base_load(words, 8);
    s->h[7] ^= base_load(words + 8, 8);
}

static void cache_hash_add(cache_hash *s, const void *data, size_t bytes) {
    const uint8_t *at = (const uint8_t *)data;
    while (bytes > 0) {
        size_t take = sizeof s->block - s->used;
        if (take == 0) { /* only now is it known not to be the last block */
            s->total += sizeof s->block;
            cache_hash_block(s, s->block, false);
            s->used = 0;
            continue;
        }
        if (take > bytes) take = bytes;
        memcpy(s->block + s->used, at, take);
        s->used += take;
        at += take;
        bytes -= take;
    }
}

static void cache_hash_field(cache_hash *s, const void *data, size_t bytes) {
    uint8_t length[8];
    cache_store64(length, bytes);
    cache_hash_add(s, length, sizeof length);
    cache_hash_add(s, data, bytes);
}

static cache_key cache_hash_end(cache_hash *s) {
    cache_key key;
    int i;
    s->total += s->used;
    memset(s->block + s->used, 0, sizeof s->block - s->used);
    cache_hash_block(s, s->block, true);
    for (i = 0; i < 4; i++) cache_store64(key.bytes + 8 * i, s->h[i]);
    return key;
}
