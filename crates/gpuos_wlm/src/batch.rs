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

/// The wish that a job script of Torque has in a line `#PBS -v GPUOS_TOPOLOGY=VALUE[,...]`, and that arguments of qsub have, which
/// come before it; empty where there is none. Lines after the first command are not qsub's.
pub fn wish_of_script<'a>(script: &'a str, arguments: &'a [String]) -> &'a str {
    let of_list = |list: &'a str| {
        let pairs = list.trim().trim_matches(['"', '\'']).split(',');
        let mut ours = pairs.filter_map(|pair| pair.trim().split_once('='));
        ours.find(|(name, _)| *name == VARIABLE)
            .map(|(_, value)| value)
    };
    let mut after_v = arguments.iter().zip(arguments.iter().skip(1));
    let joined = arguments.iter().filter_map(|one| one.strip_prefix("-v"));
    let given = after_v
        .find_map(|(flag, list)| (flag == "-v").then(|| of_list(list)).flatten())
        .or_else(|| joined.filter_map(of_list).next());
    let directive = |line: &&str| line.trim().is_empty() || line.starts_with('#');
    let lines = script.lines().take_while(directive);
    let in_script = lines
        .filter_map(|line| line.strip_prefix("#PBS"))
        .filter_map(|line| line.trim_start().strip_prefix("-v"))
        .filter_map(of_list);
    given.or_else(|| in_script.last()).unwrap_or_default()
}

/// The GPUs that Torque gave a job on this host, by the lines `host-gpuN` of `$PBS_GPUFILE`.
pub fn of_gpufile<'a>(text: &'a str, host: &str) -> Vec<&'a str> {
    let short = |name: &str| {
        let first = name.split('.').next().unwrap_or_default();
        first.to_ascii_lowercase()
    };
    let host = short(host);
    let lines = text
        .lines()
        .filter_map(|line| line.trim().rsplit_once("-gpu"));
    lines
        .filter(|(name, number)| {
            let digits = number.bytes().all(|b| b.is_ascii_digit());
            short(name) == host && digits && !number.is_empty()
        })
        .map(|(_, number)| number)
        .collect()
}

/// The GPUs that LSF gave a job on this host, by the `CUDA_VISIBLE_DEVICES` that it sets.
pub fn of_visible(text: &str) -> Vec<&str> {
    let names = text.split(',').map(str::trim);
    names.filter(|name| !name.is_empty()).collect()
}

/// The most bytes of a job's name in Torque.
const MOST_BYTES: usize = 200;

/// Whether a job of LSF saves by gpuos, by the methods in `LSB_ECHKPNT_METHOD`; so where there are none.
pub fn saves_here(methods: &str) -> bool {
    let mut names = methods.split_whitespace();
    methods.trim().is_empty() || names.any(|name| name == "gpuos")
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
