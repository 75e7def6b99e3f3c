# No warnings, from gcc and clang, with the strict set; gcc optimises, for it looks at data flow only then. clang
# looks as it reads. Of $CC the whole runtime is compiled so, with more optimisation, by tests/dist_test.sh, but for
# one warning.
. tests/tap.sh

case $($CC --version 2>/dev/null) in *clang*) other=gcc ;; *) other=clang ;; esac

for compiler in gcc clang; do
    command -v $compiler >/dev/null || { tap_skip "$compiler is not installed"; continue; }
    units=runtime/program/program.c
    case $compiler in clang) work_of='-fsyntax-only' ;; *) work_of='-O1 -c' ;; esac
    [ $compiler != $other ] || units="runtime.c $units"
    for unit in $units; do
        check "$unit has no warnings from $compiler" \
            $compiler -std=c11 $work_of $warnings -Werror $lua_cflags "$unit" -o "$work/unit.o"
    done
done
check "no indentation in runtime.c misleads" \
    $CC -std=c11 -Wmisleading-indentation -Werror $lua_cflags -fsyntax-only runtime.c
tap_done
