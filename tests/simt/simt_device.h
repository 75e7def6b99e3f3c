/* The wrappers of kernels_src/device*.cuh, emulated; the same names in the same order. */
#ifndef CAIRN_SIMT_DEVICE_H
#define CAIRN_SIMT_DEVICE_H

#ifndef CAIRN_SIMT
#error "simt_device.h is part of simt.h"
#endif

/* Which path of a kernel is compiled; a test may set it before it includes a kernel. */
#ifndef CAIRN_ARCH
#define CAIRN_ARCH 900
#endif

#define CAIRN_INLINE static inline
#define CAIRN_CALLED static inline
#define CAIRN_METHOD static inline
#define CAIRN_MEMBER inline

#define CAIRN_KERNEL(name, threads, min_blocks, params_type)                             \
    [[maybe_unused]] static void name(params_type p);                                    \
    static const simt::Bound name##_bound(reinterpret_cast<const void *>(&name), #name,  \
                                          threads, sizeof(params_type),                  \
                                          simt::invoke<params_type>);                    \
    static void name([[maybe_unused]] params_type p)

template <class To, class From> CAIRN_INLINE To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "bit_cast: sizes differ");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

/* ---- identity ---- */

CAIRN_INLINE int thread_id() { return simt::self->thread; }
CAIRN_INLINE int lane_anew() { return simt::self->thread % 32; }
template <class T> CAIRN_INLINE T *pointer_anew(T *p) { return p; }
CAIRN_INLINE int block_threads() { return simt::self->block_threads; }
CAIRN_INLINE int block_id() { return simt::self->block[0]; }
CAIRN_INLINE int block_id_y() { return simt::self->block[1]; }
CAIRN_INLINE int block_id_z() { return simt::self->block[2]; }
CAIRN_INLINE int grid_blocks() { return simt::self->grid[0]; }
CAIRN_INLINE int grid_blocks_y() { return simt::self->grid[1]; }
CAIRN_INLINE int grid_blocks_z() { return simt::self->grid[2]; }

/* ---- shared memory ---- */

CAIRN_INLINE unsigned char *shared_base() { return simt::self->shared; }

struct shared_addr {
    uint32_t at;
    shared_addr(const void *p, SIMT_SITE) : at(simt::shared_offset(p, site)) {}
    explicit shared_addr(uint32_t address) : at(address) {}
    shared_addr operator+(uint32_t bytes) const { return shared_addr(at + bytes); }
    shared_addr operator^(uint32_t bits) const { return shared_addr(at ^ bits); }
};

/* ---- barriers ---- */

CAIRN_INLINE void block_sync(SIMT_SITE) { simt::barrier(0, block_threads(), true, false, site); }
CAIRN_INLINE int block_sync_count(bool vote, SIMT_SITE) {
    return simt::barrier(0, block_threads(), true, vote, site);
}
CAIRN_INLINE bool block_sync_or(bool vote, SIMT_SITE) { return block_sync_count(vote, site) != 0; }
CAIRN_INLINE bool block_sync_and(bool vote, SIMT_SITE) {
    return block_sync_count(vote, site) == block_threads();
}
CAIRN_INLINE void named_sync(int id, int threads, SIMT_SITE) {
    simt::barrier(id, threads, true, false, site);
}
CAIRN_INLINE void named_arrive(int id, int threads, SIMT_SITE) {
    simt::barrier(id, threads, false, false, site);
}
CAIRN_INLINE void warp_sync(uint32_t mask = FULL_MASK, SIMT_SITE) {
    simt::warp(simt::operation_sync, mask, {}, site);
}

/* ---- warp operations ---- */

