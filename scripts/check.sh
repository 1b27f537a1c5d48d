#!/bin/sh
# The tests of the daily round: all that need no Slurm and no root, but for those of gpuosd on simulated GPUs, which mostly
# wait. The test programs run side by side, as cargo would run them one after the other.
# Usage: scripts/check.sh        ends with 1 where a test failed; what it printed is shown
set -eu
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
export GPUOS_TEST_SUITES=none PROPTEST_RNG_SEED="${PROPTEST_RNG_SEED:-1}"
# Tests that start processes mostly wait for them.
export RUST_TEST_THREADS="${RUST_TEST_THREADS:-8}"

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
$cargo build --workspace --locked --lib --bins --tests

# The folder of the package and the test program, as cargo starts the one in the other.
$cargo test --workspace --locked --no-run --message-format=json 2>/dev/null |
    sed -n 's@.*"manifest_path":"\([^"]*\)/Cargo.toml".*"name":"\([^"]*\)".*"test":true},"features".*"executable":"\([^"]*\)".*@\2 \1 \3@p' |
    grep -v '^daemon ' >"$logs/programs"
[ -s "$logs/programs" ] || { echo 'cargo named no test program' >&2; exit 1; }

begun=$(date +%s)
export logs
# shellcheck disable=SC2016 # The inner shell reads them.
xargs -P "$(nproc)" -L 1 sh -c '
    cd "$1" && log=$logs/$(basename "$2").log
    begun=$(date +%s)
    if CARGO_MANIFEST_DIR=$1 "$2" >"$log" 2>&1; then verdict=ok; else verdict=FAILED; touch "$logs/failed"; cat "$log"; fi
    tests=$(sed -n "s/^test result: .* \([0-9]*\) passed.*/\1/p" "$log")
    printf "%-20s %6s tests %4s s  %s\n" "$0" "${tests:-?}" "$(($(date +%s) - begun))" "$verdict"
' <"$logs/programs"
echo "$(wc -l <"$logs/programs") test programs in $(($(date +%s) - begun)) s; make test has gpuosd on simulated GPUs and real Slurms too"
[ ! -e "$logs/failed" ]
