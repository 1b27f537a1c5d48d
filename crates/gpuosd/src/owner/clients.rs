//! What clients ask of the owner.

use std::collections::BTreeSet;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use gpuos_core::health::{Admin, Event, Job, Verb, number};
use gpuos_core::wire::{Code, DaemonStatus, GpuStatus, Peer, Reply, Request, Status, Viewer};

use super::{LOOK_AGAIN, MEET, Owner, done};
use crate::desk::refused;
use crate::disk::Ack;
use crate::jobs::Held;
use crate::queue::Task;
use crate::{RELEASE, status};

/// Slurm is asked so long after the last step of a job whose GPUs were set: the job ends just then.
const SOON: Duration = Duration::from_secs(2);

impl Owner {
    pub(super) fn asked(&mut self, peer: Peer, request: Request, reply: SyncSender<Reply>) {
        if let Some((request, reply)) = self.held_back(peer, request, reply) {
            self.asked_now(peer, request, reply);
        }
    }

    /// The same of what needs no look at its job, or has had it.
    pub(super) fn asked_now(&mut self, peer: Peer, request: Request, reply: SyncSender<Reply>) {
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
                return self.admin(admin, &gpus, reply);
            }
            Request::StepStart {
                id,
                uid,
                gpus,
                asked,
                mig,
                moves,
            } => {
                self.quiet.knows(id.job, uid);
                let new = self.jobs.started(id, uid, &gpus, asked);
                let unknown = self
                    .jobs
                    .jobs
                    .get(&id.job)
                    .is_some_and(|job| job.requeue.is_none());
                if new && unknown {
                    self.look = self.look.min(self.now() + MEET);
                }
                self.look_for_claims(id.job);
                self.grow(self.jobs.room_for(id.job));
                self.tell_jobs();
                if !asked.is_nothing() {
                    self.save(None);
                }
                if mig.is_some() || !id.is_extern() && self.mig_moves(&gpus, moves) {
                    let gpus = (gpus.into_iter().collect(), asked);
                    return self.mig_step(id, gpus, mig, reply);
                }
                if asked.waits() {
                    let gpus = gpus.into_iter().collect();
                    return self.prepare(id.job, gpus, asked, reply);
                }
                done("noted")
            }
            Request::StepEnd { id } => {
                self.mig_ended(id);
                let sets = |held: &Held| held.asked.waits();
                let is_set = self.jobs.jobs.get(&id.job).is_some_and(sets);
                if self.jobs.ended(id) {
                    let soon = match is_set {
                        true => (self.now() + SOON).max(self.looked + LOOK_AGAIN),
                        false => self.now() + MEET,
                    };
                    self.look = self.look.min(soon);
                }
                self.tell_jobs();
                done("noted")
            }
            Request::Mig => {
                let mut mig = self.mig_status();
                if !self.seers.sees_all(peer.uid) {
                    let users = &self.isolation.users(&self.jobs);
                    let uid = peer.uid;
                    mig = mig.told_to(&Viewer { uid, users });
                }
                Reply::Mig { mig: Box::new(mig) }
            }
            Request::Reload => {
                self.reloads.push(reply);
                self.queue.push(Task::Config);
                return;
            }
            // Answered before they come here.
            Request::Hello { .. } | Request::Watch | Request::Audit { .. } => {
                refused(Code::Malformed, "not a question for the daemon".into())
            }
        };
        let _ = reply.try_send(answer);
    }

    /// An administrator's command; it is answered once it is safe on the disk.
    fn admin(&mut self, admin: Admin, gpus: &[u8], reply: SyncSender<Reply>) {
        let known = |gpu: &&u8| self.health.gpu(**gpu).is_none();
        if let Some(gpu) = gpus.iter().find(known) {
            let why = self.no_such(*gpu);
            let _ = reply.try_send(refused(Code::Unknown, why));
            return;
        }
        let each: Vec<Option<u8>> = match gpus {
            [] => vec![None],
            gpus => gpus.iter().map(|gpu| Some(*gpu)).collect(),
        };
        let verb = verb_name(admin.verb);
        for gpu in &each {
            let one = Admin {
                gpu: *gpu,
                ..admin.clone()
            };
            self.step(Event::Admin(one));
        }
        let mut message = match gpus {
            [] => format!("{} {verb}", self.node),
            gpus => {
                let states = gpus
                    .iter()
                    .map(|gpu| (number::name(*gpu), self.health.state(*gpu)))
                    .map(|(gpu, state)| format!("GPU {gpu} {}", state.word()));
                format!("{}: {}", self.node, states.collect::<Vec<_>>().join(", "))
            }
        };
        let told = self.told_jobs_with_processes();
        let own = |job: &&Job| each.iter().flatten().any(|gpu| job.gpus.contains(gpu));
        let jobs: BTreeSet<u32> = told.iter().filter(own).map(|job| job.job).collect();
        if admin.verb != Verb::Online && !admin.force && !jobs.is_empty() {
            let (job, runs) = match jobs.len() {
                1 => ("job", "runs"),
                _ => ("jobs", "run"),
            };
            let list: Vec<String> = jobs.iter().map(u32::to_string).collect();
            message = format!(
                "{message}; {job} {} still {runs} there and may finish (--force requeues or ends at once)",
                list.join(", ")
            );
        }
        let waits = |gpu: &u8| self.health.state(*gpu).is_out();
        if admin.verb == Verb::Online && gpus.iter().any(waits) {
            message += "; what is drained or being reset comes back once a check has passed";
        }
        let ack: Ack = Box::new(move |saved| {
            let answer = match saved {
                Ok(()) => done(&message),
                Err(why) => done(&format!(
                    "{message}; it holds until gpuosd ends, for it could not be saved: {why}"
                )),
            };
            let _ = reply.try_send(answer);
        });
        self.save(Some(ack));
    }

    /// Why a GPU cannot be named, and what can.
    fn no_such(&self, gpu: u8) -> String {
        let have = self.health.gpus.len();
        let gres = match have {
            0 => "it has none of GRES gpu".into(),
            _ => format!("it has {have}, numbered from 0"),
        };
        let pool: Vec<String> = self
            .health
            .pool
            .keys()
            .map(|gpu| number::name(*gpu))
            .collect();
        let pool = match pool.is_empty() {
            true => String::new(),
            false => format!(", and in its pool {}", pool.join(", ")),
        };
        format!("this node has no GPU {}: {gres}{pool}", number::name(gpu))
    }

    fn gpu_states(&self) -> Vec<GpuStatus> {
        let (jobs, limits) = (&self.jobs, (&self.limits, &self.mps));
        let mut gres = status::gpus(&self.health, &self.found, jobs, limits, &self.isolation);
        let holders = self.mig_holders();
        for gpu in &mut gres {
            // Those with slices of one that moves.
            let on = holders.iter().filter(|job| job.gpus.contains(&gpu.index));
            gpu.jobs.extend(on.map(|job| job.job));
            gpu.jobs.sort_unstable();
            gpu.jobs.dedup();
        }
        let pool = status::pool(&self.health, &self.pooled, &holders);
        gres.into_iter().chain(pool).collect()
    }

    /// What a user is told: his own, unless he is told everything.
    fn status_for(&self, uid: u32) -> Status {
        let mut status = self.status();
        if !self.seers.sees_all(uid) {
            let users = &self.isolation.users(&self.jobs);
            // Sentences about the daemon's work may be about anybody's.
            let kinds = self.troubles.keys();
            let said = |of: &&str| format!("trouble with {of}: root is told more");
            status.daemon.troubles = kinds.map(said).collect();
            status = status.told_to(&Viewer { uid, users });
        }
        status
    }

    fn status(&self) -> Status {
        let drained = match (&self.health.hold, &self.health.drain) {
            (Some(hold), _) => Some(status::held(hold)),
            (None, Some(drain)) => Some(drain.reason.clone()),
            (None, None) => None,
        };
        Status {
            node: self.node.clone(),
            daemon: DaemonStatus {
                release: RELEASE.into(),
                started_ms: self.started_ms,
                sampled_ms_ago: self.sampled_ms_ago(),
                waiting: (self.queue.len() + self.releases.len()) as u32,
                troubles: self.troubles.values().cloned().collect(),
            },
            published: self.published.clone(),
            node_drained: drained,
            gpus: self.gpu_states(),
            jobs: self.jobs.status(),
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
