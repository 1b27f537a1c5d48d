#!/bin/sh
# Thousands of random jobs with slices of GPUs on a lab of four nodes: cancelled, failing, requeued while they run. No slice is
# two jobs', no instance is given twice, and after each fifty jobs the driver has none left. Then jobs with slices and jobs with whole
# GPUs on a node with a MIG-switchable GPU: nobody has it whole while another has slices of it, and each finds it as it should be.
# Usage: scripts/mig-soak.sh [JOBS [JOBS WITH A MIG-SWITCHABLE GPU]]     (default: 5000 200; needs root and Slurm, as every lab does)
set -eu
cd "$(dirname "$0")/.."
GPUOS_MIG_SOAK_JOBS=${1:-5000} ${CARGO:-cargo} test --locked -q -p gpuos_tests --test slurm mig::soak -- --nocapture
GPUOS_MIG_SWITCH_JOBS=${2:-200} ${CARGO:-cargo} test --locked -q -p gpuos_tests --test slurm mig_switch::soak -- --nocapture
