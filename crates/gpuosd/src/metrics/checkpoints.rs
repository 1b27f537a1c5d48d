//! Checkpoints of the node's jobs: what gpuos_mover, a daemon of its own, tells when it is asked, and how Prometheus reads it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use gpuos_core::health::held::HeldJob;
use gpuos_core::wire::{
    CheckpointFigures, CheckpointJob, CheckpointPhase, CheckpointRecoveries, CheckpointRequest,
    Reply, Request,
};
use gpuos_host::socket::Client;
use prometheus_client::encoding::DescriptorEncoder;

use super::Snapshot;
use super::text::{Family, Head, Labels, family, gauge};

/// It is asked so often: an answer costs it a look at the names and sizes of what it keeps.
const EVERY: Duration = Duration::from_secs(15);
/// It may take so long.
const PATIENCE: Duration = Duration::from_secs(5);

/// What gpuos_mover of this node told last.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Checkpoints {
    /// No checkpoints are made on this site, or nobody has been asked yet.
    #[default]
    Unasked,
    /// It does not answer.
    Silent,
    /// Its figures.
    Told(Arc<CheckpointFigures>),
}

/// A thread that asks, until this is dropped.
#[derive(Debug)]
pub struct Asker {
    told: Arc<Mutex<Checkpoints>>,
    _stop: Sender<()>,
}

impl Asker {
    /// Starts the thread; `socket` is that of gpuos_mover.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn start(socket: PathBuf) -> std::io::Result<Asker> {
        let told = Arc::new(Mutex::default());
        let (stop, stopped) = channel();
        let own = Arc::clone(&told);
        let run = move || {
            loop {
                let new = ask(&socket).map_or(Checkpoints::Silent, Checkpoints::Told);
                *own.lock().unwrap_or_else(PoisonError::into_inner) = new;
                match stopped.recv_timeout(EVERY) {
                    Err(RecvTimeoutError::Timeout) => {}
                    Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        };
        let thread = thread::Builder::new().name("checkpoints".into());
        thread.spawn(run)?;
        Ok(Asker { told, _stop: stop })
    }

    /// What it told last.
    pub fn told(&self) -> Checkpoints {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.clone()
    }
}

/// Jobs of which checkpoints lie here, as far as the node names them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NamedJobs {
    /// By Slurm's number, and the GiB that they take, rounded up.
    pub jobs: BTreeMap<u32, u32>,
    /// And of others.
    pub more: bool,
}

/// What gpuos_mover told of them. `None`: it is not known.
pub(super) fn held(told: &Checkpoints) -> Option<NamedJobs> {
    let Checkpoints::Told(figures) = told else {
        return None;
    };
    let kept = figures.kept.as_ref()?.iter();
    let jobs = kept.filter_map(|(job, bytes)| Some(HeldJob::of(job.number()?, *bytes)));
    Some(NamedJobs {
        jobs: jobs.map(|held| (held.job, held.gib)).collect(),
        more: figures.kept_more,
    })
}

fn ask(socket: &Path) -> Option<Arc<CheckpointFigures>> {
    let mut client = Client::connect(socket, PATIENCE).ok()?;
    let request = Request::Checkpoint {
        what: CheckpointRequest::Figures,
    };
    match client.ask(&request) {
        Ok(Reply::CheckpointFigures { figures }) => Some(figures.into()),
        _ => None,
    }
}

/// Phases and their labels; what has ended here is none of the node's running jobs.
const PHASES: [(CheckpointPhase, &str); 4] = [
    (CheckpointPhase::Gathering, "gathering"),
    (CheckpointPhase::Rebuilding, "rebuilding"),
    (CheckpointPhase::Running, "running"),
    (CheckpointPhase::Failed, "failed"),
];

const fn of_job<'a>(name: &'a str, help: &'a str) -> Head<'a> {
    Head {
        name,
        unit: "seconds",
        help,
        counter: false,
    }
}

/// A figure of a job.
type Get = fn(&CheckpointJob) -> Option<f64>;

fn seconds(ms: Option<u64>) -> Option<f64> {
    ms.map(|ms| ms as f64 / 1000.0)
}

