//! In slurmstepd: the slices of GPUs of a step, and which of its tasks gets which.
//!
//! What is believed of a job's environment is nothing but a wish: gpuosd asks Slurm which slices are the job's.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use gpuos_config::options::{is_off, parse_mig};
use gpuos_core::wire::{MIG_VARIABLES, MigAsk};
use gpuos_model::messages::Message;
use slurm_ffi::spank::Spank;

use crate::{limits, messages};

/// Variable by which steps learn what their job asked for.
pub const JOB_MIG: &CStr = c"GPUOS_JOB_MIG";

/// Variable in which gres_gpuos has the step's bits of GRES gpuos, over what the user had there: `0,12-15`.
const SLICES: &CStr = c"GPUOS_SLICES";

/// Bits of a node that can be slices.
const MOST_SLICES: u8 = 64;

/// [`MIG_VARIABLES`] for Slurm: those that programs read, and the lists of gpuos.
const DEVICES: [&CStr; 2] = [c"CUDA_VISIBLE_DEVICES", c"NVIDIA_VISIBLE_DEVICES"];
const LISTS: [&CStr; 3] = [
    c"GPUOS_MIG_PROFILES",
    c"GPUOS_MIG_UUIDS",
    c"GPUOS_MIG_PLACEMENTS",
];

/// How long a task leaves slurmctld for a requeue before it ends its job by ending itself.
const REQUEUE: Duration = Duration::from_secs(15);

/// The longest value taken from an answer, in bytes.
const MAX_VALUE: usize = 4096;

/// What the tasks of this slurmstepd's step are to be told; they are forked from it.
#[derive(Default)]
struct Step {
    /// No task may run its program: how long it waits before it ends.
    failed: Option<Duration>,
    /// Slices of one task, where each has its own.
    per_task: Option<usize>,
    /// Devices and lists go together.
    sets_devices: bool,
    /// Profiles, UUIDs and placements, one of each for each instance.
    instances: Vec<[String; 3]>,
}

static STEP: Mutex<Option<Step>> = Mutex::new(None);

/// The option that Slurm handed to this slurmstepd.
static NOTED: Mutex<Option<String>> = Mutex::new(None);

/// Takes note of the option's value.
pub fn note(value: &str) {
    *NOTED.lock().unwrap_or_else(PoisonError::into_inner) = Some(value.to_owned());
}

/// The option, if it asks for something.
fn noted() -> Option<String> {
    let noted = NOTED.lock().unwrap_or_else(PoisonError::into_inner).clone();
    noted.filter(|value| !is_off(value))
}

/// Whether the step leaves the slices that its job asked for: `srun --gpuos-mig=off` in it. gpuosd makes them all the
/// same, for they are the step's devices, and what was there before may be another job's. In a job of srun's own
/// the option says nothing of slices that `--gres` names.
pub fn is_undone(spank: Spank<'_>, whole_job: bool) -> bool {
    let noted = NOTED.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let job = spank.getenv(JOB_MIG).filter(|value| !is_off(value));
    !whole_job && noted.is_some_and(|value| is_off(&value)) && job.is_some()
}

/// Lets the programs of a step that leaves its job's slices find none. Whole GPUs that it has stay theirs.
pub fn hide(spank: Spank<'_>, has_whole: bool) {
    forget_inherited(spank);
    for name in DEVICES.into_iter().filter(|_| !has_whole) {
        spank.setenv(name, "");
    }
}

/// What the step's job asked for: a step cannot ask for other slices than those of its job.
pub fn of_step(spank: Spank<'_>) -> Option<String> {
    let own = spank.getenv(JOB_MIG).or_else(noted)?;
    // What got around the check of the commands is no wish.
    parse_mig(&own).ok().map(|request| request.to_string())
}

/// Lets the steps of the job know what it asked for.
pub fn forward_to_steps(spank: Spank<'_>) {
    if let Some(asked) = noted() {
        spank.setenv(JOB_MIG, &asked);
    }
}

/// What a step has of the node's slices.
#[derive(Debug)]
pub enum Slices {
    /// None, and it asked for none.
    None,
    /// These.
    Of(MigAsk),
    /// None, and it asked for some: why that can be.
    Missing(Message),
}

/// The slices of the step that starts; `whole_job` is that of a batch script or of salloc's shell.
pub fn slices(spank: Spank<'_>, whole_job: bool) -> Slices {
    let bits = spank.getenv(SLICES).and_then(|text| parse_bits(&text));
    match bits.filter(|bits| !bits.is_empty()) {
        Some(slices) => Slices::Of(MigAsk {
            request: of_step(spank).unwrap_or_default(),
            slices,
            tasks: spank.local_tasks().unwrap_or(1),
        }),
        // A step of a job with slices may leave them: --gres=none.
        None => match noted().filter(|_| whole_job || spank.getenv(JOB_MIG).is_none()) {
            Some(asked) => {
                let asked = limits::of_step(spank).named("--gpuos-mig", &asked);
                Slices::Missing(match whole_job {
                    true => messages::no_slices(asked),
                    false => messages::no_slices_of_step(asked),
                })
            }
            None => Slices::None,
        },
    }
}

