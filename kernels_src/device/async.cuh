/* The primitives that overlap: copies into shared memory, transaction barriers, clusters and their
 * shared memory, dependent launch. What needs sm_90 stands behind CAIRN_ARCH >= 900. */
#ifndef CAIRN_DEVICE_ASYNC_CUH
#define CAIRN_DEVICE_ASYNC_CUH

/* ---- dependent launch: nothing below sm_90, where the graph edge is a plain one ---- */

/* Until this returns, nothing may be read that the kernel before writes, nor anything written that
 * it may read. Every block calls it on every path. */
CAIRN_INLINE void grid_dependency_wait() {
#if CAIRN_ARCH >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/* From here on (once all blocks have come here or ended) the next kernel may start. A block that
 * comes here before its own wait lets that one start while the kernel before this one still runs. */
CAIRN_INLINE void grid_launch_dependents() {
#if CAIRN_ARCH >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* ---- cp.async: 16, 8 or 4 bytes a thread, global to shared ----
 * With `valid` false the destination is filled with zeros and the source not read. The bytes are
 * there for this thread after copy_async_wait, for the block after a block_sync that follows. */

CAIRN_INLINE void copy_async16(shared_addr to, const void *from, bool valid = true) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 ::"r"(to.at), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
CAIRN_INLINE void copy_async8(shared_addr to, const void *from, bool valid = true) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
                 ::"r"(to.at), "l"(from), "r"(valid ? 8 : 0) : "memory");
}
CAIRN_INLINE void copy_async4(shared_addr to, const void *from, bool valid = true) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 ::"r"(to.at), "l"(from), "r"(valid ? 4 : 0) : "memory");
}
/* Like copy_async16, for data read once: leaves the L2 cache first. */
CAIRN_INLINE void copy_async16_once(shared_addr to, const void *from, bool valid = true) {
    asm volatile("{ .reg .b64 once; createpolicy.fractional.L2::evict_first.b64 once, 1.0;"
                 " cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, once; }"
                 ::"r"(to.at), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
CAIRN_INLINE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/* Returns when at most `pending` of this thread's newest groups are still under way. */
template <int pending> CAIRN_INLINE void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

/* ---- mbarrier: 8 bytes of shared memory; a phase ends when its arrivals and its bytes are in ----
 * They are no other memory until the block ends: a multiprocessor keeps them in a cache, and writes them back
 * over what was stored there.
 * One thread initialises, then fence_mbarrier_init and a block_sync (or cluster barrier). Waiting
 * takes the parity of the phase waited for: 0 for the first, then 1, 0, ... */

CAIRN_INLINE void mbarrier_init(shared_addr barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier.at), "r"(arrivals)
                 : "memory");
}
CAIRN_INLINE void fence_mbarrier_init() {
#if CAIRN_ARCH >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
CAIRN_INLINE void mbarrier_arrive(shared_addr barrier) {
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared::cta.b64 state, [%0]; }"
                 ::"r"(barrier.at) : "memory");
}
/* May wait a little; true when the phase of that parity has ended. */
CAIRN_INLINE bool mbarrier_try_wait(shared_addr barrier, uint32_t parity) {
    uint32_t done;
    asm volatile("{ .reg .pred ended;"
#if CAIRN_ARCH >= 900
                 " mbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2;"
#else
                 " mbarrier.test_wait.parity.shared::cta.b64 ended, [%1], %2;"
#endif
                 " selp.u32 %0, 1, 0, ended; }"
                 : "=r"(done) : "r"(barrier.at), "r"(parity) : "memory");
    return done != 0;
}
CAIRN_INLINE void mbarrier_wait(shared_addr barrier, uint32_t parity) {
    while (!mbarrier_try_wait(barrier, parity)) {
    }
}

/* ---- clusters ---- */

#if CAIRN_ARCH >= 900

CAIRN_INLINE int cluster_rank() {
    int v;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(v));
    return v;
}
CAIRN_INLINE int cluster_size() {
    int v;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(v));
    return v;
}

