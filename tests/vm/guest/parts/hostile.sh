# Two users beside Slurm's groups: a session of systemd's own gives each a tree below user.slice that is theirs, to name as they like.

session() { loginctl enable-linger "$1" && until_ 60 test -S "/run/user/$(id -u "$1")/systemd/private"; }
holds 'users have sessions of their own' session mallory

own() { uid=$(id -u mallory) && runuser -u mallory -- env "XDG_RUNTIME_DIR=/run/user/$uid" "$@"; }
slice_of() { echo "/sys/fs/cgroup/user.slice/user-$(id -u mallory).slice/user@$(id -u mallory).service"; }

# Starts a process of mallory's in her own group of that path, and puts it on GPU 0: gpuosd has to name it.
disguised() {
    group=$(slice_of)/$1
    own mkdir -p "$group" || return 1
    own systemd-run --user --unit="x$$" --quiet sleep 300 || return 1
    pid=$(until_ 20 pgrep -u mallory -x sleep; pgrep -u mallory -x sleep | tail -n 1)
    own sh -c "echo $pid >$group/cgroup.procs" || { echo "the move into $group failed" && return 1; }
    has "$(cat "/proc/$pid/cgroup")" "$1" || return 1
    gpuos-nvml run gpu0 --pid "$pid" >/dev/null && until_ 60 named "$pid"
    status=$?
    gpuos-nvml stop "$pid" >/dev/null
    kill "$pid"
    own systemctl --user reset-failed 2>/dev/null
    own systemctl --user stop "x$$" 2>/dev/null
    return $status
}
named_like_slurms() {
    job=$(submit --gres=gpu:1) && runs "$job" || return 1
    disguised "system.slice/slurmstepd.scope/$(basename "$(group_of "$job")")/step_batch/user/task_0" && ends "$job"
}
holds "a group that is named like a job's is not taken for it" named_like_slurms
scope_of_hers() { disguised 'app.slice/slurmstepd.scope/job_1/step_0/user/task_0'; }
holds 'nor is a scope of the name of slurmd, in a tree of her own' scope_of_hers

out_of_job() {
    job=$(as_user mallory sbatch --parsable -o /tmp/mallory.out --gres=gpu:1 --wrap 'export XDG_RUNTIME_DIR=/run/user/$(id -u); systemd-run --user --quiet --unit=escape sleep 300; sleep 1000')
    runs "$job" && until_ 40 escaped || { cat /tmp/mallory.out && return 1; }
    pid=$(escaped)
    gpuos-nvml run gpu3 --pid "$pid" >/dev/null && until_ 60 named "$pid"
    status=$?
    gpuos-nvml stop "$pid" >/dev/null
    kill "$pid"
    ends "$job"
    return $status
}
# Her process below user.slice.
escaped() {
    for found in $(pgrep -u mallory -x sleep); do
        case $(cat "/proc/$found/cgroup" 2>/dev/null) in *user.slice*) echo "$found" && return ;; esac
    done
    return 1
}
holds 'a process that systemd started for her outside of her job is named' out_of_job

into() {
    victim=$(submit --gres=gpu:1) && runs "$victim" || return 1
    group=$(find "$(group_of "$victim")" -type d -name 'task_*' | head -n 1)
    runuser -u mallory -- sh -c "echo \$\$ >$group/cgroup.procs" 2>/dev/null && echo 'she is in the group of another job' && return 1
    runuser -u mallory -- sh -c "mkdir $group/x" 2>/dev/null && echo 'she made a group in that of another job' && return 1
    runuser -u alice -- sh -c "echo \$\$ >$group/cgroup.procs" 2>/dev/null && echo 'the owner moves processes into her job' && return 1
    runuser -u mallory -- sh -c "echo 1 >$(group_of "$victim")/cgroup.freeze" 2>/dev/null && echo 'she froze the job of another' && return 1
    ends "$victim"
}
holds "groups of jobs are closed to users, the job's own too" into

programs() {
    job=$(submit --gres=gpu:1) && runs "$job" || return 1
    seen=$(as_user mallory sh -c '(: </dev/nvidia0) 2>&1; gpuosd --ask-devices </dev/null 2>&1 | head -n 1')
    has "$seen" 'No such device' && lacks "$seen" ENXIO && is_state "$job" RUNNING && ends "$job"
}
holds 'gpuosd --ask-devices gives a user nothing' programs

well() { gpuos health >/dev/null && same "$(sinfo -h -n n1 -o %T)" idle n1; }
holds 'gpuosd and the node are well after all that' until_ 90 well
loginctl disable-linger mallory
