//! A job's program on some of its nodes: which these are is the workload manager's word, and each start is a gathering of its own.

use std::fs;

use gpuos_config::gpuos_toml::CheckpointConfig;
use gpuos_core::step::StepId;
use gpuos_core::wire::CheckpointPhase;
use gpuos_workload::job::Job;
use tempfile::TempDir;

use crate::one::*;
use crate::support::owner;

const ASKED: &str = "1s,l2=single";

struct Base {
    _place: TempDir,
    mover: Mover,
}

impl Base {
    /// A mover, and job 7 on its node and one more, whose mover is not there.
    fn new() -> Base {
        let place = TempDir::new().unwrap();
        for name in ["store", "jobs"] {
            fs::create_dir(place.path().join(name)).unwrap();
        }
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(place.path(), mode).unwrap();
        let config = CheckpointConfig {
            enabled: true,
            least_s: 1,
            ..CheckpointConfig::default()
        };
        let at = |name| place.path().join(name);
        let mover = mover(&at("store"), &at("jobs"), config, Default::default());
        mover.runs(Job {
            nodes: vec![NODE.into(), "n2".into()],
            ..record(7, uid())
        });
        Base {
            _place: place,
            mover,
        }
    }

    /// The workload manager has a step of job 7 on these nodes.
    fn has(&self, step: u32, nodes: &[&str]) {
        let id = StepId {
            job: 7.into(),
            step,
        };
        let nodes = nodes.iter().map(|node| node.to_string()).collect();
        self.mover
            .manager
            .with(|table| table.steps.insert(id, nodes));
    }

    fn launch(&self, step: u32, start: u32) -> Result<std::path::PathBuf, String> {
        self.mover.launch((7, step), Some(start), uid(), ASKED)
    }
}

fn uid() -> u32 {
    owner().0
}

#[test]
fn a_later_step_goes_on_from_the_checkpoint_of_an_earlier_one() {
    let base = Base::new();
    base.has(0, &[NODE]);
    let folder = base.launch(0, 1).unwrap();
    let (rank, told) = Rank::join(&folder, uid(), 1);
    assert_eq!(told, "new");
    let (number, outcome) = rank.checkpoint(b"state");
    outcome.unwrap();
    let shown = base.mover.shown(7);
    assert_eq!(
        (shown.start, &shown.nodes[..]),
        (1, &[NODE.to_string()][..])
    );
    assert_eq!(shown.spares, ["n2"]);
    // What is not the program has the folder that there is.
    assert_eq!(
        base.mover.launch((7, 5), None, uid(), ASKED).unwrap(),
        folder
    );
    base.has(3, &[NODE]);
    let folder = base.launch(3, 2).unwrap();
    let (rank, told) = Rank::join(&folder, uid(), 2);
    base.mover.until_shown(7, "the second start runs", |shown| {
        (shown.start, shown.phase) == (2, CheckpointPhase::Running)
    });
    let newest = told.strip_prefix("restore ").expect(&told);
    assert!(newest.parse::<u32>().unwrap() >= number, "{told}");
    assert_eq!(fs::read(rank.restored().join("state")).unwrap(), b"state");
    rank.checkpoint(b"more").1.unwrap();
}

#[test]
fn a_step_has_the_nodes_that_the_workload_manager_names_and_no_others() {
    let base = Base::new();
    let refused = |step, start| base.launch(step, start).unwrap_err();
    assert!(refused(0, 1).contains("knows no step 7.0"));
    // Another job's node.
    base.has(1, &[NODE, "n3"]);
    assert!(refused(1, 1).contains("step 7.1 has nodes that job 7 has not"));
    base.has(2, &["n2"]);
    assert!(refused(2, 1).contains("does not run on this node"));
    assert_eq!(base.mover.shown(7).phase, CheckpointPhase::Left);
    // Another user's job.
    base.has(3, &[NODE]);
    let other = base.mover.launch((7, 3), Some(1), uid() + 1, ASKED);
    assert!(other.unwrap_err().contains("is not user"));
    // A count of the user's own says nothing of which step is later.
    base.launch(3, u32::MAX).unwrap();
    base.has(9, &[NODE]);
    base.launch(9, 1).unwrap();
    base.has(4, &[NODE]);
    for start in [0, 1, 7, u32::MAX] {
        assert!(
            refused(4, start).contains("a later step of job 7"),
            "{start}"
        );
    }
    base.mover
        .until_shown(7, "the first start", |shown| shown.start == 1);
    // Of a step that is gone nothing is begun, and the one that is there goes on.
    assert!(refused(10, 2).contains("knows no step 7.10"));
    base.mover.until_shown(7, "it goes on", |shown| {
        shown.start == 1 && shown.phase != CheckpointPhase::Left
    });
}

#[test]
fn a_job_that_has_lost_the_node_of_its_script_is_ended_where_it_may_not_be_requeued() {
    let base = Base::new();
    let runs = |number: u32, script_on: &str, nodes: &[&str]| {
        base.mover.runs(Job {
            nodes: nodes.iter().map(|node| node.to_string()).collect(),
            script_on: script_on.into(),
            ..record(number, uid())
        });
        base.mover.step(number, uid(), ASKED).unwrap();
    };
    // The script is there, there is none, or another node is the one to act.
    runs(1, "n2", &[NODE, "n2"]);
    runs(2, "", &[NODE]);
    runs(3, "n3", &["n0", NODE]);
    runs(4, "n2", &[NODE]);
    let jobs = || base.mover.manager.with(|table| table.jobs.len());
    // Job 7 is there, too.
    until("it is ended", || (jobs() == 4).then_some(()));
    let there = |number: u32| {
        base.mover
            .manager
            .with(|table| table.jobs.contains_key(&number.into()))
    };
    assert_eq!([1, 2, 3, 4].map(there), [true, true, true, false]);
}
