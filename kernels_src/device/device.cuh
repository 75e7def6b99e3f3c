/* The primitives on the GPU: entry, identity, barriers, warp operations, atomics, memory, math.
 * The emulation has the same list in tests/simt/simt_device.h: a change here is a change there. */
#ifndef CAIRN_DEVICE_CUH
#define CAIRN_DEVICE_CUH

/* sm_80 is 800, sm_121 is 1210. */
#define CAIRN_ARCH __CUDA_ARCH__

#define CAIRN_INLINE static __device__ __forceinline__
#define CAIRN_CALLED static __device__ __noinline__ /* one copy of the code */
#define CAIRN_METHOD static __device__ __forceinline__
#define CAIRN_MEMBER __device__ __forceinline__ /* of a method that is not static */

/* An entry: CAIRN_KERNEL(topk_small, 512, 2, topk_params) { ... uses p ... }
 * `threads` is the most threads a block has, `min_blocks` the blocks that must fit one SM. */
#define CAIRN_KERNEL(name, threads, min_blocks, params_type)                    \
    extern "C" __global__ void __launch_bounds__(threads, min_blocks)           \
    name(const __grid_constant__ params_type p)

template <class To, class From> CAIRN_INLINE To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "bit_cast: sizes differ");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

/* ---- identity; blocks are one-dimensional ---- */

CAIRN_INLINE int thread_id() { return (int)threadIdx.x; }
/* The lane, asked for anew at every call: what is computed from it is not kept in registers. */
CAIRN_INLINE int lane_anew() {
    int v;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(v));
    return v;
}
/* p, of which nothing is known: what lies at constant distances behind it is reached by these from one register. */
template <class T> CAIRN_INLINE T *pointer_anew(T *p) {
    asm("" : "+l"(p));
    return p;
}
CAIRN_INLINE int block_threads() { return (int)blockDim.x; }
CAIRN_INLINE int block_id() { return (int)blockIdx.x; }
CAIRN_INLINE int block_id_y() { return (int)blockIdx.y; }
CAIRN_INLINE int block_id_z() { return (int)blockIdx.z; }
CAIRN_INLINE int grid_blocks() { return (int)gridDim.x; }
CAIRN_INLINE int grid_blocks_y() { return (int)gridDim.y; }
CAIRN_INLINE int grid_blocks_z() { return (int)gridDim.z; }

/* ---- shared memory ---- */

extern __shared__ __align__(128) unsigned char cairn_shared_memory[];

/* The block's dynamic shared memory, 128-byte aligned: the only shared memory a kernel has. */
CAIRN_INLINE unsigned char *shared_base() { return cairn_shared_memory; }

/* A shared-memory address as the instructions take it; made from a pointer, moved by bytes. After
 * remote() it names the same place in another block of the cluster. */
struct shared_addr {
    uint32_t at;
    __device__ __forceinline__ shared_addr(const void *p)
        : at((uint32_t)__cvta_generic_to_shared(p)) {}
    __device__ __forceinline__ explicit shared_addr(uint32_t address) : at(address) {}
    __device__ __forceinline__ shared_addr operator+(uint32_t bytes) const {
        return shared_addr(at + bytes);
    }
    __device__ __forceinline__ shared_addr operator^(uint32_t bits) const {
        return shared_addr(at ^ bits);
    }
};

/* ---- barriers ---- */

/* All threads of the block, at one place in the source. */
CAIRN_INLINE void block_sync() { __syncthreads(); }
CAIRN_INLINE int block_sync_count(bool vote) { return __syncthreads_count(vote); }
CAIRN_INLINE bool block_sync_or(bool vote) { return __syncthreads_or(vote) != 0; }
CAIRN_INLINE bool block_sync_and(bool vote) { return __syncthreads_and(vote) != 0; }

/* Barrier `id` (1 to 15) of `threads` threads, whole warps; arrive goes on without waiting. */
CAIRN_INLINE void named_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
CAIRN_INLINE void named_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

CAIRN_INLINE void warp_sync(uint32_t mask = FULL_MASK) { __syncwarp(mask); }

/* ---- warp operations ---- */

/* 4- and 8-byte types. `width` (a power of two): lanes exchange within groups of that many; a
 * source outside the group gives the lane's own value. */
