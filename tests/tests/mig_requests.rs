//! `--gpuos-mig` at submission, in real Slurm clusters: what is asked becomes slices of GRES gpuos, or is refused.

use gpuos_lab::{Suite, field};
use gpuos_model::gpuset::GpuSet;
use gpuos_tests::{Cluster, Setup, per_suite};

per_suite!(requests_become_slices, without_the_plugin_no_program_runs);

/// Nodes with eight simulated H100, of which these are in the pool.
fn pool(name: &str, suite: &Suite, nodes: usize, gpus: u64) -> Setup {
    let mut setup = Setup::simulated(name, suite, nodes);
    setup.spec.job_submit = true;
    setup.spec.mig = GpuSet(gpus);
    setup
}

fn no_node_is_drained(cluster: &Cluster) {
    let text = cluster.run("scontrol", &["-o", "show", "node"]);
    assert!(!text.contains("DRAIN") && !text.contains("DOWN"), "{text}");
}

/// What a held job asks of each node.
fn asked(cluster: &Cluster, args: &[&str]) -> (String, String) {
    let (job, said) = cluster
        .submit_held(args)
        .unwrap_or_else(|why| panic!("{args:?}: {why}"));
    let asks = field(&cluster.show(job), "TresPerNode")
        .unwrap_or_default()
        .to_owned();
    cluster.run("scancel", &[&job.to_string()]);
    (asks.replace("gres:", "gres/"), said)
}

/// The components of a heterogeneous job, and a default that comes from the environment.
fn each_component_has_its_own(cluster: &Cluster) {
    let script = cluster.script("het", "true");
    let dir = format!("--chdir={}", cluster.lab.dir().join("work").display());
    let submit = |args: &[&str]| {
        let all = [&["GPUOS_MIG=2g.20gb", "sbatch"], args, &[&script]].concat();
        let out = cluster.output("env", &all).expect("sbatch runs");
        let id = String::from_utf8_lossy(&out.stdout).trim().parse::<u32>();
        id.unwrap_or_else(|_| panic!("{out:?}"))
    };
    let gres = |job: u32| {
        let text = cluster.run("scontrol", &["-o", "show", "job", &job.to_string()]);
        let line = text
            .lines()
            .find(|line| line.starts_with(&format!("JobId={job} ")));
        let asks = field(line.unwrap_or_default(), "TresPerNode").unwrap_or_default();
        asks.replace("gres:", "gres/")
    };
    let slices = |count: u32| format!("gres/gpuos:h100-80gb:{count}");
    let job = submit(&[
        "--parsable",
        "-H",
        &dir,
        "--gpuos-mig=3g.40gb",
        ":",
        "--gpuos-mig=1g.10gb",
    ]);
    assert_eq!([gres(job), gres(job + 1)], [slices(4), slices(1)]);
    cluster.run("scancel", &[&job.to_string()]);
    let job = submit(&["--parsable", "-H", &dir]);
    assert_eq!(gres(job), slices(2));
    cluster.run("scancel", &[&job.to_string()]);
}

