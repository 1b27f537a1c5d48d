#!/bin/sh
# Builds gpuos for aarch64 on an x86-64 machine, with Debian's compilers alone.
# Usage: scripts/cross-arm64.sh [CARGO-ARGUMENT...]
#   Without arguments: plugins, gpuosd, gpuos, gpuos-layout and the simulated libnvidia-ml.so.1, optimised, into
#   target/aarch64-unknown-linux-gnu/release (below $CARGO_TARGET_DIR where it is set).
#   With arguments: cargo with these, for aarch64, for example `check --workspace --locked` or `test -p slurm_ffi`, whose
#   programs run under qemu-aarch64-static.
# Needs root and debootstrap. The first run makes a folder with a Debian 12 in it, some 1.5 GB, in a few minutes.
# GPUOS_LAB_CACHE    folder that the Debian is kept in (/var/cache/gpuos/suites)
# GPUOS_LAB_MIRROR   the Debian archive, in place of the one in this machine's apt sources; …-security has to be beside it
# CARGO_PROFILE_RELEASE_LTO=fat CARGO_PROFILE_RELEASE_CODEGEN_UNITS=1   optimises as `make release` does; takes longer
set -eu

cd "$(dirname "$0")/.."
triple=aarch64-unknown-linux-gnu
# The oldest that has a Rust of today: what is linked against its glibc runs on any newer one.
suite=bookworm
rust_needed=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
cache=${GPUOS_LAB_CACHE:-/var/cache/gpuos/suites}
root=$cache/cross-arm64
new=$root.tmp
# native gcc: build scripts and macros run on this machine. What cargo runs for aarch64 finds its libraries where libstd's
# package brings them: under those of libc6-dev-arm64-cross programs with threads hang in qemu.
packages='gcc libc6-dev ca-certificates rustc-web cargo-web gcc-aarch64-linux-gnu libc6-dev-arm64-cross
    libstd-rust-web-dev:arm64 qemu-user-static'
products='-p select_gpuos -p spank_gpuos -p job_submit_gpuos -p gres_gpuos -p gpuosd -p gpuos_moverd -p gpuos_cli -p gpuos_layout -p gpuos_nvml -p libgpuos -p libscr -p gpuos_preload -p pbs_hook'
export PATH="$PATH:/usr/sbin:/sbin"

fail() {
    echo "scripts/cross-arm64.sh: $1" >&2
    echo "$2" >&2
    exit 1
}

case ${1-} in
-h | --help)
    sed -n '2,/^set -eu/{/^set -eu/d;s/^# \{0,1\}//;p}' "$0"
    exit 0
    ;;
esac
[ "$(id -u)" = 0 ] || fail 'it makes a folder with a Debian in it and works inside by chroot, which is root'\''s' \
    "Run it as root, or by sudo: sudo -E $0"
unshare --mount true 2>/dev/null || fail 'unshare --mount is refused, so it cannot bind this checkout into that Debian' \
    'A container needs CAP_SYS_ADMIN for it.'

# What is built belongs to who called sudo, and crates come from their cargo's folder.
uid=${SUDO_UID:-0}
gid=${SUDO_GID:-0}
home=$(getent passwd "$uid" | cut -d: -f6)
cargo_home=${CARGO_HOME:-${home:-$HOME}/.cargo}
target=${CARGO_TARGET_DIR:-target}

# within FOLDER COMMAND...: in that Debian, in a mount namespace of its own, so that no mount is left over.
# Programs that cargo runs on this machine while it builds are of that Debian's glibc: they have a folder apart from the
# machine's own, which its next build would take for its.
within() {
    unshare --mount --propagation private sh -euc '
        root=$1 cargo_home=$2 target=$3 owner=$4
        shift 4
        mount --bind /dev "$root/dev"
        mount --bind /proc "$root/proc"
        # Names and certificates are the machine'\''s: it may reach registries in ways of its own.
        for file in /etc/resolv.conf /etc/hosts /etc/ssl/certs/ca-certificates.crt; do
            if [ -f "$file" ] && [ -f "$root$file" ]; then mount --bind "$file" "$root$file"; fi
        done
        if [ -n "$target" ]; then
            mount --bind . "$root/gpuos"
            mount --bind "$cargo_home" "$root/cargo"
            mount --bind "$target/cross-arm64" "$root/target"
            mount --bind "$target/'$triple'" "$root/target/'$triple'"
        fi
        exec chroot --userspec="$owner" "$root" "$@"
    ' sh "$@"
}

