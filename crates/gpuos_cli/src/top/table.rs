//! The tables of `gpuos top`: cells, order and filter. The screen and `--once` show the same ones.

use std::borrow::Cow;
use std::cmp::Ordering;

use gpuos_core::wire::MigLoad;
use gpuos_model::screen::line;

use crate::table::count;

use super::board::{Board, GpuRow, JobRow, NodeRow, ProcessRow, SliceRow, is_out, name};

/// Which table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Nodes.
    Nodes,
    /// GPUs.
    Gpus,
    /// Jobs.
    Jobs,
    /// Faults.
    Faults,
    /// Processes.
    Processes,
    /// MIG instances.
    Slices,
}

impl Kind {
    /// All, in the order of their keys.
    pub const ALL: [Kind; 6] = [
        Kind::Nodes,
        Kind::Gpus,
        Kind::Jobs,
        Kind::Faults,
        Kind::Processes,
        Kind::Slices,
    ];

    /// Heading of the table.
    pub const fn title(self) -> &'static str {
        match self {
            Kind::Nodes => "Nodes",
            Kind::Gpus => "GPUs",
            Kind::Jobs => "Jobs",
            Kind::Faults => "Faults",
            Kind::Processes => "Processes",
            Kind::Slices => "Slices",
        }
    }

    /// Headings of the columns.
    pub const fn headings(self) -> &'static [&'static str] {
        match self {
            Kind::Nodes => &[
                "NODE", "STATE", "GPUS", "USED", "OUT", "DEGRADED", "JOBS", "MAX_C", "WATTS",
                "REASON",
            ],
            Kind::Gpus => &[
                "NODE", "GPU", "STATE", "C", "WATTS", "BUSY%", "MEM_MIB", "JOBS", "TYPE", "REASON",
            ],
            Kind::Jobs => &[
                "JOB", "USER", "STATE", "NODES", "GPUS", "TIME", "NAME", "REASON",
            ],
            Kind::Faults => &["NODE", "GPU", "RULE", "MESSAGE"],
            Kind::Processes => &[
                "NODE", "GPU", "MIG", "PID", "UID", "JOB", "STEP", "MEM_MIB", "FOREIGN", "PROGRAM",
            ],
            Kind::Slices => &[
                "NODE",
                "GPU",
                "MIG",
                "PROFILE",
                "SLICES",
                "JOB",
                "PHASE",
                "MEM_MIB",
                "TOTAL_MIB",
                "SM%",
                "BW%",
            ],
        }
    }

    /// A column by its heading, in any case.
    pub fn column(self, name: &str) -> Option<usize> {
        let mut headings = self.headings().iter();
        headings.position(|heading| heading.eq_ignore_ascii_case(name))
    }
}

/// How much a row wants to be seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tone {
    /// All is well.
    Plain,
    /// Look at it.
    Warn,
    /// It is out.
    Bad,
}

/// A row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// Its cells; empty where nothing is known.
    pub cells: Vec<String>,
    /// How it is shown.
    pub tone: Tone,
}

/// In which order, and what of it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Pick {
    /// Heading of the column to sort by; of tables that do not have it nothing changes.
    pub sort: Option<String>,
    /// From the end.
    pub reverse: bool,
    /// Text that a cell has to contain, in any case.
    pub filter: String,
}

