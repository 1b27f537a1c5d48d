//! Who may hold checkpoints of a job that it does not have itself: the workload manager names nodes, these are asked, and what was asked and
//! answered is told apart from what was not.
//!
//! Nodes of which it is said that they hold something, or that do not name all of which they hold something, are asked as often as that may help; without
//! their answer nobody begins anew. Where the job's record says nothing all others are asked, too, once: nothing is concluded from their silence.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gpuos_model::hostlist::compress;
use gpuos_mover::donors::Donor;
use gpuos_workload::{Hint, Holder};

use super::donors::{Around, PATIENCE};
use crate::carried::Made;
use crate::donor::client::Wanted;
use crate::donor::{Holding, patient};
use crate::event::{Asking, Found, Heard};
use crate::jobs::locked;

/// The workload manager is asked so often ...
const TRIES: u32 = 3;
/// ... at this interval, if it does not answer.
const AGAIN: Duration = Duration::from_secs(5);
/// Nodes that are asked at a time; own choice.
const AT_A_TIME: usize = 32;
/// Nodes that are asked at most; own choice: a job has parts on as many as it had in its last runs.
const MOST: usize = 4096;
/// Those of which nothing is said are asked until so long before nobody waits any more.
const LAST: Duration = Duration::from_secs(15);
/// Sentences about nodes that do not answer, for users.
const FEW: usize = 3;

/// Asks for holders, and these for what they hold; each answer is added to `found` as it comes.
pub(super) fn find(around: &Around, wanted: &Wanted, own: &BTreeSet<String>, found: &Mutex<Found>) {
    let begun = Instant::now();
    let mut tried = 0;
    let holders = loop {
        tried += 1;
        match around.manager.holders(&wanted.of) {
            Ok(holders) => break holders,
            Err(_) if tried < TRIES => thread::sleep(AGAIN),
            Err(outcome) => {
                locked(found).untold = Some(format!(
                    "the workload manager does not tell which nodes hold its checkpoints: {}",
                    outcome.words()
                ));
                return;
            }
        }
    };
    let mut outside = holders.nodes;
    outside.retain(|holder| !own.contains(&holder.node));
    // Those that are down hold up nobody who has something to give.
    outside.sort_by_key(|holder| (holder.hint, holder.is_down));
    {
        let mut found = locked(found);
        found.record = holders.record;
        found.own = own.iter().cloned().collect();
        let asking = |holder: &Holder| Asking {
            node: holder.node.clone(),
            hint: holder.hint,
            answer: Heard::Unasked,
        };
        found.nodes = outside.iter().map(asking).collect();
    }
    let ask = |holder: &Holder| {
        if holder.hint == Hint::Nothing && begun.elapsed() + LAST > PATIENCE {
            return;
        }
        let answer = patient::ask(&around.network, holder, wanted);
        let mut found = locked(found);
        let heard = match answer {
            Ok((_, holding)) => found.take(&holder.node, holding),
            Err(why) => Heard::Silent(why),
        };
        if let Some(asking) = found.nodes.iter_mut().find(|it| it.node == holder.node) {
            asking.answer = heard;
        }
    };
    let next = AtomicUsize::new(0);
    let most = outside.len().min(MOST);
    thread::scope(|scope| {
        for _ in 0..most.min(AT_A_TIME) {
            scope.spawn(|| {
                while let Some(holder) = outside[..most].get(next.fetch_add(1, Ordering::Relaxed)) {
                    ask(holder);
                }
            });
        }
    });
    // The same answer however they came.
    locked(found).donors.sort_by(|a, b| a.node.cmp(&b.node));
}

impl Found {
    /// Takes what a node holds, and what the job's user has chosen.
    fn take(&mut self, node: &str, holding: Holding) -> Heard {
        self.chosen.extend(holding.chosen);
        let newest = holding.claim.map(|claim| (claim, holding.parts));
        let all: Vec<_> = newest.into_iter().chain(holding.others).collect();
        let heard = match all.is_empty() {
            true => Heard::Nothing,
            false => Heard::Holds,
        };
        self.donors
            .extend(all.into_iter().map(|(claim, parts)| Donor {
                node: node.into(),
                claim,
                parts,
            }));
        heard
    }

    /// Nobody waits any more.
    pub(super) fn end(&mut self) {
        if self.own.is_empty() {
            let why = "the workload manager has not told in time which nodes hold its checkpoints";
            self.untold.get_or_insert_with(|| why.into());
        }
    }

