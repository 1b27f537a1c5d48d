//! `gpuos sim --protocol gangs`, over a small trace and a small site.

use std::fs;

use crate::site::Site;

/// Jobs of all sizes over four days.
pub fn jobs() -> String {
    let mut text = String::from("timestamp,duration,num_gpus,gpu_time,cluster\n");
    for at in 0..384u32 {
        let (day, hour, minute) = (1 + at / 96, at % 96 / 4, at % 4 * 15);
        let gpus = [1, 1, 4, 1, 16, 2, 8, 12][at as usize % 8];
        let run = 600 * (1 + at * 7 % 50);
        text += &format!(
            "2017-10-{day:02} {hour:02}:{minute:02}:00,{run}.0,{gpus},{}.0,a\n",
            run * gpus
        );
    }
    text
}

const SMALL: [&str; 4] = [
    "--protocol=gangs",
    "--site-nodes=64",
    "--days=3",
    "--seeds=1-2",
];

fn args<'a>(jobs: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut args = vec!["sim", jobs];
    args.extend(SMALL);
    args.extend(more);
    args
}

#[test]
fn sim_compares_policies_on_gangs() {
    let site = Site::new("24.11.5");
    site.file("philly.csv", &jobs());
    let (trace, csv, svg) = (
        site.path("philly.csv"),
        site.path("g.csv"),
        site.path("g.svg"),
    );
    let all = [
        "--policy=stock,best-fit,gpuos",
        "--csv",
        &csv,
        "--svg",
        &svg,
    ];
    let answer = site.run(&args(&trace, &all));
    assert_eq!((answer.code, answer.err.as_str()), (0, ""));
    for word in [
        "rail8: 64 nodes with 512 GPUs",
        "stock-tree",
        "leaf span",
        "gpuos against",
    ] {
        assert!(answer.out.contains(word), "{word}: {}", answer.out);
    }
    assert_eq!(site.run(&args(&trace, &all)).out, answer.out);
    let rows = fs::read_to_string(&csv).unwrap();
    assert!(rows.starts_with("policy,jobs,gangs,"), "{rows}");
    assert_eq!(rows.lines().count(), 5);
    let plot = fs::read_to_string(&svg).unwrap();
    assert_eq!(plot.matches("<polyline").count(), 4);
    let nvl72 = [
        "--json",
        "--site=nvl72",
        "--gang-scale=2",
        "--load=110",
        "--patience=600",
    ];
    let json = site.run(&args(&trace, &nvl72)).json();
    assert_eq!(
        (&json["site"], &json["gpus"]),
        (&"nvl72".into(), &256.into())
    );
    assert_eq!(json["policies"][0]["policy"], "gpuos");
}

#[test]
fn wrong_use_of_gangs_is_told() {
    let site = Site::new("24.11.5");
    site.file("philly.csv", &jobs());
    site.file("jobs.csv", crate::sim::JOBS);
    let (trace, openb) = (site.path("philly.csv"), site.path("jobs.csv"));
    for (more, word) in [
        ("--policy=fgd", "best-fit and stock"),
        ("--site=torus", "rail8 or nvl72"),
        ("--nodes=x.csv", "--site-nodes"),
        ("--days=1", "write a whole number from 2 to 1000"),
        ("--gang-scale=0", "write a whole number from 1 to 128"),
    ] {
        let mut all = vec!["sim", &trace, "--protocol=gangs"];
        all.push(more);
        let answer = site.run(&all);
        assert_eq!(answer.code, 2, "{more}");
        assert!(answer.err.contains(word), "{more}: {}", answer.err);
    }
    let answer = site.run(&["sim", &openb, "--site=nvl72"]);
    assert_eq!(answer.code, 2);
    assert!(answer.err.contains("--protocol gangs"), "{}", answer.err);
    // Another trace; a line that was cut.
    let answer = site.run(&args(&openb, &[]));
    assert_eq!(answer.code, 1);
    assert!(answer.err.contains("jobs.csv, line 1:"), "{}", answer.err);
    site.file("philly.csv", &jobs().replace("2017-10-02 00:00:00,", "x,"));
    let answer = site.run(&args(&trace, &[]));
    assert_eq!(answer.code, 1);
    assert!(answer.err.contains("line 98: the time"), "{}", answer.err);
}
