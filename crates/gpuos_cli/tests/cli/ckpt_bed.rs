//! A gpuos_mover that plays a part, and jobs for it to tell of.

use std::collections::VecDeque;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use gpuos_core::job::JobId;
use gpuos_core::wire::{
    CheckpointFigures, CheckpointForm, CheckpointJob, CheckpointKept, CheckpointMaking,
    CheckpointPhase, CheckpointRecovery, CheckpointRequest, Code, Happening, MoverSettings, Peer,
    Reply, Request,
};
use gpuos_host::socket::{Limits, MOVER, RequestHandler, Server, bind};

use crate::site::Site;

/// A user that no machine knows.
pub const NOBODY: u32 = 4_000_000_001;

/// What a gpuos_mover does.
#[derive(Default)]
pub struct Part {
    /// What it tells of its jobs at each look; the last one stays.
    pub looks: VecDeque<Vec<CheckpointJob>>,
    /// The same from the moment on when a checkpoint is asked for.
    pub after_now: VecDeque<Vec<CheckpointJob>>,
    /// What does not hold.
    pub faults: Vec<String>,
    /// Why it refuses all but to tell.
    pub refuses: Option<String>,
    /// What it has measured.
    pub recoveries: Vec<CheckpointRecovery>,
    /// It is gone once a checkpoint is asked for.
    pub ends: bool,
    /// What it runs with.
    pub settings: Option<MoverSettings>,
}

struct Mover {
    node: String,
    socket: PathBuf,
    part: Mutex<Part>,
}

impl RequestHandler for Mover {
    fn who(&self) -> (String, String) {
        ("0.1.0".into(), self.node.clone())
    }

    fn user_of(&self, job: &JobId) -> Option<u32> {
        let part = self.part.lock().unwrap();
        let mut jobs = part.looks.front()?.iter();
        jobs.find(|told| told.job == *job).map(|told| told.uid)
    }

    fn ask(&self, peer: Peer, request: Request) -> Reply {
        let Request::Checkpoint { what } = request else {
            panic!("{request:?}");
        };
        let mut part = self.part.lock().unwrap();
        if let (Some(why), false) = (
            &part.refuses,
            matches!(what, CheckpointRequest::List { .. }),
        ) {
            return Reply::Refused {
                code: Code::Failed,
                message: why.clone(),
            };
        }
        let message = |text: String| Reply::Done { message: text };
        match what {
            CheckpointRequest::List { job } => {
                let looks = &mut part.looks;
                let now = match looks.len() {
                    0 | 1 => looks.front().cloned().unwrap_or_default(),
                    _ => looks.pop_front().unwrap(),
                };
                let own = std::fs::metadata(&self.socket).map(|socket| socket.uid());
                let root = peer.uid == 0 || own.is_ok_and(|own| own == peer.uid);
                let meant = |told: &CheckpointJob| {
                    let named = job.as_ref().is_none_or(|job| *job == told.job);
                    named && (root || told.uid == peer.uid)
                };
                let jobs = now.into_iter().filter(meant).collect();
                Reply::Checkpoints { jobs }
            }
            CheckpointRequest::Now { job } => {
                if part.ends {
                    std::fs::remove_file(&self.socket).unwrap();
                }
                let after = std::mem::take(&mut part.after_now);
                if !after.is_empty() {
                    part.looks = after;
                }
                message(format!("job {job} is asked for a checkpoint"))
            }
            CheckpointRequest::Report { since, job } => {
                let mut recoveries = part.recoveries.clone();
                recoveries.retain(|one| {
                    one.time >= since && job.as_ref().is_none_or(|job| *job == one.job)
                });
                Reply::CheckpointReport { recoveries }
            }
            CheckpointRequest::Verify { job } => {
                let mut jobs = part.looks.front().cloned().unwrap_or_default();
                jobs.retain(|told| told.job == job);
                jobs[0].faults = part.faults.clone();
                Reply::Checkpoints { jobs }
            }
            CheckpointRequest::Choose { job, number } => message(format!(
                "the next run of job {job} begins from checkpoint {number}"
            )),
            CheckpointRequest::Requeue { job } => {
                message(format!("pbs_mom is told that job {job} has to run again"))
            }
            CheckpointRequest::Prune { job, .. } => message(format!(
                "{}: 2 checkpoints of job {job} are removed",
                self.node
            )),
            CheckpointRequest::Figures => Reply::CheckpointFigures {
                figures: Box::new(CheckpointFigures {
                    settings: part.settings.clone(),
                    jobs: part.looks.front().cloned().unwrap_or_default(),
                    ..CheckpointFigures::default()
                }),
            },
            CheckpointRequest::Step { .. } => panic!("{what:?}"),
        }
    }

    fn watch(&self, _peer: Peer) -> Receiver<Happening> {
        channel().1
    }
}

/// Starts one in this folder of the site.
pub fn start(site: &Site, dir: &str, node: &str, part: Part) {
    let dir = site.path(dir);
    std::fs::create_dir_all(&dir).unwrap();
    let socket = Path::new(&dir).join(MOVER);
    let listener = bind(&socket).unwrap();
    let mover = Arc::new(Mover {
        node: node.into(),
        socket,
        part: Mutex::new(part),
    });
    Server::start(listener, mover, Limits::default()).unwrap();
}

