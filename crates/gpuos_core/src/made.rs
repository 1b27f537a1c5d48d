//! What a job's record at the workload manager says of its checkpoints: in which of its runs, and on which nodes, some were begun, asked
//! for or made. It is written by the movers of the job's nodes, where no user can write, and outlives them.
//!
//! ```text
//! gpuos checkpoints: since=0; run=0 nodes=n[1-3] made=4; run=2 nodes=n[4-6] asked
//! ```
//!
//! `since` is the first run that was noted. If that is not 0, nobody says what was before: a site may have written over it, and an earlier release of
//! gpuos noted nothing.
//!
//! By it a run that finds no checkpoint knows whether one was ever made. What it names is where to look; what is really there is the
//! nodes' to say.

use std::collections::BTreeSet;

use gpuos_model::hostlist::{compress, expand, is_name};

/// What the text begins with.
const START: &str = "gpuos checkpoints: ";
/// Between it and what others have written into the same field, the parts of gpuos's among them.
pub const BESIDE: &str = " | ";
/// In place of names of nodes that are too many.
const UNNAMED: &str = "*";
/// Runs that are named at most. Own choice: those before have nothing newer.
const MOST_RUNS: usize = 4;
/// Bytes of the names of a run's nodes, at most. Own choice: a field of the record is in the workload manager's memory for each job.
const MOST_NAMES: usize = 600;
/// Bytes of a text that are read.
const MOST_BYTES: usize = MOST_RUNS * (MOST_NAMES + 64);

/// How far a run of a job has come with checkpoints.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Progress {
    /// Its movers serve it, and none was asked for.
    Begun,
    /// One was asked for, and none is known to have been committed.
    Asked,
    /// One of this number was committed, or restored to its nodes. The newest has a number below twice this one.
    Made(u32),
}

/// A run of a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    /// The workload manager's count of restarts.
    pub run: u32,
    /// Its nodes. Empty: they are too many to be named.
    pub nodes: BTreeSet<String>,
    /// How far it has come.
    pub progress: Progress,
}

/// What is said of the runs of a job, in their order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MadeRecord {
    since: u32,
    runs: Vec<Run>,
}

impl MadeRecord {
    /// Reads it out of a field of the record. `None`: there is none, or what is there is damaged.
    pub fn parse(field: &str) -> Option<MadeRecord> {
        let (_, own, _) = split(field)?;
        let text = own.strip_prefix(START)?;
        if text.len() > MOST_BYTES {
            return None;
        }
        let (since, text) = text.split_once("; ")?;
        let since = digits(since.strip_prefix("since=")?)?;
        let runs: Option<Vec<Run>> = text.split("; ").map(run).collect();
        let runs = runs.filter(|runs| (1..=MOST_RUNS).contains(&runs.len()))?;
        let ascend = runs.windows(2).all(|two| two[0].run < two[1].run);
        (ascend && since <= runs[0].run).then_some(MadeRecord { since, runs })
    }

    /// The field with this in it; what others have written there is kept.
    pub fn write_into(&self, field: &str) -> String {
        let (before, after) = match split(field) {
            Some((before, _, after)) => (before, after),
            None => (field, ""),
        };
        let runs: Vec<String> = self.runs.iter().map(text).collect();
        let own = format!("{START}since={}; {}", self.since, runs.join("; "));
        let all = [&own, before, after];
        let all: Vec<&str> = all.into_iter().filter(|part| !part.is_empty()).collect();
        all.join(BESIDE)
    }

    /// Notes that a run has come so far on these nodes. What is known of it already stays.
    pub fn note(&mut self, new: Run) {
        self.since = match self.runs.is_empty() {
            true => new.run,
            false => self.since.min(new.run),
        };
        match self.runs.iter_mut().find(|known| known.run == new.run) {
            Some(known) => {
                known.progress = known.progress.max(new.progress);
                if known.nodes.is_empty() || new.nodes.is_empty() {
                    known.nodes.clear();
                } else {
                    known.nodes.extend(new.nodes);
                }
            }
            None => self.runs.push(new),
        }
        self.runs.sort_by_key(|run| run.run);
        while self.runs.len() > MOST_RUNS {
            // Runs in which nothing was made go first, but for the last one.
            let before = &self.runs[..self.runs.len() - 1];
            let idle = before
                .iter()
                .position(|run| run.progress == Progress::Begun);
            self.runs.remove(idle.unwrap_or(0));
        }
    }

