//! Every health rule about something that is measured of a GPU is fed by the adapter: what the library shows
//! of a broken GPU, polled by gpuos, makes the rule speak. A gauge that nobody fills fails here.

use std::collections::BTreeSet;

use gpuos_core::health::{Effect, Event, Job, NodeHealth, Rules, Signal, step};
use gpuos_host::hardware::nvml::{Driver, Error, GpuLibrary};

use crate::common::{Site, on};

const MINUTE: u64 = 60_000;

/// Faults of a GPU that together make all of its rules speak. Each is an independent life of the GPU.
const FAULTS: [&[&str]; 14] = [
    &["fault ecc corrected 2000"],
    &["fault ecc uncorrected 20"],
    &["fault sram-threshold"],
    &["fault row-remap failure"],
    &["fault row-remap pending"],
    &["fault nvlink 3 replay 1000", "fault nvlink 3 recovery 1000"],
    &["fault nvlink 3 crc 100000"],
    &["fault nvlink 3 down"],
    &["fault pcie-replay 1000"],
    &[
        "run --pid 4711 --load 80 --memory 4000",
        "fault pcie-link 3 8",
    ],
    // Near the slowdown temperature, far above what is usual.
    &["fault thermal 95"],
    &["fault power-brake"],
    &["fault retired-page double-bit"],
    &["fault driver-timeout"],
];

/// Rules that spoke over two hours: one of health, then one with the fault.
fn spoke(site: &Site, library: &dyn GpuLibrary, words: &[String]) -> BTreeSet<String> {
    let rules = Rules::default();
    let mut node = NodeHealth::new(1, 0);
    let mut now = 0;
    let mut said = BTreeSet::new();
    let mut tell = |event: Event, now: u64| {
        for effect in step(&mut node, &rules, event, now) {
            if let Effect::Audit(audit) = effect {
                said.extend(audit.rule);
            }
        }
    };
    let watched = Job {
        job: 7.into(),
        gpus: vec![0u8.try_into().unwrap()],
        watch: true,
        ..Job::default()
    };
    for minute in 0..120 {
        if minute == 62 {
            for words in words {
                site.run(words);
            }
            tell(Event::Jobs(vec![watched.clone()]), now);
        }
        now += MINUTE;
        let told = match library.sample(0) {
            Ok(sample) => Event::Sample {
                gpu: 0u8.try_into().unwrap(),
                sample: Box::new(sample),
            },
            Err(Error::Timeout) => Event::Silent {
                gpu: 0u8.try_into().unwrap(),
            },
            Err(e) => panic!("{e}"),
        };
        tell(told, now);
    }
    site.run("repair gpu0");
    said
}

/// Names of the rules about what is measured, whatever the action.
fn measured() -> BTreeSet<String> {
    let rules = Rules::default();
    let measured = rules
        .all()
        .iter()
        .filter(|rule| matches!(rule.signal, Signal::Gauge(_)));
    measured.map(|rule| rule.name.clone()).collect()
}

/// What one kind of node shows of all faults that it can have.
fn shown(site: &Site, without: &[&str]) -> BTreeSet<String> {
    let library = Driver::open(site.library().to_str()).unwrap();
    let mut all = BTreeSet::new();
    for words in FAULTS {
        let known = |word: &&&str| !without.iter().any(|none| word.contains(none));
        let words: Vec<String> = words
            .iter()
            .filter(known)
            .map(|word| match word.split_once(' ') {
                Some((verb, rest)) => format!("{verb} gpu0 {rest}"),
                None => (*word).to_owned(),
            })
            .collect();
        if !words.is_empty() {
            all.extend(spoke(site, &library, &words));
        }
    }
    all
}

fn missing(spoke: &BTreeSet<String>, not_here: &[&str]) -> Vec<String> {
    let all = measured();
    for name in not_here {
        assert!(all.contains(*name), "{name} is no rule any more");
    }
    let gone = all.difference(spoke);
    gone.filter(|name| !not_here.contains(&name.as_str()))
        .cloned()
        .collect()
}

/// Boards since Ampere remap rows; those before retire pages.
const OF_PAGES: [&str; 3] = ["page-pending", "pages", "pages-most"];

#[test]
fn every_gauge_is_fed_on_a_hopper() {
    on("every_gauge_is_fed_on_a_hopper", "dgx-h100", |site| {
        let mut spoke = shown(site, &["retired-page"]);
        // Enough rows for the rule about their number.
        let rows: Vec<String> = (0..130)
            .map(|_| "fault gpu0 row-remap pending".into())
            .collect();
        let library = Driver::open(site.library().to_str()).unwrap();
        spoke.extend(self::spoke(site, &library, &rows));
        assert_eq!(missing(&spoke, &OF_PAGES), Vec::<String>::new());
    });
}

/// NVLink 5 has other counters.
#[test]
fn every_gauge_of_links_is_fed_on_a_blackwell() {
    on(
        "every_gauge_of_links_is_fed_on_a_blackwell",
        "b200",
        |site| {
            let spoke = shown(site, &["retired-page"]);
            let missing = missing(&spoke, &OF_PAGES);
            assert_eq!(missing, ["rows-remapped"]);
        },
    );
}

#[test]
fn pages_are_fed_on_a_volta() {
    on("pages_are_fed_on_a_volta", "v100-4", |site| {
        let library = Driver::open(site.library().to_str()).unwrap();
        // No board has room for 63 in the simulator: the rules of pages are one gauge.
        let pages: Vec<String> = (0..20)
            .map(|_| "fault gpu0 retired-page double-bit".into())
            .collect();
        let spoke = spoke(site, &library, &pages);
        for name in ["page-pending", "pages"] {
            assert!(spoke.contains(name), "{spoke:?}");
        }
    });
}
