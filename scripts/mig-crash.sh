#!/bin/sh
# Kills gpuosd, slurmd, slurmstepd and slurmctld with SIGKILL at each point of making and releasing slices of a GPU, and prints the
# table: no instance is left, no slice is lost, no job is on the device of another.
# Usage: scripts/mig-crash.sh [CELLS]     (default: all; CELLS, as "slurmctld: before": those whose name begins so, and then "slurmctld, not saved" too; needs root and Slurm)
set -eu
cd "$(dirname "$0")/.."
GPUOS_MIG_CRASHES=${1:-all} ${CARGO:-cargo} test --locked -q -p gpuos_tests --test slurm mig_crash:: -- --nocapture --test-threads=1
