#!/bin/sh
# Counts the instructions of fixed decisions under callgrind and compares them with the committed
# figures. Wall time plays no part, so a busy machine gives the same answer.
# Usage: scripts/instructions.sh [--update | --plain]     --plain: with nothing kept between decisions
set -eu
cd "$(dirname "$0")/.."

figures=crates/gpuos_placement/benches/instructions.tsv
tolerance=20 # per cent: compilers differ by some
cargo=${CARGO:-cargo}

if ! command -v valgrind >/dev/null 2>&1; then
    echo "instructions.sh: skipped, there is no valgrind: the planner's instruction counts are not compared" >&2
    exit 0
fi
# Clippy in rustc's place optimises less.
env -u RUSTC_WORKSPACE_WRAPPER "$cargo" build --release --locked -q -p gpuos_decisions
program=${CARGO_TARGET_DIR:-target}/release/decisions
plain=
[ "${1:-}" != --plain ] || plain=plain
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

for name in $("$program"); do
    if ! valgrind --tool=callgrind --callgrind-out-file=/dev/null --toggle-collect='*measured*' \
        "$program" "$name" $plain >"$scratch/log" 2>&1; then
        cat "$scratch/log" >&2
        echo "instructions.sh: $name could not be run under valgrind" >&2
        exit 1
    fi
    count=$(sed -n 's/^==[0-9]*== Collected : \([0-9]*\).*/\1/p' "$scratch/log")
    printf '%s\t%s\n' "$name" "$((${count:-0} / 10))" >>"$scratch/counts"
done

if [ "${1:-}" = --update ]; then
    {
        echo "# Instructions of one decision: scripts/instructions.sh --update, $(rustc --version)"
        cat "$scratch/counts"
    } >"$figures"
    cat "$figures"
    exit 0
fi
awk -F '\t' -v tolerance=$tolerance -v figures=$figures '
    FNR == NR { if ($1 !~ /^#/) known[$1] = $2; next }
    {
        was = known[$1]
        change = was > 0 ? ($2 - was) * 100 / was : 0
        printf "%-24s %8d instructions, %8d before (%+.1f %%)\n", $1, $2, was, change
        if (!was || $2 < 1) { print "  no figure to compare: run scripts/instructions.sh --update"; bad = 1 }
        else if (change > tolerance) { printf "  more than %d %% above %s\n", tolerance, figures; bad = 1 }
        else if (change < -tolerance) print "  much less than before: run scripts/instructions.sh --update"
    }
    END { exit bad }
' "$figures" "$scratch/counts"
