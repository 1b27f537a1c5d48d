#!/bin/sh
# Measures how soon a dead node is found: slurmd and gpuosd of one of a job's three nodes are killed. The times are from
# there until the other two have agreed, until slurmctld has requeued the job, and until it runs again.
# Usage: scripts/heartbeat.sh [RUNS]     (default: 10, more than a minute each; needs root and Slurm, as every lab does)
set -eu
cd "$(dirname "$0")/.."
GPUOS_HEARTBEAT_RUNS=${1:-10} ${CARGO:-cargo} test --locked -q -p gpuos_tests --test slurm heartbeat::detection -- --nocapture
