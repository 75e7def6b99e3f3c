/* Kernels that exercise every wrapper: run in the emulation and, bit for bit the same, on a GPU. */
#include "device/common.cuh"
#include "abi/base.h"

struct selftest_params {
    const uint32_t *input; /* [4096] random bits */
    uint32_t *output;      /* [grid, 4096] */
};

/* One warp: shuffles, votes, reductions. */
CAIRN_KERNEL(selftest_warp, 32, 1, selftest_params) {
    uint32_t v = p.input[lane_id()], small = v & 3;
    uint32_t *out = p.output + lane_id();
    int row = 0;
    out[32 * row++] = shuffle(v, 5);
    out[32 * row++] = shuffle(v, lane_id() + 3, 8);
    out[32 * row++] = shuffle_xor(v, 9);
    out[32 * row++] = shuffle_up(v, 7);
    out[32 * row++] = shuffle_up(v, 3, 16);
    out[32 * row++] = shuffle_down(v, 6);
    out[32 * row++] = shuffle_down(v, 5, 8);
    uint64_t wide = (uint64_t)v << 32 | (v ^ 0x12345678u);
    out[32 * row++] = (uint32_t)(shuffle_xor(wide, 17) >> 20);
    out[32 * row++] = warp_ballot(v & 1);
    out[32 * row++] = warp_any(small == 3) + 2 * warp_all(small < 4);
    out[32 * row++] = match_any(small);
    out[32 * row++] = match_any((uint64_t)small << 40);
    out[32 * row++] = warp_sum(v);
    out[32 * row++] = (uint32_t)warp_sum((int32_t)v);
    out[32 * row++] = warp_max(v);
    out[32 * row++] = (uint32_t)warp_max((int32_t)v);
    out[32 * row++] = warp_min(v);
    out[32 * row++] = (uint32_t)warp_min((int32_t)v);
    out[32 * row++] = warp_or(v & 0xff00ff);
    out[32 * row++] = warp_and(v | 0xff00ff);
    out[32 * row++] = as_u32(warp_sum((float)small));
    out[32 * row++] = as_u32(warp_max((float)(int32_t)v));
    out[32 * row++] = as_u32(warp_min((float)(int32_t)v, 8));
    out[32 * row++] = (uint32_t)(warp_max(wide) >> 13);
    out[32 * row++] = warp_scan(v);
    if (lane_id() & 1) out[32 * row] = shuffle_xor(v, 2, WARP, 0xaaaaaaaau);
    else out[32 * row] = warp_ballot(small == 1, 0x55555555u);
    row++;
    warp_sync();
}

