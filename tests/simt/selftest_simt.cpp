/* The emulation tests itself: selftest.cu against plain loops, and faults it has to find. With
 * CAIRN_SIMT_DUMP=FILE every launch, its input and output go into that file, for selftest_gpu.c. */
#include "simt.h"

#include <vector>

#include "selftest.cu"

struct Memory {
    std::vector<uint32_t> input, output;
    selftest_params params() { return {input.data(), output.data()}; }
    Memory() : input(4096), output(8192, 0xcdcdcdcdu) {
        for (uint32_t &v : input) v = simt::random_u32();
    }
};

/* Launches, and writes down [name 32][shape 6][input 4096][output before 8192, after 8192]. */
static void launch_noted(const simt::Shape &shape, void (*kernel)(selftest_params),
                         const char *name, Memory &m) {
    std::vector<uint32_t> before = m.output;
    simt::launch(shape, kernel, m.params());
    const char *path = getenv("CAIRN_SIMT_DUMP");
    FILE *file = path ? fopen(path, "ab") : nullptr;
    if (!file) return;
    char text[32] = {0};
    snprintf(text, sizeof text, "%s", name);
    uint32_t head[6] = {shape.grid.x, shape.grid.y, shape.grid.z, shape.cluster, shape.threads,
                        shape.shared_bytes};
    fwrite(text, 1, sizeof text, file);
    fwrite(head, 4, 6, file);
    fwrite(m.input.data(), 4, m.input.size(), file);
    fwrite(before.data(), 4, before.size(), file);
    fwrite(m.output.data(), 4, m.output.size(), file);
    fclose(file);
}
#define LAUNCH(kernel, m, ...) launch_noted({__VA_ARGS__}, kernel, #kernel, m)

static uint32_t read(const Memory &m, int row, int lane) {
    return m.output[(size_t)(32 * row + lane)];
}

static void test_warp() {
    Memory m;
    const std::vector<uint32_t> &v = m.input;
    LAUNCH(selftest_warp, m, 1, 1, 32, 0);
    bool shuffles = true, votes = true, sums = true;
    uint32_t ones = 0, total = 0, largest = 0, scan = 0;
    for (int i = 0; i < 32; i++) {
        size_t n = (size_t)i;
        ones |= (v[n] & 1) << i;
        total += v[n];
        if (v[n] > largest) largest = v[n];
    }
    for (int i = 0; i < 32; i++) {
        size_t n = (size_t)i;
        scan += v[n];
        shuffles &= read(m, 0, i) == v[5] && read(m, 2, i) == v[n ^ 9];
        shuffles &= read(m, 1, i) == v[(n & ~7u) + ((n + 3) & 7)];
        shuffles &= read(m, 3, i) == v[i >= 7 ? n - 7 : n];
        shuffles &= read(m, 4, i) == v[(i & 15) >= 3 ? n - 3 : n];
        shuffles &= read(m, 5, i) == v[i + 6 < 32 ? n + 6 : n];
        shuffles &= read(m, 6, i) == v[(i & 7) + 5 < 8 ? n + 5 : n];
        uint32_t same = 0;
        for (size_t j = 0; j < 32; j++) same |= ((v[j] & 3) == (v[n] & 3) ? 1u : 0u) << j;
        votes &= read(m, 8, i) == ones && read(m, 10, i) == same && read(m, 11, i) == same;
        sums &= read(m, 12, i) == total && read(m, 13, i) == total && read(m, 14, i) == largest;
        sums &= read(m, 24, i) == scan;
        if (i & 1) shuffles &= read(m, 25, i) == v[n ^ 2];
    }
    tap_ok(shuffles, "shuffles, with groups, wide and masked");
    tap_ok(votes, "ballot and match");
    tap_ok(sums, "reductions and scan");
}

/* Element (row, column) of operand A or B, as a double, out of the fragments of all lanes. */
static uint32_t fragment(const uint32_t f[32][6], bool b, int row, int column, int per) {
    int k = b ? row : column, g = b ? column : row & 7, t = k / per % 4;
    int reg = b ? 4 + k / (4 * per) : row / 8 + 2 * (k / (4 * per));
    return f[4 * g + t][reg] >> (32 / per) * (k % per) & (per == 1 ? ~0u : (1u << 32 / per) - 1);
}

