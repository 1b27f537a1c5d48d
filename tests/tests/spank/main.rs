//! `--gpuos-*` from the command line to slurmctld and to the job: spank_gpuos and job_submit_gpuos in
//! real Slurm clusters of every release at hand.

mod lab;
mod rank_file;

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use gpuos_lab::{Lab, Suite};
use gpuos_tests::{per_suite, plugins, program, skip};
use lab::{carried, no_node_is_drained, queue, up, with};
use object::{Object, ObjectSymbol};
use rank_file::rank_file;

const LIMIT: Duration = Duration::from_secs(240);

fn plugin(name: &str) -> PathBuf {
    let dir = plugins::built();
    let found = [
        dir.join(format!("{name}.so")),
        dir.join(format!("lib{name}.so")),
    ];
    found
        .into_iter()
        .find(|path| path.is_file())
        .expect("the built plugin")
}

fn exports(name: &str) -> Vec<String> {
    let bytes = std::fs::read(plugin(name)).expect("readable");
    let file = object::File::parse(bytes.as_slice()).expect("an ELF file");
    let mut names: Vec<String> = file
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition())
        .map(|symbol| symbol.name().expect("UTF-8").to_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn plugins_export_what_they_use_and_nothing_else() {
    assert_eq!(
        exports("spank_gpuos"),
        [
            "plugin_name",
            "plugin_type",
            "plugin_version",
            "slurm_spank_exit",
            "slurm_spank_init",
            "slurm_spank_init_post_opt",
            "slurm_spank_task_init",
            "slurm_spank_user_init",
            "spank_plugin_version",
        ]
    );
    assert_eq!(
        exports("job_submit_gpuos"),
        [
            "init",
            "job_modify",
            "job_submit",
            "plugin_name",
            "plugin_type",
            "plugin_version"
        ]
    );
}

fn options(suite: &Suite) {
    let Some(lab) = up(suite, false, plugins::built()) else {
        return;
    };

    for program in ["sbatch", "srun", "salloc"] {
        let (code, help) = with(&lab, &[], program, &["--help"]);
        assert_eq!(code, 0);
        for option in [
            "--gpuos-topology=LEVEL[:required]",
            "--gpuos-placement=RULE",
            "--gpuos=on|off",
            "--gpuos-shape=GROUPS",
            "--gpuos-profile=PROFILE",
            "[gpuos]",
        ] {
            assert!(
                help.contains(option),
                "{program} --help lacks {option}: {help}"
            );
        }
    }

    // What is no value ends the command with a sentence, the code 1 and no job.
    for program in ["sbatch", "srun", "salloc"] {
        for (option, accepted) in [
            ("--gpuos-topology=leaf:maybe", "LEVEL:required"),
            ("--gpuos-topology=", "LEVEL:required"),
            ("--gpuos-placement=sideways", "best-fit"),
            ("--gpuos=perhaps", "on or off"),
            ("--gpuos-shape=tp8:tp4", "tp stands there twice"),
            (
                "--gpuos-profile=disk",
                "compute, memory, communication or io",
            ),
        ] {
            let job = if program == "sbatch" {
                "--wrap=true"
            } else {
                "true"
            };
            let (code, text) = with(&lab, &[], program, &[option, job]);
            assert_eq!(code, 1, "{program} {option}: {text}");
            assert!(
                text.contains(option) && text.contains(accepted),
                "{program}: {text}"
            );
        }
    }
    let (code, text) = with(
        &lab,
        &[("GPUOS_PLACEMENT", "bad")],
        "sbatch",
        &["--wrap=true"],
    );
    assert!(
        code == 1 && text.contains("GPUOS_PLACEMENT=bad"),
        "{code} {text}"
    );
    let (code, _) = with(
        &lab,
        &[("SLURM_EXIT_ERROR", "9")],
        "sbatch",
        &["--gpuos=x", "--wrap=true"],
    );
    assert_eq!(code, 9);
    assert_eq!(queue(&lab), "");

    // What is a value reaches slurmctld, flags before defaults, and nothing else does.
    let work = lab.dir().join("work");
    let prolog = format!(
        "#!/bin/sh\nenv | grep ^SPANK_ > {}/prolog\nexit 0\n",
        work.display()
    );
    let path = lab.dir().join("etc/prolog.sh");
    program(&path, &prolog);
    lab.set_slurm_conf("Prolog", Some(&path.to_string_lossy()))
        .expect("writes");
    lab.restart().expect("restarts");
    let script = work.join("with-option.sh");
    std::fs::write(&script, "#!/bin/sh\n#SBATCH --gpuos-topology=leaf\ntrue\n").expect("writes");
    let script = script.to_string_lossy();
    let out = "--output=/dev/null";
    let leaf = [("GPUOS_TOPOLOGY", "leaf")];
    let sbatch: &[&str] = &["-W", out, "--wrap=true"];
    for (variables, args, expected) in [
        (
            &[][..],
            &["--gpuos-topology=leaf:required", "--gpuos-placement=pack"][..],
            &["gpuos_placement=pack", "gpuos_topology=leaf:required"][..],
        ),
        (&leaf, &[], &["gpuos_topology=leaf"]),
        (&leaf, &["--gpuos-topology=node"], &["gpuos_topology=node"]),
        (&leaf, &["--gpuos=off"], &["gpuos=off"]),
        (
            &[("GPUOS_PROFILE", "io")],
            &["--gpuos-shape=tp1"],
            &["gpuos_profile=io", "gpuos_shape=tp1"],
        ),
        (&[], &[], &[]),
    ] {
        let all = [args, sbatch].concat();
        assert_eq!(
            carried(&lab, variables, "sbatch", &all),
            expected,
            "sbatch {args:?} {variables:?}"
        );
        let all = [args, &["true"]].concat();
        assert_eq!(
            carried(&lab, variables, "srun", &all),
            expected,
            "srun {args:?} {variables:?}"
        );
        let all = [args, &["-Q", "true"]].concat();
        assert_eq!(
            carried(&lab, variables, "salloc", &all),
            expected,
            "salloc {args:?} {variables:?}"
        );
    }
    let node = [("GPUOS_TOPOLOGY", "node")];
    assert_eq!(
        carried(&lab, &node, "sbatch", &["-W", out, &script]),
        ["gpuos_topology=leaf"]
    );
    // A job submitted from within a job has options of its own only.
    let inner = format!("--wrap=sbatch -W {out} --wrap=true");
    let outer: &[&str] = &["-W", out, "--gpuos-topology=leaf", &inner];
    assert_eq!(carried(&lab, &[], "sbatch", outer), [""; 0]);
    no_node_is_drained(&lab);
    lab.down().expect("goes down");
}

const SHOW: &str =
    r#"echo $1 $SLURMD_NODENAME gpus=$GPUOS_GPUS links=$GPUOS_LINKS level=$GPUOS_LEVEL"#;

/// Runs a job that shows its variables in the batch script and in steps; the lines, sorted.
fn shown(lab: &Lab, options: &[&str]) -> Vec<String> {
    let show = lab.dir().join("work/show.sh");
    program(&show, &format!("#!/bin/sh\n{SHOW}\n"));
    let show = show.display();
    let script = format!(
        "{show} batch; srun {show} step; srun -N1 -n1 --gres=none --gpus-per-node=0 {show} none; echo end"
    );
    let job = lab.sbatch(options, &script).expect("submits");
    let text = lab.wait_output(job, "end", LIMIT).expect("runs");
    // Stock selection gives the GPU near the cores that are free: those of this job are the next one's too.
    lab.wait_job(job, &["COMPLETED"], LIMIT).expect("ends");
    let mut lines: Vec<String> = text
        .lines()
        .filter(|line| line.contains("gpus="))
        .map(String::from)
        .collect();
    lines.sort();
    lines
}

fn variables(suite: &Suite) {
    let Some(lab) = up(suite, false, plugins::built()) else {
        return;
    };
    // Stock selection breaks pairs of --gres=gpu:2 from 24.05 on, and keeps those of --gpus=2.
    let pair = "gpus=0,1 links=0-1:NV4 level=nvlink";
    assert_eq!(
        shown(&lab, &["-N1", "-wn1", "--gpus=2"])
            .iter()
            .filter(|l| !l.starts_with("none"))
            .collect::<Vec<_>>(),
        [&format!("batch n1 {pair}"), &format!("step n1 {pair}")]
    );
    let on = |node: &str, level: &str| format!("step {node} gpus=0 links= level={level}");
    let lines = shown(&lab, &["-N2", "-wn3,n4", "--gres=gpu:1"]);
    assert_eq!(
        lines
            .iter()
            .filter(|l| l.starts_with("step"))
            .collect::<Vec<_>>(),
        [&on("n3", "leaf"), &on("n4", "leaf")]
    );
    assert_eq!(lines[0], "batch n3 gpus=0 links= level=leaf");
    let lines = shown(&lab, &["-N2", "-wn2,n3", "--gres=gpu:1"]);
    assert_eq!(
        lines
            .iter()
            .filter(|l| l.starts_with("step"))
            .collect::<Vec<_>>(),
        [&on("n2", "spine"), &on("n3", "spine")]
    );
    // No GPU, no variable.
    for line in shown(&lab, &["-N1"]) {
        assert!(line.ends_with("gpus= links= level="), "{line}");
    }
    // A mistake in a file costs the variables that need it, and nothing else.
    lab.write_conf("gpuos.toml", "nonsense [").expect("writes");
    let lines = shown(&lab, &["-N1", "-wn1", "--gpus=2"]);
    // Which pair is stock's to say: it depends on the cores that the job before has not given back yet.
    let pair = lines[0]
        .strip_prefix("batch n1 gpus=")
        .and_then(|rest| rest.strip_suffix(" links= level="));
    assert!(
        pair.is_some_and(|gpus| gpus.split(',').count() == 2),
        "{lines:?}"
    );
    assert!(
        lab.slurmd_log("n1").contains("gpuos.toml:1:"),
        "{}",
        lab.slurmd_log("n1")
    );
    no_node_is_drained(&lab);
    lab.down().expect("goes down");
}

fn checks(suite: &Suite) {
    let Some(lab) = up(suite, true, plugins::built()) else {
        return;
    };
    let submit = |options: &[&str]| {
        let all = [&["-H", "--output=/dev/null", "--wrap=true"], options].concat();
        with(&lab, &[], "sbatch", &all)
    };
    if lab.slurmctld_log().contains("is not in the layout table") {
        // Debian's sid moves on. A release that is not known is passed through, with a line in the log.
        let (code, text) = submit(&["--gpuos-topology=rack", "--gres=gpu:1"]);
        assert_eq!(code, 0, "{text}");
        skip(
            &format!("checks on Slurm {}", lab.version()),
            "it is not in the layout table",
        );
        return lab.down().expect("goes down");
    }
    for (options, part) in [
        (
            &["--gpuos-topology=rack", "--gres=gpu:1"][..],
            "one of nvlink, node, leaf, spine, any",
        ),
        (
            &["--gpuos=off", "--gpuos-topology=leaf"],
            "--gpuos-topology=leaf",
        ),
        (
            &["--gpuos=off", "--gpuos-placement=pack"],
            "--gpuos-placement=pack",
        ),
        (
            &["--gpuos-topology=leaf:required", "-N3", "--gres=gpu:8"],
            "--gpuos-topology=leaf:required",
        ),
        (
            &["--gpuos-topology=node:required", "-N2", "--gres=gpu:1"],
            "--gpuos-topology=node:required",
        ),
        (
            &["--gpuos-topology=nvlink:required", "-N1", "--gres=gpu:3"],
            "--gpuos-topology=nvlink:required",
        ),
        (
            &["--gpuos-topology=leaf:required", "--gpus=17"],
            "--gpuos-topology=leaf:required",
        ),
        (
            &["--gpuos-placement=pack", "--gpus-per-node=9"],
            "never run",
        ),
        (
            &["--gpuos-shape=tp8:dp4", "-N2", "--gres=gpu:8"],
            "8 x 4 = 32 ranks, and the job asks for 16",
        ),
        (
            &["--gpuos-shape=tp3:dp4", "-N3", "--gpus-per-node=4"],
            "would cut tensor-parallel groups of 3",
        ),
        (&["--gpuos-shape=tp2"], "the job asks for no GPUs"),
        (
            &["--gpuos=off", "--gpuos-shape=tp2", "--gres=gpu:2"],
            "--gpuos-shape=tp2",
        ),
    ] {
        let (code, text) = submit(options);
        assert!(
            code == 1 && text.contains(part),
            "{options:?}: {code} {text}"
        );
    }
    let (code, text) = with(
        &lab,
        &[],
        "srun",
        &["--gpuos-topology=rack", "--gres=gpu:1", "true"],
    );
    assert!(code == 1 && text.contains("'rack'"), "{code} {text}");
    assert_eq!(queue(&lab), "");
    for options in [
        &["--gpuos-topology=leaf:required", "-N2", "--gres=gpu:8"][..],
        &["--gpuos-topology=leaf:required", "--gpus=16"],
        &["--gpuos-topology=leaf", "-N4", "--gpus-per-node=8"],
        &["--gpuos-topology=nvlink:required", "--gres=gpu:2"],
        &["--gpuos-topology=leaf:required", "-n4", "--gpus-per-task=4"],
        &["--gpuos-topology=spine:required", "-N4", "--exclusive"],
        &["--gpuos-topology=any:required", "-N4", "--gres=gpu:1"],
        &["--gpuos-shape=tp8:dp2", "-N2", "--gres=gpu:8"],
        &["--gpuos-shape=tp2:dp3", "--gpus=6"],
        &["--gpuos-profile=communication", "--gres=gpu:1"],
        &["--gpuos=off", "--gres=gpu:1"],
        &["--gres=gpu:1"],
    ] {
        let (code, text) = submit(options);
        assert_eq!(code, 0, "{options:?}: {text}");
    }

    // A change is checked when it is about what the options are about.
    let parsable = [
        "--parsable",
        "--gpuos-topology=leaf:required",
        "-N2",
        "--gres=gpu:8",
    ];
    let (_, job) = submit(&parsable);
    let update = |what: &str| {
        with(
            &lab,
            &[],
            "scontrol",
            &["update", &format!("jobid={}", job.trim()), what],
        )
    };
    assert_ne!(update("numnodes=3").0, 0);
    assert_eq!(update("timelimit=5").0, 0);
    assert_eq!(update("numnodes=1").0, 0);

    // Levels are those of the files as they are after a reconfigure; a mistake ends the checks.
    let toml = "[[fabric.level]]\nname = \"leaf\"\n[[fabric.level]]\nname = \"spine\"\n[[fabric.level]]\n\
                name = \"rack\"\n[[fabric.switch]]\nname = \"r1\"\nlevel = \"rack\"\nnodes = \"n[1-4]\"\n";
    for (toml, rack, room) in [(toml, 0, 1), ("nonsense [", 0, 0)] {
        lab.write_conf("gpuos.toml", toml).expect("writes");
        // slurmctld's clock for its configuration has whole seconds.
        std::thread::sleep(Duration::from_millis(1100));
        lab.reconfigure().expect("reconfigures");
        lab.wait_ready(LIMIT).expect("ready");
        let (code, text) = submit(&["--gpuos-topology=rack", "--gres=gpu:1"]);
        assert_eq!(code, rack, "{toml}: {text}");
        let (code, text) = submit(&["--gpuos-topology=room", "--gres=gpu:1"]);
        assert_eq!(code, room, "{toml}: {text}");
    }
    let log = lab.slurmctld_log();
    let lines = log
        .lines()
        .filter(|line| line.contains("without a check") && line.contains("gpuos.toml:1:"));
    assert_eq!(lines.count(), 1, "{log}");

    // A damaged layout table: nothing is read, everything is accepted.
    std::fs::remove_file(lab.dir().join("etc/gpuos.toml")).expect("removes");
    lab.write_conf("gpuos-layouts.tsv", "job_descriptor\tdamaged\n")
        .expect("writes");
    lab.restart().expect("restarts");
    let (code, text) = submit(&["--gpuos-topology=room", "--gres=gpu:1"]);
    assert_eq!(code, 0, "{text}");
    let log = lab.slurmctld_log();
    let line = log
        .lines()
        .rev()
        .find(|line| line.contains("without a check"));
    assert!(
        line.is_some_and(|line| line.contains("gpuos-layouts.tsv")),
        "{log}"
    );
    assert!(lab.slurmctld_pid().is_some());
    lab.down().expect("goes down");
}

per_suite!(options, variables, checks, rank_file);

/// Makes this very test run again in a process whose daemons panic at one entry.
#[test]
fn a_panic_at_any_entry_harms_nothing() {
    if !gpuos_tests::suites().contains(&Suite::Native) {
        return skip("panics", "GPUOS_TEST_SUITES does not name native");
    }
    let _cost = gpuos_tests::costs::of("slurm::spank::native::a_panic_at_any_entry_harms_nothing");
    for symbol in [
        "slurm_spank_init",
        "slurm_spank_init_post_opt",
        "slurm_spank_exit",
        "option callback",
        "init",
        "job_submit",
        "job_modify",
    ] {
        let own = std::env::current_exe().expect("own path");
        let out = Command::new(own)
            .args(["--exact", "spank::with_an_injected_panic", "--nocapture"])
            .env("GPUOS_PANIC_AT", symbol)
            .output()
            .expect("runs");
        let text = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{symbol}: {text}");
        assert!(text.contains("1 passed"), "no such test: {text}");
    }
}

/// Without `$GPUOS_PANIC_AT` there is nothing to see.
#[test]
fn with_an_injected_panic() {
    let Ok(symbol) = std::env::var("GPUOS_PANIC_AT") else {
        return;
    };
    let Some(lab) = up(&Suite::Native, true, plugins::with_faults()) else {
        return;
    };
    // The commands inherit the variable as well. What slurmctld or a node would say is not said.
    let option = "--gpuos-topology=rack";
    let (code, text) = with(&lab, &[], "sbatch", &["-H", option, "--wrap=true"]);
    if symbol == "slurm_spank_init" {
        assert!(text.contains("unrecognized option"), "{text}");
    } else {
        // Slurm itself carries an option whose hooks have failed.
        let checked = !matches!(symbol.as_str(), "init" | "job_submit");
        assert_eq!(code, i32::from(checked), "{text}");
    }
    lab.run("scancel", &["-u", "root"]).expect("scancel");
    let job = lab
        .sbatch(&["--gres=gpu:2"], "srun true; echo gpus=$GPUOS_GPUS end")
        .expect("submits");
    let text = lab.wait_output(job, "end", LIMIT).expect("runs");
    let told = !symbol.starts_with("slurm_spank_init");
    assert_eq!(text.contains("gpus=0"), told, "{text}");
    let job = lab.sbatch(&["-H"], "true").expect("submits");
    let job = format!("jobid={job}");
    lab.run("scontrol", &["update", &job, "numnodes=1"])
        .expect("updates");
    assert!(lab.slurmctld_pid().is_some());
    if ["init", "job_submit", "job_modify"].contains(&symbol.as_str()) {
        let line = format!("internal error in {symbol}");
        assert!(
            lab.slurmctld_log().contains(&line),
            "{}",
            lab.slurmctld_log()
        );
    }
    no_node_is_drained(&lab);
    lab.down().expect("goes down");
}
