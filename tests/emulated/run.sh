#!/bin/sh
# The C tests whose head comment says "emulated: ... race", run against the emulated driver
# (tests/simt/emulate.sh) with kernels under the race detector. With AddressSanitizer they run by
# tests/suite.sh, and top-k's kernels meet the race detector in simt_race. Arguments: tests; none:
# all but those that are a job of their own (tests/emulated_NAME).
set -u
cd "$(dirname "$0")/../.." || exit 1
: "${CC:=cc}" "${lua_cflags:=$(pkg-config --cflags lua5.4 2>/dev/null)}" "${lua_libs:=-llua5.4}"
: "${libraries:=-lm -ldl -lpthread}"
[ $# -gt 0 ] || set -- $(grep -ls 'emulated: .*race' tests/*_test.c tests/*/*_test.c | sed 's/.*\///; s/_test.c//' |
    while read -r name; do [ -d "tests/emulated_$name" ] || echo "$name"; done)
out=${CAIRN_BUILD:-build}/emulated
mkdir -p "$out"

. tests/apart.sh
. tests/turns.sh
[ -n "${CAIRN_APART_BUILT-}" ] || apart_build plain || exit 1
flags="-std=c11 -g1 -O1 $lua_cflags -w -DCAIRN_API=static -ffp-contract=off"

# run NAME: keeps what was said of cuda, and the failures; of the CPU tests/suite.sh asks.
run() {
    status=1 source=$(ls "tests/$1_test.c" tests/*/"$1_test.c" 2>/dev/null)
    own=$(sed -n '1,20s/.*build: \(-[Di][^*]*\).*/\1/p' "$source")
    if [ -n "$own" ]; then link=$(apart_own plain "$1" $own); else link=$(apart_link plain); fi
    own=$(echo "$own" | sed 's/-include [^ ]*//') # among the declarations, by now
    $CC $flags $own ${link%% *} -I. -Itests "$source" ${link#* } \
        -o "$out/$1" $lua_libs $libraries >"$out/$1.log" 2>&1 &&
        { CAIRN_TEST_BACKEND=cuda tests/simt/emulate.sh --race "$out/$1" >"$out/$1.log" 2>&1; status=$?; }
    sed -n -e "/^ok .*cuda/s/ - / - emulated $1, race: /p" \
        -e '/^not ok\|^#\|emulated CUDA\|error/p' "$out/$1.log"
    if [ $status -ne 0 ] && ! grep -q '^not ok ' "$out/$1.log"; then
        echo "not ok 0 - emulated $1, race: exit status $status"
    fi
}

for name in "$@"; do if has_turn "$name" race; then run "$name"; else no_turn "$name"; fi; done | awk '
    /^not ok / { failed++ }
    /^ok .*# SKIP/ { skipped++ }
    /^(not )?ok / { n++; sub(/ok [0-9]+/, "ok " n) }
    { print }
    END {
        printf "1..%d\n%d passed, %d failed, %d skipped\n", n, n - failed - skipped, failed, skipped
        exit failed > 0 || n == 0
    }'
