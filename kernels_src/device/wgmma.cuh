/* wgmma, where CAIRN_WGMMA says that there is it: four warps, d (+)= a b, under way until it is waited for.
 *
 * Warp w of the four has rows 16 w on of A and D, laid out as device/mma.cuh says, D [64, columns] with
 * four registers for each 8 columns. B lies in shared memory, k bytes in a row: in pieces of 8 columns by
 * 16 bytes, a column's 16 bytes behind the other's; `along` bytes to the piece of the next 16 bytes
 * of k, `across` to that of the next 8 columns. Written by plain stores it wants fence_async in each
 * writer before the barrier. No register of a or d may be touched before wgmma_wait says so, and
 * those of d pass through wgmma_hold then; with `adds` false d begins at zero.
 * Swizzled matrices lie at multiples of 1024 bytes, in slabs of 128 bytes a row (swizzled_at). In A [64, 16]
 * and B of the `_shared` forms the rows are those of A and the columns of B, and k goes along them; in B of
 * the `_turned` forms they are k, and `along` bytes lie between the slabs of 64 columns. */
#ifndef CAIRN_DEVICE_WGMMA_CUH
#define CAIRN_DEVICE_WGMMA_CUH

#include "device/common.cuh"

#ifndef CAIRN_SIMT /* the emulation has its own, beside those of device/mma.cuh */

CAIRN_INLINE uint64_t wgmma_matrix(shared_addr b, uint32_t along, uint32_t across) {
    return (uint64_t)(b.at >> 4) | (uint64_t)(along >> 4) << 16 | (uint64_t)(across >> 4) << 32;
}
CAIRN_INLINE uint64_t wgmma_swizzled(shared_addr at, uint32_t along) {
    return wgmma_matrix(at, along, 1024) | (uint64_t)1 << 62;
}
/* The matrix so many bytes further: its address does not leave the lower word, which is all that is added to. */
CAIRN_INLINE uint64_t wgmma_further(uint64_t matrix, int bytes) {
    asm("{ .reg .b32 low, high; mov.b64 {low, high}, %0; add.u32 low, low, %1; mov.b64 %0, {low, high}; }"
        : "+l"(matrix) : "r"(bytes / 16));
    return matrix;
}
CAIRN_INLINE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
CAIRN_INLINE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/* Until at most `pending` of the newest groups are under way. */
template <int pending> CAIRN_INLINE void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}
template <int count> CAIRN_INLINE void wgmma_hold(float *d) {
#pragma unroll
    for (int i = 0; i < count; i++) asm volatile("" : "+f"(d[i])::"memory");
}

/* What registers a thread of a group of four warps has from here on, in a kernel whose launch bounds are
 * one block a multiprocessor: each group goes one way of a single if, and says so first. */
template <int count> CAIRN_INLINE void registers_give() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count> CAIRN_INLINE void registers_take() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

/* Registers of d, and their text in an instruction, where its other operands are numbered on from them. */
#define CAIRN_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define CAIRN_D16(i) CAIRN_D4(i), CAIRN_D4(i + 4), CAIRN_D4(i + 8), CAIRN_D4(i + 12)
#define CAIRN_D32(i) CAIRN_D16(i), CAIRN_D16(i + 16)
#define CAIRN_D64(i) CAIRN_D32(i), CAIRN_D32(i + 32)
#define CAIRN_D128(i) CAIRN_D64(i), CAIRN_D64(i + 64)
#define CAIRN_D16_TEXT "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define CAIRN_D32_TEXT CAIRN_D16_TEXT ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define CAIRN_D64_TEXT CAIRN_D32_TEXT \
    ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56" \
    ",%57,%58,%59,%60,%61,%62,%63"
#define CAIRN_D128_TEXT CAIRN_D64_TEXT \
    ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88" \
    ",%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110" \
    ",%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define CAIRN_WGMMA_TEXT(shape, text, a, b, adds, last)                                        \
    "{ .reg .pred adds; setp.ne.b32 adds, " adds ", 0;"                                        \
    " wgmma.mma_async.sync.aligned." shape " {" text "}, " a ", " b ", adds, 1, 1" last "; }"

/* A in registers, or in shared memory as B is. last: which of those in shared memory are turned. */
#define CAIRN_WGMMA_OF(name, shape, last, text, a0, a1, a2, a3, b0, on, ...)                   \
    CAIRN_INLINE void name(float *d, const uint32_t *a, uint64_t b, bool adds) {               \
        asm volatile(CAIRN_WGMMA_TEXT(shape, text, "{" a0 "," a1 "," a2 "," a3 "}", b0, on, last) \
                     : __VA_ARGS__                                                             \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)adds));    \
    }
