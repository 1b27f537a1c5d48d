//! Hosts that a running job gives back, by pbs_release_nodes.

use super::ask::{Request, Step};

use Step::{Look, Until};

/// The host of a job's last chunk, as its owner names it.
pub const LAST: &str = "$(qstat -f -F json {0} | grep '\"exec_vnode\"' | grep -oE '\\(n[0-9]' | tail -n 1 | tr -d '(')";

/// A job over several hosts that keeps but some of them, and one that may have the others.
pub fn release(count: u64, keep: &str, spread: &str, next: String) -> Request {
    let chunks = "$(qstat -f -F json {0} | grep '\"exec_vnode\"' | grep -o '(n' | wc -l)";
    let is_smaller = format!("[ {chunks} -lt {count} ]");
    // Their moms say so once their hooks have ended, and PBS then counts what they have as free.
    let is_given_back =
        format!("[ $(pbsnodes -av | grep ' jobs = ' | grep -c '{{0}}/') -le {chunks} ]");
    let steps = vec![
        Step::submit("user1", spread),
        Look,
        Step::tell("user1", format!("pbs_release_nodes -j {{0}} {keep}")),
        Until(is_smaller),
        Until(is_given_back),
        Look,
        Step::submit("user2", next),
        Look,
    ];
    Request {
        steps,
        undo: Vec::new(),
    }
}
