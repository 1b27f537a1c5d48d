//! Every end that gpuos causes: what its user reads, and where. The table of them is docs/user/ends.md.

use std::collections::BTreeSet;

use gpuos_core::limits::Asked;
use gpuos_core::step::StepId;
use gpuos_memory::lease::{Ended, Requeued};
use gpuos_memory::protocol::ToProgram;

use crate::isolation::{audited, of_job, record};
use crate::memory_program::{Program, sharer, start, status, step};
use crate::site::{Daemon, Site};

const GIB: u64 = 1 << 30;
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/user/ends.md");

/// Each end of a process for its memory. The compiler asks for one that is new.
const ENDS: [Ended; 11] = [
    Ended::Deaf,
    Ended::Works { seconds: 600 },
    Ended::NotCheckpointed,
    Ended::NotBack,
    Ended::NoNvme,
    Ended::DeafUnderPressure,
    Ended::Away,
    Ended::Stopped,
    Ended::Elsewhere,
    Ended::JobOver,
    Ended::GpuGone,
];

fn place(why: Ended) -> usize {
    match why {
        Ended::Deaf => 0,
        Ended::Works { .. } => 1,
        Ended::NotCheckpointed => 2,
        Ended::NotBack => 3,
        Ended::NoNvme => 4,
        Ended::DeafUnderPressure => 5,
        Ended::Away => 6,
        Ended::Stopped => 7,
        Ended::Elsewhere => 8,
        Ended::JobOver => 9,
        Ended::GpuGone => 10,
    }
}

/// The sentence up to where it becomes long.
fn beginning(sentence: &str) -> &str {
    let end = sentence.find([';', ',']).unwrap_or(sentence.len());
    &sentence[..end]
}

#[test]
fn each_end_stands_in_the_table_in_the_words_that_its_user_reads() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let places: BTreeSet<usize> = ENDS.into_iter().map(place).collect();
    assert_eq!(places.len(), ENDS.len());
    let sentences = ENDS.map(|why| why.to_string());
    let requeued = Requeued::Pressure.to_string();
    for sentence in sentences.iter().chain([&requeued]) {
        let words = beginning(sentence);
        assert!(page.contains(words), "{PAGE} lacks \u{201c}{words}\u{201d}");
    }
}

/// What was told of an end of job 7: in the audit log, on the job's standard error, and in its record.
fn is_told(site: &Site, words: &str) {
    site.until("the audit log", || {
        (audited(site, words) >= 1).then_some(())
    });
    let log = || site.slurm("log");
    let line = |of: &str| {
        let log = log();
        log.lines()
            .any(|line| line.contains(of) && line.contains(words))
    };
    site.until("standard error", || {
        line("scontrol notify 7 gpuos: ").then_some(())
    });
    let comment = "scontrol update JobId=7 AdminComment=gpuos: told by node n1: ";
    assert!(line(comment), "{}", log());
}

/// A job in turns that has the GPU, and one that waits for it.
struct Pair<'a> {
    site: &'a Site,
    daemon: Daemon<'a>,
}

impl<'a> Pair<'a> {
    fn new(site: &'a Site) -> Pair<'a> {
        for id in [7, 8] {
            sharer(site, id, "2", "70G");
        }
        let daemon = start(site);
        for id in [7, 8] {
            step(&daemon, id, &[2], 60 * GIB, true);
        }
        Pair { site, daemon }
    }

    fn program(&self, id: u32) -> Program<'a> {
        Program::start(self.site, &self.daemon, id)
    }
}

/// It hears why before it is dead.
fn hears(program: &mut Program<'_>, words: &str) {
    let mut said = String::new();
    while let Some(told) = program.told() {
        if let ToProgram::Note { text } = told {
            said += &text;
        }
    }
    assert!(said.contains(words), "{said}");
    assert!(!program.child.wait().unwrap().success());
    program.forget();
}