/// The rows of a table.
pub fn rows(board: &Board, kind: Kind, pick: &Pick) -> Vec<Row> {
    let mut rows: Vec<Row> = match kind {
        Kind::Nodes => board.nodes.iter().map(node).collect(),
        Kind::Gpus => board.gpus.iter().map(gpu).collect(),
        Kind::Jobs => board.jobs.iter().map(job).collect(),
        Kind::Faults => {
            let row = |fault: &super::board::FaultRow| Row {
                cells: vec![
                    fault.node.clone(),
                    known(fault.gpu.map(name)),
                    fault.rule.clone(),
                    fault.message.clone(),
                ],
                tone: Tone::Bad,
            };
            board.faults.iter().map(row).collect()
        }
        Kind::Processes => board.processes.iter().map(process).collect(),
        Kind::Slices => board.slices.iter().map(slice).collect(),
    };
    // Names, reasons and programs are what users wrote.
    for cell in rows.iter_mut().flat_map(|row| &mut row.cells) {
        if let Cow::Owned(shown) = line(cell) {
            *cell = shown;
        }
    }
    let wanted = pick.filter.to_lowercase();
    rows.retain(|row| {
        row.cells
            .iter()
            .any(|cell| cell.to_lowercase().contains(&wanted))
    });
    if let Some(column) = pick.sort.as_ref().and_then(|name| kind.column(name)) {
        rows.sort_by(|a, b| compare(&a.cells[column], &b.cells[column]));
    }
    if pick.reverse {
        rows.reverse();
    }
    rows
}

/// Numbers by their value, above all texts: what is measured comes after what is not known. Digits in texts count
/// as numbers too, so that n2 comes before n10.
fn compare(a: &str, b: &str) -> Ordering {
    match (a.parse::<f64>(), b.parse::<f64>()) {
        (Ok(a), Ok(b)) => a.total_cmp(&b),
        (Ok(_), Err(_)) => Ordering::Greater,
        (Err(_), Ok(_)) => Ordering::Less,
        (Err(_), Err(_)) => parts(a).cmp(&parts(b)),
    }
}

fn parts(text: &str) -> Vec<(String, u64)> {
    let mut parts: Vec<(String, u64)> = vec![Default::default()];
    for c in text.chars() {
        let at = parts.len() - 1;
        match c.to_digit(10) {
            Some(digit) => {
                let number = parts[at].1.saturating_mul(10);
                parts[at].1 = number.saturating_add(digit.into());
            }
            None if parts[at].1 > 0 => parts.push((c.into(), 0)),
            None => parts[at].0.push(c),
        }
    }
    parts
}

fn known<T: ToString>(value: Option<T>) -> String {
    value.map_or(String::new(), |value| value.to_string())
}

fn watts(milliwatts: Option<u64>) -> String {
    known(milliwatts.map(|mw| (mw + 500) / 1000))
}

fn node(row: &NodeRow) -> Row {
    Row {
        cells: vec![
            row.name.clone(),
            row.state.clone(),
            row.gpus.to_string(),
            row.used.to_string(),
            row.out.to_string(),
            row.degraded.to_string(),
            row.jobs.to_string(),
            known(row.celsius),
            watts(row.power_mw),
            row.reason.clone(),
        ],
        tone: match () {
            () if row.out > 0 || row.state.contains("down") || row.state.contains("drain") => {
                Tone::Bad
            }
            () if row.degraded > 0 => Tone::Warn,
            () => Tone::Plain,
        },
    }
}

fn gpu(row: &GpuRow) -> Row {
    Row {
        cells: vec![
            row.node.clone(),
            name(row.index),
            row.state.clone(),
            known(row.celsius),
            watts(row.power_mw.map(u64::from)),
            known(row.busy),
            known(row.memory_mib),
            row.jobs.join(","),
            row.kind.clone(),
            row.reason.clone(),
        ],
        tone: match row.state.as_str() {
            state if is_out(state) => Tone::Bad,
            "degraded" | "unknown" => Tone::Warn,
            _ => Tone::Plain,
        },
    }
}

fn job(row: &JobRow) -> Row {
    Row {
        cells: vec![
            row.label.clone(),
            row.user.clone(),
            row.state.clone(),
            row.nodes.to_string(),
            // One that waits has none yet.
            known((row.gpus > 0).then_some(row.gpus)),
            known((row.gpus > 0).then(|| time(row.seconds))),
            row.name.clone(),
            row.reason.clone(),
        ],
        tone: Tone::Plain,
    }
}

