//! Where checkpoints of jobs are looked for: the job's record, and the list of a node.

use crate::attempt::{Attempt, Judge, attempt, ensure, judge};
use crate::stage::Stage;
use crate::users::MALLORY;

const TEXTS: &str = "Texts of a job";
const FOLDER: &str = "Folders of jobs with checkpoints";
/// The node of the victim's job with checkpoints.
const NODE: &str = "n5";

/// A record as gpuos_mover writes it, which says that nothing was made.
const FORGED: &str = "gpuos checkpoints: since=0; run=0 nodes=n99 begun";

/// The attempts.
pub fn all() -> Vec<Attempt> {
    let holds = "the record in which the movers note where checkpoints are cannot be written by users, nor by a text that looks like it";
    let mut all = vec![
        attempt(TEXTS, "writes where checkpoints of a job of another are looked for", holds, |stage: &Stage| -> Judge {
            let victim = stage.victims.saved;
            let refused = update(stage, victim);
            judge(move |stage| {
                ensure(refused, || "scontrol took it".into())?;
                ensure(record(stage, victim).is_some_and(|it| !it.contains("n99")), || stage.cluster.show(victim))
            })
        })
        .short(),
        attempt(TEXTS, "writes where checkpoints of his own job are looked for, by comments, names and scontrol", holds, |stage: &Stage| -> Judge {
            let comment = format!("--comment=x\n   AdminComment={FORGED}");
            let name = format!("-Jx AdminComment={FORGED}");
            let options = ["-w", NODE, "--gpuos-checkpoint=10m,l2=single", &comment, &name];
            let job = stage.sbatch(MALLORY, &options, "echo in=; sleep 60");
            // job_submit_gpuos refuses control characters; without them the text is as good.
            let job = job.or_else(|_| {
                let options = ["-w", NODE, "--gpuos-checkpoint=10m,l2=single", &name];
                stage.sbatch(MALLORY, &options, "echo in=; sleep 60")
            });
            judge(move |stage| {
                let job = job?;
                stage.told(job, "in=")?;
                ensure(update(stage, job), || "scontrol took it".into())?;
                let noted = stage.try_until(|| record(stage, job).filter(|it| it.contains(NODE)));
                ensure(noted.is_some_and(|it| !it.contains("n99")), || stage.cluster.show(job))
            })
        })
        .short(),
    ];
    all.push(attempt(
        FOLDER,
        "twenty jobs of one user take the places of a node's list of jobs with checkpoints",
        "users take turns, so that the victim's job is named, and a list that leaves jobs out says so",
        |stage: &Stage| -> Judge {
            let script = "d=$GPUOS_CHECKPOINT_DIR; : >$d/ranks/0.1.7; while [ ! -e $d/request ]; do sleep 0.1; done; read n w <$d/request; \
                echo mine >$d/$n/files/rank-0-of-1/f; touch $d/$n/ready.0; i=0; while [ $i -lt 300 ] && [ ! -e $d/commit ]; do sleep 0.1; i=$((i+1)); done; \
                echo end=$(cat $d/commit)";
            let options = ["-w", NODE, "-a0-19", "--gpuos-checkpoint=1s,l2=single", "-s"];
            let crowd = stage.sbatch(MALLORY, &options, script);
            judge(move |stage| {
                crowd?;
                let victim = format!("{}:", stage.victims.saved);
                let named = stage.try_until(|| {
                    let list = list(stage)?;
                    (list.split(',').count() >= 16).then_some(list)
                });
                // Not all of them may have come to make one in the time.
                let list = named.or_else(|| list(stage)).unwrap_or_default();
                let has = list.split(',').any(|entry| entry.starts_with(&victim));
                let is_cut = list.split(',').count() <= 16 || list.ends_with("more");
                ensure(has && is_cut, || list.clone())
            })
        },
    ));
    all
}

/// Whether Slurm refuses that a user writes the record of a job.
fn update(stage: &Stage, job: u32) -> bool {
    let mut command = stage.command(MALLORY, "scontrol");
    command.args([
        "update",
        &format!("JobId={job}"),
        &format!("AdminComment={FORGED}"),
    ]);
    let status = command.output().map(|output| output.status);
    status.is_ok_and(|status| !status.success())
}

/// What movers have noted of a job, as its record has it.
fn record(stage: &Stage, job: u32) -> Option<String> {
    let text = stage.cluster.show(job);
    let line = text
        .lines()
        .find_map(|line| line.trim_start().strip_prefix("AdminComment="))?;
    line.starts_with("gpuos checkpoints: ")
        .then(|| line.to_owned())
}

/// The jobs that the node names.
fn list(stage: &Stage) -> Option<String> {
    let text = stage.cluster.run("scontrol", &["show", "node", NODE]);
    let (_, list) = text.split_once(" ckpt=")?;
    let end = list.find([' ', ']'])?;
    Some(list[..end].to_owned())
}
