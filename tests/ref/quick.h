/* QUICK: a function of a reference that walks so many numbers that a test would spend its time there:
 * optimised and without sanitizers, whatever the test is compiled with. What is under test keeps both.
 * Such functions call each other inline only where all of them say so. */
#ifndef REF_QUICK_H
#define REF_QUICK_H

#if defined __clang__
#define QUICK __attribute__((no_sanitize("address", "undefined"))) static
#elif defined __GNUC__
#define QUICK __attribute__((no_sanitize("address,undefined"), optimize("O2"))) static
#else
#define QUICK static
#endif

#endif
