//! What clients ask.

use std::collections::BTreeSet;

use gpuos_core::health::{Admin, Job, Verb};
use gpuos_core::job::JobId;
use gpuos_core::wire::{Code, DaemonStatus, GpuStatus, Peer, Reply, Request, Status, Viewer};
use gpuos_model::node_gpu::NodeGpu;

use super::EventLoop;
use super::client::{Client, done};
use super::effect::{Effect, Effects, Starting, Then};
use super::memory::{self, Memory};
use super::mig;
use crate::socket_handler::refused;
use crate::{RELEASE, status};

impl EventLoop {
    /// Answers what needs no look at its job, or has had it.
    pub(super) fn request(&mut self, peer: Peer, request: Request, client: Client) {
        let answer = match request {
            Request::Status => Reply::Status {
                status: Box::new(self.status_for(peer.uid)),
            },
            Request::Admin {
                verb,
                gpus,
                reason,
                force,
            } => {
                let admin = Admin {
                    verb,
                    gpu: None,
                    reason,
                    uid: peer.uid,
                    force,
                };
                return self.admin(admin, &gpus, client);
            }
            Request::StepStart {
                id,
                uid,
                gpus,
                asked,
                mig,
                switchable,
                memory,
                reason,
            } => {
                let starting = Starting {
                    id,
                    gpus,
                    asked,
                    mig,
                    switchable,
                    memory,
                    client,
                };
                let fx = self.node.reports.started(starting, uid, reason);
                return self.carry_out(fx);
            }
            Request::StepEnd { id } => {
                self.mig(|mig, on, _| mig.ended(&id, on));
                self.memory.ended(&id);
                let fx = self.node.reports.ended(&id);
                self.carry_out(fx);
                self.memory(Memory::keep_jobs);
                done("noted")
            }
            Request::Mig => {
                let facts = self.node.facts(self.now());
                let mut mig = mig::status::status(&self.mig, &facts);
                if !self.journal.privileged_viewers().sees_all(peer.uid) {
                    let users = &self.users();
                    let uid = peer.uid;
                    mig = mig.redacted_for(&Viewer { uid, users });
                }
                Reply::Mig { mig: Box::new(mig) }
            }
            Request::Memory => {
                let mut memory = memory::status::status(&self.memory, self.now().at);
                if !self.journal.privileged_viewers().sees_all(peer.uid) {
                    let users = &self.users();
                    let uid = peer.uid;
                    memory = memory.redacted_for(&Viewer { uid, users });
                }
                Reply::Memory {
                    memory: Box::new(memory),
                }
            }
            Request::Reload => return self.node.scheduler.reload(client),
            Request::Checkpoint { .. } => {
                let why = "gpuosd knows no checkpoints: ask gpuos_mover, on its socket";
                refused(Code::Malformed, why.into())
            }
            // Answered before they come here.
            Request::Hello { .. }
            | Request::Watch
            | Request::Mom { .. }
            | Request::Confine { .. }
            | Request::Audit { .. } => {
                refused(Code::Malformed, "not a question for the daemon".into())
            }
        };
        client.answer(answer);
    }

    /// An administrator's command; it is answered once it is safe on the disk.
    fn admin(&mut self, admin: Admin, gpus: &[NodeGpu], client: Client) {
        let known = |gpu: &&NodeGpu| self.node.health.node().gpu(**gpu).is_none();
        if let Some(gpu) = gpus.iter().find(known) {
            let why = self.no_such(*gpu);
            return client.answer(refused(Code::Unknown, why));
        }
        let each: Vec<Option<NodeGpu>> = match gpus {
            [] => vec![None],
            gpus => gpus.iter().map(|gpu| Some(*gpu)).collect(),
        };
        let mut fx = Effects::default();
        for gpu in &each {
            fx.push(Effect::Command(Admin {
                gpu: *gpu,
                ..admin.clone()
            }));
        }
        self.carry_out(fx);
        let message = self.obeyed(&admin, gpus);
        self.save(Then::Answer(client, message));
    }

