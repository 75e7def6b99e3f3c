#!/bin/sh
# The NVRTC compile matrix (matrix.c), in two processes. Arguments: the kernels to compile (topk, ...).
#
# The first instance of every file is compiled for sm_90a each time: which code an architecture takes follows
# from CAIRN_ARCH alone, so this meets nearly all that is written, and of an instance's own code nearly all is
# the same on each. What may differ by both is how many registers the assembler takes. So `./build.sh test nvrtc`
# compiles the full product, and should after a kernel changed; within the whole suite, which runs for every
# change of anything, the first instances meet sm_80 and sm_120 one time of eight and some other architecture one
# time of four, and each of the others takes its turn at one of sm_80, sm_90a and sm_120 by the tree's seed, one time of
# 24: each change tries another share.
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
