#!/bin/sh
# Measures recovery: a GPU of a lab's node breaks under a job, and the job runs again on others. The time is from the
# fault to the first line that the requeued job writes. Prints median, 95th percentile and the longest.
# Usage: scripts/recovery.sh [RUNS]     (default: 50; needs root and Slurm, as every lab does)
set -eu
cd "$(dirname "$0")/.."
GPUOS_RECOVERY_RUNS=${1:-50} ${CARGO:-cargo} test --locked -q -p gpuos_tests --test slurm faults::recovery -- --nocapture
