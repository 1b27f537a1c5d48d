//! `gpuos sim --protocol replay`, over the trace that comes with the simulator.

use std::fs;

use crate::site::Site;

/// Philly's jobs.
const TRACE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../gpuos_sim/data/philly/philly.csv.gz"
);

#[test]
fn sim_compares_policies_on_the_replays_jobs() {
    let site = Site::new("24.11.5");
    let csv = site.path("r.csv");
    let args = [
        "sim",
        TRACE,
        "--protocol=replay",
        "--policy=stock,gpuos",
        "--seeds=1",
        "--csv",
        &csv,
    ];
    let answer = site.run(&args);
    assert_eq!((answer.code, answer.err.as_str()), (0, ""));
    for word in [
        "1 selection of 2000 jobs in 240 s on 256 nodes of type pairs-8",
        "leaves that a job on several nodes lies in",
        "against stock-tree on the same jobs",
        "±",
    ] {
        assert!(answer.out.contains(word), "{word}: {}", answer.out);
    }
    let lines = fs::read_to_string(&csv).unwrap();
    assert!(lines.starts_with("policy,seed,figure,value\n"), "{lines}");
    assert!(lines.contains("\ngpuos,1,\"mean wait, s\","), "{lines}");
}

#[test]
fn sim_refuses_what_the_replay_does_not_have() {
    let site = Site::new("24.11.5");
    for (more, word) in [
        ("--policy=fgd", "compares gpuos, best-fit and stock"),
        ("--svg=x.svg", "leave out --nodes and --svg"),
        ("--days=3", "--protocol gangs"),
    ] {
        let answer = site.run(&["sim", TRACE, "--protocol=replay", "--seeds=0", more]);
        assert_ne!(answer.code, 0, "{more}");
        assert!(answer.err.contains(word), "{more}: {}", answer.err);
    }
}
