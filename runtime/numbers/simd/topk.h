/* simd/topk: the scan of top-k, once per level. Keys (simd_key) order scores as unsigned. */

/* Keeps what passes of four vectors a, b, c, d: in a loop where that is as fast. */
#define SIMD_KEEP(v, j) \
    count += SIMD(keep)(v, least, position + (j), keys + count, positions + count)
#if VEC_N == 1
#define SIMD_KEEP4(load) \
    for (int j = i; j < i + 4; j++) SIMD_KEEP(load(x + j), j)
#else
#define SIMD_KEEP4(load) \
    SIMD_KEEP(a, i); \
    SIMD_KEEP(b, i + VEC_N); \
    SIMD_KEEP(c, i + 2 * VEC_N); \
    SIMD_KEEP(d, i + 3 * VEC_N)
#endif

/* Appends key and position of each of scores [n] whose key is at least `least`, in order; score 0
 * stands at `position`. Where `least` is SIMD_KEY_ZERO, scores of -0 may be left out. Returns how
 * many; keys and positions have room for n + SIMD_SLACK. */
#define SIMD_FILTER(name, type, load, load_one)                                               \
    SIMD_FN static int SIMD(name)(const type *x, int n, uint32_t least, int32_t position,     \
                                  uint32_t *keys, int32_t *positions) {                       \
        int i = 0, count = 0;                                                                 \
        for (; i + 4 * VEC_N <= n; i += 4 * VEC_N) {                                          \
            VEC a = load(x + i), b = load(x + i + VEC_N);                                     \
            VEC c = load(x + i + 2 * VEC_N), d = load(x + i + 3 * VEC_N);                     \
            if (!SIMD(reach)(a, b, c, d, least)) continue;                                    \
            SIMD_KEEP4(load);                                                                 \
        }                                                                                     \
        for (; i < n; i++)                                                                    \
            count += simd_keep_one(load_one(x + i), least, position + i, keys + count,        \
                                   positions + count);                                        \
        return count;                                                                         \
    }

SIMD_FILTER(filter_f32, float, VEC_LOAD, simd_bits_of_f32)
SIMD_FILTER(filter_f16, uint16_t, VEC_HALF, simd_bits_of_f16)
SIMD_FILTER(filter_bf16, uint16_t, VEC_BF16, simd_bits_of_bf16)
#undef SIMD_FILTER
#undef SIMD_KEEP4
#undef SIMD_KEEP

/* The entries of keys [n] of at least `least`, in place and order; returns how many. */
SIMD_FN static int SIMD(retain)(uint32_t *keys, int32_t *positions, int n, uint32_t least) {
    int i = 0, count = 0;
#if KEYS_SQUEEZE
    for (; i + VEC_N <= n; i += VEC_N)
        count += SIMD(squeeze)(KEYS_LOAD(keys + i), KEYS_LOAD(positions + i), least, keys + count,
                               positions + count);
#endif
    for (; i < n; i++) {
        uint32_t key = keys[i];
        positions[count] = positions[i];
        keys[count] = key;
        count += key >= least;
    }
    return count;
}

/* The range of keys [n], n > 0. */
SIMD_FN static void SIMD(span)(const uint32_t *keys, int n, uint32_t *lowest, uint32_t *highest) {
    uint32_t lows[VEC_N], highs[VEC_N];
    int i = 0, lane;
    *lowest = *highest = keys[0];
    if (n >= VEC_N) {
        VEC_KEYS low = KEYS_LOAD(keys), high = low;
        for (; i + VEC_N <= n; i += VEC_N) {
            VEC_KEYS key = KEYS_LOAD(keys + i);
            low = KEYS_MIN(low, key);
            high = KEYS_MAX(high, key);
        }
        KEYS_STORE(lows, low);
        KEYS_STORE(highs, high);
        for (lane = 0; lane < VEC_N; lane++) {
            *lowest = lows[lane] < *lowest ? lows[lane] : *lowest;
            *highest = highs[lane] > *highest ? highs[lane] : *highest;
        }
    }
    for (; i < n; i++) {
        *lowest = keys[i] < *lowest ? keys[i] : *lowest;
        *highest = keys[i] > *highest ? keys[i] : *highest;
    }
}
