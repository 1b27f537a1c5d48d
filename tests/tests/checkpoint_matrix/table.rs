//! The table of a run: programs beside each other, victims below each other.

use std::collections::BTreeMap;
use std::fmt;

use gpuos_tests::results;

/// One try of a program and a victim.
pub(crate) struct Cell {
    pub(crate) held: bool,
    /// Steps of 25 ms that were done again.
    pub(crate) again: u64,
    pub(crate) why: Option<String>,
}

pub(crate) struct Table {
    seed: u64,
    moments: u64,
    programs: Vec<&'static str>,
    victims: Vec<&'static str>,
    cells: BTreeMap<(&'static str, &'static str), Vec<Cell>>,
}

impl Table {
    pub(crate) fn new(seed: u64, moments: u64, programs: Vec<&'static str>) -> Table {
        Table {
            seed,
            moments,
            programs,
            victims: Vec::new(),
            cells: BTreeMap::new(),
        }
    }

    pub(crate) fn add(&mut self, program: &'static str, victim: &'static str, cell: Cell) {
        if !self.victims.contains(&victim) {
            self.victims.push(victim);
        }
        self.cells.entry((program, victim)).or_default().push(cell);
    }

    /// How often it held, of how many, and the most that was done again.
    fn summary(&self, program: &'static str, victim: &'static str) -> (usize, usize, u64) {
        let cells = self
            .cells
            .get(&(program, victim))
            .map_or(&[][..], Vec::as_slice);
        let held = cells.iter().filter(|cell| cell.held).count();
        let again = cells.iter().map(|cell| cell.again).max().unwrap_or(0);
        (held, cells.len(), again)
    }

    /// Writes `ckpt-matrix.csv` and the table of `ckpt-matrix.md`.
    pub(crate) fn write(&self) {
        let date = results::today();
        let mut csv = String::from("date,program,victim,moments,held,most_steps_again\n");
        for victim in &self.victims {
            for program in &self.programs {
                let (held, all, again) = self.summary(program, victim);
                if all == 0 {
                    continue;
                }
                csv += &format!("{date},{program},{victim},{all},{held},{again}\n");
            }
        }
        let made = format!("{date}, seed {}.\n\n{self}", self.seed);
        results::write("ckpt-matrix", &csv, &made);
    }

    pub(crate) fn assert_all_held(&self) {
        let mut bad = Vec::new();
        for ((program, victim), cells) in &self.cells {
            let whys = cells.iter().filter_map(|cell| cell.why.as_ref());
            bad.extend(whys.map(|why| format!("{victim}, {program}: {why}")));
        }
        let (seed, moments) = (self.seed, self.moments);
        assert!(
            bad.is_empty(),
            "GPUOS_CKPT_MATRIX={moments} GPUOS_CKPT_MATRIX_SEED={seed}:\n{}",
            bad.join("\n")
        );
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| ends | {} |", self.programs.join(" | "))?;
        writeln!(f, "| --- |{}", " --- |".repeat(self.programs.len()))?;
        for victim in &self.victims {
            write!(f, "| {victim} |")?;
            for program in &self.programs {
                match self.summary(program, victim) {
                    (_, 0, _) => write!(f, " - |")?,
                    (held, all, 0) => write!(f, " {held} of {all} |")?,
                    (held, all, again) => write!(f, " {held} of {all}, {again} |")?,
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
