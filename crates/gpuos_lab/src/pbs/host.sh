# Process 1 of a host, in namespaces of its own: makes what the host sees, says "up", and waits.
# Arguments: folder of the lab, name of the host, folder of all labs, number of GPUs.
set -eu
dir=$1 name=$2 labs=$3 gpus=$4
own=$dir/hosts/$name

mount -t proc -o nosuid,nodev,noexec proc /proc
echo "$name" >/proc/sys/kernel/hostname
ip link set lo up

# Devices: those that every program expects, and the GPUs.
mount -t tmpfs -o mode=0755,nosuid dev /dev
mkdir /dev/pts /dev/lab
mkdir -m 1777 /dev/shm
node() { mknod -m "$1" "/dev/$2" c "$3" "$4"; }
node 666 null 1 3
node 666 zero 1 5
node 666 full 1 7
node 666 random 1 8
node 666 urandom 1 9
node 666 tty 5 0
mount -t devpts -o newinstance,mode=0620,ptmxmode=0666,gid=5 devpts /dev/pts
mount -t tmpfs -o mode=1777,nosuid,nodev shm /dev/shm
ln -s pts/ptmx /dev/ptmx
ln -s /proc/self/fd /dev/fd
ln -s fd/0 /dev/stdin
ln -s fd/1 /dev/stdout
ln -s fd/2 /dev/stderr
[ "$gpus" -eq 0 ] || node 666 nvidiactl 195 255
gpu=0
while [ "$gpu" -lt "$gpus" ]; do
    node 666 "nvidia$gpu" 195 "$gpu"
    gpu=$((gpu + 1))
done

# Sockets of the machine's services are not the host's, nor are other labs: a command in here would take them for dead,
# as their processes cannot be seen, and clean them up.
mount --bind "$dir" /dev/lab
mount -t tmpfs -o mode=0755,nosuid,nodev run /run
mkdir -p "$labs"
mount -t tmpfs -o mode=0755,nosuid,nodev labs "$labs"
mkdir "$dir"
mount --move /dev/lab "$dir"
rmdir /dev/lab

mount --bind "$dir/etc" /etc
mount --bind "$own/hostname" /etc/hostname
mount --bind "$own/pbs.conf" /etc/pbs.conf
# PBS takes no home that lies below a folder which everybody may write.
mount -t tmpfs -o mode=0755,nosuid,nodev spool /var/spool
mkdir /var/spool/pbs
mount --bind "$own/spool" /var/spool/pbs
# Jobs of several hosts have the same number.
mount --bind "$own/tmp" /var/tmp
mkdir -m 1777 /run/lock
mkdir -m 2775 /run/postgresql
chown postgres:postgres /run/postgresql

[ ! -d "$dir/nvml/$name" ] || ln -s "$dir/nvml/$name" /run/nvml

echo up
exec </dev/null >/dev/null 2>&1
# Waiting is what reaps the processes that come here when their parent has ended.
while :; do
    sleep 86400 &
    wait $! || :
done