fn process(row: &ProcessRow) -> Row {
    Row {
        cells: vec![
            row.node.clone(),
            name(row.gpu),
            known(row.instance),
            row.pid.to_string(),
            row.uid.to_string(),
            known(row.job.as_ref()),
            row.step.clone().unwrap_or_default(),
            known(row.memory_mib),
            if row.foreign { "yes" } else { "" }.into(),
            row.program.clone(),
        ],
        tone: match row.foreign {
            true => Tone::Bad,
            false => Tone::Plain,
        },
    }
}

fn slice(row: &SliceRow) -> Row {
    Row {
        cells: vec![
            row.node.clone(),
            row.gpu.to_string(),
            known(row.instance),
            row.profile.clone(),
            row.slices.clone(),
            match row.others {
                true => crate::health::others(1),
                false => known(row.job.as_ref()),
            },
            row.phase.clone(),
            match row.memory_mib {
                Some((used, _)) => used.to_string(),
                None => format!("n/a ({})", row.unknown),
            },
            known(row.memory_mib.map(|memory| memory.1)),
        ]
        .into_iter()
        .chain(busy(&row.load))
        .collect(),
        tone: match row.job.is_some() || row.others {
            true => Tone::Plain,
            false => Tone::Warn,
        },
    }
}

/// Multiprocessors and bandwidth; the last that is not known says why.
fn busy(load: &MigLoad) -> [String; 2] {
    let why = load.load_unknown.as_deref();
    let long = format!("n/a ({})", why.unwrap_or("gpuosd does not tell it"));
    let [sm, bandwidth] = [load.sm_percent, load.bandwidth_percent];
    let without = match bandwidth {
        Some(_) => long.clone(),
        None => "n/a".into(),
    };
    [
        sm.map_or(without, |percent| percent.to_string()),
        bandwidth.map_or(long, |percent| percent.to_string()),
    ]
}

/// As squeue writes it: `1-02:03:04`, `2:03:04`, `3:04`.
fn time(seconds: u64) -> String {
    let (days, hours) = (seconds / 86_400, seconds / 3600 % 24);
    let (minutes, rest) = (seconds / 60 % 60, seconds % 60);
    match (days, hours) {
        (0, 0) => format!("{minutes}:{rest:02}"),
        (0, hours) => format!("{hours}:{minutes:02}:{rest:02}"),
        (days, hours) => format!("{days}-{hours:02}:{minutes:02}:{rest:02}"),
    }
}

/// One line that says it all.
pub fn summary(board: &Board) -> String {
    let sum = |of: fn(&NodeRow) -> usize| board.nodes.iter().map(of).sum::<usize>();
    let (gpus, used) = (sum(|n| n.gpus), sum(|n| n.used));
    let mut line = format!(
        "{}, {gpus} GPUs: {used} used, {} out, {} degraded; {} running, {} waiting",
        count(board.nodes.len(), "node"),
        sum(|n| n.out),
        sum(|n| n.degraded),
        board.jobs.iter().filter(|job| job.gpus > 0).count(),
        board.jobs.iter().filter(|job| job.gpus == 0).count(),
    );
    let hottest = board
        .gpus
        .iter()
        .filter_map(|gpu| Some((gpu.celsius?, gpu)));
    if let Some((celsius, gpu)) = hottest.max_by_key(|(celsius, _)| *celsius) {
        line += &format!("; hottest {}:{} {celsius} °C", gpu.node, name(gpu.index));
    }
    let power: u64 = board.nodes.iter().filter_map(|node| node.power_mw).sum();
    if power > 0 {
        line += &format!("; {} W", (power + 500) / 1000);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_numbers_go_by_the_numbers() {
        let mut names = ["n10", "n2", "", "n1:10", "n1:9", "7", "12"];
        names.sort_by(|a, b| compare(a, b));
        assert_eq!(names, ["", "n1:9", "n1:10", "n2", "n10", "7", "12"]);
    }

    #[test]
    fn times_are_written_as_squeue_does() {
        for (seconds, text) in [
            (0, "0:00"),
            (184, "3:04"),
            (7384, "2:03:04"),
            (93_784, "1-02:03:04"),
        ] {
            assert_eq!(time(seconds), text);
        }
    }
}
