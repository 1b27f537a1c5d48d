//! `gpuos sim --protocol mig`.

use std::fs;

use crate::site::Site;

#[test]
fn sim_packs_slices() {
    let site = Site::new("24.11.5");
    let (csv, svg) = (site.path("m.csv"), site.path("m.svg"));
    let args = [
        "sim",
        "--protocol=mig",
        "--gpus=8",
        "--loads=80,120",
        "--stream=small,bimodal",
        "--seeds=1-2",
        "--csv",
        &csv,
        "--svg",
        &svg,
    ];
    let answer = site.run(&args);
    assert_eq!((answer.code, answer.err.as_str()), (0, ""));
    for word in [
        "8 of h100-80gb, 2 seeds",
        "against first-fit %",
        "nvidia-order",
        "(pooled)",
        "(most)",
    ] {
        assert!(answer.out.contains(word), "{word}: {}", answer.out);
    }
    assert_eq!(
        answer.out,
        site.run(&args).out,
        "the same figures every time"
    );
    let lines = fs::read_to_string(&csv).unwrap();
    assert!(
        lines.starts_with("stream,load,policy,seed,accepted_percent,"),
        "{lines}"
    );
    assert_eq!(lines.lines().count(), 1 + 2 * 2 * 4 * 2);
    assert!(fs::read_to_string(&svg).unwrap().contains("gpuos, bimodal"));
}

#[test]
fn sim_refuses_what_slices_do_not_have() {
    let site = Site::new("24.11.5");
    for (args, word) in [
        (
            &["--protocol=mig", "--board=h1000"][..],
            "a100-40gb, a100-80gb",
        ),
        (
            &["--protocol=mig", "--packing=stock"],
            "first-fit, nvidia-order",
        ),
        (
            &["--protocol=mig", "--stream=huge"],
            "uniform, small or bimodal",
        ),
        (&["--protocol=mig", "--loads=0"], "--loads"),
        (&["--protocol=mig", "--policy=fgd"], "use --packing"),
        (&["--protocol=mig", "--days=3"], "--protocol gangs"),
        (&["--protocol=mig", "trace.csv"], "leave out the trace"),
        (&["--protocol=openb"], "TRACE"),
        (&[], "TRACE"),
        (
            &["trace.csv", "--board=a30"],
            "--board goes with --protocol mig",
        ),
    ] {
        let answer = site.run(&[&["sim"], args].concat());
        assert_ne!(answer.code, 0, "{args:?}");
        assert!(answer.err.contains(word), "{args:?}: {}", answer.err);
    }
}
