# Slices of GPUs: made when a step starts, open to it alone, destroyed when its job ends. The step's programs of the kernel are attached
# before gpuosd has made the instance, so what it may open is known only then.

none_left() { same "$(instances)" 0 'instances left'; }

# What a step sees: how many MIG devices, and of the capability devices those that it may open.
look='echo "devices=$(echo "$CUDA_VISIBLE_DEVICES" | tr , "\n" | grep -c "^MIG-")"
for minor in $(awk "/^gpu4\/gi[0-9]*\/(ci0\/)?access/ { print \$2 }" /etc/nvidia/mig-minors); do
    case $( (: <"/dev/nvidia-caps/nvidia-cap$minor") 2>&1) in *"No such device"*) printf "%s " "$minor" ;; esac
done
for gpu in 0 1 2 3 4 5 6 7; do case $( (: <"/dev/nvidia$gpu") 2>&1) in *"No such device"*) printf "gpu%s " "$gpu" ;; esac; done'

slice() {
    seen=$(as_user alice srun -Q --gpuos-mig=3g.40gb sh -c "$look") || { echo "$seen" && return 1; }
    has "$seen" devices=1 && has "$seen" gpu4 && lacks "$seen" gpu0 && lacks "$seen" gpu5 && until_ 30 none_left
}
holds 'a slice is made, visible and open to its step, and gone after it' slice

beside() {
    first=$(submit --gpuos-mig=3g.40gb) && runs "$first" || return 1
    until_ 40 instance_of "$first" || return 1
    gi=$(gpuos-nvml instances | sed -n 's/.*gi \{0,1\}\([0-9]*\).*/\1/p' | head -n 1)
    seen=$(as_user alice srun -Q --gpuos-mig=1g.10gb sh -c "$look") || { echo "$seen" && return 1; }
    foreign=$(awk -v name="gpu4/gi${gi:-0}/access" '$1 == name { print $2 }' /etc/nvidia/mig-minors)
    lacks "$seen" " $foreign " 'the neighbour' && has "$seen" devices=1 || return 1
    until_ 30 one_left && ends "$first" && until_ 30 none_left
}
one_left() { same "$(instances)" 1 'instances while the first job runs'; }
instance_of() { [ "$(instances)" != 0 ]; }
holds "a slice's capability devices are closed to the neighbour on its GPU" beside

# A batch job: before Slurm 23.02 srun alone has what its own --gres names and no more.
both() {
    as_user alice sbatch -Q --wait -o both.out --gpuos-mig=1g.10gb --gres=gpu:1 --wrap "$look" || { cat /home/alice/both.out && return 1; }
    seen=$(cat /home/alice/both.out)
    has "$seen" gpu0 && has "$seen" gpu4 && lacks "$seen" gpu1 && lacks "$seen" gpu5 && until_ 30 none_left
}
holds 'a slice and a whole GPU in one step' both

later() {
    job=$(submit --gpuos-mig=1g.10gb) && runs "$job" || return 1
    seen=$(as_user alice srun -Q --jobid="$job" --overlap sh -c "$look") || { echo "$seen" && return 1; }
    has "$seen" devices=1 && ends "$job" && until_ 30 none_left
}
holds 'a later step of the job has its slice' later
