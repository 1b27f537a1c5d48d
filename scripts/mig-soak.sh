#!/bin/sh
# Thousands of random jobs with slices of GPUs on a lab of four nodes: cancelled, failing, requeued while they run. No slice is
# two jobs', no instance is given twice, and after each fifty jobs the driver has none left.
# Usage: scripts/mig-soak.sh [JOBS]     (default: 5000; needs root and Slurm, as every lab does)
set -eu
cd "$(dirname "$0")/.."
GPUOS_MIG_SOAK_JOBS=${1:-5000} ${CARGO:-cargo} test --locked -q -p gpuos_tests --test mig soak -- --nocapture