/// Reads `0,12-15`.
fn parse_bits(text: &str) -> Option<Vec<u8>> {
    let mut bits = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let bit = |text: &str| text.parse::<u8>().ok().filter(|bit| *bit < MOST_SLICES);
        bits.extend(bit(first)?..=bit(last)?);
    }
    bits.sort_unstable();
    bits.dedup();
    Some(bits)
}

/// Slices of each task, where the request is for tasks.
pub fn each_task(request: &str) -> Option<usize> {
    let request = parse_mig(request).ok().filter(|request| request.per_task)?;
    Some(
        request
            .items
            .iter()
            .map(|item| usize::from(item.count))
            .sum(),
    )
}

/// The step's tasks must not run: keeps why for its user.
pub fn fail(why: &str) {
    end_after(Duration::ZERO, why);
}

/// As [`fail`], where gpuosd has the job requeued: a job that has failed before that is over for good.
pub fn fail_for_requeue(why: &str) {
    end_after(REQUEUE, why);
}

fn end_after(wait: Duration, why: &str) {
    limits::keep_note(why);
    let mut step = STEP.lock().unwrap_or_else(PoisonError::into_inner);
    step.get_or_insert_default().failed = Some(wait);
}

/// Takes out of a step without slices what it inherits from a job or task that has some.
pub fn forget_inherited(spank: Spank<'_>) {
    let Some(uuids) = spank.getenv(LISTS[1]) else {
        return;
    };
    for name in DEVICES {
        if spank.getenv(name).as_deref() == Some(&uuids) {
            spank.unsetenv(name);
        }
    }
    for name in LISTS {
        spank.unsetenv(name);
    }
}

/// Whether an answer names instances.
pub fn has_any(told: &BTreeMap<String, String>) -> bool {
    MIG_VARIABLES.iter().any(|name| told.contains_key(*name))
}

/// Puts gpuosd's answer into the step's environment. Where the step has whole GPUs too (`sets_devices` is not
/// set), what CUDA reads stays with those: it knows no mixture.
pub fn set_step_environment(
    spank: Spank<'_>,
    told: &BTreeMap<String, String>,
    sets_devices: bool,
    per_task: Option<usize>,
) {
    forget_inherited(spank);
    let Some(instances) = instances(told) else {
        fail(&messages::answer_not_understood());
        return;
    };
    set(spank, &instances.iter().collect::<Vec<_>>(), sets_devices);
    *STEP.lock().unwrap_or_else(PoisonError::into_inner) = Some(Step {
        failed: None,
        per_task,
        sets_devices,
        instances,
    });
}

/// The instances of an answer, which has at least one, and only words of which the tasks' environment may be made.
fn instances(told: &BTreeMap<String, String>) -> Option<Vec<[String; 3]>> {
    let [.., profiles, uuids, placements] = MIG_VARIABLES;
    let list = |name: &str| -> Option<Vec<String>> {
        let text = told.get(name).filter(|text| text.len() < MAX_VALUE)?;
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"+-./:,".contains(&b);
        let words = text.bytes().all(plain).then(|| text.split(','))?;
        words
            .map(|word| Some(word).filter(|word| !word.is_empty()).map(String::from))
            .collect()
    };
    let lists: [Vec<String>; 3] = [list(profiles)?, list(uuids)?, list(placements)?];
    let [profiles, uuids, placements] = lists;
    let same = profiles.len() == uuids.len() && uuids.len() == placements.len();
    let uuid = |uuid: &String| uuid.starts_with("MIG-");
    (same && uuids.iter().all(uuid)).then(|| {
        let all = profiles.into_iter().zip(uuids).zip(placements);
        all.map(|((profile, uuid), placement)| [profile, uuid, placement])
            .collect()
    })
}

fn set(spank: Spank<'_>, instances: &[&[String; 3]], sets_devices: bool) {
    let list = |which: usize| {
        let words: Vec<&str> = instances.iter().map(|one| one[which].as_str()).collect();
        words.join(",")
    };
    for (which, name) in LISTS.into_iter().enumerate() {
        spank.setenv(name, &list(which));
    }
    if sets_devices {
        for name in DEVICES {
            spank.setenv(name, &list(1));
        }
    }
}

