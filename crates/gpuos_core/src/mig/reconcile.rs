//! What NVML shows, what Slurm holds and what the journal says, brought together for one GPU.
//!
//! A pure function: it is asked when the daemon starts, after a crash at any point, after
//! `scontrol reconfigure` and whenever NVML tells that instances changed. Once its actions are done,
//! it has nothing more to say.
//!
//! An instance belongs to the claim in the journal with its placement and profile: first to one of a
//! job that still holds the placement and was told of the instance, then to one that was told before,
//! at last to one that had not been told yet, if no process uses it. An instance of nobody is
//! adopted where a job holds exactly its placement with its profile and no process of anybody else
//! uses it. It is foreign otherwise: reported and left, unless the policy says otherwise, nobody
//! uses it, and it is not where a job has slices whose instances are unknown.
use gpuos_model::mig::MigPlacement;

use super::claim::{Claim, JobPlacement, Phase, Shown};
use crate::job::JobId;

/// What is done about instances that somebody made by hand.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Foreign {
    /// Nothing.
    #[default]
    Leave,
    /// Destroyed while no process uses them.
    Destroy,
}

/// One thing to do. They are to be done in order: what is destroyed makes room for what is made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Destroy compute instances, then the GPU instance; then the claim, if it has one, is over.
    Destroy {
        /// The claim.
        id: Option<u64>,
        /// The GPU instance.
        gi: u32,
    },
    /// The claim is over: nothing of it is there.
    Forget {
        /// The claim.
        id: u64,
    },
    /// The job's instance is gone or its placement is taken: the job must be requeued or fail, and the
    /// claim is over.
    Fail {
        /// The claim.
        id: u64,
        /// The job.
        job: JobId,
        /// A sentence.
        why: String,
    },
    /// The instance is there: write it down so.
    Adopt {
        /// The claim as it is now; its number is new where the journal had none.
        claim: Claim,
    },
    /// Make the compute instance in it.
    MakeCompute {
        /// The claim.
        id: u64,
        /// The GPU instance.
        gi: u32,
    },
    /// Make the GPU instance at its placement, then the compute instance.
    MakeGpu {
        /// The claim.
        id: u64,
    },
}

/// What is to be done, and what is only to be told.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// To be done, in order.
    pub actions: Vec<Action>,
    /// Ids of GPU instances of nobody that are left.
    pub foreign: Vec<u32>,
}

