/* The race detector (simt_race.h). Tests are compiled with -fsanitize=thread for its calls at every
 * load and store, but linked with this file in place of its library. */
#include "simt_race.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <unordered_map>

namespace simt {
namespace race {

/* ---- knowledge ---- */

static std::vector<uint32_t> &own(Clocks &clocks, uint32_t threads) {
    if (!clocks) clocks = std::make_shared<std::vector<uint32_t>>(threads, 0u);
    if (clocks.use_count() > 1) clocks = std::make_shared<std::vector<uint32_t>>(*clocks);
    return *clocks;
}

static uint32_t threads_per_block;

static void join(Knowledge &into, const Knowledge &from) {
    into.dependency |= from.dependency;
    for (const auto &entry : from.blocks) {
        Clocks &mine = into.blocks[entry.first];
        if (mine == entry.second) continue;
        if (!mine) {
            mine = entry.second;
            continue;
        }
        std::vector<uint32_t> &to = own(mine, threads_per_block);
        for (size_t i = 0; i < to.size(); i++)
            if (to[i] < (*entry.second)[i]) to[i] = (*entry.second)[i];
    }
}

static void know(State &s, Known known) {
    s.known = std::move(known);
    s.mine = s.known->blocks.at(s.slot / threads_per_block)->data();
}

static void learn(State &s, const Knowledge &from) {
    auto both = std::make_shared<Knowledge>(*s.known);
    join(*both, from);
    know(s, both);
}

static void note_self(Knowledge &k, State &s) {
    Clocks &clocks = k.blocks[s.slot / threads_per_block];
    own(clocks, threads_per_block)[s.slot % threads_per_block] = s.clock;
    s.clock++;
}

Known initial_knowledge(uint32_t block) {
    auto k = std::make_shared<Knowledge>();
    own(k->blocks[block], threads_per_block);
    return k;
}

void start_thread(State &s, uint32_t block, uint32_t thread, const Known &initial) {
    s.slot = block * threads_per_block + thread;
    know(s, initial);
}

void arrive(State &s, Meeting &m) {
    if (m.last != s.known) join(m.gathering, *s.known);
    m.last = s.known;
    note_self(m.gathering, s);
}

void complete(Meeting &m) {
    m.done = std::make_shared<Knowledge>(std::move(m.gathering));
    m.gathering = Knowledge();
    m.last.reset();
}

void leave(State &s, const Meeting &m) {
    if (m.done) learn(s, *m.done);
}

void leave_at_once(State &s, const Meeting &m) { know(s, m.done); }

Known publish(State &s) {
    auto k = std::make_shared<Knowledge>(*s.known);
    note_self(*k, s);
    return k;
}

void absorb(Meeting &m, const Known &from) { join(m.gathering, *from); }

/* ---- the shadow of memory: a cell for every 4 bytes ---- */

struct Record {
    uint32_t slot1, clock;                     /* slot1: slot + 1, 0 if empty */
    uint32_t mask : 4, atomic : 1, place : 27; /* mask: which of the 4 bytes */
};

/* What every access looks at is one line of the processor's cache; the rest lies apart. */
struct alignas(64) Cell {
    uint32_t launch : 31, rare : 1; /* rare: the places of its Rest count */
    Record writes[2], reads[3];
};
struct Rest {
    uint32_t constant, before_write, before_read; /* places; before_: in the previous launch */
    uint32_t turn;
};
static_assert(sizeof(Cell) == 64, "a cell is a cache line");

enum { cells_per_page = 4096 };
struct Page {
    Cell *cells;
    Rest *rests;
};
static std::unordered_map<uintptr_t, Page *> pages;
static struct { uintptr_t number; Page *page; } recent[1024]; /* pages, by their low bits */
static uint32_t launch_number = 1;
static bool launch_dependent, launch_chained, launch_running;
static State *current;
static const unsigned char *current_stack, *current_shared;
static uint32_t current_shared_bytes;

static uint32_t first_place(const Record *records, int n) {
    for (int i = 0; i < n; i++)
        if (records[i].slot1) return records[i].place;
    return 0;
}

/* Turns what the launch before left into its two places, when this one follows it by dependent
 * launch; otherwise a launch has seen all that went before. */
static void renew(Cell &c, Rest &r) {
    Rest fresh = {};
    if (launch_chained && c.launch + 1u == launch_number) {
        fresh.before_write = first_place(c.writes, 2);
        fresh.before_read = first_place(c.reads, 3);
        if (!fresh.before_read && c.rare) fresh.before_read = r.constant;
    }
    const bool rare = fresh.before_write || fresh.before_read;
    if (rare || c.rare) r = fresh;
    c = Cell{};
    c.launch = launch_number & 0x7fffffff, c.rare = rare;
}

/* Zeros. Every access of a kernel looks at cells, all over: in huge pages, where the system has them. */
static void *zeros(size_t bytes, bool huge) {
    const size_t huge_page = 2 << 20, more = huge ? huge_page : 0;
    void *p = mmap(nullptr, bytes + more, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) abort();
    char *first = static_cast<char *>(p);
    if (huge) first += (huge_page - (uintptr_t)p % huge_page) % huge_page;
#ifdef MADV_HUGEPAGE
    if (huge) madvise(first, bytes, MADV_HUGEPAGE);
#endif
    return first;
}

static Page *new_page() {
    enum { at_once = 64 }; /* pages of cells */
    static Cell *cells;
    static uint32_t left;
    if (!left) {
        cells = static_cast<Cell *>(zeros(at_once * cells_per_page * sizeof(Cell), true));
        left = at_once;
    }
    Cell *own = cells;
    cells += cells_per_page, left--;
    return new Page{own, static_cast<Rest *>(zeros(cells_per_page * sizeof(Rest), false))};
}

static inline Page *find_page(uintptr_t number) {
    auto &entry = recent[number % 1024];
    if (entry.page && entry.number == number) return entry.page;
    Page *&page = pages[number];
    if (!page) page = new_page();
    entry = {number, page};
    return page;
}

void forget(const void *p, size_t bytes) {
    const uintptr_t end = ((uintptr_t)p + bytes + 3) / 4;
    for (uintptr_t at = (uintptr_t)p / 4, next; at < end; at = next) {
        const auto found = pages.find(at / cells_per_page);
        next = (at / cells_per_page + 1) * cells_per_page;
        if (found == pages.end()) continue; /* nothing has been seen there */
        for (; at < next && at < end; at++) {
            Cell &c = found->second->cells[at % cells_per_page];
            if (c.launch) c.launch = 0; /* no launch's, nor the one before any */
        }
    }
}

void start_launch(uint32_t threads, bool dependent, bool chained) {
    threads_per_block = threads;
    launch_dependent = dependent;
    launch_chained = chained;
    launch_running = true;
    launch_number++;
}

/* ---- places: a site of a wrapper, or the return address of a plain access ---- */

struct Place {
    Site site;
    const void *pc;
};
static std::vector<Place> places(1);
static std::map<std::pair<const void *, int>, uint32_t> place_numbers;

static uint32_t place_number(Site site, const void *pc) {
    static struct { const void *key; int line; uint32_t number; } recent_places[64];
    const void *key = pc ? pc : site.file;
    const int line = pc ? -1 : site.line;
    auto &entry = recent_places[((uintptr_t)key / 4 + (uintptr_t)line) % 64];
    if (entry.number && entry.key == key && entry.line == line) return entry.number;
    uint32_t &number = place_numbers[std::make_pair(key, line)];
    if (!number) {
        number = (uint32_t)places.size();
        places.push_back({site, pc});
    }
    entry = {key, line, number};
    return number;
}

/* "file:line", by addr2line for an address. */
static void place_text(uint32_t number, char *text, size_t size) {
    const Place &p = places[number];
    const char *base = p.site.file ? strrchr(p.site.file, '/') : nullptr;
    if (!p.pc) {
        snprintf(text, size, "%s:%d", base ? base + 1 : p.site.file, p.site.line);
        return;
    }
    Dl_info info;
    char command[512];
    snprintf(text, size, "%p", p.pc);
    if (!dladdr(p.pc, &info)) return;
    snprintf(command, sizeof command, "addr2line -e '%s' %#zx 2>/dev/null", info.dli_fname,
             (size_t)((const char *)p.pc - (const char *)info.dli_fbase) - 1);
    FILE *pipe = popen(command, "r");
    char line[512];
    if (pipe && fgets(line, sizeof line, pipe)) {
        line[strcspn(line, " \n")] = 0;
        base = strrchr(line, '/');
        snprintf(text, size, "%.100s", base ? base + 1 : line);
    }
    if (pipe) pclose(pipe);
}

/* ---- the checks ---- */

static inline bool known(const Record &r) {
    uint32_t slot = r.slot1 - 1, block = slot / threads_per_block, t = slot % threads_per_block;
    if (slot == current->slot) return true;
    if (block == current->slot / threads_per_block) return current->mine[t] >= r.clock;
    auto found = current->known->blocks.find(block);
    return found != current->known->blocks.end() && (*found->second)[t] >= r.clock;
}

static void name_address(uintptr_t a, char *text, size_t size) {
    uintptr_t base = (uintptr_t)current_shared;
    if (a >= base && a < base + current_shared_bytes)
        snprintf(text, size, "shared memory offset %zu", (size_t)(a - base));
    else snprintf(text, size, "memory at %#zx", (size_t)a);
}

/* `there` 0: no other access, the first is wrong by itself. */
[[noreturn]] static void report(uintptr_t a, const char *what, uint32_t here,
                                const char *other_what, uint32_t there, uint32_t other_slot1) {
    char where[96], mine[128], other[128], who[64] = "another thread or launch";
    name_address(a, where, sizeof where);
    place_text(here, mine, sizeof mine);
    if (!there) {
        current = nullptr;
        fail(Site{nullptr, 0}, "race on %s: %s at %s", where, what, mine);
    }
    place_text(there, other, sizeof other);
    if (other_slot1)
        snprintf(who, sizeof who, "block %u thread %u", (other_slot1 - 1) / threads_per_block,
                 (other_slot1 - 1) % threads_per_block);
    current = nullptr;
    fail(Site{nullptr, 0},
         "race on %s: %s at %s, and %s at %s by %s, with nothing that orders them", where, what, mine, other_what, other, who);
}

static inline void check_records(const Record *records, int n, uintptr_t a, uint8_t mask, bool atomic,
                                 const char *what, uint32_t place, const char *other) {
    for (int i = 0; i < n; i++) {
        const Record &r = records[i];
        if (!r.slot1 || !(r.mask & mask) || (atomic && r.atomic) || known(r)) continue;
        report(a, what, place, other, r.place, r.slot1);
    }
}

/* Keeps the record in the place of one that it makes needless, else in turn. */
static inline void keep(Record *records, int n, const Record &r, Rest &rest) {
    int at = -1;
    for (int i = 0; i < n && at < 0; i++) {
        Record &old = records[i];
        bool covered = !(old.mask & ~r.mask & 0xf) && old.atomic >= r.atomic;
        if (!old.slot1 || (covered && known(old))) at = i;
    }
    records[at < 0 ? (int)(rest.turn++ % (uint32_t)n) : at] = r;
}

static Record record(uint8_t mask, bool atomic, uint32_t place) {
    Record r = {current->slot + 1, current->clock, 0, 0, 0};
    r.mask = mask & 0xf, r.atomic = atomic, r.place = place & 0x7ffffff;
    return r;
}

/* The same thread has done the same since it last handed on what it did: whoever has written here since then
 * was checked against that. */
static inline bool is_repeated(const Cell &c, uint8_t mask, bool atomic) {
    for (const Record &r : c.reads)
        if (r.slot1 == current->slot + 1 && r.clock == current->clock && !(mask & ~r.mask) && r.atomic <= atomic)
            return true;
    return false;
}

static inline void read_cell(Cell &c, Rest &rest, uintptr_t a, uint8_t mask, bool atomic, bool constant,
                             uint32_t place) {
    if (!constant && is_repeated(c, mask, atomic)) return;
    check_records(c.writes, 2, a, mask, atomic, "read", place, "write");
    if (constant && first_place(c.writes, 2))
        report(a, "load_constant, of what this kernel writes,", place, "write",
               first_place(c.writes, 2), c.writes[0].slot1);
    if (c.rare && rest.before_write && !current->known->dependency)
        report(a, "read before grid_dependency_wait", place, "write", rest.before_write, 0);
    if (constant) rest.constant = place, c.rare = 1;
    keep(c.reads, 3, record(mask, atomic, place), rest);
}

static inline void write_cell(Cell &c, Rest &rest, uintptr_t a, uint8_t mask, bool atomic, bool shared,
                              uint32_t place) {
    check_records(c.writes, 2, a, mask, atomic, "write", place, "write");
    check_records(c.reads, 3, a, mask, atomic, "write", place, "read");
    if (c.rare && rest.constant)
        report(a, "write", place, "load_constant", rest.constant, 0);
    if (!shared && launch_dependent && !current->known->dependency)
        report(a, "write before grid_dependency_wait", place, rest.before_write ? "write" : "read",
               rest.before_write ? rest.before_write : rest.before_read, 0);
    keep(c.writes, 2, record(mask, atomic, place), rest);
}

/* The cells are on their way while something else is looked at. */
static inline void fetch_cells(const Page *page, uintptr_t first, uintptr_t end) {
    const uintptr_t at = first / 4 % cells_per_page, count = (end - 1) / 4 - first / 4 + 1;
    for (uintptr_t i = at; i < at + count && i < cells_per_page; i++) __builtin_prefetch(&page->cells[i], 1);
}
void will_touch(const void *p, uint32_t bytes) {
    fetch_cells(find_page((uintptr_t)p / 4 / cells_per_page), (uintptr_t)p, (uintptr_t)p + bytes);
}

static void touch(const void *p, size_t bytes, bool is_write, bool atomic, bool constant,
                  uint32_t place) {
    uintptr_t first = (uintptr_t)p, end = first + bytes, base = (uintptr_t)current_shared;
    bool shared = first >= base && first < base + current_shared_bytes;
    Page *page = find_page(first / 4 / cells_per_page);
    if (bytes > 4 && bytes <= 64) fetch_cells(page, first, end + bytes); /* and what a neighbour may be after */
    for (uintptr_t a = first & ~(uintptr_t)3; a < end; a += 4) {
        const uintptr_t at = a / 4 % cells_per_page;
        if (!at) page = find_page(a / 4 / cells_per_page);
        Cell &c = page->cells[at];
        Rest &rest = page->rests[at];
        if (c.launch != launch_number) renew(c, rest);
        uint8_t mask = 0xf;
        if (a < first) mask = (uint8_t)(mask & 0xf << (first - a));
        if (a + 4 > end) mask = (uint8_t)(mask & 0xf >> (a + 4 - end));
        if (is_write) write_cell(c, rest, a, mask, atomic, shared, place);
        else read_cell(c, rest, a, mask, atomic, constant, place);
    }
}

/* ---- accesses through wrappers ---- */

static std::map<const void *, Meeting> variables; /* that atomics hand knowledge over by */

void end_launch() {
    launch_running = false;
    current = nullptr;
    variables.clear();
}

void use(State *s, const void *stack, const unsigned char *shared, uint32_t shared_bytes) {
    current = s;
    current_stack = static_cast<const unsigned char *>(stack);
    current_shared = shared;
    current_shared_bytes = shared_bytes;
}

void read(const void *p, uint32_t bytes, Access access, Site site) {
    bool atomic = access >= Access::relaxed;
    touch(p, bytes, false, atomic, access == Access::constant, place_number(site, nullptr));
    auto found = atomic ? variables.find(p) : variables.end();
    if (found == variables.end()) return;
    if (access == Access::acquire) learn(*current, found->second.gathering);
    else join(current->seen, found->second.gathering);
}

void write(const void *p, uint32_t bytes, Access access, Site site) {
    touch(p, bytes, true, access >= Access::relaxed, false, place_number(site, nullptr));
    if (access == Access::release) arrive(*current, variables[p]);
    else if (access == Access::relaxed && current->fenced) absorb(variables[p], current->fenced);
}

void fence(State &s) {
    learn(s, s.seen);
    s.fenced = publish(s);
}

void dependency(State &s) {
    Knowledge k;
    k.dependency = true;
    learn(s, k);
}

/* ---- accesses by compiled code ---- */

static const size_t stack_bytes = 1 << 20;

static void plain(const void *p, size_t bytes, bool is_write, const void *pc) {
    if (!launch_running || !current) return;
    size_t from_stack = (size_t)(static_cast<const unsigned char *>(p) - current_stack);
    if (from_stack < stack_bytes) return;
    touch(p, bytes, is_write, false, false, place_number(Site{nullptr, 0}, pc));
}

} // namespace race
} // namespace simt

