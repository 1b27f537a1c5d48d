//! What a node knows of its peers.
use std::collections::{BTreeMap, VecDeque};

use super::group::Group;
use super::message::Word;
use super::promise::Promises;
use super::settings::HeartbeatConfig;
use super::step::ManagerAnswer;
use crate::job::JobId;

/// All that a node knows. Times are milliseconds of a clock that does not jump back.
#[derive(Clone, Debug)]
pub struct Peers {
    pub(super) own: String,
    pub(super) groups: Vec<Group>,
    /// The nodes that this one pings.
    pub(super) watches: BTreeMap<String, Watch>,
    /// Nodes that are looked into, for this node or for others.
    pub(super) inquiries: BTreeMap<String, Inquiry>,
    /// What came of inquiries a moment ago, for who did not get the answer.
    pub(super) found: BTreeMap<String, (u64, Word)>,
    /// Questions to other nodes, by the node that they are about.
    pub(super) polls: BTreeMap<String, Poll>,
    pub(super) promises: Promises,
    /// When nodes were found silent, the newest ones.
    pub(super) losses: VecDeque<u64>,
    pub(super) born: u64,
    pub(super) ticked: u64,
    pub(super) nonce: u64,
}

/// A node that is pinged.
#[derive(Clone, Default, Debug)]
pub(super) struct Watch {
    pub since: u64,
    /// Never: a node without gpuosd is nobody's business.
    pub last_seen: Option<u64>,
    pub pinged: Option<u64>,
    /// Its gpuosd ended in order.
    pub left: bool,
    /// Its gpuosd is silent, its workload manager's daemon answered.
    pub only_daemon: bool,
    /// It was found silent.
    pub reported: bool,
    /// It is not looked into again before.
    pub quiet_until: u64,
    /// Looks in vain.
    pub tries: u32,
}

/// A look into a node.
#[derive(Clone, Default, Debug)]
pub(super) struct Inquiry {
    pub began: u64,
    pub pinged: u64,
    pub manager: Option<ManagerAnswer>,
    /// Who else wants to know.
    pub askers: Vec<Asker>,
    /// This node wants to know; whether the silence is long enough for a hung one.
    pub own: Option<bool>,
}

/// Somebody who asks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Asker {
    pub node: String,
    pub nonce: u64,
    pub hung: bool,
}

/// A question to the other nodes of a job.
#[derive(Clone, Default, Debug)]
pub(super) struct Poll {
    /// Index of the job's group.
    pub group: usize,
    pub nonce: u64,
    /// The others are asked from then on.
    pub begins: u64,
    pub sent: Option<u64>,
    pub hung: bool,
    /// This node finds it gone.
    pub own: bool,
    pub votes: BTreeMap<String, Word>,
}

/// How a peer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerState {
    /// It was not heard since this gpuosd or the job started: it may have no gpuosd.
    Unknown,
    /// It answers.
    Alive,
    /// Its gpuosd ended in order.
    Left,
    /// It has not answered for a while, and is looked into.
    Suspect,
    /// Its gpuosd does not answer, its workload manager's daemon does.
    DaemonSilent,
    /// A quorum of the job's nodes finds it gone.
    Silent,
}

impl PeerState {
    /// All of them, in the order of how well a node is.
    pub const ALL: [PeerState; 6] = [
        PeerState::Alive,
        PeerState::Left,
        PeerState::Unknown,
        PeerState::DaemonSilent,
        PeerState::Suspect,
        PeerState::Silent,
    ];

    /// In one word.
    pub fn word(self) -> &'static str {
        match self {
            PeerState::Unknown => "unknown",
            PeerState::Alive => "alive",
            PeerState::Left => "left",
            PeerState::Suspect => "suspect",
            PeerState::DaemonSilent => "gpuosd-silent",
            PeerState::Silent => "silent",
        }
    }
}

/// A peer, as people see it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerView {
    /// The node.
    pub node: String,
    /// How it is.
    pub state: PeerState,
    /// Milliseconds since it was heard last.
    pub last_seen_ms_ago: Option<u64>,
    /// The jobs that run there and here.
    pub jobs: Vec<JobId>,
}

impl Peers {
    /// Nothing is known. `nonce` is a number that no earlier start had.
    pub fn new(own: &str, nonce: u64, now: u64) -> Peers {
        Peers {
            own: own.into(),
            groups: Vec::new(),
            watches: BTreeMap::new(),
            inquiries: BTreeMap::new(),
            found: BTreeMap::new(),
            polls: BTreeMap::new(),
            promises: Promises::default(),
            losses: VecDeque::new(),
            born: now,
            ticked: now,
            nonce,
        }
    }

    /// The nodes that are pinged.
    pub fn view(&self, settings: &HeartbeatConfig, now: u64) -> Vec<PeerView> {
        let view = |(node, watch): (&String, &Watch)| PeerView {
            node: node.clone(),
            state: watch.state(settings, now),
            last_seen_ms_ago: watch.last_seen.map(|at| now.saturating_sub(at)),
            jobs: self
                .groups
                .iter()
                .filter(|g| g.has(node))
                .map(|g| g.job.clone())
                .collect(),
        };
        self.watches.iter().map(view).collect()
    }

    /// Nodes that are to know that this gpuosd ends: those that may ping it.
    pub fn farewell(&self) -> Vec<String> {
        let pings =
            |group: &Group, node: &&String| group.watched_by(node).contains(&self.own.as_str());
        let mut all: Vec<String> = Vec::new();
        for group in &self.groups {
            all.extend(
                group
                    .nodes
                    .iter()
                    .filter(|node| pings(group, node))
                    .cloned(),
            );
        }
        all.sort_unstable();
        all.dedup();
        all
    }
}

impl Watch {
    pub(super) fn silent_for(&self, now: u64) -> Option<u64> {
        self.last_seen.map(|at| now.saturating_sub(at))
    }

    pub(super) fn state(&self, settings: &HeartbeatConfig, now: u64) -> PeerState {
        match self.silent_for(now) {
            _ if self.left => PeerState::Left,
            None => PeerState::Unknown,
            _ if self.reported => PeerState::Silent,
            Some(ms) if ms <= settings.silent_ms => PeerState::Alive,
            _ if self.only_daemon => PeerState::DaemonSilent,
            _ => PeerState::Suspect,
        }
    }
}
