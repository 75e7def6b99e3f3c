/* Fibres: stacks that take turns on one host thread. Known to AddressSanitizer. */
#ifndef CAIRN_FIBRE_H
#define CAIRN_FIBRE_H

#include <stddef.h>

struct FibreContext { /* who resumes a fibre */
    void *stack_pointer;
    void *fake_stack;
    const void *bottom;
    size_t size;
};

struct Fibre {
    void *stack_pointer;
    void *stack; /* lowest address; null until it first runs, and after its end */
    void (*main)(void *);
    void *argument;
};

void fibre_create(Fibre *fibre, void (*main)(void *), void *argument);
/* It is about to run: it has a stack then. A short life uses one that its predecessor just left. */
void fibre_prepare(Fibre *fibre);
/* Gives the stack of one that did not run to its end back. */
void fibre_destroy(Fibre *fibre);
/* Runs the fibre until it leaves. */
void fibre_enter(Fibre *fibre, FibreContext *from);
/* Straight to another fibre, which then leaves to whoever entered this one: half the way. */
void fibre_change(Fibre *fibre, Fibre *to, bool last);
/* Back to whoever entered; `last` if it will not be entered again. */
void fibre_leave(Fibre *fibre, FibreContext *to, bool last);

#endif
