//! Jobs that say by Slurm's variables that they have GPUs which slurmctld has not given to them, and ask root's daemon for something
//! to be done with these.

use std::fs;
use std::time::{Duration, Instant};

use gpuos_tests::slices;

use crate::attempt::{Attempt, attempt, ensure, judge};
use crate::stage::Stage;
use crate::users::MALLORY;

/// SECURITY.md's name of the input.
const INPUT: &str = "Variables of the environment";

/// All whole GPUs of a node.
const ALL: &str = "0,1,2,3,4,5,6";
/// Where Slurm says which GPUs a job and a step have.
const NAMES: [&str; 3] = ["SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_GPUS_ON_NODE"];
/// How long a node is watched on which nothing is to happen: the rule for jobs that hang waits 4 s here.
const QUIET: Duration = Duration::from_secs(9);

/// What a job does. `{ask}` are the options of its step.
const STEP: &str = "echo batch=$CUDA_MPS_PIPE_DIRECTORY; \
    srun -n1 {ask} /bin/sh -c 'echo step=$SLURM_STEP_GPUS; echo mps=$CUDA_MPS_PIPE_DIRECTORY; sleep 60'; sleep 60";
/// The same, where the variables are set in the script, in which Slurm may have removed them.
const EXPORTS: &str =
    "export SLURM_JOB_GPUS=0,1,2,3,4,5,6 SLURM_STEP_GPUS=0,1,2,3,4,5,6 SLURM_GPUS_ON_NODE=7\n";

