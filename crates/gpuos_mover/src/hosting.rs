//! The nodes that made a checkpoint, hosted by those that the job has now: their restart, until what can be restored is whole.
//!
//! Each hosted node is a [`Node`] as at any restart, and knows nothing of its host. What two of one host say to each other does not leave it. The
//! host of node 0 learns what came of it; nothing is begun or committed here.

use std::collections::{BTreeMap, VecDeque};

use gpuos_checkpoint::ids::{LEADER, NodeIndex};
use gpuos_store::disk::Disk;
use gpuos_store::error::Result as Stored;
use gpuos_store::job::JobStore;
use gpuos_store::store::Store;

use crate::hosts::Hosts;
use crate::message::Refused;
use crate::node::Node;
use crate::output::{Output, Ready};
use crate::roster::Claim;

/// What a host has to say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Said {
    /// To the host of a node. It may be lost, repeated and late.
    Send {
        /// That host.
        seat: u16,
        /// The hosted node that says it.
        from: NodeIndex,
        /// To this one.
        to: NodeIndex,
        /// For [`Hosting::receive`].
        bytes: Vec<u8>,
    },
    /// At the host of node 0: it is known what can be restored, and all hosts have their parts of it.
    Whole(Ready),
    /// Something that an administrator may want to know, as a sentence.
    Note(String),
}

/// The nodes that one seat hosts.
pub struct Hosting<'a, D: Disk> {
    hosts: Hosts,
    seat: u16,
    nodes: BTreeMap<NodeIndex, Node<'a, D>>,
}

impl<'a, D: Disk> Hosting<'a, D> {
    /// At a seat; whom it hosts is added.
    pub fn new(hosts: Hosts, seat: u16) -> Hosting<'a, D> {
        Hosting {
            hosts,
            seat,
            nodes: BTreeMap::new(),
        }
    }

    /// A node that is hosted here.
    pub fn add(&mut self, index: NodeIndex, node: Node<'a, D>) {
        self.nodes.insert(index, node);
    }

    /// Time went by; several times a second.
    pub fn tick(&mut self, now: u64) -> Vec<Said> {
        let mut out = VecDeque::new();
        for (index, node) in &mut self.nodes {
            out.extend(node.tick(now).into_iter().map(|output| (*index, output)));
        }
        self.carry_out(out, now)
    }

    /// A message came from a seat, of a node for which its carrier does not vouch: that it is hosted there is looked at here.
    ///
    /// # Errors
    /// It is not listened to; nothing has changed.
    pub fn receive(
        &mut self,
        seat: u16,
        (from, to): (NodeIndex, NodeIndex),
        bytes: &[u8],
        now: u64,
    ) -> Result<Vec<Said>, Refused> {
        if self.hosts.host(from) != Some(seat) {
            return Err(Refused(format!(
                "seat {seat} speaks for node {from}, which it does not host; look who sends it"
            )));
        }
        let Some(node) = self.nodes.get_mut(&to) else {
            return Err(Refused(format!(
                "seat {seat} has something for node {to}, which is not hosted here; it is late"
            )));
        };
        let out = node.receive(from, bytes, now)?;
        let out = out.into_iter().map(|output| (to, output));
        Ok(self.carry_out(out.collect(), now))
    }

    fn carry_out(&mut self, mut todo: VecDeque<(NodeIndex, Output)>, now: u64) -> Vec<Said> {
        let mut said = Vec::new();
        while let Some((from, output)) = todo.pop_front() {
            match output {
                Output::Send { to, bytes } => match self.nodes.get_mut(&to) {
                    Some(node) => match node.receive(from, &bytes, now) {
                        Ok(out) => todo.extend(out.into_iter().map(|output| (to, output))),
                        Err(refused) => said.push(Said::Note(refused.to_string())),
                    },
                    None => said.extend(self.hosts.host(to).filter(|it| *it != self.seat).map(
                        |seat| Said::Send {
                            seat,
                            from,
                            to,
                            bytes,
                        },
                    )),
                },
                Output::Ready(ready) if from == LEADER => said.push(Said::Whole(ready)),
                Output::Note(text) => said.push(Said::Note(format!("hosted node {from}: {text}"))),
                Output::Ready(_)
                | Output::FolderRead { .. }
                | Output::Ended { .. }
                | Output::RefusedBegin { .. }
                | Output::Rebuilt { .. } => {}
            }
        }
        said
    }
}

/// What a node claims of a job: by its own parts and by those that it hosts, for each number of nodes by which they were made.
///
/// # Errors
/// A folder cannot be read.
pub fn claims<D: Disk>(store: &Store<D>, job: &JobStore<'_, D>) -> Stored<Vec<Claim>> {
    let mut all = claimed(job)?;
    for guest in store.guests(job)? {
        let of = claimed(&guest.parts)?.into_iter();
        all.extend(of.filter(|it| (it.nodes, it.index) == (guest.nodes, guest.index)));
    }
    Ok(all)
}

/// The same of a node's own parts alone, the newest first.
///
/// # Errors
/// As there.
pub fn claimed<D: Disk>(job: &JobStore<'_, D>) -> Stored<Vec<Claim>> {
    let claims = job.claims()?.into_iter();
    Ok(claims
        .map(|(newest, index, nodes, set)| Claim {
            index,
            nodes,
            set: set.members,
            parity: set.parity,
            newest,
        })
        .collect())
}

/// Where this node has the part of node `index` of `nodes`, or is to have it.
///
/// # Errors
/// The disk fails.
pub fn place<'a, D: Disk>(
    store: &'a Store<D>,
    job: JobStore<'a, D>,
    nodes: u16,
    index: NodeIndex,
) -> Stored<JobStore<'a, D>> {
    let own = claimed(&job)?;
    match own.iter().any(|it| (it.nodes, it.index) == (nodes, index)) {
        true => Ok(job),
        false => store.guest(&job, nodes, index),
    }
}
