# What is found after the boot.

read -r job waiting <"$STATE/jobs"
active() { systemctl is-active --quiet "$1"; }
for unit in munge slurmctld slurmd gpuosd; do holds "$unit.service comes up by itself" until_ 120 active "$unit"; done
order() {
    gpuosd=$(systemctl show -p ActiveEnterTimestampMonotonic --value gpuosd)
    slurmd=$(systemctl show -p ExecMainStartTimestampMonotonic --value slurmd)
    [ "$gpuosd" -le "$slurmd" ] || { echo "gpuosd was up at $gpuosd, slurmd was started at $slurmd" && return 1; }
}
holds 'gpuosd was up before slurmd was started' order
back() { is_state "$job" RUNNING && same "$(scontrol show job "$job" | sed -n 's/.*Restarts=\([0-9]*\).*/\1/p')" 1 restarts; }
holds 'the job runs again' until_ 240 back
one() { same "$(instances)" 1 instances; }
holds 'with a slice of its own, and none of before' until_ 60 one
still() { has "$(gpuos health)" 'before the boot' && lacks "$(gpus_of "$job")" 3; }
holds 'the GPU that was out of service still is' until_ 60 still
fenced() { has "$(as_user alice srun -Q --jobid="$job" --overlap --gres=gpu:2 sh -c '(: </dev/nvidia0) 2>&1; (: </dev/nvidia3) 2>&1')" 'not permitted'; }
holds 'its devices are fenced' fenced
mend() { gpuos online n1:3 && scancel "$job" "$waiting" && until_ 120 no_jobs; }
holds 'and all ends as ever' mend
