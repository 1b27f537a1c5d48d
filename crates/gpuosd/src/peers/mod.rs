//! Heartbeats between the nodes of a job: what [`gpuos_core::peers::step`] says is done here.
//!
//! One thread has the state. Others do what may hang: [`net`] reads and writes datagrams at the
//! port that [`port`] keeps, and asks munge about them, and [`driver`] has threads for host names, for slurmds and for slurmctld. The daemon's loop only
//! tells the jobs and the configuration, and is told what happens.

mod driver;
mod gate;
mod net;
mod port;

use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use gpuos_core::job::JobId;
use gpuos_core::peers::{Group, HeartbeatConfig, ManagerAnswer, PeerView};
use gpuos_workload::action::Outcome;
use gpuos_workload::job::{Job, JobState};

pub use driver::start;

/// What the thread with the state is told.
pub(super) enum Notice {
    /// By the loop: gpuos.toml was read.
    Config(HeartbeatConfig),
    /// By the loop: jobs of several nodes that run here.
    Groups(Vec<Group>),
    /// By the loop: gpuosd ends; an answer when the others know.
    End(Sender<()>),
    /// A message, and where it came from.
    Received(gpuos_core::peers::Datagram, std::net::SocketAddr),
    /// A slurmd answered, or did not.
    Daemon(String, ManagerAnswer),
    /// A host name has this address.
    Resolved(String, Option<std::net::SocketAddr>),
    /// slurmctld was asked to set a node down.
    Asked(JobId, String, Outcome),
    /// slurmctld was asked about this node itself; whether to ask again.
    Self_(bool),
}

/// What the loop is told.
#[derive(Debug)]
pub enum Report {
    /// How the peers are, and what keeps them from being watched.
    View(Vec<PeerView>, Option<String>),
    /// A sentence for the audit log.
    Note(String),
    /// A node was set down for this job, which slurmctld requeues.
    Down(JobId),
}

/// The loop's end.
#[derive(Clone)]
pub struct Peers(Sender<Notice>);

impl Peers {
    /// One that watches nobody.
    pub fn none() -> Peers {
        Peers(channel().0)
    }

    /// gpuos.toml was read.
    pub fn configure(&self, config: HeartbeatConfig) {
        let _ = self.0.send(Notice::Config(config));
    }

    /// slurmctld has told the jobs of this node.
    pub fn jobs(&self, jobs: &[Job]) {
        let runs = |job: &&Job| job.state == JobState::Running && job.nodes.len() > 1;
        let group = |job: &Job| Group {
            job: job.id.clone(),
            nodes: job.nodes.clone(),
        };
        let groups = jobs.iter().filter(runs).map(group).collect();
        let _ = self.0.send(Notice::Groups(groups));
    }

    /// Tells the others that this gpuosd ends, within `patience`.
    pub fn end(&self, patience: Duration) {
        let (to, done) = channel();
        if self.0.send(Notice::End(to)).is_ok() {
            let _ = done.recv_timeout(patience);
        }
    }
}
