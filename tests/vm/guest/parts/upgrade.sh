# Jobs that run while gpuos is upgraded from the build in /media/from, and Slurm from what runs to the newer one on the third disk.

if [ ! -d /media/from ]; then
    tell "skip gpuos is upgraded under running jobs: no older build was given (FROM=REVISION)"
else
    swap() { # swap FOLDER: installs that build and restarts what has loaded it
        cp -a --remove-destination "$1/." / && systemctl daemon-reload && systemctl restart gpuosd slurmctld slurmd
        until_ 120 answer
    }
    answer() { scontrol ping >/dev/null && systemctl is-active --quiet slurmctld slurmd gpuosd; }
    upgraded() {
        swap /media/from || return 1
        job=$(submit --gres=gpu:2 --gpuos-power=300W) && slice=$(submit --gpuos-mig=3g.40gb) && runs "$job" && runs "$slice" && until_ 60 made || return 1
        before="$(gpus_of "$job") $(gpuos-nvml instances)"
        swap /media/root || return 1
        until_ 60 is_state "$job" RUNNING && until_ 60 is_state "$slice" RUNNING || return 1
        same "$(gpus_of "$job") $(gpuos-nvml instances)" "$before" 'what jobs have' && has "$(gpuos-nvml show)" 'limit 300 W' || return 1
        ends "$job" "$slice" && until_ 60 no_jobs && lacks "$(gpuos-nvml show)" 'limit 300 W'
    }
    made() { same "$(instances)" 1 instances && has "$(gpuos-nvml show)" 'limit 300 W'; }
    holds 'gpuos is upgraded under running jobs' upgraded
fi

if [ ! -b /dev/vdb ]; then
    tell "skip Slurm is upgraded under running jobs: no newer one was given (NEXT=SUITE)"
else
    # The daemons of the newer Debian run from its own root file system; their files, and what clients see, are this one's.
    newer() {
        mkdir -p /next && mount /dev/vdb /next && cp -a /etc/passwd /etc/group /etc/shadow /etc/hosts /next/etc/ || return 1
        for unit in slurmctld slurmd; do
            mkdir -p "/etc/systemd/system/$unit.service.d"
            printf '[Service]\nRootDirectory=/next\nMountAPIVFS=yes\nBindPaths=/run /tmp /home /etc/slurm /etc/nvidia /usr/lib/gpuos /var/lib/slurm /var/log/slurm /var/lib/gpuos /var/lib/nvml\n' \
                >"/etc/systemd/system/$unit.service.d/newer.conf"
        done
        mkdir -p /next/etc/slurm /next/etc/nvidia /next/usr/lib/gpuos /next/var/lib/slurm /next/var/log/slurm /next/var/lib/gpuos /next/var/lib/nvml
        case $(chroot /next slurmctld -V) in *' 26.'*) echo CgroupJobIdPaths=yes >>/etc/slurm/cgroup.conf ;; esac
        systemctl daemon-reload && systemctl restart slurmctld && until_ 120 scontrol ping && systemctl restart slurmd && until_ 120 serves
    }
    serves() { systemctl is-active --quiet slurmd && same "$(sinfo -h -n n1 -o %T)" "${1:-mixed}" 'node n1'; }
    under_jobs() {
        job=$(submit --gres=gpu:2 --gpuos-power=300W) && slice=$(submit --gpuos-mig=3g.40gb) && runs "$job" && runs "$slice" && until_ 60 has_both || return 1
        before="$(gpus_of "$job") $(gpuos-nvml instances)"
        newer || { systemctl status --no-pager -n 10 slurmctld slurmd; return 1; }
        tell "# $(scontrol show config | sed -n 's/^SLURM_VERSION *= //p') after the upgrade"
        until_ 60 is_state "$job" RUNNING && until_ 60 is_state "$slice" RUNNING || return 1
        same "$(gpus_of "$job") $(gpuos-nvml instances)" "$before" 'what jobs have' || return 1
        has "$(grep select/gpuos /var/log/slurm/slurmctld.log | tail -n 3)" "$(scontrol show config | sed -n 's/^SLURM_VERSION *= //p'): steering" || return 1
        ends "$job" "$slice" && until_ 60 no_jobs && lacks "$(gpuos-nvml show)" 'limit 300 W' || return 1
        new=$(submit --gres=gpu:1 --gpuos-mig=1g.10gb) && runs "$new" && until_ 60 instance && ends "$new" && until_ 60 no_jobs
    }
    has_both() { same "$(instances)" 1 instances && has "$(gpuos-nvml show)" 'limit 300 W'; }
    instance() { same "$(instances)" 1 instances; }
    holds 'Slurm is upgraded under running jobs' under_jobs
fi