template <class F>
static bool product_right(const Memory &m, const uint32_t f[32][6], int row0, int per, F value) {
    bool right = true;
    for (int r = 0; r < 16; r++)
        for (int c = 0; c < 8; c++) {
            int lane = r % 8 * 4 + c / 2, j = r / 8 * 2 + c % 2;
            double sum = (double)(m.input[(size_t)(32 * (row0 + j + 6) + lane)] & 255);
            for (int k = 0; k < 8 * per; k++)
                sum += value(fragment(f, false, r, k, per)) * value(fragment(f, true, k, c, per));
            right &= read(m, row0 + j, lane) == as_u32((float)sum);
        }
    return right;
}

static void test_mma() {
    Memory m;
    LAUNCH(selftest_mma, m, 1, 1, 32, 0);
    uint32_t half[32][6], bhalf[32][6], wide[32][6], byte[32][6];
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < 6; i++) {
            uint32_t v = m.input[(size_t)(32 * i + l)];
            half[l][i] = small_f16x2(v);
            bhalf[l][i] = small_bf16x2(v);
            wide[l][i] = as_u32((float)(v & 31) - 16.0f);
            byte[l][i] = v & 0xb7b7b7b7u;
        }
    auto f16v = [](uint32_t v) { return (double)f16_to_f32(f16{(uint16_t)v}); };
    auto bf16v = [](uint32_t v) { return (double)as_f32(v << 16); };
    tap_ok(product_right(m, half, 0, 2, f16v), "mma f16 against a double loop");
    tap_ok(product_right(m, bhalf, 4, 2, bf16v), "mma bf16");
    tap_ok(product_right(m, wide, 8, 1, [](uint32_t v) { return (double)as_f32(v); }), "mma tf32");
    tap_ok(product_right(m, byte, 12, 4, [](uint32_t v) {
        double x = ldexp(v >> 3 & 15 ? 8 + (v & 7) : 2 * (v & 7), (int)(v >> 3 & 15) - 10);
        return v >> 3 & 15 ? (v & 0x80 ? -x : x) : (v & 0x80 ? -1 : 1) * ldexp(v & 7, -9);
    }), "mma e4m3");
    bool right = true;
    for (int r = 0; r < 16; r++)
        for (int c = 0; c < 8; c++) {
            int lane = r % 8 * 4 + c / 2, j = r / 8 * 2 + c % 2;
            uint32_t sum = m.input[(size_t)(32 * (j + 22) + lane)];
            for (int k = 0; k < 32; k++)
                sum += (uint32_t)((int8_t)fragment(byte, false, r, k, 4) *
                                  (int8_t)fragment(byte, true, k, c, 4));
            right &= read(m, 16 + j, lane) == sum;
        }
    tap_ok(right, "mma s8");
}

static void test_ldmatrix() {
    Memory m;
    LAUNCH(selftest_ldmatrix, m, 1, 1, 32, 512);
    const uint16_t *element = reinterpret_cast<const uint16_t *>(m.input.data());
    const int first[6] = {0, 1, 3, 7, 8, 10}, tiles[6] = {1, 2, 4, 1, 2, 4};
    bool right = true;
    for (int form = 0; form < 6; form++)
        for (int tile = 0; tile < tiles[form]; tile++)
            for (int l = 0; l < 32; l++)
                for (int e = 0; e < 2; e++) {
                    int r = form < 3 ? l / 4 : l % 4 * 2 + e, c = form < 3 ? l % 4 * 2 + e : l / 4;
                    int row = (8 * tile + r) * 7 % 32;
                    uint32_t got = read(m, first[form] + tile, l) >> 16 * e & 0xffff;
                    right &= got == element[8 * row + c];
                }
    for (int l = 0; l < 32; l++) right &= read(m, 14, l) == read(m, 7, l);
    tap_ok(right, "ldmatrix, plain and transposed; movmatrix");
}

static void test_block() {
    Memory m;
    LAUNCH(selftest_block, m, 1, 1, 256, 3076 * 4);
    const std::vector<uint32_t> &v = m.input, &o = m.output;
    bool copies = true, barriers = true;
    uint32_t sum = 0, most = 0;
    for (size_t t = 0; t < 256; t++) {
        uint32_t first = t / 4 % 5 ? v[t] : 0;
        sum += first;
        if (first > most) most = first;
        size_t at = 1023 - t, b = 255 - t;
        copies &= o[t] == (at / 4 % 5 ? v[at] : 0);
        copies &= o[256 + t] == v[1024 + (t * 3 + 100) % 256];
        copies &= o[512 + t] == (b % 3 ? v[1536 + b] : 0);
        copies &= o[768 + t] == v[2048 + t * 5 % 1024];
        barriers &= o[1024 + t] == 86 && o[1280 + t] == 1 && o[1792 + t] == 3;
        barriers &= o[1536 + t] == (t < 128 ? (127 - t) * 3 : (t - 128) * 3 + 1);
    }
    tap_ok(copies, "cp.async of 16, 8 and 4 bytes in groups");
    tap_ok(barriers, "block votes and named barriers");
    tap_ok(o[2048] == sum && o[2049] == most && o[2050] == ~0u, "shared atomics");
}

