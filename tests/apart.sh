# apart.sh: the runtime compiled once for many tests. A test is written as one unit with it; here the
# unit is cut into its rooms (gen/apart.lua), each compiled once a kind, and the test, which then
# includes declarations alone, is linked with them: a second in place of half a minute. For scripts in
# the repository's root with CC, lua, lua_cflags set:
#
#   apart_build KIND   compiles what is stale below build/apart/KIND, a room a core
#   apart_link KIND    prints what a test adds to its command line: the flag of the folder that comes
#                      before -I. first, then flags and objects. "KIND whole": for a test that
#                      is compiled with the runtime
#   apart_own KIND NAME FLAGS...   the same for a test with flags that change the runtime: compiles anew
#                      only the rooms that are others with them, below build/apart/KIND/NAME
#
# Kinds: asan (with UBSan), plain (optimised, for long runs and for kernels under the race detector,
# which finds what it looks for by itself), clang (clang's UBSan; sees no less without optimising, and compiles
# in half the time), tsan (threads, ./build.sh tsan), cov (counts
# lines and branches, of all threads: counts that they race for come out as none), windows (whose kernels.o
# tests/windows/run.sh makes; not optimised, as its tests run for a moment only).
# What gcc warns of within the runtime is looked at by tests/warnings_test.sh.

apart=${CAIRN_BUILD:-build}/apart

# Kernels that this machine has no use for take half a minute of all kinds.
apart_levels() { [ ! -r /proc/cpuinfo ] || grep -q '^flags.* avx512f' /proc/cpuinfo || echo -DCAIRN_NO_AVX512; }

# apart_flags KIND: compiler and flags.
apart_flags() {
    case $1 in
        asan) echo "${CC:-cc} -O1 -fsanitize=address,undefined -fno-sanitize-recover=all
            -fno-omit-frame-pointer" ;;
        plain) echo "${CC:-cc} -O2" ;;
        clang) echo "clang -O0 -fsanitize=undefined -fno-sanitize-recover=all" ;;
        tsan) echo "${CC:-cc} -O1 -fsanitize=thread -fno-omit-frame-pointer" ;;
        cov) echo "${CC:-cc} -O0 --coverage -fprofile-update=prefer-atomic" ;;
        windows) echo "x86_64-w64-mingw32-gcc -O0" ;;
    esac
    apart_levels
    echo "-std=c11 -g1 ${CFLAGS:-} ${lua_cflags:-} -w -DCAIRN_API=static -DCAIRN_ROOMS_ONLY=
        -ffp-contract=off"
}

apart_is_gcc() { case $(${CC:-cc} --version) in *clang*) return 1 ;; esac; }

# The declarations, with which rooms and tests begin, are read once, not most of a second each: gcc takes them from
# there where all flags are the same. It may crash where -O alone is another, as it is in tests linked with the plain
# kind, for whose rooms alone they are kept.
apart_precompile() {
    at=$apart/$1
    case $1 in asan | plain) apart_is_gcc || return 0 ;; *) return 0 ;; esac
    how="$(apart_flags "$1" | tr '\n' ' ') -DCAIRN_SIMD_APART -I. -x c-header $at/runtime.c"
    [ ! -f "$at/runtime.c.gch" ] || [ "$(cat "$at/declared.how")" != "$how" ] ||
        [ -n "$(find "$at/runtime.c" -newer "$at/runtime.c.gch")" ] || return 0
    $how -o "$at/runtime.c.gch" && echo "$how" > "$at/declared.how"
}

# The vector kernels, too, are an object of their own (runtime/numbers/simd.c says how). Most tests spend their
# time in them: AddressSanitizer sees there what a caller promised and does not hold; what UBSan sees is theirs
# alone, and is looked for by the tests that run as clang builds them. Sanitizers take minutes to optimise them
# where clang does it, and counting them says nothing; gcc's colouring of registers takes half of its minute there.
apart_kernels() {
    case $1 in
        asan) level=-fno-sanitize=undefined
            ! apart_is_gcc || level="$level --param ira-max-conflict-table-size=0" ;;
        clang) level=-O0 ;;
        cov) level='-O1 -fno-profile-arcs -fno-test-coverage' ;;
        *) level= ;;
    esac
    echo '#include "runtime.c"' > "$apart/kernels.c"
    echo "$(apart_flags "$1" | tr '\n' ' ') $level -DCAIRN_SIMD_UNIT -I. -c $apart/kernels.c"
}