/// In the process that becomes a task: sets what is its own, or ends it.
pub fn start_task(spank: Spank<'_>) {
    let step = STEP.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(step) = step.as_ref() else {
        return;
    };
    if let Some(wait) = step.failed {
        std::thread::sleep(wait);
        // SAFETY: this is slurmstepd's child that was to become the program. Slurm ends it like this, too, where it
        // cannot start a task; a failing hook would drain the node.
        unsafe { libc::_exit(1) };
    }
    let (Some(each), Some(task)) = (step.per_task, spank.local_task()) else {
        return;
    };
    let own = share(&step.instances, each, task as usize);
    set(spank, &own, step.sets_devices);
}

/// The instances of one task: of each profile as many as a task asked for. Tasks beyond those that slices were
/// asked for share with the first ones.
fn share(instances: &[[String; 3]], each: usize, task: usize) -> Vec<&[String; 3]> {
    let tasks = (instances.len() / each.max(1)).max(1);
    let mut of_profile: BTreeMap<&str, Vec<&[String; 3]>> = BTreeMap::new();
    for one in instances {
        of_profile.entry(&one[0]).or_default().push(one);
    }
    let mine = |all: &Vec<&'_ [String; 3]>| {
        let count = (all.len() / tasks).max(1);
        let first = task % tasks * count;
        (first, first + count)
    };
    let picked: Vec<&str> = of_profile
        .values()
        .flat_map(|all| {
            let (first, end) = mine(all);
            all.iter()
                .skip(first)
                .take(end - first)
                .map(|one| one[1].as_str())
        })
        .collect();
    // In the order of the step's own list.
    let is_mine = |one: &&[String; 3]| picked.contains(&one[1].as_str());
    instances.iter().filter(is_mine).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_read_as_slurm_writes_them() {
        assert_eq!(parse_bits("12-15,0"), Some(vec![0, 12, 13, 14, 15]));
        assert_eq!(parse_bits(""), Some(vec![]));
        assert_eq!(parse_bits("63"), Some(vec![63]));
        for bad in ["64", "x", "1-", "-1", "0x3", "1-64"] {
            assert_eq!(parse_bits(bad), None, "{bad}");
        }
        assert_eq!(parse_bits("5-3"), Some(vec![]));
    }

    fn told(profiles: &str, uuids: &str, placements: &str) -> BTreeMap<String, String> {
        let [.., a, b, c] = MIG_VARIABLES;
        let all = [(a, profiles), (b, uuids), (c, placements)];
        all.map(|(name, value)| (name.into(), value.into())).into()
    }

    #[test]
    fn of_an_answer_only_instances_are_taken() {
        let good = told("1g.10gb+me,3g.40gb", "MIG-a,MIG-b", "4:0-0,4:4-7");
        let taken = instances(&good).unwrap();
        assert_eq!(taken[0], ["1g.10gb+me", "MIG-a", "4:0-0"]);
        assert_eq!(taken.len(), 2);
        for bad in [
            BTreeMap::new(),
            told("1g.10gb", "MIG-a,MIG-b", "4:0-0,4:4-7"),
            told("", "", ""),
            told("1g.10gb", "GPU-a", "4:0-0"),
            told("1g.10gb", "MIG-a\nLD_PRELOAD=x", "4:0-0"),
            told("1g.10gb", "MIG-a,", "4:0-0"),
        ] {
            assert_eq!(instances(&bad), None, "{bad:?}");
        }
    }

    #[test]
    fn each_task_has_its_own_instances() {
        let instances = instances(&told(
            "3g.40gb,3g.40gb,1g.10gb,1g.10gb,1g.10gb,1g.10gb",
            "MIG-a,MIG-b,MIG-c,MIG-d,MIG-e,MIG-f",
            "0:0-3,0:4-7,1:0-0,1:1-1,1:2-2,1:3-3",
        ))
        .unwrap();
        let uuids = |each, task| {
            let own = share(&instances, each, task);
            own.iter().map(|one| one[1].as_str()).collect::<Vec<_>>()
        };
        let each = each_task("1g.10gb:2,3g.40gb:per-task").unwrap();
        assert_eq!(each, 3);
        assert_eq!(uuids(each, 0), ["MIG-a", "MIG-c", "MIG-d"]);
        assert_eq!(uuids(each, 1), ["MIG-b", "MIG-e", "MIG-f"]);
        assert_eq!(uuids(each, 2), uuids(each, 0));
        // A step with fewer slices than a task asked for has what there is.
        assert_eq!(
            uuids(100, 5),
            ["MIG-a", "MIG-b", "MIG-c", "MIG-d", "MIG-e", "MIG-f"]
        );
        assert_eq!(each_task("1g.10gb:2"), None);
        assert_eq!(each_task("nonsense:per-task"), None);
    }
}
