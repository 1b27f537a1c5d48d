# Each daemon restarted, in every order, with a job that has whole GPUs, a power cap and a slice: nothing of it may change.

job=$(submit --gres=gpu:2 --gpuos-mig=3g.40gb --gpuos-power=300W)
same_as_before() {
    is_state "$job" RUNNING && same "$(gpus_of "$job")" n1:0-1 'its GPUs' && same "$(gpuos-nvml instances)" "$slice" 'its slice' &&
        has "$(gpuos-nvml show | sed -n '/^gpu0 /p')" 'limit 300 W' && same "$(pids)" "$began" 'its processes'
}
pids() { find "$(group_of "$job")" -name cgroup.procs -path '*task_*' -exec cat {} + | sort -n | tr '\n' ' '; }
answer() { scontrol ping >/dev/null && gpuos health >/dev/null && systemctl is-active --quiet munge slurmctld slurmd gpuosd; }

begin() {
    runs "$job" && until_ 60 has_slice && sleep 3 || return 1
    slice=$(gpuos-nvml instances) && began=$(pids)
}
has_slice() { same "$(instances)" 1 instances && has "$(gpuos-nvml show | sed -n '/^gpu0 /p')" 'limit 300 W'; }
begin
restart() {
    for unit in "$@"; do systemctl restart "$unit" || return 1; done
    until_ 120 answer && until_ 30 same_as_before
}
for a in munge slurmctld slurmd gpuosd; do
    for b in munge slurmctld slurmd gpuosd; do
        for c in munge slurmctld slurmd gpuosd; do
            [ "$a" != "$b" ] && [ "$a" != "$c" ] && [ "$b" != "$c" ] || continue
            for d in munge slurmctld slurmd gpuosd; do
                case " $a $b $c " in *" $d "*) ;; *) holds "restarts of $a, $b, $c, $d" restart "$a" "$b" "$c" "$d" ;; esac
            done
        done
    done
done

at_once() {
    systemctl stop gpuosd slurmd slurmctld munge && systemctl start munge slurmctld slurmd gpuosd
    until_ 120 answer && until_ 60 same_as_before
}
holds 'all of them stopped and started' at_once

killed() {
    for unit in slurmctld slurmd gpuosd; do systemctl kill -s KILL "$unit"; done
    sleep 1
    systemctl reset-failed
    systemctl start slurmctld slurmd gpuosd
    until_ 120 answer && until_ 60 same_as_before
}
holds 'all but munge killed at once' killed

new_jobs() {
    other=$(submit --gres=gpu:1 --gpuos-mig=1g.10gb) && runs "$other" && ends "$other" "$job" && until_ 60 no_jobs
    lacks "$(gpuos-nvml show)" 'limit 300 W'
}
holds 'new jobs start, and all is undone after the last' new_jobs
