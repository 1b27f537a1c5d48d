#!/bin/sh
# Measures how long a job waits for its slice of a GPU: from srun to the first line of its program, on a whole GPU and on
# a slice in turns, on a lab of four nodes. Prints median, 95th percentile and the longest of both.
# Usage: scripts/mig-start.sh [RUNS]     (default: 50; needs root and Slurm, as every lab does)
set -eu
cd "$(dirname "$0")/.."
GPUOS_MIG_START_RUNS=${1:-50} ${CARGO:-cargo} test --locked -q -p gpuos_tests --test slurm mig::first_line -- --nocapture
