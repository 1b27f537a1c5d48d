#!/bin/sh
# Makes folders with the Slurm of Debian suites, as `gpuos lab` has them, that also have Python, Open MPI and PyTorch, so that
# programs in these run there: for `make ckpt-matrix SUITES=native,trixie,sid`.
# Usage: scripts/suites-with-programs.sh [SUITE...]      without arguments: trixie sid
#   Prints the folder that they are in, to be given as GPUOS_LAB_CACHE. Some 1.5 GB each, a few minutes, once.
# Needs root, and the suites themselves: any test or `gpuos lab up --slurm SUITE` makes them.
# GPUOS_LAB_CACHE    folder of the suites (/var/cache/gpuos/suites)
set -eu

packages='python3 python3-torch openmpi-bin'
cache=${GPUOS_LAB_CACHE:-/var/cache/gpuos/suites}
into=$cache-with-programs

fail() {
    echo "scripts/suites-with-programs.sh: $1" >&2
    echo "$2" >&2
    exit 1
}

case ${1-} in
-h | --help)
    sed -n '2,/^set -eu/{/^set -eu/d;s/^# \{0,1\}//;p}' "$0"
    exit 0
    ;;
esac
[ "$(id -u)" = 0 ] || fail 'apt-get runs in those folders by chroot, which is root'\''s' "Run it as root: sudo -E $0"
[ $# -gt 0 ] || set -- trixie sid

for suite; do
    case $suite in
    native) continue ;;
    '' | *[!a-z]*) fail "'$suite' is no Debian suite" 'Give names such as trixie or sid.' ;;
    esac
    [ ! -d "$into/$suite" ] || continue
    [ -d "$cache/$suite" ] || fail "there is no $cache/$suite" "Make it: gpuos lab up --slurm $suite, then gpuos lab down"
    new=$into/$suite.tmp
    rm -rf "$new"
    mkdir -p "$into"
    cp -a "$cache/$suite" "$new"
    # A suite that is never released may be older in a mirror than its own limit says. Mounts end with the namespace.
    # shellcheck disable=SC2086
    unshare --mount --propagation private sh -euc '
        root=$1
        shift
        mount -t proc proc "$root/proc"
        mount --rbind /dev "$root/dev"
        [ ! -e /etc/resolv.conf ] || cp /etc/resolv.conf "$root/etc/resolv.conf"
        export DEBIAN_FRONTEND=noninteractive LC_ALL=C
        chroot "$root" apt-get -q -o Acquire::Check-Valid-Until=false update
        chroot "$root" apt-get -q -y install --no-install-recommends "$@"
        chroot "$root" apt-get clean
    ' - "$new" $packages >"$new.log" 2>&1 ||
        fail "apt-get in $new failed" "$(tail -n 5 "$new.log")"
    rm -f "$new.log"
    mv "$new" "$into/$suite"
done
echo "$into"
