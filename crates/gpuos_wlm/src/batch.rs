//! LSF and Torque: what is checked at submission, which GPUs they gave a job, and where it saves. Both choose GPUs themselves.

use crate::ask::Ask;

/// The variable by which a job names its wish.
pub const VARIABLE: &str = "GPUOS_TOPOLOGY";

/// A wish in the variable; none where it is empty. Whether the job has GPUs is not known yet.
///
/// # Errors
/// The sentence for who submitted the job.
pub fn wish(value: &str) -> Result<Ask, String> {
    let given = [("gpuos_topology", value)];
    let options = given.into_iter().filter(|(_, value)| !value.is_empty());
    Ask::read(1, options, VARIABLE)
}

/// The GPUs that Torque gave a job on this host, by the lines `host-gpuN` of `$PBS_GPUFILE`.
///
/// # Errors
/// The first line that names no GPU of any host.
pub fn of_gpufile<'a>(text: &'a str, host: &str) -> Result<Vec<&'a str>, &'a str> {
    let short = |name: &str| {
        let first = name.split('.').next().unwrap_or_default();
        first.to_ascii_lowercase()
    };
    let host = short(host);
    let mut numbers = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let found = line.rsplit_once("-gpu");
        let (name, number) = found.filter(|(_, number)| is_number(number)).ok_or(line)?;
        if short(name) == host {
            numbers.push(number);
        }
    }
    Ok(numbers)
}

/// The GPUs that LSF gave a job on this host, by the `CUDA_VISIBLE_DEVICES` that it sets. An empty name is one that no host has.
pub fn of_visible(text: &str) -> Vec<&str> {
    match text.trim() {
        "" => Vec::new(),
        names => names.split(',').map(str::trim).collect(),
    }
}

/// The most bytes of a job's name in Torque.
const MOST_BYTES: usize = 200;

/// Whether a job of LSF saves by gpuos, by the methods in `LSB_ECHKPNT_METHOD`; so where there are none.
pub fn saves_here(methods: &str) -> bool {
    methods.trim().is_empty() || names_gpuos(methods)
}

/// Whether the methods in `LSB_ECHKPNT_METHOD` name gpuos's.
pub fn names_gpuos(methods: &str) -> bool {
    methods.split_whitespace().any(|name| name == "gpuos")
}

/// The folder of the checkpoints of a job of Torque, by `PBS_JOBID`: `17.head`, `17[3].head.example.org`. `None`: it is no such name.
pub fn folder_of(job: &str) -> Option<&str> {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b'[' | b']');
    let numbered = job.bytes().next().is_some_and(|b| b.is_ascii_digit());
    (numbered && job.len() <= MOST_BYTES && job.bytes().all(inner)).then_some(job)
}

/// Whether Torque starts a job itself, and nothing that the job spawns, by `PBS_NODENUM` and `PBS_TASKNUM`, which may be empty.
pub fn is_first_task(node: &str, task: &str) -> bool {
    matches!(node, "" | "0") && matches!(task, "" | "1")
}
