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
#include "simt_race.h"

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
    Lane lane; /* of the warp operation that it waits in */
    std::vector<Copy> copies; /* cp.async under way, oldest first */
    uint32_t groups;          /* committed so far */
    int votes;                /* of the block barrier it left */
    bool cluster_arrived;
    uint32_t cluster_phase; /* of its last arrival */
    race::State race;
};

/* A warp operation on its way: some lanes of the mask are there. */
struct Gathering {
    const WarpOperation *operation;
    uint32_t mask, here;
    Site site;
};

struct Warp {
    uint32_t lanes, ended;
    std::vector<Gathering> gatherings;
};

struct Barrier {
    int threads, arrived, votes;
    Site site;
    std::vector<Thread *> waiting;
    race::Meeting meeting;
};

struct Cluster {
    std::vector<std::unique_ptr<Block>> blocks;
    uint32_t phase, arrived; /* of its barrier */
    std::vector<Thread *> waiting;
    race::Meeting meeting;
};

struct Block {
    Cluster *cluster;
    int rank;
    unsigned char *shared;
    std::vector<std::unique_ptr<Thread>> threads;
    std::vector<Warp> warps;
    Barrier barriers[16];
    uint32_t live;
    bool waited_dependency;
    uint32_t asynchronous; /* copies into it under way */
    struct Mbarrier { race::Meeting meeting; Site made; unsigned char word[8]; };
    std::map<uint32_t, Mbarrier> mbarriers; /* by offset */
};

/* A bulk copy or asynchronous store under way: lands at some time after it was issued. */
struct Transfer {
    Block *block;
    unsigned char *to;
    const void *from; /* null: the bytes are in value */
    unsigned char value[16];
    uint32_t bytes, barrier;
    race::Known known; /* what the issuer knew */
};

struct Launch {
    Shape shape;
    const void *kernel;
    const void *params;
    Invoke invoke;
    std::string name, fault;
    std::vector<Thread *> ready, polling; /* polling: those that look again and again */
    std::vector<Transfer> transfers;
    uint64_t idle_polls;
};

/* What lies in large frames stays out of those that every step of a thread goes through, so that all
 * stacks keep to a few lines of the processor's cache. */
#define APART __attribute__((noinline))

const Identity *self;
static Thread *current;
static Launch *running;
static FibreContext scheduler;

/* ---- random numbers: splitmix64 ---- */

#ifdef SIMT_LIBRARY
#define SEED_OUTPUT stderr /* standard output belongs to the program around it */
#else
#define SEED_OUTPUT stdout
#endif

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
        const char *text = getenv("CAIRN_SEED");
        auto now = std::chrono::steady_clock::now().time_since_epoch().count();
        seed(text ? strtoull(text, nullptr, 0) : ((uint64_t)now ^ (uint64_t)getpid() << 40) >> 8);
        fprintf(SEED_OUTPUT, "# CAIRN_SEED=%llu\n", (unsigned long long)seed_value);
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
        running->fault = "kernel " + running->name + ", " + who(current) + ": ";
        if (site.file) running->fault += std::string(place(site)) + ": ";
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

static void leave();

/* Ready again at once, at any place in the queue: see take_ready. */
static void yield(std::vector<Thread *> &queue) {
    queue.push_back(current);
    std::swap(queue.back(), queue[below(queue.size())]);
    leave();
}

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
    yield(running->polling);
}

void interleave() {
    if (!below(4)) yield(running->ready);
}

/* ---- warp operations ---- */

static Thread *lane_thread(int lane) {
    return current->block->threads[(size_t)((current->id.thread & ~31) + lane)].get();
}

static Warp &own_warp() { return current->block->warps[(size_t)current->id.thread / 32]; }

static APART size_t new_gathering(Warp &w, const WarpOperation &op, uint32_t mask, Site site) {
    uint32_t missing = mask & ~(w.lanes & ~w.ended);
    if (missing)
        fail(site, "%s: lane %d of the mask has ended or does not exist", op.name,
             __builtin_ctz(missing));
    w.gatherings.push_back({&op, mask, 0, site});
    return w.gatherings.size() - 1;
}

/* The gathering to join, or a new one. */
static size_t find_gathering(Warp &w, const WarpOperation &op, uint32_t mask, uint32_t me,
                             Site site) {
    for (size_t i = 0; i < w.gatherings.size(); i++) {
        const Gathering &g = w.gatherings[i];
        bool same = g.operation == &op && g.mask == mask && (!op.aligned || g.site == site);
        if (same) return i;
        if ((g.mask & me) && (g.here & mask))
            fail(site, "divergence: %s with mask %08x here, while lane %d waits in %s with mask "
                 "%08x at %s", op.name, mask, __builtin_ctz(g.here & mask), g.operation->name,
                 g.mask, place(g.site));
    }
    return new_gathering(w, op, mask, site);
}

