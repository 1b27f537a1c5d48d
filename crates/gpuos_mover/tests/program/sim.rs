//! Jobs in memory: programs that start, die and start anew, a network that loses, repeats, reorders and breaks, and a node that
//! commits or fails what was begun. Ranks refuse what they were given, now and then, and some begin from the start without having joined.

mod ends;
mod trouble;

use std::collections::{BTreeMap, BTreeSet};

use gpuos_checkpoint::commit::Outcome;
use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
use gpuos_checkpoint::refusal::Refusal;
use gpuos_mover::output::Ready;
use gpuos_mover::program::{
    Answered, Conductor, Every, Input, Join, Known, Output, Refused, Settings, Start, Told, Word,
};

use crate::random::Random;
use crate::support::seeds;
use ends::Ends;
use trouble::{heal, trouble};

const STEP: u64 = 10;

/// A process of a rank.
#[derive(Clone)]
struct Process {
    join: Join,
    /// Which start of the program.
    round: u32,
    /// When it makes its file.
    joins: u64,
    start: Option<Start>,
    /// Saves what it is asked for after so long; `None`: never.
    saves: Option<u64>,
    /// Its step got no answer of its mover: it never joins, and begins from the start.
    alone: bool,
}

type Newest = (CheckpointId, u16, BTreeMap<u16, u16>);

#[derive(Default)]
struct Folder {
    number: u32,
    since: u64,
    /// Which processes have saved.
    ready: BTreeMap<u16, (u64, u32)>,
    offered: bool,
}

struct Job {
    random: Random,
    now: u64,
    conductors: Vec<Conductor>,
    net: BTreeMap<(u64, u64), (u16, u16, Vec<u8>)>,
    serial: u64,
    lost: u64,
    delay: u64,
    /// Until when nothing comes to or from a node.
    down: Vec<u64>,
    ranks: Vec<Option<Process>>,
    /// The newest file of each rank, of living and dead ones.
    files: BTreeMap<u16, Join>,
    folders: Vec<Option<Folder>>,
    /// By node: the answers that lie in its folder, and the highest number that was asked for there.
    known: Vec<(BTreeMap<u16, Answered>, u32)>,
    /// Answers that are being carried out: when they will lie there.
    restoring: Vec<(u64, u16, Answered, Start)>,
    /// Which gathering of the movers this is.
    run: u32,
    round: u32,
    /// Ranks of each start.
    sizes: BTreeMap<u32, u16>,
    /// The start of each join.
    rounds: BTreeMap<u64, u32>,
    nonce: u64,
    /// What was begun: its number, the processes, and when it ends.
    begun: Option<(CheckpointId, BTreeSet<u32>, u64)>,
    numbers: u32,
    /// The highest number of runs before.
    before: u32,
    ends: Ends,
    /// The newest committed one, its ranks, and where their files are.
    newest: Option<Newest>,
    /// Those before it.
    older: Vec<Newest>,
    /// Files by which ranks refuse, and what was refused.
    refusals: BTreeMap<u16, Refused>,
    refused: Vec<(CheckpointId, Refusal)>,
    /// A node has heard of it that has all begin anew.
    without: Option<CheckpointId>,
    /// How often a rank refuses: after about so many steps; 0: never.
    refuses: u64,
    last_round: Option<u32>,
    answered: BTreeSet<(u32, u16, u32)>,
    /// By start of the program: what its ranks were told.
    told: BTreeMap<u32, BTreeSet<Option<CheckpointId>>>,
    later: Vec<(u64, u16, Input)>,
    /// From now on nothing goes wrong.
    good: bool,
    /// A mover is started anew after about so many steps; 0: never.
    anew: u64,
    /// One of so many processes gets no answer of its mover.
    alone: u64,
}

