#!/bin/sh
# Runs test programs side by side where cargo would run one after the other. Those of gpuosd on simulated GPUs mostly wait,
# so they start first and what computes runs beside them with less right to the cores. The ones on real Slurms come last and
# have the machine to themselves.
# Usage: scripts/tests.sh quick      the daily round: nothing that needs a Slurm or root, nor gpuosd on simulated GPUs
#        scripts/tests.sh all        everything; `RUNNER` is put in front of each program, as in RUNNER='sudo -E'
# A program that runs for 20 minutes, or 50 with real Slurms, is ended: what it printed names the test that hung.
# Ends with 1 where a test failed; what its program printed is shown, and the first lines of each failure once more in the
# file $GPUOS_FAILURES, for who has the end of a long output alone. A failure that does not come back in three runs of the
# test alone is shown there too, and does not fail a run of all that has two of them at most: docs/decisions/0056.
set -eu
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
export PROPTEST_RNG_SEED="${PROPTEST_RNG_SEED:-1}"
# Tests that start processes mostly wait for them.
export RUST_TEST_THREADS="${RUST_TEST_THREADS:-8}"
case ${1:-} in
quick)
    first='' on_slurm='' left_out=daemon
    export GPUOS_TEST_SUITES=none
    # What the tests load and start; `make test` has built it by now.
    $cargo build --workspace --locked --lib --bins --tests
    ;;
all) first=daemon on_slurm=slurm left_out='' ;;
*) echo "usage: scripts/tests.sh quick|all, not '$*'" >&2 && exit 2 ;;
esac

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
export logs RUNNER="${RUNNER:-}"

# Name, folder of the package and file of each test program: cargo starts the one in the other.
$cargo test --workspace --locked --no-run --message-format=json 2>"$logs/cargo" |
    sed -n 's@.*"manifest_path":"\([^"]*\)/Cargo.toml".*"name":"\([^"]*\)".*"test":true},"features".*"executable":"\([^"]*\)".*@\2 \1 \3@p' \
    >"$logs/programs"
[ -s "$logs/programs" ] || { cat "$logs/cargo" >&2; echo 'cargo named no test program' >&2; exit 1; }
named() { awk -v name="$1" '$1 == name' "$logs/programs"; }
{ named "$first"; awk -v a="$first" -v b="$on_slurm" -v c="$left_out" '$1 != a && $1 != b && $1 != c' "$logs/programs"; } >"$logs/side_by_side"

# What a test of this program's output said first when it failed.
failures() {
    awk '/^---- .* stdout ----$/ { print; left = 12; next } /^failures:$/ { left = 0 } left && NF { print "  " substr($0, 1, 300); left-- }' "$1"
}

# The tests of a program that failed, by the list at the end of its output; 1 where it has none, as it died.
failed() {
    grep '^test result: ' "$1" | tail -n 1 | grep -q FAILED || return 1
    awk '/^failures:$/ { list = ""; next } /^    [^ ]+$/ { list = list $1 "\n" } END { printf "%s", list }' "$1"
}

# Whether all that failed was two tests at most, each of which passes three times when it has the machine to itself.
does_not_come_back() {
    while read -r _ folder program; do
        log=$logs/$(basename "$program").log
        [ -e "$log.failed" ] || continue
        failed "$log" >"$logs/names" || return 1
        sed "s@^@$folder $program @" "$logs/names" >>"$logs/failing"
    done <"$logs/programs"
    if [ ! -s "$logs/failing" ] || [ "$(wc -l <"$logs/failing")" -gt 2 ]; then return 1; fi
    while read -r folder program test; do
        for turn in 1 2 3; do
            echo "$test failed; alone, $turn of 3:"
            (cd "$folder" && CARGO_MANIFEST_DIR=$folder $RUNNER "$program" --exact "$test" >"$logs/alone" 2>&1 </dev/null) || again=failed
            cat "$logs/alone"
            # A name that is no test's would pass without being run.
            if [ "${again:-}" ] || ! grep -q '^test result: ok. 1 passed' "$logs/alone"; then return 1; fi
        done
        echo "$test: FAILED ONCE, and not in three runs alone: it loses a race, and is to be mended" >>"$logs/once"
    done <"$logs/failing"
}

without_slurm() {
    begun=$(date +%s)
    # shellcheck disable=SC2016 # The inner shell reads them.
    first=$first xargs -P "$(($(nproc) + ${first:+1} + 0))" -L 1 sh -c '
        cd "$1" && log=$logs/$(basename "$2").log
        begun=$(date +%s) less=
        [ "$0" = "$first" ] || less="nice -n 10"
        if CARGO_MANIFEST_DIR=$1 $less $RUNNER timeout -k 30 1200 "$2" >"$log" 2>&1; then verdict=ok; else verdict=FAILED; touch "$log.failed"; cat "$log"; fi
        tests=$(sed -n "s/^test result: .* \([0-9]*\) passed.*/\1/p" "$log")
        printf "%-20s %6s tests %4s s  %s\n" "$0" "${tests:-?}" "$(($(date +%s) - begun))" "$verdict"
    ' <"$logs/side_by_side"
    echo "$(wc -l <"$logs/side_by_side") test programs in $(($(date +%s) - begun)) s"
    [ -z "${GPUOS_COSTS:-}" ] || printf 'step tests without a Slurm\t%s\n' "$(($(date +%s) - begun))" >>"$GPUOS_COSTS"
}

without_slurm
if [ "$1" = quick ]; then
    echo 'make test has gpuosd on simulated GPUs and real Slurms too'
else
    begun=$(date +%s)
    # Labs wait more than processes do: with as many tests at a time as above the machine is idle half of it.
    RUST_TEST_THREADS=$((RUST_TEST_THREADS + 6))
    named "$on_slurm" | while read -r _ folder program; do
        log=$logs/$(basename "$program").log
        { (cd "$folder" && CARGO_MANIFEST_DIR=$folder $RUNNER timeout -k 30 3000 "$program" 2>&1) || touch "$log.failed"; } | tee "$log"
    done
    [ -z "${GPUOS_COSTS:-}" ] || printf 'step tests on real Slurms\t%s\n' "$(($(date +%s) - begun))" >>"$GPUOS_COSTS"
    # What the compiler runs of examples in docstrings.
    $cargo test --workspace --locked --doc || touch "$logs/failed"
fi
if ls "$logs"/*.failed >/dev/null 2>&1; then
    [ -z "${GPUOS_FAILURES:-}" ] || for log in "$logs"/*.log; do failures "$log"; done >"$GPUOS_FAILURES"
    if [ "$1" = all ] && does_not_come_back; then
        cat "$logs/once"
        [ -z "${GPUOS_FAILURES:-}" ] || cat "$logs/once" >>"$GPUOS_FAILURES"
    else
        touch "$logs/failed"
    fi
fi
[ ! -e "$logs/failed" ]
