//! What came of a run, and the table of all runs: releases of Slurm one after the other, programs beside each other, victims below each other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use gpuos_lab::lock;
use gpuos_tests::results;

use super::programs::NAMES;
use super::victims::VICTIMS;

/// First line of `ckpt-matrix.csv`.
const COLUMNS: &str = "date,slurm,program,victim,moments,held,most_steps_again";

/// How often a program was struck.
#[derive(Clone, Copy, Default)]
struct Count {
    moments: u64,
    held: u64,
    /// The most steps that were done again.
    again: u64,
}

impl Count {
    fn add(&mut self, other: Count) {
        self.moments += other.moments;
        self.held += other.held;
        self.again = self.again.max(other.again);
    }
}

/// What came of this run.
pub(crate) struct Table {
    seed: u64,
    release: String,
    counts: BTreeMap<(&'static str, &'static str), Count>,
    /// Of these, what is not in the file yet.
    unwritten: BTreeMap<(&'static str, &'static str), Count>,
    bad: Vec<String>,
}

impl Table {
    pub(crate) fn new(seed: u64, release: String) -> Table {
        Table {
            seed,
            release,
            counts: BTreeMap::new(),
            unwritten: BTreeMap::new(),
            bad: Vec::new(),
        }
    }

    pub(crate) fn add(
        &mut self,
        program: &'static str,
        victim: &'static str,
        again: u64,
        why: Option<String>,
    ) {
        let one = Count {
            moments: 1,
            held: u64::from(why.is_none()),
            again,
        };
        let key = (program, victim);
        self.counts.entry(key).or_default().add(one);
        self.unwritten.entry(key).or_default().add(one);
        self.bad
            .extend(why.map(|why| format!("{victim}, {program}: {why}")));
    }

    /// At how many moments a program was struck.
    pub(crate) fn moments(&self, program: &'static str, victim: &'static str) -> u64 {
        self.counts
            .get(&(program, victim))
            .map_or(0, |count| count.moments)
    }

    /// Adds what came since the last time to `ckpt-matrix.csv`, and makes the tables of `ckpt-matrix.md` anew from it.
    pub(crate) fn write(&mut self) {
        let file = super::root().join("docs/results/ckpt-matrix.csv");
        // Releases have threads of their own, and victims may have processes.
        let _alone = lock(&file).expect("a lock of the table");
        let text = fs::read_to_string(file).unwrap_or_default();
        let mut all = Counts::new();
        for line in text.lines().skip(1) {
            let (line, numbers) = parse(line).unwrap_or_else(|| panic!("ckpt-matrix.csv: {line}"));
            all.insert(line, numbers);
        }
        let today = results::today();
        for ((program, victim), count) in std::mem::take(&mut self.unwritten) {
            let line = [&today, &self.release, program, victim].map(str::to_string);
            all.entry(line).or_default().add(count);
        }
        let mut csv = format!("{COLUMNS}\n");
        for (line, count) in &all {
            let Count {
                moments,
                held,
                again,
            } = count;
            csv += &format!("{},{moments},{held},{again}\n", line.join(","));
        }
        results::write("ckpt-matrix", &csv, &tables(&all));
    }

    pub(crate) fn assert_all_held(&self) {
        let bad = self.bad.join("\n");
        assert!(
            bad.is_empty(),
            "GPUOS_CKPT_MATRIX_SEED={}:\n{bad}",
            self.seed
        );
    }
}

/// By date, release, program and victim.
type Counts = BTreeMap<[String; 4], Count>;

fn parse(line: &str) -> Option<([String; 4], Count)> {
    let [date, release, program, victim, moments, held, again] =
        line.split(',').collect::<Vec<_>>()[..]
    else {
        return None;
    };
    let count = Count {
        moments: moments.parse().ok()?,
        held: held.parse().ok()?,
        again: again.parse().ok()?,
    };
    Some(([date, release, program, victim].map(str::to_string), count))
}

/// The sums of all days, a table for each release.
fn tables(all: &Counts) -> String {
    let mut sums: BTreeMap<[&str; 3], Count> = BTreeMap::new();
    let mut dates: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for ([date, release, program, victim], count) in all {
        sums.entry([release, program, victim])
            .or_default()
            .add(*count);
        dates.entry(release).or_default().insert(date);
    }
    let mut text = String::new();
    for (release, dates) in &dates {
        let dates = Vec::from_iter(dates.iter().copied()).join(" and ");
        text += &format!(
            "Slurm {release}, {dates}:\n\n| ends | {} |\n",
            NAMES.join(" | ")
        );
        text += &format!("| --- |{}\n", " --- |".repeat(NAMES.len()));
        for victim in VICTIMS.map(super::Victim::name) {
            let cells = NAMES.map(|program| sums.get(&[*release, program, victim]));
            if cells.iter().all(Option::is_none) {
                continue;
            }
            text += &format!("| {victim} |");
            for cell in cells {
                text += &match cell {
                    None => " - |".to_string(),
                    Some(Count {
                        moments,
                        held,
                        again: 0,
                    }) => format!(" {held} of {moments} |"),
                    Some(Count {
                        moments,
                        held,
                        again,
                    }) => format!(" {held} of {moments}, {again} |"),
                };
            }
            text += "\n";
        }
        text += "\n";
    }
    text.trim_end().to_string() + "\n"
}