impl Job {
    fn new(seed: u64) -> Job {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let nodes = 1 + random.below(5) as u16;
        let ranks = 1 + random.below(9) as u16;
        let restored = random.below(2) == 0;
        let id = CheckpointId {
            number: 7,
            attempt: 1,
        };
        let holders: BTreeMap<u16, u16> = (0..ranks)
            .map(|rank| (rank, random.below(nodes.into()) as u16))
            .collect();
        let mut job = Job {
            now: 0,
            conductors: (0..nodes)
                .map(|node| Conductor::new(settings(node, nodes, 3), 0))
                .collect(),
            net: BTreeMap::new(),
            serial: 0,
            lost: random.below(30),
            delay: random.pick(&[30, 400, 3000]),
            down: vec![0; nodes.into()],
            ranks: vec![None; ranks.into()],
            files: BTreeMap::new(),
            folders: (0..nodes).map(|_| None).collect(),
            known: vec![(BTreeMap::new(), 0); nodes.into()],
            restoring: Vec::new(),
            run: 3,
            round: 0,
            sizes: BTreeMap::new(),
            rounds: BTreeMap::new(),
            nonce: 0,
            begun: None,
            numbers: if restored { 9 } else { 0 },
            before: if restored { 9 } else { 0 },
            ends: Ends::new(nodes),
            newest: restored.then(|| (id, ranks, holders.clone())),
            older: Vec::new(),
            refusals: BTreeMap::new(),
            refused: Vec::new(),
            without: None,
            refuses: random.pick(&[0, 400, 1500]),
            last_round: None,
            answered: BTreeSet::new(),
            told: BTreeMap::new(),
            later: Vec::new(),
            good: false,
            anew: random.pick(&[0, 300, 1500]),
            alone: random.pick(&[8, 30, u64::MAX]),
            random,
        };
        job.restart(job.before);
        job
    }

    /// The restart of all nodes begins, which find what is committed.
    fn restart(&mut self, highest: u32) {
        for node in 0..self.conductors.len() as u16 {
            let at = self.now + self.random.below(3000);
            let ready = Ready {
                restore: self.newest.as_ref().map(|newest| newest.0),
                passed_over: self.refused.iter().map(|(_, by)| by.to_string()).collect(),
                refused: self.refused.clone(),
                highest,
                lost: self.is_lost(),
            };
            self.later.push((at, node, Input::Ready(ready)));
            if let Some((id, ranks, holders)) = self.newest.clone() {
                let held = holders.iter().filter(|(_, at)| **at == node);
                let held = held.map(|(rank, _)| (*rank, ranks)).collect();
                let at = at + self.random.below(500);
                self.later
                    .push((at, node, Input::Holds { id, ranks: held }));
            }
        }
    }

    /// All that there was is refused.
    fn is_lost(&self) -> bool {
        self.newest.is_none() && !self.refused.is_empty()
    }

    fn place(&self, rank: u16) -> u16 {
        rank % self.conductors.len() as u16
    }

    /// Ends the program if it runs, and starts it with so many ranks.
    fn start(&mut self, size: u16) {
        self.round += 1;
        self.ranks = vec![None; usize::from(size).max(self.ranks.len())];
        self.sizes.insert(self.round, size);
        for rank in 0..size {
            self.nonce += 1;
            self.rounds.insert(self.nonce, self.round);
            let join = Join {
                rank,
                size,
                nonce: self.nonce,
            };
            let saves = match self.good || self.random.below(10) > 0 {
                true => Some(self.random.below(1500)),
                false => None,
            };
            self.ranks[usize::from(rank)] = Some(Process {
                join,
                round: self.round,
                joins: self.now + self.random.below(2500),
                start: None,
                saves,
                alone: !self.good && self.random.below(self.alone) == 0,
            });
        }
    }

