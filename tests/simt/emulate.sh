#!/bin/sh
# Runs a command with the emulated CUDA driver and NVRTC (emulated_cuda.cpp) in place of real ones:
#
#   tests/simt/emulate.sh [--race] build/cairn run script.lua
#
# The command sees one GPU of compute capability CAIRN_SIMT_ARCH (90). With --race kernels run under
# the race detector. Kernels once compiled are kept under build/simt, by a digest of all that they are
# made of; what is older than a month goes when the library is made anew.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
out=${CAIRN_BUILD:-$root/build}/simt extra= parts="fibre simt simt_operations"
case $out in /*) ;; *) out=$PWD/$out ;; esac
if [ "${1-}" = --race ]; then
    shift
    out=$out/race extra=-DSIMT_RACE parts="$parts simt_race"
fi
library=$out/libcairn_emulated_cuda.so
mkdir -p "$out/kernels"
if [ -z "$(find "$library" -newer "$root/runtime/generated/driver.h" 2>/dev/null)" ] ||
    [ -n "$(find "$root/tests/simt" -type f ! -name '*_simt.cpp' -newer "$library")" ]; then
    sources=
    for part in $parts emulated_cuda emulated_nvrtc; do
        sources="$sources $root/tests/simt/$part.cpp"
    done
    # Static thread storage: with its own, allocated, the leak checker of gcc 12 reads a block's size
    # from before it where that begins 16 bytes into a page, and crashes.
    ${CXX:-g++} -std=c++17 -O2 -g -shared -fPIC -ftls-model=initial-exec -fno-strict-aliasing \
        -fno-semantic-interposition -ffp-contract=off -w -DSIMT_LIBRARY $extra \
        "-DSIMT_CXX=\"${CXX:-g++}\"" "-DSIMT_FOLDER=\"$root/tests/simt\"" \
        $sources -ldl -lpthread -o "$library.$$"
    mv "$library.$$" "$library"
    find "$out/kernels" -type f -mtime +30 -delete
fi
CAIRN_CUDA_PATH=$library CAIRN_NVRTC_PATH=$library CAIRN_SIMT_KERNELS=$out/kernels
export CAIRN_CUDA_PATH CAIRN_NVRTC_PATH CAIRN_SIMT_KERNELS
# A cubin cache of its own: these cubins fit no other driver, nor each other with and without ASan.
if [ -n "${CAIRN_CACHE_DIR-}" ]; then exec "$@"; fi
CAIRN_CACHE_DIR=$(mktemp -d)
export CAIRN_CACHE_DIR
trap 'rm -rf "$CAIRN_CACHE_DIR"' EXIT
"$@"