/// Brings together what is known of one GPU. No input is an error: records that contradict each
/// other are settled in favour of running jobs.
pub fn reconcile(
    shown: &[Shown],
    held: &[JobPlacement],
    journal: &[Claim],
    foreign: Foreign,
) -> Plan {
    let owners = owners(shown, held, journal);
    // What is where a job has slices of unknown instances may be one of these.
    let left = |instance: &Shown| {
        let maybe = |held: &JobPlacement| {
            held.profile.is_none() && held.placement.overlaps(instance.placement)
        };
        foreign == Foreign::Leave || instance.busy || held.iter().any(maybe)
    };
    let (mut destroy, mut over, mut make) = (Vec::new(), Vec::new(), Vec::new());
    let mut plan = Plan::default();
    let mut kept: Vec<MigPlacement> = Vec::new();
    // Those with an instance first: of two claims for the same slices it is the true one.
    let of = |at: usize| owners.iter().position(|owner| *owner == Some(at));
    let mut order: Vec<usize> = (0..journal.len()).collect();
    order.sort_by_key(|&at| of(at).is_none());
    for at in order {
        let claim = &journal[at];
        let id = claim.id;
        let instance = of(at).map(|number| &shown[number]);
        // Placements of different jobs do not overlap: what is settled here is the same job's, written
        // down twice.
        let settled = kept
            .iter()
            .any(|placement| placement.overlaps(claim.placement));
        if settled || !alive(claim, held) {
            match instance {
                Some(instance) => destroy.push(gone(Some(id), instance)),
                None => over.push(Action::Forget { id }),
            }
            continue;
        }
        kept.push(claim.placement);
        match (instance, &claim.phase) {
            (Some(instance), _) => match instance.computes.first() {
                None => make.push(Action::MakeCompute {
                    id,
                    gi: instance.gi,
                }),
                Some(found) => {
                    let claim = ready(claim, instance.gi, found);
                    if claim != journal[at] {
                        make.push(Action::Adopt { claim });
                    }
                }
            },
            (None, Phase::Ready { .. }) => {
                over.push(fail(claim, "its MIG instance is gone".into()));
            }
            (None, _) => {
                let stays = |(number, instance): &(usize, &Shown)| {
                    let stays = match owners[*number] {
                        Some(at) => alive(&journal[at], held),
                        None => left(instance),
                    };
                    stays && instance.placement.overlaps(claim.placement)
                };
                if let Some((_, Shown { gi, .. })) = shown.iter().enumerate().find(stays) {
                    let why = format!(
                        "GPU instance {gi}, made by somebody else, is in its memory slices"
                    );
                    over.push(fail(claim, why));
                } else {
                    make.push(Action::MakeGpu { id });
                }
            }
        }
    }
    let mut next = journal
        .iter()
        .map(|claim| claim.id)
        .max()
        .map_or(1, |id| id.saturating_add(1));
    for instance in unowned(shown, &owners) {
        let its = |held: &&JobPlacement| {
            (held.placement, held.profile) == (instance.placement, Some(instance.profile))
                && (held.own || !instance.busy)
        };
        let by = held.iter().find(its);
        let free = |held: &&JobPlacement| {
            !kept
                .iter()
                .any(|placement| placement.overlaps(held.placement))
        };
        match (by.filter(free), instance.computes.first()) {
            (Some(held), Some(found)) => {
                kept.push(held.placement);
                let claim = Claim {
                    id: next,
                    job: held.job.clone(),
                    profile: instance.profile,
                    placement: instance.placement,
                    phase: Phase::Wanted,
                };
                next = next.saturating_add(1);
                let claim = ready(&claim, instance.gi, found);
                make.push(Action::Adopt { claim });
            }
            _ if left(instance) => plan.foreign.push(instance.gi),
            _ => destroy.push(gone(None, instance)),
        }
    }
    plan.actions = [destroy, over, make].concat();
    plan
}

/// Whether the claim's job still holds its placement and wants it.
fn alive(claim: &Claim, held: &[JobPlacement]) -> bool {
    let mine = |held: &JobPlacement| held.job == claim.job && held.placement == claim.placement;
    claim.phase != Phase::Going && held.iter().any(mine)
}

/// By instance: the claim that it belongs to. No claim has two.
fn owners(shown: &[Shown], held: &[JobPlacement], journal: &[Claim]) -> Vec<Option<usize>> {
    let mut owners = vec![None; shown.len()];
    let rank = |claim: &Claim, instance: &Shown| {
        let same = claim.placement == instance.placement && claim.profile == instance.profile;
        match (&claim.phase, alive(claim, held)) {
            _ if !same => None,
            (Phase::Made { .. } | Phase::Ready { .. }, true) => Some(0),
            (Phase::Made { .. } | Phase::Ready { .. } | Phase::Going, false) => Some(1),
            // Nobody was told of it: what a process uses was made by somebody else.
            (Phase::Wanted | Phase::Going, _) => (!instance.busy).then_some(2),
        }
    };
    for (number, instance) in shown.iter().enumerate() {
        let ranked = journal
            .iter()
            .enumerate()
            .filter(|(at, _)| !owners.contains(&Some(*at)));
        let ranked = ranked.filter_map(|(at, claim)| Some((rank(claim, instance)?, at)));
        owners[number] = ranked.min().map(|(_, at)| at);
    }
    owners
}

fn unowned<'a>(shown: &'a [Shown], owners: &'a [Option<usize>]) -> impl Iterator<Item = &'a Shown> {
    let all = shown.iter().zip(owners);
    all.filter(|(_, owner)| owner.is_none())
        .map(|(instance, _)| instance)
}

fn gone(id: Option<u64>, instance: &Shown) -> Action {
    Action::Destroy {
        id,
        gi: instance.gi,
    }
}

fn fail(claim: &Claim, why: String) -> Action {
    Action::Fail {
        id: claim.id,
        job: claim.job.clone(),
        why,
    }
}

fn ready(claim: &Claim, gi: u32, (ci, uuid): &(u32, String)) -> Claim {
    Claim {
        phase: Phase::Ready {
            gi,
            ci: *ci,
            uuid: uuid.clone(),
        },
        ..claim.clone()
    }
}
