# From 26.05 Slurm names the control group of a job by an id of its own, or by its number where cgroup.conf has CgroupJobIdPaths=yes. All other parts
# run with what Slurm does by itself; this one looks that both are told apart, and that jobs of both are known beside each other.

if [ -z "$(job=$(submit --gres=gpu:1) && runs "$job" && sluid_of "$job"; scancel "$job")" ]; then
    tell 'skip groups of jobs in both namings: this Slurm names them by number alone'
else
    no_jobs_now() { until_ 60 no_jobs; }
    by_id() {
        first=$(submit --gres=gpu:1) && runs "$first" && same "$(basename "$(group_of "$first")")" "$(sluid_of "$first")" 'the group of a job'
    }
    holds 'Slurm names groups by its own id' by_id
    by_number() {
        echo CgroupJobIdPaths=yes >>/etc/slurm/cgroup.conf && systemctl restart slurmd && sleep 3
        second=$(submit --gres=gpu:1) && runs "$second" && same "$(basename "$(group_of "$second")")" "job_$second" 'the group of a job'
    }
    holds 'and by number where cgroup.conf says so' by_number
    # A process of each on the GPU of the other is named with its job, and on its own GPU it is at home.
    task_of() { find "$(group_of "$1")" -name cgroup.procs -path '*task_*' -exec cat {} + | tail -n 1; }
    gpu_of() { echo "gpu$(gpus_of "$1" | sed 's/.*://')"; }
    crossed() {
        for pair in "$first $second" "$second $first"; do
            set -- $pair
            pid=$(task_of "$1")
            gpuos-nvml run "$(gpu_of "$1")" --pid "$pid" >/dev/null && sleep 15
            lacks "$(gpuos health --json)" "process $pid (" || return 1
            gpuos-nvml run "$(gpu_of "$2")" --pid "$pid" >/dev/null && until_ 60 named "$pid" || return 1
            has "$(gpuos health --json)" "process $pid (" && has "$(gpuos health --json)" "of job $1 is on GPU" || return 1
            gpuos-nvml stop "$pid" >/dev/null
        done
    }
    holds 'processes of both are known by their jobs' crossed
    checked() { has "$(gpuos health --json)" '"devices": "checked"'; }
    holds 'and gpuosd asks what both may open' until_ 60 checked
    holds 'both end' ends "$first" "$second"
    sed -i '/^CgroupJobIdPaths=/d' /etc/slurm/cgroup.conf
    systemctl restart slurmd
    holds 'nothing is left' no_jobs_now
fi
