/* First what a test uses, then what the emulated wrappers (simt_device.h) need of the scheduler
 * (simt.cpp). */
#ifndef CAIRN_SIMT_CORE_H
#define CAIRN_SIMT_CORE_H

#ifdef SIMT_KERNEL /* the C library's alone: all of <cmath> takes longer to read than a kernel */
#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS
#endif
#include <math.h>
#include <stdint.h>
#include <string.h>

#ifndef SIMT_KERNEL /* a kernel by itself, compiled often: without the tests' half */
#include <stdio.h>
#include <stdlib.h>

#include <string>
#include <vector>
#endif

namespace simt {

struct Grid {
    uint32_t x, y, z;
    Grid(uint32_t x_blocks, uint32_t y_blocks = 1, uint32_t z_blocks = 1)
        : x(x_blocks), y(y_blocks), z(z_blocks) {}
};

struct Shape {
    Grid grid;                 /* blocks */
    uint32_t cluster = 1;      /* blocks of a cluster, along x */
    uint32_t threads = 32;     /* of a block */
    uint32_t shared_bytes = 0; /* dynamic, of a block */
    int dependent = 0;         /* 1: every block has to call grid_dependency_wait; 2: and the
                                * launch before this one is the kernel it depends on */
    uint32_t resident = 0;     /* clusters that run at once; 0: the seed chooses, ~0u: all */
    bool ordered = false;      /* blocks of a smaller z begin first, as on a GPU; else in any order */
};

#ifndef SIMT_KERNEL
/* Runs the grid to its end. A fault of the kernel (deadlock, divergence, misaligned or foreign
 * address, ...) is printed and ends the program; try_launch returns its text, "" if none. */
template <class P> void launch(const Shape &shape, void (*kernel)(P), const P &params);
template <class P> std::string try_launch(const Shape &shape, void (*kernel)(P), const P &params);

/* The order in which threads and blocks run. Fresh on each run and printed, unless the environment
 * variable CAIRN_SEED says it; set it again before a launch to compare orders. */
void seed(uint64_t value);
uint64_t seed();

/* Random numbers from the printed seed, for inputs. */
uint32_t random_u32();
float random_uniform(); /* [0, 1) */
float random_normal();
#endif

/* ---- for simt_device.h ---- */

/* A place in the kernel's source: the default argument of every wrapper that may wait or fail. */
struct Site {
    const char *file;
    int line;
    static constexpr Site here(const char *f = __builtin_FILE(), int l = __builtin_LINE()) {
        return {f, l};
    }
    bool operator==(const Site &o) const { return file == o.file && line == o.line; }
};
#define SIMT_SITE simt::Site site = simt::Site::here()

struct Identity {
    int thread, block_threads;
    int block[3], grid[3];
    int rank, cluster_size;
    unsigned char *shared;
    uint32_t shared_bytes;
};
extern const Identity *self; /* of the running thread */

[[noreturn]] void fail(Site site, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A warp-wide operation. Each lane brings pointers to its operands; when all lanes of the mask are
 * there, the last one runs `finish`, which writes every lane's result. */
struct Lane {
    const void *in;
    void *out;
    uint32_t a, b;
};
typedef void (*Finish)(Lane *lanes, uint32_t mask);
struct WarpOperation {
    const char *name;
    Finish finish;
    bool aligned; /* all lanes at one place in the source */
};
void warp(const WarpOperation &operation, uint32_t mask, Lane lane, Site site);

extern const WarpOperation operation_sync, operation_shuffle, operation_shuffle_xor,
    operation_shuffle_up, operation_shuffle_down, operation_ballot, operation_match,
    operation_redux_add, operation_redux_max_u, operation_redux_max_s, operation_redux_min_u,
    operation_redux_min_s, operation_redux_or, operation_redux_and, operation_load_matrix,
    operation_load_matrix_transposed, operation_transpose_matrix, operation_mma_f16, operation_mma_bf16, operation_mma_tf32,
    operation_mma_e4m3, operation_mma_s8, operation_wgmma_f16, operation_wgmma_bf16,
    operation_wgmma_e4m3;

/* Of a matrix in shared memory: where, how it lies (device/mma.cuh), and whether its rows are k. */
struct WarpgroupMatrix {
    uint32_t at, along, across;
    bool swizzled, turned;
};
/* What a lane brings to a wgmma: its part of A, or where all of A lies; B; the form of both. */
struct WarpgroupOperands {
    const uint32_t *a;
    WarpgroupMatrix shared_a, b;
    int columns, row; /* the warp's first */
    bool adds;
};

/* A barrier of `threads` threads; 0 is the block's own. Returns how many voted. */
int barrier(int id, int threads, bool wait, bool vote, Site site);

/* Memory, as a wrapper reads or writes it; aligned to its size. */
enum class Access { plain, constant, relaxed, acquire, release };
void read(void *to, const void *from, uint32_t bytes, Access access, Site site);
void write(void *to, const void *from, uint32_t bytes, Access access, Site site);
void fence();

/* Lets others run: a poll that found nothing says so, progress is any visible effect. */
void poll(const char *what, Site site);
void interleave();
void progress();

/* Shared memory. An address is an offset; remote() puts rank + 1 into the upper byte. */
uint32_t shared_offset(const void *p, Site site);
unsigned char *shared_at(uint32_t address, uint32_t bytes, uint32_t alignment, Site site);
uint32_t shared_remote(uint32_t address, int rank, Site site);

void copy_async(uint32_t to, const void *from, uint32_t bytes, bool valid, Site site);
void copy_async_commit();
void copy_async_wait(int pending);

void cluster_arrive(bool release, Site site);
void cluster_wait(Site site);

void copy_async_arrive(uint32_t barrier, Site site);
void mbarrier_init(uint32_t barrier, int arrivals, Site site);
void mbarrier_arrive(uint32_t barrier, uint32_t expect_bytes, int arrivals, Site site);
bool mbarrier_test(uint32_t barrier, uint32_t parity, Site site);
void copy_bulk(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier, Site site);
void store_async(uint32_t to, const void *value, uint32_t bytes, uint32_t barrier, Site site);

void dependency_wait();

float f16_to_f32(uint16_t bits);
uint16_t f32_to_f16(double x);
uint16_t f32_to_bf16(double x);
float e4m3_to_f32(uint8_t bits);
uint8_t f32_to_e4m3(double x);

typedef void (*Invoke)(const void *kernel, const void *params);
template <class P> void invoke(const void *kernel, const void *params) {
    reinterpret_cast<void (*)(P)>(const_cast<void *>(kernel))(*static_cast<const P *>(params));
}

/* What CAIRN_KERNEL notes of a kernel, before main or when its library is loaded. */
struct Entry {
    const void *kernel;
    const char *name;
    int threads; /* launch bound */
    uint32_t params_bytes;
    Invoke invoke;
};
struct Bound {
    Entry entry;
    Bound(const void *kernel, const char *name, int threads, size_t params_bytes, Invoke invoke);
    ~Bound();
};

#ifndef SIMT_KERNEL
std::vector<Entry> all_entries();

std::string run(const Shape &shape, const void *kernel, const void *params);
void forget(const void *p, size_t bytes); /* memory that begins a new life */
void stop(const std::string &fault);

template <class P> std::string try_launch(const Shape &shape, void (*kernel)(P), const P &params) {
    return run(shape, reinterpret_cast<const void *>(kernel), &params);
}
template <class P> void launch(const Shape &shape, void (*kernel)(P), const P &params) {
    std::string fault = try_launch(shape, kernel, params);
    if (!fault.empty()) stop(fault);
}
#endif

} // namespace simt

#endif