#define CAIRN_SHUFFLE(name, builtin, argument)                                              \
    template <class T>                                                                      \
    CAIRN_INLINE T name(T v, int argument, int width = WARP, uint32_t mask = FULL_MASK) {   \
        static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffle: 4 or 8 bytes");           \
        if constexpr (sizeof(T) == 4) {                                                     \
            return bit_cast<T>(builtin(mask, bit_cast<uint32_t>(v), argument, width));      \
        } else {                                                                            \
            u32x2 half = bit_cast<u32x2>(v);                                                \
            half.x = builtin(mask, half.x, argument, width);                                \
            half.y = builtin(mask, half.y, argument, width);                                \
            return bit_cast<T>(half);                                                       \
        }                                                                                   \
    }
CAIRN_SHUFFLE(shuffle, __shfl_sync, source)
CAIRN_SHUFFLE(shuffle_xor, __shfl_xor_sync, lane_bits)
CAIRN_SHUFFLE(shuffle_up, __shfl_up_sync, distance)
CAIRN_SHUFFLE(shuffle_down, __shfl_down_sync, distance)
#undef CAIRN_SHUFFLE

CAIRN_INLINE uint32_t warp_ballot(bool vote, uint32_t mask = FULL_MASK) {
    return __ballot_sync(mask, vote);
}
CAIRN_INLINE bool warp_any(bool vote, uint32_t mask = FULL_MASK) { return __any_sync(mask, vote); }
CAIRN_INLINE bool warp_all(bool vote, uint32_t mask = FULL_MASK) { return __all_sync(mask, vote); }

/* The lanes of mask that hold the same value. */
CAIRN_INLINE uint32_t match_any(uint32_t v, uint32_t mask = FULL_MASK) {
    return __match_any_sync(mask, v);
}
CAIRN_INLINE uint32_t match_any(uint64_t v, uint32_t mask = FULL_MASK) {
    return __match_any_sync(mask, v);
}

CAIRN_INLINE uint32_t redux_add(uint32_t v) { return __reduce_add_sync(FULL_MASK, v); }
CAIRN_INLINE uint32_t redux_max(uint32_t v) { return __reduce_max_sync(FULL_MASK, v); }
CAIRN_INLINE int32_t redux_max(int32_t v) { return __reduce_max_sync(FULL_MASK, v); }
CAIRN_INLINE uint32_t redux_min(uint32_t v) { return __reduce_min_sync(FULL_MASK, v); }
CAIRN_INLINE int32_t redux_min(int32_t v) { return __reduce_min_sync(FULL_MASK, v); }
CAIRN_INLINE uint32_t redux_or(uint32_t v) { return __reduce_or_sync(FULL_MASK, v); }
CAIRN_INLINE uint32_t redux_and(uint32_t v) { return __reduce_and_sync(FULL_MASK, v); }

/* ---- atomics: relaxed, on shared or global memory; the value before is returned ---- */

CAIRN_INLINE uint32_t atomic_add(uint32_t *p, uint32_t v) { return atomicAdd(p, v); }
CAIRN_INLINE int32_t atomic_add(int32_t *p, int32_t v) { return atomicAdd(p, v); }
CAIRN_INLINE uint64_t atomic_add(uint64_t *p, uint64_t v) { return atomicAdd(p, v); }
CAIRN_INLINE float atomic_add(float *p, float v) { return atomicAdd(p, v); }
template <class T> CAIRN_INLINE T atomic_max(T *p, T v) { return atomicMax(p, v); }
template <class T> CAIRN_INLINE T atomic_min(T *p, T v) { return atomicMin(p, v); }
template <class T> CAIRN_INLINE T atomic_or(T *p, T v) { return atomicOr(p, v); }
template <class T> CAIRN_INLINE T atomic_and(T *p, T v) { return atomicAnd(p, v); }
template <class T> CAIRN_INLINE T atomic_exchange(T *p, T v) { return atomicExch(p, v); }
/* Stores v if *p equals expected. */
template <class T> CAIRN_INLINE T atomic_cas(T *p, T expected, T v) {
    return atomicCAS(p, expected, v);
}

/* ---- ordering between blocks (scope: this GPU), on global memory ----
 * The last block to finish: every thread writes; block_sync(); one thread calls
 * atomic_add_acq_rel(counter, 1); whoever saw count - 1 tells its block and reads the rest. */

CAIRN_INLINE uint32_t atomic_add_acq_rel(uint32_t *p, uint32_t v) {
    uint32_t old;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(old) : "l"(p), "r"(v) : "memory");
    return old;
}
CAIRN_INLINE void reduce_add_release(uint32_t *p, uint32_t v) {
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
CAIRN_INLINE uint32_t atomic_cas_acq_rel(uint32_t *p, uint32_t expected, uint32_t v) {
    uint32_t old;
    asm volatile("atom.acq_rel.gpu.global.cas.b32 %0, [%1], %2, %3;"
                 : "=r"(old) : "l"(p), "r"(expected), "r"(v) : "memory");
    return old;
}
CAIRN_INLINE uint32_t load_acquire(const uint32_t *p) {
    uint32_t v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
CAIRN_INLINE void store_release(uint32_t *p, uint32_t v) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
CAIRN_INLINE uint32_t load_relaxed(const uint32_t *p) {
    uint32_t v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
CAIRN_INLINE void store_relaxed(uint32_t *p, uint32_t v) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

/* Each of the four (two) words is read once and whole, from where stores of other blocks arrive;
 * they are not one access. */
CAIRN_INLINE u32x4 load_relaxed16(const void *p) {
    u32x4 v;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
}
CAIRN_INLINE u32x2 load_relaxed8(const void *p) {
    u32x2 v;
    asm volatile("ld.relaxed.gpu.global.v2.u32 {%0,%1}, [%2];"
                 : "=r"(v.x), "=r"(v.y) : "l"(p) : "memory");
    return v;
}

/* Four words, each whole. */
CAIRN_INLINE void store_relaxed16(void *p, u32x4 v) {
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1,%2,%3,%4};"
                 ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

/* Volatile accesses: neither cached in a register nor merged; any memory. */
template <class T> CAIRN_INLINE T load_volatile(const T *p) { return *(const volatile T *)p; }
template <class T> CAIRN_INLINE void store_volatile(T *p, T v) { *(volatile T *)p = v; }

CAIRN_INLINE void fence_block() { __threadfence_block(); }
CAIRN_INLINE void fence_gpu() { __threadfence(); }

/* ---- global memory: types of 2, 4, 8 and 16 bytes, naturally aligned ---- */

/* One load instruction in each size; `first` and `last` go around the operands of the load. */
#define CAIRN_LOAD(name, assembly, first, qualifiers, last)                                   \
    template <class T> CAIRN_INLINE T name(const T *p) {                                      \
        constexpr int bytes = (int)sizeof(T);                                                 \
        static_assert(bytes == 2 || bytes == 4 || bytes == 8 || bytes == 16, "load: size");   \
        if constexpr (bytes == 16) {                                                          \
            u32x4 v;                                                                          \
            assembly("{" first "ld.global" qualifiers ".v4.u32 {%0,%1,%2,%3}, [%4]" last ";}" \
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));                  \
            return bit_cast<T>(v);                                                            \
        } else if constexpr (bytes == 8) {                                                    \
            u32x2 v;                                                                          \
            assembly("{" first "ld.global" qualifiers ".v2.u32 {%0,%1}, [%2]" last ";}"       \
                     : "=r"(v.x), "=r"(v.y) : "l"(p));                                        \
            return bit_cast<T>(v);                                                            \
        } else if constexpr (bytes == 4) {                                                    \
            uint32_t v;                                                                       \
            assembly("{" first "ld.global" qualifiers ".u32 %0, [%1]" last ";}"               \
                     : "=r"(v) : "l"(p));                                                     \
            return bit_cast<T>(v);                                                            \
        } else {                                                                              \
            uint16_t v;                                                                       \
            assembly("{" first "ld.global" qualifiers ".u16 %0, [%1]" last ";}"               \
                     : "=h"(v) : "l"(p));                                                     \
            return bit_cast<T>(v);                                                            \
        }                                                                                     \
    }
#define CAIRN_EVICT_FIRST \
    ".reg .b64 once; createpolicy.fractional.L2::evict_first.b64 once, 1.0; "

/* Data that no one writes while the kernel runs. load_once: also never read again, so that it
 * passes the caches by. The _early ones are issued where they stand: the compiler may neither drop
 * nor move them past a barrier or grid_dependency_wait, so that the wait hides their latency;
 * load_early is for data that others may write, beside what it reads (past KV, say). */
CAIRN_LOAD(load_constant, asm, "", ".nc", "")
CAIRN_LOAD(load_once, asm, CAIRN_EVICT_FIRST, ".nc.L1::no_allocate.L2::cache_hint", ", once")
CAIRN_LOAD(load_constant_early, asm volatile, "", ".nc", "")
CAIRN_LOAD(load_once_early, asm volatile, CAIRN_EVICT_FIRST,
           ".nc.L1::no_allocate.L2::cache_hint", ", once")
CAIRN_LOAD(load_early, asm volatile, "", "", "")
#undef CAIRN_LOAD
#undef CAIRN_EVICT_FIRST

/* A store of data that this GPU will not read soon. */
template <class T> CAIRN_INLINE void store_once(T *p, T v) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16, "store_once: size");
    if constexpr (sizeof(T) == 16) {
        u32x4 u = bit_cast<u32x4>(v);
        asm volatile("st.global.cs.v4.u32 [%0], {%1,%2,%3,%4};"
                     ::"l"(p), "r"(u.x), "r"(u.y), "r"(u.z), "r"(u.w) : "memory");
    } else if constexpr (sizeof(T) == 8) {
        u32x2 u = bit_cast<u32x2>(v);
        asm volatile("st.global.cs.v2.u32 [%0], {%1,%2};" ::"l"(p), "r"(u.x), "r"(u.y) : "memory");
    } else {
        asm volatile("st.global.cs.u32 [%0], %1;" ::"l"(p), "r"(bit_cast<uint32_t>(v)) : "memory");
    }
}

