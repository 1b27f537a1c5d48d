//! A site's own layout table is text that somebody edited: whatever stands in it, it is read or
//! refused with the line, and no offset leaves the bounds of a structure.

use proptest::prelude::*;
use slurm_ffi::layout::{Fields, Layout};
use slurm_ffi::release::Release;

const NEW: Release = Release::new(27, 5, 1);

/// The rows of the newest release as `gpuos layout` would write them for the invented release 27.05.1.
fn good() -> Vec<String> {
    let newest = include_str!("../data/versions.txt").lines().last();
    let newest = newest.expect("a release");
    let table = include_str!("../data/layouts.tsv");
    let rows: Vec<&str> = table.lines().filter(|row| row.ends_with(newest)).collect();
    assert!(
        !rows.is_empty(),
        "layouts.tsv has no row that holds up to {newest}, the last release of versions.txt"
    );
    rows.into_iter()
        .map(|row| {
            let columns: Vec<&str> = row.split('\t').collect();
            format!("{}\t27.05.1\t27.05.1", columns[..5].join("\t"))
        })
        .collect()
}

fn judge(text: &str) -> Result<(), TestCaseError> {
    match Fields::of(NEW, Some(text)) {
        Err(why) => {
            let named = why.contains("gpuos-layouts.tsv: line ") || why.contains("gpuos layout");
            prop_assert!(named, "no line and no way out in: {why}");
        }
        Ok(fields) => {
            for (structure, field) in [("job_record", "job_id"), ("gres_node_state", "topo_cnt")] {
                if let Ok(offset) = fields.offset(structure, field) {
                    prop_assert!(offset <= 65_536, "{structure}.{field} at {offset}");
                }
            }
            // Missing fields are an error of their own, never a default offset.
            if let Err(why) = Layout::of(&fields) {
                prop_assert!(why.contains("27.05.1"), "{why}");
            }
        }
    }
    Ok(())
}

#[test]
fn a_right_table_gives_a_layout() {
    let fields = Fields::of(NEW, Some(&good().join("\n"))).expect("rows");
    Layout::of(&fields).expect("every field");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,400}") {
        judge(&text)?;
    }

    #[test]
    fn a_damaged_row_is_read_or_refused(
        row in 0usize..1000,
        at in 0usize..200,
        piece in "[\\t\\n0-9.a-z-]{0,12}",
        cut in 0usize..20,
    ) {
        let mut rows = good();
        let index = row % rows.len();
        let mut bytes: Vec<char> = rows[index].chars().collect();
        let at = at % bytes.len();
        let end = (at + cut).min(bytes.len());
        bytes.splice(at..end, piece.chars());
        rows[index] = bytes.into_iter().collect();
        judge(&rows.join("\n"))?;
    }
}
