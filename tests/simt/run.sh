#!/bin/sh
# Builds every tests/simt/*_simt.cpp with AddressSanitizer and UBSan, runs them all and prints one
# TAP stream. With --race first: with the race detector (simt_race.h) instead of the sanitizers.
# Arguments name the tests to run (topk, selftest, ...); none: all.
# CXX chooses the compiler, CAIRN_SEED repeats an order of threads.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/turns.sh
out=${CAIRN_BUILD:-build}/simt
cxx=${CXX:-g++}
flags="-std=c++17 -Og -g1 -fno-omit-frame-pointer -fno-strict-aliasing -ffp-contract=off
 -Wall -Wextra -Wno-unknown-pragmas
 -Itests/simt -Ikernels_src -DCAIRN_SIMT=1"
parts="fibre simt simt_operations"
if [ "${1-}" = --race ]; then
    shift
    out=$out/race label=race turn=race
    flags="$flags -DSIMT_RACE"
    part_flags=$flags parts="$parts simt_race"
    flags="$flags -fsanitize=thread" link=
    case $($cxx --version) in *clang*) ;; *) # gcc 12 fails in the pass that -fno-tree-sra leaves out
        flags="$flags -fno-tree-sra --param=tsan-instrument-func-entry-exit=0" ;;
    esac
else
    label=simt turn=asan
    flags="$flags -fsanitize=address,undefined -fno-sanitize-recover=undefined"
    flags="$flags -ftrivial-auto-var-init=pattern" # gcc 12 fails on it with -fsanitize=thread
    part_flags="$flags -DSIMT_ASAN" link="-fsanitize=address,undefined"
fi
mkdir -p "$out" || exit 1

# compile SOURCE OBJECT FLAGS: unless nothing that it could include is newer.
compile() {
    if [ -e "$2" ] && [ -z "$(find tests/simt/"$(basename "$1")" tests/simt/*.h tests/simt/*.cu \
            tests/ref tests/*.h kernels_src -newer "$2" -type f 2>/dev/null | head -n 1)" ]
    then return 0; fi
    $cxx $3 -c "$1" -o "$2"
}

# The parts come first, so that what templates they share with a test is not instrumented. They are not: every
# step of a thread goes through them, and they touch no memory of a kernel's but through shared_at, which checks,
# or by the C library's functions, in whose place AddressSanitizer's stand.
objects=
for part in $parts; do
    compile "tests/simt/$part.cpp" "$out/$part.o" "$part_flags -O2 -fno-sanitize=all" ||
        { echo "Bail out! $part.cpp"; exit 1; }
    objects="$objects $out/$part.o"
done

build_and_run() {
    compile "tests/simt/$1_simt.cpp" "$out/$1.o" "$flags" >"$out/$1.log" 2>&1 &&
        $cxx $objects "$out/$1.o" $link -ldl -o "$out/$1" >>"$out/$1.log" 2>&1 &&
        "$out/$1" >"$out/$1.log" 2>&1
    echo $? >"$out/$1.status"
}

names= others=
for file in tests/simt/*_simt.cpp; do
    name=$(basename "$file" _simt.cpp)
    case " $* " in
        "  " | *" $name "*)
            if has_turn "simt $name" $turn; then names="$names $name"; else others="$others $name"; fi ;;
    esac
done

# Two at a time.
waiting=
for name in $names; do
    build_and_run "$name" &
    if [ -n "$waiting" ]; then wait "$waiting"; fi
    waiting=$!
done
wait

{
for name in $others; do no_turn "$name"; done
for name in $names; do
    sed -e '/^1\.\.[0-9]*$/d' -e '/^[0-9]* passed, /d' -e "s/^\(ok\|not ok\) \([0-9]*\) - /\1 \2 - $name: /" \
        "$out/$name.log"
    status=$(cat "$out/$name.status")
    if [ "$status" -ne 0 ] && ! grep -q '^not ok ' "$out/$name.log"; then
        echo "not ok 0 - $name: exit status $status"
    fi
done
} | awk -v label=$label '
    /^not ok / { failed++ }
    /^ok .*# SKIP/ { skipped++ }
    /^(not )?ok / { n++; sub(/ok [0-9]+/, "ok " n); sub(/ - /, " - " label " ") }
    { print }
    END {
        printf "1..%d\n%d passed, %d failed, %d skipped\n", n, n - failed - skipped, failed, skipped
        exit failed > 0 || n == 0
    }'
