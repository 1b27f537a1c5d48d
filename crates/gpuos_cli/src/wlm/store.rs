//! What the gpuos_mover of this host is told of jobs of Grid Engine with checkpoints: as root, by prolog and epilog.

use std::path::Path;
use std::time::{Duration, Instant};

use gpuos_core::job::JobId;
use gpuos_core::step::StepId;
use gpuos_core::wire::{CHECKPOINT_VARIABLE, CheckpointRequest, MomJob, MomReport, Reply, Request};
use gpuos_host::Machine;
use gpuos_host::gridengine::remember;
use gpuos_host::socket::{Client, ClientError, MOVER};
use gpuos_wlm::gridengine::task::Task;

/// How long gpuos_mover may take to prepare: it answers, whatever it is, within 10 s.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long it is waited for one that is started anew, and how soon it is tried again.
const ABSENCE: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_millis(250);
/// How long the end of a job waits for it.
const GLANCE: Duration = Duration::from_secs(3);

/// A job begins: the folder of its program, and what its user is to know.
///
/// # Errors
/// It has no checkpoints: a sentence.
pub fn begins(
    machine: &dyn Machine,
    mover: &Path,
    (name, task): (&str, &Task),
) -> Result<(String, Vec<String>), String> {
    let job: JobId = name
        .parse()
        .map_err(|_| format!("{name} is no name of a job"))?;
    let (Some(since), Some(asked)) = (task.since, &task.asked) else {
        return Err("sge_qmaster does not say since when the job runs".into());
    };
    let mut client = connect(mover)?;
    let node = client.daemon.1.clone();
    let begins = MomJob {
        job: job.clone(),
        user: task.user.clone(),
        uid: task.uid,
        run: since.into(),
        script_on: node.clone(),
        hosts: node.clone(),
        checkpoints: true,
        may_rerun: Some(task.may_rerun),
        ..MomJob::default()
    };
    let failed = |why: ClientError| match why {
        ClientError::Refused(why) => why,
        _ => "gpuos_mover on this host gave no answer: see its log".into(),
    };
    client.ask(&report(begins)).map_err(failed)?;
    let id = StepId {
        job: job.clone(),
        step: StepId::BATCH,
    };
    let what = CheckpointRequest::Step {
        id,
        uid: task.uid,
        gid: task.gid,
        asked: asked.clone(),
        start: None,
    };
    let reply = client.ask(&Request::Checkpoint { what }).map_err(failed)?;
    let Reply::Prepared {
        mut notes,
        environment,
        failed: None,
    } = reply
    else {
        return Err("gpuos_mover on this host is of another release".into());
    };
    let folder = environment.get(CHECKPOINT_VARIABLE).cloned();
    let folder = folder.filter(|folder| folder.bytes().all(|byte| byte.is_ascii_graphic()));
    if let Err(why) = remember(machine, &job, &node) {
        notes.push(format!(
            "checkpoints that are made here are not looked for from other hosts: {why}"
        ));
    }
    let as_written = |note: String| note.replace("--gpuos-", "-l gpuos_");
    let notes = notes.into_iter().map(as_written).collect();
    Ok((folder.unwrap_or_default(), notes))
}

/// A run of a job has ended here; `None`: it is not known which one. A gpuos_mover that is not told so finds out by itself.
pub fn ends(mover: &Path, name: &str, run: Option<u32>) {
    let (Ok(job), Ok(mut client)) = (name.parse(), Client::connect(&mover.join(MOVER), GLANCE))
    else {
        return;
    };
    let ends = MomJob {
        job,
        run: run.map_or(0, u64::from),
        ..MomJob::default()
    };
    let _ = client.ask(&report(ends));
}

fn report(job: MomJob) -> Request {
    Request::Mom {
        report: Box::new(MomReport {
            jobs: vec![job],
            ..MomReport::default()
        }),
    }
}

/// One that is started anew is waited for.
fn connect(mover: &Path) -> Result<Client, String> {
    let began = Instant::now();
    loop {
        match Client::connect(&mover.join(MOVER), PATIENCE) {
            Ok(client) => return Ok(client),
            Err(ClientError::Refused(why)) => return Err(why),
            Err(ClientError::NoDaemon(_)) if began.elapsed() < ABSENCE => {
                std::thread::sleep(AGAIN);
            }
            Err(ClientError::NoDaemon(_)) => {
                return Err(
                    "gpuos_mover does not run on this host; tell your administrator".into(),
                );
            }
            Err(_) => return Err("gpuos_mover on this host gave no answer: see its log".into()),
        }
    }
}
