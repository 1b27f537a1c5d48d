#!/bin/sh
# Time of job tests inside slurmctld, stock and gpuos in turns, and of the planner alone.
# Usage: scripts/bench.sh [--quick] [--small | --huge] [--flat] [--check] [--slurm native|trixie|sid]... [--out FOLDER]
#        scripts/bench.sh --from REVISION [--turns N] ...        that revision's select_gpuos in the place of stock Slurm
#        scripts/bench.sh replay [--quick] [--jobs N] [--slurm native|trixie|sid]... [--out FOLDER]
# The last form replays jobs of a trace instead. The options are those of gpuos-bench (tests/bench);
# docs/results/benchmarks.md and docs/results/benchmarks-replay.md explain the figures.
set -eu

cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
sudo=
[ "$(id -u)" = 0 ] || sudo="sudo -E"

# As `make release` builds it.
export CARGO_PROFILE_RELEASE_LTO=fat CARGO_PROFILE_RELEASE_CODEGEN_UNITS=1
if [ "${1:-}" = --from ]; then
    revision=${2:?--from needs a revision of this repository}
    shift 2
    git rev-parse --quiet --verify "$revision^{commit}" >/dev/null || {
        echo "bench.sh: --from $revision: this repository has no such revision" >&2
        exit 2
    }
    older=$target/bench/from
    rm -rf "$older/source" && mkdir -p "$older/source"
    git archive "$revision" | tar -x -C "$older/source"
    echo "Building the optimised plugin of $revision"
    (mkdir -p "$older/target" && target=$(realpath "$older/target") && cd "$older/source" &&
        CARGO_TARGET_DIR=$target cargo build --release --locked -p select_gpuos)
    set -- --older "$older/target/release/libselect_gpuos.so" "$@"
fi
echo 'Building optimised plugins and the benchmark'
cargo build --release --locked -p select_gpuos -p gpuos_bench
unset CARGO_PROFILE_RELEASE_LTO CARGO_PROFILE_RELEASE_CODEGEN_UNITS
mkdir -p "$target/bench"
cc -O2 -Wall -Wextra -shared -fPIC -Wl,-z,nodelete -o "$target/bench/probe.so" tests/bench/probe/probe.c -ldl

status=0
$sudo env \
    GPUOS_BENCH_PROBE="$target/bench/probe.so" \
    GPUOS_BENCH_PLUGIN="$target/release/libselect_gpuos.so" \
    GPUOS_BENCH_OUT="$target/bench" \
    "$target/release/gpuos-bench" "$@" || status=$?

# Wrong options are told at once, without the rest.
[ "$status" != 2 ] || exit 2
case " $* " in
*' --help '* | *' -h '* | *' --older '* | ' replay '*) ;;
*)
    echo 'The planner alone'
    cargo bench --locked -q -p gpuos_placement --bench plan
    ;;
esac
exit "$status"
