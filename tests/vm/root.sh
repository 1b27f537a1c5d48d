#!/bin/sh
# Makes the root file system of a virtual machine, once: Debian with systemd, munge, Slurm and the stock cloud kernel.
# Usage: tests/vm/root.sh SUITE ARCH      SUITE: bookworm, trixie, sid, ...; ARCH: amd64, arm64
# Prints the folder with `root.img`, `vmlinuz` and `packages`. It is kept with the suites of labs: $GPUOS_LAB_CACHE, else
# /var/cache/gpuos/suites. Needs root, debootstrap and e2fsprogs.
set -eu
suite=$1 arch=$2
cache=${GPUOS_LAB_CACHE:-/var/cache/gpuos/suites}
to=$cache/vm-$suite-$arch
# What is in the image beside Debian; another number here makes all of them anew.
form=2
packages=systemd-sysv,dbus,dbus-user-session,libpam-systemd,udev,kmod,iproute2,procps,munge
packages=$packages,slurmctld,slurmd,slurm-client,slurm-wlm-basic-plugins

say() { echo "$suite $arch: $*" >&2; }
fail() {
    say "$1"
    exit 1
}

[ "$(cat "$to/form" 2>/dev/null)" != "$form" ] || { echo "$to" && exit; }
[ "$(id -u)" = 0 ] || fail 'making a root file system is for root: run this as root or with sudo'
mkdir -p "$cache"
exec 9>"$cache/.vm-$suite-$arch.lock"
flock -n 9 || { say 'another process makes this image: waiting for it' && flock 9; }
[ "$(cat "$to/form" 2>/dev/null)" != "$form" ] || { echo "$to" && exit; }

archives=$("$(dirname "$0")/../../scripts/debian-archives.sh") || exit 1
mirror=${archives% *}
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
[ -e "$keyring" ] || keyring=
proxy=$(apt-config shell PROXY Acquire::http::Proxy 2>/dev/null | sed -n "s/^PROXY='\(.*\)'/\1/p")
[ -z "$proxy" ] || export http_proxy="${http_proxy:-$proxy}"

new=$to.new
rm -rf "$new" && mkdir -p "$new"
trap 'rm -rf "$new"' EXIT
log=$new/log

# An image for another architecture is that of this one, configured as Debian configures it, with all programs replaced: no
# program of the other architecture has to run for it.
native=$(dpkg --print-architecture)
if [ "$arch" != "$native" ]; then
    base=$("$0" "$suite" "$native")
    say 'fetching the packages of the image once more, for this architecture'
    cp -a "$base/root" "$new/root"
else
    say "debootstrap from $mirror (300 MB, a minute or two, once)"
    # In a namespace of mounts of its own, so that none of debootstrap's can be left over.
    unshare --mount --propagation private debootstrap --variant=minbase ${keyring:+--keyring=$keyring} \
        --include="$packages" "$suite" "$new/root" "$mirror" >"$log" 2>&1 </dev/null ||
        fail "debootstrap failed: $(grep '^E: ' "$log" || tail -n 3 "$log"); check the network, or set GPUOS_LAB_MIRROR"
fi
root=$new/root
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d"
cp -L /etc/resolv.conf "$root/etc/resolv.conf"

