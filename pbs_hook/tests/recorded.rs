//! Events of a real PBS with what came of them there: the same comes of them here, byte for byte. [`ORIGIN`] says where they are from.

use std::collections::BTreeMap;
use std::io::Read;

use crate::support::{Hook, has_python, own};

/// Beside the events.
const ORIGIN: &str = "tests/data/ORIGIN.md";

/// Inputs and outcomes.
fn events() -> Vec<(String, String)> {
    let packed = std::fs::File::open(own("tests/data/events.txt.gz")).expect("the events");
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
    let events = events();
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
