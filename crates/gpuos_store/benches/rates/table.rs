//! What was measured, as a table.

use std::path::Path;
use std::process::Command;
use std::{fmt, fs};

/// One row: our rates and those of a peer, of the same turns.
struct Row {
    what: &'static str,
    peer: &'static str,
    ours: Vec<f64>,
    theirs: Vec<f64>,
}

/// All rows.
pub struct Table(Vec<Row>);

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

impl Row {
    fn ratio(&self) -> f64 {
        let ratios = self
            .ours
            .iter()
            .zip(&self.theirs)
            .map(|(ours, theirs)| ours / theirs);
        median(&ratios.collect::<Vec<_>>())
    }
}

impl Table {
    pub fn new() -> Table {
        Table(Vec::new())
    }

    /// Adds a row: rates in MiB/s, one of each turn.
    pub fn add(
        &mut self,
        what: &'static str,
        ours: Vec<f64>,
        peer: &'static str,
        theirs: Vec<f64>,
    ) {
        let row = Row {
            what,
            peer,
            ours,
            theirs,
        };
        eprintln!(
            "{what}: {:.0} MiB/s, {peer}: {:.0} MiB/s, {:.2}",
            median(&row.ours),
            median(&row.theirs),
            row.ratio()
        );
        self.0.push(row);
    }

    /// Puts the table, with the day and the machine, between the marks of a page.
    pub fn put(&self, page: &Path) {
        const BEGIN: &str = "<!-- made: rates -->\n";
        let text = fs::read_to_string(page).expect("the page is there");
        let (before, rest) = text.split_once(BEGIN).expect("the page has the mark");
        let (_, after) = rest
            .split_once("<!-- end -->")
            .expect("the mark has an end");
        let head = format!("{}, {}.\n\n", said("date", &["-I"]), machine());
        let page_text = format!("{before}{BEGIN}{head}{self}<!-- end -->{after}");
        fs::write(page, page_text).expect("the page is written");
    }
}

fn said(command: &str, arguments: &[&str]) -> String {
    let out = Command::new(command).args(arguments).output();
    let out = out.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_string());
    out.unwrap_or_default()
}

/// Processors, their name, the kernel and the load.
fn machine() -> String {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let cpus = read("/proc/cpuinfo");
    let name = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let name = name.map_or("unknown", |name| name.trim_start_matches(['\t', ' ', ':']));
    let count = std::thread::available_parallelism().map_or(1, |all| all.get());
    let kernel = said("uname", &["-r"]);
    let load = read("/proc/loadavg");
    let load = load.split(' ').next().unwrap_or_default();
    format!("{count} processors ({name}), Linux {kernel}, load average before it {load}")
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| what | MiB/s | beside | MiB/s | ratio |")?;
        writeln!(f, "| --- | ---: | --- | ---: | ---: |")?;
        for row in &self.0 {
            let (ours, theirs) = (median(&row.ours), median(&row.theirs));
            writeln!(
                f,
                "| {} | {ours:.0} | {} | {theirs:.0} | {:.2} |",
                row.what,
                row.peer,
                row.ratio()
            )?;
        }
        Ok(())
    }
}
