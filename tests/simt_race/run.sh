#!/bin/sh
# The emulated kernels' tests once more, under the race detector.
exec "$(dirname "$0")/../simt/run.sh" --race "$@"
