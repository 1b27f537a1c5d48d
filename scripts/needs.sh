#!/bin/sh
# Installs, with Debian's apt-get, what the named parts need and this machine lacks.
# Usage: scripts/needs.sh PART...   PART: build, lint, lab, layout, count, accounting, metrics, mpi, gridengine, torch, clients, vm, vm-arm64, cross
# A part whose programs are all there needs neither apt-get nor root.
set -eu

cd "$(dirname "$0")/.."
rust_needed=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
packages=

have() { command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ]; }

# want PROGRAM PACKAGE...: the packages, unless the program is there.
want() {
    program=$1
    shift
    have "$program" || packages="$packages $*"
}

# is_packaged FILE: whether a package of Debian's has the file, by its name or by one that its links lead to.
is_packaged() {
    file=$1
    while :; do
        dpkg -S "$file" >/dev/null 2>&1 && return 0
        [ -L "$file" ] || break
        next=$(readlink "$file")
        case $next in
        /*) file=$next ;;
        *) file=$(dirname "$file")/$next ;;
        esac
    done
    # Where /bin and /sbin are links to those below /usr, a package may have the file by the other name.
    file=$(readlink -f "$1")
    dpkg -S "$file" >/dev/null 2>&1 || dpkg -S "${file#/usr}" >/dev/null 2>&1
}

# Is cargo, with its rustc, as new as Cargo.toml says?
rust_is_new_enough() {
    have cargo && have rustc || return 1
    found=$(rustc --version 2>/dev/null | sed -n 's/^rustc \([0-9.]*\).*/\1/p')
    [ -n "$found" ] || return 1
    [ "$(printf '%s\n%s\n' "$rust_needed" "$found" | sort -V | head -n 1)" = "$rust_needed" ]
}

# Is there a compiler for OpenMP on NVIDIA's GPUs, as tests/cuda/tests/common/openmp.rs looks for it?
compiles_for_nvptx() {
    for compiler in gcc gcc-12; do
        program=$(mktemp)
        "$compiler" -fopenmp -foffload=nvptx-none -O1 -o "$program" tests/cuda/tests/common/openmp.c >/dev/null 2>&1
        status=$?
        rm -f "$program"
        [ $status != 0 ] || return 0
    done
    return 1
}

