//! A gpuos_mover of which gpuosd hears more each time that it asks: so there is something to count, and something in each state.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{SystemTime, UNIX_EPOCH};

use gpuos_core::wire::{
    CheckpointFigures, CheckpointJob, CheckpointPhase, CheckpointRecoveries, CheckpointRequest,
    Code, Happening, Peer, Reply, Request,
};
use gpuos_host::socket::{Limits, MOVER, RequestHandler, Server, bind};

struct Told {
    times: AtomicU64,
    silent: Arc<AtomicBool>,
}

/// Plays one until the flag that it returns is set: then it answers nothing that can be used.
pub fn play(runtime_dir: &Path) -> Arc<AtomicBool> {
    let silent = Arc::new(AtomicBool::default());
    let told = Told {
        times: AtomicU64::default(),
        silent: Arc::clone(&silent),
    };
    let listener = bind(&runtime_dir.join(MOVER)).unwrap();
    Server::start(listener, Arc::new(told), Limits::default()).unwrap();
    silent
}

impl RequestHandler for Told {
    fn who(&self) -> (String, String) {
        ("0.1.0".into(), "n1".into())
    }

    fn ask(&self, _: Peer, request: Request) -> Reply {
        let what = CheckpointRequest::Figures;
        assert_eq!(request, Request::Checkpoint { what });
        if self.silent.load(Ordering::SeqCst) {
            return Reply::Refused {
                code: Code::Failed,
                message: "it has gone".into(),
            };
        }
        let times = self.times.fetch_add(1, Ordering::SeqCst);
        Reply::CheckpointFigures {
            figures: Box::new(figures(times)),
        }
    }

    fn watch(&self, _: Peer) -> Receiver<Happening> {
        channel().1
    }
}

fn figures(times: u64) -> CheckpointFigures {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let now = now.as_secs();
    let job = |id: &str, phase| CheckpointJob {
        job: id.parse().unwrap(),
        phase,
        leads: true,
        interval_s: Some(600),
        unsaved_s: Some(20),
        pause_ms: Some(700),
        store_ms: Some(4000),
        ..CheckpointJob::default()
    };
    CheckpointFigures {
        made: 10 + times,
        failed: 1 + times,
        restored: 2 + times,
        stored: Some(5 << 30),
        space: Some((40 << 30, 100 << 30)),
        kept: Some(vec![("17".parse().unwrap(), 5 << 30)]),
        kept_more: false,
        recoveries: Some(CheckpointRecoveries {
            count: 1 + times,
            parts_ms: [100, 3000, 1800, 90].map(|part| part * (1 + times)),
            lost_s: 3 * (1 + times),
            drills: (3 + times, 1),
            last_well: Some(now - 60),
            last_failed: Some(now - 3600),
        }),
        settings: None,
        jobs: vec![
            job("17", CheckpointPhase::Running),
            job("18", CheckpointPhase::Failed),
        ],
    }
}