#define SIMT_SHUFFLE(name, argument)                                                             \
    template <class T>                                                                           \
    CAIRN_INLINE T name(T v, int argument, int width = WARP, uint32_t mask = FULL_MASK,          \
                        SIMT_SITE) {                                                             \
        static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffle: 4 or 8 bytes");                \
        uint64_t in = 0, out = 0;                                                                \
        memcpy(&in, &v, sizeof v);                                                               \
        simt::warp(simt::operation_##name, mask,                                                 \
                   {&in, &out, (uint32_t)argument, (uint32_t)width}, site);                      \
        T result;                                                                                \
        memcpy(&result, &out, sizeof result);                                                    \
        return result;                                                                           \
    }
SIMT_SHUFFLE(shuffle, source)
SIMT_SHUFFLE(shuffle_xor, lane_bits)
SIMT_SHUFFLE(shuffle_up, distance)
SIMT_SHUFFLE(shuffle_down, distance)
#undef SIMT_SHUFFLE

CAIRN_INLINE uint32_t warp_ballot(bool vote, uint32_t mask = FULL_MASK, SIMT_SITE) {
    uint32_t in = vote, out;
    simt::warp(simt::operation_ballot, mask, {&in, &out, 0, 0}, site);
    return out;
}
CAIRN_INLINE bool warp_any(bool vote, uint32_t mask = FULL_MASK, SIMT_SITE) {
    return warp_ballot(vote, mask, site) != 0;
}
CAIRN_INLINE bool warp_all(bool vote, uint32_t mask = FULL_MASK, SIMT_SITE) {
    return warp_ballot(vote, mask, site) == mask;
}
CAIRN_INLINE uint32_t match_any(uint64_t v, uint32_t mask = FULL_MASK, SIMT_SITE) {
    uint32_t out;
    simt::warp(simt::operation_match, mask, {&v, &out, 0, 0}, site);
    return out;
}
CAIRN_INLINE uint32_t match_any(uint32_t v, uint32_t mask = FULL_MASK, SIMT_SITE) {
    return match_any((uint64_t)v, mask, site);
}

#define SIMT_REDUX(name, operation, T)                                              \
    CAIRN_INLINE T name(T v, SIMT_SITE) {                                           \
        T out;                                                                      \
        simt::warp(simt::operation_redux_##operation, FULL_MASK, {&v, &out, 0, 0}, site); \
        return out;                                                                 \
    }
SIMT_REDUX(redux_add, add, uint32_t)
SIMT_REDUX(redux_max, max_u, uint32_t)
SIMT_REDUX(redux_max, max_s, int32_t)
SIMT_REDUX(redux_min, min_u, uint32_t)
SIMT_REDUX(redux_min, min_s, int32_t)
SIMT_REDUX(redux_or, or, uint32_t)
SIMT_REDUX(redux_and, and, uint32_t)
#undef SIMT_REDUX

/* ---- atomics ---- */

/* Threads are fibres of one host thread: what does not yield is atomic. */
template <class T, class F>
CAIRN_INLINE T simt_atomic(T *p, F change, simt::Site site,
                           simt::Access load = simt::Access::relaxed,
                           simt::Access store = simt::Access::relaxed) {
    T old;
    simt::interleave();
    simt::read(&old, p, sizeof old, load, site);
    T now = change(old);
    simt::write(p, &now, sizeof now, store, site);
    simt::progress();
    return old;
}
#define SIMT_ATOMIC_ADD(T)                                              \
    CAIRN_INLINE T atomic_add(T *p, T v, SIMT_SITE) {                   \
        return simt_atomic(p, [v](T old) { return (T)(old + v); }, site); \
    }
SIMT_ATOMIC_ADD(uint32_t)
SIMT_ATOMIC_ADD(uint64_t)
SIMT_ATOMIC_ADD(float)
#undef SIMT_ATOMIC_ADD
CAIRN_INLINE int32_t atomic_add(int32_t *p, int32_t v, SIMT_SITE) {
    auto add = [v](int32_t old) { return (int32_t)((uint32_t)old + (uint32_t)v); };
    return simt_atomic(p, add, site);
}
template <class T> CAIRN_INLINE T atomic_max(T *p, T v, SIMT_SITE) {
    return simt_atomic(p, [v](T old) { return old < v ? v : old; }, site);
}
template <class T> CAIRN_INLINE T atomic_min(T *p, T v, SIMT_SITE) {
    return simt_atomic(p, [v](T old) { return v < old ? v : old; }, site);
}
template <class T> CAIRN_INLINE T atomic_or(T *p, T v, SIMT_SITE) {
    return simt_atomic(p, [v](T old) { return old | v; }, site);
}
template <class T> CAIRN_INLINE T atomic_and(T *p, T v, SIMT_SITE) {
    return simt_atomic(p, [v](T old) { return old & v; }, site);
}
template <class T> CAIRN_INLINE T atomic_exchange(T *p, T v, SIMT_SITE) {
    return simt_atomic(p, [v](T) { return v; }, site);
}
template <class T> CAIRN_INLINE T atomic_cas(T *p, T expected, T v, SIMT_SITE) {
    T old = simt_atomic(p, [=](T now) { return now == expected ? v : now; }, site);
    if (old != expected) simt::poll("atomic_cas", site);
    return old;
}

/* ---- ordering between blocks ---- */

CAIRN_INLINE uint32_t atomic_add_acq_rel(uint32_t *p, uint32_t v, SIMT_SITE) {
    return simt_atomic(p, [v](uint32_t old) { return old + v; }, site, simt::Access::acquire,
                       simt::Access::release);
}
CAIRN_INLINE void reduce_add_release(uint32_t *p, uint32_t v, SIMT_SITE) {
    simt_atomic(p, [v](uint32_t old) { return old + v; }, site, simt::Access::relaxed,
                simt::Access::release);
}
CAIRN_INLINE uint32_t atomic_cas_acq_rel(uint32_t *p, uint32_t expected, uint32_t v, SIMT_SITE) {
    uint32_t old = simt_atomic(p, [=](uint32_t now) { return now == expected ? v : now; }, site,
                               simt::Access::acquire, simt::Access::release);
    if (old != expected) simt::poll("atomic_cas", site);
    return old;
}

template <class T> CAIRN_INLINE T simt_read(const T *p, simt::Access access, simt::Site site) {
    T v;
    simt::read(&v, p, sizeof v, access, site);
    return v;
}
CAIRN_INLINE uint32_t load_acquire(const uint32_t *p, SIMT_SITE) {
    simt::poll("load_acquire", site);
    return simt_read(p, simt::Access::acquire, site);
}
CAIRN_INLINE void store_release(uint32_t *p, uint32_t v, SIMT_SITE) {
    simt::write(p, &v, sizeof v, simt::Access::release, site);
    simt::progress();
}
CAIRN_INLINE uint32_t load_relaxed(const uint32_t *p, SIMT_SITE) {
    simt::poll("load_relaxed", site);
    return simt_read(p, simt::Access::relaxed, site);
}
CAIRN_INLINE u32x4 load_relaxed16(const void *p, SIMT_SITE) {
    simt::poll("load_relaxed16", site);
    return simt_read((const u32x4 *)p, simt::Access::relaxed, site);
}
CAIRN_INLINE u32x2 load_relaxed8(const void *p, SIMT_SITE) {
    simt::poll("load_relaxed8", site);
    return simt_read((const u32x2 *)p, simt::Access::relaxed, site);
}
CAIRN_INLINE void store_relaxed16(void *p, u32x4 v, SIMT_SITE) {
    simt::write(p, &v, sizeof v, simt::Access::release, site);
    simt::progress();
}
CAIRN_INLINE void store_relaxed(uint32_t *p, uint32_t v, SIMT_SITE) {
    simt::write(p, &v, sizeof v, simt::Access::relaxed, site);
    simt::progress();
}
template <class T> CAIRN_INLINE T load_volatile(const T *p, SIMT_SITE) {
    simt::poll("load_volatile", site);
    return simt_read(p, simt::Access::relaxed, site);
}
template <class T> CAIRN_INLINE void store_volatile(T *p, T v, SIMT_SITE) {
    simt::write(p, &v, sizeof v, simt::Access::relaxed, site);
    simt::progress();
}
CAIRN_INLINE void fence_block() { simt::fence(); }
CAIRN_INLINE void fence_gpu() { simt::fence(); }

/* ---- global memory ---- */

#define SIMT_LOAD(name, access)                                                           \
    template <class T> CAIRN_INLINE T name(const T *p, SIMT_SITE) {                       \
        constexpr int bytes = (int)sizeof(T);                                             \
        static_assert(bytes == 2 || bytes == 4 || bytes == 8 || bytes == 16, "load: size"); \
        return simt_read(p, simt::Access::access, site);                                  \
    }
SIMT_LOAD(load_constant, constant)
SIMT_LOAD(load_once, constant)
SIMT_LOAD(load_constant_early, constant)
SIMT_LOAD(load_once_early, constant)
SIMT_LOAD(load_early, plain)
#undef SIMT_LOAD

template <class T> CAIRN_INLINE void store_once(T *p, T v, SIMT_SITE) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16, "store_once: size");
    simt::write(p, &v, sizeof v, simt::Access::plain, site);
}
CAIRN_INLINE void rest_ns(uint32_t) {}
CAIRN_INLINE void prefetch_l2(const void *) {}

