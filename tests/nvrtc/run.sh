#!/bin/sh
# The NVRTC compile matrix (matrix.c), in two processes. Arguments: the kernels to compile (topk, ...).
#
# Every file is compiled for sm_80, sm_90a and sm_120 each time: which code an architecture takes follows
# from CAIRN_ARCH alone, so its first instance meets all that is written for them, and nearly all of an
# instance's own code is the same on each. What may differ by both is how many registers the assembler
# takes. So `./build.sh test nvrtc` compiles the full product, and should after a kernel changed; within
# the whole suite, which runs for every change of anything, an instance takes its turn at one of the three
# by the tree's seed, every other time: each change tries another sixth.
set -u
cd "$(dirname "$0")/../.." || exit 1
out=${CAIRN_BUILD:-build}/nvrtc_matrix
mkdir -p "$out/kept" || exit 1
find "$out/kept" -type f -mtime +30 -delete
[ -z "$(find tests/nvrtc tests/tap.h -newer "$out/matrix" 2>&1)" ] || rm -f "$out"/kept/* # judged anew
export CAIRN_MATRIX_KEPT="$out/kept"
${CC:-cc} -std=c11 -O1 -Wall -Wextra tests/nvrtc/matrix.c -ldl -o "$out/matrix" || exit 1
"$out/matrix" 0/2 "$@" >"$out/part0" 2>&1 &
first=$!
"$out/matrix" 1/2 "$@" >"$out/part1" 2>&1
second_status=$?
wait $first
status=$((second_status + $?))
cat "$out/part0" "$out/part1" | awk -v status=$status '
    /^1\.\.[0-9]+$/ || /^[0-9]+ passed, / { next }
    /^not ok / { failed++ }
    /^ok .*# SKIP/ { skipped++ }
    /^(not )?ok / { n++; sub(/ok [0-9]+/, "ok " n); sub(/ - /, " - matrix: ") }
    { print }
    END {
        if (status && !failed) { print "not ok " ++n " - matrix: ended early"; failed++ }
        printf "1..%d\n%d passed, %d failed, %d skipped\n", n, n - failed - skipped, failed, skipped
        exit failed > 0 || n == 0
    }'