/* All threads of the cluster. Plain arrive releases and wait acquires what was written, at the cost
 * of a device-wide fence; the relaxed arrive orders nothing (enough before the first remote access
 * of mbarriers, after fence_mbarrier_init, or when only liveness matters). */
CAIRN_INLINE void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
CAIRN_INLINE void cluster_arrive_relaxed() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
CAIRN_INLINE void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
CAIRN_INLINE void cluster_sync() {
    cluster_arrive();
    cluster_wait();
}

/* The same place in the block of that rank; only for the remote_* functions. */
CAIRN_INLINE shared_addr remote(shared_addr here, int rank) {
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here.at), "r"(rank));
    return shared_addr(there);
}

template <class T> CAIRN_INLINE T remote_load(shared_addr from) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16, "remote_load: size");
    if constexpr (sizeof(T) == 16) {
        u32x4 v;
        asm volatile("ld.shared::cluster.v4.u32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(from.at) : "memory");
        return bit_cast<T>(v);
    } else if constexpr (sizeof(T) == 8) {
        u32x2 v;
        asm volatile("ld.shared::cluster.v2.u32 {%0,%1}, [%2];"
                     : "=r"(v.x), "=r"(v.y) : "r"(from.at) : "memory");
        return bit_cast<T>(v);
    } else {
        uint32_t v;
        asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(v) : "r"(from.at) : "memory");
        return bit_cast<T>(v);
    }
}

template <class T> CAIRN_INLINE void remote_store(shared_addr to, T v) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16, "remote_store: size");
    if constexpr (sizeof(T) == 16) {
        u32x4 u = bit_cast<u32x4>(v);
        asm volatile("st.shared::cluster.v4.u32 [%0], {%1,%2,%3,%4};"
                     ::"r"(to.at), "r"(u.x), "r"(u.y), "r"(u.z), "r"(u.w) : "memory");
    } else if constexpr (sizeof(T) == 8) {
        u32x2 u = bit_cast<u32x2>(v);
        asm volatile("st.shared::cluster.v2.u32 [%0], {%1,%2};"
                     ::"r"(to.at), "r"(u.x), "r"(u.y) : "memory");
    } else {
        asm volatile("st.shared::cluster.u32 [%0], %1;"
                     ::"r"(to.at), "r"(bit_cast<uint32_t>(v)) : "memory");
    }
}

CAIRN_INLINE uint32_t remote_atomic_add(shared_addr to, uint32_t v) {
    uint32_t old;
    asm volatile("atom.relaxed.cluster.shared::cluster.add.u32 %0, [%1], %2;"
                 : "=r"(old) : "r"(to.at), "r"(v) : "memory");
    return old;
}
CAIRN_INLINE uint32_t remote_atomic_max(shared_addr to, uint32_t v) {
    uint32_t old;
    asm volatile("atom.relaxed.cluster.shared::cluster.max.u32 %0, [%1], %2;"
                 : "=r"(old) : "r"(to.at), "r"(v) : "memory");
    return old;
}

/* Stores into another block and completes sizeof(T) transaction bytes on a barrier of that same
 * block: both addresses come from remote() with one rank. */
template <class T> CAIRN_INLINE void remote_store_async(shared_addr to, T v, shared_addr barrier) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16, "remote_store_async: size");
    if constexpr (sizeof(T) == 16) {
        u32x4 u = bit_cast<u32x4>(v);
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.u32"
                     " [%0], {%1,%2,%3,%4}, [%5];"
                     ::"r"(to.at), "r"(u.x), "r"(u.y), "r"(u.z), "r"(u.w), "r"(barrier.at)
                     : "memory");
    } else if constexpr (sizeof(T) == 8) {
        u32x2 u = bit_cast<u32x2>(v);
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.u32"
                     " [%0], {%1,%2}, [%3];"
                     ::"r"(to.at), "r"(u.x), "r"(u.y), "r"(barrier.at) : "memory");
    } else {
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];"
                     ::"r"(to.at), "r"(bit_cast<uint32_t>(v)), "r"(barrier.at) : "memory");
    }
}