/// The attempts.
pub fn all() -> Vec<Attempt> {
    let holds = "no GPU but the job's own gets a power limit, clocks or an MPS daemon";
    let mut all = Vec::new();
    // Each has a limit of its own, by which it is known on the GPUs, and may have it on so many.
    for (watts, own, name, options, step) in [
        (211, 0, "by a batch script", &["{power}"][..], ""),
        (212, 0, "by a step", &[], "{power}"),
        (
            213,
            0,
            "by a step with clocks",
            &[],
            "{power} --gpuos-clocks=1213",
        ),
        (
            214,
            1,
            "with one GPU of their own",
            &["--gres=gpu:1", "{power}"],
            "{power}",
        ),
        (
            215,
            1,
            "by a step without GPUs",
            &["--gres=gpu:1"],
            "--gres=none {power}",
        ),
        (
            216,
            0,
            "by a task of an array",
            &["--array=3", "{power}"],
            "{power}",
        ),
        (
            217,
            0,
            "by a file",
            &["--export-file={file}", "{power}"],
            "{power}",
        ),
        (
            218,
            0,
            "for MPS",
            &["--gpuos-mps=on"],
            "--gpuos-mps=on {power}",
        ),
    ] {
        let name = format!("GPUs of others by Slurm's variables, {name}");
        let made = attempt(INPUT, name, holds, move |stage| {
            let power = format!("--gpuos-power={watts}W");
            let file = stage.work(&format!("exports-{watts}"));
            let lines = NAMES.map(|name| format!("{name}={ALL}\0"));
            let rest = "PATH=/usr/local/bin:/usr/bin:/bin\0";
            fs::write(&file, lines.concat() + rest).expect("a file");
            let options: Vec<String> = ["-w", "n3"]
                .iter()
                .chain(options)
                .map(|one| {
                    let one = one.replace("{power}", &power);
                    one.replace("{file}", &file.display().to_string())
                })
                .collect();
            let options: Vec<&str> = options.iter().map(String::as_str).collect();
            let script =
                EXPORTS.to_owned() + &STEP.replace("{ask}", &step.replace("{power}", &power));
            let job = stage.sbatch_with(claims(stage, "sbatch"), &options, &script);
            judge(move |stage| {
                let job = job?;
                stage.told(job, "step=")?;
                is_set(stage, "n3", watts, own)?;
                for start in ["batch=", "mps="] {
                    let told = stage.told(job, start)?;
                    ensure(told.is_empty(), || format!("{start}{told}"))?;
                }
                let own = stage.runtime("n3").join(format!("mps/{job}"));
                ensure(!own.exists(), || format!("{} is there", own.display()))
            })
        });
        all.push(match watts {
            212 | 218 => made.short(),
            _ => made,
        });
    }
    for (watts, name) in [(221, "srun"), (222, "salloc")] {
        let of = format!("GPUs of others by Slurm's variables, by {name}");
        all.push(attempt(INPUT, of, holds, move |stage| {
            let file = stage.work(&format!("{name}.out"));
            let out = fs::File::create(&file).expect("a file");
            let mut command = claims(stage, name);
            command.args(["-w", "n3", "-n1", &format!("--gpuos-power={watts}W")]);
            let step = "echo step=$SLURM_STEP_GPUS; sleep 60";
            match name {
                "srun" => command.args(["sh", "-c", step]),
                _ => command.args(["srun", "-n1", "sh", "-c", step]),
            };
            let errors = out.try_clone().expect("the same file");
            stage.keep(command.stdout(out).stderr(errors).spawn().expect("it runs"));
            judge(move |stage| {
                let text = || fs::read_to_string(&file).unwrap_or_default();
                let says = || text().contains("step=").then_some(());
                stage.try_until(says).ok_or_else(text)?;
                is_set(stage, "n3", watts, 0)
            })
        }));
    }
    let hers = "the GPU of another's job keeps what is set for that, and the attacker sets nothing";
    all.push(
        attempt(
            INPUT,
            "GPUs of a job with a power limit by Slurm's variables",
            hers,
            |stage| {
                let step = STEP.replace("{ask}", "--gpuos-power=223W");
                let command = claims(stage, "sbatch");
                let options = ["-w", "n1", "--gpuos-power=223W"];
                let job = stage.sbatch_with(command, &options, &(EXPORTS.to_owned() + &step));
                judge(move |stage| {
                    stage.told(job?, "step=")?;
                    is_set(stage, "n1", 223, 0)?;
                    is_set(stage, "n1", 300, 1)
                })
            },
        )
        .short(),
    );
    let quiet =
        "the GPUs stay in service, nobody is told to have them, and the job is not requeued";
    all.push(attempt(
        INPUT,
        "GPUs of others by Slurm's variables, to be watched",
        quiet,
        |stage| {
            // It has to run when it is looked at.
            let step = STEP
                .replace("{ask}", "--gpuos-watch=on")
                .replace("sleep 60", "sleep 3600");
            let command = claims(stage, "sbatch");
            let options = ["-w", "n3", "--requeue", "--gpuos-watch=on"];
            let job = stage.sbatch_with(command, &options, &(EXPORTS.to_owned() + &step));
            judge(move |stage| {
                let job = job?;
                stage.told(job, "step=")?;
                let end = Instant::now() + QUIET;
                while Instant::now() < end {
                    ensure(!stage.is_touched(job), || {
                        format!("{:?}", stage.jobs(&[job]))
                    })?;
                    let status = stage.status("n3")?;
                    let told = status.jobs.iter().any(|one| one.job == job.into());
                    let on = status.gpus.iter().any(|gpu| gpu.jobs.contains(&job.into()));
                    ensure(!told && !on, || format!("{:?}", status.jobs))?;
                    std::thread::sleep(Duration::from_millis(500));
                }
                Ok(())
            })
        },
    ));
    all
}

/// A command of the attacker's with the variables in its environment.
fn claims(stage: &Stage, name: &str) -> std::process::Command {
    let mut command = stage.command(MALLORY, name);
    for name in NAMES {
        command.env(name, ALL);
    }
    command
}

/// `Ok` where no more GPUs of a node have this power limit than that, and clocks of that number.
fn is_set(stage: &Stage, node: &str, watts: u32, own: usize) -> Result<(), String> {
    let shown = slices::nvml(&stage.cluster, node, &["show"]);
    let limit = format!("limit {watts} W");
    let clocks = format!("clocks {0}-{0} MHz", 1000 + watts);
    let count = shown.matches(&limit).count();
    ensure(count <= own && !shown.contains(&clocks), || {
        format!("{count} GPUs have {limit}: {shown}")
    })?;
    let least = if watts == 300 { own } else { 0 };
    ensure(count >= least, || {
        format!("{count} GPUs have {limit}: {shown}")
    })
}