    /// What was made is removed at its owner's word: the job begins from its start, as one of which nothing was asked.
    pub fn forget(&mut self) {
        for run in &mut self.runs {
            run.progress = Progress::Begun;
        }
    }

    /// The runs that are named, in their order.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// The last run in which a checkpoint was made, and its number.
    pub fn made(&self) -> Option<(&Run, u32)> {
        self.runs.iter().rev().find_map(|run| match run.progress {
            Progress::Made(number) => Some((run, number)),
            Progress::Begun | Progress::Asked => None,
        })
    }

    /// Nodes of the runs, each with whether a checkpoint was asked for there. `None`: those of a run are too many to be named, or runs before are not
    /// known.
    pub fn nodes(&self) -> Option<Vec<(&str, bool)>> {
        let mut all: Vec<(&str, bool)> = Vec::new();
        if self.since > 0 {
            return None;
        }
        for run in self.runs.iter().rev() {
            if run.nodes.is_empty() {
                return None;
            }
            for node in &run.nodes {
                let asked = run.progress > Progress::Begun;
                match all.iter_mut().find(|(known, _)| known == node) {
                    Some((_, known)) => *known |= asked,
                    None => all.push((node, asked)),
                }
            }
        }
        Some(all)
    }
}

/// What stands before gpuos's part of a field, that part, and what follows.
fn split(field: &str) -> Option<(&str, &str, &str)> {
    let at = match field.starts_with(START) {
        true => 0,
        false => field.find(&format!("{BESIDE}{START}"))? + BESIDE.len(),
    };
    let before = field[..at].strip_suffix(BESIDE).unwrap_or_default();
    let (own, after) = field[at..].split_once(BESIDE).unwrap_or((&field[at..], ""));
    Some((before, own, after))
}

fn text(run: &Run) -> String {
    let names = compress(run.nodes.iter().map(String::as_str));
    let names = match (1..=MOST_NAMES).contains(&names.len()) {
        true => &names,
        false => UNNAMED,
    };
    let progress = match run.progress {
        Progress::Begun => "begun".into(),
        Progress::Asked => "asked".into(),
        Progress::Made(number) => format!("made={number}"),
    };
    format!("run={} nodes={names} {progress}", run.run)
}

fn run(text: &str) -> Option<Run> {
    let mut words = text.split(' ');
    let number = words.next()?.strip_prefix("run=")?;
    let names = words.next()?.strip_prefix("nodes=")?;
    let progress = match words.next()? {
        "begun" => Progress::Begun,
        "asked" => Progress::Asked,
        made => Progress::Made(digits(made.strip_prefix("made=")?).filter(|made| *made > 0)?),
    };
    let nodes = match names {
        UNNAMED => BTreeSet::new(),
        names => {
            let nodes: BTreeSet<String> = expand(names).ok()?.into_iter().collect();
            let sound = !nodes.is_empty() && nodes.iter().all(|node| is_name(node));
            sound.then_some(nodes)?
        }
    };
    words.next().is_none().then_some(())?;
    Some(Run {
        run: digits(number)?,
        nodes,
        progress,
    })
}

