# What Slurm itself does to jobs with groups of version 2, and that gpuos's hands are off it.

oom() {
    job=$(as_user alice sbatch --parsable -o /dev/null --gres=gpu:1 --mem=40M --wrap 'exec head -c 400M /dev/zero | tail')
    until_ 120 over "$job" && same "$(state_of "$job")" OUT_OF_MEMORY "job $job"
}
over() { case $(state_of "$1") in PENDING | RUNNING | COMPLETING | CONFIGURING | '') state_of "$1" && return 1 ;; esac; }
holds 'a job that takes too much memory ends alone, as OUT_OF_MEMORY' oom

suspend() {
    job=$(submit --gres=gpu:2 --gpuos-mig=1g.10gb) && runs "$job" && scontrol suspend "$job" && until_ 30 is_state "$job" SUSPENDED || return 1
    scontrol resume "$job" && runs "$job" && ends "$job"
}
holds 'a job with GPUs and a slice is suspended and goes on' suspend

limit() {
    job=$(submit --gres=gpu:1 --time=0:01) && until_ 180 over "$job" && same "$(state_of "$job")" TIMEOUT "job $job"
}
holds 'a time limit ends a job' limit

left() {
    for job in $(squeue -h -o %A); do scancel "$job"; done
    until_ 60 empty
}
empty() { same "$(squeue -h | wc -l)" 0 jobs && same "$(groups_of_jobs | wc -l)" 0 'control groups of jobs'; }
holds 'no control group of a job is left' left

in_service() { same "$(sinfo -h -n n1 -o %T)" idle n1 && lacks "$(scontrol show node n1)" Reason= && same "$(instances)" 0 instances; }
holds 'the node is in service, with no instance of nobody' until_ 60 in_service
