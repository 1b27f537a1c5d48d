//! Nodes that are short of host memory, as their `Extra` says, on real Slurms: jobs whose programs may need some start elsewhere while there is
//! room, no job waits for that, and all others start where they would without it. And GPUs of unlike sizes: jobs with more memory than
//! the small ones have start on the large ones first.

use gpuos_lab::Suite;
use gpuos_tests::{Cluster, Setup, per_suite, plugins};

use crate::held::{nodes, publish};
use crate::memory_grants::with_library;

per_suite!(
    jobs_go_around_nodes_that_are_short_of_host_memory,
    jobs_go_where_less_of_their_memory_lies_outside
);

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

/// The same with GPUs of 256 MiB on the last node.
const UNLIKE: &str = "[memory]\noversubscribe = true\nreserve-mib = 0\n\n\
    [[node-type]]\nname = \"small\"\nbase = \"dgx-h100\"\ngpu-memory-mib = 64\n\n\
    [[node-type]]\nname = \"roomy\"\nbase = \"dgx-h100\"\ngpu-memory-mib = 256\n\n\
    [[nodes]]\nmatch = \"n[1-2]\"\ntype = \"small\"\n\n\
    [[nodes]]\nmatch = \"n3\"\ntype = \"roomy\"\n";

fn jobs_go_where_less_of_their_memory_lies_outside(suite: &Suite) {
    let mut setup = Setup::new("outside", suite);
    setup.spec.nodes = 3.into();
    setup.spec.node_type = "small".into();
    setup.spec.job_submit = true;
    setup.spec.gpuos_toml = Some(UNLIKE.into());
    let Some(cluster) = setup.steered() else {
        return;
    };
    with_library(&cluster);
    let more: &[&str] = &["--gres=gpu:1", "--gpuos-mem=256M"];
    // All have room for these, or they say nothing of memory: no type is better than another.
    let less: [&[&str]; 3] = [
        &["--gres=gpu:1"],
        &["--gres=gpu:1", "--gpuos-mem=64M"],
        &["--gres=gpu:1", "--gpuos-mem=64M,tiers=hbm"],
    ];
    for form in less {
        assert_eq!(place(&cluster, form), "n1", "{form:?}");
        cluster.drained();
    }
    assert_eq!(place(&cluster, more), "n3");
    cluster.drained();
    let gpuos = plugins::programs().join("gpuos");
    let plan = ["plan", "--gpus=1", "--gpuos-mem=256M"];
    let told = cluster.run(gpuos.to_str().expect("UTF-8"), &plan);
    assert!(told.contains("1 GPU on 1 node (n3)"), "{told}");
    let room = "GPUs have room for all of it on roomy, 25 % on small.";
    assert!(told.contains(room), "{told}");
    // No job waits for a better place.
    let full = cluster.start(&["-N1", "--exclusive", "-wn3"]);
    assert_eq!(place(&cluster, more), "n1");
    cluster.cancel(&[full]);
    cluster.no_complaints();
}