/* ---- integers ---- */

CAIRN_INLINE int popcount(uint32_t v) { return __builtin_popcount(v); }
CAIRN_INLINE int popcount(uint64_t v) { return __builtin_popcountll(v); }
CAIRN_INLINE int leading_zeros(uint32_t v) { return v ? __builtin_clz(v) : 32; }
CAIRN_INLINE int leading_zeros(uint64_t v) { return v ? __builtin_clzll(v) : 64; }
CAIRN_INLINE int find_first_set(uint32_t v) { return __builtin_ffs((int)v); }
CAIRN_INLINE int find_first_set(uint64_t v) { return __builtin_ffsll((long long)v); }
CAIRN_INLINE uint32_t reverse_bits(uint32_t v) {
    uint32_t r = 0;
    for (int i = 0; i < 32; i++) r |= (v >> i & 1u) << (31 - i);
    return r;
}
CAIRN_INLINE uint32_t multiply_high(uint32_t a, uint32_t b) {
    return (uint32_t)((uint64_t)a * b >> 32);
}
CAIRN_INLINE uint32_t byte_permute(uint32_t a, uint32_t b, uint32_t selector) {
    uint64_t bytes = (uint64_t)b << 32 | a;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) {
        uint32_t digit = selector >> 4 * i & 0xf;
        uint32_t byte = (uint32_t)(bytes >> 8 * (digit & 7)) & 0xff;
        if (digit & 8) byte = byte & 0x80 ? 0xff : 0;
        r |= byte << 8 * i;
    }
    return r;
}
CAIRN_INLINE uint32_t funnel_left(uint32_t lo, uint32_t hi, uint32_t shift) {
    return (uint32_t)((((uint64_t)hi << 32 | lo) << (shift & 31)) >> 32);
}
CAIRN_INLINE uint32_t funnel_right(uint32_t lo, uint32_t hi, uint32_t shift) {
    return (uint32_t)(((uint64_t)hi << 32 | lo) >> (shift & 31));
}
CAIRN_INLINE int32_t dot4(int32_t a, int32_t b, int32_t sum) {
    uint32_t r = (uint32_t)sum;
    for (int i = 0; i < 4; i++) r += (uint32_t)((int8_t)(a >> 8 * i) * (int8_t)(b >> 8 * i));
    return (int32_t)r;
}
CAIRN_INLINE uint32_t dot4(uint32_t a, uint32_t b, uint32_t sum) {
    for (int i = 0; i < 4; i++) sum += (a >> 8 * i & 0xff) * (b >> 8 * i & 0xff);
    return sum;
}
CAIRN_INLINE void add_if_over(uint32_t &count, uint32_t a, uint32_t b) { count += a > b; }
CAIRN_INLINE void add_if_reaching(uint32_t &count, float a, float b) { count += a >= b; }
template <int table> CAIRN_INLINE uint32_t logic3(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t r = 0;
    for (int i = 0; i < 8; i++)
        if (table >> i & 1) r |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    return r;
}

