//! Where options come from, and what is said of them, in real Slurm clusters: flags, lines of the script, defaults of
//! the environment and steps; what is undone, moved or ignored.

use gpuos_lab::Suite;
use gpuos_model::gpuset::GpuSet;
use gpuos_tests::{Cluster, Setup, per_suite};

per_suite!(every_value_has_a_place_where_it_came_from);

/// One node with eight simulated H100, of which two are divided.
fn lab(suite: &Suite) -> Option<Cluster> {
    let mut setup = Setup::simulated("options", suite, 1);
    setup.spec.job_submit = true;
    setup.spec.mig = GpuSet(0b1100_0000);
    setup.spec.gpuos_toml = None;
    setup.steered()
}

/// What sbatch says of a job that is held, with variables set and lines in its script; its number if it is taken.
fn said(
    cluster: &Cluster,
    variables: &[&str],
    line: &str,
    flags: &[&str],
) -> (Option<u32>, String) {
    let script = cluster.script("asks", &format!("{line}\ntrue"));
    let dir = format!("--chdir={}", cluster.lab.dir().join("work").display());
    let sbatch = ["sbatch", "--parsable", "-H", &dir];
    // The script's own arguments are no options.
    let tail = [script.as_str(), "--gpuos-watch=nonsense"];
    let all = [variables, &sbatch, flags, &tail].concat();
    let out = cluster.output("env", &all).expect("sbatch runs");
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    let job = String::from_utf8_lossy(&out.stdout).trim().parse().ok();
    if let Some(job) = job {
        let id: &u32 = &job;
        cluster.run("scancel", &[&id.to_string()]);
    }
    (job, said)
}

const GPU: &str = "--gres=gpu:1";

fn refusals(cluster: &Cluster) {
    for (variables, line, flags, sentence) in [
        // By the commands ...
        (
            &["GPUOS_WATCH=x"][..],
            "",
            &[GPU][..],
            "GPUOS_WATCH=x (environment): 'x' is not",
        ),
        (
            &[],
            "#SBATCH --gpuos-watch=nonsense",
            &[GPU],
            "#SBATCH --gpuos-watch=nonsense: ",
        ),
        (
            &[],
            "",
            &["--gpuos-watch=x", GPU],
            " --gpuos-watch=x: 'x' is not understood; write on, or minutes",
        ),
        (&[], "", &["--gpuos-w", "x", GPU], " --gpuos-watch=x: "),
        (
            &[],
            "",
            &["--gpuos-watch=", GPU],
            " --gpuos-watch=: a value is missing",
        ),
        (
            &[],
            "",
            &["--gpuos-checkpoint=10m,dir=/x"],
            " --gpuos-checkpoint=10m,dir=/x: dir= is not part of this release",
        ),
        // ... and by the controller.
        (
            &["GPUOS_CHECKPOINT=10m"],
            "",
            &[],
            "GPUOS_CHECKPOINT=10m (environment): this site makes no checkpoints",
        ),
        (
            &["GPUOS_TOPOLOGY=rack"],
            "",
            &[GPU],
            "GPUOS_TOPOLOGY=rack (environment): this cluster has no level",
        ),
        (
            &[],
            "#SBATCH --gpuos-topology=rack",
            &[GPU],
            "#SBATCH --gpuos-topology=rack: this",
        ),
        (
            &[],
            "",
            &["--gpuos-topo=rack", GPU],
            " --gpuos-topology=rack: this",
        ),
        (
            &["GPUOS_MIG=9g.90gb"],
            "",
            &[],
            "GPUOS_MIG=9g.90gb (environment): no GPU here",
        ),
        (
            &["GPUOS_POWER=900W"],
            "",
            &[GPU],
            "; --gpuos-power=off undoes it for one job",
        ),
        // Contradictions name both.
        (
            &[],
            "#SBATCH --gpuos-exclusive=node",
            &["--gpuos=off", GPU],
            " --gpuos=off: it contradicts #SBATCH --gpuos-exclusive=node; write one of the two",
        ),
    ] {
        let (job, text) = said(cluster, variables, line, flags);
        assert!(
            job.is_none() && text.contains(sentence),
            "{variables:?} {line} {flags:?}: {job:?} {text}"
        );
    }
}

