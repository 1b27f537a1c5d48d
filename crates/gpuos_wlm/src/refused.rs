//! What users are told whose jobs are not taken.

gpuos_config::refusals! {
    /// A job on one host has these levels alone.
    pub(crate) fn no_level(option, level, levels) on option = "a job on one host has no level '{level}'", write "one of {levels}";
    /// What is about GPUs in a job without any.
    pub(crate) fn no_gpus(option) on option = "the job asks for no GPU", write "it beside a number of GPUs, or leave it out";
    /// More GPUs than a host can have.
    pub(crate) fn too_many(option, most) on option = "no host has so many GPUs", write "at most {most}";
    /// An option that gpuos has on other workload managers alone.
    pub(crate) fn not_here(option, instead) on option = "gpuos has no such option with this workload manager", write "{instead}, or leave it out";
    /// Nobody mounts a folder in memory before a job of Grid Engine starts.
    pub(crate) fn not_in_memory(option) on option = "no folder in memory is made for jobs of Grid Engine", write "it without l0=";
    /// Checkpoints of other jobs go by Slurm's numbers of them.
    pub(crate) fn no_other_job(option) on option = "a job of Grid Engine goes on from its own checkpoints alone", write "it without restart=JOB";
    /// Grid Engine starts a job again that has one, and asks its program at its own moments.
    pub(crate) fn no_environment(option) on option = "the job has no checkpointing environment of gpuos", write "-ckpt gpuos with it";
}

#[cfg(test)]
#[path = "../../../tests/reference/messages.rs"]
mod page;

#[test]
fn the_page_in_the_reference_has_every_refusal() {
    page::hold(&[("wlm", REFUSALS)], &[]);
}
