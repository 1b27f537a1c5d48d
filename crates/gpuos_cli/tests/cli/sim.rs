//! `gpuos sim`, over a small trace.

use std::fs;

use crate::site::Site;

pub const JOBS: &str = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n\
    a,4000,1000,1,500,,LS,Running,0,600,0\n\
    b,8000,1000,1,1000,,LS,Running,0,900,0\n\
    c,32000,1000,4,1000,G2,LS,Running,10,500,12\n\
    d,2000,1000,0,0,,BE,Running,20,90,20\n";
pub const NODES: &str = "sn,cpu_milli,memory_mib,gpu,model\n\
    n1,96000,393216,8,G2\nn2,64000,262144,4,T4\nn3,64000,262144,4,T4\n";

fn site() -> Site {
    let site = Site::new("24.11.5");
    site.file("jobs.csv", JOBS);
    site.file("openb_node_list_gpu_node.csv", NODES);
    site
}

#[test]
fn sim_compares_policies_on_a_trace() {
    let site = site();
    let (jobs, csv, svg) = (
        site.path("jobs.csv"),
        site.path("a.csv"),
        site.path("a.svg"),
    );
    let args = [
        "sim",
        &jobs,
        "--policy",
        "gpuos,fgd,stock",
        "--seeds",
        "1-3",
        "--csv",
        &csv,
        "--svg",
        &svg,
    ];
    let answer = site.run(&args);
    assert_eq!(
        (answer.code, answer.err.as_str()),
        (0, ""),
        "{}",
        answer.out
    );
    assert!(
        answer
            .out
            .starts_with("jobs: 4 jobs on 3 nodes with 16 GPUs, 3 seeds\n"),
        "{}",
        answer.out
    );
    for word in ["gpuos ", "fgd ", "stock ", "at 130 %", "rejected jobs"] {
        assert!(answer.out.contains(word), "{word}: {}", answer.out);
    }
    let rows = fs::read_to_string(&csv).unwrap();
    assert_eq!(
        rows.lines().next(),
        Some("policy,seed,arrived_percent,allocation_percent")
    );
    assert_eq!(rows.lines().count(), 1 + 3 * 3 * 131);
    let plot = fs::read_to_string(&svg).unwrap();
    assert_eq!(plot.matches("<polyline").count(), 3);
    // The same again, to the last digit; JSON has the same figures.
    assert_eq!(site.run(&args).out, answer.out);
    let json = site
        .run(&["--json", "sim", &jobs, "--policy=fgd", "--seeds=2"])
        .json();
    let row = rows
        .lines()
        .find(|row| row.starts_with("fgd,2,130,"))
        .unwrap();
    let allocation: f64 = row.rsplit(',').next().unwrap().parse().unwrap();
    assert_eq!(
        json["policies"][0]["runs"][0]["allocation_percent"],
        allocation
    );
    assert_eq!(
        (&json["trace"], &json["gpus"]),
        (&"jobs".into(), &16.into())
    );
}

#[test]
fn sim_with_lifetimes() {
    let site = site();
    let (jobs, csv) = (site.path("jobs.csv"), site.path("l.csv"));
    let args = [
        "sim",
        &jobs,
        "--protocol=lifetimes",
        "--policy=gpuos,random",
        "--seeds=1-2",
        "--load=90",
        "--csv",
        &csv,
    ];
    let answer = site.run(&args);
    assert_eq!(answer.code, 0, "{}", answer.err);
    assert!(
        answer.out.contains("Load 90 %") && answer.out.contains("largest gang"),
        "{}",
        answer.out
    );
    assert_eq!(fs::read_to_string(&csv).unwrap().lines().count(), 5);
    // A trace that does not know when jobs end.
    let short: String = JOBS
        .lines()
        .map(|line| line.split(',').take(5).collect::<Vec<_>>().join(",") + "\n")
        .collect();
    site.file("short.csv", &short);
    let answer = site.run(&[
        "sim",
        &site.path("short.csv"),
        "--protocol=lifetimes",
        "--seeds=1",
    ]);
    assert_eq!(answer.code, 1);
    assert!(
        answer.err.contains("creation_time and deletion_time"),
        "{}",
        answer.err
    );
    let answer = site.run(&["sim", &jobs, "--protocol=lifetimes", "--svg=x.svg"]);
    assert_eq!(answer.code, 2, "{}", answer.err);
    assert!(answer.err.contains("use --csv"), "{}", answer.err);
}

#[test]
fn sim_tells_what_is_wrong_with_its_input() {
    let site = site();
    let jobs = site.path("jobs.csv");
    site.edit("jobs.csv", "b,8000,1000,1,1000", "b,8000,1000,1,1001");
    let answer = site.run(&["sim", &jobs]);
    assert_eq!((answer.code, answer.out.as_str()), (1, ""));
    let message =
        format!("gpuos: {jobs}, line 3, column 15: gpu_milli is 1 to 1000 for a job of one GPU\n");
    assert_eq!(answer.err, message);
    let json = site.run(&["--json", "sim", &jobs]);
    assert_eq!(
        (json.code, json.json()["schema"].as_str()),
        (1, Some("gpuos.error/1"))
    );
    fs::write(&jobs, b"name,cpu_milli\n\xff\n").unwrap();
    assert!(site.run(&["sim", &jobs]).err.contains("line 2: not UTF-8"));
    fs::write(&jobs, b"\x1f\x8bnothing").unwrap();
    assert!(site.run(&["sim", &jobs]).err.contains("cannot unpack"));
    for missing in ["none.csv", "nowhere/none.csv"] {
        let answer = site.run(&["sim", &site.path(missing)]);
        let words = format!("cannot read {}", site.path(missing));
        assert!(answer.err.contains(&words), "{}", answer.err);
    }
    site.file("jobs.csv", JOBS);
    let answer = site.run(&["sim", &jobs, "--svg", &site.path("none/plot.svg")]);
    assert!(
        answer.code == 1 && answer.err.contains("there is no folder"),
        "{}",
        answer.err
    );
    // A trace that lies alone.
    site.file("alone/jobs.csv", JOBS);
    let answer = site.run(&["sim", &site.path("alone/jobs.csv")]);
    assert!(
        answer.code == 1
            && answer.err.contains("there is no node list")
            && answer.err.contains("alone/openb_node_list_gpu_node.csv")
            && answer.err.contains("--nodes"),
        "{}",
        answer.err
    );
    site.file("jobs.csv", JOBS);
    site.edit("openb_node_list_gpu_node.csv", "n3,", "n1,");
    let answer = site.run(&["sim", &jobs]);
    assert!(
        answer
            .err
            .contains("openb_node_list_gpu_node.csv, line 4, column 1: n1 is in the list twice"),
        "{}",
        answer.err
    );
    let named = site.run(&["sim", &jobs, "--nodes", &site.path("else.csv")]);
    assert!(named.err.contains("else.csv"), "{}", named.err);
    for (flag, words) in [
        ("--policy=fgd,best", "no policy has the name \"best\""),
        ("--seeds=9-3", "write N or N-M"),
        ("--load=0", "write a whole number from 1 to 300"),
        ("--protocol=torus", "possible values: openb, lifetimes"),
    ] {
        let answer = site.run(&["sim", &jobs, flag]);
        assert_eq!(answer.code, 2, "{flag}");
        assert!(answer.err.contains(words), "{flag}: {}", answer.err);
    }
}