/// One of node n1; the flag that names its socket.
pub fn mover(site: &Site, part: Part) -> String {
    start(site, "run", "n1", part);
    format!("--runtime-dir={}", site.path("run"))
}

/// Those of a lab; the flag that names their sockets.
pub fn lab(site: &Site, parts: Vec<(&str, Part)>) -> String {
    for (node, part) in parts {
        start(site, &format!("gpuosd.{node}"), node, part);
    }
    format!("--runtime-dir={}", site.path("gpuosd.%n"))
}

pub fn telling(jobs: &[CheckpointJob]) -> Part {
    Part {
        looks: [jobs.to_vec()].into(),
        ..Part::default()
    }
}

/// A checkpoint, so many days and a half old.
pub fn kept(number: u32, committed: bool, days: u64) -> CheckpointKept {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    CheckpointKept {
        number,
        nodes: Some(2),
        ranks: Some(2),
        attempt: "00112233445566ff".into(),
        committed,
        time: now.as_secs() - days * 86_400 - 43_200,
        files: 4,
        bytes: 3 << 29,
        stored: 1 << 31,
        form: None,
        took_ms: committed.then_some(2_540),
        refused: None,
    }
}

pub fn job(number: u32, phase: CheckpointPhase) -> CheckpointJob {
    CheckpointJob {
        job: number.into(),
        uid: NOBODY,
        phase,
        nodes: vec!["n1".into(), "n2".into()],
        leads: true,
        scheme: "partner".into(),
        losses: 1,
        ..CheckpointJob::default()
    }
}

/// A job in the middle of its second run.
pub fn whole() -> CheckpointJob {
    let coded = CheckpointKept {
        form: Some(CheckpointForm {
            plain: 3 << 29,
            kept: 3 << 28,
            compression: Some("zstd".into()),
            encryption: Some("AES-256-CTR".into()),
            encrypted: 3 << 27,
        }),
        ..kept(15, true, 2)
    };
    CheckpointJob {
        run: 1,
        interval_s: Some(600),
        interval_why: "every 10 min, which is Daly's optimum".into(),
        unsaved_s: Some(42),
        pause_ms: Some(540),
        store_ms: Some(2_000),
        ranks: vec![0, 1],
        size: Some(4),
        restored: Some(12),
        passed_over: vec!["checkpoint 13: the parts of 2 nodes are gone".into()],
        making: Some(CheckpointMaking {
            number: 16,
            reason: "interval".into(),
            stage: "program".into(),
            for_ms: 12_340,
            waits_for: vec![1],
        }),
        checkpoints: vec![kept(14, true, 3), coded],
        failures: vec!["checkpoint 11: no room on n2".into()],
        ..job(17, CheckpointPhase::Running)
    }
}

/// The same on its other node.
pub fn other() -> CheckpointJob {
    CheckpointJob {
        leads: false,
        interval_s: None,
        interval_why: String::new(),
        unsaved_s: None,
        pause_ms: None,
        store_ms: None,
        ranks: vec![2, 3],
        making: Some(CheckpointMaking {
            waits_for: vec![2, 3],
            ..whole().making.unwrap()
        }),
        checkpoints: vec![kept(14, true, 3), kept(15, false, 2)],
        ..whole()
    }
}

pub fn with(committed: &[u32], making: Option<u32>, failures: &[&str]) -> Vec<CheckpointJob> {
    let making = making.map(|number| CheckpointMaking {
        number,
        reason: "asked".into(),
        stage: "store".into(),
        ..CheckpointMaking::default()
    });
    vec![CheckpointJob {
        checkpoints: committed
            .iter()
            .map(|number| kept(*number, true, 1))
            .collect(),
        making,
        failures: failures.iter().map(|why| why.to_string()).collect(),
        ..job(17, CheckpointPhase::Running)
    }]
}

/// What the forms of the JSON are held against: the flag of a lab whose second node has faults.
pub fn forms(site: &Site) -> String {
    let faulty = Part {
        faults: vec!["checkpoint 14: extent 7 does not match its digest".into()],
        ..telling(&[other()])
    };
    lab(site, vec![("n1", telling(&[whole()])), ("n2", faulty)])
}

/// The same for a checkpoint that is asked for and made.
pub fn made(site: &Site) -> String {
    let after = [with(&[4], Some(5), &[]), with(&[4, 5], None, &[])];
    mover(
        site,
        Part {
            after_now: after.into(),
            ..telling(&with(&[4], None, &[]))
        },
    )
}

/// The same for one that fails.
pub fn failing(site: &Site) -> String {
    let after = [
        with(&[4], Some(5), &[]),
        with(&[4], None, &["checkpoint 5: no room on n2"]),
    ];
    mover(
        site,
        Part {
            after_now: after.into(),
            ..telling(&with(&[4], None, &[]))
        },
    )
}