/* Integers and small floats, elementwise; the e4m3 paths too. */
CAIRN_KERNEL(selftest_scalar, 128, 1, selftest_params) {
    const uint32_t *in = p.input + thread_id();
    uint32_t a = in[0], b = in[128], c = in[256];
    uint32_t *out = p.output + thread_id();
    int row = 0;
    out[128 * row++] = (uint32_t)popcount(a) + 100 * (uint32_t)popcount((uint64_t)a << 16 | b);
    uint32_t zeros = (uint32_t)leading_zeros(a >> (b & 31));
    out[128 * row++] = zeros + 100 * (uint32_t)find_first_set(a << (b & 31));
    out[128 * row++] = (uint32_t)leading_zeros((uint64_t)a << (c & 31) >> (b & 31));
    out[128 * row++] = reverse_bits(a);
    out[128 * row++] = multiply_high(a, b);
    out[128 * row++] = byte_permute(a, b, c & 0xffff);
    out[128 * row++] = funnel_left(a, b, c);
    out[128 * row++] = funnel_right(a, b, c);
    out[128 * row++] = (uint32_t)dot4((int32_t)a, (int32_t)b, (int32_t)c);
    out[128 * row++] = dot4(a, b, c);
    out[128 * row++] = logic3<0x6a>(a, b, c);
    uint32_t h = a & 0xbfffbfffu, i = b & 0xbfffbfffu, j = c & 0xbfffbfffu; /* no infinities, NaN */
    out[128 * row++] = as_u32(f16_to_f32(f16{(uint16_t)a}));
    out[128 * row++] = as_u32(f16_to_f32(f16{(uint16_t)h}));
    out[128 * row++] = add_f16x2(h, i);
    out[128 * row++] = sub_f16x2(h, i);
    out[128 * row++] = mul_f16x2(h & 0x9fff9fffu, i);
    out[128 * row++] = fma_f16x2(h & 0x9fff9fffu, i & 0x9fff9fffu, j);
    out[128 * row++] = max_f16x2(h, i) ^ min_f16x2(i, j);
    uint32_t k = a & 0xbf7fbf7fu, l = b & 0xbf7fbf7fu, m = c & 0xbf7fbf7fu;
    out[128 * row++] = fma_bf16x2(k, l, m);
    out[128 * row++] = max_bf16x2(k, l) ^ min_bf16x2(l, m);
    float x = as_f32((a & 0x8fffffffu) | 0x30000000u), y = as_f32(b & 0xbfffffffu);
    float z = as_f32((c & 0x8fffffffu) + 0x38000000u);
    out[128 * row++] = pack_f16x2(x, z);
    out[128 * row++] = pack_f16x2_within(as_f32(a), as_f32(b));
    out[128 * row++] = pack_bf16x2(x, y);
    out[128 * row++] = (uint32_t)f32_to_f16(z).bits | (uint32_t)f32_to_bf16(y).bits << 16;
    out[128 * row++] = pack_e4m3x2(x * 64, z);
    out[128 * row++] = (uint32_t)f32_to_e4m3_soft(x * 64) | (uint32_t)f32_to_e4m3_soft(z) << 8;
    out[128 * row++] = e4m3x2_to_f16x2((uint16_t)a);
    out[128 * row++] = e4m3x2_to_f16x2_soft((uint16_t)a);
    float sine, cosine, angle = (float)(int32_t)a * (1.0f / (float)(1u << (b & 31)));
    sin_cos(angle, &sine, &cosine);
    out[128 * row++] = as_u32(sine);
    out[128 * row++] = as_u32(cosine);
    out[128 * row++] = as_u32(fma_f32(x, y, z));
    out[128 * row++] = as_u32(mul_f32(x, y)) ^ as_u32(add_f32(x, z));
}

/* One warp: tensor cores on small integers, whose sums are exact in any order. */
CAIRN_INLINE uint32_t small_f16x2(uint32_t v) {
    return pack_f16x2((float)(v & 31) - 16.0f, (float)(v >> 8 & 31) * 0.25f - 4.0f);
}
CAIRN_INLINE uint32_t small_bf16x2(uint32_t v) {
    return pack_bf16x2((float)(v & 31) - 16.0f, (float)(v >> 8 & 31) * 0.25f - 4.0f);
}
CAIRN_KERNEL(selftest_mma, 32, 1, selftest_params) {
    const uint32_t *in = p.input + lane_id();
    uint32_t *out = p.output + lane_id();
    uint32_t half[6], bhalf[6], wide[6], byte[6];
    for (int i = 0; i < 6; i++) {
        half[i] = small_f16x2(in[32 * i]);
        bhalf[i] = small_bf16x2(in[32 * i]);
        wide[i] = as_u32((float)(in[32 * i] & 31) - 16.0f);
        byte[i] = in[32 * i] & 0xb7b7b7b7u; /* e4m3 up to 15/8 */
    }
    float d[4][4];
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) d[i][j] = (float)(in[32 * (4 * i + j + 6)] & 255);
    int32_t s[4];
    for (int j = 0; j < 4; j++) s[j] = (int32_t)in[32 * (j + 22)];
    mma_f16(d[0], half, half + 4);
    mma_bf16(d[1], bhalf, bhalf + 4);
    mma_tf32(d[2], wide, wide + 4);
#if CAIRN_ARCH >= 890
    mma_e4m3(d[3], byte, byte + 4);
#endif
    mma_s8(s, byte, byte + 4);
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) out[32 * (4 * i + j)] = as_u32(d[i][j]);
    for (int j = 0; j < 4; j++) out[32 * (16 + j)] = (uint32_t)s[j];
}

