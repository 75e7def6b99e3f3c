# Every room keeps its contract, and the check itself sees what breaks one.
. tests/tap.sh

lua=$(command -v lua5.4 || echo "build/cairn run")
check "every room keeps its contract" $lua gen/rooms.lua

# breach NAME TEXT FILE LINE...: a copy of the tree with these lines at the end of FILE is refused.
mkdir -p "$work/tree"
breach() {
    rm -rf "$work/tree/runtime"
    cp -R runtime runtime.c gen "$work/tree"
    printf '%s\n' "$4" >> "$work/tree/$3"
    check_fails "$1" "$2" sh -c "cd $work/tree && $lua gen/rooms.lua"
}
breach "a foreign prefix" "functions of this file begin with os_ or file_" runtime/os/file.c \
    'static void misnamed(void) {}'
breach "what another room uses and no header declares" "driver_note: os uses it, no header" \
    runtime/os/file.c 'static int os_count(void) { return sizeof driver_note; }'
breach "a promise that no one needs" "no other room uses it" runtime/os/os.h \
    '/* Nothing. */
static void os_unused(void);'
breach "a promise without words" "a comment says what is promised" runtime/os/os.h '
static int os_cpu_count(void);'
breach "a backend asked about where it does not matter" "asks 1 times which backend runs" \
    runtime/api/open.c 'static bool open_asks(device *dev) { return dev->cuda; }'
tap_done
