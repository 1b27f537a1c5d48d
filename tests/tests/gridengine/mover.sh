# Starts gpuos_mover on a host of a private Grid Engine, and munged where it does not run there yet, as root.
# Argument: folder of the lab.
set -eu
dir=$1 own=$1/hosts/$(hostname)
mkdir -p "$own/mover" /run/munge /run/gpuos
if [ ! -S /run/munge/munge.socket.2 ]; then
    setsid munged --force --num-threads=2 --key-file="$dir/munge.key" --seed-file="$own/mover/seed" \
        --pid-file="$own/mover/munged.pid" --log-file="$own/mover/munged.log" </dev/null >/dev/null 2>&1
fi
rm -f /run/gpuos/gpuos_mover.sock.root
setsid "$dir/bin/gpuos_mover" --workload gridengine --runtime-dir /run/gpuos --store "$own/mover/kept" --jobs "$own/mover/jobs" \
    --key "$dir/munge.key" </dev/null >>"$own/mover/log" 2>&1 &
turns=300
until [ -S /run/gpuos/gpuos_mover.sock.root ]; do
    turns=$((turns - 1))
    if [ "$turns" -eq 0 ] || ! kill -0 $!; then
        cat "$own/mover/log"
        exit 1
    fi
    sleep 0.1
done
