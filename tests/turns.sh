# turns.sh: the whole suite runs for every change of anything, and most of its time went to the emulated GPU.
# So within it (CAIRN_TEST_TURNS=1, by tests/suite.sh) what runs there takes turns by the tree's seed: with one
# tree of three under the sanitizers, with another under the race detector, each test at its own.
# `./build.sh test NAME...` runs all of what it names, as CAIRN_TEST_TURNS=0 does of the whole suite: after
# a kernel changed `./build.sh test simt simt_race emulated` should, and the tests of what it is for.
# tests/nvrtc/run.sh has turns of its own.

# has_turn NAME WHICH: whether that test has turn 0, with sanitizers, or 1, with the race detector.
has_turn() {
    [ "${CAIRN_TEST_TURNS:-0}" = 1 ] || return 0
    name_sum=$(printf %s "$1" | cksum)
    [ $(((${name_sum%% *} + ${CAIRN_SEED:-0} % 1000000) % 3)) = "$2" ]
}

no_turn() { echo "ok 0 - $1 # SKIP on the emulated GPU: another tree's turn (tests/turns.sh)"; }
