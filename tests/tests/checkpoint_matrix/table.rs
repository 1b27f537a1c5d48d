//! What came of a run, and the table of all runs: releases of Slurm one after the other, programs beside each other, victims below each other.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::sync::Mutex;

use gpuos_tests::results;

use super::programs::NAMES;
use super::victims::VICTIMS;

/// First line of `ckpt-matrix.csv`.
const COLUMNS: &str = "date,slurm,program,victim,moments,held,most_steps_again";

/// Held while the files are read and written: each release has a thread of its own.
static WRITES: Mutex<()> = Mutex::new(());

/// How often a program was struck.
#[derive(Clone, Copy, Default)]
struct Count {
    moments: u64,
    held: u64,
    /// The most steps that were done again.
    again: u64,
}

/// What came of this run.
pub(crate) struct Table {
    seed: u64,
    release: String,
    counts: BTreeMap<(&'static str, &'static str), Count>,
    bad: Vec<String>,
}

impl Table {
    pub(crate) fn new(seed: u64, release: String) -> Table {
        Table {
            seed,
            release,
            counts: BTreeMap::new(),
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
        let count = self.counts.entry((program, victim)).or_default();
        count.moments += 1;
        count.held += u64::from(why.is_none());
        count.again = count.again.max(again);
        self.bad
            .extend(why.map(|why| format!("{victim}, {program}: {why}")));
    }

    /// At how many moments a program was struck.
    pub(crate) fn moments(&self, program: &'static str, victim: &'static str) -> u64 {
        self.counts
            .get(&(program, victim))
            .map_or(0, |count| count.moments)
    }

    /// Adds what came of a victim to `ckpt-matrix.csv`, and makes the tables of `ckpt-matrix.md` anew from it.
    pub(crate) fn write(&self, victim: &'static str) {
        let folder = super::root().join("docs/results");
        let _alone = WRITES.lock();
        let mut csv = fs::read_to_string(folder.join("ckpt-matrix.csv")).unwrap_or_default();
        if !csv.starts_with(COLUMNS) {
            csv = format!("{COLUMNS}\n");
        }
        let (date, release) = (results::today(), &self.release);
        for ((program, _), count) in self.counts.iter().filter(|((_, of), _)| *of == victim) {
            let Count {
                moments,
                held,
                again,
            } = count;
            writeln!(
                csv,
                "{date},{release},{program},{victim},{moments},{held},{again}"
            )
            .expect("a string");
        }
        results::write("ckpt-matrix", &csv, &tables(&csv));
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

/// The sums of all lines, a table for each release.
fn tables(csv: &str) -> String {
    let mut sums: BTreeMap<(&str, &str, &str), Count> = BTreeMap::new();
    let mut dates: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for line in csv.lines().skip(1) {
        let [date, release, program, victim, numbers @ ..] =
            &line.split(',').collect::<Vec<_>>()[..]
        else {
            panic!("ckpt-matrix.csv: {line}");
        };
        let number = |at: usize| -> u64 { numbers[at].parse().expect("a number") };
        let sum = sums.entry((release, program, victim)).or_default();
        sum.moments += number(0);
        sum.held += number(1);
        sum.again = sum.again.max(number(2));
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
            let of = |program: &'static str| sums.get(&(*release, program, victim));
            if NAMES.into_iter().all(|program| of(program).is_none()) {
                continue;
            }
            text += &format!("| {victim} |");
            for program in NAMES {
                text += &match of(program) {
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
