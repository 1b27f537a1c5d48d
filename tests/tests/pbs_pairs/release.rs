//! Hosts that a running job gives back, by pbs_release_nodes.

use super::ask::{Request, Step};

use Step::{Look, Until};

/// The host of a job's last chunk, as its owner names it.
pub const LAST: &str = "$(qstat -f -F json {0} | grep '\"exec_vnode\"' | grep -oE '\\(n[0-9]' | tail -n 1 | tr -d '(')";

/// A job over several hosts that keeps but some of them, and one that may have the others.
pub fn release(count: u64, keep: &str, spread: &str, next: String) -> Request {
    let is_smaller = format!(
        "[ $(qstat -f -F json {{0}} | grep '\"exec_vnode\"' | grep -o ')+(' | wc -l) -lt {} ]",
        count - 1
    );
    let steps = vec![
        Step::submit("user1", spread),
        Look,
        Step::tell("user1", format!("pbs_release_nodes -j {{0}} {keep}")),
        Until(is_smaller),
        Look,
        Step::submit("user2", next),
        Look,
    ];
    Request {
        steps,
        undo: Vec::new(),
    }
}
