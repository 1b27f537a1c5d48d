//! The tables of docs/results/checkpoint-scale.md.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use super::links::{Counted, Traffic};
use super::{Row, STATE};

fn kib(bytes: u64) -> String {
    match bytes {
        0..102_400 => format!("{:.1} KB", bytes as f64 / 1e3),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}

fn control(own: &Traffic) -> String {
    format!(
        "{} / {} | {} / {}",
        own.control_sent,
        own.control_got,
        kib(own.control_bytes_sent),
        kib(own.control_bytes_got)
    )
}

fn phases(row: &Row) -> [(&'static str, &Counted); 3] {
    [
        ("begin of a job", &row.first),
        ("checkpoint", &row.commit),
        ("restart without a rack", &row.rebuild),
    ]
}

pub fn tables(rows: &[Row]) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "| nodes | what | leader: messages sent / got | bytes | another node: messages at most | bytes | s in the model | s of code at the leader |"
    );
    let _ = writeln!(
        out,
        "| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    );
    for row in rows {
        for (what, counted) in phases(row) {
            let _ = writeln!(
                out,
                "| {} | {what} | {} | {} | {:.3} | {:.3} |",
                row.nodes,
                control(&counted.lead),
                control(&counted.most),
                counted.us as f64 / 1e6,
                counted.lead_work.as_secs_f64()
            );
        }
    }
    let _ = writeln!(
        out,
        "\n| nodes | roster, sent to each | data of a checkpoint, each node sends at most | nodes lost | data of the rebuild, a new node gets at most | sent by another at most | calls of a node to drain | calls of the leader then |"
    );
    let _ = writeln!(
        out,
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    );
    let times = |bytes: u64| format!("{:.1} B", bytes as f64 / STATE as f64);
    for row in rows {
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} | {} | {} |",
            row.nodes,
            kib(row.roster_bytes as u64),
            times(row.commit.most.data_sent.max(row.commit.lead.data_sent)),
            row.lost,
            times(row.rebuild.most.data_got),
            times(row.rebuild.most.data_sent),
            row.shared.drain_calls,
            row.shared.lead_calls
        );
    }
    out
}

fn csv(rows: &[Row], date: &str) -> String {
    let mut csv = String::from(
        "date,nodes,what,lead_sent,lead_got,lead_bytes_sent,lead_bytes_got,most_sent,most_got,most_bytes_sent,most_bytes_got,data,us,lead_code_us\n",
    );
    for row in rows {
        for (what, counted) in phases(row) {
            let (lead, most) = (&counted.lead, &counted.most);
            let _ = writeln!(
                csv,
                "{date},{},{what},{},{},{},{},{},{},{},{},{},{},{}",
                row.nodes,
                lead.control_sent,
                lead.control_got,
                lead.control_bytes_sent,
                lead.control_bytes_got,
                most.control_sent,
                most.control_got,
                most.control_bytes_sent,
                most.control_bytes_got,
                counted.data,
                counted.us,
                counted.lead_work.as_micros()
            );
        }
    }
    csv
}

/// Writes `checkpoint-scale.csv` and the tables of `checkpoint-scale.md`.
pub fn write(tables: &str, rows: &[Row]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results");
    let date = Command::new("date").arg("+%F").output().unwrap();
    let date = String::from_utf8_lossy(&date.stdout).trim().to_string();
    fs::write(folder.join("checkpoint-scale.csv"), csv(rows, &date)).unwrap();
    let page = folder.join("checkpoint-scale.md");
    let text = fs::read_to_string(&page).unwrap();
    let (begin, end) = ("<!-- made: checkpoint-scale -->\n", "<!-- end -->");
    let (head, rest) = text.split_once(begin).expect("a place for the tables");
    let (_, tail) = rest.split_once(end).expect("its end");
    fs::write(page, format!("{head}{begin}{date}.\n\n{tables}{end}{tail}")).unwrap();
}
