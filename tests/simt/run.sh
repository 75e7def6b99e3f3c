#!/bin/sh
# Builds every tests/simt/*_simt.cpp with AddressSanitizer and UBSan, runs them all and prints one
# TAP stream. Arguments name the tests to run (topk, selftest, ...); none: all.
# CXX chooses the compiler, CAIRN_SIMT_SEED repeats an order of threads.
set -u
cd "$(dirname "$0")/../.." || exit 1
out=${CAIRN_BUILD:-build}/simt
mkdir -p "$out" || exit 1
cxx=${CXX:-g++}
flags="-std=c++17 -O1 -g -fno-omit-frame-pointer -fno-strict-aliasing -ffp-contract=off
 -fsanitize=address,undefined -fno-sanitize-recover=undefined -ftrivial-auto-var-init=pattern
 -Wall -Wextra -Wno-unknown-pragmas -Itests/simt -Ikernels_src -DCAIRN_SIMT=1"
parts="fibre simt simt_operations"

# Compiles $1 to $2, unless nothing it could include is newer.
compile() {
    if [ -e "$2" ] && [ -z "$(find tests/simt tests/ref tests/tap.h kernels_src -newer "$2" \
            -type f 2>/dev/null | head -n 1)" ]; then return 0; fi
    $cxx $flags -c "$1" -o "$2"
}

objects=
for part in $parts; do
    compile "tests/simt/$part.cpp" "$out/$part.o" || { echo "Bail out! $part.cpp"; exit 1; }
    objects="$objects $out/$part.o"
done

passed=0 failed=0 skipped=0 number=0
for file in tests/simt/*_simt.cpp; do
    name=$(basename "$file" _simt.cpp)
    if [ $# -gt 0 ]; then case " $* " in *" $name "*) ;; *) continue ;; esac; fi
    log="$out/$name.log"
    status=1
    if compile "$file" "$out/$name.o" >"$log" 2>&1 &&
        $cxx $flags "$out/$name.o" $objects -o "$out/$name" >>"$log" 2>&1; then
        "$out/$name" >"$log" 2>&1
        status=$?
    fi
    awk -v name="$name" -v number=$number '
        /^(not )?ok / { number++; sub(/ok [0-9]+/, "ok " number); sub(/ - /, " - " name ": ") }
        /^1\.\.[0-9]+$/ || /^[0-9]+ passed, / { next }
        { print }' "$log"
    number=$((number + $(grep -c -E '^(not )?ok ' "$log")))
    passed=$((passed + $(grep -E '^ok ' "$log" | grep -v -c '# SKIP')))
    skipped=$((skipped + $(grep -c -E '^ok .*# SKIP' "$log")))
    bad=$(grep -c '^not ok ' "$log")
    failed=$((failed + bad))
    if [ $status -ne 0 ] && [ "$bad" -eq 0 ]; then
        number=$((number + 1)) failed=$((failed + 1))
        echo "not ok $number - $name: exit status $status"
    fi
done
echo "1..$number"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$number" -gt 0 ]
