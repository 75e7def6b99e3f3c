/* tap: the three calls of a C test. A test is a program tests/ROOM/NAME_test.c:
 *
 *     #define CAIRN_ROOMS_ONLY
 *     #include "runtime.c"         (first, so that its feature macros count; rooms are visible)
 *     #include "tap.h"
 *     int main(void) {
 *         tap_ok(1 + 1 == 2, "one and one is two");
 *         tap_ok(sum == 3, "sum of %d numbers (seed %u)", count, seed);
 *         if (!have_gpu) tap_skip("replay: no GPU");
 *         return tap_done();
 *     }
 *
 * ./build.sh test compiles it with warnings as errors, under ASan and UBSan, runs it in the
 * repository root and counts its lines. A comment `build: FLAGS` in its first 20 lines adds compiler
 * flags (`build: -fno-sanitize=all -O2`, `build: -DCAIRN_NO_LUA`). */
#ifndef TAP_H
#define TAP_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

#ifdef _WIN32
#include "windows/posix.h"
#endif

static int tap_passed, tap_failed, tap_skipped;

#if defined(__GNUC__) || defined(__clang__)
#define TAP_PRINTF(text) __attribute__((format(printf, text, text + 1), unused))
#else
#define TAP_PRINTF(text)
#endif

static void tap_line(const char *verdict, const char *tail, const char *format, va_list args) {
    printf("%s %d - ", verdict, tap_passed + tap_failed + tap_skipped);
    vprintf(format, args);
    printf("%s\n", tail);
    fflush(stdout);
}

/* Counts one check and returns it, so that a test can stop early: if (!tap_ok(...)) return ...; */
TAP_PRINTF(2)
static bool tap_ok(bool passed, const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (passed) tap_passed++;
    else tap_failed++;
    tap_line(passed ? "ok" : "not ok", "", format, args);
    va_end(args);
    return passed;
}

/* A check that cannot be made here; the text says why. */
TAP_PRINTF(1)
static void tap_skip(const char *format, ...) {
    va_list args;
    va_start(args, format);
    tap_skipped++;
    printf("ok %d # SKIP ", tap_passed + tap_failed + tap_skipped);
    vprintf(format, args);
    printf("\n");
    fflush(stdout);
    va_end(args);
}

/* A line for the reader: seeds, sizes, what differed. */
TAP_PRINTF(1)
static void tap_note(const char *format, ...) {
    va_list args;
    va_start(args, format);
    printf("# ");
    vprintf(format, args);
    printf("\n");
    va_end(args);
}

/* The plan and the sums; main returns this. A test without a single check has failed. */
static int tap_done(void) {
    int total = tap_passed + tap_failed + tap_skipped;
    printf("1..%d\n%d passed, %d failed, %d skipped\n", total, tap_passed, tap_failed, tap_skipped);
    return tap_failed || !total;
}

#endif
