#!/bin/sh
# What each step of a run and each suite on real Slurms cost, the dearest first.
# Usage: scripts/costs.sh FILE     FILE: lines `name<tab>seconds` of scripts/timed.sh and of tests/src/costs.rs
set -eu
[ -s "${1:?the file with the costs}" ] || exit 0

echo
echo 'step                                        seconds'
sed -n 's/^step //p' "$1" | awk -F '\t' '{ printf "%-42s %8d\n", $1, $2; all += $2 } END { printf "%-42s %8d\n", "all", all }'

# slurm::mig::crash::native::name: the suite is the first module, the release stands in front of the test's name. Suites
# run side by side, so their seconds add up to more than the step took.
grep -q '^slurm::' "$1" || exit 0
echo
echo 'suite            tests  seconds  of all  dearest test'
sed -n 's/^slurm:://p' "$1" | awk -F '\t' '
    { split($1, path, "::"); suite = path[1]; n[suite]++; sum[suite] += $2; all += $2
      if ($2 > most[suite]) { most[suite] = $2; dearest[suite] = $1 } }
    END { for (suite in n) printf "%-15s %6d %8.0f %5.0f %%  %s (%.0f s)\n", suite, n[suite], sum[suite],
          all ? 100 * sum[suite] / all : 0, dearest[suite], most[suite] }' | sort -k3,3nr
