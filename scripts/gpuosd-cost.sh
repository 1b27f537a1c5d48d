#!/bin/sh
# What gpuosd costs: share of one core and resident memory, over a simulated node of 8 GPUs at default rates.
# The calls into the simulated library are in the figures; a driver's own may cost more or less.
# Usage: scripts/gpuosd-cost.sh [SECONDS]     (default: 60)
set -eu
cd "$(dirname "$0")/.."

seconds=${1:-60}
# As make release builds it.
export CARGO_PROFILE_RELEASE_LTO=fat CARGO_PROFILE_RELEASE_CODEGEN_UNITS=1
${CARGO:-cargo} build --release --locked -q -p gpuosd -p gpuos_nvml
built=${CARGO_TARGET_DIR:-target}/release
scratch=$(mktemp -d)
pid=
trap '[ -z "$pid" ] || kill "$pid" 2>/dev/null; rm -rf "$scratch"' EXIT
"$built/gpuos-nvml" create dgx-h100 --dir "$scratch/nvml" >/dev/null
: >"$scratch/gpuos.toml"
GPUOS_NVML_STATE="$scratch/nvml/state" GPUOS_CONF="$scratch/gpuos.toml" "$built/gpuosd" --node n1 \
    --nvml "$scratch/nvml/libnvidia-ml.so.1" --state-dir "$scratch/state" --runtime-dir "$scratch/run" \
    2>"$scratch/log" &
pid=$!
sleep 5

# Ticks of user and system time, of the daemon and of the commands that it has run.
ticks() { awk '{ sub(/.*\) /, ""); print $12 + $13 + $14 + $15 }' "/proc/$pid/stat"; }
before=$(ticks)
sleep "$seconds"
after=$(ticks)
awk -v used=$((after - before)) -v hertz="$(getconf CLK_TCK)" -v seconds="$seconds" \
    -v rss="$(awk '/^VmRSS/ { print $2 }' "/proc/$pid/status")" \
    -v peak="$(awk '/^VmHWM/ { print $2 }' "/proc/$pid/status")" 'BEGIN {
    printf "%.2f %% of one core over %d s; %.1f MiB resident, %.1f MiB at most\n",
        100 * used / hertz / seconds, seconds, rss / 1024, peak / 1024 }'
