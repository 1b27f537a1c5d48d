# What a job asks of its GPUs while it runs: set by gpuosd when a step starts, undone when the job is gone.

shows() { has "$(gpuos-nvml show | sed -n "/^gpu$1 /p")" "$2"; }
free_again() { lacks "$(gpuos-nvml show | sed -n "/^gpu$1 /p")" "$2"; }

power() {
    job=$(submit --gres=gpu:1 --gpuos-power=300W) && runs "$job" && until_ 30 shows 0 'limit 300 W' || return 1
    has "$(gpuos health --audit)" 300 && ends "$job" && until_ 40 free_again 0 'limit 300 W'
}
holds 'a power cap is set, told in the audit log, and undone' power

of_step() {
    job=$(submit --gres=gpu:1 --gpuos-power=300W) && runs "$job" && until_ 30 shows 0 'limit 300 W' || return 1
    as_user alice srun -Q --jobid="$job" --overlap --gpuos-power=off sleep 3 &
    until_ 20 free_again 0 'limit 300 W' || return 1
    wait
    until_ 40 shows 0 'limit 300 W' && ends "$job" && until_ 40 free_again 0 'limit 300 W'
}
holds 'a step undoes it for itself' of_step

over_restart() {
    job=$(submit --gres=gpu:1 --gpuos-power=300W) && runs "$job" && until_ 30 shows 0 'limit 300 W' || return 1
    systemctl stop gpuosd && scancel "$job" && until_ 60 gone "$job" || return 1
    shows 0 'limit 300 W' && systemctl start gpuosd && until_ 60 free_again 0 'limit 300 W'
}
holds 'a cap of a job that ended while gpuosd was away is undone' over_restart

daemons() { pgrep -f 'nvidia-cuda-mps-control -f'; }
# gpuosd gives slurmctld 1.5 s to say whose GPUs they are, then the job runs without and is told so. An emulated machine may need
# longer: another job may find it quicker.
served() {
    for try in 1 2 3; do
        job=$(submit --gres=gpu:1 --gpuos-mps=50%) && runs "$job" || return 1
        until_ 40 hers && return
        tell "# MPS, attempt $try: $(gpuos health --audit | tail -n 1)"
        ends "$job" || return 1
    done
    journalctl -u gpuosd -n 8 --no-pager -o cat
    return 1
}
mps() {
    served || return 1
    systemctl restart gpuosd && until_ 30 gpuos health && hers && ends "$job" && until_ 60 no_daemon
}
hers() { has "$(ps -o user= -p "$(daemons | head -n 1)")" alice; }
no_daemon() { ! daemons; }
holds "an MPS daemon runs as the job's user, over a restart of gpuosd, and ends with the job" mps