make_root() {
    command -v debootstrap >/dev/null 2>&1 || fail 'debootstrap is not installed' 'Install it: scripts/needs.sh cross'
    found=$(scripts/debian-archives.sh) || exit 1
    archive=${found% *} security=${found#* }
    eval "$(apt-config shell proxy Acquire::http::Proxy)"
    if [ -n "${proxy:-}" ] && [ "$proxy" != DIRECT ] && [ -z "${http_proxy:-}" ]; then export http_proxy="$proxy"; fi
    export DEBIAN_FRONTEND=noninteractive LC_ALL=C
    # Of a run that was cut off: nobody else works under the lock.
    rm -rf "$new"
    echo "Debian $suite with compilers for aarch64, from $archive into $root: some 1.5 GB, a few minutes, once"
    unshare --mount --propagation private debootstrap --variant=minbase "$suite" "$new" "$archive" ||
        fail "debootstrap of $suite from $archive failed" \
            'Its last line says why. Check network, mirror and disk, or set GPUOS_LAB_MIRROR to another mirror.'
    cat >"$new/etc/apt/sources.list" <<END
deb $archive $suite main
deb $security $suite-security main
END
    # How this machine fetches, without what it fetches beyond packages.
    apt-config dump Acquire | grep -v '^Acquire::IndexTargets' >"$new/etc/apt/apt.conf.d/90machine"
    # A machine that stops meanwhile leaves a folder that is thrown away.
    echo force-unsafe-io >"$new/etc/dpkg/dpkg.cfg.d/quick"
    mkdir -p "$new/gpuos" "$new/cargo" "$new/target"
    within "$new" '' '' 0:0 sh -euc '
        dpkg --add-architecture arm64
        apt-get update -q
        apt-get install -y -q --no-install-recommends "$@"
        apt-get clean
    ' sh $packages </dev/null || fail "apt-get could not install the compilers from $archive and $security" \
        'See its messages above. Check network and mirror, or set GPUOS_LAB_MIRROR to another mirror.'
    rm -rf "$new"/var/lib/apt/lists/*
    mv "$new" "$root"
}

mkdir -p "$cache"
if [ ! -d "$root" ]; then
    exec 9>"$cache/.cross-arm64.lock"
    flock -n 9 || {
        echo "waiting for another run that makes $root"
        flock 9
    }
    [ -d "$root" ] || make_root
    exec 9>&-
fi
rust_found=$(chroot "$root" rustc --version 2>/dev/null | sed -n 's/^rustc \([0-9.]*\).*/\1/p')
[ "$(printf '%s\n%s\n' "$rust_needed" "$rust_found" | sort -V | head -n 1)" = "$rust_needed" ] ||
    fail "Rust $rust_needed or newer is needed, and $root has ${rust_found:-none}" \
        "Remove that folder, then run this again: it takes what Debian $suite has by now."

install -d -o "$uid" -g "$gid" "$target" "$target/cross-arm64" "$target/cross-arm64/$triple" "$target/$triple" "$cargo_home"
# shellcheck disable=SC2086
[ $# -gt 0 ] || set -- build --release --locked $products
linker=aarch64-linux-gnu-gcc
within "$root" "$cargo_home" "$target" "$uid:$gid" env -C /gpuos -u RUSTC -u RUSTDOC -u RUSTC_WRAPPER \
    PATH=/usr/bin:/bin:/usr/sbin:/sbin HOME=/tmp CARGO_HOME=/cargo CARGO_TARGET_DIR=/target CARGO_BUILD_TARGET=$triple \
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=$linker \
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER=qemu-aarch64-static RUST_REED_SOLOMON_ERASURE_ARCH=armv8-a \
    cargo "$@" || fail "cargo $* for aarch64 failed" 'See its messages above.'
