# No warnings, from gcc and clang, with the strict set; optimised, so that both look at data flow.
. tests/tap.sh

for compiler in gcc clang; do
    command -v $compiler >/dev/null || { tap_skip "$compiler is not installed"; continue; }
    for unit in runtime.c runtime/program/program.c; do
        check "$unit has no warnings from $compiler" \
            $compiler -std=c11 -O1 $warnings -Werror $lua_cflags -c "$unit" -o "$work/unit.o"
    done
done
tap_done