#define HERE __builtin_return_address(0)
#define SIMT_HOOK(name, bytes, is_write) \
    extern "C" void __tsan_##name(void *p) { simt::race::plain(p, bytes, is_write, HERE); }
SIMT_HOOK(read1, 1, false)
SIMT_HOOK(read2, 2, false)
SIMT_HOOK(read4, 4, false)
SIMT_HOOK(read8, 8, false)
SIMT_HOOK(read16, 16, false)
SIMT_HOOK(write1, 1, true)
SIMT_HOOK(write2, 2, true)
SIMT_HOOK(write4, 4, true)
SIMT_HOOK(write8, 8, true)
SIMT_HOOK(write16, 16, true)
SIMT_HOOK(unaligned_read2, 2, false)
SIMT_HOOK(unaligned_read4, 4, false)
SIMT_HOOK(unaligned_read8, 8, false)
SIMT_HOOK(unaligned_read16, 16, false)
SIMT_HOOK(unaligned_write2, 2, true)
SIMT_HOOK(unaligned_write4, 4, true)
SIMT_HOOK(unaligned_write8, 8, true)
SIMT_HOOK(unaligned_write16, 16, true)
extern "C" void __tsan_read_range(void *p, size_t n) { simt::race::plain(p, n, false, HERE); }
extern "C" void __tsan_write_range(void *p, size_t n) { simt::race::plain(p, n, true, HERE); }
extern "C" void __tsan_init() {}
extern "C" void __tsan_func_entry(void *) {}
extern "C" void __tsan_func_exit() {}
extern "C" void __tsan_vptr_update(void **, void *) {}
extern "C" void __tsan_vptr_read(void **) {}
/* Atomics of the test's own C++, not of kernels. */
#define SIMT_ATOMIC(bits, type)                                                                  \
    extern "C" type __tsan_atomic##bits##_load(const volatile type *p, int) {                    \
        return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                             \
    }                                                                                            \
    extern "C" void __tsan_atomic##bits##_store(volatile type *p, type v, int) {                 \
        __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                                                \
    }                                                                                            \
    extern "C" type __tsan_atomic##bits##_exchange(volatile type *p, type v, int) {              \
        return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);                                      \
    }                                                                                            \
    extern "C" type __tsan_atomic##bits##_fetch_add(volatile type *p, type v, int) {             \
        return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST);                                       \
    }                                                                                            \
    extern "C" int __tsan_atomic##bits##_compare_exchange_strong(volatile type *p, type *old,    \
                                                                 type v, int, int) {             \
        return __atomic_compare_exchange_n(p, old, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
    }
SIMT_ATOMIC(8, unsigned char)
SIMT_ATOMIC(16, unsigned short)
SIMT_ATOMIC(32, unsigned)
SIMT_ATOMIC(64, unsigned long)
