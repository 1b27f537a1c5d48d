//! Events of a real PBS with what came of them there: the same comes of them here, byte for byte. They are of a release that made a vnode of each GPU, and
//! so of jobs that run on while a PBS gets this one. [`ORIGIN`] says where they are from.

use std::collections::BTreeMap;
use std::io::Read;
use std::thread;

use serde_json::{Value, json};

use crate::support::{Hook, command, has_python, library, own, python};

/// Beside the events.
const ORIGIN: &str = "tests/data/ORIGIN.md";

/// So often the recording of all kinds of jobs has each type of event at least.
const EACH: usize = 300;
const KINDS: [&str; 6] = [
    "execjob_end",
    "execjob_launch",
    "exechost_periodic",
    "modifyjob",
    "queuejob",
    "runjob",
];

/// And so often events of jobs that asked for each of these.
const OF_OPTION: usize = 190;
const OPTIONS: [&str; 6] = [
    "gpuos_checkpoint",
    "gpuos_mem",
    "gpuos_mig",
    "gpuos_placement",
    "gpuos_power",
    "gpuos_share",
];

/// So many parts of it are replayed at a time.
const PARTS: usize = 4;

/// Inputs and outcomes.
pub fn events(file: &str) -> Vec<(String, String)> {
    let packed = std::fs::File::open(own(file)).expect("the events");
    let mut text = String::new();
    flate2::read::GzDecoder::new(packed)
        .read_to_string(&mut text)
        .expect("text");
    let both = |event: &str| {
        let (given, made) = event.split_once("\n%\n").expect("an input and an outcome");
        (given.to_string(), made.to_string())
    };
    text.split_terminator("%%\n").map(both).collect()
}

#[test]
fn what_came_of_events_in_a_real_pbs_comes_of_them_here() {
    if !has_python() {
        return;
    }
    let events = events("tests/data/events.txt.gz");
    let hosts = std::fs::read_to_string(own("tests/data/hosts.json")).expect("the hosts");
    let hook = Hook::new(&serde_json::from_str(&hosts).expect("JSON"));
    let given: Vec<&str> = events.iter().map(|(given, _)| given.as_str()).collect();
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for ((given, wanted), made) in events.iter().zip(hook.run(&given)) {
        assert_eq!(made, *wanted, "{given}");
        let kind = given
            .lines()
            .find_map(|line| line.strip_prefix("pbs.event().type="));
        *kinds.entry(kind.expect("a kind")).or_default() += 1;
    }
    let wanted = ["execjob_launch", "modifyjob", "queuejob", "runjob"];
    for kind in wanted {
        assert!(kinds[kind] >= 300, "{kind}: {kinds:?}");
    }
    assert!(std::fs::read_to_string(own(ORIGIN)).is_ok_and(|text| text.contains("OpenPBS")));
}

/// What comes of events where daemons say what they said then, with what the daemons are told.
fn replayed(events: &[(String, String)], site: &Value) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let mut known = site["config"].clone();
    known["command"] = json!(command());
    known["library"] = json!(library());
    known["gpuosd"] = json!(at("gpuosd.sock"));
    known["mover"] = json!(at("mover.sock"));
    let config = at("hook.json");
    std::fs::write(&config, known.to_string()).expect("a file");
    let all: String = events
        .iter()
        .map(|(given, _)| format!("{}\n%%\n", given.trim()))
        .collect();
    let files = [
        "tests/stand_in/replay.py",
        "gpuos_hook.py",
        "tests/data/jobs.json",
    ]
    .map(own);
    let environment = [("PBS_HOOK_CONFIG_FILE", config.to_str().expect("text"))];
    let (out, error) = python(&files.each_ref().map(|file| &**file), &all, &environment);
    assert_eq!(error, "");
    let made: Vec<String> = out.split_terminator("%%\n").map(String::from).collect();
    assert_eq!(made.len(), events.len(), "{out}");
    made
}

/// Jobs with all that they can ask for on PBS, and with what gpuosd and `gpuos_mover` were told and said.
#[test]
fn of_each_kind_of_event_three_hundred_of_a_real_pbs_come_to_the_same_here() {
    if !has_python() {
        return;
    }
    let events = events("tests/data/jobs.txt.gz");
    let site = std::fs::read_to_string(own("tests/data/jobs.json")).expect("the site");
    let site: Value = serde_json::from_str(&site).expect("JSON");
    let mut found: BTreeMap<&str, usize> = BTreeMap::new();
    thread::scope(|scope| {
        let parts = events.chunks(events.len().div_ceil(PARTS));
        let running: Vec<_> = parts
            .map(|part| (part, scope.spawn(|| replayed(part, &site))))
            .collect();
        for (part, made) in running {
            for ((given, wanted), made) in part.iter().zip(made.join().expect("replayed")) {
                // What gpuosd is told is of another form since then.
                let made: String = made
                    .split_inclusive('\n')
                    .filter(|line| !line.starts_with("told=[\"gpuosd\""))
                    .collect();
                // A report has no list of GPUs any more.
                let wanted = wanted.replace(r#"{\"gpus\":[],\"jobs\""#, r#"{\"jobs\""#);
                assert_eq!(made, wanted, "{given}");
            }
        }
    });
    for (given, _) in &events {
        let kind = given
            .lines()
            .find_map(|line| line.strip_prefix("pbs.event().type="));
        *found.entry(kind.expect("a kind")).or_default() += 1;
        for name in OPTIONS {
            *found.entry(name).or_default() +=
                usize::from(given.contains(&format!("Resource_List[{name}]=")));
        }
    }
    let least = KINDS.map(|kind| (kind, EACH)).into_iter();
    for (name, least) in least.chain(OPTIONS.map(|option| (option, OF_OPTION))) {
        assert!(found[name] >= least, "{name}: {found:?}");
    }
    // What they came to is not all the same.
    for (what, least) in [
        ("reject=True", 50),
        ("told=[\"gpuos_mover\"", 500),
        ("env[CUDA_VISIBLE_DEVICES]=", 300),
        ("state=offline", 2),
        ("env[GPUOS_MIG_UUIDS]=", 20),
        ("env[GPUOS_MEM_GRANT]=", 30),
        ("env[GPUOS_CHECKPOINT_DIR]=", 30),
        ("._rerun=True", 2),
    ] {
        let with = events.iter().filter(|(_, made)| made.contains(what));
        let with = with.count();
        assert!(with >= least, "{what}: {with}");
    }
}
