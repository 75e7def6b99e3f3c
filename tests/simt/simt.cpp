/* The scheduler of the emulation: every thread of a block is a fibre that runs until it waits.
 * The order is random (simt.h, seed), so that a result which depends on it shows. */
#include "simt_core.h"

#include <stdarg.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <vector>

#include "fibre.h"

namespace simt {

/* ---- state ---- */

struct Copy {
    unsigned char *to;
    const void *from;
    uint32_t bytes, group;
    bool valid;
};

struct Block;

struct Thread {
    Identity id;
    Fibre fibre;
    Block *block;
    bool waiting, ended;
    const char *what; /* it waits for, or does */
    Site site;
    const WarpOperation *operation; /* while it waits in one */
    uint32_t mask;
    Lane lane;
    std::vector<Copy> copies; /* cp.async under way, oldest first */
    uint32_t groups;          /* committed so far */
    int votes;                /* of the block barrier it left */
    bool cluster_arrived;
    uint32_t cluster_phase; /* of its last arrival */
};

struct Barrier {
    int threads, arrived, votes;
    bool block_wide;
    Site site;
    std::vector<Thread *> waiting;
};

struct Cluster {
    std::vector<std::unique_ptr<Block>> blocks;
    uint32_t phase, arrived, live; /* of its barrier; threads not ended */
    std::vector<Thread *> waiting;
};

struct Block {
    Cluster *cluster;
    int rank;
    unsigned char *shared;
    std::vector<std::unique_ptr<Thread>> threads;
    Barrier barriers[16];
    uint32_t live;
    bool waited_dependency;
    uint32_t asynchronous; /* copies into it under way */
};

/* A bulk copy or asynchronous store under way: lands at some time after it was issued. */
struct Transfer {
    Block *block;
    unsigned char *to;
    const void *from; /* null: the bytes are in value */
    unsigned char value[16];
    uint32_t bytes, barrier;
    Site site;
};

struct Launch {
    Shape shape;
    const void *kernel;
    const void *params;
    Invoke invoke;
    std::string name, fault;
    std::vector<Thread *> ready;
    std::vector<Transfer> transfers;
    uint64_t idle_polls;
};

const Identity *self;
static Thread *current;
static Launch *running;
static FibreContext scheduler;

/* ---- random numbers: splitmix64 ---- */

static uint64_t seed_value, random_state, input_state;
static bool seeded;

static uint64_t mix(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

void seed(uint64_t value) {
    seeded = true;
    seed_value = random_state = value;
    input_state = ~value;
}

uint64_t seed() {
    if (!seeded) {
        const char *text = getenv("CAIRN_SIMT_SEED");
        auto now = std::chrono::steady_clock::now().time_since_epoch().count();
        seed(text ? strtoull(text, nullptr, 0) : ((uint64_t)now ^ (uint64_t)getpid() << 40) >> 8);
        printf("# CAIRN_SIMT_SEED=%llu\n", (unsigned long long)seed_value);
    }
    return seed_value;
}

static uint32_t below(uint64_t n) { return (uint32_t)((mix(&random_state) >> 32) * n >> 32); }

uint32_t random_u32() {
    seed();
    return (uint32_t)(mix(&input_state) >> 32);
}
float random_uniform() { return (float)(random_u32() >> 8) * 0x1p-24f; }
float random_normal() {
    double u = (random_u32() + 1.0) * 0x1p-32, v = random_u32() * 0x1p-32;
    return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

/* ---- faults ---- */

/* "file:line"; good for the next few calls. Not a string: fail leaves frames without unwinding. */
static const char *place(Site site) {
    static char texts[8][96];
    static unsigned next;
    char *text = texts[next++ % 8];
    const char *name = strrchr(site.file, '/');
    snprintf(text, sizeof texts[0], "%s:%d", name ? name + 1 : site.file, site.line);
    return text;
}

static std::string who(const Thread *t) {
    char text[96];
    snprintf(text, sizeof text, "block (%d,%d,%d) thread %d", t->id.block[0], t->id.block[1],
             t->id.block[2], t->id.thread);
    return text;
}

/* Apart from fail, whose frame is never left: nothing here may leak. */
static void note_fault(Site site, const char *text) {
    if (running) {
        running->fault = "kernel " + running->name + ", " + who(current) + ", " + place(site) + ": ";
        running->fault += text;
        return;
    }
    fprintf(stderr, "simt: outside of a kernel: %s: %s\n", place(site), text);
    abort();
}

[[noreturn]] void fail(Site site, const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    note_fault(site, text);
    for (;;) fibre_leave(&current->fibre, &scheduler, false);
}

void stop(const std::string &fault) {
    fflush(stdout);
    printf("Bail out! %s\n", fault.c_str());
    fflush(stdout);
    _exit(1);
}

/* ---- waiting and waking ---- */

static void leave() { fibre_leave(&current->fibre, &scheduler, false); }

static void wait_here(const char *what, Site site) {
    current->waiting = true;
    current->what = what;
    current->site = site;
    leave();
}

static void wake(Thread *t) {
    t->waiting = false;
    running->ready.push_back(t);
    running->idle_polls = 0;
}

void progress() { running->idle_polls = 0; }

void poll(const char *what, Site site) {
    current->what = what;
    current->site = site;
    running->idle_polls++;
    running->ready.push_back(current);
    leave();
}

void interleave() {
    if (below(4)) return;
    running->ready.push_back(current);
    leave();
}

/* ---- warp operations ---- */

static Thread *lane_thread(int lane) {
    size_t index = (size_t)(current->id.thread & ~31) + (size_t)lane;
    return index < current->block->threads.size() ? current->block->threads[index].get() : nullptr;
}

static void check_partner(const Thread *t, int lane, const WarpOperation &op, uint32_t mask,
                          Site site) {
    if (!t) fail(site, "%s: lane %d of the mask does not exist", op.name, lane);
    if (t->ended) fail(site, "%s: lane %d of the mask has ended", op.name, lane);
    if (!t->operation || !(t->mask >> (current->id.thread & 31) & 1)) return;
    if (t->operation == &op && t->mask == mask && (!op.aligned || t->site == site)) return;
    fail(site, "divergence: %s with mask %08x here, while lane %d waits in %s with mask %08x at %s",
         op.name, mask, lane, t->operation->name, t->mask, place(t->site));
}

void warp(const WarpOperation &op, uint32_t mask, Lane lane, Site site) {
    int me = current->id.thread & 31;
    if (!(mask >> me & 1)) fail(site, "%s: lane %d is not in its mask %08x", op.name, me, mask);
    current->lane = lane;
    uint32_t here = 1u << me;
    for (int i = 0; i < 32; i++) {
        if (i == me || !(mask >> i & 1)) continue;
        Thread *t = lane_thread(i);
        check_partner(t, i, op, mask, site);
        if (t->operation == &op && t->mask == mask) here |= 1u << i;
    }
    if (here != mask) {
        current->operation = &op;
        current->mask = mask;
        wait_here(op.name, site);
        return;
    }
    Lane lanes[32] = {};
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) lanes[i] = lane_thread(i)->lane;
    if (op.finish) op.finish(lanes, mask);
    for (int i = 0; i < 32; i++) {
        if (i == me || !(mask >> i & 1)) continue;
        lane_thread(i)->operation = nullptr;
        wake(lane_thread(i));
    }
}

/* ---- barriers ---- */

static void check_barrier(const Barrier &b, int id, int threads, Site site) {
    if (id < 0 || id > 15) fail(site, "barrier %d: ids are 0 to 15", id);
    if (b.arrived && b.threads != threads)
        fail(site, "barrier %d: %d threads here, %d at %s", id, threads, b.threads,
             place(b.site));
    if (id && (threads % 32 || threads <= 0))
        fail(site, "barrier %d: %d threads are not whole warps", id, threads);
    if (!id && b.arrived && !(b.site == site))
        fail(site, "divergence: block_sync here, while %d threads wait at %s", b.arrived,
             place(b.site));
}

int barrier(int id, int threads, bool wait, bool vote, Site site) {
    if (id < 0 || id > 15) fail(site, "barrier %d: ids are 0 to 15", id);
    Barrier &b = current->block->barriers[id];
    check_barrier(b, id, threads, site);
    b.threads = threads;
    b.site = site;
    b.votes += vote;
    if (++b.arrived < threads) {
        if (!wait) return 0;
        b.waiting.push_back(current);
        wait_here(id ? "named_sync" : "block_sync", site);
        return current->votes;
    }
    int votes = b.votes;
    std::vector<Thread *> waiting;
    waiting.swap(b.waiting);
    b.arrived = b.votes = 0;
    for (Thread *t : waiting) {
        t->votes = votes;
        wake(t);
    }
    return votes;
}

void cluster_arrive(Site site) {
    Cluster *c = current->block->cluster;
    if (current->cluster_arrived) fail(site, "cluster_arrive twice without cluster_wait");
    current->cluster_arrived = true;
    current->cluster_phase = c->phase;
    if (++c->arrived < running->shape.cluster * running->shape.threads) return;
    c->arrived = 0;
    c->phase++;
    std::vector<Thread *> waiting;
    waiting.swap(c->waiting);
    for (Thread *t : waiting) wake(t);
    progress();
}

void cluster_wait(Site site) {
    Cluster *c = current->block->cluster;
    if (!current->cluster_arrived) fail(site, "cluster_wait without cluster_arrive");
    current->cluster_arrived = false;
    if (c->phase != current->cluster_phase) return;
    c->waiting.push_back(current);
    wait_here("cluster_wait", site);
}

/* ---- shared memory ---- */

void check_aligned(const void *p, uint32_t bytes, Site site) {
    if ((uintptr_t)p % bytes) fail(site, "%p is not aligned to %u bytes", p, bytes);
}

uint32_t shared_offset(const void *p, Site site) {
    const unsigned char *at = static_cast<const unsigned char *>(p);
    const Identity &id = current->id;
    if (at < id.shared || at > id.shared + id.shared_bytes)
        fail(site, "%p is no address in this block's shared memory", p);
    return (uint32_t)(at - id.shared);
}

uint32_t shared_remote(uint32_t address, int rank, Site site) {
    if (rank < 0 || rank >= current->id.cluster_size)
        fail(site, "rank %d in a cluster of %d blocks", rank, current->id.cluster_size);
    return (address & 0xffffffu) | ((uint32_t)rank + 1) << 24;
}

static Block *shared_owner(uint32_t address, Site site) {
    Block *here = current->block;
    uint32_t rank = address >> 24;
    if (!rank) return here;
    if (rank > here->cluster->blocks.size()) fail(site, "address %08x lies in no block", address);
    Block *there = here->cluster->blocks[rank - 1].get();
    if (there != here && here->cluster->phase == 0)
        fail(site, "block %u of the cluster may not have started: no cluster barrier yet", rank - 1);
    if (there->live == 0) fail(site, "block %u of the cluster has ended", rank - 1);
    return there;
}

static unsigned char *shared_in(Block *block, uint32_t address, uint32_t bytes, uint32_t alignment,
                                Site site) {
    uint32_t offset = address & 0xffffffu;
    if (offset % alignment)
        fail(site, "shared offset %u is not aligned to %u bytes", offset, alignment);
    if (offset + bytes > running->shape.shared_bytes)
        fail(site, "%u bytes at shared offset %u, of %u", bytes, offset,
             running->shape.shared_bytes);
    return block->shared + offset;
}

unsigned char *shared_at(uint32_t address, uint32_t bytes, uint32_t alignment, Site site) {
    return shared_in(shared_owner(address, site), address, bytes, alignment, site);
}

/* ---- cp.async: poisons its destination at once, lands when it is waited for ---- */

static void touch(const void *p, uint32_t bytes) {
    volatile unsigned char sink = 0;
    for (uint32_t i = 0; i < bytes; i++) sink = static_cast<const unsigned char *>(p)[i];
    (void)sink;
}

void copy_async(uint32_t to, const void *from, uint32_t bytes, bool valid, Site site) {
    if (to >> 24) fail(site, "copy_async into another block");
    unsigned char *at = shared_at(to, bytes, bytes, site);
    if (valid) {
        check_aligned(from, bytes, site);
        touch(from, bytes);
    }
    memset(at, 0xff, bytes);
    current->copies.push_back({at, from, bytes, current->groups, valid});
}

void copy_async_commit() { current->groups++; }

void copy_async_wait(int pending) {
    std::vector<Copy> &copies = current->copies;
    size_t landed = 0;
    for (; landed < copies.size(); landed++) {
        const Copy &c = copies[landed];
        if (c.group + (uint32_t)pending >= current->groups) break;
        if (c.valid) memcpy(c.to, c.from, c.bytes);
        else memset(c.to, 0, c.bytes);
    }
    copies.erase(copies.begin(), copies.begin() + (long)landed);
}

/* ---- mbarrier: its 8 bytes hold phase, pending and expected arrivals, and bytes due ---- */

struct Phase {
    uint64_t parity : 1, pending : 20, expected : 20;
    int64_t bytes : 23;
};

static Phase read_phase(unsigned char *at, Site site) {
    Phase p;
    memcpy(&p, at, sizeof p);
    if (p.expected == 0 || p.expected == 0xfffff) fail(site, "mbarrier is not initialised");
    return p;
}

static void write_phase(unsigned char *at, Phase p) {
    if (p.pending == 0 && p.bytes == 0) {
        p.parity ^= 1;
        p.pending = p.expected;
    }
    memcpy(at, &p, sizeof p);
    progress();
}

void mbarrier_init(uint32_t barrier, int arrivals, Site site) {
    if (arrivals <= 0 || arrivals >= 0xfffff) fail(site, "mbarrier_init with %d arrivals", arrivals);
    Phase p = {};
    p.pending = p.expected = (uint64_t)arrivals & 0xfffff;
    memcpy(shared_at(barrier, 8, 8, site), &p, sizeof p);
}

static void mbarrier_change(unsigned char *at, int64_t bytes, int arrivals, Site site) {
    Phase p = read_phase(at, site);
    if (arrivals > (int)p.pending) fail(site, "mbarrier: more arrivals than it was made for");
    if (p.bytes + bytes > (1 << 20) - 1) fail(site, "mbarrier: more than 2^20 - 1 bytes due");
    p.bytes += bytes;
    p.pending = (p.pending - (uint64_t)arrivals) & 0xfffff;
    write_phase(at, p);
}

void mbarrier_arrive(uint32_t barrier, uint32_t expect_bytes, int arrivals, Site site) {
    mbarrier_change(shared_at(barrier, 8, 8, site), expect_bytes, arrivals, site);
}

bool mbarrier_test(uint32_t barrier, uint32_t parity, Site site) {
    if (parity > 1) fail(site, "mbarrier: parity %u", parity);
    return read_phase(shared_at(barrier, 8, 8, site), site).parity != parity;
}

static void issue(Transfer transfer, uint32_t to, Site site) {
    Block *block = shared_owner(to, site);
    if (shared_owner(transfer.barrier, site) != block)
        fail(site, "the mbarrier lies in another block than the destination");
    transfer.block = block;
    transfer.site = site;
    memset(transfer.to, 0xff, transfer.bytes);
    block->asynchronous++;
    running->transfers.push_back(transfer);
}

void copy_bulk(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier, Site site) {
    if (bytes % 16) fail(site, "copy_bulk of %u bytes: not a multiple of 16", bytes);
    check_aligned(from, 16, site);
    touch(from, bytes);
    Transfer t = {};
    t.to = shared_at(to, bytes, 16, site);
    t.from = from;
    t.bytes = bytes;
    t.barrier = barrier;
    issue(t, to, site);
}

void store_async(uint32_t to, const void *value, uint32_t bytes, uint32_t barrier, Site site) {
    Transfer t = {};
    t.to = shared_at(to, bytes, bytes, site);
    memcpy(t.value, value, bytes);
    t.bytes = bytes;
    t.barrier = barrier;
    issue(t, to, site);
}

/* Lands one transfer, any: they are not ordered. Runs in the scheduler, for the issuing thread. */
static void land_one() {
    std::vector<Transfer> &all = running->transfers;
    size_t i = below(all.size());
    Transfer t = all[i];
    all[i] = all.back();
    all.pop_back();
    memcpy(t.to, t.from ? t.from : t.value, t.bytes);
    t.block->asynchronous--;
    unsigned char *at = t.block->shared + (t.barrier & 0xffffffu);
    Phase p;
    memcpy(&p, at, sizeof p);
    p.bytes -= t.bytes;
    write_phase(at, p);
}

void dependency_wait() { current->block->waited_dependency = true; }

/* ---- running ---- */

struct BoundEntry {
    const char *name;
    int threads;
};
static std::map<const void *, BoundEntry> &bounds() {
    static std::map<const void *, BoundEntry> all;
    return all;
}
Bound::Bound(const void *kernel, const char *name, int threads) {
    bounds()[kernel] = {name, threads};
}

static void end_thread() {
    Block *block = current->block;
    current->ended = true;
    running->idle_polls = 0;
    if (--block->live) return;
    Site site = current->site.file ? current->site : Site{"kernel", 0};
    if (running->shape.dependent && !block->waited_dependency)
        fail(site, "the block ended without grid_dependency_wait");
    if (block->asynchronous) fail(site, "the block ended while copies into it are under way");
}

static void thread_main(void *argument) {
    current = static_cast<Thread *>(argument);
    running->invoke(running->kernel, running->params);
    end_thread();
    fibre_leave(&current->fibre, &scheduler, true);
}

static std::unique_ptr<Block> new_block(Cluster *cluster, uint32_t x, uint32_t y, uint32_t z,
                                        int rank) {
    const Shape &s = running->shape;
    auto block = std::make_unique<Block>();
    block->cluster = cluster;
    block->rank = rank;
    block->live = s.threads;
    void *memory = nullptr;
    if (posix_memalign(&memory, 128, s.shared_bytes ? s.shared_bytes : 1)) abort();
    block->shared = static_cast<unsigned char *>(memory);
    memset(block->shared, 0xff, s.shared_bytes);
    for (uint32_t i = 0; i < s.threads; i++) {
        auto t = std::make_unique<Thread>();
        t->id = {(int)i, (int)s.threads, {(int)x, (int)y, (int)z},
                 {(int)s.grid.x, (int)s.grid.y, (int)s.grid.z},
                 rank, (int)s.cluster, block->shared, s.shared_bytes};
        t->block = block.get();
        fibre_create(&t->fibre, thread_main, t.get());
        running->ready.push_back(t.get());
        block->threads.push_back(std::move(t));
    }
    return block;
}

static std::unique_ptr<Cluster> new_cluster(uint64_t index) {
    const Shape &s = running->shape;
    auto cluster = std::make_unique<Cluster>();
    uint64_t per_row = s.grid.x / s.cluster;
    uint32_t y = (uint32_t)(index / per_row % s.grid.y), z = (uint32_t)(index / per_row / s.grid.y);
    for (uint32_t r = 0; r < s.cluster; r++) {
        uint32_t x = (uint32_t)(index % per_row) * s.cluster + r;
        cluster->blocks.push_back(new_block(cluster.get(), x, y, z, (int)r));
    }
    return cluster;
}

static bool cluster_ended(const Cluster &c) {
    for (const auto &b : c.blocks)
        if (b->live) return false;
    return true;
}

static void free_cluster(Cluster &c, bool clean) {
    for (const auto &b : c.blocks) {
        for (const auto &t : b->threads) fibre_destroy(&t->fibre, clean);
        free(b->shared);
    }
}

/* Which threads wait where: the lines of a deadlock report. */
static std::string waiting_report(const std::vector<std::unique_ptr<Cluster>> &clusters) {
    std::map<std::string, std::pair<int, std::string>> places;
    for (const auto &c : clusters)
        for (const auto &b : c->blocks)
            for (const auto &t : b->threads) {
                std::string at = t->ended ? "ended" : std::string(t->what ? t->what : "start") +
                                 (t->site.file ? std::string(" at ") + place(t->site) : "");
                auto &entry = places[at];
                if (entry.first++ == 0) entry.second = who(t.get());
            }
    std::string text;
    for (const auto &p : places)
        text += "\n#   " + std::to_string(p.second.first) + " threads: " + p.first + " (first: " +
                p.second.second + ")";
    return text;
}

static void run_thread(size_t index) {
    Thread *t = running->ready[index];
    running->ready[index] = running->ready.back();
    running->ready.pop_back();
    current = t;
    self = &t->id;
    fibre_enter(&t->fibre, &scheduler);
}

/* Runs what is ready until a cluster has ended; false on a fault. */
static bool run_some(std::vector<std::unique_ptr<Cluster>> &clusters) {
    const uint64_t patience = 2000 + 50 * (uint64_t)running->ready.size();
    for (;;) {
        if (!running->fault.empty()) return false;
        if (!running->transfers.empty() && (running->ready.empty() || !below(8))) land_one();
        if (running->ready.empty()) {
            if (!running->transfers.empty()) continue;
            running->fault = "kernel " + running->name + ": deadlock" + waiting_report(clusters);
            return false;
        }
        if (running->idle_polls > patience * 4 && running->transfers.empty()) {
            running->fault = "kernel " + running->name + ": no progress" + waiting_report(clusters);
            return false;
        }
        run_thread(below(running->ready.size()));
        if (!current->ended || current->block->live) continue;
        if (running->fault.empty() && cluster_ended(*current->block->cluster)) return true;
    }
}

static void run_grid(Launch &l) {
    const Shape &s = l.shape;
    uint64_t total = (uint64_t)s.grid.x / s.cluster * s.grid.y * s.grid.z;
    std::vector<uint64_t> order(total);
    for (uint64_t i = 0; i < total; i++) order[i] = i;
    for (uint64_t i = total; i > 1; i--) std::swap(order[i - 1], order[below(i)]);
    uint64_t resident = s.resident ? s.resident : 1 + below(3), next = 0;
    std::vector<std::unique_ptr<Cluster>> clusters;
    while (next < total || !clusters.empty()) {
        while (next < total && clusters.size() < resident)
            clusters.push_back(new_cluster(order[next++]));
        bool clean = run_some(clusters);
        for (size_t i = clusters.size(); i-- > 0;) {
            if (clean && !cluster_ended(*clusters[i])) continue;
            free_cluster(*clusters[i], clean);
            clusters.erase(clusters.begin() + (long)i);
        }
        if (!clean) return;
    }
}

static std::string check_shape(const Launch &l) {
    const Shape &s = l.shape;
    auto bound = bounds().find(l.kernel);
    if (bound == bounds().end()) return "not made by CAIRN_KERNEL";
    if (s.threads < 1 || (int)s.threads > bound->second.threads)
        return std::to_string(s.threads) + " threads, made for " +
               std::to_string(bound->second.threads);
    if (s.cluster < 1 || s.cluster > 16 || s.grid.x % s.cluster)
        return "clusters of " + std::to_string(s.cluster) + " do not divide the grid";
    if (s.shared_bytes > 227 * 1024) return "more than 227 KiB of shared memory";
    if (s.grid.x == 0 || s.grid.y == 0 || s.grid.z == 0) return "an empty grid";
    if (s.grid.y > 65535 || s.grid.z > 65535) return "more than 65535 blocks along y or z";
    return "";
}

std::string run(const Shape &shape, const void *kernel, Invoke invoke, const void *params) {
    seed();
    Launch l = {shape, kernel, params, invoke, "?", "", {}, {}, 0};
    auto bound = bounds().find(kernel);
    if (bound != bounds().end()) l.name = bound->second.name;
    std::string bad = check_shape(l);
    if (!bad.empty()) return "kernel " + l.name + ": " + bad;
    running = &l;
    run_grid(l);
    running = nullptr;
    current = nullptr;
    self = nullptr;
    return l.fault;
}

} // namespace simt
