#!/bin/sh
# Tells a Grid Engine of gpuos, by qconf, as one of its managers: setup.sh QUEUE CHECKPOINT_FOLDER, or setup.sh QUEUE --store where
# gpuos_mover keeps checkpoints. Safe to run again. docs/admin/gridengine.md says what each line is for.
set -eu
[ $# -eq 2 ] || { echo 'usage: setup.sh QUEUE CHECKPOINT_FOLDER, or setup.sh QUEUE --store' >&2 && exit 2; }
queue=$1 saves=$2 own=/usr/share/gpuos/gridengine when=xsm
# gpuos_mover has programs save at their intervals; r: jobs are started again when their host is lost, or by qmod -rj.
if [ "$saves" = --store ]; then saves=none when=xsr; fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

qconf -sc >"$work/complexes"
while read -r line; do
    [ -z "$line" ] || grep -q "^${line%% *} " "$work/complexes" || echo "$line" >>"$work/complexes"
done <<LINES
gpu gpu INT <= YES JOB 0 0
gpuos_topology gpuos_topology RESTRING == YES NO NONE 0
gpuos_topo gpuos_topo RESTRING == YES NO NONE 0
gpuos_free gpuos_free INT <= YES NO 0 0
gpuos_nvlink gpuos_nvlink INT <= YES NO 0 0
$([ "$saves" != none ] || echo gpuos_checkpoint gpuos_checkpoint RESTRING == YES NO NONE 0)
LINES
qconf -Mc "$work/complexes"

qconf -sconf | grep -v -e '^#' -e '^load_sensor ' -e '^jsv_url ' >"$work/global"
echo "load_sensor $own/sensor" >>"$work/global"
echo "jsv_url script:$own/jsv" >>"$work/global"
qconf -Mconf "$work/global"

cat >"$work/ckpt" <<LINES
ckpt_name gpuos
interface APPLICATION-LEVEL
ckpt_command $own/ckpt save \$ckpt_dir \$job_id \$ja_task_id
migr_command $own/ckpt migrate \$ckpt_dir \$job_id \$ja_task_id \$job_pid
restart_command none
clean_command $own/ckpt clean \$ckpt_dir \$job_id \$ja_task_id
ckpt_dir $saves
signal none
when $when
LINES
if qconf -sckpt gpuos >/dev/null 2>&1; then qconf -Mckpt "$work/ckpt"; else qconf -Ackpt "$work/ckpt"; fi

qconf -mattr queue prolog "root@$own/prolog \$job_id \$ja_task_id" "$queue"
qconf -mattr queue epilog "root@$own/epilog \$job_id \$ja_task_id" "$queue"
qconf -mattr queue starter_method "$own/starter" "$queue"
qconf -aattr queue ckpt_list gpuos "$queue"
echo "Now say for each host how many GPUs it has: qconf -aattr exechost complex_values gpu=8 HOST"
