//! Rows of the layout table for a test's own file beside slurm.conf.

use std::path::Path;
use std::sync::LazyLock;

/// Every field that select/gpuos uses, as its source names them.
pub static USED: LazyLock<Vec<(&'static str, &'static str)>> = LazyLock::new(|| {
    let source = include_str!("../../../slurm_ffi/src/layout.rs");
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

/// The rows of a release, in which a field and all that stand after it are moved by so many bytes.
pub fn rows(release: &str, structure: &str, field: &str, bytes: i64) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../slurm_ffi/data/layouts.tsv");
    let table = std::fs::read_to_string(path).expect("the table");
    let number = |text: &str| -> Vec<u32> {
        text.split('.')
            .map(|part| part.parse().unwrap_or(0))
            .collect()
    };
    let wanted = number(release);
    let own: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split('\t').collect::<Vec<_>>())
        .filter(|columns| {
            columns.len() == 7 && number(columns[5]) <= wanted && wanted <= number(columns[6])
        })
        .collect();
    let offset = |columns: &[&str]| columns[2].parse::<i64>().expect("an offset");
    let from = own
        .iter()
        .find(|columns| columns[0] == structure && columns[1] == field)
        .map(|columns| offset(columns))
        .unwrap_or_else(|| panic!("no row of {structure}.{field}"));
    let mut text = String::new();
    for columns in &own {
        let at = offset(columns);
        let moved = columns[0] == structure && at >= from;
        let at = (at + if moved { bytes } else { 0 }).max(0);
        let [structure, field, _, size, ctype, ..] = columns[..] else {
            continue;
        };
        text += &format!("{structure}\t{field}\t{at}\t{size}\t{ctype}\t{release}\t{release}\n");
    }
    text
}