/* A lane ends: no one may wait for it. */
static void end_lane(Site site) {
    Warp &w = own_warp();
    uint32_t me = 1u << (current->id.thread & 31);
    w.ended |= me;
    for (const Gathering &g : w.gatherings)
        if (g.mask & me)
            fail(site, "the thread has ended, while lane %d waits for it in %s at %s",
                 __builtin_ctz(g.here), g.operation->name, place(g.site));
}

/* warp_sync orders memory among its lanes; the other warp operations do not. */
static void meet_warp(uint32_t mask) {
    race::Meeting meeting;
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) race::arrive(lane_thread(i)->race, meeting);
    race::complete(meeting);
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) race::leave_at_once(lane_thread(i)->race, meeting);
}

static void use(Thread *t) {
    race::use(&t->race, t->fibre.stack, t->id.shared, t->id.shared_bytes);
}

/* Each lane reads the elements it gets, from rows whose addresses other lanes gave. */
static void note_load_matrix(const Lane *lanes, bool transposed, Site site) {
    for (int row = 0; row < 8 * (int)lanes[0].a; row++) race::will_touch(lanes[row].in, 16);
    for (int i = 0; i < 32; i++) {
        use(lane_thread(i));
        for (int tile = 0; tile < (int)lanes[i].a; tile++) {
            const int r = i / 4, c = 2 * (i % 4);
            auto element = [&](int row, int column) {
                return static_cast<const char *>(lanes[8 * tile + row].in) + 2 * column;
            };
            if (!transposed) race::read(element(r, c), 4, Access::plain, site);
            for (int e = 0; e < 2 && transposed; e++)
                race::read(element(c + e, r), 2, Access::plain, site);
        }
    }
    use(current);
}

static APART void finish_warp(const WarpOperation &op, uint32_t mask, Site site) {
    Lane lanes[32] = {};
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) lanes[i] = lane_thread(i)->lane;
    if (op.finish) op.finish(lanes, mask);
    if (&op == &operation_sync) meet_warp(mask);
    if (&op == &operation_load_matrix || &op == &operation_load_matrix_transposed)
        note_load_matrix(lanes, &op == &operation_load_matrix_transposed, site);
    for (int i = 0; i < 32; i++)
        if ((mask >> i & 1) && lane_thread(i) != current) wake(lane_thread(i));
}

void warp(const WarpOperation &op, uint32_t mask, Lane lane, Site site) {
    Warp &w = own_warp();
    uint32_t me = 1u << (current->id.thread & 31);
    if (!(mask & me)) fail(site, "%s: the lane is not in its mask %08x", op.name, mask);
    current->lane = lane;
    size_t at = find_gathering(w, op, mask, me, site);
    w.gatherings[at].here |= me;
    if (w.gatherings[at].here != mask) {
        wait_here(op.name, site);
        return;
    }
    w.gatherings[at] = w.gatherings.back();
    w.gatherings.pop_back();
    finish_warp(op, mask, site);
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
    race::arrive(current->race, b.meeting);
    if (++b.arrived < threads) {
        if (!wait) return 0;
        b.waiting.push_back(current);
        wait_here(id ? "named_sync" : "block_sync", site);
        return current->votes;
    }
    int votes = b.votes;
    race::complete(b.meeting);
    if (wait) race::leave_at_once(current->race, b.meeting);
    b.arrived = b.votes = 0;
    for (Thread *t : b.waiting) {
        t->votes = votes;
        race::leave_at_once(t->race, b.meeting);
        wake(t);
    }
    b.waiting.clear();
    return votes;
}

void cluster_arrive(bool release, Site site) {
    Cluster *c = current->block->cluster;
    if (current->cluster_arrived) fail(site, "cluster_arrive twice without cluster_wait");
    current->cluster_arrived = true;
    current->cluster_phase = c->phase;
    if (release) race::arrive(current->race, c->meeting);
    if (++c->arrived < running->shape.cluster * running->shape.threads) return;
    c->arrived = 0;
    c->phase++;
    race::complete(c->meeting);
    for (Thread *t : c->waiting) wake(t);
    c->waiting.clear();
    progress();
}

