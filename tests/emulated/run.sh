#!/bin/sh
# The C tests that have a CUDA half, run against the emulated driver (tests/simt/emulate.sh): once
# with kernels under AddressSanitizer, once under the race detector (top-k's kernels meet that in
# simt_race). Arguments: tests; none: all.
set -u
cd "$(dirname "$0")/../.." || exit 1
: "${CC:=cc}" "${lua_cflags:=$(pkg-config --cflags lua5.4 2>/dev/null)}" "${lua_libs:=-llua5.4}"
: "${libraries:=-lm -ldl -lpthread}"
[ $# -gt 0 ] || set -- ops kv steps page_calls snapshot prefix_chunks forward_cuda conv sample_few \
    topk_rows topk_faults
out=${CAIRN_BUILD:-build}/emulated
mkdir -p "$out"

# run NAME LABEL SANITIZERS EMULATE-OPTION: keeps what was said of cuda, and the failures.
run() {
    status=1
    $CC -std=c11 -g -O1 $lua_cflags -Wno-unused-function -ffp-contract=off $3 "tests/$1_test.c" \
        -o "$out/$1_$2" $lua_libs $libraries >"$out/$1_$2.log" 2>&1 &&
        { tests/simt/emulate.sh $4 "$out/$1_$2" >"$out/$1_$2.log" 2>&1; status=$?; }
    sed -n -e "/^ok .*cuda/s/ - / - emulated $1, $2: /p" -e '/^not ok\|^#\|emulated CUDA\|error/p' \
        "$out/$1_$2.log"
    if [ $status -ne 0 ] && ! grep -q '^not ok ' "$out/$1_$2.log"; then
        echo "not ok 0 - emulated $1, $2: exit status $status"
    fi
}

for name in "$@"; do
    run "$name" asan "-fsanitize=address,undefined -fno-sanitize-recover=all" ""
    case $name in topk_*) ;; *) run "$name" race "" --race ;; esac
done | awk '
    /^not ok / { failed++ }
    /^(not )?ok / { n++; sub(/ok [0-9]+/, "ok " n) }
    { print }
    END {
        printf "1..%d\n%d passed, %d failed, 0 skipped\n", n, n - failed, failed
        exit failed > 0 || n == 0
    }'
