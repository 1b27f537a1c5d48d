#!/bin/sh
# A program that counts, and goes on from its last checkpoint: counter.sh LIMIT [SECONDS]
#
#     sbatch --requeue --gpuos-checkpoint=10m counter.sh 100000
#
# GPUOS_HELPERS names where gpuos-checkpoint.sh lies, /usr/share/gpuos if it is not set.
set -eu
# shellcheck source=share/gpuos-checkpoint.sh
. "${GPUOS_HELPERS:-/usr/share/gpuos}/gpuos-checkpoint.sh"

limit=$1 pause=${2:-0.1}
gpuos_checkpoint_start || exit 1
count=0
if [ -n "$gpuos_checkpoint_from" ]; then
    read -r count <"$gpuos_checkpoint_from/count"
    echo "restored checkpoint $gpuos_checkpoint_restored at $count"
else
    echo new
fi

while [ "$count" -lt "$limit" ]; do
    count=$((count + 1))
    sleep "$pause"
    if gpuos_checkpoint_wanted; then
        number=$gpuos_checkpoint_number reason=$gpuos_checkpoint_reason
        if gpuos_checkpoint_folder "$number" && echo "$count" >"$gpuos_checkpoint_into/count" && gpuos_checkpoint_ready "$number"; then
            echo "saved $number at $count"
            if [ "$reason" = end ]; then
                # If it came to nothing the next one may be the last.
                gpuos_checkpoint_wait "$number" && exit 0
                echo "checkpoint $number: $gpuos_checkpoint_why" >&2
            fi
        else
            echo "checkpoint $number: $gpuos_checkpoint_why" >&2
        fi
    fi
done
echo "done at $count"