static void test_scalar() {
    Memory m;
    float no_sine, no_cosine;
    LAUNCH(selftest_scalar, m, 1, 1, 128, 0);
    bool same = true, exact = true;
    for (size_t t = 0; t < 128; t++) {
        same &= m.output[128 * 24 + t] == m.output[128 * 25 + t];
        uint32_t hard = m.output[128 * 26 + t], soft = m.output[128 * 27 + t];
        same &= hard == soft;
        exact &= m.output[t] % 100 == (uint32_t)__builtin_popcount(m.input[t]);
    }
    tap_ok(exact, "integer wrappers");
    tap_ok(same, "e4m3 by instruction and by arithmetic agree");
    double worst = 0;
    for (int i = 0; i < 200000; i++) {
        float x = ldexpf(simt::random_normal(), (int)(simt::random_u32() % 40) - 12), sine, cosine;
        sin_cos(x, &sine, &cosine);
        worst = fmax(worst, fabs((double)sine - sin((double)x)));
        worst = fmax(worst, fabs((double)cosine - cos((double)x)));
    }
    sin_cos(INFINITY, &no_sine, &no_cosine);
    tap_ok(worst < 0x1p-22 && no_sine != no_sine, "sine and cosine, worst error %.2g", worst);
    bool all = true;
    for (uint32_t v = 0; v < 256; v++) {
        double x = (double)e4m3_to_f32(e4m3{(uint8_t)v});
        all &= (v & 0x7f) == 0x7f || f32_to_e4m3_soft((float)x) == v;
        uint32_t soft = e4m3x2_to_f16x2_soft((uint16_t)v);
        all &= (uint16_t)soft == (uint16_t)e4m3x2_to_f16x2((uint16_t)v);
    }
    for (uint32_t v = 0; v < 65536; v++) {
        float x = simt::f16_to_f32((uint16_t)v);
        all &= x != x || simt::f32_to_f16((double)x) == v;
        all &= f32_to_e4m3_soft(x) == simt::f32_to_e4m3((double)x);
    }
    tap_ok(all, "every f16 and e4m3 value converts there and back");
}

static void test_grids() {
    Memory m;
    for (int i = 0; i < 3; i++) {
        std::fill(m.output.begin(), m.output.begin() + 64, 0);
        LAUNCH(selftest_last_block, m, 40, 1, 64, 16, 1);
    }
    uint32_t sum = 0;
    for (size_t i = 0; i < 40 * 64; i++) sum += m.input[i];
    tap_ok(m.output[40] == 0 && m.output[41] == sum, "the last block reduces");
    LAUNCH(selftest_bulk, m, 1, 1, 64, 2080);
    bool right = true;
    for (size_t t = 0; t < 64; t++) {
        uint32_t h = 0;
        for (size_t i = 0; i < 16; i++)
            for (size_t j = 0; j < 4; j++) h = h * 31 + m.input[256 * i + (t * 5 + j * 67) % 256];
        right &= m.output[t] == h;
    }
    tap_ok(right, "bulk copies through a ring of mbarriers");
    LAUNCH(selftest_arrive, m, 1, 1, 64, 2080);
    for (size_t i = 0; i < 128; i++) {
        const size_t t = i % 64, at = (t * 67 + 5) % 256;
        right &= m.output[i] == (at / 4 % 7 != i / 64 ? m.input[i / 64 * 256 + at] : 0);
    }
    tap_ok(right, "copies that arrive by themselves");
}

