//! Events of a real PBS with what came of them there: the same comes of them here, byte for byte. [`ORIGIN`] says where they are from.

use std::collections::BTreeMap;
use std::io::Read;

use serde_json::{Value, json};

use crate::periodic::{gpuosd, hook_of};
use crate::support::{Hook, has_python, own};

/// Beside the events.
const ORIGIN: &str = "tests/data/ORIGIN.md";

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
