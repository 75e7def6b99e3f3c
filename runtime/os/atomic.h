/* os_atomic: 32-bit numbers that threads share; every operation is sequentially consistent. */
#if defined(_MSC_VER) && !defined(__clang__)
#define OS_STDATOMIC 0
#elif defined(__STDC_NO_ATOMICS__) || __STDC_VERSION__ < 201112L
#error "cairn's implementation needs C11 with <stdatomic.h>; this compiler or its -std lacks it"
#else
#define OS_STDATOMIC 1
#include <stdatomic.h>
#endif

#if OS_STDATOMIC
typedef atomic_int os_atomic;
BASE_INLINE int32_t os_atomic_load(os_atomic *a) { return (int32_t)atomic_load(a); }
BASE_INLINE void os_atomic_store(os_atomic *a, int32_t value) { atomic_store(a, value); }
/* Returns the value before. */
BASE_INLINE int32_t os_atomic_add(os_atomic *a, int32_t value) {
    return (int32_t)atomic_fetch_add(a, value);
}
/* Sets to `to` if it is `from`; returns whether it did. */
BASE_INLINE bool os_atomic_swap_if(os_atomic *a, int32_t from, int32_t to) {
    int expected = from;
    return atomic_compare_exchange_strong(a, &expected, to);
}
#else
typedef volatile long os_atomic;
long _InterlockedExchange(long volatile *, long);
long _InterlockedExchangeAdd(long volatile *, long);
long _InterlockedCompareExchange(long volatile *, long, long);
BASE_INLINE int32_t os_atomic_load(os_atomic *a) { return _InterlockedExchangeAdd(a, 0); }
BASE_INLINE void os_atomic_store(os_atomic *a, int32_t value) { _InterlockedExchange(a, value); }
BASE_INLINE int32_t os_atomic_add(os_atomic *a, int32_t value) {
    return _InterlockedExchangeAdd(a, value);
}
BASE_INLINE bool os_atomic_swap_if(os_atomic *a, int32_t from, int32_t to) {
    return _InterlockedCompareExchange(a, to, from) == from;
}
#endif