/* This thread rests for about so long, so that others' loads and stores find less traffic. */
CAIRN_INLINE void rest_ns(uint32_t ns) { asm volatile("nanosleep.u32 %0;" ::"r"(ns)); }

/* Asks for the cache line of p; nothing happens if it is there. */
CAIRN_INLINE void prefetch_l2(const void *p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

/* ---- integers ---- */

CAIRN_INLINE int popcount(uint32_t v) { return __popc(v); }
CAIRN_INLINE int popcount(uint64_t v) { return __popcll(v); }
/* 32 or 64 for zero. */
CAIRN_INLINE int leading_zeros(uint32_t v) { return __clz((int)v); }
CAIRN_INLINE int leading_zeros(uint64_t v) { return __clzll((long long)v); }
/* The lowest set bit's number plus one; 0 for zero. */
CAIRN_INLINE int find_first_set(uint32_t v) { return __ffs((int)v); }
CAIRN_INLINE int find_first_set(uint64_t v) { return __ffsll((long long)v); }
CAIRN_INLINE uint32_t reverse_bits(uint32_t v) { return __brev(v); }
CAIRN_INLINE uint32_t multiply_high(uint32_t a, uint32_t b) { return __umulhi(a, b); }
/* Four bytes chosen by the hex digits of `selector`: 0-3 of a, 4-7 of b; 8 set: the byte's sign. */
CAIRN_INLINE uint32_t byte_permute(uint32_t a, uint32_t b, uint32_t selector) {
    uint32_t d;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
    return d;
}
/* The upper (lower) word of hi:lo shifted left (right) by shift mod 32. */
CAIRN_INLINE uint32_t funnel_left(uint32_t lo, uint32_t hi, uint32_t shift) {
    return __funnelshift_l(lo, hi, shift);
}
CAIRN_INLINE uint32_t funnel_right(uint32_t lo, uint32_t hi, uint32_t shift) {
    return __funnelshift_r(lo, hi, shift);
}
/* sum + the four byte products. */
CAIRN_INLINE int32_t dot4(int32_t a, int32_t b, int32_t sum) { return __dp4a(a, b, sum); }
CAIRN_INLINE uint32_t dot4(uint32_t a, uint32_t b, uint32_t sum) { return __dp4a(a, b, sum); }

/* count + 1 if a > b, if a >= b: two instructions where the compiler makes three of `count += a > b`. */
CAIRN_INLINE void add_if_over(uint32_t &count, uint32_t a, uint32_t b) {
    asm("{ .reg .pred is; setp.gt.u32 is, %1, %2; @is add.u32 %0, %0, 1; }" : "+r"(count) : "r"(a), "r"(b));
}
CAIRN_INLINE void add_if_reaching(uint32_t &count, float a, float b) {
    asm("{ .reg .pred is; setp.ge.f32 is, %1, %2; @is add.u32 %0, %0, 1; }" : "+r"(count) : "f"(a), "f"(b));
}

/* Any function of three bits, bit by bit: table = f(0xf0, 0xcc, 0xaa). */
template <int table> CAIRN_INLINE uint32_t logic3(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, %4;" : "=r"(d) : "r"(a), "r"(b), "r"(c), "n"(table));
    return d;
}

/* ---- fast mathematics: a few units in the last place, denormals as zero ---- */

#define CAIRN_MATH(name, instruction)                        \
    CAIRN_INLINE float name(float x) {                       \
        float y;                                             \
        asm(instruction " %0, %1;" : "=f"(y) : "f"(x));      \
        return y;                                            \
    }
CAIRN_MATH(exp2_fast, "ex2.approx.ftz.f32")
CAIRN_MATH(log2_fast, "lg2.approx.ftz.f32")
CAIRN_MATH(rcp_fast, "rcp.approx.ftz.f32")
CAIRN_MATH(rsqrt_fast, "rsqrt.approx.ftz.f32")
CAIRN_MATH(tanh_fast, "tanh.approx.f32") /* error 2^-11 */
#undef CAIRN_MATH

/* Exactly rounded. */
CAIRN_INLINE float fma_f32(float a, float b, float c) { return __fmaf_rn(a, b, c); }
CAIRN_INLINE float add_f32(float a, float b) { return __fadd_rn(a, b); } /* never contracted */
CAIRN_INLINE float mul_f32(float a, float b) { return __fmul_rn(a, b); }
CAIRN_INLINE float div_f32(float a, float b) { return __fdiv_rn(a, b); }
CAIRN_INLINE float sqrt_f32(float x) { return __fsqrt_rn(x); }
CAIRN_INLINE float exp_f32(float x) { return expf(x); } /* 2 ulp */
CAIRN_INLINE float log_f32(float x) { return logf(x); }
CAIRN_INLINE double floor_f64(double x) { return floor(x); }
CAIRN_INLINE double pow_f64(double x, double y) { return pow(x, y); } /* 2 ulp; slow */

/* ---- halves: conversions round to nearest even ---- */

CAIRN_INLINE float f16_to_f32(f16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
CAIRN_INLINE f16 f32_to_f16(float x) {
    f16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}
CAIRN_INLINE bf16 f32_to_bf16(float x) {
    bf16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}
CAIRN_INLINE uint32_t pack_f16x2(float lo, float hi) {
    uint32_t y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo));
    return y;
}
/* At most the largest half; NaN stays. */
CAIRN_INLINE uint32_t pack_f16x2_within(float lo, float hi) {
    uint32_t y;
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo));
    return y;
}
CAIRN_INLINE uint32_t pack_bf16x2(float lo, float hi) {
    uint32_t y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo));
    return y;
}

