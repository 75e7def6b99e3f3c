# The runtime compiles without Lua, without levels of vector code, for 64-bit Arm and for Windows; where it can run, it
# runs.
. tests/tap.sh

# Two runtimes: what is said once a process has two occasions.
cat > "$work/plain.c" <<'C'
#ifdef CAIRN_NO_SIMD
#define CAIRN_IMPLEMENTATION
#endif
#include "runtime.h"
#include <stdio.h>
#include <string.h>
static int said;
static void line(void *user, cairn_log_level level, const char *text) {
    (void)user;
    said += level <= CAIRN_LOG_WARN && strstr(text, "this build has no SIMD") != NULL;
}
int main(void) {
    cairn_config config;
    cairn_runtime *rt;
    char error[512];
    cairn_config_default(&config);
    config.backend = CAIRN_BACKEND_CPU;
    config.log_callback = line;
    for (int i = 0; i < 2; i++) {
        if (cairn_open(&config, &rt, error, sizeof error)) return puts(error), 1;
        cairn_close(rt);
    }
    printf("%d", said);
    return !(cairn_config_load("none.lua", &config, error, sizeof error) == CAIRN_UNSUPPORTED);
}
C
check "without Lua and AVX-512 it builds" \
    $CC -std=c11 -O0 -DCAIRN_NO_LUA -DCAIRN_NO_AVX512 -Wall -Wextra -Werror -c runtime.c -o "$work/without_lua.o"
check "and links" $CC -std=c11 -Wall -Wextra -Werror -I. "$work/plain.c" "$work/without_lua.o" \
    -o "$work/plain" $libraries
check "without Lua it opens a runtime, and says that config files need Lua" "$work/plain"
check_text "and has no more to say" "$("$work/plain")" 0
check "without SIMD it builds" \
    $CC -std=c11 -O0 -DCAIRN_NO_LUA -DCAIRN_NO_SIMD -Wall -Wextra -Werror -I. "$work/plain.c" \
    -o "$work/plain" $libraries
check_text "and says so once" "$("$work/plain")" 1

# Debian's lua.h includes one header of the machine's own folder; no other target may see all of it.
mkdir -p "$work/include"
find /usr/include -name lua5.4-deb-multiarch.h -exec cp {} "$work/include" \; -quit

# cross NAME COMPILER FLAG: both units, the program's too, as a debug build has them, or read alone by -fsyntax-only.
# That an optimised one warns of nothing warnings_test.sh and dist_test.sh see for this machine; of code for others
# alone nobody looks at the warnings that only an optimising compiler gives. What is left without Lua was built with it.
cross_flags="-std=c11 -O0 -Wall -Wextra -Werror $lua_cflags -I$work/include"
cross() {
    command -v "$2" >/dev/null || { tap_skip "$2 is not installed"; return 0; }
    check "it compiles for $1" \
        "$2" $cross_flags $3 runtime.c -o "$work/cross.o"
    check "the program compiles for $1" \
        "$2" $cross_flags $3 runtime/program/program.c -o "$work/cross.o"
    check "without Lua it compiles for $1" \
        "$2" -std=c11 -O0 -DCAIRN_NO_LUA -Wall -Wextra -Werror -fsyntax-only runtime.c
}
cross "64-bit Arm" aarch64-linux-gnu-gcc -c
read=-c
! command -v wine > /dev/null || read=-fsyntax-only # tests/windows/run.sh builds both, in its turn
cross Windows x86_64-w64-mingw32-gcc $read
tap_done