static void test_cluster(size_t size) {
    Memory m;
    const std::vector<uint32_t> &v = m.input, &o = m.output;
    LAUNCH(selftest_cluster, m, (uint32_t)(16), (uint32_t)size, 64, 4096);
    bool right = true;
    for (size_t first = 0; first < 16; first += size) {
        uint32_t sum = 0, most = 0;
        for (size_t i = first * 64; i < (first + size) * 64; i++) {
            sum += v[i];
            if (v[i] > most) most = v[i];
        }
        for (size_t r = 0; r < size; r++)
            for (size_t t = 0; t < 64; t++) {
                size_t from = (r + 1) % size, next = (from + 1) % size;
                size_t u = 63 - t, slot = t % (2 * size);
                uint32_t message = v[(first + from) * 64 + u] ^ (uint32_t)from * 31 ^
                                   (uint32_t)u * 1023 ^ v[(first + next) * 64 + u];
                uint32_t stored = v[(first + slot / 2) * 64 + slot % 2] ^ 0x5555u;
                size_t at = (first + r) * 64 + t;
                right &= o[at] == message && o[1024 + at] == (r == 0 ? sum + stored : 0);
                right &= o[2048 + at] == (r == size - 1 ? most : 0);
            }
    }
    tap_ok(right, "clusters of %zu: remote loads, stores, atomics, asynchronous stores", size);
}

/* ---- faults: each kernel is wrong, and has to be told so ---- */

struct fault_params {
    int kind;
    uint32_t *memory;
};

CAIRN_KERNEL(faulty, 128, 1, fault_params) {
    uint32_t *shared = (uint32_t *)shared_base();
    int t = thread_id();
    switch (p.kind) {
    case 0: if (t != 5) block_sync(); break;
    case 1:
        if (t < 64) block_sync();
        else block_sync();
        break;
    case 2: if (t % 32 < 31) shuffle_xor(t, 1); break;
    case 3: if (t & 1) warp_ballot(true); else warp_sync(); break;
    case 4: named_sync(1, 160); break;
    case 5: load_constant((const u32x4 *)(p.memory + 1)); break;
    case 6: copy_async16(p.memory, p.memory); break;
    case 7: while (load_acquire(p.memory) != 77) {} break;
    case 8: mbarrier_wait(shared, 0); break;
    case 9: if (t == 0) mbarrier_init(shared, 1);
            block_sync();
            mbarrier_arrive_expect(shared, 16);
            break;
    case 10: remote_load<uint32_t>(remote(shared, 1)); break;
    case 11: if (cluster_rank()) cluster_arrive();
             cluster_arrive();
             break;
    case 12: cluster_sync(); if (cluster_rank()) return;
             for (int i = 0; i < 5000; i++) {
                 load_volatile(p.memory);
                 remote_load<int>(remote(shared, 1));
             }
             break;
    case 13: load_matrix_x4(shared + 8, shared_addr(shared) + 8); break;
    case 14: named_sync(3, t < 64 ? 128 : 64); break;
    case 15: if (t == 0) mbarrier_init(shared, 128);
             block_sync();
             mbarrier_arrive(shared);
             mbarrier_wait(shared, 0);
             block_sync();
             if (t == 0) shared[1] = 7;
             break;
    }
}

static void test_faults() {
    static const struct { int kind; uint32_t cluster; const char *text; } faults[] = {
        {0, 1, "deadlock"}, {1, 1, "divergence"}, {2, 1, "ended"},
        {3, 1, "divergence"}, {4, 1, "deadlock"}, {5, 1, "not aligned"},
        {6, 1, "no address in this block"}, {7, 1, "no progress"}, {8, 1, "not initialised"},
        {9, 1, "more arrivals"}, {10, 2, "may not have started"}, {11, 2, "cluster_arrive twice"},
        {12, 2, "has ended"}, {13, 1, "not aligned"}, {14, 1, "threads here"},
        {15, 1, "written over"},
    };
    uint32_t memory[8] = {0};
    for (const auto &f : faults) {
        simt::Shape shape = {2, f.cluster, 128, 1024};
        std::string said = simt::try_launch(shape, faulty, fault_params{f.kind, memory});
        bool found = said.find(f.text) != std::string::npos;
        if (!tap_ok(found, "fault %d is found: %s", f.kind, f.text)) tap_note("%s", said.c_str());
    }
    std::string said = simt::try_launch({2, 1, 128, 0, 1}, faulty, fault_params{99, memory});
    tap_ok(said.find("grid_dependency_wait") != std::string::npos, "a missing dependency wait");
    said = simt::try_launch({2, 1, 256, 0}, faulty, fault_params{99, memory});
    tap_ok(said.find("made for 128") != std::string::npos, "a block larger than the launch bound");
}