/* ---- mathematics: exactly rounded here, so tests must allow the device its few ulps ---- */

CAIRN_INLINE float exp2_fast(float x) { return exp2f(x); }
CAIRN_INLINE float log2_fast(float x) { return log2f(x); }
CAIRN_INLINE float rcp_fast(float x) { return x == 0.0f ? copysignf(HUGE_VALF, x) : 1.0f / x; }
CAIRN_INLINE float rsqrt_fast(float x) {
    return x == 0.0f ? copysignf(HUGE_VALF, x) : 1.0f / sqrtf(x);
}
CAIRN_INLINE float tanh_fast(float x) { return tanhf(x); }
CAIRN_INLINE float fma_f32(float a, float b, float c) { return fmaf(a, b, c); }
CAIRN_INLINE float add_f32(float a, float b) { return a + b; }
CAIRN_INLINE float mul_f32(float a, float b) { return a * b; }
CAIRN_INLINE float div_f32(float a, float b) { return a / b; }
CAIRN_INLINE float sqrt_f32(float x) { return sqrtf(x); }
CAIRN_INLINE float exp_f32(float x) { return expf(x); }
CAIRN_INLINE float log_f32(float x) { return logf(x); }
CAIRN_INLINE double floor_f64(double x) { return floor(x); }
CAIRN_INLINE double pow_f64(double x, double y) { return pow(x, y); }