/// What the node that leads a job knows of it.
const OF_JOBS: [(Head<'_>, Get); 5] = [
    (
        of_job(
            "gpuos_checkpoint_interval",
            "Time between two checkpoints of the job, on the node that leads it",
        ),
        |job| job.interval_s.map(|s| s as f64),
    ),
    (
        of_job(
            "gpuos_checkpoint_unsaved",
            "Time since a checkpoint of this run of the job was committed, or since the run came to gpuos_mover: what a lost node would cost; on the node that leads it",
        ),
        |job| job.unsaved_s.map(|s| s as f64),
    ),
    (
        of_job(
            "gpuos_checkpoint_pause",
            "Time that the program took to save for the newest checkpoint of this run",
        ),
        |job| seconds(job.pause_ms),
    ),
    (
        of_job(
            "gpuos_checkpoint_store",
            "Time from there to the commit, in which the program goes on",
        ),
        |job| seconds(job.store_ms),
    ),
    (
        Head {
            unit: "",
            ..of_job(
                "gpuos_checkpoint_failed_in_row",
                "Checkpoints of the job in a row that came to nothing since the newest of this run: its program saves, and would begin again from an older one; on the node that leads it",
            )
        },
        |job| job.leads.then_some(f64::from(job.failed_in_row)),
    ),
];

/// Whether gpuos_mover answers, and what it told. Without its answer nothing more is told; where no checkpoints are made, nothing at all.
pub(super) fn encode(
    snapshot: &Snapshot,
    node: &Labels,
    encoder: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    let none = CheckpointFigures::default();
    let (up, figures) = match &snapshot.checkpoints {
        Checkpoints::Unasked => return Ok(()),
        Checkpoints::Silent => (false, &none),
        Checkpoints::Told(figures) => (true, &**figures),
    };
    let head = gauge(
        "gpuos_checkpoint_mover_up",
        "1 while gpuos_mover answers on this node, where gpuos.toml has checkpoints made",
    );
    family(encoder, &head, |family| {
        family.value(node, if up { 1.0 } else { 0.0 })
    })?;
    if !up {
        return Ok(());
    }
    let mut phases: BTreeMap<&str, u64> = PHASES.iter().map(|(_, name)| (*name, 0)).collect();
    for job in &figures.jobs {
        let known = PHASES.iter().find(|(phase, _)| *phase == job.phase);
        if let Some(count) = known.and_then(|(_, name)| phases.get_mut(name)) {
            *count += 1;
        }
    }
    let head = gauge(
        "gpuos_checkpoint_jobs",
        "Jobs with checkpoints on this node, by how far they are; in phase failed no checkpoints are made for this run",
    );
    family(encoder, &head, |family| {
        phases
            .iter()
            .try_for_each(|(phase, count)| family.value(&with(node, "phase", phase), *count as f64))
    })?;
    let head = Head {
        counter: true,
        ..gauge(
            "gpuos_checkpoints",
            "Checkpoints that were committed, and that came to nothing, since gpuos_mover started; each counts on the node that leads its job",
        )
    };
    family(encoder, &head, |family| {
        let results = [("ok", figures.made), ("failed", figures.failed)];
        results.iter().try_for_each(|(result, count)| {
            family.value(&with(node, "result", result), *count as f64)
        })
    })?;
    let head = Head {
        counter: true,
        ..gauge(
            "gpuos_checkpoint_restores",
            "Runs of jobs that went on from a checkpoint, since gpuos_mover started; each counts on the node that leads its job",
        )
    };
    family(encoder, &head, |family| {
        family.value(node, figures.restored as f64)
    })?;
    if let Some(recoveries) = &figures.recoveries {
        recovered(recoveries, node, encoder)?;
    }
    let (free, total) = figures.space.unzip();
    let bytes = [
        (
            "gpuos_checkpoint_stored",
            "What checkpoints take on the node's disk, those of other nodes that are kept here too",
            figures.stored,
        ),
        (
            "gpuos_checkpoint_disk_free",
            "What can still be written to the file system of the store",
            free,
        ),
        (
            "gpuos_checkpoint_disk",
            "Size of the file system of the store",
            total,
        ),
    ];
    for (name, help, value) in bytes {
        let head = Head {
            unit: "bytes",
            ..gauge(name, help)
        };
        family(encoder, &head, |family| match value {
            Some(value) => family.value(node, value as f64),
            None => Ok(()),
        })?;
    }
    if snapshot.nameless {
        return Ok(());
    }
    OF_JOBS.iter().try_for_each(|(head, get)| {
        family(encoder, head, |family| jobs(family, figures, node, *get))
    })
}

/// The parts of a recovery, in the order of its figures.
const PARTS: [&str; 4] = ["detection", "requeue", "rebuild", "load"];

/// How long jobs stood still until they went on from a checkpoint, what work they lost, and what drills came to.
fn recovered(
    told: &CheckpointRecoveries,
    node: &Labels,
    encoder: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    let counter = |name, unit, help| Head {
        name,
        unit,
        help,
        counter: true,
    };
    let head = counter(
        "gpuos_checkpoint_recoveries",
        "",
        "Restarts from a checkpoint that were measured since gpuos_mover started; each counts on the node that leads its job",
    );
    family(encoder, &head, |family| {
        family.value(node, told.count as f64)
    })?;
    let head = counter(
        "gpuos_checkpoint_recovery",
        "seconds",
        "Time that these took, by part: until the loss of a node was found, until the job had its nodes again, until the checkpoint was whole there, until the ranks had their files",
    );
    family(encoder, &head, |family| {
        let mut parts = PARTS.iter().zip(told.parts_ms);
        parts.try_for_each(|(part, ms)| family.value(&with(node, "part", part), ms as f64 / 1000.0))
    })?;
    let head = counter(
        "gpuos_checkpoint_lost_work",
        "seconds",
        "Work that was done again after these: from the checkpoint to the end of the run before",
    );
    family(encoder, &head, |family| {
        family.value(node, told.lost_s as f64)
    })?;
    let (well, failed) = told.drills;
    let head = counter(
        "gpuos_checkpoint_drills",
        "",
        "Drills since gpuos_mover started in which the checkpoint was restored, and in which it was not",
    );
    family(encoder, &head, |family| {
        let results = [("ok", well), ("failed", failed)];
        let mut results = results.iter();
        results.try_for_each(|(result, count)| {
            family.value(&with(node, "result", result), *count as f64)
        })
    })?;
    let head = Head {
        unit: "seconds",
        ..gauge(
            "gpuos_checkpoint_last_drill_timestamp",
            "When the last drill of each result was over, in seconds since 1970; none: no series",
        )
    };
    family(encoder, &head, |family| {
        let last = [("ok", told.last_well), ("failed", told.last_failed)];
        let mut last = last
            .iter()
            .filter_map(|(result, at)| Some((result, (*at)?)));
        last.try_for_each(|(result, at)| family.value(&with(node, "result", result), at as f64))
    })
}

fn jobs(
    family: &mut Family<'_>,
    figures: &CheckpointFigures,
    node: &Labels,
    get: Get,
) -> fmt::Result {
    let known = figures.jobs.iter().filter_map(|job| Some((job, get(job)?)));
    let mut known = known.filter(|(job, _)| job.leads);
    known.try_for_each(|(job, value)| {
        family.value(&with(node, "jobid", &job.job.to_string()), value)
    })
}

fn with(node: &Labels, label: &'static str, value: &str) -> Labels {
    let mut labels = node.clone();
    labels.push((label, value.into()));
    labels
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Instant;

    use gpuos_core::wire::{Happening, Peer};
    use gpuos_host::socket::{Limits, MOVER, RequestHandler, Server, bind};

    use super::*;

    struct Mover;

    impl RequestHandler for Mover {
        fn who(&self) -> (String, String) {
            ("0".into(), "n1".into())
        }

        fn ask(&self, _: Peer, request: Request) -> Reply {
            let asked = Request::Checkpoint {
                what: CheckpointRequest::Figures,
            };
            assert_eq!(request, asked);
            let figures = CheckpointFigures {
                made: 7,
                ..CheckpointFigures::default()
            };
            Reply::CheckpointFigures {
                figures: Box::new(figures),
            }
        }

        fn watch(&self, _: Peer) -> Receiver<Happening> {
            channel().1
        }
    }

    fn first(socket: PathBuf) -> Checkpoints {
        let asker = Asker::start(socket).unwrap();
        let begun = Instant::now();
        while asker.told() == Checkpoints::Unasked && begun.elapsed() < Duration::from_secs(60) {
            thread::sleep(Duration::from_millis(5));
        }
        asker.told()
    }

    #[test]
    fn what_lies_here_is_told_in_gib_and_only_of_a_mover_that_counts_it() {
        let told = |kept| {
            Checkpoints::Told(Arc::new(CheckpointFigures {
                kept,
                ..CheckpointFigures::default()
            }))
        };
        let job = |id: &str| id.parse().unwrap();
        let kept = vec![
            (job("900"), (1 << 30) + 1),
            (job("7"), 1),
            (job("9"), u64::MAX),
            (job("1.server"), 5),
        ];
        assert_eq!(
            held(&told(Some(kept))),
            Some(NamedJobs {
                jobs: [(7, 1), (9, u32::MAX), (900, 2)].into(),
                more: false,
            })
        );
        assert_eq!(held(&told(Some(Vec::new()))), Some(NamedJobs::default()));
        for silent in [told(None), Checkpoints::Silent, Checkpoints::Unasked] {
            assert_eq!(held(&silent), None);
        }
    }

    #[test]
    fn the_mover_of_the_node_is_asked_and_one_that_is_not_there_is_silent() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join(MOVER);
        assert_eq!(first(socket.clone()), Checkpoints::Silent);
        let listener = bind(&socket).unwrap();
        Server::start(listener, Arc::new(Mover), Limits::default()).unwrap();
        let Checkpoints::Told(figures) = first(socket) else {
            panic!("it tells");
        };
        assert_eq!(figures.made, 7);
    }
}
