//! What the daemon's loop holds of metrics and map files. No call waits for anybody.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpuos_config::gpuos_toml::MetricsConfig;
use gpuos_core::health::{Effect, Event, NodeHealth, Sample};
use gpuos_core::peers::{PeerState, PeerView};
use gpuos_core::wire::MemoryStatus;
use gpuos_model::node_gpu::NodeGpu;
use gpuos_workload::action::{Action, Outcome};

use super::checkpoints::{self, Asker, NamedJobs};
use super::count::{Act, Counts};
use super::job_mapping::Writer;
use super::serve::Server;
use super::{Gpu, Holder, Slice, Snapshot};
use crate::gpus::GpuIdentity;
use crate::isolation;
use crate::jobs::Table;

/// Counts, newest polls, and those who are told.
#[derive(Debug)]
pub struct Keeper {
    counts: Counts,
    polls: BTreeMap<NodeGpu, (Sample, Instant)>,
    /// A poll that is older than this is told no more.
    stale: Duration,
    config: MetricsConfig,
    server: Option<Server>,
    maps: Option<Writer>,
    /// The socket of gpuos_mover, and who asks there.
    mover: PathBuf,
    checkpoints: Option<Asker>,
    /// Whether gpuos.toml was read, which says whether checkpoints are made.
    configured: bool,
    trouble: Option<String>,
}

/// What of the node is not the keeper's own.
#[derive(Debug)]
pub struct Rest<'a> {
    /// Slurm's name of the node.
    pub node: &'a str,
    /// The health rules' state.
    pub health: &'a NodeHealth,
    /// Who the GPUs are.
    pub found: &'a [GpuIdentity],
    /// Those of the pool.
    pub pooled: &'a [GpuIdentity],
    /// Jobs.
    pub jobs: &'a Table,
    /// Processes.
    pub isolation: &'a isolation::keep::Keeper,
    /// Milliseconds since 1970 when the daemon started.
    pub started_ms: u64,
    /// Milliseconds since the library answered.
    pub sampled_ms_ago: Option<u64>,
    /// Actions that wait.
    pub waiting: u32,
    /// The other nodes of this node's jobs.
    pub peers: &'a [PeerView],
    /// See [`Snapshot::slices`].
    pub slices: Vec<Slice>,
    /// See [`Snapshot::memory`].
    pub memory: MemoryStatus,
    /// What keeps the daemon from its work.
    pub troubles: Vec<&'static str>,
}

impl Keeper {
    /// Nothing is told before [`Keeper::set`]. `interval` is that of the polls, `mover` the socket of gpuos_mover.
    pub fn new(interval: Duration, mover: PathBuf) -> Keeper {
        Keeper {
            counts: Counts::default(),
            polls: BTreeMap::new(),
            stale: interval * 3 + Duration::from_secs(5),
            config: MetricsConfig::default(),
            server: None,
            maps: None,
            mover,
            checkpoints: None,
            configured: false,
            trouble: None,
        }
    }

    /// Counts what the health rules ask for.
    pub fn effects(&mut self, effects: &[Effect]) {
        self.counts.effects(effects);
    }

    /// Counts an event that the health rules are told.
    pub fn event(&mut self, event: &Event) {
        self.counts.event(event);
        match event {
            Event::Sample { gpu, sample } => {
                self.polls
                    .insert(*gpu, ((**sample).clone(), Instant::now()));
            }
            Event::Lost { gpu } => drop(self.polls.remove(gpu)),
            _ => {}
        }
    }

    /// Counts what Slurm was asked to do. What is to be asked again does not count yet.
    pub fn acted(&mut self, action: &Action, outcome: &Outcome) {
        let ok = match outcome {
            Outcome::Done(_) => true,
            Outcome::Refused(_) => false,
            Outcome::Nothing(_) | Outcome::NotYet(_) | Outcome::NoAnswer(_) => return,
        };
        let act = match action {
            Action::Requeue { .. } | Action::Hold { .. } => Act::Requeue,
            Action::Kill { .. } => Act::KillStep,
            Action::Drain { .. } => Act::DrainNode,
            Action::Undrain { .. } => Act::UndrainNode,
            // A publication is counted by its event; a release is a part of a requeue, and what is told of an end.
            Action::Publish(_)
            | Action::Release { .. }
            | Action::LetGo { .. }
            | Action::Tell { .. } => return,
        };
        self.counts.act(act, ok);
    }

    /// Counts something that the daemon did itself.
    pub fn did(&mut self, act: Act, ok: bool) {
        self.counts.act(act, ok);
    }

    /// Takes `[metrics]` of gpuos.toml: opens and closes what changed. `checkpoints`: some are made on this site.
    pub fn set(&mut self, config: &MetricsConfig, checkpoints: bool) {
        self.configured = true;
        match checkpoints {
            // Without a thread nothing is told of checkpoints, and it is tried at the next reload.
            true if self.checkpoints.is_none() => {
                self.checkpoints = Asker::start(self.mover.clone()).ok();
            }
            true => {}
            false => self.checkpoints = None,
        }
        if *config == self.config {
            return;
        }
        self.trouble = None;
        if config.listen != self.config.listen {
            // The old one closes its socket before the new one opens, should both have the same port.
            self.server = None;
            self.server = config
                .listen
                .and_then(|address| match Server::start(address) {
                    Ok(server) => Some(server),
                    Err(e) => {
                        self.trouble = Some(format!("no thread for metrics: {e}"));
                        None
                    }
                });
        }
        let dirs = (config.dcgm_dir.clone(), config.jobstats_dir.clone());
        if dirs
            != (
                self.config.dcgm_dir.clone(),
                self.config.jobstats_dir.clone(),
            )
        {
            self.maps = match dirs {
                (None, None) => None,
                (dcgm, jobstats) => match Writer::start(dcgm, jobstats) {
                    Ok(writer) => Some(writer),
                    Err(e) => {
                        self.trouble = Some(format!("no thread for map files: {e}"));
                        None
                    }
                },
            };
        }
        self.config = config.clone();
    }