/* ---- halves ---- */

CAIRN_INLINE float f16_to_f32(f16 x) { return simt::f16_to_f32(x.bits); }
CAIRN_INLINE f16 f32_to_f16(float x) { return f16{simt::f32_to_f16((double)x)}; }
CAIRN_INLINE bf16 f32_to_bf16(float x) { return bf16{simt::f32_to_bf16((double)x)}; }
CAIRN_INLINE uint32_t pack_f16x2(float lo, float hi) {
    return simt::f32_to_f16((double)lo) | (uint32_t)simt::f32_to_f16((double)hi) << 16;
}
CAIRN_INLINE uint32_t pack_f16x2_within(float lo, float hi) {
    auto within = [](float x) { return x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x; };
    const uint32_t y = pack_f16x2(within(lo), within(hi));
    return (lo != lo ? 0x7fffu : y & 0xffffu) | (hi != hi ? 0x7fff0000u : y & 0xffff0000u);
}
CAIRN_INLINE uint32_t pack_bf16x2(float lo, float hi) {
    return simt::f32_to_bf16((double)lo) | (uint32_t)simt::f32_to_bf16((double)hi) << 16;
}

/* a * b + c for halves, whose product is exact in double: the sum rounded to odd, so that rounding
 * it again to a half is as if it had been exact. */
CAIRN_INLINE double simt_fma_odd(double a, double b, double c) {
    double p = a * b, sum = p + c, part = sum - p;
    double lost = (p - (sum - part)) + (c - part);
    uint64_t bits = bit_cast<uint64_t>(sum);
    if (!isfinite(sum) || lost == 0 || (bits & 1)) return sum;
    return bit_cast<double>((lost > 0) == (sum > 0) ? bits + 1 : bits - 1);
}

/* On f16 or bf16 pairs: computed in double, rounded once. */
template <class F> CAIRN_INLINE uint32_t simt_half2_f16(uint32_t a, uint32_t b, uint32_t c, F f) {
    uint32_t r = 0;
    for (int s = 0; s < 32; s += 16)
        r |= (uint32_t)simt::f32_to_f16(f((double)simt::f16_to_f32((uint16_t)(a >> s)),
                                          (double)simt::f16_to_f32((uint16_t)(b >> s)),
                                          (double)simt::f16_to_f32((uint16_t)(c >> s)))) << s;
    return r;
}
template <class F> CAIRN_INLINE uint32_t simt_half2_bf16(uint32_t a, uint32_t b, uint32_t c, F f) {
    auto wide = [](uint32_t pair, int s) {
        return (double)bit_cast<float>((pair >> s & 0xffffu) << 16);
    };
    uint32_t r = 0;
    for (int s = 0; s < 32; s += 16)
        r |= (uint32_t)simt::f32_to_bf16(f(wide(a, s), wide(b, s), wide(c, s))) << s;
    return r;
}
#define SIMT_HALF2(name, type, expression)                                                    \
    CAIRN_INLINE uint32_t name(uint32_t a, uint32_t b) {                                      \
        return simt_half2_##type(a, b, 0, [](double x, double y, double) { return expression; }); \
    }
SIMT_HALF2(add_f16x2, f16, x + y)
SIMT_HALF2(sub_f16x2, f16, x - y)
SIMT_HALF2(mul_f16x2, f16, x *y)
SIMT_HALF2(max_f16x2, f16, fmax(x, y))
SIMT_HALF2(min_f16x2, f16, fmin(x, y))
SIMT_HALF2(max_bf16x2, bf16, fmax(x, y))
SIMT_HALF2(min_bf16x2, bf16, fmin(x, y))
#undef SIMT_HALF2
CAIRN_INLINE uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c) {
    return simt_half2_f16(a, b, c, simt_fma_odd);
}
CAIRN_INLINE uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
    return simt_half2_bf16(a, b, c, simt_fma_odd);
}