void cluster_wait(Site site) {
    Cluster *c = current->block->cluster;
    if (!current->cluster_arrived) fail(site, "cluster_wait without cluster_arrive");
    current->cluster_arrived = false;
    if (c->phase == current->cluster_phase) {
        c->waiting.push_back(current);
        wait_here("cluster_wait", site);
    }
    race::leave(current->race, c->meeting);
}

/* ---- shared memory ---- */

static void check_aligned(const void *p, uint32_t bytes, Site site) {
    if ((uintptr_t)p % bytes) fail(site, "%p is not aligned to %u bytes", p, bytes);
}

void read(void *to, const void *from, uint32_t bytes, Access access, Site site) {
    check_aligned(from, bytes, site);
    race::read(from, bytes, access, site);
    memcpy(to, from, bytes);
}

void write(void *to, const void *from, uint32_t bytes, Access access, Site site) {
    check_aligned(to, bytes, site);
    race::write(to, bytes, access, site);
    memcpy(to, from, bytes);
}

void fence() { race::fence(current->race); }

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
        fail(site, "block %u of the cluster may not have started: no cluster barrier yet",
             rank - 1);
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

/* Both sides now, so that a bad address is found where the copy is issued. Through a pointer: the copy, which is
 * overwritten at once, is made, and by AddressSanitizer's own function, which looks at all of it. */
static void touch(void *to, const void *from, uint32_t bytes) {
    static void *(*const volatile copy)(void *, const void *, size_t) = memcpy;
    copy(to, from, bytes);
}

