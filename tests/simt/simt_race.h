/* The race detector's place in the scheduler: who has seen what of whom. Without SIMT_RACE all of
 * it is empty and costs nothing.
 *
 * Every thread counts its own steps (clock). Knowledge says up to which clock the accesses of other
 * threads are known to have happened; barriers, warp_sync and release/acquire pass it on. An access
 * that touches bytes of another thread's access, one of them a plain write, without knowing of it,
 * is a race, whatever the order in which the emulation happened to run them. */
#ifndef CAIRN_SIMT_RACE_H
#define CAIRN_SIMT_RACE_H

#include "simt_core.h"

#include <map>
#include <memory>
#include <vector>

namespace simt {
namespace race {

#ifdef SIMT_RACE

typedef std::shared_ptr<std::vector<uint32_t>> Clocks; /* of the threads of one block */

struct Knowledge {
    std::map<uint32_t, Clocks> blocks;
    bool dependency = false; /* grid_dependency_wait has returned */
};
typedef std::shared_ptr<const Knowledge> Known;

struct State {
    uint32_t slot = 0, clock = 1; /* slot: block * threads + thread */
    Known known, fenced;          /* fenced: what was known at the last fence */
    Knowledge seen;               /* by relaxed loads; counts after the next fence */
    const uint32_t *mine = nullptr; /* the own block's clocks in known */
};

/* Where threads hand over what they know: a barrier, an mbarrier, an atomic variable. */
struct Meeting {
    Knowledge gathering;
    Known last, done;
};

void start_launch(uint32_t threads_per_block, bool dependent, bool chained);
void end_launch();
void start_thread(State &s, uint32_t block, uint32_t thread, const Known &initial);
Known initial_knowledge(uint32_t block);
void forget(const void *p, size_t bytes); /* memory that begins a new life */

void arrive(State &s, Meeting &m);         /* releases */
void complete(Meeting &m);                 /* the phase ends */
void leave(State &s, const Meeting &m);    /* acquires the phase that ended */
void leave_at_once(State &s, const Meeting &m); /* the same, having done nothing since arrive */
void absorb(Meeting &m, const Known &from); /* a copy lands for whoever issued it */
Known publish(State &s);

void will_touch(const void *p, uint32_t bytes); /* soon: changes nothing */
void read(const void *p, uint32_t bytes, Access access, Site site);
void write(const void *p, uint32_t bytes, Access access, Site site);
void fence(State &s);
void dependency(State &s);
void use(State *current, const void *stack, const unsigned char *shared,
         uint32_t shared_bytes); /* who runs now */

#else

struct State {};
struct Meeting {};
struct Known {};
inline void start_launch(uint32_t, bool, bool) {}
inline void end_launch() {}
inline void start_thread(State &, uint32_t, uint32_t, const Known &) {}
inline Known initial_knowledge(uint32_t) { return {}; }
inline void forget(const void *, size_t) {}
inline void arrive(State &, Meeting &) {}
inline void complete(Meeting &) {}
inline void leave(State &, const Meeting &) {}
inline void leave_at_once(State &, const Meeting &) {}
inline void absorb(Meeting &, const Known &) {}
inline Known publish(State &) { return {}; }
inline void will_touch(const void *, uint32_t) {}
inline void read(const void *, uint32_t, Access, Site) {}
inline void write(const void *, uint32_t, Access, Site) {}
inline void fence(State &) {}
inline void dependency(State &) {}
inline void use(State *, const void *, const unsigned char *, uint32_t) {}

#endif

} // namespace race
} // namespace simt

#endif
