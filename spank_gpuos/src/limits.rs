//! In slurmstepd: what the job asked of its GPUs while it runs.
//!
//! A step knows it by its own options, else by a variable that it inherits from its job.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use gpuos_config::options::given::Opt;
use gpuos_config::options::{Inherited, JobOptions, OPTIONS, Source, is_off};
use gpuos_core::job::JobId;
use gpuos_core::limits::{Asked, MpsClient, MpsRequest, Share};
use gpuos_core::wire::MPS_VARIABLES;
use slurm_ffi::spank::{Spank, print_note};

use crate::daemon;

/// Variable by which steps learn what their job asked for.
pub const JOB_LIMITS: &std::ffi::CStr = c"GPUOS_JOB_LIMITS";

/// Values by [`Opt::LIMITS`].
type Noted = [Option<String>; Opt::LIMITS.len()];

/// The options that Slurm handed to this slurmstepd, by [`Opt::LIMITS`].
static NOTED: Mutex<Noted> = Mutex::new([const { None }; Opt::LIMITS.len()]);

/// What the step's user is to be told, once its standard error is there.
static NOTES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Keeps a sentence for the step's user.
pub fn keep_note(note: &str) {
    let mut notes = NOTES.lock().unwrap_or_else(PoisonError::into_inner);
    notes.push(note.to_owned());
}

/// Tells the step's user what was kept for him.
pub fn print_notes() {
    let notes = std::mem::take(&mut *NOTES.lock().unwrap_or_else(PoisonError::into_inner));
    for note in notes {
        print_note(&format!("gpuos: {note}"));
    }
}

/// Takes note of an option's value, if it is one of these.
pub fn note(opt: Opt, value: &str) {
    let place = Opt::LIMITS.into_iter().position(|limit| limit == opt);
    let mut noted = NOTED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(place) = place.and_then(|at| noted.get_mut(at)) {
        *place = Some(value.to_owned());
    }
}

/// What holds for the step: its own options over those of its job.
pub fn of_step(spank: Spank<'_>) -> Inherited {
    let inherited = spank.getenv(JOB_LIMITS).unwrap_or_default();
    let noted = NOTED.lock().unwrap_or_else(PoisonError::into_inner).clone();
    over(&inherited, &noted)
}

fn over(inherited: &str, noted: &Noted) -> Inherited {
    let mut all = Inherited::parse(inherited);
    for (opt, value) in Opt::LIMITS.into_iter().zip(noted) {
        let name = OPTIONS[opt as usize].name;
        // Of memory no step has more than its job, and one in turns is never without; its command has seen to that where it could.
        let beyond = |value: &str| match opt {
            Opt::Memory => all.has(name) && !is_off(value) && !all.bounds_memory(value),
            Opt::Share => all.has(name) && !all.bounds_share(value),
            _ => false,
        };
        // What the command has handed over already keeps its source; what got around its check is no wish.
        let value = value.as_ref();
        if let Some(value) = value.filter(|value| !all.has_value(name, value) && !beyond(value)) {
            all.record(name, value, Source::Flag);
        }
    }
    all
}

/// What gpuosd is told of it.
pub fn asked(said: &Inherited, shared: bool, gid: Option<u32>) -> Asked {
    let options: JobOptions = said.options();
    let (percent, joint) = match options.share {
        Some(Share::Mps { percent }) => (Some(percent), true),
        _ => (options.mps, false),
    };
    let asked = Asked {
        power: options.power,
        clocks: options.clocks,
        watch_s: options.watch_s,
        mps: percent.zip(gid).map(|(percent, gid)| MpsRequest {
            percent,
            gid,
            joint,
        }),
        shared: false,
        undone: said.undoes(),
    };
    Asked {
        shared: shared && !asked.is_nothing(),
        ..asked
    }
}