    /// The checkpoint that the job's record says was made last.
    pub(super) fn made(&self) -> Option<Made> {
        let (run, number) = self.record.as_ref()?.made()?;
        let on = match run.nodes.is_empty() {
            true => String::new(),
            false => format!(", on {}", listed(run.nodes.iter().map(String::as_str))),
        };
        Some(Made {
            number,
            sentence: format!(
                "checkpoint {number} was made in run {} of the job{on}",
                run.run
            ),
        })
    }

    /// Without whose answers nobody knows that there is nothing: clauses.
    pub(super) fn silent(&self) -> Vec<String> {
        let counts = self.nodes.iter().filter(|it| it.hint != Hint::Nothing);
        let why = counts.filter_map(|it| match &it.answer {
            Heard::Silent(why) => Some(why.clone()),
            Heard::Unasked => Some(format!("node {} was not asked in time", it.node)),
            Heard::Holds | Heard::Nothing => None,
        });
        self.untold.iter().cloned().chain(why).take(FEW).collect()
    }

    /// What the others answered, for where nothing is found: clauses.
    pub(super) fn answers(&self) -> Vec<String> {
        let of = |answer: fn(&Asking) -> bool| -> Vec<&str> {
            let those = self.nodes.iter().filter(|it| answer(it));
            those.map(|it| it.node.as_str()).collect()
        };
        let own = self.own.iter().map(String::as_str).collect();
        let nothing = of(|it| it.answer == Heard::Nothing);
        let silent = of(|it| it.hint == Hint::Nothing && matches!(it.answer, Heard::Silent(_)));
        let unasked = of(|it| it.hint == Hint::Nothing && it.answer == Heard::Unasked);
        let clause = |nodes: Vec<&str>, [one, several]: [&str; 2]| match nodes[..] {
            [] => None,
            [node] => Some(format!("node {node} {one}")),
            _ => Some(format!("nodes {} {several}", listed(nodes.into_iter()))),
        };
        let clauses = [
            clause(
                own,
                [
                    "of the job has too little of it",
                    "of the job have too little of it",
                ],
            ),
            clause(
                nothing,
                [
                    "answered that it has nothing of it",
                    "answered that they have nothing of it",
                ],
            ),
            clause(silent, ["did not answer"; 2]),
            clause(unasked, ["was not asked", "were not asked"]),
        ];
        clauses.into_iter().flatten().collect()
    }
}

/// Names of nodes as Slurm writes them, shortened where they are many.
fn listed<'a>(nodes: impl Iterator<Item = &'a str>) -> String {
    const MOST: usize = 200;
    let all = compress(nodes);
    match all.char_indices().nth(MOST) {
        Some((at, _)) => format!("{}…", &all[..at]),
        None => all,
    }
}

#[cfg(test)]
mod tests {
    use gpuos_core::made::{MadeRecord, Progress, Run};

    use super::*;

    fn asking(node: &str, hint: Hint, answer: Heard) -> Asking {
        let node = node.into();
        Asking { node, hint, answer }
    }

    #[test]
    fn who_answered_who_did_not_and_who_was_not_asked_are_told_apart() {
        let silent = |node: &str| Heard::Silent(format!("node {node} is not reached"));
        let found = Found {
            own: vec!["n9".into()],
            nodes: vec![
                asking("n1", Hint::Holds, Heard::Nothing),
                asking("n2", Hint::Nothing, Heard::Nothing),
                asking("n3", Hint::More, silent("n3")),
                asking("n4", Hint::Nothing, silent("n4")),
                asking("n5", Hint::Nothing, Heard::Unasked),
                asking("n6", Hint::Holds, Heard::Unasked),
                asking("n7", Hint::Holds, Heard::Holds),
            ],
            ..Found::default()
        };
        assert_eq!(
            found.silent(),
            ["node n3 is not reached", "node n6 was not asked in time"]
        );
        assert_eq!(
            found.answers(),
            [
                "node n9 of the job has too little of it",
                "nodes n[1-2] answered that they have nothing of it",
                "node n4 did not answer",
                "node n5 was not asked",
            ]
        );
    }

    #[test]
    fn what_was_made_is_told_with_its_run_and_nodes() {
        let mut record = MadeRecord::default();
        record.note(Run {
            run: 2,
            nodes: ["n1".into(), "n2".into()].into(),
            progress: Progress::Made(8),
        });
        record.note(Run {
            run: 3,
            nodes: ["n3".into()].into(),
            progress: Progress::Asked,
        });
        let found = Found {
            record: Some(record),
            ..Found::default()
        };
        let made = found.made().unwrap();
        assert_eq!(
            (made.number, &made.sentence[..]),
            (8, "checkpoint 8 was made in run 2 of the job, on n[1-2]")
        );
        assert_eq!(Found::default().made(), None);
    }
}
