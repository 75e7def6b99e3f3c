# runtime.h and runtime_ops.h as their users meet them: every promised language, twice in a unit, in
# two units, and what a build exports.
. tests/tap.sh

strict="-Wall -Wextra -Wshadow -Wundef -pedantic -Werror"

cat > "$work/declare.c" <<'C'
#include "runtime.h"
#include "runtime_ops.h"
#include "runtime.h"
#include "runtime_ops.h"
int main(void) { return cairn_version() < 0; }
C
cp "$work/declare.c" "$work/declare.cpp"
for compiler in gcc clang; do
    command -v $compiler >/dev/null || { tap_skip "$compiler is not installed"; continue; }
    for std in c99 c11; do
        check "the header is $std for $compiler" \
            $compiler -std=$std $strict -Wstrict-prototypes -Wc++-compat -I. -fsyntax-only \
            "$work/declare.c"
    done
done
for compiler in g++ clang++; do
    command -v $compiler >/dev/null || { tap_skip "$compiler is not installed"; continue; }
    for std in c++11 c++20; do
        check "the header is $std for $compiler" \
            $compiler -std=$std $strict -I. -fsyntax-only "$work/declare.cpp"
    done
done

# As Microsoft's compiler takes them: clang in its mode, without its own extensions, on headers that
# say what those of that compiler say.
mkdir -p "$work/msvc"
cat > "$work/msvc/stddef.h" <<'C'
#pragma once
typedef unsigned __int64 size_t;
typedef __int64 ptrdiff_t;
#ifndef __cplusplus
typedef unsigned short wchar_t;
#define NULL ((void *)0)
#endif
#define offsetof(type, field) ((size_t)&(((type *)0)->field))
C
cat > "$work/msvc/stdint.h" <<'C'
#pragma once
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef unsigned __int64 uintptr_t;
#define INT32_MAX 2147483647i32
#define INT64_MAX 9223372036854775807i64
#define UINT64_MAX 0xffffffffffffffffui64
C
cat > "$work/msvc/stdbool.h" <<'C'
#pragma once
#ifndef __cplusplus
#define bool _Bool
#define true 1
#define false 0
#endif
C
msvc() {
    language=$1; shift
    clang --target=x86_64-pc-windows-msvc -fms-extensions -fms-compatibility \
        -fms-compatibility-version=19.20 -x "$language" -nostdinc -isystem "$work/msvc" -U__clang__ \
        -U__GNUC__ -Wall -Wextra -Wshadow -Wundef -Wgnu -Werror -I. -fsyntax-only "$@"
}
if command -v clang >/dev/null; then
    for std in c11 c17; do
        check "the header is Microsoft's C, $std" msvc c -std=$std "$work/declare.c"
    done
    for std in c++14 c++17 c++20; do
        check "the header is Microsoft's C++, $std" msvc c++ -std=$std "$work/declare.cpp"
    done
    printf '%s\n' '#define CAIRN_API __declspec(dllimport)' '#include "runtime_ops.h"' > "$work/import.c"
    check "its calls may come from a DLL" msvc c -std=c11 "$work/import.c"
    printf '#include "runtime.h"\nint f(void) __attribute__((cold));\nunsigned u = __GNUC__;\n' \
        > "$work/foreign.c"
    check_fails "what only gcc knows would be seen" "__GNUC__" msvc c -std=c11 "$work/foreign.c"
else
    tap_skip "clang is not installed"
fi

printf '#define CAIRN_IMPLEMENTATION\n#include "runtime.h"\n' > "$work/implement.c"
check "two units, one of them the implementation, make a program, and not a warning" sh -c "
    $CC -std=c11 -O0 -Wall -Wextra -Werror -DCAIRN_NO_LUA -I. -c '$work/implement.c' -o '$work/implement.o' &&
    $CC -std=c11 -I. '$work/declare.c' '$work/implement.o' -o '$work/two' $libraries"
check "that program runs" "$work/two"

# The manual for embedding stands alone; the ops' header brings it, also with the implementation.
lines=$(wc -l < runtime.h | tr -d ' ')
check "runtime.h has $lines lines, at most 978" [ "$lines" -le 978 ]
printf '#include "runtime_ops.h"\nint main(void) { return !cairn_type_bytes(CAIRN_F32); }\n' > "$work/ops.c"
check "runtime_ops.h alone declares both" $CC -std=c99 $strict -I. -fsyntax-only "$work/ops.c"
sed 's/^#include/#define CAIRN_IMPLEMENTATION\n#include/' "$work/ops.c" > "$work/ops_all.c"
check "and brings the implementation" \
    $CC -std=c11 -DCAIRN_NO_LUA -Wall -Wextra -Werror -I. -fsyntax-only "$work/ops_all.c"
printf '#include "runtime.h"\nint main(void) { cairn_tensor *t = 0; return !t; }\n' > "$work/small.c"
check_fails "runtime.h alone knows no tensors" "cairn_tensor" \
    $CC -std=c11 -I. -fsyntax-only "$work/small.c"

build/cairn run tests/null_calls.lua > "$work/null.c"
check "every call is written out with NULL for its pointers" \
    $CC -std=c11 -I. "$work/null.c" "$work/implement.o" -o "$work/null" $libraries
check "none of them crashes, and each says what is wrong" "$work/null"

printf '#include <stdio.h>\n#define CAIRN_IMPLEMENTATION\n#include "runtime.h"\n' > "$work/late.c"
check_fails "an implementation after another header is refused" "before every other include" \
    $CC -std=c11 -DCAIRN_NO_LUA -I. -fsyntax-only "$work/late.c"

cp "$work/implement.c" "$work/implement.cpp"
check_fails "an implementation as C++ is refused" "implementation is C11" \
    g++ -DCAIRN_NO_LUA -I. -fsyntax-only "$work/implement.cpp"
check_fails "one without atomics, too" "needs C11 with <stdatomic.h>" \
    $CC -std=c11 -D__STDC_NO_ATOMICS__ -DCAIRN_NO_LUA -I. -fsyntax-only "$work/implement.c"

exported() { nm -g --defined-only "$1" | awk 'NF == 3 { print $3 }'; }
others=$(exported build/cairn.so | grep -v -e '^cairn_' -e '^luaopen_cairn$' || true)
check_text "build/cairn.so exports cairn_* and luaopen_cairn alone" "$others" ""
check "build/cairn.so exports luaopen_cairn" sh -c 'nm -g build/cairn.so | grep -q luaopen_cairn'

declared=$(grep -oh '\bcairn_[a-z0-9_]*(' runtime.h runtime_ops.h | tr -d '(' | sort -u)
exported build/cairn.so | sort -u > "$work/exported"
missing=''
for name in $declared; do
    grep -qx "$name" "$work/exported" || ! cat runtime.h runtime_ops.h | grep -q "CAIRN_API.*\b$name(" ||
        missing="$missing $name"
done
check_text "every call that the header declares is there" "$missing" ""

linked=$(readelf -d build/cairn.so | sed -n 's/.*NEEDED.*\[\(.*\)\].*/\1/p' |
    grep -v -e '^ld-' -e '^libc\.' -e '^libm\.' -e '^libdl\.' -e '^libpthread\.' || true)
check_text "build/cairn.so needs libc with its loader, libm, libdl and libpthread alone" "$linked" ""
tap_done