/* One warp: ldmatrix in all forms, rows in a scrambled order; movmatrix of the first tile. */
CAIRN_KERNEL(selftest_ldmatrix, 32, 1, selftest_params) {
    uint32_t *shared = (uint32_t *)shared_base(); /* [32 rows][4 words] */
    for (int i = 0; i < 4; i++) shared[32 * i + lane_id()] = p.input[32 * i + lane_id()];
    warp_sync();
    shared_addr row = shared_addr(shared) + (uint32_t)(lane_id() * 7 % 32) * 16;
    uint32_t r[15];
    load_matrix_x1(r, row);
    load_matrix_x2(r + 1, row);
    load_matrix_x4(r + 3, row);
    load_matrix_transposed_x1(r + 7, row);
    load_matrix_transposed_x2(r + 8, row);
    load_matrix_transposed_x4(r + 10, row);
    r[14] = transpose_matrix(r[0]);
    for (int i = 0; i < 15; i++) p.output[32 * i + lane_id()] = r[i];
}

/* 256 threads: cp.async in three groups, block votes, named barriers, shared atomics. */
CAIRN_KERNEL(selftest_block, 256, 1, selftest_params) {
    uint32_t *tile = (uint32_t *)shared_base(); /* [3][1024] */
    uint32_t *count = tile + 3072;              /* [4] */
    int t = thread_id();
    copy_async16(tile + 4 * t, p.input + 4 * t, t % 5 != 0);
    copy_async_commit();
    copy_async8(tile + 1024 + 2 * t, p.input + 1024 + 2 * t);
    copy_async4(tile + 1024 + 512 + t, p.input + 1536 + t, t % 3 != 0);
    copy_async_commit();
    copy_async16_once(tile + 2048 + 4 * t, p.input + 2048 + 4 * t);
    copy_async_commit();
    if (t < 4) count[t] = 0;
    uint32_t *out = p.output + t;
    copy_async_wait<2>();
    block_sync();
    out[0] = tile[1023 - t];
    atomic_add(&count[0], tile[t]);
    atomic_max(&count[1], tile[t]);
    copy_async_wait<1>();
    block_sync();
    out[256] = tile[1024 + (t * 3 + 100) % 256];
    out[512] = tile[1536 + 255 - t];
    copy_async_wait<0>();
    block_sync();
    out[768] = tile[2048 + t * 5 % 1024];
    out[1024] = (uint32_t)block_sync_count(t % 3 == 0);
    out[1280] = (uint32_t)block_sync_or(t == 77) + 2 * (uint32_t)block_sync_and(t == 77);
    if (warp_id() < 4) {
        if (t < 128) tile[t] = (uint32_t)t * 3;
        named_sync(1, 128);
        out[1536] = tile[127 - t];
        named_arrive(2, 256);
    } else {
        atomic_or(&count[2], 1u << (t % 32));
        named_sync(2, 256);
        out[1536] = tile[t - 128] + 1;
    }
    block_sync();
    if (t < 3) p.output[2048 + t] = count[t];
    uint32_t won = atomic_cas(&count[3], 0u, (uint32_t)t + 1) == 0;
    out[1792] = (uint32_t)block_sync_count(won) + (atomic_exchange(&count[3], 9u) ? 2 : 0);
}

/* The last block to finish sums what all blocks wrote; output[grid] counts them. */
CAIRN_KERNEL(selftest_last_block, 64, 1, selftest_params) {
    uint32_t *shared = (uint32_t *)shared_base();
    uint32_t *partial = p.output, *counter = p.output + grid_blocks();
    grid_dependency_wait();
    uint32_t sum = warp_sum(load_constant(p.input + block_id() * 64 + thread_id()));
    if (lane_id() == 0) shared[warp_id()] = sum;
    block_sync();
    if (thread_id() == 0) {
        partial[block_id()] = shared[0] + shared[1];
        shared[2] = atomic_add_acq_rel(counter, 1);
    }
    block_sync();
    if (shared[2] != (uint32_t)grid_blocks() - 1) return;
    uint32_t all = 0;
    for (int i = thread_id(); i < grid_blocks(); i += 64) all += load_volatile(&partial[i]);
    sum = warp_sum(all);
    if (lane_id() == 0) atomic_add(counter + 1, sum);
    if (thread_id() == 0) *counter = 0;
}