    fn step(&mut self) {
        self.now += STEP;
        let now = self.now;
        if let Some(id) = self.without.take() {
            self.anew_without(id);
        }
        while let Some(entry) = self.net.first_entry().filter(|entry| entry.key().0 <= now) {
            let (from, to, bytes) = entry.remove();
            let word = Word::decode(&bytes).unwrap();
            let from = NodeIndex(from);
            self.give(to, Input::Received { from, word });
        }
        let (due, later): (Vec<_>, Vec<_>) = std::mem::take(&mut self.later)
            .into_iter()
            .partition(|one| one.0 <= now);
        self.later = later;
        for (_, node, input) in due {
            self.give(node, input);
        }
        self.end();
        let (due, restoring): (Vec<_>, Vec<_>) = std::mem::take(&mut self.restoring)
            .into_iter()
            .partition(|one| one.0 <= now);
        self.restoring = restoring;
        for (_, node, answered, start) in due {
            // What is too late for its process is not laid there any more.
            if self.files.get(&answered.join.rank) != Some(&answered.join) {
                continue;
            }
            let known = &mut self.known[usize::from(node)].0;
            known.insert(answered.join.rank, answered);
            self.end_rank(answered.join, start);
        }
        self.work();
        for node in 0..self.conductors.len() as u16 {
            if self.random.below(10) == 0 {
                self.look(node);
            }
            if now.is_multiple_of(50) {
                self.give(node, Input::Tick);
            }
        }
    }

    /// Processes join, and save what their node asks for.
    fn work(&mut self) {
        for rank in 0..self.ranks.len() {
            let place = usize::from(self.place(rank as u16));
            let Some(process) = &self.ranks[rank] else {
                continue;
            };
            if self.now < process.joins {
                continue;
            }
            if process.alone {
                let join = process.join;
                if process.start.is_none() {
                    self.end_rank(join, Start::New);
                }
                continue;
            }
            self.files.insert(rank as u16, process.join);
            if let (Some(Start::New | Start::Restore { .. }), Some(wait), Some(folder)) =
                (&process.start, process.saves, &mut self.folders[place])
                && self.now >= folder.since + wait
            {
                let (nonce, round) = (process.join.nonce, process.round);
                folder.ready.entry(rank as u16).or_insert((nonce, round));
            }
        }
    }

    /// The mover looks into the folder.
    fn look(&mut self, node: u16) {
        let joins = self
            .files
            .iter()
            .filter(|(rank, _)| self.place(**rank) == node);
        let joins: Vec<Join> = joins.map(|(_, join)| *join).collect();
        let (answered, highest) = &self.known[usize::from(node)];
        let known = Known {
            answered: answered.values().copied().collect(),
            epoch: answered.values().map(|it| it.epoch).max().unwrap_or(0),
            highest: *highest,
            ..self.ends.known(node)
        };
        self.give(node, Input::Known(known));
        let lives = |join: &Join| {
            let process = self
                .ranks
                .get(usize::from(join.rank))
                .and_then(Option::as_ref);
            process.is_some_and(|process| process.join == *join)
        };
        let gone = joins.iter().filter(|join| !lives(join)).copied().collect();
        self.give(node, Input::Gone(gone));
        let stays = |it: &&Refused| {
            let told = self.known[usize::from(node)].0.get(&it.join.rank);
            told.is_some_and(|told| (told.join, told.told) == (it.join, Told::Restore(it.number)))
        };
        let refusals = self.refusals.values();
        let here = refusals.filter(|it| self.place(it.join.rank) == node);
        let refused = here.filter(stays).max_by_key(|it| it.number).cloned();
        self.give(node, Input::Refused(refused));
        self.give(node, Input::Joins(joins));
        if let Some(folder) = &self.folders[usize::from(node)] {
            let (number, ranks) = (folder.number, folder.ready.keys().copied().collect());
            self.give(node, Input::Saved { number, ranks });
        }
    }

    /// What was begun ends, first on the leader.
    fn end(&mut self) {
        let now = self.now;
        let Some((id, rounds, _)) = self.begun.take_if(|begun| now >= begun.2) else {
            return;
        };
        let outcome = match self.good || self.random.below(3) > 0 {
            true => Outcome::Committed,
            false => Outcome::Failed {
                why: "no space".into(),
            },
        };
        match outcome {
            Outcome::Committed => self.commit(id, &rounds),
            Outcome::Failed { .. } => self.ends.complete = Some((id, rounds)),
        }
        for node in 1..self.conductors.len() as u16 {
            let at = now + self.random.below(2000);
            let outcome = outcome.clone();
            self.later.push((at, node, Input::Ended { id, outcome }));
        }
        self.give(0, Input::Ended { id, outcome });
    }