fn taken(cluster: &Cluster) {
    for (variables, line, flags) in [
        (&["GPUOS_WATCH=on"][..], "", &["--gpuos-watch=off", GPU][..]),
        (&["GPUOS_WATCH=off"], "", &[GPU]),
        (&["GPUOS_CHECKPOINT=10m"], "", &["--gpuos-checkpoint=off"]),
        (&["GPUOS_WATCH=x"], "", &["--gpuos-watch=OFF", GPU]),
        (
            &["GPUOS_TOPOLOGY=rack"],
            "#SBATCH --gpuos-topology=off",
            &[GPU],
        ),
        (
            &[],
            "#SBATCH --gpuos-topology=rack",
            &["--gpuos-topology=off", GPU],
        ),
        (
            &[
                "GPUOS_TOPOLOGY=leaf:required",
                "GPUOS_POWER=300W",
                "GPUOS_SHAPE=tp2",
            ],
            "",
            &[],
        ),
    ] {
        let (job, text) = said(cluster, variables, line, flags);
        assert!(
            job.is_some() && !text.contains("gpuos"),
            "{variables:?} {line} {flags:?}: {job:?} {text}"
        );
    }
}

fn notes(cluster: &Cluster) {
    for (variables, line, flags, sentence) in [
        (
            &["GPUOS_WATCH=on"][..],
            "#SBATCH --gpuos-power=300W",
            &["--gpuos-topology=node"][..],
            "gpuos: --gpuos-topology=node, #SBATCH --gpuos-power=300W are ignored: the job asks for no GPUs; write --gpus=N",
        ),
        (
            &[],
            "",
            &["--gpuos-mig=1g.10gb", "--gpuos-mps=on"],
            "gpuos: --gpuos-mps=on is ignored: the job has slices, and they are about whole GPUs",
        ),
        (
            &["GPUOS_MIG=1g.10gb:3"],
            "",
            &["-n1"],
            "gpuos: GPUOS_MIG=1g.10gb:3 (environment): a CUDA process uses one slice only, and the one task of a node has \
             3; write --gpuos-mig=1g.10gb:per-task with --ntasks-per-node=3 for a slice each",
        ),
        (
            &[],
            "",
            &[GPU, "--gpuos-mig=1g.10gb"],
            "gpuos: --gpuos-mig=1g.10gb: beside whole GPUs, programs see these and not the slices",
        ),
        (
            &[],
            "#SBATCH --gpuos-placement=affinity:nobody-9",
            &[GPU],
            "gpuos: #SBATCH --gpuos-placement=affinity:nobody-9: no job that runs or waits has the name, number or user nobody-9 (by number,",
        ),
        (
            &[],
            "",
            &[GPU, "--gpuos-placement=anti-affinity:node=n77,class=io"],
            "no node is called n77, no job that runs or waits is of class io; until one does, this says nothing",
        ),
    ] {
        let (job, text) = said(cluster, variables, line, flags);
        let count = text.matches(sentence).count();
        assert!(
            job.is_some() && count == 1,
            "{variables:?} {line} {flags:?}: {job:?} {text}"
        );
    }
    // srun and salloc say it too.
    for program in ["srun", "salloc"] {
        let words = ["-n1", "--gpuos-clocks=1200", "true"];
        let out = cluster.output(program, &words).expect("it runs");
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        let ignored = "gpuos: --gpuos-clocks=1200 is ignored: the job asks for no GPUs";
        assert!(
            out.status.success() && said.matches(ignored).count() == 1,
            "{program}: {said}"
        );
    }
    // Once for all tasks of an array; and somebody is found: by name, number, user and class, or the job itself.
    let array = ["--array=1-9", "--gpuos-power=300W"];
    assert_eq!(
        said(cluster, &[], "", &array).1.matches("ignored").count(),
        1
    );
    let other = cluster.start(&["-J", "other", GPU, "--gpuos-class=io"]);
    let number = other.to_string();
    let user = cluster.run("id", &["-u"]);
    for name in ["other", "class=io", "node=n1", "own", &number, user.trim()] {
        let rule = format!("--gpuos-placement=affinity:{name}");
        let (job, text) = said(cluster, &[], "", &[GPU, "-J", "own", &rule]);
        assert!(job.is_some() && !text.contains("gpuos"), "{name}: {text}");
    }
    cluster.run("scancel", &[&number]);
}