    /// Jobs of which checkpoints lie on this node, by Slurm's number, and the GiB that they take. None where checkpoints are not made on
    /// this site; `None`: gpuos_mover has not said.
    pub fn held(&self) -> Option<NamedJobs> {
        match &self.checkpoints {
            Some(asker) => checkpoints::held(&asker.told()),
            None => self.configured.then(NamedJobs::default),
        }
    }

    /// Hands the node over to those who are to be told, if there are any.
    pub fn show(&mut self, rest: &Rest<'_>) {
        if self.server.is_none() && self.maps.is_none() {
            return;
        }
        let snapshot = Arc::new(self.snapshot(rest));
        if let Some(maps) = &mut self.maps {
            maps.show(&snapshot, rest.found);
        }
        if let Some(server) = &self.server {
            server.show(snapshot);
        }
    }

    /// What keeps metrics or map files from being told.
    pub fn trouble(&self) -> Option<String> {
        let server = self.server.as_ref().and_then(Server::trouble);
        let maps = self.maps.as_ref().and_then(Writer::trouble);
        self.trouble.clone().or(server).or(maps)
    }

    /// The node as it is now.
    pub fn snapshot(&self, rest: &Rest<'_>) -> Snapshot {
        let gpu = |index: NodeGpu| {
            let mut all = rest.found.iter().chain(rest.pooled);
            let found = all.find(|found| found.number == index);
            let text = |of: fn(&GpuIdentity) -> &String| {
                found.map_or_else(String::new, |gpu| of(gpu).clone())
            };
            let fresh = self
                .polls
                .get(&index)
                .filter(|(_, at)| at.elapsed() < self.stale);
            Gpu {
                index,
                uuid: text(|gpu| &gpu.uuid),
                name: text(|gpu| &gpu.name),
                pci: text(|gpu| &gpu.pci),
                state: rest.health.state(index),
                faults: rest.health[index]
                    .causes
                    .iter()
                    .map(|cause| cause.rule.clone())
                    .collect(),
                sample: fresh.map(|(sample, _)| sample.clone()),
            }
        };
        Snapshot {
            node: rest.node.into(),
            gpus: rest.health.numbers().into_iter().map(gpu).collect(),
            holders: holders(rest.jobs),
            foreign: rest.isolation.foreign(),
            job_memory: rest.isolation.job_memory(),
            counts: self.counts.clone(),
            node_drained: rest.health.drain.is_some() || rest.health.hold.is_some(),
            started_ms: rest.started_ms,
            sampled_ms_ago: rest.sampled_ms_ago,
            waiting: rest.waiting,
            peers: peers(rest.peers),
            slices: rest.slices.clone(),
            memory: rest.memory.clone(),
            nameless: self.config.nameless,
            checkpoints: self
                .checkpoints
                .as_ref()
                .map(Asker::told)
                .unwrap_or_default(),
            troubles: rest.troubles.clone(),
        }
    }
}

/// How many peers are in each state; none where there are no peers.
fn peers(peers: &[PeerView]) -> Vec<(&'static str, u32)> {
    let count = |state: PeerState| peers.iter().filter(|peer| peer.state == state).count() as u32;
    let states = PeerState::ALL.into_iter().filter(|_| !peers.is_empty());
    states.map(|state| (state.word(), count(state))).collect()
}

/// Who holds which GPU. A job whose steps hold all of its GPUs is not told beside them.
fn holders(jobs: &Table) -> Vec<Holder> {
    let mut holders = Vec::new();
    for part in jobs.health_jobs() {
        let Some(held) = jobs.jobs.get(&part.job) else {
            continue;
        };
        holders.extend(part.gpus.iter().map(|gpu| Holder {
            gpu: *gpu,
            job: part.job.clone(),
            step: part.step,
            uid: held.uid,
            user: held.user.clone(),
        }));
    }
    holders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_told_of_a_gpu_that_is_lost_or_silent() {
        let mut keeper = Keeper::new(Duration::from_secs(5), PathBuf::new());
        let health = NodeHealth::new(3, 0);
        let jobs = Table::default();
        let rest = Rest {
            node: "n1",
            health: &health,
            found: &[],
            pooled: &[],
            jobs: &jobs,
            isolation: &isolation::keep::Keeper::default(),
            started_ms: 0,
            sampled_ms_ago: None,
            waiting: 0,
            peers: &[],
            slices: Vec::new(),
            memory: MemoryStatus::default(),
            troubles: Vec::new(),
        };
        for gpu in 0..2u8 {
            let sample = Box::default();
            keeper.event(&Event::Sample {
                gpu: gpu.try_into().unwrap(),
                sample,
            });
        }
        let polled = |keeper: &Keeper| {
            let gpus = keeper.snapshot(&rest).gpus;
            gpus.iter()
                .map(|gpu| gpu.sample.is_some())
                .collect::<Vec<_>>()
        };
        assert_eq!(polled(&keeper), [true, true, false]);
        keeper.event(&Event::Lost {
            gpu: 1u8.try_into().unwrap(),
        });
        assert_eq!(polled(&keeper), [true, false, false]);
        keeper.stale = Duration::ZERO;
        assert_eq!(polled(&keeper), [false, false, false]);
    }
}
