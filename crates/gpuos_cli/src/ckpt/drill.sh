#!/bin/sh
# One rank of a drill of gpuos: is given the files of a checkpoint, reads all of them, and says how many there are.
fail() {
    echo "gpuos-drill $rank failed $*"
    exit 1
}
rank=${SLURM_PROCID:-0} size=${SLURM_STEP_NUM_TASKS:-1}
folder=${GPUOS_CHECKPOINT_DIR:-}
[ -n "$folder" ] || fail "node $SLURMD_NODENAME has no folder for checkpoints"
name=$rank.$(date +%s)$$
begun=$(date +%s%N)
: >"$folder/ranks/$rank.$size.${name#*.}" || fail "cannot join on node $SLURMD_NODENAME"
until [ -f "$folder/start.$name" ]; do
    [ -d "$folder" ] || fail "the folder on node $SLURMD_NODENAME is gone"
    sleep 0.1
done
ended=$(date +%s%N)
read -r word rest <"$folder/start.$name"
[ "$word" = restore ] || fail "${rest:-there is no checkpoint}"
cd "$folder/restore.$name" || fail "the restored files are not there"
files=$(find . -type f | wc -l)
bytes=$(find . -type f -exec cat {} + | wc -c)
# What the mover tells is as old as its last look, which may be before this rank was answered.
came='' tries=0
until [ "$tries" = 8 ]; do
    came=$(gpuos --json ckpt show --node "$SLURMD_NODENAME" "$SLURM_JOB_ID" 2>/dev/null | tr -d '\n')
    case $came in *'"restored"'*) break ;; esac
    tries=$((tries + 1))
    sleep 0.3
done
echo "gpuos-drill $rank restored $rest $files $bytes $(((ended - begun) / 1000000)) $SLURMD_NODENAME $came"