#if CAIRN_ARCH >= 890
CAIRN_INLINE uint32_t e4m3x2_to_f16x2(uint16_t pair) {
    return simt::f32_to_f16((double)simt::e4m3_to_f32((uint8_t)pair)) |
           (uint32_t)simt::f32_to_f16((double)simt::e4m3_to_f32((uint8_t)(pair >> 8))) << 16;
}
CAIRN_INLINE void e4m3x4_to_f16x4(uint32_t four, uint32_t *low, uint32_t *high) {
    *low = e4m3x2_to_f16x2((uint16_t)four), *high = e4m3x2_to_f16x2((uint16_t)(four >> 16));
}
CAIRN_INLINE uint16_t pack_e4m3x2(float lo, float hi) {
    return (uint16_t)(simt::f32_to_e4m3((double)lo) | simt::f32_to_e4m3((double)hi) << 8);
}
#endif

/* ---- device/async.cuh ---- */

CAIRN_INLINE void grid_dependency_wait() { simt::dependency_wait(); }
CAIRN_INLINE void grid_launch_dependents() {}

#define SIMT_COPY(name, bytes)                                                               \
    CAIRN_INLINE void name(shared_addr to, const void *from, bool valid = true, SIMT_SITE) { \
        simt::copy_async(to.at, from, bytes, valid, site);                                   \
    }
SIMT_COPY(copy_async16, 16)
SIMT_COPY(copy_async8, 8)
SIMT_COPY(copy_async4, 4)
SIMT_COPY(copy_async16_once, 16)
#undef SIMT_COPY
CAIRN_INLINE void copy_async_commit() { simt::copy_async_commit(); }
template <int pending> CAIRN_INLINE void copy_async_wait() { simt::copy_async_wait(pending); }

CAIRN_INLINE int cluster_rank() { return simt::self->rank; }
CAIRN_INLINE int cluster_size() { return simt::self->cluster_size; }
CAIRN_INLINE void cluster_arrive(SIMT_SITE) { simt::cluster_arrive(true, site); }
CAIRN_INLINE void cluster_arrive_relaxed(SIMT_SITE) { simt::cluster_arrive(false, site); }
CAIRN_INLINE void cluster_wait(SIMT_SITE) { simt::cluster_wait(site); }
CAIRN_INLINE void cluster_sync(SIMT_SITE) {
    simt::cluster_arrive(true, site);
    simt::cluster_wait(site);
}
CAIRN_INLINE shared_addr remote(shared_addr here, int rank, SIMT_SITE) {
    return shared_addr(simt::shared_remote(here.at, rank, site));
}
template <class T> CAIRN_INLINE T remote_load(shared_addr from, SIMT_SITE) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16, "remote_load: size");
    T v;
    simt::read(&v, simt::shared_at(from.at, sizeof v, sizeof v, site), sizeof v,
               simt::Access::plain, site);
    return v;
}
template <class T> CAIRN_INLINE void remote_store(shared_addr to, T v, SIMT_SITE) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16, "remote_store: size");
    simt::write(simt::shared_at(to.at, sizeof v, sizeof v, site), &v, sizeof v,
                simt::Access::plain, site);
    simt::progress();
}
CAIRN_INLINE uint32_t remote_atomic_add(shared_addr to, uint32_t v, SIMT_SITE) {
    return atomic_add(reinterpret_cast<uint32_t *>(simt::shared_at(to.at, 4, 4, site)), v, site);
}
CAIRN_INLINE uint32_t remote_atomic_max(shared_addr to, uint32_t v, SIMT_SITE) {
    return atomic_max(reinterpret_cast<uint32_t *>(simt::shared_at(to.at, 4, 4, site)), v, site);
}
template <class T>
CAIRN_INLINE void remote_store_async(shared_addr to, T v, shared_addr barrier, SIMT_SITE) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16, "remote_store_async: size");
    simt::store_async(to.at, &v, sizeof v, barrier.at, site);
}

