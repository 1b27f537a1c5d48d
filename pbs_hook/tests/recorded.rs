//! Events of a real PBS with what came of them there: the same comes of them here, byte for byte. [`ORIGIN`] says where they are from.

use std::collections::BTreeMap;
use std::io::Read;
use std::thread;

use serde_json::{Value, json};

use crate::periodic::{gpuosd, hook_of};
use crate::support::{Hook, command, has_python, library, own, python};

/// Beside the events.
const ORIGIN: &str = "tests/data/ORIGIN.md";

/// So often the recording of all kinds of jobs has each type of event at least.
const EACH: usize = 300;
const KINDS: [&str; 7] = [
    "execjob_end",
    "execjob_launch",
    "exechost_periodic",
    "exechost_startup",
    "modifyjob",
    "queuejob",
    "runjob",
];

/// And so often events of jobs that asked for each of these.
const OF_OPTION: usize = 200;
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
    let wanted = [
        "execjob_launch",
        "exechost_startup",
        "modifyjob",
        "queuejob",
        "runjob",
    ];
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
                assert_eq!(made, *wanted, "{given}");
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
        ("told=[\"gpuosd\"", 1000),
        ("told=[\"gpuos_mover\"", 500),
        ("env[GPUOS_MIG_UUIDS]=", 30),
        ("env[GPUOS_MEM_GRANT]=", 30),
        ("env[GPUOS_CHECKPOINT_DIR]=", 30),
        ("job.Execution_Time=", 2),
        ("state=offline", 2),
        ("._rerun=True", 2),
    ] {
        let with = events.iter().filter(|(_, made)| made.contains(what));
        let with = with.count();
        assert!(with >= least, "{what}: {with}");
    }
}

/// What gpuosd said is not among what PBS keeps; the recording has it as it must have been.
#[test]
fn what_a_real_mom_did_by_the_word_of_gpuosd_it_does_here() {
    if !has_python() {
        return;
    }
    let events = events("tests/data/mom.txt.gz");
    let host = json!({ "gpus": vec![json!({}); 8] });
    let hosts = json!({ "n1": host, "n2": host });
    let (mut offline, mut again) = (0, 0);
    for (turn, (given, wanted)) in events.iter().enumerate() {
        let said = given.lines().find_map(|line| line.strip_prefix("orders="));
        let said: Value = serde_json::from_str(said.expect("what gpuosd said")).expect("JSON");
        let (hook, socket) = hook_of(&hosts, &format!("{turn}.sock"));
        let _told = gpuosd(&socket, vec![said]);
        // PBS does not keep which processes a hook ended.
        let made = hook.one(given);
        let made: String = made
            .split_inclusive('\n')
            .filter(|line| !line.starts_with("kill="))
            .collect();
        assert_eq!(made, *wanted, "{given}");
        offline += usize::from(made.contains("state=offline"));
        again += usize::from(made.contains("._rerun=True"));
    }
    assert!(
        events.len() >= 50 && offline >= 2 && again >= 1,
        "{} {offline} {again}",
        events.len()
    );
}