# apart_compile KIND ROOM: unless the object is as new as its source, the declarations and the flags.
apart_compile() {
    at=$apart/$1
    if [ "$2" = kernels ]; then how=$(apart_kernels "$1")
    else how="$(apart_flags "$1" | tr '\n' ' ') -DCAIRN_SIMD_APART -I$at -I. -c $at/$2.c"; fi
    [ ! -f "$at/$2.o" ] || [ "$(cat "$at/$2.how")" != "$how" ] || case $2 in
        kernels) [ -n "$(find runtime/base runtime/numbers runtime.h runtime_ops.h -newer "$at/$2.o")" ] ;;
        *) [ -n "$(find "$at/$2.c" "$at/runtime.c" -newer "$at/$2.o")" ] ;;
    esac || return 0
    $how -o "$at/$2.o" && echo "$how" > "$at/$2.how"
}

apart_build() {
    at=$apart/$1
    mkdir -p "$at"
    $(apart_flags "$1") -include tests/traced.h -DCAIRN_SIMD_APART -I. -E -dD runtime.c > "$at/unit" &&
        ${lua:-lua5.4} gen/apart.lua "$at" < "$at/unit" > "$at/rooms" && apart_precompile "$1" || return 1
    { [ "$1" = windows ] || echo kernels; cat "$at/rooms"; } |
        xargs -P "$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)" \
            -n 1 sh -c '. tests/apart.sh; apart_compile "$@"' apart "$1" || return 1
    [ "$1" != plain ] || rm -f "$at/runtime.c.gch"
}

apart_link() {
    if [ -n "${2:-}" ]; then echo "-I. -DCAIRN_SIMD_APART $(apart_levels) $apart/$1/kernels.o"
    else echo "-I$apart/$1 -DCAIRN_SIMD_APART" $(apart_levels) "$apart/$1/kernels.o" \
        $(sed "s|.*|$apart/$1/&.o|" "$apart/$1/rooms")
    fi
}

apart_own() {
    at=$apart/$1/$2 kind=$1; shift 2
    rm -rf "$at"
    mkdir -p "$at"
    $(apart_flags "$kind") "$@" -include tests/traced.h -DCAIRN_SIMD_APART -I. -E -dD runtime.c > "$at/unit" &&
        ${lua:-lua5.4} gen/apart.lua "$at" "$apart/$kind" < "$at/unit" > "$at/rooms" || return 1
    [ -s "$at/rooms" ] || { echo "apart.sh: $* change nothing" >&2; return 1; }
    objects=
    for source in "$at"/*.c; do
        room=$(basename "$source" .c)
        if grep -qx "$room" "$at/rooms"; then
            $(apart_flags "$kind") -DCAIRN_SIMD_APART "-I$at" -I. -c "$source" -o "$at/$room.o" || return 1
            objects="$objects $at/$room.o"
        elif [ "$room" != runtime ]; then objects="$objects $apart/$kind/$room.o"; fi
    done
    echo "-I$at -DCAIRN_SIMD_APART" $(apart_levels) "$apart/$kind/kernels.o $objects"
}

# ---- what a test says of itself ------------------------------------------------------------------

# head_field FIELD FILE: what the head comment of a C test says behind "FIELD:".
head_field() { sed -n "1,20s/.*$1: \(.*\)$/\1/p" "$2" | sed 's/ *\*\/.*//'; }

# own_flags FLAGS: those that change the runtime itself, for which some rooms are compiled anew.
own_flags() {
    case $1 in *-include*) echo "$1" | grep -o -e '-include [^ ]*' ;; esac
    echo "$1" | tr ' ' '\n' | grep '^-D'
}

# The test itself finds what is included so among the declarations.
without_include() { echo "$1" | sed 's/-include [^ ]*//'; }
