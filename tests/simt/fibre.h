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
    void *fake_stack;
    void *stack; /* lowest address */
    void (*main)(void *);
    void *argument;
    FibreContext *resumer;
};

void fibre_create(Fibre *fibre, void (*main)(void *), void *argument);
/* Gives the stack back; `clean` if the fibre ran to its end. */
void fibre_destroy(Fibre *fibre, bool clean);
/* Runs the fibre until it leaves. */
void fibre_enter(Fibre *fibre, FibreContext *from);
/* Back to whoever entered; `last` if it will not be entered again. */
void fibre_leave(Fibre *fibre, FibreContext *to, bool last);

#endif
