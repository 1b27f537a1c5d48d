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
}

#[cfg(test)]
#[path = "../../../tests/reference/messages.rs"]
mod page;

#[test]
fn the_page_in_the_reference_has_every_refusal() {
    page::hold(&[("wlm", REFUSALS)], &[]);
}
