# What parts are written with. Each line that is told goes to whoever started the machine:
#   part NAME · ok WHAT · not ok WHAT: WHY · skip WHAT: WHY · # WORDS · done
STATE=/var/lib/gpuos-vm
export GPUOS_NVML_STATE=/var/lib/nvml/state
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C HOME=/root
cd /root || exit 1
# Which number the bus of the port has is not certain, nor that it is there at once.
until port=$(ls /dev/vport*p1 2>/dev/null); do sleep 0.2; done
exec 3>"$port"

tell() { printf '%s\n' "$*" >&3; }

# Ends the machine: the disks are thrown away with it.
finish() {
    tell 'done'
    sync
    systemctl poweroff --force --force
}

# holds WHAT COMMAND...: COMMAND, a function of a part as a rule, ends with 0. What it prints says why not.
holds() {
    what=$1
    shift
    if out=$("$@" 2>&1); then
        tell "ok $what"
    else
        tell "not ok $what: $(printf '%s' "$out" | tail -n 12 | tr '\n' '|')"
        # What it left running would be in the way of the next.
        scancel -u alice && scancel -u mallory
        until_ 90 no_jobs
    fi
}

# until_ SECONDS COMMAND...: waits for it to end with 0, and prints its last words if it does not.
until_() {
    end=$(($(date +%s) + $1))
    shift
    while ! seen=$("$@" 2>&1); do
        if [ "$(date +%s)" -ge "$end" ]; then
            echo "in vain: $*: $seen"
            return 1
        fi
        sleep 0.3
    done
}

# same IS WANTED WHAT
same() { [ "$1" = "$2" ] || { echo "${3:-it} is «$1», not «$2»" && return 1; }; }

# has TEXT WORDS
has() { case $1 in *"$2"*) ;; *) echo "no «$2» in «$1»" && return 1 ;; esac; }
lacks() { case $1 in *"$2"*) echo "«$2» in «$1»" && return 1 ;; *) ;; esac; }

# A job as a user: as_user alice sbatch ...
as_user() {
    user=$1
    shift
    runuser -u "$user" -- env -C "/home/$user" "$@"
}

# submit ARGUMENTS...: alice's job that lasts; its number.
submit() { as_user alice sbatch --parsable -o /dev/null "$@" --wrap 'exec sleep 1000'; }

state_of() { squeue -h -j "$1" -t all -o %T 2>/dev/null; }
is_state() { same "$(state_of "$1")" "$2" "job $1"; }
no_jobs() { same "$(squeue -h | wc -l)" 0 jobs && same "$(instances)" 0 instances; }
# Slurm says that a job runs before slurmd has begun: what a test looks at is its control group.
runs() { until_ 60 is_state "$1" RUNNING && until_ 60 has_group "$1"; }
has_group() { has "$(find "$(group_of "$1")" -name 'task_*')" task_; }
ends() { scancel "$@" && for job in "$@"; do until_ 60 gone "$job" || return 1; done; }
gone() {
    case $(state_of "$1") in '' | CANCELLED | COMPLETED | FAILED | TIMEOUT | OUT_OF_MEMORY | NODE_FAIL) ;; *) state_of "$1" && return 1 ;; esac
}
# Slurm's own id of a job, from 26.05; nothing before.
sluid_of() { scontrol -d show job "$1" 2>/dev/null | sed -n '2s/^ *SLUID=\(s[0-9A-Z]*\)$/\1/p'; }
# The control group of a job, whichever of both names it; nothing where it has none.
group_of() {
    sluid=$(sluid_of "$1")
    find /sys/fs/cgroup/system.slice -maxdepth 2 -type d \( -name "job_$1" -o -name "${sluid:-job_$1}" \)
}
# The control groups of all jobs.
groups_of_jobs() { find /sys/fs/cgroup/system.slice -maxdepth 2 -type d \( -name 'job_*' -o -regex '.*/s[0-9A-Z]*' \); }
# Nodes and GPUs of a job: `c1:0-1 c2:0-7`.
gpus_of() {
    scontrol -d show job "$1" | sed -n 's/.*Nodes=\([^ ]*\) .*GRES=gpu:[^(]*(IDX:\([0-9,-]*\)).*/\1:\2/p' | tr '\n' ' ' | sed 's/ $//'
}
instances() { gpuos-nvml instances | grep -c 'gi'; }
# What gpuosd has told, and whether it has told of a process where it does not belong.
audit() { gpuos health --audit 400 2>/dev/null; }
named() { has "$(audit)" "process $1 ("; }