#if CAIRN_ARCH >= 900
/* Clusters: a reduction to rank 0 by remote loads, stores, atomics and asynchronous stores. */
CAIRN_KERNEL(selftest_cluster, 64, 1, selftest_params) {
    uint32_t *shared = (uint32_t *)shared_base(); /* [64] values, [4] sums, [64] inbox */
    uint64_t *barrier = (uint64_t *)(shared + 256);
    int t = thread_id(), rank = cluster_rank(), size = cluster_size();
    shared[t] = p.input[block_id() * 64 + t];
    if (t < 4) shared[64 + t] = 0;
    if (t == 0) {
        mbarrier_init(barrier, 1);
        fence_mbarrier_init();
    }
    cluster_sync();
    remote_atomic_add(remote(&shared[64], 0), shared[t]);
    remote_atomic_max(remote(&shared[65], size - 1), shared[t]);
    uint32_t neighbour = remote_load<uint32_t>(remote(&shared[t], (rank + 1) % size));
    if (t == 0) mbarrier_arrive_expect(barrier, 64 * 16);
    shared_addr inbox = shared + 512;
    u32x4 message = {shared[t], (uint32_t)rank, (uint32_t)t, neighbour};
    int to = (rank + size - 1) % size;
    remote_store_async(remote(inbox + (uint32_t)t * 16, to), message, remote(barrier, to));
    mbarrier_wait_cluster(barrier, 0);
    uint32_t *got = shared + 512 + 4 * (63 - t);
    if (t < 2) remote_store(remote(&shared[128 + 2 * rank + t], 0), shared[t] ^ 0x5555u);
    cluster_sync();
    uint32_t *out = p.output + block_id() * 64 + t;
    out[0] = got[0] ^ got[1] * 31 ^ got[2] * 1023 ^ got[3];
    out[1024] = rank == 0 ? shared[64] + shared[128 + t % (2 * size)] : 0;
    out[2048] = rank == size - 1 ? shared[65] : 0;
}

/* Bulk copies through a ring of two stages. */
CAIRN_KERNEL(selftest_bulk, 64, 1, selftest_params) {
    uint32_t *stage = (uint32_t *)shared_base(); /* [2][256] */
    uint64_t *full = (uint64_t *)(stage + 512), *empty = full + 2;
    int t = thread_id();
    if (t < 2) {
        mbarrier_init(full + t, 1);
        mbarrier_init(empty + t, 64);
        fence_mbarrier_init();
    }
    block_sync();
    uint32_t sum = 0;
    for (int i = 0; i < 18; i++) {
        uint32_t s = i & 1;
        if (i >= 2) {
            mbarrier_wait(full + s, (uint32_t)(i / 2 - 1) & 1);
            for (int j = 0; j < 4; j++)
                sum = sum * 31 + stage[256 * s + (uint32_t)((t * 5 + j * 67) % 256)];
            mbarrier_arrive(empty + s);
        }
        if (t == 0 && i < 16) {
            if (i >= 2) mbarrier_wait(empty + s, (uint32_t)(i / 2 - 1) & 1);
            mbarrier_arrive_expect(full + s, 1024);
            copy_bulk(stage + 256 * s, p.input + 256 * i, 512, full + s);
            copy_bulk_once(stage + 256 * s + 128, p.input + 256 * i + 128, 512, full + s);
        }
    }
    p.output[t] = sum;
}

/* Copies of many threads that arrive by themselves, in two turns of a barrier. */
CAIRN_KERNEL(selftest_arrive, 64, 1, selftest_params) {
    uint32_t *stage = (uint32_t *)shared_base(); /* [2][256] */
    uint64_t *full = (uint64_t *)(stage + 512);
    int t = thread_id();
    if (t == 0) {
        mbarrier_init(full, 64);
        fence_mbarrier_init();
    }
    block_sync();
    for (int i = 0; i < 2; i++) {
        copy_async16(stage + 256 * i + 4 * t, p.input + 256 * i + 4 * t, t % 7 != i);
        copy_async_arrive(full);
        mbarrier_wait(full, (uint32_t)i);
        p.output[64 * i + t] = stage[256 * i + (t * 67 + 5) % 256];
    }
}
#endif
