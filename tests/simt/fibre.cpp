#include "fibre.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <vector>

#if defined(SIMT_LIBRARY)
#define ASAN_IF_THERE 1
#elif defined(SIMT_ASAN) || defined(__SANITIZE_ADDRESS__)
#define HAVE_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAVE_ASAN 1
#endif
#endif

#ifdef ASAN_IF_THERE
/* In a library: the program around it may have been built with AddressSanitizer, or not. */
#include <dlfcn.h>
template <class F> static F *asan_function(const char *name, F *) {
    return reinterpret_cast<F *>(dlsym(RTLD_DEFAULT, name));
}
static void __sanitizer_start_switch_fiber(void **fake, const void *bottom, size_t size) {
    static auto f = asan_function("__sanitizer_start_switch_fiber", __sanitizer_start_switch_fiber);
    if (f) f(fake, bottom, size);
}
static void __sanitizer_finish_switch_fiber(void *fake, const void **bottom, size_t *size) {
    static auto f =
        asan_function("__sanitizer_finish_switch_fiber", __sanitizer_finish_switch_fiber);
    if (f) f(fake, bottom, size);
}
static void __asan_unpoison_memory_region(const void *p, size_t size) {
    static auto f = asan_function("__asan_unpoison_memory_region", __asan_unpoison_memory_region);
    if (f) f(p, size);
}
#elif defined(HAVE_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#else
#define __sanitizer_start_switch_fiber(fake, bottom, size) ((void)(fake))
#define __sanitizer_finish_switch_fiber(fake, bottom, size) ((void)(fake))
#define __asan_unpoison_memory_region(p, size) ((void)0)
#endif

static const size_t stack_bytes = 32 * 1024, huge_page = 2 << 20;

/* ---- stacks, of one arena, handed out from its end; kept for the next fibre ---- */

/* Thousands of stacks are used in turn, a few lines of each: in huge pages, where the system has them,
 * so that the processor still knows where they are. So there are no guard pages; what lies lowest on a
 * stack is looked at when its fibre ends. */
static const size_t arena_bytes = (size_t)8 << 30;
static const uint64_t untouched = 0x5afe5afe5afe5afeu;
static char *arena, *arena_next;
static std::vector<void *> free_stacks;

static void make_arena() {
    void *p = mmap(nullptr, arena_bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) abort();
    arena = static_cast<char *>(p);
    arena_next = arena + arena_bytes;
    arena_next -= (uintptr_t)arena_next % huge_page;
#ifdef MADV_HUGEPAGE
    madvise(arena, arena_bytes, MADV_HUGEPAGE);
#endif
}

static void *take_stack() {
    if (!free_stacks.empty()) {
        void *stack = free_stacks.back();
        free_stacks.pop_back();
        return stack;
    }
    if (!arena) make_arena();
    if ((size_t)(arena_next - arena) < stack_bytes) {
        fprintf(stderr, "fibre: more than %zu fibres at once\n", arena_bytes / stack_bytes);
        abort();
    }
    arena_next -= stack_bytes;
    *reinterpret_cast<uint64_t *>(arena_next) = untouched;
    return arena_next;
}

static void keep_stack(void *stack) {
    if (*static_cast<uint64_t *>(stack) != untouched) {
        fprintf(stderr, "fibre: a stack of %zu bytes ran over\n", stack_bytes);
        abort();
    }
    free_stacks.push_back(stack);
}

/* Where a stack begins: staggered, or the tops of all stacks would share a few cache sets; always
 * the same for one stack, so that what AddressSanitizer marks there stays true. */
static char *stack_top(void *stack) {
    size_t stagger = (size_t)((uintptr_t)stack / stack_bytes % 61) * 192;
    return static_cast<char *>(stack) + stack_bytes - 64 - stagger;
}

/* ---- the switch: saves the callee-saved registers and swaps stacks ---- */

extern "C" void cairn_fibre_switch(void **save, void *load);
extern "C" void cairn_fibre_start();

#if defined(__x86_64__)
__asm__(".text\n.globl cairn_fibre_switch\n.type cairn_fibre_switch,@function\n"
        "cairn_fibre_switch:\n"
        "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
        "  movq %rsp, (%rdi)\n  movq %rsi, %rsp\n"
        "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
        "  popq %rcx\n  jmp *%rcx\n" /* a ret would never be predicted */
        ".globl cairn_fibre_start\n.type cairn_fibre_start,@function\n"
        "cairn_fibre_start:\n"
        "  movq %rbx, %rdi\n  xorl %ebp, %ebp\n  call cairn_fibre_run\n  ud2\n");

