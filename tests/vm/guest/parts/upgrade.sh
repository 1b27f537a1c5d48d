# Jobs that run while gpuos is upgraded from the build in /media/from, and Slurm from what runs to the newer one on the third disk.

if [ ! -d /media/from ]; then
    tell "skip gpuos is upgraded under running jobs: no older build was given (FROM=REVISION)"
else
    swap() { # swap FOLDER: installs that build and restarts what has loaded it
        cp -a --remove-destination "$1/." / && systemctl daemon-reload && systemctl restart gpuosd slurmctld slurmd
        until_ 120 answer
    }
    answer() { scontrol ping >/dev/null && systemctl is-active --quiet slurmctld slurmd gpuosd; }
    upgraded() {
        swap /media/from || return 1
        job=$(submit --gres=gpu:2 --gpuos-power=300W) && slice=$(submit --gpuos-mig=3g.40gb) && runs "$job" && runs "$slice" && until_ 60 made || return 1
        before="$(gpus_of "$job") $(gpuos-nvml instances)"
        swap /media/root || return 1
        until_ 60 is_state "$job" RUNNING && until_ 60 is_state "$slice" RUNNING || return 1
        same "$(gpus_of "$job") $(gpuos-nvml instances)" "$before" 'what jobs have' && has "$(gpuos-nvml show)" 'limit 300 W' || return 1
        ends "$job" "$slice" && until_ 60 no_jobs && lacks "$(gpuos-nvml show)" 'limit 300 W'
    }
    made() { same "$(instances)" 1 instances && has "$(gpuos-nvml show)" 'limit 300 W'; }
    holds 'gpuos is upgraded under running jobs' upgraded
fi
