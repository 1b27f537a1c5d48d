//! What spank/gpuos says to those who submit jobs, on a job's standard error, and in logs.

gpuos_model::messages! {
    /// Another plugin has an option of this name.
    pub fn option_not_taken(option) = "Slurm did not take the option --{option}",
        "See which other plugin of plugstack.conf has it, or whether spank_gpuos.so stands there twice.";
    /// Whole GPUs were to be set, or MPS started, and gpuosd does not run on the node. The job runs without.
    pub fn no_gpuosd(undone) = "{undone}: no gpuosd listens on this node",
        "Administrators: `systemctl enable --now gpuosd` on the node.";
    /// gpuosd of the node is older than the plugin. The job runs without.
    pub fn not_done(undone) = "{undone}: the gpuosd of this node does not do it",
        "Administrators: install one release of gpuos on all hosts.";
    /// gpuosd is busy or hangs. The job runs; what it asked for may come later.
    pub fn not_answered(undone, seconds) =
        "{undone}, or not yet: gpuosd has not answered within {seconds} s",
        "Look with `nvidia-smi -q -d POWER,CLOCK` in the job; administrators: gpuosd's log on the node.";
    /// gpuosd of the node knows nothing of slices. The job's tasks do not run.
    pub fn makes_no_slices() = "the gpuosd of this node makes no slices of GPUs",
        "Administrators: install one release of gpuos on all hosts.";
    /// A job waited in vain for its slices, or for GPUs out of MIG mode. Its tasks do not run.
    pub fn not_carved(what, why) = "{what}: {why}",
        "Submit it again; administrators: `gpuos mig` and gpuosd's log on the node.";
    /// A reason of the row before.
    pub fn no_answer(seconds, last) = "gpuosd has not answered within {seconds} s{last}",
        "Administrators: `systemctl restart gpuosd` on the node.";
    /// Another reason of it.
    pub fn nobody_listens() = "no gpuosd listens on this node",
        "Administrators: `systemctl enable --now gpuosd` on the node.";
    /// The answer names no instances that can be.
    pub fn answer_not_understood() =
        "gpuosd's answer about the slices of this step is not understood; it and spank_gpuos should be of one release",
        "Administrators: install one release of gpuos on all hosts.";
    /// A job with `--gpuos-mig` has no slices: Slurm does not count them, or another plugin took the option for itself.
    pub fn no_slices(option) =
        "{option}: Slurm gave no slices; those who run the cluster find in docs/admin/mig.md what slurm.conf needs for it \
         (JobSubmitPlugins, GresTypes, Gres)",
        "Administrators: `gpuos doctor` names the line that is missing.";
    /// The option stood at srun, which cannot give slices to a job that has none.
    pub fn no_slices_of_step(option) =
        "{option}: Slurm gave no slices; give --gpuos-mig to sbatch or salloc; srun alone has what its own --gres names, \
         and in a job the slices of the job",
        "Do what it says.";
    /// A job asks for checkpoints, and gpuos_mover does not run on the node, or has not answered in time: 5 s, or 12 s where it takes the question. The job runs without.
    pub fn no_mover() = "checkpoints are not made: no gpuos_mover answers on this node",
        "Administrators: `systemctl enable --now gpuos_mover` on the node.";
    /// gpuos_mover of the node was there some minutes ago, and is not now or does not answer in time. The program waits until it does.
    pub fn mover_is_away() = "gpuos_mover of this node is away or has much to do: the program waits for it before it begins",
        "Administrators: `systemctl status gpuos_mover` on the node; a mover that is started anew goes on by itself.";
    /// gpuos_mover says that it makes none for this job, and why. The job runs without.
    pub fn no_checkpoints(why) = "checkpoints are not made: {why}",
        "Mend what it names; administrators: gpuos_mover's log on the node.";
    /// What gpuos_mover answers names no folder. The job runs without checkpoints.
    pub fn no_folder() =
        "checkpoints are not made: the gpuos_mover of this node gave no folder; it and spank_gpuos should be of one release",
        "Administrators: install one release of gpuos on all hosts.";
    /// A job asks for a folder in memory, and slurmstepd cannot make it. The job's programs write to the node's disk, and stand still for longer.
    pub fn not_in_memory(why) = "checkpoints are written to the node's disk and not to memory first: {why}",
        "Administrators: see whether slurmd may mount, and what the reason names.";
    /// A job has spare nodes, and a step of it was not started by `gpuos run`. The step runs without checkpoints, on the nodes that srun
    /// has given it: all of the job's, unless it was told which.
    pub fn not_the_program() =
        "checkpoints are not made in this step: the job has spare nodes, and its program is what `gpuos run` starts",
        "Write `gpuos run` in place of `srun`.";
    /// `--gpuos-spares` stood at srun.
    pub fn spares_of_step(option) =
        "{option}: srun runs its program on all nodes that it gets; give the option to sbatch, and write gpuos run in the script",
        "Do what it says.";
    /// A job has `--gpuos-mem`, and the node lacks the library that its programs would load. They have the memory of their GPUs.
    pub fn no_library(path) =
        "programs have no more memory than their GPUs: this node has no {path}",
        "Administrators: install gpuos on the node, or write preload=PATH after spank_gpuos.so in plugstack.conf.";
    /// A job has `--gpuos-mem`, and gpuosd of the node is older than that. The job runs, and nothing bounds it but its own memory in Slurm.
    pub fn no_leases() = "the gpuosd of this node does not know of memory beyond that of GPUs",
        "Administrators: install one release of gpuos on all hosts.";
    /// `--gpuos-mem` stood at srun, and its job has less, or none.
    pub fn memory_of_step(option) =
        "{option} says nothing: a step has what its job has for each GPU, or less; give it to sbatch or salloc",
        "Give the option to the command that makes the job.";
    /// `--gpuos-share` stood at srun, in a job that shares a GPU in turns with less of its memory, or in another way.
    pub fn turns_of_step(option) =
        "{option} says nothing: a step shares the GPU as its job does, in turns with as much of its memory, or with less",
        "Give the option to the command that makes the job, or write a smaller mem=.";
    /// srun cannot change what its job has settled for all of its steps.
    pub fn checkpoint_of_step(option) =
        "{option} says nothing: checkpoints are those of the whole job; give it to sbatch or salloc",
        "Give the option to the command that makes the job.";
}

#[cfg(test)]
#[path = "../../tests/reference/messages.rs"]
mod page;

#[test]
fn the_page_in_the_reference_has_every_message() {
    page::hold(
        &[("spank/gpuos", ROWS)],
        &["Message::of_table", "OptionError::new"],
    );
}