static void *first_frame(void *stack, Fibre *fibre) {
    void **top = reinterpret_cast<void **>(stack_top(stack));
    void **frame = top - 7; /* r15 r14 r13 r12 rbx rbp return */
    for (int i = 0; i < 7; i++) frame[i] = nullptr;
    frame[4] = fibre;
    frame[6] = reinterpret_cast<void *>(&cairn_fibre_start);
    return frame;
}
#elif defined(__aarch64__)
__asm__(".text\n.globl cairn_fibre_switch\n.type cairn_fibre_switch,%function\n"
        "cairn_fibre_switch:\n"
        "  sub sp, sp, #160\n"
        "  stp x19, x20, [sp]\n  stp x21, x22, [sp, #16]\n  stp x23, x24, [sp, #32]\n"
        "  stp x25, x26, [sp, #48]\n  stp x27, x28, [sp, #64]\n  stp x29, x30, [sp, #80]\n"
        "  stp d8, d9, [sp, #96]\n  stp d10, d11, [sp, #112]\n  stp d12, d13, [sp, #128]\n"
        "  stp d14, d15, [sp, #144]\n"
        "  mov x9, sp\n  str x9, [x0]\n  mov sp, x1\n"
        "  ldp x19, x20, [sp]\n  ldp x21, x22, [sp, #16]\n  ldp x23, x24, [sp, #32]\n"
        "  ldp x25, x26, [sp, #48]\n  ldp x27, x28, [sp, #64]\n  ldp x29, x30, [sp, #80]\n"
        "  ldp d8, d9, [sp, #96]\n  ldp d10, d11, [sp, #112]\n  ldp d12, d13, [sp, #128]\n"
        "  ldp d14, d15, [sp, #144]\n"
        "  add sp, sp, #160\n  ret\n"
        ".globl cairn_fibre_start\n.type cairn_fibre_start,%function\n"
        "cairn_fibre_start:\n  mov x0, x19\n  mov x29, xzr\n  bl cairn_fibre_run\n  brk #0\n");

static void *first_frame(void *stack, Fibre *fibre) {
    void **frame = reinterpret_cast<void **>(stack_top(stack) - 160);
    for (int i = 0; i < 20; i++) frame[i] = nullptr;
    frame[0] = fibre;
    frame[11] = reinterpret_cast<void *>(&cairn_fibre_start);
    return frame;
}
#else
#error "fibre.cpp: add the context switch of this architecture"
#endif

static FibreContext *enterer; /* while a fibre is entered by it, not by another fibre */
static void *fake_stack;      /* the arena's, while none of its stacks is in use */
static void *left_stack;      /* of a fibre that has ended */

static void take_back() {
    if (left_stack) keep_stack(left_stack);
    left_stack = nullptr;
}

/* What comes first on a stack that was switched to. To AddressSanitizer all stacks of the arena are one:
 * it is told of a switch between it and the thread's own, not of those within. */
static void arrive() {
    if (enterer) __sanitizer_finish_switch_fiber(fake_stack, &enterer->bottom, &enterer->size);
    enterer = nullptr;
    take_back();
}

extern "C" void cairn_fibre_run(Fibre *fibre) {
    arrive();
    fibre->main(fibre->argument);
    abort();
}

void fibre_create(Fibre *fibre, void (*main)(void *), void *argument) {
    *fibre = Fibre{nullptr, nullptr, main, argument};
}

void fibre_prepare(Fibre *fibre) {
    if (fibre->stack) return;
    fibre->stack = take_stack();
    fibre->stack_pointer = first_frame(fibre->stack, fibre);
}

void fibre_destroy(Fibre *fibre) {
    if (!fibre->stack) return;
    __asan_unpoison_memory_region(fibre->stack, stack_bytes);
    keep_stack(fibre->stack);
}

/* From here the stack is another's, who takes it when this one has been left. */
static void give_stack(Fibre *fibre) {
    left_stack = fibre->stack;
    fibre->stack = nullptr;
}

void fibre_enter(Fibre *fibre, FibreContext *from) {
    enterer = from;
    __sanitizer_start_switch_fiber(&from->fake_stack, arena, arena_bytes);
    cairn_fibre_switch(&from->stack_pointer, fibre->stack_pointer);
    __sanitizer_finish_switch_fiber(from->fake_stack, nullptr, nullptr);
    take_back();
}

void fibre_change(Fibre *fibre, Fibre *to, bool last) {
    if (last) give_stack(fibre);
    cairn_fibre_switch(&fibre->stack_pointer, to->stack_pointer);
    arrive();
}

void fibre_leave(Fibre *fibre, FibreContext *to, bool last) {
    __sanitizer_start_switch_fiber(&fake_stack, to->bottom, to->size);
    if (last) give_stack(fibre);
    cairn_fibre_switch(&fibre->stack_pointer, to->stack_pointer);
    arrive();
}
