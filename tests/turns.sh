# turns.sh: the whole suite runs for every change of anything, and most of its time went to the emulated GPU.
# So within it (CAIRN_TEST_TURNS=1, by tests/suite.sh) what runs there takes turns by the tree's seed: with one
# tree of 32 under the sanitizers, with another under the race detector. They are dealt out by their place in one
# list, so that each tree has one or two of each. tests/lua/gpu_test.lua, which meets every kind of call, runs there
# with each tree.
# `./build.sh test NAME...` runs all of what it names, as CAIRN_TEST_TURNS=0 does of the whole suite: after
# a kernel changed `./build.sh test simt simt_race emulated` should, and the tests of what it is for.
# tests/nvrtc/run.sh has turns of its own, and so have tests that build all for others: tests/exact_test.sh,
# tests/dist_test.sh, tests/readme_test.sh, tests/windows/run.sh and what clang's UBSan looks at (tests/suite.sh).

# turn_names: all that take turns.
turn_names() {
    for path in tests/simt/*_simt.cpp; do echo "simt $(basename "$path" _simt.cpp)"; done
    for path in $(grep -ls 'emulated: ' tests/*/*_test.c); do basename "$path" _test.c; done
}

# has_turn NAME asan|race: whether that test has its turn with the sanitizers, or with the race detector, half a round
# later.
has_turn() {
    [ "$(turn_of 32)" != -1 ] || return 0
    turn_place=$(turn_names | grep -nx "$1" | cut -d : -f 1)
    case $2 in asan) turn_wanted=0 ;; race) turn_wanted=16 ;; esac
    [ $(((${turn_place:-0} + $(turn_of 32)) % 32)) = "$turn_wanted" ]
}

# turn_of COUNT: which of so many turns this tree has; -1: all.
turn_of() {
    if [ "${CAIRN_TEST_TURNS:-0}" = 1 ]; then echo $((${CAIRN_SEED:-0} % 1000000 % $1)); else echo -1; fi
}

# no_turn NAME [HOW]: the line of a test that does not run so, as the emulated GPU does unless HOW says how.
another_turn="another tree's turn (tests/turns.sh)"
no_turn() { echo "ok 0 - $1 # SKIP ${2:-on the emulated GPU}: $another_turn"; }
