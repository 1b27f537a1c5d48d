#!/bin/sh
# Fetches the packages of Grid Engine that this machine's apt knows, with the libraries that it lacks, and unpacks them into a
# folder: nothing is installed, and no daemon starts. Usage: fetch.sh FOLDER
set -eu
to=$1
[ ! -e "$to/usr/lib/gridengine/sge_qmaster" ] || exit 0
mkdir -p "${to%/*}"
work=$(mktemp -d "$to.XXXXXX")
trap 'rm -rf "$work"' EXIT
packages='gridengine-master gridengine-exec gridengine-client gridengine-common'
fetch() {
    # shellcheck disable=SC2086 # They are several words.
    names=$(LC_ALL=C apt-get -s install --no-install-recommends $packages) || return 1
    libraries=$(echo "$names" | sed -n 's/^Inst \(lib[^ ]*\) .*/\1/p')
    # shellcheck disable=SC2086
    (cd "$work" && apt-get download -q $packages $libraries)
}
fetch >"$work/log" 2>&1 || { apt-get update -q && fetch; } >"$work/log" 2>&1 || {
    echo "cannot fetch $packages: $(tail -n 1 "$work/log")" >&2
    exit 1
}
mkdir "$work/root"
for package in "$work"/*.deb; do dpkg-deb -x "$package" "$work/root"; done
chmod 755 "$work/root"
# Of two that fetch at once the first counts.
mv -T "$work/root" "$to" 2>/dev/null || [ -e "$to/usr/lib/gridengine/sge_qmaster" ]
