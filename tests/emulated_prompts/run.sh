#!/bin/sh
# The longest of the emulated tests, by itself: no core waits for the others' end.
exec "$(dirname "$0")/../emulated/run.sh" prompts