#define CAIRN_WGMMA_SHARED_OF(name, shape, last, text, a0, b0, on, ...)                        \
    CAIRN_INLINE void name(float *d, uint64_t a, uint64_t b, bool adds) {                      \
        asm volatile(CAIRN_WGMMA_TEXT(shape, text, a0, b0, on, last)                           \
                     : __VA_ARGS__ : "l"(a), "l"(b), "r"((int)adds));                          \
    }
#define CAIRN_WGMMA_32(name, shape, last) \
    CAIRN_WGMMA_OF(name, shape, last, CAIRN_D16_TEXT, "%16", "%17", "%18", "%19", "%20", "%21", CAIRN_D16(0))
#define CAIRN_WGMMA_64(name, shape, last) \
    CAIRN_WGMMA_OF(name, shape, last, CAIRN_D32_TEXT, "%32", "%33", "%34", "%35", "%36", "%37", CAIRN_D32(0))
#define CAIRN_WGMMA_128(name, shape, last) \
    CAIRN_WGMMA_OF(name, shape, last, CAIRN_D64_TEXT, "%64", "%65", "%66", "%67", "%68", "%69", CAIRN_D64(0))
#define CAIRN_WGMMA_256(name, shape, last) \
    CAIRN_WGMMA_OF(name, shape, last, CAIRN_D128_TEXT, "%128", "%129", "%130", "%131", "%132", "%133", CAIRN_D128(0))
#define CAIRN_WGMMA_SHARED_32(name, shape, last) \
    CAIRN_WGMMA_SHARED_OF(name, shape, last, CAIRN_D16_TEXT, "%16", "%17", "%18", CAIRN_D16(0))
#define CAIRN_WGMMA_SHARED_64(name, shape, last) \
    CAIRN_WGMMA_SHARED_OF(name, shape, last, CAIRN_D32_TEXT, "%32", "%33", "%34", CAIRN_D32(0))
#define CAIRN_WGMMA_SHARED_128(name, shape, last) \
    CAIRN_WGMMA_SHARED_OF(name, shape, last, CAIRN_D64_TEXT, "%64", "%65", "%66", CAIRN_D64(0))

CAIRN_WGMMA_SHARED_64(wgmma_f16_64_shared, "m64n64k16.f32.f16.f16", ", 0, 0")
CAIRN_WGMMA_SHARED_64(wgmma_bf16_64_shared, "m64n64k16.f32.bf16.bf16", ", 0, 0")
CAIRN_WGMMA_SHARED_128(wgmma_f16_128_shared, "m64n128k16.f32.f16.f16", ", 0, 0")
CAIRN_WGMMA_SHARED_128(wgmma_bf16_128_shared, "m64n128k16.f32.bf16.bf16", ", 0, 0")
CAIRN_WGMMA_SHARED_32(wgmma_e4m3_32_shared, "m64n32k32.f32.e4m3.e4m3", "")
CAIRN_WGMMA_SHARED_64(wgmma_e4m3_64_shared, "m64n64k32.f32.e4m3.e4m3", "")
CAIRN_WGMMA_SHARED_128(wgmma_e4m3_128_shared, "m64n128k32.f32.e4m3.e4m3", "")
CAIRN_WGMMA_64(wgmma_f16_64_turned, "m64n64k16.f32.f16.f16", ", 1")
CAIRN_WGMMA_64(wgmma_bf16_64_turned, "m64n64k16.f32.bf16.bf16", ", 1")
CAIRN_WGMMA_128(wgmma_f16_128_turned, "m64n128k16.f32.f16.f16", ", 1")
CAIRN_WGMMA_128(wgmma_bf16_128_turned, "m64n128k16.f32.bf16.bf16", ", 1")
CAIRN_WGMMA_32(wgmma_f16_32, "m64n32k16.f32.f16.f16", ", 0")
CAIRN_WGMMA_64(wgmma_f16_64, "m64n64k16.f32.f16.f16", ", 0")
CAIRN_WGMMA_128(wgmma_f16_128, "m64n128k16.f32.f16.f16", ", 0")
CAIRN_WGMMA_256(wgmma_f16_256, "m64n256k16.f32.f16.f16", ", 0")
#undef CAIRN_WGMMA_SHARED_128
#undef CAIRN_WGMMA_SHARED_64
#undef CAIRN_WGMMA_SHARED_32
#undef CAIRN_WGMMA_256
#undef CAIRN_WGMMA_128
#undef CAIRN_WGMMA_64
#undef CAIRN_WGMMA_32
#undef CAIRN_WGMMA_SHARED_OF
#undef CAIRN_WGMMA_OF
#undef CAIRN_WGMMA_TEXT
#undef CAIRN_D128_TEXT
#undef CAIRN_D64_TEXT
#undef CAIRN_D32_TEXT
#undef CAIRN_D16_TEXT
#undef CAIRN_D128
#undef CAIRN_D64
#undef CAIRN_D32
#undef CAIRN_D16
#undef CAIRN_D4
#endif

#endif