/* Wrong whatever the order: only the race detector (run.sh --race) sees these. */
CAIRN_KERNEL(racy, 64, 1, fault_params) {
    uint32_t *shared = (uint32_t *)shared_base();
    int t = thread_id();
    uint32_t kept = 0;
    switch (p.kind) {
    case 0: /* a missing barrier */
        shared[t] = 1;
        kept = shared[63 - t];
        break;
    case 1: /* lanes of one warp, ordered by nothing: a shuffle is not enough */
        shared[t] = 1;
        kept = shuffle_xor(shared[t], 1);
        kept += shared[t ^ 1];
        break;
    case 2: /* the tile is overwritten while others may still read it */
        shared[t] = 1;
        block_sync();
        kept = shared[63 - t];
        shared[t] = 2;
        break;
    case 3: shared[t / 2] = 5; break;
    case 4: /* blocks, without release and acquire */
        if (t == 0) {
            p.memory[1 + block_id()] = 7;
            if (atomic_add(p.memory, 1u) == 1) kept = p.memory[1] + p.memory[2];
        }
        break;
    case 5: /* written and then read as constant */
        p.memory[block_id() * 64 + t] = 1;
        kept = load_constant(&p.memory[block_id() * 64 + t]);
        break;
    case 6:
        p.memory[block_id() * 64 + t] = 1;
        grid_dependency_wait();
        break;
    case 7: /* halves of a word by two threads: no race, but their reader needs a barrier */
        ((uint16_t *)shared)[t] = 1;
        if (t == 63) kept = ((uint16_t *)shared)[62];
        break;
    case 8: /* ldmatrix, of rows that other lanes wrote */
        for (int i = 0; i < 4; i++) shared[32 * i + t % 32 + t / 32 * 128] = 0;
        load_matrix_x1(&kept, shared + 4 * ((t + 1) % 32) + t / 32 * 128);
        break;
    case 10: /* right: fence, then relaxed counter; and the reverse */
        if (t == 0) {
            p.memory[1 + block_id()] = 7;
            fence_gpu();
            if (atomic_add(p.memory, 1u) == 1) {
                fence_gpu();
                kept = p.memory[1] + p.memory[2];
            }
        }
        break;
    case 11: /* right: halves, bytes, barriers of part of the block */
        ((uint8_t *)shared)[t] = 1;
        named_sync(1 + warp_id(), 32);
        kept = ((uint8_t *)shared)[t ^ 5];
        block_sync();
        ((uint16_t *)shared)[63 - t] = 2;
        warp_sync();
        kept += ((uint16_t *)shared)[(63 - t) ^ 9];
        break;
    }
    if (kept == 12345) p.memory[200] = kept;
}

static void test_races() {
#ifdef SIMT_RACE
    std::vector<uint32_t> memory(256);
    for (int kind = 0; kind <= 11; kind++) {
        std::fill(memory.begin(), memory.end(), 0);
        simt::Shape shape = {2, 1, 64, 1024, kind == 6};
        std::string said = simt::try_launch(shape, racy, fault_params{kind, memory.data()});
        bool race = said.find("race on") != std::string::npos;
        if (kind == 9) continue;
        if (!tap_ok(race == (kind < 9), "race %d is %s", kind, kind < 9 ? "found" : "none"))
            tap_note("%s", said.c_str());
    }
    std::string said = simt::try_launch({1, 1, 64, 1024}, racy, fault_params{0, memory.data()});
    tap_ok(said.find("selftest_simt.cpp:") != std::string::npos, "a race names its lines");
    tap_note("for example: %s", said.c_str());
#endif
}

/* Reads a tile before it waits for the copy; right only by luck on a GPU. */
CAIRN_KERNEL(impatient, 32, 1, selftest_params) {
    uint32_t *tile = (uint32_t *)shared_base();
    copy_async4(tile + lane_id(), p.input + lane_id());
    copy_async_commit();
    warp_sync();
    p.output[lane_id()] = tile[lane_id()];
    copy_async_wait<0>();
    p.output[32 + lane_id()] = tile[lane_id()];
}

int main() {
    test_warp();
    test_mma();
    test_ldmatrix();
    test_block();
    test_scalar();
    test_grids();
    for (size_t size = 2; size <= 16; size *= 2) test_cluster(size);
    test_faults();
    test_races();
    Memory m;
    simt::launch({1, 1, 32, 128}, impatient, m.params());
    tap_ok(m.output[3] == 0xffffffffu && m.output[35] == m.input[3], "a missing copy wait shows");
    return tap_done();
}