    /// All ranks of the last start were.
    fn told_to_end(&self) -> bool {
        let mut all = self.ranks.iter().flatten();
        all.all(|process| matches!(process.start, Some(Start::Failed(_))))
    }

    fn size_of(&self, round: u32) -> u16 {
        self.sizes[&round]
    }

    fn give(&mut self, node: u16, input: Input) {
        let out = self.conductors[usize::from(node)].step(self.now, input);
        for output in out {
            self.take(node, output);
        }
    }

    fn take(&mut self, node: u16, output: Output) {
        let now = self.now;
        match output {
            Output::Say { to, word } => self.send(node, to.0, word.encode()),
            Output::Answer { join, start, epoch } => self.answer(node, join, start, epoch),
            Output::Ask { number, ranks, .. } => {
                let folder = &mut self.folders[usize::from(node)];
                assert!(folder.is_none(), "one at a time");
                self.known[usize::from(node)].1 = number;
                assert!(number > 0 && ranks.iter().all(|(rank, size)| rank < size));
                *folder = Some(Folder {
                    number,
                    since: now,
                    ..Folder::default()
                });
            }
            Output::Offer { number } => {
                let folder = self.folders[usize::from(node)].as_mut().unwrap();
                assert!(folder.number == number && !folder.offered);
                folder.offered = true;
            }
            Output::Begin { number } => self.begin(node, number),
            Output::Close { number, outcome } => {
                match self.folders[usize::from(node)].take() {
                    Some(folder) => assert_eq!(folder.number, number),
                    None if self.ends.was_open(node, number) => {}
                    // This node never heard of it, and is told that it came to nothing.
                    None => {
                        assert!(outcome.is_err());
                        let heard = &mut self.known[usize::from(node)].1;
                        assert!(*heard < number, "{number} was heard of");
                        *heard = number;
                    }
                }
                self.ends.say(node, number, outcome.is_ok());
            }
            Output::Taken { .. } => {}
            Output::Refuse { id, by, .. } => {
                assert_eq!(id.number, by.number);
                // Any node may be the one that has all begin anew.
                if node == self.run as u16 % self.conductors.len() as u16 {
                    self.without = Some(id);
                }
            }
            Output::Note(note) => assert!(note.contains("a word of run"), "{note}"),
        }
    }

    fn begin(&mut self, node: u16, number: u32) {
        assert!(node == 0 && self.begun.is_none());
        assert!(number > self.numbers, "numbers rise");
        self.numbers = number;
        let mut all: BTreeMap<u16, (u64, u32)> = BTreeMap::new();
        for folder in &self.folders {
            let folder = folder.as_ref().unwrap();
            assert!(
                folder.number == number && folder.offered,
                "all nodes have offered"
            );
            all.extend(&folder.ready);
        }
        let rounds: BTreeSet<u32> = all.values().map(|(_, round)| *round).collect();
        assert_eq!(rounds.len(), 1, "of one start of the program: {all:?}");
        let size = self.size_of(*rounds.first().unwrap());
        assert!(all.keys().copied().eq(0..size), "of all its ranks: {all:?}");
        let attempt = self.random.below(1 << 40);
        let at = self.now + 10 + self.random.below(3000);
        let id = CheckpointId { number, attempt };
        for node in 0..self.conductors.len() as u16 {
            let at = self.now + self.random.below(at - self.now);
            self.later.push((at, node, Input::FolderRead { id }));
        }
        self.begun = Some((id, rounds, at));
    }

