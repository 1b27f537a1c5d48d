//! `gpuos mem sim`, over patterns and a trace of one's own.

use crate::site::Site;

#[test]
fn a_pattern_is_replayed_under_each_policy() {
    let answer = Site::new("24.11.5").run(&["mem", "sim", "loop"]);
    let out = answer.out;
    assert_eq!((answer.code, answer.err.as_str()), (0, ""), "{out}");
    let head = "loop: one pass over all after the other\n\
                400 extents of 16 MiB (6.2 GiB), 24000 touches; GPU memory for 300 of them (4.6 GiB)\n\n\
                policy  fetched  of the bound  written back  over the link\n\
                bound      5900          1.00\n";
    assert!(out.starts_with(head), "{out}");
    for policy in ["gpuos", "lru", "clock", "2q", "arc"] {
        assert!(out.contains(&format!("\n{policy} ")), "{policy}: {out}");
    }
}

#[test]
fn what_is_printed_can_be_replayed() {
    let site = Site::new("24.11.5");
    let printed = site.run(&["mem", "sim", "loop", "--print"]);
    site.file("own.trace", &printed.out);
    let own = site.path("own.trace");
    let args = |trace| ["mem", "sim", trace, "--hbm=2G", "--policy=lru"];
    let (of_own, of_loop) = (site.run(&args(&own)), site.run(&args("loop")));
    assert_eq!((of_own.code, of_own.err.as_str()), (0, ""));
    let table = |out: &str| out.split_once('\n').expect("lines").1.to_owned();
    assert_eq!(table(&of_own.out), table(&of_loop.out));
    assert!(
        of_own.out.contains("GPU memory for 128 of them (2.0 GiB)"),
        "{}",
        of_own.out
    );
}

#[test]
fn what_cannot_be_is_said() {
    let site = Site::new("24.11.5");
    site.file(
        "bad.trace",
        "gpuos memory trace 1\nextent-mib 16\nr 1\nread 2\n",
    );
    let bad = site.path("bad.trace");
    let nowhere = "cannot read the trace nowhere, and no pattern has this name; patterns are training, kv-cache, scan, loop, zipf, stencil: No such file";
    for (args, code, says) in [
        (&["mem", "sim", "nowhere"][..], 1, nowhere),
        (
            &["mem", "sim", &bad],
            1,
            "bad.trace, line 4: \"read 2\" is no touch; accepted are r N, w N and f N",
        ),
        (
            &["mem", "sim", "loop", "--hbm=1M"],
            1,
            "loop: this GPU memory holds no extent of 16 MiB; give more with --hbm",
        ),
        (
            &["mem", "sim", "loop", "--hbm=0%"],
            2,
            "write a share or a size: 75%, 40G, 512M",
        ),
        (
            &["mem", "sim", "loop", "--policy=best"],
            2,
            "gpuos, lru, clock, 2q, arc",
        ),
        (&["mem", "sim", "--print"], 2, "<TRACE>"),
    ] {
        let answer = site.run(args);
        assert_eq!(answer.code, code, "{args:?}: {}", answer.err);
        assert!(answer.err.contains(says), "{args:?}: {}", answer.err);
    }
}
