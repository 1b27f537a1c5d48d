//! NVML, Slurm and the journal contradict each other in any way.

use gpuos_core::job::JobId;
use gpuos_core::mig::reconcile::{Action, Foreign, reconcile};
use gpuos_core::mig::{Claim, JobPlacement, Phase, Shown};
use gpuos_model::mig::MigPlacement;
use proptest::prelude::*;

fn placement() -> impl Strategy<Value = MigPlacement> {
    (0u8..8, 1u8..5).prop_map(|(start, size)| MigPlacement { start, size })
}

fn phase() -> impl Strategy<Value = Phase> {
    prop_oneof![
        Just(Phase::Wanted),
        (0u32..6).prop_map(|gi| Phase::Made { gi }),
        (0u32..6).prop_map(|gi| Phase::Ready {
            gi,
            ci: 0,
            uuid: format!("MIG-{gi}"),
        }),
        Just(Phase::Going),
    ]
}

/// Does the actions as the driver and the journal would.
fn applied(
    actions: &[Action],
    shown: &mut Vec<Shown>,
    journal: &mut Vec<Claim>,
    held: &mut Vec<JobPlacement>,
) {
    for action in actions {
        match action {
            Action::Destroy { id, gi } => {
                shown.retain(|instance| instance.gi != *gi);
                journal.retain(|claim| Some(claim.id) != *id);
            }
            Action::Forget { id } => journal.retain(|claim| claim.id != *id),
            Action::Fail { id, job, .. } => {
                let placement = journal
                    .iter()
                    .find(|claim| claim.id == *id)
                    .map(|c| c.placement);
                // Slices of unknown instances stay the job's until Slurm says otherwise.
                held.retain(|held| {
                    held.job != *job || Some(held.placement) != placement || held.profile.is_none()
                });
                journal.retain(|claim| claim.id != *id);
            }
            Action::Adopt { claim } => {
                journal.retain(|known| known.id != claim.id);
                journal.push(claim.clone());
            }
            Action::MakeGpu { id } | Action::MakeCompute { id, .. } => {
                let claim = journal.iter_mut().find(|claim| claim.id == *id).unwrap();
                let gi = match action {
                    Action::MakeCompute { gi, .. } => *gi,
                    _ => 100 + claim.id as u32,
                };
                let computes = vec![(0, format!("MIG-new-{gi}"))];
                claim.phase = Phase::Ready {
                    gi,
                    ci: 0,
                    uuid: computes[0].1.clone(),
                };
                match shown.iter_mut().find(|instance| instance.gi == gi) {
                    Some(instance) => instance.computes = computes,
                    None => shown.push(Shown {
                        gi,
                        profile: claim.profile,
                        placement: claim.placement,
                        computes,
                        busy: false,
                    }),
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    /// Whatever the three say: after the actions there is nothing more to do, no job on the slices
    /// of another, and nothing of a running job was destroyed.
    #[test]
    fn reconciling_twice_is_reconciling_once(
        placements in proptest::collection::vec((placement(), 0u32..3, 0usize..3, any::<bool>()), 0..5),
        jobs in proptest::collection::vec((1u32..5, placement(), proptest::option::of(0u32..3), any::<bool>()), 0..5),
        claims in proptest::collection::vec((1u32..5, 0u32..3, placement(), phase()), 0..5),
        same in proptest::collection::vec((0usize..5, 0usize..5), 0..6),
        destroy in any::<bool>(),
    ) {
        // NVML and Slurm never show overlapping placements, the journal may say anything.
        let mut shown: Vec<Shown> = Vec::new();
        for (number, (placement, profile, computes, busy)) in placements.into_iter().enumerate() {
            if shown.iter().all(|other| !other.placement.overlaps(placement)) {
                let computes = (0..computes as u32).map(|ci| (ci, format!("MIG-{number}-{ci}")));
                let computes: Vec<(u32, String)> = computes.collect();
                let busy = busy && !computes.is_empty();
                shown.push(Shown { gi: number as u32, profile, placement, computes, busy });
            }
        }
        let mut held: Vec<JobPlacement> = Vec::new();
        for (job, placement, profile, own) in jobs {
            if held.iter().all(|other| !other.placement.overlaps(placement)) {
                held.push(JobPlacement { job: job.into(), placement, profile, own });
            }
        }
        let mut journal: Vec<Claim> = claims.into_iter().enumerate().map(|(id, claim)| {
            let (job, profile, placement, phase) = claim;
            Claim { id: 1 + id as u64, job: job.into(), profile, placement, phase }
        }).collect();
        // Most of it agrees.
        for (a, b) in same {
            if let (Some(claim), Some(instance)) = (journal.get_mut(a), shown.get(b)) {
                (claim.placement, claim.profile) = (instance.placement, instance.profile);
            }
            if let Some(claim) = journal.get(a) {
                let fits = held.iter().all(|held| !held.placement.overlaps(claim.placement));
                if fits && b % 2 == 0 {
                    held.push(JobPlacement {
                        job: claim.job.clone(),
                        placement: claim.placement,
                        profile: Some(claim.profile),
                        own: false,
                    });
                }
            }
        }
        let foreign = if destroy { Foreign::Destroy } else { Foreign::Leave };
        let plan = reconcile(&shown, &held, &journal, foreign);
        for action in &plan.actions {
            if let Action::Destroy { gi, .. } = action {
                let instance = shown.iter().find(|instance| instance.gi == *gi).unwrap();
                let holds = |claim: &&Claim| {
                    matches!(claim.phase, Phase::Ready { .. })
                        && (claim.placement, claim.profile) == (instance.placement, instance.profile)
                        && held.iter().any(|h| h.job == claim.job && h.placement == claim.placement)
                };
                prop_assert_eq!(journal.iter().find(holds), None);
            }
        }
        let before: Vec<JobId> = held.iter().map(|held| held.job.clone()).collect();
        applied(&plan.actions, &mut shown, &mut journal, &mut held);
        for (at, instance) in shown.iter().enumerate() {
            for other in &shown[..at] {
                prop_assert!(!instance.placement.overlaps(other.placement), "{:?}", plan);
            }
        }
        for (at, claim) in journal.iter().enumerate() {
            prop_assert!(matches!(claim.phase, Phase::Ready { .. }), "{:?}", claim);
            prop_assert!(before.contains(&claim.job));
            for other in &journal[..at] {
                prop_assert!(!claim.placement.overlaps(other.placement), "{:?}", journal);
            }
        }
        let again = reconcile(&shown, &held, &journal, foreign);
        prop_assert_eq!(&again.actions, &vec![], "after {:?}", plan);
        prop_assert_eq!(again.foreign, plan.foreign);
    }
}
