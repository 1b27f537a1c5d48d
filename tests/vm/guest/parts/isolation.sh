# Who is on a GPU that is not his, and steps that may open more than their job holds: what gpuosd finds with groups of version 2.

foreign() {
    runuser -u mallory -- sleep 300 &
    pid=$(until_ 10 pgrep -u mallory -x sleep; pgrep -u mallory -x sleep | head -n 1)
    gpuos-nvml run gpu0 --pid "$pid" >/dev/null && until_ 60 named "$pid" || return 1
    has "$(gpuos health --json)" "process $pid (" && gpuos-nvml stop "$pid" >/dev/null && kill "$pid"
}
holds 'a process of no job on a GPU is named' foreign

at_home() {
    job=$(submit --gres=gpu:1) && runs "$job" || return 1
    group=$(group_of "$job")
    pid=$(find "$group" -name cgroup.procs -path '*task_*' -exec cat {} + | tail -n 1)
    gpuos-nvml run "gpu$(gpus_of "$job" | sed 's/.*://')" --pid "$pid" >/dev/null
    sleep 20
    lacks "$(audit)" "process $pid (" || return 1
    other=$(submit --gres=gpu:1) && runs "$other" || return 1
    gpuos-nvml run "gpu$(gpus_of "$other" | sed 's/.*://')" --pid "$pid" >/dev/null && until_ 60 named "$pid" || return 1
    gpuos-nvml stop "$pid" >/dev/null && ends "$job" "$other"
}
holds 'a process of a job is at home on its GPU, and named on that of another' at_home

# Slurm 22.05 reads cgroup.conf when slurmd starts, newer ones in each step.
confine() {
    sed -i "s/^ConstrainDevices=.*/ConstrainDevices=$1/" /etc/slurm/cgroup.conf
    systemctl restart slurmd
}
unfenced() {
    confine no
    job=$(submit --gres=gpu:1)
    runs "$job"
    confine yes
    told() { has "$(gpuos health --json)" "step $job.batch may open GPU 1,2,3, which its job does not hold"; }
    until_ 60 told && ends "$job"
}
holds 'a step that may open GPUs of others is named' unfenced

frozen() {
    job=$(submit --gres=gpu:1) && runs "$job" && scontrol suspend "$job" && until_ 30 is_state "$job" SUSPENDED || return 1
    same "$(cat "$(group_of "$job")"/*/cgroup.freeze "$(group_of "$job")/cgroup.freeze" 2>/dev/null | grep -c 1)" 1 'frozen groups' ||
        ps -o stat= -p "$(find "$(group_of "$job")" -name cgroup.procs -exec cat {} + | tail -n 1)"
    sleep 5
    gpuos health >/dev/null || { gpuos health && return 1; }
    scontrol resume "$job" && runs "$job" && ends "$job"
}
holds 'a suspended job holds gpuosd up nowhere' frozen