CAIRN_INLINE void mbarrier_init(shared_addr barrier, int arrivals, SIMT_SITE) {
    simt::mbarrier_init(barrier.at, arrivals, site);
}
CAIRN_INLINE void fence_mbarrier_init() {}
CAIRN_INLINE void copy_async_arrive(shared_addr barrier, SIMT_SITE) {
    simt::copy_async_arrive(barrier.at, site);
}
CAIRN_INLINE void mbarrier_arrive(shared_addr barrier, SIMT_SITE) {
    simt::mbarrier_arrive(barrier.at, 0, 1, site);
}
CAIRN_INLINE void mbarrier_arrive_expect(shared_addr barrier, uint32_t bytes, SIMT_SITE) {
    simt::mbarrier_arrive(barrier.at, bytes, 1, site);
}
CAIRN_INLINE void mbarrier_expect(shared_addr barrier, uint32_t bytes, SIMT_SITE) {
    simt::mbarrier_arrive(barrier.at, bytes, 0, site);
}
CAIRN_INLINE void mbarrier_arrive_remote(shared_addr barrier, SIMT_SITE) {
    simt::mbarrier_arrive(barrier.at, 0, 1, site);
}
CAIRN_INLINE bool mbarrier_try_wait(shared_addr barrier, uint32_t parity, SIMT_SITE) {
    if (simt::mbarrier_test(barrier.at, parity, site)) return true;
    simt::poll("mbarrier_wait", site);
    return simt::mbarrier_test(barrier.at, parity, site);
}
CAIRN_INLINE void mbarrier_wait(shared_addr barrier, uint32_t parity, SIMT_SITE) {
    while (!mbarrier_try_wait(barrier, parity, site)) {
    }
}
CAIRN_INLINE void mbarrier_wait_cluster(shared_addr barrier, uint32_t parity, SIMT_SITE) {
    mbarrier_wait(barrier, parity, site);
}
CAIRN_INLINE void copy_bulk(shared_addr to, const void *from, uint32_t bytes, shared_addr barrier,
                            SIMT_SITE) {
    simt::copy_bulk(to.at, from, bytes, barrier.at, site);
}
CAIRN_INLINE void copy_bulk_once(shared_addr to, const void *from, uint32_t bytes,
                                 shared_addr barrier, SIMT_SITE) {
    simt::copy_bulk(to.at, from, bytes, barrier.at, site);
}
CAIRN_INLINE void copy_bulk_remote(shared_addr to, const void *from, uint32_t bytes,
                                   shared_addr barrier, SIMT_SITE) {
    simt::copy_bulk(to.at, from, bytes, barrier.at, site);
}
CAIRN_INLINE void fence_async() {}
CAIRN_INLINE void prefetch_l2_bulk(const void *, uint32_t) {}

/* ---- device/mma.cuh ---- */

#define SIMT_LOAD_MATRIX(name, operation, tiles)                                          \
    CAIRN_INLINE void name(uint32_t *r, shared_addr row, SIMT_SITE) {                     \
        /* the addresses of lanes beyond the tiles are not used */                        \
        const void *p = (thread_id() & 31) < 8 * tiles                                    \
                            ? simt::shared_at(row.at, 16, 16, site) : nullptr;            \
        simt::warp(simt::operation, FULL_MASK, {p, r, tiles, 0}, site);                   \
    }
SIMT_LOAD_MATRIX(load_matrix_x1, operation_load_matrix, 1)
SIMT_LOAD_MATRIX(load_matrix_x2, operation_load_matrix, 2)
SIMT_LOAD_MATRIX(load_matrix_x4, operation_load_matrix, 4)
SIMT_LOAD_MATRIX(load_matrix_transposed_x1, operation_load_matrix_transposed, 1)
SIMT_LOAD_MATRIX(load_matrix_transposed_x2, operation_load_matrix_transposed, 2)
SIMT_LOAD_MATRIX(load_matrix_transposed_x4, operation_load_matrix_transposed, 4)
#undef SIMT_LOAD_MATRIX
CAIRN_INLINE uint32_t transpose_matrix(uint32_t v, SIMT_SITE) {
    uint32_t turned;
    simt::warp(simt::operation_transpose_matrix, FULL_MASK, {&v, &turned, 0, 0}, site);
    return turned;
}

