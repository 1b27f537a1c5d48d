# Placement by topology, as everywhere; here to show that it is so on this machine.

pair() {
    first=$(submit -p cloud --gres=gpu:1) && second=$(submit -p cloud --gres=gpu:2) && until_ 30 configuring "$second"
    same "$(gpus_of "$second")" c1:2-3 'its GPUs'
    ends "$first" "$second"
}
configuring() { case $(state_of "$1") in CONFIGURING | RUNNING) ;; *) state_of "$1" && return 1 ;; esac; }
holds 'two GPUs of a job are linked' pair

gang() {
    one=$(submit -p cloud -w c3 --gres=gpu:1) && all=$(submit -p cloud -N8 --gpus-per-node=8)
    until_ 30 configuring "$all" || return 1
    same "$(squeue -h -j "$all" -o %N)" 'c[9-16]' 'its nodes' || return 1
    has "$(gpuos why "$all")" 'inside leaf leaf2' && ends "$all" || return 1
    two=$(submit -p cloud -w c12 --gres=gpu:1) && next=$(submit -p cloud -N8 --gpus-per-node=8 --gpuos-topology=leaf:required)
    until_ 30 waits "$next" || return 1
    has "$(gpuos why "$next")" 'leaf1 comes nearest, with 7 of 8 nodes free' || return 1
    ends "$two" && until_ 60 configuring "$next" || return 1
    same "$(squeue -h -j "$next" -o %N)" 'c[9-16]' 'its nodes' && ends "$one" "$next"
}
waits() { has "$(squeue -h -j "$1" -o %r)" 'The job requires one leaf domain'; }
holds 'a gang stays inside a leaf switch, or waits and says why' gang

there_and_back() {
    job=$(submit --gres=gpu:2) && runs "$job" || return 1
    before=$(gpus_of "$job")
    for type in cons_tres gpuos; do
        sed -i "s,^SelectType=.*,SelectType=select/$type," /etc/slurm/slurm.conf
        systemctl restart slurmctld slurmd
        until_ 60 scontrol ping
        until_ 60 is_state "$job" RUNNING || return 1
        same "$(gpus_of "$job")" "$before" "GPUs under $type" || return 1
    done
    ends "$job"
}
holds 'to stock Slurm and back with a running job' there_and_back