fn requests_become_slices(suite: &Suite) {
    let mut setup = pool("mig-ask", suite, 2, 0b1100_0000);
    // Counted where there is a slurmdbd.
    let counted = *suite == Suite::Native;
    setup.spec.accounting = counted;
    let tres = "AccountingStorageTRES=gres/gpu,gres/gpuos,gres/gpuos:h100-80gb";
    if counted {
        setup.spec.slurm_conf_extra.push(tres.into());
    }
    let Some(cluster) = setup.steered() else {
        return;
    };
    let (gres, said) = asked(&cluster, &["--gpuos-mig=10G"]);
    assert_eq!(gres, "gres/gpuos:h100-80gb:1");
    assert!(
        said.contains("gpuos: --gpuos-mig=10G: 1g.10gb of h100-80gb on each node, 1 memory slice"),
        "{said}"
    );
    let both = [
        "--gres=gpu:1",
        "--gpuos-mig=1g.10gb:2,3g.40gb",
        "--gpuos=off",
    ];
    assert_eq!(
        asked(&cluster, &both).0,
        "gres/gpu:1,gres/gpuos:h100-80gb:6"
    );
    let tasks = ["-N1", "-n4", "--gpuos-mig=1g.10gb:per-task"];
    assert_eq!(asked(&cluster, &tasks).0, "gres/gpuos:h100-80gb:4");
    let tasks = ["--ntasks-per-node=3", "-N2", "--gpuos-mig=2g.20gb:per-task"];
    assert_eq!(asked(&cluster, &tasks).0, "gres/gpuos:h100-80gb:6");
    assert_eq!(
        asked(&cluster, &["--array=0-3", "--gpuos-mig=1/2"]).0,
        "gres/gpuos:h100-80gb:4"
    );
    assert_eq!(asked(&cluster, &["--gres=gpu:1"]).0, "gres/gpu:1");
    for (args, why) in [
        (&["--gpuos-mig=3g"][..], "could be memory, 3G"),
        (
            &["--gpuos-mig=3g.20gb"],
            "no GPU here has a profile 3g.20gb",
        ),
        (
            &["--gpuos-mig=3g.20gb"],
            "a profile of this cluster: 1g.10gb, ",
        ),
        (&["--gpuos-mig=7g.80gb:3"], "no node has so many at once"),
        (
            &["-n4", "--gpuos-mig=1g.10gb:per-task"],
            "--ntasks-per-node=N",
        ),
        (
            &["--gres=gpuos:4", "--gpuos-mig=1g.10gb"],
            "GRES gpuos as well",
        ),
        (&["--exclusive", "--gpuos-mig=1g.10gb"], "takes all slices"),
    ] {
        let said = cluster.submit_held(args).expect_err("it is refused");
        assert!(
            said.contains(why) && said.contains("--gpuos-mig="),
            "{args:?}: {said}"
        );
    }
    each_component_has_its_own(&cluster);
    // Its slices cannot be taken from it.
    let (job, _) = cluster
        .submit_held(&["--gpuos-mig=3g.40gb"])
        .expect("it is taken");
    let id = format!("JobId={job}");
    let update = cluster.try_run("scontrol", &["update", &id, "Gres=gpu:1"]);
    let why = update.expect_err("it is refused");
    assert!(
        why.contains("submit it anew") || cluster.is_before([23, 2, 0]),
        "{why}"
    );
    assert!(cluster.show(job).contains("gpuos:h100-80gb:4"));
    cluster.run("scontrol", &["update", &id, "TimeLimit=5"]);
    cluster.run("scancel", &[&job.to_string()]);
    if !counted {
        return cluster.drained();
    }
    let job = cluster.start(&["--gpuos-mig=3g.40gb"]);
    let text = cluster.show(job);
    let counted = text
        .lines()
        .find(|line| line.contains("TRES=cpu=") && !line.contains("ReqTRES"));
    let counted = counted.unwrap_or_default();
    assert!(
        counted.contains("gres/gpuos:h100-80gb=4") && counted.contains("gres/gpuos=4"),
        "{text}"
    );
    cluster.drained();
}

fn without_the_plugin_no_program_runs(suite: &Suite) {
    let mut setup = pool("mig-bare", suite, 1, 1 << 7);
    setup.spec.job_submit = false;
    let Some(cluster) = setup.steered() else {
        return;
    };
    let job = cluster.sbatch(&["--gpuos-mig=1g.10gb"], "echo end=never");
    cluster.wait(job, &["FAILED"]);
    let text = cluster.lab.job_output(job);
    assert!(
        text.contains("Slurm gave no slices") && !text.contains("end=never"),
        "{text}"
    );
    assert!(cluster.show(job).contains("ExitCode=1:0"));
    // A job without the option is as ever.
    let job = cluster.sbatch(&["--gres=gpu:1"], "echo end=$CUDA_VISIBLE_DEVICES");
    cluster.wait(job, &["COMPLETED"]);
    let text = cluster.lab.job_output(job);
    let gpu = text.trim().strip_prefix("end=");
    assert!(gpu.is_some_and(|gpu| gpu.parse::<u8>().is_ok()), "{text}");
    no_node_is_drained(&cluster);
    cluster.drained();
}
