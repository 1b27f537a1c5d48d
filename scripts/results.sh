#!/bin/sh
# Runs the benchmark and writes its figures into docs/results: benchmarks.csv, benchmarks.svg and the tables of benchmarks.md.
# Usage: scripts/results.sh [--no-run]     --no-run: with the figures that target/bench has
set -eu
cd "$(dirname "$0")/.."
bench=${CARGO_TARGET_DIR:-target}/bench
results=docs/results

[ "${1:-}" = --no-run ] || scripts/bench.sh
for kind in csv svg; do cp "$bench/bench.$kind" "$results/benchmarks.$kind"; done
# The run's day: figures are of a day and a revision.
day=$(date -r "$bench/bench.md" +%F)
awk -v tables="$bench/bench.md" -v day="$day" '
    /^<!-- tables: make results -->$/ {
        print; print ""; print "Measured on " day "."; print ""
        while ((getline line < tables) > 0) print line
        inside = 1
    }
    /^<!-- end of tables -->$/ { inside = 0 }
    !inside && !/^<!-- tables: make results -->$/
' "$results/benchmarks.md" >"$bench/page.md"
mv "$bench/page.md" "$results/benchmarks.md"
echo "written: $results/benchmarks.md, $results/benchmarks.csv, $results/benchmarks.svg"
