# The daemons, by the units that Debian and gpuos ship.

active() { until_ 90 systemctl is-active --quiet "$1" || { systemctl status --no-pager -n 8 "$1" && return 1; }; }
for unit in munge slurmctld slurmd gpuosd; do holds "$unit.service is active" active "$unit"; done

unified() { same "$(stat -fc %T /sys/fs/cgroup)" cgroup2fs; }
holds 'control groups are of version 2 alone' unified

idle() { same "$(sinfo -h -n n1 -o %T)" idle 'node n1' && lacks "$(scontrol show node n1)" 'Reason='; }
holds 'node n1 is idle' until_ 60 idle

scope() { has "$(ls /sys/fs/cgroup/system.slice)" slurmstepd.scope; }
holds 'slurmd has its scope in the hierarchy' scope

steering() {
    lines=$(grep 'select/gpuos' /var/log/slurm/slurmctld.log)
    has "$lines" 'steering cons_tres' && lacks "$lines" 'pass'
}
holds 'select/gpuos steers' until_ 20 steering

published() { has "$(gpuos health --json)" '"isolation"' && same "$(gpuos health >/dev/null; echo $?)" 0 'exit code of gpuos health'; }
holds 'gpuosd is well' until_ 30 published

# That the GPUs are simulated it finds, of course: `hardware` compares them with the machine.
sound() { same "$(gpuos doctor | grep '^[a-zA-Z][a-zA-Z]* ' | grep -v '^ok\|^note\|^It works\|^warn hardware')" ''; }
holds 'gpuos doctor finds nothing' sound