#[test]
fn who_does_not_give_up_his_turn_is_told_in_all_places() {
    let site = Site::new();
    let pair = Pair::new(&site);
    let (mut a, mut b) = (pair.program(7), pair.program(8));
    assert!(!a.ask(2, 60 * GIB).unwrap().3 && b.ask(2, 60 * GIB).unwrap().3);
    let words = "the process was ended: it was another job's turn on the GPU";
    hears(&mut a, words);
    is_told(&site, words);
    assert_eq!(b.told(), Some(ToProgram::Turn));
    // Nothing of it is in the other's record.
    assert!(!site.slurm("log").contains("JobId=8 AdminComment"));
}

/// A job that is not given what `mem=` says does not run beside the one that was.
#[test]
fn a_job_that_cannot_be_lent_its_turn_does_not_start_beside_another() {
    let site = Site::new();
    sharer(&site, 7, "2", "10G");
    sharer(&site, 8, "2", "70G");
    let daemon = start(&site);
    for id in [7, 8] {
        step(&daemon, id, &[2], 60 * GIB, true);
    }
    let mut b = Program::start(&site, &daemon, 8);
    assert!(!b.ask(2, 60 * GIB).unwrap().3);
    let mut a = Program::start(&site, &daemon, 7);
    let why = a.ask(2, 60 * GIB).unwrap_err();
    assert!(why.contains("could not be parked"), "{why}");
    is_told(&site, "was not given the GPU in turns: ");
    assert!(b.child.try_wait().unwrap().is_none());
    // One of an earlier release does not know the word, and is ended.
    let mut older = Program::start(&site, &daemon, 7);
    older.ask_earlier(2, 60 * GIB).unwrap_err();
    is_told(
        &site,
        "it does not start beside the jobs that have the GPU in turns",
    );
    older.is_ended();
    assert_eq!(status(&daemon).programs.len(), 1);
}

/// Steps and jobs of a GPU that fails.
#[test]
fn who_is_requeued_or_ended_for_a_gpu_is_told() {
    for (fault, words, acted) in [
        (
            "xid 48",
            "the job is requeued: GPU 2: ",
            "scontrol requeue incomplete 7",
        ),
        ("xid 31", "step 7.0 is ended: GPU 2: ", "scancel 7.0"),
    ] {
        let site = Site::new();
        site.job(7, "2");
        let daemon = site.start();
        daemon.ready();
        let id = StepId {
            job: 7.into(),
            step: 0,
        };
        daemon.start_step(id, &[2], Asked::default());
        site.until("the job", || {
            (daemon.status().jobs.len() == 1).then_some(())
        });
        site.fault(Some(2), fault);
        let log = || site.slurm("log");
        let line = |of: &str| {
            let log = log();
            log.lines()
                .any(|line| line.contains(of) && line.contains(words))
        };
        site.until("what its user is told", || {
            line("scontrol notify 7 gpuos: ").then_some(())
        });
        assert!(line("JobId=7 AdminComment=gpuos: told by node n1: "));
        site.until("the end", || log().contains(acted).then_some(()));
        // It was told before.
        let log = log();
        let told = log.find("scontrol notify 7").unwrap();
        assert!(told < log.find(acted).unwrap(), "{log}");
    }
}

/// A process of a job on a GPU that is another's.
#[test]
fn who_is_killed_on_a_gpu_of_another_is_told() {
    let site = Site::new();
    let toml = "[isolation]\ngrace = \"1s\"\nforeign = \"kill\"\n";
    std::fs::write(site.path("gpuos.toml"), toml).unwrap();
    site.job(7, "0-1");
    site.job(8, "2-3");
    let mut child = std::process::Command::new("sleep")
        .arg("600")
        .spawn()
        .unwrap();
    record(&site, child.id(), 1000, "stray", &of_job(7, "0"));
    let proc = site.path("proc");
    let daemon = site.start_with(&["--proc", proc.to_str().unwrap()]);
    daemon.ready();
    site.compute(child.id(), Some(2));
    let log = || site.slurm("log");
    site.until("what its user is told", || {
        let told = format!(
            "scontrol notify 7 gpuos: process {} is killed: ",
            child.id()
        );
        log().contains(&told).then_some(())
    });
    let _ = child.kill();
    let _ = child.wait();
}