fn digits(text: &str) -> Option<u32> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(run: u32, nodes: &[&str], progress: Progress) -> Run {
        Run {
            run,
            nodes: nodes.iter().map(ToString::to_string).collect(),
            progress,
        }
    }

    fn progress(record: &MadeRecord, run: u32) -> Option<Progress> {
        let known = record.runs().iter().find(|known| known.run == run);
        known.map(|known| known.progress)
    }

    fn of(runs: &[Run]) -> MadeRecord {
        let mut record = MadeRecord::default();
        runs.iter().cloned().for_each(|run| record.note(run));
        record
    }

    #[test]
    fn what_is_written_beside_a_sites_text_is_read_and_the_text_stays() {
        let record = of(&[
            run(0, &["n1", "n2", "n3"], Progress::Made(4)),
            run(2, &["n4"], Progress::Asked),
        ]);
        let own = "gpuos checkpoints: since=0; run=0 nodes=n[1-3] made=4; run=2 nodes=n4 asked";
        assert_eq!(record.write_into(""), own);
        for site in ["billed to X", "gpuos: held by node n1: no driver", "a | b"] {
            let field = record.write_into(site);
            assert_eq!(field, format!("{own} | {site}"));
            assert_eq!(MadeRecord::parse(&field), Some(record.clone()));
            let moved = format!("{site} | {own}");
            assert_eq!(MadeRecord::parse(&moved), Some(record.clone()));
            assert_eq!(record.write_into(&moved), field);
            assert_eq!(record.write_into(&field), field);
        }
        assert_eq!(MadeRecord::parse("billed to X"), None);
    }

    #[test]
    fn what_is_forgotten_was_never_made() {
        let mut record = of(&[
            run(0, &["n1", "n2"], Progress::Made(4)),
            run(1, &["n4"], Progress::Asked),
        ]);
        record.forget();
        assert_eq!(record.made(), None);
        let nodes = record.nodes().unwrap();
        assert!(nodes.iter().all(|(_, asked)| !asked) && nodes.len() == 3);
        let field = record.write_into("billed to X");
        assert_eq!(MadeRecord::parse(&field), Some(record));
    }

    #[test]
    fn damaged_texts_say_nothing() {
        for runs in [
            "",
            "run=0 nodes=n1",
            "run=0 nodes=n1 made=0",
            "run=0 nodes=n1 made=-1",
            "run=0 nodes=n1 begun more",
            "run=1 nodes=n1 begun; run=0 nodes=n1 begun",
            "run=0 nodes= begun",
            "run=0 nodes=../n1 begun",
            "run=99999999999 nodes=n1 begun",
        ] {
            let field = format!("gpuos checkpoints: since=0; {runs}");
            assert_eq!(MadeRecord::parse(&field), None, "{runs}");
        }
        for since in ["", "since=; ", "since=1; "] {
            let field = format!("gpuos checkpoints: {since}run=0 nodes=n1 begun");
            assert_eq!(MadeRecord::parse(&field), None, "{since}");
        }
    }

    #[test]
    fn a_run_only_goes_forward_and_runs_without_checkpoints_go_first() {
        let mut record = of(&[
            run(0, &["n1"], Progress::Made(4)),
            run(0, &["n2"], Progress::Begun),
        ]);
        assert_eq!(progress(&record, 0), Some(Progress::Made(4)));
        assert_eq!(record.nodes(), Some(vec![("n1", true), ("n2", true)]));
        for number in 1..20 {
            record.note(run(number, &["n3"], Progress::Begun));
        }
        assert_eq!(
            record.made().map(|(run, made)| (run.run, made)),
            Some((0, 4))
        );
        assert_eq!(progress(&record, 19), Some(Progress::Begun));
        assert!(record.nodes().unwrap().contains(&("n3", false)));
        record.note(run(20, &[], Progress::Asked));
        assert_eq!(record.nodes(), None, "too many to be named");
        let late = of(&[
            run(1, &["n1"], Progress::Begun),
            run(2, &["n1"], Progress::Made(1)),
        ]);
        assert_eq!(late.nodes(), None, "nobody says what was in run 0");
        assert!(late.write_into("").contains("since=1; run=1"));
    }

    proptest! {
        #[test]
        fn any_record_is_read_as_it_was_written(
            runs in prop::collection::vec((0u32..9, prop::collection::btree_set(1u32..2000, 1..300), 0u32..5), 1..12),
            site in "[a-z |]{0,20}",
        ) {
            let mut record = MadeRecord::default();
            for (number, nodes, progress) in &runs {
                record.note(Run {
                    run: *number,
                    nodes: nodes.iter().map(|node| format!("node{node}")).collect(),
                    progress: match progress {
                        0 => Progress::Begun,
                        1 => Progress::Asked,
                        made => Progress::Made(*made),
                    },
                });
            }
            let read = MadeRecord::parse(&record.write_into(&site)).unwrap();
            prop_assert_eq!(read.made().map(|(run, made)| (run.run, made)), record.made().map(|(run, made)| (run.run, made)));
            if let Some(nodes) = read.nodes() {
                prop_assert_eq!(Some(nodes), record.nodes());
            }
        }

        #[test]
        fn any_text_is_read(text in ".*") {
            let _ = MadeRecord::parse(&text);
            let _ = MadeRecord::parse(&format!("{START}{text}"));
        }
    }
}
