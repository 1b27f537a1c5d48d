#!/bin/sh
# Runs a command and adds its time to the file $GPUOS_COSTS, for scripts/costs.sh.
# Usage: scripts/timed.sh WHAT COMMAND...     ends with the command's status
set -u
what=$1
shift
begun=$(date +%s)
"$@"
status=$?
[ -z "${GPUOS_COSTS:-}" ] || printf 'step %s\t%s\n' "$what" "$(($(date +%s) - begun))" >>"$GPUOS_COSTS"
exit $status
