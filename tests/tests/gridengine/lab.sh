# Process 1 of a private Grid Engine: a network that no way leads out of, and a process for each host. All of it ends with this.
# Arguments: folder of the lab, folder with the packages, GPUs of each host, hosts: the first one has qmaster.
set -eu
dir=$1 root=$2 gpus=$3
shift 3
mount -t proc -o nosuid,nodev,noexec proc /proc
ip link set lo up
ip link add name switch type bridge
ip link set switch up
nth=0
for host in "$@"; do
    nth=$((nth + 1))
    [ "$nth" -gt 1 ] && with=$gpus || with=0
    unshare --fork --kill-child --pid --mount --uts --ipc --net sh "${0%/*}/host.sh" "$dir" "$root" "$host" "$with" &
    parent=$!
    until [ -e "$dir/hosts/$host/up" ]; do
        kill -0 "$parent" || exit 1
        sleep 0.05
    done
    child=$(cat "/proc/$parent/task/$parent/children")
    child=${child%% *}
    ip link add "v$nth" type veth peer name eth0 netns "$child"
    ip link set "v$nth" master switch up
    nsenter --net="/proc/$child/ns/net" ip address add "10.79.0.$nth/24" dev eth0
    nsenter --net="/proc/$child/ns/net" ip link set eth0 up
done
echo up
exec </dev/null >/dev/null 2>&1
# Waiting is what reaps the processes that come here when their parent has ended.
while :; do
    sleep 86400 &
    wait $! || :
done
