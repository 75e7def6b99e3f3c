# scripts/examples: each is compiled and run, and its characters speak.
. tests/tap.sh

# example NAME FLAGS...: as written it is one unit with the runtime, whose parse says that both go
# together; that the runtime compiles so is for tests/dist_test.sh. What runs is linked with build/cairn.so.
example() {
    name=$1; shift
    how="-std=c11 -O2 -Wall -Wextra -Wno-unused-function -I. $lua_cflags"
    check "$name.c is one unit with the runtime" $CC $how "$@" -fsyntax-only "scripts/examples/$name.c"
    sed '/^#define CAIRN_IMPLEMENTATION/d' "scripts/examples/$name.c" > "$work/$name.c"
    check "$name.c compiles" $CC $how -D_POSIX_C_SOURCE=200809L "$work/$name.c" build/cairn.so "$@" \
        -o "$work/$name" $lua_libs $libraries
}
example npc
example worker
if ! pkg-config --exists sdl2 2>/dev/null; then tap_skip "SDL2 is not installed: npc_sdl2.c"
else example npc_sdl2 $(pkg-config --cflags --libs sdl2); fi
if [ -z "${CAIRN_MODEL:-}" ]; then
    tap_skip "no model: the examples"
else
    check "npc runs" sh -c "$work/npc $CAIRN_MODEL 120 > $work/npc.txt"
    check "the guard speaks" grep -q "^guard: .*[a-z]" "$work/npc.txt"
    check "the smith speaks" grep -q "^smith: .*[a-z]" "$work/npc.txt"
    check "the frames' times are printed" grep -q "^[0-9]* frames; .* late" "$work/npc.txt"
    sed 's/^/# /' "$work/npc.txt"
    if [ -x "$work/npc_sdl2" ]; then
        check "npc_sdl2 runs" sh -c "SDL_VIDEODRIVER=dummy SDL_RENDER_DRIVER=software \
            $work/npc_sdl2 $CAIRN_MODEL 120 > $work/sdl2.txt"
        check "both speak in the window" [ "$(grep -c '^guard: \|^smith: ' "$work/sdl2.txt")" = 2 ]
        check "its frames' times, too" [ "$(grep -c '^[0-9]* frames; .* late' "$work/sdl2.txt")" = 2 ]
        sed 's/^/# /' "$work/sdl2.txt"
    fi
    check "npc.lua runs" sh -c "build/cairn run scripts/examples/npc.lua $CAIRN_MODEL > $work/lua.txt"
    check "both speak" [ "$(grep -c '^guard: \|^smith: ' "$work/lua.txt")" = 2 ]
    check "worker runs" sh -c "$work/worker $CAIRN_MODEL 'What is iron?' 'Name a tree.' > $work/w.txt"
    check "both questions are answered" [ "$(grep -c '^> .*[a-z]' "$work/w.txt")" = 2 ]
    tail -n 1 "$work/w.txt" | sed 's/^/# /'
fi
tap_done
