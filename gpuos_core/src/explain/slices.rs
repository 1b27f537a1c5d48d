//! Jobs with slices of GPUs, in words.

use super::sentence::plural;

/// Instances in words: `3g.40gb:1,1g.10gb:2` is "3g.40gb and 2 x 1g.10gb".
fn instances(mig: &str) -> String {
    let each = mig.split(',').map(|one| match one.rsplit_once(':') {
        Some((name, "1")) => name.to_string(),
        Some((name, count)) => format!("{count} x {name}"),
        None => one.to_string(),
    });
    let each: Vec<String> = each.collect();
    match each.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => each.concat(),
    }
}

/// Where a job with slices runs: its instances on each node as its note has them, its nodes, and how many
/// they are.
pub fn slices_sentence(mig: &str, nodes: &str, count: u32) -> String {
    let each = if count > 1 { " on each" } else { "" };
    let on = plural(count, "node");
    format!(
        "{}{each} of {on} ({nodes}), at the windows that leave the most useful ones to others.",
        instances(mig)
    )
}

/// Why a job with slices waits: no node, or too few, have windows for its instances now.
pub fn no_slices(mig: &str, feasible: u32, needed: u32) -> String {
    let what = instances(mig);
    let found = match feasible {
        0 => "no node has".to_string(),
        n => format!("{n} of {} needed have", plural(needed, "node")),
    };
    format!(
        "{found} room for {what} now: free slices count only where they make whole windows that the \
         board has. It starts when instances end there."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_are_counted_in_words() {
        assert_eq!(instances("3g.40gb:1"), "3g.40gb");
        assert_eq!(instances("3g.40gb:1,1g.10gb:2"), "3g.40gb and 2 x 1g.10gb");
        assert!(no_slices("7g.80gb:1", 0, 1).starts_with("no node has room for 7g.80gb now"));
        assert!(no_slices("7g.80gb:1", 1, 2).starts_with("1 of 2 nodes needed have room"));
        assert!(slices_sentence("1g.10gb:2", "n1", 1).starts_with("2 x 1g.10gb of 1 node (n1)"));
    }
}
