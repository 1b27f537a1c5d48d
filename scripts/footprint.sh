#!/bin/sh
# Counts the memory that one decision touches: distinct lines of 64 bytes and pages of 4 KiB, of code
# and of data, in all and by function. That is what a decision costs when nothing of it is in the caches
# any more, and it is the same in every run, on a busy machine too.
# Usage: scripts/footprint.sh [DECISION ...]     (default: the decisions on one node)
set -eu
cd "$(dirname "$0")/.."

if ! command -v valgrind >/dev/null 2>&1; then
    echo "footprint.sh: there is no valgrind" >&2
    exit 1
fi
${CARGO:-cargo} build --release --locked -q -p gpuos_decisions
program=${CARGO_TARGET_DIR:-target}/release/decisions
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
nm -n -C "$program" | awk '$2 ~ /[tTwW]/' >"$scratch/names"

[ $# -gt 0 ] || set -- one-gpu-4-nodes one-gpu-idle one-gpu-full
for name; do
    valgrind --tool=lackey --trace-mem=yes --log-fd=9 "$program" "$name" once 9>&1 2>/dev/null |
        awk -v name="$name" -v file="$scratch/names" '
        function hex(text, at, value) {
            value = 0
            for (at = 1; at <= length(text); at++)
                value = value * 16 + index("123456789abcdef", substr(text, at, 1))
            return value
        }
        function touch(kind, of, address) {
            line = int(address / 64); page = int(address / 4096)
            if (!((kind, line) in seen)) { seen[kind, line]; lines[kind]++ }
            if (!((kind, page) in paged)) { paged[kind, page]; pages[kind]++ }
            if (!((kind, of, line) in mine)) { mine[kind, of, line]; own[kind, of]++ }
        }
        # The function that holds an address: the last name that is not above it.
        function holder(address, low, high, middle) {
            low = 1; high = count
            while (low < high) {
                middle = int((low + high + 1) / 2)
                if (start[middle] + base <= address) low = middle; else high = middle - 1
            }
            return low
        }
        BEGIN {
            while ((getline text < file) > 0) {
                split(text, part, " ")
                start[++count] = hex(part[1])
                label[count] = substr(text, length(part[1]) + 4)
                if (label[count] ~ /decisions::begin/) first = start[count]
                if (label[count] ~ /decisions::end/) last = start[count]
            }
        }
        /^[0-9a-f]+$/ { base = hex($1) - first; from = sprintf("%x", first + base); to = sprintf("%x", last + base); next }
        base == "" || !/^(I| [LSM])/ { next }
        {
            comma = index($2, ","); sub(/^0+/, "", $2); comma = index($2, ",")
            text = substr($2, 1, comma - 1); size = substr($2, comma + 1)
        }
        $1 == "I" && text == from { on = 1 }
        $1 == "I" && text == to { exit }
        !on { next }
        {
            address = hex(text)
            if ($1 == "I") { instructions++; now = holder(address); kind = "code" } else kind = "data"
            touch(kind, now, address)
            touch(kind, now, address + size - 1)
        }
        END {
            printf "%-24s %6d instructions; code: %4d lines, %3d pages; data: %4d lines, %3d pages\n", name,
                instructions, lines["code"], pages["code"], lines["data"], pages["data"]
            for (at = 1; at <= count; at++)
                if (("code", at) in own)
                    printf "    %5d code %5d data  %s\n", own["code", at], own["data", at], label[at] | "sort -rn"
            close("sort -rn")
        }'
done
