#!/bin/sh
# What gpuosd costs: share of one core and resident memory, over a simulated node of 8 GPUs at default rates.
# The calls into the simulated library are in the figures; a driver's own may cost more or less.
# With --job a job runs on four nodes, whose gpuosds ping each other over a munged of their own: one of them is measured.
# Usage: scripts/gpuosd-cost.sh [--job] [SECONDS]     (default: 60)
set -eu
cd "$(dirname "$0")/.."

job=
if [ "${1:-}" = --job ]; then
    job=yes
    shift
fi
seconds=${1:-60}
# As make release builds it.
export CARGO_PROFILE_RELEASE_LTO=fat CARGO_PROFILE_RELEASE_CODEGEN_UNITS=1
${CARGO:-cargo} build --release --locked -q -p gpuosd -p gpuos_nvml
built=${CARGO_TARGET_DIR:-target}/release
scratch=$(mktemp -d)
pids=
# Until they have ended they write there.
trap 'for one in $pids; do kill "$one" 2>/dev/null || true; done; wait; rm -rf "$scratch"' EXIT
"$built/gpuos-nvml" create dgx-h100 --dir "$scratch/nvml" >/dev/null
: >"$scratch/gpuos.toml"

# Starts gpuosd of a node; its process in $pid.
start() {
    GPUOS_NVML_STATE="$scratch/nvml/state" GPUOS_CONF="$scratch/gpuos.toml" "$built/gpuosd" --node "$1" \
        --nvml "$scratch/nvml/libnvidia-ml.so.1" --state-dir "$scratch/$1/state" --runtime-dir "$scratch/$1/run" \
        2>"$scratch/$1.log" &
    pid=$!
    pids="$pids $pid"
}

munged=
if [ -n "$job" ]; then
    # Slurm's commands, as far as gpuosd needs them, and addresses of this machine for four nodes.
    mkdir "$scratch/bin"
    cat >"$scratch/bin/scontrol" <<'END'
#!/bin/sh
case "$*" in
"show node "*) printf 'NodeName=%s Arch=x86_64\n   Gres=gpu:h100:8\n   State=ALLOCATED\n   Extra=\n' "$3" ;;
"-d show job "*) printf '%s\n' 'JobId=8 JobName=train' '   UserId=ann(1000) GroupId=ann(1000)' \
    '   JobState=RUNNING Reason=None' '   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0' \
    '   NodeList=n[1-4]' '   NumNodes=4 NumCPUs=4' '     Nodes=n[1-4] CPU_IDs=0 Mem=0 GRES=gpu:h100:8(IDX:0-7)' ;;
esac
END
    printf '#!/bin/sh\necho 8\n' >"$scratch/bin/squeue"
    chmod +x "$scratch/bin/scontrol" "$scratch/bin/squeue"
    chmod 755 "$scratch"
    head -c 64 /dev/urandom >"$scratch/key"
    chmod 600 "$scratch/key"
    munged --foreground --force --num-threads=2 --socket="$scratch/munge" --key-file="$scratch/key" \
        --seed-file="$scratch/seed" --pid-file="$scratch/pid" --log-file="$scratch/munged.log" >/dev/null 2>&1 &
    munged=$!
    pids="$munged"
    echo "AuthInfo=socket=$scratch/munge" >"$scratch/slurm.conf"
    for number in 1 2 3 4; do
        echo "NodeName=n$number NodeAddr=127.0.0.$number Port=36818" >>"$scratch/slurm.conf"
    done
    export SLURM_CONF="$scratch/slurm.conf" PATH="$scratch/bin:$PATH"
    for node in n4 n3 n2; do start "$node"; done
fi
start n1
sleep 5
if [ -n "$job" ]; then
    # Until then they have learned of the job.
    sleep 30
    grep -q 'peers are heard' "$scratch/n1.log" || { cat "$scratch/n1.log" >&2; exit 1; }
fi

# Ticks of user and system time, of a process and of the commands that it has run.
ticks() { awk '{ sub(/.*\) /, ""); print $12 + $13 + $14 + $15 }' "/proc/$1/stat"; }
before=$(ticks "$pid")
[ -z "$munged" ] || munged_before=$(ticks "$munged")
sleep "$seconds"
after=$(ticks "$pid")
share() { awk -v used="$1" -v hertz="$(getconf CLK_TCK)" -v seconds="$seconds" 'BEGIN { printf "%.2f %%", 100 * used / hertz / seconds }'; }
memory() { awk -v key="$1" '$1 == key { printf "%.1f MiB", $2 / 1024 }' "/proc/$pid/status"; }
echo "$(share $((after - before))) of one core over $seconds s; $(memory VmRSS:) resident, $(memory VmHWM:) at most"
if [ -n "$munged" ]; then
    # One munged serves four nodes here.
    echo "munged of four nodes: $(share $(($(ticks "$munged") - munged_before))) of one core"
fi
