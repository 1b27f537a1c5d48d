# What jobs and steps may open: programs of the kernel (BPF) that Slurm attaches to their control groups. A device that they let
# through has no driver here and answers ENXIO, "No such device or address"; one that they forbid answers EPERM.

# What a job of alice may open of GPUs 0 to 4: `n` none, `y` yes. Arguments go to srun.
may_open() {
    as_user alice srun -Q "$@" sh -c 'for gpu in 0 1 2 3 4; do
        why=$( (: <"/dev/nvidia$gpu") 2>&1)
        case $why in *"No such device"*) printf y ;; *"not permitted"*) printf n ;; *) printf "[%s]" "$why" ;; esac
    done'
}

one() {
    held=$(submit --gres=gpu:1) && runs "$held" && same "$(gpus_of "$held")" n1:0 || return 1
    same "$(may_open --gres=gpu:1)" nynnn 'a job of one GPU' || return 1
    same "$(may_open --gres=gpu:3)" nyyyn 'a job of three GPUs' && ends "$held"
}
holds 'a job may open its own GPUs and no other' one
none() { same "$(may_open)" nnnnn 'a job without GPUs'; }
holds 'a job without GPUs may open none' none
off() { same "$(may_open --gres=gpu:1 --gpuos=off)" ynnnn 'a job that stock Slurm places'; }
holds 'a job that stock Slurm places is fenced, too' off

steps() {
    job=$(submit --gres=gpu:3) && runs "$job" || return 1
    same "$(may_open --jobid="$job" --overlap --gres=gpu:1)" ynnnn 'a step of one GPU' || return 1
    same "$(may_open --jobid="$job" --overlap --gres=none)" nnnnn 'a step without' || return 1
    same "$(may_open --jobid="$job" --overlap)" yyynn 'a step with all' && ends "$job"
}
holds 'a step may open what it has of its job' steps

programs() {
    job=$(submit --gres=gpu:1) && runs "$job" || return 1
    group=$(group_of "$job")
    [ -n "$group" ] || { echo 'the job has no control group below slurmstepd.scope' && return 1; }
    asked() { has "$(gpuos health --json)" '"devices": "checked"'; }
    # A finding comes after a time of grace.
    until_ 40 asked && sleep 20 && findings=$(gpuos health --json | grep -c 'may open')
    same "$findings" 0 'findings about confined steps' && ends "$job"
}
holds 'gpuosd has asked what steps may open, and nothing is wrong' programs

root_too() { same "$( (: </dev/nvidia3) 2>&1 | grep -c 'No such device')" 1 'what root outside of jobs may open'; }
holds 'outside of jobs nothing is fenced' root_too