/* Two halves at a time, each rounded once. */
#define CAIRN_HALF2(name, instruction)                                              \
    CAIRN_INLINE uint32_t name(uint32_t a, uint32_t b) {                            \
        uint32_t d;                                                                 \
        asm(instruction " %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));                 \
        return d;                                                                   \
    }
#define CAIRN_HALF3(name, instruction)                                              \
    CAIRN_INLINE uint32_t name(uint32_t a, uint32_t b, uint32_t c) {                \
        uint32_t d;                                                                 \
        asm(instruction " %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));     \
        return d;                                                                   \
    }
CAIRN_HALF2(add_f16x2, "add.rn.f16x2")
CAIRN_HALF2(sub_f16x2, "sub.rn.f16x2")
CAIRN_HALF2(mul_f16x2, "mul.rn.f16x2")
CAIRN_HALF2(max_f16x2, "max.f16x2")
CAIRN_HALF2(min_f16x2, "min.f16x2")
CAIRN_HALF2(max_bf16x2, "max.bf16x2")
CAIRN_HALF2(min_bf16x2, "min.bf16x2")
CAIRN_HALF3(fma_f16x2, "fma.rn.f16x2")
CAIRN_HALF3(fma_bf16x2, "fma.rn.bf16x2")
#undef CAIRN_HALF2
#undef CAIRN_HALF3

#if CAIRN_ARCH >= 890
/* Two e4m3 in the low and high byte. */
CAIRN_INLINE uint32_t e4m3x2_to_f16x2(uint16_t pair) {
    uint32_t y;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(y) : "h"(pair));
    return y;
}
/* Four: those of the lower two bytes, and of the upper two. */
CAIRN_INLINE void e4m3x4_to_f16x4(uint32_t four, uint32_t *low, uint32_t *high) {
    asm("{\n\t.reg .b16 l, h;\n\tmov.b32 {l, h}, %2;\n\tcvt.rn.f16x2.e4m3x2 %0, l;\n\t"
        "cvt.rn.f16x2.e4m3x2 %1, h;\n\t}"
        : "=&r"(*low), "=r"(*high)
        : "r"(four));
}
CAIRN_INLINE uint16_t pack_e4m3x2(float lo, float hi) {
    uint16_t y;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(y) : "f"(hi), "f"(lo));
    return y;
}
#endif

#endif