say 'kernel'
# shellcheck disable=SC2016 # The inner shell reads them.
unshare --mount --propagation private sh -euc '
    root=$1 arch=$2 native=$3
    mount -t proc proc "$root/proc"
    export DEBIAN_FRONTEND=noninteractive LC_ALL=C
    mkdir -p "$root/etc/kernel" "$root/etc/initramfs-tools"
    inside() { chroot "$root" "$@"; }
    # No initial ramdisk: the kernel has NVMe and ext4 built in.
    echo update_initramfs=no >"$root/etc/initramfs-tools/update-initramfs.conf"
    if [ "$arch" = "$native" ]; then
        inside apt-get -o Acquire::Check-Valid-Until=false update -q
        inside apt-get install -y -q --no-install-recommends -o Dpkg::Options::=--force-confold "linux-image-cloud-$arch"
    else
        inside dpkg --add-architecture "$arch"
        inside apt-get -o Acquire::Check-Valid-Until=false update -q
        mkdir -p "$root/var/tmp/debs"
        # The kernel: what the package that names the newest depends on, and what that depends on.
        needs() { inside apt-cache show --no-all-versions "$1:$arch" | sed -n "s/^Depends: //p" | tr -d " " | tr , "\n" | sed "s/[(|].*//"; }
        kernel=$(for name in $(needs "linux-image-cloud-$arch" | grep "^linux-image"); do
            echo "$name" && needs "$name" | grep "^linux-\(base\|binary\|modules\)-" || :
        done)
        names=$(inside dpkg-query -W -f "\${Package} \${Architecture}\n" | awk -v native="$native" "\$2 == native { print \$1 }" |
            grep -v "^linux-")
        # Libraries of devices that the other architecture does not have are left out.
        inside apt-cache dumpavail | awk -v arch="$arch" "/^Package: / { name = \$2 } \$0 == \"Architecture: \" arch { print name }" |
            sort -u >"$root/var/tmp/debs/known"
        names=$(echo "$names" | sort | comm -12 - "$root/var/tmp/debs/known")
        for name in $names $kernel; do echo "$name:$arch"; done >"$root/var/tmp/debs/names"
        inside sh -c "cd /var/tmp/debs && xargs apt-get download -q <names"
        # Folders that exist have the owners that the configured packages gave them.
        unpack() {
            for deb in "$@"; do
                dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$root" --numeric-owner --keep-directory-symlink --no-overwrite-dir
            done
        }
        # The kernel first: what lists its modules has to run here.
        rm -rf "$root/boot"/* "$root/usr/lib/modules"/*
        unpack "$root"/var/tmp/debs/linux-*.deb
        release=$(ls "$root/usr/lib/modules")
        inside depmod "$release"
        # From Linux 7 on it is the package that copies them there.
        for file in vmlinuz config; do
            [ -e "$root/boot/$file-$release" ] || cp "$root/usr/lib/modules/$release/$file" "$root/boot/$file-$release"
        done
        rm -rf "$root"/usr/lib/*-linux-gnu "$root/etc/ld.so.cache" "$root"/usr/lib64/ld-*
        unpack "$root"/var/tmp/debs/*.deb
        rm -rf "$root/var/tmp/debs"
    fi
' sh "$root" "$arch" "$native" >>"$log" 2>&1 </dev/null ||
    fail "the packages could not be installed: $(tail -n 3 "$log")"

# The services wait until gpuos has been put in: tests/vm/guest/start.sh enables them.
for unit in slurmctld slurmd; do rm -f "$root/etc/systemd/system/multi-user.target.wants/$unit.service"; done
# What costs an emulated machine seconds and has nothing to do with what is tested.
for unit in systemd-udevd.service systemd-udevd-control.socket systemd-udevd-kernel.socket systemd-udev-trigger.service \
    systemd-journal-flush.service ldconfig.service systemd-hwdb-update.service systemd-journal-catalog-update.service \
    systemd-update-done.service systemd-firstboot.service e2scrub_reap.service e2scrub_all.timer getty@.service \
    serial-getty@hvc0.service apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer fstrim.timer systemd-timesyncd.service \
    systemd-networkd.service systemd-networkd-wait-online.service systemd-random-seed.service; do
    ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
cat >"$root/etc/systemd/system/gpuos-vm.service" <<'UNIT'
[Unit]
Description=what a virtual machine of gpuos's tests does
After=multi-user.target dbus.service
[Service]
Type=simple
KillMode=process
# Not every kernel has them built in, and no udev loads them here.
ExecStart=/bin/sh -c 'modprobe -a virtio_pci virtio_blk virtio_console; mountpoint -q /media || mount -o ro LABEL=payload /media; exec /media/guest/start.sh'
UNIT
mkdir -p "$root/etc/systemd/system/default.target.wants"
ln -sf ../gpuos-vm.service "$root/etc/systemd/system/default.target.wants/gpuos-vm.service"
ln -sf /usr/lib/systemd/system/multi-user.target "$root/etc/systemd/system/default.target"
echo n1 >"$root/etc/hostname"
printf '127.0.0.1 localhost\n10.0.0.1 n1\n' >"$root/etc/hosts"
: >"$root/etc/resolv.conf"
: >"$root/etc/machine-id"
: >"$root/etc/fstab"
rm -rf "$root"/var/cache/apt/archives "$root"/var/lib/apt/lists "$root"/usr/share/doc "$root"/usr/share/man "$root"/usr/share/locale
rm -f "$root"/usr/sbin/policy-rc.d "$root"/boot/initrd.img-*

say 'image'
cp "$root"/boot/vmlinuz-* "$new/vmlinuz"
cp "$root"/boot/config-* "$new/config"
dpkg-query --admindir="$root/var/lib/dpkg" -W -f '${Package} ${Version}\n' slurmctld systemd >"$new/packages"
basename "$root"/boot/vmlinuz-* | sed 's/vmlinuz-/linux /' >>"$new/packages"
truncate -s 2G "$new/root.img"
mke2fs -q -t ext4 -O ^has_journal -d "$root" "$new/root.img"
# The folder is what an image of another architecture is made of.
[ "$arch" = "$native" ] || rm -rf "$root"
echo "$form" >"$new/form"
rm -rf "$to" && mv "$new" "$to"
echo "$to"
