# Process 1 of a host of a private Grid Engine: makes what the host sees, and waits.
# Arguments: folder of the lab, folder with the packages, name of the host, number of its GPUs.
set -eu
dir=$1 root=$2 name=$3 gpus=$4
own=$dir/hosts/$name
mount -t proc -o nosuid,nodev,noexec proc /proc
echo "$name" >/proc/sys/kernel/hostname
ip link set lo up

# A folder of the machine as it is, and more in it: paths that are compiled in, and nothing made where the machine looks.
extend() {
    at=$1 more=$own/extend$(echo "$1" | tr / -)
    shift
    mkdir -p "$more"
    mount -t tmpfs -o mode=0755 more "$more"
    mkdir "$more/.machine"
    mount --rbind "$at" "$more/.machine"
    (cd "$more" && ln -s .machine/* .)
    # What comes later stands in for what was there.
    [ $# -eq 0 ] || ln -sfn "$@" "$more"
    mount --rbind "$more" "$at"
}
extend /usr/lib "$root/usr/lib/gridengine" $(ls -d "$root"/usr/lib/*-linux-*/*.so.* 2>/dev/null || :)
extend /usr/share "$root/usr/share/gridengine" "$dir/share/gpuos"
extend /usr/bin "$dir/bin/gpuos" "$root"/usr/bin/q*

mount -t tmpfs -o mode=0755,nosuid dev "$own/dev"
node() { mknod -m 666 "$own/dev/$1" c "$2" "$3"; }
node null 1 3
node zero 1 5
node full 1 7
node random 1 8
node urandom 1 9
node tty 5 0
mkdir -m 1777 "$own/dev/shm"
mkdir "$own/dev/pts"
mount -t devpts -o newinstance,mode=0620,ptmxmode=0666 devpts "$own/dev/pts"
ln -s pts/ptmx "$own/dev/ptmx"
ln -s /proc/self/fd "$own/dev/fd"
gpu=0
while [ "$gpu" -lt "$gpus" ]; do
    node "nvidia$gpu" 195 "$gpu"
    gpu=$((gpu + 1))
done
mount --rbind "$own/dev" /dev

mount --bind "$dir/etc" /etc
mount -t tmpfs -o mode=0755 run /run
mount -t tmpfs -o mode=0755 spool /var/spool
mount -t tmpfs -o mode=0755 lib /var/lib
mkdir /var/lib/gridengine /var/spool/gridengine
mount --bind "$dir/cell" /var/lib/gridengine
mount --bind "$own/spool" /var/spool/gridengine
# On all hosts, as a parallel file system is.
mount -t tmpfs -o mode=0755 mnt /mnt
mkdir /mnt/saves
# For folders of jobs, which the machine's /tmp would have for all hosts of all labs by the same names.
mkdir -m 1777 /mnt/tmp
mount --bind "$dir/saves" /mnt/saves
[ ! -d "$own/nvml" ] || ln -s "$own/nvml" /run/nvml
[ ! -e "$own/options" ] || cp "$own/options" /run/gpuos.options
touch "$own/up"
exec </dev/null >/dev/null 2>&1
while :; do
    sleep 86400 &
    wait $! || :
done