for part in "$@"; do
    case $part in
    build)
        want cc gcc libc6-dev
        # Debian keeps a current Rust for its browsers under these names, stable releases too.
        rust_is_new_enough || packages="$packages rustc-web cargo-web ca-certificates"
        ;;
    lint)
        # With rustup's cargo these are components of the toolchain, with Debian's packages.
        if ! cargo fmt --version >/dev/null 2>&1; then packages="$packages rustfmt-web"; fi
        if ! cargo clippy --version >/dev/null 2>&1; then packages="$packages rust-web-clippy"; fi
        ;;
    lab)
        want slurmctld slurmctld slurm-wlm-basic-plugins
        want slurmd slurmd slurm-wlm-basic-plugins
        want sbatch slurm-client
        want slurmrestd slurmrestd
        want munged munge
        want debootstrap debootstrap
        # PBS's hook is Python, and its tests run it, and so is the stand-in for PBS; hosts of its labs have networks of their own.
        want python3 python3
        want ip iproute2
        ;;
    layout)
        ls /usr/lib/*/libclang*.so* /usr/lib/llvm-*/lib/libclang*.so* >/dev/null 2>&1 ||
            packages="$packages libclang-dev"
        [ -e /usr/include/slurm/slurm.h ] || packages="$packages libslurm-dev"
        ;;
    count)
        want valgrind valgrind
        ;;
    accounting)
        # A slurmdbd of Debian's goes with Debian's slurmctld alone, which is an alternative: a link to the file that a package has.
        slurmctld=$(command -v slurmctld || echo /usr/sbin/slurmctld)
        if [ ! -e "$slurmctld" ] || is_packaged "$slurmctld"; then
            want slurmdbd slurmdbd slurm-wlm-mysql-plugin
            want mariadbd mariadb-server-core mariadb-client-core
            want my_print_defaults mariadb-client-core
        fi
        ;;
    vm | vm-arm64)
        case $part in
        vm) want qemu-system-x86_64 qemu-system-x86 ;;
        *) want qemu-system-aarch64 qemu-system-arm ;;
        esac
        want mke2fs e2fsprogs
        want debootstrap debootstrap
        ;;
    metrics)
        # Prometheus scrapes gpuosd in a test; the package has promtool too.
        want prometheus prometheus
        ;;
    mpi)
        # Programs with checkpoints run under both, by the names that Debian gives them.
        want mpicc.openmpi openmpi-bin libopenmpi-dev
        want mpirun.openmpi openmpi-bin
        want mpicc.mpich mpich libmpich-dev
        ;;
    gridengine)
        # Of Grid Engine itself: unpacked after the packages that are installed, below. Hosts of the lab have networks of their own.
        want ip iproute2
        # A sge_execd that starts again looks with it whether its jobs still run.
        want ps procps
        # By it movers of checkpoints know each other.
        want munged munge
        ;;
    torch)
        # 150 MB. Debian's goes with Debian's Python, which need not be the first in PATH.
        python3 -c 'import torch' 2>/dev/null || /usr/bin/python3 -c 'import torch' 2>/dev/null ||
            packages="$packages python3-torch"
        ;;
    clients)
        # Programs that tests run on the simulated driver as they are.
        want ffmpeg ffmpeg
        compiles_for_nvptx || packages="$packages gcc-12-offload-nvptx"
        # Programs in containers run in it.
        want bwrap bubblewrap
        ;;
    cross)
        # The compilers come with the Debian that scripts/cross-arm64.sh makes.
        want debootstrap debootstrap
        ;;
    *)
        echo "scripts/needs.sh: unknown part '$part': give build, lint, lab, layout, count, accounting, metrics, mpi, gridengine, torch, clients, vm, vm-arm64 or cross" >&2
        exit 2
        ;;
    esac
done

if [ -n "$packages" ]; then
    packages=$(printf '%s\n' $packages | sort -u | tr '\n' ' ')
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "gpuos needs the following, under the names that Debian gives them: $packages" >&2
        echo "This machine has no apt-get: install them (and Rust $rust_needed or newer), then try again." >&2
        exit 1
    fi
    sudo=
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null 2>&1 || {
            echo "Packages are missing: $packages" >&2
            echo "Run this as root, or install sudo." >&2
            exit 1
        }
        sudo=sudo
    fi
    echo "Installing: $packages"
    # One broken source among several must not stop it: what counts is whether the packages come.
    $sudo apt-get update -q || echo "apt-get update had errors; going on with the lists there are" >&2
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
        $packages </dev/null || {
        echo "apt-get could not install: $packages" >&2
        echo "See its messages above; 'apt-get update' tells whether the package sources answer." >&2
        exit 1
    }
fi

for part in "$@"; do
    if [ "$part" = gridengine ]; then
        # Its packages would start daemons where they are installed: they are unpacked where a test finds them, and nothing else.
        cache=${GPUOS_LAB_CACHE:-/var/cache/gpuos/suites}
        folder=$(dirname "$cache")/gridengine
        as_root=
        [ "$(id -u)" = 0 ] || as_root=sudo
        [ -e "$folder/usr/lib/gridengine/sge_qmaster" ] || $as_root sh tests/tests/gridengine/fetch.sh "$folder" || exit 1
    fi
    if [ "$part" = build ] && ! rust_is_new_enough; then
        echo "Rust $rust_needed or newer is needed; $(rustc --version 2>/dev/null || echo 'no rustc') is first in PATH." >&2
        echo "Install a newer one (https://rustup.rs), or put /usr/bin first where rustc-web is installed; where that is older, add the security archive of Debian (SUITE-security) to the sources of apt." >&2
        exit 1
    fi
done