void copy_async(uint32_t to, const void *from, uint32_t bytes, bool valid, Site site) {
    if (to >> 24) fail(site, "copy_async into another block");
    unsigned char *at = shared_at(to, bytes, bytes, site);
    race::will_touch(at, bytes);
    if (valid) {
        check_aligned(from, bytes, site);
        touch(at, from, bytes);
        race::read(from, bytes, Access::plain, site);
    }
    race::write(at, bytes, Access::plain, site);
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

static void write_phase(unsigned char *at, Phase p, Block::Mbarrier &m) {
    if (p.pending == 0 && p.bytes == 0) {
        p.parity ^= 1;
        p.pending = p.expected;
        race::complete(m.meeting);
    }
    memcpy(at, &p, sizeof p);
    memcpy(m.word, &p, sizeof p);
    progress();
}

static Block::Mbarrier &mbarrier_of(uint32_t barrier, Site site) {
    return shared_owner(barrier, site)->mbarriers[barrier & 0xffffffu];
}

/* At a block's end. A multiprocessor keeps the words of mbarriers in a cache of its own, and writes them
 * back when it likes: what is stored over them may not last. */
static APART void check_mbarriers(Block *block) {
    for (const auto &m : block->mbarriers)
        if (m.second.made.file && memcmp(block->shared + m.first, m.second.word, 8))
            fail(m.second.made, "the mbarrier's memory was written over by plain stores");
}

void mbarrier_init(uint32_t barrier, int arrivals, Site site) {
    if (arrivals <= 0 || arrivals >= 0xfffff)
        fail(site, "mbarrier_init with %d arrivals", arrivals);
    Phase p = {};
    p.pending = p.expected = (uint64_t)arrivals & 0xfffff;
    write(shared_at(barrier, 8, 8, site), &p, 8, Access::plain, site);
    Block::Mbarrier &m = mbarrier_of(barrier, site);
    m.made = site;
    memcpy(m.word, &p, sizeof p);
}

void mbarrier_arrive(uint32_t barrier, uint32_t expect_bytes, int arrivals, Site site) {
    unsigned char *at = shared_at(barrier, 8, 8, site);
    race::read(at, 8, Access::relaxed, site);
    Phase p = read_phase(at, site);
    if (arrivals > (int)p.pending) fail(site, "mbarrier: more arrivals than it was made for");
    if (p.bytes + expect_bytes > (1 << 20) - 1) fail(site, "mbarrier: over 2^20 - 1 bytes due");
    p.bytes += expect_bytes;
    p.pending = (p.pending - (uint64_t)arrivals) & 0xfffff;
    Block::Mbarrier &m = mbarrier_of(barrier, site);
    race::arrive(current->race, m.meeting);
    write_phase(at, p, m);
}

/* The copies land at once: what reads them waits for the barrier. */
void copy_async_arrive(uint32_t barrier, Site site) {
    copy_async_commit();
    copy_async_wait(0);
    mbarrier_arrive(barrier, 0, 1, site);
}

bool mbarrier_test(uint32_t barrier, uint32_t parity, Site site) {
    if (parity > 1) fail(site, "mbarrier: parity %u", parity);
    unsigned char *at = shared_at(barrier, 8, 8, site);
    race::read(at, 8, Access::relaxed, site);
    if (read_phase(at, site).parity == parity) return false;
    race::leave(current->race, mbarrier_of(barrier, site).meeting);
    return true;
}

static void issue(Transfer transfer, uint32_t to, Site site) {
    Block *block = shared_owner(to, site);
    if (shared_owner(transfer.barrier, site) != block)
        fail(site, "the mbarrier lies in another block than the destination");
    transfer.block = block;
    race::write(transfer.to, transfer.bytes, Access::plain, site);
    transfer.known = race::publish(current->race);
    memset(transfer.to, 0xff, transfer.bytes);
    block->asynchronous++;
    running->transfers.push_back(transfer);
}

void copy_bulk(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier, Site site) {
    if (bytes % 16) fail(site, "copy_bulk of %u bytes: not a multiple of 16", bytes);
    check_aligned(from, 16, site);
    Transfer t = {};
    t.to = shared_at(to, bytes, 16, site);
    touch(t.to, from, bytes);
    race::read(from, bytes, Access::plain, site);
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
static APART void land_one() {
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
    Block::Mbarrier &m = t.block->mbarriers[t.barrier & 0xffffffu];
    race::absorb(m.meeting, t.known);
    write_phase(at, p, m);
}

/* ---- who runs next ---- */

/* Mostly one of those that were woken last, who have been waiting for each other and whose stacks
 * the processor still has at hand; sometimes any. Which warp goes first, and in what order its lanes
 * go, is random either way. */
static Thread *take_ready(std::vector<Thread *> &ready) {
    const size_t n = ready.size(), at = n > 32 && below(16) ? n - 1 - below(32) : below(n);
    Thread *t = ready[at];
    ready[at] = ready.back();
    ready.pop_back();
    return t;
}

/* Thousands may poll for what one warp is at: of eight steps one is a poll's while others are ready, so that
 * those that get on are not lost among them.
 * Null: the scheduler has to look, for a fault or as nobody is ready or gets on. A sound kernel may
 * poll long without an event: a few threads that merge hundreds of parts by volatile loads, a warp
 * that gathers among a thousand pollers. */
static Thread *next_thread() {
    Launch &l = *running;
    if (!l.fault.empty()) return nullptr;
    if (!l.transfers.empty() && (l.ready.empty() || !below(8))) land_one();
    const bool stuck = l.idle_polls > 200000 + 200 * (uint64_t)(l.ready.size() + l.polling.size());
    if (stuck && l.transfers.empty()) return nullptr;
    if (!l.polling.empty() && (l.ready.empty() || !below(8))) return take_ready(l.polling);
    return l.ready.empty() ? nullptr : take_ready(l.ready);
}

static void make_current(Thread *t) {
    current = t;
    self = &t->id;
    fibre_prepare(&t->fibre);
    use(t);
}

static void leave() {
    Thread *t = current, *next = next_thread();
    if (next == t) return;
    if (!next) {
        fibre_leave(&t->fibre, &scheduler, false);
        return;
    }
    make_current(next);
    fibre_change(&t->fibre, &next->fibre, false);
}

void dependency_wait() {
    current->block->waited_dependency = true;
    race::dependency(current->race);
}

/* ---- running ---- */

static std::map<const void *, Entry> &entries() {
    static std::map<const void *, Entry> all;
    return all;
}
Bound::Bound(const void *kernel, const char *name, int threads, size_t params_bytes, Invoke invoke)
    : entry{kernel, name, threads, (uint32_t)params_bytes, invoke} {
    entries()[kernel] = entry;
}
Bound::~Bound() { entries().erase(entry.kernel); }

std::vector<Entry> all_entries() {
    std::vector<Entry> all;
    for (const auto &e : entries()) all.push_back(e.second);
    return all;
}

static void end_thread() {
    Block *block = current->block;
    Site site = current->site.file ? current->site : Site{"its start", 0};
    end_lane(site);
    current->ended = true;
    running->idle_polls = 0;
    if (--block->live) return;
    if (running->shape.dependent && !block->waited_dependency)
        fail(site, "the block ended without grid_dependency_wait");
    if (block->asynchronous) fail(site, "the block ended while copies into it are under way");
    check_mbarriers(block);
}

static void thread_main(void *argument) {
    current = static_cast<Thread *>(argument);
    running->invoke(running->kernel, running->params);
    end_thread();
    Fibre *own = &current->fibre;
    Thread *next = current->block->live ? next_thread() : nullptr;
    if (!next) fibre_leave(own, &scheduler, true);
    make_current(next);
    fibre_change(own, &next->fibre, true);
}

/* As new, of one that has ended if there is one: it keeps what its lists have allocated. */
static std::vector<std::unique_ptr<Thread>> ended_threads;

static std::unique_ptr<Thread> new_thread() {
    if (ended_threads.empty()) return std::make_unique<Thread>();
    std::unique_ptr<Thread> t = std::move(ended_threads.back());
    ended_threads.pop_back();
    Thread fresh = {};
    fresh.copies.swap(t->copies);
    fresh.copies.clear();
    *t = std::move(fresh);
    return t;
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
    race::forget(block->shared, s.shared_bytes);
    uint32_t number = (z * s.grid.y + y) * s.grid.x + x;
    race::Known known = race::initial_knowledge(number);
    for (uint32_t i = 0; i < s.threads; i += 32) {
        uint32_t lanes = s.threads - i < 32 ? (1u << (s.threads - i)) - 1 : ~0u;
        block->warps.push_back({lanes, 0, {}});
    }
    for (uint32_t i = 0; i < s.threads; i++) {
        auto t = new_thread();
        t->id = {(int)i, (int)s.threads, {(int)x, (int)y, (int)z},
                 {(int)s.grid.x, (int)s.grid.y, (int)s.grid.z},
                 rank, (int)s.cluster, block->shared, s.shared_bytes};
        t->block = block.get();
        fibre_create(&t->fibre, thread_main, t.get());
        race::start_thread(t->race, number, i, known);
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
        for (auto &t : b->threads) {
            if (!clean) fibre_destroy(&t->fibre);
            ended_threads.push_back(std::move(t));
        }
        race::forget(b->shared, running->shape.shared_bytes);
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

static void run_thread(Thread *t) {
    make_current(t);
    fibre_enter(&t->fibre, &scheduler);
}

/* Runs what is ready until a cluster has ended; false on a fault. */
static bool run_some(std::vector<std::unique_ptr<Cluster>> &clusters) {
    while (running->fault.empty()) {
        Thread *t = next_thread();
        if (t) {
            run_thread(t);
            if (!current->ended || current->block->live) continue;
            if (running->fault.empty() && cluster_ended(*current->block->cluster)) return true;
        } else if (running->transfers.empty()) {
            const char *what = running->ready.empty() && running->polling.empty() ? ": deadlock" : ": no progress";
            running->fault = "kernel " + running->name + what + waiting_report(clusters);
        }
    }
    return false;
}

static void run_grid(Launch &l) {
    const Shape &s = l.shape;
    uint64_t total = (uint64_t)s.grid.x / s.cluster * s.grid.y * s.grid.z;
    uint64_t slice = s.ordered ? total / s.grid.z : total;
    std::vector<uint64_t> order(total);
    for (uint64_t i = 0; i < total; i++) order[i] = i;
    for (uint64_t i = total; i > 1; i--) {
        uint64_t first = (i - 1) / slice * slice;
        std::swap(order[i - 1], order[first + below(i - first)]);
    }
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
    auto entry = entries().find(l.kernel);
    if (entry == entries().end()) return "not made by CAIRN_KERNEL";
    if (s.threads < 1 || (int)s.threads > entry->second.threads)
        return std::to_string(s.threads) + " threads, made for " +
               std::to_string(entry->second.threads);
    if (s.cluster < 1 || s.cluster > 16 || s.grid.x % s.cluster)
        return "clusters of " + std::to_string(s.cluster) + " do not divide the grid";
    if (s.shared_bytes > 227 * 1024) return "more than 227 KiB of shared memory";
    if (s.grid.x == 0 || s.grid.y == 0 || s.grid.z == 0) return "an empty grid";
    if (s.grid.y > 65535 || s.grid.z > 65535) return "more than 65535 blocks along y or z";
    return "";
}

void forget(const void *p, size_t bytes) { race::forget(p, bytes); }

std::string run(const Shape &shape, const void *kernel, const void *params) {
    seed();
    Launch l = {shape, kernel, params, nullptr, "?", "", {}, {}, {}, 0};
    auto entry = entries().find(kernel);
    if (entry != entries().end()) {
        l.name = entry->second.name;
        l.invoke = entry->second.invoke;
    }
    std::string bad = check_shape(l);
    if (!bad.empty()) return "kernel " + l.name + ": " + bad;
    running = &l;
    race::start_launch(shape.threads, shape.dependent != 0, shape.dependent == 2);
    run_grid(l);
    race::end_launch();
    running = nullptr;
    current = nullptr;
    self = nullptr;
    return l.fault;
}

} // namespace simt