    fn answer(&mut self, node: u16, join: Join, start: Start, epoch: u64) {
        assert!(
            self.begun.is_none(),
            "nothing is stored while a rank is told"
        );
        assert_eq!(self.place(join.rank), node);
        assert!(
            self.answered
                .insert((join.nonce as u32, join.rank, self.run)),
            "once for each join"
        );
        let known = self.known[usize::from(node)].0.get(&join.rank);
        assert!(
            known.is_none_or(|known| known.join != join),
            "it has its answer"
        );
        let (now, newest) = (self.now, self.newest.clone());
        let told = match (&start, newest) {
            (Start::New, None) if !self.is_lost() => None,
            (Start::Restore { id, from }, Some((newest, size, places))) => {
                assert_eq!((*id, join.size), (newest, size));
                assert_eq!(from.0, places[&join.rank]);
                Some(*id)
            }
            (Start::Failed(why), newest)
                if why.contains("refused") || why.contains("not may have begun") =>
            {
                assert!(newest.is_some() || self.is_lost(), "{why}");
                return self.carry_out(node, (join, epoch), Told::Failed, start);
            }
            (Start::Failed(why), Some((_, size, _))) => {
                assert_ne!(join.size, size);
                assert!(why.contains(&format!("made by {size} ranks")), "{why}");
                return self.carry_out(node, (join, epoch), Told::Failed, start);
            }
            (start, newest) => panic!("{now}: {start:?} although {newest:?}"),
        };
        let known = told.map_or(Told::New, |id| Told::Restore(id.number));
        self.carry_out(node, (join, epoch), known, start);
    }

    /// Files of a rank take some time, and a mover that is started anew meanwhile has lost them.
    fn carry_out(&mut self, node: u16, (join, epoch): (Join, u64), told: Told, start: Start) {
        let wait = match start {
            Start::Restore { .. } => self.random.below(2000),
            _ => 0,
        };
        let answered = Answered { join, epoch, told };
        self.restoring
            .push((self.now + wait, node, answered, start));
    }

    /// A process hears how it begins.
    fn end_rank(&mut self, join: Join, start: Start) {
        let round = self.rounds[&join.nonce];
        let all = self.told.entry(round).or_default();
        match &start {
            Start::New => all.insert(None),
            Start::Restore { id, .. } => all.insert(Some(*id)),
            Start::All { .. } => false,
            Start::Failed(_) => false,
        };
        assert!(all.len() <= 1, "all ranks of a start begin from the same");
        let process = self.ranks[usize::from(join.rank)].as_mut();
        if let Some(process) = process.filter(|process| process.join == join) {
            process.start = Some(start);
        }
    }

    fn send(&mut self, from: u16, to: u16, bytes: Vec<u8>) {
        let down = |node: u16| self.down[usize::from(node)] > self.now;
        if down(from) || down(to) || self.random.below(100) < self.lost {
            return;
        }
        for _ in 0..1 + u64::from(self.random.below(10) == 0) {
            self.serial += 1;
            let due = self.now + 1 + self.random.below(self.delay);
            self.net
                .insert((due, self.serial), (from, to, bytes.clone()));
        }
    }
}

fn settings(node: u16, nodes: u16, run: u32) -> Settings {
    let mut settings = Settings::new(NodeIndex(node), nodes, run, Every::Fixed(2000));
    settings.ready_ms = 4000;
    settings.anew_ms = 5000;
    settings.settle_ms = 8000;
    settings.retry_ms = 100;
    settings.retry_most_ms = 1000;
    settings
}

#[test]
fn whatever_goes_wrong_versions_are_not_mixed_and_the_program_goes_on() {
    for seed in seeds(60, 3000) {
        eprintln!("seed {seed}");
        let mut job = Job::new(seed);
        let size = job.ranks.len() as u16;
        let sizes = match seed % 3 {
            0 => vec![size, 1 + size / 2],
            _ => vec![size],
        };
        trouble(&mut job, &sizes);
        heal(&mut job, size);
        if std::env::var_os("GPUOS_SHOW").is_some() {
            println!(
                "{seed}: {} starts, {} numbers, {:?}",
                job.round, job.numbers, job.newest
            );
        }
    }
}
