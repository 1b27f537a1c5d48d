# A release of Slurm that gpuos has no rows of: it passes through to cons_tres, says so, and jobs are scheduled as by stock Slurm.
# What stands for that is select/gpuos from before this release: its list of releases has another name in this one's place.

version=$(slurmctld -V | sed 's/.* //')
older=/run/gpuos-older
log=/var/log/slurm/slurmctld.log

# Since the last start of slurmctld.
said() { tail -n "+$((from + 1))" "$log" | grep 'select/gpuos'; }

# under TYPE FOLDER: slurmctld and slurmd with that SelectType, and gpuos's plugins from FOLDER.
under() {
    sed -i "s,^SelectType=.*,SelectType=select/$1,; s,^PluginDir=[^:]*:,PluginDir=$2:," /etc/slurm/slurm.conf
    from=$(wc -l <"$log")
    systemctl restart slurmctld slurmd && until_ 90 scontrol ping && until_ 90 in_service
}
in_service() { case $(sinfo -h -n n1 -o %T) in idle | mixed | allocated) ;; *) sinfo -N -n n1 && return 1 ;; esac; }

# placed NODE: the GPUs of two jobs that gpuos places otherwise than stock Slurm does. Another node each time: slurmctld does not offer one at
# once that was being powered up when it was restarted.
placed() {
    one=$(submit -p cloud -w "$1" --gres=gpu:1) && two=$(submit -p cloud -w "$1" --gres=gpu:2) && until_ 60 configuring_ "$two" >&2 || {
        squeue -o "%i %T %r" >&2 && return 1
    }
    echo "$(gpus_of "$one"), $(gpus_of "$two")" | sed "s/$1://g"
    ends "$one" "$two" >&2
}
configuring_() { case $(state_of "$1") in CONFIGURING | RUNNING) ;; *) state_of "$1" && return 1 ;; esac; }

job=$(submit --gres=gpu:2)
before() { runs "$job" && placed c5 >"$STATE/steered"; }
holds 'jobs are placed by gpuos at first' before
its=$(gpus_of "$job") steered=$(cat "$STATE/steered")

unknown() {
    mkdir -p "$older" && cp /usr/lib/gpuos/*.so "$older/" || return 1
    number=$(echo "$version" | sed 's/\./\\./g')
    # Names of the same length, that no release has.
    sed -i "s/^$number\$/99${version#??}/; s/^$number\t/99${version#??}\t/" "$older/select_gpuos.so"
    same "$(stat -c %s "$older/select_gpuos.so")" "$(stat -c %s /usr/lib/gpuos/select_gpuos.so)" 'size of the plugin' || return 1
    under gpuos "$older" || return 1
    has "$(said)" "Slurm $version is not in the layout table" && has "$(said)" 'passing through to cons_tres' && lacks "$(said)" 'steering cons_tres'
}
holds 'of an unknown release the log says why, and that it passes through' unknown

goes_on() { until_ 60 is_state "$job" RUNNING && same "$(gpus_of "$job")" "$its" 'GPUs of the job'; }
holds 'a job that was steered goes on' goes_on

runs_too() {
    next=$(submit --gres=gpu:1) && runs "$next" && lacks "$its" "$(gpus_of "$next")" || return 1
    seen=$(as_user alice srun -Q --jobid="$next" --overlap sh -c 'for gpu in 0 1 2 3; do (: <"/dev/nvidia$gpu") 2>&1; done | grep -c "No such device"')
    same "$seen" 1 'GPUs that it may open' && ends "$next"
}
holds 'new jobs run, each with GPUs of its own, fenced' runs_too

stock() {
    passed=$(placed c6) && under cons_tres /usr/lib/gpuos || return 1
    without=$(placed c7) && goes_on && same "$passed" "$without" 'where jobs are' && [ "$passed" != "$steered" ] || {
        echo "steered: $steered; passing through: $passed; stock Slurm: $without" && return 1
    }
}
holds 'jobs are where stock Slurm places them' stock

known() {
    under gpuos /usr/lib/gpuos && has "$(said)" 'steering cons_tres' && goes_on && same "$(placed c8)" "$steered" 'where jobs are' && ends "$job"
}
holds 'with the plugin that knows the release it steers again' known
rm -rf "$older"