/// Where programs find their GPUs.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// Lets the step's tasks find the MPS daemon of their job, and no other's: what a step inherits from its job's
/// script goes where it has none.
pub fn set_mps(spank: Spank<'_>, told: &BTreeMap<String, String>) {
    let inherited = is_own_mps(spank);
    let names = [
        c"CUDA_MPS_PIPE_DIRECTORY",
        c"CUDA_MPS_LOG_DIRECTORY",
        c"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
        c"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    ];
    let uuid = told.get(VISIBLE).filter(|uuid| is_uuid(uuid));
    let told = sane(told);
    // A daemon counts its GPUs for itself, so the programs of those who share one have its id.
    if let Some(uuid) = uuid.filter(|_| !told.is_empty()) {
        spank.setenv(c"CUDA_VISIBLE_DEVICES", uuid);
    }
    for (name, own) in names.into_iter().zip(MPS_VARIABLES) {
        match told.get(own) {
            Some(value) => drop(spank.setenv(name, value)),
            None if inherited => drop(spank.unsetenv(name)),
            None => {}
        }
    }
}

/// What of an answer is taken: both folders or nothing, and a share that is one.
fn sane(told: &BTreeMap<String, String>) -> BTreeMap<&str, &str> {
    let value = |name: &str| told.get(name).map(String::as_str);
    let folder = |name| value(name).filter(|path| daemon::is_path(path));
    let [pipe, log, share, memory] = MPS_VARIABLES;
    let Some((pipe_at, log_at)) = folder(pipe).zip(folder(log)) else {
        return BTreeMap::new();
    };
    let percent = value(share).filter(|text| {
        let number = text.parse::<u8>();
        number.is_ok_and(|percent| (1..=100).contains(&percent))
    });
    let percent = percent.map(|percent| (share, percent));
    let limit = value(memory).filter(|text| {
        let number = text.strip_prefix("0=").and_then(|n| n.strip_suffix('M'));
        number.is_some_and(|n| n.len() < 12 && n.bytes().all(|b| b.is_ascii_digit()))
    });
    [(pipe, pipe_at), (log, log_at)]
        .into_iter()
        .chain(percent)
        .chain(limit.map(|limit| (memory, limit)))
        .collect()
}

/// Whether it is NVIDIA's id of a GPU.
fn is_uuid(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_hexdigit() || b == b'-';
    let rest = text.strip_prefix("GPU-").unwrap_or_default();
    (1..=64).contains(&rest.len()) && rest.bytes().all(plain)
}

/// Whether the environment is that of a step whose MPS daemon gpuosd has started, for this job or for those who share
/// its GPU.
fn is_own_mps(spank: Spank<'_>) -> bool {
    let pipe = spank.getenv(c"CUDA_MPS_PIPE_DIRECTORY").unwrap_or_default();
    let Some(folder) = pipe.strip_suffix("/pipe") else {
        return false;
    };
    let Some((_, name)) = folder.rsplit_once("/mps/") else {
        return false;
    };
    match MpsClient::try_from(name.to_owned()) {
        Ok(MpsClient::Job(job)) => spank.job_id().map(JobId::from) == Some(job),
        Ok(MpsClient::Sharers { uid, .. }) => spank.job_uid() == Some(uid),
        Err(_) => false,
    }
}

/// Whether the step has a share of its GPUs only, by what Slurm put into its environment.
pub fn is_shared(spank: Spank<'_>) -> bool {
    let is_set = |name| {
        spank
            .getenv(name)
            .is_some_and(|value| !value.is_empty() && value != "0")
    };
    let devices = spank.getenv(c"CUDA_VISIBLE_DEVICES").unwrap_or_default();
    // A step inherits from its batch script what gpuosd gave to that.
    let is_own = is_own_mps(spank);
    is_set(c"SLURM_SHARDS_ON_NODE")
        || is_set(c"SLURM_MPS_ON_NODE")
        || (is_set(c"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") && !is_own)
        || devices.contains("MIG-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_an_answer_only_sane_values_of_three_names_are_taken() {
        let [pipe, log, share, memory] = MPS_VARIABLES;
        let told = |list: &[(&str, &str)]| -> BTreeMap<String, String> {
            let own = list
                .iter()
                .map(|(name, value)| ((*name).into(), (*value).into()));
            own.collect()
        };
        let good = told(&[
            (pipe, "/run/p"),
            (log, "/run/l"),
            (share, "50"),
            ("LD_PRELOAD", "/x"),
        ]);
        let taken: Vec<_> = sane(&good).into_iter().collect();
        assert_eq!(taken, [(share, "50"), (log, "/run/l"), (pipe, "/run/p")]);
        for bad in [
            &[(pipe, "/run/p")][..],
            &[(pipe, "run/p"), (log, "/run/l")],
            &[(pipe, "/run/p\n"), (log, "/run/l")],
        ] {
            assert!(sane(&told(bad)).is_empty(), "{bad:?}");
        }
        let much = told(&[(pipe, "/run/p"), (log, "/run/l"), (share, "101")]);
        assert_eq!(sane(&much).len(), 2);
        for (limit, count) in [("0=20480M", 3), ("0=20G", 2), ("1=5M", 2), ("0=1M,1=9M", 2)] {
            let told = told(&[(pipe, "/run/p"), (log, "/run/l"), (memory, limit)]);
            assert_eq!(sane(&told).len(), count, "{limit}");
        }
        assert!(
            is_uuid("GPU-0a1b-22") && !is_uuid("GPU-") && !is_uuid("0") && !is_uuid("GPU-0,GPU-1")
        );
    }

    #[test]
    fn a_share_under_mps_is_told_with_its_group() {
        let options = Inherited::parse("share=mps:25%");
        let wish = MpsRequest {
            percent: 25,
            gid: 100,
            joint: true,
        };
        let told = asked(&options, true, Some(100));
        assert_eq!((told.mps, told.shared), (Some(wish), true));
        let options = Inherited::parse("share=timeslice");
        assert!(asked(&options, true, Some(100)).is_nothing());
    }

    #[test]
    fn a_steps_own_options_come_before_those_of_its_job() {
        let noted = [
            Some("80%".into()),
            None,
            Some("nonsense".into()),
            None,
            None,
            None,
        ];
        let options = over("power=300W clocks=1200 watch=5 mps=50%", &noted);
        assert_eq!(options.to_string(), "power=80% clocks=1200 watch=5 mps=50%");
        let asked = asked(&options, true, Some(100));
        let mps = MpsRequest {
            percent: 50,
            gid: 100,
            joint: false,
        };
        assert_eq!(asked.mps, Some(mps));
        assert!(asked.shared && asked.sets() && asked.watch_s == Some(300));
        let quiet = over("watch=5 environment=watch", &[const { None }; 6]);
        assert_eq!(
            quiet.reworded("--gpuos-watch=5 and --gpuos-watch is left out"),
            "GPUOS_WATCH=5 (environment) and GPUOS_WATCH=5 (environment) is left out"
        );
        // A step undoes what its job asked for, in the environment of the steps below it as well.
        let noted = [
            None,
            None,
            Some("OFF".into()),
            Some("off".into()),
            None,
            None,
        ];
        let options = over("power=300W watch=5", &noted);
        assert_eq!(options.to_string(), "power=300W watch=off mps=off");
        let asked = super::asked(&options, false, Some(100));
        assert!(asked.undone && asked.watch_s.is_none() && asked.mps.is_none());
        assert!(
            super::asked(&over("topology=leaf", &[const { None }; 6]), true, None).is_nothing()
        );
    }

    #[test]
    fn a_step_has_no_more_memory_than_its_job() {
        for (inherited, noted, wanted) in [
            ("", "120G", "mem=120G"),
            ("mem=120G", "60G", "mem=60G"),
            ("mem=120G", "200G", "mem=120G"),
            ("mem=off", "60G", "mem=off"),
            ("mem=120G", "off", "mem=off"),
            ("mem=120G", "nonsense", "mem=120G"),
        ] {
            let mut all = [const { None }; 6];
            all[5] = Some(noted.to_owned());
            assert_eq!(over(inherited, &all).to_string(), wanted);
        }
        // The same of a GPU in turns, which nobody leaves: the others count on it.
        for (inherited, noted, wanted) in [
            ("", "timeslice,mem=60G", "share=timeslice,mem=60G"),
            (
                "share=timeslice,mem=60G",
                "timeslice,mem=30G",
                "share=timeslice,mem=30G",
            ),
            (
                "share=timeslice,mem=60G",
                "timeslice,mem=61G",
                "share=timeslice,mem=60G",
            ),
            (
                "share=timeslice,mem=60G",
                "timeslice",
                "share=timeslice,mem=60G",
            ),
            ("share=timeslice,mem=60G", "off", "share=timeslice,mem=60G"),
            ("share=timeslice", "timeslice,mem=1G", "share=timeslice"),
            ("share=timeslice", "off", "share=off"),
            ("share=mps:25%", "mps:50%", "share=mps:50%"),
        ] {
            let mut all = [const { None }; 6];
            all[4] = Some(noted.to_owned());
            assert_eq!(over(inherited, &all).to_string(), wanted, "{noted}");
        }
    }
}
