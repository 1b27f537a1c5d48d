//! Nodes that are short of host memory, as their `Extra` says, on real Slurms: jobs whose programs may need some start elsewhere while there is
//! room, no job waits for that, and all others start where they would without it.

use gpuos_lab::Suite;
use gpuos_tests::{Cluster, Setup, per_suite};

use crate::held::{nodes, publish};
use crate::memory_grants::with_library;

per_suite!(jobs_go_around_nodes_that_are_short_of_host_memory);

/// GPUs of 64 MiB, which jobs can have whole, with more than that, or in turns.
const GPUOS: &str = "[memory]\noversubscribe = true\nturns = 2\nreserve-mib = 0\n\n\
    [[node-type]]\nname = \"small\"\nbase = \"dgx-h100\"\ngpu-memory-mib = 64\n\n\
    [[nodes]]\nmatch = \"n[1-3]\"\ntype = \"small\"\n";

const SHORT: &str = "rack 7 [gpuos:1 zone=b short=host]";

/// Jobs that may need memory of the host, ...
const NEED: [&[&str]; 3] = [
    &["--gres=gpu:1", "--gpuos-mem=256M"],
    &["--gpus-per-node=2", "--gpuos-mem=256M,policy=lru"],
    &["--gpuos-share=timeslice,mem=32M"],
];
/// ... and jobs that do not.
const OTHERS: [&[&str]; 3] = [
    &["--gres=gpu:1"],
    &["--gres=gpu:1", "--gpuos-mem=32M,tiers=hbm"],
    &["--exclusive"],
];

/// Where a job starts, beside what runs.
fn place(cluster: &Cluster, form: &[&str]) -> String {
    let job = cluster.start(&[form, &["--mem=100", "-N1"]].concat());
    let on = nodes(cluster, job).join(",");
    cluster.cancel(&[job]);
    on
}

fn jobs_go_around_nodes_that_are_short_of_host_memory(suite: &Suite) {
    let mut setup = Setup::new("places", suite);
    setup.spec.nodes = 3.into();
    setup.spec.node_type = "small".into();
    setup.spec.job_submit = true;
    setup.spec.shards = 4;
    setup.spec.gpuos_toml = Some(GPUOS.into());
    let Some(cluster) = setup.steered() else {
        return;
    };
    with_library(&cluster);
    let all = || NEED.iter().chain(&OTHERS);
    let alone = |form: &[&str]| {
        let on = place(&cluster, form);
        cluster.drained();
        on
    };
    for text in ["", "[gpuos:1 short=disk short] short=host"] {
        publish(&cluster, &["n1"], text);
        for form in all() {
            assert_eq!(alone(form), "n1", "{form:?} with {text:?}");
        }
    }
    publish(&cluster, &["n1"], SHORT);
    for form in NEED {
        assert_eq!(alone(form), "n2", "{form:?}");
        let there = [form, &["-wn1"]].concat();
        assert_eq!(alone(&there), "n1", "{form:?}");
    }
    for form in OTHERS {
        assert_eq!(alone(form), "n1", "{form:?}");
    }
    // The others are full.
    let full = cluster.start(&["-N2", "--exclusive", "-wn[2-3]"]);
    for form in NEED {
        assert_eq!(place(&cluster, form), "n1", "{form:?}");
    }
    cluster.cancel(&[full]);
    cluster.drained();
    // All are short.
    publish(&cluster, &["n1", "n2", "n3"], SHORT);
    for form in all() {
        assert_eq!(alone(form), "n1", "{form:?}");
    }
    // It is over on one of them.
    publish(&cluster, &["n1", "n2"], SHORT);
    for form in NEED {
        assert_eq!(alone(form), "n3", "{form:?}");
    }
    cluster.no_complaints();
}
