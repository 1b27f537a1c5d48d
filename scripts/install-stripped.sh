#!/bin/sh
# Installs a program or a plugin without what only debuggers read, and that beside it in a file of its own.
# Usage: scripts/install-stripped.sh MODE FILE DESTINATION DEBUGFILE
# STRIP=no, or a machine without objcopy and strip (binutils): installs the file as it was built.
set -eu

mode=$1 file=$2 to=$3 debug=$4

install -m "$mode" "$file" "$to"
[ "${STRIP:-yes}" != no ] || exit 0
if ! command -v objcopy >/dev/null 2>&1 || ! command -v strip >/dev/null 2>&1; then
    echo "$to: not stripped, there is no objcopy or strip here (binutils)" >&2
    exit 0
fi
install -d "$(dirname "$debug")"
objcopy --only-keep-debug "$file" "$debug"
chmod 644 "$debug"
# Slurm finds what a plugin has by its dynamic symbols, and a panic is caught by its unwind tables: both stay.
strip --strip-unneeded "$to"
objcopy --add-gnu-debuglink="$debug" "$to"
