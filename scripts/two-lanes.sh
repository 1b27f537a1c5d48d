#!/bin/sh
# Runs two commands side by side: what the first one writes is seen at once, what the second one writes when both have ended.
# Tests on a real Slurm wait a lot, and leave time for those without one.
# Usage: scripts/two-lanes.sh COMMAND OTHER LOG     two lines for sh; OTHER writes to LOG. Fails when one of them does.
set -u
status=0
# A session of its own, so that an interrupt, which ends what is in front, can be handed on to all of it.
setsid sh -c "$2" >"$3" 2>&1 </dev/null &
other=$!
trap 'kill -TERM -"$other" 2>/dev/null; exit 130' INT TERM
sh -c "$1" || status=$?
wait "$other" || status=$?
echo
echo "What ran beside it:"
cat "$3"
exit "$status"
