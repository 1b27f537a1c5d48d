//! Instances of nobody: when they become a job's, are left, or go.

use gpuos_core::mig::reconcile::{Action, Foreign, reconcile};
use gpuos_core::mig::{JobPlacement, Shown};
use gpuos_model::mig::MigPlacement;

#[test]
fn an_instance_of_nobody_is_a_jobs_only_with_its_profile_and_without_other_processes() {
    let placement = MigPlacement { start: 0, size: 4 };
    let shown = |profile, busy| Shown {
        gi: 1,
        profile,
        placement,
        computes: vec![(0, "MIG-1".into())],
        busy,
    };
    let held = |profile, own| JobPlacement {
        job: 7.into(),
        placement,
        profile,
        own,
    };
    let plan = |shown: Shown, held: JobPlacement, foreign| {
        let plan = reconcile(&[shown], &[held], &[], foreign);
        match &plan.actions[..] {
            [] => "left",
            [Action::Adopt { claim }] => {
                assert_eq!((&claim.job, claim.profile), (&7.into(), 9));
                "adopted"
            }
            [Action::Destroy { id: None, .. }] => "destroyed",
            other => panic!("{other:?}"),
        }
    };
    let (leave, destroy) = (Foreign::Leave, Foreign::Destroy);
    // After a state was lost: idle, or with the job's own processes.
    assert_eq!(
        plan(shown(9, false), held(Some(9), false), leave),
        "adopted"
    );
    assert_eq!(plan(shown(9, true), held(Some(9), true), leave), "adopted");
    // Somebody else's: it would be destroyed with the job, and its processes killed.
    assert_eq!(plan(shown(9, true), held(Some(9), false), destroy), "left");
    assert_eq!(plan(shown(5, false), held(Some(9), false), leave), "left");
    assert_eq!(
        plan(shown(5, false), held(Some(9), false), destroy),
        "destroyed"
    );
    // What a running job has there is not known: it may be this.
    let part = MigPlacement { start: 2, size: 1 };
    for unknown in [
        held(None, false),
        JobPlacement {
            placement: part,
            ..held(None, false)
        },
    ] {
        assert_eq!(plan(shown(9, false), unknown, destroy), "left");
    }
}
