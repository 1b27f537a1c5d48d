#!/bin/sh
# How many tests of PBS a run has skipped, and what they need: half a sentence; nothing where it has skipped none.
# Usage: scripts/skipped.sh FILE     FILE: lines `needs<tab>test` of tests/src/pbs.rs
set -eu
[ -s "${1:?the file with the skipped tests}" ] || exit 0
awk -F '\t' '{ n[$1]++; all++ }
    END { printf "; %d tests of PBS were skipped, as GPUOS_TEST_PBS names no installed PBS:", all
          for (needs in n) printf "%s %d need %s", (seen++ ? "," : ""), n[needs], needs }' "$1"