#define SIMT_MMA(name, T)                                                                  \
    CAIRN_INLINE void name(T *d, const uint32_t *a, const uint32_t *b, SIMT_SITE) {        \
        uint32_t in[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};                             \
        simt::warp(simt::operation_##name, FULL_MASK, {in, d, 0, 0}, site);                \
    }
SIMT_MMA(mma_f16, float)
SIMT_MMA(mma_bf16, float)
SIMT_MMA(mma_tf32, float)
#if CAIRN_ARCH >= 890
SIMT_MMA(mma_e4m3, float)
#endif
SIMT_MMA(mma_s8, int32_t)
#undef SIMT_MMA

/* A wgmma is done at once: that its operands rest until the wait is not checked. */
#if CAIRN_ARCH == 900
#define CAIRN_WGMMA 1
CAIRN_INLINE uint64_t wgmma_matrix(shared_addr b, uint32_t along, uint32_t across) {
    return (uint64_t)(b.at >> 4) | (uint64_t)(along >> 4) << 16 | (uint64_t)(across >> 4) << 32;
}
CAIRN_INLINE uint64_t wgmma_swizzled(shared_addr at, uint32_t along, SIMT_SITE) {
    if (at.at % 1024 >= 128) simt::fail(site, "wgmma: a swizzled matrix at %u", at.at);
    return wgmma_matrix(at, along, 1024) | (uint64_t)1 << 62;
}
CAIRN_INLINE uint64_t wgmma_further(uint64_t matrix, int bytes) {
    return matrix >> 32 << 32 | ((uint32_t)matrix + (uint32_t)(bytes / 16));
}
template <int count> CAIRN_INLINE void registers_give() {}
template <int count> CAIRN_INLINE void registers_take() {}
CAIRN_INLINE void wgmma_fence() {}
CAIRN_INLINE void wgmma_commit() {}
template <int pending> CAIRN_INLINE void wgmma_wait() {}
template <int count> CAIRN_INLINE void wgmma_hold(float *) {}
namespace simt {
static inline WarpgroupMatrix warpgroup_matrix(uint64_t m, bool turned) {
    return {(uint32_t)(m & 0x3fff) << 4, (uint32_t)(m >> 16 & 0x3fff) << 4,
            (uint32_t)(m >> 32 & 0x3fff) << 4, (m >> 62) == 1, turned};
}
static inline void multiply_group(const WarpOperation &operation, float *d, const uint32_t *a,
                                  uint64_t shared_a, uint64_t b, bool turned, int columns, bool adds,
                                  Site site) {
    WarpgroupOperands o = {a, warpgroup_matrix(shared_a, false), warpgroup_matrix(b, turned), columns,
                           thread_id() / 32 % 4 * 16, adds};
    warp(operation, FULL_MASK, {&o, d, 0, 0}, site);
}
} // namespace simt
#define SIMT_WGMMA(type, columns, form, turned)                                                    \
    CAIRN_INLINE void wgmma_##type##_##columns##form(float *d, const uint32_t *a, uint64_t b,      \
                                                     bool adds, SIMT_SITE) {                       \
        simt::multiply_group(simt::operation_wgmma_##type, d, a, 0, b, turned, columns, adds, site); \
    }
#define SIMT_WGMMA_SHARED(type, columns)                                                           \
    CAIRN_INLINE void wgmma_##type##_##columns##_shared(float *d, uint64_t a, uint64_t b, bool adds, \
                                                        SIMT_SITE) {                               \
        simt::multiply_group(simt::operation_wgmma_##type, d, nullptr, a, b, false, columns, adds, site); \
    }
SIMT_WGMMA(f16, 32, , false)
SIMT_WGMMA(f16, 64, , false)
SIMT_WGMMA(f16, 128, , false)
SIMT_WGMMA(f16, 256, , false)
SIMT_WGMMA(f16, 64, _turned, true)
SIMT_WGMMA(f16, 128, _turned, true)
SIMT_WGMMA(bf16, 64, _turned, true)
SIMT_WGMMA(bf16, 128, _turned, true)
SIMT_WGMMA_SHARED(e4m3, 32)
SIMT_WGMMA_SHARED(e4m3, 64)
SIMT_WGMMA_SHARED(e4m3, 128)
SIMT_WGMMA_SHARED(f16, 64)
SIMT_WGMMA_SHARED(bf16, 64)
SIMT_WGMMA_SHARED(f16, 128)
SIMT_WGMMA_SHARED(bf16, 128)
#undef SIMT_WGMMA_SHARED
#undef SIMT_WGMMA
#else
#define CAIRN_WGMMA 0
#endif

#endif