/// What a job's script and steps have of it.
fn steps(cluster: &Cluster) {
    let show = |name: &str| format!("sh -c 'echo {name}=[$GPUOS_JOB_LIMITS]'");
    let script = [
        "echo script=[$GPUOS_JOB_LIMITS]".to_owned(),
        format!("srun -n1 {}", show("same")),
        format!("srun -n1 --gpuos-watch=off {}", show("undone")),
        format!("srun -n1 --gpuos-clocks=1200 {}", show("more")),
        "srun -n1 --gpuos-mig=off sh -c 'echo slices=[$CUDA_VISIBLE_DEVICES$GPUOS_MIG_UUIDS]'"
            .into(),
        "srun -n1 sh -c 'echo given=[$CUDA_VISIBLE_DEVICES]'; echo end=1".into(),
    ];
    // Waits for so many GPUs with the cap, and tells how many have it then.
    let lab = cluster.lab.dir().display();
    let capped = format!(
        "for i in $(seq 600); do n=$({lab}/bin/gpuos-nvml --state {lab}/nvml/$SLURMD_NODENAME/state show | grep -c 'limit 200 W'); \
         [ $n = $1 ] && break; sleep 0.2; done; echo $2=$n"
    );
    let capped = cluster.script("capped", &capped);
    let cap = format!(
        "{capped} 1 before; srun -n1 --gpuos-power=off {capped} 0 during; {capped} 1 after"
    );
    let plain = script.join("\n");
    let script = format!("{plain}\n{cap}");
    let work = cluster.lab.dir().join("work");
    let told = |flags: &[&str], variables: &[&str], script: &str| {
        let script = cluster.script("steps", script);
        let out = format!("--output={}/%A.out", work.display());
        let sbatch = ["sbatch", "--parsable", &out];
        let all = [variables, &sbatch, flags, &[&script]].concat();
        cluster.answered(|| {
            let out = cluster.output("env", &all).expect("sbatch runs");
            let job = String::from_utf8_lossy(&out.stdout)
                .trim()
                .parse()
                .expect("a job");
            cluster.wait(job, &["COMPLETED"]);
            cluster.lab.job_output(job)
        })
    };
    let text = told(
        &[GPU, "--gpuos-power=100W"],
        &["GPUOS_WATCH=5", "GPUOS_MPS="],
        &script,
    );
    for line in [
        "script=[power=100W watch=5 environment=watch]",
        "same=[power=100W watch=5 environment=watch]",
        "undone=[power=100W watch=off]",
        "more=[power=100W clocks=1200 watch=5 environment=watch]",
        "before=1",
        "during=0",
        "after=1",
    ] {
        assert!(text.lines().any(|one| one == line), "{line}: {text}");
    }
    let moved = ": 200 W is set for --gpuos-power=100W: the board takes 200 W to 700 W";
    assert!(text.contains(moved), "{text}");
    // What the job has undone its steps do not find in the environment again.
    let text = told(
        &[GPU, "--gpuos-watch=off", "--gpuos-mig=off"],
        &["GPUOS_WATCH=5", "GPUOS_MIG=1g.10gb", "GPUOS_POWER=100W"],
        &plain,
    );
    for line in [
        "script=[power=100W watch=off environment=power]",
        "same=[power=100W watch=off environment=power]",
    ] {
        assert!(text.lines().any(|one| one == line), "{line}: {text}");
    }
    let moved = "200 W is set for GPUOS_POWER=100W (environment): the board takes";
    assert!(text.contains(moved), "{text}");
    // A step leaves the slices of its job.
    let text = told(&["--gpuos-mig=1g.10gb"], &[], &plain);
    assert!(
        text.contains("slices=[]") && text.contains("given=[MIG-"),
        "{text}"
    );
}

fn every_value_has_a_place_where_it_came_from(suite: &Suite) {
    let Some(cluster) = lab(suite) else {
        return;
    };
    refusals(&cluster);
    taken(&cluster);
    notes(&cluster);
    steps(&cluster);
    cluster.drained();
}
