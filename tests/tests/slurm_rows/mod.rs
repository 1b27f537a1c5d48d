//! Rows of the layout table for a test's own file beside slurm.conf.

use std::path::Path;
use std::sync::LazyLock;

/// Every field that select/gpuos uses, as its source names them.
pub static USED: LazyLock<Vec<(&'static str, &'static str)>> = LazyLock::new(|| {
    let source = include_str!("../../../crates/slurm_ffi/src/layout.rs");
    let (_, list) = source
        .split_once("\nlayout! {")
        .expect("the list of fields");
    let mut used = Vec::new();
    for entry in list
        .split("\n    ///")
        .filter(|entry| entry.contains(" = \""))
    {
        let mut parts = entry.split('"');
        let (name, structure) = (parts.next().unwrap_or_default(), parts.next());
        let (Some(structure), Some(fields)) = (structure, parts.next()) else {
            continue;
        };
        // Those of the GRES plugin, which is none of slurmctld's.
        let others = [
            "GresHeld",
            "GresDevice",
            "GresConf",
            "GresPrep",
            "GresEpilog",
        ];
        if others.iter().any(|other| name.contains(other)) {
            continue;
        }
        let fields = fields.split(['{', '}']).nth(1).unwrap_or_default();
        let names = fields
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty());
        used.extend(names.map(|field| (structure, field)));
    }
    assert!(used.len() > 80, "{used:?}");
    used
});

/// The columns of the rows of a release, those of a derived one too.
fn columns(release: &str) -> Vec<[String; 5]> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/slurm_ffi/data");
    let file = |name: &str| std::fs::read_to_string(folder.join(name)).expect("a table");
    let derived = file("derived.tsv");
    let shifts: Vec<Vec<&str>> = derived
        .lines()
        .map(|line| line.split('\t').collect::<Vec<_>>())
        .filter(|columns| columns.len() == 5 && columns[0] == release)
        .collect();
    let base = shifts.first().map_or(release, |shift| shift[1]);
    let number = |text: &str| -> Vec<u32> {
        let parts = text.split('.').map(|part| part.parse().unwrap_or(0));
        parts.collect()
    };
    let wanted = number(base);
    let mut rows = Vec::new();
    for line in file("layouts.tsv").lines() {
        let columns: Vec<&str> = line.split('\t').collect();
        if let [structure, field, offset, size, ctype, first, last] = columns[..]
            && number(first) <= wanted
            && wanted <= number(last)
        {
            let mut at: u32 = offset.parse().expect("an offset");
            for shift in shifts.iter().filter(|shift| shift[2] == structure) {
                let (from, bytes): (u32, u32) = (
                    shift[3].parse().expect("a place"),
                    shift[4].parse().expect("bytes"),
                );
                at += if at >= from { bytes } else { 0 };
            }
            let texts = [structure, field, &at.to_string(), size, ctype];
            rows.push(texts.map(str::to_owned));
        }
    }
    for shift in shifts {
        let texts = [shift[2], "(new)", shift[3], shift[4], "char[]"];
        rows.push(texts.map(str::to_owned));
    }
    assert!(rows.len() > 100, "no rows for {release}");
    rows
}

/// The rows of a release, in which a field and all that stand after it are moved by so many bytes.
pub fn rows(release: &str, structure: &str, field: &str, bytes: i64) -> String {
    let own = columns(release);
    let offset = |columns: &[String; 5]| columns[2].parse::<i64>().expect("an offset");
    let from = own
        .iter()
        .find(|columns| columns[0] == structure && columns[1] == field)
        .map(offset)
        .unwrap_or_else(|| panic!("no row of {structure}.{field}"));
    let mut text = String::new();
    for columns in &own {
        let at = offset(columns);
        let moved = columns[0] == structure && at >= from;
        let at = (at + if moved { bytes } else { 0 }).max(0);
        let [structure, field, _, size, ctype] = columns;
        text += &format!("{structure}\t{field}\t{at}\t{size}\t{ctype}\t{release}\t{release}\n");
    }
    text
}