/* ---- mbarriers of copies and of clusters ---- */

/* Arrives once, by itself, when all copies that this thread began are there: one of the barrier's count. */
CAIRN_INLINE void copy_async_arrive(shared_addr barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier.at) : "memory");
}
/* Arrives once and lets the current phase wait for that many more bytes. */
CAIRN_INLINE void mbarrier_arrive_expect(shared_addr barrier, uint32_t bytes) {
    asm volatile("{ .reg .b64 state; mbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1; }"
                 ::"r"(barrier.at), "r"(bytes) : "memory");
}
CAIRN_INLINE void mbarrier_expect(shared_addr barrier, uint32_t bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;"
                 ::"r"(barrier.at), "r"(bytes) : "memory");
}
/* Arrives on a barrier of another block, made by remote(). */
CAIRN_INLINE void mbarrier_arrive_remote(shared_addr barrier) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];"
                 ::"r"(barrier.at) : "memory");
}
/* Also acquires what other blocks of the cluster wrote before they arrived. */
CAIRN_INLINE void mbarrier_wait_cluster(shared_addr barrier, uint32_t parity) {
    uint32_t done;
    do {
        asm volatile("{ .reg .pred ended;"
                     " mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 ended, [%1], %2;"
                     " selp.u32 %0, 1, 0, ended; }"
                     : "=r"(done) : "r"(barrier.at), "r"(parity) : "memory");
    } while (!done);
}

/* ---- bulk copies: one thread, a multiple of 16 bytes, both ends 16-byte aligned ---- */

/* Global to shared; completes `bytes` on the barrier. */
CAIRN_INLINE void copy_bulk(shared_addr to, const void *from, uint32_t bytes, shared_addr barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1], %2, [%3];"
                 ::"r"(to.at), "l"(from), "r"(bytes), "r"(barrier.at) : "memory");
}
CAIRN_INLINE void copy_bulk_once(shared_addr to, const void *from, uint32_t bytes,
                                 shared_addr barrier) {
    asm volatile("{ .reg .b64 once; createpolicy.fractional.L2::evict_first.b64 once, 1.0;"
                 " cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
                 " [%0], [%1], %2, [%3], once; }"
                 ::"r"(to.at), "l"(from), "r"(bytes), "r"(barrier.at) : "memory");
}
/* This block's shared memory to another block's, never its own (compute-sanitizer calls that a
 * fault); both addresses of that block come from remote(). */
CAIRN_INLINE void copy_bulk_remote(shared_addr to, const void *from, uint32_t bytes,
                                   shared_addr barrier) {
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
                 " [%0], [%1], %2, [%3];"
                 ::"r"(to.at), "r"(shared_addr(from).at), "r"(bytes), "r"(barrier.at) : "memory");
}
/* Orders earlier plain accesses of shared memory, of this thread or that it knows of by a barrier, before its
 * later bulk copies and tensor-core products. */
CAIRN_INLINE void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
CAIRN_INLINE void prefetch_l2_bulk(const void *from, uint32_t bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

#else /* below sm_90 a cluster is one block */

CAIRN_INLINE int cluster_rank() { return 0; }
CAIRN_INLINE int cluster_size() { return 1; }
CAIRN_INLINE void cluster_sync() { block_sync(); }

/* Named in what is compiled and never run there. */
CAIRN_INLINE void cluster_arrive_relaxed() {}
CAIRN_INLINE void cluster_wait() {}
CAIRN_INLINE shared_addr remote(shared_addr here, int) { return here; }
template <class T> CAIRN_INLINE void remote_store_async(shared_addr, T, shared_addr) {}
CAIRN_INLINE void mbarrier_arrive_expect(shared_addr, uint32_t) {}
CAIRN_INLINE void mbarrier_wait_cluster(shared_addr, uint32_t) {}

#endif

#endif
