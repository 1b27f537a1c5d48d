//! A model of what stock Slurm does with a job for one node.

use gpuos_placement::frag::{Choice, Cluster, Request, State};

use super::Policy;

/// `select/cons_tres` without a topology plugin looks at runs of nodes that follow each other in
/// slurm.conf and can all take the job. It prefers the run with the fewest idle cores, in it the
/// node with the fewest idle cores, and in the node the first GPU with room. Only this rule is
/// modelled: no weights, no partitions, no backfill.
pub struct Stock;

/// A run of nodes that can take the job.
#[derive(Clone, Copy)]
struct Run {
    idle: u64,
    /// The node with the fewest idle cores, the first of equals.
    node: usize,
    fewest: u64,
}

impl Policy for Stock {
    fn choose(&mut self, cluster: &Cluster, request: &Request) -> Option<Choice> {
        let states = cluster.states();
        let cores = |state: &State| u64::from(state.cpu / 1000);
        let mut best: Option<Run> = None;
        let mut here: Option<Run> = None;
        for (node, state) in states.iter().enumerate() {
            if state.fits(request) {
                let fewest = cores(state);
                let run = here.get_or_insert(Run {
                    idle: 0,
                    node,
                    fewest,
                });
                run.idle += fewest;
                if fewest < run.fewest {
                    (run.node, run.fewest) = (node, fewest);
                }
            } else {
                best = tighter(best, here.take());
            }
        }
        let node = tighter(best, here)?.node;
        let free = &cluster.nodes()[node].free;
        let first = free.iter().find(|&&free| free >= request.share);
        let slot = first.and_then(|first| states[node].free.iter().position(|free| free == first));
        Some(Choice {
            node,
            slot: slot.unwrap_or(0),
        })
    }
}

/// The run with fewer idle cores, the first of equals.
fn tighter(first: Option<Run>, second: Option<Run>) -> Option<Run> {
    match (first, second) {
        (Some(a), Some(b)) => Some(if b.idle < a.idle { b } else { a }),
        (a, b) => a.or(b),
    }
}
