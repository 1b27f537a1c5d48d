//! Runs that ended, in a recording: a restart remembers them, and damage makes nothing of them but less.

use gpuos_model::cluster::Cluster;
use gpuos_placement::cost::{End, History};
use gpuos_placement::record::{Run, Sizes, Writer, read};
use proptest::prelude::*;

const NODES: usize = 4;

/// The n-th run: one of five names, on places of unlike bandwidth.
fn run(nth: u32) -> (String, u32, u32) {
    let bus = [10_000, 5_000, 20_000, 2_500][nth as usize % 4];
    (format!("job{}", nth % 5), 60 + 400_000 / bus, bus)
}

/// A ring with so many runs, and what they taught.
fn ring(records: u32, runs: u32) -> (Vec<u8>, History) {
    let sizes = Sizes::new(records, NODES);
    let mut memory = vec![0; sizes.total()];
    let mut writer = Writer::open(&mut memory, sizes, NODES);
    let mut history = History::new(64);
    for nth in 0..runs {
        // A slurmctld starts anew in between.
        if nth % 50 == 49 {
            writer = Writer::open(&mut memory, sizes, NODES);
            writer.model(&mut memory, &Cluster::default(), None);
        }
        let (name, seconds, bus) = run(nth);
        let (user, gpus) = ("1000", 16);
        history.note(&End {
            user,
            name: &name,
            gpus,
            seconds,
            bus,
            completed: true,
        });
        writer.ran(
            &mut memory,
            Run {
                user: user.into(),
                name: name.as_str().into(),
                gpus,
                seconds,
                bus,
            },
        );
    }
    (memory, history)
}

/// Runs known of each name, and what they taught.
fn known(history: &History) -> Vec<Option<(u32, Option<u32>)>> {
    let of = |nth: u32| history.get("1000", &run(nth).0);
    let known = (0..5).map(of);
    known
        .map(|known| known.map(|record| (record.runs, record.communication)))
        .collect()
}

#[test]
fn a_restart_remembers_what_runs_taught() {
    let (memory, history) = ring(512, 60);
    let again = read(&memory).expect("a ring").history(64);
    assert_eq!(known(&again), known(&history));
    assert!(
        known(&again)
            .iter()
            .all(|known| known.is_some_and(|(_, part)| part.is_some()))
    );
    assert!(
        read(&ring(512, 0).0)
            .expect("a ring")
            .history(64)
            .is_empty()
    );
    // What the ring has no room for any more is forgotten; the bound of the history holds.
    let (memory, history) = ring(0, 4000);
    let again = read(&memory).expect("a ring").history(2);
    assert_eq!((again.len(), history.len()), (2, 5));
}

#[test]
fn a_name_longer_than_the_ring_is_left_out() {
    let sizes = Sizes::new(0, NODES);
    let mut memory = vec![0; sizes.total()];
    let mut writer = Writer::open(&mut memory, sizes, NODES);
    let long = "x".repeat(sizes.total());
    for name in [long.as_str(), "short"] {
        let (user, name) = ("1".into(), name.into());
        let run = Run {
            user,
            name,
            gpus: 1,
            seconds: 9,
            bus: 0,
        };
        writer.ran(&mut memory, run);
    }
    assert_eq!(read(&memory).expect("a ring").history(9).len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    /// Of damaged bytes at most what was there is remembered; of cut ones nothing is read.
    #[test]
    fn damage_teaches_nothing(runs in 1u32..200, cut in any::<prop::sample::Index>(), hits in prop::collection::vec((any::<prop::sample::Index>(), 1u8..), 0..40)) {
        let (mut memory, history) = ring(64, runs);
        let whole = known(&history);
        let short = &memory[..cut.index(memory.len())];
        prop_assert!(read(short).is_err());
        for (at, value) in hits {
            let at = at.index(memory.len());
            memory[at] ^= value;
        }
        if let Ok(recording) = read(&memory) {
            for (now, then) in known(&recording.history(64)).iter().zip(whole) {
                let runs = |known: Option<(u32, Option<u32>)>| known.map_or(0, |known| known.0);
                prop_assert!(runs(*now) <= runs(then));
            }
        }
    }
}
