#!/bin/sh
# Makes the second disk of a virtual machine: gpuos as `make install` puts it, simulated GPUs, and what is to be done.
# Usage: tests/vm/payload.sh FOLDER RELEASE-FOLDER PARAMETERS    writes FOLDER/payload.img; PARAMETERS are lines NAME='value'
# RELEASE-FOLDER has what cargo built; FROM, if set, is one with an older build that the machine upgrades from.
set -eu
to=$1 release=$2 parameters=$3
top=$(cd "$(dirname "$0")/../.." && pwd)
native=${NATIVE:-$release}
files=$to/payload
rm -rf "$files" && mkdir -p "$files"

# install FOLDER-OF-A-BUILD FOLDER: what `make install` does, and the simulated library beside it.
install_() {
    make -s -C "$top" install DESTDIR="$2" RELEASE="$1" NATIVE="$native" STRIP=no >/dev/null
    install -D -m 755 "$1/gpuos-nvml" "$2/usr/bin/gpuos-nvml"
    install -D -m 644 "$1/libnvidia_ml.so" "$2/usr/lib/gpuos-nvml/libnvidia-ml.so.1"
    # No debugger runs there, and an emulated disk is slow.
    for file in "$2"/usr/lib/gpuos/*.so "$2"/usr/lib/gpuos-nvml/* "$2"/usr/bin/gpuos* "$2"/usr/sbin/gpuosd; do
        strip_debug "$file"
    done
}

# One objcopy is for one architecture: another's is this machine's, or in the Debian that scripts/cross-arm64.sh compiles in.
strip_debug() {
    case $(od -An -j 18 -N 2 -t u1 "$1") in
    *' 183 '*) machine=aarch64 ;;
    *) machine=$(uname -m) ;;
    esac
    cross=${GPUOS_LAB_CACHE:-/var/cache/gpuos/suites}/cross-arm64
    program=$machine-linux-gnu-objcopy
    if command -v "$program" >/dev/null; then
        "$program" --strip-debug "$1"
    elif [ -x "$cross/usr/bin/$program" ]; then
        libraries=$cross/lib/$(uname -m)-linux-gnu:$cross/usr/lib/$(uname -m)-linux-gnu
        for loader in "$cross"/lib64/ld-linux-*.so.*; do "$loader" --library-path "$libraries" "$cross/usr/bin/$program" --strip-debug "$1"; done
    else
        echo "$1 keeps what debuggers read: there is no $program" >&2
    fi
}
install_ "$release" "$files/root"
[ -z "${FROM:-}" ] || install_ "$FROM" "$files/from"

# The device files of eight GPUs, and of the instances of those in the pool, numbered as the driver numbers them: 15 GPU
# instances on each, with 8 compute instances. Nothing in the kernel is behind them, so that an open which the device control
# group lets through ends with ENXIO.
mkdir -p "$files/root/etc/tmpfiles.d" "$files/root/etc/nvidia"
awk -v minors="$files/root/etc/nvidia/mig-minors" 'BEGIN {
    for (gpu = 0; gpu < 8; gpu++) print "c /dev/nvidia" gpu " 0666 root root - 195:" gpu
    print "c /dev/nvidiactl 0666 root root - 195:255"
    print "d /dev/nvidia-caps 0755 root root -"
    print "config 1\nmonitor 2" >minors
    for (gpu = 4; gpu < 8; gpu++)
        for (gi = 0; gi < 15; gi++)
            for (ci = -1; ci < 8; ci++) {
                minor = 3 + (gpu * 15 + gi) * 9 + 1 + ci
                print "c /dev/nvidia-caps/nvidia-cap" minor " 0666 root root - 120:" minor
                print "gpu" gpu "/gi" gi (ci < 0 ? "" : "/ci" ci) "/access " minor >minors
            }
}' >"$files/root/etc/tmpfiles.d/simulated-gpus.conf"

cp -R "$top/tests/vm/guest" "$files/guest"
printf '%s\n' "$parameters" >"$files/parameters"
rm -f "$to/payload.img"
size=$(($(du -sm "$files" | cut -f 1) * 5 / 4 + 16))
truncate -s "${size}M" "$to/payload.img"
mke2fs -q -t ext4 -O ^has_journal -L payload -d "$files" -E root_owner=0:0 "$to/payload.img"
rm -rf "$files"