    /// What an administrator is told who said so.
    fn obeyed(&self, admin: &Admin, gpus: &[NodeGpu]) -> String {
        let health = self.node.health.node();
        let node = &self.node.name;
        let mut message = match gpus {
            [] => format!("{node} {}", verb_name(admin.verb)),
            gpus => {
                let states = gpus
                    .iter()
                    .map(|gpu| (*gpu, health.state(*gpu)))
                    .map(|(gpu, state)| format!("GPU {gpu} {}", state.word()));
                format!("{node}: {}", states.collect::<Vec<_>>().join(", "))
            }
        };
        let told = self.jobs_with_processes();
        let own = |job: &&Job| gpus.iter().any(|gpu| job.gpus.contains(gpu));
        let jobs: BTreeSet<JobId> = told.iter().filter(own).map(|job| job.job.clone()).collect();
        if admin.verb != Verb::Online && !admin.force && !jobs.is_empty() {
            let (job, runs) = match jobs.len() {
                1 => ("job", "runs"),
                _ => ("jobs", "run"),
            };
            let list: Vec<String> = jobs.iter().map(JobId::to_string).collect();
            message = format!(
                "{message}; {job} {} still {runs} there and may finish (--force requeues or ends at once)",
                list.join(", ")
            );
        }
        let waits = |gpu: &NodeGpu| health.state(*gpu).is_out();
        if admin.verb == Verb::Online && gpus.iter().any(waits) {
            message += "; what is drained or being reset comes back once a check has passed";
        }
        message
    }

    /// Why a GPU cannot be named, and what can.
    fn no_such(&self, gpu: NodeGpu) -> String {
        let health = self.node.health.node();
        let gres = match health.gpus.len() {
            0 => "it has none of GRES gpu".into(),
            have => format!("it has {have}, numbered from 0"),
        };
        let pool: Vec<String> = health.pool.keys().map(NodeGpu::to_string).collect();
        let pool = match pool.is_empty() {
            true => String::new(),
            false => format!(", and in its pool {}", pool.join(", ")),
        };
        format!("this node has no GPU {gpu}: {gres}{pool}")
    }

    fn gpu_states(&self) -> Vec<GpuStatus> {
        let facts = self.node.facts(self.now());
        let (health, jobs) = (facts.health, facts.jobs);
        let kept = self.settings.state();
        let mut gres = status::gpus(health, facts.gpus.found(), jobs, kept, &self.isolation);
        let holders = mig::health::holders(&self.mig, health);
        for gpu in &mut gres {
            // Those with slices of a MIG-switchable one.
            let on = holders.iter().filter(|job| job.gpus.contains(&gpu.index));
            gpu.jobs.extend(on.map(|job| job.job.clone()));
            gpu.jobs.sort_unstable();
            gpu.jobs.dedup();
        }
        let pool = status::pool(health, facts.gpus.pooled(), &holders);
        gres.into_iter().chain(pool).collect()
    }

    /// What a user is told: his own, unless he is told everything.
    fn status_for(&self, uid: u32) -> Status {
        let mut status = self.status();
        if !self.journal.privileged_viewers().sees_all(uid) {
            let users = &self.users();
            // Sentences about the daemon's work may be about anybody's.
            let kinds = self.node.troubles.names();
            let said = |of: &str| format!("trouble with {of}: root is told more");
            status.daemon.troubles = kinds.map(said).collect();
            status = status.redacted_for(&Viewer { uid, users });
        }
        status
    }

    fn status(&self) -> Status {
        let facts = self.node.facts(self.now());
        let drained = match (&facts.health.hold, &facts.health.drain) {
            (Some(hold), _) => Some(status::held(hold)),
            (None, Some(drain)) => Some(drain.reason.clone()),
            (None, None) => None,
        };
        Status {
            node: self.node.name.clone(),
            daemon: DaemonStatus {
                release: RELEASE.into(),
                started_ms: self.times.started_ms,
                sampled_ms_ago: facts.sampled_ms_ago(),
                waiting: self.node.scheduler.waiting(),
                troubles: facts.troubles.sentences(),
                advises: self.ports.manager.advises(),
            },
            published: self.node.scheduler.published().into(),
            node_drained: drained,
            gpus: self.gpu_states(),
            jobs: facts.jobs.status(),
            peers: status::peers(&self.peers),
            isolation: self.isolation.status(),
            hidden: None,
        }
    }
}

fn verb_name(verb: Verb) -> &'static str {
    match verb {
        Verb::Drain => "draining",
        Verb::Online => "online",
        Verb::Offline => "offline",
    }
}
