# A user's plain `cc -O2 game.c` gives the numbers that are tested: GNU C fuses a * b + c where the
# processor can, our own build says -ffp-contract=off, and the implementation is to be exact in both. A compiler
# takes a minute, so within the whole suite gcc and clang take turns, and with six trees of eight neither has one
# (tests/turns.sh; tests/dist_test.sh and tests/windows/run.sh have theirs with others of them).
. tests/tap.sh
. tests/turns.sh

cat > "$work/exact.c" <<'C'
#include "runtime_ops.h"
#include <stdio.h>
#include <string.h>
static float x[8][64], y[8][64], w[64], logits[512];
static int64_t shape[3] = {8, 1, 64}, rows[2] = {8, 64}, line[1] = {64}, vocab[2] = {1, 512};
static cairn_tensor view(void *data, int rank, int64_t *extents, int code) {
    cairn_tensor t;
    memset(&t, 0, sizeof t);
    t.data = data, t.device.type = 1, t.ndim = rank, t.shape = extents;
    t.dtype.code = (uint8_t)code, t.dtype.bits = 32, t.dtype.lanes = 1;
    return t;
}
static void show(void) {
    const float *at = &y[0][0];
    for (int i = 0; i < 512; i++) printf("%a\n", at[i]);
}
int main(void) {
    cairn_config config;
    cairn_runtime *rt;
    int32_t positions[8], token;
    uint32_t state = 1;
    cairn_tensor tx = view(x, 2, rows, 2), ty = view(y, 2, rows, 2), tw = view(w, 1, line, 2);
    cairn_tensor hx = view(x, 3, shape, 2), hy = view(y, 3, shape, 2);
    cairn_tensor tp = view(positions, 1, shape, 0);
    cairn_tensor tl = view(logits, 2, vocab, 2), tt = view(&token, 1, &shape[1], 0);
    cairn_rmsnorm_args norm = {sizeof norm, 1e-5f, &tx, &tw, &ty};
    cairn_rope_args rope;
    cairn_sample_args sample;
    cairn_config_default(&config);
    config.backend = CAIRN_BACKEND_CPU;
    if (cairn_open(&config, &rt, NULL, 0)) return 2;
    for (int i = 0; i < 512; i++) {
        state = state * 1664525u + 1013904223u; /* inputs are whole numbers, so exact anyway */
        x[i / 64][i % 64] = (float)(state >> 16), w[i % 64] = (float)(state >> 20);
        logits[i] = (float)(state >> 28);
        positions[i / 64] = i * 37;
    }
    if (cairn_rmsnorm(rt, &norm)) return puts(cairn_last_error(rt)), 3;
    show();
    memset(&rope, 0, sizeof rope);
    rope.struct_size = sizeof rope, rope.x = &hx, rope.positions = &tp, rope.out = &hy;
    if (cairn_rope(rt, &rope)) return puts(cairn_last_error(rt)), 4;
    show();
    memset(&sample, 0, sizeof sample);
    sample.struct_size = sizeof sample, sample.temperature = 0.8f, sample.top_p = 0.9f;
    sample.logits = &tl, sample.tokens = &tt;
    if (cairn_sample(rt, &sample)) return puts(cairn_last_error(rt)), 5;
    printf("%d\n", (int)token);
    cairn_close(rt);
    return 0;
}
C

# fused OBJECT: each function with fused multiply-adds, and how many.
fused() {
    objdump -d --no-show-raw-insn "$1" | awk '/>:$/ { f = $2 } /\tvfn?m(add|sub)/ { n[f]++ }
        END { for (f in n) print f, n[f] }' | sort
}

printf 'float f(float a, float b, float c) { return a * b + c; }\n' > "$work/probe.c"
printf '#define CAIRN_IMPLEMENTATION\n#include "exact.c"\n' > "$work/plain.c"
printf '#include "runtime.c"\n' > "$work/kernels.c"
check "it runs as the tests' own build" sh -c "$CC -std=c11 -I. $work/exact.c build/cairn.so \
    -o $work/strict $lua_libs $libraries && $work/strict > $work/strict.txt"
case $(turn_of 8) in
    1) compilers=gcc ;;
    3) compilers=clang ;;
    -1) compilers='gcc clang' ;;
    *) compilers='' ; tap_skip "as users compile it: $another_turn" ;;
esac
for compiler in $compilers; do
    command -v $compiler >/dev/null || { tap_skip "$compiler is not installed"; continue; }
    $compiler -march=haswell -c "$work/probe.c" -o "$work/probe.o" 2>/dev/null ||
        { tap_skip "$compiler: not for x86-64"; continue; }
    case $compiler in gcc) level=-O2 ;; *) level=-O1 ;; esac # the least that fuses
    flags="$level -march=haswell -DCAIRN_NO_LUA -w -I."
    check "$compiler compiles it as a user does" $compiler $flags -c "$work/plain.c" -o "$work/plain.o"
    check "$compiler compiles the kernels as the tests do" $compiler -std=c11 -ffp-contract=off \
        $flags -DCAIRN_ROOMS_ONLY -DCAIRN_SIMD_UNIT -c "$work/kernels.c" -o "$work/kernels.o"
    check_text "$compiler fuses no product that is not written so" \
        "$(fused "$work/plain.o" | grep -v '_avx\(2\|512\)' | grep -v '^<main>')" ""
    check_text "$compiler fuses in the kernels what is written so" \
        "$(fused "$work/plain.o" | grep '_avx\(2\|512\)')" \
        "$(fused "$work/kernels.o" | grep '_avx\(2\|512\)')"
    check "the kernels do fuse" sh -c "objdump -d $work/plain.o | grep -q 'vfmadd'"
    grep -q '^flags.* fma .*avx2\|^flags.* avx2.* fma' /proc/cpuinfo 2>/dev/null ||
        { tap_skip "$compiler: this processor has no FMA"; continue; }
    $compiler "$work/plain.o" -o "$work/plain" $libraries && "$work/plain" > "$work/plain.txt"
    check "$compiler: both give the same numbers" cmp "$work/plain.txt" "$work/strict.txt"
    check_text "$compiler: all of them" "$(wc -l < "$work/plain.txt" | tr -d ' ')" 1025
done
tap_done
